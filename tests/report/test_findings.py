"""The pages of findings and standings, from a matrix of our own: what they say, leave out and link."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.report import claims, findings
from harness.report.claims import Findings, row_of
from harness.report.findings import (
    findings_page,
    gap_table,
    gaps,
    leads,
    matrix_table,
    missing,
    standings_page,
    tried_tables,
)
from harness.report.published import RowResult, TableResult
from harness.report.results import Neighbours, Results, Study, Trial, read_results
from harness.runs.record import RunRecord
from harness.settings import published
from harness.settings.published import JUDGED, published_table
from tests.support.table_runs import DATASET, hard_negative_runs, record

ROOT = Path(__file__).parents[2]
PICTURE = f"figures/{DATASET}/mine.png"


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Findings]:
    """The ablation on hard negatives as a table of our own: two of three seeds on one dataset, none on another.

    A second table has the same rows, as those with a transformer have.
    """
    rows = [
        {"row": f"{stem}/{DATASET}", "label": stem, "dataset": DATASET, "method": "unidec-thesis", "results": {}}
        | {"settings": {"eta": eta}, "elsewhere": {}}
        for stem, eta in (("unidec", 6), ("other", 0), ("never", 3))
    ]
    metadata = {"source": "a", "caption": "b", "metrics": [], "unsaid": [], "rows": rows}
    for name, seeds in (("mine", {DATASET: [0, 1, 2], "lf-debian": [0]}), ("large", {DATASET: [0, 1]})):
        own = {"table": name, "seeds": seeds}
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**metadata, **own}))
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(published, "TUNED_FOLDER", tmp_path)
    for module in (claims, findings):
        monkeypatch.setattr(module, "TRANSFORMER", "")
        monkeypatch.setattr(module, "MATRIX", "mine")
    published_table.cache_clear()
    yield Findings(hard_negative_runs(tmp_path / "runs", 0.7, 0.4, seeds=2), [])
    published_table.cache_clear()


def with_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (claims, findings):
        monkeypatch.setattr(module, "TRANSFORMER", "large")


def again(found: Findings, **changes: Any) -> Findings:
    return Findings(replace(found.results, **changes), [])


def test_what_the_matrix_lacks_is_listed(found: Findings) -> None:
    assert missing(found) == [f"unidec / other / never on {DATASET}", "lf-debian"]
    assert f"Not run yet: unidec / other / never on {DATASET}; lf-debian." in str(findings_page(found))


def test_one_table_has_every_method(found: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    table = matrix_table(found.compared)
    assert table.columns == ("method", f"{DATASET} P@1", "PSP@5")
    assert [row[0].text for row in table.rows] == ["unidec", "other"]
    assert [row[1].best for row in table.rows] == [True, False]
    assert all("(2 of 3 seeds)" in row[1].text and row[2].text == "X" for row in table.rows)
    assert "±" not in "".join(cell.text for row in table.rows for cell in row)
    assert f"`python -m harness run --published mine/unidec/{DATASET}" in str(findings_page(found))
    with_transformer(monkeypatch)
    table = matrix_table(found.compared)
    assert table.columns[3:] == ("large P@1", "PSP@5")
    assert "seeds" not in table.rows[0][3].text
    assert f"large, on {DATASET}: b" in str(findings_page(found))
    assert f"### {DATASET}, large" in str(standings_page(found))


def test_standings_have_spread_and_commands(found: Findings) -> None:
    found.reruns = {}
    text = str(standings_page(found))
    assert f"| unidec | mine/unidec/{DATASET} | 2 |" in text
    assert "±" in text
    assert "At the end" not in text, "nothing is above UniDEC, nothing was tried"
    strange = found.results.records[0].model_copy(update={"training": {"epochs": "five"}, "views": {}})
    odd = again(found, records=(strange, *found.results.records[1:]))
    assert "mine/unidec" in str(standings_page(odd)), "what a record lacks is left out"


def test_a_picture_is_linked_where_it_is_drawn(found: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (findings_page, standings_page):
        assert PICTURE not in str(make(found))
        assert str(make(found, [DATASET])).count(PICTURE) == 1
    with_transformer(monkeypatch)
    assert str(standings_page(found, [DATASET])).count(".png") == 1, "the picture is of the matrix"


def test_what_is_above_unidec_is_on_both_pages(
    found: Findings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"First in P@1: unidec on {DATASET}.\n" in str(findings_page(found))
    assert "First in PSP@5" not in str(findings_page(found)), "it was not measured"
    assert "Where UniDEC (ours) is not" not in str(findings_page(found))
    (tmp_path / "worse").mkdir()
    worse = hard_negative_runs(tmp_path / "worse", 0.4, 0.7)
    with_transformer(monkeypatch)
    behind = Findings(worse, [])
    behind.accounts = {"large": "Because\n  of this."}
    page = str(standings_page(behind))
    assert "### Where UniDEC (ours) is not first in P@1 or PSP@5" in page
    assert "At the end: where UniDEC (ours) is not first" in page
    assert f"| {DATASET}, large | P@1 | other |" in page
    assert f"**{DATASET}.** Not looked into yet.\n\n**{DATASET}, large.** Because of this.\n" in page
    assert f"First in P@1: other on {DATASET}.\nWhere UniDEC (ours) is not first, by how" in str(findings_page(behind))


def test_what_was_run_again_is_on_both_pages(found: Findings) -> None:
    run = found.results.records[0]
    for reruns in ({"lf-debian": "Never run."}, {DATASET: f"At first {{{run.run_id}}}, then {{nobody-has-this-run}}."}):
        found.reruns = reruns
        assert "run before" not in str(findings_page(found))
        assert "run again" not in str(standings_page(found))
    found.reruns = {DATASET: f"A slip\n  in its card: {{{run.run_id}}}."}
    assert "\nWhat had been run before, and with which result: [STANDINGS.md]" in str(findings_page(found))
    text = f"A slip in its card: P@1 {run.metrics['P@1']:.2f} (run {run.run_id})."
    assert f"### What was run again after a first result\n\n**{DATASET}.** {text}\n" in str(standings_page(found))
    assert "At the end: what was run again.\n" in str(standings_page(found))


def study(name: str = "mine-x", **changes: Any) -> Study:
    trials = [
        Trial(number=number, state=state, values=values, params={"tau": 0.05 + number / 100}, seconds=3600.0)
        for number, state, values in (
            (0, "COMPLETE", {"P@1": 50.0, "PSP@5": 40.0}),
            (1, "FAIL", {}),
            (2, "COMPLETE", {"P@1": 49.0, "PSP@5": 44.0}),
        )
    ]
    metadata = {"method": "unidec", "dataset": DATASET, "digest": "d", "objectives": ["P@1", "PSP@5"]}
    return Study.model_validate(
        {"name": name, **metadata, "space": {"tau": {}}, "settings": {}, "best": [2], "trials": trials, **changes}
    )


def test_a_search_on_other_data_is_mentioned(found: Findings) -> None:
    seen = str(found.matrix[0].records[0].dataset["digest"])
    for digest, mentioned in ((seen, False), ("other", True)):
        text = str(findings_page(again(found, studies=(study(digest=digest),))))
        assert "3 trials in 1 searches" in text
        assert "searches 3.0" in text
        assert (f"On an earlier version of the data: 1 of the 1 searches on {DATASET}." in text) is mentioned


def test_a_point_that_was_tried_twice_is_counted(found: Findings) -> None:
    """Settings are rounded to three digits before a search begins with them."""
    for values, repeated in (((0.0756, 0.07555), True), ((0.0756, 0.0766), False)):
        trials = [Trial(number=0, state="COMPLETE", values={}, params={"tau": tau}, seconds=1.0) for tau in values]
        text = str(findings_page(again(found, studies=(study(trials=trials),))))
        assert ("(1 of the searches drew a point twice)" in text) is repeated


def test_a_first_place_that_is_shared_is_named(found: Findings) -> None:
    of_unidec = {one.config["seed"]: one for one in found.results.records if one.run_id.startswith("with-")}
    level = tuple(
        one.model_copy(update={name: getattr(of_unidec[one.config["seed"]], name) for name in ("metrics", "scorers")})
        for one in found.results.records
    )
    same = again(found, records=level)
    assert f"First in P@1: unidec and other on {DATASET}.\n" in str(findings_page(same))
    assert "Where UniDEC (ours) is not first" not in str(standings_page(same))


def test_soft_targets_are_judged_on_the_data_that_was_run(found: Findings) -> None:
    seen = str(found.matrix[0].records[0].dataset["digest"])
    for digest, share, shown in ((seen, 0.04, True), ("other", 0.04, False), (seen, None, False)):
        common = {DATASET: Neighbours(dataset=DATASET, digest=digest, examples=[], items=99, true_share=share)}
        text = str(findings_page(again(found, neighbours=common)))
        assert (f"by weight 4% on {DATASET} are right." in text) is shown


def test_without_the_matrix_there_is_no_page(found: Findings) -> None:
    """The frozen encoder has nothing to search, so runs of it alone are of every matrix."""
    frozen = tuple(record(f"z{seed}", method="zeroshot", seed=seed) for seed in range(2))
    for nothing in (Findings(Results(()), []), Findings(Results(frozen), [])):
        assert (findings_page(nothing), standings_page(nothing)) == (None, None)


# -- where UniDEC is not first


def table(*runs: RunRecord) -> TableResult:
    """UniDEC with and without hard negatives, as if they were two methods of the matrix."""
    declared = published_table("thesis-2.5")
    rows = {row.stem: row for row in declared.rows}
    named = (("unidec", runs[0]), ("unidec-de", runs[0]), ("unidec-no-hard", runs[1]))
    results = [
        RowResult(declared, (rows[stem],), DATASET, {"eta": one.config["params"]["eta"]}, records=(one,))
        for stem, one in named
    ]
    return TableResult(declared, DATASET, tuple(results))


def test_whatever_is_above_unidec_is_shown_by_bin(tmp_path: Path) -> None:
    found = hard_negative_runs(tmp_path, 0.4, 0.7, seeds=1)
    runs = [
        one.model_copy(
            update={"contributions": [{"bin": "head", "P@1": 10.0 + 5 * place}, {"bin": "tail", "P@1": 30.0}]}
        )
        for place, one in enumerate(found.records)
    ]
    (gap,) = gaps([table(*runs)], found)
    assert (gap.metric, gap.other.declared[0].stem, gap.bins) == ("P@1", "unidec-no-hard", (-5.0, None, 0.0))
    assert gap.values[1] - gap.values[0] == pytest.approx(30, abs=8)
    (row,) = gap_table([gap]).rows
    assert [cell.text for cell in row][6:] == ["-5.00", "", "0.00", "0.0000"]
    assert row[-1].best
    of_another_scorer = runs[1].model_copy(update={"metrics": {"P@1": 1.0}})  # contributions are of what a run reports
    (gap,) = gaps([table(runs[0], of_another_scorer)], found)
    assert gap.bins == (None, None, None)


def test_a_contribution_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    found = hard_negative_runs(tmp_path, 0.4, 0.7, seeds=1)
    for odd in (float("nan"), 10**400, "5", None, True):
        runs = [one.model_copy(update={"contributions": [{"bin": "head", "P@1": odd}]}) for one in found.records]
        (gap,) = gaps([table(*runs)], found)
        assert gap.bins == (None, None, None)


def test_first_is_said_only_where_something_was_compared(tmp_path: Path) -> None:
    found = hard_negative_runs(tmp_path, 0.7, 0.4, seeds=1)
    both = table(*found.records)
    assert gaps([both], found) == []
    assert [lead < 0 for _, lead in leads(both, "P@1")] == [True]
    assert leads(both, "PSP@5") == []
    assert leads(replace(both, rows=both.rows[:2]), "P@1") == [], "its own other scorer is no other method"
    assert leads(replace(both, rows=both.rows[2:]), "P@1") == []


def test_a_gap_without_rows_has_no_p() -> None:
    runs = (record("a", p1=50.0), record("b", p1=60.0, eta=0))
    (gap,) = gaps([table(*runs)], Results(runs))
    assert (gap.p, gap.values) == (None, (50.0, 60.0))
    assert gap_table([gap]).rows[0][-1].text == ""


def test_what_was_tried_is_held_against_the_first_trial() -> None:
    every = study().trials
    shown, other = tried_tables(
        [
            study("tried-tau"),
            study("tried-nothing", trials=every[1:]),  # its first trial came to no end
            study("tried-other", objectives=["P@1", "R@5"]),  # no trial has it
            study("tried-single", objectives=["P@1"], trials=every[:1]),
            study("other"),
        ]
    )
    assert other.columns[5:] == ("P@1, first", "P@1, best")
    assert [cell.text for cell in other.rows[0]][5:] == ["50.00", "50.00"]
    (row,) = shown.rows
    words = [DATASET, "unidec", "tau", "2", "tau 0.07", "50.00", "49.00", "40.00", "44.00"]
    assert [cell.text for cell in row] == words


def test_the_winner_that_the_readme_names_is_the_one_of_the_committed_runs() -> None:
    """And so for frequent and rare labels, by what each third of the train pairs adds to a metric."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "Here our variant of UniDEC has the highest P@1 and PSP@5" in readme
    assert "Parabel finds more of the frequent labels, dual encoders more of the rare ones" in readme
    (pictured,) = (one for one in Findings(read_results(ROOT / "reports")).matrix if one.dataset == "lf-debiantitles")
    for metric in JUDGED:
        assert max(lead for _, lead in leads(pictured, metric)) < 0
        added = {
            stem: {part["bin"]: part[metric] for part in row.records[0].contributions}
            for stem in ("unidec", "parabel", "depsl", "ance", "dexml-hnm")
            if (row := row_of(pictured, stem))
        }
        ours = added.pop("unidec")
        assert added.pop("parabel")["head"] > ours["head"]
        assert len(added) == 3
        assert min(one["tail"] for one in added.values()) > ours["tail"]
