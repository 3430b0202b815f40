"""YAML files as data: what is accepted, and everything that is refused with its file and line."""

import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.errors import DataError
from harness.io.yaml import parse_yaml, read_yaml
from tests.faults.accounts import Account
from tests.support.commands import call


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path, match: str, line: int | None = None) -> DataError:
    with pytest.raises(DataError, match=match) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value)
    if line is not None:
        assert caught.value.line == line
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1.0e-5", 1e-5),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("010", 10),
        ("1:30", "1:30"),
        ("null", None),
        ("[1, 3, 5]", [1, 3, 5]),
        ("{a: 0.6, b: 2.6}", {"a": 0.6, "b": 2.6}),
        ("'12'", "12"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    """fault 65: `lr: 1e-5` is a number, `no` is a word."""
    parsed = parse_yaml(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_mapping_is_read_in_order(tmp_path: Path) -> None:
    path = written(tmp_path / "a.yaml", "b: 1\na: {c: [x, y]}\n")
    assert list(read_yaml(path).items()) == [("b", 1), ("a", {"c": ["x", "y"]})]


TAGS = [
    "!!python/object/apply:os.system ['touch MARKER']",
    "!!python/object:subprocess.Popen {}",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/object/new:type ['x', [], {}]",
    "!run 'touch MARKER'",
    "!!binary aGVsbG8=",
    "!!set {a, b}",
]


@pytest.mark.parametrize("tag", TAGS)
def test_tags_are_refused_and_nothing_runs(tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 66."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "a.yaml", f"ok: 1\nbad: {tag.replace('MARKER', str(tmp_path / 'marker'))}\n")
    refused(path, "tags such as .* are not accepted", line=2)
    assert not (tmp_path / "marker").exists()


def test_objects_in_yaml_are_not_built_anywhere(
    tmp_path: Path, workspace: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 66: in a config, on the command line and in a card"""
    marker = tmp_path / "marker"
    tag = f"!!python/object/apply:os.system ['touch {marker}']"
    path = written(tmp_path / "a.yaml", f"encoder: {tag}\n")
    card = workspace / "cards" / "evil.yaml"
    card.parent.mkdir(parents=True)
    card.write_text(f"title: x\nsummary: {tag}\nsource: jsonl\n")
    tried = [
        ["run", "--config", str(path)],
        ["run", "--set", f"encoder={tag}"],
        ["run", "--dataset", "evil"],
        ["data", "check", "evil"],
        ["plan", "--config", str(path)],
        ["sweep", "--trials", "1", "--dataset", "evil"],
    ]
    for words in tried:
        assert call(*words) == 2, words
        assert "are not accepted" in capsys.readouterr().err
        assert not marker.exists()
    account.did(f"`!!python/object/apply:os.system` in a config, a card and --set, given to {len(tried)} commands")
    account.saw("each ended with code 2 and named the tag; the file it would have made is not there")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("!!python/object:x.Y\na: 1\n", "tags"),
        ("!!str a: 1\n", "tags"),
        ("a: &x 1\nb: *x\n", "anchors and aliases"),
        ("a: &x [1]\n", "anchors and aliases"),
        ("a: 1\nb: {<<: &x {c: 1}}\n", "anchors and aliases"),
    ],
)
def test_tags_anchors_and_aliases_are_refused_anywhere(text: str, match: str, tmp_path: Path) -> None:
    """fault 66."""
    refused(written(tmp_path / "a.yaml", text), match)


def test_an_anchor_bomb_is_refused_before_it_expands(tmp_path: Path, account: Account) -> None:
    """fault 66: 9 levels of 9 aliases would be 387 million values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    path = written(tmp_path / "a.yaml", "\n".join(lines))
    with bounded(seconds=5, megabytes=20) as cost:
        refused(path, "anchors", line=1)
    account.did(f"{path.stat().st_size} bytes of YAML whose 9 levels of 9 aliases are {9**9:,} values")
    account.saw(f"refused at line 1, in {cost['text']}")


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: 2\na: 3\n", 3), ("x:\n  a: 1\n  a: 1\n", 3), ("{a: 1, a: 2}", 1)]
)
def test_duplicate_keys_are_refused(text: str, line: int, tmp_path: Path) -> None:
    """fault 65."""
    error = refused(written(tmp_path / "a.yaml", text), "duplicate key", line)
    assert "'a'" in str(error) or '"a"' in str(error)


def test_a_hundred_megabyte_file_is_refused_unread(
    tmp_path: Path, workspace: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 66: as a config and as a card; it begins as a sensible one does"""
    path = written(tmp_path / "a.yaml", "encoder: tiny\n")
    with path.open("r+b") as stream:
        stream.truncate(100_000_000)
    (workspace / "cards").mkdir(parents=True)
    (workspace / "cards" / "big.yaml").symlink_to(path)
    with bounded(seconds=5, megabytes=1) as cost:
        refused(path, "larger than 1,000,000 bytes")
    for words in (["run", "--config", str(path)], ["run", "--dataset", "big"], ["plan", "--config", str(path)]):
        assert call(*words) == 2
        assert "larger than 1,000,000 bytes" in capsys.readouterr().err
    assert not (workspace / "runs").exists()
    account.did("100 MB of YAML as a config (run, plan) and as a dataset's card")
    account.saw(f"exit code 2, refused unread in {cost['text']}")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a: [1, 2\n", "not valid YAML"),
        ("a: b: c\n", "not valid YAML"),
        ("a: 'x\n", "not valid YAML"),
        ("\ta: 1\n", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("- 1\n- 2\n", "key: value"),
        ("just words\n", "key: value"),
        ("", "key: value"),
        (b"a: \xff\xfe\n", "not UTF-8"),
        (b"a: \x00\n", "not valid YAML"),
    ],
)
def test_what_is_no_mapping_is_named(text: str | bytes, match: str, tmp_path: Path) -> None:
    refused(written(tmp_path / "a.yaml", text), match)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_very_deep_nesting_is_refused_at_once(opening: str, tmp_path: Path) -> None:
    """fault 66: the parser would need hours for this file."""
    start = "a:\n " if opening in "- ? " else "a: "
    refused(written(tmp_path / "a.yaml", start + opening * 100_000), "nested more than 32 levels deep")


@contextmanager
def bounded(seconds: float, megabytes: float) -> Iterator[dict[str, str]]:
    """Fails if the block takes longer of a processor, or has more of Python's memory at once; fills in the cost."""
    cost: dict[str, str] = {}
    tracemalloc.start()
    began = time.process_time()
    try:
        yield cost
    finally:
        spent, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    cost["text"] = f"{1000 * spent:.0f} ms and {peak / 1e6:.1f} MB"
    assert spent < seconds, cost
    assert peak < megabytes * 1e6, cost
