"""From the rewards of episodes to the advantages of their tokens: KL taken off the reward, baselines, returns, generalised advantages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chessrl.config import AlgorithmConfig
from rl.objective import group_advantages


@dataclass(frozen=True, slots=True)
class Credit:
    """What B episodes are worth. ``advantages`` (B, 1), or (B, S) where every token has its own; ``returns`` (B, S) that a value head learns."""

    advantages: Tensor  # float32
    returns: Tensor | None = None

    def rows(self, index: Tensor) -> Credit:
        """The credit of some episodes."""
        return Credit(self.advantages[index], None if self.returns is None else self.returns[index])


def assign(
    rewards: Tensor, policy: Tensor, sampled: Tensor, reference: Tensor, algorithm: AlgorithmConfig, values: Tensor | None = None
) -> Credit:
    """The credit of every token.

    Args: ``rewards`` (prompts, group), NaN where one could not be told; ``policy`` (B, S) bool, the sampled tokens; ``sampled`` and
    ``reference`` (B, S) log-probabilities under the policy that sampled and the reference; ``values`` (B, S) of the value head, for gae.
    """
    kl = torch.where(policy, sampled - reference, 0.0).double() * (algorithm.beta if algorithm.kl == "k1_reward" else 0.0)
    if algorithm.advantage not in ("whitened_returns", "gae"):
        paid = rewards.double() - kl.sum(1).view_as(rewards) if algorithm.kl == "k1_reward" else rewards
        return Credit(group_advantages(paid, algorithm.advantage, algorithm.std_floor, algorithm.pass_k).flatten().float()[:, None])
    flat = rewards.double().flatten()
    told = policy & ~flat.isnan()[:, None]
    earned = token_rewards(flat.nan_to_num(nan=0.0), policy) - kl
    if algorithm.advantage == "whitened_returns":
        returns = discounted_returns(earned, policy, algorithm.gamma)
        return Credit(whitened(returns, told, algorithm.std_floor).float())
    if values is None:
        raise ValueError("advantage=gae needs the values of a value head")
    advantages, returns = generalised_advantages(earned, values.double(), policy, algorithm.gamma, algorithm.gae_lambda)
    return Credit(torch.where(told, advantages, 0.0).float(), torch.where(told, returns, values.double()).float())


def token_rewards(rewards: Tensor, policy: Tensor) -> Tensor:
    """(B, S) float64: the episode's reward (B,) at its last sampled token, where it was earned."""
    places = torch.arange(policy.shape[1], device=policy.device)
    last = torch.where(policy, places, -1).amax(1, keepdim=True)
    return torch.where(policy & (places == last), rewards[:, None], 0.0)


def discounted_returns(rewards: Tensor, policy: Tensor, gamma: float) -> Tensor:
    """(B, S) rewards from each sampled token on, discounted per sampled token; the environment's tokens are no steps. 0 elsewhere."""
    returns = torch.zeros_like(rewards)
    ahead = torch.zeros_like(rewards[:, 0])
    for place in reversed(range(policy.shape[1])):
        ahead = torch.where(policy[:, place], rewards[:, place] + gamma * ahead, ahead)
        returns[:, place] = torch.where(policy[:, place], ahead, 0.0)
    return returns


def whitened(values: Tensor, told: Tensor, std_floor: float) -> Tensor:
    """(value - mean) / std over all told tokens of the batch, 0 elsewhere (REINFORCE++, arXiv 2501.03262)."""
    kept = values[told]
    if len(kept) == 0 or (deviation := kept.std(correction=0)) <= std_floor:
        return torch.zeros_like(values)
    return torch.where(told, (values - kept.mean()) / deviation, 0.0)


def generalised_advantages(rewards: Tensor, values: Tensor, policy: Tensor, gamma: float, gae_lambda: float) -> tuple[Tensor, Tensor]:
    """Advantages and returns (B, S) of GAE (Schulman et al., arXiv 1506.02438), 0 where the policy did not sample.

    A_t = sum_l (gamma lambda)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t over the sampled tokens of an episode, with value 0 after the
    last; ``values`` (B, S) is V before each token. Returns are A + V.
    """
    advantages = torch.zeros_like(values)
    ahead, next_value = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for place in reversed(range(policy.shape[1])):
        here = policy[:, place]
        delta = rewards[:, place] + gamma * next_value - values[:, place]
        ahead = torch.where(here, delta + gamma * gae_lambda * ahead, ahead)
        next_value = torch.where(here, values[:, place], next_value)
        advantages[:, place] = torch.where(here, ahead, 0.0)
    return advantages, torch.where(policy, advantages + values, 0.0)
