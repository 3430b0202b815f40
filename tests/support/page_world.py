"""Made-up datasets for the explorer of the report page, and its shards, written by hand after their description.

What the page shows is checked against `World`, which counts hits its own way and shares no code with the page.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

IMAGE = '<img src=x onerror="window.owned=1">'
SCRIPT = "</script><script>window.owned=1</script>"
QUOTE = "\"'><b onmouseover=window.owned=1>{{7*7}}${window.owned=1}"
HOSTILE = (IMAGE, SCRIPT, QUOTE, "javascript:window.owned=1", "__proto__", "\u202ereversed\u2028line", "")
"""Texts that are markup, code, the name of what every object has, or nothing at all."""
PER_ROW = 10
BINS = ("head", "torso", "tail")
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


@dataclass(frozen=True)
class World:
    """One dataset as the explorer shows it."""

    name: str
    texts: list[str]
    truth: list[list[int]]
    labels: list[tuple[str, int, int]]
    """Text, number of train rows, and which bin: labels of equal frequency can be in different ones."""
    methods: list[str]
    ids: list[list[list[int]]]
    """By run, row and rank."""
    shard_rows: int = 500
    shard_labels: int = 2000
    build: str = "made"
    """What tells its files from those of an earlier time."""

    def frequency(self, label: int) -> tuple[str, int]:
        """Bin and number of train rows."""
        return BINS[self.labels[label][2]], self.labels[label][1]

    def score(self, run: int, row: int, rank: int) -> float | None:
        """One prediction in a row has no score that is a number."""
        unknown = self.ids[run][row][rank] < 0 or (row == 4 and rank == 1)
        return None if unknown else round(1 - (rank + run) / 16, 4)

    def hits(self, run: int, row: int, k: int) -> int:
        """How many of the first k predictions are true."""
        return len(set(self.ids[run][row][:k]) & set(self.truth[row]))

    def margins(self, one: int, other: int, k: int) -> list[int]:
        """By row, how many hits more the first run has among k."""
        return [self.hits(one, row, k) - self.hits(other, row, k) for row in range(len(self.texts))]


def world(name: str, rows: int, methods: list[str], *, seed: int = 0, **shards: Any) -> World:
    """Queries 0, 1, ... are hostile texts, and so are labels 0, 1, ...; the others say which they are."""
    labels = 60
    generator = np.random.default_rng(seed)
    texts = [*HOSTILE, *(f"query {row} about topic{row % 7}" for row in range(len(HOSTILE), rows))][:rows]
    names = [*HOSTILE, *(f"label {label}" for label in range(len(HOSTILE), labels))]
    counts = generator.geometric(0.1, labels)
    bins = np.empty(labels, np.int64)
    bins[np.argsort(-counts, kind="stable")] = np.arange(labels) * len(BINS) // labels
    order = generator.random((rows, labels)).argsort(axis=1)
    truth = [order[row, : 1 + row % 4].tolist() for row in range(rows)]
    # the later a run, the more of the truth it has found
    known = generator.random((len(methods), rows, 4)) < np.linspace(0.3, 0.9, len(methods))[:, None, None]
    ids = []
    for run in range(len(methods)):
        found = [[label for label, yes in zip(truth[row], known[run, row], strict=False) if yes] for row in range(rows)]
        rest = generator.random((rows, labels)).argsort(axis=1)[:, :20].tolist()
        ids.append(
            [(found[row] + [one for one in rest[row] if one not in truth[row]])[:PER_ROW] for row in range(rows)]
        )
    # where a search found nothing there is nothing to show
    ids[0][3] = [-1] * PER_ROW
    described = list(zip(names, counts.tolist(), bins.tolist(), strict=True))
    return World(name, texts, truth, described, methods, ids, **shards)


def _call(function: str, *values: object) -> str:
    told = ",".join(json.dumps(value) for value in values)
    for character in "<>&":
        told = told.replace(character, f"\\u{ord(character):04x}")
    return f"{function}({told});\n"


def write_shards(worlds: list[World], out: Path) -> None:
    """The explorer's files for these datasets."""
    described = []
    for number, one in enumerate(worlds):
        folder = out / f"d{number}"
        folder.mkdir(parents=True)
        described.append(_described(one, folder.name))
        _write_dataset(one, folder)
    manifest = {"version": 2, "per_row": PER_ROW, "datasets": described}
    (out / "manifest.js").write_text(_call("harnessExplorer", manifest))


def _described(one: World, folder: str) -> dict[str, Any]:
    runs = [
        {
            "run": f"r{run}",
            "id": f"run-{method}",
            "method": method,
            "encoder": "static",
            "scorer": "",
            "seed": 0,
            "settings": "",
            "metrics": {
                f"P@{k}": 100 * np.mean([one.hits(run, row, k) / k for row in range(len(one.texts))]) for k in (1, 3, 5)
            },
        }
        for run, method in enumerate(one.methods)
    ]
    rows = len(one.texts)
    sizes = {"rows": rows, "all_rows": rows, "shard_rows": one.shard_rows}
    sizes |= {"labels": len(one.labels), "shard_labels": one.shard_labels}
    least = {name: min(count for _, count, number in one.labels if BINS[number] == name) for name in BINS[:2]}
    return {
        "name": one.name,
        "title": one.name.upper(),
        "folder": folder,
        "build": one.build,
        **sizes,
        **least,
        "runs": runs,
    }


def _write_dataset(one: World, folder: Path) -> None:
    def shards(kind: str, values: list[Any], size: int) -> None:
        for number, start in enumerate(range(0, len(values), size)):
            text = _call("harnessShard", folder.name, kind, number, values[start : start + size], one.build)
            (folder / f"{kind}-{number:03}.js").write_text(text)

    shards("texts", one.texts, one.shard_rows)
    shards("truth", one.truth, one.shard_rows)
    shards("labels", one.labels, one.shard_labels)
    for run, ids in enumerate(one.ids):
        scores = [[one.score(run, row, rank) for rank in range(PER_ROW)] for row in range(len(ids))]
        for number, start in enumerate(range(0, len(ids), one.shard_rows)):
            part = slice(start, start + one.shard_rows)
            content = {"ids": ids[part], "scores": scores[part]}
            text = _call("harnessShard", folder.name, f"r{run}", number, content, one.build)
            (folder / f"r{run}-{number:03}.js").write_text(text)
        bits = [
            sum(1 << rank for rank, label in enumerate(row[:5]) if label in truth)
            for row, truth in zip(ids, one.truth, strict=True)
        ]
        hits = "".join(ALPHABET[value] for value in bits)
        (folder / f"r{run}-hits.js").write_text(_call("harnessShard", folder.name, f"r{run}-hits", 0, hits, one.build))
