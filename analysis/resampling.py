"""Intervals of ratios, fits and quantiles: weights of a bootstrap over puzzles, and over seeds and puzzles where there are several runs.

Everything is a function of sums over puzzles, so a resample is a product with its weights. Seeds are drawn as well where there are several
(nested bootstrap, Agarwal et al. 2021, arXiv 2108.13264); an interval is never narrower than over puzzles alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chessrl.statistics import LEVEL, MINIMUM_PUZZLES, RESAMPLES, Interval, wilson_interval

LOW, HIGH = 0.5 - LEVEL / 2, 0.5 + LEVEL / 2
VALUES_AT_ONCE = 4_000_000  # of weights held for quantiles: 32 MB


@dataclass(frozen=True, slots=True)
class Weights:
    """How often each resample drew each puzzle, and with what weight it drew each seed (one row of equal weights: over puzzles alone)."""

    puzzles: np.ndarray  # (resamples, puzzles)
    seeds: tuple[np.ndarray, ...]  # each (resamples, seeds)

    @classmethod
    def draw(cls, puzzles: int, seeds: int, rng: np.random.Generator, resamples: int = RESAMPLES) -> Weights:
        counts = rng.multinomial(puzzles, np.full(puzzles, 1 / puzzles), size=resamples).astype(np.float64)
        equal = np.full((resamples, seeds), 1 / seeds)
        nested = (rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds,) if seeds > 1 else ()
        return cls(counts, (equal, *nested))

    def sums(self, values: np.ndarray) -> list[np.ndarray]:
        """Weighted sums (resamples, columns) of ``values`` (seeds, puzzles, columns), one array for each way of drawing seeds."""
        by_seed = [self.puzzles @ of_seed for of_seed in values]
        return [sum(seeds[:, number, None] * part for number, part in enumerate(by_seed)) for seeds in self.seeds]

    def quantiles(self, values: np.ndarray, seed: np.ndarray, puzzle: np.ndarray, share: float) -> list[np.ndarray]:
        """Weighted quantile (resamples,) of ``values`` (states,), each of a seed and a puzzle."""
        order = np.argsort(values, kind="stable")
        values, seed, puzzle = values[order], seed[order], puzzle[order]
        rows = max(1, VALUES_AT_ONCE // max(1, len(values)))
        found = []
        for seeds in self.seeds:
            parts = []
            for first in range(0, len(seeds), rows):
                weights = self.puzzles[first : first + rows, puzzle] * seeds[first : first + rows, seed]
                running = weights.cumsum(1)
                parts.append(values[np.minimum((running < share * running[:, -1:]).sum(1), len(values) - 1)])
            found.append(np.concatenate(parts))
        return found


def interval(point: float, drawn: list[np.ndarray], puzzles: int, around: float | None = None, share: bool = False) -> Interval:
    """Percentile interval of resamples ``drawn``, moved by what their own estimate ``around`` (by a coarser way) differs from the point.

    NaN of fewer than MINIMUM_PUZZLES puzzles; shares then, and at 0 and 1, have Wilson's.
    """
    if share and (puzzles < MINIMUM_PUZZLES or point <= 0 or point >= 1):
        point = min(max(point, 0.0), 1.0)
        return point, *wilson_interval(point * puzzles, puzzles)
    if puzzles < MINIMUM_PUZZLES or not np.isfinite(point):
        return float(point), float("nan"), float("nan")
    shift = 0.0 if around is None else point - around
    bounds = [np.nanquantile(part, (LOW, HIGH)) for part in drawn if not np.isnan(part).all()]
    if not bounds:
        return float(point), float("nan"), float("nan")
    return float(point), float(min(low for low, _ in bounds) + shift), float(max(high for _, high in bounds) + shift)


def ratio_intervals(values: np.ndarray, counts: np.ndarray, weights: Weights, shares: bool = True) -> list[Interval]:
    """Intervals of sum(values) / sum(counts) of every column: values (seeds, puzzles, columns), counts (seeds, puzzles)."""
    sums = weights.sums(np.concatenate([values, counts[..., None]], axis=2))
    with np.errstate(divide="ignore", invalid="ignore"):  # where nothing is left to divide by there is no ratio
        points, drawn = values.sum((0, 1)) / counts.sum(), [part[:, :-1] / part[:, -1:] for part in sums]
    return [interval(float(point), [part[:, at] for part in drawn], values.shape[1], share=shares) for at, point in enumerate(points)]


def functional_intervals(
    measure: Callable[[np.ndarray], dict[str, np.ndarray]], sums: np.ndarray, points: dict[str, float], weights: Weights
) -> dict[str, Interval]:
    """Intervals of ``points``, which ``measure`` finds again from sums (rows, columns): sums (seeds, puzzles, columns)."""
    around = measure(sums.mean(0).sum(0, keepdims=True))
    drawn = [measure(part) for part in weights.sums(sums)]
    return {name: interval(point, [part[name] for part in drawn], sums.shape[1], float(around[name][0])) for name, point in points.items()}
