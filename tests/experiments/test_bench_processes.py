"""How a bench treats processes that fail, die, hang or are told to stop.

A small script stands in for `harness run`, which needs seconds to import torch; one test trains in forked processes,
from kill to comparison.
"""

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.experiments.bench import Request
from harness.experiments.bench.plan import plan
from harness.io.files import read_json
from harness.runs.record import read_record
from tests.support.bench_cells import (
    TINY,
    answer,
    cut_off,
    finished,
    in_place_of_runs,
    printing,
    request,
    run_in_fork,
    statuses,
)
from tests.support.commands import call
from tests.support.forks import fork_jobs
from tests.support.sweeps import hold_behind, import_for_forks
from tests.support.tracked_runs import eventually
from tests.support.training_runs import DATASET, in_child

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_cells_that_end_badly_do_not_stop_the_others(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, good = printing(plan(request())[0])
    in_place_of_runs(
        monkeypatch,
        depsl="import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        depsl_v1=f"import sys; sys.exit('first\\nerror: parabel needs the extra in {workspace}/x\\n  more')",
        unidec="raise ValueError('boom')",
        unidec_v1="print('{}')",
        unidec_thesis=good,
        zeroshot=good,
    )
    names = ["depsl", "depsl-v1", "unidec", "unidec-v1", "unidec-thesis", "zeroshot"]
    rows = answer("--methods", ",".join(names), *TINY, "--workers", "3", capsys=capsys, code=1)
    assert [row["method"] for row in rows] == names
    assert [row["status"] for row in rows] == ["failed"] * 5 + ["done"]
    assert rows[0]["reason"] == "ended by SIGKILL; the system does that when memory runs out"
    assert rows[1]["reason"] == "parabel needs the extra in $HARNESS_HOME/x"
    assert rows[2]["reason"] == "ValueError: boom"
    assert rows[3]["reason"] == "ended with exit code 0"
    assert "changed meanwhile" in rows[4]["reason"]  # the record of another cell
    assert (rows[5]["run_id"], rows[5]["attempt"]) == (record.run_id, "new")
    assert call("bench", "--methods", "zeroshot,depsl,unidec", *TINY) == 1  # what failed is tried again
    shown = capsys.readouterr()
    assert f"failed: depsl on {DATASET}, seed 0: ended by SIGKILL" in shown.out
    assert "1 of 3 cells done, 2 failed" in shown.out
    lines = [line for line in shown.err.splitlines() if "zeroshot" in line]
    assert [line.partition(": ")[2].partition(",")[0] for line in lines] == ["running", "done"]
    log = next((workspace / "runs" / "bench-logs").glob("unidec-synthetic*.log"))
    assert "Traceback" in log.read_text()
    assert str(log) in shown.out


def test_a_run_that_cannot_be_taken_up_is_begun_anew(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, good = printing(plan(request())[0])
    cut_off(shutil.copytree(workspace / "kept", workspace / "runs" / record.run_id))
    in_place_of_runs(
        monkeypatch, resume="import sys; print('error: other weights', file=sys.stderr); sys.exit(2)", zeroshot=good
    )
    (row,) = answer("--methods", "zeroshot", *TINY, capsys=capsys)
    assert (row["status"], row["attempt"], row["reason"]) == ("done", "new", None)


def when(happened: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """Does something as soon as something has happened; nothing if it does not happen."""

    def watch() -> None:
        eventually(happened, pause=0.002)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_process_whose_bench_was_killed_goes_on_and_is_left_alone(
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """fault 1: SIGKILL of the bench itself, before the process of its cell has opened a run folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a killed bench leaves its scratch folder behind
    record, _ = printing(plan(request())[0])
    folder = workspace / "runs" / record.run_id
    orphaned, go = tmp_path / "orphaned", tmp_path / "go"
    wait = f"import os, pathlib, shutil, signal, time\ngo = pathlib.Path({str(go)!r})\n"
    orphan = f"""{wait}
os.kill(os.getppid(), signal.SIGKILL)
pathlib.Path({str(orphaned)!r}).write_text("yes")
while not go.exists(): time.sleep(0.01)
shutil.copytree({str(workspace / "kept")!r}, {str(folder.with_name(".half"))!r})
os.rename({str(folder.with_name(".half"))!r}, {str(folder)!r})
"""
    in_place_of_runs(monkeypatch, zeroshot=orphan)
    matrix = ["--methods", "zeroshot", *TINY]
    assert in_child(lambda: call("bench", *matrix), tmp_path / "said") == -signal.SIGKILL
    when(orphaned.exists, lambda: None).join()
    (row,) = answer(*matrix, capsys=capsys)
    assert (row["status"], row["attempt"]) == ("running elsewhere", None)
    assert row["reason"] == "another bench works on it, or a process of one"

    finish = f"{wait}go.write_text('')\nwhile not os.path.exists({str(folder / 'record.json')!r}): time.sleep(0.01)"
    in_place_of_runs(monkeypatch, zeroshot="raise SystemExit('begun twice')", depsl=finish)
    rows = answer("--methods", "zeroshot,depsl", *TINY, capsys=capsys, code=1)
    assert [row["status"] for row in rows] == ["done", "failed"]  # looked at again at the end
    assert (rows[0]["run_id"], rows[0]["attempt"]) == (record.run_id, None)


def test_from_kill_and_ctrl_c_to_comparison(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """faults 1, 5, 6 and 70: what was cut off twice ends as if it never had been.

    The runs stand still until the signal is there: a watcher that comes late would find them done.
    """
    settings = ["epochs=8", "batch_size=60", "lr_heads=1e-3", "checkpoint.min_seconds=0", "ks=[1, 5]"]
    given = [*(f"depsl:{setting}" for setting in settings[:3]), *settings[3:]]
    matrix = ["--methods", "depsl,zeroshot", *TINY, *(part for setting in given for part in ("--set", setting))]
    runs = workspace / "runs"
    import_for_forks()
    finished(plan(Request("depsl,zeroshot", DATASET, "0", "tiny", tuple(given)))[1])

    def steps() -> int:
        try:
            return max((int(path.name[5:]) for path in runs.glob("*/checkpoints/step-*")), default=0)
        except FileNotFoundError:
            return 0  # they are removed in this very moment

    def kill() -> None:
        (lock,) = runs.glob(".*-depsl-*.lock")
        os.kill(read_json(lock)["pid"], signal.SIGKILL)

    fork_jobs(monkeypatch, run_in_fork)
    with monkeypatch.context() as patch:
        hold_behind(4, patch)  # an epoch has four steps, and a checkpoint
        watcher = when(steps, kill)
        depsl, zeroshot = answer(*matrix, capsys=capsys, code=1)
        watcher.join()
    assert (depsl["status"], zeroshot["status"]) == ("failed", "done")
    assert depsl["reason"].startswith("ended by SIGKILL")
    assert statuses(*matrix, capsys=capsys) == ["resumable", "done"]

    saved = steps()
    with monkeypatch.context() as patch:
        hold_behind(saved + 4, patch)
        watcher = when(lambda: steps() > saved, lambda: os.kill(os.getpid(), signal.SIGINT))
        assert call("bench", *matrix) == 130
        watcher.join()
    shown = capsys.readouterr()
    assert "stopped by SIGINT; to go on, give the same command again" in shown.err
    assert f"depsl on {DATASET}, seed 0: resumed" in shown.err
    assert "1 of 2 cells done, 1 of them before, 1 stopped" in shown.out
    assert read_record(runs / depsl["run_id"]).status == "killed"

    assert call("bench", *matrix) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 cells done, 1 of them before" in shown
    assert "compare     python -m harness report" in shown
    again, untouched = answer(*matrix, capsys=capsys)
    assert (again["run_id"], again["attempt"], untouched["run_id"]) == (depsl["run_id"], None, zeroshot["run_id"])
    record = read_record(runs / depsl["run_id"])
    assert len(record.resumed) == 2
    whole, _ = finished(plan(Request("depsl", DATASET, "0", "tiny", tuple(settings)))[0])
    assert record.metrics == whole.metrics
    for path in runs.glob("*/*.json*"):
        assert str(workspace.parent) not in path.read_text(), path
    assert read_json(runs / depsl["run_id"] / "config.json")["origins"]["params.lr_heads"] == "bench.json"
