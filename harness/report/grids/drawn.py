"""From a `Grid` to a `Table`: mean and spread over seeds, the paper's figure beside ours, best, second and tests."""

from collections.abc import Sequence
from dataclasses import replace

from harness.published import COLUMNS
from harness.record import RunRecord
from harness.report import Cell, Figure, Table
from harness.report.comparing.paired import LEVEL
from harness.report.evidence import Evidence
from harness.report.grids import Grid, Line
from harness.report.grids.quantities import better, digits, is_metric, value
from harness.report.grids.significance import BETTER, WORSE, Tested, tested
from harness.report.marking import marked

_USUAL = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5")
_WORDS = ("row", "method", "scorer", "settings", "seeds")
_OWN_WORDS = ("row", "settings", "harness run --published ...", "seeds")
"""Of a table of ours, whose rows can be repeated one by one as they are."""


def grid_table(grid: Grid, evidence: Evidence) -> Table:
    """One published table on one dataset; on data of others, a row that nobody can run has nothing to show."""
    notes, words = tuple(remarks(grid)), _OWN_WORDS if grid.own else _WORDS
    grid = replace(grid, lines=tuple(line for line in grid.lines if line.method or grid.published))
    columns = shown_columns(grid)
    figures = {column: _figures(grid.lines, column) for column in columns}
    tests = {column: tested(grid, column, figures[column], evidence) for column in columns}
    flags = {column: _flags(figures[column], column) for column in columns}
    rows = []
    for place, line in enumerate(grid.lines):
        cells = [Cell(text) for text in _words(line)]
        for column in columns:
            best, second = flags[column]
            found, test = figures[column][place], tests[column]
            mark = test.marks[place] if test else ""
            told = line.method or found.paper is not None
            cells.append(Cell.of(found, best=best[place], second=second[place], mark=mark) if told else Cell(""))
        rows.append(tuple(cells))
    return Table(
        title=f"{grid.table.table} on {grid.dataset}: {grid.table.caption}",
        columns=(*words, *columns),
        rows=tuple(rows),
        caption=caption(grid, tests),
        words=len(words) - 1,
        id=f"{grid.table.table}-{grid.dataset}",
        breaks=_breaks(grid.lines),
        notes=notes,
    )


def shown_columns(grid: Grid) -> list[str]:
    """The columns of the paper and the usual metrics, as far as there is a figure, ours or the paper's."""
    extra = [name for name in _USUAL if name not in grid.table.metrics] if not grid.published else []
    usual = [name for name in [*grid.table.metrics, *extra] if is_metric(name)]
    ordered = [*sorted(usual, key=_place), *(name for name in grid.table.metrics if name not in usual)]
    return [
        name for name in ordered if any(printed(line, name) is not None or measured(line, name) for line in grid.lines)
    ]


def _place(name: str) -> tuple[int, int]:
    """P before PSP before the others, each by k."""
    family, _, k = name.partition("@")
    known = ("P", "nDCG", "PSP", "PSnDCG", "R", "C")
    return known.index(family), int(k)


def measured(line: Line, column: str) -> list[float]:
    """Ours, of every seed that is there."""
    found = [value(record, column, line.view) for record in line.records]
    return [one for one in found if one is not None]


def printed(line: Line, column: str) -> float | None:
    """The paper's figure, if it is one."""
    one = line.rows[0].results.get(column) if line.published else None
    return float(one) if isinstance(one, int | float) else None


def _figures(lines: Sequence[Line], column: str) -> list[Figure]:
    """Ours and the paper's, of every line."""
    values, papers = [measured(line, column) for line in lines], [printed(line, column) for line in lines]
    known = [*(one for found in values for one in found), *(one for one in papers if one is not None)]
    decimals = digits(column, max(known, default=None))
    return [
        Figure.of(
            found,
            paper=paper,
            slip=bool(line.rows[0].slip) and line.published,
            wanted=len(line.records),
            digits=decimals,
        )
        for line, found, paper in zip(lines, values, papers, strict=True)
    ]


def _flags(figures: Sequence[Figure], column: str) -> tuple[list[bool], list[bool]]:
    direction = better(column)
    return marked(figures, direction) if direction else ([False] * len(figures), [False] * len(figures))


def _words(line: Line) -> list[str]:
    done = len(line.records)
    seeds = "" if not line.method else str(done) if done >= line.wanted else f"{done} of {line.wanted}"
    if line.table.own and line.published:
        return [line.label, line.variant, line.rows[0].name, seeds]
    return [line.label, line.method or "", line.view or "", line.variant, seeds]


def _breaks(lines: Sequence[Line]) -> tuple[int, ...]:
    """Where a block of the paper ends: rows named `block/row`."""
    blocks = [line.rows[0].stem.rpartition("/")[0] for line in lines]
    return tuple(place for place in range(1, len(blocks)) if blocks[place] != blocks[place - 1])


def caption(grid: Grid, tests: dict[str, Tested | None]) -> str:
    """What a reader has to know to believe the figures."""
    told = [f"{grid.table.source}."]
    if grid.records:
        told += _about(grid)
        told.append(_tests(grid, tests))
    told.append("X: nothing measured." if any(line.method and not line.records for line in grid.lines) else "")
    if grid.own:
        told.append(f"Settings: methods/tuned/{grid.table.table}.yaml, which says where each row has them from.")
    elif grid.published:
        told.append("In brackets: the paper's figure and ours minus it; a question mark is a known slip.")
    elif grid.records:
        whose = "It was not tuned" if grid.table.own else "The paper has no figures"
        told.append(f"{whose} for this dataset: a row is its method with what the table varies.")
    return " ".join(filter(None, told))


def _about(grid: Grid) -> list[str]:
    """Selection rule, filter, propensity, seeds, versions: what all runs of the grid share, or how they differ."""
    records = grid.records
    first = records[0]
    held = {bool((one.config.get("validation") or {}).get("size")) for one in records}
    last, best = "the last epoch, no test row chose it", "the epoch best on held-out rows"
    chosen = f"{best}, or where none were held out, the last epoch" if len(held) > 1 else best if True in held else last
    constants = first.dataset.get("propensity")
    weights = f"propensity {constants['a']} / {constants['b']}" if constants else "no propensity"
    seeds = sorted({one.config["seed"] for one in records})
    spread = f"mean ± standard deviation over seeds ({', '.join(map(str, seeds))})"
    told = [
        f"Percent on test rows of {chosen}; {spread if len(seeds) > 1 else f'one run each, seed {seeds[0]}'}.",
        f"Filter pairs {'masked before ranking' if first.dataset.get('filter') else 'not masked'}; {weights}; encoder "
        f"{', '.join(sorted({one.config['encoder'] for one in records}))}; {_versions(records)}.",
    ]
    if grid.base:
        told.append(f"Changed from the defaults: {', '.join(map(str, grid.base))}.")
        touched = {name for change in grid.base for name in change.methods}
        if all(change.methods for change in grid.base) and {one.config["method"] for one in records} - touched:
            told.append("Other methods have theirs: a difference may be one of settings, not of methods.")
    if grid.left_out:
        told.append(f"{grid.left_out} runs of other data or versions are left out.")
    return told


def _versions(records: Sequence[RunRecord]) -> str:
    first = records[0]
    versions = sorted({str(one.environment.get("harness", "?")) for one in records})
    torch = sorted({str(one.environment.get("packages", {}).get("torch", "?")) for one in records})
    digest = str(first.dataset.get("digest", ""))[:12]
    return f"data {digest}, metrics v{first.metric_version}, harness {', '.join(versions)}, torch {', '.join(torch)}"


def _tests(grid: Grid, tests: dict[str, Tested | None]) -> str:
    done = {column: test for column, test in tests.items() if test is not None}
    if not done:
        return ""
    against = dict.fromkeys(grid.lines[test.baseline].label for test in done.values())
    family = " (the best of each column)" if len(against) > 1 else ""
    return (
        f"{BETTER} better, {WORSE} worse than the best baseline, {', '.join(against)}{family}: paired test on rows, "
        f"{100 * LEVEL:g} %, Holm's correction within a column."
    )


def remarks(grid: Grid) -> list[str]:
    """What a reader should know about rows: those that cannot be run, slips, and where settings are only near."""
    told: dict[str, dict[str, None]] = {}
    for line in grid.lines:
        for row in line.rows:
            slip = f"slip in the paper: {row.slip}" if row.slip and grid.published else ""
            nearest = f"not exactly the paper's: {row.nearest}" if row.nearest else ""
            for text in (row.absent and f"cannot be run: {row.absent}", slip, nearest):
                if text:
                    told.setdefault(text, {})[row.label] = None
    if grid.published and grid.records and "memory GB" in grid.table.metrics:
        told["our memory is that of one process, the paper's that of all its GPUs"] = {"memory GB": None}
    unknown = [name for name in grid.table.metrics if name in COLUMNS and name not in shown_columns(grid)]
    more = [f"No figure of ours for {', '.join(unknown)}."] if unknown and grid.records else []
    return [*(f"{', '.join(rows)}: {text}" for text, rows in told.items()), *more]
