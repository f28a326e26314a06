"""Updates of tabular policies: by the exact expected gradient, by sampled groups, and by the exact inner maximisation of the theory.

Advantages and loss are the network's (``rl.objective``): a sampled move is an episode of one token. The tables P x A of all puzzles are
updated together, but every puzzle has logits of its own, so nothing that happens here is interference between puzzles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from chessrl.config import AlgorithmConfig
from chessrl.errors import UserError
from chessrl.randomness import combine, stream_key, uniform
from chessrl.theory_weights import gradient_weight
from rl.objective import group_advantages, token_terms
from rl.tabular_policy import MoveTable, kl

NO_CLIP = {"ratio": "unclipped"}


# ---- rewards ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reward:
    """What a sampled move is paid: ``values`` (P, A), or 1 with that probability and else 0, anew for every rollout, where ``drawn``."""

    values: Tensor
    drawn: bool = False

    @property
    def binary(self) -> bool:
        return self.drawn or bool(((self.values == 0) | (self.values == 1)).all())


def solving_reward(table: MoveTable) -> Reward:
    """1 for the moves that solve the puzzle."""
    return Reward(table.solving.double())


def random_reward(table: MoveTable, gamma: float) -> Reward:
    """1 with probability ``gamma``, whatever the move."""
    return Reward(torch.full_like(table.logprobs, gamma), drawn=True)


def noisy_reward(table: MoveTable, true_positive: float, false_positive: float) -> Reward:
    """A verifier whose verdict flips at random, rollout by rollout."""
    solving = table.solving.double()
    return Reward(false_positive + (true_positive - false_positive) * solving, drawn=True)


def systematic_reward(table: MoveTable, true_positive: float, false_positive: float, seed: int) -> Reward:
    """A verifier that errs on fixed moves: each solving move is accepted for good with the one probability, each other with the other."""
    puzzles, width = table.logprobs.shape
    key = combine(stream_key(seed, "tabular-verifier", 0, torch.device("cpu")), torch.arange(puzzles * width)).view(puzzles, width)
    accepted = uniform(key) < torch.where(table.solving, true_positive, false_positive)
    return Reward((accepted & table.legal).double())


def wrong_reward(table: MoveTable) -> Reward:
    """1 for the likeliest wrong move of the start policy alone: a label that a wrong majority gave. Puzzles without a wrong move get none."""
    wrong = table.logprobs.masked_fill(table.solving | ~table.legal, 2 * table.logprobs.min().item())
    labels = torch.zeros_like(table.logprobs).scatter_(1, wrong.argmax(1, keepdim=True), 1.0)
    return Reward(torch.where(table.solving | ~table.legal, 0.0, labels))


# ---- the network's advantages ----------------------------------------------------------------------------------------------------------


def advantages_of(rewards: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    """Advantages (groups, G) of rewards (groups, G), as in the network's loop."""
    return group_advantages(rewards, algorithm.advantage, algorithm.std_floor, algorithm.pass_k)


# ---- sampled groups ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draws:
    """Groups sampled from a policy: P puzzles, ``groups`` x G = n samples of each, whole groups one after the other."""

    moves: Tensor  # (P, n) places
    logprobs: Tensor  # (P, n) under the policy that they were sampled from
    rewards: Tensor  # (P, n)
    advantages: Tensor  # (P, n)


def sample_groups(logits: Tensor, reward: Reward, groups: int, algorithm: AlgorithmConfig, seed: int, step: int) -> Draws:
    """Groups of every puzzle. What is drawn is a function of (seed, step, puzzle's row, sample) and the policy alone."""
    puzzles, count = len(logits), groups * algorithm.group
    logprobs = torch.log_softmax(logits, 1)
    rows = combine(stream_key(seed, "tabular", step, logits.device), torch.arange(puzzles))
    keys = combine(rows[:, None], torch.arange(count))  # (P, n)
    cumulative = logprobs.exp().cumsum(1)
    targets = uniform(keys) * cumulative[:, -1:]
    last = (cumulative < cumulative[:, -1:]).sum(1, keepdim=True)  # the last move of probability above 0
    moves = torch.minimum(torch.searchsorted(cumulative, targets, right=True), last)
    rewards = reward.values.gather(1, moves)
    if reward.drawn:
        rewards = (uniform(combine(keys, 0)) < rewards).double()
    advantages = advantages_of(rewards.view(-1, algorithm.group), algorithm)
    return Draws(moves, logprobs.gather(1, moves), rewards, advantages.view(puzzles, count))


def surrogate_loss(logits: Tensor, reference: Tensor, draws: Draws, algorithm: AlgorithmConfig) -> Tensor:
    """The network's loss on sampled moves, averaged over each puzzle's samples and summed over puzzles: a puzzle's gradient is its own.

    The KL is exact over the moves here, where the network must estimate it: beta is taken out of the sampled terms.
    """
    logprobs = torch.log_softmax(logits, 1).gather(1, draws.moves)
    flat = [values.reshape(-1, 1) for values in (logprobs, draws.logprobs, draws.logprobs, draws.advantages)]
    terms = token_terms(*flat, replace(algorithm, beta=0.0))
    loss = terms.loss.view(draws.moves.shape).mean(1).sum()
    return loss + algorithm.beta * kl(logits, reference).sum() if algorithm.beta else loss


def sampled_step(logits: Tensor, reference: Tensor, draws: Draws, algorithm: AlgorithmConfig, rate: float) -> Tensor:
    """epochs x minibatches plain gradient steps on one set of draws; minibatches are parts of its groups. Returns the new logits."""
    groups = draws.moves.shape[1] // algorithm.group
    if groups % algorithm.minibatches:
        raise UserError(f"algorithm.minibatches={algorithm.minibatches}: expected a divisor of tabular.groups={groups}")
    width = draws.moves.shape[1] // algorithm.minibatches
    for _ in range(algorithm.epochs):
        for start in range(0, draws.moves.shape[1], width):
            part = Draws(*(getattr(draws, name)[:, start : start + width] for name in ("moves", "logprobs", "rewards", "advantages")))
            leaf = logits.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(surrogate_loss(leaf, reference, part, algorithm), leaf)
            logits = logits - rate * gradient
    return logits


# ---- the expected gradient --------------------------------------------------------------------------------------------------------------


def advantages_by_count(algorithm: AlgorithmConfig) -> tuple[np.ndarray, np.ndarray]:
    """The network's advantage of a right and of a wrong sample in a group with m right ones, (G + 1,) each by m; 0 where there is nobody."""
    group = algorithm.group
    rewards = torch.tril(torch.ones(group + 1, group, dtype=torch.float64), -1)  # row m: m ones, then zeros
    advantages = advantages_of(rewards, algorithm).numpy()
    right, wrong = advantages[:, 0].copy(), advantages[:, -1].copy()
    right[0], wrong[-1] = 0.0, 0.0
    return right, wrong


def expected_step(logits: Tensor, reference: Tensor, reward: Reward, algorithm: AlgorithmConfig, rate: float) -> Tensor:
    """One plain step along the exact expected gradient of one update on groups of G (``chessrl.theory_weights``): no sampling, no clip.

    Raises UserError for several updates per rollout, whose expectation has no such form, and for rewards that are not 0 or 1.
    """
    if algorithm.epochs * algorithm.minibatches != 1:
        raise UserError("tabular.exact=true: expected algorithm.epochs=1 and algorithm.minibatches=1, for the gradient is that of one update")
    if not reward.binary:
        raise UserError("tabular.exact=true: expected rewards of 0 and 1, such as tabular.reward=solving; sample the others (tabular.exact=false)")
    leaf = logits.detach().requires_grad_(True)
    paid = (torch.softmax(leaf, 1) * reward.values).sum(1)  # q: probability of a reward
    weights = torch.from_numpy(gradient_weight(paid.detach().numpy(), *advantages_by_count(algorithm)))
    objective = (weights * paid).sum() - algorithm.beta * kl(leaf, reference).sum()
    (gradient,) = torch.autograd.grad(objective, leaf)
    return logits + rate * gradient


# ---- the theory's inner maximisation ----------------------------------------------------------------------------------------------------


def population_advantages(logits: Tensor, reward: Reward, smoothing: float, normalise: bool = True) -> Tensor:
    """(P, A): the expected advantage of every move when mean and variance of the reward are the policy's own, not a group's.

    (v - q) / sqrt(Var r + smoothing), q = E v; v - q without ``normalise`` (Dr. GRPO).
    """
    policy = torch.softmax(logits, 1)
    mean = (policy * reward.values).sum(1, keepdim=True)
    if not normalise:
        return reward.values - mean
    square = mean if reward.drawn else (policy * reward.values**2).sum(1, keepdim=True)
    return (reward.values - mean) / (square - mean**2 + smoothing).sqrt()


def maximiser(logits: Tensor, reference: Tensor, advantages: Tensor, beta: float, alpha: float = 0.0) -> Tensor:
    """The policy (P, A), as log-probabilities, that maximises E_pi A - beta KL(pi || reference) - alpha KL(pi || logits)."""
    anchors = beta * torch.log_softmax(reference, 1) + alpha * torch.log_softmax(logits, 1)
    return torch.log_softmax((anchors + advantages) / (alpha + beta), 1)


def forward_maximiser(reference: Tensor, advantages: Tensor, beta: float) -> Tensor:
    """The policy that maximises E_pi A - beta KL(reference || pi): ref beta / (lambda - A), lambda by bisection.

    ``advantages`` of padding must not exceed those of the moves.
    """
    policy = torch.softmax(reference, 1)
    highest = advantages.max(1, keepdim=True).values
    low, high = torch.zeros_like(highest), torch.full_like(highest, beta)  # lambda - highest: the mass is at least, at most 1
    for _ in range(80):
        middle = (low + high) / 2
        above = (policy * beta / (middle + highest - advantages)).sum(1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    lifted = policy * beta / (high + highest - advantages)
    return torch.where(policy > 0, lifted.clamp(min=1e-300).log(), reference)


def ascent_loss(logprobs: Tensor, anchor: Tensor, advantages: Tensor, beta: float, forward: bool) -> Tensor:
    """(P,): minus E_pi A - beta KL, but for a constant, of normalised log-probabilities (P, A) and those of the reference.

    KL(pi || reference); ``forward``: KL(reference || pi), the gradient that the k3 estimator in the loss has on policy.
    """
    penalty = -anchor.exp() * logprobs if forward else logprobs.exp() * (logprobs - anchor)
    return (beta * penalty - logprobs.exp() * advantages).sum(1)


def climb(
    logits: Tensor, reference: Tensor, advantages: Tensor, beta: float, *, steps: int, rate: float, forward: bool = False
) -> Tensor:
    """The same maximum by gradient ascent on ``ascent_loss`` from ``logits``: Adam with a rate that falls to 0 along a cosine."""
    anchor = torch.log_softmax(reference, 1)
    leaf = logits.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([leaf], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        loss = ascent_loss(torch.log_softmax(leaf, 1), anchor, advantages, beta, forward).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return torch.log_softmax(leaf.detach(), 1)


def climb_sampled(
    logits: Tensor, reference: Tensor, reward: Reward, groups: int, algorithm: AlgorithmConfig, *, steps: int, rate: float, seed: int, step: int
) -> Tensor:
    """The inner maximisation by samples: every one of ``steps`` updates has fresh groups of G from the policy ``logits``, unclipped.

    Its fixed weight is W_G in place of 1 / sqrt(p (1 - p)): group statistics are those of G samples.
    """
    unclipped = replace(algorithm, **NO_CLIP)
    leaf = logits.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([leaf], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for number in range(steps):
        draws = sample_groups(logits, reward, groups, unclipped, seed, step * steps + number)
        optimizer.zero_grad()
        surrogate_loss(leaf, reference, draws, unclipped).backward()
        optimizer.step()
        schedule.step()
    return torch.log_softmax(leaf.detach(), 1)
