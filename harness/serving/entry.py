"""What MLflow runs to get the model of a packed run; copied into its folder in place of a pickle."""

from mlflow.models import set_model

from harness.serving.predictor import TopLabels

set_model(TopLabels())
