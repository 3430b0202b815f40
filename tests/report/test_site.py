"""The whole report: complete, byte-identical, checked against what is committed, and sound for bad records."""

import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from harness.errors import UserError
from harness.io.files import write_json
from harness.report import figures
from harness.report.documents import as_dict, documents, representative
from harness.report.figures.style import DIGEST, DOTS_PER_INCH, as_png, in_style, new_figure
from harness.report.results import Results, read_records, read_results
from harness.report.site import Site, check_site, make_site, write_site
from harness.report.tables import render
from harness.runs.record import write_record
from harness.settings.published import published_tables
from tests.support.commands import call
from tests.support.kept_runs import keep
from tests.support.table_runs import DATASET, record

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a few records, one of them of a failed run."""
    runs = [record(f"run-{seed}", seed=seed, p1=50.0 + seed) for seed in range(3)]
    runs += [record("zero", method="zeroshot", p1=40.0), record("dead", status="failed")]
    keep(folder := tmp_path_factory.mktemp("kept") / "reports", *runs)
    return folder


@pytest.fixture(scope="module")
def site(kept: Path) -> Site:
    """The report on these records."""
    return make_site(read_results(kept))


@pytest.fixture
def folder(kept: Path, tmp_path: Path) -> Path:
    """The records, to write beside."""
    return shutil.copytree(kept, tmp_path / "reports")


@pytest.fixture
def record_files(tmp_path: Path) -> Path:
    """A folder of records as JSON files."""
    write_json(tmp_path / "records" / "run-0.json", record("run-0").model_dump(mode="json"))
    return tmp_path / "records"


def test_everything_is_written_once_and_then_found_fresh(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 63"""
    assert call("report", "--write", "--check", "--folder", str(folder)) == 0
    before = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {"index.html", "README.md", "tables/comparison.md", "tables/thesis-2.5.tex"} <= before.keys()
    assert call("report", "--write", "--folder", str(folder)) == 0
    assert "0 new or changed" in capsys.readouterr().out
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_stale_report_is_told_and_fails(site: Site, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 63"""
    write_site(site, folder)
    (folder / "tables" / "comparison.md").write_text("other")
    (folder / "tables" / "old.md").write_text("of a table that is gone")
    (folder / "index.html").unlink()
    assert [fault.partition(" ")[0] for fault in check_site(site, folder)] == [
        *("index.html", "tables/comparison.md", "tables/old.md")
    ]
    assert write_site(site, folder) == (2, ["tables/old.md"])  # nothing of anybody is removed
    (folder / "tables" / "old.md").unlink()
    assert check_site(site, folder) == []
    keep(folder, record("run-4", seed=4, p1=60.0))
    assert call("report", "--check", "--folder", str(folder), "--json") == 1
    assert any("README.md" in fault for fault in json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("option", ["--write", "--check"])
def test_no_records(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", option, "--folder", str(tmp_path)) == 2
    assert "report --collect" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_failed_runs_alone_make_a_report_that_says_so(tmp_path: Path) -> None:
    """fault 61"""
    keep(tmp_path, record("dead", status="failed"))
    site = make_site(read_results(tmp_path))
    assert "0 runs of 0 methods on no dataset" in site["README.md"].decode()
    assert "tables/comparison.md" not in site
    assert "tables/thesis-2.5.md" in site


def test_methods_at_their_own_settings_represent_themselves() -> None:
    plain, varied = record("plain"), record("varied", eta=0)
    lone, minilm = record("lone", method="dpr", epochs=3), record("minilm", encoder="minilm")
    assert representative([plain, varied, lone, minilm]) == [plain, lone, minilm]
    (document,) = documents(Results((plain, varied, lone, minilm)), ["comparison"])
    assert "shown at these alone" in document.tables[0].caption


def test_a_table_for_programs() -> None:
    (document,) = documents(Results((record("a", method="unidec-thesis"),)), ["thesis-2.5"], [DATASET])
    (told,) = map(as_dict, document.tables)
    assert told["id"] == f"thesis-2.5-{DATASET}"
    command = f"python -m harness bench --table thesis-2.5 --datasets {DATASET} --seeds 0"
    assert told["command"] == f"{command} --rows unidec,unidec-de,unidec-clf"
    assert len(told["rows"]) == 6
    assert [row["P@1"]["mean"] for row in told["rows"]] == [50.0, 49.0, 48.0, None, None, None]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--table", "thesis-2.55"], "did you mean 'thesis-2.5'?"),
        (["--table", "all", "--compare", "a", "b"], "different reports"),
        (["--open", "--write"], "different reports"),
        (["thesis-2.5"], "--compare"),
        (["--table", "thesis-2.5", "--format", "docx"], "'docx'"),
        (["--table", " , "], "--table"),
        (["--table", "thesis-2.5", "--dataset", "nowhere"], "nowhere"),
        (["--explorer"], "--write"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], named: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace / "runs").mkdir(parents=True)
    assert call("report", *arguments) == 2
    assert named in capsys.readouterr().err


def test_every_table_in_every_form(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tables"
    assert call("report", "--table", "all", "--runs", str(folder), "--out", str(out)) == 0
    stems = {"comparison", "thesis-2.1", *published_tables()}
    assert {path.name for path in out.iterdir()} == {
        f"{stem}.{form}" for stem in stems for form in ("md", "tex", "csv")
    }


@pytest.mark.parametrize("theirs", ["README.md", "index.html", "figures/mine.png", "tables/mine.csv"])
def test_a_folder_of_somebody_else_stays_as_it_is(theirs: str, site: Site, folder: Path) -> None:
    (folder / theirs).parent.mkdir(exist_ok=True)
    (folder / theirs).write_text("mine")
    with pytest.raises(UserError, match=theirs):
        write_site(site, folder)
    assert not (folder / "tables" / "comparison.md").exists()
    assert (folder / theirs).read_text() == "mine"


def test_a_page_elsewhere_removes_no_runs(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--open --out` may name the workspace itself, or any folder that has runs in it."""
    monkeypatch.setenv("BROWSER", "true")
    run = workspace / "runs" / "run-0"
    run.mkdir(parents=True)
    write_record(run, record("run-0"))
    assert call("report", "--open", "--out", str(workspace)) == 0
    assert (run / "record.json").is_file()
    assert (workspace / "index.html").is_file()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": {}}, "config.method: Field required"),
        ({"config": {"method": "a", "encoder": "b", "seed": "0"}}, "config.seed: "),
        ({"config": {"method": "a", "encoder": "b", "seed": [1]}}, "config.seed: "),
        ({"dataset": {}}, "dataset.name: Field required"),
        ({"dataset": {"name": None}}, "dataset.name: "),
        ({"dataset": {"name": "d", "digest": 3}}, "dataset.digest: "),
        ({"dataset": {"name": "d", "propensity": {"a": None, "b": 1.0}}}, "dataset.propensity.a: "),
        ({"dataset": {"name": "d", "propensity": {"a": 0.5}}}, "dataset.propensity.b: Field required"),
        ({"dataset": {"name": "d", "statistics": {"labels": "many"}}}, "dataset.statistics.labels: "),
        ({"seconds": float("nan")}, "seconds: "),
        ({"metrics": {"P@1": float("nan")}}, "metrics.P@1: "),
        ({"views": {"de": {"P@5": float("inf")}}}, "views.de.P@5: "),
        ({"schema_version": 99}, "schema 99"),
        ({"config": {"method": "\ud800", "encoder": "b", "seed": 0}}, "surrogates not allowed"),
    ],
)
def test_a_record_that_cannot_be_shown_is_reported_and_left_out(
    change: dict[str, object], said: str, record_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """faults 62 and 64: half a surrogate pair has no UTF-8 form, whatever the status of its run"""
    values = json.loads((record_files / "run-0.json").read_text()) | {"run_id": "odd"} | change
    (record_files / "odd.json").write_text(json.dumps(values))
    assert len(read_records([record_files])) == 1
    assert said in capsys.readouterr().err
    (record_files / "odd.json").write_text(json.dumps(values | {"status": "failed"}))
    assert len(read_records([record_files])) == (1 if said in ("schema 99", "surrogates not allowed") else 2)


def undrawn(figure: Figure, digest: str = "") -> bytes:
    """A blank picture of the same size and digest, which is all of a picture that is checked; drawing takes long."""
    figure.set_dpi(DOTS_PER_INCH)
    about, stream = PngInfo(), io.BytesIO()
    about.add_text(DIGEST, digest)
    Image.new("1", FigureCanvasAgg(figure).get_width_height()).save(stream, "PNG", pnginfo=about)
    return stream.getvalue()


def test_the_committed_report_is_what_the_committed_records_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """fault 63"""
    monkeypatch.setattr(figures, "as_png", undrawn)
    folder = ROOT / "reports"
    site = make_site(read_results(folder))
    assert check_site(site, folder) == []
    assert len(site["index.html"]) < 3_000_000


def test_pictures_are_compared_by_their_data(folder: Path) -> None:
    """Another processor draws other pixels from the same numbers."""
    with in_style():
        thin, thick, other = (
            as_png(new_figure(width=width)[0], digest=digest) for width, digest in ((1, "a"), (2, "a"), (1, "b"))
        )
    (folder / "drawn.png").write_bytes(thin)
    assert check_site({"drawn.png": thick}, folder) == []
    for content in (other, b"no picture", b""):
        assert check_site({"drawn.png": content}, folder) == ["drawn.png is not what the records give"]


def test_the_committed_records_name_commits_that_everybody_has() -> None:
    """The code of a run whose commit was rewritten or squashed away can no longer be had."""
    shallow = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        pytest.skip("no git, or a clone without the whole history")
    history = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {one.environment["git"]["commit"] for one in read_records([ROOT / "reports"])}
    assert named - {*history.stdout.split()} == set()


@pytest.mark.parametrize("form", ["md", "tex", "csv"])
@pytest.mark.parametrize("name", ["thesis-2.5", "comparison"])
def test_golden_tables(name: str, form: str) -> None:
    """Bytes that were looked at; made by `report --table thesis-2.5,comparison --runs tests/golden/runs --out ...`."""
    golden = ROOT / "tests" / "golden"
    results = Results(tuple(read_records([golden / "runs"])), folders=(golden / "runs",))
    (document,) = documents(results, [name], [DATASET])
    assert render(list(document.tables), form) == (golden / "tables" / f"{name}.{form}").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '{"seconds": NaN}', '{"run_id": 3', ""])
def test_text_that_is_no_record_does_not_end_a_report(
    record_files: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (record_files / "odd.json").write_text(text)
    assert call("report", "--runs", str(record_files)) == 0
    assert "odd.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "alike"),
    [
        ("mean 51.24, p 0.0431 of 3 runs", True),
        ("mean 51.23, p 0.0430 of 3 runs", True),
        ("mean 51.25, p 0.0431 of 3 runs", False),
        ("mean 51.2, p 0.0431 of 3 runs", False),
        ("mean 51.24, p 0.0431 of 4 runs", False),
        ("mean 51.24 ± 0.10, p 0.0431 of 3 runs", False),
    ],
)
def test_a_check_allows_one_in_the_last_printed_digit(there: str, alike: bool, tmp_path: Path) -> None:
    """fault 63: the last bits of a mean differ between processors, counts and words do not"""
    (tmp_path / "page.md").write_text(there)
    faults = check_site({"page.md": b"mean 51.23, p 0.0431 of 3 runs"}, tmp_path)
    assert (faults == []) is alike
