"""What drawing a figure gives: the picture with its words, or what is missing to draw it."""

import hashlib
from dataclasses import dataclass


def figure_stem(dataset: str, figure: str) -> str:
    """Where a figure lies in a report, without its ending; a dataset may be called by a path or by options."""
    safe = "".join(letter if letter.isalnum() or letter in "-._" else "-" for letter in dataset).strip(".-")
    # names that look alike without their signs stay apart
    suffix = "" if safe == dataset else f"-{hashlib.sha256(dataset.encode(errors='replace')).hexdigest()[:6]}"
    return f"figures/{safe or 'data'}{suffix}/{figure}"


@dataclass(frozen=True)
class Drawing:
    """A finished figure."""

    id: str
    """File stem, also the anchor on the page."""
    title: str
    caption: str
    alt: str
    """What it shows, for readers who cannot see it."""
    svg: bytes
    png: bytes


@dataclass(frozen=True)
class Missing:
    """A figure that cannot be drawn from what there is."""

    id: str
    title: str
    why: str
    command: str
    """What to run to get it."""
