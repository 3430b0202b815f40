"""Items that point at items: split, labels and filter pairs against a brute-force reading of their definition."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness.data.prepare import DatasetWriter
from harness.data.sources.links import Links, in_train, one_line, one_way_across_splits, split_links, write_linked
from harness.errors import DataError

Pairs = set[tuple[str, str]]


def make_links(pairs: list[tuple[str, str]], extra: tuple[str, ...] = ()) -> Links:
    names = sorted({name for pair in pairs for name in pair} | set(extra))
    ends = np.array([[names.index(a), names.index(b)] for a, b in pairs], dtype=np.int64).reshape(-1, 2)
    return Links(names, ends[:, 0], ends[:, 1])


def is_train(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < 0.70 * 2**64


def named(matrix: csr_array, rows: list[str], labels: list[str]) -> Pairs:
    coo = matrix.tocoo()
    return {(rows[i], labels[j]) for i, j in zip(coo.row.tolist(), coo.col.tolist(), strict=True)}


names = st.integers(0, 25).map(lambda number: f"item-{number}")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(names, names), max_size=80))
def test_split_equals_its_definition(pairs: list[tuple[str, str]]) -> None:
    """Also faults 45 and 46: no row without a label, no label without a train row."""
    links = make_links(pairs)
    split = split_links(links)
    given_pairs = {(a, b) for a, b in pairs if a != b}
    labels = sorted({b for a, b in given_pairs if is_train(a)})
    true = {(a, b) for a, b in given_pairs if b in labels}
    train, test = {p for p in true if is_train(p[0])}, {p for p in true if not is_train(p[0])}
    rows = {"train": sorted({a for a, _ in train}), "test": sorted({a for a, _ in test})}
    itself = {split_name: {(a, a) for a in rows[split_name] if a in labels} for split_name in rows}
    reverse = {(b, a) for a, b in train if b in rows["test"] and a in labels}

    assert [links.names[i] for i in split.label_items] == labels
    assert [links.names[i] for i in split.train_items] == rows["train"]
    assert [links.names[i] for i in split.test_items] == rows["test"]
    assert named(split.matrices["train.labels"], rows["train"], labels) == train
    assert named(split.matrices["test.labels"], rows["test"], labels) == test
    assert named(split.matrices["train.filter"], rows["train"], labels) == itself["train"]
    assert named(split.matrices["test.filter"], rows["test"], labels) == itself["test"] | (reverse - test)
    assert split.mutual_test_pairs == len(reverse & test)
    for matrix in split.matrices.values():
        assert set(matrix.data.tolist()) <= {1.0}


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(names, names), max_size=80))
def test_one_way_across_splits_leaves_nothing_mutual(pairs: list[tuple[str, str]]) -> None:
    """Of mutual pairs across the splits one direction stays, the same whatever else is there; all else stays."""
    found = one_way_across_splits(make_links(pairs))
    kept = {(found.names[a], found.names[b]) for a, b in zip(found.source, found.target, strict=True)}
    for a, b in set(pairs):
        if is_train(a) != is_train(b) and (b, a) in pairs:
            alone = one_way_across_splits(make_links([(a, b), (b, a)]))
            assert kept & {(a, b), (b, a)} == {(alone.names[alone.source[0]], alone.names[alone.target[0]])}
        else:
            assert (a, b) in kept
    assert kept <= set(pairs)
    assert split_links(found).mutual_test_pairs == 0


def test_one_way_across_splits_halves_the_pairs() -> None:
    pairs = [(f"left-{i}", f"right-{i}") for i in range(4000)]
    found = one_way_across_splits(make_links([*pairs, *((b, a) for a, b in pairs)]))
    trains = in_train(found.names)
    across = trains[found.source] != trains[found.target]
    to_train = trains[found.source[across]]
    assert abs(to_train.mean() - 0.5) < 5 * 0.5 / len(to_train) ** 0.5


def test_split_is_seventy_to_thirty_and_an_added_item_moves_no_other() -> None:
    items = [f"package-{number}" for number in range(20_000)]
    before = in_train(items)
    # five standard deviations of a binomial share
    assert abs(before.mean() - 0.70) < 5 * (0.7 * 0.3 / len(items)) ** 0.5
    after = in_train(["an-addition", *items])
    assert (after[1:] == before).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\0b", "a b"),
        ("\ufeffname\r\n\tand  more ", "name and more"),
        (" \n\t ", ""),
        ("שלום \u202b🙂", "שלום \u202b🙂"),
    ],
)
def test_one_line_survives_odd_text(text: str, expected: str) -> None:
    """fault 44"""
    assert one_line(text) == expected


def test_links_that_leave_no_test_row_are_an_error(tmp_path: Path) -> None:
    train = next(name for name in map(str, range(100)) if is_train(name))
    links = make_links([(train, "target")])
    with pytest.raises(DataError, match="1 train and 0 test rows"):
        write_linked(DatasetWriter(tmp_path), links, ["a", "b"], ["a", "b"])
