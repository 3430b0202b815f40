"""A plan as people read it: parts, the verdict, time, assumptions; and the overview of methods by datasets."""

from collections.abc import Iterator, Sequence
from typing import Any

from harness.data.card import CARD_FOLDER, load_card
from harness.io.progress import progress
from harness.machine.memory import GIB
from harness.plan.devices import Target, format_size
from harness.plan.estimate import Plan, as_json, make_plan
from harness.settings.layers import Layer
from harness.settings.method import METHOD_FOLDER

_LISTED_FROM = 2**20
"""Smaller parts are not listed."""


def part_rows(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the parts of memory in the phase that needs most; device and host apart on a GPU."""
    phases = [("memory", "total", plan.largest)]
    if plan.target.cuda:
        phases = [("device", "device", plan.largest), ("host", "host", max(plan.phases, key=lambda phase: phase.host))]
    sizes = [{part.name: getattr(part, kind) for part in phase.parts} for _, kind, phase in phases]
    names = dict.fromkeys(name for one in sizes for name, size in one.items() if size >= _LISTED_FROM)
    cells = [[format_size(one[name]) if one.get(name, 0) >= _LISTED_FROM else "" for one in sizes] for name in names]
    total = ["total", *(format_size(getattr(phase, kind)) for _, kind, phase in phases)]
    columns = ["part", *(f"{title} ({phase.name})" for title, _, phase in phases)]
    return columns, [*([name, *line] for name, line in zip(names, cells, strict=True)), total]


def phases_line(plan: Plan) -> str:
    """Every phase of a run with the memory it takes of the device."""
    return "; ".join(f"{phase.name} {format_size(plan.on_device(phase))}" for phase in plan.phases)


def verdict(plan: Plan) -> str:
    """Whether the run fits the device, and which setting to change."""
    needed, where = format_size(plan.device_bytes), device_name(plan)
    if plan.fits is None:
        return f"needs {needed}; how much memory there is here is not known"
    best = plan.best_micro_batch
    if plan.fits:
        if best is None:
            return f"fits {where}: needs {needed}"
        chosen = f"fits {where} with micro_batch_tokens={plan.micro_batch_tokens}: needs {needed}"
        if best < (plan.micro_batch_tokens or 0):
            return f"{chosen}; a whole batch is smaller than that, so a larger one changes nothing"
        if best == plan.micro_batch_tokens:
            return chosen
        then = format_size(plan.with_micro_batch(best).device_bytes)
        more = "no more memory" if then == needed else then
        return f"{chosen}; a larger one fits: --set micro_batch_tokens={best} needs {more}"
    if best is not None:
        then = format_size(plan.with_micro_batch(best).device_bytes)
        return f"does not fit {where} as set: needs {needed}; fits with --set micro_batch_tokens={best}: needs {then}"
    smallest = plan.with_micro_batch(plan.data.max_len) if plan.micro_batch_tokens is not None else plan
    even = ", even with the smallest micro-batch" if plan.micro_batch_tokens is not None else ""
    return (
        f"does not fit {where}: needs {format_size(smallest.device_bytes)} ({smallest.largest.name}){even}; "
        f"what to change: {plan.advice()}"
    )


def device_name(plan: Plan) -> str:
    """The device, for messages: its memory, or what limits that of this machine."""
    if plan.target.cuda:
        assert plan.target.capacity is not None
        return f"{plan.target.capacity / GIB:g} GB"
    return f"this machine ({plan.target.source})"


def time_line(plan: Plan) -> str:
    """Seconds as an estimate, with what it rests on."""
    rates = plan.target.rates
    if plan.fitted:
        return "not estimated: fitted in one go by sparse algebra"
    parts = [
        f"{stage.name}: {format_duration(stage.epoch)} an epoch of {stage.steps:,} steps x {stage.epochs} epochs"
        for stage in plan.stage_times
    ]
    parts.append(f"evaluation {format_duration(plan.evaluation_seconds)}")
    parts.append(f"in all {format_duration(plan.total_seconds)}")
    return f"{'; '.join(parts)} (an estimate: {rates.name}, {rates.origin}, at {rates.share:.0%} of peak speed)"


def format_duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def disk_line(plan: Plan) -> str:
    """Bytes on disk by part."""
    return ", ".join(f"{name} {format_size(size)}" for name, size in plan.disk.items() if size)


Overview = dict[Target, dict[str, dict[str, dict[str, Any]]]]
"""By device, method and dataset, `as_json` of a plan: a plan itself holds arrays of the dataset's size."""


def overview(
    methods: Sequence[str], datasets: Sequence[str], layers: list[Layer], targets: Sequence[Target]
) -> Overview:
    """Plans of every method on every dataset, for every device."""
    found: Overview = {target: {name: {} for name in methods} for target in targets}
    with progress("plans", len(datasets) * len(methods) * len(targets), "plans") as advance:
        for dataset in datasets:  # one after the other: its arrays are shared
            for name in methods:
                for target in targets:
                    found[target][name][dataset] = as_json(make_plan(name, dataset, layers, target))
                    advance(1)
    return found


def published_datasets() -> list[str]:
    """The label-feature sets of the Extreme Classification Repository that have a card here, smaller ones first."""
    names = [path.stem for path in CARD_FOLDER.glob("lf-*.yaml") if load_card(path.stem).source == "repository"]
    return sorted(names, key=lambda name: (load_card(name).statistics.labels or 0, name))


def method_names() -> list[str]:
    """Methods and presets of this repository."""
    return sorted(path.stem for path in METHOD_FOLDER.glob("*.yaml"))


def as_markdown(found: Overview, encoder: str | None) -> str:
    """The overview as a page: what fits, what the host needs, how long an epoch takes."""
    tables = (line for target, plans in found.items() for line in _tables(target, plans))
    return "\n".join([*_preface(encoder), *tables, ""])


def _preface(encoder: str | None) -> list[str]:
    chosen = f"encoder {encoder}" if encoder else "the encoder that card or method recommends"
    return [
        "# What a run needs",
        "",
        f"Generated by `python -m harness plan --all`, with {chosen} and otherwise the settings that card and method",
        "recommend. Nothing was run: these are sums over what the code allocates, from the cards alone. On a CPU they",
        "are compared with a real run in tests/plan; on CUDA devices they are not measured.",
        "",
        "Needs: GiB of the device at its largest moment with the micro-batch that is set, and in brackets the largest",
        "`micro_batch_tokens` that fits and makes a difference (k = 1,024): where it is less than what is set, a whole",
        "batch is smaller than that. **no** where not even the smallest fits. Host: GiB of a process.",
        "Epoch: an estimate from published peaks, 35 % of them reached; a first guess for comparing settings.",
        "",
    ]


def _tables(target: Target, plans: dict[str, dict[str, dict[str, Any]]]) -> Iterator[str]:
    yield f"## {(target.capacity or 0) / GIB:g} GB ({target.rates.name})"
    yield ""
    datasets = list(next(iter(plans.values())))
    for title, cell in (("needs", need_cell), ("host", _host_cell), ("epoch", _epoch_cell)):
        yield f"| {title} | " + " | ".join(datasets) + " |"
        yield "|---" * (1 + len(datasets)) + "|"
        for method, by_dataset in plans.items():
            yield f"| {method} | " + " | ".join(map(cell, by_dataset.values())) + " |"
        yield ""


def need_cell(plan: dict[str, Any]) -> str:
    """GiB, and the largest micro-batch that fits."""
    best, size = plan["micro_batch_tokens"]["largest_that_fits"], f"{plan['device_bytes'] / GIB:.1f}"
    if best is not None:
        return f"{size} ({best // 1024}k)" if best >= 1024 else f"{size} ({best})"
    return size if plan["fits"] else f"**no**, {size}"


def _host_cell(plan: dict[str, Any]) -> str:
    return f"{plan['host_bytes'] / GIB:.1f}"


def _epoch_cell(plan: dict[str, Any]) -> str:
    """Time of an epoch of every stage."""
    return " + ".join(format_duration(stage["epoch"]) for stage in plan["seconds"]["stages"]) or "-"
