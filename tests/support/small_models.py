"""Model folders small enough to make in a test, and the workspace they live in."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from harness.model.encoders.transformer import byte_tokenizer

TEXTS = ["a cat", "the dog sat on the mat", "", "x", "naïve 😀", "the dog sat on the mat, twice over", "a cat"]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
OTHER_SIZES = {
    "albert": {"embedding_size": 8},
    "electra": {"embedding_size": 8},
    "modernbert": {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
}


@contextmanager
def small_workspace(home: Path) -> Iterator[None]:
    """Use `home` as workspace, with one torch thread: on models this small a second one only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_HOME", str(home))
        yield
    torch.set_num_threads(threads)


def write_model(folder: Path, kind: str = "bert", **settings) -> Path:
    """Write a small random model folder of one architecture, with the byte tokenizer."""
    from transformers import AutoConfig, AutoModel

    sizes = {**SIZES, **OTHER_SIZES.get(kind, {}), **settings}
    config = AutoConfig.for_model(kind, vocab_size=260, initializer_range=0.3, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        AutoModel.from_config(config).save_pretrained(folder, safe_serialization=True)
    shutil.copy(byte_tokenizer().path, folder / "tokenizer.json")
    return folder


def edit_json(path: Path, **changes) -> None:
    """Change keys of a JSON object in a file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
