"""Rows without labels, labels without rows, no propensity constants: small runs on such data, and their figures."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from harness.config import Layer
from harness.data import load
from harness.data.check import check
from harness.data.sources.importing import import_folder
from harness.metrics import inverse_propensity
from harness.record import RunRecord, find_records
from harness.report import comparison
from harness.report.tables import render
from harness.run import resolve_config, run
from tests.ranking_oracle import figures, label_weights, row_sets
from tests.training_runs import config
from tests.trust.accounts import Account

LABELS, TRAIN, TEST = 12, 60, 24
UNSEEN = (10, 11)
"""No train row has them; the first is an answer in test."""


def write_folder(folder: Path) -> Path:
    """Every third train row and every fourth test row has no label."""
    folder.mkdir()
    train = [{"text": f"word{row % 10} and {row}", "labels": [row % 10] if row % 3 else []} for row in range(TRAIN)]
    test = [{"text": f"word{row % 10} or {row}", "labels": [row % 11] if row % 4 else []} for row in range(TEST)]
    labels = [{"id": label, "text": f"word{label}"} for label in range(LABELS)]
    for name, rows in (("train", train), ("test", test), ("labels", labels)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def trained(dataset: str) -> RunRecord:
    return run(config(dataset=dataset, epochs=2, batch_size=20), track="none")


def test_rows_without_labels_are_trained_on_and_counted(tmp_path: Path, workspace: Path, account: Account) -> None:
    """fault 45: P@k is divided by all rows, as the repository's evaluation does it."""
    import_folder(write_folder(tmp_path / "holes"), "holes", propensity=(0.55, 1.5))
    data, record = load("holes"), trained("holes")
    train, truth = row_sets(data.train), row_sets(data.test)
    bare = {name: sum(not row for row in rows) for name, rows in (("train", train), ("test", truth))}
    assert bare == {"train": TRAIN // 3, "test": TEST // 4}
    ranked = np.load(workspace / "runs" / record.run_id / "ids.npy").tolist()
    expected = figures(ranked, truth, label_weights(train, LABELS, 0.55, 1.5))
    assert {key: record.metrics[key] for key in expected} == pytest.approx(expected, abs=1e-9)
    hits = sum(row[0] in true for row, true in zip(ranked, truth, strict=True))
    assert hits > 0
    assert record.metrics["P@1"] == pytest.approx(100 * hits / TEST)
    account.did(f"{bare['train']} of {TRAIN} train rows and {bare['test']} of {TEST} test rows have no label")
    account.saw(
        f"{record.training['steps']} steps trained; P@1 {record.metrics['P@1']:.2f} = {hits} hits of {TEST} rows; "
        f"{len(expected)} figures equal a plain evaluation to 1e-9"
    )


def test_labels_without_train_rows_are_weighed_and_flagged(tmp_path: Path, account: Account) -> None:
    """fault 46: their propensity is defined, and they are told apart."""
    import_folder(write_folder(tmp_path / "holes"), "holes", propensity=(0.55, 1.5))
    data = load("holes")
    record = run(resolve_config("zeroshot", "holes", [Layer("test", {"encoder": "tiny"})])[0], track="none")
    weights = label_weights(row_sets(data.train), LABELS, 0.55, 1.5)
    assert inverse_propensity(data.train, 0.55, 1.5).tolist() == pytest.approx(weights, abs=1e-12)
    assert {label for label in range(LABELS) if weights[label] == max(weights)} == set(UNSEEN)
    assert math.isfinite(record.metrics["PSP@5"])
    flagged = {part["bin"]: part["zero_shot_labels"] for part in record.contributions}
    assert flagged == {"head": 0, "torso": 0, "tail": len(UNSEEN)}
    seen = {row.name: row for row in check(data).rows}["labels without train rows"]
    assert (seen.measured, seen.verdict) == (len(UNSEEN), "warning")
    account.did(f"{len(UNSEEN)} of {LABELS} labels have no train row, one of them is an answer in test")
    account.saw(
        f"weight {max(weights):.2f} for both, the largest; {flagged['tail']} zero-shot labels in the record's tail; "
        f"data check warns of {seen.measured}"
    )


def test_without_constants_there_is_no_psp_anywhere(tmp_path: Path, workspace: Path, account: Account) -> None:
    """fault 52: not in the record, not per row or view, and no column of any table."""
    folder = write_folder(tmp_path / "holes")
    import_folder(folder, "bare")
    import_folder(folder, "weighed", propensity=(0.55, 1.5))
    bare, weighed = trained("bare"), trained("weighed")
    assert bare.dataset["propensity"] is None
    for found in (bare.metrics, *bare.views.values(), *bare.contributions, bare.per_row):
        assert "P@1" in found
        assert not any("PS" in key for key in found)
    same = [key for key in weighed.metrics if "PS" not in key]
    assert {key: bare.metrics[key] for key in same} == {key: weighed.metrics[key] for key in same}
    tables = {table.title: table for table in comparison(find_records([workspace / "runs"]))}
    shown = {name: [column for column in table.columns if "PSP" in column] for name, table in tables.items()}
    assert shown == {"bare": [], "weighed": ["PSP@1", "PSP@3", "PSP@5"]}
    assert "PSP" not in render([tables["bare"]], "md")
    account.did("trained on data of one's own with no A and B on its card, and on the same data with them")
    account.saw(
        f"without: no PSP in record, rows, views or table ({len(bare.metrics)} figures); with: {len(weighed.metrics)} "
        f"figures, the {len(same)} others equal"
    )
