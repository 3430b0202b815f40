"""Claims of the papers against records: tests, verdicts and the page."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UserError
from harness.published import published_table, table_paths
from harness.report.evidence import Evidence, read_evidence
from harness.report.findings import Claim, Finding, Findings, Outcome, details, findings_page, read_claims, summary
from harness.report.grids import Line
from harness.report.tables import as_markdown
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
            one = record(f"{name}-{seed}", method="unidec-thesis", seed=seed, eta=eta)
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


def test_equal_is_enough_where_the_claim_says_so(tmp_path: Path) -> None:
    found = evidence(tmp_path, 0.5, 0.505)
    assert Findings(found, [claim({"level": True})]).all[0].verdict == "holds"
    assert Findings(found, [claim({})]).all[0].verdict == "undecided"


def test_the_more_tests_the_stricter(tmp_path: Path) -> None:
    """Holm's correction: a difference that one test would take for real is none among many."""
    found = evidence(tmp_path, 0.5, 0.43, seeds=1)
    alone = Findings(found, [claim({})]).all[0].outcomes[0]
    assert alone.p < 0.05
    among = Findings(found, [claim(*[{}] * 40)]).all[0].outcomes[0]
    assert among.p == pytest.approx(min(1.0, 40 * alone.p))
    assert among.sign == 0


@pytest.mark.parametrize(("share", "verdict"), [(1.0, "holds"), (0.5, "does not hold")])
def test_a_share_of_the_training_time(share: float, verdict: str, tmp_path: Path) -> None:
    """Both were trained for two hours."""
    (finding,) = Findings(evidence(tmp_path, 0.5, 0.5), [claim({"cheaper": share, "metrics": []})]).all
    assert finding.verdict == verdict
    assert finding.outcomes[0].values == (7200.0, 7200.0)


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


def outcome(sign: int, level: bool) -> Outcome:
    line = Line(published_table("thesis-2.5"), (), DATASET, {})
    return Outcome(DATASET, line, line, "P@1", (1.0, 2.0), 0.5, sign, level)


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1))
def test_one_reverse_is_enough_not_to_hold(signs: list[int]) -> None:
    verdict = Finding(claim({}), tuple(outcome(sign, False) for sign in signs)).verdict
    for_it, against, open_ = signs.count(1), signs.count(-1), signs.count(0)
    assert (verdict == "holds") == (not against and for_it > 0 and for_it >= open_)
    assert (verdict == "does not hold") == (against > 0 and against >= for_it)


def test_every_test_is_listed(tmp_path: Path) -> None:
    found = Findings(evidence(tmp_path, 0.7, 0.4), [claim({}), claim({"cheaper": 0.5, "metrics": []})]).all
    shown = details(found)
    assert [row[5].text for row in shown.rows] == ["as claimed", "reverse"]
    assert shown.breaks == (1,)


def test_claims_name_rows_that_exist() -> None:
    for one in read_claims():
        for test in one.tests:
            stems = {row.stem for row in published_table(test.table).rows}
            if not published_table(test.table).own:
                assert {test.ahead, test.behind} <= stems, one.claim
            assert test.metrics or test.cheaper


def test_a_claim_that_was_written_wrong_is_told(tmp_path: Path) -> None:
    (tmp_path / "claims.yaml").write_text("claims: [{claim: a, source: b, tests: [{tabel: c}]}]")
    with pytest.raises(UserError, match="tabel"):
        read_claims(tmp_path / "claims.yaml")


def test_without_the_matrix_there_is_no_page(tmp_path: Path) -> None:
    assert findings_page(evidence(tmp_path, 0.7, 0.4)) is None


def test_the_committed_page_names_every_claim() -> None:
    page = findings_page(read_evidence(ROOT / "reports"))
    assert "benchmark" in table_paths()
    if page is not None:
        assert all(one.claim in page for one in read_claims())
