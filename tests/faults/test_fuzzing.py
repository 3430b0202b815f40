"""Some seconds of hostile input to every reader of the harness; `python -m tests.faults.fuzz` goes on for longer."""

import ast
import io
import json
import os
import random
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from harness.errors import UserError
from tests.faults import fuzz, judge
from tests.faults.engine import TARGETS, Fuzzer
from tests.faults.judge import Judgement, Target, judged
from tests.faults.mutations import mutated

_HARNESS = Path(__file__).parents[2]
_EXAMPLES = 12
"""Hostile inputs of each reader, the same every time; new ones are for the command."""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sandbox")


# ---------------------------------------------------------------- the readers


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_bears_hostile_input(name: str, sandbox: Path) -> None:
    target = TARGETS[name]
    first = judged(target, target.seeds[0], sandbox)
    assert not first.finding, first.detail
    assert first.accepted, "what is refused from the start shows nothing of what lies behind"
    for seed in range(_EXAMPLES):
        found = judged(target, mutated(target.seeds, target.form, target.words, random.Random(seed)), sandbox)
        assert not found.finding, f"seed {seed}: {found.finding}\n{found.detail}"


def _zipped(name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, content)
    return stream.getvalue()


_START = b'{"event": "start", "time": "2026-01-01T00:00:00+00:00", "run_id": "x"'
_DEEP = b"[" * 300 + b"]" * 300
_TOKENIZER: dict[str, Any] = {
    **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None},
    **{"pre_tokenizer": None, "post_processor": None, "decoder": None},
    "model": {
        **{"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9},
        "vocab": {"a": 0},
    },
}
_TEMPLATE = {
    **{"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {}},
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
}
_NOTHING = b"{'descr': '|S0', 'fortran_order': False, 'shape': (260,), }"
_METRICS = _START + b'}\n{"event": "metrics", "time": "2026-01-01T00:00:00+00:00", "step": %d, "values": {}}\n'
_BEYOND = _TOKENIZER | {
    "model": _TOKENIZER["model"] | {"vocab": {"a": 0, "?": 1}},
    "post_processor": _TEMPLATE | {"special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [70_000], "tokens": ["[CLS]"]}}},
}
"""Puts a token before every text whose id no two bytes hold."""
_ENDLESS = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 1), }" % 10**30
_FOUND = [
    ("package-array", b"\x93NUMPY\x01\x00" + len(_NOTHING).to_bytes(2, "little") + _NOTHING),
    ("checkpoint-state", b"[]"),
    ("checkpoint-state", b'{"stage": 9}'),
    ("event-log", b"\xff\n"),
    ("event-log", b"[" * 3_000 + b"\n"),
    ("event-log", b'{"event": "start", "time": "today"}\n'),
    ("event-log", _START + b', "dataset": 7, "config": {}}\n'),
    ("event-log", _START + b'}\n{"event": "metrics", "time": "2026-01-01T00:00:00+00:00", "step": 1, "values": 7}\n'),
    ("event-log", _METRICS % (10**400)),
    ("event-log-sent", _START + b"}\n"),
    ("metric-name", b"_u" + b"a" * 40 + b"_"),
    ("folder-note", b'{"encoder": 7}'),
    ("model-config", b'{"hidden_size": 1e999, "model_type": "bert"}'),
    ("predicted-ids", b"\x93NUMPY\x01\x00\x02\x00(\n"),
    ("record", b'{"config": ' + _DEEP + b"}"),
    ("repository-rows", b'{"uid": 1, "title": "", "target_ind": [], "target_rel": [' + _DEEP + b"]}\n"),
    ("study", b'{"id": "\\ud800"}'),
    ("model-index", b'{"weight_map": {"a": "' + b"a" * 300 + b'"}}'),
    ("name", b"a" * 300),
    ("folder-note", b'{"encoder": "/' + b"a" * 300 + b'/small"}'),
    ("tokenizer", json.dumps(_TOKENIZER).encode()),
    ("tokenizer", json.dumps(_TOKENIZER | {"post_processor": _TEMPLATE}).encode()),
    ("tokenizer", json.dumps(_TOKENIZER | {"model": _TOKENIZER["model"] | {"vocab": {}}}).encode()),
    ("tokenizer", json.dumps(_BEYOND).encode()),
    ("over-word", b"beta=" + b"9" * 400 + b":" + b"9" * 401),
    ("over-word", b"lambda=0:1e100:step=1e-300"),
    ("run-config", b"[[]]: "),
    ("stored-rows", _zipped("concat.npy", b"\x93NUMPY\x01\x00" + len(_ENDLESS).to_bytes(2, "little") + _ENDLESS)),
    ("set-word", b"device=cuda:" + b"9" * 5_000),
]
"""What once ended in a traceback."""


@pytest.mark.parametrize(("name", "data"), _FOUND, ids=[f"{name}-{place}" for place, (name, _) in enumerate(_FOUND)])
def test_what_was_found_stays_found(name: str, data: bytes, sandbox: Path) -> None:
    assert not judged(TARGETS[name], data, sandbox).finding


# ---------------------------------------------------------------- are these all readers?

_READING = {
    *("json.loads", "orjson.loads", "json.load", "np.load", "zipfile.ZipFile", "tarfile.open", "ast.parse"),
    *("read_json", "read_yaml", "parse_yaml", "read_text", "read_bytes", "safe_open", "load_file", "load_array"),
    *("json_chunks", "line_chunks", "from_file", "from_pretrained", "model_validate_json", "parse_event"),
    *("first_event", "read_parquet", "read_table"),
}
"""By which bytes become values."""
_TRUSTED = {
    "the kernel": {"machine/memory", "machine/threads", "runs/environment", "runs/lock"},
    "its own child or parent process": {
        *("cli/run", "data/sources/pydocs", "data/sources/docwalk", "model/parabel", "model/forest_process"),
        *("experiments/bench/run", "experiments/sweep/worker"),
    },
    "files of this repository": {
        *("experiments/tune", "report/page/__init__", "report/site", "report/statistics", "settings/published"),
    },
    "what it wrote itself, verified by its manifest": {
        *(
            "data/check",
            "data/sources/apt",
            "data/sources/debian",
            "model/encoders/static",
            "infer/predict",
            "experiments/sweep/results",
        ),
    },
    "JSON that it made in memory, as the key of a cache": {
        "plan/build",
    },
    "what the tests with hostile input feed, not the valid seeds": {"io/models", "cli/doctor"},
}
"""What a module reads that is no file of somebody else; modules of `harness` that need not be entered by a target."""


def _reading_modules() -> set[str]:
    """Modules with a function that turns bytes into values, as paths inside `harness`."""
    found = set()
    for file in sorted(_HARNESS.glob("harness/**/*.py")):
        tree = ast.parse(file.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        if any(_names(inner) & _READING for function in functions for inner in ast.walk(function)):
            found.add(file.relative_to(_HARNESS / "harness").with_suffix("").as_posix())
    return found


def _names(node: ast.AST) -> set[str]:
    """A name alone, and with what it is looked up in."""
    if isinstance(node, ast.Attribute):
        return {node.attr, f"{node.value.id}.{node.attr}"} if isinstance(node.value, ast.Name) else {node.attr}
    return {node.id} if isinstance(node, ast.Name) else set()


def test_no_reader_is_left_out(sandbox: Path) -> None:
    """Every module that turns bytes into values is entered by a target, or there is a reason why it need not be."""
    seen: set[CodeType] = set()

    def noted(frame: FrameType, event: str, argument: Any) -> None:  # a profiler would hear of every C call as well
        seen.add(frame.f_code)

    before = sys.gettrace()
    threading.settrace(noted)
    sys.settrace(noted)
    try:
        for target in TARGETS.values():
            judged(target, target.seeds[0], sandbox)
    finally:
        sys.settrace(before)
        threading.settrace(None)
    inside = f"{_HARNESS / 'harness'}/"
    entered = {code.co_filename.removeprefix(inside).removesuffix(".py") for code in seen}
    reading = _reading_modules()
    assert len(reading) > 30
    assert reading - entered - set().union(*_TRUSTED.values()) == set()


# ---------------------------------------------------------------- does the engine find anything?


def _planted(read: Any) -> Target:
    return Target("planted", read, lambda: [b"seed"])


def _hang(data: bytes, folder: Path) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda data, folder: {}["x"], "KeyError"),
        (lambda data, folder: [0] * 2**40, "MemoryError"),
        (lambda data, folder: sys.exit(0), "SystemExit"),
        (_hang, "TooSlow"),
        (lambda data, folder: (folder.parent / "x").write_bytes(data), "left its folder: open"),
        (lambda data, folder: folder.rename(folder.with_name("y")), "left its folder: os.rename"),
        (lambda data, folder: subprocess.run(["true"], check=True), "left its folder: subprocess.Popen"),
        (lambda data, folder: (_ for _ in ()).throw(UserError("")), "UserError without a word"),
    ],
)
def test_misbehaviour_is_a_finding(read: Any, what: str, sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "CPU_SECONDS", 0.1)
    assert judged(_planted(read), b"", sandbox).finding.startswith(what)


def test_an_answer_or_a_refusal_is_none(sandbox: Path) -> None:
    def refuses(data: bytes, folder: Path) -> None:
        raise UserError("no")

    def answers(data: bytes, folder: Path) -> None:
        (folder / "inside").write_bytes(data)
        Path(os.environ["HARNESS_HOME"]).mkdir()

    assert judged(_planted(refuses), b"", sandbox) == Judgement(accepted=False)
    assert judged(_planted(answers), b"", sandbox) == Judgement(accepted=True)
    empty = _planted(lambda data, folder: next(folder.iterdir()))
    assert judged(empty, b"", sandbox).finding.startswith("StopIteration"), "every input begins with an empty folder"


# ---------------------------------------------------------------- the command


def test_command_prints_what_was_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--minutes", "0.01", "--engine", "mutations", "--findings", str(tmp_path / "found")]
    assert fuzz.main([*words, "--targets", "metric-name,synthetic-word"]) == 0
    printed = capsys.readouterr().out
    assert "metric-name" in printed
    assert "inputs to 2 parsers and loaders in 0.01 minutes (mutations): 0 findings" in printed
    assert not (tmp_path / "found").exists()


def _dies(data: bytes, folder: Path) -> None:
    if data != b"seed":
        os._exit(7)


@pytest.mark.parametrize(
    ("read", "what"), [(_dies, "exit code 7"), (lambda data, folder: 1 // (len(data) - 4), "Zero")]
)
def test_command_keeps_what_it_finds(
    read: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target("planted", read, lambda: [b"seed"])
    outcome = Fuzzer(None, tmp_path / "found", seed=0).run([target], 0.01)["planted"]
    assert outcome.findings == 1
    (input_file,) = (path for path in (tmp_path / "found").iterdir() if not path.suffix)
    assert what in input_file.with_suffix(".txt").read_text()
    if "Zero" in what:
        monkeypatch.setitem(TARGETS, "planted", target)
        assert fuzz.main(["--engine", "mutations", "--replay", str(input_file)]) == 1
        assert "ZeroDivisionError" in capsys.readouterr().out
