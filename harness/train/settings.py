"""Knobs that every trained method shares, grouped by the part they configure; a method's `Params` inherits these.

The YAML beside a method repeats each with its default and one line of explanation.
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.config import Settings

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]


class BatchSettings(Settings):
    """Which queries go together; see `harness.batching`."""

    batch_size: Annotated[int, Field(ge=1)] = 256
    batching: Literal["clusters", "glued", "random"] = "clusters"
    cluster_size: Annotated[int, Field(ge=1)] = 8
    double_at: Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False)] = ()
    random_epochs: Annotated[int, Field(ge=0)] = 2
    refresh_epochs: Annotated[int, Field(ge=1)] = 5


class PoolSettings(Settings):
    """Which labels a batch is scored against; see `harness.batching.pool`."""

    beta: Annotated[int, Field(ge=1)] | None = 3
    eta: Annotated[int, Field(ge=0)] = 6
    shortlist: Annotated[int, Field(ge=1)] | None = None
    pool_size: Annotated[int, Field(ge=1)] | None = None
    replacement: bool = False
    fill: bool = True


class OptimSettings(Settings):
    """How weights move; see `harness.train.optim`."""

    epochs: Annotated[int, Field(ge=1)] = 15
    lr_encoder: Positive | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: Annotated[float, Field(ge=0)] = 2.0
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    clip: Positive | None = None
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 16_384
    gradient_cache: bool = True


class TableSettings(Settings):
    """Where the classifier table and its moments are, and in what they are stored; see `harness.model.rows`."""

    table_device: Literal["auto", "host", "device"] = "auto"
    """host: in CPU memory while the model computes on a GPU; a step copies the rows it needs. auto is device."""
    table_precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 takes half the memory; it is computed in float32 and rounded stochastically."""
