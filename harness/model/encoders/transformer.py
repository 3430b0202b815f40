"""Transformer encoders: ragged ids -> padded [B, W] -> hidden states [B, W, D] -> pooled [B, D].

    mean: sum_t m_t h_t / sum_t m_t      cls: h_0      max: max_t h_t over m_t = 1

with m the mask of real tokens. Weights are always float32; half precision comes from an autocast around the
call. The library's model is wrapped, never subclassed, because its base class re-initialises what it does not know.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from harness.data.tokens import Tokenizer
from harness.errors import DataError
from harness.io.files import build_once, home, sha256_json, write_text
from harness.model.encoders.attention import FUSED, drop_faster, implementation
from harness.model.encoders.encoder import Encoder
from harness.model.encoders.pretrained import ModelFolder, find

TINY_VERSION = 1
_TINY_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


class TransformerEncoder(Encoder):
    """A Hugging Face encoder with pooling."""

    def __init__(self, model: nn.Module, pooling: str, pad_id: int, **metadata: Any) -> None:
        super().__init__(**metadata)
        self.model = model
        self.pooling = pooling
        self.pad_id = pad_id

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Pad, run the model and pool; see `Encoder.forward`."""
        lengths = offsets.diff()
        if len(lengths) == 0:
            return torch.zeros(0, self.dim, device=ids.device)
        padded, mask = pad(ids, lengths, self.pad_id)
        attended = None
        if mask is not None:
            # attention over no token at all is undefined, so an empty row attends to its first padding and is zeroed
            # below
            attended = mask.long()
            attended[:, 0] = 1
        hidden = self.model(input_ids=padded, attention_mask=attended).last_hidden_state.float()
        return pool(hidden, mask, self.pooling)


def pad(ids: Tensor, lengths: Tensor, pad_id: int) -> tuple[Tensor, Tensor | None]:
    """Pad ragged ids [T] with row lengths [B]; return ids [B, W] and the bool mask [B, W] of real tokens; W >= 1.

    The mask is None where it would be true throughout: attention without one is cheaper.
    """
    width = max(1, int(lengths.max()))
    if len(ids) == width * len(lengths):
        return ids.view(-1, width), None
    mask = torch.arange(width, device=ids.device) < lengths[:, None]
    padded = torch.full(mask.shape, pad_id, dtype=torch.int64, device=ids.device)
    padded[mask] = ids
    return padded, mask


def pool(hidden: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """Pool hidden states [B, W, D] into vectors [B, D]; zero for rows whose `mask` [B, W] is empty (None: all true)."""
    if mask is None:
        return hidden.mean(1) if pooling == "mean" else hidden[:, 0] if pooling == "cls" else hidden.amax(1)
    real = mask[:, :, None]
    if pooling == "mean":
        return (hidden * real).sum(1) / real.sum(1).clamp(min=1)
    if pooling == "cls":
        return hidden[:, 0] * real[:, 0]
    filled = hidden.masked_fill(~real, -torch.inf).amax(1)
    return torch.where(real.any(1), filled, 0.0)


def from_folder(source: ModelFolder) -> TransformerEncoder:
    """Load a vetted folder: safetensors only, float32, no code from the folder, every weight of the model present."""
    from transformers import AutoModel

    try:
        with quiet_library(), torch.random.fork_rng(devices=[]):
            model, report = AutoModel.from_pretrained(
                str(source.folder),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                attn_implementation=implementation(source.attention),
                output_loading_info=True,
            )
    except Exception as error:  # a broken file surfaces as whatever the reading library happened to raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"the model could not be loaded ({reason})", source.folder) from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing or report["mismatched_keys"]:
        faulty = missing or sorted(str(key) for key in report["mismatched_keys"])
        raise DataError(f"{len(faulty)} weights are missing or of the wrong shape, {faulty[0]} first", source.folder)
    return wrap(model, source.name, source.tokenizer, source.pooling, source.max_len, source.longest, source.identity)


def wrap(
    model: Any, name: str, tokenizer: Tokenizer, pooling: str, max_len: int, longest: int, identity: str
) -> TransformerEncoder:
    """Wrap a model of the library as an encoder."""
    if hasattr(model, "pooler"):
        model.pooler = None  # its output is not used, so its weights would sit in the optimiser without a gradient
    drop_faster(model)
    pad_id = model.config.pad_token_id
    return TransformerEncoder(
        model,
        pooling,
        tokenizer.pad_id if pad_id is None else pad_id,
        name=name,
        dim=int(model.config.hidden_size),
        tokenizer=tokenizer,
        max_len=max_len,
        longest=longest,
        identity=identity,
    )


@contextmanager
def quiet_library() -> Iterator[None]:
    """Silence the loading bar and the list of unused head weights; `from_folder` checks the report itself."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def load_pretrained(
    *, name: str, seed: int, max_len: int | None = None, pooling: str | None = None, revision: str = "main"
) -> TransformerEncoder:
    """Load a pretrained encoder from the extra [minilm], the model hub or a local folder.

    Args:
        name: Name or path, as for `harness.model.encoders.pretrained.find`.
        seed: Not used; nothing is drawn.
        max_len: Tokens per text; by default what the folder recommends, at most 512.
        pooling: mean, cls or max; by default what the folder says, else mean.
        revision: Branch, tag or commit of the hub repository.
    """
    return from_folder(find(name, pooling=pooling, max_len=max_len, revision=revision))


def load_tiny(
    *,
    name: str,
    seed: int,
    max_len: int = 32,
    dim: Annotated[int, Field(ge=2, le=4096, multiple_of=2)] = 32,
    layers: Annotated[int, Field(ge=1, le=48)] = 2,
) -> TransformerEncoder:
    """Make a random BERT over bytes: every part of a real encoder, none of its cost.

    Args:
        name: Name of the encoder, for records.
        seed: Seed of the weights.
        max_len: Tokens per text.
        dim: Dimension D of the vectors, a multiple of 2.
        layers: Transformer layers.
    """
    from transformers import AutoConfig, AutoModel

    tokenizer = byte_tokenizer()
    settings = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": dim,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "intermediate_size": 2 * dim,
        "max_position_embeddings": max(128, max_len),
        "pad_token_id": tokenizer.pad_id,
        # BERT's 0.02 is made for 768 dimensions; at this size it leaves all texts nearly parallel
        "initializer_range": dim**-0.5,
    }
    config = AutoConfig.for_model("bert", **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModel.from_config(config, dtype=torch.float32, attn_implementation=implementation(FUSED)).eval()
    identity = sha256_json({"tiny": TINY_VERSION, "seed": seed, "tokenizer": tokenizer.sha256, **settings})
    return wrap(model, name, tokenizer, "mean", max_len, settings["max_position_embeddings"], identity)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer of the 256 bytes plus [PAD], [UNK], [CLS] and [SEP], cached in the workspace."""
    folder = home() / "cache" / "encoders" / f"bytes-{TINY_VERSION}"

    def build(temporary: Path) -> dict[str, Any]:
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers, processors

        symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
        ids = {token: number for number, token in enumerate([*_TINY_SPECIALS, *symbols])}
        library = Library(models.BPE(vocab=ids, merges=[], unk_token="[UNK]"))  # noqa: S106  a token of text
        library.add_special_tokens(list(_TINY_SPECIALS))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.decoder = decoders.ByteLevel()
        library.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")]
        )
        write_text(temporary / "tokenizer.json", library.to_str(pretty=True))  # its own `save` raises a bare Exception
        return {"vocabulary": len(ids)}

    build_once(folder, build)
    return Tokenizer.from_file(folder / "tokenizer.json")
