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

from harness.errors import DataError
from harness.yaml import read_yaml

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ADVISORIES = Path(__file__).with_name("advisories.yaml")
ROOT = Path(__file__).parents[1]


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
    """A version with a known hole."""

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

    def __str__(self) -> str:
        version = self.version or "without a lowest version"
        return f"{self.where}: {self.package} {version}: {self.advisory.id}, {self.advisory.what}; {self.fix}"


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
            if not version or Version(version) < Version(one.fixed):
                found.append(Hole(where, package, version, one))
    return found


def _plain(package: str) -> str:
    """A name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _floors(root: Path) -> Iterator[tuple[str, str, str]]:
    """Place, package and lowest version of every requirement; an empty version if none is given."""
    from packaging.requirements import Requirement

    path = root / "pyproject.toml"
    if not path.is_file():
        return
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    project = values.get("project", {})
    lines = [*values.get("build-system", {}).get("requires", []), *project.get("dependencies", [])]
    lines += [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
    for line in dict.fromkeys(lines):
        requirement = Requirement(line)
        yield path.name, requirement.name, _lowest(requirement)


def _lowest(requirement: "Requirement") -> str:
    from packaging.version import Version

    versions = [one.version for one in requirement.specifier if one.operator in (">=", "==", "~=", ">")]
    return max(versions, key=Version, default="")


def _pins(root: Path) -> Iterator[tuple[str, str, str]]:
    path = root / "constraints.txt"
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        package, pinned, version = line.partition("#")[0].partition("==")
        if pinned:
            yield path.name, package.strip(), version.strip()


def _installed() -> Iterator[tuple[str, str, str]]:
    for found in distributions():
        if found.name:
            yield "installed", found.name, found.version


def main() -> int:
    """Prints every hole with its fix; the exit code is 1 if there is one."""
    advisories = read_advisories()
    holes = known_holes(advisories)
    for hole in holes:
        print(hole, file=sys.stderr)  # noqa: T201
    print(f"{len(advisories)} known holes looked for: {len(holes)} found")  # noqa: T201
    return 1 if holes else 0


if __name__ == "__main__":
    sys.exit(main())
