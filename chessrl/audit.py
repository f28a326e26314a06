"""The verifier audit: what several verifiers say of one policy's answers, and an oracle beside them (after arXiv 2505.22203).

``python -m chessrl.audit parent=RUN evaluate.split=validation``: a folder below ``RUN/audits`` with ``verdicts.parquet`` (one row per puzzle and
sample), ``puzzles.parquet`` (what was asked), ``alternatives.parquet`` (moves accepted beside the line's), ``attacks.parquet`` and ``audit.json``.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import chess
import pandas as pd
import torch

from chessrl import notation, world
from chessrl.attacks import ATTACKS, attack_table
from chessrl.checkpoint import load_model, replace_folder, write_json
from chessrl.config import Config
from chessrl.engine_labels import accepted_moves as engine_moves
from chessrl.engine_labels import position_key
from chessrl.environment import Environment, build_environment, solver_decisions
from chessrl.errors import UserError
from chessrl.evaluate import model_folder, resolve
from chessrl.launch import launch
from chessrl.lock import Lock
from chessrl.puzzles import Puzzle, accepted_moves, prompt_tokens
from chessrl.run import digest, identity_of, leak_of, resolve_device
from chessrl.sampler import OUTCOMES, Rollout, SamplingSettings, rollout
from chessrl.verifier import engine_identity, engine_labels

LINE_ONLY, LINE = "line_only", "line"  # the line's moves alone; those and mates, which is the environment's rule


@dataclass(frozen=True, slots=True)
class Judge:
    """Moves (UCI) that a verifier accepts at a position, by ``position_key``; None where it cannot tell of any but the ``certain`` ones."""

    name: str
    accepted: Mapping[str, frozenset[str] | None]
    certain: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def says(self, board: chess.Board, move: chess.Move) -> bool | None:
        key = position_key(board)
        if move.uci() in self.certain.get(key, ()):
            return True
        accepted = self.accepted[key]
        return None if accepted is None else move.uci() in accepted


def engine_judge(config: Config, puzzles: Sequence[Puzzle], name: str, depth: int, nodes: int) -> tuple[Judge, str]:
    """The engine at a depth as a judge, by ``engine.delta``, and its identity. It alone decides: the line's move may be refused."""
    judged = replace(config, engine=replace(config.engine, mode="depth", depth=depth, nodes=nodes))
    labels, identity = engine_labels(judged, puzzles)
    delta, slack = config.engine.delta, config.engine.mate_slack
    accepted = {key: None if label is None else frozenset(engine_moves(label, delta, slack)) for key, label in labels.items()}
    return Judge(name, accepted), identity


def proof_judge(puzzles: Sequence[Puzzle]) -> Judge:
    """The moves that a puzzle's making has proven to be right: the line's, and every mate. For a world whose other moves are proven to be worse."""
    decisions = [decision for puzzle in puzzles for decision in solver_decisions(puzzle)]
    return Judge("oracle", {position_key(board): frozenset(move.uci() for move in accepted_moves(board, line)) for board, line, _ in decisions})


def reward_judge(name: str, engine: Judge, puzzles: Sequence[Puzzle]) -> Judge:
    """What the reward ``engine`` pays: the line's moves, mates, and what the engine accepts."""
    certain = proof_judge(puzzles).accepted
    return Judge(name, {key: None if moves is None else moves | certain[key] for key, moves in engine.accepted.items()}, certain)


def played_moves(result: Rollout, row: int, puzzle: Puzzle, protocol: str) -> list[chess.Move]:
    """The legal solver moves of an episode, the last of which may be wrong.

    The policy's tokens after its trace come in runs, each a move, which forced replies part.
    """
    start = int(result.trace_lengths[row]) + 1 if protocol == "think" else 0
    runs: list[list[int]] = [[]]
    for token, sampled in zip(result.tokens[row, start:].tolist(), result.policy[row, start:].tolist()):
        if sampled:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    moves = []
    for run, (board, line_move, _) in zip(runs, solver_decisions(puzzle)):
        closed = run[:-1] if run and run[-1] == notation.CALL_ENV else run
        try:
            moves.append(notation.parse_move(board, closed, strict=False))
        except notation.NotationError:
            break
        if moves[-1] != line_move:
            break
    return moves


def verdict_of_episode(judge: Judge, puzzle: Puzzle, moves: Sequence[chess.Move], judged: bool, finished: bool) -> bool | None:
    """Whether the judge accepts every move of an episode; None where it cannot tell of one.

    An episode is right or wrong at its first move off the line. ``judged``: it came to an end that can be judged, solved or a legal wrong move;
    ``finished``: all of its moves passed the environment. One that broke off is wrong for every judge.
    """
    if not judged or not moves:
        return False
    decisions = solver_decisions(puzzle)
    off_line = moves[-1] != decisions[len(moves) - 1][1]
    if not off_line and not finished:
        return False
    said = [judge.says(board, move) for (board, _, _), move in zip(decisions, moves)]
    return False if False in said else None if None in said else True


def verdicts(result: Rollout, puzzles: Sequence[Puzzle], protocol: str, judges: Sequence[Judge], first_sample: int, samples: int) -> pd.DataFrame:
    """One row per episode: puzzle, split, bin, sample, failure, moves (legal solver moves as UCI words), the rules' verdicts, then the judges'."""
    rows = []
    for row, (place, code) in enumerate(zip(result.puzzles.tolist(), result.outcome.tolist())):
        puzzle, outcome = puzzles[place], OUTCOMES[code]
        moves = played_moves(result, row, puzzle, protocol)
        line = [line_move for _, line_move, _ in solver_decisions(puzzle)]
        judged = outcome in ("solved", "wrong")
        rows.append(
            {
                "puzzle": puzzle.id, "split": puzzle.split, "bin": puzzle.bin, "sample": first_sample + row % samples,
                "failure": "" if outcome == "solved" else outcome, "moves": " ".join(move.uci() for move in moves),
                "legal": bool(result.legal[row]), "format": bool(result.well_formed[row]),
                LINE_ONLY: outcome == "solved" and moves == line, LINE: outcome == "solved",
                **{judge.name: verdict_of_episode(judge, puzzle, moves, judged, outcome == "solved") for judge in judges},
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def alternatives(puzzles: Sequence[Puzzle], judges: Sequence[Judge]) -> pd.DataFrame:
    """One row per puzzle and judge: decisions, those with an accepted move beside the line's, those whose line move it refuses, untold ones."""
    rows = []
    for puzzle in puzzles:
        decisions = [(board, line.uci()) for board, line, _ in solver_decisions(puzzle)]
        mates = Judge(LINE, {position_key(board): frozenset(move.uci() for move in accepted_moves(board, line)) for board, line in decisions})
        for judge in (mates, *judges):
            accepted = [judge.accepted[position_key(board)] for board, _ in decisions]
            told = [(moves, line) for moves, (_, line) in zip(accepted, decisions) if moves is not None]
            counts = (sum(bool(moves - {line}) for moves, line in told), sum(line not in moves for moves, line in told))
            rows.append((puzzle.id, puzzle.bin, judge.name, len(decisions), *counts, len(decisions) - len(told)))
    return pd.DataFrame(rows, columns=["puzzle", "bin", "verifier", "decisions", "with_alternative", "line_refused", "untold"])


# ---- command ----------------------------------------------------------------------------------------------------------------------------


def audit_folder(config: Config, oracle: str) -> Path:
    """Where the audit of ``config.parent`` goes: its name hashes all that changes its numbers."""
    identity = {
        "judges": "line_or_engine",  # audits made before they had it are made again
        "audit": identity_of(config.audit) | {"oracle": oracle},
        "evaluate": identity_of(config.evaluate),
        "puzzles": world.puzzle_hash(config),
        "engine": engine_identity(config),
        "precision": config.run.precision,
        "device": resolve_device(config.run.device).type,
    }
    return Path(config.parent) / "audits" / digest(identity)


def audit(config: Config) -> int:
    """Audit the verifiers on the policy of the run ``parent``, unless it is done."""
    parent = resolve(config)
    oracle = config.audit.oracle
    if oracle == "auto":
        oracle = "proof" if config.world.name == "endgame" else "engine"
    if oracle == "proof" and config.world.name != "endgame":
        raise UserError("audit.oracle=proof: only the endgame world's puzzles are proven; use engine")
    folder = audit_folder(config, oracle)
    folder.parent.mkdir(exist_ok=True)
    with Lock(folder.with_name(f".{folder.name}.lock"), str(folder)):
        if (folder / "audit.json").exists():
            print(f"audit: {folder} is finished, skipped", flush=True)
            return 0
        _audit(config, parent, oracle, folder)
    print(f"audit: {folder}", flush=True)
    return 0


def judges_of(config: Config, puzzles: Sequence[Puzzle], oracle: str) -> tuple[list[Judge], dict[str, str]]:
    """The engine at each depth, alone and with the line, the deep engine and the proof, the last named ``oracle``; the engines' identities."""
    depths = [(f"engine_depth_{depth}", depth, config.engine.nodes) for depth in config.audit.depths]
    deep = ("deep_engine" if oracle == "proof" else "oracle", config.audit.oracle_depth, config.audit.oracle_nodes)
    judges, identities = [], {}
    for name, depth, nodes in (*depths, deep):
        judge, identities[name] = engine_judge(config, puzzles, name, depth, nodes)
        judges += [judge] if name == deep[0] else [judge, reward_judge(f"line_or_{name}", judge, puzzles)]
    return [*judges, *([proof_judge(puzzles)] if oracle == "proof" else [])], identities


def environments_of(puzzles: Sequence[Puzzle], judges: Sequence[Judge]) -> dict[str, Environment]:
    """The environments that pay by the line and by each judge but the oracle: an engine's lets pass the line's moves and mates as well."""
    built = {LINE: build_environment(puzzles)}
    for judge in judges[:-1]:
        built[judge.name] = build_environment(puzzles, {key: sorted(moves or ()) for key, moves in judge.accepted.items()})
    return built


def _audit(config: Config, parent: dict[str, Any], oracle: str, folder: Path) -> None:
    settings = config.evaluate
    puzzles = world.puzzles_of_split(config, settings.split)[: settings.max_puzzles]
    judges, identities = judges_of(config, puzzles, oracle)
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    model = load_model(model_folder(Path(config.parent), settings.step), precision=config.run.precision, device=resolve_device(config.run.device))
    sampling = SamplingSettings(
        settings.protocol, settings.temperature, settings.thinking_budget, settings.spelling, settings.seed, "audit",
        thinking=settings.thinking, thinking_minimum=settings.thinking_minimum,
    )  # fmt: skip
    environment = build_environment(puzzles).to(model.device)
    tables = []
    per_batch = max(1, settings.batch // settings.samples)
    for start in range(0, len(puzzles), per_batch):
        places = list(range(start, min(start + per_batch, len(puzzles))))
        prompts = [prompt_tokens(puzzles[place], config.world.state, think=settings.protocol == "think") for place in places]
        result = rollout(model, environment, places, prompts, settings.samples, sampling)
        tables.append(verdicts(result, puzzles, settings.protocol, judges, 0, settings.samples))
    oracle_judge = judges[-1]

    def accepted_by_oracle(board: chess.Board, line_move: chess.Move) -> list[chess.Move]:
        moves = oracle_judge.accepted[position_key(board)] or frozenset()
        return sorted({*map(chess.Move.from_uci, moves), *accepted_moves(board, line_move)}, key=chess.Move.uci)

    protocol = "think" if settings.protocol == "think" else "answer"
    scripted = SamplingSettings(protocol, 0.0, settings.thinking_budget)  # attacks end their traces themselves
    attacks = attack_table(puzzles, environments_of(puzzles, judges), accepted_by_oracle, scripted)
    record = {
        "run": parent["run_id"], "stage": parent["stage"], "step": settings.step or parent.get("step", 0),
        "split": settings.split, "protocol": settings.protocol,
        "temperature": settings.temperature, "seed": settings.seed, "n_puzzles": len(puzzles), "n_samples": settings.samples, "oracle": oracle,
        "verifiers": [LINE_ONLY, LINE, *(judge.name for judge in judges[:-1])], "engines": identities,
        "delta": config.engine.delta, "mate_slack": config.engine.mate_slack, "nodes": config.engine.nodes,
        "attacks": {name: text for name, text in ATTACKS.items() if name in set(attacks["attack"])},
    }  # fmt: skip
    write_audit(folder, pd.concat(tables, ignore_index=True), puzzles, alternatives(puzzles, judges), attacks, record | leak_of(parent))


def write_audit(
    folder: Path, table: pd.DataFrame, puzzles: Sequence[Puzzle], others: pd.DataFrame, attacks: pd.DataFrame, record: Mapping[str, Any]
) -> None:
    """Write the folder beside its place and move it there whole."""
    asked = {
        "puzzle": [puzzle.id for puzzle in puzzles],
        "bin": [puzzle.bin for puzzle in puzzles],
        "fen": [puzzle.board().fen() for puzzle in puzzles],
        "line": [" ".join(puzzle.moves[puzzle.lead :]) for puzzle in puzzles],
    }
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tables = {"verdicts": table, "puzzles": pd.DataFrame(asked), "alternatives": others, "attacks": attacks}
    for name, frame in tables.items():
        frame.to_parquet(temporary / f"{name}.parquet", compression="zstd", index=False)
    write_json(temporary / "audit.json", dict(record))
    replace_folder(temporary, folder)


if __name__ == "__main__":
    launch("audit", audit)
