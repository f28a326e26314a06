"""Does RL extend what the policy can reach? pass@k curves against each other: crossover, Delta_SE, coverage cells, majority votes.

Definitions: Yue et al., arXiv 2504.13837, section 3 (coverage, crossover); Chen et al., arXiv 2107.03374 (pass@k); DeepSeekMath, arXiv 2402.03300
(maj@k). Arrays are per puzzle, in one order for both policies; the unit of resampling is the puzzle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.resampling import HIGH, LOW, Weights, interval, ratio_intervals
from chessrl.statistics import Interval
from chessrl.theory_weights import pass_at_k_objective

CELLS = ("both", "base only", "RL only", "neither")


def exact_pass_at_k(success: np.ndarray, ks: Sequence[int]) -> np.ndarray:
    """(puzzles, ks): 1 - (1 - p)^k of known success probabilities, stable for k up to 10^6 and p down to 10^-300.

    Raises ValueError for a p outside [0, 1] (rounding above 1 is taken as 1) or a k below 1.
    """
    success, ks = np.asarray(success, np.float64), np.asarray(ks)
    if (success < 0).any() or (success > 1 + 1e-6).any() or (ks < 1).any():
        raise ValueError("exact pass@k needs probabilities in [0, 1] and k >= 1")
    return pass_at_k_objective(np.minimum(success, 1.0)[:, None], ks)


# ---- crossover --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crossover:
    """Smallest k from which on the base is at least as good as the RL policy at every larger k of ``ks``; inf: RL is ahead at the largest k.

    ``low``, ``high``: percentile bootstrap over puzzles, and seeds; ``never``: the share of resamples without a crossover.
    """

    k: float
    low: float
    high: float
    never: float


def crossover(base: np.ndarray, trained: np.ndarray, ks: Sequence[int], weights: Weights) -> Crossover:
    """base, trained: pass@k (seeds, puzzles, ks) of the two policies on the same puzzles, ks ascending; weights: of the resamples.

    A crossover at the smallest k says that the base was never behind.
    """
    differences = np.asarray(base, np.float64) - np.asarray(trained, np.float64)
    places = np.asarray(ks, np.float64)

    def first(means: np.ndarray) -> np.ndarray:
        """(resamples,): the k after the last one at which the trained policy is ahead."""
        ahead = means < -1e-12
        last = np.where(ahead.any(1), means.shape[1] - 1 - np.argmax(ahead[:, ::-1], axis=1), -1)
        return np.append(places, np.inf)[last + 1]

    drawn = [np.sort(first(part / differences.shape[1])) for part in weights.sums(differences)]
    bounds = [[found[min(int(share * len(found)), len(found) - 1)] for share in (LOW, HIGH)] for found in drawn]  # inf has no quantile between
    point = first(differences.mean((0, 1))[None])[0]
    never = float(np.isinf(drawn[-1]).mean())  # over seeds and puzzles where there are several seeds
    return Crossover(float(point), float(min(low for low, _ in bounds)), float(max(high for _, high in bounds)), never)


def delta_se(base_large: np.ndarray, trained_one: np.ndarray, weights: Weights) -> Interval:
    """Sampling-efficiency gap pass@k_base - pass@1_RL (lower is better) of values (seeds, puzzles), with its paired interval."""
    gap = np.asarray(base_large, np.float64) - np.asarray(trained_one, np.float64)
    return interval(float(gap.mean()), [part[:, 0] / gap.shape[1] for part in weights.sums(gap[..., None])], gap.shape[1])


# ---- coverage ---------------------------------------------------------------------------------------------------------------------------


def coverage_cells(base: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """(..., CELLS): each puzzle's share of both, base only, RL only and neither. base, trained (...): the probability that k samples solve it.

    Observed coverage (0 or 1) gives the usual counts; pass@k values give their expectation for two independent sets of k samples.
    """
    a, b = np.asarray(base, np.float64), np.asarray(trained, np.float64)
    return np.stack([a * b, a * (1 - b), (1 - a) * b, (1 - a) * (1 - b)], axis=-1)


def newly_solved(base: np.ndarray, base_twice: np.ndarray, trained: np.ndarray, weights: Weights) -> dict[str, Interval]:
    """Of the puzzles that k base samples leave unsolved: the share that k samples of the trained policy solve, the null, and the excess over it.

    base, base_twice, trained: pass@k and pass@2k of the base and pass@k of the trained policy (seeds, puzzles), unbiased or exact. The null is
    what k further samples of the base itself would solve of them: E[first k fail, next k do not] = (1 - pass@k) - (1 - pass@2k). ``unsolved`` is the
    share of puzzles that is left. NaN where none is.
    """
    fails = 1 - base
    null = base_twice - base
    values = np.stack([fails * trained, null, fails * trained - null], axis=-1)
    ones = np.ones(fails.shape)
    shares = ratio_intervals(values, fails, weights, shares=False)
    return dict(zip(("newly_solved", "null", "excess"), shares)) | {"unsolved": ratio_intervals(fails[..., None], ones, weights)[0]}


# ---- majority -----------------------------------------------------------------------------------------------------------------------------


def majority_at_k(answers: np.ndarray, solved: np.ndarray, ks: Sequence[int], rng: np.random.Generator, draws: int = 200) -> np.ndarray:
    """(puzzles, ks): probability that the most frequent of k sampled answers is a solving one, ties broken uniformly.

    answers (puzzles, n): integer codes of the answers, equal codes equal answers; solved (puzzles, n): whether it solves, the same for equal
    answers of a puzzle. Estimated from ``draws`` subsets of k of the n samples, without replacement. Raises ValueError if k > n.
    """
    puzzles, n = answers.shape
    if max(ks) > n:
        raise ValueError(f"maj@{max(ks)} needs {max(ks)} samples per puzzle, found {n}")
    result = np.empty((puzzles, len(ks)))
    for row in range(puzzles):
        codes, places, counts = np.unique(answers[row], return_inverse=True, return_counts=True)
        solving = np.zeros(len(codes))
        solving[places] = solved[row]
        for at, k in enumerate(ks):
            votes = rng.multivariate_hypergeometric(counts, k, size=draws if k < n else 1)
            modes = votes == votes.max(1, keepdims=True)
            result[row, at] = ((modes * solving).sum(1) / modes.sum(1)).mean()
    return result


def matched_samples(budget_tokens: float, tokens_per_sample: float) -> int:
    """k(B) = floor(B / mean tokens of a sample): how many samples a budget of B tokens per puzzle buys, at least 1."""
    return max(1, int(budget_tokens // tokens_per_sample))
