"""A whole report made twice from nothing: in this process, and in one that shares nothing with it but the records."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.io.files import write_json
from harness.report.results import read_results
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.figure_runs import world

ROOT = Path(__file__).parents[2]
COMMAND = ("report", "--collect", "--write", "--folder")
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


def results_in(folder: Path, backwards: bool) -> Path:
    """Records, two sweeps and neighbours as earlier versions kept them; backwards the folder lists them the other way.

    To collect them is the first thing that both processes do.
    """
    committed = read_results(ROOT / "reports")
    values = {f"runs/{one.run_id}": one for one in world().records}
    values |= {f"studies/{one.name}": one for one in committed.studies[:2]}
    values |= {f"neighbours/{name}": one for name, one in committed.neighbours.items()}
    for name, value in sorted(values.items(), reverse=backwards):
        write_json(folder / f"{name}.json", value.model_dump(mode="json"))
    return folder


def in_another_process(folder: Path, elsewhere: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    """`harness report --collect --write` from another current folder, with a home and settings of its own."""
    elsewhere.mkdir(parents=True)
    own = {"HARNESS_HOME": str(elsewhere / "workspace"), "MPLCONFIGDIR": str(elsewhere)}
    code = (
        "import atexit, sys; from harness.cli import main; "
        "atexit.register(lambda: print({'torch', 'mlflow'} & {*sys.modules})); main(sys.argv[1:])"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *COMMAND, str(folder)],
        cwd=elsewhere,
        env={**os.environ, **own, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_two_processes_make_the_same_bytes_from_the_same_records(tmp_path: Path, account: Account) -> None:
    """fault 63: other hash seeds, folders, order of files, time zones, languages, widths and clocks"""
    one, other = results_in(tmp_path / "a", False), results_in(tmp_path / "far away" / "b", True)
    clock, seen = tmp_path / "clock", tmp_path / "seen"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(LATER_CLOCK)
    odd = {"PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "LC_ALL": "C", "COLUMNS": "77"}
    odd |= {"PYTHONPATH": f"{clock}{os.pathsep}{ROOT}", "CLOCK_SEEN": str(seen)}
    process = in_another_process(other, tmp_path / "there", odd)
    assert call(*COMMAND, str(one)) == 0
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed
    assert printed.splitlines()[-1] == "set()", "neither torch nor MLflow is loaded for a report"
    assert datetime.fromisoformat(seen.read_text()).replace(tzinfo=UTC) - datetime.now(UTC) > timedelta(days=365)
    made, again = content(one), content(other)
    kinds = {Path(name).suffix for name in made}
    assert {".md", ".tex", ".csv", ".html", ".png", ".parquet", ".json"} == kinds
    assert len(made) > 50
    assert sorted(made) == sorted(again)
    assert [name for name in made if made[name] != again[name]] == []
    account.did("2 processes make a report: other PYTHONHASHSEED, folder, order of files, locale, clock 400 days on")
    account.saw(f"{len(made)} files ({', '.join(sorted(kinds))}) equal byte for byte")
