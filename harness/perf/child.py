"""A function of a suite in a process of its own, because memory can only be measured from the start of a process.

    python -m harness.perf.child '["harness.perf.scaling", "cell", "unidec", 13000]'

Arguments and result are JSON; the result is the last line of standard output.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.errors import UserError

_SHOWN_LINES = 30


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns in a process of its own.

    Args:
        function: At the top of its module, which is imported by name there.
        arguments: Anything that JSON can carry; so must the result be.
    """
    words = json.dumps([function.__module__, function.__name__, *arguments])
    return json.loads(last_line("-m", "harness.perf.child", words))


def last_line(*words: str) -> str:
    """The last line that Python writes to standard output, started with these words.

    Raises:
        UserError: It failed; the message ends with what it wrote to standard error.
    """
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    written = done.stdout.splitlines()
    if done.returncode or not written:
        said = "\n".join(done.stderr.splitlines()[-_SHOWN_LINES:])
        killed = "; memory may have run out, so close what else is running" if done.returncode == -9 else ""
        raise UserError(f"a measuring process ended with code {done.returncode}{killed}: {words[-1]}\n{said}")
    return written[-1]


if __name__ == "__main__":
    module, name, *given = json.loads(sys.argv[1])
    print(json.dumps(getattr(import_module(module), name)(*given)))  # noqa: T201
