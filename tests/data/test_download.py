"""Fetching a dataset: mirrors, checksums, what is kept; web pages in place of files, dead servers, redirects."""

import gzip
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.data import download
from harness.data.download import UnusableLink, direct_address, fetch
from harness.data.prepare import raw_folder
from harness.errors import DataError, UserError
from tests.faults.accounts import Account
from tests.support.downloads import (
    FILES,
    PAGES,
    Site,
    fails,
    hostile_archives,
    make_card,
    on_disk,
    placed,
    sha256,
    tarred,
    zipped,
)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_good_download_is_unpacked_flat(pack: Any, site: Site, home: Path) -> None:
    card = make_card({"url": site.put("/a", pack(FILES | {"README": b"not wanted"}))})
    assert fetch(card) == fetch(card) == [raw_folder(card) / name for name in FILES]
    assert site.asked == ["/a"], "a second call fetches nothing"
    assert on_disk(home) == placed(FILES)
    assert not list((home / "data").glob(".*"))


def test_a_wrong_checksum_goes_to_the_mirror_or_is_refused(site: Site, home: Path, account: Account) -> None:
    """fault 39: never unpacked, or the entry that climbs out would be the reason given."""
    good, bad = zipped(FILES), zipped(FILES | {"../../escaped": b""})
    wrong = {"url": site.put("/bad", bad), "sha256": sha256(good)}
    message = fails(make_card(wrong), home, f"has sha256 {sha256(bad)[:16]}")
    assert f"expected {sha256(good)[:16]}" in message
    assert "LF-Tiny.raw.zip" in message
    site.asked.clear()
    fetch(make_card(wrong, {"url": site.put("/good", good), "sha256": sha256(good)}), keep_archive=True)
    assert site.asked == ["/bad", "/good"]
    assert on_disk(home) == placed(FILES | {"LF-Tiny.raw.zip": good})
    account.did("the first of two links serves an archive of a wrong sha256 with an entry ../../escaped; before, alone")
    account.saw(f"alone: refused; asked {' then '.join(site.asked)}; the {len(FILES)} files on disk are the mirror's")


def test_checksums_of_files_inside_count_too(site: Site, home: Path) -> None:
    """fault 39."""
    card = make_card({"url": site.put("/a", zipped(FILES))}, checksums={"lbl.json.gz": "0" * 64})
    fails(card, home, "lbl.json.gz has sha256")
    right = make_card({"url": site.address + "/a"}, checksums={name: sha256(data) for name, data in FILES.items()})
    fetch(right)
    assert on_disk(home) == placed(FILES)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_that_was_cut_before_it_was_served_is_named(pack: Any, site: Site, home: Path) -> None:
    """fault 40: the server tells no length, or a consistent wrong one."""
    body = pack(FILES)
    links = [{"url": site.put("/a", body[:-200])}, {"url": site.put("/b", body[:-200], length=-1)}]
    fails(make_card(*links), home, "truncated", "truncated")


def test_a_hostile_archive_is_refused(site: Site, home: Path, account: Account) -> None:
    """fault 41: all wanted files are in it, and one more that climbs out, is a link or explodes."""
    archives = hostile_archives()
    for what, (body, contains, reason) in archives.items():
        fails(make_card({"url": site.put("/a", body), "contains": contains}), home, reason)
        assert not list(home.parent.rglob("escaped*")), what
    account.did(f"archives behind a link: {', '.join(archives)}")
    account.saw(f"{len(archives)} of {len(archives)} refused, each by its reason; {len(on_disk(home))} files on disk")


def test_parts_are_all_needed_and_single_files_stay_compressed(site: Site, home: Path) -> None:
    """Different `contains`: three loose files, stored under the name that is wanted."""
    parts = [
        {"url": site.put("/trn", FILES["trn.json.gz"]), "filename": "trn.raw.json.gz", "contains": "trn.json.gz"},
        {"url": site.put("/tst", FILES["tst.json.gz"]), "filename": "tst.raw.json.gz", "contains": "tst.json.gz"},
        {"url": site.put("/Yf", b"0->label\n"), "filename": "Yf.txt", "contains": "Yf.txt"},
    ]
    first = {"trn.json.gz": FILES["trn.json.gz"]}
    site.put("/tst", FILES["tst.json.gz"][:-9])
    fails(make_card(*parts), home, "truncated", left=placed(first))
    site.put("/tst", FILES["tst.json.gz"])
    fetch(make_card(*parts))
    assert on_disk(home) == placed(first | {"tst.json.gz": FILES["tst.json.gz"], "Yf.txt": b"0->label\n"})
    assert site.asked == ["/trn", "/tst", "/tst", "/Yf"]


def test_what_a_person_placed_comes_before_any_link(site: Site, home: Path) -> None:
    """Files are never overwritten, an archive is unpacked in place of a download."""
    card = make_card({"url": site.put("/a", b"", status=500)})
    mine = {"LF-Tiny.raw.zip": zipped(FILES), "lbl.json.gz": b"mine"}
    raw_folder(card).mkdir(parents=True)
    for name, data in mine.items():
        (raw_folder(card) / name).write_bytes(data)
    fetch(card)
    assert site.asked == []
    assert on_disk(home) == placed(FILES | mine)


def test_a_page_saved_by_hand_under_the_archives_name_is_named_and_left(
    site: Site, home: Path, account: Account
) -> None:
    """fault 40: what a browser saves when Google Drive refuses."""
    card = make_card({"url": site.address + "/gone"})
    raw_folder(card).mkdir(parents=True)
    page = PAGES["download quota"].encode()
    (raw_folder(card) / "LF-Tiny.raw.zip").write_bytes(page)
    message = fails(card, home, "download quota", "404", left=placed({"LF-Tiny.raw.zip": page}))
    account.did("Google Drive's quota page, saved by a browser as the archive LF-Tiny.raw.zip")
    account.saw("refused: " + next(line for line in message.splitlines() if "quota" in line).partition(".zip: ")[2])


def test_a_full_disk_is_one_clear_line(site: Site, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 33."""
    card = make_card({"url": site.put("/a", zipped(FILES))}, {"url": site.put("/b", zipped(FILES))})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    with pytest.raises(UserError, match="has room for 100"):
        fetch(card)
    assert site.asked == ["/a"]
    assert on_disk(home) == {}


def test_a_card_without_links_says_what_to_place_where(home: Path) -> None:
    for source in ("pydocs", "debian", "synthetic"):
        with pytest.raises(UserError, match=r"nothing to fetch.*data prepare lf-tiny"):
            fetch(make_card(source=source))
    message = fails(make_card(obtain="1. Ask the library.\n2. Copy the tape."), home)
    assert all(words in message for words in ("1. Ask the library.", "2. Copy the tape.", *FILES))


def packed(rows: int) -> dict[str, bytes]:
    """A real dataset of `rows` train rows, one test row and one label."""
    line = json.dumps({"uid": "u", "title": "a title", "target_ind": [0]})
    train = "".join(line.replace('"u"', f'"u{row}"') + "\n" for row in range(rows))
    texts = {"trn.json.gz": train, "tst.json.gz": line, "lbl.json.gz": json.dumps({"uid": "l", "title": "label"})}
    filters = {"filter_labels_train.txt": b"", "filter_labels_test.txt": b""}
    return {name: gzip.compress(text.encode()) for name, text in texts.items()} | filters


def test_counts_decide_where_there_is_no_checksum(site: Site, home: Path) -> None:
    """fault 39: a link that serves another dataset today"""
    figures = {"train": 3, "test": 1, "labels": 1}
    link = {"filename": "x.zip", "contains": " ".join(packed(1))}
    card = make_card({**link, "url": site.put("/wrong", zipped(packed(2)))}, statistics=figures)
    with pytest.raises(DataError, match=r"not lf-tiny, and was removed again: .* 2 train instead of 3"):
        fetch(card)
    assert on_disk(home) == {}
    good = make_card({**link, "url": site.put("/good", zipped(packed(3)))}, statistics=figures)
    assert len(fetch(good)) == 5


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
    fetch(make_card(*links, {"url": site.put("/c", zipped(FILES))}))
    assert on_disk(home) == placed(FILES), "the mirror behind the pages is used"


def form(action: str) -> bytes:
    return (
        f"<!DOCTYPE html><html><title>Virus scan warning</title><form id='download-form' action='{action}'>"
        "<input type='hidden' name='id' value='a&amp;b'><input type='submit' value='Download anyway'>"
        "<input type='hidden' name='confirm' value='t'></form><input name='outside' value='1'></html>"
    ).encode()


def test_a_download_form_is_submitted_once_and_on_its_own_site(site: Site, home: Path) -> None:
    site.put("/again?id=a%26b&confirm=t", form("/again"))
    links = [
        {"url": site.put("/uc", form("/again"))},
        {"url": site.put("/else", form("https://elsewhere.invalid/x"))},
    ]
    fails(make_card(*links), home, "virus scan", "virus scan")
    assert site.asked == ["/uc", "/again?id=a%26b&confirm=t", "/else"]
    site.put("/again?id=a%26b&confirm=t", zipped(FILES))
    fetch(make_card(*links))
    assert on_disk(home) == placed(FILES)


@pytest.mark.parametrize(
    "url",
    ["drive.google.com/file/d/1Ab-c_D/view?usp=sharing", "docs.google.com/uc?export=download&id=1Ab-c_D&authuser=0"],
)
def test_google_drive_links_get_one_form(url: str) -> None:
    expected = "https://drive.google.com/uc?export=download&confirm=t&id=1Ab-c_D"
    assert direct_address(f"https://{url}") == expected


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
