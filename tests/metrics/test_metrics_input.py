"""The ruler refuses bad input, stays sparse at full size, and works in blocks of rows."""

import math
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix

from harness.errors import UserError
from harness.metrics import (
    ceiling,
    contributions,
    evaluate,
    frequency_bins,
    hits,
    inverse_propensity,
    per_row,
    ranks_of_truth,
)
from tests.metrics.test_metrics import brute_force, matrix
from tests.metrics.test_ruler import random_case

TRUTH = matrix([{0}, {1}, {2}], 4)
GOOD = np.array([[0, 1], [1, 2], [2, 3]])


def test_truth_is_read_as_a_set_and_left_alone() -> None:
    """fault 43: repeated, unsorted and zero-valued pairs mean what their set of nonzero pairs means."""
    data, indices, indptr = np.array([1.0, 1, 1, 0, 1]), np.array([3, 1, 3, 2, 0]), np.array([0, 4, 5])
    messy = csr_array((data.copy(), indices.copy(), indptr.copy()), shape=(2, 4))
    topk = np.array([[3, 2, 1], [1, 0, 2]])
    clean = [{1, 3}, {0}]
    assert evaluate(topk, messy) == evaluate(topk, matrix(clean, 4))
    assert inverse_propensity(csr_array(np.ones((3, 2)) * 7), 0.5, 0.4).tolist() == pytest.approx(
        inverse_propensity(csr_array(np.ones((3, 2))), 0.5, 0.4).tolist()
    )
    assert messy.data.tolist() == data.tolist()
    assert messy.indices.tolist() == indices.tolist()
    assert evaluate(topk, csr_matrix(matrix(clean, 4))) == evaluate(topk, matrix(clean, 4))


@pytest.mark.parametrize(
    ("topk", "message"),
    [
        (GOOD[:2], "2 rows of predictions but 3 rows of truth"),
        (GOOD[:, 0], "integer label ids"),
        (GOOD.astype(float), "float64"),
        (GOOD > 0, "bool"),
        (np.array([[0, 1], [1, 4], [2, 3]]), "label id 4 at row 1, rank 1 .* outside 0 to 3"),
        (np.array([[0, 1], [1, 2], [-2, 3]]), "label id -2 at row 2, rank 0"),
    ],
)
def test_bad_predictions_are_named(topk: NDArray[Any], message: str) -> None:
    for call in (evaluate, per_row, ranks_of_truth):
        with pytest.raises(UserError, match=message):
            call(topk, TRUTH)


@pytest.mark.parametrize("ks", [(), (0,), (-1, 3), (3, 1), (1, 1), (1.5,), (True,), ("1",), 5])
def test_bad_cut_offs_are_refused(ks: Any) -> None:
    for call in (evaluate, per_row):
        with pytest.raises(UserError, match="increasing order"):
            call(GOOD, TRUTH, None, ks)
    with pytest.raises(UserError, match="increasing order"):
        ceiling(TRUTH, ks)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"shape \(3,\) for 4 labels"),
        (np.ones((4, 1)), "give one each"),
        (np.array([1, np.nan, 1, 1]), "positive numbers"),
        (np.array([1, np.inf, 1, 1]), "positive numbers"),
        (np.array([1.0, 0, 1, 1]), "positive numbers"),
    ],
)
def test_bad_propensities_are_refused(weights: NDArray[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        evaluate(GOOD, TRUTH, weights)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(UserError, match="scipy sparse array, not ndarray"):
        evaluate(GOOD, TRUTH.toarray())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="no rows"):
        evaluate(np.empty((0, 5), int), csr_array((0, 4)))
    with pytest.raises(UserError, match="5 labels in train but 4"):
        contributions(GOOD, TRUTH, matrix([{0}], 5))
    for names in ([], ["a", "a"]):
        with pytest.raises(UserError, match="distinct names"):
            frequency_bins(TRUTH, names)
    for a, b in ((0, 1), (1, -1), (math.nan, 1), (1, math.inf)):
        with pytest.raises(UserError, match="propensity constants"):
            inverse_propensity(TRUTH, a, b)
    with pytest.raises(UserError, match="at least 3 train rows"):
        inverse_propensity(matrix([{0}, {1}], 2), 0.5, 0.4)


def test_a_million_labels_stay_sparse() -> None:
    """fault 37, fault 38: rows x labels beyond 2^31, in memory that does not depend on that product."""
    generator, count, labels = np.random.default_rng(1), 3_000, 1_305_265
    truth = [set(generator.integers(labels, size=4).tolist()) for _ in range(count)]
    topk = [[*generator.permutation(list(true))[:2].tolist(), 0, -1, labels - 1] for true in truth]
    weights = generator.uniform(1, 20, labels)
    pattern, predictions = matrix(truth, labels), np.array(topk)
    tracemalloc.start()
    scores = evaluate(predictions, pattern, weights)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150e6
    assert scores == pytest.approx(brute_force(topk, truth, weights.tolist()), abs=1e-9)


def test_blocks_and_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are scored in blocks by several threads; one block in one thread gives the same bits."""
    topk, truth, *_ = random_case(4, rows=1_000, labels=300, depth=20)
    weights, ks = inverse_propensity(truth, 0.6, 2.6), (1, 3, 20)
    whole, whole_rows = evaluate(topk, truth, weights, ks), per_row(topk, truth, weights, ks)
    monkeypatch.setattr(hits, "_BLOCK_ROWS", 37)
    for cores in (1, 3):
        monkeypatch.setattr(hits, "available_cores", lambda cores=cores: cores)
        assert evaluate(topk, truth, weights, ks) == whole
        parts = per_row(topk, truth, weights, ks)
        assert all((parts[key] == whole_rows[key]).all() for key in whole_rows)


def test_metrics_and_lists_of_names_need_no_torch() -> None:
    check = """
import sys, harness.metrics
from harness.loss import LOSSES, two_way
from harness.model import ENCODERS
assert list(LOSSES) and list(ENCODERS)
sys.exit(any(name in sys.modules for name in ("torch", "mlflow", "transformers")))
"""
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
