"""The page of findings: verdicts, every method, and how to repeat it."""

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.published import JUDGED, MATRIX, SUBJECT
from harness.report.cells import Cell, Figure, Table
from harness.report.comparing.paired import LEVEL
from harness.report.evidence import Evidence, Study, machine_of, shown_value
from harness.report.findings.behind import Gap, compares, gaps, level_with
from harness.report.findings.claims import TIMES, TRANSFORMER, Finding, Findings, row_of
from harness.report.findings.standings import STANDINGS, digest_of, labels_of, matrix_table, picture
from harness.report.grids import Grid, Line
from harness.report.grids.significance import BETTER, WORSE
from harness.report.tables import as_markdown, markdown_text

FINDINGS = "FINDINGS.md"
_EVERY_TEST = "Every test, with its figures: [tables/claims.md](tables/claims.md).\n"
_WORDS = {1: "as claimed", -1: "the reverse", 0: "undecided"}
_MARKS = {1: BETTER, -1: WORSE, 0: ""}


def findings_page(found: Findings, drawn: Sequence[str] = ()) -> str | None:
    """The page as Markdown; None where the matrix was not run.

    Args:
        found: Claims and the matrix.
        drawn: Datasets whose picture of all methods lies beside the page.
    """
    if not found.matrix:
        return None
    above = gaps(found.compared, found.evidence)
    parts = [_head(found.evidence, found), _first(found.matrix, above, rerun=bool(found.rerun))]
    parts += [as_markdown(summary(found.all)), _EVERY_TEST + _targets(found)]
    return "\n".join([*parts, *_methods(found, drawn), _foot(found)])


def _targets(found: Findings) -> str:
    """How true Gandalf's soft targets are, where the data can tell; nothing where it cannot."""
    known = ((grid, found.evidence.neighbours.get(grid.dataset)) for grid in found.matrix)
    told = [
        f"{one.true_share:.0%} on {one.dataset}"
        for grid, one in known
        if one and one.true_share is not None and one.digest == digest_of(grid)
    ]
    if not told:
        return ""
    return (
        "Where a label is a train row too, its text has that row's labels for an answer. Of what Gandalf's soft "
        f"targets add to the label itself, by weight {markdown_text(', '.join(told))} is among them.\n"
    )


def _methods(found: Findings, drawn: Sequence[str]) -> Iterator[str]:
    """Every method in one table, and a picture of the dataset of most labels; a page of its own has the others."""
    yield as_markdown(matrix_table(found.compared))
    large = found.own(TRANSFORMER)
    where = ", ".join(grid.dataset for grid in large)
    told = f"{markdown_text(f'{TRANSFORMER}, on {where}: {large[0].table.caption}')} " if large else ""
    first = found.matrix[0]
    cell = (row_of(first, SUBJECT) or next(line for line in first.lines if line.records)).rows[0].name
    yield (
        f"{told}One cell again: `python -m harness run --published {cell} --seed 0`; the others' names, spread, "
        f"times: [{STANDINGS}]({STANDINGS}). Settings and all metrics: "
        f"[tables/{MATRIX}.md](tables/{MATRIX}.md).\n"
    )
    if pictured := [grid for grid in found.matrix if grid.dataset in drawn]:
        yield f"{picture(max(pictured, key=labels_of).dataset)}\n"


def _first(matrix: Sequence[Grid], above: Sequence[Gap], *, rerun: bool) -> str:
    lines = []
    for metric in JUDGED:
        behind = {gap.where for gap in above if gap.metric == metric}
        first = []
        for grid in matrix:
            if compares(grid, metric) and grid.dataset not in behind:
                shared = level_with(grid, metric)
                first.append(f"{grid.dataset} (level with {' and '.join(shared)})" if shared else grid.dataset)
        lines.append(f"in {metric} on {', '.join(first)}" if first else f"in {metric} nowhere")
    more = ["where it is not, by how much and why"] if above else []
    more += ["what had been run before, and with which result"] if rerun else []
    told = "; ".join(more)
    why = f" {told[0].upper()}{told[1:]}: [{STANDINGS}]({STANDINGS})." if told else ""
    return f"UniDEC is first {markdown_text('; '.join(lines))}.{why}\n"


def summary(findings: Sequence[Finding]) -> Table:
    """A line a claim, with what its tests measured on every dataset."""
    datasets = sorted({outcome.dataset for one in findings for outcome in one.outcomes})
    rows = [
        (
            Cell(f"{one.claim.claim} ({'; '.join([one.claim.source, *_in_turn(one)])})"),
            Cell(one.verdict, best=one.verdict in ("holds", "does not hold")),
            *(Cell(_told(one, dataset)) for dataset in datasets),
            Cell(one.why),
        )
        for one in findings
    ]
    columns = ("claim", "verdict", *datasets, "why")
    caption = (
        "By how many points the row that should be above is above the other; of times the ratio, as measured. "
        f"{BETTER} as claimed, {WORSE} the reverse: so it would be on other test rows, with these trainings (paired, "
        f"{100 * LEVEL:g} %, Holm's correction within a claim). A claim is decided if its decided tests agree and are "
        "no fewer than the others."
    )
    return Table("Claims", columns, tuple(rows), caption, words=len(columns), id="findings")


def _in_turn(finding: Finding) -> list[str]:
    """What the figures of a claim are of, where there are several to a metric."""
    pairs = _pairs(finding)
    return [f"in turn {', '.join(pairs)}"] if len(pairs) > 1 else []


def _pairs(finding: Finding) -> list[str]:
    return list(dict.fromkeys(one.pair for one in finding.outcomes if one.pair))


def _told(finding: Finding, dataset: str) -> str:
    """Differences by metric, marked where a test tells them from chance; named where one before them is missing."""
    found: dict[str, dict[str, str]] = {}
    for place, one in enumerate(one for one in finding.outcomes if one.dataset == dataset):
        first, second = one.values
        timed = one.measure in TIMES.values()  # compared as they are, by no test
        told = f"{first / second:.2f} of it" if timed else f"{first - second:+.2f}{_MARKS[one.sign]}"
        found.setdefault(one.measure, {})[one.pair or str(place)] = told
    pairs, words = _pairs(finding), []
    for measure, by_pair in found.items():
        in_turn = [*by_pair] == pairs[: len(by_pair)] or not pairs
        figures = (told if in_turn else f"{pair} {told}" for pair, told in by_pair.items())
        words.append(f"{measure} {', '.join(figures)}")
    return "; ".join(words)


def details(findings: Sequence[Finding], datasets: Sequence[str] | None = None) -> Table:
    """Every test, or those on some datasets."""
    rows: list[tuple[Cell, ...]] = []
    breaks = []
    for finding in findings:
        outcomes = [one for one in finding.outcomes if datasets is None or one.dataset in datasets]
        breaks += [len(rows)] if outcomes else []
        for one in outcomes:
            lines, digits = (one.ahead, one.behind), 1 if one.measure in TIMES.values() else 2
            measure = f"{one.measure}, {one.margin:g} behind allowed" if one.margin else one.measure
            seeds = " and ".join(dict.fromkeys(str(len(line.records)) for line in lines))
            words = (finding.claim.claim, one.dataset, *(f"{_name(line)}" for line in lines), measure, seeds)
            figures = (*one.values, one.values[0] - one.values[1])
            rows.append(
                (
                    *(Cell(text) for text in words),
                    Cell(_WORDS[one.sign], best=one.sign != 0),
                    *(Cell.of(Figure(value, n=1, digits=digits)) for value in figures),
                    Cell("" if one.measure in TIMES.values() else f"{one.p:.4f}"),
                )
            )
    columns = ("claim", "dataset", "row", "against", "in", "seeds", "outcome", "row's", "other's", "difference", "p")
    caption = "Means over seeds; p after Holm's correction. Times are compared as they are."
    return Table("Every test", columns, tuple(rows), caption, words=7, breaks=tuple(breaks[1:]), id="claims")


def _name(line: Line) -> str:
    return f"{line.table.table}: {line.label}"


def _head(evidence: Evidence, findings: Findings) -> str:
    records = [record for grid in findings.compared for record in grid.records]
    others = {one.run_id for one in findings.records} - {one.run_id for one in records}
    machines = sorted({machine_of(one) for one in records})
    digests = {grid.dataset: digest_of(grid) for grid in findings.matrix}
    studies = [one for one in evidence.studies if one.name.startswith(f"{MATRIX}-") and one.dataset in digests]
    moved = sorted({one.dataset for one in studies if one.digest != digests[one.dataset]})
    twice = Counter(study.dataset for study in studies if _repeats(study))
    trials = [trial for study in studies for trial in study.trials]
    ran, searched = (sum(one.seconds for one in some) / 3600 for some in (records, trials))
    seeds = {grid.dataset: len({one.config["seed"] for one in grid.records}) for grid in findings.matrix}
    datasets = markdown_text(", ".join(f"{name} ({count} seed{'s' * (count > 1)})" for name, count in seeds.items()))
    encoders = markdown_text(" and ".join(sorted({str(one.config["encoder"]) for one in records}, reverse=True)))
    more = (
        f"Claims about parts of a method rest on {len(others):,} more runs, not tuned." if others else "",
        f"On {', '.join(moved)} the searches saw an earlier version of the data." if moved else "",
        *(f"On {where} {count} searches drew a point twice: a trial less." for where, count in twice.items()),
        f"Not run yet: {'; '.join(findings.missing)}." if findings.missing else "",
    )
    sentences = "".join(f"{markdown_text(sentence)}\n" for sentence in more if sentence)
    return f"""# Findings

Do the papers' claims hold on data that needs no download? {len(records):,} runs on {datasets}; encoder {encoders}.
Settings of the benchmark come from {len(trials):,} trials in {len(studies)} searches, on each dataset equally many for
every method, judged on held-out train rows. The runs took {ran:.1f} hours and the searches {searched:.1f}, added up
over processes, on {markdown_text("; ".join(machines))}.
{sentences}\
Made from [runs/](runs) and [studies/](studies).
"""


def _repeats(study: Study) -> bool:
    """Whether a search tried a point that it had tried already, but for digits that do not count."""
    points = [tuple(sorted((name, shown_value(value)) for name, value in one.params.items())) for one in study.trials]
    return len({*points}) < len(points)


def _foot(findings: Findings) -> str:
    seeds: dict[tuple[str, str], set[int]] = {}
    own = dict.fromkeys(table for table in (MATRIX, TRANSFORMER) if findings.own(table))
    for outcome in (outcome for one in findings.all for outcome in one.outcomes):
        table = outcome.ahead.table
        if outcome.dataset in table.seeds:
            own[table.table] = None
        else:
            ran = (*outcome.ahead.records, *outcome.behind.records)
            seeds.setdefault((table.table, outcome.dataset), set()).update(int(one.config["seed"]) for one in ran)
    alike: dict[tuple[str, str], list[str]] = {}
    for (name, dataset), some in sorted(seeds.items()):
        alike.setdefault((dataset, ",".join(map(str, sorted(some)))), []).append(name)
    lines: dict[tuple[str, str], list[str]] = {}
    for (dataset, given), tables in alike.items():
        lines.setdefault((",".join(tables), given), []).append(dataset)
    others = "".join(
        f"python -m harness bench --table {tables} --datasets {','.join(datasets)} --seeds {given}\n"
        for (tables, given), datasets in lines.items()
    )
    return f"""## Repeat it

```
python -m harness tune {MATRIX} --anew     # settings, on held-out rows
python -m harness bench --table {",".join(own)}     # every row, every seed; then the papers' ablations
{others}python -m harness report --collect && python -m harness report --write
```
"""
