"""The whole report as files: tables in three formats, figures, the page, and an index to read on a code host.

    results -> {relative path: bytes} -> written, or compared with the existing files

Equal results give an equal report, so `check_site` finds a report that was made from other results.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from harness import DEFAULT_DATASET
from harness.errors import UserError
from harness.io.files import write_bytes
from harness.io.progress import progress
from harness.report.claims import Findings
from harness.report.documents import COMPARISON, Document, documents
from harness.report.figures import FIGURES, Drawing, Missing, draw_figure
from harness.report.figures.drawing import figure_stem
from harness.report.figures.style import png_metadata
from harness.report.findings import FINDINGS, STANDINGS, findings_page, standings_page
from harness.report.page import build_page, page_data
from harness.report.results import Results
from harness.report.tables import FORMATS, as_markdown, render, render_template
from harness.runs.record import is_trial
from harness.settings.published import MATRIX

TITLE = b"# Reports"
"""The first line of every index; a folder whose README has it is a report's."""
OWNED = ("tables", "figures")
"""Folders in which all files should be of the report."""
PAGE, INDEX = "index.html", "README.md"


Site = dict[str, bytes]
"""Content of a report's files by path relative to its folder."""


def drawings(results: Results) -> dict[str, list[Drawing | Missing]]:
    """Return all figures by dataset, the main one first; missing ones of other datasets are left out."""
    names = _datasets(results)
    wanted = [(dataset, figure) for dataset in names for figure in FIGURES]
    found: dict[str, list[Drawing | Missing]] = {}
    with progress("figures", len(wanted), "figures") as advance:
        for dataset, figure in wanted:
            drawn = draw_figure(figure, results, dataset)
            if dataset == names[0] or isinstance(drawn, Drawing):
                found.setdefault(dataset, []).append(drawn)
            advance(1)
    return found


def _datasets(results: Results) -> list[str]:
    """Return datasets with finished runs: the default one or that with most runs, then those with several methods."""
    methods: dict[str, list[str]] = {}
    for record in results.records:
        if record.status == "finished" and not is_trial(record.config):
            methods.setdefault(record.dataset["name"], []).append(record.config["method"])
    names = sorted(methods, key=lambda name: (name != DEFAULT_DATASET, -len(methods[name]), name))
    return [name for name in names if name == names[0] or len(set(methods[name])) > 1]


def make_site(results: Results) -> Site:
    """Return all files of a report but the explorer's, whose texts are not ours to publish."""
    findings = Findings(results)
    tables, figures = documents(results, findings=findings), drawings(results)
    site: Site = {}
    for document in tables:
        for form in FORMATS:
            site[f"tables/{document.id}.{form}"] = render(list(document.tables), form).encode()
    for dataset, drawn in figures.items():
        for one in drawn:
            if isinstance(one, Drawing):
                site[f"{figure_stem(dataset, one.id)}.png"] = one.png
    # the comparison is the page's first section, sortable
    shown = [document for document in tables if document.measured and document.id != COMPARISON]
    judged = {one.run_id for table in findings.matrix for one in table.records}
    site[PAGE] = build_page(page_data(results, judged), figures, shown).encode()
    pictured = [
        name for name, some in figures.items() if any(one.id == MATRIX and isinstance(one, Drawing) for one in some)
    ]
    for name, page in ((FINDINGS, findings_page), (STANDINGS, standings_page)):
        written = page(findings, pictured)
        if written is not None:
            site[name] = written.encode()
    site[INDEX] = index_page(results, tables, figures, concludes=FINDINGS in site).encode()
    return site


def index_page(
    results: Results,
    tables: Sequence[Document],
    figures: dict[str, list[Drawing | Missing]],
    *,
    concludes: bool = False,
) -> str:
    """Return README.md, to be read on a code host; `concludes` if there is a page of findings beside it."""
    runs = [one for one in results.records if one.status == "finished" and not is_trial(one.config)]
    shown = [table for document in tables if document.id == COMPARISON for table in document.tables]
    main = [table for table in shown if table.title == DEFAULT_DATASET] or shown[:1]
    return render_template(
        "index.md.j2",
        runs=len(runs),
        methods=len({one.config["method"] for one in runs}),
        datasets=", ".join(sorted({one.dataset["name"] for one in runs})),
        concludes=concludes,
        comparison=[as_markdown(table) for table in main],
        tables=sorted(tables, key=lambda one: not one.measured),
        figures=figures,
        stem=figure_stem,
    )


def write_site(site: Site, folder: Path) -> tuple[int, list[str]]:
    """Write changed files; returns their number, and files that are not of the site. Nothing is removed.

    Raises:
        UserError: The folder has files that would be overwritten, but is not a report.
    """
    require_ours(folder)
    wanted = {folder / name: content for name, content in site.items()}
    changed = [path for path, content in wanted.items() if not _same(path, content, exactly=True)]
    for path in changed:
        write_bytes(path, wanted[path])
    return len(changed), stale(site, folder)


def require_ours(folder: Path) -> None:
    """Raise if a folder has a README, page, tables or figures but its README does not begin like a report's."""
    index = folder / INDEX
    if index.is_file() and index.read_bytes().startswith(TITLE):
        return
    there = [name for name in (INDEX, PAGE) if (folder / name).exists()] + [*_owned(folder)]
    if there:
        raise UserError(f"{folder} has a {there[0]} that no report wrote; name another folder, or move it away")


def check_site(site: Site, folder: Path) -> list[str]:
    """Return how the files of a folder differ from the site; empty if they do not."""
    faults = []
    for name, content in sorted(site.items()):
        if not (folder / name).is_file():
            faults.append(f"{name} is missing")
        elif not _same(folder / name, content):
            faults.append(f"{name} is not what the records give")
    return [*faults, *(f"{name} is not made from the records; remove it" for name in stale(site, folder))]


def stale(site: Site, folder: Path) -> list[str]:
    """Return pages, and files in the site's folders, that are not of the site."""
    return [name for name in _owned(folder) if name not in site]


def _owned(folder: Path) -> list[str]:
    """Return existing pages of findings, and all files in the site's folders."""
    there = [folder / name for name in (FINDINGS, STANDINGS) if (folder / name).is_file()]
    there += [path for owned in OWNED for path in sorted((folder / owned).rglob("*")) if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in there]


def _same(path: Path, content: bytes, *, exactly: bool = False) -> bool:
    """Return whether a file has this content, up to differences between processors; with `exactly`, texts byte by byte.

    Figures are compared by the digest of their data. In texts a number may differ by one in its last printed digit:
    the last bits of a mean decide how it is rounded.
    """
    if not path.is_file():
        return False
    before = path.read_bytes()
    if path.suffix == ".png" and before != content:
        digest = png_metadata(before)[2]
        return bool(digest) and digest == png_metadata(content)[2]
    if before == content or exactly:
        return before == content
    return _same_text(before.decode(errors="replace"), content.decode(errors="replace"))


_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w.]*\w)")


def _same_text(before: str, after: str) -> bool:
    if _NUMBER.sub("0", before) != _NUMBER.sub("0", after):
        return False
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True)
    return all(one == other or _near(one, other) for one, other in pairs)


def _near(one: str, other: str) -> bool:
    """Return whether two numbers have equally many decimals and differ by at most one in the last."""
    decimals = len(one.partition(".")[2])
    near = abs(Decimal(one) - Decimal(other)) <= Decimal(1).scaleb(-decimals)
    return near and decimals == len(other.partition(".")[2])
