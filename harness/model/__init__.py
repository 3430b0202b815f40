"""Models: everything that turns tokens into vectors.

`harness.settings.catalogue.ENCODERS` lists the encoders by name; `load_encoder` builds one. A factory takes `name`,
`seed` and its own keyword options and returns a `harness.model.encoders.encoder.Encoder`.
"""

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from harness.errors import UserError, unknown_name
from harness.io import files
from harness.settings.catalogue import ENCODERS

__all__ = ["ENCODERS", "check_encoder", "is_folder", "learning_rates", "load_encoder"]

if TYPE_CHECKING:
    from harness.model.encoders.encoder import Encoder, LearningRates

_NOT_OPTIONS = ("name", "seed", "max_len")
"""Arguments that the run gives; `max_len` is a setting of the run, because tokens are shared between encoders."""


def is_folder(name: str) -> bool:
    """Return whether an encoder's name means a model folder: it contains a slash, or is not registered and exists."""
    return "/" in name or (name not in ENCODERS and files.is_folder(name))


def learning_rates(name: str) -> "LearningRates | None":
    """Return the default learning rates of an encoder, from the class that its factory builds; None if unknown."""
    try:
        kind = get_type_hints(check_encoder(name, {})).get("return")
    except NameError:  # in a factory of another package
        return None
    return getattr(kind, "learning_rates", None)


def check_encoder(name: str, options: dict[str, Any]) -> Any:
    """Return the factory of an encoder after checking its name and the names and types of its options."""
    factory = (
        import_module("harness.model.encoders.transformer").load_pretrained if is_folder(name) else ENCODERS.get(name)
    )
    known = {key: part for key, part in inspect.signature(factory).parameters.items() if key not in _NOT_OPTIONS}
    for option, value in options.items():
        if option not in known:
            raise unknown_name(f"option of encoder {name}", option, known)
        try:
            TypeAdapter(known[option].annotation).validate_python(value, strict=True)
        except ValidationError as error:
            raise UserError(f"encoder_options.{option}: {error.errors()[0]['msg']} (got {value!r})") from error
    return factory


def load_encoder(name: str, *, seed: int, **options: Any) -> "Encoder":
    """Build an encoder by registered name, or from a local folder of config.json, safetensors and tokenizer.json.

    Args:
        name: One of `ENCODERS`, or the path of a model folder.
        seed: Seed of random weights; loading pretrained weights draws nothing.
        options: Keyword options of that encoder, for example `dim` of `static`; documented there.
    """
    encoder: Encoder = check_encoder(name, options)(name=name, seed=seed, **options)
    return encoder
