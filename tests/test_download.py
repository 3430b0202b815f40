"""One link at a time: web pages in place of files, dead and silent servers, redirects, Google Drive."""

import socket
from pathlib import Path

import pytest

from harness.data.obtain import download
from harness.data.obtain.download import UnusableLink, direct_address
from harness.data.obtain.fetch import fetch
from tests.loopback import FILES, PAGES, Site, fails, make_card, on_disk, placed, zipped
from tests.trust.accounts import Account


def test_an_answer_that_breaks_off_is_named(site: Site, home: Path, account: Account) -> None:
    """fault 40: fewer bytes than announced."""
    body = zipped(FILES)
    card = make_card({"url": site.put("/a", body[:500], length=len(body))})
    message = fails(card, home, f"truncated: 500 of {len(body):,} bytes")
    account.did(f"the server breaks off after 500 of the {len(body):,} bytes it announced")
    account.saw(
        next(line for line in message.splitlines() if "truncated" in line).partition("/a: ")[2] + "; nothing kept"
    )


@pytest.mark.parametrize("reason", PAGES)
def test_a_web_page_instead_of_the_file_is_named(reason: str, site: Site, home: Path) -> None:
    """fault 40: whatever its status and content type say."""
    links = [
        {"url": site.put("/a", PAGES[reason].encode())},
        {"url": site.put("/b", PAGES[reason].encode(), content_type="text/html; charset=utf-8")},
    ]
    message = fails(make_card(*links), home, "a web page", "a web page")
    assert message.count(reason) == 2


def test_the_mirror_behind_a_web_page_is_used(site: Site, home: Path) -> None:
    """fault 40."""
    links = [
        {"url": site.put("/a", PAGES["download quota"].encode())},
        {"url": site.put("/b", zipped(FILES))},
    ]
    fetch(make_card(*links))
    assert on_disk(home) == placed(FILES)


def form(action: str) -> bytes:
    return (
        f"<!DOCTYPE html><html><title>Virus scan warning</title><form id='download-form' action='{action}'>"
        "<input type='hidden' name='id' value='a&amp;b'><input type='submit' value='Download anyway'>"
        "<input type='hidden' name='confirm' value='t'></form><input name='outside' value='1'></html>"
    ).encode()


def test_a_download_form_is_submitted_once(site: Site, home: Path) -> None:
    site.put("/download?id=a%26b&confirm=t", zipped(FILES))
    fetch(make_card({"url": site.put("/uc", form("/download"))}))
    assert site.asked == ["/uc", "/download?id=a%26b&confirm=t"]
    assert on_disk(home) == placed(FILES)


def test_a_form_that_leads_to_another_form_or_site_is_not_followed(site: Site, home: Path) -> None:
    site.put("/again?id=a%26b&confirm=t", form("/again"))
    links = [
        {"url": site.put("/uc", form("/again"))},
        {"url": site.put("/else", form("https://elsewhere.invalid/x"))},
    ]
    fails(make_card(*links), home, "virus scan", "virus scan")
    assert site.asked == ["/uc", "/again?id=a%26b&confirm=t", "/else"]


@pytest.mark.parametrize(
    "url",
    [
        "https://drive.google.com/file/d/1Ab-c_D/view?usp=sharing",
        "https://drive.google.com/uc?id=1Ab-c_D",
        "https://drive.google.com/uc?export=download&id=1Ab-c_D",
        "https://docs.google.com/uc?id=1Ab-c_D&authuser=0",
    ],
)
def test_google_drive_links_get_one_form(url: str) -> None:
    assert direct_address(url) == "https://drive.google.com/uc?export=download&confirm=t&id=1Ab-c_D"


@pytest.mark.parametrize("url", ["https://drive.google.com/drive/folders/1Ab", "https://host.invalid/uc?id=1Ab"])
def test_other_links_stay_as_they_are(url: str) -> None:
    assert direct_address(url) == url


def test_dead_links_are_one_line_each(site: Site, home: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}/a"
    site.put("/broken", b"", status=503)
    links = [{"url": site.address + "/gone"}, {"url": closed}, {"url": site.address + "/broken"}]
    message = fails(make_card(*links), home, "404 Not Found", "no connection", "503 Service Unavailable")
    assert "Traceback" not in message


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        card = make_card({"url": f"http://127.0.0.1:{silent.getsockname()[1]}/a"})
        fails(card, home, "no answer within")


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "http://192.0.2.1/a", "ftp://192.0.2.1/a", "http://localhost/a"]
)
def test_redirects_off_https_are_not_followed(location: str, site: Site, home: Path) -> None:
    card = make_card({"url": site.put("/a", b"", status=302, location=location)})
    # urllib itself refuses file:, we refuse the rest
    fails(card, home, "302" if location.startswith("file") else "not an https address")


def test_redirects_on_this_machine_are_followed(site: Site, home: Path) -> None:
    site.put("/b", zipped(FILES))
    fetch(make_card({"url": site.put("/a", b"", status=302, location="/b")}))
    assert on_disk(home) == placed(FILES)


def test_a_public_site_cannot_redirect_to_this_machine() -> None:
    request = download.urllib.request.Request("https://elsewhere.invalid/a")
    with pytest.raises(UnusableLink, match="redirects to"):
        download._CheckedRedirects().redirect_request(
            request, None, 302, "Found", download.http.client.HTTPMessage(), "http://127.0.0.1:1/x"
        )


@pytest.mark.parametrize("url", ["http://elsewhere.invalid/a", "ftp://127.0.0.1/a", "file:///etc/passwd", "https:/a"])
def test_a_card_takes_no_other_addresses(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        make_card({"url": url})
