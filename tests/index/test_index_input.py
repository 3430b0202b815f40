"""Nearest-label search: what it reads, what it refuses, and how it behaves when memory or faiss is missing."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from harness.errors import UserError
from harness.index import exact, faiss_backends, ranking, search
from tests.index.test_index import EXACT, assert_same, one_thread, oracle, random_vectors

__all__ = ["one_thread"]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["float16", "float64", "bfloat16", ">f4", "reversed", "transposed", "memmap", "grad"])
def test_any_float_matrix_is_read_as_float32(kind: str, tmp_path: Path) -> None:
    queries, labels = random_vectors(20, 5, 1), random_vectors(300, 5, 2)
    given: Any
    if kind == "bfloat16":
        given = torch.from_numpy(labels).bfloat16()
        labels = given.float().numpy()
    elif kind == "grad":
        given = torch.from_numpy(labels).requires_grad_()
    elif kind == "reversed":
        given, labels = labels[::-1], labels[::-1].copy()
    elif kind == "transposed":
        given = np.asfortranarray(labels)
    elif kind == "memmap":
        np.save(tmp_path / "labels.npy", labels)
        given = np.load(tmp_path / "labels.npy", mmap_mode="r", allow_pickle=False)
    else:
        given = labels.astype(kind)
        labels = given.astype(np.float32)
    for backend in EXACT:
        assert_same(search(queries, given, 7, backend=backend), oracle(queries, labels, 7))


def test_huge_and_tiny_numbers() -> None:
    """A score beyond float32 becomes its largest number; a product below its smallest does not confuse the order."""
    labels = np.array([[1e30, -1e30], [-1e30, 1e30], [1e30, 1e30], [1.0, 0.0]], np.float32)
    for backend in EXACT:
        found = search(np.array([[1e30, 1e10]], np.float32), labels, 4, backend=backend)
        assert found.ids.tolist() == [[0, 2, 3, 1]]
        assert np.isfinite(found.scores).all()
        tiny = search(np.array([[1e-30, 0.0]], np.float32), labels * 1e-25, 4, backend=backend)
        assert_same(tiny, oracle([[np.float32(1e-30), 0]], labels * np.float32(1e-25), 4))


def test_lower_precision_switched_on_by_training_is_ignored() -> None:
    queries, labels = random_vectors(20, 64, 1), random_vectors(500, 64, 2)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_same(search(queries, labels, 9), oracle(queries, labels, 9))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), RuntimeError("can't allocate memory"), MemoryError()]
)
def test_memory_running_out_halves_the_blocks_only(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """fault 30: blocks halve, numbers identical"""
    real, sizes = exact._best_labels, []

    def cramped(task: Any, at: Any, scores: torch.Tensor, chunk: int) -> Any:
        sizes.append(scores.numel())
        if scores.numel() > 100:
            raise error
        return real(task, at, scores, chunk)

    queries, labels = random_vectors(33, 6, 1), random_vectors(500, 6, 2)
    whole = search(queries, labels, 12)
    monkeypatch.setattr(exact, "_best_labels", cramped)
    found = search(queries, labels, 12, chunk=8)
    assert max(sizes) > 10_000
    np.testing.assert_array_equal(found.ids, whole.ids)
    np.testing.assert_array_equal(found.scores, whole.scores)


def test_memory_that_never_suffices_and_other_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = random_vectors(3, 2, 1)
    for raised, expected in ((MemoryError(), UserError), (RuntimeError("a bug"), RuntimeError)):
        monkeypatch.setattr(exact, "_best_labels", lambda *_, error=raised: (_ for _ in ()).throw(error))
        with pytest.raises(expected, match=r"not enough memory|a bug"):
            search(queries, queries, 1)


def test_a_failing_thread_stops_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = exact._best_labels, []

    def broken_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("a bug")
        return real(*arguments)

    monkeypatch.setattr(exact, "_best_labels", broken_once)
    vectors = random_vectors(3000, 2, 1)
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="a bug"):
            search(vectors, vectors, 1, query_block=10)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert len(calls) < 100  # of 300 blocks


def test_a_million_labels_fit_under_a_memory_cap() -> None:
    """fault 37: 64 x 1.3M scores would take 333 MB; and listing the backends does not load torch"""
    program = """
import sys
import numpy as np
from harness.index import BACKENDS, search
assert BACKENDS and "torch" not in sys.modules
from harness.machine.memory import peak_memory_gib
random = np.random.default_rng(0)
queries = random.standard_normal((64, 8), dtype=np.float32)
labels = random.standard_normal((1_300_000, 8), dtype=np.float32)
search(queries[:1], labels[:100], 5)
before = peak_memory_gib()
found = search(queries, labels, 10)
used = (peak_memory_gib() - before) * 2**10
best = np.argsort(-(labels @ queries[5]), kind="stable")[:10]
assert found.ids[5].tolist() == best.tolist()
assert 1 < used < 120, used  # the score buffer alone is 16 MB, so 0 would mean that nothing was measured
"""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=alone, check=True, timeout=120)


def test_more_pairs_than_32_bits_count() -> None:
    """fault 38: keys of (score, label) and of (row, label) are 64 bits wide"""
    ids = torch.tensor([[0, 2**31 - 2, 2**31 - 1, -1]])
    scores = torch.tensor([[-1.5, 0.25, 3e38, -torch.inf]])
    unpacked = ranking.unpack(ranking.pack(scores, ids))
    assert torch.equal(unpacked[0], scores)
    assert torch.equal(unpacked[1], ids)
    last = 2**31 - 2
    task: Any = SimpleNamespace(
        labels=SimpleNamespace(count=2**31 - 1),
        excluded_pairs=lambda _: (np.array([3, 4]), np.array([last, 0])),
    )
    asked = np.array([[last, 0, 1]] * 5)
    assert np.argwhere(faiss_backends._is_excluded(task, np.arange(5), asked)).tolist() == [[3, 0], [4, 1]]


@pytest.mark.slow
def test_more_than_two_billion_pairs() -> None:
    """fault 38: 1,700 queries x 1.3M labels"""
    queries, labels = random_vectors(1700, 2, 1), random_vectors(1_300_000, 2, 2)
    labels[-1] = 10 * queries[-1]
    exclude = csr_array((np.ones(1), np.array([1_299_999]), np.repeat([0, 1], [1700, 1])), shape=(1700, 1_300_000))
    found = search(queries, labels, 3, exclude)
    scores = (queries[-3:].astype(np.float64) @ labels.T.astype(np.float64)).astype(np.float32)
    scores[-1, -1] = -np.inf
    np.testing.assert_array_equal(found.ids[-3:], np.argsort(-scores, axis=1, kind="stable")[:, :3])


def test_wrong_input_is_explained() -> None:
    good = random_vectors(4, 3, 1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"labels": random_vectors(4, 5, 1)}, "3 dimensions and labels 5"),
        ({"k": 0}, "k must be between 1"),
        ({"k": 2.5}, "whole number"),
        ({"k": 2**40}, "k must be between 1"),
        ({"exclude": csr_array((4, 5))}, "exclude has the shape"),
        ({"exclude": np.zeros((4, 4))}, "sparse"),
        ({"queries": good[0]}, r"shape \[rows, dimension\]"),
        ({"queries": good[:, :0]}, r"shape \[rows, dimension\]"),
        ({"queries": good.astype(np.int64)}, "floating-point"),
        ({"queries": torch.ones((4, 3), dtype=torch.int64)}, "floating-point"),
        ({"queries": good.tolist()}, "numpy array or a torch tensor"),
        ({"backend": "exat"}, "did you mean 'exact'"),
        ({"backend": "faiss-ivf", "nprob": 3}, "did you mean 'nprobe'"),
        ({"nprobe": 3}, "unknown option of search backend 'exact'"),
        ({"tile": 0}, "tile must be between 1"),
        ({"backend": "faiss-hnsw", "M": 1}, "M must be between 2"),
        ({"query_block": 0}, "query_block must be between 1"),
        ({"device": "abacus"}, "is not a device"),
        ({"device": "meta"}, "cpu or cuda"),
    ]
    for change, message in cases:
        with pytest.raises(UserError, match=message):
            search(**{"queries": good, "labels": good, "k": 2, **change})
    broken = csr_array((np.ones(1), np.array([0]), np.array([0, 1, 1, 1, 1])), shape=(4, 4))
    broken.indices[0] = 9
    with pytest.raises(UserError, match="names label 9"):
        search(good, good, 2, broken)


def test_missing_faiss_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 35"""
    monkeypatch.setitem(sys.modules, "faiss", None)
    vectors = random_vectors(4, 3, 1)
    with pytest.raises(UserError, match=r"pip install -c constraints.txt -e '.\[cpu\]'"):
        search(vectors, vectors, 2, backend="faiss-flat")
    assert search(vectors, vectors, 2).ids.shape == (4, 2)
