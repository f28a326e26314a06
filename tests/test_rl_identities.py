"""What the estimators are in expectation, by exact enumeration of all groups of a small policy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from chessrl.config import AlgorithmConfig
from chessrl.config_check import CHOICES
from chessrl.errors import UserError
from rl.credit import assign, discounted_returns, generalised_advantages, whitened
from rl.objective import ADVANTAGES, RATIOS, group_advantages, token_terms
from rl.sampling import constant_groups
from tests.toy_policy import PROMPT, VOCABULARY, ToyPolicy, nearby, sequence_logprobs

ACTIONS = 3
REWARDS = torch.tensor([1.0, 0.0, 0.3], dtype=torch.float64)


def theta() -> Tensor:
    return torch.tensor([0.4, -0.7, 0.1], dtype=torch.float64, requires_grad=True)


def expected_gradient(parameters: Tensor, rewards: Tensor, group: int, advantages: Callable[[Tensor], Tensor]) -> Tensor:
    """E over all groups of grad (1/G) sum A_i log pi(a_i), actions from softmax(parameters)."""
    logprobs = parameters.log_softmax(0)
    total = torch.zeros_like(parameters)
    for actions in itertools.product(range(len(parameters)), repeat=group):
        drawn = logprobs[list(actions)]
        (gradient,) = torch.autograd.grad((advantages(rewards[list(actions)][None])[0] * drawn).mean(), parameters, retain_graph=True)
        total += drawn.sum().exp().item() * gradient
    return total


def gradient_of(value: Tensor, parameters: Tensor) -> Tensor:
    return torch.autograd.grad(value, parameters)[0]


def test_every_part_that_a_key_may_name_exists_and_no_other():
    """A misspelt name must be refused before anything is trained: ``chessrl`` holds the names, which it cannot ask of a stage."""
    assert set(CHOICES["algorithm.advantage"]) == set(ADVANTAGES) | {"whitened_returns", "gae"}
    assert set(CHOICES["algorithm.ratio"]) == set(RATIOS)


# ---- advantages -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "factor"), [("group_mean", 4 / 5), ("leave_one_out", 1.0), ("raw", 1.0)])
def test_expected_gradient_is_the_rewards_times_a_known_factor(kind, factor):
    """Dr. GRPO (G - 1) / G, RLOO and REINFORCE unbiased, for rewards that are not binary."""
    parameters = theta()
    truth = gradient_of((parameters.softmax(0) * REWARDS).sum(), parameters)
    measured = expected_gradient(parameters, REWARDS, 5, lambda rewards: group_advantages(rewards, kind, 1e-6))
    assert torch.allclose(measured, factor * truth, atol=1e-12)


@pytest.mark.parametrize("group", [2, 5])
def test_fine_tuning_on_what_was_rewarded_ascends_log_p(group):
    """Binary rewards: E[(1/G) sum (r_i / mean r) grad log pi_i] = (1 - (1 - p)^G) grad log p; groups without a success give nothing."""
    parameters = theta()
    binary = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    p = (parameters.softmax(0) * binary).sum()
    truth = gradient_of(p.log(), parameters)
    measured = expected_gradient(parameters, binary, group, lambda rewards: group_advantages(rewards, "over_mean", 1e-6))
    assert torch.allclose(measured, (1 - (1 - p.item()) ** group) * truth, atol=1e-12)


def test_a_baseline_that_does_not_look_at_the_sample_leaves_the_gradient_unbiased():
    """ReMax: r - r(greedy) is r less a constant of the prompt."""
    parameters = theta()
    truth = gradient_of((parameters.softmax(0) * REWARDS).sum(), parameters)
    measured = expected_gradient(parameters, REWARDS, 2, lambda rewards: group_advantages(rewards - 0.7, "raw", 1e-6))
    assert torch.allclose(measured, truth, atol=1e-12)


@pytest.mark.parametrize(("group", "p", "expected"), [(8, 0.05, 2.473), (8, 0.5, 1.856), (16, 0.01, 3.733), (16, 0.3, 2.093)])
def test_group_std_weighs_a_puzzle_by_w_g_of_p(group, p, expected):
    total = 0.0
    for correct in range(group + 1):
        rewards = torch.tensor([[1.0] * correct + [0.0] * (group - correct)], dtype=torch.float64)
        advantages = group_advantages(rewards, "group_std", 1e-6)[0]
        score = rewards[0] / p - (1 - rewards[0]) / (1 - p)  # d log pi / dp
        total += math.comb(group, correct) * p**correct * (1 - p) ** (group - correct) * (advantages * score).mean().item()
    assert total == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("samples", "k", "expected"), [(8, 4, 0.125), (16, 4, 0.1875), (32, 8, 0.09375), (8, 1, 0.875)])
def test_pass_at_k_ascends_pass_at_k(samples, k, expected):
    """Without sigma, E[(1/N) sum A_i grad log pi] = ((N - k) / (k N)) grad pass@k; with k = 1 that is Dr. GRPO."""
    p = 0.3
    total = 0.0
    for correct in range(samples + 1):
        rewards = torch.tensor([[1.0] * correct + [0.0] * (samples - correct)], dtype=torch.float64)
        advantages = group_advantages(rewards, "pass_at_k", 1e-6, k)[0]
        mean = 1 - math.comb(samples - correct, k) / math.comb(samples, k)
        score = rewards[0] / p - (1 - rewards[0]) / (1 - p)
        inner = (advantages * math.sqrt(mean * (1 - mean)) * score).mean().item()
        total += math.comb(samples, correct) * p**correct * (1 - p) ** (samples - correct) * inner
    assert total / (k * (1 - p) ** (k - 1)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("correct", "right", "wrong"), [(1, 1.7321, -0.0559), (2, 1.1201, -0.0747), (4, 0.6476, -0.0925), (8, 0.2742, -0.0914), (16, 0.0350, -0.0350)]
)
def test_pass_at_k_values_of_the_paper(correct, right, wrong):
    rewards = torch.tensor([[1.0] * correct + [0.0] * (32 - correct)])
    advantages = group_advantages(rewards, "pass_at_k", 1e-6, 8)[0]
    assert advantages[0].item() == pytest.approx(right, abs=5e-5) and advantages[-1].item() == pytest.approx(wrong, abs=5e-5)


@pytest.mark.parametrize("correct", [0, 25, 31, 32])
def test_pass_at_k_is_zero_where_every_or_no_subset_has_a_right_one(correct):
    rewards = torch.tensor([[1.0] * correct + [0.0] * (32 - correct)])
    assert (group_advantages(rewards, "pass_at_k", 1e-6, 8) == 0).all()


def test_pass_at_k_refuses_rewards_that_are_not_binary():
    with pytest.raises(UserError, match="needs rewards of 0 and 1"):
        group_advantages(torch.tensor([[0.5, 1.0]]), "pass_at_k", 1e-6, 2)


@pytest.mark.parametrize("kind", ["group_std", "group_mean", "leave_one_out", "batch_std", "pass_at_k", "raw", "over_mean"])
def test_a_reward_that_could_not_be_told_is_as_if_it_had_not_been_sampled(kind):
    told = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    holes = torch.tensor([[1.0, math.nan, 0.0, 0.0], [1.0, 1.0, 0.0, math.nan]])
    expected = group_advantages(told, kind, 1e-6, 2)
    measured = group_advantages(holes, kind, 1e-6, 2)
    assert (measured[holes.isnan()] == 0).all()
    assert torch.allclose(measured[~holes.isnan()], expected.flatten(), atol=1e-12)


@pytest.mark.parametrize("kind", ["group_std", "group_mean", "leave_one_out", "batch_std", "pass_at_k", "raw", "over_mean"])
def test_a_group_of_which_nothing_could_be_told_has_no_advantage(kind):
    rewards = torch.tensor([[math.nan, math.nan], [1.0, 0.0]])
    advantages = group_advantages(rewards, kind, 1e-6)
    assert (advantages[0] == 0).all() and advantages.isfinite().all()
    assert constant_groups(rewards, 1e-6).tolist() == [True, False]


@pytest.mark.parametrize("kind", ["group_std", "group_mean", "leave_one_out", "batch_std"])
@pytest.mark.parametrize("value", [0.35, 0.1, 1 / 3])
def test_equal_rewards_have_exactly_no_advantage(kind, value):
    """fp32 leaves a residue of about 1e-8 of a mean of 0.35s; divided by its own std it would be a whole advantage."""
    rewards = torch.full((2, 7), value)
    assert (group_advantages(rewards, kind, 1e-6) == 0).all()
    assert (group_advantages(torch.cat([rewards, torch.eye(7)[:1]]), kind, 1e-6)[:2] == 0).all()


def test_batch_std_divides_every_group_by_the_same():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [10.0, 14.0, 10.0, 10.0]])
    values = [1, 0, 0, 0, 10, 14, 10, 10]
    spread = math.sqrt(sum((v - sum(values) / 8) ** 2 for v in values) / 8)
    expected = torch.tensor([[0.75, -0.25, -0.25, -0.25], [-1, 3, -1, -1]], dtype=torch.float64) / spread
    assert torch.allclose(group_advantages(rewards, "batch_std", 1e-6), expected)


# ---- tokens' credit ---------------------------------------------------------------------------------------------------------------------


def test_returns_and_generalised_advantages_by_hand_skip_the_environments_tokens():
    """Rewards 1, (env), 2, 4 with gamma 0.5: 1 + 0.5 (2 + 0.5 x 4) = 3; 2 + 0.5 x 4 = 4; 4."""
    policy = torch.tensor([[True, False, True, True, False]])
    rewards = torch.tensor([[1.0, 0.0, 2.0, 4.0, 0.0]], dtype=torch.float64)
    assert discounted_returns(rewards, policy, 0.5)[0].tolist() == [3.0, 0.0, 4.0, 4.0, 0.0]
    values = torch.tensor([[0.5, 9.0, 1.0, 2.0, 9.0]], dtype=torch.float64)
    # deltas: 1 + .5 x 1 - .5 = 1; 2 + .5 x 2 - 1 = 2; 4 - 2 = 2. With gamma lambda = .25: 2; 2 + .5 = 2.5; 1 + .625 = 1.625.
    advantages, returns = generalised_advantages(rewards, values, policy, 0.5, 0.5)
    assert advantages[0].tolist() == [1.625, 0.0, 2.5, 2.0, 0.0]
    assert returns[0].tolist() == [2.125, 0.0, 3.5, 4.0, 0.0]


def test_with_lambda_one_the_advantage_is_the_return_less_the_value():
    generator = torch.Generator().manual_seed(0)
    policy = torch.rand(5, 9, generator=generator) < 0.7
    rewards = torch.where(policy, torch.randn(5, 9, dtype=torch.float64, generator=generator), 0.0)
    values = torch.randn(5, 9, dtype=torch.float64, generator=generator)
    advantages, returns = generalised_advantages(rewards, values, policy, 0.9, 1.0)
    expected = discounted_returns(rewards, policy, 0.9)
    assert torch.allclose(returns, expected) and torch.allclose(advantages, torch.where(policy, expected - values, 0.0))


def test_whitened_values_have_mean_0_and_std_1_over_the_told_tokens():
    told = torch.tensor([[True, True, False], [True, False, False]])
    values = whitened(torch.tensor([[1.0, 2.0, 99.0], [6.0, 99.0, 99.0]]), told, 1e-6)
    assert values[told].mean().item() == pytest.approx(0, abs=1e-6) and values[told].std(correction=0).item() == pytest.approx(1)
    assert (values[~told] == 0).all()
    assert (whitened(torch.full((1, 3), 0.35), torch.ones(1, 3, dtype=torch.bool), 1e-6) == 0).all()


# ---- KL ---------------------------------------------------------------------------------------------------------------------------------


def all_sequences(length: int) -> Tensor:
    return torch.tensor([[PROMPT, *tokens] for tokens in itertools.product(range(VOCABULARY), repeat=length)])


def parameters_of(policy: ToyPolicy) -> list[Tensor]:
    return [policy.table, policy.out]


def test_kl_in_the_reward_has_the_gradient_of_the_reverse_kl():
    """-E[k1 grad log pi] = -grad KL(pi || ref), over all answers of two tokens, whole answers and token by token alike."""
    policy, reference = ToyPolicy(0), nearby(ToyPolicy(0), 1, 0.5)
    tokens = all_sequences(2)
    logprobs, start = sequence_logprobs(policy, tokens), sequence_logprobs(reference, tokens).detach()
    probabilities = logprobs.sum(1).exp()
    kl = (probabilities * (logprobs - start).sum(1)).sum()
    expected = torch.autograd.grad(-kl, parameters_of(policy), retain_graph=True)
    mask = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
    rewards = torch.zeros(len(tokens), 1, dtype=torch.float64)
    whole = AlgorithmConfig(advantage="raw", kl="k1_reward", beta=1.0)
    credit = assign(rewards, mask, logprobs.detach(), start, whole)
    by_token = AlgorithmConfig(advantage="gae", kl="k1_reward", beta=1.0)
    tokenwise = assign(rewards, mask, logprobs.detach(), start, by_token, torch.zeros_like(start))
    for advantages in (credit.advantages, tokenwise.advantages):
        loss = (probabilities.detach()[:, None] * advantages.double() * logprobs).sum()
        measured = torch.autograd.grad(loss, parameters_of(policy), retain_graph=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(measured, expected))


@pytest.mark.parametrize("kind", ["k3", "k2"])
def test_kl_in_the_loss_has_the_gradient_of(kind):
    """On-policy, k3's gradient in a loss is that of KL(ref || pi), and k2's that of KL(pi || ref)."""
    generator = torch.Generator().manual_seed(0)
    parameters = torch.randn(6, dtype=torch.float64, generator=generator, requires_grad=True)
    reference = torch.randn(6, dtype=torch.float64, generator=generator).log_softmax(0)
    logprobs = parameters.log_softmax(0)
    terms = token_terms(
        logprobs[None], logprobs.detach()[None], reference[None], torch.zeros(1, 1), AlgorithmConfig(beta=1.0, kl=kind)
    )
    measured = torch.autograd.grad((logprobs.detach().exp() * terms.loss[0]).sum(), parameters, retain_graph=True)[0]
    forward = (reference.exp() * (reference - logprobs)).sum()
    reverse = (logprobs.exp() * (logprobs - reference)).sum()
    assert torch.allclose(measured, gradient_of(forward if kind == "k3" else reverse, parameters), atol=1e-12)


def test_both_measured_kls_are_unbiased_and_never_negative():
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        logprobs, reference = torch.randn(2, 5, dtype=torch.float64, generator=generator).log_softmax(1)
        terms = token_terms(logprobs[None], logprobs[None], reference[None], torch.zeros(1, 1), AlgorithmConfig())
        p, q = logprobs.exp(), reference.exp()
        assert (p * terms.kl[0]).sum().item() == pytest.approx((p * (logprobs - reference)).sum().item())
        assert (p * terms.kl_from_reference[0]).sum().item() == pytest.approx((q * (reference - logprobs)).sum().item())
        assert (terms.kl >= 0).all() and (terms.kl_from_reference >= 0).all()


@pytest.mark.parametrize("difference", [-50.0, 50.0])
@pytest.mark.parametrize("ratio", ["token", "sequence", "cispo", "unclipped", "log_prob"])
@pytest.mark.parametrize("kl", ["k3", "k2", "k1_reward"])
def test_a_large_log_ratio_stays_finite_under_every_rule(difference, ratio, kl):
    logprobs = torch.full((1, 3), difference, requires_grad=True)
    terms = token_terms(logprobs, torch.zeros(1, 3), torch.zeros(1, 3), torch.ones(1, 1), AlgorithmConfig(ratio=ratio, kl=kl))
    terms.loss.sum().backward()
    assert terms.loss.isfinite().all() and logprobs.grad.isfinite().all()
