"""From a scorer to numbers: vectors and search, or the model's own ranking, with filter pairs masked; then metrics.

For test and validation rows alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness import metrics
from harness.data import Dataset
from harness.data.ragged import Ragged
from harness.index import TopK, search
from harness.io.arrays import save_array
from harness.runs.record import per_row_file
from harness.seeds import stream_seed
from harness.settings.method import Ranker, Scoring
from harness.settings.schema import RunConfig

_MOST_SEED = 2**31 - 1
"""faiss takes seeds of 31 bits."""


@dataclass(frozen=True)
class Rows:
    """Rows to be scored, with their true labels and filter pairs."""

    tokens: Ragged
    """Tokens of the rows, [n] texts."""
    truth: csr_array
    """True labels, [n, L]."""
    filter: csr_array
    """Pairs that are masked before ranking, [n, L]."""
    name: str = "test"


@dataclass(frozen=True)
class Scored:
    """Predictions and metrics of one scorer for a set of rows."""

    topk: TopK
    metrics: dict[str, float]
    contributions: list[dict[str, Any]]
    per_row: dict[str, NDArray[np.float64]]
    """Value of every row [n], by name of the metric."""


@dataclass(frozen=True)
class Evaluator:
    """Scores any rows of one dataset under one config."""

    config: RunConfig
    dataset: Dataset
    weights: NDArray[np.float64] | None
    """Inverse propensities, [L]; None if the card has no propensity constants."""
    label_tokens: Ragged
    device: str

    def score(self, scoring: Scoring | Ranker, rows: Rows, scorers: tuple[str, ...] | None = None) -> dict[str, Scored]:
        """Score these rows with every scorer, or with the given ones; return the results by name."""
        scorers = scorers or scoring.scorers
        if isinstance(scoring, Ranker):
            k = self.config.search.k
            return {scorer: self._scored(scoring.rank(rows.tokens, k, rows.filter, scorer), rows) for scorer in scorers}
        labels, queries = scoring.label_vectors(self.label_tokens, scorers), scoring.query_vectors(rows.tokens, scorers)
        return {
            scorer: self._scored(find_labels(queries[scorer], labels[scorer], rows, self.config, self.device), rows)
            for scorer in scorers
        }

    def _scored(self, topk: TopK, rows: Rows) -> Scored:
        return measured(topk, rows.truth, self.dataset, self.weights, self.config.ks)


def measured(
    topk: TopK, truth: csr_array, dataset: Dataset, weights: NDArray[np.float64] | None, ks: Sequence[int]
) -> Scored:
    """Return predictions [n, K] with all metrics; `truth` is [n, L], `weights` are inverse propensities [L]."""
    ranks = metrics.ranks_of_truth(topk.ids, truth, max(ks))
    return Scored(
        topk,
        metrics.evaluate(ranks, truth, weights, ks),
        metrics.contributions(ranks, truth, dataset.train, ks, weights),
        metrics.per_row(ranks, truth, weights, ks),
    )


def find_labels(
    queries: NDArray[np.float32], labels: NDArray[np.float32], rows: Rows, config: RunConfig, device: str
) -> TopK:
    """Search the best K labels of every row, from query vectors [n, D] and label vectors [L, D]."""
    wanted = config.search
    return search(
        queries,
        labels,
        wanted.k,
        rows.filter,
        wanted.backend,
        device=device if device.startswith("cuda") else "cpu",  # search needs float64, which mps has not
        seed=stream_seed(config.seed, "search") & _MOST_SEED,
        progress=f"search {rows.name}",
        **wanted.options,
    )


def label_weights(dataset: Dataset) -> NDArray[np.float64] | None:
    """Return inverse propensities [L] of the train labels without augmentation; None if the card has no constants."""
    constants = dataset.card.propensity
    return None if constants is None else metrics.inverse_propensity(dataset.train, constants.a, constants.b)


def save_predictions(folder: Path, scored: dict[str, Scored]) -> None:
    """Write the top labels and scores of the first scorer, and the per-row metrics of every scorer."""
    best = next(iter(scored.values()))
    save_array(folder / "ids.npy", best.topk.ids.astype(np.int32))
    save_array(folder / "scores.npy", best.topk.scores.astype(np.float32))
    for scorer, one in scored.items():
        rows = np.stack(list(one.per_row.values()), axis=1).astype(np.float32)
        save_array(folder / per_row_file(None if one is best else scorer), rows)
