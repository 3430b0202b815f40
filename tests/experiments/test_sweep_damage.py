"""Joining a study: one that searches something else is refused, one that was damaged is rebuilt, no trial is lost."""

import json
import os
import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from optuna import Study

from harness.errors import DataError, UserError
from harness.experiments.sweep import WRITER_LOCK, Plan
from harness.experiments.sweep.results import Results
from harness.experiments.sweep.runs import recover, validation_curve
from harness.experiments.sweep.study import join
from harness.experiments.sweep.trials import fail, fill
from harness.io.files import read_json, write_json
from tests.faults.accounts import Account
from tests.support.sweeps import SETTINGS, begun, drawn, in_processes, planned, states
from tests.support.training_runs import in_child

SEED = 18


def ended(trials: int, **changes: object) -> tuple[Plan, Study, str]:
    """A study whose trials have ended, and whose folder says so."""
    plan, study, group = begun(trials=trials, **changes)
    for number in range(trials):
        drawn(study, plan, "w")
        if number == 1:
            fail(study, study._storage.get_all_trials(study._study_id)[1]._trial_id, "diverged")
        else:
            study.tell(number, 10.0 + number)
    Results(plan, study, group).write()
    return plan, study, group


def trials_of(study: Study) -> list[Any]:
    """What a study knows of its trials."""
    return [(trial.params, trial.values, trial.state) for trial in study.trials]


def outcome(plan: Plan, rows: list[Any]) -> str:
    """`refused` with the way back, or `whole`; anything else is a loss that nobody is told of."""
    try:
        study, _ = join(plan)
    except DataError as error:
        refusal = str(error)
    else:
        assert trials_of(study) == rows
        study._storage.remove_session()
        return "whole"
    assert str(plan.folder / "study.db") in refusal
    assert "--recover" in refusal
    return "refused"


def test_cut_off_at_random_bytes_nothing_is_lost_silently(account: Account) -> None:
    """fault 18"""
    plan, before, _ = ended(6)
    rows, file, draw = trials_of(before), plan.folder / "study.db", random.Random(SEED)
    before._storage.remove_session()
    whole = file.read_bytes()
    cuts = sorted(draw.randrange(1, len(whole)) for _ in range(12))
    outcomes = []
    for cut in cuts:
        file.write_bytes(whole[:cut])
        outcomes.append(outcome(plan, rows))
        assert file.read_bytes() == whole[:cut]  # whoever is asked to recover it finds it as it was
    assert set(outcomes) == {"refused"}
    assert recover(plan)[1] == 6
    assert outcome(plan, rows) == "whole"
    file.write_bytes(whole)
    assert outcome(plan, rows) == "whole"
    account.did(f"study.db of 6 trials ({len(whole):,} bytes) cut off at {len(cuts)} random bytes (seed {SEED})")
    account.saw(f"{outcomes.count('refused')} times refused, pointing to --recover, which brought back all 6 trials")


def killed_while_writing(file: Path) -> None:
    """Removes all trials in a transaction, and dies when that is in the file and only the run log can undo it."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA cache_size=1")  # pages go to the file before the transaction ends
    connection.execute("BEGIN IMMEDIATE")
    for table in ("trial_values", "trial_params", "trial_user_attributes", "trial_heartbeats", "trials"):
        connection.execute(f"DELETE FROM {table}")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_journal_that_is_cut_off_loses_nothing_silently(tmp_path: Path, account: Account) -> None:
    """fault 18: a process was killed in a transaction, and what would undo it is cut off as well"""
    plan, before, _ = ended(6)
    rows, file, draw = trials_of(before), plan.folder / "study.db", random.Random(SEED)
    before._storage.remove_session()
    committed, journal = file.read_bytes(), file.with_name("study.db-journal")
    assert in_child(lambda: killed_while_writing(file), tmp_path / "said") == -signal.SIGKILL
    torn, undo = file.read_bytes(), journal.read_bytes()
    assert torn != committed
    outcomes = []
    for cut in [*(draw.randrange(len(undo)) for _ in range(12)), len(undo)]:
        file.write_bytes(torn)
        journal.write_bytes(undo[:cut])
        outcomes.append(outcome(plan, rows))
    assert outcomes[-1] == "whole"  # the journal as the kill left it undoes everything
    assert "refused" in outcomes
    refused = outcomes.count("refused")
    account.did(f"SIGKILL in a transaction; its journal ({len(undo):,} bytes) cut off at 12 random bytes (seed {SEED})")
    account.saw(f"{refused} of 12 refused, pointing to --recover, the rest whole; uncut, it brought back all 6 trials")


def test_a_database_that_is_gone_is_missed() -> None:
    """fault 18; before any trial has ended it is made anew, with the id by which the study's run folders are found"""
    early, study, group = begun(trials=2, study="early")
    drawn(study, early, "w")
    Results(early, study, group).write()
    (early.folder / "study.db").write_bytes(b"")
    again, same = join(early)
    fill(again, early)
    assert (same, states(again)) == (group, ["WAITING"] * 2)
    plan, _, _ = ended(2)
    (plan.folder / "study.db").unlink()
    for _ in range(2):  # the refusal leaves nothing that would be taken for the study
        with pytest.raises(DataError, match=r"2 of 2 ended trials are not in it"):
            join(plan)
    with pytest.raises(UserError, match=r"searches something else"):
        recover(planned(over="lambda"))
    with FileLock(plan.folder / WRITER_LOCK), pytest.raises(UserError, match=r"a sweep works on study 'small'"):
        recover(plan)
    assert recover(plan)[1] == 2
    join(plan)
    write_json(plan.folder / "study.json", {"no": "facts"})
    with pytest.raises(DataError, match=r"not a file of a study"):
        join(plan)


@pytest.mark.parametrize("lost", ["slot", "values"])
def test_a_damaged_study_json_is_not_blamed_on_the_database(lost: str) -> None:
    plan, study, _ = ended(2)
    rows, path = trials_of(study), plan.folder / "study.json"
    study._storage.remove_session()
    whole = read_json(path)
    for row in ({key: value for key, value in whole["slots"][0].items() if key != lost}, "no row"):
        write_json(path, {**whole, "slots": [row, *whole["slots"][1:]]})
        for step in (join, recover):
            with pytest.raises(DataError, match=r"not a file of a study \(slots") as refused:
                step(plan)
            assert str(path) in str(refused.value)
    write_json(path, whole)
    assert trials_of(join(plan)[0]) == rows


@pytest.mark.parametrize(("key", "value"), [("identity", '"x"'), ("search", "[]"), ("id", None)])
def test_attributes_that_we_did_not_write_are_blamed_on_the_database(key: str, value: str | None) -> None:
    plan, study, _ = ended(2)
    study._storage.remove_session()
    (plan.folder / "study.json").unlink()
    with closing(sqlite3.connect(plan.folder / "study.db")) as connection, connection:
        if value is None:
            connection.execute("DELETE FROM study_user_attributes WHERE key = ?", (key,))
        else:
            connection.execute("UPDATE study_user_attributes SET value_json = ? WHERE key = ?", (value, key))
    with pytest.raises(DataError, match=r"study\.db: this study's database is damaged \(not what Optuna writes"):
        join(plan)


def test_a_rebuilt_curve_has_the_epochs_that_were_validated(tmp_path: Path) -> None:
    """Validated every second epoch, and after the last one; the fourth one twice, because of a resume."""
    log: list[dict[str, object]] = [{"event": "start"}]
    for epoch in (1, 2, 3, 4, 4, 5):
        values = {"train/epoch": epoch} | ({"validation/P@1": 10.0 * epoch} if epoch in (2, 4, 5) else {})
        log += [{"event": "metrics", "step": 7 * epoch, "values": values}]
    log += [{"event": "metrics", "step": 3, "values": {"system/cpu_percent": 1.0}}]
    timed = [{"time": "2026-01-01T00:00:00+00:00", **event} for event in log]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in timed))
    assert validation_curve(tmp_path, "P@1") == {2: 20.0, 4: 40.0, 5: 50.0}


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
    """fault 19: every field that differs is named; a setting that is younger than the study counts as its default"""
    plan, study, _ = begun(trials=1)
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
    join(planned(max_retry=7, trials=9, settings=(*SETTINGS, "device=cpu")))  # changes no result
    config = plan.identity["config"]
    parameters = {name: value for name, value in config["params"].items() if name != "clip"}
    study.set_user_attr("identity", plan.identity | {"config": config | {"params": parameters}})
    join(plan)
    study.set_user_attr("identity", plan.identity | {"config": config | {"params": parameters | {"clip": 2.0}}})
    with pytest.raises(UserError, match=r"clip"):
        join(plan)
    account.did(f"a study joined with another space, objective, method, data, setting, seed: {len(named)} ways")
    account.saw(f"all {len(named)} refused by field: {', '.join(dict.fromkeys(named))}")
