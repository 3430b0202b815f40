"""UniDEC and DePSL with a transformer through the real pipeline, and what happens when their input is odd.

What every method has to keep is in `tests/methods/test_methods.py`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.data import load
from harness.data.ragged import Ragged
from harness.data.tokens import token_store
from harness.errors import Pruned, UserError
from harness.infer.load import load_run
from harness.io.files import read_manifest
from harness.model.encoders.encoder import load_encoder
from harness.run import resolve_config, run
from harness.runs.events import read_events
from harness.runs.record import read_record
from harness.settings.layers import Layer
from harness.settings.method import load_method
from harness.train import Batch
from harness.train.checkpoint import load_model
from harness.train.evaluation import Evaluator, Rows, Scored
from harness.train.inputs import tokenise, train_side, validation_split
from harness.train.objectives import psl
from harness.train.timing import Timer
from tests.support.training_runs import DATASET, STEPS, config, only_run, without_dropout

pytestmark = pytest.mark.usefixtures("one_thread")

PICK_SOME_LABELS = ("depsl", "depsl-v1", "unidec", "unidec-thesis", "unidec-v1")
GOLDEN = {
    "depsl": (3.91817, 3.99528, 3.86369, 3.81555),
    "depsl-v1": (3.91291, 3.94614, 3.87464, 3.84741),
    "unidec": (3.92671, 4.04915, 3.93616, 3.90704),
    "unidec-thesis": (10.95070, 9.00714, 7.65585, 6.99384),
    "unidec-v1": (9.02415, 7.38952, 6.50889, 6.13360),
}
"""Loss of every epoch of the small training without dropout; whoever changes one changes what the method computes."""
TOUCHED = {
    "unidec": (3.92677, 4.05017, 3.93779, 3.90860),
    "unidec-thesis": (10.95457, 8.94258, 7.64557, 6.99723),
    "unidec-v1": (9.02838, 7.38600, 6.52844, 6.13083),
}
"""The same with the optimiser of earlier versions: rows of Psi that no batch touches stay, eps is 1e-8."""


def figures(folder: Path, name: str) -> list[float]:
    """All logged values of one figure."""
    return [
        event["values"][name]
        for event in read_events(folder / "events.jsonl")
        if event["event"] == "metrics" and name in event["values"]
    ]


@pytest.mark.parametrize("method", PICK_SOME_LABELS)
def test_a_training_is_complete_and_gives_the_losses_it_always_gave(
    method: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_dropout(monkeypatch)
    record = run(config(method), track="none")
    folder = only_run(workspace)
    losses = figures(folder, "train/loss")
    assert losses == pytest.approx(GOLDEN[method], rel=2e-4)
    assert losses[-1] < losses[1]  # the first epoch, in random order and without hard negatives, is the easiest
    for name in (
        *("train/positives", "train/pool", "train/rows_per_second", "train/seconds", "peak_memory_gib"),
        *("lr/encoder", "lr/heads", *(("train/loss_d", "train/loss_c", "lr/classifier") if "uni" in method else ())),
    ):
        assert len(figures(folder, name)) == 4, name
    assert figures(folder, "train/epoch") == [1, 2, 3, 4]
    assert len(figures(folder, "mining/seconds")) == 2
    for share in ("encode", "pool", "loss", "backward", "optimiser"):
        assert all(0 < value < 1 for value in figures(folder, f"time/{share}")), share
    assert figures(folder, "lr/heads")[-1] < figures(folder, "lr/heads")[1]
    assert record.training["steps"] == STEPS
    assert record.training["seconds"] > 0
    assert record.training["processor_seconds"] > 0
    assert list(record.scorers) == (["concat", "de", "clf"] if "uni" in method else [])
    manifest = read_manifest(folder, verify=True)
    assert manifest is not None
    assert {"model/model.safetensors", "record.json", "ids.npy"} <= set(manifest["files"])
    assert not (folder / "checkpoints").exists()
    assert load_model(folder / "model")[1]["method"] == method


@pytest.mark.parametrize("method", sorted(TOUCHED))
def test_the_optimiser_of_earlier_versions_is_still_there(
    method: str, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_dropout(monkeypatch)
    run(config(method, optimiser_table="touched", eps=1e-8), track="none")
    assert figures(only_run(workspace), "train/loss") == pytest.approx(TOUCHED[method], rel=2e-4)


def test_dot_products_in_search_change_the_search_alone(workspace: Path) -> None:
    """The papers search on the unit sphere what they train without it; `plain-dot` is the same training."""
    found = {}
    for logits in ("dot", "plain-dot"):
        record = run(config("unidec-thesis", logits=logits, epochs=1, random_epochs=0), track="none")
        trained = load_run(record.run_id)
        scorer, texts = trained.parts.scoring, trained.label_tokens
        vectors = [find(texts, ("concat", "de", "clf")) for find in (scorer.label_vectors, scorer.query_vectors)]
        found[logits] = record, vectors, trained.parts.model.state_dict()
    (sphere, on_sphere, weights), (plain, by_dot, same) = found.values()
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    for scaled, raw in zip(on_sphere, by_dot, strict=True):  # of labels, then of queries
        np.testing.assert_array_equal(scaled["de"], raw["de"])
        lengths = np.linalg.norm(raw["clf"], axis=1, keepdims=True)
        assert lengths.std() > 0
        np.testing.assert_allclose(scaled["clf"] * lengths, raw["clf"], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(raw["concat"], np.hstack([raw["de"], raw["clf"]]))
    assert sphere.scorers["de"] == plain.scorers["de"]
    assert sphere.scorers["clf"] != plain.scorers["clf"]


def test_concatenated_scores_are_the_sum_of_both_heads() -> None:
    settings = config(epochs=1)
    encoder = load_encoder("tiny", seed=0)
    dataset = load(DATASET)
    tokens = tokenise(dataset, encoder, 32)
    method = load_method("unidec")
    rows = np.arange(dataset.train.shape[0])
    inputs = train_side(dataset, rows, tokens, encoder, "cpu", settings, print)
    parts = method.build(inputs, method.params.model_validate(settings.params))
    parts.stages()[0].begin()
    scorers = parts.scoring.scorers
    queries, labels = (
        parts.scoring.query_vectors(tokens.test, scorers),
        parts.scoring.label_vectors(tokens.labels, scorers),
    )
    scores = {scorer: queries[scorer] @ labels[scorer].T for scorer in scorers}
    assert scores["concat"] == pytest.approx(scores["de"] + scores["clf"], abs=1e-5)
    # started from label texts, the classifier scores as its head does: a cosine of two texts
    assert np.linalg.norm(labels["clf"], axis=1) == pytest.approx(1, abs=1e-5)
    assert len(labels["concat"]) == dataset.train.shape[1]


def test_the_scorer_option_decides_what_is_reported() -> None:
    record = run(config(scorer="clf", epochs=1), track="none")
    assert record.metrics == record.scorers["clf"]
    assert next(iter(record.scorers)) == "clf"
    assert set(record.scorers) == {"concat", "de", "clf"}


def test_training_stops_when_validation_no_longer_improves(workspace: Path) -> None:
    frozen = {"lr_encoder": 1e-12, "lr_heads": 1e-12, "lr_classifier": 1e-12}
    record = run(config(epochs=20, validation={"size": 0.2, "patience": 2}, **frozen), track="none")
    assert len(figures(only_run(workspace), "train/loss")) == 3
    assert record.training["best_epoch"] == 1


def test_held_out_rows_are_never_trained_on() -> None:
    dataset, settings = load(DATASET), config(validation={"size": 0.25})
    kept, held = validation_split(dataset, settings)
    assert len(held) == 60
    assert np.array_equal(np.sort(np.concatenate([kept, held])), np.arange(240))
    assert not np.array_equal(held, validation_split(dataset, config(validation={"size": 0.25}, seed=1))[1])


def test_learning_rates_without_measure_end_in_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"the loss became (nan|inf) at step 1 .* a new run with lower learning rates"):
        run(config("unidec-v1", lr_heads=1e38, warmup_epochs=0.0, schedule="constant"), track="none")


def test_divergence_stops_with_the_last_good_checkpoint(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = psl.PickSomeLabels.backward

    def diverging(self: psl.PickSomeLabels, batch: Batch, timer: Timer) -> dict[str, float]:
        return {**backward(self, batch, timer), **({"loss": float("nan")} if batch.step == 6 else {})}

    monkeypatch.setattr(psl.PickSomeLabels, "backward", diverging)
    with pytest.raises(UserError, match=r"the loss became nan at step 6 \(epoch 2\).* last good checkpoint is step 4"):
        run(config(), track="none")
    folder = only_run(workspace)
    assert read_record(folder).status == "failed"
    assert list((folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0}, "beta.*greater than or equal to 1"),
        ({"eta": -1}, "eta.*greater than or equal to 0"),
        ({"loss": "softmaxx"}, "loss.*no such loss.*decoupled-softmax"),
        ({"dim": 7}, "dim is 7.*even"),
        ({"loss_classifier": "bce", "bce_weight": 1.0}, "already is; set bce_weight to 0"),
        ({"temperature": 0.0}, "temperature.*greater than 0"),
        ({"validation": {"size": 0.001}}, "validation.size 0.001 of 240 train rows is no row"),
        ({"validation": {"size": 240}}, "leave some to train on"),
        ({"validation": {"size": 1.5}}, "share below 1 or a whole number of rows"),
        ({"validation": {"patience": 3}}, "patience needs rows"),
        ({"validation": {"size": 0.2, "metric": "P@7"}}, "unknown validation.metric 'P@7'"),
    ],
)
def test_senseless_settings_are_one_clear_line(settings: dict[str, object], message: str, workspace: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        run(config(**settings), track="none")
    assert len(str(error.value).splitlines()) == 1
    assert not (workspace / "runs").exists()


def test_a_batch_of_everything_and_no_negatives_left_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    row = json.dumps({"text": "everything at once", "labels": ["a", "b", "c"]})
    (folder / "train.jsonl").write_text("\n".join([row] * 40))
    (folder / "test.jsonl").write_text(row)
    (folder / "labels.jsonl").write_text("\n".join(json.dumps({"id": name, "text": name}) for name in "abc"))
    record = run(config(dataset=f"{folder}/", batch_size=500), track="none")
    assert any("a batch of 500 is more than the 40 train rows" in warning for warning in record.warnings)
    assert any("no label is left" in warning for warning in record.warnings)
    assert any("no query has a negative" in warning for warning in record.warnings)
    assert record.training["steps"] == 4
    assert "warning:" in capsys.readouterr().err


def test_labels_without_text_are_said(tmp_path: Path, workspace: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    words = ["ant", "bee", "cow", "dog", "emu"]
    rows = [{"text": words[i % 5] * 3, "labels": [str(i % 5)]} for i in range(30)]
    for name, lines in {
        "train": rows,
        "test": rows[:5],
        "labels": [{"id": str(i), "text": "" if i == 3 else f"label {i}"} for i in range(5)],
    }.items():
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    record = run(config(dataset=f"{folder}/", epochs=15, lr_classifier=0.05, scorer="clf"), track="none")
    assert any("1 labels have no text" in warning for warning in record.warnings)
    # each label is a function of a digit in the text; the classifier finds the one without text, too
    assert record.metrics["P@1"] == 100


def test_seeds_decide_the_model_and_how_it_is_saved_and_padded_does_not(workspace: Path) -> None:
    models, metrics = [], []
    saving = {"checkpoint": {"every_steps": 1}, "batch_tokens": 64}
    for changes in ({"seed": 0}, {"seed": 0, **saving}, {"seed": 1}):
        record = run(config(epochs=1, random_epochs=0, **changes), track="none")
        models.append((workspace / "runs" / record.run_id / "model" / "model.safetensors").read_bytes())
        metrics.append(record.metrics)
    assert models[0] == models[1] != models[2]
    assert metrics[0] == metrics[1]


# ---------------------------------------------------------------- validation rows alone: the trials of a sweep


def test_a_trial_never_looks_at_test_rows_and_leaves_a_record_alone(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []
    read: list[str] = []
    validated: list[tuple[int, float]] = []
    score, stored = Evaluator.score, token_store

    def noted(self: Evaluator, scoring: Any, rows: Rows, *scorers: Any) -> dict[str, Scored]:
        scored.append(rows.name)
        return score(self, scoring, rows, *scorers)

    def tokenised(texts: Any, tokenizer: Any, max_len: int, progress: str, **more: Any) -> Ragged:
        read.append(progress)
        return stored(texts, tokenizer, max_len, progress, **more)

    monkeypatch.setattr(Evaluator, "score", noted)
    monkeypatch.setattr("harness.train.inputs.token_store", tokenised)
    record = run(
        config(evaluate="validation", validation={"size": 0.25}, epochs=3),
        track="none",
        parent={"kind": "sweep", "id": "a-sweep"},
        on_validation=lambda epoch, scores: validated.append((epoch, scores["P@1"])),
    )
    assert set(scored) == {"validation rows"}
    assert read == ["tokenise train", "tokenise labels"]
    assert record.metrics["P@1"] == pytest.approx(record.training["validation/P@1"])
    folder = only_run(workspace)
    assert {path.name for path in folder.iterdir()} == {"config.json", "events.jsonl", "record.json", "manifest.json"}
    assert [epoch for epoch, _ in validated] == [1, 2, 3]
    logged = [event["values"] for event in read_events(folder / "events.jsonl") if event["event"] == "metrics"]
    scores = [values["validation/P@1"] for values in logged if "validation/P@1" in values]
    assert [score for _, score in validated] == scores
    assert record.training["validation/P@1"] == max(scores)
    assert record.training["best_epoch"] == 1 + scores.index(max(scores))


def test_without_held_out_rows_there_is_nothing_to_judge_by() -> None:
    with pytest.raises(UserError, match=r"validation\.size"):
        run(config(evaluate="validation"), track="none")


@pytest.mark.parametrize("method", ["unidec", "tfidf-knn"])
def test_a_pruned_run_says_so(workspace: Path, method: str) -> None:
    def prune(epoch: int, scores: dict[str, float]) -> None:
        raise Pruned(f"after epoch {epoch}")

    values = {"evaluate": "validation", "validation": {"size": 0.25}, "encoder": "tiny"}
    wanted = resolve_config(method, DATASET, [Layer("test", values)])[0]
    with pytest.raises(Pruned):
        run(wanted, track="none", on_validation=prune)
    record = read_record(only_run(workspace))
    assert (record.status, record.error, record.metrics) == ("pruned", "Pruned: after epoch 1", {})
    assert not (only_run(workspace) / "checkpoints").exists()
