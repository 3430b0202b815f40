"""One trial of a sweep, in this process: how it ends, and how it goes on."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna import Study

from harness.errors import Terminated, UserError
from harness.experiments.sweep import Plan
from harness.experiments.sweep import worker as trials
from harness.experiments.sweep.results import Results
from harness.experiments.sweep.runs import left_behind, recover
from harness.experiments.sweep.study import join
from harness.experiments.sweep.trials import claim, fail, fill, repair, slots
from harness.experiments.sweep.worker import Attempt
from harness.run import resolve_config
from harness.runs.events import read_events
from harness.runs.lock import run_lock
from harness.runs.metadata import recorded
from harness.runs.record import RunRecord, read_record
from tests.support.sweeps import begun, states
from tests.support.tracked_runs import draft

pytestmark = pytest.mark.usefixtures("one_thread")
Fake = Callable[..., RunRecord]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Fake], None]:
    """Sets what a trial does in place of a run."""
    return lambda work: monkeypatch.setattr(trials, "run", work)


def raising(error: BaseException) -> Fake:
    def run(config: Any, **rest: Any) -> RunRecord:
        raise error

    return run


def record(config: Any, **values: float) -> RunRecord:
    return RunRecord(
        run_id="r",
        status="finished",
        started="2026-01-01",
        seconds=1.0,
        config=config.model_dump(mode="json"),
        dataset={},
        metrics=values,
        metric_version=1,
    )


def attempt(study: Study, plan: Plan, group: str, worker: str = "w") -> Attempt:
    trial_id = claim(study, plan, worker)
    assert trial_id is not None
    return Attempt(study, plan, group, trial_id, worker)


def test_a_trial_runs_on_validation_rows_and_reports_its_value(fake: Callable[[Fake], None]) -> None:
    seen: dict[str, Any] = {}

    def run(config: Any, **rest: Any) -> RunRecord:
        seen.update(rest, config=config)
        rest["on_validation"](1, {"P@1": 10.0})
        rest["on_validation"](2, {"P@1": 30.0})
        return record(config, **{"P@1": 30.0})

    fake(run)
    plan, study, group = begun(trials=1)
    attempt(study, plan, group).run()
    (trial,) = study.trials
    assert (trial.state.name, trial.value) == ("COMPLETE", 30.0)
    assert trial.intermediate_values == {1: 10.0, 2: 30.0}
    config = seen["config"]
    assert (config.evaluate, config.validation.size, config.validation.metric) == ("validation", 0.1, "P@1")
    assert (config.tracking.model, config.checkpoint.min_seconds) == ("never", 0.0)
    assert config.params["lambda"] == trial.params["lambda"]
    assert config.params["beta"] == trial.params["beta"]
    parent = seen["parent"]
    assert (parent["id"], parent["kind"]) == (group, "sweep")
    assert parent["params"] == {"study": "small", "trial": 0, "slot": 0, **trial.params}


def test_hopeless_trials_are_pruned(fake: Callable[[Fake], None], capsys: pytest.CaptureFixture[str]) -> None:
    values = iter([50.0, 51.0, 52.0, 53.0, 54.0, 1.0])
    reached = []

    def run(config: Any, on_validation: Callable[[int, dict[str, float]], None], **rest: Any) -> RunRecord:
        value = next(values)
        for epoch in range(1, 6):
            reached.append(epoch)
            on_validation(epoch, {"P@1": value})
        return record(config, **{"P@1": value})

    fake(run)
    plan, study, group = begun(trials=6)
    for _ in range(6):
        attempt(study, plan, group).run()
    assert states(study) == ["COMPLETE"] * 5 + ["PRUNED"]
    assert reached[-3:] == [1, 2, 3]  # the first epochs say little
    assert study.trials[5].value == 1.0
    assert "pruned in epoch 3: P@1 1.00 is behind other trials" in capsys.readouterr().err
    assert all(slot.ended for slot in slots(study, plan))


def test_a_trial_that_fails_says_why_and_is_not_tried_again(
    fake: Callable[[Fake], None], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(raising(UserError(f"the loss became nan, see {workspace}/x\nmore")))
    plan, study, group = begun(trials=1)
    attempt(study, plan, group).run()
    assert study.trials[0].user_attrs["reason"] == "the loss became nan, see $HARNESS_HOME/x"
    assert repair(study, plan) == []
    assert claim(study, plan, "w") is None
    fake(lambda config, **rest: record(config))
    other, study, group = begun(trials=1, study="other")
    attempt(study, other, group).run()
    assert "gave no number for P@1" in study.trials[0].user_attrs["reason"]


@pytest.mark.parametrize("moment", ["validation", "end", "failure"])
def test_a_worker_that_was_silent_drops_its_trial(
    moment: str, fake: Callable[[Fake], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 17: the trial is another worker's by now; the one that wakes up goes on with the next"""
    plan, study, group = begun(trials=2)
    after = []

    def run(config: Any, on_validation: Callable[[int, dict[str, float]], None], **rest: Any) -> RunRecord:
        on_validation(1, {"P@1": 1.0})
        if not after:
            other, _ = join(plan)  # as another process would see it
            fail(other, other.trials[0]._trial_id)
            repair(other, plan)
            after.append(other)
        if moment == "validation":
            on_validation(2, {"P@1": 2.0})
            assert len(after) > 1, "went on with what is not its own any more"
        if moment == "failure":
            raise ValueError("boom")
        return record(config, **{"P@1": 2.0})

    fake(run)
    first = attempt(study, plan, group)
    first.run()
    assert states(study) == ["FAIL", "WAITING", "WAITING"]
    assert "reason" not in study.trials[0].user_attrs or moment == "failure"
    assert study.trials[2].params == first.values
    after.append(None)
    attempt(study, plan, group).run()
    attempt(study, plan, group, "v").run()
    assert states(study)[1:] == (["FAIL"] * 2 if moment == "failure" else ["COMPLETE"] * 2)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Terminated(), OSError(errno.ENOSPC, "No space left")])
def test_what_stops_the_worker_puts_the_trial_back(error: BaseException, fake: Callable[[Fake], None]) -> None:
    fake(raising(error))
    plan, study, group = begun(trials=1)
    with pytest.raises(type(error)):
        attempt(study, plan, group).run()
    assert states(study) == ["WAITING"]
    assert slots(study, plan)[0].attempts == 0


def test_two_objectives(fake: Callable[[Fake], None]) -> None:
    def run(config: Any, on_validation: Callable[[int, dict[str, float]], None], **rest: Any) -> RunRecord:
        on_validation(3, {"P@1": 1.0, "R@5": 2.0})
        return record(config, **{"P@1": 4.0, "R@5": 5.0})

    fake(run)
    plan, study, group = begun(trials=1, objective="P@1,R@5")
    attempt(study, plan, group).run()
    assert study.trials[0].values == [4.0, 5.0]
    row = Results(plan, study, group).as_dict()["slots"][0]
    assert (row["epochs"], row["values"]) == (3, [4.0, 5.0])


def only_run(plan: Plan) -> Path:
    (run,) = (path for path in plan.runs.iterdir() if path.is_dir())
    return run


def test_real_trials_go_on_where_they_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 15: the same folder, from the checkpoint, to the same value as if nothing had happened

    The record of a run that was finished but not told counts without a second run; and run folders alone are enough to
    rebuild the study.
    """
    whole, study, group = begun(trials=1, study="whole")
    attempt(study, whole, group).run()
    expected = study.trials[0]

    plan, study, group = begun(trials=2)
    report = Attempt._validated

    def interrupted(self: Attempt, epoch: int, scores: dict[str, float]) -> None:
        report(self, epoch, scores)
        if epoch == 2:
            raise Terminated

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "_validated", interrupted)
        with pytest.raises(Terminated):
            attempt(study, plan, group).run()
    run = only_run(plan)
    assert read_record(run).status == "killed"
    assert states(study) == ["WAITING", "WAITING"]

    def not_told(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "_tell", not_told)
        with pytest.raises(KeyboardInterrupt):
            attempt(study, plan, group).run()
    assert only_run(plan) == run
    assert read_record(run).status == "finished"
    assert states(study) == ["WAITING", "WAITING"]
    monkeypatch.setattr(trials, "run", lambda *arguments, **rest: pytest.fail("it has been run"))
    attempt(study, plan, group).run()
    done = study.trials[0]
    assert (done.state.name, done.value, done.params) == ("COMPLETE", expected.value, expected.params)
    assert done.intermediate_values == expected.intermediate_values
    assert done.user_attrs["run_id"] == run.name
    kinds = [event["event"] for event in read_events(run / "events.jsonl")]
    assert (kinds.count("start"), kinds.count("resume")) == (1, 1)
    assert not (run / "model").exists()

    Results(plan, study, group).write()
    metadata = json.loads((plan.folder / "study.json").read_text())
    metadata["slots"] = []  # the folders know it all
    (plan.folder / "study.json").write_text(json.dumps(metadata))
    assert recover(plan)[1] == 1
    again, _ = join(plan)
    fill(again, plan)
    assert states(again) == ["COMPLETE", "WAITING"]
    assert (again.trials[0].value, again.trials[0].params) == (expected.value, expected.params)
    assert again.trials[0].intermediate_values == expected.intermediate_values


def test_a_run_that_a_living_process_holds_is_left_to_it() -> None:
    """fault 17: the other attempt has a folder of its own"""
    plan, _, group = begun(trials=1)
    config, _ = resolve_config(plan.method, plan.dataset, list(plan.layers))
    folder = plan.runs / "held"
    folder.mkdir(parents=True)
    parent = {"id": group, "kind": "sweep", "name": "small", "params": {"study": "small", "trial": 0, "slot": 0}}
    metadata = draft("held") | {"config": recorded(config), "parent": parent}
    start = {"event": "start", "time": "2026-01-01T00:00:00+00:00", **metadata}
    (folder / "events.jsonl").write_text(json.dumps(start) + "\n")
    found = left_behind(plan, group, 0, config)
    assert found is not None
    assert not isinstance(found, RunRecord)
    assert found.folder == folder
    assert left_behind(plan, group, 1, config) is None
    assert left_behind(plan, "another", 0, config) is None
    with run_lock(folder):
        assert left_behind(plan, group, 0, config) is None
