"""A dataset as numbers, from its card alone, and the assumptions that fill what no card says."""

from dataclasses import dataclass

from harness.data.card import DatasetCard, card_paths, read_card
from harness.errors import UserError
from harness.plan.encoders import EncoderShape
from harness.plan.settings import Resolved

PIECES_PER_WORD = {"title": 1.6, "title+content": 1.35}
"""Word pieces of a word under BERT's vocabulary. Counted here: 1.36 in the texts of lf-debian, 1.53 in the titles of
lf-pydocstitles, 2.5 in those of lf-debiantitles, which are half names."""
PIECES_PER_MADE_WORD = 3.4
"""Of the invented words of `synthetic`, which no vocabulary knows."""
FRAME = 2
"""[CLS] and [SEP]."""
TITLE_WORDS = 6.0
"""Of a label where the card gives no length of titles."""
BYTES_PER_WORD = 6.5
_FULL_TEXT_WORDS = 400.0
_FILTER_PAIRS_PER_ROW = 0.5
"""0.25 in LF-AmazonTitles-131K, 0.6 in the sets that are built here."""
_LABEL_ROWS = ("one-hot", "gandalf", "glas", "random-walk")
"""Augmentations that make a row of every label text; the others make one of every train row."""


@dataclass(frozen=True)
class DataFacts:
    """Counts and averages of one dataset under one config."""

    train: int
    """N, without held-out and made rows."""
    made: int
    """Rows that `augment` makes."""
    rows: int
    """Rows that are trained on, made ones included."""
    held_out: int
    test: int
    """M."""
    labels: int
    """L."""
    labels_per_row: float
    row_tokens: float
    """Tokens of a train or test row on average, cut at max_len."""
    label_tokens: float
    max_len: int
    row_bytes: float
    """Of the stored text of a row."""
    label_bytes: float
    filter_pairs: float
    """A row."""
    soft: bool
    """Targets of made rows are no ones."""
    assumptions: tuple[str, ...]


def data_facts(card: DatasetCard, resolved: Resolved, encoder: EncoderShape) -> DataFacts:
    """What the card says, and assumptions where it says nothing."""
    figures, said = card.statistics, []
    if figures.train is None or figures.labels is None:
        raise UserError(f"card {card.name} has no number of train rows or of labels, so nothing can be planned from it")
    max_len = resolved.config.max_len or encoder.max_len
    test = figures.test
    if test is None:
        test = _sibling_test(card) or round(0.4 * figures.train)
        said.append(f"{test:,} test rows: the card has none, so those of the set with the same rows and labels")
    per_row = figures.labels_per_row or 5.0
    if figures.labels_per_row is None:
        said.append("5 labels a row: the card does not say")
    words, label_words, pieces = _words(card, said)
    row_tokens = min(max_len, words * pieces + FRAME)
    label_tokens = min(max_len, label_words * pieces + FRAME)
    said.append(f"{row_tokens:.0f} tokens a row and {label_tokens:.0f} a label, of at most {max_len}")
    held = resolved.config.validation.size
    held_out = round(held) if held >= 1 else round(held * figures.train)
    kept = max(1, figures.train - held_out)
    made = _made(resolved, kept, figures.labels)
    filtered = _FILTER_PAIRS_PER_ROW if card.filter != "optional" and resolved.config.filter else 0.0
    return DataFacts(
        train=kept,
        made=made,
        rows=_rows(resolved, kept, made),
        held_out=held_out,
        test=test,
        labels=figures.labels,
        labels_per_row=per_row,
        row_tokens=row_tokens,
        label_tokens=label_tokens,
        max_len=max_len,
        row_bytes=words * BYTES_PER_WORD,
        label_bytes=label_words * BYTES_PER_WORD,
        filter_pairs=filtered,
        soft=resolved.augment not in ("none", "one-hot"),
        assumptions=tuple(said),
    )


def _words(card: DatasetCard, said: list[str]) -> tuple[float, float, float]:
    """Words of a row, words of a label, and word pieces a word."""
    words = card.statistics.words_per_row
    if card.source == "synthetic":
        return words or 8.0, float(card.options.get("signature", 3)), PIECES_PER_MADE_WORD
    pieces = PIECES_PER_WORD[card.text]
    said.append(f"{pieces} word pieces a word")
    if card.text == "title":
        return words or TITLE_WORDS, words or TITLE_WORDS, pieces
    if words is None:
        said.append("full texts are longer than max_len: the card has no number of words")
    return words or _FULL_TEXT_WORDS, TITLE_WORDS, pieces


def _made(resolved: Resolved, train: int, labels: int) -> int:
    """Rows made by `augment`, before some of all rows are drawn."""
    if resolved.augment == "none":
        return 0
    return round(resolved.config.augment_options.labels * labels) if resolved.augment in _LABEL_ROWS else train


def _rows(resolved: Resolved, train: int, made: int) -> int:
    """Rows that are trained on."""
    options = resolved.config.augment_options
    if not made or options.rows == "train":
        return train
    return options.rows or (made if options.keep == "made" else train + made)


def _sibling_test(card: DatasetCard) -> int | None:
    """Test rows of another card with the same train rows and labels: the titles and the full texts of one set."""
    wanted = (card.statistics.train, card.statistics.labels)
    for name, path in card_paths().items():
        figures = read_card(path).statistics if name != card.name else None
        if figures and (figures.train, figures.labels) == wanted and figures.test:
            return figures.test
    return None
