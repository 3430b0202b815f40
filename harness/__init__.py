"""A benchmark harness for extreme multi-label classification (XMC) with label text.

The flow, one typed value per arrow::

    DatasetCard -> Dataset -> Ragged tokens -> BatchPlan -> Batch + LabelPool -> scores -> loss -> step
    datasets/*.yaml                               ^                                             |
                                                  +---- clusters, hard negatives <--- vectors --+

    vectors -> search -> TopK -> metrics -> RunRecord -> table
                                    +-----> events.jsonl, MLflow

`harness.run` is that flow as ten numbered steps on one screen; `harness.train.loop` is the only training loop.

Tensor letters, used in every docstring: N train rows, M test rows, L labels, B queries in a batch,
P labels in a pool, D dimension, E width of the encoder, K retrieved labels, V vocabulary, T tokens, A augmented rows.
"""

__version__ = "0.1.0"

DEFAULT_METHOD = "unidec"
DEFAULT_DATASET = "lf-pydocstitles"
