"""Figures from records: the data they are drawn from, what they say is missing, and how they look."""

import inspect
import shlex
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cli.bench import bench
from harness.report import figures
from harness.report.figures import FIGURES, Drawing, Missing, draw_figure
from harness.report.figures.annotation import place_labels
from harness.report.figures.drawing import Sketch, data_digest
from harness.report.figures.methods import frontier, training_seconds
from harness.report.figures.neighbours import ending
from harness.report.figures.runs import Group, comparable, default_runs, find_variants, remarks, titles
from harness.report.figures.style import COLOURS, MARKERS, format_name, looks, png_metadata
from harness.report.figures.training import BETAS, ETAS, last_stage, mean_positives
from harness.report.results import Example, Neighbour, Neighbours, Results, Study, Trial, read_records
from harness.report.rows import default_settings, peak_memory
from harness.runs.record import RunRecord
from harness.settings.layers import Layer, parse_override
from harness.settings.published import MATRIX, published_table
from harness.settings.resolve import resolve
from tests.support.figure_runs import DATASET, config_of, nested, results, run, world

HOSTILE = ("_$a_b^{$<script>", "\x00\x1b[31m\n名", "x" * 300, "", "\ud800")
GANDALF = {
    "augment": "gandalf", "augment_options.labels": 1.0, "augment_options.order": "random", "augment_options.delta": 0.1
}  # fmt: skip
NUMBERS = st.integers(0, 6).map(float) | st.floats(-1e6, 1e6)


def drawing(name: str, found: Results) -> Drawing:
    """The figure, which must not be missing."""
    result = draw_figure(name, found, DATASET)
    assert isinstance(result, Drawing), result
    assert result.caption
    return result


def missing(name: str, *records: RunRecord, dataset: str = DATASET, **more: Any) -> Missing:
    result = draw_figure(name, Results(records, **more), dataset)
    assert isinstance(result, Missing)
    return result


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures behind what is drawn, laid out but not painted, which takes most of the time."""
    kept: list[Any] = []

    def keep(figure: Any, digest: str = "") -> bytes:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        kept.append(figure)
        return b""

    monkeypatch.setattr(figures, "as_png", keep)
    return kept


# which runs


def groups_of(*records: RunRecord) -> dict[tuple[str, str], list[int]]:
    found = default_runs(comparable(results(*records), DATASET))
    return {(group.method, group.encoder): list(group.records) for group in found}


def test_only_finished_runs_on_test_rows_of_the_dataset_count() -> None:
    """fault 61: a failed run is in no figure"""
    trial = run(moment=3, seed=3, settings={"evaluate": "validation"})
    elsewhere = run(moment=4, seed=4, dataset={"name": "lf-other", "digest": "cd", "filter": True})
    nameless = run(moment=5, seed=5, config={"seed": 5})
    failed = run(moment=2, seed=2, status="failed")
    assert groups_of(run(moment=1, seed=1), failed, trial, elsewhere, nameless) == {("dpr", "static"): [1]}
    old, new, other = run(p1=50, moment=1), run(p1=60, moment=9), run(p1=70, moment=5, seed=3)
    (group,) = default_runs(comparable(results(new, old, other), DATASET))
    assert list(group.records.values()) == [new, other], "of equal settings and seed the newest"
    assert sorted(group.values("P@1")) == [new.metrics["P@1"], other.metrics["P@1"]]


def test_versions_never_share_a_figure_and_the_rest_is_told() -> None:
    """fault 62: data, filter, propensity constants or metrics of another version"""
    data = run().dataset
    usual = [run(moment=1, seed=1), run(moment=2, seed=2), run(moment=3, seed=3)]
    others = [
        run(moment=10, seed=4, dataset={**data, "digest": "cd" * 32}),
        run(moment=11, seed=5, dataset={**data, "filter": False}),
        run(moment=12, seed=6, metric_version=2),
        run(moment=13, seed=7, dataset={**data, "propensity": {"a": 0.5, "b": 0.4}}),
    ]
    found = comparable(results(*others, *usual), DATASET)
    assert (list(found.records), found.left_out) == (usual, 4)
    assert "4 runs" in found.caption()
    old, new = run(moment=1), run(moment=2, metric_version=2)
    assert comparable(results(new, old), DATASET).records == (new,), "of as many runs the newest"


def test_a_method_is_shown_with_its_default_settings_by_encoder() -> None:
    default = run("dpr", moment=1)
    changed = run("dpr", moment=2, seed=1, settings={"params.batch_size": 7})
    elsewhere = run("ance", moment=3, settings={"params.batch_size": 7})
    found = comparable(results(default, changed, elsewhere), DATASET)
    groups = default_runs(found)
    assert [(group.method, list(group.records.values())) for group in groups] == [("dpr", [default])]
    assert "ance" in remarks(found, groups)
    older = config_of("dpr")
    del older["params"]["batch_size"], older["search"]  # a setting that an older record lacks is no difference
    assert groups_of(run(moment=1, config=older), run(moment=2, seed=1)) == {("dpr", "static"): [0, 1]}
    records = [run(name, moment=at) for at, name in enumerate(("dpr", "ance", "zeroshot"))]
    records.append(run("zeroshot", moment=4, settings={"encoder": "minilm"}))
    groups = default_runs(comparable(results(*records), DATASET))
    assert titles(groups) == ["ance", "dpr", "zeroshot (minilm)", "zeroshot"]
    # a method of another package is shown as it was run most often
    foreign = {"method": "foreign", "encoder": "static"}
    places = ((0, 1), (1, 1), (0, 9))
    configs: list[dict[str, Any]] = [{**foreign, "seed": seed, "params": {"width": width}} for seed, width in places]
    made = [run(moment=at, seed=one["seed"], config=one) for at, one in enumerate(configs)]
    assert groups_of(*made) == {("foreign", "static"): [0, 1]}


def test_only_the_named_settings_of_a_variant_may_differ() -> None:
    right = picked(2, 3, 2.0)
    other = run("unidec", seed=1, settings={"params.beta": 2, "params.eta": 3, "params.epochs": 99})
    alien = run("unidec", seed=2, settings={"params.beta": 2, "params.eta": 3, "encoder": "tiny"})
    variants = [{"beta": 2, "eta": 3}, {"beta": 4, "eta": 3}]
    found = find_variants([right, other, alien], "unidec", DATASET, variants)
    assert found.groups == (Group("unidec", "static", {0: right}), None)
    assert found.commands() == f"python -m harness bench --methods unidec --datasets {DATASET} --set beta=4 --set eta=3"
    alone = find_variants([alien], "unidec", DATASET, variants)
    assert [group.encoder for group in alone.known] == ["tiny"]
    assert "--encoder tiny" in alone.commands()


# how they look


@settings(max_examples=25)
@given(st.lists(st.text(max_size=12), max_size=40), st.sampled_from(["unidec", "dexml-hnm", "zeroshot"]))
def test_no_two_methods_look_alike_and_known_ones_always_look_the_same(names: list[str], known: str) -> None:
    found = looks([*names, known])
    assert found[known] == looks([known])[known]
    assert found == looks([*reversed(names), known])
    assert len({(look.colour, look.marker) for look in found.values()}) == len(found)
    assert {look.colour for look in found.values()} <= set(COLOURS)
    assert {look.marker for look in found.values()} <= set(MARKERS)


@given(st.text(max_size=80), st.integers(12, 40))
def test_names_fit_on_one_printable_line(name: str, longest: int) -> None:
    for text in (format_name(name, longest), ending(name, longest)):
        assert 0 < len(text) <= longest
        assert not text.startswith("_")
        assert all(letter.isprintable() or letter == "\u2009" for letter in text)
    path = "networkx.algorithms.flow.shortest_augmenting_path"
    assert ending(path, 36) == "…flow.shortest_augmenting_path", "the end tells names apart, and begins behind a dot"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.floats(20, 400), st.floats(20, 260)),
        min_size=1,
        max_size=7,
        unique_by=lambda point: (point[0] // 30, point[1] // 30),
    ),
    st.integers(10, 80),
)
def test_names_cover_neither_each_other_nor_points(points: list[tuple[float, float]], width: int) -> None:
    """Of points that are not all in one place, where there is no room for so many names."""
    sizes = np.full((len(points), 2), (float(width), 11.0))
    bounds = np.array([0.0, 0.0, 430.0, 290.0])
    boxes = place_labels(np.array(points), sizes, bounds)
    assert np.allclose(boxes[:, 2:] - boxes[:, :2], sizes)
    assert (boxes[:, :2] >= bounds[:2]).all()
    assert (boxes[:, 2:] <= bounds[2:]).all()
    for one, other in combinations(boxes, 2):
        assert one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
    for box in boxes:
        assert not any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in points)
    line = np.array([[0.0, 100.0, 400.0, 100.0]])
    (box,) = place_labels(np.array([[200.0, 100.0]]), np.array([[60.0, 11.0]]), np.array([0.0, 0, 400, 200]), line)
    assert box[1] >= 100 or box[3] <= 100


@pytest.mark.parametrize("name", [MATRIX, "cost-time", "bins"])
def test_committed_runs_are_drawn_without_overlaps_and_in_readable_size(
    name: str, committed: Results, unpainted: list[Any]
) -> None:
    from matplotlib.text import Text

    drawing(name, committed)
    (figure,) = unpainted
    written = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in written) >= 8
    for axis in figure.axes:
        boxes = [text.get_window_extent() for text in axis.texts if text.get_text()]
        assert len(boxes) >= 5
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        frame = figure.bbox
        assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and box.y1 <= frame.y1 for box in boxes)


@pytest.fixture(scope="module")
def committed() -> Results:
    return Results(tuple(read_records([Path(__file__).parents[2] / "reports"])))


def test_equal_results_give_equal_bytes_whatever_the_user_has_set() -> None:
    """fault 63: the bytes depend neither on the user's matplotlib settings nor on what was drawn before"""
    import matplotlib

    once = drawing("tradeoff", world())
    with matplotlib.rc_context({"font.size": 20, "axes.grid": False, "lines.linewidth": 9}):
        drawing("course", world())
        assert drawing("tradeoff", world()).png == once.png
        assert matplotlib.rcParams["font.size"] == 20
    assert png_metadata(once.png)[2] == data_digest(once.data)


def test_hostile_names_are_drawn_as_they_are(request: pytest.FixtureRequest) -> None:
    """fault 64: names with $ _ & < > and control characters do not break a figure"""
    configs = [{"method": method, "encoder": "static", "seed": 0} for method in HOSTILE]
    made = results(*(run(p1=40.0 + place, moment=place, config=one) for place, one in enumerate(configs)))
    made = replace(made, neighbours=neighbours([*HOSTILE[:3], ""]))
    found = [drawing("tradeoff", made)]
    assert png_metadata(found[0].png)[0] > 500
    request.getfixturevalue("unpainted")
    found += [drawing(name, made) for name in ("bins", "course", "neighbours")]
    assert not any("\x00" in one.alt + one.caption for one in found)


# what is missing


@pytest.mark.parametrize("name", FIGURES)
def test_without_evidence_a_figure_says_which_command_makes_it(name: str) -> None:
    for records in ((), (run(status="failed"),)):
        found = missing(name, *records, dataset="lf a&b")
        assert (found.id, found.title, "lf a&b" in found.why) == (name, FIGURES[name].title, True)
        for line in found.command.splitlines():
            words = shlex.split(line)
            assert words[:3] == ["python", "-m", "harness"]
            if words[3] == "bench":
                assert words[words.index("--datasets") + 1] == "lf a&b"
                options = {word.removeprefix("--") for word in words if word.startswith("--")} - {"set"}
                assert options <= set(inspect.signature(bench).parameters)


@pytest.mark.parametrize(("name", "runs"), [("iterations", 2), ("subsampling", 8), ("positives", 12)])
def test_the_commands_make_exactly_the_runs_that_the_figure_takes(name: str, runs: int) -> None:
    """Each command is resolved as bench resolves it, and the figure is drawn from runs with these settings."""
    records: list[RunRecord] = []
    for line in missing(name).command.splitlines():
        words = shlex.split(line)[4:]
        options = list(zip(words[::2], words[1::2], strict=True))
        method = dict(options)["--methods"]
        layers = [Layer("--set", parse_override(value)) for option, value in options if option == "--set"]
        config, _ = resolve(method, dict(options)["--datasets"], layers)
        names = ("step", "train/epoch", "validation/P@1", "validation/PSP@5", "train/positives")
        metrics = {"P@1": 1.0 + len(records), "PSP@5": 2.0}
        curves = {key: [1.0, 2.0] for key in names}
        dumped = config.model_dump(mode="json")
        records.append(run(method, moment=len(records), config=dumped, metrics=metrics, curves=curves))
    assert len(records) == runs
    assert "Not run" not in drawing(name, results(*records)).caption


def test_numbers_that_no_axis_can_hold_are_told_and_faults_of_the_program_are_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    huge = [run(name, training={"seconds": 1e300 * 10**at}, moment=at) for at, name in enumerate(("dpr", "ance"))]
    assert "cannot be drawn" in missing("cost-time", *huge, run("ngame", training={"seconds": 1e-300}, moment=3)).why

    def broken(results: Results, dataset: str) -> Sketch:
        raise KeyError("x")

    monkeypatch.setitem(FIGURES, "sweep", FIGURES["sweep"]._replace(draw=broken))
    with pytest.raises(KeyError):
        draw_figure("sweep", Results(()), DATASET)


# methods beside each other


def of_the_benchmark(stem: str, p1: float, seed: int = 0, **changes: Any) -> RunRecord:
    """A run of one row, whose PSP@5 is half its P@1."""
    row = next(row for row in published_table(MATRIX).rows if (row.stem, row.dataset) == (stem, DATASET))
    assert row.method is not None
    config = nested(default_settings(row.method, DATASET, row.settings) or {})
    config |= {"method": row.method, "encoder": "static", "dataset": DATASET, "seed": seed}
    values = {"metrics": {"P@1": p1, "PSP@5": p1 / 2}} | changes
    return run(p1=p1, seed=seed, config=config, run_id=f"{stem}-{seed}", **values)


def test_a_training_stands_in_the_benchmark_once_the_best_first(unpainted: list[Any]) -> None:
    heads = {name: {"P@1": p1, "PSP@5": p1 / 2} for name, p1 in (("concat", 70.0), ("de", 90.0), ("clf", 95.0))}
    made = [of_the_benchmark("unidec", 70.0, metrics=heads["concat"], scorers=heads)]
    made += [of_the_benchmark("dpr", p1, seed) for seed, p1 in enumerate((30.0, 90.0))]
    data = drawing(MATRIX, results(*made, of_the_benchmark("zeroshot", 72.0))).data
    assert data[["method", "subject", "seeds", "P@1", "PSP@5"]].to_numpy().tolist() == [
        ["zero-shot", False, 1, 72.0, 36.0],
        ["UniDEC (ours)", True, 1, 70.0, 35.0],
        ["DPR", False, 2, 60.0, 30.0],
    ]
    assert data["P@1 std"].tolist() == pytest.approx([0, 0, np.std([30, 90], ddof=1)])
    axis = unpainted[0].axes[0]
    left, right = axis.get_xlim()
    assert all(left < x < right for line in axis.lines if line.get_marker() != "o" for x in line.get_xdata())
    assert "fewer than two" in missing(MATRIX, made[0]).why


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=25), st.booleans())
def test_the_frontier_is_what_no_point_beats(points: list[tuple[float, float]], lower_x: bool) -> None:
    sign = -1 if lower_x else 1

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        better, worse = (sign * one[0], one[1]), (sign * other[0], other[1])
        return better != worse and better[0] >= worse[0] and better[1] >= worse[1]

    x, y = np.array(points, np.float64).reshape(-1, 2).T
    assert frontier(x, y, lower_x).tolist() == [not any(beats(other, one) for other in points) for one in points]


def test_points_are_means_over_seeds_with_their_spread(unpainted: list[Any]) -> None:
    data = drawing("tradeoff", results(run(p1=58), run(p1=62, seed=1, moment=1))).data
    # (58 + 3) / 2 and (62 + 3) / 2; (58 + 9) / 2 and (62 + 9) / 2
    assert data[["method", "P@1", "PSP@1", "frontier"]].to_numpy().tolist() == [["dpr", 31.5, 34.5, True]]
    assert data["P@1 std"].tolist() == pytest.approx([np.sqrt(2)])


def test_costs_are_those_of_the_training_and_what_trains_nothing_stands_apart(unpainted: list[Any]) -> None:
    assert training_seconds(run(training={})) == 0.0
    assert training_seconds(run(training={"steps": 3})) is None
    assert peak_memory(run(peak_memory_gib=0.5, training={"peak_memory_gib": 2.0})) == 2.0
    made = [run("zeroshot", 40, training={}), run("dpr", 50, moment=1, training={"seconds": 1})]
    made += [run("unidec", 60, moment=2, training={"seconds": 1000}), run("ance", 45, 0, 3, training={"seconds": 2})]
    data = drawing("cost-time", results(*made)).data
    assert data["method"].tolist() == ["zeroshot", "dpr", "ance", "unidec"]
    assert data["frontier"].tolist() == [True, True, False, True]
    axis = unpainted[0].axes[0]
    assert (axis.get_xscale(), axis.get_xticks()[0], axis.get_xticklabels()[0].get_text()) == ("symlog", 0, "none")
    assert axis.get_xlim()[0] < 0 < 1 < 1000 < axis.get_xlim()[1]


def test_bins_sum_to_the_metric_and_runs_without_numbers_are_left_out(unpainted: list[Any]) -> None:
    made = [run(p1=57), run(p1=63, seed=1, moment=1), run("ance", 81, moment=2)]
    bins = run().contributions
    for place, (name, value) in enumerate((("P@5", None), ("P@5", "x"), ("PSP@5", float("nan")), ("labels", [1]))):
        made.append(run("ngame", moment=3 + place, contributions=[{**bins[0], name: value}, *bins[1:]]))
    data = drawing("bins", results(*made)).data
    assert data["method"].tolist() == ["ance", "dpr", "ance", "dpr"]
    assert data["all"].tolist() == pytest.approx([14.0, 10.5, 15.0, 11.5])
    assert data["all"].tolist() == pytest.approx(data[["head", "torso", "tail"]].sum(axis=1).tolist())
    assert set(drawing("bins", results(run(psp=False))).data["metric"]) == {"P@5"}


# trainings


def test_epochs_of_several_stages_are_counted_through(unpainted: list[Any]) -> None:
    data = drawing("course", results(run(p1=60), run(p1=60, seed=2, moment=1))).data
    loss = data[data["curve"] == "train/loss"]
    assert loss["epoch"].tolist() == list(range(1, 13))
    assert loss["stage"].tolist() == [0] * 6 + [1] * 6
    assert loss["mean"].tolist() == pytest.approx([60 / (10 * step) + 1 for step in range(1, 13)])
    assert loss["std"].tolist() == pytest.approx([np.sqrt(2)] * 12)
    upper, lower = unpainted[0].axes[:2]
    assert [line.get_xdata()[0] for line in upper.lines] == [1, 7, 6.5], "a line per stage, and where one begins"
    assert lower.get_yscale() == "log"


def validated(kind: str, top: float, steps: int, seed: int = 0, size: float = 0.1) -> RunRecord:
    """A run of renee with a warm start of two epochs, whose scores are another model's."""
    curves: dict[str, list[float | None]] = {
        "step": [4.0, 8.0, 8.0 + steps, 8.0 + 2 * steps, 8.0 + 3 * steps],
        "train/epoch": [1.0, 2.0, 1.0, 2.0, 3.0],
        "validation/P@1": [90.0, 91.0, top / 2, top, None],
        "validation/PSP@5": [90.0, 91.0, top / 3, top, top + 1],
    }
    changed = {"augment": kind, "validation.size": size, **(GANDALF if kind == "gandalf" else {})}
    return run("renee", seed=seed, settings=changed, curves=curves)


def test_iterations_are_those_of_the_last_stage_at_steps_that_all_seeds_have() -> None:
    group = Group("renee", "static", {0: validated("none", 50.0, 10), 1: validated("none", 54.0, 10, seed=1)})
    found = last_stage(group, "P@1")
    assert found[["step", "mean"]].to_numpy().tolist() == [[10, 26], [20, 52]]
    assert found["std"].tolist() == pytest.approx([np.sqrt(2), 2 * np.sqrt(2)])
    assert last_stage(group, "PSP@5")["step"].tolist() == [10, 20, 30]
    plain: dict[str, list[float | None]] = {"step": [5.0, 9.0], "validation/P@1": [1.0, 2.0]}
    group = Group("renee", "static", {0: run("renee", curves=plain)})
    assert last_stage(group, "P@1")["step"].tolist() == [5, 9]
    assert last_stage(group, "PSP@5").empty


def test_iterations_compare_runs_with_the_same_validation_rows(unpainted: list[Any]) -> None:
    mixed = missing("iterations", validated("none", 50, 9), validated("gandalf", 60, 19, size=0.2))
    assert len(mixed.command.splitlines()) == 1
    pair = [validated(kind, 60, 9, size=0.2) for kind in ("none", "gandalf")]
    for record in pair:
        del record.curves["validation/PSP@5"]
    found = drawing("iterations", Results((validated("none", 50, 9), *pair)))
    assert "20% of the train rows" in found.caption
    assert set(found.data["metric"]) == {"P@1"}


def thinned(share: float, order: str, score: float, seed: int = 0) -> RunRecord:
    changed: dict[str, Any] = {"augment": "none"}
    if share:
        changed = {**GANDALF, "augment_options.labels": share, "augment_options.order": order}
    return run("renee", seed=seed, settings=changed, metrics={"P@1": score, "PSP@5": score + 5})


def test_subsampling_lines_share_their_ends_and_say_what_was_not_run(unpainted: list[Any]) -> None:
    runs = [thinned(0, "", 50), thinned(0.25, "random", 53), thinned(0.5, "tail-first", 57), thinned(1, "random", 60)]
    runs.append(thinned(0, "", 52, seed=1))
    found = drawing("subsampling", Results(tuple(runs)))
    first = found.data[found.data["metric"] == "P@1"]
    assert first[["order", "share", "mean"]].to_numpy().tolist() == [
        ["random", 0.0, 51.0], ["random", 0.25, 53.0], ["random", 1.0, 60.0],
        ["tail-first", 0.0, 51.0], ["tail-first", 0.5, 57.0], ["tail-first", 1.0, 60.0],
    ]  # fmt: skip
    assert first["std"].tolist()[0] == pytest.approx(np.sqrt(2))
    assert "augment_options.labels=0.75 augment_options.order=tail-first" in found.caption
    missing("subsampling", *runs[::3])
    missing("subsampling", *runs[:2])


def picked(beta: int, eta: int, positives: float, seed: int = 0, **about: Any) -> RunRecord:
    """The mean of the last five epochs is `positives`."""
    course = [99.0, 0.5, positives - 1, positives, positives, positives, positives + 1]
    curves: dict[str, list[float | None]] = {"step": [float(at) for at in range(7)], "train/positives": [*course]}
    changed = {"params.beta": beta, "params.eta": eta}
    data = {**run().dataset, "statistics": {"labels_per_row": 2.512}, **about}
    return run("unidec", seed=seed, settings=changed, curves=curves, dataset=data)


def test_positives_are_the_mean_of_the_last_epochs_over_beta_for_each_eta(unpainted: list[Any]) -> None:
    assert mean_positives(run(curves={"step": [1.0], "train/positives": [None]})) is None
    runs = [picked(beta, eta, 1 + 0.1 * beta + 0.05 * eta, seed) for beta in BETAS for eta in ETAS for seed in (0, 1)]
    old = picked(1, 6, 1.4, digest="e" * 64)
    found = drawing("positives", Results((*runs, old)))
    line = found.data[found.data["eta"] == 6]
    assert line["mean"].tolist() == pytest.approx([1.4, 1.5, 1.6, 1.7])
    assert "2.51 labels" in found.caption
    assert "1 run on another version" in found.caption
    lone = missing("positives", picked(3, 6, 2.0), picked(3, 0, 2.0))
    assert len(lone.command.splitlines()) == len(BETAS) * len(ETAS) - 2


# sweeps and labels


def study(**changes: Any) -> Study:
    """A study of three complete trials and one that was pruned."""
    values: dict[str, Any] = {
        "name": "s",
        "method": "unidec",
        "dataset": DATASET,
        "digest": "d" * 64,
        "objectives": ["P@1"],
        "space": {
            "tau": {"low": 0.02, "high": 0.1, "log": True},
            "symmetric": {"choices": [0.5, 1.0]},
            "beta": {"low": 1, "high": 6},
        },
        "settings": {"sampler": "tpe", "seed": 0, "validation": 0.1},
        "trials": [
            Trial(
                number=number,
                state="COMPLETE" if number else "PRUNED",
                values={"P@1": 60.0 + number, "PSP@5": 70.0 - number} if number else {},
                params={"tau": 0.03, "beta": number + 1, "symmetric": 1.0},
                seconds=1.0,
            )
            for number in range(4)
        ],
        "best": [3],
    }
    return Study.model_validate({**values, **changes})


def test_the_sweep_with_most_complete_trials_is_drawing(unpainted: list[Any]) -> None:
    both = study(objectives=["P@1", "PSP@5"])
    found = drawing("sweep", Results((), (study(name="small", trials=both.trials[:2]), both)))
    assert found.data[["trial", "beta", "P@1"]].to_numpy().tolist() == [[1, 2, 61], [2, 3, 62], [3, 4, 63]]
    for words in ("the 3 complete trials", "1 were ended early", "1 more study"):
        assert words in found.caption
    panels = {axis.get_xlabel(): axis for axis in unpainted[0].axes if axis.get_xlabel()}
    assert {name: axis.get_xscale() for name, axis in panels.items()} == {
        "beta": "linear", "symmetric": "linear", "tau": "log"
    }  # fmt: skip


def test_a_sweep_without_anything_to_show_is_missing() -> None:
    ended = [trial for trial in study().trials if trial.state == "COMPLETE"]
    unnamed = study(space={"gamma": {"low": 1, "high": 2}})
    for one in (study(trials=ended[:2]), study(space={}), unnamed, study(dataset="another")):
        assert missing("sweep", studies=(one,)).command.startswith("python -m harness sweep ")


def neighbours(labels: list[str]) -> dict[str, Neighbours]:
    others = [Neighbour(label=label, share=share) for label, share in zip(labels, (1.0, 0.5), strict=False)]
    examples = [Example(label=label, train_rows=9, neighbours=others) for label in labels]
    return {DATASET: Neighbours(dataset=DATASET, digest="d" * 64, examples=examples)}


def test_neighbours_say_how_true_they_are(unpainted: list[Any]) -> None:
    of_dataset = neighbours(["a", "b"])[DATASET].model_copy(update={"items": 1234, "true_share": 0.0325})
    found = drawing("neighbours", Results((), neighbours={DATASET: of_dataset}))
    assert "1,234 labels" in found.caption
    assert found.data["share"].tolist() == [1.0, 0.5, 1.0, 0.5]
