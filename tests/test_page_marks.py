"""What the comparison marks in a real browser, held against the marks of the printed tables."""

from collections.abc import Iterator
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


def written(folder: Path, *records: Any) -> Path:
    page = folder / "index.html"
    page.write_text(build_page(page_data(Evidence(records)), {}), encoding="utf-8")
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
