"""Names beside points, so that nobody has to search a legend: no name covers another name, a point or a line.

Each name takes the cheapest of many boxes around its point: a box costs its distance, and much more for every name,
marker and line it covers. The most crowded names choose first, then all choose once more.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.report.figures.style import GREY, SMALL, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ANGLES = np.deg2rad(np.arange(0, 360, 15))
_REACHES = np.array((0.0, 5.0, 12.0, 20.0, 30.0, 42.0, 56.0, 72.0, 90.0, 110.0))
"""Distances tried between a marker and its name, points."""
_MARKER, _GAP, _LEADER = 5.0, 1.5, 7.0
"""Half the width of a marker, free space around a name, and the distance from which on a leader line is drawn."""
_OUTSIDE, _COVERED, _DOUBTFUL = 1e6, 1e4, 12.0
"""Cost of a box outside the axes, of each thing it covers, and of a box about as near to another point."""
_SAMPLES = np.linspace(0, 1, 24)[:, None]


def place_labels(points: Floats, sizes: Floats, bounds: Floats, lines: Floats | None = None) -> Floats:
    """Find boxes [n, 4] (left, bottom, right, top) for names beside n points.

    Args:
        points: Centres of the markers, [n, 2].
        sizes: Widths and heights of the names, [n, 2].
        bounds: Left, bottom, right and top of where names may be, [4].
        lines: Line segments to keep clear of, [m, 4] (x0, y0, x1, y1).
    """
    pieces = np.empty((0, 4)) if lines is None else lines
    fixed = np.vstack([np.hstack([points - _MARKER + 1, points + _MARKER - 1]), _samples(pieces).reshape(-1, 4)])
    crowd = np.exp(-np.hypot(*(points[:, None] - points).transpose(2, 0, 1)) / 40).sum(1)
    order = np.argsort(-crowd, kind="stable")
    chosen = np.full((len(points), 4), np.nan)  # a box that is not placed yet covers nothing
    for place in [*order, *order]:
        point = points[place]
        boxes = _around(point, sizes[place])
        names, others = np.delete(chosen, place, axis=0), np.delete(points, place, axis=0)
        taken = np.vstack([fixed, names, _leaders(others, names).reshape(-1, 4)])
        outside = (boxes[:, :2] < bounds[:2]).any(1) | (boxes[:, 2:] > bounds[2:]).any(1)
        away = _distances(point, boxes)
        # right of the marker reads best, then left; a name above or below may be taken for another point's
        turned = 0.6 * np.abs(boxes[:, [1, 3]].mean(1) - point[1]) / (1 + away) + 1.5 * (boxes[:, 2] < point[0])
        cost = away + turned + _DOUBTFUL * _doubtful(boxes, points, place) + _OUTSIDE * outside
        cost += _COVERED * _overlaps(boxes, taken).sum(1)
        # the leader line of a name must not run through another name
        crossed = _overlaps(_leaders(point, boxes).reshape(-1, 4), names).any(1).reshape(len(boxes), -1).any(1)
        chosen[place] = boxes[int((cost + _COVERED * crossed).argmin())]
    return chosen


def label_points(axis: "Axes", x: Floats, y: Floats, names: Sequence[str], lines: Sequence[Floats] = ()) -> None:
    """Write names beside points of finished axes; call it last, because names stay where they are put.

    Args:
        axis: Axes whose limits and scales are final.
        x: Coordinates of the points, in units of the data, [n].
        y: Coordinates of the points, in units of the data, [n].
        names: Names of the points, [n].
        lines: Polylines that names keep clear of, in units of the data, [k, 2] each.
    """
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    scale = 72 / figure.dpi

    def on_paper(data: Floats) -> Floats:
        return np.asarray(axis.transData.transform(data), np.float64) * scale

    points = on_paper(np.column_stack([x, y]))
    texts = [
        axis.annotate(name, at, (0, 0), textcoords="offset points", ha="center", va="center", fontsize=SMALL)
        for name, at in zip(names, zip(x, y, strict=True), strict=True)
    ]
    sizes = np.array([text.get_window_extent().size for text in texts]) * scale + 2 * _GAP
    bounds = np.array(axis.get_window_extent().extents) * scale
    pieces = [np.hstack([paper[:-1], paper[1:]]) for paper in map(on_paper, lines)]
    boxes = place_labels(points, sizes, bounds, np.vstack(pieces) if pieces else None)
    for place, (text, point, box) in enumerate(zip(texts, points, boxes, strict=True)):
        text.set_position(tuple((box[:2] + box[2:]) / 2 - point))
        text.set_in_layout(False)
        end = np.clip(point, box[:2] + _GAP, box[2:] - _GAP) - point
        if np.hypot(*end) > _LEADER or _doubtful(box[None], points, place)[0]:
            line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.8, "shrinkA": 0, "shrinkB": _MARKER - 1}
            leader = axis.annotate("", text.xy, tuple(end), textcoords="offset points", arrowprops=line)
            leader.set_in_layout(False)


def _around(point: Floats, size: Floats) -> Floats:
    """Return candidate boxes [c, 4] of one size [2] around a point [2], at every angle and distance."""
    directions = np.column_stack([np.cos(_ANGLES), np.sin(_ANGLES)])
    # stretched per side, so that the box never covers the circle of the marker
    centres = point + (_REACHES[:, None, None] + _MARKER) * directions + np.clip(directions * 1.4, -1, 1) * size / 2
    centres = centres.reshape(-1, 2)
    return np.hstack([centres - size / 2, centres + size / 2])


def _leaders(points: Floats, boxes: Floats) -> Floats:
    """Return samples [n, 24, 4] of lines from points [n, 2], or from one [2], to the nearest places of boxes [n, 4]."""
    ends = np.clip(points, boxes[:, :2], boxes[:, 2:])
    return _samples(np.hstack([np.broadcast_to(points, ends.shape), ends]))


def _samples(lines: Floats) -> Floats:
    """Return points along lines [n, 4] (x0, y0, x1, y1) as boxes of size zero, [n, 24, 4]."""
    starts, ends = lines[:, None, :2], lines[:, None, 2:]
    places = starts + _SAMPLES * (ends - starts)
    return np.concatenate([places, places], axis=-1)


def _distances(points: Floats, boxes: Floats) -> Floats:
    """Return the distances of a point [2] or points [m, 1, 2] from boxes [n, 4]; [n] or [m, n]."""
    return np.asarray(np.linalg.norm(np.clip(points, boxes[:, :2], boxes[:, 2:]) - points, axis=-1), np.float64)


def _doubtful(boxes: Floats, points: Floats, place: int) -> NDArray[np.bool_]:
    """Return whether another point of [m, 2] is about as near to a box [n, 4] as its own, [n]."""
    others = np.delete(points, place, axis=0)
    return np.asarray((_distances(others[:, None], boxes) < _distances(points[place], boxes) + 2).any(0), bool)


def _overlaps(some: Floats, others: Floats) -> NDArray[np.bool_]:
    """Return which boxes [n, 4] overlap which others [m, 4], [n, m]."""
    left, bottom, right, top = some.T[:, :, None]
    across = (left < others[:, 2]) & (others[:, 0] < right)
    return np.asarray(across & (bottom < others[:, 3]) & (others[:, 1] < top), bool)
