"""Names beside points, so that nobody has to search a legend: no name covers another name, a point or a line.

Every name has candidates around its point, near ones first. The cost of a candidate is its distance, plus much for each
thing it would cover and for each leader line it would cross. Names are put down one after the other, the most crowded
first, and then moved in turn until none can be put cheaper; of several such orders the cheapest result counts. The same
points give the same places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.report.figures.style import GREY, SMALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

_ANGLES = np.deg2rad(np.arange(0, 360, 15))
_REACHES = (0.0, 5.0, 12.0, 20.0, 30.0, 42.0, 56.0, 72.0, 90.0, 110.0)
"""Points of free space between a marker and its name, from which one is chosen."""
_MARKER, _BODY = 5.0, 4.0
"""Half the width of a marker, with and without the space around it, points."""
_GAP = 1.5
"""Free space around a name, points."""
_LEADER = 7.0
"""Distance from which on a line leads from the marker to its name."""
_OUTSIDE, _COVERING, _CROSSING, _DOUBT = 1e6, 1e4, 60.0, 12.0
_ROUNDS, _STARTS, _MANY = 8, 6, 30

_Found = tuple[float, Floats]


@dataclass(frozen=True)
class _Field:
    """What is on the paper already; everything in points."""

    bounds: Floats
    """Left, bottom, right, top; [4]."""
    points: Floats
    """Centres of the markers, [n, 2]."""
    markers: Floats
    """Boxes around the markers, [n, 4]."""
    lines: Floats
    """Pieces of lines that names keep clear of, [m, 4]: x0, y0, x1, y1."""


def place_labels(points: Floats, sizes: Floats, bounds: Floats, lines: Floats | None = None) -> Floats:
    """Boxes [n, 4] (left, bottom, right, top) for names beside n points.

    Args:
        points: Centres of the markers, [n, 2].
        sizes: Widths and heights of the names, [n, 2].
        bounds: Left, bottom, right and top of where names may be, [4].
        lines: Pieces of lines to keep clear of, [m, 4].
    """
    lines = np.empty((0, 4)) if lines is None else lines
    field = _Field(bounds, points, _around(points, np.full((len(points), 2), 2 * _BODY)), lines)
    candidates = [_candidates(point, size) for point, size in zip(points, sizes, strict=True)]
    fixed = [_fixed_costs(field, place, boxes, points[place]) for place, boxes in enumerate(candidates)]
    near = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))
    order = np.argsort(-np.exp(-near / 40).sum(1), kind="stable")
    tries = _STARTS if len(points) <= _MANY else 1
    starts = np.unique(np.linspace(0, len(points), tries, endpoint=False).astype(int))
    found = [_settled(points, candidates, fixed, np.roll(order, -start)) for start in starts]
    return min(found, key=lambda pair: pair[0])[1] if found else np.empty((0, 4))


def _settled(points: Floats, candidates: list[Floats], fixed: list[Floats], order: NDArray[np.intp]) -> _Found:
    """Puts names down in the given order and moves them in turn until none gets cheaper; the cost and the boxes."""
    chosen = np.full(len(points), -1)
    paid = np.zeros(len(points))
    for _ in range(_ROUNDS):
        before = chosen.copy()
        for place in order:
            others = [other for other in order if other != place and chosen[other] >= 0]
            boxes = np.array([candidates[other][chosen[other]] for other in others]).reshape(-1, 4)
            costs = fixed[place] + _mutual_costs(candidates[place], points[place], boxes, points[others])
            chosen[place] = int(costs.argmin())
            paid[place] = costs.min()
        if (before == chosen).all():
            break
    boxes = np.array([boxes[at] for boxes, at in zip(candidates, chosen, strict=True)])
    return float(paid.sum()), boxes


def label_points(axis: "Axes", x: Floats, y: Floats, names: Sequence[str], lines: Sequence[Floats] = ()) -> None:
    """Writes names beside points of finished axes; call it last, because names keep where they are put.

    Args:
        axis: Whose limits and scales are final.
        x: Of the points, in data, [n].
        y: Of the points, in data, [n].
        names: Of the points, [n].
        lines: Polylines in data that names should keep clear of, [k, 2] each.
    """
    if not len(names):
        return
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    scale = 72 / figure.dpi

    def on_paper(data: Floats) -> Floats:
        return np.asarray(axis.transData.transform(data), np.float64) * scale

    points = on_paper(np.column_stack([x, y]))
    texts = [figure.text(0, 0, name, fontsize=SMALL) for name in names]
    extents = [text.get_window_extent() for text in texts]
    sizes = np.array([[extent.width, extent.height] for extent in extents]) * scale + 2 * _GAP
    for text in texts:
        text.remove()
    frame = axis.get_window_extent()
    bounds = np.array([frame.x0, frame.y0, frame.x1, frame.y1]) * scale
    pieces = [np.hstack([paper[:-1], paper[1:]]) for paper in map(on_paper, lines)]
    boxes = place_labels(points, sizes, bounds, np.vstack(pieces) if pieces else None)
    nearer = _doubtful(boxes, points)
    for place, at in enumerate(zip(x, y, strict=True)):
        _write(axis, names[place], at, points[place], boxes[place], led=bool(nearer[place, place]))


def _write(axis: "Axes", name: str, at: tuple[float, float], point: Floats, box: Floats, led: bool) -> None:
    """A name in its box, with a leader line if it is far from its point or may be taken for the name of another."""
    centre = (box[:2] + box[2:]) / 2 - point
    end = np.clip(point, box[:2] + _GAP, box[2:] - _GAP) - point
    distance = float(np.hypot(*end))
    if distance > _LEADER or led:
        line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.8, "shrinkA": 0, "shrinkB": _BODY}
        leader = axis.annotate("", at, tuple(end), textcoords="offset points", arrowprops=line)
        leader.set_in_layout(False)
    text = axis.annotate(
        name, at, tuple(centre), textcoords="offset points", ha="center", va="center", fontsize=SMALL, zorder=6
    )
    text.set_in_layout(False)


def _doubtful(boxes: Floats, points: Floats) -> NDArray[np.bool_]:
    """Which boxes [n, 4] have a marker that is as near as the marker at points [m, 2], or nearer; [n, m]."""
    nearest = np.clip(points[None], boxes[:, None, :2], boxes[:, None, 2:])
    away = np.hypot(*(nearest - points[None]).transpose(2, 0, 1))
    found: NDArray[np.bool_] = (away[:, None, :] < away[:, :, None] + 2).sum(2) > 1
    return found


def _around(centres: Floats, sizes: Floats) -> Floats:
    """Boxes [n, 4] of the given sizes around centres, [n, 2] each."""
    return np.hstack([centres - sizes / 2, centres + sizes / 2])


def _candidates(point: Floats, size: Floats) -> Floats:
    """Boxes around a point at every angle and reach, [c, 4]; the box touches the reach with its nearest side."""
    directions = np.column_stack([np.cos(_ANGLES), np.sin(_ANGLES)])
    reaches = np.array(_REACHES)[:, None, None] + _MARKER
    # a box whose centre is at (d + half size) * direction, stretched per side, never covers the circle of radius d
    sides = np.clip(directions * 1.4, -1, 1)
    centres = point + reaches * directions + sides * size / 2
    return _around(centres.reshape(-1, 2), np.broadcast_to(size, (centres.size // 2, 2)))


def _fixed_costs(field: _Field, place: int, boxes: Floats, point: Floats) -> Floats:
    """What the candidates [c, 4] of one name cost whatever the other names do, [c]."""
    left, bottom, right, top = field.bounds
    over = np.maximum(0, [left - boxes[:, 0], bottom - boxes[:, 1], boxes[:, 2] - right, boxes[:, 3] - top])
    ends = np.clip(point, boxes[:, :2], boxes[:, 2:])
    leaders = np.hstack([np.broadcast_to(point, ends.shape), ends])
    others = np.delete(field.markers, place, axis=0)
    distance = np.hypot(*(ends - point).T)
    # the right side reads best, then the left one; above and below a marker a name is easily taken for that of another
    turned = 0.6 * np.abs((boxes[:, 1] + boxes[:, 3]) / 2 - point[1]) / (1 + distance)
    covered = _overlaps(boxes, field.markers).sum(1) + _through(field.lines, boxes).sum(0)
    doubtful = _doubtful(boxes, field.points)[:, place]
    passed = _through(leaders, others).sum(1) + 0.3 * _cross(leaders, field.lines).sum(1)
    left_side = boxes[:, 2] < point[0]
    costs: Floats = (
        _OUTSIDE * (over.sum(0) > 0)
        + _COVERING * covered
        + _CROSSING * passed
        + _DOUBT * doubtful
        + distance
        + turned
        + 1.5 * left_side
    )
    return costs


def _mutual_costs(candidates: Floats, point: Floats, boxes: Floats, points: Floats) -> Floats:
    """What the candidates [c, 4] of a name cost beside names that are put down in `boxes` [n, 4], [c]."""
    ends = np.clip(point, candidates[:, :2], candidates[:, 2:])
    leaders = np.hstack([np.broadcast_to(point, ends.shape), ends])
    theirs = np.hstack([points, np.clip(points, boxes[:, :2], boxes[:, 2:])])
    crossed = _through(leaders, boxes).sum(1) + _through(theirs, candidates).sum(0) + _cross(leaders, theirs).sum(1)
    costs: Floats = _COVERING * _overlaps(candidates, boxes).sum(1) + 20 * _CROSSING * crossed
    return costs


def _overlaps(some: Floats, others: Floats) -> NDArray[np.bool_]:
    """Which of the boxes [n, 4] cover which of the others [m, 4], [n, m]."""
    a, b = some[:, None], others[None]
    found = (a[..., :2] < b[..., 2:]).all(-1) & (b[..., :2] < a[..., 2:]).all(-1)
    return np.asarray(found, bool)


def _through(segments: Floats, boxes: Floats) -> NDArray[np.bool_]:
    """Which segments [n, 4] pass through which boxes [m, 4], [n, m]: the clipping of Liang and Barsky."""
    start, step = segments[:, None, :2], segments[:, None, 2:] - segments[:, None, :2]
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = (boxes[None, :, :2] - start) / step, (boxes[None, :, 2:] - start) / step
    inside = (start > boxes[None, :, :2]) & (start < boxes[None, :, 2:])
    flat = step == 0
    enters = np.where(flat, np.where(inside, -np.inf, np.inf), np.minimum(first, second)).max(-1)
    leaves = np.where(flat, np.inf, np.maximum(first, second)).min(-1)
    found = np.maximum(enters, 0) < np.minimum(leaves, 1)
    return np.asarray(found, bool)


def _cross(some: Floats, others: Floats) -> NDArray[np.bool_]:
    """Which of the segments [n, 4] cross which of the others [m, 4], [n, m]."""
    a, b = some[:, None], others[None]

    def side(line: Floats, x: Floats, y: Floats) -> Floats:
        return np.sign(
            (line[..., 2] - line[..., 0]) * (y - line[..., 1]) - (line[..., 3] - line[..., 1]) * (x - line[..., 0])
        )

    apart = side(a, b[..., 0], b[..., 1]) * side(a, b[..., 2], b[..., 3]) < 0
    found: NDArray[np.bool_] = apart & (side(b, a[..., 0], a[..., 1]) * side(b, a[..., 2], a[..., 3]) < 0)
    return found
