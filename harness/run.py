"""The pipeline: one run from a config to a record, in ten steps."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import metrics
from harness.config import Layer, RunConfig, card_layers, resolve_layers
from harness.data import Dataset, load
from harness.data.prepare import resolve
from harness.data.ragged import Ragged
from harness.data.tokens import token_counts, token_store
from harness.errors import UserError
from harness.files import write_json
from harness.index import TopK, check_backend, search
from harness.method import Inputs, load_method, method_layer
from harness.model import check_encoder
from harness.model.encoder import Encoder, load_encoder
from harness.record import RunRecord, Stopwatch, new_run_id, runs_folder, utc_now
from harness.repro import environment, peak_memory_gib
from harness.tracking import Journal, make_sinks


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
    config: RunConfig, *, origins: dict[str, str] | None = None, out: Path | None = None, track: str = "mlflow"
) -> RunRecord:
    """Runs one method on one dataset; returns the record that was also written to the run folder.

    Steps 1 to 4 are where a user's mistake shows (a wrong name, missing data), so the run folder is opened after them.
    """
    watch, sinks = Stopwatch(), make_sinks(track)
    # 1  the method and its knobs
    method = load_method(config.method)
    params = method.params.model_validate(config.params)

    # 2  the device
    device = choose_device(config.device)

    # 3  the dataset, prepared on first use
    dataset = load(config.dataset, use_filter=config.filter)
    weights = label_weights(dataset)
    watch.lap("load_data")

    # 4  the encoder
    encoder = load_encoder(config.encoder, seed=config.seed, **config.encoder_options)
    max_len = text_length(config, encoder)
    watch.lap("load_encoder")

    # 5  the run folder: every event goes there first, then to MLflow
    draft = start_facts(config, dataset, encoder, max_len, device)
    folder = runs_folder(out) / draft["run_id"]
    with Journal(folder, draft, sinks) as journal:
        write_json(folder / "config.json", {"config": draft["config"], "origins": origins or {}})
        watch.lap("open_tracking")

        # 6  tokens, cached by content
        train_tokens, test_tokens, label_tokens = tokenise(dataset, encoder, max_len)
        watch.lap("tokenise")

        # 7  the method's parts
        inputs = Inputs(dataset, train_tokens, label_tokens, encoder, device, config.batch_tokens, config.seed)
        parts = method.build(inputs, params)
        watch.lap("build")

        # 8  vectors of labels and test queries
        labels = parts.scorer.label_vectors(label_tokens)
        queries = parts.scorer.query_vectors(test_tokens)
        watch.lap("encode")

        # 9  search, filter pairs masked before ranking
        topk = find_labels(queries, labels, dataset, config, device)
        watch.lap("search")

        # 10 metrics, predictions, record
        journal.complete(finish(journal, draft, topk, dataset, weights, config, watch))
    return journal.record


def text_length(config: RunConfig, encoder: Encoder) -> int:
    """Tokens per text: as configured, or what the encoder was made for."""
    length = encoder.max_len if config.max_len is None else config.max_len
    if encoder.longest is not None and length > encoder.longest:
        raise UserError(f"max_len is {length:,}, but encoder {encoder.name!r} reads at most {encoder.longest:,} tokens")
    return length


def tokenise(dataset: Dataset, encoder: Encoder, max_len: int) -> tuple[Ragged, Ragged, Ragged]:
    """Tokens of the train rows [N], the test rows [M] and the labels [L].

    The encoder is told how often each token occurs in what may be learned from: train and label texts, never test.
    """
    columns = {"train": dataset.train_text, "test": dataset.test_text, "labels": dataset.label_text}
    train, test, labels = (
        token_store(texts, encoder.tokenizer, max_len, f"tokenise {name}", digest=dataset.column_digest(f"{name}.text"))
        for name, texts in columns.items()
    )
    encoder.adapt(token_counts(encoder.tokenizer.vocab_size, train, labels))
    return train, test, labels


def find_labels(
    queries: NDArray[np.float32], labels: NDArray[np.float32], dataset: Dataset, config: RunConfig, device: str
) -> TopK:
    """The best K labels of every test row, from query vectors [M, D] and label vectors [L, D]."""
    wanted = config.search
    return search(
        queries,
        labels,
        wanted.k,
        dataset.test_filter,
        wanted.backend,
        device=device if device.startswith("cuda") else "cpu",  # search needs float64, which mps has not
        seed=config.seed,
        progress="search",
        **wanted.options,
    )


def start_facts(config: RunConfig, dataset: Dataset, encoder: Encoder, max_len: int, device: str) -> dict[str, Any]:
    """The fields of a record that are known before the work begins; folders are recorded by name, never by path."""
    names = {"dataset": recorded_name(config.dataset), "encoder": recorded_name(config.encoder)}
    return {
        "run_id": new_run_id(config.method, dataset.name, config.seed),
        "started": utc_now(),
        "config": config.model_dump(mode="json") | names,
        "dataset": describe(dataset, config),
        "encoder": {"name": names["encoder"], "dim": encoder.dim, "max_len": max_len, "identity": encoder.identity},
        "metric_version": metrics.METRIC_VERSION,
        "environment": environment(device),
    }


def recorded_name(name: str) -> str:
    """A name as it is, a folder without what lies above it."""
    return name if "/" not in name else f"./{Path(name).absolute().name}"


def finish(
    journal: Journal,
    draft: dict[str, Any],
    topk: TopK,
    dataset: Dataset,
    weights: NDArray[np.float64] | None,
    config: RunConfig,
    watch: Stopwatch,
) -> RunRecord:
    """Step 10: scores the predictions, writes them, and builds the record."""
    for warning in dataset.facts["provenance"].get("warnings", []):
        journal.warn(f"{dataset.name}: {warning}")
    if topk.flagged:
        journal.warn(f"{topk.flagged} vectors were not finite; their rows count as misses")
    if short := metrics.short_rows(topk.ids, max(config.ks)):
        journal.warn(f"{short} rows have fewer than {max(config.ks)} predictions; the rest count as misses")
    if hidden := dataset.test.multiply(dataset.test_filter).nnz:
        journal.warn(f"{hidden} true test pairs are filter pairs too, so nothing can find them; see `data check`")
    scores, contributions, rows = evaluate(topk, dataset, weights, config)
    save_predictions(journal.folder, topk, rows)
    watch.lap("evaluate")
    journal.metrics({**scores, **{f"seconds/{step}": spent for step, spent in watch.seconds.items()}})
    return RunRecord(
        **draft,
        status="finished",
        seconds=round(watch.total, 3),
        metrics=scores,
        contributions=contributions,
        per_row=list(rows),
        search={"backend": topk.backend, "recall": topk.recall, "flagged": topk.flagged},
        timings=watch.seconds,
        peak_memory_gib=round(peak_memory_gib(), 3),
        warnings=journal.warnings,
    )


def describe(dataset: Dataset, config: RunConfig) -> dict[str, Any]:
    """What the record says about the data."""
    propensity = dataset.card.propensity
    return {
        "name": dataset.name,
        "title": dataset.card.title,
        "version": dataset.card.version,
        "digest": dataset.digest,
        "statistics": dataset.facts["statistics"],
        "propensity": propensity.model_dump() if propensity else None,
        "filter": config.filter and bool(dataset.test_filter.nnz),
    }


def label_weights(dataset: Dataset) -> NDArray[np.float64] | None:
    """Inverse propensities [L] with the card's constants, from the train labels as they are; None without constants."""
    constants = dataset.card.propensity
    return None if constants is None else metrics.inverse_propensity(dataset.train, constants.a, constants.b)


def evaluate(
    topk: TopK, dataset: Dataset, weights: NDArray[np.float64] | None, config: RunConfig
) -> tuple[dict[str, float], list[dict[str, Any]], dict[str, NDArray[np.float64]]]:
    """Metrics, contributions of head, torso and tail, and per-row scores [M] by metric name; weights are [L]."""
    ranks = metrics.ranks_of_truth(topk.ids, dataset.test, max(config.ks))
    scores = metrics.evaluate(ranks, dataset.test, weights, config.ks)
    shares = metrics.contributions(ranks, dataset.test, dataset.train, config.ks, weights)
    return scores, shares, metrics.per_row(ranks, dataset.test, weights, config.ks)


def save_predictions(folder: Path, topk: TopK, rows: dict[str, NDArray[np.float64]]) -> None:
    """Writes the top labels, their scores and the per-row metrics."""
    np.save(folder / "ids.npy", topk.ids.astype(np.int32), allow_pickle=False)
    np.save(folder / "scores.npy", topk.scores.astype(np.float32), allow_pickle=False)
    np.save(folder / "per_row.npy", np.stack(list(rows.values()), axis=1).astype(np.float32), allow_pickle=False)


def choose_device(wanted: str) -> str:
    """The torch device: `auto` takes CUDA when there is one."""
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
