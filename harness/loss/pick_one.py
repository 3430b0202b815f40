"""Pick-one-label: each query looks at one of its positives in a step (the sampled decoupled softmax of DEXML).

Query i draws d_i from its positives in the pool, label p with probability y_ip / sum_p y_ip (y = the targets, or 1).
The other positives are in no denominator. With c_i over the negatives, and the mean over the queries with a positive:

    loss = mean_i log(1 + e^(c_i - s_i,d_i)),       E[loss] = decoupled-softmax.

So this is decoupled-softmax with q_ip = [p = d_i]. From the labels, each label draws one of its queries.
"""

from functools import partial

import torch
from torch import Tensor

from harness.loss.closed_form import pair_targets, positive_pairs
from harness.loss.drawing import draw_one
from harness.loss.softmax import softmax_loss


class PickOneLabel:
    """The loss above; needs every positive of the batch that is in the pool to be marked."""

    def __call__(
        self,
        scores: Tensor,
        positive: Tensor,
        *,
        ignored: Tensor | None = None,
        target: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss from queries to labels.

        Args:
            scores: [B, P].
            positive: [B, P], bool.
            ignored: [B, P], bool, or None.
            target: [B, P], floating point, proportional to the chance of a positive; None = all alike.
            generator: On the CPU, gives B values; None = torch's global one.
        """
        return self.two_way(scores, positive, 1.0, ignored=ignored, target=target, generator=generator)

    def two_way(
        self,
        scores: Tensor,
        positive: Tensor,
        weight: float,
        *,
        ignored: Tensor | None = None,
        target: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss in both directions, matrices [B, P]; takes B values for the queries, then P for the labels."""
        pairs = positive_pairs(scores, positive, ignored)
        shares = partial(_shares, pair_targets(scores, pairs, target), generator)
        return softmax_loss(scores, pairs, ignored, weight, shares, decoupled=True)


def _shares(
    targets: Tensor | None, generator: torch.Generator | None, anchor: Tensor, count: Tensor, each: Tensor
) -> Tensor:
    return each * draw_one(anchor, len(count), targets, generator)


pick_one_label = PickOneLabel()
