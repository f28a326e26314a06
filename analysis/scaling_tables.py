"""The tables of the scaling report: pure functions from ``scaling_data``'s tables to frames, the paper's values beside ours where it prints any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis import published
from analysis.ceilings import MINIMUM_POINTS, fit_ceiling
from analysis.frontier import empirical_frontier, frontier, predicted_reward
from analysis.loss_surface import LossSurface, SurfaceFit, fit_isoflop
from analysis.rl_laws import (
    FORMS,
    RunLine,
    cross_validation,
    fit_floor,
    fit_form,
    fit_rl_law,
    fit_run_lines,
    fit_slope_law,
    percentile_interval,
    prediction_rmse,
    rank_correlation,
    resampled_runs,
)
from chessrl.errors import UserError
from chessrl.statistics import bootstrap_means


def size_name(parameters: float) -> str:
    """0.985M."""
    return f"{parameters / 1e6:.3g}M"


def budget_name(tokens: float) -> str:
    """400k, 3.2M: two digits, since batches of whole games overshoot a budget by another amount in every seed."""
    rounded = float(f"{tokens:.2g}")
    return f"{rounded / 1e3:g}k" if rounded < 1e6 else f"{rounded / 1e6:g}M"


# ---- the runs ---------------------------------------------------------------------------------------------------------------------------


def common_compute(points: pd.DataFrame) -> float:
    """RL FLOPs in the middle (geometric) of what all runs were measured at; of all runs together where their ranges do not meet."""
    spent = points[points["rl_flops"] > 0].groupby("run")["rl_flops"].agg(["min", "max"])
    low, high = spent["min"].max(), spent["max"].min()
    if low > high:
        low, high = spent["min"].min(), spent["max"].max()
    return float(np.sqrt(low * high))


def line_table(success: pd.DataFrame, bins: Sequence[str], c_ref: float, rng: np.random.Generator) -> pd.DataFrame:
    """One row per run: N, T, L, pass@1 before RL and at its last step, R_ref and B with intervals over puzzles, in-sample RMSE of the line.

    Both constants are linear in the rewards, so each puzzle has its own least-squares line and their mean is the run's: the interval is the
    bootstrap of that mean. A run measured at one compute has no line: NaN. success: ``scaling_data.success_table``.
    """
    chosen = success if "all" in bins else success[success["bin"].isin(bins)]
    rows = []
    for run, table in chosen.groupby("run", sort=False):
        wide = table.pivot(index="puzzle", columns="rl_flops", values="success")  # (puzzles, steps)
        spent = wide.columns.to_numpy(float)
        after = spent > 0
        design = np.column_stack([np.ones(after.sum()), np.log10(spent[after] / c_ref)])
        own = wide.to_numpy()[:, after] @ np.linalg.pinv(design).T  # (puzzles, 2): level and slope of each puzzle
        has_line = len(design) > 1  # of one step pinv makes the shortest solution, which nothing measured
        (level, *level_ends), (slope, *slope_ends) = bootstrap_means(own, rng, shares=False) if has_line else [(np.nan,) * 3] * 2
        (before, *before_ends), (last, *last_ends) = bootstrap_means(wide.to_numpy()[:, [0, -1]], rng, shares=False)
        if spent[0] > 0:  # what RL began from was not measured
            before, before_ends = float("nan"), [float("nan")] * 2
        misses = design @ np.array([level, slope]) - wide.to_numpy()[:, after].mean(0)
        first = table.iloc[0]
        rows.append(
            {
                "run": run, "size": size_name(first["parameters"]), "budget": budget_name(first["tokens"]),
                "parameters": first["parameters"], "tokens": first["tokens"], "loss": first["loss"], "rl_flops": spent[-1],
                "before_rl": before, "before_rl_low": before_ends[0], "before_rl_high": before_ends[1],
                "after_rl": last, "after_rl_low": last_ends[0], "after_rl_high": last_ends[1],
                "reference": level, "reference_low": level_ends[0], "reference_high": level_ends[1],
                "slope": slope, "slope_low": slope_ends[0], "slope_high": slope_ends[1],
                "steps": int(after.sum()), "puzzles": len(wide), "rmse": float(np.sqrt(np.mean(misses**2))),
            }
        )  # fmt: skip
    return pd.DataFrame(rows).sort_values(["parameters", "tokens"], ignore_index=True)


def predictor_table(lines: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Spearman's rho of what pretraining was with what RL reached, each with its bootstrap interval over runs. lines: ``line_table``."""
    predictors = {"loss L": lines["loss"], "compute 6NT": 6 * lines["parameters"] * lines["tokens"], "tokens T": lines["tokens"],
                  "size N": lines["parameters"]}  # fmt: skip
    outcomes = {
        "pass@1 before RL": lines["before_rl"], "R_ref": lines["reference"], "pass@1 at the last step": lines["after_rl"],
        "gain of RL": lines["after_rl"] - lines["before_rl"], "slope B": lines["slope"],
    }  # fmt: skip
    rows = []
    for outcome, values in outcomes.items():
        for predictor, given in predictors.items():
            rho, low, high, runs = rank_correlation(given.to_numpy(), values.to_numpy(), rng)
            rows.append({"outcome": outcome, "predictor": predictor, "rho": rho, "low": low, "high": high, "runs": runs})
    return pd.DataFrame(rows)


# ---- pretraining ------------------------------------------------------------------------------------------------------------------------


def surface_table(fit: SurfaceFit) -> pd.DataFrame:
    """Constants of the loss surface with intervals over runs, and the paper's."""
    ours = fit.surface.constants() | {"a": fit.surface.optimal_exponent()}
    ends = fit.intervals() if fit.samples else {}
    rows = [
        {"constant": name, "value": value, "low": ends.get(name, (np.nan,))[0], "high": ends.get(name, (np.nan,) * 2)[1],
         "paper": published.LOSS_SURFACE.get(name, "")}
        for name, value in ours.items()
    ]  # fmt: skip
    rows.append({"constant": "RMSE of log L", "value": fit.rmse, "paper": published.LOSS_SURFACE["RMSE of log L"]})
    return pd.DataFrame(rows)


def isoflop_table(cells: pd.DataFrame, budgets: int = 5) -> tuple[pd.DataFrame, list[str]]:
    """Parabolas of L in log N at several C = 6NT, and what could not be fitted.

    L at a C between two runs of a size is interpolated in log C, never extrapolated; a budget needs three sizes that span it.
    """
    by_size = {n: rows.assign(flops=6 * n * rows["tokens"]).sort_values("flops") for n, rows in cells.groupby("parameters")}
    everything = np.concatenate([rows["flops"].to_numpy() for rows in by_size.values()])
    rows, notes = [], []
    for flops in np.geomspace(everything.min(), everything.max(), budgets + 2)[1:-1]:
        spanning = {n: table for n, table in by_size.items() if table["flops"].iloc[0] <= flops <= table["flops"].iloc[-1]}
        losses = [np.interp(np.log(flops), np.log(table["flops"]), table["loss"]) for table in spanning.values()]
        try:
            fit = fit_isoflop(np.array(list(spanning)), np.array(losses), flops)
        except UserError as error:
            notes.append(str(error))
            continue
        rows.append({"flops": flops, "parameters": fit.parameters, "loss": fit.loss, "curvature": fit.curvature, "inside": fit.inside})
    return pd.DataFrame(rows, columns=["flops", "parameters", "loss", "curvature", "inside"]), notes


# ---- laws across runs -------------------------------------------------------------------------------------------------------------------


def form_table(lines: Sequence[RunLine]) -> tuple[pd.DataFrame, list[str]]:
    """f(L) in every form, best by AICc first; warnings where the runs do not tell forms apart or cannot bear one."""
    loss, reference = np.array([line.loss for line in lines]), np.array([line.reference for line in lines])
    rows, warnings = [], []
    for form, (_, size) in FORMS.items():
        if len(lines) < size + 3:
            warnings.append(f"{form}: {size} constants on {len(lines)} runs leave nothing to test it by; it is left out")
            continue
        fit = fit_form(form, loss, reference)
        constants = ", ".join(f"{value:.3g}" for value in fit.constants)
        rows.append({"form": form, "constants": constants, "r_squared": fit.r_squared, "rmse": fit.rmse, "aicc": fit.aicc, "runs": len(lines)})
    table = pd.DataFrame(rows, columns=["form", "constants", "r_squared", "rmse", "aicc", "runs"]).sort_values("aicc", ignore_index=True)
    close = table[table["aicc"] < table["aicc"].min() + 2]["form"].tolist()
    if len(close) > 1:
        warnings.append(f"these runs do not tell {', '.join(close)} apart: their AICc differ by less than 2")
    return table, warnings


def slope_table(points: pd.DataFrame, c_ref: float, rng: np.random.Generator, resamples: int) -> pd.DataFrame:
    """g(N, T) = a + b log10 T + c log10 N, and Pearson's correlation of B with log10 T, with intervals over runs; the paper's beside."""

    def constants(table: pd.DataFrame) -> dict[str, float]:
        lines = fit_run_lines(table, c_ref)
        law = fit_slope_law(lines)
        tokens, slopes = np.log10([line.tokens for line in lines]), np.array([line.slope for line in lines])
        pearson = float(np.corrcoef(tokens, slopes)[0, 1]) if np.ptp(tokens) > 0 and np.ptp(slopes) > 0 else float("nan")
        return {"a": law.a, "b (per decade of T)": law.b, "c (per decade of N)": law.c, "Pearson of B with log10 T": pearson}

    samples = [constants(resampled_runs(points, rng, 3)) for _ in range(resamples)]
    paper = published.SLOPE_LAW | {"Pearson of B with log10 T": published.SLOPE_TOKENS}
    rows = []
    for name, value in constants(points).items():
        low, high = percentile_interval([sample[name] for sample in samples])
        rows.append({"constant": name, "value": value, "low": low, "high": high, "paper": paper.get(name, "")})
    return pd.DataFrame(rows)


def prediction_table(
    points: pd.DataFrame, c_ref: float, forms: Sequence[str], surface: LossSurface | None, rng: np.random.Generator
) -> pd.DataFrame:
    """Root mean square error of rewards predicted for runs that the law has not seen (interval over runs), beside what a constant would err by.

    ``constant``: every left-out run is predicted by the mean reward of the others.
    """
    rows = []
    after = points[points["rl_flops"] > 0]
    for by in ("run", "parameters"):
        constant = pd.concat(
            [after[after[by] == value].assign(predicted=after.loc[after[by] != value, "reward"].mean()) for value in after[by].unique()]
        )
        for form in forms:
            for losses, given in (("measured", None), ("surface", surface)):
                if losses == "surface" and surface is None:
                    continue
                table = cross_validation(points, c_ref, form, by, given)
                row = {"left_out": by, "form": form, "loss": losses, "rmse": prediction_rmse(table)} | _rmse_interval(table, rng)
                paper = published.PREDICTION_RMSE.get((by, losses), "") if form == published.FORM else ""
                rows.append(row | {"constant_rmse": prediction_rmse(constant), "points": len(table), "paper": paper})
    return pd.DataFrame(rows)


def _rmse_interval(table: pd.DataFrame, rng: np.random.Generator, resamples: int = 2000) -> dict[str, float]:
    """Bootstrap over runs of ``prediction_rmse``."""
    squares = ((table["predicted"] - table["reward"]) ** 2).groupby(table["run"]).agg(["sum", "size"]).to_numpy(float)
    drawn = squares[rng.integers(0, len(squares), (resamples, len(squares)))].sum(1)
    low, high = percentile_interval(np.sqrt(drawn[:, 0] / drawn[:, 1]))
    return {"low": low, "high": high}


def ceiling_table(points: pd.DataFrame, rng: np.random.Generator) -> tuple[pd.DataFrame, list[str]]:
    """A sigmoid for every run of at least MINIMUM_POINTS measured steps; which runs have fewer."""
    rows, notes = [], []
    for run, table in points.groupby("run", sort=False):
        after, before = table[table["rl_flops"] > 0], table[table["rl_flops"] == 0]
        if len(after) < MINIMUM_POINTS or before.empty:
            notes.append(f"{run}: {len(after)} measured steps of RL and {len(before)} before it; a ceiling needs {MINIMUM_POINTS} and one")
            continue
        fit = fit_ceiling(after["rl_flops"].to_numpy(), after["reward"].to_numpy(), float(before["reward"].iloc[0]), rng=rng)
        first = table.iloc[0]
        rows.append(
            {"run": run, "size": size_name(first["parameters"]), "parameters": first["parameters"], "tokens": first["tokens"],
             "loss": first["loss"], "last_reward": float(after["reward"].iloc[-1]), "ceiling": fit.ceiling, "low": fit.low, "high": fit.high,
             "midpoint": fit.midpoint, "exponent": fit.exponent, "rmse": fit.rmse, "saturates": fit.saturates}
        )  # fmt: skip
    return pd.DataFrame(rows), notes


def start_table(by_k: dict[int, pd.DataFrame], rng: np.random.Generator, resamples: int) -> pd.DataFrame:
    """pass@k before RL as scale * 10^(slope L), one row per k (points of each k), intervals over runs, the paper's constants beside.

    NaN where it has no fit.
    """
    rows = []
    for k, points in by_k.items():
        before = points[points["rl_flops"] == 0]
        fit = fit_floor(before["loss"].to_numpy(), before["reward"].to_numpy())
        level, slope = fit or (float("nan"), float("nan"))
        solved = before[before["reward"] > 0]
        logs = np.log10(solved["reward"].to_numpy(float))
        errors = logs - (level + slope * solved["loss"].to_numpy())
        spread = float(((logs - logs.mean()) ** 2).sum()) if len(logs) else 0.0
        drawn = [before.sample(len(before), replace=True, random_state=rng) for _ in range(resamples)]
        fits = [fit_floor(part["loss"].to_numpy(), part["reward"].to_numpy()) for part in drawn]
        low, high = percentile_interval([refit[1] for refit in fits if refit])
        r_squared = 1 - (errors**2).sum() / spread if spread > 1e-12 else np.nan
        rows.append({"k": k, "scale_percent": 100 * 10**level, "slope": slope, "slope_low": low, "slope_high": high, "r_squared": r_squared,
                     "runs": len(before)})  # fmt: skip
    return pd.DataFrame(rows).merge(published.START_LAW, on="k", how="left", suffixes=("", "_paper"))


def frontier_tables(
    surface: SurfaceFit, points: pd.DataFrame, c_ref: float, form: str, budgets: Sequence[float], rng: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The predicted frontier with intervals over refits of both laws, and the measured points that no cheaper one reaches.

    Sizes between the smallest and largest trained one only.
    """
    sizes = (points["parameters"].min(), points["parameters"].max())
    best = frontier(predicted_reward(surface.surface, fit_rl_law(points, c_ref, form)), budgets, sizes)
    refits = [
        frontier(predicted_reward(sample, fit_rl_law(resampled_runs(points, rng, 4), c_ref, form)), budgets, sizes) for sample in surface.samples
    ]
    for column in ("parameters", "rl_share", "reward"):
        ends = np.array([percentile_interval([refit[column][row] for refit in refits]) for row in range(len(best))])
        best[f"{column}_low"], best[f"{column}_high"] = ends[:, 0], ends[:, 1]
    return best, empirical_frontier(points)
