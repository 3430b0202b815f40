"""The files of a finished run in MLflow: what it was, what came out, its curves, and a model that can be served.

Each is made and sent on its own; one that fails is named, and the others go on.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.event import Event
from harness.files import place_inside, write_json
from harness.resume import read_events
from harness.tracking.events import LOG
from harness.tracking.mlflow_facts import PARAM_LIMIT, params_of
from harness.tracking.places import reason

_FILES = ("config.json", "record.json", LOG, "sample.json")
_AUTO_MODEL_BYTES = 500 * 2**20
_Send = Callable[[Path], None]


def send_files(client: Any, run_id: str, folder: Path, progressed: Callable[[], None]) -> list[str]:
    """Sends the small files of the run in `folder`; returns what could not be sent, in words."""
    faults: list[str] = []
    for name in _FILES:
        with _noted(name, faults):
            if (folder / name).is_file():
                client.log_artifact(run_id, str(place_inside(folder, name)))  # no link to a file of this machine
                progressed()
    return faults


def send_made(client: Any, run_id: str, folder: Path, start: Event, progressed: Callable[[], None]) -> list[str]:
    """Makes and sends what takes seconds: curves and a model; returns what could not be made or sent, in words."""
    faults: list[str] = []
    made: dict[str, Callable[[Path], list[Path]]] = {
        "params.json": lambda out: _params(start, out),
        "curves": lambda out: _curves(folder, out),
        "model": lambda out: _model(folder, start, out),
    }
    for name, make in made.items():
        with _noted(name, faults), tempfile.TemporaryDirectory(prefix="harness-") as scratch:
            for path in make(Path(scratch)):
                progressed()
                if path.is_dir():
                    client.log_artifacts(run_id, str(path), path.name)
                else:
                    client.log_artifact(run_id, str(path))
            progressed()
    return faults


@contextmanager
def _noted(name: str, faults: list[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        faults.append(f"{name} ({reason(error)})")


def _params(start: Event, out: Path) -> list[Path]:
    """All parameters, whole, where MLflow had to cut one."""
    params = params_of(start)
    if all(len(value) <= PARAM_LIMIT for value in params.values()):
        return []
    write_json(out / "params.json", params)
    return [out / "params.json"]


def _curves(folder: Path, out: Path) -> list[Path]:
    from harness.tracking.curves import draw_curves

    return draw_curves(read_events(folder / LOG), out)


def left_out(folder: Path, start: Event) -> str | None:
    """Why the model of a run is not sent; None if it is, or if there is none."""
    wanted = start["config"].get("tracking", {}).get("model", "auto")
    size = sum(path.stat().st_size for path in (folder / "model").rglob("*") if path.is_file())
    if wanted == "never" and size:
        return "tracking.model is never"
    if wanted == "auto" and size > _AUTO_MODEL_BYTES:
        return f"{size / 2**20:,.0f} MB, more than tracking.model=auto sends"
    if wanted == "auto" and shutil.disk_usage(tempfile.gettempdir()).free < 2 * size:
        return "no space to pack it"
    return None


def _model(folder: Path, start: Event, out: Path) -> list[Path]:
    """The trained model as one that MLflow serves; none for a method without training, or where it is not wanted."""
    weights = folder / "model"
    if not weights.is_dir() or not (folder / "record.json").is_file() or left_out(folder, start):
        return []
    from harness.tracking.model import pack_model

    pack_model(folder, out / "model")
    return [out / "model"]
