"""`harness fuse` from the outside: small runs, their fusion, and everything that it refuses."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from harness.data import load
from harness.experiments.fusion.weights import search_weights
from harness.index import TopK
from harness.io.files import write_manifest
from harness.runs.record import read_record
from tests.support.commands import call
from tests.support.damage import flip_bit
from tests.support.small_models import edit_json, small_workspace

DATA = "synthetic:train=240,test=80,labels=60"
COMMON = ["--dataset", DATA, "--encoder", "tiny", "--track", "none"]
ON_VALIDATION = ["--set", "evaluate=validation", "--set", "validation.size=0.2"]
FILES = ("ids.npy", "scores.npy", "per_row.npy")


@pytest.fixture(scope="module")
def home_of_members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds, and their validation runs of the first seed."""
    home = tmp_path_factory.mktemp("members")
    with small_workspace(home):
        for method in ("zeroshot", "tfidf-knn"):
            assert call("run", "--method", method, *COMMON) == 0
            assert call("run", "--method", method, *COMMON, "--seed", "1") == 0
            assert call("run", "--method", method, *COMMON, *ON_VALIDATION) == 0
    return home


@pytest.fixture
def runs(home_of_members: Path, workspace: Path) -> Path:
    """The folder of those runs, in the test's own workspace."""
    shutil.copytree(home_of_members, workspace)
    return workspace / "runs"


def of(runs: Path, method: str, seed: int = 0, trial: bool = False) -> Path:
    """The folder of the first such run; names have but the second."""
    found = []
    for folder in filter(Path.is_dir, runs.iterdir()):
        record = read_record(folder)
        config = record.config
        if (config["method"], config["seed"], config["evaluate"] == "validation") == (method, seed, trial):
            found.append((record.started, folder))
    return min(found)[1]


def fuse(*arguments: str, capsys: pytest.CaptureFixture[str], names: str = "zeroshot,tfidf-knn") -> dict:
    """Fuse and return the record."""
    capsys.readouterr()
    assert call("fuse", "--runs", names, "--track", "none", "--json", *arguments) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refused(*arguments: str, capsys: pytest.CaptureFixture[str], names: str = "zeroshot,tfidf-knn") -> str:
    """Fuse and return why not; nothing is left behind."""
    capsys.readouterr()
    assert call("fuse", "--runs", names, "--track", "none", *arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert "Traceback" not in told
    return told


def rows_of(folder: Path) -> list[dict[int, int]]:
    """The rank of each label, by row."""
    return [
        {label: rank for rank, label in enumerate(row, start=1) if label >= 0}
        for row in np.load(folder / "ids.npy").tolist()
    ]


def changed(folder: Path, **record) -> None:
    """Change a record as somebody may who also renews the manifest."""
    edit_json(folder / "record.json", **record)
    write_manifest(folder, {})


def test_reciprocal_ranks_of_two_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = fuse("--seed", "0", capsys=capsys)
    members = [rows_of(of(runs, name)) for name in ("zeroshot", "tfidf-knn")]
    found = rows_of(runs / record["run_id"])
    assert len(found) == 80
    for row, ranks in enumerate(found):
        sums: dict[int, float] = {}
        for member in members:
            for label, rank in member[row].items():
                sums[label] = sums.get(label, 0) + 1 / (60 + rank)
        expected = sorted(sums, key=lambda label: (-np.float32(sums[label]), label))
        assert [*ranks] == expected[: len(ranks)]
    truth = load(DATA).test.toarray()
    first = np.load(runs / record["run_id"] / "ids.npy")[:, 0]
    assert record["metrics"]["P@1"] == pytest.approx(100 * truth[np.arange(80), first].mean())
    assert record["per_row"]
    per_row = np.load(runs / record["run_id"] / "per_row.npy")[:, record["per_row"].index("P@1")]
    assert per_row.mean() == pytest.approx(record["metrics"]["P@1"])
    assert (record["config"]["method"], record["config"]["seed"], record["status"]) == ("fuse", 0, "finished")
    parents = {one["run_id"] for one in record["fusion"]["runs"]}
    assert parents == {of(runs, name).name for name in ("zeroshot", "tfidf-knn")}
    assert read_record(runs / record["run_id"]).fusion == record["fusion"]


def test_neither_order_nor_repetition_changes_a_byte(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [of(runs, name).name for name in ("zeroshot", "tfidf-knn")]
    for way in (["--method", "rrf"], ["--method", "weights"]):
        one = fuse(*way, names=",".join(names), capsys=capsys)
        other = fuse(*way, names=",".join(reversed(names)), capsys=capsys)
        for file in FILES:
            assert (runs / one["run_id"] / file).read_bytes() == (runs / other["run_id"] / file).read_bytes()
        assert one["config"] == other["config"]


def test_reports_show_it_as_a_row(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same members with two seeds are one row; other members and ways are others."""
    first, second = fuse("--seed", "0", capsys=capsys), fuse("--seed", "1", capsys=capsys)
    weighted = fuse("--seed", "0", "--method", "weights", capsys=capsys)
    seeds = f"{of(runs, 'zeroshot').name},{of(runs, 'zeroshot', 1).name}"
    ensemble = fuse(names=seeds, capsys=capsys)
    assert (first["config"]["seed"], second["config"]["seed"]) == (0, 1)
    assert call("report", "--format", "csv") == 0
    table = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    shown = [line for line in table if "fuse" in line]
    assert len(shown) == 3
    assert sum("tfidf-knn+zeroshot" in "".join(line) for line in shown) == 2
    assert call("report", "--json") == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["method"] == "fuse"]
    settings = {row["run_id"]: row["settings"] for row in rows}
    assert settings[first["run_id"]] == settings[second["run_id"]]
    assert len({settings[one["run_id"]] for one in (first, weighted, ensemble)}) == 3
    spent = sum(read_record(of(runs, name)).seconds for name in ("zeroshot", "tfidf-knn"))
    assert next(row["seconds"] for row in rows if row["run_id"] == first["run_id"]) > spent
    assert call("report", "--compare", "tfidf-knn", "fuse:fusion=weights", "--resamples", "200") == 0
    assert call("report", "--compare", of(runs, "zeroshot").name, first["run_id"], "--resamples", "200") == 0
    assert call("report", "--collect", "--write", "--explorer", "--folder", str(tmp_path / "reports")) == 0
    assert call("report", "--check", "--folder", str(tmp_path / "reports")) == 0
    capsys.readouterr()
    assert call("ls", "runs") == 0
    assert capsys.readouterr().out.count("-fuse-") == 4


def test_the_seed_of_runs_by_name_and_by_id(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name stands for the run of a seed; runs of other seeds make another row."""
    assert "--seed 0" in refused(capsys=capsys)
    assert "seed 0, 1" in refused("--seed", "7", capsys=capsys)
    names = f"{of(runs, 'zeroshot', 1).name},{of(runs, 'tfidf-knn').name}"
    mixed, alike = fuse(names=names, capsys=capsys), fuse("--seed", "0", capsys=capsys)
    assert mixed["config"]["seed"] == 0
    assert mixed["config"]["params"] != alike["config"]["params"]
    assert "seeds 0 and 1" in refused("--method", "weights", names=names, capsys=capsys)


def test_weights_are_chosen_on_validation_rows(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = fuse("--seed", "0", "--method", "weights", "--metric", "PSP@5", capsys=capsys)
    fusion = record["fusion"]
    used = [of(runs, one["method"], trial=True) for one in fusion["runs"]]
    assert fusion["validation_runs"] == [folder.name for folder in used]
    assert sum(fusion["weights"]) == pytest.approx(1)
    assert fusion["validation_rows"] == len(np.load(used[0] / "ids.npy"))
    alone = [read_record(folder).metrics["PSP@5"] for folder in used]
    assert fusion["alone"] == pytest.approx(alone)
    assert fusion["score"] >= max(alone)
    # test rows decide nothing: with other test predictions the weights are the same
    folder = of(runs, "zeroshot")
    ids = np.load(folder / "ids.npy")
    np.save(folder / "ids.npy", np.where(ids >= 0, 59 - ids, -1).astype(np.int32))
    changed(folder, metrics={}, run_id=folder.name)
    again = fuse("--seed", "0", "--method", "weights", "--metric", "PSP@5", capsys=capsys)
    assert again["fusion"]["weights"] == fusion["weights"]
    assert again["metrics"] != record["metrics"]


def test_the_commands_that_are_printed_make_what_is_missing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A member whose settings are not the method's, one that trains, one in another folder than the workspace's."""
    own = ["--set", "similarity=dot", "--out", str(runs.parent / "elsewhere")]
    trained = ["--set", "epochs=2", "--set", "batch_size=64", "--seed", "1"]
    assert call("run", "--method", "zeroshot", *COMMON, "--seed", "1", *own) == 0
    assert call("run", "--method", "dpr", *COMMON, *trained) == 0
    (folder,) = [path for path in (runs.parent / "elsewhere").iterdir() if path.is_dir()]
    names = f"{folder},dpr,tfidf-knn"
    told = refused("--method", "weights", "--seed", "1", names=names, capsys=capsys)
    commands = [shlex.split(line)[3:] for line in told.splitlines() if line.startswith("  python -m harness")]
    assert len(commands) == 3
    assert sum("validation.every_epochs=2" in words for words in commands) == 1
    for words in commands:
        assert call(*words, "--track", "none") == 0
    record = fuse("--method", "weights", "--seed", "1", names=names, capsys=capsys)
    assert len(record["fusion"]["weights"]) == 3


def test_a_validation_run_of_other_settings_does_not_count(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(of(runs, "zeroshot", trial=True))
    assert call("run", "--method", "zeroshot", *COMMON, *ON_VALIDATION, "--set", "similarity=dot") == 0
    assert call("run", "--method", "zeroshot", *COMMON, *ON_VALIDATION, "--set", "validation.draw=any") == 0
    told = refused("--seed", "0", "--method", "weights", capsys=capsys)
    assert told.count("python -m harness run") == 1
    assert "--set validation.size=0.2" in told
    assert call("run", "--method", "zeroshot", *COMMON, *ON_VALIDATION) == 0
    fuse("--seed", "0", "--method", "weights", capsys=capsys)


def test_a_member_with_validation_rows_of_its_own(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its validation run must have the same rows, and so must those of the others."""
    for method, size in (("zeroshot", "0.3"), ("tfidf-knn", "0.2")):
        assert call("run", "--method", method, *COMMON, "--set", f"validation.size={size}", "--json") == 0
    own = {
        read_record(path).config["validation"]["size"]: path.name
        for path in runs.iterdir()
        if path.is_dir() and read_record(path).config["evaluate"] == "test"
    }
    told = refused("--method", "weights", names=f"{own[0.3]},{of(runs, 'tfidf-knn').name}", capsys=capsys)
    commands = [line for line in told.splitlines() if line.startswith("  python")]
    assert len(commands) == 2
    assert sum("validation.size=0.3" in line for line in commands) == 1
    assert "use --method rrf" in refused("--method", "weights", names=f"{own[0.3]},{own[0.2]}", capsys=capsys)
    fuse(names=f"{own[0.3]},{own[0.2]}", capsys=capsys)


def test_the_search_finds_the_better_ranking() -> None:
    """Weights go to the run that is right; a tie goes to equal weights."""
    truth = load_truth()
    right = truth.indices
    good, bad = as_topk((right[:, None] + np.arange(5)) % 30), as_topk((right[:, None] + np.arange(4, 9)) % 30)
    found = search_weights([bad, good], truth, None, "P@1")
    assert found.weights[1] >= 0.5
    assert found.score == found.alone[1] == 100
    same = search_weights([good, good, good], truth, None, "P@1")
    assert same.score == 100
    assert max(same.weights) - min(same.weights) <= 0.1001


def test_many_validation_rows_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = load_truth()
    rankings = [as_topk((truth.indices[:, None] + np.arange(start, start + 5)) % 30) for start in (0, 3)]
    monkeypatch.setattr("harness.experiments.fusion.weights._MOST_VALUES", 2 * 10 * 8)
    assert search_weights(rankings, truth, None, "P@3").validation_rows == 8


def load_truth():
    from scipy.sparse import csr_array

    labels = np.random.default_rng(0).integers(0, 30, 40)
    return csr_array((np.ones(40, np.float32), (np.arange(40), labels)), shape=(40, 30))


def as_topk(ids: np.ndarray) -> TopK:
    scores = np.tile(np.linspace(1, 0, ids.shape[1], dtype=np.float32), (len(ids), 1))
    return TopK(ids.astype(np.int32), scores)


@pytest.mark.parametrize(
    ("arguments", "names", "message"),
    [
        ([], "zeroshot", "two or more"),
        ([], "", "two or more"),
        ([], ",,", "two or more"),
        ([], "zeroshot,zeroshoot", "did you mean 'zeroshot'?"),
        ([], "zeroshot,./nowhere", "not the folder of a run"),
        (["--method", "borda"], "zeroshot,tfidf-knn", "known: rrf, weights"),
        (["--metric", "P@1"], "zeroshot,tfidf-knn", "--method weights"),
        (["--method", "weights", "--metric", "P@2"], "zeroshot,tfidf-knn", "unknown metric 'P@2'"),
        (["--method", "weights", "--metric", "C@"], "zeroshot,tfidf-knn", "unknown metric"),
        (["--out", __file__], "zeroshot,tfidf-knn", "is a file"),
        (["--track", "wandb"], "zeroshot,tfidf-knn", "mlflow or none"),
        (["--seed", str(2**63)], "zeroshot,tfidf-knn", "below 2**63"),
        (["--dataset", "lf-pydocs"], "zeroshot,tfidf-knn", "zeroshot"),
        (["--dataset", "nothing"], "zeroshot,tfidf-knn", "unknown dataset"),
        ([], "zeroshot,zeroshot", "named twice"),
        ([], "zeroshot:clf,tfidf-knn", "clf"),
    ],
)
def test_what_is_typed_wrong(
    arguments: list[str], names: str, message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in runs.iterdir())
    assert message in refused("--seed", "0", *arguments, names=names, capsys=capsys)
    assert sorted(path.name for path in runs.iterdir()) == before


def test_runs_that_do_not_belong_together(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every difference is named, with the run that has it."""
    zeroshot, tfidf = of(runs, "zeroshot"), of(runs, "tfidf-knn")
    names = f"{zeroshot},{tfidf}"
    for one, again in ((zeroshot, zeroshot.name), (zeroshot, zeroshot), (zeroshot.name,) * 2, ("last", "last")):
        assert "named twice" in refused(names=f"{one},{again}", capsys=capsys)
    twin = shutil.copytree(zeroshot, runs / "twin")
    changed(twin, run_id="twin")
    assert "the same settings, data and seed" in refused(names=f"{zeroshot},{twin}", capsys=capsys)
    other = ["--dataset", "synthetic:train=240,test=70,labels=50", *COMMON[2:], "--out", str(tmp_path / "other")]
    assert call("run", "--method", "tfidf-knn", *other) == 0
    (elsewhere,) = [path for path in (tmp_path / "other").iterdir() if path.is_dir()]
    told = refused(names=f"{zeroshot},{elsewhere}", capsys=capsys)
    assert all(f"\n  {what}: " in told for what in ("data", "labels", "test rows"))
    assert told.count(elsewhere.name) == 3
    dataset = json.loads((tfidf / "record.json").read_text())["dataset"]
    for key, value, what in (
        ("filter", not dataset["filter"], "filter"),
        ("propensity", {"a": 0.5, "b": 0.4}, "propensity constants"),
        ("digest", "0" * 64, "data"),
    ):
        changed(tfidf, dataset={**dataset, key: value})
        assert f"\n  {what}: " in refused(names=names, capsys=capsys)
    changed(tfidf, dataset=dataset, metric_version=2)
    assert "\n  metric version: 1" in refused(names=names, capsys=capsys).replace("2 (", "1 (")
    changed(zeroshot, metric_version=2)
    assert "metrics v2" in refused(names=names, capsys=capsys)
    changed(zeroshot, metric_version=1, dataset={**dataset, "digest": "1" * 64})
    changed(tfidf, metric_version=1, dataset={**dataset, "digest": "1" * 64})
    assert "digest" in refused(names=names, capsys=capsys)


def test_runs_without_test_predictions(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A validation run, a failed one, one that has not ended, one whose predictions are gone."""
    good, run = of(runs, "zeroshot"), of(runs, "tfidf-knn")
    trial = of(runs, "tfidf-knn", trial=True)
    assert "validation rows" in refused(names=f"{good},{trial}", capsys=capsys)
    (run / "scores.npy").rename(run / "aside")
    assert "scores.npy is missing" in refused(names=f"{good},{run}", capsys=capsys)
    (run / "aside").rename(run / "scores.npy")
    changed(run, status="failed", error="RuntimeError: no")
    assert "did not finish: failed" in refused(names=f"{good},{run}", capsys=capsys)
    (run / "record.json").unlink()
    assert "unfinished" in refused(names=f"{good},{run}", capsys=capsys)
    fused = fuse("--seed", "1", capsys=capsys)["run_id"]
    assert call("predict", "--run", fused, "--text", "a") == 2
    assert "has no model" in capsys.readouterr().err
    assert call("run", "--resume", fused) == 2
    (runs / fused / "record.json").unlink()
    assert call("run", "--resume", fused) == 2
    assert "is a fusion" in capsys.readouterr().err


def test_fusions_can_be_fused_but_not_weighted(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = fuse("--seed", "0", capsys=capsys)["run_id"]
    names = f"{inner},{of(runs, 'zeroshot').name}"
    outer = fuse(names=names, capsys=capsys)
    assert outer["config"]["params"]["fused"] == "fuse+zeroshot"
    assert "is a fusion" in refused("--method", "weights", names=names, capsys=capsys)
    assert call("predict", "--run", "last", "--text", "a", "--json") == 0  # the newest run with a model


def test_damaged_predictions(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flipped bit, a missing manifest, and files whose manifest was renewed."""
    good, run = of(runs, "zeroshot"), of(runs, "tfidf-knn")
    names = f"{good},{run}"
    kept = {name: (run / name).read_bytes() for name in ("ids.npy", "scores.npy", "record.json", "manifest.json")}
    for name in ("ids.npy", "scores.npy", "record.json"):
        flip_bit(run / name, 3)
        assert call("fuse", "--runs", names, "--track", "none") == 2
        assert name in capsys.readouterr().err
        (run / name).write_bytes(kept[name])
    (run / "manifest.json").unlink()
    assert "manifest.json" in refused(names=names, capsys=capsys)
    (run / "manifest.json").write_text('{"files": {}}')
    assert "does not list" in refused(names=names, capsys=capsys)
    ids, scores = np.load(run / "ids.npy"), np.load(run / "scores.npy")
    doubled, rising, outside = ids.copy(), scores.copy(), ids.copy()
    doubled[5, 1] = doubled[5, 0]
    rising[5, 1] = 1e9
    outside[5, 0] = 60
    nothing, above = scores.copy(), scores.copy()
    nothing[5, 0], above[5, 0] = np.nan, np.inf
    hollow = ids.copy()
    hollow[5, 0] = -1
    for wrong_ids, wrong_scores in (
        (doubled, scores),
        (outside, scores),
        (np.full_like(ids, -2), scores),
        (hollow, scores),
        (ids, rising),
        (ids, nothing),
        (ids, above),
        (ids[:79], scores[:79]),
        (ids[:, :0], scores[:, :0]),
        (ids, scores[:, :3]),
        (ids.astype(np.int64), scores),
        (ids.astype(np.float32), scores),
        (ids, scores.astype(np.float64)),
        (ids[0], scores[0]),
        (ids[::-1], scores[::-1]),
    ):
        np.save(run / "ids.npy", wrong_ids)
        np.save(run / "scores.npy", wrong_scores)
        write_manifest(run, {})
        assert "ids.npy" in refused(names=names, capsys=capsys)
    np.save(run / "ids.npy", np.array([{}]), allow_pickle=True)
    write_manifest(run, {})
    assert "not an array of numbers" in refused(names=names, capsys=capsys)


def test_hostile_settings_in_a_record(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, run = of(runs, "zeroshot"), of(runs, "tfidf-knn")
    config = json.loads((run / "record.json").read_text())["config"]
    for key, value in (
        *(
            ("ks", "abc"),
            ("ks", [0]),
            ("ks", None),
            ("search", None),
            ("search", {"k": "many"}),
            ("filter", "maybe"),
            ("params", 3),
        ),
        *(("dataset", "/etc"), ("dataset", "./../x"), ("dataset", "./gone"), ("dataset", 5), ("validation", "x")),
    ):
        changed(run, config={**config, key: value})
        changed(good, config={**json.loads((good / "record.json").read_text())["config"], key: value})
        for way in ("rrf", "weights"):
            told = refused("--method", way, names=f"{good},{run}", capsys=capsys)
            assert any(word in told for word in (key, "/etc", "../x")), (key, value)
        changed(good, config={**config, "method": "zeroshot", "params": {}})


def test_data_in_a_folder_is_named_again(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records hold no paths, so the folder has to be given; without it, or with another, nothing is fused."""
    rows = [{"text": f"text {number} word{number % 4}", "labels": [f"l{number % 4}"]} for number in range(24)]
    for name, last in (("tickets", 24), ("others", 20)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows[:last])))
        (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows[:8])))
        (folder / "labels.jsonl").write_text(
            "\n".join(json.dumps({"id": f"l{number}", "text": f"label word{number}"}) for number in range(4))
        )
    place = str(tmp_path / "tickets")
    for method in ("zeroshot", "tfidf-knn"):
        assert call("run", "--method", method, "--dataset", place, *COMMON[2:]) == 0
        assert call("run", "--method", method, "--dataset", place, *COMMON[2:], *ON_VALIDATION) == 0
    assert "--dataset PATH" in refused(capsys=capsys)
    names = ",".join(of(workspace / "runs", method).name for method in ("zeroshot", "tfidf-knn"))
    assert "digest" in refused("--dataset", str(tmp_path / "others"), names=names, capsys=capsys)
    record = fuse("--dataset", place, "--method", "weights", capsys=capsys)
    assert record["config"]["dataset"] == "./tickets"
    text = (workspace / "runs" / record["run_id"] / "record.json").read_text()
    assert str(tmp_path) not in text
    assert not [name for name in record["metrics"] if name.startswith("PSP")]
    shutil.rmtree(of(workspace / "runs", "zeroshot", trial=True))
    assert "--dataset PATH" in refused("--dataset", place, "--method", "weights", capsys=capsys)


def test_the_screen_shows_members_and_what_comes_next(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("fuse", "--runs", "zeroshot,tfidf-knn", "--seed", "0", "--method", "weights", "--track", "none") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("PSnDCG", "weight", "validation rows", "run folder"))
    (line,) = [line for line in shown.splitlines() if line.startswith("compare ")]
    assert call(*shlex.split(line)[4:], "--resamples", "200") == 0
    out = tmp_path / "out"
    assert call("fuse", "--runs", "zeroshot,tfidf-knn", "--seed", "0", "--track", "none", "--out", str(out)) == 0
    shown = capsys.readouterr().out
    for start in ("compare ", "table "):
        (line,) = [line for line in shown.splitlines() if line.startswith(start)]
        assert call(*shlex.split(line)[4:]) == 0


def test_the_method_of_fused_runs_is_nobody_elses(runs: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from harness.experiments import fusion

    assert fusion.METHOD not in fusion.methods()
    assert call("run", "--method", "fuse", *COMMON) == 2
    monkeypatch.setattr(fusion, "METHOD", "zeroshot")
    assert "registers a method" in refused("--seed", "0", capsys=capsys)


def test_it_reaches_mlflow_as_other_runs_do(runs: Path, mlflow_store: str, capsys: pytest.CaptureFixture[str]) -> None:
    from mlflow import MlflowClient

    capsys.readouterr()
    assert call("fuse", "--runs", "zeroshot,tfidf-knn", "--seed", "0", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    client = MlflowClient(mlflow_store)
    experiment = client.get_experiment_by_name(record["dataset"]["name"])
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.tags["method"]) == ("FINISHED", "fuse")
    assert run.data.metrics["P_at_1"] == pytest.approx(record["metrics"]["P@1"])
    assert run.data.params["params.fused"] == "tfidf-knn+zeroshot"


def test_trials_of_a_sweep_still_keep_nothing(runs: Path, workspace: Path) -> None:
    """A run on validation rows keeps predictions and no model; a trial of a sweep keeps neither."""
    from harness.run import resolve_config, run
    from harness.settings.layers import Layer

    settings = {"encoder": "tiny", "evaluate": "validation", "validation": {"size": 0.2}}
    config = resolve_config("zeroshot", DATA, [Layer("test", settings)])[0]
    parent = {"id": "x", "kind": "sweep", "name": "x", "params": {"study": "x", "trial": 0, "slot": 0}}
    trial = run(config, track="none", parent=parent)
    assert not [name for name in FILES if (workspace / "runs" / trial.run_id / name).exists()]
    assert all((of(runs, "zeroshot", trial=True) / name).exists() for name in FILES)
    assert not (of(runs, "zeroshot", trial=True) / "model").exists()


def test_a_fusion_that_is_stopped_or_fails(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C and an error leave a record that says so; the same command makes the run."""

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    def fail(*arguments: object) -> None:
        raise RuntimeError("no")

    for broken, code, status in ((stop, 130, "killed"), (fail, None, "failed")):
        with monkeypatch.context() as patch:
            patch.setattr("harness.experiments.fusion.fuse", broken)
            words = ("fuse", "--runs", "zeroshot,tfidf-knn", "--seed", "0", "--track", "none")
            if code is None:
                with pytest.raises(RuntimeError):
                    call(*words)
            else:
                assert call(*words) == code
                assert "to go on: the same command again" in capsys.readouterr().err
        (folder,) = [path for path in runs.glob("*-fuse-*") if read_record(path).status == status]
        assert not (folder / "ids.npy").exists()
    fuse("--seed", "0", capsys=capsys)


def test_settings_that_are_younger_than_a_record_are_in_the_command(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its validation run has to have what the harness did then, not today's default."""
    trained = ["--set", "epochs=1", "--set", "batch_size=64", "--set", "eps=1e-8", "--json"]
    assert call("run", "--method", "ngame", *COMMON, *trained) == 0
    folder = of(runs, "ngame")
    record = json.loads((folder / "record.json").read_text())
    del record["config"]["params"]["eps"]
    edit_json(folder / "config.json", config=record["config"])
    changed(folder, config=record["config"])
    told = refused("--seed", "0", "--method", "weights", names="ngame,tfidf-knn", capsys=capsys)
    (command,) = [line for line in told.splitlines() if line.startswith("  python")]
    assert "--set params.eps=1e-08" in command
    assert call(*shlex.split(command)[3:], "--track", "none") == 0
    fuse("--seed", "0", "--method", "weights", names="ngame,tfidf-knn", capsys=capsys)


def test_members_of_another_version_are_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = of(runs, "zeroshot")
    changed(folder, environment={"harness": "0.0.1"})
    assert "harness 0.0.1" in " ".join(fuse("--seed", "0", capsys=capsys)["warnings"])
