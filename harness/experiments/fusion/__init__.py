"""Fusion: a run made from the stored predictions of finished runs, without any training.

    rrf        reciprocal rank fusion: no parameter, so nothing can be tuned on test rows
    weights    a weighted sum of scaled scores, the weights chosen on validation rows, see `weights` beside this

The run has a folder, predictions, per-row metrics and a record like any other, so every report shows it. Its method is
`fuse`; what it is made of is in its parameters, without seeds: runs of the same members with other seeds share a row.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import __version__, metrics
from harness.data import Dataset, load
from harness.errors import UserError, unknown_name
from harness.experiments.fusion.members import find_members, identity_of, read_predictions, recorded_config
from harness.experiments.fusion.weights import read_validation, search_weights, split_of, validation_runs
from harness.index.fusion import RANK_CONSTANT, fuse, reciprocal_ranks, scaled_scores
from harness.infer.load import require_same
from harness.io.files import sha256_json, write_json
from harness.machine.memory import peak_memory_gib
from harness.report.compare import Run, split_names
from harness.report.rows import total_seconds
from harness.runs.log import RunLog, open_run
from harness.runs.metadata import recorded, start_metadata
from harness.runs.record import RunRecord, Stopwatch, require_place, runs_folder
from harness.settings.layers import flat
from harness.settings.method import methods
from harness.settings.schema import RunConfig, SearchSettings
from harness.tracking import make_tracker
from harness.train.evaluation import Scored, label_weights, measured, save_predictions
from harness.train.outcome import prediction_sample, warn_of_surprises

METHOD = "fuse"
"""The method in the records of fused runs; it is not registered, so `harness run` does not know it."""
WAYS = ("rrf", "weights")
DEFAULT_METRIC = "P@1"


@dataclass(frozen=True)
class Request:
    """What to fuse and how."""

    names: str
    """Runs or methods with commas between them, as `report --compare` takes them."""
    way: str = "rrf"
    metric: str | None = None
    """With `weights`, what they are chosen by; None for `DEFAULT_METRIC`."""
    seed: int | None = None
    """Which run of a method to take, and the seed that the new run is filed under; None: the smallest of its members.

    Nothing in a fusion is random but which rows are in the sample of predictions.
    """
    dataset: str | None = None
    """Name of the dataset, or its folder where that is needed: records hold no paths."""

    def check(self) -> None:
        """Raise if the request cannot be met whatever the runs are."""
        if self.way not in WAYS:
            raise unknown_name("method of fusing", self.way, WAYS)
        if self.metric is not None and self.way != "weights":
            raise UserError(f"--metric {self.metric} is what weights are chosen by; add --method weights")
        if self.seed is not None and self.seed >= 2**63:
            raise UserError(f"--seed {self.seed}: must be below 2**63")
        if METHOD in methods():
            raise UserError(f"a package registers a method called {METHOD!r}, the name of fused runs; remove it")


def fuse_runs(request: Request, *, out: Path | None = None, track: str = "mlflow") -> tuple[RunRecord, list[Run]]:
    """Fuse finished runs; return the record of the new run, and its members.

    All that is wrong with the members shows before the run folder is opened.

    Args:
        request: What to fuse.
        out: Folder of run folders; by default the workspace's.
        track: `mlflow` or `none`.
    """
    watch, tracker = Stopwatch(), make_tracker(track)
    request.check()
    folders = list(dict.fromkeys([runs_folder(out), runs_folder()]))
    members = find_members(split_names([request.names]), folders, request.seed, request.dataset)
    records = [run.record for run in members]
    tuned = validation_runs(members, folders) if request.way == "weights" else []
    config = _config(request, records, tuned)
    data = load(config.dataset, use_filter=config.filter)
    require_same(records[0], "dataset", "digest", data.digest)
    inverse, metric = label_weights(data), request.metric or DEFAULT_METRIC
    if metric not in (known := metrics.names(config.ks, inverse is not None)) and tuned:
        raise unknown_name("metric", metric, known)
    watch.lap("load_data")
    rankings = [read_predictions(run, data.test, inverse, config.ks) for run in members]
    validation = read_validation(tuned, data, inverse, config.dataset) if tuned else None
    watch.lap("read")

    held = int(records[0].dataset.get("validation_rows") or 0)
    metadata = start_metadata(config, data, held, {}, config.device, metrics.METRIC_VERSION)
    fusion = {"method": request.way, "runs": [_described(record) for record in records]}
    with open_run(metadata | {"parent": None, "fusion": fusion}, _origins(config), tracker, out, None) as run_log:
        watch.lap("open_tracking")
        versions = {str(run.record.environment.get("harness")) for run in (*members, *tuned)}
        if versions != {__version__}:
            run_log.warn(f"the fused runs are of harness {', '.join(sorted(versions))}, this is {__version__}")
        value, weights = reciprocal_ranks, (1.0,) * len(members)
        if validation is not None:
            found = search_weights(*validation, inverse, metric)
            value, weights = scaled_scores, found.weights
            fusion |= {"metric": metric, **asdict(found), "validation_runs": [run.record.run_id for run in tuned]}
            watch.lap("weights")
        run_log.event("fusion", **fusion)
        fused = fuse(rankings, value, weights, config.search.k)
        scored = measured(fused, data.test, data, inverse, config.ks)
        watch.lap("score")
        run_log.complete(_finish(run_log, scored, data, config, watch))
    return run_log.record, members


def _config(request: Request, records: list[RunRecord], tuned: list[Run]) -> RunConfig:
    """Return the settings of the fused run; its parameters identify the members and say nothing of their seeds."""
    configs, seeds = [recorded_config(record) for record in records], [record.config["seed"] for record in records]
    seed = min(seeds) if request.seed is None else request.seed
    place = request.dataset or configs[0].dataset
    require_place(records[0].run_id, "dataset", configs[0].dataset, place)
    own: dict[str, Any] = {
        "fused": "+".join(record.config["method"] for record in records),
        "fusion": request.way,
        "members": sha256_json([identity_of(record) for record in records])[:12],
        "seeds": [one - seed for one in seeds],  # of members beside the seed of the fused run
    }
    if not tuned:
        own["constant"] = RANK_CONSTANT
    else:
        rows = {key.removeprefix("validation."): value for key, value in split_of(tuned[0].record)}
        own |= {"metric": request.metric or DEFAULT_METRIC, "validation": rows}
    encoders = list(dict.fromkeys(config.encoder for config in configs))
    return RunConfig(
        method=METHOD,
        dataset=place,
        encoder=encoders[0] if len(encoders) == 1 else "+".join(one.removeprefix("./") for one in encoders),
        seed=seed,
        device="cpu",
        filter=configs[0].filter,
        ks=configs[0].ks,
        search=SearchSettings(k=max(config.search.k for config in configs)),
        params=own,
    )


def _origins(config: RunConfig) -> dict[str, str]:
    """Return the origin of every setting, by dotted key."""
    usual, own = flat(RunConfig().model_dump(mode="json")), flat(recorded(config))
    return {key: "default" if key in usual and usual[key] == value else "fuse" for key, value in own.items()}


def _described(record: RunRecord) -> dict[str, Any]:
    names = {name: record.config[name] for name in ("method", "encoder", "seed")}
    return {"run_id": record.run_id, **names, "seconds": total_seconds(record)}


def _finish(run_log: RunLog, scored: Scored, data: Dataset, config: RunConfig, watch: Stopwatch) -> RunRecord:
    """Write what the run leaves behind and return its record."""
    warn_of_surprises(run_log, scored, data, config)
    save_predictions(run_log.folder, {METHOD: scored})
    write_json(run_log.folder / "sample.json", prediction_sample(data, scored, seed=config.seed))
    watch.lap("save")
    run_log.metrics({**scored.metrics, **{f"seconds/{step}": spent for step, spent in watch.seconds.items()}})
    return RunRecord(
        **run_log.metadata,
        status="finished",
        seconds=round(watch.total, 3),
        metrics=scored.metrics,
        contributions=scored.contributions,
        per_row=list(scored.per_row),
        search={"backend": scored.topk.backend, "recall": scored.topk.recall, "flagged": scored.topk.flagged},
        timings=watch.seconds,
        peak_memory_gib=round(peak_memory_gib(), 3),
        warnings=run_log.warnings,
    )
