"""Labels that occur together: a few examples with their strongest neighbours (thesis, figure 1.2)."""

import math
import re
import shlex
from typing import Any

from harness.report.evidence import Evidence, Example, Neighbours
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.style import SMALL, finished, new_figure, shown, styled

ID = "neighbours"
TITLE = "Labels that occur together"
COLUMNS = 2
_BAR = "#8CC4E6"
"""A light tint of the palette's sky blue: black letters on it stay readable, in print too."""
_LONGEST = 36
_LONGEST_TITLE = 33
"""Letters of a label that a panel has room for, and those of a title, which is bold and not alone in its line."""


@styled
def draw_neighbours(evidence: Evidence, dataset: str) -> Drawing | Missing:
    """One panel an example: bars as long as the share of its train rows that have the neighbour too."""
    found = evidence.neighbours.get(dataset)
    examples = [example for example in found.examples if example.neighbours] if found else []
    if not found or not examples:
        why = f"label neighbours of {dataset} were not collected" if not found else f"{dataset} has no label with any"
        command = f"python -m harness data prepare {shlex.quote(dataset)}\npython -m harness report --collect"
        return Missing(ID, TITLE, why, command)
    rows = math.ceil(len(examples) / COLUMNS)
    most = max(len(example.neighbours) for example in examples)
    figure, axes = new_figure(rows, COLUMNS, height=rows * (0.55 + 0.2 * most), sharex=True)
    for axis, example in zip(axes.flat, examples, strict=False):
        _fill(axis, example, most)
    for axis in axes.flat[len(examples) :]:
        axis.set_axis_off()
    for column in range(COLUMNS):
        lowest = max((row for row in range(rows) if row * COLUMNS + column < len(examples)), default=None)
        if lowest is not None:
            axes[lowest, column].tick_params(labelbottom=True)
            axes[lowest, column].set_xlabel("share of its train rows, %")
    caption = (
        f"For {len(examples)} labels of {shown(dataset)}, which others their train rows have too: the length of a bar "
        f"is the share of the rows of the label above that have the label on the bar. Labels are named by their ids; "
        f"the examples are frequent labels with the most neighbours of at least 20%. {_truth(found)}"
        f"Data {found.digest[:12]}."
    )
    told = "; ".join(
        f"{example.label}: " + ", ".join(f"{other.label} {other.share:.0%}" for other in example.neighbours[:3])
        for example in examples
    )
    alt = f"Bar charts of labels of {dataset} and the labels that share their train rows, strongest first. {told}."
    return Drawing(ID, TITLE, caption, alt, *finished(figure))


def _truth(found: Neighbours) -> str:
    """Whether labels that occur together are also what the items themselves point at, as a sentence or nothing."""
    if found.true_share is None:
        return ""
    return (
        f"Of what occurs together with the {found.items:,} labels that are train rows themselves, "
        f"{found.true_share:.0%} by weight is among their own labels. "
    )


def ending(name: str, longest: int = _LONGEST) -> str:
    """A name that fits, by its end, which tells `a.b.c` from `a.b.d`; cut behind a separator if there is one."""
    clean = shown(name, len(name) + len("(no name)"))
    if len(clean) <= longest:
        return clean
    end = clean[len(clean) - longest + 1 :]
    whole = re.search(r"(?<=[./: -])[^./: -].{7,}", end)
    return f"…{whole.group() if whole else end}"


def _fill(axis: Any, example: Example, most: int) -> None:
    shares = [100 * neighbour.share for neighbour in example.neighbours]
    axis.barh(range(len(shares)), shares, height=0.82, color=_BAR, zorder=2)
    for row, (neighbour, share) in enumerate(zip(example.neighbours, shares, strict=True)):
        text = {"va": "center_baseline", "fontsize": SMALL, "zorder": 3}
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
