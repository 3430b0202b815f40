"""Rows of published tables as cells, and the table that comes of them."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.cli import bench as benching
from harness.experiments.bench import Request, State
from harness.experiments.bench.table import Planned, TablePlan, as_tables, plan_tables, remarks_on
from harness.report.published import table_results
from harness.runs.record import RunRecord
from harness.settings import published
from harness.settings.published import published_table
from tests.support.bench_cells import finished
from tests.support.commands import call
from tests.support.training_runs import DATASET

pytestmark = pytest.mark.usefixtures("one_thread")

ROW = """
  - row: {stem}/{dataset}
    label: {label}
    dataset: {dataset}
    method: {method}
    scorer: {scorer}
    settings: {{{settings}}}
    results: {{P@1: {value}, C@5: null, hours: 3}}
"""
HEAD = """
table: {name}
source: a paper
caption: two similarities
metrics: [P@1, C@5, hours]
unsaid: []
rows:
"""
ABSENT = """
  - row: other/{dataset}
    label: Other
    dataset: {dataset}
    method: null
    results: {{P@1: 99, C@5: 9, hours: null}}
    absent: it is not part of this harness
"""
ELSEWHERE = "synthetic:train=60,test=20,labels=30"
TINY = ["--encoder", "tiny", "--track", "none"]


def table(name: str, *rows: str) -> str:
    return HEAD.format(name=name) + "".join(rows)


def row(stem: str, dataset: str, settings: str, *, method: str = "zeroshot", scorer: str = "null", **more: Any) -> str:
    metadata = {"label": stem.title(), "value": 50} | more
    return ROW.format(stem=stem, dataset=dataset, settings=settings, method=method, scorer=scorer, **metadata)


def heads(dataset: str, batch: int) -> list[str]:
    """A table as those of the thesis: each training seen through two scorers, `eta` varied."""
    own = f"encoder: tiny, dim: 16, batch_size: {batch}, epochs: 1"
    return [
        row("full", dataset, f"{own}, eta: 6", method="unidec", scorer="concat"),
        row("full-de", dataset, f"{own}, eta: 6, scorer: de", method="unidec", scorer="de", label="Full DE"),
        row("easy", dataset, f"{own}, eta: 0, seed: 4", method="unidec", scorer="concat", value=48),
    ]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of published tables: demo-1 as those of the thesis, demo-2 with rows of two datasets."""
    folder = tmp_path / "published"
    folder.mkdir()
    monkeypatch.setattr(published, "PUBLISHED_FOLDER", folder)
    published_table.cache_clear()
    data = "synthetic"
    (folder / "demo-1.yaml").write_text(
        table("demo-1", *heads(data, 32), *heads("lf-amazon-131k", 64), ABSENT.format(dataset=data))
    )
    cosine, dot = "encoder: tiny, similarity: cosine", "encoder: tiny, similarity: dot"
    (folder / "demo-2.yaml").write_text(
        table("demo-2", row("cosine", data, cosine), ABSENT.format(dataset=data), row("dot", data, dot, value=40.5))
    )
    yield folder
    published_table.cache_clear()


def planned(tables: str, datasets: str | None = None, **changed: Any) -> TablePlan:
    return plan_tables(Request(**{"methods": "all", "datasets": datasets, "seeds": "0", "tables": tables} | changed))


def shown(rows: list[Planned]) -> list[tuple[str, str, str | None]]:
    return [(planned.row.label, planned.row.dataset, planned.row.scorer) for planned in rows]


def test_rows_on_their_own_dataset_have_the_settings_as_printed(tables: Path) -> None:
    plan = planned("demo-1", seeds="0,1")
    assert shown(plan.rows) == [
        ("Full", "synthetic", "concat"),
        ("Full DE", "synthetic", "de"),
        ("Easy", "synthetic", "concat"),
        ("Other", "synthetic", None),
    ]
    full, half, easy, other = plan.rows
    assert full.cells == half.cells  # one training, seen through two scorers
    assert [cell.config.seed for cell in plan.cells] == [0, 0, 1, 1]  # the bench's seeds, not the row's
    assert [full.cells[0], easy.cells[0], full.cells[1], easy.cells[1]] == plan.cells
    assert other.cells == ()
    params = plan.cells[0].config.params
    assert (params["eta"], params["batch_size"], params["scorer"], params["dim"]) == (6, 32, "concat", 16)
    assert plan.cells[0].title == "unidec eta=6"
    (missing,) = plan.left_out  # the table's other dataset costs its own cells alone
    assert missing.startswith("lf-amazon-131k is not on this machine")
    assert "data check lf-amazon-131k" in missing


def test_on_another_dataset_a_row_is_its_method_and_what_the_table_varies(tables: Path) -> None:
    plan = planned("demo-1", ELSEWHERE, encoder="tiny")
    assert [planned.row.variant for planned in plan.rows] == ["eta=6", "eta=6", "eta=0", ""]
    first, second = plan.cells
    assert first.given == {"params": {"eta": 6}, "encoder": "tiny"}
    assert second.given == {"params": {"eta": 0}, "encoder": "tiny"}
    assert first.config.params["batch_size"] != 32
    assert (first.config.dataset, plan.left_out) == (ELSEWHERE, [])
    (tables / "demo-3.yaml").write_text((tables / "demo-1.yaml").read_text().replace("demo-1", "demo-3"))
    both = planned("demo-1,demo-3", ELSEWHERE, encoder="tiny")
    assert (len(both.rows), both.cells) == (8, plan.cells)  # tables share their cells


def test_rows_that_become_the_same_run_are_one_line(tables: Path) -> None:
    plan = planned("demo-1", ELSEWHERE, encoder="tiny", settings=("unidec:eta=2",))
    assert shown(plan.rows)[:2] == [("Full / Easy", ELSEWHERE, "concat"), ("Full DE", ELSEWHERE, "de")]
    assert len(plan.cells) == 1
    assert plan.cells[0].config.params["eta"] == 2


def test_methods_select_rows(tables: Path) -> None:
    one_of_two = planned("demo-1,demo-2", "synthetic", methods="zeroshot")
    assert shown(one_of_two.rows) == [("Cosine", "synthetic", None), ("Dot", "synthetic", None)]
    assert shown(planned("demo-1,demo-2", "synthetic", methods="all,-unidec").rows)[0][0] == "Other"
    chosen = planned("demo-2", methods="zeroshot", settings=("zeroshot:similarity=dot",))
    assert shown(chosen.rows) == [("Cosine / Dot", "synthetic", None)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "demo-9"], "unknown published table 'demo-9'; did you mean 'demo-"),
        (["--table", ","], "--table names none, for example thesis-2.5"),
        (
            ["--table", "demo-2", "--methods", "depsl"],
            "no row of demo-2 can be run with --methods depsl: their methods are zeroshot",
        ),
        (["--table", "demo-2", "--set", "unidec:eta=3"], "unidec is not among the methods of this bench (zeroshot)"),
        (["--table", "demo-2", "--seeds", "x"], "--seeds takes whole numbers"),
        (["--table", "demo-2", "--datasets", "nowhere"], "unknown dataset 'nowhere'"),
        (["--table", "demo-2", "--rows", "dott"], "unknown row of demo-2 'dott'; did you mean 'dot'"),
        (["--table", "demo-2", "--rows", " ,"], "--rows names none"),
        (["--rows", "dot"], "name it with --table"),
    ],
)
def test_one_fault_is_one_line(
    tables: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 65"""
    assert call("bench", *TINY, *arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert (told.startswith("error: "), len(told.splitlines())) == (True, 1)


def test_nothing_left_is_an_error_that_names_the_way_out(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tables / "demo-4.yaml").write_text(table("demo-4", *heads("lf-amazon-131k", 8), *heads("lf-amazontitles-131k", 8)))
    assert call("bench", "--table", "demo-4", *TINY) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "error: 2 faults, nothing was run:"
    assert [line.split()[0] for line in told[1:3]] == ["lf-amazon-131k", "lf-amazontitles-131k"]
    assert "--datasets lf-pydocstitles" in told[3]


def with_scorers(record: RunRecord, seed: int, **scorers: float) -> RunRecord:
    scores = {scorer: {"P@1": value, "C@5": value / 2} for scorer, value in scorers.items()}
    changed = {"scorers": scores, "metrics": next(iter(scores.values())), "run_id": f"run-{seed}"}
    return record.model_copy(update=changed)


def test_a_row_reads_its_scorer_and_has_the_papers_figure_beside_it(tables: Path) -> None:
    record, _ = finished(planned("demo-2", DATASET, encoder="tiny").cells[0])
    plan = planned("demo-1", "synthetic", encoder="tiny", seeds="0,1")
    states = [State(cell) for cell in plan.cells]
    states[0].finish(with_scorers(record, 0, concat=10.0, de=30.0))
    states[2].finish(with_scorers(record, 1, concat=14.0, de=30.0))
    states[1].finish(with_scorers(record, 2, concat=20.0))
    (drawn,) = as_tables(plan.rows, states)
    assert drawn.columns == ("row", "method", "scorer", "settings", "seeds", "P@1", "C@5", "hours")
    assert [tuple(cell.shown for cell in entries)[4:7] for entries in drawn.rows] == [
        ("2", "12.00 ± 2.83 (paper 50.00, -38.00)", "6.00 ± 1.41"),
        ("2", "30.00 ± 0.00 (paper 50.00, -20.00)", "15.00 ± 0.00"),
        ("1 of 2", "20.00 (paper 48.00, -28.00)", "10.00"),
        ("", "X (paper 99.00)", "X (paper 9.00)"),
    ]
    assert remarks_on(plan.rows) == ["demo-1 Other: cannot be run: it is not part of this harness"]
    line = plan.rows[0].as_dict({state.cell.key: state.record for state in states if state.record})
    assert (line["metrics"]["P@1"], line["run_ids"]) == (12.0, ["run-0", "run-1"])
    assert line["published"] == {"P@1": 50.0, "hours": 3.0}
    states[0].record = states[2].record = None
    assert as_tables(plan.rows, states)[0].rows[0][5].shown == "X (paper 50.00)"


def test_from_the_plan_to_the_table(workspace: Path, tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = ["bench", "--table", "demo-2", "--datasets", f"synthetic,{DATASET}", *TINY]
    plan = planned("demo-2", f"synthetic,{DATASET}", encoder="tiny")
    for cell in plan.cells[:3]:
        finished(cell)
    assert call(*bench, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "4 cells: 3 done, 1 missing" in shown
    assert [line.split()[:2] for line in shown.splitlines() if line.strip().startswith("demo-2 ")][1] == [
        "demo-2",
        "Dot",
    ]
    assert call(*bench, "--dry-run", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert [cell["status"] for cell in answer["cells"]] == ["done", "done", "done", "missing"]
    assert [entry["absent"] for entry in answer["rows"]][1] == "it is not part of this harness"
    assert [entry["cells"] for entry in answer["rows"] if entry["cells"]] == [
        [cell["cell"]] for cell in answer["cells"]
    ]
    assert answer["left_out"] == []
    finished(plan.cells[3])
    whole = benching._look(Request("all", f"synthetic,{DATASET}", "0", "tiny", (), "demo-2"), workspace / "runs", [])
    (one,) = whole.tables(whole.states[:2])  # as the parent run of a dataset shows it
    assert one.title.startswith("demo-2 on synthetic: ")
    assert call(*bench) == 0
    shown = capsys.readouterr().out
    own, other = shown.index("demo-2 on synthetic: two similarities"), shown.index(f"demo-2 on {DATASET}")
    assert "(paper 40.50" in shown[own:other]
    assert "a paper." in shown[own:other]
    assert "(paper 40.50" not in shown[other:]
    assert "a row is its method with what the table varies" in shown[other:]
    assert shown.count("Other: cannot be run: it is not part of this harness") == 1
    assert "4 of 4 cells done" in shown


def test_the_command_of_a_table_runs_what_the_table_shows(
    workspace: Path, tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With settings that were changed for all methods, for one, for two in other ways; one method was not run."""
    path = tables / "demo-3.yaml"
    other, zero = row("other", "lf-amazon-131k", "", method="tfidf-knn"), row("zero", "lf-amazon-131k", "")
    trained = row("trained", "lf-amazon-131k", "", method="dpr", scorer="de")
    path.write_text(table("demo-3", *heads("lf-amazon-131k", 64), zero, trained, other))
    given = (
        "max_len=9",
        "unidec:epochs=1",
        "dpr:epochs=2",
        "dpr:batch_size=60",
        "unidec:batch_size=32",
        "unidec:dim=16",
    )
    given += ("unidec:double_at=[1, 3]", "unidec:beta=null", "unidec:fill=false", "zeroshot:similarity=dot")
    chosen = {"methods": "unidec,zeroshot,dpr", "encoder": "tiny", "settings": given, "seeds": "0,4"}
    cells = planned("demo-3", DATASET, **chosen).cells
    records = [finished(cell)[0] for cell in cells]
    (found,) = table_results(records, published_table("demo-3"), [records[0].dataset["name"]])
    assert len(found.records) == len(cells) == 8
    command = shlex.split(found.command)
    assert command[:4] == ["python", "-m", "harness", "bench"]
    assert call(*command[3:], "--track", "none", "--dry-run") == 0
    assert "8 cells: 8 done\n" in capsys.readouterr().out
    for place in (place for place, word in enumerate(command) if word == "--set"):
        left = command[3:place] + command[place + 2 :]
        assert call(*left, "--track", "none", "--dry-run") == 0
        assert "8 done" not in capsys.readouterr().out, command[place + 1]


def test_rows_of_a_table_can_be_named(workspace: Path, tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = ["bench", "--table", "demo-2", "--datasets", "synthetic", *TINY, "--dry-run", "--json"]
    assert call(*bench) == 0
    every = json.loads(capsys.readouterr().out)["cells"]
    assert len(every) == 2
    for names, count in (("dot", 1), ("cosine", 1), ("cosine,dot", 2)):
        assert call(*bench, "--rows", names) == 0
        answer = json.loads(capsys.readouterr().out)
        assert [entry["rows"] for entry in answer["rows"]] == [[f"{name}/synthetic"] for name in names.split(",")]
        assert len(answer["cells"]) == count
    assert answer["cells"] == every
