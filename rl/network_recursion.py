"""The success recursion in a network: the same inner maximisations as in tables, of puzzles that share one network's weights.

Expectations are exact: a puzzle's outcomes are its legal moves and one more for anything else (``rl.exact_kl``), scored with gradient in every step,
so that nothing is sampled. What a network then does otherwise than a table is interference, or ascent that has not come to its end.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from chessrl import notation
from chessrl.model import Transformer
from chessrl.policy import decisions_of, move_logprobs, move_tree
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.training import micro_batches
from rl.exact_kl import outcome_logprobs
from rl.tabular_policy import PADDING, MoveTable, kl
from rl.tabular_update import ascent_loss

NEAR = 1e-3  # nats of mean KL to the maximiser: closer than this an inner maximisation is at its end
OTHER = "other"  # the outcome that is no legal move


class NetworkPolicy:
    """A network's policy on puzzles of one decision, which inner maximisations move; ``start`` is what each path of them begins with."""

    def __init__(self, start: Transformer, puzzles: Sequence[Puzzle], state: str, temperature: float, budget: int):
        self.start, self.model, self.temperature, self.budget = start, copy.deepcopy(start), temperature, budget
        decisions = [decisions_of(puzzle, "answer") for puzzle in puzzles]
        kept = [place for place, of_puzzle in enumerate(decisions) if len(of_puzzle) == 1 and len(of_puzzle[0].solving) < len(of_puzzle[0].moves)]
        self.left_out = {"several decisions": sum(len(of_puzzle) > 1 for of_puzzle in decisions)}
        self.left_out["every move solves"] = len(puzzles) - len(kept) - self.left_out["several decisions"]
        self.decisions = [decisions[place][0] for place in kept]
        self.names = [puzzles[place].id for place in kept]
        self.contexts = [prompt_tokens(puzzles[place], state, think=False) for place in kept]
        self.trees = [move_tree([(*ply, notation.CALL_ENV) for ply in decision.plies]) for decision in self.decisions]

    def keep(self, kept: Sequence[bool]) -> None:
        """Only these puzzles from now on."""
        for name in ("decisions", "names", "contexts", "trees"):
            setattr(self, name, [value for value, stays in zip(getattr(self, name), kept) if stays])

    def restart(self) -> None:
        self.model.load_state_dict(self.start.state_dict())

    @torch.no_grad()
    def table(self) -> MoveTable:
        """The policy as it is now, as a table over the outcomes."""
        logprobs = torch.full((len(self.trees), 1 + max(len(tree.paths) for tree in self.trees)), PADDING, dtype=torch.float64)
        for places in self._passes():
            rows = self._outcomes(places)
            logprobs[places, : rows.shape[1]] = rows.cpu()
        solving = torch.zeros(logprobs.shape, dtype=torch.bool)
        for row, decision in enumerate(self.decisions):
            solving[row, list(decision.solving)] = True
        return MoveTable(tuple(self.names), tuple((*decision.moves, OTHER) for decision in self.decisions), logprobs, solving)

    def climb(
        self, reference: Tensor, advantages: Tensor, beta: float, target: Tensor, *, steps: int, rate: float, forward: bool = False
    ) -> Tensor:
        """``tabular_update.climb`` of the network's weights, all puzzles in every step; ends early when it is NEAR ``target``, the maximiser.

        Returns the policy that was reached, (P, A) log-probabilities.
        """
        optimizer = torch.optim.Adam(self.model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            away = 0.0
            optimizer.zero_grad()
            for places in self._passes():
                logprobs = self._outcomes(places)
                wide = slice(0, logprobs.shape[1])
                ascent_loss(logprobs, reference[places, wide], advantages[places, wide], beta, forward).sum().backward()
                away += kl(logprobs.detach(), target[places, wide]).sum().item()
            if away / len(self.trees) < NEAR:
                break
            optimizer.step()
            schedule.step()
        return self.table().logprobs

    def _passes(self) -> list[list[int]]:
        return micro_batches([len(context) + len(tree.tokens) for context, tree in zip(self.contexts, self.trees)], self.budget)

    def _outcomes(self, places: list[int]) -> Tensor:
        """(places, A) log-probabilities of the outcomes with gradient, PADDING beyond each one's last."""
        rows = move_logprobs(self.model, [self.contexts[place] for place in places], [self.trees[place] for place in places], self.temperature)
        return torch.nn.utils.rnn.pad_sequence([outcome_logprobs(row) for row in rows], batch_first=True, padding_value=PADDING)
