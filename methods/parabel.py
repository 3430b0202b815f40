"""`parabel`: balanced label trees with linear one-vs-all classifiers on TF-IDF features (Prabhu et al. 2018).

`xr-linear` has wider, shallower trees. Trained by the library omikuji (extra `[peers]`); see `harness.model.parabel`.
It takes no seed: the same settings give another forest every time. Six runs on lf-pydocstitles gave P@1 from 49.8 to
51.4.
"""

from typing import Annotated, Literal

from pydantic import Field

from harness.settings.method import Inputs, Method, Parts
from harness.settings.parameters import SPEED, NotNegative, Positive, Steps, TextSettings

_MOST = 2**31 - 1


class Params(TextSettings):
    """Parameters of `parabel`; those of the trees are the paper's, as omikuji has them."""

    trees: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of trees in the forest."""
    max_leaf: Annotated[int, Field(ge=2, le=_MOST)] = 100
    """Labels of a node from which on it is split in two."""
    branches: Literal[2, 4, 8, 16, 32, 64] = 2
    """Children of a node: halves of halves are taken for one level; 2 as in Parabel, 16 as in XR-Linear."""
    max_depth: Annotated[int, Field(ge=1, le=1000)] = 20
    """Most levels of a tree."""
    loss: Literal["hinge", "log"] = "hinge"
    """Loss of the linear classifiers: squared hinge, or log."""
    cost: Positive = 1.0
    """C of the linear classifiers: larger fits the train rows closer."""
    prune: NotNegative = 0.1
    """Weights smaller than this are set to zero, which makes models smaller."""
    beam: Annotated[int, Field(ge=1, le=_MOST)] = 10
    """Nodes kept on every level of a tree, and labels in a leaf, when it is searched."""
    threads: Annotated[Steps, SPEED] = 0
    """Threads; 0: one per core; they change speed alone."""


def build(inputs: Inputs, params: Params) -> Parts:
    """Build a forest that is not fitted yet."""
    from harness.model.parabel import Parabel, require_library

    require_library()
    settings = {
        "n_trees": params.trees,
        "min_branch_size": params.max_leaf,
        "max_depth": params.max_depth,
        "collapse_every_n_layers": params.branches.bit_length() - 2,  # n levels into the one above: 2^(n+1) children
        "linear_loss_type": {"hinge": 0, "log": 1}[params.loss],  # as omikuji numbers them
        "linear_c": params.cost,
        "linear_weight_threshold": params.prune,
    }
    model = Parabel(inputs, params, settings, beam=params.beam, threads=params.threads)
    return Parts(scoring=model, fitted=model)


METHOD = Method(Params, build)
