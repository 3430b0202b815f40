"""Losses: a matrix of scores and a mask of positives in, one number out.

    scores [B, P] (already multiplied by the scale), positive [B, P]  ->  loss []

`get` finds a loss by name, `two_way` adds the same loss seen from the labels. A loss is any function with the signature
of `Loss`; one that can share work between both directions has a method `two_way(scores, positive, weight, *, ignored)`
as well. Nothing here imports torch until a loss is asked for.
"""

from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import UserError
from harness.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSSES", "Loss", "get", "two_way"]


class Loss(Protocol):
    """What the registry holds.

    An entry that is ignored is neither a positive nor a negative: it has no influence and no gradient, even where it is
    marked as positive or its score is not finite.
    """

    def __call__(
        self, scores: "Tensor", positive: "Tensor", *, ignored: "Tensor | None" = None, **options: Any
    ) -> "Tensor":
        """The loss of a batch, a scalar; float32 at least, whatever the type of the scores.

        Args:
            scores: [B, P], floating point, multiplied by the scale (1 / temperature).
            positive: [B, P], bool: label p is a label of query i.
            ignored: [B, P], bool, or None: pairs that must not be counted, such as filter pairs.
            options: of that loss alone, for example `reduction` of bce.
        """
        ...


LOSSES: Registry[Loss] = Registry("loss", group="xmc_harness.losses")
LOSSES.register(
    "supcon",
    "harness.loss.softmax:supcon",
    "softmax over the whole pool, averaged over the positives of a query",
)
LOSSES.register(
    "decoupled-softmax",
    "harness.loss.softmax:decoupled_softmax",
    "supcon without the other positives in the denominator",
)
LOSSES.register("pal", "harness.loss.softmax:pal", "supcon summed over the positives of a query instead of averaged")
LOSSES.register("bce", "harness.loss.binary:bce", "binary cross-entropy of every query-label pair of the pool")


def get(name: str) -> Loss:
    """The loss of that name; `LOSSES` lists them."""
    loss: Loss = LOSSES.get(name)
    return loss


def two_way(
    loss: Loss, scores: "Tensor", positive: "Tensor", weight: float, ignored: "Tensor | None" = None, **options: Any
) -> "Tensor":
    """The loss in both directions: weight * loss(scores) + (1 - weight) * loss(transposed scores).

    Labels that are a positive of no query of the batch take part in the first term only: they are no rows of the
    transposed matrix. A direction of weight zero is not computed.

    Args:
        loss: what `get` returns.
        scores: [B, P].
        positive: [B, P], bool.
        weight: of the direction from queries to labels, between 0 and 1.
        ignored: [B, P], bool, or None.
        options: of the loss.
    """
    if not 0 <= weight <= 1:
        raise UserError(f"the weight of the direction from queries to labels must be between 0 and 1, not {weight}")
    shared = getattr(loss, "two_way", None)
    if shared is not None:
        both: Tensor = shared(scores, positive, weight, ignored=ignored, **options)
        return both
    if weight == 1:
        return loss(scores, positive, ignored=ignored, **options)
    from_labels = _loss_from_labels(loss, scores, positive, ignored, options)
    if weight == 0:
        return from_labels
    return weight * loss(scores, positive, ignored=ignored, **options) + (1 - weight) * from_labels


def _loss_from_labels(
    loss: Loss, scores: "Tensor", positive: "Tensor", ignored: "Tensor | None", options: dict[str, Any]
) -> "Tensor":
    wanted = (positive if ignored is None else positive & ~ignored).any(0)
    return loss(
        scores[:, wanted].T,
        positive[:, wanted].T,
        ignored=None if ignored is None else ignored[:, wanted].T,
        **options,
    )
