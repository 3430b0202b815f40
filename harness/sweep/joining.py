"""Taking part in a study: beginning it, or making sure that it is the one that is meant and has lost nothing."""

import secrets
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import DataError, UserError
from harness.files import read_json
from harness.resume import differences
from harness.sweep import Plan
from harness.sweep.queue import Slot, slots
from harness.sweep.samplers import described
from harness.sweep.storage import alone, damaged, open_study, reading, shown_address, sqlite_file

if TYPE_CHECKING:
    from optuna import Study

FACTS = "study.json"
ENDED = ("COMPLETE", "PRUNED", "FAIL")
"""States of a trial that nothing more will come of."""


def join(plan: Plan) -> "tuple[Study, str]":
    """The study of a plan and its id, begun if there is none.

    Raises:
        UserError: There is one of that name for something else, or its database has lost trials.
    """
    with alone(plan), reading(plan):
        known = read_facts(plan.folder)
        if known:
            refuse_another(plan, known["identity"])
        with _as_optuna_writes(plan):
            study = open_study(plan, create=True)
            begun = "identity" in study.user_attrs
        if not begun:
            refuse_lost(plan, study, known)
            begin(study, plan, known.get("id") or new_group_id(plan))  # its run folders know the old id
        with _as_optuna_writes(plan):
            facts = study.user_attrs
            identity, optuna, group = dict(facts["identity"]), str(facts["search"]["optuna"]), str(facts["id"])
        refuse_another(plan, identity)
        refuse_another_search(plan, optuna)
        refuse_lost(plan, study, known)
        return study, group


@contextmanager
def _as_optuna_writes(plan: Plan) -> Iterator[None]:
    """Optuna keeps JSON in its tables; anything else there, a pickle say, is told in a line and not looked into."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        file, shown = sqlite_file(plan.storage), f"not what Optuna writes: {type(error).__name__}"
        if file is not None:
            raise damaged(file, shown) from error
        raise UserError(f"study {plan.study!r} at {shown_address(plan.storage)} is damaged ({shown})") from error


def begin(study: "Study", plan: Plan, group: str) -> None:
    """Writes into a new study what it is."""
    facts = {"id": group, "search": described(plan), "identity": plan.identity, "host": socket.gethostname()}
    with _as_optuna_writes(plan), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the function is called experimental
        study.set_metric_names(list(plan.objectives))
        for name, value in facts.items():
            study.set_user_attr(name, value)


def new_group_id(plan: Plan) -> str:
    """A name that the runs of a study know it by."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{moment}-sweep-{plan.study[:60]}-{secrets.token_hex(2)}"


def read_facts(folder: Path) -> dict[str, Any]:
    """What study.json says; empty if there is none."""
    path = folder / FACTS
    if not path.exists():
        return {}
    facts = read_json(path)
    if not isinstance(facts, dict) or not {"id", "identity", "slots"} <= facts.keys():
        raise DataError("not the facts of a study; move it away", path)
    rows = facts["slots"] if isinstance(facts["slots"], list) else [None]
    if not isinstance(facts["identity"], dict) or not all(map(_is_a_row, rows)):
        raise DataError("not the facts of a study: its identity or its slots are damaged; move it away", path)
    return facts


def _is_a_row(row: Any) -> bool:
    """Whether a slot of study.json has what is compared with the database."""
    if not isinstance(row, dict) or not {"slot", "state", "params", "values"} <= row.keys():
        return False
    return type(row["slot"]) is int and isinstance(row["state"], str) and isinstance(row["params"], dict)


def refuse_another(plan: Plan, known: dict[str, Any]) -> None:
    """Refuses a study that was begun for something else, field by field."""
    lines = differences(known, plan.identity)
    if lines:
        raise UserError(
            f"study {plan.study!r} searches something else; take another --study, or undo:\n  " + "\n  ".join(lines)
        )


def refuse_another_search(plan: Plan, began: str) -> None:
    """Refuses to go on with another major version of Optuna, whose samplers are others of the same name."""
    here = str(described(plan)["optuna"])
    if began.partition(".")[0] != here.partition(".")[0]:
        raise UserError(
            f"study {plan.study!r} was begun with Optuna {began}, here is {here}, which searches differently; install "
            "that version, or take another --study"
        )


def refuse_lost(plan: Plan, study: "Study", known: dict[str, Any]) -> None:
    """Refuses a database with fewer ended trials than it once had, or with less of one of them."""
    ended = {row["slot"]: row for row in known.get("slots", []) if row["state"] in ENDED}
    with _as_optuna_writes(plan):
        found = slots(study, max(ended, default=-1) + 1)
    lost = [slot.number for slot in found if slot.number in ended and not _still_there(slot, ended[slot.number])]
    if lost:
        file = sqlite_file(plan.storage)
        shown = f"{len(lost)} of {len(ended)} ended trials are not in it"
        if file is not None:
            raise damaged(file, shown)
        raise UserError(
            f"study {plan.study!r} at {shown_address(plan.storage)}: {shown}, but {plan.folder / FACTS} has them; name "
            "the right database, or take another --study"
        )


def _still_there(slot: Slot, row: dict[str, Any]) -> bool:
    """Whether a database has what study.json knows of an ended slot.

    One that failed may run again by now, if its worker had died and more attempts are allowed; its slot is still there.
    """
    trial = slot.current
    if trial is None or row["state"] == "FAIL":
        return trial is not None
    whole = trial.params.keys() == row["params"].keys() and (trial.values is None) == (row["values"] is None)
    return slot.state in ENDED and whole
