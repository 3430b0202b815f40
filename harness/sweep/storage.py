"""The database of a study: opened so that two processes never claim the same trial, and with errors a person can read.

Optuna changes the state of a trial by reading it and then writing it. On PostgreSQL the read takes a lock; SQLite has
no such lock, and Python's driver begins a transaction only before the write, so two workers could both read WAITING and
both write RUNNING. Here every transaction on SQLite begins with BEGIN IMMEDIATE, which lets one process in at a time.
"""

import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import DataError, UserError
from harness.files import locked
from harness.sweep import DATABASE, Plan

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage, RDBStorage

Result = TypeVar("Result")


class StorageOutage(UserError):
    """The database did not answer for a long time."""


_WAIT_SECONDS = 60.0
"""How long a transaction waits for that of another process."""
_OUTAGE_SECONDS = 300.0
"""How long a worker waits for a database that does not answer before it gives up."""
_LOCK_KEY = 7_265_013
"""Of an advisory lock on PostgreSQL; any number that others do not use."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0


def sqlite_file(storage: str) -> Path | None:
    """The file of an SQLite address; None for a server."""
    from sqlalchemy.engine import make_url

    shown_address(storage)
    url = make_url(storage)
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def storage_address(given: str | None, folder: Path) -> str:
    """The address of a study's database: a file in its folder, unless a server is named."""
    from sqlalchemy.engine import URL, make_url

    if given is None:
        return URL.create("sqlite", database=str(folder / DATABASE)).render_as_string()
    if not re.match(r"(postgresql|sqlite)(\+\w+)?://", given):
        raise UserError(
            "--storage takes postgresql://USER:PASSWORD@HOST/DATABASE or sqlite:///FILE; without it a study is a file "
            "in its folder"
        )
    shown_address(given)  # refuses what is no address
    url = make_url(given)
    if url.drivername == "postgresql" and find_spec("psycopg2"):  # SQLAlchemy would look for psycopg 3
        url = url.set(drivername="postgresql+psycopg2")
    return url.render_as_string(hide_password=False)


def shown_address(storage: str) -> str:
    """An address without the password."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(storage).render_as_string(hide_password=True)
    except ArgumentError as error:
        raise UserError("--storage is not an address of a database, for example postgresql://HOST/DATABASE") from error


def open_study(plan: Plan, *, create: bool = False) -> "Study":
    """The study of a plan; its sampler and pruner are set for every trial anew.

    Raises:
        UserError: The database is damaged, does not answer, or has no such study.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(plan)
    if create:
        # all metrics of ours are better when larger
        upwards = [optuna.study.StudyDirection.MAXIMIZE for _ in plan.objectives]
        return optuna.create_study(storage=storage, study_name=plan.study, directions=upwards, load_if_exists=True)
    try:
        return optuna.load_study(storage=storage, study_name=plan.study)
    except KeyError as error:
        raise UserError(f"{shown_address(plan.storage)} has no study {plan.study!r}") from error


@contextmanager
def alone(plan: Plan) -> Iterator[None]:
    """Keeps other sweeps from beginning or joining the study meanwhile, on this machine and through its server.

    Two that make the tables of a database at once collide, and two that begin one study would each give it an id.
    """
    from sqlalchemy import create_engine, text

    with locked(plan.folder / ".study"), ExitStack() as server:
        if sqlite_file(plan.storage) is None:
            with _readable(plan):
                engine = create_engine(plan.storage)
                server.callback(engine.dispose)
                connection = server.enter_context(engine.connect())
                connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
        yield


def open_storage(plan: Plan) -> "BaseStorage":
    """The database of a plan; tables are made if there are none, which only one process may do: see `alone`."""
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import RDBStorage, get_storage

    file = sqlite_file(plan.storage)
    options: dict[str, Any] = {"pool_pre_ping": True}  # a server that was restarted is found again
    if file is not None:
        require_sound(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        options = {"connect_args": {"timeout": _WAIT_SECONDS}}
    with warnings.catch_warnings(), _readable(plan):
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


@contextmanager
def _readable(plan: Plan) -> Iterator[None]:
    """Turns what a driver raises into one line."""
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


def _one_at_a_time(storage: "RDBStorage") -> None:
    """Makes every transaction take SQLite's one write lock at its beginning."""
    from sqlalchemy import event

    @event.listens_for(storage.engine, "connect")
    def leave_transactions_to_us(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(storage.engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    storage.engine.dispose()  # connections from before know nothing of this


def require_sound(file: Path) -> None:
    """Refuses a damaged SQLite file; an absent one is fine."""
    if not file.exists():
        return
    try:
        # not read-only: a transaction that a kill cut off is rolled back by the next one who opens the file
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS)
        try:
            (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        raise damaged(file, answer)


@contextmanager
def reading(plan: Plan) -> Iterator[None]:
    """Turns what Optuna makes of rows that contradict each other into the error for a damaged database.

    Every page of such a file may be in order: of a transaction that was cut off, a part was undone.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import OperationalError, SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        file = sqlite_file(plan.storage)
        if file is None or isinstance(error.__cause__ or error, OperationalError):  # locked, full, or a server is out
            raise
        raise damaged(file, _first_line(error)) from error


def damaged(file: Path, what: str) -> DataError:
    """The error for a database that lost something."""
    return DataError(
        f"this study's database is damaged ({what}); give the same command with --recover: it keeps the file beside, "
        "and takes every trial from the run folders",
        file,
    )


def patiently(call: Callable[[], Result], seconds: float = _OUTAGE_SECONDS) -> Result:
    """Calls again while the database does not answer."""
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
    """The cause of a database error; Optuna's own words come without it."""
    cause = error.__cause__ or error
    return str(getattr(cause, "orig", None) or cause).strip().splitlines()[0]
