"""Whole trainings by the lazy optimiser, against the same with dense AdamW over the tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from harness.model.tables import RowTable
from harness.run import run
from harness.train import optim
from tests.support.training_runs import config

pytestmark = pytest.mark.usefixtures("one_thread")


class DenseTable:
    """torch's AdamW over a whole table, with what `Optimiser` asks of `LazyAdamW`; nothing ever lags behind."""

    rounds = False

    def __init__(
        self, table: RowTable, rates: list[float], weight_decay: float, betas: tuple[float, float], eps: float, _: int
    ) -> None:
        self.table, self.done, self._rates = table, 0, rates
        self._adam = torch.optim.AdamW([table.weight.requires_grad_()], 1.0, betas, eps, weight_decay)
        table.weight.requires_grad_(False)
        table.weight.grad = torch.zeros_like(table.weight)

    def update(self, rows: Tensor, gradient: Tensor, lr: float, weight_decay: float, seed: int = 0) -> None:
        self.table.weight.grad.index_add_(0, rows, gradient)

    def advance(self) -> None:
        self._adam.param_groups[0]["lr"] = self._rates[self.done]
        self._adam.step()
        self.table.weight.grad.zero_()
        self.done += 1

    def state(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())

    def attach(self) -> None: ...

    detach = settle = attach


@pytest.mark.parametrize("validated", [False, True])
def test_a_training_ends_where_dense_adamw_ends(
    validated: bool, bert_folder: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and Psi, mining, clipping, several epochs; the best weights too, where no scorer has read Psi whole."""
    settings: dict[str, Any] = {
        **{"encoder": "static", "encoder_options": {"teacher": str(bert_folder), "dim": 8}, "lr_encoder": 5e-3},
        **{"optimiser_tokens": "exact", "clip": 1.0, "epochs": 8},
    }
    if validated:
        settings |= {"scorer": "de", "validation": {"size": 0.2, "metric": "P@1"}}
    found = {}
    for name in ("lazy", "dense"):
        with monkeypatch.context() as patch:
            if name == "dense":
                patch.setattr(optim, "LazyAdamW", DenseTable)
                patch.setattr(
                    optim.Optimiser, "_lazy", lambda self: [one for some in self._sparse.values() for one in some]
                )
            record = run(config("unidec", **settings), track="none", out=tmp_path / name)
        found[name] = record, load_file(next((tmp_path / name).glob("*/model/model.safetensors")))
    (record, lazy), (other, dense) = found.values()
    assert record.metrics == pytest.approx(other.metrics, abs=0.01)
    assert lazy.keys() == dense.keys()
    for name, tensor in lazy.items():
        torch.testing.assert_close(
            tensor, dense[name], rtol=0, atol=5e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
