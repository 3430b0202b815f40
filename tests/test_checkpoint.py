"""Checkpoints: whole or absent, verified when read, and never lost while a newer one is written."""

import errno
import math
import os
import pickle
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch import Tensor

from harness.errors import DataError
from harness.files import read_json, sha256_file, write_json, write_manifest
from harness.train import checkpoint, tensorfile
from harness.train.checkpoint import Checkpoints, load_model, save_model
from harness.train.tensorfile import write_tensors
from tests.tracked_runs import eventually

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool]


def values(step: int) -> dict[str, Tensor]:
    return {"weight": torch.full((3, 5), float(step)), "moment": torch.arange(4) * step}


def state(step: int) -> dict[str, Any]:
    return {"stage": 0, "step": step, "sums": {"loss": step / 3}, "best": None}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(folder: Path, *steps: int, keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep)
    for step in steps:
        checkpoints.save(step, state(step), values(step))
    return checkpoints


def latest_step(checkpoints: Checkpoints) -> int:
    """Step of the newest checkpoint, after its state and tensors were found to belong together."""
    found = checkpoints.latest()
    assert found is not None
    step: int = found[0]["step"]
    assert found[0] == state(step)
    assert set(found[1]) == {"weight", "moment"}
    assert all(torch.equal(found[1][name], tensor) for name, tensor in values(step).items())
    return step


def test_state_and_tensors_come_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.latest() is None
    assert not (tmp_path / "run").exists()
    folder = checkpoints.save(1234, state(1234), values(1234))
    assert folder == tmp_path / "run" / "checkpoints" / "step-00001234"
    assert names(folder) == ["manifest.json", "state.json", "tensors.safetensors"]
    assert folder.stat().st_mode & 0o777 == 0o755
    assert latest_step(checkpoints) == 1234


def test_a_diverged_loss_and_exact_sums_come_back(tmp_path: Path) -> None:
    kept = {"loss": math.nan, "best": -math.inf, "sum": 0.1 + 0.2, "name": "é"}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(0, kept, {})
    found = checkpoints.latest()
    assert found is not None
    assert math.isnan(found[0].pop("loss"))
    assert found == ({"best": -math.inf, "sum": 0.30000000000000004, "name": "é"}, {})


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 10, keep=3)
    assert checkpoints.steps() == [1, 2, 10]
    checkpoints.save(100, state(100), values(100))
    assert names(tmp_path) == ["step-00000002", "step-00000010", "step-00000100"]
    assert saved(tmp_path, 200, keep=1).steps() == [200]
    assert latest_step(checkpoints) == 200


def test_more_than_eight_digits_sort_by_number(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 99_999_999, 100_000_000)
    assert checkpoints.steps() == [99_999_999, 100_000_000]
    assert latest_step(checkpoints) == 100_000_000


def test_older_ones_go_only_after_the_new_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    present: list[list[int]] = []
    remove: Callable[[Path], None] = checkpoint._remove
    monkeypatch.setattr(checkpoint, "_remove", lambda folder: (present.append(checkpoints.steps()), remove(folder)))
    checkpoints.save(3, state(3), values(3))
    assert present == [[1, 2, 3]]
    assert checkpoints.steps() == [2, 3]


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 7)
    checkpoints.save(7, {"second": True}, {"weight": torch.ones(2)})
    assert names(tmp_path) == ["step-00000007"]
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == {"second": True}
    assert list(found[1]) == ["weight"]


def test_a_replacement_cut_between_its_two_renames_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 2: for a moment neither the old nor the new folder has the name."""
    checkpoints = saved(tmp_path, 7)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_sweep", lambda folder: None)  # SIGKILL: nothing cleans up
        real = Path.replace
        patch.setattr(Path, "replace", lambda old, new: cut() if str(new).endswith("step-00000007") else real(old, new))
        with pytest.raises(OSError, match="cut"):
            checkpoints.save(7, {"second": True}, {})
    assert all(name.startswith(".step-00000007.") for name in names(tmp_path))
    assert latest_step(checkpoints) == 7
    assert names(tmp_path) == ["step-00000007"]


def cut() -> None:
    raise OSError("cut")


def test_senseless_use_is_refused(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 7)
    for step in (6, -1):
        with pytest.raises(ValueError, match=f"step {step} is before that of the newest"):
            checkpoints.save(step, {}, {})
    with pytest.raises(ValueError, match="keep is 0"):
        Checkpoints(tmp_path, keep=0)
    assert latest_step(checkpoints) == 7


def test_discarding_leaves_nothing(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path / "checkpoints", 1, 2)
    (tmp_path / "checkpoints" / ".step-00000003.abcdefgh").mkdir()
    checkpoints.discard()
    checkpoints.discard()
    assert names(tmp_path) == []
    assert checkpoints.latest() is None


@pytest.mark.parametrize("what", ["state.json", "tensors.safetensors", "manifest.json"])
def test_a_flipped_bit_is_refused(tmp_path: Path, what: str) -> None:
    """fault 68: any bit of any file, with the way back in the message."""
    checkpoints = saved(tmp_path, 1, 2)
    file = tmp_path / "step-00000002" / what
    whole = file.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(DataError) as caught:
            checkpoints.latest()
        message = str(caught.value)
        assert message.startswith(f"{tmp_path / 'step-00000002'}/")
        assert message.endswith(f"remove the folder {tmp_path / 'step-00000002'} to go back to step-00000001")
        assert "\n" not in message
        assert what == "manifest.json" or message.startswith(f"{file}: ")
    file.write_bytes(whole)
    assert latest_step(checkpoints) == 2
    shutil.rmtree(tmp_path / "step-00000002")
    assert latest_step(checkpoints) == 1


@pytest.mark.parametrize("what", ["state.json", "tensors.safetensors", "manifest.json"])
def test_a_truncated_or_missing_file_is_refused(tmp_path: Path, what: str) -> None:
    """fault 68"""
    checkpoints = saved(tmp_path, 3)
    file = tmp_path / "step-00000003" / what
    file.write_bytes(file.read_bytes()[:-1] if what != "manifest.json" else file.read_bytes()[:-3])
    with pytest.raises(DataError, match=rf"{what}: .*; remove the folder .*step-00000003 to start again$"):
        checkpoints.latest()
    file.unlink()
    with pytest.raises(DataError, match=rf"{what}: missing; .* to start again$"):
        checkpoints.latest()


def test_a_renamed_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3)
    (tmp_path / "step-00000003").rename(tmp_path / "step-00000009")
    with pytest.raises(DataError, match=r"manifest\.json: written for another step"):
        checkpoints.latest()


class Payload:
    """Unpickled, it would write the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.marker, "ran")


@pytest.mark.parametrize("forged_manifest", [False, True])
@pytest.mark.parametrize("written_by", [pickle.dump, torch.save])
def test_a_pickle_in_place_of_the_tensors_is_refused(
    tmp_path: Path, written_by: Callable[[Any, BinaryIO], None], forged_manifest: bool
) -> None:
    """fault 67: nothing in it runs, even if somebody makes the manifest fit."""
    checkpoints = saved(tmp_path / "checkpoints", 3)
    save_model(tmp_path / "model", values(3), {})
    for folder, name in ((tmp_path / "checkpoints/step-00000003", "tensors"), (tmp_path / "model", "model")):
        file = folder / f"{name}.safetensors"
        with file.open("wb") as stream:
            written_by({"weight": Payload(tmp_path / "marker")}, stream)
        if forged_manifest:
            manifest = read_json(folder / "manifest.json")
            manifest["files"][file.name] = {"sha256": sha256_file(file), "bytes": file.stat().st_size}
            write_json(folder / "manifest.json", manifest)
    reason = "not a safetensors file" if forged_manifest else "by its manifest"
    with pytest.raises(DataError, match=rf"tensors\.safetensors: .*{reason}.*remove the folder"):
        checkpoints.latest()
    with pytest.raises(DataError, match=rf"model\.safetensors: .*{reason}.*remove the folder"):
        load_model(tmp_path / "model")
    assert not (tmp_path / "marker").exists()


def test_leftovers_of_a_killed_writer_are_ignored_and_swept(tmp_path: Path) -> None:
    """fault 2"""
    checkpoints = saved(tmp_path, 3)
    for step in (3, 4):
        half = tmp_path / f".step-{step:08d}.ab12cd_9"
        half.mkdir()
        (half / "state.json").write_text("{}")
    removed = tmp_path / ".step-00000002.removed"
    removed.mkdir()
    assert latest_step(checkpoints) == 3
    assert names(tmp_path) == ["step-00000003"]


@pytest.mark.parametrize("after_bytes", [0, 100, 1000])
@pytest.mark.parametrize("step", [3, 4])
def test_a_full_disk_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, after_bytes: int
) -> None:
    """faults 31 and 33"""
    checkpoints = saved(tmp_path / "checkpoints", 3)

    class Full:
        """A file on a disk with little room."""

        def __init__(self, stream: BinaryIO) -> None:
            self.stream, self.room = stream, after_bytes

        def write(self, data: Any) -> None:
            part = bytes(data)[: self.room]
            self.room -= self.stream.write(part)
            if self.room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")

    write = tensorfile._write_elements
    monkeypatch.setattr(tensorfile, "_write_elements", lambda stream, tensor: write(Full(stream), tensor))
    big = {"weight": torch.zeros(600)}
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(step, state(step), big)
    with pytest.raises(OSError, match="No space left"):
        save_model(tmp_path / "model", big, {})
    assert names(tmp_path) == ["checkpoints"]
    assert names(tmp_path / "checkpoints") == ["step-00000003"]
    assert latest_step(checkpoints) == 3


@pytest.mark.parametrize("name", ["write_manifest", "write_tensors", "write_text"])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, RuntimeError])
def test_an_error_inside_a_save_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[BaseException]
) -> None:
    """fault 31: out of memory, and Ctrl-C, at every part of the write."""
    checkpoints = saved(tmp_path, 3)

    def fails(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, name, fails)
        for step in (3, 4):
            with pytest.raises(error):
                checkpoints.save(step, state(step), values(step))
    assert names(tmp_path) == ["step-00000003"]
    assert latest_step(checkpoints) == 3


def test_values_that_are_not_json_are_refused_whole(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 3)
    with pytest.raises(TypeError, match="JSON"):
        checkpoints.save(4, {"weight": torch.ones(1)}, {})
    with pytest.raises(ValueError, match="'sparse'"):
        checkpoints.save(4, {}, {"sparse": torch.eye(3).to_sparse()})
    with pytest.raises(ValueError, match="'odd'"):
        checkpoints.save(4, {}, {"odd": torch.ones(2, dtype=torch.complex64)})
    assert names(tmp_path) == ["step-00000003"]


def save_for_ever(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    step = checkpoints.steps()[-1]
    while True:
        step += 1
        for _ in range(2):  # the second one replaces the first
            checkpoints.save(step, state(step), values(step))


def test_killed_at_random_moments_the_latest_is_always_whole(tmp_path: Path) -> None:
    """faults 1 and 2: SIGKILL of processes that do nothing but save; forked, because torch takes seconds to start."""
    checkpoints, before, leftovers = saved(tmp_path, 1), 1, 0
    moments = random.Random(0)
    for attempt in range(20):
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(tmp_path)
            finally:
                os._exit(1)
        if attempt % 5 == 0:  # on a slow disk none of the others may save anything
            eventually(lambda: checkpoints.steps()[-1] > before, pause=0.001)  # noqa: B023
        time.sleep(moments.uniform(0.01, 0.1))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        leftovers += sum(name.startswith(".") for name in names(tmp_path))
        step = latest_step(checkpoints)
        assert step >= before
        assert all(name.startswith("step-") for name in names(tmp_path))
        assert len(names(tmp_path)) <= 3  # one more than kept: killed before the oldest was removed
        before = step
    assert before > 1
    assert leftovers > 0


def test_killed_again_and_again_before_the_oldest_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room for one more than are kept, not for one more for every kill."""
    checkpoints, most, write = Checkpoints(tmp_path, keep=2), [], checkpoint._write_folder

    def dying(*_: Any) -> None:
        most.append(len(checkpoints.steps()))
        raise KeyboardInterrupt

    def watched(*words: Any) -> None:
        write(*words)
        monkeypatch.setattr(checkpoint, "_remove", dying)

    monkeypatch.setattr(checkpoint, "_write_folder", watched)
    remove = checkpoint._remove
    for step in (1, 2, 3, 4, 5):
        monkeypatch.setattr(checkpoint, "_remove", remove)
        with suppress(KeyboardInterrupt):
            checkpoints.save(step, state(step), values(step))
    assert most == [3, 3, 3]
    assert latest_step(checkpoints) == 5


def test_a_model_comes_back_with_its_facts(tmp_path: Path) -> None:
    save_model(tmp_path / "model", values(1), {"dim": 5, "heads": ("encoder", "classifier"), "by_id": {10: 1, 9: 2}})
    save_model(tmp_path / "model", values(2), {"dim": 5, "heads": ("encoder", "classifier"), "by_id": {10: 1, 9: 2}})
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["manifest.json", "model.safetensors"]
    shutil.move(tmp_path / "model", tmp_path / "elsewhere")
    tensors, facts = load_model(tmp_path / "elsewhere")
    assert facts == {"dim": 5, "heads": ["encoder", "classifier"], "by_id": {"10": 1, "9": 2}}
    assert torch.equal(tensors["weight"], values(2)["weight"])
    with pytest.raises(DataError, match="model: no model here; repeat the run"):
        load_model(tmp_path / "model")


def test_a_flipped_bit_in_a_model_is_refused(tmp_path: Path) -> None:
    """fault 68"""
    save_model(tmp_path, values(1), {"dim": 5})
    for what in ("manifest.json", "model.safetensors"):
        whole = (tmp_path / what).read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << place % 8
            (tmp_path / what).write_bytes(damaged)
            with pytest.raises(DataError, match=r"the model cannot be used; remove the folder .* and repeat"):
                load_model(tmp_path)
        (tmp_path / what).write_bytes(whole)
    assert load_model(tmp_path)[1] == {"dim": 5}


def test_a_manifest_of_another_kind_is_refused(tmp_path: Path) -> None:
    """fault 68: hashes alone do not make a checkpoint."""
    write_tensors(tmp_path / "model.safetensors", values(1))
    write_manifest(tmp_path, {"dim": 5})
    with pytest.raises(DataError, match=r"manifest\.json: damaged"):
        load_model(tmp_path)
