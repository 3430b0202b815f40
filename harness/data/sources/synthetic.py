"""Generated data of any size with a known answer: for tests of scale and correctness, not for accuracy claims.

Every label owns `signature` words, and they are its text. A row draws t labels by popularity P(rank r) ~ r^-zipf. Word
j of its text is a random signature word of its label j mod t, or with probability `noise` any word at all. So with
`noise=0` every label of a row leaves at least one word in its text, and counting shared words finds it.

Two kinds of labels leave words in a text without being answers; they become filter pairs: the row itself, where the row
is an item of the label set, and in the test split the source of a pair whose reverse is in train.

Rows are made in chunks, each from its own random stream. Texts go straight to disk; only label pairs are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.data.card import DatasetCard, Statistics, load_card
from harness.data.pattern import PatternBuilder
from harness.errors import UserError, unknown_name
from harness.io.files import sha256_json
from harness.io.models import describe_faults
from harness.io.progress import Advance, progress

if TYPE_CHECKING:
    from harness.data.prepare import DatasetWriter

GENERATOR = 1
"""Version of the generator; raised whenever the same options would give other data."""
PREFIX = "synthetic:"

_STREAMS = ("popularity", "coverage", "items", "signatures", "train", "test")
_CONSONANTS, _VOWELS = b"bcdfghjklmnpqrstvwxz", b"aeiou"
_ROWS_PER_CHUNK, _WORDS_PER_CHUNK = 2**16, 2**22
_POPULAR_ROUNDS = 8

Split = Literal["train", "test"]
Size = Annotated[int, Field(ge=1, le=100_000_000)]
Share = Annotated[float, Field(ge=0, le=1)]


class Params(BaseModel):
    """Options of the generator; the defaults make a small dataset within a second."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    train: Size = 2_000
    test: Size = 600
    labels: Annotated[int, Field(ge=8, le=100_000_000)] = 500
    labels_per_row: Annotated[float, Field(ge=1, le=1_000)] = 3.0
    """Mean number of true labels of a row; every row has at least one."""
    zipf: Annotated[float, Field(ge=0, le=4)] = 0.8
    """Exponent of label popularity; 0 makes all labels equally frequent."""
    vocabulary: Annotated[int, Field(ge=0, le=100_000_000)] = 0
    """Vocabulary size in words; 0 means two words per label and at least 1,000."""
    words: Annotated[float, Field(ge=1, le=10_000)] = 8.0
    """Mean number of words of a text; a row with more labels than that has one word per label."""
    signature: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of words that belong to a label."""
    reciprocal_share: Share = 0.2
    """Number of filter pairs of the second kind (reverse pairs) per true test pair."""
    self_share: Share = 0.1
    """Share of the train and test rows that are themselves labels."""
    noise: Share = 0.2
    """Share of words drawn from the whole vocabulary, regardless of the row's labels."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0

    @model_validator(mode="after")
    def _fits_together(self) -> "Params":
        if self.labels_per_row > self.labels / 4:
            raise ValueError(f"labels_per_row={self.labels_per_row:g} needs labels={4 * self.labels_per_row:g} or more")
        if self.signature > self.word_count:
            raise ValueError(f"signature={self.signature} distinct words need a vocabulary of at least that many")
        return self

    @property
    def word_count(self) -> int:
        """Number of words in the vocabulary, V."""
        return self.vocabulary or max(1_000, 2 * self.labels)

    @property
    def covered(self) -> int:
        """Number of labels that are guaranteed a train row: all, unless there are fewer train pairs than labels."""
        return min(self.labels, int(self.train * self.labels_per_row))

    def mentioned(self, split: Split) -> float:
        """Return the mean number of labels whose words are in a text of that split."""
        reverse = self.reciprocal_share if split == "test" else 0.0
        return self.labels_per_row * (1 + reverse) + self.self_share

    @property
    def rows_per_chunk(self) -> int:
        """Number of rows in a chunk: fewer if rows are long, so that the memory of a chunk stays the same."""
        longest = max(self.words, self.mentioned("test"))
        return max(1, min(_ROWS_PER_CHUNK, int(_WORDS_PER_CHUNK / longest)))


def read_params(options: Mapping[str, Any]) -> Params:
    """Validate options; the error for an unknown one names the nearest."""
    for name in options:
        if name not in Params.model_fields:
            raise unknown_name("option of synthetic data", name, Params.model_fields)
    try:
        return Params.model_validate(dict(options))
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, "synthetic"))) from error


def synthetic_card(**options: int | float | str | bool) -> DatasetCard:
    """Return the card of a synthetic dataset; its name has a hash of the options, its title all of them."""
    card = load_card("synthetic")
    standard, params = read_params(card.options), read_params({**card.options, **options})
    if params == standard:
        return card
    changed = params.model_dump(exclude_defaults=True)
    update: dict[str, Any] = {
        "name": f"synthetic-{sha256_json(changed)[:10]}",
        "title": PREFIX + ",".join(f"{name}={value}" for name, value in changed.items()),
        "options": changed,
        "statistics": Statistics(
            train=params.train,
            test=params.test,
            labels=params.labels,
            labels_per_row=params.labels_per_row,
            rows_per_label=params.train * params.labels_per_row / params.labels,
            words_per_row=max(params.words, params.mentioned("train")),
            # five standard errors of a mean over N rows whose spread is about their mean
            tolerance=min(0.9, 0.01 + 5 / params.train**0.5),
        ),
        "pin": None,
    }
    return card.model_copy(update=update)


def parse_name(name: str) -> DatasetCard:
    """Return the card for the name `synthetic` or `synthetic:option=value,option=value`."""
    if name == PREFIX.removesuffix(":"):
        return synthetic_card()
    if not name.startswith(PREFIX):
        raise UserError(f"{name!r} is not of the form {PREFIX}option=value,option=value")
    options: dict[str, int | float | str | bool] = {}
    for part in filter(None, name.removeprefix(PREFIX).split(",")):
        option, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise UserError(f"{name!r}: {part!r} is not of the form option=value")
        if option in options:
            raise UserError(f"{name!r}: {option!r} is given twice")
        options[option] = value
    return synthetic_card(**options)


def _stream(params: Params, name: str, chunk: int = 0) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(params.seed, spawn_key=(_STREAMS.index(name), chunk)))


def word_table(count: int) -> NDArray[np.uint8]:
    """Return the bytes of V pronounceable words of equal length, each followed by a space, [V, width + 1].

    Word i spells a scrambled i in base 100: one consonant and one vowel per digit.
    """
    digits = max(2, (len(str(count - 1)) + 1) // 2)
    base = len(_CONSONANTS) * len(_VOWELS)
    # the factor has no divisor in common with the modulus, so this is a bijection; neighbours then look unlike
    number = np.arange(count, dtype=np.int64) * 7_368_787 % base**digits
    table = np.full((count, 2 * digits + 1), ord(" "), np.uint8)
    for digit in range(digits):
        syllable = number // base**digit % base
        table[:, 2 * digit] = np.frombuffer(_CONSONANTS, np.uint8)[syllable // len(_VOWELS)]
        table[:, 2 * digit + 1] = np.frombuffer(_VOWELS, np.uint8)[syllable % len(_VOWELS)]
    return table


@dataclass(frozen=True)
class Rows:
    """One chunk of rows: the labels whose words are in each row's text, ascending and unique within the row."""

    labels: NDArray[np.int64]
    """Labels of all rows, row by row, [T]."""
    true: NDArray[np.bool_]
    """Whether each label is a positive of its row; otherwise it is a filter pair, [T]."""
    counts: NDArray[np.int64]
    """Number of labels of each row, [rows]."""

    def pairs(self, true: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many positives (or filter pairs) each row has [rows], and their labels [pairs]."""
        chosen = self.true == true
        row = np.repeat(np.arange(len(self.counts)), self.counts)[chosen]
        return np.bincount(row, minlength=len(self.counts)), self.labels[chosen]


class World:
    """Words, signatures and label popularity that all rows share; a pure function of the parameters."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self._label_of_rank = self._shuffled_labels("popularity")
        self._coverage = self._shuffled_labels("coverage")
        self._items = self._shuffled_labels("items")

    def _shuffled_labels(self, stream: str) -> NDArray[np.int32]:
        labels = np.arange(self.params.labels, dtype=np.int32)
        _stream(self.params, stream).shuffle(labels)
        return labels

    @cached_property
    def signatures(self) -> NDArray[np.int64]:
        """Word indices of every label, ascending and distinct, [L, signature]: the known answer."""
        size, count = self.params.signature, self.params.word_count
        drawn = _stream(self.params, "signatures").integers(0, count - size + 1, (self.params.labels, size))
        # sorted draws plus 0, 1, 2, ... are strictly increasing
        return np.sort(drawn, axis=1) + np.arange(size)

    @cached_property
    def words(self) -> NDArray[np.uint8]:
        """Bytes of every word and the space after it, [V, width + 1]."""
        return word_table(self.params.word_count)

    def _popular(self, stream: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Draw labels by popularity, [count]: invert the distribution of density x^-zipf on [1, L + 1]."""
        power, top = 1 - self.params.zipf, float(self.params.labels + 1)
        uniform = stream.random(count)
        place = top**uniform if abs(power) < 1e-9 else (1 + uniform * (top**power - 1)) ** (1 / power)
        rank = np.minimum(place.astype(np.int64) - 1, self.params.labels - 1)
        return self._label_of_rank[rank].astype(np.int64)

    def rows(self, split: Split, chunk: int) -> tuple[Rows, np.random.Generator]:
        """Return the labels of one chunk of rows, and the random stream to make their texts with."""
        params, stream = self.params, _stream(self.params, split, chunk)
        size = params.train if split == "train" else params.test
        index = np.arange(chunk * params.rows_per_chunk, min(size, (chunk + 1) * params.rows_per_chunk))

        first, dealt = self._dealt(split, index)
        item, own = self._own(split, index)
        least = max(1.0, params.covered / size) if split == "train" else 1.0
        extra = stream.poisson(max(params.labels_per_row - least, 0.0), len(index))
        true = np.minimum(np.maximum(dealt, 1) + extra, np.maximum(params.labels // 2, dealt))
        share = params.reciprocal_share if split == "test" else 0.0
        reverse = np.minimum(stream.binomial(true, share), params.labels // 4 - 1)

        # a row's slots in this order: dealt answers, itself, further answers, reverse pairs
        counts = true + own + reverse
        row = np.repeat(np.arange(len(index)), counts)
        slot = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        labels = self._popular(stream, len(row))
        is_dealt, is_own = slot < dealt[row], (slot == dealt[row]) & (own[row] == 1)
        labels[is_dealt] = self._coverage[(first[row] + slot)[is_dealt]]
        labels[is_own] = self._items[item[row[is_own]]]
        is_true = (slot < (true + own)[row]) & ~is_own
        order = self._make_distinct(stream, row, labels)
        return Rows(labels[order], is_true[order], counts), stream

    def _dealt(self, split: Split, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where in `_coverage` the labels dealt to each train row start, and how many there are."""
        if split == "test":
            return np.zeros_like(index), np.zeros_like(index)
        first = -(-index * self.params.covered // self.params.train)
        return first, -(-(index + 1) * self.params.covered // self.params.train) - first

    def _own(self, split: Split, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the label that each row is, and whether it is one (0 or 1); labels repeat only when all are used."""
        share = self.params.self_share
        before, after = (np.floor(place * share).astype(np.int64) for place in (index, index + 1))
        used = 0 if split == "train" else int(self.params.train * share)
        return (used + before) % self.params.labels, after - before

    def _make_distinct(
        self, stream: np.random.Generator, row: NDArray[np.int64], labels: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Redraw, in place, labels that a row has already; return the order by row, then label, [T].

        Of two equal labels the one in the earlier slot stays. After a few rounds labels are drawn uniformly, which
        ends quickly because no row holds more than three quarters of all labels.
        """
        where, rounds = np.arange(len(row)), 0
        while len(where):
            key = row[where] * self.params.labels + labels[where]
            order = np.argsort(key, kind="stable")
            again = where[order[1:][key[order[1:]] == key[order[:-1]]]]
            if rounds < _POPULAR_ROUNDS:
                labels[again] = self._popular(stream, len(again))
            else:
                labels[again] = stream.integers(0, self.params.labels, len(again))
            rounds += 1
            open_rows = np.zeros(row[-1] + 1, np.bool_)
            open_rows[row[again]] = True
            where = where[open_rows[row[where]]]
        return np.argsort(row * self.params.labels + labels, kind="stable")

    def texts(
        self, split: Split, rows: Rows, stream: np.random.Generator
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the bytes of one chunk's texts, joined, and the length of each in bytes."""
        params = self.params
        counts = rows.counts + stream.poisson(max(params.words - params.mentioned(split), 0.0), len(rows.counts))
        row = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        start = np.cumsum(rows.counts) - rows.counts
        label = rows.labels[start[row] + place % rows.counts[row]]
        words = self.signatures[label, stream.integers(0, params.signature, len(row))]
        noisy = stream.random(len(row)) < params.noise
        words[noisy] = stream.integers(0, params.word_count, int(noisy.sum()))

        width = self.words.shape[1]
        ends = np.cumsum(counts) * width
        keep = np.ones(len(words) * width, np.bool_)
        keep[ends - 1] = False
        return self.words[words].reshape(-1)[keep], counts * width - 1

    def label_texts(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the texts of labels start to stop - 1 as bytes, all of one length, [labels, length]."""
        return self.words[self.signatures[start:stop]].reshape(stop - start, -1)[:, :-1]


class SyntheticSource:
    """Writes a generated dataset; see the module docstring for how labels determine texts."""

    def fingerprint(self, card: DatasetCard, raw: Path) -> dict[str, Any]:
        """Return all options, defaults included, and the version of the generator; `raw` is not read."""
        return {"params": read_params(card.options).model_dump(), "generator": GENERATOR}

    def write(self, card: DatasetCard, raw: Path, writer: "DatasetWriter") -> dict[str, Any]:
        """Generate labels, then both splits; return the options and the version of numpy that drew the numbers."""
        params = read_params(card.options)
        world = World(params)
        with progress(f"generating {card.name}", params.train + params.test + params.labels) as advance:
            _write_labels(world, writer, advance)
            _write_split(world, "train", writer, advance)
            _write_split(world, "test", writer, advance)
        return {"generator": GENERATOR, "params": params.model_dump(), "versions": {"numpy": np.__version__}}


def _write_labels(world: World, writer: "DatasetWriter", advance: Advance) -> None:
    labels = world.params.labels
    places = 10 ** np.arange(len(str(labels - 1)) - 1, -1, -1, dtype=np.int64)
    with writer.texts("labels.text") as texts, writer.texts("labels.id") as ids:
        for start in range(0, labels, _ROWS_PER_CHUNK):
            stop = min(labels, start + _ROWS_PER_CHUNK)
            text = world.label_texts(start, stop)
            texts.extend(text, np.full(len(text), text.shape[1]))
            digits = np.arange(start, stop)[:, None] // places % 10 + ord("0")
            ids.extend(digits.astype(np.uint8), np.full(len(text), len(places)))
            advance(stop - start)


def _write_split(world: World, split: Split, writer: "DatasetWriter", advance: Advance) -> None:
    size = world.params.train if split == "train" else world.params.test
    answers, filtered = PatternBuilder(world.params.labels), PatternBuilder(world.params.labels)
    with writer.texts(f"{split}.text") as column:
        for chunk in range(-(-size // world.params.rows_per_chunk)):
            rows, stream = world.rows(split, chunk)
            column.extend(*world.texts(split, rows, stream))
            answers.extend(*rows.pairs(true=True))
            filtered.extend(*rows.pairs(true=False))
            advance(len(rows.counts))
    writer.matrix(f"{split}.labels", answers.finish())
    writer.matrix(f"{split}.filter", filtered.finish())
