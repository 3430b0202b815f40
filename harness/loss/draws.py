"""Draws among the positives of every anchor, for losses that look at some of them in a step.

Pairs come as the anchor they belong to, [n]; a draw marks some of them. It takes as many random values as there are
anchors (times k), whatever the marks, so that two batches of one shape leave the generator in the same state. Values
come from the CPU, so that every device draws the same.
"""

import torch
from torch import Tensor


def draw_one(anchor: Tensor, anchors: int, targets: Tensor | None, generator: torch.Generator | None = None) -> Tensor:
    """Draw one pair of every anchor that has any; return whether each pair is drawn, [n] bool.

    With u uniform in [0, 1), the first pair is taken at which the running sum of the targets exceeds u times their sum.

    Args:
        anchor: Anchor of every pair, [n].
        anchors: How many anchors there are.
        targets: Target of each pair, to which its chance is proportional, [n]; None = equal chances.
        generator: Random generator on the CPU; None = torch's global one.
    """
    luck = torch.rand(anchors, dtype=torch.float64, generator=generator).to(anchor.device)
    order, first, count = _grouped(anchor, anchors)
    chances = torch.ones_like(order, dtype=torch.float64) if targets is None else targets.double()[order]
    running = torch.cat((chances.new_zeros(1), chances.cumsum(0)))
    begin, end = running[first], running[first + count]
    place = torch.searchsorted(running[1:], begin + luck * (end - begin), right=True)
    place = torch.clamp(place, first, first + count - 1)  # rounding may step over the last one
    return _marked(order, place[count > 0])


def draw_some(anchor: Tensor, anchors: int, k: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw up to k pairs of every anchor without replacement, all sets equally likely; return which, [n] bool.

    Floyd: draw number j = 0 .. k-1 takes one of the first n - k + j + 1 pairs of the n, or the last of these
    if that one is taken already.

    Args:
        anchor: Anchor of every pair, [n].
        anchors: How many anchors there are.
        k: Most pairs drawn per anchor.
        generator: Random generator on the CPU; None = torch's global one.
    """
    luck = torch.rand(anchors, k, dtype=torch.float64, generator=generator).to(anchor.device)
    order, first, count = _grouped(anchor, anchors)
    chosen = torch.full((anchors, k), -1, device=anchor.device)
    for draw in range(k):
        last = count - k + draw
        pick = (luck[:, draw] * (last + 1)).long()
        taken = (chosen == pick.unsqueeze(1)).any(1)
        chosen[:, draw] = torch.where(taken, last, pick)
    crowded = count > k
    place = (first.unsqueeze(1) + chosen)[crowded].flatten()
    return _marked(order, place) | ~crowded[anchor]


def _grouped(anchor: Tensor, anchors: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort pairs by anchor; return their order [n], each anchor's first position in it and its number of pairs [A]."""
    count = torch.bincount(anchor, minlength=anchors)
    return torch.argsort(anchor, stable=True), count.cumsum(0) - count, count


def _marked(order: Tensor, place: Tensor) -> Tensor:
    marks = torch.zeros_like(order, dtype=torch.bool)
    marks[order[place]] = True
    return marks
