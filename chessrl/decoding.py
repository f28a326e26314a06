"""One more token for each sequence of a ``SharedCache``, from weights laid out for it: bf16, where speed is wanted.

A decoding step multiplies few rows by every weight, so it is bound by reading them: here they are cast once a rollout, projections of one input are
one matrix, and all are transposed, so that products find their operands without gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chessrl.attention import NORM_EPSILON, rotary_tables, rotate
from chessrl.cache import FRESH, Places, SharedCache
from chessrl.fusion import fused, in_groups, leave_sizes_open

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


# Of each layer its weights, keys and values of prompts, and those of sequences with the values that wait (``SharedCache.own``).
Stack = list[tuple[LayerWeights, tuple[Tensor, Tensor], tuple[Tensor, ...]]]


class Decoder:
    """A model's weights as they are now, ready for decoding."""

    def __init__(self, model: Transformer):
        self.model = model
        self.dtype = torch.bfloat16 if model.precision == "bf16" else model.lm_head.weight.dtype
        self.layers = [LayerWeights.of(layer, self.dtype) for layer in model.model.layers]
        self.head = model.lm_head.weight.to(self.dtype).t().contiguous()

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: SharedCache) -> Tensor:
        """Logits (B, vocabulary) after one more token (B,) per sequence; the cache takes it in."""
        positions, places = cache.begin()
        cos, sin = rotary_tables(positions[:, None], self.model.config.head_dim)
        x = self.model.embed(tokens)
        through = compiled_layers if self.model.compiled else layers
        for stack in in_groups(list(zip(self.layers, cache.prompts, cache.own, strict=True))):
            x = through(stack, x, cos, sin, places, cache.across)
        return self.model.model.norm(x).to(self.dtype) @ self.head


def layer(
    weights: LayerWeights,
    x: Tensor,  # (B, hidden)
    cos: Tensor,  # (B, 1, head_dim)
    sin: Tensor,
    places: Places,
    prompt: tuple[Tensor, Tensor],  # keys and values
    own: tuple[Tensor, ...],  # keys and values, which take the new token's in, and values that wait where they do
    across: bool,  # how values are held
) -> Tensor:
    """The layer's output (B, hidden) for one new token of each sequence."""
    dtype, rows, (_, kv_heads, _, head_dim) = weights.qkv.dtype, x.shape[0], own[0].shape
    projected = (_norm(x, weights.input_norm).to(dtype) @ weights.qkv).view(rows, -1, head_dim)
    q, k, v = projected.split([projected.shape[1] - 2 * kv_heads, kv_heads, kv_heads], 1)
    q = (rotate(_norm(q, weights.q_norm), cos, sin) * head_dim**-0.5).to(dtype)
    k = rotate(_norm(k, weights.k_norm), cos, sin).to(dtype)
    attend = _attend_by_loops if across else _attend_by_products
    gathered = attend(q.view(rows, kv_heads, -1, head_dim), k, v, places, prompt, own)
    x = x + gathered.reshape(rows, -1) @ weights.output
    gate, up = (_norm(x, weights.post_norm).to(dtype) @ weights.gate_up).chunk(2, -1)
    return x + (F.silu(gate) * up) @ weights.down


def layers(stack: Stack, x: Tensor, cos: Tensor, sin: Tensor, places: Places, across: bool) -> Tensor:
    """One layer after the other."""
    for weights, prompt, own in stack:
        x = layer(weights, x, cos, sin, places, prompt, own, across)
    return x


def compiled_layers(stack: Stack, x: Tensor, cos: Tensor, sin: Tensor, places: Places, across: bool) -> Tensor:
    """``layers`` fused by torch.compile: one code for all numbers of sequences, prompts and slots."""
    if len(x) == 1:  # would have a code of its own, for the last sequence of a batch
        return layers(stack, x, cos, sin, places, across)
    leave_sizes_open(*((tensor, (0,)) for tensor in (x, cos, sin, places.place, places.unwritten)), (places.hidden, (0, 3)))
    for _, prompt, own in stack:
        leave_sizes_open(*((waiting, (0,)) for waiting in own[2:]))
        for keys, values in (prompt, own[:2]):
            leave_sizes_open((keys, (0, 2)), (values, (0, 3) if across else (0, 2)))
    return fused(layers)(stack, x, cos, sin, places, across)


def _attend_by_products(q: Tensor, k: Tensor, v: Tensor, places: Places, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, ...]) -> Tensor:
    """What queries (B, kv_heads, n, head_dim) gather, of that shape."""
    keys, values = own
    keys.index_copy_(2, places.slot, k[:, :, None])
    values.index_copy_(2, places.slot, v[:, :, None])
    scores = torch.cat([_scores_of_prompts(q, prompt[0], places), q @ keys.transpose(2, 3) + places.unwritten], -1)
    shares = _wide(scores).softmax(-1).to(q.dtype)
    given, written = shares.split([prompt[0].shape[2], keys.shape[2]], -1)
    return _of_prompt_values(given, prompt[1], places) + written @ values


def _attend_by_loops(q: Tensor, k: Tensor, v: Tensor, places: Places, prompt: tuple[Tensor, Tensor], own: tuple[Tensor, ...]) -> Tensor:
    """The same through sums that torch.compile makes loops of. With one query (n = 1) for a key head there is nothing that a matrix product could
    hold in the processor while it goes on: it read bf16 keys at 15 GB/s, the loop at 32.
    """
    keys, values, fresh = own
    keys.index_copy_(2, places.slot, k[:, :, None])
    fresh.index_copy_(2, places.slot % FRESH, v[:, :, None])
    alone = places.most == 1 and places.place is None  # one sequence of each prompt
    given = _sums(q, prompt[0]) + places.hidden if alone else _wide(_scores_of_prompts(q, prompt[0], places))
    written = _sums(q, keys) + places.unwritten
    top = torch.maximum(given.amax(-1, keepdim=True), written.amax(-1, keepdim=True))
    given, written = (given - top).exp(), (written - top).exp()
    total = given.sum(-1, keepdim=True) + written.sum(-1, keepdim=True)
    of_prompts = _sums(given, prompt[1]) if alone else _of_prompt_values(given.to(q.dtype), prompt[1].transpose(2, 3), places)
    waiting = _sums(written.index_select(-1, places.fresh), fresh.transpose(2, 3))
    return ((of_prompts + _sums(written, values) + waiting) / total).to(q.dtype)


def _sums(rows: Tensor, table: Tensor) -> Tensor:
    """(B, kv_heads, n, d) times (B, kv_heads, m, d), summed over d: (B, kv_heads, n, m)."""
    return (_wide(rows)[:, :, :, None] * _wide(table)[:, :, None]).sum(-1)


def _wide(x: Tensor) -> Tensor:
    """In fp32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _scores_of_prompts(q: Tensor, keys: Tensor, places: Places) -> Tensor:
    return _of_sequences(_of_prompts(q, places) @ keys.transpose(2, 3) + places.hidden, places)


def _of_prompt_values(shares: Tensor, values: Tensor, places: Places) -> Tensor:
    return _of_sequences(_of_prompts(shares, places) @ values, places)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), NORM_EPSILON)


def _of_prompts(rows: Tensor, places: Places) -> Tensor:
    """(B, kv_heads, n, d) of sequences as (P, kv_heads, most x n, d) of prompts; empty places hold zeros and are not looked at."""
    prompts, table = places.hidden.shape[0], rows
    if places.place is not None:
        table = rows.new_zeros(prompts * places.most, *rows.shape[1:])
        table[places.place] = rows
    return table.view(prompts, places.most, *rows.shape[1:]).transpose(1, 2).flatten(2, 3)


def _of_sequences(table: Tensor, places: Places) -> Tensor:
    """The way back."""
    rows = table.unflatten(2, (places.most, -1)).transpose(1, 2).flatten(0, 1)
    return rows if places.place is None else rows[places.place]
