"""Claims of the papers against records: tests, verdicts and the page."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.published import JUDGED, published_table
from harness.record import RunRecord
from harness.report.evidence import Evidence, Study, Trial, read_evidence
from harness.report.findings import (
    Claim,
    Finding,
    Findings,
    Outcome,
    claims,
    details,
    findings_page,
    read_claims,
    standings_page,
    summary,
)
from harness.report.findings.behind import compares, gap_table, gaps, level_with, tried_tables
from harness.report.grids import Grid, Line
from harness.report.tables import as_markdown
from harness.validate import check_claims
from tests.test_declared import DATASET, record
from tests.test_gridding import kept

ROOT = Path(__file__).parents[1]
ROWS = 400


def claim(*tests: dict[str, Any], **facts: Any) -> Claim:
    usual = {"table": "thesis-2.5", "ahead": "unidec", "behind": "unidec-no-hard", "metrics": ["P@1"]}
    return Claim.model_validate({"claim": "It helps.", "source": "a", "tests": [usual | one for one in tests], **facts})


def evidence(folder: Path, ahead: float, behind: float, seeds: int = 2) -> Evidence:
    """Runs with and without hard negatives that get these shares of their test rows right."""
    runs = []
    for seed in range(seeds):
        for name, share, eta in (("with", ahead, 6), ("without", behind, 0)):
            rows = (np.random.default_rng([seed, eta]).random(ROWS) < share) * 100.0
            where = {"harness": "0.1.0", "cpu": "a processor", "cores": 2}
            one = record(f"{name}-{seed}", method="unidec-thesis", seed=seed, eta=eta, environment=where)
            runs.append(kept(folder, one, dict.fromkeys(("concat", "de", "clf"), rows)))
    return Evidence(tuple(runs), folders=(folder,))


@pytest.mark.parametrize(
    ("ahead", "behind", "verdict"),
    [(0.7, 0.4, "holds"), (0.4, 0.7, "does not hold"), (0.5, 0.505, "undecided")],
)
def test_rows_decide(ahead: float, behind: float, verdict: str, tmp_path: Path) -> None:
    (finding,) = Findings(evidence(tmp_path, ahead, behind), [claim({})]).all
    assert finding.verdict == verdict
    (outcome,) = finding.outcomes
    assert outcome.dataset == DATASET
    assert outcome.values == pytest.approx((100 * ahead, 100 * behind), abs=5)
    assert (outcome.p < 0.05) == (verdict != "undecided")


@pytest.mark.parametrize(("margin", "verdict"), [(0, "undecided"), (1, "undecided"), (15, "holds")])
def test_not_worse_by_more_than_a_margin_has_to_be_shown(margin: float, verdict: str, tmp_path: Path) -> None:
    """That two rows are not told apart is no evidence that they are equal."""
    assert Findings(evidence(tmp_path, 0.5, 0.505), [claim({"margin": margin})]).all[0].verdict == verdict


def test_worse_by_more_than_a_margin_is_the_reverse(tmp_path: Path) -> None:
    assert Findings(evidence(tmp_path, 0.4, 0.7), [claim({"margin": 10})]).all[0].verdict == "does not hold"


def test_the_more_tests_the_stricter(tmp_path: Path) -> None:
    """Holm's correction: a difference that one test would take for real is none among many."""
    found = evidence(tmp_path, 0.5, 0.43, seeds=1)
    alone = Findings(found, [claim({})]).all[0].outcomes[0]
    assert alone.p < 0.05
    among = Findings(found, [claim(*[{}] * 40)]).all[0].outcomes[0]
    assert among.p == pytest.approx(min(1.0, 40 * alone.p))
    assert among.sign == 0


def test_every_run_that_is_named_is_in_the_committed_report() -> None:
    """One that is missing would take all that is told of its dataset along."""
    named = [name for told in read_claims().reruns.values() for name in claims.NAMED.findall(told)]
    assert named
    assert [name for name in named if not (ROOT / "reports" / "runs" / f"{name}.json").is_file()] == []


def test_the_winner_that_the_readme_names_is_the_one_of_the_committed_runs() -> None:
    assert "UniDEC tells best" in (ROOT / "README.md").read_text(encoding="utf-8")
    found = Findings(read_evidence(ROOT / "reports"))
    (pictured,) = (grid for grid in found.matrix if grid.dataset == "lf-debiantitles")
    assert gaps([pictured], found.evidence) == []
    assert not any(level_with(pictured, metric) for metric in JUDGED)


@pytest.mark.parametrize("missing", [{"ahead": "nobody"}, {"table": "nothing"}, {"datasets": ["lf-debian"]}])
def test_what_was_not_run_is_not_decided(missing: dict[str, Any], tmp_path: Path) -> None:
    (finding,) = Findings(evidence(tmp_path, 0.7, 0.4), [claim(missing)]).all
    assert (finding.verdict, finding.outcomes) == ("not run", ())


def test_runs_without_rows_are_not_tested() -> None:
    runs = (record("a", method="unidec-thesis"), record("b", method="unidec-thesis", eta=0))
    assert Findings(Evidence(runs), [claim({})]).all[0].verdict == "not run"


def test_an_explanation_of_another_verdict_is_not_shown(tmp_path: Path) -> None:
    found = evidence(tmp_path, 0.7, 0.4)
    for explains, shown in (("holds", "Because."), ("undecided", "")):
        (finding,) = Findings(found, [claim({}, explains=explains, why="Because.")]).all
        assert finding.why == shown
        assert ("Because." in as_markdown(summary([finding]))) is bool(shown)


def verdict_of(signs: list[int]) -> str:
    line = Line(published_table("thesis-2.5"), (), DATASET, {})
    found = tuple(Outcome(DATASET, line, line, "P@1", (1.0, 2.0), 0.5, sign) for sign in signs)
    return Finding(claim({}), found).verdict


@pytest.mark.parametrize(
    ("signs", "verdict"),
    [
        ([1], "holds"),
        ([1, 0], "holds"),
        ([1, 0, 0], "undecided"),
        ([1] * 9 + [-1], "undecided"),
        ([-1], "does not hold"),
        ([-1, 0], "does not hold"),
        ([-1] + [0] * 9, "undecided"),
        ([0], "undecided"),
        ([], "not run"),
    ],
)
def test_verdicts(signs: list[int], verdict: str) -> None:
    assert verdict_of(signs) == verdict


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1))
def test_for_and_against_are_judged_alike(signs: list[int]) -> None:
    mirrored = {"holds": "does not hold", "does not hold": "holds", "undecided": "undecided"}
    assert verdict_of([-sign for sign in signs]) == mirrored[verdict_of(signs)]


def test_every_test_is_listed(tmp_path: Path) -> None:
    found = Findings(evidence(tmp_path, 0.7, 0.4), [claim({}), claim({"cheaper": 0.5, "metrics": []})]).all
    shown = details(found)
    assert [row[6].text for row in shown.rows] == ["as claimed", "the reverse"]
    assert shown.breaks == (1,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": "thesis-9.9"}, "thesis-9.9"),
        ({"ahead": "unidek"}, "did you mean 'unidec'?"),
        ({"table": "benchmark", "behind": "nobody"}, "nobody"),
        ({"metrics": ["P@7"]}, "P@7"),
        ({"metrics": []}, "give metrics or cheaper"),
    ],
)
def test_a_claim_that_nothing_can_decide_is_a_fault(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    usual = {"table": "thesis-2.5", "ahead": "unidec", "behind": "unidec-no-hard", "metrics": ["P@1"]}
    file = tmp_path / "claims.yaml"
    file.write_text(json.dumps({"claims": [{"claim": "It helps.", "source": "a", "tests": [usual | change]}]}))
    with pytest.raises(UserError, match=re.escape(message)):
        check_claims(file)
    file.write_text(json.dumps({"claims": [{"claim": "It helps.", "source": "a", "tests": [usual]}]}))
    check_claims(file)


@pytest.mark.parametrize("key", ["accounts", "reruns"])
def test_what_is_told_of_no_dataset_is_a_fault(key: str, tmp_path: Path) -> None:
    test = {"table": "thesis-2.5", "ahead": "unidec", "behind": "unidec-no-hard", "metrics": ["P@1"]}
    file, claims = tmp_path / "claims.yaml", [{"claim": "It helps.", "source": "a", "tests": [test]}]
    file.write_text(json.dumps({"claims": claims, key: {"lf-pydoks": "Because."}}))
    with pytest.raises(UserError, match=f"claims.yaml: {key}: .*did you mean 'lf-pydocs'"):
        check_claims(file)
    file.write_text(json.dumps({"claims": claims, "accounts": {"minilm": "Few epochs."}}))
    check_claims(file)
    file.write_text(json.dumps({"claims": claims, "reruns": {"minilm": "Nobody would see it."}}))
    with pytest.raises(UserError, match=r"reruns: .*minilm"):
        check_claims(file)
    file.write_text(json.dumps({"claims": claims, "reruns": {"lf-pydocs": "Of no run."}}))
    with pytest.raises(UserError, match="reruns: lf-pydocs names no run"):
        check_claims(file)
    for name in ("", "nonsense", "20261117-041542-unidec-lf-pydocstitles-s0-66e1"):
        file.write_text(json.dumps({"claims": claims, "reruns": {"lf-pydocs": f"It had {{{name}}}."}}))
        with pytest.raises(UserError, match=f"reruns: lf-pydocs names '{name}', which is no run on it"):
            check_claims(file)


@pytest.mark.parametrize("pairs", [("Φ", ""), ("Φ", "Φ")])
def test_a_claim_whose_figures_could_not_be_told_apart_is_a_fault(pairs: tuple[str, str], tmp_path: Path) -> None:
    usual = {"table": "thesis-2.5", "ahead": "unidec", "behind": "unidec-no-hard", "metrics": ["P@1"]}
    told = {"claim": "It helps.", "source": "a", "tests": [usual | {"pair": pair} for pair in pairs]}
    (tmp_path / "claims.yaml").write_text(json.dumps({"claims": [told]}))
    with pytest.raises(UserError, match="a pair of its own"):
        read_claims(tmp_path / "claims.yaml")


def test_a_claim_that_was_written_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text("claims: [{claim: a, source: b, tests: [{tabel: c}]}]")
    with pytest.raises(UserError, match="tabel"):
        read_claims(tmp_path / "claims.yaml")
    for nothing in ("clams: []", "claims: []"):
        (tmp_path / "claims.yaml").write_text(nothing)
        with pytest.raises(UserError, match="claims"):
            read_claims(tmp_path / "claims.yaml")


def matrix(first: RunRecord, second: RunRecord) -> list[Grid]:
    """UniDEC with and without hard negatives, as if they were two methods of the matrix."""
    rows = {row.stem: row for row in published_table("thesis-2.5").rows}
    named = (("unidec", first), ("unidec-de", first), ("unidec-no-hard", second))
    lines = [
        Line(
            published_table("thesis-2.5"), (rows[stem],), DATASET, {"eta": one.config["params"]["eta"]}, records=(one,)
        )
        for stem, one in named
    ]
    return [Grid(published_table("thesis-2.5"), DATASET, tuple(lines))]


def test_whatever_is_above_unidec_is_told_by_bin(tmp_path: Path) -> None:
    found = evidence(tmp_path, 0.4, 0.7, seeds=1)
    runs = [
        one.model_copy(
            update={"contributions": [{"bin": "head", "P@1": 10.0 + 5 * place}, {"bin": "tail", "P@1": 30.0}]}
        )
        for place, one in enumerate(found.records)
    ]
    (gap,) = gaps(matrix(*runs), found)
    assert (gap.metric, gap.other.rows[0].stem, gap.bins) == ("P@1", "unidec-no-hard", (-5.0, None, 0.0))
    assert gap.values[1] - gap.values[0] == pytest.approx(30, abs=8)
    table = gap_table([gap])
    assert table is not None
    assert [cell.text for cell in table.rows[0]][6:] == ["-5.00", "", "0.00", "0.0000"]
    assert table.rows[0][-1].best


def test_where_unidec_is_first_there_is_nothing_to_tell(tmp_path: Path) -> None:
    found = evidence(tmp_path, 0.7, 0.4, seeds=1)
    assert gaps(matrix(*found.records), found) == []
    assert gap_table([]) is None


@pytest.mark.parametrize("odd", [float("nan"), 10**400, "5", None, True])
def test_a_contribution_that_is_no_number_is_left_out(odd: Any, tmp_path: Path) -> None:
    found = evidence(tmp_path, 0.4, 0.7, seeds=1)
    runs = [one.model_copy(update={"contributions": [{"bin": "head", "P@1": odd}]}) for one in found.records]
    (gap,) = gaps(matrix(*runs), found)
    assert gap.bins == (None, None, None)
    assert gap_table([gap])


def test_bins_of_another_scorer_are_not_told(tmp_path: Path) -> None:
    """A run keeps the contributions of the scorer that it reports."""
    found = evidence(tmp_path, 0.4, 0.7, seeds=1)
    of_concat = {"contributions": [{"bin": "head", "P@1": 10.0}]}
    first, second = (one.model_copy(update=of_concat) for one in found.records)
    (grid,) = matrix(first, second.model_copy(update={"metrics": {"P@1": 1.0}}))
    (gap,) = gaps([grid], found)
    assert gap.bins == (None, None, None)


def test_first_is_told_only_where_something_was_compared(tmp_path: Path) -> None:
    found = evidence(tmp_path, 0.7, 0.4, seeds=1)
    (grid,) = matrix(*found.records)
    assert (compares(grid, "P@1"), compares(grid, "PSP@5")) == (True, False)
    assert not compares(replace(grid, lines=grid.lines[:2]), "P@1"), "its own other scorer is no other method"
    assert not compares(replace(grid, lines=grid.lines[2:]), "P@1")


def test_a_gap_without_rows_has_no_p() -> None:
    runs = (record("a", p1=50.0), record("b", p1=60.0, eta=0))
    (gap,) = gaps(matrix(*runs), Evidence(runs))
    assert (gap.p, gap.values) == (None, (50.0, 60.0))
    table = gap_table([gap])
    assert table is not None
    assert table.rows[0][-1].text == ""


def test_what_was_tried_is_held_against_the_settings_as_they_stand() -> None:
    trials = [
        Trial(number=number, state=state, values=values, params={"tau": 0.05 + number / 100}, seconds=1.0)
        for number, state, values in (
            (0, "COMPLETE", {"P@1": 50.0, "PSP@5": 40.0}),
            (1, "FAIL", {}),
            (2, "COMPLETE", {"P@1": 49.0, "PSP@5": 44.0}),
        )
    ]
    facts: dict[str, Any] = {"method": "unidec", "dataset": DATASET, "digest": "d", "objectives": ["P@1", "PSP@5"]}
    facts |= {"space": {"tau": {}}, "settings": {}, "best": [2]}
    single = {"objectives": ["P@1"], "trials": trials[:1]}
    table, other = tried_tables(
        [
            Study(name="tried-tau", trials=trials, **facts),
            Study(name="tried-nothing", trials=trials[1:], **facts),  # the settings as they stand came to no end
            Study(name="tried-other", trials=trials, **{**facts, "objectives": ["P@1", "R@5"]}),  # no trial has it
            Study(name="tried-single", **{**facts, **single}),
            Study(name="other", trials=trials, **facts),
        ]
    )
    assert other.columns[5:] == ("P@1, first", "P@1, best")
    assert [cell.text for cell in other.rows[0]][5:] == ["50.00", "50.00"]
    (row,) = table.rows
    words = [DATASET, "unidec", "tau", "2", "tau 0.07", "50.00", "49.00", "40.00", "44.00"]
    assert [cell.text for cell in row] == words
    assert tried_tables([]) == []


def test_without_the_matrix_there_is_no_page(tmp_path: Path) -> None:
    found = Findings(evidence(tmp_path, 0.7, 0.4))
    assert (findings_page(found), standings_page(found)) == (None, None)


def test_a_matrix_of_one_method_is_no_matrix() -> None:
    """The frozen encoder has nothing to search, so runs of it alone are of every matrix."""
    frozen = tuple(record(f"z{seed}", method="zeroshot", seed=seed) for seed in range(2))
    assert Findings(Evidence(frozen), []).matrix == []


def test_a_claim_is_told_dataset_by_dataset() -> None:
    line = Line(published_table("thesis-2.5"), (), DATASET, {})
    told = [("a", 1), ("a", 0), ("a", 1), ("b", -1)]
    found = tuple(Outcome(dataset, line, line, "P@1", (1.0, 2.0), 0.5, sign) for dataset, sign in told)
    shown = summary([Finding(claim({}), found), Finding(claim({}), found[3:])])
    assert shown.columns[2:-1] == ("a", "b")
    assert [[cell.text for cell in row[1:4]] for row in shown.rows] == [
        ["undecided", "P@1 -1.00†, -1.00, -1.00†", "P@1 -1.00‡"],
        ["does not hold", "", "P@1 -1.00‡"],
    ]
    cost = replace(found[0], measure="training s", values=(50.0, 200.0))
    (row,) = summary([Finding(claim({}), (found[0], cost))]).rows
    assert row[2].text == "P@1 -1.00†; training s 0.25 of it", "no test was made of times"
    named = tuple(replace(one, pair=name) for one, name in zip(found, ("Φ", "Ψ", "both", "Ψ"), strict=True))
    (row,) = summary([Finding(claim({}), named)]).rows
    assert row[0].text.endswith("; in turn Φ, Ψ, both)")
    assert [cell.text for cell in row[2:4]] == ["P@1 -1.00†, -1.00, -1.00†", "P@1 Ψ -1.00‡"]
