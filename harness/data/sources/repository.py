"""Datasets in the formats of the Extreme Classification Repository, wherever in a folder a person unpacked them.

Layouts, each plain or gzip, upper or lower case:

    lbl.json trn.json tst.json                           JSON lines with texts and labels together
    Yf.txt   trn.json tst.json                           the same, label names in lines of the form number->name
    Y.txt trn_X.txt tst_X.txt trn_X_Y.txt tst_X_Y.txt    one text per line, labels in sparse files beside or above them

Filter files are looked for under both of their published names. The folder may be the dataset's own, one folder inside
it, or a `raw` or `raw_data` folder inside that.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from harness.data.card import DatasetCard
from harness.data.prepare import DatasetWriter
from harness.data.sources.documents import json_documents, label_names, label_texts, line_documents, targets, warn
from harness.data.sources.pattern import PatternBuilder
from harness.data.sources.sparse_text import read_filter, read_labels
from harness.errors import DataError, MissingDataError

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
    """The files of one dataset by what they hold: `labels`, `train`, `test`, `train.labels`, `train.filter` ..."""

    layout: str
    files: dict[str, Path]


class RepositorySource:
    """Reads the repository's files; see `harness.data.prepare.Source`."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Relative name, size and modification time of every file that is read."""
        return {"files": file_facts(_located(card, raw).files.values(), raw)}

    def write(self, card: DatasetCard, raw: Path, writer: DatasetWriter) -> dict[str, Any]:
        """Streams texts, labels and filters into the prepared folder."""
        found = _located(card, raw)
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
    """Writes all texts; yields the label matrix of each split."""
    labels, path = 0, files["labels"]
    with writer.texts("labels.text") as texts, writer.texts("labels.id") as ids:
        named = path.name.lower().startswith(_LABEL_NAMES.lower())
        chunks = label_names(path, texts, warnings) if named else label_texts(path, card.text, texts, warnings)
        for uids in chunks:
            ids.extend_strings(uids)
            labels += len(uids)
    _refuse_no_rows(path, labels)
    for split in SPLITS:
        builder, repeats = PatternBuilder(labels), 0
        with writer.texts(f"{split}.text") as texts:
            for rows, _ in json_documents(files[split], card.text, texts, warnings):
                repeats += builder.extend(*targets(rows, labels))
        warn(warnings, files[split], repeats, "labels repeated within a row, kept once")
        matrix = builder.finish()
        _refuse_no_rows(files[split], matrix.shape[0])
        yield split, matrix


def _write_text(
    card: DatasetCard, files: dict[str, Path], writer: DatasetWriter, warnings: list[str]
) -> Iterator[tuple[str, csr_array]]:
    """Writes all texts, label ids being line numbers from 0; yields the label matrix of each split."""
    labels = line_documents(files["labels"], partial(writer.texts, "labels.text"), warnings)
    _refuse_no_rows(files["labels"], labels)
    with writer.texts("labels.id") as ids:
        ids.extend_strings(list(map(str, range(labels))))
    for split in SPLITS:
        rows = line_documents(files[split], partial(writer.texts, f"{split}.text"), warnings)
        _refuse_no_rows(files[split], rows)
        path = files[f"{split}.labels"]
        matrix = read_labels(path)
        for name, count, what, promised in (
            (files[split].name, rows, "rows", matrix.shape[0]),
            (files["labels"].name, labels, "labels", matrix.shape[1]),
        ):
            if count != promised:
                raise DataError(f"{promised:,} {what} here, but {name} has {count:,} lines", path, 1)
        yield split, matrix


def _refuse_no_rows(path: Path, rows: int) -> None:
    if not rows:
        raise DataError("the file is empty", path)


def file_facts(paths: Iterable[Path], raw: Path) -> list[list[str | int]]:
    """What identifies files without reading them: [relative name, size, modification time in ns], sorted."""
    return sorted([path.relative_to(raw).as_posix(), path.stat().st_size, path.stat().st_mtime_ns] for path in paths)


def _located(card: DatasetCard, raw: Path) -> RawFiles:
    found = find_files(raw)
    if found is None:
        raise MissingDataError(missing_message(card, raw))
    return found


def find_files(raw: Path) -> RawFiles | None:
    """The files of a dataset at or below `raw`, or None if no folder holds a whole set of texts."""
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
    """Folders that may hold the texts, nearest first."""
    yield raw
    inner = _subfolders(raw)
    yield from inner
    for folder in inner:
        yield from (path for path in _subfolders(folder) if path.name.lower() in ("raw", "raw_data"))


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))


def _find(folders: list[Path], *names: str) -> Path | None:
    """The first file of one of these names, plain before gzip, in the first folder that has one."""
    for folder in folders:
        by_name = {path.name.lower(): path for path in sorted(folder.iterdir())} if folder.is_dir() else {}
        for name in names:
            for candidate in (name.lower(), f"{name.lower()}.gz"):
                if candidate in by_name and by_name[candidate].is_file():
                    return by_name[candidate]
    return None


def missing_message(card: DatasetCard, raw: Path, *, links: bool = True) -> str:
    """One screen: what the dataset is, which files go where, how to obtain them, and what works without.

    `links=False` leaves out the published links, for when they have just been tried.
    """
    counts = {"train rows": card.statistics.train, "test rows": card.statistics.test, "labels": card.statistics.labels}
    sizes = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    text_names = [*_TEXTS["text"].values(), *_LABELS.values()]
    filter_names = [name for names in _FILTERS.values() for name in names]
    wanted = [*_TEXTS["json"].values(), *text_names, *filter_names]
    there = sorted({path.name for name in wanted if (path := _find(list(_folders(raw)), name))})
    lines = [
        f"{card.name} is not on this machine: {card.title}" + (f" ({sizes})" if sizes else ""),
        f"Place its files in {raw} (or in one folder inside it), either",
        f"  {', '.join(f'{name}.gz' for name in _TEXTS['json'].values())}   (JSON lines, as downloaded), or",
        f"  {', '.join(text_names)}   (one text per line, and sparse label files)",
        f"and beside them {' and '.join(names[0] for names in _FILTERS.values())}.",
        f"Found so far: {', '.join(there) or 'none of them'}.",
        *_where_from(card, links),
        f"Afterwards: python -m harness data check {card.name}",
        "Without a download: lf-pydocstitles works at once, lf-debiantitles on a Debian machine.",
    ]
    return "\n".join(lines)


def _where_from(card: DatasetCard, links: bool) -> Iterator[str]:
    if card.obtain:
        yield "How to obtain them:"
        yield from (f"  {line}" for line in card.obtain.strip().splitlines())
    if card.downloads and links:
        yield "Published links:"
        yield from (f"  {link.url}  {link.contains}".rstrip() for link in card.downloads)
        yield f"To try them: python -m harness data fetch {card.name}"
    if not card.obtain and not card.downloads:
        yield "A folder of texts of your own has train.jsonl, test.jsonl and labels.jsonl instead:"
        yield "  python -m harness data import FOLDER --name NAME"
