"""The report page in a real browser, with an explorer that is damaged or made anew, and with odd runs."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import started, visit
from tests.made_page import record, write_page
from tests.page_world import World, world, write_shards

SMALL: dict[str, int] = {"shard_rows": 5, "shard_labels": 25}
DAMAGED = "explorer/{} is damaged; make the explorer again: python -m harness report --open"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


def made(folder: Path, *worlds: World) -> Path:
    return write_page(folder, [record("alpha", 50.0)], list(worlds))


def choose(page: Page, row: int) -> None:
    page.locator("#query-search").fill(f"#{row}")
    page.locator(f"#query-list [role=option][data-row='{row}']").click()


def changed(script: Path, change: Callable[[Any], Any]) -> None:
    """Another content in the call of a shard; all else is as it was."""
    given = script.read_text().strip().removeprefix("harnessShard(").removesuffix(");")
    *names, content, build = json.loads(f"[{given}]")
    told = ",".join(json.dumps(value) for value in (*names, change(content), build))
    script.write_text(f"harnessShard({told});")


def test_an_explorer_made_anew_is_not_mixed_with_the_one_before(browser: Browser, tmp_path: Path) -> None:
    before = world("lf-made", 20, ["alpha", "beta"], **SMALL)
    after = replace(world("lf-made", 20, ["before alpha", "alpha", "beta"], **SMALL), build="after")
    with visit(browser, made(tmp_path, before)) as page:
        expect(page.locator("#query-count")).to_have_text("20 queries")
        expect(page.locator("#query-text")).to_have_text(before.texts[0])
        shutil.rmtree(tmp_path / "explorer")
        write_shards([after], tmp_path / "explorer")
        choose(page, 15)
        expect(page.locator("#query-text")).to_have_text("the explorer was made anew; reload the page")
        expect(page.locator("#predictions li")).to_have_count(0)
        expect(page.locator("#truth li")).to_have_count(0)
        page.reload()
        expect(page.locator("#query-text")).to_have_text(after.texts[15])
        expect(page.locator("#predictions .method")).to_have_count(3)


def test_shards_that_are_empty_or_too_short_or_say_what_cannot_be_are_told(browser: Browser, tmp_path: Path) -> None:
    folder = made(
        tmp_path, world("lf-made", 25, ["alpha", "beta"], **SMALL), world("lf-other", 25, ["alpha"], **SMALL)
    ).parent
    data = folder / "explorer/d0"
    (data / "r1-000.js").write_text("")
    changed(data / "r1-001.js", lambda content: {**content, "ids": content["ids"][:-1]})
    changed(data / "r1-002.js", lambda content: {**content, "ids": [[60] * 10] * 5})
    changed(data / "truth-003.js", lambda content: [*content[:-1], None])
    changed(data / "r0-hits.js", lambda content: content[:-1] + "!")
    changed(data / "texts-001.js", lambda content: content[1:])
    changed(folder / "explorer/d1/labels-002.js", lambda content: content[:-1])
    with visit(browser, folder / "index.html") as page:
        query = page.locator("#query-text")
        expect(query).to_contain_text("explorer/d0/r1-000.js is empty or damaged; make the explorer again")
        for row, file in ((5, "r1-001"), (10, "r1-002"), (15, "truth-003")):
            choose(page, row)
            expect(query).to_contain_text(re.compile(rf"(d0/{file}|d0/texts-001)\.js is damaged; make"))
        choose(page, 20)
        expect(query).to_have_text(re.compile("^query 20 "))
        expect(page.locator("#query-count")).to_contain_text("is damaged; make the explorer again")
        expect(page.locator("#compare-summary")).to_contain_text(DAMAGED.format("d0/r0-hits.js"))
        page.locator("#explorer-dataset").select_option(index=1)
        expect(query).to_contain_text(DAMAGED.format("d1/labels-002.js"))


def torn_shard_told(browser: Browser, file: Path, told: list[str]) -> None:
    with visit(browser, file) as page:
        expect(page.locator("#query-text")).to_contain_text("truth-000.js is empty or damaged; make the explorer again")
        told.append(page.locator("#query-text").inner_text())


def test_a_torn_shard_is_told(browser: Browser, tmp_path: Path) -> None:
    file = made(tmp_path, world("lf-made", 20, ["alpha"], **SMALL))
    script = tmp_path / "explorer/d0/truth-000.js"
    script.write_text(script.read_text()[:20])
    told: list[str] = []
    with pytest.raises(AssertionError, match="exception"):
        torn_shard_told(browser, file, told)
    assert told, "and that a script is torn is all that was wrong"


def test_a_list_that_cannot_be_used_is_told_with_what_to_do(browser: Browser, tmp_path: Path) -> None:
    file = made(tmp_path, world("lf-made", 20, ["alpha"], **SMALL))
    manifest = tmp_path / "explorer/manifest.js"
    whole = json.loads(manifest.read_text().removeprefix("harnessExplorer(").removesuffix(");\n"))
    without_build = {key: value for key, value in whole["datasets"][0].items() if key != "build"}
    cases = (
        ("", "is empty or damaged"),
        ("harnessExplorer(null);", "is empty or damaged"),
        ('harnessExplorer({"version":1});', "is empty or damaged"),
        (f"harnessExplorer({json.dumps({**whole, 'version': 1})});", "made for another version"),
        (f"harnessExplorer({json.dumps({**whole, 'datasets': [without_build]})});", "is damaged"),
        (f"harnessExplorer({json.dumps({**whole, 'datasets': []})});", "are not here"),
    )
    with visit(browser, file) as page:
        missing = page.locator("#explorer-missing")
        for content, told in cases:
            manifest.write_text(content)
            page.reload()
            expect(missing).to_contain_text(told)
            expect(missing).to_contain_text("python -m harness report --write --explorer")
            expect(page.locator("#compare-missing")).to_be_visible()
            expect(page.locator("#query-list")).to_be_hidden()


def test_runs_without_a_name_or_with_gaps_open_all_the_same(browser: Browser, tmp_path: Path) -> None:
    bins = [{"bin": "head", "P@5": 1.5, "PSP@5": None}, {"bin": "tail", "P@5": None, "PSP@5": "x"}]
    curves = {"step": list(range(90)), "train/loss": [1e308, -1e308], "train/pool": []}
    runs = [
        record(" \u200b", 50.0, contributions=bins, curves=curves),
        record("wild", 1e308),
        record("wild", 1.0, seed=1),
    ]
    file = write_page(tmp_path, runs, [world("lf-made", 20, ["", "alpha"], **SMALL)])
    with visit(browser, file) as page:
        page.get_by_role("button", name="(no name)", exact=True).click()
        expect(page.locator("#drawer-title")).to_have_text("(no name)")
        expect(page.locator("[data-part=metrics] .piece")).to_have_text(["head 1.5"])
        expect(page.locator("[data-part=curves] svg").first).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#run-picker")).to_contain_text("(no name)")


def test_a_dataset_that_was_measured_twice_is_two_in_the_selector(browser: Browser, tmp_path: Path) -> None:
    runs = [record("alpha", 50.0), record("alpha", 80.0, seed=1, environment={"harness": "9.9"})]
    with visit(browser, write_page(tmp_path, runs), missing=("explorer/manifest.js",)) as page:
        options = page.locator("#dataset option").all_inner_texts()
        assert sorted(options) == ["LF-MADE (harness 9.9)", "LF-MADE (harness of unknown version)"]
        page.locator("#dataset").select_option(label="LF-MADE (harness 9.9)")
        expect(page.locator("#comparison tbody td[data-key='P@1']")).to_have_text(["80.00"])
