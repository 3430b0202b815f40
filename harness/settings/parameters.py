"""Groups of parameters that methods share; a method's `Params` inherits those it needs.

The class owns the default and the documentation (the string below the field) of each parameter. A method that wants
another default declares the field again; without a string below it, the documentation here still holds.
`harness ls parameters --method NAME` prints what a method has in the end.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.settings.catalogue import LossName as LossName
from harness.settings.schema import SPEED as SPEED
from harness.settings.schema import Settings as Settings

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Dropout = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=0)]
Epochs = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False)]

Batching = Literal["clusters", "glued", "random"]
HeadStart = Literal["xavier", "orthogonal"]
Schedule = Literal["cosine", "linear", "constant"]


class BatchSettings(Settings):
    """Which queries go together; see `harness.batching`."""

    batch_size: Count = 256
    """Queries in a batch; with `clusters` a batch is one of 2^floor(log2(N / batch_size)) clusters."""
    batching: Batching = "clusters"
    """clusters: one cluster of similar queries a batch; glued: many small ones (NGAME); random."""
    cluster_size: Count = 8
    """Queries in a cluster of a glued batch."""
    double_at: Epochs = ()
    """Epochs at which `cluster_size` doubles (NGAME)."""
    random_epochs: Steps = 2
    """First epochs in random order, without hard negatives."""
    refresh_epochs: Count = 5
    """Encode, search and cluster anew every so many epochs (the papers' other tau)."""


class PoolSettings(Settings):
    """Which labels a batch is scored against; see `harness.batching.pool`."""

    beta: Count | None = 3
    """Positives drawn a query; null: all."""
    eta: Steps = 6
    """Hard negatives drawn a query, from its shortlist of best wrong labels."""
    shortlist: Count | None = None
    """Wrong labels kept a query; null: eta x refresh_epochs."""
    pool_size: Count | None = None
    """Most labels in the pool of a batch; null: no limit."""
    replacement: bool = False
    """Draw positives with replacement, as the reference code does."""
    fill: bool = True
    """Fill a pool of limited size with further positives of the batch."""


class MiningSettings(BatchSettings, PoolSettings):
    """Which queries go together, and which labels they are scored against."""


class OptimSettings(Settings):
    """How weights are updated; see `harness.train.optim`."""

    epochs: Count = 15
    """Passes over the train rows."""
    lr_encoder: Positive | None = None
    """Learning rate of the encoder; null: what it was made for, 1e-4 for a transformer (papers), more for static."""
    weight_decay: NotNegative = 0.05
    """Decoupled weight decay (AdamW)."""
    schedule: Schedule = "cosine"
    """How learning rates fall after the warm-up."""
    warmup_epochs: NotNegative = 2.0
    """Epochs in which learning rates rise; at most half of the training."""
    warmup_steps: Steps | None = None
    """Steps in place of `warmup_epochs`."""
    clip: Positive | None = None
    """Largest norm of all gradients together; null: no clipping."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of matrix products; auto: bfloat16 on CUDA, float32 elsewhere."""
    micro_batch_tokens: Count = 16_384
    """Tokens of a transformer's batch whose activations are in memory at once; dropout is drawn piece by piece."""
    gradient_cache: bool = True
    """Encode twice what does not fit at once; false: keep all activations."""


class TableSettings(Settings):
    """Where the classifier table Psi and its moments are, and in what they are stored; see `harness.model.tables`."""

    table_device: Literal["auto", "host", "device"] = "auto"
    """host: Psi and its moments in CPU memory, rows are copied at each step; auto is device."""
    table_precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 halves the memory of Psi and its moments: computed in float32, rounded stochastically."""


class LossSettings(Settings):
    """Loss of the dual-encoder head."""

    loss: LossName = "decoupled-softmax"
    """Loss over the pool; `harness ls losses` lists them."""
    temperature: Positive = 1 / 27
    """Scores are divided by it; 1/18 in the papers' code; a sweep calls it tau."""
    lambda_d: Share = 1.0
    """Share of query-to-label in the dual encoder's loss; 1: no symmetric term; papers 0.5."""

    @model_validator(mode="after")
    def _cosines(self) -> Self:
        if self.loss == "triplet" and self.temperature != 1:
            raise ValueError("the margin of loss triplet is one of cosines; set temperature=1")
        return self


class PooledSettings(MiningSettings, LossSettings, OptimSettings):
    """A dual encoder that is trained against the pool of labels of each batch."""


class ClassifierLossSettings(Settings):
    """Loss of the classifier head, and the balance of the two heads."""

    loss_classifier: LossName = "decoupled-softmax"
    """Loss of the classifier over the pool."""
    temperature_classifier: Positive = 1 / 27
    """Temperature of the classifier's scores."""
    lambda_c: Share = 1.0
    """Share of query-to-label in the classifier's loss; 1: no symmetric term; papers 0.5."""
    bce_weight: NotNegative = 0.0
    """Weight of an auxiliary binary cross entropy of the classifier; thesis 1."""
    bce_reduction: Literal["mean", "sum-labels"] = "mean"
    """mean over all pairs of the pool; sum-labels: summed over labels, mean over queries."""
    balance: Annotated[Share, Field(alias="lambda")] = 0.5
    """Share of the dual encoder's loss."""

    @model_validator(mode="after")
    def _bce_once(self) -> Self:
        if self.loss_classifier == "triplet" and self.temperature_classifier != 1:
            raise ValueError("the margin of loss_classifier triplet is one of cosines; set temperature_classifier=1")
        if self.loss_classifier == "bce" and self.bce_weight:
            raise ValueError("bce_weight adds the loss that loss_classifier already is; set bce_weight to 0")
        return self


class TextSettings(Settings):
    """How texts become sparse features; see `harness.model.tfidf`."""

    ngrams: Literal[1, 2] = 1
    """1: words; 2: words and pairs of neighbouring words."""
    sublinear: bool = True
    """tf is 1 + log(count); false: the count."""
    min_rows: Count = 1
    """Terms in fewer train rows are left out."""
