"""GRPO's parts against brute force, hand-worked batches and exact enumeration."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from chessrl import notation
from chessrl.config import AlgorithmConfig, OptimizerConfig
from chessrl.environment import build_environment
from chessrl.errors import UserError
from chessrl.model import build_model
from chessrl.puzzles import prompt_tokens
from chessrl.sampler import OUTCOMES, SamplingSettings, rollout
from chessrl.training import build_optimizer
from rl.credit import Credit
from rl.objective import group_advantages, token_terms, token_weights
from rl.sampling import puzzles_of_step
from rl.shared_prompts import shared_micro_batches
from rl.update import accumulate_gradient, build_batch, minibatches, score, score_values, update
from rl.value import Learner, ValueHead
from tests.test_sampler import PUZZLES, trained_model

GRPO = AlgorithmConfig("grpo", group=4)


def episodes(protocol: str = "think", group: int = 4, seed: int = 0):
    model = trained_model(protocol)
    environment = build_environment(PUZZLES)
    prompts = [prompt_tokens(puzzle, "snapshot", think=protocol == "think") for puzzle in PUZZLES]
    return model, rollout(model, environment, list(range(len(PUZZLES))), prompts, group, SamplingSettings(protocol, 1.0, 6, seed=seed))


def credit_of(advantages: torch.Tensor) -> Credit:
    return Credit(advantages.flatten().float()[:, None])


# ---- advantages ---------------------------------------------------------------------------------------------------------------------------


def test_advantages_are_taken_within_each_group():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [10.0, 10.0, 10.0, 14.0]])
    a = group_advantages(rewards, "group_std", 1e-6)
    assert torch.allclose(a[0], torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64))
    assert torch.allclose(a[1], torch.tensor([-1, -1, -1, 3], dtype=torch.float64) / math.sqrt(3))
    assert torch.allclose(group_advantages(rewards, "group_mean", 1e-6)[1], torch.tensor([-1.0, -1, -1, 3], dtype=torch.float64))


@pytest.mark.parametrize("value", [0.35, 0.1, 1 / 3])
def test_equal_rewards_have_zero_advantage_however_they_round(value):
    assert (group_advantages(torch.full((3, 7), value), "group_std", 1e-6) == 0).all()


def test_unknown_advantage_is_refused():
    with pytest.raises(UserError, match=r"algorithm\.advantage='median'"):
        group_advantages(torch.zeros(1, 2), "median", 1e-6)


@pytest.mark.parametrize(("p", "expected"), [(0.01, 2.609), (0.05, 2.473), (0.1, 2.328), (0.3, 1.963), (0.5, 1.856)])
def test_expected_gradient_is_w_g_of_p(p, expected):
    """E[GRPO gradient] = W_G(p) grad p for a Bernoulli policy, by enumeration of all outcomes of a group of 8."""
    theta = torch.tensor(math.log(p / (1 - p)), dtype=torch.float64, requires_grad=True)
    total = 0.0
    for correct in range(9):
        rewards = torch.tensor([[1.0] * correct + [0.0] * (8 - correct)])
        advantages = group_advantages(rewards, "group_std", 1e-6)[0]
        success = torch.sigmoid(theta)
        logprobs = torch.where(rewards[0] == 1, success.log(), (1 - success).log())
        (gradient,) = torch.autograd.grad((advantages * logprobs).mean(), theta)
        total += math.comb(8, correct) * p**correct * (1 - p) ** (8 - correct) * gradient.item()
    assert total / (p * (1 - p)) == pytest.approx(expected, abs=6e-4)


# ---- loss ---------------------------------------------------------------------------------------------------------------------------------


def test_three_normalisers_on_a_batch_by_hand():
    policy = torch.tensor([[True, True, False, True], [True, False, False, False]])
    values = torch.tensor([[1.0, 2.0, 99.0, 6.0], [5.0, 99.0, 99.0, 99.0]])
    total = {kind: (token_weights(policy, kind, 10) * values).sum().item() for kind in ("sequence", "token", "constant")}
    assert total == pytest.approx({"sequence": (9 / 3 + 5) / 2, "token": 14 / 4, "constant": 14 / 20})


def test_clipped_surrogate_against_the_formula():
    log_ratio = torch.tensor([[-1.0, -0.1, 0.0, 0.1, 1.0]], dtype=torch.float64)
    for advantage in (2.0, -3.0):
        terms = token_terms(
            log_ratio, torch.zeros_like(log_ratio), log_ratio, torch.tensor([[advantage]]), AlgorithmConfig("grpo", beta=0.5)
        )
        for place, value in enumerate(log_ratio[0].tolist()):
            ratio = math.exp(value)
            assert -terms.loss[0, place].item() == pytest.approx(min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage))
        assert terms.clipped_high[0].tolist() == [False] * 4 + [advantage > 0]
        assert terms.clipped_low[0].tolist() == [advantage < 0] + [False] * 4


def test_k3_is_unbiased_for_kl_and_its_loss_gradient_is_forward_kl():
    """On five tokens: E_pi[k3] = KL(pi || ref), and the gradient of the k3 loss on-policy is that of KL(ref || pi)."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True)
    reference = torch.randn(5, dtype=torch.float64, generator=generator).log_softmax(0)
    logprobs = theta.log_softmax(0)
    terms = token_terms(logprobs[None], logprobs.detach()[None], reference[None], torch.zeros(1, 1), AlgorithmConfig("grpo", beta=1.0))
    probabilities = logprobs.detach().exp()
    assert (probabilities * terms.kl[0].detach()).sum().item() == pytest.approx(
        (probabilities * (logprobs.detach() - reference)).sum().item()
    )
    (measured,) = torch.autograd.grad((probabilities * terms.loss[0]).sum(), theta, retain_graph=True)
    (forward,) = torch.autograd.grad((reference.exp() * (reference - logprobs)).sum(), theta)
    assert torch.allclose(measured, forward, atol=1e-12)


@pytest.mark.parametrize("difference", [-50.0, 50.0])
def test_a_large_log_ratio_stays_finite(difference):
    logprobs = torch.full((1, 3), difference, requires_grad=True)
    terms = token_terms(logprobs, torch.zeros(1, 3), torch.zeros(1, 3), torch.ones(1, 1), GRPO)
    terms.loss.sum().backward()
    assert terms.loss.isfinite().all() and logprobs.grad.isfinite().all()


# ---- batch and update ---------------------------------------------------------------------------------------------------------------------


def test_batch_rows_are_prompt_and_episode_with_the_policys_tokens_marked():
    _, result = episodes("answer", group=16)
    batch = build_batch(result)
    turns = 0
    for row in range(len(result.lengths)):
        prompt = result.prompts[row, : result.prompt_lengths[row]].tolist()
        answer = result.tokens[row, : result.lengths[row]].tolist()
        length = int(batch.lengths[row])
        assert batch.tokens[row, :length].tolist() == prompt + answer  # prefix equality: nothing is decoded and encoded again
        assert (batch.tokens[row, length:] == notation.PAD).all()
        expected = [False] * len(prompt) + result.policy[row, : len(answer)].tolist()
        assert [False, *batch.policy[row].tolist()][:length] == expected
        turns += int(result.moves[row]) > 1
    assert turns > 0, "no two-turn example was sampled"


def test_the_closing_tokens_are_trained_and_the_opponents_are_not():
    _, result = episodes("think", group=64)
    batch = build_batch(result)
    targets = batch.tokens[:, 1:]
    answered = torch.tensor([OUTCOMES[code] in ("solved", "wrong", "illegal") for code in result.outcome.tolist()])
    called = (targets == notation.CALL_ENV) & answered[:, None]
    assert called.any() and batch.policy[called].all()
    assert ((targets == notation.END_THINK) & batch.policy).any()
    assert (~batch.policy & (targets != notation.PAD)).any()


def test_learning_to_stop_is_learned():
    """The closing tokens alone give a gradient: they are neither masked as padding nor as the environment's."""
    model, result = episodes("think", group=16)
    whole = build_batch(result)
    targets = whole.tokens[:, 1:]
    for closing in (notation.END_THINK, notation.CALL_ENV):
        batch = dataclasses.replace(whole, policy=whole.policy & (targets == closing))
        credit = credit_of(torch.ones(len(result.lengths)))
        accumulate_gradient(Learner(model, None), batch, credit, batch.sampled, AlgorithmConfig(beta=0.0), 1.0, 4096)
        assert max(parameter.grad.abs().max() for parameter in model.parameters()) > 1e-4
        model.zero_grad()


def test_what_the_environment_wrote_is_no_part_of_any_loss():
    """NaN log-probabilities of forced tokens, and any token put in their place, change no loss: masks come from the sampler."""
    model, result = episodes("answer", group=16)
    assert (~result.policy & (torch.arange(result.tokens.shape[1]) < result.lengths[:, None])).any()
    losses = []
    for forced in (0.0, math.nan):
        given = dataclasses.replace(result, logprobs=torch.where(result.policy, result.logprobs, forced))
        batch, credit = build_batch(given), credit_of(torch.linspace(-1, 1, len(result.lengths)))
        losses.append(accumulate_gradient(Learner(model, None), batch, credit, batch.sampled, GRPO, 1.0, 4096)["loss"])
        model.zero_grad()
    assert losses[0] == losses[1] and math.isfinite(losses[0])


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_scores_are_the_samplers_at_every_temperature_and_chunk_size(temperature):
    model = trained_model("think")
    prompts = [prompt_tokens(puzzle, "snapshot", think=True) for puzzle in PUZZLES]
    settings = SamplingSettings("think", temperature, 6)
    batch = build_batch(rollout(model, build_environment(PUZZLES), list(range(len(PUZZLES))), prompts, 4, settings))
    for budget in (1, 100, 10_000):
        assert (score(model, batch, temperature, budget) - batch.sampled)[batch.policy].abs().max() < 1e-5
    assert (score(model, batch, temperature + 0.3, 10_000) - batch.sampled)[batch.policy].abs().max() > 1e-2


@pytest.mark.parametrize("norm", ["sequence", "token", "constant"])
def test_gradient_does_not_depend_on_the_micro_batch(norm):
    model, result = episodes("think", group=4)
    rewards = torch.rand(len(PUZZLES), 4, generator=torch.Generator().manual_seed(0))
    batch, credit = build_batch(result), credit_of(group_advantages(rewards, "group_std", 1e-6))
    assert len(set(batch.lengths.tolist())) > 3
    reference = score(build_model(model.config, seed=9), batch, 1.0, 4096)
    algorithm = AlgorithmConfig("grpo", group=4, loss_norm=norm, beta=0.1)
    gradients = []
    for budget in (1, 64, 128, 256, 10_000):  # from one episode at a time to all at once
        model.zero_grad()
        measures = accumulate_gradient(Learner(model, None), batch, credit, reference, algorithm, 1.0, budget)
        gradients.append((measures["loss"], torch.cat([p.grad.flatten() for p in model.parameters()])))
    model.zero_grad()
    for loss, gradient in gradients[1:]:
        assert loss == pytest.approx(gradients[0][0], abs=1e-6)
        assert torch.allclose(gradient, gradients[0][1], atol=1e-6)


@pytest.mark.parametrize("budget", [1, 64, 150, 10_000])
def test_a_shared_prompt_gives_the_gradient_scores_and_values_of_separate_ones(budget):
    """Unequal prompts, unequal episodes, groups cut up by the budget; in fp32, although only bf16 shares by itself."""
    model, result = episodes("think", group=4)
    batch = build_batch(result)
    assert len(set(batch.prompt_lengths.tolist())) > 2
    head = ValueHead(model.config, "fp32", model.device)
    torch.nn.init.normal_(head.linear.weight, generator=torch.Generator().manual_seed(1))
    learner = Learner(model, head)
    rewards = torch.rand(len(PUZZLES), 4, generator=torch.Generator().manual_seed(0))
    advantages = credit_of(group_advantages(rewards, "group_std", 1e-6)).advantages
    credit = Credit(advantages, torch.rand(batch.sampled.shape, generator=torch.Generator().manual_seed(2)))
    found = {}
    for model.shares_prompts in (False, True):
        reference = score(model, batch, 0.7, budget)
        values = score_values(learner, batch, budget)
        measures = accumulate_gradient(learner, batch, credit, reference, AlgorithmConfig("grpo", group=4, beta=0.1), 0.7, budget)
        gradient = torch.cat([parameter.grad.flatten() for parameter in learner.parameters()])
        found[model.shares_prompts] = (reference[batch.policy], values[batch.policy], gradient, torch.tensor(list(measures.values())))
        learner.zero_grad()
    model.shares_prompts = False  # the model is other tests' as well
    for separate, shared in zip(found[False], found[True]):
        assert torch.allclose(shared, separate, atol=2e-5, rtol=0)


def test_micro_batches_of_shared_prompts_keep_within_the_budget_and_count_a_prompt_once():
    lengths, prompts, puzzles = [9, 12, 10, 9, 7, 8, 8, 7], [6, 6, 6, 6, 4, 4, 4, 4], [3, 3, 3, 3, 5, 5, 5, 5]
    assert shared_micro_batches(lengths, prompts, puzzles, 10_000) == [[4, 7, 5, 6, 0, 3, 2, 1]]
    assert shared_micro_batches(lengths, prompts, puzzles, 20) == [[4, 7, 5, 6], [0, 3, 2], [1]]  # 4 + 4 x 4 = 20; 6 + 3 x 4 = 18
    assert shared_micro_batches(lengths, prompts, puzzles, 1) == [[4], [7], [5], [6], [0], [3], [2], [1]]


def test_groups_of_equal_rewards_give_no_gradient_without_kl():
    model, result = episodes("answer")
    batch, credit = build_batch(result), credit_of(group_advantages(torch.ones(len(PUZZLES), 4), "group_std", 1e-6))
    algorithm = AlgorithmConfig("grpo", group=4, beta=0.0)
    accumulate_gradient(Learner(model, None), batch, credit, score(model, batch, 1.0, 4096), algorithm, 1.0, 4096)
    assert all((parameter.grad == 0).all() for parameter in model.parameters())
    model.zero_grad()


def test_kl_is_zero_at_the_start_and_sampler_and_trainer_agree():
    model, result = episodes("think", group=8)
    batch, credit = build_batch(result), credit_of(torch.ones(len(result.lengths)))
    measures = accumulate_gradient(Learner(model, None), batch, credit, score(model, batch, 1.0, 512), GRPO, 1.0, 512)
    model.zero_grad()
    assert measures["kl"] == pytest.approx(0.0, abs=1e-9) and measures["kl_from_reference"] == pytest.approx(0.0, abs=1e-9)
    assert measures["sampling/logp_difference/max"] < 1e-5
    assert measures["clip_ratio/low"] == measures["clip_ratio/high"] == 0


def test_learning_rate_zero_changes_nothing_over_several_updates():
    model, result = episodes("answer")
    algorithm = AlgorithmConfig("grpo", group=4, epochs=2, minibatches=3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rewards = torch.rand(len(PUZZLES), 4, generator=torch.Generator().manual_seed(1))
    batch, credit = build_batch(result), credit_of(group_advantages(rewards, "group_std", 1e-6))
    reference = score(model, batch, 1.0, 4096)
    optimizer = build_optimizer(model, OptimizerConfig(weight_decay=0.0))
    measures = update(
        Learner(model, None), optimizer, batch, credit, reference, algorithm, OptimizerConfig(),
        rate=0.0, temperature=1.0, budget=999, seed=0, step=1,
    )  # fmt: skip
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert measures["kl"] == pytest.approx(0.0, abs=1e-9)


def test_a_sampled_token_without_finite_logprob_leaves_the_loss_and_is_counted():
    model, result = episodes("answer")
    result.logprobs[0, 0] = -torch.inf
    batch, credit = build_batch(result), credit_of(torch.ones(len(result.lengths)))
    assert batch.dropped == 1
    assert not batch.policy[0, int(result.prompt_lengths[0]) - 1]
    measures = accumulate_gradient(Learner(model, None), batch, credit, score(model, batch, 1.0, 4096), GRPO, 1.0, 4096)
    model.zero_grad()
    assert math.isfinite(measures["loss"])


def test_minibatches_are_whole_groups_and_cover_a_pass_once():
    parts = minibatches(7, 4, 3, seed=0, step=5, epoch=0)
    assert sorted(np.concatenate(parts)) == list(range(28))
    for part in parts:
        assert all(set(range(first // 4 * 4, first // 4 * 4 + 4)) <= set(part) for first in part)
    assert [part.tolist() for part in parts] != [part.tolist() for part in minibatches(7, 4, 3, seed=0, step=6, epoch=0)]


def test_no_puzzle_is_asked_twice_in_a_pass_and_all_are_asked_in_time():
    for prompts, count in itertools.product((3, 5), (11, 15)):
        per_pass = count // prompts
        passes = [
            [index for step in range(1, per_pass + 1) for index in puzzles_of_step(count, prompts, 0, number * per_pass + step)]
            for number in range(20)
        ]
        assert all(len(set(asked)) == len(asked) == per_pass * prompts for asked in passes)
        assert set().union(*passes) == set(range(count))
