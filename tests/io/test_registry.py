"""Names resolve lazily, and mistakes in them are explained."""

from importlib.metadata import EntryPoint

import pytest

from harness.errors import UserError
from harness.registry import Registry


def test_lazy_lookup_and_summary() -> None:
    registry: Registry[object] = Registry("thing")
    registry.register("path", "pathlib:Path", "a path")
    registry.register("broken", "no_such_module:Thing")
    assert list(registry) == ["broken", "path"]
    assert registry.summary("path") == "a path"
    assert registry.get("path").__name__ == "Path"
    with pytest.raises(ModuleNotFoundError):
        registry.get("broken")


def test_duplicates_are_refused() -> None:
    registry: Registry[object] = Registry("thing")
    registry.register("path", "pathlib:Path")
    with pytest.raises(UserError, match="registered twice"):
        registry.register("path", "os:path")


def test_unknown_name_suggests_the_nearest() -> None:
    """fault 65"""
    registry: Registry[object] = Registry("method")
    registry.register("unidec", "x:y")
    registry.register("renee", "x:y")
    with pytest.raises(UserError, match="unknown method 'unidek'; did you mean 'unidec'\\? known: renee, unidec"):
        registry.get("unidek")


def test_entry_points_add_names(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("outside", "pathlib:PurePath", "xmc_harness.things")
    monkeypatch.setattr("harness.registry.entry_points", lambda group: [point] if group == point.group else [])
    registry: Registry[object] = Registry("thing", group="xmc_harness.things")
    registry.register("own", "pathlib:Path")
    assert list(registry) == ["outside", "own"]
    assert registry.get("outside").__name__ == "PurePath"
    assert registry.origin("outside") == "pathlib:PurePath"
    clash: Registry[object] = Registry("thing", group="xmc_harness.things")
    clash.register("outside", "pathlib:Path")
    with pytest.raises(UserError, match="already taken"):
        list(clash)
