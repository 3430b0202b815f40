"""The study of a sweep: open its database, and begin or join the study in it.

Optuna changes the state of a trial by reading it and then writing it. On PostgreSQL the read takes a lock; SQLite has
no such lock, and Python's driver begins a transaction only before the write, so two workers could both read WAITING and
both write RUNNING. Here every transaction on SQLite begins with BEGIN IMMEDIATE, which lets one process in at a time.
"""

import re
import secrets
import socket
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness.errors import DataError, UserError
from harness.experiments.sweep import DATABASE, STUDY_FILE, Plan
from harness.experiments.sweep.trials import ENDED, Slot, describe_search, slots
from harness.io.files import locked, read_json
from harness.settings.identity import differences, upgrade

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage, RDBStorage
    from sqlalchemy.engine import URL

Result = TypeVar("Result")
_WAIT_SECONDS = 60.0
"""Seconds that a transaction waits for one of another process."""
_OUTAGE_SECONDS = 300.0
"""Seconds that a worker waits for a database that does not answer before it gives up."""
_LOCK_KEY = 7_265_013
"""Key of the advisory lock on PostgreSQL; any number that others do not use."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0


class StorageOutage(UserError):
    """The database did not answer for a long time."""


class StoredSlot(BaseModel, strict=True):
    """A slot in study.json: the fields that are compared with a database or restored into it."""

    slot: int
    state: str
    params: dict[str, Any]
    values: list[float] | None
    attempts: int = 1
    run_id: str | None = None
    reason: str | None = None


class StudyFile(BaseModel, strict=True):
    """The fields of study.json that are read back."""

    id: str
    identity: dict[str, Any]
    slots: list[StoredSlot]

    def ended(self) -> dict[int, StoredSlot]:
        """Return the slots that have ended, by number."""
        return {row.slot: row for row in self.slots if row.state in ENDED}


def read_study_file(folder: Path) -> StudyFile | None:
    """Read study.json; None if there is none."""
    path = folder / STUDY_FILE
    if not path.exists():
        return None
    try:
        return StudyFile.model_validate(read_json(path))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "top level"
        raise DataError(f"not a file of a study ({place} is missing or damaged); move it away", path) from error


def sqlite_file(storage: str) -> Path | None:
    """Return the file of an SQLite address; None for a server."""
    url = _url(storage)
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def storage_address(given: str | None, folder: Path) -> str:
    """Return the address of a study's database: `given`, or a file in its folder."""
    from sqlalchemy.engine import URL

    if given is None:
        return URL.create("sqlite", database=str(folder / DATABASE)).render_as_string()
    if not re.match(r"(postgresql|sqlite)(\+\w+)?://", given):
        raise UserError(
            "--storage takes postgresql://USER:PASSWORD@HOST/DATABASE or sqlite:///FILE; without it a study is a file "
            "in its folder"
        )
    url = _url(given)
    if url.drivername == "postgresql" and find_spec("psycopg2"):  # SQLAlchemy would look for psycopg 3
        url = url.set(drivername="postgresql+psycopg2")
    return url.render_as_string(hide_password=False)


def shown_address(storage: str) -> str:
    """Return an address without its password."""
    return _url(storage).render_as_string(hide_password=True)


def _url(storage: str) -> "URL":
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(storage)
    except ArgumentError as error:
        raise UserError("--storage is not an address of a database, for example postgresql://HOST/DATABASE") from error


def open_study(plan: Plan, *, create: bool = False) -> "Study":
    """Open the study of a plan; sampler and pruner are set anew for every trial.

    Raises:
        UserError: The database is damaged, does not answer, or has no such study.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(plan)
    if create:
        # larger is better in all our metrics
        upwards = [optuna.study.StudyDirection.MAXIMIZE for _ in plan.objectives]
        return optuna.create_study(storage=storage, study_name=plan.study, directions=upwards, load_if_exists=True)
    try:
        return optuna.load_study(storage=storage, study_name=plan.study)
    except KeyError as error:
        raise UserError(f"{shown_address(plan.storage)} has no study {plan.study!r}") from error


def open_storage(plan: Plan) -> "BaseStorage":
    """Open the database of a plan; makes its tables if there are none, which one process at a time may do (`alone`)."""
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import RDBStorage, get_storage

    file = sqlite_file(plan.storage)
    options: dict[str, Any] = {"pool_pre_ping": True}  # a server that was restarted is found again
    if file is not None:
        _require_sound(plan, file)
        file.parent.mkdir(parents=True, exist_ok=True)
        options = {"connect_args": {"timeout": _WAIT_SECONDS}}
    with warnings.catch_warnings(), _connecting(plan):
        warnings.simplefilter("ignore", ExperimentalWarning)
        storage = RDBStorage(
            plan.storage.replace("{", "{{").replace("}", "}}"),  # Optuna takes it for a template
            engine_kwargs=options,
            heartbeat_interval=plan.timing.heartbeat,
            grace_period=plan.timing.grace,
        )
    if file is not None:
        _one_at_a_time(storage)
    return get_storage(storage)


def _one_at_a_time(storage: "RDBStorage") -> None:
    """Make every transaction take SQLite's one write lock at its beginning."""
    from sqlalchemy import event

    @event.listens_for(storage.engine, "connect")
    def leave_transactions_to_us(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(storage.engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    storage.engine.dispose()  # connections opened before lack these listeners


def _require_sound(plan: Plan, file: Path) -> None:
    """Raise if an SQLite file is damaged; it may be absent."""
    if not file.exists():
        return
    try:
        # not read-only: a transaction that a kill cut off is rolled back by the next one who opens the file
        address = f"{file.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_SECONDS)) as connection:
            (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        raise _damaged(plan, answer)


@contextmanager
def alone(plan: Plan) -> Iterator[None]:
    """Inside the block, no other sweep on this machine or on the same server begins or joins a study.

    Two that make the tables of a database at once collide, and two that begin one study would each give it an id.
    """
    from sqlalchemy import create_engine, text

    with locked(plan.folder / ".study"), ExitStack() as server:
        if sqlite_file(plan.storage) is None:
            with _connecting(plan):
                engine = create_engine(plan.storage)
                server.callback(engine.dispose)
                connection = server.enter_context(engine.connect())
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
        yield


@contextmanager
def _connecting(plan: Plan) -> Iterator[None]:
    """Turn errors of a database driver into a `UserError` of one line."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except ImportError as error:
        raise UserError(
            f"no driver for {shown_address(plan.storage).partition(':')[0]} is installed; for PostgreSQL: "
            "pip install 'xmc-harness[postgres]'"
        ) from error
    except (SQLAlchemyError, RuntimeError) as error:
        raise UserError(f"{shown_address(plan.storage)} cannot be used: {_first_line(error)}") from error


@contextmanager
def _reading(plan: Plan) -> Iterator[None]:
    """Turn what Optuna raises on damaged or contradictory rows into a `UserError` of one line.

    Every page of such a file may be in order: of a transaction that was cut off, a part was undone. Optuna keeps JSON
    in its tables; anything else there, a pickle say, is reported and not looked into.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        server = sqlite_file(plan.storage) is None
        if server or isinstance(error.__cause__ or error, OperationalError):  # locked, full, or a server is out
            raise
        raise _damaged(plan, _first_line(error)) from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise _damaged(plan, f"not what Optuna writes: {type(error).__name__}") from error


def _damaged(plan: Plan, what: str) -> UserError:
    """Return the error for a database that is damaged or has lost trials."""
    file = sqlite_file(plan.storage)
    if file is None:
        return UserError(
            f"study {plan.study!r} at {shown_address(plan.storage)} is damaged ({what}); name the right database, or "
            "take another --study"
        )
    return DataError(
        f"this study's database is damaged ({what}); give the same command with --recover: it keeps the file beside, "
        "and takes every trial from the run folders",
        file,
    )


def patiently(call: Callable[[], Result], seconds: float = _OUTAGE_SECONDS) -> Result:
    """Call, and call again while the database does not answer, for at most so many seconds."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import OperationalError

    deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        try:
            return call()
        except (StorageInternalError, OperationalError) as error:
            if time.monotonic() + pause > deadline or "disk is full" in _first_line(error):
                raise StorageOutage(f"the study's database does not answer: {_first_line(error)}") from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _first_line(error: BaseException) -> str:
    """Return the first line of the database driver's message; Optuna's own message does not contain it."""
    cause = error.__cause__ or error
    return str(getattr(cause, "orig", None) or cause).strip().splitlines()[0]


def join(plan: Plan) -> "tuple[Study, str]":
    """Return the study of a plan and its id; begins it if there is none.

    Raises:
        UserError: There is one of that name for something else, or its database has lost trials.
    """
    with alone(plan):
        known = read_study_file(plan.folder)
        if known:
            refuse_another(plan, known.identity)
        with _reading(plan):
            study = open_study(plan, create=True)
            begun = "identity" in study.user_attrs
        if not begun:
            _refuse_lost(plan, study, known)
            begin_study(study, plan, known.id if known else None)  # its run folders know the old id
        with _reading(plan):
            attributes = study.user_attrs
            identity, began = dict(attributes["identity"]), str(attributes["search"]["optuna"])
            group = str(attributes["id"])
        refuse_another(plan, identity)
        here = str(describe_search(plan)["optuna"])
        if began.partition(".")[0] != here.partition(".")[0]:  # a sampler of the same name may draw differently there
            raise UserError(
                f"study {plan.study!r} was begun with Optuna {began}, here is {here}, which searches differently; "
                "install that version, or take another --study"
            )
        _refuse_lost(plan, study, known)
        return study, group


def begin_study(study: "Study", plan: Plan, group: str | None) -> None:
    """Write identity and id into a new study; `group` is the id that its runs have, None to make a new one."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    attributes = {
        "id": group or f"{moment}-sweep-{plan.study[:60]}-{secrets.token_hex(2)}",
        "search": describe_search(plan),
        "identity": plan.identity,
        "host": socket.gethostname(),
    }
    with _reading(plan), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the function is called experimental
        study.set_metric_names(list(plan.objectives))
        for name, value in attributes.items():
            study.set_user_attr(name, value)


def refuse_another(plan: Plan, known: dict[str, Any]) -> None:
    """Raise if a study has another identity than the plan, listing every difference."""
    lines = differences(_upgraded(known), _upgraded(plan.identity))
    if lines:
        raise UserError(
            f"study {plan.study!r} searches something else; take another --study, or undo:\n  " + "\n  ".join(lines)
        )


def _upgraded(identity: dict[str, Any]) -> dict[str, Any]:
    """Return a study's identity with settings added that did not exist when it was begun."""
    config = identity.get("config")
    return identity | {"config": upgrade(config)} if isinstance(config, dict) else identity


def _refuse_lost(plan: Plan, study: "Study", known: StudyFile | None) -> None:
    """Raise if a database lacks an ended trial that study.json has, or parts of one."""
    ended = known.ended() if known else {}
    with _reading(plan):
        found = {slot.number: slot for slot in slots(study, plan, beyond=True)}
    lost = [number for number, row in ended.items() if number not in found or not _still_there(found[number], row)]
    if lost:
        raise _damaged(plan, f"{len(lost)} of {len(ended)} ended trials are not in it")


def _still_there(slot: Slot, row: StoredSlot) -> bool:
    """Return whether a database still has an ended slot of study.json.

    One that failed may run again by now, if its worker had died and more attempts are allowed; its slot is still there.
    """
    trial = slot.current
    if trial is None or row.state == "FAIL":
        return trial is not None
    return slot.ended and trial.params.keys() == row.params.keys() and (trial.values is None) == (row.values is None)
