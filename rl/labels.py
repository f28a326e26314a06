"""Pseudo-labels: the start policy's most frequent answer to a puzzle, found when the puzzle first comes up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from chessrl import distributed
from chessrl.environment import Environment
from chessrl.model import Transformer
from chessrl.sampler import SamplingSettings, rollout
from rl.answers import answer_keys, played_moves
from rl.rewards import Labels


class MajorityLabels:
    """Labels of puzzles by their place in the environment, a function of (policy, seed, puzzle) alone.

    Only legal answers vote; a tie goes to the answer that came first.
    """

    def __init__(
        self, policy: Transformer, environment: Environment, prompts: Sequence[Sequence[int]], samples: int, settings: SamplingSettings
    ):
        self.policy, self.environment, self.prompts, self.samples, self.settings = policy, environment, prompts, samples, settings
        self.known: dict[int, tuple[int, bool] | None] = {}  # puzzle -> answer and whether it solves; None: no sample was an answer
        self.lengths: list[Tensor] = []  # of the episodes sampled for labels, prompts included: what they cost

    def of(self, puzzles: Sequence[int], group: int) -> Labels:
        """The labels of ``puzzles``, each repeated for its group."""
        self._find([puzzle for puzzle in puzzles if puzzle not in self.known])
        found = [self.known[puzzle] for puzzle in puzzles for _ in range(group)]
        device = self.policy.device
        return Labels(
            answer=torch.tensor([0 if label is None else label[0] for label in found], device=device),
            known=torch.tensor([label is not None for label in found], device=device),
            right=torch.tensor([label is not None and label[1] for label in found], device=device),
        )

    def state_dict(self) -> dict[int, tuple[int, bool] | None]:
        """The labels found so far."""
        return dict(self.known)

    def load_state_dict(self, known: dict[int, tuple[int, bool] | None]) -> None:
        self.known = dict(known)

    def _find(self, puzzles: Sequence[int]) -> None:
        """Each process samples some of the puzzles, and all learn all labels."""
        own = distributed.portion(puzzles)
        votes: dict[int, tuple[int, bool] | None] = {}
        lengths = torch.zeros(0, dtype=torch.int64)
        if own:
            result = rollout(self.policy, self.environment, own, [self.prompts[puzzle] for puzzle in own], self.samples, self.settings)
            keys = answer_keys(played_moves(result, self.settings.protocol)).view(-1, self.samples).tolist()
            legal, solved = (flags.view(-1, self.samples).tolist() for flags in (result.legal, result.solved))
            for place, puzzle in enumerate(own):
                counts = Counter(key for key, counted in zip(keys[place], legal[place]) if counted)
                best = counts.most_common(1)[0][0] if counts else None
                votes[puzzle] = None if best is None else (best, solved[place][keys[place].index(best)])
            lengths = (result.prompt_lengths + result.lengths).cpu()
        for found, cost in distributed.gather((votes, lengths)):
            self.known |= found
            self.lengths.append(cost)
