"""The explorer of the report page in a real browser: what it shows of a query, its search, and two methods compared."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from harness.data import load
from harness.record import find_records
from harness.report.explorer import build_explorer
from tests.browser import started, visit
from tests.made_page import record, write_page
from tests.page_world import HOSTILE, IMAGE, PER_ROW, World, world
from tests.row_runs import DATA, add_run

METHODS = ["alpha", "beta", IMAGE]
MADE = world("lf-made", 1203, METHODS)
OTHER = world("lf-other", 8, ["alpha", "gamma"], seed=1, shard_rows=5, shard_labels=25)
OPTIONS = "#query-list [role=option]"
IS_SHOWN = "wanted => document.querySelector('#query-text').textContent === wanted"
SIDES: dict[str, Callable[[int], bool]] = {"losses": lambda m: m < 0, "wins": lambda m: m > 0, "all": lambda m: True}

_QUERY = """() => {
  const text = (node, part) => node.querySelector(part).textContent;
  const item = (node) => ({text: node.textContent, hit: node.classList.contains("hit"),
    miss: node.classList.contains("miss"), bin: text(node, ".bin"), score: text(node, ".score")});
  const items = (node) => [...node.querySelectorAll("li")].map(item);
  const method = (node) => [node.dataset.run, {text: node.textContent, items: items(node)}];
  return {truth: [...document.querySelectorAll("#truth li")].map((node) => node.textContent),
          methods: Object.fromEntries([...document.querySelectorAll("#predictions .method")].map(method))};
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("page"), [record("alpha", 50.0)], [MADE, OTHER])


def loaded(page: Page, rows: int = len(MADE.texts)) -> None:
    """Waits until all texts are there to be searched."""
    expect(page.locator("#query-count")).to_have_text(f"{rows:,} queries")


def shown_rows(page: Page) -> list[int]:
    rows: list[int] = page.locator(OPTIONS).evaluate_all("all => all.map((one) => Number(one.dataset.row))")
    return rows


def shows(page: Page, row: int, one: World = MADE) -> dict[str, Any]:
    """Waits for a query, and gives what is shown of it."""
    page.wait_for_function(IS_SHOWN, arg=one.texts[row] or "(empty text)")
    query: dict[str, Any] = page.evaluate(_QUERY)
    return query


def pick_runs(page: Page, *runs: str) -> None:
    for box in page.locator("#run-picker input[type=checkbox]").all():
        box.set_checked(box.get_attribute("value") in runs)
    expect(page.locator("#predictions .method")).to_have_count(len(runs))


def frequency(told: str) -> tuple[str, int]:
    """Bin and number of train rows at the end of a text."""
    found = re.search(r"(head|torso|tail)\D+(\d+)\D*$", told)
    assert found, told
    return found[1], int(found[2])


def check_query(query: dict[str, Any], row: int, one: World = MADE) -> None:
    """Hits, misses, frequencies and scores are those of the made-up world."""
    assert len(query["truth"]) == len(one.truth[row])
    for label, told in zip(one.truth[row], query["truth"], strict=True):
        assert told.startswith(one.labels[label][0])
        assert frequency(told) == one.frequency(label)
    for run, method in enumerate(one.methods):
        shown = query["methods"][f"r{run}"]
        assert method in shown["text"]
        ids = [label for label in one.ids[run][row] if label >= 0]
        assert [item["hit"] for item in shown["items"]] == [label in one.truth[row] for label in ids]
        assert [item["miss"] for item in shown["items"]] == [label not in one.truth[row] for label in ids]
        assert [frequency(item["bin"]) for item in shown["items"]] == [one.frequency(label) for label in ids]
        assert all(one.labels[label][0] in item["text"] for label, item in zip(ids, shown["items"], strict=True))
        for rank, item in enumerate(shown["items"]):
            score = one.score(run, row, rank)
            known = re.fullmatch(r"-?[\d.]+", item["score"])
            assert float(known[0]) == pytest.approx(score, abs=0.005) if known else score is None


def test_a_query_is_shown_with_hits_misses_frequency_and_scores(browser: Browser, file: Path) -> None:
    """fault 64: queries and labels are markup, code and nothing at all"""
    with visit(browser, file) as page:
        loaded(page)
        pick_runs(page, "r0", "r1", "r2")
        for row in range(len(HOSTILE)):
            page.locator(f"{OPTIONS}[data-row='{row}']").click()
            check_query(shows(page, row), row)
        # a row for which the search of one method found nothing
        assert MADE.ids[0][3] == [-1] * PER_ROW
        page.locator("#query-search").fill("query 700")
        page.locator(f"{OPTIONS}[data-row='700']").click()
        check_query(shows(page, 700), 700)
        pick_runs(page, "r0", "r2")
        expect(page.locator("#predictions .method[data-run=r1]")).to_have_count(0)
        page.locator("#query-search").fill("")
        page.locator("#explorer-dataset").select_option(index=1)
        loaded(page, len(OTHER.texts))
        expect(page.locator("#run-picker")).to_contain_text("gamma")
        page.locator(f"{OPTIONS}[data-row='7']").click()
        pick_runs(page, "r0", "r1")
        check_query(shows(page, 7, OTHER), 7, OTHER)
        assert page.locator("#explorer img, #explorer script, #compare img, [onmouseover]").count() == 0
        assert page.evaluate("typeof window.owned") == "undefined"


def test_queries_are_searched_in_all_shards_and_chosen_with_keys(browser: Browser, file: Path) -> None:
    with visit(browser, file) as page:
        loaded(page)
        search, count = page.locator("#query-search"), page.locator("#query-count")
        for words, wanted in (
            ("nothing says this", 0),
            (".*", 0),
            ("<img src=x", 1),
            ("query 1199", 1),
            ("QUERY 119", 12),
            ("#777", 1),
        ):
            search.fill(words)
            expect(count).to_have_text(f"{wanted:,} of {len(MADE.texts):,} queries")
            assert len(shown_rows(page)) == wanted
        assert shown_rows(page) == [777]
        search.fill("topic5 ABOUT")
        rows = [row for row, text in enumerate(MADE.texts) if "topic5" in text]
        expect(count).to_have_text(f"{len(rows)} of {len(MADE.texts):,} queries")
        assert shown_rows(page) == rows[: len(shown_rows(page))]
        page.keyboard.press("Tab")
        expect(page.locator("#query-list")).to_be_focused()
        for key in ("Home", "ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
            page.keyboard.press(key)
        shows(page, rows[1])
        chosen = page.locator(f"{OPTIONS}[aria-selected=true]")
        expect(chosen).to_have_attribute("data-row", str(rows[1]))
        active = page.locator("#query-list").get_attribute("aria-activedescendant")
        assert active == chosen.get_attribute("id")
        page.keyboard.press("End")
        shows(page, rows[-1])
        expect(page.locator(f"{OPTIONS}[data-row='{rows[-1]}']")).to_be_in_viewport()


def margins_shown(page: Page) -> list[tuple[int, float]]:
    told = "all => all.map((one) => [Number(one.dataset.row), Number(one.dataset.margin)])"
    return [(row, margin) for row, margin in page.locator("#compare-list li[data-row]").evaluate_all(told)]


def test_two_methods_are_compared(browser: Browser, file: Path) -> None:
    with visit(browser, file) as page:
        loaded(page)
        page.locator("#compare-a").select_option("r1")
        page.locator("#compare-b").select_option("r0")
        for k in (1, 5):
            page.locator("#compare-metric").select_option(f"P@{k}")
            margins = MADE.margins(1, 0, k)
            wins, losses = (sum(map(SIDES[side], margins)) for side in ("wins", "losses"))
            told = f"{wins:,} wins, {len(margins) - wins - losses:,} ties, {losses:,} losses"
            expect(page.locator("#compare-summary")).to_contain_text(told)
            for side, belongs in SIDES.items():
                page.locator("#compare-side").select_option(side)
                expect(page.locator("#compare-list li[data-row]").first).to_be_visible()
                shown = margins_shown(page)
                percent = {row: margin * 100 / k for row, margin in enumerate(margins) if belongs(margin)}
                assert dict(shown) == pytest.approx({row: percent[row] for row, _ in shown})
                # largest margin first: the rows that are shown are those that nothing left out exceeds
                best = sorted(percent.values(), reverse=side != "losses")
                assert [margin for _, margin in shown] == pytest.approx(best[: len(shown)])
        before = len(shown)
        page.locator("#compare-more").click()
        expect(page.locator("#compare-list li[data-row]")).not_to_have_count(before)
        page.locator("#compare-side").select_option("losses")
        row, margin = margins_shown(page)[0]
        assert margin < 0
        page.locator("#compare-list li[data-row] button").first.click()
        assert set(shows(page, row)["methods"]) == {"r0", "r1"}
        expect(page.locator("#query-text")).to_be_in_viewport()
        page.locator("#compare-b").select_option("r1")
        page.locator("#compare-side").select_option("wins")
        expect(page.locator("#compare-summary")).to_contain_text(f"0 wins, {len(MADE.texts):,} ties, 0 losses")
        expect(page.locator("#compare-list li[data-row]")).to_have_count(0)


def test_a_query_can_be_shared_by_its_address(browser: Browser, file: Path) -> None:
    with visit(browser, file) as page:
        loaded(page)
        page.locator("#query-search").fill("query 1100")
        page.locator(f"{OPTIONS}[data-row='1100']").click()
        shows(page, 1100)
        pick_runs(page, "r2")
        page.locator("#compare-metric").select_option("P@5")
        fragment = page.evaluate("location.hash.slice(1)")
    with visit(browser, file, fragment=fragment) as page:
        assert set(shows(page, 1100)["methods"]) == {"r2"}
        expect(page.locator("#query-search")).to_have_value("query 1100")
        expect(page.locator("#compare-metric")).to_have_value("P@5")


def test_a_lost_or_broken_shard_is_told(browser: Browser, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(file.parent, folder)
    (folder / "explorer/d0/texts-001.js").unlink()
    (folder / "explorer/d0/r1-hits.js").unlink()
    lost = ("explorer/d0/texts-001.js", "explorer/d0/r1-hits.js")
    with visit(browser, folder / "index.html", missing=lost) as page:
        expect(page.locator("#query-count")).to_contain_text("make the explorer again")
        page.locator("#compare-a").select_option("r1")
        expect(page.locator("#compare-summary")).to_contain_text("python -m harness report --open")
        # the rest works
        page.locator(f"{OPTIONS}[data-row='2']").click()
        pick_runs(page, "r0", "r1", "r2")
        check_query(shows(page, 2), 2)


def test_the_shards_that_are_built_from_runs_are_shown(browser: Browser, tmp_path: Path) -> None:
    """From run folders to the screen: the means over all queries are the metrics of the runs' records."""
    dataset = load(DATA)
    runs = tmp_path / "runs"
    for method, skill in (("weak", 0.3), ("strong", 0.8)):
        add_run(runs, dataset, f"run-{method}", skill=skill, config={"method": method})
    facts = build_explorer([runs], tmp_path / "explorer")
    assert facts.left_out == ()
    found = {one.config["method"]: one for one in find_records([runs])}
    page_file = write_page(tmp_path, list(found.values()))
    with visit(browser, page_file) as page:
        loaded(page, 80)
        page.locator("#compare-a").select_option(label="strong")
        page.locator("#compare-b").select_option(label="weak")
        for metric in ("P@1", "P@5"):
            page.locator("#compare-metric").select_option(metric)
            for method, one in found.items():
                expect(page.locator("#compare-summary")).to_contain_text(f"{method} ({one.metrics[metric]:.2f})")
        page.locator("#query-search").fill("#17")
        expect(page.locator(OPTIONS)).to_have_count(1)
        page.locator(OPTIONS).click()
        page.wait_for_function(IS_SHOWN, arg=dataset.test_text[17])
        expect(page.locator("#truth li")).to_have_count(dataset.test[[17]].nnz)


def test_fifteen_thousand_queries(browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No pass or fail by the clock, for the machine may be busy; the target is two seconds until all are there."""
    large = world("lf-large", 15_000, ["alpha", "beta"])
    page_file = write_page(tmp_path, [record("alpha", 50.0)], [large])
    before = time.perf_counter()
    with visit(browser, page_file) as page:
        page.locator(OPTIONS).first.wait_for()
        first = time.perf_counter() - before
        loaded(page, 15_000)
        whole = time.perf_counter() - before
        page.locator("#query-search").fill("query 14999")
        page.locator(f"{OPTIONS}[data-row='14999']").wait_for()
        # a list of all of them would be slow to draw: only those in sight are there
        page.locator("#query-search").fill("")
        loaded(page, 15_000)
        assert page.locator(OPTIONS).count() < 100
        weight = sum(one.stat().st_size for one in page_file.parent.rglob("*.js")) / 1e6
        own = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd") / 1000
    with capsys.disabled():
        told = f"listed after {first:.2f} s, all texts after {whole:.2f} s, page alone {own:.2f} s"
        print(f"\n15,000 queries, {weight:.1f} MB of shards: {told}")  # noqa: T201
