"""Reading a user's own data, a folder of JSON lines, plain or gzip, and importing it into the workspace.

    train.jsonl  test.jsonl    {"text": "...", "labels": [label ids], "id": optional}
    labels.jsonl               {"id": ..., "text": "..."}
    filter.jsonl (optional)    {"split": "train" or "test", "id": row id, "label": label id}: never to be predicted

Ids are strings or whole numbers and are compared as strings, so 7 and "7" are one id. A label repeated within a row is
kept once and counted in the warnings. Half a character (a lone surrogate) becomes U+FFFD in a text and is refused in an
id. With the card's option `test_fraction` there is no test.jsonl: a row of train.jsonl becomes a test row by a hash of
its text, so its position does not matter and texts that are equal but for case, accents and blanks stay together.

`import_folder` takes a folder whole or not at all. It is validated by preparing it in place, so that every fault names
the user's own file and line. Its files are copied under a temporary name and renamed to `data/<name>/`, and a card with
the measured figures goes to `cards/<name>.yaml`. The copies keep their modification times, so the prepared data is
found again under the new name. Test texts that also occur in train are noted on the card.
"""

import difflib
import hashlib
import io
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from ruamel.yaml import YAML
from scipy.sparse import csr_array

from harness.data.card import DatasetCard, card_paths, read_card
from harness.data.equal import count_blank, equal_rows, fold, row_hashes
from harness.data.pattern import PatternBuilder, from_pairs
from harness.data.prepare import DatasetWriter, prepare, raw_folder
from harness.data.ragged import Texts
from harness.data.sources.lines import HALVES, UNKNOWN_CHARACTER, JsonRows, json_chunks
from harness.data.sources.repository import SPLITS, file_metadata, plain_texts, warn, warn_of_lines
from harness.errors import DataError, MissingDataError, UserError
from harness.io.files import checked_name, home, locked, write_text
from harness.io.models import describe_faults
from harness.io.progress import progress

__all__ = ["JsonlSource", "find_files", "import_folder"]

_MOST_LABELS_FOR_HINT = 20_000
_DRAW = 2
"""Version of the draw of test rows; raised whenever it would draw others."""


class JsonlSource:
    """Reads a folder of JSON lines; see `harness.data.prepare.Source`."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return relative name, size and modification time of every file that is read, and how test rows are drawn."""
        files = {"files": file_metadata(find_files(card, raw).values(), raw)}
        return {**files, "draw": _DRAW} if _test_fraction(card.name, card.options) else files

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Write texts, labels and filter pairs into the prepared folder; return the provenance."""
        files = find_files(card, raw)
        warnings: list[str] = []
        label_of = _write_labels(files["labels"], writer, warnings)
        fraction = _test_fraction(card.name, card.options)
        with ExitStack() as columns:
            splits = {name: _Split(name, writer, len(label_of), columns) for name in SPLITS}
            names = [name for name in SPLITS if name in files]
            parts = {name: _read_rows(files[name], name, splits, label_of, fraction, warnings) for name in names}
        pairs = _read_filter(files["filter"], parts, label_of, warnings) if "filter" in files else {}
        for name in SPLITS:
            matrix = splits[name].finish(files.get(name, files["train"]), warnings)
            writer.matrix(f"{name}.labels", matrix)
            if name in pairs:
                writer.matrix(f"{name}.filter", from_pairs(pairs[name][:, 0], pairs[name][:, 1], matrix.shape))
        return {
            "layout": "jsonl",
            "files": [path.name for path in files.values()],
            "filter_files": [files["filter"].name] if "filter" in files else [],
            "warnings": warnings,
        }


def find_files(card: DatasetCard, raw: Path) -> dict[str, Path]:
    """Return the files of a folder: `labels`, `train`, `test` unless drawn from train, and `filter` if there is one."""
    files = {
        name: path
        for name in ("labels", "train", "test", "filter")
        for path in (raw / f"{name}.jsonl.gz", raw / f"{name}.jsonl")
        if path.is_file()
    }
    drawn = _test_fraction(card.name, card.options) > 0
    if drawn and "test" in files:
        raise UserError(f"{files['test']} holds the test rows already; leave out the test fraction, or that file")
    missing = [f"{name}.jsonl" for name in ("train", "test", "labels") if name not in files]
    if missing == ["test.jsonl"] and not drawn:
        raise MissingDataError(
            f"{raw} has no test.jsonl; write one, or draw test rows from train.jsonl (here a fifth of them):\n"
            f"  python -m harness data import {raw} --name {card.name} --test-fraction 0.2"
        )
    if missing not in ([], ["test.jsonl"]):
        raise MissingDataError(
            f"{raw} has no {', no '.join(missing)}; a dataset of your own is train.jsonl and test.jsonl "
            "(`text`, `labels`: a list of label ids) and labels.jsonl (`id`, `text`), one JSON object per line"
        )
    return files


def _test_fraction(name: str, options: Mapping[str, object]) -> float:
    """Return the share of train.jsonl that becomes test rows; 0 without the option `test_fraction`."""
    if "test_fraction" not in options:
        return 0.0
    fraction = options["test_fraction"]
    if not (isinstance(fraction, float) and 0 < fraction < 1):
        raise UserError(f"{name}: the test fraction is {fraction!r}; it must lie between 0 and 1, for example 0.2")
    return fraction


def _write_labels(path: Path, writer: DatasetWriter, warnings: list[str]) -> dict[str, int]:
    """Write label texts and ids; return the index of every label by its id."""
    label_of: dict[str, int] = {}
    empty, mended = 0, list[int]()
    with writer.texts("labels.text") as texts, writer.texts("labels.id") as ids:
        for rows in json_chunks(path, mended):
            _require_whole(rows, mended, "id")
            strings, names = plain_texts(rows.column("text", str)), rows.column("id", str, int)
            _add_ids(label_of, names, len(label_of), rows, "label")
            texts.extend_strings(strings)
            ids.extend_strings(list(map(str, names)))
            empty += count_blank(strings)
    if not label_of:
        raise DataError("the file has no labels", path)
    warn(warnings, path, empty, "empty texts")
    warn_of_lines(warnings, path, mended, HALVES)
    return label_of


def _require_whole(rows: JsonRows, mended: list[int], *keys: str) -> None:
    """Raise `DataError` if an id of a chunk has lost half a character: with U+FFFD in its place it may be another's."""
    for line in mended[bisect_left(mended, rows.first) :]:
        for key in keys:
            value = rows.rows[line - rows.first].get(key)
            ids = value if isinstance(value, list) else [value]
            if any(isinstance(one, str) and UNKNOWN_CHARACTER in one for one in ids):
                problem = f"`{key}` has half a character (a lone surrogate) or U+FFFD; ids must be whole"
                raise rows.fault(line - rows.first, problem)


def _add_ids(index: dict[str, int], ids: list[Any], start: int, rows: JsonRows, kind: str) -> None:
    """Add the ids of a chunk to `index`, numbered from `start`; skip None, raise `DataError` for a repeated id."""
    known = len(index)
    new = {str(name): number for number, name in enumerate(ids, start) if name is not None}
    index.update(new)
    if len(index) == known + len(ids) - ids.count(None):
        return
    seen = set(islice(index, known))
    for row, name in enumerate(ids):
        if str(name) in seen:
            raise rows.fault(row, f"{kind} id {str(name)!r} appears in this file already")
        if name is not None:
            seen.add(str(name))


class _Split:
    """Writes the train or test rows: texts, labels, and counts for the warnings."""

    def __init__(self, name: str, writer: DatasetWriter, labels: int, columns: ExitStack) -> None:
        self._name = name
        self._texts = columns.enter_context(writer.texts(f"{name}.text"))
        self._builder = PatternBuilder(labels)
        self._repeats = self._empty = 0

    def extend(
        self, strings: list[str], lengths: NDArray[np.int64], labels: NDArray[np.int64], chosen: NDArray[np.bool_]
    ) -> None:
        """Append the rows of a chunk where `chosen`, [rows]; given labels per row [rows] and all labels [pairs]."""
        own = list(compress(strings, chosen))
        self._texts.extend_strings(own)
        self._empty += count_blank(own)
        self._repeats += self._builder.extend(lengths[chosen], labels[np.repeat(chosen, lengths)])

    def finish(self, path: Path, warnings: list[str]) -> csr_array:
        """Return the matrix of positives, after all rows, and add the warnings."""
        matrix = self._builder.finish()
        if not matrix.shape[0]:
            raise DataError(f"there are no {self._name} rows", path)
        warn(warnings, path, self._empty, f"empty {self._name} texts")
        warn(warnings, path, self._repeats, f"labels repeated within a {self._name} row, kept once")
        warn(warnings, path, int((np.diff(matrix.indptr) == 0).sum()), f"{self._name} rows without labels")
        return matrix


class _Part(NamedTuple):
    """Maps the rows of one file to rows of the splits."""

    row_of: dict[str, int]
    """Index of the row in the file, by its id; rows without an id are absent."""
    in_test: NDArray[np.bool_]
    """Whether each row of the file is a test row, [rows of the file]."""
    place: NDArray[np.int64]
    """Index of each row of the file within its split, [rows of the file]."""


def _read_rows(
    path: Path,
    name: str,
    splits: dict[str, _Split],
    label_of: dict[str, int],
    test_fraction: float,
    warnings: list[str],
) -> _Part:
    row_of: dict[str, int] = {}
    mended = list[int]()
    drawn, count = [np.zeros(0, np.bool_)], 0
    with progress(f"reading {path.name}") as advance:
        for rows in json_chunks(path, mended):
            _require_whole(rows, mended, "id", "labels")
            strings = plain_texts(rows.column("text", str))
            lengths, labels = _label_columns(rows, label_of)
            _add_ids(row_of, rows.column("id", str, int, default=None), count, rows, "row")
            test = _drawn_for_test(strings, test_fraction) if test_fraction else np.full(len(rows), name == "test")
            splits["train"].extend(strings, lengths, labels, ~test)
            splits["test"].extend(strings, lengths, labels, test)
            drawn.append(test)
            count += len(rows)
            advance(len(rows))
    warn_of_lines(warnings, path, mended, HALVES)
    in_test = np.concatenate(drawn)
    return _Part(row_of, in_test, np.where(in_test, np.cumsum(in_test), np.cumsum(~in_test)) - 1)


def _label_columns(rows: JsonRows, label_of: dict[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many labels each row has [rows], and the indices of all of them [pairs]."""
    lengths, ids = rows.lists("labels", str, int)
    try:
        return lengths, np.fromiter(map(label_of.__getitem__, map(str, ids)), np.int64, len(ids))
    except KeyError as error:
        unknown = error.args[0]
    row = next(i for i, row in enumerate(rows.rows) if unknown in map(str, row["labels"]))
    raise rows.fault(row, _unknown(f"label id {unknown!r} is not in labels.jsonl", unknown, label_of))


def _unknown(message: str, name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(islice(known, _MOST_LABELS_FOR_HINT)), n=1, cutoff=0.6)
    return message + (f"; did you mean {near[0]!r}?" if near else "")


def _drawn_for_test(strings: list[str], fraction: float) -> NDArray[np.bool_]:
    """Return for each text whether its hash as folded, as a number in [0, 1), is below the fraction, [rows]."""
    digests = b"".join(hashlib.blake2b(fold(text).encode(), digest_size=8).digest() for text in strings)
    return np.frombuffer(digests, "<u8") / 2.0**64 < fraction


def _read_filter(
    path: Path, parts: dict[str, _Part], label_of: dict[str, int], warnings: list[str]
) -> dict[str, NDArray[np.int64]]:
    """Return the filter pairs (row of the split, label) of each split, [pairs, 2]."""
    pairs: dict[str, list[tuple[int, int]]] = {name: [] for name in SPLITS}
    mended = list[int]()
    for rows in json_chunks(path, mended):
        _require_whole(rows, mended, "id", "label")
        columns = rows.column("split", str), rows.column("id", str, int), rows.column("label", str, int)
        for number, (split, row_id, label) in enumerate(zip(*columns, strict=True)):
            if split not in parts:
                raise rows.fault(number, f"`split` is {split!r}; expected the file of the row: {' or '.join(parts)}")
            part = parts[split]
            if str(row_id) not in part.row_of:
                none = "" if part.row_of else " (none has an `id`)"
                problem = f"no row of {split}.jsonl has the id {str(row_id)!r}{none}"
                raise rows.fault(number, _unknown(problem, str(row_id), part.row_of))
            if str(label) not in label_of:
                raise rows.fault(number, _unknown(f"label id {label!r} is not in labels.jsonl", str(label), label_of))
            row = part.row_of[str(row_id)]
            pairs["test" if part.in_test[row] else "train"].append((int(part.place[row]), label_of[str(label)]))
    warn_of_lines(warnings, path, mended, HALVES)
    return {name: np.array(found, np.int64).reshape(-1, 2) for name, found in pairs.items()}


_COUNTS = ("train", "test", "labels")
_AVERAGES = ("rows_per_label", "labels_per_row", "words_per_row", "words_per_label")


def import_folder(
    folder: Path,
    name: str,
    *,
    propensity: tuple[float, float] | None = None,
    test_fraction: float | None = None,
    title: str = "",
    overwrite: bool = False,
) -> DatasetCard:
    """Import a folder of JSON lines (see `harness.data.sources.jsonl`) into the workspace as the dataset `name`.

    Args:
        folder: The user's folder; it is not changed.
        name: Name of the new dataset.
        propensity: Constants A and B of the label propensities; without them there are no PSP figures.
        test_fraction: Share of train.jsonl that becomes test rows, for a folder without test.jsonl.
        title: Title for tables; if empty, the name.
        overwrite: Whether to replace a dataset that was imported under this name before.

    Returns:
        The card that was written.
    """
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give one with train.jsonl, test.jsonl and labels.jsonl")
    card_path = home() / "cards" / f"{checked_name('dataset', name)}.yaml"
    options = {} if test_fraction is None else {"test_fraction": test_fraction}
    _test_fraction(name, options)
    values = {
        "name": name,
        "title": title or name,
        "summary": f"imported from {folder.name}/",
        "source": "jsonl",
        "options": options,
        "propensity": None if propensity is None else dict(zip("ab", propensity, strict=True)),
    }
    try:
        draft = DatasetCard.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, f"dataset {name}"))) from error
    _refuse_taken(draft, folder, card_path, overwrite)
    prepared, manifest = prepare(draft, folder)
    # averages of zero are left out, because the statistics of a card must be positive
    found = manifest["statistics"]
    averages = {name: float(f"{found[name]:.6g}") for name in _AVERAGES if found[name]}
    measured = {
        "statistics": {**{name: found[name] for name in _COUNTS}, **averages},
        "pin": {"digest": manifest["digest"]},
        "notes": _overlap(prepared),
    }
    card = DatasetCard.model_validate({**draft.model_dump(), **measured})
    text = io.StringIO()
    YAML(pure=True).dump(card.model_dump(mode="json", exclude={"name"}, exclude_defaults=True), text)
    try:
        with locked(raw_folder(card)), _copied(folder, manifest["fingerprint"]["files"], raw_folder(card)):
            write_text(card_path, text.getvalue())
    except OSError as error:
        raise UserError(f"{folder} cannot be copied into {home()}: {error.strerror or error}") from error
    read_card.cache_clear()
    return card


def _refuse_taken(card: DatasetCard, folder: Path, card_path: Path, overwrite: bool) -> None:
    taken = card_paths().get(card.name)
    if taken is not None and taken != card_path:
        raise UserError(f"{card.name} is the name of a dataset that comes with the harness; take another name")
    occupied = raw_folder(card).exists() and raw_folder(card).resolve() != folder.resolve()
    if (taken is not None or occupied) and not overwrite:
        place = taken or raw_folder(card)
        raise UserError(f"there is a dataset {card.name} already ({place}); take another name, or --overwrite it")


def _overlap(prepared: Path) -> list[str]:
    """Return a list of one note on test texts that are also train texts; empty if there are none."""
    train, test = (Texts.load(prepared, f"{split}.text") for split in ("train", "test"))
    of_train, of_test = equal_rows(train, row_hashes(train), test, row_hashes(test))
    if not len(of_test):
        return []
    first = f"first: test row {of_test[0]} equals train row {of_train[0]}, counted from 0"
    return [f"{len(of_test):,} of {len(test):,} test texts also stand in train ({first})"]


@contextmanager
def _copied(folder: Path, files: list[list[Any]], target: Path) -> Iterator[None]:
    """Copy files to `target`; if the block fails, restore what was there before.

    Args:
        folder: Folder of the files; if it is `target` itself, nothing is copied.
        files: [name, size, ...] of each file, as it was when the folder was prepared.
        target: Folder to copy them to; what was there before is replaced.
    """
    if folder.resolve() == target.resolve():
        yield
        return
    # dataset names have no equals sign, so such a folder is a leftover of a killed process
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}=", dir=target.parent))
    new, old, placed = scratch / "new", scratch / "old", False
    try:
        new.mkdir()
        for name, size, *_ in files:
            shutil.copy2(folder / name, new / name)
            if (new / name).stat().st_size != size:
                raise UserError(f"{folder / name} changed while it was imported; import again")
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
