"""The groups that a step trains on: all of them, those whose rewards vary, or as many of those as it takes (DAPO's dynamic sampling)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chessrl.config import AlgorithmConfig
from chessrl.sampler import Rollout
from chessrl.training import shuffled
from rl.gathering import joined, selected
from rl.objective import constant_groups

LATER_ROUNDS = 2**62  # the permutations of later rounds are numbered from here, those of passes from 0


@dataclass(frozen=True, slots=True)
class Scored:
    """Episodes of some groups, puzzle-major, and what they are paid. All but ``rewards`` are (B,)."""

    episodes: Rollout
    parts: dict[str, Tensor]  # of the reward
    rewards: Tensor  # (prompts, group) the weighted sum less its baseline and penalties; NaN where it could not be told
    paid: Tensor  # the weighted sum alone
    verdict: Tensor  # of the reward's verifier, 0 to 1; NaN where it could not be told
    oracle: Tensor  # bool
    answers: Tensor  # keys of the answers, equal for equal ones

    def puzzles(self) -> list[int]:
        """The puzzle of each group."""
        return self.episodes.puzzles[:: self.rewards.shape[1]].tolist()

    def groups(self, kept: Tensor) -> Scored:
        """The groups (prompts,) bool that are ``kept``."""
        rows = kept.repeat_interleave(self.rewards.shape[1])
        parts = {name: values[rows] for name, values in self.parts.items()}
        return Scored(
            selected(self.episodes, rows), parts, self.rewards[kept], self.paid[rows], self.verdict[rows], self.oracle[rows], self.answers[rows]
        )


def together(rounds: Sequence[Scored]) -> Scored:
    """All groups of several rounds."""
    if len(rounds) == 1:
        return rounds[0]
    return Scored(
        episodes=joined([part.episodes for part in rounds]),
        parts={name: torch.cat([part.parts[name] for part in rounds]) for name in rounds[0].parts},
        rewards=torch.cat([part.rewards for part in rounds]),
        paid=torch.cat([part.paid for part in rounds]),
        verdict=torch.cat([part.verdict for part in rounds]),
        oracle=torch.cat([part.oracle for part in rounds]),
        answers=torch.cat([part.answers for part in rounds]),
    )


def collect(rounds: Iterator[list[int]], score: Callable[[list[int]], Scored], algorithm: AlgorithmConfig) -> tuple[Scored, Scored]:
    """(all that was sampled, the groups to train on), by ``algorithm.sampling``. ``rounds`` gives the puzzles of one round after the other.

    ``dynamic`` takes rounds until as many groups vary as the first round had, in the order in which they came, and makes do with fewer when
    ``sampling_rounds`` or the puzzles are used up. By variance and not by mean: rewards need not be binary.
    """
    first = score(next(rounds))
    sampled, wanted = [first], len(first.rewards)
    if algorithm.sampling == "plain":
        return first, first
    if algorithm.sampling == "dynamic":
        while len(sampled) < algorithm.sampling_rounds and sum(map(_varied, sampled, [algorithm] * len(sampled))) < wanted:
            more = next(rounds, None)
            if more is None:
                break
            sampled.append(score(more))
    everything = together(sampled)
    kept = ~constant_groups(everything.rewards, algorithm.std_floor)
    kept &= kept.cumsum(0) <= wanted
    return everything, everything.groups(kept)


def _varied(scored: Scored, algorithm: AlgorithmConfig) -> int:
    return int((~constant_groups(scored.rewards, algorithm.std_floor)).sum())


def puzzles_of_step(count: int, prompts: int, seed: int, step: int) -> list[int]:
    """The distinct puzzles of a step, a function of (seed, step) alone: whole steps of one seeded permutation after the other.

    What a permutation has beyond whole steps waits for a later one: a puzzle twice in a step would draw the same samples twice.
    """
    steps_per_pass = count // prompts
    number, place = divmod(step - 1, steps_per_pass)
    return shuffled(count, seed, number)[place * prompts : (place + 1) * prompts].tolist()


def rounds_of_step(count: int, prompts: int, seed: int, step: int) -> Iterator[list[int]]:
    """The step's puzzles, then whole rounds of others in an order seeded by the step: no puzzle twice, and nothing to remember for a resume."""
    first = puzzles_of_step(count, prompts, seed, step)
    yield first
    others = [puzzle for puzzle in shuffled(count, seed, LATER_ROUNDS + step) if puzzle not in set(first)]
    for start in range(0, len(others) - prompts + 1, prompts):
        yield [int(puzzle) for puzzle in others[start : start + prompts]]
