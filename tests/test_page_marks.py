"""What the comparison marks in a real browser, held against the marks of the printed tables."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from harness.report.cells import Figure
from harness.report.evidence import Evidence
from harness.report.marking import marked
from harness.report.page import build_page, page_data
from tests.browser import started, visit
from tests.test_page import run

MANIFEST = ("explorer/manifest.js",)
VALUES = {"a": 50.004, "b": 50.001, "c": 49.0, "d": 49.0, "e": 12.5, "lone": 7.0}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


def written(folder: Path, *records: Any, benchmark: Collection[str] = ()) -> Path:
    folder.mkdir(exist_ok=True)
    page = folder / "index.html"
    page.write_text(build_page(page_data(Evidence(records), benchmark), {}), encoding="utf-8")
    return page


def marks(page: Page, metric: str) -> dict[str, str]:
    found: dict[str, str] = page.evaluate(
        """metric => Object.fromEntries([...document.querySelectorAll("#comparison tbody tr[data-run]")].map((row) => {
          const cell = [...row.cells].find((one) => one.dataset.key === metric);
          const kind = ["best", "second"].filter((name) => cell.classList.contains(name)).join();
          return [row.querySelector("button").textContent, kind];
        }))""",
        metric,
    )
    return found


def expected(values: dict[str, float]) -> dict[str, str]:
    best, second = marked([Figure(value) for value in values.values()])
    flags = zip(values, best, second, strict=True)
    return {name: "best" if first else "second" if next_one else "" for name, first, next_one in flags}


@pytest.mark.parametrize("words", ["", "c", "d", "lone"])
def test_the_best_of_the_rows_in_sight_are_marked_as_in_print(browser: Browser, tmp_path: Path, words: str) -> None:
    """Fault 61: what prints alike is marked alike; where all in sight are equal nothing is marked."""
    encoders = {"a": "x", "b": "x c", "c": "c d", "d": "d", "e": "c", "lone": "lone"}
    records = [run(name, p1=value) for name, value in VALUES.items()]
    named = [
        one.model_copy(update={"config": {**one.config, "encoder": encoders[one.config["method"]]}}) for one in records
    ]
    with visit(browser, written(tmp_path, *named), missing=MANIFEST) as page:
        page.locator("#filter").fill(words)
        kept = {name: value for name, value in VALUES.items() if words in f"{name} {encoders[name]} default"}
        page.wait_for_function("n => document.querySelectorAll('#comparison tr[data-run]').length === n", arg=len(kept))
        assert marks(page, "P@1") == expected(kept)


def test_a_long_comparison_begins_with_default_settings(browser: Browser, tmp_path: Path) -> None:
    varied = [
        run("b", number, config={**run("b", number).config, "params": {"beta": number}}, run_id=f"b{number}")
        for number in range(45)
    ]
    with visit(browser, written(tmp_path, run("a"), *varied), missing=MANIFEST) as page:
        rows = page.locator("#comparison tbody tr[data-run]")
        assert rows.count() == 1
        assert page.locator("#shown").inner_text() == "1 of 46 rows"
        page.locator("#defaults").uncheck()
        assert rows.count() == 46
        page.reload()
        assert rows.count() == 46, "the address keeps what was asked for"


def test_where_there_is_a_benchmark_it_leads(browser: Browser, tmp_path: Path) -> None:
    """At default settings the baseline would seem to be the best: the other method has only searched ones."""
    searched = run("b", p1=70.0, config={**run("b").config, "params": {"beta": 9}}, run_id="searched")
    varied = [
        run(
            "b",
            number,
            p1=90.0,
            config={**run("b", number).config, "params": {"beta": 100 + number}},
            run_id=f"b{number}",
        )
        for number in range(45)
    ]
    base = run("a", p1=40.0)
    page_of = {
        name: written(tmp_path / name, base, searched, *varied, benchmark=judged)
        for name, judged in (("with", {base.run_id, "searched"}), ("without", set()))
    }
    for name, best, label, shown in (
        ("with", "b", "settings of the benchmark only", "2 of 47 rows"),
        ("without", "a", "default settings only", "1 of 47 rows"),
    ):
        with visit(browser, page_of[name], missing=MANIFEST) as page:
            assert page.locator("#overview .leader .by").first.inner_text() == best
            assert page.locator("label:has(#defaults)").inner_text().strip() == label
            assert page.locator("#shown").inner_text() == shown


def test_a_card_names_all_that_lead(browser: Browser, tmp_path: Path) -> None:
    """fault 61: what prints alike leads alike; a metric that no run at default settings has is none"""
    other = run("c", config={**run("c").config, "params": {"beta": 9}}, metrics={"P@1": 1.0, "PSP@5": 2.0})
    runs = [run(name, metrics={"P@1": value}) for name, value in (("a", 50.001), ("b", 50.002), ("d", 40.0))]
    with visit(browser, written(tmp_path, *runs, run("c", 1, metrics={"P@1": 3.0}), other), missing=MANIFEST) as page:
        assert page.locator("#overview .leader").all_inner_texts() == ["P@1\n50.00\na, b", "PSP@5\nX"]
