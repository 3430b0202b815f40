"""The browser of the suite notices what it is there to notice: a page that misbehaves, or that cannot be read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.accessibility import broken_structure, nameless, pale_texts, sideways, stuck
from tests.browser import chromium, started, visit
from tests.loopback import served

FILLER = "<p>words</p>" * 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as running:
        yield running


def written(folder: Path, body: str) -> Path:
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


def test_a_page_that_misbehaves_fails(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught, visit(browser, written(tmp_path, "".join(FAULTS.values()))):
        pass
    assert [fault for fault in FAULTS if fault not in str(caught.value)] == []


def test_only_the_file_that_is_missing_on_purpose_may_be_missing(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, "<script src='gone.js'></script>")
    with visit(browser, page, missing=("gone.js",)):
        pass
    with pytest.raises(AssertionError, match=r"gone\.js"), visit(browser, page, missing=("other.js",)):
        pass


def test_a_failing_block_says_what_the_page_did(browser: Browser, tmp_path: Path) -> None:
    page = written(tmp_path, "<script>console.error('the reason')</script>")
    with pytest.raises(KeyError) as caught, visit(browser, page):
        raise KeyError("what a test stumbles over")
    assert "the page: console error: the reason" in caught.value.__notes__[0]


def test_a_page_from_a_server_may_ask_that_server_only(browser: Browser) -> None:
    with served() as site, served() as other:
        site.put("/data.js", b"window.there = 1", content_type="text/javascript")
        other.put("/data.js", b"window.there = 2", content_type="text/javascript")
        head = "<!doctype html><link rel=icon href='data:,'>"
        good = site.put("/good.html", f"{head}<script src=data.js></script>".encode(), content_type="text/html")
        with visit(browser, good) as page:
            assert page.evaluate("window.there") == 1
        body = f"{head}<script src={other.address}/data.js></script>".encode()
        bad = site.put("/bad.html", body, content_type="text/html")
        with pytest.raises(AssertionError, match="request to"), visit(browser, bad):
            pass


def test_faults_that_keep_readers_out_are_found(browser: Browser, tmp_path: Path) -> None:
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
    with visit(browser, written(tmp_path, body)) as page:
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
    with visit(browser, written(tmp_path, "<h1>plain</h1>")) as page:
        assert pale_texts(page) == nameless(page) == sideways(page) == stuck(page) == broken_structure(page) == []


def test_without_a_browser_a_test_fails_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("HARNESS_NO_BROWSER", raising=False)
    monkeypatch.delenv("HARNESS_BROWSER", raising=False)
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        chromium()
    monkeypatch.setenv("HARNESS_NO_BROWSER", "1")
    with pytest.raises(pytest.skip.Exception):
        chromium()
