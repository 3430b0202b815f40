"""What a bench is asked for, what counts as done, and what is shown; its processes have a file of their own."""

import os
from pathlib import Path

import pytest
from filelock import FileLock

from harness.experiments.bench import log_path
from harness.experiments.bench.plan import plan
from harness.experiments.bench.run import command
from harness.experiments.bench.store import RunStore
from harness.io.files import write_json
from harness.run import resolve_config
from harness.runs.lock import run_lock
from harness.settings.layers import Layer, read_config_file
from tests.support.bench_cells import TINY, answer, cut_off, finished, request, statuses
from tests.support.commands import call
from tests.support.small_models import write_model
from tests.support.training_runs import DATASET

pytestmark = pytest.mark.usefixtures("one_thread")


def test_cells_go_by_dataset_then_seed_then_method() -> None:
    other = "synthetic:train=50,test=20"
    cells = plan(request("zeroshot,depsl", "1,0,1", datasets=f"{DATASET},{other}, {other}"))
    assert [(cell.config.dataset, cell.config.seed, cell.config.method) for cell in cells] == [
        (dataset, seed, method) for dataset in (DATASET, other) for seed in (1, 0) for method in ("zeroshot", "depsl")
    ]
    assert len({cell.key for cell in cells}) == len({cell.name for cell in cells}) == 8


def test_settings_reach_all_methods_or_one() -> None:
    settings = ("epochs=7", "depsl:beta=2", "params.epochs=8", "unidec:search.k=9")
    depsl, unidec = plan(request("depsl,unidec", settings=settings))
    assert (depsl.config.params["epochs"], unidec.config.params["epochs"]) == (8, 8)
    assert (depsl.config.params["beta"], depsl.config.search.k, unidec.config.search.k) == (2, 100, 9)
    assert unidec.config.params["beta"] != 2
    assert depsl.given == {"params": {"epochs": 8, "beta": 2}, "encoder": "tiny"}


def test_settings_reach_the_process_as_they_are(tmp_path: Path) -> None:
    settings = ("lr_heads=1e-5", "temperature=1.25e-2", "ks=[1, 3]", "max_len=null", "search.options={}", "loss=supcon")
    settings += ("encoder_options.dim=16", "beta=3", "params.beta=4", "filter=false")
    (cell,) = plan(request("depsl", "7", settings=settings))
    words = command(cell, tmp_path / "runs", "none", None, tmp_path)
    options = dict(zip(words[4:-1:2], words[5::2], strict=True))
    assert (options["--seed"], words[-1]) == ("7", "--json")
    layers = [read_config_file(Path(options["--config"])), Layer("--seed", {"seed": int(options["--seed"])})]
    assert resolve_config(options["--method"], options["--dataset"], layers)[0] == cell.config
    assert cell.config.params["beta"] == 4


def test_every_fault_is_told_at_once(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 65"""
    settings = ["beta=2", "search.k=0", "unidec:beta=3", "seed=4", "nothing"]
    arguments = ["--methods", "zeroshoot,zeroshot,depsl,-unidek", "--datasets", "lf-pydoc,synthetic", "--seeds", "0,x"]
    arguments += ["--encoder", "minlm", *(part for setting in settings for part in ("--set", setting))]
    assert call("bench", *arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: 10 faults, nothing was run:\n")
    for line in (
        "  unknown method 'zeroshoot'; did you mean 'zeroshot'?",
        "  unknown method 'unidek'; did you mean 'unidec'?",
        "  unknown dataset 'lf-pydoc'; did you mean 'lf-pydocs'?",
        "  --seeds takes whole numbers from 0",
        "  unknown encoder 'minlm'; did you mean 'minilm'?",
        "  zeroshot: --set beta=2: unknown key 'beta'",
        "  --set search.k=0: search.k",
        "  --set unidec:beta=3: unidec is not among the methods of this bench (zeroshot, depsl)",
        "  --set seed=4: in a bench this is what --seeds is for",
        "  --set takes key=value",
        "  a setting for one method alone carries its name: --set unidec:beta=3",
    ):
        assert told.count(f"\n{line}") == 1, line
    assert not workspace.exists()


def test_faults_of_data_are_told_together_and_briefly(capsys: pytest.CaptureFixture[str]) -> None:
    data = f"lf-wikiseealso-320k,{DATASET},lf-amazontitles-131k"
    settings = ["--encoder", "tiny", "--set", "depsl:validation.patience=3"]
    assert call("bench", "--methods", "zeroshot,depsl", "--datasets", data, *settings) == 2
    told = capsys.readouterr().err
    assert told.count("is not on this machine") == 2
    assert "`python -m harness data check lf-amazontitles-131k` says what to place where" in told
    assert f"depsl on {DATASET}: validation.patience needs rows to judge by" in told
    assert len(told.splitlines()) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "depsl,-depsl"], "leaves no method"),
        (["--datasets", ","], "--datasets names none"),
        (["--track", "wandb"], "--track takes mlflow or none"),
        (["--out", __file__], "is a file; name a folder"),
        (["--known", "nowhere/runs"], "--known nowhere/runs is no folder; name one with runs or records"),
        (["--set", "device=cuda:77"], "device 'cuda:77' asked for"),
        (["--set", "evaluate=validation"], "settings are searched by `sweep`"),
    ],
)
def test_one_fault_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("bench", *TINY, "--methods", "zeroshot", *arguments) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("error: ")
    assert len(told.splitlines()) == 1


def test_a_cell_is_done_by_settings_that_count(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = ["--methods", "zeroshot", *TINY]
    assert statuses(*matrix, "--seeds", "0,1", capsys=capsys) == ["missing", "missing"]
    assert not (workspace / "runs").exists()
    record, folder = finished(plan(request())[0])
    assert statuses(*matrix, "--seeds", "0,1", capsys=capsys) == ["done", "missing"]
    free = ["--set", "batch_tokens=99", "--set", "device=cpu", "--set", "checkpoint.keep=5"]
    assert statuses(*matrix, *free, capsys=capsys) == ["done"]
    assert statuses(*matrix, "--set", "similarity=dot", capsys=capsys) == ["missing"]
    assert statuses(*matrix, "--set", "filter=false", capsys=capsys) == ["missing"]
    assert statuses(*matrix, "--out", str(workspace / "other"), capsys=capsys) == ["missing"]
    write_json(workspace / "flat" / "one.json", record.model_dump(mode="json"))  # a record without its folder
    assert statuses(*matrix, "--out", str(workspace / "flat"), capsys=capsys) == ["done"]
    known = ["--out", str(workspace / "other"), "--known", str(workspace / "flat")]
    assert statuses(*matrix, "--seeds", "0,1", *known, capsys=capsys) == ["done", "missing"]
    (row,) = answer(*matrix, *known, capsys=capsys)
    assert (row["status"], row["attempt"], row["run_id"]) == ("done", None, record.run_id)
    assert not (workspace / "other").exists()
    assert call("bench", *matrix, "--track", "none", *known, *known[2:]) == 0
    assert capsys.readouterr().out.rstrip().splitlines()[-2].endswith(f"harness report --runs {workspace / 'flat'}")
    (row,) = answer(*matrix, capsys=capsys)
    assert (row["status"], row["attempt"], row["run_id"]) == ("done", None, record.run_id)
    assert row["metrics"] == record.metrics
    (folder / "record.json").write_text('{"schema_version": 1}')
    assert call("bench", *matrix, "--dry-run") == 0
    shown = capsys.readouterr()
    assert "1 cells: 1 missing" in shown.out
    assert shown.err.count("left out a damaged record") == 1


def test_a_setting_that_an_older_record_lacks_counts_as_its_default(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cell,) = plan(request("unidec", settings=("epochs=1", "batch_size=60", "augment=one-hot")))
    record, folder = finished(cell)
    again = ["--methods", "unidec", *TINY, "--set", "epochs=1", "--set", "batch_size=60", "--set", "augment=one-hot"]
    params, options = dict(record.config["params"]), dict(record.config["augment_options"])
    assert params.pop("dropout") == 0.1
    assert options.pop("labels", None) is not None
    older = record.model_copy(update={"config": record.config | {"params": params, "augment_options": options}})
    (folder / "record.json").write_text(older.model_dump_json())
    assert statuses(*again, capsys=capsys) == ["done"]
    assert statuses(*again, "--set", "dropout=0.2", capsys=capsys) == ["missing"]
    params["beta"] += 1
    other = record.model_copy(update={"config": record.config | {"params": params}})
    (folder / "record.json").write_text(other.model_dump_json())
    assert statuses(*again, capsys=capsys) == ["missing"]


def test_other_data_or_other_weights_under_one_name_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 53"""
    tickets = tmp_path / "tickets"
    tickets.mkdir()
    for name in ("train", "test"):
        (tickets / f"{name}.jsonl").write_text('{"text": "printer on fire", "labels": ["a"]}\n')
    (tickets / "labels.jsonl").write_text('{"id": "a", "text": "printers"}\n{"id": "b", "text": "fires"}\n')
    first = write_model(tmp_path / "first" / "model")
    second = write_model(tmp_path / "second" / "model", initializer_factor=1.0, num_hidden_layers=1)
    (cell,) = plan(request(datasets=str(tickets), encoder=str(first)))
    finished(cell)
    matrix = ["--methods", "zeroshot", "--datasets", str(tickets)]
    assert statuses(*matrix, "--encoder", str(first), capsys=capsys) == ["done"]
    assert statuses(*matrix, "--encoder", str(second), capsys=capsys) == ["missing"]
    (tickets / "test.jsonl").write_text('{"text": "printer in flames", "labels": ["a"]}\n')
    assert statuses(*matrix, "--encoder", str(first), capsys=capsys) == ["missing"]


def test_interrupted_runs_are_taken_up_and_running_ones_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """fault 11"""
    (cell,) = plan(request())
    folder = cut_off(finished(cell)[1])
    store, matrix = RunStore(folder.parent), ["--methods", "zeroshot", *TINY]
    assert store.look(cell).resumable == folder.name
    assert store.look(cell, anew=True).status == "missing"
    assert statuses(*matrix, capsys=capsys) == ["resumable"]
    assert statuses(*matrix, "--set", "batch_tokens=99", capsys=capsys) == ["missing"]
    with run_lock(folder):
        assert statuses(*matrix, capsys=capsys) == ["running elsewhere"]
        (row,) = answer(*matrix, capsys=capsys)
        assert (row["status"], row["attempt"]) == ("running elsewhere", None)
        assert f"run {folder.name} is locked by pid {os.getpid()}" in row["reason"]
    with FileLock(log_path(folder.parent, cell).with_suffix(".lock")):
        (row,) = answer(*matrix, capsys=capsys)
        assert (row["status"], row["reason"]) == ("running elsewhere", "another bench works on it, or a process of one")
    (folder / "events.jsonl").write_text("")  # killed before its first line
    assert store.look(cell).resumable == folder.name  # what was read before stands
    assert RunStore(folder.parent).look(cell).status == "missing"


def test_a_failed_run_is_taken_up_once_and_from_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = plan(request())
    record, folder = finished(cell)
    store = RunStore(folder.parent)

    def found(status: str, resumed: int) -> str:
        values = record.model_dump(mode="json") | {"status": status, "resumed": [{}] * resumed, "metrics": {}}
        write_json(folder / "record.json", values)
        return store.look(cell).status

    assert (found("killed", 0), found("killed", 3), found("failed", 0)) == ("resumable", "resumable", "missing")
    cut_off(folder, step=4)
    assert (found("failed", 0), found("failed", 1), found("killed", 1)) == ("resumable", "missing", "resumable")
    assert (store.newest(cell.key), store.newest("other")) == (folder.name, None)
