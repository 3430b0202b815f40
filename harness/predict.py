"""Labels for texts nobody has labelled yet, from a finished run.

    texts [n] -> tokens -> query vectors [n, D] -> exact search among label vectors [L, D] -> the best k labels of each

A model that ranks by itself takes the tokens and gives the labels. For others, label vectors are computed once for a
model and a way of scoring, and kept in the workspace. Labels can be added by their text: they have no row in a
classifier, so then every label, old or new, is scored by the view that needs text alone, and scores stay comparable.
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

from harness.arrays import load_array, save_array
from harness.data.ragged import Ragged
from harness.data.sources.documents import count_empty, plain_texts
from harness.data.sources.lines import json_chunks, line_chunks
from harness.data.tokens import tokenize
from harness.errors import DataError, UserError, unknown_name
from harness.files import build_once, home, sha256_json
from harness.index import TopK, search
from harness.method import Ranker
from harness.printable import printable
from harness.trained import TrainedModel, TrainedRun, load_run

__all__ = [
    "NewLabel",
    "Prediction",
    "TrainedModel",
    "TrainedRun",
    "load_run",
    "predict",
    "read_labels",
    "read_texts",
    "scoring_view",
]

FORMAT = 1
"""Bumped whenever the same model would give other label vectors."""
STDIN = "-"

NewLabel = tuple[str, str]
"""(id, text) of a label that the run has never seen."""
Warn = Callable[[str], None]
Vectors = Callable[[TrainedModel, str], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """One label of one text."""

    label: str
    """Its id."""
    text: str
    score: float
    new: bool
    """Whether it was added, and not among the labels of the run."""


def to_stderr(message: str) -> None:
    """Shows a warning."""
    print(f"warning: {printable(message)}", file=sys.stderr)  # noqa: T201


def predict(
    trained: TrainedModel,
    texts: Sequence[str],
    k: int = 5,
    *,
    view: str | None = None,
    add_labels: Sequence[NewLabel] = (),
    exclude: csr_array | None = None,
    vectors: Vectors | None = None,
    warn: Warn = to_stderr,
) -> list[list[Prediction]]:
    """The best k labels of every text, best first; fewer where there are fewer labels.

    Args:
        trained: The run.
        texts: [n].
        k: Labels per text.
        view: A way of scoring, one of the run's views; by default the one it reports.
        add_labels: Labels to rank together with those of the run.
        exclude: [n, L], pairs that are never returned.
        vectors: Gives the label vectors [L, D] of a view in place of `label_vectors`.
        warn: Takes one line about what a reader of the predictions should know.
    """
    if k < 1:
        raise UserError(f"k is {k}; ask for at least one label")
    view = scoring_view(trained, view, bool(add_labels), warn)
    _check_new(trained, add_labels, warn)
    if empty := count_empty(list(texts)):
        warn(f"{empty} of {len(texts)} texts are empty; what is predicted for them means nothing")
    topk = _ranked(trained, _tokens(trained, texts, "text"), k, view, add_labels, exclude, vectors)
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
    view: str,
    add_labels: Sequence[NewLabel],
    exclude: csr_array | None,
    vectors: Vectors | None,
) -> TopK:
    """The best k labels of queries [n], added ones counted behind those of the run."""
    scorer = trained.parts.scorer
    if isinstance(scorer, Ranker):
        return scorer.rank(tokens, min(k, len(trained.label_id)), exclude, view)
    labels = (vectors or label_vectors)(trained, view)
    if add_labels:
        added = _tokens(trained, [text for _, text in add_labels], "new label")
        labels = np.concatenate([labels, scorer.label_vectors(added, (view,))[view]])
        exclude = _widened(exclude, len(labels))
    queries = scorer.query_vectors(tokens, (view,))[view]
    device = trained.device if trained.device.startswith("cuda") else "cpu"
    return search(queries, labels, min(k, len(labels)), exclude, device=device)


def scoring_view(trained: TrainedModel, view: str | None, adding: bool, warn: Warn = to_stderr) -> str:
    """The view to score by: the wanted one, else the run's first, or the one for text alone where labels are added."""
    scorer = trained.parts.scorer
    if view is not None and view not in scorer.views:
        raise unknown_name("scorer", view, scorer.views)
    if not adding:
        return view or scorer.views[0]
    if scorer.text_view is None:
        raise UserError(
            f"method {trained.config.method!r} cannot score a label by its text alone; add the labels to the dataset "
            "and run anew"
        )
    if view not in (None, scorer.text_view):
        raise UserError(
            f"scorer {view!r} needs labels that were trained; new ones can be scored by {scorer.text_view!r} alone"
        )
    if view is None and scorer.views[0] != scorer.text_view:
        warn(f"all labels are scored by {scorer.text_view!r}, from text alone: new labels have no classifier row")
    return scorer.text_view


def label_vectors(trained: TrainedModel, view: str) -> NDArray[np.float32]:
    """Vectors of the run's labels [L, D], computed on first use and memory-mapped from then on."""
    identity = {"format": FORMAT, "run": trained.identity, "view": view}
    folder = home() / "cache" / "label-vectors" / sha256_json(identity)
    scorer = trained.parts.scorer
    if isinstance(scorer, Ranker):
        raise UserError(f"method {trained.config.method!r} ranks by itself; its labels have no vectors")

    def build(temporary: Path) -> dict[str, Any]:
        vectors = scorer.label_vectors(trained.label_tokens, (view,))[view]
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


def _widened(exclude: csr_array | None, labels: int) -> csr_array | None:
    """Excluded pairs [n, L] with room for added labels."""
    if exclude is None:
        return None
    return csr_array((exclude.data, exclude.indices, exclude.indptr), shape=(exclude.shape[0], labels))


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
    """Texts of a file: one per line, or JSON lines with `text` if it is called .jsonl; `-` is standard input."""
    if _is_json(file):
        texts = [text for rows in json_chunks(Path(file)) for text in rows.column("text", str)]
    else:
        texts = _lines(file)
    if not texts:
        raise DataError("the file is empty; write one text per line", _shown(file))
    return texts


def read_labels(file: str) -> list[NewLabel]:
    """New labels of a file: one text per line, or JSON lines with `text` and optional `id` if it is called .jsonl.

    A label without an id is called after its line: new-1, new-2, ...
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
        raise DataError("the file has no labels; write the text of one per line", _shown(file))
    return labels


def _is_json(file: str) -> bool:
    return file.removesuffix(".gz").endswith(".jsonl")


def _shown(file: str) -> str:
    return "standard input" if file == STDIN else file


def _lines(file: str) -> list[str]:
    lines: list[str] = []
    for first, chunk in _stdin_chunks() if file == STDIN else line_chunks(Path(file)):
        try:
            texts = chunk.decode().split("\n")
        except UnicodeDecodeError as error:
            line = first + chunk.count(b"\n", 0, error.start)
            raise DataError("not UTF-8 text; convert it", _shown(file), line) from None
        lines += [text.removesuffix("\r") for text in texts[:-1]]
    return lines


def _stdin_chunks() -> Iterable[tuple[int, bytes]]:
    content = sys.stdin.buffer.read().removeprefix("\ufeff".encode())
    if content:
        yield 1, content if content.endswith(b"\n") else content + b"\n"
