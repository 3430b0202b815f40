"""Figures from records: what they show, what they say is missing, and that they are the same bytes every time."""

import hashlib
import inspect
import os
import shlex
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cli.benching import bench
from harness.errors import UserError
from harness.published import MATRIX, published_table
from harness.record import RunRecord, find_records
from harness.report.evidence import Evidence
from harness.report.figures import FIGURES, Drawing, Missing, bins, course, draw_all, scatter, standing
from harness.report.figures.labels import place_labels
from harness.report.figures.scatter import frontier, peak_memory, training_seconds
from harness.report.grids.defaults import default_settings
from tests.figure_runs import DATASET, OURS, evidence, run, world
from tests.setting_runs import nested

HOSTILE = ("_hidden", "$a_b^{$", "a & b < c > d", "<script>alert(1)</script>", "]]>--><!--", "\x00\x1b[31m\n", "\ud800")
NUMBERS = st.integers(0, 6).map(float) | st.floats(-1e6, 1e6)
POINTS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=25)


def drawn(name: str, records: Evidence) -> Drawing:
    result = FIGURES[name](records, DATASET)
    assert isinstance(result, Drawing), result
    return result


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures behind what is drawn, laid out; their bytes are left out, which take most of the time."""
    kept: list[Any] = []

    def keep(figure: Any) -> tuple[bytes, bytes]:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        kept.append(figure)
        return b"", b""

    for module in (bins, course, scatter, standing):
        monkeypatch.setattr(module, "finished", keep)
    return kept


@given(POINTS, st.booleans())
def test_the_frontier_is_what_no_point_beats(points: list[tuple[float, float]], lower_x: bool) -> None:
    sign = -1 if lower_x else 1

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        better = (sign * one[0], one[1])
        worse = (sign * other[0], other[1])
        return better != worse and better[0] >= worse[0] and better[1] >= worse[1]

    expected = [not any(beats(other, point) for other in points) for point in points]
    found = frontier([x for x, _ in points], [y for _, y in points], lower_x)
    assert found.tolist() == expected


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(20, 400), st.floats(20, 260)), min_size=1, max_size=7), st.integers(10, 80))
def test_names_cover_neither_each_other_nor_points(points: list[tuple[float, float]], width: int) -> None:
    sizes = np.full((len(points), 2), (float(width), 11.0))
    bounds = np.array([0.0, 0.0, 430.0, 290.0])
    boxes = place_labels(np.array(points), sizes, bounds)
    assert np.allclose(boxes[:, 2:] - boxes[:, :2], sizes)
    assert (boxes[:, :2] >= bounds[:2]).all()
    assert (boxes[:, 2:] <= bounds[2:]).all()
    for one, other in combinations(boxes, 2):
        assert one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
    for box in boxes:
        for x, y in points:
            assert not (box[0] < x < box[2] and box[1] < y < box[3])


def test_names_keep_clear_of_lines() -> None:
    line = np.array([[0.0, 100.0, 400.0, 100.0]])
    (box,) = place_labels(np.array([[200.0, 100.0]]), np.array([[60.0, 11.0]]), np.array([0.0, 0, 400, 200]), line)
    assert box[1] >= 100 or box[3] <= 100


@pytest.mark.parametrize("name", [MATRIX, "tradeoff", "cost-time", "cost-memory", "bins"])
def test_committed_runs_are_drawn_without_overlaps_and_in_readable_size(name: str, figures: list[Any]) -> None:
    from matplotlib.text import Text

    folder = Path(__file__).parents[1] / "reports" / "runs"
    drawn(name, Evidence(tuple(find_records([folder]))))
    (figure,) = figures
    written = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in written) >= 8
    for axis in figure.axes:
        boxes = [text.get_window_extent() for text in axis.texts if text.get_text()]
        assert len(boxes) >= 5
        for one, other in combinations(boxes, 2):
            assert not one.overlaps(other)
        frame = figure.bbox
        assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1 for box in boxes)


def test_equal_evidence_gives_equal_bytes_whatever_the_user_has_set() -> None:
    """fault 63: the bytes depend neither on the user's matplotlib settings nor on the process"""
    import matplotlib

    with matplotlib.rc_context({"font.size": 20, "axes.grid": False, "lines.linewidth": 9, "svg.fonttype": "none"}):
        here = [one for one in draw_all(world(), DATASET, OURS) if isinstance(one, Drawing)]
        assert matplotlib.rcParams["font.size"] == 20
    assert [one.id for one in here] == list(OURS)
    code = (
        "import hashlib, sys; from harness.report.figures import FIGURES\n"
        "assert not {'matplotlib', 'torch', 'mlflow', 'optuna'} & set(sys.modules)\n"
        "from tests.figure_runs import world, DATASET, OURS\n"
        "found = [FIGURES[name](world(), DATASET) for name in OURS]\n"
        "print(hashlib.sha256(b''.join(one.svg + one.png for one in found)).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    root = Path(__file__).parents[1]
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, env=environment)
    assert other.returncode == 0, other.stderr
    assert other.stdout.strip() == hashlib.sha256(b"".join(one.svg + one.png for one in here)).hexdigest()


@pytest.mark.parametrize("name", ["tradeoff", "bins", "course"])
def test_hostile_names_are_drawn_as_they_are(name: str) -> None:
    """fault 64: names with $ _ & < > and control characters neither break a figure nor get into its markup"""
    made = []
    for place, method in enumerate([*HOSTILE, "名" * 5, "x" * 300]):
        config = {"method": method, "encoder": "static", "seed": 0}
        made.append(run(p1=40.0 + place, moment=place, config=config))
    drawing = drawn(name, evidence(*made))
    root = ElementTree.fromstring(drawing.svg)
    assert not [element for element in root.iter() if element.tag.endswith(("script", "foreignObject", "}a"))]
    assert b"alert(1)</script>" not in drawing.svg
    assert drawing.png.startswith(b"\x89PNG")
    assert "\x00" not in drawing.alt + drawing.caption


@pytest.mark.parametrize("name", [MATRIX, *OURS])
def test_without_runs_a_figure_says_which_command_makes_them(name: str) -> None:
    for records in (evidence(), evidence(run(status="failed"))):
        missing = FIGURES[name](records, "lf a&b")
        assert isinstance(missing, Missing)
        assert (missing.id, "lf a&b" in missing.why) == (name, True)
        words = shlex.split(missing.command)
        assert words[:4] == ["python", "-m", "harness", "bench"]
        assert words[words.index("--datasets") + 1] == "lf a&b"
        options = {word.removeprefix("--") for word in words if word.startswith("--")}
        assert options <= set(inspect.signature(bench).parameters)


def of_the_benchmark(stem: str, p1: float, seed: int = 0, **changes: Any) -> RunRecord:
    """A run of one row, whose PSP@5 is half its P@1."""
    row = next(row for row in published_table(MATRIX).rows if (row.stem, row.dataset) == (stem, DATASET))
    assert row.method is not None
    config = nested(default_settings(row.method, DATASET, row.settings) or {})
    config |= {"method": row.method, "encoder": "static", "dataset": DATASET, "seed": seed}
    return run(p1=p1, seed=seed, config=config, run_id=f"{stem}-{seed}", **{"metrics": metrics_of(p1)} | changes)


def metrics_of(p1: float) -> dict[str, float]:
    return {"P@1": p1, "PSP@5": p1 / 2}


def test_a_training_stands_in_the_benchmark_once_the_best_first(figures: list[Any]) -> None:
    heads = {"concat": metrics_of(70.0), "de": metrics_of(90.0), "clf": metrics_of(95.0)}
    both = [of_the_benchmark("unidec", 70.0, metrics=heads["concat"], views=heads)]
    both += [of_the_benchmark("dpr", p1, seed) for seed, p1 in enumerate((59.0, 61.0))]
    drawing = drawn(MATRIX, evidence(*both, of_the_benchmark("zeroshot", 72.0)))
    (figure,) = figures
    first, second = figure.axes
    assert [text.get_text() for text in first.get_yticklabels()] == ["DPR", "UniDEC", "zero-shot"]
    assert [text.get_text() for text in first.texts] == ["60.0", "70.0", "72.0"]
    assert [text.get_text() for text in second.texts] == ["30.0", "35.0", "36.0"]
    filled = [line.get_markerfacecolor() != "white" for line in first.lines if line.get_marker() == "o"]
    assert filled == [False, True, False]
    assert "1 to 2 seeds" in drawing.caption
    assert "3 methods on lf-pydocstitles: zero-shot 72.0, 36.0; UniDEC 70.0, 35.0; DPR 60.0, 30.0" in drawing.alt
    assert isinstance(FIGURES[MATRIX](evidence(both[0]), DATASET), Missing), "one method is compared with nothing"


def test_a_wide_spread_hides_nothing(figures: list[Any]) -> None:
    wide = [of_the_benchmark("dpr", p1, seed) for seed, p1 in enumerate((30.0, 99.0))]
    drawn(MATRIX, evidence(*wide, of_the_benchmark("zeroshot", 66.0)))
    axis = figures[0].axes[0]
    left, right = axis.get_xlim()
    assert all(left < x < right for line in axis.lines if line.get_marker() != "o" for x in line.get_xdata())


def test_a_benchmark_that_cannot_be_drawn_says_why() -> None:
    """Not run, run without propensities, and on data that nothing was searched for."""
    without = [of_the_benchmark(stem, 60.0, metrics={"P@1": 60.0}) for stem in ("dpr", "zeroshot")]
    for records, dataset, words in (
        ([], DATASET, "fewer than two methods"),
        (without, DATASET, "no PSP@5"),
        ([], "my-data", "no settings were searched for my-data"),
    ):
        missing = FIGURES[MATRIX](evidence(*records), dataset)
        assert isinstance(missing, Missing)
        assert words in missing.why
    assert "--methods all" in missing.command


def test_runs_without_curves_ask_for_new_runs() -> None:
    missing = FIGURES["course"](evidence(run(curves={}), run("ance", curves={}, moment=1)), DATASET)
    assert isinstance(missing, Missing)
    assert "older harness" in missing.why
    assert missing.command == f"python -m harness bench --methods all --datasets {DATASET} --seeds 0"


def test_without_propensities_there_is_no_tradeoff_but_there_are_bins() -> None:
    records = evidence(run(psp=False))
    missing = FIGURES["tradeoff"](records, DATASET)
    assert isinstance(missing, Missing)
    assert "propensity constants" in missing.why
    assert "PSP@5" not in drawn("bins", records).alt


def test_one_seed_has_no_spread_and_several_have(figures: list[Any]) -> None:
    one = drawn("tradeoff", evidence(run(p1=60)))
    several = drawn("tradeoff", evidence(run(p1=58), run(p1=62, seed=1, moment=1)))
    assert "one run each" in one.caption
    assert "means over 2 seeds with one standard deviation" in several.caption
    assert "Scatter plot of 1 method on" in one.alt
    assert [sum(line.get_gid() == scatter.SPREAD for line in figure.axes[0].lines) for figure in figures] == [0, 2]
    assert "dpr 31.5, 34.5" in several.alt  # (58 + 3) / 2 and (62 + 3) / 2; (58 + 9) / 2 and (62 + 9) / 2


def test_bins_tell_the_mean_share_of_every_bin_and_sum_to_the_metric(figures: list[Any]) -> None:
    drawing = drawn("bins", evidence(run(p1=57), run(p1=63, seed=1, moment=1), run("ance", 81, moment=2)))
    assert "ance 7.0 4.2 2.8, 7.5 4.5 3.0; dpr 5.2 3.1 2.1, 5.8 3.4 2.3" in drawing.alt
    titles = [axis.get_title(loc="left").split("\n") for axis in figures[0].axes[:4]]
    assert titles[0] == ["all labels"]
    assert titles[1:] == [
        ["head", "10 labels,", "100.0 rows each"],
        ["torso", "50 labels,", "20.0 rows each"],
        ["tail", "250 labels,", "4.0 rows each"],
    ]
    widths = np.array([[bar.get_width() for bar in axis.patches] for axis in figures[0].axes[:4]])
    assert np.allclose(widths[0], widths[1:].sum(0))
    assert np.allclose(widths[0], [14.0, 10.5])


def test_costs_are_those_of_the_training() -> None:
    assert training_seconds(run(training={"seconds": 3})) == 3.0
    assert training_seconds(run(training={})) == 0.0
    assert training_seconds(run(training={"steps": 3})) is None
    assert peak_memory(run(peak_memory_gib=0.5, training={"peak_memory_gib": 2.0})) == 2.0
    assert peak_memory(run(peak_memory_gib=None, training={})) is None


def test_what_trains_nothing_stands_left_of_a_logarithmic_axis(figures: list[Any]) -> None:
    made = [run("zeroshot", 40, training={}), run("dpr", 50, moment=1, training={"seconds": 1})]
    drawn("cost-time", evidence(*made, run("unidec", 60, moment=2, training={"seconds": 1000})))
    axis = figures[0].axes[0]
    assert axis.get_xscale() == "log"
    assert axis.get_xticklabels()[0].get_text() == "none"
    assert axis.get_xlim()[0] < axis.get_xticks()[0] < 1
    assert axis.get_xlim()[1] > 1000


def test_the_frontier_is_named_in_the_caption() -> None:
    made = [run("dpr", 50, training={"seconds": 1}), run("ance", 60, moment=1, training={"seconds": 5})]
    worse = run("dexml", 55, moment=2, training={"seconds": 6})
    caption = drawn("cost-time", evidence(*made, worse)).caption
    assert "no other one beats in both directions: dpr, ance." in caption
    assert "Measured on a made-up processor, 2 cores." in caption


def test_epochs_of_several_stages_are_counted_through(figures: list[Any]) -> None:
    drawing = drawn("course", evidence(run(p1=60), run(p1=60, seed=2, moment=1)))
    assert "dpr from 7 to 1.5" in drawing.alt  # 60 / 10 + 1 and 60 / 120 + 1: the mean of seeds 0 and 2
    upper, lower = figures[0].axes[:2]
    line = upper.lines[0]
    known = np.isfinite(line.get_ydata())
    assert np.allclose(line.get_xdata()[known], np.arange(1, 13))
    assert not known[6]  # no line leads from the loss of one stage to that of the next
    assert [mark.get_xdata()[0] for mark in upper.lines[1:]] == [6.5]
    assert lower.get_yscale() == "log"


def test_only_wanted_figures_are_drawn_and_unknown_ones_are_refused() -> None:
    assert [one.id for one in draw_all(evidence(), DATASET, ["course", "bins"])] == ["bins", "course"]
    with pytest.raises(UserError, match="did you mean 'bins'"):
        list(draw_all(evidence(), DATASET, ["bin"]))
