"""What lint does not check of the layout: loose modules, and the folder that must stay free of code."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_modules_are_in_rooms() -> None:
    assert {path.stem for path in (ROOT / "harness").glob("*.py")} <= {
        *("__init__", "__main__", "run", "errors", "registry", "seeds"),
    }


def test_datasets_folder_holds_cards_only() -> None:
    """A Python package called `datasets` would shadow the one that transformers looks for."""
    assert {path.suffix for path in (ROOT / "datasets").rglob("*") if path.is_file()} <= {".yaml", ".md"}
