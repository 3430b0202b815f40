"""Training of label trees in a process of its own: exact data, clear faults, nothing left behind."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from harness.errors import Terminated, UserError
from harness.model import parabel as module
from harness.model.forest_process import end_with_parent
from harness.model.parabel import Forest, train_forest, write_data
from tests.support.tracked_runs import eventually
from tests.support.training_runs import in_child


def test_the_data_file_holds_every_number_exactly(tmp_path: Path) -> None:
    """fault 45: rows without labels, without words, without either"""
    draw = np.random.default_rng(0)
    dense = draw.random((5, 4), dtype=np.float32) * (draw.random((5, 4)) < 0.7)
    dense[3:] = 0
    labels = csr_array(np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]]))
    write_data(tmp_path / "data", csr_array(dense), labels)
    header, *lines = (tmp_path / "data").read_text().split("\n")
    assert header == "5 4 3"
    assert lines.pop() == ""
    assert [line.split(" ")[0] for line in lines] == ["0,2", "", "1", "0,1,2", ""]
    again = np.zeros_like(dense)
    for row, line in enumerate(lines):
        for pair in line.split(" ")[1:]:
            feature, value = pair.split(":")
            again[row, int(feature)] = np.float32(value)
    assert (again == dense).all()


def test_rows_without_words_or_labels_do_not_stop_the_training(tmp_path: Path) -> None:
    """faults 44, 45 and 46"""
    features = csr_array(np.array([[0, 0], [1, 0], [0, 1], [0, 0], [1, 0]], np.float32))
    labels = csr_array(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [1, 0, 0]]))
    metadata = train_forest(tmp_path / "forest", features, labels, {"n_trees": 2, "min_branch_size": 2}, 1)
    assert (metadata["features"], metadata["seeded"]) == (2, False)
    assert 0 < metadata["peak_memory_gib"] < 1
    forest = Forest(tmp_path / "forest", 1)
    assert (forest.features, forest.trees) == (2, 2)
    topk = forest.rank(features, 3, 5, None, 10)
    assert set(topk.ids.ravel()) == {0, 1, -1}  # label 2 has no train row
    with pytest.raises(UserError, match="no train row has a label"):
        train_forest(tmp_path / "other", features, csr_array((5, 3)), {"n_trees": 2}, 1)


def test_excluded_labels_make_room_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 49: masked before the ranking is cut, and in blocks as in one go"""
    draw = np.random.default_rng(0)
    features = csr_array(np.float32(draw.random((120, 30)) * (draw.random((120, 30)) < 0.2)))
    labels = csr_array((draw.random((120, 50)) < 0.1).astype(np.float32))
    train_forest(tmp_path / "forest", features, labels, {"n_trees": 1}, 1)  # fewer than 100 labels: one leaf has all
    forest = Forest(tmp_path / "forest", 1)
    everything = forest.rank(features, 50, 50, None, 50)
    assert (everything.ids >= 0).all()
    banned = csr_array((draw.random((120, 50)) < 0.6).astype(np.float32))
    monkeypatch.setattr(module, "_CHUNK_ROWS", 7)
    found = forest.rank(features, 50, 5, banned, 50)
    allowed = ~np.take_along_axis(banned.toarray() > 0, everything.ids, axis=1)
    for row in range(120):
        assert found.scores[row].tolist() == everything.scores[row][allowed[row]][:5].tolist()
        assert not banned[[row] * 5, found.ids[row]].any()


def test_a_failing_library_ends_in_one_line(tmp_path: Path) -> None:
    """Its faults end the process they happen in, which is not this one."""
    features, labels = csr_array(np.eye(3, dtype=np.float32)), csr_array(np.eye(3))
    with pytest.raises(UserError, match=r"omikuji failed to train \(exit code 1\): .*n_trees must be positive"):
        train_forest(tmp_path / "forest", features, labels, {"n_trees": 0}, 1)
    broken = {"min_branch_size": 2, "cluster_k": 50}  # the library trusts that there are so many labels, and aborts
    with pytest.raises(UserError, match=r"exit code -6\): panicked at .* must be less than or equal"):
        train_forest(tmp_path / "forest", features, labels, broken, 1)
    with pytest.raises(UserError, match=r"could not be written: .* TMPDIR"):
        train_forest(tmp_path / "nowhere" / "forest", features, labels, {}, 1)


def test_an_interrupted_training_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 5"""
    script = tmp_path / "sleeps.py"
    script.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    monkeypatch.setattr(module, "training_command", lambda job: [sys.executable, str(script)])

    def terminate_when_started() -> None:
        eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        os.kill(os.getpid(), signal.SIGTERM)

    def raise_terminated(number: int, frame: object) -> None:
        raise Terminated

    before, started = signal.signal(signal.SIGTERM, raise_terminated), time.monotonic()
    thread = threading.Thread(target=terminate_when_started)
    thread.start()
    try:
        with pytest.raises(Terminated):
            train_forest(
                tmp_path / "forest", csr_array(np.eye(2, dtype=np.float32)), csr_array(np.eye(2)), {"n_trees": 1}, 1
            )
    finally:
        signal.signal(signal.SIGTERM, before)
        thread.join()
    assert time.monotonic() - started < 40
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_training_ends_with_the_process_that_wanted_it(tmp_path: Path) -> None:
    """fault 1: nobody is left to kill it, and its files would stay for good"""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "data.txt").write_text("1 1 1\n")
    job = {"parent": os.getpid(), "data": str(tmp_path / "job" / "data.txt")}

    def orphan() -> None:
        end_with_parent({**job, "parent": os.getppid() + 1})

    assert in_child(orphan, tmp_path / "said") == 1
    assert not (tmp_path / "job").exists()
