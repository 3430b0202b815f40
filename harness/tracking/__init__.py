"""Sending the logs of runs to MLflow.

events.jsonl -> harness.tracking.uploader (live) or `harness sync` (later) -> MLflow
"""

from harness.errors import UserError
from harness.runs.log import Tracker
from harness.tracking.store import check_uri, tracking_uri

__all__ = ["make_tracker", "tracking_uri"]


def make_tracker(track: str) -> Tracker | None:
    """Return the tracker for `--track mlflow`, None for `none`; `UserError` if the store's address is invalid."""
    if track == "none":
        return None
    if track != "mlflow":
        raise UserError(f"--track takes mlflow or none (got {track!r})")
    check_uri(tracking_uri())
    from harness.tracking.uploader import Uploader  # also run as a program, which must not be imported before

    return Uploader()
