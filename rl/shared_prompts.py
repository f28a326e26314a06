"""Updates that read a group's prompt once for all its episodes, instead of once for each: bf16, where sums may run in another order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from chessrl import distributed
from chessrl.model import Transformer


def shared_states(policy: Transformer, tokens: Tensor, lengths: Tensor, prompt_lengths: Tensor, puzzles: Tensor) -> Tensor:
    """The trunk's states (B, L - 1, hidden) from which each token (B, L) but the first is predicted; zeros for tokens of prompts and padding.

    Rows of one puzzle begin with the same prompt: of ``puzzles`` (B,) the rows, ``prompt_lengths`` (B,) of their ``lengths`` (B,) tokens.
    """
    rows, width = tokens.shape
    needed, owner = puzzles.unique(return_inverse=True)
    places = torch.arange(rows, device=tokens.device)
    first = torch.full_like(needed, rows).scatter_reduce(0, owner, places, "amin")  # a row of each puzzle
    own_prompts = prompt_lengths[first]
    prompts = tokens[first, : int(own_prompts.max())]  # what follows a shorter prompt is seen by nothing that counts
    longest = int((lengths - prompt_lengths).max())
    answers = tokens.gather(1, (prompt_lengths[:, None] + torch.arange(longest - 1, device=tokens.device)).clamp(max=width - 1))
    states = policy.states_after(prompts, own_prompts, owner, answers)
    index = torch.arange(width - 1, device=tokens.device) - (prompt_lengths[:, None] - 1)
    inside = (index >= 0) & (index < (lengths - prompt_lengths)[:, None])
    spread = F.embedding(index.clamp(0, longest - 1) + places[:, None] * longest, states.flatten(0, 1))  # back by rows; gather: by numbers, slowly
    return torch.where(inside[..., None], spread, 0.0)


def shared_micro_batches(lengths: Sequence[int], prompt_lengths: Sequence[int], puzzles: Sequence[int], budget: int) -> list[list[int]]:
    """This process's rows in groups of at most ``budget`` padded tokens, each prompt counted once a group, or one row.

    Rows of a puzzle stay together as far as the budget allows; puzzles come by the length of their longest row. Of several processes each takes
    every so many-th puzzle.
    """
    longest: dict[int, int] = {}
    for length, puzzle in zip(lengths, puzzles):
        longest[puzzle] = max(length, longest.get(puzzle, 0))
    own = set(sorted(longest, key=lambda puzzle: (longest[puzzle], puzzle))[distributed.rank() :: distributed.size()])
    order = sorted((row for row, puzzle in enumerate(puzzles) if puzzle in own), key=lambda row: (longest[puzzles[row]], puzzles[row], lengths[row]))
    groups: list[list[int]] = []
    prompts: set[int] = set()
    longest_prompt = longest_answer = 0
    for row in order:
        with_prompts = prompts | {puzzles[row]}
        prompt, answer = max(longest_prompt, prompt_lengths[row]), max(longest_answer, lengths[row] - prompt_lengths[row])
        rows = len(groups[-1]) + 1 if groups else 1
        if rows > 1 and len(with_prompts) * prompt + rows * answer <= budget:
            groups[-1].append(row)
            prompts, longest_prompt, longest_answer = with_prompts, prompt, answer
        else:
            groups.append([row])
            prompts, longest_prompt, longest_answer = {puzzles[row]}, prompt_lengths[row], lengths[row] - prompt_lengths[row]
    return groups
