"""One more token for each sequence of a ``SharedCache``, from weights laid out for it: bf16, where speed is wanted.

A decoding step multiplies few rows by every weight, so it is bound by reading them: here they are cast once a rollout, projections of one input are
one matrix, and all are transposed, so that products find their operands without gaps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chessrl.attention import NORM_EPSILON, rotary_tables, rotate
from chessrl.cache import SharedCache

if TYPE_CHECKING:
    from chessrl.model import Layer, Transformer


class LayerWeights(NamedTuple):
    """A layer's weights, matrices as (inputs, outputs)."""

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    output: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor

    @staticmethod
    def of(layer: Layer, dtype: torch.dtype) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp

        def transposed(*matrices: torch.nn.Linear) -> Tensor:
            return torch.cat([matrix.weight for matrix in matrices]).to(dtype).t().contiguous()

        return LayerWeights(
            layer.input_layernorm.weight, transposed(attention.q_proj, attention.k_proj, attention.v_proj), attention.q_norm.weight,
            attention.k_norm.weight, transposed(attention.o_proj), layer.post_attention_layernorm.weight,
            transposed(mlp.gate_proj, mlp.up_proj), transposed(mlp.down_proj),
        )  # fmt: skip


class Decoder:
    """A model's weights as they are now, ready for decoding."""

    def __init__(self, model: Transformer):
        self.model = model
        self.dtype = torch.bfloat16 if model.precision == "bf16" else model.lm_head.weight.dtype
        self.layers = [LayerWeights.of(layer, self.dtype) for layer in model.model.layers]
        self.head = model.lm_head.weight.to(self.dtype).t().contiguous()
        self.layer_step = compiled_layer_step if model.compiled else layer_step

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: SharedCache) -> Tensor:
        """Logits (B, vocabulary) after one more token (B,) per sequence; the cache takes it in."""
        cos, sin = rotary_tables(cache.begin()[:, None], self.model.config.head_dim)
        x = self.model.embed(tokens)
        for number, weights in enumerate(self.layers):
            prompt = (*cache.prompts[number], cache.mask, cache.place, cache.most)
            x = self.layer_step(x, cos, sin, weights, *prompt, *cache.own[number], cache.slot, cache.unwritten)
        return self.model.model.norm(x).to(self.dtype) @ self.head


def layer_step(
    x: Tensor,  # (B, hidden)
    cos: Tensor,  # (B, 1, head_dim)
    sin: Tensor,
    weights: LayerWeights,
    prompt_keys: Tensor,  # (P, kv_heads, T, head_dim)
    prompt_values: Tensor,
    prompt_mask: Tensor,  # (P, 1, 1, T): -inf at padding, 0 elsewhere
    place: Tensor | None,  # (B,) each sequence's place in a table (P, most); None where they fill it in its order
    most: int,
    keys: Tensor,  # (B, kv_heads, slots, head_dim); take the new token's in
    values: Tensor,
    slot: Tensor,  # (1,) where the new token goes
    unwritten: Tensor,  # (slots,) -inf after the new token, 0 up to it
) -> Tensor:
    """The layer's output (B, hidden) for one new token of each sequence."""
    rows, kv_heads, head_dim = x.shape[0], keys.shape[1], keys.shape[3]
    projected = (_norm(x, weights.input_norm).to(keys.dtype) @ weights.qkv).view(rows, -1, head_dim)
    q, k, v = projected.split([projected.shape[1] - 2 * kv_heads, kv_heads, kv_heads], 1)
    q = rotate(_norm(q, weights.q_norm), cos, sin).to(keys.dtype)
    k = rotate(_norm(k, weights.k_norm), cos, sin).to(keys.dtype)
    keys.index_copy_(2, slot, k[:, :, None])
    values.index_copy_(2, slot, v[:, :, None])
    q = q.view(rows, kv_heads, -1, head_dim)
    given = _of_sequences(_of_prompts(q, place, prompt_mask.shape[0], most) @ prompt_keys.transpose(2, 3) + prompt_mask, place, most)
    scores = torch.cat([given, q @ keys.transpose(2, 3) + unwritten], -1)
    shares = (scores.to(x.dtype) * head_dim**-0.5).softmax(-1).to(keys.dtype)  # x: fp32 where keys are bf16
    given, written = shares.split([given.shape[-1], keys.shape[2]], -1)
    gathered = _of_sequences(_of_prompts(given, place, prompt_mask.shape[0], most) @ prompt_values, place, most) + written @ values
    x = x + gathered.reshape(rows, -1) @ weights.output
    gate, up = (_norm(x, weights.post_norm).to(keys.dtype) @ weights.gate_up).chunk(2, -1)
    return x + (F.silu(gate) * up) @ weights.down


@functools.cache
def _fused() -> Callable[..., Tensor]:
    return torch.compile(layer_step, dynamic=False)  # all that differs from call to call is marked below


def compiled_layer_step(x: Tensor, cos: Tensor, sin: Tensor, weights: LayerWeights, *state: Any) -> Tensor:
    """``layer_step`` fused by torch.compile: one code for all layers, and for all numbers of sequences, prompts and slots."""
    if len(x) == 1:  # would have a code of its own, for the last sequence of a batch
        return layer_step(x, cos, sin, weights, *state)
    prompt_keys, prompt_values, prompt_mask, place, _, keys, values, _, unwritten = state
    leave_sizes_open(*((tensor, (0,)) for tensor in (x, cos, sin, place, unwritten)), (prompt_mask, (0, 3)))
    leave_sizes_open(*((tensor, (0, 2)) for tensor in (prompt_keys, prompt_values, keys, values)))
    return _fused()(x, cos, sin, weights, *state)


def leave_sizes_open(*tensors: tuple[Tensor | None, tuple[int, ...]]) -> None:
    """Tell torch.compile which sizes differ from call to call. The model's own stay known: with all left open loops measured 1.6 times slower."""
    for tensor, sizes in tensors:
        if tensor is not None:
            for size in sizes:
                torch._dynamo.maybe_mark_dynamic(tensor, size)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), NORM_EPSILON)


def _of_prompts(rows: Tensor, place: Tensor | None, prompts: int, most: int) -> Tensor:
    """(B, kv_heads, n, d) of sequences as (P, kv_heads, most x n, d) of prompts; empty places hold zeros and are not looked at."""
    table = rows
    if place is not None:
        table = rows.new_zeros(prompts * most, *rows.shape[1:])
        table[place] = rows
    return table.view(prompts, most, *rows.shape[1:]).transpose(1, 2).flatten(2, 3)


def _of_sequences(table: Tensor, place: Tensor | None, most: int) -> Tensor:
    """The way back."""
    rows = table.unflatten(2, (most, -1)).transpose(1, 2).flatten(0, 1)
    return rows if place is None else rows[place]
