"""Comparing runs: who is meant by a name, what is computed, and how it is shown."""

import csv
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest

from harness import metrics
from harness.data import Dataset, load
from harness.errors import UserError
from harness.evaluation import label_weights
from harness.record import read_record, runs_folder
from harness.report.comparing import DEFAULT_METRICS, compare, paired
from harness.report.comparing.contenders import find_contenders, split_names
from harness.report.comparing.row_scores import RowScores, ideal_scores, mean_scores
from harness.report.tables import FORMATS, render
from tests.commands import call
from tests.row_runs import DATA, add_run


@pytest.fixture
def dataset(workspace: Path) -> Dataset:
    return load(DATA)


@pytest.fixture
def runs(dataset: Dataset) -> Path:
    """alpha with three seeds, beta with two, gamma with one; beta is clearly the best."""
    folder = runs_folder()
    for seed in range(3):
        add_run(folder, dataset, f"a{seed}", seed=seed, skill=0.5)
    for seed in range(2):
        add_run(folder, dataset, f"b{seed}", seed=seed, skill=0.95, config={"method": "beta"})
    add_run(folder, dataset, "g0", seed=0, skill=0.52, config={"method": "gamma"})
    return folder


def test_differences_are_those_of_the_reported_metrics(runs: Path) -> None:
    contenders = find_contenders(["alpha", "beta", "gamma"], [runs])
    found = compare(contenders, resamples=200)
    opened = {run.record.run_id: RowScores(run) for contender in contenders for run in contender.runs}
    mean = {
        name: {metric: np.mean([read_record(runs / run).metrics[metric] for run in ids]) for metric in DEFAULT_METRICS}
        for name, ids in {"alpha": ["a0", "a1", "a2"], "beta": ["b0", "b1"], "gamma": ["g0"]}.items()
    }
    assert found.metrics == DEFAULT_METRICS
    assert len(found.outcomes) == 2 * len(DEFAULT_METRICS)
    for outcome in found.outcomes:
        assert outcome.difference == pytest.approx(
            mean[outcome.name][outcome.metric] - mean["alpha"][outcome.metric], abs=1e-9
        )
        other = next(contender for contender in contenders if contender.name == outcome.name)
        rows = mean_scores(other, opened, outcome.metric) - mean_scores(contenders[0], opened, outcome.metric)
        assert rows.mean() == pytest.approx(outcome.difference, abs=1e-6)
        assert outcome.low <= outcome.difference <= outcome.high
        assert (outcome.won, outcome.lost) == ((rows > 1e-4).sum(), (rows < -1e-4).sum())
        assert outcome.won + outcome.lost + outcome.tied == found.rows == 80


def test_verdicts_and_holm_over_the_contenders_of_one_metric(runs: Path) -> None:
    found = compare(find_contenders(["alpha", "beta", "gamma"], [runs]), ("P@1", "PSP@5"), resamples=2000)
    verdicts = {(outcome.metric, outcome.name): outcome.verdict for outcome in found.outcomes}
    assert verdicts["P@1", "beta"] == verdicts["PSP@5", "beta"] == "better"
    assert verdicts["P@1", "gamma"] == "undecided"
    for metric in found.metrics:
        family = [outcome for outcome in found.outcomes if outcome.metric == metric]
        assert [outcome.holm for outcome in family] == paired.holm([outcome.p for outcome in family])
    turned = compare(find_contenders(["beta", "alpha"], [runs]), ("P@1",), resamples=2000)
    assert [outcome.verdict for outcome in turned.outcomes] == ["worse"]


def test_another_contender_changes_nothing_but_the_correction(runs: Path) -> None:
    two = compare(find_contenders(["alpha", "gamma"], [runs]), ("P@3",), resamples=500).outcomes[0]
    three = compare(find_contenders(["alpha", "beta", "gamma"], [runs]), ("P@3",), resamples=500).outcomes[1]
    assert (two.name, two.low, two.high, two.p) == (three.name, three.low, three.high, three.p)
    assert two.holm <= three.holm


def test_equal_predictions_are_not_different(runs: Path, dataset: Dataset) -> None:
    ids = np.load(runs / "a0" / "ids.npy", allow_pickle=False).astype(np.int64)
    add_run(runs, dataset, "copy", ids=ids, config={"method": "copy"})
    for outcome in compare(find_contenders(["a0", "copy"], [runs]), resamples=200).outcomes:
        assert (outcome.difference, outcome.low, outcome.high, outcome.p, outcome.holm) == (0, 0, 0, 1, 1)
        assert (outcome.won, outcome.lost, outcome.tied, outcome.verdict) == (0, 0, 80, "undecided")


def test_psp_is_drawn_as_the_ratio_it_is(runs: Path, dataset: Dataset, workspace: Path) -> None:
    """The oracle reaches 100 on any rows, no prediction reaches 0: drawn as a ratio, the difference cannot vary."""
    weights = label_weights(dataset)
    add_run(runs, dataset, "all", ids=metrics.oracle_topk(dataset.test, 5, weights))
    add_run(runs, dataset, "none", ids=np.full((80, 5), -1))
    contenders = find_contenders(["none", "all"], [runs])
    found = compare(contenders, ("P@1", "PSP@3", "PSnDCG@5"), resamples=200)
    for outcome in found.outcomes[1:]:
        assert (outcome.low, outcome.high) == pytest.approx((100, 100), abs=1e-4)
    assert found.fixed == ()
    shutil.rmtree(workspace / "cache")
    found = compare(contenders, ("P@1", "PSP@3", "PSnDCG@5"), resamples=200)
    assert found.fixed == ("PSP@3", "PSnDCG@5")
    assert found.outcomes[1].high - found.outcomes[1].low > 5
    assert "denominator fixed" in found.as_table().caption


def test_ideal_scores_row_by_row(runs: Path, dataset: Dataset) -> None:
    (alpha, _) = find_contenders(["a0", "b0"], [runs])
    weights = label_weights(dataset)
    assert weights is not None
    largest = np.array(
        [
            sum(sorted((weights[label] for label in dataset.test[[row]].indices), reverse=True)[:3])
            for row in range(dataset.test.shape[0])
        ]
    )
    ideals = ideal_scores(alpha.runs[0], ["P@1", "PSP@3"])
    assert set(ideals) == {"PSP@3"}
    assert np.allclose(ideals["PSP@3"], 100 * largest / largest.mean())


def test_a_method_is_its_newest_run_of_every_seed(runs: Path, dataset: Dataset) -> None:
    add_run(runs, dataset, "a1-again", seed=1, skill=0.6)
    add_run(runs, dataset, "a5-failed", seed=5, status="failed", error="boom")
    add_run(runs, dataset, "a6-trial", seed=6, config={"evaluate": "validation"})
    alpha, beta = find_contenders(["alpha", "beta"], [runs])
    assert [run.record.run_id for run in alpha.runs] == ["a0", "a1-again", "a2"]
    assert (alpha.seeds, beta.seeds) == ([0, 1, 2], [0, 1])


def test_older_records_without_a_setting_count_as_the_same(runs: Path, dataset: Dataset) -> None:
    folder = add_run(runs, dataset, "a7", seed=7)
    record = json.loads((folder / "record.json").read_text())
    del record["config"]["evaluate"]
    (folder / "record.json").write_text(json.dumps(record))
    (alpha, _) = find_contenders(["alpha", "beta"], [runs])
    assert alpha.seeds == [0, 1, 2, 7]


def test_runs_by_id_path_and_newest(runs: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(runs / "b1", tmp_path / "elsewhere" / "renamed")
    found = find_contenders(["last", "a0", str(moved)], [runs])
    assert [contender.name for contender in found] == ["g0", "a0", "b1"]
    assert found[2].runs[0].folder == moved


def test_several_settings_of_a_method_must_be_told_apart(runs: Path, dataset: Dataset) -> None:
    add_run(runs, dataset, "a3", seed=3, config={"params": {"beta": 2}})
    add_run(runs, dataset, "a4", seed=4, config={"params": {"beta": 2}, "encoder": "tiny"})
    with pytest.raises(UserError, match="3 different settings") as refused:
        find_contenders(["alpha", "beta"], [runs])
    assert "'alpha:beta=1'" in str(refused.value)
    assert "'alpha:encoder=static:beta=2'" in str(refused.value)
    assert "newest run a4" in str(refused.value)
    found = find_contenders(["alpha:beta=1", "alpha:beta=2:encoder=static", "alpha:encoder=tiny"], [runs])
    assert [contender.seeds for contender in found] == [[0, 1, 2], [3], [4]]
    with pytest.raises(UserError, match="there is beta=1, beta=2"):
        find_contenders(["alpha:beta=3", "beta"], [runs])
    with pytest.raises(UserError, match="no such key"):
        find_contenders(["alpha:bta=3", "beta"], [runs])


def test_only_the_first_way_of_scoring_has_rows(runs: Path, dataset: Dataset) -> None:
    folder = add_run(runs, dataset, "v0", config={"method": "views"})
    record = json.loads((folder / "record.json").read_text())
    record["views"] = {"clf": {**record["metrics"], "P@1": 1.0}, "concat": record["metrics"]}
    (folder / "record.json").write_text(json.dumps(record))
    assert find_contenders(["views:concat", "alpha"], [runs])[0].name == "views:concat"
    with pytest.raises(UserError, match="that is 'concat'"):
        find_contenders(["views:clf", "alpha"], [runs])
    with pytest.raises(UserError, match="this method has no other"):
        find_contenders(["alpha:clf", "beta"], [runs])


def test_the_dataset_is_the_one_that_all_share(runs: Path, dataset: Dataset) -> None:
    elsewhere = {"name": "elsewhere", "digest": "f" * 64}
    add_run(runs, dataset, "ae", about=elsewhere)
    assert find_contenders(["alpha", "beta"], [runs])[0].seeds == [0, 1, 2]
    add_run(runs, dataset, "be", about=elsewhere, config={"method": "beta"})
    with pytest.raises(UserError, match="say which: --dataset elsewhere"):
        find_contenders(["alpha", "beta"], [runs])
    found = find_contenders(["alpha", "beta"], [runs], "elsewhere")
    assert [run.record.run_id for contender in found for run in contender.runs] == ["ae", "be"]
    assert find_contenders(["ae", "beta"], [runs])[1].runs[0].record.run_id == "be"
    with pytest.raises(UserError, match="no finished run of 'gamma' on 'elsewhere'"):
        find_contenders(["ae", "gamma"], [runs])
    add_run(runs, dataset, "de", about=elsewhere, config={"method": "delta"})
    with pytest.raises(UserError, match=r"not run on one dataset: gamma on .*; delta on elsewhere"):
        find_contenders(["gamma", "delta"], [runs])


def test_mean_and_sample_deviation_over_seeds_are_shown(runs: Path) -> None:
    found = compare(find_contenders(["alpha", "gamma"], [runs]), ("P@1",), resamples=200)
    values = [read_record(runs / run).metrics["P@1"] for run in ("a0", "a1", "a2")]
    reference, other = found.as_table().rows
    texts = dict(zip(found.as_table().columns, reference, strict=True))
    assert texts["value"].text == f"{np.mean(values):.2f} ± {stdev(values):.2f}"
    assert (texts["verdict"].text, texts["difference"].text, texts["seeds"].text) == ("reference", "", "3")
    assert "±" not in other[found.as_table().columns.index("value")].text
    told = found.as_dict()["contenders"]
    assert told[0]["std"]["P@1"] == pytest.approx(stdev(values))
    assert told[1]["std"]["P@1"] is None


def test_every_form_of_the_table(runs: Path, dataset: Dataset) -> None:
    contenders = find_contenders(["alpha", "beta", "gamma"], [runs])
    found = compare(contenders, resamples=200)
    again = compare(contenders, resamples=200)
    for form in FORMATS:
        assert render([found.as_table()], form) == render([again.as_table()], form)
    lines = list(csv.reader(io.StringIO(render([found.as_table()], "csv"))))
    assert len(lines) == 1 + 3 * len(DEFAULT_METRICS)
    caption = found.as_table().caption
    for part in ("80 test rows", "200 resamples", "alpha: 0, 1, 2", dataset.digest[:12], "over 2 comparisons"):
        assert part in caption


def test_names_are_split_at_commas_and_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("with,comma").mkdir()
    assert split_names(["a,b", "c", "x:ks=[1,3],", "with,comma"]) == ["a", "b", "c", "x:ks=[1,3]", "with,comma"]


def test_the_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", "--compare", "alpha", "beta", "gamma", "--resamples", "500") == 0
    shown = capsys.readouterr().out
    assert "better *" in shown
    assert "80 test rows" in shown
    assert call("report", "--json", "--compare", "alpha,beta", "--metrics", "P@1,nDCG@5", "--resamples", "500") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["reference"] == "alpha"
    assert [(outcome["name"], outcome["metric"]) for outcome in told["outcomes"]] == [
        ("beta", "P@1"),
        ("beta", "nDCG@5"),
    ]
    assert told["contenders"][1]["runs"] == ["b0", "b1"]
    out = tmp_path / "table.tex"
    assert call("report", "--compare", "a0", "b0", "--runs", str(runs), "--out", str(out), "--resamples", "200") == 0
    assert r"\toprule" in out.read_text()


def test_no_torch_is_needed() -> None:
    code = "import sys, harness.report.comparing; sys.exit('torch' in sys.modules or 'mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=False).returncode == 0
