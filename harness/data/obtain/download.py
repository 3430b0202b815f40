"""One link, one file: streams an https answer to disk and recognises what is not the file.

A public link can answer with a quota page, a virus-scan page or a login page, break off half-way, or redirect
anywhere. Plain urllib: every redirect and the first bytes have to be seen before anything is kept. Google Drive asks
back before it sends a large file; its links are put in the form that answers the question beforehand, and where that
does not do, its "download anyway" form is submitted once.
"""

import http.client
import re
import shutil
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from harness import __version__
from harness.data.obtain.unpack import CHUNK, Limits
from harness.errors import UserError
from harness.progress import progress

TIMEOUT_SECONDS = 60.0
_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)*<(!doctype html|html|head)\b", re.IGNORECASE | re.DOTALL)
_TITLE = r"<title[^>]*>[^<]*"
_PAGE_KINDS = (
    ("the file's download quota is used up; try again in a day", r"\bquota\b|too many users have (viewed|downloaded)"),
    ("it asks to confirm a virus scan warning", r"virus scan|scan this file for viruses"),
    ("it asks to log in; the file is not public any more", _TITLE + r"(sign in|log ?in)"),
)


class UnusableLink(Exception):
    """Why one link gave no usable file, in one line; the next mirror may."""


def download(url: str, target: Path, description: str) -> None:
    """Streams the file behind a link to `target`.

    Raises:
        UnusableLink: The link is refused, dead, truncated, or answers with a web page.
        UserError: This machine's disk cannot take the file.
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
    """Streams one answer to a file; a download form in its place (Google Drive, large files) is submitted once."""
    _check_address(url)
    agent = {"User-Agent": f"xmc-harness/{__version__}"}
    request = urllib.request.Request(url, headers=agent)  # noqa: S310  the address was checked
    with _opener(url).open(request, timeout=TIMEOUT_SECONDS) as answer:
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
    """Follows redirects to https; to this machine only from this machine."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: object,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _check_address(newurl)
        if _is_loopback(newurl) and not _is_loopback(req.full_url):
            raise UnusableLink(f"it redirects to {newurl[:100]}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _opener(url: str) -> urllib.request.OpenerDirector:
    if _is_loopback(url):
        return urllib.request.build_opener(_CheckedRedirects, urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(_CheckedRedirects)


def direct_address(url: str) -> str:
    """The download address behind a Google Drive link; any other address as it is."""
    parts = urlsplit(url)
    if parts.hostname not in ("drive.google.com", "docs.google.com"):
        return url
    by_path = re.match(r"/file/d/([\w-]+)", parts.path)
    identifier = by_path.group(1) if by_path else parse_qs(parts.query).get("id", [""])[0]
    if not identifier:
        return url
    return "https://drive.google.com/uc?" + urlencode({"export": "download", "confirm": "t", "id": identifier})


def refuse_page(start: bytes, content_type: str) -> None:
    """Raises if the bytes are a web page, saying which kind."""
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
        """Notes the form and its inputs."""
        values = {key: value or "" for key, value in attrs}
        if tag == "form" and values.get("id") in ("download-form", "downloadForm"):
            self.action, self._inside = values.get("action", ""), True
        elif tag == "input" and self._inside and values.get("name"):
            self.fields[values["name"]] = values.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        """Leaves the form."""
        self._inside = self._inside and tag != "form"


def _confirmation(start: bytes, page: str) -> str | None:
    """The address that a page's download form leads to, if it has one and it stays on the page's own site."""
    if not _PAGE.match(start):
        return None
    form = _DownloadForm()
    form.feed(start.decode("utf-8", "replace"))
    if form.action is None:
        return None
    try:
        target = urljoin(page, form.action)
        here, there = urlsplit(page).hostname or "", urlsplit(target).hostname or ""
    except ValueError:  # no address at all
        return None
    if here != there and not (here.endswith(".google.com") and there.endswith(".google.com")):
        return None
    return target + ("&" if urlsplit(target).query else "?") + urlencode(form.fields)
