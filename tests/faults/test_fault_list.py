"""Every case of the fault list has a test that describes it, and reports/faults.md says what the tests observed."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults import fuzz, page, soak
from tests.faults.accounts import cases_of
from tests.faults.cases import FAULTS, PARITY
from tests.faults.engine import Outcome
from tests.faults.faults import Case, cases, section

ROOT = Path(__file__).parents[2]


_TEST = re.compile(r'^def test_\w+\(([^()]*)\)(?: -> None)?:\n    """(.*?)"""', re.MULTILINE | re.DOTALL)
"""Arguments and docstring of a test."""


def test_every_case_is_covered_by_a_test_that_describes_it() -> None:
    covered: dict[tuple[str, int], bool] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for arguments, docstring in _TEST.findall(path.read_text(encoding="utf-8")):
            for case in [(kind, number) for kind, numbers in cases_of(docstring).items() for number in numbers]:
                covered[case] = covered.get(case, False) or re.search(r"\baccount\b", arguments) is not None
    promised = {("fault", number) for number in FAULTS} | {("parity", number) for number in PARITY}
    assert set(FAULTS) == set(range(1, 71))
    assert covered.keys() == promised
    assert [case for case, described in covered.items() if not described] == []


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("fault 17", {"fault": [17]}),
        ("Fault 5, second half", {"fault": [5]}),
        ("faults 43, 44 and 45", {"fault": [43, 44, 45]}),
        ("Text.\n\nfaults 1, 5, 6, and 70: more", {"fault": [1, 5, 6, 70]}),
        ("parity 3, and fault 57: both", {"parity": [3], "fault": [57]}),
        ("default 17", {}),
        (None, {}),
    ],
)
def test_docstrings_name_cases(docstring: str | None, expected: dict[str, list[int]]) -> None:
    assert cases_of(docstring) == expected


SAMPLE = '''
import pytest

def test_tells(account):
    """fault 3"""
    account.did("pulled the plug")
    account.saw(f"{1 + 1} of 2 came back")

def test_fails(account):
    """faults 3 and 4"""
    account.did("lied")
    account.saw("nothing")
    assert False

@pytest.mark.parametrize("number", [1, 2])
def test_simulates(number, account):
    """fault 5"""
    account.simulated("no device")
    account.did("raised it")
    account.saw(f"{number} caught")

@pytest.fixture
def broken():
    yield
    raise RuntimeError

def test_breaks_behind(broken, account):
    """fault 6"""
    account.did("a")
    account.saw("b")

def test_names_no_case():
    assert False
'''


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the tests of a small file described, in a process of its own."""
    folder = tmp_path_factory.mktemp("described")
    (folder / "test_sample.py").write_text(SAMPLE)
    options = ["-q", "-m", "faults", "-p", "tests.faults.accounts", "--accounts", str(folder / "book.json")]
    command = [sys.executable, "-m", "pytest", *options, "-c", "/dev/null", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    book: dict[str, Any] = json.loads((folder / "book.json").read_text())
    return book


def test_accounts_come_from_the_tests_that_name_a_case(described: dict[str, Any]) -> None:
    assert {name.rpartition("::")[2] for name in described} == {
        *("test_tells", "test_fails", "test_simulates[1]", "test_simulates[2]", "test_breaks_behind"),
    }
    found = {case.number: case for case in cases(described) if case.kind == "fault"}
    assert [found[number].verdict for number in (3, 4, 5, 6, 7)] == [
        *("FAILS", "FAILS", "holds (simulated)", "FAILS", "NOT TRIED"),
    ]
    assert (found[3].done, found[3].seen) == (["pulled the plug"], ["2 of 2 came back"])
    assert (found[3].passed, found[3].tests) == (1, 2)
    assert (found[5].done, found[5].seen, found[5].simulated) == (["raised it"], ["1 caught", "2 caught"], "no device")
    assert found[4].done == found[6].done == []


def test_a_case_that_no_test_describes_does_not_hold() -> None:
    assert Case("fault", 1, "t", tests=3, passed=3, done=[], seen=[]).verdict == "NOT TRIED"


def test_sections_are_kept_beside_each_other(tmp_path: Path) -> None:
    file = tmp_path / "faults.md"
    case = Case("fault", 64, "<b>|", tests=2, passed=2, done=["<script>"], seen=["a | b"])
    counts = {"asked": 2, "equal": 1, "kills": 3, "moments": {"mining": 3}, "variants": {"x": 2}, "seed": 0}
    page.write_section(page.FAULT_LIST, section([case], 12.5), file)
    page.write_section(page.KILL_AND_RESUME, soak.section({**counts, "wrong": ["cycle 1: <i>"]}, 12.5), file)
    assert "Not run yet: `make fuzz`" in file.read_text()
    outcomes = {"json": Outcome(inputs=5, findings=0)}
    page.write_section(page.HOSTILE_INPUT, fuzz.section(outcomes, "mutations", 0.5, 12.5), file)
    text = file.read_text()
    assert list(page.read_sections(file)) == [page.FAULT_LIST, page.KILL_AND_RESUME, page.HOSTILE_INPUT]
    expected = ("1 of 1 cases hold", "1 of 2 trainings", "5 inputs to 1 parsers")
    assert [part for part in expected if part not in text] == []
    assert [part for part in ("<script>", "<i>", "a | b", "Not run yet") if part in text] == []


def test_what_is_committed_holds() -> None:
    """Every case, every killed training and every reader was tried, and none is left open."""
    sections = page.read_sections()
    lines = sections[page.FAULT_LIST].splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith(("| fault ", "| parity "))]
    promised = [f"| {kind} {number}" for kind, cases in (("fault", FAULTS), ("parity", PARITY)) for number in cases]
    assert [row[0] for row in rows] == promised
    assert [row[0] for row in rows if not row[-1].startswith("holds")] == []
    equal, asked = re.findall(r"^([\d,]+) of ([\d,]+) trainings", sections[page.KILL_AND_RESUME])[0]
    assert equal == asked
    assert ": 0 findings" in sections[page.HOSTILE_INPUT]


@pytest.mark.usefixtures("one_thread")
def test_a_cycle_is_killed_and_ends_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And other results are found: a soak that could not fail would prove nothing."""
    monkeypatch.setattr(soak, "VARIANTS", {"unidec": soak.VARIANTS["unidec"]})
    counts = soak.summary(list(soak.soak(1, minutes=5, seed=1, workers=1, folder=tmp_path)), asked=1, seed=1)
    assert counts["equal"] == 1, counts
    assert sum(counts["moments"].values()) == counts["kills"] >= 1
    other = soak.cycle(1, 1, tmp_path, {"unidec": soak.Result("of another run", 1.0)}, math.inf)
    assert other is not None
    assert other.wrong
    assert not other.equal
