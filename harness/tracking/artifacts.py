"""Artifacts of a finished run in MLflow: its config, record, log and samples, and a model that can be served.

Each is made and sent separately; if one fails it is reported, and the others are still sent.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import __version__
from harness.io.files import place_inside, write_json
from harness.runs.environment import version_of
from harness.runs.events import LOG, Event, first_event
from harness.runs.package import PACKAGE, assemble
from harness.tracking.metadata import PARAM_LIMIT, params_of
from harness.tracking.store import reason

REQUIREMENTS = ("mlflow", "numpy", "pandas", "pydantic", "safetensors", "scipy", "tokenizers", "torch", "transformers")
"""Requirements of a served model besides the harness; listed, because MLflow takes half a minute to infer them."""
PEERS = dict.fromkeys(("parabel", "xr-linear"), ("omikuji",))
"""Further requirements by method."""
_FILES = ("config.json", "record.json", LOG, "sample.json")


def send_files(client: Any, run_id: str, folder: Path, progressed: Callable[[], None]) -> list[str]:
    """Send the small files of the run in `folder`; return one message per file that could not be sent."""
    faults: list[str] = []
    for name in _FILES:
        with _noted(name, faults):
            if (folder / name).is_file():
                client.log_artifact(run_id, str(place_inside(folder, name)))  # refuses links that lead outside
                progressed()
    return faults


def send_made(client: Any, run_id: str, folder: Path, start: Event, progressed: Callable[[], None]) -> list[str]:
    """Make and send params.json, if MLflow had to cut a parameter, and the model, if the run has a package.

    Return one message per artifact that could not be made or sent.
    """
    faults: list[str] = []
    with _noted("scratch folder", faults), tempfile.TemporaryDirectory(prefix="harness-") as scratch:
        params = params_of(start)
        if any(len(value) > PARAM_LIMIT for value in params.values()):
            with _noted("params.json", faults):
                write_json(Path(scratch) / "params.json", params)
                client.log_artifact(run_id, str(Path(scratch) / "params.json"))
                progressed()
        if (folder / PACKAGE).is_dir():
            with _noted("model", faults):
                pack_model(folder, Path(scratch) / "model")
                progressed()
                client.log_artifacts(run_id, str(Path(scratch) / "model"), "model")
                progressed()
    return faults


@contextmanager
def _noted(name: str, faults: list[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        faults.append(f"{name} ({reason(error)})")


def pack_model(run_folder: Path, out: Path) -> None:
    """Write the model of a finished run as a new folder for `mlflow models serve`.

        model/MLmodel, requirements.txt ...     written by MLflow; no code and no pickle
              data/                             package, weights and record of the run

    It holds no path of this machine. To load it, this harness must be installed (`harness.infer.serve`), and an encoder
    that is recorded by name must be available to it.
    """
    import mlflow
    import pandas as pd

    start = first_event(run_folder / LOG) or {}
    with tempfile.TemporaryDirectory(prefix="harness-") as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metadata = assemble(run_folder, Path(scratch) / PACKAGE)
        mlflow.pyfunc.save_model(
            path=str(out),
            loader_module="harness.infer.serve",
            data_path=str(Path(scratch) / PACKAGE),
            signature=_signature(),
            input_example=(pd.DataFrame({"text": [metadata["example"]]}), {"k": 3}),
            pip_requirements=_requirements(start["config"]["method"]),
            metadata={"run_id": start["run_id"], "scorers": metadata["scorers"]},
        )


def _signature() -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    answers = {"labels": DataType.string, "texts": DataType.string, "scores": DataType.double}
    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "text")]),
        outputs=Schema([ColSpec(Array(kind), name) for name, kind in answers.items()]),
        # five labels by the scorer that the run reports, as in `harness.infer.serve`
        params=ParamSchema([ParamSpec("k", DataType.long, 5), ParamSpec("scorer", DataType.string, "")]),
    )


def _requirements(method: str) -> list[str]:
    """Return the installed versions as `name==version`, without a local build tag such as `+cpu`."""
    found = {name: version_of(name) for name in (*REQUIREMENTS, *PEERS.get(method, ()))}
    found["xmc-harness"] = __version__
    return [f"{name}=={version.partition('+')[0]}" for name, version in found.items() if version is not None]
