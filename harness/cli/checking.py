"""`harness validate`, `doctor` and `perf`: is everything sound, and how fast is it."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.show import Json, print_json, print_table


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
