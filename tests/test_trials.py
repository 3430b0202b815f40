"""Runs that look at held-out rows alone, and runs that are ended because others did better: the trials of a sweep."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.data.ragged import Ragged
from harness.data.tokens import token_store
from harness.errors import Pruned, UserError
from harness.evaluation import Evaluator, Rows, Scored
from harness.record import RunRecord, read_record
from harness.resume import read_events
from harness.run import run
from tests.training_runs import config, only_run

pytestmark = pytest.mark.usefixtures("one_thread")

HELD = {"size": 0.25}


def trial(**values: Any) -> RunRecord:
    return run(config(evaluate="validation", validation=HELD, epochs=2, **values), track="none")


def test_a_trial_never_looks_at_test_rows(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    score = Evaluator.score

    def noted(self: Evaluator, scorer: Any, rows: Rows, *views: Any) -> dict[str, Scored]:
        seen.append(rows.name)
        return score(self, scorer, rows, *views)

    monkeypatch.setattr(Evaluator, "score", noted)
    record = trial()
    assert set(seen) == {"held-out rows"}
    assert record.metrics["P@1"] == pytest.approx(record.training["validation/P@1"])


def test_a_trial_does_not_even_read_test_texts(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    stored = token_store

    def noted(texts: Any, tokenizer: Any, max_len: int, progress: str, **more: Any) -> Ragged:
        told.append(progress)
        return stored(texts, tokenizer, max_len, progress, **more)

    monkeypatch.setattr("harness.run.token_store", noted)
    trial()
    assert told == ["tokenise train", "tokenise labels"]


def test_a_trial_leaves_a_record_and_no_model(workspace: Path) -> None:
    trial()
    left = {path.name for path in only_run(workspace).iterdir()}
    assert left == {"config.json", "events.jsonl", "record.json", "manifest.json"}


def test_a_run_on_test_rows_is_not_changed_by_being_one(workspace: Path) -> None:
    run(config(epochs=1), track="none")
    assert np.load(only_run(workspace) / "ids.npy", allow_pickle=False).shape[0] == 60


def test_without_held_out_rows_there_is_nothing_to_judge_by() -> None:
    with pytest.raises(UserError, match=r"validation\.size"):
        run(config(evaluate="validation"), track="none")


def test_every_validation_is_told_in_order(workspace: Path) -> None:
    told: list[tuple[int, float]] = []
    run(
        config(evaluate="validation", validation=HELD, epochs=3),
        track="none",
        on_validation=lambda epoch, scores: told.append((epoch, scores["P@1"])),
    )
    assert [epoch for epoch, _ in told] == [1, 2, 3]
    logged = [
        event["values"]["validation/P@1"]
        for event in read_events(only_run(workspace) / "events.jsonl")
        if "validation/P@1" in event.get("values", {})
    ]
    assert [score for _, score in told] == logged


@pytest.mark.parametrize("method", ["unidec", "tfidf-knn"])
def test_a_pruned_run_says_so(workspace: Path, method: str) -> None:
    def prune(epoch: int, scores: dict[str, float]) -> None:
        raise Pruned(f"after epoch {epoch}")

    from harness.config import Layer
    from harness.run import resolve_config
    from tests.training_runs import DATASET

    values = {"evaluate": "validation", "validation": HELD, "encoder": "tiny"}
    wanted = resolve_config(method, DATASET, [Layer("test", values)])[0]
    with pytest.raises(Pruned):
        run(wanted, track="none", on_validation=prune)
    record = read_record(only_run(workspace))
    assert (record.status, record.error, record.metrics) == ("pruned", "Pruned: after epoch 1", {})
    assert not (only_run(workspace) / "checkpoints").exists()
