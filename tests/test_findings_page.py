"""The pages of findings and standings, from a matrix of our own: what they say, leave out and link."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness import published
from harness.published import published_table
from harness.report.evidence import Evidence, Neighbours, Study, Trial
from harness.report.findings import Findings, claims, findings_page, matrix_table, page, standings, standings_page
from tests.test_declared import DATASET
from tests.test_findings import evidence

PICTURE = f"figures/{DATASET}/benchmark.png"


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
    facts = {"source": "a", "caption": "b", "metrics": [], "unsaid": [], "rows": rows}
    for name, seeds in (("mine", {DATASET: [0, 1, 2], "lf-debian": [0]}), ("large", {DATASET: [0, 1]})):
        own = {"table": name, "seeds": seeds}
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**facts, **own}))
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(published, "TUNED_FOLDER", tmp_path)
    for module in (claims, page, standings):
        monkeypatch.setattr(module, "TRANSFORMER", "")
        monkeypatch.setattr(module, "MATRIX", "mine")
    published_table.cache_clear()
    yield Findings(evidence(tmp_path / "runs", 0.7, 0.4, seeds=2), [])
    published_table.cache_clear()


def with_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (claims, page, standings):
        monkeypatch.setattr(module, "TRANSFORMER", "large")


def again(found: Findings, **changes: Any) -> Findings:
    return Findings(replace(found.evidence, **changes), [])


def test_what_the_matrix_lacks_is_told(found: Findings) -> None:
    assert found.missing == [f"1 of 3 seeds and never on {DATASET}", "lf-debian"]
    assert f"Not run yet: 1 of 3 seeds and never on {DATASET}; lf-debian." in str(findings_page(found))
    fewer = again(found, records=found.evidence.records[:3])  # one seed less of the row without
    words = f"1 of 3 seeds of unidec and 2 of 3 seeds of other and never on {DATASET}"
    assert fewer.missing == [words, "lf-debian"]


def test_one_table_has_every_method(found: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    table = matrix_table(found.compared)
    assert table.columns == ("method", f"{DATASET} P@1", "PSP@5")
    assert [row[0].text for row in table.rows] == ["unidec", "other"]
    assert [row[1].best for row in table.rows] == [True, False]
    assert all("(2 of 3 seeds)" in row[1].text and row[2].text == "" for row in table.rows)
    assert "±" not in "".join(cell.text for row in table.rows for cell in row)
    assert f"\nOne cell again: `python -m harness run --published mine/unidec/{DATASET}" in str(findings_page(found))
    with_transformer(monkeypatch)
    table = matrix_table(found.compared)
    assert table.columns[3:] == ("large P@1", "PSP@5")
    assert "seeds" in table.rows[0][1].text
    assert "seeds" not in table.rows[0][3].text
    assert f"\nlarge, on {DATASET}: b One cell again: " in str(findings_page(found))
    assert f"### {DATASET}, large" in str(standings_page(found))


def test_standings_have_spread_and_commands(found: Findings) -> None:
    text = str(standings_page(found))
    assert f"| unidec | mine/unidec/{DATASET} | 2 |" in text
    assert "±" in text
    assert "at the end" not in text, "nothing is above UniDEC, nothing was tried"
    strange = [one.model_copy(update={"training": {"epochs": "five"}, "views": {}}) for one in found.evidence.records]
    odd = again(found, records=(*strange[:1], *found.evidence.records[1:]))
    assert "mine/unidec" in str(standings_page(odd)), "what a record lacks is left out"


def test_a_picture_is_linked_where_it_is_drawn(found: Findings, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (findings_page, standings_page):
        assert PICTURE.replace("benchmark", "mine") not in str(make(found))
        assert str(make(found, [DATASET])).count(PICTURE.replace("benchmark", "mine")) == 1
    with_transformer(monkeypatch)
    assert str(standings_page(found, [DATASET])).count(".png") == 1, "the picture is of the matrix"


def test_what_is_above_unidec_is_told_on_both_pages(found: Findings, tmp_path: Path) -> None:
    assert f"UniDEC is first in P@1 on {DATASET}; in PSP@5 nowhere." in str(findings_page(found))
    (tmp_path / "worse").mkdir()
    behind = Findings(evidence(tmp_path / "worse", 0.4, 0.7), [])
    assert "### Where UniDEC is not first in P@1 or PSP@5" in str(standings_page(behind))
    assert "At the end: where UniDEC is not first" in str(standings_page(behind))
    behind.accounts = {}
    assert f"**{DATASET}.** Not looked into yet." in str(standings_page(behind))
    behind.accounts = {DATASET: "Because\n  of that."}
    assert f"**{DATASET}.** Because of that." in str(standings_page(behind))
    assert "UniDEC is first in P@1 nowhere; in PSP@5 nowhere. Where it is not, by how" in str(findings_page(behind))
    assert "Where it is not" not in str(findings_page(found))


@pytest.mark.usefixtures("found")
def test_what_is_above_unidec_with_a_transformer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worse").mkdir()
    with_transformer(monkeypatch)
    behind = Findings(evidence(tmp_path / "worse", 0.4, 0.7), [])
    behind.accounts = {DATASET: "Because of that.", "large": "Because of this."}
    page = str(standings_page(behind))
    assert f"| {DATASET}, large | P@1 | other |" in page
    assert f"**{DATASET}.** Because of that.\n\n**{DATASET}, large.** Because of this.\n" in page


def test_what_was_run_again_is_told_on_both_pages(found: Findings) -> None:
    run = found.evidence.records[0]
    for reruns in ({"lf-debian": "Never run."}, {DATASET: f"At first {{{run.run_id}}}, then {{nobody-has-this-run}}."}):
        found.reruns = reruns
        assert "run before" not in str(findings_page(found))
        assert "run again" not in str(standings_page(found))
        found = again(found)
    found.reruns = {DATASET: f"A slip\n  in its card: {{{run.run_id}}}."}
    assert " What had been run before, and with which result: [STANDINGS.md]" in str(findings_page(found))
    told = f"A slip in its card: [P@1 {run.metrics['P@1']:.2f}](runs/{run.run_id}.json)."
    assert f"### What was run again after a first result\n\n**{DATASET}.** {told}\n" in str(standings_page(found))
    assert "At the end: what was run again.\n" in str(standings_page(found))


@pytest.mark.parametrize(("digest", "told"), [("same", False), ("other", True)])
def test_a_search_on_other_data_is_told(digest: str, told: bool, found: Findings) -> None:
    seen = str(found.matrix[0].records[0].dataset["digest"])
    trial = Trial(number=0, state="COMPLETE", values={"P@1": 1.0}, params={}, seconds=7200.0)
    facts: dict[str, Any] = {"method": "unidec", "dataset": DATASET, "objectives": ["P@1"], "space": {}, "settings": {}}
    study = Study(name="mine-x", digest=seen if digest == "same" else digest, best=[0], trials=[trial], **facts)
    text = str(findings_page(again(found, studies=(study,))))
    assert "1 trials in 1 searches" in text
    assert "searches 2.0" in text
    assert (f"On {DATASET} the searches saw an earlier version of the data." in text) is told


@pytest.mark.parametrize(("other", "told"), [(0.8776, True), (0.868, False)])
def test_a_point_that_was_tried_twice_is_told(other: float, told: bool, found: Findings) -> None:
    """The second is the first with fewer digits, as a search begins with what another one found."""
    trials = [
        Trial(number=number, state="COMPLETE", values={"P@1": 1.0}, params={"lambda": value}, seconds=1.0)
        for number, value in enumerate((0.5, 0.878, other))
    ]
    facts: dict[str, Any] = {"method": "unidec", "dataset": DATASET, "objectives": ["P@1"], "space": {}, "settings": {}}
    study = Study(name="mine-x", digest="a", best=[0], trials=trials, **facts)
    text = str(findings_page(again(found, studies=(study,))))
    assert (f"On {DATASET} 1 searches drew a point twice: a trial less." in text) is told


def test_a_first_place_that_is_shared_is_told(found: Findings) -> None:
    of_unidec = {one.config["seed"]: one for one in found.evidence.records if one.run_id.startswith("with-")}
    level = tuple(
        one.model_copy(update={name: getattr(of_unidec[one.config["seed"]], name) for name in ("metrics", "views")})
        for one in found.evidence.records
    )
    same = again(found, records=level)
    assert f"UniDEC is first in P@1 on {DATASET} (level with other);" in str(findings_page(same))
    assert "Where UniDEC is not first" not in str(standings_page(same))


def test_soft_targets_are_told_of_the_data_that_was_run(found: Findings) -> None:
    assert "soft targets" not in str(findings_page(found))
    seen = str(found.matrix[0].records[0].dataset["digest"])
    for digest, share, told in ((seen, 0.04, True), ("other", 0.04, False), (seen, None, False)):
        common = {DATASET: Neighbours(dataset=DATASET, digest=digest, examples=[], items=99, true_share=share)}
        text = str(findings_page(again(found, neighbours=common)))
        assert (f"by weight 4% on {DATASET} is among them." in text) is told


def test_without_runs_there_is_no_page(found: Findings) -> None:
    nothing = Findings(Evidence(()), [])
    assert (findings_page(nothing), standings_page(nothing)) == (None, None)


def test_what_repeats_the_runs_is_told_once(found: Findings) -> None:
    """Ours by name, with the seeds they have; of papers' tables, those with the same seeds share a command."""

    def ran(name: str, dataset: str, seed: int) -> Any:
        table = SimpleNamespace(table=name, seeds={DATASET: [0]} if name == "sphere" else {})
        ahead = SimpleNamespace(table=table, records=[SimpleNamespace(config={"seed": seed})])
        return SimpleNamespace(dataset=dataset, ahead=ahead, behind=SimpleNamespace(records=ahead.records))

    outcomes = [ran(name, dataset, seed) for name in ("b", "a") for dataset in ("x", "y") for seed in (1, 0)]
    outcomes += [ran("a", "z", 0), ran("c", "x", 0), ran("sphere", DATASET, 0), ran("sphere", "w", 0)]
    found.__dict__["all"] = [SimpleNamespace(outcomes=outcomes)]
    commands = [line for line in page._foot(found).splitlines() if " bench " in line]
    assert [line.split("bench ")[1].split("  ")[0] for line in commands] == [
        "--table mine,sphere",
        "--table a,b --datasets x,y --seeds 0,1",
        "--table a --datasets z --seeds 0",
        "--table c --datasets x --seeds 0",
        "--table sphere --datasets w --seeds 0",
    ]
