"""The whole report as files: tables in four forms, figures, the page, and an index for people who read on a code host.

    evidence -> {relative path: bytes} -> written, or held against what is there

Everything is a function of the evidence, so a report that was made from other evidence is found by making it again.
"""

import io
from dataclasses import dataclass
from pathlib import Path

from harness import DEFAULT_DATASET
from harness.errors import UserError
from harness.files import write_bytes
from harness.perf.saved import SPEED, Speed
from harness.progress import progress
from harness.published import MATRIX
from harness.report import is_trial
from harness.report.documents import COMPARISON, documents
from harness.report.evidence import Evidence
from harness.report.figures import FIGURES, Drawing, Missing, draw_all
from harness.report.figures.drawing import figure_stem
from harness.report.findings import FINDINGS, STANDINGS, Findings, findings_page, standings_page
from harness.report.index import TITLE, index_page
from harness.report.page import build_page, page_data
from harness.report.scale import PLACE, refreshed, scale_page
from harness.report.speed import speed_files
from harness.report.tables import FORMATS, render
from harness.report.trust import trust_files

OWNED = ("tables", "figures")
"""Folders in which every file should be ours."""
PAGE, INDEX = "index.html", "README.md"


@dataclass(frozen=True)
class Site:
    """A report that is not written yet."""

    files: dict[str, bytes]
    """By path relative to the report's folder."""
    speed: Speed | None = None
    """What the blocks of docs/scale.md are made from, where the folder is in a repository that has that page."""


def drawings(evidence: Evidence) -> dict[str, list[Drawing | Missing]]:
    """All figures by dataset, the main one first; of the other datasets only those that can be drawn."""
    names = _datasets(evidence)
    wanted = [(dataset, figure) for dataset in names for figure in FIGURES]
    found: dict[str, list[Drawing | Missing]] = {}
    with progress("figures", len(wanted), "figures") as advance:
        for dataset, figure in wanted:
            for drawn in draw_all(evidence, dataset, [figure]):
                if dataset == names[0] or isinstance(drawn, Drawing):
                    found.setdefault(dataset, []).append(drawn)
            advance(1)
    return found


def _datasets(evidence: Evidence) -> list[str]:
    """Those with finished runs, the default one first, then by number of runs; further ones if they compare methods."""
    methods: dict[str, list[str]] = {}
    for record in evidence.records:
        if record.status == "finished" and not is_trial(record.config):
            methods.setdefault(record.dataset["name"], []).append(record.config["method"])
    names = sorted(methods, key=lambda name: (name != DEFAULT_DATASET, -len(methods[name]), name))
    return [name for name in names if name == names[0] or len(set(methods[name])) > 1]


def make_site(evidence: Evidence) -> Site:
    """Everything a report consists of, but for the explorer's texts, which are other people's."""
    findings = Findings(evidence)
    tables, figures = documents(evidence, findings=findings), drawings(evidence)
    files: dict[str, bytes] = {}
    for document in tables:
        for form in FORMATS:
            files[f"tables/{document.id}.{form}"] = render(list(document.tables), form).encode()
    for dataset, drawn in figures.items():
        for one in drawn:
            if isinstance(one, Drawing):
                files[f"{figure_stem(dataset, one.id)}.svg"] = one.svg
                files[f"{figure_stem(dataset, one.id)}.png"] = one.png
    # the comparison is the page's first section, sortable
    shown = [document for document in tables if document.measured and document.id != COMPARISON]
    judged = {one.run_id for grid in findings.matrix for one in grid.records}
    files[PAGE] = build_page(page_data(evidence, judged), figures, shown).encode()
    pictured = [
        name for name, some in figures.items() if any(one.id == MATRIX and isinstance(one, Drawing) for one in some)
    ]
    for name, page in ((FINDINGS, findings_page), (STANDINGS, standings_page)):
        written = page(findings, pictured)
        if written is not None:
            files[name] = written.encode()
    files[INDEX] = index_page(evidence, tables, figures, concludes=FINDINGS in files).encode()
    if evidence.speed is not None:
        files |= speed_files(evidence.speed)
    if evidence.trust is not None:
        files |= trust_files(evidence.trust)
    return Site(files, evidence.speed)


def write_site(site: Site, folder: Path) -> tuple[int, list[str]]:
    """Writes what changed; returns how many files, and what else lies in the site's folders. Nothing is removed.

    Raises:
        UserError: The folder is somebody else's: it has files that would be overwritten, but no report.
    """
    require_ours(folder)
    wanted = {folder / name: content for name, content in site.files.items()} | _beside(site, folder)
    changed = [path for path, content in wanted.items() if not _same(path, content)]
    for path in changed:
        write_bytes(path, wanted[path])
    return len(changed), stale(site, folder)


def _beside(site: Site, folder: Path) -> dict[Path, bytes]:
    """The page on scale, outside the folder: its prose is written by hand, its figures are made."""
    page = scale_page(folder)
    return {} if page is None else {page: refreshed(page, site.speed).encode()}


def require_ours(folder: Path) -> None:
    """Refuses a folder with a README, a page, tables or figures that no report made: its index tells whose they are."""
    index = folder / INDEX
    if index.is_file() and index.read_bytes().startswith(TITLE.encode()):
        return
    there = [name for name in (INDEX, PAGE) if (folder / name).exists()] + [*_owned(folder)]
    if there:
        raise UserError(f"{folder} has a {there[0]} that is no report's; give a folder of its own, or move that away")


def check_site(site: Site, folder: Path) -> list[str]:
    """In what the files of a folder are not the site; empty if they are."""
    faults = []
    for name, content in sorted(site.files.items()):
        if not (folder / name).is_file():
            faults.append(f"{name} is missing")
        elif not _same(folder / name, content):
            faults.append(f"{name} is not what the records give")
    faults += [
        f"{PLACE.as_posix()}: a generated block is not what {SPEED} and the plans give"
        for path, content in _beside(site, folder).items()
        if not _same(path, content)
    ]
    return [*faults, *(f"{name} is not made from the records; remove it" for name in stale(site, folder))]


def stale(site: Site, folder: Path) -> list[str]:
    """Pages, and files in the site's own folders, that are not of the site."""
    return [name for name in _owned(folder) if name not in site.files]


def _owned(folder: Path) -> list[str]:
    """What is there of pages that not every report has, and in the site's own folders."""
    there = [folder / name for name in (FINDINGS, STANDINGS) if (folder / name).is_file()]
    there += [path for owned in OWNED for path in sorted((folder / owned).rglob("*")) if path.is_file()]
    return [path.relative_to(folder).as_posix() for path in there]


def _same(path: Path, content: bytes) -> bool:
    """Whether a file holds this content; pictures count by their pixels, because compressors differ by processor."""
    if not path.is_file():
        return False
    before = path.read_bytes()
    return before == content or (path.suffix == ".png" and _pixels(before) == _pixels(content))


def _pixels(content: bytes) -> tuple[tuple[int, int], bytes] | None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.size, image.convert("RGBA").tobytes()
    except (OSError, SyntaxError, ValueError):
        return None
