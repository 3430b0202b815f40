"""Build the real encoders and the parts of a method for a dataset's sizes, on fake tensors; trace a step per stage.

Weights, tables and moments are what the method's own code makes, so their bytes are exact. A step is the objective's
own `backward` on a batch of the real size. A step against all labels is the same work block by block: it is traced with
a few blocks, and its cost is continued in a straight line.
"""

import copy
import json
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from harness.batching.mined import MinedBatches
from harness.data.tokens import Tokenizer
from harness.errors import DataError
from harness.model import ENCODERS, check_encoder, is_folder
from harness.model.encoders.attention import implementation
from harness.model.encoders.encoder import Encoder
from harness.model.encoders.pretrained import ARCHITECTURES, DEFAULT_MAX_LEN, ModelFolder, checked_config
from harness.model.encoders.static import Distilled, TokenEncoder
from harness.model.encoders.transformer import quiet_library, wrap
from harness.model.heads import Classifier, RetrievalHead, TwoHeads
from harness.model.scoring import FUSED
from harness.model.tables import RowTable
from harness.plan.data import DataSizes, stand_in
from harness.plan.trace import FAKE, HOST, Calls, Cost, Trace, as_on, half_copies, replayed
from harness.settings.method import Inputs, Parts, load_method
from harness.settings.schema import RunConfig
from harness.train import Batch, Stage
from harness.train.objectives.frozen import ClassifierOnly

BERT_WORDS = 30_522
_SIZES: dict[str, dict[str, Any]] = {
    "minilm": {
        "model_type": "bert",
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
    "distilbert": {"model_type": "distilbert"},
}
"""Model configs of the encoders that have a name; other values are the defaults of transformers."""
_MADE_FOR = {"minilm": 256}
"""Default max_len of these encoders; that of the others is `DEFAULT_MAX_LEN`."""
_MOST_LAYERS, _LARGEST_SIZE = 1000, 10**8
_LAYERS = ("num_hidden_layers", "n_layers")


class _Words(Tokenizer):
    """A stand-in for a word-piece tokenizer with the attributes that building an encoder reads."""

    vocab_size = BERT_WORDS
    special_ids: NDArray[np.int64] = np.array([0, 100, 101, 102, 103])
    pad_id = 0
    frame: tuple[list[int], list[int]] = ([101], [102])


WORDS = _Words(Path("tokenizer.json"), "")


@cache
def planned_encoder(name: str, options: str = "{}") -> tuple[Encoder, str]:
    """Return an encoder on fake tensors, and a note for the reader (empty if there is none).

    Args:
        name: Name or folder of the encoder, as for `harness.model.load_encoder`.
        options: The encoder's options, as JSON.
    """
    chosen = json.loads(options)
    factory, note = check_encoder(name, chosen), ""
    with FAKE:
        if is_folder(name):
            folder = Path(name).expanduser()
            encoder: Encoder = _transformer(folder.absolute().name, checked_config(folder), folder)
        elif name in ("minilm", "distilbert", "msmarco-distilbert"):
            encoder = _transformer(name, _SIZES["minilm" if name == "minilm" else "distilbert"])
        elif name == "tiny":
            encoder = factory(name=name, seed=0, **chosen)
        elif hasattr(ENCODERS, "origin") and ENCODERS.origin(name).startswith("harness.model"):
            with patch(f"{factory.__module__}.distil", _undistilled):
                encoder = factory(name=name, seed=0, **chosen)
        else:
            encoder = _transformer(name, _SIZES["distilbert"])
            note = f"encoder {name} is from another package: planned as if it were distilbert"
    if isinstance(encoder, TokenEncoder):  # real weights of tokens: which tokens are words decides shapes
        encoder.weights = torch.ones(BERT_WORDS)
        encoder.weights[WORDS.special_ids] = 0
    return encoder, note


def _undistilled(teacher: str, dim: int, weighting: str, max_len: int | None) -> Distilled:
    """Return what `harness.model.encoders.static.distil` returns, of the same shapes but without a teacher."""
    length = max_len or _MADE_FOR.get(teacher, DEFAULT_MAX_LEN)
    return Distilled(
        torch.empty(BERT_WORDS, dim), ModelFolder(teacher, Path(), WORDS, "", "mean", length, DEFAULT_MAX_LEN, ""), {}
    )


def _transformer(name: str, sizes: dict[str, Any], folder: Path | None = None) -> Encoder:
    """Return an encoder around the transformers model of a config."""
    from transformers import AutoConfig, AutoModel

    settings = {key: value for key, value in sizes.items() if key not in ("model_type", "transformers_version")}
    try:
        for key, value in sizes.items():
            if isinstance(value, int) and value > (_MOST_LAYERS if key in _LAYERS else _LARGEST_SIZE):
                raise ValueError(f"{key} is {value:,}")
        attention = implementation(ARCHITECTURES[sizes["model_type"]])
        with quiet_library():
            config = AutoConfig.for_model(sizes["model_type"], **settings)
            model = AutoModel.from_config(config, dtype=torch.float32, attn_implementation=attention)
        longest = int(getattr(config, "max_position_embeddings", DEFAULT_MAX_LEN))
        length = min(longest, _MADE_FOR.get(name, DEFAULT_MAX_LEN))
        return wrap(model, name, WORDS, "mean", length, longest, "")
    except Exception as error:  # a config with wrong values surfaces as whatever the library happened to raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"no model can be made of this config ({reason})", folder) from error


_ADAM_PASSES = 7
"""Passes of AdamW over arrays of a parameter's size: weight and two moments are read and written, the gradient read."""


@dataclass(frozen=True)
class Step:
    """What one training step of a stage takes."""

    parts: dict[str, float]
    """Bytes on the device at the step's peak, by the part of the step that allocated them."""
    host: float
    """Peak bytes in CPU memory, for a table that is kept there."""
    cost: Cost
    labels: int
    """Number of labels in the trace; a step against all labels is traced with some of them."""


@dataclass(frozen=True, eq=False)
class Built:
    """A method for a dataset, an encoder and a kind of device."""

    config: RunConfig
    data: DataSizes
    kind: str
    """Kind of device: cpu or cuda."""
    labels: int
    """Number of labels L, or fewer for a trace."""
    _steps: dict[tuple[int, int | None], Step] = field(default_factory=dict)

    def calls(self, *, half: bool = False) -> Calls:
        """Return the costs of the encoder's calls; `half` for products in bfloat16."""
        name = self.config.encoder.removeprefix("msmarco-")  # another training of the same architecture
        return Calls(planned_encoder(name, options_of(self.config))[0], half, self.kind)

    @cached_property
    def inputs(self) -> Inputs:
        """Stand-in train data: what the method builds its parts from."""
        encoder, _ = planned_encoder(self.config.encoder, options_of(self.config))
        return stand_in(self.data, encoder, self.config, self.labels, lambda _: None)

    @cached_property
    def parts(self) -> Parts:
        """The parts that the method builds."""
        method = load_method(self.config.method)
        wanted = dict(self.config.params)
        if self.kind == "cuda" and wanted.get("precision") == "auto":
            wanted["precision"] = "bfloat16"
        words = self.inputs.encoder.tokenizer.vocab_size
        no_words = patch("harness.model.tfidf.kinds_of_tokens", lambda _: (np.ones(words, bool), np.zeros(words, bool)))
        there = patch.object(nn.Module, "to", lambda module, *_: module)  # everything is made where it stays
        with FAKE, as_on(self.kind), no_words, there:
            parts = method.build(self.inputs, method.params.model_validate(wanted))
            for table in tables(parts.model):
                if table.on_host and self.kind == "cuda":
                    weight = torch.empty_like(table.weight, device=HOST)
                    table.weight = nn.Parameter(weight, requires_grad=False)
        return parts

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Stages with at least one epoch; stand-in arrays for their hard negatives and vectors of a frozen encoder."""
        with FAKE, as_on(self.kind):
            stages = tuple(stage for stage in self.parts.stages() if stage.epochs > 0)
        for stage in stages:
            source, objective = stage.source, stage.objective
            if isinstance(source, MinedBatches) and any(source.due(epoch)[0] for epoch in range(stage.epochs)):
                rows = len(source.state()["plan.rows"])
                near = np.random.default_rng(2).integers(self.labels, size=rows + source.depth, dtype=np.int32)
                source.load_state({**source.state(), "hard": sliding_window_view(near, source.depth)[:rows]})
            if isinstance(objective, ClassifierOnly):
                shape = (self.data.rows, self.inputs.encoder.dim)
                vars(objective.queries)["vectors"] = np.broadcast_to(np.float32(0), shape)
        return stages

    def batch(self, stage: Stage) -> int:
        """Return B, the rows of a stage's largest batch."""
        rows = self.data.train if _own_rows(stage, self.inputs) else self.data.rows
        return -(-rows // stage.source.steps)

    def step(self, position: int, micro_batch: int | None = None) -> Step:
        """Trace one step of a stage; `micro_batch` replaces the setting `micro_batch_tokens` if given."""
        objective = self.stages[position].objective
        traced = max(2 * getattr(objective, "label_block", 0), 5 * getattr(objective, "chunk", 0))
        if not traced or self.labels <= traced:
            return self._traced(position, micro_batch)
        return built(self.config, self.data, self.kind, traced)._traced(position, micro_batch)

    def step_cost(self, position: int) -> Cost:
        """Return the cost of a step of a stage, including the update of dense parameters."""
        step = self.step(position)
        cost = step.cost
        if step.labels < self.labels:
            half = built(self.config, self.data, self.kind, step.labels // 2)._traced(position, None)
            further = (self.labels - step.labels) / (step.labels - half.labels)
            cost = cost.plus(cost, further).plus(half.cost, -further)
        return cost + Cost(moved=_ADAM_PASSES * self.held[position].dense)

    def _traced(self, position: int, micro_batch: int | None) -> Step:
        if (position, micro_batch) not in self._steps:
            self._steps[position, micro_batch] = self._trace(self.stages[position], micro_batch)
        return self._steps[position, micro_batch]

    def _trace(self, stage: Stage, micro_batch: int | None) -> Step:
        objective = copy.copy(stage.objective)
        rows = np.arange(self.batch(stage))
        pool = stage.source.pool(rows, 0)
        model = self.parts.model
        assert model is not None
        with FAKE, as_on(self.kind):
            if micro_batch is not None:
                objective.work_in_pieces(micro_batch)
        half = getattr(getattr(objective, "settings", None), "precision", "") == "bfloat16"
        calls, encoder = self.calls(half=half), self.inputs.encoder
        standing = [*model.parameters(), *model.buffers(), *held(stage.optimiser, Tensor)]
        if encoder.micro_batched:  # measure all calls before the step: inside it they are only replayed
            rows_and_labels = self.inputs.train_tokens.lengths[: self.data.filled], self.inputs.label_tokens.lengths
            for length in np.unique(np.concatenate(rows_and_labels)).tolist():
                calls.of(1, length, train=True)
        model.train()
        with as_on(self.kind), Trace(standing) as trace, replayed(encoder, calls, trace):
            objective.backward(Batch(rows, pool, 0), trace)
        stage.optimiser.zero_grad()
        parts: dict[str, float] = {}
        for part, size in trace.peak.items():
            name = _NAMES.get(part, part)
            parts[name] = parts.get(name, 0.0) + size
        if half and encoder.micro_batched and not isinstance(objective, ClassifierOnly):
            parts["bfloat16 copies of weights"] = half_copies(calls)
        return Step(parts, trace.host_peak, trace.cost, self.labels)

    @cached_property
    def dims(self) -> dict[str, int]:
        """Dimension of the vectors of every scorer, by its name."""
        model, wide = self.parts.model, self.inputs.encoder.dim
        head = getattr(model, "retrieval", None)
        de = head.projection.out_features if isinstance(head, RetrievalHead) else wide
        table = self.classifier.table.weight.shape[1] if self.classifier else 0
        both = {"clf": table, "concat": de + table, FUSED: de + table}
        return {scorer: both.get(scorer, de) for scorer in self.parts.scoring.scorers}

    @property
    def classifier(self) -> Classifier | None:
        """The model's classifier; None if it has none."""
        return self.parts.model.classifier if isinstance(self.parts.model, TwoHeads) else None

    @cached_property
    def weights(self) -> dict[str, float]:
        """Bytes of the model's weights by part."""
        encoder = self.inputs.encoder
        own = {id(one) for one in (*encoder.parameters(), *encoder.buffers())}
        rows = {id(table.weight) for table in tables(self.parts.model)}
        everything = [] if self.parts.model is None else [*self.parts.model.parameters(), *self.parts.model.buffers()]
        others = [one for one in everything if id(one) not in own]
        return {
            "encoder weights": sum(one.nbytes for one in (*encoder.parameters(), *encoder.buffers())),
            "heads": sum(one.nbytes for one in others if id(one) not in rows),
            "classifier table": sum(one.nbytes for one in others if id(one) in rows),
        }

    @cached_property
    def held(self) -> tuple["Held", ...]:
        """Bytes that the optimiser and the batches of every stage hold."""
        return tuple(self._held(stage) for stage in self.stages)

    def _held(self, stage: Stage) -> "Held":
        state, dense = stage.optimiser.state(), 0
        table = None if self.classifier is None else self.classifier.table.weight
        known = {_storage(one) for one in (*state.values(), *(self.parts.model or nn.Module()).parameters())}
        scratch = [("", one) for one in held(stage.optimiser, Tensor) if _storage(one) not in known]
        found: dict[str, tuple[float, float]] = {}
        for name, tensor in [*state.items(), *scratch]:
            of_table = name.startswith("tables.") and table is not None and len(tensor) == len(table)
            part = "moments of the classifier table" if of_table else "AdamW moments"
            part = part if name else "scratch of row updates"
            dense += tensor.nbytes if name.endswith("exp_avg") and not name.startswith("tables.") else 0
            device, host = found.get(part, (0.0, 0.0))
            there = tensor.device.type == HOST
            found[part] = (device + tensor.nbytes * (not there), host + tensor.nbytes * there)
        saved = sum(one.nbytes for one in state.values()) + sum(one.nbytes for one in stage.source.state().values())
        return Held(found, self._batch_bytes(stage), saved, dense)

    def _batch_bytes(self, stage: Stage) -> float:
        """Return the bytes of the arrays that a stage makes batches from, the data themselves not counted."""
        data, share = self.data, self.data.rows / self.data.filled
        exact = {count + more for count in (data.rows, data.train, self.labels) for more in (0, 1)}
        shared = {_address(array) for array in held((self.inputs, self.inputs.own), np.ndarray)}
        found = {_address(one): one for one in held(stage.source, np.ndarray) if _address(one) not in shared}
        # an array whose length is neither that of rows nor of labels holds pairs, which only the filled rows have here
        return float(sum(one.nbytes * (1 if one.ndim > 1 or len(one) in exact else share) for one in found.values()))


@dataclass(frozen=True)
class Held:
    """Bytes that a stage holds while it trains."""

    moments: dict[str, tuple[float, float]]
    """Bytes of the optimiser on the device and in CPU memory, by part."""
    batches: float
    """Bytes in CPU memory of what batches are made from."""
    saved: float
    """Bytes of moments and batches in a checkpoint."""
    dense: float
    """Bytes of the dense parameters that it trains."""


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _address(array: NDArray[Any]) -> tuple[int, int]:
    return array.__array_interface__["data"][0], array.nbytes


def _own_rows(stage: Stage, inputs: Inputs) -> bool:
    """Return whether a stage trains without the augmented rows."""
    return inputs.own is not None and getattr(stage.objective, "queries", None) is inputs.own.train_tokens


@lru_cache(maxsize=3)  # a run, and its traces with fewer labels: each holds arrays of N rows
def _built(config: str, data: DataSizes, kind: str, labels: int) -> Built:
    return Built(RunConfig.model_validate_json(config), data, kind, labels)


def built(config: RunConfig, data: DataSizes, kind: str, labels: int) -> Built:
    """Return the parts of a run; the last few are cached."""
    return _built(config.model_dump_json(), data, kind, labels)


_NAMES = {
    "gather": "gathered rows",
    "encode": "activations",
    "loss": "logits, masks, targets",
    "backward": "gradients",
    "rest": "activations",
}
"""Names in a plan of what a part of a step allocates, by the timer's name of that part."""


def options_of(config: RunConfig) -> str:
    """Return the options of a run's encoder, as JSON."""
    return json.dumps(dict(config.encoder_options), sort_keys=True)


def tables(model: nn.Module | None) -> list[RowTable]:
    """Return every row-sparse table of a model."""
    return [part for part in model.modules() if isinstance(part, RowTable)] if model is not None else []


def held(thing: Any, kind: type) -> list[Any]:
    """Return every tensor or array that an object of this package holds, at any depth, each once."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, kind):
            found[id(one)] = one
        if isinstance(one, csr_array):
            waiting += [one.data, one.indices, one.indptr]
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list | tuple | set):
            waiting += one
        elif type(one).__module__.startswith("harness.") and not isinstance(one, nn.Module):
            waiting += vars(one).values() if hasattr(one, "__dict__") else []
        elif isinstance(one, RowTable):
            waiting.append(one.weight)
    return list(found.values())
