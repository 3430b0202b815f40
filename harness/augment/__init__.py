"""Made rows: train rows put beside the dataset's own before a method is built, so that any method takes them.

    train [N, L], tokens of rows and labels  ->  Made(tokens [A], targets [A, L])  ->  Augmented, N + A rows

A kind of augmentation is a function with the signature of `Augmentation`. It is given the rows that are trained on and
no others, so that nothing made knows of held-out or test rows. Its random numbers are a function of the seed alone: a
resumed run makes the same rows again. What is measured about labels (propensities, head, torso and tail) is measured on
the dataset's own rows, never on these.

Of the kinds of the thesis (tables 1.2, 1.6 and 1.7) synonym replacement is left out: it needs a source of synonyms.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from harness.data.ragged import Ragged
from harness.errors import UserError, unknown_name
from harness.registry import Registry
from harness.repro import stream

if TYPE_CHECKING:
    from harness.config import AugmentSettings

__all__ = [
    "AUGMENTATIONS",
    "NONE",
    "Augmentation",
    "Augmented",
    "Frame",
    "Given",
    "Made",
    "augment",
    "check_name",
    "idle",
]

NONE = "none"
"""The name that stands for the train rows as they are."""

Frame = tuple[int, int]
"""How many special tokens every text has before and after its own, for example (1, 1) for [CLS] and [SEP]."""


@dataclass(frozen=True)
class Given:
    """What rows are made from."""

    train: csr_array
    """Positives, all 1, indices sorted and unique, [N, L]."""
    train_tokens: Ragged
    """[N]."""
    label_tokens: Ragged
    """[L]."""
    options: "AugmentSettings"
    """`keep` and `rows` are none of a kind's business."""
    generator: np.random.Generator
    """The only source of random numbers."""
    frame: Frame
    """Special tokens around every text."""


@dataclass(frozen=True)
class Made:
    """Rows that were made."""

    tokens: Ragged
    """[A], each in its frame of special tokens."""
    targets: csr_array
    """In (0, 1], float32, [A, L]."""
    sources: tuple[NDArray[np.int64], ...] = ()
    """Train rows whose text is in the made ones, [A] each: their filter pairs hold for the made row as well."""


class Augmentation(Protocol):
    """What the registry holds."""

    def __call__(self, given: Given) -> Made:
        """Makes rows."""
        ...


AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation", group="xmc_harness.augmentations")
_HEEDED: dict[str, set[str]] = {NONE: set()}
"""The options a kind of ours heeds."""


def _register(name: str, target: str, summary: str, *options: str) -> None:
    AUGMENTATIONS.register(name, f"harness.augment.{target}", summary)
    _HEEDED[name] = {*options, "keep", "rows"}


_register(
    "gandalf",
    "cooccurrence:gandalf",
    "label texts; target of label i for the text of j: share of the rows of j that have i, if above delta",
    *("delta", "labels", "order"),
)
_register(
    "glas",
    "cooccurrence:glas",
    "label texts; gandalf's target averaged over both directions, through a sigmoid",
    *("delta", "labels", "order"),
)
_register(
    "random-walk",
    "walk:random_walk",
    "label texts; gandalf's target estimated by random walks between rows and labels",
    *("delta", "labels", "order"),
)
_register("one-hot", "choice:one_hot", "label texts; each has itself as its only label", "labels", "order")
_register("mixup", "mixing:mixup", "two train rows mixed: some tokens of both, their labels in the same shares")
_register("label-mixup", "mixing:label_mixup", "a train row mixed with the text of one of its labels")


def check_name(name: str) -> None:
    """Refuses a name nobody registered; imports nothing."""
    if name != NONE and name not in AUGMENTATIONS:
        raise unknown_name(AUGMENTATIONS.kind, name, [NONE, *AUGMENTATIONS])


def idle(name: str, options: "AugmentSettings") -> list[str]:
    """One line for every option that is set to something else than its default and changes nothing."""
    fields = type(options).model_fields
    heeded = _HEEDED.get(name, set(fields))
    changed = [option for option in fields if getattr(options, option) != fields[option].default]
    unheeded = [option for option in changed if option not in heeded]
    lines = [f"augment_options.{option} has no effect with augment={name}" for option in unheeded]
    if "order" in changed and "order" in heeded and options.labels == 1:
        lines.append("augment_options.order has no effect while all labels become rows; set augment_options.labels")
    return lines


@dataclass(frozen=True)
class Augmented:
    """A train side with made rows, which come last."""

    train: csr_array
    """Targets in (0, 1], float32, [N + A, L]; 1 for every pair of the dataset."""
    filter: csr_array
    """Pairs that are neither positive nor negative, [N + A, L]; a made row has those of the rows it is made of."""
    tokens: Ragged
    """[N + A]."""
    made: int
    """How many of the rows were made."""
    soft: bool
    """Some target is less than 1."""

    def facts(self) -> dict[str, Any]:
        """Counts for the record."""
        rows = len(self.tokens)
        targets = int(self.train.indptr[-1] - self.train.indptr[rows - self.made])
        per_row = round(targets / self.made, 3) if self.made else 0.0
        return {"rows": rows, "made": self.made, "targets_per_made_row": per_row, "soft": self.soft}


def augment(
    name: str,
    train: csr_array,
    train_filter: csr_array,
    train_tokens: Ragged,
    label_tokens: Ragged,
    options: "AugmentSettings",
    *,
    seed: int,
    frame: Frame,
) -> Augmented:
    """Makes rows and puts them behind the given ones; a pure function of its arguments.

    Args:
        name: Of a kind; `AUGMENTATIONS` lists them.
        train: Positives [N, L]; every stored entry is a whole one, whatever its value.
        train_filter: Pairs that are neither positive nor negative, [N, L].
        train_tokens: [N].
        label_tokens: [L].
        options: See `AugmentSettings`.
        seed: Of the run.
        frame: Special tokens around every text.
    """
    check_name(name)
    if not len(label_tokens):
        raise UserError(f"there are no labels, so augment={name} has nothing to make rows for")
    train = whole_positives(train)
    make: Augmentation = AUGMENTATIONS.get(name)
    made = make(Given(train, train_tokens, label_tokens, options, stream(seed, "augment", 0), frame))
    _require_sound(name, made, train.shape[1])
    inherited = _inherited_filter(made, train_filter)
    if options.keep == "made":
        train, train_filter, tokens = made.targets, inherited, made.tokens
    else:
        train = vstack([train, made.targets], format="csr", dtype=np.float32)
        train_filter = vstack([train_filter, inherited], format="csr", dtype=np.float32)
        tokens = train_tokens.joined(made.tokens)
    count, total = len(made.tokens), len(tokens)
    if options.rows is not None:
        wanted = len(train_tokens) if options.rows == "train" else options.rows
        if wanted > total:
            raise UserError(f"augment_options.rows is {wanted:,}, but there are {total:,} rows to draw from")
        drawn = np.sort(stream(seed, "augment", 1).choice(total, wanted, replace=False))
        train, train_filter, tokens = train[drawn], train_filter[drawn], tokens.take(drawn)
        count = int((drawn >= total - count).sum())
    return Augmented(train, train_filter, tokens, count, bool((train.data != 1).any()))


def _inherited_filter(made: Made, train_filter: csr_array) -> csr_array:
    """The filter pairs of the rows that made rows are made of, [A, L]."""
    nothing = (np.zeros(0, np.float32), np.zeros(0, np.int32), np.zeros(len(made.tokens) + 1, np.int32))
    pairs = csr_array(nothing, shape=(len(made.tokens), train_filter.shape[1]))
    for rows in made.sources:
        pairs = pairs + whole_positives(train_filter[rows])
    return whole_positives(pairs)


def whole_positives(train: csr_array) -> csr_array:
    """The same pairs with 1 at each, indices sorted and unique; float32 [N, L]."""
    train = csr_array(train)
    if not train.has_canonical_format:
        train = train.copy()
        train.sum_duplicates()
    ones = np.ones(len(train.indices), np.float32)
    return csr_array((ones, train.indices, train.indptr), shape=train.shape)


def _require_sound(name: str, made: Made, labels: int) -> None:
    """A kind may come from another package, and a wrong target would spoil a training without any error."""
    targets = made.targets
    sound = targets.shape == (len(made.tokens), labels) and targets.dtype == np.float32
    if not sound or (targets.nnz and not (targets.data.min() > 0 and targets.data.max() <= 1)):
        raise UserError(
            f"augmentation {name!r} ({AUGMENTATIONS.origin(name)}) must make a row of targets in (0, 1], float32, for "
            f"each of its {len(made.tokens):,} texts; it made {targets.dtype} of shape {targets.shape}"
        )
