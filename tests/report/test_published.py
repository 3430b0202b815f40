"""Published tables on runs: which records are which row, that nothing is mixed, and the table that they give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.errors import DataError
from harness.report.cells import Cell, Table
from harness.report.published import Change, TableResult, as_table, table_results
from harness.report.results import Results
from harness.report.rows import value
from harness.runs.record import RunRecord
from harness.settings.published import PublishedTable, published_tables
from tests.support.table_runs import DATASET, ETA, PRINTED, declared_row, declared_table, record, with_rows


def only(records: list[RunRecord], declared: PublishedTable = ETA, dataset: str = DATASET) -> TableResult:
    (table,) = table_results(records, declared, [dataset])
    return table


def found(table: TableResult) -> dict[str, list[str]]:
    return {row.label: [one.run_id for one in row.records] for row in table.rows}


def test_a_row_takes_the_runs_that_agree_in_what_the_table_varies() -> None:
    runs = [record("a"), record("b", eta=0), record("c", seed=1), record("d", eta=3), record("e", method="dpr")]
    table = only(runs)
    assert found(table) == {"FULL": ["a", "c"], "EASY": ["b"], "FULL-DE": ["a", "c"], "OTHER": []}
    assert [row.wanted for row in table.rows] == [2, 2, 2, 0]
    assert (table.base, table.left_out) == ((), 0)


def test_on_its_own_dataset_a_row_has_all_its_settings() -> None:
    for size, runs in ((575, ["a"]), (64, [])):
        assert found(only([record("a", dataset=PRINTED, batch_size=size)], dataset=PRINTED))["FULL"] == runs


def test_the_newest_run_of_a_seed_counts() -> None:
    assert found(only([record("old"), record("newer", p1=60.0)]))["FULL"] == ["newer"]


def test_all_rows_share_what_is_not_varied() -> None:
    """The base with most rows wins, and is named; a lone run at the defaults is not mixed in."""
    runs = [record("a", encoder="minilm"), record("b", eta=0, encoder="minilm"), record("c")]
    table = only(runs)
    assert found(table) == {"FULL": ["a"], "EASY": ["b"], "FULL-DE": ["a"], "OTHER": []}
    assert table.base == (Change("encoder", "minilm"),)
    assert found(only([*runs, record("d", eta=0)]))["EASY"] == ["d"]  # as many rows: the defaults win


def test_a_change_for_one_method_does_not_part_it_from_the_others() -> None:
    both = declared_table(
        declared_row("unidec", settings={}), declared_row("dpr", method="dpr", scorer="de", settings={})
    )
    for epochs, base in (
        ({}, (Change("epochs", 3, ("unidec",)),)),
        ({"epochs": 3}, (Change("epochs", 3),)),
        ({"epochs": 4}, (Change("epochs", 3, ("unidec",)), Change("epochs", 4, ("dpr",)))),
    ):
        table = only([record("a", epochs=3), record("b", method="dpr", **epochs)], both)
        assert found(table) == {"UNIDEC": ["a"], "DPR": ["b"]}
        assert table.base == base
        assert ("may be one of settings" in as_table(table, Results(())).caption) is not bool(epochs)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "xyz"},
        {"propensity": {"a": 0.5, "b": 0.4}},
        {"metric_version": 2},
        {"environment": {"harness": "0.2.0"}},
        {"encoder": "minilm"},
    ],
)
def test_versions_are_never_mixed_in_one_table(change: dict[str, Any]) -> None:
    """fault 62"""
    runs = [record("a"), record("b", seed=1), record("c", eta=0), record("d", eta=0, seed=1, **change)]
    table = only(runs)
    assert found(table) == {"FULL": ["a", "b"], "EASY": ["c"], "FULL-DE": ["a", "b"], "OTHER": []}
    assert table.left_out == (0 if "encoder" in change else 1)


def test_a_record_without_a_digest_has_a_caption() -> None:
    table = only([record("a", digest=None), record("b", eta=0, digest=None)])
    assert "data None" in as_table(table, Results(())).caption


def test_failed_runs_and_trials_fill_no_row() -> None:
    """fault 61"""
    trial = record("b")
    trial.config["evaluate"] = "validation"
    assert table_results([record("a", status="failed"), trial], ETA, [DATASET]) == []


def test_a_paper_is_shown_without_runs_and_other_data_only_with_them() -> None:
    full = [record("a"), record("b", eta=0)]
    for runs, given, datasets in (
        ([], None, [PRINTED]),
        (full[:1], None, [PRINTED]),  # one row compares nothing
        (full[:1], [DATASET], [DATASET]),
        (full, None, [DATASET, PRINTED]),
    ):
        assert [table.dataset for table in table_results(runs, ETA, given)] == datasets


def test_rows_that_are_one_run_are_one_row() -> None:
    twice = declared_table(declared_row("short", settings={"eta": 6}), declared_row("long", settings={"eta": 6}))
    assert found(only([record("a")], twice)) == {"SHORT / LONG": ["a"]}


def test_an_explicit_default_is_the_default_and_an_old_record_without_a_setting_has_it() -> None:
    old = record("older")
    del old.config["params"]["beta_classifier"]
    assert found(only([record("a", eta=6)]))["FULL"] == ["a"]
    assert found(only([old]))["FULL"] == ["older"]


# -- the table


def drawn(records: list[RunRecord], folder: Path | None = None, declared: Any = ETA, dataset: str = DATASET) -> Table:
    results = Results(tuple(records), folders=(folder,) if folder else ())
    return as_table(only(records, declared, dataset), results)


def column(shown: Table, name: str) -> dict[str, Cell]:
    place = shown.columns.index(name)
    return {cells[0].text: cells[place] for cells in shown.rows}


def test_mean_spread_paper_and_what_is_missing() -> None:
    """fault 61"""
    runs = [
        record("a", dataset=PRINTED, batch_size=575, p1=42.0),
        record("b", dataset=PRINTED, batch_size=575, p1=44.0, seed=1),
    ]
    shown = drawn(runs, dataset=PRINTED)
    cells = column(shown, "P@1")
    assert cells["FULL"].shown == "43.00 ± 1.41 (paper 40.00, +3.00)"
    assert cells["FULL-DE"].shown == "42.00 ± 1.41 (paper 40.00, +2.00)"
    assert cells["EASY"].shown == cells["OTHER"].shown == "X (paper 40.00)"
    assert (cells["FULL"].best, cells["FULL-DE"].second, cells["EASY"].best) == (True, True, False)
    assert column(shown, "hours")["FULL"].shown == "2.0 ± 0.0 (paper 24.0, -22.0)"
    assert [cell.text for cell in shown.rows[1]][:5] == ["EASY", "unidec", "concat", "eta=0", "0 of 2"]
    for words in ("over seeds (0, 1)", "Filter pairs masked", "data abc, metrics v1", "harness 0.1.0", "X: nothing"):
        assert words in shown.caption
    assert shown.notes == ("OTHER: cannot be run: not here",)


def test_one_seed_has_no_spread_and_a_slip_is_marked() -> None:
    """fault 61"""
    wrong = declared_table(
        declared_row("full", slip="digits swapped"), declared_row("easy", settings={"eta": 0, "batch_size": 575})
    )
    shown = drawn([record("a", dataset=PRINTED, batch_size=575)], declared=wrong, dataset=PRINTED)
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
        with_rows(tmp_path, record("a"), {"concat": base, "de": same, "clf": base}),
        with_rows(tmp_path, record("b", eta=0), {"concat": better, "de": base, "clf": base}),
    ]
    shown = drawn(runs, tmp_path)
    marks = {name: cell.mark for name, cell in column(shown, "P@1").items()}
    assert marks == {"FULL": "", "EASY": "†", "FULL-DE": ""}
    assert "than the best baseline, FULL:" in shown.caption
    untested = drawn(runs)
    assert not any(cell.mark for cells in untested.rows for cell in cells)
    assert "baseline" not in untested.caption


def test_the_papers_methods_are_held_against_the_best_of_the_others(tmp_path: Path) -> None:
    others = (declared_row(name, method=name, scorer=None, settings={}) for name in ("dpr", "ance"))
    both = declared_table(declared_row("unidec", settings={}), *others)
    low, high = noise(1, -0.3), noise(1, 0.3)
    runs = [
        with_rows(tmp_path, record("a"), {"concat": low}),
        with_rows(tmp_path, record("b", method="dpr"), {"concat": low}),
        with_rows(tmp_path, record("c", method="ance"), {"concat": high}),
    ]
    cells = column(drawn(runs, tmp_path, both), "P@1")
    assert {name: cell.mark for name, cell in cells.items()} == {"UNIDEC": "‡", "DPR": "", "ANCE": ""}


def test_rows_of_another_run_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [with_rows(tmp_path, one, {"concat": noise(2)}) for one in (record("a"), record("b", eta=0))]
    wrong = runs[1].model_copy(update={"scorers": {}, "metrics": {"P@1": 1.0}})
    shown = drawn([runs[0], wrong], tmp_path)
    assert not any(cell.mark for cells in shown.rows for cell in cells)
    assert "not of one run" in capsys.readouterr().err
    with pytest.raises(DataError, match="not of one run"):
        Results((), folders=(tmp_path,)).rows(wrong, None, "P@1")


def test_what_a_run_cost() -> None:
    metadata: dict[str, Any] = {
        "training": {"steps": 120, "epochs": 15, "seconds": 36.0, "stages": ["unidec"]},
        "dataset": {"name": DATASET, "statistics": {"train": 4000}},
        "curves": {"step": [8.0, 16.0], "train/pool": [100.0, 300.0], "train/positives": [1.0, None]},
        "peak_memory_gib": 1.0,
    }
    run = record("a").model_copy(update=metadata)
    expected = {"|Q_B|": 500.0, "|L_B|": 200.0, "positives": 1.0, "memory GB": 2**30 / 1e9, "hours": 0.01, "d": None}
    assert {name: value(run, name) for name in expected} == expected
    assert (value(run, "P@1", "de"), value(run, "C@5")) == (49.0, None)
    held = {"config": {**run.config, "validation": {"size": 0.2}}}  # 800 rows, unless the record says how many
    assert value(run.model_copy(update=held), "|Q_B|") == 400.0
    drawn = {**metadata["dataset"], "validation_rows": 400}
    assert value(run.model_copy(update={**held, "dataset": drawn}), "|Q_B|") == 450.0
    apart = run.model_copy(update={"training": {"peak_memory_gib": 3.0}})  # trained in a process of its own
    assert value(apart, "memory GB") == pytest.approx(3 * 2**30 / 1e9)
    assert value(run.model_copy(update={"training": {}, "curves": {}}), "|Q_B|") is None


def test_every_published_table_can_be_drawn_without_a_run() -> None:
    for declared in published_tables().values():
        for table in table_results([], declared):
            assert len(as_table(table, Results(())).rows) == len(table.rows)


@pytest.mark.parametrize(("sizes", "words"), [([0, 0.0], "last epoch, no test row"), ([0.1, 0.1], "validation rows;")])
def test_the_caption_names_the_epoch_and_the_number_of_runs(sizes: list[float], words: str) -> None:
    runs = [record("a"), record("b", eta=0)]
    for one, size in zip(runs, sizes, strict=True):
        one.config["validation"]["size"] = size
    caption = drawn(runs).caption
    assert words in caption
    assert "one run each, seed 0." in caption
    assert "over seeds (0, 1)" in drawn([record("a"), record("c", seed=1)]).caption
