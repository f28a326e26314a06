"""Policies as tables against published and independently derived values, closed forms, enumeration and the network's own loss."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch

from chessrl.config import AlgorithmConfig, ModelConfig
from chessrl.endgame import PACK, PUZZLES_FILE
from chessrl.errors import UserError
from chessrl.model import build_model
from chessrl.policy import measure_policy
from chessrl.puzzles import load_puzzles
from chessrl.theory import next_success, noisy_gap
from chessrl.theory_weights import group_weight
from rl.objective import token_terms
from rl.tabular_policy import PADDING, entropy, kl, measures, move_table, prior, read_policy, success, write_policy
from rl.tabular_studies import predicted_success
from rl.tabular_update import (
    NO_CLIP,
    Reward,
    advantages_by_count,
    climb,
    climb_sampled,
    expected_step,
    forward_maximiser,
    maximiser,
    noisy_reward,
    population_advantages,
    random_reward,
    sample_groups,
    sampled_step,
    solving_reward,
    surrogate_loss,
    systematic_reward,
    wrong_reward,
)

GRPO = AlgorithmConfig(beta=0.0)


def table_of(p_ref: float, moves: int = 30, seed: int = 0):
    """One puzzle: two solving moves of 1/3 and 2/3 of ``p_ref``, the wrong ones Dirichlet."""
    wrong = np.random.default_rng(seed).dirichlet(np.ones(moves - 2)) * (1 - p_ref)
    return move_table(["a"], [[f"m{place}" for place in range(moves)]], [[p_ref / 3, 2 * p_ref / 3, *wrong]], [[0, 1]])


def ragged():
    """Three puzzles with 4, 2 and 3 moves."""
    return move_table(
        ["a", "b", "c"], [["w", "x", "y", "z"], ["w", "x"], ["w", "x", "y"]], [[0.1, 0.2, 0.3, 0.4], [0.9, 0.1], [0.2, 0.5, 0.3]], [[1], [1], [0, 2]]
    )


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


def test_measures_by_hand_and_padding_counts_for_nothing():
    table = ragged()
    assert success(table.logprobs, table.solving).tolist() == pytest.approx([0.2, 0.1, 0.5])
    assert entropy(table.logprobs)[1].item() == pytest.approx(-0.9 * np.log(0.9) - 0.1 * np.log(0.1))
    assert table.legal.sum(1).tolist() == [4, 2, 3]
    uniform = torch.where(table.legal, 0.0, PADDING).double()
    assert kl(table.logprobs, uniform).tolist() == pytest.approx((table.legal.sum(1).log() - entropy(table.logprobs)).tolist())
    found = measures(table.logprobs, table, [1, 2, 10**6])
    exact = [Fraction(1, 5), Fraction(1, 10), Fraction(1, 2)]
    assert found["pass_at_2"] == pytest.approx(float(sum(1 - (1 - p) ** 2 for p in exact) / 3), abs=1e-15)
    assert found["success"] == found["pass_at_1"] == pytest.approx(0.8 / 3) and found["pass_at_1000000"] == pytest.approx(1.0)
    assert found["top_probability"] == pytest.approx((0.4 + 0.9 + 0.5) / 3) and found["kl_to_start"] == 0


def test_a_policy_table_survives_the_file(tmp_path):
    table = ragged()
    write_policy(tmp_path / "policy.parquet", table, table.logprobs)
    read, left_out = read_policy(tmp_path / "policy.parquet")
    assert (read.puzzles, read.moves, left_out) == (table.puzzles, table.moves, {})
    assert torch.equal(read.solving, table.solving)
    torch.testing.assert_close(read.logprobs, table.logprobs, rtol=0, atol=1e-14)


def test_traces_are_averaged_and_what_cannot_learn_is_counted(tmp_path):
    rows = [
        {"puzzle": "a", "decision": 0, "trace": 0, "moves": ["x", "y"], "logprobs": np.log([0.1, 0.3]), "solving": [1]},  # not normalised
        {"puzzle": "a", "decision": 0, "trace": 1, "moves": ["x", "y"], "logprobs": np.log([0.5, 0.5]), "solving": [1]},
        {"puzzle": "a", "decision": 1, "trace": 0, "moves": ["u", "v"], "logprobs": np.log([0.5, 0.5]), "solving": [0]},
        {"puzzle": "b", "decision": 0, "trace": 0, "moves": ["x"], "logprobs": np.log([1.0]), "solving": [0]},
        {"puzzle": "c", "decision": 0, "trace": 0, "moves": ["x", "y"], "logprobs": np.log([0.5, 0.5]), "solving": [0, 1]},
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "policy.parquet")
    table, left_out = read_policy(tmp_path / "policy.parquet")
    assert table.puzzles == ("a",) and left_out == {"later decisions": 1, "one legal move": 1, "every move solves": 1}
    assert table.logprobs.exp().tolist() == [pytest.approx([(0.25 + 0.5) / 2, (0.75 + 0.5) / 2])]


def test_a_networks_measured_policy_is_read(tmp_path):
    """The file as ``chessrl.policy`` makes it: probabilities over the legal moves alone, of every puzzle with a choice."""
    model = build_model(ModelConfig("tiny", layers=1, hidden=16, ffn=16, heads=1, kv_heads=1, head_dim=16), seed=0)
    puzzles = load_puzzles(PACK / PUZZLES_FILE, "test", ["B1"])[:8]
    measured = measure_policy(model, puzzles, "snapshot", "answer")
    measured.to_parquet(tmp_path / "policy.parquet")
    table, _ = read_policy(tmp_path / "policy.parquet")
    assert table.puzzles == tuple(sorted(puzzle.id for puzzle in puzzles))
    rows = measured[measured["decision"] == 0].set_index("puzzle")
    for number, name in enumerate(table.puzzles):
        probabilities = np.exp(rows.at[name, "logprobs"].astype(float))
        expected = probabilities[list(rows.at[name, "solving"])].sum() / probabilities.sum()
        assert success(table.logprobs, table.solving)[number].item() == pytest.approx(expected, rel=1e-6)
        assert table.moves[number] == rows.at[name, "moves"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="solving"), "column solving is missing"),
        (lambda table: table.assign(solving=[[7]]), r"policy\.parquet: puzzle a: solving moves .7.: expected places among its 2 moves"),
        (lambda table: table.assign(logprobs=[[0.0, 1.0, 2.0]]), r"policy\.parquet: puzzle a: expected at least 2 moves with a probability each"),
    ],
)
def test_a_damaged_policy_file_is_named(tmp_path, change, message):
    whole = pd.DataFrame({"puzzle": ["a"], "decision": 0, "trace": 0, "moves": [["x", "y"]], "logprobs": [[-1.0, -1.0]], "solving": [[1]]})
    change(whole).to_parquet(tmp_path / "policy.parquet")
    with pytest.raises(UserError, match=message):
        read_policy(tmp_path / "policy.parquet")


def test_a_missing_policy_file_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_policy(tmp_path / "nothing.parquet")


def test_priors():
    zipf = prior("zipf", 2, 30).logprobs.exp()
    assert zipf[0, 0].item() == pytest.approx(0.2503, abs=5e-5) and zipf[1, 9].item() == pytest.approx(zipf[1, 0].item() / 10)
    assert prior("peaked", 1, 30, top=0.85).logprobs.exp()[0, :2].tolist() == pytest.approx([0.85, 0.15 / 29])
    one, same, other = (prior("dirichlet", 50, 10, concentration=0.3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.logprobs, same.logprobs) and torch.equal(one.solving, same.solving) and not torch.equal(one.logprobs, other.logprobs)


# ---- rewards ----------------------------------------------------------------------------------------------------------------------------


def test_reward_vectors():
    table = ragged()
    assert solving_reward(table).values.tolist() == [[0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]]
    assert wrong_reward(table).values.tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]], "the likeliest wrong move"
    noisy = noisy_reward(table, 0.9, 0.2)
    assert noisy.drawn and noisy.values[0].tolist() == pytest.approx([0.2, 0.9, 0.2, 0.2])
    fixed = systematic_reward(prior("dirichlet", 4000, 30), 0.8, 0.1, seed=3)
    assert set(fixed.values.unique().tolist()) == {0.0, 1.0} and not fixed.drawn
    assert torch.equal(fixed.values, systematic_reward(prior("dirichlet", 4000, 30), 0.8, 0.1, seed=3).values)
    many = prior("dirichlet", 4000, 30)
    assert fixed.values[many.solving].mean().item() == pytest.approx(0.8, abs=0.03)
    assert fixed.values[~many.solving].mean().item() == pytest.approx(0.1, abs=0.005)


def test_a_drawn_reward_is_paid_with_its_probability_and_anew_each_time():
    table = prior("zipf", 500, 5)
    draws = sample_groups(table.logprobs, random_reward(table, 0.3), 8, GRPO, seed=0, step=1)
    assert draws.rewards.mean().item() == pytest.approx(0.3, abs=0.02)
    by_move = [draws.rewards[draws.moves == place].mean().item() for place in range(5)]
    assert by_move == pytest.approx([0.3] * 5, abs=0.03), "independent of the move"


# ---- samples ----------------------------------------------------------------------------------------------------------------------------


def test_samples_follow_the_policy_and_never_leave_the_legal_moves():
    table = ragged()
    draws = sample_groups(table.logprobs, solving_reward(table), 5000, GRPO, seed=0, step=1)
    for row, legal in enumerate((4, 2, 3)):
        shares = torch.bincount(draws.moves[row], minlength=4) / draws.moves.shape[1]
        torch.testing.assert_close(shares[:legal].double(), table.logprobs[row, :legal].exp(), rtol=0, atol=0.01)
        assert not shares[legal:].any()
    torch.testing.assert_close(draws.logprobs, table.logprobs.gather(1, draws.moves))
    again, later = (sample_groups(table.logprobs, solving_reward(table), 5000, GRPO, 0, step) for step in (1, 2))
    assert torch.equal(draws.moves, again.moves) and not torch.equal(draws.moves, later.moves)


def test_a_puzzles_samples_do_not_depend_on_the_width_of_the_table():
    narrow = move_table(["a"], [["w", "x"]], [[0.4, 0.6]], [[0]])
    wide = move_table(["a", "b"], [["w", "x"], ["u", "v", "w", "x"]], [[0.4, 0.6], [0.25] * 4], [[0], [0]])
    one, two = (sample_groups(table.logprobs, solving_reward(table), 20, GRPO, 0, 1) for table in (narrow, wide))
    assert torch.equal(one.moves[0], two.moves[0])


# ---- gradients --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["group_std", "group_mean", "leave_one_out", "pass_at_k"])
def test_expected_step_equals_all_groups_enumerated(kind):
    """Every ordered group of 4 out of 3 moves, its loss by the network's code, weighted with its probability."""
    algorithm = replace(GRPO, group=4, advantage=kind, pass_k=2, beta=0.3)
    table = move_table(["a"], [["x", "y", "z"]], [[0.5, 0.2, 0.3]], [[1]])
    logits = table.logprobs + torch.tensor([[0.2, -0.1, 0.4]], dtype=torch.float64)
    reward = solving_reward(table)
    policy = torch.softmax(logits, 1)[0]
    total = torch.zeros_like(logits)
    for moves in itertools.product(range(3), repeat=4):
        places = torch.tensor([moves])
        rewards = reward.values.gather(1, places)
        draws = sample_groups(logits, reward, 1, algorithm, 0, 0)
        advantages = torch.zeros_like(rewards)
        wrong = 4 - int(rewards.sum())
        if 0 < wrong < 4:
            scale = {"group_std": 1 / rewards.std(correction=0), "leave_one_out": 4 / 3}.get(kind, 1.0)
            advantages = (rewards - rewards.mean()) * scale
        if kind == "pass_at_k":
            pairs = torch.tensor(list(itertools.combinations(range(4), 2)))  # every subset of k = 2 is paid its best, whitened over all
            best = rewards[0][pairs].amax(1)
            paid = torch.zeros_like(best) if best.std(correction=0) == 0 else (best - best.mean()) / best.std(correction=0)
            advantages = torch.stack([paid[(pairs == place).any(1)].mean() for place in range(4)])[None]
        draws = replace(draws, moves=places, logprobs=torch.log_softmax(logits, 1).gather(1, places), rewards=rewards, advantages=advantages)
        leaf = logits.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(surrogate_loss(leaf, table.logprobs, draws, algorithm), leaf)
        total += policy[list(moves)].prod() * gradient
    stepped = expected_step(logits, table.logprobs, reward, algorithm, 0.7)
    torch.testing.assert_close(stepped, logits - 0.7 * total, rtol=0, atol=1e-13)


def test_sampled_steps_average_to_the_expected_step():
    """20,000 copies of one puzzle: the mean change within Monte-Carlo error, for a noisy verifier too."""
    algorithm = replace(GRPO, group=8)
    table = move_table([str(row) for row in range(20_000)], [["x", "y", "z"]] * 20_000, [[0.5, 0.2, 0.3]] * 20_000, [[1]] * 20_000)
    for reward in (solving_reward(table), noisy_reward(table, 0.86, 0.05)):
        draws = sample_groups(table.logprobs, reward, 1, algorithm, seed=1, step=1)
        changes = sampled_step(table.logprobs, table.logprobs, draws, algorithm, 1.0) - table.logprobs
        expected = expected_step(table.logprobs[:1], table.logprobs[:1], Reward(reward.values[:1], reward.drawn), algorithm, 1.0) - table.logprobs[:1]
        errors = changes.std(0) / len(changes) ** 0.5
        assert ((changes.mean(0) - expected[0]).abs() < 4 * errors).all()
        assert (expected[0].abs() > 10 * errors).all(), "an effect to be seen"


def test_the_k3_loss_has_the_gradient_of_the_forward_kl():
    """On policy, the mean of k3's gradient over all moves is that of KL(ref || pi), not of KL(pi || ref)."""
    generator = np.random.default_rng(0)
    leaf = torch.tensor(generator.normal(size=(1, 6)), requires_grad=True)
    reference = torch.log_softmax(torch.tensor(generator.normal(size=(1, 6))), 1)
    logprobs = torch.log_softmax(leaf, 1).T  # every move once, as an episode of one token
    terms = token_terms(logprobs, logprobs.detach(), reference.T, torch.zeros_like(logprobs), replace(GRPO, beta=1.0))
    (found,) = torch.autograd.grad((logprobs.detach().exp() * terms.loss).sum(), leaf, retain_graph=True)
    forward, reverse = (torch.autograd.grad(kl(*pair).sum(), leaf)[0] for pair in ((reference, leaf), (leaf, reference)))
    torch.testing.assert_close(found, forward, rtol=0, atol=1e-12)
    assert (found - reverse).abs().max() > 0.01


def test_advantages_by_count_are_the_theorys():
    right, wrong = advantages_by_count(GRPO)
    m = np.arange(1, 8)
    np.testing.assert_allclose(right[1:8], np.sqrt((8 - m) / m), rtol=1e-12)
    np.testing.assert_allclose(wrong[1:8], -np.sqrt(m / (8 - m)), rtol=1e-12)
    assert right[0] == right[8] == wrong[0] == wrong[8] == 0


def test_the_clip_cuts_the_gradient_of_a_move_that_left_the_window():
    """Hand-worked: move 0 sampled throughout with advantage 1, ratio already 1.5: no gradient with eps .2, a gradient without clip."""
    table = move_table(["a"], [["x", "y"]], [[0.4, 0.6]], [[0]])
    old = table.logprobs.exp().log()
    now = torch.log(torch.tensor([[0.6, 0.4]], dtype=torch.float64))
    draws = sample_groups(table.logprobs, solving_reward(table), 1, GRPO, 0, 0)
    places = torch.zeros_like(draws.moves)
    draws = replace(draws, moves=places, logprobs=old.gather(1, places), advantages=torch.ones_like(draws.advantages))
    for algorithm, expected in ((GRPO, 0.0), (replace(GRPO, **NO_CLIP), 1.5 * 0.4)):
        moved = sampled_step(now, table.logprobs, draws, algorithm, 1.0) - now
        assert moved[0].tolist() == pytest.approx([expected, -expected], abs=1e-12)


def test_minibatches_are_parts_of_whole_groups():
    table = prior("zipf", 4, 6)
    draws = sample_groups(table.logprobs, solving_reward(table), 8, GRPO, 0, 1)
    with pytest.raises(UserError, match=r"expected a divisor of tabular\.groups=8"):
        sampled_step(table.logprobs, table.logprobs, draws, replace(GRPO, minibatches=3), 1.0)
    with pytest.raises(UserError, match=r"tabular\.exact=true: expected algorithm.epochs=1"):
        expected_step(table.logprobs, table.logprobs, solving_reward(table), replace(GRPO, minibatches=2), 1.0)
    graded = Reward(torch.full_like(table.logprobs, 0.5))
    with pytest.raises(UserError, match="expected rewards of 0 and 1"):
        expected_step(table.logprobs, table.logprobs, graded, GRPO, 1.0)


# ---- the theory -------------------------------------------------------------------------------------------------------------------------

CASES = [  # p_ref, beta, alpha, smoothing, normalise, first values
    ("A", 0.1, 5, 0, 1e-5, True, [0.1, 0.177907, 0.157855, 0.161284, 0.160642, 0.160760]),
    ("B", 0.5, 5, 0, 1e-5, True, [0.5, 0.598686, 0.600613, 0.600691, 0.600694, 0.600694]),
    ("C", 0.01, 2, 0, 1e-5, True, [0.01, 0.605284, 0.027326, 0.178168, 0.035968, 0.128940]),
    ("E", 0.1, 1, 0, 1e-5, True, [0.1, 0.756930, 0.533464, 0.451956, 0.453146, 0.453032]),
    ("E smooth", 0.1, 1, 0, 0.1, True, [0.1, 0.524214, 0.376249, 0.384929, 0.383669]),
    ("F no std", 0.1, 2, 0, 1e-5, False, [0.1, 0.154828, 0.154828]),
    ("F mirror", 0.1, 0, 5, 1e-5, True, [0.1, 0.177907, 0.267441, 0.364518, 0.464990, 0.564810]),
    ("F mirror no std", 0.1, 0, 5, 1e-5, False, [0.1, 0.119495, 0.142189, 0.168370, 0.198257, 0.231969]),
    ("F two KL", 0.1, 5, 5, 1e-5, True, [0.1, 0.134248, 0.149662, 0.156179, 0.158874]),
]


@pytest.mark.parametrize(("name", "p_ref", "beta", "alpha", "smoothing", "normalise", "values"), CASES, ids=[case[0] for case in CASES])
def test_exact_inner_maximisation_follows_the_recursion(name, p_ref, beta, alpha, smoothing, normalise, values):
    table = table_of(p_ref)
    logits, path = table.logprobs, []
    for _ in values:
        path.append(success(logits, table.solving).item())
        advantages = population_advantages(logits, solving_reward(table), smoothing, normalise)
        logits = maximiser(logits, table.logprobs, advantages, beta, alpha)
    np.testing.assert_allclose(path, values, atol=1e-6)


def test_a_rare_success_ends_in_a_two_cycle():
    table = table_of(0.001)
    logits, path = table.logprobs, []
    for _ in range(2000):
        logits = maximiser(logits, table.logprobs, population_advantages(logits, solving_reward(table), 1e-5), 5)
        path.append(success(logits, table.solving).item())
    assert sorted(path[-2:]) == pytest.approx([0.00234, 0.05872], abs=5e-6)


def test_forward_kl_maximiser_follows_its_recursion():
    table = table_of(0.1)
    for beta, limit in ((5, 0.176194), (2, 0.336199), (1, 0.591539)):
        logits, path = table.logprobs, [0.1]
        for _ in range(60):
            logits = forward_maximiser(table.logprobs, population_advantages(logits, solving_reward(table), 1e-5), beta)
            path.append(success(logits, table.solving).item())
        assert path[-1] == pytest.approx(limit, abs=1e-6)
        assert beta != 5 or path[:4] == pytest.approx([0.1, 0.210967, 0.168765, 0.178194], abs=1e-6)


def test_maximisation_never_moves_mass_within_the_right_or_within_the_wrong_moves():
    table = table_of(0.1)
    logits = maximiser(table.logprobs, table.logprobs, population_advantages(table.logprobs, solving_reward(table), 1e-5), 0.7)
    before, after = table.logprobs.exp()[0], logits.exp()[0]
    for moves in (table.solving[0], ~table.solving[0]):
        assert (before[moves] / before[moves].sum() - after[moves] / after[moves].sum()).abs().max() < 1e-15


@pytest.mark.parametrize("forward", [False, True])
def test_gradient_ascent_reaches_the_closed_form(forward):
    """A 30-move bandit beside values derived independently, to 5e-6."""
    table = table_of(0.1)
    advantages = population_advantages(table.logprobs, solving_reward(table), 1e-5)
    closed = forward_maximiser(table.logprobs, advantages, 2.0) if forward else maximiser(table.logprobs, table.logprobs, advantages, 2.0)
    climbed = climb(table.logprobs, table.logprobs, advantages, 2.0, steps=1500, rate=0.1, forward=forward)
    assert (climbed.exp() - closed.exp()).abs().max() < 5e-6


@pytest.mark.parametrize(("rates", "limit"), [((1.0, 0.0), 0.40873), ((0.86, 0.0), 0.38412), ((0.86, 0.05), 0.36899), ((0.4, 0.6), 0.16966)])
def test_noisy_verifier_follows_its_recursion(rates, limit):
    """Values derived independently at p_ref = 0.2, beta = 2; J = -0.2 ends below the start. The ascent of one iteration is a gradient's, too."""
    table = table_of(0.2)
    reward, logits = noisy_reward(table, *rates), table.logprobs
    for _ in range(300):
        logits = maximiser(logits, table.logprobs, population_advantages(logits, reward, 1e-5), 2)
    assert success(logits, table.solving).item() == pytest.approx(limit, abs=5e-6)
    advantages = population_advantages(table.logprobs, reward, 1e-5)
    predicted = next_success(0.2, 0.2, 2, lambda p: noisy_gap(p, *rates, 1e-5))
    assert success(maximiser(table.logprobs, table.logprobs, advantages, 2), table.solving).item() == pytest.approx(predicted, abs=1e-12)
    climbed = climb(table.logprobs, table.logprobs, advantages, 2.0, steps=600, rate=0.1)
    assert success(climbed, table.solving).item() == pytest.approx(predicted, abs=1e-5)


def test_a_verifier_without_information_moves_nothing_in_expectation():
    """J = 0: the expected gradient of a step is exactly 0, whatever the acceptance."""
    table = table_of(0.2)
    for rate in (0.3, 0.7):
        after = expected_step(table.logprobs, table.logprobs, noisy_reward(table, rate, rate), AlgorithmConfig(beta=0.0), 2.0)
        assert success(after, table.solving).item() == pytest.approx(0.2, abs=1e-12)


def test_systematic_errors_reward_what_is_wrong_without_end():
    """TPR = FPR = 1/2 fixed per move: acceptance rises to .76 while truth stays."""
    count = 400
    rows = np.full(count, 1 / count)
    table = move_table(["a"], [[str(place) for place in range(count)]], [rows], [list(range(80))])
    accepted = torch.zeros(1, count, dtype=torch.float64)
    accepted[0, :40] = accepted[0, 80:240] = 1.0  # half of the right and half of the wrong moves
    logits = table.logprobs
    for _ in range(300):
        logits = maximiser(logits, table.logprobs, population_advantages(logits, Reward(accepted), 1e-5), 2)
    assert (logits.exp() * accepted).sum().item() == pytest.approx(0.76472, abs=5e-6)
    assert success(logits, table.solving).item() == pytest.approx(0.2, abs=1e-12)


def test_sampled_inner_maximisation_follows_the_weight_of_groups():
    """With groups of 8 the gap is W_8(p), not 1 / sqrt(p (1 - p)): 2.3 against 3.3 at p = .1, far apart beside the noise over 64 copies."""
    table = move_table([str(row) for row in range(64)], [list("abcde")] * 64, [[0.1, 0.4, 0.3, 0.1, 0.1]] * 64, [[0]] * 64)
    algorithm = replace(GRPO, beta=2.0)
    logits = climb_sampled(table.logprobs, table.logprobs, solving_reward(table), 8, algorithm, steps=300, rate=0.1, seed=0, step=0)
    p = success(logits, table.solving)
    predicted = predicted_success("groups", np.array([0.1]), 2.0, 1, 0.0, algorithm)[1, 0]
    assert predicted == pytest.approx(float(next_success(0.1, 0.1, 2.0, lambda q: group_weight(q, 8))), abs=1e-12)
    assert p.mean().item() == pytest.approx(predicted, abs=4 * p.std().item() / 8)
    assert abs(p.mean().item() - next_success(0.1, 0.1, 2.0)) > 0.05
