"""The train side of a run with made rows: where `harness.run` and `harness.trained` meet the augmentations."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.augment import NONE, augment, idle

if TYPE_CHECKING:
    from harness.config import RunConfig
    from harness.method import Inputs


def with_made_rows(inputs: "Inputs", config: "RunConfig") -> "tuple[Inputs, dict[str, Any]]":
    """What a method builds from, made rows included, and what was made, for the record; nothing if nothing was."""
    for line in idle(config.augment, config.augment_options):
        inputs.warn(line)
    if config.augment == NONE:
        return inputs, {}
    before, after = inputs.encoder.tokenizer.frame
    side = augment(
        config.augment,
        inputs.train,
        inputs.train_filter,
        inputs.train_tokens,
        inputs.label_tokens,
        config.augment_options,
        seed=config.seed,
        frame=(len(before), len(after)),
    )
    more = replace(
        inputs, train=side.train, train_filter=side.filter, train_tokens=side.tokens, soft=side.soft, own=inputs
    )
    return more, {"name": config.augment, **side.facts()}
