"""Encoders as numbers: parameters, widths, and what a token costs in memory and in arithmetic.

Bytes that autograd keeps for one token in one transformer layer of width H and inner width F, by who keeps it:

    float32    input of q, k, v (4H), q, k, v (12H), attention output (4H), input of the first norm (4H), input of the
               first inner layer (4H), input and output of GELU (8F), input of the second norm (4H): 32H + 8F
    bfloat16   the same with products in 2 bytes; autocast makes a copy of the input for each of q, k and v, and norms
               keep float32: 6H + 6H + 2H + 4H + 2H + 4F + 4H = 24H + 4F
    both       of every dropout (H each) a mask, one byte an element; the mask of padding, a number for each pair of
               tokens

Fused attention (CUDA, or a CPU without dropout of the attention) keeps no other matrix of T x T. A CPU with it does:
for each of A heads and each pair of tokens the probability and a mask, 5 bytes. Going back
through a layer takes another 8F for the gradient of its widest part. Without gradients the widest layer alone is alive.
All of this was held against what autograd keeps of random models: within 2 % of DistilBERT, 3 % of BERT.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.errors import DataError, UserError, unknown_name
from harness.files import read_json
from harness.model import ENCODERS, is_folder

_WORDS_READ = 32
"""Words of a text that `inceptionxml` reads."""
_CHANNELS, _STRIDE, _WIDEST = 32, 4, 16


@dataclass(frozen=True)
class EncoderShape:
    """What is known of an encoder before it is loaded."""

    name: str
    dim: int
    """E, size of its vectors."""
    vocabulary: int
    """V."""
    width: int
    """Size of a token vector."""
    dense: int
    """Trained parameters outside a `RowTable`."""
    max_len: int
    """Tokens per text unless the config says otherwise."""
    token_table: bool = False
    """Whether the token vectors are a `RowTable`, of which a step touches only the rows it meets."""
    layers: int = 0
    inner: int = 0
    """F."""
    heads: int = 0
    """A."""
    dropouts: int = 0
    """Dropout masks of width H a layer."""
    attention_dropout: bool = False
    fused: bool = True
    """Whether attention goes through a fused kernel at all."""
    micro_batched: bool = True
    note: str = ""

    @property
    def table_parameters(self) -> int:
        """Elements of the table of token vectors; 0 where they are ordinary parameters."""
        return self.vocabulary * self.width if self.token_table else 0

    @property
    def parameters(self) -> int:
        """All that is trained."""
        return self.dense + self.table_parameters

    def kept_bytes(self, tokens: float, length: float, *, half: bool, cuda: bool) -> float:
        """What autograd keeps of a micro-batch, with the workspace of its way back.

        Args:
            tokens: Of the micro-batch, padding included.
            length: Of its longest text.
            half: Products are bfloat16.
            cuda: On a CUDA device, else on a CPU.
        """
        if not self.layers:
            return self._bag_bytes(tokens, length, kept=True)
        width, inner, number = self.width, self.inner, 2 if half else 4
        layer = (24 * width + 4 * inner if half else 32 * width + 8 * inner) + self.dropouts * width + number * length
        if self.quadratic(cuda):
            pair = 5 if self.fused and not half else 9  # the library's own attention keeps the dropped ones, too
            layer += pair * self.heads * length + half * 6 * width  # and q, k, v once more in float32
        ends = 5 * width  # embeddings before their norm, the mask of their dropout
        return tokens * (self.layers * layer + ends + 8 * inner)

    def passing_bytes(self, tokens: float, length: float, *, half: bool, cuda: bool) -> float:
        """Memory of a micro-batch that is encoded without gradients: its widest layer, and the pooled states."""
        if not self.layers:
            return self._bag_bytes(tokens, length, kept=False)
        one = 2 if half else 4
        attention = 4 * self.heads * length if self.quadratic(cuda, training=False) else 0
        return tokens * (4 * 4 * self.width + one * (4 * self.width + 2 * self.inner) + attention)

    def quadratic(self, cuda: bool, *, training: bool = True) -> bool:
        """Whether matrices of T x T exist in attention."""
        return not self.fused or (not cuda and training and self.attention_dropout)

    def forward_flops(self, tokens: float, length: float) -> float:
        """Multiplications and additions of one forward pass; a backward pass takes twice as many."""
        if self.layers:
            layer = 2 * (4 * self.width**2 + 2 * self.width * self.inner) + 4 * self.width * length
            return tokens * self.layers * layer
        texts = tokens / max(1.0, length)
        return tokens * 2 * self.width + texts * 2 * self.dense * (self.width // _STRIDE if self.dense > 10**5 else 1)

    def _bag_bytes(self, tokens: float, length: float, *, kept: bool) -> float:
        """Bags and convolutions: ids and places of the tokens, and a few arrays the size of the result a text."""
        texts = tokens / max(1.0, length)
        own = tokens * 3 * 8
        if self.dim == self.width:
            return own + texts * self.width * 4 * (5 if kept else 3)
        words = min(length, _WORDS_READ) * self.width
        channels = _CHANNELS * self.width * (1 + 3 / _STRIDE)
        return own + texts * 4 * (7 * words + 3 * channels + 4 * self.dim) * (1 if kept else 0.5)


def transformer(
    name: str,
    *,
    vocabulary: int,
    positions: int,
    types: int,
    width: int,
    layers: int,
    inner: int,
    heads: int,
    **more: Any,
) -> EncoderShape:
    """A BERT-like encoder without its pooler: embeddings, then layers of four H x H and two H x F matrices."""
    embeddings = (vocabulary + positions + types) * width + 2 * width
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    facts = {"dropouts": 2, "attention_dropout": True, **more}
    return EncoderShape(
        name, width, vocabulary, width, embeddings + layers * layer, layers=layers, inner=inner, heads=heads, **facts
    )


_BERT_WORDS = 30_522


def _distilbert(name: str, max_len: int) -> EncoderShape:
    sizes = {"vocabulary": _BERT_WORDS, "positions": 512, "types": 0, "width": 768, "layers": 6}
    return transformer(name, **sizes, inner=3072, heads=12, max_len=max_len, dropouts=1)


def _minilm(name: str) -> EncoderShape:
    sizes = {"vocabulary": _BERT_WORDS, "positions": 512, "types": 2, "width": 384, "layers": 6}
    return transformer(name, **sizes, inner=1536, heads=12, max_len=256)


def _tiny(name: str, dim: int = 32, layers: int = 2) -> EncoderShape:
    sizes = {"vocabulary": 260, "positions": 128, "types": 2, "width": dim, "layers": layers}
    return transformer(name, **sizes, inner=2 * dim, heads=2, max_len=32)


def _bag(name: str, dim: int) -> EncoderShape:
    dense = dim * dim if name == "astec" else 0
    return EncoderShape(name, dim, _BERT_WORDS, dim, dense, max_len=256, token_table=True, micro_batched=False)


def _inception(name: str, dim: int = 300) -> EncoderShape:
    out = _CHANNELS * ((dim // _STRIDE - _WIDEST) // _STRIDE + 1)
    convolutions = _CHANNELS**2 * (1 + 1 + 4 + 8 + 16) + 3 * _CHANNELS**2 * _WIDEST
    return EncoderShape(
        name, out, _BERT_WORDS, dim, dim * dim + convolutions + out * out, max_len=_WORDS_READ + 2, token_table=True
    )


_OPTIONS = {
    **dict.fromkeys(("static", "astec", "inceptionxml"), ("teacher", "dim", "weighting", "dropout")),
    **dict.fromkeys(("minilm", "distilbert", "msmarco-distilbert"), ("pooling", "revision")),
    "tiny": ("dim", "layers"),
}


def encoder_shape(name: str, options: dict[str, Any]) -> EncoderShape:
    """The shape of an encoder by registered name or model folder, with its options; loads nothing."""
    if is_folder(name):
        return folder_shape(Path(name).expanduser())
    for option in options:
        if name in _OPTIONS and option not in _OPTIONS[name]:
            raise unknown_name(f"option of encoder {name}", option, _OPTIONS[name])
    if name in ("static", "astec"):
        return _bag(name, int(options.get("dim", 256)))
    if name == "inceptionxml":
        return _inception(name, int(options.get("dim", 300)))
    if name == "tiny":
        return _tiny(name, int(options.get("dim", 32)), int(options.get("layers", 2)))
    if name == "minilm":
        return _minilm(name)
    if name in ("distilbert", "msmarco-distilbert"):
        return _distilbert(name, 512)
    if name not in ENCODERS:
        ENCODERS.get(name)  # raises the error that names the nearest one
    return replace(
        _distilbert(name, 512), note=f"encoder {name} is from another package: planned as if it were distilbert"
    )


_NAMES = {
    "width": ("hidden_size", "dim"),
    "layers": ("num_hidden_layers", "n_layers"),
    "inner": ("intermediate_size", "hidden_dim"),
    "heads": ("num_attention_heads", "n_heads"),
    "vocabulary": ("vocab_size",),
}
"""How architectures call their sizes in config.json."""
_EAGER = ("deberta-v2", "mpnet")
"""Architectures that are loaded without fused attention; see `harness.model.vetting`."""


_LARGEST_SIZE = 10**8
"""Of one dimension of a model; no vocabulary comes near it."""


def _size(value: Any) -> int:
    size = int(value)
    if not 1 <= size <= _LARGEST_SIZE:
        raise ValueError(f"{size} is no size")
    return size


def folder_shape(folder: Path) -> EncoderShape:
    """The shape of a model folder, by arithmetic on its config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} has no config.json; name a model folder or an encoder (`harness ls encoders`)")
    config = read_json(path)
    try:
        sizes = {size: next(_size(config[name]) for name in names if name in config) for size, names in _NAMES.items()}
        positions = _size(config.get("max_position_embeddings", 512))
        types = _size(config["type_vocab_size"]) if config.get("type_vocab_size") else 0  # DeBERTa has none
        dropout = float(config.get("attention_probs_dropout_prob", config.get("attention_dropout", 0.1)))
    except (ValueError, TypeError, AttributeError, OverflowError, StopIteration) as error:
        raise DataError("sizes of the model are missing or no numbers", path) from error
    kind = str(config.get("model_type", ""))
    return transformer(
        folder.absolute().name,
        **sizes,
        positions=positions,
        types=types if kind != "distilbert" else 0,
        max_len=min(512, positions),
        dropouts=1 if kind == "distilbert" else 2,
        attention_dropout=dropout > 0,
        fused=kind not in _EAGER,
        note=""
        if kind in ("bert", "distilbert", "roberta", "xlm-roberta", "camembert", "electra", "mpnet")
        else f"{kind or 'an unnamed architecture'} is planned as a BERT of the same sizes",
    )
