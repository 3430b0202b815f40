"""The shape of the repository: which way imports point, how long files are, and the folder that must stay code-free."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("methods/*.py")])
HEAVY = {"torch", "transformers", "mlflow", "faiss", "optuna", "matplotlib"}
MAY_BE_HEAVY = {
    "harness.batching",
    "harness.index",
    "harness.loss",
    "harness.model",
    "harness.perf",
    "harness.serving.entry",
    "harness.serving.predictor",
    "harness.train",
    "methods",
}
LEAVES = {
    "errors",
    "files",
    "printable",
    "registry",
    "progress",
    "yaml",
    "metrics",
    "hits",
    "repro",
    "allocator",
    "threads",
}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def top_level_imports(path: Path) -> set[str]:
    """Modules imported when the file is imported: not inside functions, not for type checkers only."""
    found: set[str] = set()
    pending: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Try | ast.ClassDef) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test)
        ):
            pending += ast.iter_child_nodes(node)
    return found


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 40


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_heavy_libraries_stay_where_computing_happens(path: Path) -> None:
    module = module_of(path)
    if any(module == room or module.startswith(room + ".") for room in MAY_BE_HEAVY):
        return
    assert not HEAVY & {name.split(".")[0] for name in top_level_imports(path)}


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_point_one_way(path: Path) -> None:
    """cli -> run, report, doctor, validate -> rooms -> leaves; nothing imports the command line or a method."""
    module, imported = module_of(path), top_level_imports(path)
    if not module.startswith("harness.cli") and module != "harness.__main__":
        assert not any(name.startswith("harness.cli") for name in imported)
    if not module.startswith("methods"):
        assert not any(name == "methods" or name.startswith("methods.") for name in imported)
    if module.startswith("harness.report"):
        assert not any(name.startswith(("harness.model", "harness.index", "harness.run")) for name in imported)
    if module.removeprefix("harness.") in LEAVES:
        ours = {name.split(".")[1] for name in imported if name.startswith("harness.") and name.count(".") == 1}
        modules = {path.stem for path in (ROOT / "harness").iterdir()}
        assert ours & modules <= LEAVES


@pytest.mark.parametrize("path", [*SOURCES, *sorted(ROOT.glob("tests/*.py"))], ids=module_of)
def test_files_and_functions_stay_readable(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    assert path.stem not in {"utils", "helpers", "misc", "common", "base"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{node.name} is too long"


def test_datasets_folder_holds_cards_only() -> None:
    """A Python package called `datasets` would shadow the one that transformers looks for."""
    assert {path.suffix for path in (ROOT / "datasets").rglob("*") if path.is_file()} <= {".yaml", ".md"}
