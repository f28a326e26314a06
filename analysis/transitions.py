"""What became of a policy: sharpening, tilt, traces, categories and moved mass of a start policy and a later one, with intervals.

Definitions: arXiv 2607.16097, appendix H, functions of ``analysis.sharpening``. All is a function of sums over puzzles, so
that the fits (alpha*, the tilt) are made anew in every resample: slopes and divergences of both families are summed on a grid of their parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import sharpening
from analysis.policies import Pair
from analysis.resampling import Weights, functional_intervals, interval
from chessrl.statistics import Interval

POWERS = np.concatenate([np.arange(0, 2.5, 0.05), np.arange(2.5, sharpening.LARGEST_POWER + 0.01, 0.25)])
TILTS = np.concatenate([np.arange(-60, -8, 2), np.arange(-8, 8, 0.05), np.arange(8, 60.1, 2)])
NOTHING_MOVED = 1e-12  # nats of JS divergence in all: there is nothing to explain
MEASURES = {  # name in the tables -> what it is
    "alpha*": "KL-optimal power, one for all states",
    "alpha* (median state)": "the same, each state its own",
    "alpha* (lower quartile)": "",
    "alpha* (upper quartile)": "",
    "ExplainedSharp": "share of the JS divergence that the power explains",
    "ExplainedSharp (median state)": "each state its own power; states that did not move are left out",
    "slope": "of centred log q on centred log p, pooled",
    "slope (median state)": "",
    "R2": "of the pooled slope",
    "tilt": "t of p exp(t r) / Z, one for all states, r = 1 on solving moves",
    "ExplainedTilt": "share of the JS divergence that the tilt explains",
    "KL(q||p)": "nats",
    "residual KL, power": "nats that the fitted power leaves",
    "residual KL, tilt": "nats that the fitted tilt leaves",
    "residual KL, power per state": "",
    "residual KL, tilt per state": "",
    "JS(q, p)": "nats",
    "collapse gap": "JS(q, p) less that to the nearest trace of p",
    "trace sensitivity before": "nats",
    "trace sensitivity after": "nats",
    "trace sensitivity change": "",
    "entropy before": "of the marginal move distribution, nats",
    "entropy after": "",
    "entropy change": "",
    "legal mass before": "",
    "legal mass after": "",
    "solving mass before": "",
    "solving mass after": "",
    "solving mass change": "",
}


@dataclass(frozen=True, slots=True)
class Transition:
    """One pair of policies, measured: per state (S,) and, to be summed over puzzles, by column."""

    puzzle: np.ndarray  # (S,) names
    bin: np.ndarray
    decision: np.ndarray
    p: np.ndarray  # (S, A)
    q: np.ndarray
    legal: np.ndarray
    solving: np.ndarray
    columns: dict[str, np.ndarray]  # name -> (S,) or (S, grid)
    alphas: np.ndarray  # (S,) of each state
    explained: np.ndarray  # (S,) by its own power; NaN where nothing moved
    slopes: np.ndarray  # (S,) NaN where p is uniform
    category: np.ndarray  # (S,) into sharpening.CATEGORIES


def transition(pair: Pair, top: int, tail: float) -> Transition:
    """All measures of a pair. Raises ValueError where a state has no solving move."""
    p, q, legal, solving = pair.arrays()
    log_p = np.where(legal, sharpening.log_floored(p), 0.0)
    log_q = np.where(legal, sharpening.log_floored(q), 0.0)
    width = legal.sum(1)
    x, y = (np.where(legal, logs - (logs.sum(1) / width)[:, None], 0.0) for logs in (log_p, log_q))
    moved, kl = sharpening.js_divergence(q, p), sharpening.kl_divergence(q, p)
    alphas = sharpening.best_power(p, q, legal, per_state=True)
    own = sharpening.power_family(p, legal, alphas)
    tilts = sharpening.best_tilt(p, q, legal, solving, per_state=True)
    gap = np.zeros(len(p))
    for part, traces in pair.start.traces(pair.chosen):
        gap[part] = sharpening.collapse_gap(q[part][:, : traces.probabilities.shape[2]], traces)
    xx, xy, yy = (x * x).sum(1), (x * y).sum(1), (y * y).sum(1)
    columns = {
        "count": np.ones(len(p)), "js": moved, "kl": kl, "xx": xx, "xy": xy, "yy": yy, "gap": gap,
        "power per state": sharpening.kl_divergence(q, own),
        "tilt per state": sharpening.kl_divergence(q, sharpening.tilt_family(p, legal, solving, tilts)),
        "entropy before": pair.start.entropy[pair.chosen], "entropy after": pair.later.entropy[pair.found],
        "trace sensitivity before": pair.start.sensitivity[pair.chosen], "trace sensitivity after": pair.later.sensitivity[pair.found],
        "legal mass before": pair.start.states["mass"].to_numpy()[pair.chosen], "legal mass after": pair.later.states["mass"].to_numpy()[pair.found],
        "solving mass before": (p * solving).sum(1), "solving mass after": (q * solving).sum(1),
        **_power_columns(p, q, legal, log_p), **_tilt_columns(p, q, solving, kl),
    }  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        explained = np.where(moved > NOTHING_MOVED, 1 - sharpening.js_divergence(q, own) / moved, np.nan)
        slopes = np.where(xx > 0, xy / xx, np.nan)
    category = sharpening.categories(p, q, legal, solving, top=top, tail=tail)
    states = pair.start.states.iloc[pair.chosen]
    puzzle, bins = (states[name].to_numpy().astype(str) for name in ("puzzle", "bin"))
    return Transition(puzzle, bins, states["decision"].to_numpy(), p, q, legal, solving, columns, alphas, explained, slopes, category)


def _power_columns(p: np.ndarray, q: np.ndarray, legal: np.ndarray, log_p: np.ndarray) -> dict[str, np.ndarray]:
    """On POWERS: the slope of KL(q || p^a / Z) in a, that KL, and the JS divergence, each (S, grid)."""
    target, own = (q * log_p).sum(1), -sharpening.entropy(q)
    slope, kl, js = (np.empty((len(p), len(POWERS))) for _ in range(3))
    for at, power in enumerate(POWERS):
        fitted = sharpening.power_family(p, legal, power)
        mean = (fitted * log_p).sum(1)
        log_z = power * mean + sharpening.entropy(fitted)  # H = log Z - a E[log p]
        slope[:, at], kl[:, at] = mean - target, own - power * target + log_z
        js[:, at] = sharpening.js_divergence(q, fitted)
    return {"power slope": slope, "power kl": kl, "power js": js}


def _tilt_columns(p: np.ndarray, q: np.ndarray, solving: np.ndarray, kl: np.ndarray) -> dict[str, np.ndarray]:
    """On TILTS: the slope of KL(q || p exp(t r) / Z) in t and that KL, from the solving mass alone."""
    before, after = (np.clip((policy * solving).sum(1), 0.0, 1.0)[:, None] for policy in (p, q))
    before = np.clip(before, sharpening.FLOOR, 1 - 1e-15)
    log_z = np.logaddexp(np.log(before) + TILTS, np.log1p(-before))
    slope = np.exp(np.log(before) + TILTS - log_z) - after
    return {"tilt slope": slope, "tilt kl": kl[:, None] - TILTS * after + log_z}


# ---- functionals of sums ----------------------------------------------------------------------------------------------------------------


def _root(grid: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where the increasing ``slopes`` (rows, grid) cross 0: the parameter (rows,), and the place on the grid as a fraction."""
    above = (slopes <= 0).sum(1).clip(1, len(grid) - 1)
    rows = np.arange(len(slopes))
    low, high = slopes[rows, above - 1], slopes[rows, above]
    part = np.clip(np.divide(-low, high - low, out=np.zeros(len(low)), where=high > low), 0.0, 1.0)
    return grid[above - 1] + part * (grid[above] - grid[above - 1]), above - 1 + part


def _at(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """``values`` (rows, grid) at the fractional place of each row."""
    low = np.minimum(place.astype(int), values.shape[1] - 2)
    rows, part = np.arange(len(values)), place - low
    return values[rows, low] * (1 - part) + values[rows, low + 1] * part


class Layout:
    """Where each named column of a transition is in the matrix that is summed over puzzles."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        widths = [1 if values.ndim == 1 else values.shape[1] for values in columns.values()]
        ends = np.cumsum(widths)
        self.places = {name: slice(end - width, end) for name, end, width in zip(columns, ends, widths)}

    def measure(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """The measures that are functions of sums: name -> (rows,)."""
        part = {name: sums[:, place] for name, place in self.places.items()}
        one = {name: values[:, 0] for name, values in part.items()}
        count = one["count"]
        alpha, at = _root(POWERS, part["power slope"])
        tilt, at_tilt = _root(TILTS, part["tilt slope"])
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.where(one["js"] > NOTHING_MOVED * count, one["js"], np.nan)
            slope, fit = one["xy"] / one["xx"], one["xy"] ** 2 / (one["xx"] * one["yy"])
        found = {
            "alpha*": alpha, "ExplainedSharp": 1 - _at(part["power js"], at) / moved, "slope": slope, "R2": fit, "tilt": tilt,
            "KL(q||p)": one["kl"] / count, "JS(q, p)": one["js"] / count, "collapse gap": one["gap"] / count,
            "residual KL, power": np.maximum(_at(part["power kl"], at) / count, 0),
            "residual KL, tilt": np.maximum(_at(part["tilt kl"], at_tilt) / count, 0),
            "residual KL, power per state": np.maximum(one["power per state"] / count, 0),
            "residual KL, tilt per state": np.maximum(one["tilt per state"] / count, 0),
        }  # fmt: skip
        for name in ("trace sensitivity", "entropy", "legal mass", "solving mass"):
            before, after = (one[f"{name} {when}"] / count for when in ("before", "after"))
            found |= {f"{name} before": before, f"{name} after": after}
            if name != "legal mass":
                found[f"{name} change"] = after - before
        return found


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pooled:
    """The transitions of one pair over its seeds, the same puzzles in each: what the tables are made of."""

    name: str
    seeds: tuple[Transition, ...]

    def bins(self) -> list[str]:
        return ["all", *sorted(set(self.seeds[0].bin) - {""})]

    def rows(self, bin: str) -> list[np.ndarray]:
        """Of each seed, which states are of the bin."""
        return [np.full(len(seed.bin), True) if bin == "all" else seed.bin == bin for seed in self.seeds]


def puzzle_sums(values: Sequence[np.ndarray], puzzles: Sequence[np.ndarray]) -> np.ndarray:
    """(seeds, puzzles, columns): sums over the states of each puzzle, puzzles sorted by name over all seeds."""
    names = np.unique(np.concatenate(puzzles))
    result = np.zeros((len(values), len(names), values[0].shape[1]))
    for number, (of_seed, labels) in enumerate(zip(values, puzzles)):
        np.add.at(result[number], np.searchsorted(names, labels), of_seed)
    return result


def sharpening_rows(pooled: Pooled, bin: str, seed: int) -> list[dict[str, object]]:
    """One row per measure of MEASURES: from, to, value and interval."""
    chosen = pooled.rows(bin)
    puzzles = [part.puzzle[rows] for part, rows in zip(pooled.seeds, chosen)]
    layout = Layout(pooled.seeds[0].columns)
    matrix = [np.column_stack([values[rows] for values in part.columns.values()]) for part, rows in zip(pooled.seeds, chosen)]
    sums = puzzle_sums(matrix, puzzles)
    weights = Weights.draw(sums.shape[1], len(pooled.seeds), np.random.default_rng(seed))
    stacked = (_stacked([getattr(part, name)[rows] for part, rows in zip(pooled.seeds, chosen)]) for name in ("p", "q", "legal", "solving"))
    p, q, legal, solving = stacked
    exact = {name: float(value[0]) for name, value in layout.measure(sums.sum(0).sum(0, keepdims=True)).items()}
    alpha = sharpening.best_power(p, q, legal, per_state=False)
    tilt = sharpening.best_tilt(p, q, legal, solving, per_state=False)
    fitted, tilted = sharpening.power_family(p, legal, alpha[0]), sharpening.tilt_family(p, legal, solving, tilt[0])
    residual_power, residual_tilt = (max(0.0, float(sharpening.kl_divergence(q, family).mean())) for family in (fitted, tilted))
    exact |= {
        "alpha*": float(alpha[0]), "tilt": float(tilt[0]), "ExplainedSharp": sharpening.explained_share(q, p, fitted),
        "residual KL, power": residual_power, "residual KL, tilt": residual_tilt,
    }  # fmt: skip
    found = functional_intervals(layout.measure, sums, exact, weights)
    found["ExplainedTilt"] = _explained_tilt(q, p, tilted, puzzles, weights)
    found |= _state_quantiles(pooled, chosen, puzzles, weights)
    counts = {"n_puzzles": sums.shape[1], "n_states": sum(map(len, puzzles)), "seeds": len(pooled.seeds)}
    place = {"transition": pooled.name, "bin": bin}
    return [place | {"measure": name} | dict(zip(("value", "ci_low", "ci_high"), found[name])) | counts for name in MEASURES]


def _stacked(parts: Sequence[np.ndarray]) -> np.ndarray:
    width = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])


def _explained_tilt(q: np.ndarray, p: np.ndarray, tilted: np.ndarray, puzzles: Sequence[np.ndarray], weights: Weights) -> Interval:
    """1 - sum JS(q, tilted) / sum JS(q, p), the tilt held at its fit."""
    values = np.column_stack([sharpening.js_divergence(q, tilted), sharpening.js_divergence(q, p)])
    ends = np.cumsum([len(part) for part in puzzles])[:-1]
    sums = puzzle_sums(np.split(values, ends), puzzles)
    point = sharpening.explained_share(q, p, tilted)
    with np.errstate(divide="ignore", invalid="ignore"):
        return interval(point, [1 - part[:, 0] / part[:, 1] for part in weights.sums(sums)], sums.shape[1])


def _state_quantiles(
    pooled: Pooled, chosen: Sequence[np.ndarray], puzzles: Sequence[np.ndarray], weights: Weights
) -> dict[str, Interval]:
    """Medians and quartiles over states of what each state has of its own."""
    names = np.unique(np.concatenate(puzzles))
    puzzle = np.searchsorted(names, np.concatenate(puzzles))
    seed = np.repeat(np.arange(len(puzzles)), [len(part) for part in puzzles])
    asked = {
        "alpha* (median state)": ("alphas", 0.5), "alpha* (lower quartile)": ("alphas", 0.25), "alpha* (upper quartile)": ("alphas", 0.75),
        "ExplainedSharp (median state)": ("explained", 0.5), "slope (median state)": ("slopes", 0.5),
    }  # fmt: skip
    found = {}
    for name, (attribute, share) in asked.items():
        values = np.concatenate([getattr(part, attribute)[rows] for part, rows in zip(pooled.seeds, chosen)])
        known = np.isfinite(values)
        if not known.any():
            found[name] = (float("nan"),) * 3
            continue
        point = float(np.quantile(values[known], share))
        found[name] = interval(point, weights.quantiles(values[known], seed[known], puzzle[known], share), len(names))
    return found


def sharpening_table(pooled: Sequence[Pooled], seed: int) -> pd.DataFrame:
    """transition, bin ("all" first), measure (MEASURES), value, ci_low, ci_high, n_puzzles, n_states, seeds."""
    return pd.DataFrame([row for pair in pooled for bin in pair.bins() for row in sharpening_rows(pair, bin, seed)])
