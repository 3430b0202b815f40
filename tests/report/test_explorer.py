"""The explorer's data: what is written is what was predicted, whatever the texts are, and nothing in it can run.

Browsers read it in `test_page_browser`.
"""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness.data import Dataset, load
from harness.data.ragged import Texts
from harness.errors import UserError
from harness.io.files import write_manifest
from harness.metrics import contributions
from harness.report import explorer as room
from harness.report.explorer import Written, build_explorer
from harness.report.explorer.predictions import rounded
from harness.report.explorer.shards import LARGEST, as_json, beginnings, numbers, rows_per_file
from harness.report.rows import default_settings
from harness.runs.record import read_record, write_record
from tests.support.damage import flip_bit
from tests.support.made_page import HOSTILE
from tests.support.row_runs import DATA, add_run, prepared


def arguments(script: Path) -> list[Any]:
    """What a script hands over, read without JavaScript: its call is stripped and the rest is JSON."""
    stripped = re.fullmatch(r"(harnessShard|harnessExplorer)\((.*)\);\n", script.read_bytes().decode("ascii"))
    assert stripped is not None
    given: list[Any] = json.loads(f"[{stripped[2]}]")
    return given


def manifest(folder: Path) -> dict[str, Any]:
    (about,) = arguments(folder / "manifest.js")
    assert isinstance(about, dict)
    return about


def gathered(folder: Path, kind: str, size: int) -> list[Any]:
    """All rows of one kind, from shards that follow each other and are full but for the last."""
    rows: list[Any] = []
    for number, path in enumerate(sorted(folder.glob(f"{kind}-[0-9][0-9][0-9].js"))):
        name, of, place, content, _ = arguments(path)
        assert (name, of, place, path.name) == (folder.name, kind, number, f"{kind}-{number:03}.js")
        assert len(rows) == number * size
        rows += list(zip(*content.values(), strict=True)) if isinstance(content, dict) else content
    return rows


def dataset(home: Path, texts: list[str], labels: list[str], seed: int = 0, name: str = "hostile") -> Dataset:
    """A prepared dataset of random labels."""
    generator = np.random.default_rng(seed)
    train, truth = (csr_array(generator.random((rows, len(labels))) < 3 / len(labels)) for rows in (40, len(texts)))
    return prepared(home, name, texts, truth, labels, train)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "reports" / "explorer"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.js")}


@pytest.fixture
def built(runs: Path, out: Path, workspace: Path) -> dict[str, bytes]:
    """The files of an explorer of one small run."""
    add_run(runs, dataset(workspace, ["a", "b"], list("uvwxyz")), "one")
    build_explorer([runs], out)
    return content(out)


def test_everything_that_was_predicted_can_be_read_back(runs: Path, out: Path, workspace: Path) -> None:
    """Against the run folder and a count by hand, over several shards."""
    data = dataset(workspace, [f"query {row}" for row in range(1203)], [f"l{k}" for k in range(30)])
    ids = np.argsort(np.random.default_rng(1).random((1203, 30)), axis=1)[:, :12]
    ids[7, 3:] = -1
    scores = np.random.default_rng(2).normal(size=ids.shape).astype(np.float32)
    scores[0, :4] = [np.nan, np.inf, -np.inf, 0]
    add_run(runs, data, "one", ids=ids, confidences=scores, about={"title": "<b>Hostile</b>"})
    metadata = build_explorer([runs], out)
    (about,) = manifest(out)["datasets"]
    place, size = out / about["folder"], about["shard_rows"]
    assert (about["rows"], about["labels"], about["title"]) == (1203, 30, "<b>Hostile</b>")
    assert gathered(place, "texts", size) == [f"query {row}" for row in range(1203)]
    truth = [sorted(np.flatnonzero(row).tolist()) for row in data.test.toarray()]
    assert gathered(place, "truth", size) == truth
    predicted = gathered(place, "r0", size)
    assert [row for row, _ in predicted] == ids[:, :10].tolist()
    for row, (_, shown) in enumerate(predicted):
        exact = [
            float(f"{value:.5g}") if np.isfinite(value) and label >= 0 else None
            for value, label in zip(scores[row, :10].astype(float), ids[row], strict=False)
        ]
        assert shown == exact
    hits = arguments(place / "r0-hits.js")[3]
    bits = ["ABCDEFGHIJKLMNOPQRSTUVWXYZ234567".index(character) for character in hits]
    assert bits == [sum(1 << i for i in range(5) if ids[row, i] in truth[row]) for row in range(1203)]
    assert about["runs"][0]["metrics"]["P@1"] == pytest.approx(100 * np.mean([bit & 1 for bit in bits]), abs=1e-3)
    assert metadata == Written({"hostile": ("one",)}, len(content(out)), sum(map(len, content(out).values())), ())


def test_labels_have_the_bins_of_the_record(runs: Path, out: Path, workspace: Path) -> None:
    data = dataset(workspace, ["a", "b"], [f"label {k}" for k in range(37)])
    add_run(runs, data, "one")
    build_explorer([runs], out)
    (about,) = manifest(out)["datasets"]
    entries = gathered(out / "d0", "labels", about["shard_labels"])
    assert [entry[0] for entry in entries] == [f"label {k}" for k in range(37)]
    assert [entry[1] for entry in entries] == data.train.sum(axis=0).tolist()
    for place, of_bin in enumerate(contributions(np.zeros((2, 5), int), data.test, data.train)):
        in_bin = [train_rows for _, train_rows, group in entries if group == place]
        assert (len(in_bin), sum(in_bin)) == (of_bin["labels"], of_bin["train_pairs"])
        assert min(in_bin) >= (about["head"], about["torso"], 0)[place]
    assert about["head"] == min(train_rows for _, train_rows, group in entries if group == 0)
    assert about["torso"] == min(train_rows for _, train_rows, group in entries if group == 1)


def test_a_script_is_one_call_whatever_is_in_it(runs: Path, out: Path, workspace: Path) -> None:
    """Fault 44, fault 64: texts, labels, methods and settings are hostile at once."""
    data = dataset(workspace, list(HOSTILE), list(HOSTILE))
    for place, text in enumerate(HOSTILE[:4]):
        add_run(runs, data, f"run{place}", config={"method": text, "encoder": text}, about={"title": text})
    build_explorer([runs], out)
    scripts = {str(path.relative_to(out)): arguments(path) for path in out.rglob("*.js")}
    assert len(scripts) > 10
    assert scripts["d0/texts-000.js"][3] == list(HOSTILE)
    shown = [entry[0] for entry in scripts["d0/labels-000.js"][3]]
    assert shown == [text if text.strip() else f"id{place}" for place, text in enumerate(HOSTILE)]
    assert [run["method"] for run in manifest(out)["datasets"][0]["runs"]] == sorted(HOSTILE[:4])


@given(st.text(st.characters(categories=None), max_size=50) | st.sampled_from(HOSTILE))
@example("\ud800 \udfff lone")
def test_any_text_is_safe_inside_a_script(text: str) -> None:
    written = as_json({"text": [text]})
    assert json.loads(written) == {"text": [text]}
    assert written.isascii()
    assert not re.search(r"[<>&\x00-\x1f\x7f]", written)


@pytest.mark.parametrize("character", ["x", "é", "語", "\U0001f600", "\udc80"])
def test_a_long_text_is_cut_and_any_bytes_are_read(character: str) -> None:
    """Fault 44: a text of a megabyte, and invalid UTF-8."""
    shown = "?" if character == "\udc80" else character
    texts = Texts.from_strings([character * 300, character * 301, character * 2**20, ""])
    assert beginnings(texts, 4) == [shown * 300, shown * 300 + "…", shown * 300 + "…", ""]
    column = [b"\xff\xfe", "é".encode()[:1], b"a\x00b"]
    odd = Texts(
        np.frombuffer(b"".join(column), np.uint8), np.concatenate([[0], np.cumsum([len(row) for row in column])])
    )
    assert beginnings(odd, 3) == [row.decode("utf-8", "replace") for row in column]


@given(st.floats(width=32) | st.floats(-100, 100, width=32) | st.sampled_from([0.0, 1e-45, 9.99995, -99999.5, 1e38]))
def test_scores_have_five_digits(score: float) -> None:
    score = float(np.float32(score))
    (shown,) = json.loads(numbers(rounded(np.array([score], np.float32))))
    if not np.isfinite(score):
        assert shown is None
        return
    assert shown == pytest.approx(score, rel=0.5001e-4, abs=0)
    if 1e-17 < abs(score) < 1e20:
        assert float(f"{shown:.4e}") == shown


@given(st.lists(st.integers(1, LARGEST // 2), min_size=1, max_size=60), st.integers(1, 40))
def test_files_stay_small(row_bytes: list[int], usual: int) -> None:
    def largest(size: int) -> int:
        return max(sum(row_bytes[first : first + size]) for first in range(0, len(row_bytes), size))

    candidates = [usual >> halvings for halvings in range(10) if usual >> halvings]
    expected = next((size for size in candidates if largest(size) <= LARGEST), 1)
    assert rows_per_file(np.array(row_bytes), usual) == expected


def test_long_texts_go_into_more_files(runs: Path, out: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 44: characters that take twelve bytes each once they are escaped."""
    monkeypatch.setattr("harness.report.explorer.predictions.PER_ROW", 100)
    texts = [f"{row:04}" + "\U0001f600" * (1000 if row % 2 else 200) for row in range(300)]
    data = dataset(workspace, texts, texts)
    add_run(runs, data, "one", ids=np.tile(np.arange(100), (300, 1)))
    build_explorer([runs], out)
    assert max(path.stat().st_size for path in out.rglob("*.js")) <= 400_000
    (about,) = manifest(out)["datasets"]
    assert max(about["shard_rows"], about["shard_labels"]) < 500
    shown = gathered(out / "d0", "texts", about["shard_rows"])
    assert shown == [text if len(text) <= 300 else text[:300] + "…" for text in texts]
    assert [entry[0] for entry in gathered(out / "d0", "labels", about["shard_labels"])] == shown
    assert len(gathered(out / "d0", "r0", about["shard_rows"])) == 300


def test_few_predictions_are_filled_up_and_many_rows_are_cut(
    runs: Path, out: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "ROWS", 7)
    data = dataset(workspace, [f"q{row}" for row in range(20)], [f"l{k}" for k in range(9)])
    add_run(runs, data, "one")
    left_out = build_explorer([runs], out).left_out
    (about,) = manifest(out)["datasets"]
    assert (about["rows"], about["all_rows"], len(left_out)) == (7, 20, 1)
    shown = gathered(out / "d0", "r0", 500)
    assert len(shown) == len(gathered(out / "d0", "texts", 500)) == len(arguments(out / "d0/r0-hits.js")[3]) == 7
    assert all(ids[5:] == [-1] * 5 and scores[5:] == [None] * 5 for ids, scores in shown)


def test_one_run_of_each_method_and_encoder(runs: Path, out: Path) -> None:
    """Own settings before newer ones that were changed, then the lowest seed, then the newest; no trial, no failure."""
    data = load(DATA)
    usual = default_settings("unidec", data.name)
    assert usual is not None
    params = {"beta": usual["params.beta"], "optimiser_table": usual["params.optimiser_table"]}
    own: dict[str, Any] = {"method": "unidec", "params": params}
    other: dict[str, Any] = {"method": "unidec", "params": {**params, "beta": params["beta"] + 1}}
    add_run(runs, data, "old", config=own, seed=1)
    add_run(runs, data, "newer", config=own, seed=1)
    add_run(runs, data, "seed2", config=own, seed=2)
    add_run(runs, data, "changed", config=other, seed=0)
    add_run(runs, data, "encoder", config={**other, "encoder": "bag"}, seed=3)
    add_run(runs, data, "foreign", config={"method": "alpha"}, seed=4)
    add_run(runs, data, "trial", config={**own, "evaluate": "validation"}, seed=0)
    add_run(runs, data, "failed", config=own, seed=0, status="failed")
    assert build_explorer([runs], out).datasets == {data.name: ("foreign", "encoder", "newer")}
    described = manifest(out)["datasets"][0]["runs"]
    assert [run["settings"] for run in described] == ["", f"beta={other['params']['beta']}", ""]
    assert [run["run"] for run in described] == ["r0", "r1", "r2"]


def test_runs_of_other_data_do_not_stand_side_by_side(runs: Path, out: Path, workspace: Path) -> None:
    """Fault 62."""
    data = dataset(workspace, ["a", "b"], list("uvwxyz"))
    other = dataset(workspace, ["c", "d"], list("uvwxyz"), seed=1)
    add_run(runs, data, "a", config={"method": "a"})
    add_run(runs, data, "b", config={"method": "b"})
    add_run(runs, other, "c", config={"method": "c"})
    add_run(runs, data, "d", config={"method": "d"}, about={"filter": False})
    metadata = build_explorer([runs], out)
    assert metadata.datasets == {"hostile": ("a", "b")}
    assert len(metadata.left_out) == 1
    assert "2 runs" in metadata.left_out[0]
    assert arguments(out / "d0/texts-000.js")[3] == ["a", "b"]


def test_data_that_is_not_prepared_is_left_out(runs: Path, out: Path, workspace: Path, built: dict[str, bytes]) -> None:
    shutil.rmtree(workspace / "cache")
    metadata = build_explorer([runs], out, datasets=["hostile", "none"])
    assert (metadata.datasets, metadata.files, metadata.bytes) == ({}, 0, 0)
    assert "`python -m harness data prepare hostile`" in metadata.left_out[0]
    assert "`python -m harness run --dataset none`" in metadata.left_out[1]
    assert content(out) == built
    assert not (workspace / "cache").exists()


def test_a_damaged_run_is_left_out_and_named(runs: Path, out: Path, workspace: Path) -> None:
    """Faults 67 and 68: a pickle, one bit, cut off, of another shape or dataset, or not those of its record."""
    data = dataset(workspace, [f"q{row}" for row in range(30)], [f"l{k}" for k in range(9)])
    bad = ["cut", "flat", "flip", "other", "outside", "pickle", "short"]
    for name in (*bad, "whole"):
        add_run(runs, data, name, config={"method": name})
    (runs / "cut/ids.npy").write_bytes((runs / "cut/ids.npy").read_bytes()[:200])
    np.save(runs / "flat/ids.npy", np.zeros(30, np.int32))
    for name in ("ids", "scores"):
        np.save(runs / f"short/{name}.npy", np.load(runs / f"short/{name}.npy")[:29])
    np.save(runs / "outside/ids.npy", np.full((30, 5), 9, np.int32))
    np.save(runs / "pickle/ids.npy", np.array([[{}]]), allow_pickle=True)
    record = read_record(runs / "other")
    write_record(runs / "other", record.model_copy(update={"metrics": {**record.metrics, "P@3": 99.0}}))
    for name in bad:
        write_manifest(runs / name, {})  # as somebody would who can write the folder
    flip_bit(runs / "flip/scores.npy", 5)
    metadata = build_explorer([runs], out)
    assert metadata.datasets == {"hostile": ("whole",)}
    assert sorted(re.findall(r"run (\w+) is left out", " ".join(metadata.left_out))) == bad
    assert any("but the record says 99.00" in sentence for sentence in metadata.left_out)


def builds(folder: Path) -> set[str]:
    """The builds of all scripts of a folder, which the manifest must name."""
    named = {entry["folder"]: entry["build"] for entry in manifest(folder)["datasets"]}
    for script in folder.glob("d*/*.js"):
        assert arguments(script)[4] == named[script.parent.name]
    return set(named.values())


def test_a_build_replaces_the_earlier_one_and_every_script_names_it(runs: Path, out: Path, workspace: Path) -> None:
    """Fault 63: equal runs give equal bytes; other scores, one more run and other texts give another build."""
    data = dataset(workspace, ["a", "b", "c"], list("uvwxyz"))
    add_run(runs, data, "one", config={"method": "one"})
    build_explorer([runs], out)
    build_explorer([runs], out.with_name("again"))
    assert content(out) == content(out.with_name("again"))
    seen = [builds(out)]
    scores = np.load(runs / "one/scores.npy")
    np.save(runs / "one/scores.npy", scores - 1)
    write_manifest(runs / "one", {})
    build_explorer([runs], out)
    seen.append(builds(out))
    add_run(runs, data, "two", config={"method": "two"})
    build_explorer([runs], out)
    seen.append(builds(out))
    add_run(runs, dataset(workspace, ["d"] * 1001, list("uvwxyz"), name="large"), "three")
    build_explorer([runs], out)
    assert len(set.union(*seen, builds(out))) == 4
    assert sorted(entry["name"] for entry in manifest(out)["datasets"]) == ["hostile", "large"]
    build_explorer([runs], out, datasets=["large"])
    assert (out / "d0/texts-001.js").exists()
    build_explorer([runs], out, datasets=["hostile"])
    assert not (out / "d1").exists()
    assert not (out / "d0/texts-001.js").exists()
    assert sorted(path.name for path in out.parent.iterdir()) == ["again", "explorer"]


def test_builds_at_one_time_take_turns(runs: Path, out: Path, built: dict[str, bytes]) -> None:
    with ThreadPoolExecutor(4) as pool:
        metadata = list(pool.map(lambda _: build_explorer([runs], out), range(6)))
    assert {one.files for one in metadata} == {len(built)}
    assert content(out) == built
    assert [path.name for path in out.parent.iterdir()] == ["explorer"]


def test_a_failure_leaves_what_was_there(
    runs: Path, out: Path, built: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(folder: Path, *_: Any) -> None:
        folder.mkdir()
        (folder / "texts-000.js").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "write_dataset", full_disk)
    with pytest.raises(OSError, match="No space left"):
        build_explorer([runs], out)
    assert content(out) == built
    assert [path.name for path in out.parent.iterdir()] == ["explorer"]


@pytest.mark.usefixtures("built")
def test_a_folder_of_somebody_else_is_not_replaced(runs: Path, out: Path) -> None:
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds 'thesis\.tex', which the explorer did not write"):
        build_explorer([runs], out)
    (out / "manifest.js").unlink()
    (out / "thesis.tex").rename(out.parent / "thesis.tex")
    with pytest.raises(UserError, match="holds 'd0'"):
        build_explorer([runs], out)
    with pytest.raises(UserError, match="is a file"):
        build_explorer([runs], out.parent / "thesis.tex")
