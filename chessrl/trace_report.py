"""The files about traces that an evaluation writes beside its samples: ``traces.parquet``, ``trace_metrics.csv``, ``trace_illegal.csv``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chess
import pandas as pd

from chessrl import notation
from chessrl.engine_labels import MoveLabels
from chessrl.notation import NotationError, parse_move
from chessrl.puzzles import Puzzle
from chessrl.sampler import Rollout
from chessrl.trace_metrics import MEASURES, illegal_table, measures, summary_table
from chessrl.trace_ranks import move_ranks
from chessrl.traces import Line, TraceReader, WrittenTrace


@dataclass(frozen=True, slots=True)
class TraceTables:
    """traces: one row per sample (puzzle, bin, sample, solved, text of the trace, measures, faults); metrics and illegal: means by bin."""

    traces: pd.DataFrame
    metrics: pd.DataFrame
    illegal: pd.DataFrame

    def write(self, folder: Path) -> None:
        self.traces.to_parquet(folder / "traces.parquet", compression="zstd", index=False)
        self.metrics.to_csv(folder / "trace_metrics.csv", index=False)
        self.illegal.to_csv(folder / "trace_illegal.csv", index=False)


def trace_tokens_of(result: Rollout) -> list[list[int]]:
    """Tokens of each episode's trace, with its ``</T>`` where the policy wrote it: what the environment closed has no end of its own."""
    texts = []
    for tokens, policy, thought, length in zip(
        result.tokens.tolist(), result.policy.tolist(), result.trace_lengths.tolist(), result.lengths.tolist()
    ):
        closed = thought < length and policy[thought] and tokens[thought] == notation.END_THINK
        texts.append(tokens[: thought + closed])
    return texts


def trace_tables(samples: pd.DataFrame, puzzles: Sequence[Puzzle], labels: Sequence[MoveLabels | None] | None) -> TraceTables:
    """Tables of ``samples`` (columns puzzle, bin, sample, solved, first_move and trace, a list of tokens).

    ``labels``: the engine's, of every puzzle's root; None where ranks were not asked for.
    """
    known = {puzzle.id: place for place, puzzle in enumerate(puzzles)}
    readers = [TraceReader(puzzle.board()) for puzzle in puzzles]
    ranks = [move_ranks(label) if label is not None else None for label in labels or [None] * len(puzzles)]
    lines = [_line(puzzle) for puzzle in puzzles]
    rows, traces = [], []
    for sample in samples.itertuples():
        place = known[sample.puzzle]
        trace = readers[place].read(sample.trace)
        traces.append(trace)
        chosen = chosen_move(puzzles[place].board(), sample.first_move)
        rows.append(_identity(sample, trace) | measures(trace, lines[place], ranks[place], chosen))
    table = pd.DataFrame(rows).astype(dict.fromkeys(MEASURES, "float64"))
    return TraceTables(table, summary_table(table), illegal_table(traces, table["bin"].tolist()))


def _identity(sample: object, trace: WrittenTrace) -> dict[str, object]:
    return {
        **{name: getattr(sample, name) for name in ("puzzle", "bin", "sample", "solved")},
        "trace": notation.to_text(sample.trace),
        "closed": trace.closed,
    }


def _line(puzzle: Puzzle) -> Line:
    board = puzzle.board()
    return tuple(board.push_uci(move) for move in puzzle.moves[puzzle.lead :])


def chosen_move(board: chess.Board, text: str) -> chess.Move | None:
    """The legal move that an answer begins with, whatever its spelling; None where it begins with none."""
    try:
        return parse_move(board, notation.from_text(text), strict=False)
    except NotationError:
        return None
