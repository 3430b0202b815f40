"""`data import`: a user's folder becomes a dataset of the workspace, whole or not at all.

The folder is validated by preparing it where it stands, so that every fault names the user's own file and line. Its
files are then copied under a temporary name and renamed to `data/<name>/`, and a card with the measured figures goes to
`cards/<name>.yaml`. The copies keep their modification times, so what was prepared is found again under the new name.
Test texts that also stand in train go into the card's notes: they flatter whoever memorises.
"""

import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.data.card import DatasetCard, card_paths, describe_faults, read_card
from harness.data.check import equal_rows, scan_rows
from harness.data.prepare import prepare, raw_folder
from harness.data.ragged import Texts
from harness.errors import UserError
from harness.files import checked_name, home, locked, write_text

_FIGURES = ("train", "test", "labels", "rows_per_label", "labels_per_row", "words_per_row")


def import_folder(
    folder: Path,
    name: str,
    *,
    propensity: tuple[float, float] | None = None,
    test_fraction: float | None = None,
    title: str = "",
    overwrite: bool = False,
) -> DatasetCard:
    """Takes a folder of JSON lines (see `harness.data.sources.jsonl`) into the workspace as the dataset `name`.

    Args:
        folder: The user's folder; it is only read.
        name: Name of the new dataset.
        propensity: Constants A and B of the label propensities; without them there are no PSP figures.
        test_fraction: Share of train.jsonl to hold out as test rows, for a folder without test.jsonl.
        title: Title for tables; the name if empty.
        overwrite: Replace a dataset that was imported under this name before.

    Returns:
        The card that was written.
    """
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one with train.jsonl, test.jsonl and labels.jsonl")
    card_path = home() / "cards" / f"{checked_name('dataset', name)}.yaml"
    draft = _draft(folder, name, propensity, test_fraction, title)
    _refuse_taken(draft, folder, card_path, overwrite)
    prepared, manifest = prepare(draft, folder)
    card = DatasetCard.model_validate({**draft.model_dump(), **_measured(manifest), "notes": _overlap(prepared)})
    try:
        with locked(raw_folder(card)), _copied(folder, manifest["fingerprint"]["files"], raw_folder(card)):
            write_text(card_path, _as_yaml(card))
    except OSError as error:
        raise UserError(f"{folder} cannot be copied into {home()}: {error.strerror or error}") from error
    read_card.cache_clear()
    return card


def _draft(
    folder: Path, name: str, propensity: tuple[float, float] | None, test_fraction: float | None, title: str
) -> DatasetCard:
    values = {
        "name": name,
        "title": title or name,
        "summary": f"imported from {folder.name}/",
        "source": "jsonl",
        "options": {} if test_fraction is None else {"test_fraction": test_fraction},
        "propensity": None if propensity is None else dict(zip("ab", propensity, strict=True)),
    }
    try:
        return DatasetCard.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, f"dataset {name}"))) from error


def _refuse_taken(card: DatasetCard, folder: Path, card_path: Path, overwrite: bool) -> None:
    taken = card_paths().get(card.name)
    if taken is not None and taken != card_path:
        raise UserError(f"{card.name} is the name of a dataset that comes with the harness; take another name")
    occupied = raw_folder(card).exists() and raw_folder(card).resolve() != folder.resolve()
    if (taken is not None or occupied) and not overwrite:
        place = taken or raw_folder(card)
        raise UserError(f"there is a dataset {card.name} already ({place}); take another name, or --overwrite it")


def _measured(manifest: dict[str, Any]) -> dict[str, Any]:
    """Figures and digest for the card; a figure of zero is left out, because a card has positive ones only."""
    figures = {name: manifest["statistics"][name] for name in _FIGURES}
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
    return {
        "statistics": {name: value for name, value in rounded.items() if value},
        "pin": {"digest": manifest["digest"]},
    }


def _overlap(prepared: Path) -> list[str]:
    """A note on test texts that also stand in train, if there are any."""
    train, test = (Texts.load(prepared, f"{split}.text") for split in ("train", "test"))
    of_train, of_test = equal_rows(train, scan_rows(train), test, scan_rows(test))
    if not len(of_test):
        return []
    first = f"first: test row {of_test[0]} equals train row {of_train[0]}, counted from 0"
    return [f"{len(of_test):,} of {len(test):,} test texts also stand in train ({first})"]


def _as_yaml(card: DatasetCard) -> str:
    from ruamel.yaml import YAML

    text = io.StringIO()
    YAML(pure=True).dump(card.model_dump(mode="json", exclude={"name"}, exclude_defaults=True), text)
    return text.getvalue()


@contextmanager
def _copied(folder: Path, files: list[list[Any]], target: Path) -> Iterator[None]:
    """Copies files into place for the block; if the block fails, everything is as it was before.

    Args:
        folder: Where the files are; if it is `target` itself there is nothing to copy.
        files: [name, size, ...] of each file, as it was when the folder was prepared.
        target: Where they go; what was there before is replaced.
    """
    if folder.resolve() == target.resolve():
        yield
        return
    # no dataset's name has an equals sign, so a leftover of a killed process is known as one
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}=", dir=target.parent))
    new, old, placed = scratch / "new", scratch / "old", False
    try:
        _copy(folder, files, new)
        if target.exists():
            target.rename(old)
        new.rename(target)
        placed = True
        yield
    except BaseException:
        if placed:
            shutil.rmtree(target)
        if old.exists():
            old.rename(target)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _copy(folder: Path, files: list[list[Any]], new: Path) -> None:
    new.mkdir()
    for name, size, *_ in files:
        shutil.copy2(folder / name, new / name)
        if (new / name).stat().st_size != size:
            raise UserError(f"{folder / name} changed while it was imported; import again")
