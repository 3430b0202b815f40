"""The budget of a sweep as a queue: nothing is done twice, nothing is lost, whoever dies when."""

import dataclasses
import json
import os
import sqlite3
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState

from harness.errors import UserError
from harness.files import read_json
from harness.sweep import Plan, Timing, plan_from
from harness.sweep.joining import join
from harness.sweep.queue import DUPLICATE, claim, enqueue, fail, fill, give_back, held_by, repair, slots
from harness.sweep.recovering import recover
from harness.sweep.results import Results, best_slots, trials_frame
from harness.sweep.samplers import make_pruner, make_sampler
from harness.sweep.space import suggest
from harness.sweep.storage import open_study, storage_address
from tests.sweeps import begun, by_slot, drawn, planned, states
from tests.training_runs import limit_lifetime
from tests.trust.accounts import Account


def claimed_by(plan: Plan, worker: str, report: Path) -> None:
    """Claims everything there is, as a worker would, and says what it got."""
    study = open_study(plan)
    got = []
    while (trial_id := claim(study, plan, worker)) is not None:
        got.append(trial_id)
        study.tell(study._storage.get_trial(trial_id).number, 1.0)
    report.write_text(json.dumps(got))


def in_processes(count: int, work: Callable[[int], None]) -> None:
    """Does the work in forked processes at once."""
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                limit_lifetime()
                work(number)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * count


def race(plan: Plan, tmp_path: Path, count: int) -> list[list[int]]:
    """What so many processes claim when they start together."""
    in_processes(count, lambda number: claimed_by(plan, f"w{number}", tmp_path / f"{number}.json"))
    return [read_json(tmp_path / f"{number}.json") for number in range(count)]


def test_every_trial_is_claimed_once(tmp_path: Path) -> None:
    plan, study, _ = begun(trials=24)
    got = race(plan, tmp_path, 4)
    claimed = [trial_id for one in got for trial_id in one]
    assert len(claimed) == len(set(claimed)) == 24
    assert states(study) == ["COMPLETE"] * 24


def test_two_machines_fill_and_claim_on_postgresql(tmp_path: Path, postgres: str) -> None:
    """Both see an empty study and put every slot into the queue; every slot is done once all the same."""
    import psycopg2
    from sqlalchemy.engine import make_url

    connection = psycopg2.connect(postgres)
    connection.autocommit = True
    connection.cursor().execute("CREATE DATABASE studies")
    connection.close()
    address = make_url(postgres).set(database="studies").render_as_string(hide_password=False)
    here = planned(trials=12, storage=address, out=tmp_path / "here")
    there = planned(trials=12, storage=address, out=tmp_path / "there")

    def machine(number: int) -> None:
        plan = [here, there][number % 2]
        study, _ = join(plan)
        fill(study, plan)
        claimed_by(plan, f"w{number}", tmp_path / f"{number}.json")

    in_processes(4, machine)
    study, group = join(there)
    assert study.user_attrs["id"] == group
    trials = by_slot(study)
    assert sorted(trials) == list(range(12))
    for slot in trials.values():
        assert [trial.state.name for trial in slot].count("COMPLETE") == 1
        assert all(trial.user_attrs.get("reason") == DUPLICATE for trial in slot if trial.state.name == "FAIL")
    assert Results(there, study, group).facts()["storage"].startswith("postgresql")
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
    assert [slot.state for slot in slots(study, 2)] == ["RUNNING", "RUNNING"]


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
        (slot,) = slots(study, 1)
        assert (slot.attempts, slot.ended(2)) == (attempt, False)
        trial_id = drawn(study, plan, f"w{attempt}")
        study._storage.set_trial_intermediate_value(trial_id, attempt + 1, 10.0 + attempt)
        assert fail(study, trial_id)
        assert not fail(study, trial_id)  # two that notice the same death
        repair(study, plan)
    assert states(study) == ["FAIL"] * 3
    assert len({json.dumps(trial.params) for trial in study.trials}) == 1
    assert study.trials[2].intermediate_values == {1: 10.0, 2: 11.0, 3: 12.0}
    (slot,) = slots(study, 1)
    assert slot.given_up(2)
    assert slot.ended(2)
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
    assert [slot.state for slot in slots(study, 1)] == ["WAITING"]


def test_a_slot_that_will_be_put_back_has_not_ended() -> None:
    plan, study, group = begun(trials=1)
    fail(study, drawn(study, plan, "w"))
    Results(plan, study, group).write()
    (row,) = read_json(plan.folder / "study.json")["slots"]
    assert (row["state"], row["reason"]) == ("LOST", None)
    repair(study, plan)
    join(plan)
    assert recover(plan)[1] == 0


def test_who_dies_between_two_writes_loses_no_slot() -> None:
    plan, study, _ = begun(trials=2)
    trial_id = drawn(study, plan, "w")
    fail(study, trial_id)  # and now the process that wanted to put it back is gone
    again, _ = join(plan)
    fill(again, plan)
    assert len(again.trials) == 2
    repair(again, plan)
    repair(again, plan)
    assert states(again) == ["FAIL", "WAITING", "WAITING"]
    assert again.trials[2].params == again.trials[0].params


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
    assert slots(study, 1)[0].attempts == 0
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


def test_points_depend_on_the_slot_and_on_nothing_else() -> None:
    plan, study, _ = begun(trials=6)
    for number in range(6):
        drawn(study, plan, f"w{number}")
    points = [trial.params for trial in study.trials]
    assert len({json.dumps(point) for point in points}) == 6
    other, again, _ = begun(trials=6, study="other")
    order = [claim(again, other, "w") for _ in range(6)]
    import optuna

    for trial_id in reversed(order):
        assert trial_id is not None
        again.sampler = make_sampler(other, again._storage.get_trial(trial_id).user_attrs["slot"])
        suggest(optuna.Trial(again, trial_id), other.space)
    assert [trial.params for trial in again.trials] == points
    assert study.user_attrs["search"]["optuna"] == optuna.__version__
    assert study.user_attrs["search"]["sampler_options"]["constant_liar"] is True


def test_pruners() -> None:
    assert type(make_pruner(planned())).__name__ == "MedianPruner"
    halving = make_pruner(planned(pruner="hyperband"))
    assert halving._max_resource == 3  # type: ignore[attr-defined]
    free = make_pruner(planned(pruner="hyperband", over="epochs=2:9", settings=()))
    assert free._max_resource == "auto"  # type: ignore[attr-defined]
    both = planned(objective="P@1,R@5")
    assert (both.pruning, type(make_pruner(both)).__name__) == (False, "NopPruner")


def test_a_plan_reaches_a_worker_as_it_is() -> None:
    plan = planned(over="lambda,lr_heads=1e-4:1e-2:log,schedule=[cosine,linear]", settings=())
    assert plan_from(json.loads(json.dumps(plan.as_dict()))) == plan
    odd = storage_address(None, Path("/a b/{c}%d?e"))
    from harness.sweep.storage import shown_address, sqlite_file

    assert sqlite_file(odd) == Path("/a b/{c}%d?e/study.db")
    assert "secret" not in shown_address("postgresql://me:secret@host/name")


def test_of_two_searches_that_begin_one_study_at_once_one_is_refused(tmp_path: Path, account: Account) -> None:
    """fault 19: two processes, one name, two spaces, and no database yet"""
    plans = [planned(trials=1), planned(trials=1, over="lambda=0.2:0.3,beta")]

    def begin(number: int) -> None:
        try:
            join(plans[number])
            said = "joined"
        except UserError as error:
            said = str(error)
        (tmp_path / f"{number}.txt").write_text(said)

    in_processes(2, begin)
    said = [(tmp_path / f"{number}.txt").read_text() for number in range(2)]
    winner = said.index("joined")
    refusal = said[1 - winner].splitlines()
    assert refusal[0].startswith("study 'small' searches something else; take another --study, or undo:")
    assert [line.partition(":")[0].strip() for line in refusal[1:]] == ["space.lambda.high", "space.lambda.low"]
    join(plans[winner])
    account.did("two processes began a study of one name at once, with lambda 0.1:0.9 and with 0.2:0.3")
    account.saw(f"one began it, the other was refused: {'; '.join(line.strip() for line in refusal[1:])}")


def test_a_study_is_not_used_for_something_else(account: Account) -> None:
    """fault 19: every field that differs is named"""
    plan, _, _ = begun(trials=1)
    named = []
    for changes, field in {
        ("over", "lambda"): "space.beta",
        ("over", "lambda=0.2:0.3,beta"): "space.lambda.low: 0.1 -> 0.2",
        ("objective", "P@3"): 'objective: ["P@1"] -> ["P@3"]',
        ("objective", "P@1,R@5"): "objective",
        ("method", "depsl"): 'method: "unidec" -> "depsl"',
        ("dataset", "synthetic:train=250,test=60,labels=90"): "dataset.digest",
        ("settings", ("epochs=4",)): "config.params.epochs: 3 -> 4",
        ("seed", 1): "config.seed: 0 -> 1",
        ("sampler", "random"): 'sampler: "tpe" -> "random"',
    }.items():
        with pytest.raises(UserError) as refused:
            join(planned(**{changes[0]: changes[1]}))
        assert field in str(refused.value)
        assert "another --study" in str(refused.value)
        named.append(field.partition(":")[0])
    join(planned(max_retry=7, trials=9, settings=(*plan_settings(plan), "device=cpu")))  # changes no result
    account.did(f"a study joined with another space, objective, method, data, setting, seed: {len(named)} ways")
    account.saw(f"all {len(named)} refused by field: {', '.join(dict.fromkeys(named))}")


def plan_settings(plan: Plan) -> tuple[str, ...]:
    return tuple(layer.origin.removeprefix("--set ") for layer in plan.layers if layer.origin.startswith("--set"))


def test_a_front_holds_what_nothing_beats() -> None:
    plan, study, group = begun(trials=5, objective="P@1,R@5")
    for number, values in enumerate([(3.0, 1.0), (2.0, 2.0), (1.0, 1.5), (2.0, 2.0), (1.0, 3.0)]):
        drawn(study, plan, "w")
        study.tell(number, values)
    assert [slot.number for slot in best_slots(slots(study, 5))] == [0, 1, 3, 4]
    Results(plan, study, group).write()
    names = {path.name for path in plan.folder.glob("*.yaml")}
    assert names == {"best.yaml", "pareto-0.yaml", "pareto-1.yaml", "pareto-3.yaml", "pareto-4.yaml"}
    frame = trials_frame(study, plan.max_retry)
    assert list(frame["R@5"]) == [1.0, 2.0, 1.5, 2.0, 3.0]
    assert list(frame.columns[:6]) == ["number", "state", "P@1", "R@5", "lambda", "beta"]
