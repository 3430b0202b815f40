"""Arguments that bench and sweep share: `--set`, and the weights of an encoder."""

from collections.abc import Mapping

from harness.errors import UserError
from harness.model import is_folder
from harness.settings.layers import Layer, parse_override
from harness.settings.schema import RunConfig


def override_layer(text: str, command: str, options: Mapping[str, str], evaluate: str, method: str = "") -> Layer:
    """Return a `--set` option as a layer of settings.

    Args:
        text: The option's value, as typed.
        command: Command that takes it, for messages.
        options: Settings that the command has an option for, which are refused.
        evaluate: Why `evaluate` is refused.
        method: Method that the setting is for, if `text` begins with its name.
    """
    values = parse_override(text.removeprefix(f"{method}:") if method else text)
    for name in options.keys() & values:
        raise UserError(f"--set {text}: in a {command} this is what {options[name]} is for")
    if "evaluate" in values:
        raise UserError(f"--set {text}: {evaluate}")
    return Layer(f"--set {text}", values)


def encoder_weights(config: RunConfig) -> str | None:
    """Return the hash of a model folder's files; None for an encoder that is given by name."""
    if not is_folder(config.encoder):
        return None
    from harness.model.encoders.pretrained import find

    return find(config.encoder, pooling=config.encoder_options.get("pooling")).identity
