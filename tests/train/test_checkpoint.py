"""Checkpoints: whole or absent, verified when read, and never lost while a newer one is written."""

import math
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch
from torch import Tensor

from harness.errors import DataError
from harness.io import files
from harness.io.files import read_json, sha256_file, sha256_json, write_json
from harness.train import checkpoint
from harness.train.checkpoint import Checkpoints, load_model, save_model

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


def test_older_ones_go_only_after_the_new_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    present: list[list[int]] = []
    remove: Callable[[Path], None] = checkpoint.remove_folder
    monkeypatch.setattr(
        checkpoint, "remove_folder", lambda folder: (present.append(checkpoints.steps()), remove(folder))
    )
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
        patch.setattr(files, "sweep", lambda folder: None)  # SIGKILL: nothing cleans up
        real = Path.replace
        patch.setattr(Path, "replace", lambda old, new: cut() if str(new).endswith("step-00000007") else real(old, new))
        with pytest.raises(OSError, match="cut"):
            checkpoints.save(7, {"second": True}, {})
    assert all(name.startswith(".step-00000007.") for name in names(tmp_path))
    assert latest_step(checkpoints) == 7
    assert names(tmp_path) == ["step-00000007"]


def cut() -> None:
    raise OSError("cut")


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
            del manifest["sealed"]
            write_json(folder / "manifest.json", manifest | {"sealed": sha256_json(manifest)})
    reason = "not a safetensors file" if forged_manifest else "by its manifest"
    with pytest.raises(DataError, match=rf"tensors\.safetensors: .*{reason}.*remove the folder"):
        checkpoints.latest()
    with pytest.raises(DataError, match=rf"model\.safetensors: .*{reason}.*remove the folder"):
        load_model(tmp_path / "model")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("changed", [False, True])
def test_manifests_of_earlier_versions_are_read(tmp_path: Path, changed: bool) -> None:
    """They had a hash of the metadata in place of the seal."""
    save_model(tmp_path / "model", values(3), {"dim": 5})
    manifest = read_json(tmp_path / "model" / "manifest.json")
    metadata = {"dim": 6 if changed else 5}
    old = {"files": manifest["files"], "facts": metadata, "digest": sha256_json({"dim": 5})}
    write_json(tmp_path / "model" / "manifest.json", old)
    if changed:
        with pytest.raises(DataError, match="damaged"):
            load_model(tmp_path / "model")
    else:
        assert load_model(tmp_path / "model")[1] == metadata


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
        patch.setattr(files if name == "write_manifest" else checkpoint, name, fails)
        for step in (3, 4):
            with pytest.raises(error):
                checkpoints.save(step, state(step), values(step))
    assert names(tmp_path) == ["step-00000003"]
    assert latest_step(checkpoints) == 3


def test_killed_again_and_again_before_the_oldest_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room for one more than are kept, not for one more for every kill."""
    checkpoints, most, remove = Checkpoints(tmp_path, keep=2), [], checkpoint.remove_folder

    def dying(folder: Path) -> None:
        if len(checkpoints.steps()) == 3 and checkpoints.steps()[-1] == step:
            most.append(3)
            raise KeyboardInterrupt
        remove(folder)

    monkeypatch.setattr(checkpoint, "remove_folder", dying)
    for step in (1, 2, 3, 4, 5):
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
    tensors, metadata = load_model(tmp_path / "elsewhere")
    assert metadata == {"dim": 5, "heads": ["encoder", "classifier"], "by_id": {"10": 1, "9": 2}}
    assert torch.equal(tensors["weight"], values(2)["weight"])
    with pytest.raises(DataError, match="model: no model here; repeat the run"):
        load_model(tmp_path / "model")
