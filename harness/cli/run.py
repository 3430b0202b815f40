"""`harness run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import DEFAULT_DATASET, DEFAULT_METHOD
from harness.cli.options import Config, Dataset, Encoder, Json, Method, Out, Override, Track, typed_layers
from harness.cli.show import print_json, print_table, say, short_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.runs.record import RunRecord
    from harness.runs.resume import Earlier
    from harness.settings.layers import Layer


def run(
    method: Method = None,
    dataset: Dataset = None,
    encoder: Encoder = None,
    seed: Annotated[int | None, typer.Option(help="Random seed. Default: 0.")] = None,
    override: Override = None,
    config: Config = None,
    published: Annotated[
        str | None, typer.Option(metavar="TABLE/ROW", help="Settings of a paper's row; `harness ls published`.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Take up an interrupted run, by id or folder, with its settings.")
    ] = None,
    out: Out = None,
    filter_pairs: Annotated[
        bool | None, typer.Option("--filter/--no-filter", help="Mask the dataset's filter pairs before ranking.")
    ] = None,
    track: Track = "mlflow",
    parent: Annotated[Path | None, typer.Option(hidden=True, help="What it belongs to; given by `bench`.")] = None,
    as_json: Json = False,
) -> None:
    """Train (where the method trains), evaluate and record one method on one dataset.

    Examples:
        harness run                                   (real data, no download)
        harness run --dataset lf-debiantitles         (35 thousand Debian packages)
        harness run --encoder minilm --seed 1 --set search.k=50
        harness run --dataset ./tickets/              (a folder of your own JSON lines)
        harness run --method unidec-thesis --set epochs=50 --set beta=2
        harness run --set validation.size=0.1 --set validation.patience=3     (early stopping)
        harness run --set scorer=fused                (both heads, weighed by a first training on validation rows)
        harness run --published thesis-2.2/unidec/lf-amazon-131k              (a row of a paper, its settings)
        harness run --resume RUN                      (go on after Ctrl-C, a kill or a power cut)
    """
    from harness import run as pipeline
    from harness.io.files import read_json
    from harness.runs.record import runs_folder
    from harness.runs.resume import find_earlier
    from harness.settings.published import layer, published_row

    if resume is not None and (config or published):
        option = "--config" if config else "--published"
        raise UserError(f"--resume brings the settings of its run; leave {option} out")
    earlier = find_earlier(resume, out) if resume is not None else None
    options = {"method": method, "dataset": dataset, "encoder": encoder, "seed": seed, "filter": filter_pairs}
    layers = typed_layers(config, override, options)
    if earlier:
        layers = _over_earlier(earlier, layers, method)
    if published is not None:  # over the card's settings, under everything a person types
        layers.insert(0, layer(published_row(published)))
    settings, origins = pipeline.resolve_config(
        _named("method", layers) or DEFAULT_METHOD, _named("dataset", layers) or DEFAULT_DATASET, layers
    )
    if out and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    try:
        belongs = read_json(parent) if parent else None
        record = pipeline.run(settings, origins=origins, out=out, track=track, earlier=earlier, parent=belongs)
    except KeyboardInterrupt:
        say("stopped", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(record.model_dump(mode="json"))
        return
    show_metrics(record)
    _show_course(record)
    show_places(record, earlier.folder if earlier else runs_folder(out) / record.run_id, track)
    _show_next(record, out)
    if published:
        _show_published(published)


def _over_earlier(earlier: "Earlier", typed: "list[Layer]", method: str | None) -> "list[Layer]":
    """What was typed over the settings of an interrupted run."""
    from harness.model.folders import remembered_folders, with_folders
    from harness.runs.record import require_place
    from harness.settings.identity import before
    from harness.settings.layers import Layer

    name, config = earlier.folder.name, earlier.config
    if method not in (None, config["method"]):
        raise UserError(f"run {name} is one of {config['method']}; it cannot go on as another method")
    known = remembered_folders(config, earlier.metadata["encoder"].get("identity"))
    recorded = Layer(f"run {name}", {**config, **with_folders(config, known)})
    layers = [Layer("before", before(config)), recorded, *typed]
    for key in ("dataset", "encoder"):
        require_place(name, key, config[key], _named(key, layers) or "")
    return layers


def _named(key: str, layers: "list[Layer]") -> str | None:
    found = [layer.values[key] for layer in layers if key in layer.values]
    return str(found[-1]) if found else None


def show_metrics(record: "RunRecord") -> None:
    """Print the metrics of a finished run: by k, by scorer, by frequency of the label."""
    from harness.runs.record import is_trial

    statistics, config = record.dataset["statistics"], record.config
    families = list(dict.fromkeys(name.split("@")[0] for name in record.metrics))
    ks = config["ks"]
    scored = "validation rows" if is_trial(config) else f"{statistics['test']:,} test rows"
    title = (
        f"{config['method']} ({config['encoder']}) on {record.dataset['name']}: {scored}, "
        f"{statistics['labels']:,} labels, seed {config['seed']}"
    )
    rows = [[family, *(f"{record.metrics[f'{family}@{k}']:.2f}" for k in ks)] for family in families]
    print_table(title, ["%", *(f"@{k}" for k in ks)], rows, numeric=[f"@{k}" for k in ks])
    if record.scorers:  # side by side
        names = [name for name in record.metrics if name.split("@")[0] in ("P", "PSP")]
        rows = [[scorer, *(f"{values[name]:.2f}" for name in names)] for scorer, values in record.scorers.items()]
        print_table("by scorer", ["scorer", *names], rows, numeric=names)
    key = f"P@{ks[-1]}"
    shares = ", ".join(f"{part['bin']} {part[key]:.2f}" for part in record.contributions)
    say(f"{key} by frequency of the label: {shares}")


def _show_course(record: "RunRecord") -> None:
    """Print what was trained, and where the time went."""
    if training := record.training:
        done = f"trained {training['steps']:,} steps" if "steps" in training else "fitted"
        best = f", best epoch {training['best_epoch']}" if "best_epoch" in training else ""
        resumed = f", resumed {len(record.resumed)} times" if record.resumed else ""
        say(f"{done} in {training['seconds']:.1f} s{best}{resumed}")
    if fused := record.training.get("fused"):
        where = f"by run {fused['run']}" if fused["run"] else "here"
        found = f"{fused['metric']} {fused['value']:.2f} on {fused['rows']:,} validation rows"
        say(f"fused: {fused['weight']:.3f} de + {1 - fused['weight']:.3f} clf, chosen {where}: {found}")
    slowest = sorted(record.timings.items(), key=lambda item: -item[1])[:4]
    spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in slowest)
    say(f"{record.seconds:.1f} s ({spent}), peak memory {record.peak_memory_gib:.2f} GiB")


def show_places(record: "RunRecord", folder: Path, track: str) -> None:
    """Print where a finished run is: its folder, and MLflow if it was tracked."""
    from harness.tracking import tracking_uri

    say(f"run folder  {short_path(folder)}")
    if track == "mlflow":  # a URI may hold a password, so it is not repeated
        server = tracking_uri().startswith(("http://", "https://"))
        say(f"in MLflow   {'open the server that MLFLOW_TRACKING_URI names' if server else 'python -m harness ui'}")


def _show_next(record: "RunRecord", out: Path | None) -> None:
    """Print what can be done with a finished run."""
    from harness.runs.record import is_trial
    from harness.train.fusion import goes_before

    if not is_trial(record.config):  # one that was scored on validation rows saved no model, and no table shows it
        if not out:
            say('try it      python -m harness predict --run last --text "your text"')
        say("compare     python -m harness report" + (f" --runs {out}" if out else ""))
    elif record.training.get("fused") and goes_before(record.config):
        say("next        the command that this run was begun by: it takes this weight and trains on all rows")


def _show_published(name: str) -> None:
    """What the paper prints in the row that was run, and what is known to be wrong with it."""
    from harness.settings.published import published_row

    row = published_row(name)
    shown = {column: f"{value:.2f}" if isinstance(value, float) else value for column, value in row.results.items()}
    figures = ", ".join(f"{column} {value}" for column, value in shown.items() if value is not None)
    say(f"published   {row.label} on {row.dataset}: {figures}")
    for text in (row.slip, row.nearest):
        if text:
            say(f"            {text}")
