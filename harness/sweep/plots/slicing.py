"""Value of the trials against each range: frame of trials [n] -> one panel a range.

Points get darker with the number of the trial; those below the axis are triangles on its edge.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from harness.method import SearchRange
from harness.sweep.plots.panels import COLOURS, Floats, axis_name, limits_of, new_figure, title_of, values_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_COLUMNS = 3


def draw_slices(frame: pd.DataFrame, facts: Mapping[str, Any]) -> "Figure | None":
    """Value against each range, one panel a range, for every objective; later trials are darker."""
    space: dict[str, SearchRange] = dict(facts.get("space") or {})
    objectives = [metric for metric in facts["objectives"] if np.isfinite(values_of(frame, metric)).any()]
    names = [name for name in space if name in frame]
    if not names or not objectives:
        return None
    from matplotlib.ticker import MaxNLocator

    columns = 2 if len(names) == 4 else min(len(names), _MAX_COLUMNS)
    rows = math.ceil(len(names) / columns)
    figure = new_figure(max(2.15 * columns + 0.5, 3.6), 2.05 * rows * len(objectives) + 0.55)
    panels = figure.subplots(rows * len(objectives), columns, squeeze=False)
    shades = None
    for block, metric in enumerate(objectives):
        limits = limits_of(values_of(frame, metric), np.full(len(frame), np.nan))
        for place in range(rows * columns):
            panel = panels[block * rows + place // columns, place % columns]
            if place >= len(names):
                panel.set_axis_off()
                continue
            shades = _slice(panel, frame, names[place], space[names[place]], metric, limits)
            if place % columns:
                panel.tick_params(labelleft=False)
            else:
                panel.set_ylabel(axis_name(metric).replace(", ", ",\n") if rows * columns > 1 else axis_name(metric))
    figure.suptitle(title_of("Value against each range", facts), x=0.01, ha="left", fontsize=10)
    if shades is not None and len(frame) > 1:
        bar = figure.colorbar(shades, ax=panels.ravel().tolist(), label="trial", aspect=40, pad=0.015)
        bar.outline.set_visible(False)
        bar.locator = MaxNLocator(8, integer=True, steps=[1, 2, 5, 10])
        bar.update_ticks()
    return figure


def _slice(
    panel: "Axes", frame: pd.DataFrame, name: str, given: SearchRange, metric: str, limits: tuple[float, float]
) -> Any:
    values, numbers = values_of(frame, metric), frame["number"].to_numpy(np.float64)
    drawn = frame[name]
    places, known = _places(panel, drawn, given, numbers)
    shown = np.isfinite(values) & known
    under = values < limits[0]
    shades = None
    for marker, size, rows in (("o", 26, shown & ~under), ("v", 32, shown & under)):
        shades = panel.scatter(
            places[rows],
            np.fmax(values[rows], limits[0]),
            c=numbers[rows],
            cmap="cividis_r",
            s=size,
            marker=marker,
            vmin=numbers.min(),
            vmax=max(numbers.max(), numbers.min() + 1),
            edgecolors="#444444",
            linewidths=0.4,
            clip_on=False,
            zorder=3,
        )
    if shown.any():
        top = int(np.nanargmax(np.where(shown, values, np.nan)))
        panel.scatter(
            places[top],
            values[top],
            s=120,
            marker="*",
            color=COLOURS["orange"],
            edgecolors="white",
            linewidths=0.6,
            zorder=4,
            clip_on=False,
        )
    panel.set_ylim(*limits)
    panel.set_xlabel(name)
    return shades


def _places(panel: "Axes", drawn: pd.Series, given: SearchRange, numbers: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Where values of a range lie on the x axis, which is set up for it; and which trials have one."""
    if given.choices is None:
        places = pd.to_numeric(drawn, errors="coerce").to_numpy(np.float64)
        assert given.low is not None
        assert given.high is not None
        _number_axis(panel, float(given.low), float(given.high), given)
        return places, np.isfinite(places)
    words = [
        "null" if choice is None else str(choice).lower() if isinstance(choice, bool) else str(choice)
        for choice in given.choices
    ]
    rows = np.array([_choice_row(value, given.choices) for value in drawn], dtype=np.float64)
    # points of one choice are spread a little, the same way in every drawing
    spread = ((numbers * 0.6180339887) % 1 - 0.5) * 0.36
    panel.set_xticks(range(len(words)), words)
    if max(map(len, words)) * len(words) > 22:
        panel.tick_params(axis="x", rotation=30)
    panel.set_xlim(-0.5, len(words) - 0.5)
    panel.grid(False, axis="x")
    return rows + spread, np.isfinite(rows)


def _choice_row(value: Any, choices: list[Any]) -> float:
    missing = value is None or value != value  # a frame turns None into NaN among numbers
    for row, choice in enumerate(choices):
        if (choice is None and missing) or (not missing and choice is not None and value == choice):
            return float(row)
    return math.nan


def _number_axis(panel: "Axes", low: float, high: float, given: SearchRange) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator, StrMethodFormatter

    if not given.log:
        margin = 0.04 * (high - low)
        panel.set_xlim(low - margin, high + margin)
        panel.xaxis.set_major_locator(MaxNLocator(5, integer=isinstance(given.low, int)))
        return
    panel.set_xscale("log")
    margin = (high / low) ** 0.04
    panel.set_xlim(low / margin, high * margin)
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 1.7 else (1.0, 3.0) if decades < 2.3 else (1.0,)
    panel.xaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=8 if decades > 1.7 else 12))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_minor_formatter(NullFormatter())
