"""The pages of findings: which claims of the papers hold, how good every method is, and where UniDEC is not first.

    records -> `Findings` -> FINDINGS.md: verdicts, every method in one table; STANDINGS.md: dataset by dataset

The prose is in `templates/`; no figure and no verdict is written by hand.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from harness.report.cells import Cell, Figure, Table, column_cells
from harness.report.claims import NAMED, TRANSFORMER, Findings, row_of, summary
from harness.report.figures.drawing import figure_stem
from harness.report.published import RowResult, TableResult, ahead_by, measured
from harness.report.results import Results, Study, format_value, is_number, machine_of, own_scorer
from harness.report.rows import trained
from harness.report.significance import LEVEL, holm, p_value, scope
from harness.report.tables import as_markdown, render_template
from harness.runs.record import RunRecord
from harness.settings.published import JUDGED, MATRIX, SUBJECT, published_table, table_paths

FINDINGS, STANDINGS = "FINDINGS.md", "STANDINGS.md"
_SHOWN = ("P@1", "P@5", "PSP@1", "PSP@5")


def findings_page(found: Findings, drawn: Sequence[str] = ()) -> str | None:
    """Return FINDINGS.md; None if the matrix was not run.

    Args:
        found: Tested claims, with the results they were tested on.
        drawn: Datasets with a figure of all methods beside the page.
    """
    if not found.matrix:
        return None
    first = found.matrix[0]
    pictured = [table for table in found.matrix if table.dataset in drawn]
    large = found.own(TRANSFORMER)
    return render_template(
        "findings.md.j2",
        **_about(found),
        first={metric: _first(found.matrix, metric) for metric in JUDGED},
        by_hand=" ".join(found.by_hand.split()),
        explained=bool(gaps(found.compared, found.results)),
        rerun=bool(reruns(found)),
        claims=as_markdown(summary(found.all)),
        true_shares=_true_shares(found),
        methods=as_markdown(matrix_table(found.compared)),
        transformer=f"{TRANSFORMER}, on {', '.join(table.dataset for table in large)}: {large[0].declared.caption}"
        if large
        else "",
        cell=(row_of(first, SUBJECT) or next(row for row in first.rows if row.records)).declared[0].name,
        picture=_picture(max(pictured, key=_labels).dataset) if pictured else "",
        matrix=MATRIX,
        **_commands(found),
    )


def standings_page(found: Findings, drawn: Sequence[str] = ()) -> str | None:
    """Return STANDINGS.md; None if the matrix was not run. The arguments are those of `findings_page`."""
    if not found.matrix:
        return None
    above = gaps(found.compared, found.results)
    accounts = {
        title(table): found.accounts.get(
            TRANSFORMER if table.declared.table == TRANSFORMER else table.dataset, "Not looked into yet."
        )
        for table in found.compared
        if any(gap.where == title(table) for gap in above)
    }
    pictured = [table.declared.table == MATRIX and table.dataset in drawn for table in found.compared]
    return render_template(
        "standings.md.j2",
        standings=[
            (as_markdown(standing(table)), _picture(table.dataset) if shown else "")
            for table, shown in zip(found.compared, pictured, strict=True)
        ],
        behind=as_markdown(gap_table(above)) if above else "",
        accounts={name: " ".join(text.split()) for name, text in accounts.items()},
        rerun={name: " ".join(text.split()) for name, text in reruns(found).items()},
        tried=[as_markdown(table) for table in tried_tables(found.results.studies)],
    )


def _picture(dataset: str) -> str:
    """Return the figure of all methods on one dataset, as a Markdown image."""
    return f"![{' and '.join(JUDGED)} of every method]({figure_stem(dataset, MATRIX)}.png)"


def title(table: TableResult) -> str:
    """Return the title of a comparison: its dataset, with the name of the transformer's table."""
    return f"{table.dataset}, {TRANSFORMER}" if table.declared.table == TRANSFORMER else table.dataset


def digest_of(table: TableResult) -> str | None:
    """Return the digest of the data of a table's runs; None if there are no runs."""
    return table.records[0].dataset.get("digest") if table.records else None


def _labels(table: TableResult) -> float:
    """Return the number of labels of the table's dataset."""
    return max(float(one.dataset.get("statistics", {}).get("labels", 0.0)) for one in table.records)


# -- what was run


def _about(findings: Findings) -> dict[str, Any]:
    """Return counts of runs and trials, and what is missing, for the head of the page."""
    records = [record for table in findings.compared for record in table.records]
    digests = {table.dataset: digest_of(table) for table in findings.matrix}
    studies = [one for one in findings.results.studies if one.name.startswith(f"{MATRIX}-") and one.dataset in digests]
    trials = [trial for study in studies for trial in study.trials]
    earlier = Counter(one.dataset for one in studies if one.digest != digests[one.dataset])
    counts = sorted(Counter(one.dataset for one in studies).items())
    seeds = {table.dataset: len({one.config["seed"] for one in table.records}) for table in findings.matrix}
    return {
        "runs": len(records),
        "datasets": ", ".join(f"{name} ({count} seed{'s' * (count > 1)})" for name, count in seeds.items()),
        "encoders": " and ".join(sorted({str(one.config["encoder"]) for one in records}, reverse=True)),
        "trials": len(trials),
        "searches": len(studies),
        "run_hours": sum(one.seconds for one in records) / 3600,
        "search_hours": sum(one.seconds for one in trials) / 3600,
        "machines": "; ".join(sorted({machine_of(one) for one in records})),
        "others": len({one.run_id for one in findings.records} - {one.run_id for one in records}),
        "repeated": sum(_repeats(one) for one in studies),
        "moved": ", ".join(f"{earlier[name]} of the {of} searches on {name}" for name, of in counts if earlier[name]),
        "missing": "; ".join(missing(findings)),
    }


def _repeats(study: Study) -> bool:
    """Whether a search tried the same values twice, but for digits that settings are rounded to."""
    return len({tuple(map(format_value, one.params.values())) for one in study.trials}) < len(study.trials)


def missing(findings: Findings) -> list[str]:
    """Return what the matrix lacks: datasets, and rows with fewer runs than seeds."""
    there = {table.dataset: table for table in findings.matrix}
    found = []
    for dataset, seeds in published_table(MATRIX).seeds.items() if MATRIX in table_paths() else ():
        rows = there[dataset].rows if dataset in there else ()
        lacking = [row.label for row in rows if len(row.records) < len(seeds)]
        if lacking or not rows:
            found.append(f"{' / '.join(lacking)} on {dataset}" if rows else dataset)
    return found


def reruns(findings: Findings) -> dict[str, str]:
    """Return the texts on repeated runs by dataset of the matrix, with figures in place of run ids."""
    there = {one.run_id: one for one in findings.results.records}
    texts = {table.dataset: findings.reruns.get(table.dataset, "") for table in findings.matrix}
    return {
        dataset: NAMED.sub(lambda name: _figures(there[name[1]]), text)
        for dataset, text in texts.items()
        if text and all(name in there for name in NAMED.findall(text))
    }


def _figures(record: RunRecord) -> str:
    """Format the metrics of a run, and its id."""
    measures = ", ".join(f"{name} {record.metrics[name]:.2f}" for name in JUDGED if name in record.metrics)
    return f"{measures} (run {record.run_id})" if measures else f"run {record.run_id}"


def _true_shares(found: Findings) -> str:
    """Say how true Gandalf's soft targets are on each dataset where that is known; empty if on none."""
    known = ((table, found.results.neighbours.get(table.dataset)) for table in found.matrix)
    return ", ".join(
        f"{one.true_share:.0%} on {one.dataset}"
        for table, one in known
        if one and one.true_share is not None and one.digest == digest_of(table)
    )


def _commands(findings: Findings) -> dict[str, Any]:
    """Return the commands that repeat everything: names of our tables, and bench arguments for the others."""
    own = dict.fromkeys(name for name in (MATRIX, TRANSFORMER) if findings.own(name))
    tables: dict[str, set[str]] = {}
    seeds: dict[str, set[int]] = {}
    for one in findings.outcomes:
        table = one.ahead.table
        if one.dataset in table.seeds:
            own[table.table] = None
        else:
            tables.setdefault(one.dataset, set()).add(table.table)
            ran = (*one.ahead.records, *one.behind.records)
            seeds.setdefault(one.dataset, set()).update(int(run.config["seed"]) for run in ran)
    alike: dict[tuple[str, str], list[str]] = {}
    for dataset in sorted(tables):
        words = (",".join(sorted(tables[dataset])), ",".join(map(str, sorted(seeds[dataset]))))
        alike.setdefault(words, []).append(dataset)
    benches = [(names, ",".join(datasets), given) for (names, given), datasets in alike.items()]
    return {"own_tables": ",".join(own), "benches": benches}


# -- every method


def _cells(rows: Sequence[RowResult | None], metric: str, *, wanted: int = 0, spread: bool = True) -> list[Cell]:
    """Return the cells of a column: mean over seeds, best and second marked; empty for a row that was not run."""
    figures = [None if row is None else Figure.of(measured(row, metric), wanted=wanted) for row in rows]
    return column_cells(figures if spread else [figure and replace(figure, std=None) for figure in figures])


def _mean(row: RowResult | None, metric: str) -> float:
    found = measured(row, metric) if row else []
    return fmean(found) if found else 0.0


def standing(table: TableResult) -> Table:
    """Return a table of every method on one dataset, the best first, with its name for `run --published` and cost."""
    rows = sorted((row for row in table.rows if row.records), key=lambda row: -_mean(row, "P@1"))
    words = [[row.label, row.declared[0].name, str(len(row.records))] for row in rows]
    scores = [_cells(rows, metric) for metric in _SHOWN]
    costs = [[_cost(row, key) for row in rows] for key in ("epochs", "seconds")]
    caption = (
        "Percent on test rows, mean ± standard deviation over seeds. Epochs are those of the method or of the "
        "dataset's card; seconds are of runs that may have shared the machine, or had different ones."
    )
    return Table(
        title(table),
        ("method", "harness run --published ...", "seeds", *_SHOWN, "epochs", "training s"),
        tuple((*map(Cell, texts), *cells) for texts, *cells in zip(words, *scores, *costs, strict=True)),
        caption,
        words=2,
    )


def _cost(row: RowResult, key: str) -> Cell:
    """Return the mean cost of a row's trainings; empty if no record has it."""
    cost = Figure.of([value for one in row.records if (value := trained(one, key))], digits=0)
    return Cell.of(replace(cost, std=None)) if cost.n else Cell("")


def matrix_table(compared: Sequence[TableResult]) -> Table:
    """Return a table of all methods on all datasets, in the order of P@1 on the dataset with most methods.

    If several have as many, on the one with the most labels.
    """
    places = [title(table) for table in compared]
    rows: dict[str, dict[str, RowResult]] = {}
    labels: dict[str, str] = {}
    for place, table in zip(places, compared, strict=True):
        for row in (row for row in table.rows if row.records):
            for declared in row.declared:
                rows.setdefault(declared.stem, {})[place] = row
                labels.setdefault(declared.stem, declared.label)
    main = title(max(compared, key=lambda table: (table.measured, _labels(table))))
    stems = sorted(rows, key=lambda stem: -_mean(rows[stem].get(main), "P@1"))
    names, columns = [], []
    large = [table for table in compared if table.declared.table == TRANSFORMER]
    for place, table in zip(places, compared, strict=True):
        wanted = len(table.declared.seeds.get(table.dataset, ()))
        own = [rows[stem].get(place) for stem in stems]
        columns += [_cells(own, metric, wanted=wanted, spread=False) for metric in JUDGED]
        names += [f"{TRANSFORMER if large == [table] else place} {JUDGED[0]}", *JUDGED[1:]]
    absent = "" if all(main in rows[stem] for stem in stems) else ", rows that were not run there last"
    caption = f"Percent on test rows, mean over seeds, best and second marked; in the order of P@1 on {main}{absent}."
    body = tuple((Cell(labels[stem]), *cells) for stem, *cells in zip(stems, *columns, strict=True))
    return Table("Every method", ("method", *names), body, caption, words=1)


# -- where UniDEC is not first

_SAME_MEAN = 1e-9
"""Means, in percent, that differ by less count as equal: rounding depends on the order of addition."""
TRIED = "tried-"
"""Prefix of the names of studies that look for the reason why UniDEC is behind."""
_BINS = ("head", "torso", "tail")


@dataclass(frozen=True)
class Gap:
    """A method that is above UniDEC in one metric on one dataset."""

    where: str
    """Title of the comparison: a dataset of the matrix, or the table with a transformer."""
    metric: str
    other: RowResult
    values: tuple[float, float]
    """Means of UniDEC and of the other method."""
    bins: tuple[float | None, ...]
    """UniDEC's contribution minus the other's by bin of labels, None if not recorded; they sum to the difference."""
    p: float | None
    """p value, not corrected; None if per-row scores are missing."""
    trained_again: bool = True
    """Whether p holds for other trainings, too; else one of both was trained once, and it is of test rows alone."""


def leads(table: TableResult, metric: str) -> list[tuple[RowResult, float]]:
    """Return rows of other trainings, and by how much each is above UniDEC; other scorers of its own run are left out.

    Empty if UniDEC was not measured.
    """
    subject = row_of(table, SUBJECT)
    if subject is None or not measured(subject, metric):
        return []
    others = (row for row in table.rows if row.records and row.run != subject.run and measured(row, metric))
    found = [(row, _mean(row, metric) - _mean(subject, metric)) for row in others]
    return [(row, 0.0 if abs(lead) <= _SAME_MEAN else lead) for row, lead in found]


def _first(matrix: Sequence[TableResult], metric: str) -> str:
    """Say which method is first on which datasets, those together that are level; empty if the metric is in no run."""
    places: dict[str, list[str]] = {}
    for table in matrix:
        means = {row.label: _mean(row, metric) for row in table.rows if row.records and measured(row, metric)}
        if len(means) > 1:
            first = [label for label, mean in means.items() if max(means.values()) - mean <= _SAME_MEAN]
            places.setdefault(" and ".join(first), []).append(table.dataset)
    return "; ".join(f"{methods} on {' and '.join(datasets)}" for methods, datasets in places.items())


def gaps(compared: Sequence[TableResult], results: Results) -> list[Gap]:
    """Return every method above UniDEC, by dataset and metric."""
    found = []
    for table in compared:
        subject = row_of(table, SUBJECT)
        if subject is None:
            continue
        for metric in JUDGED:
            for other in (other for other, lead in leads(table, metric) if lead > 0):
                ahead = ahead_by(subject, other, metric, results)
                values = (_mean(subject, metric), _mean(other, metric))
                bins = tuple(_in_bin(subject, other, metric, name) for name in _BINS)
                p, again = (None, True) if ahead is None else (p_value(ahead), ahead.trained_again)
                found.append(Gap(title(table), metric, other, values, bins, p, again))
    return found


def _in_bin(subject: RowResult, other: RowResult, metric: str, name: str) -> float | None:
    means = []
    for row in (subject, other):
        own = [run for run in row.records if row.scorer in (None, own_scorer(run))]  # whose contributions are recorded
        found: list[Any] = [one.get(metric) for run in own for one in run.contributions if one.get("bin") == name]
        values = [float(value) for value in found if is_number(value)]
        if not values or len(values) != len(row.records):
            return None
        means.append(fmean(values))
    return means[0] - means[1]


def gap_table(found: Sequence[Gap]) -> Table:
    """Return the table of all gaps, one row each."""
    corrected = iter(holm([gap.p for gap in found if gap.p is not None]))
    rows = []
    for gap in found:
        p = None if gap.p is None else next(corrected)
        figures = (*gap.values, gap.values[0] - gap.values[1], *gap.bins)
        rows.append(
            (
                *map(Cell, (gap.where, gap.metric, gap.other.label)),
                *(Cell("") if one is None else Cell.of(Figure(one, n=1)) for one in figures),
                Cell("" if p is None else f"{p:.4f}", best=p is not None and p < LEVEL),
            )
        )
    columns = ("dataset", "in", "above UniDEC (ours)", "ours", "other's", "difference", *_BINS, "p")
    alone = dict.fromkeys(gap.where for gap in found if not gap.trained_again)
    caption = (
        "Every method above UniDEC (ours) in the mean over seeds, and what labels of each third of the train pairs add "
        "to the difference; p after Holm's correction over the table, for what there would be "
        f"{scope(list(alone), any(gap.trained_again for gap in found))}."
    )
    return Table(f"Where UniDEC (ours) is not first in {' or '.join(JUDGED)}", columns, tuple(rows), caption, words=3)


def tried_tables(studies: Sequence[Study]) -> list[Table]:
    """Return tables of what was tried: first and best trial of studies, on validation rows, by objectives."""
    rows: dict[tuple[str, ...], list[tuple[Cell, ...]]] = {}
    for study in studies:
        first, best = next((one for one in study.ended if one.number == 0), None), study.chosen
        if not study.name.startswith(TRIED) or first is None or best is None:
            continue
        point = ", ".join(f"{name} {format_value(value)}" for name, value in best.params.items())
        words = (study.dataset, study.method, ", ".join(study.space), str(len(study.ended)), point)
        values = [trial.values[name] for name in study.objectives for trial in (first, best)]
        cells = (*map(Cell, words), *(Cell.of(Figure(value, n=1)) for value in values))
        rows.setdefault(tuple(study.objectives), []).append(cells)
    caption = (
        "Percent on validation rows. In what is searched, the first trial has the method's own settings where the "
        "range has them, not those that the benchmark's search chose."
    )
    words = ("dataset", "method", "searched", "trials", "best trial")
    return [
        Table(
            "What was tried",
            (*words, *(f"{name}, {which}" for name in objectives for which in ("first", "best"))),
            tuple(found),
            caption,
            words=len(words),
        )
        for objectives, found in rows.items()
    ]
