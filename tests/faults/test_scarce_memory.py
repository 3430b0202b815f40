"""Memory that really runs out, in processes whose share of it is capped."""

import json
import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from harness import metrics
from harness.batching.mined import MinedBatches
from harness.batching.pool import LabelPicker
from harness.data.ragged import Ragged
from harness.errors import out_of_memory
from harness.index import exact, search
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
from tests.support.interrupted_runs import assert_same, finished, taken_up
from tests.support.training_runs import config, in_child, only_run

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: dict[str, Any] = {"checkpoint": {"every_steps": 3, "background": "never"}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> tuple[RunRecord, bytes]:
    """The run that had memory, and the bytes of its model."""
    return finished(tmp_path_factory.mktemp("whole"), **SETTINGS)


def test_a_search_without_memory_for_its_block_halves_it(tmp_path: Path, account: Account) -> None:
    """fault 30: a block of 1,024 queries and 65,536 labels takes 256 MiB"""
    random = np.random.default_rng(0)
    queries, labels = (random.standard_normal((count, 8), dtype=np.float32) for count in (1024, 65_536))
    whole = search(queries, labels, 10)

    def work() -> None:
        sizes, shrink = [], exact._Scorer.shrink

        def counted(self: exact._Scorer) -> None:
            shrink(self)
            sizes.append(self.query_block)

        exact._Scorer.shrink = counted  # type: ignore[method-assign]
        with memory_cap(100 * MIB):
            found = search(queries, labels, 10)
        np.savez(tmp_path / "found.npz", ids=found.ids, scores=found.scores, sizes=sizes)

    assert in_child(work, tmp_path / "output") == 0, (tmp_path / "output").read_text()
    with np.load(tmp_path / "found.npz") as found:
        np.testing.assert_array_equal(found["ids"], whole.ids)
        np.testing.assert_array_equal(found["scores"], whole.scores)
        sizes = found["sizes"].tolist()
    assert sizes[0] == 512
    account.did("evaluation capped at 100 MiB (RLIMIT_AS), its block of scores takes 256 MiB")
    account.saw(f"blocks of {', '.join(map(str, sizes))} queries instead of 1,024; labels and scores identical")


def starve(owner: Any, name: str, call: int) -> None:
    """A training that from the given call of a function on can have no more memory at all."""
    original, calls = getattr(owner, name), []

    def starved(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) < call:
            return original(*arguments, **options)
        with memory_cap(0):
            kept = hoard()
            try:
                return original(*arguments, **options)
            finally:
                kept.clear()

    setattr(owner, name, starved)
    run(config(**SETTINGS), track="none")


@pytest.mark.parametrize("during", ["checkpoint", "mining"])
def test_a_training_without_memory_keeps_its_last_checkpoint(
    during: str, workspace: Path, tmp_path: Path, whole: tuple[RunRecord, bytes], account: Account
) -> None:
    """fault 31"""
    place = {"checkpoint": (checkpoint, "write_tensors", 4), "mining": (MinedBatches, "_hard_negatives", 2)}[during]
    code = in_child(lambda: starve(*place), tmp_path / "output")
    output = (tmp_path / "output").read_text()
    assert code == 1, output
    assert out_of_memory(RuntimeError(output.splitlines()[-1])) or "memory" in output.splitlines()[-1].lower(), output
    kept = sorted(path.name for path in (only_run(workspace) / "checkpoints").iterdir())
    assert all(name.startswith("step-") for name in kept)
    assert kept
    assert_same(taken_up(workspace, **SETTINGS), whole)
    account.did(f"all memory taken away during {during} (RLIMIT_AS)")
    account.saw(f"'{output.strip().splitlines()[-1][:50]}'; {kept[-1]} stayed; resumed, model equal bit for bit")


@pytest.mark.parametrize("left", [40, "heap"])
def test_a_file_of_tensors_without_memory_for_a_thread_fails_instead_of_waiting(
    left: int | str, tmp_path: Path
) -> None:
    """With some KiB left, or what the C library keeps of freed memory, a thread is started on the stack of one that has
    ended, and dies before it has begun.
    """
    tensors = {str(number): torch.randn(30, 16) for number in range(20)}
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()

    def work() -> None:
        signal.alarm(30)
        keep_freed_memory()
        with memory_cap(0):
            kept = hoard()
            if isinstance(left, int):
                del kept[-left:]
            else:
                kept.clear()
            try:
                write_tensors(tmp_path / "file", tensors)
            finally:
                kept.clear()

    code = in_child(work, tmp_path / "output")
    output = (tmp_path / "output").read_text()
    assert code == 1, output
    # with some KiB anything before the thread may be what finds no memory; with a whole heap only the thread lacks it
    assert "memory" in output.splitlines()[-1].lower(), output
    assert left != "heap" or "no memory to begin a thread" in output.splitlines()[-1], output


ROWS, LABELS = 3_000, 1_305_265


def test_a_million_labels_need_nothing_dense(tmp_path: Path, account: Account) -> None:
    """faults 37 and 38: rows x labels is 3.9 billion: as single bits it would be 490 MB"""
    random = np.random.default_rng(0)
    pairs = np.sort(random.integers(LABELS, size=(ROWS, 4), dtype=np.int32), axis=1)
    pairs[:, 1:][pairs[:, 1:] == pairs[:, :-1]] = 0
    pairs.sort(axis=1)
    train = csr_array((np.ones(pairs.size, np.float32), pairs.ravel(), np.arange(0, pairs.size + 1, 4)), (ROWS, LABELS))
    train.sum_duplicates()
    queries, vectors = (random.standard_normal((count, 4), dtype=np.float32) for count in (64, LABELS))
    topk = np.stack([pairs[:, 0], np.full(ROWS, LABELS - 1), np.full(ROWS, -1)], axis=1)

    def work() -> None:
        with memory_cap(300 * MIB):
            weights = metrics.inverse_propensity(train, 0.6, 2.6)
            scores = metrics.evaluate(topk, train, weights, (1, 3))
            shares = metrics.contributions(topk, train, train, (1,))
            found = search(queries, vectors, 10, train[:64])
            picker = LabelPicker(train, None, beta=2, eta=0)
            pool = picker.pick(np.arange(0, ROWS, 3), stream(0, "positives", 1), stream(0, "negatives", 1))
            plan = make_plan("unidec", "lf-amazontitles-1.3m", [], cpu_target())
        metadata = {"scores": scores, "best": found.ids[5].tolist(), "pool": len(pool.labels), "shares": len(shares)}
        (tmp_path / "facts.json").write_text(json.dumps({**metadata, "fits": plan.fits is not None}))

    assert in_child(work, tmp_path / "output") == 0, (tmp_path / "output").read_text()[-2000:]
    metadata = json.loads((tmp_path / "facts.json").read_text())
    assert metadata["scores"]["P@1"] == 100.0
    scores = (vectors @ queries[5]).astype(np.float64)
    scores[train[[5]].indices] = -np.inf
    assert metadata["best"] == np.argsort(-scores, kind="stable")[:10].tolist()
    assert metadata["pool"] > 1000
    account.did(f"metrics, propensity, search, pools and a plan for {LABELS:,} labels, 300 MiB allowed (RLIMIT_AS)")
    account.saw(f"all done; {ROWS:,} rows x labels are {ROWS * LABELS:,} pairs, P@1 {metadata['scores']['P@1']:.0f}")


def test_a_plan_allocates_nothing(tmp_path: Path, account: Account) -> None:
    """fault 32: what needs hundreds of gigabytes is judged in a process that cannot have 1 GiB more"""

    def work() -> None:
        layers, needs = [Layer("test", {"encoder": "static"})], {}
        make_plan("unidec", "lf-pydocstitles", layers, cpu_target()).fits  # noqa: B018  imports are not what is measured
        with memory_cap(1024 * MIB):
            for labels in (1_300_000, 10_000_000):
                dataset = f"synthetic:train=100000,labels={labels}"
                needs[labels] = make_plan("unidec", dataset, layers, cpu_target()).device_bytes / 2**30
        (tmp_path / "needs.json").write_text(json.dumps(needs))

    assert in_child(work, tmp_path / "output") == 0, (tmp_path / "output").read_text()[-2000:]
    needs = json.loads((tmp_path / "needs.json").read_text())
    assert needs["1300000"] > 4
    assert needs["10000000"] > 30
    account.did("1.3 and 10 million labels planned on a CPU in a process that may have 1 GiB more (RLIMIT_AS)")
    account.saw(f"found to need {needs['1300000']:.0f} and {needs['10000000']:.0f} GiB, which nobody allocated")


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


MIB = 2**20


@contextmanager
def memory_cap(more: int) -> Iterator[None]:
    """Lets this process have so many bytes more than it has now; whatever asks for more is refused by the system."""
    kept = _given_back()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        del kept


def _mapped() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _given_back() -> list[bytes]:
    """What earlier work has given back and the allocator holds: it could be had again without asking the system."""
    taken, mapped = [], _mapped()
    for size in (16 * MIB, MIB):
        while _mapped() == mapped:
            taken.append(bytes(size))
        taken.pop()
        mapped = _mapped()
    return taken


def hoard() -> list[bytes]:
    """All memory that a capped process can still get, down to the last kibibyte."""
    taken = []
    for size in (MIB, MIB // 16, 1024):
        try:
            while True:
                taken.append(bytes(size))
        except MemoryError:
            continue
    return taken
