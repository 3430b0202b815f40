"""The report page in a real browser: sort, filter, drawer, tables, figures, small and dark screens, keyboard alone."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.accessibility import broken_structure, nameless, pale_texts, sideways, stuck
from tests.browser import started, visit
from tests.loopback import Site
from tests.made_page import FIGURES, records, write_page
from tests.page_world import IMAGE, QUOTE, SCRIPT, world

MANIFEST = ("explorer/manifest.js",)
PARTS = ("config", "curves", "environment", "cost", "metrics")
ROWS = "#comparison tbody tr[data-run]"
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page as it is committed: no shards beside it."""
    return write_page(tmp_path_factory.mktemp("bare"), records())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with an explorer."""
    worlds = [world("lf-made", 40, ["alpha", "beta", IMAGE])]
    return write_page(tmp_path_factory.mktemp("whole"), records(), worlds)


def column(page: Page, key: str) -> list[str]:
    """The texts of a column of the comparison, top to bottom."""
    texts: list[str] = page.evaluate(
        """key => {
          const heads = [...document.querySelectorAll("#comparison th[data-key]")];
          const at = heads.findIndex((head) => head.dataset.key === key);
          return [...document.querySelectorAll("#comparison tbody tr[data-run]")].map((row) => row.cells[at].innerText);
        }""",
        key,
    )
    return texts


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


def test_the_comparison_is_sorted_by_any_column(browser: Browser, bare: Path) -> None:
    with visit(browser, bare, missing=MANIFEST) as page:
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
        names = [name for text in column(page, "method") if (name := text.split("\n")[0]).isalpha()]
        assert names == ["alpha", "beta", "gamma", "views", "views"]


def test_the_comparison_is_filtered_by_words_and_shared_by_its_address(browser: Browser, bare: Path) -> None:
    with visit(browser, bare, missing=MANIFEST) as page:
        choose_dataset(page, "LF-MADE")
        rows, shown = page.locator(ROWS), page.locator("#shown")
        expect(shown).to_have_text("8 rows")
        # all words must match, in any column of words; markup is a word like any other
        for words, wanted in (
            ("STATIC bet", 1),
            ("beta dense", 0),
            ("fused", 1),
            ("<img", 1),
            ("static", 8),
            ("view", 2),
        ):
            page.locator("#filter").fill(words)
            expect(rows).to_have_count(wanted)
            expect(shown).to_have_text("8 rows" if wanted == 8 else f"{wanted} of 8 rows")
        kind = sort_by(page, "P@5")
        fused, dense = (6.0, 5.0) if kind == "descending" else (5.0, 6.0)
        assert numbers(column(page, "P@5")) == [fused, dense]
        fragment = page.evaluate("location.hash.slice(1)")
        page.locator("#filter").fill("")
        expect(rows).to_have_count(8)
        choose_dataset(page, "LF-OTHER")
        expect(rows).to_have_count(1)
        assert numbers(column(page, "P@1")) == [60]
    with visit(browser, bare, missing=MANIFEST, fragment=fragment) as page:
        expect(page.locator('#comparison th[data-key="P@5"]')).to_have_attribute("aria-sort", str(kind))
        expect(page.locator("#filter")).to_have_value("view")
        assert numbers(column(page, "P@5")) == [fused, dense]


def test_the_drawer_shows_a_run_and_gives_the_focus_back(browser: Browser, bare: Path) -> None:
    with visit(browser, bare, missing=MANIFEST) as page:
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


def test_tables_and_figures_are_there_and_what_is_missing_is_told(browser: Browser, bare: Path) -> None:
    with visit(browser, bare, missing=MANIFEST) as page:
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


def test_a_page_of_no_runs_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    with visit(browser, write_page(tmp_path, []), missing=MANIFEST) as page:
        expect(page.locator("main")).to_contain_text("python -m harness run")
        assert page.locator(ROWS).count() == 0


def test_names_that_are_markup_are_shown_and_do_not_run(browser: Browser, whole: Path) -> None:
    """fault 64"""
    with visit(browser, whole) as page:
        choose_dataset(page, IMAGE.upper())
        assert numbers(column(page, "P@1")) == [61]
        choose_dataset(page, "LF-MADE")
        assert {IMAGE, SCRIPT, "__proto__"} <= {text.split("\n")[0] for text in column(page, "method")}
        for name in (IMAGE, SCRIPT, "__proto__"):
            open_run(page, name)
            expect(page.locator("#drawer-title")).to_have_text(name)
            page.keyboard.press("Escape")
        page.evaluate(OPEN_ALL)
        explored(page)
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


def intrude(browser: Browser, file: Path, outside: str) -> None:
    with visit(browser, file, missing=MANIFEST) as page:
        assert page.evaluate(_INTRUDER, outside) == "refused"
        page.wait_for_timeout(200)
        assert page.evaluate("typeof window.owned") == "undefined"


def test_even_markup_that_got_in_could_neither_run_nor_call_home(browser: Browser, bare: Path, site: Site) -> None:
    outside = site.put("/collect", b"window.owned = 1", content_type="text/javascript")
    with pytest.raises(AssertionError, match="violates the following Content Security Policy"):
        intrude(browser, bare, outside)
    assert site.asked == []


_LIGHTNESS = """() => {
  const brush = new OffscreenCanvas(1, 1).getContext("2d");
  brush.fillStyle = getComputedStyle(document.body).backgroundColor;
  brush.fillRect(0, 0, 1, 1);
  const [red, green, blue] = brush.getImageData(0, 0, 1, 1).data;
  return (red + green + blue) / 765;
}"""


def test_everything_can_be_read_in_light_and_dark(browser: Browser, whole: Path) -> None:
    with visit(browser, whole, dark=True) as page:
        explored(page)
        page.evaluate(OPEN_ALL)
        assert page.evaluate(_LIGHTNESS) < 0.2
        assert pale_texts(page) == nameless(page) == broken_structure(page) == []
        page.emulate_media(color_scheme="light")
        page.wait_for_function(f"({_LIGHTNESS})() > 0.8")  # the page hears of it in the next frame
        assert pale_texts(page) == []
        # what a reader asks for counts more than what the system prefers, also the next time
        page.locator("#theme").click()
        page.wait_for_function(f"({_LIGHTNESS})() < 0.2")
        page.reload()
        page.wait_for_function(f"({_LIGHTNESS})() < 0.2")
        page.emulate_media(media="print")
        page.wait_for_function(f"({_LIGHTNESS})() > 0.8")
        assert pale_texts(page) == []


def test_a_phone_never_scrolls_sideways(browser: Browser, whole: Path) -> None:
    with visit(browser, whole, width=375, height=812, has_touch=True, is_mobile=True) as page:
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


def test_the_page_can_be_used_with_the_keyboard_alone(browser: Browser, whole: Path) -> None:
    with visit(browser, whole) as page:
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
        assert {"#theme", "#dataset", "#filter"} <= set(reached)
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


def test_the_page_works_from_a_server_too(browser: Browser, whole: Path, site: Site) -> None:
    for file in whole.parent.rglob("*"):
        if file.is_file():
            kind = {".js": "text/javascript", ".svg": "image/svg+xml"}.get(file.suffix, "text/html")
            site.put(f"/{file.relative_to(whole.parent)}", file.read_bytes(), content_type=f"{kind}; charset=utf-8")
    with visit(browser, f"{site.address}/index.html") as page:
        explored(page)
        assert page.locator(ROWS).count() > 0
        image = page.locator("#figures figure[data-figure=tradeoff] img")
        assert image.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") == 200
    assert "/explorer/manifest.js" in site.asked
    assert set(site.asked) <= set(site.answers)


def test_an_address_that_makes_no_sense_does_no_harm(browser: Browser, whole: Path) -> None:
    fragments = (
        "comparison?dataset=nowhere&sort=nothing&filter=&run=nobody&defaults=7",
        "explorer?row=-1&runs=r99,__proto__&explore=nowhere&q=%E0%A4%A",
        "explorer?row=99999999999999999999&runs=constructor&sort=-__proto__&a=r99&b=r98&by=P@9&side=both",
        f"{IMAGE}?{QUOTE}&=&&dataset={SCRIPT}",
        "explorer?row=1e3&row=NaN?again#more",
    )
    with visit(browser, whole, fragment=fragments[0]) as page:
        for fragment in fragments:
            page.evaluate("fragment => { location.hash = fragment; }", fragment)
            page.locator("#query-search").fill("")
            explored(page)
            page.locator("#filter").fill("")
            expect(page.locator(ROWS).first).to_be_visible()
            assert page.locator("#compare-summary").inner_text()
        page.reload()
        explored(page)
        assert page.evaluate("typeof window.owned") == "undefined"
