"""The check of a dataset against its card: a clean one passes, and each fault planted on purpose is found."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from harness.data import Dataset, load
from harness.data.card import DatasetCard, Pin, Propensity, Statistics
from harness.data.check import CheckReport, CheckRow, check
from harness.data.prepare import COLUMNS, MATRICES, DatasetWriter, opened
from harness.errors import UserError
from harness.io.files import read_manifest, write_manifest

TRAIN = ["red apple", "green pear", "blue plum", "old oak"]
TEST = ["red pear", "green oak"]
LABELS = ["fruit", "tree", "colour"]
TRAIN_LABELS = [[0, 2], [0, 2], [0], [1]]
TEST_LABELS = [[0, 2], [1]]
EXACT = Statistics(train=4, test=2, labels=3, labels_per_row=1.5, rows_per_label=2.0, words_per_row=2.0)


def pattern(rows: Sequence[Sequence[int]], labels: int) -> csr_array:
    indices = np.array([label for row in rows for label in row], np.int32)
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    return csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(rows), labels))


def build(
    folder: Path,
    *,
    train: list[str] = TRAIN,
    test: list[str] = TEST,
    labels: list[str] = LABELS,
    train_labels: Sequence[Sequence[int]] = TRAIN_LABELS,
    test_labels: Sequence[Sequence[int]] = TEST_LABELS,
    train_filter: Sequence[Sequence[int]] | None = None,
    test_filter: Sequence[Sequence[int]] | None = None,
    versions: dict[str, str] | None = None,
    **card: Any,
) -> Dataset:
    folder.mkdir(exist_ok=True)
    writer = DatasetWriter(folder)
    ids = [str(label) for label in range(len(labels))]
    for column, strings in zip(COLUMNS, (train, test, labels, ids), strict=True):
        with writer.texts(column) as stream:
            stream.extend_strings(strings)
    for name, rows in zip(MATRICES, (train_labels, test_labels, train_filter, test_filter), strict=True):
        if rows is not None:
            writer.matrix(name, pattern(rows, len(labels)))
    write_manifest(folder, {**writer.finish(), "provenance": {"versions": versions or {}}}, sealed=True)
    settings = {"propensity": Propensity(a=0.55, b=1.5), "statistics": EXACT, **card}
    made = DatasetCard(name="tiny", title="t", summary="s", source="jsonl", **settings)
    return opened(made, folder, read_manifest(folder) or {}, use_filter=True)


def row(report: CheckReport, name: str) -> CheckRow:
    (found,) = [row for row in report.rows if row.name == name]
    return found


def unusual(report: CheckReport) -> dict[str, str]:
    return {row.name: row.verdict for row in report.rows if row.verdict not in ("ok", "unknown")}


def pinned(dataset: Dataset, **update: Any) -> DatasetCard:
    return dataset.card.model_copy(update={"pin": Pin(digest=dataset.digest), **update})


def test_generated_data_passes_and_the_report_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path))
    report = check(load("synthetic"))
    assert report.ok
    assert not unusual(report) or set(unusual(report)) == {"digest"}
    values = json.loads(json.dumps(report.as_dict(), allow_nan=False))
    assert values["dataset"] == "synthetic"
    assert values["ok"] is True
    assert values["rows"][0] == {"name": "train", "expected": 2000, "measured": 2000, "verdict": "ok", "remark": ""}


def test_a_wrong_figure_is_found(tmp_path: Path) -> None:
    dataset = build(tmp_path)
    for name in ("train", "test", "labels", "labels_per_row", "rows_per_label", "words_per_row"):
        figure = getattr(EXACT, name)
        card = dataset.card.model_copy(update={"statistics": EXACT.model_copy(update={name: figure + 1})})
        report = check(replace(dataset, card=card))
        assert unusual(report) == {name: "differs"}
        assert (row(report, name).expected, row(report, name).measured) == (figure + 1, figure)


def test_one_flipped_bit_is_found(tmp_path: Path) -> None:
    """fault 68."""
    dataset = build(tmp_path)
    for name in ("train.text.values.npy", "labels.text.offsets.npy", "test.labels.indices.npy"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        report = check(dataset)
        assert unusual(report) == {"prepared files": "differs"}
        assert name in row(report, "prepared files").remark
        (tmp_path / name).write_bytes(whole)


def test_all_damaged_files_are_named(tmp_path: Path) -> None:
    dataset = build(tmp_path)
    (tmp_path / "labels.text.values.npy").unlink()
    with (tmp_path / "test.labels.indices.npy").open("ab") as file:
        file.write(b"x")
    remark = row(check(dataset), "prepared files").remark
    assert f"{tmp_path / 'labels.text.values.npy'}: missing; test.labels.indices.npy: " in remark
    assert "train" not in remark


def test_slack_belongs_to_averages_and_to_approximate_counts(tmp_path: Path) -> None:
    near = Statistics(train=5, labels_per_row=1.6, tolerance=0.25)
    dataset = build(tmp_path, statistics=near)
    assert unusual(check(dataset)) == {"train": "differs"}
    assert row(check(dataset), "labels").verdict == "unknown"
    loose = dataset.card.model_copy(update={"statistics": near.model_copy(update={"approximate": True})})
    assert check(replace(dataset, card=loose)).ok


def test_checksums_of_raw_files(tmp_path: Path) -> None:
    """fault 39 after the fact: a file that is not the published one is named."""
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "good.txt").write_bytes(b"good")
    (raw / "bad.txt").write_bytes(b"bad")
    checksums = {name: hashlib.sha256(b"good").hexdigest() for name in ("good.txt", "bad.txt", "gone.txt")}
    report = check(build(tmp_path / "prepared", checksums=checksums), raw)
    assert row(report, "sha256 of good.txt").verdict == "ok"
    assert row(report, "sha256 of gone.txt").verdict == "unknown"
    assert str(raw / "gone.txt") in row(report, "sha256 of gone.txt").remark
    assert unusual(report) == {"sha256 of bad.txt": "differs"}


def test_digest_against_the_pin(tmp_path: Path) -> None:
    """fault 53."""
    dataset = build(tmp_path, versions={"numpy": "2.1", "scipy": "1.0"})

    def verdict(**update: Any) -> CheckRow:
        return row(check(replace(dataset, card=pinned(dataset, **update))), "digest")

    other = {"digest": "0" * 64}
    assert verdict().verdict == "ok"
    assert verdict(pin=Pin(**other, made_with={"numpy": "2.1"})).verdict == "differs"
    explained = verdict(pin=Pin(**other, made_with={"numpy": "2.0", "scipy": "1.0", "sympy": "3"}))
    assert explained.verdict == "warning"
    assert explained.remark == "made with other versions: numpy 2.0 -> 2.1, sympy 3 -> absent"
    approximate = EXACT.model_copy(update={"approximate": True})
    assert verdict(pin=Pin(**other), statistics=approximate).verdict == "warning"
    assert verdict(pin=None).verdict == "unknown"


def test_faulty_ids_are_found(tmp_path: Path) -> None:
    """fault 43: out of range, unsorted and repeated label ids, in a matrix that skipped the writer."""
    dataset = build(tmp_path)
    broken = csr_array((4, 3), dtype=np.float32)
    broken.indices, broken.indptr = np.array([2, 0, 1, 1, 3], np.int32), np.array([0, 2, 4, 5, 5], np.int32)
    broken.data = np.ones(5, np.float32)
    report = check(replace(dataset, train_filter=broken))
    assert row(report, "faulty label ids in train_filter").measured == 3
    assert unusual(report) == {"faulty label ids in train_filter": "differs"}
    assert not report.ok


ODD = ["fine", "", " \t\n", "a\0b", "x" * 1_000_001]
COPIES = ["red apple", "blue plum", "red apple", "old oak", "red apple"]
HIDDEN = {"test_filter": [[1, 2], []], "train_filter": [[0], [2], [1], []]}
PLANTED: dict[str, tuple[dict[str, Any], dict[str, tuple[Any, str, str]]]] = {
    "rows without labels, labels without rows": (
        {"train_labels": [[0], [], [], [0]], "test_labels": [[2], []]},
        {
            "train rows without labels": (2, "warning", ""),
            "test rows without labels": (1, "warning", "0 in P@k"),
            "labels without train rows": (2, "warning", "1 are answers in test"),
        },
    ),
    "odd texts": (
        {"train": ODD, "train_labels": [[0], [1], [2], [0], [1]], "labels": ["fruit", "", "\r"]},
        {
            "empty train texts": (1, "warning", "row 1 "),
            "train texts of whitespace only": (1, "warning", "row 2 "),
            "train texts with NUL bytes": (1, "warning", "row 3 "),
            "train texts above 1,000,000 bytes": (1, "warning", "row 4 "),
            "empty label texts": (1, "warning", "row 1 "),
            "label texts of whitespace only": (1, "warning", "row 2 "),
            "empty test texts": (0, "ok", ""),
        },
    ),
    "repeated texts": (
        {"train": COPIES, "train_labels": [[0]] * 5, "test": ["Old  oak", "old oaks"], "labels": ["a", "b", "a"]},
        {
            "test texts that also stand in train": (1, "warning", "test row 0 equals train row 3"),
            "train texts that repeat an earlier one": (2, "warning", "train row 2 equals train row 0"),
            "label texts that repeat an earlier one": (1, "warning", ""),
        },
    ),
    # one of the three answers is hidden, so both rows can place one label: 100, and two hits of six at depth 3
    "a filter that hides answers": (
        HIDDEN,
        {
            "true test pairs that are filtered": (1, "differs", ""),
            "true train pairs that are filtered": (2, "warning", ""),
            "ceiling of P@1": (100, "ok", ""),
            "ceiling of P@3": (33.33, "ok", ""),
        },
    ),
    "a filter": (
        {"test_filter": [[1], [0, 2]]},
        {
            "retrieval depth for a full top-7": (9, "ok", "3 test pairs"),
            "ceiling of P@3": (50, "ok", ""),
            "ceiling of P@7": (round(100 * 3 / 14, 2), "ok", ""),
        },
    ),
    "no constants": ({"propensity": None}, {"propensity": (None, "unknown", "PSP")}),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_was_planted_is_found(what: str, tmp_path: Path) -> None:
    """faults 44, 45, 46, 47, 48 and 52."""
    planted, expected = PLANTED[what]
    report = check(build(tmp_path, statistics=Statistics(), **planted), k=7 if what == "a filter" else 5)
    for name, (measured, verdict, remark) in expected.items():
        found = row(report, name)
        assert (found.measured, found.verdict) == (measured, verdict), name
        assert remark in found.remark
    assert report.ok == all(verdict != "differs" for _, verdict, _ in expected.values())


def test_the_depth_must_be_a_depth(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="k must be at least 1"):
        check(build(tmp_path), k=0)
