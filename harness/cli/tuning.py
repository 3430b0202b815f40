"""`harness tune`."""

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.reporting import REPORTS
from harness.cli.show import print_table, say, short_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.report.evidence import Study
    from harness.tuning import Tuning, TuningRow

EXAMPLES = """
Examples:

harness tune benchmark --dry-run                           (what would be searched, and what is there)

harness tune benchmark --workers 2 --datasets lf-pydocstitles

harness tune benchmark --rows unidec,renee --datasets lf-debiantitles

harness bench --table benchmark                            (afterwards: the rows on test rows, every seed)
"""


def tune(
    table: Annotated[str, typer.Argument(help="A file of methods/tuning.")] = "benchmark",
    datasets: Annotated[str | None, typer.Option(metavar="X,Y", help="Only these. Default: all of the file.")] = None,
    rows: Annotated[str | None, typer.Option(metavar="A,B", help="Only these. Default: all of the file.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials side by side; they share the cores.")] = 1,
    track: Annotated[str, typer.Option(help="Where else to log: mlflow or none.")] = "none",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is done and what would run, and stop.")] = False,
) -> None:
    """Search settings for every row of a table, with one budget, on held-out train rows; test rows are never looked at.

    Each row and dataset is a study of `harness sweep`, so what was interrupted goes on and what has ended is not run
    again. The best trial of each becomes a row of methods/tuned, which `bench --table` runs. Exit code 1 if a study
    has no trial that came to its end.
    """
    from harness.report.collecting import keep_study
    from harness.sweep import study_folder
    from harness.tuning import read_tuning, write_table

    tuning = read_tuning(table)
    wanted = _wanted(tuning, datasets, rows)
    if dry_run:
        _show(tuning, wanted)
        return
    failed = 0
    try:
        for number, (dataset, row) in enumerate(wanted, 1):
            say(f"{number} of {len(wanted)}: {row.row} on {dataset}", err=True)
            failed += _searched(tuning, row, dataset, workers, track)
            changed = keep_study(study_folder(tuning.study(row, dataset)), REPORTS)
            changed += write_table(tuning, REPORTS)
            for path in changed:
                say(f"wrote {short_path(path)}", err=True)
    except KeyboardInterrupt:
        say("stopped; the same command goes on", err=True)
        raise typer.Exit(130) from None
    _show(tuning, wanted)
    if failed:
        raise typer.Exit(1)


tune.__doc__ = f"{tune.__doc__}\n{EXAMPLES}"


def _wanted(tuning: "Tuning", datasets: str | None, rows: str | None) -> "list[tuple[str, TuningRow]]":
    from harness.errors import unknown_name

    def named(text: str | None, known: list[str], kind: str) -> list[str]:
        words = known if text is None else [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            if word not in known:
                raise unknown_name(kind, word, known)
        return words

    places = named(datasets, list(tuning.seeds), f"dataset of {tuning.table}")
    names = named(rows, [row.row for row in tuning.rows], f"row of {tuning.table}")
    found = [(dataset, row) for dataset, row in tuning.cells() if dataset in places and row.row in names and row.over]
    if not found:
        raise UserError("no row is left that searches anything; leave --datasets or --rows out")
    return found


def _searched(tuning: "Tuning", row: "TuningRow", dataset: str, workers: int, track: str) -> bool:
    """Runs one study to its end; whether nothing came of it. A signal is passed on."""
    from harness.cli.sweeping import run_sweep
    from harness.sweep import Timing

    done = run_sweep(tuning.request(row, dataset, track), Timing(), workers)
    if done.signal is not None:
        raise KeyboardInterrupt
    return not any(slot.state == "COMPLETE" for slot in done.slots)


def _show(tuning: "Tuning", wanted: "list[tuple[str, TuningRow]]") -> None:
    from harness.tuning import chosen, kept_studies

    studies = kept_studies(REPORTS)
    cells = []
    for dataset, row in wanted:
        study: Study | None = studies.get(tuning.study(row, dataset))
        best = chosen(study) if study else None
        values = [f"{best.values[name]:.2f}" if best else "" for name in tuning.objectives]
        point = ", ".join(f"{name}={_short(value)}" for name, value in best.params.items()) if best else row.over
        cells.append([dataset, row.row, str(len(study.trials) if study else 0), *values, point])
    columns = ["dataset", "row", "trials", *tuning.objectives, "best, or what is searched"]
    title = (
        f"{tuning.table}: best of {tuning.trials} trials each by {' + '.join(tuning.objectives)}, % on held-out rows"
    )
    print_table(title, columns, cells, numeric=["trials", *tuning.objectives])


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
