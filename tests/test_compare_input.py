"""What a comparison refuses, each with one clear line and exit code 2."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.data import Dataset, load
from harness.errors import DataError, UserError
from harness.files import write_manifest
from harness.record import RunRecord, find_records, runs_folder
from harness.report import comparison, settings_of, tidy
from harness.report.comparing import compare
from harness.report.comparing.contenders import find_contenders
from tests.commands import call
from tests.row_runs import DATA, add_run
from tests.trust.accounts import Account


@pytest.fixture
def dataset(workspace: Path) -> Dataset:
    return load(DATA)


@pytest.fixture
def runs(dataset: Dataset) -> Path:
    """Two comparable runs and one of each kind that is not."""
    folder = runs_folder()
    add_run(folder, dataset, "a0")
    add_run(folder, dataset, "b0", seed=1, config={"method": "beta"})
    add_run(folder, dataset, "failed", status="failed", error="no memory", config={"method": "unlucky"})
    add_run(folder, dataset, "trial", config={"evaluate": "validation", "method": "swept"})
    killed = add_run(folder, dataset, "killed")
    (killed / "record.json").unlink()
    (killed / "events.jsonl").write_text("{}\n")
    alone = add_run(folder, dataset, "alone", config={"method": "mailed"})
    shutil.copy(alone / "record.json", folder / "alone.json")
    shutil.rmtree(alone)
    (add_run(folder, dataset, "bare", config={"method": "bare"}) / "per_row.npy").unlink()
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "comparing takes two or more"),
        (["a0"], "comparing takes two or more"),
        (["a0", "betta"], "did you mean 'beta'?"),
        (["a0", "zzz"], "methods with runs: alpha, bare, beta, mailed, swept, unlucky"),
        (["a0", "a0"], "compared with itself"),
        (["a0", "alpha"], "compared with itself"),
        (["a0", "failed"], "did not finish: failed (no memory)"),
        (["a0", "unlucky"], "did not finish: failed (no memory)"),
        (["a0", "killed"], "--resume killed"),
        (["a0", "trial"], "held-out train rows"),
        (["a0", "swept"], "held-out train rows"),
        (["a0", "alone"], "there is a record alone"),
        (["a0", "mailed"], "there is a record alone"),
        (["a0", "bare"], "no per-row scores"),
        (["a0", "./nowhere"], "not the folder of a run"),
        (["a0", "b0", "--metrics", "P@7"], "unknown metric 'P@7'"),
        (["a0", "b0", "--metrics", "C@5"], "has no rows"),
        (["a0", "b0", "--resamples", "3"], "too few"),
        (["a0", "b0", "--format", "mdd"], "did you mean 'md'"),
        (["alpha", "beta", "--dataset", "other"], "no finished run of 'alpha' on 'other'"),
    ],
)
def test_one_clear_line(words: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", "--compare", *words) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def test_a_record_file_is_not_a_run(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", "--compare", "a0", str(runs / "alone.json")) == 2
    assert "is a record alone" in capsys.readouterr().err


def test_names_without_compare_are_a_mistake(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", "a0", "b0") == 2
    assert "--compare" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"about": {"digest": "f" * 64}}, "data "),
        ({"about": {"filter": False}}, "filter True and False"),
        ({"about": {"propensity": {"a": 0.6, "b": 2.6}}}, "propensity constants "),
        ({"metric_version": 2}, "metric version 1 and 2"),
        ({"environment": {"harness": "9.9"}}, "harness version unknown and 9.9"),
    ],
)
def test_what_differs_is_not_mixed_unless_told(
    change: dict[str, Any],
    message: str,
    runs: Path,
    dataset: Dataset,
    capsys: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """fault 62"""
    add_run(runs, dataset, "other", seed=3, config={"method": "other"}, **change)
    command = ("report", "--compare", "a0", "other", "--resamples", "200")
    assert call(*command) == 2
    assert message in capsys.readouterr().err
    assert call(*command, "--allow-mixed", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [text for text in told["mixed"] if text.startswith(message)]
    assert told["fixed_denominator"] == ["PSP@1", "PSP@3", "PSP@5"]
    if "metric_version" in change:
        account.did("two runs whose records name metric versions 1 and 2, compared")
        account.saw(f"exit code 2: {message}; with --allow-mixed the result lists it as mixed")


def test_other_numbers_of_rows_are_never_paired(runs: Path) -> None:
    add_run(runs, load("synthetic:train=240,test=70,labels=60"), "other", config={"method": "other"})
    with pytest.raises(UserError, match="a0 has 80, other has 70"):
        compare(find_contenders(["a0", "other"], [runs]), allow_mixed=True)


def nan(scores: np.ndarray) -> np.ndarray:
    scores[7, 0] = np.nan
    return scores


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (nan, r"P@1 of row 7 is nan"),
        (lambda scores: scores[:, :-1], "names 15 columns"),
        (lambda scores: scores.astype(np.float64), "float64 of shape"),
        (lambda scores: scores[:0], "of shape \\(0, 15\\)"),
        (lambda scores: scores[0], "of shape \\(15,\\)"),
        (lambda scores: scores / 2, "not of one run"),
    ],
)
def test_scores_that_do_not_fit_the_record(damage: Any, message: str, runs: Path) -> None:
    file = runs / "b0" / "per_row.npy"
    np.save(file, damage(np.load(file, allow_pickle=False)), allow_pickle=False)
    write_manifest(runs / "b0", {})
    with pytest.raises(DataError, match=message):
        compare(find_contenders(["a0", "b0"], [runs]), resamples=200)


def test_scores_that_do_not_fit_the_manifest(runs: Path) -> None:
    contenders = find_contenders(["a0", "b0"], [runs])
    file, manifest = runs / "b0" / "per_row.npy", runs / "b0" / "manifest.json"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"\1")
    with pytest.raises(DataError, match=r"not those that manifest\.json lists"):
        compare(contenders)
    file.write_bytes(whole[:50])
    write_manifest(runs / "b0", {})
    with pytest.raises(DataError, match="not an array of numbers"):
        compare(contenders)
    np.save(file, np.array([{}], dtype=object), allow_pickle=True)
    write_manifest(runs / "b0", {})
    with pytest.raises(DataError, match="not an array of numbers"):
        compare(contenders)
    manifest.write_text('{"files": {}}')
    with pytest.raises(DataError, match=r"does not list per_row\.npy"):
        compare(contenders)
    manifest.unlink()
    with pytest.raises(DataError, match="nothing vouches"):
        compare(contenders)


def test_trials_of_sweeps_are_in_no_table(runs: Path) -> None:
    records = find_records([runs])
    assert "trial" in {record.run_id for record in records}
    assert set(tidy(records)["run_id"]) == {"a0", "b0", "alone", "bare"}
    (table,) = comparison(records)
    assert "swept" not in {row[0].text for row in table.rows}
    trials = [record for record in records if record.run_id == "trial"]
    with pytest.raises(UserError, match="no finished run to report, only 1 trials measured on held-out train rows"):
        comparison(trials)


def test_a_trial_has_other_settings_than_the_run_of_its_config() -> None:
    """Otherwise a bench would take the one for the other; a run from before there were trials is as a run now."""
    config = {"method": "m", "seed": 0, "params": {"beta": 1}}
    assert settings_of(config) == settings_of({**config, "evaluate": "test"})
    assert settings_of(config) != settings_of({**config, "evaluate": "validation"})


@pytest.mark.parametrize("held_out", [None, "odd", {"size": 0.0}, {"size": 0, "draw": "any", "metric": "P@5"}])
def test_how_rows_would_have_been_held_out_is_no_difference(held_out: Any) -> None:
    """Runs from before there was a choice of `draw` stood beside newer ones as a row that looked the same."""
    config = {"method": "m", "params": {"beta": 1}}
    assert settings_of({**config, "validation": held_out}) == settings_of(config)
    kept = [settings_of({**config, "validation": {"size": 0.1, "draw": draw}}) for draw in ("any", "covered")]
    assert len({*kept, settings_of(config)}) == 3


def test_runs_without_a_common_metric(runs: Path) -> None:
    file = runs / "b0" / "record.json"
    record = RunRecord.model_validate_json(file.read_text())
    renamed = [name.replace("@", "@1") for name in record.per_row]
    file.write_text(record.model_copy(update={"per_row": renamed}).model_dump_json())
    with pytest.raises(UserError, match="no per-row metric in common"):
        compare(find_contenders(["a0", "b0"], [runs]))
