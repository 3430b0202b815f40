"""Augmented rows in whole runs: what is recorded, what stays un-augmented, resuming, and mistakes of users."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.augment import with_augmented_rows
from harness.data import load
from harness.errors import UserError
from harness.infer.load import load_run
from harness.model.encoders.encoder import load_encoder
from harness.run import resolve_config, run
from harness.runs.events import read_events
from harness.runs.resume import find_earlier
from harness.settings.layers import Layer
from harness.settings.method import Inputs, Parts, load_method
from harness.train.inputs import tokenise, train_side, validation_split
from tests.support.commands import call
from tests.support.interrupted_runs import killed_after
from tests.support.training_runs import DATASET, config, in_child, only_run

pytestmark = pytest.mark.usefixtures("one_thread")


def frozen(**values: object) -> Any:
    """Settings of a run without training."""
    return resolve_config("zeroshot", DATASET, [Layer("test", {"encoder": "tiny", **values})])[0]


def inputs_of(settings: Any) -> tuple[Inputs, dict[str, Any]]:
    """What a method would build from, and metadata about it."""
    dataset, encoder = load(settings.dataset), load_encoder("tiny", seed=0)
    kept, _ = validation_split(dataset, settings)
    tokens = tokenise(dataset, encoder, 32, kept)
    return with_augmented_rows(train_side(dataset, kept, tokens, encoder, "cpu", settings, print), settings)


def test_a_run_says_and_records_what_was_made_and_loads_without_it(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = run(config(augment="gandalf", epochs=1), track="none")
    metadata = record.augmentation
    seen = int((load(DATASET).train.sum(axis=0) > 0).sum())
    assert metadata["name"] == "gandalf"
    assert (metadata["rows"], metadata["made"], metadata["soft"]) == (240 + seen, seen, True)
    assert metadata["targets_per_made_row"] > 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("augment=gandalf: ")]
    assert len(said) == 1
    assert f"{seen} augmented rows" in said[0]
    events = [event for event in read_events(only_run(workspace) / "events.jsonl") if event["event"] == "augmentation"]
    assert [event["made"] for event in events] == [seen]
    monkeypatch.setattr("harness.augment.augment", lambda *_, **__: pytest.fail("rows are made again"))
    assert load_run(record.run_id).parts.model is not None


def test_a_method_gets_the_augmented_rows_and_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    got = []
    build = load_method("zeroshot").build

    def watched(inputs: Inputs, params: Any) -> Parts:
        got.append(inputs)
        return build(inputs, params)

    method = load_method("zeroshot")
    monkeypatch.setattr("harness.run.load_method", lambda name: type(method)(method.params, watched))
    record = run(frozen(augment="mixup"), track="none")
    (inputs,) = got
    assert inputs.soft
    assert inputs.train.shape[0] == len(inputs.train_tokens) == inputs.train_filter.shape[0] == 480
    assert record.augmentation["made"] == 240


def test_labels_are_measured_on_the_rows_of_the_dataset() -> None:
    """Propensities and head, torso and tail know nothing of augmented rows."""
    plain = run(frozen(), track="none")
    assert any(name.startswith("PSP") for name in plain.metrics)
    for kind in ("one-hot", "gandalf"):
        record = run(frozen(augment=kind, augment_options={"rows": 100}), track="none")
        assert record.metrics == plain.metrics
        assert record.contributions == plain.contributions
        assert record.dataset == plain.dataset


def test_held_out_rows_are_never_counted() -> None:
    settings = config(augment="gandalf", validation={"size": 0.5}, augment_options={"delta": 0.0, "keep": "made"})
    inputs, metadata = inputs_of(settings)
    dataset = load(DATASET)
    kept, held = validation_split(dataset, settings)
    counted = dataset.train[kept].toarray().astype(np.float64)
    seen = counted.any(axis=0)
    expected = (counted.T @ counted / np.maximum(counted.sum(axis=0), 1)[:, None])[seen]
    assert len(held) == 120
    assert metadata["made"] == seen.sum() < dataset.train[held].toarray().any(axis=0).sum() + seen.sum()
    assert inputs.train.toarray() == pytest.approx(expected, abs=1e-6)


def test_augmented_rows_are_read_like_texts_of_the_dataset() -> None:
    """The frame of the tokenizer is found: mixed rows begin and end as all rows do."""
    inputs, _ = inputs_of(config(augment="mixup"))
    before, after = inputs.encoder.tokenizer.frame
    tokens = inputs.train_tokens
    for row in range(len(tokens)):
        ids = tokens[row].tolist()
        assert (ids[: len(before)], ids[len(ids) - len(after) :]) == (before, after)
        assert not set(ids[len(before) : len(ids) - len(after)]) & {*before, *after}


def test_a_resumed_run_makes_the_same_rows(workspace: Path, tmp_path: Path) -> None:
    """Killed in the middle and taken up again, it ends with the bits of a run that never stopped."""
    settings = config(augment="mixup", epochs=2)
    whole = run(settings, track="none", out=tmp_path / "whole")
    assert in_child(lambda: killed_after(6, settings), tmp_path / "said") == -signal.SIGKILL
    folder = only_run(workspace)
    with pytest.raises(UserError, match=r'config\.augment: "mixup" -> "gandalf"'):
        run(config(augment="gandalf", epochs=2), track="none", earlier=find_earlier(folder.name))
    resumed = run(settings, track="none", earlier=find_earlier(folder.name))
    assert resumed.augmentation == whole.augmentation
    assert resumed.metrics == whole.metrics
    weights = [path / "model" / "model.safetensors" for path in (folder, tmp_path / "whole" / whole.run_id)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_what_is_not_saved_is_built_from_the_augmented_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    record = run(frozen(augment="one-hot"), track="none")
    sizes: list[int] = []
    method = load_method("zeroshot")

    def watched(inputs: Inputs, params: Any) -> Parts:
        sizes.append(inputs.train.shape[0])
        return method.build(inputs, params)

    monkeypatch.setattr("harness.infer.load.load_method", lambda name: type(method)(method.params, watched))
    load_run(record.run_id)
    assert sizes[-1] == 240 + 90


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("augment=gandlaf", "did you mean 'gandalf'?"),
        ("augment=nonne", "did you mean 'none'?"),
        ("augment=3", "augment: "),
        ("augment_options.delta=1", "augment_options.delta: "),
        ("augment_options.delta=-0.1", "augment_options.delta: "),
        ("augment_options.delta=.nan", "augment_options.delta: "),
        ("augment_options.labels=0", "augment_options.labels: "),
        ("augment_options.labels=1.1", "augment_options.labels: "),
        ("augment_options.order=head-first", "augment_options.order: "),
        ("augment_options.keep=none", "augment_options.keep: "),
        ("augment_options.rows=0", "augment_options.rows: "),
        ("augment_options.detla=0.2", "did you mean 'delta'?"),
    ],
)
def test_a_mistake_is_one_clear_line(override: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 65"""
    assert call("run", "--method", "zeroshot", "--dataset", DATASET, "--set", override) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 1
    assert expected in lines[0]
