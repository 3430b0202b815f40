"""A real browser for tests of pages: the system's Chromium, driven by playwright; nothing is downloaded for it.

A visited page has to behave: a warning or an error in the console, an exception, a dialog, a second window and a
request to anything but the folder it was loaded from fail the test. Names outside the machine are never resolved.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    # what a page asks of the outside is recorded below; what the browser itself asks must not get there either
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE = 60_000
"""Milliseconds to wait for something to appear; on a busy machine much more than it takes."""
DESKTOP = {"width": 1280, "height": 900}
PHONE: dict[str, Any] = {"viewport": {"width": 375, "height": 812}, "has_touch": True, "is_mobile": True}


def chromium() -> str:
    """Return the path of the browser; without one a test fails, or is skipped if HARNESS_NO_BROWSER=1."""
    if os.environ.get("HARNESS_NO_BROWSER") == "1":
        pytest.skip("HARNESS_NO_BROWSER=1")
    for name in filter(None, (os.environ.get("HARNESS_BROWSER"), *NAMES)):
        if found := shutil.which(name):
            return found
    pytest.fail(
        "no Chromium to test the page in: install it with `apt-get install chromium`, name another one with "
        "HARNESS_BROWSER=path, or leave these tests out with HARNESS_NO_BROWSER=1",
        pytrace=False,
    )


class Visitor:
    """One tab of a browser, which opens one page after the other, and what the page did that it must not do."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self.browser = browser
        self.faults: list[str] = []
        self._home = ""
        self._missing: set[str] = set()
        self._context = self._watched(
            browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce"} | options)
        )
        self._page = self._context.new_page()

    def _watched(self, context: BrowserContext) -> BrowserContext:
        context.set_default_timeout(PATIENCE)
        context.on("request", self._request)
        context.on("console", self._message)
        context.on("weberror", lambda error: self.faults.append(f"exception: {error.error}"))
        context.on("dialog", self._dialog)
        return context

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self._home, "data:", "blob:")):
            self.faults.append(f"request to {request.url}")

    def _message(self, message: ConsoleMessage) -> None:
        about = message.location.get("url", "")
        on_purpose = "Failed to load resource" in message.text and about in self._missing
        if message.type in {"error", "warning"} and not on_purpose:
            self.faults.append(f"console {message.type}: {message.text} ({about})")

    def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    @contextmanager
    def visit(self, address: str | Path, missing: tuple[str, ...] = ()) -> Iterator[Page]:
        """Open a page; the block fails when the page does what no page of ours may do.

        Args:
            address: A file, or an address on the loopback interface.
            missing: Files beside the page that are missing on purpose; the console may report them.
        """
        page = self._page
        page.goto("about:blank")  # whatever the page before still does is its own
        page.emulate_media(color_scheme="light", media="screen")
        url = address.resolve().as_uri() if isinstance(address, Path) else address
        self._home = url.rsplit("/", 1)[0] + "/"
        self._missing = {self._home + name for name in missing}
        self.faults.clear()
        page.goto(url)
        try:
            yield page
        except Exception as error:
            for fault in self.faults:
                error.add_note(f"the page: {fault}")
            raise
        # a message on its way from the browser arrives before the answer to a question asked now
        page.evaluate("new Promise(requestAnimationFrame)")
        assert len(self._context.pages) == 1, "the page opened a window"
        assert not self.faults, self.faults

    def close(self) -> None:
        self._context.close()


@contextmanager
def visiting() -> Iterator[Visitor]:
    """Start a browser with one tab for the time of the block.

    Playwright keeps an event loop running in this thread meanwhile, so a fixture of it must end with its module: where
    it does not, every later `asyncio.run` of the same process fails.
    """
    path = chromium()
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield Visitor(browser)
        finally:
            browser.close()
