"""reports/faults.md: one section for each of `make faults`, `make soak` and `make fuzz`; each replaces its own."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

PAGE = Path(__file__).parents[2] / "reports" / "faults.md"
FAULT_LIST, KILL_AND_RESUME, HOSTILE_INPUT = "Fault list", "Kill and resume", "Hostile input"
_SECTIONS = {FAULT_LIST: "faults", KILL_AND_RESUME: "soak", HOSTILE_INPUT: "fuzz"}
_HEAD = """# Faults

What was done to the harness on purpose, and what it did, as the tests observed it. Written by `make faults`,
`make soak` and `make fuzz`, each its own section.
"""


def write_section(title: str, body: str, page: Path = PAGE) -> None:
    """Replace one section of the page and leave the others as they are."""
    sections = read_sections(page) | {title: body.strip()}
    parts = [f"## {name}\n\n{sections.get(name, f'Not run yet: `make {word}`.')}\n" for name, word in _SECTIONS.items()]
    page.write_text("\n".join([_HEAD, *parts]), encoding="utf-8")


def read_sections(page: Path = PAGE) -> dict[str, str]:
    """Return the sections of a page by title; none if the page does not exist."""
    if not page.is_file():
        return {}
    _, *parts = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {title: body.strip() for title, _, body in (part.partition("\n") for part in parts)}


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; what could end a cell or be HTML is escaped."""
    lines = [list(head), *rows]
    text = [f"| {' | '.join(escaped(value) for value in line)} |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(lines[0]), *text[1:]])


def counts(head: tuple[str, str], values: Mapping[str, int]) -> str:
    """Return a Markdown table of names and counts."""
    return table(head, [(name, f"{count:,}") for name, count in values.items()])


def escaped(value: object) -> str:
    """Return the value as text in which nothing ends a cell of a table or is HTML."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;").replace("#", "\\#")


_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "faiss-cpu")


def origin_line(seconds: float) -> str:
    """Return day, duration, commit, processor and versions of a command that has just taken so many seconds."""
    # not at the top: `fuzz` has to instrument what it imports of the harness
    from harness.io.progress import clock
    from harness.runs.environment import environment

    here = environment("cpu")
    git, packages = here["git"], here["packages"]
    commit = "no commit" if git["commit"] is None else f"commit {git['commit'][:12]}"
    parts = [
        f"{here['cpu']}, {here['cores']} cores",
        f"python {here['python']}",
        *(f"{name} {packages[name]}" for name in _PACKAGES if name in packages),
    ]
    day = datetime.now(UTC).date().isoformat()
    changed = " with changes" if git["dirty"] else ""
    return f"Measured on {day} in {clock(seconds)}, {commit}{changed}: {', '.join(parts)}."
