"""The command line from the outside: what it prints, what it refuses, what it leaves behind."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import call
from tests.support.repository_files import write_jsonl

ROOT = Path(__file__).parents[2]
ZEROSHOT = ["run", "--method", "zeroshot", "--dataset", "synthetic", "--encoder", "tiny", "--track", "none"]


def test_help_of_every_command_imports_nothing_heavy(tmp_path: Path) -> None:
    """From another folder than that of the project."""
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from harness.cli import COMMANDS, main

groups = {{"data": ["ls", "prepare", "check", "import", "fetch"], "runs": ["reap"]}}
calls = [[], *([name] for name in COMMANDS), *([group, name] for group, names in groups.items() for name in names)]
for words in [*([*call, "--help"] for call in calls), ["ls", "methods"], ["ls", "datasets"]]:
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, words
heavy = {{"torch", "mlflow", "transformers", "faiss", "scipy", "pandas", "matplotlib", "optuna"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.count("Examples") == 9
    assert "lf-debiantitles" in done.stdout
    done = subprocess.run([sys.executable, "-m", "harness", "nope"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2


def test_run_report_and_listing_together(workspace: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ZEROSHOT
    assert call(*arguments) == 0
    shown = capsys.readouterr().out
    assert "PSnDCG" in shown
    assert "run folder" in shown
    assert call(*arguments, "--seed", "1", "--set", "similarity=dot", "--set", "search.k=10", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["config"]["seed"], record["config"]["params"]) == (1, {"similarity": "dot"})
    assert call("report", "--format", "md", "--out", str(tmp_path / "table.md")) == 0
    assert "| zeroshot | tiny |" in (tmp_path / "table.md").read_text()
    capsys.readouterr()
    assert call("report", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert call("report", "--json", "--dataset", "other") == 2
    capsys.readouterr()
    assert call(*arguments, "--set", "ks=[2]") == 0
    capsys.readouterr()
    assert call("report", "--json") == 0  # runs that lack a metric leave it out; NaN is not JSON
    assert "NaN" not in capsys.readouterr().out
    assert call("ls", "runs") == 0
    assert capsys.readouterr().out.count("finished") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--method", "zeroshoot"], "unknown method 'zeroshoot'; did you mean 'zeroshot'?"),
        (["run", "--dataset", "synthetic", "--encoder", "minlm"], "did you mean 'minilm'?"),
        (["run", "--dataset", "synthetic", "--set", "bta=2"], "did you mean 'beta'?"),
        (["run", "--dataset", "synthetic", "--set", "logits=euclid"], "--set logits=euclid: params.logits"),
        (["run", "--dataset", "synthetic", "--set", "search.options.seed=3"], "unknown option of search backend"),
        (
            ["run", "--dataset", "synthetic", "--encoder", "tiny", "--set", "encoder_options.dim=x"],
            "encoder_options.dim",
        ),
        (["run", "--dataset", "synthetic", "--encoder", "tiny", "--set", "max_len=4000"], "reads at most"),
        (["run", "--dataset", "synthetic", "--set", "k"], "--set takes key=value"),
        (["run", "--dataset", "synthetic", "--seed", "-1"], "--seed: seed"),
        (["run", "--dataset", "synthetic", "--track", "wandb"], "--track takes mlflow or none"),
        (["run", "--dataset", "./no/such/folder"], "is not a folder"),
        (["run", "--config", "no-such.yaml"], "no-such.yaml: no such file"),
        (["run", "--config", "."], ".: a folder; name a file"),
        (["ls", "method"], "did you mean 'methods'?"),
        (["report"], "has no runs"),
        (["data", "import", ".", "--name", "../x"], "cannot be used"),
        (["data", "import", ".", "--name", "x", "--propensity", "1"], "--propensity takes two numbers"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], message: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 65, fault 70"""
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert not (workspace / "runs").exists()
    assert not (workspace / "cards").exists()


def test_validate_reports_every_fault(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace / "cards").mkdir(parents=True)
    (workspace / "cards" / "mine.yaml").write_text("title: x\nsumary: y\nsource: jsonl\ndefaults: {max_len: -3}\n")
    (tmp_path / "run.yaml").write_text("method: zeroshot\nencodr: tiny\nseed: 1.5\n")
    assert call("validate", str(tmp_path / "run.yaml")) == 2
    error = capsys.readouterr().err
    assert "summary: Field required" in error
    assert "sumary" in error
    assert "unknown key 'encodr'; did you mean 'encoder'?" in error
    assert "seed" in error


def test_one_damaged_record_does_not_hide_the_others(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*ZEROSHOT) == 0
    (workspace / "runs" / "broken").mkdir()
    (workspace / "runs" / "broken" / "record.json").write_text("{")
    (workspace / "runs" / "killed").mkdir()
    (workspace / "runs" / "killed" / "events.jsonl").write_text("")
    capsys.readouterr()
    assert call("ls", "runs", "--json") == 0
    shown = capsys.readouterr()
    assert [row["status"] for row in json.loads(shown.out)] == ["finished", "unfinished"]
    assert "damaged record" in shown.err


REPEATS = ["Red  apple", "réd apple", "green apple", "", "blue plum"]
"""Texts of test rows; the train rows have those of apples, and a blank one."""


def of_apples(folder: Path, test: list[str]) -> str:
    """A dataset whose train rows have four texts, ten rows each; the word of its folder for the command line."""
    texts = ["red apple", "GREEN apple", "old oak", "", *["red apple", "green Apple ", "Old oak", " "] * 9]
    rows = {
        name: [{"text": text, "labels": ["a"]} for text in texts] for name, texts in (("train", texts), ("test", test))
    }
    return f"{write_jsonl(folder, labels=[{'id': 'a', 'text': 'fruit'}, {'id': 'b', 'text': 'tree'}], **rows)}/"


def test_test_rows_with_a_train_text_are_counted_when_data_is_prepared_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repeating, clean = of_apples(tmp_path / "repeating", REPEATS), of_apples(tmp_path / "clean", REPEATS[3:])
    for folder, said in ((repeating, "3 test rows have a text that a train row has too"), (clean, None)):
        assert call("data", "prepare", folder) == 0
        assert [line for line in capsys.readouterr().err.splitlines() if "train row" in line] == (
            [f"warning: {said}; `data check` names the first"] if said else []
        )

    def warnings(folder: str, *more: str) -> list[str]:
        assert call(*ZEROSHOT, "--dataset", folder, *more, "--json") == 0
        record = json.loads(capsys.readouterr().out)
        return [warning for warning in record["warnings"] if "train row has" in warning]

    assert warnings(repeating) == ["3 of 5 test rows have a text that a train row has too"]
    assert warnings(repeating, "--set", "evaluate=validation", "--set", "validation.size=10") == []
    assert warnings(clean) == []


@pytest.mark.parametrize(
    ("size", "equal_texts", "drawn", "said"),
    [
        ("0", "together", 0, []),
        ("0.25", "together", 10, []),
        ("9", "together", 10, ["10 validation rows were drawn, not 9"]),
        ("0.1", "together", 10, ["10 validation rows were drawn, not 4"]),
        ("0.1", "any", 4, []),
        ("11", "together", 10, []),
        ("12", "together", 10, ["10 validation rows were drawn, not 12"]),
    ],
)
def test_the_record_has_the_number_of_validation_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: str, equal_texts: str, drawn: int, said: list[str]
) -> None:
    """Ten rows each have one text, so only tens can be drawn."""
    settings = ["--set", f"validation.size={size}", "--set", f"validation.equal_texts={equal_texts}"]
    assert call(*ZEROSHOT, "--dataset", of_apples(tmp_path / "mine", ["oak"]), *settings, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["dataset"]["validation_rows"] == drawn
    found = [warning for warning in record["warnings"] if "validation rows" in warning]
    assert [warning.partition(", because ")[0] for warning in found] == said


def test_sigterm_while_data_is_prepared_leaves_nothing(workspace: Path) -> None:
    """fault 5, fault 33"""
    name = "synthetic:train=3000000,test=1000,labels=100000"
    command = [sys.executable, "-m", "harness", "data", "prepare", name]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    folder = workspace / "cache" / "datasets"
    deadline = time.monotonic() + 120  # to import and begin; it then works for much longer
    while not list(folder.glob(".*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    assert "stopped by SIGTERM" in process.communicate(timeout=90)[1]
    assert process.returncode == 143
    assert [path.suffix for path in folder.iterdir()] == [".lock"]
