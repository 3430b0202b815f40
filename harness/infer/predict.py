"""Predicting labels of new texts with a finished run.

    texts [n] -> tokens -> query vectors [n, D] -> exact search among label vectors [L, D] -> the best k labels of each

A `Ranker` takes the tokens and returns the labels itself. For other models, label vectors are computed once per model
and scorer, and kept in the workspace. Labels can be added by their text: they have no row in a classifier, so then all
labels, old and new, are scored from text alone, which keeps scores comparable.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from harness.data.equal import count_blank
from harness.data.ragged import Ragged
from harness.data.sources.lines import json_chunks, line_chunks
from harness.data.sources.repository import plain_texts
from harness.data.tokens import tokenize
from harness.errors import DataError, UserError, unknown_name
from harness.index import TopK, search
from harness.infer.load import TrainedModel
from harness.io.arrays import load_array, save_array
from harness.io.files import build_once, home, sha256_json
from harness.io.printable import printable
from harness.settings.method import Ranker

FORMAT = 1
"""Version of the cached label vectors; raised whenever the same model would give others."""
STDIN = "-"

NewLabel = tuple[str, str]
"""(id, text) of a label that is not in the run's dataset."""
Warn = Callable[[str], None]
Vectors = Callable[[TrainedModel, str], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A label predicted for a text."""

    label: str
    """Id of the label."""
    text: str
    score: float
    new: bool
    """Whether the label was added, so is not one of the run's."""


def to_stderr(message: str) -> None:
    """Print a warning to standard error."""
    print(f"warning: {printable(message)}", file=sys.stderr)  # noqa: T201


def predict(
    trained: TrainedModel,
    texts: Sequence[str],
    k: int = 5,
    *,
    scorer: str | None = None,
    add_labels: Sequence[NewLabel] = (),
    exclude: csr_array | None = None,
    vectors: Vectors | None = None,
    warn: Warn = to_stderr,
) -> list[list[Prediction]]:
    """Return the best k labels of every text, best first; fewer if there are fewer labels.

    Args:
        trained: The trained model.
        texts: Texts to label, [n].
        k: Labels per text.
        scorer: One of the run's scorers; by default the one that it reports.
        add_labels: New labels to rank together with those of the run.
        exclude: Pairs of text and label that are never returned, [n, L].
        vectors: Returns the label vectors [L, D] of a scorer, in place of `label_vectors`.
        warn: Called with each warning, one line.
    """
    if k < 1:
        raise UserError(f"k is {k}; ask for at least one label")
    scorer = chosen_scorer(trained, scorer, bool(add_labels), warn)
    _check_new(trained, add_labels, warn)
    if empty := count_blank(list(texts)):
        warn(f"{empty} of {len(texts)} texts are empty; what is predicted for them means nothing")
    topk = _ranked(trained, _tokens(trained, texts, "text"), k, scorer, add_labels, exclude, vectors)
    if topk.flagged:
        warn(f"{topk.flagged} vectors were not finite; such a label is never found, such a text finds nothing")
    known = len(trained.label_id)

    def described(place: int, score: float) -> Prediction:
        if place < known:
            return Prediction(trained.label_id[place], trained.label_text[place], score, False)
        return Prediction(*add_labels[place - known], score, True)

    return [
        [described(place, score) for place, score in zip(places, scores, strict=True) if place >= 0]
        for places, scores in zip(topk.ids.tolist(), topk.scores.tolist(), strict=True)
    ]


def _ranked(
    trained: TrainedModel,
    tokens: Ragged,
    k: int,
    scorer: str,
    add_labels: Sequence[NewLabel],
    exclude: csr_array | None,
    vectors: Vectors | None,
) -> TopK:
    """Return the best k labels of queries [n]; indices from L on are added labels."""
    scoring = trained.parts.scoring
    if isinstance(scoring, Ranker):
        return scoring.rank(tokens, min(k, len(trained.label_id)), exclude, scorer)
    labels = (vectors or label_vectors)(trained, scorer)
    if add_labels:
        added = _tokens(trained, [text for _, text in add_labels], "new label")
        labels = np.concatenate([labels, scoring.label_vectors(added, (scorer,))[scorer]])
        if exclude is not None:  # [n, L] becomes [n, L + added]
            exclude = csr_array((exclude.data, exclude.indices, exclude.indptr), shape=(exclude.shape[0], len(labels)))
    queries = scoring.query_vectors(tokens, (scorer,))[scorer]
    device = trained.device if trained.device.startswith("cuda") else "cpu"
    return search(queries, labels, min(k, len(labels)), exclude, device=device)


def chosen_scorer(trained: TrainedModel, scorer: str | None, adding: bool, warn: Warn = to_stderr) -> str:
    """Return the scorer to use: `scorer` if given, else the run's first, or its `text_scorer` if labels are added."""
    scoring = trained.parts.scoring
    if scorer is not None and scorer not in scoring.scorers:
        raise unknown_name("scorer", scorer, scoring.scorers)
    if not adding:
        return scorer or scoring.scorers[0]
    if scoring.text_scorer is None:
        raise UserError(
            f"method {trained.config.method!r} cannot score a label by its text alone; add the labels to the dataset "
            "and run anew"
        )
    if scorer not in (None, scoring.text_scorer):
        raise UserError(
            f"scorer {scorer!r} needs labels that were trained; new ones can be scored by {scoring.text_scorer!r} alone"
        )
    if scorer is None and scoring.scorers[0] != scoring.text_scorer:
        warn(f"all labels are scored by {scoring.text_scorer!r}, from text alone: new labels have no classifier row")
    return scoring.text_scorer


def label_vectors(trained: TrainedModel, scorer: str) -> NDArray[np.float32]:
    """Return the vectors of the run's labels [L, D], computed on first use and memory-mapped from then on."""
    identity = {"format": FORMAT, "run": trained.identity, "scorer": scorer}
    folder = home() / "cache" / "label-vectors" / sha256_json(identity)
    scoring = trained.parts.scoring
    if isinstance(scoring, Ranker):
        raise UserError(f"method {trained.config.method!r} ranks by itself; its labels have no vectors")

    def build(temporary: Path) -> dict[str, Any]:
        vectors = scoring.label_vectors(trained.label_tokens, (scorer,))[scorer]
        save_array(temporary / "vectors.npy", vectors)
        return {"identity": identity, "run": trained.record.run_id}

    build_once(folder, build)
    return load_array(folder / "vectors.npy", 2, "f", mapped=True)


def _tokens(trained: TrainedModel, texts: Sequence[str], kind: str) -> Ragged:
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{kind} {number} is not valid Unicode at character {error.start + 1}; correct it"
            ) from None
    return tokenize(plain_texts(list(texts)), trained.encoder.tokenizer, trained.max_len)


def _check_new(trained: TrainedModel, labels: Sequence[NewLabel], warn: Warn) -> None:
    if not labels:
        return
    ids = Counter(name for name, _ in labels)
    name, count = ids.most_common(1)[0]
    if count > 1:
        raise UserError(f"{count} new labels have the id {name!r}; give each its own")
    if taken := set(ids).intersection(trained.label_id):
        raise UserError(f"the dataset has a label of id {min(taken)!r} already; give the new label another id")
    known = {text for _, text in labels}.intersection(trained.label_text)
    if repeats := sum(text in known for _, text in labels):
        warn(f"{repeats} of {len(labels)} new labels have the text of a label that the run has already")


# ---------------------------------------------------------------- files of texts and labels


def read_texts(file: str) -> list[str]:
    """Read texts: one per line, or JSON lines with `text` from a .jsonl file; `-` is standard input."""
    if _is_json(file):
        texts = [text for rows in json_chunks(Path(file)) for text in rows.column("text", str)]
    else:
        texts = _lines(file)
    if not texts:
        raise DataError("the file is empty; write one text per line", _source(file))
    return texts


def read_labels(file: str) -> list[NewLabel]:
    """Read new labels: one text per line, or JSON lines with `text` and optional `id` from a .jsonl file.

    The id of a label without one is made from its line number: new-1, new-2, ...
    """
    labels: list[NewLabel] = []
    if _is_json(file):
        for rows in json_chunks(Path(file)):
            texts, ids = rows.column("text", str), rows.column("id", str, int, default=None)
            for row, (name, text) in enumerate(zip(ids, texts, strict=True)):
                if not text.strip():
                    raise rows.fault(row, "a new label needs a text: nothing else is known of it")
                labels.append((f"new-{rows.first + row}" if name is None else str(name), text))
    else:
        labels = [(f"new-{number}", text) for number, text in enumerate(_lines(file), start=1) if text.strip()]
    if not labels:
        raise DataError("the file has no labels; write the text of one per line", _source(file))
    return labels


def _is_json(file: str) -> bool:
    return file.removesuffix(".gz").endswith(".jsonl")


def _source(file: str) -> str:
    return "standard input" if file == STDIN else file


def _lines(file: str) -> list[str]:
    lines: list[str] = []
    for first, chunk in _stdin_chunks() if file == STDIN else line_chunks(Path(file)):
        try:
            texts = chunk.decode().split("\n")
        except UnicodeDecodeError as error:
            line = first + chunk.count(b"\n", 0, error.start)
            raise DataError("not UTF-8 text; convert it", _source(file), line) from None
        lines += [text.removesuffix("\r") for text in texts[:-1]]
    return lines


def _stdin_chunks() -> Iterable[tuple[int, bytes]]:
    content = sys.stdin.buffer.read().removeprefix("\ufeff".encode())
    if content:
        yield 1, content if content.endswith(b"\n") else content + b"\n"
