"""Elo balancing: which games to keep so that their mean ratings fill given bins in given proportions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from chessrl.errors import UserError

EVEN_RANGE = (800, 3000)  # of balance=even: the range over which Shen et al. sample their games evenly
_WEIGHT = r"(?:\d+\.?\d*|\.\d+)"
_HISTOGRAM = re.compile(rf"\{{\s*(?:\d{{1,5}}\s*:\s*{_WEIGHT}\s*(?:,\s*(?=\d)|(?=\}})))+\}}")
_ENTRY = re.compile(rf"(\d+)\s*:\s*({_WEIGHT})")
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Balance:
    """Bins of the mean rating of both players, and how much of the games each is to hold."""

    starts: tuple[int, ...]  # ascending; bin i holds ratings from starts[i] up to, not including, starts[i] + width
    weights: tuple[float, ...]
    width: int
    games: int = 0  # how many to keep in all; 0: as many as fill every bin that has a game in its exact proportion


def parse_balance(text: str, width: int, games: int) -> Balance | None:
    """``even``, ``{800: 1, 1000: 2}`` (start of a bin: weight), or nothing. Raises UserError for anything else."""
    if not text:
        return None
    if width < 1 or games < 0:
        raise UserError(f"balance_bin={width}, balance_games={games}: expected at least 1 and at least 0")
    if text == "even":
        if (EVEN_RANGE[1] - EVEN_RANGE[0]) % width:
            raise UserError(f"balance_bin={width}: does not divide the range {EVEN_RANGE[0]} to {EVEN_RANGE[1]} of balance=even; use 50, 100 or 200")
        starts = tuple(range(*EVEN_RANGE, width))
        return Balance(starts, (1.0,) * len(starts), width, games)
    if not _HISTOGRAM.fullmatch(text):
        raise UserError(f"balance={text}: expected even, or a histogram like {{800: 1, 1000: 2}} (start of a bin: weight)")
    entries = sorted((int(start), float(weight)) for start, weight in _ENTRY.findall(text))
    starts = tuple(start for start, _ in entries)
    if any(later - start < width for start, later in pairwise(starts)):
        raise UserError(f"balance={text}: bins overlap; expected starts at least balance_bin={width} apart")
    if not any(weight for _, weight in entries):
        raise UserError(f"balance={text}: every weight is 0; expected at least one above")
    return Balance(starts, tuple(weight for _, weight in entries), width, games)


def choose(
    balance: Balance, white_elo: np.ndarray, black_elo: np.ndarray, digests: np.ndarray, seed: int
) -> tuple[np.ndarray, Counter[str], dict[str, Any]]:
    """Which games to keep (bool [games]), the others by reason, and the histogram reached.

    Within a bin the games with the smallest hashes of (seed, ``digests``) stay, so the choice depends neither on order nor on workers. Ratings
    are 0 where unknown.
    """
    starts, weights = np.array(balance.starts), np.array(balance.weights)
    rated = (white_elo > 0) & (black_elo > 0)
    mean = (white_elo.astype(np.int64) + black_elo) / 2
    place = np.searchsorted(starts, mean, side="right") - 1
    inside = rated & (place >= 0) & (mean < starts[place] + balance.width)
    available = np.bincount(place[inside], minlength=len(starts))
    quota = _quotas(available, weights, balance.games)
    games = np.flatnonzero(inside)
    order = games[np.lexsort((_draws(digests[games], seed), place[games]))]
    first = np.concatenate([[0], np.cumsum(available)[:-1]])
    rank = np.arange(len(order)) - first[place[order]]
    keep = np.zeros(len(digests), dtype=bool)
    keep[order[rank < quota[place[order]]]] = True
    reasons = Counter(
        balance_without_ratings=int((~rated).sum()), balance_outside_the_bins=int((rated & ~inside).sum()), balance=int((inside & ~keep).sum())
    )
    bins = {str(start): {"games": int(found), "kept": int(min(found, wanted))} for start, found, wanted in zip(starts, available, quota)}
    return keep, +reasons, {"bin_width": balance.width, "bins": bins}


def _quotas(available: np.ndarray, weights: np.ndarray, games: int) -> np.ndarray:
    """Most games of each bin: its weight times one level, which is as high as ``games`` or the first bin to run out allows."""
    wanted = (weights > 0) & (available > 0)
    if not wanted.any():
        return np.zeros(len(available), dtype=np.int64)
    levels = available[wanted] / weights[wanted]
    if not games:
        level = levels.min()
    else:  # bins that run out give all they have, the others share the rest
        left, weight, level = float(games), weights[wanted].sum(), np.inf
        for place in np.argsort(levels):
            if levels[place] * weight >= left:
                level = left / weight
                break
            left -= available[wanted][place]
            weight -= weights[wanted][place]
    return np.where(weights > 0, np.minimum(np.floor(level * weights + 1e-9), available), 0).astype(np.int64)


def _draws(digests: np.ndarray, seed: int) -> np.ndarray:
    """Independent uniform 64-bit integers of (seed, digest): the finaliser of splitmix64."""
    value = digests ^ np.uint64((seed + 1) * _GOLDEN % 2**64)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
