"""A disk that is really full: what was there stays, nothing half-written is believed, and with room all goes on."""

import io
import random
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.data.download import fetch
from harness.errors import UserError
from harness.infer.export import export_safetensors
from harness.infer.load import TrainedRun
from harness.infer.predict import label_vectors
from harness.io.arrays import save_array
from harness.io.files import read_manifest
from harness.run import run
from harness.runs.log import RunLog
from harness.runs.record import read_record
from harness.runs.resume import find_earlier
from harness.train.checkpoint import Checkpoints, load_model, save_model
from harness.train.loop import Training
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.downloads import FILES, Site, make_card
from tests.support.interrupted_runs import after_steps, assert_same, finished
from tests.support.small_disk import PAGE, SmallDisk, small_disk
from tests.support.tracked_runs import draft, events_of
from tests.support.tracked_runs import finished as finished_facts
from tests.support.training_runs import DATASET, config, only_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path) as made:
        yield made


def with_growing_room(disk: SmallDisk, work: Callable[[], Any], after: Callable[[], None], pages: int = 1) -> int:
    """Tries with no room, then with more and more until it works; `after` looks at what each failure left."""
    for attempt in count():
        disk.leave(attempt * pages * PAGE)
        try:
            work()
        except OSError as error:
            if error.strerror != disk.complaint:
                raise
        else:
            return attempt
        finally:
            disk.room_again()
        after()
    raise AssertionError


@pytest.mark.parametrize("elements", [5000, 5096])
def test_an_array_is_whole_or_an_error(disk: SmallDisk, elements: int, account: Account) -> None:
    """fault 33: `np.save` loses the last 32 bytes of 20,384 without a word when they need a page of their own"""
    array, path = np.arange(elements, dtype=np.int32), disk.folder / "ids.npy"
    failures = with_growing_room(disk, lambda: save_array(path, array), path.unlink)
    assert failures == -(-(128 + array.nbytes) // PAGE)
    np.testing.assert_array_equal(np.load(path), array)
    np.save(disk.folder / "theirs.npy", array)
    assert path.read_bytes() == (disk.folder / "theirs.npy").read_bytes()
    if elements == 5096:
        account.did(f"an array of {array.nbytes:,} bytes saved with room for 0 to {failures - 1} pages")
        account.saw(f"{failures} times '{disk.complaint}', never a short file believed whole")


def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(disk: SmallDisk, account: Account) -> None:
    """faults 31 and 33: whichever part of it is the one too many"""
    checkpoints, model = Checkpoints(disk.folder / "checkpoints"), disk.folder / "model"
    before, after = ({"weight": torch.full((150, 97), float(step))} for step in (3, 4))
    checkpoints.save(3, {"step": 3}, before)
    save_model(model, before, {"dim": 3})

    def as_before() -> None:
        state, tensors = checkpoints.latest() or ({}, {})
        assert state == {"step": 3}
        assert torch.equal(tensors["weight"], before["weight"])
        assert torch.equal(load_model(model)[0]["weight"], before["weight"])
        assert sorted(path.name for path in disk.folder.rglob("*") if path.is_dir()) == [
            *("checkpoints", "model", "step-00000003")
        ]

    failures = with_growing_room(disk, lambda: checkpoints.save(4, {"step": 4}, after), as_before)
    assert failures > 58_200 // PAGE
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == {"step": 4}
    assert torch.equal(found[1]["weight"], after["weight"])
    assert with_growing_room(disk, lambda: save_model(model, after, {}), lambda: load_model(model) and None) > 10
    assert torch.equal(load_model(model)[0]["weight"], after["weight"])
    account.did(f"a tmpfs filled up: a checkpoint of 58 kB saved with room for 0 to {failures - 1} pages")
    account.saw(f"{failures} saves failed, checkpoint 3 read back whole after each; with room, 4 was saved")


def test_a_run_without_room_believes_nothing_later(
    disk: SmallDisk,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """fault 33: prepared data, tokenizer, token caches, event log, predictions and record, with more and more room"""
    command = ("run", "--method", "zeroshot", "--dataset", DATASET, "--encoder", "tiny", "--track", "none")
    assert call(*command) == 0
    monkeypatch.setenv("HARNESS_HOME", str(disk.folder))
    caches, room, attempts = [], 0, 0
    while True:
        disk.leave(room)
        capfd.readouterr()
        code = call(*command)
        disk.room_again()
        error = capfd.readouterr().err
        if code == 0:
            break
        assert code == 2, error
        assert disk.complaint in error
        assert "Traceback" not in error
        assert list((disk.folder / "cache").rglob(".*")) == []
        whole = [path.parent for path in disk.folder.glob("cache/*/*/manifest.json")]
        assert all(read_manifest(folder, verify=True) for folder in whole)
        room = room + 6 * PAGE if len(whole) == len(caches) else 0  # so that the next cache is short of room as well
        caches, attempts = whole, attempts + 1
        assert attempts < 100
    kinds = sorted(path.parent.name for path in caches)
    assert kinds == ["datasets", "encoders", "tokens", "tokens", "tokens"]  # and then not all of the run had room
    states = {path.parent: read_record(path.parent).status for path in (disk.folder / "runs").glob("*/record.json")}
    assert set(states.values()) == {"finished", "failed"}
    (last,) = (folder for folder, status in states.items() if status == "finished")
    assert read_manifest(last, verify=True) is not None
    for name in ("ids.npy", "scores.npy", "per_row.npy"):
        assert (last / name).read_bytes() == (only_run(workspace) / name).read_bytes()
    account.did("a run on a tmpfs without room for data, then tokenizer, tokens, log, predictions")
    account.saw(f"{attempts} attempts: exit 2, '{disk.complaint}', all caches whole; then equal predictions")


def test_a_training_whose_disk_fills_up_goes_on_from_its_checkpoint(
    disk: SmallDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    account: Account,
) -> None:
    """faults 31 and 33: no record can be written then either"""
    wanted: dict[str, Any] = {"checkpoint": {"every_steps": 3, "background": "always"}}
    whole = finished(tmp_path / "whole", **wanted)
    monkeypatch.setenv("HARNESS_HOME", str(disk.folder))

    def fill(training: Training, *_: Any) -> None:
        if training.position.step == 8:
            training.state.saver.wait()
            disk.leave(0)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_count", Training._count)  # to be put back afterwards
        after_steps(fill)
        with pytest.raises(OSError, match=disk.complaint):
            run(config(**wanted), track="none")
    folder = only_run(disk.folder)
    assert not (folder / "record.json").exists()
    assert events_of(folder)[0]["event"] == "start"  # and every line of the log is whole
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == ["step-00000004", "step-00000006"]  # that of an epoch's end, and that of every third step
    disk.room_again()
    record = run(config(**wanted), track="none", earlier=find_earlier(folder.name))
    assert_same((record, (folder / "model" / "model.safetensors").read_bytes()), whole)
    account.did("the disk filled up after step 8 of 16, checkpoints every 3 steps and epochs of 4")
    account.saw(f"'{disk.complaint}'; {' and '.join(kept)} stayed; with room resumed, model equal bit for bit")


def test_a_log_on_a_full_disk_has_whole_lines_only(disk: SmallDisk) -> None:
    """fault 33: and goes on when there is room again"""
    folder = disk.folder / "run"
    with RunLog(folder, draft("run")) as run_log:
        disk.leave(3 * PAGE)
        steps = iter(range(1000))
        with pytest.raises(OSError, match="No space left on device"):  # raised by the log itself for a line cut short
            deque((run_log.metrics({"loss": float(step)}, step) for step in steps), maxlen=0)
        logged = next(steps) - 1
        assert [event["step"] for event in events_of(folder)[1:]] == list(range(logged))
        disk.room_again()
        run_log.metrics({"loss": 0.5}, 1000)
        run_log.complete(finished_facts("run"))
    assert [event.get("step") for event in events_of(folder)] == [None, *range(logged), 1000, None]
    assert read_manifest(folder, verify=True) is not None


def test_vectors_of_labels_that_do_not_fit_are_computed_again(
    unidec: TrainedRun, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fault 33: embeddings"""
    expected = unidec.parts.scoring.label_vectors(unidec.label_tokens, ("de",))["de"]
    monkeypatch.setenv("HARNESS_HOME", str(disk.folder))
    cache = disk.folder / "cache" / "label-vectors"

    def nothing_left() -> None:
        assert [path for path in cache.iterdir() if path.suffix != ".lock"] == []

    assert with_growing_room(disk, lambda: label_vectors(unidec, "de"), nothing_left) >= 2
    np.testing.assert_array_equal(label_vectors(unidec, "de"), expected)


def test_an_export_that_does_not_fit_leaves_nothing(disk: SmallDisk) -> None:
    """fault 33: written by a library with errors of its own"""
    disk.leave(2 * PAGE)
    with pytest.raises(UserError, match=rf"out could not be written: .*{disk.complaint}.*; free some space"):
        export_safetensors({"table": torch.ones(100, 100)}, disk.folder / "out", {"run": "a"})
    assert list(disk.folder.iterdir()) == []
    disk.room_again()
    export_safetensors({"table": torch.ones(100, 100)}, disk.folder / "out", {"run": "a"})
    assert read_manifest(disk.folder / "out", verify=True) is not None


def test_a_download_and_its_unpacking_need_room(
    site: Site, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    """fault 33: the archive alone fits, then not even that"""
    monkeypatch.setenv("HARNESS_HOME", str(disk.folder))
    files = {name: name.encode() for name in FILES} | {
        next(iter(FILES)): random.Random(0).randbytes(10**6).hex().encode()
    }
    with zipfile.ZipFile(archive := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content)
    body = archive.getvalue()
    card = make_card({"url": site.put("/a", body)})
    packed, unpacked = len(body), sum(map(len, files.values()))
    messages = []
    for room in (packed + 40 * PAGE, packed // 2):
        disk.leave(room)
        with pytest.raises((UserError, OSError)) as caught:
            fetch(card)
        disk.room_again()
        messages.append(str(caught.value))
        assert [path for path in disk.folder.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert disk.complaint in messages[0]
    assert "has room for" in messages[1] or disk.complaint in messages[1]
    assert [path.read_bytes() for path in fetch(card)] == list(files.values())
    account.did(f"an archive of {packed:,} bytes for {unpacked:,} fetched onto a disk with too little room")
    account.saw(f"no room to unpack: '{disk.complaint}'; none for the archive: refused first; nothing left behind")
