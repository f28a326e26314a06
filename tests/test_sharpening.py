"""Policy measures on policies of known relation: powers, tilts, planted transitions, identical ones."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from analysis import sharpening
from analysis.sharpening import CATEGORIES, TracePolicies

STATES, MOVES = 40, 12


def random_policies(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p, legal, solving: between 3 and MOVES legal moves a state, one or two of them solving."""
    rng = np.random.default_rng(seed)
    legal = np.arange(MOVES) < rng.integers(3, MOVES + 1, STATES)[:, None]
    p = np.where(legal, rng.gamma(0.7, size=(STATES, MOVES)) + 1e-4, 0.0)
    solving = np.zeros((STATES, MOVES), bool)
    solving[np.arange(STATES), rng.integers(0, 3, STATES)] = True
    solving[:5, 1] = True
    return p / p.sum(1, keepdims=True), legal, solving


def test_divergences_equal_scipy() -> None:
    p, legal, _ = random_policies()
    q, _, _ = random_policies(1)
    q = np.where(legal, q + 0.01, 0.0)
    q /= q.sum(1, keepdims=True)
    np.testing.assert_allclose(sharpening.kl_divergence(q, p), rel_entr(q, p).sum(1), atol=1e-12)
    np.testing.assert_allclose(sharpening.js_divergence(q, p), jensenshannon(q, p, axis=1) ** 2, atol=1e-12)


def test_a_policy_sharpened_by_1_7_gives_1_7_everywhere() -> None:
    p, legal, _ = random_policies()
    q = sharpening.power_family(p, legal, 1.7)
    assert sharpening.best_power(p, q, legal, per_state=False)[0] == pytest.approx(1.7, abs=1e-9)
    np.testing.assert_allclose(sharpening.best_power(p, q, legal, per_state=True), 1.7, atol=1e-6)
    assert sharpening.explained_share(q, p, sharpening.power_family(p, legal, 1.7)) == pytest.approx(1.0)


def test_the_best_power_is_the_minimum_that_a_search_finds() -> None:
    p, legal, solving = random_policies()
    q = sharpening.tilt_family(p, legal, solving, 1.3)

    def mean_kl(alpha: float) -> float:
        return sharpening.kl_divergence(q, sharpening.power_family(p, legal, alpha)).mean()

    found = minimize_scalar(mean_kl, bounds=(0, 10), method="bounded")
    assert sharpening.best_power(p, q, legal, per_state=False)[0] == pytest.approx(found.x, abs=1e-4)
    each = sharpening.best_power(p, q, legal, per_state=True)
    for state in range(3):
        one = (p[state : state + 1], q[state : state + 1], legal[state : state + 1])

        def own_kl(alpha: float, one: tuple = one) -> float:
            return sharpening.kl_divergence(one[1], sharpening.power_family(one[0], one[2], alpha))[0]

        assert each[state] == pytest.approx(minimize_scalar(own_kl, bounds=(0, 10), method="bounded").x, abs=1e-4)


def test_a_tilted_policy_gives_its_tilt_and_no_residual() -> None:
    p, legal, solving = random_policies()
    q = sharpening.tilt_family(p, legal, solving, 0.9)
    assert sharpening.best_tilt(p, q, legal, solving, per_state=False)[0] == pytest.approx(0.9, abs=1e-9)
    each = sharpening.best_tilt(p, q, legal, solving, per_state=True)
    mass = [(policy * solving).sum(1) for policy in (q, p)]
    np.testing.assert_allclose(each, np.log(mass[0] / (1 - mass[0])) - np.log(mass[1] / (1 - mass[1])), atol=1e-8)  # difference of logits
    assert sharpening.kl_divergence(q, sharpening.tilt_family(p, legal, solving, each)).max() < 1e-12
    assert sharpening.kl_divergence(q, sharpening.power_family(p, legal, sharpening.best_power(p, q, legal, per_state=True))).max() > 1e-3


def test_identical_policies_have_moved_nothing() -> None:
    p, legal, solving = random_policies()
    assert sharpening.best_power(p, p, legal, per_state=False)[0] == pytest.approx(1.0)
    assert np.isnan(sharpening.explained_share(p, p, p))
    assert sharpening.js_divergence(p, p).max() == 0
    assert set(sharpening.categories(p, p, legal, solving)) <= {CATEGORIES.index("other")}


def test_trace_sensitivity_is_the_mean_divergence_from_the_marginal() -> None:
    rng = np.random.default_rng(0)
    each = rng.dirichlet(np.ones(6), size=(5, 4))
    scored = np.ones((5, 4), bool)
    scored[0, 2:] = False
    policies = TracePolicies(each, scored)
    marginal = policies.marginal()
    np.testing.assert_allclose(marginal[0], each[0, :2].mean(0))
    by_definition = [np.mean([rel_entr(each[s, i], marginal[s]).sum() for i in range(4) if scored[s, i]]) for s in range(5)]
    np.testing.assert_allclose(sharpening.trace_sensitivity(policies), by_definition, atol=1e-9)
    one = TracePolicies(each[:, :1], scored[:, :1])
    np.testing.assert_allclose(sharpening.trace_sensitivity(one), 0, atol=1e-12)


def test_a_policy_that_became_one_trace_has_collapsed() -> None:
    each = np.array([[[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]])
    before = TracePolicies(each, np.ones((1, 2), bool))
    gap = sharpening.collapse_gap(each[:, 0], before)
    assert gap[0] == pytest.approx(sharpening.js_divergence(each[:, 0], before.marginal())[0])
    assert sharpening.collapse_gap(before.marginal(), before)[0] < 0


@pytest.mark.parametrize(
    ("p", "q", "name"),
    [
        ([0.30, 0.40, 0.20, 0.06, 0.04], [0.60, 0.20, 0.10, 0.06, 0.04], "ground-truth amplification"),
        ([0.04, 0.40, 0.30, 0.20, 0.06], [0.50, 0.20, 0.20, 0.06, 0.04], "tail discovery"),
        ([0.10, 0.30, 0.30, 0.20, 0.10], [0.40, 0.30, 0.20, 0.06, 0.04], "top-k correction"),
        ([0.30, 0.40, 0.20, 0.06, 0.04], [0.02, 0.50, 0.20, 0.18, 0.10], "ground-truth regression"),
        ([0.04, 0.40, 0.30, 0.20, 0.06], [0.04, 0.60, 0.20, 0.10, 0.06], "wrong-mode amplification"),
        ([0.04, 0.40, 0.30, 0.20, 0.06], [0.04, 0.35, 0.35, 0.20, 0.06], "other"),
        ([0.30, 0.40, 0.20, 0.06, 0.04], [0.30, 0.40, 0.20, 0.06, 0.04], "other"),
        ([0.30, 0.40, 0.20, 0.06, 0.04], [0.20, 0.50, 0.20, 0.06, 0.04], "other"),
    ],
)
def test_planted_transitions_are_found(p, q, name) -> None:
    solving = np.array([[True, False, False, False, False]])
    found = sharpening.categories(np.array([p]), np.array([q]), np.ones((1, 5), bool), solving)
    assert CATEGORIES[found[0]] == name


def test_of_several_solving_moves_the_likeliest_counts() -> None:
    p = np.array([[0.05, 0.45, 0.3, 0.2]])
    solving = np.array([[True, False, False, True]])
    assert sharpening.ground_truth(p, solving)[0] == 3
    with pytest.raises(ValueError, match="solving move"):
        sharpening.categories(p, p, p > 0, np.zeros((1, 4), bool))


def test_ties_rank_by_the_canonical_order_of_moves() -> None:
    p = np.array([[0.2, 0.4, 0.2, 0.2, 0.0]])
    legal = np.array([[True, True, True, True, False]])
    assert sharpening.ranks(p, legal).tolist() == [[1, 0, 2, 3, 4]]
