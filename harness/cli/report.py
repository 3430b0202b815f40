"""`harness report`: tables, tests of differences, figures and the page."""

import shlex
import shutil
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.options import Json
from harness.cli.show import print_json, say, short_path, show_tables
from harness.errors import UserError
from harness.io.files import home, write_text

if TYPE_CHECKING:
    from harness.report.cells import Table
    from harness.report.compare import Comparison
    from harness.report.results import Results
    from harness.report.site import Site

REPORTS = Path("reports")


Names = Annotated[
    list[str] | None,
    typer.Argument(help="With --compare: run ids, run folders, `last` or methods; the first is the reference."),
]
Compare = Annotated[
    bool, typer.Option("--compare", help="Test the named runs against the first of them, over rows and trainings.")
]
Open = Annotated[bool, typer.Option("--open", help="Make the page of your runs, predictions included, and open it.")]
Write = Annotated[bool, typer.Option("--write", help="Make tables, figures, page and index from the folder's records.")]
Explore = Annotated[bool, typer.Option("--explorer", help="With --write: your runs' predictions beside the page.")]
Check = Annotated[bool, typer.Option("--check", help="Fail if anything in the folder is not what its records give.")]
Collect = Annotated[bool, typer.Option("--collect", help="Copy records of your runs and sweeps into the folder.")]
Folder = Annotated[Path, typer.Option(help="A folder of records and what is made from them.")]
Datasets = Annotated[str | None, typer.Option("--dataset", "--datasets", metavar="X,Y", help="Only these datasets.")]
Runs = Annotated[
    list[Path] | None,
    typer.Option(help="Folder of run folders, records or Parquet results, repeatable. Default: workspace/runs."),
]
Resamples = Annotated[
    int | None, typer.Option(min=1, max=1_000_000, help="With --compare: draws of rows and signs. Default: 10000.")
]
Mixed = Annotated[
    bool, typer.Option("--allow-mixed", help="With --compare: other data, filter, metrics or harness too.")
]
Out = Annotated[Path | None, typer.Option(help="Write to this file; with --table also a folder, a file for each.")]


def report(
    names: Names = None,
    table: Annotated[str | None, typer.Option(metavar="ID,ID", help="Tables (`harness ls tables`), or `all`.")] = None,
    compare: Compare = False,
    open_page: Open = False,
    write: Write = False,
    explorer: Explore = False,
    check: Check = False,
    collect: Collect = False,
    folder: Folder = REPORTS,
    dataset: Datasets = None,
    runs: Runs = None,
    metrics: Annotated[str, typer.Option(help="With --compare: metrics, with commas. Default: P@k and PSP@k.")] = "",
    resamples: Resamples = None,
    seed: Annotated[int | None, typer.Option(min=0, help="With --compare: of those draws. Default: 0.")] = None,
    allow_mixed: Mixed = False,
    form: Annotated[str | None, typer.Option("--format", help="md, tex or csv instead of a screen table.")] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Turn recorded runs into tables, tests of differences, figures and a page to browse.

    Without an option: one table per dataset, mean over seeds, best figures marked. Nothing is run here; `harness bench`
    runs what is missing.

    Examples:
        harness report                                          (your runs, one table per dataset)
        harness report --table thesis-2.4 --dataset lf-pydocstitles     (a paper's table from your runs)
        harness report --table all --format tex --out tables    (every table, as LaTeX files)
        harness report --compare unidec depsl zeroshot          (which differences are more than chance?)
        harness report --open                                   (the page of your runs, with what they predict)
        harness report --collect --write                        (your runs into reports/, then everything made anew)
        harness report --check                                  (is reports/ what its records give?)
    """
    given = _Given(names or [], dataset, runs, form, out, as_json)
    chosen = {
        "--table": table is not None,
        "--compare": compare,
        "--open": open_page,
        "--collect, --write, --check": collect or write or check,
    }
    of_compare = {
        "--metrics": bool(metrics),
        "--resamples": resamples is not None,
        "--seed": seed is not None,
        "--allow-mixed": allow_mixed,
    }
    given.refuse_mixtures(chosen, compare, explorer and not write, [name for name, has in of_compare.items() if has])
    if open_page:
        _open(given)
    elif collect or write or check:
        _keep(given, folder, collect=collect, write=write, check=check, explorer=explorer)
    elif compare:
        _compare(given, metrics, resamples, seed, allow_mixed)
    elif table is not None:
        _tables(given, table)
    else:
        _everything(given)


@dataclass(frozen=True)
class _Given:
    """Options that several kinds of report read."""

    names: list[str]
    dataset: str | None
    runs: list[Path] | None
    form: str | None
    out: Path | None
    as_json: bool

    def refuse_mixtures(
        self, chosen: dict[str, bool], compare: bool, explorer_alone: bool, of_compare: list[str]
    ) -> None:
        """Raise if options do not go together; `of_compare` are those given that only --compare reads."""
        wanted = [name for name, is_wanted in chosen.items() if is_wanted]
        if len(wanted) > 1:
            raise UserError(f"{' and '.join(wanted)} are different reports; ask for one of them")
        if explorer_alone:
            raise UserError("--explorer goes with --write; `report --open` has the explorer already")
        if of_compare and not compare:
            raise UserError(f"{' and '.join(of_compare)} belong to a comparison: report --compare A B")
        if self.as_json and (self.form or self.out):
            raise UserError("--json is printed; leave out --format and --out, and send it where you like with >")
        if self.names and not compare:
            raise UserError(f"what is to be done with {self.names[0]!r}? Names are for comparing: report --compare A B")

    def say(self, text: str) -> None:
        """Print a line for a person: on standard error where standard output is JSON."""
        say(text, err=self.as_json)

    @property
    def datasets(self) -> list[str] | None:
        """The datasets that were named; None for all."""
        from harness.settings.layers import comma_list

        return comma_list(self.dataset) if self.dataset else None

    @property
    def one_dataset(self) -> str | None:
        """The dataset of a report that has one at most."""
        if self.datasets and len(self.datasets) > 1:
            raise UserError(f"--dataset {self.dataset}: one at a time here")
        return self.datasets[0] if self.datasets else None

    def folders(self, required: bool = True) -> list[Path]:
        """Where runs are looked for."""
        from harness.runs.record import runs_folder

        folders = self.runs or [runs_folder()]
        for folder in folders if required or self.runs else ():
            if not folder.is_dir():
                raise UserError(f"{folder} has no runs; make one with `python -m harness run`")
        return folders

    def results(self) -> "Results":
        """The runs of a workspace."""
        from harness.report.results import Results, read_records, results_folder

        folders = self.folders()
        return Results(tuple(read_records(folders)), folders=tuple(map(results_folder, folders)))


def _everything(given: _Given) -> None:
    """One table per dataset."""
    from harness.report.documents import comparison
    from harness.report.results import read_records
    from harness.report.rows import tidy

    records = read_records(given.folders())
    if given.as_json:
        frame = tidy(records, given.one_dataset)
        print_json([{key: value for key, value in row.items() if value == value} for row in frame.to_dict("records")])
        return
    _put(given, comparison(records, given.one_dataset))


def _compare(given: _Given, metrics: str, resamples: int | None, seed: int | None, allow_mixed: bool) -> None:
    from harness.report.compare import compare, find_contenders, split_names
    from harness.report.significance import DEFAULT_RESAMPLES
    from harness.settings.layers import comma_list

    folders = given.folders(required=False)  # run folders may be named by their paths
    contenders = find_contenders(split_names(given.names), folders, given.one_dataset)
    draws = DEFAULT_RESAMPLES if resamples is None else resamples
    found: Comparison = compare(
        contenders, tuple(comma_list(metrics)), resamples=draws, seed=seed or 0, allow_mixed=allow_mixed
    )
    if given.as_json:
        print_json(found.as_dict())
    else:
        _put(given, [found.as_table()], star="decided")


def _tables(given: _Given, text: str) -> None:
    """Published tables from runs, and the others that `harness ls tables` lists."""
    from harness.report.documents import as_dict, documents
    from harness.report.tables import FORMATS, render
    from harness.settings.layers import comma_list

    ids = list(dict.fromkeys(comma_list(text)))
    if not ids:
        raise UserError("--table names none, for example thesis-2.4; `python -m harness ls tables` lists them")
    every = "all" in ids
    found = documents(given.results(), None if every else ids, given.datasets)
    if given.as_json:
        print_json([as_dict(table) for document in found for table in document.tables])
        return
    if given.out and (given.out.is_dir() or not given.out.suffix):
        forms = [given.form] if given.form else list(FORMATS)
        for document in found:
            for form in forms:
                write_text(given.out / f"{document.id}.{form}", render(list(document.tables), form))
        say(f"wrote {len(found) * len(forms)} files to {short_path(given.out.absolute())}")
        return
    unmeasured = [document.id for document in found if every and not document.measured]
    _put(given, [table for document in found if document.id not in unmeasured for table in document.tables])
    if unmeasured and not given.form and not given.out:
        say(f"no runs for {', '.join(unmeasured)}; `python -m harness bench --table ID` makes them")


def _put(given: _Given, tables: "list[Table]", star: str = "best") -> None:
    """Prints tables, or writes them in one of the forms of a document."""
    from harness.report.tables import render

    if not given.form and not given.out:
        show_tables(tables, star)
        return
    text = render(tables, given.form or (given.out.suffix.lstrip(".") if given.out else "md"))
    if given.out:
        write_text(given.out, text)
        say(f"wrote {short_path(given.out.absolute())}")
    else:
        typer.echo(text)


def _keep(given: _Given, folder: Path, *, collect: bool, write: bool, check: bool, explorer: bool) -> None:
    """A folder of records: filled, made into a report, or checked."""
    if collect:
        _collect(given, folder)
    if write or check:
        site = _site_of(folder)
        if write:
            _write(given, site, folder, explorer)
        if check:
            _check(given, site, folder)


def _collect(given: _Given, folder: Path) -> None:
    from harness.report.collect import collect
    from harness.report.results import read_records

    folders = given.folders(required=False)
    datasets = given.datasets or sorted({str(one.dataset.get("name", "")) for one in read_records(folders)} - {""})
    studies = home() / "studies"
    found = collect(folders, studies if studies.is_dir() else None, datasets, folder)
    for sentence in found.left_out:
        say(f"left out: {sentence}", err=True)
    given.say(
        f"{found.runs} runs, {found.studies} sweeps, neighbours of the labels of {found.neighbours} datasets: "
        f"{len(found.written)} files new or changed in {short_path(folder.absolute())}"
    )


def _site_of(folder: Path) -> "Site":
    from harness.report.results import read_results
    from harness.report.site import make_site

    if folder.is_file():
        raise UserError(f"{folder} is a file; a report is a folder")
    results = read_results(folder)
    if not results.records:
        raise UserError(
            f"{folder}/results has no runs; `python -m harness report --collect --folder {folder}` copies those of "
            "your runs there"
        )
    return make_site(results)


def _write(given: _Given, site: "Site", folder: Path, explorer: bool) -> None:
    from harness.report.site import PAGE, write_site

    changed, others = write_site(site, folder)
    for name in others:
        say(f"{short_path((folder / name).absolute())} is not of this report; remove it", err=True)
    given.say(f"{len(site)} files, {changed} new or changed: {short_path(folder.absolute())}")
    if explorer:
        _explore(given, folder)
    given.say(f"the page    {short_path((folder / PAGE).absolute())}")


def _explore(given: _Given, folder: Path) -> None:
    from harness.report.explorer import build_explorer

    metadata = build_explorer(given.folders(), folder / "explorer", datasets=given.datasets)
    for sentence in metadata.left_out:
        say(f"left out: {sentence}", err=True)
    shown = sum(len(ids) for ids in metadata.datasets.values())
    given.say(
        f"explorer    {shown} runs on {len(metadata.datasets)} datasets, {metadata.bytes / 1e6:.1f} MB; not for git"
    )


def _check(given: _Given, site: "Site", folder: Path) -> None:
    from harness.report.site import check_site

    faults = check_site(site, folder)
    if given.as_json:
        print_json(faults)
    else:
        for fault in faults:
            say(fault, err=True)
        fine = f"all {len(site)} files in {short_path(folder.absolute())} are what the records give"
        named = "" if folder == REPORTS else f" --folder {shlex.quote(str(folder))}"
        say(f"to make them anew: python -m harness report --write{named}" if faults else fine)
    if faults:
        raise typer.Exit(1)


def _open(given: _Given) -> None:
    """The page of a workspace, made anew: records of deleted runs go, but not from a folder that the user named."""
    from harness.report.site import PAGE

    own = home() / "report"
    folder = given.out or own
    if folder == own:
        for inner in ("results", "runs", "studies", "neighbours"):
            shutil.rmtree(folder / inner, ignore_errors=True)
    _collect(given, folder)
    _write(given, _site_of(folder), folder, explorer=True)
    if not webbrowser.open((folder / PAGE).absolute().as_uri()):
        say("no browser could be opened here; open that file in yours")
