"""A trained model away from its data: packed into a folder, and answering texts with labels.

    run folder -> package (record, labels, token counts, weights) -> TrainedModel -> top labels

`harness.serving.package` is the folder and how it is written and read, `predictor` the model as MLflow sees it, `entry`
the script that MLflow keeps in place of a pickle. `harness.tracking.model` puts them together.
"""
