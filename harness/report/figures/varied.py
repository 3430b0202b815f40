"""Runs of one method that differ from its defaults in named settings alone, for figures about these settings.

A variant is what was changed, written as for `harness.report.grids.defaults.default_settings`: `{"beta": 2}`, or
`{"augment": "gandalf", "augment_options": {"labels": 0.5}}`. All variants of a figure have one encoder: the one with
most of them, the method's own on ties.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.config import flatten
from harness.record import RunRecord
from harness.report.figures.chosen import Comparable, Group
from harness.report.figures.style import shown
from harness.report.grids.defaults import changes, default_settings, settings

Variant = dict[str, Any]


@dataclass(frozen=True)
class Varied:
    """What there is of some variants of a method on a dataset."""

    method: str
    dataset: str
    variants: tuple[Variant, ...]
    groups: tuple[Group | None, ...]
    """One per variant; None where there is no run."""

    @property
    def known(self) -> list[Group]:
        """Those that there are."""
        return [group for group in self.groups if group is not None]

    @property
    def commands(self) -> str:
        """What makes the missing runs, one command a line."""
        encoder = next((group.encoder for group in self.known), None)
        missing = [variant for variant, group in zip(self.variants, self.groups, strict=True) if group is None]
        return "\n".join(command_for(self.method, self.dataset, variant, encoder) for variant in missing)

    def caption(self, found: Comparable, measured_on: str = "Test rows of") -> str:
        """How the runs were chosen and measured."""
        counts = sorted({len(group.records) for group in self.known})
        many = str(counts[-1]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        seeds = "one run each" if counts[-1] == 1 else f"means over {many} seeds with one standard deviation"
        kept = f"Otherwise {self.method} at its default settings, encoder {shown(self.known[0].encoder)}; {seeds}."
        missing = [variant for variant, group in zip(self.variants, self.groups, strict=True) if group is None]
        told = "; ".join(" ".join(f"{key}={value}" for key, value in words(variant)) for variant in missing)
        about = found.caption.removeprefix("Test rows of")
        return kept + (f" Not run: {told}." if missing else "") + f" {measured_on}{about}"


def find_variants(
    records: Sequence[RunRecord], method: str, dataset: str, variants: Sequence[Variant], encoder: str | None = None
) -> Varied:
    """The runs of each variant, by seed.

    Args:
        records: Those that may stand beside each other, oldest first.
        method: Its name.
        dataset: Its name.
        variants: What was changed.
        encoder: The only one to be looked at; None for the one with most variants.
    """
    own = [record for record in records if record.config["method"] == method]
    if encoder is None:
        usual = (default_settings(method, dataset) or {}).get("encoder")
        names = sorted({str(record.config["encoder"]) for record in own}, key=lambda name: (name != usual, name))
        choices = [find_variants(own, method, dataset, variants, name) for name in names]
        empty = Varied(method, dataset, tuple(variants), (None,) * len(variants))
        return max(choices, key=lambda choice: len(choice.known), default=empty)
    groups: list[Group | None] = []
    for variant in variants:
        default = default_settings(method, dataset, {**variant, "encoder": encoder}) or {}
        alike = [record for record in own if not changes(settings(record.config), default)]
        by_seed = {int(record.config["seed"]): record for record in alike}
        groups.append(Group(method, encoder, dict(sorted(by_seed.items()))) if by_seed else None)
    return Varied(method, dataset, tuple(variants), tuple(groups))


def words(variant: Variant) -> list[tuple[str, str]]:
    """What was changed, as keys and values of `--set`."""
    return list(flatten(variant).items())


def command_for(method: str, dataset: str, variant: Variant, encoder: str | None = None) -> str:
    """The command that makes a run of a variant."""
    usual = (default_settings(method, dataset) or {}).get("encoder")
    named = f" --encoder {shlex.quote(encoder)}" if encoder not in (None, usual) else ""
    changed = "".join(f" --set {shlex.quote(f'{key}={value}')}" for key, value in words(variant))
    return f"python -m harness bench --methods {method} --datasets {shlex.quote(dataset)}{named}{changed}"


def mean_and_spread(values: NDArray[np.float64]) -> tuple[float, float]:
    """Over seeds [n]; of one seed the spread is 0, of none both are NaN."""
    if not values.size:
        return float("nan"), float("nan")
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0
