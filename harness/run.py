"""The pipeline: one run from a config to a record, in ten steps."""

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data import load
from harness.errors import Terminated
from harness.index import check_backend
from harness.machine.device import choose_device
from harness.metrics import METRIC_VERSION
from harness.model import check_encoder, load_encoder
from harness.model.folders import remember_folders
from harness.runs.log import open_run
from harness.runs.metadata import recorded, start_metadata
from harness.runs.record import RunRecord, Stopwatch
from harness.runs.resume import Earlier
from harness.settings.layers import Layer
from harness.settings.method import load_method
from harness.settings.resolve import resolve
from harness.settings.schema import RunConfig
from harness.tracking import make_tracker
from harness.train.evaluation import Evaluator, Rows, label_weights
from harness.train.fusion import (
    Choice,
    earlier_choice,
    logged_choice,
    origins_before,
    recorded_choice,
    run_before,
    with_weight,
)
from harness.train.inputs import (
    augmented,
    text_length,
    tokenise,
    train_side,
    validation_count,
    validation_split,
    warn_of_repeated_texts,
    warn_of_validation_rows,
)
from harness.train.loop import train
from harness.train.outcome import finish

if TYPE_CHECKING:
    from harness.train import OnValidation


def resolve_config(method: str, dataset: str, layers: list[Layer]) -> tuple[RunConfig, dict[str, str]]:
    """Resolve the settings of a run, `harness.settings.resolve`, and check the encoder's and the search's options.

    Everything that can be known to be wrong before data and weights are touched is found here.
    """
    config, origins = resolve(method, dataset, layers)
    check_encoder(config.encoder, dict(config.encoder_options))
    check_backend(config.search.backend, dict(config.search.options))
    return config, origins


def run(
    config: RunConfig,
    *,
    origins: dict[str, str] | None = None,
    out: Path | None = None,
    track: str = "mlflow",
    earlier: Earlier | None = None,
    parent: dict[str, Any] | None = None,
    on_validation: "OnValidation | None" = None,
) -> RunRecord:
    """Run one method on one dataset; return the record that was also written to the run folder.

    A run whose scorer `fused` has no weight yet, nor validation rows to choose it on, has another run before it that
    chooses the weight, see `harness.train.fusion`.

    Steps 1 to 4 are where a user's mistake shows (a wrong name, missing data); then the run folder is opened.

    Args:
        config: Settings as `resolve_config` returns them.
        origins: Where each setting came from.
        out: Folder of run folders; by default the workspace's.
        track: `mlflow` or `none`.
        earlier: An interrupted run to go on with.
        parent: The bench or sweep that the run belongs to, `GroupLog.parent` of `harness.runs.log`.
        on_validation: Called after every validation; may raise `Pruned` to end the run.
    """
    if earlier is not None:
        earlier.require_settings(recorded(config))
    choice = None
    if (first := run_before(config)) is not None:
        known = logged_choice(earlier) if earlier else None
        choice = known or _chosen_before(first, origins or {}, out, track, parent)
    watch, tracker = Stopwatch(), make_tracker(track)
    # 1  the method, and 2  the device
    method, device = load_method(config.method), choose_device(config.device)

    # 3  the dataset, prepared on first use; validation rows are split off the train rows if the config asks for any
    dataset = load(config.dataset, use_filter=config.filter)
    kept, held = validation_split(dataset, config)
    watch.lap("load_data")

    # 4  the encoder
    encoder = load_encoder(config.encoder, seed=config.seed, **config.encoder_options)
    max_len = text_length(config, encoder)
    remember_folders(config, encoder.identity)
    watch.lap("load_encoder")

    # 5  the run folder: every event goes there first, then to MLflow
    described = {"dim": encoder.dim, "max_len": max_len, "identity": encoder.identity}
    metadata = start_metadata(config, dataset, len(held), described, device, METRIC_VERSION) | {"parent": parent}
    with open_run(metadata, origins or {}, tracker, out, earlier) as run_log:
        watch.lap("open_tracking")

        if choice is not None:
            run_log.event("fused", choice=choice.model_dump())
        if config.evaluate == "test":
            warn_of_repeated_texts(dataset, run_log.warn)
        warn_of_validation_rows(len(held), validation_count(config, len(kept) + len(held)), run_log.warn)

        # 6  tokens, cached by content
        tokens = tokenise(dataset, encoder, max_len, kept, test=config.evaluate == "test")
        watch.lap("tokenise")

        # 7  the method's parts, from the train rows and those that augmentation adds
        inputs = train_side(dataset, kept, tokens, encoder, device, config, run_log.warn)
        inputs = augmented(inputs, config, run_log)
        parts = method.build(inputs, method.params.model_validate(config.params))
        watch.lap("build")

        # 8  training, where the method trains
        evaluator = Evaluator(config, dataset, label_weights(dataset), tokens.labels, device)
        validation = Rows(tokens.train.take(held), dataset.train[held], dataset.train_filter[held], "validation rows")
        training = train(parts, run_log, config, evaluator, validation, on_validation)
        parts, fused = with_weight(parts, evaluator, validation, choice)
        watch.lap("train")

        # 9  vectors and search, filter pairs masked before ranking
        tested = Rows(tokens.test, dataset.test, dataset.test_filter) if config.evaluate == "test" else validation
        scored = evaluator.score(parts.scoring, tested)
        watch.lap("score")

        # 10 predictions, model, record
        run_log.complete(finish(run_log, parts, scored, training | fused, dataset, config, inputs, watch))
    return run_log.record


def _chosen_before(
    first: RunConfig, origins: dict[str, str], out: Path | None, track: str, parent: dict[str, Any] | None
) -> Choice:
    """Return the weight of scorer `fused` from the run with settings `first`; that run is done now if it is not yet."""
    found = earlier_choice(first, out)
    if isinstance(found, Choice):
        _say(f"scorer fused: weight {found.weight:.3f} from run {found.run}, which chose it by {found.metric}")
        return found
    how = f"goes on with run {found.folder.name}, which" if found else "begins with a training of its own, which"
    _say(f"scorer fused: {how} chooses the weight on validation rows; the training on all rows follows")
    try:
        record = run(first, origins=origins_before(origins), out=out, track=track, earlier=found, parent=parent)
    except (KeyboardInterrupt, Terminated):
        _say("or give the same command again: it takes up that run, and then trains on all rows")
        raise
    chosen = recorded_choice(record)
    assert chosen is not None
    gc.collect()  # free the memory of that training before the next one begins
    best = max(value for _, value in chosen.grid)
    scored = f"{chosen.metric} {chosen.value:.2f} on {chosen.rows:,} validation rows"
    _say(f"scorer fused: weight {chosen.weight:.3f}, {scored}; the best of all weights has {best:.2f}")
    return chosen


def _say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201
