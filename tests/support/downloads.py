"""A small web site on the loopback interface, cards and archives to put on it, hostile ones included."""

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from harness.data.card import DatasetCard
from harness.data.download import fetch
from harness.data.prepare import raw_folder
from harness.errors import MissingDataError

FILES = {
    "trn.json.gz": gzip.compress(b'{"title": "row"}\n' * 200, mtime=0),
    "tst.json.gz": gzip.compress(b'{"title": "test"}\n' * 50, mtime=0),
    "lbl.json.gz": gzip.compress(b'{"title": "label"}\n' * 20, mtime=0),
    "filter_labels_train.txt": b"0 1\n",
    "filter_labels_test.txt": b"",
}
NAMES = " ".join(FILES)


@dataclass
class Answer:
    """The server's answer for one path."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/octet-stream"
    length: int | None = None
    """A wrong Content-Length; None for the right one, -1 to leave the header out."""
    location: str = ""


@dataclass
class Site:
    """A running server: its address, its answers and the requests that it got."""

    address: str
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def put(self, path: str, body: bytes, **metadata: Any) -> str:
        """Serve a body at a path; return its address."""
        self.answers[path] = Answer(body, **metadata)
        return self.address + path


@contextmanager
def served() -> Iterator[Site]:
    """Run a server on a free port of the loopback interface inside the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running.asked.append(self.path)
            answer = running.answers.get(self.path, Answer(b"nothing here", 404))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            if answer.location:
                self.send_header("Location", answer.location)
            if answer.length != -1:
                self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Site(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def zipped(files: dict[str, bytes], folder: str = "LF-Tiny/") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(folder + name), data)  # without a clock: equal files are equal archives
    return stream.getvalue()


def tarred(files: dict[str, bytes], link: str = "") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"./set/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        if link:
            member = tarfile.TarInfo("escaped")
            member.type, member.linkname = tarfile.SYMTYPE, link
            archive.addfile(member)
    return stream.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_card(*links: dict[str, Any], **metadata: Any) -> DatasetCard:
    downloads = [{"filename": "LF-Tiny.raw.zip", "contains": NAMES, **link} for link in links]
    values = {"title": "LF-Tiny", "summary": "for tests", "source": "repository", "filter": "required", **metadata}
    return DatasetCard.model_validate({"name": "lf-tiny", "downloads": downloads, **values})


def on_disk(home: Path) -> dict[str, bytes]:
    """Return the content of every file under the data folder, by path, without the dataset's lock."""
    files = (path for path in (home / "data").rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(home / "data")): path.read_bytes() for path in files}


def placed(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"lf-tiny/{name}": data for name, data in files.items()}


def fails(card: DatasetCard, home: Path, *reasons: str, left: dict[str, bytes] | None = None) -> str:
    """Check that fetching fails for these reasons, in this order, and leaves exactly the files `left` on disk."""
    with pytest.raises(MissingDataError) as caught:
        fetch(card)
    message = str(caught.value)
    lines = [line for line in message.splitlines() if line.startswith("  http") or line.startswith(f"  {home}")]
    assert len(lines) == len(reasons), message
    for line, reason in zip(lines, reasons, strict=True):
        assert reason in line
    assert str(raw_folder(card)) in message
    assert on_disk(home) == (left or {})
    assert not list((home / "data").glob(".*"))
    return message


PAGES = {
    "download quota": "<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head></html>",
    "quota is used up": "\ufeff\n<HTML>Too many users have viewed or downloaded this file recently.</HTML>",
    "virus scan": "<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head></html>",
    "log in": "<!-- g --><html lang='en'><title>Google Drive: Sign-in</title><title>Sign in - Accounts</title></html>",
    "'Moved to a new home'": "<html><head><title>\n Moved to a new\n home</title></head></html>",
}


def hostile_archives() -> dict[str, tuple[bytes, str, str]]:
    """Return hostile archives by the name of their harm: (archive, files wanted of it, reason of the refusal)."""
    bomb, exploded = gzip.compress(b"\n" * 4_000_000) * 26, "expands more than 1,000 times"
    return {
        "../x in a zip": (zipped(FILES | {"../../../escaped": b""}), NAMES, "leaves the folder"),
        "absolute path in a zip": (zipped(FILES | {"/escaped": b""}, folder=""), NAMES, "not a relative path"),
        "symlink in a tar": (tarred(FILES, link="/etc/passwd"), NAMES, "is a link or a device"),
        "bomb kept as trn.json.gz": (bomb, "trn.json.gz", exploded),
        "bomb unpacked to trn.json": (bomb, "trn.json", exploded),
    }
