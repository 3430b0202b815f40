"""What the source never does with somebody's file, name or address: unpickle, evaluate, start a shell, be a server.

A rule over the syntax of every file of `harness/` and `methods/`; what it catches is shown on lines that break it.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.data.card import CARD_FOLDER, read_card
from tests.trust.accounts import Account

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("methods/**/*.py")])

MODULES = {
    **dict.fromkeys(
        ["pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"], "unpickles"
    ),
    **dict.fromkeys(["runpy", "code", "codeop", "imp"], "runs code by name"),
    **dict.fromkeys(["requests", "httpx", "aiohttp", "ftplib", "smtplib", "telnetlib", "xmlrpc"], "asks the network"),
    **dict.fromkeys(["yaml", "xml", "pty", "commands"], "has a safe counterpart here"),
}
"""Never imported, and why."""
CALLS = {
    **dict.fromkeys(["eval", "exec", "compile", "__import__"], "runs text"),
    **dict.fromkeys(["torch.load", "torch.jit.load", "torch.hub.load", "torch.export.load"], "unpickles"),
    **dict.fromkeys(["pandas.read_pickle", "pandas.read_hdf"], "unpickles"),
    **dict.fromkeys(["os.system", "os.popen", "os.execl", "os.spawnl", "os.startfile"], "starts a shell"),
    **dict.fromkeys(["subprocess.getoutput", "subprocess.getstatusoutput"], "starts a shell"),
    **dict.fromkeys(["tempfile.mktemp", "os.tempnam"], "names a file that another may make first"),
    **dict.fromkeys(["importlib.util.spec_from_file_location", "importlib.reload"], "runs a file"),
}
"""Never called, and why; `builtins.eval` and aliases of imports count as what they are."""
METHODS = {"read_pickle": "unpickles", "enable_load_extension": "loads a library", "extractall": "trusts an archive"}
"""Never called, of whatever object."""

KEYWORDS = {
    "trust_remote_code": (False, "runs code of a model folder"),
    "weights_only": (True, "unpickles"),
    "shell": (False, "starts a shell"),
}
"""What an argument has to be where it is given."""
WITHOUT_PICKLE = {"numpy.load", "numpy.save", "numpy.lib.format.read_array", "numpy.lib.format.write_array"}
PROCESSES = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
IMPORTERS = {"importlib.import_module"}
NETWORK = {
    *("urllib.request.urlopen", "urllib.request.build_opener", "urllib.request.urlretrieve"),
    *("socket.create_connection", "http.client.HTTPConnection", "http.client.HTTPSConnection"),
    *("huggingface_hub.snapshot_download", "huggingface_hub.hf_hub_download"),
}
LISTENERS = {"bind", "create_server", "HTTPServer", "ThreadingHTTPServer", "TCPServer"}
LOOPBACK = {"127.0.0.1", "::1", "localhost"}
ECHOES = {"print", "typer.echo", "typer.secho", "click.echo", "click.secho", "rich.print", "sys.stdout.write"}
"""Not on the command line, where `harness.cli.show.say` prints what strangers call their things."""

ALLOWED = {
    # file, what -> why that is nobody else's choice
    (
        "harness/registry.py",
        "importlib.import_module",
    ): "targets are written in our code or declared by installed packages",
    ("harness/perf/__init__.py", "importlib.import_module"): "one of SUITES, in our own package",
    ("harness/perf/child.py", "importlib.import_module"): "the words come from in_child, the process that started it",
    ("harness/data/sources/docwalk.py", "importlib.import_module"): "libraries of LIBRARIES; a card cannot add one",
    ("harness/perf/racing.py", "extractall"): "what git archive has just made from our own commits",
    ("harness/data/obtain/download.py", "urllib.request.build_opener"): "links of cards, https, redirects checked",
    ("harness/tracking/mlflow_store.py", "urllib.request.urlopen"): "the tracking server that the user names",
    ("harness/tracking/mlflow_store.py", "socket.create_connection"): "the database that the user names",
    ("harness/model/weights.py", "huggingface_hub.snapshot_download"): "registered encoders at pinned revisions",
    ("harness/cli/show.py", "typer.echo"): "say itself, and JSON through printable_json",
    ("harness/cli/using.py", "typer.echo"): "a line of JSON for each text, through printable_json",
    ("harness/cli/reporting.py", "typer.echo"): "a whole document, as it would be written; its cells are printable",
}
"""Where a call is allowed that would be a fault elsewhere."""


class Imports(ast.NodeVisitor):
    """What the names of a file mean: np -> numpy, run -> subprocess.run; wherever they are imported."""

    def __init__(self, tree: ast.AST) -> None:
        self.names: dict[str, str] = {}
        self.modules: set[str] = set()
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.modules.add(alias.name)
            self.names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names if node.module and not node.level else ():
            self.modules.add(f"{node.module}.{alias.name}")
            self.names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def meaning(self, function: ast.expr) -> str:
        """A dotted name with its imports resolved; `?.name` for a method of something else."""
        if isinstance(function, ast.Name):
            return self.names.get(function.id, function.id)
        if isinstance(function, ast.Attribute):
            return f"{self.meaning(function.value)}.{function.attr}".removeprefix("builtins.")
        return "?"


def is_text(node: ast.expr) -> bool:
    """Whether an expression is visibly one string: a constant, an f-string, joined or added text."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in ("join", "format", "strip", "replace")
    if isinstance(node, ast.BinOp):
        return is_text(node.left) or is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else ...


def faults_by_name(called: str) -> Iterator[tuple[str, str]]:
    """(what, why) of a call that is wrong whatever it is given."""
    last = called.rpartition(".")[2]
    if called in CALLS:
        yield called, CALLS[called]
    if "." in called and last in METHODS:
        yield last, METHODS[last]
    if called in NETWORK:
        yield called, "asks the network"


def faults_by_keyword(called: str, keywords: dict[str | None, ast.expr]) -> Iterator[tuple[str, str]]:
    """(what, why) of what a call is given by name, or is not given."""
    for name, (wanted, why) in KEYWORDS.items():
        if name in keywords and constant(keywords[name]) is not wanted:
            yield name, why
    if called in WITHOUT_PICKLE and constant(keywords.get("allow_pickle")) is not False:
        yield called, "may unpickle without allow_pickle=False"
    if called.rpartition(".")[2] == "YAML" and constant(keywords.get("typ")) not in ("safe", ...):
        yield "YAML", "builds objects"


def faults_by_argument(called: str, arguments: list[ast.expr]) -> Iterator[tuple[str, str]]:
    """(what, why) of the first thing that a call is given."""
    first, last = next(iter(arguments), None), called.rpartition(".")[2]
    if first is None:
        return
    if called in PROCESSES and is_text(first):
        yield called, "starts a process from one string"
    if called in IMPORTERS and not isinstance(constant(first), str):
        yield called, "imports what is not written here"
    if last in LISTENERS and isinstance(first, ast.Tuple) and constant(first.elts[0]) not in LOOPBACK:
        yield last, "listens to other machines"


def faults_of_text(node: ast.AST, hosts: set[str]) -> Iterator[tuple[str, str]]:
    """Addresses of others in text, and `--host` of anything but loopback in a list of words."""
    if isinstance(node, ast.List | ast.Tuple):
        words = [constant(word) for word in node.elts]
        for word, following in pairwise([*words, None]):
            if word == "--host" and following not in LOOPBACK:
                yield "--host", "listens to other machines"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if node.value in ("0.0.0.0", "::"):  # noqa: S104
            yield node.value, "listens to other machines"
        for address in re.findall(r"https?://[\w.-]+\.\w+", node.value):
            if urlsplit(address).hostname not in hosts:
                yield address, "asks a host that no card names"


def card_hosts() -> set[str]:
    cards = [read_card(path) for path in sorted(CARD_FOLDER.glob("*.yaml"))]
    return {str(urlsplit(link.url).hostname) for card in cards for link in card.downloads}


def faults(source: str, path: str, hosts: set[str]) -> list[tuple[str, str]]:
    """(what, why) of everything that a source must not do, but for what is allowed in that file."""
    tree = ast.parse(source)
    imports = Imports(tree)
    found = [(name, MODULES[top]) for name in sorted(imports.modules) if (top := name.partition(".")[0]) in MODULES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = imports.meaning(node.func)
            found += faults_by_name(called)
            found += faults_by_keyword(called, {keyword.arg: keyword.value for keyword in node.keywords})
            found += faults_by_argument(called, node.args)
            if path.startswith("harness/cli/") and called in ECHOES:
                found.append((called, "prints what may steer a terminal"))
        found += faults_of_text(node, hosts | LOOPBACK)
    return [fault for fault in found if (path, fault[0]) not in ALLOWED]


# ---------------------------------------------------------------- our source


def test_no_code_is_executed_from_data(account: Account) -> None:
    """faults 67, 69 and 70: nothing unpickles, evaluates, starts a shell, trusts a model's code or listens to others"""
    assert len(SOURCES) > 250
    hosts, calls = card_hosts(), 0
    assert hosts
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        calls += sum(isinstance(node, ast.Call) for node in ast.walk(ast.parse(source)))
        assert faults(source, path.relative_to(ROOT).as_posix(), hosts) == [], path
    account.did(
        f"read every call of {len(SOURCES)} source files for pickle, eval, shells, remote code and open sockets"
    )
    account.saw(
        f"{calls:,} calls, none of them; {len(ALLOWED)} places that import, print or ask the network have reasons"
    )


def test_what_is_allowed_is_still_there() -> None:
    """A list of exceptions that outlives its reasons would hide the next fault."""
    for path, what in ALLOWED:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        imports = Imports(tree)
        called = {imports.meaning(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert what in called | {name.rpartition(".")[2] for name in called}, (path, what)


# ---------------------------------------------------------------- the rule itself

BAD = [
    "import pickle",
    "from pickle import loads",
    "import cloudpickle as harmless",
    "import marshal, shelve",
    "from joblib import load",
    "import yaml\nyaml.load(text)",
    "eval(text)",
    "import builtins\nbuiltins.exec(text)",
    "compile(text, 'x', 'exec')",
    "__import__(name)",
    "import torch\ntorch.load(path)",
    "from torch import load\nload(path, weights_only=True)",
    "def f():\n    import torch as t\n    t.load(path)",
    "model.load(path, weights_only=False)",
    "import numpy as np\nnp.load(path)",
    "import numpy as np\nnp.load(path, allow_pickle=True)",
    "from numpy import load\nload(path, allow_pickle=flag)",
    "import numpy as np\nnp.save(path, array)",
    "import pandas as pd\npd.read_pickle(path)",
    "frame.read_pickle(path)",
    "AutoModel.from_pretrained(path, trust_remote_code=True)",
    "AutoModel.from_pretrained(path, trust_remote_code=config.trust)",
    "import os\nos.system('ls')",
    "from os import popen\npopen('ls')",
    "import subprocess\nsubprocess.run(['ls'], shell=True)",
    "import subprocess\nsubprocess.run('ls -l')",
    "import subprocess\nsubprocess.Popen(f'ls {folder}')",
    "from subprocess import check_output\ncheck_output('ls ' + folder)",
    "import subprocess\nsubprocess.run(' '.join(words))",
    "import tempfile\ntempfile.mktemp()",
    "import importlib\nimportlib.import_module(settings['module'])",
    "from importlib import import_module as get\nget(f'x.{name}')",
    "from importlib.util import spec_from_file_location\nspec_from_file_location('x', path)",
    "import runpy\nrunpy.run_path(path)",
    "YAML(typ='unsafe').load(text)",
    "archive.extractall(folder)",
    "connection.enable_load_extension(True)",
    "listener.bind(('0.0.0.0', 80))",
    "listener.bind(('', 80))",
    "import socket\nsocket.create_server((host, 80))",
    "command = ['mlflow', 'server', '--host', '0.0.0.0']",
    "command = ['mlflow', 'server', '--host', host]",
    "import urllib.request\nurllib.request.urlopen(address)",
    "from urllib.request import urlopen as get\nget(address)",
    "import requests",
    "from huggingface_hub import snapshot_download\nsnapshot_download(name)",
    "address = 'https://evil.example.com/x'",
]
GOOD = [
    "import numpy as np\nnp.load(path, mmap_mode='r', allow_pickle=False)",
    "import subprocess\nsubprocess.run(['git', *words], check=True)",
    "import subprocess\nsubprocess.Popen(training_command(job))",
    "from importlib import import_module\nimport_module('omikuji')",
    "AutoModel.from_pretrained(path, trust_remote_code=False)",
    "listener.bind(('127.0.0.1', port))",
    "command = ['--host', '127.0.0.1']",
    "re.compile(pattern)",
    "model.eval()",
    "torch.compile(model)",
    "self.load(folder)",
    "YAML(typ='safe', pure=True)",
]


@pytest.mark.parametrize("source", BAD)
def test_a_line_that_breaks_the_rule_is_caught(source: str) -> None:
    assert faults(source, "harness/made_up.py", set())


@pytest.mark.parametrize("source", GOOD)
def test_a_line_that_keeps_it_is_not(source: str) -> None:
    assert faults(source, "harness/made_up.py", set()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import typer\ntyper.echo(f'run {record.run_id}')",
        "from typer import echo\necho(reason, err=True)",
        "def f():\n    import typer as t\n    t.secho(text)",
        "print(name)",
        "import sys\nsys.stdout.write(name)",
    ],
)
def test_a_command_prints_by_say_alone(source: str) -> None:
    """fault 64"""
    assert [why for _, why in faults(source, "harness/cli/made_up.py", set())] == ["prints what may steer a terminal"]
    assert (
        faults("from harness.cli.show import say\nsay(f'run {name}', err=True)", "harness/cli/made_up.py", set()) == []
    )


def test_an_exception_is_for_its_own_file_only() -> None:
    source = "from importlib import import_module\nimport_module(name)"
    assert faults(source, "harness/registry.py", set()) == []
    assert faults(source, "harness/config.py", set())
