"""`harness tune`."""

from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import DryRun, Json, Track, Workers
from harness.cli.report import REPORTS
from harness.cli.show import print_json, print_table, say, short_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.experiments.tune import Tuning, TuningRow


def tune(
    table: Annotated[str, typer.Argument(help="A file of methods/tuning.")] = "benchmark",
    datasets: Annotated[str | None, typer.Option(metavar="X,Y", help="Only these. Default: all of the file.")] = None,
    rows: Annotated[str | None, typer.Option(metavar="A,B", help="Only these. Default: all of the file.")] = None,
    workers: Workers = 1,
    track: Track = "none",
    anew: Annotated[
        bool,
        typer.Option(
            "--anew", help="Search what reports/results has, too, and replace it; what is in the workspace goes on."
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Search settings for every row of a table, with one budget, on validation rows; test rows are never looked at.

    Each row and dataset is a study of `harness sweep`, so what was interrupted goes on; a search that has ended, here
    or in reports/results, is not run again. The best trial of each becomes a row of methods/tuned, which
    `bench --table` runs. Exit code 1 if a study has no trial that came to its end.

    Examples:
        harness tune benchmark --dry-run                           (what would be searched, and what is there)
        harness tune benchmark --workers 2 --datasets lf-pydocstitles
        harness tune benchmark --rows unidec,renee --datasets lf-debiantitles
        harness tune benchmark --rows parabel --anew               (repeat a search that has ended)
        harness bench --table benchmark                            (afterwards: the rows on test rows, every seed)
    """
    from harness.cli.sweep import run_sweep
    from harness.data import load
    from harness.experiments.sweep import Timing, study_folder
    from harness.experiments.tune import ended, kept_studies, read_tuning, write_table
    from harness.report.collect import keep_study

    tuning = read_tuning(table)
    if not list(tuning.searches()):
        _nothing_to_search(tuning, dry_run, as_json)
        return
    wanted = _wanted(tuning, datasets, rows)
    if dry_run:
        _show(tuning, wanted, as_json)
        return
    kept = kept_studies(REPORTS)
    missing = [(dataset, row) for dataset, row in wanted if anew or ended(tuning, row, dataset, kept) is None]
    if len(missing) < len(wanted):
        say(f"{len(wanted) - len(missing)} of {len(wanted)} searches have ended; --anew repeats them", err=True)
    for dataset, row in missing:  # what is missing is reported now, not after hours
        load(dataset)
        if (tuning.begins.get(dataset), row) not in missing:
            tuning.found_elsewhere(row, dataset, kept)
    failed = 0
    for number, (dataset, row) in enumerate(missing, 1):
        say(f"{number} of {len(missing)}: {row.row} on {dataset}", err=True)
        done = run_sweep(tuning.request(row, dataset, track, kept_studies(REPORTS)), Timing(), workers)
        for path in (*keep_study(study_folder(tuning.study(row, dataset)), REPORTS), *write_table(tuning, REPORTS)):
            say(f"wrote {short_path(path)}", err=True)
        if done.signal is not None:
            say(f"stopped by {done.signal.name}; the same command goes on", err=True)
            raise typer.Exit(128 + done.signal)
        failed += not any(slot.state == "COMPLETE" for slot in done.slots)
    _show(tuning, wanted, as_json)
    if failed:
        raise typer.Exit(1)


def _nothing_to_search(tuning: "Tuning", dry_run: bool, as_json: bool) -> None:
    """Of a table without ranges the rows are as they stand."""
    from harness.experiments.tune import write_table

    for path in [] if dry_run else write_table(tuning, REPORTS):
        say(f"wrote {short_path(path)}", err=True)
    if as_json:
        print_json([])
    say(f"{tuning.table} searches nothing; run it: python -m harness bench --table {tuning.table}", err=as_json)


def _wanted(tuning: "Tuning", datasets: str | None, rows: str | None) -> "list[tuple[str, TuningRow]]":
    from harness.errors import unknown_name
    from harness.settings.layers import comma_list

    def named(text: str | None, known: list[str], kind: str) -> list[str]:
        words = known if text is None else comma_list(text)
        for word in words:
            if word not in known:
                raise unknown_name(kind, word, known)
        return words

    places = named(datasets, list(tuning.seeds), f"dataset of {tuning.table}")
    names = named(rows, [row.row for row in tuning.rows], f"row of {tuning.table}")
    found = [(dataset, row) for dataset, row in tuning.searches() if dataset in places and row.row in names]
    if not found:
        shared = [f"{row.row} has the search of {row.shares}" for row in tuning.rows if row.row in names and row.shares]
        note = f" ({'; '.join(shared)})" if shared else ""
        raise UserError(f"no row is left that searches anything{note}; leave --datasets or --rows out")
    return found


def _show(tuning: "Tuning", wanted: "list[tuple[str, TuningRow]]", as_json: bool) -> None:
    from harness.experiments.tune import ended, kept_studies
    from harness.report.results import format_value

    studies = kept_studies(REPORTS)
    cells, metadata = [], []
    for dataset, row in wanted:
        study = ended(tuning, row, dataset, studies)
        best = study.chosen if study else None
        there, budget = len(study.trials) if study else _begun(tuning.study(row, dataset)), tuning.budget(dataset)
        values = [f"{best.values[name]:.2f}" if best else "" for name in tuning.objectives]
        point = ", ".join(f"{name}={format_value(value)}" for name, value in best.params.items()) if best else row.over
        cells.append([dataset, row.row, f"{there} of {budget}", *values, point])
        found = {"trial": best.number, "values": best.values, "params": best.params} if best else None
        metadata.append(
            {"dataset": dataset, "row": row.row, "over": row.over, "trials": budget, "ended": there} | {"best": found}
        )
    if as_json:
        print_json(metadata)
        return
    columns = ["dataset", "row", "trials", *tuning.objectives, "best, or what is searched"]
    title = f"{tuning.table}: best trials by {' + '.join(tuning.objectives)}, % on validation rows"
    print_table(title, columns, cells, numeric=tuning.objectives)


def _begun(name: str) -> int:
    """How many trials of a study in the workspace have ended."""
    from harness.errors import DataError
    from harness.experiments.sweep import study_folder
    from harness.report.collect import read_study

    try:
        return len(read_study(study_folder(name) / "study.json").trials)
    except (DataError, OSError):
        return 0
