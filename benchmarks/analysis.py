"""How long the report takes on made-up evaluations of full size, and how much memory.

Writes run directories of one pretrained, one fine-tuned and ``checkpoints - 2`` RL policies, each with ``policy.parquet`` (decisions x traces rows a
puzzle) and ``samples.parquet`` (traces samples a puzzle), and times ``python -m analysis`` on them. Wall time says little where other processes share
the cores: the processor time is printed beside it.

Examples:
    python -m benchmarks.analysis out=outputs/benchmarks
    python -m benchmarks.analysis out=outputs/benchmarks puzzles=200 traces=16
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet

from chessrl.command import parse_settings, run_command
from chessrl.errors import make_folder
from chessrl.statistics import FAILURES, passk_table, rates_table

CONFIG = "world: {name: endgame}\nrl: {bins: []}\nalgorithm: {epochs: 1, minibatches: 1}\n"


@dataclass(frozen=True, slots=True)
class BenchmarkSettings:
    """Keys of the command."""

    out: str  # folder for the made-up runs and their report
    puzzles: int = 1480  # of the evaluations
    traces: int = 128  # of every puzzle
    checkpoints: int = 6  # policies in all: one pretrained, one fine-tuned, the rest RL
    decisions: int = 2  # solver moves of every puzzle


def write_policy(path: Path, settings: BenchmarkSettings, seed: int) -> None:
    """Policies over 8 to 47 moves: a start that all checkpoints share, a change of each checkpoint, and one of each trace."""
    shared, own = np.random.default_rng(0), np.random.default_rng(seed)
    states = settings.puzzles * settings.decisions
    counts = shared.integers(8, 48, states)
    solving = np.repeat(shared.integers(0, 8, states), settings.traces)
    flat = []
    for count in counts:
        scores = shared.normal(0, 2, count) + own.normal(0, 0.5, count) + own.normal(0, 0.7, (settings.traces, count))
        scores -= np.log(np.exp(scores).sum(1, keepdims=True)) + 0.1
        flat.append(scores.astype(np.float32).ravel())
    lengths = np.repeat(counts, settings.traces)
    ends = np.append(0, np.cumsum(lengths)).astype(np.int32)
    names = pa.array([f"{file}{rank}" for file in "abcdef" for rank in range(1, 9)])
    moves = pa.DictionaryArray.from_arrays(np.concatenate([np.arange(length, dtype=np.int16) for length in lengths]), names).dictionary_decode()
    puzzle = np.repeat(np.arange(states) // settings.decisions, settings.traces)
    table = {
        "puzzle": np.array(puzzle_names(settings.puzzles))[puzzle],
        "bin": np.array(bins(settings.puzzles))[puzzle],
        "decision": np.repeat(np.arange(states) % settings.decisions, settings.traces),
        "trace": np.tile(np.arange(settings.traces), states),
        "moves": pa.ListArray.from_arrays(ends, moves),
        "logprobs": pa.ListArray.from_arrays(ends, np.concatenate(flat)),
        "solving": pa.ListArray.from_arrays(np.arange(len(lengths) + 1, dtype=np.int32), solving),
    }
    parquet.write_table(pa.table(table), path, compression="zstd")


def puzzle_names(puzzles: int) -> list[str]:
    return [f"p{number:05d}" for number in range(puzzles)]


def bins(puzzles: int) -> list[str]:
    return [f"B{number % 5 + 1}" for number in range(puzzles)]


def samples_table(settings: BenchmarkSettings, skill: float, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    chance = rng.beta(2 * skill + 0.1, 2 * (1 - skill), settings.puzzles)[:, None]
    solved = (rng.random((settings.puzzles, settings.traces)) < chance).ravel()
    failure = np.where(solved, "", rng.choice(FAILURES[:2], solved.size))
    answers = np.array([f"K e1 {file}{rank}" for file in "abc" for rank in range(1, 5)])
    return pd.DataFrame(
        {
            "puzzle": np.repeat(puzzle_names(settings.puzzles), settings.traces), "split": "test",
            "bin": np.repeat(bins(settings.puzzles), settings.traces), "sample": np.tile(np.arange(settings.traces), settings.puzzles),
            "tokens": 30, "solved": solved, "solved_strict": solved, "solved_by_line": solved, "failure": failure,
            "answer": np.where(solved, "Q d1 h5 +", answers[rng.integers(0, len(answers), solved.size)]), "legal": failure != "illegal",
            "format": True, "truncated": False, "trace_length": 24, "answer_length": 6, "logprob": -5.0, "entropy": 0.5,
        }
    )  # fmt: skip


def write_evaluation(run: Path, settings: BenchmarkSettings, stage: str, step: int, seed: int) -> None:
    folder = run / "evaluations" / f"step{step}"
    folder.mkdir(parents=True, exist_ok=True)
    labels = {
        "run": run.name, "stage": stage, "step": step, "split": "test", "protocol": "think", "spelling": "lenient", "verifier": "line",
        "temperature": 1.0, "thinking_budget": 128, "seed": 0, "n_puzzles": settings.puzzles, "n_samples": settings.traces,
    }  # fmt: skip
    samples = samples_table(settings, 0.1 + 0.1 * seed, seed)
    ks = [2**power for power in range(8) if 2**power <= settings.traces]
    (folder / "evaluation.json").write_text(json.dumps(labels))
    samples.to_parquet(folder / "samples.parquet", compression="zstd")
    passk_table(samples, ks, labels, 0).to_csv(folder / "passk.csv", index=False)
    rates_table(samples, labels, 0).to_csv(folder / "rates.csv", index=False)
    write_policy(folder / "policy.parquet", settings, seed)


def write_run(outputs: Path, stage: str, parents: dict[str, str]) -> Path:
    run = outputs / f"{stage}-0123456789ab"
    run.mkdir(parents=True, exist_ok=True)
    summary = {"stage": stage, "run_id": run.name, "parents": parents, "tokens": 10**6, "flops": 1e13}
    (run / "summary.json").write_text(json.dumps(summary | {"parameters": {"total": 10**6, "without_embeddings": 10**6}}))
    (run / "config.yaml").write_text(CONFIG)
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "tokens": 1000, "loss": 1.0, "reward": 0.5}) + "\n")
    return run


def main(arguments: list[str]) -> None:
    settings = parse_settings(BenchmarkSettings, arguments)
    out = Path(settings.out)
    make_folder(out, "out")
    runs = [write_run(out, "pretrain", {})]
    runs.append(write_run(out, "sft", {"pretrain": runs[0].name}))
    runs.append(write_run(out, "rl", {"sft": runs[1].name}))
    for number in range(settings.checkpoints):
        write_evaluation(runs[min(number, 2)], settings, ("pretrain", "sft", "rl")[min(number, 2)], 100 * number, number)
    begun = time.perf_counter()
    command = [sys.executable, "-m", "analysis", f"runs=[{','.join(map(str, runs))}]", f"outputs={out}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, used = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    rows = settings.puzzles * settings.decisions * settings.traces * settings.checkpoints
    sizes = f"{settings.puzzles:,} puzzles x {settings.decisions} decisions x {settings.traces} traces x {settings.checkpoints} checkpoints"
    print(f"{sizes}: {rows:,} rows")
    print(f"python -m analysis: {wall:.1f} s of wall time, {used.ru_utime + used.ru_stime:.1f} s of processor time, {used.ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    sys.exit(run_command(main))
