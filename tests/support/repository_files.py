"""Small datasets as the Extreme Classification Repository has them, good unless a part is replaced, and JSON lines."""

import gzip
import json
from pathlib import Path
from typing import Any

from harness.data import Dataset

RIGHT_TO_LEFT = "\u05e9\u05dc\u05d5\u05dd"
NAMES = ["café", "🙂", RIGHT_TO_LEFT, ""]
LABELS = [{"uid": f"L{number}", "title": name, "content": f"about {name}"} for number, name in enumerate(NAMES)]
TRAIN = [
    {"uid": "a", "title": "one", "content": "first", "target_ind": [2, 0], "target_rel": [1.0, 1.0]},
    {"uid": "b", "title": "two", "content": "", "target_ind": [1, 3], "target_rel": [0.0, 0.5]},
    {"uid": "c", "title": "", "content": "third", "target_ind": [], "target_rel": []},
]
TEST = [{"uid": "d", "title": "four\u0000", "target_ind": [3]}, {"uid": "e", "title": "five", "target_ind": [0, 1, 2]}]


def json_lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_jsonl(folder: Path, **files: list[Any] | bytes) -> Path:
    """Write files of JSON lines, named by the keywords."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_bytes(rows if isinstance(rows, bytes) else json_lines(rows).encode())
    return folder


def write_json_layout(folder: Path, **changed: Any) -> Path:
    """Write a whole small dataset; `trn=`, `tst=`, `lbl=` replace a file by other rows, text or bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ({"lbl": LABELS, "trn": TRAIN, "tst": TEST} | changed).items():
        text = json_lines(rows) if isinstance(rows, list) else rows
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(data))
    (folder / "filter_labels_train.txt").write_text("0 1\n2 3\n2 3\n")
    (folder / "filter_labels_test.txt").write_text("")
    return folder


def write_text_layout(folder: Path, labels_folder: Path | None = None, **changed: str | bytes) -> Path:
    files: dict[str, str | bytes] = {
        "Y": "".join(f"{name}\n" for name in NAMES),
        "trn_X": "one\ntwo\n\n",
        "tst_X": "four\r\nfive",
        "trn_X_Y": "3 4\n2:1.0 0:1.0\n1:0 3:0.5\n\n",
        "tst_X_Y": "2 4\n3:1\n0:1 1:1 2:1\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (files | changed).items():
        target = labels_folder if labels_folder and name.endswith("X_Y") else folder
        (target / f"{name}.txt").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def write_card(home: Path, name: str, **values: Any) -> None:
    (home / "cards").mkdir(parents=True, exist_ok=True)
    card = {"title": name.upper(), "summary": "a test", "source": "repository", **values}
    (home / "cards" / f"{name}.yaml").write_text(json.dumps(card))


def dense(dataset: Dataset) -> dict[str, list[list[int]]]:
    names = ("train", "test", "train_filter", "test_filter")
    return {name: getattr(dataset, name).toarray().astype(int).tolist() for name in names}


EXPECTED = {
    "train": [[1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]],
    "test": [[0, 0, 0, 1], [1, 1, 1, 0]],
    "train_filter": [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]],
    "test_filter": [[0, 0, 0, 0], [0, 0, 0, 0]],
}


def good(number: int) -> dict[str, Any]:
    return {"uid": f"u{number}", "title": "t", "target_ind": [0], "target_rel": [1]}
