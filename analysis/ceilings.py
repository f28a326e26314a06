"""Where one RL run saturates: R_C - R_0 = (A - R_0) / (1 + (C_mid / C)^B) (ScaleRL, arXiv 2510.13786, eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chessrl.errors import UserError
from chessrl.statistics import LEVEL

_MIDPOINTS = 100
_EXPONENTS = np.geomspace(0.2, 5.0, 60)
MINIMUM_POINTS = 5


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The sigmoid of one run: ``ceiling`` A, ``midpoint`` C_mid (FLOPs), ``exponent`` B, ``start`` R_0 (measured, held fixed)."""

    start: float
    ceiling: float
    midpoint: float
    exponent: float
    rmse: float
    low: float  # of the ceiling, parametric bootstrap
    high: float
    saturates: bool  # the last measured reward has gone more than halfway; otherwise the ceiling is extrapolation

    def reward(self, flops: np.ndarray) -> np.ndarray:
        """R at the FLOPs given."""
        return _sigmoid(np.asarray(flops, np.float64), self.start, self.ceiling, self.midpoint, self.exponent)


def _sigmoid(flops: np.ndarray, start: float, ceiling: float, midpoint: float, exponent: float) -> np.ndarray:
    return start + (ceiling - start) / (1 + (midpoint / flops) ** exponent)


def _shapes(flops: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share (combinations, points) of the way from R_0 to A that each (C_mid, B) of the grid has gone at each C, and the combinations."""
    midpoints = np.geomspace(flops.min() / 10, flops.max() * 100, _MIDPOINTS)
    middle, exponent = (grid.ravel() for grid in np.meshgrid(midpoints, _EXPONENTS, indexing="ij"))
    return 1 / (1 + (middle[:, None] / flops) ** exponent[:, None]), middle, exponent


def _best(rewards: np.ndarray, start: float, shapes: np.ndarray) -> tuple[int, float, float]:
    """Combination, ceiling and squared error of the best fit: at each combination the ceiling is linear and has a closed form, held to [0, 1]."""
    gained = rewards - start
    scale = (shapes @ gained) / (shapes**2).sum(1)
    scale = np.clip(start + scale, 0.0, 1.0) - start
    errors = ((gained - scale[:, None] * shapes) ** 2).sum(1)
    best = int(np.argmin(errors))
    return best, float(start + scale[best]), float(errors[best])


def fit_ceiling(flops: np.ndarray, rewards: np.ndarray, start: float, *, rng: np.random.Generator, resamples: int = 500) -> Ceiling:
    """Least squares over a grid of C_mid and B, the ceiling in closed form within [0, 1]; the interval by parametric bootstrap.

    The bootstrap adds normal noise of the fit's residual spread to the fitted curve and fits again. Raises UserError with too few points.
    """
    flops, rewards = np.asarray(flops, np.float64), np.asarray(rewards, np.float64)
    if len(flops) < MINIMUM_POINTS or (flops <= 0).any():
        raise UserError(
            f"a saturation curve needs {MINIMUM_POINTS} measured steps with RL FLOPs above 0, found {int((flops > 0).sum())}; "
            "evaluate more of them (rl.save_steps)"
        )
    shapes, midpoints, exponents = _shapes(flops)
    place, ceiling, error = _best(rewards, start, shapes)
    spread = np.sqrt(error / max(len(flops) - 3, 1))
    fitted = start + (ceiling - start) * shapes[place]
    drawn = [_best(fitted + rng.normal(0, spread, len(flops)), start, shapes)[1] for _ in range(resamples)]
    low, high = np.quantile(drawn, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2)) if resamples else (float("nan"), float("nan"))
    return Ceiling(
        start, ceiling, float(midpoints[place]), float(exponents[place]), float(np.sqrt(error / len(flops))), float(low), float(high),
        bool(shapes[place][np.argmax(flops)] > 0.5),
    )  # fmt: skip
