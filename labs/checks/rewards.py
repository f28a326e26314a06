"""Lab 6."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chessrl.theory import noisy_gap, systematic_errors

VERIFIERS = ((0.2, 1.0, 0.0), (0.2, 0.86, 0.05), (0.7, 0.6, 0.3), (0.5, 0.4, 0.6))


def gap(written: Callable[[float, float, float], float]) -> bool:
    """Against the project's theory."""
    return all(np.isclose(written(p, tpr, fpr), noisy_gap(np.array(p), tpr, fpr)) for p, tpr, fpr in VERIFIERS)


def ceiling(written: Callable[[float, float, float], float]) -> bool:
    """Against the precision of a verifier with systematic errors."""
    return all(np.isclose(written(p, tpr, fpr), systematic_errors(p, tpr, fpr)[1]) for p, tpr, fpr in VERIFIERS)


CHECKS = {
    "6.1 the gap": (gap, "Right answers are paid TPR on average, wrong ones FPR; the standard deviation of a 0-or-1 payment is sqrt(q (1 - q))."),
    "6.2 the ceiling": (ceiling, "The right and accepted ones over all accepted ones: a precision."),
    "6.3 Youden's J": (lambda answer: abs(answer - 0.81) < 1e-9, "TPR - FPR."),
    "6.4 coin flips": (lambda answer: answer is False, "J = 0: right and wrong answers have the same expected advantage."),
    "6.5 hacking that looks like progress": (lambda answer: abs(answer - 0.2) < 1e-9, "Your ceiling, at these values."),
}
