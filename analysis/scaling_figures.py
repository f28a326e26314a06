"""Figures of the scaling report: tables in, a matplotlib Figure out. One colour per model size, one marker per pretraining budget."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, PercentFormatter

from analysis.figures import DASHES, MARKERS
from analysis.loss_surface import SurfaceFit
from analysis.rl_laws import FormFit
from analysis.scaling_tables import budget_name, size_name
from chessrl.figure_style import WIDTH_INCHES, axes_grid, palette, series_legend, styled


def colours_of(parameters: pd.Series) -> dict[float, tuple]:
    """Model size -> colour, small to large."""
    sizes = sorted(parameters.unique())
    return dict(zip(sizes, palette(len(sizes))))


def _size_handles(colours: dict[float, tuple]) -> tuple[list[Line2D], list[str]]:
    return [Line2D([], [], color=colour, marker="o", markersize=4) for colour in colours.values()], [f"N = {size_name(n)}" for n in colours]


def _tokens_axis(axes: Axes, tokens: pd.Series) -> None:
    """Logarithmic, a tick at every budget."""
    axes.set_xscale("log")
    budgets = tokens.groupby(tokens.map(budget_name)).mean()
    axes.set_xticks(budgets.to_numpy(), budgets.index)
    axes.minorticks_off()
    axes.set_xlabel("pretraining tokens T")


def _flops_axis(axes: Axes, label: str) -> None:
    """Logarithmic, named at decades alone."""
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)


def budget_shades(tokens: pd.Series) -> dict[str, tuple]:
    """Name of a pretraining budget -> colour, large to small."""
    names = tokens.sort_values(ascending=False).map(budget_name).unique()
    return dict(zip(names, palette(len(names))))


def _errors(table: pd.DataFrame, value: str) -> np.ndarray:
    return np.stack([table[value] - table[f"{value}_low"], table[f"{value}_high"] - table[value]]).clip(min=0)


@styled
def surface_figure(cells: pd.DataFrame, fit: SurfaceFit | None) -> Figure:
    """Measured losses over T and over C = 6NT, one colour per size; the fitted surface within each size's tokens, its 95 % band over refits."""
    colours = colours_of(cells["parameters"])
    figure, (left, right) = axes_grid(2, 2, 2.6)
    for size, rows in cells.sort_values("tokens").groupby("parameters"):
        for axes, scale in ((left, 1.0), (right, 6 * size)):
            axes.plot(scale * rows["tokens"], rows["loss"], "o", color=colours[size], markersize=4, linestyle="none" if fit else ":")
            if fit:
                tokens = np.geomspace(rows["tokens"].min(), rows["tokens"].max(), 50)
                axes.plot(scale * tokens, fit.surface.loss(size, tokens), color=colours[size])
                drawn = [sample.loss(size, tokens) for sample in fit.samples] or [fit.surface.loss(size, tokens)]
                axes.fill_between(scale * tokens, *np.quantile(drawn, (0.025, 0.975), axis=0), color=colours[size], alpha=0.2, linewidth=0)
    _tokens_axis(left, cells["tokens"])
    _flops_axis(right, "pretraining FLOPs 6NT")
    left.set_ylabel("validation loss L\n(nats per move token)")
    series_legend(figure, *_size_handles(colours), "upper")
    return figure


@styled
def rl_curves_figure(points: pd.DataFrame, lines: pd.DataFrame, c_ref: float) -> Figure:
    """Reward over RL FLOPs with each run's line: one panel per size, one colour per pretraining budget; the start on the left edge."""
    sizes, shades = sorted(points["parameters"].unique()), budget_shades(points["tokens"])
    figure, grid = axes_grid(len(sizes), min(3, len(sizes)), 2.6)
    top = max(points["reward"].max(), 0.05) * 1.08
    for axes, size in zip(grid, sizes):
        for run, rows in points[points["parameters"] == size].groupby("run"):
            colour = shades[budget_name(rows["tokens"].iloc[0])]
            after = rows[rows["rl_flops"] > 0].sort_values("rl_flops")
            axes.plot(after["rl_flops"], after["reward"], "o", color=colour, markersize=3.5)
            line = lines[lines["run"] == run].iloc[0]
            spent = after["rl_flops"].to_numpy()[[0, -1]]
            axes.plot(spent, line["reference"] + line["slope"] * np.log10(spent / c_ref), color=colour)
            before = rows[rows["rl_flops"] == 0]["reward"]
            if len(before):
                axes.plot(after["rl_flops"].min() / 2.5, before.iloc[0], marker="<", color=colour, markersize=5, clip_on=False)
        axes.axvline(c_ref, color="#888888", linewidth=0.8, linestyle=":")
        _flops_axis(axes, "RL FLOPs C")
        axes.set_ylim(0, top)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_title(f"N = {size_name(size)}")
    grid[0].set_ylabel("pass@1")
    handles = [Line2D([], [], color=colour, marker="o", markersize=4) for colour in shades.values()]
    series_legend(figure, handles, [f"T = {name}" for name in shades], "upper")
    return figure


@styled
def level_figure(lines: pd.DataFrame, forms: Sequence[FormFit]) -> Figure:
    """Reward before RL, R_ref and the reward at the last step over pretraining loss; fitted forms through R_ref."""
    colours = colours_of(lines["parameters"])
    figure, grid = axes_grid(3, 3, 2.6)
    panels = (("before_rl", "pass@1 before RL"), ("reference", "R_ref, pass@1 at C_ref"), ("after_rl", "pass@1 at the last step"))
    for axes, (column, title) in zip(grid, panels):
        for size, rows in lines.groupby("parameters"):
            spread = _errors(rows, column) if f"{column}_low" in rows else None
            axes.errorbar(rows["loss"], rows[column], yerr=spread, fmt="o", color=colours[size], markersize=4, elinewidth=0.9)
        axes.set_xlabel("pretraining loss L (nats)")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_ylim(0, np.nanmax(lines[["reference_high", "after_rl_high"]]) * 1.05)  # a start may not have been measured
        axes.set_title(title)
    handles, names = _size_handles(colours)
    loss = np.linspace(lines["loss"].min(), lines["loss"].max(), 80)
    for place, form in enumerate(forms):
        grid[1].plot(loss, form(loss), color="#444444", linestyle=DASHES[place % len(DASHES)], linewidth=1.0)
        handles.append(Line2D([], [], color="#444444", linestyle=DASHES[place % len(DASHES)]))
        names.append(f"f(L) {form.form}")
    series_legend(figure, handles, names, "upper")
    return figure


@styled
def slope_figure(lines: pd.DataFrame) -> Figure:
    """B of every run with its interval over puzzles, over T and over L."""
    colours = colours_of(lines["parameters"])
    figure, (left, right) = axes_grid(2, 2, 2.6)
    for place, (size, rows) in enumerate(lines.groupby("parameters")):
        for axes, x in ((left, 1.03**place * rows["tokens"]), (right, rows["loss"])):  # sizes side by side at a budget
            axes.errorbar(x, rows["slope"], yerr=_errors(rows, "slope"), fmt="o", color=colours[size], markersize=4, elinewidth=0.9)
    for axes in (left, right):
        axes.axhline(0, color="#444444", linewidth=0.8)
    _tokens_axis(left, lines["tokens"])
    right.set_xlabel("pretraining loss L (nats)")
    left.set_ylabel("slope B (pass@1 per decade\nof RL FLOPs)")
    series_legend(figure, *_size_handles(colours), "upper")
    return figure


@styled
def rank_figure(table: pd.DataFrame) -> Figure:
    """Spearman's rho of predictors (markers) with outcomes (rows), with intervals over runs."""
    outcomes, predictors = list(dict.fromkeys(table["outcome"])), list(dict.fromkeys(table["predictor"]))
    figure, (axes,) = axes_grid(1, 1, 1.0 + 0.42 * len(outcomes))
    figure.set_figwidth(WIDTH_INCHES)
    axes.axvline(0, color="#444444", linewidth=0.8)
    for number, (predictor, colour) in enumerate(zip(predictors, palette(len(predictors)))):
        rows = table[table["predictor"] == predictor].set_index("outcome").loc[outcomes]
        at = np.arange(len(outcomes)) + (number - (len(predictors) - 1) / 2) * 0.18
        spread = np.stack([rows["rho"] - rows["low"], rows["high"] - rows["rho"]]).clip(min=0)
        axes.errorbar(rows["rho"], at, xerr=spread, fmt=MARKERS[number], color=colour, markersize=4, elinewidth=1.0, label=predictor)
    axes.set_yticks(np.arange(len(outcomes)), outcomes)
    axes.set_ylim(len(outcomes) - 0.5, -0.5)
    axes.set_xlim(-1.03, 1.03)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("Spearman's rho over runs")
    series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


@styled
def ceilings_figure(table: pd.DataFrame) -> Figure:
    """Fitted ceilings with intervals over L; open markers where the run has not gone half of the way, so that its ceiling is extrapolated."""
    colours = colours_of(table["parameters"])
    figure, (axes,) = axes_grid(1, 1, 2.8)
    for row in table.itertuples():
        spread = np.array([[max(row.ceiling - row.low, 0)], [max(row.high - row.ceiling, 0)]])
        colour = colours[row.parameters]
        face = colour if row.saturates else "white"
        axes.errorbar(row.loss, row.ceiling, yerr=spread, fmt="o", color=colour, markerfacecolor=face, markersize=4.5, elinewidth=0.9)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel("pretraining loss L (nats)")
    axes.set_ylabel("ceiling A of pass@1")
    handles, names = _size_handles(colours)
    hollow = Line2D([], [], color="#444444", marker="o", markerfacecolor="white", linestyle="none")
    series_legend(figure, [*handles, hollow], [*names, "extrapolated"], "upper")
    return figure


@styled
def frontier_figure(best: pd.DataFrame, measured: pd.DataFrame) -> Figure:
    """Over total FLOPs: reward of the predicted optimum with its interval beside the measured frontier, and their shares of RL."""
    figure, (left, right) = axes_grid(2, 2, 2.6)
    theory, practice = palette(2)
    for axes, column in ((left, "reward"), (right, "rl_share")):
        axes.plot(best["flops"], best[column], color=theory, label="predicted optimum")
        axes.fill_between(best["flops"], best[f"{column}_low"], best[f"{column}_high"], color=theory, alpha=0.2, linewidth=0)
        axes.plot(measured["flops"], measured[column], "o", color=practice, markersize=4, label="measured frontier")
        _flops_axis(axes, "FLOPs 6NT + C")
        axes.set_ylim(0, max(0.05, min(1.0, 1.1 * max(measured[column].max(), best[f"{column}_high"].max(), best[column].max()))))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    left.set_ylabel("pass@1")
    right.set_ylabel("RL's share of FLOPs")
    series_legend(figure, *left.get_legend_handles_labels(), "upper")
    return figure
