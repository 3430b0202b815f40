"""Which code a run came from."""

import subprocess
from pathlib import Path

import pytest

from harness.runs.environment import git_state


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with code and a report, both committed."""
    for name in ("code.py", "reports/table.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "all")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize("name", ["code.py", "new.py"])
def test_changed_code_is_told(checkout: Path, name: str) -> None:
    (checkout / name).write_text("two\n")
    state = git_state(checkout)
    assert state["dirty"] is True
    assert len(state["diff_sha256"]) == 64


def test_reports_are_no_code(checkout: Path) -> None:
    for name in ("table.md", "new.md"):
        (checkout / "reports" / name).write_text("two\n")
    state = git_state(checkout)
    assert state.keys() == {"commit", "dirty"}
    assert state["dirty"] is False
    assert len(state["commit"]) == 40


def test_a_folder_inside_a_checkout_of_something_else_has_no_commit(checkout: Path) -> None:
    assert git_state(checkout / "reports") == {"commit": None, "dirty": None}
