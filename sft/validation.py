"""What is measured on validation puzzles after every epoch, and when a run stops because of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from chessrl import distributed
from chessrl.config import Config
from chessrl.environment import build_environment
from chessrl.evaluate import sample_policy
from chessrl.model import Transformer
from chessrl.puzzles import Puzzle
from chessrl.sampler import SamplingSettings
from chessrl.statistics import pass_at_k
from chessrl.training import Example, PartLosses, evaluate_losses
from sft.examples import ANSWER, TRACE


@dataclass(frozen=True, slots=True)
class Validation:
    """The held-out puzzles and their examples. ``longest_trace``: tokens before ``</T>`` in the training examples, what a trace may take."""

    puzzles: Sequence[Puzzle]
    examples: Sequence[Example]
    longest_trace: int
    config: Config

    def measure(self, model: Transformer, micro_batch_tokens: int) -> dict[str, float]:
        """Losses in all, of the trace and of the answer, and with sft.validation_samples pass@1 and pass@(so many) by the line."""
        losses = named_losses(evaluate_losses(model, self.examples, micro_batch_tokens), "validation/", "_")
        return losses | self._pass_at_k(model)

    def _pass_at_k(self, model: Transformer) -> dict[str, float]:
        """The same random numbers after every epoch; of several processes each samples a share of the puzzles."""
        samples, settings = self.config.sft.validation_samples, self.config.sft
        if not samples:
            return {}
        protocol = "think" if settings.trace.enabled else "answer"
        how = SamplingSettings(protocol, 1.0, self.longest_trace, seed=settings.seed, stage="sft-validation")
        ks = sorted({1, samples})
        sums = np.zeros(len(ks) + 1)
        if own := list(distributed.portion(self.puzzles)):
            environment = build_environment(own).to(model.device)
            table = sample_policy(model, environment, own, self.config.world.state, samples, how, self.config.evaluate.batch)
            solved = table.groupby("puzzle")["solved"].sum().to_numpy()
            sums[:] = [*(pass_at_k(samples, solved, k).sum() for k in ks), len(solved)]
        *totals, count = distributed.sum_array(sums)
        return {f"validation/pass_at_{k}": float(total / count) for k, total in zip(ks, totals)}


def named_losses(losses: PartLosses, prefix: str, separator: str) -> dict[str, float]:
    """``loss`` in all, of the trace (where there is one) and of the answer, in nats per trained token."""
    parts = {"trace": losses.of(TRACE), "answer": losses.of(ANSWER)}
    return {f"{prefix}loss": losses.mean} | {f"{prefix}loss{separator}{name}": value for name, value in parts.items() if value is not None}


@dataclass(slots=True)
class EarlyStop:
    """Stops after ``patience`` validations in a row without a new lowest loss; None: never."""

    patience: int | None
    best: float = math.inf
    best_step: int = 0
    waited: int = 0

    def improved(self, loss: float, step: int) -> bool:
        """Take a validation loss in; whether it is the lowest so far."""
        better = loss < self.best
        self.best, self.best_step, self.waited = (loss, step, 0) if better else (self.best, self.best_step, self.waited + 1)
        return better

    @property
    def over(self) -> bool:
        return self.patience is not None and self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"early_stop": {key: value for key, value in asdict(self).items() if key != "patience"}}

    def load(self, state: dict[str, Any]) -> None:
        self.best, self.best_step, self.waited = (state["early_stop"][key] for key in ("best", "best_step", "waited"))
