"""The budget of a sweep as a queue: nothing is done twice, nothing is lost, whoever dies when."""

import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from harness.errors import UserError
from harness.experiments.sweep import Plan, Timing, plan_from
from harness.experiments.sweep.results import Results
from harness.experiments.sweep.run import Sweep
from harness.experiments.sweep.runs import recover
from harness.experiments.sweep.space import suggest
from harness.experiments.sweep.study import join, open_study, shown_address, sqlite_file, storage_address
from harness.experiments.sweep.trials import (
    DUPLICATE,
    claim,
    enqueue,
    fail,
    fill,
    give_back,
    held_by,
    make_sampler,
    repair,
    slots,
)
from harness.io.files import read_json
from tests.support.sweeps import begun, by_slot, drawn, in_processes, planned, states


def claimed_by(plan: Plan, worker: str, report: Path) -> None:
    """Claims everything there is, as a worker would, and says what it got."""
    study = open_study(plan)
    got = []
    while (trial_id := claim(study, plan, worker)) is not None:
        got.append(trial_id)
        study.tell(study._storage.get_trial(trial_id).number, 1.0)
    report.write_text(json.dumps(got))


def test_every_trial_is_claimed_once(tmp_path: Path) -> None:
    plan, study, _ = begun(trials=15)
    in_processes(3, lambda number: claimed_by(plan, f"w{number}", tmp_path / f"{number}.json"))
    claimed = [trial_id for number in range(3) for trial_id in read_json(tmp_path / f"{number}.json")]
    assert len(claimed) == len(set(claimed)) == 15
    assert states(study) == ["COMPLETE"] * 15


def test_two_machines_fill_and_claim_on_postgresql(tmp_path: Path, postgres: str) -> None:
    """Both see an empty study and put every slot into the queue; every slot is done once all the same."""
    import psycopg2
    from sqlalchemy.engine import make_url

    connection = psycopg2.connect(postgres)
    connection.autocommit = True
    connection.cursor().execute("CREATE DATABASE studies")
    connection.close()
    address = make_url(postgres).set(database="studies").render_as_string(hide_password=False)
    here = planned(trials=6, storage=address, out=tmp_path / "here")
    there = planned(trials=6, storage=address, out=tmp_path / "there")

    def machine(number: int) -> None:
        plan = [here, there][number % 2]
        study, _ = join(plan)
        fill(study, plan)
        claimed_by(plan, f"w{number}", tmp_path / f"{number}.json")

    in_processes(4, machine)
    study, group = join(there)
    assert study.user_attrs["id"] == group
    trials = by_slot(study)
    assert sorted(trials) == list(range(6))
    for slot in trials.values():
        assert [trial.state.name for trial in slot].count("COMPLETE") == 1
        assert all(trial.user_attrs.get("reason") == DUPLICATE for trial in slot if trial.state.name == "FAIL")
    assert Results(there, study, group).as_dict()["storage"].startswith("postgresql")
    with pytest.raises(UserError, match=r"--recover rebuilds a database that is a file"):
        recover(there)


def test_the_later_of_two_trials_of_a_slot_is_dropped() -> None:
    plan, study, _ = begun(trials=2)
    enqueue(study, {"slot": 0, "attempts": 0})
    first, second = claim(study, plan, "a"), claim(study, plan, "b")
    assert claim(study, plan, "c") is None
    assert states(study) == ["RUNNING", "RUNNING", "FAIL"]
    assert [trial.number for trial in held_by(study, "b")] == [1]
    assert first != second
    assert [slot.state for slot in slots(study, plan)] == ["RUNNING", "RUNNING"]


def test_more_trials_top_up_and_fewer_leave_the_rest(workspace: Path) -> None:
    plan, study, _ = begun(trials=2)
    fill(study, plan)
    assert len(study.trials) == 2
    fill(study, dataclasses.replace(plan, trials=5))
    assert [trial.user_attrs["slot"] for trial in study.trials] == [0, 1, 2, 3, 4]
    assert claim(study, dataclasses.replace(plan, trials=1), "w") is not None
    assert claim(study, dataclasses.replace(plan, trials=1), "w") is None  # the others were not asked for


def test_a_lost_trial_waits_again_until_it_was_lost_too_often() -> None:
    """fault 16: FAIL after max_retry"""
    plan, study, _ = begun(trials=1, max_retry=2)
    for attempt in range(3):
        (slot,) = slots(study, plan)
        assert (slot.attempts, slot.ended) == (attempt, False)
        trial_id = drawn(study, plan, f"w{attempt}")
        study._storage.set_trial_intermediate_value(trial_id, attempt + 1, 10.0 + attempt)
        assert fail(study, trial_id)
        assert not fail(study, trial_id)  # two that notice the same death
        repair(study, plan)
    assert states(study) == ["FAIL"] * 3
    assert len({json.dumps(trial.params) for trial in study.trials}) == 1
    assert study.trials[2].intermediate_values == {1: 10.0, 2: 11.0, 3: 12.0}
    (slot,) = slots(study, plan)
    assert (slot.state, slot.ended) == ("FAIL", True)
    assert repair(study, plan) == []
    assert len(repair(study, dataclasses.replace(plan, max_retry=3))) == 1  # asked for one more


def test_a_slot_that_was_given_up_is_no_damage() -> None:
    """fault 16, and the next command goes on; with more attempts allowed, so does the trial"""
    plan, study, group = begun(trials=1, max_retry=0)
    fail(study, drawn(study, plan, "w"))
    Results(plan, study, group).write()
    assert read_json(plan.folder / "study.json")["slots"][0]["state"] == "FAIL"
    join(plan)
    more = dataclasses.replace(plan, max_retry=1)
    assert len(repair(study, more)) == 1
    join(more)
    assert [slot.state for slot in slots(study, more)] == ["WAITING"]


def test_who_dies_between_two_writes_loses_no_slot() -> None:
    plan, study, group = begun(trials=2)
    fail(study, drawn(study, plan, "w"))  # and now the process that wanted to put it back is gone
    Results(plan, study, group).write()
    row = read_json(plan.folder / "study.json")["slots"][0]
    assert (row["state"], row["reason"]) == ("LOST", None)  # it has not ended
    again, _ = join(plan)
    fill(again, plan)
    assert len(again.trials) == 2
    repair(again, plan)
    repair(again, plan)
    assert states(again) == ["FAIL", "WAITING", "WAITING"]
    assert again.trials[2].params == again.trials[0].params
    again._storage.remove_session()
    assert recover(plan)[1] == 0


def test_a_trial_that_is_given_back_keeps_its_number_and_point() -> None:
    plan, study, _ = begun(trials=1)
    trial_id = drawn(study, plan, "w")
    point = study.trials[0].params
    assert give_back(study, trial_id)
    assert (states(study), study.trials[0].params) == (["WAITING"], point)
    assert study._storage.set_trial_state_values(trial_id, TrialState.RUNNING)  # claimed; the name comes next
    assert held_by(study, "w") == []
    assert give_back(study, trial_id)
    assert drawn(study, plan, "v") == trial_id
    assert study.trials[0].params == point
    assert slots(study, plan)[0].attempts == 0
    assert fail(study, trial_id, "diverged")
    assert not give_back(study, trial_id)
    assert repair(study, plan) == []  # it failed for a reason, so it is not lost


def test_silence_is_noticed_and_signs_of_life_are_too() -> None:
    """fault 17, the side of those who notice"""
    plan, study, _ = begun(Timing(heartbeat=1, grace=60), trials=2)
    silent, lively = drawn(study, plan, "silent"), drawn(study, plan, "lively")
    with sqlite3.connect(plan.folder / "study.db") as connection:
        connection.execute(
            "UPDATE trial_heartbeats SET heartbeat = datetime('now', '-61 seconds') WHERE trial_id = ?", (silent,)
        )
    (slot,) = repair(study, plan)
    assert slot.trials[0]._trial_id == silent
    assert study._storage.get_trial(lively).state == TrialState.RUNNING
    assert claim(study, plan, "w") is not None
    assert repair(study, plan) == []  # a claim comes with a sign of life


def points_of(study: str, **more: Any) -> list[dict[str, Any]]:
    """The points of a study of four trials."""
    plan, begun_study, _ = begun(trials=4, study=study, **more)
    return [begun_study._storage.get_trial(drawn(begun_study, plan, "w")).params for _ in range(4)]


def test_points_depend_on_the_slot_and_on_nothing_else() -> None:
    points = points_of("in-order")
    assert len({json.dumps(point) for point in points}) == 4
    plan, study, _ = begun(trials=4)
    for trial_id in reversed([claim(study, plan, "w") for _ in range(4)]):
        assert trial_id is not None
        study.sampler = make_sampler(plan, study._storage.get_trial(trial_id).user_attrs["slot"])
        suggest(optuna.Trial(study, trial_id), plan.space)
    assert [trial.params for trial in study.trials] == points
    assert study.user_attrs["search"]["optuna"] == optuna.__version__
    assert study.user_attrs["search"]["sampler_options"]["constant_liar"] is True


def test_a_plan_reaches_a_worker_as_it_is() -> None:
    ranges = "lambda,eta,tau,lr_heads=1e-4:1e-2:log,schedule=[cosine,linear],clip=[null,1.5],dropout=0:0.5"
    plan = planned(over=f"{ranges},batch_size=64:256:step=64,gradient_cache=[true,false]", settings=())
    back = plan_from(json.loads(json.dumps(plan.as_dict())))
    assert back == plan
    assert (type(back.space["dropout"].low), type(back.space["eta"].low)) == (float, int)
    odd = storage_address(None, Path("/a b/{c}%d?e"))
    assert sqlite_file(odd) == Path("/a b/{c}%d?e/study.db")
    assert "secret" not in shown_address("postgresql://me:secret@host/name")


def test_what_another_search_found_is_the_second_trial_and_not_drawn_again() -> None:
    """Sweeps of the same ranges draw the same points, slot by slot: one of them may be what was found."""
    found = {"lambda": 0.25, "beta": 5, "eta": 4}
    plan, study, _ = begun(trials=3, points=({"lambda": 0.5, "beta": 3}, {**found, "beta": 99}, found))
    expected = ({"lambda": 0.5, "beta": 3}, {"lambda": 0.25}, {"lambda": 0.25, "beta": 5})
    assert plan.starts == plan_from(json.loads(json.dumps(plan.as_dict()))).starts == expected
    points = [study._storage.get_trial(drawn(study, plan, "w")).params for _ in range(3)]
    assert points == [expected[0], {"lambda": 0.25, "beta": points[1]["beta"]}, expected[2]]
    there = points_of("there")
    here = points_of("here", points=(there[2],))
    assert here[:2] == [there[0], there[2]]
    assert there[2] not in here[2:]


def test_a_trial_is_printed_once_its_whole_point_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """Optuna stores a point value by value; a line in between would show half of it, and is not printed twice."""
    plan, study, group = begun(trials=1)
    number, sweep = claim(study, plan, "w"), Sweep(plan, study, group, 1)
    assert number is not None
    trial = optuna.Trial(study, number)
    for name, given in plan.space.items():
        sweep.slots = slots(study, plan)
        sweep.display.refresh()
        assert capsys.readouterr().err == ""
        suggest(trial, {name: given})
    sweep.slots = slots(study, plan)
    sweep.display.refresh()
    assert capsys.readouterr().err == "[0/1] trial 0: running, lambda 0.5, beta 3\n"
