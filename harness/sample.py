"""What a run predicted, for a person to look at: some test rows with their true and their predicted labels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.data import Dataset
from harness.evaluation import Scored
from harness.repro import stream

SHOWN = 5
"""Predictions per row."""
LONGEST = 500
"""Characters of a text; long documents would make the sample a copy of the test set."""


def prediction_sample(dataset: Dataset, scored: Scored, count: int = 100, seed: int = 0) -> list[dict[str, Any]]:
    """A seeded draw of test rows in the order of the dataset, JSON friendly.

    Each has `row`, `text`, `truth` (label texts) and `predictions`: `label` (its text), `score`, `hit` (whether it is
    true) and `train_rows` (how many train rows have it; 0 is a label nobody could learn from rows).

    Args:
        dataset: Whose test rows were scored.
        scored: Of all test rows, [M, K].
        count: Rows at most.
        seed: Of the draw.
    """
    rows = np.sort(stream(seed, "split", 1).permutation(dataset.test.shape[0])[:count])
    frequency = np.bincount(dataset.train.indices, minlength=dataset.train.shape[1])
    return [_described(dataset, scored, int(row), frequency) for row in rows]


def _described(dataset: Dataset, scored: Scored, row: int, frequency: NDArray[np.int64]) -> dict[str, Any]:
    true = dataset.test.indices[dataset.test.indptr[row] : dataset.test.indptr[row + 1]].tolist()
    labels, scores = scored.topk.ids[row, :SHOWN].tolist(), scored.topk.scores[row, :SHOWN].tolist()
    found = [(label, score) for label, score in zip(labels, scores, strict=True) if label >= 0]
    return {
        "row": row,
        "text": _shortened(dataset.test_text[row]),
        "truth": [_shortened(dataset.label_text[label]) for label in true],
        "predictions": [
            {
                "label": _shortened(dataset.label_text[label]),
                # JSON knows no infinity; seven digits are all that a float32 has
                "score": float(f"{score:.7g}") if np.isfinite(score) else None,
                "hit": label in true,
                "train_rows": int(frequency[label]),
            }
            for label, score in found
        ],
    }


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
