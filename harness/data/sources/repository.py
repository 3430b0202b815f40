"""Reading datasets in the formats of the Extreme Classification Repository, however a person unpacked them.

Layouts, each plain or gzip, upper or lower case:

    lbl.json trn.json tst.json                           JSON lines with texts and labels together
    Yf.txt   trn.json tst.json                           the same, label names in lines of the form number->name
    Y.txt trn_X.txt tst_X.txt trn_X_Y.txt tst_X_Y.txt    one text per line, labels in sparse files beside or above them

A line of trn.json is {"uid": .., "title": .., "content": .., "target_ind": [labels], "target_rel": [relevances]}.
Filter files are looked for under both of their published names. The folder may be the dataset's own, one folder inside
it, or a `raw` or `raw_data` folder inside that.

Text is UTF-8. A JSON line that is not is refused; a plain text file that is not is read as latin-1 with a warning,
because published tools write that. NUL characters become spaces, halves of characters (lone surrogates) U+FFFD. A row's
labels are sorted, and a repeated label is kept once. A missing uid is made, a repeated one is made unique. Oddities are
collected in `warnings`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.card import DatasetCard, Recipe
from harness.data.equal import count_blank, row_hashes
from harness.data.pattern import PatternBuilder
from harness.data.prepare import DatasetWriter
from harness.data.ragged import RaggedWriter, Texts
from harness.data.sources.lines import HALF_CHARACTER, HALVES, UNKNOWN_CHARACTER, JsonRows, json_chunks, line_chunks
from harness.data.sources.sparse_text import read_filter, read_labels
from harness.errors import DataError, MissingDataError
from harness.io.progress import progress

SPLITS = ("train", "test")
_TEXTS = {
    "json": {"labels": "lbl.json", "train": "trn.json", "test": "tst.json"},
    "text": {"labels": "Y.txt", "train": "trn_X.txt", "test": "tst_X.txt"},
}
_LABEL_NAMES = "Yf.txt"
_LABELS = {"train.labels": "trn_X_Y.txt", "test.labels": "tst_X_Y.txt"}
_FILTERS = {
    "train.filter": ("filter_labels_train.txt", "trn_filter_labels.txt"),
    "test.filter": ("filter_labels_test.txt", "tst_filter_labels.txt"),
}


@dataclass(frozen=True)
class RawFiles:
    """The files of one dataset by content: `labels`, `train`, `test`, `train.labels`, `train.filter` ..."""

    layout: str
    files: dict[str, Path]


class RepositorySource:
    """Reads the repository's files; see `harness.data.prepare.Source`."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return relative name, size and modification time of every file that is read."""
        return {"files": file_metadata(_require_files(card, raw).files.values(), raw)}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Write texts, labels and filter pairs into the prepared folder; return the provenance."""
        found = _require_files(card, raw)
        warnings: list[str] = []
        write = _write_json if found.layout == "json" else _write_text
        for split, matrix in write(card, found.files, writer, warnings):
            empty = int((np.diff(matrix.indptr) == 0).sum())
            warn(warnings, found.files.get(f"{split}.labels", found.files[split]), empty, "rows without labels")
            writer.matrix(f"{split}.labels", matrix)
            if filter_file := found.files.get(f"{split}.filter"):
                writer.matrix(f"{split}.filter", read_filter(filter_file, *matrix.shape))
        return {
            "layout": found.layout,
            "files": [path.relative_to(raw).as_posix() for path in found.files.values()],
            "filter_files": [found.files[role].name for role in _FILTERS if role in found.files],
            "warnings": warnings,
        }


def _write_json(
    card: DatasetCard, files: dict[str, Path], writer: DatasetWriter, warnings: list[str]
) -> Iterator[tuple[str, csr_array]]:
    """Write all texts; yield (split, matrix of positives) for each split."""
    path = files["labels"]
    if path.name.lower().startswith(_LABEL_NAMES.lower()):
        labels = _write_numbered_labels(path, writer, warnings, named=True)
    else:
        uids: list[str | None] = []
        with writer.texts("labels.text") as texts, writer.texts("labels.id") as ids:
            for _, found in json_documents(path, card.recipe_of_labels, texts, warnings):
                uids += found
            ids.extend_strings(unique_ids(uids))
        labels = len(uids)
        _require_rows(path, labels)
    for split in SPLITS:
        builder, repeats = PatternBuilder(labels), 0
        with writer.texts(f"{split}.text") as texts:
            for rows, _ in json_documents(files[split], card.text, texts, warnings):
                repeats += builder.extend(*targets(rows, labels))
        warn(warnings, files[split], repeats, "labels repeated within a row, kept once")
        matrix = builder.finish()
        _require_rows(files[split], matrix.shape[0])
        yield split, matrix


def _write_text(
    card: DatasetCard, files: dict[str, Path], writer: DatasetWriter, warnings: list[str]
) -> Iterator[tuple[str, csr_array]]:
    """Write all texts; yield (split, matrix of positives) for each split."""
    labels = _write_numbered_labels(files["labels"], writer, warnings)
    for split in SPLITS:
        rows = line_documents(files[split], partial(writer.texts, f"{split}.text"), warnings)
        _require_rows(files[split], rows)
        path = files[f"{split}.labels"]
        matrix = read_labels(path)
        for name, count, what, promised in (
            (files[split].name, rows, "rows", matrix.shape[0]),
            (files["labels"].name, labels, "labels", matrix.shape[1]),
        ):
            if count != promised:
                raise DataError(f"{promised:,} {what} here, but {name} has {count:,} lines", path, 1)
        yield split, matrix


def _write_numbered_labels(path: Path, writer: DatasetWriter, warnings: list[str], *, named: bool = False) -> int:
    """Write label texts, one per line, with line numbers from 0 as ids; return the number of labels."""
    labels = line_documents(path, partial(writer.texts, "labels.text"), warnings, named=named)
    _require_rows(path, labels)
    with writer.texts("labels.id") as ids:
        ids.extend_strings(list(map(str, range(labels))))
    return labels


def _require_rows(path: Path, rows: int) -> None:
    if not rows:
        raise DataError("the file is empty", path)


def file_metadata(paths: Iterable[Path], raw: Path) -> list[list[str | int]]:
    """Return [relative name, size in bytes, modification time in ns] of each file, sorted; files are not read."""
    return sorted([path.relative_to(raw).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in paths)


def _require_files(card: DatasetCard, raw: Path) -> RawFiles:
    found = find_files(raw)
    if found is None:
        raise MissingDataError(missing_message(card, raw))
    return found


def find_files(raw: Path) -> RawFiles | None:
    """Return the files of a dataset at or below `raw`; None if no folder has label, train and test texts."""
    for folder in _folders(raw):
        for layout, names in _TEXTS.items():
            files = {role: path for role, name in names.items() if (path := _find([folder], name))}
            if layout == "json" and "labels" not in files and (names_file := _find([folder], _LABEL_NAMES)):
                files = {"labels": names_file, **files}
            # sparse label and filter files often stand one level above the texts
            around = [folder, *(parent for parent in folder.parents if parent.is_relative_to(raw))]
            if layout == "text":
                files |= {role: path for role, name in _LABELS.items() if (path := _find(around, name))}
            if len(files) == len(names) + (len(_LABELS) if layout == "text" else 0):
                filters = {role: path for role, names in _FILTERS.items() if (path := _find(around, *names))}
                return RawFiles(layout, files | filters)
    return None


def _folders(raw: Path) -> Iterator[Path]:
    """Yield the folders that may hold the texts, nearest to `raw` first."""

    def inside(folder: Path) -> list[Path]:
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return [path for path in paths if path.is_dir() and not path.name.startswith((".", "__"))]

    yield raw
    yield from inside(raw)
    for folder in inside(raw):
        yield from (path for path in inside(folder) if path.name.lower() in ("raw", "raw_data"))


def _find(folders: list[Path], *names: str) -> Path | None:
    """Return a file of one of these names, plain before gzip, from the first folder that has one; None if absent."""
    for folder in folders:
        by_name = {path.name.lower(): path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
        for name in names:
            for candidate in (name.lower(), f"{name.lower()}.gz"):
                if candidate in by_name and by_name[candidate].is_file():
                    return by_name[candidate]
    return None


def missing_message(card: DatasetCard, raw: Path, *, links: bool = True) -> str:
    """Return a message: what the dataset is, which files go where, how to obtain them, and what works without it.

    `links=False` leaves out the published links, if they have just been tried.
    """
    counts = {"train rows": card.statistics.train, "test rows": card.statistics.test, "labels": card.statistics.labels}
    sizes = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    text_names = [*_TEXTS["text"].values(), *_LABELS.values()]
    wanted = [*_TEXTS["json"].values(), *text_names, *(name for names in _FILTERS.values() for name in names)]
    there = sorted({path.name for name in wanted if (path := _find(list(_folders(raw)), name))})
    lines = [
        f"{card.name} is not on this machine: {card.title}" + (f" ({sizes})" if sizes else ""),
        f"Place its files in {raw} (or in one folder inside it), either",
        f"  {', '.join(f'{name}.gz' for name in _TEXTS['json'].values())}   (JSON lines, as downloaded), or",
        f"  {', '.join(text_names)}   (one text per line, and sparse label files)",
        f"and beside them {' and '.join(names[0] for names in _FILTERS.values())}.",
        f"Found so far: {', '.join(there) or 'none of them'}.",
    ]
    if card.obtain:
        lines += ["How to obtain them:", *(f"  {line}" for line in card.obtain.strip().splitlines())]
    if card.downloads and links:
        lines += ["Published links:", *(f"  {link.url}  {link.contains}".rstrip() for link in card.downloads)]
        lines.append(f"To try them: python -m harness data fetch {card.name}")
    if not card.obtain and not card.downloads:
        lines.append("A folder of texts of your own has train.jsonl, test.jsonl and labels.jsonl instead:")
        lines.append("  python -m harness data import FOLDER --name NAME")
    lines.append(f"Afterwards: python -m harness data check {card.name}")
    lines.append("Without a download: lf-pydocstitles works at once, lf-debiantitles on a Debian machine.")
    return "\n".join(lines)


def json_documents(
    path: Path, recipe: Recipe, column: RaggedWriter, warnings: list[str]
) -> Iterator[tuple[JsonRows, list[str | None]]]:
    """Write the text of every row into `column`; yield the rows of each chunk with their uids, None where one lacks.

    Faults that leave the row usable are mended and counted in `warnings`.
    """
    hashes, empty = [np.zeros(0, np.int64)], 0
    nameless: list[int] = []
    mended: list[int] = []
    with progress(f"reading {path.name}") as advance:
        for rows in json_chunks(path, mended):
            texts = plain_texts(_texts(rows, recipe))
            empty += count_blank(texts)
            column.extend_strings(texts)
            uids = [None if uid is None else str(uid) for uid in rows.column("uid", str, int, default=None)]
            nameless += [line for line, uid in enumerate(uids, rows.first) if uid is None]
            hashes.append(np.fromiter((hash(uid) for uid in uids if uid is not None), np.int64))
            yield rows, uids
            advance(len(rows))
    warn(warnings, path, empty, "empty texts")
    warn_of_lines(warnings, path, mended, HALVES)
    warn_of_lines(warnings, path, nameless, "rows without `uid`")
    warn_of_lines(warnings, path, _repeated_uids(path, np.concatenate(hashes)), "rows with the `uid` of an earlier one")


def warn_of_lines(warnings: list[str], path: Path, lines: list[int], what: str) -> None:
    """Add a warning about lines of a file to `warnings`, with their number and the first; none if there are none."""
    if lines:
        warn(warnings, path, len(lines), f"{what} (first: line {lines[0]:,})")


def unique_ids(uids: list[str | None]) -> list[str]:
    """Return uids with one made of its line for every row that has none, or that of an earlier row."""
    taken = {uid for uid in uids if uid is not None}
    if len(taken) == len(uids):
        return [uid for uid in uids if uid is not None]
    seen, made = set[str](), list[str]()
    for line, uid in enumerate(uids, 1):
        name = f"line {line}" if uid is None else uid
        if uid is None or uid in seen:
            name = name if uid is None else f"{uid} (line {line})"
            while name in taken:
                name += "'"
            taken.add(name)
        seen.add(name)
        made.append(name)
    return made


def _texts(rows: JsonRows, recipe: Recipe) -> list[str]:
    titles: list[str] = rows.column("title", str)
    if recipe == "title":
        return titles
    contents: list[str] = rows.column("content", str, default="")
    return [
        f"{title} {content}" if title and content else title or content
        for title, content in zip(titles, contents, strict=True)
    ]


def plain_texts(texts: list[str]) -> list[str]:
    """Return texts with NUL characters replaced by spaces: tokenisers and terminals disagree about them."""
    return [text.replace("\0", " ") for text in texts] if any("\0" in text for text in texts) else texts


def _repeated_uids(path: Path, hashes: NDArray[np.int64]) -> list[int]:
    """Return the lines whose uid an earlier line has; the file is read again only if two 8-byte hashes are equal."""
    values, counts = np.unique(hashes, return_counts=True)
    suspects = set(values[counts > 1].tolist())
    seen, lines = set[str](), list[int]()
    for rows in json_chunks(path, []) if suspects else ():
        for line, uid in enumerate(rows.column("uid", str, int, default=None), rows.first):
            if uid is not None and hash(str(uid)) in suspects:
                lines += [line] if str(uid) in seen else []
                seen.add(str(uid))
    return lines


def targets(rows: JsonRows, labels: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many positives each row of a chunk has [rows], and all of them [pairs]; relevance 0 is dropped."""
    lengths, items = rows.lists("target_ind", int)
    if items and not (0 <= min(items) and max(items) < labels):
        row, label = _first(rows, "target_ind", lambda item: not 0 <= item < labels)
        raise rows.fault(row, f"label {label} in `target_ind` is out of range: there are {labels:,}, counted from 0")
    indices = np.array(items, np.int64)
    if not any("target_rel" in row for row in rows.rows):
        return lengths, indices
    relevance_lengths, values = rows.lists("target_rel", int, float)
    if (lengths != relevance_lengths).any():
        row = int(np.flatnonzero(lengths != relevance_lengths)[0])
        raise rows.fault(
            row, f"{lengths[row]} labels in `target_ind` but {relevance_lengths[row]} values in `target_rel`"
        )
    relevances = np.array(values, np.float64)
    if (relevances < 0).any():
        row, value = _first(rows, "target_rel", lambda item: item < 0)
        raise rows.fault(row, f"`target_rel` holds {value}; a relevance cannot be negative")
    positive = relevances > 0
    before = np.concatenate([[0], np.cumsum(positive)])
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return np.diff(before[bounds]), indices[positive]


def _first(rows: JsonRows, key: str, wrong: Callable[[float], bool]) -> tuple[int, float]:
    return next((i, item) for i, row in enumerate(rows.rows) for item in row[key] if wrong(item))


def line_documents(
    path: Path, open_column: Callable[[], RaggedWriter], warnings: list[str], *, named: bool = False
) -> int:
    """Write every line of a text file as one document; return the number of documents.

    Args:
        path: The text file.
        open_column: Opens the column, empty; it is called again if the file turns out not to be UTF-8.
        warnings: List to which warnings about the file are added.
        named: Whether lines have the form `number->name`, of which only the name is written.
    """
    try:
        return _copy_lines(path, open_column(), "utf-8", warnings, named)
    except UnicodeDecodeError as error:
        warnings.append(f"{path.name}: read as latin-1, because {error.reason} is not UTF-8")
        return _copy_lines(path, open_column(), "latin-1", warnings, named)


def _copy_lines(path: Path, column: RaggedWriter, encoding: str, warnings: list[str], named: bool) -> int:
    total = empty = halves = 0
    with column, progress(f"reading {path.name}") as advance:
        for first, chunk in line_chunks(path):
            if encoding == "utf-8" and b"\xed" in chunk:
                chunk, found = HALF_CHARACTER.subn(UNKNOWN_CHARACTER.encode(), chunk)
                halves += found
            try:
                text = chunk.decode(encoding).encode() if encoding != "utf-8" or not chunk.isascii() else chunk
            except UnicodeDecodeError as error:
                error.reason = f"line {first + chunk.count(10, 0, error.start)}"
                raise
            if named:
                text = _names(text, path, first)
            lengths, blank = _append_lines(column, text.replace(b"\0", b" ").replace(b"\r\n", b"\n"))
            total += len(lengths)
            empty += blank
            advance(len(lengths))
    warn(warnings, path, empty, "empty texts")
    warn(warnings, path, halves, "halves of characters (lone surrogates), now U+FFFD")
    return total


def _names(chunk: bytes, path: Path, first: int) -> bytes:
    """Return lines `number->name` without `number->`."""
    lines = chunk.decode().split("\n")[:-1]
    for number, line in enumerate(lines, first):
        if "->" not in line:
            raise DataError("expected number->name", path, number)
    return "".join(line.partition("->")[2].strip() + "\n" for line in lines).encode()


def _append_lines(column: RaggedWriter, text: bytes) -> tuple[NDArray[np.int64], int]:
    """Append whole lines; return their lengths in bytes and how many are blank."""
    values = np.frombuffer(text, np.uint8)
    newline = values == ord("\n")
    offsets = np.concatenate([[0], np.cumsum(np.diff(np.flatnonzero(newline), prepend=-1) - 1)])
    lines = Texts(values[~newline], offsets)
    column.extend(lines.values, lines.lengths)
    return lines.lengths, int((row_hashes(lines) == 0).sum())


def warn(warnings: list[str], path: Path, count: int, what: str) -> None:
    """Add a warning about a file to `warnings` if `count` is not 0."""
    if count:
        warnings.append(f"{path.name}: {count:,} {what}")
