"""Memory of a run, moment by moment: a table that starts, a step, mining, an evaluation.

Where the device is the CPU both columns are one process. Its own part was measured: an interpreter with the libraries
of a run takes 300 MiB, the first use of torch's AdamW 64 MiB more, transformers 140 MiB, that included. Moments of
tables are untouched pages on a CPU until a row is written, so they do not exist yet while the classifier starts. What
the C library's allocator keeps between blocks below 32 MiB is not counted. Nothing of size N x L or L x L exists in any
moment, and so none is here.
"""

from harness.plan.parts import Part, Phase, merged
from harness.plan.steps import beside_table, gradient_parts, moment_parts, step_parts
from harness.plan.work import Run, Stage

MIB = 2**20
PROCESS = {"cpu": 300 * MIB, "cuda": 1200 * MIB}
"""Interpreter and libraries; measured on a CPU, assumed with CUDA's libraries. A tracker is a process of its own."""
OPTIMISER_LIBRARY = 64 * MIB
TRANSFORMERS_LIBRARY = 140 * MIB
CUDA_CONTEXT = 512 * MIB
_F32 = 4
_HEAD_BLOCK = 16_384
"""Vectors that go through a head at once outside training: `harness.model.scoring.projected`."""
_START_BLOCK = 1 << 18
"""Labels whose first values are made at once: `harness.train.tables`."""
_SEARCH_QUERIES = {"cpu": 1 << 10, "cuda": 1 << 12}
_SEARCH_LABELS = 1 << 16
_SEARCH_SCRATCH = {"cpu": 48 * MIB, "cuda": 640 * MIB}
"""Gathered chunks and rescored pairs of all threads: `harness.index.exact` and `ranking`."""
_RESIDENT_SHARE = 4
"""Search keeps a matrix on a CUDA device if it takes at most this part of the free memory."""
_COPY_SHARE = 4
"""`checkpoint.background=auto` copies into at most this part of the free memory: `harness.train.saving`."""
_METRICS = 5
_WEIGHTS = ("encoder weights", "heads", "classifier table")


def phases(run: Run, capacity: int | None = None, usable: int | None = None) -> list[Phase]:
    """Every moment worth looking at, in order.

    Args:
        run: What is estimated.
        capacity: Bytes of a CUDA device, which decides whether search keeps its labels there.
        usable: Bytes that a process can have where the device is the CPU, which decide whether checkpoints are copied.
    """
    always = standing(run)
    if run.spec.fitted:
        return [_phase("fit and rank", always, _fitted(run))]
    found = []
    if run.stages:
        training = [*always, *_training(run)]
        started = _starting_phases(run, training)
        during = _training_phases(run, training, capacity)
        if run.data.held_out:
            views = run.spec.views[:1]
            during.append(_phase("validation", training, _evaluation(run, views, run.data.held_out, capacity)))
        found += [*started, *_with_copy(run, during, usable)]
    library = [_library(run)] if run.stages else []
    found.append(_phase("evaluation", [*always, *library], _evaluation(run, run.spec.views, run.data.test, capacity)))
    return found


def standing(run: Run) -> list[Part]:
    """What a run holds from the moment its parts are built to its end."""
    data, encoder = run.data, run.encoder
    token_weights = encoder.vocabulary * _F32 if encoder.token_table else 0
    return [
        Part("process and libraries", CUDA_CONTEXT * run.cuda, PROCESS["cuda" if run.cuda else "cpu"]),
        Part("process and libraries", 0, TRANSFORMERS_LIBRARY if encoder.layers else 0),
        Part("encoder weights", encoder.parameters * _F32 + token_weights),
        Part("heads", run.head_parameters * _F32),
        beside_table(run, "classifier table", run.table_elements * run.table_number),
        Part("tokens", 0, _token_bytes(run)),
        Part("labels and filter pairs", 0, _pair_bytes(run)),
        Part("offsets of texts", 0, 8 * (data.train + data.test + 2 * data.labels)),
    ]


def _token_bytes(run: Run) -> float:
    """Mapped token files, which are resident once they were read, and copies of made rows."""
    data = run.data
    own = (data.train + data.held_out) * data.row_tokens + data.test * data.row_tokens + data.labels * data.label_tokens
    rows, joined = data.train + data.held_out + data.test + data.labels, 0.0
    if data.made:
        joined = data.train * data.row_tokens + data.made * data.label_tokens
        rows += data.train + data.made
    return 2 * (own + joined) + 8 * rows


def _pair_bytes(run: Run) -> float:
    """CSR matrices: an index and a value a pair, a pointer a row; the known pairs of mining once more."""
    data = run.data
    pairs = (data.train + data.held_out + data.test) * (data.labels_per_row + data.filter_pairs)
    made = (data.train * data.labels_per_row + data.made) if data.made else 0.0
    known = data.rows * (data.labels_per_row + data.filter_pairs) * (1 + 4 + 4)
    return 8 * (pairs + made) + 2 * 4 * (data.train + data.test) + known


def _library(run: Run) -> Part:
    dense = any("heads" in stage.declared.trains and run.spec.heads for stage in run.stages) or run.encoder.dense
    return Part("process and libraries", 0, OPTIMISER_LIBRARY if dense and not run.encoder.layers else 0)


def _training(run: Run) -> list[Part]:
    """What optimisers and batches of all stages hold; they are made together, before the first step."""
    parts = [part for stage in run.stages for part in moment_parts(stage)]
    parts.append(_library(run))
    for stage in run.stages:
        if stage.kind in ("pool", "frozen"):
            parts.append(Part("batches and shortlists", 0, run.data.labels * 4 + stage.rows * (8 + stage.depth * 4)))
        if stage.kind == "frozen":
            parts.append(Part("vectors of the frozen encoder", 0, stage.rows * run.encoder.dim * _F32))
    return parts


def _starting_phases(run: Run, training: list[Part]) -> list[Phase]:
    if not run.table_elements:
        return []
    there = run.cuda and not run.table_apart
    early = training if there else [part for part in training if part.name != "moments of the classifier table"]
    return [_phase("start of the classifier", early, _start(run))]


def _training_phases(run: Run, training: list[Part], capacity: int | None) -> list[Phase]:
    found = []
    for stage in run.stages:
        suffix = f", {stage.declared.name}" if len(run.stages) > 1 else ""
        found.append(_phase(f"train step{suffix}", training, [*gradient_parts(stage), *step_parts(stage)]))
        if stage.mines or stage.clusters:
            found.append(_phase(f"mining{suffix}", training, _mining(stage, capacity)))
    return found


def saved_bytes(run: Run) -> float:
    """What a checkpoint holds: weights, moments, batches with their hard negatives; of the stage that has most."""
    if not run.stages:
        return 0.0
    moments = max(
        sum(part.device + part.host for part in moment_parts(stage) if "scratch" not in part.name)
        for stage in run.stages
    )
    return weight_bytes(run) + moments + max(stage.rows * (8 + 4 * stage.depth) for stage in run.stages)


def weight_bytes(run: Run) -> float:
    """All weights of the model."""
    return sum(part.device + part.host for part in standing(run) if part.name in _WEIGHTS)


def _with_copy(run: Run, during: list[Phase], usable: int | None) -> list[Phase]:
    """The same with the copy that is written while training goes on; it is kept from one checkpoint to the next.

    The last checkpoint of a stage needs none, because there training waits.
    """
    wanted, size = run.config.checkpoint.background, saved_bytes(run)
    if run.config.checkpoint.every_steps is None and all(stage.epochs == 1 for stage in run.stages):
        wanted = "never"
    if wanted == "auto" and usable is not None and not run.cuda:
        step = max(phase.total for phase in during if phase.name.startswith("train step"))
        wanted = "always" if size * _COPY_SHARE <= usable - step else "never"
    copy = [] if wanted == "never" else [Part("copy for checkpoints", 0, size)]
    return [_phase(phase.name, [*phase.parts], copy) for phase in during]


def _start(run: Run) -> list[Part]:
    """First values of a block of the table: noise, or the label texts through encoder and head."""
    labels = min(run.data.labels, _START_BLOCK)
    if not run.starts_from_labels:
        in_place = run.table_number == _F32 and (run.table_apart or not run.cuda)
        return [Part("first values of the table", 0, 0 if in_place else labels * run.dim * _F32)]
    return [
        Part("first values of the table", 0, labels * (run.encoder.dim + run.dim) * _F32),
        *_encoding(run, labels),
    ]


def _encoding(run: Run, texts: int) -> list[Part]:
    """One micro-batch through the encoder without gradients, or one block of vectors through a head."""
    tokens = min(run.config.batch_tokens, texts * run.data.row_tokens)
    passing = run.encoder.passing_bytes(
        tokens, run.data.max_len if run.encoder.micro_batched else 8, half=False, cuda=run.cuda
    )
    block = min(texts, _HEAD_BLOCK) * _F32 * (run.encoder.dim * run.cuda + run.dim * (4 if run.spec.heads else 2))
    return [Part("encoding blocks", max(passing, block))]


def _mining(stage: Stage, capacity: int | None) -> list[Part]:
    """Vectors of all train rows; then those of the labels, searched; then clusters: two copies of the first."""
    run, rows = stage.run, stage.rows
    queries = rows * run.dim * _F32
    if stage.kind == "frozen":
        queries = 0  # they are there already
    own = Part("mined vectors", 0, queries)
    moments: list[list[Part]] = [[Part("mined vectors", 0, rows * run.encoder.dim * _F32), *_encoding(run, rows)]]
    if stage.mines:
        labels = run.data.labels
        moments.append([Part("mined vectors", 0, labels * (run.encoder.dim + run.dim) * _F32), *_encoding(run, labels)])
        found = Part("mined shortlists", 0, rows * stage.depth * 4 * 2)
        vectors = Part("mined vectors", 0, labels * run.dim * _F32)
        moments.append([vectors, found, *_search(run, rows, run.dim, capacity)])
    if stage.clusters:
        moments.append([Part("clusters of queries", 2 * rows * run.dim * _F32)])
    return [own, *_largest(run, moments)]


def _search(run: Run, queries: int, dim: int, capacity: int | None) -> list[Part]:
    """A block of scores, and on a CUDA device both matrices where they leave room."""
    kind = "cuda" if run.cuda else "cpu"
    block = min(queries, _SEARCH_QUERIES[kind]) * min(run.data.labels, _SEARCH_LABELS) * _F32
    parts = [Part("search blocks", block * 33 / 32 + _SEARCH_SCRATCH[kind])]
    if run.cuda:
        for rows in (run.data.labels, queries):
            size = rows * dim * _F32
            parts.append(Part("search index", size if size <= (capacity or 0) / (2 * _RESIDENT_SHARE) else 0))
    return parts


def _evaluation(run: Run, views: tuple[str, ...], rows: int, capacity: int | None) -> list[Part]:
    """Label vectors of every view, then those of the rows, then one search after the other."""
    labels, width = run.data.labels, run.encoder.dim
    parts = {view for view in views if view != "concat"} | ({"de", "clf"} if "concat" in views else set())
    scales = run.scales_table
    copied = run.table_number != _F32 or (run.cuda and not run.table_apart)
    kept = run.dim * (("de" in parts) + ("clf" in parts) * (scales or copied) + 2 * ("concat" in views))
    query_kept = run.dim * (len(parts) + 2 * ("concat" in views))
    encoded = (width + run.dim) if "de" in parts else 0
    scaled = run.dim * (("de" in parts) + ("clf" in parts) * (scales + copied))
    results = Part("predictions", 0, rows * (8 * run.config.search.k + 8 * _METRICS * len(run.config.ks)) * len(views))
    widest = run.dim * (2 if "concat" in views else 1)
    moments = [
        [Part("vectors of the evaluation", 0, labels * max(encoded, scaled) * _F32), *_encoding(run, labels)],
        [
            Part("vectors of the evaluation", 0, (labels * kept + rows * (width + query_kept)) * _F32),
            *_encoding(run, rows),
        ],
        [
            Part("vectors of the evaluation", 0, (labels * kept + rows * query_kept) * _F32),
            results,
            *_search(run, rows, widest, capacity),
        ],
    ]
    return _largest(run, moments)


def _largest(run: Run, moments: list[list[Part]]) -> list[Part]:
    """The moment that needs most: of the process on a CPU; else the largest of the device and of the host, apart."""
    if not run.cuda:
        return max(moments, key=lambda parts: sum(part.device + part.host for part in parts))
    device = max(moments, key=lambda parts: sum(part.device for part in parts))
    host = max(moments, key=lambda parts: sum(part.host for part in parts))
    return [*(Part(part.name, part.device) for part in device), *(Part(part.name, 0, part.host) for part in host)]


def _fitted(run: Run) -> list[Part]:
    """Sparse features of rows (and of labels that vote), a transposed copy, and what votes or decides."""
    data = run.data
    voters = data.rows + (data.labels if run.spec.fitted == "neighbours" else 0)
    features = (data.rows * data.row_tokens + (voters - data.rows) * data.label_tokens) * 8
    parts = [Part("sparse features", 0, 3 * features), Part("predictions", 0, data.test * 8 * run.config.search.k)]
    if run.spec.fitted == "neighbours":
        return [*parts, Part("votes", 0, 2 * 12 * (data.rows * data.labels_per_row + data.labels))]
    trees = int(run.resolved.knobs.get("trees", 3))
    # a classifier keeps about ten times the words of a text after pruning; the library holds it while it saves
    return [*parts, Part("trees", 0, trees * data.labels * 10 * data.row_tokens * 8)]


def _phase(name: str, before: list[Part], own: list[Part]) -> Phase:
    return Phase(name, merged([*before, *own]))
