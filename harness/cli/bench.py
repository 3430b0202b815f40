"""`harness bench`."""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import DEFAULT_DATASET
from harness.cli.options import DryRun, Encoder, Json, Out, Track, Workers
from harness.cli.show import print_json, print_table, say, short_path, show_tables
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.experiments.bench import Request, State
    from harness.experiments.bench.store import RunStore
    from harness.experiments.bench.table import Planned
    from harness.report.cells import Table


Methods = Annotated[
    str,
    typer.Option(
        metavar="A,B",
        help="Names (`harness ls methods`); `all` for all with presets, `all,-A` for all but A. "
        "With --table: its rows of these methods.",
    ),
]
Datasets = Annotated[
    str | None,
    typer.Option(
        metavar="X,Y",
        help=f"Names (`harness ls datasets`) or folders. Default: {DEFAULT_DATASET}, or those of the table.",
    ),
]
Known = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FOLDER",
        help="Runs or records in this folder count as done, too; repeatable. reports/results: what is committed.",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(metavar="0,1,2", help="Random seeds. Default: those of the table if it names any, else 0."),
]
Rows = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="With --table: only these rows, named without table and dataset."),
]


def bench(
    methods: Methods = "all",
    datasets: Datasets = None,
    seeds: Seeds = None,
    table: Annotated[
        str | None, typer.Option(metavar="ID,ID", help="Rows of published tables instead; `harness ls published`.")
    ] = None,
    rows: Rows = None,
    encoder: Encoder = None,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of `run`, repeatable; METHOD:KEY=VALUE for one."),
    ] = None,
    out: Out = None,
    known: Known = None,
    workers: Workers = 1,
    dry_run: DryRun = False,
    track: Track = "mlflow",
    as_json: Json = False,
) -> None:
    """Run every method on every dataset with every seed, but only what is missing, and compare.

    A run counts as there if a finished one has the same settings and the same data; an interrupted one is resumed
    where it stopped. Each runs in a process of its own: one that fails does not stop the others. Exit code 1 if any
    failed; the next bench tries those again.

    With --table the rows of a paper's table are run. On its own datasets they have the settings as printed; on another
    one, each is its method with only those settings that the table varies. All scorers are measured in one run.

    Examples:
        harness bench --dry-run                                       (what would run, and what is there)
        harness bench --methods all,-unidec-v1 --seeds 0,1,2          (every method but one)
        harness bench --methods zeroshot,unidec --datasets lf-pydocstitles,lf-debiantitles
        harness bench --methods depsl,unidec --set epochs=5 --set unidec:beta=2   (beta for unidec alone)
        harness bench --methods all --workers 2 --out ./comparison
        harness bench --table thesis-2.5                              (a paper's table on its datasets, as printed)
        harness bench --table benchmark --known reports/results       (what the committed report still lacks)
        harness bench --table benchmark --rows unidec,renee --datasets lf-debiantitles    (two rows, every seed)
        harness bench --table thesis-2.4,thesis-2.5 --datasets lf-debiantitles --seeds 0,1,2   (what it varies)
    """
    from harness.experiments.bench import Request
    from harness.runs.record import runs_folder
    from harness.tracking import make_tracker

    if out and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    for folder in known or ():
        if not folder.is_dir():
            raise UserError(f"--known {folder} is no folder; name one with runs or records, such as reports/results")
    if rows is not None and table is None:
        raise UserError("--rows chooses rows of a table: name it with --table, for example --table thesis-2.5")
    make_tracker(track)  # refuses an unknown name or store; the processes make their own
    chosen = DEFAULT_DATASET if datasets is None and table is None else datasets
    request = Request(methods, chosen, seeds, encoder, tuple(override or ()), table, rows)
    try:
        planned = _look(request, runs_folder(out), list(dict.fromkeys(known or [])))
        if dry_run:
            _show_plan(planned, as_json)
            return
        if code := _run(planned, workers, track, out, as_json):
            raise typer.Exit(code)
    except KeyboardInterrupt:
        say("stopped", err=True)
        raise typer.Exit(130) from None


@dataclass
class _Bench:
    """A request with its cells and what is known of them."""

    request: "Request"
    store: "RunStore"
    states: "list[State]"
    rows: "list[Planned]"
    """Rows of published tables; empty for a matrix."""
    left_out: list[str]
    """A sentence per dataset of a table that is not on this machine."""
    known: list[Path]
    """Folders whose finished runs count, too."""

    def tables(self, states: "list[State]") -> "list[Table]":
        """The figures of some of the cells: the papers' tables, or for a matrix the comparison."""
        from harness.experiments.bench.table import as_tables
        from harness.report.documents import comparison

        if self.rows:
            datasets = {state.cell.config.dataset for state in states}
            return as_tables([planned for planned in self.rows if planned.row.dataset in datasets], states)
        records = [state.record for state in states if state.record]
        return comparison(records) if records else []


def _look(request: "Request", runs: Path, known: list[Path]) -> _Bench:
    """The cells of a request, those that are done marked as such; prints which datasets are left out."""
    from harness.experiments.bench import State
    from harness.experiments.bench.plan import plan
    from harness.experiments.bench.store import RunStore
    from harness.experiments.bench.table import TablePlan, plan_tables

    planned = TablePlan(plan(request), [], []) if request.tables is None else plan_tables(request)
    for sentence in planned.left_out:
        say(f"left out: {sentence}", err=True)
    store, states = RunStore(runs, known), [State(cell) for cell in planned.cells]
    for state in states:
        if record := store.look(state.cell).done:
            state.finish(record)
    return _Bench(request, store, states, planned.rows, planned.left_out, known)


def _show_plan(bench: _Bench, as_json: bool) -> None:
    rows = []
    for state in bench.states:
        found = bench.store.look(state.cell)
        stands = {"status": found.status, "reason": found.elsewhere}
        rows.append(state.as_dict() | stands | ({"run_id": found.resumable} if found.resumable else {}))
    if as_json:
        _print_json(bench, rows)
        return
    counts = {name: sum(row["status"] == name for row in rows) for name in ("done", "missing", "resumable")}
    total = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    title = f"{len(rows)} cells: {total}"
    if bench.rows:
        statuses = {state.cell.key: row["status"] for state, row in zip(bench.states, rows, strict=True)}
        _show_rows(title, bench.rows, statuses)
    else:
        columns = ["method", "dataset", "encoder", "seed", "status", "run"]
        cells = [[*(str(row[name]) for name in columns[:-1]), row["run_id"] or row["reason"] or ""] for row in rows]
        print_table(title, columns, cells, numeric=["seed"])
    from harness.train.fusion import run_before

    say(f"nothing was run; without --dry-run {counts['missing'] + counts['resumable']} would be")
    missing = [
        state for state, row in zip(bench.states, rows, strict=True) if row["status"] in ("missing", "resumable")
    ]
    if twice := sum(run_before(state.cell.config) is not None for state in missing):
        say(f"{twice} of them train twice, unless a run on validation rows has chosen the weight of fused already")


def _show_rows(title: str, rows: "list[Planned]", statuses: dict[str, str]) -> None:
    """Which row is measured by which run; rows with one number share theirs."""
    from harness.experiments.bench.table import remarks_on

    numbers: dict[str, int] = {}
    shown = []
    for planned in (planned for planned in rows if planned.cells):
        row, cells = planned.row, planned.cells
        number = numbers.setdefault(cells[0].key, len(numbers) + 1)
        found = Counter(statuses[cell.key] for cell in cells)
        status = ", ".join(f"{count} {name}" for name, count in found.items())
        method = str(row.method)
        shown.append(
            [row.table.table, row.label, row.dataset, row.scorer or "", str(number), method, row.variant, status]
        )
    columns = ["table", "row", "dataset", "scorer", "run", "method", "settings", "seeds"]
    print_table(title, columns, shown, numeric=["run"])
    for remark in remarks_on(rows):
        say(remark)


def _print_json(bench: _Bench, cells: list[dict[str, Any]]) -> None:
    """The cells; for tables, an object that has the rows as well."""
    if not bench.rows:
        print_json(cells)
        return
    records = {state.cell.key: state.record for state in bench.states if state.record}
    rows = [row.as_dict(records) for row in bench.rows]
    print_json({"cells": cells, "rows": rows, "left_out": bench.left_out})


def _run(bench: _Bench, workers: int, track: str, out: Path | None, as_json: bool) -> int:
    """Runs what is missing and shows how it went; returns the exit code."""
    from harness.experiments.bench import summary
    from harness.experiments.bench.run import GroupRuns, run_bench

    began, states = time.monotonic(), bench.states
    with GroupRuns(bench.request, states, bench.store.folder, track) as groups:
        signal = run_bench(states, bench.store, groups, workers=workers, track=track)
        groups.stopped = signal is not None
        if as_json:
            _print_json(bench, [state.as_dict() for state in states])
        else:
            _show(bench, out)
        say(summary(states, time.monotonic() - began), err=as_json)
        groups.compare(bench.tables)
    if signal is not None:
        say(f"stopped by {signal.name}; to go on, give the same command again: what is done stays done", err=True)
        return 128 + signal
    return 1 if any(state.status == "failed" for state in states) else 0


def _show(bench: _Bench, out: Path | None) -> None:
    """The figures of exactly these cells, then what went wrong."""
    from harness.experiments.bench import log_path

    show_tables(bench.tables(bench.states))
    for state in bench.states:
        if state.status in ("failed", "running elsewhere"):
            say(f"{state.status}: {state.cell}: {state.reason}")
        if state.status == "failed":
            say(f"  log {short_path(log_path(bench.store.folder, state.cell))}")
    if any(state.record for state in bench.states):
        folders = [bench.store.folder, *bench.known] if bench.known else [out] if out else []
        named = (f" --runs {short_path(folder)}" for folder in folders if folder.is_dir())
        say("compare     python -m harness report" + "".join(named))
