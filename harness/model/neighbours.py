"""Nearest rows by TF-IDF that vote for their labels: the model of `tfidf-knn`.

score(q, l) = sum over the n nearest rows i of cos(q, i)^power * Y[i, l]
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array, vstack

from harness.data.ragged import Ragged
from harness.index import TopK
from harness.index.sparse import top_entries
from harness.io.progress import progress
from harness.model.tfidf import Tfidf
from harness.settings.method import Inputs
from harness.settings.parameters import TextSettings

_BLOCK_PRODUCTS = 1 << 20
"""Products of two features in one block of queries: a few megabytes of similarities, which stay in the cache."""


@dataclass(frozen=True)
class VotingRows:
    """The R rows that vote: train rows and, if asked for, label texts; F is the number of features."""

    features: csr_array
    """Features of the rows, transposed, [F, R]."""
    votes: csr_array
    """Weight of each row's vote for each label, [R, L]."""

    def nearest(self, queries: csr_array, count: int) -> csr_array:
        """Return the cosines of queries [b, F] with the `count` nearest rows of each, [b, R]."""
        ids, cosines = top_entries(queries @ self.features, count)
        found = ids >= 0
        indptr = np.concatenate([[0], np.cumsum(found.sum(1))])
        return csr_array((cosines[found], ids[found], indptr), shape=(len(ids), self.features.shape[1]))

    def blocks(self, queries: csr_array) -> list[tuple[int, int]]:
        """Cut queries [n, F] into consecutive ranges of bounded work, of one query at least."""
        rows_with = np.diff(self.features.indptr)
        done = np.concatenate([[0], np.cumsum(rows_with[queries.indices])])[queries.indptr]
        blocks, start = [], 0
        while start < queries.shape[0]:
            within = int(np.searchsorted(done, done[start] + _BLOCK_PRODUCTS, side="right")) - 1
            blocks.append((start, max(start + 1, within)))
            start = blocks[-1][1]
        return blocks


class Neighbours:
    """A model that is fitted in one go and ranks the labels itself, for `harness.run`."""

    scorers = ("neighbours",)
    text_scorer = None

    def __init__(
        self, inputs: Inputs, features: TextSettings, *, neighbours: int, power: float, label_weight: float | None
    ) -> None:
        """Store the settings; `fit` reads the data.

        Args:
            inputs: Train rows and labels.
            features: How texts become features.
            neighbours: Number of rows that vote for a query.
            power: Exponent of a vote's weight, cosine^power.
            label_weight: Weight of a label text's vote for itself; None: label texts do not vote.
        """
        self._inputs, self._neighbours, self._power, self._label_weight = inputs, neighbours, power, label_weight
        self._tfidf = Tfidf(inputs.encoder.tokenizer, features)
        self._rows: VotingRows | None = None

    def fit(self) -> dict[str, Any]:
        """Compute the features of all rows; return their counts for the record."""
        self._tfidf.fit(self._inputs.train_tokens, *([] if self._label_weight is None else [self._inputs.label_tokens]))
        self._rows = self._voting_rows()
        return {"features": len(self._tfidf.terms), "rows": self._rows.votes.shape[0]}

    def fitting_bytes(self, rows: int, labels: int, pairs: float, terms: float, label_terms: float) -> dict[str, float]:
        """Return the most bytes that fitting takes, by part; a row has `terms` terms, a label text `label_terms`.

        Features are in memory three times while they are joined and transposed, votes twice.
        """
        voters = 0 if self._label_weight is None else labels
        features = 8 * (rows * terms + voters * label_terms)
        return {"sparse features": 3 * features, "votes": 2 * 12 * (pairs + voters)}

    def save(self, folder: Path) -> None:
        """Save only the vocabulary; the rest is recomputed from the train rows."""
        self._tfidf.save(folder)

    def load(self, folder: Path) -> None:
        """Load the vocabulary that `save` wrote and recompute the rest."""
        self._tfidf.load(folder)
        self._rows = self._voting_rows()

    def rank(self, tokens: Ragged, k: int, exclude: csr_array | None, scorer: str) -> TopK:
        """Return the best k labels of queries [n]; labels that no neighbour votes for are not ranked."""
        if self._rows is None:
            raise RuntimeError("neither fitted nor loaded")
        queries = narrow(self._tfidf.transform(tokens))
        found = [(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))]
        with progress("rank", queries.shape[0], "queries") as advance:
            for start, stop in self._rows.blocks(queries):
                near = self._rows.nearest(queries[start:stop], min(self._neighbours, self._rows.votes.shape[0]))
                near.data **= np.float32(self._power)
                banned = None if exclude is None else exclude[start:stop]
                found.append(top_entries(near @ self._rows.votes, k, banned))
                advance(stop - start)
        ids, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return TopK(ids, scores, backend="neighbours")

    def _voting_rows(self) -> VotingRows:
        inputs = self._inputs
        features, votes = self._tfidf.transform(inputs.train_tokens), inputs.train.astype(np.float32)
        if self._label_weight is not None:
            own = eye_array(votes.shape[1], dtype=np.float32, format="csr") * np.float32(self._label_weight)
            features = csr_array(vstack([features, self._tfidf.transform(inputs.label_tokens)], format="csr"))
            votes = csr_array(vstack([votes, own], format="csr"))
        return VotingRows(narrow(csr_array(features.T)), votes)


def narrow(matrix: csr_array) -> csr_array:
    """Return the matrix with 32-bit indices if they suffice, which halves the memory to read."""
    if max(matrix.nnz, *matrix.shape) >= 2**31:
        return matrix
    indices: NDArray[np.int32] = matrix.indices.astype(np.int32)
    return csr_array((matrix.data, indices, matrix.indptr.astype(np.int32)), shape=matrix.shape)
