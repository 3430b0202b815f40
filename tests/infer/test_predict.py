"""Labels that a finished run predicts: those of its own dataset, and labels it never saw."""

import io
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness import metrics
from harness.errors import UserError
from harness.infer.load import TrainedRun
from harness.infer.predict import chosen_scorer, label_vectors, predict
from harness.model.scoring import TwoHeadScoring
from tests.support.commands import call

pytestmark = pytest.mark.usefixtures("in_their_home")


def places(trained: TrainedRun, rows: list[Any]) -> np.ndarray[Any, Any]:
    """Label indices [n, k] of predictions, -1 where there are fewer than the most."""
    place_of = {name: place for place, name in enumerate(trained.dataset.label_id)}
    ids = np.full((len(rows), max(map(len, rows))), -1)
    for row, found in enumerate(rows):
        ids[row, : len(found)] = [place_of[one.label] for one in found]
    return ids


# ---------------------------------------------------------------- the same answers as the run itself


@pytest.mark.parametrize("name", ["unidec", "depsl", "zeroshot"])
def test_test_rows_get_the_labels_the_run_found(
    name: str, loaded: dict[str, TrainedRun], home_of_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = loaded[name]
    folder, data = home_of_runs / "runs" / trained.record.run_id, trained.dataset
    free = np.flatnonzero(np.diff(data.test_filter.indptr) == 0)
    assert 0 < len(free) < 80
    rows = predict(trained, [data.test_text[int(row)] for row in free], 10)
    assert (places(trained, rows) == np.load(folder / "ids.npy")[free, :10]).all()
    scores = [[one.score for one in found] for found in rows]
    np.testing.assert_allclose(scores, np.load(folder / "scores.npy")[free, :10], atol=1e-6)
    first = rows[0][0]
    assert data.label_text[list(data.label_id).index(first.label)] == first.text
    assert not any(one.new for found in rows for one in found)
    masked = predict(trained, list(data.test_text), 60, exclude=data.test_filter)
    assert (places(trained, masked) == np.load(folder / "ids.npy")[:, :60]).all()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("scorer", ["concat", "de", "clf"])
def test_every_scorer_has_the_figures_of_the_record(scorer: str, unidec: TrainedRun) -> None:
    data = unidec.dataset
    rows = predict(unidec, list(data.test_text), 5, scorer=scorer, exclude=data.test_filter)
    found = metrics.evaluate(places(unidec, rows), data.test)
    for key in ("P@1", "P@3", "P@5"):
        assert found[key] == pytest.approx(unidec.record.scorers[scorer][key], abs=1e-9)


def test_a_text_alone_and_among_others(unidec: TrainedRun) -> None:
    texts = list(unidec.dataset.test_text)[:12]
    together = predict(unidec, texts, 5)
    for text, expected in zip(texts, together, strict=True):
        (alone,) = predict(unidec, [text], 5)
        assert [one.label for one in alone] == [one.label for one in expected]
        assert [one.score for one in alone] == pytest.approx([one.score for one in expected], abs=1e-6)
    assert predict(unidec, [], 5) == []


def test_fewer_labels_than_asked_for(unidec: TrainedRun) -> None:
    """fault 55"""
    (found,) = predict(unidec, ["some text"], 10**5)
    assert sorted(one.label for one in found) == sorted(unidec.dataset.label_id)
    with pytest.raises(UserError, match="k is 0"):
        predict(unidec, ["some text"], 0)


def test_odd_texts(unidec: TrainedRun, capsys: pytest.CaptureFixture[str]) -> None:
    """fault 44"""
    rows = predict(unidec, ["", " \t", "naïve 😀 \u202e\u05e9\u05dc", "word " * 10_000, "zero\0byte"], 3)
    assert [len(found) for found in rows] == [3] * 5
    assert capsys.readouterr().err.count("warning: 2 of 5 texts are empty") == 1
    assert predict(unidec, ["zero byte"], 3) == predict(unidec, ["zero\0byte"], 3)
    with pytest.raises(UserError, match="text 2 is not valid Unicode at character 3"):
        predict(unidec, ["fine", "no\udcff"], 3)


# ---------------------------------------------------------------- labels nobody trained on


def test_a_new_label_is_found_by_its_text(unidec: TrainedRun, capsys: pytest.CaptureFixture[str]) -> None:
    query = "a text like no other"
    before = predict(unidec, [query], 60, scorer="de")[0]
    (found,) = predict(unidec, [query], 62, add_labels=[("mine", query), ("other", "zzz")])
    assert (found[0].label, found[0].text, found[0].new) == ("mine", query, True)
    assert found[0].score == pytest.approx(1, abs=1e-5)
    assert {one.label for one in found if one.new} == {"mine", "other"}
    assert [one for one in found if not one.new] == before
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert capsys.readouterr().err.splitlines() == [
        "warning: all labels are scored by 'de', from text alone: new labels have no classifier row"
    ]


def test_new_labels_leave_excluded_pairs_out(unidec: TrainedRun) -> None:
    data = unidec.dataset
    rows = predict(unidec, list(data.test_text), 61, scorer="de", add_labels=[("mine", "x")], exclude=data.test_filter)
    assert [len(found) for found in rows] == (61 - np.diff(data.test_filter.indptr)).tolist()


def test_new_labels_that_are_not_new(unidec: TrainedRun) -> None:
    told: list[str] = []
    text = unidec.dataset.label_text[3]
    (found,) = predict(unidec, [text], 2, scorer="de", add_labels=[("a", text), ("b", "y")], warn=told.append)
    assert {one.label for one in found} == {"a", unidec.dataset.label_id[3]}
    assert told == ["1 of 2 new labels have the text of a label that the run has already"]
    with pytest.raises(UserError, match="2 new labels have the id 'a'"):
        predict(unidec, ["x"], add_labels=[("a", "x"), ("a", "y")])
    with pytest.raises(UserError, match=f"has a label of id '{unidec.dataset.label_id[3]}' already"):
        predict(unidec, ["x"], add_labels=[(unidec.dataset.label_id[3], "x")])


def test_which_scorer(loaded: dict[str, TrainedRun], unidec: TrainedRun) -> None:
    told: list[str] = []
    assert chosen_scorer(unidec, None, False) == "concat"
    assert chosen_scorer(unidec, "de", True, told.append) == "de"
    assert chosen_scorer(loaded["depsl"], None, True, told.append) == "de"
    assert chosen_scorer(loaded["zeroshot"], None, True, told.append) == "encoder"
    assert told == []
    with pytest.raises(UserError, match="unknown scorer 'clf'; known: de"):
        chosen_scorer(loaded["depsl"], "clf", False)
    with pytest.raises(UserError, match="scorer 'clf' needs labels that were trained"):
        chosen_scorer(unidec, "clf", True)
    textless = SimpleNamespace(scorers=("clf",), text_scorer=None)
    with pytest.raises(UserError, match="cannot score a label by its text alone"):
        chosen_scorer(replace(unidec, parts=replace(unidec.parts, scoring=textless)), None, True)


# ---------------------------------------------------------------- label vectors are kept


@pytest.fixture
def counted(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """An empty cache, and the scorers whose label vectors were computed since."""
    monkeypatch.setenv("HARNESS_HOME", str(workspace))
    calls: list[tuple[str, ...]] = []
    real = TwoHeadScoring.label_vectors

    def counting(self: TwoHeadScoring, tokens: Any, scorers: tuple[str, ...]) -> Any:
        calls.append(scorers)
        return real(self, tokens, scorers)

    monkeypatch.setattr(TwoHeadScoring, "label_vectors", counting)
    return calls


def test_labels_are_encoded_once(
    unidec: TrainedRun, loaded: dict[str, TrainedRun], counted: list[tuple[str, ...]]
) -> None:
    first = predict(unidec, ["some text"])
    assert predict(unidec, ["some text"]) == first
    assert counted == [("concat",)]
    predict(unidec, ["some text"], scorer="de")
    predict(loaded["depsl"], ["some text"])
    assert counted == [("concat",), ("de",), ("de",)]
    assert (label_vectors(unidec, "concat")[:, :32] == label_vectors(unidec, "de")).all()


# ---------------------------------------------------------------- the command line


def test_predict_prints_tables_and_json(
    unidec: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = unidec.record.run_id
    assert call("predict", "--run", run_id, "--text", "first", "--text", "second\x1b[31m text", "-k", "3") == 0
    shown = capsys.readouterr().out
    assert f"run {run_id}, scorer concat" in shown
    assert "\x1b" not in shown
    expected = predict(unidec, ["first", "second\x1b[31m text"], 3)
    for one in (one for found in expected for one in found):
        assert f"{one.score:.4f}" in shown
        assert one.text in shown
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"first\r\nsecond\x1b[31m text")))
    assert call("predict", "--run", run_id, "--file", "-", "-k", "3", "--json") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers] == ["first", "second\x1b[31m text"]
    assert [answer["predictions"] for answer in answers] == [[asdict(one) for one in found] for found in expected]
    (tmp_path / "texts.jsonl").write_text('{"text": "printer on fire", "id": 3}\n')
    (tmp_path / "labels.txt").write_text("printer on fire\n")
    arguments = ["predict", "--run", run_id, "--file", str(tmp_path / "texts.jsonl")]
    assert call(*arguments, "--add-labels", str(tmp_path / "labels.txt")) == 0
    shown, told = capsys.readouterr()
    assert "scorer de" in shown
    assert ["1", "1.0000", "new-1", "printer", "on", "fire", "new"] in [line.split() for line in shown.splitlines()]
    assert told.count("\n") == 1
    assert call(*arguments, "--scorer", "clff") == 2
    assert "did you mean 'clf'?" in capsys.readouterr().err
