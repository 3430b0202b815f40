"""Measured speed as people read it: units, tables, figures, the page on scale."""

import csv
import io
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.batching.cluster import cluster_count
from harness.config import Layer
from harness.errors import DataError, UserError
from harness.perf import Sample, bound, compare
from harness.perf.saved import Machine, Speed, read_speed
from harness.plan.devices import cuda_target
from harness.plan.grown import MOMENTS, grown_plan, listed_search, table_bytes, works
from harness.plan.memory import standing
from harness.plan.sizes import GIB
from harness.plan.steps import moment_parts
from harness.report.evidence import Evidence
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.growing import curves, draw_peak, draw_step, growth
from harness.report.figures.targets import advantage, draw_ratios
from harness.report.scale import BLOCKS, gemm_peak, refreshed
from harness.report.speed import counts, speed_files, speed_tables, target_of
from harness.report.tables import FORMATS, render
from harness.report.units import number, quantity, spread, times, wanted
from tests.speed_rows import LABELS, scaling_rows, seconds, speed, suite, training_rows

ROOT = Path(__file__).parents[1]
EVIL = "=<script>alert(1)</script>_&%#|`x`\\$"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without figures, which take most of the time."""
    monkeypatch.setattr("harness.report.speed.speed_figures", lambda speed: [])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0371, "s", "37.1 ms"),
        (4.2e-5, "s", "42.0 µs"),
        (7.656, "s", "7.66 s"),
        (119.0, "s", "119 s"),
        (9700.0, "s", "2.69 h"),
        (3.75 * 2**30, "B", "3.75 GiB"),
        (400 * 2**20, "B", "400 MiB"),
        (127e6, "B/s", "127 MB/s"),
        (98.4e9, "FLOP/s", "98.4 GFLOP/s"),
        (1.5e15, "FLOP", "1.50 PFLOP"),
        (0.101, "%", "10.1 %"),
        (50_467.0, "rows/s", "50,467 rows/s"),
        (1.004, "", "1.00"),
        (0.0, "s", "0 µs"),
        (-0.25, "s", "-250 ms"),
    ],
)
def test_figures_in_units_of_people(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@given(st.floats(1e-9, 1e15))
def test_three_digits_are_right(value: float) -> None:
    shown = float(number(value).replace(",", ""))
    assert math.isclose(shown, value, rel_tol=0.0051) or value < 1e-7


def test_spread_and_targets_in_words() -> None:
    assert spread(Sample((0.035, 0.037, 0.040), "s")) == "37.0 ms (35.0 to 40.0)"
    assert spread(Sample((0.9, 1.1, 1300.0), "s")) == "1.10 s (0.900 to 1,300)"
    assert spread(Sample((2.0,), "s")) == "2.00 s"
    assert times(Sample((2.0, 3.0, 2.5))) == "2.50x (2.00 to 3.00)"
    assert wanted("at least", 20, None) == "at least 20x"
    assert wanted("at most", 1.15, None) == "at most 1.15x"
    assert wanted("at most", 0.35, "%") == "at most 35 %"
    assert [target_of(row) for row in training_rows()] == [
        *("at least 5x", "at most 1.15x", "at least 0.7x", "at most 8 %", "at least 30 MB/s", "")
    ]
    assert counts(training_rows()) == "5 targets: 4 met, 1 missed; 1 figure is shown without one."
    assert counts(training_rows()[-1:]) == "1 figure is shown without one."


def test_tables_show_what_was_measured_and_what_was_missed(undrawn: None) -> None:
    training, scaling = speed_tables(speed())
    rows = {row[0].text + row[1].text: [cell.text for cell in row[2:]] for row in training.rows}
    assert rows["UniDEC stepL = 131K"] == [
        *("dense AdamW", "loss 40 %", "200 ms (180 to 240)", "1.50 s (1.35 to 1.80)", "7.50x", "at least 5x", "yes")
    ]
    assert rows["UniDEC step1.3M against 13K"][-1] == "MISSED"
    assert rows["rowsN = 4"][-2:] == ["", ""]
    assert "where it goes" not in scaling.columns
    for part in ("commit abababababab", "2026-11-16", "1:01 min", "Some CPU, 2 cores, 23.5 GiB, L2 512K, torch 2.13"):
        assert part in training.caption
    page = speed_files(speed())["speed.md"].decode()
    assert "**MISSED**" in page
    assert "11 targets: 4 met, 7 missed; 7 figures are shown without one. Measured at commit ab" in page
    other = speed().updated({"training": suite(training_rows(), commit="cd" * 20, dirty=True)})
    page = speed_files(other)["speed.md"].decode()
    assert "The 2 suites are from 2 states of code or machine" in page
    assert "commit cdcdcdcdcdcd with changes" in page


def test_every_form_and_every_figure_is_made_the_same_twice() -> None:
    files = speed_files(speed())
    stems = [f"figures/speed-{name}" for name in ("ratios", "step", "memory")]
    expected = {"speed.md", *(f"tables/speed.{form}" for form in FORMATS)}
    assert set(files) == expected | {f"{stem}.{form}" for stem in stems for form in ("svg", "png")}
    assert files == speed_files(speed())
    for stem in stems:
        ElementTree.fromstring(files[f"{stem}.svg"])
        assert f"({stem}.png)" in files["speed.md"].decode()
    assert len(list(csv.reader(io.StringIO(files["tables/speed.csv"].decode())))) == 1 + len(speed().rows)


def test_curves_are_of_what_was_measured() -> None:
    steps = {curve.method: curve for curve in curves(speed().rows, "step")}
    assert list(steps) == ["renee", "unidec"]
    assert steps["renee"].labels.tolist() == list(LABELS)
    assert growth(steps["unidec"]) == 0
    assert growth(steps["renee"]) == pytest.approx(1)
    (memory, _) = curves(speed().rows, "memory")
    assert np.allclose(memory.theirs, 8 * 256 * np.array(LABELS))
    for odd in ({"labels": 0}, {"labels": "many"}, {"method": 3.0}, {"quantity": "length"}):
        row = replace(scaling_rows()[0], at={**scaling_rows()[0].at, **odd}, suite="scaling")
        assert curves([row], "step") == []
    assert curves([replace(row, suite="obvious") for row in scaling_rows()], "step") == []
    drawn = draw_step(speed())
    assert isinstance(drawn, Drawing)
    assert "renee 1.00, unidec 0.00" in drawn.caption
    assert "2.61 s at 1.31M" in drawn.alt


def test_without_the_scaling_suite_its_figures_are_left_out_and_that_is_said() -> None:
    alone = Speed(suites={"training": suite(training_rows())})
    for draw in (draw_step, draw_peak):
        missing = draw(alone)
        assert isinstance(missing, Missing)
        assert "perf scaling --write" in missing.command
    assert (
        "not measured. To get it: `python -m harness perf scaling --write`" in speed_files(alone)["speed.md"].decode()
    )
    assert isinstance(draw_ratios(Speed()), Missing)
    assert set(speed_files(Speed())) == {"speed.md", *(f"tables/speed.{form}" for form in FORMATS)}


def test_bars_reach_to_what_is_better_than_wanted() -> None:
    least = compare("a", "b", "c", seconds(1.0), seconds(10.0), at_least=5)
    assert advantage(least) == pytest.approx((2.0, 2.0, 2.0))
    most = bound("a", "b", Sample((2.0, 4.0, 8.0), "s"), at_most=8)
    assert advantage(most) == pytest.approx((2.0, 1.0, 4.0))
    drawn = draw_ratios(Speed(suites={"training": suite([least, most, bound("z", "", Sample((9.0,)), at_most=8)])}))
    assert isinstance(drawn, Drawing)
    assert "3 targets, 2 met and 1 missed" in drawn.caption
    assert "z 9.00, at most 8 (missed)" in drawn.alt


@pytest.mark.parametrize("values", [(0.0,), (-1.0, 2.0), (1e-300,), (1e300, 1.0)])
def test_numbers_that_no_axis_holds_do_not_end_a_report(values: tuple[float, ...]) -> None:
    at: dict[str, float | str] = {"method": "unidec", "quantity": "step"}
    rows = [bound("x", "y", Sample(values, "s"), at_most=1.0, at=at | {"labels": labels}) for labels in LABELS]
    assert "speed.md" in speed_files(Speed(suites={"scaling": suite(rows)}))


def test_hostile_texts_stay_texts() -> None:
    """fault 64"""
    evil = compare(EVIL, EVIL, EVIL, seconds(1.0), seconds(2.0), at_least=4, detail=EVIL)
    points = [replace(row, at={**row.at, "method": EVIL}) for row in scaling_rows()]
    machine = Machine(cpu=EVIL, cores=1, packages={"torch": EVIL})
    one = Speed(suites={"training": suite([evil, *points], about=EVIL, machine=machine, commit=EVIL)})
    files = speed_files(one)
    for name in ("speed.md", "tables/speed.md", "tables/speed.html"):
        assert "<script" not in files[name].decode()
    assert r"\textless{}script" in files["tables/speed.tex"].decode()
    assert not re.search(r"(?<!\\)[&%#_]\w*alert", files["tables/speed.tex"].decode())
    for cells in list(csv.reader(io.StringIO(files["tables/speed.csv"].decode())))[1:]:
        assert not any(cell.startswith(("=", "@")) for cell in cells)
    for name, content in files.items():
        assert EVIL not in name
        if name.endswith(".svg"):
            ElementTree.fromstring(content)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["unidec", "renee"])
def test_bytes_of_a_table_are_those_of_its_plan(method: str, precision: str) -> None:
    layers = [Layer("test", {"table_precision": precision})]
    plan = grown_plan(method, "lf-amazontitles-1.3m", 10_000_000, cuda_target(80 * GIB), layers)
    run, names = plan.run, ("classifier table", "moments of the classifier table")
    parts = [*standing(run), *(part for stage in run.stages for part in moment_parts(stage))]
    planned = sum(part.device + part.host for part in parts if part.name in names)
    counters = 4 * run.data.labels * (MOMENTS[run.spec.table] == 2)  # how often each row was updated
    assert table_bytes(method, run.data.labels, run.dim, precision) + counters == planned


@pytest.mark.parametrize("labels", [1_305_265, 10_000_000])
def test_the_arithmetic_shown_gives_the_operations_of_the_plan(labels: int) -> None:
    plan = grown_plan("unidec", "lf-amazontitles-1.3m", labels, cuda_target(80 * GIB))
    assert plan.run.data.labels == labels
    assert plan.run.data.train / labels == pytest.approx(2_248_619 / 1_305_265, rel=1e-6)
    found = works(plan)
    for work in found:
        if work.factors:
            assert math.prod(work.factors) == pytest.approx(work.operations, rel=1e-6)
    assert sum(bool(work.factors) for work in found) == 5
    exact = next(work for work in found if work.formula == "2 N L D")
    scored = 4 * math.sqrt(labels) / labels + 0.01
    assert listed_search(plan, 0.01).operations == pytest.approx(exact.operations * scored)
    each = labels / 64  # every device has centres of its own
    scored = (4 * math.sqrt(each) + 0.01 * each) / labels
    assert listed_search(plan, 0.01, 64).operations == pytest.approx(exact.operations * scored)
    stage = plan.run.stages[-1]
    assert 1 << stage.levels == stage.steps == cluster_count(stage.rows, int(stage.value("batch_size")))


def test_growth_is_extrapolated_from_what_was_measured() -> None:
    text = BLOCKS["growth"](speed())
    (row,) = (line for line in text.splitlines() if line.startswith("| renee | step"))
    assert "L^1.00 | 20.0 s | 15.0 min" in row
    (row,) = (line for line in text.splitlines() if line.startswith("| unidec | memory"))
    slope, start = 1.1 * 12 * 256, 4e8
    assert quantity(start + slope * 10_000_000, "B") in row
    assert "perf scaling --write" in BLOCKS["growth"](None)
    assert gemm_peak(speed()) == 155e9
    assert "155 GFLOP/s" in BLOCKS["hours"](speed())
    assert gemm_peak(None) is None


def test_markers_that_are_no_pairs_are_refused(tmp_path: Path) -> None:
    page = tmp_path / "scale.md"
    page.write_text("a\n<!-- generated: sizes -->\nold\n<!-- end -->\nb\n")
    text = refreshed(page, None)
    assert text.startswith("a\n<!-- generated: sizes -->\n| labels L |")
    assert text.endswith("|\n<!-- end -->\nb\n")
    page.write_text(text)
    assert refreshed(page, None) == text
    for broken in ("<!-- generated: sizes -->\n", "<!-- end -->\n"):
        page.write_text(text + broken)
        with pytest.raises(DataError, match=re.escape("scale.md")):
            refreshed(page, None)
    page.write_text(text.replace("sizes", "size"))
    with pytest.raises(UserError, match="did you mean 'sizes'"):
        refreshed(page, None)


def test_the_committed_page_has_every_block_and_is_fresh() -> None:
    page = ROOT / "docs" / "scale.md"
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- generated: (\S+) -->", text)) == set(BLOCKS)
    assert refreshed(page, read_speed(ROOT / "reports" / "speed.json")) == text


def test_reading_and_showing_speed_needs_no_torch() -> None:
    code = (
        "import sys; from tests.speed_rows import speed; from harness.report.speed import speed_tables\n"
        "from harness.report.scale import BLOCKS; import harness.cli.measuring\n"
        "speed_tables(speed()); [block(speed()) for block in BLOCKS.values()]\n"
        "print(sorted({'torch', 'matplotlib', 'mlflow', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_an_index_without_speed_says_how_to_get_it(undrawn: None) -> None:
    from harness.report.index import index_page

    assert "`python -m harness perf --write` measures it" in index_page(Evidence(()), [], {})
    with_speed = index_page(Evidence((), speed=speed()), [], {})
    assert "[LaTeX](tables/speed.tex)" in with_speed
    assert render(speed_tables(speed()), "md") in speed_files(speed())["tables/speed.md"].decode()
