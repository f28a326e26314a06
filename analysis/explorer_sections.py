"""The explorer's part of the report: the puzzles on which the policy moved most, by category of the move."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from analysis.explorer import HOW_TO_MEASURE, Explorer, measured_evaluations
from analysis.explorer_page import STYLE, puzzle_html
from analysis.read import Run
from analysis.sections import Section
from analysis.tabular_control import QUESTION

EACH = 2  # puzzles of a category
NAME, TITLE = "extreme_puzzles", "Puzzles on which the policy moved most"
TEXT = (
    "What does a change of the policy look like? Of each category of transition the states (a puzzle and a decision of its solver) with the "
    "largest Jensen-Shannon divergence between the two policies over the legal moves. Arrows: the three likeliest moves, fainter where less "
    "likely; blue and ✓: a move that solves. Shares are over the legal moves; the legal mass is the probability of a legal move in canonical "
    "spelling. Traces show the tree of their lines, the puzzle's own line in bold."
)


def explorer_sections(runs: Sequence[Run], each: int = EACH) -> list[Section]:
    """The section, with its puzzles drawn; where they cannot be, it says what is missing."""
    source = "evaluations/*/policy.parquet, samples.parquet and traces.parquet"
    if len(measured_evaluations(runs)) < 2:
        note = f"Fewer than two policies of these runs were measured on one split, so there is no transition to show: {HOW_TO_MEASURE} measures one."
        return [Section(name=NAME, title=TITLE, text=TEXT, source=source, table=pd.DataFrame(), notes=(note,), question=QUESTION)]
    explorer = Explorer(runs)
    chosen = explorer.extremes(each)
    rows = [
        {
            "category": transition.category,
            "puzzle": puzzle,
            "bin": explorer.puzzles[puzzle].bin,
            "decision": decision + 1,
            "solving move before": transition.before,
            "solving move after": transition.after,
            "JS divergence (nats)": transition.moved,
        }
        for (puzzle, decision), transition in chosen
    ]
    cards = "\n".join(puzzle_html(explorer.puzzle(puzzle), [decision]) for (puzzle, decision), _ in chosen)
    before, after = explorer.pair
    notes = [f"From {before.label} to {after.label}, {len(explorer.transitions):,} states of the {explorer.split} split."]
    if without := [policy.label for policy in explorer.policies if not (policy.evaluation.folder / "traces.parquet").is_file()]:
        notes.append(f"No traces were kept of {', '.join(without)} (evaluate.trace_metrics=tree keeps those of a policy that thinks).")
    html = f"<style>{STYLE}</style>\n{cards}"
    return [Section(name=NAME, title=TITLE, text=TEXT, source=source, table=pd.DataFrame(rows), notes=tuple(notes), question=QUESTION, html=html)]
