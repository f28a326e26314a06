"""What a policy without a trace thinks of every legal move at the roots of a step's puzzles: exact, where other measures are estimates of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chessrl.model import Transformer
from chessrl.policy import score_moves
from chessrl.puzzles import Puzzle
from rl.move_trees import MoveTrees

MOST = 16  # puzzles of a step that are measured: every one costs two forward passes over all its legal moves


class Roots:
    """What policies think of the legal moves at the root of each of ``puzzles``; ``prompts`` are without ``<T>``."""

    def __init__(self, puzzles: Sequence[Puzzle], prompts: Sequence[Sequence[int]], temperature: float):
        self.moves, self.prompts, self.temperature = MoveTrees(puzzles), prompts, temperature

    def measures(self, policy: Transformer, reference: Transformer, chosen: Sequence[int]) -> dict[str, float]:
        """Means over the first MOST of the puzzles ``chosen``: entropy of the policy over the legal moves, its
        mass on them, and KL to the reference and back, nats.

        A move's probability is that of its canonical tokens; entropy and KL are of the distribution that they make over the legal moves.
        """
        measured = chosen[:MOST]
        trees, prompts = [self.moves.of(place)[0] for place in measured], [self.prompts[place] for place in measured]
        scores, of_reference = (score_moves(model, prompts, trees, self.temperature) for model in (policy, reference))
        rows = []
        for score, other in zip(scores, of_reference):
            log_p, log_q = score - np.logaddexp.reduce(score), other - np.logaddexp.reduce(other)
            p, q = np.exp(log_p), np.exp(log_q)
            rows.append((-(p * log_p).sum(), np.exp(score).sum(), (p * (log_p - log_q)).sum(), (q * (log_q - log_p)).sum()))
        names = ("entropy", "legal_mass", "kl", "kl_from_reference")
        return {f"root/{name}": float(value) for name, value in zip(names, np.mean(rows, axis=0))}
