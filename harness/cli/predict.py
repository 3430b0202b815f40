"""`harness predict` and `harness export`: what a finished run is good for."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import Json
from harness.cli.show import print_json, print_table, say, short_path
from harness.errors import UserError, unknown_name
from harness.io.printable import printable, printable_json

if TYPE_CHECKING:
    from harness.infer.predict import Prediction

Run = Annotated[
    str, typer.Option(metavar="RUN", help="Id of a finished run (`harness ls runs`), its folder, or last: the newest.")
]
DatasetPlace = Annotated[
    str | None, typer.Option(help="Where the run's dataset is, if that was a folder: records hold no paths.")
]
EncoderPlace = Annotated[str | None, typer.Option(help="Where the run's encoder is, if that was a model folder.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]

_WIDTH = 100


def predict(
    run: Run,
    text: Annotated[list[str] | None, typer.Option(help="A text, repeatable.")] = None,
    file: Annotated[
        str | None, typer.Option(metavar="F", help="One text per line, or .jsonl with `text`; - is standard input.")
    ] = None,
    add_labels: Annotated[
        str | None,
        typer.Option(
            metavar="F",
            help="New labels: one text per line, or .jsonl with `text` and optional `id`. "
            "All labels are then scored by text alone.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Labels per text.")] = 5,
    scorer: Annotated[
        str | None, typer.Option(help="concat, de, clf or fused, where the method has them. Default: the run's own.")
    ] = None,
    dataset: DatasetPlace = None,
    encoder: EncoderPlace = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per text and line.")] = False,
) -> None:
    """Predict labels for new texts with a finished run.

    Examples:
        harness predict --run last --text "sort a list in place"
        harness predict --run last --file queries.txt -k 10 --json > labels.jsonl
        harness predict --run last --text "printer on fire" --add-labels new-labels.txt
        cut -f2 tickets.tsv | harness predict --run RUN --file -
    """
    if (text is None) == (file is None):
        raise UserError("say what to predict labels for: either --text, repeatable, or --file")
    if k < 1:
        raise UserError(f"-k is {k}; ask for at least one label")
    from harness.infer import predict as prediction
    from harness.infer.load import load_run

    texts = text if file is None else prediction.read_texts(file)
    new = [] if add_labels is None else prediction.read_labels(add_labels)
    trained = load_run(run, dataset=dataset, encoder=encoder, device=device)
    scorer = prediction.chosen_scorer(trained, scorer, bool(new))
    rows = prediction.predict(trained, texts or [], k, scorer=scorer, add_labels=new)
    if not as_json:
        say(f"run {trained.record.run_id}, scorer {scorer}\n")
    for query, found in zip(texts or [], rows, strict=True):
        if as_json:
            answer = {"text": query, "scorer": scorer, "predictions": [asdict(one) for one in found]}
            typer.echo(printable_json(json.dumps(answer, ensure_ascii=False, allow_nan=False)))
        else:
            _show(query, found, marked=bool(new))


def export(
    run: Run,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="A new or empty folder.")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="sentence-transformers: the dual encoder, for that library. safetensors: all weights, by name.",
        ),
    ] = "sentence-transformers",
    dataset: DatasetPlace = None,
    encoder: EncoderPlace = None,
    as_json: Json = False,
) -> None:
    """Write the model of a finished run as a folder that other software reads.

    Examples:
        harness export --run last --out my-encoder
        harness export --run RUN --format safetensors --out weights
    """
    from harness.infer.export import FORMATS, export_run
    from harness.infer.load import load_run

    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    trained = load_run(run, dataset=dataset, encoder=encoder, device="cpu")
    export_run(trained, form, out)
    files = {str(path.relative_to(out)): path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}
    if as_json:
        print_json({"run": trained.record.run_id, "format": form, "folder": str(out.absolute()), "files": files})
        return
    place = short_path(out.absolute())
    say(f"wrote {place}: {len(files)} files, {sum(files.values()) / 2**20:.1f} MiB\n")
    if form == "safetensors":
        say("from safetensors.torch import load_file")
        say(f"tensors = load_file({json.dumps(f'{place}/model.safetensors', ensure_ascii=False)})")
    else:
        say("from sentence_transformers import SentenceTransformer")
        say(f'vectors = SentenceTransformer({json.dumps(place, ensure_ascii=False)}).encode(["a text"])')


def _show(query: str, found: "list[Prediction]", marked: bool) -> None:
    """One table; added labels carry a mark."""
    columns = ["rank", "score", "label", "text"]
    rows = [[str(rank), f"{one.score:.4f}", _short(one.label), _short(one.text)] for rank, one in enumerate(found, 1)]
    if marked:
        columns.append("added")
        rows = [[*row, "new" if one.new else ""] for row, one in zip(rows, found, strict=True)]
    print_table(_short(query) or "(empty text)", columns, rows, numeric=["rank", "score"])


def _short(text: str) -> str:
    """The beginning of a text on one line, without characters that would steer a terminal."""
    line = " ".join(printable(text[:1000]).split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."
