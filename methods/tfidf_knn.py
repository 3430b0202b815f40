"""`tfidf-knn`: labels of the train rows that share the most telling words with the query.

    score(q, l) = sum over the n nearest rows i of cos(q, i)^power * Y[i, l]

Rows are train rows, and label texts, which vote for themselves with a weight of their own. Nothing is trained: it says
how far shared words alone lead on a dataset, above all for labels whose text resembles their queries.
"""

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import Count, Positive, TextSettings


class Params(TextSettings):
    """Parameters of `tfidf-knn`; the defaults of its own four were chosen on validation rows of lf-debiantitles."""

    min_rows: Count = 1
    """Terms in fewer train rows are left out, unless a label text has them."""
    neighbours: Count = 100
    """Number of nearest rows that vote for a query."""
    power: Positive = 3.0
    """Exponent of a vote's weight, cosine^power: the larger, the more the nearest rows decide."""
    label_texts: bool = True
    """Whether label texts are rows too, which vote for their own label."""
    label_weight: Positive = 2.0
    """Weight of a label text's vote; a train row's is 1."""


def build(inputs: Inputs, params: Params) -> Parts:
    """Build a nearest-neighbour model that is not fitted yet."""
    from harness.model.neighbours import Neighbours

    model = Neighbours(
        inputs,
        params,
        neighbours=params.neighbours,
        power=params.power,
        label_weight=params.label_weight if params.label_texts else None,
    )
    return Parts(scoring=model, fitted=model)


METHOD = Method(Params, build)
