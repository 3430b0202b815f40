"""Comparing runs: who is meant by a name, what is computed, how it is shown, and what is refused."""

import json
import shutil
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest

from harness import metrics
from harness.data import Dataset, load
from harness.errors import DataError, UserError
from harness.io.files import write_manifest
from harness.report.collect import collect
from harness.report.compare import compare, find_contenders, holm, ideal_scores, split_names
from harness.report.documents import comparison
from harness.report.results import ROWS
from harness.report.rows import settings_of, tidy
from harness.runs.record import RunRecord, find_records, read_record, runs_folder
from harness.train.evaluation import label_weights
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.row_runs import DATA, add_run, add_scorers


def add_comparable(folder: Path, dataset: Dataset) -> None:
    """alpha with three seeds, beta with two, gamma with one; beta is clearly the best."""
    for seed in range(3):
        add_run(folder, dataset, f"a{seed}", seed=seed, skill=0.5)
    for seed in range(2):
        add_run(folder, dataset, f"b{seed}", seed=seed, skill=0.95, config={"method": "beta"})
    add_run(folder, dataset, "g0", seed=0, skill=0.52, config={"method": "gamma"})


def add_mixed(folder: Path, dataset: Dataset) -> None:
    """Two comparable runs and one of each kind that is not."""
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


Made = dict[str, tuple[Path, Dataset]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two workspaces with the prepared data and runs, which tests copy."""
    found = {}
    for add in (add_comparable, add_mixed):
        home = tmp_path_factory.mktemp("home")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HARNESS_HOME", str(home))
            found[add.__name__] = home, load(DATA)
            add(runs_folder(), load(DATA))
    return found


@pytest.fixture
def dataset(made: Made) -> Dataset:
    return made["add_mixed"][1]


@pytest.fixture
def runs(made: Made, workspace: Path) -> Path:
    return shutil.copytree(made["add_comparable"][0], workspace) / "runs"


@pytest.fixture
def mixed_runs(made: Made, workspace: Path) -> Path:
    return shutil.copytree(made["add_mixed"][0], workspace) / "runs"


def test_differences_are_those_of_the_reported_metrics(runs: Path) -> None:
    contenders = find_contenders(["alpha", "beta", "gamma"], [runs])
    found = compare(contenders, resamples=200)
    mean = {
        name: {metric: np.mean([read_record(runs / run).metrics[metric] for run in ids]) for metric in ROWS}
        for name, ids in {"alpha": ["a0", "a1", "a2"], "beta": ["b0", "b1"], "gamma": ["g0"]}.items()
    }
    assert found.metrics == ROWS
    assert len(found.outcomes) == 2 * len(ROWS)
    for outcome in found.outcomes:
        assert outcome.difference == pytest.approx(
            mean[outcome.name][outcome.metric] - mean["alpha"][outcome.metric], abs=1e-9
        )
        other = next(contender for contender in contenders if contender.name == outcome.name)
        rows = other.scores(outcome.metric).mean(axis=0) - contenders[0].scores(outcome.metric).mean(axis=0)
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
        assert [outcome.holm for outcome in family] == holm([outcome.p for outcome in family])
    turned = compare(find_contenders(["beta", "alpha"], [runs]), ("P@1",), resamples=2000).outcomes[0]
    assert turned.verdict == "worse"
    (alone,) = compare(find_contenders(["alpha", "gamma"], [runs]), ("P@1",), resamples=2000).outcomes
    among = found.outcomes[1]
    assert (alone.low, alone.high, alone.p) == (among.low, among.high, among.p), "only the correction sees the others"
    assert alone.holm <= among.holm


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


def test_ideal_scores_row_by_row(runs: Path, dataset: Dataset) -> None:
    (alpha, _) = find_contenders(["a0", "b0"], [runs])
    weights = label_weights(dataset)
    assert weights is not None
    rows = [sorted(weights[dataset.test[[row]].indices], reverse=True) for row in range(dataset.test.shape[0])]
    largest = np.array([sum(row[:3]) for row in rows])
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
    assert "'alpha:beta=2:encoder=static', newest run a3" in str(refused.value)
    found = find_contenders(["alpha:beta=1", "alpha:beta=2:encoder=static", "alpha:encoder=tiny"], [runs])
    assert [contender.seeds for contender in found] == [[0, 1, 2], [3], [4]]
    with pytest.raises(UserError, match="there is beta=1, beta=2"):
        find_contenders(["alpha:beta=3", "beta"], [runs])
    with pytest.raises(UserError, match="no such key"):
        find_contenders(["alpha:bta=3", "beta"], [runs])


def test_an_old_record_counts_as_the_optimiser_it_was_trained_with(runs: Path, dataset: Dataset) -> None:
    """It has no `optimiser_table`, and its rows moved in their pools alone: it is no further seed of today's method."""
    old = {"method": "unidec", "params": {"beta": 1}}
    today = {"method": "unidec", "params": {"beta": 1, "optimiser_table": "exact"}}
    for seed in (0, 1):
        add_run(runs, dataset, f"old{seed}", seed=seed, config=old)
        add_run(runs, dataset, f"new{seed}", seed=seed + 1, config=today)
    with pytest.raises(UserError, match="2 different settings"):
        find_contenders(["unidec", "alpha"], [runs])
    found = find_contenders(["unidec:optimiser_table=touched", "unidec:optimiser_table=exact"], [runs])
    assert [[run.record.run_id for run in contender.runs] for contender in found] == [
        ["old0", "old1"],
        ["new0", "new1"],
    ]


def test_a_scorer_can_be_named(runs: Path, dataset: Dataset) -> None:
    """Two scorers of one training are different contenders."""
    record = add_scorers(add_run(runs, dataset, "s0", skill=0.9, config={"method": "scorers"}), dataset, 0.2)
    contenders = find_contenders(["scorers:clf", "scorers:own"], [runs])
    (outcome,) = compare(contenders, ("P@1",), resamples=200).outcomes
    assert outcome.difference == pytest.approx(record.metrics["P@1"] - record.scorers["clf"]["P@1"])
    assert outcome.verdict == "better"
    with pytest.raises(UserError, match="clf"):
        find_contenders(["scorers:clg", "alpha"], [runs])
    with pytest.raises(UserError, match="compared with itself"):
        find_contenders(["scorers", "scorers:own"], [runs])
    with pytest.raises(UserError, match="one scorer at a time"):
        find_contenders(["scorers:clf:own", "alpha"], [runs])


def test_collected_runs_are_compared_as_run_folders_are(runs: Path, tmp_path: Path, capsys: Any) -> None:
    """Committed results have no run folders: their per-row scores are in Parquet files."""
    collect([runs], None, [], tmp_path / "reports")
    names = ["alpha", "beta", "g0"]
    there = compare(find_contenders(names, [tmp_path / "reports"]), resamples=200)
    assert there.as_dict() == compare(find_contenders(names, [runs]), resamples=200).as_dict()
    assert {run.folder for one in there.contenders for run in one.runs} == {tmp_path / "reports" / "results"}
    words = ("report", "--compare", "alpha", "beta", "--runs", str(tmp_path / "reports"), "--metrics")
    assert call(*words, "nDCG@5") == 2
    assert "unknown metric 'nDCG@5'" in capsys.readouterr().err


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
    with pytest.raises(UserError, match=r"not run on elsewhere.*gamma on "):
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
    alpha, gamma = found.as_dict()["contenders"]
    assert alpha["std"]["P@1"] == pytest.approx(stdev(values))
    assert gamma["std"]["P@1"] is None
    for part in ("80 test rows", "200 draws", "alpha: 0, 1, 2"):
        assert part in found.as_table().caption
    said = "with other test rows and these trainings (a single one does not show how much trainings differ)"
    assert said in found.as_table().caption
    repeated = compare(find_contenders(["alpha", "beta"], [runs]), ("P@1",), resamples=200).as_table().caption
    assert "with other test rows and other trainings" in repeated
    assert "a single one" not in repeated


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
    found = json.loads(capsys.readouterr().out)
    assert found["reference"] == "alpha"
    assert [(one["name"], one["metric"]) for one in found["outcomes"]] == [("beta", "P@1"), ("beta", "nDCG@5")]
    assert found["contenders"][1]["runs"] == ["b0", "b1"]
    out = tmp_path / "table.tex"
    assert call("report", "--compare", "a0", "b0", "--runs", str(runs), "--out", str(out), "--resamples", "200") == 0
    assert r"\toprule" in out.read_text()


# -- what is refused, each with one clear line and exit code 2


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
        (["a0", "trial"], "validation rows"),
        (["a0", "swept"], "validation rows"),
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
def test_one_clear_line(words: list[str], message: str, mixed_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", "--compare", *words) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


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
    mixed_runs: Path,
    dataset: Dataset,
    capsys: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """fault 62"""
    add_run(mixed_runs, dataset, "other", seed=3, config={"method": "other"}, **change)
    command = ("report", "--compare", "a0", "other", "--resamples", "200")
    assert call(*command) == 2
    assert message in capsys.readouterr().err
    assert call(*command, "--allow-mixed", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [text for text in found["mixed"] if text.startswith(message)]
    assert found["fixed_denominator"] == ["PSP@1", "PSP@3", "PSP@5"]
    if "metric_version" in change:
        account.did("two runs whose records name metric versions 1 and 2, compared")
        account.saw(f"exit code 2: {message}; with --allow-mixed the result lists it as mixed")


def test_other_numbers_of_rows_are_never_paired(mixed_runs: Path) -> None:
    add_run(mixed_runs, load("synthetic:train=240,test=70,labels=60"), "other", config={"method": "other"})
    with pytest.raises(UserError, match="a0 has 80, other has 70"):
        compare(find_contenders(["a0", "other"], [mixed_runs]), allow_mixed=True)


def nan(scores: np.ndarray) -> np.ndarray:
    scores[7, 0] = np.nan
    return scores


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (nan, "not of one run"),
        (lambda scores: scores[:, :-1], "names 15"),
        (lambda scores: scores[:0], "not of one run"),
        (lambda scores: scores[0], "of shape \\(15,\\)"),
        (lambda scores: scores / 2, "not of one run"),
    ],
)
def test_scores_that_do_not_fit_the_record(damage: Any, message: str, mixed_runs: Path) -> None:
    file = mixed_runs / "b0" / "per_row.npy"
    np.save(file, damage(np.load(file, allow_pickle=False)), allow_pickle=False)
    write_manifest(mixed_runs / "b0", {})
    with pytest.raises(DataError, match=message):
        compare(find_contenders(["a0", "b0"], [mixed_runs]), resamples=200)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("per_row.npy", b"\1", "not those that"),
        ("manifest.json", b'{"files": {}}', "does not list"),
        ("manifest.json", None, "nothing vouches"),
    ],
)
def test_scores_that_do_not_fit_the_manifest(file: str, content: bytes | None, message: str, mixed_runs: Path) -> None:
    damaged = mixed_runs / "b0" / file
    damaged.unlink()
    if content:
        damaged.write_bytes(content)
    with pytest.raises(DataError, match=message):
        compare(find_contenders(["a0", "b0"], [mixed_runs]))


def test_trials_of_sweeps_are_in_no_table(mixed_runs: Path) -> None:
    records = find_records([mixed_runs])
    assert "trial" in {record.run_id for record in records}
    assert set(tidy(records)["run_id"]) == {"a0", "b0", "alone", "bare"}
    (table,) = comparison(records)
    assert "swept" not in {row[0].text for row in table.rows}
    trials = [record for record in records if record.run_id == "trial"]
    with pytest.raises(UserError, match="only 1 trials"):
        comparison(trials)


def test_which_settings_tell_runs_apart() -> None:
    """A trial is not a run, else a bench would take the one for the other; a record that is too old for a setting is.

    How rows would have been drawn for validation is no difference where none were.
    """
    config = {"method": "m", "seed": 0, "params": {"beta": 1}}
    unused = (None, "odd", {"size": 0.0}, {"size": 0, "draw": "any", "metric": "P@5"})
    same = [config, {**config, "evaluate": "test"}, *({**config, "validation": value} for value in unused)]
    assert len({*map(settings_of, same)}) == 1
    others = [{**config, "validation": {"size": 0.1, "draw": draw}} for draw in ("any", "covered")]
    others.append({**config, "evaluate": "validation"})
    assert len({*map(settings_of, [config, *others])}) == 4


def test_runs_without_a_common_metric(mixed_runs: Path) -> None:
    file = mixed_runs / "b0" / "record.json"
    record = RunRecord.model_validate_json(file.read_text())
    renamed = [name.replace("@", "@1") for name in record.per_row]
    file.write_text(record.model_copy(update={"per_row": renamed}).model_dump_json())
    with pytest.raises(UserError, match="no per-row metric in common"):
        compare(find_contenders(["a0", "b0"], [mixed_runs]))
