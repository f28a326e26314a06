"""Puzzles that an engine thinks have another solution: Lichess keeps some in which a second move wins as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from chessrl.config import Config
from chessrl.engine_labels import position_key
from chessrl.environment import solver_decisions
from chessrl.puzzles import Puzzle, accepted_moves
from chessrl.verifier import engine_accepted


def several_solutions(config: Config, puzzles: Sequence[Puzzle]) -> tuple[set[str], dict[str, Any]]:
    """Ids of the puzzles in which the engine accepts, at some decision of the solver, a move that is neither the line's nor mates; and the account.

    The engine accepts by ``config.engine`` (every move within ``delta`` of the best); its labels are kept below ``config.outputs``. Counted apart:
    puzzles with a move of the line that the engine does not accept, and with a position that it could not score.
    """
    accepted, record = engine_accepted(config, puzzles)
    found: set[str] = set()
    counts: Counter[str] = Counter(puzzles=len(puzzles))
    for puzzle in puzzles:
        decisions = [
            (set(accepted[position_key(board)]), line_move.uci(), {move.uci() for move in accepted_moves(board, line_move)})
            for board, line_move, _ in solver_decisions(puzzle)
        ]
        if any(by_engine - by_rule for by_engine, _, by_rule in decisions):
            found.add(puzzle.id)
            counts["with_another_solution"] += 1
        counts["line_not_accepted"] += any(by_engine and line_move not in by_engine for by_engine, line_move, _ in decisions)
        counts["not_scored"] += any(not by_engine for by_engine, _, _ in decisions)
    return found, dict(counts) | {"engine": record}
