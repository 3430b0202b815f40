"""Which runs a figure shows: evidence -> runs that may stand beside each other -> one group per method.

Runs stand beside each other when data, filter, propensity constants and metric version are the same; of several such
versions the one with most runs is shown, the newest on ties. Within it a method is shown as it is by default, one run
per seed, the newest.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.record import RunRecord
from harness.report import is_trial, settings_of
from harness.report.evidence import Evidence, conditions
from harness.report.figures.style import shown
from harness.report.grids.defaults import changed_settings


@dataclass(frozen=True)
class Group:
    """Runs of one method that differ in nothing but the seed."""

    method: str
    encoder: str
    records: dict[int, RunRecord]
    """By seed, ascending."""

    @cached_property
    def views(self) -> tuple[str, ...]:
        """Ways of scoring that all its runs have; empty where there is one without a name."""
        first, *others = self.records.values()
        return tuple(name for name in first.views if all(name in record.views for record in others))

    def values(self, metric: str, view: str | None = None) -> NDArray[np.float64]:
        """A metric of its runs, percent, [seeds that have it]; of the scorer that a run reports unless one is named."""
        scores = [record.views.get(view, {}) if view else record.metrics for record in self.records.values()]
        known = np.array([score[metric] for score in scores if metric in score], np.float64)
        return known[np.isfinite(known)]


@dataclass(frozen=True)
class Comparable:
    """Finished test runs on one version of a dataset."""

    records: tuple[RunRecord, ...]
    """Oldest first; of equal settings and seed the newest."""
    left_out: int = 0
    """Finished test runs on other versions of the data, the filter or the metrics."""

    @property
    def caption(self) -> str:
        """What was measured, for the end of a caption."""
        if not self.records:
            return ""
        first = self.records[0]
        masked = "filter pairs masked" if first.dataset.get("filter") else "no filter"
        digest = str(first.dataset.get("digest", ""))[:12]
        text = f"Test rows of {shown(_title(first))}, {masked}; data {digest}, metrics v{first.metric_version}."
        if self.left_out:
            text += (
                f" Left out: {counted(self.left_out, 'run')} on another version of the data, the filter or the metrics."
            )
        return text


def comparable(evidence: Evidence, dataset: str) -> Comparable:
    """The runs on a dataset that may stand beside each other."""
    newest: dict[Any, RunRecord] = {}
    for record in sorted(evidence.records, key=lambda record: (record.started, record.run_id)):
        if record.dataset.get("name") == dataset and _counts(record):
            newest[(*conditions(record), *_identity(record), record.config["seed"])] = record
    versions: dict[Any, list[RunRecord]] = {}
    for record in newest.values():
        versions.setdefault(conditions(record), []).append(record)
    if not versions:
        return Comparable(())
    most = max(versions.values(), key=lambda records: (len(records), max(record.started for record in records)))
    ordered = sorted(most, key=lambda record: (record.started, record.run_id))
    return Comparable(tuple(ordered), len(newest) - len(most))


def default_runs(evidence: Evidence, dataset: str) -> list[Group]:
    """One group per method and encoder, by name: the runs with the method's default settings on this dataset.

    A method that is not known here, of a package that is not installed, is shown with the settings it has most runs of.
    """
    return grouped_defaults(comparable(evidence, dataset).records, dataset)


def grouped_defaults(records: Sequence[RunRecord], dataset: str) -> list[Group]:
    """`default_runs` of records that may stand beside each other already."""

    def key(record: RunRecord) -> tuple[str, str]:
        return str(record.config["method"]), str(record.config["encoder"])

    groups = []
    for (method, encoder), found in groupby(sorted(records, key=key), key):
        kept = _defaults(list(found))
        if kept:
            by_seed = {int(record.config["seed"]): record for record in kept}
            groups.append(Group(method, encoder, dict(sorted(by_seed.items()))))
    return groups


def titles(groups: Sequence[Group]) -> list[str]:
    """What each group is called: its method, with the encoder where that is not the one that most groups have."""
    encoders = [group.encoder for group in groups]
    usual = max(sorted(set(encoders)), key=encoders.count, default="")
    return [
        shown(group.method, 24) + ("" if group.encoder == usual else f" ({shown(group.encoder, 16)})")
        for group in groups
    ]


def remarks(found: Comparable, groups: Sequence[Group]) -> str:
    """How the groups of a figure were chosen and measured, for its caption."""
    counts = sorted({len(group.records) for group in groups})
    seeds = "one run each"
    if counts[-1] > 1:
        many = str(counts[-1]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        seeds = f"means over {many} seeds with one standard deviation"
    encoders = [group.encoder for group in groups]
    usual = max(sorted(set(encoders)), key=encoders.count)
    encoder = f"encoder {shown(usual)}" + ("" if len(set(encoders)) == 1 else " unless another is named")
    absent = sorted({str(record.config["method"]) for record in found.records} - {group.method for group in groups})
    missing = f" Not shown, for want of such a run: {', '.join(map(shown, absent))}." if absent else ""
    return f"Methods at their default settings, {encoder}; {seeds}.{missing} {found.caption}"


def counted(number: int, noun: str) -> str:
    """`1 method`, `2 methods`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def bench_command(dataset: str, methods: str = "all", seeds: str = "0,1,2") -> str:
    """The command that makes the runs a figure lacks."""
    return f"python -m harness bench --methods {methods} --datasets {shlex.quote(dataset)} --seeds {seeds}"


def _title(record: RunRecord) -> str:
    return str(record.dataset.get("title") or record.dataset["name"])


def _counts(record: RunRecord) -> bool:
    """Whether it is a finished run on test rows that says what it is."""
    told = {"method", "encoder", "seed"} <= record.config.keys()
    return record.status == "finished" and told and not is_trial(record.config)


def _identity(record: RunRecord) -> tuple[str, str, str]:
    return str(record.config["method"]), str(record.config["encoder"]), settings_of(record.config)


def _defaults(records: list[RunRecord]) -> list[RunRecord]:
    """Those of one method and encoder, oldest first, that have the default settings."""
    if changed_settings(records[0]) is not None:
        return [record for record in records if not changed_settings(record)]
    by_settings: dict[str, list[RunRecord]] = {}
    for record in records:
        by_settings.setdefault(settings_of(record.config), []).append(record)
    return max(by_settings.values(), key=lambda found: (len(found), found[-1].started))
