"""A value head on the policy's trunk: V of the state before each token, learned beside the policy (PPO)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chessrl.config import ModelConfig
from chessrl.model import Transformer


class ValueHead(nn.Module):
    """One linear map from the trunk's last states; its zero weights make every value 0 at the start, so that it moves the trunk only once it errs."""

    def __init__(self, config: ModelConfig, precision: str, device: torch.device):
        super().__init__()
        self.linear = nn.Linear(config.hidden, 1, device=device, dtype=torch.float64 if precision == "fp64" else torch.float32)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, states: Tensor) -> Tensor:
        """(B, T) values of states (B, T, hidden)."""
        return self.linear(states.to(self.linear.weight.dtype)).squeeze(-1)


class Learner(nn.Module):
    """What the optimiser moves: the policy, and the value head where the algorithm has one. Its parameters begin with the policy's."""

    def __init__(self, policy: Transformer, value_head: ValueHead | None):
        super().__init__()
        self.policy = policy
        self.value_head = value_head

    def logits_and_values(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T, vocabulary) of tokens (B, T), and values (B, T) of the states after each, None without a head."""
        if self.value_head is None:
            return self.policy(tokens), None
        return self.of_states(self.policy.states(tokens))

    def of_states(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same of the trunk's states (B, T, hidden)."""
        return self.policy.logits(states), self.value_head(states) if self.value_head is not None else None
