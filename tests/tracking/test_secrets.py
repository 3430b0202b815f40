"""What leaves this machine with a run holds no password, no token and no path of it; and nobody else is listened to."""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.io.files import read_json
from harness.report.collect import collect
from harness.report.explorer import build_explorer
from harness.report.results import read_results
from harness.report.site import make_site
from harness.tracking.store import open_store
from harness.tracking.sync import log_folders, sync
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.servers import free_port
from tests.support.small_models import write_model
from tests.support.tracked_runs import eventually, stored_runs
from tests.support.training_runs import begin_child, exit_code

ROOT = Path(__file__).parents[2]
TOKENS = {
    "HF_TOKEN": "hf_ThisIsNoToken1234567890",
    "MLFLOW_TRACKING_PASSWORD": "hunter2-and-more",
    "MLFLOW_TRACKING_TOKEN": "mlflow-token-of-nobody",
    "AWS_SECRET_ACCESS_KEY": "aws-key-of-nobody",
}
WORDS = [f"w{number}" for number in range(40)]


@pytest.fixture
def alice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Path:
    """Somebody's home: data, a model and settings in private folders, tokens in the environment."""
    home = tmp_path / "alice"
    data = home / "private" / "tickets"
    data.mkdir(parents=True)
    for name in ("train", "test"):
        rows = [{"text": f"{word} {word}x", "labels": [f"l{place % 9}"]} for place, word in enumerate(WORDS)]
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = [{"id": f"l{number}", "text": WORDS[number]} for number in range(9)]
    (data / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labels))
    write_model(home / "private" / "small-bert")
    (home / "private" / "mine.yaml").write_text("epochs: 1\nbatch_size: 20\nrandom_epochs: 1\nwarmup_epochs: 0.0\n")
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(home))
    return home


def test_nothing_of_this_machine_travels(
    alice: Path, workspace: Path, mlflow_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    """fault 70: run folders, config, log, MLflow's parameters, tags and files, packed model, results, page"""
    private = alice / "private"
    words = ["run", "--track", "none", "--dataset", f"{private}/tickets/", "--encoder", f"{private}/small-bert/"]
    settings = ["--config", str(private / "mine.yaml"), "--set", f"encoder={private}/small-bert", "--set", "max_len=16"]
    assert call(*words, *settings) == 0
    with monkeypatch.context() as patch:
        patch.setattr("harness.train.evaluation.search", broken)
        assert call(*words, *settings) in (1, 2)
    client = open_store(mlflow_store)
    outcomes = sync(client, log_folders([], None))
    assert [outcome.result for outcome in outcomes] == ["sent", "sent"]

    out, explorer = tmp_path / "reports", tmp_path / "explorer"
    assert collect([workspace / "runs"], None, [], out).runs == 1
    build_explorer([workspace / "runs"], explorer)
    results = read_results(out)
    texts = {f"site/{name}": content for name, content in make_site(results).items()}
    assert any(name.endswith(".html") for name in texts)
    for top in (workspace / "runs", workspace / "mlartifacts", out, explorer):
        found = [path for path in top.rglob("*") if path.is_file() and path.suffix != ".lock"]
        assert found, top
        texts |= {str(path.relative_to(tmp_path)): path.read_bytes() for path in found}
    for run in stored_runs(client):
        texts[f"{run.info.run_id} in MLflow"] = repr((run.data.params, run.data.tags, run.inputs)).encode()
    assert any(name.endswith("model/MLmodel") for name in texts)
    assert any(b"No space" in content for name, content in texts.items() if name.endswith("record.json"))

    places = ["alice", str(alice), str(workspace), str(tmp_path), str(ROOT), f"{Path('~').expanduser()}/"]
    secrets = [*TOKENS.values(), *places]
    leaks = [(name, secret) for name, content in texts.items() for secret in secrets if secret.encode() in content]
    assert leaks == []
    assert read_json(max((workspace / "runs").glob("*/config.json")))["config"]["encoder"] == "./small-bert"
    size = sum(map(len, texts.values()))
    account.did(
        f"a run and a failing one with {len(TOKENS)} tokens in the environment, data and model in a home folder"
    )
    where = f"{len(texts)} files and MLflow entries ({size / 1e6:.1f} MB)"
    account.saw(f"no token and no path in {where}, packed model and page among them")


def broken(*_: Any, **__: Any) -> None:
    """What a driver says when something is wrong: more than one wants to publish."""
    place, token = Path.home() / "private" / "x", TOKENS["MLFLOW_TRACKING_PASSWORD"]
    raise OSError(f"No space left on device: {place} ({token}), {os.environ['HARNESS_HOME']}/y")


# ---------------------------------------------------------------- servers


def test_the_user_interface_listens_to_this_machine_alone(
    workspace: Path, mlflow_store: str, tmp_path: Path, account: Account
) -> None:
    """fault 70: a real `harness ui`, by the sockets that its processes hold"""
    port = free_port()
    server = begin_child(lambda: call("ui", "--port", str(port)), tmp_path / "log")
    try:
        eventually(lambda: answers("127.0.0.1", port) or os.waitpid(server, os.WNOHANG)[0])
        assert answers("127.0.0.1", port), (tmp_path / "log").read_text()
        family = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
        sockets = [one for process in family for one in process.net_connections("inet") if one.status == "LISTEN"]
        addresses = {one.laddr.ip for one in sockets}
        assert (addresses, {one.laddr.port for one in sockets}) == ({"127.0.0.1"}, {port})
        others = {
            one.address for cards in psutil.net_if_addrs().values() for one in cards if one.family == socket.AF_INET
        }
        reached = [address for address in sorted(others - {"127.0.0.1"}) if answers(address, port)]
        assert reached == []
    finally:
        os.kill(server, signal.SIGTERM)
        exit_code(server)
    psutil.wait_procs(family, timeout=60)
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    account.did(
        f"a real `harness ui`: the listening sockets of its {len(family)} processes, and a call to every address"
    )
    account.saw(f"listens on {', '.join(addresses)} alone; SIGTERM leaves no process")


def answers(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((address, port)) == 0


def test_the_user_interface_shows_no_password_and_takes_no_other_address(
    mlflow_store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """fault 70: MLflow's own variables name a host, too; ours is given in words, which win"""
    started: list[tuple[list[str], dict[str, str]]] = []

    class Server:
        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            started.append((command, env))

        def wait(self) -> int:
            return 0

    monkeypatch.setenv("MLFLOW_HOST", "0.0.0.0")  # noqa: S104
    monkeypatch.setattr("harness.cli.tracking.subprocess.Popen", Server)
    assert call("ui", "--port", str(free_port())) == 0
    ((command, environment),) = started
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert mlflow_store not in " ".join(command)
    assert environment["MLFLOW_BACKEND_STORE_URI"] == mlflow_store
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@server:5000")
    assert call("ui") == 0
    assert "open http://me:***@server:5000" in capsys.readouterr().out
    assert len(started) == 1
