"""Groups of parameters that methods share; a method's `Params` inherits those it needs.

The class owns the default and the documentation (the string below the field) of each parameter. A method that wants
another default declares the field again; without a string below it, the documentation here still holds.
`harness ls parameters --method NAME` prints what a method has in the end.
"""

from typing import Annotated, Any, Literal, Self

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
Epsilon = Annotated[float, Field(ge=1e-15, le=1)]
Epochs = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], Field(strict=False)]

Batching = Literal["clusters", "glued", "random"]
HeadStart = Literal["xavier", "orthogonal"]
Schedule = Literal["cosine", "linear", "constant"]
Undecayed = Literal["norms", "norms-and-biases"]
TableOptimiser = Literal["exact", "touched"]


class BatchSettings(Settings):
    """How train rows are grouped into batches; see `harness.batching`."""

    batch_size: Count = 256
    """Queries in a batch; with clusters at least this many and less than twice as many."""
    batching: Batching = "clusters"
    """clusters: one cluster of similar queries a batch; glued: many small clusters (NGAME); random: random queries."""
    cluster_size: Count = 8
    """With glued batches: queries in a cluster."""
    double_at: Epochs = ()
    """Epochs, counted from 0, at which `cluster_size` doubles (NGAME)."""
    random_epochs: Steps = 2
    """Number of first epochs with random batches and no hard negatives."""
    refresh_epochs: Count = 5
    """Epochs between refreshes: encode all rows, search hard negatives and cluster anew."""


class PoolSettings(Settings):
    """Which labels a batch is scored against; see `harness.batching.pool`."""

    beta: Count | None = 3
    """Positives drawn for each query; null: all."""
    eta: Steps = 6
    """Hard negatives drawn for each query, from its shortlist."""
    shortlist: Count | None = None
    """Highest-scoring wrong labels kept for each query; null: eta x refresh_epochs."""
    pool_size: Count | None = None
    """Largest number of labels in the pool of a batch; null: no limit."""
    replacement: bool = False
    """Draw a query's positives with replacement, as the papers' code does."""
    fill: bool = True
    """Fill a pool of limited size with further positives of the batch."""


class MiningSettings(BatchSettings, PoolSettings):
    """How batches are formed, and which labels they are scored against."""


class OptimSettings(Settings):
    """How weights are updated; see `harness.train.optim`."""

    epochs: Count = 15
    """Passes over the train rows."""
    lr_encoder: Positive | None = None
    """Peak learning rate of the encoder; null: the encoder's own, 1e-4 for a transformer (papers), more for static."""
    weight_decay: NotNegative = 0.05
    """Decoupled weight decay (AdamW)."""
    undecayed: Undecayed = "norms"
    """What weight decay spares; norms: weights of LayerNorm (UniDEC's code); norms-and-biases: all biases too."""
    eps: Epsilon = 1e-8
    """Adam's epsilon, added to the root of the second moment."""
    optimiser_tokens: TableOptimiser = "touched"
    """AdamW of the static encoder's tokens; exact: momentum and decay move all at every step; touched: the batch's."""
    schedule: Schedule = "cosine"
    """How learning rates fall after the warm-up; constant: not at all."""
    warmup_epochs: NotNegative = 2.0
    """Epochs of warm-up, in which learning rates rise linearly; at most half of `epochs`."""
    warmup_steps: Steps | None = None
    """Steps of warm-up in place of `warmup_epochs`; null: use `warmup_epochs`."""
    clip: Positive | None = None
    """Gradients are clipped to this norm, taken over all parameters; null: no clipping."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number type of matrix products; auto: bfloat16 on CUDA, float32 elsewhere."""
    micro_batch_tokens: Count = 16_384
    """Tokens per micro-batch of a transformer, whose activations are in memory at once; dropout is drawn for each."""
    gradient_cache: bool = True
    """Gradient caching: encode a batch larger than one micro-batch twice; false: keep all activations in memory."""


class TableSettings(Settings):
    """Memory and number type of the classifier table Psi and its optimiser moments; see `harness.model.tables`."""

    table_device: Literal["auto", "host", "device"] = "auto"
    """Where Psi and its moments are; host: in CPU memory, the rows of a batch are copied at each step; auto: device."""
    table_precision: Literal["float32", "bfloat16"] = "float32"
    """Number type of Psi and its moments; bfloat16: half the memory, computed in float32 and rounded stochastically."""


class AdamTableSettings(TableSettings):
    """A classifier table Psi that AdamW trains on the labels of a pool."""

    optimiser_table: TableOptimiser = "exact"
    """AdamW of Psi; exact: momentum and decay move all rows at every step; touched: those of the pool alone."""


class LossSettings(Settings):
    """Loss of the dual-encoder head."""

    loss: LossName = "decoupled-softmax"
    """Loss over the pool; `harness ls losses` lists them."""
    temperature: Positive = 1 / 27
    """Scores are divided by this temperature; 1/18 in the papers' code; named tau in sweeps."""
    lambda_d: Share = 1.0
    """Weight of the dual encoder's query-to-label loss, label-to-query has the rest; 1: no such term; papers 0.5."""

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
    """Temperature that the classifier's scores are divided by."""
    lambda_c: Share = 1.0
    """Weight of the query-to-label loss of the classifier, label-to-query has the rest; 1: no such term; papers 0.5."""
    bce_weight: NotNegative = 0.0
    """Weight of an auxiliary binary cross entropy of the classifier; thesis 1."""
    bce_reduction: Literal["mean", "sum-labels"] = "mean"
    """Reduction of binary cross entropy; mean: over all pairs; sum-labels: sum over labels, mean over queries."""
    balance: Annotated[Share, Field(alias="lambda")] = 0.5
    """Weight of the dual encoder's loss, between 0 and 1; the classifier's loss has the rest."""

    @model_validator(mode="after")
    def _bce_once(self) -> Self:
        if self.loss_classifier == "triplet" and self.temperature_classifier != 1:
            raise ValueError("the margin of loss_classifier triplet is one of cosines; set temperature_classifier=1")
        if self.loss_classifier == "bce" and self.bce_weight:
            raise ValueError("bce_weight adds the loss that loss_classifier already is; set bce_weight to 0")
        return self


def fused_alone(params: Any) -> Any:
    """Raise if the weight of scorer `fused` is set although another scorer is reported; a pydantic validator."""
    if params.fused_weight is not None and params.scorer != "fused":
        raise ValueError(f"fused_weight is the weight of scorer fused, but the scorer is {params.scorer}; set both")
    return params


class TextSettings(Settings):
    """How texts become sparse features; see `harness.model.tfidf`."""

    ngrams: Literal[1, 2] = 1
    """Terms; 1: words; 2: words and pairs of neighbouring words."""
    sublinear: bool = True
    """Term frequency is 1 + log(count); false: the count."""
    min_rows: Count = 1
    """Terms in fewer train rows are left out."""
