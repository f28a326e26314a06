"""How much memory a step takes, counted from the architecture: ``python -m benchmarks part=growth`` holds the count against measured peaks.

A count for fused attention (no matrix of all pairs is kept), fp32 weights and AdamW; bf16 computes under autocast, as ``chessrl.model`` does.
In bf16 on a CPU there is more: attention by products keeps 6 bytes for each head and pair of tokens (``chessrl.attention``).
Bytes throughout; the interpreter, its libraries and what an allocator leaves unused are not in it (about 1 GB on a GPU).
"""

from __future__ import annotations

from dataclasses import dataclass

from chessrl.cache import BLOCK
from chessrl.config import ModelConfig
from chessrl.model import Cost

FP32 = 4
ELEMENT = {"fp32": 4, "bf16": 2}  # bytes of what matrix products read and write


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that are alive at the peak of a step."""

    weights: int  # fp32, of every model that is held
    optimizer: int  # AdamW's two moments
    gradients: int
    activations: int  # of one micro-batch: what the backward pass needs, and its largest passing values
    cache: int  # keys and values

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.gradients + self.activations + self.cache


def saved_per_token(model: ModelConfig, precision: str) -> int:
    """Bytes of a token that a forward pass keeps for its backward pass.

    With h = hidden, q = heads x head_dim, k = kv_heads x head_dim, f = ffn a layer keeps, in elements: 4 h, 2 q and 2 k of its norms (what comes in
    and what is scaled, always fp32); their outputs for the products (2 h; in bf16 5 h, cast once for each of q, k, v, gate and up); 3 q + 2 k of
    attention (queries, its output by heads and by tokens, keys and values); 4 f (gate, silu(gate), up, their product). The head keeps 3 h likewise
    and its logits.
    Norms that are fused, as on some GPUs, keep up to 2 h + q + k less.
    """
    element = ELEMENT[precision]
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    copies = 5 if precision == "bf16" else 2
    norms = FP32 * (4 * model.hidden + 2 * queries + 2 * keys + 2 + 2 * model.heads + model.kv_heads)  # and attention's logsumexp
    products = element * (copies * model.hidden + 3 * queries + 2 * keys + 4 * model.ffn)
    head = model.hidden * (2 * FP32 + element) + FP32 * (model.vocabulary + 4)
    return model.layers * (norms + products) + head


def passing_per_token(model: ModelConfig, precision: str) -> int:
    """Bytes of a token that are held for a moment at the peak, where the backward pass begins: gradients of a feed-forward layer's products or of
    the logits, whatever is more.
    """
    of_layer = ELEMENT[precision] * 3 * model.ffn + FP32 * model.hidden
    return max(of_layer, 3 * FP32 * model.vocabulary)


def training_memory(model: ModelConfig, precision: str, tokens: int, held: int = 0) -> Memory:
    """A training step whose micro-batches have so many padded ``tokens``. ``held``: further models without a gradient (a reference).

    16 bytes a parameter (weight, gradient, two moments), in bf16 a cast copy besides, and ``tokens`` times what a token keeps.
    """
    parameters = Cost.of(model).parameters
    casts = ELEMENT["bf16"] * parameters if precision == "bf16" else 0
    activations = tokens * (saved_per_token(model, precision) + passing_per_token(model, precision))
    return Memory((1 + held) * FP32 * parameters, 2 * FP32 * parameters, FP32 * parameters, activations + casts, 0)


def cache_per_token(model: ModelConfig, precision: str) -> int:
    """Bytes of a token's keys and values in all layers: 2 layers x kv_heads x head_dim elements."""
    return 2 * model.layers * model.kv_heads * model.head_dim * ELEMENT[precision]


def sampling_memory(model: ModelConfig, precision: str, prompts: int, group: int, prompt: int, new: int) -> Memory:
    """A rollout of ``group`` episodes of ``new`` tokens for each of ``prompts`` of ``prompt`` tokens, all of equal length.

    fp32 holds a prompt once for each of its episodes and once for the prefill; bf16 once. While the cache grows what was there is there twice: in
    fp32 the keys or the values of the prompts, in bf16 all but the newest block.
    Of each sampled token the record has 17 bytes (id, whose it is, log-probability, entropy).
    """
    parameters, sequences = Cost.of(model).parameters, prompts * group
    each = cache_per_token(model, precision)
    if precision == "bf16":
        blocks = -(-new // BLOCK) * BLOCK
        cache = each * (prompts * prompt + sequences * blocks)
        growing = each * sequences * (blocks - BLOCK)
    else:
        cache = each * (sequences * (prompt + new) + prompts * prompt)
        growing = each * sequences * prompt // 2
    casts = ELEMENT["bf16"] * parameters if precision == "bf16" else 0
    step = sequences * (ELEMENT[precision] * (3 * model.ffn + 2 * model.hidden) + 6 * FP32 * model.vocabulary)
    return Memory(FP32 * parameters, 0, 0, casts + step + 17 * sequences * new, cache + growing)


def rl_memory(model: ModelConfig, precision: str, prompts: int, group: int, prompt: int, new: int, tokens: int) -> Memory:
    """An RL step with a reference: the larger of its rollout and of its update with micro-batches of ``tokens``; weights, gradients' room and
    moments of both stay where they are.
    """
    update = training_memory(model, precision, tokens, held=1)
    rollout = sampling_memory(model, precision, prompts, group, prompt, new)
    waiting = Memory(update.weights, update.optimizer, 0, rollout.activations, rollout.cache)  # gradients are freed after every step
    return max(update, waiting, key=lambda memory: memory.total)
