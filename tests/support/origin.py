"""Where and when something was measured, as one line of a report."""

from datetime import UTC, datetime

from harness.io.progress import clock
from harness.runs.environment import environment

_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "faiss-cpu")


def origin_line(seconds: float) -> str:
    """Day, duration, commit, processor and versions of what has just taken so many seconds."""
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
