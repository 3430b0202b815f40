"""A process that does trials until none is left: `python -m harness.sweep.worker`, started by the sweep.

Its plan comes as one line on standard input, so that the address of a database, which may hold a password, is on no
command line and in no file. The sweep keeps that pipe open; when it closes, the sweep is gone, and the worker saves,
puts its trial back and ends as if it had been told to.
"""

import gc
import json
import os
import signal
import sys
import threading
from typing import Any

from harness.errors import Terminated, UserError, terminate
from harness.method import load_method
from harness.printable import printable_lines
from harness.sweep import plan_from
from harness.sweep.queue import claim
from harness.sweep.storage import open_study, patiently
from harness.threads import begin

_INPUT = 0


def main() -> int:
    """Reads the plan and works; returns the exit code."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        order = json.loads(sys.stdin.buffer.readline())
        begin(threading.Thread(target=_end_with_the_sweep, name="lifeline", daemon=True))
        _work(order)
    except UserError as error:
        return _refuse(str(error).splitlines()[0])
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return _refuse(f"{error.strerror or error}{place}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated:
        return 128 + signal.SIGTERM
    return 0


def _work(order: dict[str, Any]) -> None:
    """Claims and does trials until none waits."""
    plan, group, worker = plan_from(order["plan"]), order["group"], order["worker"]
    study = open_study(plan)
    from harness.sweep.trial import Attempt

    load_method(plan.method)  # imports torch, which takes seconds: better before a trial is claimed
    while (trial_id := patiently(lambda: claim(study, plan, worker))) is not None:
        Attempt(study, plan, group, trial_id, worker).run()
        gc.collect()  # what a trial held is gone before the next one begins


def _end_with_the_sweep() -> None:
    while os.read(_INPUT, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _refuse(reason: str) -> int:
    print(f"error: {printable_lines(reason)}", file=sys.stderr, flush=True)  # noqa: T201
    return 2


if __name__ == "__main__":
    sys.exit(main())
