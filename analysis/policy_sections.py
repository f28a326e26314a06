"""The report's sections on what training did to the policy it inherited: sharpened it, or moved its mass elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import policy_figures
from analysis.chains import Checkpoint, Step, checkpoints, steps_of
from analysis.policies import pair_of, read_policy
from analysis.puzzle_tables import BEST, QUALITY_COMMAND, read_quality
from analysis.read import Run
from analysis.sections import Section
from analysis.tabular_control import QUESTION, Reader, control_sections
from analysis.transition_tables import categories_table, quality_table, rank_table, redistribution_table
from analysis.transitions import Pooled, sharpening_table, transition
from chessrl.config import AnalysisConfig
from chessrl.errors import UserError

SOURCE = "evaluations/*/policy.parquet"
COMMAND = "python -m chessrl.evaluate parent=RUN evaluate.split=test evaluate.policy_traces=128 (and evaluate.step=N for models kept on the way)"
NO_TRACES = "These policies were measured without traces: trace sensitivity and collapse gap are 0 and not drawn."
QUALITY = {"best": BEST, "equal": 0.0, "≤ .02": 0.02, "≤ .1": 0.1, "≤ .3": 0.3, "> .3": np.inf}  # largest lost expected score
SHARPENING_PANELS = {
    "alpha*": ("power alpha*", 1.0),
    "ExplainedSharp": ("ExplainedSharp", 0.0),
    "slope": ("centred-logit slope", 1.0),
    "R2": ("R² of that slope", None),
}
CHANGE_PANELS = {"entropy change": ("change of entropy (nats)", 0.0), "solving mass change": ("change of solving mass", 0.0)}
TRACE_PANELS = {
    "trace sensitivity after": ("trace sensitivity after (nats)", None),
    "collapse gap": ("collapse gap (nats)", 0.0),
}
RESIDUALS = {
    "KL(q||p)": "nothing fitted", "residual KL, power": "power, one alpha", "residual KL, tilt": "tilt, one t",
    "residual KL, power per state": "power per decision", "residual KL, tilt per state": "tilt per decision",
}  # fmt: skip


def policy_sections(runs: Sequence[Run], tabular: Sequence[Path], settings: AnalysisConfig) -> list[Section]:
    """All sections of the question. Where a file is absent the section says which command makes it."""
    found = checkpoints(runs, "policy.parquet")
    steps = steps_of(found)
    if not steps:
        which = f"Measured so far: {', '.join(item.label for item in found)}. " if found else ""
        note = f"{which}This needs a policy and the one it began from, both measured on one split: {COMMAND}."
        return [Section("sharpening", "Sharpening", "What did training do to the policy?", SOURCE, pd.DataFrame(), None, (note,), QUESTION)]
    read = cache(read_policy)
    pooled, notes = pooled_steps(steps, settings, read)
    notes = [*notes, *_given(found)]
    if not pooled:
        return [Section("sharpening", "Sharpening", "What did training do to the policy?", SOURCE, pd.DataFrame(), None, tuple(notes), QUESTION)]
    table = sharpening_table(pooled, settings.seed)
    traced = (table[table["measure"].isin(["trace sensitivity before", "trace sensitivity after"])]["value"] > 1e-9).any()
    categories = categories_table(pooled, settings.seed)
    by_rank, matrix = rank_table(pooled, settings.seed), redistribution_table(pooled, settings.seed)
    return [
        Section(
            "sharpening", "Sharpening",
            "Is the later policy q the start policy p made sharper? alpha* is the power for which p^alpha / Z comes nearest to q (least mean "
            "KL(q || p^alpha / Z), one alpha for all decisions), ExplainedSharp the share of the Jensen-Shannon divergence between q and p that it "
            "explains; the slope is that of centred log q on centred log p over all legal moves, with its R². Medians and quartiles of each "
            "decision's own alpha* are in the table. A pure sharpening has slope = alpha*, R² = ExplainedSharp = 1.",
            SOURCE, table, policy_figures.measures_figure(table, SHARPENING_PANELS), tuple(notes), QUESTION,
        ),
        Section(
            "families", "Power or tilt?",
            "Which one-parameter change describes q better? KL divergence from q that is left by the power family p^alpha / Z and by the tilt family "
            "p exp(t r) / Z (r = 1 on solving moves), fitted with one parameter for all decisions or one for each. A tilt can only move mass between "
            "solving and other moves: what it leaves has happened among them.",
            SOURCE, table[table["measure"].isin([*RESIDUALS, "tilt", "ExplainedTilt"])],
            policy_figures.families_figure(table, RESIDUALS, "KL(q || fitted p) (nats)"), (), QUESTION,
        ),
        Section(
            "policy_traces", "Entropy, solving mass and traces",
            "Does the policy lose entropy, and do its traces still matter? Entropy and solving mass of the distribution over legal moves; trace "
            "sensitivity is the mean KL divergence of the distribution given one trace from that averaged over traces (0 without traces); "
            "the collapse "
            "gap is how much nearer q is to the nearest single trace of p than to p itself.",
            SOURCE, table[table["measure"].str.contains("entropy|sensitivity|collapse|mass")],
            policy_figures.measures_figure(table, CHANGE_PANELS | (TRACE_PANELS if traced else {})), () if traced else (NO_TRACES,), QUESTION,
        ),
        Section(
            "categories", "What happened to the right move",
            f"Share of decisions by what became of the likeliest solving move g (top-k: the {settings.top_k} likeliest moves, tail: below "
            f"{settings.tail:g}): amplified within the top-k, discovered in the tail, moved up into the top-k, lost from it; or the likeliest "
            f"move of p, "
            "a wrong one, grew while g stayed out. The first rule that holds counts.",
            SOURCE, categories, policy_figures.categories_figure(categories), (), QUESTION,
        ),
        Section(
            "mass_by_rank", "Mass by initial rank",
            "To which moves did probability go? Mean probability before and after of the moves by their rank under p (1 the likeliest).",
            SOURCE, by_rank, policy_figures.mass_figure(by_rank, "initial_rank", "initial rank"), (), QUESTION,
        ),
        Section(
            "redistribution", "Redistribution matrix",
            "Mean probability after, by a move's rank before (rows) and after (columns). Sharpening alone keeps every rank and fills the diagonal; "
            "what is off the diagonal was reordered.",
            SOURCE, matrix, policy_figures.redistribution_figure(matrix), (), QUESTION,
        ),
        _quality_section(runs, pooled, steps, settings),
        *control_sections(runs, tabular, settings, read),
    ]  # fmt: skip


def pooled_steps(steps: Sequence[Step], settings: AnalysisConfig, read: Reader) -> tuple[list[Pooled], list[str]]:
    """The transition of every step, seeds side by side, and a sentence for each step that cannot be compared and for states left out."""
    pooled, notes = [], []
    for step in steps:
        temperatures = {evaluation.labels["temperature"] for item in (step.start, step.later) for evaluation in item.evaluations}
        if len(temperatures) > 1:
            notes.append(f"{step.name}: measured at different temperatures, {' and '.join(map(str, sorted(temperatures)))}, and not compared.")
            continue
        parts = []
        try:
            for start, later in zip(step.start.evaluations, step.later.evaluations):
                pair = pair_of(read(start.folder / "policy.parquet"), read(later.folder / "policy.parquet"), step.name)
                parts.append(transition(pair, settings.top_k, settings.tail))
                if pair.left_out:
                    notes.append(f"{step.name}: {pair.left_out:,} decisions were measured for one of the two policies alone and are left out.")
        except UserError as error:
            notes.append(f"Not compared: {error}.")
            continue
        pooled.append(Pooled(step.name, tuple(parts)))
    return pooled, notes


def _given(found: Sequence[Checkpoint]) -> list[str]:
    labels = found[0].evaluations[0].labels
    seeds = {item.label: len(item.runs) for item in found if len(item.runs) > 1}
    notes = [f"Measured on the {labels['split']} split at temperature {labels['temperature']:g}, log-probabilities floored at log 1e-12."]
    if seeds:
        counts = ", ".join(f"{label} {count}" for label, count in seeds.items())
        notes.append(f"Several seeds (runs that differ in seeds alone): {counts}. Their decisions are pooled; intervals are over seeds and puzzles.")
    return notes


def _quality_section(runs: Sequence[Run], pooled: Sequence[Pooled], steps: Sequence[Step], settings: AnalysisConfig) -> Section:
    text = (
        "Does mass go to better moves? Mean probability before and after of the moves by how much expected score they lose against the best "
        "one, as the engine judges (Stockfish 15.1's win, draw and loss model). Every mate is worth 1, so among mates the best moves are the "
        "shortest, and slower ones are 'equal'."
    )
    lost = [[read_quality(runs, part.puzzle, part.decision, part.legal.shape[1]) for part in pair.seeds] for pair in pooled]
    table = quality_table(pooled, lost, QUALITY, settings.seed)
    if table.empty:
        note = f"No engine labels of these decisions were found: {QUALITY_COMMAND}."
        return Section("mass_by_quality", "Mass by engine quality", text, "data/move_quality-*.parquet", table, None, (note,), QUESTION)
    figure = policy_figures.mass_figure(table, "lost", "lost expected score")
    return Section("mass_by_quality", "Mass by engine quality", text, f"{SOURCE} and data/move_quality-*.parquet", table, figure, (), QUESTION)
