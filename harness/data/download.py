"""Download a dataset's files from the links on its card, or say which files a person has to place where.

    links of one part (mirrors, in order) -> download -> sha256 -> unpack in a scratch folder -> rename into place

If a link fails, its reason is noted and the next mirror is tried; only whole, verified files reach the dataset's
folder. Files that are already there are left alone, so a second call fetches only what is missing, and an archive that
a person placed there is used before any link.

A public link can answer with a quota page, a virus-scan page or a login page, break off half-way, or redirect anywhere.
Plain urllib is used, because every redirect and the first bytes must be seen before anything is kept. Google Drive asks
for confirmation before it sends a large file: its links are rewritten to the form that confirms beforehand, and where
that does not help, its "download anyway" form is submitted once.
"""

import http.client
import re
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from harness import __version__
from harness.data.archive import CHUNK, Limits, archive_kind, check_compressed, unpack
from harness.data.card import DatasetCard, Download
from harness.data.prepare import prepare, raw_folder
from harness.data.sources.repository import missing_message
from harness.errors import DataError, MissingDataError, UserError
from harness.io.files import locked, sha256_file
from harness.io.progress import progress

_USUAL_FILES = {
    "repository": "trn.json.gz tst.json.gz lbl.json.gz filter_labels_train.txt filter_labels_test.txt",
    "jsonl": "train.jsonl test.jsonl labels.jsonl",
}
_PACKED = re.compile(r"\.(zip|tar|tgz|tbz2|txz|gz|bz2|xz)$")


def fetch(card: DatasetCard, *, keep_archive: bool = False) -> list[Path]:
    """Download the missing files of a dataset into `$HARNESS_HOME/data/<name>/`.

    Args:
        card: The dataset; its `downloads` are the links.
        keep_archive: Also keep the archives that were downloaded, beside the files.

    Returns:
        The dataset's files, those already there included.

    Raises:
        MissingDataError: No link gave the files; the message says which files to place where.
        UserError: There is nothing to fetch, or the disk has no room for the files.
    """
    if card.built_here:
        raise UserError(
            f"nothing to fetch: {card.name} is built on this machine by `python -m harness data prepare {card.name}`"
        )
    folder = raw_folder(card)
    files: list[Path] = []
    before = set(folder.iterdir()) if folder.is_dir() else set()
    with locked(folder):
        for contains in dict.fromkeys(link.contains for link in card.downloads):
            mirrors = [link for link in card.downloads if link.contains == contains]
            files += _fetch_part(card, mirrors, folder, keep_archive)
    if files:
        _verify_counts(card, folder, [file for file in files if file not in before])
    usual = _USUAL_FILES.get(card.source, "").split()
    if not files and _absent(usual, folder):
        raise MissingDataError(how_to_obtain(card))
    return files or [folder / name for name in usual]


def how_to_obtain(card: DatasetCard, failures: Iterable[str] = ()) -> str:
    """Return a message: why the links failed, and which files a person has to place where."""
    folder = raw_folder(card)
    reasons = [f"{card.name} could not be fetched:", *(f"  {failure}" for failure in failures)]
    lines = [*reasons, ""] if len(reasons) > 1 else []
    lines.append(missing_message(card, folder, links=False))
    wanted = " ".join(link.contains for link in card.downloads).split()
    archives = [name for name in dict.fromkeys(link.filename for link in card.downloads) if name not in wanted]
    if archives:
        lines.append(f"An archive placed in that folder ({', '.join(archives)}) is unpacked by `data fetch` too.")
    return "\n".join(lines)


def _verify_counts(card: DatasetCard, folder: Path, fetched: list[Path]) -> None:
    """Prepare the files and compare numbers of rows and labels with the card, since few links have a checksum.

    A link can serve other data today than when it was published; files that do not match are removed again.
    """
    published = card.statistics
    promised = {what: getattr(published, what) for what in ("train", "test", "labels")}
    if published.approximate or not any(promised.values()):
        return
    try:
        _, manifest = prepare(card, folder)
        found = {what: manifest["statistics"][what] for what in promised}
        wrong = [
            f"{found[what]:,} {what} instead of {count:,}"
            for what, count in promised.items()
            if count not in (None, found[what])
        ]
        if wrong:
            raise DataError(f"the files hold {', '.join(wrong)}", folder)
    except DataError as error:
        for file in fetched:
            file.unlink(missing_ok=True)
        raise DataError(f"what the links gave is not {card.name}, and was removed again: {error}") from error


def _fetch_part(card: DatasetCard, mirrors: list[Download], folder: Path, keep_archive: bool) -> list[Path]:
    """Return the files of one part, from its mirrors; an archive that a person placed in the folder comes first."""
    wanted = mirrors[0].contains.split()
    failures: list[str] = []
    if wanted and not _absent(wanted, folder):
        return [folder / name for name in wanted]
    by_hand = [(link, folder / link.filename) for link in mirrors if (folder / link.filename).is_file()]
    for link, placed in [*by_hand, *((link, None) for link in mirrors)]:
        where = link.url if placed is None else placed
        with _scratch(folder) as scratch:
            archive = placed or scratch / link.filename
            try:
                if placed is None:
                    download(link.url, archive, f"{card.name}: {link.filename}")
                _require_sha256(archive, link.sha256)
                files = _wanted_files(archive, link, scratch / "files", wanted)
                for name, file in files.items():
                    _require_sha256(file, card.checksums.get(name))
            except (UnusableLink, DataError) as error:
                failures.append(f"{where}: {str(error).removeprefix(f'{archive}: ')}")
                continue
            folder.mkdir(parents=True, exist_ok=True)
            for name, file in files.items():
                if not (folder / name).exists():
                    file.replace(folder / name)
            if keep_archive and archive.exists() and placed is None:
                archive.replace(folder / link.filename)
        absent = _absent(wanted, folder)
        if not absent:
            return [folder / name for name in wanted or files]
        failures.append(f"{where}: it has no {', '.join(absent)}")
    raise MissingDataError(how_to_obtain(card, failures))


def _absent(names: Iterable[str], folder: Path) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder on the same disk, so that finished files can be renamed into place.

    The caller holds the dataset's lock, so any older scratch folder was left by a killed process and is removed.
    """
    prefix = f".{folder.name}="  # no dataset's name has an equals sign
    for stale in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _require_sha256(path: Path, expected: str | None) -> None:
    if expected is not None and (actual := sha256_file(path)) != expected:
        raise UnusableLink(f"{path.name} has sha256 {actual[:16]}..., expected {expected[:16]}...; it was not used")


def _wanted_files(archive: Path, link: Download, scratch: Path, wanted: list[str]) -> dict[str, Path]:
    """Return the wanted files of a download by name: those of an archive, or the download itself if it is one file."""
    with archive.open("rb") as stream:
        refuse_page(stream.read(CHUNK), "")
    kind = archive_kind(archive)
    name = wanted[0] if len(wanted) == 1 else link.filename
    if kind == "file" and _PACKED.search(name):
        check_compressed(archive)
        return {name: archive}
    if kind is None:
        if _PACKED.search(name) or _PACKED.search(link.filename) or len(wanted) > 1:
            raise UnusableLink(f"{archive.stat().st_size:,} bytes that are not an archive")
        return {name: archive}
    found: dict[str, Path] = {}
    for file in unpack(archive, scratch):
        inner = name if kind == "file" else file.name
        if wanted and inner not in wanted:
            continue
        if inner in found:
            raise UnusableLink(f"two files in it are called {inner}")
        found[inner] = file
    return found


TIMEOUT_SECONDS = 60.0
_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)*<(!doctype html|html|head)\b", re.IGNORECASE | re.DOTALL)
_TITLE = r"<title[^>]*>[^<]*"
_PAGE_KINDS = (
    ("the file's download quota is used up; try again in a day", r"\bquota\b|too many users have (viewed|downloaded)"),
    ("it asks to confirm a virus scan warning", r"virus scan|scan this file for viruses"),
    ("it asks to log in; the file is not public any more", _TITLE + r"(sign in|log ?in)"),
)


class UnusableLink(Exception):
    """Raised if a link gave no usable file; says why in one line. The next mirror is tried."""


def download(url: str, target: Path, description: str) -> None:
    """Download the file behind a link to `target`.

    Raises:
        UnusableLink: The link is refused, dead, truncated, or answers with a web page.
        UserError: The disk has no room for the file.
    """
    try:
        _download(direct_address(url), target, description)
    except urllib.error.HTTPError as error:
        raise UnusableLink(f"the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise UnusableLink(f"no connection ({error.reason})") from error
    except TimeoutError as error:
        raise UnusableLink(f"no answer within {TIMEOUT_SECONDS:.0f} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnusableLink(f"the connection broke ({error or type(error).__name__})") from error


def _download(url: str, target: Path, description: str, *, confirm: bool = True) -> None:
    """Write one answer to a file; if it is a download form (Google Drive, large files), submit that once."""
    _check_address(url)
    agent = {"User-Agent": f"xmc-harness/{__version__}"}
    request = urllib.request.Request(url, headers=agent)  # noqa: S310  the address was checked
    no_proxy = [urllib.request.ProxyHandler({})] if _is_loopback(url) else []
    opener = urllib.request.build_opener(_CheckedRedirects, *no_proxy)
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        start = answer.read(CHUNK)
        form = _confirmation(start, answer.geturl()) if confirm else None
        if form is None:
            refuse_page(start, answer.headers.get_content_type())
            _save(start, answer, target, description)
            return
    _download(form, target, description, confirm=False)


def _save(start: bytes, answer: http.client.HTTPResponse, target: Path, description: str) -> None:
    announced = answer.headers.get("Content-Length", "")
    expected = int(announced) if announced.isdecimal() else None
    free = shutil.disk_usage(target.parent).free
    if expected is not None and expected > free:
        raise UserError(f"{description} has {expected:,} bytes, but {target.parent.parent} has room for {free:,}")
    received, chunk = 0, start
    with target.open("wb") as stream, progress(description, expected and -(-expected // CHUNK), "MiB") as advance:
        while chunk:
            received += len(chunk)
            if received > Limits().total_bytes:
                raise UnusableLink(f"more than {Limits().total_bytes:,} bytes")
            try:
                stream.write(chunk)
            except OSError as error:
                raise UserError(f"{description} could not be written: {error.strerror}") from error
            advance(1)
            chunk = answer.read(CHUNK)
    if expected is not None and received != expected:
        raise UnusableLink(f"truncated: {received:,} of {expected:,} bytes arrived")
    if not received:
        raise UnusableLink("an empty answer")


def _is_loopback(url: str) -> bool:
    return urlsplit(url).scheme == "http" and urlsplit(url).hostname in ("127.0.0.1", "::1")


def _check_address(url: str) -> None:
    if urlsplit(url).scheme != "https" and not _is_loopback(url):
        raise UnusableLink(f"{url[:100]} is not an https address")


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to https only; to this machine (http) only if the link was on this machine too."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        if _is_loopback(newurl) and not _is_loopback(req.full_url):
            raise UnusableLink(f"it redirects to {newurl[:100]}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def direct_address(url: str) -> str:
    """Return the download address behind a Google Drive link; any other address unchanged."""
    parts = urlsplit(url)
    if parts.hostname not in ("drive.google.com", "docs.google.com"):
        return url
    by_path = re.match(r"/file/d/([\w-]+)", parts.path)
    identifier = by_path.group(1) if by_path else parse_qs(parts.query).get("id", [""])[0]
    if not identifier:
        return url
    return "https://drive.google.com/uc?" + urlencode({"export": "download", "confirm": "t", "id": identifier})


def refuse_page(start: bytes, content_type: str) -> None:
    """Raise `UnusableLink`, with the kind of page, if the bytes are a web page."""
    if content_type != "text/html" and not _PAGE.match(start):
        return
    text = start.decode("utf-8", "replace")
    title = re.search(_TITLE, text, re.IGNORECASE)
    named = repr(" ".join(title.group().partition(">")[2].split())[:80]) if title else "without a title"
    kind = next((name for name, words in _PAGE_KINDS if re.search(words, text, re.IGNORECASE)), "it is not the data")
    raise UnusableLink(f"a web page ({named}) came instead of the file: {kind}")


class _DownloadForm(HTMLParser):
    """Finds the form behind a "download anyway" button: its address and hidden fields."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the address and the inputs of the form."""
        values = {key: value or "" for key, value in attrs}
        if tag == "form" and values.get("id") in ("download-form", "downloadForm"):
            self.action, self._inside = values.get("action", ""), True
        elif tag == "input" and self._inside and values.get("name"):
            self.fields[values["name"]] = values.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        """Note the end of the form."""
        self._inside = self._inside and tag != "form"


def _confirmation(start: bytes, page: str) -> str | None:
    """Return the address of a page's download form; None if there is none or it leads to another site."""
    if not _PAGE.match(start):
        return None
    form = _DownloadForm()
    form.feed(start.decode("utf-8", "replace"))
    if form.action is None:
        return None
    try:
        target = urljoin(page, form.action)
        here, there = urlsplit(page).hostname or "", urlsplit(target).hostname or ""
    except ValueError:  # not a valid address
        return None
    if here != there and not (here.endswith(".google.com") and there.endswith(".google.com")):
        return None
    return target + ("&" if urlsplit(target).query else "?") + urlencode(form.fields)
