"""Loading a packed model (`harness.runs.package`), and serving it with MLflow.

MLflow loads such a model through `_load_pyfunc`: it takes a frame with a column `text` and returns the top labels of
every text.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.ragged import Ragged, Texts
from harness.errors import DataError, UserError
from harness.infer.load import TrainedModel, config_of, ready_model, require_same
from harness.infer.predict import label_vectors, predict
from harness.io.arrays import load_array
from harness.io.files import MANIFEST, read_json
from harness.machine.device import choose_device
from harness.model.encoders.encoder import load_encoder
from harness.model.folders import with_folders
from harness.runs.package import FORMAT, AbsentRows
from harness.runs.record import read_record
from harness.settings.catalogue import NONE
from harness.settings.method import Inputs, Ranker
from harness.train.checkpoint import verify_files

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_K = 5
OWN_SCORER = ""
"""Stands for the scorer that the run reports."""


def load_package(package: Path, *, device: str = "auto") -> TrainedModel:
    """Load the model of a package; `DataError` if a file is damaged, missing or not listed in its manifest.

    Args:
        package: Folder written by `harness.runs.package.assemble`.
        device: auto, cpu, cuda, cuda:1 or mps.
    """
    verify_files(package)
    metadata = read_json(package / MANIFEST)["facts"]
    if metadata.get("format") != FORMAT:
        raise DataError(
            f"a package of format {metadata.get('format')}, this harness reads {FORMAT}; pack it anew", package
        )
    record = read_record(package)
    places = {key: next(iter(package.glob(f"folders/{key}/*")), None) for key in ("encoder", "teacher")}
    folders = {key: place for key, place in places.items() if place is not None}
    config = config_of(record, {**with_folders(record.config, folders), "device": device, "augment": NONE})
    encoder = load_encoder(config.encoder, seed=config.seed, **config.encoder_options)
    require_same(record, "encoder", "identity", encoder.identity)
    encoder.adapt(_counts(package, encoder.tokenizer.vocab_size))
    labels = {name: Texts.load(package, f"labels.{name}") for name in ("id", "text")}
    label_tokens = Ragged.load(package, "labels.tokens")
    train, train_filter, train_tokens = _train_rows(package, (metadata["train_rows"], len(label_tokens)))
    inputs = Inputs(
        train=train,
        train_filter=train_filter,
        train_tokens=train_tokens,
        label_tokens=label_tokens,
        encoder=encoder,
        device=choose_device(config.device),
        batch_tokens=config.batch_tokens,
        seed=config.seed,
        warn=lambda _: None,  # the run itself has given the warnings already
        soft=bool(metadata["soft"]),
    )
    return ready_model(record, config, inputs, labels["id"], labels["text"], package / "model")


def _counts(package: Path, tokens: int) -> NDArray[np.int64]:
    """Return the number of occurrences of each token, [V]."""
    counts = load_array(package / "counts.npy", 1, "i")
    if len(counts) != tokens or (counts < 0).any():
        raise DataError(f"not the counts of {tokens:,} tokens; pack the model anew", package / "counts.npy")
    return counts


def _train_rows(package: Path, shape: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Return positives [N, L], filter pairs [N, L] and tokens [N] of the train rows; `AbsentRows` if not packed."""
    if not (package / "train.tokens.offsets.npy").exists():
        absent = AbsentRows(shape)
        return absent, absent, absent

    def matrix(name: str) -> csr_array:
        data, indices, indptr = (
            load_array(package / f"{name}.{part}.npy", 1) for part in ("data", "indices", "indptr")
        )
        try:
            found = csr_array((data, indices, indptr), shape=shape)
            found.check_format(full_check=True)
            return found
        except ValueError as error:
            raise DataError(
                f"{name} is no matrix of {shape[0]:,} rows and {shape[1]:,} labels ({error})", package
            ) from error

    return matrix("train.labels"), matrix("train.filter"), Ragged.load(package, "train.tokens")


def _load_pyfunc(path: str) -> "TopLabels":
    """Load a package for MLflow, which calls this; a damaged package raises `MlflowException`."""
    from mlflow.exceptions import MlflowException

    try:
        return TopLabels(load_package(Path(path)))
    except UserError as error:
        raise MlflowException.invalid_parameter_value(str(error)) from error


class TopLabels:
    """A model for MLflow: it returns the ids, texts and scores of the best labels of each text."""

    def __init__(self, model: TrainedModel) -> None:
        self._model = model
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def predict(self, model_input: "pd.DataFrame", params: dict[str, Any] | None = None) -> "pd.DataFrame":
        """Return the best labels of every text, best first.

        Args:
            model_input: Frame with a column `text`, [n].
            params: `k`, the number of labels (at most all there are), and `scorer`, one of the run's scorers.

        Returns:
            A frame with the index of the input and the columns `labels` (ids), `texts` and `scores`, lists of equal
            length.
        """
        import pandas as pd
        from mlflow.exceptions import MlflowException

        wanted = {"k": DEFAULT_K, "scorer": OWN_SCORER, **(params or {})}
        scorer = str(wanted["scorer"]) or None
        try:
            rows = predict(
                self._model, _texts(model_input), int(wanted["k"]), scorer=scorer, vectors=self._label_vectors
            )
        except UserError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        columns = {"labels": "label", "texts": "text", "scores": "score"}
        answers = {name: [[getattr(one, key) for one in row] for row in rows] for name, key in columns.items()}
        return pd.DataFrame(answers, index=model_input.index)

    def _label_vectors(self, model: TrainedModel, scorer: str) -> NDArray[np.float32]:
        """Return label vectors [L, D], computed once; kept only in memory if the workspace cannot be written."""
        if scorer not in self._vectors:
            try:
                self._vectors[scorer] = label_vectors(model, scorer)
            except OSError:
                assert not isinstance(model.parts.scoring, Ranker)
                self._vectors[scorer] = model.parts.scoring.label_vectors(model.label_tokens, (scorer,))[scorer]
        return self._vectors[scorer]


def _texts(frame: "pd.DataFrame") -> list[str]:
    if "text" not in frame:
        raise UserError(f"the input needs a column 'text'; it has {', '.join(map(str, frame.columns)) or 'none'}")
    texts: list[Any] = frame["text"].tolist()
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise UserError(f"text {row} is {text!r}, not a string")
    return texts
