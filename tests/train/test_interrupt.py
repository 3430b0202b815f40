"""Signals wait for the end of a step, a second one does not, and nothing is changed outside the block."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Terminated, terminate
from harness.train.interrupt import StepBoundary
from tests.faults.accounts import Account
from tests.support.tracked_runs import eventually
from tests.support.training_runs import begin_child, exit_code

NOTICE = "stopping after this step and saving; once more to stop at once\n"
STOPS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
EITHER = pytest.mark.parametrize(("number", "raised"), STOPS)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers a run has, whatever those of the shell that started the tests."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminate),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def assert_restored() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is terminate


@EITHER
def test_a_signal_waits_for_the_end_of_the_step(
    number: signal.Signals, raised: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    """fault 5"""
    halves = []

    def loop() -> None:
        with StepBoundary() as boundary:
            for step in range(5):
                halves.append((step, "first"))
                if step == 2:
                    os.kill(os.getpid(), number)
                    assert boundary.pending is number
                halves.append((step, "second"))
                boundary.check()

    with pytest.raises(raised):
        loop()
    assert halves == [(step, half) for step in range(3) for half in ("first", "second")]
    assert capfd.readouterr().err == NOTICE
    assert_restored()


def step(log: list[str], *numbers: signal.Signals) -> None:
    """A step during which signals arrive and nobody checks."""
    with StepBoundary():
        for number in numbers:
            signal.raise_signal(number)
            log.append(f"held {number.name}")
        log.append("end of the step")


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_stops_at_once(first: signal.Signals) -> None:
    log: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        step(log, first, signal.SIGINT)
    assert log == [f"held {first.name}"]
    assert_restored()


def stretch(log: list[str], boundary: StepBoundary, *numbers: signal.Signals) -> None:
    """Work that can be cut anywhere, with an inner one like it, and the signals that arrive after that."""
    with boundary.immediate():
        with boundary.immediate():
            log.append("inner")
        for number in numbers:
            signal.raise_signal(number)
            log.append("held")
    log.append("end of the stretch")


@EITHER
def test_signals_act_at_once_where_nothing_can_be_lost(
    number: signal.Signals, raised: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    """faults 3 and 4: mining and validation."""
    log: list[str] = []
    boundary = StepBoundary()
    with pytest.raises(raised), boundary:
        stretch(log, boundary, number)
    assert log == ["inner"]
    assert boundary.pending is number
    assert capfd.readouterr().err == ""
    assert_restored()


def test_what_the_shell_told_to_ignore_stays_ignored() -> None:
    """A script that starts a run with `&` or nohup does so to keep it from Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StepBoundary() as boundary:
        signal.raise_signal(signal.SIGINT)
        assert boundary.pending is None
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_outside_the_main_thread_it_does_nothing() -> None:
    seen: list[Any] = []

    def work() -> None:
        with StepBoundary() as boundary, boundary.immediate():
            boundary.check()
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [terminate]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 7)])
def test_a_forked_worker_can_be_terminated_and_leaves_ctrl_c_to_its_parent(number: signal.Signals, status: int) -> None:
    """fault 6: Ctrl-C in a terminal goes to every process of the group."""
    with StepBoundary() as boundary:
        child = os.fork()
        if child == 0:
            signal.raise_signal(number)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == status
        boundary.check()


def endless() -> None:
    """A step that never ends; `step` on standard error says that it has begun."""
    with StepBoundary():
        os.write(2, b"step\n")
        while True:
            time.sleep(0.01)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_sigterm_ends_a_real_process_at_once(first: signal.Signals, account: Account, tmp_path: Path) -> None:
    """fault 5: in a step that never ends"""
    output = tmp_path / "output"
    child = begin_child(endless, output)
    eventually(lambda: output.exists() and output.read_text() == "step\n")
    os.kill(child, first)
    eventually(lambda: output.read_text() == "step\n" + NOTICE)
    os.kill(child, signal.SIGTERM)
    began = time.monotonic()
    assert exit_code(child) == -signal.SIGTERM
    seconds = time.monotonic() - began
    account.did(f"{first.name}, then SIGTERM, to a process in a step that never ends")
    account.saw(f"the first was held with a notice; {seconds:.1f} s after the second it had died of SIGTERM")
