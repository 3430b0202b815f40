"""One-vs-all over all labels, in blocks of labels: the classifier of Renee (Jain et al. 2023).

    loss = sum over queries i and labels l of softplus(s_il) - y_il s_il          s = x Psi^T  [B, L]
    G = sigmoid(s) - y          dx = G Psi          dPsi = G^T x

A block of labels is scored, turned into its part of G in place, multiplied into dx and at once into the update of its
rows of Psi, and forgotten; no array of B x L exists. Targets y are 1, or anything in (0, 1]; filter pairs have G = 0.
What is minimised is the sum, not the mean: with a mean over millions of pairs nothing moves. Only the reported value is
divided by the number of queries.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from harness.batching import LabelSpace
from harness.data.ragged import Ragged
from harness.errors import UserError
from harness.model.dropout import seed_dropout
from harness.model.heads import Classifier, TwoHeads
from harness.seeds import stream_seed
from harness.settings.parameters import OptimSettings
from harness.train import Batch
from harness.train.caching import TextObjective, autocast, product_type
from harness.train.optim import Optimiser
from harness.train.optim.blocked import BlockedSgd, add_product
from harness.train.timing import Timer

LABEL_BLOCK = {"cpu": 2048, "cuda": 65_536}


def label_block(device: str) -> int:
    """Return how many labels are scored at once by default.

    On two cores the time of a step is flat from 1,024 to 4,096, batches of 128 and of 512 alike: below, calls cost;
    above, scores leave the cache between two passes. A CUDA device waits for its next kernel unless blocks are large.
    """
    return LABEL_BLOCK["cuda" if device.startswith("cuda") else "cpu"]


@dataclass
class OneVsAll(TextObjective):
    """Encode a batch, go through all labels block by block, send the gradient of the queries back."""

    model: TwoHeads
    queries: Ragged
    """Tokens of the train rows, [N] texts."""
    classifier: BlockedSgd
    """SGD over the classifier's table: this objective updates the table; the optimiser only schedules and saves it."""
    optimiser: Optimiser
    settings: OptimSettings
    device: str
    seed: int
    label_block: int
    loss_rows: int | None = None
    """Number of queries, the first of a batch, whose loss is reported; None for all. All have gradients."""
    _scores: Tensor = field(init=False, default_factory=lambda: torch.empty(0))
    """Buffer for one block of scores, kept from step to step."""
    _updated: "tuple[int, Tensor, Tensor] | None" = field(init=False, default=None)
    """Step, loss and dx [B, D] where the classifier was updated but the encoder's backward pass ran out of memory."""
    _halfway: bool = field(init=False, default=False)
    """Whether only some blocks of the classifier's table have been updated in this step."""

    def backward(self, batch: Batch, timer: Timer) -> dict[str, float]:
        """Update the classifier, leave gradients of the summed loss in the encoder; return the loss per query."""
        space, head = batch.pool, self.model.classifier
        assert isinstance(space, LabelSpace)
        assert isinstance(head, Classifier)
        with timer.part("gather"):
            pairs = KnownPairs.of(space, self._loss_rows(space.rows), self.device)
        with timer.part("encode"):
            with autocast(self.settings, self.device):
                encoding = self.encoding(batch)
            seed_dropout(stream_seed(self.seed, "dropout", batch.step, 0))
            vectors = head(encoding.vectors)  # without autocast: a bottleneck computes in float32
        with timer.part("loss"):
            rate = self.optimiser.learning_rates(batch.step)[self.classifier.group.name]
            if self._updated is None or self._updated[0] != batch.step:
                self._updated = (batch.step, *self._all_labels(vectors.detach(), space, pairs, rate, batch.step))
            _, loss, gradient = self._updated
        with timer.part("backward"):
            torch.autograd.backward(vectors, gradient)
        with autocast(self.settings, self.device), timer.part("encode"):
            encoding.backward()
        self._updated = None
        return {"loss": float(loss) / max(1, self._loss_rows(space.rows))}

    @torch.no_grad()
    def _all_labels(
        self, x: Tensor, space: LabelSpace, pairs: "KnownPairs", rate: float, step: int
    ) -> tuple[Tensor, Tensor]:
        """Go through all labels; return the loss of the measured queries and dx [B, D].

        Args:
            x: Query vectors, [B, D].
            space: All labels, with the known pairs of the batch.
            pairs: The known pairs as tensors on the device.
            rate: Learning rate of the classifier.
            step: Number of the step.
        """
        loss, gradient, measured = x.new_zeros(()), torch.zeros_like(x), self._loss_rows(len(x))
        self._halfway = True
        factor = x.to(product_type(self.settings, self.device))
        for start in range(0, space.size, self.label_block):
            stop = min(start + self.label_block, space.size)
            # The transpose: a block is contiguous whatever B is, and its pairs are in the order of memory.
            weight, scores = self.classifier.rows(start, stop, factor), self._scratch(stop - start, x)
            _multiply(weight, factor.T, scores)
            known = pairs.in_block(space, start, stop)
            flat = scores.view(-1)
            flat.index_fill_(0, known.ignored, -torch.inf)
            loss += softplus(scores[:, :measured]).sum() - flat[known.place].dot(known.measured)
            scores.sigmoid_()
            flat.index_add_(0, known.place, known.target, alpha=-1)
            part = scores.to(factor.dtype)
            add_product(gradient, part.T, weight)  # before the weights change
            self.classifier.update(start, stop, part, factor, rate, step)
        self._halfway = False
        return loss, gradient

    def work_in_pieces(self, tokens: int) -> None:
        """Encode queries in pieces of at most `tokens` tokens; raise if the classifier's table is partly updated."""
        if self._halfway:
            raise UserError(
                f"out of memory among the labels, {self.label_block:,} at a time; start a new run with a smaller "
                "label_block or batch_size, or go on from the last checkpoint on a larger device"
            )
        super().work_in_pieces(tokens)

    def _scratch(self, labels: int, x: Tensor) -> Tensor:
        """Return a buffer for the scores [labels, B] of a block."""
        needed = min(self.label_block, len(self.classifier.table.weight)) * len(x)
        if self._scores.numel() < needed:
            self._scores = x.new_empty(needed)
        return self._scores[: labels * len(x)].view(labels, len(x))

    def _loss_rows(self, rows: int) -> int:
        return rows if self.loss_rows is None else min(rows, self.loss_rows)


@dataclass(frozen=True)
class KnownPairs:
    """The n known pairs of a batch, or of a block of its labels, as flat indices into the transposed scores [L, B]."""

    place: Tensor
    """Index of each positive: label x B + query, where labels count from the first of the block; [n]."""
    target: Tensor
    """Target y of each positive, [n]."""
    measured: Tensor
    """Target y of each positive if the query's loss is reported, 0 otherwise; [n]."""
    ignored: Tensor
    """Index of each of the F filter pairs, [F]."""

    @classmethod
    def of(cls, space: LabelSpace, loss_rows: int, device: str) -> "KnownPairs":
        """Return the pairs of a batch on a device; the loss is reported for its first `loss_rows` queries."""
        place = space.label * space.rows + space.query
        measured = np.where(space.query < loss_rows, space.target, np.float32(0))
        ignored = space.ignored_label * space.rows + space.ignored_query
        return cls(*(torch.from_numpy(array).to(device) for array in (place, space.target, measured, ignored)))

    def in_block(self, space: LabelSpace, start: int, stop: int) -> "KnownPairs":
        """Return the pairs of labels start <= l < stop."""
        known, ignored = space.block(start, stop)
        first = start * space.rows
        return KnownPairs(
            self.place[known] - first, self.target[known], self.measured[known], self.ignored[ignored] - first
        )


def _multiply(left: Tensor, right: Tensor, result: Tensor) -> None:
    """Write left @ right into `result` [n, B], which may have a wider type than the factors."""
    if left.dtype == result.dtype:
        torch.mm(left, right, out=result)
    else:
        result.copy_(left @ right)
