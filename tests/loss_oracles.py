"""The definitions of the losses in plain Python, and the matrices they are tried on."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from harness.loss import Loss, get

Rows = list[list[float]]
Marks = list[list[bool]]


def log_sum_exp(values: list[float]) -> float:
    top = max(values, default=-math.inf)
    return top if math.isinf(top) else top + math.log(sum(math.exp(value - top) for value in values))


def softmax_oracle(scores: Rows, positive: Marks, ignored: Marks, *, decoupled: bool, averaged: bool) -> float:
    rows = []
    for row, mine, skipped in zip(scores, positive, ignored, strict=True):
        counted = [label for label in range(len(row)) if not skipped[label]]
        positives = [label for label in counted if mine[label]]
        total = 0.0
        for p in positives:
            rest = [label for label in counted if label == p or not (decoupled and mine[label])]
            total += log_sum_exp([row[label] for label in rest]) - row[p]
        if positives:
            rows.append(total / len(positives) if averaged else total)
    return sum(rows) / len(rows) if rows else 0.0


def bce_oracle(scores: Rows, positive: Marks, ignored: Marks, *, reduction: str) -> float:
    total, pairs = 0.0, 0
    for row, mine, skipped in zip(scores, positive, ignored, strict=True):
        for score, is_positive, is_ignored in zip(row, mine, skipped, strict=True):
            if not is_ignored:
                total += log_sum_exp([0.0, -score if is_positive else score])
                pairs += 1
    return total / max(1, pairs if reduction == "mean" else len(scores))


ORACLES: dict[tuple[str, str], Callable[[Rows, Marks, Marks], float]] = {
    ("supcon", ""): partial(softmax_oracle, decoupled=False, averaged=True),
    ("decoupled-softmax", ""): partial(softmax_oracle, decoupled=True, averaged=True),
    ("pal", ""): partial(softmax_oracle, decoupled=False, averaged=False),
    ("bce", ""): partial(bce_oracle, reduction="mean"),
    ("bce", "sum-labels"): partial(bce_oracle, reduction="sum-labels"),
}
SOFTMAX = ("supcon", "decoupled-softmax", "pal")


def made(name: str, reduction: str = "") -> Loss:
    """A loss with its options bound; the bound one has no shared two-way path, the unbound one has."""
    return partial(get(name), reduction=reduction) if reduction else get(name)


def definition(name: str, reduction: str, scores: Tensor, positive: Tensor, ignored: Tensor | None = None) -> float:
    ignored = torch.zeros_like(positive) if ignored is None else ignored
    return ORACLES[name, reduction](scores.double().tolist(), positive.tolist(), ignored.tolist())


def random_case(
    seed: int, rows: int = 7, labels: int = 9, scale: float = 3.0, density: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (float64), positives and ignored pairs, [rows, labels]."""
    draw = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(rows, labels, generator=draw, dtype=torch.float64)
    positive = torch.rand(rows, labels, generator=draw) < density
    return scores, positive, torch.rand(rows, labels, generator=draw) < 0.15


def spread(scores: Tensor) -> Tensor:
    """Rows and columns so far apart that no single shift serves all of them."""
    down = torch.linspace(-150, 150, len(scores), dtype=scores.dtype)
    across = torch.linspace(90, -90, scores.shape[1], dtype=scores.dtype)
    return scores + down[:, None] + across


def value_and_gradient(loss: Callable[[Tensor], Tensor], scores: Tensor) -> tuple[Tensor, Tensor]:
    leaf = scores.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad
