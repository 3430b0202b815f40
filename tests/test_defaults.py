"""Defaults read from files alone are those that a run resolves to."""

import subprocess
import sys

import pytest

from harness.config import Layer
from harness.method import methods
from harness.published import published_tables
from harness.report.grids.defaults import changes, default_settings, settings
from harness.run import resolve_config

ROWS = [row for table in published_tables().values() for row in table.rows if row.method is not None]


@pytest.mark.parametrize("dataset", ["lf-pydocstitles", "lf-amazontitles-131k", "lf-wikiseealso-320k", "synthetic"])
@pytest.mark.parametrize("method", sorted(methods()))
def test_defaults_are_what_a_run_resolves_to(method: str, dataset: str) -> None:
    config, _ = resolve_config(method, dataset, [])
    assert default_settings(method, dataset) == settings(config.model_dump(mode="json"))


@pytest.mark.parametrize("row", ROWS[:: len(ROWS) // 40], ids=lambda row: row.name)
def test_a_published_row_over_the_defaults_is_what_its_run_resolves_to(row) -> None:  # type: ignore[no-untyped-def]
    config, _ = resolve_config(row.method, row.dataset, [Layer("row", row.settings)])
    assert default_settings(row.method, row.dataset, row.settings) == settings(config.model_dump(mode="json"))


def test_changes_are_told_and_a_missing_key_is_none() -> None:
    expected = default_settings("unidec", "lf-pydocstitles")
    assert expected is not None
    found = dict(expected, encoder="minilm", **{"params.beta": 1, "params.new": 2})
    found["params.bce_weight"] = 0  # the same number
    del found["params.eta"]
    assert changes(found, expected) == {"encoder": "minilm", "params.beta": 1, "params.new": 2}


def test_a_method_that_is_not_here_has_none() -> None:
    assert default_settings("nobody", "lf-pydocstitles") is None
    assert default_settings("unidec", "./mine") == default_settings("unidec", "no-such-card")


def test_no_torch_is_needed() -> None:
    code = "import sys; from harness.report.grids.defaults import default_settings as d; d('unidec', 'synthetic'); "
    subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], check=True)
