"""The transformer: Qwen3 architecture with Hugging Face's parameter names, so that export is a plain copy of the state dict.

Two ways through it, one set of weights: ``forward(tokens)`` over whole right-padded sequences (training, scoring, prefill) and
``decoder()(tokens, cache)`` over one new token per sequence.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chessrl.attention import NORM_EPSILON, attend, by_products, causal, mask_of_numbers, rotary_tables, rotate
from chessrl.cache import KVCache, SharedCache
from chessrl.config import ModelConfig
from chessrl.decoding import Decoder
from chessrl.errors import UserError
from chessrl.fusion import allow_compiling, fused, in_groups, leave_sizes_open
from chessrl.notation import PAD


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), NORM_EPSILON)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_dim)
        self.k_norm = RMSNorm(config.head_dim)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, heads, T, head_dim), keys and values (B, kv_heads, T, head_dim); cos and sin broadcast over heads."""
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        return rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype), v

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, before: tuple[Tensor, Tensor] | None, last: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What tokens, or the ``last`` ones alone, take from each other and from what came ``before`` (keys and values); their keys and values."""
        q, k, v = self.project(x, cos, sin)
        if last is not None:
            q = take(q.transpose(1, 2), last).transpose(1, 2)
        keys, values = (k, v) if before is None else (torch.cat([before[0], k], 2), torch.cat([before[1], v], 2))
        return self.o_proj(attend(q, keys, values, mask).transpose(1, 2).flatten(2)), k, v

    def decode(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache, layer: int) -> Tensor:
        q, k, v = self.project(x, cos, sin)
        return self.o_proj(cache.attend(layer, q, k, v).reshape(x.shape[0], 1, self.heads * self.head_dim))


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden)
        self.mlp = FeedForward(config)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, before: tuple[Tensor, Tensor] | None, last: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The layer's output (B, T, hidden), or (B, 1, hidden) of the tokens at ``last`` (B,), and all keys and values."""
        attended, k, v = self.self_attn(self.input_layernorm(x), cos, sin, mask, before, last)
        x = (x if last is None else take(x, last)) + attended
        return x + self.mlp(self.post_attention_layernorm(x)), k, v


class Given(NamedTuple):
    """What all layers are told of the tokens (B, T) that they read."""

    cos: Tensor
    sin: Tensor
    mask: Tensor | None  # of ``attend``
    last: Tensor | None = None  # (B,) places of the only tokens whose states the trunk is asked for
    mask_of_last: Tensor | None = None  # (B, 1, 1, T)


# Of each layer the keys and values that come before its own, and whether it goes on with the tokens at ``Given.last`` alone.
Stack = Sequence[tuple[Layer, tuple[Tensor, Tensor] | None, bool]]


def through_layers(stack: Stack, x: Tensor, given: Given, keeps: bool) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The output (B, T, hidden) of layers, or (B, 1, hidden) of the last tokens alone, and where one ``keeps`` them their keys and values."""
    kept = []
    for layer, before, alone in stack:
        x, k, v = layer(x, given.cos, given.sin, given.mask_of_last if alone else given.mask, before, given.last if alone else None)
        if keeps:
            kept.append((k, v))
    return x, kept


def through_layers_compiled(stack: Stack, x: Tensor, given: Given, keeps: bool) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """The same fused by torch.compile: one code for all numbers of sequences and lengths."""
    of_positions = (0,) if given.cos.dim() == 2 else (0, 2)
    of_mask = (0, 1) if given.mask is not None and given.mask.dim() == 2 else (0, 2, 3)
    leave_sizes_open((x, (0, 1)), (given.cos, of_positions), (given.sin, of_positions), (given.mask, of_mask))
    leave_sizes_open((given.last, (0,)), (given.mask_of_last, (0, 3)))
    leave_sizes_open(*((tensor, (0, 2)) for _, before, _ in stack for tensor in before or ()))
    return fused(through_layers)(stack, x, given, keeps)


def take(x: Tensor, places: Tensor) -> Tensor:
    """(B, 1, ...) of (B, T, ...): what stands at ``places`` (B,)."""
    return x[torch.arange(len(x), device=x.device), places][:, None]


class Trunk(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden)


class Transformer(nn.Module):
    """Decoder-only language model. ``precision`` "bf16" computes under autocast with fp32 weights, and decodes from bf16 copies; "fp64" is for exact
    comparisons. ``compiled`` has torch.compile fuse what layers do: it raises UserError where there is no C++ compiler.
    """

    def __init__(self, config: ModelConfig, precision: str = "fp32", compiled: bool = False):
        super().__init__()
        if compiled:
            allow_compiling()
        if config.heads % config.kv_heads:
            raise UserError(f"model.heads={config.heads}: expected a multiple of model.kv_heads={config.kv_heads}")
        self.config = config
        self.precision = precision
        self.compiled = compiled
        self.shares_prompts = precision == "bf16"  # a group's prompt is read once for all: sums in another order, which fp32's bits forbid
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        if precision == "fp64":
            self.double()

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    def autocast(self) -> torch.autocast:
        """The context of passes over whole sequences."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, vocabulary) of right-padded sequences (B, T): causal attention needs no mask for padding on the right."""
        return self.logits(self.states(tokens))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.model.embed_tokens(known_tokens(tokens, self.config.vocabulary))

    def logits(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary) of the trunk's last states (..., hidden)."""
        with self.autocast():
            return self.lm_head(states)

    def forward_masked(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Logits (B, T, vocabulary) where the token at each place has a position (B, T) of its own and sees the places of ``visible`` (B, T, T)."""
        return self.logits(self.states(tokens, None, positions, visible[:, None]))

    def prefill(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, KVCache | SharedCache]:
        """Logits (B, vocabulary) after the last token of each right-padded prompt (B, T) of ``lengths`` (B,), and the cache."""
        kept: list[tuple[Tensor, Tensor]] = []
        if not self.shares_prompts:
            return take(self.logits(self.states(tokens, kept)), lengths - 1)[:, 0], KVCache.of(kept, lengths)
        logits = self.logits(self.states(tokens, kept, last=lengths - 1))[:, 0]
        loops = self.compiled and self.device.type == "cpu" and self.config.heads == self.config.kv_heads
        return logits, SharedCache.of(kept, lengths, across=loops)

    def states(
        self,
        tokens: Tensor,
        kept: list[tuple[Tensor, Tensor]] | None = None,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        before: list[tuple[Tensor, Tensor]] | None = None,
        last: Tensor | None = None,
    ) -> Tensor:
        """The trunk's last states (B, T, hidden) of right-padded sequences (B, T); ``kept`` takes each layer's keys and values.

        Without ``positions`` (B, T) and ``mask`` (B, 1, T, T) each token follows and sees those before it; then ``last`` (B,) may ask for the states
        of one token of each sequence alone, (B, 1, hidden). ``before`` has each layer's keys and values (B, kv_heads, S, head_dim) of S tokens
        that came first, which the mask (B, 1, T, S + T) then covers, too.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device) if positions is None else positions[:, None]  # broadcast over heads
        mask_of_last = None if last is None else (places <= last[:, None])[:, None, None]
        if by_products(self.precision, tokens.device, tokens.shape[1] + (before[0][0].shape[2] if before else 0)):
            mask = mask_of_numbers(causal(places) if mask is None else mask)
            mask_of_last = None if mask_of_last is None else mask_of_numbers(mask_of_last)
        given = Given(*rotary_tables(places, self.config.head_dim), mask, last, mask_of_last)
        with self.autocast():
            x = self.embed(tokens)
            through = through_layers_compiled if self.compiled else through_layers
            alone = [False] * (self.config.layers - 1) + [last is not None]
            for stack in in_groups(list(zip(self.model.layers, before or [None] * self.config.layers, alone, strict=True))):
                x, new = through(stack, x, given, kept is not None)
                if kept is not None:
                    kept += new
            return self.model.norm(x)

    def states_after(self, prompts: Tensor, lengths: Tensor, owner: Tensor, tokens: Tensor) -> Tensor:
        """The trunk's states (B, S + 1, hidden) after a prompt and after each of the tokens (B, S) that follow it. A prompt is read once.

        ``prompts`` (P, T) right-padded, of ``lengths`` (P,); ``owner`` (B,) says which one a row follows.
        """
        kept: list[tuple[Tensor, Tensor]] = []
        last = self.states(prompts, kept, last=lengths - 1).index_select(0, owner)
        rows, length = tokens.shape
        if not length:
            return last
        given, places = lengths[owner][:, None], torch.arange(length, device=tokens.device)
        of_prompt = torch.arange(prompts.shape[1], device=tokens.device) < given
        mask = torch.cat([of_prompt[:, None].expand(-1, length, -1), (places <= places[:, None]).expand(rows, -1, -1)], -1)
        before = [(k.index_select(0, owner), v.index_select(0, owner)) for k, v in kept]
        return torch.cat([last, self.states(tokens, None, given + places, mask[:, None], before)], 1)

    def decoder(self) -> Callable[[Tensor, Any], Tensor]:
        """What makes logits (B, vocabulary) of one more token (B,) per sequence and a cache of ``prefill``, with the weights as they are now."""
        return Decoder(self).step if self.shares_prompts else self._decode

    def _decode(self, tokens: Tensor, cache: KVCache) -> Tensor:
        cos, sin = rotary_tables(cache.begin(), self.config.head_dim)
        cos, sin = cos[:, None, None], sin[:, None, None]
        x = self.embed(tokens)[:, None]
        for number, layer in enumerate(self.model.layers):
            x = x + layer.self_attn.decode(layer.input_layernorm(x), cos, sin, cache, number)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.lm_head(self.model.norm(x))[:, 0]


def build_model(
    config: ModelConfig, *, seed: int, precision: str = "fp32", compiled: bool = False, device: str | torch.device = "cpu"
) -> Transformer:
    """A model with seeded initial weights: normal with standard deviation 0.02, residual outputs scaled by 1/sqrt(2 layers) (GPT-2)."""
    model = Transformer(config, precision, compiled)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            deviation = 0.02 / math.sqrt(2 * config.layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            with torch.no_grad():
                parameter.normal_(0.0, deviation, generator=generator)
    return model.to(device)


# ---- log-probabilities ----------------------------------------------------------------------------------------------------------------


def known_tokens(tokens: Tensor, vocabulary: int) -> Tensor:
    """The tokens as they are, but for <pad> in a model that has none (the released checkpoints): what stands in its place is masked anyway."""
    return tokens if vocabulary > PAD else tokens.masked_fill(tokens == PAD, 0)


def scaled_logits(logits: Tensor, temperature: float) -> Tensor:
    """The logits, fp32 or more, that are sampled from and scored: temperature is applied here and nowhere else."""
    return (logits if logits.dtype == torch.float64 else logits.float()) / temperature


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probabilities (nats) of ``targets`` (...) under ``logits`` (..., vocabulary): gather, then logsumexp, in fp32."""
    scaled = scaled_logits(logits, temperature)
    targets = known_tokens(targets, logits.shape[-1])
    return scaled.gather(-1, targets[..., None]).squeeze(-1) - scaled.logsumexp(-1)


def token_entropies(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy (nats) of each next-token distribution, shape (...) for logits (..., vocabulary)."""
    logprobs = scaled_logits(logits, temperature).log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


# ---- cost -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """Parameters of a model and the floating-point operations of its passes. ``flops_*`` count a multiply-add as two."""

    parameters: int
    parameters_without_embeddings: int  # without embed_tokens and lm_head: the N of 6NT
    attention_per_token_pair: int  # forward operations per (query, key) pair: 4 x layers x heads x head_dim

    @staticmethod
    def of(config: ModelConfig) -> Cost:
        return _cost_of(astuple(config))

    def forward_flops(self, tokens: int) -> int:
        """2N per token."""
        return 2 * self.parameters_without_embeddings * tokens

    def attention_flops(self, pairs: int) -> int:
        """Forward attention over ``pairs`` of (query, visible key): a causal document of n tokens has n (n + 1) / 2."""
        return self.attention_per_token_pair * pairs

    def training_flops(self, tokens: int) -> int:
        """6NT: forward, and backward at twice its cost."""
        return 3 * self.forward_flops(tokens)


@functools.cache
def _cost_of(architecture: tuple[Any, ...]) -> Cost:
    config = ModelConfig(*architecture)
    with torch.device("meta"):
        model = Transformer(config)
    parameters = sum(p.numel() for p in model.parameters())
    tables = model.model.embed_tokens.weight.numel() + model.lm_head.weight.numel()
    return Cost(parameters, parameters - tables, 4 * config.layers * config.heads * config.head_dim)


def causal_pairs(lengths: Tensor) -> int:
    """(query, key) pairs of causal documents of the given lengths."""
    lengths = lengths.to(torch.int64)
    return int((lengths * (lengths + 1) // 2).sum())
