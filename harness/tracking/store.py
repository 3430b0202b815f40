"""The MLflow store: its address, and a client that is ready to write, or an error at once.

If two processes create the tables at once, all but one crash, so that is done under a lock. A locked SQLite file is
waited for. MLflow would retry a dead server for minutes; here it is probed once. MLflow is imported only when a store
is opened.
"""

import logging
import os
import random
import socket
import sqlite3
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from harness.errors import UserError, unknown_name
from harness.io.files import home, locked
from harness.io.private import without_paths, without_secrets

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
SERVERS = ("http", "https", "databricks", "databricks-uc", "uc")
_FORMS = "sqlite:///file, postgresql://user@host/name or http://server:5000"


def tracking_uri() -> str:
    """Return the address of the store: `MLFLOW_TRACKING_URI` if set, else an SQLite file in the workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow.db'}"


def check_uri(uri: str) -> None:
    """Raise `UserError` if the address of a store is invalid; the store itself is not asked."""
    scheme, colon, rest = uri.partition(":")
    kind, _, driver = scheme.partition("+")
    if uri == "databricks":
        return
    if kind == "file" or not colon or "/" in scheme or len(scheme) == 1:
        raise UserError(
            f"MLFLOW_TRACKING_URI names a folder of files ({without_secrets(uri)!r}), which MLflow no longer keeps "
            f"runs in; take {_FORMS}"
        )
    if kind not in (*DATABASES, *SERVERS):
        raise unknown_name("scheme of MLFLOW_TRACKING_URI", kind, (*DATABASES, *SERVERS))
    if not rest.startswith("//"):
        raise UserError(f"MLFLOW_TRACKING_URI {without_secrets(uri)!r} is incomplete; take {_FORMS}")
    if kind == "sqlite" and (not rest.startswith("///") or rest in ("///", "///:memory:")):
        raise UserError("MLFLOW_TRACKING_URI names an SQLite database in memory; name a file: sqlite:///file")
    if kind in ("http", "https") and not _host(uri):
        raise UserError(f"MLFLOW_TRACKING_URI {without_secrets(uri)!r} names no server; take {_FORMS}")
    wanted = (driver,) if driver else ("psycopg2", "psycopg")
    if kind == "postgresql" and not any(find_spec(name) for name in wanted):
        raise UserError("a PostgreSQL store needs a driver: pip install 'xmc-harness[postgres]'")


def _host(uri: str) -> str | None:
    try:
        _ = urlsplit(uri).port
        return urlsplit(uri).hostname
    except ValueError:
        return None


def with_driver(uri: str) -> str:
    """Return the address for SQLAlchemy: psycopg 2 is named if psycopg 3, its default, is not installed."""
    if uri.startswith("postgresql:") and find_spec("psycopg") is None:
        return uri.replace("postgresql:", "postgresql+psycopg2:", 1)
    return uri


def is_local(uri: str) -> bool:
    """Return whether this process writes the database itself, without a server, and thus places artifacts too."""
    return uri.partition(":")[0].partition("+")[0] in DATABASES


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite store; None for another kind of store."""
    name = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(name) if uri.startswith("sqlite:///") else None


def reason(error: BaseException) -> str:
    """Return an exception of a store in one short line, without paths and secrets."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {textwrap.shorten(without_secrets(without_paths(first)), 160, placeholder=' ...')}"


_LOCKED_SECONDS = 60.0
"""Longest wait for a locked SQLite file."""
_ABOUT = (
    "Runs of the XMC harness on one dataset. A bench or a sweep is a parent run, its runs are the children. P_at_1 is "
    "P@1 on test rows in percent, validation/P_at_1 that of validation rows. Filter by tags.method, tags.encoder, "
    "tags.seed; the folder of a run is called as its tag harness.run_id."
)
_PAGE = 500
_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_QUIET = {
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class PatientClient:
    """An MLflow client whose calls wait while an SQLite file is locked."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        return partial(patiently, value) if callable(value) else value


class DistantClient(PatientClient):
    """Client of a remote server; refuses to copy artifacts into folders of this machine that the server names."""

    def __getattr__(self, name: str) -> Any:
        if name in ("log_artifact", "log_artifacts"):
            return partial(self._send, name)
        return super().__getattr__(name)

    def _send(self, name: str, run_id: str, *arguments: Any) -> None:
        """Send artifacts to the place that was checked; asked a second time, a server may name another."""
        from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
        from mlflow.store.artifact.models_artifact_repo import ModelsArtifactRepository
        from mlflow.store.artifact.runs_artifact_repo import RunsArtifactRepository

        place = patiently(self._client._tracking_client._get_artifact_repo, run_id)
        # runs:/ and models:/ lead to another place that the server names, which may be a local folder too
        if isinstance(place, LocalArtifactRepository | ModelsArtifactRepository | RunsArtifactRepository):
            raise UserError("the server wants files in a folder of this machine; start it with --serve-artifacts")
        patiently(getattr(place, name), *arguments)


def patiently(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call `call`, again with growing pauses while SQLite says that the database is locked."""
    deadline, pause = time.monotonic() + _LOCKED_SECONDS, 0.05
    while True:
        try:
            return call(*arguments, **named)
        except Exception as error:
            if "database is locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  jitter, not cryptography
        pause = min(2 * pause, 2.0)


def open_store(uri: str) -> Any:
    """Return an MLflow client for a store that answers and whose tables exist."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    check_uri(uri)
    probe(uri)
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):  # after the import, which sets log levels; errors are raised anyway
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if not is_local(uri):
        near = urlsplit(uri).hostname in ("127.0.0.1", "::1", "localhost")
        client = (PatientClient if near else DistantClient)(MlflowClient(tracking_uri=uri))
        client.search_experiments(max_results=1)
        return client
    with locked((sqlite_file(uri) or home() / "mlflow").absolute()):
        client = PatientClient(MlflowClient(tracking_uri=with_driver(uri)))
        client.search_experiments(max_results=1)
    return client


def probe(uri: str) -> None:
    """Raise at once if a store cannot be used; MLflow itself would retry for up to two minutes."""
    file = sqlite_file(uri)
    if file is not None:
        if file.exists():
            patiently(_ask_for_the_write_lock, file)
    elif uri.startswith(("http://", "https://")):
        server = urlsplit(uri)
        try:
            address = server._replace(netloc=server.netloc.rpartition("@")[2]).geturl()
            with urlopen(address, timeout=5):  # noqa: S310  http or https, see above
                pass
        except HTTPError:  # it wants a password or another page, but it answers
            pass
    elif is_local(uri) and (server := urlsplit(uri)).hostname:  # without a host name it is a local socket
        kind = uri.partition(":")[0].partition("+")[0]
        with socket.create_connection((server.hostname, server.port or _PORTS[kind]), timeout=5):
            pass


def _ask_for_the_write_lock(file: Path) -> None:
    """Raise if the file cannot be written: a folder, a read-only file, or one of another format."""
    with closing(sqlite3.connect(file, timeout=5)) as store:
        store.execute("begin immediate")
        store.rollback()


def experiment_id(client: Any, name: str) -> str:
    """Return the id of experiment `name`, created if absent; without a server, artifacts go into the workspace."""
    found = client.get_experiment_by_name(name)
    if found is None:
        with locked(home() / "locks" / "experiments"):
            found = client.get_experiment_by_name(name)
            if found is None:
                location = (home() / "mlartifacts").as_uri() if is_local(str(client.tracking_uri)) else None
                tags = {"mlflow.note.content": _ABOUT}
                created: str = client.create_experiment(name, artifact_location=location, tags=tags)
                return created
    if found.lifecycle_stage == "deleted":
        raise UserError(f"experiment {name!r} was deleted in MLflow; restore it there, or remove it for good")
    identifier: str = found.experiment_id
    return identifier


def find_run(client: Any, experiment: str, run_id: str) -> Any:
    """Return the MLflow run whose tag `harness.run_id` is `run_id`, or None."""
    quoted = run_id.replace("'", "")
    found = client.search_runs([experiment], f"tags.`harness.run_id` = '{quoted}'", max_results=1)
    return found[0] if found else None


def search(client: Any, condition: str) -> Iterator[Any]:
    """Yield all runs of all experiments that meet a condition."""
    experiments = [found.experiment_id for found in _pages(client.search_experiments)]
    if experiments:
        yield from _pages(partial(client.search_runs, experiments, condition))


def _pages(find: Callable[..., Any]) -> Iterator[Any]:
    page = find(max_results=_PAGE)
    yield from page
    while page.token:
        page = find(max_results=_PAGE, page_token=page.token)
        yield from page
