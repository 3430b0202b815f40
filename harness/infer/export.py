"""Exporting the model of a run as a folder that other software reads: its dual encoder, or all weights by name.

    z = N(tanh(W f(x) + b))        f: encoder, W and b: projection, N(v) = v / max(|v|, 1e-12)

`export_sentence_transformers` writes z as stock modules, so that `SentenceTransformer(folder)` gives the same vectors:

    transformer    Transformer -> Pooling -> [Dense with Tanh ->] Normalize
    static         StaticEmbedding with rows w(t) E[t] -> Normalize [-> Dense with Tanh -> Normalize]

StaticEmbedding takes the mean of its rows where f takes the sum; the two differ by a positive factor, which N removes.
The files are written here, in that library's format; only reading them needs the library.
"""

import html
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from harness import __version__
from harness.data.tokens import Tokenizer
from harness.errors import DataError, UserError
from harness.infer.load import TrainedRun
from harness.io.files import sha256_file, whole_folder, write_json, write_text
from harness.io.printable import printable
from harness.model.encoders.encoder import Encoder
from harness.model.encoders.static import StaticEncoder
from harness.model.encoders.transformer import TransformerEncoder, quiet_library
from harness.model.heads import RetrievalHead, TwoHeads
from harness.settings.method import Ranker

FORMATS = ("sentence-transformers", "safetensors")
WEIGHTS = "model.safetensors"
_POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
}
_SENTENCE_USAGE = """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({folder})  # the path of this folder
queries = model.encode(["a text to be labelled"])
labels = model.encode(["the text of one label", "the text of another"])
scores = model.similarity(queries, labels)  # cosine, [queries, labels]
```

A text is cut after {max_len} tokens, special tokens included. No code from this folder is run.
"""
_SAFETENSORS_USAGE = """\
```python
from safetensors.torch import load_file

tensors = load_file({folder} + "/model.safetensors")  # the path of this folder
```
"""


def export_run(trained: TrainedRun, form: str, folder: Path) -> None:
    """Write the model of a run into a new folder.

    Args:
        trained: The run.
        form: `sentence-transformers` for its dual encoder as a folder for that library, `safetensors` for all weights.
        folder: Target folder, new or empty.
    """
    assert form in FORMATS
    if trained.parts.fitted is not None:
        raise UserError(
            f"method {trained.config.method!r} has no dual encoder and no weights by name, so it cannot be exported; "
            f"its files are in the folder model/ of run {trained.record.run_id}"
        )
    if form == "safetensors":
        export_safetensors(_weights(trained), folder, _metadata(trained, trained.record.metrics))
        return
    scorer, projection = _dual_encoder(trained)
    metadata = _metadata(trained, trained.record.scorers.get(scorer, trained.record.metrics))
    export_sentence_transformers(trained.encoder, projection, folder, max_len=trained.max_len, metadata=metadata)


def _weights(trained: TrainedRun) -> dict[str, Tensor]:
    model = trained.parts.model
    if model is not None:  # bfloat16 becomes float32, which every reader knows
        return {
            name: tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor
            for name, tensor in model.state_dict().items()
        }
    return {f"encoder.{name}": tensor for name, tensor in trained.encoder.state_dict().items()}


def _dual_encoder(trained: TrainedRun) -> tuple[str, nn.Linear | None]:
    """Return the name of the text scorer and its projection on top of the encoder; `UserError` if there is none."""
    model, scoring = trained.parts.model, trained.parts.scoring
    instead = "export its weights: --format safetensors"
    refused = UserError(f"method {trained.config.method!r} has no dual encoder; {instead}")
    if model is not None and not isinstance(model, TwoHeads):
        raise refused
    if isinstance(scoring, Ranker) or scoring.text_scorer is None:
        raise refused
    sample = trained.label_tokens.take(np.arange(min(64, len(trained.label_tokens))))
    lengths = np.linalg.norm(scoring.label_vectors(sample, (scoring.text_scorer,))[scoring.text_scorer], axis=1)
    if not np.isclose(lengths[lengths > 0], 1, atol=1e-4).all():
        raise UserError(
            f"run {trained.record.run_id} scores by inner products of vectors of any length, an export for "
            f"sentence-transformers by cosines; {instead}"
        )
    head = None if model is None else model.retrieval
    return scoring.text_scorer, head.projection if isinstance(head, RetrievalHead) else None


def _metadata(trained: TrainedRun, metrics: dict[str, float]) -> dict[str, Any]:
    """Return the metadata for the model card."""
    record = trained.record
    return {
        "run": record.run_id,
        "method": trained.config.method,
        "dataset": record.dataset["name"],
        "dataset_digest": record.dataset["digest"],
        "encoder": record.encoder["name"],
        "encoder_identity": record.encoder["identity"],
        "max_len": trained.max_len,
        "seed": trained.config.seed,
        "params": trained.config.params,
        "metrics": metrics,
    }


# ---------------------------------------------------------------- parts as folders


def export_sentence_transformers(
    encoder: Encoder, projection: nn.Linear | None, folder: Path, *, max_len: int, metadata: dict[str, Any]
) -> None:
    """Write a dual encoder as a folder for sentence-transformers; whole, or not at all.

    Args:
        encoder: A transformer or static encoder, on any device and in any mode; not changed.
        projection: Layer W, b from the encoder's dimension to the head's; None if z = N(f(x)).
        folder: Target folder, new or empty.
        max_len: Tokens per text, special tokens included, as in the token store of the run.
        metadata: JSON values for the model card and the manifest: method, dataset, encoder, metrics (a mapping), ...
    """
    if not isinstance(encoder, TransformerEncoder | StaticEncoder):
        raise UserError(
            f"encoder {encoder.name!r} has no counterpart in sentence-transformers; export its plain safetensors"
        )
    if isinstance(encoder, StaticEncoder) and encoder.ngrams is not None:
        raise UserError(
            "sentence-transformers knows vectors of tokens alone, not of n-grams; export the plain safetensors, or "
            "train with encoder_options.ngrams=1"
        )
    _check_fit(encoder, projection, max_len)

    def write(temporary: Path, name: str) -> None:
        if isinstance(encoder, TransformerEncoder):
            modules = _write_transformer(encoder, max_len, temporary)
        else:
            modules = _write_static(encoder, max_len, temporary)
        if projection is not None:
            modules += [("Dense", _write_dense(projection, temporary / f"{len(modules)}_Dense"))]
        if modules[-1][0] != "Normalize":
            modules += [("Normalize", _write_normalize(temporary / f"{len(modules)}_Normalize"))]
        _write_listing(modules, temporary)
        usage = _SENTENCE_USAGE.format(folder=json.dumps(name), max_len=max_len)
        _write_card(temporary, name, "sentence-transformers", metadata, usage)

    _publish(folder, write, metadata)


def export_safetensors(tensors: Mapping[str, Tensor], folder: Path, metadata: dict[str, Any]) -> None:
    """Write named tensors as model.safetensors with config.json and a model card; whole, or not at all.

    Args:
        tensors: Tensors by name, of any shape and type, on any device.
        folder: Target folder, new or empty.
        metadata: JSON values for config.json, the model card and the manifest.
    """
    _check_finite(tensors)
    shapes = {
        name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")} for name, t in tensors.items()
    }

    def write(temporary: Path, name: str) -> None:
        _write_tensors(tensors, temporary)
        write_json(temporary / "config.json", {"facts": metadata, "harness_version": __version__, "tensors": shapes})
        _write_card(temporary, name, "safetensors", metadata, _SAFETENSORS_USAGE.format(folder=json.dumps(name)))

    _publish(folder, write, metadata)


# ---------------------------------------------------------------- what can be exported


def _check_fit(encoder: Encoder, projection: nn.Linear | None, max_len: int) -> None:
    if encoder.longest is not None and max_len > encoder.longest:
        raise UserError(f"encoder {encoder.name!r} reads at most {encoder.longest} tokens; max_len is {max_len}")
    specials = _read_tokenizer(encoder.tokenizer).num_special_tokens_to_add(is_pair=False)
    if max_len <= specials:
        raise UserError(f"max_len {max_len} leaves no room for text beside {specials} special tokens; raise it")
    assert projection is None or projection.in_features == encoder.dim
    _check_finite(encoder.state_dict())
    if projection is not None:
        _check_finite(projection.state_dict())


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"weights {name!r} hold NaN or infinity, so training diverged; nothing was exported")


def _read_tokenizer(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Return the library's tokenizer without the padding and truncation that its file may ask for."""
    path = tokenizer.path
    if not path.is_file() or sha256_file(path) != tokenizer.sha256:
        raise DataError("the tokenizer is gone or is not the one the model was trained with; put it back", path)
    library = tokenizers.Tokenizer.from_file(str(path))
    library.no_padding()
    library.no_truncation()
    return library


# ---------------------------------------------------------------- modules, each as (kind, path inside the folder)


def _write_transformer(encoder: TransformerEncoder, max_len: int, folder: Path) -> list[tuple[str, str]]:
    """Write the modules Transformer and Pooling; return each as (kind, path)."""
    model: Any = encoder.model
    with quiet_library():
        model.save_pretrained(folder)
    library = _read_tokenizer(encoder.tokenizer)
    write_text(folder / "tokenizer.json", library.to_str())
    settings = {
        # any class named after a model would rebuild the tokenizer from its vocabulary and drop parts of the file
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_len,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "pad_token": library.id_to_token(_padding_id(encoder)),
    }
    write_json(folder / "tokenizer_config.json", settings)
    # without this argument the library would invent weights for the pooler that the encoder dropped
    poolable = "add_pooling_layer" in inspect.signature(type(model)).parameters
    options = {"model_args": {"add_pooling_layer": False}} if poolable else {}
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_len, "do_lower_case": False, **options})
    flags = {flag: mode == encoder.pooling for mode, flag in _POOLING_FLAGS.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": encoder.dim, **flags})
    return [("Transformer", ""), ("Pooling", "1_Pooling")]


def _padding_id(encoder: TransformerEncoder) -> int:
    """Return the token id for padding.

    Padding is masked, so any id would do. But the library reads the padding token's name as that token wherever it
    stands in a text, so it must be a special token, which is read that way anyway.
    """
    special = encoder.tokenizer.special_ids.tolist()
    if not special:
        raise UserError(f"{encoder.tokenizer.path} has no special token to pad with; export the plain safetensors")
    return encoder.pad_id if encoder.pad_id in special else int(special[0])


def _write_static(encoder: StaticEncoder, max_len: int, folder: Path) -> list[tuple[str, str]]:
    """Write the modules StaticEmbedding and Normalize; return each as (kind, path)."""
    library = _read_tokenizer(encoder.tokenizer)
    before, after = encoder.tokenizer.frame
    if encoder.weights[[*before, *after]].any():
        raise UserError(
            f"encoder {encoder.name!r} weighs the special tokens around a text, which StaticEmbedding leaves out; "
            "export the plain safetensors"
        )
    # that module adds no special tokens, and its only limit on length is the one inside tokenizer.json
    library.enable_truncation(max_len - library.num_special_tokens_to_add(is_pair=False))
    place = folder / "0_StaticEmbedding"
    write_text(place / "tokenizer.json", library.to_str())
    rows = encoder.weights[:, None] * encoder.table.weight
    _write_tensors({"embedding.weight": rows}, place)
    return [("StaticEmbedding", place.name), ("Normalize", _write_normalize(folder / "1_Normalize"))]


def _write_dense(projection: nn.Linear, place: Path) -> str:
    settings = {
        "in_features": projection.in_features,
        "out_features": projection.out_features,
        "bias": projection.bias is not None,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    write_json(place / "config.json", settings)
    _write_tensors({f"linear.{name}": tensor for name, tensor in projection.state_dict().items()}, place)
    return place.name


def _write_normalize(place: Path) -> str:
    write_json(place / "config.json", {"module_input_name": "sentence_embedding"})
    return place.name


def _write_listing(modules: list[tuple[str, str]], folder: Path) -> None:
    """Write modules.json and config_sentence_transformers.json; the library maps its old class paths to new ones."""
    listing = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listing)
    settings = {
        "model_type": "SentenceTransformer",
        "__version__": {"transformers": transformers.__version__, "pytorch": torch.__version__},
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine",
    }
    write_json(folder / "config_sentence_transformers.json", settings)


def _write_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Save tensors from CPU memory; those that share memory are copied, because the format does not allow sharing."""
    separate: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        memory = own.untyped_storage().data_ptr()
        separate[name] = own.clone() if memory in seen else own
        seen.add(memory)
    save_file(separate, folder / WEIGHTS, metadata={"format": "pt"})


# ---------------------------------------------------------------- model card and folder


def _write_card(folder: Path, name: str, library: str, metadata: dict[str, Any], usage: str) -> None:
    """Write README.md: the metadata, mappings as tables, and how to load the folder."""
    listed = {**metadata, "exported by": f"harness {__version__}"}
    lines = ["---", f"library_name: {library}", "tags: [extreme-multi-label-classification]", "---", ""]
    lines += [f"# {_format(name)}", ""]
    lines += [f"- {_format(key)}: {_format(value)}" for key, value in listed.items() if not isinstance(value, Mapping)]
    for key, value in listed.items():
        if isinstance(value, Mapping) and value:
            lines += ["", f"## {_format(key)}", "", "| name | value |", "|---|---|"]
            lines += [f"| {_format(part)} | {_format(number)} |" for part, number in value.items()]
    lines += ["", "## Use", "", usage]
    write_text(folder / "README.md", "\n".join(lines))


def _format(value: Any) -> str:
    """Return a value as escaped Markdown on one line."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return html.escape(" ".join(printable(text).split()), quote=False).replace("|", "\\|").replace("`", "'")


def _publish(folder: Path, write: Callable[[Path, str], None], metadata: dict[str, Any]) -> None:
    """Call `write(temporary folder, final name)`, add the manifest and rename; after a failure nothing is left."""
    folder = folder.expanduser().resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not an empty folder; name a new one, or move it away")
    try:
        with whole_folder(folder) as draft:
            write(draft.path, folder.name)
            draft.metadata = {"facts": metadata, "harness_version": __version__}
            for path in draft.path.rglob("*"):  # the safetensors library makes files readable by their owner only
                path.chmod(0o755 if path.is_dir() else 0o644)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{folder} could not be written: {reason}; free some space or name another") from error
