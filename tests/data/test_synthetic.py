"""Generated data: determinism, figures near the options, the planted answer, bounded memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness.data import load
from harness.data.card import DatasetCard, load_card
from harness.data.prepare import COLUMNS, MATRICES, DatasetWriter, count_words, load_matrix
from harness.data.ragged import Texts
from harness.data.sources.synthetic import (
    Params,
    SyntheticSource,
    World,
    parse_name,
    synthetic_card,
)
from harness.errors import UserError

ROOT = Path(__file__).parents[2]


class Built:
    """A generated dataset, read back."""

    def __init__(self, folder: Path, card: DatasetCard | None = None, **options: Any) -> None:
        folder.mkdir(exist_ok=True)
        writer = DatasetWriter(folder)
        SyntheticSource().write(card or synthetic_card(**options), folder, writer)
        metadata = writer.finish()
        self.digest, self.figures = metadata["digest"], metadata["statistics"]
        self.columns = {name: Texts.load(folder, name) for name in COLUMNS}
        labels = len(self.columns["labels.text"])
        self.matrices = {name: load_matrix(folder, name, labels) for name in MATRICES}


def rows_of(matrix: csr_array) -> list[list[int]]:
    return [part.tolist() for part in np.split(matrix.indices, matrix.indptr[1:-1])]


def precision_at_1(built: Built, masked: bool) -> float:
    """Words of the text that a label owns, counted row by row; ties go to the smaller label id."""
    owners: dict[str, list[int]] = {}
    for label, text in enumerate(built.columns["labels.text"]):
        for word in text.split():
            owners.setdefault(word, []).append(label)
    truth, hidden = rows_of(built.matrices["test.labels"]), rows_of(built.matrices["test.filter"])
    hits = 0
    for text, answers, filtered in zip(built.columns["test.text"], truth, hidden, strict=True):
        score = np.zeros(len(built.columns["labels.text"]))
        for word in text.split():
            score[owners.get(word, [])] += 1
        if masked:
            score[filtered] = -1
        hits += int(score.argmax()) in answers
    return hits / len(truth)


def test_default_dataset_loads_and_is_the_pinned_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))
    dataset = load("synthetic")
    pin = load_card("synthetic").pin
    assert pin is not None
    assert dataset.train.shape == (2_000, 500)
    assert dataset.test.shape == (600, 500)
    assert dataset.label_id[7] == "007"
    if pin.made_with["numpy"] == np.__version__:
        assert dataset.digest == pin.digest


def test_same_seed_same_digest_whatever_the_name(tmp_path: Path) -> None:
    """fault 53."""
    card = synthetic_card(seed=5, train=60, test=20)
    renamed = card.model_copy(update={"name": "other"})
    digests = [Built(tmp_path / str(place), one).digest for place, one in enumerate((card, renamed))]
    assert digests[0] == digests[1] != Built(tmp_path / "c", seed=6, train=60, test=20).digest


def test_popularity_falls_with_the_zipf_exponent() -> None:
    for zipf in (0.5, 1.0, 1.3):
        rows, _ = World(Params(train=40_000, labels=4_000, labels_per_row=4, zipf=zipf)).rows("train", 0)
        counts = np.sort(np.bincount(rows.pairs(true=True)[1], minlength=4_000))[::-1]
        ranks = np.arange(20, 300)
        # every label is dealt to one row first, whatever its popularity
        slope = np.polyfit(np.log(ranks + 1), np.log(counts[ranks] - 1), 1)[0]
        assert slope == pytest.approx(-zipf, abs=0.1)


CAPPED = """
import resource, sys
from pathlib import Path
from harness.data.prepare import DatasetWriter
from harness.data.sources.synthetic import SyntheticSource, synthetic_card
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + 250_000_000
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
folder = Path(sys.argv[1])
writer = DatasetWriter(folder)
SyntheticSource().write(synthetic_card(train=40_000, test=8_000, labels=60_000), folder, writer)
print(writer.finish()["statistics"]["train"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
def test_memory_is_bounded(tmp_path: Path) -> None:
    """fault 37: 40,000 x 60,000 as a dense array of bytes would be 2.4 GB; a quarter of a gigabyte must do."""
    done = subprocess.run([sys.executable, "-c", CAPPED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "40000"


def test_figures_follow_the_options(tmp_path: Path) -> None:
    options = {"train": 20_000, "test": 8_000, "labels": 3_000, "labels_per_row": 4.5, "words": 12.0}
    built = Built(tmp_path, self_share=0.25, reciprocal_share=0.5, **options)
    figures, true_pairs = built.figures, built.matrices["test.labels"].nnz
    exact = {"train": 20_000, "test": 8_000, "labels": 3_000, "train_filter_pairs": 20_000 * 0.25}
    exact |= dict.fromkeys(("labels_without_train_rows", "train_rows_without_labels", "test_rows_without_labels"), 0)
    near = {"labels_per_row": 4.5, "labels_per_test_row": 4.5, "rows_per_label": 30, "words_per_row": 12}
    near["test_filter_pairs"] = 8_000 * 0.25 + 0.5 * true_pairs
    assert {name: figures[name] for name in exact} == exact
    assert {name: figures[name] for name in near} == pytest.approx(near, rel=0.03)


def test_counting_shared_words_finds_the_planted_labels(tmp_path: Path) -> None:
    clear = Built(tmp_path / "clear", noise=0.1)
    # chance is 3 labels of 500
    assert precision_at_1(clear, masked=True) > 0.7
    assert precision_at_1(clear, masked=False) < precision_at_1(clear, masked=True) - 0.05
    assert precision_at_1(Built(tmp_path / "noise", noise=1), masked=True) < 0.05


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_rows_hold_together_for_any_options(data: st.DataObject) -> None:
    labels = data.draw(st.integers(8, 60))
    params = Params(
        train=data.draw(st.integers(1, 150)),
        test=data.draw(st.integers(1, 50)),
        labels=labels,
        labels_per_row=data.draw(st.floats(1, labels / 4)),
        zipf=data.draw(st.floats(0, 4)),
        reciprocal_share=data.draw(st.floats(0, 1)),
        self_share=data.draw(st.floats(0, 1)),
        seed=data.draw(st.integers(0, 2**63 - 1)),
    )
    world = World(params)
    seen = np.zeros(labels, bool)
    for split, size in (("train", params.train), ("test", params.test)):
        rows, stream = world.rows(split, 0)  # type: ignore[arg-type]
        assert len(rows.counts) == size
        key = np.repeat(np.arange(size), rows.counts) * labels + rows.labels
        assert (np.diff(key) > 0).all()
        assert rows.labels.min() >= 0
        assert rows.labels.max() < labels
        counts, answers = rows.pairs(true=True)
        assert counts.min() >= 1
        if split == "train":
            seen[answers] = True
            assert rows.pairs(true=False)[0].max() <= 1
            assert len(rows.pairs(true=False)[1]) == int(params.train * params.self_share)
        blob, lengths = world.texts(split, rows, stream)  # type: ignore[arg-type]
        assert len(blob) == lengths.sum()
    assert seen.sum() >= params.covered


def test_too_few_pairs_leave_labels_without_rows(tmp_path: Path) -> None:
    """fault 46: zero-shot labels are counted."""
    built = Built(tmp_path, train=10, labels=400, labels_per_row=3)
    assert built.figures["labels_without_train_rows"] == 400 - 30
    assert np.diff(built.matrices["train.labels"].indptr).tolist() == [3] * 10


def test_name_with_options_is_a_card() -> None:
    card = parse_name("synthetic:train=2_200_000, labels=1300000,labels_per_row=22")
    assert card.options == {"train": 2_200_000, "labels": 1_300_000, "labels_per_row": 22.0}
    assert card.title == "synthetic:train=2200000,labels=1300000,labels_per_row=22.0"
    assert card.statistics.labels == 1_300_000
    assert parse_name(card.title) == card
    assert parse_name("synthetic:labels_per_row=22.0,labels=1300000,train=2200000") == card
    assert card.name.startswith("synthetic-")
    assert card.pin is None
    DatasetCard.model_validate(card.model_dump())
    assert parse_name("synthetic:train=2000") == parse_name("synthetic") == load_card("synthetic")
    assert parse_name("synthetic:seed=1").name != parse_name("synthetic:seed=2").name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic:label_per_row=3", "did you mean 'labels_per_row'"),
        ("synthetic:train", "'train' is not of the form option=value"),
        ("synthetic:train=1,train=2", "'train' is given twice"),
        ("synthetic:train=0", "train: Input should be"),
        ("synthetic:zipf=nan", "zipf: Input should be"),
        ("synthetic:labels_per_row=200", "labels=800 or more"),
        ("synthetic:signature=9,vocabulary=5", "vocabulary"),
        ("debian", "is not of the form synthetic:"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(name: str, message: str) -> None:
    """fault 65 for the options of generated data."""
    with pytest.raises(UserError) as caught:
        parse_name(name)
    assert message in str(caught.value)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.text("ab \t\n\v\f\r\x1cé\u00a0", max_size=12), max_size=20),
    block=st.integers(1, 40),
)
def test_words_are_counted_as_bytes_split_counts_them(rows: list[str], block: int) -> None:
    assert count_words(Texts.from_strings(rows), block) == sum(len(row.encode().split()) for row in rows)
