"""Measured speed as tables, figures and a page: `speed.json` -> {relative path: bytes}.

    speed.md                     everything on one page, figures shown
    tables/speed.{md,tex,html,csv}
    figures/speed-*.{svg,png}

All of it is a function of the file alone: nothing is measured here.
"""

from collections.abc import Iterator

from harness.perf import Row
from harness.perf.saved import Machine, Origin, Speed, Suite
from harness.progress import clock
from harness.report.cells import Cell, Table
from harness.report.figures.drawing import Drawing, Missing
from harness.report.figures.growing import draw_peak, draw_step
from harness.report.figures.targets import draw_ratios
from harness.report.index import figure_text
from harness.report.tables import FORMATS, as_markdown, markdown_text, render
from harness.report.units import quantity, spread, times, wanted

TITLE = "# Speed"
"""The first line of the page."""
PAGE = "speed.md"
_HEAD = ("what", "size", "reference is")
_FIGURES = ("ours", "reference", "ratio", "target", "met")
_WHERE = "where it goes"
_VERDICTS = {True: Cell("yes"), False: Cell("MISSED", best=True), None: Cell("")}
_COMMIT = 12
_TOLD = ("torch", "numpy", "transformers", "tokenizers", "faiss-cpu", "faiss-gpu")
"""Packages that speed depends on."""


def speed_tables(speed: Speed) -> list[Table]:
    """One table a suite, in the order in which they are measured."""
    return [_table(name, suite) for name, suite in speed.ordered.items()]


def _table(name: str, suite: Suite) -> Table:
    rows = [saved.row(name) for saved in suite.rows]
    told = any(row.detail for row in rows)
    return Table(
        title=f"{name}: {suite.about}" if suite.about else name,
        columns=(*_HEAD, *((_WHERE,) if told else ()), *_FIGURES),
        rows=tuple(_cells(row, told) for row in rows),
        caption=f"{counts(rows)} {origin_text(suite)}",
        words=len(_HEAD) + told,
        id=f"speed-{name}",
    )


def _cells(row: Row, told: bool) -> tuple[Cell, ...]:
    reference = "" if row.theirs is None and row.target is None else row.reference
    words = [Cell(text) for text in (row.what, row.size, reference, *([row.detail] if told else []))]
    theirs = "" if row.theirs is None else spread(row.theirs)
    ratio = "" if row.ratio is None else times(row.ratio)
    return (*words, Cell(spread(row.ours)), Cell(theirs), Cell(ratio), Cell(target_of(row)), _VERDICTS[row.met])


def target_of(row: Row) -> str:
    """What is wanted, in words; empty for a figure that is only shown."""
    if row.target is None:
        return ""
    return wanted(row.target.way, row.target.value, None if row.target.of == "ratio" else row.ours.unit)


def counts(rows: list[Row]) -> str:
    """How many targets are met and missed, and how many figures have none."""
    judged = [row.met for row in rows if row.met is not None]
    missed, shown = judged.count(False), len(rows) - len(judged)
    parts = [
        f"{len(judged)} {'target' if len(judged) == 1 else 'targets'}: {len(judged) - missed} met, {missed} missed"
    ]
    if shown:
        parts.append(f"{shown} {'figure is' if shown == 1 else 'figures are'} shown without one")
    return f"{'; '.join(parts if judged else parts[1:]) or 'Nothing was measured'}."


def machine_text(machine: Machine) -> str:
    """The machine in one line."""
    memory = "" if machine.memory_gib is None else f", {machine.memory_gib:g} GiB"
    caches = "".join(f", {level} {size}" for level, size in sorted(machine.caches.items()) if "instr" not in level)
    packages = "".join(f", {name} {machine.packages[name]}" for name in _TOLD if name in machine.packages)
    return f"{machine.cpu}, {machine.cores} {'core' if machine.cores == 1 else 'cores'}{memory}{caches}{packages}"


def origin_text(suite: Origin) -> str:
    """Day, duration, code and machine of something that was measured."""
    return f"Measured on {suite.measured} in {clock(suite.seconds)}, {_commit(suite)}: {machine_text(suite.machine)}."


def _commit(suite: Origin) -> str:
    if suite.commit is None:
        return "outside a checkout"
    return f"at commit {suite.commit[:_COMMIT]}{' with changes' if suite.dirty else ''}"


def speed_figures(speed: Speed) -> list[Drawing | Missing]:
    """Every figure, or what is missing for it."""
    return [draw(speed) for draw in (draw_ratios, draw_step, draw_peak)]


def speed_files(speed: Speed) -> dict[str, bytes]:
    """Everything that is made from the measurements, by path in the folder of reports."""
    tables, figures = speed_tables(speed), speed_figures(speed)
    files = {f"tables/speed.{form}": render(tables, form).encode() for form in FORMATS}
    for one in figures:
        if isinstance(one, Drawing):
            files[f"{speed_stem(one.id)}.svg"], files[f"{speed_stem(one.id)}.png"] = one.svg, one.png
    files[PAGE] = "\n".join(_page(speed, tables, figures)).encode()
    return files


def speed_stem(figure: str) -> str:
    """Where a figure lies, without its ending; no folder, because folders are called after datasets."""
    return f"figures/speed-{figure}"


def _page(speed: Speed, tables: list[Table], figures: list[Drawing | Missing]) -> Iterator[str]:
    rows = speed.rows
    yield TITLE
    yield ""
    yield f"{counts(rows)} {_places(speed)}"
    yield ""
    yield (
        "Our code is held against a named reference; where both are timed in one process they take turns. Shown are "
        "medians, and in brackets the smallest and the largest measurement. Where a ratio should be *at least* so much "
        "it says how many times better ours is; every other ratio is ours over the reference. Made from "
        "[speed.json](speed.json) by `python -m harness perf --write`."
    )
    yield ""
    yield from _missed(rows)
    for one in figures:
        yield figure_text(one, speed_stem(one.id))
    for table in tables:
        yield as_markdown(table)


def _places(speed: Speed) -> str:
    """Where and when, as far as it is the same for all suites."""
    suites = list(speed.ordered.values())
    origins = {(suite.commit, suite.dirty, suite.machine.cpu, suite.machine.cores) for suite in suites}
    if len(origins) > 1:
        return f"The {len(suites)} suites are from {len(origins)} states of code or machine; each table has its own."
    if not suites:
        return ""
    days = sorted({suite.measured for suite in suites})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return markdown_text(f"Measured {_commit(suites[0])}, {when}: {machine_text(suites[0].machine)}.")


def _missed(rows: list[Row]) -> Iterator[str]:
    missed = [row for row in rows if row.met is False]
    if missed:
        yield "Missed targets:"
        yield ""
        for row in missed:
            yield f"- {markdown_text(verdict_line(row))}"
        yield ""


def verdict_line(row: Row) -> str:
    """One row as a sentence: `exact search, 20,000 queries: 5.5 s; 1.2x against faiss (4.6 s); wanted at most 1.2x`."""
    text = f"{row.what}, {row.size}: {spread(row.ours)}"
    if row.ratio is not None and row.theirs is not None:
        text += f"; {times(row.ratio)} against {row.reference} ({quantity(row.theirs.median, row.theirs.unit)})"
    return text + (f"; wanted {target_of(row)}" if row.target else "")
