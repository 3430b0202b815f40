"""One dataset with the predictions of its runs as a folder of scripts; see `harness.report.explorer` for the files."""

import hashlib
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.record import RunRecord
from harness.report.evidence import own_view
from harness.report.explorer.chosen import Shown
from harness.report.explorer.predictions import Predictions
from harness.report.explorer.prepared import Prepared
from harness.report.explorer.scripts import as_json, beginnings, call, numbers, rows_per_file
from harness.report.grids.defaults import changed_settings

METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5")
SHARD_ROWS = 500
SHARD_LABELS = 2000
_LONGEST_SCORE = 25
"""Bytes of a score with its comma, at most."""
_BUILD_DIGITS = 12


def write_dataset(
    folder: Path, shown: Shown, data: Prepared, found: list[tuple[RunRecord, Predictions]]
) -> dict[str, Any]:
    """Writes the scripts of a dataset and returns its entry in the manifest.

    Args:
        folder: To be made; its name is what scripts and manifest call the dataset.
        shown: What was chosen.
        data: Its texts and labels.
        found: Runs with what they predicted, at least one; all of equally many rows.
    """
    rows, per_row = found[0][1].ids.shape
    labels = len(data.label_text)
    counts = np.diff(data.truth.indptr)[:rows]
    texts = [as_json(text) for text in beginnings(data.texts, rows)]
    digits = len(str(labels)) + 1
    row_bytes = np.maximum(np.fromiter(map(len, texts), np.int64, rows) + 1, counts * digits + 3)
    size = rows_per_file(np.maximum(row_bytes, per_row * (digits + _LONGEST_SCORE) + 6), SHARD_ROWS)
    entries = _label_entries(data)
    label_size = rows_per_file(np.fromiter(map(len, entries), np.int64, labels) + 1, SHARD_LABELS)
    about = {
        "name": shown.dataset,
        "title": shown.title,
        "folder": folder.name,
        "rows": rows,
        "all_rows": len(data.texts),
        "labels": labels,
        "shard_rows": size,
        "shard_labels": label_size,
        "head": data.least(0),
        "torso": data.least(1),
        "runs": [_about(f"r{place}", record) for place, (record, _) in enumerate(found)],
    }
    about["build"] = _build(about, texts, entries, data, [predictions for _, predictions in found])
    scripts = _Scripts(folder, about["build"])
    scripts.write("texts", _joined(texts, size))
    scripts.write("truth", _truth(data, rows, size))
    scripts.write_one("truth-counts", numbers(counts))
    for place, (_, predictions) in enumerate(found):
        scripts.write(f"r{place}", _predicted(predictions, size))
        scripts.write_one(f"r{place}-hits", as_json(predictions.hits))
    scripts.write("labels", _joined(entries, label_size))
    return about


def _build(about: dict[str, Any], texts: list[str], labels: list[str], data: Prepared, found: list[Predictions]) -> str:
    """A short hash of everything that is shown: scripts of one build fit together, and no others do.

    Args:
        about: The entry in the manifest.
        texts: JSON of the query texts, [R].
        labels: JSON of the labels, [L].
        data: For the true labels.
        found: What the runs predicted.
    """
    content = hashlib.sha256(as_json(about).encode("ascii"))
    for part in (texts, labels):
        content.update("\n".join(part).encode("ascii"))
    for array in (data.truth.indptr, data.truth.indices):
        content.update(np.ascontiguousarray(array, np.int64).data)
    for predictions in found:
        content.update(predictions.hits.encode("ascii"))
        content.update(np.ascontiguousarray(predictions.ids).data)
        content.update(np.ascontiguousarray(predictions.scores).data)
    return content.hexdigest()[:_BUILD_DIGITS]


def _about(name: str, record: RunRecord) -> dict[str, Any]:
    """The entry of a run; predictions are kept of the way of scoring whose figures are the run's own."""
    changed = changed_settings(record) or {}
    figures = {key: record.metrics[key] for key in METRICS if key in record.metrics}
    return {
        "run": name,
        "id": record.run_id,
        "method": record.config["method"],
        "encoder": record.config["encoder"],
        "scorer": own_view(record),
        "seed": record.config["seed"],
        "settings": ", ".join(f"{key.removeprefix('params.')}={value}" for key, value in sorted(changed.items())),
        "metrics": {key: round(value, 4) if math.isfinite(value) else None for key, value in figures.items()},
    }


def _label_entries(data: Prepared) -> list[str]:
    """JSON of text, train rows and bin of every label, [L]; a label without a text is shown by its id."""
    texts, ids = (beginnings(column, len(column)) for column in (data.label_text, data.label_id))
    shown = map(as_json, (text if text.strip() else identity for text, identity in zip(texts, ids, strict=True)))
    counts = zip(data.train_rows.tolist(), data.bins.tolist(), strict=True)
    return [f"[{text},{train_rows},{group}]" for text, (train_rows, group) in zip(shown, counts, strict=True)]


def _joined(entries: list[str], size: int) -> Iterator[str]:
    for first in range(0, len(entries), size):
        yield f"[{','.join(entries[first : first + size])}]"


def _truth(data: Prepared, rows: int, size: int) -> Iterator[str]:
    for first in range(0, rows, size):
        bounds = data.truth.indptr[first : min(first + size, rows) + 1]
        labels = data.truth.indices[bounds[0] : bounds[-1]].tolist()
        yield numbers([labels[start:end] for start, end in pairwise((bounds - bounds[0]).tolist())])


def _predicted(found: Predictions, size: int) -> Iterator[str]:
    for first in range(0, len(found.ids), size):
        ids, scores = (numbers(values[first : first + size]) for values in (found.ids, found.scores))
        yield f'{{"ids":{ids},"scores":{scores}}}'


class _Scripts:
    """The files of one dataset; all carry its build."""

    def __init__(self, folder: Path, build: str) -> None:
        folder.mkdir()
        self._folder, self._build = folder, as_json(build)

    def write(self, kind: str, parts: Iterator[str]) -> None:
        """Files that follow each other."""
        for number, part in enumerate(parts):
            self._put(f"{kind}-{number:03}", kind, number, part)

    def write_one(self, kind: str, content: str) -> None:
        """A file alone."""
        self._put(kind, kind, 0, content)

    def _put(self, name: str, kind: str, number: int, content: str) -> None:
        given = (as_json(self._folder.name), as_json(kind), str(number), content, self._build)
        (self._folder / f"{name}.js").write_bytes(call("harnessShard", *given))
