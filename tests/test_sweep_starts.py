"""Where a sweep begins: the settings as they stand, and points that were asked for."""

import json
from typing import Any

import pytest
from optuna.trial import Trial

from harness.config import Layer
from harness.run import resolve_config
from harness.sweep import plan_from
from harness.sweep.display import Lines
from harness.sweep.queue import claim, fail, repair, slots
from harness.sweep.space import parse_over, starts, suggest
from methods.unidec import METHOD
from tests.sweeps import begun, drawn

DATASET = "synthetic"


@pytest.mark.parametrize(
    ("over", "settings", "expected"),
    [
        ("beta,lambda", {}, {"beta": 3, "lambda": 0.5}),
        ("beta=4:9", {}, {}),  # 3 lies outside
        ("beta=1:9:step=2", {}, {"beta": 3}),
        ("beta=2:8:step=2", {}, {}),
        ("batch_size", {"batch_size": 128}, {"batch_size": 128}),
        ("batch_size", {"batch_size": 100}, {}),
        ("tau", {"temperature": 0.05}, {}),  # its two knobs differ
        ("lr_classifier", {"encoder": "static"}, {"lr_classifier": 1.5e-3}),
        ("lr_classifier", {"encoder": "static", "lr_classifier": 2e-3}, {"lr_classifier": 2e-3}),
        ("max_len=16:64", {"max_len": 32}, {"max_len": 32}),
    ],
)
def test_the_first_trial_has_the_settings_as_they_stand(
    over: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    config, _ = resolve_config("unidec", DATASET, [Layer("test", settings)])
    assert starts(parse_over(over, "unidec", METHOD.params), config) == (expected,)


def test_what_another_search_found_is_the_second_trial() -> None:
    found = {"lambda": 0.25, "beta": 5, "eta": 4}
    plan, study_, _ = begun(trials=3, points=({"lambda": 0.5, "beta": 3}, {**found, "beta": 99}, found))
    expected = ({"lambda": 0.5, "beta": 3}, {"lambda": 0.25}, {"lambda": 0.25, "beta": 5})
    assert plan.starts == plan_from(json.loads(json.dumps(plan.as_dict()))).starts == expected
    points = [study_._storage.get_trial(drawn(study_, plan, "a worker")).params for _ in range(3)]
    assert points[0] == expected[0]
    assert points[1]["lambda"] == 0.25
    assert points[2] == expected[2]


def test_what_another_search_found_is_not_drawn_again() -> None:
    """Sweeps of the same ranges draw the same points, slot by slot: one of them may be what was found."""

    def points(name: str, **more: Any) -> list[dict[str, Any]]:
        plan, study_, _ = begun(trials=5, study=name, **more)
        return [study_._storage.get_trial(drawn(study_, plan, "a worker")).params for _ in range(5)]

    there = points("there")
    for slot, found in enumerate(there[2:]):
        here = points(f"here-{slot}", points=(found,))
        assert here[:2] == [there[0], found]
        assert found not in here[2:]


def test_a_first_trial_that_was_lost_is_repeated_as_it_was() -> None:
    plan, study_, _ = begun(trials=1)
    lost = claim(study_, plan, "a worker")
    assert lost is not None
    fail(study_, lost)
    (slot,) = repair(study_, plan)
    assert slot.number == 0
    again = drawn(study_, plan, "another worker")
    assert study_._storage.get_trial(again).params == plan.starts[0] == {"lambda": 0.5, "beta": 3}


def test_a_trial_is_told_once_its_whole_point_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """Optuna stores a point value by value; a line in between would show half of it, and is not printed twice."""
    plan, study_, _ = begun(trials=1)
    number, lines = claim(study_, plan, "a worker"), Lines(plan)
    assert number is not None
    trial = Trial(study_, number)
    for name, given in plan.space.items():
        lines.show(slots(study_, 1), workers=1)
        assert capsys.readouterr().err == ""
        suggest(trial, {name: given})
    lines.show(slots(study_, 1), workers=1)
    assert capsys.readouterr().err == "[0/1] trial 0: running, lambda 0.5, beta 3\n"
