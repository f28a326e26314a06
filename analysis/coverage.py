"""Does RL extend what the policy can reach? pass@k curves against each other: crossover, Delta_SE, coverage cells, majority votes.

Definitions: Yue et al., arXiv 2504.13837, section 3 (coverage, crossover); DeepSeekMath, arXiv 2402.03300 (maj@k).
Arrays are per puzzle, in one order for both policies; the unit of resampling is the puzzle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from chessrl.statistics import LEVEL, RESAMPLES

CELLS = ("both", "base only", "RL only", "neither")


def excess_over(values: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """(puzzles, ks): how much of what uniform legal play leaves unsolved the policy solves, (v - f) / (1 - f); NaN where the floor is 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(floor < 1, (values - floor) / (1 - floor), np.nan)


# ---- crossover --------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crossover:
    """Smallest k from which on the base is at least as good as the RL policy at every larger k of ``ks``; inf: RL is ahead at the largest k.

    ``low``, ``high``: percentile bootstrap over puzzles; ``never``: the share of resamples without a crossover.
    """

    k: float
    low: float
    high: float
    never: float


def crossover(base: np.ndarray, trained: np.ndarray, ks: Sequence[int], rng: np.random.Generator, resamples: int = RESAMPLES) -> Crossover:
    """base, trained: pass@k (puzzles, ks) of the two policies on the same puzzles, ks ascending.

    A crossover at the smallest k says that the base was never behind.
    """
    differences = np.asarray(base, np.float64) - np.asarray(trained, np.float64)
    places = np.asarray(ks, np.float64)

    def first(means: np.ndarray) -> np.ndarray:
        """(resamples,): the k after the last one at which the trained policy is ahead."""
        ahead = means < -1e-12
        last = np.where(ahead.any(1), means.shape[1] - 1 - np.argmax(ahead[:, ::-1], axis=1), -1)
        return np.append(places, np.inf)[last + 1]

    counts = rng.multinomial(len(differences), np.full(len(differences), 1 / len(differences)), size=resamples)
    drawn = np.sort(first(counts @ differences / len(differences)))
    low, high = (drawn[min(int(share * resamples), resamples - 1)] for share in (0.5 - LEVEL / 2, 0.5 + LEVEL / 2))  # inf has no quantile between
    point = first(differences.mean(0, keepdims=True))[0]
    return Crossover(float(point), float(low), float(high), float(np.isinf(drawn).mean()))


def delta_se(base_large: np.ndarray, trained_one: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES) -> tuple[float, float, float]:
    """Sampling-efficiency gap pass@k_base - pass@1_RL (lower is better) of per-puzzle values (puzzles,), with its paired interval."""
    gap = np.asarray(base_large, np.float64) - np.asarray(trained_one, np.float64)
    counts = rng.multinomial(len(gap), np.full(len(gap), 1 / len(gap)), size=resamples)
    low, high = np.quantile(counts @ gap / len(gap), (0.5 - LEVEL / 2, 0.5 + LEVEL / 2))
    return float(gap.mean()), float(low), float(high)


# ---- coverage ---------------------------------------------------------------------------------------------------------------------------


def coverage_cells(base: np.ndarray, trained: np.ndarray) -> pd.DataFrame:
    """CELLS as shares of the puzzles, with counts. base, trained (puzzles,): the probability that k samples solve the puzzle.

    Observed coverage (0 or 1) gives the usual counts; pass@k values give their expectation for two independent sets of k samples.
    """
    a, b = np.asarray(base, np.float64), np.asarray(trained, np.float64)
    shares = [(a * b).mean(), (a * (1 - b)).mean(), ((1 - a) * b).mean(), ((1 - a) * (1 - b)).mean()]
    return pd.DataFrame({"cell": CELLS, "share": shares, "puzzles": np.array(shares) * len(a)})


# ---- majority -----------------------------------------------------------------------------------------------------------------------------


def majority_at_k(answers: np.ndarray, solved: np.ndarray, k: int, rng: np.random.Generator, draws: int = 200) -> np.ndarray:
    """(puzzles,): probability that the most frequent of k sampled answers is a solving one, ties broken uniformly.

    answers (puzzles, n): integer codes of the answers, equal codes equal answers; solved (puzzles, n): whether it solves, the same for equal
    answers of a puzzle. Estimated from ``draws`` subsets of k of the n samples, without replacement. Raises ValueError if k > n.
    """
    puzzles, n = answers.shape
    if k > n:
        raise ValueError(f"maj@{k} needs {k} samples per puzzle, found {n}")
    result = np.empty(puzzles)
    for row in range(puzzles):
        codes, places = np.unique(answers[row], return_inverse=True)
        solving = np.zeros(len(codes))
        solving[places] = solved[row]
        chosen = np.argsort(rng.random((draws, n)), axis=1)[:, :k]
        votes = np.zeros((draws, len(codes)))
        np.add.at(votes, (np.repeat(np.arange(draws), k), places[chosen].ravel()), 1)
        modes = votes == votes.max(1, keepdims=True)
        result[row] = ((modes * solving).sum(1) / modes.sum(1)).mean()
    return result


def majority_of_distribution(probabilities: np.ndarray, solving: np.ndarray, k: int, rng: np.random.Generator, draws: int = 1000) -> float:
    """maj@k of a known move distribution (moves,), by multinomial draws; what it does not sum to is one further, wrong answer."""
    rest = max(0.0, 1.0 - probabilities.sum())
    shares = np.append(probabilities, rest)
    votes = rng.multinomial(k, shares / shares.sum(), size=draws)
    modes = votes == votes.max(1, keepdims=True)
    return float(((modes * np.append(solving, 0.0)).sum(1) / modes.sum(1)).mean())


def matched_samples(budget_tokens: float, tokens_per_sample: float) -> int:
    """k(B) = floor(B / mean tokens of a sample): how many samples a budget of B tokens per puzzle buys, at least 1."""
    return max(1, int(budget_tokens // tokens_per_sample))
