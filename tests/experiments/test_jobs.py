"""The engine, the runner and the display that bench and sweep share; their own files test what they make of them."""

import io
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from harness.experiments import display, jobs
from harness.experiments.display import Display, Row, tail, time_left, window
from harness.experiments.jobs import Handle, Job, LocalEngine, LocalProcess, Resources, Runner, Work, why_ended
from harness.io.progress import clock
from harness.runs.environment import environment
from tests.support.sweeps import alive
from tests.support.tracked_runs import eventually


def job(folder: Path, script: str, name: str = "job", **more: object) -> Job:
    return Job(name, (sys.executable, "-S", "-c", script), folder / f"{name}.log", **more)  # type: ignore[arg-type]


def begun(one: Job) -> LocalProcess:
    return LocalEngine().submit(one, Resources())


def ended(handle: Handle) -> int:
    eventually(lambda: handle.poll() is not None, pause=0.01)
    code = handle.poll()
    assert code is not None
    return code


def test_a_job_has_its_cores_and_its_log(tmp_path: Path) -> None:
    script = "import os, sys; print(os.environ['OMP_NUM_THREADS']); sys.exit('error: no luck')"
    one = job(tmp_path, script, output=tmp_path / "out")
    assert ended(LocalEngine().submit(one, Resources(cores=3))) == 1
    assert (tmp_path / "out").read_text() == "3\n"
    assert why_ended(1, one.log) == "no luck"
    one.log.write_bytes(b"first\n\x1b[2Jlast\xff\n\n")
    assert tail(one.log)[-1].startswith("[2Jlast")
    assert why_ended(3, tmp_path / "none") == "ended with exit code 3"
    assert "SIGKILL" in why_ended(-signal.SIGKILL, one.log)


def test_a_kill_reaches_what_a_job_started(tmp_path: Path) -> None:
    """fault 6: no process is left, not even a dead one"""
    script = f"""
import subprocess, time
child = subprocess.Popen(["sleep", "60"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
time.sleep(60)
"""
    handle = begun(job(tmp_path, script))
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), pause=0.01)
    family = [psutil.Process(handle.pid), psutil.Process(int((tmp_path / "pid").read_text()))]
    handle.kill()
    handle.send(signal.SIGTERM)  # of one that is gone
    assert handle.poll() == -signal.SIGKILL
    assert not family[0].is_running()
    eventually(lambda: not alive(family[1].pid), pause=0.01)  # init buries it


def test_a_job_reads_its_order_and_sees_its_engine_go(tmp_path: Path) -> None:
    script = "import sys; line = sys.stdin.readline(); print(line.strip(), repr(sys.stdin.read()), flush=True)"
    handle = begun(job(tmp_path, script, order=b"go", output=tmp_path / "out"))
    time.sleep(0.2)
    assert handle.poll() is None  # the pipe stays open
    assert handle._process.stdin is not None
    handle._process.stdin.close()  # as the kernel does when the engine's process dies
    assert ended(handle) == 0
    assert (tmp_path / "out").read_text() == "go ''\n"


def test_each_of_several_jobs_gets_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    engine = LocalEngine()
    assert [engine.share(workers).cores for workers in (1, 2, 5, 99)] == [None, 6, 2, 1]
    for own, expected in (("4", 4), ("64", 6), ("0", 6), ("4,2", 6)):
        monkeypatch.setenv("OMP_NUM_THREADS", own)
        assert engine.share(2).cores == expected
        assert environment("cpu")["threads"] == (4 if own == "4" else 64 if own == "64" else 12)  # what records say


class Listed(Work):
    """Work that is a list of jobs."""

    def __init__(self, *waiting: Job) -> None:
        self.display = Display("jobs", (), list, workers=1)
        self.waiting, self.codes, self.most = list(waiting), dict[str, int](), 0
        self.closed: list[BaseException | None] = []

    def next(self) -> Job | None:
        self.most = max(self.most, len(self.runner.running) + 1)
        return self.waiting.pop(0) if self.waiting else None

    def ended(self, job: Job, code: int) -> None:
        self.codes[job.name] = code

    def over(self) -> bool:
        return not self.waiting

    def not_started(self, job: Job, error: OSError) -> None:
        self.codes[job.name] = -99

    def dropped(self, job: Job) -> None:
        self.codes[job.name] = -1

    def close(self, error: BaseException | None) -> None:
        self.closed.append(error)


def test_the_runner_runs_so_many_side_by_side_and_tells_every_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    work = Listed(*(job(tmp_path, f"raise SystemExit({code})", f"job-{code}") for code in range(4)))
    work.waiting.append(Job("lost", ("true",), tmp_path / "file" / "log"))  # its log cannot be written
    assert Runner(work, 2).run() is None
    assert work.codes == {"job-0": 0, "job-1": 1, "job-2": 2, "job-3": 3, "lost": -99}
    assert (work.most, work.closed) == (2, [None])


def test_a_fault_of_ours_leaves_no_job_behind(tmp_path: Path) -> None:
    class Faulty(Listed):
        def look(self) -> None:
            if self.runner.running:
                raise KeyError("ours")

    work = Faulty(job(tmp_path, "import time; time.sleep(60)"))
    with pytest.raises(KeyError, match="ours"):
        Runner(work, 2).run()
    assert work.codes == {"job": -1}


@pytest.mark.parametrize(
    ("number", "deaf"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, True), (signal.SIGHUP, False)]
)
def test_a_signal_is_passed_on_and_the_deaf_are_killed(
    number: signal.Signals, deaf: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """faults 5 and 6: no job begins any more, none is left, and handlers are as they were"""
    monkeypatch.setattr(jobs, "STOP_SECONDS", 0.3 if deaf else 60)
    act = "signal.SIG_IGN" if deaf else "lambda *_: sys.exit(7)"
    script = f"""
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, {act})
open({str(tmp_path / "up")!r}, "w").write(str(os.getpid()))
time.sleep(60)
"""
    work = Listed(job(tmp_path, script), job(tmp_path, "", "never begun"))

    def interrupt() -> None:
        eventually(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text(), pause=0.01)
        os.kill(os.getpid(), number)

    given = signal.getsignal(number)
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    signal.signal(number, handler)  # under nohup the runner would leave it alone
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert Runner(work, 1).run() == number
        thread.join()
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, given)
    assert work.codes == {"job": -signal.SIGKILL if deaf else 7}
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "up").read_text()), 0)


def row(name: str, status: str = "done", seconds: float | None = None, alike: str = "", **more: object) -> Row:
    likes = (("same", alike), "any")
    metadata = {"seconds": seconds, "alike": likes, "counts": status == "done", **more}
    return Row(name, status, {"method": name}, f"{name}: {status}", **metadata)  # type: ignore[arg-type]


def test_time_left_is_judged_by_the_like() -> None:
    known = [row("a", "done", 10.0, "x"), row("b", "done", 20.0, "x"), row("c", "failed", 1.0, "y")]
    waiting = [row("d", "waiting", None, "x"), row("e", "waiting", None, "y"), row("f", "running", 7.0, "y")]
    assert time_left([*known, *waiting], 1) == 15 + 15 + (15 - 7)  # of y only what is like it in something
    known.append(row("g", "done", 6.0, "y"))
    assert time_left([*known, *waiting], 1) == 15 + 6 + 0
    assert time_left([*known, *waiting], 2) == 15  # the longest of two side by side, not half the sum
    assert time_left(waiting, 1) is None
    assert time_left(known, 1) == 0
    assert time_left(waiting[:1], 1, [((("same", "x"),), 40.0)]) == 40  # from earlier runs


def test_changes_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("a"), row("b", "waiting"), row("c", "waiting")]
    shown = Display("cells", ("method", "status"), lambda: rows, workers=1)
    with shown:
        shown.refresh()
        for status in ("running", "running", "done"):
            rows[1] = row("b", status, 2.0)
            shown.refresh()
        rows[1] = row("b", "done", 2.0, attempt=1)
        shown.refresh()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "1 of 3 cells were done before",
        *("[1/3] b: running", "[2/3] b: done", "[2/3] b: done"),
    ]
    assert "to go" in lines[2]


def test_a_small_terminal_shows_what_runs() -> None:
    rows = [row(str(n), "done" if n < 30 else "running" if n == 30 else "waiting") for n in range(60)]
    assert [one.name for one in window(rows, 10)] == [str(n) for n in range(28, 38)]
    assert window(rows[:10], 10) == rows[:10]
    assert window(rows[:30], 10) == rows[20:30]


def test_the_live_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=140, height=40)
    monkeypatch.setattr(display, "terminal", lambda: screen)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    log = tmp_path / "log"
    log.write_bytes(b"epoch 1\n\x1b[2Jepoch 2/9  loss 0.5\n\n")
    rows = [row("a", seconds=10.0), row("b", "running", 1.0, log=log), row("c", "failed", remark="[red]plain[/red]")]
    with Display("cells", ("method", "status", "seconds"), lambda: rows, workers=1, summary=lambda: "best 7") as shown:
        shown.say("[b]a remark")
    drawn = screen.file.getvalue()  # type: ignore[attr-defined]
    for part in ("running", "10.0", "[2Jepoch 2/9  loss 0.5", "[red]plain[/red]", "[b]a remark", "best 7"):
        assert part in drawn
    assert "1/3 done, 1 running, 1 failed, " in drawn
    assert re.search(r"so far, about \d+ s to go", drawn)
    assert "\x1b[2J" not in drawn
    assert (clock(59.4), clock(200), clock(3900)) == ("59 s", "3:20 min", "1:05:00 h")
