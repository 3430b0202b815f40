"""`harness data ...`: prepare, check, import and fetch datasets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import Json
from harness.cli.show import format_value, print_json, print_table, say, short_path

if TYPE_CHECKING:
    from harness.data.check import CheckReport

app = typer.Typer(no_args_is_help=True, help="List, prepare, check, import and fetch datasets.")
Name = Annotated[str, typer.Argument(metavar="DATASET", help="Name (`harness ls datasets`) or folder.")]


@app.command("ls")
def list_datasets(as_json: Json = False) -> None:
    """List the datasets and whether they are ready; same as `harness ls datasets`."""
    from harness.cli.ls import ls

    ls("datasets", as_json=as_json)


@app.command()
def prepare(name: Name, as_json: Json = False) -> None:
    """Build or parse a dataset into the workspace, once; `run` does this by itself.

    Example: harness data prepare lf-debiantitles
    """
    from harness.data.prepare import prepare as prepare_dataset
    from harness.data.prepare import resolve

    card, raw = resolve(name)
    folder, manifest = prepare_dataset(card, raw)
    if as_json:
        print_json(manifest)
        return
    _show_statistics(f"{card.name} is ready", manifest["statistics"])
    _show_warnings(manifest)
    if repeated := manifest["statistics"]["test_rows_with_a_train_text"]:
        say(
            f"warning: {repeated:,} test rows have a text that a train row has too; `data check` names the first",
            err=True,
        )
    if card.source == "repository":
        say(f"text         of a row: {card.text}; of a label: {card.recipe_of_labels}")
    say(f"prepared in  {short_path(folder)}")
    say(f"digest       {manifest['digest']}")


@app.command()
def check(
    name: Name,
    k: Annotated[int, typer.Option(help="Warn if filter pairs leave fewer than k labels to rank.")] = 5,
    everything: Annotated[bool, typer.Option("--all", help="Also show the checks that found nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Verify a dataset against its card: counts, averages, checksums, filters, duplicates. Exit code 1 if it differs.

    Example: harness data check lf-amazontitles-131k
    """
    from harness.data.check import check as check_dataset
    from harness.data.prepare import load_prepared, resolve

    _, raw = resolve(name)
    dataset = load_prepared(name, insist=False)
    report = check_dataset(dataset, raw, k)
    if as_json:
        print_json(report.as_dict())
    else:
        _show_check(report, everything)
    if not report.ok:
        raise typer.Exit(1)


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="Folder with train.jsonl, test.jsonl and labels.jsonl.")],
    name: Annotated[str, typer.Option(help="Name of the new dataset.")],
    propensity: Annotated[
        str | None, typer.Option(metavar="A,B", help="Propensity constants; without them PSP stays empty.")
    ] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="Share of train.jsonl that becomes test rows when there is no test.jsonl.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title for tables; the name if not given.")] = "",
    overwrite: Annotated[bool, typer.Option(help="Replace a dataset of that name.")] = False,
    as_json: Json = False,
) -> None:
    """Take a folder of JSON lines as a dataset of your own.

    train.jsonl and test.jsonl have `text` and `labels` (a list of label ids), labels.jsonl has `id` and `text`.
    Optional: `id` on rows, and filter.jsonl with `split`, `id`, `label` for pairs that are never to be predicted.

    Example: harness data import ./tickets --name tickets
    """
    from harness.data.sources.jsonl import import_folder

    constants = _constants(propensity)
    card = import_folder(
        folder, name, propensity=constants, test_fraction=test_fraction, title=title, overwrite=overwrite
    )
    if as_json:
        print_json(card.model_dump(mode="json"))
        return
    figures = card.statistics
    say(f"{name}: {figures.train:,} train rows, {figures.test:,} test rows, {figures.labels:,} labels")
    from harness.data.prepare import prepare as prepare_dataset

    _show_warnings(prepare_dataset(card)[1])
    for note in card.notes:
        say(f"warning: {note}", err=True)
    say(f"next: python -m harness data check {name}, then python -m harness run --dataset {name}")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="DATASET", help="Name (`harness ls datasets`).")],
    keep_archive: Annotated[bool, typer.Option(help="Keep downloaded archives beside the files.")] = False,
    as_json: Json = False,
) -> None:
    """Download a dataset from its published links, verify and unpack it; or say what to place where.

    Example: harness data fetch lf-amazontitles-131k
    """
    from harness.data.card import load_card
    from harness.data.download import fetch as fetch_dataset

    files = fetch_dataset(load_card(name), keep_archive=keep_archive)
    if as_json:
        print_json([str(path) for path in files])
        return
    for path in files:
        say(short_path(path))
    say(f"next: python -m harness data check {name}")


def _show_check(report: "CheckReport", everything: bool) -> None:
    quiet = [row for row in report.rows if row.verdict == "ok" and row.expected == row.measured == 0]
    shown = report.rows if everything else [row for row in report.rows if row not in quiet]
    cells = [[row.name, _figure(row.expected), _figure(row.measured), row.verdict, row.remark] for row in shown]
    columns = ["check", "card", "measured", "verdict", "remark"]
    print_table(f"{report.dataset}, digest {report.digest[:12]}", columns, cells)
    if quiet and not everything:
        say(f"{len(quiet)} further checks found nothing (damaged ids, duplicates, odd texts ...); --all lists them")
    say("as the card says" if report.ok else "differs from the card")


def _show_warnings(manifest: dict[str, Any]) -> None:
    for warning in manifest["provenance"].get("warnings", []):
        say(f"warning: {warning}", err=True)


def _constants(text: str | None) -> tuple[float, float] | None:
    from harness.errors import UserError

    if text is None:
        return None
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--propensity takes two numbers A,B, for example 0.55,1.5 (got {text!r})") from error
    return a, b


def _show_statistics(title: str, statistics: dict[str, Any]) -> None:
    rows = [[name.replace("_", " "), _figure(value)] for name, value in statistics.items()]
    print_table(title, ["figure", "value"], rows, numeric=["value"])


def _figure(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str) and len(value) == 64:  # a digest; its beginning is enough to compare by eye
        return value[:12]
    return format_value(value)
