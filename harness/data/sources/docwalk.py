"""Listing the public objects of libraries as JSON lines: `python -m harness.data.sources.docwalk numpy scipy ...`.

Runs as a process of its own, because importing every module of a library prints, warns and changes global state. Each
line is a node: a module, a class or a leaf (function, method, property, ufunc). Modules and classes have `members`
(name -> node), a class has its `bases` in method resolution order, classes and leaves have their docstring. An object
reachable under many names is one node. Nothing is named or judged here; that is the work of `pydocs.Names`.
"""

import importlib
import inspect
import json
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from functools import cached_property, partial
from types import FunctionType, ModuleType
from typing import Any

_NOT_DOCUMENTED = {"conftest", "setup", "test", "tests", "benchmarks", "externals"}
# importable or not by what else a machine has, shims that only warn, seconds of computation for generated text, and
# classes whose docstrings are unfilled templates
_SKIPPED = {
    "matplotlib.backends",
    "matplotlib.sphinxext",
    "numpy.core",
    "numpy.distutils",
    "numpy.typing.mypy_plugin",
    "pyarrow.cuda",
    "scipy.stats.distributions",
    "sympy.galgebra",
    "sympy.integrals.meijerint_doc",
    "sympy.plotting.pygletplot",
    "sympy.printing.llvmjitcode",
    "sympy.printing.pytorch",
    "sympy.printing.tensorflow",
    "sympy.simplify.hyperexpand_doc",
    "sympy.this",
}


class Walk:
    """Walks the libraries and collects nodes; the id of a node is its position."""

    def __init__(self, libraries: list[str]) -> None:
        self.libraries = libraries
        self.nodes: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self._ids: dict[int, int] = {}
        # ids are memory addresses: an object that was freed could lend its address to another
        self._alive: list[object] = []

    def run(self) -> None:
        """Walk every library, modules in the order of their names."""
        for library in self.libraries:
            for module in self._modules(library):
                self._add(module, "module", library, module=module.__name__)
                node = self.nodes[-1]
                for name, value in sorted(vars(module).items()):
                    if not name.startswith("_") and not isinstance(value, ModuleType):
                        self._member(node, name, value)

    def _modules(self, library: str) -> Iterator[ModuleType]:
        waiting = [library]
        while waiting:
            name = waiting.pop()
            try:
                module = importlib.import_module(name)
            except KeyboardInterrupt:
                raise
            except BaseException:  # test modules may raise anything on import, SystemExit too
                self.failed.append(name)
                continue
            yield module
            inner = (found.name for found in pkgutil.iter_modules(getattr(module, "__path__", [])))
            public = [f"{name}.{part}" for part in inner if part[0] != "_" and part not in _NOT_DOCUMENTED]
            waiting += sorted(set(public) - _SKIPPED, reverse=True)

    def _add(self, thing: object, kind: str, library: str, **metadata: Any) -> int:
        self._ids[id(thing)] = len(self.nodes)
        self._alive.append(thing)
        self.nodes.append({"kind": kind, "library": library, "members": {}, "bases": [], "doc": None, **metadata})
        return len(self.nodes) - 1

    def _member(self, parent: dict[str, Any], name: str, value: Any) -> None:
        """Add `value` to its parent's members if it is of one of the libraries, and a class or has a docstring."""
        value = _unwrapped(value)
        node = self._ids.get(id(value))
        if node is None:
            library = self._library(value, parent["library"])
            if library is None:
                return
            node = self._class(value, library) if isinstance(value, type) else self._leaf(value, library)
        if node is not None:
            parent["members"][name] = node

    def _library(self, value: object, default: str) -> str | None:
        module = _module(value)
        if module is None:
            return default
        root = module.partition(".")[0]
        return root if root in self.libraries else None

    def _leaf(self, value: object, library: str) -> int | None:
        doc = _text(value, "__doc__")
        # an instance that only repeats its class is data, not documentation
        if doc is None or doc in {type(value).__doc__, vars(type(value)).get("__doc__")}:
            return None
        if not callable(value) and not hasattr(type(value), "__get__"):
            return None
        return self._add(value, "leaf", library, doc=doc, module=_module(value))

    def _class(self, cls: type, library: str) -> int:
        doc = vars(cls).get("__doc__")
        number = self._add(cls, "class", library, doc=doc if isinstance(doc, str) else None, module=cls.__module__)
        node = self.nodes[number]
        for name, value in sorted(vars(cls).items()):
            if not name.startswith("_") and not isinstance(value, ModuleType):
                self._member(node, name, _accessor_class(value, cls))
        for base in inspect.getmro(cls)[1:]:
            owner = self._library(base, library)
            if owner is not None and owner in self.libraries:
                known = self._ids.get(id(base))
                node["bases"].append(self._class(base, owner) if known is None else known)
        return number


def _text(value: object, attribute: str) -> str | None:
    try:
        found = getattr(value, attribute, None)
    except Exception:
        return None
    return found if isinstance(found, str) else None


def _module(value: object) -> str | None:
    """Return the name of the module that a value says it was defined in; None if it does not say."""
    # before Python 3.13 these name the module of their own class
    return None if isinstance(value, cached_property | partial) else _text(value, "__module__")


def _unwrapped(value: Any) -> Any:
    """Return the function behind a method object, or behind wrappers that only repeat its docstring."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    while isinstance(value, FunctionType):
        inner = vars(value).get("__wrapped__")
        if value.__doc__ is None or _text(inner, "__doc__") != value.__doc__:
            break
        value = inner
    return value


def _accessor_class(value: Any, cls: type) -> Any:
    """Return the class behind a descriptor such as `pandas.Series.str`; any other value unchanged."""
    if isinstance(value, type) or type(value).__module__ in {"builtins", "functools"}:
        return value
    if not hasattr(type(value), "__get__"):
        return value
    try:
        inner = value.__get__(None, cls)
    except Exception:
        return value
    return inner if isinstance(inner, type) else value


def main(libraries: list[str]) -> None:
    """Write all nodes to standard output, then one line with the names of the modules that failed to import."""
    # output of the libraries goes to standard error: standard output is for nodes only
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(10_000)
    walk = Walk(libraries)
    walk.run()
    with out:
        for node in walk.nodes:
            out.write(json.dumps(node) + "\n")
        out.write(json.dumps({"failed": sorted(walk.failed)}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
