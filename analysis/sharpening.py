"""Sharpening or redistribution: how a later policy q follows from an earlier one p, on the same states (arXiv 2607.16097, appendix H).

A state is a puzzle and a decision of its solver. Arrays are padded: probabilities (states, moves) with ``legal`` (states, moves) bool, 0 where a
move is not; natural logarithms; log-probabilities are floored at log 1e-12. Every state has the same weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

FLOOR = 1e-12
LARGEST_POWER = 10.0
LARGEST_TILT = 60.0
_HALVINGS = 60  # of the interval: its end is below the last bit of what is searched
TOP = 3  # k of the top-k sets
TAIL = 0.05  # a move below this probability is in the tail
CATEGORIES = (
    "ground-truth amplification", "tail discovery", "top-k correction", "ground-truth regression", "wrong-mode amplification", "other",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TracePolicies:
    """Move distributions of one policy given each of its traces: ``probabilities`` (states, traces, moves), each over the legal moves.

    ``scored`` (states, traces): False pads states with fewer traces.
    """

    probabilities: np.ndarray
    scored: np.ndarray

    def marginal(self) -> np.ndarray:
        """(states, moves): the mean over a state's traces."""
        return (self.probabilities * self.scored[..., None]).sum(1) / self.scored.sum(1)[:, None]


# ---- divergences ------------------------------------------------------------------------------------------------------------------------


def log_floored(probabilities: np.ndarray) -> np.ndarray:
    """log max(p, 1e-12)."""
    return np.log(np.maximum(probabilities, FLOOR))


def entropy(p: np.ndarray) -> np.ndarray:
    """H(p) over the last axis, nats."""
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def kl_divergence(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """KL(q || p) over the last axis, nats, with log p floored."""
    return (q * (np.log(np.where(q > 0, q, 1.0)) - np.where(q > 0, log_floored(p), 0.0))).sum(-1)


def js_divergence(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence over the last axis, nats: at most log 2."""
    middle = (p + q) / 2
    return np.maximum(entropy(middle) - (entropy(p) + entropy(q)) / 2, 0.0)


# ---- one-parameter families -------------------------------------------------------------------------------------------------------------


def _family(log_p: np.ndarray, legal: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """softmax over the legal moves of log_p + shift."""
    scores = np.where(legal, log_p + shift, -np.inf)
    scores = scores - scores.max(-1, keepdims=True)
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def power_family(p: np.ndarray, legal: np.ndarray, alpha: np.ndarray | float) -> np.ndarray:
    """p^alpha / Z over the legal moves; alpha a number or one per state."""
    powers = np.broadcast_to(np.asarray(alpha, np.float64), p.shape[:1])[:, None]
    return _family(powers * log_floored(p), legal, np.zeros(()))


def tilt_family(p: np.ndarray, legal: np.ndarray, solving: np.ndarray, tilt: np.ndarray | float) -> np.ndarray:
    """p exp(t r) / Z with r = 1 on solving moves; t a number or one per state."""
    tilts = np.broadcast_to(np.asarray(tilt, np.float64), p.shape[:1])[:, None]
    return _family(log_floored(p), legal, tilts * solving)


def _root(slope: Callable[[np.ndarray], np.ndarray], low: float, high: float, count: int) -> np.ndarray:
    """Minimum of a convex function on [low, high], ``count`` of them at once, by halving on its slope (count,), which increases."""
    lows, highs = np.full(count, low), np.full(count, high)
    for _ in range(_HALVINGS):
        middle = (lows + highs) / 2
        rising = slope(middle) > 0
        highs, lows = np.where(rising, middle, highs), np.where(rising, lows, middle)
    return (lows + highs) / 2


def best_power(p: np.ndarray, q: np.ndarray, legal: np.ndarray, per_state: bool) -> np.ndarray:
    """alpha* in [0, 10]: argmin of the mean KL(q || p^alpha / Z), (1,) over all states or (states,) each for itself.

    The KL is convex in alpha: its slope is E_{p_alpha}[log p] - E_q[log p], which grows with alpha.
    """
    statistic = np.where(legal, log_floored(p), 0.0)
    target = (q * statistic).sum(1)

    def slopes(alpha: np.ndarray) -> np.ndarray:
        each = (power_family(p, legal, alpha) * statistic).sum(1) - target
        return each if per_state else each.mean(keepdims=True)

    return _root(slopes, 0.0, LARGEST_POWER, len(p) if per_state else 1)


def best_tilt(p: np.ndarray, q: np.ndarray, legal: np.ndarray, solving: np.ndarray, per_state: bool) -> np.ndarray:
    """t* in [-60, 60]: argmin of the mean KL(q || p exp(t r) / Z); its slope is P_t(solving) - Q(solving). (1,) or (states,)."""
    target = (q * solving).sum(1)

    def slopes(tilt: np.ndarray) -> np.ndarray:
        each = (tilt_family(p, legal, solving, tilt) * solving).sum(1) - target
        return each if per_state else each.mean(keepdims=True)

    return _root(slopes, -LARGEST_TILT, LARGEST_TILT, len(p) if per_state else 1)


def explained_share(q: np.ndarray, p: np.ndarray, fitted: np.ndarray) -> float:
    """1 - sum JS(q, fitted) / sum JS(q, p): ExplainedSharp for the power family. NaN where p and q are equal and there is nothing to explain."""
    moved = js_divergence(q, p).sum()
    return float(1 - js_divergence(q, fitted).sum() / moved) if moved > 1e-12 else float("nan")


# ---- traces -----------------------------------------------------------------------------------------------------------------------------


def trace_sensitivity(policies: TracePolicies) -> np.ndarray:
    """(states,): mean over traces of KL(pi_i || pi) = H(pi) - mean H(pi_i), nats. 0 without traces."""
    count = policies.scored.sum(1)
    inner = (entropy(policies.probabilities) * policies.scored).sum(1) / count
    return entropy(policies.marginal()) - inner


def collapse_gap(q: np.ndarray, before: TracePolicies) -> np.ndarray:
    """(states,): JS(q, p) - min_i JS(q, p_i): how much nearer q is to the move choice of one trace than to the mean over traces."""
    each = np.where(before.scored, js_divergence(q[:, None], before.probabilities), np.inf)
    return js_divergence(q, before.marginal()) - each.min(1)


# ---- transitions ------------------------------------------------------------------------------------------------------------------------


def ranks(p: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Rank (states, moves) from 0 by probability, ties by the canonical order of moves; illegal ones come last."""
    order = np.argsort(np.where(legal, -p, np.inf), axis=1, kind="stable")
    places = np.empty_like(order)
    np.put_along_axis(places, order, np.arange(p.shape[1])[None], axis=1)
    return places


def ground_truth(p: np.ndarray, solving: np.ndarray) -> np.ndarray:
    """(states,): index of the solving move; where several solve, the one with the largest p."""
    return np.argmax(np.where(solving, p, -1.0), axis=1)


def categories(p: np.ndarray, q: np.ndarray, legal: np.ndarray, solving: np.ndarray, *, top: int = TOP, tail: float = TAIL) -> np.ndarray:
    """(states,) index into CATEGORIES: the first rule that holds (arXiv 2607.16097, appendix H).

    Raises ValueError where a state has no solving move.
    """
    if not solving.any(1).all():
        raise ValueError("a transition needs a solving move in every state")
    rows = np.arange(len(p))
    truth, worst = ground_truth(p, solving), np.argmax(np.where(legal, p, -1.0), axis=1)
    rank_p, rank_q = ranks(p, legal), ranks(q, legal)
    before, after = rank_p[rows, truth] < top, rank_q[rows, truth] < top
    rules = [
        before & after & (q[rows, truth] > p[rows, truth]),
        ~before & after & (p[rows, truth] < tail),
        ~before & after,
        before & ~after,
        ~before & ~after & (rank_q[rows, worst] < top) & (q[rows, worst] > p[rows, worst]),
    ]
    return np.select(rules, list(range(5)), default=5)
