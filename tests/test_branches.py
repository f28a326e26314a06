"""The wsd schedule, and that runs of several lengths which share its stable part end as if each had been trained alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chessrl.config import OptimizerConfig
from chessrl.training import learning_rate, stable_steps, warmup_steps
from tests import tiny

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
WSD = ["pretrain.optimizer.schedule=wsd", "pretrain.optimizer.warmup_steps=2", "pretrain.save_steps=[3]"]


def test_wsd_rises_stays_and_falls():
    config = OptimizerConfig(lr=2.0, min_lr_ratio=0.1, warmup_ratio=0.1, schedule="wsd", decay_ratio=0.2)
    assert (warmup_steps(config, 100), stable_steps(config, 100)) == (10, 80)
    rates = [learning_rate(config, step, 100) for step in range(1, 101)]
    assert rates[:10] == pytest.approx(np.linspace(0.2, 2.0, 10)) and set(rates[9:80]) == {2.0}
    assert rates[84] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))  # a quarter of the way down, 1 - sqrt is at a half
    assert rates[-1] == pytest.approx(0.2) and rates[80:] == sorted(rates[80:], reverse=True)


def test_wsd_where_warm_up_and_decay_leave_no_room_between_them():
    config = OptimizerConfig(lr=2.0, warmup_ratio=0.9, schedule="wsd", decay_ratio=0.5)
    rates = [learning_rate(config, step, 10) for step in range(1, 11)]
    assert rates[:9] == sorted(rates[:9]) and rates[9] == pytest.approx(0.2)
    assert learning_rate(OptimizerConfig(lr=2.0, schedule="wsd", decay_ratio=0.0), 10, 10) == 2.0


def test_warm_up_in_steps_goes_before_the_share():
    config = OptimizerConfig(lr=2.0, warmup_ratio=0.5, warmup_steps=4, schedule="constant")
    assert [learning_rate(config, step, 10) for step in (1, 4, 5)] == [0.5, 2.0, 2.0]
    assert learning_rate(config, 3, 3) == 2.0  # fewer steps than the warm-up asks for


def run_of(outputs: Path, tokens: int, *overrides: str) -> Path:
    status, directory = tiny.start("pretrain", tiny.config("pretrain", outputs, *WSD, f"pretrain.tokens={tokens}", *overrides))
    assert status == 0
    return directory


def assert_same_run(one: Path, other: Path) -> None:
    assert one.name == other.name
    assert tiny.metrics_of(one) == tiny.metrics_of(other)
    for model in ("model", "models/step-3"):
        a, b = (load_file(directory / model / "model.safetensors") for directory in (one, other))
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def alone(tiny_runs, tmp_path_factory) -> Path:
    """A run of 20,000 tokens with nothing to branch off."""
    return run_of(tiny.share_data(tmp_path_factory.mktemp("alone"), tiny_runs), 20_000)


def test_a_longer_run_begins_where_a_shorter_ones_decay_began_and_ends_bitwise_the_same(alone, tiny_runs, tmp_path, capsys):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    short = run_of(outputs, 12_000)
    capsys.readouterr()
    longer = run_of(outputs, 20_000)
    assert f"steps 1 to 6 are those of {short}, going on from there" in capsys.readouterr().out
    assert_same_run(longer, alone)


def test_a_branch_may_have_another_decay(alone, tiny_runs, tmp_path, capsys):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    run_of(outputs, 12_000, "pretrain.optimizer.decay_ratio=0.5", "pretrain.optimizer.min_lr_ratio=0")
    capsys.readouterr()
    longer = run_of(outputs, 20_000)
    assert "steps 1 to 3 are those of" in capsys.readouterr().out
    assert_same_run(longer, alone)


@pytest.mark.parametrize("other", ["pretrain.seed=1", "pretrain.data_seed=1", "pretrain.optimizer.lr=0.02", "pretrain.optimizer.warmup_steps=1"])
def test_a_run_that_differs_in_more_than_its_length_is_no_family(other, alone, tiny_runs, tmp_path, capsys):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    run_of(outputs, 12_000, other)
    assert_same_run(run_of(outputs, 20_000), alone)
    assert "going on from there" not in capsys.readouterr().out


def test_a_longer_runs_state_does_not_serve_a_shorter_one_whose_decay_begins_before_it(alone, tiny_runs, tmp_path, capsys):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    run_of(outputs, 20_000)
    run_of(outputs, 12_000)
    assert "going on from there" not in capsys.readouterr().out


def test_a_damaged_state_of_the_family_costs_time_and_not_the_run(alone, tiny_runs, tmp_path, capsys):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    (state,) = run_of(outputs, 12_000).glob("stable-*/step-*.pt")
    state.write_bytes(state.read_bytes()[:-100])
    assert_same_run(run_of(outputs, 20_000), alone)
    assert "is damaged" in capsys.readouterr().out


def test_the_metrics_of_a_sibling_that_are_being_made_again_are_not_taken(alone, tiny_runs, tmp_path, capsys):
    """A sibling that was killed after it kept its state goes on from before it: its lines then have other times, and so other lengths."""
    outputs = tiny.share_data(tmp_path, tiny_runs)
    short = run_of(outputs, 12_000)
    metrics = (short / "metrics.jsonl").read_text()
    (short / "metrics.jsonl").write_text(metrics.replace('"time/wall_s": ', '"time/wall_s": 12345678'))
    capsys.readouterr()
    assert_same_run(run_of(outputs, 20_000), alone)
    assert "going on from there" not in capsys.readouterr().out
    assert list(short.glob("stable-*/step-*.pt")), "another run's state was removed"


@pytest.mark.long
def test_two_processes_branch_off_as_one_does(tiny_runs, tmp_path):
    """A run of one process, continued by two in a longer one; in float64, since sums of gradients are taken in another order."""
    lengths, precision = (12_000, 20_000), ["run.precision=fp64"]
    folders = [tiny.share_data(tmp_path / name, tiny_runs) for name in ("one", "two")]
    one, two = ([run_of(outputs, tokens, *precision) for tokens in lengths[:count]] for outputs, count in zip(folders, (2, 1)))
    overrides = [*WSD, *precision, f"pretrain.tokens={lengths[1]}", f"outputs={folders[1]}"]
    command = [*TORCHRUN, "-m", "pretrain", "experiment=toy", *tiny.MODEL, *tiny.SIZES, *overrides]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stderr.count(f"those of {two[0]}, going on from there") + process.stdout.count(f"those of {two[0]}, going on from there") == 1
    longer = folders[1] / one[1].name
    lines = [tiny.metrics_of(directory) for directory in (one[1], longer)]
    assert lines[1][:6] == tiny.metrics_of(two[0])[:6], "the shared steps were made again"
    assert [line["step"] for line in lines[1]] == list(range(1, len(lines[0]) + 1))
    for a, b in zip(*lines):
        assert {key: pytest.approx(value, rel=1e-6, abs=1e-9) for key, value in a.items()} == b
    states = [torch.load(max((directory / "state").glob("step-*.pt")), weights_only=True)["model"] for directory in (one[1], longer)]
    assert max((states[0][name] - states[1][name]).abs().max().item() for name in states[0]) < 1e-9
    assert (longer / "models" / "step-3").is_dir()
