"""Filter pairs from the file to the figures: missing, empty and wrong files, and when in the evaluation they count."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.config import Layer
from harness.data import load
from harness.data.sources.importing import import_folder
from harness.record import RunRecord, find_records
from harness.run import resolve_config, run
from tests.commands import call
from tests.ranking_oracle import figures, label_weights, row_sets
from tests.repository_files import write_card, write_json_layout
from tests.trust.accounts import Account

LABELS, ROWS = 40, 30
RUN = ("run", "--dataset", "lf-mine", "--method", "zeroshot", "--encoder", "tiny", "--track", "none")


@pytest.mark.parametrize("missing", ["train", "test"])
def test_an_lf_dataset_without_a_filter_file_is_refused_unless_told(
    missing: str, workspace: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 48: missing"""
    write_card(workspace, "lf-mine", filter="required")
    raw = write_json_layout(workspace / "data" / "lf-mine")
    (raw / f"filter_labels_{missing}.txt").unlink()
    assert call(*RUN) == 2
    said = capsys.readouterr().err
    assert "lf-mine needs its two filter files (filter_labels_train.txt and filter_labels_test.txt" in said
    assert "--no-filter" in said
    assert not (workspace / "runs").exists()
    assert call(*RUN, "--no-filter") == 0
    (record,) = find_records([workspace / "runs"])
    assert record.dataset["filter"] is False
    assert load("lf-mine", use_filter=False).test_filter.nnz == load("lf-mine", use_filter=False).train_filter.nnz == 0
    if missing == "test":
        account.did("filter_labels_test.txt is missing beside an LF dataset; then the same with --no-filter")
        account.saw("exit code 2, naming both files and --no-filter, no run; then exit code 0, recorded as unfiltered")


def test_filter_files_that_are_empty_or_wrong(
    workspace: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 48: an empty file is an answer, ids out of range are not."""
    write_card(workspace, "lf-mine", filter="required")
    raw = write_json_layout(workspace / "data" / "lf-mine")
    (raw / "filter_labels_train.txt").write_text("")
    assert (raw / "filter_labels_test.txt").read_text() == ""
    assert call(*RUN) == 0
    (record,) = find_records([workspace / "runs"])
    assert (record.config["filter"], record.dataset["filter"]) == (True, False), "wanted, with no pair to mask"
    capsys.readouterr()
    wrong = {"2 0": "row '2' is out of range: there are 2", "0 4": "label '4' is out of range: there are 4"}
    wrong |= {"0 -1": "label '-1' is not a whole number", "1.0 0": "row '1.0' is not a whole number"}
    for pair, message in wrong.items():
        (raw / "filter_labels_test.txt").write_text(f"0 1\n1 3\n{pair}\n")
        assert call(*RUN) == 2
        assert f"filter_labels_test.txt:3: {message}" in capsys.readouterr().err
    assert len(find_records([workspace / "runs"])) == 1
    account.did(f"two empty filter files; then a third line of {', '.join(wrong)} for 2 rows and 4 labels")
    account.saw(f"empty: exit code 0; wrong: exit code 2 for {len(wrong)} of {len(wrong)}, each naming line 3")


def items_that_are_labels(folder: Path) -> Path:
    """Each test row is an item of the label set, word for word, and must not find itself."""
    folder.mkdir()
    names = [f"item number {label}" for label in range(LABELS)]
    labels = [{"id": label, "text": name} for label, name in enumerate(names)]
    train = [{"text": f"row {row}", "labels": sorted({row * row % LABELS, row % 5})} for row in range(90)]
    test = [
        {"id": row, "text": names[row], "labels": [label for label in range(row % 4, LABELS, 4) if label != row]}
        for row in range(ROWS)
    ]
    pairs = [{"split": "test", "id": row, "label": row} for row in range(ROWS)]
    for name, rows in (("labels", labels), ("train", train), ("test", test), ("filter", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def finished(**values: object) -> RunRecord:
    return run(resolve_config("zeroshot", "items", [Layer("test", {"encoder": "tiny", **values})])[0], track="none")


def test_figures_are_those_of_rankings_without_their_filter_pairs(
    tmp_path: Path, workspace: Path, account: Account
) -> None:
    """fault 49: masked before the ranking is cut and before anything is counted; an evaluation of its own agrees."""
    import_folder(items_that_are_labels(tmp_path / "items"), "items", propensity=(0.55, 1.5))
    data, filtered, everything = load("items"), finished(), finished(filter=False, search={"k": LABELS})
    ranking = np.load(workspace / "runs" / everything.run_id / "ids.npy").tolist()
    assert all(sorted(row) == list(range(LABELS)) for row in ranking)
    masked, truth = row_sets(data.test_filter), row_sets(data.test)
    weights = label_weights(row_sets(data.train), LABELS, 0.55, 1.5)
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
