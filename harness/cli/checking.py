"""`harness validate` and `doctor`: is everything sound."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.show import Json, print_json, print_table, say


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
            say(fault, err=True)
        counts = ", ".join(f"{number} {kind}" for kind, number in checked.items())
        say(f"checked {counts}: {f'{len(faults)} faults' if faults else 'no faults'}")
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
