"""A transformer's part of a training step: against the arithmetic it needs, a plain loop, and a library made for it.

All with the weights of `minilm`, dropout on, forward and backward. Texts are those of lf-pydocs: long documents as
queries, short entries as labels. FLOP are those of products over real tokens; padding and second passes count for
nothing.
"""

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from harness import data
from harness.data.ragged import Ragged
from harness.data.tokens import tokenize
from harness.model.encoder import Encoder, load_encoder, micro_batches, unit
from harness.model.weights import packaged_folder
from harness.perf import Row, Sample, bound, compare, turns
from harness.plan.encoders import encoder_shape
from harness.progress import progress
from harness.train.assembly import encoder_groups
from harness.train.caching import BatchEncoding
from harness.train.optim import Optimiser, Schedule
from harness.train.psl import logits
from harness.train.settings import OptimSettings

DATASET, MAX_LEN = "lf-pydocs", 128
ROWS, LENGTH, GEMM = 256, 32, 2048
QUERIES, LABELS_EACH, CHUNK = 64, 3, 32
OF_PEAK_AT_LEAST, LOOP_AT_LEAST, LIBRARY_AT_LEAST = 0.70, 1.5, 1.3
TEMPERATURE, RATE = 1 / 20, 2e-5
_TOKENISING_MATTERS = 0.02
_LIBRARY = "sentence_transformers"


def rows() -> Iterator[Row]:
    """Share of the machine's peak, a padded loop, a training step of sentence-transformers."""
    with progress("measure encoders", total=3, unit="parts") as advance:
        for part in (of_peak, padded_loop, library_step):
            yield from part()
            advance(1)


# ---------------------------------------------------------------- arithmetic


def of_peak() -> Iterator[Row]:
    """What a step reaches of what a large product reaches."""
    encoder = load_encoder("minilm", seed=0).train()
    tokens = random_rows(ROWS, LENGTH)
    left, right = torch.ones(GEMM, GEMM), torch.ones(GEMM, GEMM)
    product, step = turns(lambda: left @ right, lambda: forward_backward(encoder, tokens), repeats=5)
    shape = encoder_shape("minilm", {})
    peak = rate(product, 2 * GEMM**3)
    reached = rate(step, 3 * shape.forward_flops(ROWS * LENGTH, LENGTH))
    yield compare(
        "encoder step",
        f"{ROWS} texts of {LENGTH} tokens, minilm",
        f"one product of {GEMM:,}^3 in float32",
        reached,
        peak,
        at_least=OF_PEAK_AT_LEAST,
        detail=f"{step.median:.2f} s a step",
    )


def random_rows(count: int, length: int) -> Ragged:
    """Rows of one length with random words, [count]."""
    generator = np.random.default_rng(0)
    return Ragged(generator.integers(1000, 30_000, count * length), np.arange(count + 1) * length)


def rate(seconds: Sample, operations: float) -> Sample:
    """FLOP/s of every measurement."""
    return Sample(tuple(operations / value for value in seconds.values), "FLOP/s")


def forward_backward(encoder: Encoder, tokens: Ragged) -> None:
    """Vectors of all rows, a gradient for each of them, and the way back, as in a training step."""
    encoder.zero_grad()
    settings = OptimSettings()
    encoding = BatchEncoding(encoder, tokens, "cpu", settings.micro_batch_tokens, lambda group: group)
    torch.autograd.backward(encoding.vectors.sum())
    encoding.backward()


# ---------------------------------------------------------------- a plain loop


def padded_loop() -> Iterator[Row]:
    """Documents and their labels, against what one would write with the library alone."""
    encoder = load_encoder("minilm", seed=0).train()
    queries, labels = some_texts()
    tokens = tokenize([*queries, *labels], encoder.tokenizer, MAX_LEN)
    model, pad_id = plain_model(), encoder.tokenizer.pad_id
    loop, ours = turns(
        lambda: plain_pass(model, tokens, pad_id),
        lambda: forward_backward(encoder, tokens),
        repeats=3,
    )
    lengths, plain = tokens.lengths, np.array_split(np.arange(len(tokens)), -(-len(tokens) // CHUNK))
    groups = micro_batches(lengths, OptimSettings().micro_batch_tokens)
    yield compare(
        "encode texts of a batch, forward and backward",
        f"{len(queries)} documents and {len(labels)} labels of {DATASET}, {tokens.offsets[-1]:,} tokens, minilm",
        f"transformers, batches of {CHUNK} padded to their longest, default attention and dropout",
        ours,
        loop,
        at_least=LOOP_AT_LEAST,
        detail=f"padding: {padding(lengths, groups):.1%} of the tokens, theirs {padding(lengths, plain):.1%}",
    )


def some_texts() -> tuple[list[str], list[str]]:
    """The first documents, and different labels of theirs."""
    dataset = data.load(DATASET)
    train = dataset.train[:QUERIES]
    chosen = [train.indices[start : start + LABELS_EACH] for start in train.indptr[:-1]]
    labels = dict.fromkeys(int(label) for row in chosen for label in row)
    return dataset.train_text[:QUERIES], [dataset.label_text[label] for label in labels]


def plain_model() -> nn.Module:
    """The library's model as it comes, in train mode."""
    from transformers import AutoModel

    from harness.model.transformer import quiet_library

    with quiet_library():
        model: nn.Module = AutoModel.from_pretrained(str(packaged_folder()), local_files_only=True)
    return model.train()


def plain_pass(model: nn.Module, tokens: Ragged, pad_id: int) -> None:
    """Rows in their order, so many at a time: pad, encode, mean of the real tokens, backward."""
    model.zero_grad()
    for start in range(0, len(tokens), CHUNK):
        texts = [
            torch.from_numpy(tokens[row].astype(np.int64)) for row in range(start, min(start + CHUNK, len(tokens)))
        ]
        ids = nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=pad_id)
        mask = nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
        hidden: Tensor = model(input_ids=ids, attention_mask=mask).last_hidden_state
        real = mask[:, :, None].float()
        torch.autograd.backward(((hidden * real).sum(1) / real.sum(1)).sum())


def padding(lengths: NDArray[np.int64], groups: list[NDArray[np.int64]]) -> float:
    """Padding per real token."""
    return float(sum(len(group) * lengths[group].max() for group in groups) / lengths.sum() - 1)


# ---------------------------------------------------------------- a training step of a library


def library_step() -> Iterator[Row]:
    """In-batch softmax of (document, label) pairs, with the optimiser's step."""
    queries, labels = some_pairs()
    step = our_step(queries, labels)
    size = f"{len(queries)} pairs of {DATASET}, at most {MAX_LEN} tokens, minilm"
    what = "training step, in-batch softmax"
    if find_spec(_LIBRARY) is None:
        (ours,) = turns(step, repeats=3)
        hint = "not compared: sentence-transformers is missing (pip install -c constraints.txt -e '.[dev]')"
        yield bound(what, size, ours, reference="none", detail=hint)
        return
    words, theirs_step = their_step(queries, labels)
    (tokenising,) = turns(words, repeats=3)
    theirs, ours = turns(lambda: theirs_step(words()), step, repeats=3)
    share = tokenising.median / theirs.median
    yield compare(
        what,
        size,
        "sentence-transformers, MultipleNegativesRankingLoss and AdamW; it tokenises in the step, we before training",
        ours,
        theirs,
        at_least=LIBRARY_AT_LEAST,
        detail=f"tokenising is {share:.1%} of theirs",
    )
    if share > _TOKENISING_MATTERS:
        without = Sample(tuple(value - tokenising.median for value in theirs.values), "s")
        yield compare(f"{what}, without tokenising", size, "the same, less the time to tokenise", ours, without)


def some_pairs() -> tuple[list[str], list[str]]:
    """The first documents that have a label which none before them took."""
    dataset = data.load(DATASET)
    labels: dict[int, int] = {}
    for row in range(dataset.train.shape[0]):
        start, stop = dataset.train.indptr[row : row + 2]
        fresh = next((int(label) for label in dataset.train.indices[start:stop] if int(label) not in labels), None)
        if fresh is not None:
            labels[fresh] = row
        if len(labels) == QUERIES:
            break
    return [dataset.train_text[row] for row in labels.values()], [dataset.label_text[label] for label in labels]


def our_step(queries: list[str], labels: list[str]) -> Callable[[], None]:
    """A step of `dpr` without its bookkeeping: encode, cosines over a temperature, softmax, backward, AdamW."""
    encoder = load_encoder("minilm", seed=0).train()
    tokens, settings = tokenize([*queries, *labels], encoder.tokenizer, MAX_LEN), OptimSettings()
    optimiser = Optimiser(encoder_groups(encoder, RATE, settings.weight_decay), Schedule("constant"), 1)

    def step() -> None:
        encoding = BatchEncoding(encoder, tokens, "cpu", settings.micro_batch_tokens, lambda group: group)
        vectors = unit(encoding.vectors)
        scores = logits(vectors[: len(queries)], vectors[len(queries) :], TEMPERATURE)
        torch.autograd.backward(cross_entropy(scores, torch.arange(len(queries))))
        encoding.backward()
        optimiser.step(0)

    return step


Features = list[dict[str, Tensor]]


def their_step(queries: list[str], labels: list[str]) -> tuple[Callable[[], Features], Callable[[Features], None]]:
    """Tokenising, and the step on its result."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from harness.model.transformer import quiet_library

    with quiet_library():
        model = SentenceTransformer(str(packaged_folder()), device="cpu").train()
    model.max_seq_length = MAX_LEN
    loss = MultipleNegativesRankingLoss(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)

    def words() -> Features:
        return [model.preprocess(texts) for texts in (queries, labels)]

    def step(features: Features) -> None:
        optimiser.zero_grad()
        loss(features, None).backward()
        optimiser.step()

    return words, step
