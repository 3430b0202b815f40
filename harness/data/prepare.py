"""Preparing a dataset: raw files are parsed once into a folder of arrays.

A source is an object with two methods, registered in `SOURCES` under the card's `source:` word:

    fingerprint(card, raw) -> dict        identifies the raw data; changes when the raw data does
    write(card, raw, writer) -> dict      writes everything with a `DatasetWriter`, returns provenance

`prepare` keys the prepared folder by that fingerprint, so an unchanged source is never parsed twice.
"""

import hashlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array

from harness.data import Dataset
from harness.data.card import DatasetCard, find_card
from harness.data.equal import equal_rows, row_hashes
from harness.data.ragged import RaggedWriter, Texts
from harness.errors import DataError, UserError
from harness.io.arrays import load_array, save_array
from harness.io.files import MANIFEST, build_once, checked_name, home, read_manifest, sha256_file, sha256_json
from harness.registry import Registry

FORMAT = 1
"""Version of the prepared form; raised whenever the same raw data would give different bytes."""

COLUMNS = ("train.text", "test.text", "labels.text", "labels.id")
MATRICES = ("train.labels", "test.labels", "train.filter", "test.filter")


class Source(Protocol):
    """A kind of raw data; see the module docstring."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return JSON values that identify the raw data without reading all of it."""
        ...

    def write(self, card: DatasetCard, raw: Path, writer: "DatasetWriter") -> dict[str, Any]:
        """Write all texts and matrices; return the provenance (versions, parsed files, warnings)."""
        ...


SOURCES: Registry[Source] = Registry("data source")
for _name, _target, _summary in (
    ("repository", "repository:RepositorySource", "files of the Extreme Classification Repository"),
    ("jsonl", "jsonl:JsonlSource", "a user's folder of JSON lines"),
    ("pydocs", "pydocs:PydocsSource", "See Also sections of installed Python libraries"),
    ("debian", "debian:DebianSource", "package relations from apt metadata"),
    ("wordnet", "wordnet:WordnetSource", "related synsets of WordNet"),
    ("manpages", "manpages:ManpagesSource", "SEE ALSO sections of manual pages"),
    ("debtags", "debtags:DebtagsSource", "tags of Debian packages"),
    ("synthetic", "synthetic:SyntheticSource", "generated, any size"),
):
    SOURCES.register(_name, f"harness.data.sources.{_target}", _summary)


class DatasetWriter:
    """Writes the texts and matrices of a dataset into its prepared folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def texts(self, column: str) -> RaggedWriter:
        """Return a writer of one text column, named in `COLUMNS`; use as a context manager."""
        assert column in COLUMNS, column
        return RaggedWriter(self._folder, column, np.uint8)

    def matrix(self, name: str, matrix: csr_array) -> None:
        """Store the nonzero pattern of a [rows, L] matrix, named in `MATRICES`; its indices are sorted in place."""
        assert name in MATRICES, name
        matrix.sum_duplicates()
        save_array(self._folder / f"{name}.indptr.npy", matrix.indptr.astype(np.int64))
        save_array(self._folder / f"{name}.indices.npy", matrix.indices.astype(np.int32))

    def finish(self) -> dict[str, Any]:
        """Check that the parts match each other; return digest and measured statistics for the manifest."""
        columns = {name: Texts.load(self._folder, name) for name in COLUMNS}
        labels = len(columns["labels.text"])
        if len(columns["labels.id"]) != labels:
            raise DataError(f"{labels:,} label texts but {len(columns['labels.id']):,} label ids")
        if not labels:
            raise DataError("the dataset has no labels")
        matrices: dict[str, csr_array] = {}
        for name in MATRICES:
            rows = len(columns[name.split(".")[0] + ".text"])
            if name.endswith(".filter") and not (self._folder / f"{name}.indptr.npy").exists():
                self.matrix(name, empty_pattern(rows, labels))
            matrices[name] = load_matrix(self._folder, name, labels)
            if matrices[name].shape[0] != rows:
                split, what = name.split(".")
                raise DataError(f"{split}: {rows:,} texts but {matrices[name].shape[0]:,} rows of {what}")
        # a hash of the content alone, so that equal data under any name has an equal digest
        digest = hashlib.sha256(f"prepared-{FORMAT}".encode())
        for path in sorted(self._folder.glob("*.npy")):
            digest.update(f"{path.name} {sha256_file(path)}\n".encode())
        figures = {**statistics(columns, matrices), "test_rows_with_a_train_text": repeated_test_rows(columns)}
        return {"digest": digest.hexdigest(), "statistics": figures}


def empty_pattern(rows: int, labels: int) -> csr_array:
    """Return a [rows, L] matrix without entries."""
    parts = (np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(rows + 1, np.int32))
    return csr_array(parts, shape=(rows, labels))


def load_matrix(folder: Path, name: str, labels: int) -> csr_array:
    """Return a stored [rows, L] matrix as a CSR array of ones; `DataError` if it is damaged."""
    indptr, indices = (load_array(folder / f"{name}.{part}.npy", 1, "i") for part in ("indptr", "indices"))
    if not len(indptr) or indptr[0] or indptr[-1] != len(indices) or (indptr[1:] < indptr[:-1]).any():
        raise DataError(f"no boundaries of rows of {len(indices):,} labels", folder / f"{name}.indptr.npy")
    if len(indices) and not (0 <= indices.min() and indices.max() < labels):
        raise DataError(
            f"label index {indices.max():,} in {name}, but there are {labels:,} labels (0 to {labels - 1:,})"
        )
    ones = np.ones(len(indices), np.float32)
    if len(indices) < 2**31:
        indptr = indptr.astype(np.int32)  # scipy would otherwise widen the indices to int64
    return csr_array((ones, indices, indptr), shape=(len(indptr) - 1, labels))


def statistics(columns: dict[str, Texts], matrices: dict[str, csr_array]) -> dict[str, float]:
    """Return the measured statistics of a dataset, those that cards publish included."""
    train, test = matrices["train.labels"], matrices["test.labels"]
    used = np.bincount(train.indices, minlength=train.shape[1])
    return {
        "train": train.shape[0],
        "test": test.shape[0],
        "labels": train.shape[1],
        "labels_per_row": train.nnz / max(train.shape[0], 1),
        "rows_per_label": train.nnz / max(train.shape[1], 1),
        "words_per_row": count_words(columns["train.text"]) / max(train.shape[0], 1),
        "words_per_label": count_words(columns["labels.text"]) / max(train.shape[1], 1),
        "labels_per_test_row": test.nnz / max(test.shape[0], 1),
        "train_rows_without_labels": int((np.diff(train.indptr) == 0).sum()),
        "test_rows_without_labels": int((np.diff(test.indptr) == 0).sum()),
        "labels_without_train_rows": int((used == 0).sum()),
        "labels_without_text": int((row_hashes(columns["labels.text"]) == 0).sum()),
        "train_filter_pairs": matrices["train.filter"].nnz,
        "test_filter_pairs": matrices["test.filter"].nnz,
        "test_filter_depth": int(np.diff(matrices["test.filter"].indptr).max(initial=0)),
    }


def repeated_test_rows(columns: dict[str, Texts]) -> int:
    """Return how many test rows have a text that a train row has too; blank ones are left out."""
    train, test = columns["train.text"], columns["test.text"]
    return len(equal_rows(train, row_hashes(train), test, row_hashes(test))[1])


_SOLID_BYTE = ~np.isin(np.arange(256), list(b" \t\n\v\f\r"))
"""Whether each byte value is not ASCII whitespace, [256]."""


def count_words(texts: Texts, block: int = 2**22) -> int:
    """Return the number of words: runs of bytes within a row that are not ASCII whitespace.

    A word starts at a byte that is not whitespace and follows whitespace or the start of a row. Bytes are read in
    blocks.
    """
    words, starts = 0, np.unique(texts.offsets[:-1])
    for begin in range(0, len(texts.values), block):
        solid = _SOLID_BYTE[texts.values[begin : begin + block]]
        behind = np.empty_like(solid)
        behind[0] = begin > 0 and _SOLID_BYTE[texts.values[begin - 1]]
        behind[1:] = solid[:-1]
        first, last = np.searchsorted(starts, (begin, begin + len(solid)))
        behind[starts[first:last] - begin] = False
        words += int(np.count_nonzero(solid & ~behind))
    return words


def raw_folder(card: DatasetCard) -> Path:
    """Return the folder in which a user places the files of a dataset."""
    return home() / "data" / checked_name("dataset", card.name)


def prepare(card: DatasetCard, raw: Path | None = None) -> tuple[Path, dict[str, Any]]:
    """Build the prepared folder of a dataset if it is absent; return it with its manifest."""
    raw = raw or raw_folder(card)
    source = SOURCES.get(card.source)()
    fingerprint = source.fingerprint(card, raw)
    recipe = {"text": card.text, "label_text": card.recipe_of_labels, "options": card.options}
    key = sha256_json({"format": FORMAT, "source": card.source, **recipe, **fingerprint})
    folder = home() / "cache" / "datasets" / f"{card.name}-{key[:16]}"

    def build(temporary: Path) -> dict[str, Any]:
        writer = DatasetWriter(temporary)
        provenance = source.write(card, raw, writer)
        return {**writer.finish(), "provenance": provenance, "fingerprint": fingerprint}

    return folder, build_once(folder, build)


def prepared_folders(name: str = "") -> dict[str, Path]:
    """Return the complete prepared folders of this workspace, by content digest; nothing is built.

    Args:
        name: Name of the dataset; empty for all.
    """
    folders = {}
    for path in sorted((home() / "cache" / "datasets").glob(f"{name or '*'}-*/{MANIFEST}")):
        manifest = read_manifest(path.parent)
        # the key behind the name has no dash, so `lf-a` does not match the folders of `lf-a-b`
        if manifest is not None and "digest" in manifest and name in ("", path.parent.name.rpartition("-")[0]):
            folders[str(manifest["digest"])] = path.parent
    return folders


def load_prepared(name_or_folder: str | Path, *, use_filter: bool = True, insist: bool = True) -> Dataset:
    """Load a dataset, see `harness.data.load`; `insist=False` accepts missing filter files that the card requires."""
    card, raw = resolve(name_or_folder)
    if insist and use_filter and card.filter == "required":
        _require_filter_files(card, raw)
    folder, manifest = prepare(card, raw)
    return opened(card, folder, manifest, use_filter)


def opened(card: DatasetCard, folder: Path, manifest: dict[str, Any], use_filter: bool) -> Dataset:
    """Return a prepared folder as a dataset; without `use_filter` its filters are empty."""
    columns = {name: Texts.load(folder, name) for name in COLUMNS}
    labels = len(columns["labels.text"])
    matrices = {name: load_matrix(folder, name, labels) for name in MATRICES}
    if not use_filter:
        for name in ("train.filter", "test.filter"):
            matrices[name] = empty_pattern(*matrices[name].shape)
    return Dataset(
        card=card,
        folder=folder,
        digest=manifest["digest"],
        metadata=manifest,
        train_text=columns["train.text"],
        test_text=columns["test.text"],
        label_text=columns["labels.text"],
        label_id=columns["labels.id"],
        train=matrices["train.labels"],
        test=matrices["test.labels"],
        train_filter=matrices["train.filter"],
        test_filter=matrices["test.filter"],
    )


def _require_filter_files(card: DatasetCard, raw: Path) -> None:
    """Raise if a required filter file is missing, before anything is parsed; the source reports other missing files."""
    from harness.data.sources.repository import find_files

    found = find_files(raw)
    if found is not None and not {"train.filter", "test.filter"} <= set(found.files):
        raise UserError(
            f"{card.name} needs its two filter files (filter_labels_train.txt and filter_labels_test.txt, or "
            f"trn_filter_labels.txt and tst_filter_labels.txt) in {raw}; without them scores are not comparable with "
            f"anybody's. To go on all the same: --no-filter"
        )


def resolve(name_or_folder: str | Path) -> tuple[DatasetCard, Path]:
    """Return card and raw folder for a card's name, for `synthetic:option=value,...`, or for a folder of files."""
    card, folder = find_card(name_or_folder), Path(name_or_folder)
    if isinstance(name_or_folder, Path) or "/" in name_or_folder:
        return card, folder.absolute()
    return card, raw_folder(card)
