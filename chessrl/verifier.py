"""From puzzles to the environment that judges them: by the line and any mate, or by the engine as well."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chessrl.config import Config
from chessrl.engine import Engine, EngineSettings
from chessrl.engine_labels import accepted_moves, position_key
from chessrl.environment import Environment, build_environment, solver_decisions
from chessrl.errors import UserError
from chessrl.puzzles import Puzzle

VERIFIERS = ("line", "engine")


def environment_of(config: Config, puzzles: Sequence[Puzzle], verifier: str) -> Environment:
    """The environment of ``puzzles``. With ``verifier`` engine the labels come from the cache below ``outputs/data``, filled where needed."""
    if verifier == "line":
        return build_environment(puzzles)
    if verifier == "engine":
        return build_environment(puzzles, engine_accepted(config, puzzles))
    raise UserError(f"verifier={verifier!r}: expected one of {', '.join(VERIFIERS)}")


def engine_accepted(config: Config, puzzles: Sequence[Puzzle]) -> dict[str, list[str]]:
    """Moves that the engine accepts at every solver decision of the lines; a position it cannot score accepts none beyond the line's."""
    settings = config.engine
    boards = {position_key(board): board for puzzle in puzzles for board, _, _ in solver_decisions(puzzle)}
    cache = Path(config.outputs) / "data" / "engine_labels.sqlite"
    cache.parent.mkdir(parents=True, exist_ok=True)
    engine_settings = EngineSettings(
        path=settings.path,
        mode=settings.mode,
        depth=settings.depth,
        nodes=settings.nodes,
        hash_mb=settings.hash_mb,
        workers=settings.workers,
        deadline_s=settings.deadline_s,
    )
    with Engine(engine_settings, cache) as engine:
        labels = engine.label(list(boards.values()), progress=True)
        print(f"engine: {engine.identity}; " + ", ".join(f"{name} {count:,}" for name, count in engine.counts.items()), flush=True)
    return {
        key: accepted_moves(label, settings.delta, settings.mate_slack) if label is not None else [] for key, label in zip(boards, labels)
    }
