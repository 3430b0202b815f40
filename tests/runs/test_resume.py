"""A run that was killed anywhere and taken up again ends with the same bits as one that never stopped."""

import json
import os
import shutil
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from harness.errors import DataError, UserError
from harness.run import run
from harness.runs.events import read_events
from harness.runs.record import read_record
from harness.runs.resume import find_earlier
from harness.train.checkpoint import Checkpoints
from tests.faults.accounts import Account
from tests.runs.conftest import VALIDATED, Whole
from tests.support.commands import call
from tests.support.interrupted_runs import assert_same, kill_at_step, saved_steps, steps_done, taken_up
from tests.support.tracked_runs import eventually, steps_of, stored_runs
from tests.support.training_runs import STEPS, config, in_child, only_run


def kill_in_call(module: Any, name: str, call: int, number: signal.Signals = signal.SIGKILL, **settings: Any) -> None:
    """A training that gets a signal inside a call of a function, the first, second ... one."""
    original, calls = getattr(module, name), []

    def dying(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    setattr(module, name, dying)
    run(config(**settings), track="none")


@pytest.mark.parametrize(
    ("step", "every_steps"),
    [(1, 1), (7, 3), (STEPS - 1, None), (2, None)],
    ids=["first", "between", "last", "before the first checkpoint"],
)
def test_killed_at_a_step(step: int, every_steps: int | None, workspace: Path, tmp_path: Path, whole: Whole) -> None:
    """fault 1"""
    saving = {"min_seconds": 0.0, "every_steps": every_steps}
    assert in_child(lambda: kill_at_step(step, checkpoint=saving), tmp_path / "said") == -signal.SIGKILL
    assert bool(saved_steps(only_run(workspace))) == (step > 2)
    assert_same(taken_up(workspace), whole)


@pytest.mark.parametrize("part", ["search", "balanced_clusters"])
def test_killed_while_mining(part: str, workspace: Path, tmp_path: Path, whole: Whole, account: Account) -> None:
    """fault 3: in the second mining; the checkpoint of step 12 is written beside it, or not there yet"""
    from harness.batching import mined as mining

    assert in_child(lambda: kill_in_call(mining, part, 2), tmp_path / "said") == -signal.SIGKILL
    folder = only_run(workspace)
    saved = saved_steps(folder)[-1]
    assert saved in (8, 12)
    assert mined_at(folder) == [4]
    with steps_done() as steps:
        assert_same(taken_up(workspace), whole)
    assert list(steps) == list(range(saved + 1, STEPS + 1))
    assert mined_at(folder) == [4, 12]
    account.did(f"SIGKILL inside {part}() of the second mining, after step 12 of {STEPS}")
    account.saw(f"gone on from step {saved}, mined again after step 12; weights and metrics bit-equal")


def mined_at(folder: Path) -> list[int]:
    """Steps after which a mining was completed."""
    return [event["step"] for event in read_events(folder / "events.jsonl") if "mining/seconds" in str(event)]


def test_killed_while_evaluating_does_not_train_again(
    workspace: Path, tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    """fault 4: in the second of three scorers"""
    from harness.train import evaluation
    from harness.train.objectives import psl

    assert in_child(lambda: kill_in_call(evaluation, "find_labels", 2), tmp_path / "said") == -signal.SIGKILL
    assert saved_steps(only_run(workspace))[-1] == STEPS

    def forbidden(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(psl.PickSomeLabels, "backward", forbidden)
    with steps_done() as steps:
        record, model = taken_up(workspace)
    assert not steps
    assert_same((record, model), whole)
    account.did(
        f"SIGKILL while the second of {len(record.scorers)} scorers was evaluated, after step {STEPS} of {STEPS}"
    )
    account.saw(
        f"{len(steps)} steps trained, all {len(record.scorers)} scorers evaluated; weights and metrics bit-equal"
    )


@pytest.mark.parametrize(
    ("number", "place", "step"),
    [(signal.SIGTERM, "step", 6), (signal.SIGINT, "step", 6), (signal.SIGTERM, "mining", 12)],
)
def test_a_signal_saves_marks_and_can_be_taken_up(
    number: signal.Signals, place: str, step: int, workspace: Path, tmp_path: Path, whole: Whole
) -> None:
    """fault 5: after a step, and while the queries are clustered anew"""
    from harness.batching import mined as mining

    rarely: dict[str, Any] = {"checkpoint": {"min_seconds": 1000.0}}
    acts = {
        "step": lambda: kill_at_step(step, number, **rarely),
        "mining": lambda: kill_in_call(mining, "balanced_clusters", 2, number, **rarely),
    }
    assert in_child(acts[place], tmp_path / "said") == 1
    folder = only_run(workspace)
    said = (tmp_path / "said").read_text()
    assert ("stopping after this step" in said) == (place == "step")
    assert f"run --resume {folder.name}" in said
    assert read_record(folder).status == "killed"
    assert saved_steps(folder) == [step]
    assert_same(taken_up(workspace), whole)


def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    """fault 5"""
    code = in_child(lambda: kill_at_step(6, signal.SIGTERM, signal.SIGTERM), tmp_path / "said")
    assert code == -signal.SIGTERM


def test_validation_survives_a_kill(workspace: Path, tmp_path: Path, validated: tuple[Path, Whole]) -> None:
    assert in_child(lambda: kill_at_step(5, **VALIDATED), tmp_path / "said") == -signal.SIGKILL
    assert_same(taken_up(workspace, **VALIDATED), validated[1])


def test_other_settings_are_refused_field_by_field(interrupted: Path, account: Account) -> None:
    """fault 7"""
    changed = config(lr_heads=0.5, batch_size=30, beta=1, ks=[1])
    with pytest.raises(UserError) as error:
        run(changed, track="none", earlier=find_earlier(interrupted.name))
    lines = [line.strip() for line in str(error.value).splitlines()[1:]]
    assert lines == [
        "config.ks: [1, 3, 5] -> [1]",
        "config.params.batch_size: 60 -> 30",
        "config.params.beta: 3 -> 1",
        "config.params.lr_heads: 0.001 -> 0.5",
    ]
    assert not (interrupted / "record.json").exists()
    account.did("a killed run taken up with another learning rate, batch size, beta and ks")
    account.saw("refused: " + "; ".join(line.removeprefix("config.").removeprefix("params.") for line in lines))


def test_a_checkpoint_of_the_earlier_optimiser_keeps_it(workspace: Path, tmp_path: Path) -> None:
    """A run from before the exact optimiser does not name one; it goes on as it was, and as nothing else."""
    in_child(lambda: kill_at_step(7, optimiser_table="touched"), tmp_path / "said")
    folder = only_run(workspace)
    first, _, others = (folder / "events.jsonl").read_text().partition("\n")
    assert '"optimiser_table": "touched", ' in first
    (folder / "events.jsonl").write_text(first.replace('"optimiser_table": "touched", ', "") + "\n" + others)
    with pytest.raises(UserError, match=r'params\.optimiser_table: "touched" -> "exact"'):
        run(config(), track="none", earlier=find_earlier(folder.name))
    assert call("run", "--resume", folder.name, "--track", "none") == 0
    record = read_record(folder / "record.json")
    assert record.training["steps"] == STEPS
    assert record.config["params"]["optimiser_table"] == "touched"


def test_best_weights_that_are_gone_are_missed_at_once(workspace: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"validation": {"size": 0.2}}
    in_child(lambda: kill_at_step(7, **settings), tmp_path / "said")
    for best in only_run(workspace).glob("checkpoints/best-*"):
        shutil.rmtree(best)
    with pytest.raises(DataError, match="best-0-"):
        run(config(**settings), track="none", earlier=find_earlier(only_run(workspace).name))
    assert "train/loss" not in str(read_events(only_run(workspace) / "events.jsonl")[-2:])


def test_another_library_version_is_said_and_recorded(
    interrupted: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 8"""
    log = interrupted / "events.jsonl"
    first, rest = log.read_text().split("\n", 1)
    event = json.loads(first)
    event["environment"]["packages"] |= {"torch": "1.0", "transformers": "2.0"}
    log.write_text(json.dumps(event) + "\n" + rest)
    record = run(config(), track="none", earlier=find_earlier(interrupted.name))
    here = {name: version(name) for name in ("torch", "transformers")}
    moved = [f'packages.torch: "1.0" -> "{here["torch"]}"', f'packages.transformers: "2.0" -> "{here["transformers"]}"']
    assert [line for line in record.resumed[0]["environment"] if line.startswith("packages.")] == moved
    told = capsys.readouterr().err
    for line in moved:
        assert f"warning: resumed in another environment: {line}" in told
        assert f"resumed in another environment: {line}" in record.warnings
    assert record.environment["packages"]["torch"] == here["torch"]
    account.simulated("one torch is installed; the log of the first half names another")
    account.did("a killed run whose log says torch 1.0 and transformers 2.0, taken up here")
    account.saw("a warning each, in the record, too: " + "; ".join(line.removeprefix("packages.") for line in moved))


def test_a_cut_off_event_is_dropped_time_adds_up_and_then_it_is_finished(interrupted: Path) -> None:
    with (interrupted / "events.jsonl").open("a") as log:
        log.write('{"event": "metr')
    earlier = find_earlier(str(interrupted))
    change_position(interrupted, seconds=1000.0, processor_seconds=500.0)
    record = run(config(), track="none", earlier=earlier)
    kinds = [event["event"] for event in read_events(interrupted / "events.jsonl")]
    assert [kind for kind in kinds if kind in ("start", "resume", "end")] == ["start", "resume", "end"]
    assert record.seconds > earlier.seconds > 0
    assert record.training["seconds"] > 1000
    assert 500 < record.training["processor_seconds"] < 1000
    assert not (interrupted / "checkpoints").exists()
    with pytest.raises(UserError, match="is finished"):
        find_earlier(interrupted.name)
    with pytest.raises(UserError, match="is finished"):  # it was, after it had been looked up
        run(config(), track="none", earlier=earlier)
    assert read_record(interrupted) == record
    with pytest.raises(UserError, match="no run 'nothing'"):
        find_earlier("nothing")


def change_position(folder: Path, **changes: float) -> None:
    """Saves the last checkpoint of a run again with another position."""
    checkpoints = Checkpoints(folder / "checkpoints")
    found = checkpoints.latest()
    assert found is not None
    state = found[0] | changes
    checkpoints.save(state["step"], state, found[1])


@pytest.mark.usefixtures("forked_uploader")
def test_mlflow_gets_every_figure_once(workspace: Path, tmp_path: Path, mlflow_store: str) -> None:
    """fault 5: the follower of a killed process closes its run, and that of the next one opens it again"""
    from harness.tracking.store import open_store

    quick: dict[str, Any] = {"tracking": {"model": "never"}}
    in_child(lambda: kill_at_step(9, signal.SIGKILL, track="mlflow", **quick), tmp_path / "said")
    folder, client = only_run(workspace), open_store(mlflow_store)
    (stored,) = eventually(lambda: [found for found in stored_runs(client) if found.info.status == "KILLED"])
    record = run(config(**quick), earlier=find_earlier(folder.name))
    (stored,) = stored_runs(client)
    assert stored.info.status == "FINISHED"
    assert stored.data.tags["resumed"] == "1"
    assert steps_of(client, folder.name, "train/loss") == [4, 8, 12, 16]
    assert stored.data.metrics["P_at_1"] == pytest.approx(record.metrics["P@1"])
