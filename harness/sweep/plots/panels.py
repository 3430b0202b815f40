"""What the images of a study have in common: colours, sizes, names of axes, and how far an axis reaches.

Colours are those of Okabe and Ito, which people with any colour vision tell apart. A trial that failed badly would
squeeze all others into a line, so an axis ends a little below the bulk of the values, and what lies lower is drawn on
its edge.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

COLOURS = {"blue": "#0072B2", "orange": "#D55E00", "grey": "#8C8C8C", "black": "#222222"}
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "text.parse_math": False,  # a dollar in a name is a dollar
}


def axis_name(metric: str) -> str:
    """For example `validation P@1, percent`."""
    return f"validation {metric}, percent"


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of the size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def title_of(what: str, facts: Mapping[str, Any]) -> str:
    """What is shown, of which method on which dataset."""
    names = [Path(str(facts[key])).name for key in ("method", "dataset") if facts.get(key)]
    return f"{what}: {' on '.join(names)}" if names else what


def legend_below(figure: "Figure", panel: "Axes") -> None:
    """Under the panels, in one line, so that it covers no point."""
    handles, labels = panel.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), handletextpad=0.4)


def whole_numbers(panel: "Axes") -> None:
    """Ticks of the x axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    panel.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def values_of(frame: pd.DataFrame, metric: str) -> Floats:
    """An objective of complete trials [n], NaN for others."""
    values = pd.to_numeric(frame[metric], errors="coerce").to_numpy(np.float64, copy=True)
    values[(frame["state"] != "COMPLETE").to_numpy() | ~np.isfinite(values)] = np.nan
    return values


def limits_of(values: Floats, others: Floats) -> tuple[float, float]:
    """An axis for the bulk of the values: what lies far below their middle half is left to its edge."""
    known = values[np.isfinite(values)]
    known = known if len(known) else others[np.isfinite(others)]
    if not len(known):
        return 0.0, 1.0
    first, third = np.percentile(known, [25, 75])
    both = np.concatenate([known, others[np.isfinite(others)]])
    spread = max(third - first, 0.01 * abs(third))
    high, low = both.max(), both[both >= first - 3 * spread].min()
    reach = (high - low) or max(abs(high) * 0.1, 1.0)
    return float(low - 0.06 * reach), float(high + 0.1 * reach)
