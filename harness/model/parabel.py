"""Parabel: label trees with linear classifiers in their nodes over TF-IDF features, by the library omikuji.

    features [N, F], labels [N, L] -> text file -> omikuji in another process -> trees -> the best labels of queries

Training happens in another process, because a fault in the library ends the process it happens in, because a call of it
cannot be interrupted, and because it writes to standard output. Its random numbers come from the operating system and
take no seed. A saved forest is settings.json and one CBOR file per tree: data, nothing of it is executed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import numpy as np
from scipy.sparse import csr_array

from harness.data.ragged import Ragged
from harness.errors import DataError, UserError
from harness.index import TopK
from harness.index.sparse import top_entries
from harness.io.files import read_json
from harness.io.progress import progress
from harness.machine.threads import Threads, available_cores
from harness.model.tfidf import Tfidf
from harness.settings.method import Inputs
from harness.settings.parameters import TextSettings

_CHUNK_ROWS = 4096
_SPARE = 8
"""Further labels asked of the library: it breaks ties at the cut at random, we break them by label id."""
_DONE = re.compile(rb"Labels (\d+) / ")
_FAULT = re.compile(rb"Failed [^\r\n]+|panicked at [^\r\n]+[\r\n]+[^\r\n]+")
"""Error messages of the library: its own, and those of a Rust panic with the line that follows."""


def require_library() -> Any:
    """Return the module omikuji; raise with the command to install it if it is missing."""
    try:
        with silent_output():
            return import_module("omikuji")
    except ImportError:
        raise UserError("method 'parabel' needs omikuji: pip install -c constraints.txt -e '.[peers]'") from None


class Forest:
    """A trained forest of label trees."""

    def __init__(self, folder: Path, threads: int) -> None:
        """Load the forest in `folder`, which must exist until `save`; the caller has checked its hashes."""
        self._folder = folder
        with silent_output():
            try:
                self._model = require_library().Model.load(str(folder))
            except RuntimeError as error:
                raise DataError("omikuji cannot read this forest; run anew", folder) from error
            self._model.densify_weights()  # searched twice as fast; on disk it stays sparse
        self._threads = min(threads or available_cores(), available_cores())

    @property
    def features(self) -> int:
        """Number of features F."""
        return int(self._model.n_features)

    @property
    def trees(self) -> int:
        """Number of trees."""
        return int(self._model.n_trees)

    def save(self, folder: Path) -> None:
        """Copy the forest into a new folder."""
        shutil.copytree(self._folder, folder)

    def rank(self, features: csr_array, labels: int, k: int, exclude: csr_array | None, beam: int) -> TopK:
        """Return the best k of `labels` labels for queries [n, F].

        A tree is searched with a beam: that many nodes are kept on every level, and labels of each leaf. Excluded
        pairs are masked in what the trees find, as is usual for such models.
        """
        found = [(np.zeros((0, k), np.int32), np.zeros((0, k), np.float32))]
        with progress("rank", features.shape[0], "queries") as advance, Threads(self._threads) as pool:
            for start in range(0, features.shape[0], _CHUNK_ROWS):
                block = features[start : start + _CHUNK_ROWS]
                banned = None if exclude is None else exclude[start : start + _CHUNK_ROWS]
                scores = self._scores(block, labels, min(k, labels) + _SPARE, banned, beam, pool)
                found.append(top_entries(scores, k, banned))
                advance(block.shape[0])
        ids, best = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return TopK(ids, best, backend="forest", recall=None)

    def _scores(
        self,
        features: csr_array,
        labels: int,
        wanted: int,
        exclude: csr_array | None,
        beam: int,
        pool: Threads,
    ) -> csr_array:
        """Return scores [n, L] of the labels that the library finds for queries [n, F], `wanted` and the excluded."""
        more = np.zeros(features.shape[0], np.int64) if exclude is None else np.diff(exclude.indptr)
        queries = zip(rows_as_pairs(features), (wanted + more).tolist(), strict=True)
        answers = list(pool.map(lambda query: self._model.predict(query[0], beam, query[1]), queries))
        flat = np.fromiter(chain.from_iterable(chain.from_iterable(answers)), np.float64).reshape(-1, 2)
        indptr = np.concatenate([[0], np.cumsum([len(answer) for answer in answers])])
        ids = flat[:, 0].astype(np.int64)
        if ids.max(initial=-1) >= labels:
            raise DataError(f"this forest knows label {ids.max():,}, but there are only {labels:,}; run anew")
        return csr_array((flat[:, 1].astype(np.float32), ids, indptr), shape=(len(answers), labels))


def train_forest(
    folder: Path, features: csr_array, labels: csr_array, settings: dict[str, Any], threads: int
) -> dict[str, Any]:
    """Train a forest and write it into a new folder; return metadata for the record.

    Args:
        folder: Folder for the forest. A text copy of features and labels is beside it during the training.
        features: Features of the train rows, [N, F].
        labels: Positives, [N, L]; stored values have no effect.
        settings: Hyper-parameters of omikuji by its names.
        threads: Number of threads; 0 for all cores.
    """
    library = require_library()
    if not labels.nnz:
        raise UserError("no train row has a label, so there is nothing to learn; check the dataset")
    data, metadata = folder.with_name("data.txt"), folder.with_name("facts.json")
    try:
        write_data(data, features, labels)
    except OSError as error:
        raise UserError(
            f"{data} could not be written: {error.strerror or error}; free some space, or name a folder on a larger "
            "disk in TMPDIR"
        ) from error
    places = {"data": str(data), "model": str(folder), "facts": str(metadata)}
    _follow({**places, "settings": settings, "threads": min(threads, available_cores()), "parent": os.getpid()})
    data.unlink()
    known = {"features": features.shape[1], "omikuji": str(library.__version__), "seeded": False}
    return {**known, **read_json(metadata)}


def _follow(job: dict[str, Any]) -> None:
    """Run the training process, show its progress, and end it if this process is interrupted."""
    ours = Path(__file__).parents[2]  # the folder that this `harness` was imported from
    with (
        progress("train forest", unit="classifiers") as advance,
        subprocess.Popen(training_command(job), cwd=ours, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process,
    ):
        assert process.stderr is not None
        tail, done = b"", 0
        try:
            while written := process.stderr.read1(1 << 16):  # type: ignore[attr-defined]
                tail = (tail + written)[-(1 << 14) :]
                if counts := _DONE.findall(tail):
                    advance(max(0, int(counts[-1]) - done))
                    done = max(done, int(counts[-1]))
            code = process.wait()
        except BaseException:
            process.kill()
            raise
    if code:
        raise UserError(f"omikuji failed to train (exit code {code}): {_reason(code, tail)}")


def _reason(code: int, written: bytes) -> str:
    """Return why a training failed, from its exit code and the end of its standard error."""
    if code == -signal.SIGKILL:
        return "it was killed; is there enough memory?"
    found = _FAULT.search(written) or re.search(rb"[^\r\n]+\s*$", written)
    return " ".join(found[0].decode("utf-8", "replace").split()) if found else "no reason given"


def training_command(job: dict[str, Any]) -> list[str]:
    """Return the command that starts `harness.model.forest_process`."""
    return [sys.executable, "-m", "harness.model.forest_process", json.dumps(job)]


def write_data(path: Path, features: csr_array, labels: csr_array) -> None:
    """Write the text format of the Extreme Classification Repository: N F L, then `l1,l2 f1:x1 f2:x2` a row."""
    with path.open("w", encoding="ascii") as stream:
        stream.write(f"{features.shape[0]} {features.shape[1]} {labels.shape[1]}\n")
        for start in range(0, features.shape[0], _CHUNK_ROWS):
            block, truth = features[start : start + _CHUNK_ROWS], labels[start : start + _CHUNK_ROWS]
            names, bounds = truth.indices.tolist(), truth.indptr.tolist()
            for row, pairs in enumerate(rows_as_pairs(block)):
                # 9 digits hold a float32 exactly
                line = [",".join(map(str, names[bounds[row] : bounds[row + 1]])), *map("%d:%.9g".__mod__, pairs)]
                stream.write(" ".join(line) + "\n")


def rows_as_pairs(features: csr_array) -> Iterator[list[tuple[int, float]]]:
    """Yield the list of (feature, value) pairs of every row of [n, F]."""
    pairs = list(zip(features.indices.tolist(), features.data.tolist(), strict=True))
    bounds = features.indptr.tolist()
    for row in range(features.shape[0]):
        yield pairs[bounds[row] : bounds[row + 1]]


@contextmanager
def silent_output() -> Iterator[None]:
    """Hide what the library prints on standard output, which belongs to the command's own output."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


FOREST = "forest"


class Parabel:
    """A model that is fitted in one go and ranks the labels itself, for `harness.run`."""

    scorers = ("forest",)
    text_scorer = None

    def __init__(
        self, inputs: Inputs, features: TextSettings, settings: dict[str, Any], *, beam: int, threads: int
    ) -> None:
        """Store the settings; `fit` trains the forest.

        Args:
            inputs: Train rows and labels.
            features: How texts become features.
            settings: Hyper-parameters of the forest, by omikuji's names.
            beam: Nodes kept on every level of a tree when it is searched.
            threads: Number of threads; 0 for all cores.
        """
        self._inputs, self._settings, self._beam, self._threads = inputs, settings, beam, threads
        self._tfidf = Tfidf(inputs.encoder.tokenizer, features)
        self._forest: Forest | None = None

    def fit(self) -> dict[str, Any]:
        """Compute the features of the train rows and train the forest; return metadata for the record."""
        inputs = self._inputs
        if inputs.soft:
            inputs.warn("parabel knows no soft targets: every label of an augmented row counts as a whole positive")
        self._tfidf.fit(inputs.train_tokens)
        features = self._tfidf.transform(inputs.train_tokens)
        folder = Path(mkdtemp(prefix="parabel-"))
        finalize(self, shutil.rmtree, folder, ignore_errors=True)  # it holds the forest until that is saved
        metadata = train_forest(folder / FOREST, features, inputs.train, self._settings, self._threads)
        self._forest = Forest(folder / FOREST, self._threads)
        return metadata

    def fitting_bytes(self, rows: int, labels: int, pairs: float, terms: float, label_terms: float) -> dict[str, float]:
        """Return the most bytes that fitting takes, by part, for rows of `terms` terms each.

        After pruning, a classifier has about ten times the terms of a text; the library holds all while it saves.
        """
        trees = self._settings["n_trees"] * labels * 10 * terms * 8
        return {"sparse features": 3 * 8 * rows * terms, "trees": trees}

    def save(self, folder: Path) -> None:
        """Save the vocabulary, and the trees in omikuji's own format."""
        self._tfidf.save(folder)
        self._ready().save(folder / FOREST)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote; the caller has checked its hashes."""
        self._tfidf.load(folder)
        self._forest = Forest(folder / FOREST, self._threads)
        if (self._forest.features, self._forest.trees) != (len(self._tfidf.terms), self._settings["n_trees"]):
            raise DataError("these trees do not fit the settings of the run; run anew", folder)

    def rank(self, tokens: Ragged, k: int, exclude: csr_array | None, scorer: str) -> TopK:
        """Return the best k labels of queries [n]."""
        features = self._tfidf.transform(tokens)
        return self._ready().rank(features, self._inputs.train.shape[1], k, exclude, self._beam)

    def _ready(self) -> Forest:
        if self._forest is None:
            raise RuntimeError("neither fitted nor loaded")
        return self._forest
