"""The report page as text: what its data say, and that nobody's names become markup. Browsers drive it elsewhere."""

import base64
import hashlib
import json
import re
import statistics
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.report.cells import Cell, Figure, Table
from harness.report.documents import Document
from harness.report.figures.drawing import Drawing, Missing, figure_stem
from harness.report.page import SCRIPTS, build_page, packed, page_data, rounded, script_json
from harness.report.results import Results
from harness.report.rows import default_settings
from harness.runs.record import RunRecord
from tests.support.figure_runs import nested
from tests.support.made_page import picture, record

HOSTILE = (
    "</script><script>window.owned=1</script>",
    '"><img src=x onerror=window.owned=1>',
    "<!--<script>",
    "a_b & 50% #1 {{ data }} {% raw %} =1+1",
    "\u202eright to left\u2028",
)
PNG = picture(200, 100)


def page(*runs: RunRecord, figures: Any = None, tables: Any = ()) -> str:
    return build_page(page_data(Results(runs)), figures or {}, tables)


def data_of(*runs: RunRecord) -> dict[str, Any]:
    return page_data(Results(runs))


class Reader(HTMLParser):
    """Elements, attributes and texts as a browser would take them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
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
        self.texts.append(data.strip())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def unpacked(whole: Any) -> Any:
    """As the page's script reads it."""
    made: list[Any] = []
    for shape, *values in whole["nodes"]:
        inner = [made[value[0]] if isinstance(value, list) else value for value in values]
        made.append(inner if shape < 0 else dict(zip(whole["shapes"][shape], inner, strict=True)))
    return made[-1]


def embedded(text: str) -> Any:
    return unpacked(json.loads(Reader(text).inside["script"][0]))


# what becomes of it in HTML


VALUES = st.recursive(
    st.none() | st.booleans() | st.text(max_size=12) | st.integers(-(2**53), 2**53),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_embedded_json_is_inert_and_comes_back(value: Any) -> None:
    text = script_json(packed([value]))
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert unpacked(json.loads(text)) == [value]


@given(st.floats())
def test_numbers_keep_four_digits_and_what_is_no_number_is_null(value: float) -> None:
    short = rounded([value])[0]
    finite = value == value and abs(value) != float("inf")
    assert short == pytest.approx(value, rel=6e-4) if finite else short is None
    json.dumps(short, allow_nan=False)
    assert rounded(123456.0) == 123456


@pytest.mark.parametrize("text", HOSTILE)
def test_names_never_become_markup(text: str) -> None:
    """Fault 64."""
    about = {**record().dataset, "name": text, "title": text}
    scorers = {text: {"P@1": 1.0}}
    hostile = record(text, dataset=about, run_id=text, warnings=[text], environment={text: text}, scorers=scorers)
    failed = record("b", status="failed", error=text, run_id=text + "2")
    figures = {text: [Drawing("f", text, text, text, PNG), Missing("g", text, text, text)], "other": []}
    table = Table(text, (text, "P@1"), ((Cell(text), Cell("1.00")),), text, id=text, notes=(text,))
    made = page(hostile, failed, figures=figures, tables=[table, Document(text, text, (table, table), True)])
    read = Reader(made)
    assert len(read.of("script")) == 2
    assert len(read.of("img")) == 1
    assert not [key for _, attributes in read.elements for key in attributes if key.startswith("on") or key == "style"]
    seen = text.replace("\u202e", "[U+202E]").replace("\u2028", " ").strip()
    assert sum(seen in part for part in read.texts) >= 6, "and yet a reader sees what is in it"
    assert not {"\u202e", "\u2028"} & set(made)
    assert embedded(made)["datasets"][0]["rows"][0]["method"] == text


def test_a_name_without_utf_8_form_can_be_written() -> None:
    made = page(record(warnings=["half \ud800 a pair"]), tables=[Table("\ud800", ("a",), ((Cell("\udfff"),),))])
    assert made.encode("utf-8")
    assert embedded(made)["runs"]["run-alpha-0"]["warnings"] == ["half \ud800 a pair"]


def test_the_page_may_do_nothing_but_itself() -> None:
    made = page(record(), figures={"made": [Drawing("f", "f", "f", "f", PNG)]})
    read = Reader(made)
    [policy] = [one["content"] for one in read.of("meta") if one.get("http-equiv") == "Content-Security-Policy"]
    rules = {rule.split()[0]: rule.split()[1:] for rule in str(policy).split("; ")}
    hashed = {
        tag: "'sha256-" + base64.b64encode(hashlib.sha256(read.inside[tag][-1].encode()).digest()).decode() + "'"
        for tag in ("script", "style")
    }
    assert rules == {
        "default-src": ["'none'"],
        "script-src": [hashed["script"], "'self'", "file:"],
        "style-src": [hashed["style"]],
        "img-src": ["'self'", "file:", "data:"],
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    named = [
        value for _, one in read.elements for key, value in one.items() if key in ("src", "href", "srcset", "action")
    ]
    assert all(str(value).startswith(("data:", "#", "figures/made/")) for value in named)
    outside = set(re.findall(r"https?://[^\s\"'<>)]+", made))
    assert outside == {"http://www.w3.org/2000/svg"}, "the name of a language, which is no request"


def test_pictures_have_words_and_a_size_and_missing_ones_a_command() -> None:
    missing = Missing("course", "Course", "No curves.", "python -m harness bench --x 'a b'")
    read = Reader(page(record(), figures={"a/ü": [Drawing("f", "T", "C", 'it is "so"', PNG), missing]}))
    [image] = read.of("img")
    assert unquote(str(image["src"])) == f"{figure_stem('a/ü', 'f')}.png"
    assert (image["alt"], image["width"], image["height"]) == ('it is "so"', "200", "100")
    assert "python -m harness bench --x 'a b'" in read.texts
    assert {"data-figure": "course", "class": "missing"} in read.of("figure")


def test_tables_of_a_document_stand_together_the_fullest_first() -> None:
    empty, ours = Cell("", figure=Figure(None, paper=1.0)), Cell("", figure=Figure(2.0))
    tables = [
        Table(f"thesis-1 on {name}: Losses.", ("a", "b"), ((cell, other),), id=name)
        for name, cell, other in (("none", empty, empty), ("one", empty, ours), ("two", ours, ours))
    ]
    read = Reader(page(record(), tables=[Document("thesis-1", "Losses.", tuple(tables), True)]))
    assert [one["data-table"] for one in read.of("article")] == ["two", "one"], "one without a figure of ours is not"
    assert [text for text in read.texts if text in ("one", "two", "Losses.")] == ["Losses.", "two", "one"]
    marks = Table("m", ("a", "b", "c"), ((Cell("d"), Cell.of(Figure(2.0, paper=1.0), best=True, mark="†"), Cell("e")),))
    text = page(record(), tables=[marks])
    assert "<th scope=row class=words>d<td class=words><strong>2.00</strong><sup>†</sup>" in text
    assert "<span class=paper>(paper 1.00, +1.00)</span>" in text


def test_a_hundred_runs_leave_room_for_figures_and_tables() -> None:
    """And the same results give the same page (fault 63)."""
    params = {f"p{one}": one for one in range(60)}
    losses = {f"train/loss{at}": [at + step * 0.123457 for step in range(30)] for at in range(8)}
    scores = {f"{kind}@{k}": k * 0.1234567 for kind in "PRC" for k in (1, 3, 5)}
    records = [
        record(
            f"method{number % 15}",
            seed=number,
            curves={"step": list(range(30))} | {name: [number + one for one in losses[name]] for name in losses},
            scorers={scorer: {name: number + one for name, one in scores.items()} for scorer in "abc"},
            config={**record(f"method{number % 15}", seed=number).config, "params": params},
        )
        for number in range(100)
    ]
    made = page(*records)
    assert len(made.encode()) < 350_000
    assert made == page(*records)


def test_scripts_make_no_markup_of_text_and_ask_nobody() -> None:
    folder = files("harness.report.page").joinpath("assets")
    assert {one.name for one in folder.iterdir() if one.name.endswith(".js")} == set(SCRIPTS)
    for name in (*SCRIPTS, "page.css"):
        text = folder.joinpath(name).read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(",
                     "</script", "fetch(", "XMLHttpRequest", "@import", "url("):  # fmt: skip
            assert word not in text, (name, word)


# the data of the page


def rows_of(data: dict[str, Any], dataset: int = 0) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["method"], row["scorer"]): row for row in data["datasets"][dataset]["rows"]}


def test_a_row_is_the_mean_over_seeds_for_every_scorer() -> None:
    """Fault 61: one seed has no spread, a missing metric no figure."""
    values = [50.0, 53.0, 57.5]
    data = data_of(
        *(record(seed=seed, p1=value) for seed, value in enumerate(values)), record("b", metrics={"P@1": 3.0})
    )
    row = rows_of(data)["alpha", ""]
    assert row["figures"]["P@1"]["mean"] == pytest.approx(statistics.mean(values))
    assert row["figures"]["P@1"]["std"] == pytest.approx(statistics.stdev(values))
    assert row["runs"] == ["run-alpha-0", "run-alpha-1", "run-alpha-2"]
    assert row["seconds"] == pytest.approx(100 - statistics.mean(values))
    assert [data["runs"][name]["seed"] for name in row["runs"]] == [0, 1, 2]
    figures = rows_of(data)["b", ""]["figures"]
    assert (figures["P@1"], figures["PSP@5"]) == ({"mean": 3.0}, {"mean": None})
    scorers = {"clf": {"P@1": 1.0, "P@5": 2.0}, "de": {"P@1": 3.0, "P@5": 4.0}}
    data = data_of(record(scorers=scorers))
    assert set(rows_of(data)) == {("alpha", "clf"), ("alpha", "de")}
    assert data["runs"]["run-alpha-0"]["scorers"] == scorers


def test_trials_are_left_out_and_failures_are_told() -> None:
    """Fault 61."""
    trial = record("trial", config={**record("trial").config, "evaluate": "validation"})
    failed = record("broken", status="failed", error="out of memory", metrics={})
    data = data_of(record(), trial, failed)
    assert list(data["runs"]) == ["run-alpha-0"]
    assert [(one["method"], one["error"]) for one in data["unfinished"]] == [("broken", "out of memory")]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dataset": {**record().dataset, "propensity": {"a": 0.5, "b": 0.4}}}, "propensity A 0.5, B 0.4"),
        ({"environment": {"harness": "9.9"}}, "harness 9.9"),
        ({"metric_version": 2}, "metrics v2"),
        ({"dataset": {**record().dataset, "filter": False}}, "no filter"),
        ({"dataset": {**record().dataset, "digest": "e" * 64}}, "data eeeeeeeeeeee"),
    ],
)
def test_runs_measured_otherwise_are_another_dataset_with_a_name_of_its_own(changes: Any, text: str) -> None:
    """Fault 62: constants and versions are never averaged over."""
    about = {**record().dataset, "propensity": {"a": 0.55, "b": 1.5}}
    usual = [record(seed=seed, p1=50.0, dataset=about, environment={"harness": "0.1"}) for seed in (0, 1)]
    values = {"dataset": about, "environment": {"harness": "0.1"}, **changes}
    data = data_of(*usual, record(seed=2, p1=80.0, run_id="other", **values))
    first, second = sorted(data["datasets"], key=lambda one: len(one["rows"][0]["runs"]), reverse=True)
    assert first["rows"][0]["figures"]["P@1"] == {"mean": 50.0, "std": 0.0}
    assert second["rows"][0]["figures"]["P@1"] == {"mean": 80.0}
    assert text in second["label"]
    assert text in second["note"]
    assert text not in first["label"]
    assert first["key"] != second["key"]


def test_names_of_datasets_stay_apart_whatever_they_are() -> None:
    names = ["made", "made (2)", "made (3)", ""]
    records = [
        record(seed=seed, run_id=f"{name}{version}", metric_version=version, dataset={**record().dataset, "name": name})
        for seed, name in enumerate(names)
        for version in (1, 2)
    ]
    found = data_of(*records)["datasets"]
    assert len({one["key"] for one in found}) == len({one["label"] for one in found}) == 2 * len(names)
    assert {one["key"] for one in found} >= set(names)


def test_bins_without_numbers_are_gaps() -> None:
    bins: list[dict[str, Any]] = [
        {"bin": "head", "P@5": 1.5, "PSP@5": None},
        {"bin": "torso", "P@5": "many", "PSP@5": float("nan")},
        {"P@5": None},
    ]
    data = data_of(record(contributions=bins), record("beta", contributions=[{"bin": "head", "P@5": None}]))
    gaps = [{"bin": "head", "P@5": 1.5}, {"bin": "torso", "P@5": None}, {"bin": "", "P@5": None}]
    assert data["runs"]["run-alpha-0"]["bins"] == gaps
    assert "bins" not in data["runs"]["run-beta-0"]


def test_a_curve_that_is_shorter_or_longer_than_its_steps() -> None:
    """Short ones end in gaps; what has no step has no place; without steps there is nothing to draw."""
    steps: list[float | None] = [float(step) for step in range(200)]
    curves: dict[str, Any] = {"step": steps, "train/loss": [1.0], "lr": [], "train/pool": [2.0] * 205}
    odd = {"step": [0.0, None, 2.0], "train/loss": [5.0, 6.0, 7.0]}
    made = [record(curves=curves), record("beta", curves={"train/loss": [1.0, 2.0]}), record("gap", curves=odd)]
    runs = data_of(*made)["runs"]
    kept = runs["run-alpha-0"]["curves"]
    length = len(kept["step"])
    assert (kept["train/loss"], kept["lr"]) == ([1.0] + [None] * (length - 1), [None] * length)
    assert kept["train/pool"] == [2.0] * length
    assert "curves" not in runs["run-beta-0"]
    assert runs["run-gap-0"]["curves"] == {"step": [0.0, 2.0], "train/loss": [5.0, 7.0]}


@settings(max_examples=12)
@given(st.integers(1, 400), st.integers(1, 9))
def test_thinned_curves_keep_both_ends_and_every_validation(points: int, every: int) -> None:
    steps = [float(step) for step in range(points)]
    measured = [value if index % (every * 40) == 0 else None for index, value in enumerate(steps)]
    data = data_of(record(curves={"step": steps, "train/loss": steps, "validation/P@1": measured}))
    kept = data["runs"]["run-alpha-0"]["curves"]
    assert (kept["step"][0], kept["step"][-1]) == (steps[0], steps[-1])
    assert kept["train/loss"] == kept["step"]
    assert len(kept["step"]) <= 21 + 10
    known = [value for value in measured if value is not None]
    if known:
        assert [value for value in kept["validation/P@1"] if value is not None] == known


def test_settings_say_what_is_not_the_default() -> None:
    flat = default_settings("unidec", "lf-pydocstitles")
    assert flat is not None
    about = {**record().dataset, "name": "lf-pydocstitles"}
    names = {"method": "unidec", "dataset": "lf-pydocstitles", "encoder": "static"}
    plain = record(config={**nested(flat), **names, "seed": 0}, dataset=about, run_id="plain")
    changed = record(
        config={**nested({**flat, "params.beta": 99}), **names, "seed": 0}, dataset=about, run_id="changed"
    )
    older_config = {**nested({key: value for key, value in flat.items() if key != "params.eta"}), **names, "seed": 1}
    older = record(config=older_config, dataset=about, run_id="older")
    rows = {row["runs"][0]: row for row in data_of(plain, changed, older)["datasets"][0]["rows"]}
    assert rows["changed"]["settings"] == "beta=99"
    assert rows["plain"]["settings"] == ""
    assert rows["plain"]["runs"] == ["plain", "older"], "a key that a record does not have is no difference"
    foreign = [
        record(config={**record().config, "params": {"beta": beta, "eta": 1}}, run_id=f"{beta}") for beta in (3, 4)
    ]
    changes = {row["runs"][0]: row["settings"] for row in data_of(*foreign)["datasets"][0]["rows"]}
    assert changes == {"3": "beta=3", "4": "beta=4"}, "a method of elsewhere is told apart by what varies"
