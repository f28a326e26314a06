"""Counter-based random numbers: a sample is a function of (seed, stage, step, puzzle, sample, position) and of nothing else.

The mixing function is SplitMix64's finaliser (Steele, Lea, Flood, 2014) in wrapping int64 arithmetic. int64 ``>>`` is arithmetic in torch and
numpy, so the shifted-in sign bits are masked off.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer
MULTIPLIER_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MULTIPLIER_2 = -7723592293110705685  # 0x94D049BB133111EB


def string_key(text: str) -> int:
    """A signed 64-bit key of a string, the same in every process (Python's ``hash`` is not)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser, elementwise on int64."""
    x = (x ^ _logical_shift(x, 30)) * MULTIPLIER_1
    x = (x ^ _logical_shift(x, 27)) * MULTIPLIER_2
    return x ^ _logical_shift(x, 31)


def combine(key: Tensor, value: Tensor | int) -> Tensor:
    """The key of ``value`` below ``key``."""
    if isinstance(value, int):  # wrapped to a signed scalar here: a tensor made of it would be copied to the device at every step
        offset = (value + 1) * GOLDEN
        return mix(key + ((offset + 2**63) % 2**64 - 2**63))
    return mix(key + (value + 1) * GOLDEN)


def stream_key(seed: int, stage: str, step: int, device: torch.device) -> Tensor:
    """The key (a scalar int64 tensor) of everything sampled in one step of a stage."""
    key = torch.tensor(string_key(stage), dtype=torch.int64, device=device)
    return combine(combine(key, seed), step)


def uniform(key: Tensor) -> Tensor:
    """Uniform float64 in [0, 1) of each key, with 53 bits."""
    return _logical_shift(key, 11).double() * 2.0**-53


def draw(logprobs: Tensor, key: Tensor) -> Tensor:
    """One token (B,) from each distribution (B, vocabulary) by inverse transform, decided by key (B,) alone.

    The sum is float64, and the first index whose cumulative sum exceeds u x total is taken, so that a token of probability 0 is never drawn
    and u = 0 is harmless.
    """
    cumulative = logprobs.double().exp().cumsum(-1)
    target = uniform(key)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(-1).clamp(max=logprobs.shape[-1] - 1)
