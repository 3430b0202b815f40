"""Every test of this folder measures speed."""

from pathlib import Path

import pytest

from tests.benchmarks.race import race

__all__ = ["race"]
_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them, so that `make test` leaves them out."""
    for item in items:
        if _HERE in item.path.parents and "race" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.benchmarks)
