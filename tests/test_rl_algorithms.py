"""Every algorithm of ``conf/algorithm`` against its paper's formula in plain Python loops: loss, and gradient by finite differences.

The references below know nothing of tensors, masks or masked sums: an episode is a list of (last token, token) choices of the policy.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch

from chessrl.config import AlgorithmConfig
from chessrl.launch import CONF, compose
from rl.credit import assign
from rl.objective import token_terms
from rl.update import accumulate_gradient, score_values
from rl.value import Learner
from tests.toy_policy import PROMPT, ToyPolicy, nearby, sequence_logprobs, toy_batch, toy_value_head

ALGORITHMS = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml"))
GROUP = 4
SEQUENCES = [[1, 2, 3], [2], [1, 3, 3, 0, 2], [3, 1], [2, 2, 1, 3], [1, 1], [3], [2, 0, 1]]  # two groups of four, unequal lengths
FORCED = [{1}, set(), {2, 3}, set(), set(), set(), set(), {1}]  # places that the environment wrote
REWARDS = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
GREEDY = [1.0, 0.0]  # what the greedy episode of each group earned
BUDGET = 16


@dataclass
class Episode:
    choices: list[tuple[int, int]]  # (last token, token that the policy chose)
    reward: float
    group: int


EPISODES = [
    Episode([(([PROMPT, *tokens])[place], token) for place, token in enumerate(tokens) if place not in given], reward, number // GROUP)
    for number, (tokens, given, reward) in enumerate(zip(SEQUENCES, FORCED, REWARDS))
]


# ---- the formulas -----------------------------------------------------------------------------------------------------------------------


class PlainPolicy:
    """A ToyPolicy's numbers as lists: what the formulas compute with, and finite differences move."""

    def __init__(self, policy: ToyPolicy, head=None):
        self.table, self.out = policy.table.tolist(), policy.out.tolist()
        self.head = None if head is None else [*head.linear.weight[0].tolist(), head.linear.bias.item()]

    def logp(self, last: int, token: int) -> float:
        logits = [sum(h * row[v] for h, row in zip(self.table[last], self.out)) for v in range(len(self.out[0]))]
        return logits[token] - math.log(sum(math.exp(x) for x in logits))

    def value(self, last: int) -> float:
        return sum(h * w for h, w in zip(self.table[last], self.head)) + self.head[-1]

    def places(self):
        rows = [(row, place) for row in self.table + self.out for place in range(len(row))]
        return rows + [(self.head, place) for place in range(len(self.head or []))]


def mean(values):
    return sum(values) / len(values)


def deviation(values):
    return math.sqrt(mean([(value - mean(values)) ** 2 for value in values]))


def logps(policy, episode):
    return [policy.logp(last, token) for last, token in episode.choices]


def in_group(values, number):
    return [values[other] for other, episode in enumerate(EPISODES) if episode.group == EPISODES[number].group]


def ppo_clip(ratio, advantage, low, high):
    return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def advantages_of(name, old, reference, config):
    """Per episode, a list with one advantage per choice; for PPO also the returns."""
    rewards = [episode.reward for episode in EPISODES]
    if name in ("rloo", "remax"):  # the answer's KL is taken off its reward
        for number, episode in enumerate(EPISODES):
            rewards[number] -= config.beta * (sum(logps(old, episode)) - sum(logps(reference, episode)))
    if name in ("grpo", "dapo", "gspo", "cispo"):
        flat = [(r - mean(in_group(rewards, i))) / deviation(in_group(rewards, i)) for i, r in enumerate(rewards)]
    elif name == "dr_grpo":
        flat = [r - mean(in_group(rewards, i)) for i, r in enumerate(rewards)]
    elif name == "batch_std":
        flat = [(r - mean(in_group(rewards, i))) / deviation(rewards) for i, r in enumerate(rewards)]
    elif name == "online_rft":
        flat = [r / mean(in_group(rewards, i)) for i, r in enumerate(rewards)]
    elif name == "rloo":
        flat = [r - (sum(in_group(rewards, i)) - r) / (GROUP - 1) for i, r in enumerate(rewards)]
    elif name == "remax":
        flat = [r - GREEDY[EPISODES[i].group] for i, r in enumerate(rewards)]
    elif name == "pass_at_k":
        flat = [0.0] * len(rewards)
        for group in (0, 1):
            members = [number for number, episode in enumerate(EPISODES) if episode.group == group]
            best = {subset: max(rewards[i] for i in subset) for subset in itertools.combinations(members, config.pass_k)}
            centre, spread = mean(list(best.values())), deviation(list(best.values()))
            for i in members:
                flat[i] = mean([(value - centre) / spread for subset, value in best.items() if i in subset])
    elif name == "reinforce_pp":
        returns = []
        for episode in EPISODES:
            kl = [config.beta * (a - b) for a, b in zip(logps(old, episode), logps(reference, episode))]
            returns.append([episode.reward - sum(kl[place:]) for place in range(len(kl))])
        everything = [value for row in returns for value in row]
        return [[(value - mean(everything)) / deviation(everything) for value in row] for row in returns], None
    elif name == "ppo":
        advantages, returns = [], []
        for episode in EPISODES:
            values = [old.value(last) for last, _ in episode.choices] + [0.0]
            earned = [-config.beta * (a - b) for a, b in zip(logps(old, episode), logps(reference, episode))]
            earned[-1] += episode.reward
            delta = [r + config.gamma * values[t + 1] - values[t] for t, r in enumerate(earned)]
            decay = config.gamma * config.gae_lambda
            advantages.append([sum(decay ** (later - t) * delta[later] for later in range(t, len(delta))) for t in range(len(delta))])
            returns.append([a + v for a, v in zip(advantages[-1], values)])
        return advantages, returns
    return [[value] * len(EPISODES[number].choices) for number, value in enumerate(flat)], None


def plain_loss(name, policy, base, old, reference, config):
    """The loss at ``policy``. What a paper's stop-gradient holds is taken at ``base``, and all advantages at ``old``."""
    advantages, returns = advantages_of(name, old, reference, config)
    losses = []
    for number, episode in enumerate(EPISODES):
        now, before, start, held = (logps(of, episode) for of in (policy, old, reference, base))
        tokens = []
        for t, advantage in enumerate(advantages[number]):
            ratio = math.exp(now[t] - before[t])
            if name in ("rloo", "remax", "online_rft"):
                loss = -advantage * now[t]
            elif name == "cispo":
                loss = -min(math.exp(held[t] - before[t]), 1 + config.clip_high) * advantage * now[t]
            elif name == "gspo":
                loss = -ppo_clip(math.exp(mean(now) - mean(before)), advantage, config.clip_low, config.clip_high)
            else:
                loss = -ppo_clip(ratio, advantage, config.clip_low, config.clip_high)
            if name in ("grpo", "batch_std"):
                loss += config.beta * (math.exp(start[t] - now[t]) - (start[t] - now[t]) - 1)
            if name == "ppo":
                loss += config.value_coefficient * (policy.value(episode.choices[t][0]) - returns[number][t]) ** 2
            tokens.append(loss)
        losses.append(tokens)
    if name in ("grpo", "gspo", "batch_std", "online_rft"):
        return mean([mean(tokens) for tokens in losses])
    if name in ("dr_grpo", "rloo", "remax"):
        return sum(map(sum, losses)) / (len(losses) * config.loss_budget)
    return mean([loss for tokens in losses for loss in tokens])


def finite_differences(name, policy, old, reference, config, step=1e-5):
    moved = copy.deepcopy(policy)
    gradient = []
    for row, place in moved.places():
        value = row[place]
        sides = []
        for side in (1, -1):
            row[place] = value + side * step
            sides.append(plain_loss(name, moved, policy, old, reference, config))
        row[place] = value
        gradient.append((sides[0] - sides[1]) / (2 * step))
    return gradient


# ---- ours against them ------------------------------------------------------------------------------------------------------------------


def algorithm_of(name: str) -> AlgorithmConfig:
    config = compose("rl", [f"algorithm={name}"]).algorithm
    changes = {"beta": 0.3 if config.beta else 0.0, "loss_budget": BUDGET, "pass_k": 2 if name == "pass_at_k" else 1}
    if name == "cispo":
        changes["clip_high"] = 0.1  # its bound of 5 would never be met here
    return replace(config, group=GROUP, **changes)


def policies(name: str):
    """The policy that is updated, the one that sampled, the reference, and value heads of the first two."""
    old = ToyPolicy(1)
    heads = (toy_value_head(7), toy_value_head(8)) if name == "ppo" else (None, None)
    return nearby(old, 5, 0.4), old, nearby(old, 3, 0.3), *heads


def our_gradient(name: str, config: AlgorithmConfig, budget: int = 10_000):
    policy, old, reference, head, old_head = policies(name)
    batch = toy_batch(SEQUENCES, FORCED, old)
    rewards = torch.tensor(REWARDS, dtype=torch.float64).view(-1, GROUP)
    if config.baseline == "greedy":
        rewards = rewards - torch.tensor(GREEDY, dtype=torch.float64)[:, None]
    start = torch.where(batch.policy, sequence_logprobs(reference, batch.tokens).detach(), 0.0)
    values = score_values(Learner(old, old_head), batch, budget) if old_head else None
    credit = assign(rewards, batch.policy, batch.sampled, start, config, values)
    learner = Learner(policy, head)
    measures = accumulate_gradient(learner, batch, credit, start, config, 1.0, budget)
    return measures, torch.cat([parameter.grad.flatten() for parameter in learner.parameters()])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_loss_and_gradient_equal_the_papers_formula(name):
    config = algorithm_of(name)
    policy, old, reference, head, old_head = policies(name)
    plain, plain_old, plain_reference = PlainPolicy(policy, head), PlainPolicy(old, old_head), PlainPolicy(reference)
    measures, gradient = our_gradient(name, config)
    assert measures["loss"] == pytest.approx(plain_loss(name, plain, plain, plain_old, plain_reference, config), abs=1e-6)
    expected = torch.tensor(finite_differences(name, plain, plain_old, plain_reference, config), dtype=torch.float64)
    assert expected.abs().max() > 1e-3
    assert torch.allclose(gradient, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo"])
def test_the_toy_really_clips(name):
    """Otherwise the test above would not see a wrong window."""
    measures, _ = our_gradient(name, algorithm_of(name))
    assert measures["clip_ratio/high"] > 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_of_unequal_lengths_give_one_gradient(name):
    config = replace(algorithm_of(name), entropy_bonus=0.1)
    _, whole = our_gradient(name, config)
    lengths = [len(sequence) + 1 for sequence in SEQUENCES]
    for rows in (1, 2, 4, 8):  # about so many episodes at a time
        _, gradient = our_gradient(name, config, budget=rows * max(lengths) if rows > 1 else 1)
        assert torch.allclose(gradient, whole, atol=1e-12, rtol=0)


# ---- keys that no preset turns on -------------------------------------------------------------------------------------------------------


def test_dual_clip_bounds_the_loss_of_a_bad_token_and_cuts_its_gradient():
    log_ratio = torch.tensor([[0.1, 1.5, 3.0]], dtype=torch.float64, requires_grad=True)
    config = AlgorithmConfig(beta=0.0, dual_clip=3.0)
    terms = token_terms(log_ratio, torch.zeros(1, 3), log_ratio.detach(), torch.tensor([[-2.0]]), config)
    assert terms.loss[0].tolist() == pytest.approx([2 * math.exp(0.1), min(2 * math.exp(1.5), 6.0), 6.0])
    terms.loss.sum().backward()
    assert log_ratio.grad[0].tolist() == pytest.approx([2 * math.exp(0.1), 0.0, 0.0])
    assert terms.clipped_high[0].tolist() == [False, True, True]


def test_without_a_window_the_ratio_is_free():
    config = replace(algorithm_of("grpo"), ratio="unclipped", beta=0.0)
    policy, old, _, _, _ = policies("grpo")
    plain, plain_old = PlainPolicy(policy), PlainPolicy(old)
    advantages, _ = advantages_of("grpo", plain_old, plain_old, config)
    expected = mean(
        [
            mean([-math.exp(a - b) * advantages[number][0] for a, b in zip(logps(plain, episode), logps(plain_old, episode))])
            for number, episode in enumerate(EPISODES)
        ]
    )
    assert our_gradient("grpo", config)[0]["loss"] == pytest.approx(expected, abs=1e-6)


def test_the_entropy_bonus_is_the_mean_entropy_of_the_sampled_tokens():
    """With advantages of 0 the loss is minus the bonus, and its gradient the entropy's."""
    config = AlgorithmConfig(group=GROUP, beta=0.0, loss_norm="token", entropy_bonus=0.5)
    policy, old, _, _, _ = policies("grpo")
    batch = toy_batch(SEQUENCES, FORCED, old)
    credit = assign(torch.ones(2, GROUP), batch.policy, batch.sampled, batch.sampled, config)
    learner = Learner(policy, None)
    measures = accumulate_gradient(learner, batch, credit, batch.sampled, config, 1.0, 10_000)
    plain = PlainPolicy(policy)
    entropies = []
    for episode in EPISODES:
        for last, _ in episode.choices:
            row = [plain.logp(last, token) for token in range(4)]
            entropies.append(-sum(math.exp(x) * x for x in row))
    assert measures["loss"] == pytest.approx(-0.5 * mean(entropies), abs=1e-6)
    assert max(parameter.grad.abs().max() for parameter in learner.parameters()) > 1e-3


# ---- TRL --------------------------------------------------------------------------------------------------------------------------------


def trl_loss(logps, old, reference, advantages, mask, *, low, high, beta, loss_type):
    """``GRPOTrainer._compute_loss`` of TRL for given tensors; ``dapo`` divides by the tokens of the whole step."""
    kl = torch.exp(reference - logps) - (reference - logps) - 1
    coef_1 = torch.exp(logps - old)
    coef_2 = torch.clamp(coef_1, 1 - low, 1 + high)
    per_token = -torch.min(coef_1 * advantages.unsqueeze(1), coef_2 * advantages.unsqueeze(1)) + beta * kl
    if loss_type == "grpo":
        return ((per_token * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    return (per_token * mask).sum() / mask.sum().clamp(min=1.0)


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_losses_equal_trls_on_the_same_tensors(name):
    config = algorithm_of(name)
    policy, old, reference, _, _ = policies(name)
    measures, gradient = our_gradient(name, config)
    batch = toy_batch(SEQUENCES, FORCED, old)
    start = sequence_logprobs(reference, batch.tokens).detach()
    rewards = torch.tensor(REWARDS, dtype=torch.float64).view(-1, GROUP)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, correction=0, keepdim=True)).flatten()
    loss = trl_loss(
        sequence_logprobs(policy, batch.tokens), sequence_logprobs(old, batch.tokens).detach(), start, advantages, batch.policy.double(),
        low=config.clip_low, high=config.clip_high, beta=config.beta, loss_type=name,
    )  # fmt: skip
    loss.backward()
    assert measures["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert torch.allclose(gradient, torch.cat([policy.table.grad.flatten(), policy.out.grad.flatten()]), atol=1e-5)
