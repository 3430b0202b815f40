"""Texts of repository files beyond the two main layouts."""

import json
from pathlib import Path

import pytest

from harness.data import load
from harness.errors import DataError


def test_label_names_stand_in_for_a_label_file(tmp_path: Path) -> None:
    """LF-Wikipedia-500K is published with `Yf.txt` instead of `lbl.json.gz`."""
    rows = [{"uid": "a", "title": "A town", "content": "by the sea", "target_ind": [2, 0]}]
    for name in ("trn", "tst"):
        (tmp_path / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "Yf.txt").write_text("0->Living people\r\n1->A->B\n2->Caf\u00e9s\u2028x\n", encoding="utf-8")
    dataset = load(tmp_path)
    assert list(dataset.label_text) == ["Living people", "A->B", "Caf\u00e9s\u2028x"]
    assert list(dataset.label_id) == ["0", "1", "2"]
    assert dataset.train.indices.tolist() == [0, 2]
    (tmp_path / "Yf.txt").write_text("0->x\n1 y\n2->z\n")
    with pytest.raises(DataError, match=r"Yf\.txt:2: expected number->name"):
        load(tmp_path)
