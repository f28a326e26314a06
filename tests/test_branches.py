"""The wsd schedule, and that runs of several lengths which share its stable part end as if each had been trained alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chessrl.config import OptimizerConfig
from chessrl.training import learning_rate, stable_steps, warmup_steps
from tests import tiny

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
