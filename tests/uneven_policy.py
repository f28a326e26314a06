"""A small transformer with opinions, for tests of how moves are scored and drawn."""

from __future__ import annotations

import torch

from chessrl.config import ModelConfig
from chessrl.model import Transformer, build_model

TINY = ModelConfig("tiny", layers=2, hidden=32, ffn=48, heads=2, kv_heads=1, head_dim=16)


def uneven_policy() -> Transformer:
    """Of a fresh model all moves of equal length look alike; of this one they do not."""
    model = build_model(TINY, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.2)
    return model
