"""Models: everything that turns tokens into vectors.

`ENCODERS` lists the encoders by name without importing torch; `load_encoder` builds one. A factory takes `name`, `seed`
and its own keyword options and returns a `harness.model.encoder.Encoder`.
"""

import inspect
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import unknown_name
from harness.registry import Registry

if TYPE_CHECKING:
    from harness.model.encoder import Encoder

ENCODERS: "Registry[Encoder]" = Registry("encoder", group="xmc_harness.encoders")
ENCODERS.register(
    "static", "harness.model.static:load_static", "bag of token vectors distilled from minilm; fast on a CPU"
)
ENCODERS.register(
    "minilm", "harness.model.transformer:load_pretrained", "all-MiniLM-L6-v2, 384 dimensions, from the extra [minilm]"
)
ENCODERS.register(
    "distilbert", "harness.model.transformer:load_pretrained", "distilbert-base-uncased, from the model hub"
)
ENCODERS.register(
    "msmarco-distilbert",
    "harness.model.transformer:load_pretrained",
    "msmarco-distilbert-base-v4, from the model hub; the start of the papers' code",
)
ENCODERS.register("tiny", "harness.model.transformer:load_tiny", "two random layers over bytes, for tests")


def is_folder(name: str) -> bool:
    """Whether an encoder's name means a model folder: it contains a slash, or nobody registered it and it exists."""
    return "/" in name or (name not in ENCODERS and Path(name).is_dir())


def load_encoder(name: str, *, seed: int, **options: Any) -> "Encoder":
    """Builds an encoder by registered name, or from a local folder of config.json, safetensors and tokenizer.json.

    Args:
        name: One of `ENCODERS`, or a path.
        seed: For whatever is drawn at random; loading pretrained weights draws nothing.
        options: Keyword options of that encoder, for example `max_len` or, for `static`, `dim`; documented there.
    """
    factory = import_module("harness.model.transformer").load_pretrained if is_folder(name) else ENCODERS.get(name)
    known = set(inspect.signature(factory).parameters) - {"name", "seed"}
    for option in options:
        if option not in known:
            raise unknown_name(f"option of encoder {name}", option, known)
    encoder: Encoder = factory(name=name, seed=seed, **options)
    return encoder
