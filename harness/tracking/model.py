"""The model of a run as a folder that `mlflow.pyfunc.load_model` and `mlflow models serve` take.

    <out>/MLmodel, entry.py, requirements.txt ...       written by MLflow; models from code, no pickle
          artifacts/package/                            `harness.serving.package`

Nothing in it is a path of this machine. It needs this harness installed, and an encoder that goes by its name where the
harness finds it.
"""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import __version__
from harness.errors import UserError
from harness.repro import version_of

REQUIREMENTS = ("mlflow", "numpy", "pandas", "pydantic", "safetensors", "scipy", "tokenizers", "torch", "transformers")
"""Besides the harness itself; listed, because finding them out takes MLflow half a minute of imports."""
PEERS = {"parabel": ("omikuji",)}
"""Further libraries by method."""


def pack_model(run_folder: Path, out: Path, *, encoder: str | None = None) -> None:
    """Packs the model of a finished run, whole or not at all.

    Args:
        run_folder: Of a run that is finished, with its data in the workspace.
        out: New, or an empty folder.
        encoder: Where its encoder is, if that was a model folder and the workspace does not know any more.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not an empty folder; name another")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        made = Path(temporary) / "model"
        _write(run_folder, Path(temporary) / "package", made, encoder)
        if out.exists():
            out.rmdir()
        made.replace(out)


def _write(run_folder: Path, package: Path, made: Path, encoder: str | None) -> None:
    from harness.serving.package import write_package

    model = write_package(run_folder, package, encoder=encoder)
    example = next((text for text in model.label_text if text.strip()), "some text")

    import mlflow
    import pandas as pd

    with _quiet():
        mlflow.pyfunc.save_model(
            path=str(made),
            python_model=str(Path(__file__).parents[1] / "serving" / "entry.py"),
            artifacts={"package": str(package)},
            signature=_signature(),
            input_example=(pd.DataFrame({"text": [example]}), {"k": 3}),
            pip_requirements=_requirements(model.config.method),
            metadata={"run_id": model.record.run_id, "scorers": list(model.parts.scorer.views)},
        )
    _forget_places(made / "MLmodel")


def _signature() -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array

    from harness.serving.predictor import DEFAULT_K, OWN_SCORER

    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "text")]),
        outputs=Schema(
            [
                ColSpec(Array(DataType.string), "labels"),
                ColSpec(Array(DataType.string), "texts"),
                ColSpec(Array(DataType.double), "scores"),
            ]
        ),
        params=ParamSchema(
            [
                ParamSpec("k", DataType.long, DEFAULT_K),
                ParamSpec("scorer", DataType.string, OWN_SCORER),
            ]
        ),
    )


def _requirements(method: str) -> list[str]:
    """Versions as installed, without the mark of a build (`+cpu`), which no package index knows."""
    found = {name: version_of(name) for name in (*REQUIREMENTS, *PEERS.get(method, ()))}
    found["xmc-harness"] = __version__
    return [f"{name}=={version.partition('+')[0]}" for name, version in found.items() if version is not None]


def _forget_places(file: Path) -> None:
    """Takes out paths of this machine: MLflow notes where the script and the package were, and needs neither."""
    from mlflow.models import Model

    model = Model.load(str(file))
    flavor = model.flavors["python_function"]
    flavor["model_code_path"] = Path(flavor["model_code_path"]).name
    for artifact in flavor["artifacts"].values():
        artifact["uri"] = artifact["path"]
    model.save(str(file))


@contextmanager
def _quiet() -> Iterator[None]:
    """MLflow without its notes and progress bars, which would end up among the lines of a run; and without pickles."""
    wanted = {"MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false", "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    before = {name: os.environ.get(name) for name in wanted}
    logger = logging.getLogger("mlflow")
    level = logger.level
    os.environ.update(wanted)
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
