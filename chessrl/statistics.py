"""pass@k and intervals: pure functions from per-sample outcomes to tables.

The unit of resampling is always the puzzle: samples of one puzzle are not independent draws from the benchmark.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.stats import norm

from chessrl.errors import UserError
from chessrl.theory_weights import pass_at_k_objective

RESAMPLES = 2000
LEVEL = 0.95
MINIMUM_PUZZLES = 10  # a percentile bootstrap of fewer values covers far less than it says
CHUNK_ELEMENTS = 4_000_000  # resampled indices held at once: 32 MB of int64

FAILURES = ("wrong", "illegal", "malformed", "unclosed", "no_end_think")
LABELS = ("run", "stage", "step", "split", "protocol", "spelling", "verifier", "temperature", "thinking_budget", "seed")
PASSK_COLUMNS = (
    "run", "stage", "step", "split", "bin", "protocol", "spelling", "verifier", "temperature", "thinking_budget", "seed",
    "k", "n_puzzles", "n_samples", "pass_at_k", "ci_low", "ci_high",
)  # fmt: skip
RATES_COLUMNS = ("run", "stage", "step", "split", "bin", "metric", "value", "ci_low", "ci_high", "n_puzzles")
COMPARISON_COLUMNS = ("a", "b", "bin", "k", "difference", "ci_low", "ci_high")
EXACT_KS = (*(2**power for power in range(13)), 10**4, 10**5, 10**6)  # of exact pass@k, which needs no samples
SHARES = ("legal", "format", "truncated", "solved", "solved_strict")
MEANS = ("tokens", "trace_length", "answer_length", "logprob", "entropy")

Interval = tuple[float, float, float]  # point, low, high


def pass_at_k(n: np.ndarray | int, c: np.ndarray | int, k: int) -> np.ndarray:
    """Unbiased pass@k of each puzzle, 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, eq. 1).

    n: samples, c: solved samples, both (puzzles,) or scalars; k: draws without replacement. Returns (puzzles,) float64.
    The ratio is a running product of k factors: ratios of binomials overflow at n = 10^4, log-gamma loses digits.
    Raises ValueError if k exceeds a puzzle's samples (the estimator would say 1 with nothing solved) or c is not within 0..n.
    """
    samples, solved = np.broadcast_arrays(np.asarray(n, dtype=np.int64), np.asarray(c, dtype=np.int64))
    if k < 1 or (samples < k).any():
        raise ValueError(f"pass@k needs 1 <= k <= n, got k={k} with n from {samples.min()} to {samples.max()}")
    if (solved < 0).any() or (solved > samples).any():
        raise ValueError("pass@k needs 0 <= c <= n for every puzzle")
    all_fail = np.ones(samples.shape)
    for drawn in range(k):
        all_fail *= np.maximum(samples - solved - drawn, 0) / (samples - drawn)
    return 1.0 - all_fail


def wilson_interval(successes: float, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson score interval (Wilson 1927) of a proportion; `successes` may be fractional (a sum of shares).

    For shares rather than 0/1 outcomes it is conservative: p (1 - p) bounds the variance of values in [0, 1].
    Raises ValueError without trials or with successes outside 0..trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"a Wilson interval needs 0 <= successes <= trials >= 1, got {successes} of {trials}")
    z = norm.ppf(0.5 + level / 2)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * np.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    # At 0 and n the bound is exactly the end point; rounding must not move it past the point estimate.
    low = 0.0 if successes == 0 else float(centre - half)
    high = 1.0 if successes == trials else float(centre + half)
    return max(low, 0.0), min(high, 1.0)


def _resampled_means(values: np.ndarray, rng: np.random.Generator, resamples: int) -> np.ndarray:
    """Means of `values` (puzzles, columns) over puzzles drawn with replacement; (resamples, columns), one draw shared by the columns."""
    puzzles = len(values)
    means = np.empty((resamples, values.shape[1]))
    rows = max(1, CHUNK_ELEMENTS // puzzles)
    for start in range(0, resamples, rows):
        stop = min(start + rows, resamples)
        drawn = rng.integers(0, puzzles, size=(stop - start, puzzles)) + puzzles * np.arange(stop - start)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=(stop - start) * puzzles).reshape(stop - start, puzzles)
        means[start:stop] = counts @ values / puzzles
    return means


def _finite_matrix(values: np.ndarray) -> np.ndarray:
    matrix = np.asarray(values, dtype=np.float64)
    if len(matrix) == 0:
        raise ValueError("an interval needs at least one puzzle")
    if not np.isfinite(matrix).all():
        raise ValueError("an interval needs finite values: count and remove unscorable puzzles before")
    return matrix


def _percentiles(means: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.quantile(means, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    return low, high


def bootstrap_means(
    values: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES, level: float = LEVEL, shares: bool = True
) -> list[Interval]:
    """(point, low, high) of the mean of every column of `values` (puzzles, columns): percentile bootstrap over puzzles.

    Where a bootstrap says nothing (all values equal, or fewer than MINIMUM_PUZZLES puzzles) shares get the Wilson interval.
    `shares=False` is for values that are no shares (lengths, nats); their degenerate intervals are NaN, for nothing is known.
    The columns share their resampled puzzles. Raises ValueError on no puzzles, non-finite values or shares outside [0, 1].
    """
    matrix = _finite_matrix(values)
    if shares and ((matrix < 0).any() or (matrix > 1).any()):
        raise ValueError("shares lie in [0, 1]")
    low, high = _percentiles(_resampled_means(matrix, rng, resamples), level)
    intervals = []
    for column in range(matrix.shape[1]):
        cell = matrix[:, column]
        point = float(cell.mean())
        degenerate = len(cell) < MINIMUM_PUZZLES or bool((cell == cell[0]).all())
        if degenerate and shares:
            bounds = wilson_interval(float(cell.sum()), len(cell), level)
        elif degenerate:
            bounds = (float("nan"), float("nan"))
        else:
            bounds = (float(low[column]), float(high[column]))
        intervals.append((point, *bounds))
    return intervals


def _newcombe_interval(a: np.ndarray, b: np.ndarray, level: float) -> tuple[float, float]:
    """Paired difference of two proportions from their Wilson limits (Newcombe 1998, Statistics in Medicine 17:2635, method 10).

    The correlation carries Newcombe's continuity correction, so that two equal columns do not get an interval of width zero.
    """
    trials = len(a)
    mean_a, mean_b = a.mean(), b.mean()
    low_a, high_a = wilson_interval(float(a.sum()), trials, level)
    low_b, high_b = wilson_interval(float(b.sum()), trials, level)
    covariance = float(((a - mean_a) * (b - mean_b)).mean())
    if covariance > 0:
        covariance = max(covariance - 1 / (2 * trials), 0.0)
    scale = float(a.std() * b.std())
    correlation = covariance / scale if scale > 0 else 0.0

    def distance(of_b: float, of_a: float) -> float:
        return float(np.sqrt(max(of_b * of_b - 2 * correlation * of_b * of_a + of_a * of_a, 0.0)))

    difference = mean_b - mean_a
    low = difference - distance(mean_b - low_b, high_a - mean_a)
    high = difference + distance(high_b - mean_b, mean_a - low_a)
    return max(float(low), -1.0), min(float(high), 1.0)


def paired_differences(
    a: np.ndarray, b: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES, level: float = LEVEL
) -> list[Interval]:
    """(difference, low, high) of mean(b) - mean(a) for every column of two (puzzles, columns) arrays of shares, row i one puzzle.

    Percentile bootstrap of the per-puzzle differences; Newcombe's paired score interval where these are all equal or too few.
    Raises ValueError on unequal shapes, no puzzles, non-finite values or shares outside [0, 1].
    """
    first, second = _finite_matrix(a), _finite_matrix(b)
    if first.shape != second.shape:
        raise ValueError(f"paired values need one shape, got {first.shape} and {second.shape}")
    if min(first.min(), second.min()) < 0 or max(first.max(), second.max()) > 1:
        raise ValueError("shares lie in [0, 1]")
    differences = second - first
    low, high = _percentiles(_resampled_means(differences, rng, resamples), level)
    intervals = []
    for column in range(differences.shape[1]):
        cell = differences[:, column]
        if len(cell) < MINIMUM_PUZZLES or (cell == cell[0]).all():
            bounds = _newcombe_interval(first[:, column], second[:, column], level)
        else:
            bounds = (float(low[column]), float(high[column]))
        intervals.append((float(cell.mean()), *bounds))
    return intervals


def nested_bounds(values: np.ndarray, rng: np.random.Generator, resamples: int = RESAMPLES, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds (columns,) of the mean of `values` (seeds, puzzles, columns): seeds, then puzzles, drawn with replacement.

    The nested bootstrap that a claim about training needs (Agarwal et al. 2021, arXiv 2108.13264): a new training run and new puzzles. Few seeds
    are few: with three, a resample leaves one out two times of three, and the bounds are still too narrow rather than too wide.
    """
    seeds, puzzles, columns = values.shape
    means = np.empty((resamples, columns))
    for row in range(resamples):
        of_seeds = np.bincount(rng.integers(0, seeds, seeds), minlength=seeds) / seeds
        of_puzzles = np.bincount(rng.integers(0, puzzles, puzzles), minlength=puzzles) / puzzles
        means[row] = np.einsum("s,p,spk->k", of_seeds, of_puzzles, values, optimize=True)
    return _percentiles(means, level)


def nested_means(values: np.ndarray, rng: np.random.Generator) -> list[Interval]:
    """(point, low, high) of every column of shares (seeds, puzzles, columns), by ``nested_bounds``; never narrower than over puzzles alone."""
    plain = bootstrap_means(values.mean(0), rng)
    return _widened(plain, nested_bounds(values, rng)) if len(values) > 1 else plain


def nested_differences(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> list[Interval]:
    """The same of b - a, both (seeds, puzzles, columns): paired by puzzle and by seed, so that what a seed's runs share cancels."""
    plain = paired_differences(a.mean(0), b.mean(0), rng)
    return _widened(plain, nested_bounds(b - a, rng)) if len(a) > 1 else plain


def _widened(plain: Sequence[Interval], bounds: tuple[np.ndarray, np.ndarray]) -> list[Interval]:
    return [(point, min(low, float(below)), max(high, float(above))) for (point, low, high), below, above in zip(plain, *bounds)]


def _require_columns(samples: pd.DataFrame, columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in samples.columns]
    if missing:
        raise UserError(f"samples table: columns {', '.join(missing)} are missing; evaluate again with this version")
    if samples.empty:
        raise UserError("samples table: it has no rows; evaluate at least one puzzle")
    twice = samples.duplicated(["puzzle", "sample"])
    if twice.any():
        row = samples[twice].iloc[0]
        raise UserError(f"samples table: puzzle {row['puzzle']} has sample {row['sample']} twice; evaluate again into an empty folder")


def _per_puzzle(samples: pd.DataFrame, solved_column: str) -> pd.DataFrame:
    """One row per puzzle, sorted by it: bin, n (samples), c (solved samples)."""
    _require_columns(samples, ["puzzle", "bin", "sample", solved_column])
    return samples.groupby("puzzle", sort=True).agg(bin=("bin", "first"), n=(solved_column, "size"), c=(solved_column, "sum"))


def _require_samples(puzzles: pd.DataFrame, ks: Sequence[int]) -> None:
    fewest = puzzles["n"].idxmin()
    if puzzles["n"].min() < max(ks):
        raise UserError(
            f"pass@{max(ks)} needs {max(ks)} samples per puzzle, puzzle {fewest} has {puzzles['n'].min()}; "
            "ask for a smaller k or more samples"
        )


def _bins(puzzles: pd.DataFrame) -> list[tuple[str, np.ndarray]]:
    """("all", every row), then each bin in order with the mask of its rows."""
    masks = [("all", np.ones(len(puzzles), dtype=bool))]
    return masks + [(name, (puzzles["bin"] == name).to_numpy()) for name in sorted(puzzles["bin"].unique())]


def _pass_matrix(puzzles: pd.DataFrame, ks: Sequence[int]) -> np.ndarray:
    return np.stack([pass_at_k(puzzles["n"].to_numpy(), puzzles["c"].to_numpy(), k) for k in ks], axis=1)  # (puzzles, ks)


def passk_table(samples: pd.DataFrame, ks: Sequence[int], labels: Mapping[str, object], seed: int) -> pd.DataFrame:
    """PASSK_COLUMNS, one row per bin ("all" first) and k: mean over puzzles of unbiased pass@k, 95 % interval over puzzles.

    samples: one row per puzzle and sample (puzzle, bin, sample, solved, solved_strict). labels: the values of LABELS; with
    spelling "strict" the strict outcomes are counted. seed: of the bootstrap. Raises UserError on missing columns, duplicate
    samples, puzzles with unequal numbers of samples, or a k above that number.
    """
    puzzles = _per_puzzle(samples, "solved_strict" if labels["spelling"] == "strict" else "solved")
    if puzzles["n"].nunique() > 1:
        raise UserError(
            f"samples table: puzzles have from {puzzles['n'].min()} to {puzzles['n'].max()} samples each, one number was expected; "
            "the evaluation is incomplete, run it again"
        )
    _require_samples(puzzles, ks)
    rng = np.random.default_rng(seed)
    values = _pass_matrix(puzzles, ks)
    rows = []
    for name, mask in _bins(puzzles):
        for k, (point, low, high) in zip(ks, bootstrap_means(values[mask], rng)):
            counts = {"bin": name, "k": k, "n_puzzles": int(mask.sum()), "n_samples": int(puzzles["n"].iloc[0])}
            rows.append({key: labels[key] for key in LABELS} | counts | {"pass_at_k": point, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows, columns=list(PASSK_COLUMNS))


def exact_passk_table(success: pd.DataFrame, labels: Mapping[str, object], seed: int) -> pd.DataFrame:
    """PASSK_COLUMNS of EXACT_KS, one row per bin ("all" first) and k: mean over puzzles of 1 - (1 - p)^k, 95 % interval over puzzles.

    success: one row per puzzle (puzzle, bin, p: probability that one sample solves it). n_samples stays empty.
    """
    puzzles = success.sort_values("puzzle", ignore_index=True)
    # p is a sum of products of rounded probabilities: it may exceed 1 by their error
    values = pass_at_k_objective(puzzles["p"].to_numpy(np.float64).clip(max=1.0)[:, None], np.array(EXACT_KS))
    rng = np.random.default_rng(seed)
    rows = []
    for name, mask in _bins(puzzles):
        for k, (point, low, high) in zip(EXACT_KS, bootstrap_means(values[mask], rng)):
            counts = {"bin": name, "k": k, "n_puzzles": int(mask.sum()), "n_samples": None}
            rows.append({key: labels[key] for key in LABELS} | counts | {"pass_at_k": point, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows, columns=list(PASSK_COLUMNS))


def rates_table(samples: pd.DataFrame, labels: Mapping[str, object], seed: int) -> pd.DataFrame:
    """RATES_COLUMNS, one row per bin ("all" first) and metric: mean over puzzles of each puzzle's mean, 95 % interval over puzzles.

    Metrics: SHARES; failure/<reason> (share of all samples, for each of FAILURES); MEANS (tokens, nats).
    Raises UserError on missing columns, duplicate samples or a failure reason outside FAILURES.
    """
    _require_columns(samples, ["puzzle", "bin", "sample", "failure", *SHARES, *MEANS])
    unknown = sorted(set(samples["failure"]) - {"", *FAILURES})
    if unknown:
        raise UserError(f"samples table: failure '{unknown[0]}' is unknown, expected empty or one of {', '.join(FAILURES)}")
    shares = samples[list(SHARES)].astype(float)
    for failure in FAILURES:
        shares[f"failure/{failure}"] = (samples["failure"] == failure).astype(float)
    means = samples[list(MEANS)].astype(float)
    bins = samples.groupby("puzzle", sort=True).agg(bin=("bin", "first"))
    share_values, mean_values = (frame.groupby(samples["puzzle"], sort=True).mean() for frame in (shares, means))
    rng = np.random.default_rng(seed)
    rows = []
    for name, mask in _bins(bins):
        intervals = bootstrap_means(share_values.to_numpy()[mask], rng)
        intervals += bootstrap_means(mean_values.to_numpy()[mask], rng, shares=False)
        for metric, (point, low, high) in zip([*share_values.columns, *mean_values.columns], intervals):
            row = {"bin": name, "metric": metric, "value": point, "ci_low": low, "ci_high": high, "n_puzzles": int(mask.sum())}
            rows.append({key: labels[key] for key in ("run", "stage", "step", "split")} | row)
    return pd.DataFrame(rows, columns=list(RATES_COLUMNS))


def comparison_table(
    samples_a: pd.DataFrame, samples_b: pd.DataFrame, name_a: str, name_b: str, ks: Sequence[int], seed: int
) -> pd.DataFrame:
    """COMPARISON_COLUMNS, one row per bin ("all" first) and k: pass@k of b minus a, 95 % interval by paired bootstrap over puzzles.

    Both tables must hold the same puzzles (numbers of samples may differ); raises UserError with the counts otherwise.
    """
    a, b = _per_puzzle(samples_a, "solved"), _per_puzzle(samples_b, "solved")
    missing_a, missing_b = len(b.index.difference(a.index)), len(a.index.difference(b.index))
    if missing_a or missing_b:
        raise UserError(
            f"comparison of {name_a} and {name_b}: {missing_a} puzzles are missing in {name_a} and {missing_b} in {name_b}; "
            "evaluate both on the same puzzles"
        )
    if not (a["bin"] == b["bin"]).all():
        moved = a.index[(a["bin"] != b["bin"]).to_numpy()][0]
        raise UserError(f"comparison of {name_a} and {name_b}: puzzle {moved} is in different bins; evaluate both with one puzzle table")
    _require_samples(a, ks)
    _require_samples(b, ks)
    rng = np.random.default_rng(seed)
    values_a, values_b = _pass_matrix(a, ks), _pass_matrix(b, ks)
    rows = []
    for name, mask in _bins(a):
        for k, (difference, low, high) in zip(ks, paired_differences(values_a[mask], values_b[mask], rng)):
            rows.append({"a": name_a, "b": name_b, "bin": name, "k": k, "difference": difference, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows, columns=list(COMPARISON_COLUMNS))
