"""The pipeline: one run from a config to a record, in ten steps."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness import metrics
from harness.augment.side import with_made_rows
from harness.config import Layer, RunConfig, card_layers, resolve_layers
from harness.data import Dataset, load
from harness.data.holding import covered_draw
from harness.data.prepare import resolve
from harness.data.ragged import Ragged, Texts
from harness.data.tokens import token_counts, token_store
from harness.errors import Pruned, Terminated, UserError, unknown_name
from harness.evaluation import Evaluator, Rows, Scored, label_weights, save_predictions
from harness.facts import recorded, recorded_origins, start_facts
from harness.files import write_json
from harness.folders import remember_folders
from harness.index import check_backend
from harness.method import Inputs, Parts, load_method, method_layer
from harness.model import check_encoder
from harness.model.encoder import Encoder, load_encoder
from harness.record import RunRecord, Stopwatch, runs_folder
from harness.repro import peak_memory_gib, stream
from harness.resume import Earlier, require_unfinished
from harness.runlock import run_lock
from harness.sample import prediction_sample
from harness.system import SystemMetrics
from harness.tracking import Journal, Tracker, make_tracker
from harness.tracking.series import curves

if TYPE_CHECKING:
    from harness.train import OnValidation


def resolve_config(method: str, dataset: str, layers: list[Layer]) -> tuple[RunConfig, dict[str, str]]:
    """Stacks schema, method, card and the given layers into one checked config; see `harness.config`.

    Everything that can be known to be wrong before data and weights are touched is found here.
    """
    card, _ = resolve(dataset)
    names = Layer("default", {"method": method, "dataset": dataset})
    stack = [names, method_layer(method), *card_layers(card, method), *layers]
    config, origins = resolve_layers(stack, load_method(method).params)
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
    """Runs one method on one dataset; returns the record that was also written to the run folder.

    Steps 1 to 4 are where a user's mistake shows (a wrong name, missing data); then the run folder is opened.
    `earlier` is an interrupted run that is taken up where it stopped, `parent` the bench or sweep that the run belongs
    to (`harness.tracking.group`). `on_validation` is told of every validation, and may raise `Pruned` to end the run.
    """
    watch, tracker = Stopwatch(), make_tracker(track)
    if earlier is not None:
        earlier.require_settings(recorded(config))
    # 1  the method, and 2  the device
    method, device = load_method(config.method), choose_device(config.device)

    # 3  the dataset, prepared on first use; train rows held out where the config asks for it
    dataset = load(config.dataset, use_filter=config.filter)
    kept, held = hold_out(dataset, config)
    watch.lap("load_data")

    # 4  the encoder
    encoder = load_encoder(config.encoder, seed=config.seed, **config.encoder_options)
    max_len = text_length(config, encoder)
    remember_folders(config, encoder.identity)
    watch.lap("load_encoder")

    # 5  the run folder: every event goes there first, then to MLflow
    facts = start_facts(config, dataset, encoder, max_len, device) | {"parent": parent}
    with open_run(facts, origins or {}, tracker, out, earlier) as journal:
        watch.lap("open_tracking")

        # 6  tokens, cached by content
        tokens = tokenise(dataset, encoder, max_len, kept, test=config.evaluate == "test")
        watch.lap("tokenise")

        # 7  the method's parts, from the train rows and what is made of them
        inputs = train_side(dataset, kept, tokens, encoder, device, config, journal.warn)
        parts = method.build(augmented(inputs, config, journal), method.params.model_validate(config.params))
        watch.lap("build")

        # 8  training, where the method trains
        evaluator = Evaluator(config, dataset, label_weights(dataset), tokens.labels, device)
        held_out = Rows(tokens.train.take(held), dataset.train[held], dataset.train_filter[held], "held-out rows")
        training = train(parts, journal, config, evaluator, held_out, on_validation)
        watch.lap("train")

        # 9  vectors and search, filter pairs masked before ranking
        scored = evaluator.score(parts.scorer, tested_rows(dataset, tokens) if config.evaluate == "test" else held_out)
        watch.lap("score")

        # 10 predictions, model, record
        journal.complete(finish(journal, parts, scored, training, dataset, config, watch))
    return journal.record


@contextmanager
def open_run(
    facts: dict[str, Any], origins: dict[str, str], tracker: Tracker | None, out: Path | None, earlier: Earlier | None
) -> Iterator[Journal]:
    """The run folder, new or that of an `earlier` run, held by this process alone; tidied up when the run is done.

    `facts` are the fields of the record that are known now.
    """
    if earlier is not None:
        facts = earlier.continued(facts)
    folder = runs_folder(out) / facts["run_id"] if earlier is None else earlier.folder
    with run_lock(folder):
        if earlier is not None:
            require_unfinished(folder)  # another process may have finished it since it was looked up
        journal = Journal(folder, facts, tracker, earlier)
        try:
            with journal:
                if earlier is None:
                    settings = {"config": facts["config"], "origins": recorded_origins(origins)}
                    write_json(folder / "config.json", settings)
                for change in facts.get("resumed", [{}])[-1].get("environment", []):
                    journal.warn(f"taken up in another environment: {change}")
                with SystemMetrics(by_second(journal), facts["config"]["tracking"]["system_seconds"]):
                    yield journal
        except (KeyboardInterrupt, Terminated):
            if journal.record.status != "finished":
                print(f"to go on: {how_to_resume(folder, facts['config'])}", file=sys.stderr)  # noqa: T201
            raise
        except Pruned:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # nobody takes it up again
            raise
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # the model of a finished run is in model/


def by_second(journal: Journal) -> Callable[[dict[str, float]], None]:
    """Logs figures under the seconds since the run began, which no step of the training stands for."""
    began = time.monotonic() - journal.seconds_before
    return lambda values: journal.metrics(values, step=round(time.monotonic() - began))


def how_to_resume(folder: Path, config: dict[str, Any]) -> str:
    """The command that takes up an interrupted run; folders of data and models are recorded by name alone."""
    name = folder.name if folder.parent == runs_folder() else shlex.quote(str(folder))
    places = [f"--{key} PATH" for key in ("dataset", "encoder") if config[key].startswith("./")]
    return " ".join(["python -m harness run --resume", name, *places])


def text_length(config: RunConfig, encoder: Encoder) -> int:
    """Tokens per text: as configured, or what the encoder was made for."""
    length = encoder.max_len if config.max_len is None else config.max_len
    if encoder.longest is not None and length > encoder.longest:
        raise UserError(f"max_len is {length:,}, but encoder {encoder.name!r} reads at most {encoder.longest:,} tokens")
    return length


@dataclass(frozen=True)
class Tokens:
    """Tokens of the train rows [N], the test rows [M] and the labels [L]."""

    train: Ragged
    test: Ragged
    labels: Ragged


def tokenise(
    dataset: Dataset, encoder: Encoder, max_len: int, kept: NDArray[np.int64] | None = None, *, test: bool = True
) -> Tokens:
    """Tokens of all texts; without `test` those of the test rows are not read, and there are none.

    The encoder is told how often each token occurs in what may be learned from: label texts and the `kept` train rows
    (by default all), never held-out or test rows.
    """

    def stored(name: str, texts: Texts) -> Ragged:
        digest = dataset.column_digest(f"{name}.text")
        return token_store(texts, encoder.tokenizer, max_len, f"tokenise {name}", digest=digest)

    train, labels = stored("train", dataset.train_text), stored("labels", dataset.label_text)
    tested = stored("test", dataset.test_text) if test else train.take(np.zeros(0, np.int64))
    learned = train if kept is None or len(kept) == len(train) else train.take(kept)
    encoder.adapt(token_counts(encoder.tokenizer.vocab_size, learned, labels))
    return Tokens(train, tested, labels)


def tested_rows(dataset: Dataset, tokens: Tokens) -> Rows:
    """What the numbers of a run are of, unless it is a trial."""
    return Rows(tokens.test, dataset.test, dataset.test_filter)


def hold_out(dataset: Dataset, config: RunConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Train rows that are trained on, and train rows that choose the epoch; a seeded draw, both sorted."""
    size, rows = config.validation.size, dataset.train.shape[0]
    count = round(size) if size >= 1 else round(size * rows)
    if config.evaluate == "validation" and not count:
        raise UserError("evaluate=validation needs held-out rows; set validation.size, for example 0.1")
    if size and not count:
        raise UserError(f"validation.size {size} of {rows:,} train rows is no row; raise it")
    if not count and config.validation.patience is not None:
        raise UserError("validation.patience needs rows to judge by; set validation.size, for example 0.1")
    if count >= rows:
        raise UserError(f"validation.size is {count:,}, but there are {rows:,} train rows; leave some to train on")
    if count and config.validation.metric not in (
        names := metrics.names(config.ks, dataset.card.propensity is not None)
    ):
        raise unknown_name("validation.metric", config.validation.metric, names)
    order = stream(config.seed, "split").permutation(rows)
    held_out = covered_draw(dataset.train, order, count) if config.validation.draw == "covered" else order[:count]
    return np.setdiff1d(order, held_out), np.sort(held_out)


def train_side(
    dataset: Dataset,
    rows: NDArray[np.int64],
    tokens: Tokens,
    encoder: Encoder,
    device: str,
    config: RunConfig,
    warn: Callable[[str], None],
) -> Inputs:
    """What a method may build from: the given train rows [N], labels, and nothing of the test side."""
    everything = len(rows) == len(tokens.train)
    if empty := int((tokens.labels.lengths <= sum(map(len, encoder.tokenizer.frame))).sum()):
        warn(f"{empty} labels have no text: an encoder sees them all as one; a classifier tells them apart")
    return Inputs(
        dataset.train if everything else dataset.train[rows],
        dataset.train_filter if everything else dataset.train_filter[rows],
        tokens.train if everything else tokens.train.take(rows),
        tokens.labels,
        encoder,
        device,
        config.batch_tokens,
        config.seed,
        warn,
    )


def augmented(inputs: Inputs, config: RunConfig, journal: Journal) -> Inputs:
    """The train side with the rows that the config wants made; says and records how many."""
    inputs, made = with_made_rows(inputs, config)
    if made:
        journal.facts["augmentation"] = made
        journal.event("augmentation", **made)
        counts = f"{made['made']:,} made rows with {made['targets_per_made_row']} labels each"
        print(f"augment={config.augment}: {counts}; {made['rows']:,} train rows in all", file=sys.stderr)  # noqa: T201
    return inputs


def train(
    parts: Parts,
    journal: Journal,
    config: RunConfig,
    evaluator: Evaluator,
    held_out: Rows,
    on_validation: "OnValidation | None" = None,
) -> dict[str, Any]:
    """Trains through the method's stages, from the start or from the last checkpoint; returns facts for the record."""
    if parts.model is None and parts.fitted is None and config.augment != "none":
        journal.warn(f"augment={config.augment} has no effect: {config.method} learns nothing from train rows")

    def scored(view: str | None) -> dict[str, float]:
        view = view or parts.scorer.views[0]
        return evaluator.score(parts.scorer, held_out, (view,))[view].metrics

    validate = scored if len(held_out.tokens) else None
    if parts.fitted is not None:
        from harness.train.fitting import fit

        return fit(parts.fitted, journal, config, validate, on_validation)
    if parts.model is None:
        return {}
    from harness.train.loop import Training

    saving, choosing = config.checkpoint, config.validation
    training = Training(parts.model, parts.stages(), journal, saving, choosing, validate, on_validation)
    if journal.earlier is not None and not training.resume():
        journal.warn("there is no checkpoint to go on from; the training begins again")
    training.run()
    return training.facts()


def finish(
    journal: Journal,
    parts: Parts,
    scored: dict[str, Scored],
    training: dict[str, Any],
    dataset: Dataset,
    config: RunConfig,
    watch: Stopwatch,
) -> RunRecord:
    """Step 10: writes predictions and model, and builds the record; its numbers are those of the first view."""
    best = scored[parts.scorer.views[0]]
    warn_of_surprises(journal, best, dataset, config)
    if config.evaluate == "test":  # a trial of a sweep is judged and forgotten; its settings are run again in earnest
        save_predictions(journal.folder, scored)
        write_json(journal.folder / "sample.json", prediction_sample(dataset, best, seed=config.seed))
        save_trained(parts, journal.folder / "model", config)
    watch.lap("save")
    views = {view: one.metrics for view, one in scored.items()} if len(scored) > 1 else {}
    named = {f"{view}/{name}": value for view, values in views.items() for name, value in values.items()}
    journal.metrics({**best.metrics, **named, **{f"seconds/{step}": spent for step, spent in watch.seconds.items()}})
    return RunRecord(
        **journal.facts,
        status="finished",
        seconds=round(watch.total + journal.seconds_before, 3),
        metrics=best.metrics,
        views=views,
        contributions=best.contributions,
        per_row=list(best.per_row),
        search={"backend": best.topk.backend, "recall": best.topk.recall, "flagged": best.topk.flagged},
        training=training,
        curves=curves(journal.events()),
        timings=watch.seconds,
        peak_memory_gib=round(peak_memory_gib(), 3),
        warnings=journal.warnings,
    )


def save_trained(parts: Parts, folder: Path, config: RunConfig) -> None:
    """Writes what was trained or fitted; nothing for a method without training."""
    if parts.model is not None:
        from harness.train.checkpoint import save_model

        save_model(folder, parts.model.state_dict(), {"method": config.method})
    if parts.fitted is not None:
        from harness.train.fitting import save_fitted

        save_fitted(parts.fitted, folder, {"method": config.method})


def warn_of_surprises(journal: Journal, scored: Scored, dataset: Dataset, config: RunConfig) -> None:
    """What a reader of the numbers should know about them."""
    for warning in dataset.facts["provenance"].get("warnings", []):
        journal.warn(f"{dataset.name}: {warning}")
    if scored.topk.flagged:
        journal.warn(f"{scored.topk.flagged} vectors were not finite; their rows count as misses")
    if short := metrics.short_rows(scored.topk.ids, max(config.ks)):
        journal.warn(f"{short} rows have fewer than {max(config.ks)} predictions; the rest count as misses")
    if config.evaluate == "test" and (hidden := dataset.test.multiply(dataset.test_filter).nnz):
        journal.warn(f"{hidden} true test pairs are filter pairs too, so nothing can find them; see `data check`")


def refuse_several_processes() -> None:
    """One run is one process: the ranks of a launcher would each train the whole model and write the same run."""
    world = os.environ.get("WORLD_SIZE", "1")
    if world not in ("", "1"):
        raise UserError(
            f"WORLD_SIZE is {world}, but a run is one process on one device; start it without a launcher, and several "
            "runs side by side with `python -m harness bench --workers`"
        )


def choose_device(wanted: str) -> str:
    """The torch device: `auto` takes CUDA when there is one. A launcher's ranks, several devices, are refused."""
    refuse_several_processes()
    if wanted == "cpu":
        return "cpu"
    import torch

    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        return "cuda" if cuda else "cpu"
    if wanted.startswith("cuda") and int(wanted.partition(":")[2] or 0) >= cuda:
        raise UserError(
            f"device {wanted!r} asked for, torch sees {cuda} CUDA devices; `python -m harness doctor` says more"
        )
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' asked for, but this torch has none; take auto")
    return wanted
