"""`harness report`, `validate`, `doctor` and `perf`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.show import print_json, print_table, short_path

if TYPE_CHECKING:
    from harness.report import Table
    from harness.report.compare import Comparison

Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="With --compare: run ids, run folders, `last` or methods; the first is the reference."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Test the named runs against the first of them, row by row.")
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="Only this dataset.")] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of run folders or of record files, repeatable. Default: workspace/runs."),
    ] = None,
    metrics: Annotated[str, typer.Option(help="With --compare: metrics, with commas. Default: P@k and PSP@k.")] = "",
    resamples: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="With --compare: draws of the bootstrap and of the test.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="With --compare: of those draws.")] = 0,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="With --compare: other data, filter or metric version too.")
    ] = False,
    form: Annotated[
        str | None, typer.Option("--format", help="md, tex, html or csv instead of a screen table.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of the screen.")] = None,
    as_json: Json = False,
) -> None:
    """Compare recorded runs: one table per dataset, mean over seeds, best figures marked.

    With --compare, say which differences are more than chance: paired bootstrap and permutation test, Holm-corrected.

    Example: harness report --dataset lf-pydocstitles --format md --out comparison.md

    Example: harness report --compare unidec depsl zeroshot --dataset lf-pydocstitles
    """
    from harness.errors import UserError
    from harness.record import find_records, runs_folder
    from harness.report import comparison, tidy

    folders = runs or [runs_folder()]
    for folder in folders if runs or not compare else ():  # run folders may be named by their paths
        if not folder.is_dir():
            raise UserError(f"{folder} has no runs; make one with `python -m harness run`")
    if compare:
        wanted = tuple(part.strip() for part in metrics.split(",") if part.strip())
        found = _compared(names or [], folders, dataset, wanted, resamples, seed, allow_mixed)
        if as_json:
            print_json(found.as_dict())
        else:
            _show([found.as_table()], form, out, "* decided.")
        return
    if names:
        raise UserError(f"what is to be done with {names[0]!r}? Names are for comparing: report --compare A B")
    records = find_records(folders)
    if as_json:
        frame = tidy(records, dataset)
        print_json([{key: value for key, value in row.items() if value == value} for row in frame.to_dict("records")])
        return
    _show(comparison(records, dataset), form, out, "* best.")


def _compared(
    names: list[str],
    folders: list[Path],
    dataset: str | None,
    wanted: tuple[str, ...],
    resamples: int,
    seed: int,
    allow_mixed: bool,
) -> "Comparison":
    from harness.report.compare import compare
    from harness.report.contenders import find_contenders, split_names

    contenders = find_contenders(split_names(names), folders, dataset)
    return compare(contenders, wanted, resamples=resamples, seed=seed, allow_mixed=allow_mixed)


def _show(tables: "list[Table]", form: str | None, out: Path | None, mark: str) -> None:
    """Prints tables, or writes them in one of the forms of a document; `mark` explains the star on the screen."""
    from harness.files import write_text
    from harness.report.tables import render

    if form or out:
        text = render(tables, form or (out.suffix.lstrip(".") if out else "md"))
        if out:
            write_text(out, text)
            typer.echo(f"wrote {short_path(out.absolute())}")
        else:
            typer.echo(text)
        return
    for table in tables:
        cells = [[f"{cell.text} *" if cell.best else cell.text for cell in row] for row in table.rows]
        print_table(table.title, table.columns, cells, numeric=table.columns[table.words :])
        typer.echo(f"{table.caption} {mark}\n")


def validate(
    files: Annotated[list[Path] | None, typer.Argument(help="Config files to check besides cards and methods.")] = None,
    as_json: Json = False,
) -> None:
    """Check every card, every method's YAML and the given config files; print all faults at once."""
    from harness.validate import validate_all

    checked, faults = validate_all(files or [])
    if as_json:
        print_json({"checked": checked, "faults": faults})
    else:
        for fault in faults:
            typer.echo(fault, err=True)
        counts = ", ".join(f"{number} {kind}" for kind, number in checked.items())
        typer.echo(f"checked {counts}: {f'{len(faults)} faults' if faults else 'no faults'}")
    if faults:
        raise typer.Exit(2)


def doctor(as_json: Json = False) -> None:
    """Diagnose this machine and workspace: versions, devices, disk, store; each fault with its fix."""
    from harness.doctor import examine

    findings = examine()
    if as_json:
        print_json([finding.__dict__ for finding in findings])
    else:
        print_table(
            "doctor", ["what", "state", "detail", "fix"], [[f.what, f.state, f.detail, f.fix] for f in findings]
        )
    if any(finding.state == "broken" for finding in findings):
        raise typer.Exit(1)


def perf(
    suites: Annotated[
        list[str] | None,
        typer.Argument(help="Suites, for example `training`; a wrong name lists them. Default: all."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the table: .md, .tex, .html, .csv or .json.")] = None,
    as_json: Json = False,
) -> None:
    """Measure speed against references, as ratios in one run (`make bench`).

    Example: harness perf metrics searching
    """
    from dataclasses import asdict

    from harness.errors import unknown_name
    from harness.files import write_json, write_text
    from harness.perf import SUITES, as_table, measure
    from harness.report.tables import render

    for suite in suites or ():
        if suite not in SUITES:
            raise unknown_name("suite", suite, SUITES)
    rows = list(measure(tuple(suites or SUITES)))
    table = as_table(rows)
    if out and out.suffix == ".json":
        write_json(out, [asdict(row) for row in rows])
    elif out:
        write_text(out, render([table], out.suffix.lstrip(".")))
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(table.title, table.columns, [[cell.text for cell in row] for row in table.rows], numeric=["ratio"])
    typer.echo(table.caption)
