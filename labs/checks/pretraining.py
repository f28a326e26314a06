"""Lab 2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.stats import linregress

from checks.compare import agree, near
from chessrl.model import Cost


def flops(written: Callable[[int, int], float]) -> bool:
    """Against the project's account of a training run, without attention."""
    return agree(written, lambda parameters, tokens: Cost(1, parameters, 0).training_flops(tokens), (1000, 50), (300_000, 1_000_000))


def power_law(written: Callable[[np.ndarray, np.ndarray], tuple[float, float]]) -> bool:
    """An exact law is found again, and a disturbed one as scipy finds it."""


    def fit(tokens: np.ndarray, losses: np.ndarray) -> tuple[float, float]:
        line = linregress(np.log10(tokens), np.log10(losses))
        return line.intercept, line.slope

    tokens = np.array([1e5, 3e5, 1e6, 4e6])
    exact = 7.0 * tokens**-0.12
    return agree(written, fit, (tokens, exact), (tokens, exact * np.array([1.02, 0.97, 1.01, 0.99])))


def prediction(predicted: float, tokens: np.ndarray, losses: np.ndarray, longer: int) -> bool:
    """The three runs' law at ``longer`` tokens."""
    fit = linregress(np.log10(tokens), np.log10(losses))
    return near(10 ** (fit.intercept + fit.slope * np.log10(longer)), 0.005)(predicted)


CHECKS = {
    "2.1 flops": (flops, "Six operations for each parameter and token."),
    "2.1 tokens": (
        lambda written: agree(written, lambda flops, parameters: flops / (6 * parameters), (3e13, 1_000_000), (6e12, 1000)),
        "Solve C = 6 N T for T.",
    ),
    "2.2 power law": (power_law, "A straight line through (log10 T, log10 L): numpy.polyfit gives its slope first."),
    "2.3 steps": (lambda answer: answer == -(-1_000_000 // 4096), "The last step may be smaller than the others; it is one nevertheless."),
    "2.4 tokens at twice the size": (near(0.5, 0), "C = 6 N T stays: how must T change when N doubles? Answer new T / old T."),
    "2.5 rules alone": (near(np.log(12) / 3, 0.005), "The entropy of a choice among 12 is ln 12, spread over 3 tokens."),
    "2.6 the prediction": (prediction, "a + b log10 T is log10 of the loss, not the loss."),
    "2.7 beyond the regime": (near(0.79, 0.005), "power_law(PUBLISHED_TOKENS[:3], PUBLISHED_LOSSES[:3]), at 3.2e6 tokens."),
}
