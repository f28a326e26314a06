"""Where probability went: shares of transition categories, and mass by initial rank, by both ranks and by the engine's word on the move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis import sharpening
from analysis.resampling import Weights, ratio_intervals
from analysis.sharpening import CATEGORIES
from analysis.transitions import Pooled, Transition, puzzle_sums

RANKS = 10  # initial ranks told apart; further ones are one group


def _ratio_table(pooled: Pooled, bin: str, seed: int, names: list[dict[str, object]], values: list[np.ndarray], shares: bool) -> list[dict]:
    """Means over states of the columns of ``values`` (each seed's (S, columns)), each row named by ``names``."""
    chosen = pooled.rows(bin)
    puzzles = [part.puzzle[rows] for part, rows in zip(pooled.seeds, chosen)]
    sums = puzzle_sums([of_seed[rows] for of_seed, rows in zip(values, chosen)], puzzles)
    counts = puzzle_sums([np.ones((len(part), 1)) for part in puzzles], puzzles)[..., 0]
    weights = Weights.draw(sums.shape[1], len(puzzles), np.random.default_rng(seed))
    place = {"transition": pooled.name, "bin": bin}
    return [
        place | name | {"value": point, "ci_low": low, "ci_high": high, "n_puzzles": sums.shape[1], "n_states": int(counts.sum())}
        for name, (point, low, high) in zip(names, ratio_intervals(sums, counts, weights, shares))
    ]


def categories_table(pooled: Sequence[Pooled], seed: int) -> pd.DataFrame:
    """Share of states by transition category: transition, bin, category, value, ci_low, ci_high, n_puzzles, n_states."""
    rows = []
    for pair in pooled:
        values = [np.eye(len(CATEGORIES))[part.category] for part in pair.seeds]
        for bin in pair.bins():
            rows += _ratio_table(pair, bin, seed, [{"category": name} for name in CATEGORIES], values, shares=True)
    return pd.DataFrame(rows)


def rank_name(place: int) -> str:
    return str(place + 1) if place < RANKS else f"> {RANKS}"


def _rank_mass(part: Transition) -> np.ndarray:
    """(S, 3 (RANKS + 1)): mass before, after and its change, by initial rank."""
    places = np.minimum(sharpening.ranks(part.p, part.legal), RANKS)
    mass = [np.stack([(policy * (places == place)).sum(1) for place in range(RANKS + 1)], axis=1) for policy in (part.p, part.q)]
    return np.hstack([*mass, mass[1] - mass[0]])


def rank_table(pooled: Sequence[Pooled], seed: int) -> pd.DataFrame:
    """Mean mass of the moves of each initial rank (1 the likeliest) before and after, and its change, by bin."""
    names = [{"initial_rank": rank_name(place), "mass": when} for when in ("before", "after", "change") for place in range(RANKS + 1)]
    rows = []
    for pair in pooled:
        values = [_rank_mass(part) for part in pair.seeds]
        for bin in pair.bins():
            rows += _ratio_table(pair, bin, seed, names, values, shares=False)
    return pd.DataFrame(rows)


def redistribution_table(pooled: Sequence[Pooled], seed: int) -> pd.DataFrame:
    """Mean mass after, by initial and final rank of the move, over all puzzles: rows of equal initial rank sum to its mass after."""
    names = [{"initial_rank": rank_name(i), "final_rank": rank_name(j)} for i in range(RANKS + 1) for j in range(RANKS + 1)]
    rows = []
    for pair in pooled:
        values = []
        for part in pair.seeds:
            first, last = (np.minimum(sharpening.ranks(policy, part.legal), RANKS) for policy in (part.p, part.q))
            cells = np.zeros((len(part.p), (RANKS + 1) ** 2))
            states = np.broadcast_to(np.arange(len(part.p))[:, None], part.legal.shape)[part.legal]
            np.add.at(cells, (states, first[part.legal] * (RANKS + 1) + last[part.legal]), part.q[part.legal])
            values.append(cells)
        rows += _ratio_table(pair, "all", seed, names, values, shares=False)
    return pd.DataFrame(rows)


def quality_table(pooled: Sequence[Pooled], lost: Sequence[Sequence[np.ndarray]], classes: dict[str, float], seed: int) -> pd.DataFrame:
    """Mean mass before, after and its change by the move's loss of expected score against the best one: of each pair and seed (S, A).

    States without labels are NaN throughout and left out. classes: name -> the largest loss in it, ascending, the last without bound.
    """
    bounds, edges = list(classes), np.array(list(classes.values()))
    names = [{"lost": bound, "mass": when} for when in ("before", "after", "change") for bound in bounds]
    rows = []
    for pair, of_pair in zip(pooled, lost):
        known = [~np.isnan(np.where(part.legal, values, 0.0)).any(1) for part, values in zip(pair.seeds, of_pair)]
        if not all(rows_known.any() for rows_known in known):
            continue
        kept = Pooled(pair.name, tuple(_rows(part, mask) for part, mask in zip(pair.seeds, known)))
        values = []
        for part, mask, of_moves in zip(kept.seeds, known, of_pair):
            places = np.searchsorted(edges, of_moves[mask], side="left")
            mass = [
                np.stack([(policy * (part.legal & (places == place))).sum(1) for place in range(len(bounds))], axis=1) for policy in (part.p, part.q)
            ]
            values.append(np.hstack([*mass, mass[1] - mass[0]]))
        for bin in kept.bins():
            rows += _ratio_table(kept, bin, seed, names, values, shares=False)
    return pd.DataFrame(rows)


def _rows(part: Transition, mask: np.ndarray) -> Transition:
    """The states of a mask."""
    columns = {name: values[mask] for name, values in part.columns.items()}
    arrays = (getattr(part, name)[mask] for name in ("alphas", "explained", "slopes", "category"))
    return Transition(*(getattr(part, name)[mask] for name in ("puzzle", "bin", "decision", "p", "q", "legal", "solving")), columns, *arrays)
