"""The parent runs of a bench: one per dataset that has something to run, with the cells as its children.

    <folder of runs>/benches/<bench id>-<dataset>/events.jsonl      cells as they end, how many are done and failed
                                                  parent.json       what the children are given
                                                  comparison.md     all cells of the dataset, also those done before
                                                  comparison.html

They are for MLflow alone, so with `--track none` there are none. A full disk costs the parent, never the bench.
"""

import secrets
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.bench import Cell, Request, State
from harness.errors import Terminated, UserError
from harness.facts import recorded_name, recorded_setting
from harness.files import write_json, write_text
from harness.report import Table
from harness.report.tables import render
from harness.tracking import make_tracker, without_paths
from harness.tracking.follower import wait_for
from harness.tracking.group import GroupLog

FOLDER = "benches"
_NAME_WIDTH = 80
_NOT_ENDED = ("waiting", "running", "resumed")


class Parents:
    """Open while the bench runs; use as a context manager."""

    def __init__(self, request: Request, states: list[State], runs: Path, track: str) -> None:
        """Opens a log for every dataset with a waiting cell; none with `--track none`."""
        self._states, self._runs = states, runs
        self._groups: dict[str, GroupLog] = {}
        self._steps: Counter[str] = Counter()
        """The last step of each log."""
        self.stopped = False
        """Whether somebody said stop, so that the parents end as killed."""
        waiting = dict.fromkeys(state.cell.data_name for state in states if state.status == "waiting")
        bench = f"bench-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        for dataset in waiting if track != "none" else ():
            group_id = f"{bench}-{dataset}"
            with self._sparing(dataset):
                self._groups[dataset] = GroupLog(
                    runs / FOLDER / group_id,
                    "bench",
                    group_id,
                    experiment=dataset,
                    name=textwrap.shorten(f"bench {request.tables or request.methods}", _NAME_WIDTH, placeholder="..."),
                    params=_params(request),
                    tags={"bench": bench, "dataset": dataset},
                    tracker=make_tracker(track),
                )

    def file_of(self, cell: Cell) -> Path | None:
        """What `run --parent` takes for a cell."""
        group = self._groups.get(cell.data_name)
        return group.folder / "parent.json" if group else None

    def changed(self, state: State) -> None:
        """Logs what became of a cell, and the counts of its dataset."""
        dataset = state.cell.data_name
        if dataset not in self._groups or state.status in _NOT_ENDED:
            return
        alike = [other.status for other in self._of(dataset)]
        counts = {f"cells/{status}": float(alike.count(status)) for status in ("done", "failed")}
        with self._sparing(dataset):
            self._groups[dataset].event("cell", **_facts(state))
            # a cell that ran elsewhere ends twice, and MLflow keeps the first of two figures of one step
            ended = sum(status not in _NOT_ENDED for status in alike)
            self._steps[dataset] = max(self._steps[dataset] + 1, ended)
            self._groups[dataset].metrics(counts, step=self._steps[dataset])

    def compare(self, tables: Callable[[list[State]], list[Table]]) -> None:
        """Writes the comparison of each dataset: `tables` makes it from the states of one."""
        for dataset in list(self._groups):
            states = self._of(dataset)
            if not any(state.record for state in states):
                continue
            with self._sparing(dataset):
                for form in ("md", "html"):
                    path = self._groups[dataset].folder / f"comparison.{form}"
                    write_text(path, render(tables(states), form))
                    self._groups[dataset].artifact(path)

    def __enter__(self) -> Self:
        for dataset in list(self._groups):
            with self._sparing(dataset):
                group = self._groups[dataset]
                group.__enter__()
                write_json(group.folder / "parent.json", group.parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._groups:
            self._wait_for_runs()
        for dataset in list(self._groups):
            ended: BaseException | None = error or (Terminated() if self.stopped else None)
            if ended is None and (failed := sum(state.status == "failed" for state in self._of(dataset))):
                ended = UserError(f"{failed} of {len(self._of(dataset))} cells failed")
            with self._sparing(dataset):
                self._groups[dataset].__exit__(type(ended) if ended else None, ended, None)

    def _wait_for_runs(self) -> None:
        """The processes of the cells did not wait until MLflow has everything of them."""
        ran = [self._runs / state.run_id for state in self._states if state.attempt and state.run_id]
        if late := wait_for(ran):
            print(  # noqa: T201
                f"note: {len(late)} runs are still on their way to MLflow; `python -m harness sync` sends the rest",
                file=sys.stderr,
            )

    def _of(self, dataset: str) -> list[State]:
        return [state for state in self._states if state.cell.data_name == dataset]

    @contextmanager
    def _sparing(self, dataset: str) -> Iterator[None]:
        """A fault of the disk ends the parent of a dataset, with a warning."""
        try:
            yield
        except OSError as error:
            self._groups.pop(dataset, None)
            reason = error.strerror or error
            print(f"warning: the bench goes on without its parent run in MLflow: {reason}", file=sys.stderr)  # noqa: T201


def _facts(state: State) -> dict[str, Any]:
    """A cell for a log that may travel: folders by name alone."""
    facts = {key: value for key, value in state.as_dict().items() if key != "metrics"}
    names = {"dataset": state.cell.data_name, "encoder": recorded_name(state.cell.config.encoder)}
    return facts | names | {"reason": without_paths(state.reason) or None}


def _params(request: Request) -> dict[str, Any]:
    """What the user asked for, without what is absent."""
    given = {
        "methods": request.methods,
        "datasets": ",".join(map(recorded_name, (request.datasets or "").split(","))),
        "seeds": request.seeds,
        "table": request.tables,
        "rows": request.rows,
        "encoder": recorded_name(request.encoder or ""),
        "settings": "; ".join(map(recorded_setting, request.settings)),
    }
    return {key: value for key, value in given.items() if value}
