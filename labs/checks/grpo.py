"""Lab 4."""

from __future__ import annotations

from collections.abc import Callable

import torch

from chessrl.config import AlgorithmConfig
from rl.objective import group_advantages, token_terms, token_weights


def advantages(written: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Against the project's own, on groups of rewards that vary and some that do not."""
    rewards = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 1], [0.0] * 8, [1.0] * 8, [0.3, 0.3, 0.3, 0.9, 0.1, 0.0, 0.5, 0.2]])
    return torch.allclose(written(rewards).double(), group_advantages(rewards, "group_std", 1e-6), atol=1e-4)


def loss(written: Callable[..., torch.Tensor]) -> bool:
    """Value and gradient against the project's own, on ratios inside and outside the window and episodes of unequal length."""
    generator = torch.Generator().manual_seed(0)
    old, reference = (-3 * torch.rand(6, 5, generator=generator) for _ in range(2))
    shift = 0.8 * torch.randn(6, 5, generator=generator)
    of_episodes = torch.randn(6, generator=generator)
    mask = torch.arange(5)[None] < torch.tensor([5, 3, 1, 4, 2, 5])[:, None]
    new, expected_new = ((old + shift).requires_grad_() for _ in range(2))
    value = written(new, old, reference, of_episodes, mask, eps=0.2, beta=0.05)
    terms = token_terms(expected_new, old, reference, of_episodes[:, None], AlgorithmConfig(beta=0.05), mask)
    expected = (torch.where(mask, terms.loss, 0.0) * token_weights(mask, "sequence", 0)).sum()
    value.backward()
    expected.backward()
    return bool(torch.allclose(value, expected, atol=1e-5) and torch.allclose(new.grad, expected_new.grad, atol=1e-5))


CHECKS = {
    "4.1 advantages": (advantages, "(r - mean) / std of each row, population std, and 0 where all rewards of a row are equal."),
    "4.2 the loss": (
        loss,
        "min(ratio A, clipped ratio A) with a minus, plus beta (ref/new - log(ref/new) - 1); mean over an episode's tokens, then over episodes.",
    ),
    "4.3 groups that teach": (
        lambda answer: abs(answer - (1 - 0.9**8 - 0.1**8)) < 1e-3,
        "All eight wrong, or all eight right, teach nothing.",
    ),
    "4.4 the loss before the first update": (
        lambda answer: answer == 0,
        "The ratio is 1, the KL 0, and every episode of a group weighs the same: what do its advantages sum to?",
    ),
    "4.5 what moves the policy then": (
        lambda answer: answer == "gradient",
        'The value of a loss is not what an optimiser follows. Answer "value" or "gradient".',
    ),
}
