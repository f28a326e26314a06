"""Run folders of a sweep made from a stated law, for tests of what reads sweeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from chessrl.statistics import LABELS, PASSK_COLUMNS, RATES_COLUMNS

PUZZLES = 40
STEPS = (2, 4, 8, 16, 32)
FLOPS_PER_STEP = 1e9  # of a run of one million parameters; in proportion to the size


def loss_of(parameters: float, tokens: float) -> float:
    """L of a cell."""
    return 0.4 + 40 / parameters**0.4 + 900 / tokens**0.6


def reward_of(parameters: float, tokens: float, spent: float) -> float:
    """R of a cell after ``spent`` FLOPs of RL: a line in L, and a slope that grows with T; 0.05 before RL."""
    if spent == 0:
        return 0.05
    return 0.9 - 0.5 * loss_of(parameters, tokens) + 0.02 * np.log10(tokens / 1e5) * np.log10(spent / 1e10)


def success_of(reward: float) -> np.ndarray:
    """(PUZZLES,) probabilities of this mean, the first half of the puzzles easier than the second."""
    spread = min(reward, 1 - reward) / 2
    return reward + spread * np.where(np.arange(PUZZLES) < PUZZLES // 2, 1.0, -1.0)


def write_run(folder: Path, stage: str, parent: Path | None, summary: dict, metrics: list[dict]) -> None:
    """The files of a completed run that analyses read."""
    folder.mkdir(parents=True)
    (folder / "status.json").write_text(json.dumps({"state": "completed", "code": "test"}))
    (folder / "config.yaml").write_text(f"model: {{name: toy}}\nparent: {parent or ''}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    run = {"stage": stage, "run_id": folder.name, "parents": {} if parent is None else {"parent": parent.name}, "tokens": 0, "flops": 0}
    (folder / "summary.json").write_text(json.dumps(run | summary))


def write_evaluation(run: Path, step: int, success: np.ndarray, samples: int = 4) -> None:
    """An evaluation with exact success, and samples of which the share nearest to it is solved."""
    folder = run / "evaluations" / f"step{step}"
    folder.mkdir(parents=True)
    labels = dict.fromkeys(LABELS, 0) | {"run": run.name, "stage": run.name.partition("-")[0], "step": step, "split": "test", "protocol": "answer",
              "spelling": "lenient", "verifier": "line", "temperature": 1.0}  # fmt: skip
    (folder / "evaluation.json").write_text(json.dumps(labels | {"n_puzzles": len(success), "n_samples": samples}))
    puzzles = [f"p{number:03d}" for number in range(len(success))]
    bins = ["B1" if number < len(success) // 2 else "B2" for number in range(len(success))]
    exact = pd.DataFrame({"puzzle": puzzles, "split": "test", "bin": bins, "decisions": 1, "p": success})
    exact.iloc[::-1].to_parquet(folder / "exact.parquet")  # in an order of its own: readers go by the puzzle's name
    solved = np.arange(samples) < np.round(success * samples)[:, None]
    pd.DataFrame(
        {"puzzle": np.repeat(puzzles, samples), "bin": np.repeat(bins, samples), "sample": np.tile(np.arange(samples), len(success)),
         "solved": solved.ravel()}
    ).to_parquet(folder / "samples.parquet")  # fmt: skip
    pd.DataFrame(columns=list(PASSK_COLUMNS)).to_csv(folder / "passk.csv", index=False)
    pd.DataFrame(columns=list(RATES_COLUMNS)).to_csv(folder / "rates.csv", index=False)


def make_sweep(outputs: Path, sizes: tuple[float, ...], budgets: tuple[float, ...]) -> Path:
    """Pretraining, fine-tuning and RL of every pair of size and budget, all evaluated; the folder."""
    for size in sizes:
        for tokens in budgets:
            name = f"{size:.0f}x{tokens:.0f}"
            pretrain, sft, rl = (outputs / f"{stage}-{name}" for stage in ("pretrain", "sft", "rl"))
            parameters = {"parameters": {"total": size * 1.1, "without_embeddings": size}}
            last = {"step": 1, "tokens": tokens, "flops": 6 * size * tokens}
            write_run(pretrain, "pretrain", None, parameters | {"validation/loss": loss_of(size, tokens)}, [last])
            write_run(sft, "sft", pretrain, parameters, [{"step": 9, "tokens": 10, "flops": 0.0}])
            write_evaluation(sft, 9, success_of(reward_of(size, tokens, 0)))
            spent = {step: FLOPS_PER_STEP * step * size / 1e6 for step in range(1, STEPS[-1] + 1)}
            write_run(rl, "rl", sft, parameters, [{"step": step, "tokens": step, "flops": flops} for step, flops in spent.items()])
            for step in STEPS:
                write_evaluation(rl, step, success_of(reward_of(size, tokens, spent[step])))
    return outputs
