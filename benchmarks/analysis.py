"""How long the report takes on made-up evaluations of full size, and how much memory.

Writes run directories of one pretrained, one fine-tuned and ``checkpoints - 2`` RL policies, each with ``policy.parquet`` (decisions x traces rows a
puzzle) and ``samples.parquet`` (traces samples a puzzle), and times ``python -m analysis`` on them.
"""

from __future__ import annotations

import functools
import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet

from benchmarks.measure import Row, figure, timed_children
from chessrl import endgame
from chessrl.environment import solver_decisions
from chessrl.errors import make_folder
from chessrl.puzzles import Puzzle, load_puzzles
from chessrl.statistics import FAILURES, passk_table, rates_table

CONFIG = "world: {name: endgame}\nrl: {bins: []}\nalgorithm: {epochs: 1, minibatches: 1}\n"


@dataclass(frozen=True, slots=True)
class Size:
    """Of the evaluations: the first puzzles of the endgame pack's test split, and traces of each."""

    puzzles: int = 1480
    traces: int = 128
    checkpoints: int = 6


def write_policy(path: Path, size: Size, seed: int) -> None:
    """Policies over the legal moves: a start that all checkpoints share, a change of each checkpoint, and one of each trace."""
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    states = decisions(size.puzzles)
    counts = np.array([len(state.moves) for state in states])
    flat = []
    for count in counts:
        scores = shared.normal(0, 2, count) + own.normal(0, 0.5, count) + own.normal(0, 0.7, (size.traces, count))
        scores -= np.log(np.exp(scores).sum(1, keepdims=True)) + 0.1
        flat.append(scores.astype(np.float32).ravel())
    rows = len(states) * size.traces
    ends = np.append(0, np.cumsum(np.repeat(counts, size.traces))).astype(np.int32)
    solving = np.repeat([state.solution for state in states], size.traces)
    table = {
        "puzzle": np.repeat([state.puzzle.id for state in states], size.traces),
        "bin": np.repeat([state.puzzle.bin for state in states], size.traces),
        "decision": np.repeat([state.number for state in states], size.traces),
        "trace": np.tile(np.arange(size.traces), len(states)),
        "moves": pa.ListArray.from_arrays(ends, pa.array([move for state in states for move in state.moves * size.traces])),
        "logprobs": pa.ListArray.from_arrays(ends, np.concatenate(flat)),
        "solution": solving,
        "solving": pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), solving),
    }
    parquet.write_table(pa.table(table), path, compression="zstd")


@dataclass(frozen=True, slots=True)
class State:
    """One decision of a puzzle: its legal moves (UCI) and the place of the solution's among them."""

    puzzle: Puzzle
    number: int
    moves: list[str]
    solution: int


def decisions(puzzles: int) -> list[State]:
    """Those of the first puzzles."""
    states = []
    for puzzle in packaged()[:puzzles]:
        for number, (board, solution, _) in enumerate(solver_decisions(puzzle)):
            moves = [move.uci() for move in board.legal_moves]
            states.append(State(puzzle, number, moves, moves.index(solution.uci())))
    return states


@functools.cache
def packaged() -> list[Puzzle]:
    """The endgame pack's test puzzles: the explorer looks them up."""
    return load_puzzles(endgame.PACK / endgame.PUZZLES_FILE, "test")


def puzzle_names(puzzles: int) -> list[str]:
    return [puzzle.id for puzzle in packaged()[:puzzles]]


def bins(puzzles: int) -> list[str]:
    return [puzzle.bin for puzzle in packaged()[:puzzles]]


def samples_table(size: Size, skill: float, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    chance = rng.beta(2 * skill + 0.1, 2 * (1 - skill), size.puzzles)[:, None]
    solved = (rng.random((size.puzzles, size.traces)) < chance).ravel()
    failure = np.where(solved, "", rng.choice(FAILURES[:2], solved.size))
    answers = np.array([f"K e1 {file}{rank}" for file in "abc" for rank in range(1, 5)])
    return pd.DataFrame(
        {
            "puzzle": np.repeat(puzzle_names(size.puzzles), size.traces), "split": "test",
            "bin": np.repeat(bins(size.puzzles), size.traces), "sample": np.tile(np.arange(size.traces), size.puzzles),
            "tokens": 30, "solved": solved, "solved_strict": solved, "solved_by_line": solved, "failure": failure,
            "answer": np.where(solved, "Q d1 h5 +", answers[rng.integers(0, len(answers), solved.size)]), "legal": failure != "illegal",
            "format": True, "truncated": False, "trace_length": 24, "answer_length": 6, "logprob": -5.0, "entropy": 0.5,
        }
    )  # fmt: skip


def write_evaluation(run: Path, size: Size, stage: str, step: int, seed: int) -> None:
    folder = run / "evaluations" / f"step{step}"
    folder.mkdir(parents=True, exist_ok=True)
    labels = {
        "run": run.name, "stage": stage, "step": step, "split": "test", "protocol": "think", "spelling": "lenient", "verifier": "line",
        "temperature": 1.0, "thinking_budget": 128, "seed": 0, "n_puzzles": size.puzzles, "n_samples": size.traces,
    }  # fmt: skip
    samples = samples_table(size, 0.1 + 0.1 * seed, seed)
    ks = [2**power for power in range(8) if 2**power <= size.traces]
    (folder / "evaluation.json").write_text(json.dumps(labels))
    samples.to_parquet(folder / "samples.parquet", compression="zstd")
    passk_table(samples, ks, labels, 0).to_csv(folder / "passk.csv", index=False)
    rates_table(samples, labels, 0).to_csv(folder / "rates.csv", index=False)
    write_policy(folder / "policy.parquet", size, seed)


def write_run(outputs: Path, stage: str, parents: dict[str, str]) -> Path:
    run = outputs / f"{stage}-0123456789ab"
    run.mkdir(parents=True, exist_ok=True)
    summary = {"stage": stage, "run_id": run.name, "parents": parents, "tokens": 10**6, "flops": 1e13}
    (run / "summary.json").write_text(json.dumps(summary | {"parameters": {"total": 10**6, "without_embeddings": 10**6}}))
    (run / "config.yaml").write_text(CONFIG)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens": 1000, "loss": 1.0, "reward": 0.5}) + "\n")
    return run


def report(out: Path, size: Size) -> list[Row]:
    """The runs are written to ``out`` and reported on once."""
    make_folder(out, "out")
    runs = [write_run(out, "pretrain", {})]
    runs.append(write_run(out, "sft", {"pretrain": runs[0].name}))
    runs.append(write_run(out, "rl", {"sft": runs[1].name}))
    for number in range(size.checkpoints):
        write_evaluation(runs[min(number, 2)], size, ("pretrain", "sft", "rl")[min(number, 2)], 100 * number, number)
    command = [sys.executable, "-m", "analysis", f"runs=[{','.join(map(str, runs))}]", f"outputs={out}"]
    lap = timed_children(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20  # KiB, of the largest child so far
    rows = len(decisions(size.puzzles)) * size.traces * size.checkpoints
    part = f"report, {rows:,} rows of policies"
    return [Row(part, "python -m analysis", "s", lap.wall_s, lap.wall_s, lap.wall_s, lap.processor_s), figure(part, "peak memory", "GiB", peak)]
