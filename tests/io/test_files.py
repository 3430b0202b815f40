"""Whole files or none, safe names, manifests that detect damage."""

import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from harness.errors import DataError, UserError
from harness.io.files import build_once, checked_name, read_json, write_json


@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc/passwd", "a/b", "", ".", "..", ".hidden", "x" * 300, "nul", "CON", "a\0b", "a b", "é", "a..b"],
)
def test_unsafe_names_are_refused(name: str) -> None:
    """fault 70"""
    with pytest.raises(UserError, match="cannot be used"):
        checked_name("run", name)


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """fault 33"""

    def full_disk(folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        build_once(tmp_path / "cache" / "thing", full_disk)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["thing.lock"]


def test_built_once_and_rebuilt_when_damaged(tmp_path: Path) -> None:
    calls = []

    def build(folder: Path) -> dict[str, Any]:
        calls.append(folder)
        (folder / "part.bin").write_bytes(b"12345678")
        return {"answer": 42}

    folder = tmp_path / "thing"
    assert build_once(folder, build)["answer"] == 42
    assert build_once(folder, build)["answer"] == 42
    assert len(calls) == 1
    (folder / "part.bin").write_bytes(b"1234")  # truncated: the size no longer fits
    assert build_once(folder, build)["answer"] == 42
    assert len(calls) == 2
    assert (folder / "part.bin").read_bytes() == b"12345678"


def test_two_processes_build_one_folder(tmp_path: Path) -> None:
    """fault 34"""
    folder, fork = tmp_path / "thing", get_context("fork")

    def build(temporary: Path) -> dict[str, Any]:
        with (tmp_path / "builds").open("a") as log:
            log.write("x")
        time.sleep(0.3)
        (temporary / "part").write_text("same bytes")
        return {}

    def ask() -> None:
        build_once(folder, build)
        assert (folder / "part").read_text() == "same bytes"

    processes = [fork.Process(target=ask) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 3
    assert (tmp_path / "builds").read_text() == "x"


def test_json_is_written_whole_and_refuses_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1, "a": "é"})
    assert read_json(tmp_path / "a.json") == {"a": "é", "b": 1}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert read_json(tmp_path / "a.json") == {"a": "é", "b": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_broken_json_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n"a": 1,,\n}')
    with pytest.raises(DataError, match=r"a\.json:2: not valid JSON"):
        read_json(tmp_path / "a.json")
