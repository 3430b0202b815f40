"""What a method is given: the train rows that are not validation rows, the labels, and their tokens."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness import metrics
from harness.augment import with_augmented_rows
from harness.data import Dataset
from harness.data.equal import first_equals
from harness.data.ragged import Ragged, Texts
from harness.data.split import any_draw, covered_draw, groups_in_order
from harness.data.tokens import token_counts, token_store
from harness.errors import UserError, unknown_name
from harness.model.encoders.encoder import Encoder
from harness.runs.log import RunLog
from harness.seeds import stream
from harness.settings.method import Inputs
from harness.settings.schema import RunConfig


@dataclass(frozen=True)
class Tokens:
    """Tokens of the train rows [N], the test rows [M] and the labels [L]."""

    train: Ragged
    test: Ragged
    labels: Ragged


def validation_count(config: RunConfig, rows: int) -> int:
    """Return how many of the train rows are for validation; raise `UserError` if it cannot be so many."""
    size = config.validation.size
    count = round(size) if size >= 1 else round(size * rows)
    if config.evaluate == "validation" and not count:
        raise UserError("evaluate=validation needs validation rows; set validation.size, for example 0.1")
    if size and not count:
        raise UserError(f"validation.size {size} of {rows:,} train rows is no row; raise it")
    if not count and config.validation.patience is not None:
        raise UserError("validation.patience needs rows to judge by; set validation.size, for example 0.1")
    if count >= rows:
        raise UserError(f"validation.size is {count:,}, but there are {rows:,} train rows; leave some to train on")
    return count


def validation_split(dataset: Dataset, config: RunConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the train rows into those to train on and those for validation; a seeded draw, both sorted.

    Rows with equal texts are on one side, so there may be a few more or fewer validation rows than asked for.
    """
    rows = dataset.train.shape[0]
    count = validation_count(config, rows)
    names = metrics.names(config.ks, dataset.card.propensity is not None)
    if count and config.validation.metric not in names:
        raise unknown_name("validation.metric", config.validation.metric, names)
    order = stream(config.seed, "split").permutation(rows)
    if not count:
        return np.sort(order), order[:0]
    together = config.validation.equal_texts == "together"
    groups = groups_in_order(order, first_equals(dataset.train_text) if together else np.arange(rows))
    covered = config.validation.draw == "covered"
    drawn = covered_draw(dataset.train, groups, count) if covered else any_draw(groups, count)
    return np.setdiff1d(order, drawn), np.sort(drawn)


def warn_of_repeated_texts(dataset: Dataset, warn: Callable[[str], None]) -> None:
    """Warn if test rows have texts of train rows, which a model can answer from memory."""
    if repeated := dataset.metadata["statistics"]["test_rows_with_a_train_text"]:
        warn(f"{repeated:,} of {dataset.test.shape[0]:,} test rows have a text that a train row has too")


def warn_of_validation_rows(drawn: int, asked: int, warn: Callable[[str], None]) -> None:
    """Warn if groups of equal texts made the number of validation rows more than 10 % another than asked for."""
    if abs(drawn - asked) > asked / 10:
        warn(
            f"{drawn:,} validation rows were drawn, not {asked:,}, because rows with equal texts are drawn together; "
            "validation.equal_texts=any draws them one by one"
        )


def text_length(config: RunConfig, encoder: Encoder) -> int:
    """Return the most tokens per text: `max_len` of the config, or the encoder's default."""
    length = encoder.max_len if config.max_len is None else config.max_len
    if encoder.longest is not None and length > encoder.longest:
        raise UserError(f"max_len is {length:,}, but encoder {encoder.name!r} reads at most {encoder.longest:,} tokens")
    return length


def tokenise(
    dataset: Dataset, encoder: Encoder, max_len: int, kept: NDArray[np.int64] | None = None, *, test: bool = True
) -> Tokens:
    """Tokenise all texts; without `test` those of the test rows are left out.

    The encoder learns how often each token occurs in what may be learned from: label texts and the `kept` train rows
    (by default all), never validation or test rows.
    """

    def stored(name: str, texts: Texts) -> Ragged:
        digest = dataset.column_digest(f"{name}.text")
        return token_store(texts, encoder.tokenizer, max_len, f"tokenise {name}", digest=digest)

    train, labels = stored("train", dataset.train_text), stored("labels", dataset.label_text)
    tested = stored("test", dataset.test_text) if test else train.take(np.zeros(0, np.int64))
    learned = train if kept is None or len(kept) == len(train) else train.take(kept)
    encoder.adapt(token_counts(encoder.tokenizer.vocab_size, learned, labels))
    return Tokens(train, tested, labels)


def train_side(
    dataset: Dataset,
    rows: NDArray[np.int64],
    tokens: Tokens,
    encoder: Encoder,
    device: str,
    config: RunConfig,
    warn: Callable[[str], None],
) -> Inputs:
    """Return what a method may learn from: the given train rows [N] and the labels, nothing of the test rows."""
    everything = len(rows) == len(tokens.train)
    if empty := int((tokens.labels.lengths <= sum(map(len, encoder.tokenizer.frame))).sum()):
        warn(f"{empty} labels have no text: an encoder sees them all as one; a classifier tells them apart")
    return Inputs(
        dataset.train if everything else dataset.train[rows],
        dataset.train_filter if everything else dataset.train_filter[rows],
        tokens.train if everything else tokens.train.take(rows),
        tokens.labels,
        encoder,
        device,
        config.batch_tokens,
        config.seed,
        warn,
    )


def augmented(inputs: Inputs, config: RunConfig, run_log: RunLog) -> Inputs:
    """Return the inputs with the rows that the config's augmentation adds; their number is printed and recorded."""
    inputs, made = with_augmented_rows(inputs, config)
    if made:
        run_log.metadata["augmentation"] = made
        run_log.event("augmentation", **made)
        counts = f"{made['made']:,} augmented rows with {made['targets_per_made_row']} labels each"
        print(f"augment={config.augment}: {counts}; {made['rows']:,} train rows in all", file=sys.stderr)  # noqa: T201
    return inputs
