"""Write data as scripts: each is one call of a function of the page, with JSON arguments.

A page that was opened from a file may not fetch, but it may load scripts. The texts in them are not ours, so the
JSON is plain ASCII: line separators that end a JavaScript string, lone surrogates and control characters are escaped
by that alone, and `<`, `>` and `&` are escaped too, so that nothing reads as markup wherever a script is put.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from harness.data.ragged import Texts
from harness.report.explorer.predictions import Predictions, Prepared, Shown
from harness.report.results import own_scorer
from harness.report.rows import changed_settings
from harness.runs.record import RunRecord

LONGEST = 300
"""Largest number of characters of a text; whole documents would make the scripts a copy of the dataset."""
LARGEST = 390_000
"""Largest size of the rows in one file, bytes."""
_BYTES = 4 * (LONGEST + 1)
"""The first `LONGEST + 1` characters of a text are never longer than this, in UTF-8."""
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\x7f": "\\u007f"}
METRICS = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5")
SHARD_ROWS = 500
SHARD_LABELS = 2000
_LONGEST_SCORE = 25
"""Largest size of a score with its comma, bytes."""
_BUILD_DIGITS = 12


def write_dataset(
    folder: Path, shown: Shown, data: Prepared, found: list[tuple[RunRecord, Predictions]]
) -> dict[str, Any]:
    """Write the scripts of a dataset; returns its entry in the manifest.

    Args:
        folder: Folder to make; its name stands for the dataset in scripts and manifest.
        shown: The dataset and its chosen runs.
        data: Texts and labels of the dataset.
        found: Records with predictions, at least one; all of equally many rows.
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
    contents = {
        **_numbered("texts", _joined(texts, size)),
        **_numbered("truth", _truth(data, rows, size)),
        **_numbered("labels", _joined(entries, label_size)),
    }
    for place, (_, predictions) in enumerate(found):
        contents |= _numbered(f"r{place}", _predicted(predictions, size))
        contents[f"r{place}-hits", None] = as_json(predictions.hits)
    # the page combines only scripts of the same build
    build = hashlib.sha256("\n".join([as_json(about), *contents.values()]).encode("ascii")).hexdigest()[:_BUILD_DIGITS]
    folder.mkdir()
    for (kind, number), content in contents.items():
        name = kind if number is None else f"{kind}-{number:03}"
        given = (as_json(folder.name), as_json(kind), str(number or 0), content, as_json(build))
        (folder / f"{name}.js").write_bytes(call("harnessShard", *given))
    return {**about, "build": build}


def _numbered(kind: str, parts: Iterator[str]) -> dict[tuple[str, int | None], str]:
    """Number the contents of consecutive files; by kind and number."""
    return {(kind, number): part for number, part in enumerate(parts)}


def _about(name: str, record: RunRecord) -> dict[str, Any]:
    """Return the manifest's entry of a run; its predictions are those of the scorer that it reports."""
    changed = changed_settings(record) or {}
    figures = {key: record.metrics[key] for key in METRICS if key in record.metrics}
    return {
        "run": name,
        "id": record.run_id,
        "method": record.config["method"],
        "encoder": record.config["encoder"],
        "scorer": own_scorer(record),
        "seed": record.config["seed"],
        "settings": ", ".join(f"{key.removeprefix('params.')}={value}" for key, value in sorted(changed.items())),
        "metrics": {key: round(value, 4) if math.isfinite(value) else None for key, value in figures.items()},
    }


def _label_entries(data: Prepared) -> list[str]:
    """Return JSON of text, train rows and bin per label, [L]; a label without a text is shown by its id."""
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


def as_json(value: Any) -> str:
    """Format a value as ASCII JSON that is safe inside a script; raises on NaN and infinity."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return text


def numbers(values: NDArray[Any] | list[list[int]]) -> str:
    """Format an array of numbers of any shape as JSON; what is not finite becomes null."""
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY).decode("ascii")


def call(function: str, *arguments: str) -> bytes:
    """Return a script that calls a function; the arguments are JSON already."""
    return f"{function}({','.join(arguments)});\n".encode("ascii")


def beginnings(texts: Texts, rows: int) -> list[str]:
    """Return the first texts of a column, cut to `LONGEST` characters; long texts are never read whole."""
    values = np.asarray(texts.values)
    starts, ends = texts.offsets[:rows], texts.offsets[1 : rows + 1]
    bounds = zip(starts.tolist(), np.minimum(ends, starts + _BYTES).tolist(), strict=True)
    decoded = (values[start:end].tobytes().decode("utf-8", "replace") for start, end in bounds)
    return [text if len(text) <= LONGEST else f"{text[:LONGEST]}…" for text in decoded]


def rows_per_file(row_bytes: NDArray[np.int64], usual: int) -> int:
    """Return the rows per file: `usual`, halved until no file is larger than `LARGEST`.

    Args:
        row_bytes: Bytes of each row, [R].
        usual: Rows per file if they are short.
    """
    before = np.concatenate([[0], np.cumsum(row_bytes)])
    while usual > 1:
        cuts = np.append(np.arange(0, len(row_bytes), usual), len(row_bytes))
        if np.diff(before[cuts]).max(initial=0) <= LARGEST:
            break
        usual //= 2
    return usual
