"""`harness validate`: are cards, methods and config files sound."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Json
from harness.cli.show import print_json, say


def validate(
    files: Annotated[list[Path] | None, typer.Argument(help="Config files to check besides cards and methods.")] = None,
    as_json: Json = False,
) -> None:
    """Check every card, every method's YAML and the given config files; print all faults at once."""
    from harness.cli.checks import validate_all

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
