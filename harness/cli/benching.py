"""`harness bench`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import DEFAULT_DATASET
from harness.cli.show import print_json, print_table, short_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.bench import Request, State
    from harness.bench.shelf import Shelf

EXAMPLES = """
Examples:

harness bench --dry-run                                         (what would run, and what is there)

harness bench --methods all,-unidec-v1 --seeds 0,1,2            (every method but one)

harness bench --methods zeroshot,unidec --datasets lf-pydocstitles,lf-debiantitles

harness bench --methods depsl,unidec --set epochs=5 --set unidec:beta=2     (beta for unidec alone)

harness bench --methods all --workers 2 --out ./comparison
"""


def bench(
    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Names (`harness ls methods`); `all` for all with presets, `all,-A` for all but A."
        ),
    ] = "all",
    datasets: Annotated[
        str, typer.Option(metavar="X,Y", help="Names (`harness ls datasets`) or folders.")
    ] = DEFAULT_DATASET,
    seeds: Annotated[str, typer.Option(metavar="0,1,2", help="Random seeds.")] = "0",
    encoder: Annotated[str | None, typer.Option(help="Encoder name (`harness ls encoders`) or model folder.")] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any setting of `run`, repeatable; METHOD:KEY=VALUE for one method."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for run folders. Default: workspace/runs.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs side by side; they share the cores.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is done and what would run, and stop.")] = False,
    track: Annotated[str, typer.Option(help="Where else to log: mlflow or none.")] = "mlflow",
    as_json: Annotated[bool, typer.Option("--json", help="Print the cells as JSON.")] = False,
) -> None:
    """Run every method on every dataset with every seed, but only what is missing, and compare.

    A run counts as there if a finished one has the same settings and the same data; an interrupted one is taken up
    where it stopped. Each runs in a process of its own: one that fails does not stop the others, and the next bench
    tries it again. Exit code 1 if any failed.
    """
    from harness.bench import Request
    from harness.record import runs_folder
    from harness.tracking import make_sinks

    if out and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    if track != "mlflow":
        make_sinks(track)  # refuses an unknown name; the processes make their own
    request = Request(methods, datasets, seeds, encoder, tuple(override or ()))
    try:
        shelf, states = _look(request, runs_folder(out))
        if dry_run:
            _show_plan(states, shelf, as_json)
            return
        code = _run(states, shelf, workers, track, out, as_json)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(130) from None
    if code:
        raise typer.Exit(code)


bench.__doc__ = f"{bench.__doc__}\n{EXAMPLES}"


def _look(request: "Request", runs: Path) -> "tuple[Shelf, list[State]]":
    """The cells, those that are done marked as such."""
    from harness.bench import State
    from harness.bench.plan import plan
    from harness.bench.shelf import Shelf

    shelf, states = Shelf(runs), [State(cell) for cell in plan(request)]
    for state in states:
        if record := shelf.look(state.cell).done:
            state.finish(record)
    return shelf, states


def _show_plan(states: "list[State]", shelf: "Shelf", as_json: bool) -> None:
    rows = []
    for state in states:
        found = shelf.look(state.cell)
        told = {"status": found.status, "reason": found.elsewhere}
        rows.append(state.as_dict() | told | ({"run_id": found.resumable} if found.resumable else {}))
    if as_json:
        print_json(rows)
        return
    columns = ["method", "dataset", "encoder", "seed", "status", "run"]
    cells = [[*(str(row[name]) for name in columns[:-1]), row["run_id"] or row["reason"] or ""] for row in rows]
    counts = {name: sum(row["status"] == name for row in rows) for name in ("done", "missing", "resumable")}
    total = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    print_table(f"{len(rows)} cells: {total}", columns, cells, numeric=["seed"])
    typer.echo(f"nothing was run; without --dry-run {counts['missing'] + counts['resumable']} would be")


def _run(states: "list[State]", shelf: "Shelf", workers: int, track: str, out: Path | None, as_json: bool) -> int:
    """Runs what is missing and shows how it went; returns the exit code."""
    from harness.bench import summary
    from harness.bench.display import make_display
    from harness.bench.loop import Loop

    began = time.monotonic()
    display = make_display(states, shelf.folder, workers)
    for state in states:
        if state.status == "done":
            display.changed(state)
    signal = Loop(states, shelf, display, workers=workers, track=track).run()
    if as_json:
        print_json([state.as_dict() for state in states])
    else:
        _show(states, shelf.folder, out)
    typer.echo(summary(states, time.monotonic() - began), err=as_json)
    if signal is not None:
        typer.echo(
            f"stopped by {signal.name}; to go on, give the same command again: what is done stays done", err=True
        )
        return 128 + signal
    return 1 if any(state.status == "failed" for state in states) else 0


def _show(states: "list[State]", runs: Path, out: Path | None) -> None:
    """The comparison of exactly these cells, then what went wrong."""
    from harness.bench import log_path
    from harness.report import comparison

    records = [state.record for state in states if state.record]
    for table in comparison(records) if records else []:
        cells = [[f"{cell.text} *" if cell.best else cell.text for cell in row] for row in table.rows]
        print_table(table.title, table.columns, cells, numeric=table.columns[table.words :])
        typer.echo(f"{table.caption} * best.\n")
    for state in states:
        if state.status in ("failed", "running elsewhere"):
            typer.echo(f"{state.status}: {state.cell}: {state.reason}")
        if state.status == "failed":
            typer.echo(f"  log {short_path(log_path(runs, state.cell))}")
    if records:
        typer.echo("compare     python -m harness report" + (f" --runs {out}" if out else ""))
