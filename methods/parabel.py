"""`parabel`: balanced label trees with linear one-vs-all classifiers on TF-IDF features (Prabhu et al. 2018).

Trained by the library omikuji (extra `[peers]`); see `harness.model.forest`. It takes no seed: the same settings give
another forest every time. Six runs on lf-pydocstitles gave P@1 from 49.8 to 51.4.
"""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, Literal
from weakref import finalize

from pydantic import Field
from scipy.sparse import csr_array

from harness.data.ragged import Ragged
from harness.errors import DataError
from harness.index import TopK
from harness.method import Inputs, Method, Parts
from harness.model.forest import Forest, require_library, train_forest
from harness.model.tfidf import TextSettings, Tfidf

FOREST = "forest"
LOSSES = {"hinge": 0, "log": 1}
"""As omikuji numbers them."""


class Params(TextSettings):
    """Knobs of `parabel`."""

    trees: Annotated[int, Field(ge=1, le=1000)] = 3
    max_leaf: Annotated[int, Field(ge=2, le=2**31 - 1)] = 100
    max_depth: Annotated[int, Field(ge=1, le=1000)] = 20
    loss: Literal["hinge", "log"] = "hinge"
    cost: Annotated[float, Field(gt=0)] = 1.0
    prune: Annotated[float, Field(ge=0)] = 0.1
    beam: Annotated[int, Field(ge=1, le=2**31 - 1)] = 10
    threads: Annotated[int, Field(ge=0)] = 0


class Parabel:
    """The method as `harness.run` sees it: fitted in one go, ranking by itself."""

    views = ("forest",)
    text_view = None

    def __init__(self, inputs: Inputs, params: Params) -> None:
        self._inputs, self._params = inputs, params
        self._tfidf = Tfidf(inputs.encoder.tokenizer, params)
        self._forest: Forest | None = None

    def fit(self) -> dict[str, Any]:
        """Features of the train rows, then the trees."""
        params, inputs = self._params, self._inputs
        if inputs.soft:
            inputs.warn("parabel knows no soft targets: every label of a made row counts as a whole positive")
        self._tfidf.fit(inputs.train_tokens)
        settings = {
            "n_trees": params.trees,
            "min_branch_size": params.max_leaf,
            "max_depth": params.max_depth,
            "linear_loss_type": LOSSES[params.loss],
            "linear_c": params.cost,
            "linear_weight_threshold": params.prune,
        }
        features = self._tfidf.transform(inputs.train_tokens)
        folder = Path(mkdtemp(prefix="parabel-"))
        finalize(self, shutil.rmtree, folder, ignore_errors=True)  # it holds the forest until that is saved
        facts = train_forest(folder / FOREST, features, inputs.train, settings, params.threads)
        self._forest = Forest(folder / FOREST, params.threads)
        return facts

    def save(self, folder: Path) -> None:
        """Vocabulary, and the trees in omikuji's own format."""
        self._tfidf.save(folder)
        self._ready().save(folder / FOREST)

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote; the caller has verified it."""
        self._tfidf.load(folder)
        self._forest = Forest(folder / FOREST, self._params.threads)
        if (self._forest.features, self._forest.trees) != (len(self._tfidf.terms), self._params.trees):
            raise DataError("these trees do not fit the settings of the run; run anew", folder)

    def rank(self, tokens: Ragged, k: int, exclude: csr_array | None, view: str) -> TopK:
        """The best k labels of queries [n]."""
        features = self._tfidf.transform(tokens)
        return self._ready().rank(features, self._inputs.train.shape[1], k, exclude, self._params.beam)

    def _ready(self) -> Forest:
        if self._forest is None:
            raise RuntimeError("neither fitted nor loaded")
        return self._forest


def build(inputs: Inputs, params: Params) -> Parts:
    """A forest that is not fitted yet."""
    require_library()
    model = Parabel(inputs, params)
    return Parts(scorer=model, fitted=model)


METHOD = Method(Params, build)
