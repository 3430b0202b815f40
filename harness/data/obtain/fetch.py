"""Getting a dataset's files from the links its card lists, or saying exactly what a person has to place where.

    links of one part (mirrors, in order) -> download -> sha256 -> unpack in a scratch folder -> rename into place

A link that fails is named with its reason and the next mirror is tried; only whole, verified files ever reach the
dataset's folder. Files that are there already are left alone, so a second call fetches only what is missing, and an
archive that a person downloaded and placed there is used before any link.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.data.card import DatasetCard, Download
from harness.data.obtain.download import UnusableLink, download, refuse_page
from harness.data.obtain.unpack import CHUNK, archive_kind, check_compressed, unpack
from harness.data.prepare import prepare, raw_folder
from harness.data.sources.repository import missing_message
from harness.errors import DataError, MissingDataError, UserError
from harness.files import locked, sha256_file

_USUAL_FILES = {
    "repository": "trn.json.gz tst.json.gz lbl.json.gz filter_labels_train.txt filter_labels_test.txt",
    "jsonl": "train.jsonl test.jsonl labels.jsonl",
}
_PACKED = re.compile(r"\.(zip|tar|tgz|tbz2|txz|gz|bz2|xz)$")


def fetch(card: DatasetCard, *, keep_archive: bool = False) -> list[Path]:
    """Fetches what is missing of a dataset into `$HARNESS_HOME/data/<name>/`.

    Args:
        card: The dataset; its `downloads` are the links.
        keep_archive: Also keep the archives that were downloaded, beside the files.

    Returns:
        The dataset's files, those that were there already included.

    Raises:
        MissingDataError: No link gave the files; the message says what to place where.
        UserError: There is nothing to fetch, or the disk cannot take the files.
    """
    if card.built_here:
        raise UserError(
            f"nothing to fetch: {card.name} is built on this machine by `python -m harness data prepare {card.name}`"
        )
    folder = raw_folder(card)
    files: list[Path] = []
    before = set(folder.iterdir()) if folder.is_dir() else set()
    with locked(folder):
        for mirrors in _parts(card.downloads):
            files += _fetch_part(card, mirrors, folder, keep_archive)
    if files:
        _verify_counts(card, folder, [file for file in files if file not in before])
    usual = _USUAL_FILES.get(card.source, "").split()
    if not files and _absent(usual, folder):
        raise MissingDataError(how_to_obtain(card))
    return files or [folder / name for name in usual]


def how_to_obtain(card: DatasetCard, failures: Iterable[str] = ()) -> str:
    """Why the links failed, and what a person has to place where."""
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
    """Reads what was fetched and compares rows and labels with the card, since hardly any link has a checksum.

    A link can serve something else today than on the day it was published; what does not fit is removed again.
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


def _parts(downloads: Iterable[Download]) -> Iterator[list[Download]]:
    """Links grouped by what they contain: one group is one part, its members are mirrors."""
    groups: dict[str, list[Download]] = {}
    for link in downloads:
        groups.setdefault(link.contains, []).append(link)
    yield from groups.values()


def _fetch_part(card: DatasetCard, mirrors: list[Download], folder: Path, keep_archive: bool) -> list[Path]:
    wanted = mirrors[0].contains.split()
    failures: list[str] = []
    if wanted and not _absent(wanted, folder):
        return [folder / name for name in wanted]
    for where, link, by_hand in _candidates(mirrors, folder):
        with _scratch(folder) as scratch:
            archive = by_hand or scratch / link.filename
            try:
                if by_hand is None:
                    download(link.url, archive, f"{card.name}: {link.filename}")
                _check_sum(archive, link.sha256)
                files = _opened(archive, link, scratch / "files", wanted)
                for name, file in files.items():
                    _check_sum(file, card.checksums.get(name))
            except (UnusableLink, DataError) as error:
                failures.append(f"{where}: {str(error).removeprefix(f'{archive}: ')}")
                continue
            placed = _placed(files, folder)
            if keep_archive and archive.exists() and by_hand is None:
                archive.replace(folder / link.filename)
        absent = _absent(wanted, folder)
        if not absent:
            return [folder / name for name in wanted] or placed
        failures.append(f"{where}: it has no {', '.join(absent)}")
    raise MissingDataError(how_to_obtain(card, failures))


def _absent(names: Iterable[str], folder: Path) -> list[str]:
    return [name for name in names if not (folder / name).is_file()]


def _candidates(mirrors: list[Download], folder: Path) -> Iterator[tuple[str, Download, Path | None]]:
    """What a person placed in the folder comes before any link."""
    for link in mirrors:
        if (folder / link.filename).is_file():
            yield str(folder / link.filename), link, folder / link.filename
    for link in mirrors:
        yield link.url, link, None


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A temporary folder on the same disk, so that finished files can be renamed into place.

    The caller holds the dataset's lock, so a scratch folder that is found there was left by a killed process.
    """
    prefix = f".{folder.name}="  # no dataset's name has an equals sign
    for stale in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_sum(path: Path, expected: str | None) -> None:
    if expected is not None and (actual := sha256_file(path)) != expected:
        raise UnusableLink(f"{path.name} has sha256 {actual[:16]}..., expected {expected[:16]}...; it was not used")


def _opened(archive: Path, link: Download, scratch: Path, wanted: list[str]) -> dict[str, Path]:
    """The wanted files of a download by name: unpacked if it is an archive, itself if it is a single data file."""
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
        if inner in found and (inner in wanted or not wanted):
            raise UnusableLink(f"two files in it are called {inner}")
        found[inner] = file
    return {inner: file for inner, file in found.items() if inner in wanted or not wanted}


def _placed(files: dict[str, Path], folder: Path) -> list[Path]:
    """Renames finished files into the folder; one that is there already stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        if not (folder / name).exists():
            file.replace(folder / name)
    return [folder / name for name in files]
