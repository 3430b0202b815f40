"""Losses: a matrix of scores and a mask of positives in, one number out.

    scores [B, P] (already multiplied by the scale), positive [B, P]  ->  loss []

`get` finds a loss by name, `two_way` adds the same loss seen from the labels. A loss is any function with the signature
of `Loss`; one that can share work between both directions has a method `two_way(scores, positive, weight, *, ignored,
target)` as well. Nothing here imports torch until a loss is asked for.
"""

from typing import TYPE_CHECKING, Any, Protocol

from harness.errors import UserError
from harness.settings.catalogue import LOSSES

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LOSSES", "Loss", "get", "two_way"]


class Loss(Protocol):
    """Signature of a loss; every entry of `LOSSES` has it.

    An entry that is ignored is neither a positive nor a negative: it has no influence and no gradient, even where it is
    marked as positive or its score is not finite. A target says how much a positive is one; it is read at the positives
    alone, and each loss says beside its formula what it does with it. A target of 1 is the same as none.
    """

    def __call__(
        self,
        scores: "Tensor",
        positive: "Tensor",
        *,
        ignored: "Tensor | None" = None,
        target: "Tensor | None" = None,
        **options: Any,
    ) -> "Tensor":
        """Return the loss of a batch, a scalar of type float32 or wider.

        Args:
            scores: Scores multiplied by the scale (1 / temperature), [B, P], floating point.
            positive: Whether label p is a label of query i, [B, P], bool.
            ignored: Pairs that do not count, such as filter pairs, [B, P], bool; None = no pairs.
            target: Targets, in (0, 1] where `positive`, [B, P], floating point; None = 1 everywhere.
            options: Options of this loss alone, for example `reduction` of bce.
        """
        ...


def get(name: str) -> Loss:
    """Return the loss of that name; `LOSSES` lists them."""
    loss: Loss = LOSSES.get(name)
    return loss


def two_way(
    loss: Loss,
    scores: "Tensor",
    positive: "Tensor",
    weight: float,
    ignored: "Tensor | None" = None,
    *,
    target: "Tensor | None" = None,
    **options: Any,
) -> "Tensor":
    """Return the loss in both directions: weight * loss(scores) + (1 - weight) * loss(transposed scores).

    Labels that are a positive of no query of the batch take part in the first term only: they are not rows of the
    transposed matrix. A direction of weight zero is not computed. A loss that draws does so for each direction.

    Args:
        loss: A loss, as `get` returns it.
        scores: Scores, [B, P].
        positive: Positives, [B, P], bool.
        weight: Weight of the direction from queries to labels, between 0 and 1.
        ignored: Pairs that do not count, [B, P], bool, or None.
        target: Targets, [B, P], floating point, or None; a loss without targets works as long as this is None.
        options: Options of the loss.
    """
    if not 0 <= weight <= 1:
        raise UserError(f"the weight of the direction from queries to labels must be between 0 and 1, not {weight}")
    if target is not None:
        options["target"] = target
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
    wanted = (positive if ignored is None else positive & ~ignored).any(0).nonzero().squeeze(1)

    def turned(matrix: "Tensor") -> "Tensor":
        return matrix.T.index_select(0, wanted)  # several times faster than a mask, forth and back

    if "target" in options:
        options = {**options, "target": turned(options["target"])}
    return loss(turned(scores), turned(positive), ignored=None if ignored is None else turned(ignored), **options)
