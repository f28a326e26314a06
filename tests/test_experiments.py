"""Every preset experiment, its own settings kept, carried out at toy size: pretraining, fine-tuning and RL."""

from __future__ import annotations

import json
from pathlib import Path

import hydra
import pytest

from chessrl.launch import CONF, compose
from tests import tiny

ALL_EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
TABULAR = [name for name in ALL_EXPERIMENTS if compose("chessrl", [f"experiment={name}"]).pipeline.stages == ["tabular"]]  # see test_tabular_studies
# shallow_verifier labels thousands of positions: tests/test_curricula_and_verifiers.py runs it on a few puzzles
EXPERIMENTS = [name for name in ALL_EXPERIMENTS if name not in (*TABULAR, "shallow_verifier")]
# What makes a run small; everything else is the experiment's. Lichess experiments play on the packaged world here, since a test has no dump.
SMALL = [
    *("world=endgame", "world.state=snapshot", "world.max_games=300", "world.context=128", "run.device=cpu"),
    *("pretrain.tokens=6000", "pretrain.batch_tokens=2000", "pretrain.validation_games=20"),
    *("sft.max_puzzles=30", "sft.epochs=1", "sft.batch_tokens=1000", "sft.validation_puzzles=8"),
    *("sft.trace.candidates=2", "sft.trace.continuations_max=2", "sft.trace.length_max=3"),
    *("rl.steps=1", "rl.bins=[B1]", "rl.prompts=4", "algorithm.group=2", "rl.thinking_budget=24", "rl.validation_puzzles=4"),
]
# rl.steps and pretrain.tokens give way to a budget: about 10,000 tokens of pretraining and as much again of RL for the tiny model.
BUDGETS = {
    "shen2026": ["budget.flops=2e9", "budget.alpha=0.4"],
    "traces": ["sft.tokens=3000"],
    "spurious_rewards": ["sft.tokens=3000", "algorithm.minibatches=2", "reward=random"],
    "six_algorithms": ["sft.tokens=3000", "algorithm=dapo"],
}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_runs_at_toy_size(experiment, tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    parent: list[str] = []
    for stage in compose("chessrl", [f"experiment={experiment}"]).pipeline.stages:
        overrides = [f"experiment={experiment}", *tiny.MODEL, *SMALL, *BUDGETS.get(experiment, []), f"outputs={outputs}", *parent]
        status, directory = tiny.start(stage, compose(stage, overrides))
        assert status == 0
        parent = [f"parent={directory}"]
    summary = json.loads((Path(directory) / "summary.json").read_text())
    assert summary["flops"] > 0 and summary["stage"] == stage


SWEEPS = ["shen2026", "learning_rates", "traces", "noisy_verifier", "shallow_verifier", "curriculum", "spurious_rewards", "six_algorithms"]


@pytest.mark.parametrize("experiment", SWEEPS)
def test_every_value_that_an_experiment_sweeps_composes(experiment):
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        params = hydra.compose("chessrl", [f"experiment={experiment}"], return_hydra_config=True).hydra.sweeper.params
    assert params
    for key, values in params.items():
        for value in str(values).split(","):
            assert compose("chessrl", [f"experiment={experiment}", f"{key}={value}"])


def test_the_papers_settings():
    config = compose("chessrl", ["experiment=shen2026"])
    assert (config.sft.optimizer.lr, config.sft.epochs, config.sft.batch_tokens) == (3e-4, 3, 524_288)
    assert config.sft.optimizer.lr * config.sft.optimizer.min_lr_ratio == pytest.approx(1e-5)
    assert (config.rl.optimizer.lr, config.rl.prompts, config.algorithm.group, config.algorithm.beta) == (1e-5, 256, 8, 0.001)
    assert config.algorithm.epochs * config.algorithm.minibatches == 1, "one update per rollout"
    assert (config.pretrain.optimizer.lr, config.pretrain.optimizer.min_lr_ratio, config.pretrain.batch_tokens) == (1e-3, 0.1, 524_288)
    assert (config.world.state, config.world.context, config.world.sft_puzzles, config.world.test_puzzles) == ("history", 1024, 42_000, 1480)


def test_six_algorithms_differ_in_nothing_but_the_algorithm():
    configs = [compose("rl", ["experiment=six_algorithms", f"algorithm={name}"]) for name in ("grpo", "ppo", "remax", "rloo", "reinforce_pp", "dapo")]
    shared = {(c.algorithm.group, c.algorithm.minibatches, c.algorithm.epochs, c.algorithm.beta, c.rl.prompts, c.rl.steps) for c in configs}
    assert shared == {(8, 1, 1, 0.0, 16, 30)}, "a preset's own group size or updates per rollout would be compared instead"
    assert len({(c.algorithm.advantage, c.algorithm.baseline, c.algorithm.sampling) for c in configs}) == 6
