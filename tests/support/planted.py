"""Data with a planted signal, and an encoder that sees words: every method can learn it within a second or two.

A label owns words that occur in the texts of its rows and other words that are its own text, so that nothing can be
known without training. Every row also holds words of one label that is a filter pair, never an answer. The last label
has no train row.
"""

import json
from pathlib import Path

import numpy as np
import torch

LABELS, TRAIN, TEST = 40, 360, 90
UNSEEN = LABELS - 1
"""The label without a train row."""


def write_dataset(folder: Path, seed: int = 0) -> Path:
    """Write the dataset as JSON lines with filter pairs."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    filters = []
    for split, count in (("train", TRAIN), ("test", TEST)):
        lines = []
        for row in range(count):
            wanted = draw.choice(UNSEEN, size=4, replace=False)
            true, masked = wanted[: draw.integers(1, 4)], wanted[3]
            words = [f"r{label}{letter}" for label in (*true, masked) for letter in draw.choice(list("abc"), 2)]
            lines.append(
                {"id": f"{split}{row}", "text": " ".join(draw.permutation(words)), "labels": [f"l{i}" for i in true]}
            )
            filters.append({"split": split, "id": f"{split}{row}", "label": f"l{masked}"})
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    labels = [{"id": f"l{label}", "text": f"t{label}x t{label}y"} for label in range(LABELS)]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    (folder / "filter.jsonl").write_text("\n".join(map(json.dumps, filters)))
    return folder


def write_teacher(folder: Path) -> Path:
    """Write a random BERT over whole words, to be distilled into a static encoder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words += [f"r{label}{letter}" for label in range(LABELS) for letter in "abc"]
    words += [f"t{label}{letter}" for label in range(LABELS) for letter in "xy"]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder, safe_serialization=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
