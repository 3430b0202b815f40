"""Tables are pure functions of records, and safe in every form."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UserError
from harness.report.cells import Figure
from harness.report.documents import comparison
from harness.report.results import read_records
from harness.report.rows import changed_settings
from harness.report.tables import FORMATS, render
from harness.runs.record import RunRecord
from tests.faults.accounts import Account


def record(run_id: str, *, method: str = "zeroshot", seed: int = 0, p1: float = 50.0, **changes: object) -> RunRecord:
    values = {
        "run_id": run_id,
        "status": "finished",
        "started": f"2026-01-01T00:00:0{len(run_id)}",
        "seconds": 2.0,
        "config": {
            "method": method,
            "encoder": "static",
            "dataset": "d",
            "seed": seed,
            "device": "cpu",
            "batch_tokens": 1,
        },
        "dataset": {"name": "d", "digest": "abc", "filter": True},
        "metrics": {"P@1": p1, "PSP@1": p1 / 2},
        "metric_version": 1,
    }
    return RunRecord.model_validate({**values, **changes})


def test_cells_hold_figures_of_the_newest_run_of_each_seed() -> None:
    (table,) = comparison([record("a", p1=10.0), record("bb", p1=50.0), record("c", seed=1, p1=52.0)])
    (row,) = table.rows
    found = dict(zip(table.columns, row, strict=True))
    assert found["P@1"].figure == Figure(51.0, 2**0.5, 2, wanted=2)
    assert found["seconds"].figure == Figure(2.0, 0.0, 2, digits=1)
    assert (found["method"].figure, found["seeds"].text) == (None, "2")


def test_a_cell_of_fewer_seeds_says_so() -> None:
    """fault 61"""
    (table,) = comparison([record("a"), record("b", seed=1, metrics={"P@1": 50.0})])
    assert table.rows[0][table.columns.index("PSP@1")].text == "25.00 (1 of 2 seeds)"


def test_what_is_missing_failed_or_tied_is_marked_in_every_form(account: Account) -> None:
    """fault 61: one table with all of it, as it is printed"""
    records = [
        *(record(f"a{seed}", method="two-seeds", seed=seed, p1=50.0 + 2 * seed) for seed in range(2)),
        record("b", method="one-seed", p1=60.0),
        record("c", method="no-psp", metrics={"P@1": 40.0, "R@5": 7.0}),
        record("d", method="tied", p1=60.0, metrics={"P@1": 60.0, "R@5": 7.0}),
        record("e", method="dead", status="failed", metrics={}),
    ]
    (table,) = comparison(records)
    texts = {form: render([table], form) for form in FORMATS}
    head, *lines = [line.strip("| ").split(" | ") for line in texts["md"].splitlines() if line.startswith("| ")]
    shown = {cells[0]: dict(zip(head, cells, strict=True)) for cells in lines}
    metrics = {name: [cells[metric] for metric in ("P@1", "PSP@1", "R@5")] for name, cells in shown.items()}
    assert metrics == {  # what prints alike is marked alike, and nobody is better in a column of ties
        "two-seeds": ["51.00 ± 1.41", "<ins>25.50 ± 0.71</ins>", "X"],
        "one-seed": ["**60.00**", "**30.00**", "X"],
        "no-psp": ["40.00", "X", "7.00"],
        "tied": ["**60.00**", "X", "7.00"],
    }
    assert texts["tex"].count(r"\textbf{60.00}") == 2
    spreads = [row["P@1 std"] for row in csv.DictReader(texts["csv"].splitlines())]
    assert sum(map(bool, spreads)) == 1
    account.did("one table: 2 seeds, 1 seed, a tie, a column of ties, 2 missing metrics, a failed run; 3 forms")
    account.saw(
        f"missing cells {metrics['no-psp'][1]}; spread on one row alone ({metrics['two-seeds'][0]}); "
        "no bold in the column of ties; the failed run is in no row"
    )


def test_different_data_filters_or_metrics_never_share_a_table(account: Account) -> None:
    """fault 62"""
    records = [
        record("a"),
        record("b", dataset={"name": "d", "digest": "other", "filter": True}),
        record("c", dataset={"name": "d", "digest": "abc", "filter": False}),
        record("e", metric_version=2),
        record("f", dataset={"name": "d", "digest": "abc", "filter": True, "propensity": {"a": 0.5, "b": 0.4}}),
        record("g", dataset={"name": "d", "digest": "abc"}),  # says nothing of a filter: none was used
        record("h", environment={"harness": "9.9"}),
    ]
    tables = comparison(records)
    assert len(tables) == len({table.id for table in tables}) == len({table.caption for table in tables}) == 6
    assert sum("propensity A 0.5, B 0.4" in table.caption for table in tables) == 1
    account.did(f"{len(records)} runs of one method: other data, filter, propensity, metric version, harness version")
    account.saw(f"{len(tables)} tables, each with a caption of its own; none has two versions")


def test_failed_runs_do_not_count_and_none_is_an_error() -> None:
    with pytest.raises(UserError, match="no finished run"):
        comparison([record("a", status="failed", metrics={})])
    with pytest.raises(UserError, match="no finished run on 'x'"):
        comparison([record("a")], "x")


def test_settings_show_what_differs() -> None:
    config = {"method": "m", "encoder": "e", "seed": 0, "params": {"beta": 1, "eta": 6}, "search": {"k": 100}}
    other = {**config, "params": {"beta": 2, "eta": 6}}
    (table,) = comparison([record("a", config=config), record("b", config=other)])
    assert [row[table.columns.index("settings")].text for row in table.rows] == ["beta=1", "beta=2"]


def test_other_cut_offs_are_shown_too() -> None:
    (table,) = comparison([record("a", metrics={"P@10": 5.0, "R@10": 6.0})])
    assert {"P@10", "R@10"} <= set(table.columns)


def test_same_records_same_bytes() -> None:
    """fault 63"""
    records = [record("a"), record("b", method="other", p1=10.0), record("c", seed=4)]
    for form in ("md", "tex", "csv"):
        assert render(comparison(records), form) == render(comparison(records[::-1]), form)


def test_the_run_shown_in_the_readme_is_a_committed_record() -> None:
    """A changed default shows here: the page would promise numbers that nobody gets."""
    root = Path(__file__).parents[2]
    shown = (root / "README.md").read_text(encoding="utf-8")
    (record,) = (
        record
        for record in read_records([root / "reports"])
        if (record.config["method"], record.dataset["name"]) == ("unidec", "lf-pydocstitles")
        and record.config["seed"] == 0
        and changed_settings(record) == {}
    )
    lines = [line.split() for line in shown.splitlines()]
    for scorer, scores in record.scorers.items():
        assert [scorer, *(f"{scores[name]:.2f}" for name in ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5"))] in lines
    assert ["P", *(f"{record.metrics[f'P@{k}']:.2f}" for k in (1, 3, 5))] in lines


def test_one_table_needs_few_modules_and_nothing_heavy() -> None:
    """Files of packages that only mark a folder aside; what shows one table waits for nothing else."""
    root = Path(__file__).parents[2]
    code = (
        "import atexit, sys; from harness.cli import main; "
        "atexit.register(lambda: print(*(name for name in sys.modules), file=sys.stderr)); main(sys.argv[1:])"
    )
    words = ["report", "--table", "thesis-2.5", "--format", "csv", "--runs", str(root / "tests" / "golden" / "runs")]
    done = subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True, cwd=root)
    loaded = done.stderr.splitlines()[-1].split()
    files = {name: root.joinpath(*name.split(".")) for name in loaded if name.split(".")[0] == "harness"}
    assert len([name for name, path in files.items() if not path.is_dir()]) < 30
    assert not {"torch", "mlflow", "matplotlib", "transformers"} & {*loaded}
