"""The weight of scorer `fused`: chosen as a plain program would, on validation rows alone, and kept over kills."""

import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array

import harness.run
from harness.data import Dataset, load
from harness.data.tokens import tokenize
from harness.errors import UserError
from harness.experiments import sweep
from harness.experiments.bench.plan import plan
from harness.experiments.bench.store import RunStore
from harness.experiments.sweep.plan import make_plan as make_sweep
from harness.experiments.sweep.results import best_settings
from harness.index.fusion import plainest
from harness.infer.export import export_run
from harness.infer.load import load_run
from harness.infer.predict import predict
from harness.infer.serve import load_package
from harness.io.files import read_json, write_json
from harness.plan.devices import chosen_target
from harness.plan.estimate import make_plan
from harness.report.results import own_scorer
from harness.run import resolve_config, run
from harness.runs.events import LOG, read_events
from harness.runs.lock import run_lock
from harness.runs.package import assemble
from harness.runs.record import RunRecord, read_record, runs_folder
from harness.runs.resume import find_earlier
from harness.settings.layers import Layer
from harness.settings.schema import RunConfig
from harness.train import fusion
from harness.train.fusion import EXPONENTS, WEIGHTS, best_labels, run_before
from harness.train.inputs import tokenise, validation_split
from tests.support.bench_cells import request
from tests.support.commands import call
from tests.support.interrupted_runs import killed_after
from tests.support.training_runs import DATASET, SETTINGS, STEPS, config, in_child

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT: dict[str, dict[str, Any]] = {
    "unidec": {"epochs": 2},
    "unidec-thesis": {"epochs": 2},
    "unidec-v1": {"epochs": 2},
    "ngame": {"epochs": 1, "classifier_epochs": 1, "lr_heads": None, "random_epochs": None},
    "renee": {"epochs": 1, "warm_epochs": 1, "lr_heads": None, "random_epochs": None, "refresh_epochs": None},
}
BASE = ("encoder", "batch_size", "epochs", "warmup_epochs", "lr_encoder", "checkpoint")


def settings(method: str = "unidec", **values: Any) -> RunConfig:
    """Settings of a small run of any method with two heads, with scorer `fused`."""
    own = {key: SETTINGS[key] for key in BASE} | {k: v for k, v in SHORT[method].items() if v is not None}
    return resolve_config(method, DATASET, [Layer("small", own), Layer("test", {"scorer": "fused", **values})])[0]


def folders() -> list[Path]:
    """The run folders in the order in which they began; names have but the second."""
    return sorted(runs_folder().glob("*/"), key=lambda path: read_events(path / LOG)[0]["started"])


def as_ranked(scores: NDArray[np.float64], exclude: csr_array, k: int) -> NDArray[np.int64]:
    """The best k labels of every row by sorting, equal float32 scores by smaller label; -1 for a masked one."""
    scores = scores.astype(np.float32).astype(np.float64)
    scores[exclude.toarray() != 0] = -np.inf
    scores[~np.isfinite(scores)] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.where(np.isinf(np.take_along_axis(scores, order, 1)), -1, order)


@pytest.mark.parametrize("blocks", [(256, 8192), (7, 45)])
def test_best_labels_are_those_of_all_scores_sorted(blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "_ROWS", blocks[0])
    monkeypatch.setattr(fusion, "_LABELS", blocks[1])
    draw = np.random.default_rng(0)
    queries = {"de": draw.normal(size=(30, 6)).astype("f4"), "clf": 5 * draw.normal(size=(30, 4)).astype("f4")}
    labels = {"de": draw.normal(size=(100, 6)).astype("f4"), "clf": draw.normal(size=(100, 4)).astype("f4")}
    for part in labels.values():  # labels that no score tells apart
        part[50:60] = part[10:20]
        part[99] = part[0]
    queries["de"][3, 2], labels["clf"][7, 1], labels["de"][8, 0] = np.nan, np.inf, -np.inf
    exclude = csr_array(draw.random((30, 100)) < 0.1)
    found = best_labels(queries, labels, WEIGHTS, 5, exclude, "cpu")
    broken = np.zeros((30, 100), bool)
    broken[3], broken[:, 7], broken[:, 8] = True, True, True
    de, clf = (
        np.where(broken, 0, np.nan_to_num(queries[n]).astype("f8") @ np.nan_to_num(labels[n]).T) for n in queries
    )
    for weight, ids in zip(WEIGHTS, found, strict=True):
        expected = as_ranked(weight * de + (1 - weight) * clf, csr_array((exclude.toarray() != 0) | broken), 5)
        np.testing.assert_array_equal(ids, expected)


def test_fewer_labels_than_asked_for() -> None:
    vectors = {name: np.eye(3, dtype="f4") for name in ("de", "clf")}
    (ids,) = best_labels(vectors, vectors, (0.5,), 5, csr_array(np.eye(3)[[1, 1, 1]]), "cpu")
    assert ids.tolist() == [[0, 2, -1, -1, -1], [0, 2, -1, -1, -1], [2, 0, -1, -1, -1]]


def test_the_weights_tried() -> None:
    assert WEIGHTS[0] == 0
    assert WEIGHTS[-1] == 1
    assert 0.5 in WEIGHTS
    assert list(WEIGHTS) == sorted(set(WEIGHTS))
    odds = [weight / (1 - weight) for weight in WEIGHTS[1:-1]]
    for wanted in (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8, 16, 32):
        assert min(abs(found / wanted - 1) for found in odds) < 1e-12


@pytest.mark.parametrize(("ahead", "taken"), [(8, 0.5), (12, WEIGHTS[5])])
def test_a_lead_within_its_error_leaves_the_papers_sum(ahead: int, taken: float) -> None:
    """Right in so many rows more, and in 50 for 50 others: the error is the root of all that differ, about 10."""
    equal = np.tile([0.0, 100.0], 200)
    best = equal.copy()
    best[0 : 2 * (ahead + 50) : 2], best[1:101:2] = 100.0, 0.0
    worst = np.zeros(400)
    by_row = [best if weight == WEIGHTS[5] else equal if weight == 0.5 else worst for weight in WEIGHTS]
    assert WEIGHTS[plainest([float(one.mean()) for one in by_row], by_row, list(map(abs, EXPONENTS)))] == taken


def precision(held: NDArray[np.int64], data: Dataset, scores: NDArray[np.float64]) -> float:
    best = as_ranked(scores, data.train_filter[held], 1)[:, 0]
    return float(100 * np.mean([label in data.train[[row]].indices for row, label in zip(held, best, strict=True)]))


def test_with_validation_rows_one_training_chooses_on_them() -> None:
    wanted = settings(validation={"size": 0.25, "every_epochs": 1000})
    record = run(wanted, track="none")
    assert len(folders()) == 1
    chosen = record.training["fused"]
    model = load_run(record.run_id)
    _, held = validation_split(model.dataset, wanted)
    scoring: Any = model.parts.scoring
    assert scoring.fused_weight == chosen["weight"]
    tokens = tokenise(model.dataset, model.encoder, model.max_len, validation_split(model.dataset, wanted)[0])
    queries = scoring.query_vectors(tokens.train.take(held), ("de", "clf", "fused"))
    labels = scoring.label_vectors(model.label_tokens, ("de", "clf", "fused"))
    de, clf = (queries[name].astype("f8") @ labels[name].T for name in ("de", "clf"))
    grid = [[weight, precision(held, model.dataset, weight * de + (1 - weight) * clf)] for weight in WEIGHTS]
    assert np.allclose(chosen["grid"], grid)
    value = next(value for weight, value in grid if weight == pytest.approx(chosen["weight"]))
    assert (chosen["metric"], chosen["rows"], chosen["run"]) == ("P@1", len(held), None)
    assert chosen["value"] == pytest.approx(value)
    assert record.training["validation/P@1"] == pytest.approx(value)
    np.testing.assert_allclose(
        queries["fused"] @ labels["fused"].T, chosen["weight"] * de + (1 - chosen["weight"]) * clf, atol=1e-5
    )


def test_the_metric_that_the_run_names_decides() -> None:
    values = {"size": 0.25, "every_epochs": 1000}
    records = [run(settings(validation={**values, "metric": name}), track="none").training for name in ("P@5", "PSP@3")]
    grids = [record["fused"]["grid"] for record in records]
    assert [record["fused"]["metric"] for record in records] == ["P@5", "PSP@3"]
    assert grids[0] != grids[1]
    for record, grid in zip(records, grids, strict=True):
        assert [record["fused"]["weight"], record["fused"]["value"]] in grid


@pytest.mark.parametrize("equal", [True, False])
def test_without_rows_the_best_counts_and_of_equal_ones_the_nearest_to_a_half(equal: bool) -> None:
    values = [1.0 if equal or weight in (0.0, WEIGHTS[3], 1.0) else 0.5 for weight in WEIGHTS]
    assert WEIGHTS[plainest(values, [None] * len(values), list(map(abs, EXPONENTS)))] == (0.5 if equal else WEIGHTS[3])


@pytest.mark.parametrize("method", SHORT)
def test_weights_0_and_1_and_a_half_are_the_other_scorers(method: str) -> None:
    for weight, other in ((0.0, "clf"), (1.0, "de"), (0.5, "concat")):
        record = run(settings(method, fused_weight=weight), track="none")
        folder = runs_folder() / record.run_id
        assert next(iter(record.scorers)) == "fused"
        assert set(record.scorers) == {"fused", "concat", "de", "clf"}
        assert record.scorers["fused"] == record.scorers[other] == record.metrics
        np.testing.assert_array_equal(np.load(folder / "per_row.npy"), np.load(folder / f"per_row.{other}.npy"))
        assert own_scorer(record) == "fused"
        assert own_scorer(record.model_copy(update={"scorers": dict(sorted(record.scorers.items()))})) == "fused"
        assert "fused" not in record.training
        trained = load_run(record.run_id)
        texts = list(trained.dataset.test_text)[:9]
        ours, theirs = predict(trained, texts, 7), predict(trained, texts, 7, scorer=other)
        assert [[one.label for one in row] for row in ours] == [[one.label for one in row] for row in theirs]
        scale = 0.5 if other == "concat" else 1
        assert [[one.score for one in row] for row in ours] == [[one.score * scale for one in row] for row in theirs]


class Unread:
    """Test rows that must not be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"test rows were read: {name}")


def test_a_run_goes_before_that_sees_no_test_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def watched(*names: Any, **options: Any) -> Dataset:
        unread: Any = Unread()
        seen.append("first")
        return replace(load(*names, **options), test=unread, test_text=unread)

    pipeline = harness.run.run

    def recorded_run(wanted: RunConfig, **options: Any) -> RunRecord:
        with pytest.MonkeyPatch.context() as patch:
            if wanted.evaluate == "validation":
                patch.setattr("harness.run.load", watched)
                patch.setattr(fusion, "load", watched)
            return pipeline(wanted, **options)

    monkeypatch.setattr(harness.run, "run", recorded_run)
    wanted = settings()
    record = recorded_run(wanted, track="none")
    assert seen
    first, second = (read_record(path) for path in folders())
    assert second == record
    assert (first.config["evaluate"], first.config["validation"]["size"]) == ("validation", 0.1)
    chosen = record.training["fused"]
    assert chosen == first.training["fused"] | {"run": first.run_id, "seconds": first.seconds}
    assert chosen["rows"] == 24
    assert first.scorers["fused"]["P@1"] == pytest.approx(chosen["value"])
    assert record.config["params"]["fused_weight"] is None
    assert read_json(folders()[0] / "config.json")["origins"]["evaluate"] == "chooses the weight of scorer fused"
    assert "begins with a training of its own" in capsys.readouterr().err
    # the second training is the one that it would have been with the weight given, to the bit
    given = pipeline(settings(fused_weight=chosen["weight"]), track="none")
    assert given.scorers == record.scorers
    model = Path("model", "model.safetensors")
    assert (folders()[1] / model).read_bytes() == (runs_folder() / given.run_id / model).read_bytes()
    # and the same command again takes the weight of the first run
    before = len(folders())
    again = pipeline(wanted, track="none")
    assert len(folders()) == before + 1
    assert again.training["fused"] == chosen
    assert f"from run {first.run_id}" in capsys.readouterr().err


def test_other_settings_choose_again() -> None:
    run(settings(), track="none")
    for values in ({"seed": 1}, {"validation": {"metric": "P@3"}}, {"beta": 2}, {"validation": {"draw": "any"}}):
        before = len(folders())
        run(settings(**values), track="none")
        assert len(folders()) == before + 2


def test_damaged_and_unfinished_runs_choose_nothing() -> None:
    record = run(settings(), track="none")
    first = folders()[0]
    values = read_json(first / "record.json")
    for damaged in ({"weight": 3}, {}, "0.5", {**record.training["fused"], "weight": "nan"}):
        write_json(first / "record.json", {**values, "training": {**values["training"], "fused": damaged}})
        assert fusion.earlier_choice(run_before(settings()) or settings(), None) is None
    (first / "record.json").write_text("{")
    assert fusion.earlier_choice(run_before(settings()) or settings(), None) is None
    write_json(first / "record.json", {**values, "status": "failed", "error": "no"})
    assert fusion.earlier_choice(run_before(settings()) or settings(), None) is None


def test_a_damaged_weight_is_refused_by_prediction() -> None:
    record = run(settings(fused_weight=0.25), track="none")
    file = runs_folder() / record.run_id / "record.json"
    values = read_json(file)
    values["config"]["params"]["fused_weight"] = None
    for damaged in ({"weight": 3}, {"weight": "much"}, [1]):
        values["training"]["fused"] = damaged
        write_json(file, values)
        with pytest.raises(UserError, match=r"training.fused: params.fused_weight"):
            load_run(record.run_id)
    del values["training"]["fused"]
    write_json(file, values)
    trained = load_run(record.run_id)
    assert predict(trained, ["x"], 1, scorer="clf")
    with pytest.raises(UserError, match="weight of scorer fused was not chosen"):
        predict(trained, ["x"], 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_in_the_first_run_the_same_command_goes_on(
    number: signal.Signals,
    tmp_path: Path,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wanted = settings(epochs=4)
    whole = run(wanted, track="none")
    monkeypatch.setenv("HARNESS_HOME", str(tmp_path / "killed"))
    code = in_child(partial(killed_after, 6, wanted, number), tmp_path / "err")
    assert code == (-number if number == signal.SIGKILL else 1)
    (first,) = folders()
    if number == signal.SIGTERM:
        assert "or give the same command again" in (tmp_path / "err").read_text()
    capsys.readouterr()
    record = run(wanted, track="none")
    assert f"goes on with run {first.name}" in capsys.readouterr().err
    assert len(folders()) == 2
    assert read_record(first).resumed
    same_result(record, whole)


def same_result(record: RunRecord, whole: RunRecord) -> None:
    chosen = [
        {k: v for k, v in one.training["fused"].items() if k not in ("run", "seconds")} for one in (record, whole)
    ]
    assert chosen[0] == chosen[1]
    assert record.scorers == whole.scorers
    assert record.metrics == whole.metrics


def test_the_first_run_resumed_by_name_is_taken_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settings(epochs=4)
    assert in_child(partial(killed_after, 6, wanted), tmp_path / "err") == -signal.SIGKILL
    (first,) = folders()
    before = run_before(wanted)
    assert before is not None
    resumed = run(before, track="none", earlier=find_earlier(first.name))
    assert resumed.training["fused"]["run"] is None
    record = run(wanted, track="none")
    assert record.training["fused"]["run"] == first.name
    assert len(folders()) == 2


def test_killed_in_the_second_run_it_is_resumed_with_its_weight(tmp_path: Path) -> None:
    wanted = settings(epochs=4)
    whole = run(wanted, track="none")
    killed = partial(killed_after, STEPS // 2, wanted)  # the first run is found, so these are steps of the second
    assert in_child(killed, tmp_path / "err") == -signal.SIGKILL
    first, second = folders()[0], folders()[-1]
    for path in first.iterdir():  # the log of the second run has the weight
        path.unlink() if path.is_file() else None
    record = run(wanted, track="none", earlier=find_earlier(second.name))
    assert record.training["fused"]["run"] == first.name
    same_result(record, whole)


def test_a_first_run_that_another_process_does_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settings(epochs=4)
    assert in_child(partial(killed_after, 6, wanted), tmp_path / "err") == -signal.SIGKILL
    (first,) = folders()
    with run_lock(first), pytest.raises(UserError, match=r"chosen by another process: run .* is locked by pid"):
        run(wanted, track="none")


def test_runs_that_choose_nothing_have_no_run_before() -> None:
    assert run_before(settings(fused_weight=0.3)) is None
    assert run_before(settings(scorer="concat")) is None
    assert run_before(settings(validation={"size": 0.2})) is None
    assert run_before(settings(evaluate="validation", validation={"size": 0.2})) is None
    assert run_before(config("depsl", lr_heads=1e-3)) is None


@pytest.mark.parametrize("weight", [-0.1, 1.1, "nan", float("nan"), float("inf"), "half", True])
def test_weights_outside_0_and_1_are_refused(weight: Any) -> None:
    with pytest.raises(UserError, match="fused_weight"):
        settings(fused_weight=weight)


def test_a_weight_without_its_scorer_and_a_scorer_without_heads() -> None:
    with pytest.raises(UserError, match="fused_weight is the weight of scorer fused, but the scorer is clf"):
        settings("ngame", scorer="clf", fused_weight=0.5)
    for method in ("depsl", "dexml", "zeroshot", "parabel"):
        with pytest.raises(UserError, match="unknown key 'scorer'"):
            resolve_config(method, DATASET, [Layer("--set scorer=fused", {"scorer": "fused"})])


def test_faults_of_validation_rows_are_found_before_any_training() -> None:
    for values, why in (
        ({"metric": "P@2"}, "unknown validation.metric"),
        ({"patience": 2}, "patience"),
    ):
        with pytest.raises(UserError, match=why):
            run(settings(validation=values), track="none")
    assert not runs_folder().exists() or not folders()


def test_the_model_is_exported_and_served_with_its_weight(tmp_path: Path) -> None:
    record = run(settings("renee"), track="none")
    trained, weight = load_run(record.run_id), record.training["fused"]["weight"]
    texts = list(trained.dataset.test_text)[:5]
    export_run(trained, "safetensors", tmp_path / "weights")
    assert read_json(tmp_path / "weights" / "config.json")["facts"]["params"]["fused_weight"] == weight
    assemble(runs_folder() / record.run_id, tmp_path / "package")
    served = load_package(tmp_path / "package")
    assert predict(served, texts, 5) == predict(trained, texts, 5)
    scoring: Any = trained.parts.scoring
    tokens = tokenize(texts, trained.encoder.tokenizer, trained.max_len)
    vectors = scoring.query_vectors(tokens, ("de", "clf")), scoring.label_vectors(trained.label_tokens, ("de", "clf"))
    de, clf = (vectors[0][name].astype("f8") @ vectors[1][name].T for name in ("de", "clf"))
    best = (weight * de + (1 - weight) * clf).max(1)
    np.testing.assert_allclose([row[0].score for row in predict(served, texts, 1)], best, rtol=1e-4)


def test_a_bench_cell_is_the_run_that_chose_for_itself() -> None:
    cells = plan(request("renee", "0", settings=("scorer=fused", "epochs=1", "warm_epochs=0", "batch_size=60")))
    (cell,) = cells
    record = run(cell.config, track="none")
    assert RunStore(runs_folder()).look(cell).done == record
    with pytest.raises(UserError, match="patience"):
        plan(request("renee", "0", settings=("scorer=fused", "validation.patience=2")))
    with pytest.raises(UserError, match=r"unknown validation\.metric"):
        plan(request("renee", "0", settings=("scorer=fused", "validation.metric=P@2")))


def test_a_plan_counts_both_trainings() -> None:
    fused, alone = (
        make_plan("unidec", DATASET, [Layer("test", {"encoder": "tiny", **values})], chosen_target("cpu"))
        for values in ({"scorer": "fused"}, {"scorer": "fused", "fused_weight": 0.5})
    )
    once = alone.total_seconds - alone.evaluation_seconds
    assert fused.total_seconds - fused.evaluation_seconds == pytest.approx(1.9 * once)
    assert any("two trainings" in note for note in fused.notes)
    assert not alone.notes
    assert fused.device_bytes >= alone.device_bytes > 0


def test_the_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset", DATASET, "--track", "none", "--set", "encoder=tiny", "--set", "epochs=1"]
    assert call("run", *words, "--set", "scorer=fused") == 0
    out, err = capsys.readouterr()
    assert "de + " in out
    assert "chosen by run" in out
    assert "a training of its own" in err
    assert call("bench", "--methods", "unidec", *words[:2], "--set", "scorer=fused", "--dry-run") == 2  # no --dataset
    capsys.readouterr()
    dry = ["--methods", "unidec,ngame", "--datasets", DATASET, "--set", "encoder=tiny", "--set", "scorer=fused"]
    assert call("bench", *dry, "--dry-run") == 0
    assert "2 of them train twice" in capsys.readouterr().out
    for bad in ("fused_weight=2", "scorer=fuzed"):
        assert call("run", *words, "--set", "scorer=fused", "--set", bad) == 2
        assert "error: --set" in capsys.readouterr().err


def test_the_best_of_a_sweep_is_judged_by_its_objective(tmp_path: Path) -> None:
    settings = ("scorer=fused", "epochs=1", "batch_size=60", "validation.draw=any")
    wanted = sweep.Request(
        method="unidec",
        dataset=DATASET,
        trials=1,
        encoder="tiny",
        over="beta",
        objective="PSP@5",
        settings=settings,
        out=tmp_path / "out",
        track="none",
    )
    made = make_sweep(wanted, sweep.Timing())
    best = best_settings(made, {"beta": 2})
    assert best["validation"] == {"metric": "PSP@5", "draw": "any"}
    final = resolve_config("unidec", DATASET, [Layer("best", best)])[0]
    before = run_before(final)
    assert before is not None
    assert (before.validation.metric, before.validation.draw, before.params["beta"]) == ("PSP@5", "any", 2)
