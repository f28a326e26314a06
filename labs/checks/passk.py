"""Lab 5."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations

import numpy as np

from analysis.sharpening import power_family


def from_samples(written: Callable[[int, int, int], float]) -> bool:
    """Against counting all subsets of k samples."""
    for n, c, k in ((6, 2, 3), (8, 0, 4), (8, 8, 1), (7, 5, 4)):
        outcomes = [place < c for place in range(n)]
        subsets = list(combinations(outcomes, k))
        if abs(written(n, c, k) - Fraction(sum(map(any, subsets)), len(subsets))) > 1e-9:
            return False
    return abs(written(256, 3, 16) - 0.1766732283) < 1e-9


def exact(written: Callable[[np.ndarray, int], np.ndarray]) -> bool:
    """Small p keep their digits: k p for k p far below 1."""
    p = np.array([1e-12, 1e-3, 0.25])
    return bool(np.allclose(written(p, 1000), [1e-9, 1 - 0.999**1000, 1.0], rtol=1e-6) and np.allclose(written(p, 1), p))


def sharpening(written: Callable[[np.ndarray, float], np.ndarray]) -> bool:
    """Against the project's power family; a move of probability 0 stays there."""
    p = np.array([0.5, 0.3, 0.15, 0.05])
    legal = np.ones((1, 4), dtype=bool)
    same = all(np.allclose(written(p, alpha), power_family(p[None], legal, alpha)[0], atol=1e-9) for alpha in (0.5, 1.0, 1.7, 4.0))
    return bool(same and np.allclose(written(np.array([0.75, 0.25, 0.0]), 2.0), [0.9, 0.1, 0.0]))


CHECKS = {
    "5.1 from samples": (from_samples, "math.comb; C(n - c, k) is 0 where fewer than k samples failed."),
    "5.1 exact": (exact, "(1 - p)^k = exp(k log(1 - p)); 1 - exp(x) is -expm1(x)."),
    "5.2 sharpening": (sharpening, "p ** alpha over its sum; with logarithms, so that nothing underflows."),
    "5.3 pass@1 in the limit": (lambda answer: answer == 0, "All the probability goes to the likeliest move."),
    "5.4 pass@1000 in the limit": (lambda answer: answer == 0, "A move of probability 0 is never sampled."),
    "5.5 three of sixteen": (lambda answer: abs(answer - (1 - 13 * 12 * 11 * 10 / (16 * 15 * 14 * 13))) < 1e-9, "1 - C(13, 4) / C(16, 4)."),
}
