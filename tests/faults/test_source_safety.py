"""What the source never does with somebody's file, name or address.

ruff forbids pickle, eval, shells, imports by name and the network (`S` and `banned-api` in pyproject.toml, with every
exception listed there). This test checks what ruff cannot see: arguments of calls, sockets, and addresses in text.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from harness.data.card import CARD_FOLDER, read_card
from tests.faults.accounts import Account

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("methods/**/*.py")])
KEYWORDS = {"trust_remote_code": False, "weights_only": True, "shell": False, "allow_pickle": False}
"""What an argument has to be where it is given."""
WITHOUT_PICKLE = {"np.load", "np.save", "numpy.load", "numpy.save", "np.lib.format.read_array"}
"""Calls that have to say allow_pickle=False."""
METHODS = {"enable_load_extension", "extractall", "read_pickle"}
LISTENERS = {"bind", "create_server", "HTTPServer", "ThreadingHTTPServer", "TCPServer"}
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else ...


def faults_of_call(call: ast.Call) -> Iterator[str]:
    called = ast.unparse(call.func)
    last = called.rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    first = call.args[0] if call.args else None
    given = [name for name in KEYWORDS if name in keywords]
    yield from (name for name in given if constant(keywords[name]) is not KEYWORDS[name])
    if called in WITHOUT_PICKLE and "allow_pickle" not in keywords:
        yield called
    if "." in called and last in METHODS:
        yield last
    if last == "YAML" and constant(keywords.get("typ")) not in ("safe", ...):
        yield "YAML"
    if last in LISTENERS and isinstance(first, ast.Tuple) and constant(first.elts[0]) not in LOOPBACK:
        yield last


def faults_of_text(node: ast.AST, hosts: set[str]) -> Iterator[str]:
    """Addresses of others, and `--host` of anything but loopback in a list of words."""
    if isinstance(node, ast.List | ast.Tuple):
        words = [constant(word) for word in node.elts]
        yield from (str(word) for word, host in pairwise([*words, None]) if word == "--host" and host not in LOOPBACK)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        addresses = re.findall(r"https?://[\w.-]+\.\w+", node.value)
        yield from (address for address in addresses if urlsplit(address).hostname not in hosts)
        if node.value in ("0.0.0.0", "::"):  # noqa: S104
            yield node.value


def separators(node: ast.AST) -> list[ast.expr]:
    """Texts that separate parts of another: in an f-string, or given to a method of strings."""
    if isinstance(node, ast.JoinedStr):
        return node.values
    methods = ("partition", "rpartition", "split", "replace")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
        return node.args
    return []


def faults(source: str, hosts: set[str]) -> list[str]:
    """Everything that a source must not do."""
    found: list[str] = []
    nodes = list(ast.walk(ast.parse(source)))
    no_addresses = {id(part) for node in nodes for part in separators(node)}
    for node in nodes:
        found += faults_of_call(node) if isinstance(node, ast.Call) else ()
        found += faults_of_text(node, hosts | LOOPBACK) if id(node) not in no_addresses else ()
    return found


def test_no_code_is_executed_from_data(account: Account) -> None:
    """faults 67, 69 and 70: nothing unpickles, evaluates, starts a shell, trusts a model's code or listens to others"""
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert {"S", "TID"} <= set(ruff["select"])
    assert set(ruff["ignore"]) & {"S", "TID251", "S301", "S307", "S602", "S605"} == set()
    banned = ruff["flake8-tidy-imports"]["banned-api"]
    assert {"pickle", "torch.load", "importlib.import_module", "urllib.request.urlopen"} <= set(banned)
    cards = [read_card(path) for path in sorted(CARD_FOLDER.glob("*.yaml"))]
    hosts = {str(urlsplit(link.url).hostname) for card in cards for link in card.downloads}
    assert hosts
    assert len(SOURCES) > 100
    wrong = {path.relative_to(ROOT): faults(path.read_text(encoding="utf-8"), hosts) for path in SOURCES}
    assert {path: found for path, found in wrong.items() if found} == {}
    account.did(f"read {len(SOURCES)} source files for pickle, eval, shells, remote code and open sockets")
    account.saw(f"none; {len(banned)} modules and calls are banned by lint, exceptions are listed with their reasons")


BROKEN = """
model.load(path, weights_only=False)
np.load(path)
np.load(path, allow_pickle=flag)
np.save(path, array)
frame.read_pickle(path)
AutoModel.from_pretrained(path, trust_remote_code=config.trust)
subprocess.run(['ls'], shell=True)
YAML(typ='unsafe').load(text)
archive.extractall(folder)
connection.enable_load_extension(True)
listener.bind(('0.0.0.0', 80))
socket.create_server((host, 80))
command = ['mlflow', 'server', '--host', host]
address = 'https://evil.example.com/x'
"""
KEPT = """
np.load(path, mmap_mode='r', allow_pickle=False)
AutoModel.from_pretrained(path, trust_remote_code=False)
listener.bind(('127.0.0.1', port))
command = ['--host', '127.0.0.1']
YAML(typ='safe', pure=True)
"""


def test_a_line_that_breaks_the_rule_is_caught() -> None:
    assert [line for line in BROKEN.split("\n") if line and not faults(line, set())] == []
    assert faults(KEPT, set()) == []
