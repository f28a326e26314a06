"""Lab 7."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from checks.compare import agree, near
from chessrl.theory import next_success, std_gap, two_cycle


def recursion(written: Callable[..., float]) -> bool:
    """Against the project's step."""
    cases = ((0.1, 0.1, 5.0), (0.6, 0.5, 2.0), (0.02, 0.001, 5.0), (0.9, 0.3, 1.0))
    return agree(written, lambda p, ref, beta: float(next_success(p, ref, beta, lambda value: std_gap(value, 1e-5))), *cases)


def path(written: Callable[..., list[float]]) -> bool:
    """Published values of p_ref = .1, beta = 5."""
    published = [0.1, 0.177907, 0.157855, 0.161284, 0.160642, 0.160760]
    return agree(written, lambda *_: published, (0.1, 5.0, 5), relative=1e-5)


def lines(drawn: dict[str, tuple[list[float], list[float]]], table: pd.DataFrame) -> bool:
    """Every group of beta = 5: the recursion from its mean start, and what was measured."""
    for group, rows in table[table["beta"] == 5.0].groupby("group"):
        rows = rows.sort_values("step")
        expected = [rows["start"].iloc[0]]
        for _ in rows["step"].iloc[1:]:
            expected.append(float(next_success(expected[-1], expected[0], 5.0, lambda value: std_gap(value, 1e-5))))
        for name, own, wanted in (("path", drawn[group][0], expected), ("measured", drawn[group][1], rows["measured"])):
            if len(own) != len(wanted) or not np.allclose(own, wanted, atol=1e-6):
                print(f"  {group!r}, {name}: {np.round(own, 4)}, expected {np.round(wanted, 4)}")
                return False
    return True


CHECKS = {
    "7.1 the recursion": (recursion, "The inverse of logit x = log(x / (1 - x)) is 1 / (1 + exp(-x))."),
    "7.2 the path": (path, "steps + 1 values; p_ref stays the same, p does not."),
    "7.3 an interior end": (near(0.161, 0.0006), "Iterate until it stands still."),
    "7.4 a small beta": (near(1.0, 0.05), "Below a critical beta, which depends on p_ref, nothing holds it back."),
    "7.5 a rare success": (
        lambda answer: (answer == "jumps") == (two_cycle(0.001, 5.0, 1e-5) is not None) and answer in ("jumps", "settles"),
        'Look at the last ten values of a long path. Answer "settles" or "jumps".',
    ),
    "7.6 the lines": (lines, "A key for each group, as the table has it; from the row of step 0 its start; path(start, 5.0, last step); measured in the order of steps."),
}
