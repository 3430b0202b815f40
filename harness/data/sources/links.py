"""Building rows, labels and filter pairs from items that link to other items, such as packages.

An item is a document, and also a label if a train row links to it:

    train = {i : hash(name_i) < 0.70}                        adding an item leaves the split of others as it is
    labels = {j : some train row i has i -> j}, rows = {i : i still links to a label}
    train filter = {(i, i)},  test filter = {(i, i)} + {(j, i) : i -> j in train} - true test pairs

Dropping labels takes pairs from test rows only, and a dropped row takes no label with it, so one pass is a fixed point.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.pattern import from_pairs
from harness.data.prepare import DatasetWriter
from harness.errors import DataError

TRAIN_SHARE = 0.70

Ids = NDArray[np.int64]

# NUL and the other control characters become spaces; a byte order mark and soft hyphens vanish
_UNPRINTABLE: dict[int, str | None] = {**{code: " " for code in (*range(32), 127)}, 0xFEFF: None, 0x00AD: None}


@dataclass(frozen=True)
class Links:
    """Directed links between I named items."""

    names: list[str]
    """Names of the items, sorted and unique, [I]."""
    source: Ids
    """Index of the item that each link starts from, [E]."""
    target: Ids
    """Index of the item that each link leads to, [E]."""


@dataclass(frozen=True)
class Split:
    """Items that became rows and labels, and the four matrices between them."""

    train_items: Ids
    """Index of the item of every train row, [N]."""
    test_items: Ids
    """Index of the item of every test row, [M]."""
    label_items: Ids
    """Index of the item of every label, [L]."""
    matrices: dict[str, csr_array]
    """Positives and filter pairs of both splits, by the names that `DatasetWriter.matrix` takes."""
    mutual_test_pairs: int
    """Number of true test pairs whose reverse is a train pair: they stay true and are not filtered."""


def one_line(text: str) -> str:
    """Return `text` with every run of white space and control characters replaced by one space."""
    return " ".join(text.translate(_UNPRINTABLE).split())


def in_train(names: list[str]) -> NDArray[np.bool_]:
    """Return whether each item is in train, [I]: if the first 8 bytes of sha256(name), over 2^64, are below 0.70."""
    heads = b"".join(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8] for name in names)
    return np.frombuffer(heads, dtype=">u8") / 2.0**64 < TRAIN_SHARE


def without_frequent_targets(links: Links, share: float) -> tuple[Links, list[str]]:
    """Drop links to targets that more than `share` of all items link to; return links and dropped names, sorted."""
    items = len(links.names)
    pairs = np.unique(links.source * items + links.target)
    frequent = np.bincount(pairs % items, minlength=items) > share * items
    keep = ~frequent[links.target]
    dropped = [links.names[item] for item in np.flatnonzero(frequent)]
    return Links(links.names, links.source[keep], links.target[keep]), dropped


def one_way_across_splits(links: Links) -> Links:
    """Drop one of the links i -> j and j -> i, by a hash of both names, if one item is in train and the other in test.

    For relations that hold both ways: train would otherwise tell every such test pair. If i -> j stays in train, the
    test pair (j, i) is filtered; if j -> i stays in test, train does not know of it.
    """
    items = len(links.names)
    pairs = np.unique(links.source * items + links.target)
    source, target = np.divmod(pairs, items)
    trains = in_train(links.names)
    mutual = np.flatnonzero((trains[source] != trains[target]) & np.isin(target * items + source, pairs))
    ends = ((links.names[low], links.names[high]) for low, high in np.sort([source[mutual], target[mutual]], axis=0).T)
    to_train = [hashlib.sha256("\0".join(pair).encode("utf-8", "replace")).digest()[0] % 2 == 0 for pair in ends]
    keep = np.ones(len(pairs), bool)
    keep[mutual] = trains[source[mutual]] == np.array(to_train, bool)
    return Links(links.names, source[keep], target[keep])


def split_links(links: Links) -> Split:
    """Return rows, labels and filter pairs as the module docstring defines them."""
    items = len(links.names)
    others = links.source != links.target
    source, target = links.source[others], links.target[others]
    trains = in_train(links.names)

    is_label = np.zeros(items, bool)
    is_label[target[trains[source]]] = True
    kept = is_label[target]
    source, target = source[kept], target[kept]
    is_row = np.zeros(items, bool)
    is_row[source] = True

    label_items = np.flatnonzero(is_label)
    label_of = _positions(label_items, items)
    splits = {"train": np.flatnonzero(is_row & trains), "test": np.flatnonzero(is_row & ~trains)}
    matrices: dict[str, csr_array] = {}
    for name, rows in splits.items():
        row_of = _positions(rows, items)
        ours = row_of[source] >= 0
        shape = (len(rows), len(label_items))
        matrices[f"{name}.labels"] = from_pairs(row_of[source[ours]], label_of[target[ours]], shape)
        selves = np.flatnonzero(label_of[rows] >= 0)
        matrices[f"{name}.filter"] = from_pairs(selves, label_of[rows[selves]], shape)

    test_row_of = _positions(splits["test"], items)
    reverse = trains[source] & is_label[source] & (test_row_of[target] >= 0)
    true = matrices["test.labels"]
    reciprocal = from_pairs(test_row_of[target[reverse]], label_of[source[reverse]], true.shape)
    mutual = reciprocal.multiply(true)
    masked = matrices["test.filter"] + reciprocal - mutual
    masked.eliminate_zeros()
    matrices["test.filter"] = csr_array(masked)
    return Split(splits["train"], splits["test"], label_items, matrices, int(mutual.nnz))


def write_linked(writer: DatasetWriter, links: Links, row_text: list[str], label_text: list[str]) -> dict[str, Any]:
    """Split the links and write texts and matrices, with rows and labels in the order of their names.

    Args:
        writer: Writer of the prepared folder.
        links: Links between I items.
        row_text: Text of every item as a document, [I].
        label_text: Text of every item as a label, [I].

    Returns:
        Counts for the provenance.
    """
    split = split_links(links)
    if not len(split.train_items) or not len(split.test_items):
        raise DataError(
            f"{len(links.names):,} items with {len(links.source):,} links leave {len(split.train_items):,} train and "
            f"{len(split.test_items):,} test rows; both need at least one"
        )
    columns = {
        "train.text": (row_text, split.train_items),
        "test.text": (row_text, split.test_items),
        "labels.text": (label_text, split.label_items),
        "labels.id": (links.names, split.label_items),
    }
    for column, (strings, chosen) in columns.items():
        with writer.texts(column) as stream:
            stream.extend_strings([strings[item] for item in chosen.tolist()])
    for name, matrix in split.matrices.items():
        writer.matrix(name, matrix)
    return {
        "items": len(links.names),
        "links": len(links.source),
        "mutual_test_pairs": split.mutual_test_pairs,
    }


def _positions(chosen: Ids, items: int) -> Ids:
    """Return the index of every item within `chosen`, -1 if absent, [I]."""
    positions = np.full(items, -1, np.int64)
    positions[chosen] = np.arange(len(chosen))
    return positions
