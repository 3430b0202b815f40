"""The event log of a bench or a sweep: the parent of the runs that belong to it.

A run names its group in `parent` ({"id", "kind", "name", "params"}), so the two meet in MLflow whichever is sent first.
"""

from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from harness.errors import UserError
from harness.resume import drop_cut_off_line
from harness.tracking import Tracker, in_one_line, status_of
from harness.tracking.events import LOG, EventLog, LogReader

Kind = Literal["bench", "sweep"]


class GroupLog:
    """Events, figures and files of a group of runs; use as a context manager. Safe to log from several threads.

    A folder that has a log already is continued.
    """

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        group_id: str,
        *,
        experiment: str,
        name: str,
        params: dict[str, Any],
        tags: dict[str, Any],
        tracker: Tracker | None = None,
    ) -> None:
        """Opens the log.

        Args:
            folder: Where it lies, together with the files it names; made if need be.
            kind: What the group is.
            group_id: The name its runs know it by.
            experiment: MLflow experiment, which is the name of the dataset.
            name: What people see.
            params: Settings of the group, nested or flat.
            tags: More to search by.
            tracker: Sends the log to MLflow while it is written.
        """
        self.folder = folder
        self._tracker = tracker
        self._facts = {
            "kind": kind,
            "run_id": group_id,
            "experiment": experiment,
            "name": name,
            "params": params,
            "tags": tags,
        }
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / LOG
        self._continues = log.exists() and log.stat().st_size > 0
        if self._continues:
            drop_cut_off_line(log)
            first = next(iter(LogReader(log).read()), {})
            self._continues = bool(first)
            if first and first.get("run_id") != group_id:
                raise UserError(f"{folder} holds the log of {first.get('run_id')!r}, not of {group_id!r}")
        self._log = EventLog(log)

    @property
    def parent(self) -> dict[str, Any]:
        """What a run of this group is given as its `parent`."""
        return {key: self._facts["run_id" if key == "id" else key] for key in ("id", "kind", "name", "params")}

    def event(self, kind: str, /, **facts: Any) -> None:
        """Appends one event to the log."""
        self._log.write(kind, facts)

    def metrics(self, values: dict[str, float], step: int = 0) -> None:
        """Logs numbers of one step."""
        self.event("metrics", step=step, values=values)

    def artifact(self, path: Path) -> None:
        """Names a file of the folder that belongs to the group; it is sent as it is now, and again if it changes."""
        inside = path.absolute().relative_to(self.folder.absolute())
        self.event("artifact", path=inside.as_posix())

    def __enter__(self) -> Self:
        self.event("resume" if self._continues else "start", **self._facts)
        if self._tracker is not None:
            self._tracker.start(self.folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.event("end", status=status_of(error), error=in_one_line(error))
        self._log.close()
        if self._tracker is not None:
            self._tracker.finish(self.folder)
