"""The sizes of a dataset from its card alone, and stand-in arrays of these sizes to build a method's parts from.

What no card says is assumed, and the assumption is reported.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array

from harness.data.card import DatasetCard, card_paths, read_card
from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.model.encoders.encoder import Encoder
from harness.settings.method import Inputs
from harness.settings.schema import RunConfig
from harness.train.inputs import validation_count

PIECES_PER_WORD = {"title": 1.6, "title+content": 1.35}
"""Word pieces per word under BERT's vocabulary, by kind of text. Counted: 1.36 in the texts of lf-debian, 1.53 in the
titles of lf-pydocstitles, 2.5 in those of lf-debiantitles, which are half names."""
PIECES_PER_MADE_WORD = 3.4
"""Word pieces per invented word of `synthetic`, which no vocabulary has."""
FRAME = 2
"""Tokens added to every text: [CLS] and [SEP]."""
TITLE_WORDS = 6.0
"""Words of a title where the card does not say."""
BYTES_PER_WORD = 6.5
_FULL_TEXT_WORDS = 400.0
_FILTER_PAIRS_PER_ROW = 0.5
"""Assumed; 0.25 in LF-AmazonTitles-131K, 0.6 in the datasets that are built here."""
_FILLED_ROWS = 1 << 14
_STEP = 4
"""Lengths of shorter texts are multiples of this many tokens, so that datasets share measured lengths."""
_LONG_SHARE = 1 / 16
"""Largest share of texts with the maximal length, where there are shorter ones."""
_LABEL_ROWS = ("one-hot", "gandalf", "glas", "random-walk")
"""Augmentations that make a row of every label text; the others make one of every train row."""


@dataclass(frozen=True)
class DataSizes:
    """Counts and averages of one dataset under one config."""

    train: int
    """Train rows N, without validation and augmented rows."""
    augmented: int
    """Rows that `augment` adds."""
    rows: int
    """Rows that are trained on, augmented ones included."""
    validation_rows: int
    test: int
    """Test rows M."""
    labels: int
    """Number of labels L."""
    labels_per_row: float
    row_tokens: float
    """Tokens of a train or test row on average, cut at max_len."""
    label_tokens: float
    max_len: int
    row_bytes: float
    """Bytes of the stored text of a row on average."""
    label_bytes: float
    filter_pairs: float
    """Filter pairs per row."""
    soft: bool
    """Whether augmented rows have targets below 1."""
    assumptions: tuple[str, ...]

    @property
    def filled(self) -> int:
        """Rows of the stand-in that have labels and tokens; all others are empty."""
        return min(self.rows, _FILLED_ROWS)


def data_sizes(card: DatasetCard, config: RunConfig, encoder: Encoder) -> DataSizes:
    """Return the sizes that a card gives, with assumptions where it gives none."""
    figures, assumed = card.statistics, list[str]()
    if figures.train is None or figures.labels is None:
        raise UserError(f"card {card.name} has no number of train rows or of labels, so nothing can be planned from it")
    max_len = config.max_len or encoder.max_len
    test = figures.test
    if test is None:
        test = _sibling_test(card) or round(0.4 * figures.train)
        assumed.append(f"{test:,} test rows: the card has none, so those of the set with the same rows and labels")
    per_row = figures.labels_per_row or 5.0
    if figures.labels_per_row is None:
        assumed.append("5 labels a row: the card does not say")
    words, row_tokens, label_words, label_tokens = _words_and_tokens(card, assumed)
    row_tokens, label_tokens = min(max_len, row_tokens), min(max_len, label_tokens)
    assumed.append(f"{row_tokens:.0f} tokens a row and {label_tokens:.0f} a label, of at most {max_len}")
    validation_rows = validation_count(config, figures.train)
    kept = figures.train - validation_rows
    augmented = _augmented_rows(config, kept, figures.labels)
    filtered = _FILTER_PAIRS_PER_ROW if card.filter != "optional" and config.filter else 0.0
    return DataSizes(
        train=kept,
        augmented=augmented,
        rows=_rows(config, kept, augmented),
        validation_rows=validation_rows,
        test=test,
        labels=figures.labels,
        labels_per_row=per_row,
        row_tokens=row_tokens,
        label_tokens=label_tokens,
        max_len=max_len,
        row_bytes=words * BYTES_PER_WORD,
        label_bytes=label_words * BYTES_PER_WORD,
        filter_pairs=filtered,
        soft=config.augment not in ("none", "one-hot"),
        assumptions=tuple(assumed),
    )


def _words_and_tokens(card: DatasetCard, assumed: list[str]) -> tuple[float, float, float, float]:
    """Return words and tokens of a row, and words and tokens of a label."""
    figures = card.statistics
    if card.source == "synthetic":
        row, label = figures.words_per_row or 8.0, float(card.options.get("signature", 3))
        return row, row * PIECES_PER_MADE_WORD + FRAME, label, label * PIECES_PER_MADE_WORD + FRAME
    recipes = (card.text, card.recipe_of_labels)
    # a label with the fields of a row is taken to be as long as one
    same = figures.words_per_row if card.text == card.recipe_of_labels else None
    counted = (figures.words_per_row, figures.words_per_label or same)
    if counted[0] is None and card.text != "title":
        assumed.append("full texts are longer than max_len: the card has no number of words")
    found = list[float]()
    for recipe, words in zip(recipes, counted, strict=True):
        words = words or (TITLE_WORDS if recipe == "title" else _FULL_TEXT_WORDS)
        found += [words, words * PIECES_PER_WORD[recipe] + FRAME]
    used = " and ".join(str(PIECES_PER_WORD[recipe]) for recipe in dict.fromkeys(recipes))
    assumed.append(f"{used} word pieces a word")
    return found[0], found[1], found[2], found[3]


def _augmented_rows(config: RunConfig, train: int, labels: int) -> int:
    """Return the number of rows that `augment` makes, before rows are drawn from all."""
    if config.augment == "none":
        return 0
    return round(config.augment_options.labels * labels) if config.augment in _LABEL_ROWS else train


def _rows(config: RunConfig, train: int, augmented: int) -> int:
    """Return the number of rows that are trained on."""
    options = config.augment_options
    if not augmented or options.rows == "train":
        return train
    return options.rows or (augmented if options.keep == "made" else train + augmented)


def _sibling_test(card: DatasetCard) -> int | None:
    """Return the test rows of a card with as many train rows and labels, such as the full texts of the same dataset."""
    wanted = (card.statistics.train, card.statistics.labels)
    for name, path in card_paths().items():
        figures = read_card(path).statistics if name != card.name else None
        if figures and (figures.train, figures.labels) == wanted and figures.test:
            return figures.test
    return None


@lru_cache(maxsize=4)
def _tokens(count: int, filled: int, mean: float, longest: int, vocabulary: int) -> Ragged:
    """Draw token ids by Zipf's law for texts of two lengths, `longest` and a shorter one, around a mean length."""
    longest = max(1, longest)
    short = _STEP * math.floor((mean - _LONG_SHARE * longest) / (1 - _LONG_SHARE) / _STEP)
    short = min(longest, max(_STEP, short))
    share = max(0.0, (mean - short) / (longest - short)) if longest > short else 0.0
    long = np.diff(np.floor(np.arange(filled + 1) * share)) > 0
    lengths = np.zeros(count, np.int64)
    lengths[:filled] = np.where(long, longest, short)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    drawn = vocabulary ** np.random.default_rng(0).random(1 << 18)
    ids = np.minimum(drawn.astype(np.uint32), vocabulary - 1)
    return Ragged(np.resize(ids.astype(np.uint16 if vocabulary <= 1 << 16 else np.uint32), offsets[-1]), offsets)


def _pairs(rows: int, filled: int, labels: int, mean: float, seed: int) -> csr_array:
    """Draw labels evenly for the first `filled` rows, `mean` of them per row, [rows, labels]."""
    counts = np.diff(np.floor(np.arange(filled + 1) * mean)).astype(np.int64)
    columns = np.random.default_rng(seed).integers(labels, size=counts.sum())
    matrix = csr_array(
        (np.ones(len(columns), np.float32), (np.repeat(np.arange(filled), counts), columns)), shape=(rows, labels)
    )
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def stand_in(data: DataSizes, encoder: Encoder, config: RunConfig, labels: int, warn: Callable[[str], None]) -> Inputs:
    """Return stand-in train data for a method: rows as in `data` and `labels` labels; only the first rows are filled.

    Augmented rows have texts of labels and come last; a traced batch is taken from the first rows.
    """
    vocabulary = encoder.tokenizer.vocab_size

    def side(rows: int, own: Inputs | None) -> Inputs:
        filled = min(rows, data.filled)
        return Inputs(
            _pairs(rows, filled, labels, data.labels_per_row, 0),
            _pairs(rows, filled, labels, data.filter_pairs, 1),
            _tokens(rows, filled, data.row_tokens, data.max_len, vocabulary),
            _tokens(labels, labels, data.label_tokens, data.max_len, vocabulary),
            encoder,
            "cpu",
            config.batch_tokens,
            config.seed,
            warn,
            own=own,
            soft=data.soft,
        )

    return side(data.rows, side(data.train, None) if data.augmented else None)
