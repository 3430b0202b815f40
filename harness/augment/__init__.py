"""Augmented rows: train rows added to the dataset's own before a method is built, so that every method can use them.

    train [N, L], tokens of rows and labels  ->  AugmentedRows (tokens [A], targets [A, L])  ->  N + A train rows

A kind of augmentation is a function with the signature of `Augmentation`. It sees only the rows that are trained on, so
augmented rows know nothing of validation or test rows. Its random numbers depend on the seed alone: a resumed run makes
the same rows again. Statistics of labels (propensities, head, torso and tail) are measured on the dataset's own rows.

Of the kinds in the thesis (tables 1.2, 1.6 and 1.7) synonym replacement is left out: it needs a source of synonyms.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from harness.data.prepare import empty_pattern
from harness.data.ragged import Ragged
from harness.errors import UserError, unknown_name
from harness.seeds import stream
from harness.settings.catalogue import AUGMENTATIONS, NONE

if TYPE_CHECKING:
    from harness.settings.method import Inputs
    from harness.settings.schema import AugmentSettings, RunConfig

__all__ = [
    "AUGMENTATIONS",
    "NONE",
    "Augmentation",
    "AugmentedRows",
    "AugmentedTrain",
    "Frame",
    "Given",
    "augment",
    "check_name",
    "idle",
]

Frame = tuple[int, int]
"""How many special tokens every text has before and after its own, for example (1, 1) for [CLS] and [SEP]."""


@dataclass(frozen=True)
class Given:
    """Input of a kind of augmentation."""

    train: csr_array
    """Positives, all 1, indices sorted and unique, [N, L]."""
    train_tokens: Ragged
    """Tokens of the train rows, [N] texts."""
    label_tokens: Ragged
    """Tokens of the labels, [L] texts."""
    options: "AugmentSettings"
    """Settings; `keep` and `rows` are not for the kind to read."""
    generator: np.random.Generator
    """The only source of random numbers."""
    frame: Frame
    """Special tokens around every text."""


@dataclass(frozen=True)
class AugmentedRows:
    """Rows that a kind of augmentation made."""

    tokens: Ragged
    """Tokens of the augmented rows with special tokens, [A] texts."""
    targets: csr_array
    """Targets in (0, 1], float32, [A, L]."""
    sources: tuple[NDArray[np.int64], ...] = ()
    """Train rows whose text is part of each augmented row, [A] each: their filter pairs hold for it as well."""


class Augmentation(Protocol):
    """Signature of a kind of augmentation; every entry of `AUGMENTATIONS` has it."""

    def __call__(self, given: Given) -> AugmentedRows:
        """Make augmented rows."""
        ...


_ROWS = {"keep", "rows"}
_LABEL_TEXTS = {"labels", "order", *_ROWS}
_READ: dict[str, set[str]] = {
    NONE: set(),
    "gandalf": {"delta", *_LABEL_TEXTS},
    "glas": {"delta", *_LABEL_TEXTS},
    "random-walk": {"delta", *_LABEL_TEXTS},
    "one-hot": _LABEL_TEXTS,
    "mixup": _ROWS,
    "label-mixup": _ROWS,
}
"""Names of the options that each kind of augmentation of this package reads."""


def check_name(name: str) -> None:
    """Raise if no augmentation has this name; imports nothing."""
    if name != NONE and name not in AUGMENTATIONS:
        raise unknown_name(AUGMENTATIONS.kind, name, [NONE, *AUGMENTATIONS])


def idle(name: str, options: "AugmentSettings") -> list[str]:
    """Return one line for every option that differs from its default and has no effect."""
    fields = type(options).model_fields
    read = _READ.get(name, set(fields))
    changed = [option for option in fields if getattr(options, option) != fields[option].default]
    unread = [option for option in changed if option not in read]
    lines = [f"augment_options.{option} has no effect with augment={name}" for option in unread]
    if "order" in changed and "order" in read and options.labels == 1:
        lines.append("augment_options.order has no effect while all labels become rows; set augment_options.labels")
    return lines


@dataclass(frozen=True)
class AugmentedTrain:
    """Train rows, followed by augmented rows."""

    train: csr_array
    """Targets in (0, 1], float32, [N + A, L]; 1 for every pair of the dataset."""
    filter: csr_array
    """Pairs that are neither positive nor negative, [N + A, L]; an augmented row has those of its source rows."""
    tokens: Ragged
    """Tokens of all rows, [N + A] texts."""
    made: int
    """Number of augmented rows A."""
    soft: bool
    """Whether some target is less than 1."""

    def metadata(self) -> dict[str, Any]:
        """Return the counts of rows and targets for the record."""
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
) -> AugmentedTrain:
    """Make augmented rows and append them to the train rows; a pure function of its arguments.

    Args:
        name: One of `AUGMENTATIONS`.
        train: Positives [N, L]; every stored entry counts as 1.
        train_filter: Pairs that are neither positive nor negative, [N, L].
        train_tokens: Tokens of the train rows, [N] texts.
        label_tokens: Tokens of the labels, [L] texts.
        options: See `AugmentSettings`.
        seed: Seed of the run.
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
    return AugmentedTrain(train, train_filter, tokens, count, bool((train.data != 1).any()))


def _inherited_filter(made: AugmentedRows, train_filter: csr_array) -> csr_array:
    """Return the filter pairs of augmented rows, which are those of their source rows, [A, L]."""
    pairs = empty_pattern(len(made.tokens), train_filter.shape[1])
    for rows in made.sources:
        pairs = pairs + whole_positives(train_filter[rows])
    return whole_positives(pairs)


def whole_positives(train: csr_array) -> csr_array:
    """Return the stored pairs with the value 1, indices sorted and unique, float32 [N, L]."""
    train = csr_array(train)
    if not train.has_canonical_format:
        train = train.copy()
        train.sum_duplicates()
    ones = np.ones(len(train.indices), np.float32)
    return csr_array((ones, train.indices, train.indptr), shape=train.shape)


def _require_sound(name: str, made: AugmentedRows, labels: int) -> None:
    """Raise if the rows of a kind, perhaps of another package, are wrong; they would spoil training silently."""
    targets = made.targets
    sound = targets.shape == (len(made.tokens), labels) and targets.dtype == np.float32
    if not sound or (targets.nnz and not (targets.data.min() > 0 and targets.data.max() <= 1)):
        raise UserError(
            f"augmentation {name!r} ({AUGMENTATIONS.origin(name)}) must make a row of targets in (0, 1], float32, for "
            f"each of its {len(made.tokens):,} texts; it made {targets.dtype} of shape {targets.shape}"
        )


def with_augmented_rows(inputs: "Inputs", config: "RunConfig") -> "tuple[Inputs, dict[str, Any]]":
    """Return the inputs of a method with augmented rows, and their counts for the record (empty without any)."""
    for line in idle(config.augment, config.augment_options):
        inputs.warn(line)
    if config.augment == NONE:
        return inputs, {}
    before, after = inputs.encoder.tokenizer.frame
    side = augment(
        config.augment,
        inputs.train,
        inputs.train_filter,
        inputs.train_tokens,
        inputs.label_tokens,
        config.augment_options,
        seed=config.seed,
        frame=(len(before), len(after)),
    )
    more = replace(
        inputs, train=side.train, train_filter=side.filter, train_tokens=side.tokens, soft=side.soft, own=inputs
    )
    return more, {"name": config.augment, **side.metadata()}
