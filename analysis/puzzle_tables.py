"""Tables about puzzles that lie beside the runs' data (``python -m chessrl.baselines``), found by the puzzles that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import ArrowInvalid

from analysis.read import Run
from chessrl.errors import UserError

BEST = -1.0  # in place of the lost expected score, 0, of a best move
COMMAND = "python -m chessrl.baselines evaluate.split=test (with the runs' world and outputs)"
QUALITY_COMMAND = "python -m chessrl.baselines evaluate.split=test baselines.quality=true (with the runs' world and outputs) labels them"


def _tables(runs: Sequence[Run], pattern: str) -> list[pd.DataFrame]:
    folders = dict.fromkeys(run.path.resolve().parent / "data" for run in runs)
    files = [file for folder in folders for file in sorted(folder.glob(pattern))]
    return [_read(file) for file in files]


def _read(file: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(file)
    except ArrowInvalid as error:
        raise UserError(f"{file}: not a readable parquet table ({str(error).splitlines()[0]}); remove it and make it again") from None


def puzzle_facts(runs: Sequence[Run], puzzles: Sequence[str]) -> pd.DataFrame | None:
    """decisions, themes, uniform and stockfish_N by puzzle, of all tables that hold every puzzle; None where there is none."""
    found = None
    for table in _tables(runs, "baselines-*.parquet"):
        facts = table.set_index("puzzle")
        if not pd.Index(puzzles).isin(facts.index).all():
            continue
        facts = facts.loc[list(puzzles)]
        found = facts if found is None else found.join(facts[[name for name in facts if name not in found]])
    return found


def read_quality(runs: Sequence[Run], puzzle: np.ndarray, decision: np.ndarray, width: int) -> np.ndarray:
    """Lost expected score (states, width) of every legal move in canonical order, BEST for the best ones (among mates the shortest); NaN for
    states without labels and beyond a state's moves.
    """
    lost = np.full((len(puzzle), width), np.nan)
    places = {state: place for place, state in enumerate(zip(puzzle.tolist(), decision.tolist()))}
    for table in _tables(runs, "move_quality-*.parquet"):
        for name, number, values, best in zip(table["puzzle"], table["decision"], table["lost"], table["best"]):
            place = places.get((name, number))
            if place is not None:
                lost[place, : len(values)] = values
                lost[place, best] = BEST
    return lost
