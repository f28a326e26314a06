"""GRPO's objective as pure functions of tensors (DeepSeekMath, arXiv 2402.03300, eq. 3; science.md 1.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chessrl.config import AlgorithmConfig
from chessrl.errors import UserError

LOG_RATIO_LIMIT = 20.0  # exp of a larger log-ratio would overflow in the squares of the optimiser


def group_advantages(rewards: Tensor, kind: str, std_floor: float) -> Tensor:
    """Advantages (prompts, group) of rewards (prompts, group), in float64.

    ``group_std``: (r - mean) / std within the group, population std; a group whose std is below ``std_floor`` gets zeros, since what is left of
    equal rewards is rounding. ``group_mean``: r - mean (Dr. GRPO).
    """
    rewards = rewards.double()
    centred = rewards - rewards.mean(1, keepdim=True)
    deviation = rewards.std(1, correction=0, keepdim=True)
    constant = deviation <= std_floor
    if kind == "group_std":
        return torch.where(constant, 0.0, centred / deviation.clamp(min=std_floor))
    if kind == "group_mean":
        return torch.where(constant, 0.0, centred)
    raise UserError(f"algorithm.advantage={kind!r}: expected group_std or group_mean")


def token_weights(policy: Tensor, kind: str, budget: int) -> Tensor:
    """Weight (B, S) of every token of the whole step, 0 where the policy did not sample: one normaliser, independent of micro-batches.

    ``sequence``: 1 / (|o_i| B) (DeepSeekMath); ``token``: 1 / sum of |o_i| (DAPO); ``constant``: 1 / (B budget) (Dr. GRPO).
    """
    count = policy.shape[0]
    lengths = policy.sum(1, keepdim=True).clamp(min=1)
    if kind == "sequence":
        scale = 1.0 / (lengths * count)
    elif kind == "token":
        scale = torch.full_like(lengths, 1.0, dtype=torch.float32) / policy.sum()
    elif kind == "constant":
        scale = torch.full_like(lengths, 1.0, dtype=torch.float32) / (count * budget)
    else:
        raise UserError(f"algorithm.loss_norm={kind!r}: expected sequence, token or constant")
    return policy * scale


@dataclass(frozen=True, slots=True)
class Terms:
    """Per-token parts of the objective, (B, S) each, before weighting."""

    loss: Tensor
    kl: Tensor  # k3 estimate of KL(policy || reference)
    clipped_low: Tensor  # bool: the ratio left the window and the gradient is cut
    clipped_high: Tensor


def token_terms(logprobs: Tensor, sampled: Tensor, reference: Tensor, advantages: Tensor, config: AlgorithmConfig) -> Terms:
    """Clipped surrogate and k3 KL of every token.

    Args: ``logprobs`` (B, S) of the policy, with gradient; ``sampled`` (B, S) those stored by the sampler; ``reference`` (B, S) of the policy
    that RL started from; ``advantages`` (B, 1).
    loss = -min(ratio A, clip(ratio) A) + beta k3, k3 = ref/pi - log(ref/pi) - 1, all log-ratios clamped to +-20 before exp.
    """
    ratio = (logprobs - sampled).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    window = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    surrogate = torch.minimum(ratio * advantages, window * advantages)
    log_ratio = (reference - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    kl = log_ratio.exp() - log_ratio - 1
    return Terms(
        loss=-surrogate + config.beta * kl,
        kl=kl,
        clipped_low=(ratio < 1 - config.clip_low) & (advantages < 0),
        clipped_high=(ratio > 1 + config.clip_high) & (advantages > 0),
    )
