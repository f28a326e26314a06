"""What an RL run needs to go on exactly, and how its reference moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chessrl.config import AlgorithmConfig
from chessrl.model import Transformer
from chessrl.training import TrainingState
from rl.health import Watch
from rl.labels import MajorityLabels
from rl.value import ValueHead


@dataclass(kw_only=True)
class RlState(TrainingState):
    """Beside policy and optimiser the value head, the reference, where it moves, the labels found so far (finding them costs tokens), what the
    warnings compare with, and the episodes sampled so far, whatever for.
    """

    watch: Watch
    value_head: ValueHead | None = None
    reference: Transformer | None = None
    labels: MajorityLabels | None = None
    sequences: int = 0

    def state_dict(self) -> dict[str, Any]:
        parts = {"watch": self.watch, "value_head": self.value_head, "reference": self.reference, "labels": self.labels}
        held = {name: part.state_dict() for name, part in parts.items() if part is not None}
        return super().state_dict() | held | {"sequences": self.sequences}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.sequences = state["sequences"]
        self.watch.load_state_dict(state["watch"])
        if self.value_head is not None:
            self.value_head.load_state_dict(state["value_head"])
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])
        if self.labels is not None:
            self.labels.load_state_dict(state["labels"])

    def move_reference(self, algorithm: AlgorithmConfig) -> None:
        """At its period the reference becomes the policy (R1, arXiv 2501.12948), and the optimiser forgets, if asked to (ProRL, 2505.24864)."""
        if self.reference is not None and self.step % algorithm.reference_period == 0:
            self.reference.load_state_dict(self.model.state_dict())
            if algorithm.reference_resets_optimizer:
                self.optimizer.state.clear()
