"""A packed model as MLflow sees it: a frame with a column `text` in, the top labels of every text out."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.pyfunc import PythonModel, PythonModelContext
from numpy.typing import NDArray

from harness.errors import UserError
from harness.method import Ranker
from harness.predict import label_vectors, predict
from harness.serving.package import load_package
from harness.trained import TrainedModel

PACKAGE = "package"
"""The name of the artifact that holds the package."""
DEFAULT_K = 5
OWN_SCORER = ""
"""The way of scoring that the run reports."""


class TopLabels(PythonModel):  # type: ignore[misc]  # mlflow has no types
    """Answers texts with the ids, texts and scores of their best labels."""

    def load_context(self, context: PythonModelContext) -> None:
        """Loads the package; a damaged one, or one with a file that does not belong there, is refused."""
        try:
            self._model = load_package(Path(context.artifacts[PACKAGE]))
        except UserError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        self._vectors: dict[str, NDArray[np.float32]] = {}

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """The best labels of every text, best first.

        Args:
            context: Not used.
            model_input: With a column `text`, [n].
            params: `k`, how many labels (fewer where there are fewer), and `scorer`, one of the run's views.

        Returns:
            A frame with the index of the input and the columns `labels` (ids), `texts` and `scores`, lists of equal
            length.
        """
        wanted = {"k": DEFAULT_K, "scorer": OWN_SCORER, **(params or {})}
        try:
            rows = predict(
                self._model,
                _texts(model_input),
                int(wanted["k"]),
                view=str(wanted["scorer"]) or None,
                vectors=self._label_vectors,
            )
        except UserError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        return pd.DataFrame(
            {
                "labels": [[one.label for one in row] for row in rows],
                "texts": [[one.text for one in row] for row in rows],
                "scores": [[one.score for one in row] for row in rows],
            },
            index=model_input.index,
        )

    def _label_vectors(self, model: TrainedModel, view: str) -> NDArray[np.float32]:
        """Label vectors [L, D], once for all requests; kept in memory alone where the workspace cannot be written."""
        if view not in self._vectors:
            try:
                self._vectors[view] = label_vectors(model, view)
            except OSError:
                assert not isinstance(model.parts.scorer, Ranker)
                self._vectors[view] = model.parts.scorer.label_vectors(model.label_tokens, (view,))[view]
        return self._vectors[view]


def _texts(frame: pd.DataFrame) -> list[str]:
    if "text" not in frame:
        raise UserError(f"the input needs a column 'text'; it has {', '.join(map(str, frame.columns)) or 'none'}")
    texts: list[Any] = frame["text"].tolist()
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise UserError(f"text {row} is {text!r}, not a string")
    return texts
