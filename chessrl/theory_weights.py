"""What a policy-gradient objective weighs: expected gradients of groups as multiples of grad p, and the success measure they climb.

For binary rewards a group of G independent samples of a prompt with success probability p has m ~ Bin(G, p) right ones. If right samples then
get the advantage A+(m) and wrong ones A-(m), the expected on-policy gradient of (1/G) sum_i A_i log pi(o_i) is W(p) grad p with

    W(p) = sum_{m=1}^{G} Bin(m - 1; G - 1, p) A+(m) - sum_{m=0}^{G-1} Bin(m; G - 1, p) A-(m),

since E[grad log pi | right] = grad p / p and E[grad log pi | wrong] = -grad p / (1 - p).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import binom


def gradient_weight(p: np.ndarray, right: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """W(p) of the advantages ``right`` and ``wrong``, (G + 1,) each and indexed by the number m of right samples in the group.

    p: any shape, in [0, 1]. ``right[0]`` and ``wrong[G]`` stand for nobody and are not read.
    """
    group = len(right) - 1
    share = binom.pmf(np.arange(group), group - 1, np.asarray(p, np.float64)[..., None])  # of m among the G - 1 other samples
    return share @ np.asarray(right)[1:] - share @ np.asarray(wrong)[:-1]


def group_weight(p: np.ndarray, group: int) -> np.ndarray:
    """W_G(p) = E_{m ~ Bin(G, p)} sqrt(m (G - m)) / (G p (1 - p)) of GRPO (population std in the group).

    Tends to 1 / sqrt(p (1 - p)) for large G, but stays below sqrt(G - 1) for rare success: small groups do not up-weight hard prompts much.
    """
    m = np.arange(group + 1, dtype=np.float64)
    with np.errstate(divide="ignore"):
        right = np.where(m == 0, 0.0, np.sqrt((group - m) / m))
        wrong = np.where(m == group, 0.0, -np.sqrt(m / (group - m)))
    return gradient_weight(p, right, wrong)


def signal_share(p: np.ndarray, group: int) -> np.ndarray:
    """q_G(p) = 1 - (1 - p)^G - p^G: the share of groups with unequal rewards."""
    p = np.asarray(p, np.float64)
    with np.errstate(divide="ignore"):
        return -np.expm1(group * np.log1p(-p)) - p**group


def dynamic_sampling_cost(p: np.ndarray, group: int) -> float:
    """Groups sampled for every group kept when those without signal are drawn again (DAPO): 1 / mean q_G(p_i).

    p: (puzzles,). Infinite where no puzzle ever gives a signal.
    """
    with np.errstate(divide="ignore"):
        return float(1.0 / np.float64(signal_share(p, group).mean()))


def pass_at_k_factor(samples: int, k: int) -> float:
    """(N - k) / (k N): E[(1/N) sum_i A_i grad log pi] as a multiple of grad pass@k, without the division by sigma."""
    return (samples - k) / (k * samples)


# The function of p that each algorithm's expected gradient climbs, in the limit of large groups where it depends on them
# (log and arcsin as in Davis and Recht, 2025). U' is the weight of grad p.
EFFECTIVE_OBJECTIVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rloo": lambda p: np.asarray(p, np.float64),
    "grpo": lambda p: 2 * np.arcsin(np.sqrt(p)),
    "rft": np.log,  # (r / mean r) in place of the advantage: online rejection fine-tuning
}


def dr_grpo_objective(p: np.ndarray, group: int) -> np.ndarray:
    """((G - 1) / G) p: rewards less their group's mean."""
    return (group - 1) / group * np.asarray(p, np.float64)


def pass_at_k_objective(p: np.ndarray, k: np.ndarray | int) -> np.ndarray:
    """Exact pass@k, 1 - (1 - p)^k, of arrays that broadcast: to full precision for p down to 10^-300 and k up to 10^6 and more.

    Rounding above 1 is taken as 1. Raises ValueError for a p outside [0, 1] or a k below 1.
    """
    p, k = np.asarray(p, np.float64), np.asarray(k)
    if (p < 0).any() or (p > 1 + 1e-6).any() or (k < 1).any():
        raise ValueError("exact pass@k needs probabilities in [0, 1] and k >= 1")
    with np.errstate(divide="ignore"):
        return -np.expm1(k * np.log1p(-np.minimum(p, 1.0)))
