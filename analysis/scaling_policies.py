"""What RL did to the policies of a sweep: categories of decisions by difficulty, crossings of pass@k and sharpening, cell by cell and pooled.

One pair a run: the policy that RL began from and RL's last measured step. Definitions and intervals are those of the report on single runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from analysis.chains import Step, checkpoints, steps_of
from analysis.passk_data import Success, exact_success
from analysis.passk_tables import crossover_table
from analysis.policies import read_policy
from analysis.policy_figures import categories_figure
from analysis.policy_sections import pooled_steps
from analysis.read import Run
from analysis.scaling_data import RlRun
from analysis.scaling_figures import budget_shades
from analysis.scaling_tables import budget_name, size_name
from analysis.sections import Section
from analysis.transition_tables import categories_table
from analysis.transitions import Pooled, Transition, sharpening_table
from chessrl.config import AnalysisConfig
from chessrl.figure_style import axes_grid, series_legend, styled

QUESTION = "What did RL do to the policies that it inherited?"
SHOWN_MEASURES = ("alpha*", "ExplainedSharp", "slope", "R2", "entropy change", "solving mass change")
PAPER_SHARPENING = (
    "The paper's at 50M (SFT -> RL, 750 steps): alpha* 1.35 (a second run after 1,000: 1.43), ExplainedSharp 0.17 to 0.24, slope 1.13, R2 0.56."
)
PAPER_CATEGORIES = "The paper: on easy bins amplification dominates; on hard bins tail discovery and wrong-mode amplification both grow."
CURVE_KS = tuple(2**power for power in range(0, 21, 2))


def last_step(rl_run: RlRun, file: str) -> Step | None:
    """The policy that RL began from and its last step whose evaluations hold ``file``; None where one of the two was not measured."""
    runs: list[Run] = [run for run in (rl_run.start, rl_run.run) if run is not None]
    later = [step for step in steps_of(checkpoints(runs, file)) if step.later.stage == "rl"]
    return max(later, key=lambda step: step.later.step) if later else None


def policy_sections(runs: Sequence[RlRun], settings: AnalysisConfig) -> list[Section]:
    """Categories, sharpening and crossings over all cells; a section whose files are absent says what makes them."""
    return [*_movement_sections(runs, settings), _crossing_section(runs, settings)]


def _movement_sections(runs: Sequence[RlRun], settings: AnalysisConfig) -> list[Section]:
    read, source = cache(read_policy), "evaluations/*/policy.parquet"
    parts: list[tuple[RlRun, Transition]] = []
    notes = []
    for run in runs:
        step = last_step(run, "policy.parquet")
        pooled, told = pooled_steps([step], settings, read) if step else ([], [f"{run.name}: not measured before and after RL"])
        notes += told
        parts += [(run, pair.seeds[0]) for pair in pooled]
    title, text = "Categories by difficulty", (
        f"Share of decisions by what became of the likeliest solving move between the policy that RL began from and RL's last step (top-k: "
        f"{settings.top_k}, tail: below {settings.tail:g}; the first rule that holds). All cells together, intervals over cells and puzzles; "
        "and for each size by itself."
    )  # fmt: skip
    if not parts:
        remedy = ("No policy was measured before and after RL: evaluate with evaluate.policy_traces=1.",)
        return [Section("cell_categories", title, text, source, pd.DataFrame(), None, remedy, QUESTION)]
    sizes = sorted({run.parameters for run, _ in parts})
    groups = [Pooled("all cells", tuple(part for _, part in parts))]
    groups += [Pooled(f"N = {size_name(size)}", tuple(part for run, part in parts if run.parameters == size)) for size in sizes]
    categories = categories_table(groups, settings.seed)
    alone = [Pooled(run.name, (part,)) for run, part in parts]
    sharp = sharpening_table([groups[0], *alone], settings.seed)
    sharp = sharp[sharp["measure"].isin(SHOWN_MEASURES) & ((sharp["bin"] == "all") | (sharp["transition"] == "all cells"))]
    return [
        Section("cell_categories", title, text, source, categories, categories_figure(categories),
                (*notes, PAPER_CATEGORIES), QUESTION),
        Section("cell_sharpening", "Sharpening, cell by cell",
                "alpha*, ExplainedSharp and the centred-logit slope of the same pairs: all cells together by bin, then each cell.", source,
                sharp.reset_index(drop=True), None, (PAPER_SHARPENING,), QUESTION),
    ]  # fmt: skip


def _crossing_section(runs: Sequence[RlRun], settings: AnalysisConfig) -> Section:
    title, text = "Where pass@k curves cross", (
        "The smallest k from which on the policy before RL is at least as good as RL's last step at every larger k (exact, up to k = 10^6; inf: RL "
        "is ahead at the largest), by cell and bin, with its interval over puzzles; no_crossover: share of resamples without one. Dashed: before RL."
    )  # fmt: skip
    rows, curves, missing = [], [], []
    for run in runs:
        step = last_step(run, "exact.parquet")
        if step is None:
            missing.append(run.name)
            continue
        pair = exact_success(step.start), exact_success(step.later)
        table = crossover_table([pair], settings.seed).drop(columns=["pair", "kind", "seeds"])
        named = {"run": run.name, "size": size_name(run.parameters), "budget": budget_name(run.tokens), "loss": run.loss}
        rows.append(pd.DataFrame([named] * len(table)).join(table))
        curves += [_curve(success, run, when) for success, when in zip(pair, ("before RL", "after RL"))]
    notes = (f"Without exact success before and after RL (evaluate.exact=true), and left out: {', '.join(missing)}.",) if missing else ()
    if not rows:
        return Section("cell_crossings", title, text, "evaluations/*/exact.parquet", pd.DataFrame(), None, notes, QUESTION)
    table = pd.concat(rows, ignore_index=True)
    return Section("cell_crossings", title, text, "evaluations/*/exact.parquet", table, curves_figure(pd.concat(curves)), notes, QUESTION)


def _curve(success: Success, run: RlRun, when: str) -> pd.DataFrame:
    values = success.pass_at(CURVE_KS)[0].mean(0)
    return pd.DataFrame({"k": CURVE_KS, "pass_at_k": values, "when": when, "parameters": run.parameters, "tokens": run.tokens, "run": run.name})


@styled
def curves_figure(table: pd.DataFrame) -> Figure:
    """Exact pass@k over all puzzles before (dashed) and after RL: a panel per size, a colour per pretraining budget."""
    sizes, shades = sorted(table["parameters"].unique()), budget_shades(table["tokens"])
    figure, grid = axes_grid(len(sizes), min(3, len(sizes)), 2.6)
    for axes, size in zip(grid, sizes):
        for (_, when), curve in table[table["parameters"] == size].groupby(["run", "when"]):
            colour = shades[budget_name(curve["tokens"].iloc[0])]
            axes.plot(curve["k"], curve["pass_at_k"], color=colour, linestyle="--" if when == "before RL" else "-")
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_title(f"N = {size_name(size)}")
        axes.set_xlabel("samples k")
    grid[0].set_ylabel("pass@k, all puzzles")
    handles = [Line2D([], [], color=colour) for colour in shades.values()]
    handles += [Line2D([], [], color="#444444", linestyle=style) for style in ("--", "-")]
    series_legend(figure, handles, [*(f"T = {name}" for name in shades), "before RL", "after RL"], "upper")
    return figure
