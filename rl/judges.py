"""What some reward parts and the oracle know of every legal move at every decision: tables beside ``Environment.legal_key``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import chess
import torch
from torch import Tensor

from chessrl.config import Config, RewardConfig
from chessrl.engine_labels import MoveLabels, accepted_moves, expected_score, position_key
from chessrl.environment import Environment, solver_decisions
from chessrl.puzzles import Puzzle
from chessrl.puzzles import accepted_moves as line_moves
from chessrl.verifier import engine_labels

ENGINE_PARTS = ("engine", "engine_score")


@dataclass(frozen=True, slots=True)
class Judges:
    """Tables (N, L) over the environment's N decisions and the legal moves of each; None for those that nothing asks for."""

    forcing: Tensor | None = None  # bool: the move captures or gives check
    expected: Tensor | None = None  # float64: the engine's expected score of the move, NaN in a position that it could not score
    unscored: Tensor | None = None  # (N,) bool: the engine could not score the position
    oracle: Tensor | None = None  # bool: the move is the line's, mates, or the oracle engine accepts it


def asks_engine(reward: RewardConfig) -> bool:
    """Whether the training reward depends on the engine's labels."""
    return reward.accept == "engine" or any(part in reward.weights for part in ENGINE_PARTS)


def judges_of(config: Config, puzzles: Sequence[Puzzle], environment: Environment) -> Judges:
    """The tables that the reward's parts and its oracle ask for. ``environment`` is that of ``puzzles``."""
    reward = config.reward
    forcing = expected = unscored = oracle = None
    if "behaviour" in reward.weights:
        forcing = _table(puzzles, environment, lambda board, line, move: board.is_capture(move) or board.gives_check(move)).bool()
    if asks_engine(reward):
        labels, _ = engine_labels(config, puzzles)
        expected = _table(puzzles, environment, lambda board, line, move: _score(labels, board, move))
        unscored = expected[:, 0].isnan()
    if reward.oracle == "engine":
        judged = replace(config, engine=replace(config.engine, depth=reward.oracle_depth, nodes=reward.oracle_nodes))
        accepted = {
            key: accepted_moves(label, config.engine.delta, config.engine.mate_slack) if label is not None else []
            for key, label in engine_labels(judged, puzzles)[0].items()
        }
        oracle = _table(
            puzzles,
            environment,
            lambda board, line, move: move in line_moves(board, line) or move.uci() in accepted[position_key(board)],
        ).bool()
    return Judges(forcing, expected, unscored, oracle)


def _score(labels: Mapping[str, MoveLabels | None], board: chess.Board, move: chess.Move) -> float:
    label = labels[position_key(board)]
    return float("nan") if label is None else expected_score(label.scores[move.uci()])


def _table(puzzles: Sequence[Puzzle], environment: Environment, value: Callable[[chess.Board, chess.Move, chess.Move], float]) -> Tensor:
    """(N, L) float64 ``value(board, line's move, move)`` of the legal moves, in the order of ``Environment.legal_key``; 0 beyond the last."""
    table = torch.zeros(environment.legal_key.shape, dtype=torch.float64)
    decisions = ((board, line) for puzzle in puzzles for board, line, _ in solver_decisions(puzzle))
    for node, (board, line) in enumerate(decisions):
        values = [float(value(board, line, move)) for move in board.legal_moves]
        table[node, : len(values)] = torch.tensor(values, dtype=torch.float64)
    return table.to(environment.legal_key.device)
