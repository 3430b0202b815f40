"""One process per run, and locks that outlive their process do not block it for ever."""

import os
import socket
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from harness.errors import DataError, UserError
from harness.io.files import read_json, write_json
from harness.runs.lock import run_lock
from tests.faults.accounts import Account
from tests.support.forks import ended_pid

FORK = get_context("fork")


class Holding:
    """A process that takes the lock and keeps it until it is told; `answer` is held, or why not."""

    def __init__(self, folder: Path) -> None:
        self._pipe, other = FORK.Pipe()
        self.process = FORK.Process(target=hold, args=(folder, other))
        self.process.start()
        self.pid = self.process.pid or 0

    def answer(self) -> str:
        return str(self._pipe.recv())

    def let_go(self) -> None:
        self._pipe.send("go")
        self.process.join(30)


def hold(folder: Path, pipe: Connection) -> None:
    try:
        with run_lock(folder):
            pipe.send("held")
            pipe.recv()
    except UserError as error:
        pipe.send(str(error))
        pipe.recv()


def lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def write_lock(folder: Path, **changed: Any) -> None:
    """The lock of this very process, with some of its fields changed."""
    with run_lock(folder):
        fields = read_json(lock_file(folder))
    write_json(lock_file(folder), fields | changed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "20260101-unidec-s0-ab12"


def test_the_same_run_twice_is_refused(folder: Path) -> None:
    """fault 11: another process, then this one."""
    other = Holding(folder)
    assert other.answer() == "held"
    with pytest.raises(UserError) as caught, run_lock(folder):
        pytest.fail("two processes hold one lock")
    for words in (folder.name, f"pid {other.pid}", f"host {socket.gethostname()}", "wait for it or stop it"):
        assert words in str(caught.value)
    with run_lock(folder.with_name("another")):
        pass
    other.let_go()
    with run_lock(folder):
        fields = read_json(lock_file(folder))
        assert (fields["pid"], fields["host"]) == (os.getpid(), socket.gethostname())
        with pytest.raises(UserError, match=f"locked by pid {os.getpid()} "), run_lock(folder):
            pytest.fail("one process holds one lock twice")
        assert lock_file(folder).exists()
        assert not folder.exists()
    assert not lock_file(folder).exists()


@pytest.mark.parametrize("buried", [True, False])
def test_the_lock_of_a_killed_process_is_taken_over(
    folder: Path, capsys: pytest.CaptureFixture[str], buried: bool, account: Account
) -> None:
    """fault 12: also while its parent has not yet asked for its exit code."""
    other = Holding(folder)
    assert other.answer() == "held"
    other.process.kill()
    if buried:
        other.process.join()
    else:
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    with run_lock(folder):
        assert read_json(lock_file(folder))["pid"] == os.getpid()
    assert f"was locked by pid {other.pid}, which has ended" in capsys.readouterr().err
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
    pid = ended_pid()
    write_lock(folder, pid=pid, **changed)
    before = lock_file(folder).read_bytes()
    with pytest.raises(UserError) as caught, run_lock(folder):
        pytest.fail("taken over without knowing")
    for words in (f"{folder.name} is locked by pid {pid} on host ", place, f"remove {lock_file(folder)}"):
        assert words in str(caught.value)
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
    write_lock(folder, pid=ended_pid(), process_start=1)
    others = [Holding(folder) for _ in range(5)]
    answers = [other.answer() for other in others]
    winner = others[answers.index("held")]
    refused = [text for text in answers if text != "held"]
    assert len(refused) == 4
    assert all(f"is locked by pid {winner.pid} on host" in text for text in refused)
    for other in others:
        other.let_go()
    assert not lock_file(folder).exists()
