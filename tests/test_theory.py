"""GRPO's theory against published values, brute force and hand-worked cases; smoothing 1e-5 unless said."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from scipy.special import expit

from chessrl.theory import (
    critical_beta,
    fixed_points,
    flip_interval,
    next_success,
    next_success_forward_kl,
    noisy_gap,
    slope,
    std_gap,
    systematic_errors,
    tracking_error,
    trajectory,
    true_success,
    two_cycle,
    whitened_advantages,
)
from chessrl.theory_weights import (
    EFFECTIVE_OBJECTIVES,
    dr_grpo_objective,
    dynamic_sampling_cost,
    gradient_weight,
    group_weight,
    pass_at_k_factor,
    pass_at_k_objective,
    signal_share,
)

SMOOTHED = partial(std_gap, smoothing=1e-5)


def no_std(p):
    return 1.0


# ---- the recursion ----------------------------------------------------------------------------------------------------------------------

RECURSION = [  # test, p_ref, beta, smoothing, first values, fixed point, slope there
    ("A", 0.1, 5, 1e-5, [0.1, 0.177907, 0.157855, 0.161284, 0.160642, 0.160760], 0.16074171, -0.1847),
    ("B", 0.5, 5, 1e-5, [0.5, 0.598686, 0.600613, 0.600691, 0.600694, 0.600694], 0.60069417, 0.0411),
    ("C", 0.01, 2, 1e-5, [0.01, 0.605284, 0.027326, 0.178168, 0.035968, 0.128940], 0.06829683, -0.8555),
    ("E", 0.1, 1, 1e-5, [0.1, 0.756930, 0.533464, 0.451956, 0.453146, 0.453032], 0.45304224, None),
    ("E smooth", 0.1, 1, 0.1, [0.1, 0.524214, 0.376249, 0.384929, 0.383669], 0.38382351, None),
]


@pytest.mark.parametrize(("name", "p_ref", "beta", "smoothing", "values", "limit", "steepness"), RECURSION, ids=[row[0] for row in RECURSION])
def test_recursion_and_fixed_point(name, p_ref, beta, smoothing, values, limit, steepness):
    path = trajectory(lambda p: next_success(p, p_ref, beta, partial(std_gap, smoothing=smoothing)), p_ref, 400)
    np.testing.assert_allclose(path[: len(values)], values, atol=1e-6)
    lowest = fixed_points(p_ref, beta, smoothing)[0]
    assert lowest.p == pytest.approx(limit, abs=1e-8) and lowest.stable
    assert path[-1] == pytest.approx(limit, abs=1e-6)
    if steepness is not None:
        assert lowest.slope == pytest.approx(steepness, abs=5e-5)


def test_the_upper_root_is_found_and_unstable():
    lower, upper, saturated = fixed_points(0.1, 5, 1e-5)
    assert upper.p == pytest.approx(0.99961442, abs=1e-8) and upper.slope == pytest.approx(4.90, abs=5e-3) and not upper.stable
    assert lower.stable and saturated.stable and saturated.p == 1.0 and saturated.logit > 60


def test_two_cycle_of_a_rare_success():
    low, high = two_cycle(0.001, 5, 1e-5)
    assert (round(low, 5), round(high, 5)) == (0.00234, 0.05872)
    assert next_success(low, 0.001, 5, SMOOTHED) == pytest.approx(high, abs=1e-10)
    assert next_success(high, 0.001, 5, SMOOTHED) == pytest.approx(low, abs=1e-10)
    fixed = fixed_points(0.001, 5, 1e-5)[0]
    assert fixed.p == pytest.approx(0.00862203, abs=1e-8) and fixed.slope == pytest.approx(-1.061, abs=5e-4) and not fixed.stable
    path = trajectory(lambda p: next_success(p, 0.001, 5, SMOOTHED), 0.001, 2001)
    np.testing.assert_allclose(sorted(path[-2:]), [low, high], rtol=1e-6)


def test_no_two_cycle_where_the_fixed_point_is_stable():
    assert two_cycle(0.1, 5, 1e-5) is None and two_cycle(0.1, 0.1, 1e-5) is None


@pytest.mark.parametrize("p_ref", [0.001, 0.1, 0.7])
@pytest.mark.parametrize("beta", [0.05, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("smoothing", [0.0, 1e-5, 0.1])
def test_all_roots_against_a_fine_scan(p_ref, beta, smoothing):
    """Sign changes of h(x) - x on the logit scale, 400,000 places."""
    x = np.linspace(-8, 60, 400_001) if smoothing == 0 else np.linspace(-8, 10 + 1 / (beta * math.sqrt(smoothing)), 400_001)
    gap = 1 / np.sqrt(expit(x) * expit(-x) + smoothing)
    difference = np.log(p_ref / (1 - p_ref)) + gap / beta - x
    places = x[:-1][np.sign(difference[:-1]) != np.sign(difference[1:])]
    roots = [root.logit for root in fixed_points(p_ref, beta, smoothing)]
    assert len(roots) == len(places)
    np.testing.assert_allclose(roots, places, atol=2 * (x[1] - x[0]))


def test_slope_is_the_derivative():
    p = np.array([0.02, 0.3, 0.5, 0.8])
    wider = [next_success(p + sign * 1e-6, 0.1, 3, SMOOTHED) for sign in (1, -1)]
    np.testing.assert_allclose(slope(p, 0.1, 3, 1e-5), (wider[0] - wider[1]) / 2e-6, rtol=1e-6, atol=1e-8)
    root = fixed_points(0.1, 3, 1e-5)[0]
    assert slope(root.p, 0.1, 3, 1e-5) == pytest.approx(root.slope, abs=1e-9)


def test_thresholds_of_beta():
    table = {0.001: 0.278, 0.01: 0.401, 0.05: 0.571, 0.1: 0.697, 0.2: 0.896, 0.3: 1.082, 0.5: 1.509, 0.7: 2.185, 0.9: 4.137}
    for p_ref, beta in table.items():
        assert critical_beta(p_ref) == pytest.approx(beta, abs=5.01e-4)
        assert len(fixed_points(p_ref, critical_beta(p_ref) * 1.001)) == 2
        assert len(fixed_points(p_ref, critical_beta(p_ref) * 0.999)) == 0


def test_where_the_fixed_point_flips():
    assert flip_interval(0.001) == pytest.approx((0.338, 5.68), abs=2e-3)
    assert flip_interval(0.01) == pytest.approx((0.949, 1.055), abs=5e-4)
    assert flip_interval(0.02) is None
    for p_ref in (0.001, 0.01):
        for end, inside in zip(flip_interval(p_ref), (1.001, 0.999)):
            assert not fixed_points(p_ref, end * inside)[0].stable and fixed_points(p_ref, end / inside)[0].stable


def test_overshoot_past_the_upper_root_although_beta_is_above_the_threshold():
    assert critical_beta(0.01) < 1
    assert trajectory(lambda p: next_success(p, 0.01, 1), 0.01, 50)[-1] == 1.0


def test_success_is_amplified_for_every_beta():
    p = np.linspace(1e-6, 1 - 1e-6, 1001)
    for beta in (0.01, 1, 100):
        assert (next_success(p, 0.3, beta) > 0.3).all()


# ---- variants ---------------------------------------------------------------------------------------------------------------------------


def test_variants():
    limits = [next_success(0.1, 0.1, beta, no_std) for beta in (5, 2, 1)]
    np.testing.assert_allclose(limits, [0.119495, 0.154828, 0.231969], atol=1e-6)
    mirror = trajectory(lambda p: next_success(p, 0.1, 0, SMOOTHED, alpha=5), 0.1, 5)
    np.testing.assert_allclose(mirror, [0.1, 0.177907, 0.267441, 0.364518, 0.464990, 0.564810], atol=1e-6)
    mirror_no_std = trajectory(lambda p: next_success(p, 0.1, 0, no_std, alpha=5), 0.1, 5)
    np.testing.assert_allclose(mirror_no_std, [0.1, 0.119495, 0.142189, 0.168370, 0.198257, 0.231969], atol=1e-6)
    two_kl = trajectory(lambda p: next_success(p, 0.1, 5, SMOOTHED, alpha=5), 0.1, 100)
    np.testing.assert_allclose(two_kl[:5], [0.1, 0.134248, 0.149662, 0.156179, 0.158874], atol=1e-6)
    assert two_kl[-1] == pytest.approx(fixed_points(0.1, 5, 1e-5)[0].p, abs=1e-10), "damping does not move the fixed point"


def test_forward_kl():
    paths = {beta: trajectory(lambda p, beta=beta: next_success_forward_kl(p, 0.1, beta, 1e-5), 0.1, 300) for beta in (5, 2, 1)}
    np.testing.assert_allclose(paths[5][:4], [0.1, 0.210967, 0.168765, 0.178194], atol=1e-6)
    np.testing.assert_allclose([paths[beta][-1] for beta in (5, 2, 1)], [0.176194, 0.336199, 0.591539], atol=1e-6)


@pytest.mark.parametrize("p", [0.02, 0.4, 0.93])
@pytest.mark.parametrize("beta", [0.1, 3.0])
def test_forward_kl_solves_its_normalisation(p, beta):
    """p_n = p_ref beta / (lambda - omega+) where the two masses sum to 1: lambda by bisection."""
    p_ref, (plus, minus) = 0.1, whitened_advantages(p, 1e-5)
    low, high = plus + 1e-14, plus + 1e4
    for _ in range(200):
        middle = (low + high) / 2
        total = p_ref * beta / (middle - plus) + (1 - p_ref) * beta / (middle + minus)
        low, high = (middle, high) if total > 1 else (low, middle)
    assert next_success_forward_kl(p, p_ref, beta, 1e-5) == pytest.approx(p_ref * beta / (low - plus), rel=1e-7)


def test_forward_kl_at_full_success_stays_there():
    assert next_success_forward_kl(np.array([1.0, 0.5]), 0.5, 1.0)[0] == 1.0


def test_tracking_error_has_a_bound_only_for_contractions():
    assert tracking_error(0.01, 0.5) == 0.02
    with pytest.raises(ValueError, match="below 1"):
        tracking_error(0.01, 1.0)


# ---- verifiers that err -----------------------------------------------------------------------------------------------------------------


FLIPS = [((1, 0), 0.40873), ((0.86, 0), 0.38412), ((0.86, 0.05), 0.36899), ((0.4, 0.6), 0.16966), ((0.5, 0.5), 0.2)]


@pytest.mark.parametrize(("rates", "limit"), FLIPS)
def test_random_flips(rates, limit):
    gap = partial(noisy_gap, true_positive=rates[0], false_positive=rates[1], smoothing=1e-5)
    path = trajectory(lambda p: next_success(p, 0.2, 2, gap), 0.2, 500)
    assert path[-1] == pytest.approx(limit, abs=5e-6)


def test_advantage_gap_under_flips_equals_a_simulation():
    """E[A | right] - E[A | wrong] of whitened noisy rewards; p = .3, TPR .8, FPR .1 gives 1.5135."""
    assert noisy_gap(0.3, 0.8, 0.1) == pytest.approx(1.5135, abs=5e-5)
    generator = np.random.default_rng(0)
    right = generator.random(1_000_000) < 0.3
    paid = generator.random(1_000_000) < np.where(right, 0.8, 0.1)
    advantages = (paid - paid.mean()) / paid.std()
    assert advantages[right].mean() - advantages[~right].mean() == pytest.approx(1.5135, abs=0.01)


@pytest.mark.parametrize(
    ("rates", "precision", "acceptance", "truth"), [((0.86, 0.05), 0.8113, 0.42518, 0.36538), ((0.5, 0.5), 0.2, 0.76472, 0.2)]
)
def test_systematic_errors_cap_true_success_at_the_precision(rates, precision, acceptance, truth):
    accepted, ppv, omission = systematic_errors(0.2, *rates)
    limit = trajectory(lambda p: next_success(p, accepted, 2, SMOOTHED), accepted, 500)[-1]
    assert ppv == pytest.approx(precision, abs=5e-5)
    assert limit == pytest.approx(acceptance, abs=5e-6)
    assert true_success(limit, ppv, omission) == pytest.approx(truth, abs=5e-6)
    assert true_success(1.0, ppv, omission) == ppv
    assert true_success(accepted, ppv, omission) == pytest.approx(0.2), "before training it is p_ref"


# ---- weights of the gradient ------------------------------------------------------------------------------------------------------------


def test_group_weights():
    p = np.array([0.01, 0.05, 0.1, 0.3, 0.5])
    np.testing.assert_allclose(group_weight(p, 8), [2.609, 2.473, 2.328, 1.963, 1.856], atol=5.01e-4)
    np.testing.assert_allclose(group_weight(p, 16), [3.733, 3.267, 2.848, 2.092, 1.934], atol=5.01e-4)  # at .3: 2.09249
    np.testing.assert_allclose(std_gap(p), [10.05, 4.588, 3.333, 2.182, 2.0], atol=5.01e-3)
    np.testing.assert_allclose(group_weight(p[1:], 100_000), std_gap(p[1:]), rtol=1e-3)
    m = np.arange(9)
    closed = [sum(math.comb(8, k) * q**k * (1 - q) ** (8 - k) * math.sqrt(k * (8 - k)) for k in m) / (8 * q * (1 - q)) for q in p]
    np.testing.assert_allclose(group_weight(p, 8), closed, rtol=1e-12)
    assert group_weight(0.0, 8) == pytest.approx(math.sqrt(7))


def test_shares_of_groups_with_a_signal():
    np.testing.assert_allclose([signal_share(0.01, group) for group in (8, 16, 64)], [0.077, 0.149, 0.474], atol=5.01e-4)
    assert signal_share(0.0, 8) == 0 and signal_share(1.0, 8) == 0


def test_dynamic_sampling_cost():
    assert dynamic_sampling_cost(np.array([0.5]), 2) == 2.0
    assert dynamic_sampling_cost(np.array([0.5, 0.0]), 2) == 4.0
    assert dynamic_sampling_cost(np.array([0.0, 1.0]), 8) == math.inf
    p, generator = np.array([0.05, 0.4, 0.9]), np.random.default_rng(1)
    solved = generator.binomial(8, generator.choice(p, 200_000))
    assert dynamic_sampling_cost(p, 8) == pytest.approx(1 / np.mean((solved > 0) & (solved < 8)), rel=0.01)


def enumerated_gradient(logits: np.ndarray, right: np.ndarray, group: int, advantages) -> np.ndarray:
    """E[(1/G) sum_i A_i grad log pi(o_i)] by going through every ordered group of moves."""
    policy = np.exp(logits) / np.exp(logits).sum()
    total = np.zeros_like(policy)
    for moves in itertools.product(range(len(policy)), repeat=group):
        scores = np.eye(len(policy))[list(moves)] - policy
        total += np.prod(policy[list(moves)]) * advantages(right[list(moves)].astype(float)) @ scores / group
    return total


def success_gradient(logits: np.ndarray, right: np.ndarray) -> np.ndarray:
    policy = np.exp(logits) / np.exp(logits).sum()
    return policy * (right - policy @ right)


def whitened(rewards: np.ndarray) -> np.ndarray:
    return np.zeros_like(rewards) if rewards.std() < 1e-9 else (rewards - rewards.mean()) / rewards.std()


LOGITS, RIGHT = np.array([0.3, -1.0, 0.9, 0.1]), np.array([0, 1, 0, 1])
P = float(np.exp(LOGITS)[RIGHT == 1].sum() / np.exp(LOGITS).sum())


@pytest.mark.parametrize(
    ("advantages", "weight"),
    [
        (whitened, lambda group: group_weight(P, group)),
        (lambda rewards: rewards - rewards.mean(), lambda group: (group - 1) / group),
        (lambda rewards: (rewards - rewards.mean()) * len(rewards) / (len(rewards) - 1), lambda group: 1.0),
    ],
    ids=["grpo", "dr_grpo", "rloo"],
)
def test_expected_gradients_by_enumeration(advantages, weight):
    gradient = enumerated_gradient(LOGITS, RIGHT, 5, advantages)
    np.testing.assert_allclose(gradient, weight(5) * success_gradient(LOGITS, RIGHT), atol=1e-14)


def test_dr_grpo_scales_the_gradient_by_seven_eighths():
    m = np.arange(9)
    assert gradient_weight(0.3, 1 - m / 8, -m / 8) == pytest.approx(0.875, abs=1e-14)
    assert dr_grpo_objective(0.4, 8) == pytest.approx(0.35)


@pytest.mark.parametrize(("group", "k", "factor"), [(8, 4, 0.125), (16, 4, 0.1875), (32, 8, 0.09375)])
def test_pass_at_k_training_climbs_pass_at_k(group, k, factor):
    """Without sigma: right samples get 1 - R, wrong ones 1 - R - C(N-c-1, k-1) / C(N-1, k-1), with exact fractions."""
    m = range(group + 1)
    fail = [math.comb(group - c, k) / math.comb(group, k) for c in m]
    wrong = [fail[c] - math.comb(group - c - 1, k - 1) / math.comb(group - 1, k - 1) if c < group else 0.0 for c in m]
    assert pass_at_k_factor(group, k) == factor
    for p in (0.03, 0.4):
        assert gradient_weight(p, np.array(fail), np.array(wrong)) == pytest.approx(factor * k * (1 - p) ** (k - 1), rel=1e-10)
    assert pass_at_k_factor(group, 1) == (group - 1) / group, "k = 1 is Dr. GRPO"


def test_effective_objectives_have_the_weights_as_derivatives():
    p, step = np.array([0.05, 0.3, 0.8]), 1e-6
    derivatives = {"rloo": np.ones(3), "grpo": std_gap(p), "rft": 1 / p}
    for name, objective in EFFECTIVE_OBJECTIVES.items():
        np.testing.assert_allclose((objective(p + step) - objective(p - step)) / (2 * step), derivatives[name], rtol=1e-7)


def test_pass_at_k_objective_keeps_small_probabilities():
    assert pass_at_k_objective(1e-9, 1_000_000) == pytest.approx(1e-3, rel=1e-3)
    assert pass_at_k_objective(1e-18, 1) == 1e-18
    assert pass_at_k_objective(1.0, 5) == 1.0
