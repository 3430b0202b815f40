"""Measured speed on disk: written and read, merged, and refused where it does not hold together."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import DataError, UserError
from harness.perf import Sample, bound
from harness.perf.saved import Machine, Speed, Suite, about, read_speed, write_speed
from tests.speed_rows import scaling_rows, speed, suite, training_rows

ROOT = Path(__file__).parents[1]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    before = speed()
    write_speed(tmp_path / "speed.json", before)
    after = read_speed(tmp_path / "speed.json")
    assert after == before
    assert after is not None
    assert after.rows == [replace(row, suite="training") for row in training_rows()] + [
        replace(row, suite="scaling") for row in scaling_rows()
    ]
    assert json.loads((tmp_path / "speed.json").read_text())["schema"] == 1
    assert read_speed(tmp_path / "none.json") is None


def test_a_suite_replaces_itself_and_leaves_the_others() -> None:
    before = speed()
    other = suite(training_rows()[:1], commit="cd" * 20)
    after = before.updated({"training": other, "losses": other})
    assert after.suites["training"] == after.suites["losses"] == other
    assert after.suites["scaling"] == before.suites["scaling"]
    assert list(Speed(suites={"zzz": other, **after.suites}).ordered) == ["training", "scaling", "losses", "zzz"]
    assert before == speed()


def test_a_measurement_knows_its_machine(tmp_path: Path) -> None:
    one = Suite.of("training", training_rows(), 1.25)
    assert one.about == about("training") != ""
    assert one.machine.cores >= 1
    assert "torch" in one.machine.packages
    index = tmp_path / "sys/devices/system/cpu/cpu0/cache/index2"
    index.mkdir(parents=True)
    for name, text in (("level", "2\n"), ("type", "Unified\n"), ("size", "512K\n")):
        (index / name).write_text(text)
    (index.parent / "index3").mkdir()
    assert Machine.here(tmp_path).caches == {"L2": "512K"}
    assert Machine.here(tmp_path / "nowhere").caches == {}
    assert about("no_such_suite") == ""
    with pytest.raises(ValueError, match="finite"):
        Suite.of("training", [bound("x", "y", Sample((math.nan,), "s"))], 1.0)


def changed(place: list[Any], value: Any) -> dict[str, Any]:
    """The file with one value put elsewhere; no value removes the key."""
    values = speed().as_json()
    inner: Any = values
    for part in place[:-1]:
        inner = inner[part]
    if value is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return values


ROW = ["suites", "training", "rows", 0]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (["schema"], 2, "schema 2, this harness reads 1"),
        (["schema"], None, "schema None"),
        (["suits"], {}, "unknown key; did you mean 'suites'"),
        (["suites", "training", "comit"], "x", "unknown key; did you mean 'commit'"),
        (["suites", "training", "measured"], "yesterday", "measured: "),
        (["suites", "training", "measured"], None, "measured: Field required"),
        (["suites", "training", "seconds"], -1.0, "seconds: "),
        (["suites", "training", "machine", "cores"], "2", "machine.cores: "),
        (["suites", "../evil"], {}, "suites.../evil"),
        ([*ROW, "ours", "values"], [], "ours.values: "),
        ([*ROW, "ours", "values"], [1.0, "2"], "ours.values.1: "),
        ([*ROW, "ours", "values"], [True], "ours.values.0: "),
        ([*ROW, "ours", "unit"], "B", "ours is in 'B', the reference in 's'"),
        ([*ROW, "target", "way"], "about", "target.way: "),
        ([*ROW, "ratio"], None, "ratio: Field required"),
        ([*ROW, "what"], "\ud800", "surrogates not allowed"),
        ([*ROW, "at"], {"labels": [1]}, "at.labels"),
    ],
)
def test_nonsense_is_refused_with_its_place(place: list[Any], value: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    file.write_text(json.dumps(changed(place, value)))
    with pytest.raises(DataError) as told:
        read_speed(file)
    assert said in str(told.value)
    assert "speed.json" in str(told.value)


@pytest.mark.parametrize("text", ["", "[", '{"schema": 1, "suites": {"a": NaN}}', "3", "[]", "\xff"])
def test_text_that_is_no_measurement(text: str, tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=re.escape("speed.json")):
        read_speed(tmp_path / "speed.json")


def test_a_row_without_its_ratio_does_not_hold_together(tmp_path: Path) -> None:
    values = changed([*ROW, "theirs"], None)
    values["suites"]["training"]["rows"][0]["theirs"] = None
    (tmp_path / "speed.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match="both a reference's figure and a ratio"):
        read_speed(tmp_path / "speed.json")
