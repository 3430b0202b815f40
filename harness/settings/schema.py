"""Schema of a run: every setting with its bounds, its default and one line of documentation.

A method's own parameters are `params`; their schema is the method's class, made from `harness.settings.parameters`.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from harness import DEFAULT_DATASET, DEFAULT_METHOD
from harness.io.models import Strict
from harness.settings.catalogue import AugmentationName


class Settings(Strict):
    """Base of every group of settings."""


@dataclass(frozen=True)
class Decides:
    """Marks a setting that does not decide the result with what it decides instead; see `harness.settings.identity`."""

    what: Literal["name", "speed", "record"]


NAME = Decides("name")
"""The setting identifies the run: method, dataset, encoder and seed, which comparisons of runs treat separately."""
SPEED = Decides("speed")
"""The setting decides speed and memory; results change by rounding at most. A resumed run must keep its value."""
RECORD = Decides("record")
"""The setting decides what is saved or tracked of a run; it may change when a run is resumed."""


class SearchSettings(Settings):
    """Search for the best labels of a query."""

    backend: str = "exact"
    """Search backend: exact and faiss-flat are exact; faiss-hnsw and faiss-ivf are approximate and log their recall."""
    k: Annotated[int, Field(ge=1, le=2048)] = 100
    """Labels kept per query in the predictions file."""
    options: dict[str, int] = Field(default={})
    """Options of the search backend, for example `efSearch`; see `harness.index.search`."""


ONCE = 10_000
"""More epochs than any training has: as `every_epochs`, only the last one is validated."""


class ValidationSettings(Settings):
    """Validation rows, train rows set aside to choose the epoch; without them the last model is reported."""

    size: Annotated[float, Field(ge=0)] = 0.0
    """Number of validation rows, or if below 1, their share of the train rows; 0 for none."""
    draw: Literal["covered", "any"] = "covered"
    """How validation rows are drawn; covered: every label of theirs keeps a train row; any: from all train rows."""
    equal_texts: Literal["together", "any"] = "together"
    """Rows with texts equal but for case, accents and blanks; together: all are drawn or none; any: as it comes."""
    metric: str = "P@1"
    """Metric on validation rows that chooses the best epoch, and the weight of scorer `fused`; larger is better."""
    every_epochs: Annotated[int, Field(ge=1)] = 1
    """Epochs from one validation to the next."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Stop after so many epochs without a better metric; null: train all epochs. The best epoch is kept either way."""

    @field_validator("size")
    @classmethod
    def _share_or_rows(cls, size: float) -> float:
        if size >= 1 and size != round(size):
            raise ValueError("must be a share below 1 or a whole number of rows")
        return size


class AugmentSettings(Settings):
    """Options of the augmentation; see `harness.augment`. A run warns of an option that has no effect."""

    delta: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """gandalf, random-walk: soft targets at or below this value are dropped; glas: the same, before its sigmoid."""
    labels: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the eligible labels that become rows; eligible: with a text and, except for one-hot, a train row."""
    order: Literal["random", "tail-first"] = "random"
    """Which labels if `labels` is below 1; tail-first: those with the fewest train rows, ties by smaller index."""
    keep: Literal["all", "made"] = "all"
    """all: train on train rows and augmented rows; made: on augmented rows alone."""
    rows: int | Literal["train"] | None = None
    """Number of rows drawn at random from these to train on; `train`: as many as the dataset has; null: all."""

    @field_validator("rows", mode="before")
    @classmethod
    def _some_rows(cls, rows: Any) -> Any:
        if rows not in (None, "train") and not (type(rows) is int and rows >= 1):
            raise ValueError("must be a number of rows, 1 or more, or train")
        return rows


Background = Literal["auto", "always", "never"]


class CheckpointSettings(Settings):
    """When and how a training saves its state; none of this changes a result."""

    every_steps: Annotated[int, Field(ge=1)] | None = None
    """Save a checkpoint every so many steps; null: only at the end of epochs."""
    min_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Save at the end of an epoch if the last checkpoint is at least this many seconds old."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Number of newest checkpoints kept during training; a finished run keeps only its model."""
    background: Background = "auto"
    """Write checkpoints from a copy in memory while training goes on; auto: if it takes at most 1/4 of free memory."""


class TrackingSettings(Settings):
    """What is logged to MLflow besides metrics; none of this changes a result."""

    model: Literal["auto", "always", "never"] = "auto"
    """Whether the trained model is stored in MLflow, for `mlflow models serve`; auto: up to 500 MB."""
    system_seconds: Annotated[float, Field(ge=0)] = 10.0
    """Seconds between measurements of the machine's load and memory; 0 for never."""

    @field_validator("system_seconds")
    @classmethod
    def _never_or_whole_steps(cls, seconds: float) -> float:
        if 0 < seconds < 1:
            raise ValueError("must be 0 for never, or at least 1: the steps of these figures are seconds")
        return seconds


class RunConfig(Settings):
    """Everything that decides the outcome of a run, apart from the data itself."""

    method: Annotated[str, NAME] = DEFAULT_METHOD
    """A method or preset; `harness ls methods` lists them."""
    dataset: Annotated[str, NAME] = DEFAULT_DATASET
    """A dataset: its card's name (`harness ls datasets`), `synthetic:option=value`, or the path of its folder."""
    encoder: Annotated[str, Field(min_length=1), NAME] = "static"
    """An encoder by its registered name (`harness ls encoders`) or by the path of a local model folder."""
    encoder_options: dict[str, Any] = Field(default={})
    """Options of the encoder, for example `dim` or `weighting` of `static`."""
    max_len: Annotated[int, Field(ge=3, le=8192)] | None = None
    """Most tokens per text, special tokens included; null: the encoder's own value."""
    seed: Annotated[int, Field(ge=0, lt=2**63), NAME] = 0
    """Seed of every random draw."""
    device: Annotated[str, SPEED] = "auto"
    """Torch device: auto, cpu, cuda, cuda:1 or mps; auto: CUDA if there is any, else cpu."""
    batch_tokens: Annotated[int, Field(ge=1), SPEED] = 16_384
    """Tokens per micro-batch when encoding without gradients; changes speed and memory, results by rounding only."""
    filter: bool = True
    """Mask the dataset's filter pairs before ranking."""
    ks: Annotated[tuple[Annotated[int, Field(ge=1, strict=True)], ...], Field(strict=False)] = (1, 3, 5)
    """The cut-offs k of the metrics."""
    augment: AugmentationName = "none"
    """Augmentation that adds train rows: none, gandalf, one-hot, mixup ...; `harness ls augmentations` lists them."""
    augment_options: AugmentSettings = AugmentSettings()
    search: SearchSettings = SearchSettings()
    validation: ValidationSettings = ValidationSettings()
    evaluate: Literal["test", "validation"] = "test"
    """Which rows are scored: test or validation; with validation, as in a sweep, test rows are never read."""
    checkpoint: Annotated[CheckpointSettings, RECORD] = CheckpointSettings()
    tracking: Annotated[TrackingSettings, RECORD] = TrackingSettings()
    params: dict[str, Any] = Field(default={})
    """The method's own parameters; `harness ls parameters --method NAME` lists them."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?|mps", device):
            raise ValueError("must be auto, cpu, cuda, cuda:1 (or another number) or mps")
        return device

    @field_validator("ks")
    @classmethod
    def _increasing(cls, ks: tuple[int, ...]) -> tuple[int, ...]:
        if not ks or list(ks) != sorted(set(ks)):
            raise ValueError("must be increasing, for example [1, 3, 5]")
        return ks

    @model_validator(mode="after")
    def _deep_enough(self) -> "RunConfig":
        if max(self.ks) > self.search.k:
            raise ValueError(f"search.k is {self.search.k}, but ks asks for the first {max(self.ks)}; raise search.k")
        return self
