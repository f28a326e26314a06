"""The episodes of all processes as one rollout."""

from __future__ import annotations

from dataclasses import fields

import torch
import torch.nn.functional as F

from chessrl import distributed, notation
from chessrl.sampler import Rollout

FILL = {"prompts": notation.PAD, "tokens": notation.PAD}  # padding of token columns; of all others it is 0


def gathered(own: Rollout) -> Rollout:
    """The processes' rollouts one below the other, in every process; columns are padded to the longest."""
    if distributed.size() == 1:
        return own
    device = own.tokens.device
    parts = distributed.gather({field.name: getattr(own, field.name).cpu() for field in fields(Rollout)})
    whole = {}
    for name in parts[0]:
        rows = [part[name] for part in parts]
        if rows[0].dim() == 2:
            width = max(row.shape[1] for row in rows)
            rows = [F.pad(row, (0, width - row.shape[1]), value=FILL.get(name, 0)) for row in rows]
        whole[name] = torch.cat(rows).to(device)
    return Rollout(**whole)
