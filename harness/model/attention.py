"""Attention of the transformer library's models, with dropout that is cheap on a CPU.

    A = Dropout(softmax(q k^T s + m)) v          q, k, v [B, H, W, d],  m [B, 1, W, W] or none,  s = 1 / sqrt(d)

torch's fused kernel for CPUs knows no dropout: with it torch falls back to plain products and draws its masks one
number at a time. The library lets a function be registered by name and calls it where a model's config names it, so
its models stay as they are. On other devices, and wherever nothing is dropped, the library's own function runs.
"""

from typing import Any

import torch
from torch import Tensor, nn

from harness.model.dropout import Dropout
from harness.model.dropout import dropout as dropped

FUSED = "sdpa"
"""The library's name of fused attention, as `harness.model.vetting` allows it."""
OURS = "harness_sdpa"
"""The library's checks whether a model may use `sdpa` look for that word in the name."""


def implementation(allowed: str) -> str:
    """What a model is to be loaded with instead of an allowed implementation; only fused attention has a substitute."""
    if allowed != FUSED:
        return allowed
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(OURS, attention)
    AttentionMaskInterface.register(OURS, sdpa_mask)
    return OURS


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """What the library calls in every layer.

    Args:
        module: The attention layer.
        query: [B, H, W, d].
        key: [B, H, W, d].
        value: [B, H, W, d].
        attention_mask: Bool, true where a query may look, or numbers to add to the scores; [B, 1, 1 or W, W].
        dropout: Share of the probabilities to drop; 0 in evaluation.
        scaling: Of the scores; 1 / sqrt(d) if None.
        more: Whatever else the model passes on.

    Returns:
        [B, W, H, d], and no attention weights.
    """
    if not dropout or query.device.type != "cpu" or _special(module, more):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
        return found
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query * scale) @ key.transpose(-1, -2)
    if attention_mask is not None:
        scores += _added(attention_mask, scores.dtype)
    return (dropped(scores.softmax(-1), dropout) @ value).transpose(1, 2).contiguous(), None


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers to add: a sum needs no pass of its own on the way back.

    The lowest number, not minus infinity: padding far behind a text may see no token through a window of attention, and
    a softmax of nothing but minus infinity is not a number, which times zero would reach every token.
    """
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _special(module: nn.Module, more: dict[str, Any]) -> bool:
    """Whether more is asked for than attention in both directions with as many keys as queries."""
    causal = more.get("is_causal")
    return (
        bool(getattr(module, "is_causal", True) if causal is None else causal)
        or getattr(module, "num_key_value_groups", 1) > 1
        or more.get("position_bias") is not None
        or more.get("cache") is not None
    )


def drop_faster(model: nn.Module) -> None:
    """Puts `harness.model.dropout.Dropout` in the place of every `nn.Dropout` inside a model."""
    for part in model.modules():
        for name, child in part.named_children():
            if type(child) is nn.Dropout:
                setattr(part, name, Dropout(child.p).train(child.training))
