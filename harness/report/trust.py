"""What was tried on purpose, and what happened: `trust.json` -> trust.md.

    trust.json   {"schema": 1, "faults": {...}, "soak": {...}, "fuzz": {...}}, each with machine, commit and day

`make faults`, `make soak` and `make fuzz` write their own part and leave the others as they are. Nothing is tried here.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.data.card import describe_faults
from harness.errors import DataError
from harness.files import read_json, write_json
from harness.perf.saved import Origin
from harness.progress import clock
from harness.report.cells import Cell, Table
from harness.report.tables import as_markdown, markdown_text

TRUST, PAGE = "trust.json", "trust.md"
"""The file of a folder of reports, and the page that is made from it."""
TITLE = "# Trust"
SCHEMA: Literal[1] = 1
_LISTS = {"fault": "The fault list", "parity": "Numbers that have to agree"}
Count = Annotated[int, Field(ge=0)]


class _Part(Origin):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Case(BaseModel):
    """One case of a list, with all tests that try it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["fault", "parity"]
    number: Annotated[int, Field(ge=1)]
    title: str
    tests: Count
    passed: Count
    done: list[str] = []
    """What was done to the harness, as the tests tell it."""
    seen: list[str] = []
    """What happened."""
    simulated: str = ""
    """Why the fault could not be a real one; empty where it was."""

    @property
    def verdict(self) -> str:
        """`holds`, `holds (simulated)`, `FAILS` or `NOT TRIED`."""
        if not self.tests or not (self.done and self.seen):
            return "NOT TRIED" if self.passed == self.tests else "FAILS"
        if self.passed < self.tests:
            return "FAILS"
        return "holds (simulated)" if self.simulated else "holds"

    @property
    def holds(self) -> bool:
        """Whether the harness kept its promise."""
        return self.verdict.startswith("holds")


class Faults(_Part):
    """The fault list, tried once."""

    cases: list[Case]


class Soak(_Part):
    """Trainings that were killed and taken up."""

    asked: Count
    cycles: Count
    equal: Count
    kills: Count
    moments: dict[str, Count]
    """Kills by what the process was at."""
    variants: dict[str, Count]
    """Cycles by what was trained."""
    wrong: list[str]
    seed: int


class FuzzTarget(BaseModel):
    """One loader that was fed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    inputs: Count
    findings: Count


class Fuzz(_Part):
    """Hostile input to every parser and loader."""

    engine: str
    minutes: Annotated[float, Field(ge=0)]
    targets: dict[str, FuzzTarget]


class Trust(BaseModel):
    """All that was tried."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    version: Annotated[Literal[1], Field(alias="schema")] = SCHEMA
    faults: Faults | None = None
    soak: Soak | None = None
    fuzz: Fuzz | None = None


def read_trust(path: Path) -> Trust | None:
    """A file of what was tried; None if there is none, `DataError` with what is wrong in it."""
    if not path.is_file():
        return None
    try:
        return Trust.model_validate(read_json(path))
    except ValidationError as error:
        raise DataError("\n".join(describe_faults(error, str(path), Trust)[:10])) from error


def write_part(folder: Path, name: Literal["faults", "soak", "fuzz"], part: Faults | Soak | Fuzz) -> Trust:
    """Replaces one part of a folder's file and makes the page anew."""
    trust = (read_trust(folder / TRUST) or Trust()).model_copy(update={name: part})
    write_json(folder / TRUST, trust.model_dump(mode="json", by_alias=True))
    for page, content in trust_files(trust).items():
        (folder / page).write_bytes(content)
    return trust


def trust_files(trust: Trust) -> dict[str, bytes]:
    """Everything that is made from the file, by path in the folder of reports."""
    return {PAGE: "\n".join(_page(trust)).encode()}


def case_tables(faults: Faults) -> list[Table]:
    """One table a list: case, what was done, what happened, verdict."""
    tables = []
    for kind, title in _LISTS.items():
        cases = [case for case in faults.cases if case.kind == kind]
        if cases:
            rows = tuple(_row(case) for case in cases)
            columns = ("case", "promise", "what was done", "what happened", "tests", "verdict")
            tables.append(Table(title, columns, rows, _counted(cases), words=4, id=f"trust-{kind}"))
    return tables


def _row(case: Case) -> tuple[Cell, ...]:
    simulated = f" Simulated: {case.simulated}." if case.simulated else ""
    words = (str(case.number), case.title, _sentences(case.done) + simulated, _sentences(case.seen))
    tests = str(case.tests) if case.passed == case.tests else f"{case.passed} of {case.tests}"
    return (*map(Cell, words), Cell(tests), Cell(case.verdict, best=not case.holds))


def _sentences(told: Sequence[str]) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:]}".rstrip(".") + "." for text in told)


def _counted(cases: Sequence[Case]) -> str:
    held, tests = sum(case.holds for case in cases), sum(case.tests for case in cases)
    simulated = sum(bool(case.simulated) for case in cases)
    also = f", {simulated} of them simulated, the reason beside it" if simulated else ""
    return f"{held} of {len(cases)} cases hold{also}; {tests:,} tests, a test of several cases counted in each."


def _page(trust: Trust) -> Iterator[str]:
    yield TITLE
    yield ""
    yield (
        "What was done to the harness on purpose, and what it did. Each line is told by the tests themselves, from "
        "what they observed. Made from [trust.json](trust.json); `make faults`, `make soak` and `make fuzz` try it "
        "again."
    )
    yield ""
    for name, lines in (("faults", _faults), ("soak", _soak), ("fuzz", _fuzz)):
        part: Any = getattr(trust, name)
        yield from [f"Not tried in this folder: `make {name}`.", ""] if part is None else lines(part)


def _faults(part: Faults) -> Iterator[str]:
    yield f"{_origin(part)}\n"
    for table in case_tables(part):
        yield as_markdown(table)


def _soak(part: Soak) -> Iterator[str]:
    yield "## Kill and resume\n"
    yield (
        f"{part.equal:,} of {part.asked:,} trainings that were killed with SIGKILL at random moments and taken up "
        f"again ended with the weights, predictions and metrics of an undisturbed run, bit for bit; "
        f"{part.kills:,} kills in {clock(part.seconds)}, seed {part.seed}. {_origin(part)}\n"
    )
    yield from _pairs(("killed while", "kills"), part.moments)
    yield from _pairs(("trained", "cycles"), part.variants)
    for line in part.wrong:
        yield f"- {markdown_text(line)}"


def _fuzz(part: Fuzz) -> Iterator[str]:
    tried, found = (sum(getattr(one, name) for one in part.targets.values()) for name in ("inputs", "findings"))
    yield "## Hostile input\n"
    yield (
        f"{tried:,} inputs to {len(part.targets)} parsers and loaders in {part.minutes:g} minutes ({part.engine}): "
        f"{found} findings. {_origin(part)}\n"
    )
    yield from _pairs(("reads", "inputs"), {name: one.inputs for name, one in part.targets.items()})


def _pairs(head: tuple[str, str], counts: dict[str, int]) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---:|"
    for name, count in counts.items():
        yield f"| {markdown_text(name)} | {count:,} |"
    yield ""


def _origin(part: Origin) -> str:
    from harness.report.speed import origin_text  # not at the top: its figures need the evidence that this is part of

    return markdown_text(origin_text(part))
