"""The compute-optimal frontier: which (N, T, C_RL) of a total budget C = 6NT + C_RL reaches the highest predicted reward.

Fine-tuning is left out of the budget, as in arXiv 2607.16097: its cost is the same small amount at every split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.loss_surface import LossSurface
from analysis.rl_laws import RlLaw

SPLITS = 400  # shares of RL looked at for every size
SMALLEST_SHARE, LARGEST_SHARE = 1e-3, 0.95
REFINEMENTS = 4  # rounds of a finer grid around the best

Reward = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # (N, T, C_RL) -> R


@dataclass(frozen=True, slots=True)
class Allocation:
    """The best split of one budget. ``inside``: the best size is neither the smallest nor the largest of those allowed."""

    flops: float
    parameters: float
    tokens: float
    rl_flops: float
    reward: float
    inside: bool

    @property
    def rl_share(self) -> float:
        return self.rl_flops / self.flops


def predicted_reward(surface: LossSurface, law: RlLaw) -> Reward:
    """R(N, T, C_RL) with L from the surface."""
    return lambda parameters, tokens, rl_flops: law.reward(parameters, tokens, surface.loss(parameters, tokens), rl_flops)


def best_allocation(reward: Reward, flops: float, sizes: Sequence[float], *, continuous: bool = True) -> Allocation:
    """The allocation of ``flops`` with the highest reward. Of equal ones (saturation) the one with the least RL, then the smaller size.

    sizes: allowed N. ``continuous``: any N between the smallest and largest; otherwise only those listed.
    """
    sizes = np.sort(np.asarray(sizes, np.float64))
    candidates = np.geomspace(sizes[0], sizes[-1], 200) if continuous and len(sizes) > 1 else sizes
    shares = np.geomspace(SMALLEST_SHARE, LARGEST_SHARE, SPLITS)
    n, share, value = _search(reward, flops, candidates, shares)
    size_step = (sizes[-1] / sizes[0]) ** (1 / 199)
    share_step = (LARGEST_SHARE / SMALLEST_SHARE) ** (1 / (SPLITS - 1))
    for _ in range(REFINEMENTS):
        near = np.clip(np.geomspace(n / size_step, n * size_step, 21), sizes[0], sizes[-1]) if continuous else np.array([n])
        around = np.clip(np.geomspace(share / share_step, share * share_step, 21), SMALLEST_SHARE, LARGEST_SHARE)
        found = _search(reward, flops, near, around)
        if found[2] > value:
            n, share, value = found
        size_step, share_step = size_step**0.2, share_step**0.2
    inside = sizes[0] * 1.001 < n < sizes[-1] * 0.999
    return Allocation(flops, float(n), float((1 - share) * flops / (6 * n)), float(share * flops), float(value), bool(inside))


def _search(reward: Reward, flops: float, sizes: np.ndarray, shares: np.ndarray) -> tuple[float, float, float]:
    n, share = (grid.ravel() for grid in np.meshgrid(sizes, shares, indexing="ij"))
    values = np.asarray(reward(n, (1 - share) * flops / (6 * n), share * flops))
    top = np.flatnonzero(values >= values.max() - 1e-15)
    place = top[np.lexsort((n[top], share[top]))[0]]
    return float(n[place]), float(share[place]), float(values[place])


def frontier(reward: Reward, budgets: Sequence[float], sizes: Sequence[float]) -> pd.DataFrame:
    """One row per budget: flops, parameters, tokens, rl_flops, rl_share, reward, inside."""
    best = [best_allocation(reward, budget, sizes) for budget in budgets]
    return pd.DataFrame(
        [
            {"flops": a.flops, "parameters": a.parameters, "tokens": a.tokens, "rl_flops": a.rl_flops, "rl_share": a.rl_share,
             "reward": a.reward, "inside": a.inside}
            for a in best
        ]
    )  # fmt: skip


def empirical_frontier(points: pd.DataFrame) -> pd.DataFrame:
    """The measured points that no cheaper one equals, by total FLOPs 6NT + C_RL: columns of ``points`` and flops, rl_share.

    points: analysis.rl_laws.POINT_COLUMNS.
    """
    table = points.assign(flops=6 * points["parameters"] * points["tokens"] + points["rl_flops"])
    table = table.assign(rl_share=table["rl_flops"] / table["flops"]).sort_values(["flops", "reward"], ascending=[True, False], ignore_index=True)
    before = table["reward"].cummax().shift(fill_value=-np.inf)
    return table[table["reward"] > before].reset_index(drop=True)
