"""A plan as people read it: parts, the verdict, time, assumptions; and the overview of methods by datasets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.config import Layer
from harness.data.card import CARD_FOLDER, load_card
from harness.method import METHOD_FOLDER
from harness.plan.devices import Target
from harness.plan.estimate import Plan, make_plan
from harness.plan.sizes import GIB, show_size

_SHOWN_FROM = 2**20
"""Smaller parts are not listed."""


def part_rows(plan: Plan) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the parts at the largest moment; of device and host each at its own where they are apart."""
    if not plan.target.cuda:
        phase = plan.largest
        sizes = [(part.name, part.device + part.host) for part in phase.parts]
        rows = [[name, show_size(size)] for name, size in sizes if size >= _SHOWN_FROM]
        return ["part", f"memory ({phase.name})"], [*rows, ["together", show_size(phase.total)]]
    device, host = plan.largest, max(plan.phases, key=lambda phase: phase.host)
    names = dict.fromkeys([*(part.name for part in device.parts), *(part.name for part in host.parts)])
    on_device = {part.name: part.device for part in device.parts}
    on_host = {part.name: part.host for part in host.parts}
    rows = [
        [name, *(show_size(found[name]) if found.get(name, 0) >= _SHOWN_FROM else "" for found in (on_device, on_host))]
        for name in names
        if max(on_device.get(name, 0), on_host.get(name, 0)) >= _SHOWN_FROM
    ]
    together = ["together", show_size(device.device), show_size(host.host)]
    return ["part", f"device ({device.name})", f"host ({host.name})"], [*rows, together]


def moments_line(plan: Plan) -> str:
    """Every moment with what it takes of the device."""
    sizes = ((phase.name, phase.device if plan.target.cuda else phase.total) for phase in plan.phases)
    return "; ".join(f"{name} {show_size(size)}" for name, size in sizes)


def verdict(plan: Plan) -> str:
    """Whether it fits, and what to set."""
    needed, where = show_size(plan.device_bytes), device_name(plan)
    if plan.fits is None:
        return f"needs {needed}; how much memory there is here is not known"
    best = plan.best_micro_batch
    if plan.fits:
        if best is None:
            return f"fits {where}: needs {needed}"
        chosen = f"fits {where} with micro_batch_tokens={plan.micro_batch_tokens}: needs {needed}"
        if best < (plan.micro_batch_tokens or 0):
            return f"{chosen}; a whole batch is smaller than that, so a larger one changes nothing"
        then = show_size(plan.with_micro_batch(best).device_bytes)
        wider = f"; a larger one fits: --set micro_batch_tokens={best} needs {then}"
        return chosen + (wider if best != plan.micro_batch_tokens else "")
    if best is not None:
        then = show_size(plan.with_micro_batch(best).device_bytes)
        return f"does not fit {where} as set: needs {needed}; fits with --set micro_batch_tokens={best}: needs {then}"
    smallest = plan.with_micro_batch(plan.run.data.max_len) if plan.heeds_micro_batch else plan
    even = ", even with the smallest micro-batch" if plan.heeds_micro_batch else ""
    return (
        f"does not fit {where}: needs {show_size(smallest.device_bytes)} ({smallest.largest.name}){even}; "
        f"what to change: {plan.advice()}"
    )


def device_name(plan: Plan) -> str:
    """The device and what it has."""
    if plan.target.cuda:
        assert plan.target.capacity is not None
        return f"{plan.target.capacity / GIB:g} GB"
    return f"this machine ({plan.target.source})"


def time_line(plan: Plan) -> str:
    """Seconds as an estimate, with what it rests on."""
    rates = plan.target.rates
    stages = [
        f"{stage.name}: {duration(stage.epoch)} an epoch of {stage.steps:,} steps x {stage.epochs} epochs"
        for stage in plan.stage_times
    ]
    if plan.run.spec.fitted:
        return "not estimated: fitted in one go by sparse algebra"
    whole = [*stages, f"evaluation {duration(plan.evaluation_seconds)}", f"in all {duration(plan.total_seconds)}"]
    return f"{'; '.join(whole)} (an estimate: {rates.name}, {rates.origin}, {rates.share:.0%} of them reached)"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 90:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def disk_line(plan: Plan) -> str:
    """Bytes on disk by part."""
    return ", ".join(f"{name} {show_size(size)}" for name, size in plan.disk.items() if size)


@dataclass(frozen=True)
class Overview:
    """Plans of many methods on many datasets, for one device."""

    target: Target
    datasets: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Plan, ...]], ...]
    """Method, and its plan for every dataset."""


def overview(
    methods: Sequence[str], datasets: Sequence[str], layers: list[Layer], targets: Sequence[Target]
) -> list[Overview]:
    """Plans of every method on every dataset, for every device."""
    return [
        Overview(
            target,
            tuple(datasets),
            tuple((name, tuple(make_plan(name, dataset, layers, target) for dataset in datasets)) for name in methods),
        )
        for target in targets
    ]


def published_datasets() -> list[str]:
    """The label-feature sets of the Extreme Classification Repository that have a card here, smaller ones first."""
    names = [path.stem for path in CARD_FOLDER.glob("lf-*.yaml") if load_card(path.stem).source == "repository"]
    return sorted(names, key=lambda name: (load_card(name).statistics.labels or 0, name))


def method_names() -> list[str]:
    """Methods and presets of this repository."""
    return sorted(path.stem for path in METHOD_FOLDER.glob("*.yaml"))


def as_markdown(found: list[Overview], encoder: str | None) -> str:
    """The overview as a page: what fits, what the host needs, how long an epoch takes."""
    return "\n".join([*_preface(encoder), *(line for one in found for line in _tables(one)), ""])


def _preface(encoder: str | None) -> list[str]:
    chosen = f"encoder {encoder}" if encoder else "the encoder that card or method recommends"
    return [
        "# What a run needs",
        "",
        f"Generated by `python -m harness plan --all`, with {chosen} and otherwise the settings that card and method",
        "recommend. Nothing was run: these are sums over what the code allocates, from the cards alone. On a CPU they",
        "are held against measured peaks (`python -m harness perf memory`); on CUDA devices they are not measured.",
        "",
        "Needs: GiB of the device at its largest moment with the micro-batch that is set, and in brackets the largest",
        "`micro_batch_tokens` that fits and makes a difference (k = 1,024): where it is less than what is set, a whole",
        "batch is smaller than that. **no** where not even the smallest fits. Host: GiB of a process.",
        "Epoch: an estimate from published peaks, 35 % of them reached; a first guess for comparing settings.",
        "",
    ]


def _tables(one: Overview) -> Iterator[str]:
    assert one.target.capacity is not None
    yield f"## {one.target.capacity / GIB:g} GB ({one.target.rates.name})"
    yield ""
    for title, cell in (("needs", need_cell), ("host", _host_cell), ("epoch", epoch_cell)):
        yield f"| {title} | " + " | ".join(one.datasets) + " |"
        yield "|---" * (1 + len(one.datasets)) + "|"
        for method, plans in one.rows:
            yield f"| {method} | " + " | ".join(cell(plan) for plan in plans) + " |"
        yield ""


def need_cell(plan: Plan) -> str:
    """GiB, and the largest micro-batch that fits."""
    best = plan.best_micro_batch
    size = f"{plan.device_bytes / GIB:.1f}"
    if best is not None:
        return f"{size} ({best // 1024}k)" if best >= 1024 else f"{size} ({best})"
    return size if plan.fits else f"**no**, {size}"


def _host_cell(plan: Plan) -> str:
    return f"{plan.host_bytes / GIB:.1f}"


def epoch_cell(plan: Plan) -> str:
    """Time of an epoch of every stage."""
    return " + ".join(duration(stage.epoch) for stage in plan.stage_times) or "-"
