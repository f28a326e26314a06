"""Coverage measures against exact fractions, brute force and planted crossings."""

from decimal import Decimal, localcontext
from itertools import combinations
from math import comb

import numpy as np
import pytest

from analysis import coverage
from analysis.resampling import Weights
from chessrl.statistics import pass_at_k
from chessrl.theory_weights import pass_at_k_objective


def test_exact_pass_at_k_is_stable_at_a_million_samples() -> None:
    values = pass_at_k_objective(np.array([0.0, 1e-9, 1e-6, 0.5, 1.0])[:, None], [1, 1_000_000])
    with localcontext() as context:
        context.prec = 60
        rare = [float(1 - (1 - Decimal(p)) ** 1_000_000) for p in ("1e-9", "1e-6")]
    expected = [[0, 0], [1e-9, rare[0]], [1e-6, rare[1]], [0.5, 1], [1, 1]]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    with pytest.raises(ValueError, match="probabilities"):
        pass_at_k_objective(np.array([1.1]), 1)


def test_the_unbiased_estimator_has_the_exact_value_as_its_mean() -> None:
    p, n, k = 0.23, 12, 5
    mean = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert mean == pytest.approx(pass_at_k_objective(p, k))


def test_a_planted_crossover_is_found() -> None:
    """The base solves half the puzzles rarely, RL solves a tenth fewer of them surely: ahead at small k, behind at large k."""
    rng = np.random.default_rng(0)
    ks = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    base = np.where(np.arange(400) < 240, 0.08, 0.0)
    trained = np.where(np.arange(400) < 200, 0.9, 0.0)
    curves = [pass_at_k_objective(policy[:, None], ks) for policy in (base, trained)]
    weights = Weights.draw(400, 1, rng)
    curves = [curve[None] for curve in curves]  # one seed
    found = coverage.crossover(*curves, ks, weights)
    means = [curve.mean((0, 1)) for curve in curves]
    assert found.k == next(k for k, a, b in zip(ks, *means) if a >= b) == 32
    assert found.low <= 32 <= found.high
    assert found.never < 0.05
    never = coverage.crossover(curves[1], curves[1] + 0.05, ks, weights)
    assert (never.k, never.never) == (np.inf, 1.0)
    assert coverage.crossover(curves[1], curves[0] * 0.5, ks, weights).k == 1


def test_delta_se_is_the_difference_of_means() -> None:
    rng = np.random.default_rng(1)
    base, trained = rng.random(300), rng.random(300)
    point, low, high = coverage.delta_se(base[None], trained[None], Weights.draw(300, 1, rng))
    assert point == pytest.approx(base.mean() - trained.mean())
    assert high - low == pytest.approx(2 * 1.96 * (base - trained).std() / np.sqrt(300), rel=0.1)


def test_cells_count_observed_coverage() -> None:
    cells = coverage.coverage_cells(np.array([1, 1, 0, 0, 1]), np.array([1, 0, 1, 0, 1]))
    assert dict(zip(coverage.CELLS, cells.sum(0))) == {"both": 2, "base only": 1, "RL only": 1, "neither": 1}
    np.testing.assert_allclose(coverage.coverage_cells(np.array([0.3]), np.array([0.6])), [[0.18, 0.12, 0.42, 0.28]])


def test_the_null_is_what_the_base_itself_solves_when_sampled_again() -> None:
    """By enumeration: all ways to split n samples into a first and a second set of k."""
    n, c, k = 6, 2, 2
    outcomes = np.array([1] * c + [0] * (n - c))
    first_fails = newly = 0
    for first in combinations(range(n), k):
        rest = [place for place in range(n) if place not in first]
        for second in combinations(rest, k):
            if not outcomes[list(first)].any():
                first_fails += 1
                newly += outcomes[list(second)].any()
    base, twice = (pass_at_k(np.array([[n]]), np.array([[c]]), k) for k in (k, 2 * k))
    found = coverage.newly_solved(base, twice, np.array([[0.7]]), Weights.draw(1, 1, np.random.default_rng(0)))
    assert found["null"][0] == pytest.approx(newly / first_fails)
    assert found["newly_solved"][0] == pytest.approx(0.7)
    assert found["unsolved"][0] == pytest.approx(comb(4, 2) / comb(6, 2))


def test_a_base_trained_on_nothing_new_shows_the_null_alone() -> None:
    """Binomial counts of p log-uniform on [1e-4, 1]: the null of 256 samples is 21.4 % in the limit of exact p."""
    rng = np.random.default_rng(0)
    p = 10 ** rng.uniform(-4, 0, 40_000)
    counts = rng.binomial(1024, p)
    again = pass_at_k_objective(p, 256)
    base, twice = (pass_at_k(np.full(len(p), 1024), counts, k)[None] for k in (256, 512))
    weights = Weights.draw(len(p), 1, rng, resamples=50)
    found = coverage.newly_solved(base, twice, again[None], weights)
    assert found["null"][0] == pytest.approx(0.214, abs=0.01)
    assert found["newly_solved"][0] == pytest.approx(found["null"][0], abs=0.02)
    assert found["excess"][1] < 0.005 and found["excess"][2] > -0.005
    exact = coverage.newly_solved(*(pass_at_k_objective(p, k)[None] for k in (256, 512, 256)), weights)
    assert exact["excess"][0] == pytest.approx(0, abs=1e-12)  # the base is the trained policy
    assert exact["null"][0] == pytest.approx(0.214, abs=0.003)


def test_majority_is_exact_when_all_samples_vote() -> None:
    rng = np.random.default_rng(0)
    answers = np.array([[0, 0, 0, 1, 2], [0, 0, 1, 1, 2], [3, 1, 1, 2, 2]])
    solved = np.array([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    found = coverage.majority_at_k(answers, solved, [1, 3, 5], rng, draws=20_000)
    np.testing.assert_allclose(found[:, 2], [1.0, 0.5, 0.0])  # a tie counts half
    np.testing.assert_allclose(found[:, 0], solved.mean(1), atol=0.015)
    by_hand = np.mean([_majority([answers[0][i] for i in subset]) for subset in combinations(range(5), 3)])
    assert found[0, 1] == pytest.approx(by_hand, abs=0.015)
    with pytest.raises(ValueError, match="maj@6 needs 6"):
        coverage.majority_at_k(answers, solved, [1, 6], rng)


def _majority(answers: list[int]) -> float:
    """Whether answer 0 is the most frequent, a tie shared."""
    votes = [answers.count(answer) for answer in set(answers)]
    return float(answers.count(0) == max(votes)) / votes.count(max(votes))


def test_a_budget_buys_whole_samples_and_at_least_one() -> None:
    assert coverage.matched_samples(1000, 64) == 15
    assert coverage.matched_samples(10, 64) == 1
