"""Arithmetic of a dataset that has grown to L labels, its rows in proportion: what a table takes, what a run works off.

    table and moments    bytes of a number x (1 + moments) x L x D
    search               2 N L D, and of inverted lists 2 N (4 sqrt(L) + p L) D
    clusters             4 x 10 iterations x levels x N x D
    encoding             texts x tokens x operations of a token

Costs are those of `harness.plan.timing`; their factors are written out beside them, so that a reader can check them.
"""

import math
from dataclasses import dataclass

from harness.config import Layer
from harness.data.card import load_card
from harness.plan.devices import Target
from harness.plan.estimate import Plan, plan_for
from harness.plan.spec import plan_spec
from harness.plan.timing import Cost, evaluation_costs, refresh_costs, step_cost

NUMBER_BYTES = {"float32": 4, "bfloat16": 2}
MOMENTS = {"adam": 2, "sgd": 1}
"""Arrays of the table's size beside it, by what trains it; `sgd` with momentum."""


@dataclass(frozen=True)
class Work:
    """One part of an epoch or an evaluation."""

    name: str
    formula: str
    factors: tuple[float, ...]
    """Their product is the number of operations; empty where a product would hide more than it shows."""
    cost: Cost

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return self.cost.half + self.cost.full


def table_bytes(method: str, labels: int, dim: int, number: str = "float32") -> float:
    """The classifier table [L, D] of a method with its moments.

    Args:
        method: One with a table.
        labels: L.
        dim: D.
        number: A key of `NUMBER_BYTES`.
    """
    return each_bytes(method, number) * labels * dim


def each_bytes(method: str, number: str = "float32") -> int:
    """Bytes that an element of the table takes, moments included."""
    spec = plan_spec(method)
    if spec is None or spec.table not in MOMENTS:
        raise ValueError(f"{method} has no table that is trained")
    return NUMBER_BYTES[number] * (1 + MOMENTS[spec.table])


def grown_plan(method: str, dataset: str, labels: int, target: Target, layers: list[Layer] | None = None) -> Plan:
    """The plan of a dataset with another number of labels, and train and test rows in proportion."""
    card = load_card(dataset)
    figures = card.statistics
    assert figures.labels is not None
    factor = labels / figures.labels
    rows = {name: round(factor * count) for name in ("train", "test") if (count := getattr(figures, name)) is not None}
    changed = figures.model_copy(update={"labels": labels, **rows})
    return plan_for(method, card.model_copy(update={"statistics": changed}), layers or [], target)


def works(plan: Plan) -> list[Work]:
    """What an epoch of the last stage, a refresh and an evaluation consist of."""
    run = plan.run
    stage, data, dim = run.stages[-1], run.data, run.dim
    refresh, evaluation = refresh_costs(stage), evaluation_costs(run)
    each = run.encoder.forward_flops(1.0, data.label_tokens)
    wide = round(evaluation["search"].full / (2 * data.test * data.labels * dim))
    scored, views = (2, data.test, data.labels, wide, dim), ", ".join(run.spec.views)
    steps = f"{stage.steps:,} steps of {stage.batch:,} rows and {stage.pool:,} labels"
    encoding = "x tokens x operations of a token"
    rows, labels = (stage.rows, data.row_tokens, each), (data.labels, data.label_tokens, each)
    return [
        Work("train steps of an epoch", steps, (), step_cost(stage) * stage.steps),
        Work("encode all rows", f"N {encoding}", rows, refresh["encode rows"]),
        Work("encode all labels", f"L {encoding}", labels, refresh["encode labels"]),
        Work(
            "clusters of a refresh",
            "4 x 10 x levels x N x D",
            (4, 10, stage.levels, stage.rows, dim),
            refresh["clusters"],
        ),
        Work("exact search of a refresh", "2 N L D", (2, stage.rows, data.labels, dim), refresh["search"]),
        Work("exact search of an evaluation", f"2 M L {wide} D ({views})", scored, evaluation["search"]),
    ]


def listed_search(plan: Plan, share: float, shards: int = 1) -> Work:
    """The search of a refresh by inverted lists: 4 sqrt(L) centres, and a share of the labels.

    Args:
        plan: Of the method.
        share: Of the labels that are scored.
        shards: Devices that each search L / shards labels; the work is that of one of them.
    """
    stage, data = plan.run.stages[-1], plan.run.data
    each = data.labels / shards
    scored = 4 * math.sqrt(each) + share * each
    whole = refresh_costs(stage)["search"]
    name = f"the same by inverted lists, {share:.0%} of labels scored"
    return Work(name, "2 N (4 sqrt(L) + p L) D", (), whole * (scored / data.labels))
