"""A whole report made twice from nothing, by two processes that have nothing in common but the records."""

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.files import write_json
from tests.figure_runs import world
from tests.trust.accounts import Account

ROOT = Path(__file__).parents[1]
LATER_CLOCK = """
import os, time
ahead = 400 * 86400
real, of_gmt, of_here = time.time, time.gmtime, time.localtime
time.time = lambda: real() + ahead
time.gmtime = lambda seconds=None: of_gmt(time.time() if seconds is None else seconds)
time.localtime = lambda seconds=None: of_here(time.time() if seconds is None else seconds)
with open(os.environ["CLOCK_SEEN"], "w") as seen:
    seen.write(time.strftime("%Y-%m-%d", time.gmtime()))
"""
"""What Python runs first in a process: its clock is more than a year ahead."""


def evidence_in(folder: Path, backwards: bool) -> Path:
    """Records, a sweep, neighbours and measured speed; in the other order the folder lists them the other way round."""
    records = list(world().records)
    for one in reversed(records) if backwards else records:
        write_json(folder / "runs" / f"{one.run_id}.json", one.model_dump(mode="json"))
    for name in ("studies", "neighbours"):
        (folder / name).mkdir()
        for path in sorted((ROOT / "reports" / name).glob("*.json"), reverse=backwards):
            shutil.copy(path, folder / name)
    shutil.copy(ROOT / "reports" / "speed.json", folder)
    return folder


def building(folder: Path, elsewhere: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """`harness report --write` from another current folder, with a home and settings of its own."""
    elsewhere.mkdir(parents=True)
    own = {"HARNESS_HOME": str(elsewhere / "workspace"), "MPLCONFIGDIR": str(elsewhere), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "harness", "report", "--write", "--folder", str(folder)],
        cwd=elsewhere,
        env={**os.environ, **own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_processes_make_the_same_bytes_from_the_same_records(tmp_path: Path, account: Account) -> None:
    """fault 63: other hash seeds, folders, order of files, time zones, languages, widths and clocks"""
    one, other = evidence_in(tmp_path / "a", False), evidence_in(tmp_path / "far away" / "b", True)
    given = len(content(one))
    clock, seen = tmp_path / "clock", tmp_path / "seen"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(LATER_CLOCK)
    usual = {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8", "COLUMNS": "80"}
    odd = {"PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "LC_ALL": "C", "COLUMNS": "200"}
    odd |= {"PYTHONPATH": f"{clock}{os.pathsep}{ROOT}", "CLOCK_SEEN": str(seen)}
    processes = [building(one, tmp_path / "here", usual), building(other, tmp_path / "there", odd)]
    for process in processes:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    assert datetime.fromisoformat(seen.read_text()).replace(tzinfo=UTC) - datetime.now(UTC) > timedelta(days=365)
    made, again = content(one), content(other)
    kinds = {Path(name).suffix for name in made}
    assert {".md", ".tex", ".csv", ".html", ".svg", ".png"} <= kinds
    assert len(made) > given + 50
    assert sorted(made) == sorted(again)
    assert [name for name in made if made[name] != again[name]] == []
    account.did("2 processes make a report: other PYTHONHASHSEED, folder, order of files, locale, clock 400 days on")
    account.saw(f"{len(made) - given} files ({', '.join(sorted(kinds - {'.json'}))}) equal byte for byte")
