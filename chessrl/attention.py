"""What the ways through the transformer share: rotary positions, and attention over whole sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROPE_THETA = 1e6
NORM_EPSILON = 1e-6
PLAIN_KEYS = 1024  # a whole table of weights is made for at most so many keys


def rotary_tables(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin of shape (*positions.shape, head_dim / 2)."""
    frequency = ROPE_THETA ** (-torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim)
    angle = positions.float()[..., None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x`` (..., head_dim) turned by its position: half-split convention (as in transformers and vLLM)."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def by_products(precision: str, device: torch.device, keys: int) -> bool:
    """Whether attention makes a whole table of weights: on a CPU bf16 products have a rate that torch's blockwise kernel does not reach."""
    return precision == "bf16" and device.type == "cpu" and keys <= PLAIN_KEYS


def causal(places: Tensor) -> Tensor:
    """(T, T): each of ``places`` (T,) sees those up to itself."""
    return places <= places[:, None]


def mask_of_numbers(visible: Tensor) -> Tensor:
    """0 where a query sees a key and -inf elsewhere, bf16: loops that torch.compile makes add numbers four times as fast as they choose by truth
    values.
    """
    return torch.zeros(visible.shape, dtype=torch.bfloat16, device=visible.device).masked_fill(~visible, -torch.inf)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """What queries (B, heads, T, head_dim) gather from keys and values (B, kv_heads, S, head_dim): (B, heads, T, head_dim).

    ``mask`` (B, 1, T, S) is true where a query sees a key; without one T = S and each sees those up to its own place. With a ``mask_of_numbers``
    attention goes ``by_products``.
    """
    if mask is not None and mask.is_floating_point():
        return _attend_by_products(q, k, v, mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1])


def _attend_by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Through a table of weights."""
    batch, heads, length, head_dim = q.shape
    kv_heads, seen = k.shape[1], k.shape[2]
    # Query heads that share a key head are this key head's queries.
    scores = torch.bmm(q.reshape(batch * kv_heads, -1, head_dim), k.reshape(batch * kv_heads, seen, head_dim).transpose(1, 2))
    weights = (scores.view(batch, heads, length, seen).float() * head_dim**-0.5 + mask).softmax(-1).to(v.dtype)
    gathered = torch.bmm(weights.view(batch * kv_heads, -1, seen), v.reshape(batch * kv_heads, seen, head_dim))
    return gathered.view(batch, heads, length, head_dim)
