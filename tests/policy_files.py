"""policy.parquet files of made-up policies."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd


def write_policy(path: Path, policies: Sequence[np.ndarray], solving: Sequence[int], mass: float = 0.9, decisions: int = 1) -> None:
    """``policies[i]`` (traces, moves): the distributions of state i over its moves, a puzzle having ``decisions`` states; ``mass``: legal mass."""
    rows = []
    for state, (traces, right) in enumerate(zip(policies, solving)):
        puzzle = state // decisions
        for number, probabilities in enumerate(traces):
            moves = [f"a1a{move}" for move in range(len(probabilities))]
            scores = np.log(np.maximum(probabilities, 1e-30) * mass).astype(np.float32)
            rows.append((f"p{puzzle:04d}", "test", f"B{1 + puzzle % 2}", state % decisions, number, moves, scores, right, [right]))
    columns = ["puzzle", "split", "bin", "decision", "trace", "moves", "logprobs", "solution", "solving"]
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=columns).to_parquet(path)


def made_up(states: int, traces: int, seed: int) -> list[np.ndarray]:
    """Distributions over 4 to 9 moves; the traces of a state are like one another. The numbers of moves do not depend on the seed."""
    rng = np.random.default_rng(seed)
    policies = []
    for state in range(states):
        scores = rng.normal(0, 1.5, 4 + state % 6) + rng.normal(0, 0.5, (traces, 4 + state % 6))
        policies.append(np.exp(scores) / np.exp(scores).sum(1, keepdims=True))
    return policies


def sharpened(policies: Sequence[np.ndarray], power: float) -> list[np.ndarray]:
    """One trace each: the marginal to a power."""
    marginals = [traces.mean(0, keepdims=True) ** power for traces in policies]
    return [marginal / marginal.sum() for marginal in marginals]
