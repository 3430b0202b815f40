"""Figure of labels that occur together: a few examples with their strongest neighbours (thesis, figure 1.2)."""

import math
import re
import shlex
from typing import Any

import pandas as pd

from harness.report.figures.drawing import Sketch, Undrawable
from harness.report.figures.style import SMALL, format_name, new_figure
from harness.report.results import Example, Results

COLUMNS = 2
_BAR = "#8CC4E6"
"""Colour of bars: a light sky blue, on which black text is readable in print too."""
_LONGEST = 36
_LONGEST_TITLE = 33
"""Characters that a panel has room for in a label, and in its bold title, which shares its line."""


def draw_neighbours(results: Results, dataset: str) -> Sketch:
    """Draw a panel per label: bars as long as the share of its train rows that have the neighbour too."""
    found = results.neighbours.get(dataset)
    examples = [example for example in found.examples if example.neighbours] if found else []
    if not found or not examples:
        why = f"label neighbours of {dataset} were not collected" if not found else f"{dataset} has no label with any"
        command = f"python -m harness data prepare {shlex.quote(dataset)}\npython -m harness report --collect"
        raise Undrawable(why, command)
    rows = math.ceil(len(examples) / COLUMNS)
    most = max(len(example.neighbours) for example in examples)
    figure, axes = new_figure(rows, COLUMNS, height=rows * (0.55 + 0.2 * most), sharex=True)
    for axis, example in zip(axes.flat, examples, strict=False):
        _fill(axis, example, most)
    for axis in axes.flat[len(examples) :]:
        axis.set_axis_off()
    for axis in axes.flat[max(len(examples) - COLUMNS, 0) : len(examples)]:  # the lowest of each column
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("share of its train rows, %")
    truth = ""
    if found.true_share is not None:
        truth = (
            f"Of what occurs together with the {found.items:,} labels that are train rows themselves, "
            f"{found.true_share:.0%} by weight is among their own labels. "
        )
    caption = (
        f"For {len(examples)} labels of {format_name(dataset)}, which others their train rows have too: the length of "
        "a bar is the share of the rows of the label above that have the label on the bar. Labels are named by their "
        f"ids; the examples are frequent labels with the most neighbours of at least 20%. {truth}"
        f"Data {found.digest[:12]}."
    )
    data = pd.DataFrame(
        [(one.label, one.train_rows, other.label, other.share) for one in examples for other in one.neighbours],
        columns=["label", "train rows", "neighbour", "share"],
    )
    return Sketch(figure, data, caption)


def ending(name: str, longest: int = _LONGEST) -> str:
    """Shorten a name to its end, which tells `a.b.c` from `a.b.d`; cut behind a separator if there is one."""
    clean = format_name(name, len(name) + len("(no name)"))
    if len(clean) <= longest:
        return clean
    end = clean[len(clean) - longest + 1 :]
    whole = re.search(r"(?<=[./: -])[^./: -].{7,}", end)
    return f"…{whole.group() if whole else end}"


def _fill(axis: Any, example: Example, most: int) -> None:
    shares = [100 * neighbour.share for neighbour in example.neighbours]
    axis.barh(range(len(shares)), shares, height=0.82, color=_BAR, zorder=2)
    for row, (neighbour, share) in enumerate(zip(example.neighbours, shares, strict=True)):
        text: dict[str, Any] = {"va": "center_baseline", "fontsize": SMALL, "zorder": 3}
        axis.annotate(ending(neighbour.label), (0, row), (3, 0), textcoords="offset points", **text)
        axis.annotate(f"{share:.0f}", (100, row), (-2, 0), textcoords="offset points", ha="right", **text)
    rows = "1 row" if example.train_rows == 1 else f"{example.train_rows:,} rows"
    axis.set_title(ending(example.label, _LONGEST_TITLE), fontsize=8.5, pad=4)
    axis.annotate(
        rows, (1, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", ha="right", fontsize=SMALL
    )
    axis.set(xlim=(0, 100), ylim=(most - 0.4, -0.6), xticks=[0, 25, 50, 75, 100], yticks=[])
    axis.grid(visible=False)
    axis.tick_params(labelbottom=False)
    axis.spines["left"].set_visible(False)
