"""Options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import DEFAULT_DATASET, DEFAULT_METHOD

if TYPE_CHECKING:
    from harness.settings.layers import Layer

Method = Annotated[str | None, typer.Option(help=f"Method; `harness ls methods`. Default: {DEFAULT_METHOD}.")]
Dataset = Annotated[
    str | None, typer.Option(help=f"Dataset name (`harness ls datasets`) or folder. Default: {DEFAULT_DATASET}.")
]
Encoder = Annotated[str | None, typer.Option(help="Encoder name (`harness ls encoders`) or model folder.")]
Override = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, repeatable; `harness ls parameters` lists them."),
]
Config = Annotated[Path | None, typer.Option(help="YAML file of settings, under the command line's.")]
Out = Annotated[Path | None, typer.Option(help="Folder for run folders. Default: workspace/runs.")]
RunFolders = Annotated[Path | None, typer.Option("--runs", help="Folder of run folders. Default: workspace.")]
Workers = Annotated[int, typer.Option(min=1, help="Runs or trials side by side; they share the cores.")]
Track = Annotated[str, typer.Option(help="Also log to: mlflow or none.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what is done and what would be done, and stop.")]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def typed_layers(config: Path | None, override: list[str] | None, options: dict[str, Any]) -> "list[Layer]":
    """The settings of a file, over them those of `--set`, over them the options that were given."""
    from harness.settings.layers import Layer, parse_override, read_config_file

    layers = [read_config_file(config)] if config else []
    layers += [Layer(f"--set {text}", parse_override(text)) for text in override or ()]
    return layers + [Layer(f"--{key}", {key: value}) for key, value in options.items() if value is not None]
