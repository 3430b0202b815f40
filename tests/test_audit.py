"""The audit of dependencies: a made-up list, a made-up project, and our own."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import audit, doctor
from harness.audit import Advisory, known_holes, read_advisories
from harness.errors import DataError
from tests.commands import call

ROOT = Path(__file__).parents[1]
HOLE = Advisory(package="Sieve.Lib", id="CVE-2099-1", what="water runs through", fixed="2.10")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose floor and pin of one package are given by a test."""
    (tmp_path / "pyproject.toml").write_text(
        """
        [build-system]
        requires = ["builder>=1"]
        [project]
        dependencies = ["sieve-lib[fine]>=2.9,<3; python_version > '3'", "other"]
        [project.optional-dependencies]
        dev = ["tester~=3.1"]
        """
    )
    (tmp_path / "constraints.txt").write_text("# pinned\nsieve_lib==2.9.1  # a sieve\nother==1.0\nnumpy==2.0\n")
    return tmp_path


def told(advisories: list[Advisory], root: Path) -> list[tuple[str, str]]:
    return [(hole.where, hole.version) for hole in known_holes(advisories, root)]


def test_floors_and_pins_with_holes_are_found(project: Path) -> None:
    assert told([HOLE], project) == [("pyproject.toml", "2.9"), ("constraints.txt", "2.9.1")]
    assert told([HOLE.model_copy(update={"fixed": "2.9.1"})], project) == [("pyproject.toml", "2.9")]
    assert told([HOLE.model_copy(update={"fixed": "2.9"})], project) == []
    text = (project / "constraints.txt").read_text()
    (project / "constraints.txt").write_text(text.replace("2.9.1", "2.10.0"))
    assert told([HOLE], project) == [("pyproject.toml", "2.9")]
    (first,) = map(str, known_holes([HOLE], project))
    assert first.startswith("pyproject.toml: sieve-lib 2.9: CVE-2099-1, water runs through; raise it in pyproject.toml")


@pytest.mark.parametrize(
    ("package", "fixed", "where"),
    [("builder", "1.1", "pyproject.toml"), ("tester", "3.2", "pyproject.toml"), ("other", "0.1", "pyproject.toml")],
)
def test_build_tools_extras_and_missing_floors_count(package: str, fixed: str, where: str, project: Path) -> None:
    found = known_holes([HOLE.model_copy(update={"package": package, "fixed": fixed})], project)
    assert [hole.where for hole in found] == [where]
    if package == "other":
        assert "without a lowest version" in str(found[0])
        assert found[0].fix == "write 'other>=0.1' in pyproject.toml"


def test_what_is_installed_counts_where_it_is_ours(project: Path) -> None:
    numpy = HOLE.model_copy(update={"package": "numpy", "fixed": "999"})
    installed = [hole for hole in known_holes([numpy], project) if hole.where == "installed"]
    assert [hole.fix for hole in installed] == ["pip install --upgrade 'numpy>=999'"]
    torch = HOLE.model_copy(update={"package": "torch", "fixed": "999"})  # not pinned in this project
    assert told([torch], project) == []
    assert told([torch], project / "nowhere")[0][0] == "installed"


@pytest.mark.parametrize(
    ("pin", "version"),
    [
        ("sieve-lib==2.*", "2.*"),
        ("sieve-lib==2.9.1 ; python_version>'3'", "2.9.1"),
        ("sieve-lib[fine]==2.9.1 --hash=sha256:00", "2.9.1"),
        ("sieve-lib==2.9.1 \\\n    --hash=sha256:00", "2.9.1"),
        ("-r more.txt\n\nsieve-lib === 0.0.0-unknown  # ours", "0.0.0-unknown"),
        ("sieve-lib==2.10.*", None),
        ("sieve-lib==2.10 ; python_version>'3'", None),
        ("sieve-lib>=1", None),
    ],
)
def test_pins_are_read_as_pip_reads_them(pin: str, version: str | None, project: Path) -> None:
    (project / "constraints.txt").write_text(f"{pin}\n")
    (project / "pyproject.toml").unlink()
    assert told([HOLE], project) == ([("constraints.txt", version)] if version else [])


def test_wildcards_of_floors_count_as_their_lowest_version(project: Path) -> None:
    (project / "pyproject.toml").write_text("[project]\ndependencies = ['sieve-lib==2.*', 'other===soon']")
    other = HOLE.model_copy(update={"package": "other", "fixed": "0.1"})
    assert told([HOLE, other], project)[:2] == [("pyproject.toml", "2.*"), ("pyproject.toml", "soon")]


@pytest.mark.parametrize("version", ["0.0.0-unknown", None])
def test_what_is_installed_may_have_no_version(
    version: str | None, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy = HOLE.model_copy(update={"package": "numpy", "fixed": "1.0"})
    monkeypatch.setattr(audit, "distributions", lambda: [SimpleNamespace(name="numpy", version=version)])
    (hole,) = map(str, known_holes([numpy], project))
    assert hole.startswith(f"installed: numpy {version or 'unknown'} (no version, so it may have every hole): CVE-2099")
    assert hole.endswith("pip install --upgrade 'numpy>=1.0'")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pyproject.toml", b"[project\n", "pyproject.toml: not valid TOML"),
        ("pyproject.toml", b"\xff", "pyproject.toml: not UTF-8"),
        ("pyproject.toml", b"project = 3", "pyproject.toml: its requirements are not lists of text"),
        ("pyproject.toml", b"[project]\ndependencies = [['a']]", "pyproject.toml: its requirements are not lists"),
        ("pyproject.toml", b"[project]\ndependencies = ['a b', 'c']", "pyproject.toml: 'a b' is no requirement"),
        ("pyproject.toml", b"[project]\ndependencies = [3]", "pyproject.toml: 3 is no requirement"),
        ("constraints.txt", b"numpy==2.0\n\nsieve-lib==soon\n", "constraints.txt:3: 'sieve-lib==soon' is no"),
        ("constraints.txt", b"\xff", "constraints.txt: not UTF-8"),
    ],
)
def test_a_broken_file_is_one_line(
    name: str,
    content: bytes,
    message: str,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (project / name).write_bytes(content)
    monkeypatch.setattr(audit, "known_holes", lambda advisories: known_holes(advisories, project))
    assert audit.main() == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"{project}/{message}")
    assert shown.err.count("\n") == 1


def test_our_own_list_is_sound_and_nothing_of_ours_is_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    advisories = read_advisories()
    assert len({(one.package, one.id) for one in advisories}) == len(advisories) > 50
    assert [str(hole) for hole in known_holes(advisories)] == []
    assert audit.main() == 0
    assert f"{len(advisories)} known holes looked for: 0 found" in capsys.readouterr().out
    pinned = {audit._plain(package) for _, package, _ in audit._pins(ROOT)} | {"setuptools"}
    assert {audit._plain(one.package) for one in advisories} <= pinned


def test_a_hole_ends_the_audit_and_shows_in_doctor(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "read_advisories", lambda: [HOLE])
    monkeypatch.setattr(audit, "known_holes", lambda advisories: known_holes(advisories, project))
    assert audit.main() == 1
    shown = capsys.readouterr()
    assert "constraints.txt: sieve_lib 2.9.1: CVE-2099-1" in shown.err
    assert "2 found" in shown.out
    monkeypatch.setattr(doctor, "read_advisories", lambda: [HOLE])
    monkeypatch.setattr(doctor, "known_holes", lambda advisories: known_holes(advisories, project))
    assert call("doctor", "--json") == 1
    (finding,) = [one for one in json.loads(capsys.readouterr().out) if one["what"] == "known holes"]
    assert (finding["state"], "CVE-2099-1" in finding["detail"]) == ("broken", True)
    assert "and 1 more: python -m harness.audit" in finding["detail"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("advisories: []", "expected a list"),
        ("holes: []", "expected a list"),
        ("advisories: [{package: a, id: b, what: c, fixed: 1.5}]", "fixed"),
        ("advisories: [{package: a, id: b, what: c, fixed: soon}]", "a version in quotes"),
        ("advisories: [{package: a, id: b, fixed: '1'}]", "what"),
    ],
)
def test_a_faulty_list_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(DataError, match=message):
        read_advisories(tmp_path / "a.yaml")
