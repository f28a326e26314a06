"""Figures and page of a comparison of groups of RL runs, drawn from its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.coverage import CELLS
from analysis.figures import DASHES, MARKERS
from chessrl.figure_style import axes_grid, palette, series_legend, styled

SMOOTHING = 5  # logged steps that a curve's running mean takes


def colours_of(groups: Sequence[str]) -> dict[str, tuple]:
    """One colour per group, the same in both figures."""
    return dict(zip(groups, palette(len(groups))))


@styled
def changes_figure(changes: pd.DataFrame) -> Figure:
    """Left: the change of pass@1 by group with its interval and every seed's range; right: the change of pass@k over k, with bands."""
    in_points = {name: 100 * changes[name] for name in ("difference", "ci_low", "ci_high", "seed_low", "seed_high")}
    overall = changes.assign(**in_points)[changes["bin"] == "all"]
    groups, smallest = list(dict.fromkeys(overall["policy"])), overall["k"].min()
    colours = colours_of(groups)
    figure, (left, right) = axes_grid(2, 2, max(2.3, 0.9 + 0.24 * len(groups)))
    for place, group in enumerate(groups):
        row = overall[(overall["policy"] == group) & (overall["k"] == smallest)].iloc[0]
        left.plot([row["seed_low"], row["seed_high"]], [place, place], color=colours[group], alpha=0.3, linewidth=5, solid_capstyle="butt")
        bounds = [[row["difference"] - row["ci_low"]], [row["ci_high"] - row["difference"]]]
        left.errorbar(row["difference"], place, xerr=bounds, color=colours[group], marker="o", markersize=4, capsize=2.5, elinewidth=1.1)
        curve = overall[overall["policy"] == group].sort_values("k")
        right.plot(curve["k"], curve["difference"], color=colours[group], marker=MARKERS[place % len(MARKERS)], markersize=3.5)
        right.fill_between(curve["k"], curve["ci_low"], curve["ci_high"], color=colours[group], alpha=0.12, linewidth=0)
    left.set_yticks(range(len(groups)), groups)
    left.set_ylim(len(groups) - 0.4, -0.6)
    left.set_xlabel(f"change of pass@{smallest} to the start (points)")
    right.set_xscale("log")
    right.set_xlabel("samples k")
    right.set_ylabel("change of pass@k (points)")
    for axes, line in ((left, left.axvline), (right, right.axhline)):
        line(0, color="#444444", linewidth=0.8, zorder=1)
        axes.set_axisbelow(True)
    marks = [Line2D([], [], color=colours[group], marker=MARKERS[place % len(MARKERS)], markersize=3.5) for place, group in enumerate(groups)]
    series_legend(figure, marks, groups, "upper")
    return figure


@styled
def group_curves_figure(curves: pd.DataFrame, measures: Mapping[str, str]) -> Figure:
    """Measures of training over steps by group: the mean over seeds (running mean over SMOOTHING logged steps) within the seeds' range."""
    groups = list(dict.fromkeys(curves["policy"]))
    colours = colours_of(groups)
    shown = [metric for metric in measures if metric in set(curves["metric"])]
    figure, grid = axes_grid(len(shown), min(3, len(shown)), 2.1)
    for axes, metric in zip(grid, shown):
        for place, group in enumerate(groups):
            rows = curves[(curves["policy"] == group) & (curves["metric"] == metric)].sort_values("step")
            width = 1 if metric.startswith("validation/") else SMOOTHING
            smooth = rows[["mean", "low", "high"]].rolling(width, center=True, min_periods=1).mean()
            dash = DASHES[place // 10 % len(DASHES)]
            axes.plot(rows["step"], smooth["mean"], color=colours[group], linestyle=dash)
            axes.fill_between(rows["step"], smooth["low"], smooth["high"], color=colours[group], alpha=0.12, linewidth=0)
        axes.set_ylabel(measures[metric].replace(" (", "\n("))
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    series_legend(figure, [Line2D([], [], color=colours[group]) for group in groups], groups, "upper")
    return figure


# ---- page -------------------------------------------------------------------------------------------------------------------------------


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of equal keys as a Markdown table."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([row[name] for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def signed(row: pd.Series) -> str:
    """A difference in points with its interval."""
    return f"{100 * row['difference']:+.1f} [{100 * row['ci_low']:+.1f}, {100 * row['ci_high']:+.1f}]"


def thousands(k: float) -> str:
    """A number of samples, or that there is none."""
    return "none" if k == float("inf") else f"{k:,.0f}"


def page(tables: Mapping[str, pd.DataFrame], exact: bool) -> str:
    """The comparison as Markdown: changes of pass@k, by bin, coverage, and what training measured."""
    passk, changes = tables["passk"], tables["changes"]
    points = passk[passk["bin"] == "all"].set_index(["policy", "k"])["pass_at_k"]
    start = ", ".join(f"pass@{k:,} {100 * points['start', k]:.1f} %" for k in sorted(changes["k"].unique()))
    kind = "exact (strict spelling)" if exact else "of samples"
    paragraphs = [
        f"pass@k is {kind}. Changes are in points to each run's own start; brackets are 95 % intervals over seeds and puzzles (nested bootstrap).",
        f"Start: {start}.",
        "![changes](comparison.png)",
        markdown_table(change_rows(changes, points)),
        "By bin (puzzles), change of the smallest k:",
        markdown_table(bin_rows(changes)),
        "Coverage, averaged over seeds; intervals over puzzles:",
        markdown_table(coverage_rows(tables["coverage"])),
        "Training, first and last five logged steps:",
        "![curves](curves.png)",
        markdown_table(measure_rows(tables["measures"])),
    ]
    return "\n\n".join(paragraphs) + "\n"


def change_rows(changes: pd.DataFrame, points: pd.Series) -> list[dict[str, str]]:
    """Per group: its level and seeds' changes at the smallest k, and the change of pass@k at some ks."""
    whole = changes[changes["bin"] == "all"].set_index(["policy", "k"])
    ks, rows = sorted(changes["k"].unique()), []
    for group in dict.fromkeys(changes["policy"]):
        smallest = whole.loc[(group, ks[0])]
        spread = f"{100 * smallest['seed_low']:+.1f} .. {100 * smallest['seed_high']:+.1f}"
        level = f"{100 * points[group, ks[0]]:.1f}"
        row = {"group": group, "seeds": f"{smallest['seeds']:.0f}", f"pass@{ks[0]} (%)": level, "seeds' changes": spread}
        rows.append(row | {f"change of pass@{k:,}": signed(whole.loc[(group, k)]) for k in ks[:: max(1, len(ks) // 4)]})
    return rows


def bin_rows(changes: pd.DataFrame) -> list[dict[str, str]]:
    """Per group: the change at the smallest k in each bin."""
    first = changes[changes["k"] == changes["k"].min()]
    by_group = first.groupby("policy", sort=False)
    return [{"group": group} | {f"{row['bin']} ({row['n_puzzles']})": signed(row) for _, row in rows.iterrows()} for group, rows in by_group]


def coverage_rows(coverage: pd.DataFrame) -> list[dict[str, str]]:
    """Per group: crossover, Delta_SE and the four cells."""
    rows = []
    for _, row in coverage.iterrows():
        crossing = f"{thousands(row['crossover_k'])} [{thousands(row['crossover_low'])}, {thousands(row['crossover_high'])}]"
        gap = f"{100 * row['delta_se']:.1f} [{100 * row['delta_se_low']:.1f}, {100 * row['delta_se_high']:.1f}]"
        row_of_cells = {f"{name} (%)": f"{100 * row[name]:.1f}" for name in CELLS}
        rows.append({"group": row["policy"], "crossover k*": crossing, f"Delta_SE, k = {row['k']}": gap} | row_of_cells)
    return rows


def measure_rows(measures: pd.DataFrame) -> list[dict[str, str]]:
    """Per group: every measure at either end of training."""
    ends = measures.set_index(["policy", "metric"]).apply(lambda row: f"{row['first']:.3f} -> {row['last']:.3f}", axis=1)
    wide = ends.unstack().reindex(index=dict.fromkeys(measures["policy"]), columns=dict.fromkeys(measures["metric"])).fillna("")
    return [{"group": group} | dict(row) for group, row in wide.iterrows()]
