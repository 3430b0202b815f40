"""Claims of the papers against records: tests, verdicts, times, and the file of claims."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.checks import check_claims
from harness.errors import UserError
from harness.report import claims
from harness.report.claims import Claim, Finding, Findings, Outcome, details, read_claims, summary
from harness.report.findings import Gap, gap_table
from harness.report.published import RowResult, as_table
from harness.report.results import Results, machine_of, read_records
from harness.report.tables import as_markdown
from harness.runs.record import RunRecord
from harness.settings.published import published_table
from tests.support.table_runs import DATASET, hard_negative_runs, record

ROOT = Path(__file__).parents[2]
TEST = {"table": "thesis-2.5", "ahead": "unidec", "behind": "unidec-no-hard", "metrics": ["P@1"]}
HALF = {"cheaper": 0.5, "metrics": []}


def claim(*tests: dict[str, Any], **metadata: Any) -> Claim:
    return Claim.model_validate(
        {"claim": "It helps.", "source": "a", "tests": [TEST | one for one in tests], **metadata}
    )


@pytest.mark.parametrize(
    ("ahead", "behind", "verdicts"),
    [
        (0.7, 0.4, {0: "holds"}),
        (0.4, 0.7, {0: "does not hold", 10: "does not hold"}),
        (0.5, 0.52, {0: "undecided", 25: "holds"}),
    ],
)
def test_a_claim_is_decided_by_the_rows(
    ahead: float, behind: float, verdicts: dict[float, str], tmp_path: Path
) -> None:
    """By margins of points that it may be behind."""
    found = Findings(
        hard_negative_runs(tmp_path, ahead, behind, seeds=5), [claim({"margin": margin}) for margin in verdicts]
    )
    assert [one.verdict for one in found.all] == [*verdicts.values()]
    (outcome,) = found.all[0].outcomes
    assert (outcome.dataset, outcome.measure) == (DATASET, "P@1")
    assert outcome.values == pytest.approx((100 * ahead, 100 * behind), abs=6)


def test_the_more_tests_the_stricter(tmp_path: Path) -> None:
    """Holm's correction: a difference that one test would take for real is none among many."""
    found = hard_negative_runs(tmp_path, 0.5, 0.43, seeds=1)
    alone = Findings(found, [claim({})]).all[0].outcomes[0]
    assert alone.p is not None
    assert alone.p < 0.05
    among = Findings(found, [claim(*[{}] * 40)]).all[0].outcomes[0]
    assert among.p == pytest.approx(min(1.0, 40 * alone.p))
    assert among.sign == 0


def test_what_was_not_run_or_has_no_rows_is_not_decided(tmp_path: Path) -> None:
    runs = hard_negative_runs(tmp_path, 0.7, 0.4)
    missing = [claim(lack) for lack in ({"ahead": "nobody"}, {"table": "nothing"}, {"datasets": ["lf-debian"]})]
    without_rows = (record("a", method="unidec-thesis"), record("b", method="unidec-thesis", eta=0))
    found = [*Findings(runs, missing).all, *Findings(Results(without_rows), [claim({})]).all]
    assert [(one.verdict, one.outcomes) for one in found] == [("not run", ())] * 4


def test_an_explanation_of_another_verdict_is_not_shown(tmp_path: Path) -> None:
    found = hard_negative_runs(tmp_path, 0.7, 0.4)
    for explains, shown in (("holds", "Because."), ("undecided", "")):
        (finding,) = Findings(found, [claim({}, explains=explains, why="Because.")]).all
        assert finding.why == shown
        assert ("Because." in as_markdown(summary([finding]))) is bool(shown)


def outcome(sign: int, dataset: str = DATASET) -> Outcome:
    row = RowResult(published_table("thesis-2.5"), (), dataset, {})
    return Outcome(dataset, row, row, "P@1", (1.0, 2.0), 0.5, sign)


def verdict_of(signs: list[int]) -> str:
    return Finding(claim({}), tuple(map(outcome, signs))).verdict


@pytest.mark.parametrize(
    ("signs", "verdict"),
    [
        ([1], "holds"),
        ([1, 0], "holds"),
        ([1, 0, 0], "undecided"),
        ([1] * 9 + [-1], "mixed"),
        ([1, -1, 0, 0, 0], "mixed"),
        ([-1, 0], "does not hold"),
        ([0], "undecided"),
        ([], "not run"),
    ],
)
def test_verdicts(signs: list[int], verdict: str) -> None:
    assert verdict_of(signs) == verdict


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1))
def test_for_and_against_are_judged_alike(signs: list[int]) -> None:
    mirrored = {"holds": "does not hold", "does not hold": "holds"}
    verdict = verdict_of(signs)
    assert verdict_of([-sign for sign in signs]) == mirrored.get(verdict, verdict)


def test_every_test_is_listed(tmp_path: Path) -> None:
    found = Findings(hard_negative_runs(tmp_path, 0.7, 0.4), [claim({}), claim(HALF)]).all
    shown = details(found)
    assert [row[6].text for row in shown.rows] == ["as claimed", "the reverse"]
    assert shown.breaks == (1,)


def test_a_claim_is_shown_dataset_by_dataset() -> None:
    found = (outcome(1, "a"), outcome(0, "a"), outcome(-1, "b"))
    shown = summary([Finding(claim({}), found), Finding(claim({}), found[2:])])
    assert shown.columns[2:-1] == ("a", "b")
    assert [[cell.text for cell in row[1:4]] for row in shown.rows] == [
        ["mixed", "P@1 -1.00†, -1.00", "P@1 -1.00‡"],
        ["does not hold", "", "P@1 -1.00‡"],
    ]
    cost = replace(found[0], measure="training s", values=(50.0, 200.0), p=None, pair="Φ")
    (row,) = summary([Finding(claim({}), (found[0], cost))]).rows
    assert row[2].text == "P@1 -1.00†; training s Φ 0.25 of it", "no test was made of times"


# -- times of trainings


def timed(found: Results, change: Callable[[RunRecord], dict[str, Any]], share: float = 0.5) -> Finding:
    """The claim that hard negatives cost no more than a share, with runs changed one by one."""
    runs = tuple(one.model_copy(update=change(one)) for one in found.records)
    return Findings(replace(found, records=runs), [claim(HALF | {"cheaper": share})]).all[0]


def test_a_share_of_the_training_time(tmp_path: Path) -> None:
    """Both were trained for two hours."""
    runs = hard_negative_runs(tmp_path, 0.5, 0.5)
    findings = [timed(runs, lambda _: {}, share) for share in (1.0, 0.5)]
    assert [one.verdict for one in findings] == ["holds", "does not hold"]
    assert findings[0].outcomes[0].values == (7200.0, 7200.0)


@pytest.mark.parametrize(
    ("device", "old", "measure", "verdict"),
    [
        ("cpu", False, "training, CPU s", "holds"),
        ("cuda", False, "training s", "does not hold"),
        (None, False, "training s", "does not hold"),
        ("cpu", True, "training s", "does not hold"),  # an older record has no processor seconds
    ],
)
def test_on_a_processor_its_own_seconds_count(
    device: str | None, old: bool, measure: str, verdict: str, tmp_path: Path
) -> None:
    """A clock also runs while other work has the machine; beside a GPU the processor only waits."""

    def change(one: RunRecord) -> dict[str, Any]:
        seconds = {} if old else {"processor_seconds": 100.0 if one.run_id.startswith("with-") else 900.0}
        environment = one.environment | {"device": device}
        return {"environment": environment, "training": {"seconds": 7200.0, **seconds}}

    finding = timed(hard_negative_runs(tmp_path, 0.5, 0.5), change)
    assert (finding.verdict, finding.outcomes[0].measure) == (verdict, measure)


def test_seconds_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    """A processor twice as fast would make any method look cheap; runs on one that both have seen are."""
    found = hard_negative_runs(tmp_path, 0.5, 0.5, seeds=3)

    def outcomes(*machines: str) -> tuple[Outcome, ...]:
        """Runs with and without in turn, seed by seed; those on a fast machine take a tenth of the time."""
        cpus = iter(machines)

        def change(one: RunRecord) -> dict[str, Any]:
            cpu = next(cpus)
            seconds = dict.fromkeys(claims.TIMES, 10.0 if cpu == "fast" else 100.0)
            return {"environment": one.environment | {"cpu": cpu, "device": "cpu"}, "training": seconds}

        return timed(found, change).outcomes

    assert outcomes("fast", "slow", "fast", "slow", "fast", "slow") == ()
    (one,) = outcomes("fast", "slow", "fast", "slow", "slow", "slow")
    assert (one.values, len(one.ahead.records), len(one.behind.records)) == ((100.0, 100.0), 1, 3)
    (one,) = outcomes("fast", "fast", "fast", "fast", "slow", "slow")
    assert one.values == (10.0, 10.0)


def test_costs_that_say_nothing_are_not_compared(tmp_path: Path) -> None:
    runs = hard_negative_runs(tmp_path, 0.5, 0.5)
    unknown_processor = {"environment": {"harness": "0.1.0", "cores": 2}}
    assert timed(runs, lambda _: unknown_processor).outcomes == ()
    for odd in ("abc", [], float("nan"), 10**400, -5, True, None):
        assert timed(runs, lambda _, odd=odd: {"training": dict.fromkeys(claims.TIMES, odd)}).outcomes == ()  # type: ignore[misc]


def test_what_makes_a_machine() -> None:
    where = {"cpu": "a", "cores": 2, "device": "cuda"}
    other = [record("a", environment=where | {key: "other"}) for key in where]
    assert len({machine_of(one) for one in (record("a", environment=where), *other)}) == 4


# -- the file of claims


def written(folder: Path, test: dict[str, Any] | None = None, **more: Any) -> Path:
    file = folder / "claims.yaml"
    file.write_text(
        json.dumps({"claims": [{"claim": "It helps.", "source": "a", "tests": [TEST | (test or {})]}], **more})
    )
    return file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": "thesis-9.9"}, "thesis-9.9"),
        ({"ahead": "unidek"}, "did you mean 'unidec'?"),
        ({"table": "benchmark", "behind": "nobody"}, "nobody"),
        ({"metrics": ["P@7"]}, "P@7"),
        ({"metrics": []}, "give metrics or cheaper"),
        ({"tabel": "c"}, "tabel"),
    ],
)
def test_a_claim_that_nothing_can_decide_is_a_fault(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        check_claims(written(tmp_path, change))
    check_claims(written(tmp_path))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"accounts": {"lf-pydoks": "Because."}}, "accounts: .*did you mean 'lf-pydocs'"),
        ({"reruns": {"lf-pydoks": "Because."}}, "reruns: .*did you mean 'lf-pydocs'"),
        ({"reruns": {"minilm": "Nobody would see it."}}, "reruns: .*minilm"),
        ({"reruns": {"lf-pydocs": "Of no run."}}, "lf-pydocs names no run"),
        ({"reruns": {"lf-pydocs": "It had {}."}}, "names '', which is no run on it"),
        ({"reruns": {"lf-pydocs": "It had {2026-unidec-lf-pydocstitles-s0-66e1}."}}, "is no run on it"),
    ],
)
def test_a_text_about_no_dataset_or_run_is_a_fault(texts: dict[str, Any], message: str, tmp_path: Path) -> None:
    check_claims(written(tmp_path, accounts={"minilm": "Few epochs."}))
    with pytest.raises(UserError, match=message):
        check_claims(written(tmp_path, **texts))


@pytest.mark.parametrize("pairs", [("Φ", ""), ("Φ", "Φ")])
def test_a_claim_whose_figures_could_not_be_told_apart_is_a_fault(pairs: tuple[str, str], tmp_path: Path) -> None:
    two = {"claim": "It helps.", "source": "a", "tests": [TEST | {"pair": pair} for pair in pairs]}
    (tmp_path / "claims.yaml").write_text(json.dumps({"claims": [two]}))
    with pytest.raises(UserError, match="a pair of its own"):
        read_claims(tmp_path / "claims.yaml")


def test_every_run_that_is_named_is_in_the_committed_report() -> None:
    """One that is missing would take all that is written about its dataset along."""
    named = [name for text in read_claims().reruns.values() for name in claims.NAMED.findall(text)]
    assert named
    assert {*named} <= {one.run_id for one in read_records([ROOT / "reports"])}


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_training_is_said_wherever_its_test_is_shown(seeds: int, tmp_path: Path) -> None:
    """In claims, tables of the papers and gaps; `test_compare` has comparisons."""
    runs = hard_negative_runs(tmp_path, 0.4, 0.7, seeds=seeds)
    found = Findings(runs, [claim({})])
    (outcome,) = found.all[0].outcomes
    (table,) = found.tables("thesis-2.5")
    gap = Gap(DATASET, "P@1", outcome.behind, outcome.values, (None,) * 3, outcome.p, outcome.trained_again)
    said = "a single one does not show how much trainings differ"
    shown = [summary(found.all), as_table(table, runs), gap_table([gap])]
    assert [said in one.caption for one in shown] == [seeds == 1] * len(shown)
