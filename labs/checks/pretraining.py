"""Lab 2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chessrl.model import Cost


def power_law(written: Callable[[np.ndarray, np.ndarray], tuple[float, float]]) -> bool:
    """An exact law is found again, and a disturbed one as scipy finds it."""
    from scipy.stats import linregress

    tokens = np.array([1e5, 3e5, 1e6, 4e6])
    exact = 7.0 * tokens**-0.12
    disturbed = exact * np.array([1.02, 0.97, 1.01, 0.99])
    fit = linregress(np.log10(tokens), np.log10(disturbed))
    return bool(
        np.allclose(written(tokens, exact), (np.log10(7.0), -0.12)) and np.allclose(written(tokens, disturbed), (fit.intercept, fit.slope))
    )


CHECKS = {
    "2.1 flops": (lambda written: written(1000, 50) == Cost(1, 1000, 0).training_flops(50), "Six operations for each parameter and token."),
    "2.1 tokens": (lambda written: np.isclose(written(3e13, 1_000_000), 5_000_000), "Solve C = 6 N T for T."),
    "2.2 power law": (power_law, "A straight line through (log10 T, log10 L): numpy.polyfit gives its slope first."),
    "2.3 steps": (lambda answer: answer == -(-1_000_000 // 4096), "The last step may be smaller than the others; it is one nevertheless."),
    "2.4 tokens at twice the size": (lambda answer: answer == 0.5, "C = 6 N T."),
    "2.5 rules alone": (lambda answer: np.isclose(answer, np.log(12) / 3), "The entropy of a choice among 12 is ln 12, spread over 3 tokens."),
}
