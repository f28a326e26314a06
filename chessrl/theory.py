"""GRPO's own theory: how the success probability of one prompt moves from iteration to iteration.

After Mroueh, "Reinforcement Learning with Verifiable Rewards: GRPO's Effective Loss, Dynamics, and Success Amplification", arXiv 2503.06639;
the formulas are derived anew (docs/theory.md) and checked numerically. Setting: one prompt, binary reward, no clipping, and in every
iteration the exact maximiser over theta of

    E_{o ~ pi_{n-1}}[ (pi_theta / pi_{n-1})(o) A(o) ] - beta KL(pi_theta || pi_ref) - alpha KL(pi_theta || pi_{n-1}),

A being the whitened advantage: omega+ on right answers, -omega- on wrong ones. The maximiser is pi_ref tilted by A / beta (alpha = 0), so only
the gap omega+ + omega- enters the success probability:

    logit p_n = (beta logit p_ref + alpha logit p_{n-1} + gap(p_{n-1})) / (alpha + beta).

alpha = 0 is the recursion h of the paper, beta = 0 its mirror variant; the gap is ``std_gap`` (GRPO), 1 (no division by the std: Dr. GRPO),
``theory_weights.group_weight`` (groups of finite size) or ``noisy_gap`` (a verifier that errs). Probabilities may be numbers or arrays.
On the logit scale x, and without smoothing, the gap is 2 cosh(x / 2), which is convex: this settles how many fixed points there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, logit

Gap = Callable[[np.ndarray], np.ndarray]

LARGEST_LOGIT = 1400.0  # cosh of half of it is still finite; without smoothing a trajectory that saturates goes on for ever


def std_gap(p: np.ndarray, smoothing: float = 0.0) -> np.ndarray:
    """omega+ + omega- = 1 / sqrt(p (1 - p) + smoothing); infinite at 0 and 1 without smoothing."""
    with np.errstate(divide="ignore"):
        return 1.0 / np.sqrt(p * (1.0 - np.asarray(p, np.float64)) + smoothing)


def whitened_advantages(p: np.ndarray, smoothing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """(omega+, omega-): the advantage of a right answer, and minus that of a wrong one."""
    gap = std_gap(p, smoothing)
    return (1.0 - np.asarray(p)) * gap, np.asarray(p) * gap


def noisy_gap(p: np.ndarray, true_positive: float, false_positive: float, smoothing: float = 0.0) -> np.ndarray:
    """Gap of a verifier whose verdict flips at random, rollout by rollout: J / sqrt(q (1 - q) + smoothing), J = TPR - FPR, q = FPR + J p.

    J = 0 moves nothing, J < 0 teaches the wrong answers.
    """
    advantage_gap = true_positive - false_positive
    return advantage_gap * std_gap(false_positive + advantage_gap * np.asarray(p, np.float64), smoothing)


def next_success(p: np.ndarray, p_ref: np.ndarray, beta: float, gap: Gap = std_gap, alpha: float = 0.0) -> np.ndarray:
    """p_n of p_{n-1} (module docstring). beta: weight of the KL to the reference, alpha: of the KL to the previous policy; not both 0."""
    previous = np.asarray(p, np.float64)
    anchors = beta * logit(p_ref) + (alpha * logit(previous) if alpha else 0.0)
    return expit((anchors + gap(previous)) / (alpha + beta))


def next_success_forward_kl(p: np.ndarray, p_ref: np.ndarray, beta: float, smoothing: float = 0.0) -> np.ndarray:
    """p_n where the penalty is KL(pi_ref || pi), whose gradient the k3 estimator in the loss has on policy.

    p_n = p_ref beta / (lambda - omega+), lambda from normalisation; the quadratic in lambda solved without cancellation, s = gap(p_{n-1}):
    p_n = (s - beta + sqrt((s - beta)^2 + 4 beta p_ref s)) / 2 s.
    """
    s = std_gap(p, smoothing)
    with np.errstate(invalid="ignore"):
        root = np.hypot(s - beta, 2.0 * np.sqrt(beta * np.asarray(p_ref) * s))
        lifted = np.where(s > beta, (s - beta + root) / (2 * s), 2 * beta * np.asarray(p_ref) / (root + beta - s))
    return np.where(np.isinf(s), 1.0, lifted)


def trajectory(step: Callable[[np.ndarray], np.ndarray], start: np.ndarray, steps: int) -> np.ndarray:
    """(steps + 1, ...): the start and what ``step`` makes of it again and again."""
    values = [np.asarray(start, np.float64)]
    for _ in range(steps):
        values.append(step(values[-1]))
    return np.stack(values)


def systematic_errors(p_ref: float, true_positive: float, false_positive: float) -> tuple[float, float, float]:
    """(a_ref, PPV, FOR) of a verifier whose error on an answer is always the same.

    The share of accepted answers a_n follows the recursion from a_ref = p_ref TPR + (1 - p_ref) FPR. Within accepted and within refused answers
    nothing moves, so true success is ``true_success(a_n, PPV, FOR)`` and never passes PPV = p_ref TPR / a_ref.
    """
    accepted = p_ref * true_positive + (1 - p_ref) * false_positive
    return accepted, p_ref * true_positive / accepted, p_ref * (1 - true_positive) / (1 - accepted)


def true_success(accepted: np.ndarray, precision: float, omission: float) -> np.ndarray:
    """a PPV + (1 - a) FOR: success by the truth when a verifier with systematic errors accepts a share a."""
    return np.asarray(accepted) * precision + (1 - np.asarray(accepted)) * omission


def tracking_error(distance: float, lipschitz: float) -> float:
    """Bound on limsup |p_n - p*| when every iteration misses the maximiser by total variation ``distance`` and |h'| <= ``lipschitz`` < 1 around p*.

    Raises ValueError for ``lipschitz`` >= 1, where there is no bound.
    """
    if not 0 <= lipschitz < 1:
        raise ValueError(f"lipschitz={lipschitz}: expected a value from 0 to below 1")
    return distance / (1 - lipschitz)


# ---- fixed points of h (reference KL alone, alpha = 0) -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """A root of p = h(p). ``logit`` tells roots near 1 apart, where ``p`` rounds to 1; ``slope`` is h' there."""

    logit: float
    p: float
    slope: float

    @property
    def stable(self) -> bool:
        """Whether trajectories from nearby come closer (|h'| < 1)."""
        return abs(self.slope) < 1


def slope(p: np.ndarray, p_ref: np.ndarray, beta: float, smoothing: float = 0.0) -> np.ndarray:
    """h'(p) = h (1 - h) (2p - 1) / (2 beta (p (1 - p) + smoothing)^(3/2)): negative below 1/2, positive above."""
    p = np.asarray(p, np.float64)
    h = next_success(p, p_ref, beta, lambda value: std_gap(value, smoothing))
    return h * (1 - h) * (2 * p - 1) / (2 * beta * (p * (1 - p) + smoothing) ** 1.5)


def _gap_of_logit(x: float, smoothing: float) -> float:
    return 2 * np.cosh(x / 2) if smoothing == 0 else float(1 / np.sqrt(expit(x) * expit(-x) + smoothing))


def _gap_slope(x: float, smoothing: float) -> float:
    """d gap / d logit."""
    if smoothing == 0:
        return float(np.sinh(x / 2))
    variance = expit(x) * expit(-x)
    return float(0.5 * variance * (expit(x) - expit(-x)) * (variance + smoothing) ** -1.5)


def _turning_points(beta: float, smoothing: float) -> list[float]:
    """The logits at which logit h(x) - x turns, in order: its slope is gap'(x) / beta - 1, negative for x <= 0.

    Without smoothing gap' = sinh(x / 2): one turn, at 2 asinh(beta). With it gap' rises to one maximum and falls to 0: no turn or two.
    """
    if smoothing == 0:
        return [2 * float(np.arcsinh(beta))]
    end = 60.0 + abs(np.log(smoothing))  # far beyond the maximum, which is near p (1 - p) = 2 smoothing
    steepest = minimize_scalar(lambda x: -_gap_slope(x, smoothing), bounds=(0.0, end), method="bounded", options={"xatol": 1e-12}).x
    excess = lambda x: _gap_slope(x, smoothing) - beta  # noqa: E731
    if excess(steepest) <= 0:
        return []
    last = steepest
    while excess(last) > 0:  # gap' falls like exp(-x)
        last += 10.0
    return [brentq(excess, 0.0, steepest, xtol=1e-14), brentq(excess, steepest, last, xtol=1e-14)]


def fixed_points(p_ref: float, beta: float, smoothing: float = 0.0) -> list[FixedPoint]:
    """All roots of p = h(p) from the lowest: up to two interior ones without smoothing, up to three with it (the last then is saturation).

    Every root lies above p_ref, since the gap is positive. Between the turning points logit h(x) - x is monotone, so none is missed.
    """
    start = float(logit(p_ref))
    difference = lambda x: start + _gap_of_logit(x, smoothing) / beta - x  # noqa: E731
    turns = [turn for turn in _turning_points(beta, smoothing) if turn > start]
    highest = LARGEST_LOGIT if smoothing == 0 else max(start + 1 / (beta * np.sqrt(smoothing)), *turns, start) + 1.0
    borders = [start, *turns, highest]
    roots = [
        brentq(difference, low, high, xtol=1e-14, rtol=4 * np.finfo(float).eps)
        for low, high in itertools.pairwise(borders)
        if difference(low) * difference(high) < 0
    ]
    # At a fixed point the slope in p equals the slope in the logit, gap'(x) / beta, which does not cancel near p = 1.
    return [FixedPoint(x, float(expit(x)), _gap_slope(x, smoothing) / beta) for x in roots]


def critical_beta(p_ref: float) -> float:
    """beta_c: below it (no smoothing) h has no interior fixed point and p_n goes to 1; above it there are two.

    Where they meet, 2 sqrt(1 + beta^2) / beta - 2 asinh(beta) = -logit p_ref.
    """
    start = float(logit(p_ref))
    touching = lambda log_beta: start + 2 * np.hypot(1, np.exp(log_beta)) / np.exp(log_beta) - 2 * np.arcsinh(np.exp(log_beta))  # noqa: E731
    return float(np.exp(brentq(touching, -20.0, 20.0, xtol=1e-14)))


def flip_interval(p_ref: float) -> tuple[float, float] | None:
    """The betas between which the lower fixed point is unstable and p_n ends in a two-cycle (no smoothing); None where there are none.

    h' = -1 at the fixed point x = -2 asinh(beta), so 2 sqrt(1 + beta^2) / beta + 2 asinh(beta) = -logit p_ref. The left side is least at
    beta = 1, 2 sqrt 2 + 2 asinh 1 = 4.591: above p_ref = 0.01004 no beta flips.
    """
    start = float(logit(p_ref))
    flipping = lambda log_beta: start + 2 * np.hypot(1, np.exp(log_beta)) / np.exp(log_beta) + 2 * np.arcsinh(np.exp(log_beta))  # noqa: E731
    if flipping(0.0) >= 0:
        return None
    return float(np.exp(brentq(flipping, -20.0, 0.0, xtol=1e-14))), float(np.exp(brentq(flipping, 0.0, 400.0, xtol=1e-13)))


def two_cycle(p_ref: float, beta: float, smoothing: float = 0.0) -> tuple[float, float] | None:
    """(low, high) with h(low) = high and h(high) = low around a lowest fixed point that flips (h' < -1); None where it does not.

    One exists: h(h(p)) > p at p_ref, and h(h(p)) < p just below such a fixed point.
    """
    roots = fixed_points(p_ref, beta, smoothing)
    if not roots or roots[0].slope >= -1:
        return None
    start = float(logit(p_ref))
    step = lambda x: start + _gap_of_logit(x, smoothing) / beta  # noqa: E731
    nearest = next(
        (edge for edge in roots[0].logit - np.geomspace(1e-9, roots[0].logit - start, 200) if step(step(edge)) < edge), None
    )
    if nearest is None:
        return None
    low = brentq(lambda x: step(step(x)) - x, start, nearest, xtol=1e-14)
    return float(expit(low)), float(expit(step(low)))
