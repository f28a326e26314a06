"""From puzzles to the environment that judges them: by the line and any mate, or by the engine as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import chess

from chessrl.config import Config, EngineConfig
from chessrl.engine import Engine, EngineSettings
from chessrl.engine_labels import MoveLabels, accepted_moves, position_key
from chessrl.environment import Environment, build_environment, solver_decisions
from chessrl.errors import UserError
from chessrl.puzzles import Puzzle
from chessrl.run import identity_of

VERIFIERS = ("line", "engine")


def environment_of(config: Config, puzzles: Sequence[Puzzle], verifier: str) -> tuple[Environment, dict[str, Any]]:
    """The environment of ``puzzles``, and what a record should say of its engine (nothing with ``verifier`` line).

    With ``verifier`` engine the labels come from the cache below ``outputs/data``, filled where needed.
    """
    if verifier == "line":
        return build_environment(puzzles), {}
    if verifier == "engine":
        accepted, record = engine_accepted(config, puzzles)
        return build_environment(puzzles, accepted), {"engine": record}
    raise UserError(f"verifier={verifier!r}: expected one of {', '.join(VERIFIERS)}")


def engine_settings(config: EngineConfig) -> EngineSettings:
    """The settings of the engine pool; ``delta`` and ``mate_slack`` are the reading of its labels."""
    keys = {field.name: getattr(config, field.name) for field in fields(config) if field.name not in ("delta", "mate_slack")}
    return EngineSettings(**keys)


def engine_identity(config: Config) -> dict[str, Any]:
    """What decides the engine's verdicts: its name, net and limits, and how its labels are read."""
    with Engine(engine_settings(config.engine)) as engine:
        return identity_of(config.engine) | {"engine": engine.identity}


def cached_labels(config: Config, boards: Sequence[chess.Board]) -> tuple[list[MoveLabels | None], str]:
    """The engine's scores of every legal move of the positions, and its identity; the cache below ``outputs/data`` is filled where needed."""
    cache = Path(config.outputs) / "data" / "engine_labels.sqlite"
    cache.parent.mkdir(parents=True, exist_ok=True)
    with Engine(engine_settings(config.engine), cache) as engine:
        labels = engine.label(boards, progress=True)
        print(f"engine: {engine.identity}; " + ", ".join(f"{name} {count:,}" for name, count in engine.counts.items()), flush=True)
        return labels, engine.identity


def engine_accepted(config: Config, puzzles: Sequence[Puzzle]) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Moves that the engine accepts at every solver decision of the lines, and counts for the record.

    A position that the engine cannot score accepts none beyond the line's, and is counted.
    """
    settings = config.engine
    labels, identity = engine_labels(config, puzzles)
    accepted = {key: accepted_moves(label, settings.delta, settings.mate_slack) if label is not None else [] for key, label in labels.items()}
    record = {
        "identity": identity,
        "positions": len(labels),
        "unscorable": sum(label is None for label in labels.values()),
        "accepted_moves_per_position": sum(map(len, accepted.values())) / max(1, len(labels)),
    }
    return accepted, record


def engine_labels(config: Config, puzzles: Sequence[Puzzle]) -> tuple[dict[str, MoveLabels | None], str]:
    """The engine's labels (None where it cannot score) by position of every solver decision of the lines, and the engine's identity."""
    boards = {position_key(board): board for puzzle in puzzles for board, _, _ in solver_decisions(puzzle)}
    labels, identity = cached_labels(config, list(boards.values()))
    return dict(zip(boards, labels)), identity
