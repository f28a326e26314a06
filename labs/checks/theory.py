"""Lab 7."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chessrl.theory import next_success, std_gap, two_cycle


def recursion(written: Callable[..., float]) -> bool:
    """Against the project's step."""
    cases = ((0.1, 0.1, 5.0), (0.6, 0.5, 2.0), (0.02, 0.001, 5.0), (0.9, 0.3, 1.0))
    return all(np.isclose(written(p, ref, beta, 1e-5), next_success(p, ref, beta, lambda value: std_gap(value, 1e-5))) for p, ref, beta in cases)


def path(written: Callable[..., list[float]]) -> bool:
    """Published values of p_ref = .1, beta = 5."""
    return bool(np.allclose(written(0.1, 5.0, 5), [0.1, 0.177907, 0.157855, 0.161284, 0.160642, 0.160760], atol=1e-6))


CHECKS = {
    "7.1 the recursion": (recursion, "The inverse of logit x = log(x / (1 - x)) is 1 / (1 + exp(-x))."),
    "7.2 the path": (path, "steps + 1 values; p_ref stays the same, p does not."),
    "7.3 an interior end": (lambda answer: abs(answer - 0.161) < 1e-9, "Iterate until it stands still."),
    "7.4 a small beta": (lambda answer: answer == 1.0, "Below a critical beta nothing holds it back."),
    "7.5 a rare success": (
        lambda answer: (answer == "jumps") == (two_cycle(0.001, 5.0, 1e-5) is not None) and answer in ("jumps", "settles"),
        "Look at the last ten values of a long path.",
    ),
}
