"""Builds of the explorer: which files may be shown together."""

from pathlib import Path

import numpy as np

from harness.files import write_manifest
from harness.report.explorer import build_explorer
from tests.row_runs import add_run
from tests.test_explorer import arguments, manifest, prepared


def builds(folder: Path) -> set[str]:
    """The builds of all scripts of a folder, which the manifest must name."""
    named = {entry["folder"]: entry["build"] for entry in manifest(folder)["datasets"]}
    for script in folder.glob("d*/*.js"):
        assert arguments(script)[4] == named[script.parent.name]
    return set(named.values())


def test_every_script_says_of_which_build_it_is(tmp_path: Path, workspace: Path) -> None:
    """Equal for equal runs; another one for one more run, for other predictions of a run, and for other texts."""
    runs, out = tmp_path / "runs", tmp_path / "explorer"
    data = prepared(workspace, ["a", "b", "c"], list("uvwxyz"))
    add_run(runs, data, "one", config={"method": "one"})
    build_explorer([runs], out)
    (first,) = builds(out)
    build_explorer([runs], out)
    assert builds(out) == {first}
    scores = np.load(runs / "one/scores.npy")
    np.save(runs / "one/scores.npy", scores - 1)
    write_manifest(runs / "one", {})
    build_explorer([runs], out)
    (other_scores,) = builds(out)
    np.save(runs / "one/scores.npy", scores)
    write_manifest(runs / "one", {})
    add_run(runs, data, "two", config={"method": "two"})
    build_explorer([runs], out)
    (more,) = builds(out)
    add_run(runs, prepared(workspace, ["a", "b", "d"], list("uvwxyz"), name="renamed"), "three")
    build_explorer([runs], out)
    assert len(builds(out) | {first, other_scores, more}) == 4
