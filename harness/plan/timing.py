"""Seconds of an epoch, from operations and bytes: an estimate to compare settings by, not a promise.

    seconds = (operations / rate + bytes / bandwidth) / share of the peaks that is reached

A forward pass of the encoder takes f operations, a backward pass 2 f; with a gradient cache texts are encoded twice, so
4 f. A pool of P labels takes three products of 2 B P D a head. All labels at every step take 4 f of every label and
four products of 2 B L E; one-vs-all takes three of 2 B L D. Searching takes 2 N L D. What a step costs beyond (reading
tokens, picking labels, starting kernels) is left out: it is small for a transformer, not for `static`.
"""

from dataclasses import astuple, dataclass

from harness.plan.devices import Rates
from harness.plan.work import Run, Stage

_F32 = 4
_BUS = 12e9
"""Bytes a second between CPU memory and a device: three quarters of what PCIe 3 x16 has, an assumption."""
_SPLIT_ITERATIONS = 10


@dataclass(frozen=True)
class Cost:
    """Operations and bytes."""

    half: float = 0.0
    """Operations in bfloat16 where the device has it."""
    full: float = 0.0
    """Operations in float32."""
    moved: float = 0.0
    """Bytes read and written."""
    carried: float = 0.0
    """Bytes between CPU memory and the device."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> "Cost":
        return Cost(*(times * mine for mine in astuple(self)))

    def seconds(self, rates: Rates) -> float:
        """On a device of these rates."""
        computed = (self.half / rates.half + self.full / rates.full + self.moved / rates.bandwidth) / rates.share
        return computed + self.carried / _BUS


@dataclass(frozen=True)
class StageTime:
    """Seconds of one stage."""

    name: str
    epochs: int
    steps: int
    """Of an epoch."""
    epoch: float
    """Seconds of an average epoch, mining included."""
    mining: float
    """Of these, seconds of mining."""


def stage_times(run: Run, rates: Rates) -> list[StageTime]:
    """Every stage."""
    found = []
    for stage in run.stages:
        step = step_cost(stage) * stage.steps
        mining = sum(refresh_costs(stage).values(), Cost()) * (_refreshes(stage) / stage.epochs)
        seconds = mining.seconds(rates)
        found.append(StageTime(stage.declared.name, stage.epochs, stage.steps, step.seconds(rates) + seconds, seconds))
    return found


def evaluation_seconds(run: Run, rates: Rates) -> float:
    """Scoring the test rows in every view."""
    return sum(evaluation_costs(run).values(), Cost()).seconds(rates)


def evaluation_costs(run: Run) -> dict[str, Cost]:
    """The parts of scoring the test rows in every view; none for a method that is fitted in one go."""
    if run.spec.fitted:
        return {}
    data = run.data
    searches = [_search(data.test, data.labels, (1 + (view == "concat")) * run.dim) for view in run.spec.views]
    return {
        "encode rows": _encode(run, data.test, data.row_tokens),
        "encode labels": _encode(run, data.labels, data.label_tokens),
        "search": sum(searches, Cost()),
    }


def step_cost(stage: Stage) -> Cost:
    """One training step."""
    run, batch, dim = stage.run, stage.batch, stage.run.dim
    trained = (run.encoder.dense + run.head_parameters) if stage.kind != "frozen" else 0
    cost = Cost(moved=trained * _F32 * 8)  # weights, gradients and two moments, read and written
    if stage.kind == "all-labels":
        cost += _encode(run, run.data.labels, run.data.label_tokens) * 4
        cost += Cost(full=4 * 2 * batch * run.data.labels * dim, moved=10 * batch * run.data.labels * _F32)
        return cost + _encode(run, batch, run.data.row_tokens) * _passes(stage)
    if stage.kind == "one-vs-all":
        products = Cost(half=3 * 2 * batch * run.data.labels * dim)
        tables = run.table_elements * run.table_number * (4 if stage.value("momentum") else 2)
        # where the table is apart its weights go to the device twice, as a factor and to be updated
        carried = run.table_apart * run.table_elements * run.table_number * (5 if stage.value("momentum") else 3)
        cost += products + Cost(moved=tables + 8 * batch * run.data.labels * _F32, carried=carried)
        return cost + _encode(run, batch, run.data.row_tokens) * _passes(stage)
    heads = 2 if "table" in stage.declared.trains and stage.kind == "pool" else 1
    scored = Cost(full=3 * 2 * heads * batch * stage.pool * dim, moved=8 * heads * batch * stage.pool * _F32)
    touched = stage.pool * dim * ("table" in stage.declared.trains)
    rows = Cost(moved=14 * touched * _F32, carried=run.table_apart * touched * (run.table_number + _F32))
    cost += scored + rows
    if stage.kind == "frozen":
        return cost
    projections = Cost(half=3 * 2 * (batch + stage.pool) * run.encoder.dim * dim * run.spec.heads)
    encoded = _encode(run, batch, run.data.row_tokens) + _encode(run, stage.pool, run.data.label_tokens)
    return cost + projections + encoded * _passes(stage)


def _passes(stage: Stage) -> float:
    """Forward passes that a step is worth."""
    return 3.0 + stage.twice_encoded


def _encode(run: Run, texts: float, length: float) -> Cost:
    tokens = texts * length
    moved = tokens * run.encoder.width * _F32 * (2 if not run.encoder.layers else 8)
    return Cost(half=run.encoder.forward_flops(tokens, length), moved=moved)


def refresh_costs(stage: Stage) -> dict[str, Cost]:
    """The parts of one refresh: vectors of rows and labels, the search, the clusters; none where nothing is mined."""
    run, rows = stage.run, stage.rows
    if not (stage.mines or stage.clusters):
        return {}
    costs = {} if stage.kind == "frozen" else {"encode rows": _encode(run, rows, run.data.row_tokens)}
    if stage.mines:
        costs["encode labels"] = _encode(run, run.data.labels, run.data.label_tokens)
        costs["search"] = _search(rows, run.data.labels, run.dim)
    if stage.clusters:
        products = 4 * stage.levels * _SPLIT_ITERATIONS * rows * run.dim
        costs["clusters"] = Cost(full=products, moved=stage.levels * rows * run.dim * _F32 * 12)
    return costs


def _refreshes(stage: Stage) -> int:
    left = stage.epochs - int(stage.value("random_epochs"))
    return max(0, -(-left // max(1, int(stage.value("refresh_epochs")))))


def _search(queries: int, labels: int, dim: int) -> Cost:
    return Cost(full=2 * queries * labels * dim, moved=3 * queries * labels * _F32)
