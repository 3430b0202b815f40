"""Memory of one training step beyond weights and moments, by the kind of stage.

B queries, P labels of a pool, C labels of a block, D dimensions, E of the encoder, n = B + P texts.
"""

from harness.plan.parts import Part
from harness.plan.work import PADDED, Run, Stage

_F32, _BF16, _BOOL = 4, 2, 1
_ROW_SCRATCH = {"cpu": 2 * 2**20, "cuda": 16 * 2**20}
"""Of the optimiser of each `RowTable`, by the device of the table: `harness.train.rowsparse`."""
_PASSING_ROWS = 4 * _F32 + _BF16
"""Per element of a block of a one-vs-all table that is not computed with where, or as what, it is stored: a factor of
the products, weight and momentum as float32, random numbers, and rounded values."""
_HEAPS_FACTOR = 30.0
"""Different words in T of a text: about 30 T^0.5 in English."""


def step_parts(stage: Stage) -> list[Part]:
    """Everything a step allocates."""
    if stage.kind == "pool":
        return _pool_step(stage)
    if stage.kind == "frozen":
        return [_gathered(stage, stage.pool), _loss(stage, stage.pool, heads=1)]
    if stage.kind == "all-labels":
        return _all_labels_step(stage)
    return _one_vs_all_step(stage)


def _pool_step(stage: Stage) -> list[Part]:
    run, texts = stage.run, stage.batch + stage.pool
    heads = 2 if run.spec.table != "none" and "table" in stage.declared.trains else 1
    # linear, tanh, dropout and its mask, then norm: quotient and result; backwards two of that size
    heads_bytes = run.spec.heads and texts * run.dim * (7 * _F32 + _BOOL)
    parts = [
        _activations(stage, stage.padded_tokens, texts),
        # vectors in micro-batches, in order, unit vectors of a plain head, and their gradient
        Part("kept vectors", texts * run.encoder.dim * _F32 * (3 if run.spec.heads else 6)),
        Part("heads in training", heads_bytes),
        _loss(stage, stage.pool + stage.extra, heads),
        _token_rows(run, stage.step_tokens),
    ]
    if heads == 2:
        parts.append(_gathered(stage, stage.pool + stage.extra))
    return parts


def _activations(stage: Stage, tokens: float, texts: float) -> Part:
    """What the encoder keeps: of `micro_batch_tokens` with a gradient cache, of all texts without."""
    run, encoder = stage.run, stage.run.encoder
    length = tokens / max(1.0, texts)
    if encoder.micro_batched:
        length = run.data.max_len  # the longest texts come first
        if stage.value("gradient_cache"):
            tokens = min(tokens, max(float(stage.micro_batch_tokens), length))
    return Part("activations", encoder.kept_bytes(tokens, length, half=stage.half, cuda=run.cuda))


def _token_rows(run: Run, tokens: float) -> Part:
    """Rows of a token table that a step gathers, with their gradient; distinct tokens grow as Heaps' law says."""
    distinct = min(run.encoder.vocabulary, tokens, _HEAPS_FACTOR * tokens**0.5)
    touched = distinct if run.encoder.token_table else 0.0
    return Part("gathered rows", touched * run.encoder.width * 2 * _F32)


def _gathered(stage: Stage, labels: int) -> Part:
    """Rows of Psi: copy, gradient, dropout with its mask, unit length; where Psi is apart copy and gradient there."""
    run = stage.run
    elements = labels * run.dim
    apart = run.table_apart * elements * (run.table_number + _F32)
    return Part("gathered rows", elements * (5 * _F32 + _BOOL), apart)


def _loss(stage: Stage, labels: int, heads: int) -> Part:
    """Scores and their terms of every head, one gradient; masks; a second set of terms for the symmetric loss.

    Terms of the first head wait while the second is scored; gradients are made one head at a time.
    """
    soft = stage.run.data.soft and not stage.declared.fixed.get("loss") == "triplet"
    two_way = sum(float(stage.value(name)) < 1 for name in ("lambda_d", "lambda_c")[:heads])
    auxiliary = heads == 2 and float(stage.value("bce_weight")) > 0
    matrices = (heads + 2 + two_way + 2 * auxiliary) * _F32 + 3 * _BOOL + soft * _F32
    if stage.declared.fixed.get("loss") == "triplet":
        matrices += 3 * _F32  # masked copies of the scores for hardest positives and negatives
    host = stage.run.cuda * (3 * _BOOL + soft * _F32)
    return Part("logits, masks, targets", stage.batch * labels * matrices, stage.batch * labels * host)


def _all_labels_step(stage: Stage) -> list[Part]:
    run, block = stage.run, stage.label_block
    queries = stage.batch * run.encoder.dim * _F32
    tokens = block * run.data.label_tokens
    length = (
        run.data.label_tokens if not run.encoder.micro_batched else min(run.data.max_len, 2 * run.data.label_tokens)
    )
    kept = run.encoder.kept_bytes(PADDED * tokens, length, half=stage.half, cuda=run.cuda)
    own = _activations(stage, stage.padded_tokens, stage.batch)
    # without a gradient cache the queries keep their graph while all labels go by
    activations = max(own.device, kept) if stage.twice_encoded else own.device + kept
    parts = [
        Part("activations", activations),
        Part("kept vectors", 6 * queries),
        Part("all-label blocks", block * (stage.batch * _F32 + 4 * run.encoder.dim * _F32)),
    ]
    if run.encoder.token_table:
        # rows are kept until as many were gathered as the table has, then their gradients are summed at its size
        parts.append(Part("gathered rows", 4 * run.encoder.table_parameters * _F32))
    return parts


def _one_vs_all_step(stage: Stage) -> list[Part]:
    run, block, batch = stage.run, stage.label_block, stage.batch
    measured = min(batch, int(stage.value("loss_rows") or batch))
    scores = block * (batch * _F32 + measured * _F32)
    if stage.half:  # factors, product and gradient of a block in bfloat16
        scores += block * (2 * batch * _BF16 + 2 * run.dim * _BF16)
    if run.table_apart or run.table_number != _F32:
        scores += block * run.dim * _PASSING_ROWS
    return [
        _activations(stage, stage.padded_tokens, batch),
        Part("kept vectors", batch * run.encoder.dim * 6 * _F32),
        Part("one-vs-all blocks", scores),
        _token_rows(run, stage.step_tokens),
    ]


def moment_parts(stage: Stage) -> list[Part]:
    """What the optimiser of a stage holds from its making on; gradients are those of dense parameters."""
    run, encoder, trains = stage.run, stage.run.encoder, stage.declared.trains
    dense = (encoder.dense if "encoder" in trains else 0) + (run.head_parameters if "heads" in trains else 0)
    tables = encoder.table_parameters if "encoder" in trains else 0
    parts = [
        Part("AdamW moments", (dense + tables) * 2 * _F32),
        Part("scratch of row updates", bool(tables) * _ROW_SCRATCH["cuda" if run.cuda else "cpu"]),
    ]
    name, moment = "moments of the classifier table", run.table_elements * run.table_number
    if "table" in trains and run.spec.table == "adam":
        parts.append(beside_table(run, name, 2 * moment + run.data.labels * _F32))
        kind = "cuda" if run.cuda and not run.table_apart else "cpu"
        parts.append(beside_table(run, "scratch of row updates", _ROW_SCRATCH[kind]))
    if "table" in trains and run.spec.table == "sgd" and stage.value("momentum"):
        parts.append(beside_table(run, name, moment))
    return parts


def beside_table(run: Run, name: str, size: float) -> Part:
    """Something that is where the classifier table is."""
    return Part(name, 0, size) if run.table_apart else Part(name, size)


def gradient_parts(stage: Stage) -> list[Part]:
    """Gradients of dense parameters, and their bfloat16 copies where autocast makes them."""
    run, trains = stage.run, stage.declared.trains
    dense = (run.encoder.dense if "encoder" in trains else 0) + (run.head_parameters if "heads" in trains else 0)
    return [Part("gradients", dense * _F32), Part("bfloat16 copies of weights", stage.half * dense * _BF16)]
