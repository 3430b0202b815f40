"""The report page in a real browser: comparison, drawer, figures, explorer, small and dark screens, keyboard alone.

All in one module, for one browser: playwright keeps an event loop in this thread until the browser is closed.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from harness.report.cells import Figure, marked
from tests.support.accessibility import broken_structure, nameless, pale_texts, sideways, stuck
from tests.support.browser import PHONE, Visitor, visiting
from tests.support.downloads import Site
from tests.support.made_page import (
    FIGURES,
    HOSTILE,
    IMAGE,
    PER_ROW,
    QUOTE,
    SCRIPT,
    World,
    record,
    records,
    world,
    write_explorer,
    write_page,
)

MANIFEST = ("explorer/manifest.js",)
PARTS = ("config", "curves", "environment", "cost", "metrics")
ROWS = "#comparison tbody tr[data-run]"
VALUES = {"a": 50.004, "b": 50.001, "c": 49.0, "d": 49.0, "e": 12.5, "lone": 7.0}
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
METHODS = [IMAGE, "alpha", "beta"]
MADE = world("lf-made", 1203, METHODS)
OTHER = world("lf-other", 18, ["alpha", "gamma"], seed=1)


@pytest.fixture(scope="module")
def tab() -> Iterator[Visitor]:
    with visiting() as running:
        yield running


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as it is committed: no explorer beside it."""
    return write_page(tmp_path_factory.mktemp("bare"), records())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with an explorer."""
    return write_page(tmp_path_factory.mktemp("whole"), records(), [MADE, OTHER], shard_labels=25)


def names(page: Page) -> list[str]:
    """The methods of the comparison, top to bottom."""
    return page.locator(f"{ROWS} button.open-run").all_inner_texts()


def column(page: Page, key: str) -> list[str]:
    """The texts of one of its columns."""
    return page.locator(f'{ROWS} [data-key="{key}"]').all_inner_texts()


def numbers(texts: list[str]) -> list[float]:
    return [float(found[0]) for text in texts if (found := re.match(r"-?[\d.]+", text.strip()))]


def choose_dataset(page: Page, title: str) -> None:
    page.locator("#dataset").select_option(label=title)


def sort_by(page: Page, key: str) -> str | None:
    head = page.locator(f'#comparison th[data-key="{key}"]')
    head.get_by_role("button").click()
    return head.get_attribute("aria-sort")


def open_run(page: Page, method: str) -> None:
    page.locator(ROWS).filter(has_text=method).locator("button.open-run").first.click()
    expect(page.locator("dialog#drawer")).to_be_visible()


def explored(page: Page) -> None:
    """Waits for the explorer, and opens its first query."""
    page.locator("#query-list [role=option]").first.click()
    expect(page.locator("#predictions li").first).to_be_visible()


def test_the_comparison_is_sorted_filtered_and_shared_by_its_address(tab: Visitor, bare: Path) -> None:
    with tab.visit(bare, missing=MANIFEST) as page:
        choose_dataset(page, "LF-MADE")
        first = sort_by(page, "P@1")
        once = numbers(column(page, "P@1"))
        second = sort_by(page, "P@1")
        # alpha is the mean of its seeds, (50 + 54) / 2
        assert sorted(once) == [9, 11, 22, 33, 45, 52, 63, 71]
        assert {first, second} == {"ascending", "descending"}
        assert once == sorted(once, reverse=first == "descending")
        assert numbers(column(page, "P@1")) == once[::-1]
        # what was not measured is last either way
        for _ in range(2):
            sort_by(page, "PSP@1")
            shown = column(page, "PSP@1")
            assert len(numbers(shown[:5])) == 5
            assert numbers(shown[5:]) == []
        assert page.locator("#comparison th[aria-sort=ascending], #comparison th[aria-sort=descending]").count() == 1
        sort_by(page, "method")
        assert [name for name in names(page) if name.isalpha()] == ["alpha", "beta", "gamma", "views", "views"]
        rows, counted = page.locator(ROWS), page.locator("#shown")
        expect(counted).to_have_text("8 rows")
        # all words must match, in any column of words; markup is a word like any other
        for words, wanted in {"STATIC bet": 1, "beta dense": 0, "fused": 1, "<img": 1, "static": 8, "view": 2}.items():
            page.locator("#filter").fill(words)
            expect(rows).to_have_count(wanted)
            expect(counted).to_have_text("8 rows" if wanted == 8 else f"{wanted} of 8 rows")
        kind = sort_by(page, "P@5")
        once = numbers(column(page, "P@5"))
        assert once == ([6.0, 5.0] if kind == "descending" else [5.0, 6.0])
        page.reload()
        expect(page.locator('#comparison th[data-key="P@5"]')).to_have_attribute("aria-sort", str(kind))
        expect(page.locator("#filter")).to_have_value("view")
        assert numbers(column(page, "P@5")) == once
        page.locator("#filter").fill("")
        expect(rows).to_have_count(8)
        choose_dataset(page, "LF-OTHER")
        expect(rows).to_have_count(1)
        assert numbers(column(page, "P@1")) == [60]


def test_runs_tables_and_figures_are_shown_and_what_is_missing_is_told(tab: Visitor, bare: Path) -> None:
    with tab.visit(bare, missing=MANIFEST) as page:
        choose_dataset(page, "LF-MADE")
        drawer = page.locator("dialog#drawer")
        expect(drawer).to_be_hidden()
        open_run(page, "beta")
        for part in PARTS:
            expect(drawer.locator(f"[data-part={part}]")).to_contain_text(re.compile(r"\w"))
        expect(drawer.locator("[data-part=environment]")).to_contain_text("a made-up processor")
        expect(drawer.locator("[data-part=config]")).to_contain_text("epochs")
        expect(drawer.locator("[data-part=metrics]")).to_contain_text("71.00")
        assert drawer.locator("[data-part=curves] svg").count() == 2
        assert pale_texts(page) == nameless(page) == broken_structure(page) == []
        page.keyboard.press("Escape")
        expect(drawer).to_be_hidden()
        expect(page.locator(ROWS).filter(has_text="beta").locator("button.open-run")).to_be_focused()
        # of a row with several seeds every run is within reach
        open_run(page, "alpha")
        expect(drawer.locator("[data-part=metrics]")).to_contain_text("50.00")
        drawer.get_by_role("button", name="seed 1").click()
        expect(drawer.locator("[data-part=metrics]")).to_contain_text("54.00")
        page.locator("#close-drawer").click()
        expect(drawer).to_be_hidden()
        expect(page.locator("#tables article[data-table]")).to_have_count(2)
        page.evaluate(OPEN_ALL)
        expect(page.locator("#tables article[data-table=wide] td").last).to_be_visible()
        expect(page.locator("#tables article").first.locator("strong").filter(has_text="50.00")).to_be_visible()
        assert page.locator("#figures figure[data-figure]").count() == len(FIGURES)
        image = page.locator("#figures figure[data-figure=tradeoff] img")
        assert image.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 200
        assert image.get_attribute("alt") == f"A teal box {QUOTE}"
        missing = page.locator("#figures figure[data-figure=course]")
        expect(missing).to_contain_text("python -m harness bench --methods 'a&b'")
        targets = page.locator("nav a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
        assert set(targets) == {"#comparison", "#tables", "#figures", "#explorer", "#compare"}
        expect(page.locator("#explorer-missing")).to_be_visible()
        expect(page.locator("#explorer-missing")).to_contain_text("python -m harness report --open")
        expect(page.locator("#query-list")).to_be_hidden()
        expect(page.locator("#compare-list")).to_be_hidden()


def test_a_page_of_no_runs_says_what_to_do(tab: Visitor, tmp_path: Path) -> None:
    with tab.visit(write_page(tmp_path, []), missing=MANIFEST) as page:
        expect(page.locator("main")).to_contain_text("python -m harness run")
        assert page.locator(ROWS).count() == 0


NONSENSE = (
    "comparison?dataset=nowhere&sort=-__proto__&run=nobody&defaults=7",
    "explorer?row=-1&runs=r99,__proto__&explore=nowhere&q=%E0%A4%A&a=r99&by=P@9&side=both",
    f"{IMAGE}?{QUOTE}&=&&dataset={SCRIPT}",
)


def test_names_that_are_markup_are_shown_and_do_not_run(tab: Visitor, whole: Path) -> None:
    """fault 64: in names, and in an address that makes no sense"""
    with tab.visit(whole) as page:
        choose_dataset(page, IMAGE.upper())
        assert numbers(column(page, "P@1")) == [61]
        choose_dataset(page, "LF-MADE")
        assert {IMAGE, SCRIPT, "__proto__"} <= set(names(page))
        for name in (IMAGE, SCRIPT, "__proto__"):
            open_run(page, name)
            expect(page.locator("#drawer-title")).to_have_text(name)
            page.keyboard.press("Escape")
        page.evaluate(OPEN_ALL)
        for fragment in NONSENSE:
            page.evaluate("fragment => { location.hash = fragment; }", fragment)
            page.locator("#query-search").fill("")
            explored(page)
            expect(page.locator(ROWS).first).to_be_visible()
        assert page.locator("img:not([src^='figures/']), [onerror], [onmouseover], main script").count() == 0
        assert page.evaluate("[typeof window.owned, typeof {}.method]") == ["undefined", "undefined"]


_INTRUDER = """(outside) => {
  const add = (tag, properties) => document.body.append(Object.assign(document.createElement(tag), properties));
  add("script", {textContent: "window.owned = 1"});
  add("script", {src: "data:text/javascript,window.owned=1"});
  add("script", {src: outside});
  add("img", {src: outside});
  add("iframe", {srcdoc: "<script>parent.owned = 1</script>"});
  document.body.insertAdjacentHTML("beforeend", '<a id="intruder" href="#" onclick="window.owned = 1">x</a>');
  document.getElementById("intruder").click();
  return fetch(outside, {mode: "no-cors"}).then(() => "an answer", () => "refused");
}"""


def intrude(tab: Visitor, file: Path, outside: str) -> None:
    with tab.visit(file, missing=MANIFEST) as page:
        assert page.evaluate(_INTRUDER, outside) == "refused"
        page.wait_for_timeout(200)
        assert page.evaluate("typeof window.owned") == "undefined"


def test_even_markup_that_got_in_could_neither_run_nor_call_home(tab: Visitor, bare: Path, site: Site) -> None:
    outside = site.put("/collect", b"window.owned = 1", content_type="text/javascript")
    with pytest.raises(AssertionError, match="violates the following Content Security Policy"):
        intrude(tab, bare, outside)
    assert site.asked == []


_LIGHTNESS = """() => {
  const brush = new OffscreenCanvas(1, 1).getContext("2d");
  brush.fillStyle = getComputedStyle(document.body).backgroundColor;
  brush.fillRect(0, 0, 1, 1);
  const [red, green, blue] = brush.getImageData(0, 0, 1, 1).data;
  return (red + green + blue) / 765;
}"""


def test_everything_can_be_read_in_light_and_dark(tab: Visitor, whole: Path) -> None:
    with tab.visit(whole) as page:
        page.emulate_media(color_scheme="dark")
        explored(page)
        page.evaluate(OPEN_ALL)
        page.wait_for_function(f"({_LIGHTNESS})() < 0.2")
        assert pale_texts(page) == nameless(page) == broken_structure(page) == []
        page.emulate_media(color_scheme="light")
        page.wait_for_function(f"({_LIGHTNESS})() > 0.8")  # the page hears of it in the next frame
        assert pale_texts(page) == []
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(f"({_LIGHTNESS})() < 0.2")
        page.emulate_media(media="print")
        page.wait_for_function(f"({_LIGHTNESS})() > 0.8")
        assert pale_texts(page) == []


def test_a_phone_never_scrolls_sideways(tab: Visitor, whole: Path) -> None:
    with closing(Visitor(tab.browser, **PHONE)) as phone, phone.visit(whole) as page:
        assert sideways(page) == []
        page.evaluate(OPEN_ALL)
        explored(page)
        for width in (375, 320, 768):
            page.set_viewport_size({"width": width, "height": 812})
            assert sideways(page) == stuck(page) == []
        page.set_viewport_size({"width": 375, "height": 812})
        # a table that is wider than the screen scrolls inside its own box, and its first column stays
        table = page.locator("#tables article[data-table=wide] table")
        box = page.locator("#tables article[data-table=wide] .scroll")
        assert table.evaluate("table => table.scrollWidth") > 375
        box.evaluate("box => { box.scrollLeft = 400; }")
        stays = (
            "box => box.querySelector('tbody tr > *').getBoundingClientRect().left - box.getBoundingClientRect().left"
        )
        assert 0 <= box.evaluate(stays) < 5
        open_run(page, "beta")
        drawer = page.locator("dialog#drawer")
        assert sideways(page) == []
        assert drawer.evaluate("one => one.scrollWidth <= one.clientWidth")
        expect(page.locator("#close-drawer")).to_be_in_viewport()


_FOCUSED = """() => {
  const element = document.activeElement, focused = getComputedStyle(element);
  const ring = focused.outlineStyle !== "none" && parseFloat(focused.outlineWidth) >= 1 || focused.boxShadow !== "none";
  return {name: element.id ? "#" + element.id : element.outerHTML.slice(0, 60), ring,
          opener: element.matches("button.open-run")};
}"""


def test_the_page_can_be_used_with_the_keyboard_alone(tab: Visitor, whole: Path) -> None:
    with tab.visit(whole) as page:
        page.keyboard.press("Tab")
        expect(page.locator("a.skip")).to_be_focused()
        expect(page.locator("a.skip")).to_be_in_viewport()
        reached: list[str] = []
        while len(reached) < 60:
            page.keyboard.press("Tab")
            focused = page.evaluate(_FOCUSED)
            assert focused["ring"], f"nothing shows that {focused['name']} has the focus"
            reached.append(focused["name"])
            if focused["opener"]:
                break
        assert {"#dataset", "#filter"} <= set(reached)
        page.keyboard.press("Enter")
        expect(page.locator("dialog#drawer")).to_be_visible()
        assert page.evaluate("document.activeElement.closest('#drawer') !== null")
        page.keyboard.press("Escape")
        expect(page.locator("dialog#drawer")).to_be_hidden()
        page.locator('#comparison th[data-key="P@3"] button').focus()
        page.keyboard.press("Space")
        once = numbers(column(page, "P@3"))
        page.keyboard.press("Enter")
        assert numbers(column(page, "P@3")) == once[::-1]
        assert once in (sorted(once), sorted(once, reverse=True))


def test_the_page_works_from_a_server_too(tab: Visitor, whole: Path, site: Site) -> None:
    for file in whole.parent.rglob("*"):
        if file.is_file():
            kind = {".js": "text/javascript", ".png": "image/png"}.get(file.suffix, "text/html")
            site.put(f"/{file.relative_to(whole.parent)}", file.read_bytes(), content_type=f"{kind}; charset=utf-8")
    with tab.visit(f"{site.address}/index.html") as page:
        explored(page)
        assert page.locator(ROWS).count() > 0
        image = page.locator("#figures figure[data-figure=tradeoff] img")
        assert image.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 200
    assert "/explorer/manifest.js" in site.asked
    assert set(site.asked) <= set(site.answers)


def marks(page: Page, metric: str) -> dict[str, str]:
    """By method, whether its figure is marked as best or second."""
    classes = "cells => cells.map((cell) => [...cell.classList].filter((name) => name !== 'sorted').join())"
    marked_as = page.locator(f'{ROWS} [data-key="{metric}"]').evaluate_all(classes)
    return dict(zip(names(page), marked_as, strict=True))


def expected(values: dict[str, float]) -> dict[str, str]:
    best, second = marked([Figure(value) for value in values.values()])
    flags = zip(values, best, second, strict=True)
    return {name: "best" if first else "second" if next_one else "" for name, first, next_one in flags}


def test_the_best_are_marked_as_in_print_and_cards_name_all_that_lead(tab: Visitor, tmp_path: Path) -> None:
    """Fault 61: what prints alike is marked alike; where all in sight are equal nothing is marked."""
    encoders = {"a": "x", "b": "x c", "c": "c d", "d": "d", "e": "c", "lone": "lone"}
    base = record().config
    runs = [
        record(name, metrics={"P@1": value}, config={**base, "method": name, "encoder": encoders[name]})
        for name, value in VALUES.items()
    ]
    # a metric that no run at default settings has
    runs += [
        record("f", run_id=f"f{beta}", config={**base, "method": "f", "params": {"beta": beta}}, metrics=metrics)
        for beta, metrics in ((1, {"P@1": 1.0, "PSP@5": 2.0}), (3, {"P@1": 3.0, "PSP@5": 2.0}))
    ]
    with tab.visit(write_page(tmp_path, runs), missing=MANIFEST) as page:
        assert page.locator("#overview .leader").all_inner_texts() == ["P@1\n50.00\na, b", "PSP@5\nX"]
        for words in ("default", "default c", "default d", "default lone"):
            page.locator("#filter").fill(words)
            kept = {
                name: value for name, value in VALUES.items() if words.split()[-1] in f"{name} {encoders[name]} default"
            }
            expect(page.locator(ROWS)).to_have_count(len(kept))
            assert marks(page, "P@1") == expected(kept)


def test_a_long_comparison_begins_with_the_benchmark_or_with_default_settings(tab: Visitor, tmp_path: Path) -> None:
    """At default settings the baseline would seem to be the best: the other method has only searched ones."""
    config = record("b").config
    searched = record("b", 70.0, config={**config, "params": {"beta": 9}}, run_id="searched")
    runs = [record("a", 40.0), searched] + [
        record("b", 90.0, config={**config, "params": {"beta": beta}}, run_id=f"b{beta}") for beta in range(100, 145)
    ]
    for judged, best, label, main in (
        ({runs[0].run_id, "searched"}, "b", "settings of the benchmark only", 2),
        (set(), "a", "default settings only", 1),
    ):
        with tab.visit(write_page(tmp_path, runs, benchmark=judged), missing=MANIFEST) as page:
            assert page.locator("#overview .leader .by").first.inner_text() == best
            assert page.locator("label:has(#defaults)").inner_text().strip() == label
            assert page.locator("#shown").inner_text() == f"{main} of 47 rows"
            page.locator("#defaults").uncheck()
            page.reload()
            assert page.locator(ROWS).count() == 47, "the address keeps what was asked for"


def test_runs_without_a_name_or_with_gaps_open_all_the_same(tab: Visitor, tmp_path: Path) -> None:
    bins = [{"bin": "head", "P@5": 1.5, "PSP@5": None}, {"bin": "tail", "P@5": None, "PSP@5": "x"}]
    curves = {"step": list(range(90)), "train/loss": [1e308, -1e308], "train/pool": []}
    runs = [
        record(" \u200b", 50.0, contributions=bins, curves=curves),
        record("wild", 1e308),
        record("wild", 1.0, seed=1),
    ]
    with tab.visit(write_page(tmp_path, runs, [world("lf-made", 20, ["", "alpha"])])) as page:
        page.get_by_role("button", name="(no name)", exact=True).click()
        expect(page.locator("#drawer-title")).to_have_text("(no name)")
        expect(page.locator("[data-part=metrics] .piece")).to_have_text(["head 1.5"])
        expect(page.locator("[data-part=curves] svg").first).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#run-picker")).to_contain_text("(no name)")


# the explorer


DAMAGED = "explorer/{} is damaged; make the explorer again: python -m harness report --open"
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


def loaded(page: Page, rows: int = len(MADE.texts)) -> None:
    """Waits until all texts are there to be searched."""
    expect(page.locator("#query-count")).to_have_text(f"{rows:,} queries")


def shown_rows(page: Page) -> list[int]:
    rows: list[int] = page.locator(OPTIONS).evaluate_all("all => all.map((one) => Number(one.dataset.row))")
    return rows


def shows(page: Page, row: int, one: World = MADE) -> dict[str, Any]:
    """Waits for a query, and gives what is shown of it."""
    page.wait_for_function(IS_SHOWN, arg=one.texts[row] if one.texts[row].strip() else "(empty text)")
    query: dict[str, Any] = page.evaluate(_QUERY)
    return query


def pick_runs(page: Page, *runs: str) -> None:
    for box in page.locator("#run-picker input[type=checkbox]").all():
        box.set_checked(box.get_attribute("value") in runs)
    expect(page.locator("#predictions .method")).to_have_count(len(runs))


def frequency(text: str) -> tuple[str, int]:
    """Bin and number of train rows at the end of a text."""
    found = re.search(r"(head|torso|tail)\D+(\d+)\D*$", text)
    assert found, text
    return found[1], int(found[2])


def check_query(query: dict[str, Any], row: int, one: World = MADE) -> None:
    """Hits, misses, frequencies and scores are those of the made-up world."""
    assert len(query["truth"]) == len(one.truth[row])
    for label, text in zip(one.truth[row], query["truth"], strict=True):
        assert text.startswith(one.labels[label][0])
        assert frequency(text) == one.labels[label][1:]
    for number, method in enumerate(one.methods):
        shown = query["methods"][f"r{number}"]
        assert method in shown["text"]
        ids = [label for label in one.ids[number][row] if label >= 0]
        assert [item["hit"] for item in shown["items"]] == [label in one.truth[row] for label in ids]
        assert [item["miss"] for item in shown["items"]] == [label not in one.truth[row] for label in ids]
        assert [frequency(item["bin"]) for item in shown["items"]] == [one.labels[label][1:] for label in ids]
        assert all(one.labels[label][0] in item["text"] for label, item in zip(ids, shown["items"], strict=True))
        for rank, item in enumerate(shown["items"]):
            score = one.score(number, row, rank)
            known = re.fullmatch(r"-?[\d.]+", item["score"])
            assert float(known[0]) == pytest.approx(score, abs=0.005) if known else score is None


def test_a_click_counts_when_the_list_is_drawn_anew_meanwhile(tab: Visitor, whole: Path) -> None:
    """Hits of a method, or texts, arrive between press and release."""
    with tab.visit(whole) as page:
        loaded(page)
        option = page.locator(f"{OPTIONS}[data-row='2']")
        option.hover()
        page.mouse.down()
        option.evaluate("node => { node.id = 'pressed'; }")
        page.locator("#query-search").dispatch_event("input")
        expect(page.locator("#pressed")).to_have_count(0)
        page.mouse.up()
        shows(page, 2)


def test_a_query_is_shown_with_hits_misses_frequency_and_scores(tab: Visitor, whole: Path) -> None:
    """fault 64: queries and labels are markup, code and nothing at all"""
    with tab.visit(whole) as page:
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


def test_queries_are_searched_in_all_shards_and_chosen_with_keys(tab: Visitor, whole: Path) -> None:
    with tab.visit(whole) as page:
        loaded(page)
        search, count = page.locator("#query-search"), page.locator("#query-count")
        assert page.locator(OPTIONS).count() < 100, "only the queries in sight exist"
        wordings = {"nothing says this": 0, ".*": 0, "<img src=x": 1, "query 1199": 1, "QUERY 119": 12, "#777": 1}
        for words, wanted in wordings.items():
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
        # the address has the view
        search.fill("query 1100")
        page.locator(f"{OPTIONS}[data-row='1100']").click()
        pick_runs(page, "r2")
        page.locator("#compare-metric").select_option("P@5")
        page.reload()
        assert set(shows(page, 1100)["methods"]) == {"r2"}
        expect(search).to_have_value("query 1100")
        expect(page.locator("#compare-metric")).to_have_value("P@5")


def margins_shown(page: Page) -> list[tuple[int, float]]:
    pairs = "all => all.map((one) => [Number(one.dataset.row), Number(one.dataset.margin)])"
    return [(row, margin) for row, margin in page.locator("#compare-list li[data-row]").evaluate_all(pairs)]


def test_two_methods_are_compared(tab: Visitor, whole: Path) -> None:
    with tab.visit(whole) as page:
        loaded(page)
        page.locator("#compare-a").select_option("r1")
        page.locator("#compare-b").select_option("r0")
        for k in (1, 5):
            page.locator("#compare-metric").select_option(f"P@{k}")
            margins = MADE.margins(1, 0, k)
            wins, losses = (sum(map(SIDES[side], margins)) for side in ("wins", "losses"))
            text = f"{wins:,} wins, {len(margins) - wins - losses:,} ties, {losses:,} losses"
            expect(page.locator("#compare-summary")).to_contain_text(text)
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


def choose(page: Page, row: int) -> None:
    page.locator("#query-search").fill(f"#{row}")
    page.locator(f"#query-list [role=option][data-row='{row}']").click()


def changed(script: Path, change: Callable[[Any], Any]) -> None:
    """Another content in the call of a shard; all else is as it was."""
    given = script.read_text().strip().removeprefix("harnessShard(").removesuffix(");")
    *names, content, build = json.loads(f"[{given}]")
    text = ",".join(json.dumps(value) for value in (*names, change(content), build))
    script.write_text(f"harnessShard({text});")


def test_an_explorer_made_anew_is_not_mixed_with_the_one_before(tab: Visitor, tmp_path: Path) -> None:
    before, after = world("lf-made", 20, ["alpha", "beta"]), world("lf-made", 20, ["alpha", "beta", "gamma"])
    with tab.visit(write_page(tmp_path, [], [before], shard_rows=5)) as page:
        expect(page.locator("#query-count")).to_have_text("20 queries")
        expect(page.locator("#query-text")).to_have_text(before.texts[0])
        write_explorer([after], tmp_path / "explorer", shard_rows=5)
        choose(page, 15)
        expect(page.locator("#query-text")).to_have_text("the explorer was made anew; reload the page")
        expect(page.locator("#predictions li")).to_have_count(0)
        expect(page.locator("#truth li")).to_have_count(0)
        page.reload()
        expect(page.locator("#query-text")).to_have_text(after.texts[15])
        expect(page.locator("#predictions .method")).to_have_count(3)


def test_shards_that_are_empty_or_too_short_or_say_what_cannot_be_are_told(tab: Visitor, tmp_path: Path) -> None:
    worlds = [world("lf-made", 25, ["alpha", "beta"]), world("lf-other", 25, ["alpha"])]
    folder = write_page(tmp_path, [], worlds, shard_rows=5, shard_labels=25).parent
    data = folder / "explorer/d0"
    (data / "r1-000.js").write_text("")
    (data / "truth-004.js").unlink()
    changed(data / "r1-001.js", lambda content: {**content, "ids": content["ids"][:-1]})
    changed(data / "r1-002.js", lambda content: {**content, "ids": [[60] * 10] * 5})
    changed(data / "truth-003.js", lambda content: [*content[:-1], None])
    changed(data / "r0-hits.js", lambda content: content[:-1] + "!")
    changed(data / "texts-001.js", lambda content: content[1:])
    changed(folder / "explorer/d1/labels-002.js", lambda content: content[:-1])
    with tab.visit(folder / "index.html", missing=("explorer/d0/truth-004.js",)) as page:
        query = page.locator("#query-text")
        expect(query).to_contain_text("explorer/d0/r1-000.js is empty or damaged; make the explorer again")
        for row, file in ((5, "r1-001"), (10, "r1-002"), (15, "truth-003")):
            choose(page, row)
            expect(query).to_contain_text(re.compile(rf"(d0/{file}|d0/texts-001)\.js is damaged; make"))
        choose(page, 20)
        expect(query).to_contain_text("truth-004.js is not there; make the explorer again")
        expect(page.locator("#query-count")).to_contain_text("is damaged; make the explorer again")
        expect(page.locator("#compare-summary")).to_contain_text(DAMAGED.format("d0/r0-hits.js"))
        page.locator("#explorer-dataset").select_option(index=1)
        expect(query).to_contain_text(DAMAGED.format("d1/labels-002.js"))


def test_a_list_that_cannot_be_used_is_told_with_what_to_do(tab: Visitor, tmp_path: Path) -> None:
    file = write_page(tmp_path, [], [world("lf-made", 20, ["alpha"])])
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
    with tab.visit(file) as page:
        missing = page.locator("#explorer-missing")
        for content, text in cases:
            manifest.write_text(content)
            page.reload()
            expect(missing).to_contain_text(text)
            expect(missing).to_contain_text("python -m harness report --write --explorer")
            expect(page.locator("#compare-missing")).to_be_visible()
            expect(page.locator("#query-list")).to_be_hidden()


# the browser itself


FILLER = "<p>words</p>" * 30


def plain_page(folder: Path, body: str) -> Path:
    file = folder / "page.html"
    file.write_text(f"<!doctype html><html lang=en><title>t</title><body>{body}{FILLER}", encoding="utf-8")
    return file


FAULTS = {
    "console error: oh": "<script>console.error('oh')</script>",
    "console warning: hm": "<script>console.warn('hm')</script>",
    "undefinedFunction is not defined": "<script>undefinedFunction()</script>",
    "exception: late": "<script>Promise.reject(new Error('late'))</script>",
    "dialog: hello": "<script>alert('hello')</script>",
    "Failed to load resource: net::ERR_FILE_NOT_FOUND": "<script src='gone.js'></script>",
    "request to http://127.0.0.1:9/pixel": "<img src='http://127.0.0.1:9/pixel'>",
    "request to https://example.invalid/": "<script>fetch('https://example.invalid/').catch(() => 0)</script>",
    "/style.css": "<link rel=stylesheet href='../style.css'>",
}


def test_a_page_that_misbehaves_fails(tab: Visitor, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught, tab.visit(plain_page(tmp_path, "".join(FAULTS.values()))):
        pass
    assert [fault for fault in FAULTS if fault not in str(caught.value)] == []


def test_faults_that_keep_readers_out_are_found(tab: Visitor, tmp_path: Path) -> None:
    """Contrast by closed form: #777 on white is 4.48, #767676 is 4.54, white on half black over white is 4.0."""
    body = """
    <p style='color: #777'>pale</p> <p style='color: #767676'>dark enough</p>
    <p style='color: #777; font-size: 30px'>large</p>
    <div style='background: rgb(0 0 0 / 50%)'><p style='color: white'>on half black</p></div>
    <button></button> <button aria-label=named></button> <input> <img src='data:,'>
    <div style='width: 3000px'>wide</div> <i id=twice></i> <i id=twice></i>
    <div style='overflow: auto; width: 90px'><div style='width: 200px'>stuck</div></div>
    <div style='overflow: auto; width: 90px' tabindex=0><div style='width: 200px'>within reach</div></div>
    <label for=nothing>l</label> <h1>one</h1> <h3>three</h3>
    """
    with tab.visit(plain_page(tmp_path, body)) as page:
        pale = pale_texts(page)
        assert [text.split(": ")[1] for text in pale] == ["pale", "on half black"]
        assert pale[0].startswith("4.48 ")
        assert 3.9 < float(pale[1].split()[0]) < 4.05
        assert sorted(nameless(page)) == ["button", "image", "textbox"]
        assert "3000" in sideways(page)[0] or "3008" in sideways(page)[0]
        assert [text.split(": ")[1] for text in stuck(page)] == ["stuck"]
        broken = broken_structure(page)
        assert len(broken) == 3
        assert "twice" in broken[0]
        assert "nothing" in broken[1]
        assert "three" in broken[2]
    with tab.visit(plain_page(tmp_path, "<h1>plain</h1>")) as page:
        assert pale_texts(page) == nameless(page) == sideways(page) == stuck(page) == broken_structure(page) == []
