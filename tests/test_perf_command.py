"""`harness perf` and the report of what it measured: merged, shown, found stale; its suites are made up."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import perf
from harness.errors import DataError
from harness.files import write_json
from harness.perf import SUITES, Row
from harness.perf.saved import Speed, read_speed, write_speed
from harness.report.documents import documents
from harness.report.evidence import read_evidence
from harness.report.site import check_site, make_site, write_site
from tests.commands import call
from tests.speed_rows import scaling_rows, speed, suite, training_rows
from tests.test_declared import record

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of reports with one run, in a repository that has the page on scale; of runs only one table is made."""
    monkeypatch.setattr("harness.report.site.drawings", lambda evidence: {})
    monkeypatch.setattr("harness.report.site.documents", lambda evidence, findings: documents(evidence, ["comparison"]))
    place = tmp_path / "repository" / "reports"
    one = record("run-0")
    write_json(place / "runs" / f"{one.run_id}.json", one.model_dump(mode="json"))
    (place.parent / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "scale.md", place.parent / "docs" / "scale.md")
    return place


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Suites of made-up rows in place of real ones; `parsing` fails after its first row. Names of those that ran."""
    ran: list[str] = []

    def measure(suites: tuple[str, ...]) -> Iterator[Row]:
        (name,) = suites
        ran.append(name)
        rows = {"training": training_rows(), "scaling": scaling_rows()}.get(name, training_rows()[:1])
        for row in rows:
            yield replace(row, suite=name)
            if name == "parsing":
                raise RuntimeError("the disk\nis on fire")

    monkeypatch.setattr("harness.perf.measure", measure)
    return ran


def test_a_stale_speed_report_is_found(folder: Path) -> None:
    """fault 63"""
    write_speed(folder / "speed.json", speed())
    site = make_site(read_evidence(folder))
    write_site(site, folder)
    assert check_site(site, folder) == []
    assert "[speed.md](speed.md)" in (folder / "README.md").read_text()
    assert "| unidec | step |" in (folder.parent / "docs" / "scale.md").read_text()
    changed = speed().updated({"scaling": suite(scaling_rows()[:2])})
    write_speed(folder / "speed.json", changed)
    faults = check_site(make_site(read_evidence(folder)), folder)
    for part in ("speed.md is not", "tables/speed.csv is not", "figures/speed-step.png is not made", "docs/scale.md: "):
        assert any(fault.startswith(part) for fault in faults), faults
    (folder / "speed.json").unlink()
    faults = check_site(make_site(read_evidence(folder)), folder)
    assert "tables/speed.csv is not made from the records; remove it" in faults
    assert "README.md is not what the records give" in faults
    (folder / "speed.json").write_text("{}")
    with pytest.raises(DataError, match=re.escape("speed.json")):
        read_evidence(folder)


def test_suites_are_measured_merged_and_reported(
    folder: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_speed(folder / "speed.json", Speed(suites={"losses": suite(training_rows()[:1])}))
    assert call("perf", "training", "parsing", "scaling", "--write", "--folder", str(folder)) == 1
    out, err = capsys.readouterr()
    assert measured == ["training", "parsing", "scaling"]
    assert "parsing (2 of 3)" in out
    assert "  met     UniDEC step, L = 131K: 200 ms (180 to 240); 7.50x against dense AdamW (1.50 s)" in out
    assert "          loss 40 %" in out
    assert "  failed  RuntimeError: the disk is on fire (test_perf_command.py, line" in err
    assert "missed      training: UniDEC step, 1.3M against 13K" in out
    assert "failed      parsing" in out
    assert "11 targets: 4 met, 7 missed; 7 figures are shown without one. 2 suites," in out
    kept = read_speed(folder / "speed.json")
    assert kept is not None
    assert list(kept.ordered) == ["training", "scaling", "losses"]
    assert kept.suites["losses"] == suite(training_rows()[:1])
    assert check_site(make_site(read_evidence(folder)), folder) == []


@pytest.mark.parametrize("form", ["json", "md", "tex", "html", "csv"])
def test_a_file_of_what_was_measured(form: str, tmp_path: Path, measured: list[str]) -> None:
    out = tmp_path / f"speed.{form}"
    assert call("perf", "training", "training", "--out", str(out)) == 0
    assert measured == ["training"]
    if form == "json":
        found = read_speed(out)
        assert found is not None
        assert found.rows == [replace(row, suite="training") for row in training_rows()]
    else:
        assert "dense AdamW" in out.read_text()


def test_a_session_that_is_stopped_keeps_what_it_measured(
    tmp_path: Path, measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up = perf.measure

    def stopped(suites: tuple[str, ...]) -> Iterator[Row]:
        if suites == ("scaling",):
            raise KeyboardInterrupt
        yield from made_up(suites)

    monkeypatch.setattr("harness.perf.measure", stopped)
    out = tmp_path / "speed.json"
    assert call("perf", "training", "scaling", "--out", str(out)) == 130
    found = read_speed(out)
    assert found is not None
    assert list(found.suites) == ["training"]


def test_a_failed_session_leaves_the_file_of_another_alone(tmp_path: Path, measured: list[str]) -> None:
    (tmp_path / "speed.md").write_text("before")
    assert call("perf", "parsing", "--out", str(tmp_path / "speed.md")) == 1
    assert (tmp_path / "speed.md").read_text() == "before"


def test_json_is_all_that_a_program_reads(measured: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("perf", "training", "--json") == 0
    told = capsys.readouterr()
    assert Speed.model_validate(json.loads(told.out)).rows == [
        replace(row, suite="training") for row in training_rows()
    ]
    assert "training (1 of 1)" in told.err


def test_suites_are_listed_without_being_imported(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("perf", "--list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["suite"] for one in listed] == list(SUITES)
    assert any("step" in one["about"] for one in listed)
    assert call("perf", "--list") == 0
    assert "what it measures" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trainin"], "did you mean 'training'?"),
        (["training", "--out", "speed.docx"], "name a file that ends in one of .json, .md"),
        (["training", "--out", f"{__file__}/speed.md"], "test_perf_command.py is no folder that can be written to"),
        (["training", "--write", "--folder", "nowhere"], "nowhere/runs has no records"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(
    arguments: list[str], said: str, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("perf", *arguments) == 2
    assert said in capsys.readouterr().err
    assert measured == []


def test_a_damaged_file_is_not_overwritten(
    folder: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "speed.json").write_text('{"schema": 1, "suites": 3}')
    assert call("perf", "training", "--write", "--folder", str(folder)) == 2
    assert "speed.json: suites: " in capsys.readouterr().err
    assert measured == []
    assert (folder / "speed.json").read_text() == '{"schema": 1, "suites": 3}'
