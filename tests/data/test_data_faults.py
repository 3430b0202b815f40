"""Filter files that are missing, empty or wrong; rows without labels, labels without rows, no propensity constants."""

from pathlib import Path

import numpy as np
import pytest

from harness.data import load
from harness.data.sources.jsonl import import_folder
from harness.metrics import inverse_propensity
from harness.report.documents import comparison
from harness.run import resolve_config, run
from harness.runs.record import RunRecord, find_records
from harness.settings.layers import Layer
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.oracles import figures, label_weights, row_sets
from tests.support.repository_files import write_card, write_json_layout, write_jsonl
from tests.support.training_runs import config

ITEMS, ROWS = 40, 30
RUN = ("run", "--dataset", "lf-mine", "--method", "zeroshot", "--encoder", "tiny", "--track", "none")


def test_an_lf_dataset_without_a_filter_file_is_refused_unless_told(
    workspace: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 48: missing"""
    write_card(workspace, "lf-mine", filter="required")
    raw = write_json_layout(workspace / "data" / "lf-mine")
    for missing in ("filter_labels_test.txt", "filter_labels_train.txt"):
        (raw / missing).unlink()
        assert call(*RUN) == 2
        printed = capsys.readouterr().err
        assert all(words in printed for words in ("filter_labels_train.txt", "filter_labels_test.txt", "--no-filter"))
    assert not (workspace / "runs").exists()
    assert call(*RUN, "--no-filter") == 0
    (record,) = find_records([workspace / "runs"])
    assert record.dataset["filter"] is False
    assert load("lf-mine", use_filter=False).test_filter.nnz == load("lf-mine", use_filter=False).train_filter.nnz == 0
    account.did("one filter file, then both are missing beside an LF dataset; then the same with --no-filter")
    account.saw("exit code 2, naming both files and --no-filter, no run; then exit code 0, recorded as unfiltered")


def test_filter_files_that_are_empty_or_wrong(
    workspace: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 48: an empty file is an answer, ids out of range are not."""
    write_card(workspace, "lf-mine", filter="required")
    raw = write_json_layout(workspace / "data" / "lf-mine")
    for name in ("filter_labels_train.txt", "filter_labels_test.txt"):
        (raw / name).write_text("")
    assert call(*RUN) == 0
    (record,) = find_records([workspace / "runs"])
    assert (record.config["filter"], record.dataset["filter"]) == (True, False), "wanted, with no pair to mask"
    capsys.readouterr()
    wrong = {
        "2 0": "row '2' is out of range: there are 2",
        "0 4": "label '4' is out of range: there are 4",
        "0 -1": "label '-1' is not a whole number",
        "1.0 0": "row '1.0' is not a whole number",
        "1 :": "label ':' is not a whole number",
        "0 1 2": "expected two numbers",
    }
    for pair, message in wrong.items():
        (raw / "filter_labels_test.txt").write_text(f"0 1\n\n{pair}\n")
        assert call(*RUN) == 2
        assert f"filter_labels_test.txt:3: {message}" in capsys.readouterr().err
    assert len(find_records([workspace / "runs"])) == 1
    account.did(f"two empty filter files; then a third line of {', '.join(wrong)} for 2 rows and 4 labels")
    account.saw(f"empty: exit code 0; wrong: exit code 2 for {len(wrong)} of {len(wrong)}, each naming line 3")


def items_that_are_labels(folder: Path) -> Path:
    """Each test row is an item of the label set, word for word, and must not find itself."""
    names = [f"item number {label}" for label in range(ITEMS)]
    test = [
        {"id": row, "text": names[row], "labels": [label for label in range(row % 4, ITEMS, 4) if label != row]}
        for row in range(ROWS)
    ]
    return write_jsonl(
        folder,
        labels=[{"id": label, "text": name} for label, name in enumerate(names)],
        train=[{"text": f"row {row}", "labels": sorted({row * row % ITEMS, row % 5})} for row in range(90)],
        test=test,
        filter=[{"split": "test", "id": row, "label": row} for row in range(ROWS)],
    )


def finished(**values: object) -> RunRecord:
    return run(resolve_config("zeroshot", "items", [Layer("test", {"encoder": "tiny", **values})])[0], track="none")


def test_figures_are_those_of_rankings_without_their_filter_pairs(
    tmp_path: Path, workspace: Path, account: Account
) -> None:
    """fault 49: masked before the ranking is cut and before anything is counted; an evaluation of its own agrees."""
    import_folder(items_that_are_labels(tmp_path / "items"), "items", propensity=(0.55, 1.5))
    data, filtered, everything = load("items"), finished(), finished(filter=False, search={"k": ITEMS})
    ranking = np.load(workspace / "runs" / everything.run_id / "ids.npy").tolist()
    assert all(sorted(row) == list(range(ITEMS)) for row in ranking)
    masked, truth = row_sets(data.test_filter), row_sets(data.test)
    weights = label_weights(row_sets(data.train), ITEMS, 0.55, 1.5)
    allowed = [[label for label in row if label not in out] for row, out in zip(ranking, masked, strict=True)]
    expected, unmasked = figures(allowed, truth, weights), figures(ranking, truth, weights)
    assert len(expected) == 12
    assert {key: filtered.metrics[key] for key in expected} == pytest.approx(expected, abs=1e-9)
    assert {key: everything.metrics[key] for key in unmasked} == pytest.approx(unmasked, abs=1e-9)
    assert all(expected[key] > unmasked[key] for key in expected)
    assert unmasked["P@1"] == 0, "every item finds itself first"
    late = [[-1 if label in out else label for label in row] for row, out in zip(ranking, masked, strict=True)]
    assert figures(late, truth, weights) == unmasked, "masking after the cut makes no room for others"
    account.did(f"{ROWS} test rows that are labels themselves; the full ranking without them scored in plain Python")
    account.saw(
        f"all {len(expected)} figures of P, nDCG, PSP, PSnDCG equal to 1e-9; "
        f"PSP@5 {filtered.metrics['PSP@5']:.2f}, masked only after the cut {unmasked['PSP@5']:.2f}"
    )


LABELS, TRAIN, TEST = 12, 60, 24
UNSEEN = (10, 11)
"""No train row has them; the first is an answer in test."""


def write_folder(folder: Path) -> Path:
    """Every third train row and every fourth test row has no label."""
    return write_jsonl(
        folder,
        train=[{"text": f"word{row % 10} and {row}", "labels": [row % 10] if row % 3 else []} for row in range(TRAIN)],
        test=[{"text": f"word{row % 10} or {row}", "labels": [row % 11] if row % 4 else []} for row in range(TEST)],
        labels=[{"id": label, "text": f"word{label}"} for label in range(LABELS)],
    )


def test_rows_without_labels_labels_without_rows_and_no_constants(
    tmp_path: Path, workspace: Path, account: Account
) -> None:
    """faults 45, 46 and 52.

    P@k is divided by all rows, as the repository's evaluation does it. A label without train rows has a propensity and
    is counted apart. Without the constants A and B there is no PSP, neither in the record nor in a table.
    """
    folder = write_folder(tmp_path / "holes")
    import_folder(folder, "weighed", propensity=(0.55, 1.5))
    import_folder(folder, "bare")
    weighed, bare = (run(config(dataset=name, epochs=2, batch_size=20), track="none") for name in ("weighed", "bare"))

    data = load("weighed")
    train, truth = row_sets(data.train), row_sets(data.test)
    assert [sum(not row for row in rows) for rows in (train, truth)] == [TRAIN // 3, TEST // 4]
    weights = label_weights(train, LABELS, 0.55, 1.5)
    ranked = np.load(workspace / "runs" / weighed.run_id / "ids.npy").tolist()
    expected = figures(ranked, truth, weights)
    assert {key: weighed.metrics[key] for key in expected} == pytest.approx(expected, abs=1e-9)
    hits = sum(row[0] in true for row, true in zip(ranked, truth, strict=True))
    assert hits > 0
    assert weighed.metrics["P@1"] == pytest.approx(100 * hits / TEST)

    assert inverse_propensity(data.train, 0.55, 1.5).tolist() == pytest.approx(weights, abs=1e-12)
    assert {label for label in range(LABELS) if weights[label] == max(weights)} == set(UNSEEN)
    flagged = {part["bin"]: part["zero_shot_labels"] for part in weighed.contributions}
    assert flagged == {"head": 0, "torso": 0, "tail": len(UNSEEN)}

    assert bare.dataset["propensity"] is None
    for found in (bare.metrics, *bare.scorers.values(), *bare.contributions, bare.per_row):
        assert "P@1" in found
        assert not any("PS" in key for key in found)
    same = [key for key in weighed.metrics if "PS" not in key]
    assert {key: bare.metrics[key] for key in same} == {key: weighed.metrics[key] for key in same}
    tables = {table.title: table for table in comparison(find_records([workspace / "runs"]))}
    shown = {name: [column for column in table.columns if "PSP" in column] for name, table in tables.items()}
    assert shown == {"bare": [], "weighed": ["PSP@1", "PSP@3", "PSP@5"]}

    account.did(
        f"trained where {TRAIN // 3} of {TRAIN} train rows and {TEST // 4} of {TEST} test rows have no label and "
        f"{len(UNSEEN)} of {LABELS} labels no train row; the same without A and B on the card"
    )
    account.saw(
        f"P@1 {weighed.metrics['P@1']:.2f} = {hits} hits of {TEST} rows; {len(expected)} figures equal a plain "
        f"evaluation to 1e-9; {flagged['tail']} zero-shot labels of weight {max(weights):.2f}; "
        f"without A and B no PSP in record, rows, scorers or table, and the {len(same)} other figures equal"
    )
