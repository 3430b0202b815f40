"""A transformer's part of a training step: against its arithmetic, a plain loop, and a library made for it.

All with the weights of `minilm`, dropout on, forward and backward. Texts are those of lf-pydocs: long documents as
queries, short entries as labels.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from harness import data
from harness.data.ragged import Ragged
from harness.data.tokens import tokenize
from harness.model.encoders.encoder import Encoder, load_encoder, unit
from harness.model.encoders.pretrained import packaged_folder
from harness.model.encoders.transformer import quiet_library
from harness.settings.parameters import OptimSettings
from harness.train.assembly import encoder_groups
from harness.train.caching import BatchEncoding
from harness.train.objectives.psl import logits
from harness.train.optim import Optimiser, Schedule
from tests.benchmarks.race import Race, size

MAX_LEN, LENGTH, CHUNK = 128, 32, 32
ROWS, GEMM, QUERIES, LABELS_EACH = size(256, 8), size(2048, 64), size(64, 4), 3
TEMPERATURE, RATE = 1 / 20, 2e-5


@pytest.fixture
def encoder() -> Encoder:
    return load_encoder("minilm", seed=0).train()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Documents that have a label which none before them took, and those labels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(tmp_path_factory.mktemp("home")))
        dataset = data.load("lf-pydocs")
    labels: dict[int, int] = {}
    for row in range(dataset.train.shape[0]):
        start, stop = dataset.train.indptr[row : row + 2]
        fresh = next((int(label) for label in dataset.train.indices[start:stop] if int(label) not in labels), None)
        if fresh is not None and len(labels) < QUERIES:
            labels[fresh] = row
    return [dataset.train_text[row] for row in labels.values()], [dataset.label_text[label] for label in labels]


def plain_model() -> nn.Module:
    """The library's model as it comes, in train mode."""
    from transformers import AutoModel

    with quiet_library():
        model: nn.Module = AutoModel.from_pretrained(str(packaged_folder()), local_files_only=True)
    return model.train()


def forward_backward(encoder: Encoder, tokens: Ragged) -> None:
    """Vectors of all rows, a gradient for each of them, and the way back, as in a training step."""
    encoder.zero_grad()
    encoding = BatchEncoding(encoder, tokens, "cpu", OptimSettings().micro_batch_tokens, lambda group: group)
    torch.autograd.backward(encoding.vectors.sum())
    encoding.backward()


def test_against_its_arithmetic(race: Race, encoder: Encoder) -> None:
    generator = np.random.default_rng(0)
    tokens = Ragged(generator.integers(1000, 30_000, ROWS * LENGTH), np.arange(ROWS + 1) * LENGTH)
    ids = torch.from_numpy(tokens.values.astype(np.int64)).view(ROWS, LENGTH)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        plain_model()(input_ids=ids, attention_mask=torch.ones_like(ids))
    needed = 3 * counter.get_total_flops()
    left, right = torch.ones(GEMM, GEMM), torch.ones(GEMM, GEMM)
    race(
        "encoder step",
        f"{ROWS} texts of {LENGTH} tokens, minilm, {needed / 1e9:,.0f} GFLOP forward and backward",
        f"as many operations at the rate of one product of {GEMM:,}^3 in float32",
        lambda: forward_backward(encoder, tokens),
        lambda: left @ right,
        times=needed / (2 * GEMM**3),
        at_most=1.43,
    )


def test_against_a_padded_loop(race: Race, encoder: Encoder, texts: tuple[list[str], list[str]]) -> None:
    queries, labels = texts
    tokens = tokenize([*queries, *labels], encoder.tokenizer, MAX_LEN)
    model, pad_id = plain_model(), encoder.tokenizer.pad_id

    def plain() -> None:
        """Rows in their order, so many at a time: pad, encode, mean of the real tokens, backward."""
        model.zero_grad()
        for start in range(0, len(tokens), CHUNK):
            rows = range(start, min(start + CHUNK, len(tokens)))
            parts = [torch.from_numpy(tokens[row].astype(np.int64)) for row in rows]
            ids = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=pad_id)
            mask = nn.utils.rnn.pad_sequence([torch.ones_like(part) for part in parts], batch_first=True)
            hidden: Tensor = model(input_ids=ids, attention_mask=mask).last_hidden_state
            real = mask[:, :, None].float()
            torch.autograd.backward(((hidden * real).sum(1) / real.sum(1)).sum())

    race(
        "encode the texts of a batch, forward and backward",
        f"{len(queries)} documents and {len(labels)} labels of lf-pydocs, {tokens.offsets[-1]:,} tokens, minilm",
        f"transformers, batches of {CHUNK} padded to their longest",
        lambda: forward_backward(encoder, tokens),
        plain,
        at_least=1.5,
        rounds=3,
    )


def test_against_sentence_transformers(race: Race, encoder: Encoder, texts: tuple[list[str], list[str]]) -> None:
    queries, labels = texts
    race(
        "training step, in-batch softmax",
        f"{len(queries)} pairs of lf-pydocs, at most {MAX_LEN} tokens, minilm",
        "sentence-transformers, MultipleNegativesRankingLoss and AdamW; it tokenises in the step, we before training",
        our_step(encoder, queries, labels),
        their_step(queries, labels),
        at_least=1.3,
        rounds=3,
    )


def our_step(encoder: Encoder, queries: list[str], labels: list[str]) -> Callable[[], None]:
    """A step of `dpr` without its bookkeeping: encode, cosines over a temperature, softmax, backward, AdamW."""
    tokens = tokenize([*queries, *labels], encoder.tokenizer, MAX_LEN)
    settings = OptimSettings(lr_encoder=RATE)
    optimiser = Optimiser(encoder_groups(encoder, settings), Schedule("constant"), 1)

    def step() -> None:
        encoding = BatchEncoding(encoder, tokens, "cpu", settings.micro_batch_tokens, lambda group: group)
        vectors = unit(encoding.vectors)
        scores = logits(vectors[: len(queries)], vectors[len(queries) :], TEMPERATURE)
        torch.autograd.backward(cross_entropy(scores, torch.arange(len(queries))))
        encoding.backward()
        optimiser.step(0)

    return step


def their_step(queries: list[str], labels: list[str]) -> Callable[[], None]:
    """The same step of sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    with quiet_library():
        model = SentenceTransformer(str(packaged_folder()), device="cpu").train()
    model.max_seq_length = MAX_LEN
    loss = MultipleNegativesRankingLoss(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)

    def step() -> None:
        optimiser.zero_grad()
        loss([model.preprocess(texts) for texts in (queries, labels)], None).backward()
        optimiser.step()

    return step
