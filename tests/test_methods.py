"""The contract of a method: every registered one, presets included, keeps all of it on the same planted data.

It learns, gives the same result for the same seed, goes on after a kill as if nothing had happened, never returns a
filter pair, copes with a label that no train row has, and its record has the same form as any other's.
"""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.config import Layer, RunConfig
from harness.data import load
from harness.method import methods
from harness.record import RunRecord
from harness.resume import find_earlier
from harness.run import resolve_config, run
from harness.validate import check_method
from tests.planted import UNSEEN, write_dataset, write_teacher
from tests.training_runs import in_child, only_run

RATES = {"lr_encoder": 0.05}
MINED: dict[str, Any] = {"batch_size": 48, "epochs": 12, "random_epochs": 2, "refresh_epochs": 3, **RATES}
HEADS: dict[str, Any] = {**MINED, "lr_heads": 5e-3}
UNIFIED: dict[str, Any] = {**HEADS, "lr_classifier": 0.02}
CONTRACT: dict[str, dict[str, Any]] = {
    "ance": MINED,
    "depsl": HEADS,
    "depsl-v1": HEADS,
    "dexml": {"batch_size": 48, "epochs": 12, "grad_cache_size": 16, **RATES},
    "dexml-hnm": MINED,
    "dexml-inbatch": MINED,
    "dexml-topk": {"batch_size": 48, "epochs": 12, "grad_cache_size": 16, **RATES},
    "dpr": MINED,
    "ngame": {"batch_size": 48, "epochs": 12, "classifier_batch_size": 48, "classifier_epochs": 6, **RATES},
    "parabel": {},
    "renee": {"batch_size": 48, "epochs": 12, "label_block": 16, "warm_epochs": 3, "warm_batch_size": 48, **RATES},
    "tfidf-knn": {},
    "unidec": UNIFIED,
    "unidec-thesis": UNIFIED,
    "unidec-v1": UNIFIED,
    "zeroshot": {},
}
"""Settings under which a method learns the planted signal in a second or two."""
LEARNING = sorted(set(CONTRACT) - {"zeroshot"})
IN_STEPS = sorted(set(LEARNING) - {"parabel", "tfidf-knn"})
NOT_BIT_FOR_BIT = {"parabel"}
"""Trained by a library that takes no seed."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the dataset `data` and of the encoder `teacher`."""
    folder = tmp_path_factory.mktemp("planted")
    write_dataset(folder / "data")
    write_teacher(folder / "teacher")
    return folder


@pytest.fixture(scope="module")
def finished() -> dict[str, tuple[RunRecord, Path]]:
    """Finished runs by method, made when first asked for."""
    return {}


def config(planted: Path, method: str, **values: Any) -> RunConfig:
    encoder = {"encoder": "static", "encoder_options": {"teacher": str(planted / "teacher"), "dim": 32}}
    common = {**encoder, "search": {"k": 20}, "checkpoint": {"min_seconds": 0.0, "every_steps": 7}}
    layers = [Layer("contract", {**common, **CONTRACT[method]}), Layer("test", values)]
    return resolve_config(method, f"{planted / 'data'}/", layers)[0]


def finished_run(planted: Path, finished: dict[str, tuple[RunRecord, Path]], method: str) -> tuple[RunRecord, Path]:
    """The run of a method that several tests look at, in a workspace of its own."""
    if method not in finished:
        home = planted / "homes" / method
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HARNESS_HOME", str(home))
            finished[method] = run(config(planted, method), track="none"), only_run(home)
    return finished[method]


def test_every_registered_method_keeps_the_contract() -> None:
    """A new method or preset is tested as soon as it has settings here; without them this test fails."""
    assert set(CONTRACT) == set(methods())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", LEARNING)
def test_it_learns_the_planted_signal(method: str, planted: Path, finished: dict[str, tuple[RunRecord, Path]]) -> None:
    record, _ = finished_run(planted, finished, method)
    frozen, _ = finished_run(planted, finished, "zeroshot")
    assert frozen.metrics["P@1"] < 15  # nothing can be known without training
    assert record.metrics["P@1"] > 60


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", sorted(CONTRACT))
def test_its_record_has_the_form_of_every_record(
    method: str, planted: Path, finished: dict[str, tuple[RunRecord, Path]]
) -> None:
    record, folder = finished_run(planted, finished, method)
    frozen, _ = finished_run(planted, finished, "zeroshot")
    assert record.status == "finished"
    assert list(record.metrics) == list(frozen.metrics)
    assert [part["bin"] for part in record.contributions] == [part["bin"] for part in frozen.contributions]
    assert all(list(view) == list(record.metrics) for view in record.views.values())
    assert not record.views or next(iter(record.views.values())) == record.metrics
    assert set(record.config) == set(frozen.config)
    if method in LEARNING:
        assert record.training["seconds"] > 0
        assert (folder / "model" / "manifest.json").exists()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", sorted(CONTRACT))
def test_it_never_returns_a_filter_pair_and_copes_with_an_unseen_label(
    method: str, planted: Path, finished: dict[str, tuple[RunRecord, Path]]
) -> None:
    _, folder = finished_run(planted, finished, method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(folder.parents[1]))
        dataset = load(f"{planted / 'data'}/")
    assert dataset.train.sum(axis=0)[UNSEEN] == 0
    ids = np.load(folder / "ids.npy", allow_pickle=False)
    assert ids.shape == (dataset.test.shape[0], 20)
    assert (ids[:, :5] >= 0).all()
    masked = dataset.test_filter.toarray().astype(bool)
    assert masked.any(axis=1).all()
    for row, found in enumerate(ids):
        assert not masked[row, found[found >= 0]].any()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", sorted(set(CONTRACT) - NOT_BIT_FOR_BIT))
def test_the_same_seed_gives_the_same_bits(
    method: str, planted: Path, finished: dict[str, tuple[RunRecord, Path]], workspace: Path
) -> None:
    record, folder = finished_run(planted, finished, method)
    again = run(config(planted, method), track="none")
    assert again.metrics == record.metrics
    assert again.views == record.views
    for name in ("ids.npy", "scores.npy"):
        assert (only_run(workspace) / name).read_bytes() == (folder / name).read_bytes()


def killed_at(planted: Path, method: str, step: int) -> None:
    """A run that is killed right after a step, or, if it has no steps, while it fits."""
    from harness.train.loop import Training

    count = Training._count

    def counted(self: Training, *arguments: Any) -> None:
        count(self, *arguments)
        if self.position.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Training._count = counted  # type: ignore[method-assign]
    run(config(planted, method), track="none")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("method", IN_STEPS)
def test_killed_in_any_stage_it_goes_on_as_if_nothing_had_happened(
    method: str,
    planted: Path,
    finished: dict[str, tuple[RunRecord, Path]],
    workspace: Path,
    tmp_path: Path,
) -> None:
    """fault 1"""
    record, folder = finished_run(planted, finished, method)
    stages = len(record.training["stages"])
    for part in range(stages):
        step = (2 * part + 1) * record.training["steps"] // (2 * stages)
        home = tmp_path / f"killed-in-{part}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HARNESS_HOME", str(home))
            assert in_child(lambda step=step: killed_at(planted, method, step), tmp_path / "said") == -signal.SIGKILL
            resumed = run(config(planted, method), track="none", earlier=find_earlier(only_run(home).name))
        assert resumed.metrics == record.metrics
        model = Path("model") / "model.safetensors"
        assert (only_run(home) / model).read_bytes() == (folder / model).read_bytes()


@pytest.mark.parametrize("method", sorted(CONTRACT))
def test_its_yaml_documents_every_knob(method: str) -> None:
    check_method(method)
    path = Path(__file__).parents[1] / "methods" / f"{method}.yaml"
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# ")
    summary = next(line for line in lines if line.startswith("summary:"))
    assert 10 < len(summary) < 110
