"""How RL scales with pretraining loss (Shen et al., arXiv 2607.16097, sections 4 and 5).

Per run: R(C) = R_ref + B log10(C / C_ref), C the FLOPs of RL. Across runs: R_ref = f(L), B = g(N, T) = a + b log10 T + c log10 N, and a floor
R >= R_0(L), what the policy solves before RL. Together they predict the reward that (N, T, C) reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import least_squares
from scipy.stats import rankdata

from analysis.loss_surface import LossSurface
from chessrl.errors import UserError
from chessrl.statistics import LEVEL

POINT_COLUMNS = ("run", "parameters", "tokens", "loss", "rl_flops", "reward")  # one row per run and measured step of RL


# ---- one run ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunLine:
    """The log-linear fit of one RL run; ``reference`` is the reward at ``c_ref`` FLOPs, ``slope`` per decade of FLOPs."""

    run: str
    parameters: float
    tokens: float
    loss: float
    reference: float
    slope: float
    points: int
    rmse: float


def fit_run_lines(points: pd.DataFrame, c_ref: float) -> list[RunLine]:
    """Ordinary least squares of the reward on log10 C for every run of ``points`` (POINT_COLUMNS).

    Steps without RL FLOPs (the start) have no logarithm and are left out. Raises UserError for a run with fewer than two measured steps.
    """
    lines = []
    for run, rows in points[points["rl_flops"] > 0].groupby("run", sort=True):
        x = np.log10(rows["rl_flops"].to_numpy(float) / c_ref)
        if len(np.unique(x)) < 2:
            raise UserError(f"{run}: an RL fit needs two steps that were measured, found {len(np.unique(x))}; evaluate more of them")
        y = rows["reward"].to_numpy(float)
        slope, level = np.polyfit(x, y, 1)
        rmse = float(np.sqrt(np.mean((level + slope * x - y) ** 2)))
        first = rows.iloc[0]
        lines.append(RunLine(str(run), first["parameters"], first["tokens"], first["loss"], float(level), float(slope), len(x), rmse))
    if not lines:
        raise UserError("no RL run with measured steps: evaluate checkpoints of RL (rl.save_steps, python -m chessrl.evaluate)")
    return lines


# ---- f(L) -------------------------------------------------------------------------------------------------------------------------------

Curve = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _linear(loss: np.ndarray, c: np.ndarray) -> np.ndarray:
    return c[0] + c[1] * loss


def _exponential(loss: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(c[0] - c[1] * loss, -200, 200)) + c[2]


def _power(loss: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(c[0] - c[1] * np.log(loss), -200, 200)) + c[2]


def _logistic(loss: np.ndarray, c: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(np.clip(c[0] + c[1] * loss, -200, 200)))


RATE_REFINEMENTS = 4  # rounds of a ten times finer grid around the best rate

FORMS: dict[str, tuple[Curve, int]] = {  # name -> curve and how many constants it has
    "linear": (_linear, 2),  # a + b L
    "exponential": (_exponential, 3),  # alpha exp(-beta L) + gamma, the paper's; constants: log alpha, beta, gamma
    "power": (_power, 3),  # alpha L^-beta + gamma
    "logistic": (_logistic, 2),  # 1 / (1 + exp(a + b L)), bounded by 0 and 1
}


@dataclass(frozen=True, slots=True)
class FormFit:
    """R_ref as a function of L in one form. ``aicc``: Akaike's criterion for small samples, comparable across forms on the same runs."""

    form: str
    constants: tuple[float, ...]
    r_squared: float
    rmse: float
    aicc: float

    def __call__(self, loss: np.ndarray | float) -> np.ndarray:
        return FORMS[self.form][0](np.asarray(loss, np.float64), np.array(self.constants))


def fit_form(form: str, loss: np.ndarray, reference: np.ndarray) -> FormFit:
    """Least squares. Raises UserError on an unknown form or fewer runs than the form has constants."""
    if form not in FORMS:
        raise UserError(f"form={form}: expected one of {', '.join(FORMS)}")
    curve, size = FORMS[form]
    loss, reference = np.asarray(loss, np.float64), np.asarray(reference, np.float64)
    if len(loss) < size:
        raise UserError(f"form {form} has {size} constants: expected at least as many runs, found {len(loss)}; add runs")
    best = _best_constants(form, loss, reference)
    squares, count = float(((curve(loss, best) - reference) ** 2).sum()), len(loss)
    total = float(((reference - reference.mean()) ** 2).sum())
    penalty = 2 * (size + 1) * count / (count - size - 2) if count > size + 2 else float("nan")
    aicc = count * np.log(max(squares, 1e-300) / count) + penalty
    return FormFit(form, tuple(map(float, best)), 1 - squares / total if total else float("nan"), float(np.sqrt(squares / count)), float(aicc))


def _best_constants(form: str, loss: np.ndarray, reference: np.ndarray) -> np.ndarray:
    if form == "linear":
        return np.polyfit(loss, reference, 1)[::-1]
    if form == "logistic":
        odds = np.log(1 / np.clip(reference, 0.01, 0.99) - 1)
        start = np.polyfit(loss, odds, 1)[::-1]
        return least_squares(lambda c: _logistic(loss, c) - reference, start, max_nfev=1000).x
    return _best_decay(loss if form == "exponential" else np.log(loss), reference)


def _best_decay(x: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """log height, rate and offset of height exp(-rate x) + offset: at each rate the other two are linear, so the rate alone is searched.

    Runs that follow a line have no best rate: it ends at the lowest one looked at. Where the reward rises with x the height is 0.
    """
    centred = x - x.mean()
    rates, step = np.geomspace(0.01, 100, 121) / max(np.ptp(x), 1e-9), 10 ** (4 / 120)
    for _ in range(RATE_REFINEMENTS + 1):
        decay = np.exp(-rates[:, None] * centred)  # (rates, runs)
        part = decay - decay.mean(1, keepdims=True)
        height = np.maximum((part @ reference) / np.maximum((part**2).sum(1), 1e-300), 1e-12)
        offset = reference.mean() - height * decay.mean(1)
        squares = ((height[:, None] * decay + offset[:, None] - reference) ** 2).sum(1)
        best = int(np.argmin(squares))
        found = np.array([np.log(height[best]) + rates[best] * x.mean(), rates[best], offset[best]])
        rates, step = rates[best] * np.geomspace(1 / step, step, 21), step**0.1
    return found


# ---- the joint law ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlopeLaw:
    """g(N, T) = a + b log10 T + c log10 N, reward per decade of RL FLOPs."""

    a: float
    b: float
    c: float

    def __call__(self, parameters: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        return self.a + self.b * np.log10(tokens) + self.c * np.log10(parameters)


@dataclass(frozen=True, slots=True)
class RlLaw:
    """R(N, T, L, C) = max(R_0(L), f(L) + g(N, T) log10(C / C_ref)), in [0, 1]. ``floor``: log10 R_0 = floor[0] + floor[1] L; None: no floor."""

    c_ref: float
    level: FormFit
    slope: SlopeLaw
    floor: tuple[float, float] | None = None

    def reward(self, parameters: ArrayLike, tokens: ArrayLike, loss: ArrayLike, rl_flops: ArrayLike) -> np.ndarray:
        """Predicted reward; arguments broadcast. Without RL (0 FLOPs) it is the floor."""
        spent = np.asarray(rl_flops, np.float64)
        with np.errstate(divide="ignore"):
            decades = np.log10(spent / self.c_ref)
        gained = self.level(loss) + self.slope(parameters, tokens) * decades
        lowest = 0.0 if self.floor is None else 10.0 ** np.minimum(self.floor[0] + self.floor[1] * np.asarray(loss, np.float64), 0.0)
        return np.clip(np.where(spent > 0, np.maximum(gained, lowest), lowest), 0.0, 1.0)


def fit_slope_law(lines: Sequence[RunLine]) -> SlopeLaw:
    """Least squares; where the runs have one size or one token count its coefficient is 0 (the minimum-norm solution), which a table must say."""
    x = np.array([[np.log10(line.tokens), np.log10(line.parameters)] for line in lines])
    centre = x.mean(0)
    design = np.column_stack([np.ones(len(x)), x - centre])
    level, b, c = np.linalg.lstsq(design, np.array([line.slope for line in lines]), rcond=1e-10)[0]
    return SlopeLaw(float(level - b * centre[0] - c * centre[1]), float(b), float(c))


def fit_floor(loss: np.ndarray, start_reward: np.ndarray) -> tuple[float, float] | None:
    """Intercept and slope of log10 R_0 on L over runs whose policy solved something before RL; None with fewer than two such losses."""
    solved = np.asarray(start_reward) > 0
    x, y = np.asarray(loss, np.float64)[solved], np.log10(np.asarray(start_reward, np.float64)[solved])
    if len(np.unique(x)) < 2:
        return None
    slope, level = np.polyfit(x, y, 1)
    return float(level), float(slope)


def fit_rl_law(points: pd.DataFrame, c_ref: float, form: str = "exponential") -> RlLaw:
    """The joint law of all runs in ``points`` (POINT_COLUMNS); rows with rl_flops 0 are the rewards before RL and give the floor."""
    lines = fit_run_lines(points, c_ref)
    level = fit_form(form, np.array([line.loss for line in lines]), np.array([line.reference for line in lines]))
    before = points[points["rl_flops"] == 0]
    floor = fit_floor(before["loss"].to_numpy(), before["reward"].to_numpy()) if len(before) else None
    return RlLaw(c_ref, level, fit_slope_law(lines), floor)


# ---- how well it is known, and how well it predicts ----------------------------------------------------------------------------------


def resampled_runs(points: pd.DataFrame, rng: np.random.Generator, distinct: int) -> pd.DataFrame:
    """``points`` of whole runs drawn with replacement; a run drawn twice counts as two. Drawn again while fewer than ``distinct`` differ."""
    runs = points["run"].unique()
    while True:
        drawn = rng.choice(runs, len(runs))
        if len(set(drawn)) >= min(distinct, len(runs)):
            parts = [points[points["run"] == name].assign(run=f"{name} #{place}") for place, name in enumerate(drawn)]
            return pd.concat(parts, ignore_index=True)


def percentile_interval(values: Sequence[float]) -> tuple[float, float]:
    """(low, high) of refits, those without a value left out; NaN without any."""
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2))
    return float(low), float(high)


def cross_validation(
    points: pd.DataFrame, c_ref: float, form: str = "exponential", by: str = "run", surface: LossSurface | None = None
) -> pd.DataFrame:
    """Measured and predicted rewards of runs that the law has not seen: ``by`` run (leave one out) or by parameters (leave one size out).

    ``surface``: predict with its loss instead of the observed one. Columns POINT_COLUMNS, predicted.
    """
    parts = []
    for value in sorted(points[by].unique()):
        left_out = points[by] == value
        law = fit_rl_law(points[~left_out], c_ref, form)
        rows = points[left_out & (points["rl_flops"] > 0)].copy()
        loss = rows["loss"] if surface is None else surface.loss(rows["parameters"].to_numpy(), rows["tokens"].to_numpy())
        rows["predicted"] = law.reward(rows["parameters"].to_numpy(), rows["tokens"].to_numpy(), np.asarray(loss), rows["rl_flops"].to_numpy())
        parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def prediction_rmse(table: pd.DataFrame) -> float:
    """Root mean square error of a cross-validation table."""
    return float(np.sqrt(np.mean((table["predicted"] - table["reward"]) ** 2)))


def rank_correlation(x: np.ndarray, y: np.ndarray, rng: np.random.Generator, resamples: int = 2000) -> tuple[float, float, float, int]:
    """Spearman's rho, its percentile bootstrap interval over runs, and how many runs have both values: the others are left out.

    NaN where these are fewer than three, or either side is constant.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    x, y, runs = x[known], y[known], int(known.sum())
    if runs < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan"), float("nan"), float("nan"), runs
    drawn = rng.integers(0, runs, (resamples, runs))
    low, high = percentile_interval(_rank_correlations(x[drawn], y[drawn]))
    return float(_rank_correlations(x[None], y[None])[0]), low, high, runs


def _rank_correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rho of every row of x with that of y, both (rows, runs): Pearson's of mean ranks; NaN for a constant row."""
    ranks = [rankdata(values, axis=1) for values in (x, y)]
    a, b = (values - values.mean(1, keepdims=True) for values in ranks)
    with np.errstate(invalid="ignore"):
        return (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))


def spearman_table(points: pd.DataFrame, c_refs: Sequence[float], rng: np.random.Generator) -> pd.DataFrame:
    """Spearman of R_ref with L at each reference compute, and of the slope with log T. Columns c_ref, rho, low, high, slope_rho, .., runs."""
    rows = []
    for c_ref in c_refs:
        lines = fit_run_lines(points, c_ref)
        loss, tokens = (np.array([getattr(line, name) for line in lines]) for name in ("loss", "tokens"))
        rho, low, high, runs = rank_correlation(loss, np.array([line.reference for line in lines]), rng)
        of_slope = rank_correlation(tokens, np.array([line.slope for line in lines]), rng)
        rows.append({"c_ref": c_ref, "rho": rho, "low": low, "high": high, "slope_rho": of_slope[0], "slope_low": of_slope[1],
                     "slope_high": of_slope[2], "runs": runs})  # fmt: skip
    return pd.DataFrame(rows)

