"""Figures of the evidence page, each drawn from its table alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from chessrl.figure_style import axes_grid, palette, series_legend, styled

SHOWN_MEASURES = ("precision", "recall", "J")


@styled
def verifiers_figure(table: pd.DataFrame) -> Figure:
    """Precision, recall and J of each verifier with their intervals, a colour per run, from ``verifier_table``."""
    figure, grid = axes_grid(len(SHOWN_MEASURES), len(SHOWN_MEASURES), 2.6)
    names = list(dict.fromkeys(table["verifier"]))
    runs = list(dict.fromkeys(zip(table["run"], table["step"])))
    for axes, measure in zip(grid, SHOWN_MEASURES):
        for number, ((run, step), colour) in enumerate(zip(runs, palette(len(runs)))):
            rows = table[(table["run"] == run) & (table["step"] == step) & (table["measure"] == measure)].set_index("verifier").reindex(names)
            places = np.arange(len(names)) + (number - (len(runs) - 1) / 2) * 0.7 / max(1, len(runs))
            _bars(axes, places, rows, "value", colour)
        axes.set_ylabel(measure)
        axes.set_ylim(min(-0.02, float(table.loc[table["measure"] == measure, "ci_low"].min()) - 0.02), 1.03)
        axes.set_xticks(np.arange(len(names)), [name.replace("_", " ") for name in names], rotation=35, ha="right")
    _legend(figure, [f"{run}, step {step}" for run, step in runs])
    return figure


@styled
def prefixes_figure(table: pd.DataFrame) -> Figure:
    """Exact matches by share of the prefix with their intervals, a colour per source, one panel per run, from ``prefix_table``."""
    runs = list(dict.fromkeys(table["run"]))
    sources = list(dict.fromkeys(table["source"]))
    figure, grid = axes_grid(len(runs), min(2, len(runs)), 2.6)
    for axes, run in zip(grid, runs):
        for number, (source, colour) in enumerate(zip(sources, palette(len(sources)))):
            rows = table[(table["run"] == run) & (table["source"] == source)]
            _bars(axes, rows["prefix_percent"].to_numpy() + (number - (len(sources) - 1) / 2) * 2.0, rows, "exact_match", colour)
        axes.set_xticks(sorted(table["prefix_percent"].unique()))
        axes.set_xlabel("prefix given (% of the plies)")
        axes.set_ylabel("rest completed exactly (share)")
        axes.set_ylim(bottom=0)
        axes.set_title(run)
    _legend(figure, [source.replace("_", " ") for source in sources])
    return figure


def _bars(axes, places: np.ndarray, rows: pd.DataFrame, value: str, colour) -> None:
    points = rows[value].to_numpy(np.float64)
    below, above = points - rows["ci_low"].to_numpy(np.float64), rows["ci_high"].to_numpy(np.float64) - points
    bars = np.clip(np.stack([below, above]), 0, None)  # a percentile interval may miss its point by a rounding
    axes.errorbar(places, points, yerr=bars, fmt="o", markersize=3.5, capsize=2, linewidth=1.1, color=colour)


def _legend(figure: Figure, names: list[str]) -> None:
    handles = [Line2D([], [], color=colour, marker="o", linestyle="") for colour in palette(len(names))]
    series_legend(figure, handles, names, "lower")
