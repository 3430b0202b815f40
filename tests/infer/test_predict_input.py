"""What `predict` and `export` are given: files in many shapes, and mistakes that are found before a model is loaded."""

import gzip
import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import main
from harness.errors import DataError
from harness.infer.predict import read_labels, read_texts

LINES = st.text(st.characters(exclude_characters="\n", codec="utf-8")).filter(lambda text: not text.endswith("\r"))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines") / "texts.txt"


@given(st.lists(LINES, min_size=1).filter(lambda texts: not texts[0].startswith("\ufeff")))
def test_lines_come_back_as_they_were(file: Path, texts: list[str]) -> None:
    """fault 44"""
    for mark, end in (("", "\n"), ("\ufeff", "\r\n")):
        content = (mark + "".join(text + end for text in texts)).encode()
        for stored in (content, gzip.compress(content)):
            file.write_bytes(stored)
            assert read_texts(str(file)) == texts
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
            assert read_texts("-") == texts


def test_texts_of_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a\\nb", "id": 1}\n{"text": ""}\n')
    assert read_texts(str(path)) == ["a\nb", ""]
    packed = tmp_path / "texts.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_texts(str(packed)) == ["a\nb", ""]


def test_labels_of_files(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("fires\n\nfloods")
    assert read_labels(str(tmp_path / "plain.txt")) == [("new-1", "fires"), ("new-3", "floods")]
    path = tmp_path / "labels.jsonl"
    path.write_text('{"text": "fires", "id": 7}\n{"text": "floods"}\n')
    assert read_labels(str(path)) == [("7", "fires"), ("new-2", "floods")]
    path.write_text('{"text": "fires"}\n{"text": " "}\n')
    with pytest.raises(DataError, match=r"labels\.jsonl:2: a new label needs a text"):
        read_labels(str(path))


FILES = {
    "bad.txt": b"fine\nnot \xff fine\n",
    "empty.txt": b"",
    "blank.txt": b"\n \n",
    "no-text.jsonl": b'{"text": "a"}\n{"txt": "a"}\n',
    "number.jsonl": b'{"text": 3}\n',
    "broken.jsonl": b'{"text": "a"}\n{"text": \n',
    "good.txt": b"a text\n",
    "surrogate.jsonl": b'{"text": "a"}\n{"text": "\\ud83d"}\n',
    "utf16.txt": "a text\n".encode("utf-16"),
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("predict --run last", "either --text, repeatable, or --file"),
        ("predict --run last --text a --file good.txt", "either --text, repeatable, or --file"),
        ("predict --run last --text a -k 0", "-k is 0; ask for at least one label"),
        ("predict --run last --file no-such.txt", "no-such.txt: cannot be read: No such file"),
        ("predict --run last --file .", "cannot be read: Is a directory"),
        ("predict --run last --file empty.txt", "empty.txt: the file is empty"),
        ("predict --run last --file bad.txt", "bad.txt:2: not UTF-8 text"),
        ("predict --run last --file utf16.txt", "utf16.txt: UTF-16 text; convert it to UTF-8"),
        ("predict --run last --file no-text.jsonl", "no-text.jsonl:2: no `text` in this row"),
        ("predict --run last --file number.jsonl", "number.jsonl:1: `text` must be a string, not a whole number"),
        ("predict --run last --file broken.jsonl", "broken.jsonl:2: not valid JSON"),
        ("predict --run last --file surrogate.jsonl", "surrogate.jsonl:2: not valid JSON"),
        ("predict --run last --text a --add-labels no-such.txt", "no-such.txt: cannot be read"),
        ("predict --run last --text a --add-labels blank.txt", "blank.txt: the file has no labels"),
        ("predict --run last --text a --add-labels bad.txt", "bad.txt:2: not UTF-8 text"),
        ("predict --run last --text a", "there is no finished run in"),
        ("predict --run nope --text a", "there is no run 'nope'; `python -m harness ls runs` lists"),
        ("predict --run ../../etc --text a", "there is no run '../../etc'"),
        ("export --run last --out new", "there is no finished run in"),
        ("export --run last --out new --format onnx", "unknown format 'onnx'; known: safetensors, sentence-"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: str,
    message: str,
    tmp_path: Path,
    workspace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """faults 44 and 51, fault 70"""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(arguments.split())
    shown, error = capsys.readouterr()
    assert (done.value.code, shown) == (2, "")
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not workspace.exists()
    assert not (tmp_path / "new").exists()


def test_empty_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(DataError, match="standard input: the file is empty"):
        read_texts("-")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff")))
    with pytest.raises(DataError, match="standard input:2: not UTF-8"):
        read_texts("-")
