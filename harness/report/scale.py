"""docs/scale.md: prose by hand, figures by code. What stands between two markers is made anew with the report.

    <!-- generated: growth -->
    ...
    <!-- end -->

Blocks are functions of `speed.json` and of `harness.plan`, so a page whose code, cards or measurements have changed
since is found stale by making it again.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from harness.config import Layer
from harness.data.card import load_card
from harness.errors import DataError, unknown_name
from harness.perf.saved import Speed
from harness.plan.devices import Target, cuda_target
from harness.plan.estimate import Plan
from harness.plan.grown import NUMBER_BYTES, Work, each_bytes, grown_plan, listed_search, table_bytes, works
from harness.plan.memory import saved_bytes
from harness.plan.sizes import GIB
from harness.report.figures.growing import Curve, curves, growth
from harness.report.tables import markdown_text
from harness.report.units import number, quantity

PLACE = Path("docs") / "scale.md"
"""Beside the folder of reports."""
METHOD, TABLES = "unidec", ("unidec", "renee")
DATASET = "lf-amazontitles-1.3m"
LARGER = (10_000_000, 450_000_000)
DIMS = (256, 384, 768)
SHARDS = (8, 64, 512)
_PROBED = 0.01
_DEVICE = 80 * GIB
_SETTINGS = (("", ""), ("table_precision", "bfloat16"), ("table_device", "host"))
_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_MARKER = re.compile(r"<!-- (generated: .*?|end) -->")


def scale_page(folder: Path) -> Path | None:
    """The page of the repository that a folder of reports is in; None where there is none."""
    page = folder.absolute().parent / PLACE
    return page if page.is_file() else None


def refreshed(page: Path, speed: Speed | None) -> str:
    """The text of the page with every block as it should be; `DataError` for markers that are no pairs."""
    text = page.read_text(encoding="utf-8")
    if len(_MARKER.findall(text)) != 2 * len(_BLOCK.findall(text)):
        raise DataError(
            "a generated block has no end, or an end no block; write <!-- generated: NAME --> ... <!-- end -->", page
        )
    for _, name, _, _ in _BLOCK.findall(text):
        if name not in BLOCKS:
            raise unknown_name(f"block in {page}", name, BLOCKS)
    return _BLOCK.sub(lambda found: f"{found[1]}{BLOCKS[found[2]](speed)}\n{found[4]}", text)


@cache
def _target() -> Target:
    return cuda_target(_DEVICE)


@cache
def _plans(setting: str = "", value: str = "") -> tuple[Plan, ...]:
    """The largest public dataset as it is, and grown; with one setting changed, or none."""
    own = load_card(DATASET).statistics.labels
    assert own is not None
    layers = [Layer("docs/scale.md", {setting: value})] if setting else []
    return tuple(grown_plan(METHOD, DATASET, labels, _target(), layers) for labels in (own, *LARGER))


def _size_block(speed: Speed | None) -> str:
    """Table and moments by number of labels, width and precision."""
    kinds = [(method, name) for method in TABLES for name in NUMBER_BYTES]
    head = ["labels L", "D", *(f"{method}, {name}: {each_bytes(method, name)} L D" for method, name in kinds)]
    rows = [
        [f"{labels:,}", str(dim), *(quantity(table_bytes(method, labels, dim, name), "B") for method, name in kinds)]
        for labels in (plan.run.data.labels for plan in _plans())
        for dim in DIMS
    ]
    return _grid(head, rows, words=0)


def _need_block(speed: Speed | None) -> str:
    """What `harness plan` says of the three sizes."""
    head = ["labels L", "train rows N", "table", "device at most", "when", "host at most", "one checkpoint"]
    rows = []
    for same in zip(*(_plans(*setting) for setting in _SETTINGS), strict=True):
        for plan, (setting, value) in zip(same, _SETTINGS, strict=True):
            data, fits = plan.run.data, "" if plan.fits else " (does not fit)"
            sizes = quantity(plan.device_bytes, "B") + fits, plan.largest.name, quantity(plan.host_bytes, "B")
            named = f"{setting}: {value}" if setting else "as set"
            saved = quantity(saved_bytes(plan.run), "B")
            rows.append([f"{data.labels:,}", f"{data.rows:,}", named, *sizes, saved])
    first = _plans()[0].run
    told = (
        f"{METHOD} with the settings of the card {DATASET}: encoder {first.encoder.name}, D = {first.dim}; "
        f"device of {_DEVICE // GIB} GiB ({_target().rates.name})."
    )
    return f"{_grid(head, rows, words=0)}\n\n{told}"


def _parts(plan: Plan) -> list[Work]:
    *before, exact, evaluation = works(plan)
    return [*before, exact, listed_search(plan, _PROBED), evaluation]


def _work_block(speed: Speed | None) -> str:
    """Operations of every part, with the arithmetic at the first size."""
    found = [_parts(plan) for plan in _plans()]
    head = ["part", "formula", f"numbers at {_plans()[0].run.data.labels:,} labels", *_size_names()]
    rows = [
        [same[0].name, same[0].formula, _product(same[0].factors), *(quantity(one.operations, "FLOP") for one in same)]
        for same in zip(*found, strict=True)
    ]
    stages = [plan.run.stages[-1] for plan in _plans()]
    batches = ", ".join(f"{stage.steps:,} of {stage.batch:,} rows" for stage in stages)
    told = f"Clusters halve the rows, so an epoch has a power of two of steps: {batches}."
    return f"{_grid(head, rows, words=3)}\n\n{told}"


def _product(factors: Sequence[float]) -> str:
    """4 x 10 x 2,248,619; a factor that is no whole number has three digits."""
    return " x ".join(
        f"{factor:,.0f}" if factor == int(factor) or factor > 1e6 else number(factor) for factor in factors
    )


def _size_names() -> list[str]:
    return [f"{plan.run.data.labels:,}" for plan in _plans()]


def _hour_block(speed: Speed | None) -> str:
    """How long every part takes on a known device and, where products were measured, here."""
    rates, peak = _target().rates, gemm_peak(speed)
    same = list(zip(*(_parts(plan) for plan in _plans()), strict=True))
    there = [[parts[0].name, *(quantity(part.cost.seconds(rates), "s") for part in parts)] for parts in same]
    told = (
        f"{rates.name}: {quantity(rates.half, 'FLOP/s')} in bfloat16 (encoding), {quantity(rates.full, 'FLOP/s')} in "
        f"float32 (search), {quantity(rates.bandwidth, 'B/s')}; {rates.origin}, {rates.share:.0%} of them reached."
    )
    text = f"{_grid([f'on one {rates.name}', *_size_names()], there)}\n\n{told}\n\n"
    if peak is None:
        return f"{text}Products are not measured on a machine of ours: `python -m harness perf encoding --write`."
    here = [[parts[0].name, *(quantity(part.operations / peak, "s") for part in parts)] for parts in same]
    return (
        f"{text}{_grid(['on the measured machine', *_size_names()], here)}\n\nThe same operations at the largest rate "
        f"of products that was measured, {quantity(peak, 'FLOP/s')}; see [speed.md](../reports/speed.md)."
    )


def gemm_peak(speed: Speed | None) -> float | None:
    """The largest rate of matrix products that any suite measured as a reference, in operations a second."""
    rows = speed.rows if speed else []
    found = [row.theirs.median for row in rows if row.theirs is not None and row.theirs.unit == "FLOP/s"]
    return max(found, default=None)


def _growth_block(speed: Speed | None) -> str:
    """Measured curves: their exponents, and what they say of larger numbers of labels."""
    rows = speed.rows if speed else []
    lines = [line for kind, fit in _FITS for curve in curves(rows, kind) if (line := _growth_row(curve, kind, fit))]
    if not lines:
        return "Not measured yet: `python -m harness perf scaling --write`."
    head = ["method", "quantity", "measured", "grows as", *(f"{labels:,}" for labels in LARGER)]
    return _grid(head, lines, words=3)


def _growth_row(curve: Curve, kind: str, fit: Callable[[Curve], tuple[str, list[float]]]) -> list[str]:
    if len(curve.rows) < 2:
        return []
    unit = curve.rows[0].ours.unit
    points = zip(curve.ours[:, 0], curve.labels, strict=True)
    measured = ", ".join(f"{quantity(float(value), unit)} at {labels:,.0f}" for value, labels in points)
    law, values = fit(curve)
    return [curve.method, kind, measured, law, *(quantity(value, unit) for value in values)]


def _power_law(curve: Curve) -> tuple[str, list[float]]:
    """A power law, y = y_n (L / L_n)^p, from the last measured point on."""
    power = growth(curve) or 0.0
    last, value = float(curve.labels[-1]), float(curve.ours[-1, 0])
    return f"L^{power:.2f}", [value * (labels / last) ** power for labels in LARGER]


def _straight(curve: Curve) -> tuple[str, list[float]]:
    """A straight line, y = a + b L, through all points."""
    slope, start = (float(value) for value in np.polyfit(curve.labels, curve.ours[:, 0], 1))
    start = max(start, 0.0)
    return f"{quantity(start, 'B')} + {number(slope)} B x L", [start + slope * labels for labels in LARGER]


_FITS = (("step", _power_law), ("memory", _straight))


def _shard_block(speed: Speed | None) -> str:
    """The largest size on several devices."""
    plan = _plans()[-1]
    stage, data, dim = plan.run.stages[-1], plan.run.data, plan.run.dim
    search, rates = works(plan)[4].cost, _target().rates
    moved = stage.pool * dim * NUMBER_BYTES["float32"] * 2
    each = table_bytes(METHOD, data.labels, dim)
    head = ["devices S", "labels each", "table + moments each", "exact search of a refresh", "by inverted lists"]
    rows = [
        [
            *(str(count), f"{-(-data.labels // count):,}", quantity(each / count, "B")),
            quantity((search * (1 / count)).seconds(rates), "s"),
            quantity(listed_search(plan, _PROBED, count).cost.seconds(rates), "s"),
        ]
        for count in SHARDS
    ]
    lists = 8.0 * stage.rows * stage.depth
    told = (
        f"{data.labels:,} labels, D = {dim}, float32, on devices like the {rates.name}. A step needs "
        f"P = {stage.pool:,} rows and sends their gradients back: 2 x 4 P D = {quantity(moved, 'B')}, whatever S is. "
        f"In a refresh every device finds {stage.depth} labels with their scores for each of N = {stage.rows:,} rows: "
        f"8 x {stage.depth} N = {quantity(lists, 'B')} from each to be merged."
    )
    return f"{_grid(head, rows, words=0)}\n\n{told}"


BLOCKS: dict[str, Callable[[Speed | None], str]] = {
    "sizes": _size_block,
    "needs": _need_block,
    "work": _work_block,
    "hours": _hour_block,
    "growth": _growth_block,
    "shards": _shard_block,
}


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table in Markdown; the first columns are words."""
    return "\n".join(_lines(head, rows, words))


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]], words: int) -> Iterator[str]:
    yield "| " + " | ".join(map(markdown_text, head)) + " |"
    yield "|" + "|".join("---" if place < words else "---:" for place in range(len(head))) + "|"
    for row in rows:
        yield "| " + " | ".join(map(markdown_text, row)) + " |"
