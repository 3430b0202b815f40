"""Plan a run from method, dataset and device: memory in each phase, whether it fits, disk, and time.

    seconds = (operations / rate + bytes / bandwidth) / share of the peaks that is reached

Where the device is the CPU both columns of memory are one process. Its own part was measured: an interpreter with the
libraries of a run takes 300 MiB, the first use of torch's AdamW 64 MiB more, transformers 140 MiB, that included. Time
is an estimate to compare settings by, not a promise: what a step costs beyond arithmetic is left out.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from harness.batching.cluster import MOST_ITERATIONS, cluster_count
from harness.batching.mined import MinedBatches
from harness.data.card import find_card
from harness.errors import UserError
from harness.index.exact import working_bytes
from harness.model.encoders.encoder import GROUPING
from harness.model.scoring import FUSED
from harness.plan.build import Built, built, options_of, planned_encoder
from harness.plan.data import DataSizes, data_sizes
from harness.plan.devices import Target
from harness.plan.trace import Cost, Trace
from harness.run import resolve_config
from harness.settings.layers import Layer
from harness.train import Stage
from harness.train.checkpoint.saver import SHARE_OF_FREE
from harness.train.fusion import SHARE, run_before
from harness.train.objectives.frozen import ClassifierOnly
from harness.train.tables import START_BLOCK

MIB = 2**20
PROCESS = {"cpu": 300 * MIB, "cuda": 1200 * MIB}
"""Interpreter and libraries; measured on a CPU, assumed with CUDA's libraries. A tracker is a process of its own."""
OPTIMISER_LIBRARY, TRANSFORMERS_LIBRARY, CUDA_CONTEXT = 64 * MIB, 140 * MIB, 512 * MIB
_F32 = 4
_HEAD_BLOCK = 16_384
"""Vectors that go through a head at once outside training, as in `harness.model.scoring.projected`."""
_RESIDENT_SHARE = 4
"""Search keeps a matrix on a CUDA device if it takes at most one part in this many of the free memory."""
_METRICS = 5
_MOST_MICRO_BATCH = 2**20
_TABLE = (
    "keep the table in CPU memory (table_device=host), or halve it (table_precision=bfloat16), lower dim, or take a "
    "method without a classifier (depsl, dexml-hnm)"
)
_ADVICE = {
    "activations": "lower max_len, or keep gradient_cache=true",
    "classifier table": _TABLE,
    "moments of the classifier table": _TABLE,
    "logits, masks, targets": "lower batch_size, the pool (pool_size), or the labels of a block (label_block, "
    "grad_cache_size)",
    "first values of the table": "start the table otherwise: init_classifier",
    "vectors of the evaluation": "lower dim, or report one scorer",
    "mined vectors": "lower dim",
    "copy for checkpoints": "write checkpoints while training waits: checkpoint.background=never",
    "clusters of queries": "take shorter vectors (dim, or another encoder), or batching=random where it is a parameter",
    "search blocks": "nothing: search halves its blocks by itself when memory runs out",
    "search index": "nothing: search reads its labels block by block where they do not fit",
}


@dataclass(frozen=True)
class Part:
    """Something that takes memory: bytes on the device, and in CPU memory beside it."""

    name: str
    device: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """Sum of both: bytes of the process where the device is the CPU."""
        return self.device + self.host


@dataclass(frozen=True)
class Phase:
    """One moment of a run, with everything that is in memory then."""

    name: str
    parts: tuple[Part, ...]

    @property
    def device(self) -> float:
        """Bytes on the device."""
        return sum(part.device for part in self.parts)

    @property
    def host(self) -> float:
        """Bytes in CPU memory, without those that count for the device."""
        return sum(part.host for part in self.parts)

    @property
    def total(self) -> float:
        """Bytes of the process where the device is the CPU."""
        return self.device + self.host


def _phase(name: str, *groups: list[Part]) -> Phase:
    """Return a phase; parts of the same name are added up, empty ones left out."""
    sums: dict[str, tuple[float, float]] = {}
    for part in (part for group in groups for part in group):
        device, host = sums.get(part.name, (0.0, 0.0))
        sums[part.name] = (device + part.device, host + part.host)
    return Phase(name, tuple(Part(part, *sizes) for part, sizes in sums.items() if any(size > 0 for size in sizes)))


@dataclass(frozen=True)
class StageTime:
    """Time of one training stage."""

    name: str
    epochs: int
    steps: int
    """Steps per epoch."""
    epoch: float
    """Seconds of an average epoch, mining included."""
    mining: float
    """Seconds of these that mining takes."""


@dataclass(frozen=True)
class Plan:
    """What a run will need."""

    method: str
    dataset: str
    run: Built
    target: Target
    notes: tuple[str, ...]
    """Notes for the reader, for example that sizes of an encoder are guessed."""
    micro_batch: int | None = None
    """Value that replaces the setting `micro_batch_tokens`; None to keep it."""

    @property
    def data(self) -> DataSizes:
        """The dataset as numbers."""
        return self.run.data

    @property
    def fitted(self) -> bool:
        """Whether the method is fitted, not trained in steps."""
        return self.run.parts.fitted is not None

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Training stages with at least one epoch; none for a method that does not train in steps."""
        return self.run.stages if self.run.parts.model is not None else ()

    @cached_property
    def phases(self) -> list[Phase]:
        """The moments of a run that may need most memory, in order."""
        always = self._always()
        if self.fitted:
            return [_phase("fit and rank", always, self._fitted())]
        found = []
        if self.stages:
            training = [*always, *self._training(), self._library()]
            during = self._during(training)
            if self.data.validation_rows:
                scorers = self.run.parts.scoring.scorers[:1]
                during.append(_phase("validation", training, self._evaluation(scorers, self.data.validation_rows)))
            if self.run.classifier is not None:
                found.append(_phase("start of the classifier", training, self._start()))
            found += self._with_copy(during)
        library = [self._library()] if self.stages else []
        scorers = self.run.parts.scoring.scorers
        found.append(_phase("evaluation", [*always, *library], self._evaluation(scorers, self.data.test)))
        return found

    @cached_property
    def largest(self) -> Phase:
        """The phase that needs most memory of the device."""
        return max(self.phases, key=self.on_device)

    @property
    def device_bytes(self) -> float:
        """Peak bytes on the device; of the process where the device is the CPU."""
        return self.on_device(self.largest)

    @property
    def host_bytes(self) -> float:
        """Peak bytes of the process in CPU memory."""
        return max(phase.host if self.target.cuda else phase.total for phase in self.phases)

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the device; None if its memory is not known."""
        return None if self.target.usable is None else self.device_bytes <= self.target.usable

    def on_device(self, phase: Phase) -> float:
        """Return the bytes of a phase that count for the device."""
        return phase.device if self.target.cuda else phase.total

    @property
    def micro_batch_tokens(self) -> int | None:
        """The setting, or what replaces it; None where it changes nothing."""
        pieces = [stage.objective.pieces for stage in self.stages]
        set_ = [size for size in pieces if size is not None]
        if not set_ or not self.run.config.params.get("gradient_cache", True):
            return None
        return self.micro_batch or set_[0]

    @cached_property
    def best_micro_batch(self) -> int | None:
        """Largest power of two for `micro_batch_tokens` that fits and has an effect; None if there is none."""
        if self.micro_batch_tokens is None or self.target.usable is None:
            return None
        longest = 1 << (self.data.max_len - 1).bit_length()
        size = max(longest, min(_MOST_MICRO_BATCH, 1 << math.ceil(math.log2(max(2.0, self._most_tokens())))))
        while size >= self.data.max_len:
            if self.with_micro_batch(size).fits:
                return size
            size //= 2
        return None

    def with_micro_batch(self, tokens: int) -> "Plan":
        """Return the same plan with another `micro_batch_tokens`."""
        return replace(self, micro_batch=tokens)

    def advice(self) -> str:
        """Return advice on the two largest parts that a setting can make smaller."""
        smallest = self if self.micro_batch_tokens is None else self.with_micro_batch(self.data.max_len)
        parts = sorted(smallest.largest.parts, key=lambda part: -(part.device if self.target.cuda else part.total))
        found = list(dict.fromkeys(_ADVICE[part.name] for part in parts if part.name in _ADVICE))
        return "; ".join(found[:2]) or "take a device with more memory"

    @cached_property
    def disk(self) -> dict[str, float]:
        """Bytes on disk by part: data and tokens once, checkpoints during training, the run folder afterwards."""
        data, config = self.data, self.run.config
        rows = data.train + data.validation_rows + data.test
        texts = rows * (data.row_bytes + 8) + data.labels * (data.label_bytes + 12 + 16)
        pairs = rows * (4 * (data.labels_per_row + data.filter_pairs) + 16)
        tokens = 2 * (rows * data.row_tokens + data.labels * data.label_tokens) + 8 * (rows + data.labels)
        weights = sum(self.run.weights.values()) if self.stages else 0.0
        # the best weights so far, in each kept checkpoint and in the one being written
        best = (config.checkpoint.keep + 1) * weights if data.validation_rows else 0.0
        predictions = data.test * (8 * config.search.k + 4 * _METRICS * len(config.ks))
        return {
            "prepared data": texts + pairs,
            "token store": tokens,
            "checkpoints while it trains": (config.checkpoint.keep + 1) * self.saved_bytes + best,
            "run folder": weights + predictions,
        }

    @cached_property
    def saved_bytes(self) -> float:
        """Bytes of a checkpoint: weights, moments, batches with their hard negatives; of the stage with most."""
        return sum(self.run.weights.values()) + max(held.saved for held in self.run.held) if self.stages else 0.0

    @cached_property
    def stage_times(self) -> list[StageTime]:
        """Time of every stage."""
        found = []
        for position, stage in enumerate(self.stages):
            step = self.run.step_cost(position)
            mining = self._mining_cost(stage).seconds(self.target.rates) / stage.epochs
            seconds = step.seconds(self.target.rates) * stage.source.steps
            found.append(StageTime(stage.name, stage.epochs, stage.source.steps, seconds + mining, mining))
        return found

    @cached_property
    def evaluation_seconds(self) -> float:
        """Seconds of encoding and searching the test rows with every scorer."""
        if self.fitted:
            return 0.0
        searches = (self._search_cost(self.data.test, dim) for dim in self.run.dims.values())
        cost = sum(searches, self._encode_cost(self.data.test) + self._encode_cost(0, self.data.labels))
        return cost.seconds(self.target.rates)

    @property
    def total_seconds(self) -> float:
        """Seconds of all epochs and the evaluation, and of the training that goes before if a weight is chosen."""
        once = sum(stage.epochs * stage.epoch for stage in self.stage_times)
        before = 1 - SHARE if run_before(self.run.config) else 0.0
        return once * (1 + before) + self.evaluation_seconds

    # Memory.

    def _always(self) -> list[Part]:
        """Return what a run holds from building its parts to its end."""
        data, run, cuda = self.data, self.run, self.target.cuda
        rows = data.train + data.validation_rows + data.test
        tokens = rows * data.row_tokens + data.labels * data.label_tokens
        if data.augmented:
            tokens, rows = tokens + data.train * data.row_tokens + data.augmented * data.label_tokens, rows + data.train
        pairs = (data.train + data.validation_rows + data.test) * (data.labels_per_row + data.filter_pairs)
        pairs += (data.train * data.labels_per_row + data.augmented) if data.augmented else 0.0
        library = TRANSFORMERS_LIBRARY if run.inputs.encoder.micro_batched else 0
        weights = [Part(name, size) for name, size in run.weights.items()]
        if self._apart:
            weights[-1] = Part("classifier table", 0, weights[-1].device)
        return [
            Part("process and libraries", CUDA_CONTEXT * cuda, PROCESS["cuda" if cuda else "cpu"] + library),
            *weights,
            Part("tokens", 0, 2 * tokens + 8 * (rows + data.labels)),
            Part("labels and filter pairs", 0, 8 * pairs + 8 * (data.train + data.test)),
            Part("offsets of texts", 0, 8 * (data.train + data.test + 2 * data.labels)),
        ]

    @property
    def _apart(self) -> bool:
        """Whether the classifier table is in CPU memory while the model is on a CUDA device."""
        return self.target.cuda and self.run.classifier is not None and self.run.classifier.table.on_host

    def _library(self) -> Part:
        dense = any(len(group.parameters) for stage in self.stages for group in stage.optimiser.groups)
        bare = dense and not self.run.inputs.encoder.micro_batched
        return Part("process and libraries", 0, OPTIMISER_LIBRARY if bare else 0)

    def _training(self) -> list[Part]:
        """Return what optimisers and batches of all stages hold; they are all made before the first step."""
        parts = []
        for stage, held in zip(self.stages, self.run.held, strict=True):
            parts += [Part(name, *sizes) for name, sizes in held.moments.items()]
            parts.append(Part("batches and shortlists", 0, held.batches))
            if isinstance(stage.objective, ClassifierOnly):
                parts.append(Part("vectors of the frozen encoder", 0, stage.objective.queries.vectors.nbytes))
        return parts

    def _during(self, training: list[Part]) -> list[Phase]:
        found = []
        for position, stage in enumerate(self.stages):
            suffix = f", {stage.name}" if len(self.stages) > 1 else ""
            step = self.run.step(position, self.micro_batch)
            parts = [Part(name, size) for name, size in step.parts.items()]
            if self._apart:
                parts.append(Part("gathered rows", 0, step.host))
            found.append(_phase(f"train step{suffix}", training, parts))
            mines, clusters = self._due(stage)
            if mines or clusters:
                found.append(_phase(f"mining{suffix}", training, self._mining(stage, mines, clusters)))
        return found

    @staticmethod
    def _due(stage: Stage) -> tuple[bool, bool]:
        """Return whether a stage ever mines hard negatives, and whether it ever clusters."""
        if not isinstance(stage.source, MinedBatches):
            return False, False
        due = [stage.source.due(epoch) for epoch in range(stage.epochs)]
        return any(mines for mines, _ in due), any(clusters for _, clusters in due)

    def _with_copy(self, during: list[Phase]) -> list[Phase]:
        """Add the copy of the state that is written while training goes on, if there is one, to each phase."""
        saving, size = self.run.config.checkpoint, self.saved_bytes
        wanted = saving.background
        if saving.every_steps is None and all(stage.epochs == 1 for stage in self.stages):
            wanted = "never"
        if wanted == "auto" and self.target.usable is not None and not self.target.cuda:
            step = max(phase.total for phase in during if phase.name.startswith("train step"))
            wanted = "always" if size * SHARE_OF_FREE <= self.target.usable - step else "never"
        copy = [] if wanted == "never" else [Part("copy for checkpoints", 0, size)]
        return [_phase(phase.name, list(phase.parts), copy) for phase in during]

    def _start(self) -> list[Part]:
        """Return what one block of the table's first values takes: label texts through encoder and head."""
        assert self.run.classifier is not None
        labels, wide = min(self.data.labels, START_BLOCK), self.run.inputs.encoder.dim
        dim = self.run.classifier.table.weight.shape[1]
        return [Part("first values of the table", 0, labels * (wide + dim) * _F32), *self._encoding(labels)]

    def _encoding(self, texts: int) -> list[Part]:
        """Return what encoding without gradients takes: a micro-batch, or a block of vectors through a head."""
        encoder, config = self.run.inputs.encoder, self.run.config
        width = self.data.max_len if encoder.micro_batched else max(1, round(self.data.row_tokens))
        most = GROUPING[self.run.kind].most if encoder.micro_batched else config.batch_tokens
        rows = max(1, min(texts, min(config.batch_tokens, most) // width))
        called = self.run.calls().of(rows, width, train=False).forward_extra + rows * encoder.dim * _F32
        return [Part("encoding blocks", max(called, self._head_bytes(min(texts, _HEAD_BLOCK))))]

    def _head_bytes(self, rows: int) -> float:
        """Return the peak bytes of `rows` vectors that go through the head; 0 without one."""
        head = getattr(self.run.parts.model, "retrieval", None)
        if head is None:
            return 0.0
        head.eval()
        with torch.no_grad(), Trace(head.parameters()) as trace:
            head(torch.empty(rows, self.run.inputs.encoder.dim))
            return float(trace.peak.total())

    def _mining(self, stage: Stage, mines: bool, clusters: bool) -> list[Part]:
        """Return the largest step of mining: encode the train rows, encode and search the labels, cluster the rows."""
        assert isinstance(stage.source, MinedBatches)
        rows, labels, wide, dim = self._rows(stage), self.data.labels, self.run.inputs.encoder.dim, self._de
        frozen = isinstance(stage.objective, ClassifierOnly)
        own = Part("mined vectors", 0, 0 if frozen else rows * dim * _F32)
        moments = [[Part("mined vectors", 0, rows * wide * _F32), *self._encoding(rows)]]
        if mines:
            moments.append([Part("mined vectors", 0, labels * (wide + dim) * _F32), *self._encoding(labels)])
            found = Part("mined shortlists", 0, rows * stage.source.depth * 4 * 2)
            moments.append([Part("mined vectors", 0, labels * dim * _F32), found, *self._search(rows, dim)])
        if clusters:
            moments.append([Part("clusters of queries", 2 * rows * dim * _F32)])
        return [own, *self._worst(moments)]

    def _search(self, queries: int, dim: int) -> list[Part]:
        """Return what a search takes: a block of scores, and on CUDA those matrices that are kept there."""
        parts = [Part("search blocks", working_bytes(self.run.kind, queries, self.data.labels))]
        if self.target.cuda:
            for size in (self.data.labels * dim * _F32, queries * dim * _F32):
                resident = size <= (self.target.capacity or 0) / (2 * _RESIDENT_SHARE)
                parts.append(Part("search index", size if resident else 0))
        return parts

    def _evaluation(self, scorers: tuple[str, ...], rows: int) -> list[Part]:
        """Return the largest step of an evaluation: encode the labels, encode the rows, search with each scorer."""
        labels, wide, run = self.data.labels, self.run.inputs.encoder.dim, self.run
        dims, classifier = run.dims, run.classifier
        text, table = self._de * any(scorer != "clf" for scorer in scorers), 0
        copies = 0
        joined = {"concat", FUSED} & set(scorers)
        if classifier is not None and (joined or "clf" in scorers):
            weight = classifier.table.weight
            table = weight.shape[1]
            read = weight.dtype != torch.float32 or (self.target.cuda and not self._apart)
            copies = table * (read + (classifier.searched == "cosine"))
        both = max((dims[scorer] for scorer in joined), default=0)  # label vectors of the two are one array
        kept, query_kept = text + min(copies, table) + both, text + table + both * len(joined)
        results = rows * (8 * run.config.search.k + 8 * _METRICS * len(run.config.ks)) * len(scorers)
        name = "vectors of the evaluation"
        moments = [
            [Part(name, 0, labels * max((wide + text) * bool(text), text + copies) * _F32), *self._encoding(labels)],
            [Part(name, 0, (labels * kept + rows * (wide + query_kept)) * _F32), *self._encoding(rows)],
            [
                Part(name, 0, (labels * kept + rows * query_kept) * _F32),
                Part("predictions", 0, results),
                *self._search(rows, max(dims[scorer] for scorer in scorers)),
            ],
        ]
        return self._worst(moments)

    def _worst(self, moments: list[list[Part]]) -> list[Part]:
        """Return the moment with most memory; with CUDA, the largest of the device and the largest of the host."""
        if not self.target.cuda:
            return max(moments, key=lambda parts: sum(part.total for part in parts))
        device = max(moments, key=lambda parts: sum(part.device for part in parts))
        host = max(moments, key=lambda parts: sum(part.host for part in parts))
        return [*(Part(part.name, part.device) for part in device), *(Part(part.name, 0, part.host) for part in host)]

    def _fitted(self) -> list[Part]:
        """Return what fitting takes, by the model's own `fitting_bytes`; for one without it, its sparse features."""
        data, model = self.data, self.run.parts.fitted
        pairs = data.rows * data.labels_per_row
        sizes = getattr(model, "fitting_bytes", lambda rows, *_: {"sparse features": 3 * 8 * rows * data.row_tokens})
        found = sizes(data.rows, data.labels, pairs, data.row_tokens, data.label_tokens)
        predictions = Part("predictions", 0, data.test * 8 * self.run.config.search.k)
        return [*(Part(name, 0, size) for name, size in found.items()), predictions]

    # Time.

    @property
    def _de(self) -> int:
        """Dimension D of the dual encoder's vectors."""
        dims = self.run.dims
        return dims.get("de") or next((dim for scorer, dim in dims.items() if scorer != "clf"), 0)

    def _rows(self, stage: Stage) -> int:
        return min(self.data.rows, self.run.batch(stage) * stage.source.steps)

    def _most_tokens(self) -> float:
        """Return the tokens of the largest batch or of the largest block of labels."""
        data, found = self.data, [2.0]
        for stage in self.stages:
            rows = np.arange(self.run.batch(stage))
            texts = stage.objective.texts(rows, stage.source.pool(rows, 0))
            found.append(0.0 if texts is None else 1.05 * len(texts.values))
            found.append(getattr(stage.objective, "chunk", 0) * data.label_tokens)
        return max(found)

    def _encode_cost(self, rows: float, labels: float = 0) -> Cost:
        """Return the cost of encoding so many rows and labels without gradients."""
        inputs, calls, cost = self.run.inputs, self.run.calls(), Cost()
        filled = inputs.train_tokens.lengths[: self.data.filled]
        for widths, count in ((filled, rows), (inputs.label_tokens.lengths, labels)):
            lengths, shares = np.unique(widths, return_counts=True)
            for length, share in zip(lengths.tolist(), (shares / shares.sum()).tolist(), strict=True):
                cost += calls.of(1, max(1, length), train=False).forward * (count * share)
        return cost

    def _search_cost(self, queries: int, dim: int) -> Cost:
        labels = self.data.labels
        return Cost(full=2 * queries * labels * dim, moved=3 * queries * labels * _F32)

    def _mining_cost(self, stage: Stage) -> Cost:
        """Return the cost of all refreshes of a stage: vectors of rows and labels, searches, clusters."""
        source, cost, rows, dim = stage.source, Cost(), self._rows(stage), self._de
        if not isinstance(source, MinedBatches):
            return cost
        refreshes = Counter((*source.due(epoch), source.cluster_size(epoch)) for epoch in range(stage.epochs))
        for (mines, clusters, size), times in refreshes.items():
            once = Cost()
            if (mines or clusters) and not isinstance(stage.objective, ClassifierOnly):
                once += self._encode_cost(rows)
            if mines:
                once += self._encode_cost(0, self.data.labels) + self._search_cost(rows, dim)
            if clusters:
                levels = max(1, cluster_count(rows, size).bit_length() - 1)
                passes = levels * rows * dim
                once += Cost(full=4 * MOST_ITERATIONS * passes, moved=12 * _F32 * passes)
            cost += once * times
        return cost


def make_plan(method: str, dataset: str, layers: list[Layer], target: Target) -> Plan:
    """Plan one run.

    Args:
        method: Name of a method or preset.
        dataset: Name of a card, or `synthetic:option=value`.
        layers: Settings that override those of method and card, as for a run.
        target: The device to plan for.
    """
    if "/" in dataset:
        raise UserError(
            f"{dataset}: a plan is made from a card, which a folder has not; "
            f"`python -m harness data import {dataset} --name NAME` writes one"
        )
    card = find_card(dataset)
    config, _ = resolve_config(method, dataset, layers)
    encoder, note = planned_encoder(config.encoder, options_of(config))
    data = data_sizes(card, config, encoder)
    run = built(config, data, target.kind, data.labels)
    notes = [note] if note else []
    if run_before(config):
        notes.append(
            f"two trainings: one on {1 - SHARE:.0%} of the train rows chooses the weight of scorer fused, unless it is "
            "done already; the time in all has both, and each leaves a run folder"
        )
    return Plan(method, card.name, run, target, tuple(notes))


def as_json(plan: Plan) -> dict[str, Any]:
    """Return a plan as plain values for `--json`: bytes and seconds."""
    return {
        "method": plan.method,
        "dataset": plan.dataset,
        "encoder": plan.run.inputs.encoder.name,
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
        "assumptions": list(plan.data.assumptions),
        "notes": list(plan.notes),
    }
