"""One run as numbers: which stages it has, and how large their batches and pools are."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from harness.config import RunConfig
from harness.plan.data import DataFacts
from harness.plan.encoders import EncoderShape
from harness.plan.settings import Resolved
from harness.plan.spec import QUANTITIES, PlanSpec, StageSpec

_BLOCK_ON = {"cuda": 65_536, "cpu": 2048}
"""Labels that a one-vs-all step scores at once, as `harness.train.ova.label_block` has it."""
_GROUP_TOKENS = {"cuda": 16_384, "cpu": 4096}
"""Most tokens that go through a transformer in one call, as `harness.model.encoder.GROUPING` has it."""

PADDED = 1.05
"""Tokens with padding per token: at most 1.03 in batches of lf-pydocs, lf-debian and their title datasets."""


@dataclass(frozen=True)
class Run:
    """Everything an estimate is made from."""

    spec: PlanSpec
    resolved: Resolved
    data: DataFacts
    encoder: EncoderShape
    cuda: bool
    """Whether the device is a CUDA one; otherwise it is the CPU, and its memory is that of the process."""

    @property
    def config(self) -> RunConfig:
        """Settings of the run."""
        return self.resolved.config

    @cached_property
    def stages(self) -> tuple["Stage", ...]:
        """The stages that take place under these knobs."""
        found = (Stage(self, declared) for declared in self.spec.stages if self._have(declared.when))
        return tuple(stage for stage in found if stage.epochs > 0)

    @property
    def dim(self) -> int:
        """D of the dual encoder's vectors."""
        wanted = self.resolved.knobs.get("dim")
        return self.encoder.dim if not self.spec.heads or wanted is None else int(wanted) // self.spec.heads

    @property
    def table_elements(self) -> int:
        """Elements of the classifier table [L, D]."""
        return 0 if self.spec.table == "none" else self.data.labels * self.dim

    @property
    def table_number(self) -> int:
        """Bytes of an element of the table and of its moments."""
        return 2 if self.resolved.knobs.get("table_precision") == "bfloat16" else 4

    @property
    def table_apart(self) -> bool:
        """Whether the table and its moments are in CPU memory while the model is on a CUDA device."""
        return self.cuda and self.resolved.knobs.get("table_device") == "host"

    @property
    def head_parameters(self) -> int:
        """Of all heads together."""
        return self.spec.heads * (self.encoder.dim + 1) * self.dim

    @property
    def starts_from_labels(self) -> bool:
        """Whether the table starts as the vectors of the label texts."""
        start = self.spec.start
        return start is not None and self.resolved.knobs.get(start, start) == "labels"

    @property
    def scales_table(self) -> bool:
        """Whether the search of the table needs a copy of it on the unit sphere."""
        by_dot = bool(self.spec.dot_when) and self._have(self.spec.dot_when)
        return self.spec.searched == "cosine" and not by_dot

    def _have(self, values: dict[str, Any]) -> bool:
        """Whether every knob has its value, or one of a list of them."""
        for knob, wanted in values.items():
            if self.resolved.knobs.get(knob) not in (wanted if isinstance(wanted, list) else [wanted]):
                return False
        return True


@dataclass(frozen=True)
class Stage:
    """One stage with its numbers."""

    run: Run
    declared: StageSpec

    def value(self, quantity: str) -> Any:
        """A quantity: the method's constant, its knob, or what holds where it has neither."""
        if quantity in self.declared.fixed:
            return self.declared.fixed[quantity]
        knob = self.declared.knobs.get(quantity, quantity)
        return self.run.resolved.knobs.get(knob, QUANTITIES[quantity])

    @property
    def kind(self) -> Literal["pool", "all-labels", "one-vs-all", "frozen"]:
        """Which labels a step is scored against."""
        return self.declared.kind

    @property
    def epochs(self) -> int:
        """As configured."""
        return int(self.value("epochs"))

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return self.run.data.rows if self.declared.rows == "all" else self.run.data.train

    @property
    def steps(self) -> int:
        """Batches of an epoch: a power of two of clusters, or enough batches of at most the size asked for."""
        size = max(1, int(self.value("batch_size")))
        if self.kind in ("pool", "frozen") and self.value("batching") == "clusters":
            return 1 << max(0, (self.rows // size).bit_length() - 1)
        return -(-self.rows // size)

    @property
    def batch(self) -> int:
        """B, rows of the largest batch."""
        return -(-self.rows // self.steps)

    @cached_property
    def pool(self) -> int:
        """P, labels that every head scores: expected number of distinct ones, were all equally likely, or the cap."""
        if self.kind in ("all-labels", "one-vs-all"):
            return self.run.data.labels
        beta, per_row = self.value("beta"), self.run.data.labels_per_row
        drawn = self.batch * (min(float(beta), per_row) if beta is not None else per_row)
        distinct = _distinct(self.run.data.labels, drawn + self.batch * float(self.value("eta") or 0))
        cap = self.value("pool_size")
        return max(1, min(math.ceil(distinct), int(cap) if cap else math.ceil(distinct)))

    @property
    def extra(self) -> int:
        """Labels that the classifier alone scores."""
        return math.ceil(_distinct(self.run.data.labels, self.batch * float(self.value("beta_classifier") or 0)))

    @property
    def mines(self) -> bool:
        """Whether labels are searched for hard negatives."""
        return bool(self.value("eta")) and self.kind == "pool"

    @property
    def clusters(self) -> bool:
        """Whether queries are clustered into batches."""
        if self.kind not in ("pool", "frozen"):
            return False
        return self.value("batching") == "clusters" or (
            self.value("batching") == "glued" and (bool(self.value("double_at")) or int(self.value("cluster_size")) > 1)
        )

    @property
    def levels(self) -> int:
        """How often clustering halves all rows: log2 of the number of clusters, as `cluster_count` has it."""
        size = max(1, int(self.value("batch_size" if self.value("batching") == "clusters" else "cluster_size")))
        return max(1, (self.rows // size).bit_length() - 1)

    @property
    def depth(self) -> int:
        """Hard negatives kept a row."""
        if not self.mines:
            return 0
        listed, eta = self.value("shortlist"), int(self.value("eta"))
        return min(
            self.run.data.labels, eta * int(self.value("refresh_epochs")) if listed is None else max(listed, eta)
        )

    @property
    def half(self) -> bool:
        """Whether products are bfloat16."""
        wanted = self.value("precision")
        return bool(wanted == "bfloat16" or (wanted == "auto" and self.run.cuda))

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens whose activations are in memory at once."""
        return int(self.value("micro_batch_tokens"))

    @property
    def step_tokens(self) -> float:
        """Tokens of the texts that one step encodes besides all labels."""
        data = self.run.data
        if self.kind == "frozen":
            return 0.0
        return self.batch * data.row_tokens + (self.pool * data.label_tokens if self.kind == "pool" else 0.0)

    @property
    def padded_tokens(self) -> float:
        """The same with padding: groups are cut by length, so a group is hardly longer than its texts."""
        return PADDED * self.step_tokens

    @property
    def twice_encoded(self) -> float:
        """Share of the texts whose activations are not kept, so that they are encoded twice."""
        if not (self.run.encoder.micro_batched and self.value("gradient_cache") and self.step_tokens):
            return 0.0
        kept = 0 if self.kind == "all-labels" else self.micro_batch_tokens
        return max(0.0, 1 - kept / self.padded_tokens)

    @property
    def label_block(self) -> int:
        """Labels that are scored at once where all are."""
        data = self.run.data
        if self.kind == "one-vs-all":
            return min(data.labels, int(self.value("label_block") or _BLOCK_ON["cuda" if self.run.cuda else "cpu"]))
        block = min(data.labels, int(self.value("grad_cache_size")))
        if self.run.encoder.micro_batched:
            tokens = min(self.micro_batch_tokens, _GROUP_TOKENS["cuda" if self.run.cuda else "cpu"])
            block = min(block, max(1, int(tokens / data.label_tokens)))
        return block


def _distinct(kinds: int, draws: float) -> float:
    """Expected number of different things among `draws` draws from `kinds` equally likely ones."""
    return kinds * -math.expm1(draws * math.log1p(-1 / kinds)) if kinds > 1 else min(1.0, draws)
