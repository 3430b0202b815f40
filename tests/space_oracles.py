"""Random label spaces, and losses over all labels by their definitions, one query and one pair at a time."""

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from harness.batching import LabelSpace
from harness.data.ragged import Ragged


def texts(count: int, seed: int) -> Ragged:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 9, count)
    return Ragged(generator.integers(4, 256, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)]))


def random_space(
    rows: int, labels: int, seed: int, *, soft: bool = False, share: float = 0.1, drawn: float = 0.6
) -> LabelSpace:
    """Some positives, some of them drawn, some filter pairs."""
    generator = np.random.default_rng(seed)
    chance = generator.random((labels, rows))
    label, query = np.nonzero(chance < share)
    ignored_label, ignored_query = np.nonzero(chance > 1 - share)
    target = generator.uniform(0.1, 1, len(label)).astype(np.float32) if soft else np.ones(len(label), np.float32)
    return LabelSpace(
        rows, labels, query, label, target, generator.random(len(label)) < drawn, ignored_query, ignored_label
    )


def masks(space: LabelSpace) -> tuple[Tensor, Tensor, Tensor]:
    """Targets of drawn positives, all positives, and ignored pairs, [B, L]."""
    target, positive, ignored = (torch.zeros(space.rows, space.size, dtype=torch.float64) for _ in range(3))
    target[space.query[space.drawn], space.label[space.drawn]] = torch.from_numpy(space.target[space.drawn]).double()
    positive[space.query, space.label] = 1
    ignored[space.ignored_query, space.ignored_label] = 1
    return target, positive.bool(), ignored.bool()


def softmax_by_definition(scores: Tensor, space: LabelSpace) -> Tensor:
    """One query and one pair at a time."""
    losses = []
    for s, target, positive, ignored in zip(scores, *masks(space), strict=True):
        if target.any():
            against = s[~positive & ~ignored]
            pairs = [
                weight * (torch.logsumexp(torch.cat([x[None], against]), 0) - x)
                for x, weight in zip(s[target > 0], target[target > 0] / target.sum(), strict=True)
            ]
            losses.append(torch.stack(pairs).sum())
    return torch.stack(losses).mean() if losses else scores.sum() * 0


def topk_by_definition(scores: Tensor, space: LabelSpace, k: int) -> Tensor:
    """The threshold by Brent's method; one Newton step from the solution carries its derivative."""
    losses = []
    for s, target, positive, ignored in zip(scores, *masks(space), strict=True):
        if not target.any():
            continue
        passing = s[~ignored & (~positive | (target > 0))]
        if len(passing) <= k:
            losses.append(s.sum() * 0)
            continue
        values = passing.detach().double().sort(descending=True).values
        width = float(values.max() - values.min()) + 50

        def excess(t: float, values: Tensor = values) -> float:
            # sum - k, without the cancellation: in a wide gap both sides are far below float64's 1e-16
            return float(torch.sigmoid(values[k:] + t).sum() - torch.sigmoid(-(values[:k] + t)).sum())

        middle = -float(values.median())
        root = torch.tensor(brentq(excess, middle - width, middle + width, xtol=1e-13), dtype=s.dtype)
        z = torch.sigmoid(passing + root)
        threshold = root - (z.sum() - k - (z.sum() - k).detach()) / (z * (1 - z)).sum().detach()
        weight = target[target > 0].to(s.dtype) / target.sum().to(s.dtype)
        losses.append((weight * nn.functional.softplus(-(s[target > 0] + threshold))).sum())
    return torch.stack(losses).mean() if losses else scores.sum() * 0
