"""Jobs and the one runner: it runs so many processes side by side and reports how each ended.

    work.next() -> Job -> engine.submit(job, resources) -> handle ... handle.poll() -> work.ended(job, code)

A bench is work whose jobs are runs of a list; a sweep is work whose jobs are workers that ask Optuna for trials.

A job is plain data: a command line, its input, its log. The engine decides where it runs and what it may use: here, a
process of this machine with a share of its cores. An engine for Ray would start the same process in a task with
`resources`, one for Slurm would make it an element of an array job; both need a file system that all nodes share, as
logs and run folders are files. Retries are ours (the run store of a bench, the queue of a study), never the engine's,
or a job would be repeated twice.
"""

import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self

from harness.errors import Terminated
from harness.experiments.display import Display, tail
from harness.io.private import without_paths
from harness.machine.threads import available_cores, computing_threads

STOP_SECONDS = 120.0
"""Seconds that a job has to save its state before it is killed; a second signal makes it hurry."""
REFUSED = 2
"""Exit code of a command that refused its arguments before it did anything."""
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Resources:
    """What a job may use."""

    cores: int | None = None
    """CPU cores; None for as many as a run on its own would use."""
    gpus: float = 0.0
    """Number of GPUs; a fraction shares one."""


@dataclass(frozen=True)
class Job:
    """One process to be run by an engine."""

    name: str
    """Name, unique among the jobs of a runner."""
    words: tuple[str, ...]
    """Command line."""
    log: Path
    """File for standard error, and for standard output if `output` is None."""
    output: Path | None = None
    order: bytes | None = None
    """One line for its standard input; None for no input. The engine keeps that pipe open as long as its own process
    lives: a job that reads to its end knows that nobody waits for it any more."""
    holds: tuple[int, ...] = ()
    """File descriptors that a local process inherits, so that a lock lasts as long as the job."""


class Handle(Protocol):
    """A job that was submitted."""

    @property
    def job(self) -> Job:
        """The job that was submitted."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the job waits or runs."""
        ...

    def send(self, number: int) -> None:
        """Send a signal to the job and to what it has started; nothing happens if it has ended."""
        ...

    def kill(self) -> None:
        """End the job at once and wait until it is gone."""
        ...


class Engine(Protocol):
    """Decides where jobs run, and starts them."""

    def share(self, workers: int) -> Resources:
        """Return the resources of each of `workers` jobs side by side."""
        ...

    def submit(self, job: Job, resources: Resources) -> Handle:
        """Start a job; raises `OSError` if it cannot be started now."""
        ...


class LocalProcess:
    """A process of this machine, in a group of its own: Ctrl-C reaches it only through whoever started it."""

    def __init__(self, job: Job, resources: Resources) -> None:
        self.job = job
        job.log.parent.mkdir(parents=True, exist_ok=True)
        threads = {} if resources.cores is None else {"OMP_NUM_THREADS": str(resources.cores)}
        with ExitStack() as files:
            errors = files.enter_context(job.log.open("wb"))
            self._process = subprocess.Popen(
                list(job.words),
                stdin=subprocess.DEVNULL if job.order is None else subprocess.PIPE,
                stdout=files.enter_context(job.output.open("wb")) if job.output else errors,
                stderr=errors,
                env={**os.environ, **threads},
                process_group=0,
                pass_fds=job.holds,
            )
        if self._process.stdin is not None and job.order is not None:
            with suppress(BrokenPipeError):  # the process died at once; its exit code tells
                self._process.stdin.write(job.order + b"\n")
                self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        code = self._process.poll()
        if code is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        return code

    def send(self, number: int) -> None:
        """Send a signal to the process group."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process group and wait for the process."""
        self.send(signal.SIGKILL)
        self._process.wait()


class LocalEngine:
    """Processes of this machine, which share its cores."""

    def share(self, workers: int) -> Resources:
        """Divide the cores among workers; a single worker has no limit."""
        if workers == 1:
            return Resources()
        return Resources(cores=min(max(1, available_cores() // workers), computing_threads()))

    def submit(self, job: Job, resources: Resources) -> LocalProcess:
        """Start a process."""
        return LocalProcess(job, resources)


def why_ended(code: int, log: Path) -> str:
    """Return in one line why a job ended, from its exit code and the end of its log."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = "; the system does that when memory runs out" if -code == signal.SIGKILL else ""
        return f"ended by {name}{hint}"
    lines = tail(log)
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines
    return without_paths(errors[-1]) if errors else f"ended with exit code {code}"


class Work(ABC):
    """Jobs to run, and what to do when one ends; bench and sweep are subclasses."""

    runner: "Runner"
    display: Display

    @abstractmethod
    def next(self) -> Job | None:
        """Return a job to start now, None if there is none at the moment."""

    @abstractmethod
    def ended(self, job: Job, code: int) -> None:
        """Take the result of a job that has ended."""

    @abstractmethod
    def over(self) -> bool:
        """Return whether no further job will come."""

    @abstractmethod
    def not_started(self, job: Job, error: OSError) -> None:
        """Handle a job that could not be started."""

    @abstractmethod
    def dropped(self, job: Job) -> object:
        """Handle a job that was killed because of an exception in this process."""

    def begin(self) -> None:  # noqa: B027
        """Prepare; called once, before the first job; signals are caught by then."""

    def look(self) -> None:  # noqa: B027
        """Do what has to be done regularly; called several times a second."""

    def finish(self) -> None:  # noqa: B027
        """Do what is left after the last job; raise if the work as a whole has failed."""

    def close(self, error: BaseException | None) -> None:  # noqa: B027
        """Clean up; always called at the end, with the exception that ended the work early or None."""


class Runner:
    """Runs the jobs of some work, `workers` at a time, until it is over or a signal stops it."""

    def __init__(self, work: Work, workers: int, engine: Engine | None = None) -> None:
        self._work, self._workers, self._engine = work, workers, engine or LocalEngine()
        self._share = self._engine.share(workers)
        self._interrupts = Interrupts()
        work.runner = self
        self.running: list[Handle] = []
        self._deadline: float | None = None
        """Monotonic time at which jobs that were asked to stop are killed; None before that."""

    @property
    def stopping(self) -> bool:
        """Whether jobs were asked to stop; no further one is started."""
        return self._deadline is not None

    @property
    def interrupted(self) -> bool:
        """Whether a signal has arrived."""
        return self._interrupts.first is not None

    def run(self) -> signal.Signals | None:
        """Run all jobs; returns the signal that ended this early, or None."""
        error: BaseException | None = None
        with self._work.display, self._interrupts:
            try:
                self._work.begin()
                self._forward()
                self._work.look()
                while self.running or not (self.stopping or self._work.over()):
                    self._start()
                    time.sleep(_LOOK_SECONDS)
                    self._forward()
                    self._collect()
                    self._work.look()
                self._work.finish()
                error = Terminated() if self.interrupted else None
            except BaseException as fault:
                error = fault
                raise
            finally:
                for handle in self.running:  # only after an exception here: no job outlives it
                    handle.kill()
                    self._work.dropped(handle.job)
                self._work.close(error)
        return self._interrupts.first

    def stop(self, number: signal.Signals | None, seconds: float | None = None) -> None:
        """Send a signal, if one is given, to all jobs, and kill those that still run after `seconds`."""
        self._deadline = self._deadline or time.monotonic() + (STOP_SECONDS if seconds is None else seconds)
        for handle in self.running:
            if number is not None:
                handle.send(number)

    def _start(self) -> None:
        while len(self.running) < self._workers and not self.stopping and (job := self._work.next()) is not None:
            try:
                self.running.append(self._engine.submit(job, self._share))
            except OSError as error:  # no memory for another process, no space for its log
                self._work.not_started(job, error)

    def _forward(self) -> None:
        """Pass signals of this process on to the jobs, and kill those that did not stop in time."""
        for number in self._interrupts.take():
            count = len(self.running)
            self._work.display.say(f"{number.name}: waiting for running jobs ({count}) to save; send it again to hurry")
            self.stop(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        if self._deadline is not None and time.monotonic() > self._deadline:
            for handle in self.running:
                handle.kill()

    def _collect(self) -> None:
        for handle in list(self.running):
            if (code := handle.poll()) is not None:
                self.running.remove(handle)
                self._work.ended(handle.job, code)


class Interrupts:
    """Collects Ctrl-C, SIGTERM and a closed terminal inside its block, so that they do not end the work midway."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self._new: list[signal.Signals] = []
        self._previous: dict[int, Any] = {}

    def take(self) -> list[signal.Signals]:
        """Return the signals that arrived since the last call."""
        taken, self._new = self._new, []
        return taken

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:  # ignored on purpose, by nohup or `&` in a script
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.first = self.first or signal.Signals(number)
        self._new.append(signal.Signals(number))
