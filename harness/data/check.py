"""Check a prepared dataset against its card, its manifest and what evaluation assumes.

The result is a `CheckReport`, one row per check. A row fails (`differs`) if a published figure, a checksum or a rule is
broken; it is a `warning` if the data is odd but usable, and `unknown` if there is nothing to compare with. The best P@k
any method can reach is mean_i min(n_i, k) / k over rows with n_i reachable labels.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data import Dataset
from harness.data.equal import RowPairs, equal_rows, repeated_rows, row_hashes
from harness.data.prepare import COLUMNS, MATRICES, raw_folder, statistics
from harness.data.ragged import Texts
from harness.errors import DataError, UserError
from harness.io.files import sha256_file, verified_manifest
from harness.io.progress import Advance, progress

Verdict = Literal["ok", "differs", "unknown", "warning"]
Figure: TypeAlias = float | int | str | None

LONG_TEXT_BYTES = 1_000_000
"""Texts longer than this are reported; they are more likely a parsing fault than a document."""


@dataclass(frozen=True)
class CheckRow:
    """Result of one check."""

    name: str
    expected: Figure
    """Value on the card or demanded by a rule; None if there is nothing to compare with."""
    measured: Figure
    verdict: Verdict
    remark: str = ""


@dataclass(frozen=True)
class CheckReport:
    """Results of all checks of a dataset."""

    dataset: str
    digest: str
    rows: tuple[CheckRow, ...]

    @property
    def ok(self) -> bool:
        """Whether no row has the verdict `differs`."""
        return all(row.verdict != "differs" for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values for --json."""
        return {**asdict(self), "ok": self.ok}


def check(dataset: Dataset, raw: Path | None = None, k: int = 5) -> CheckReport:
    """Compare a dataset with its card and look for faults in it.

    Args:
        dataset: The dataset as loaded, with its filter.
        raw: Folder of the files that `card.checksums` names; by default the one `data fetch` uses.
        k: Largest k of the metrics, for the ceiling of P@k and the retrieval depth that a full top-k needs.
    """
    if k < 1:
        raise UserError(f"k must be at least 1, not {k}")
    # texts are read twice: once for their hash in the manifest, once for their content
    size = sum(path.stat().st_size for path in dataset.folder.glob("*.npy"))
    size += sum(len(texts.values) for texts in _columns(dataset).values())
    with progress(f"checking {dataset.name}", size, "bytes") as advance:
        rows = [*_raw_files(dataset, raw or raw_folder(dataset.card)), _prepared_files(dataset, advance)]
        # offsets of a damaged file can point anywhere, so its texts are not read; likewise for faulty label ids
        if rows[-1].verdict == "ok":
            ids = [*_ids(dataset)]
            rows += [_pin(dataset), *ids]
            if all(row.verdict == "ok" for row in ids):
                rows = [*_figures(dataset), *rows, *_filters(dataset, k), *_coverage(dataset)]
            rows += _texts(dataset, advance)
    return CheckReport(dataset.name, dataset.digest, tuple(rows))


def _columns(dataset: Dataset) -> dict[str, Texts]:
    columns = (dataset.train_text, dataset.test_text, dataset.label_text, dataset.label_id)
    return dict(zip(COLUMNS, columns, strict=True))


def _none_of(name: str, count: int, remark: str, verdict: Verdict = "warning") -> CheckRow:
    """Return a row for a count that should be 0."""
    return CheckRow(name, 0, count, verdict if count else "ok", remark if count else "")


def _figures(dataset: Dataset) -> Iterator[CheckRow]:
    """Compare the card's statistics with the measured ones."""
    published = dataset.card.statistics
    matrices = (dataset.train, dataset.test, dataset.train_filter, dataset.test_filter)
    measured = statistics(_columns(dataset), dict(zip(MATRICES, matrices, strict=True)))
    for name in ("train", "test", "labels", "rows_per_label", "labels_per_row", "words_per_row", "words_per_label"):
        expected, found = getattr(published, name), measured[name]
        if expected is None:
            yield CheckRow(name, None, found, "unknown", "the card publishes no figure")
            continue
        slack = published.slack(name)
        distance = found / expected - 1
        remark = f"{distance:+.2%}, allowed {slack:.2%}" if found != expected else ""
        yield CheckRow(name, expected, found, "ok" if abs(distance) <= slack else "differs", remark)
    if dataset.card.propensity is None:
        yield CheckRow("propensity", None, None, "unknown", "the card has no A and B, so PSP is left out")


def _raw_files(dataset: Dataset, raw: Path) -> Iterator[CheckRow]:
    """Compare the card's checksums with the files in the raw folder."""
    for name, expected in sorted(dataset.card.checksums.items()):
        path = raw / name
        if not path.is_file():
            yield CheckRow(f"sha256 of {name}", expected, None, "unknown", f"no such file: {path}")
            continue
        found = sha256_file(path)
        remark = "" if found == expected else f"{path} is not the file the card describes; fetch it again"
        yield CheckRow(f"sha256 of {name}", expected, found, "differs" if remark else "ok", remark)


def _prepared_files(dataset: Dataset, advance: Advance) -> CheckRow:
    """Compare every file of the prepared folder with its hash in the manifest."""
    try:
        files = verified_manifest(dataset.folder, f"delete {dataset.folder} and prepare again")["files"]
    except (DataError, OSError) as error:
        return CheckRow("prepared files", None, None, "differs", f"the contents were not checked: {error}")
    advance(sum(file["bytes"] for file in files.values()))
    found = f"{len(files)} files match"
    return CheckRow("prepared files", found, found, "ok")


def _pin(dataset: Dataset) -> CheckRow:
    """Compare the content digest with the one on the card; other versions of the software read excuse a difference."""
    pin = dataset.card.pin
    if pin is None:
        return CheckRow("digest", None, dataset.digest, "unknown", "the card pins no digest")
    if pin.digest == dataset.digest:
        return CheckRow("digest", pin.digest, dataset.digest, "ok")
    here: dict[str, str] = dataset.metadata.get("provenance", {}).get("versions", {})
    changed = [
        f"{name} {then} -> {here.get(name, 'absent')}"
        for name, then in sorted(pin.made_with.items())
        if here.get(name) != then
    ]
    excused = bool(changed) or dataset.card.statistics.approximate
    remark = f"made with other versions: {', '.join(changed)}" if changed else "made with the same versions as the pin"
    return CheckRow("digest", pin.digest, dataset.digest, "warning" if excused else "differs", remark)


def _ids(dataset: Dataset) -> Iterator[CheckRow]:
    """Check the label indices of every matrix: in range, ascending and unique within a row."""
    for name in ("train", "test", "train_filter", "test_filter"):
        matrix: csr_array = getattr(dataset, name)
        indices, indptr = matrix.indices, matrix.indptr
        outside = int(np.count_nonzero((indices < 0) | (indices >= matrix.shape[1])))
        not_ascending = indices[1:] <= indices[:-1]
        first_of_row = indptr[(indptr > 0) & (indptr < len(indices))]
        not_ascending[first_of_row - 1] = False
        faults = outside + int(np.count_nonzero(not_ascending))
        yield _none_of(f"faulty label ids in {name}", faults, "out of range, unsorted or repeated in a row", "differs")


def _filters(dataset: Dataset, k: int) -> Iterator[CheckRow]:
    """Check filter pairs against true pairs; report the retrieval depth they require and the ceiling of P@k."""
    if dataset.card.filter == "required":
        found = dataset.metadata["provenance"].get("filter_files", [])
        yield CheckRow("filter files", 2, len(found), "ok" if len(found) == 2 else "differs", ", ".join(found))
    hit = {split: _overlap(getattr(dataset, split), getattr(dataset, f"{split}_filter")) for split in ("train", "test")}
    yield _none_of(
        "true test pairs that are filtered", int(hit["test"].sum()), "no method can score on these pairs", "differs"
    )
    yield _none_of("true train pairs that are filtered", int(hit["train"].sum()), "positives that are masked as well")
    pairs, deepest = dataset.test_filter.nnz, int(np.diff(dataset.test_filter.indptr).max(initial=0))
    remark = f"{pairs:,} test pairs are filtered, at most {deepest} in a row"
    yield CheckRow(f"retrieval depth for a full top-{k}", None, deepest + k, "ok", remark)
    reachable = np.diff(dataset.test.indptr) - hit["test"]
    for depth in sorted({1, min(3, k), k}):
        ceiling = 100 * float(np.minimum(reachable, depth).mean()) / depth if len(reachable) else 0.0
        yield CheckRow(f"ceiling of P@{depth}", None, round(ceiling, 2), "ok", "the best any method can reach")


def _overlap(left: csr_array, right: csr_array) -> NDArray[np.int64]:
    """Return how many pairs of each row are in both [rows, L] matrices, [rows]."""
    if not right.nnz:
        return np.zeros(left.shape[0], np.int64)
    return np.diff(csr_array(left.multiply(right)).indptr).astype(np.int64)


def _coverage(dataset: Dataset) -> Iterator[CheckRow]:
    """Check for rows without labels, and labels without train rows."""
    for split in ("train", "test"):
        empty = int((np.diff(getattr(dataset, split).indptr) == 0).sum())
        remark = "they count as 0 in P@k" if split == "test" else "they teach nothing"
        yield _none_of(f"{split} rows without labels", empty, remark)
    labels = dataset.train.shape[1]
    in_train = np.bincount(dataset.train.indices, minlength=labels) > 0
    in_test = np.bincount(dataset.test.indices, minlength=labels) > 0
    zero_shot = int((in_test & ~in_train).sum())
    remark = f"zero-shot: only their text can find them; {zero_shot:,} are answers in test"
    yield _none_of("labels without train rows", int((~in_train).sum()), remark)


def _texts(dataset: Dataset, advance: Advance) -> Iterator[CheckRow]:
    """Check for empty, blank, damaged, overlong and repeated texts."""
    columns = {"train": dataset.train_text, "test": dataset.test_text, "label": dataset.label_text}
    hashes = {}
    for name, texts in columns.items():
        hashes[name], lengths = row_hashes(texts), texts.lengths
        for what, mask in (
            (f"empty {name} texts", lengths == 0),
            (f"{name} texts of whitespace only", (lengths > 0) & (hashes[name] == 0)),
            (f"{name} texts with NUL bytes", _with_nul(texts)),
            (f"{name} texts above {LONG_TEXT_BYTES:,} bytes", lengths > LONG_TEXT_BYTES),
        ):
            yield _none_of(
                what, int(mask.sum()), f"first: {name} row {int(mask.argmax()) if len(mask) else 0} (counted from 0)"
            )
        advance(len(texts.values))
    both = equal_rows(columns["train"], hashes["train"], columns["test"], hashes["test"])
    yield _none_of("test texts that also stand in train", len(both[1]), _first_pair("test", "train", both))
    for name, texts in columns.items():
        if name != "test":
            copies = repeated_rows(texts, hashes[name])
            yield _none_of(f"{name} texts that repeat an earlier one", len(copies[1]), _first_pair(name, name, copies))


def _first_pair(name: str, other: str, pairs: RowPairs) -> str:
    earlier, later = pairs
    return f"first: {name} row {later[0]} equals {other} row {earlier[0]} (counted from 0)" if len(later) else ""


def _with_nul(texts: Texts) -> NDArray[np.bool_]:
    """Return whether each text has a NUL byte, [N]."""
    found = np.zeros(len(texts), np.bool_)
    for start, stop in texts.blocks(1 << 16, 1 << 22):
        bounds = texts.offsets[start : stop + 1]
        places = bounds[0] + np.flatnonzero(texts.values[bounds[0] : bounds[-1]] == 0)
        found[start + np.searchsorted(bounds, places, "right") - 1] = True
    return found
