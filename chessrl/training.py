"""What the training loops share: optimiser, schedule, batches, the language-model loss, progress, and the stage's life from start to summary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chessrl import distributed, notation
from chessrl.children import tell_directory
from chessrl.config import Config, OptimizerConfig
from chessrl.errors import UserError
from chessrl.model import Cost, Transformer, causal_pairs, token_logprobs
from chessrl.run import Run, resolve_device
from chessrl.signals import Interrupted, stop_signals

GIVEN = 0  # the part of an example that carries no loss
PARTS = 3


# ---- optimiser --------------------------------------------------------------------------------------------------------------------------


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Fused AdamW; weight decay on matrices, none on norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    norms = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Rate of step 1..steps: linear warm-up, then cosine to ``min_lr_ratio``, constant, or wsd: constant up to ``stable_steps``, then down
    by one minus the square root of the way (Haegele et al., arXiv 2405.18392).
    """
    if config.schedule not in ("cosine", "constant", "wsd"):
        raise UserError(f"optimizer.schedule={config.schedule!r}: expected cosine, constant or wsd")
    warmup = warmup_steps(config, steps)
    if step <= warmup:
        return config.lr * step / warmup
    if config.schedule == "wsd":
        stable = stable_steps(config, steps)
        progress = max(0, step - stable) / max(1, steps - stable)
        return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * (1 - math.sqrt(progress)))
    if config.schedule == "constant":
        return config.lr
    progress = (step - warmup) / max(1, steps - warmup)
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))


def warmup_steps(config: OptimizerConfig, steps: int) -> int:
    """Steps of the linear rise."""
    return round(config.warmup_ratio * steps) if config.warmup_steps is None else min(config.warmup_steps, steps)


def stable_steps(config: OptimizerConfig, steps: int) -> int:
    """The last step before wsd's decay: up to here a run of any more steps, with the same warm-up, is the same run."""
    return max(warmup_steps(config, steps), steps - round(config.decay_ratio * steps))


def optimizer_step(model: nn.Module, optimizer: torch.optim.AdamW, rate: float, clip: float) -> Tensor:
    """Sum the processes' gradients, clip, step, clear the gradients; returns the gradient norm before clipping."""
    distributed.sum_gradients(model)
    for group in optimizer.param_groups:
        group["lr"] = rate
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if norm.device.type != "cpu" or not norm + 1e-6 <= clip:  # on a CPU it costs nothing to see that the factor is 1; never so for NaN
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip, norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


# ---- batches ----------------------------------------------------------------------------------------------------------------------------


def shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    """A permutation of range(count), a function of (seed, epoch)."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count)


def token_batches(lengths: np.ndarray, batch_tokens: int, seed: int, *, epochs: int = 1, tokens: int | None = None) -> list[np.ndarray]:
    """The documents of every step, a function of its arguments: about ``batch_tokens`` non-pad tokens each.

    Runs over ``epochs`` shuffled passes; with ``tokens`` it ends with the document that reaches so many in all.
    """
    order = np.concatenate([shuffled(len(lengths), seed, epoch) for epoch in range(epochs)])
    total = np.cumsum(lengths[order])
    if tokens is not None:
        order = order[: int(np.searchsorted(total, tokens)) + 1]
        total = total[: len(order)]
    step_of = (total - 1) // batch_tokens
    return np.split(order, np.flatnonzero(np.diff(step_of)) + 1)


def micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Places grouped by similar length so that each group's padded size (rows x longest) is at most ``budget`` tokens, or one row."""
    groups: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: lengths[place]):
        if groups and (len(groups[-1]) + 1) * lengths[place] <= budget:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def own_micro_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """The micro-batches of the rows that fall to this process: of several, each takes every so many-th row by length."""
    order = sorted(range(len(lengths)), key=lambda place: lengths[place])
    own = order[distributed.rank() :: distributed.size()]
    return [[own[index] for index in group] for group in micro_batches([lengths[place] for place in own], budget)]


def pad(sequences: Sequence[np.ndarray | Sequence[int]], value: int, device: torch.device) -> Tensor:
    """Right-padded int64 tensor (rows, longest)."""
    padded = np.full((len(sequences), max(map(len, sequences))), value, np.int64)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = sequence
    return torch.from_numpy(padded).to(device)


@dataclass(frozen=True, slots=True)
class Example:
    """``tokens`` (T,) ids and the ``parts`` (T,) they belong to: GIVEN carries no loss, higher numbers do and are reported apart."""

    tokens: np.ndarray
    parts: np.ndarray


@dataclass(slots=True)
class PartLosses:
    """Losses (nats) of trained tokens by part: ``sums`` and ``counts`` are (PARTS,)."""

    sums: np.ndarray
    counts: np.ndarray

    @property
    def mean(self) -> float:
        """Nats per trained token."""
        return float(self.sums[1:].sum() / self.trained)

    @property
    def trained(self) -> int:
        return int(self.counts[1:].sum())

    def of(self, part: int) -> float | None:
        """Nats per token of one part, None where no token belongs to it."""
        return float(self.sums[part] / self.counts[part]) if self.counts[part] else None


def accumulate_gradient(model: Transformer, examples: Sequence[Example], budget: int) -> PartLosses:
    """Add the gradient of the mean loss over all trained tokens of ``examples``, whatever the micro-batches of ``budget`` padded tokens.

    Of several processes each adds its share's part of that gradient; the losses are of all ``examples``.
    """
    losses = PartLosses(np.zeros(PARTS), _part_counts(examples))
    for tokens, parts in _padded_micro_batches(examples, budget, model.device):
        nats = -next_token_logprobs(model, tokens)
        ((nats * (parts != GIVEN)).sum() / losses.trained).backward()
        losses.sums += _sums_by_part(nats.detach(), parts)
    distributed.sum_array(losses.sums)
    return losses


@torch.no_grad()
def evaluate_losses(model: Transformer, examples: Sequence[Example], budget: int) -> PartLosses:
    """The losses of ``examples`` without a gradient."""
    losses = PartLosses(np.zeros(PARTS), _part_counts(examples))
    for tokens, parts in _padded_micro_batches(examples, budget, model.device):
        losses.sums += _sums_by_part(-next_token_logprobs(model, tokens), parts)
    distributed.sum_array(losses.sums)
    return losses


def _padded_micro_batches(examples: Sequence[Example], budget: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """(tokens (B, T), parts of the targets (B, T - 1)) of each of this process's micro-batches."""
    for places in own_micro_batches([len(example.tokens) for example in examples], budget):
        tokens = pad([examples[place].tokens for place in places], notation.PAD, device)
        yield tokens, pad([examples[place].parts for place in places], GIVEN, device)[:, 1:]


def _part_counts(examples: Sequence[Example]) -> np.ndarray:
    """(PARTS,) tokens of each part; an example's first token is nobody's target."""
    return np.sum([np.bincount(example.parts[1:], minlength=PARTS) for example in examples], axis=0)


def _sums_by_part(nats: Tensor, parts: Tensor) -> np.ndarray:
    return np.array([(nats.double() * (parts == part)).sum().item() for part in range(PARTS)])


def next_token_logprobs(model: Transformer, tokens: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability (B, T - 1) of each token but the first, given those before it."""
    return token_logprobs(model(tokens[:, :-1]), tokens[:, 1:], temperature)


# ---- counting -----------------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Counters:
    """Cumulative cost of a stage. ``flops`` is 6NT with N without embeddings; ``flops_with_attention`` adds the attention products."""

    tokens: int = 0  # non-pad tokens
    loss_tokens: int = 0
    flops: int = 0
    flops_with_attention: int = 0

    def add_training(self, cost: Cost, lengths: Tensor, loss_tokens: int) -> None:
        """One optimiser step over documents of the given lengths."""
        tokens = int(lengths.sum())
        self.tokens += tokens
        self.loss_tokens += loss_tokens
        self.add_flops(cost.training_flops(tokens), 3 * cost.attention_flops(causal_pairs(lengths)))

    def add_flops(self, flops: int, attention: int) -> None:
        self.flops += flops
        self.flops_with_attention += flops + attention

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


# ---- the stage's life ---------------------------------------------------------------------------------------------------------------------


@dataclass
class TrainingState:
    """All that a stage needs to go on exactly: everything else is a function of the config and the step."""

    model: Transformer
    optimizer: torch.optim.AdamW
    step: int = 0
    counters: Counters = field(default_factory=Counters)

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counters": self.counters.as_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.counters = Counters(**state["counters"])


def start_stage(stage: str, config: Config, identity: Callable[[Config], dict[str, Any]], work: Callable[[Run], None]) -> int:
    """``run_stage`` of one process, or of the several that torchrun started; the first one makes the data that the others find."""
    with distributed.joined(resolve_device(config.run.device)):
        with distributed.first_process_first():
            identified = identity(config)
        return run_stage(stage, config, identified, work)


def run_stage(stage: str, config: Config, identity: dict[str, Any], work: Callable[[Run], None]) -> int:
    """Skip a finished run, otherwise carry ``work`` out in its directory. Returns the exit status; prints where the run is."""
    run = Run(stage, config, identity)
    distributed.check_same("the run", run.run_id)
    if distributed.is_first():
        tell_directory(run.directory)
    try:
        with stop_signals(), nullcontext() if distributed.gather(run.finished)[0] else run:
            if finished := distributed.gather(run.finished)[0]:  # before, or by the process that was waited for
                print(f"{stage}: {run.directory} is finished, skipped (rerun: run.rerun=true)", flush=True)
            else:
                work(run)
    except Interrupted as stop:
        print(f"{stage}: {run.directory} {stop}; the same command goes on from there", flush=True)
        return 128 + stop.number
    if finished:
        return 0
    print(f"{stage}: {run.directory} finished", flush=True)
    return 0


class Stopwatch:
    """Wall time since the last look: values for ``time/...`` keys, which comparisons leave out."""

    def __init__(self) -> None:
        self.start = self.last = time.perf_counter()

    def lap(self, tokens: int) -> dict[str, float]:
        now = time.perf_counter()
        lap, self.last = now - self.last, now
        return {"time/wall_s": round(now - self.start, 3), "time/tokens_per_s": round(tokens / lap, 1)}
