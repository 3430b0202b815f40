"""Runs that look at validation rows alone, and runs that are ended because others did better: the trials of a sweep."""

from pathlib import Path
from typing import Any

import pytest

from harness.data.ragged import Ragged
from harness.data.tokens import token_store
from harness.errors import Pruned, UserError
from harness.run import resolve_config, run
from harness.runs.events import read_events
from harness.runs.record import read_record
from harness.settings.layers import Layer
from harness.train.evaluation import Evaluator, Rows, Scored
from tests.support.training_runs import DATASET, config, only_run

pytestmark = pytest.mark.usefixtures("one_thread")

HELD = {"size": 0.25}


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
        config(evaluate="validation", validation=HELD, epochs=3),
        track="none",
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

    values = {"evaluate": "validation", "validation": HELD, "encoder": "tiny"}
    wanted = resolve_config(method, DATASET, [Layer("test", values)])[0]
    with pytest.raises(Pruned):
        run(wanted, track="none", on_validation=prune)
    record = read_record(only_run(workspace))
    assert (record.status, record.error, record.metrics) == ("pruned", "Pruned: after epoch 1", {})
    assert not (only_run(workspace) / "checkpoints").exists()
