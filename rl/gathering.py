"""Rollouts put together: of all processes, and of several rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
import torch.nn.functional as F
from torch import Tensor

from chessrl import distributed, notation
from chessrl.sampler import Rollout

FILL = {"prompts": notation.PAD, "tokens": notation.PAD}  # padding of token columns; of all others it is 0


def gathered(own: Rollout) -> Rollout:
    """The processes' rollouts one below the other, in every process."""
    if distributed.size() == 1:
        return own
    device = own.tokens.device
    parts = distributed.gather({field.name: getattr(own, field.name).cpu() for field in fields(Rollout)})
    return joined([Rollout(**{name: column.to(device) for name, column in part.items()}) for part in parts])


def joined(parts: Sequence[Rollout]) -> Rollout:
    """Rollouts one below the other; columns are padded to the longest."""
    if len(parts) == 1:
        return parts[0]
    whole = {}
    for field in fields(Rollout):
        rows = [getattr(part, field.name) for part in parts]
        if rows[0].dim() == 2:
            width = max(row.shape[1] for row in rows)
            rows = [F.pad(row, (0, width - row.shape[1]), value=FILL.get(field.name, 0)) for row in rows]
        whole[field.name] = torch.cat(rows)
    return Rollout(**whole)


def selected(rollout: Rollout, rows: Tensor) -> Rollout:
    """Some of the episodes."""
    return Rollout(**{field.name: getattr(rollout, field.name)[rows] for field in fields(Rollout)})
