"""Names of figures, there and back."""

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tracking.names import full_name_tag, metric_name, original_name
from tests.trust.accounts import Account

PIECES = [
    "_",
    "_at_",
    "at",
    "@",
    "u",
    "_u40_",
    "_u5f_",
    "40",
    "_u_",
    "h",
    "a",
    "/",
    ".",
    "..",
    "λ",
    "_h" + "0" * 16,
    "h" + "0" * 16 + "_",
    "0",
]
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
    assert [original_name(name, full_name_tag(key)) for name, key in zip(names, keys, strict=True)] == keys
    account.did(f"{len(keys)} metric names with @, unicode, slashes, and one of {len(keys[-1])} characters")
    account.saw(f"all acceptable to MLflow ({names[0]}, {names[1]}, ...), all read back as they were")


@given(KEYS)
def test_every_name_maps_both_ways(key: str) -> None:
    """fault 26"""
    name = metric_name(key)
    assert acceptable(name)
    assert original_name(name, full_name_tag(key)) == key


@given(KEYS, KEYS)
def test_no_two_names_meet(one: str, other: str) -> None:
    """fault 26"""
    assert (metric_name(one) == metric_name(other)) == (one == other)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("P@1", "P_at_1"),
        ("seconds/encode", "seconds/encode"),
        ("train/loss_attention", "train/loss_attention"),
        ("lr_updates", "lr_updates"),
        ("x_at_1", "x_u5f_at_1"),
        ("x_u40_", "x_u5f_u40_"),
        ("loss (DE)", "loss _u28_DE_u29_"),
        ("a//b", "a_u2f__u2f_b"),
        ("", "_u_"),
        ("_h" + "0" * 16 + "_", "__u68_" + "0" * 16 + "_"),
        ("@h" + "0" * 16 + "_", "_at__u68_" + "0" * 16 + "_"),
    ],
)
def test_ordinary_names_stay_readable(key: str, name: str) -> None:
    assert metric_name(key) == name
    assert original_name(name) == key


def test_a_long_name_is_kept_in_a_tag() -> None:
    """fault 26: 300 characters"""
    keys = ["x" * 299 + end for end in "ab"]
    names = [metric_name(key) for key in keys]
    assert [len(name) for name in names] == [250, 250]
    assert names[0] != names[1]
    assert original_name(names[0], full_name_tag(keys[0])) == keys[0]
    assert full_name_tag("P@1") == {}
