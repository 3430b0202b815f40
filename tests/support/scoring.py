"""Packed models behind a web server on the loopback interface, and requests to it."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.infer.load import TrainedRun
from harness.infer.predict import predict
from tests.support.servers import free_port


def opened(folder: Path) -> Any:
    """Load a packed model with MLflow."""
    import mlflow

    return mlflow.pyfunc.load_model(str(folder))


def ask(port: int, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def check_answers(port: int, unidec: TrainedRun) -> None:
    texts = list(unidec.dataset.test_text)[:3]
    expected = predict(unidec, texts, 2)
    status, answer = ask(port, {"dataframe_records": [{"text": text} for text in texts], "params": {"k": 2}})
    assert status == 200
    assert [row["labels"] for row in answer["predictions"]] == [[one.label for one in row] for row in expected]
    assert [row["texts"] for row in answer["predictions"]] == [[one.text for one in row] for row in expected]
    assert all(len(row["scores"]) == 2 for row in answer["predictions"])
    status, answer = ask(port, {"dataframe_records": [{"text": "x"}], "params": {"k": 0}})
    assert status == 400
    assert "k is 0" in answer["message"]


@contextmanager
def scoring_server(folder: Path) -> Iterator[int]:
    """Serve the model with MLflow's own web application, in a thread of this process; yield its port."""
    import uvicorn
    from mlflow.pyfunc import scoring_server as theirs

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(theirs.init(opened(folder)), "127.0.0.1", port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    limit = time.monotonic() + 30
    while not server.started and time.monotonic() < limit:
        time.sleep(0.02)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(10)
