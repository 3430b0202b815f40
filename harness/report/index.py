"""reports/README.md: the index of tables and figures for people who read on a code host, figures shown."""

import re
from collections.abc import Sequence

from harness import DEFAULT_DATASET
from harness.printable import printable
from harness.report import Table, is_trial
from harness.report.documents import Document
from harness.report.evidence import Evidence
from harness.report.figures.drawing import Drawing, Missing, figure_stem
from harness.report.findings import FINDINGS, STANDINGS
from harness.report.tables import FORMATS, as_markdown, markdown_text

TITLE = "# Reports"
"""The first line of every index; a folder whose README has it is a report's."""
_FORM_NAMES = {"md": "Markdown", "tex": "LaTeX", "csv": "CSV", "html": "HTML"}


def index_page(
    evidence: Evidence,
    tables: Sequence[Document],
    figures: dict[str, list[Drawing | Missing]],
    *,
    concludes: bool = False,
) -> str:
    """The index as Markdown; `concludes` where there is a page of findings beside it."""
    findings = [_FINDINGS] if concludes else []
    parts = [_head(evidence), *findings, *_comparison(tables), _tables(tables), *_figures(figures), _foot(evidence)]
    return "\n".join(parts)


def _head(evidence: Evidence) -> str:
    runs = [one for one in evidence.records if one.status == "finished" and not is_trial(one.config)]
    datasets = sorted({one.dataset["name"] for one in runs})
    methods = {one.config["method"] for one in runs}
    named = markdown_text(", ".join(datasets)) or "no dataset"
    return f"""{TITLE}

{len(runs):,} runs of {len(methods)} methods on {named}. Every figure below is a function of the
records in [runs/](runs); nothing is typed by hand, and the test suite makes all of it again and fails if a file
differs.

**[The page](index.html)** has all of this, sortable and filterable, with the settings, the course and the cost of every
run: open it in a browser from a clone (a code host shows its source). With `python -m harness report --open` it also
shows what each method predicts for each query of *your* runs.
"""


def _comparison(tables: Sequence[Document]) -> list[str]:
    """The comparison on the first dataset, in full: what most people come for."""
    found = [document for document in tables if document.id == "comparison"]
    return [f"## Comparison\n\n{as_markdown(table)}" for document in found for table in _main(document)]


def _main(document: Document) -> list[Table]:
    named = [table for table in document.tables if table.title == DEFAULT_DATASET]
    return list(named or document.tables[:1])


def _tables(tables: Sequence[Document]) -> str:
    lines = ["## Tables", "", "| table | what it compares | measured here | forms |", "|---|---|---|---|"]
    for document in sorted(tables, key=lambda one: not one.measured):
        links = ", ".join(f"[{_FORM_NAMES[form]}](tables/{document.id}.{form})" for form in FORMATS)
        name = f"[{markdown_text(document.id)}](tables/{document.id}.md)"
        here = "yes" if document.measured else "not yet"
        lines.append(f"| {name} | {markdown_text(document.title)} | {here} | {links} |")
    return "\n".join(lines) + "\n"


def _figures(figures: dict[str, list[Drawing | Missing]]) -> list[str]:
    parts = ["## Figures\n"]
    for dataset, drawn in figures.items():
        parts.append(f"### {markdown_text(dataset)}\n")
        parts += [figure_text(one, figure_stem(dataset, one.id)) for one in drawn]
    return parts


def figure_text(one: Drawing | Missing, stem: str) -> str:
    """A figure with its words, or what to run for it.

    Args:
        one: The figure.
        stem: Its path from the page that shows it, without its ending.
    """
    title = markdown_text(one.title)
    if isinstance(one, Missing):
        return f"**{title}**: {markdown_text(one.why)}. To get it: {_code(one.command)}\n"
    return f"![{markdown_text(one.alt)}]({stem}.png)\n\n**{title}.** {markdown_text(one.caption)} [SVG]({stem}.svg)\n"


def _code(text: str) -> str:
    """Text as a span of code, whatever is in it."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{' '.join(printable(text).split())}{space}{fence}"


_FINDINGS = f"""**[Findings]({FINDINGS})**: which claims of the papers hold on this data, and how every method did with
settings from the same small search; [dataset by dataset]({STANDINGS}).
"""
_FAST = """[speed.md](speed.md): how fast the code is against named references, on which machine; step time and memory
  over the number of labels, and every ratio against its target, as figures. Tables: {forms}."""
_TRIED = """[trust.md](trust.md): what was tried on purpose and what happened: fault list, trainings killed and taken up
  again, hostile input; it says what was not tried in this folder."""
_UNTRIED = "Trust: not tried in this folder; `make faults` does."
_UNMEASURED = "Speed: not measured in this folder; `python -m harness perf --write` measures it."


def _foot(evidence: Evidence) -> str:
    forms = ", ".join(f"[{_FORM_NAMES[form]}](tables/speed.{form})" for form in FORMATS)
    return f"""## Others

- {_UNMEASURED if evidence.speed is None else _FAST.format(forms=forms)}
- {_UNTRIED if evidence.trust is None else _TRIED}
- [plan.md](plan.md): memory and time of every method on every dataset, as `harness plan` estimates them.

## Make it again

```
python -m harness bench --table thesis-2.4 --datasets lf-pydocstitles --seeds 0,1,2   # runs what is missing
python -m harness report --collect    # records of your workspace into reports/runs
python -m harness report --write      # tables, figures, page, this index
python -m harness report --check      # is everything here what the records give?
python -m harness perf --write        # speed, measured on this machine
```
"""
