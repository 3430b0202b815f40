"""The report page as text: what its data say, and that nobody's names become markup. Browsers drive it elsewhere."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.record import RunRecord
from harness.report import Cell, Table
from harness.report.cells import Figure
from harness.report.documents import Document
from harness.report.evidence import Evidence
from harness.report.figures.drawing import Drawing, Missing, figure_stem
from harness.report.page import SCRIPTS, build_page, page_data
from harness.report.page.embedding import rounded, script_json

HOSTILE = (
    "</script><script>window.owned=1</script>",
    '"><img src=x onerror=window.owned=1>',
    "<!--<script>",
    "a_b & 50% #1 $data ${style} =1+1",
    "\u202eright to left\u2028",
)
SVG = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 100">\n'
    b'<title>100% &amp; #1</title><path d="M0 0\nL1 1"/></svg>'
)


def run(method: str = "alpha", seed: int = 0, p1: float = 50.0, **changes: Any) -> RunRecord:
    """A finished run of a method that this project does not have, unless a config says otherwise."""
    values: dict[str, Any] = {
        "run_id": f"run-{method}-{seed}",
        "status": "finished",
        "started": f"2026-01-01T00:00:{seed:02d}",
        "seconds": 10.0 + seed,
        "config": {"method": method, "encoder": "static", "dataset": "made", "seed": seed, "params": {"beta": 3}},
        "dataset": {"name": "made", "title": "Made", "digest": "d" * 64, "filter": True, "statistics": {"test": 7}},
        "metrics": {"P@1": p1, "PSP@5": 90 - p1},
        "metric_version": 1,
        "peak_memory_gib": 0.5,
        "environment": {"python": "3.11"},
    }
    return RunRecord.model_validate({**values, **changes})


def page(*records: RunRecord, figures: Any = None, tables: Any = ()) -> str:
    return build_page(page_data(Evidence(records)), figures or {}, tables)


class Reader(HTMLParser):
    """Elements, attributes and texts as a browser would take them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.inside: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.setdefault(tag, []).append("")

    def handle_data(self, data: str) -> None:
        last = self.elements[-1][0] if self.elements else ""
        if last in ("script", "style") and self.rawdata and self.cdata_elem:
            self.inside[last][-1] += data
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def embedded(text: str) -> Any:
    return json.loads(Reader(text).inside["script"][0])


# what becomes of it in HTML


VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=12) | st.integers(-(2**53), 2**53),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(VALUES)
def test_embedded_json_is_inert_and_comes_back(value: Any) -> None:
    text = script_json(value)
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


@settings(deadline=None)
@given(st.floats(allow_nan=True, allow_infinity=True))
def test_figures_keep_five_digits_and_what_is_no_number_is_null(value: float) -> None:
    short = rounded([value])[0]
    if value != value or abs(value) > 1.797e308:
        assert short is None or short == pytest.approx(value, rel=6e-5)
    else:
        assert short == pytest.approx(value, rel=6e-5)
        json.dumps(short, allow_nan=False)


@pytest.mark.parametrize("text", HOSTILE)
def test_names_never_become_markup(text: str) -> None:
    """Fault 64."""
    about = {**run().dataset, "name": text, "title": text}
    hostile = run(
        text, dataset=about, run_id=text, warnings=[text], environment={text: text}, views={text: {"P@1": 1.0}}
    )
    failed = run("b", status="failed", error=text, run_id=text + "2")
    figures = {text: [Drawing("f", text, text, text, SVG, b""), Missing("g", text, text, text)], "other": []}
    table = Table(text, (text, "P@1"), ((Cell(text), Cell("1.00")),), text, id=text, notes=(text,))
    made = page(hostile, failed, figures=figures, tables=[table, Document(text, text, (table, table), True)])
    calm = page(run(), figures={"made": [Drawing("f", "f", "f", "f", SVG, b"")], "other": []}, tables=[])
    read = Reader(made)
    assert len(read.of("script")) == len(Reader(calm).of("script")) == 2
    assert len(read.of("img")) == 1
    assert not [key for _, attributes in read.elements for key in attributes if key.startswith("on") or key == "style"]
    seen = text.replace("\u202e", "[U+202E]").replace("\u2028", " ")
    assert sum(seen in part for part in read.texts) >= 6, "and yet a reader sees what is in it"
    assert not {"\u202e", "\u2028"} & set(made)
    assert embedded(made)["datasets"][0]["rows"][0]["method"] == text


def test_a_name_without_utf_8_form_can_be_written() -> None:
    made = page(run(warnings=["half \ud800 a pair"]), tables=[Table("\ud800", ("a",), ((Cell("\udfff"),),))])
    assert made.encode("utf-8")
    assert embedded(made)["runs"]["run-alpha-0"]["warnings"] == ["half \ud800 a pair"]


def test_the_policy_allows_the_page_itself_and_nothing_else() -> None:
    read = Reader(page(run(), figures={"made": [Drawing("f", "f", "f", "f", SVG, b"")]}))
    [policy] = [one["content"] for one in read.of("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    rules = {rule.split()[0]: rule.split()[1:] for rule in str(policy).split("; ")}
    hashed = {
        tag: "'sha256-" + base64.b64encode(hashlib.sha256(read.inside[tag][-1].encode()).digest()).decode() + "'"
        for tag in ("script", "style")
    }
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == [hashed["script"], "'self'", "file:"]
    assert rules["style-src"] == [hashed["style"]]
    assert rules["img-src"] == ["'self'", "file:", "data:"]
    assert "connect-src" not in rules
    assert len(read.inside["style"]) == 1


def test_nothing_is_asked_of_another_place() -> None:
    made = page(run(), figures={"made": [Drawing("f", "f", "f", "f", SVG, b"")]})
    addresses = [
        value
        for _, one in Reader(made).elements
        for key, value in one.items()
        if key in ("src", "href", "srcset", "action")
    ]
    assert addresses
    assert all(str(value).startswith(("data:", "#", "figures/made/")) for value in addresses)
    outside = set(re.findall(r"https?://[^\s\"'<>)]+", made))
    assert outside == {"http://www.w3.org/2000/svg"}, "the name of a language, which is no request"


def test_pictures_are_images_with_words_and_a_size() -> None:
    [image] = Reader(page(run(), figures={"a/ü": [Drawing("f", "T", "C", 'it is "so"', SVG, b"")]})).of("img")
    assert unquote(str(image["src"])) == f"{figure_stem('a/ü', 'f')}.svg"
    assert (image["alt"], image["width"], image["height"]) == ('it is "so"', "200", "100")


def test_a_missing_figure_says_what_to_run() -> None:
    read = Reader(
        page(run(), figures={"made": [Missing("course", "Course", "No curves.", "python -m harness bench --x 'a b'")]})
    )
    assert "python -m harness bench --x 'a b'" in read.texts
    assert {"data-figure": "course", "class": "missing"} in read.of("figure")


def test_tables_of_a_document_stand_together_under_what_differs() -> None:
    grid = [
        Table(f"thesis-1 on {name}: Losses.", ("a",), ((Cell("b"),),), id=f"thesis-1-{name}") for name in ("one", "two")
    ]
    read = Reader(page(run(), tables=[Document("thesis-1", "Losses.", tuple(grid), True)]))
    assert [one["data-table"] for one in read.of("article")] == ["thesis-1-one", "thesis-1-two"]
    assert [text for text in read.texts if text in ("one", "two", "Losses.")] == ["Losses.", "one", "two"]


def test_the_tables_with_most_of_our_figures_come_first() -> None:
    empty, ours = Cell("", figure=Figure(None, paper=1.0)), Cell("", figure=Figure(2.0))
    tables = [
        Table(name, ("a", "b"), ((cell, other),), id=name)
        for name, cell, other in (("none", empty, empty), ("one", empty, ours), ("two", ours, ours))
    ]
    read = Reader(page(run(), tables=[Document("d", "d", tuple(tables), True)]))
    assert [one["data-table"] for one in read.of("article")] == ["two", "one", "none"]


def test_the_commands_that_make_the_explorer_are_real() -> None:
    """As `harness report` takes them; `--write` has no value."""
    from typer.testing import CliRunner

    from harness.cli import app

    told = Reader(page(run())).texts
    commands = [text for text in told if text.startswith("python -m harness report -")]
    assert commands == ["python -m harness report --open", "python -m harness report --write --explorer"]
    for command in commands:
        asked = [*command.split()[3:], "--help"]
        assert CliRunner().invoke(app, asked).exit_code == 0
        assert command in files("harness.report.page").joinpath("assets", "shards.js").read_text(encoding="utf-8")


def test_without_runs_the_page_says_what_to_do() -> None:
    made = page()
    assert "python -m harness run" in made
    assert embedded(made)["datasets"] == []


def test_the_same_evidence_gives_the_same_page() -> None:
    """Fault 63."""
    records = [run(f"m{number}", seed, p1=number + seed) for number in range(4) for seed in range(3)]
    figures = {"made": [Drawing("f", "f", "f", "f", SVG, b"")], "other": [Missing("g", "g", "g", "g")]}
    assert page(*records, figures=figures) == page(*records, figures=figures)


def test_three_hundred_runs_leave_room_for_figures_and_tables() -> None:
    names = [f"train/figure{number}" for number in range(8)]
    records = [
        run(
            f"method{number % 15}",
            number,
            curves={"step": list(range(30))}
            | {name: [number + step * 0.123457 for step in range(30)] for name in names},
            views={
                view: {f"{kind}@{k}": number * 0.1234567 for kind in ("P", "PSP", "nDCG", "R", "C") for k in (1, 3, 5)}
                for view in "abc"
            },
            config={
                **run(f"method{number % 15}", number).config,
                "params": {f"knob{one}": one for one in range(60)} | {"beta": number},
            },
        )
        for number in range(300)
    ]
    assert len(page(*records).encode()) < 1_900_000


# how the scripts are written


@pytest.mark.parametrize("name", [*SCRIPTS, "page.css"])
def test_assets_are_short_and_make_no_markup_of_text(name: str) -> None:
    text = files("harness.report.page").joinpath("assets", name).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 400
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "</script",
        "fetch(",
        "XMLHttpRequest",
        "@import",
        "url(",
    ):
        assert word not in text, word


def test_every_script_is_on_the_page() -> None:
    lying = {one.name for one in files("harness.report.page").joinpath("assets").iterdir() if one.name.endswith(".js")}
    assert lying == set(SCRIPTS)
    assert len(SCRIPTS) == len(set(SCRIPTS))
