"""From a grid to a table: the paper's figure beside ours, best and second, tests against the best baseline."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from harness.errors import DataError
from harness.published import published_tables
from harness.record import RunRecord, per_row_file
from harness.report import Cell, Table
from harness.report.comparing.paired import sign_flip_p
from harness.report.evidence import Evidence
from harness.report.grids import grids
from harness.report.grids.drawn import grid_table
from harness.report.grids.quantities import value
from harness.report.grids.significance import p_value
from tests.test_declared import DATASET, ETA, record, row, table

NAMES = ("concat", "de", "clf")


def kept(folder: Path, one: RunRecord, scores: dict[str, NDArray[np.float64]]) -> RunRecord:
    """The run with rows of its own in the folder of runs: P@1 of every test row, by view."""
    views = {view: {"P@1": float(rows.astype(np.float32).mean())} for view, rows in scores.items()}
    run = one.model_copy(update={"views": views, "metrics": views["concat"], "per_row": ["P@1"]})
    (folder / one.run_id).mkdir()
    for view, rows in scores.items():
        file = folder / one.run_id / per_row_file(None if view == "concat" else view)
        np.save(file, rows[:, None].astype(np.float32), allow_pickle=False)
    return run


def drawn(records: list[RunRecord], folder: Path | None = None, declared: Any = ETA, dataset: str = DATASET) -> Table:
    (grid,) = grids(records, declared, [dataset])
    return grid_table(grid, Evidence(tuple(records), folders=(folder,) if folder else ()))


def column(shown: Table, name: str) -> dict[str, Cell]:
    place = shown.columns.index(name)
    return {cells[0].text: cells[place] for cells in shown.rows}


def test_mean_spread_paper_and_what_is_missing() -> None:
    """fault 61"""
    runs = [
        record("a", dataset="lf-amazon-131k", batch_size=575, p1=42.0),
        record("b", dataset="lf-amazon-131k", batch_size=575, p1=44.0, seed=1),
    ]
    shown = drawn(runs, dataset="lf-amazon-131k")
    cells = column(shown, "P@1")
    assert cells["FULL"].shown == "43.00 ± 1.41 (paper 40.00, +3.00)"
    assert cells["FULL-DE"].shown == "42.00 ± 1.41 (paper 40.00, +2.00)"
    assert cells["EASY"].shown == "X (paper 40.00)"
    assert cells["OTHER"].shown == "X (paper 40.00)"
    assert (cells["FULL"].best, cells["FULL-DE"].second, cells["EASY"].best) == (True, True, False)
    assert column(shown, "hours")["FULL"].shown == "2.0 ± 0.0 (paper 24.0, -22.0)"
    assert [cell.text for cell in shown.rows[1]][:5] == ["EASY", "unidec", "concat", "eta=0", "0 of 2"]
    for words in ("over seeds (0, 1)", "Filter pairs masked", "data abc, metrics v1", "harness 0.1.0", "X: nothing"):
        assert words in shown.caption
    assert shown.notes == ("OTHER: cannot be run: not here",)


def test_one_seed_has_no_spread_and_a_slip_is_marked() -> None:
    """fault 61"""
    wrong = table(row("full", slip="digits swapped"), row("easy", settings={"eta": 0, "batch_size": 575}))
    shown = drawn([record("a", dataset="lf-amazon-131k", batch_size=575)], declared=wrong, dataset="lf-amazon-131k")
    assert column(shown, "P@1")["FULL"].shown == "50.00 (paper 40.00?, +10.00)"
    assert "FULL: slip in the paper: digits swapped" in shown.notes


def test_on_other_data_the_papers_figures_are_not_shown() -> None:
    shown = drawn([record("a"), record("b", eta=0, p1=40.0)])
    assert column(shown, "P@1")["FULL"].shown == "50.00"
    assert "OTHER" not in column(shown, "P@1")
    assert "OTHER: cannot be run: not here" in shown.notes
    assert "no figures for this dataset" in shown.caption
    assert "paper" not in "".join(cell.shown for cells in shown.rows for cell in cells)


def noise(seed: int, shift: float = 0.0) -> NDArray[np.float64]:
    return np.where(np.random.default_rng(seed).random(600) < 0.5 + shift, 100.0, 0.0)


def test_marks_are_against_the_first_row_and_need_rows(tmp_path: Path) -> None:
    base = noise(0)
    better, same = base.copy(), base.copy()
    better[:60] = 100.0
    same[:2] = 100.0 - same[:2]
    runs = [
        kept(tmp_path, record("a"), {"concat": base, "de": same, "clf": base}),
        kept(tmp_path, record("b", eta=0), {"concat": better, "de": base, "clf": base}),
    ]
    shown = drawn(runs, tmp_path)
    assert {name: cell.mark for name, cell in column(shown, "P@1").items()} == {
        "FULL": "",
        "EASY": "†",
        "FULL-DE": "",
    }
    assert "than the best baseline, FULL:" in shown.caption
    untested = drawn(runs)
    assert not any(cell.mark for cells in untested.rows for cell in cells)
    assert "baseline" not in untested.caption


def test_the_papers_methods_are_held_against_the_best_of_the_others(tmp_path: Path) -> None:
    both = table(
        row("unidec", settings={}), *(row(name, method=name, view=None, settings={}) for name in ("dpr", "ance"))
    )
    low, high = noise(1, -0.3), noise(1, 0.3)
    runs = [
        kept(tmp_path, record("a"), {"concat": low}),
        kept(tmp_path, record("b", method="dpr"), {"concat": low}),
        kept(tmp_path, record("c", method="ance"), {"concat": high}),
    ]
    cells = column(drawn(runs, tmp_path, both), "P@1")
    assert {name: cell.mark for name, cell in cells.items()} == {"UNIDEC": "‡", "DPR": "", "ANCE": ""}


def test_rows_of_another_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [kept(tmp_path, one, {"concat": noise(2)}) for one in (record("a"), record("b", eta=0))]
    wrong = runs[1].model_copy(update={"views": {}, "metrics": {"P@1": 1.0}})
    shown = drawn([runs[0], wrong], tmp_path)
    assert not any(cell.mark for cells in shown.rows for cell in cells)
    assert "rows and record are not of one run" in capsys.readouterr().err
    with pytest.raises(DataError, match="rows and record are not of one run"):
        Evidence((), folders=(tmp_path,)).rows(wrong, None, "P@1")


@settings(max_examples=20)
@given(st.lists(st.sampled_from([-3.0, -1.0, 1.0, 2.0]), min_size=200, max_size=300), st.integers(0, 40))
def test_the_normal_limit_is_the_permutation_test(values: list[float], ahead: int) -> None:
    difference = np.array(values)
    difference[:ahead] = np.abs(difference[:ahead])
    assert p_value(difference) == pytest.approx(sign_flip_p(difference, resamples=4000), abs=0.05)


def test_few_rows_are_tested_exactly() -> None:
    assert p_value(np.zeros(300)) == 1.0
    lone = np.zeros(300)
    lone[7] = 1.0
    assert p_value(lone) == 1.0  # one row that differs decides nothing, whatever its size


def test_what_a_run_cost() -> None:
    facts = {
        "training": {"steps": 120, "epochs": 15, "seconds": 36.0, "stages": ["unidec"]},
        "dataset": {"name": DATASET, "statistics": {"train": 4000}},
        "curves": {"step": [8.0, 16.0], "train/pool": [100.0, 300.0], "train/positives": [1.0, None]},
        "peak_memory_gib": 1.0,
    }
    run = record("a").model_copy(update=facts)
    costs = {name: value(run, name) for name in ("|Q_B|", "|L_B|", "positives", "memory GB", "hours", "d")}
    assert costs == {
        "|Q_B|": 500.0,
        "|L_B|": 200.0,
        "positives": 1.0,
        "memory GB": 2**30 / 1e9,
        "hours": 0.01,
        "d": None,
    }
    assert value(run, "P@1", "de") == 49.0
    assert value(run, "C@5") is None
    apart = run.model_copy(update={"training": {"peak_memory_gib": 3.0}})  # trained in a process of its own
    assert value(apart, "memory GB") == pytest.approx(3 * 2**30 / 1e9)
    assert value(run.model_copy(update={"training": {}, "curves": {}}), "|Q_B|") is None


@pytest.mark.parametrize("name", sorted(published_tables()))
def test_every_published_table_can_be_drawn_without_a_run(name: str) -> None:
    for grid in grids([], published_tables()[name]):
        shown = grid_table(grid, Evidence(()))
        assert len(shown.rows) == len(grid.lines)
        assert all(len(cells) == len(shown.columns) for cells in shown.rows)


def test_a_way_of_scoring_that_a_run_does_not_have_is_not_another(tmp_path: Path) -> None:
    one = kept(tmp_path, record("a"), {"concat": noise(0), "de": noise(1)})
    evidence = Evidence((one,), folders=(tmp_path,))
    assert evidence.rows(one, "de", "P@1") is not None
    assert evidence.rows(one, "clf", "P@1") is None


@pytest.mark.parametrize(("sizes", "told"), [([0, 0.0], "last epoch, no test row"), ([0.1, 0.1], "held-out rows;")])
def test_the_caption_tells_which_epoch_and_how_many_runs(sizes: list[float], told: str) -> None:
    runs = [record("a"), record("b", eta=0)]
    for one, size in zip(runs, sizes, strict=True):
        one.config["validation"]["size"] = size
    caption = drawn(runs).caption
    assert told in caption
    assert "one run each, seed 0." in caption
    assert "±" not in caption
    assert "over seeds (0, 1)" in drawn([record("a"), record("c", seed=1)]).caption
