"""Methods are found by their YAML, presets need no code, and outside packages can add their own."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from harness.cli.checks import check_search, validate_all
from harness.errors import UserError
from harness.infer.load import load_run
from harness.infer.predict import predict
from harness.run import resolve_config, run
from harness.settings import method as module
from harness.settings.layers import Layer
from harness.settings.method import load_method, method_layer, methods
from tests.support.commands import call


@pytest.fixture
def fresh_registry() -> Iterator[None]:
    methods.cache_clear()
    yield
    methods.cache_clear()


def test_everything_that_is_shipped_is_sound() -> None:
    """fault 65: cards, methods, published rows, tables to be tuned, claims"""
    counts, faults = validate_all([])
    assert faults == []
    assert counts["methods"] == len(list(methods()))


def test_parameters_are_read_without_heavy_libraries() -> None:
    """Every command may ask a method for its parameters, also those that must start fast."""
    modules = sorted({methods().origin(name).split(":")[0] for name in methods()})
    modules += ["harness.settings.published", "harness.settings.resolve"]
    code = f"import sys, importlib; [importlib.import_module(name) for name in {modules}]; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert set(modules) < set(found)
    assert not {"torch", "scipy", "numpy", "transformers", "mlflow"} & set(found)


def test_a_method_keeps_no_defaults_in_its_yaml(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("summary: mine\nparams: {beta: 3}\n")
    with pytest.raises(UserError, match=r"mine\.yaml: .*class of parameters"):
        module.read_method_card(tmp_path / "mine.yaml")


@pytest.mark.parametrize("name", sorted(methods()))
def test_a_preset_says_only_what_differs(name: str) -> None:
    card = module.read_method_card(module.method_card_path(name))
    if card.preset_of is None:
        return
    usual = resolve_config(card.preset_of, "synthetic", [])[0].params
    assert not {key for key, value in card.params.items() if usual[key] == value}


@pytest.mark.usefixtures("one_thread")
def test_the_method_of_contributing_is_added_from_outside(
    fresh_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What CONTRIBUTING.md shows, word for word, in a package of its own: listed, resolved, trained and loaded."""
    text = (module.METHOD_FOLDER.parent / "CONTRIBUTING.md").read_text()
    code, card = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "yaml"))
    assert code is not None
    assert card is not None
    assert len((code[1] + card[1]).splitlines()) <= 45
    (tmp_path / "outside_siamese.py").write_text(code[1])
    (tmp_path / "outside_siamese.yaml").write_text(card[1])
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("siamese", "outside_siamese:METHOD", "xmc_harness.methods")
    monkeypatch.setattr("harness.registry.entry_points", lambda group: [point] if group == point.group else [])

    assert {"siamese", "zeroshot"} < set(methods())
    check_search("siamese")
    assert call("ls", "parameters", "--method", "siamese", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["loss"]["default"], rows["batching"]["default"], rows["beta"]["default"]) == ("supcon", "random", 3)
    assert "logarithmic" in rows["temperature"]["search"]
    assert all(row["documentation"] for row in rows.values())

    data = "synthetic:train=240,test=60,labels=90"
    settings = {"encoder": "tiny", "epochs": 2, "batch_size": 60, "warmup_epochs": 0.0}
    config, origins = resolve_config("siamese", data, [Layer("test", settings)])
    assert (origins["params.epochs"], origins["params.loss"]) == ("test", "default")
    record = run(config, track="none")
    assert (record.status, record.config["method"], record.training["epochs"]) == ("finished", "siamese", 2)
    assert len(predict(load_run(record.run_id), ["some words"], 5)[0]) == 5
    (tmp_path / "outside_siamese.yaml").unlink()
    with pytest.raises(UserError, match="has no YAML beside its module"):
        method_layer("siamese")


@pytest.mark.parametrize("name", [None, "unidec-v1", "tfidf-knn", "dpr"])
def test_parameters_are_listed_with_default_range_and_documentation(
    name: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("ls", "parameters", *([] if name is None else ["--method", name]), "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert all(row["documentation"] and row["takes"] for row in rows.values())
    expected: dict[str | None, tuple[str, Any, str]] = {
        None: ("search.k", 100, "integer >= 1 <= 2048"),
        "unidec-v1": ("loss", "supcon", "text"),
        "tfidf-knn": ("power", 3.0, "number > 0"),
        "dpr": ("batching", "random", "clusters | glued | random"),
    }
    key, default, takes = expected[name]
    assert (rows[key]["default"], rows[key]["takes"]) == (default, takes)
    assert call("ls", "methods", "--method", "unidec") == 2


def test_presets_stack_on_their_method(fresh_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash in the name of a method is an underscore in that of its module."""
    assert methods().origin("tfidf-knn") == "methods.tfidf_knn:METHOD"
    assert method_layer("tfidf-knn").origin == "methods/tfidf-knn.yaml"
    for path in module.METHOD_FOLDER.glob("tfidf*knn.*"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "nearest.yaml").write_text(
        "summary: one neighbour\npreset_of: tfidf-knn\ndefaults: {max_len: 16}\nparams: {neighbours: 1}\n"
    )
    monkeypatch.setattr(module, "METHOD_FOLDER", tmp_path)
    methods.cache_clear()
    assert list(methods()) == ["nearest", "tfidf-knn"]
    assert load_method("nearest") is load_method("tfidf-knn")
    config, _ = resolve_config("nearest", "synthetic", [])
    assert (config.method, config.max_len, config.params["neighbours"]) == ("nearest", 16, 1)
    methods.cache_clear()
    (tmp_path / "lost.yaml").write_text("summary: x\npreset_of: nothing\n")
    with pytest.raises(UserError, match=r"lost\.yaml: preset_of: there is no method 'nothing'"):
        methods()


def test_what_is_no_method_is_refused(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("odd", "pathlib:Path", "xmc_harness.methods")
    monkeypatch.setattr("harness.registry.entry_points", lambda group: [point] if group == point.group else [])
    with pytest.raises(UserError, match=r"is not a harness\.settings\.method\.Method"):
        load_method("odd")
