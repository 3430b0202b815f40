"""Names of figures, there and back."""

import posixpath
import re

from hypothesis import given
from hypothesis import strategies as st

from harness.tracking.metadata import full_name_tag, metric_name, original_name
from tests.faults.accounts import Account

PIECES = [*"_ _at_ at @ u _u40_ _u5f_ 40 _u_ h a / . .. λ 0".split(), "_h" + "0" * 16, "h" + "0" * 16 + "_"]
KEYS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=300)


def acceptable(name: str) -> bool:
    """MLflow's rule, written down from its documentation."""
    path = posixpath.normpath(name)
    odd = path != name or path == "." or path.startswith(("..", "/"))
    return bool(re.fullmatch(r"[A-Za-z0-9_\-. :/]{1,250}", name)) and not odd


def test_odd_names_come_back(account: Account) -> None:
    """fault 26: one of every kind"""
    keys = ["P@1", "präzision/λ", "损失", "😀", "a_at_b", "../x", "x" * 300]
    names = [metric_name(key) for key in keys]
    assert all(acceptable(name) for name in names)
    assert len(set(names)) == len(keys)
    assert len(names[-1]) == 250
    assert full_name_tag("P@1") == {}
    assert [original_name(name, full_name_tag(key)) for name, key in zip(names, keys, strict=True)] == keys
    account.did(f"{len(keys)} metric names with @, unicode, slashes, and one of {len(keys[-1])} characters")
    account.saw(f"all acceptable to MLflow ({names[0]}, {names[1]}, ...), all read back as they were")


@given(KEYS)
def test_every_name_maps_both_ways(key: str) -> None:
    """fault 26"""
    name = metric_name(key)
    assert acceptable(name)
    assert original_name(name, full_name_tag(key)) == key
