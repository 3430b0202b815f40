"""Gathering evidence: what is kept of runs, studies and datasets, that it reads back, and what is refused."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from harness import metrics
from harness.data import Dataset, load
from harness.data.ragged import Texts
from harness.errors import DataError
from harness.evaluation import label_weights
from harness.files import read_json, write_json, write_manifest
from harness.record import RunRecord, read_record, write_record
from harness.report.collecting import Collected, collect, read_study
from harness.report.collecting.neighbours import EXAMPLES, SHOWN, find_neighbours
from harness.report.evidence import ROWS, Evidence, Neighbours, Study, read_evidence, read_rows
from tests.row_runs import DATA, add_run, guesses


@pytest.fixture
def dataset(workspace: Path) -> Dataset:
    return load(DATA)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "reports"


def add_views(folder: Path, dataset: Dataset, skill: float) -> RunRecord:
    """Gives a run a second view, which comes before its own one by name."""
    weights, ids = label_weights(dataset), guesses(dataset.test, skill, 7)
    record = read_record(folder)
    rows = metrics.per_row(ids, dataset.test, weights)
    np.save(folder / "per_row.clf.npy", np.stack(list(rows.values()), axis=1).astype(np.float32))
    views = {"own": record.metrics, "clf": metrics.evaluate(ids, dataset.test, weights)}
    write_record(folder, record.model_copy(update={"views": views}))
    write_manifest(folder, {})
    return read_record(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_finished_test_runs_are_kept(dataset: Dataset, runs: Path, out: Path) -> None:
    add_run(runs, dataset, "a0")
    add_run(runs, dataset, "failed", status="failed", error="no memory")
    add_run(runs, dataset, "trial", config={"evaluate": "validation"})
    (runs / "begun").mkdir()
    (runs / "begun" / "events.jsonl").write_text("{}\n")
    found = collect([runs], None, [], out)
    assert (found.runs, found.left_out) == (1, ())
    assert sorted(contents(out)) == ["runs/a0.json", "runs/a0.rows.npz"]
    assert (out / "runs/a0.json").read_bytes() == (runs / "a0" / "record.json").read_bytes()


def test_rows_read_back_as_the_run_folder_has_them(dataset: Dataset, runs: Path, out: Path) -> None:
    """The own view of a run is the one with its metrics, not the first by name."""
    record = add_views(add_run(runs, dataset, "a0", skill=0.7), dataset, 0.3)
    add_run(runs, dataset, "b0", seed=1)
    assert collect([runs / "a0", runs], None, [], out).runs == 2
    stored, folders = read_evidence(out), Evidence((record,), folders=(runs,))
    names, own = record.per_row, np.load(runs / "a0" / "per_row.npy")
    other = np.load(runs / "a0" / "per_row.clf.npy")
    for column in ROWS:
        for view, expected in ((None, own), ("own", own), ("clf", other)):
            for evidence in (stored, folders):
                rows = evidence.rows(record, view, column)
                assert rows is not None
                np.testing.assert_array_equal(rows, expected[:, names.index(column)])
    assert stored.rows(stored.records[1], None, "P@1") is not None
    assert stored.rows(record, None, "nDCG@1") is None
    assert stored.rows(record, "none such", "P@1") is None


def test_a_dataset_without_propensities_keeps_what_it_has(dataset: Dataset, runs: Path, out: Path) -> None:
    folder = add_run(runs, dataset, "a0")
    record, scores = read_record(folder), np.load(folder / "per_row.npy")
    kept = [place for place, name in enumerate(record.per_row) if not name.startswith("PS")]
    np.save(folder / "per_row.npy", scores[:, kept])
    names = [record.per_row[place] for place in kept]
    figures = {name: value for name, value in record.metrics.items() if not name.startswith("PS")}
    write_record(folder, record.model_copy(update={"per_row": names, "metrics": figures}))
    write_manifest(folder, {})
    assert collect([runs], None, [], out).left_out == ()
    evidence = read_evidence(out)
    rows = evidence.rows(evidence.records[0], None, "P@5")
    assert rows is not None
    np.testing.assert_array_equal(rows, scores[:, record.per_row.index("P@5")])
    assert evidence.rows(evidence.records[0], None, "PSP@5") is None


def test_the_same_runs_give_the_same_bytes(dataset: Dataset, runs: Path, out: Path, tmp_path: Path) -> None:
    """Fault 63."""
    add_run(runs, dataset, "a0")
    assert len(collect([runs], None, [dataset.name], out).written) == 3
    before = contents(out)
    for path in out.rglob("*.*"):
        os.utime(path, (1, 1))
    assert collect([runs], None, [dataset.name], out) == Collected(1, 0, 1, (), ())
    assert {path.stat().st_mtime for path in out.rglob("*.*")} == {1}
    collect([runs], None, [dataset.name], tmp_path / "again")
    assert contents(tmp_path / "again") == before
    with zipfile.ZipFile(out / "runs/a0.rows.npz") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_only_content_counts_and_nothing_is_removed(dataset: Dataset, runs: Path, out: Path) -> None:
    """An archive that another zlib compressed is the same archive; a changed record is written anew."""
    folder = add_run(runs, dataset, "a0")
    collect([runs], None, [], out)
    archive, stream = out / "runs/a0.rows.npz", io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    archive.write_bytes(stream.getvalue())
    (out / "runs/older.json").write_text("{}")
    write_record(folder, read_record(folder).model_copy(update={"warnings": ["late"]}))
    assert collect([runs], None, [], out).written == (out / "runs/a0.json",)
    assert archive.read_bytes() == stream.getvalue()
    assert (out / "runs/older.json").exists()
    archive.write_bytes(b"PK not a zip")
    assert collect([runs], None, [], out).written == (archive,)


def test_rows_that_are_not_those_of_the_record_are_left_out(dataset: Dataset, runs: Path, out: Path) -> None:
    for name in ("gone", "other", "broken", "narrow", "half", "fine"):
        add_run(runs, dataset, name)
    (runs / "gone" / "per_row.npy").unlink()
    scores = np.load(runs / "other" / "per_row.npy")
    np.save(runs / "other" / "per_row.npy", scores + 1)
    (runs / "broken" / "per_row.npy").write_bytes(b"\x93NUMPY")
    np.save(runs / "narrow" / "per_row.npy", scores[:, :2])
    add_views(runs / "half", dataset, 0.5)
    (runs / "half" / "per_row.clf.npy").unlink()
    found = collect([runs], None, [], out)
    assert found.runs == 6
    assert [sentence.partition(":")[0] for sentence in found.left_out] == [
        f"rows of {name}" for name in ("broken", "gone", "half", "narrow", "other")
    ]
    assert [path.name for path in sorted((out / "runs").glob("*.npz"))] == ["fine.rows.npz"]
    assert all("\n" not in sentence for sentence in found.left_out)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "JSON"),
        ('{"run_id": "x"}', "Field required"),
        (None, "cannot be used"),
        ("nan", "finite number"),
    ],
)
def test_a_damaged_record_is_told_and_left_out(
    dataset: Dataset, runs: Path, out: Path, text: str | None, reason: str
) -> None:
    """Cut short, of another shape, with a name that leads elsewhere, or with a NaN."""
    good, bad = add_run(runs, dataset, "good"), add_run(runs, dataset, "bad")
    record = json.loads((bad / "record.json").read_text())
    if text is None:
        text = json.dumps({**record, "run_id": "../../../elsewhere"})
    elif text == "nan":
        text = json.dumps({**record, "seconds": float("nan")})
    (bad / "record.json").write_text(text)
    found = collect([runs], None, [], out)
    assert found.runs == 1
    assert len(found.left_out) == 1
    assert reason in found.left_out[0]
    assert sorted(contents(out)) == ["runs/good.json", "runs/good.rows.npz"]
    assert good.exists()


def test_two_folders_of_one_run_count_once(dataset: Dataset, runs: Path, out: Path) -> None:
    add_run(runs, dataset, "a0")
    add_run(runs.with_name("copies"), dataset, "a0")
    found = collect([runs, runs, runs.with_name("copies")], None, [], out)
    assert found.runs == 1
    assert "second one" in found.left_out[0]


def slot(number: int, state: str, **facts: Any) -> dict[str, Any]:
    values = [70.5 + number] if state in ("COMPLETE", "PRUNED") else None
    row = {"slot": number, "trial": number, "state": state, "values": values, "params": {"beta": number, "tau": 0.05}}
    return {**row, "seconds": 2.5, "run_id": f"r{number}", "reason": None, **facts}


def study_facts(slots: list[dict[str, Any]], best: list[int]) -> dict[str, Any]:
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
    write_json(tmp_path / "studies/mine/study.json", study_facts(slots, [4]))
    write_json(tmp_path / "studies/new/study.json", study_facts([slot(0, "WAITING")], []))
    (tmp_path / "studies/bad").mkdir()
    (tmp_path / "studies/bad/study.json").write_text("[]")
    found = collect([], tmp_path / "studies", [], out)
    assert (found.studies, len(found.written)) == (1, 1)
    assert [sentence.partition(":")[0] for sentence in found.left_out] == ["study bad", "study new"]
    study = read_evidence(out).studies[0]
    assert [(trial.number, trial.state, trial.values) for trial in study.trials] == [
        (0, "COMPLETE", {"P@1": 70.5}),
        (1, "PRUNED", {}),
        (2, "FAIL", {}),
        (4, "COMPLETE", {"P@1": 74.5}),
    ]
    assert study.best == [4]
    assert study.space == {"beta": {"low": 1, "high": 6}, "tau": {"low": 0.02, "high": 0.1, "log": True}}
    assert study.settings == {"encoder": "static", "pruner": "median", "sampler": "tpe", "seed": 3, "validation": 0.1}
    assert study.base == {"encoder": "static", "max_len": 32, "params.eta": 6}, "neither searched nor held out"
    assert Study.model_validate(read_json(out / "studies/mine.json")) == study


@pytest.mark.parametrize("lost", ["identity", "search", "slots", "objectives", "best"])
def test_a_study_of_another_shape_is_refused(tmp_path: Path, lost: str) -> None:
    facts = study_facts([slot(0, "COMPLETE")], [0])
    del facts[lost]
    write_json(tmp_path / "s/study.json", facts)
    with pytest.raises(DataError, match=r"study\.json"):
        read_study(tmp_path / "s/study.json")


def test_neighbours_come_from_the_prepared_folder_and_hold_no_text(dataset: Dataset, out: Path) -> None:
    found = collect([], None, [dataset.name, dataset.name, "lf-nowhere"], out)
    assert found.neighbours == 1
    assert "data prepare lf-nowhere" in found.left_out[0]
    kept = read_evidence(out).neighbours[dataset.name]
    assert kept.digest == dataset.digest
    assert kept == find_neighbours(dataset.name, dataset.digest, dataset.train, dataset.label_id, dataset.train_filter)
    assert kept.items > 0
    shown = {example.label for example in kept.examples}
    shown |= {neighbour.label for example in kept.examples for neighbour in example.neighbours}
    assert shown
    assert shown <= set(dataset.label_id)


def test_neighbours_are_those_of_the_data_that_runs_have(dataset: Dataset, runs: Path, out: Path) -> None:
    """Of two prepared versions of a dataset the one of the newest run; a longer name is another dataset."""
    import shutil

    folder = dataset.folder
    for name, digest in ((f"{dataset.name}-zzzz", "e" * 64), (f"{dataset.name}-x-aaaa", "f" * 64)):
        shutil.copytree(folder, folder.with_name(name))
        manifest = read_json(folder.with_name(name) / "manifest.json")
        del manifest["sealed"]
        write_manifest(folder.with_name(name), {**manifest, "digest": digest}, sealed=True)
    collect([], None, [dataset.name], out)
    assert read_evidence(out).neighbours[dataset.name].digest == "e" * 64
    add_run(runs, dataset, "a0")
    collect([runs], None, [dataset.name], out)
    assert read_evidence(out).neighbours[dataset.name].digest == dataset.digest


@pytest.mark.parametrize("name", ["../lf-a", "./mine", "synthetic:rows=50", ""])
def test_a_name_that_leads_elsewhere_is_left_out(name: str, out: Path) -> None:
    """A dataset may be called by a path or by options; the runs on it are kept all the same."""
    found = collect([], None, [name], out)
    assert "cannot be used" in found.left_out[0]
    assert not out.exists()


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


@pytest.mark.parametrize(("items", "share"), [(29, None), (30, 15.5 / 30)])
def test_a_few_items_tell_nothing(items: int, share: float | None) -> None:
    """Item k has labels k and k + 1: beside label k stand k - 1 and k + 1 half the time each, beside label 0 only 1."""
    chain = csr_array(np.eye(items, items + 1) + np.eye(items, items + 1, 1), dtype=np.float32)
    same = csr_array(np.eye(items, items + 1, dtype=np.float32))
    found = find_neighbours("lf-a", "d", chain, Texts.from_strings(["id"] * (items + 1)), same)
    assert found.items == items
    assert found.true_share == (pytest.approx(share, abs=1e-4) if share else None)


def test_neighbours_show_a_planted_group() -> None:
    """Label 0 has ten rows: nine with label 1, six with label 2, one with label 3, which is too few to be shown."""
    dense = np.zeros((40, 5), np.float32)
    dense[:10, 0] = dense[:9, 1] = dense[:6, 2] = dense[:1, 3] = dense[20:36, 4] = 1
    found = find_neighbours("lf-a", "d", csr_array(dense), Texts.from_strings(list("abcde")))
    assert [(example.label, example.train_rows) for example in found.examples] == [("a", 10)]
    assert [(other.label, other.share) for other in found.examples[0].neighbours] == [("b", 0.9), ("c", 0.6)]


def test_an_archive_that_lost_bytes_is_refused_and_made_anew(dataset: Dataset, runs: Path, out: Path) -> None:
    add_run(runs, dataset, "a0")
    collect([runs], None, [], out)
    (file,) = (out / "runs").glob("*.npz")
    whole = file.read_bytes()
    for share in (0.3, 0.4, 0.5, 0.6):
        place = int(share * len(whole))
        file.write_bytes(whole[:place] + b"\xff" * 16 + whole[place + 16 :])
        with pytest.raises(DataError, match="not rows of a run"):
            read_rows(file)
        collect([runs], None, [], out)
        assert file.read_bytes() == whole
