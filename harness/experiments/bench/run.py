"""Run a bench: its cells as jobs of the runner, and one group run per dataset in MLflow.

    <folder of runs>/bench-logs/<cell>.log          standard error of a cell's job
    <folder of runs>/benches/<bench>-<dataset>/     events.jsonl: cells as they end, how many are done and failed
                                                    parent.json: the group, for `run --parent` of each cell
                                                    comparison.md, .csv: all cells, also those done before

A job holds the lock of its cell, and inherits it: if the bench is killed (SIGKILL, out of memory), the job goes on, and
no other bench begins the same cell beside it, not even in the seconds before there is a run folder with its own lock.
"""

import secrets
import signal
import sys
import tempfile
import textwrap
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout
from pydantic import ValidationError

from harness.errors import Terminated, UserError
from harness.experiments.bench import METRICS, Cell, Request, State, log_path
from harness.experiments.bench.store import Found, RunStore
from harness.experiments.display import RUNNING, Alike, Display, Row
from harness.experiments.jobs import REFUSED, Job, Runner, Work, why_ended
from harness.io.files import write_json, write_text
from harness.io.private import without_paths
from harness.report.cells import Table
from harness.report.rows import settings_of
from harness.report.tables import render
from harness.runs.log import GroupLog
from harness.runs.metadata import recorded, recorded_name, recorded_setting
from harness.runs.record import RunRecord
from harness.settings.identity import key_of
from harness.tracking import make_tracker
from harness.tracking.uploader import wait_for

GROUP_FOLDER = "benches"
_NAME_WIDTH = 80


class Bench(Work):
    """The cells of a bench as work for the runner; `states` keep the status of each."""

    def __init__(self, states: list[State], store: RunStore, groups: "GroupRuns", *, workers: int, track: str) -> None:
        self._states, self._store, self._groups, self._track = states, store, groups, track
        self._waiting = deque(state for state in states if state.status == "waiting")
        self._running: dict[str, State] = {}
        self._locks: dict[str, FileLock] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="bench-")
        earlier = store.finished()
        self._known = {record.run_id for record in earlier}
        cells = [state.cell for state in states]
        self._alike = {cell.key: _alike(recorded(cell.config), cell.data_name) for cell in cells}
        seconds = [(_alike(record.config, record.dataset["name"]), record.seconds) for record in earlier]
        columns = ("method", "dataset", "seed", "status", *METRICS, "seconds")
        self.display = Display("cells", columns, self.rows, workers=workers, earlier=seconds)

    def rows(self) -> list[Row]:
        """Return the cells as rows of the display."""
        return [self._row(state) for state in self._states]

    def begin(self) -> None:
        """Print how many cells were done before."""
        self.display.refresh()

    def next(self) -> Job | None:
        """Return the job of the next cell that no other process has done or is running; None if no cell waits."""
        while self._waiting:
            state = self._waiting.popleft()
            job = self._job(state)
            self._changed(state)
            if job is not None:
                return job
        return None

    def not_started(self, job: Job, error: OSError) -> None:
        """Mark the cell as failed."""
        state = self.dropped(job)
        state.status, state.reason = "failed", f"could not be started: {error.strerror or error}"
        self._changed(state)

    def ended(self, job: Job, code: int) -> None:
        """Set the cell's status, then release its lock."""
        self._judge(self._running[job.name], job, code)
        self._changed(self.dropped(job))

    def dropped(self, job: Job) -> State:
        """Release the lock of the job's cell; returns its status."""
        self._locks.pop(job.name).release()
        return self._running.pop(job.name)

    def over(self) -> bool:
        """Return whether no cell waits to be begun."""
        return not self._waiting

    def finish(self) -> None:
        """Take the results of cells that other processes have finished meanwhile."""
        for state in self._states:
            if state.status == "running elsewhere" and (record := self._store.look(state.cell).done):
                state.finish(record)
                self._changed(state)

    def close(self, error: BaseException | None) -> None:
        """Remove the temporary files with settings and output of jobs."""
        self._scratch.cleanup()

    def _job(self, state: State) -> Job | None:
        """Return the job of a cell, and lock the cell; None if it is done or runs in another process."""
        cell, log = state.cell, log_path(self._store.folder, state.cell)
        descriptors: list[int] = []
        log.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(log.with_suffix(".lock"), timeout=0, on_acquired=descriptors.append)
        try:
            lock.acquire()
            found = self._store.look(cell, anew=state.refused)
        except Timeout:
            found = Found(elsewhere="another bench works on it, or a process of one")
        if found.done:
            state.finish(found.done)
        elif found.elsewhere:
            state.status, state.reason = "running elsewhere", found.elsewhere
        if found.done or found.elsewhere:
            lock.release()
            return None
        state.status, state.attempt = ("resumed", "resumed") if found.resumable else ("running", "new")
        state.run_id, state.began = found.resumable, time.monotonic()
        self._running[cell.name], self._locks[cell.name] = state, lock
        scratch, parent = Path(self._scratch.name), self._groups.file_of(cell)
        words = command(cell, self._store.folder, self._track, found.resumable, scratch, parent)
        output = scratch / f"{cell.name}.out"
        return Job(cell.name, tuple(words), log, output, holds=tuple(descriptors))

    def _judge(self, state: State, job: Job, code: int) -> None:
        """Set the status of a cell whose job has ended."""
        record = _printed_record(job) if code == 0 else None
        state.seconds = state.took = time.monotonic() - state.began
        if record is not None:
            encoder = record.encoder.get("identity")
            if key_of(record.config, record.dataset, record.metric_version, encoder) == state.cell.key:
                state.finish(record)
            else:
                state.status, state.reason = "failed", "its data or its encoder changed meanwhile; bench again"
            return
        state.reason = why_ended(code, job.log)
        if self.runner.stopping:
            state.status = "stopped"
        elif code == REFUSED and state.attempt == "resumed":
            self.display.say(f"{state.cell}: {state.run_id} cannot be resumed ({state.reason}); beginning anew")
            state.status, state.refused, state.reason = "waiting", True, ""
            self._waiting.appendleft(state)
            return
        else:
            state.status = "failed"
        state.run_id = self._store.newest(state.cell.key)

    def _changed(self, state: State) -> None:
        self.display.refresh()
        self._groups.changed(state)

    def _row(self, state: State) -> Row:
        config, running = state.cell.config, state.status in RUNNING
        metrics = state.record.metrics if state.record else {}
        figures = {name: f"{metrics[name]:.2f}" for name in METRICS if name in metrics}
        seconds = time.monotonic() - state.began if running else state.took or state.seconds
        cells = {"method": state.cell.title, "dataset": config.dataset, "seed": str(config.seed), **figures}
        return Row(
            name=state.cell.name,
            status=state.status,
            cells=cells,
            text=f"{state.cell}: {_format(state, figures)}",
            attempt=int(state.refused),
            alike=self._alike[state.cell.key],
            seconds=seconds,
            counts=state.status == "done" and state.run_id not in self._known,
            remark=state.reason,
            log=log_path(self._store.folder, state.cell),
        )


def run_bench(
    states: list[State],
    store: RunStore,
    groups: "GroupRuns",
    *,
    workers: int,
    track: str,
) -> signal.Signals | None:
    """Run every waiting cell; returns the signal that cut this short, if one did."""
    return Runner(Bench(states, store, groups, workers=workers, track=track), workers).run()


def command(
    cell: Cell, runs: Path, track: str, resume: str | None, scratch: Path, parent: Path | None = None
) -> list[str]:
    """Return the command line of a cell; settings go through a file, so that they keep their types.

    A resumed run keeps the group run it began with.
    """
    place = ["--out", str(runs), "--track", track, "--json"]
    start = [sys.executable, "-m", "harness", "run"]
    config = cell.config
    if resume is not None:
        folders = {"--dataset": config.dataset, "--encoder": config.encoder}
        where = [part for option, value in folders.items() if "/" in value for part in (option, value)]
        return [*start, "--resume", resume, *where, *place]
    settings = scratch / cell.name / "bench.json"  # a record says of each setting which file it came from
    write_json(settings, cell.given)
    named = ["--method", config.method, "--dataset", config.dataset, "--seed", str(config.seed)]
    belongs = ["--parent", str(parent)] if parent else []
    return [*start, *named, "--config", str(settings), *belongs, *place]


def _printed_record(job: Job) -> RunRecord | None:
    """Return the record that a job printed; None if it printed none."""
    try:
        return RunRecord.model_validate_json(job.output.read_bytes()) if job.output else None
    except (OSError, ValidationError):
        return None


def _format(state: State, figures: dict[str, str]) -> str:
    """Format a status with its figures, or with its reason."""
    parts: list[str] = [state.status]
    if state.status == "done":
        parts += [f"{name} {value}" for name, value in figures.items()]
        parts += [f"{state.seconds:.1f} s"] if state.seconds is not None else []
        parts += ["resumed"] if state.attempt == "resumed" else ["was there"] if state.attempt is None else []
    return ", ".join(parts) + (f": {state.reason}" if state.reason else "")


def _alike(config: dict[str, Any], dataset: str) -> Alike:
    """Return keys of similar runs for the time left: other seeds of the run first, any run on the dataset last."""
    method, encoder = config["method"], config["encoder"]
    return (dataset, method, encoder, settings_of(config)), (dataset, method, encoder), (dataset, method), (dataset,)


class GroupRuns:
    """The group runs of a bench in MLflow, one per dataset that has something to run; open while the bench runs.

    With `--track none` there are none. If the disk is full, the group run ends and the bench goes on.
    """

    def __init__(self, request: Request, states: list[State], runs: Path, track: str) -> None:
        self._request, self._states, self._runs, self._track = request, states, runs, track
        self._groups: dict[str, GroupLog] = {}
        self._steps: Counter[str] = Counter()
        """Last step of each group's log, by dataset."""
        self.stopped = False
        """Whether the bench was stopped by a signal, so that its group runs end as killed."""

    def file_of(self, cell: Cell) -> Path | None:
        """Return the file that `run --parent` takes for a cell; None if there is no group run."""
        group = self._groups.get(cell.data_name)
        return group.folder / "parent.json" if group else None

    def changed(self, state: State) -> None:
        """Log how a cell ended, and how many of its dataset are done or failed."""
        dataset = state.cell.data_name
        if dataset not in self._groups or state.status in ("waiting", *RUNNING):
            return
        of_dataset = [other.status for other in self._of(dataset)]
        counts = {f"cells/{status}": float(of_dataset.count(status)) for status in ("done", "failed")}
        with self._sparing(dataset):
            self._groups[dataset].event("cell", **_cell_event(state))
            # not how many have ended: one that ran elsewhere ends twice, and MLflow keeps the first figure of a step
            self._steps[dataset] += 1
            self._groups[dataset].metrics(counts, step=self._steps[dataset])

    def compare(self, tables: Callable[[list[State]], list[Table]]) -> None:
        """Write the comparison of each dataset; `tables` makes its tables from the states of that dataset's cells."""
        for dataset, group in list(self._groups.items()):
            states = self._of(dataset)
            if not any(state.record for state in states):
                continue
            with self._sparing(dataset):
                for form in ("md", "csv"):
                    path = group.folder / f"comparison.{form}"
                    write_text(path, render(tables(states), form))
                    group.artifact(path)

    def __enter__(self) -> Self:
        """Open a log for every dataset with a waiting cell; none with `--track none`."""
        request, bench = self._request, f"bench-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        waiting = dict.fromkeys(state.cell.data_name for state in self._states if state.status == "waiting")
        for dataset in waiting if self._track != "none" else ():
            group_id = f"{bench}-{dataset}"
            with self._sparing(dataset):
                group = self._groups[dataset] = GroupLog(
                    self._runs / GROUP_FOLDER / group_id,
                    "bench",
                    group_id,
                    experiment=dataset,
                    name=textwrap.shorten(f"bench {request.tables or request.methods}", _NAME_WIDTH, placeholder="..."),
                    params=_params(request),
                    tags={"bench": bench, "dataset": dataset},
                    tracker=make_tracker(self._track),
                )
                group.__enter__()
                write_json(group.folder / "parent.json", group.parent)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # jobs end before all their events are in MLflow
        ran = [self._runs / state.run_id for state in self._states if state.attempt and state.run_id]
        if self._groups and (late := wait_for(ran)):
            print(  # noqa: T201
                f"note: {len(late)} runs are still on their way to MLflow; `python -m harness sync` sends the rest",
                file=sys.stderr,
            )
        for dataset, group in list(self._groups.items()):
            ended: BaseException | None = error or (Terminated() if self.stopped else None)
            if ended is None and (failed := sum(state.status == "failed" for state in self._of(dataset))):
                ended = UserError(f"{failed} of {len(self._of(dataset))} cells failed")
            with self._sparing(dataset):
                group.__exit__(type(ended) if ended else None, ended, None)

    def _of(self, dataset: str) -> list[State]:
        return [state for state in self._states if state.cell.data_name == dataset]

    @contextmanager
    def _sparing(self, dataset: str) -> Iterator[None]:
        """Turn an `OSError` into a warning, and go on without the group run of the dataset."""
        try:
            yield
        except OSError as error:
            self._groups.pop(dataset, None)
            reason = error.strerror or error
            print(f"warning: the bench goes on without its group run in MLflow: {reason}", file=sys.stderr)  # noqa: T201


def _cell_event(state: State) -> dict[str, Any]:
    """Return the status of a cell for a log that leaves this machine: folders by name, without paths."""
    values = {key: value for key, value in state.as_dict().items() if key != "metrics"}
    names = {"dataset": state.cell.data_name, "encoder": recorded_name(state.cell.config.encoder)}
    return values | names | {"reason": without_paths(state.reason) or None}


def _params(request: Request) -> dict[str, Any]:
    """Return the arguments of the bench that are not empty."""
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
