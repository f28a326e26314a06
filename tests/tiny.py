"""The stages at a size that trains in seconds, for tests of what goes on around the training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from chessrl import evaluate
from chessrl.config import Config
from chessrl.launch import compose
from chessrl.run import Run
from chessrl.training import run_stage
from pretrain import train as pretrain
from rl import train as rl
from sft import train as sft

STAGES = {"pretrain": pretrain, "sft": sft, "rl": rl}
MODEL = ["model.name=tiny", "model.layers=2", "model.hidden=32", "model.ffn=48", "model.heads=2", "model.kv_heads=1", "model.head_dim=16"]
# Enough fine-tuning that some episodes of RL are well formed and some are not: groups of equal rewards would leave RL without a gradient.
SIZES = [
    *("run.device=cpu", "world.max_games=300", "pretrain.tokens=20000", "pretrain.batch_tokens=2000", "pretrain.optimizer.lr=0.01"),
    *("sft.max_puzzles=60", "sft.epochs=20", "sft.batch_tokens=400", "sft.optimizer.lr=0.01", "sft.validation_puzzles=8"),
    *("rl.bins=[B1]", "rl.steps=6", "rl.prompts=4", "algorithm.group=8", "rl.optimizer.lr=0.001", "+reward.weights.format=0.5"),
]


def config(command: str, outputs: Path, *overrides: str) -> Config:
    """The toy experiment, smaller still."""
    return compose(command, ["experiment=toy", *MODEL, *SIZES, f"outputs={outputs}", *overrides])


def start(stage: str, settings: Config) -> tuple[int, Path]:
    """Run a stage in this process; its exit status and run directory."""
    identity = STAGES[stage].identity(settings)
    directory = Run(stage, settings, identity).directory
    return run_stage(stage, settings, identity, STAGES[stage].train), directory


def run_all(outputs: Path) -> dict[str, Path]:
    """The three stages one after another; their run directories."""
    directories: dict[str, Path] = {}
    parent: list[str] = []
    for stage in STAGES:
        status, directories[stage] = start(stage, config(stage, outputs, *parent))
        assert status == 0
        parent = [f"parent={directories[stage]}"]
    return directories


def share_data(outputs: Path, runs: dict[str, Path]) -> Path:
    """``outputs`` with the corpus of ``runs`` copied into it, so that it need not be built again."""
    shutil.copytree(runs["pretrain"].parent / "data", outputs / "data")
    return outputs


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what derives from a clock."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines]


def seed_of(directory: Path) -> int:
    """``pretrain.seed`` of a run."""
    return OmegaConf.load(directory / "config.yaml").pretrain.seed


def evaluation_folder(settings: Config) -> Path:
    """Where the evaluation goes, of settings as a command line gives them."""
    evaluate.resolve(settings)
    return evaluate.evaluation_folder(settings)
