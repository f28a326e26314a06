"""Rewards: named parts of an episode's outcome, their weighted sum, and the oracle's opinion of it.

A part is a function from ``Evidence`` to (B,) values in [0, 1], entered in ``PARTS``; one that cannot tell returns ``Told`` with the episodes it
can tell. NaN from a part is a bug and raises; nothing is taken for 0 in silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from chessrl import notation
from chessrl.config import RewardConfig
from chessrl.environment import Environment
from chessrl.errors import UserError
from chessrl.randomness import combine, string_key, uniform
from chessrl.sampler import NO_END_THINK, WRONG, Rollout
from rl.answers import NO_MOVE, answer_keys, looked_up, nodes_of_moves
from rl.judges import Judges


@dataclass(frozen=True, slots=True)
class Labels:
    """The start policy's most frequent answer to each episode's puzzle."""

    answer: Tensor  # (B,) its ``answer_keys`` key
    known: Tensor  # (B,) bool: any of its samples was an answer
    right: Tensor  # (B,) bool: that answer solves the puzzle


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a part may look at, for B episodes, puzzle-major."""

    rollout: Rollout
    environment: Environment
    judges: Judges
    moves: Tensor  # (B, D) keys of the moves played (rl.answers)
    labels: Labels | None  # where a part asks for them
    key: Tensor  # (B,) random key of (seed, step, puzzle, sample)
    config: RewardConfig
    longest: int  # most tokens that an episode can sample

    def chance(self, name: str, probability: float) -> Tensor:
        """(B,) bool draws that are the episode's own: nobody else in the batch decides them."""
        return uniform(combine(self.key, string_key(name))) < probability


@dataclass(frozen=True, slots=True)
class Told:
    """Values (B,) of a part that cannot tell every episode; where ``known`` is false the episode has no reward."""

    values: Tensor
    known: Tensor


def _line(evidence: Evidence) -> Tensor:
    """Every solver move is the line's, or mates."""
    return _as_verified(evidence, "line", evidence.rollout.by_line)


def _engine(evidence: Evidence) -> Told:
    """Every solver move was accepted by the environment, whose moves are the line's, mates, and those within ``engine.delta`` of the best.

    A move that it refused in a position which the engine could not score is neither right nor wrong.
    """
    rollout = evidence.rollout
    verdict = _as_verified(evidence, "engine", rollout.solved)
    return Told(verdict, ~((rollout.outcome == WRONG) & evidence.judges.unscored[_last_node(evidence)]))


def _engine_score(evidence: Evidence) -> Told:
    """The engine's expected score (0 to 1) of the last move played, for its mover; 0 without a legal move."""
    last, node = _last_move(evidence), _last_node(evidence)
    score = looked_up(evidence.environment, evidence.judges.expected, node, last, 0.0)
    graded = torch.where(evidence.rollout.legal, score, 0.0)
    return Told(graded.nan_to_num(nan=0.0), ~graded.isnan())


def _legal(evidence: Evidence) -> Tensor:
    """Every solver move was read and legal."""
    return evidence.rollout.legal


def _format(evidence: Evidence) -> Tensor:
    """The trace was closed and every move parsed and closed."""
    return evidence.rollout.well_formed


def _random(evidence: Evidence) -> Tensor:
    """1 with probability ``random_rate``, whatever the episode (Spurious Rewards, arXiv 2506.10947)."""
    return evidence.chance("random", evidence.config.random_rate)


def _majority(evidence: Evidence) -> Told:
    """The answer is the start policy's most frequent one; unknown where none of its samples was an answer."""
    return Told(_matches_label(evidence), evidence.labels.known)


def _incorrect(evidence: Evidence) -> Told:
    """The answer is the start policy's most frequent one, told only where that one is wrong (arXiv 2506.10947 keeps only such prompts)."""
    return Told(_matches_label(evidence), evidence.labels.known & ~evidence.labels.right)


def _behaviour(evidence: Evidence) -> Tensor:
    """The first move is legal and captures or gives check."""
    root = evidence.environment.root[evidence.rollout.puzzles]
    return looked_up(evidence.environment, evidence.judges.forcing, root, evidence.moves[:, 0], False)


def _length(evidence: Evidence) -> Tensor:
    """Sampled tokens as a share of the longest possible episode: with a negative weight, brevity is paid."""
    return evidence.rollout.policy.sum(1) / evidence.longest


PARTS: dict[str, Callable[[Evidence], Tensor | Told]] = {
    "line": _line,
    "engine": _engine,
    "engine_score": _engine_score,
    "legal": _legal,
    "format": _format,
    "random": _random,
    "majority": _majority,
    "incorrect": _incorrect,
    "behaviour": _behaviour,
    "length": _length,
}
VERIFIER_PARTS = ("line", "engine")  # which say that an answer is right


def _as_verified(evidence: Evidence, name: str, correct: Tensor) -> Tensor:
    """The verdict of a verifier that errs at random: it accepts what is right with the true, what is wrong with the false positive rate."""
    config = evidence.config
    accepts_right = evidence.chance(f"{name} verifier", config.true_positive_rate)
    accepts_wrong = evidence.chance(f"{name} verifier", config.false_positive_rate)
    return torch.where(correct, accepts_right, accepts_wrong)


def _matches_label(evidence: Evidence) -> Tensor:
    return evidence.rollout.legal & (answer_keys(evidence.moves) == evidence.labels.answer)


def _last_place(evidence: Evidence) -> Tensor:
    return ((evidence.moves != NO_MOVE).sum(1) - 1).clamp(min=0)


def _last_move(evidence: Evidence) -> Tensor:
    return evidence.moves.gather(1, _last_place(evidence)[:, None]).squeeze(1)


def _last_node(evidence: Evidence) -> Tensor:
    return evidence.environment.root[evidence.rollout.puzzles] + _last_place(evidence)


def check_reward(config: RewardConfig) -> None:
    """Raises UserError on an unknown part or an accepting rule that a part does not fit."""
    if not config.weights:
        raise UserError("reward.weights is empty: give at least one part, such as reward.weights.line=1.0")
    unknown = [part for part in config.weights if part not in PARTS]
    if unknown:
        raise UserError(f"reward.weights.{unknown[0]}: no such part; known are {', '.join(PARTS)}")
    if config.accept not in ("line", "engine"):
        raise UserError(f"reward.accept={config.accept!r}: expected line or engine")
    if "engine" in config.weights and config.accept != "engine":
        raise UserError("reward.weights.engine needs reward.accept=engine: otherwise the environment never asks the engine")


def reward_parts(evidence: Evidence, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Each part's values (B,), float32, NaN where the part could not tell. Raises ValueError where a part computes a NaN (a bug of the part)."""
    parts = {}
    for part in weights:
        paid = PARTS[part](evidence)
        told = paid if isinstance(paid, Told) else Told(paid, torch.ones_like(paid, dtype=torch.bool))
        values = told.values.float()
        if bool(values.isnan().any()):
            row = int(values.isnan().nonzero()[0])
            text = notation.to_text(evidence.rollout.tokens[row, : int(evidence.rollout.lengths[row])].tolist())
            raise ValueError(f"reward part {part} is not a number for episode {row}: {text}")
        parts[part] = torch.where(told.known, values, math.nan)
    return parts


def total_reward(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """The weighted sum (B,), NaN where a part could not tell."""
    return torch.stack([weights[part] * values for part, values in parts.items()]).sum(0)


def verdict(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """(B,) what the reward's verifier says of each episode, 0 to 1 and so comparable with an oracle's; NaN where it could not tell.

    The verifier is the VERIFIER_PARTS of the reward: parts beside them shape it and claim nothing about an answer. A reward that has none of
    them puts all its parts in the verifier's place. Their weighted sum, as a share of the way from the least to the most that it can be.
    """
    judging = [part for part in VERIFIER_PARTS if part in weights] or list(weights)
    least, most = (sum(pick(weights[part], 0.0) for part in judging) for pick in (min, max))
    return (total_reward({part: parts[part] for part in judging}, weights) - least) / (most - least if most > least else math.nan)


def overlong_penalty(rollout: Rollout, budget: int, share: float, penalty: float) -> Tensor:
    """(B,) what DAPO's soft overlong punishment takes off (arXiv 2503.14476, eq. 13): nothing up to (1 - share) of the trace budget, then
    linearly up to ``penalty`` at the budget, and ``penalty`` for a trace that was cut there.
    """
    over = (rollout.trace_lengths - (1 - share) * budget) / max(share * budget, 1e-9)
    return penalty * torch.where(rollout.outcome == NO_END_THINK, 1.0, over.clamp(0, 1))


def oracle_verdict(evidence: Evidence) -> Tensor:
    """(B,) bool: the episode is right by the oracle, whatever the training reward says of it.

    The line's oracle is the part ``line`` without its errors. An engine's accepts an episode that was judged to its end (not cut short
    by an unreadable or illegal move) and of which it accepts every move.
    """
    if evidence.judges.oracle is None:
        return evidence.rollout.by_line
    nodes = nodes_of_moves(evidence.environment, evidence.rollout, evidence.moves)
    accepted = looked_up(evidence.environment, evidence.judges.oracle, nodes, evidence.moves, False)
    return evidence.rollout.legal & (accepted | (evidence.moves == NO_MOVE)).all(1)
