"""`harness fuse`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import Json, Out, Track
from harness.cli.show import print_json, print_table, say, short_path
from harness.errors import UserError

if TYPE_CHECKING:
    from harness.report.compare import Run
    from harness.runs.record import RunRecord

Runs = Annotated[
    str,
    typer.Option(
        metavar="A,B", help="Run ids, run folders, `last` or methods, two or more, as `report --compare` takes them."
    ),
]
Method = Annotated[
    str,
    typer.Option(
        help="rrf: reciprocal rank fusion, without parameters. weights: a weighted sum of scaled scores, the weights "
        "chosen on validation rows."
    ),
]
Metric = Annotated[str | None, typer.Option(help="With weights: what they are chosen by. Default: P@1.")]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Which run of a method to take; the fused run is filed under it. Default: the smallest of the runs.",
    ),
]
Place = Annotated[
    str | None, typer.Option(help="Dataset of the methods that are named; or where it is, if the runs' was a folder.")
]


def fuse(
    runs: Runs,
    method: Method = "rrf",
    metric: Metric = None,
    seed: Seed = None,
    dataset: Place = None,
    out: Out = None,
    track: Track = "mlflow",
    as_json: Json = False,
) -> None:
    """Combine the stored predictions of finished runs into a run of its own. Nothing is trained.

    Systems in production fuse several methods; beside its members, the fused run shows what that gains. It has
    predictions, metrics and a record like any run, so tables and comparisons show it, as method `fuse`.

    With `weights`, each run needs a validation run: the same settings and seed, scored on validation rows. It is found
    among your runs; if there is none, the command that makes it is printed. Test rows choose nothing.

    Examples:
        harness fuse --runs unidec,parabel --seed 0             (a run of each method, by reciprocal rank fusion)
        harness fuse --runs RUN,RUN,RUN                         (by run id; `harness ls runs`)
        harness fuse --runs unidec,parabel --seed 0 --method weights --metric PSP@5
        harness report --compare unidec fuse                    (is it better by more than chance?)
    """
    from harness.experiments.fusion import Request, fuse_runs
    from harness.runs.record import runs_folder

    if out and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; name a folder")
    try:
        record, members = fuse_runs(Request(runs, method, metric, seed, dataset), out=out, track=track)
    except KeyboardInterrupt:
        say("stopped", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(record.model_dump(mode="json"))
        return
    _show(record, members, runs_folder(out) / record.run_id, out, track)


def _show(record: "RunRecord", members: "list[Run]", folder: Path, out: Path | None, track: str) -> None:
    from harness.cli.run import show_metrics, show_places
    from harness.runs.record import runs_folder

    show_metrics(record)
    names = [name for name in record.metrics if name.split("@")[0] in ("P", "PSP")]
    weights = [f"{weight:.1f}" for weight in record.fusion.get("weights", [])]
    columns = ["run", "method", *(["weight"] if weights else []), *names]
    rows = [
        [one.record.run_id, one.record.config["method"], *weights[place : place + 1], *_figures(one.record, names)]
        for place, one in enumerate(members)
    ]
    rows.append([record.run_id, record.config["method"], *([""] if weights else []), *_figures(record, names)])
    print_table("members and fused", columns, rows, numeric=columns[2:])
    if weights:
        fusion = record.fusion
        alone = ", ".join(f"{one:.2f}" for one in fusion["alone"])
        say(
            f"weights chosen by {fusion['metric']} on {fusion['validation_rows']:,} validation rows: "
            f"{fusion['score']:.2f} there; each run alone {alone}; rrf {fusion['rrf']:.2f}"
        )
    say(f"{record.seconds:.1f} s, peak memory {record.peak_memory_gib:.2f} GiB")
    show_places(record, folder, track)
    best = max(members, key=lambda one: one.record.metrics.get(names[0], 0.0))
    runs = [one.name if one.parent == runs_folder() else shlex.quote(short_path(one)) for one in (best.folder, folder)]
    say(f"compare     python -m harness report --compare {' '.join(runs)}")
    say("table       python -m harness report" + (f" --runs {shlex.quote(str(out))}" if out else ""))


def _figures(record: "RunRecord", names: list[str]) -> list[str]:
    return [f"{record.metrics[name]:.2f}" if name in record.metrics else "" for name in names]
