"""Label ids that cannot be: the same faults in every format that names labels, refused at their line or set right."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.data import load
from harness.errors import DataError
from tests.faults.accounts import Account
from tests.support.repository_files import good, write_json_layout, write_jsonl, write_text_layout

FAULTY = {">= L": "4", "far beyond": "9999999999", "negative": "-1", "float": "1.0", "text": "x"}
"""There are four labels."""


def sparse_text(folder: Path, labels: list[str]) -> tuple[Path, str]:
    words = " ".join(f"{label}:1" for label in labels)
    return write_text_layout(folder, trn_X_Y=f"3 4\n0:1\n{words}\n\n"), "trn_X_Y.txt:3: "


def old_sparse_text(folder: Path, labels: list[str]) -> tuple[Path, str]:
    return write_text_layout(folder, trn_X_Y=f"3 9 4\n0 1:1\n{','.join(labels)} 8:0.5\n 2:1\n"), "trn_X_Y.txt:3: "


def repository_json(folder: Path, labels: list[str]) -> tuple[Path, str]:
    listed = ", ".join(f'"{label}"' if label == "x" else label for label in labels)
    rows = [json.dumps(good(1)), f'{{"uid": "b", "title": "t", "target_ind": [{listed}]}}', json.dumps(good(3))]
    return write_json_layout(folder, trn="\n".join(rows).replace(', "target_rel": [1]', "")), "trn.json.gz:2: "


def json_lines(folder: Path, labels: list[str]) -> tuple[Path, str]:
    listed = ", ".join(f'"{label}"' if label == "x" else label for label in labels)
    rows = ['{"text": "t", "labels": [0]}', f'{{"text": "t", "labels": [{listed}]}}', '{"text": "t", "labels": []}']
    texts = [{"id": label, "text": "label"} for label in range(4)]
    train = "\n".join(rows).encode()
    return write_jsonl(folder, labels=texts, test=[{"text": "t", "labels": [0]}], train=train), "train.jsonl:2: "


def filter_file(folder: Path, labels: list[str]) -> tuple[Path, str]:
    write_json_layout(folder)
    (folder / "filter_labels_train.txt").write_text("0 0\n" + "".join(f"1 {label}\n" for label in labels))
    return folder, "filter_labels_train.txt:3: "


@pytest.mark.parametrize("write", [sparse_text, old_sparse_text, repository_json, json_lines, filter_file])
def test_a_label_id_that_cannot_be(
    write: Callable[[Path, list[str]], tuple[Path, str]], tmp_path: Path, account: Account
) -> None:
    """fault 43: refused at their line; unsorted is sorted; repeats are refused, or kept once and warned of."""
    messages = {}
    for what, label in FAULTY.items():
        folder, place = write(tmp_path / "set", ["0", label])
        with pytest.raises(DataError) as caught:
            load(folder)
        assert str(caught.value).startswith(f"{folder}/{place}"), what
        messages[what] = str(caught.value).removeprefix(f"{folder}/{place}")
        assert label in messages[what]
    matrix = "train_filter" if write is filter_file else "train"
    unsorted = getattr(load(write(tmp_path / "set", ["3", "0", "2"])[0]), matrix)
    assert unsorted.indices[unsorted.indptr[1] : unsorted.indptr[2]].tolist() == [0, 2, 3]
    folder, place = write(tmp_path / "set", ["3", "3"])
    if write in (sparse_text, old_sparse_text):
        with pytest.raises(DataError, match=f"{place}label 3 appears twice in this row"):
            load(folder)
        twice = "refused"
    else:
        data = load(folder)
        once = getattr(data, matrix)
        assert once.indices[once.indptr[1] : once.indptr[2]].tolist() == [3]
        warned = any("kept once" in warning for warning in data.metadata["provenance"]["warnings"])
        assert warned == (write is not filter_file)
        twice = "kept once, with a warning" if warned else "one pair"
    if write is not old_sparse_text:
        name = write.__name__.replace("_", " ")
        account.did(f"{name}: label {', '.join(FAULTY.values())} of 4; unsorted; one id twice in a row")
        account.saw(f"{len(messages)} of {len(FAULTY)} refused at {place.strip(': ')}; unsorted sorted; twice {twice}")
