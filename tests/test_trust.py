"""The fault list as evidence: every case has a test that tells it, and the page says what the tests said."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import DataError
from harness.perf.saved import Origin
from harness.report.evidence import read_evidence
from harness.report.trust import TRUST, Case, Faults, Fuzz, Soak, read_trust, trust_files, write_part
from tests.trust import soak
from tests.trust.accounts import cases_of
from tests.trust.cases import FAULTS, PARITY
from tests.trust.faults import gathered
from tests.trust.targets import TARGETS

ROOT = Path(__file__).parents[1]


def named_tests() -> dict[tuple[str, int], list[tuple[str, bool]]]:
    """Tests of this folder by the cases that their docstrings name, and whether they take an account."""
    found: dict[tuple[str, int], list[tuple[str, bool]]] = {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                tells = "account" in [argument.arg for argument in node.args.args]
                for kind, numbers in cases_of(ast.get_docstring(node)).items():
                    for number in numbers:
                        found.setdefault((kind, number), []).append((f"{path.name}::{node.name}", tells))
    return found


def test_every_case_is_tried_by_a_test_that_tells_it() -> None:
    promised = {("fault", number) for number in FAULTS} | {("parity", number) for number in PARITY}
    tried = named_tests()
    assert set(FAULTS) == set(range(1, 71))
    assert tried.keys() == promised
    assert [case for case, tests in tried.items() if not any(tells for _, tells in tests)] == []


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
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the tests of a small file told, run by two workers."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "test_sample.py").write_text(SAMPLE)
    options = ["-q", "-m", "faults", "-n", "2", "-p", "tests.trust.accounts", "--accounts", str(folder / "book.json")]
    command = [sys.executable, "-m", "pytest", *options, "-c", "/dev/null", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    book: dict[str, Any] = json.loads((folder / "book.json").read_text())
    return book


def test_accounts_come_from_the_tests_that_name_a_case(told: dict[str, Any]) -> None:
    assert {name.rpartition("::")[2] for name in told} == {
        *("test_tells", "test_fails", "test_simulates[1]", "test_simulates[2]", "test_breaks_behind"),
    }
    cases = {case.number: case for case in gathered(told) if case.kind == "fault"}
    assert [cases[number].verdict for number in (3, 4, 5, 6, 7)] == [
        *("FAILS", "FAILS", "holds (simulated)", "FAILS", "NOT TRIED"),
    ]
    assert (cases[3].done, cases[3].seen) == (["pulled the plug"], ["2 of 2 came back"])
    assert (cases[3].passed, cases[3].tests) == (1, 2)
    assert (cases[5].done, cases[5].seen, cases[5].simulated) == (["raised it"], ["1 caught", "2 caught"], "no device")
    assert cases[4].done == cases[6].done == []


def test_a_case_that_nobody_tells_does_not_hold() -> None:
    silent = Case(kind="fault", number=1, title="t", tests=3, passed=3)
    assert (silent.verdict, silent.holds) == ("NOT TRIED", False)


def parts() -> tuple[Faults, Soak, Fuzz]:
    """One of each, with names that are none of a page's business."""
    origin = Origin.here(12.5)
    case = {"kind": "fault", "number": 64, "title": "<b>|", "tests": 2, "passed": 2}
    faults = Faults(cases=[Case(**case, done=["<script>"], seen=["a | b"])], **origin)
    counts = {"asked": 2, "cycles": 2, "equal": 1, "kills": 3, "moments": {"mining": 3}, "variants": {"x": 2}}
    soaked = Soak(**counts, wrong=["cycle 1: <i>"], seed=0, **origin)
    fuzzed = Fuzz(engine="mutations", minutes=0.5, targets={"json": {"inputs": 5, "findings": 0}}, **origin)
    return faults, soaked, fuzzed


def test_parts_are_kept_beside_each_other_and_shown(tmp_path: Path) -> None:
    faults, soaked, fuzzed = parts()
    (tmp_path / "reports").mkdir()
    assert read_trust(tmp_path / "reports" / TRUST) is None
    write_part(tmp_path / "reports", "faults", faults)
    write_part(tmp_path / "reports", "soak", soaked)
    trust = write_part(tmp_path / "reports", "fuzz", fuzzed)
    page = (tmp_path / "reports" / "trust.md").read_text()
    assert read_trust(tmp_path / "reports" / TRUST) == trust
    assert trust_files(trust)["trust.md"].decode() == page
    assert "1 of 2 trainings" in page
    assert "5 inputs to 1 parsers and loaders" in page
    assert "<script>" not in page
    assert "<i>" not in page
    assert "Not tried" not in page
    assert (
        "Not tried in this folder: `make soak`"
        in trust_files(trust.model_copy(update={"soak": None}))["trust.md"].decode()
    )


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / TRUST).write_text('{"schema": 1, "soak": {"cycles": -1}}')
    with pytest.raises(DataError, match=r"trust\.json.*soak"):
        read_evidence(tmp_path)


def test_what_is_committed_holds() -> None:
    """Every case, every killed training and every reader was tried, and none is left open."""
    trust = read_trust(ROOT / "reports" / TRUST)
    assert trust is not None
    assert trust.faults is not None
    assert [(case.kind, case.number, case.title) for case in trust.faults.cases] == [
        *(("fault", number, title) for number, title in FAULTS.items()),
        *(("parity", number, title) for number, title in PARITY.items()),
    ]
    assert [case.number for case in trust.faults.cases if not case.holds] == []
    assert trust.soak is not None
    assert (trust.soak.equal, trust.soak.cycles, trust.soak.wrong) == (trust.soak.asked, trust.soak.asked, [])
    assert trust.fuzz is not None
    assert trust.fuzz.targets.keys() == TARGETS.keys()
    assert [name for name, target in trust.fuzz.targets.items() if target.findings] == []


@pytest.mark.usefixtures("one_thread")
def test_a_cycle_is_killed_and_ends_as_if_it_had_not_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "VARIANTS", {"unidec": soak.VARIANTS["unidec"]})
    assert [*soak.soak(2, minutes=5, seed=1, workers=1, folder=tmp_path)][-1] == 2
    counts = soak.summary(soak.told(tmp_path), asked=2, seed=1)
    assert counts["equal"] == 2, counts
    assert sum(counts["moments"].values()) == counts["kills"] >= 2


@pytest.mark.usefixtures("one_thread")
def test_other_results_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A soak that could not fail would prove nothing."""
    monkeypatch.setattr(soak, "VARIANTS", {"unidec": soak.VARIANTS["unidec"]})
    monkeypatch.setattr(soak, "untouched", lambda *_: soak.Result("of another run", 1.0))
    list(soak.soak(1, minutes=5, seed=1, workers=1, folder=tmp_path))
    counts = soak.summary(soak.told(tmp_path), asked=1, seed=1)
    assert (counts["equal"], len(counts["wrong"])) == (0, 1)
