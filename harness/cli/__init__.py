"""The command line: one small function per command, nothing heavy imported until a command runs."""

import errno
import importlib
import os
import signal
import sys
import threading

import typer

from harness import __version__
from harness.cli.show import say
from harness.errors import Terminated, UserError, terminate

COMMANDS = {
    "run": "run.run",
    "bench": "bench.bench",
    "sweep": "sweep.sweep",
    "tune": "tune.tune",
    "fuse": "fuse.fuse",
    "plan": "plan.plan",
    "predict": "predict.predict",
    "export": "predict.export",
    "ls": "ls.ls",
    "report": "report.report",
    "validate": "validate.validate",
    "doctor": "doctor.doctor",
    "sync": "tracking.sync",
    "ui": "tracking.ui",
    "data": "data.app",
    "runs": "tracking.runs",
}
"""Module and function, or group of commands, of every command."""


WAITING = {"GOMP_SPINCOUNT": "1000", "OMP_WAIT_POLICY": "PASSIVE"}
"""How threads inside an operation wait for each other: they spin for some microseconds, then sleep.

With GNU's default, spinning on, two processes on one machine slow each other down by a factor; sleeping at once, a step
of a single one takes a fifth longer. The second setting is for libraries that do not know the first.
"""


def make_app(only: str | None = None) -> typer.Typer:
    """The command line, with the module of one command alone where it is known which."""
    app = typer.Typer(
        name="harness",
        help="Benchmark harness for extreme multi-label classification with label text.",
        epilog="First time? `python -m harness run` does one complete run on data built from your own Python "
        "libraries.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(version)
    for name, place in COMMANDS.items():
        if only is None or name == only:
            module, _, attribute = place.partition(".")
            found = getattr(importlib.import_module(f"harness.cli.{module}"), attribute)  # noqa: TID251  (one of ours)
            if isinstance(found, typer.Typer):
                app.add_typer(found, name=name)
            else:
                app.command(name)(found)
    return app


def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Benchmark harness for extreme multi-label classification with label text."""
    if show:
        say(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Runs a command; a user's mistake becomes one clear message and exit code 2."""
    for name, value in WAITING.items():  # before torch is imported, which reads them
        os.environ.setdefault(name, value)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)
    try:
        first = next(iter(sys.argv[1:] if arguments is None else arguments), "")
        make_app(first if first in COMMANDS else None)(arguments, prog_name="harness")
    except UserError as error:
        say(f"error: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output went away, for example `| head`
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        say(f"error: {_explained(error)}", err=True)
        sys.exit(2)
    except Terminated:
        say("stopped by SIGTERM", err=True)
        sys.exit(143)


def _explained(error: OSError) -> str:
    remedies = {
        errno.ENOSPC: "free some space, or set HARNESS_HOME to a folder on a larger disk",
        errno.EACCES: "check its permissions",
        errno.EROFS: "set HARNESS_HOME to a folder you may write to",
    }
    remedy = remedies.get(error.errno or 0, "`python -m harness doctor` looks at the workspace")
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}; {remedy}"
