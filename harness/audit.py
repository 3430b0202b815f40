"""Known holes in what the harness depends on, found without a network: `python -m harness.audit`, and `harness doctor`.

`advisories.yaml` lists them. They are compared with the floors in pyproject.toml (what pip may install for somebody
else), the pins in constraints.txt (what it installs here) and what is installed. The list is only as new as this file.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from harness.errors import DataError, UserError
from harness.yaml import read_yaml

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.version import Version

ADVISORIES = Path(__file__).with_name("advisories.yaml")
ROOT = Path(__file__).parents[1]
_BESIDE_A_PIN = re.compile(r"(?:^|\s)(?:#|--?[a-z]|\\$)")
"""Where a comment, an option of pip (a hash, another file) or a line that goes on begins."""


class Advisory(BaseModel):
    """One hole that somebody published."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    package: str
    id: str
    what: str
    fixed: str
    """The first version without it; every lower one is taken to have it."""

    @field_validator("fixed")
    @classmethod
    def _is_a_version(cls, fixed: str) -> str:
        from packaging.version import InvalidVersion, Version

        try:
            return str(Version(fixed))
        except InvalidVersion as error:
            raise ValueError("must be a version in quotes, for example '2.10.0'") from error


@dataclass(frozen=True)
class Hole:
    """A version with a known hole, or one that cannot be compared and may have it."""

    where: str
    """pyproject.toml, constraints.txt or installed."""
    package: str
    version: str
    """Empty for a floor that is not there."""
    advisory: Advisory

    @property
    def fix(self) -> str:
        """What to do about it."""
        wanted = f"{self.package}>={self.advisory.fixed}"
        if self.where == "installed":
            return f"pip install --upgrade '{wanted}'"
        return f"raise it in {self.where}, then make setup" if self.version else f"write '{wanted}' in {self.where}"

    @property
    def told(self) -> str:
        """Where it is and which version; one that is no version is called so."""
        version = self.version or "without a lowest version"
        unclear = " (no version, so it may have every hole)" if self.version and _version(self.version) is None else ""
        return f"{self.where}: {self.package} {version}{unclear}"

    def __str__(self) -> str:
        return f"{self.told}: {self.advisory.id}, {self.advisory.what}; {self.fix}"


def read_advisories(path: Path = ADVISORIES) -> list[Advisory]:
    """The list; a fault in it is a `DataError`."""
    entries = read_yaml(path).get("advisories")
    if not isinstance(entries, list) or not entries:
        raise DataError("expected a list called advisories", path)
    try:
        return [Advisory.model_validate(entry) for entry in entries]
    except ValidationError as error:
        fault = error.errors()[0]
        raise DataError(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']} (got {fault['input']!r})", path) from error


def known_holes(advisories: list[Advisory], root: Path = ROOT) -> list[Hole]:
    """Everything with a hole: floors and pins of the project in `root`, where there is one, and what is installed."""
    from packaging.version import Version

    by_package: dict[str, list[Advisory]] = {}
    for one in advisories:
        by_package.setdefault(_plain(one.package), []).append(one)
    found = []
    pins = list(_pins(root))
    # beside what is pinned, an environment may hold anything: its tools, other people's projects
    ours = {_plain(package) for _, package, _ in pins} or by_package.keys()
    installed = [one for one in _installed() if _plain(one[1]) in ours]
    for where, package, version in (*_floors(root), *pins, *installed):
        for one in by_package.get(_plain(package), []):
            lowest = _version(version)
            if lowest is None or lowest < Version(one.fixed):
                found.append(Hole(where, package, version, one))
    return found


def _plain(package: str) -> str:
    """A name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _version(text: str) -> "Version | None":
    """The lowest version that a text stands for, `2.*` for 2; None for what is no version."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text.removesuffix(".*"))
    except InvalidVersion:
        return None


def _floors(root: Path) -> Iterator[tuple[str, str, str]]:
    """Place, package and lowest version of every requirement; an empty version if none is given."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return
    try:
        values = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"not valid TOML ({error})", path) from error
    try:
        project = values.get("project", {})
        lines = [*values.get("build-system", {}).get("requires", []), *project.get("dependencies", [])]
        lines += [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
        lines = list(dict.fromkeys(lines))
    except (AttributeError, TypeError) as error:
        raise DataError("its requirements are not lists of text", path) from error
    for line in lines:
        requirement = _requirement(line, path)
        yield path.name, requirement.name, _lowest(requirement)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError("not UTF-8 text", path) from error


def _requirement(text: object, path: Path, line: int | None = None) -> "Requirement":
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text if isinstance(text, str) else "")
    except InvalidRequirement as error:
        raise DataError(f"{text!r} is no requirement, for example 'numpy>=2.1'", path, line) from error


def _lowest(requirement: "Requirement") -> str:
    from packaging.version import Version

    lower = [one.version for one in requirement.specifier if one.operator in (">=", "==", "===", "~=", ">")]
    return max(lower, key=lambda text: _version(text) or Version("0"), default="")


def _pins(root: Path) -> Iterator[tuple[str, str, str]]:
    path = root / "constraints.txt"
    for number, line in enumerate(_text(path).splitlines() if path.is_file() else (), 1):
        text = _BESIDE_A_PIN.split(line, maxsplit=1)[0].strip()
        requirement = _requirement(text, path, number) if text else None
        if requirement and any(one.operator in ("==", "===") for one in requirement.specifier):
            yield path.name, requirement.name, _lowest(requirement)


def _installed() -> Iterator[tuple[str, str, str]]:
    for found in distributions():
        if found.name:
            yield "installed", found.name, found.version or "unknown"  # None where the metadata is damaged


def main() -> int:
    """Prints every hole with its fix; the exit code is 1 if there is one, 2 if a file is broken."""
    try:
        advisories = read_advisories()
        holes = known_holes(advisories)
    except UserError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    for hole in holes:
        print(hole, file=sys.stderr)  # noqa: T201
    print(f"{len(advisories)} known holes looked for: {len(holes)} found")  # noqa: T201
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
