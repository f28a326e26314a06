"""Lab 5."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations

import numpy as np

from analysis.sharpening import power_family
from checks.compare import agree, near


def from_samples(written: Callable[[int, int, int], float]) -> bool:
    """Against counting all subsets of k samples."""


    def counted(n: int, c: int, k: int) -> float:
        subsets = list(combinations([place < c for place in range(n)], k))
        return float(Fraction(sum(map(any, subsets)), len(subsets)))

    return agree(written, counted, (6, 2, 3), (8, 0, 4), (8, 8, 1), (7, 5, 4)) and near(0.1766732283, 1e-9)(written(256, 3, 16))


def exact(written: Callable[[np.ndarray, int], np.ndarray]) -> bool:
    """Small p keep their digits: k p for k p far below 1."""
    p = np.array([1e-12, 1e-3, 0.25])
    by_hand = {1000: np.array([1e-9, 1 - 0.999**1000, 1.0]), 1: p}
    return agree(written, lambda _, k: by_hand[k], (p, 1000), (p, 1))


def sharpening(written: Callable[[np.ndarray, float], np.ndarray]) -> bool:
    """Against the project's power family; a move of probability 0 stays there."""
    p = np.array([0.5, 0.3, 0.15, 0.05])
    legal = np.ones((1, 4), dtype=bool)
    same = agree(written, lambda p, alpha: power_family(p[None], legal, alpha)[0], *((p, alpha) for alpha in (0.5, 1.0, 1.7, 4.0)))
    return same and agree(written, lambda *_: np.array([0.9, 0.1, 0.0]), (np.array([0.75, 0.25, 0.0]), 2.0))


def curves(drawn: dict[str, list[float]], policies: list[list[tuple[np.ndarray, np.ndarray]]], ks: np.ndarray) -> bool:
    """Three curves over ``ks``; those of the two policies against 1 - (1 - p)^k, p the mass of a puzzle's solving moves, averaged over puzzles."""
    for (name, values), policy in zip(drawn.items(), policies):
        p = np.minimum([moves[solving].sum(dtype=np.float64) for moves, solving in policy], 1 - 1e-12)
        expected = [-np.mean(np.expm1(k * np.log1p(-p))) for k in ks]
        if np.shape(values) != np.shape(expected) or not np.allclose(values, expected, atol=1e-4):
            print(f"  {name!r}: {np.round(values, 4)}, expected {np.round(expected, 4)}")
            return False
    return len(drawn) == 3 and all(len(values) == len(ks) and np.all(np.diff(values) >= -1e-9) for values in drawn.values())


CHECKS = {
    "5.1 from samples": (from_samples, "math.comb; C(n - c, k) is 0 where fewer than k samples failed."),
    "5.1 exact": (exact, "(1 - p)^k = exp(k log(1 - p)); 1 - exp(x) is -expm1(x)."),
    "5.2 sharpening": (sharpening, "p ** alpha over its sum; with logarithms, so that nothing underflows."),
    "5.3 pass@1 in the limit": (lambda answer: answer == 0, "All the probability goes to the likeliest move."),
    "5.4 pass@1000 in the limit": (lambda answer: answer == 0, "A move of probability 0 is never sampled."),
    "5.5 three of sixteen": (near(1 - 13 * 12 * 11 * 10 / (16 * 15 * 14 * 13), 0.005), "1 - C(13, 4) / C(16, 4)."),
    "5.6 the curves": (
        curves,
        "Three entries in this order: the start, after RL, the start sharpened; each a list of mean pass@k for every k of KS.",
    ),
}
