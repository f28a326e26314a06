"""What needs no policy of ours, as a table beside the runs' data: facts of a split's puzzles, uniform legal play, Stockfish at n nodes, and how much
each legal move loses by the engine.

``python -m chessrl.baselines evaluate.split=test [evaluate.max_puzzles=N] [baselines.nodes=[1,10,100]] [baselines.quality=true]``: see ``--help``.
``python -m analysis`` finds ``OUTPUTS/data/baselines-SPLIT-HASH.parquet`` and ``move_quality-SPLIT-HASH.parquet`` by the puzzles they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import chess
import pandas as pd

from chessrl import world
from chessrl.checkpoint import written_beside
from chessrl.config import Config
from chessrl.engine import Engine
from chessrl.engine_labels import MoveLabels, expected_score, position_key
from chessrl.engine_labels import accepted_moves as engine_accepts
from chessrl.environment import solver_decisions
from chessrl.errors import make_folder
from chessrl.launch import launch
from chessrl.puzzles import Puzzle, accepted_moves
from chessrl.run import digest, identity_of
from chessrl.verifier import engine_labels, engine_settings


def uniform_success(puzzle: Puzzle) -> float:
    """Probability that a player who draws every move uniformly from the legal ones solves the puzzle, by the line or any mate."""
    success, reached = 0.0, 1.0
    decisions = solver_decisions(puzzle)
    for board, line_move, reply in decisions:
        moves, accepted = board.legal_moves.count(), len(accepted_moves(board, line_move))
        going_on = 0 if reply is None else 1
        success += reached * (accepted - going_on) / moves
        reached *= going_on / moves
    return success


def fact_table(puzzles: Sequence[Puzzle]) -> pd.DataFrame:
    """One row per puzzle: puzzle, split, bin, difficulty, decisions, themes (words), uniform (probability of success)."""
    return pd.DataFrame(
        {
            "puzzle": [puzzle.id for puzzle in puzzles],
            "split": [puzzle.split for puzzle in puzzles],
            "bin": [puzzle.bin for puzzle in puzzles],
            "difficulty": [puzzle.difficulty for puzzle in puzzles],
            "decisions": [(len(puzzle.moves) - puzzle.lead + 1) // 2 for puzzle in puzzles],
            "themes": [" ".join(puzzle.themes) for puzzle in puzzles],
            "uniform": [uniform_success(puzzle) for puzzle in puzzles],
        }
    )


def engine_success(engine: Engine, puzzles: Sequence[Puzzle], nodes: int) -> list[float]:
    """1.0 where the engine's best move, one search of ``nodes`` nodes for each decision, solves the puzzle by the line or any mate; else 0.0.

    NaN where a search failed.
    """
    decisions = [solver_decisions(puzzle) for puzzle in puzzles]
    boards = [board for of_puzzle in decisions for board, _, _ in of_puzzle]
    best = iter(engine.variations(boards, [1] * len(boards), nodes, progress=True))
    return [_walk(of_puzzle, [next(best) for _ in of_puzzle]) for of_puzzle in decisions]


def _walk(decisions: Sequence[tuple[chess.Board, chess.Move, chess.Move | None]], best: Sequence[list[list[str]] | None]) -> float:
    for (board, line_move, _), variations in zip(decisions, best):
        if not variations:
            return float("nan")
        played = chess.Move.from_uci(variations[0][0])
        if played != line_move:
            return float(played in accepted_moves(board, line_move))
    return 1.0


def quality_table(puzzles: Sequence[Puzzle], labels: dict[str, MoveLabels | None]) -> pd.DataFrame:
    """One row per decision: puzzle, decision, moves (UCI, in the order of ``policy.parquet``), lost (expected score less than the best move's) and
    best (places of the best moves: among mates, which all have one expected score, the shortest).

    Positions that the engine could not score have no row.
    """
    rows = []
    for puzzle in puzzles:
        for number, (board, _, _) in enumerate(solver_decisions(puzzle)):
            label = labels[position_key(board)]
            if label is None:
                continue
            expected = {move: expected_score(score) for move, score in label.scores.items()}
            moves = sorted(expected)
            best = max(expected.values())
            shortest = [moves.index(move) for move in engine_accepts(label, 0.0)]
            rows.append((puzzle.id, number, moves, [best - expected[move] for move in moves], shortest))
    return pd.DataFrame(rows, columns=["puzzle", "decision", "moves", "lost", "best"])


def make_baselines(config: Config) -> int:
    """Write the tables of ``evaluate.split``; those that are there already are left."""
    settings, folder = config.baselines, Path(config.outputs) / "data"
    puzzles = world.puzzles_of_split(config, config.evaluate.split)[: config.evaluate.max_puzzles]
    make_folder(folder, "outputs")
    which = [world.puzzle_hash(config), config.evaluate.split, config.evaluate.max_puzzles]
    searched = replace(engine_settings(config.engine), mode="depth")
    name = ""
    if settings.nodes or settings.quality:
        with Engine(searched) as engine:
            name = engine.identity
    played_by = [sorted(settings.nodes), name.split(" | ")[0], config.engine.hash_mb]
    path = folder / f"baselines-{config.evaluate.split}-{digest([*which, *played_by])}.parquet"
    if not path.exists():
        table = fact_table(puzzles)
        for nodes in sorted(settings.nodes):
            with Engine(searched) as engine:
                table[f"stockfish_{nodes}"] = engine_success(engine, puzzles, nodes)
        with written_beside(path) as temporary:
            table.to_parquet(temporary, compression="zstd", index=False)
    print(f"baselines: {path}", flush=True)
    if settings.quality:
        path = folder / f"move_quality-{config.evaluate.split}-{digest([*which, identity_of(config.engine), name])}.parquet"
        if not path.exists():
            labels, _ = engine_labels(config, puzzles)
            table = quality_table(puzzles, labels)
            with written_beside(path) as temporary:
                table.to_parquet(temporary, compression="zstd", index=False)
            print(f"baselines: {sum(label is None for label in labels.values()):,} positions could not be scored", flush=True)
        print(f"baselines: {path}", flush=True)
    return 0


if __name__ == "__main__":
    launch("baselines", make_baselines)
