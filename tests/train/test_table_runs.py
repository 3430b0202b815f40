"""Runs whose classifier table stays in CPU memory or is stored in bfloat16: trained, resumed, read again, exported."""

import signal
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from harness.infer.export import export_run
from harness.infer.load import load_run
from harness.infer.predict import predict
from harness.run import resolve_config, run
from harness.settings.layers import Layer
from harness.settings.schema import RunConfig
from tests.support.interrupted_runs import assert_same, finished, kill_at_step, taken_up
from tests.support.training_runs import DATASET, SETTINGS, in_child, only_run

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = {"table_device": "host", "table_precision": "bfloat16"}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("unidec", {"epochs": 1}),
        ("ngame", {"epochs": 1, "classifier_epochs": 2, "classifier_batch_size": 60}),
        ("renee", {"epochs": 2, "warm_epochs": 0, "batch_size": 60}),
    ],
)
def test_runs_end_and_are_read_again(method: str, settings: dict[str, Any], workspace: Path, tmp_path: Path) -> None:
    """Trained, evaluated, loaded, asked, exported: the model has its table in bfloat16, an export in float32."""
    unused = {"random_epochs", "lr_heads"} if method != "unidec" else set()
    unused |= {"refresh_epochs"} if method == "renee" else set()
    wanted = small_config(method, unused, **settings)
    record = run(wanted, track="none")
    assert 0 <= record.metrics["P@1"] <= 100
    saved = safetensors.torch.load_file(only_run(workspace) / "model" / "model.safetensors")
    assert saved["classifier.table.weight"].dtype == torch.bfloat16
    assert saved["encoder.model.embeddings.word_embeddings.weight"].dtype == torch.float32
    trained = load_run(record.run_id)
    assert predict(trained, ["a text"], k=3)
    export_run(trained, "safetensors", tmp_path / "exported")
    exported = safetensors.torch.load_file(tmp_path / "exported" / "model.safetensors")
    assert torch.equal(exported["classifier.table.weight"], saved["classifier.table.weight"].float())


def small_config(method: str, unused: set[str], **settings: Any) -> RunConfig:
    small = {name: value for name, value in SETTINGS.items() if name not in unused}
    return resolve_config(method, DATASET, [Layer("small", small), Layer("test", {**STORED, **settings})])[0]


def test_a_killed_run_goes_on_with_the_same_bits(workspace: Path, tmp_path: Path) -> None:
    """fault 1, with a table in CPU memory and in bfloat16."""
    short = {"epochs": 2, **STORED}
    whole = finished(tmp_path / "whole", **short)
    saving = {"min_seconds": 0.0, "every_steps": 3}
    assert in_child(lambda: kill_at_step(7, checkpoint=saving, **short), tmp_path / "said") == -signal.SIGKILL
    assert_same(taken_up(workspace, **short), whole)


def test_where_the_table_is_changes_no_bit_of_a_run(workspace: Path, tmp_path: Path) -> None:
    home, host = (finished(tmp_path / name, epochs=1, table_device=name) for name in ("device", "host"))
    assert home[1] == host[1]
    assert home[0].scorers == host[0].scorers
