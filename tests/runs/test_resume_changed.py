"""A run that is resumed where something has changed: its data, who makes its batches, how many processes there are."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from harness.data.sources.jsonl import import_folder
from harness.errors import UserError
from harness.run import run
from harness.runs.record import RunRecord
from harness.runs.resume import find_earlier
from harness.train import prefetch
from tests.faults.accounts import Account
from tests.support.interrupted_runs import assert_same, kill_at_step, steps_done, taken_up
from tests.support.training_runs import STEPS, config, in_child, only_run

SAVING: dict[str, Any] = {"min_seconds": 1000.0, "every_steps": 3, "background": "never"}
"""A kill after step 7 then finds step 6 on disk; written beside the training, it may not be there yet."""


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def texts(folder: Path, changed: str = "") -> Path:
    """A dataset of 40 train rows and 6 labels; `changed` is the text of its last row."""
    rows = [{"text": f"thing {n} of kind {n % 6}", "labels": [str(n % 6)]} for n in range(40)]
    rows[-1]["text"] = changed or rows[-1]["text"]
    labels = [{"id": str(n), "text": f"kind {n}"} for n in range(6)]
    folder.mkdir(exist_ok=True)
    for name, lines in (("train", rows), ("test", rows[:6]), ("labels", labels)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_other_data_under_the_same_name_is_refused(workspace: Path, tmp_path: Path, account: Account) -> None:
    """fault 7: one letter of one text"""
    settings: dict[str, Any] = {"dataset": "mine", "batch_size": 8, "checkpoint": {"min_seconds": 0.0}}
    import_folder(texts(tmp_path / "texts"), "mine")
    in_child(lambda: kill_at_step(7, **settings), tmp_path / "said")
    folder = only_run(workspace)
    before = contents(folder)
    import_folder(texts(tmp_path / "texts", "thing 39 of kind 4"), "mine", overwrite=True)
    with pytest.raises(UserError) as refused:
        run(config(**settings), track="none", earlier=find_earlier(folder.name))
    first, *differing = str(refused.value).splitlines()
    assert "cannot go on with other settings" in first
    fields = [line.partition(":")[0].strip() for line in differing]
    assert fields == ["dataset.digest"]
    assert " -> " in differing[0]
    assert contents(folder) == before
    import_folder(texts(tmp_path / "texts"), "mine", overwrite=True)
    assert taken_up(workspace, **settings)[0].status == "finished"
    account.did("one letter of one train text changed under the same dataset name, then the run taken up")
    account.saw(f"refused, naming {fields[0]} before and after, nothing changed; with the old text it went on")


def in_the_step_itself(make: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
    """Batches made when they are wanted, as with no worker at all."""
    yield from map(make, items)


def test_batches_are_the_same_whoever_makes_them(
    workspace: Path,
    tmp_path: Path,
    whole_and_steps: tuple[Any, dict[int, NDArray[np.int64]]],
    monkeypatch: pytest.MonkeyPatch,
    account: Account,
) -> None:
    """fault 9: there are no loader processes to count; one thread makes the next batch, and torch's threads cluster"""
    threads = torch.get_num_threads()
    in_child(lambda: kill_at_step(7, checkpoint=SAVING), tmp_path / "said")
    monkeypatch.setattr(prefetch, "made_ahead", in_the_step_itself)
    torch.set_num_threads(3)
    try:
        with steps_done() as steps:
            taken_up(workspace)
    finally:
        torch.set_num_threads(threads)
    assert list(steps) == list(range(7, STEPS + 1))
    assert all(np.array_equal(rows, whole_and_steps[1][step]) for step, rows in steps.items())
    with pytest.raises(UserError, match="num_workers"):
        config(num_workers=4)
    account.did("batches made in a thread, 1 torch thread; killed, then made in the step itself, 3 torch threads")
    account.saw(f"rows of steps {min(steps)} to {max(steps)} in the order of one go; a setting num_workers is unknown")


def test_ranks_of_a_launcher_cannot_take_up_a_run(
    interrupted: Path,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: tuple[RunRecord, bytes],
    account: Account,
) -> None:
    """fault 10: a world of one is the only one there is, so nothing has to be sharded anew"""
    before = contents(interrupted)
    with monkeypatch.context() as launched:
        launched.setenv("WORLD_SIZE", "2")
        launched.setenv("RANK", "1")
        with pytest.raises(UserError, match="WORLD_SIZE is 2, but a run is one process") as refused:
            taken_up(workspace)
    assert contents(interrupted) == before
    assert_same(taken_up(workspace), whole)
    account.did("a killed run taken up as rank 1 of WORLD_SIZE=2, then without a launcher")
    account.saw(f"'{str(refused.value).partition(';')[0]}', not a byte changed; alone it went on to the same bits")
