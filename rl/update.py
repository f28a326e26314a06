"""The update of one rollout: reference log-probabilities, epochs x minibatches of clipped policy-gradient steps, and what they measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chessrl import distributed, notation
from chessrl.config import AlgorithmConfig, OptimizerConfig
from chessrl.model import Transformer, token_entropies, token_logprobs
from chessrl.sampler import Rollout
from chessrl.training import optimizer_step, own_micro_batches
from rl.credit import Credit
from rl.exact_kl import ExactKl, accumulate_kl
from rl.objective import token_terms, token_weights
from rl.shared_prompts import shared_micro_batches, shared_states
from rl.value import Learner

# Sums over a minibatch's tokens; besides value_loss with a value head, and kl_exact with the exact KL.
MEASURES = ("loss", "kl", "kl_from_reference", "clip_ratio/low", "clip_ratio/high", "sampling/logp_difference/mean")


@dataclass(frozen=True, slots=True)
class Batch:
    """Episodes ready for the update, B of them, prompt and answer in one row.

    ``policy`` marks what the policy sampled and trains on; prompt, opponent moves and padding have no part in the loss.
    """

    tokens: Tensor  # (B, L) prompt then episode, <pad> padded
    lengths: Tensor  # (B,)
    policy: Tensor  # (B, L - 1) bool, aligned with the targets tokens[:, 1:]
    sampled: Tensor  # (B, L - 1) log-probabilities stored by the sampler
    prompt_lengths: Tensor  # (B,)
    puzzles: Tensor  # (B,) rows of one puzzle begin with the same prompt
    dropped: int  # sampled tokens whose log-probability is not finite: out of the loss, counted

    def rows(self, places: list[int] | np.ndarray) -> Batch:
        """Some episodes, cut to the longest of them."""
        index = torch.as_tensor(places, device=self.tokens.device)
        length = int(self.lengths[index].max())
        return Batch(
            self.tokens[index, :length], self.lengths[index], self.policy[index, : length - 1], self.sampled[index, : length - 1],
            self.prompt_lengths[index], self.puzzles[index], 0,
        )  # fmt: skip


def build_batch(rollout: Rollout, left_out: Tensor | None = None) -> Batch:
    """Prompt and episode side by side without padding between them: ids go from the sampler to the loss as they are.

    ``left_out`` (B,) bool: episodes that stay out of the loss.
    """
    count = len(rollout.lengths)
    lengths = rollout.prompt_lengths + rollout.lengths
    longest, device = int(lengths.max()), rollout.tokens.device
    width = max(longest, rollout.prompts.shape[1], rollout.tokens.shape[1])
    tokens = torch.full((count, width), notation.PAD, device=device)
    tokens[:, : rollout.prompts.shape[1]] = rollout.prompts
    places = rollout.prompt_lengths[:, None] + torch.arange(rollout.tokens.shape[1], device=device)
    inside = torch.arange(rollout.tokens.shape[1], device=device) < rollout.lengths[:, None]
    rows = torch.arange(count, device=device)[:, None].expand_as(places)
    tokens[rows[inside], places[inside]] = rollout.tokens[inside]
    policy = torch.zeros((count, width), dtype=torch.bool, device=device)
    policy[rows[inside], places[inside]] = rollout.policy[inside]
    sampled = torch.zeros((count, width), device=device)
    sampled[rows[inside], places[inside]] = rollout.logprobs[inside]
    finite = sampled.isfinite()
    dropped = int((policy & ~finite).sum())
    if left_out is not None:
        policy = policy & ~left_out[:, None]
    return Batch(
        tokens=tokens[:, :longest],
        lengths=lengths,
        policy=(policy & finite)[:, 1:longest],
        sampled=torch.where(finite, sampled, 0.0)[:, 1:longest],
        prompt_lengths=rollout.prompt_lengths,
        puzzles=rollout.puzzles,
        dropped=dropped,
    )


def micro_batches(policy: Transformer, batch: Batch, budget: int) -> list[list[int]]:
    """The rows of this process, cut up for forward passes of at most ``budget`` padded tokens."""
    lengths = batch.lengths.tolist()
    if policy.shares_prompts:
        return shared_micro_batches(lengths, batch.prompt_lengths.tolist(), batch.puzzles.tolist(), budget)
    return own_micro_batches(lengths, budget)


def logits_and_values(learner: Learner, part: Batch) -> tuple[Tensor, Tensor | None]:
    """Logits (B, L - 1, vocabulary) of the tokens but the first, and values of the states before them; without meaning in shared prompts."""
    if learner.policy.shares_prompts:
        return learner.of_states(shared_states(learner.policy, part.tokens, part.lengths, part.prompt_lengths, part.puzzles))
    return learner.logits_and_values(part.tokens[:, :-1])


@torch.no_grad()
def score(model: Transformer, batch: Batch, temperature: float, budget: int) -> Tensor:
    """Log-probabilities (B, L - 1) of the batch's tokens under ``model``, 0 in the padding; without meaning in shared prompts."""
    scores = torch.zeros_like(batch.sampled)
    learner = Learner(model, None)
    for places in micro_batches(model, batch, budget):
        part = batch.rows(places)
        logprobs = token_logprobs(logits_and_values(learner, part)[0], part.tokens[:, 1:], temperature)
        scores[torch.as_tensor(places, device=scores.device), : part.sampled.shape[1]] = logprobs.to(scores.dtype)
    return distributed.sum_tensor(scores)


@torch.no_grad()
def score_values(learner: Learner, batch: Batch, budget: int) -> Tensor:
    """Values (B, L - 1) of the states before each of the batch's tokens but the first, 0 in the padding."""
    scores = torch.zeros_like(batch.sampled)
    for places in micro_batches(learner.policy, batch, budget):
        part = batch.rows(places)
        _, values = logits_and_values(learner, part)
        scores[torch.as_tensor(places, device=scores.device), : part.sampled.shape[1]] = values.to(scores.dtype)
    return distributed.sum_tensor(scores)


def minibatches(prompts: int, group: int, parts: int, seed: int, step: int, epoch: int) -> list[np.ndarray]:
    """The episodes of each minibatch of one pass: whole groups, shuffled by (seed, step, epoch) when there is more than one part."""
    order = np.arange(prompts)
    parts = min(parts, prompts)  # a step that kept few groups has fewer parts
    if parts > 1:
        order = np.random.Generator(np.random.Philox(key=[seed, step * 1000 + epoch])).permutation(prompts)
    return [(part[:, None] * group + np.arange(group)).reshape(-1) for part in np.array_split(order, parts)]


def accumulate_gradient(
    learner: Learner, batch: Batch, credit: Credit, reference: Tensor, algorithm: AlgorithmConfig, temperature: float, budget: int,
    exact: ExactKl | None = None,
) -> dict[str, float]:
    """Add the gradient of one minibatch, the same for every size of micro-batch: weights are fixed over the whole before it is cut up.

    Of several processes each adds its share's part of that gradient; the measures are of the whole minibatch. ``exact``: the episodes'
    decisions, for kl=exact. A decision's KL is that of all its tokens, so it counts once with the weight of a token of its episode.

    Returns means over the policy's tokens: loss (weighted as in the objective), KL both ways, clip shares, drift from the sampler; of the
    exact KL (kl_exact) the mean over visited decisions.
    """  # fmt: skip
    weights = token_weights(batch.policy, algorithm.loss_norm, algorithm.loss_budget)
    tokens = max(1, int(batch.policy.sum()))
    sums = dict.fromkeys(MEASURES, 0.0)
    if credit.returns is not None:
        sums["value_loss"] = 0.0
    drift = 0.0
    for places in micro_batches(learner.policy, batch, budget):
        part, index = batch.rows(places), torch.as_tensor(places, device=batch.tokens.device)
        width = part.sampled.shape[1]
        logits, values = logits_and_values(learner, part)
        logprobs = token_logprobs(logits, part.tokens[:, 1:], temperature)
        terms = token_terms(logprobs, part.sampled, reference[index, :width], credit.advantages[index, :width], algorithm, part.policy)
        token_loss = terms.loss
        if algorithm.entropy_bonus:
            token_loss = token_loss - algorithm.entropy_bonus * token_entropies(logits, temperature)
        if credit.returns is not None:
            error = (values - credit.returns[index, :width]).square()
            token_loss = token_loss + algorithm.value_coefficient * error
            sums["value_loss"] += (error.detach().double() * part.policy).sum().item() / tokens
        loss = torch.where(part.policy, token_loss, 0.0) * weights[index, :width]
        loss.sum().backward()
        difference = ((logprobs.detach() - part.sampled).abs() * part.policy).double()
        drift = max(drift, difference.max().item())
        sums["loss"] += loss.detach().double().sum().item()
        sums["kl"] += (terms.kl.detach().double() * part.policy).sum().item() / tokens
        sums["kl_from_reference"] += (terms.kl_from_reference.double() * part.policy).sum().item() / tokens
        sums["clip_ratio/low"] += (terms.clipped_low & part.policy).sum().item() / tokens
        sums["clip_ratio/high"] += (terms.clipped_high & part.policy).sum().item() / tokens
        sums["sampling/logp_difference/mean"] += difference.sum().item() / tokens
    if exact is not None:
        added, sums["kl_exact"] = accumulate_kl(learner.policy, exact, algorithm.beta * weights.amax(1), temperature, budget)
        sums["loss"] += added
    totals = distributed.sum_array(np.array(list(sums.values())))
    return dict(zip(sums, totals.tolist())) | {"sampling/logp_difference/max": distributed.maximum(drift)}


def update(
    learner: Learner,
    optimizer: torch.optim.AdamW,
    batch: Batch,
    credit: Credit,
    reference: Tensor,
    algorithm: AlgorithmConfig,
    settings: OptimizerConfig,
    exact: ExactKl | None = None,
    *,
    rate: float,
    temperature: float,
    budget: int,
    seed: int,
    step: int,
) -> dict[str, float]:
    """epochs x minibatches optimiser steps on one rollout. Returns the mean of their measures; the drift is the first step's, before any update."""
    prompts = len(batch.lengths) // algorithm.group
    measured: list[dict[str, float]] = []
    for epoch in range(algorithm.epochs):
        for rows in minibatches(prompts, algorithm.group, algorithm.minibatches, seed, step, epoch):
            part, index = batch.rows(rows), torch.as_tensor(rows, device=batch.tokens.device)
            decisions = exact.rows(index) if exact is not None else None
            measures = accumulate_gradient(learner, part, credit.rows(index), reference[index], algorithm, temperature, budget, decisions)
            norm = optimizer_step(learner, optimizer, rate, settings.clip)
            measured.append(measures | {"grad_norm": norm.item()})
    means = {key: float(np.mean([measures[key] for measures in measured])) for key in measured[0]}
    first = {key: value for key, value in measured[0].items() if key.startswith("sampling/")}
    return means | first
