"""Methods are found by their YAML, presets need no code, and outside packages can add their own."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness import method as module
from harness.config import Layer
from harness.errors import UserError
from harness.method import load_method, method_layer, methods
from harness.run import resolve_config, run
from harness.validate import check_method

OUTSIDE = """
from harness.config import Settings
from harness.method import Method
from methods.zeroshot import FrozenEncoder, Parts


class Params(Settings):
    flip: bool = False


def build(inputs, params):
    return Parts(scorer=FrozenEncoder(inputs.encoder, True, inputs.device, inputs.batch_tokens))


METHOD = Method(Params, build)
"""


@pytest.fixture
def fresh_registry():
    methods.cache_clear()
    yield
    methods.cache_clear()


def test_every_method_of_ours_is_complete() -> None:
    names = sorted(path.stem for path in module.METHOD_FOLDER.glob("*.yaml"))
    assert "zeroshot" in names
    for name in names:
        check_method(name)
        assert methods().summary(name)


def test_a_package_outside_adds_a_method(fresh_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outside_method.py").write_text(OUTSIDE)
    (tmp_path / "outside_method.yaml").write_text("summary: theirs\nparams:\n  # turns it over\n  flip: true\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("theirs", "outside_method:METHOD", "xmc_harness.methods")
    monkeypatch.setattr("harness.registry.entry_points", lambda group: [point] if group == point.group else [])
    assert {"theirs", "zeroshot"} < set(methods())
    config, origins = resolve_config("theirs", "synthetic", [Layer("test", {"encoder": "tiny"})])
    assert (config.params, origins["params.flip"]) == ({"flip": True}, "methods/outside_method.yaml")
    assert run(config, track="none").config["method"] == "theirs"
    (tmp_path / "outside_method.yaml").unlink()
    with pytest.raises(UserError, match="has no YAML beside its module"):
        method_layer("theirs")


def test_presets_stack_on_their_method(fresh_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in module.METHOD_FOLDER.glob("zeroshot.*"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "zeroshot-dot.yaml").write_text(
        "summary: inner product\npreset_of: zeroshot\ndefaults: {max_len: 16}\nparams: {similarity: dot}\n"
    )
    monkeypatch.setattr(module, "METHOD_FOLDER", tmp_path)
    assert list(methods()) == ["zeroshot", "zeroshot-dot"]
    assert load_method("zeroshot-dot") is load_method("zeroshot")
    config, _ = resolve_config("zeroshot-dot", "synthetic", [])
    assert (config.method, config.encoder, config.max_len) == ("zeroshot-dot", "static", 16)
    assert config.params == {"similarity": "dot"}
    methods.cache_clear()
    (tmp_path / "lost.yaml").write_text("summary: x\npreset_of: nothing\n")
    with pytest.raises(UserError, match=r"lost\.yaml: preset_of: there is no method 'nothing'"):
        methods()


def test_what_is_no_method_is_refused(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("odd", "pathlib:Path", "xmc_harness.methods")
    monkeypatch.setattr("harness.registry.entry_points", lambda group: [point] if group == point.group else [])
    with pytest.raises(UserError, match=r"is not a harness\.method\.Method"):
        load_method("odd")


def test_a_dash_in_a_name_is_an_underscore_in_its_module(
    fresh_registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert methods().origin("tfidf-knn") == "methods.tfidf_knn:METHOD"
    assert method_layer("tfidf-knn").origin == "methods/tfidf-knn.yaml"
    assert load_method("tfidf-knn").params.model_fields["neighbours"].default == 100
    for path in module.METHOD_FOLDER.glob("tfidf*knn.*"):
        (tmp_path / path.name).write_text(path.read_text())
    (tmp_path / "nearest.yaml").write_text("summary: one neighbour\npreset_of: tfidf-knn\nparams: {neighbours: 1}\n")
    monkeypatch.setattr(module, "METHOD_FOLDER", tmp_path)
    methods.cache_clear()
    assert list(methods()) == ["nearest", "tfidf-knn"]
    assert load_method("nearest") is load_method("tfidf-knn")
