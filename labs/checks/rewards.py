"""Lab 6."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from checks.compare import agree, near
from chessrl.theory import noisy_gap, systematic_errors

VERIFIERS = ((0.2, 1.0, 0.0), (0.2, 0.86, 0.05), (0.7, 0.6, 0.3), (0.5, 0.4, 0.6))


def gap(written: Callable[[float, float, float], float]) -> bool:
    """Against the project's theory."""
    return agree(written, lambda p, tpr, fpr: float(noisy_gap(np.array(p), tpr, fpr)), *VERIFIERS)


def ceiling(written: Callable[[float, float, float], float]) -> bool:
    """Against the precision of a verifier with systematic errors."""
    return agree(written, lambda p, tpr, fpr: systematic_errors(p, tpr, fpr)[1], *VERIFIERS)


def changes(drawn: dict[str, tuple[float, float, float]], successes: dict[str, np.ndarray]) -> bool:
    """Means of the paired differences; intervals not far from the normal ones in width: of few puzzles, of which one dominates, bootstrap has three quarters of it."""
    for name, after in successes.items():
        if name == "start":
            continue
        difference = after - successes["start"]
        half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
        mean, low, high = drawn[name]
        around = 1.2 * half < high - low < 2.8 * half and low < mean < high if half else low == mean == high  # no puzzle changed: no width
        if not (np.isclose(mean, difference.mean(), atol=1e-9) and around):
            print(f"  {name!r}: {mean:.4f} from {low:.4f} to {high:.4f}; expected {difference.mean():.4f}, about {half:.4f} to either side")
            return False
    return True


CHECKS = {
    "6.1 the gap": (gap, "Right answers are paid TPR on average, wrong ones FPR; the standard deviation of a 0-or-1 payment is sqrt(q (1 - q))."),
    "6.2 the ceiling": (ceiling, "The right and accepted ones over all accepted ones: a precision."),
    "6.3 Youden's J": (near(0.81, 1e-9), "TPR - FPR."),
    "6.4 coin flips": (lambda answer: answer is False, "J = 0: what is the gap between a right and a wrong answer then? True or False."),
    "6.5 hacking that looks like progress": (near(0.2, 1e-6), "Your ceiling, at these values."),
    "6.7 groups with the truth": (near(1 - 0.95**8 - 0.05**8, 0.005), "One minus the chance that all eight are wrong, minus that all eight are right."),
    "6.7 groups with coin flips": (near(1 - 2 * 0.5**8, 0.005), "All heads and all tails are the groups without a gradient."),
    "6.6 the changes": (
        changes,
        "For each of REWARDS: the mean over puzzles of (success - success at the start), and the 2.5 % and 97.5 % quantiles of that mean over resampled puzzles.",
    ),
}
