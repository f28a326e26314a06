"""Figures of pass@k: curves to a million samples, groups of puzzles, cells, newly solved puzzles, budgets, temperatures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

from analysis.coverage import CELLS
from analysis.figures import DASHES, MARKERS
from analysis.passk_tables import UNIFORM
from chessrl.figure_style import WIDTH_INCHES, axes_grid, palette, series_legend, styled

CELL_COLOURS = dict(zip(CELLS, ["#029e73", "#d55e00", "#0173b2", "#bdbdbd"]))


def _share_axis(axes: Axes, top: float = 1.0) -> None:
    axes.set_ylim(0, min(1.0, max(0.05, 1.05 * top)) * 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))


def _samples_axis(axes: Axes, ks: Sequence[float], label: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=5 if max(ks) > 1e4 else 8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def _errors(rows: pd.DataFrame, value: str) -> np.ndarray:
    return np.nan_to_num(np.stack([rows[value] - rows["ci_low"], rows["ci_high"] - rows[value]])).clip(min=0)


@styled
def reach_figure(table: pd.DataFrame) -> Figure:
    """pass@k over k (log axis) with 95 % bands, a panel per bin: exact solid, sampled dashed, uniform play dotted, Stockfish as a level."""
    bins = list(dict.fromkeys(table["bin"]))
    levels = list(dict.fromkeys(table.loc[table["kind"] == "played", "policy"]))
    policies = [name for name in dict.fromkeys(table["policy"]) if name not in (*levels, UNIFORM)]
    colours = dict(zip(policies, palette(len(policies)))) | {UNIFORM: "#555555"}
    greys = dict(zip(levels, seaborn.color_palette("Greys", len(levels) + 2)[2:]))
    figure, grid = axes_grid(len(bins), min(3, len(bins)), 2.3)
    handles: dict[str, object] = {}
    for place, (axes, bin) in enumerate(zip(grid, bins)):
        rows = table[table["bin"] == bin]
        for (policy, kind), curve in rows.groupby(["policy", "kind"], sort=False):
            if policy in greys:
                handles[policy] = axes.axhline(curve["pass_at_k"].iloc[0], color=greys[policy], linewidth=1.0, linestyle=DASHES[3])
                continue
            dash = DASHES[2] if policy == UNIFORM else "-" if kind == "exact" else DASHES[1]
            (line,) = axes.plot(curve["k"], curve["pass_at_k"], color=colours[policy], linestyle=dash)
            axes.fill_between(curve["k"], curve["ci_low"], curve["ci_high"], color=colours[policy], alpha=0.15, linewidth=0)
            handles[policy if policy == UNIFORM else f"{policy}, {kind.removeprefix('sampled, ')}"] = line
        _samples_axis(axes, table["k"].tolist(), "samples k")
        _share_axis(axes)
        axes.set_title(f"{'all puzzles' if bin == 'all' else bin} (n = {rows['n_puzzles'].max():,})")
        if place % 3 == 0:
            axes.set_ylabel("pass@k")
    series_legend(figure, list(handles.values()), list(handles), "upper")
    return figure


@styled
def groups_figure(table: pd.DataFrame, label: str, most: int = 14) -> Figure:
    """pass@k of groups of puzzles as points with 95 % intervals: a panel per k, a colour per policy; at most ``most`` groups."""
    groups, ks = list(dict.fromkeys(table["group"]))[:most], sorted(table["k"].unique())
    policies = list(dict.fromkeys(table["policy"]))
    sizes = table.drop_duplicates("group").set_index("group")["n_puzzles"]
    figure, grid = axes_grid(len(ks), len(ks), 1.0 + 0.28 * len(groups))
    for place, (axes, k) in enumerate(zip(grid, ks)):
        for number, (policy, colour) in enumerate(zip(policies, palette(len(policies)))):
            rows = table[(table["policy"] == policy) & (table["k"] == k)].set_index("group").reindex(groups)
            at = np.arange(len(groups)) + (number - (len(policies) - 1) / 2) * 0.7 / len(policies)
            style = {"fmt": MARKERS[number % len(MARKERS)], "markersize": 3.5, "elinewidth": 1.0, "color": colour}
            axes.errorbar(rows["value"], at, xerr=_errors(rows, "value"), label=policy, **style)
        axes.set_yticks(np.arange(len(groups)), [f"{group} ({sizes[group]:,})" for group in groups] if place == 0 else [])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel(f"pass@{k}")
    grid[0].set_ylabel(label)
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure


@styled
def cells_figure(table: pd.DataFrame) -> Figure:
    """Four cells of coverage as a stacked bar per k, over all puzzles; a panel per pair."""
    rows = table[table["bin"] == "all"]
    pairs = list(dict.fromkeys(rows["pair"]))
    figure, grid = axes_grid(len(pairs), min(2, len(pairs)), 0.9 + 0.3 * rows.groupby("pair")["k"].nunique().max())
    for axes, pair in zip(grid, pairs):
        wide = rows[rows["pair"] == pair].pivot(index="k", columns="cell", values="share")
        left = np.zeros(len(wide))
        for cell in CELLS:
            bars = axes.barh([f"k = {k:,}" for k in wide.index], wide[cell], left=left, height=0.7, color=CELL_COLOURS[cell], label=cell)
            axes.bar_label(bars, [f"{100 * share:.1f}" if share >= 0.06 else "" for share in wide[cell]], label_type="center", fontsize=7)
            left += wide[cell].to_numpy()
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_xlabel("share of puzzles")
        axes.set_title(pair)
        axes.grid(axis="y", visible=False)
        axes.invert_yaxis()
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure


@styled
def newly_solved_figure(table: pd.DataFrame) -> Figure:
    """Newly solved beside the null by k with 95 % intervals, a panel per pair."""
    pairs = list(dict.fromkeys(table["pair"]))
    names = {"newly solved": "the trained policy solves", "null": "the base itself would (null)"}
    figure, grid = axes_grid(len(pairs), min(2, len(pairs)), 2.3)
    for place, (axes, pair) in enumerate(zip(grid, pairs)):
        rows = table[table["pair"] == pair]
        ks = sorted(rows["k"].unique())
        for number, ((measure, name), colour) in enumerate(zip(names.items(), palette(2))):
            of_one = rows[rows["measure"] == measure].set_index("k").reindex(ks)
            at = np.arange(len(ks)) + (number - 0.5) * 0.4
            axes.bar(at, of_one["value"], 0.38, color=colour, label=name, yerr=_errors(of_one, "value"), error_kw={"elinewidth": 0.9, "capsize": 2})
        axes.set_xticks(np.arange(len(ks)), [f"k = {k:,}" for k in ks])
        axes.grid(axis="x", visible=False)
        axes.set_axisbelow(True)
        axes.set_xlim(min(-0.6, len(ks) / 2 - 1.6), max(len(ks) - 0.4, len(ks) / 2 + 0.6))
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_title(pair)
        if place % 2 == 0:
            axes.set_ylabel("of the puzzles that\nk base samples leave unsolved")
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure


@styled
def delta_figure(table: pd.DataFrame) -> Figure:
    """Delta_SE by pair and bin with 95 % intervals."""
    pairs, bins = list(dict.fromkeys(table["pair"])), list(dict.fromkeys(table["bin"]))
    figure, (axes,) = axes_grid(1, 1, 1.2 + 0.3 * len(bins))
    figure.set_figwidth(WIDTH_INCHES)
    axes.axvline(0, color="#444444", linewidth=0.8)
    for number, (pair, colour) in enumerate(zip(pairs, palette(len(pairs)))):
        rows = table[table["pair"] == pair].set_index("bin").reindex(bins)
        at = np.arange(len(bins)) + (number - (len(pairs) - 1) / 2) * 0.7 / len(pairs)
        style = {"fmt": MARKERS[number % len(MARKERS)], "markersize": 3.8, "elinewidth": 1.1, "color": colour}
        axes.errorbar(rows["delta_se"], at, xerr=_errors(rows, "delta_se"), label=pair, **style)
    axes.set_yticks(np.arange(len(bins)), ["all puzzles" if bin == "all" else bin for bin in bins])
    axes.set_ylim(len(bins) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=""))
    ks = " or ".join(map(str, sorted(set(table["delta_se_k"]))))
    axes.set_xlabel(f"pass@{ks} of the base − pass@1 of the trained policy (points)")
    series_legend(figure, *axes.get_legend_handles_labels(), "upper")
    return figure


@styled
def lines_figure(
    table: pd.DataFrame, panel: str, x: str, series: str, label: str, value: str = "pass_at_k", y: str = "pass@k", log: bool = True
) -> Figure:
    """``value`` over ``x`` with 95 % bands: a panel per value of ``panel``, a colour per value of ``series``."""
    panels, names = list(dict.fromkeys(table[panel])), list(dict.fromkeys(table[series]))
    figure, grid = axes_grid(len(panels), min(3, len(panels)), 2.3)
    for place, (axes, of_panel) in enumerate(zip(grid, panels)):
        for number, (name, colour) in enumerate(zip(names, palette(len(names)))):
            curve = table[(table[panel] == of_panel) & (table[series] == name)].sort_values(x)
            axes.plot(curve[x], curve[value], color=colour, marker=MARKERS[number % len(MARKERS)], markersize=3, label=str(name))
            axes.fill_between(curve[x], curve["ci_low"], curve["ci_high"], color=colour, alpha=0.15, linewidth=0)
        name = label.replace("{panel}", str(of_panel))
        if log:
            _samples_axis(axes, table[table[panel] == of_panel][x].tolist(), name)
        else:
            axes.set_xlabel(name)
        axes.set_ylim(max(-1.0, min(0.0, 1.05 * table["ci_low"].min())), min(1.02, max(0.05, 1.05 * table["ci_high"].max())))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_title("all puzzles" if of_panel == "all" else str(of_panel))
        if place % 3 == 0:
            axes.set_ylabel(y)
    series_legend(figure, *grid[0].get_legend_handles_labels(), "upper")
    return figure
