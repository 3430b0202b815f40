"""A study whose database was damaged: told in a line, rebuilt from its folders, and no trial is lost silently."""

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
from harness.files import read_json, write_json
from harness.sweep import Plan, joining
from harness.sweep.joining import join
from harness.sweep.keeping import KEEPER_LOCK
from harness.sweep.queue import fail, fill, slots
from harness.sweep.recovering import _curve, recover
from harness.sweep.results import Results
from harness.sweep.runs import TrialRun
from tests.sweeps import begun, drawn, planned, states
from tests.training_runs import in_child
from tests.trust.accounts import Account

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


def told_by(study: Study) -> list[Any]:
    """What a study knows of its trials."""
    return [(trial.params, trial.values, trial.state) for trial in study.trials]


def outcome(plan: Plan, rows: list[Any]) -> str:
    """`refused` with the way back, or `whole`; anything else is a loss that nobody is told of."""
    try:
        study, _ = join(plan)
    except DataError as error:
        refusal = str(error)
    else:
        assert told_by(study) == rows
        study._storage.remove_session()
        return "whole"
    assert str(plan.folder / "study.db") in refusal
    assert "--recover" in refusal
    return "refused"


def test_cut_off_at_random_bytes_nothing_is_lost_silently(account: Account) -> None:
    """fault 18"""
    plan, before, _ = ended(6)
    rows, file, draw = told_by(before), plan.folder / "study.db", random.Random(SEED)
    before._storage.remove_session()
    whole = file.read_bytes()
    cuts = sorted(draw.randrange(1, len(whole)) for _ in range(40))
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
    """Removes all trials in a transaction, and dies when that is in the file and only the journal can undo it."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA cache_size=1")  # pages go to the file before the transaction ends
    connection.execute("BEGIN IMMEDIATE")
    for table in ("trial_values", "trial_params", "trial_user_attributes", "trial_heartbeats", "trials"):
        connection.execute(f"DELETE FROM {table}")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_journal_that_is_cut_off_loses_nothing_silently(tmp_path: Path, account: Account) -> None:
    """fault 18: a process was killed in a transaction, and what would undo it is cut off as well"""
    plan, before, _ = ended(6)
    rows, file, draw = told_by(before), plan.folder / "study.db", random.Random(SEED)
    before._storage.remove_session()
    committed, journal = file.read_bytes(), file.with_name("study.db-journal")
    assert in_child(lambda: killed_while_writing(file), tmp_path / "said") == -signal.SIGKILL
    torn, undo = file.read_bytes(), journal.read_bytes()
    assert torn != committed
    outcomes = []
    for cut in [*(draw.randrange(len(undo)) for _ in range(20)), len(undo)]:
        file.write_bytes(torn)
        journal.write_bytes(undo[:cut])
        outcomes.append(outcome(plan, rows))
    assert outcomes[-1] == "whole"  # the journal as the kill left it undoes everything
    assert "refused" in outcomes
    refused = outcomes.count("refused")
    account.did(f"SIGKILL in a transaction; its journal ({len(undo):,} bytes) cut off at 20 random bytes (seed {SEED})")
    account.saw(f"{refused} of 20 refused, pointing to --recover, the rest whole; uncut, it brought back all 6 trials")


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_a_truncated_database_is_never_taken_for_a_whole_one(share: float) -> None:
    """fault 18"""
    plan, before, _ = ended(6)
    rows = told_by(before)
    before._storage.remove_session()
    file = plan.folder / "study.db"
    os.truncate(file, int(file.stat().st_size * share))
    with pytest.raises(DataError) as refused:
        join(plan)
    assert str(file) in str(refused.value)
    assert "--recover" in str(refused.value)
    aside, count = recover(plan)
    assert aside is not None
    assert aside.exists()
    assert count == 6
    study, _ = join(plan)
    fill(study, plan)
    assert told_by(study) == rows
    assert slots(study, 6)[1].ended(0)


def test_a_database_that_is_gone_is_missed() -> None:
    """fault 18"""
    plan, _, _ = ended(2)
    (plan.folder / "study.db").unlink()
    for _ in range(2):  # the refusal leaves nothing that would be taken for the study
        with pytest.raises(DataError, match=r"2 of 2 ended trials are not in it"):
            join(plan)
    with pytest.raises(UserError, match=r"searches something else"):
        recover(planned(over="lambda"))
    with FileLock(plan.folder / KEEPER_LOCK), pytest.raises(UserError, match=r"a sweep works on study 'small'"):
        recover(plan)
    assert recover(plan)[1] == 2
    join(plan)
    write_json(plan.folder / "study.json", {"no": "facts"})
    with pytest.raises(DataError, match=r"not the facts of a study"):
        join(plan)


@pytest.mark.parametrize("lost", ["slot", "state", "params", "values"])
def test_a_damaged_study_json_is_not_blamed_on_the_database(lost: str) -> None:
    plan, study, _ = ended(2)
    rows, path = told_by(study), plan.folder / "study.json"
    study._storage.remove_session()
    whole = read_json(path)
    for row in ({key: value for key, value in whole["slots"][0].items() if key != lost}, "no row"):
        write_json(path, {**whole, "slots": [row, *whole["slots"][1:]]})
        for step in (join, recover):
            with pytest.raises(DataError, match=r"its identity or its slots are damaged; move it away") as refused:
                step(plan)
            assert str(path) in str(refused.value)
            assert "database" not in str(refused.value)
    write_json(path, whole)
    assert told_by(join(plan)[0]) == rows


def test_a_fault_of_ours_is_not_blamed_on_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, study, _ = ended(2)
    study._storage.remove_session()

    def faulty(*_: Any) -> Any:
        raise KeyError("ours")

    monkeypatch.setattr(joining, "differences", faulty)
    with pytest.raises(KeyError, match="ours"):
        join(plan)


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


def test_a_database_that_is_gone_before_a_trial_ended_is_made_anew() -> None:
    """fault 18: the study keeps its id, by which its run folders are found"""
    plan, study, group = begun(trials=2)
    drawn(study, plan, "w")
    Results(plan, study, group).write()
    (plan.folder / "study.db").write_bytes(b"")
    again, same = join(plan)
    assert same == group
    fill(again, plan)
    assert states(again) == ["WAITING"] * 2


def test_a_rebuilt_curve_has_the_epochs_that_were_validated(tmp_path: Path) -> None:
    """Validated every second epoch, and after the last one; the fourth one twice, because of a resume."""
    log: list[dict[str, object]] = [{"event": "start"}]
    for epoch in (1, 2, 3, 4, 4, 5):
        values = {"train/epoch": epoch} | ({"validation/P@1": 10.0 * epoch} if epoch in (2, 4, 5) else {})
        log += [{"event": "metrics", "step": 7 * epoch, "values": values}]
    log += [{"event": "metrics", "step": 3, "values": {"system/cpu_percent": 1.0}}]
    timed = [{"time": "2026-01-01T00:00:00+00:00", **event} for event in log]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in timed))
    assert _curve(TrialRun(tmp_path, "2026", 0, 0, {}), "P@1") == {2: 20.0, 4: 40.0, 5: 50.0}
