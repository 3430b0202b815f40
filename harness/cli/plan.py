"""`harness plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import DEFAULT_DATASET, DEFAULT_METHOD
from harness.cli.options import Config, Dataset, Encoder, Json, Method, Override, typed_layers
from harness.cli.show import print_json, print_table, say, short_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.plan import Plan, Target
    from harness.settings.layers import Layer

_ALL_MEMORIES = "24GB,48GB,80GB"


def plan(
    method: Method = None,
    dataset: Dataset = None,
    encoder: Encoder = None,
    override: Override = None,
    config: Config = None,
    memory: Annotated[
        str | None,
        typer.Option("--device-memory", metavar="SIZE", help="Plan for a CUDA device of this size, for example 24GB."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All methods x the published LF sets; --device-memory may be a list.")
    ] = False,
    form: Annotated[str | None, typer.Option("--format", help="With --all: md instead of screen tables.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --all: write the page to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Foresee memory, disk and time of a run before anything is loaded, and whether it fits a device.

    Examples:
        harness plan                                                     (the default run, on this machine)
        harness plan --method unidec --dataset lf-amazontitles-1.3m --device-memory 24GB
        harness plan --method renee --dataset lf-wikipedia-500k --encoder distilbert --set batch_size=512 --json
        harness plan --dataset synthetic:train=2000000,labels=1000000    (data that does not exist yet)
        harness plan --all --encoder msmarco-distilbert --format md --out reports/plan.md
    """
    layers = typed_layers(config, override, {"encoder": encoder})
    if everything:
        _show_all(method, dataset, encoder, layers, memory or _ALL_MEMORIES, form, out, as_json)
        return
    if form or out:
        raise UserError("--format and --out are for the tables of --all; take --json for one plan")
    from harness.plan.estimate import make_plan

    named = {key: value for layer in layers for key, value in layer.values.items() if key in ("method", "dataset")}
    if method is None:
        method = str(named.get("method", DEFAULT_METHOD))
    if dataset is None:
        dataset = str(named.get("dataset", DEFAULT_DATASET))
    names = (method, dataset)
    found = make_plan(*names, layers, _target(*names, layers, memory))
    if as_json:
        from harness.plan.estimate import as_json as to_json

        print_json(to_json(found))
    else:
        _show(found)


def _target(method: str, dataset: str, layers: "list[Layer]", memory: str | None) -> "Target":
    from harness.plan.devices import chosen_target, cuda_target, parse_size
    from harness.settings.resolve import resolve

    if memory is not None:
        return cuda_target(parse_size(memory))
    return chosen_target(resolve(method, dataset, layers)[0].device)


def _show(found: "Plan") -> None:
    from harness.plan import report

    data, encoder = found.data, found.run.inputs.encoder
    parameters = sum(one.numel() for one in encoder.parameters())
    title = (
        f"{found.method} ({encoder.name}, {parameters / 1e6:.1f} M parameters) on "
        f"{found.dataset}: {data.rows:,} train rows, {data.test:,} test rows, {data.labels:,} labels"
    )
    columns, rows = report.part_rows(found)
    print_table(title, columns, rows, numeric=columns[1:])
    say(f"phases      {report.phases_line(found)}")
    say(f"verdict     {report.verdict(found)}")
    say(f"time        {report.time_line(found)}")
    say(f"disk        {report.disk_line(found)}")
    say(f"assumed     {'; '.join(data.assumptions)}")
    for note in found.notes:
        say(f"note        {note}")


def _show_all(
    method: str | None,
    dataset: str | None,
    encoder: str | None,
    layers: "list[Layer]",
    memories: str,
    form: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from harness.io.files import write_text
    from harness.plan import report
    from harness.plan.devices import cuda_target, parse_size

    if form not in (None, "md"):
        raise UserError(f"--format {form}: the overview is written as md, or as JSON with --json")
    targets = [cuda_target(parse_size(size)) for size in memories.split(",")]
    methods = [method] if method else report.method_names()
    datasets = [dataset] if dataset else report.published_datasets()
    found = report.overview(methods, datasets, layers, targets)
    if as_json:
        print_json([one for plans in found.values() for by_dataset in plans.values() for one in by_dataset.values()])
    elif form or out:
        text = report.as_markdown(found, encoder)
        if out is None:
            say(text)
            return
        write_text(out, text)
        say(f"wrote {short_path(out.absolute())}")
    else:
        for target, plans in found.items():
            rows = [[name, *map(report.need_cell, by_dataset.values())] for name, by_dataset in plans.items()]
            title = f"GiB needed of a {(target.capacity or 0) / 2**30:g} GB device (largest micro-batch that fits)"
            print_table(title, ["method", *datasets], rows, numeric=datasets)
