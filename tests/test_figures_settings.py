"""Figures about settings: which runs they take, what they compute from them, and what they say of missing runs."""

import shlex
import subprocess
import sys
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import Layer, parse_override
from harness.errors import UserError
from harness.record import RunRecord
from harness.report.evidence import Evidence, Example, Neighbour, Neighbours, Study, Trial
from harness.report.figures import FIGURES, Drawing, Missing, draw_all
from harness.report.figures.chosen import Group
from harness.report.figures.iterations import course
from harness.report.figures.neighbours import ending
from harness.report.figures.positives import BETAS, ETAS, mean_positives, nearest
from harness.report.figures.subsampling import lines_of
from harness.report.figures.sweep import MOST_POINTS, frame_of, ordered, sample_of
from harness.report.figures.varied import find_variants
from tests.setting_runs import DATASET, setting_run

HOSTILE = "<script>_&%#$x^2$\u202e=1\n\x00 "
OURS = ("iterations", "subsampling", "positives", "sweep", "neighbours")


def draw(name: str, *records: RunRecord, **more: Any) -> Drawing | Missing:
    return FIGURES[name](Evidence(records, **more), DATASET)


def drawn(name: str, *records: RunRecord, **more: Any) -> Drawing:
    """The figure, which must be a picture that opens."""
    found = draw(name, *records, **more)
    assert isinstance(found, Drawing), found
    assert found.id == name
    assert found.png.startswith(b"\x89PNG")
    root = ElementTree.fromstring(found.svg)
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    assert found.caption
    assert found.alt
    return found


def validated(kind: str, top: float, steps: int, seed: int = 0, size: float = 0.1) -> RunRecord:
    """A run of renee with a warm start of two epochs, whose scores are another model's."""
    curves: dict[str, list[float | None]] = {
        "step": [4.0, 8.0, 8.0 + steps, 8.0 + 2 * steps, 8.0 + 3 * steps],
        "train/epoch": [1.0, 2.0, 1.0, 2.0, 3.0],
        "validation/P@1": [90.0, 91.0, top / 2, top, None],
        "validation/PSP@5": [90.0, 91.0, top / 3, top, top + 1],
    }
    return setting_run("renee", {"augment": kind, "validation.size": size}, seed=seed, curves=curves)


def thinned(share: float, order: str, score: float, seed: int = 0) -> RunRecord:
    changed: dict[str, Any] = {"augment": "none"}
    if share:
        changed = {"augment": "gandalf", "augment_options.labels": share, "augment_options.order": order}
    return setting_run("renee", changed, seed=seed, metrics={"P@1": score, "PSP@5": score + 5})


def picked(beta: int, eta: int, positives: float, seed: int = 0) -> RunRecord:
    """The mean of the last five epochs is `positives`."""
    course = [99.0, 0.5, positives - 1, positives, positives, positives, positives + 1]
    curves: dict[str, list[float | None]] = {"step": [float(at) for at in range(7)], "train/positives": [*course]}
    return setting_run("unidec", {"params.beta": beta, "params.eta": eta}, seed=seed, curves=curves)


def study(**changes: Any) -> Study:
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
            "lambda": {"low": 0.1, "high": 0.9},
        },
        "settings": {"sampler": "tpe", "seed": 0, "validation": 0.1},
        "trials": [
            Trial(
                number=number,
                state="COMPLETE" if number else "PRUNED",
                values={"P@1": 60.0 + number} if number else {},
                params={"tau": 0.03, "beta": number + 1, "lambda": 0.5, "symmetric": 1.0},
                seconds=1.0,
            )
            for number in range(4)
        ],
        "best": [3],
    }
    return Study.model_validate({**values, **changes})


@pytest.mark.parametrize("name", OURS)
def test_without_evidence_a_figure_says_what_to_run(name: str) -> None:
    found = draw(name)
    assert isinstance(found, Missing)
    assert DATASET in found.why
    for line in found.command.splitlines():
        assert shlex.split(line)[:3] == ["python", "-m", "harness"]


@pytest.mark.parametrize(("name", "runs"), [("iterations", 2), ("subsampling", 8), ("positives", 12)])
def test_the_commands_make_exactly_the_runs_that_the_figure_takes(name: str, runs: int) -> None:
    """Each command is resolved as bench resolves it, and the figure is drawn from runs with these settings."""
    from harness.run import resolve_config

    found = draw(name)
    assert isinstance(found, Missing)
    records: list[RunRecord] = []
    for line in found.command.splitlines():
        words = shlex.split(line)[4:]
        options = list(zip(words[::2], words[1::2], strict=True))
        assert {option for option, _ in options} <= {"--methods", "--datasets", "--set"}
        method = dict(options)["--methods"]
        layers = [Layer("--set", parse_override(value)) for option, value in options if option == "--set"]
        config, _ = resolve_config(method, dict(options)["--datasets"], layers)
        steps: list[float | None] = [1.0, 2.0]
        record = setting_run(
            method,
            {},
            metrics={"P@1": 1.0 + len(records), "PSP@5": 2.0},
            curves={"step": steps, "train/epoch": steps}
            | {key: steps for key in ("validation/P@1", "validation/PSP@5", "train/positives")},
        )
        changed = {"config": config.model_dump(mode="json"), "run_id": f"r{len(records)}"}
        records.append(record.model_copy(update=changed))
    assert len(records) == runs
    assert "Not run" not in drawn(name, *records).caption


def test_iterations_are_those_of_the_last_stage() -> None:
    """Steps count from the end of the warm start; only steps that all seeds have are averaged."""
    group = Group("renee", "static", {0: validated("none", 50.0, 10), 1: validated("none", 54.0, 10, seed=1)})
    steps, values = course(group, "P@1")
    np.testing.assert_array_equal(steps, [10, 20])
    np.testing.assert_array_equal(values, [[25, 50], [27, 54]])
    steps, values = course(group, "PSP@5")
    np.testing.assert_array_equal(steps, [10, 20, 30])
    assert values.shape == (2, 3)


def test_iterations_without_stages_are_all_steps() -> None:
    curves: dict[str, list[float | None]] = {"step": [5.0, 9.0], "validation/P@1": [1.0, 2.0]}
    group = Group("renee", "static", {0: setting_run("renee", {}, curves=curves)})
    np.testing.assert_array_equal(course(group, "P@1")[0], [5, 9])
    assert len(course(group, "PSP@5")[0]) == 0


def test_iterations_compare_runs_that_hold_out_the_same_rows() -> None:
    """A pair of one way to hold rows out is taken, never one of each."""
    mixed = draw("iterations", validated("none", 50, 9), validated("gandalf", 60, 19, size=0.2))
    assert isinstance(mixed, Missing)
    assert len(mixed.command.splitlines()) == 1
    pair = [validated(kind, 60, 9, size=0.2) for kind in ("none", "gandalf")]
    assert "20% of the train rows" in drawn("iterations", validated("none", 50, 9), *pair).caption


def test_iterations_without_propensities_have_one_panel() -> None:
    runs = [validated(kind, 60, 9, seed=seed) for kind in ("none", "gandalf") for seed in (0, 1)]
    for run in runs:
        del run.curves["validation/PSP@5"]
    found = drawn("iterations", *runs)
    assert "PSP@5" not in found.caption
    assert "means over 2 seeds" in found.caption


def test_subsampling_lines_share_their_ends() -> None:
    def group(score: float) -> Group:
        return Group("renee", "static", {seed: thinned(0, "", score + seed, seed) for seed in (0, 1)})

    places = [("", 0.0, group(50)), ("random", 0.5, group(55)), ("tail-first", 0.25, group(53)), ("", 1.0, group(60))]
    spread = float(np.std([0, 1], ddof=1))
    assert lines_of(places, "P@1") == {
        "random": [(0.0, 50.5, spread), (0.5, 55.5, spread), (1.0, 60.5, spread)],
        "tail-first": [(0.0, 50.5, spread), (0.25, 53.5, spread), (1.0, 60.5, spread)],
    }
    assert list(lines_of(places[:2], "P@1")) == ["random"]


def test_subsampling_says_what_was_not_run() -> None:
    runs = [thinned(0, "", 50), thinned(0.25, "random", 53), thinned(0.5, "tail-first", 57), thinned(1, "random", 60)]
    found = drawn("subsampling", *runs)
    assert "Not run: " in found.caption
    assert "augment_options.labels=0.75 augment_options.order=tail-first" in found.caption
    assert "50% 57.0" in found.alt
    assert isinstance(draw("subsampling", *runs[::3]), Missing)
    assert isinstance(draw("subsampling", *runs[:2]), Missing)


def test_positives_are_the_mean_of_the_last_epochs() -> None:
    assert mean_positives(picked(1, 0, 2.0)) == pytest.approx(2.0)
    assert mean_positives(setting_run("unidec", {}, curves={"step": [1.0], "train/positives": [None]})) is None
    assert mean_positives(setting_run("unidec", {})) is None


def test_positives_are_drawn_over_beta_for_each_eta() -> None:
    runs = [picked(beta, eta, 1 + 0.1 * beta + 0.05 * eta, seed) for beta in BETAS for eta in ETAS for seed in (0, 1)]
    found = drawn("positives", *runs)
    assert "eta 6: 1.40 at beta 1, 1.50 at beta 2, 1.60 at beta 3, 1.70 at beta 4" in found.alt
    assert "2.51 labels" in found.caption
    assert draw("positives", *runs) == found
    lone = draw("positives", picked(3, 6, 2.0), picked(3, 0, 2.0))
    assert isinstance(lone, Missing)
    assert len(lone.command.splitlines()) == len(BETAS) * len(ETAS) - 2


@given(st.lists(st.floats(-1e6, 1e6), max_size=8))
def test_nearest_is_the_least_distance(heights: list[float]) -> None:
    pairs = [abs(first - second) for at, first in enumerate(heights) for second in heights[:at]]
    assert nearest(heights) == min(pairs, default=float("inf"))


def test_only_the_named_settings_may_differ() -> None:
    """Other settings, other data and trials of sweeps are not mixed in; of two encoders one is taken."""
    right = picked(2, 3, 2.0)
    other = setting_run("unidec", {"params.beta": 2, "params.eta": 3, "params.epochs": 99}, seed=1)
    alien = setting_run("unidec", {"params.beta": 2, "params.eta": 3, "encoder": "tiny"}, seed=2)
    found = find_variants([right, other, alien], "unidec", DATASET, [{"beta": 2, "eta": 3}, {"beta": 4, "eta": 3}])
    assert found.groups == (Group("unidec", "static", {0: right}), None)
    assert found.commands == f"python -m harness bench --methods unidec --datasets {DATASET} --set beta=4 --set eta=3"
    alone = find_variants([alien], "unidec", DATASET, [{"beta": 2, "eta": 3}, {"beta": 4, "eta": 3}])
    assert [group.encoder for group in alone.known] == ["tiny"]
    assert "--encoder tiny" in alone.commands


def test_runs_on_other_data_are_counted_not_drawn() -> None:
    runs = [picked(beta, 6, 2.0 + beta) for beta in BETAS]
    old = [setting_run("unidec", {"params.beta": 1, "params.eta": 6}, digest="e" * 64, curves=runs[0].curves)]
    assert "1 run on another version" in drawn("positives", *runs, *old).caption


def test_a_sweep_is_drawn_with_its_best_trial_named() -> None:
    small = study(name="small", trials=study().trials[:2])
    found = drawn("sweep", studies=(small, study()))
    assert "the 3 complete trials of the study s," in found.caption
    assert "1 were ended early" in found.caption
    assert "1 more study" in found.caption
    assert "from 61.00 to 63.00, the best at lambda 0.5, beta 4, tau 0.03, symmetric 1" in found.alt
    assert ordered(study()) == ["lambda", "beta", "tau", "symmetric"]
    assert frame_of(study())["P@1"].tolist()[1:] == [61.0, 62.0, 63.0]


def many(trials: int, value: float = 0.001) -> Study:
    """Trial number n of the objective P@1 has the value n times `value`; the best is one that no even sample takes."""
    found = [
        Trial(
            number=number,
            state="COMPLETE",
            values={"P@1": 99.0 if number == 1 else number * value},
            params={"tau": 0.03, "beta": 1 + number % 6, "lambda": 0.5, "symmetric": 1.0},
            seconds=1.0,
        )
        for number in range(trials)
    ]
    return study(trials=found, best=[1])


@pytest.mark.parametrize("trials", [1, 2, 499, 500, 501, 5000])
def test_a_long_sweep_is_thinned_to_its_best_and_an_even_sample(trials: int) -> None:
    most = MOST_POINTS // 4
    places = sample_of(many(trials))
    assert places == sorted(set(places))
    if trials <= most:
        assert places == list(range(trials))
        return
    assert most <= len(places) <= most + 1
    assert places[:2] == [0, 1]
    assert places[-1] == trials - 1
    steps = np.diff([place for place in places if place != 1])
    assert steps.max() - steps.min() <= 1


def test_a_long_sweep_is_a_small_picture_that_says_so() -> None:
    found = drawn("sweep", studies=(many(20_000),))
    assert len(found.svg) < 500_000
    assert "of the 20,000 complete trials" in found.caption
    assert "Drawn are 501 of them, the best and an even sample." in found.caption
    assert "to 99.00" in found.alt


def test_numbers_that_no_axis_can_hold_are_told() -> None:
    """A figure is missing then, with the reason; faults of the program itself are not hidden."""
    values = Evidence((), (many(5, value=4e307),))
    [missing] = draw_all(values, DATASET, ["sweep"])
    assert isinstance(missing, Missing)
    assert (missing.id, missing.title) == ("sweep", "What a sweep found")
    assert missing.why.startswith(f"the numbers of these runs on {DATASET} cannot be drawn: ")
    assert missing.command.startswith("python -m harness sweep ")


@pytest.mark.parametrize(
    ("name", "value"), [("P@5", None), ("P@5", "x"), ("PSP@5", float("nan")), ("labels", [1]), ("train_pairs", True)]
)
def test_a_run_whose_bins_are_no_numbers_is_left_out(name: str, value: object) -> None:
    bins = [
        {"bin": one, "labels": 5, "train_pairs": 50, "test_pairs": 9, "P@5": 4.0, "PSP@5": 3.0}
        for one in ("head", "torso", "tail")
    ]
    whole = setting_run("unidec", {}, contributions=bins)
    damaged = setting_run("renee", {"augment": "none"}, contributions=[{**bins[0], name: value}, *bins[1:]])
    [found] = draw_all(Evidence((damaged, whole)), DATASET, ["bins"])
    assert isinstance(found, Drawing)
    assert "Bars of 1 method" in found.alt
    assert "unidec" in found.alt
    [missing] = draw_all(Evidence((damaged,)), DATASET, ["bins"])
    assert isinstance(missing, Missing) or name in ("P@5", "PSP@5")


@pytest.mark.parametrize("fault", [KeyError, AttributeError, TypeError, UserError])
def test_faults_of_the_program_are_not_taken_for_bad_numbers(
    fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(evidence: Evidence, dataset: str) -> Drawing | Missing:
        raise fault("x")

    monkeypatch.setitem(FIGURES, "sweep", broken)
    with pytest.raises(fault):
        list(draw_all(Evidence(()), DATASET, ["sweep"]))


def test_a_sweep_without_anything_to_show_is_missing() -> None:
    for empty in (study(trials=study().trials[:1]), study(space={}), study(space={"beta": {"wrong": 1}})):
        assert isinstance(draw("sweep", studies=(empty,)), Missing)
    assert isinstance(draw("sweep", studies=(study(dataset="another"),)), Missing)


def test_a_sweep_of_two_trials_is_no_picture() -> None:
    whole = study()
    ended = [trial for trial in whole.trials if trial.state == "COMPLETE"]
    assert len(ended) == 3
    few = draw("sweep", studies=(study(trials=ended[:2]),))
    assert isinstance(few, Missing)
    assert few.why == f"no sweep on {DATASET} has 3 complete trials"
    drawn("sweep", studies=(study(trials=ended),))


def neighbours(labels: list[str]) -> dict[str, Neighbours]:
    others = [Neighbour(label=label, share=share) for label, share in zip(labels, (1.0, 0.5), strict=False)]
    examples = [Example(label=label, train_rows=9, neighbours=others) for label in labels]
    return {DATASET: Neighbours(dataset=DATASET, digest="d" * 64, examples=examples)}


def test_neighbours_are_drawn_whatever_their_names() -> None:
    """Fault 64: names with markup, mathematics, control characters, or none at all."""
    names = [HOSTILE, "", "x" * 5000, "_a", "日本語"]
    found = drawn("neighbours", neighbours=neighbours(names))
    assert b"<script" not in found.svg
    assert draw("neighbours", neighbours=neighbours(names)) == found


def test_neighbours_say_how_true_they_are() -> None:
    found = neighbours(["a", "b"])
    assert "among their own labels" not in drawn("neighbours", neighbours=found).caption
    counted = {DATASET: found[DATASET].model_copy(update={"items": 1234, "true_share": 0.0325})}
    caption = drawn("neighbours", neighbours=counted).caption
    assert "the 1,234 labels that are train rows themselves, 3% by weight is among their own labels." in caption


def test_neighbours_without_examples_are_missing() -> None:
    found = draw("neighbours", neighbours=neighbours([]))
    assert isinstance(found, Missing)
    assert "no label" in found.why


@given(st.text("ab._- ", max_size=80), st.integers(12, 40))
def test_a_name_that_is_cut_keeps_its_end(name: str, longest: int) -> None:
    found, clean = ending(name, longest), " ".join(name.split())
    assert 0 < len(found) <= longest
    if len(clean) < longest:
        assert found.removeprefix("\u2009") == (clean or "(no name)")
    if found.startswith("…"):
        assert clean.endswith(found[1:])
        assert len(found) > 8


def test_a_name_is_cut_behind_a_dot() -> None:
    assert ending("networkx.algorithms.flow.shortest_augmenting_path", 36) == "…flow.shortest_augmenting_path"
    assert ending("a.b.c", 36) == "a.b.c"


def test_reading_and_declaring_figures_needs_no_heavy_library() -> None:
    code = "import sys, harness.report.collecting, harness.report.figures as f; assert len(f.FIGURES) >= 10; "
    heavy = "{'torch', 'mlflow', 'optuna', 'transformers', 'matplotlib'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", f"{code}print({heavy})"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
