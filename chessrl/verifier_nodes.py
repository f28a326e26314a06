"""How much verifier a policy needs: what Stockfish accepts, at several limits, of the answers that a policy would give, against the proven line.

Each evaluation holds ``policy.parquet`` (``evaluate.policy_traces``), so nothing is sampled: probabilities of a policy's answers are added up. An
answer is judged as the reward ``engine`` judges an episode: every move is the line's, a mate, or within ``delta`` of the best by the engine. It is
right when the line says so; a right answer is never refused by this reward, so its errors are false positives alone. ``recalled`` is what the
engine would accept of the right answers by itself.

``policy.parquet`` holds the probability of a move's canonical tokens, not of the ``<call_env>`` that an answer ends it with: each of the three is an
upper bound of the probability that the policy gives such an answer in canonical spelling, by the factor P(``<call_env>`` | move) a move.

Writes ``verdicts.parquet``, one row per policy (a run at a step), limit and puzzle, which ``python -m analysis.verifier_nodes`` reads.

Examples:
    python -m chessrl.verifier_nodes evaluations=outputs/rl-0123456789ab/evaluations/0123456789ab out=outputs/verifiers
    python -m chessrl.verifier_nodes evaluations=outputs/rl-0123456789ab/evaluations/0123456789ab out=outputs/verifiers depths=2
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from chessrl.checkpoint import written_beside
from chessrl.command import parse_settings, run_command
from chessrl.config import EngineConfig
from chessrl.endgame import PACK, PUZZLES_FILE
from chessrl.engine import Engine
from chessrl.engine_labels import accepted_moves, position_key
from chessrl.environment import solver_decisions
from chessrl.errors import UserError, make_folder
from chessrl.puzzles import Puzzle, load_puzzles
from chessrl.verifier import engine_settings

VERDICT_COLUMNS = ("policy", "stage", "step", "mode", "limit", "puzzle", "bin", "right", "accepted", "recalled")
POLICY_FILE = "policy.parquet"


@dataclass(frozen=True, slots=True)
class NodesSettings:
    """Keys of the command."""

    evaluations: tuple[str, ...]  # evaluation folders with policy.parquet (evaluate.policy_traces)
    out: str  # folder for verdicts.parquet and the labels
    nodes: tuple[str, ...] = ("1", "10", "100", "1000")  # limits of nodes per move, each move searched by itself
    depths: tuple[str, ...] = ("1", "2", "4", "8")  # limits in plies, all moves in one search
    puzzles: str = ""  # the puzzle table; empty: the packaged one
    max_puzzles: int = 0  # of each evaluation, the first by name; 0: all
    delta: float = 0.02  # a move within so much of the best expected score is accepted
    mate_slack: int = 0  # between mate scores, a mate at most so many moves longer than the shortest is accepted
    workers: int = 0  # engine processes; 0: one per core


Accepted = Mapping[str, Collection[str]]  # by position, UCI; a position that the engine could not score has none


def limits_of(settings: NodesSettings) -> list[EngineConfig]:
    """The engines to ask. Raises UserError on a limit that is no count."""
    found = []
    for key, mode, values in (("nodes", "searchmoves", settings.nodes), ("depths", "depth", settings.depths)):
        for value in values:
            if not value.isdigit() or int(value) < 1:
                raise UserError(f"{key}={value}: expected numbers of at least 1, with commas between")
            limit = {"nodes": int(value)} if mode == "searchmoves" else {"depth": int(value)}
            found.append(EngineConfig(mode=mode, delta=settings.delta, mate_slack=settings.mate_slack, workers=settings.workers, **limit))
    if not found:
        raise UserError("nodes and depths are both empty: give at least one limit of the engine")
    return found


def read_policy(folder: Path) -> pd.DataFrame:
    """The policy table of an evaluation, with its run's id as ``policy``. Raises UserError where there is none."""
    if not (folder / POLICY_FILE).is_file():
        raise UserError(f"{folder / POLICY_FILE}: no such file; evaluate the run with evaluate.policy_traces=1")
    labels = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    return pd.read_parquet(folder / POLICY_FILE).assign(policy=labels["run"])


def judged(puzzle: Puzzle, rows: pd.DataFrame, accepted: Accepted) -> tuple[float, float, float]:
    """(right, accepted, recalled): probabilities of the moves of one answer of the policy to the puzzle, averaged over its traces.

    They leave ``<call_env>`` out, and so are upper bounds of the probabilities of whole answers in canonical spelling.
    rows: of the policy table, all of this puzzle. An accepted move off the line, or the line's last, ends the episode; the line's goes on.
    """
    boards = [board for board, _, _ in solver_decisions(puzzle)]
    sums = np.zeros(3)
    traces = rows.groupby("trace")
    for _, of_trace in traces:
        reached, reached_by_engine = 1.0, 1.0
        for row in of_trace.sort_values("decision").itertuples():
            by_engine = accepted[position_key(boards[row.decision])]
            last = row.decision == len(boards) - 1
            for place, (move, logprob) in enumerate(zip(row.moves, row.logprobs)):
                solving, passes = place in row.solving, move in by_engine
                if place == row.solution and not last:
                    going_on = float(np.exp(logprob))
                elif solving or passes:
                    sums += np.exp(logprob) * np.array([reached * solving, reached, reached_by_engine * (solving and passes)])
            if not last:
                line_passes = row.moves[row.solution] in by_engine
                reached, reached_by_engine = reached * going_on, reached_by_engine * going_on * line_passes
    right, accepts, recalled = sums / len(traces)
    return right, accepts, recalled


def verdicts(policies: Sequence[pd.DataFrame], puzzles: Mapping[str, Puzzle], settings: NodesSettings, cache: Path) -> Iterator[pd.DataFrame]:
    """VERDICT_COLUMNS of each limit, for all policies; labels go to ``cache``, so that a command that was stopped finds them again."""
    boards = {position_key(board): board for puzzle in puzzles.values() for board, _, _ in solver_decisions(puzzle)}
    for limit in limits_of(settings):
        with Engine(engine_settings(limit), cache) as engine:
            labels = engine.label(list(boards.values()), progress=True)
            print(f"{engine.identity}; " + ", ".join(f"{name} {count:,}" for name, count in engine.counts.items()), flush=True)
        accepted = {
            key: set() if label is None else set(accepted_moves(label, limit.delta, limit.mate_slack)) for key, label in zip(boards, labels)
        }
        place = {"mode": limit.mode, "limit": limit.nodes if limit.mode == "searchmoves" else limit.depth}
        rows = [
            {"policy": first.policy, "stage": first.stage, "step": first.step, **place, "puzzle": name, "bin": first.bin}
            | dict(zip(("right", "accepted", "recalled"), judged(puzzles[name], rows, accepted)))
            for table in policies
            for name, rows in table.groupby("puzzle")
            for first in [rows.iloc[0]]
        ]
        yield pd.DataFrame(rows, columns=list(VERDICT_COLUMNS))


def main(arguments: list[str]) -> None:
    settings = parse_settings(NodesSettings, arguments)
    tables = [read_policy(Path(folder)) for folder in settings.evaluations]
    names = sorted(set.intersection(*(set(table["puzzle"]) for table in tables)))[: settings.max_puzzles or None]
    known = {puzzle.id: puzzle for puzzle in load_puzzles(Path(settings.puzzles) if settings.puzzles else PACK / PUZZLES_FILE)}
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"puzzle {unknown[0]} of {settings.evaluations[0]} is not in the puzzle table: give the table of its world as puzzles=")
    if not names:
        raise UserError("evaluations: they have no puzzle in common; evaluate the policies on one split")
    out = make_folder(Path(settings.out), "out")
    chosen = [table[table["puzzle"].isin(names)] for table in tables]
    table = pd.concat(verdicts(chosen, {name: known[name] for name in names}, settings, out / "engine_labels.sqlite"), ignore_index=True)
    with written_beside(out / "verdicts.parquet") as temporary:
        table.to_parquet(temporary, compression="zstd", index=False)
    shown = table.groupby(["policy", "step", "mode", "limit"])[["right", "accepted", "recalled"]].mean()
    print(shown.to_string(float_format=lambda value: f"{value:.4f}"))
    print(f"{len(names):,} puzzles -> {out / 'verdicts.parquet'}")


if __name__ == "__main__":
    sys.exit(run_command(main))
