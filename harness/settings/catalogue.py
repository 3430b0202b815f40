"""Registries of losses, encoders and augmentations: the names that settings choose from, without importing the code.

`harness.loss` and `harness.augment` define the signature of such a function; a package outside this repository adds its
own through the entry point group named here.
"""

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from harness.errors import unknown_name
from harness.registry import Registry

if TYPE_CHECKING:
    from harness.augment import Augmentation
    from harness.loss import Loss
    from harness.model.encoders.encoder import Encoder

LOSSES: "Registry[Loss]" = Registry("loss", group="xmc_harness.losses")
for _name, _target, _summary in (
    ("supcon", "softmax:supcon", "softmax over the whole pool, averaged over the positives of a query"),
    ("decoupled-softmax", "softmax:decoupled_softmax", "supcon without the other positives in the denominator"),
    ("pal", "softmax:pal", "supcon summed over the positives of a query instead of averaged"),
    ("bce", "binary:bce", "binary cross-entropy of every query-label pair of the pool"),
    (
        *("pick-one-label", "softmax:pick_one_label"),
        "decoupled-softmax of one positive a query, drawn anew at every step",
    ),
    (
        *("triplet", "triplet:triplet"),
        "hinge between the hardest positives and the hardest negatives of a query; expects cosines",
    ),
    ("soft-topk", "topk:soft_topk", "log-probability that the positives of a query are among its k best labels"),
):
    LOSSES.register(_name, f"harness.loss.{_target}", _summary)

ENCODERS: "Registry[Encoder]" = Registry("encoder", group="xmc_harness.encoders")
for _name, _target, _summary in (
    ("static", "static:load_static", "bag of token vectors distilled from minilm; fast on a CPU"),
    ("minilm", "transformer:load_pretrained", "all-MiniLM-L6-v2, 384 dimensions, from the extra [minilm]"),
    ("distilbert", "transformer:load_pretrained", "distilbert-base-uncased, from the model hub"),
    (
        *("msmarco-distilbert", "transformer:load_pretrained"),
        "msmarco-distilbert-base-v4, from the model hub; the start of the papers' code",
    ),
    (
        *("astec", "astec:load_astec"),
        "Astec's bag with a residual layer, 256 dimensions, on the token vectors of static instead of FastText",
    ),
    (
        *("inceptionxml", "inception:load_inception"),
        "InceptionXML's convolutions, 480 dimensions, on the token vectors of static instead of GloVe",
    ),
    ("tiny", "transformer:load_tiny", "two random layers over bytes, for tests"),
):
    ENCODERS.register(_name, f"harness.model.encoders.{_target}", _summary)

NONE = "none"
"""Name of the augmentation that adds no rows."""

AUGMENTATIONS: "Registry[Augmentation]" = Registry("augmentation", group="xmc_harness.augmentations")
for _name, _target, _summary in (
    (
        *("gandalf", "label_texts:gandalf"),
        "label texts; target of label i for the text of j: share of the rows of j that have i, if above delta",
    ),
    (
        *("glas", "label_texts:glas"),
        "label texts; gandalf's target averaged over both directions, through a sigmoid",
    ),
    (
        *("random-walk", "walk:random_walk"),
        "label texts; gandalf's target estimated by random walks between rows and labels",
    ),
    ("one-hot", "label_texts:one_hot", "label texts; each has itself as its only label"),
    ("mixup", "mixup:mixup", "two train rows mixed: some tokens of both, their labels in the same shares"),
    ("label-mixup", "mixup:label_mixup", "a train row mixed with the text of one of its labels"),
):
    AUGMENTATIONS.register(_name, f"harness.augment.{_target}", _summary)


def _known_loss(name: str) -> str:
    if name not in LOSSES:
        raise ValueError(f"no such loss; known: {', '.join(LOSSES)}")
    return name


def _known_augmentation(name: str) -> str:
    if name != NONE and name not in AUGMENTATIONS:
        raise ValueError(str(unknown_name(AUGMENTATIONS.kind, name, [NONE, *AUGMENTATIONS])))
    return name


LossName = Annotated[str, AfterValidator(_known_loss)]
AugmentationName = Annotated[str, AfterValidator(_known_augmentation)]
