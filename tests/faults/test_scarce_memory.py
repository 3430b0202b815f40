"""Memory that really runs out, in processes whose share of it is capped."""

import json
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from harness import metrics
from harness.batching.mined import MinedBatches
from harness.batching.pool import LabelPicker
from harness.data.ragged import Ragged
from harness.errors import UserError, out_of_memory
from harness.index import TopK, exact, search
from harness.io.arrays import save_array
from harness.machine.memory import keep_freed_memory
from harness.plan import cpu_target, make_plan
from harness.run import run
from harness.runs.record import RunRecord
from harness.seeds import stream
from harness.settings.layers import Layer
from harness.train import checkpoint
from harness.train.checkpoint import tensorfile
from harness.train.checkpoint.tensorfile import write_tensors
from tests.faults.accounts import Account
from tests.support.forks import limit_lifetime
from tests.support.interrupted_runs import assert_same, finished, taken_up
from tests.support.training_runs import config, only_run

pytestmark = pytest.mark.usefixtures("one_thread")

MIB = 2**20
SETTINGS: dict[str, Any] = {"checkpoint": {"every_steps": 3, "background": "never"}}
Result = TypeVar("Result")


# ---------------------------------------------------------------- processes with little memory


def in_new_process(work: Callable[..., Result], *arguments: Any) -> Result:
    """What `work` returns or raises in a process that has none of the memory that earlier tests have freed.

    It is forked from a server that has imported this module and done nothing else.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    home = os.environ["HARNESS_HOME"]
    with ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(home,)) as pool:
        return pool.submit(work, *arguments).result()


def _begin(home: str) -> None:
    os.environ["HARNESS_HOME"] = home
    torch.set_num_threads(1)
    limit_lifetime()


@contextmanager
def memory_cap(more: int) -> Iterator[None]:
    """Lets this process have so many bytes more than it has now; whatever asks for more is refused by the system.

    What the C library keeps of freed memory is taken away first, down to pieces below a mebibyte.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (mapped, before[1]))
        kept = hoard(16 * MIB, MIB)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + more, before[1]))
        yield
        del kept
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def hoard(*sizes: int) -> list[bytes]:
    """All memory that a capped process can still get in blocks of these sizes.

    A refusal is not the end: glibc turns to another of its heaps then, and stays there, so each may be asked.
    """
    taken = []
    for size in sizes:
        for _ in range(8 * (os.cpu_count() or 1) + 1):
            with suppress(MemoryError):
                while True:
                    taken.append(bytes(size))
    return taken


def test_a_cap_holds_whatever_the_process_did_before() -> None:
    """A refusal has moved this thread to another heap than the one that has 300 MiB of freed memory."""
    in_new_process(_cap_after_a_refusal)


def _cap_after_a_refusal() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    keep_freed_memory()
    arrays = [np.ones(20 * MIB, np.uint8) for _ in range(15)]
    above = np.ones(MIB, np.uint8)  # what is freed below it cannot go back to the system
    del arrays
    with pytest.raises(MemoryError), memory_cap(MIB):
        bytes(1024 * MIB)
    with memory_cap(100 * MIB):
        with pytest.raises(MemoryError):
            np.empty(256 * MIB, np.uint8)
        assert np.empty(60 * MIB, np.uint8).size > above.size


# ---------------------------------------------------------------- a search


def test_a_search_without_memory_for_its_block_halves_it(account: Account) -> None:
    """fault 30: a block of 1,024 queries and 65,536 labels takes 256 MiB"""
    whole, _ = in_new_process(searched, 1024)
    found, sizes = in_new_process(searched, 100)
    np.testing.assert_array_equal(found.ids, whole.ids)
    np.testing.assert_array_equal(found.scores, whole.scores)
    assert sizes[0] == 512
    account.did("evaluation capped at 100 MiB (RLIMIT_AS), its block of scores takes 256 MiB")
    account.saw(f"blocks of {', '.join(map(str, sizes))} queries instead of 1,024; labels and scores identical")


def searched(mebibytes: int) -> tuple[TopK, list[int]]:
    """What a search with so much memory finds, and the queries of a block each time it had to take fewer."""
    random = np.random.default_rng(0)
    queries, labels = (random.standard_normal((count, 8), dtype=np.float32) for count in (1024, 65_536))
    sizes, shrink = [], exact._Scorer.shrink

    def counted(self: exact._Scorer) -> None:
        shrink(self)
        sizes.append(self.query_block)

    exact._Scorer.shrink = counted  # type: ignore[method-assign]
    with memory_cap(mebibytes * MIB):
        return search(queries, labels, 10), sizes


# ---------------------------------------------------------------- a training


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> tuple[RunRecord, bytes]:
    """The run that had memory, and the bytes of its model."""
    return finished(tmp_path_factory.mktemp("whole"), **SETTINGS)


PLACES: dict[str, tuple[Any, str, int]] = {
    "checkpoint": (checkpoint, "write_tensors", 4),
    "mining": (MinedBatches, "_hard_negatives", 2),
}
"""Whose function has no more memory, from which call on."""


def starve(during: str) -> None:
    """A training that from a call of a function on can have no more memory at all."""
    owner, name, call = PLACES[during]
    original, calls = getattr(owner, name), []

    def starved(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) < call:
            return original(*arguments, **options)
        with memory_cap(0):
            kept = hoard(MIB // 16, 1024)
            try:
                return original(*arguments, **options)
            finally:
                kept.clear()

    setattr(owner, name, starved)
    run(config(**SETTINGS), track="none")


@pytest.mark.parametrize("during", PLACES)
def test_a_training_without_memory_keeps_its_last_checkpoint(
    during: str, workspace: Path, whole: tuple[RunRecord, bytes], account: Account
) -> None:
    """fault 31"""
    with pytest.raises((MemoryError, RuntimeError, OSError, UserError)) as caught:
        in_new_process(starve, during)
    assert out_of_memory(caught.value) or "memory" in str(caught.value).lower()
    kept = sorted(path.name for path in (only_run(workspace) / "checkpoints").iterdir())
    assert all(name.startswith("step-") for name in kept)
    assert kept
    assert_same(taken_up(workspace, **SETTINGS), whole)
    account.did(f"all memory taken away during {during} (RLIMIT_AS)")
    account.saw(f"'{caught.exconly()[:50]}'; {kept[-1]} stayed; resumed, model equal bit for bit")


@pytest.mark.parametrize("left", [40, "heap"])
def test_a_file_of_tensors_without_memory_for_a_thread_fails_instead_of_waiting(
    left: int | str, tmp_path: Path
) -> None:
    """With some KiB left, or what the C library keeps of freed memory, a thread is started on the stack of one that has
    ended, and dies before it has begun.
    """
    # with some KiB anything before the thread may be what finds no memory; with a whole heap only the thread lacks it
    message = "no memory to begin a thread" if left == "heap" else None
    with pytest.raises(MemoryError, match=message):
        in_new_process(write_starved, tmp_path / "file", left)


def write_starved(file: Path, left: int | str) -> None:
    """Writes tensors with so many KiB of memory, or with all of the heap but nothing from the system."""
    signal.alarm(30)
    tensors = {str(number): torch.randn(30, 16) for number in range(20)}
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    keep_freed_memory()
    with memory_cap(0):
        kept = hoard(MIB // 16, 1024)
        if isinstance(left, int):
            del kept[-left:]
        else:
            kept.clear()
        try:
            write_tensors(file, tensors)
        finally:
            kept.clear()


# ---------------------------------------------------------------- more than fits


ROWS, LABELS = 3_000, 1_305_265
STATIC = [Layer("test", {"encoder": "static"})]


def test_a_million_labels_need_nothing_dense(account: Account) -> None:
    """faults 37 and 38: rows x labels is 3.9 billion: as single bits it would be 490 MB"""
    found = in_new_process(with_a_million_labels)
    assert found["P@1"] == 100.0
    assert found["pool"] > 1000
    assert found["best"] == found["expected"]
    account.did(f"metrics, propensity, search, pools and a plan for {LABELS:,} labels, 300 MiB allowed (RLIMIT_AS)")
    account.saw(f"all done; {ROWS:,} rows x labels are {ROWS * LABELS:,} pairs, P@1 {found['P@1']:.0f}")


def with_a_million_labels() -> dict[str, Any]:
    """Everything that could take memory of rows x labels or labels x labels."""
    random = np.random.default_rng(0)
    pairs = np.sort(random.integers(LABELS, size=(ROWS, 4), dtype=np.int32), axis=1)
    pairs[:, 1:][pairs[:, 1:] == pairs[:, :-1]] = 0
    pairs.sort(axis=1)
    train = csr_array((np.ones(pairs.size, np.float32), pairs.ravel(), np.arange(0, pairs.size + 1, 4)), (ROWS, LABELS))
    train.sum_duplicates()
    queries, vectors = (random.standard_normal((count, 4), dtype=np.float32) for count in (64, LABELS))
    topk = np.stack([pairs[:, 0], np.full(ROWS, LABELS - 1), np.full(ROWS, -1)], axis=1)
    plan = partial(make_plan, "unidec", "lf-amazontitles-1.3m", STATIC, cpu_target())
    plan()  # imports are not what is measured
    with memory_cap(300 * MIB):
        weights = metrics.inverse_propensity(train, 0.6, 2.6)
        scores = metrics.evaluate(topk, train, weights, (1, 3))
        metrics.contributions(topk, train, train, (1,))
        found = search(queries, vectors, 10, train[:64])
        picker = LabelPicker(train, None, beta=2, eta=0)
        pool = picker.pick(np.arange(0, ROWS, 3), stream(0, "positives", 1), stream(0, "negatives", 1))
        assert plan().fits is not None
    expected = (vectors @ queries[5]).astype(np.float64)
    expected[train[[5]].indices] = -np.inf
    best = np.argsort(-expected, kind="stable")[:10].tolist()
    return {"P@1": scores["P@1"], "best": found.ids[5].tolist(), "expected": best, "pool": len(pool.labels)}


def test_a_plan_allocates_nothing(account: Account) -> None:
    """fault 32: what needs hundreds of gigabytes is judged in a process that cannot have 1 GiB more"""
    million, ten_million = in_new_process(planned_gib, (1_300_000, 10_000_000))
    assert million > 4
    assert ten_million > 30
    account.did("1.3 and 10 million labels planned on a CPU in a process that may have 1 GiB more (RLIMIT_AS)")
    account.saw(f"found to need {million:.0f} and {ten_million:.0f} GiB, which nobody allocated")


def planned_gib(counts: tuple[int, ...]) -> list[float]:
    """What trainings with so many labels are planned to need."""
    make_plan("unidec", "lf-pydocstitles", STATIC, cpu_target()).fits  # noqa: B018  imports are not what is measured
    with memory_cap(1024 * MIB):
        datasets = [f"synthetic:train=100000,labels={labels}" for labels in counts]
        return [make_plan("unidec", each, STATIC, cpu_target()).device_bytes / 2**30 for each in datasets]


def test_a_column_of_more_than_two_billion_tokens(tmp_path: Path, account: Account) -> None:
    """fault 38: a file with a hole, which takes no room on the disk, and a table without memory behind it"""
    count, last = 2**31 + 1000, np.arange(1, 8, dtype=np.uint16)
    with (tmp_path / "tokens.values.npy").open("wb") as stream:
        header = {"descr": "<u2", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.seek(2 * (count - len(last)), os.SEEK_CUR)
        stream.write(last.data)
    save_array(tmp_path / "tokens.offsets.npy", np.array([0, 5, count - 7, count - 4, count]))
    tokens = Ragged.load(tmp_path, "tokens")
    assert tokens.lengths.tolist() == [5, count - 12, 3, 4]
    assert [tokens[row].tolist() for row in (2, 3)] == [[1, 2, 3], [4, 5, 6, 7]]
    assert tokens.take(np.array([3, 0, 2])).values.tolist() == [4, 5, 6, 7, 0, 0, 0, 0, 0, 1, 2, 3]
    table = torch.empty((2**21, 1030), device="meta")
    (entry,) = json.loads(tensorfile._header(["table"], {"table": table})[8:]).values()
    assert entry["data_offsets"] == [0, 4 * 2**21 * 1030]
    account.did(f"a token column of {count:,} ids, and the checkpoint header of a table of {table.numel():,}")
    account.saw("rows behind element 2^31 read right, alone and taken together; byte offsets right")
