"""The part inside pytest: which tests try which case of the fault list, and what they say was done and what happened.

A docstring names the cases (`fault 17`, `faults 3 and 4`, `parity 2`), so `pytest -m faults` runs exactly those tests.
With `--accounts FILE` the outcome of each is written to a file, with what it describes:

    def test_killed_at_a_step(account: Account) -> None:
        '''fault 1'''
        account.did(f"SIGKILL right after step {step} of {STEPS}")
        ...
        account.saw(f"resumed from step {kept}; model and metrics equal bit for bit")

What is described comes from the values of the test itself; a test that fails describes nothing.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

_NAMED = re.compile(r"\b(fault|parity)s? (\d+(?:(?:, and |, | and )\d+)*)", re.IGNORECASE)
_PROPERTY = "account"


def cases_of(docstring: str | None) -> dict[str, list[int]]:
    """Return the numbers of the cases that a docstring names, by list (fault, parity)."""
    found: dict[str, list[int]] = {}
    for kind, numbers in _NAMED.findall(docstring or ""):
        found.setdefault(kind.lower(), []).extend(int(number) for number in re.findall(r"\d+", numbers))
    return found


@dataclass
class Account:
    """Description by a test of what it did and what happened."""

    done: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    simulated_because: str = ""

    def did(self, what: str) -> None:
        """Add a sentence about what was done to the harness."""
        self.done.append(what)

    def saw(self, what: str) -> None:
        """Add a sentence about what happened, with the figures of this very test."""
        self.seen.append(what)

    def simulated(self, because: str) -> None:
        """Say why the fault is simulated: it cannot exist on this machine, so it was raised where it would arrive."""
        self.simulated_because = because


@pytest.fixture
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    """Fixture in which a test of the fault list says what it did and what it saw."""
    described = Account()
    yield described
    request.node.user_properties.append((_PROPERTY, asdict(described)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes the outcome of the tests to a file."""
    parser.addoption("--accounts", type=Path, help="write outcome and account of every test of the fault list")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that names a case, before -m selects tests."""
    for item in items:
        named = cases_of(getattr(getattr(item, "function", None), "__doc__", None))
        if named:
            item.add_marker(pytest.mark.faults)
            item.user_properties.append(("cases", named))


class Book:
    """Collects what the tests of a session describe, in the process that reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the worst outcome of a test's three phases; its account comes with the last."""
        noted = dict(report.user_properties)
        if "cases" not in noted:
            return
        entry = self._tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0, **asdict(Account())})
        entry["seconds"] += report.duration
        if report.outcome != "passed":
            entry["outcome"] = report.outcome
        entry.update({"cases": noted["cases"], **noted.get(_PROPERTY, {})})

    def pytest_sessionfinish(self) -> None:
        """Write all outcomes and accounts as JSON."""
        self._path.write_text(json.dumps(self._tests, indent=1, sort_keys=True), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Register a `Book` in the main process, not in the workers of xdist."""
    path: Path | None = config.getoption("--accounts")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Book(path), "account-book")
