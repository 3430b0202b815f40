"""What a Debian machine knows about its packages, frozen in the workspace the first time somebody asks.

The lists of apt move with every `apt-get update`, and a benchmark must not move under its user. So the package index is
copied once to `data/debian-index/packages/` (the English descriptions to `data/debian-index/descriptions/`), and
datasets are built from those copies; removing the folder takes a fresh one. Local state (installed packages, pins,
language) is kept out: two machines with the same lists make the same copy. Nothing here needs root.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from harness.errors import MissingDataError, UserError
from harness.files import build_once

PACKAGES = "packages.txt"
DESCRIPTIONS = "descriptions.txt"

_INSTEAD = "`lf-pydocstitles` and `lf-pydocs` are built from installed Python libraries and work anywhere."
_HELPER = Path("/usr/lib/apt/apt-helper")
_SECONDS = 300

# the index alone decides: no installed versions, no pins
_INDEX_ONLY = {
    "Dir::State::status": "/dev/null",
    "Dir::Etc::preferences": "/dev/null",
    "Dir::Etc::preferencesparts": "/dev/null",
}
_FIELDS = re.compile(
    rb"^(?:Package|Architecture|Pre-Depends|Depends|Recommends|Suggests|Enhances|Description|Description-md5):"
    rb".*(?:\n[ \t].*)*",
    re.MULTILINE,
)


def packages_snapshot(folder: Path) -> dict[str, Any]:
    """Copies the package index to `folder/packages/` unless it is there; returns the manifest of that copy."""
    return build_once(folder / "packages", _copy_packages)


def descriptions_snapshot(folder: Path) -> dict[str, Any]:
    """Copies the English long descriptions to `folder/descriptions/` unless they are there; returns the manifest."""
    return build_once(folder / "descriptions", _copy_descriptions)


def keep_fields(dump: bytes) -> bytes:
    """An apt dump reduced to the fields that a dataset is made of, stanzas separated by one empty line."""
    stanzas = dump.replace(b"\r\n", b"\n").split(b"\n\n")
    return b"\n\n".join(b"\n".join(_FIELDS.findall(stanza)) for stanza in stanzas if stanza.strip()) + b"\n"


def _copy_packages(folder: Path) -> dict[str, Any]:
    found = _targets("Packages", "$(ORIGIN) $(CODENAME) $(COMPONENT) $(ARCHITECTURE)|$(VERSION)")
    releases = dict(line.rsplit("|", 1) for line in sorted(found))
    dump = _run("apt-cache", {}, "dumpavail") if releases else b""
    if b"Package: " not in dump:
        raise MissingDataError(
            f"apt has no package lists on this machine; run `apt-get update` (as root) and try again. {_INSTEAD}"
        )
    (folder / PACKAGES).write_bytes(keep_fields(dump))
    return {"releases": releases}


def _copy_descriptions(folder: Path) -> dict[str, Any]:
    files, fetched = _translations({}), False
    private = folder / "apt"
    if not files:
        files, fetched = _translations(_fetch_translations(private)), True
    if not files:
        raise MissingDataError(
            "the package archive offers no English descriptions (Translation-en); "
            f"`lf-debiantitles` needs only the package lists. {_INSTEAD}"
        )
    with (folder / DESCRIPTIONS).open("wb") as stream:
        for file in sorted(files):
            stream.write(_run(str(_HELPER), {}, "cat-file", file) + b"\n")
    shutil.rmtree(private, ignore_errors=True)
    return {"fetched": fetched}


def _translations(options: dict[str, str]) -> list[str]:
    lines = _targets("Translations", "$(LANGUAGE) $(FILENAME)", options)
    return [line.removeprefix("en ") for line in lines if line.startswith("en ")]


def _fetch_translations(private: Path) -> dict[str, str]:
    """Downloads the translation index alone into a private folder; returns the options that make apt look there."""
    options = {"Dir::State::Lists": str(private / "lists"), "Dir::Cache": str(private / "cache")}
    for part in ("lists/partial", "cache/archives/partial"):
        (private / part).mkdir(parents=True)
    options |= {
        "Acquire::Languages": "en",
        "Acquire::Retries": "2",
        "Acquire::IndexTargets::deb::Packages::DefaultEnabled": "false",
        # a failed download is otherwise a warning with exit code 0
        "APT::Update::Error-Mode": "any",
        # the download user of apt cannot write into a private folder of root
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
    }
    try:
        _run("apt-get", options, "update")
    except UserError as error:
        raise MissingDataError(
            "the long descriptions are not in the apt lists of this machine, and fetching them failed; try again when "
            f"the package archive can be reached. `lf-debiantitles` needs no download. {error}"
        ) from error
    return options


def _targets(created_by: str, form: str, options: dict[str, str] | None = None) -> list[str]:
    """One line in the given format for each index file of that kind that apt holds."""
    out = _run("apt-get", options or {}, "indextargets", "--format", form, f"Created-By: {created_by}")
    return out.decode("utf-8", "replace").splitlines()


def _run(program: str, options: dict[str, str], *arguments: str) -> bytes:
    """Standard output of an apt program that sees the index only."""
    if shutil.which(program) is None:
        raise MissingDataError(
            f"no {Path(program).name} on this machine; this dataset needs a Debian system. {_INSTEAD}"
        )
    flags = [part for key, value in (_INDEX_ONLY | options).items() for part in ("-o", f"{key}={value}")]
    try:
        result = subprocess.run(
            [program, *flags, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{Path(program).name} {arguments[0]} gave no answer within {_SECONDS} seconds") from error
    if result.returncode:
        said = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
        raise UserError(f"{Path(program).name} {arguments[0]} failed and said: {said[-1]}")
    return result.stdout
