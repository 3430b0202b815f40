"""Memory that runs out in a training step: smaller pieces, the same batches, the same losses. CUDA is simulated."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.errors import UserError
from harness.model.encoders.encoder import GROUPING, Grouping
from harness.model.encoders.transformer import TransformerEncoder
from harness.run import resolve_config, run
from harness.runs.events import read_events
from harness.runs.resume import find_earlier
from harness.settings.layers import Layer
from harness.settings.schema import RunConfig
from harness.train.loop import Training
from harness.train.optim.blocked import BlockedSgd
from tests.faults.accounts import Account
from tests.support.training_runs import DATASET, SETTINGS, config, only_run

pytestmark = pytest.mark.usefixtures("one_thread")

WHOLE = 1 << 20
"""Tokens of a piece that holds any batch of these tests."""
RENEE = {"label_block": 32, "warm_epochs": 1, "warm_batch_size": 60, "random_epochs": None, "refresh_epochs": None}


def settings(method: str, **more: Any) -> RunConfig:
    own = {key: value for key, value in SETTINGS.items() if key not in ("random_epochs", "refresh_epochs", "lr_heads")}
    values = {"unidec": SETTINGS, "dexml": {**own, "grad_cache_size": 64}, "renee": {**own, **RENEE}}[method]
    values = {key: value for key, value in values.items() if value is not None}
    return resolve_config(method, DATASET, [Layer("test", {**values, "epochs": 1, **more})])[0]


def losses(folder: Path) -> list[float]:
    return [
        event["values"]["train/loss"]
        for event in read_events(folder / "events.jsonl")
        if event["event"] == "metrics" and "train/loss" in event["values"]
    ]


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(folder / "events.jsonl") if event["event"] == kind]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many tokens with gradients fit into memory; without dropout, which is drawn piece by piece.

    Groups are as large as the pieces allow, so that one of them is all that is in memory.
    """
    whole, room = TransformerEncoder.forward, {"tokens": WHOLE}
    monkeypatch.setitem(GROUPING, "cpu", Grouping(call=WHOLE, most=WHOLE))

    def forward(self: TransformerEncoder, ids: Tensor, offsets: Tensor) -> Tensor:
        lengths = offsets.diff()
        if torch.is_grad_enabled() and len(lengths) and int(lengths.max()) * len(lengths) > room["tokens"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
        self.model.eval()
        return whole(self, ids, offsets)

    monkeypatch.setattr(TransformerEncoder, "forward", forward)
    return lambda tokens: room.update(tokens=tokens)


@pytest.mark.parametrize("method", ["unidec", "dexml", "renee"])
def test_smaller_pieces_of_the_same_batch_give_the_same_losses(
    device: Callable[[int], None], tmp_path: Path, method: str, account: Account
) -> None:
    """fault 29"""
    wanted = settings(method, micro_batch_tokens=4096)
    run(wanted, out=tmp_path / "roomy", track="none")
    device(700)
    record = run(wanted, out=tmp_path / "tight", track="none")
    roomy, tight = (next((tmp_path / name).glob("2*")) for name in ("roomy", "tight"))
    assert losses(tight) == pytest.approx(losses(roomy), abs=1e-5)
    told = events_of(tight, "out_of_memory")
    stages = 2 if method == "renee" else 1
    assert [event["pieces"] for event in told] == [2048, 1024, 512] * stages
    assert any("micro_batch_tokens=512" in warning for warning in record.warnings)
    assert not events_of(roomy, "out_of_memory")
    largest = max(abs(one - other) for one, other in zip(losses(tight), losses(roomy), strict=True))
    account.simulated("no CUDA device here")
    account.did(f"{method}: out of memory in pieces of more than 700 tokens, of 4,096 wanted")
    account.saw(
        f"pieces of {', '.join(str(event['pieces']) for event in told)}, logged; losses differ by {largest:.0e}"
    )


def test_a_cache_that_was_off_is_turned_on(device: Callable[[int], None], tmp_path: Path) -> None:
    """fault 29: pieces save nothing while the activations of all of them are kept"""
    device(700)
    record = run(settings("unidec", micro_batch_tokens=1024, gradient_cache=False), out=tmp_path, track="none")
    assert record.status == "finished"


def test_a_resumed_run_keeps_its_pieces(
    device: Callable[[int], None], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """faults 29 and 31: the checkpoint from before is there, and it knows the pieces"""
    device(700)
    counted, stop = Training._count, {"at": 2}

    def count(self: Training, *figures: Any) -> None:
        counted(self, *figures)
        if self.position.step == stop["at"]:
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "_count", count)
    # an interrupt inside a step gives up a checkpoint that a thread is writing
    wanted = config(epochs=1, micro_batch_tokens=4096, checkpoint={"every_steps": 1, "background": "never"})
    with pytest.raises(KeyboardInterrupt):
        run(wanted, track="none")
    folder = only_run(workspace)
    assert len(events_of(folder, "out_of_memory")) == 3
    stop["at"] = -1
    run(wanted, track="none", earlier=find_earlier(folder.name))
    assert len(events_of(folder, "out_of_memory")) == 3


def test_a_batch_that_never_fits_is_refused_with_what_to_do(device: Callable[[int], None], workspace: Path) -> None:
    device(1)
    with pytest.raises(UserError, match=r"out of memory at step 0.*batch_size.*harness plan"):
        run(config(epochs=1, micro_batch_tokens=2), track="none")
    assert only_run(workspace).joinpath("record.json").exists()


def test_a_classifier_of_which_half_has_moved_does_not_move_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def update(self: BlockedSgd, start: int, *rest: Any) -> None:
        calls.append(start)
        if start:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(BlockedSgd, "update", update)
    with pytest.raises(UserError, match="label_block"):
        run(settings("renee", warm_epochs=0), out=tmp_path, track="none")
    assert calls == [0, 32]


def test_another_error_is_not_swallowed(device: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: TransformerEncoder, ids: Tensor, offsets: Tensor) -> Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(TransformerEncoder, "forward", forward)
    with pytest.raises(RuntimeError, match="mat1"):
        run(config(epochs=1), track="none")
