"""Text that no tokeniser asked for, in every layout, from the file to tokens, training and predictions."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.data import load
from harness.model.encoders.encoder import load_encoder
from harness.run import run
from harness.train.inputs import tokenise
from tests.faults.accounts import Account
from tests.support.commands import call
from tests.support.repository_files import write_json_layout, write_jsonl, write_text_layout
from tests.support.training_runs import config

pytestmark = pytest.mark.usefixtures("one_thread")

ODD = {
    "empty": "",
    "blank": " \t ",
    "1 MB": "word " * 210_000,
    "NUL": "zero\0byte",
    "BOM": "\ufeffmarked",
    "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308",
    "CR": "one\rtwo",
}
CLEAN = [text.replace("\0", " ") for text in ODD.values()]
LATIN = "caf\u00e9 \u00a7"
MARK = b"\xef\xbb\xbf"


def json_lines(folder: Path) -> list[str]:
    texts = [*ODD.values(), "two\r\nlines"]
    rows = [{"text": text, "labels": [i]} for i, text in enumerate(texts)]
    write_jsonl(folder, train=rows, test=rows, labels=[{"id": i, "text": text} for i, text in enumerate(texts)])
    for path in folder.iterdir():
        path.write_bytes(MARK + path.read_bytes().replace(b"\n", b"\r\n"))
    return [*CLEAN, texts[-1]]


def repository_json(folder: Path) -> list[str]:
    texts = [*ODD.values(), "two\r\nlines"]
    rows = [{"uid": i, "title": text, "target_ind": [i]} for i, text in enumerate(texts)]
    lines = [json.dumps(row, ensure_ascii=i % 2 > 0) for i, row in enumerate(rows)]
    write_json_layout(folder, trn=MARK + "\r\n".join([*lines, "", ""]).encode(), tst=rows, lbl=rows)
    (folder / "filter_labels_train.txt").write_text("")
    return [*CLEAN, texts[-1]]


def lines_of_text(folder: Path) -> list[str]:
    body = MARK + "\r\n".join(ODD.values()).encode()
    pairs = f"{len(ODD)} {len(ODD)}\n" + "".join(f"{i}:1\n" for i in range(len(ODD)))
    write_text_layout(folder, Y=body, trn_X=body, tst_X=body, trn_X_Y=pairs, tst_X_Y=pairs)
    return CLEAN


def lines_that_are_not_utf8(folder: Path) -> list[str]:
    lines_of_text(folder)
    texts = ["fine", LATIN] * (len(ODD) // 2)
    (folder / "trn_X.txt").write_bytes("\r\n".join(texts).encode("latin-1"))
    return texts


@pytest.mark.parametrize("write", [json_lines, repository_json, lines_of_text, lines_that_are_not_utf8])
def test_odd_texts_are_read_and_tokenised(write: Callable[[Path], list[str]], tmp_path: Path, account: Account) -> None:
    """fault 44: each is read as it is (a NUL as a space), as a row and as a label."""
    expected = write(tmp_path / "odd")
    data = load(tmp_path / "odd")
    assert list(data.train_text) == expected
    assert len(data.label_text) == len(expected)
    warnings = data.metadata["provenance"]["warnings"]
    latin = [warning for warning in warnings if "latin-1" in warning and "line 2 " in warning]
    assert len(latin) == (write is lines_that_are_not_utf8)
    assert any("2 empty" in warning for warning in warnings)
    tokens = tokenise(data, load_encoder("tiny", seed=0), 16)
    assert all(2 <= length <= 16 for store in (tokens.train, tokens.labels) for length in store.lengths)
    kinds = ", ".join([*ODD, "CRLF"]) if write is not lines_that_are_not_utf8 else f"train texts in latin-1, {LATIN!r}"
    account.did(f"{write.__name__.replace('_', ' ')}: {kinds}")
    account.saw(f"{len(expected)} rows and {len(data.label_text)} labels read as written, none of more than 16 tokens")


def test_odd_texts_are_trained_on_and_get_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], account: Account
) -> None:
    """fault 44: from the prepared texts, which are the same in every layout, to finite scores."""
    json_lines(tmp_path / "odd")
    record = run(config(dataset=str(tmp_path / "odd"), epochs=1, max_len=16, batch_size=4), track="none")
    assert all(math.isfinite(value) for value in record.metrics.values())
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"text": text}) + "\n" for text in ODD.values()))
    capsys.readouterr()
    place = ("--run", record.run_id, "--dataset", str(tmp_path / "odd"), "--file", str(queries))
    assert call("predict", *place, "-k", "3", "--json") == 0
    shown = capsys.readouterr()
    answers = [json.loads(line) for line in shown.out.splitlines()]
    assert [answer["text"] for answer in answers] == list(ODD.values())
    found = [[one["score"] for one in answer["predictions"]] for answer in answers]
    assert [len(scores) for scores in found] == [3] * len(ODD)
    assert all(math.isfinite(score) for scores in found for score in scores)
    assert "2 of 8 texts are empty" in shown.err
    account.did(f"trained on, and predicted for, texts that are {', '.join(ODD)}")
    account.saw(f"{record.training['steps']} steps trained; {len(answers)} of {len(ODD)} answered with finite scores")
