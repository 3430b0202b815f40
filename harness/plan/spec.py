"""What a method says about itself so that its memory and time can be foreseen: the `plan:` section of its YAML.

A method is imported together with torch, its YAML is not. So the section names, as data, what the code will build:
which heads and table there are, which stages train them against which labels, and how labels are scored in the end.
A number that a stage needs (`batch_size`, `eta` ...) is the knob of that name, another knob (`knobs`) or a constant of
the method (`fixed`). A preset has the section of its method, unless it brings one of its own.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from harness.config import Settings
from harness.data.card import describe_faults
from harness.errors import UserError, unknown_name
from harness.method import MethodCard, method_card_path, read_method_card

Kind = Literal["pool", "all-labels", "one-vs-all", "frozen"]
View = Literal["de", "clf", "concat"]

QUANTITIES: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 256,
    "batching": "random",
    "cluster_size": 8,
    "double_at": [],
    "random_epochs": 0,
    "refresh_epochs": 5,
    "beta": None,
    "eta": 0,
    "shortlist": None,
    "pool_size": None,
    "beta_classifier": 0,
    "lambda_d": 1.0,
    "lambda_c": 1.0,
    "bce_weight": 0.0,
    "loss": "",
    "grad_cache_size": 4096,
    "label_block": None,
    "loss_rows": None,
    "momentum": 0.0,
    "precision": "auto",
    "micro_batch_tokens": 16_384,
    "gradient_cache": True,
}
"""What a stage may depend on, with the value where a method has no such knob."""


class StageSpec(Settings):
    """One stage of training."""

    name: str
    kind: Kind
    """Labels of a step: those picked for the batch, all by encoding them, all rows of a table, or a pool on a frozen
    encoder."""
    trains: Annotated[tuple[Literal["encoder", "heads", "table"], ...], Field(strict=False)] = ("encoder",)
    when: dict[str, Any] = Field(default={})
    """Knobs that must have these values, or one of a list of them, for the stage to take place."""
    rows: Literal["all", "own"] = "all"
    """Whether rows made by `augment` take part."""
    knobs: dict[str, str] = Field(default={})
    """Quantities that are called differently in this method."""
    fixed: dict[str, Any] = Field(default={})
    """Quantities that are no knobs here."""

    @model_validator(mode="after")
    def _known_quantities(self) -> "StageSpec":
        for name in (*self.knobs, *self.fixed):
            if name not in QUANTITIES:
                raise ValueError(str(unknown_name("quantity", name, QUANTITIES)))
        return self


class PlanSpec(Settings):
    """The `plan:` section."""

    heads: Literal[0, 1, 2] = 0
    """Linear layers on the encoder, all of knob `dim` in total (each as wide as the encoder if that is null); 0: the
    encoder's own vectors are scored."""
    table: Literal["none", "adam", "sgd"] = "none"
    """The classifier table Psi [L, D], and what trains it."""
    searched: Literal["cosine", "dot"] = "cosine"
    """How the table is searched; cosines need a scaled copy."""
    dot_when: dict[str, Any] = Field(default={})
    """Knobs that, where all have these values, or one of a list of them, make it `dot`."""
    start: str | None = None
    """The knob, or the word itself, that says what the table starts as; `labels` encodes every label text."""
    views: Annotated[tuple[View, ...], Field(strict=False)] = ("de",)
    """Ways of scoring that an evaluation goes through."""
    stages: Annotated[tuple[StageSpec, ...], Field(strict=False)] = ()
    """None for a method that is fitted in one go or not trained at all."""
    fitted: Literal["trees", "neighbours"] | None = None
    """Sparse models on words, in place of vectors."""


def method_cards(name: str) -> list[tuple[Path, MethodCard]]:
    """The card of a method, after that of the method it is a preset of."""
    path = method_card_path(name)
    card = read_method_card(path)
    return [*(method_cards(card.preset_of) if card.preset_of else []), (path, card)]


def plan_spec(name: str) -> PlanSpec | None:
    """The `plan:` section that holds for a method; None if neither it nor what it is a preset of has one."""
    found = [(path, card.plan) for path, card in method_cards(name) if card.plan]
    if not found:
        return None
    path, values = found[-1]
    try:
        return PlanSpec.model_validate(values)
    except ValidationError as error:
        raise UserError("\n".join(describe_faults(error, f"{path}: plan", PlanSpec))) from error


def check_plan(name: str, knobs: set[str]) -> None:
    """A `plan:` section must parse, and every knob that it names must be one of the method's.

    Args:
        name: Of the method.
        knobs: The knobs it has.
    """
    spec, origin = plan_spec(name), f"{method_card_path(name)}: plan"
    if spec is None:
        raise UserError(f"{origin}: missing; say what `harness plan` has to know, see CONTRIBUTING.md")
    if spec.stages and spec.fitted:
        raise UserError(f"{origin}: a method is trained in stages or fitted in one go; leave one of the two out")
    if spec.heads and "dim" not in knobs:
        raise UserError(f"{origin}: heads need the knob dim, which this method has not")
    if spec.table == "none" and (set(spec.views) - {"de"} or any("table" in stage.trains for stage in spec.stages)):
        raise UserError(f"{origin}: views and stages speak of a table; say in `table` what trains it")
    if unknown := sorted(spec.dot_when.keys() - knobs):
        raise UserError(f"{origin}: dot_when: no knob {', '.join(unknown)} in this method")
    for stage in spec.stages:
        named = {*stage.knobs.values(), *stage.when}
        if unknown := sorted(named - knobs):
            raise UserError(f"{origin}: stage {stage.name}: no knob {', '.join(unknown)} in this method")
