"""How RL scales with pretraining, from the runs of a sweep over model size and tokens.

The report of arXiv 2607.16097, sections 3 to 5, on runs of one's own: loss surface, RL lines, what predicts them, ceilings, compute-optimal frontier,
each beside the paper's constants. A law that the runs cannot identify is named as such.

Examples:
    python -m analysis.scaling outputs=outputs out=outputs/scaling
    python -m analysis.scaling outputs=outputs out=outputs/scaling measure=test bins=B1,B2
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import published, scaling_figures
from analysis import scaling_tables as tables
from analysis.loss_surface import SurfaceFit, fit_loss_surface
from analysis.report import write_page
from analysis.rl_laws import FORMS, fit_form, fit_run_lines, spearman_table
from analysis.scaling_data import RlRun, fewest_samples, points_of, pretraining_cells, rl_runs, success_table
from analysis.scaling_policies import QUESTION as POLICY_QUESTION
from analysis.scaling_policies import policy_sections
from analysis.sections import Section
from chessrl.command import parse_settings, run_command
from chessrl.config import AnalysisConfig
from chessrl.errors import UserError

INTRODUCTION = (
    "How pretraining loss, model size and tokens shape what RL reaches, after "
    '<a href="https://arxiv.org/abs/2607.16097">Shen et al., Understanding Reasoning from Pretraining to Post-Training</a>, sections 3 to 5.'
)
START_KS = (1, 4, 8, 16)  # of pass@k before RL, the paper's
MINIMUM_RUNS = 4
C_REFS = 5  # reference computes of the table of rank correlations
BUDGETS = 9  # of the predicted frontier


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Keys of the command."""

    out: str  # folder for the report, its tables and figures
    outputs: str = "outputs"  # the folder that run directories are in
    measure: str = "exact"  # of success: exact (evaluate.exact), test (samples) or validation (what RL logs)
    bins: tuple[str, ...] = ("all",)  # of the puzzles whose success is the reward: those that RL trained on, in experiment=endgame
    c_ref: float = 0.0  # RL FLOPs where R_ref is read; 0: the middle of what all runs were measured at
    form: str = ""  # of f(L): linear, exponential or power; empty: the one of the lowest AICc
    resamples: int = 200  # refits to runs drawn with replacement, for the intervals
    seed: int = 0  # of these draws


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the sections are made of. ``surface`` is None where the runs bear none, ``surface_notes`` then say why."""

    settings: ScalingSettings
    runs: tuple[RlRun, ...]
    cells: pd.DataFrame  # CELL_COLUMNS
    success: pd.DataFrame  # SUCCESS_COLUMNS
    points: pd.DataFrame  # POINT_COLUMNS
    lines: pd.DataFrame  # scaling_tables.line_table
    surface: SurfaceFit | None
    surface_notes: tuple[str, ...]
    c_ref: float
    lineless: tuple[str, ...]  # runs measured at one compute alone, in no law: left out of all of the above

    def rng(self, place: int) -> np.random.Generator:
        """Each section has its own: a section more changes no other's numbers."""
        return np.random.default_rng([self.settings.seed, place])


def read_sweep(settings: ScalingSettings) -> Sweep:
    """Raises UserError where there are too few RL runs for any law, or an unknown form."""
    if settings.form and settings.form not in FORMS:
        raise UserError(f"form={settings.form}: expected one of {', '.join(FORMS)}")
    outputs = Path(settings.outputs)
    cells = pretraining_cells(outputs)
    runs = rl_runs(outputs)
    success = success_table(runs, settings.measure)
    lineless = runs_without_line(success)
    runs, success = [run for run in runs if run.name not in lineless], success[~success["run"].isin(lineless)]
    points = points_of(success, settings.bins)
    if points["run"].nunique() < MINIMUM_RUNS:
        found = f"{points['run'].nunique()}" + (f" and {len(lineless)} measured once only" if lineless else "")
        raise UserError(f"outputs={outputs}: laws across runs need {MINIMUM_RUNS} measured RL runs, found {found}: sweep model and pretrain.tokens")
    c_ref = settings.c_ref or tables.common_compute(points)
    lines = tables.line_table(success, settings.bins, c_ref, np.random.default_rng([settings.seed, 0]))
    try:
        surface = fit_loss_surface(
            cells["parameters"], cells["tokens"], cells["loss"], rng=np.random.default_rng([settings.seed, 1]), resamples=settings.resamples
        )
        notes = surface.warnings
    except UserError as error:
        surface, notes = None, (str(error),)
    return Sweep(settings, tuple(runs), cells, success, points, lines, surface, notes, c_ref, lineless)


def runs_without_line(success: pd.DataFrame) -> tuple[str, ...]:
    """The runs of ``success_table`` that were measured at fewer than two computes of RL: their slope is not known."""
    computes = success[success["rl_flops"] > 0].groupby("run")["rl_flops"].nunique()
    return tuple(computes.index[computes < 2])


# ---- sections ---------------------------------------------------------------------------------------------------------------------------


def run_section(sweep: Sweep) -> Section:
    where = "all puzzles" if "all" in sweep.settings.bins else f"the puzzles of {', '.join(sweep.settings.bins)}"
    success = "exact success under strict spelling" if sweep.settings.measure == "exact" else "share of solved samples"
    text = (
        "What does RL reach from each pretrained model? One line a run: R(C) = R_ref + B log10(C / C_ref), ordinary least squares over its measured "
        f"steps, C the FLOPs of RL. Reward: pass@1 on {where} of the test split ({success}); intervals are over puzzles (95 %). "
        f"C_ref = {sweep.c_ref:.3g} (dotted). Triangles: before RL."
    )
    figure = scaling_figures.rl_curves_figure(sweep.points, sweep.lines, sweep.c_ref)
    left_out = "Left out, since one step of RL that was measured makes no line (rl.save_steps, pipeline.evaluate_steps=true): "
    notes = (f"{left_out}{', '.join(sweep.lineless)}.",) if sweep.lineless else ()
    return Section("rl_lines", "RL runs", text, "evaluations/*/ of the RL runs and of what they started from", sweep.lines, figure, notes)


def level_section(sweep: Sweep) -> Section:
    fitted = fit_run_lines(sweep.points, sweep.c_ref)
    table, warnings = tables.form_table(fitted)
    loss, reference = np.array([line.loss for line in fitted]), np.array([line.reference for line in fitted])
    paper = ", ".join(f"{name} {value}" for name, value in published.LEVEL_LAW.items())
    return Section(
        "level", "R_ref as a function of pretraining loss",
        "Which curve f(L) goes through R_ref? Forms with their R2 and AICc over runs (lower is better, differences below 2 say little); constants in "
        "the order of analysis/rl_laws.py (exponential: log alpha, beta, gamma). Error bars are over puzzles.",
        "the table of RL runs", table, scaling_figures.level_figure(sweep.lines, [fit_form(form, loss, reference) for form in table["form"]]),
        (*warnings, f"The paper's, alpha exp(-beta L) + gamma at C_ref = 1e20 on its bins B3 and B4: {paper}."),
    )  # fmt: skip


def rank_sections(sweep: Sweep) -> list[Section]:
    ranks = tables.predictor_table(sweep.lines, sweep.rng(2))
    after = sweep.points[sweep.points["rl_flops"] > 0]["rl_flops"]
    across = spearman_table(sweep.points, np.geomspace(after.min(), after.max(), C_REFS), sweep.rng(3))
    note = f"The paper's rho of R_ref with L: {published.SPEARMAN}."
    return [
        Section(
            "predictors", "Does lower pretraining loss predict what RL reaches?",
            "Spearman's rank correlation over runs of what pretraining was with what RL reached; 95 % intervals by bootstrap over runs, which with a "
            "dozen runs of one seed each are wide and too narrow rather than too wide.",
            "the table of RL runs", ranks, scaling_figures.rank_figure(ranks), (note,),
        ),
        Section(
            "spearman", "The same across reference computes",
            "R_ref read at computes from the smallest to the largest measured one (each run's line is extrapolated where it was not "
            "measured): rho of R_ref with L, and of the slope with T.",
            "the table of RL runs", across, None, (note,),
        ),
    ]  # fmt: skip


def slope_section(sweep: Sweep) -> Section:
    table = tables.slope_table(sweep.points, sweep.c_ref, sweep.rng(4), sweep.settings.resamples)
    return Section(
        "slope", "Does the slope grow with tokens?",
        "B of each run with its interval over puzzles; below the law g(N, T) = a + b log10 T + c log10 N over runs, intervals by bootstrap "
        "over runs.",
        "the table of RL runs", table, scaling_figures.slope_figure(sweep.lines),
    )  # fmt: skip


def surface_sections(sweep: Sweep) -> list[Section]:
    table = tables.surface_table(sweep.surface) if sweep.surface else pd.DataFrame()
    isoflop, notes = tables.isoflop_table(sweep.cells)
    return [
        Section(
            "loss_surface", "Pretraining loss over size and tokens",
            "L(N, T) = E + A / N^alpha + B / T^beta by the sum of Huber losses of log residuals (delta 1e-3), intervals by bootstrap over runs; "
            "N without embeddings. a = beta / (alpha + beta) is the exponent of N_opt ~ C^a.",
            "summary.json of the pretraining runs", table,
            scaling_figures.surface_figure(sweep.cells, sweep.surface), sweep.surface_notes,
        ),
        Section(
            "isoflop", "isoFLOP optima",
            "Vertex of the parabola of L in log N at equal C = 6NT, L interpolated in log C between a size's runs.",
            "summary.json of the pretraining runs", isoflop, None, tuple(notes),
        ),
    ]  # fmt: skip


def prediction_section(sweep: Sweep, forms: Sequence[str]) -> Section:
    surface = sweep.surface.surface if sweep.surface else None
    return Section(
        "prediction", "How well do the laws predict unseen runs?",
        "Root mean square error of pass@1 at all measured steps of the runs left out (one run, or all runs of a size), with the measured loss "
        "and with the surface's (fitted to all runs). constant_rmse: predicting the mean of the others' rewards; a law that is no better has "
        "predicted nothing.",
        "the table of RL runs", tables.prediction_table(sweep.points, sweep.c_ref, forms, surface, sweep.rng(7)),
    )  # fmt: skip


def ceiling_section(sweep: Sweep) -> Section:
    table, notes = tables.ceiling_table(sweep.points, sweep.rng(5))
    figure = scaling_figures.ceilings_figure(table) if len(table) else None
    return Section(
        "ceilings", "Where would RL saturate?",
        "R = R_0 + (A - R_0) / (1 + (C_mid / C)^B) for each run; the interval of A by parametric bootstrap. Where a run has not gone half of "
        "the way its A is an extrapolation, and an interval that reaches 1 says that its end is not known.",
        "the table of RL runs", table, figure, (*notes, f"The paper's: {published.CEILINGS}."),
    )  # fmt: skip


def start_section(sweep: Sweep) -> Section:
    by_k = {1: sweep.points}
    ks = START_KS if sweep.settings.measure == "exact" else [k for k in START_KS if k <= fewest_samples(sweep.runs)]
    by_k |= {k: points_of(success_table(sweep.runs, sweep.settings.measure, k), sweep.settings.bins) for k in ks if k > 1}
    return Section(
        "start", "What fine-tuned policies solve, over pretraining loss",
        "pass@k before RL as scale * 10^(slope L), least squares of its logarithm; scale in percent. k = 1 is the floor of the law of RL.",
        "evaluations of the fine-tuned policies", tables.start_table(by_k, sweep.rng(8), sweep.settings.resamples), None,
        (f"The paper's floor: {published.FLOOR}.",),
    )  # fmt: skip


def frontier_sections(sweep: Sweep, form: str) -> list[Section]:
    text = (
        "The split of a budget between pretraining (6NT) and RL (C) that the fitted laws call best, sizes between the smallest and the largest "
        "trained one, intervals over refits to runs drawn with replacement; beside it the measured points that no cheaper one reaches."
    )
    source, title = "the laws above", "Compute-optimal split"
    if sweep.surface is None or not form:
        return [Section("frontier", title, text, source, pd.DataFrame(), None, ("Left out: these runs bear no loss surface, or no f(L).",))]
    spent = 6 * sweep.points["parameters"] * sweep.points["tokens"] + sweep.points["rl_flops"]
    budgets = np.geomspace(spent.min(), spent.max(), BUDGETS)
    best, measured = tables.frontier_tables(sweep.surface, sweep.points, sweep.c_ref, form, budgets, sweep.rng(6))
    ends = int((~best["inside"]).sum())
    notes = [f"f(L) {form}; budgets within those measured.", f"The paper's share of RL: {published.RL_SHARE}."]
    if ends:
        notes.append(f"{ends} of {len(best)} optima lie at the smallest or largest size: these runs do not show where the best size is.")
    tokens = sweep.cells["tokens"]
    if outside := int(((best["tokens"] < tokens.min()) | (best["tokens"] > tokens.max())).sum()):
        notes.append(f"{outside} of {len(best)} optima take fewer or more tokens than any run had: extrapolation, which may be nonsense.")
    notes += [f"The loss surface under it: {note}." for note in sweep.surface_notes]
    return [
        Section("frontier", title, text, source, best, scaling_figures.frontier_figure(best, measured), tuple(notes)),
        Section("frontier_measured", "The measured frontier", "Points of the sweep that no cheaper one reaches.", "the table of RL runs", measured),
    ]


def scaling_sections(sweep: Sweep) -> list[Section]:
    """All sections in reading order, grouped by question."""
    level = level_section(sweep)
    forms = level.table["form"].tolist()
    form = sweep.settings.form or (forms[0] if forms else "")
    groups = {
        "Does pretraining predict what RL reaches?": [run_section(sweep), *rank_sections(sweep), level, start_section(sweep)],
        "What do size and tokens do?": [slope_section(sweep), *surface_sections(sweep), prediction_section(sweep, forms)],
        POLICY_QUESTION: policy_sections(sweep.runs, AnalysisConfig(seed=sweep.settings.seed)),
        "Where does it end, and how should compute be split?": [ceiling_section(sweep), *frontier_sections(sweep, form)],
    }
    return [replace(section, question=question) for question, sections in groups.items() for section in sections]


def main(arguments: list[str]) -> None:
    settings = parse_settings(ScalingSettings, arguments)
    sweep = read_sweep(settings)
    report = write_page(scaling_sections(sweep), Path(settings.out), shlex.join(["python", "-m", "analysis.scaling", *arguments]), INTRODUCTION, [])
    print(f"{len(sweep.cells)} pretraining runs, {sweep.lines['run'].nunique()} RL runs -> {report}")


if __name__ == "__main__":
    sys.exit(run_command(main))
