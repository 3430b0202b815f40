"""From a method, a dataset and a device to a plan: what is needed when, whether it fits, and with which micro-batch."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from harness.config import Layer
from harness.data.card import DatasetCard
from harness.plan.data import data_facts
from harness.plan.devices import Target
from harness.plan.disk import disk
from harness.plan.encoders import encoder_shape
from harness.plan.memory import phases
from harness.plan.parts import Phase
from harness.plan.settings import Resolved, dataset_card, resolve
from harness.plan.spec import PlanSpec, plan_spec
from harness.plan.timing import StageTime, evaluation_seconds, stage_times
from harness.plan.work import Run

_MOST_MICRO_BATCH = 2**20
_TABLE = (
    "keep the table in CPU memory (table_device=host), or halve it (table_precision=bfloat16), lower dim, or take a "
    "method without a classifier (depsl, dexml-hnm)"
)
_ADVICE = {
    "activations": "lower max_len, or keep gradient_cache=true",
    "classifier table": _TABLE,
    "moments of the classifier table": _TABLE,
    "logits, masks, targets": "lower batch_size, or cap the pool: pool_size",
    "all-label blocks": "lower grad_cache_size or batch_size",
    "one-vs-all blocks": "lower label_block or batch_size",
    "first values of the table": "start the table otherwise: init_classifier",
    "vectors of the evaluation": "lower dim, or report one view: scorer",
    "mined vectors": "lower dim",
    "copy for checkpoints": "write checkpoints while training waits: checkpoint.background=never",
    "clusters of queries": "take shorter vectors (dim, or another encoder), or batching=random where it is a knob",
    "search blocks": "nothing: search halves its blocks by itself when memory runs out",
    "search index": "nothing: search reads its labels block by block where they do not fit",
}


@dataclass(frozen=True)
class Plan:
    """What a run will need."""

    method: str
    dataset: str
    run: Run
    target: Target
    notes: tuple[str, ...]
    """What a reader should know: a method without a plan, an encoder that is guessed."""

    @cached_property
    def phases(self) -> list[Phase]:
        """Moments of the run."""
        return phases(self.run, self.target.capacity, self.target.usable)

    @cached_property
    def largest(self) -> Phase:
        """The moment that needs most of the device."""
        return max(self.phases, key=self._on_device)

    @property
    def device_bytes(self) -> float:
        """Most that the device holds; the process itself where that is the CPU."""
        return self._on_device(self.largest)

    @property
    def host_bytes(self) -> float:
        """Most that the process holds."""
        return max(phase.host if self.target.cuda else phase.total for phase in self.phases)

    @property
    def fits(self) -> bool | None:
        """Whether the device has room; None if its size is not known."""
        return None if self.target.usable is None else self.device_bytes <= self.target.usable

    @property
    def disk(self) -> dict[str, float]:
        """Bytes on disk by part."""
        return disk(self.run)

    @cached_property
    def stage_times(self) -> list[StageTime]:
        """Seconds of every stage."""
        return stage_times(self.run, self.target.rates)

    @property
    def evaluation_seconds(self) -> float:
        """Seconds of scoring the test rows."""
        return evaluation_seconds(self.run, self.target.rates)

    @property
    def total_seconds(self) -> float:
        """All epochs and the evaluation."""
        return sum(stage.epochs * stage.epoch for stage in self.stage_times) + self.evaluation_seconds

    @property
    def heeds_micro_batch(self) -> bool:
        """Whether micro_batch_tokens changes anything."""
        return self.run.encoder.micro_batched and any("encoder" in stage.declared.trains for stage in self.run.stages)

    @property
    def micro_batch_tokens(self) -> int | None:
        """As configured."""
        return self.run.stages[0].micro_batch_tokens if self.heeds_micro_batch else None

    @cached_property
    def best_micro_batch(self) -> int | None:
        """The largest power of two that fits and still changes something; None if none fits or none matters."""
        if not self.heeds_micro_batch or self.target.usable is None:
            return None
        needed = max(stage.padded_tokens for stage in self.run.stages)
        if any(stage.kind == "all-labels" for stage in self.run.stages):
            needed = max(
                needed, max(stage.value("grad_cache_size") for stage in self.run.stages) * self.run.data.label_tokens
            )
        most = min(_MOST_MICRO_BATCH, 1 << max(0, math.ceil(math.log2(max(2.0, needed)))))
        size = max(most, 1 << (self.run.data.max_len - 1).bit_length())
        while size >= self.run.data.max_len:
            if self.with_micro_batch(size).fits:
                return size
            size //= 2
        return None

    def with_micro_batch(self, tokens: int) -> "Plan":
        """The same with another micro-batch."""
        resolved = replace(self.run.resolved, knobs={**self.run.resolved.knobs, "micro_batch_tokens": tokens})
        return replace(self, run=replace(self.run, resolved=resolved))

    def advice(self) -> str:
        """What to change about the two largest parts that a setting can make smaller."""
        smallest = self if not self.heeds_micro_batch else self.with_micro_batch(self.run.data.max_len)
        parts = sorted(smallest.largest.parts, key=lambda part: -(part.device + part.host * (not self.target.cuda)))
        found = list(dict.fromkeys(_ADVICE[part.name] for part in parts if part.name in _ADVICE))
        return "; ".join(found[:2]) or "take a device with more memory"

    def _on_device(self, phase: Phase) -> float:
        return phase.device if self.target.cuda else phase.total


def make_plan(method: str, dataset: str, layers: list[Layer], target: Target) -> Plan:
    """Plans one run.

    Args:
        method: Name of a method or preset.
        dataset: Name of a card, or `synthetic:option=value`.
        layers: Settings over those of method and card, as for a run.
        target: The device.
    """
    return plan_for(method, dataset_card(dataset), layers, target)


def plan_for(method: str, card: DatasetCard, layers: list[Layer], target: Target) -> Plan:
    """`make_plan` of a dataset that is known by its card alone, as one that does not exist is."""
    resolved = resolve(method, card, layers)
    encoder = encoder_shape(resolved.config.encoder, dict(resolved.config.encoder_options))
    spec, notes = plan_spec(method), [encoder.note] if encoder.note else []
    if spec is None:
        notes.append(f"method {method} declares no plan: its encoder, data and search are planned, its training is not")
    run = Run(spec or PlanSpec(), resolved, data_facts(card, resolved, encoder), encoder, target.cuda)
    return Plan(method, card.name, run, target, tuple(notes))


def resolved_device(method: str, dataset: str, layers: list[Layer]) -> str:
    """The `device` setting of a run."""
    resolved: Resolved = resolve(method, dataset_card(dataset), layers)
    return resolved.config.device


def as_json(plan: Plan) -> dict[str, Any]:
    """A plan for programs: bytes and seconds."""
    return {
        "method": plan.method,
        "dataset": plan.dataset,
        "encoder": plan.run.encoder.name,
        "device": {
            "kind": plan.target.kind,
            "rates_of": plan.target.rates.name,
            "bytes": plan.target.capacity,
            "usable_bytes": plan.target.usable,
        },
        "fits": plan.fits,
        "device_bytes": round(plan.device_bytes),
        "host_bytes": round(plan.host_bytes),
        "micro_batch_tokens": {"set": plan.micro_batch_tokens, "largest_that_fits": plan.best_micro_batch},
        "phases": [
            {
                "name": phase.name,
                "device_bytes": round(phase.device),
                "host_bytes": round(phase.host),
                "parts": {
                    part.name: {"device_bytes": round(part.device), "host_bytes": round(part.host)}
                    for part in phase.parts
                },
            }
            for phase in plan.phases
        ],
        "disk_bytes": {name: round(size) for name, size in plan.disk.items()},
        "seconds": {
            "stages": [
                {"name": stage.name, "epochs": stage.epochs, "steps": stage.steps, "epoch": round(stage.epoch, 3)}
                | {"of_that_mining": round(stage.mining, 3)}
                for stage in plan.stage_times
            ],
            "evaluation": round(plan.evaluation_seconds, 3),
            "total": round(plan.total_seconds, 3),
        },
        "assumptions": list(plan.run.data.assumptions),
        "notes": list(plan.notes),
    }
