"""A policy small enough to enumerate: the next token depends on the last one alone, through a table and an output matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chessrl.config import ModelConfig
from rl.update import Batch
from rl.value import ValueHead

VOCABULARY, HIDDEN = 4, 3
PROMPT = 0  # the only prompt token


class ToyPolicy(nn.Module):
    """Logits of the token after x: table[x] @ out, (VOCABULARY, HIDDEN) and (HIDDEN, VOCABULARY)."""

    shares_prompts = False

    def __init__(self, seed: int, scale: float = 1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(scale * torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, generator=generator))
        self.out = nn.Parameter(scale * torch.randn(HIDDEN, VOCABULARY, dtype=torch.float64, generator=generator))

    def states(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]

    def logits(self, states: Tensor) -> Tensor:
        return states @ self.out

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.states(tokens))


def nearby(policy: ToyPolicy, seed: int, distance: float) -> ToyPolicy:
    """A policy some way off."""
    other = ToyPolicy(seed, distance)
    with torch.no_grad():
        other.table += policy.table
        other.out += policy.out
    return other


def toy_value_head(seed: int) -> ValueHead:
    head = ValueHead(ModelConfig(hidden=HIDDEN), "fp64", torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.linear.weight.normal_(generator=generator)
        head.linear.bias.normal_(generator=generator)
    return head


def sequence_logprobs(policy: ToyPolicy, tokens: Tensor) -> Tensor:
    """(B, L - 1) log-probability of each token but the first."""
    return policy(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def toy_batch(sequences: list[list[int]], forced: list[set[int]], sampler: ToyPolicy) -> Batch:
    """Episodes after PROMPT; ``forced`` holds the places (from 0, after the prompt) that the environment wrote."""
    longest = max(map(len, sequences))
    rows = [[PROMPT, *sequence] + [VOCABULARY - 1] * (longest - len(sequence)) for sequence in sequences]
    tokens = torch.tensor(rows)
    policy = torch.tensor(
        [[place < len(sequence) and place not in given for place in range(longest)] for sequence, given in zip(sequences, forced)]
    )
    sampled = torch.where(policy, sequence_logprobs(sampler, tokens).detach(), 0.0)
    lengths = torch.tensor([len(sequence) + 1 for sequence in sequences])
    return Batch(tokens, lengths, policy, sampled, torch.ones_like(lengths), torch.arange(len(rows)), 0)

