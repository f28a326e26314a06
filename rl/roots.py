"""What a policy without a trace thinks of every legal move at the roots of a step's puzzles: exact, where other measures are estimates of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chessrl import notation
from chessrl.environment import solver_decisions
from chessrl.model import Transformer
from chessrl.policy import MoveTree, move_tree, score_moves
from chessrl.puzzles import Puzzle

MOST = 16  # puzzles of a step that are measured: every one costs two forward passes over all its legal moves


class Roots:
    """The legal moves at the root of each of ``puzzles`` as trees, each made when its puzzle first comes up; ``prompts`` are without ``<T>``."""

    def __init__(self, puzzles: Sequence[Puzzle], prompts: Sequence[Sequence[int]], temperature: float):
        self.puzzles, self.prompts, self.temperature = puzzles, prompts, temperature
        self.trees: dict[int, MoveTree] = {}

    def measures(self, policy: Transformer, reference: Transformer, chosen: Sequence[int]) -> dict[str, float]:
        """Means over the first MOST of the puzzles ``chosen``: entropy of the policy over the legal moves, its
        mass on them, and KL to the reference and back, nats.

        A move's probability is that of its canonical tokens; entropy and KL are of the distribution that they make over the legal moves.
        """
        measured = chosen[:MOST]
        trees, prompts = [self._tree(place) for place in measured], [self.prompts[place] for place in measured]
        scores, of_reference = (score_moves(model, prompts, trees, self.temperature) for model in (policy, reference))
        rows = []
        for score, other in zip(scores, of_reference):
            log_p, log_q = score - np.logaddexp.reduce(score), other - np.logaddexp.reduce(other)
            p, q = np.exp(log_p), np.exp(log_q)
            rows.append((-(p * log_p).sum(), np.exp(score).sum(), (p * (log_p - log_q)).sum(), (q * (log_q - log_p)).sum()))
        names = ("entropy", "legal_mass", "kl", "kl_from_reference")
        return {f"root/{name}": float(value) for name, value in zip(names, np.mean(rows, axis=0))}

    def _tree(self, place: int) -> MoveTree:
        if place not in self.trees:
            board, _, _ = next(iter(solver_decisions(self.puzzles[place])))
            self.trees[place] = move_tree([tuple(notation.move_tokens(board, move)) for move in board.legal_moves])
        return self.trees[place]
