"""Exact measures of a policy beside its samples: the success of every puzzle, and what it thinks of every legal move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.model import Transformer
from chessrl.policy import exact_success, policy_table
from chessrl.puzzles import Puzzle
from chessrl.sampler import SamplingSettings
from chessrl.statistics import exact_passk_table


@dataclass(frozen=True, slots=True)
class ExactSuccess:
    """success: one row per puzzle (puzzle, split, bin, decisions, p); passk: PASSK_COLUMNS up to k = 10^6."""

    success: pd.DataFrame
    passk: pd.DataFrame

    def write(self, folder: Path) -> None:
        self.success.to_parquet(folder / "exact.parquet", compression="zstd", index=False)
        self.passk.to_csv(folder / "passk_exact.csv", index=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """chessrl.policy.POLICY_COLUMNS, stage and step."""

    table: pd.DataFrame

    def write(self, folder: Path) -> None:
        self.table.to_parquet(folder / "policy.parquet", compression="zstd", index=False)


def measurements(config: Config, model: Transformer, puzzles: Sequence[Puzzle], labels: dict[str, Any]) -> list[ExactSuccess | Policy]:
    """What ``evaluate.exact`` and ``evaluate.policy_traces`` ask for, of settings that are resolved; ``labels``: of the evaluation.

    Raises UserError at temperature 0, where there are no probabilities to measure.
    """
    settings, made = config.evaluate, []
    if settings.temperature == 0 and (settings.exact or settings.policy_traces):
        raise UserError("evaluate.temperature=0: exact and policy_traces measure probabilities, which a greedy policy has none of; use 1")
    if settings.exact:
        made.append(exact_measure(model, puzzles, config.world.state, labels))
    if settings.policy_traces:
        sampling = SamplingSettings(
            settings.protocol, settings.temperature, settings.thinking_budget, seed=settings.seed, stage=f"policy-{settings.split}",
            thinking=settings.thinking, thinking_minimum=settings.thinking_minimum,
        )  # fmt: skip
        table, cut = policy_table(model, puzzles, config.world.state, sampling, settings.policy_traces, settings.batch)
        if settings.protocol == "think":
            left_out = len(puzzles) - table["puzzle"].nunique()
            asked = len(puzzles) * settings.policy_traces
            print(f"evaluate: of {asked:,} traces the budget cut {cut:,}; puzzles left without one: {left_out:,}", flush=True)
        made.append(Policy(table.assign(stage=labels["stage"], step=labels["step"])))
    return made


def exact_measure(model: Transformer, puzzles: Sequence[Puzzle], state: str, labels: dict[str, Any]) -> ExactSuccess:
    """Of a policy that answers without a trace, at ``labels["temperature"]``."""
    success = pd.DataFrame(
        {
            "puzzle": [puzzle.id for puzzle in puzzles],
            "split": [puzzle.split for puzzle in puzzles],
            "bin": [puzzle.bin for puzzle in puzzles],
            "decisions": [(len(puzzle.moves) - puzzle.lead + 1) // 2 for puzzle in puzzles],
            "p": exact_success(model, puzzles, state, labels["temperature"]),
        }
    )
    return ExactSuccess(success, exact_passk_table(success, labels | {"spelling": "strict"}, labels["seed"]))
