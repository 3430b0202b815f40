"""What drawing a figure gives: the picture with its words, or what is missing to draw it."""

from dataclasses import dataclass


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
