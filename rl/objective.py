"""The objective's parts as pure functions of tensors, each in a table by its name in ``algorithm.*``: advantages, ratios, KL, normalisers.

An algorithm is a choice of one entry of each (``conf/algorithm/``); what needs more than a reward per episode is in ``rl.credit``.
The paper of each formula stands in its docstring.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from chessrl.config import AlgorithmConfig
from chessrl.errors import UserError

LOG_RATIO_LIMIT = 20.0  # exp of a larger log-ratio would overflow in the squares of the optimiser


# ---- advantages -------------------------------------------------------------------------------------------------------------------------


def group_advantages(rewards: Tensor, kind: str, std_floor: float, pass_k: int = 1) -> Tensor:
    """Advantages (prompts, group) of rewards (prompts, group), in float64: an entry of ``ADVANTAGES``.

    NaN is a reward that could not be told: it has no part in a baseline, and advantage 0. Std is the population's; where it is at most
    ``std_floor`` there is nothing but rounding left of equal rewards, and the advantage is 0. ``pass_k``: the k of ``pass_at_k``.
    """
    if kind not in ADVANTAGES:
        raise UserError(f"algorithm.advantage={kind!r}: expected one of {', '.join(ADVANTAGES)}")
    return ADVANTAGES[kind](rewards.double(), std_floor, pass_k).nan_to_num(nan=0.0)


def _deviation(rewards: Tensor, dim: int | tuple[int, int] = 1) -> Tensor:
    """Population standard deviation of what is not NaN, kept as a dimension."""
    return (rewards - rewards.nanmean(dim, keepdim=True)).square().nanmean(dim, keepdim=True).sqrt()


def constant_groups(rewards: Tensor, std_floor: float) -> Tensor:
    """(prompts,) bool: groups whose rewards do not vary, or could not be told: they teach nothing relative to each other."""
    return ~(_deviation(rewards.double()).squeeze(1) > std_floor)


def _group_mean(rewards: Tensor, std_floor: float, pass_k: int) -> Tensor:
    """r - mean (Dr. GRPO, arXiv 2503.20783)."""
    return torch.where(_deviation(rewards) <= std_floor, 0.0, rewards - rewards.nanmean(1, keepdim=True))


def _group_std(rewards: Tensor, std_floor: float, pass_k: int) -> Tensor:
    """(r - mean) / std (GRPO, arXiv 2402.03300)."""
    return _group_mean(rewards, std_floor, pass_k) / _deviation(rewards).clamp(min=std_floor)


def _leave_one_out(rewards: Tensor, std_floor: float, pass_k: int) -> Tensor:
    """r - mean of the group's others (RLOO, arXiv 2402.14740); 0 for one that has no others."""
    count = (~rewards.isnan()).sum(1, keepdim=True).double()  # a ratio of integers would be float32
    return _group_mean(rewards, std_floor, pass_k) * (count / (count - 1).clamp(min=1))


def _batch_std(rewards: Tensor, std_floor: float, pass_k: int) -> Tensor:
    """r - mean of the group, over the std of the batch's rewards (ScaleRL, arXiv 2510.13786)."""
    deviation = _deviation(rewards, (0, 1))
    return torch.where(deviation <= std_floor, 0.0, _group_mean(rewards, std_floor, pass_k) / deviation.clamp(min=std_floor))


def _raw(rewards: Tensor, std_floor: float, pass_k: int) -> Tensor:
    """r: REINFORCE, with whatever baseline was taken off before."""
    return rewards


def _pass_at_k(rewards: Tensor, std_floor: float, pass_k: int) -> Tensor:
    """Pass@k training (arXiv 2508.10751), in closed form over all subsets of k: N told rewards in {0, 1}, ``wrong`` of them 0,
    R = 1 - C(wrong, k) / C(N, k), sigma = sqrt(R (1 - R)); A+ = (1 - R) / sigma; A- = (1 - R - C(wrong - 1, k - 1) / C(N - 1, k - 1)) / sigma.

    0 where every subset, or none, has a right one. Raises UserError for other rewards than 0 and 1.
    """
    told = ~rewards.isnan()
    if bool((told & (rewards != 0) & (rewards != 1)).any()):
        raise UserError("algorithm.advantage=pass_at_k needs rewards of 0 and 1: use one binary part with weight 1")
    counts, kind = torch.unique(torch.stack([told.sum(1), (told & (rewards == 0)).sum(1)], 1), dim=0, return_inverse=True)
    values = torch.tensor([_pass_at_k_values(n, wrong, pass_k) for n, wrong in counts.tolist()], dtype=rewards.dtype, device=rewards.device)
    right_value, wrong_value = values[kind].unbind(1)
    advantages = torch.where(rewards == 1, right_value[:, None], wrong_value[:, None])
    return torch.where(told, advantages, 0.0)


def _pass_at_k_values(n: int, wrong: int, k: int) -> tuple[float, float]:
    """(A+, A-) of a group with ``n`` told rewards, ``wrong`` of them 0."""
    if n < k or not 0 < (mean := 1 - math.comb(wrong, k) / math.comb(n, k)) < 1:
        return 0.0, 0.0
    sigma = math.sqrt(mean * (1 - mean))
    return (1 - mean) / sigma, (1 - mean - math.comb(wrong - 1, k - 1) / math.comb(n - 1, k - 1)) / sigma


def _over_mean(rewards: Tensor, std_floor: float, pass_k: int) -> Tensor:
    """r / mean of the group, 0 where that is 0: fine-tuning on what was rewarded, which ascends log p."""
    mean = rewards.nanmean(1, keepdim=True)
    return torch.where(mean > std_floor, rewards / mean.clamp(min=std_floor), 0.0)


ADVANTAGES: dict[str, Callable[[Tensor, float, int], Tensor]] = {
    "group_std": _group_std,
    "group_mean": _group_mean,
    "leave_one_out": _leave_one_out,
    "batch_std": _batch_std,
    "pass_at_k": _pass_at_k,
    "raw": _raw,
    "over_mean": _over_mean,
}


# ---- normaliser -------------------------------------------------------------------------------------------------------------------------


def token_weights(policy: Tensor, kind: str, budget: int) -> Tensor:
    """Weight (B, S) of every token of the whole step, 0 where the policy did not sample: one normaliser, independent of micro-batches.

    ``sequence``: 1 / (|o_i| B) (DeepSeekMath); ``token``: 1 / sum of |o_i| (DAPO); ``constant``: 1 / (B budget) (Dr. GRPO).
    """
    count = policy.shape[0]
    lengths = policy.sum(1, keepdim=True).clamp(min=1)
    if kind == "sequence":
        scale = 1.0 / (lengths * count)
    elif kind == "token":
        scale = torch.full_like(lengths, 1.0, dtype=torch.float32) / policy.sum().clamp(min=1)
    elif kind == "constant":
        scale = torch.full_like(lengths, 1.0, dtype=torch.float32) / (count * budget)
    else:
        raise UserError(f"algorithm.loss_norm={kind!r}: expected sequence, token or constant")
    return policy * scale


# ---- ratio and window -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Surrogate:
    """What is to rise, (B, S) per token, and where its gradient is cut."""

    value: Tensor
    clipped_low: Tensor  # bool (B, S) or (B, 1): the ratio left the window below
    clipped_high: Tensor


def _clipped(ratio: Tensor, advantages: Tensor, config: AlgorithmConfig) -> Surrogate:
    """min(ratio A, clip(ratio) A), with ``dual_clip`` c no less than c A where A < 0 (PPO, arXiv 1707.06347; dual: 1912.09729)."""
    window = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    value = torch.minimum(ratio * advantages, window * advantages)
    low, high = (ratio < 1 - config.clip_low) & (advantages < 0), (ratio > 1 + config.clip_high) & (advantages > 0)
    if config.dual_clip:
        value = torch.where(advantages < 0, torch.maximum(value, config.dual_clip * advantages), value)
        high = high | ((ratio > config.dual_clip) & (advantages < 0))
    return Surrogate(value, low, high)


def _token(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, policy: Tensor, config: AlgorithmConfig) -> Surrogate:
    """Each token's ratio in its window (GRPO; with clip_high > clip_low DAPO, arXiv 2503.14476)."""
    return _clipped(_exp(log_ratio), advantages, config)


def _sequence(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, policy: Tensor, config: AlgorithmConfig) -> Surrogate:
    """(pi / pi_old)^(1 / |o|) of the whole answer, at each of its tokens (GSPO, arXiv 2507.18071): with loss_norm=sequence its loss."""
    mean = torch.where(policy, log_ratio, 0.0).sum(1, keepdim=True) / policy.sum(1, keepdim=True).clamp(min=1)
    return _clipped(_exp(mean).expand_as(logprobs), advantages, config)


def _cispo(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, policy: Tensor, config: AlgorithmConfig) -> Surrogate:
    """stop-gradient(clip(ratio)) A log pi (CISPO, arXiv 2506.13585): a token beyond the window keeps its gradient, with bounded weight."""
    ratio = _exp(log_ratio.detach())
    weight = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    return Surrogate(weight * advantages * logprobs, ratio < 1 - config.clip_low, ratio > 1 + config.clip_high)


def _unclipped(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, policy: Tensor, config: AlgorithmConfig) -> Surrogate:
    """ratio A: importance sampling without a window, the ablation of arXiv 2506.10947."""
    never = torch.zeros_like(policy)
    return Surrogate(_exp(log_ratio) * advantages, never, never)


def _log_prob(logprobs: Tensor, log_ratio: Tensor, advantages: Tensor, policy: Tensor, config: AlgorithmConfig) -> Surrogate:
    """A log pi: REINFORCE (RLOO, ReMax)."""
    never = torch.zeros_like(policy)
    return Surrogate(advantages * logprobs, never, never)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


RATIOS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, AlgorithmConfig], Surrogate]] = {
    "token": _token,
    "sequence": _sequence,
    "cispo": _cispo,
    "unclipped": _unclipped,
    "log_prob": _log_prob,
}


# ---- KL and the loss of a token ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """Per-token parts of the objective, (B, S) each, before weighting."""

    loss: Tensor
    kl: Tensor  # k3 estimate of KL(policy || reference)
    kl_from_reference: Tensor  # estimate of KL(reference || policy) from the policy's samples, as free of noise as k3
    clipped_low: Tensor  # bool: the ratio left the window and the gradient is cut
    clipped_high: Tensor


def token_terms(
    logprobs: Tensor, sampled: Tensor, reference: Tensor, advantages: Tensor, config: AlgorithmConfig, policy: Tensor | None = None
) -> Terms:
    """Surrogate and KL of every token.

    Args: ``logprobs`` (B, S) of the policy, with gradient; ``sampled`` (B, S) those stored by the sampler; ``reference`` (B, S) of the
    reference policy; ``advantages`` (B, 1) or (B, S); ``policy`` (B, S) bool, the sampled tokens, all of them where it is not given.
    loss = -surrogate + beta KL, all log-ratios clamped to +-20 before exp. With x sampled by pi and w = ref / pi:
    k3 = w - log w - 1 has mean KL(pi || ref), but its gradient in a loss is that of KL(ref || pi); k2 = (log w)^2 / 2 has the gradient of
    KL(pi || ref); w log w - w + 1 has mean KL(ref || pi). With ``kl=k1_reward`` the loss has no KL term: ``rl.credit`` took it off the reward;
    nor with ``kl=exact``: ``rl.exact_kl`` adds it.
    """
    if policy is None:
        policy = torch.ones_like(logprobs, dtype=torch.bool)
    surrogate = RATIOS[config.ratio](logprobs, logprobs - sampled, advantages, policy, config)
    log_ratio = (reference - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    kl = ratio - log_ratio - 1
    loss = -surrogate.value
    if config.kl == "k3":
        loss = loss + config.beta * kl
    elif config.kl == "k2":
        loss = loss + config.beta * log_ratio.square() / 2
    return Terms(
        loss=loss,
        kl=kl,
        kl_from_reference=(ratio * log_ratio - ratio + 1).detach(),
        clipped_low=surrogate.clipped_low,
        clipped_high=surrogate.clipped_high,
    )
