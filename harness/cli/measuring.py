"""`harness perf`: our code against references, suite by suite, shown while it is measured and kept for the report."""

import os
import time
from dataclasses import dataclass, field
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.reporting import REPORTS
from harness.cli.show import Json, print_json, print_table, say, short_path

if TYPE_CHECKING:
    from harness.perf import Row
    from harness.perf.saved import Speed, Suite

EXAMPLES = """
Examples:

harness perf                                  (every suite; more than an hour)

harness perf --list                           (what the suites measure)

harness perf encoding training                (two of them)

harness perf searching --out search.md        (as a file: .json, .md, .tex, .html or .csv)

harness perf scaling --write                  (into reports/speed.json; page, tables and figures made anew)
"""
_FORMS = (".json", ".md", ".tex", ".html", ".csv")

Suites = Annotated[list[str] | None, typer.Argument(help="Suites, see --list. Default: all.", show_default=False)]
Out = Annotated[Path | None, typer.Option(help="Also write what is measured: .json, .md, .tex, .html or .csv.")]
Write = Annotated[
    bool, typer.Option("--write", help="Merge into the folder's speed.json and make its report anew, suite by suite.")
]
Folder = Annotated[Path, typer.Option(help="With --write: a folder of records and what is made from them.")]
Listed = Annotated[bool, typer.Option("--list", help="List the suites with what they measure.")]


def perf(
    suites: Suites = None,
    out: Out = None,
    write: Write = False,
    folder: Folder = REPORTS,
    listed: Listed = False,
    as_json: Json = False,
) -> None:
    """Measure speed against named references, as ratios in one run (`make bench`).

    Rows are shown as they are measured. A suite that fails is told, and the others go on; the exit code is then 1.
    Missed targets do not change it: timings of a busy machine are no verdict.
    """
    from harness.errors import unknown_name
    from harness.perf import SUITES

    for suite in suites or ():
        if suite not in SUITES:
            raise unknown_name("suite", suite, SUITES)
    wanted = tuple(dict.fromkeys(suites or SUITES))
    if listed:
        _list(wanted, as_json)
        return
    _check_places(out, folder if write else None)
    session = _Session(wanted, as_json, out, folder if write else None)
    session.measure()
    session.finish()
    if session.failed:
        raise typer.Exit(1)


perf.__doc__ = f"{cleandoc(perf.__doc__ or '')}\n{EXAMPLES}"


def _list(suites: tuple[str, ...], as_json: bool) -> None:
    from harness.perf.saved import about

    found = [{"suite": name, "about": about(name)} for name in suites]
    if as_json:
        print_json(found)
    else:
        print_table("speed suites", ["suite", "what it measures"], [list(one.values()) for one in found])


def _check_places(out: Path | None, folder: Path | None) -> None:
    """Everything that could keep results from being written is found before hours are spent on them."""
    from harness.errors import UserError

    if out is not None:
        if out.suffix not in _FORMS or out.is_dir():
            raise UserError(f"--out {out}: name a file that ends in one of {', '.join(_FORMS)}")
        _require_writable(out.absolute().parent)
    if folder is None:
        return
    from harness.perf.saved import SPEED, read_speed
    from harness.report.site import require_ours

    if not any((folder / "runs").glob("*.json")):
        raise UserError(f"{folder}/runs has no records, so {folder} is no report; `--out FILE` writes speed alone")
    require_ours(folder)
    read_speed(folder / SPEED)
    _require_writable(folder.absolute())


def _require_writable(folder: Path) -> None:
    """Refuses a folder that cannot be written to, or that cannot be made."""
    from harness.errors import UserError

    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{there} is no folder that can be written to; name another place")


@dataclass
class _Session:
    """One call of the command: what is to be measured, and what was."""

    suites: tuple[str, ...]
    as_json: bool
    out: Path | None
    """A file of what was measured, as far as that is; None for none."""
    folder: Path | None
    """A report that every suite goes to as soon as it is measured; None for none."""
    measured: "dict[str, Suite]" = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def say(self, text: str) -> None:
        """Tells a person; standard output is a program's where it asked for JSON."""
        say(text, err=self.as_json)

    def measure(self) -> None:
        """All suites, one after the other."""
        from harness.perf import measure
        from harness.perf.saved import Suite

        for number, name in enumerate(self.suites, 1):
            self.say(f"{name} ({number} of {len(self.suites)})")
            started, rows = time.perf_counter(), []
            try:
                for row in measure((name,)):
                    rows.append(row)
                    self.say(_line(row))
                self.measured[name] = Suite.of(name, rows, time.perf_counter() - started)
            except Exception as error:  # whatever it is, the other suites are worth measuring
                self.failed.append(name)
                say(f"  failed  {_explained(error)}", err=True)
                continue
            self._keep(name)

    def _keep(self, name: str) -> None:
        """Into file and report at once: a session that is stopped half-way has lost nothing."""
        from harness.perf.saved import SPEED, Speed, read_speed, write_speed

        if self.out is not None:
            _put(Speed(suites=self.measured), self.out)
        if self.folder is not None:
            before = read_speed(self.folder / SPEED) or Speed()
            write_speed(self.folder / SPEED, before.updated({name: self.measured[name]}))

    def finish(self) -> None:
        """The summary and the report."""
        from harness.perf.saved import Speed
        from harness.progress import clock
        from harness.report.speed import counts, verdict_line

        speed = Speed(suites=self.measured)
        if self.out is not None and self.measured:
            self.say(f"wrote {short_path(self.out.absolute())}")
        if self.folder is not None and self.measured:
            _make_anew(self.folder)
            self.say(f"the report  {short_path((self.folder / 'speed.md').absolute())}")
        if self.as_json:
            print_json(speed.as_json())
        rows = speed.rows
        for row in rows:
            if row.met is False:
                self.say(f"missed      {row.suite}: {verdict_line(row)}")
        for name in self.failed:
            self.say(f"failed      {name}")
        suites = f"{len(self.measured)} {'suite' if len(self.measured) == 1 else 'suites'}"
        self.say(f"{counts(rows)} {suites}, {clock(time.perf_counter() - self.started)}")


def _line(row: "Row") -> str:
    """A row as soon as it is there: verdict, what, figures; then on how much and where it goes."""
    from harness.report.speed import verdict_line

    verdict = {True: "met", False: "MISSED", None: "shown"}[row.met]
    return f"  {verdict:<7} {verdict_line(row)}" + (f"\n          {row.detail}" if row.detail else "")


def _explained(error: Exception) -> str:
    """One line: what went wrong, and where in the code unless it is the user's own mistake."""
    import traceback

    from harness.errors import UserError

    text = " ".join(str(error).split())
    if isinstance(error, UserError):
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}, line {frame.lineno})"


def _put(speed: "Speed", out: Path) -> None:
    from harness.files import write_text
    from harness.perf.saved import write_speed
    from harness.report.speed import speed_tables
    from harness.report.tables import render

    if out.suffix == ".json":
        write_speed(out, speed)
    else:
        write_text(out, render(speed_tables(speed), out.suffix.lstrip(".")))


def _make_anew(folder: Path) -> None:
    from harness.report.evidence import read_evidence
    from harness.report.site import make_site, write_site

    write_site(make_site(read_evidence(folder)), folder)
