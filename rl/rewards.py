"""Rewards: named parts of an episode's outcome, and their weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from chessrl.config import RewardConfig
from chessrl.errors import UserError
from chessrl.sampler import Rollout

# Each part maps a rollout to (B,) values in [0, 1].
PARTS: dict[str, Callable[[Rollout], Tensor]] = {
    "line": lambda rollout: rollout.by_line,  # every solver move is the line's, or mates
    "engine": lambda rollout: rollout.solved,  # every solver move was accepted by the environment; with accept=engine: by the engine
    "legal": lambda rollout: rollout.legal,  # every solver move was read and legal
    "format": lambda rollout: rollout.well_formed,  # the trace was closed and every move parsed and closed
}


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


def reward_parts(rollout: Rollout, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Each part's values (B,), float32."""
    return {part: PARTS[part](rollout).float() for part in weights}


def total_reward(parts: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """The weighted sum (B,)."""
    return torch.stack([weights[part] * values for part, values in parts.items()]).sum(0)
