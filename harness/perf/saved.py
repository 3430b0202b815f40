"""Measured speed on disk: suites with their rows, and the machine, commit and day each was measured on.

    {"schema": 1, "suites": {"training": {"about", "machine", "commit", "dirty", "measured", "seconds", "rows": [...]}}}

`reports/speed.json` is such a file. Suites are measured one by one: a new measurement replaces its own suite and leaves
the others as they are. Reports read this file, so nothing here imports torch.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.data.card import describe_faults
from harness.errors import DataError
from harness.files import read_json, write_json
from harness.perf import SUITES, Row, Sample, Target
from harness.repro import environment

SPEED = "speed.json"
"""The file in a folder of reports."""
SCHEMA: Literal[1] = 1
_CACHES = Path("sys/devices/system/cpu/cpu0/cache")


def _whole(text: str) -> str:
    text.encode()  # half a surrogate pair has no UTF-8 form, and no report could hold it
    return text


_Text = Annotated[str, AfterValidator(_whole)]
_SuiteName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)


class SavedSample(_Strict):
    """A `harness.perf.Sample`."""

    values: Annotated[list[float], Field(min_length=1)]
    unit: Annotated[_Text, Field(max_length=24)] = ""

    @property
    def sample(self) -> Sample:
        """As suites make it."""
        return Sample(tuple(self.values), self.unit)


class SavedTarget(_Strict):
    """A `harness.perf.Target`."""

    way: Literal["at least", "at most"]
    value: float
    of: Literal["ratio", "ours"]


class SavedRow(_Strict):
    """A `harness.perf.Row`, without the name of its suite."""

    what: _Text
    size: _Text
    reference: _Text
    ours: SavedSample
    theirs: SavedSample | None
    ratio: SavedSample | None
    target: SavedTarget | None
    detail: _Text = ""
    at: dict[_Text, float | _Text] = {}

    @model_validator(mode="after")
    def _holds_together(self) -> "SavedRow":
        if (self.theirs is None) != (self.ratio is None):
            raise ValueError("a row has both a reference's figure and a ratio, or neither")
        if self.theirs is not None and self.theirs.unit != self.ours.unit:
            raise ValueError(f"ours is in {self.ours.unit!r}, the reference in {self.theirs.unit!r}")
        if self.target is not None and self.target.of == "ratio" and self.ratio is None:
            raise ValueError("the target is one of a ratio, but there is none")
        return self

    @classmethod
    def of(cls, row: Row) -> "SavedRow":
        """What is kept of a row; a figure that is not finite raises `ValidationError`."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(row)))
        del values["suite"]
        return cls.model_validate(values)

    def row(self, suite: str) -> Row:
        """As the suite made it."""
        target = None if self.target is None else Target(self.target.way, self.target.value, self.target.of)
        theirs, ratio = (None if one is None else one.sample for one in (self.theirs, self.ratio))
        words = (self.what, self.size, self.reference)
        return Row(*words, self.ours.sample, theirs, ratio, target, self.detail, dict(self.at), suite)


class Machine(_Strict):
    """What was measured on."""

    cpu: _Text
    cores: Annotated[int, Field(ge=1)]
    memory_gib: float | None = None
    caches: dict[_Text, _Text] = {}
    """Sizes by level, as the system says them."""
    packages: dict[_Text, _Text] = {}

    @classmethod
    def here(cls, root: Path = Path("/")) -> "Machine":
        """This one.

        Args:
            root: Where `sys` is.
        """
        facts = environment("cpu")
        memory, packages = facts["memory_gib"], {"python": facts["python"], **facts["packages"]}
        caches = _caches(root / _CACHES)
        return cls(cpu=facts["cpu"], cores=facts["cores"], memory_gib=memory, caches=caches, packages=packages)


def _caches(folder: Path) -> dict[str, str]:
    """Sizes of the first core's caches by level; nothing where the system does not say."""
    found = {}
    for index in sorted(folder.glob("index*")):
        try:
            facts = [(index / name).read_text(encoding="ascii").strip() for name in ("level", "type", "size")]
        except (OSError, UnicodeDecodeError):
            continue
        level, kind, size = facts
        found[f"L{level}{'' if kind == 'Unified' else f' {kind.lower()}'}"] = size
    return found


class Origin(_Strict):
    """Where, when and on which code something was measured in one go."""

    machine: Machine
    commit: _Text | None
    dirty: bool | None
    """Whether the code had changes that are in no commit."""
    measured: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    """Day, UTC."""
    seconds: Annotated[float, Field(ge=0)]

    @staticmethod
    def here(seconds: float) -> dict[str, Any]:
        """The fields above for what has just taken so many seconds."""
        facts = environment("cpu")["git"]
        return {
            "machine": Machine.here(),
            "commit": facts["commit"],
            "dirty": facts["dirty"],
            "measured": datetime.now(UTC).date().isoformat(),
            "seconds": round(seconds, 1),
        }


class Suite(Origin):
    """One suite, measured in one go."""

    about: _Text = ""
    """One sentence."""
    rows: list[SavedRow]

    @classmethod
    def of(cls, name: str, rows: Sequence[Row], seconds: float) -> "Suite":
        """A suite that was just measured here."""
        return cls(about=about(name), rows=[SavedRow.of(row) for row in rows], **Origin.here(seconds))


class Speed(_Strict):
    """All suites that were measured."""

    version: Annotated[Literal[1], Field(alias="schema")] = SCHEMA
    suites: dict[_SuiteName, Suite] = {}

    @property
    def ordered(self) -> dict[str, Suite]:
        """Suites in the order in which they are measured; those of another version of the code behind them."""
        known = [name for name in SUITES if name in self.suites]
        return {name: self.suites[name] for name in [*known, *sorted(set(self.suites) - set(known))]}

    @property
    def rows(self) -> list[Row]:
        """All rows, suite by suite."""
        return [row.row(name) for name, suite in self.ordered.items() for row in suite.rows]

    def updated(self, suites: Mapping[str, Suite]) -> "Speed":
        """With these suites in place of those of the same names."""
        return Speed(suites={**self.suites, **suites})

    def as_json(self) -> dict[str, Any]:
        """For a file, or for a program."""
        return self.model_dump(mode="json", by_alias=True)


def about(suite: str) -> str:
    """The first sentence of a suite's docstring, read without importing it; empty if there is no such suite."""
    spec = find_spec(f"harness.perf.{suite}")
    if spec is None or spec.origin is None:
        return ""
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0].strip()


def read_speed(path: Path) -> Speed | None:
    """A file of measurements; None if there is none, `DataError` with everything that is wrong in it."""
    if not path.is_file():
        return None
    values = read_json(path)
    if isinstance(values, dict) and values.get("schema") != SCHEMA:
        raise DataError(f"schema {values.get('schema')!r}, this harness reads {SCHEMA}; measure anew", path)
    try:
        return Speed.model_validate(values)
    except ValidationError as error:
        faults = describe_faults(error, str(path), Speed)
        more = [f"and {len(faults) - 10} more"] if len(faults) > 10 else []
        raise DataError("\n".join([*faults[:10], *more])) from error


def write_speed(path: Path, speed: Speed) -> None:
    """Writes the file whole, or not at all."""
    write_json(path, speed.as_json())
