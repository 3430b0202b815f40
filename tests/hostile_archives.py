"""Archives made to do harm, each with every file that is wanted from it, and the word with which it is refused."""

import bz2
import gzip
import io
import stat
import tarfile
import zipfile

from tests.loopback import FILES

MEMBER = 4_000_000
COPIES = 26
"""104 MB come out, which is beyond what any ratio is accepted for."""

_OUTSIDE = {"../x": ("../../escaped", "leaves the folder"), "absolute path": ("/escaped", "not a relative path")}
_LINK = "is a link or a device"


def hostile_archives(form: str) -> dict[str, tuple[bytes, str]]:
    """Name of the harm -> (archive, reason of the refusal), as zip, tar or single gzip file."""
    return {"zip": _zips, "tar": _tars, "gzip": _gzips}[form]()


def _zips() -> dict[str, tuple[bytes, str]]:
    modes = {"symlink": stat.S_IFLNK, "device": stat.S_IFCHR, "block device": stat.S_IFBLK}
    made = {what: (_zip(name), reason) for what, (name, reason) in _OUTSIDE.items()}
    made |= {what: (_zip("escaped", mode), _LINK) for what, mode in modes.items()}
    return made | {"10,000x bomb": (_zip_bomb(), "expands more than 1,000 times")}


def _zip(name: str, mode: int = 0) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for wanted, data in FILES.items():
            archive.writestr(wanted, data)
        entry = zipfile.ZipInfo(name)
        entry.create_system, entry.external_attr = 3, (mode | 0o777) << 16 if mode else 0
        archive.writestr(entry, "/etc/passwd")
    return stream.getvalue()


def _zip_bomb() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_BZIP2) as archive:
        with archive.open("zeros", "w") as target:
            for _ in range(COPIES):
                target.write(bytes(MEMBER))
    assert len(stream.getvalue()) * 10_000 < MEMBER * COPIES
    return stream.getvalue()


def _tars() -> dict[str, tuple[bytes, str]]:
    kinds = {
        "symlink": (tarfile.SYMTYPE, "/etc/passwd"),
        "hard link": (tarfile.LNKTYPE, "/etc/passwd"),
        "device": (tarfile.CHRTYPE, ""),
        "block device": (tarfile.BLKTYPE, ""),
        "pipe": (tarfile.FIFOTYPE, ""),
    }
    made = {what: (_tar(name), reason) for what, (name, reason) in _OUTSIDE.items()}
    made["../x in pax"] = (_tar("harmless", pax={"path": "../../escaped"}), "leaves the folder")
    made |= {what: (_tar("escaped", kind, link), _LINK) for what, (kind, link) in kinds.items()}
    return made | {"10,000x bomb": (_tar_bomb(), "expands more than 1,000 times")}


def _tar(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", pax: dict[str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for wanted, data in FILES.items():
            member = tarfile.TarInfo(wanted)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.pax_headers = kind, link, pax or {}
        archive.addfile(member)
    return stream.getvalue()


def _tar_bomb() -> bytes:
    header = tarfile.TarInfo("zeros")
    header.size = MEMBER * COPIES
    # streams of bzip2 that follow on one another are one, so one of them is compressed and repeated
    bomb = bz2.compress(header.tobuf()) + bz2.compress(bytes(MEMBER)) * COPIES + bz2.compress(bytes(10_240))
    assert len(bomb) * 10_000 < MEMBER * COPIES
    return bomb


def _gzips() -> dict[str, tuple[bytes, str]]:
    bomb = gzip.compress(b"\n" * MEMBER) * COPIES
    return {name: (bomb, "expands more than 1,000 times") for name in ("trn.json.gz", "trn.json")}
