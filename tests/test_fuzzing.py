"""Hostile input to every reader of the harness, some seconds of it; `python -m tests.trust.fuzz` goes on for longer."""

import ast
import io
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from tests.trust import fuzz, fuzzing
from tests.trust.fuzzing import Sandbox, Target, judged
from tests.trust.mutations import WORDS, mutated
from tests.trust.targets import TARGETS
from tests.trust.world import world

_HARNESS = Path(fuzzing.__file__).parents[2]
_EXAMPLES = 24
_SLOW = {"record-in-reports": 8, "package-record": 8, "package-array": 8, "row-scores": 8, "published-table": 8}
_SLOW |= {"model-weights": 8, "event-log-sent": 10, "dataset-card": 12, "method-card": 12, "printed-statistics": 12}
"""Targets that take more than a few milliseconds an input: fewer examples."""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    return Sandbox(tmp_path_factory.mktemp("sandbox"))


# ---------------------------------------------------------------- the readers

_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
_words = st.sampled_from([word for word in WORDS if len(word) < 100]) | st.binary(max_size=6)
_numbers = st.sampled_from([b"0", b"1", b"2", b"3", b"9", b"-1", b"1.5", b"1e3", b"00", b"+1", b"", b"\xd9\xa3"])
_pair = st.builds(lambda *parts: b"".join(parts), _numbers, st.sampled_from([b":", b",", b" ", b"::"]), _numbers)
_sparse = st.lists(st.lists(_pair | _numbers, max_size=4).map(b" ".join), max_size=5).map(b"\n".join)


def _documents(target: Target) -> st.SearchStrategy[bytes]:
    """Whole inputs that follow the form, and not one of the seeds."""
    if target.name in ("sparse-labels", "filter-file", "repository-matrix"):
        return _sparse
    if target.form in ("json", "yaml"):
        return _values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
    if target.form == "lines":
        return st.lists(_values.map(json.dumps), max_size=3).map(lambda lines: "\n".join(lines).encode() + b"\n")
    return st.lists(_words, max_size=6).map(b"".join)


def _inputs(target: Target) -> st.SearchStrategy[bytes]:
    changed = st.randoms(use_true_random=False).map(lambda draw: mutated(target.seeds, target.form, target.words, draw))
    return changed | changed | changed | _documents(target)


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_bears_hostile_input(name: str, sandbox: Sandbox) -> None:
    target = TARGETS[name]
    first = judged(target, target.seeds[0], sandbox)
    assert first.finding is None, first.finding
    assert first.accepted, "what is refused from the start shows nothing of what lies behind"

    # the same inputs every time: a suite that fails by chance is repeated, not read; new ones are for the command
    @settings(
        max_examples=_SLOW.get(name, _EXAMPLES),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(_inputs(target))
    def bears(data: bytes) -> None:
        finding = judged(target, data, sandbox).finding
        assert finding is None, f"{finding.what}\n{finding.detail}"

    bears()


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
    ("checkpoint-state", b'{"epoch": 9}'),
    ("checkpoint-state", b'{"strange": 1}'),
    ("event-log", b"\xff\n"),
    ("event-log", b"[]\n"),
    ("event-log", b"[" * 3_000 + b"\n"),
    ("event-log", b'{"event": "start", "time": "today"}\n'),
    ("event-log", _START + b', "dataset": 7, "config": {}}\n'),
    ("event-log", _START + b'}\n{"event": "metrics", "time": "2026-01-01T00:00:00+00:00", "step": 1, "values": 7}\n'),
    ("event-log", _METRICS % (10**400)),
    ("event-log", _METRICS % -1),
    ("event-log-sent", _START + b"}\n"),
    ("event-log-sent", _START + b"}"),
    ("metric-name", b"_u" + b"a" * 40 + b"_"),
    ("folder-note", b"[]"),
    ("folder-note", b'{"encoder": 7}'),
    ("model-config", b'{"hidden_size": 1e999, "model_type": "bert"}'),
    ("predicted-ids", b"\x93NUMPY\x01\x00\x02\x00(\n"),
    ("record", b'{"config": ' + _DEEP + b"}"),
    ("repository-rows", b'{"uid": 1, "title": "", "target_ind": [], "target_rel": [' + _DEEP + b"]}\n"),
    ("seeds-word", b"9" * 5_000),
    ("study", b'{"id": "\\ud800"}'),
    ("model-index", b'{"weight_map": {}}'),
    ("model-index", b'{"weight_map": {"a": "' + b"a" * 300 + b'"}}'),
    ("name", b"a" * 300),
    ("name", b"a/" + b"a" * 300),
    ("folder-note", b'{"encoder": "/' + b"a" * 300 + b'/small"}'),
    ("tokenizer", json.dumps(_TOKENIZER).encode()),
    ("tokenizer", json.dumps(_TOKENIZER | {"post_processor": _TEMPLATE}).encode()),
    ("tokenizer", json.dumps(_TOKENIZER | {"model": _TOKENIZER["model"] | {"vocab": {}}}).encode()),
    ("tokenizer", json.dumps(_BEYOND).encode()),
    ("over-word", b"beta=" + b"9" * 400 + b":" + b"9" * 401),
    ("over-word", b"beta=1:" + b"9" * 400 + b":log"),
    ("over-word", b"lambda=0:1e100:step=1e-300"),
    ("over-word", b"beta=[1," + b"9" * 400 + b"]"),
    ("run-config", b"[[]]: "),
    ("run-config", b"{{}: 1}: 2"),
    ("stored-rows", _zipped("concat.npy", b"\x93NUMPY\x01\x00" + len(_ENDLESS).to_bytes(2, "little") + _ENDLESS)),
    ("set-word", b"device=cuda:" + b"9" * 5_000),
    ("size-word", b"9" * 400 + b"GB"),
]
"""What once ended in a traceback."""


@pytest.mark.parametrize(("name", "data"), _FOUND, ids=[f"{name}-{place}" for place, (name, _) in enumerate(_FOUND)])
def test_what_was_found_stays_found(name: str, data: bytes, sandbox: Sandbox) -> None:
    assert judged(TARGETS[name], data, sandbox).finding is None


# ---------------------------------------------------------------- are these all readers?

_READING = {
    *(
        "json.loads",
        "orjson.loads",
        "json.load",
        "np.load",
        "torch.load",
        "zipfile.ZipFile",
        "tarfile.open",
        "ast.parse",
    ),
    *("read_json", "read_yaml", "parse_yaml", "read_text", "read_bytes", "safe_open", "load_file", "load_array"),
    *(
        "json_chunks",
        "line_chunks",
        "from_file",
        "from_pretrained",
        "model_validate_json",
        "parse_event",
        "first_event",
    ),
}
"""By which bytes become values."""
_TRUSTED = {
    "harness.audit": "reads files of this repository",
    "harness.bench.children": "reads what its own child process printed",
    "harness.cli.running.run": "reads what the bench that started it wrote for it",
    "harness.data.check": "reads the manifest of what it has just prepared and verified",
    "harness.data.sources.debian.DebianSource.write": "reads the copy it made, verified by its manifest",
    "harness.doctor._open_still": "asks two readers of logs, which are fed as reap and sync use them",
    "harness.data.sources.pydocs": "reads what its own child process printed",
    "harness.files.write_manifest": "reads what it has just written down",
    "harness.model.forest": "reads what its own child process wrote; a saved forest is verified by its manifest",
    "harness.model.forest_process": "is that child process",
    "harness.model.static": "reads a table out of the cache, verified by its manifest",
    **{
        f"harness.perf.{suite}": "measures what it has just made"
        for suite in ("child", "corpus", "encoding", "parsing")
    },
    **{f"harness.perf.{suite}": "measures what it has just made" for suite in ("racing", "starting", "tokenising")},
    "harness.perf.saved.SavedRow.of": "reads what it has just written down",
    "harness.perf.saved._caches": "reads what the kernel writes",
    "harness.perf.saved.about": "reads files of the package",
    "harness.plan.sizes": "reads what the kernel writes",
    "harness.predict.label_vectors": "reads vectors out of the cache, verified by their manifest",
    "harness.report.collecting._members": "compares with what it would write",
    "harness.report.comparing.contenders._Found.one_setting": "reads what it has just written down",
    "harness.report.comparing.contenders._facts": "reads what it has just written down",
    "harness.report.page": "reads files of the package",
    "harness.report.scale": "reads a page of the repository",
    "harness.report.site": "compares with what it would write",
    "harness.tuning": "reads files of this repository",
    "harness.repro": "reads what the kernel writes",
    "harness.runlock._process_start": "reads what the kernel writes",
    "harness.sweep.results": "reads what it wrote itself",
    "harness.sweep.worker": "reads what its own parent process wrote",
    "harness.train.checkpoint._write_folder": "reads what it has just written down",
    "harness.yaml._format_text": "reads what it has just written down",
}
"""What reads no file of somebody else, by module or function, and why."""


def _reading_functions() -> dict[str, tuple[str, int]]:
    """Functions of the harness that turn bytes into values: name -> file and first line."""
    found = {}
    for file in sorted([*_HARNESS.glob("harness/**/*.py"), *_HARNESS.glob("methods/*.py")]):
        module = ".".join(file.relative_to(_HARNESS).with_suffix("").parts).removesuffix(".__init__")
        for name, node in _functions(ast.parse(file.read_text()), module):
            if any(_named(inner) & _READING for inner in ast.walk(node)):
                found[name] = (str(file), node.lineno)
    return found


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods by name; what is defined inside a function belongs to it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}.{node.name}")


def _named(node: ast.AST) -> set[str]:
    """A name alone, and with what it is looked up in."""
    if isinstance(node, ast.Attribute):
        return {node.attr, f"{node.value.id}.{node.attr}"} if isinstance(node.value, ast.Name) else {node.attr}
    return {node.id} if isinstance(node, ast.Name) else set()


def test_no_reader_is_left_out(sandbox: Sandbox) -> None:
    """Every function that turns bytes into values is entered by a target, or there is a reason why it need not be."""
    seen: set[CodeType] = set()

    def noted(frame: FrameType, event: str, argument: Any) -> None:  # a profiler would hear of every C call as well
        seen.add(frame.f_code)

    before = sys.gettrace()
    threading.settrace(noted)
    sys.settrace(noted)
    try:
        for target in TARGETS.values():
            some = target.seeds[:: -(-len(target.seeds) // 3)]
            for data in (*some, some[0][: len(some[0]) // 2]):  # what is cut off goes another way
                judged(target, data, sandbox)
    finally:
        sys.settrace(before)
        threading.settrace(None)
    entered = {(code.co_filename, code.co_name) for code in seen}
    readers = _reading_functions()
    assert len(readers) > 50
    left_out = [
        name
        for name, (file, _) in readers.items()
        if (file, name.rpartition(".")[2]) not in entered and not _trusted(name)
    ]
    assert not left_out
    useless = [place for place in _TRUSTED if not any(f"{name}.".startswith(f"{place}.") for name in readers)]
    assert not useless, "these read nothing any more"


def _trusted(name: str) -> bool:
    return any(f"{name}.".startswith(f"{place}.") for place in _TRUSTED)


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
        (lambda data, folder: data.decode("ascii") if b"\xff" in data else b"\xff".decode(), "UnicodeDecodeError"),
        (lambda data, folder: [0] * 2**40, "MemoryError"),
        (lambda data, folder: sys.exit(0), "SystemExit"),
        (_hang, "TooSlow"),
        (lambda data, folder: (folder.parent / "x").write_bytes(data), "left its folder: open"),
        (lambda data, folder: (folder / ".." / ".." / "x").mkdir(), "left its folder: os.mkdir"),
        (lambda data, folder: folder.rename(folder.with_name("y")), "left its folder: os.rename"),
        (lambda data, folder: subprocess.run(["true"], check=True), "left its folder: subprocess.Popen"),
        (lambda data, folder: (_ for _ in ()).throw(UserError("")), "UserError without a word"),
    ],
)
def test_misbehaviour_is_a_finding(
    read: Any, what: str, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzzing, "CPU_SECONDS", 0.1)
    verdict = judged(_planted(read), b"", sandbox)
    assert verdict.finding is not None
    assert verdict.finding.what.startswith(what)
    assert not verdict.accepted or what.startswith("left")


def test_an_answer_or_a_refusal_is_none(sandbox: Sandbox) -> None:
    def refuses(data: bytes, folder: Path) -> None:
        raise UserError("no")

    def answers(data: bytes, folder: Path) -> None:
        (folder / "inside").write_bytes(data)
        Path(os.environ["HARNESS_HOME"]).mkdir()

    assert judged(_planted(refuses), b"", sandbox) == fuzzing.Judgement(accepted=False)
    assert judged(_planted(answers), b"", sandbox) == fuzzing.Judgement(accepted=True)
    assert judged(_planted(lambda data, folder: list(folder.iterdir())), b"", sandbox).finding is None
    assert not list(sandbox.folder.iterdir()), "every input begins with an empty folder"


# ---------------------------------------------------------------- the command


def _command(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "fuzz.json"
    fixed = ("--minutes", "0.01", "--engine", "mutations", "--findings", str(tmp_path / "found"), "--out", str(out))
    code = fuzz.main([*fixed, *words])
    return code, json.loads(out.read_text())


def test_command_says_what_was_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, summary = _command(tmp_path, "--targets", "size-word,age-word")
    assert code == 0
    assert summary.keys() == {"minutes", "engine", "targets"}
    assert (summary["minutes"], summary["engine"]) == (0.01, "mutations")
    assert summary["targets"].keys() == {"size-word", "age-word"}
    assert all(each["inputs"] > 10 and each["findings"] == 0 for each in summary["targets"].values())
    said = capsys.readouterr().out
    assert "size-word" in said
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
    monkeypatch.setitem(TARGETS, "planted", _planted(read))
    world()
    began = time.monotonic()
    code, summary = _command(tmp_path, "--targets", "planted")
    assert code == 1
    assert summary["targets"]["planted"]["findings"] == 1
    assert time.monotonic() - began < 60
    (input_file,) = (path for path in (tmp_path / "found").iterdir() if not path.suffix)
    assert what in input_file.with_suffix(".txt").read_text()
    if "Zero" in what:
        assert fuzz.main(["--engine", "mutations", "--replay", str(input_file)]) == 1
        assert "ZeroDivisionError" in capsys.readouterr().out
