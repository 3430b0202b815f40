"""Attention of the transformer library's models, with dropout that is cheap on a CPU.

    A = Dropout(softmax(q k^T s + m)) v          q, k, v [B, H, W, d],  m [B, 1, W, W] or none,  s = 1 / sqrt(d)

torch's fused kernel for CPUs knows no dropout: with it torch falls back to plain products and draws its masks one
number at a time. The library lets a function be registered by name and calls it where a model's config names it, so
its models stay as they are. On other devices, and wherever nothing is dropped, the library's own function runs.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from harness.model.dropout import Dropout, drawn_mask, kept_scale

FUSED = "sdpa"
"""The library's name of fused attention, as `harness.model.encoders.pretrained` allows it."""
OURS = "harness_sdpa"
"""Our name; it contains `sdpa`, because the library looks for that word to check whether a model may use it."""
_BLOCK_ELEMENTS = 1 << 21
"""Probabilities processed together: 8 MiB. With fewer, threads wait for each other more than for memory."""


def implementation(allowed: str) -> str:
    """Return the attention that a model is loaded with; only fused attention is replaced by ours."""
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
    """Compute attention; the library calls this in every layer.

    Args:
        module: The attention layer.
        query: Queries q, [B, H, W, d].
        key: Keys k, [B, H, W, d].
        value: Values v, [B, H, W, d].
        attention_mask: Bool, true where a query may look, or numbers to add to the scores; [B, 1, 1 or W, W].
        dropout: Share of the probabilities to drop; 0 in evaluation.
        scaling: Factor of the scores; 1 / sqrt(d) if None.
        more: Further arguments of the model.

    Returns:
        The result [B, W, H, d], and None in place of attention weights.
    """
    if not dropout or query.device.type != "cpu" or query.element_size() < 4 or _special(module, more):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
        )
        return found
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    added = None if attention_mask is None else _added(attention_mask, query.dtype)
    seed = int(torch.randint(torch.iinfo(torch.int64).max, ()))
    attended: Tensor = _Attention.apply(query, key, value, added, scale, dropout, seed)  # type: ignore[no-untyped-call]
    return attended, None


class _Attention(torch.autograd.Function):
    """Attention with dropout, some texts at a time, so that their W x W numbers stay in the cache from pass to pass.

    With P the probabilities, K the mask, c = 1 / (share kept), and G the gradient of the result times c:

        A = c (P K) v    dv = (P K)^T G    R = P K (G v^T)    dS = R - P sum_j R_j    dq = s dS k    dk = s dS^T q
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None, scale: float, p: float, seed: int
    ) -> Tensor:
        query, key, value = (part.contiguous() for part in (query, key, value))
        count, heads, width, _ = query.shape
        probabilities, result = query.new_empty(count, heads, width, width), torch.empty_like(query)
        keep = torch.empty(probabilities.shape, dtype=torch.uint8)
        bits = np.random.SFC64(seed)
        for rows, (scratch,) in _blocks(probabilities, 1):
            scores, flat = probabilities[rows], partial(_flat, rows)
            torch.bmm(flat(query) * scale, flat(key).mT, out=flat(probabilities))
            if added is not None:
                scores += added[rows] if len(added) > 1 else added
            torch.softmax(scores, -1, out=scores)
            keep[rows] = drawn_mask(scores.shape, p, bits)
            torch.bmm(scratch.copy_(keep[rows]).mul_(scores).flatten(0, 1), flat(value), out=flat(result))
        ctx.scales = scale, kept_scale(p)
        ctx.save_for_backward(query, key, value, probabilities, keep)
        return result.mul_(kept_scale(p)).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (query, key, value, probabilities, keep), (scale, kept) = ctx.saved_tensors, ctx.scales
        upstream = (gradient.transpose(1, 2) * kept).contiguous()
        d_query, d_key, d_value = (torch.empty_like(query) for _ in range(3))
        for rows, (survivors, slope) in _blocks(probabilities, 2):
            flat = partial(_flat, rows)
            survivors.copy_(keep[rows]).mul_(probabilities[rows])
            torch.bmm(survivors.flatten(0, 1).mT, flat(upstream), out=flat(d_value))
            torch.bmm(flat(upstream), flat(value).mT, out=slope.flatten(0, 1))
            slope.mul_(survivors)
            slope.addcmul_(probabilities[rows], slope.sum(-1, keepdim=True), value=-1)
            torch.bmm(slope.flatten(0, 1), flat(key), out=flat(d_query))
            torch.bmm(slope.flatten(0, 1).mT, flat(query), out=flat(d_key))
        return d_query.mul_(scale), d_key.mul_(scale), d_value, None, None, None, None


def _blocks(probabilities: Tensor, scratches: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of texts to process together, with scratch memory [scratches, b, H, W, W] for them."""
    count, heads, width, _ = probabilities.shape
    step = min(count, max(1, _BLOCK_ELEMENTS // (heads * width * width)))
    scratch = probabilities.new_empty(scratches, step, heads, width, width)
    for start in range(0, count, step):
        yield slice(start, start + step), scratch[:, : min(step, count - start)]


def _flat(rows: slice, part: Tensor) -> Tensor:
    """View some texts of a contiguous tensor [B, H, W, n] as a batch of matrices [b H, W, n]."""
    return part[rows].flatten(0, 1)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as numbers to add to the scores: a sum needs no pass of its own on the way back.

    The lowest number, not minus infinity: padding far behind a text may see no token through a window of attention, and
    a softmax of nothing but minus infinity is not a number, which times zero would reach every token.
    """
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _special(module: nn.Module, more: dict[str, Any]) -> bool:
    """Return whether more is asked for than attention in both directions with as many keys as queries."""
    causal = more.get("is_causal")
    return (
        bool(getattr(module, "is_causal", True) if causal is None else causal)
        or getattr(module, "num_key_value_groups", 1) > 1
        or more.get("position_bias") is not None
        or more.get("cache") is not None
    )


def drop_faster(model: nn.Module) -> None:
    """Replace every `nn.Dropout` inside a model by `harness.model.dropout.Dropout`."""
    for part in model.modules():
        for name, child in part.named_children():
            if type(child) is nn.Dropout:
                setattr(part, name, Dropout(child.p).train(child.training))
