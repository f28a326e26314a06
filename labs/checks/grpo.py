"""Lab 4."""

from __future__ import annotations

from collections.abc import Callable

import torch

from checks.compare import near
from chessrl.config import AlgorithmConfig
from rl.objective import group_advantages, token_terms, token_weights


def advantages(written: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Against the project's own, on groups of rewards that vary and some that do not."""
    rewards = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 1], [0.0] * 8, [1.0] * 8, [0.3, 0.3, 0.3, 0.9, 0.1, 0.0, 0.5, 0.2]])
    expected = group_advantages(rewards, "group_std", 1e-6)
    got = written(rewards)
    for row, (own, wanted) in enumerate(zip(got.double(), expected)):
        if not torch.allclose(own, wanted, atol=1e-4):
            print(f"  rewards {_rounded(rewards[row])} give {_rounded(own)}, expected {_rounded(wanted)}")
    return torch.allclose(got.double(), expected, atol=1e-4)


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 3) for value in values.tolist()]


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
    if not torch.allclose(value, expected, atol=1e-5):
        print(f"  on an example the loss is {value.item():.4f}, expected {expected.item():.4f}")
        return False
    if not torch.allclose(new.grad, expected_new.grad, atol=1e-5):
        print("  the value is right on an example, its gradient by new is not: is something detached, or taken at old?")
        return False
    return True


def training(rewards_by_step: list[float], steps: int) -> bool:
    """A mean reward for each step, that of a policy which learns: higher at the end than at the start, where there are steps enough to tell."""
    third = steps // 3
    learned = steps < 30 or sum(rewards_by_step[-third:]) > sum(rewards_by_step[:third])
    return len(rewards_by_step) == steps and all(0 <= reward <= 1 for reward in rewards_by_step) and learned


CHECKS = {
    "4.1 advantages": (advantages, "(r - mean) / std of each row, population std, and 0 where all rewards of a row are equal."),
    "4.2 the loss": (
        loss,
        "min(ratio A, clipped ratio A) with a minus, plus beta (ref/new - log(ref/new) - 1); mean over an episode's tokens, then over episodes.",
    ),
    "4.3 groups that teach": (
        near(1 - 0.9**8 - 0.1**8, 0.005),
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
    "4.6 training": (
        training,
        "A number from 0 to 1 for each of the STEPS steps, and more of them solved in the last third than in the first: does optimizer.step() follow "
        "zero_grad and backward, and are the advantages taken of solved.view(PROMPTS, GROUP)?",
    ),
}
