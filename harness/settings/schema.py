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
    """What a setting decides; one without such a mark decides the result. See `harness.settings.identity`."""

    what: Literal["name", "speed", "record"]


NAME = Decides("name")
"""Which run it is: method, data, encoder and seed have a place of their own wherever runs are compared."""
SPEED = Decides("speed")
"""Speed and memory; results change by rounding at most, so an interrupted run still goes on with the same value."""
RECORD = Decides("record")
"""What is kept of a run; may change at any time."""


class SearchSettings(Settings):
    """How the best labels of a query are found."""

    backend: str = "exact"
    """exact and faiss-flat are exact; faiss-hnsw and faiss-ivf are approximate and log their recall."""
    k: Annotated[int, Field(ge=1, le=2048)] = 100
    """Labels kept per query in the predictions file."""
    options: dict[str, int] = Field(default={})
    """Options of the backend, for example `efSearch`; see `harness.index.search`."""


class ValidationSettings(Settings):
    """Train rows set aside to choose an epoch; without them a run trains on all rows and reports its last model."""

    size: Annotated[float, Field(ge=0)] = 0.0
    """Validation rows: a number of rows, or a share below 1; 0 for none."""
    draw: Literal["covered", "any"] = "covered"
    """covered: rows whose labels all keep another train row, as labels of test rows do; any: any rows."""
    metric: str = "P@1"
    """The metric that chooses the epoch; larger is better."""
    every_epochs: Annotated[int, Field(ge=1)] = 1
    """Epochs between two validations."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Stop after so many epochs without a better value; if absent, train to the end and take the best epoch."""

    @field_validator("size")
    @classmethod
    def _share_or_rows(cls, size: float) -> float:
        if size >= 1 and size != round(size):
            raise ValueError("must be a share below 1 or a whole number of rows")
        return size


class AugmentSettings(Settings):
    """How augmented rows are made; see `harness.augment`. A run warns of an option that has no effect."""

    delta: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """gandalf, random-walk: targets at or below this are left out; glas: the same before its sigmoid."""
    labels: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the labels that become rows, of those that can: with a text and, but for one-hot, a train row."""
    order: Literal["random", "tail-first"] = "random"
    """Which labels, if not all: a random draw, or those with the fewest train rows, ties by smaller id."""
    keep: Literal["all", "made"] = "all"
    """all: train on all rows; made: on the augmented ones alone."""
    rows: int | Literal["train"] | None = None
    """Train on a random draw of so many of these rows, `train` for as many as the dataset has; if absent, on all."""

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
    """Save after every so many steps."""
    min_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Save at the end of an epoch unless the last checkpoint is younger than this."""
    keep: Annotated[int, Field(ge=1)] = 2
    """Checkpoints kept while a run trains; a finished run keeps its model alone."""
    background: Background = "auto"
    """Train on while a copy in memory is written; auto: if the copy takes at most a quarter of the free memory."""


class TrackingSettings(Settings):
    """What a tracker gets besides metrics; none of this changes a result."""

    model: Literal["auto", "always", "never"] = "auto"
    """Whether the trained model is stored there for `mlflow models serve`; auto: up to 500 MB."""
    system_seconds: Annotated[float, Field(ge=0)] = 10.0
    """How often load and memory of the machine are measured; 0 for never."""

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
    """A card's name, `synthetic:option=value`, or the path of a folder."""
    encoder: Annotated[str, Field(min_length=1), NAME] = "static"
    """A registered name (`harness ls encoders`) or the path of a local model folder."""
    encoder_options: dict[str, Any] = Field(default={})
    """Options of the encoder, for example `dim` or `weighting` of `static`."""
    max_len: Annotated[int, Field(ge=3, le=8192)] | None = None
    """Tokens per text, special tokens included; if absent, what the encoder was made for."""
    seed: Annotated[int, Field(ge=0, lt=2**63), NAME] = 0
    """Of every random draw."""
    device: Annotated[str, SPEED] = "auto"
    """auto, cpu, cuda, cuda:1 or mps."""
    batch_tokens: Annotated[int, Field(ge=1), SPEED] = 16_384
    """Tokens per micro-batch when encoding without gradients; changes speed and memory, results by rounding only."""
    filter: bool = True
    """Mask the dataset's filter pairs before ranking."""
    ks: Annotated[tuple[Annotated[int, Field(ge=1, strict=True)], ...], Field(strict=False)] = (1, 3, 5)
    """The cut-offs k of the metrics."""
    augment: AugmentationName = "none"
    """Augmented rows added to the train rows: none, gandalf, one-hot, mixup ...; see `harness ls augmentations`."""
    augment_options: AugmentSettings = AugmentSettings()
    search: SearchSettings = SearchSettings()
    validation: ValidationSettings = ValidationSettings()
    evaluate: Literal["test", "validation"] = "test"
    """Rows that the metrics of the run are of; with `validation`, as in a sweep, test rows are never read."""
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
