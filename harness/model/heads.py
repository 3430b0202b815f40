"""The two heads on a shared encoder f, and the classifier table.

    dual encoder    Phi_D(x) = N(Dropout(Tanh(W1 f(x) + b1)))           score = <Phi_D(x), Phi_D(z_l)> / temperature
    classifier      Phi_C(x) = Dropout(W2 f(x) + b2)                    score = <Phi_C(x), Psi_l> / temperature

N scales to unit length; the classifier head stays unnormalised (logits `dot`, the papers' form) or scores cosines
(logits `cosine`). Both heads see the same encoded query, so the classifier costs a projection and the pool's rows of
Psi, nothing more (Kharbanda et al., UniDEC, section 2.4). Methods without projections (NGAME, DEXML, Renee) score f(x)
itself: `PlainHead`, and a classifier that is not `projected`.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from harness.model.dropout import Dropout
from harness.model.encoders.encoder import Encoder, unit
from harness.model.tables import RowTable, lazy_zeros
from harness.settings.parameters import HeadStart

Logits = Literal["dot", "cosine"]


class RetrievalHead(nn.Module):
    """Phi_D on top of the encoder: [n, E] -> unit vectors [n, D]."""

    def __init__(self, width: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.projection = nn.Linear(width, dim)
        self.dropout = Dropout(dropout)

    def forward(self, encoded: Tensor) -> Tensor:
        """Return unit vectors [n, D] of encoded texts [n, E]."""
        return unit(self.dropout(torch.tanh(self.projection(encoded))))


class PlainHead(nn.Module):
    """The encoder's own vectors [n, E], scaled to length 1 or as they are."""

    def __init__(self, normalise: bool) -> None:
        super().__init__()
        self.normalise = normalise

    def forward(self, encoded: Tensor) -> Tensor:
        """Return the vectors [n, E] of encoded texts [n, E]."""
        return unit(encoded) if self.normalise else encoded


class Classifier(nn.Module):
    """Phi_C and the table Psi [L, D] of one vector per label."""

    def __init__(
        self,
        width: int,
        dim: int,
        labels: int,
        logits: Logits,
        dropout: float,
        row_dropout: float,
        *,
        projected: bool = True,
        bias: bool = True,
        searched: Logits = "cosine",
        table_type: torch.dtype = torch.float32,
        table_on_host: bool = False,
    ) -> None:
        """Make a table of zeros.

        Args:
            width: Dimension E of the encoder's vectors.
            dim: Dimension D of the table, equal to E unless `projected`.
            labels: Number of labels L.
            logits: How it scores in training.
            dropout: Dropout of the query vectors.
            row_dropout: Dropout of the gathered rows of Psi.
            projected: Put a linear layer between encoder and table.
            bias: Whether that layer has a bias.
            searched: How it scores when labels are searched.
            table_type: Type in which Psi is stored: float32 or bfloat16.
            table_on_host: Keep Psi in CPU memory, whatever device the model moves to.
        """
        super().__init__()
        if not projected and width != dim:
            raise ValueError(f"without a projection the table is as wide as the encoder, {width}, not {dim}")
        self.projection: nn.Module = nn.Linear(width, dim, bias) if projected else nn.Identity()
        self.searched = searched
        self.dropout = Dropout(dropout)
        self.row_dropout = Dropout(row_dropout)
        self.table = RowTable(lazy_zeros((labels, dim), table_type), on_host=table_on_host)
        self.logits = logits

    def forward(self, encoded: Tensor) -> Tensor:
        """Return query vectors [n, D] of encoded texts [n, E]."""
        vectors = self.dropout(self.projection(encoded))
        return unit(vectors) if self.logits == "cosine" else vectors

    def rows(self, gathered: Tensor) -> Tensor:
        """Return label vectors [P, D] of rows [P, D] gathered from the table."""
        vectors = self.row_dropout(gathered)
        return unit(vectors) if self.logits == "cosine" else vectors


class TwoHeads(nn.Module):
    """Shared encoder with a dual-encoder head and, unless it is None, a classifier."""

    def __init__(self, encoder: Encoder, retrieval: RetrievalHead | PlainHead, classifier: Classifier | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.retrieval = retrieval
        self.classifier = classifier


def start_projection(layer: nn.Linear, start: HeadStart, generator: torch.Generator) -> None:
    """Initialise a head: Xavier-uniform (papers), or orthogonal, which keeps all angles when D >= E; bias 0."""
    draw = nn.init.orthogonal_ if start == "orthogonal" else nn.init.xavier_uniform_
    draw(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)


def start_bottleneck(layer: nn.Linear, generator: torch.Generator) -> None:
    """Initialise a linear map without bias [D, E] from U(-1/sqrt(E), 1/sqrt(E)), as in Renee's code."""
    bound = layer.in_features**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
