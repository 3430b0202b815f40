"""SoftTop-k of DEXML: positives should be among the k best labels, by how much does not matter.

C_i are the candidates of query i: its negatives and up to k of its positives, D_i, drawn anew at every step. A
threshold t_i makes k of them pass on average, and a positive pays for not passing:

    sum_{l in C_i} z_il = k,    z_il = sigmoid(alpha (s_il + t_i)),    loss = mean_i sum_{p in D_i} q_ip (-log z_ip)

q_ip = y_ip / sum_{p in D_i} y_ip with y the targets, or 1: targets weigh, they do not draw. The mean runs over the R
queries with a positive. With no more than k candidates all of them pass (t = inf), loss and gradient are 0.
With v = z (1 - z) and u_ip = alpha q_ip (1 - z_ip) / R, where p is drawn,

    d loss / d s_il = (sum_p u_ip) v_il / sum_l v_il  -  [l in D_i] u_il.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from harness.errors import UserError
from harness.loss.closed_form import (
    Evaluated,
    Pairs,
    candidates,
    differentiable,
    pair_targets,
    positive_pairs,
    precision,
    pushed_and_pulled,
    pushes_of,
)
from harness.loss.draws import draw_some
from harness.loss.softmax import averaged

_MOST_STEPS = 32
"""Most steps of Newton's method; it ends as soon as no row changes, usually after four."""
RestSums = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps t [B, 1] to the sums of z and of z^2, [B, 1] each, over the candidates that are not among the k best."""


@dataclass(frozen=True)
class _Solved:
    """A threshold in parts, which keep more digits than t: t = logit / alpha - runner_up."""

    runner_up: Tensor
    """The best score after the k best, [B, 1]; 0 where all pass."""
    logit: Tensor
    """Logit alpha (s + t) of the runner-up, [B, 1]; inf where all pass."""
    slopes: Tensor
    """Slopes v = z (1 - z), times a factor of the row, [B, P]."""


def soft_topk(
    scores: Tensor,
    positive: Tensor,
    *,
    ignored: Tensor | None = None,
    target: Tensor | None = None,
    k: int = 5,
    alpha: float = 2.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the loss of a batch.

    Args:
        scores: Scores, [B, P].
        positive: Positives, [B, P], bool.
        ignored: Pairs that do not count, [B, P], bool, or None.
        target: Targets, [B, P], floating point, or None.
        k: Number of labels that pass.
        alpha: Steepness of the sigmoid at the threshold.
        generator: Random generator on the CPU, which gives B times k values; None = torch's global one.
    """
    if k < 1 or not alpha > 0:
        raise UserError(f"soft-topk needs k >= 1 and alpha > 0, not {k} and {alpha}")
    pairs = positive_pairs(scores, positive, ignored)
    targets = pair_targets(scores, pairs, target)
    drawn = draw_some(pairs[0], len(scores), k, generator)
    chosen, absent = _select(pairs, drawn), _select(pairs, ~drawn)
    count = torch.bincount(chosen[0], minlength=len(scores)).to(precision(scores))
    each = 1 / count.count_nonzero().to(count.dtype)
    shares = averaged(None if targets is None else targets[drawn], chosen[0], count, each)
    solve = partial(_solve, k=k, alpha=alpha)
    return differentiable(scores, partial(_evaluate, chosen, shares, absent, ignored, solve, alpha))


def solve_threshold(scores: Tensor, k: int, alpha: float) -> Tensor:
    """Solve sum_l sigmoid(alpha (s_l + t)) = k for the t of every row, [B, 1]; inf with no more than k candidates.

    Args:
        scores: Scores, [B, P]; -inf = no candidate.
        k: Number of labels that pass, between 1 and P.
        alpha: Steepness, above 0.
    """
    solved = _solve(scores.clone(), k, alpha)
    return solved.logit / alpha - solved.runner_up


def balance(best: Tensor, rest_sums: RestSums, start: Tensor) -> Tensor:
    """Solve sum_l z_l = k, z_l = sigmoid(a_l + t), for the t of every row, [B, 1].

    The sum is k where the rest lets through what the k best lack. Compared as logarithms, both sides keep their digits
    however small they are, while k minus a sum of nearly ones does not:

        f(t) = log sum_rest z - log sum_best (1 - z) = 0,    f' = 1 - <z>_rest + <z>_best,

    means weighted by z and by 1 - z. No z of the rest is larger than one of the best, so 1 <= f' < 2: there is one
    root, and Newton's method finds it in about four steps, where halving an interval takes 32. The rest enters through
    its sums alone, which may be taken in blocks of labels.

    Args:
        best: The k largest alpha s of every row, [B, k].
        rest_sums: Sums over the other candidates. The caller leaves out rows without any.
        start: First guess, [B, 1]: best (log sum_best e^-a - log sum_rest e^a) / 2, the root where the threshold
            lies in a wide gap, with sigmoid(a) = e^a below and sigmoid(-a) = e^-a above. It is kept where sums vanish.
    """
    limits = torch.finfo(best.dtype)
    t = start
    for _ in range(_MOST_STEPS):
        lack = torch.sigmoid(-best - t)
        lacking = lack.sum(1, keepdim=True).clamp(min=limits.tiny)
        passing, squares = rest_sums(t)
        passing = passing.clamp(min=limits.tiny)
        slope = 2 - squares / passing - lack.square().sum(1, keepdim=True) / lacking
        step = (passing.log() - lacking.log()) / slope.clamp(1, 2)
        t = t - step
        if (step.abs() <= 0.1 * limits.eps**0.5).all():  # the next step would be about its square
            break
    return t


def _solve(scores: Tensor, k: int, alpha: float) -> _Solved:
    """Solve for the threshold of every row of `scores` [B, P], -inf = no candidate; they are overwritten."""
    if scores.shape[1] <= k:
        none = scores.new_zeros(len(scores), 1)
        return _Solved(none, none + math.inf, torch.zeros_like(scores))
    best, place = scores.topk(k + 1, 1)
    all_pass = best[:, k:].isneginf()
    runner_up = best[:, k:].masked_fill(all_pass, 0.0)
    best = (best[:, :k] - runner_up).mul_(alpha).masked_fill_(all_pass, 0.0)
    odds = scores.sub_(runner_up).mul_(alpha).exp_().masked_fill_(all_pass, 1.0).scatter_(1, place[:, :k], 0.0)
    buffer = torch.empty_like(odds)

    def rest_sums(t: Tensor) -> tuple[Tensor, Tensor]:
        """With odds o = e^a counted from the runner-up and u = e^t, z = u o / (1 + o u): no exponential but u."""
        factor = t.exp()
        share = torch.div(odds, torch.mul(odds, factor, out=buffer).add_(1), out=buffer)
        norm = torch.linalg.vector_norm(share, dim=1, keepdim=True)
        return factor * share.sum(1, keepdim=True), (factor * norm).square_()

    start = ((-best).logsumexp(1, keepdim=True) - odds.sum(1, keepdim=True).log()) / 2
    logit = balance(best, rest_sums, start)
    # v / u: o / (1 + o u)^2 in the rest
    slopes = odds.div_(torch.mul(odds, logit.exp(), out=buffer).add_(1).square_())
    passing = best + logit
    slopes.scatter_(1, place[:, :k], (functional.logsigmoid(passing) + functional.logsigmoid(-passing) - logit).exp())
    return _Solved(runner_up, logit.masked_fill(all_pass, math.inf), slopes)


def _select(pairs: Pairs, kept: Tensor) -> Pairs:
    return pairs[0][kept], pairs[1][kept]


def _evaluate(
    chosen: Pairs,
    shares: Tensor,
    absent: Pairs,
    ignored: Tensor | None,
    solve: Callable[[Tensor], _Solved],
    alpha: float,
    scores: Tensor,
) -> Evaluated:
    shape, row = scores.shape, chosen[0]
    if not len(row):
        return Evaluated(scores.new_zeros(()), lambda upstream: upstream.new_zeros(shape))
    solved = solve(candidates(scores, absent, ignored))
    failing = alpha * (solved.runner_up[row, 0] - scores[chosen]) - solved.logit[row, 0]
    value = -(shares * functional.logsigmoid(-failing)).sum()
    pull = alpha * shares * torch.sigmoid(failing)
    push = pushes_of(row, pull, solved.slopes.sum(1)).unsqueeze(1)
    return Evaluated(value, partial(pushed_and_pulled, chosen, pull, [push]), (solved.slopes,))
