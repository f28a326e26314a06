"""The legal moves of puzzles' decisions as trees, for what is exact over all of them where other measures are estimates of samples."""

from __future__ import annotations

from collections.abc import Sequence

from chessrl import notation
from chessrl.environment import solver_decisions
from chessrl.policy import MoveTree, move_tree
from chessrl.puzzles import Puzzle


class MoveTrees:
    """The legal moves, ``closing`` tokens after each, of every solver decision of ``puzzles``, made when a puzzle first comes up."""

    def __init__(self, puzzles: Sequence[Puzzle], closing: Sequence[int] = ()):
        self.puzzles, self.closing = puzzles, closing
        self.trees: dict[int, list[MoveTree]] = {}

    def of(self, puzzle: int) -> list[MoveTree]:
        """The trees of a puzzle's decisions, given its place; moves in the order of ``board.legal_moves``."""
        if puzzle not in self.trees:
            self.trees[puzzle] = [
                move_tree([(*notation.move_tokens(board, move), *self.closing) for move in board.legal_moves])
                for board, _, _ in solver_decisions(self.puzzles[puzzle])
            ]
        return self.trees[puzzle]
