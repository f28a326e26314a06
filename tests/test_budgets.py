"""Budgets in FLOPs, steps and tokens, the learning-rate rule, and the costs that a dry run prints, against sums done by hand."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from chessrl import durations, rates, world
from chessrl.budgets import check_pipeline, expected_sequence_tokens, resolve_pretraining, resolve_rl, rl_passes, rl_step_flops, scale_rate
from chessrl.config import AlgorithmConfig, Config, ModelConfig, OptimizerConfig, PretrainConfig, RlConfig
from chessrl.errors import UserError
from chessrl.launch import compose, launch
from chessrl.learning_rates import best_rate, fit_rule, main, read_losses
from chessrl.model import Cost
from chessrl.pipeline import run_pipeline
from chessrl.rates import Rates
from chessrl.run import Run, identity_of
from tests import tiny


def config_of(*overrides: str) -> Config:
    return compose("chessrl", ["model=5m", *overrides])


def n_of(config: Config) -> int:
    return Cost.of(config.model).parameters_without_embeddings


# ---- pretraining ------------------------------------------------------------------------------------------------------------------------


def test_a_share_of_a_flop_budget_becomes_tokens_by_6nt():
    config = config_of("budget.flops=6.5e15", "budget.alpha=0.2")
    resolve_pretraining(config)
    assert config.pretrain.tokens == round(0.2 * 6.5e15 / (6 * n_of(config))) == 42_345_233


def test_a_budget_gives_the_run_that_the_same_tokens_give():
    by_flops, by_steps = config_of("budget.flops=6.5e15", "budget.alpha=0.2"), config_of("pretrain.steps=7")
    for config in (by_flops, by_steps):
        resolve_pretraining(config)
    assert by_steps.pretrain.tokens == 7 * by_steps.pretrain.batch_tokens
    for config in (by_flops, by_steps):
        assert identity_of(config.pretrain) == identity_of(config_of(f"pretrain.tokens={config.pretrain.tokens}").pretrain)
        before = config.pretrain.tokens
        resolve_pretraining(config)
        assert config.pretrain.tokens == before, "resolving twice must not change it again"


def test_new_keys_at_their_defaults_enter_no_identity():
    for section in (PretrainConfig(), RlConfig()):
        kept = identity_of(section)
        assert "tokens" in kept or "steps" in kept
        assert not {"lr_rule", "lr_reference", "lr_exponent", "warmup_steps", "decay_ratio"} & set(kept["optimizer"])
    assert "steps" not in identity_of(PretrainConfig()) and "tokens" not in identity_of(RlConfig())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["budget.flops=1e10", "budget.alpha=0.2"], r"budget\.alpha=0\.2 of budget\.flops=1e\+10 is 65 tokens .* N=5,116,672, which is less than"),
        (["pretrain.tokens=99", "pretrain.batch_tokens=100"], r"pretrain\.tokens=99 is less than one step of pretrain\.batch_tokens=100"),
        (["budget.flops=1e16", "pretrain.steps=5"], r"pretrain\.steps=5 and budget\.flops=1e\+16 are two measures of one budget"),
        (["budget.flops=1e16", "rl.tokens=5"], r"rl\.tokens=5 and budget\.flops=1e\+16 are two measures"),
        (["budget.flops=1e16"], r"budget\.flops=1e\+16 with budget\.alpha=1 leaves 0 FLOPs to RL, less than the .* of one step"),
        (["algorithm.kl=exact"], r"algorithm\.kl=exact sums over legal moves, and traces come before them"),
        (["rl.tokens=9_000_000", "rl.flops=1e12"], r"rl\.tokens=9000000 and rl\.flops=1e\+12 are two measures"),
        (["pretrain.tokens=2_000_000", "budget.corpus_tokens=1_000_000"], r"pretrain\.tokens=2,000,000 is more than the 1,000,000 tokens"),
    ],
)  # fmt: skip
def test_what_no_run_can_carry_out_is_refused_with_its_numbers(overrides, message):
    with pytest.raises(UserError, match=message) as error:
        check_pipeline(config_of(*overrides))
    assert "\n" not in str(error.value)


def test_the_pipeline_refuses_before_its_first_stage_and_a_grid_may_skip(capsys, tmp_path):
    impossible = ["budget.flops=1e10", "budget.alpha=0.5", f"outputs={tmp_path}"]
    with pytest.raises(UserError, match="less than one step"):
        run_pipeline(config_of(*impossible), impossible)
    assert run_pipeline(config_of(*impossible, "budget.skip_impossible=true"), impossible) == 0
    assert capsys.readouterr().out.startswith("skipped: budget.alpha=0.5 of budget.flops=1e+10 is") and not list(tmp_path.iterdir())


# ---- RL -----------------------------------------------------------------------------------------------------------------------------------


def test_an_rl_step_costs_10n_a_token_and_16n_with_two_epochs():
    config = config_of("rl.prompts=4", "algorithm.group=8")
    assert rl_passes(AlgorithmConfig(epochs=2)) * 2 == 16
    assert rl_step_flops(config, 100) == 10 * n_of(config) * 4 * 8 * 100


def test_the_rest_of_the_budget_is_rl_steps():
    config = config_of("budget.flops=6.5e15", "budget.alpha=0.2", "rl.prompts=4", "algorithm.group=8")
    resolve_rl(config, {"tokens_per_sequence": 70.5})
    assert config.rl.steps == int(0.8 * 6.5e15 / (10 * n_of(config) * 32 * 70.5))
    given = config_of("budget.flops=6.5e15", "budget.alpha=0.2", "rl.prompts=4", "algorithm.group=8", "budget.rollout_tokens=141")
    resolve_rl(given, {"tokens_per_sequence": 70.5})
    assert given.rl.steps == pytest.approx(config.rl.steps / 2, abs=1), "budget.rollout_tokens goes before what the parent says"


def test_rl_in_tokens():
    config = config_of("rl.tokens=100_000", "rl.prompts=4", "algorithm.group=8")
    resolve_rl(config, {"tokens_per_sequence": 50.0})
    assert (config.rl.steps, config.rl.tokens) == (100_000 // (32 * 50), None)
    assert identity_of(config.rl) == identity_of(config_of("rl.steps=62", "rl.prompts=4").rl)
    with pytest.raises(UserError, match=r"rl\.tokens=100 is less than the 1,600 tokens of one step"):
        resolve_rl(config_of("rl.tokens=100", "rl.prompts=4"), {"tokens_per_sequence": 50.0})


def test_a_budget_needs_to_know_how_long_rollouts_will_be():
    with pytest.raises(UserError, match=r"budget\.rollout_tokens is 0 and parent=old"):
        resolve_rl(config_of("rl.tokens=100_000", "parent=old"), {})


def test_the_parent_says_how_long_its_sequences_were(tiny_runs):
    for stage in ("sft", "rl"):
        summary = json.loads((tiny_runs[stage] / "summary.json").read_text())
        sequences = 60 * 20 if stage == "sft" else 6 * 4 * 8  # puzzles x epochs; steps x prompts x group
        assert summary["tokens_per_sequence"] == pytest.approx(summary["tokens"] / sequences)


def test_the_guessed_length_is_near_the_true_one(tiny_runs, tmp_path):
    truth = json.loads((tiny_runs["sft"] / "summary.json").read_text())["tokens_per_sequence"]
    assert 0.5 < expected_sequence_tokens(tiny.config("sft", tmp_path)) / truth < 2


def test_an_rl_run_under_a_budget_spends_about_what_is_left(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    config = tiny.config("rl", outputs, f"parent={tiny_runs['sft']}", "budget.flops=2e9", "budget.alpha=0.25")
    status, directory = tiny.start("rl", config)
    summary = json.loads((directory / "summary.json").read_text())
    assert status == 0 and config.rl.steps == summary["step"] > 1
    assert summary["flops"] == pytest.approx(0.75 * 2e9, rel=0.5)


DYNAMIC = ["algorithm.sampling=dynamic", "algorithm.sampling_rounds=4"]


def test_greedy_baselines_are_part_of_a_steps_cost():
    config = config_of("rl.prompts=4", "algorithm.group=8", "algorithm.baseline=greedy", "rl.tokens=100_000")
    assert rl_step_flops(config, 100) == (10 * 4 * 8 + 2 * 4) * n_of(config) * 100
    resolve_rl(config, {"tokens_per_sequence": 50.0})
    assert (config.rl.steps, config.rl.tokens) == (100_000 // ((32 + 4) * 50), None)


@pytest.mark.parametrize("extra", [DYNAMIC, ["algorithm.kl=exact"], ["+reward.weights.majority=1"]])
def test_a_budget_stays_beside_the_steps_where_a_step_has_no_fixed_cost(extra):
    config = config_of("budget.flops=6.5e15", "budget.alpha=0.2", "rl.prompts=4", *extra)
    for _ in range(2):  # an identity may be asked for more than once
        resolve_rl(config, {"tokens_per_sequence": 70.5})
    assert config.rl.flops == pytest.approx(0.8 * 6.5e15) and config.rl.steps == int(0.8 * 6.5e15 / (10 * n_of(config) * 32 * 70.5))
    given = config_of("rl.tokens=100_000", "rl.prompts=4", *extra)
    resolve_rl(given, {"tokens_per_sequence": 50.0})
    assert (given.rl.steps, given.rl.tokens) == (62, 100_000)
    assert identity_of(given.rl) != identity_of(config_of("rl.steps=62", "rl.prompts=4").rl)
    for key in ("rl.curriculum.order=easy_to_hard", "rl.optimizer.schedule=cosine"):
        with pytest.raises(UserError, match=f"{key} is laid out over rl.steps"):
            resolve_rl(config_of("rl.tokens=100_000", key, *extra), {"tokens_per_sequence": 50.0})


def test_a_run_that_samples_groups_again_ends_when_its_tokens_are_used_up(tiny_runs, tmp_path, monkeypatch):
    """What is sampled in place of groups without a signal is paid from the same budget; a run killed after its last state ends there as well."""
    whole = world.puzzles_of_split
    monkeypatch.setattr(world, "puzzles_of_split", lambda *arguments: whole(*arguments)[:40])
    outputs = tiny.share_data(tmp_path, tiny_runs)
    words = [f"parent={tiny_runs['sft']}", "rl.tokens=8000", "run.checkpoint_steps=1", *DYNAMIC]
    summarise = Run.summarise

    def killed(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "summarise", killed)
    with pytest.raises(KeyboardInterrupt):
        tiny.start("rl", tiny.config("rl", outputs, *words))
    monkeypatch.setattr(Run, "summarise", summarise)
    config = tiny.config("rl", outputs, *words)
    status, directory = tiny.start("rl", config)
    lines, summary = tiny.metrics_of(directory), json.loads((directory / "summary.json").read_text())
    assert status == 0 and len(lines) == summary["step"] < config.rl.steps
    assert summary["tokens"] <= 8000 < summary["tokens"] * (1 + 1.01 / summary["step"])
    groups = sum(line["sampling/groups_sampled"] for line in lines)
    assert groups > 4 * summary["step"] and summary["tokens_per_sequence"] == pytest.approx(summary["tokens"] / (8 * groups))
    assert "validation/pass_at_1" in lines[-1]


# ---- the learning rate of a size ------------------------------------------------------------------------------------------------------------


def test_the_rate_of_a_size_follows_the_rule_and_is_an_ordinary_rate_from_then_on():
    optimizer = OptimizerConfig(lr=2e-3, lr_rule="size", lr_reference=1e6, lr_exponent=0.5)
    scale_rate(optimizer, 4_000_000)
    assert optimizer == OptimizerConfig(lr=1e-3)
    scale_rate(optimizer, 4_000_000)
    assert optimizer.lr == 1e-3, "an ordinary rate is not scaled again"


def test_every_stage_applies_the_rule(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    parents = {"pretrain": None, "sft": tiny_runs["pretrain"], "rl": tiny_runs["sft"]}
    for stage, parent in parents.items():
        rule = [f"{stage}.optimizer.{key}" for key in ("lr=0.01", "lr_rule=size", "lr_reference=1e9", "lr_exponent=0.1")]
        config = tiny.config(stage, outputs, *rule, *([f"parent={parent}"] if parent else []))
        tiny.STAGES[stage].identity(config)
        assert getattr(config, stage).optimizer.lr == pytest.approx(0.01 * (1e9 / n_of(config)) ** 0.1, rel=1e-3)


def test_the_best_rate_is_the_vertex_and_an_end_of_the_range_is_said_to_be_one():
    losses = {rate: 1 + (np.log(rate) - np.log(3e-3)) ** 2 for rate in (1e-3, 2e-3, 4e-3, 8e-3)}
    assert best_rate(losses) == (pytest.approx(3e-3), False)
    assert best_rate({1e-3: 2.0, 2e-3: 1.5, 4e-3: 1.2}) == (4e-3, True)


def test_a_planted_rule_is_found():
    rates = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    losses = {size: {rate: 1 + (np.log(rate) - np.log(2e-3 * (1e6 / size) ** 0.3)) ** 2 for rate in rates} for size in (10**5, 10**6, 10**7)}
    rule = fit_rule(losses)
    assert rule.exponent == pytest.approx(0.3) and rule.lr * (rule.reference / 1e6) ** 0.3 == pytest.approx(2e-3) and rule.edges == ()
    with pytest.raises(UserError, match="a rule needs at least two sizes with three rates each, found N=100,000: 5 rates; train more"):
        fit_rule({10**5: losses[10**5]})


def test_the_rule_is_fitted_to_the_runs_of_its_experiment(tiny_runs, tmp_path, capsys):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    small = ["pretrain.tokens=8000", "pretrain.batch_tokens=2000", "world.max_games=300", "world.context=128", "pretrain.validation_games=50"]
    with pytest.raises(UserError, match="no finished pretraining run"):
        read_losses(outputs)
    for hidden in (32, 48):
        for rate in (0.001, 0.01, 0.3):
            overrides = [*tiny.MODEL, f"model.hidden={hidden}", f"pretrain.optimizer.lr={rate}", *small, "run.device=cpu", f"outputs={outputs}"]
            assert tiny.start("pretrain", compose("pretrain", ["experiment=learning_rates", *overrides]))[0] == 0
    assert {len(of_size) for of_size in read_losses(outputs).values()} == {3}
    main([f"outputs={outputs}"])
    assert "the rule: pretrain.optimizer.lr_rule=size pretrain.optimizer.lr=" in capsys.readouterr().out


# ---- dry run --------------------------------------------------------------------------------------------------------------------------------


# A machine that trains 1,000 tokens/s; the optimiser, scoring and decoding cost next to nothing. Measured beside other work, so not kept.
SLOW = Rates(1e-3, 1e-9, 1e-3, 1e-9, 1e-9, 0.0, (1e-9,) * len(rates.BATCHES), load=2.0)


def dry_run(monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str) -> int:
    def work(config: Config) -> int:
        raise AssertionError("work was begun")

    monkeypatch.setattr(rates, "measure", lambda work: SLOW)
    monkeypatch.setattr(sys, "argv", [command, *arguments, "dry_run=true"])
    with pytest.raises(SystemExit) as exit_:
        launch(command, work)
    return exit_.value.code


def test_a_dry_run_prints_tokens_flops_and_hours_and_starts_nothing(monkeypatch, capsys, tmp_path):
    arguments = ["model=5m", "budget.flops=1e14", "budget.alpha=0.5", "budget.rollout_tokens=100", f"outputs={tmp_path}"]
    assert dry_run(monkeypatch, "chessrl", *arguments, "budget.rl_flops_per_s=1e10", "budget.training_flops_per_s=1e10") == 0
    output = capsys.readouterr().out
    tokens, steps = round(5e13 / (6 * 5_116_672)), int(5e13 / (10 * 5_116_672 * 16 * 8 * 100))
    assert f"pretrain: 1 runs, {tokens:,} tokens, 5e+13 FLOPs, {5e13 / 1e10 / 3600:.4g} GPU-hours" in output
    assert f"rl {steps * 16 * 8 * 100:,} tokens in {steps} steps" in output
    assert not list(tmp_path.iterdir())


def test_tokens_of_fine_tuning_take_the_place_of_its_epochs_in_a_dry_run(monkeypatch, capsys):
    assert dry_run(monkeypatch, "chessrl", "model=nano", "sft.tokens=1200000", "sft.batch_tokens=4096") == 0
    assert "sft 1,200,000 tokens in 293 steps" in capsys.readouterr().out


def test_shared_ancestors_of_a_sweep_are_counted_once(monkeypatch, capsys):
    assert dry_run(monkeypatch, "chessrl", "-m", "algorithm.beta=0,0.01", "rl.steps=10,20", "model=nano") == 0
    output = capsys.readouterr().out
    assert "pretrain: 1 runs" in output and "sft: 1 runs" in output and "rl: 4 runs" in output and "in all: 4 of 4 jobs" in output
    assert output.startswith("algorithm.beta=0 rl.steps=10")


def test_rl_in_rounds_is_another_run_than_rl_at_once_and_what_is_not_counted_is_said(monkeypatch, capsys):
    assert dry_run(monkeypatch, "chessrl", "-m", "curriculum=shuffled,boundary", "rl.steps=10", "model=nano", "arm=none") == 0
    output = capsys.readouterr().out
    assert "pretrain: 1 runs" in output and "rl: 2 runs" in output
    assert "not counted: what boundary.rounds adds to RL" in output


def test_a_dry_run_refuses_rounds_that_the_pipeline_would_refuse(monkeypatch, capsys):
    assert dry_run(monkeypatch, "chessrl", "curriculum=boundary", "rl.steps=2", "model=nano", "arm=none") == 2
    assert "refused: boundary.rounds=3: expected rl.steps of at least as many" in capsys.readouterr().out


def test_the_papers_grid_prints_its_cost(monkeypatch, capsys):
    assert dry_run(monkeypatch, "chessrl", "-m", "experiment=shen2026", "model=5m,1b", "budget.alpha=0.2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 11 + 6
    assert re.match("model=5m budget.flops=6.5e\\+15 +N=5,116,672  pretrain 42,345,233 tokens in 81 steps, 1.3e\\+15 FLOPs, 11.8 h; sft ", lines[0])
    refused = [line for line in lines if "refused: " in line]
    assert refused and all("less than" in line or "more than the 54,000,000,000 tokens" in line for line in refused)
    assert any(f"in all: {22 - len(refused)} of 22 jobs can be carried out" in line for line in lines)


def test_one_job_of_a_grid_points_to_the_others(monkeypatch, capsys):
    assert dry_run(monkeypatch, "chessrl", "experiment=shen2026") == 0
    assert "in all: 1 of 1 jobs" in (output := capsys.readouterr().out) and "add -m for all of them" in output


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("rl", ["-m", "rl.stepz=1,2"], "rl.stepz: no such key; did you mean rl.steps?"),
        ("chessrl", ["-m", "budget.flop=1e9,1e10"], "budget.flop: no such key; did you mean budget.flops?"),
        ("chessrl", ["-m", "budget.flops=much,1e10"], "budget.flops=much: Value 'much'"),
        ("chessrl", ["-m", "budget.alpha=0.5,1.5"], "budget.alpha=1.5: expected from 1e-09 to 1"),
        ("rl", ["parent=nowhere"], "parent=nowhere is not a finished run"),
        ("evaluate", [], "dry_run=true: there is no estimate for evaluate"),
    ],
)
def test_a_mistake_in_a_dry_run_is_one_line(command, arguments, message, monkeypatch, capsys):
    assert dry_run(monkeypatch, command, *arguments) == 2
    output = capsys.readouterr()
    assert message in output.err + output.out and output.err.count("\n") <= 1


def test_a_dry_run_of_rl_takes_model_and_lengths_from_the_parent(tiny_runs, monkeypatch, capsys):
    length = round(json.loads((tiny_runs["sft"] / "summary.json").read_text())["tokens_per_sequence"])
    assert dry_run(monkeypatch, "rl", f"parent={tiny_runs['sft']}", "rl.steps=3", "rl.prompts=2", "algorithm.group=4") == 0
    assert f"rl {3 * 2 * 4 * length:,} tokens in 3 steps" in capsys.readouterr().out


def test_dry_run_in_a_preset_starts_nothing_either(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["chessrl", "dry_run=yes"])  # yes is true to Hydra, and not what the command line looks for
    with pytest.raises(SystemExit) as exit_:
        launch("chessrl", lambda config: pytest.fail("work was begun"))
    assert exit_.value.code == 2 and "nothing was started" in capsys.readouterr().err


# ---- time on this machine --------------------------------------------------------------------------------------------------------------------


def test_a_dry_run_tells_the_time_here_of_every_stage(monkeypatch, capsys, tmp_path):
    """1,000 tokens/s: 2.5M tokens are 2,500 s beside the corpus and the command, 90 steps of 256 rollouts of 40 tokens 921.6 s."""
    assert dry_run(monkeypatch, "chessrl", "experiment=quickstart", "budget.rollout_tokens=40", f"outputs={tmp_path}") == 0
    line, *_, here, _ = capsys.readouterr().out.splitlines()
    pretraining = round(2500 + 32_000 / durations.GAMES_PER_S + durations.COMMAND_S)
    assert f"{pretraining // 60} min {pretraining % 60:02d} s; sft " in line
    assert f"{round(921.6 + durations.COMMAND_S) // 60} min {round(921.6 + durations.COMMAND_S) % 60:02d} s; " in line
    assert here.startswith("on this machine: ") and "other work shares its cores" in here


def test_no_time_is_told_for_a_model_too_large_to_be_timed_in_passing(monkeypatch, capsys):
    assert dry_run(monkeypatch, "chessrl", "model=50m") == 0
    assert "no time on this machine for 3 runs" in capsys.readouterr().out


def test_rates_are_measured_once_and_kept_unless_other_work_shared_the_cores(monkeypatch, tmp_path):
    measured: list[rates.Work] = []

    def measure(work: rates.Work) -> Rates:
        measured.append(work)
        return replace(SLOW, load=0.0 if len(measured) > 1 else 2.0)

    monkeypatch.setattr(rates, "measure", measure)
    work = durations.work_of(compose("chessrl", ["model=nano"]), 44, 1)
    for number in (1, 2, 2):
        assert rates.rates(work, str(tmp_path)).game_training_s == 1e-3 and len(measured) == number
    rates.rates(replace(work, precision="bf16"), str(tmp_path))
    assert len(measured) == 3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_rate_of_a_tiny_model_is_measured(precision):
    tiny = ModelConfig("tiny", layers=1, hidden=16, ffn=16, heads=2, kv_heads=1, head_dim=8)
    found = rates.measure(rates.Work(tiny, precision, False, 1, 64, 16, 16, 6, 4))
    values = [found.game_training_s, found.game_scoring_s, found.sequence_training_s, found.sequence_scoring_s, found.optimizer_s]
    assert min(*values, *found.decoding_s) > 0 and 1 <= len(found.decoding_s) <= len(rates.BATCHES)


def test_a_rollout_costs_its_tokens_and_finished_episodes_leave_the_batch():
    """1 s a token for each 16 sequences: 64 episodes of 20 tokens cost at least the 80 s of their tokens, at most the 112 s of 64 for 28 tokens."""
    per_sequence = replace(SLOW, decoding_s=tuple(sequences / 16 for sequences in rates.BATCHES))
    episodes = durations.Episodes(64, 8, 10, new_tokens=20, most_tokens=100, endless=0.0)
    assert 80 < durations.rollout_s(episodes, per_sequence) < 112
    assert durations.rollout_s(replace(episodes, most_tokens=5), per_sequence) == pytest.approx(5 * 4, rel=1e-6), "nobody is finished by then"
    per_token = replace(SLOW, decoding_s=(1.0,) * len(rates.BATCHES))
    assert durations.rollout_s(replace(episodes, endless=0.02), per_token) == pytest.approx(100), "one straggler keeps the loop going to its end"
