"""Where MLflow keeps runs, checked before anything starts, and what must never be printed about it."""

import os
import re
import textwrap
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from harness.errors import UserError, unknown_name
from harness.files import home

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
SERVERS = ("http", "https", "databricks", "databricks-uc", "uc")
_FORMS = "sqlite:///file, postgresql://user@host/name or http://server:5000"


def tracking_uri() -> str:
    """Where MLflow keeps runs: `MLFLOW_TRACKING_URI` if set, else an SQLite file in the workspace."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home() / 'mlflow.db'}"


def check_uri(uri: str) -> None:
    """Refuses what no store can be behind; whether one is there shows when a run starts."""
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
    """The same address for SQLAlchemy, which looks for psycopg 3 unless it is told that there is only psycopg 2."""
    if uri.startswith("postgresql:") and find_spec("psycopg") is None:
        return uri.replace("postgresql:", "postgresql+psycopg2:", 1)
    return uri


def is_local(uri: str) -> bool:
    """Whether this process writes the database itself, so that it also says where artifacts go."""
    return uri.partition(":")[0].partition("+")[0] in DATABASES


def sqlite_file(uri: str) -> Path | None:
    """The file of an SQLite store; None for another."""
    name = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(name) if uri.startswith("sqlite:///") else None


def without_secrets(text: str) -> str:
    """Text that may be printed: passwords and tokens of the tracking store are replaced by stars."""
    secrets = [os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("PASSWORD", "TOKEN")]
    user, at, _ = tracking_uri().partition("://")[2].rpartition("@")
    password = user.partition(":")[2] if at else ""
    for secret in sorted({*secrets, password, unquote(password)} - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return re.sub(r"(://[^:/@\s]*:)[^@\s]+@", r"\1***@", text)


def without_paths(text: str) -> str:
    """Text for a record that may travel: this machine's folders are replaced by what they mean."""
    for folder, name in ((home(), "$HARNESS_HOME"), (Path.cwd(), "."), (Path.home(), "~")):
        if folder != folder.parent:  # the root folder stands in every path
            text = text.replace(str(folder), name)
    return text


def reason(error: BaseException) -> str:
    """An exception of a store in a few words, without paths and secrets."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {textwrap.shorten(without_secrets(without_paths(first)), 160, placeholder=' ...')}"
