"""Ranks of a position's legal moves under the engine."""

from __future__ import annotations

import chess.engine

from chessrl.engine_labels import MoveLabels, MoveScore

_MATE_SCORE = 10_000_000  # above every centipawn score, so that nearer mates come first and nearer losses last


def move_ranks(labels: MoveLabels) -> dict[str, int]:
    """Rank of every legal move (UCI), 1 the best: one more than the number of moves that score strictly better, so equal moves share theirs."""
    values = {move: _value(score) for move, score in labels.scores.items()}
    descending = sorted(values.values(), reverse=True)
    first = {value: place + 1 for place, value in reversed(list(enumerate(descending)))}
    return {move: first[value] for move, value in values.items()}


def _value(score: MoveScore) -> int:
    pov = chess.engine.Cp(score.cp) if score.cp is not None else chess.engine.Mate(score.mate)
    return pov.score(mate_score=_MATE_SCORE)
