"""Figures, marks and the four forms of a table, each read back by something that did not write it."""

import csv
import io
import math
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.report.cells import Cell, Direction, Figure, Table, marked
from harness.report.tables import as_csv, as_markdown, csv_text, render

HOSTILE = "=x_1 & 50% #<script>alert(1)</script> {y} $z ^~ \\ | `b` *c*"


@pytest.mark.parametrize(
    ("figure", "shown"),
    [
        (Figure(72.69, 0.31, 3), "72.69 ± 0.31"),
        (Figure(72.69, None, 1), "72.69"),
        (Figure(None, None, 0), "X"),
        (Figure(46.1, 0.2, 3, 44.9), "46.10 ± 0.20 (paper 44.90, +1.20)"),
        (Figure(44.0, 0.2, 3, 44.9), "44.00 ± 0.20 (paper 44.90, -0.90)"),
        (Figure(44.8999, None, 1, 44.9), "44.90 (paper 44.90, +0.00)"),
        (Figure(46.1, 0.2, 3, 44.9, slip=True), "46.10 ± 0.20 (paper 44.90?, +1.20)"),
        (Figure(None, None, 0, 44.9), "X (paper 44.90)"),
        (Figure(46.1, 0.2, 2, wanted=3), "46.10 ± 0.20 (2 of 3 seeds)"),
        (Figure(46.1, 0.2, 2, 44.9, wanted=3), "46.10 ± 0.20 (2 of 3 seeds; paper 44.90, +1.20)"),
        (Figure(46.1, 0.2, 3, wanted=3), "46.10 ± 0.20"),
        (Figure(None, None, 0, wanted=3), "X"),
        (Figure(1234567.0, None, 1, 1234000.0, digits=0), "1,234,567 (paper 1,234,000, +567)"),
        (Figure(-0.001, None, 1), "0.00"),
    ],
)
def test_a_figure_as_text(figure: Figure, shown: str) -> None:
    """fault 61"""
    assert figure.shown() == shown
    assert Cell.of(figure).shown == Cell.of(figure).text == shown


values = st.one_of(st.none(), st.floats(-2, 2), st.sampled_from([1.004, 1.0, 1.0049, 0.996, -0.001, 0.001]))


@given(st.lists(values, max_size=8), st.sampled_from(["up", "down"]))
@example([1.0, 1.004, 1.0], "up")
@example([1.0, None], "up")
@example([1.0, 2.0, 2.0, 0.0], "up")
@example([3.0, 2.0, 2.001, 0.0], "up")
@example([5.0, 5.001, None], "up")
def test_marks_by_pairwise_comparison(means: list[float | None], direction: Direction) -> None:
    """fault 61: no best among ties; an independent reading of the rules, by what is printed and pair by pair."""
    best, second = marked([None if mean is None else Figure(mean, None, 1) for mean in means], direction)
    printed = [None if mean is None else f"{mean:.2f}".replace("-0.00", "0.00") for mean in means]

    def better(one: str, other: str) -> bool:
        return float(one) > float(other) if direction == "up" else float(one) < float(other)

    there = [text for text in printed if text is not None]
    for place, text in enumerate(printed):
        if text is None:
            assert not best[place]
            assert not second[place]
            continue
        ahead = [other for other in there if better(other, text)]
        behind = [other for other in there if better(text, other)]
        assert best[place] == (not ahead and bool(behind))
        assert second[place] == (len(ahead) == 1)


def a_table(text: str = "m", **changes: object) -> Table:
    rows = (
        (Cell(text), Cell.of(Figure(46.1, 0.2, 3, 44.9), best=True, mark="†"), Cell("1")),
        (Cell("b"), Cell.of(Figure(-1.5, None, 1, 44.9, slip=True), second=True), Cell("2")),
        (Cell("c"), Cell.of(Figure(None)), Cell("3")),
    )
    values = {"title": "T", "columns": ("method", "P@1", "k"), "rows": rows, "caption": "Percent.", "words": 1}
    return Table(**{**values, **changes})  # type: ignore[arg-type]


def test_rules_outside_the_rows_are_none() -> None:
    sizes = [len(group) for group in a_table(breaks=(0, 2, 2, 3, 9)).groups()]
    assert sizes == [2, 1]


def test_a_command_is_code_where_people_read_it() -> None:
    """As it is, to be copied: LaTeX sets quotes and hyphens its own way, and a spreadsheet has no place for it."""
    table = a_table(command="run --set 'a_b=[1,  2]' && <x>")
    assert as_markdown(table).endswith("\n```\nrun --set 'a_b=[1,  2]' && <x>\n```\n")
    for form in ("tex", "csv"):
        assert render([table], form) == render([a_table()], form)


def test_markdown() -> None:
    lines = as_markdown(a_table(notes=("one", "1. two", "- three"))).splitlines()
    assert lines[2:7] == [
        "| method | P@1 | k |",
        "|---|---:|---:|",
        "| m | **46.10 ± 0.20**† (paper 44.90, +1.20) | 1 |",
        "| b | <ins>-1.50</ins> (paper 44.90?, -46.40) | 2 |",
        "| c | X | 3 |",
    ]
    assert lines[8:] == ["Percent.", "", "- one", r"- 1\. two", r"- \- three"]


def test_figures_are_finite_and_fit_their_columns() -> None:
    """fault 61: a spread only from two runs on"""
    assert [Figure.of([]), Figure.of([5.0])] == [Figure(None, None, 0), Figure(5.0, None, 1)]
    assert Figure.of([50.0, 52.0], wanted=3) == Figure(51.0, math.sqrt(2), 2, wanted=3)
    with pytest.raises(ValueError, match="None"):
        Figure(math.nan)
    with pytest.raises(ValueError, match="has 1 cells for 2 columns"):
        Table("T", ("a", "b"), ((Cell("x"),),))


def test_csv_keeps_numbers() -> None:
    header, *rows = csv.reader(io.StringIO(as_csv([a_table()])))
    assert header == [
        *["table", "method", "P@1 mean", "P@1 std", "P@1 n", "P@1 paper", "P@1 difference"],
        *["P@1 slip", "P@1 mark", "k"],
    ]
    assert rows[0] == ["T", "m", "46.1", "0.2", "3", "44.9", "1.2", "", "†", "1"]
    assert rows[1] == ["T", "b", "-1.5", "", "1", "44.9", "-46.4", "yes", "", "2"]
    assert rows[2] == ["T", "c", "", "", "0", "", "", "", "", "3"]
    counts = a_table(rows=((Cell("m"), Cell.of(Figure(294805.0, paper=294800.0, digits=0)), Cell("")),))
    assert list(csv.reader(io.StringIO(as_csv([counts]))))[1][2:7] == ["294805", "", "0", "294800", "5"]


def test_csv_guards_text_and_lets_numbers_be() -> None:
    """fault 64"""
    for number in ("-1", "-1.25", "+3", "1e-5", "-1E+5", "5"):
        assert csv_text(number) == number
    for formula in ("=1", "-1+cmd", "+A1", "@x", "-", " =1", "-1 ", "-١", "\N{FULLWIDTH EQUALS SIGN}1"):  # noqa: RUF001
        assert csv_text(formula) == f"'{formula}"
    assert csv_text("\t=1") == csv_text("\r=1") == "' =1"
    assert csv_text("1-") == "1-"
    assert csv_text("=a\r\nb") == "'=a b"


def seen(text: str) -> str:
    """An independent reading of what a reader gets: one line, and code points for what acts instead of showing."""
    shown = ""
    for letter in text:
        acts = unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in "\u200c\u200d"
        ends = letter in "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x85\u2028\u2029"
        shown += "\0" if ends else f"[U+{ord(letter):04X}]" if acts else letter
    return re.sub("\0+", " ", shown)


@given(st.text(st.characters(codec="utf-8"), max_size=30))
@example(HOSTILE)
@example("a\\|b")
@example("=\r\n|")
def test_texts_are_inert_in_markdown_and_csv(text: str) -> None:
    """fault 64"""
    table = a_table(text, title=text, caption=text, notes=(text,))
    lines = [line for line in as_markdown(table).split("\n") if line.startswith("| ")]
    assert len(lines) == 4
    for line in lines:
        bars = re.findall(r"(?<!\\)(?:\\\\)*\|", line)
        assert len(bars) == 4
    assert not re.search(r"<(?!/?ins>)", as_markdown(table))
    rows = list(csv.reader(io.StringIO(as_csv([table]), newline="")))
    assert {len(row) for row in rows} == {10}
    assert rows[1][1].removeprefix("'") == seen(text).removeprefix("'")
    assert not rows[1][1].strip().startswith(("=", "@")), "a formula"
