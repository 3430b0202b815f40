"""Arguments that bench and sweep share: `--set`."""

from collections.abc import Mapping

from harness.errors import UserError
from harness.settings.layers import Layer, parse_override


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
