"""Which model size, pretraining tokens and RL compute the fitted laws recommend.

The loss surface is fitted to all finished pretraining runs of the folder, the RL law to its RL runs; the intervals come from refitting both to
runs drawn with replacement.

Examples:
    python -m analysis.plan budget=1e18
    python -m analysis.plan budget=1e15 outputs=outputs form=power resamples=200
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from tqdm import tqdm

from analysis.frontier import Allocation, best_allocation, predicted_reward
from analysis.loss_surface import SurfaceFit, fit_loss_surface
from analysis.rl_laws import FORMS, RlLaw, fit_rl_law, percentile_interval, resampled_runs
from analysis.scaling_data import pretraining_cells, rl_points
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError
from chessrl.statistics import LEVEL

MINIMUM_POLICIES = 6


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Keys of the command."""

    budget: float  # FLOPs of pretraining and RL together
    outputs: str = "outputs"  # the folder that run directories are in
    measure: str = "exact"  # of success: exact (evaluate.exact), test (samples) or validation (what RL logs)
    bins: tuple[str, ...] = ("all",)  # of the puzzles whose success is the reward
    k: int = 1  # of pass@k
    form: str = "exponential"  # of f(L): linear, exponential (the paper's), power or logistic
    c_ref: float = 0.0  # RL FLOPs where R_ref is read; 0: the median of the runs'
    resamples: int = 100  # refits to runs drawn with replacement, for the intervals
    seed: int = 0  # of these draws


@dataclass(frozen=True, slots=True)
class Plan:
    """The recommendation, its interval over refits (low, high by column), and what to be careful about."""

    best: Allocation
    intervals: dict[str, tuple[float, float]]
    surface: SurfaceFit
    law: RlLaw
    warnings: tuple[str, ...]


def make_plan(cells: pd.DataFrame, points: pd.DataFrame, settings: PlanSettings) -> Plan:
    """Fit, optimise, and refit for the intervals. cells: CELL_COLUMNS, points: POINT_COLUMNS of analysis.scaling_data."""
    if settings.form not in FORMS:
        raise UserError(f"form={settings.form}: expected one of {', '.join(FORMS)}")
    policies = len(points[["parameters", "tokens"]].drop_duplicates())
    if policies < MINIMUM_POLICIES:
        raise UserError(f"a plan needs RL runs from at least {MINIMUM_POLICIES} pairs of size and tokens, found {policies}: sweep model and budget")
    rng = np.random.default_rng(settings.seed)
    surface = fit_loss_surface(cells["parameters"], cells["tokens"], cells["loss"], rng=rng, resamples=settings.resamples)
    c_ref = settings.c_ref or float(points.loc[points["rl_flops"] > 0, "rl_flops"].median())
    law = fit_rl_law(points, c_ref, settings.form)
    sizes = (cells["parameters"].min() / 4, cells["parameters"].max() * 4)
    best = best_allocation(predicted_reward(surface.surface, law), settings.budget, sizes)
    refits = []
    for sample in tqdm(surface.samples, desc="refits", disable=None):
        drawn = resampled_runs(points, rng, MINIMUM_POLICIES - 2)
        refits.append(best_allocation(predicted_reward(sample, fit_rl_law(drawn, c_ref, settings.form)), settings.budget, sizes))
    intervals = {name: percentile_interval([getattr(refit, name) for refit in refits]) for name in ("parameters", "tokens", "rl_share", "reward")}
    return Plan(best, intervals, surface, law, tuple(_warnings(best, surface, cells, points, settings.budget)))


def _warnings(best: Allocation, surface: SurfaceFit, cells: pd.DataFrame, points: pd.DataFrame, budget: float) -> list[str]:
    warnings = [f"loss surface: {warning}" for warning in surface.warnings]
    spent = float((6 * points["parameters"] * points["tokens"] + points["rl_flops"]).max())
    if budget > spent:
        warnings.append(f"extrapolation: the budget is {budget / spent:.3g} times the largest run's {spent:.3g} FLOPs, and no interval holds there")
    if not best.inside:
        warnings.append("the best size is at an end of the range looked at (a quarter of the smallest to four times the largest)")
    if best.parameters > cells["parameters"].max() or best.parameters < cells["parameters"].min():
        warnings.append("the best size is outside those that were trained")
    if best.tokens > cells["tokens"].max() or best.tokens < cells["tokens"].min():
        warnings.append(f"the best number of tokens is outside those that were trained, {cells['tokens'].min():.3g} to {cells['tokens'].max():.3g}")
    if best.reward > 0.999:
        warnings.append("the predicted reward is at its ceiling, where a log-linear law says nothing")
    return warnings


def main(arguments: list[str]) -> None:
    settings = parse_settings(PlanSettings, arguments)
    outputs = Path(settings.outputs)
    plan = make_plan(pretraining_cells(outputs), rl_points(outputs, settings.measure, settings.bins, settings.k), settings)
    best, interval = plan.best, plan.intervals

    def line(name: str, value: float, key: str, form: str) -> str:
        low, high = interval[key]
        return f"{name:<30}{value:{form}}   [{low:{form}}, {high:{form}}]"

    print(f"budget {settings.budget:.3g} FLOPs; {LEVEL:.0%} intervals from {settings.resamples} refits")
    for warning in plan.warnings:
        print(f"careful: {warning}")
    print(line("model size N (no embeddings)", best.parameters, "parameters", ".3g"))
    print(line("pretraining tokens T", best.tokens, "tokens", ".3g"))
    print(line("share of RL", best.rl_share, "rl_share", ".3f") + f"   C_RL = {best.rl_flops:.3g} FLOPs")
    print(line(f"predicted pass@{settings.k}", best.reward, "reward", ".3f"))
    constants = ", ".join(f"{name} {value:.4g}" for name, value in plan.surface.surface.constants().items())
    print(f"loss surface over {plan.surface.cells} runs: {constants}; RMSE of log L {plan.surface.rmse:.4f}")
    level, slope = plan.law.level, plan.law.slope
    a_decade = f"{slope.a:.4g} {slope.b:+.4g} log10 T {slope.c:+.4g} log10 N"
    print(f"RL law ({level.form}): R2 of f(L) {level.r_squared:.3f}; slope per decade of RL FLOPs {a_decade}")


if __name__ == "__main__":
    sys.exit(run_command(main))
