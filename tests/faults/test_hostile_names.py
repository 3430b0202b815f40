"""Names of methods, encoders, scorers and datasets that are markup, formulas and control characters, in every form.

Each form is read by something that did not write it. A record with such names is on disk, as if somebody had sent it.
"""

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from harness.cli.show import say
from harness.experiments.bench.store import RunStore
from harness.experiments.display import Display, Row
from harness.io.printable import printable, printable_json, printable_lines
from harness.report.earlier import read_earlier
from harness.report.results import read_results
from harness.report.site import Site, make_site
from harness.runs.log import RunLog
from harness.runs.record import RunRecord
from tests.faults.accounts import Account
from tests.report.test_latex import KNOWN_MACROS, latexwalker, parsed, walk
from tests.support.commands import call
from tests.support.figure_runs import run
from tests.support.kept_runs import keep
from tests.support.tracked_runs import draft, logged

MARKUP = "_ & % # <script>alert(1)</script> \\input{x} $y$ | `z` *b* [/red]"
FORMULA = '=HYPERLINK("http://evil";A1)'
WIDE = "\N{FULLWIDTH EQUALS SIGN}cmd|'/c calc'!A1"
CONTROL = "nul\0 esc\x1b]0;owned\x07 csi\x9b2J del\x7f\r\n| a | row |\n\u2028=1\u202egnp.exe\u2066\ufeff\u200b"
NAMES = (MARKUP, FORMULA, WIDE, CONTROL)
SHOWN_CONTROL = (
    "nul[U+0000] esc[U+001B]]0;owned[U+0007] csi[U+009B]2J del[U+007F] | a | row | =1[U+202E]gnp.exe[U+2066]"
    "[U+FEFF][U+200B]"
)
"""As a reader sees it."""


STEERING = "x\x1b]0;PWNED\x07\u202eabc"
"""A title for the window, a bell, and a turn of the order of reading; no path, so a file can be called so."""
SHOWN_STEERING = "x[U+001B]]0;PWNED[U+0007][U+202E]abc"


def record(place: int, name: str) -> RunRecord:
    """A finished run that is called so wherever a run can be called something."""
    scorer = printable(re.sub(r"[/\\]", "", name))  # files are called after scorers: no path, nothing that is not seen
    made = run(p1=50.0 + place, moment=place, scorers={scorer: {"P@1": 50.0 + place, "P@5": 20.0}})
    made.config.update({"method": name, "encoder": name, "note": name})
    made.dataset.update({"name": CONTROL, "title": MARKUP})
    made.environment.update({"cpu": name, "harness": CONTROL})
    return made.model_copy(update={"run_id": f"run-{place}", "metrics": made.scorers[scorer], "warnings": [name]})


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    for place, name in enumerate(NAMES):
        keep(folder, record(place, name))
    return folder


@pytest.fixture(scope="module")
def site(reports: Path) -> Site:
    results = read_results(reports)
    assert [one.config["method"] for one in results.records] == list(NAMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "harness.report.figures.as_png", lambda figure, digest: b""
        )  # takes seconds, and is not read here
        return make_site(results)


def acting(text: str) -> set[str]:
    """Characters that nobody sees and that do something; a file may have ends of lines."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}


def texts(site: Site, ending: str) -> Iterator[tuple[str, str]]:
    found = [(name, content.decode("utf-8")) for name, content in site.items() if name.endswith(ending)]
    assert found
    yield from found


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_no_file_has_a_character_that_acts(site: Site, account: Account) -> None:
    """fault 64: NUL, escape sequences, ends of lines, right-to-left overrides"""
    assert len(acting(CONTROL)) == 11
    endings = (".md", ".csv", ".tex", ".html")
    read = [(name, text) for ending in endings for name, text in texts(site, ending)]
    assert [name for name, text in read if acting(text)] == []
    assert [name for name, text in texts(site, ".md") if r"\[U+202E\]" in text]
    for name in site:
        assert re.fullmatch(r"[A-Za-z0-9._/-]+", name), name
        assert ".." not in name
    account.did(f"{len(acting(CONTROL))} control characters in names of method, encoder, hardware and data; a report")
    account.saw(f"none in {len(read)} files ({', '.join(endings)}); shown as code points such as [U+202E]")


def test_csv_has_no_formula_and_no_row_of_its_own(site: Site, account: Account) -> None:
    """fault 64"""
    text = dict(texts(site, ".csv"))["tables/comparison.csv"]
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert len(rows) == len(text.splitlines()) == 1 + len(NAMES)
    assert {len(row) for row in rows} == {len(rows[0])}
    for cell in (cell for row in rows for cell in row):
        sign = unicodedata.normalize("NFKC", cell.strip())[:1]
        assert sign not in ("=", "+", "-", "@") or float(cell) == float(cell), cell
    found = {row[rows[0].index("method")].removeprefix("'") for row in rows[1:]}
    assert found == {MARKUP, FORMULA, WIDE, SHOWN_CONTROL}
    account.did(f"methods called {FORMULA} and {len(NAMES) - 1} others, in CSV")
    account.saw(f"{len(rows) - 1} rows of {len(rows[0])} cells read back; no cell begins with = + - @ but a number")


class Html(HTMLParser):
    """Elements with their attributes, and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(squeezed(data))


def test_html_has_our_elements_alone(site: Site, account: Account) -> None:
    """fault 64"""
    page = Html(dict(texts(site, ".html"))["index.html"])
    assert sum(tag == "script" for tag, _ in page.elements) == 2
    assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    assert not [tag for tag, _ in page.elements if tag in ("iframe", "object", "embed", "base")]
    account.did("a method called _ & % # <script>alert(1)</script> \\input{x}: page, tables")
    account.saw("2 scripts on the page, as always; no handler; cells show the name")


def test_latex_and_markdown_have_our_structure_alone(site: Site, account: Account) -> None:
    """fault 64"""
    for name, text in texts(site, ".tex"):
        macros = {node.macroname for node in walk(parsed(text)) if node.isNodeType(latexwalker.LatexMacroNode)}
        assert "input" not in macros
        if name == "tables/comparison.tex":
            assert macros <= KNOWN_MACROS, macros - KNOWN_MACROS
        assert text.isascii()
    for name, text in texts(site, ".md"):
        bare = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text.replace("\\`", ""))  # in a span of code markup is text
        assert not re.search(r"<(?!/?ins>)", bare), name
    text = dict(texts(site, ".md"))["tables/comparison.md"]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(NAMES)
    assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}) == 1
    assert r"nul\[U+0000\] esc\[U+001B\]" in text
    account.did("the same names in LaTeX, read by pylatexenc strictly, and in Markdown")
    account.saw(f"no macro but ours in the LaTeX table; {len(lines)} lines of one width in Markdown, no HTML element")


def test_the_screen_and_json(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 64: nothing steers the terminal; a program gets every name as it is"""
    assert call("report", "--runs", str(reports)) == 0
    shown = capsys.readouterr()
    assert not acting(shown.out + shown.err)
    assert "nul[U+0000] esc[U+001B]" in shown.out
    assert call("report", "--runs", str(reports), "--json") == 0
    printed = capsys.readouterr().out
    assert not acting(printed)
    assert [row["method"] for row in json.loads(printed)] == list(NAMES)
    assert call("report", "--runs", str(reports), "--dataset", CONTROL + "?") == 2
    assert not acting(capsys.readouterr().err)


def test_a_heading_is_never_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """fault 64: metrics give columns their names"""
    from harness.cli.show import print_table

    print_table("title", ["[/x]", "[red]P@1", "a\x1b[2J"], [["1", "2", "3"]])
    assert "[/x] [red]P@1 a[U+001B][2J" in squeezed(capsys.readouterr().out)


def test_sync_names_a_run_without_being_steered(
    workspace: Path, mlflow_store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 64: of a run that cannot be sent whole"""
    folder = logged(workspace / "runs" / STEERING, [{"loss": 1.0}])
    (tmp_path / "elsewhere").write_text("not of the run")
    (folder / "sample.json").symlink_to(tmp_path / "elsewhere")
    assert call("sync") == 1
    shown = capsys.readouterr()
    assert not acting(shown.out + shown.err)
    assert f"failed: {SHOWN_STEERING}: " in shown.out
    account.did(f"`sync` of a run called {STEERING!r} with a file that is not sent")
    account.saw(f"exit code 1, and the run named as {SHOWN_STEERING}; no control character printed")


def _warned_by_a_log(folder: Path) -> None:
    with RunLog(folder / "run", draft()) as run_log:
        run_log.warn(STEERING)


def _damaged_evidence(folder: Path) -> None:
    (folder / "neighbours").mkdir()
    (folder / "neighbours" / f"{STEERING}.json").write_text("{}")
    read_earlier(folder)


def _damaged_record(folder: Path) -> None:
    (folder / STEERING).mkdir()
    (folder / STEERING / "record.json").write_text("{}")
    RunStore(folder).finished()


DISPLAY = Display(
    "cells", ("method", "status"), lambda: [Row("a", "failed", {}, "a: failed", remark=STEERING)], workers=1
)
"""With one cell or trial that has failed."""


@pytest.mark.parametrize(
    "act",
    [
        _warned_by_a_log,
        _damaged_evidence,
        _damaged_record,
        lambda folder: say(f"first\n{STEERING}", err=True),
        lambda folder: DISPLAY.say(f"failed: {STEERING}"),
    ],
)
def test_no_warning_steers_a_terminal(
    act: Callable[[Path], object], tmp_path: Path, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 64: of damaged files, of data, of runs, cells and trials"""
    act(tmp_path)
    shown = capsys.readouterr().err
    assert SHOWN_STEERING in shown
    assert not acting(shown)


def test_a_live_table_steers_no_terminal() -> None:
    """fault 64: the last line that a process wrote is in it"""
    screen = Console(file=io.StringIO(), width=200)
    screen.print(DISPLAY.render())
    text = cast(io.StringIO, screen.file).getvalue()
    assert SHOWN_STEERING in text
    assert not acting(text)


def test_what_is_printable_stays() -> None:
    for text in (
        "plain",
        "naïve 日本語 עברית",
        "\N{WOMAN}\u200d\N{MICROSCOPE}",
        "a\u00a0b",
        "\u0645\u06cc\u200c\u062e",
    ):
        assert printable(text) == text
        assert printable_json(json.dumps(text, ensure_ascii=False)) == json.dumps(text, ensure_ascii=False)
    assert printable("a\r\nb\tc") == "a b c"
    assert printable_lines("a\x1b\n\n b\r\nc") == "a[U+001B]\n\n b \nc"
    value = {"key\u202e": ["\x9b", "\ud800", "\U000e0041", "é\n"]}
    text = printable_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert not acting(text)
    assert "é" in text
    assert json.loads(text) == value
