"""A real browser for tests of pages: the system's Chromium, driven by playwright; nothing is downloaded for it.

A visited page has to behave: a warning or an error in the console, an exception, a dialog, a second window and a
request to anything but the folder it was loaded from fail the test. Names outside the machine are never resolved.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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


def chromium() -> str:
    """Where the browser is; without one a test fails, unless HARNESS_NO_BROWSER=1 asks for a skip."""
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


@contextmanager
def started() -> Iterator[Browser]:
    """The browser, for the time of the block.

    Playwright keeps an event loop running in this thread meanwhile, so a fixture of it must end with its module: where
    it does not, every later `asyncio.run` of the same process fails.
    """
    path = chromium()
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class _Watch:
    """What a page did that it must not do."""

    home: str
    """The folder it may ask for files; everything else is outside."""
    missing: tuple[str, ...]
    """Files in it that are not there on purpose; the console may say so, once each."""
    faults: list[str] = field(default_factory=list)

    def over(self, context: BrowserContext) -> None:
        context.on("request", self._request)
        context.on("console", self._message)
        context.on("weberror", lambda error: self.faults.append(f"exception: {error.error}"))
        context.on("dialog", self._dialog)

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.faults.append(f"request to {request.url}")

    def _message(self, message: ConsoleMessage) -> None:
        about = message.location.get("url", "")
        on_purpose = "Failed to load resource" in message.text and about in {self.home + name for name in self.missing}
        if message.type in {"error", "warning"} and not on_purpose:
            self.faults.append(f"console {message.type}: {message.text} ({about})")

    def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()


@contextmanager
def visit(
    browser: Browser,
    address: str | Path,
    *,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
    missing: tuple[str, ...] = (),
    fragment: str = "",
    **options: Any,
) -> Iterator[Page]:
    """A page in a profile of its own; the block fails when the page does what no page of ours may do.

    Args:
        browser: From `started`.
        address: A file, or an address on the loopback interface.
        width: Of the viewport, CSS pixels.
        height: Of the viewport.
        dark: Whether the reader's system prefers dark colours.
        missing: Files beside the page that are not there on purpose.
        fragment: What follows `#` in the address.
        **options: More for playwright's `new_context`.
    """
    url = address.resolve().as_uri() if isinstance(address, Path) else address
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        **options,
    )
    context.set_default_timeout(PATIENCE)
    watch = _Watch(url.rsplit("/", 1)[0] + "/", missing)
    watch.over(context)
    try:
        page = context.new_page()
        page.goto(url + (f"#{fragment}" if fragment else ""))
        try:
            yield page
        except Exception as error:
            for fault in watch.faults:
                error.add_note(f"the page: {fault}")
            raise
        # a message on its way from the browser arrives before the answer to a question asked now
        page.evaluate("new Promise(requestAnimationFrame)")
        assert len(context.pages) == 1, "the page opened a window"
        assert not watch.faults, watch.faults
    finally:
        context.close()
