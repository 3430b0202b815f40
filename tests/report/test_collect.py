"""Gathering results: what is kept of runs, studies and datasets, that it reads back, and what is refused."""

import json
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness.data import Dataset, load
from harness.data.ragged import Texts
from harness.errors import DataError
from harness.io.files import read_json, write_json, write_manifest
from harness.report.collect import Collected, collect, read_study
from harness.report.earlier import read_earlier, read_rows
from harness.report.neighbours import EXAMPLES, SHOWN, find_neighbours
from harness.report.results import ROWS, Neighbours, Results, Study, read_results, run_rows
from harness.runs.record import RunRecord, checked_record, read_record, write_record
from tests.support.commands import call
from tests.support.row_runs import DATA, add_run, add_scorers


@pytest.fixture
def dataset(workspace: Path) -> Dataset:
    return load(DATA)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "reports"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_only_finished_test_runs_are_kept_each_once(dataset: Dataset, runs: Path, out: Path) -> None:
    add_run(runs, dataset, "a0")
    add_run(runs, dataset, "failed", status="failed", error="no memory")
    add_run(runs, dataset, "trial", config={"evaluate": "validation"})
    (runs / "begun").mkdir()
    (runs / "begun" / "events.jsonl").write_text("{}\n")
    add_run(runs.with_name("copies"), dataset, "a0")
    found = collect([runs, runs, runs.with_name("copies")], None, [], out)
    assert found.runs == 1
    (copy,) = found.left_out
    assert "second one" in copy
    assert [*contents(out)] == [f"results/{dataset.name}.parquet"]
    (kept,) = read_results(out).records
    assert kept.model_dump() == read_record(runs / "a0").model_dump()


def test_rows_read_back_as_the_run_folder_has_them(dataset: Dataset, runs: Path, out: Path) -> None:
    """The own scorer of a run is the one with its metrics, not the first by name."""
    record = add_scorers(add_run(runs, dataset, "a0", skill=0.7), dataset, 0.3)
    add_run(runs, dataset, "b0", seed=1)
    assert collect([runs / "a0", runs], None, [], out).runs == 2
    stored, folders = read_results(out), Results((record,), folders=(runs,))
    names, own = record.per_row, np.load(runs / "a0" / "per_row.npy")
    other = np.load(runs / "a0" / "per_row.clf.npy")
    for column in ROWS:
        for scorer, expected in ((None, own), ("own", own), ("clf", other)):
            for results in (stored, folders):
                rows = results.rows(record, scorer, column)
                assert rows is not None
                np.testing.assert_array_equal(rows, expected[:, names.index(column)])
    assert stored.rows(stored.records[1], None, "P@1") is not None
    assert stored.rows(record, None, "nDCG@1") is None
    assert stored.rows(record, "none such", "P@1") is None


def test_a_dataset_without_propensities_keeps_what_it_has(dataset: Dataset, runs: Path, out: Path) -> None:
    folder = add_run(runs, dataset, "a0")
    record, scores = read_record(folder), np.load(folder / "per_row.npy")
    names = [name for name in record.per_row if not name.startswith("PS")]
    np.save(folder / "per_row.npy", scores[:, [record.per_row.index(name) for name in names]])
    figures = {name: record.metrics[name] for name in names}
    write_record(folder, record.model_copy(update={"per_row": names, "metrics": figures}))
    write_manifest(folder, {})
    assert collect([runs], None, [], out).left_out == ()
    results = read_results(out)
    rows = results.rows(results.records[0], None, "P@5")
    np.testing.assert_array_equal(rows, scores[:, record.per_row.index("P@5")])
    assert results.rows(results.records[0], None, "PSP@5") is None


def test_the_same_runs_give_the_same_bytes(dataset: Dataset, runs: Path, out: Path, tmp_path: Path) -> None:
    """Fault 63."""
    add_run(runs, dataset, "a0")
    assert len(collect([runs], None, [dataset.name], out).written) == 2
    before = contents(out)
    for path in out.rglob("*.*"):
        os.utime(path, (1, 1))
    assert collect([runs], None, [dataset.name], out) == Collected(1, 0, 1, (), ())
    assert {path.stat().st_mtime for path in out.rglob("*.*")} == {1}
    collect([runs], None, [dataset.name], tmp_path / "again")
    assert contents(tmp_path / "again") == before


def test_runs_are_added_and_changed_ones_replaced(dataset: Dataset, runs: Path, out: Path) -> None:
    folder = add_run(runs, dataset, "a0")
    collect([runs], None, [], out)
    file = out / "results" / f"{dataset.name}.parquet"
    add_run(runs.with_name("more"), dataset, "b0", seed=1)
    assert collect([runs.with_name("more")], None, [], out).written == (file,)
    write_record(folder, read_record(folder).model_copy(update={"warnings": ["late"]}))
    assert collect([runs], None, [], out).written == (file,)
    (folder / "per_row.npy").unlink()
    lost = collect([runs], None, [], out)
    assert (len(lost.left_out), lost.written) == (1, ()), "scores stay when the run folder has lost them"
    kept = read_results(out)
    assert {one.run_id: one.warnings for one in kept.records} == {"a0": ["late"], "b0": []}
    assert all(kept.rows(one, None, "P@1") is not None for one in kept.records)


def earlier(folder: Path, run: Path) -> RunRecord:
    """A folder of reports as earlier versions wrote it: a file for each record, archive of rows, study and dataset."""
    record = read_record(run)
    values = record.model_dump(mode="json")
    del values["parent"]  # a field that did not exist then
    write_json(folder / "runs" / f"{record.run_id}.json", values)
    scores = {
        scorer: np.stack([rows[name] for name in ROWS], axis=1).astype(np.float32)
        for scorer in record.scorers or ("",)
        if (rows := run_rows(run, record, scorer))
    }
    np.savez_compressed(folder / "runs" / f"{record.run_id}.rows.npz", **scores)
    write_json(run.parent / "s/study.json", study_metadata([slot(0, "COMPLETE")], [0]))
    write_json(folder / "studies/s.json", read_study(run.parent / "s/study.json").model_dump(mode="json"))
    write_json(folder / "neighbours/lf-a.json", {"dataset": "lf-a", "digest": "d", "examples": []})
    return checked_record(values, "")


def test_a_folder_of_an_earlier_version_is_refused_and_converted(
    dataset: Dataset, runs: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_scorers(add_run(runs, dataset, "a0"), dataset, 0.3)
    record = earlier(out, runs / "a0")
    (out / "runs" / "damaged.json").write_text("{")
    assert read_results(out).records == ()
    assert call("report", "--runs", str(out / "runs")) == 2
    assert call("report", "--runs", str(out)) == 2
    assert capsys.readouterr().err.count(f"report --collect --folder {out}` converts them") == 3
    before = read_earlier(out)
    assert before.records == (record,)
    found = collect([], None, [], out)
    assert sorted(path.name for path in found.written) == sorted(
        (f"{dataset.name}.parquet", "neighbours.json", "studies.json")
    )
    after = read_results(out)
    assert (after.records, after.studies, after.neighbours) == (before.records, before.studies, before.neighbours)
    assert after.records[0].model_dump(exclude_unset=True) == record.model_dump(exclude_unset=True)
    for scorer in record.scorers:
        for column in ROWS:
            rows = after.rows(record, scorer, column)
            assert rows is not None
            np.testing.assert_array_equal(rows, run_rows(runs / "a0", record, scorer)[column])  # type: ignore[index]
    assert [path.name for path in out.iterdir() if path.name != "results"] == ["runs"], "what is damaged stays"
    assert "damaged.json" in capsys.readouterr().err


def test_a_folder_that_was_named_must_be_there(
    workspace: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("report", "--collect", "--runs", str(tmp_path / "typo"), "--folder", str(out)) == 2
    assert "typo" in capsys.readouterr().err
    assert not out.exists()


def test_rows_that_are_not_those_of_the_record_are_left_out(dataset: Dataset, runs: Path, out: Path) -> None:
    for name in ("gone", "other", "broken", "narrow", "half", "fine"):
        add_run(runs, dataset, name)
    (runs / "gone" / "per_row.npy").unlink()
    scores = np.load(runs / "other" / "per_row.npy")
    np.save(runs / "other" / "per_row.npy", scores + 1)
    write_manifest(runs / "other", {})
    (runs / "broken" / "per_row.npy").write_bytes(b"\x93NUMPY")
    np.save(runs / "narrow" / "per_row.npy", scores[:, :2])
    write_manifest(runs / "narrow", {})
    add_scorers(runs / "half", dataset, 0.5)
    (runs / "half" / "per_row.clf.npy").unlink()
    found = collect([runs], None, [], out)
    assert found.runs == 6
    assert [sentence.partition(":")[0] for sentence in found.left_out] == [
        f"rows of {name}" for name in ("broken", "gone", "half", "narrow", "other")
    ]
    kept = read_results(out)
    there = [one.run_id for one in kept.records if kept.rows(one, None, "P@1") is not None]
    assert there == ["fine"]
    assert all("\n" not in sentence for sentence in found.left_out)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda _: "{", "JSON"),
        (lambda _: '{"run_id": "x"}', "Field required"),
        (lambda record: json.dumps({**record, "run_id": "../../../elsewhere"}), "cannot be used"),
        (lambda record: json.dumps({**record, "seconds": float("nan")}), "finite number"),
    ],
)
def test_a_damaged_record_is_told_and_left_out(
    dataset: Dataset, runs: Path, out: Path, damage: Callable[[dict[str, Any]], str], reason: str
) -> None:
    add_run(runs, dataset, "good")
    file = add_run(runs, dataset, "bad") / "record.json"
    file.write_text(damage(json.loads(file.read_text())))
    found = collect([runs], None, [], out)
    assert found.runs == 1
    assert len(found.left_out) == 1
    assert reason in found.left_out[0]
    assert [one.run_id for one in read_results(out).records] == ["good"]


def slot(number: int, state: str, **metadata: Any) -> dict[str, Any]:
    values = [70.5 + number] if state in ("COMPLETE", "PRUNED") else None
    row = {"slot": number, "trial": number, "state": state, "values": values, "params": {"beta": number, "tau": 0.05}}
    return {**row, "seconds": 2.5, "run_id": f"r{number}", "reason": None, **metadata}


def study_metadata(slots: list[dict[str, Any]], best: list[int]) -> dict[str, Any]:
    config = {"encoder": "static", "seed": 3, "validation": {"size": 0.1, "metric": "P@1"}, "max_len": 32}
    config["params"] = {"beta": 3, "eta": 6, "tau": 0.05}
    space = {"beta": {"low": 1, "high": 6, "knobs": ["beta"]}, "tau": {"low": 0.02, "high": 0.1, "log": True}}
    dataset = {"name": "lf-a", "digest": "c" * 64}
    identity = {"config": config, "dataset": dataset, "space": space, "objective": ["P@1"]}
    about = {"study": "s", "id": "x", "method": "unidec", "dataset": "lf-a", "objectives": ["P@1"], "best": best}
    return {**about, "identity": identity, "search": {"sampler": "tpe", "pruner": "median"}, "slots": slots}


def test_a_study_keeps_its_ended_trials_by_slot(tmp_path: Path, out: Path) -> None:
    """A trial that was put back has another number in the database; `best` names slots."""
    slots = [slot(0, "COMPLETE"), slot(1, "PRUNED"), slot(2, "FAIL", seconds=None), slot(3, "RUNNING")]
    slots.append(slot(4, "COMPLETE", trial=20))
    write_json(tmp_path / "studies/mine/study.json", study_metadata(slots, [4]))
    write_json(tmp_path / "studies/new/study.json", study_metadata([slot(0, "WAITING")], []))
    (tmp_path / "studies/bad").mkdir()
    (tmp_path / "studies/bad/study.json").write_text("[]")
    found = collect([], tmp_path / "studies", [], out)
    assert (found.studies, len(found.written)) == (1, 1)
    assert [sentence.partition(":")[0] for sentence in found.left_out] == ["study bad", "study new"]
    study = read_results(out).studies[0]
    assert [(trial.number, trial.state, trial.values) for trial in study.trials] == [
        (0, "COMPLETE", {"P@1": 70.5}),
        (1, "PRUNED", {}),
        (2, "FAIL", {}),
        (4, "COMPLETE", {"P@1": 74.5}),
    ]
    assert study.best == [4]
    assert study.space == {"beta": {"low": 1, "high": 6}, "tau": {"low": 0.02, "high": 0.1, "log": True}}
    assert study.settings == {"encoder": "static", "pruner": "median", "sampler": "tpe", "seed": 3, "validation": 0.1}
    assert study.base is not None
    assert {"encoder": "static", "max_len": 32, "params.eta": 6}.items() <= study.base.items()
    assert not [key for key in study.base if key.startswith("validation.") or key in ("params.beta", "params.tau")]
    assert [Study.model_validate(one) for one in read_json(out / "results/studies.json")] == [study]


@pytest.mark.parametrize("lost", ["identity", "search", "slots", "objectives", "best"])
def test_a_study_of_another_shape_is_refused(tmp_path: Path, lost: str) -> None:
    metadata = study_metadata([slot(0, "COMPLETE")], [0])
    del metadata[lost]
    write_json(tmp_path / "s/study.json", metadata)
    with pytest.raises(DataError, match=r"study\.json"):
        read_study(tmp_path / "s/study.json")


def test_neighbours_come_from_the_prepared_folder_and_hold_no_text(dataset: Dataset, out: Path) -> None:
    found = collect([], None, [dataset.name, dataset.name, "lf-nowhere"], out)
    assert found.neighbours == 1
    assert "data prepare lf-nowhere" in found.left_out[0]
    kept = read_results(out).neighbours[dataset.name]
    assert kept.digest == dataset.digest
    assert kept == find_neighbours(dataset.name, dataset.digest, dataset.train, dataset.label_id, dataset.train_filter)
    assert kept.items > 0
    shown = {example.label for example in kept.examples}
    shown |= {neighbour.label for example in kept.examples for neighbour in example.neighbours}
    assert shown
    assert shown <= set(dataset.label_id)


def test_neighbours_are_those_of_the_data_that_runs_have(dataset: Dataset, runs: Path, out: Path) -> None:
    """Of two prepared versions of a dataset the one of the newest run; a longer name is another dataset."""
    folder = dataset.folder
    for name, digest in ((f"{dataset.name}-zzzz", "e" * 64), (f"{dataset.name}-x-aaaa", "f" * 64)):
        shutil.copytree(folder, folder.with_name(name))
        manifest = read_json(folder.with_name(name) / "manifest.json")
        del manifest["sealed"]
        write_manifest(folder.with_name(name), {**manifest, "digest": digest}, sealed=True)
    collect([], None, [dataset.name], out)
    assert read_results(out).neighbours[dataset.name].digest == "e" * 64
    add_run(runs, dataset, "a0")
    collect([runs], None, [dataset.name], out)
    assert read_results(out).neighbours[dataset.name].digest == dataset.digest


@pytest.mark.parametrize("name", ["../lf-a", "./mine", "synthetic:rows=50", ""])
def test_a_name_that_leads_elsewhere_is_left_out(name: str, out: Path) -> None:
    """A dataset may be called by a path or by options; the runs on it are kept all the same."""
    found = collect([], None, [name], out)
    assert "cannot be used" in found.left_out[0]
    assert not contents(out)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 12), st.floats(0.05, 0.9))
def test_neighbours_are_counted_right(seed: int, rows: int, labels: int, density: float) -> None:
    """Against a dense count: shares, order, and that no label is shown twice."""
    dense = (np.random.default_rng(seed).random((rows, labels)) < density).astype(np.float32)
    ids = [f"id{label}" for label in range(labels)]
    found = find_neighbours("lf-a", "d", csr_array(dense), Texts.from_strings(ids))
    both = dense.T @ dense
    assert isinstance(found, Neighbours)
    assert len(found.examples) <= EXAMPLES
    seen: list[str] = []
    for example in found.examples:
        own = ids.index(example.label)
        assert example.train_rows == both[own, own] >= 8
        shares = np.delete(both[own] / both[own, own], own)
        kept = [neighbour.share for neighbour in example.neighbours]
        np.testing.assert_allclose(kept, np.sort(shares[shares > 0.1])[::-1][:SHOWN], atol=1e-4)
        for neighbour in example.neighbours:
            assert neighbour.share == pytest.approx(both[own, ids.index(neighbour.label)] / both[own, own], abs=1e-4)
        seen += [example.label, *(neighbour.label for neighbour in example.neighbours)]
    assert len(seen) == len(set(seen))


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(20, 60), st.floats(0.02, 0.5))
def test_what_occurs_together_is_held_against_the_items_own_labels(
    seed: int, rows: int, labels: int, density: float
) -> None:
    """Against a loop over pairs; gandalf's targets at its usual delta, without the label itself."""
    generator = np.random.default_rng(seed)
    dense = (generator.random((rows, labels)) < density).astype(np.float32)
    same = np.arange(rows)[:, None] == generator.integers(0, rows, labels)
    same |= generator.random((rows, labels)) < 0.1 / rows  # with several rows a label does not tell which item it is
    found = find_neighbours("lf-a", "d", csr_array(dense), Texts.from_strings(["id"] * labels), csr_array(same))
    total = true = 0.0
    counted = [text for text in range(labels) if same[:, text].sum() == 1 and dense[:, text].any()]
    items = same.argmax(axis=0)
    for text in counted:
        for label in set(range(labels)) - {text}:
            share = float((dense[:, text] * dense[:, label]).sum()) / float(dense[:, text].sum())
            total += share if share > 0.1 else 0.0
            true += share if share > 0.1 and dense[items[text], label] else 0.0
    assert found.items == len(counted)
    assert found.true_share == (pytest.approx(true / total, abs=1e-4) if total and len(counted) >= 30 else None)


def test_neighbours_show_a_planted_group() -> None:
    """Label 0 has ten rows: nine with label 1, six with label 2, one with label 3, which is too few to be shown."""
    dense = np.zeros((40, 5), np.float32)
    dense[:10, 0] = dense[:9, 1] = dense[:6, 2] = dense[:1, 3] = dense[20:36, 4] = 1
    found = find_neighbours("lf-a", "d", csr_array(dense), Texts.from_strings(list("abcde")))
    assert [(example.label, example.train_rows) for example in found.examples] == [("a", 10)]
    assert [(other.label, other.share) for other in found.examples[0].neighbours] == [("b", 0.9), ("c", 0.6)]


def test_a_file_that_lost_bytes_is_refused(dataset: Dataset, runs: Path, out: Path) -> None:
    """fault 67: a Parquet file and an archive of an earlier version are read whole or refused"""
    record = earlier(out, add_run(runs, dataset, "a0"))
    file = out / "runs" / "a0.rows.npz"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + b"\xff" * 16 + whole[len(whole) // 2 + 16 :])
    with pytest.raises(DataError, match="not rows of a run"):
        read_rows(file)
    assert "rows of a0" in collect([], None, [], out).left_out[0]
    assert file.exists(), "nothing is removed that was not converted"
    file.write_bytes(whole)  # repaired: the rows are added to the record that is stored already
    assert collect([], None, [], out).left_out == ()
    assert not file.exists()
    assert read_results(out).rows(record, None, "P@1") is not None
    parquet = out / "results" / f"{dataset.name}.parquet"
    whole = parquet.read_bytes()
    for share in (0.2, 0.5, 0.8, 0.99):
        place = int(share * len(whole))
        for damaged in (whole[:place], whole[:place] + b"\xff" * 64 + whole[place + 64 :]):
            parquet.write_bytes(damaged)
            with suppress(DataError):  # bytes that nothing reads may be others
                assert read_results(out).records == (record,)


def test_what_cannot_be_read_is_not_written_over(dataset: Dataset, runs: Path, out: Path) -> None:
    """A damaged study, and a record of a later version."""
    add_run(runs, dataset, "a0")
    collect([runs], None, [], out)
    (file,) = (out / "results").glob("*.parquet")
    whole, table = file.read_bytes(), pq.read_table(file)
    record = {**json.loads(table["record"][0].as_py()), "schema_version": 2}
    place = table.schema.get_field_index("record")
    pq.write_table(table.set_column(place, "record", [[json.dumps(record)]]), file)
    for name in (file.name, "studies.json"):
        before = contents(out)
        add_run(runs, dataset, f"before-{name}", seed=1)
        with pytest.raises(DataError, match=rf"(?s){re.escape(name)}.*nothing was written"):
            collect([runs], None, [], out)
        assert contents(out) == before
        file.write_bytes(whole)
        (out / "results/studies.json").write_text('[{"name": "not a study"}]')


def test_two_at_once_lose_nothing(dataset: Dataset, tmp_path: Path, out: Path) -> None:
    places = [tmp_path / f"runs{number}" for number in range(4)]
    for number, place in enumerate(places):
        add_run(place, dataset, f"a{number}", seed=number)
    with ThreadPoolExecutor(len(places)) as pool:
        list(pool.map(lambda place: collect([place], None, [], out), places))
    assert {one.run_id for one in read_results(out).records} == {"a0", "a1", "a2", "a3"}


def test_a_flipped_bit_is_seen(dataset: Dataset, runs: Path, out: Path) -> None:
    """fault 68"""
    add_run(runs, dataset, "a0")
    collect([runs], None, [], out)
    (file,) = (out / "results").glob("*.parquet")
    content, metadata = bytearray(file.read_bytes()), pq.read_metadata(file)
    for column in ("record", "rows.list.element"):
        (chunk,) = (
            chunk
            for place in range(metadata.num_columns)
            if (chunk := metadata.row_group(0).column(place)).path_in_schema == column
        )
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        damaged = content.copy()
        damaged[start + chunk.total_compressed_size - 20] ^= 4
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="not a file of results"):
            read_results(out).rows(read_record(runs / "a0"), None, "P@1")
