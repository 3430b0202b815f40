"""`harness sync`, `harness runs reap` and `harness ui`: what MLflow has, and a look at it."""

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.options import DryRun, Json, RunFolders
from harness.cli.show import print_json, print_table, say
from harness.errors import UserError
from harness.io.files import home
from harness.io.printable import printable

if TYPE_CHECKING:
    from harness.tracking.sync import Outcome

runs = typer.Typer(help="Close runs in MLflow whose process is gone.", no_args_is_help=True)


@runs.callback()
def _runs() -> None:
    """Close runs in MLflow whose process is gone."""


def sync(
    run: Annotated[list[str] | None, typer.Argument(help="Runs to send, by id or folder. Default: all.")] = None,
    folder: RunFolders = None,
    as_json: Json = False,
) -> None:
    """Send the logs of runs to MLflow; what is there already is left alone, so it can be done again at any time.

    Exit code 1 if the store is out or a run could not be sent.
    """
    from harness.io.progress import progress
    from harness.tracking.sync import log_folders
    from harness.tracking.sync import sync as send_all

    folders = log_folders(run or [], folder)
    outcomes: list[Outcome] = []
    if folders:
        with _open_store() as client, progress("sync", len(folders), "runs") as advance:
            outcomes = send_all(client, folders, advance)
    counts = Counter(outcome.result for outcome in outcomes)
    named = [outcome for outcome in outcomes if outcome.reason]
    if as_json:
        listed = {
            kind: [vars(outcome) for outcome in named if outcome.result == kind] for kind in ("running", "failed")
        }
        print_json({"looked_at": len(outcomes), "sent": counts["sent"], "complete": counts["complete"], **listed})
    else:
        for outcome in named:
            say(f"{outcome.result}: {printable(outcome.run)}: {printable(outcome.reason)}")
        say(
            f"{len(outcomes)} runs looked at: {counts['sent']} sent, {counts['complete']} already complete, "
            f"{counts['running']} at work, {counts['failed']} failed"
        )
    if counts["failed"]:
        raise typer.Exit(1)


@runs.command("reap")
def reap(
    older_than: Annotated[str, typer.Option(help="Silence after which a run elsewhere counts as dead: 5m, 2h.")] = "5m",
    folder: RunFolders = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Close runs that MLflow shows as running although their process is gone; living ones are left alone."""
    from harness.io.progress import progress
    from harness.tracking.sync import parse_age
    from harness.tracking.sync import reap as close_dead

    age = parse_age(older_than)
    with _open_store() as client, progress("reap", None, "runs") as advance:
        found = close_dead(client, age, runs=folder, dry_run=dry_run, advance=advance)
    if as_json:
        print_json({"dry_run": dry_run, "runs": [vars(one) for one in found]})
        return
    if found:
        print_table("marked as running", ["run", "verdict", "why"], [[r.run, r.verdict, r.reason] for r in found])
    closed = sum(one.verdict != "alive" for one in found)
    say(f"{closed} runs {'would be ' if dry_run else ''}closed, {len(found) - closed} at work")


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Show runs in a browser: starts the MLflow server for the MLflow store, reachable from this machine alone."""
    from harness.io.private import without_secrets
    from harness.tracking.store import is_local, tracking_uri, with_driver

    uri = tracking_uri()
    if not is_local(uri):
        say(f"MLFLOW_TRACKING_URI names a server; open {without_secrets(uri)} in a browser")
        return
    with _open_store():
        pass
    _require_free(port)
    say(f"open http://127.0.0.1:{port} in a browser; Ctrl-C ends the server", err=True)
    # a URI may hold a password, which a list of processes must not show
    quiet = {"MLFLOW_BACKEND_STORE_URI": with_driver(uri), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    place = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    artifacts = ["--artifacts-destination", str(home() / "mlartifacts")]
    server = subprocess.Popen([sys.executable, "-m", "mlflow", "server", *place, *artifacts], env=os.environ | quiet)
    try:
        code = server.wait()
    except BaseException:  # Ctrl-C reaches the server too; SIGTERM only us
        server.terminate()
        server.wait()
        raise
    if code:
        raise UserError(f"the MLflow server ended with code {code}; is port {port} taken? Try --port")


def _require_free(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"port {port} cannot be had ({error.strerror}); try another: --port {port + 1}") from error


@contextmanager
def _open_store() -> "Iterator[Any]":
    """The store, open; one that is out, now or half-way, is one line and exit code 1."""
    from harness.tracking.store import check_uri, reason, tracking_uri

    check_uri(tracking_uri())
    from harness.tracking.store import open_store
    from harness.tracking.sync import outage

    try:
        client = open_store(tracking_uri())
    except UserError:
        raise
    except Exception as error:
        say(f"MLflow is out ({reason(error)}); nothing was changed, and nothing is lost", err=True)
        raise typer.Exit(1) from None
    try:
        yield client
    except UserError:
        raise
    except Exception:
        if (why := outage()) is None:
            raise
        say(f"MLflow went out ({why}); do it again when it is back: what was sent stays", err=True)
        raise typer.Exit(1) from None
