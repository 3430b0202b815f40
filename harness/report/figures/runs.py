"""Select the runs of a figure: results -> comparable runs -> one group per method, or per variant of one method.

Runs are comparable when data, filter, propensity constants and metric version are the same; of several such versions
the one with most runs is shown, the newest on ties. Within it a method is shown at its default settings, one run per
seed, the newest.

A variant names what was changed: `{"beta": 2}`, or `{"augment": "gandalf", "augment_options": {"labels": 0.5}}`. All
variants of a figure have one encoder: the one with most of them, the method's own on ties.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.report.figures.style import Floats, format_name
from harness.report.results import Results, conditions
from harness.report.rows import changed_settings, changes, default_settings, settings, settings_of
from harness.runs.record import RunRecord, is_trial
from harness.settings.layers import flatten

Variant = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Runs of one method that differ in nothing but the seed."""

    method: str
    encoder: str
    records: dict[int, RunRecord]
    """Records by seed, ascending."""

    @property
    def first(self) -> RunRecord:
        """The run with the lowest seed."""
        return self.records[min(self.records)]

    def values(self, of: str | Callable[[RunRecord], float | None]) -> Floats:
        """Return a metric of the runs in percent, or a function's values of their records, [seeds that have one]."""
        found = [one.metrics.get(of) if isinstance(of, str) else of(one) for one in self.records.values()]
        known = np.array([value for value in found if value is not None], np.float64)
        return known[np.isfinite(known)]


@dataclass(frozen=True)
class Comparable:
    """Finished test runs on one version of a dataset."""

    records: tuple[RunRecord, ...]
    """Records, oldest first; of those with equal settings and seed, the newest."""
    left_out: int = 0
    """Number of finished test runs on other versions of the data, the filter or the metrics."""

    def caption(self, rows: str = "Test rows of") -> str:
        """Say on which rows of which data the runs were measured, for the end of a caption."""
        if not self.records:
            return ""
        first = self.records[0]
        masked = "filter pairs masked" if first.dataset.get("filter") else "no filter"
        digest = str(first.dataset.get("digest", ""))[:12]
        title = format_name(str(first.dataset.get("title") or first.dataset["name"]))
        text = f"{rows} {title}, {masked}; data {digest}, metrics v{first.metric_version}."
        if self.left_out:
            others = format_count(self.left_out, "run")
            text += f" Left out: {others} on another version of the data, the filter or the metrics."
        return text


def comparable(results: Results, dataset: str) -> Comparable:
    """Return the runs on a dataset that can be compared with each other."""
    newest: dict[Any, RunRecord] = {}
    for record in results.records:
        config = record.config
        complete = record.status == "finished" and {"method", "encoder", "seed"} <= config.keys()
        if record.dataset.get("name") == dataset and complete and not is_trial(config):
            own = str(config["method"]), str(config["encoder"]), settings_of(config), config["seed"]
            key = (conditions(record), own)
            newest.pop(key, None)  # the newer run also takes the later place
            newest[key] = record
    versions: dict[Any, list[RunRecord]] = {}
    for record in newest.values():
        versions.setdefault(conditions(record), []).append(record)
    most = max(versions.values(), key=lambda records: (len(records), records[-1].started), default=[])
    return Comparable(tuple(most), len(newest) - len(most))


def default_runs(found: Comparable) -> list[Group]:
    """Group the runs at default settings by method and encoder, sorted by name.

    A method that is not installed here is shown with the settings of most of its runs.
    """
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in found.records:
        groups.setdefault((str(record.config["method"]), str(record.config["encoder"])), []).append(record)
    kept = {key: _defaults(records) for key, records in sorted(groups.items())}
    return [_group(*key, records) for key, records in kept.items() if records]


def _defaults(records: list[RunRecord]) -> list[RunRecord]:
    """Select from runs of one method and encoder, oldest first, those at default settings."""
    if changed_settings(records[0]) is not None:
        return [record for record in records if not changed_settings(record)]
    by_settings: dict[str, list[RunRecord]] = {}
    for record in records:
        by_settings.setdefault(settings_of(record.config), []).append(record)
    return max(by_settings.values(), key=lambda found: (len(found), found[-1].started))


def _group(method: str, encoder: str, records: Sequence[RunRecord]) -> Group:
    by_seed = {int(record.config["seed"]): record for record in records}
    return Group(method, encoder, dict(sorted(by_seed.items())))


def summary(values: Floats) -> tuple[float, float]:
    """Return mean and standard deviation over seeds [n]; with one seed the deviation is 0, with none both are NaN."""
    if not values.size:
        return float("nan"), float("nan")
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0


def format_seeds(counts: Sequence[int]) -> str:
    """Say how many seeds a mean is over, from the number of seeds of each group."""
    low, high = min(counts), max(counts)
    if high == 1:
        return "one run each"
    return f"means over {high if low == high else f'{low} to {high}'} seeds with one standard deviation"


def _usual_encoder(groups: Sequence[Group]) -> str:
    encoders = [group.encoder for group in groups]
    return max(sorted(set(encoders)), key=encoders.count, default="")


def titles(groups: Sequence[Group]) -> list[str]:
    """Name each group: its method, with the encoder where that is not the one that most groups have."""
    usual = _usual_encoder(groups)
    return [
        format_name(group.method, 24) + ("" if group.encoder == usual else f" ({format_name(group.encoder, 16)})")
        for group in groups
    ]


def remarks(found: Comparable, groups: Sequence[Group]) -> str:
    """Describe how the groups of a figure were chosen and measured, for its caption."""
    seeds = format_seeds([len(group.records) for group in groups])
    several = len({group.encoder for group in groups}) > 1
    encoder = f"encoder {format_name(_usual_encoder(groups))}" + (" unless another is named" if several else "")
    absent = sorted({str(record.config["method"]) for record in found.records} - {group.method for group in groups})
    missing = f" Not shown, for want of such a run: {', '.join(map(format_name, absent))}." if absent else ""
    return f"Methods at their default settings, {encoder}; {seeds}.{missing} {found.caption()}"


def format_count(number: int, noun: str) -> str:
    """Format a count with its noun: `1 method`, `2 methods`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def bench_command(dataset: str, seeds: str = "0,1,2") -> str:
    """Return the command that makes the runs a figure lacks."""
    return f"python -m harness bench --methods all --datasets {shlex.quote(dataset)} --seeds {seeds}"


@dataclass(frozen=True)
class Varied:
    """The runs of some variants of a method on a dataset."""

    method: str
    dataset: str
    variants: tuple[Variant, ...]
    groups: tuple[Group | None, ...]
    """One group per variant; None where there is no run."""

    @property
    def known(self) -> list[Group]:
        """The groups of the variants that were run."""
        return [group for group in self.groups if group is not None]

    @property
    def missing(self) -> list[Variant]:
        """The variants that were not run."""
        return [variant for variant, group in zip(self.variants, self.groups, strict=True) if group is None]

    def commands(self, variants: Sequence[Variant] | None = None) -> str:
        """Return commands that make the missing runs, or runs of the given variants, one per line."""
        encoder = next((group.encoder for group in self.known), None)
        usual = (default_settings(self.method, self.dataset) or {}).get("encoder")
        start = f"python -m harness bench --methods {self.method} --datasets {shlex.quote(self.dataset)}"
        if encoder not in (None, usual):
            start += f" --encoder {shlex.quote(encoder)}"
        changed = [flatten(variant).items() for variant in (self.missing if variants is None else variants)]
        return "\n".join(
            start + "".join(f" --set {shlex.quote(f'{key}={value}')}" for key, value in one) for one in changed
        )

    def caption(self, found: Comparable, rows: str = "Test rows of") -> str:
        """Describe how the runs were chosen and measured."""
        seeds = format_seeds([len(group.records) for group in self.known])
        kept = f"{self.method} at its default settings, encoder {format_name(self.known[0].encoder)}"
        absent = "; ".join(" ".join(f"{key}={value}" for key, value in flatten(one).items()) for one in self.missing)
        missing = f" Not run: {absent}." if absent else ""
        return f"Otherwise {kept}; {seeds}.{missing} {found.caption(rows)}"


def find_variants(
    records: Sequence[RunRecord], method: str, dataset: str, variants: Sequence[Variant], encoder: str | None = None
) -> Varied:
    """Find the runs of each variant among comparable runs; without `encoder`, for the one with most variants."""
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
        groups.append(_group(method, encoder, alike) if alike else None)
    return Varied(method, dataset, tuple(variants), tuple(groups))
