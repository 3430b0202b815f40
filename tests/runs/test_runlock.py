"""One process per run, and locks that outlive their process do not block it for ever."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import DataError, UserError
from harness.io.files import read_json, write_json
from harness.runs.lock import run_lock
from tests.faults.accounts import Account

ROOT = Path(__file__).parents[2]
HOLD = """
import signal, sys, time
from pathlib import Path
from harness.errors import UserError, terminate
from harness.runs.lock import run_lock
signal.signal(signal.SIGTERM, terminate)
try:
    with run_lock(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.readline()
except UserError as error:
    print(error, flush=True)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    """Starts a process that takes the lock and keeps it until it is told."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], text=True, cwd=ROOT, **pipes)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def write_lock(folder: Path, **changed: Any) -> None:
    """The lock of this very process, with some of its fields changed."""
    with run_lock(folder):
        fields = read_json(lock_file(folder))
    write_json(lock_file(folder), fields | changed)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "20260101-unidec-s0-ab12"


def test_the_lock_is_there_and_goes(folder: Path) -> None:
    with run_lock(folder):
        fields = read_json(lock_file(folder))
        assert (fields["pid"], fields["host"]) == (os.getpid(), socket.gethostname())
        assert not folder.exists()
    assert not lock_file(folder).exists()


def test_the_same_run_twice_is_refused(folder: Path) -> None:
    """fault 11: another process, then this one."""
    process = hold(folder)
    assert answer(process) == "held"
    expected = f"run {folder.name} is locked by pid {process.pid} on host {socket.gethostname()} since "
    with pytest.raises(UserError) as caught, run_lock(folder):
        pytest.fail("two processes hold one lock")
    assert str(caught.value).startswith(expected)
    assert str(caught.value).endswith("wait for it or stop it")
    with run_lock(folder.with_name("another")):
        pass
    process.communicate("go\n", timeout=30)
    with run_lock(folder):
        with pytest.raises(UserError, match=f"locked by pid {os.getpid()} "), run_lock(folder):
            pytest.fail("one process holds one lock twice")
        assert lock_file(folder).exists()
    assert not lock_file(folder).exists()


@pytest.mark.parametrize("buried", [True, False])
def test_the_lock_of_a_killed_process_is_taken_over(
    folder: Path, capsys: pytest.CaptureFixture[str], buried: bool, account: Account
) -> None:
    """fault 12: also while its parent has not yet asked for its exit code."""
    process = hold(folder)
    assert answer(process) == "held"
    process.kill()
    if buried:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with run_lock(folder):
        assert read_json(lock_file(folder))["pid"] == os.getpid()
    process.communicate()
    assert capsys.readouterr().err == (
        f"note: run {folder.name} was locked by pid {process.pid}, which has ended without unlocking it; going on\n"
    )
    if buried:
        account.did("the process that held a run's lock was SIGKILLed, then another one took the run")
        account.saw("the lock was taken over, with a note that its pid has ended without unlocking it")


def test_a_reused_pid_is_not_the_holder(folder: Path) -> None:
    """fault 12: the pid lives, but it is that of a process which started later."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("start times are read from /proc")
    write_lock(folder)
    with pytest.raises(UserError, match="is locked by pid"), run_lock(folder):
        pytest.fail("this process holds it")
    fields = read_json(lock_file(folder))
    write_json(lock_file(folder), fields | {"process_start": fields["process_start"] - 1})
    with run_lock(folder):
        assert lock_file(folder).exists()


@pytest.mark.parametrize(
    ("changed", "place"),
    [({"host": "far-away"}, f"host {socket.gethostname()} cannot see"), ({"namespace": "x"}, "this container cannot")],
)
def test_the_lock_of_another_host_stays(folder: Path, changed: dict[str, str], place: str, account: Account) -> None:
    """fault 12: its processes cannot be seen from here, nor those of another container."""
    pid = dead_pid()
    write_lock(folder, pid=pid, **changed)
    before = lock_file(folder).read_bytes()
    with pytest.raises(UserError) as caught, run_lock(folder):
        pytest.fail("taken over without knowing")
    message = str(caught.value)
    assert message.startswith(f"run {folder.name} is locked by pid {pid} on host ")
    assert place in message
    assert message.endswith(f"if it does not, remove {lock_file(folder)}")
    assert lock_file(folder).read_bytes() == before
    account.did(f"a run whose lock is by a pid that is dead here, of another {next(iter(changed))}")
    account.saw("refused with pid and host and what to remove if it is dead there; the lock stayed as it was")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"pid": -1}', "\xff", '{"pid": "1", "host": 3}'])
def test_a_file_that_is_no_lock_is_refused(folder: Path, text: str) -> None:
    folder.parent.mkdir()
    lock_file(folder).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"\.lock: not a lock of this harness; if no process .*, remove it"):
        run_lock(folder).__enter__()
    assert lock_file(folder).read_bytes() == text.encode("latin-1")


def test_a_lock_replaced_by_hand_is_left_alone(folder: Path) -> None:
    with run_lock(folder):
        lock_file(folder).unlink()
        write_lock(folder, host="far-away")
    assert read_json(lock_file(folder))["host"] == "far-away"


def test_of_many_that_find_a_stale_lock_one_takes_it(folder: Path) -> None:
    """faults 11 and 12: taking over is one step, not a look and a write."""
    write_lock(folder, pid=dead_pid(), process_start=1)
    processes = [hold(folder) for _ in range(5)]
    answers = [answer(process) for process in processes]
    winner = processes[answers.index("held")]
    refused = [text for text in answers if text != "held"]
    assert len(refused) == 4
    assert all(f"is locked by pid {winner.pid} on host" in text for text in refused)
    for process in processes:
        process.communicate("go\n", timeout=30)
    assert not lock_file(folder).exists()
