"""The frugal encoder: a weighted bag of token vectors that were distilled once from a transformer, of unit length.

    f(x) = N(sum_t w(t) E[t])          over the tokens t of x, N = scaled to length 1

E comes from sending every vocabulary token alone through the teacher ([CLS] t [SEP]), keeping the first `dim` principal
components, and dividing component j by the fourth root of its variance (half of whitening). The weight w(t) is a
product of factors a / (a + p(t)) (smooth inverse frequency, Arora et al. 2017): p by Zipf's law over the vocabulary's
order, and p as counted in the train and label texts. Special tokens weigh nothing. E is trainable, w is not; a step
reads and writes only the rows of E whose tokens are in the batch. With `ngrams` vectors of n-grams, zero at the start,
are added to the sum (`harness.model.encoders.ngrams`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.data.ragged import Ragged
from harness.data.tokens import Tokenizer
from harness.errors import UserError
from harness.io.files import build_once, home, sha256_json, write_bytes
from harness.model.encoders.encoder import Encoder, LearningRates, encode, unit
from harness.model.encoders.ngrams import NGrams
from harness.model.encoders.pretrained import ModelFolder, find
from harness.model.tables import RowTable

VERSION = 1
"""Raised whenever the same teacher would give another table."""

Weighting = Literal["zipf+sif", "zipf", "sif", "uniform"]

ZIPF_SMOOTHING = 1e-4
CORPUS_SMOOTHING = 1e-2
_RELATIVE_VARIANCE_FLOOR = 1e-6

STATIC_LEARNING_RATES = LearningRates(encoder=5e-3, heads=1e-3, classifier=1.5e-3, one_vs_all=2.0)
"""Larger than a transformer's: a step updates the vectors of the batch's tokens alone."""


class TokenEncoder(Encoder):
    """A trainable table of token vectors [V, E] with fixed token weights [V]; subclasses make text vectors of them."""

    weights: Tensor
    learning_rates = STATIC_LEARNING_RATES
    micro_batched = False

    def __init__(self, table: Tensor, weighting: Weighting, **metadata: Any) -> None:
        """Store the table [V, E]; `dim` is E unless `metadata` say otherwise."""
        super().__init__(**{"dim": table.shape[1], "longest": None, **metadata})
        self.table = RowTable(table)
        self.weighting = weighting
        self.register_buffer("weights", torch.ones(len(table)))
        self._weigh(None)

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [U, E] of the table, and the index [T] of every token's row; gradients reach these rows."""
        if not (self.training and torch.is_grad_enabled()):
            return self.table.whole(), ids
        used, place = distinct(ids, len(self.weights))
        return self.table.gather(used), place

    def bag(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return the weighted sums [B, E] of the token vectors of every row."""
        if len(offsets) == 1:
            return self.table.weight[:0]
        rows, place = self.rows(ids)
        return weighted_bags(rows, place, offsets, self.weights[ids])

    def adapt(self, counts: NDArray[np.int64]) -> None:
        """Set the weights by the token counts [V] of the train and label texts (`sif` and `zipf+sif` only)."""
        if len(counts) != len(self.weights):
            raise ValueError(f"{len(counts)} counts for a vocabulary of {len(self.weights)}")
        self._weigh(counts)

    def _weigh(self, counts: NDArray[np.int64] | None) -> None:
        """Set the token weights w; without counts the corpus factor is 1."""
        weights = np.ones(len(self.weights))
        if "zipf" in self.weighting:
            weights *= inverse_frequency(1 / np.arange(1, len(weights) + 1), ZIPF_SMOOTHING)
        if "sif" in self.weighting and counts is not None:
            weights *= inverse_frequency(counts, CORPUS_SMOOTHING)
        weights[self.tokenizer.special_ids] = 0
        self.weights.copy_(torch.from_numpy(weights))


class StaticEncoder(TokenEncoder):
    """The weighted sum of the token vectors, and of those of n-grams if there are any, scaled to length 1."""

    def __init__(self, table: Tensor, weighting: Weighting, ngrams: NGrams | None = None, **metadata: Any) -> None:
        """Store the token vectors [V, D] and the table of n-grams."""
        super().__init__(table, weighting, **metadata)
        self.ngrams = ngrams

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Return unit vectors [B, D]; a row whose tokens all have weight 0 gives a zero vector."""
        bag = self.bag(ids, offsets)
        if self.ngrams is not None and len(bag):
            places, bounds, factors = self.ngrams.found(ids, offsets, self.weights[ids])
            rows, place = self.ngrams.rows(places)
            bag = bag + weighted_bags(rows, place, bounds, factors)
        return unit(bag)


def weighted_bags(rows: Tensor, place: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
    """Sum w_t rows[place_t] over the tokens t of every bag, [B, E].

    Args:
        rows: Token vectors, [U, E]; gradients reach them.
        place: Index of each token's vector in `rows`, all bags one after the other, int64 [T].
        offsets: Bounds of the bags, int64 [B + 1].
        weights: Weight w of each token, [T], without gradients.
    """
    bags: Tensor = _Bags.apply(rows, place, offsets, weights)  # type: ignore[no-untyped-call]
    return bags


class _Bags(torch.autograd.Function):
    """A product with a sparse W [B, U]: out = W rows, d rows = W^T d out; torch is slow at the latter."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: Tensor, offsets: Tensor, weights: Tensor) -> Tensor:
        ctx.count = len(rows)
        ctx.save_for_backward(place, offsets, weights)
        return _sparse_product(rows, place, offsets, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        place, bounds, weights = _transposed(*ctx.saved_tensors, width=ctx.count)
        return _sparse_product(gradient, place, bounds, weights), None, None, None


def _sparse_product(dense: Tensor, columns: Tensor, bounds: Tensor, values: Tensor) -> Tensor:
    """Multiply a sparse matrix (columns [T], values [T], row bounds [B + 1]) by a dense one [U, E]: [B, E]."""
    return nn.functional.embedding_bag(
        columns, dense, bounds, mode="sum", include_last_offset=True, per_sample_weights=values.to(dense.dtype)
    )


def _transposed(columns: Tensor, bounds: Tensor, values: Tensor, *, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Transpose a sparse matrix [B, width]; return (columns [T], row bounds [width + 1], values [T])."""
    if columns.device.type == "cpu":  # a counting sort, in a fifth of the time of sorting
        shape = (len(bounds) - 1, width)
        flipped = csr_array((values.numpy(), columns.numpy(), bounds.numpy()), shape=shape).tocsc()
        indices, pointers = (torch.from_numpy(array.astype(np.int64)) for array in (flipped.indices, flipped.indptr))
        return indices, pointers, torch.from_numpy(flipped.data)
    order = columns.argsort(stable=True)
    row = torch.arange(len(bounds) - 1, device=bounds.device).repeat_interleave(bounds.diff())
    counts = torch.bincount(columns, minlength=width).cumsum(0)
    return row[order], nn.functional.pad(counts, (1, 0)), values[order]


def distinct(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the sorted distinct values [U] of ids [T] below `count`, and the index of every id among them, [T]."""
    present = torch.zeros(count, dtype=torch.bool, device=ids.device)
    present[ids] = True
    values = present.nonzero().squeeze(1)
    place = torch.empty(count, dtype=torch.int64, device=ids.device)
    place[values] = torch.arange(len(values), device=ids.device)
    return values, place[ids]


def inverse_frequency(frequency: NDArray[Any], smoothing: float) -> NDArray[np.float64]:
    """Return the smooth inverse frequencies a / (a + p) with p = frequency / sum, [V]."""
    probability = frequency / max(frequency.sum(), np.finfo(np.float64).tiny)
    return np.asarray(smoothing / (smoothing + probability))


def load_static(
    *,
    name: str,
    seed: int,
    teacher: str = "minilm",
    dim: Annotated[int, Field(ge=1)] = 256,
    weighting: Weighting = "zipf+sif",
    ngrams: Annotated[int, Field(ge=1, le=5)] = 1,
    ngram_rows: Annotated[int, Field(ge=1, le=1 << 26)] = 1 << 16,
    ngram_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0,
    max_len: int | None = None,
) -> StaticEncoder:
    """Load the static encoder of a teacher, distilled on first use (about a minute on two cores) and cached.

    Args:
        name: Name of the encoder, for records.
        seed: Not used; distillation draws nothing.
        teacher: minilm, an encoder of the model hub, or the path of a model folder.
        dim: Principal components kept, D.
        weighting: Factors of the token weights; `sif` counts once `adapt` has seen the texts.
        ngrams: Tokens of the longest n-grams that have vectors, too; 1 for tokens alone.
        ngram_rows: Rows of the table of n-grams, which are hashed into it.
        ngram_weight: Factor of the vectors of n-grams; as they start at zero, it says how fast they grow.
        max_len: Tokens per text; by default the teacher's.
    """
    distilled = distil(teacher, dim, weighting, max_len)
    if ngrams == 1:
        return StaticEncoder(distilled.table, weighting, name=name, **distilled.metadata())
    table = NGrams(ngrams, ngram_rows, distilled.table.shape[1], ngram_weight)
    settings = {"ngrams": ngrams, "ngram_rows": ngram_rows, "ngram_weight": ngram_weight}
    return StaticEncoder(distilled.table, weighting, table, name=name, **distilled.metadata(**settings))


@dataclass(frozen=True)
class Distilled:
    """Token vectors distilled from a teacher, with their metadata."""

    table: Tensor
    """Token vectors, [V, dim]; a copy of its own that may be trained."""
    source: ModelFolder
    recipe: dict[str, Any]
    """All that decides the table and its weights, to be hashed for identities."""

    def metadata(self, **settings: Any) -> dict[str, Any]:
        """Return the arguments of `Encoder` that follow from the teacher; `settings` are hashed into its identity."""
        return {
            "tokenizer": self.source.tokenizer,
            "max_len": self.source.max_len,
            "identity": sha256_json({**self.recipe, **settings}),
        }


def distil(teacher: str, dim: int, weighting: Weighting, max_len: int | None) -> Distilled:
    """Return the token vectors of a teacher, from the workspace's cache or made now; arguments as for `load_static`."""
    source = find(teacher, max_len=max_len)
    recipe = {"version": VERSION, "teacher": source.identity, "dim": dim}
    weights = {"weighting": weighting, "smoothing": [ZIPF_SMOOTHING, CORPUS_SMOOTHING]}
    return Distilled(_table(source, dim, recipe), source, {**recipe, **weights})


def _table(source: ModelFolder, dim: int, recipe: dict[str, Any]) -> Tensor:
    """Return the table [V, dim] of a teacher, from the cache or made now."""
    from safetensors.torch import load_file, save

    folder = home() / "cache" / "encoders" / f"static-{sha256_json(recipe)[:32]}"

    def build(temporary: Path) -> dict[str, Any]:
        vectors = token_vectors(source)
        table, kept = principal_components(vectors, dim, source.tokenizer.special_ids)
        write_bytes(temporary / "table.safetensors", save({"table": table}))
        return {"recipe": recipe, "teacher": source.name, "variance_kept": kept}

    build_once(folder, build, verify=True)
    # a copy, because the loaded tensor is a view of the mapped file, and training writes to the table
    return load_file(folder / "table.safetensors")["table"].clone()


def token_vectors(source: ModelFolder) -> NDArray[np.float32]:
    """Return the teacher's vector of every vocabulary token alone, [V, teacher's D]."""
    from harness.model.encoders.transformer import from_folder

    return encode(from_folder(source), framed_tokens(source.tokenizer), progress=f"distil {source.name}")


def framed_tokens(tokenizer: Tokenizer) -> Ragged:
    """Return every token id as a text of its own with special tokens, for example [CLS] id [SEP], [V] texts."""
    before, after = tokenizer.frame
    rows = np.tile(np.array([*before, 0, *after], dtype=np.int64), (tokenizer.vocab_size, 1))
    rows[:, len(before)] = np.arange(tokenizer.vocab_size)
    return Ragged(rows.ravel(), np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1])


def principal_components(vectors: NDArray[np.float32], dim: int, left_out: NDArray[np.int64]) -> tuple[Tensor, float]:
    """Return the half-whitened projection [V, dim] of `vectors` [V, D] and the share of variance kept.

    The mean squared norm of the rows is 1.

    Args:
        vectors: One row per token.
        dim: Components to keep.
        left_out: Rows that are not used for mean and covariance.
    """
    if not 1 <= dim <= vectors.shape[1]:
        raise UserError(f"dim {dim} must be between 1 and the teacher's {vectors.shape[1]}")
    everything = torch.from_numpy(vectors).double()
    counted = torch.from_numpy(np.delete(vectors, left_out, axis=0)).double()
    mean = counted.mean(0)
    variance, directions = torch.linalg.eigh((counted - mean).T @ (counted - mean) / len(counted))
    variance = variance.flip(0).clamp(min=float(variance[-1]) * _RELATIVE_VARIANCE_FLOOR)
    directions = directions.flip(1)[:, :dim]
    # an eigenvector is defined up to its sign; the largest coefficient is made positive so that reruns agree
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    projected = (everything - mean) @ (directions * largest.sign()) / variance[:dim] ** 0.25
    projected /= projected.square().sum(1).mean().sqrt()
    return projected.float().contiguous(), float(variance[:dim].sum() / variance.sum())
