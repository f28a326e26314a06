"""The cells of the two tabular studies: the clip's effect under random reward, and the success recursion against measurement."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chessrl.config import AlgorithmConfig, TabularConfig
from chessrl.theory import next_success, next_success_forward_kl, std_gap, trajectory
from chessrl.theory_weights import gradient_weight
from rl.network_recursion import NetworkPolicy
from rl.tabular_policy import MoveTable, entropy, kl, prior, success
from rl.tabular_update import (
    NO_CLIP,
    advantages_by_count,
    climb,
    climb_sampled,
    forward_maximiser,
    maximiser,
    population_advantages,
    random_reward,
    sample_groups,
    sampled_step,
    solving_reward,
)

GROUP_EDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0)  # of the success at the start, for the recursion's groups of puzzles


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean and its standard error."""
    return values.mean().item(), (values.std() / len(values) ** 0.5).item()


# ---- clip bias --------------------------------------------------------------------------------------------------------------------------


def random_walk(table: MoveTable, settings: TabularConfig, algorithm: AlgorithmConfig, rate: float) -> tuple[Tensor, Tensor]:
    """``steps`` rollouts under random reward: the change of the first move's probability and of the entropy, (P,) each."""
    logits, reward = table.logprobs, random_reward(table, settings.gamma)
    for step in range(settings.steps):
        draws = sample_groups(logits, reward, settings.groups, algorithm, settings.seed, step)
        logits = sampled_step(logits, table.logprobs, draws, algorithm, rate)
    first = torch.softmax(logits, 1)[:, 0] - torch.softmax(table.logprobs, 1)[:, 0]
    return first, entropy(logits) - entropy(table.logprobs)


def clip_bias_rows(top: float, updates: int, rate: float, settings: TabularConfig, algorithm: AlgorithmConfig) -> list[dict[str, Any]]:
    """One row per eps and one without clip: mean changes over P seeds, and the paired difference from no clip, where the first draws are the same.

    A puzzle's row is its seed: all start alike, ``top`` on the first move and the rest equal.
    """
    table = prior("peaked", settings.puzzles, settings.moves, top=top)
    algorithm = replace(algorithm, minibatches=updates)
    free_first, free_entropy = random_walk(table, settings, replace(algorithm, **NO_CLIP), rate)
    rows = []
    for eps in (None, *settings.clips):
        if eps is None:
            first, spread = free_first, free_entropy
        else:
            first, spread = random_walk(table, settings, replace(algorithm, clip_low=eps, clip_high=eps), rate)
        row: dict[str, Any] = {"top_probability": top, "updates": updates, "lr": rate, "clip": np.nan if eps is None else eps, "seeds": len(first)}
        for name, values, free in (("top", first, free_first), ("entropy", spread, free_entropy)):
            row[f"{name}_change"], row[f"{name}_change_se"] = mean_and_error(values)
            row[f"{name}_clip_effect"], row[f"{name}_clip_effect_se"] = mean_and_error(values - free)
        rows.append(row)
    return rows


# ---- success recursion ------------------------------------------------------------------------------------------------------------------


def predicted_success(variant: str, p: np.ndarray, beta: float, steps: int, smoothing: float, algorithm: AlgorithmConfig) -> np.ndarray:
    """(steps + 1, P): the recursion of ``chessrl.theory`` from success ``p`` (P,) at the start."""
    std = partial(std_gap, smoothing=smoothing)
    right_wrong = advantages_by_count(algorithm)
    step: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "std": lambda previous: next_success(previous, p, beta, std),
        "groups": lambda previous: next_success(previous, p, beta, lambda q: gradient_weight(q, *right_wrong)),
        "no_std": lambda previous: next_success(previous, p, beta, np.ones_like),
        "mirror": lambda previous: next_success(previous, p, 0.0, std, alpha=beta),
        "forward_kl": lambda previous: next_success_forward_kl(previous, p, beta, smoothing),
    }
    return trajectory(step[variant], p, steps)


@dataclass(frozen=True, slots=True)
class SuccessPath:
    """Of P puzzles over outer iterations: success (steps + 1, P), and nats from the maximiser that each iteration aimed at (NaN where unknown)."""

    success: np.ndarray
    away: np.ndarray


def measured_success(
    variant: str, table: MoveTable, beta: float, settings: TabularConfig, algorithm: AlgorithmConfig, network: NetworkPolicy | None = None
) -> SuccessPath:
    """Every outer iteration an inner maximisation by gradient ascent, exact or (``groups``) on sampled groups of G; of a table, or of ``network``."""
    reward, logits = solving_reward(table), table.logprobs
    path, away = [success(logits, table.solving).numpy()], [np.full(len(logits), np.nan)]
    if network:
        network.restart()
    for step in range(settings.steps):
        reference = logits if variant == "mirror" else table.logprobs
        inner = {"steps": settings.inner_steps, "rate": settings.inner_rate}
        if variant == "groups":
            algorithm = replace(algorithm, beta=beta)
            logits = climb_sampled(logits, reference, reward, settings.groups, algorithm, **inner, seed=settings.seed, step=step)
            away.append(np.full(len(logits), np.nan))
        else:
            forward = variant == "forward_kl"
            advantages = population_advantages(logits, reward, settings.smoothing, normalise=variant != "no_std")
            target = forward_maximiser(reference, advantages, beta) if forward else maximiser(logits, reference, advantages, beta)
            if network:
                logits = network.climb(reference, advantages, beta, target, **inner, forward=forward)
            else:
                logits = climb(logits, reference, advantages, beta, **inner, forward=forward)
            away.append(kl(logits, target).numpy())
        path.append(success(logits, table.solving).numpy())
    return SuccessPath(np.stack(path), np.stack(away))


def recursion_rows(
    variant: str, beta: float, table: MoveTable, settings: TabularConfig, algorithm: AlgorithmConfig, network: NetworkPolicy | None = None
) -> list[dict[str, Any]]:
    """One row per group of puzzles and outer iteration: predicted and measured success and nats from the maximiser, means over the group, and the
    largest difference in it.
    """
    start = success(table.logprobs, table.solving).numpy()
    predicted = predicted_success(variant, start, beta, settings.steps, settings.smoothing, algorithm)
    measured = measured_success(variant, table, beta, settings, algorithm, network)
    edges = (0.0, *GROUP_EDGES) if settings.lowest < GROUP_EDGES[0] else GROUP_EDGES
    rows = []
    for low, high in itertools.pairwise(edges):
        inside = (start >= low) & (start < high)
        for step in range(settings.steps + 1):
            if inside.any():
                ours, theirs = measured.success[step, inside], predicted[step, inside]
                rows.append(
                    {
                        "variant": f"{variant}, network" if network else variant, "beta": beta, "group": f"{low:g}-{high:g}",
                        "puzzles": int(inside.sum()), "step": step,
                        "start": float(start[inside].mean()), "predicted": float(theirs.mean()), "measured": float(ours.mean()),
                        "largest_difference": float(np.abs(ours - theirs).max()), "kl_to_maximiser": float(measured.away[step, inside].mean()),
                    }
                )  # fmt: skip
    return rows
