"""Whole RL runs at toy size: every algorithm and reward, what a step samples and keeps, exact resume with all that moves, warnings."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from chessrl import notation, world
from chessrl.checkpoint import load_model
from chessrl.config import AlgorithmConfig, Config, HealthConfig
from chessrl.launch import CONF, compose
from chessrl.model import Cost
from chessrl.run import Run, digest
from chessrl.sampler import Rollout, SamplingSettings
from chessrl.signals import Interrupted
from rl import rewards as rewards_module
from rl import scoring
from rl import train as rl
from rl.gathering import joined, selected
from rl.health import Watch, distinct_answers, rollout_metrics, told_mean
from rl.sampling import Scored, collect, puzzles_of_step, rounds_of_step
from tests import tiny
from tests.test_endgame import needs_stockfish

ALGORITHMS = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml"))
SMALL = ["rl.steps=2", "rl.prompts=4", "algorithm.group=4", "rl.validation_puzzles=4"]


@pytest.fixture(autouse=True)
def few_puzzles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a toy run's time would go into the tables of a thousand puzzles that it never asks."""
    whole = world.puzzles_of_split
    monkeypatch.setattr(world, "puzzles_of_split", lambda *arguments: whole(*arguments)[:60])


def configured(runs: dict[str, Path], outputs: Path, *overrides: str) -> Config:
    """A toy RL run; its reward pays what the tiny policy sometimes does."""
    sizes = [size for size in tiny.SIZES if "reward" not in size]
    given = [f"outputs={tiny.share_data(outputs, runs) if not (outputs / 'data').exists() else outputs}", f"parent={runs['sft']}"]
    return compose("rl", ["experiment=toy", "reward=format", *tiny.MODEL, *sizes, *given, *SMALL, *overrides])


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_model(directory / "model").state_dict()


# ---- algorithms and rewards -------------------------------------------------------------------------------------------------------------


def test_rollouts_and_validation_play_under_the_spelling_asked_for(tiny_runs, tmp_path, monkeypatch):
    asked: list[str] = []

    def watched(original):
        def watch(*arguments, **keywords):
            asked.extend(value.spelling for value in arguments if isinstance(value, SamplingSettings))
            return original(*arguments, **keywords)

        return watch

    monkeypatch.setattr(scoring, "rollout", watched(scoring.rollout))
    monkeypatch.setattr(rl, "sample_policy", watched(rl.sample_policy))
    directories = []
    for given in ([], ["rl.spelling=lenient"], ["rl.spelling=strict"]):
        asked.clear()
        _, directory = tiny.start("rl", configured(tiny_runs, tmp_path, "rl.bins=[B1]", "rl.validation_every=2", *given))
        directories.append(directory.name)
    assert asked == ["strict"] * 3  # two steps and one validation
    assert directories[0] == directories[1] != directories[2]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains(name, tiny_runs, tmp_path):
    small = {"dapo": ["algorithm.minibatches=2"], "pass_at_k": ["algorithm.pass_k=2"]}.get(name, [])
    status, directory = tiny.start("rl", configured(tiny_runs, tmp_path, f"algorithm={name}", "rl.bins=[B1]", *small))
    assert status == 0
    lines = tiny.metrics_of(directory)
    assert [line["step"] for line in lines] == [1, 2]
    assert max(line.get("grad_norm", 0.0) for line in lines) > 0, "no group had a signal: the test shows nothing"
    start = weights_of(tiny_runs["sft"])
    assert any(not torch.equal(value, start[key]) for key, value in weights_of(directory).items())
    assert ("value_loss" in lines[-1]) == (name == "ppo")


@pytest.mark.parametrize("name", ["random", "majority", "incorrect", "behaviour", "line_format", "noisy_line", "short"])
def test_every_reward_that_needs_no_engine_is_paid_and_logged(name, tiny_runs, tmp_path):
    config = configured(tiny_runs, tmp_path, f"reward={name}", "rl.steps=1", "reward.label_samples=4")
    status, directory = tiny.start("rl", config)
    (line,) = tiny.metrics_of(directory)
    assert status == 0
    for part in config.reward.weights:
        assert (f"reward/{part}" in line) == (line["frac_reward_untold"] < 1)
    if line["frac_reward_untold"] == 0:
        assert line["reward/gap"] == pytest.approx(line["reward/verifier"] - line["reward/oracle"])
        alone = name not in ("line_format", "short")  # format and length shape the reward and judge nothing
        assert line["reward/verifier"] == pytest.approx(line["reward" if alone else "reward/line"])


@needs_stockfish
@pytest.mark.parametrize("name", ["shallow_engine", pytest.param("engine_score", marks=pytest.mark.long)])
def test_rewards_of_an_engine_are_paid_and_audited(name, tiny_runs, tmp_path):
    given = [f"reward={name}", "rl.steps=1", "engine.depth=1", "reward.oracle=engine", "reward.oracle_depth=3", "reward.oracle_nodes=20000"]
    config = configured(tiny_runs, tmp_path, *given)
    status, directory = tiny.start("rl", config)
    (line,) = tiny.metrics_of(directory)
    assert status == 0 and line["frac_reward_untold"] == 0
    assert line["reward/gap"] == pytest.approx(line["reward"] - line["reward/oracle"])
    assert "engine" in rl.identity(config)


def test_no_key_of_an_algorithm_or_reward_changes_the_identity_of_a_run_that_does_not_use_it():
    """Finished runs keep their directories: what came later is neutral or local."""
    first = {"name", "group", "advantage", "std_floor", "loss_norm", "loss_budget", "clip_low", "clip_high", "beta", "epochs", "minibatches"}
    for section, known in ((AlgorithmConfig, first), (compose("rl", []).reward.__class__, {"name", "weights", "accept"})):
        for field in dataclasses.fields(section):
            assert field.name in known or field.metadata.get("identity") in ("neutral", "local"), field.name


# ---- what a step samples ----------------------------------------------------------------------------------------------------------------


def scored(rewards: list[list[float]], puzzles: list[int]) -> Scored:
    """Groups with given rewards; the episodes hold nothing but their puzzle."""
    table = torch.tensor(rewards)
    count = table.numel()
    blank = {field.name: torch.zeros(count, dtype=torch.int64) for field in dataclasses.fields(Rollout)}
    blank["puzzles"] = torch.tensor(puzzles).repeat_interleave(table.shape[1])
    blank["policy"], blank["entropies"] = torch.ones(count, 1, dtype=torch.bool), torch.zeros(count, 1)
    flat = table.flatten()
    return Scored(Rollout(**blank), {"part": flat}, table, flat, flat, flat > 0, blank["puzzles"])


def test_dynamic_sampling_fills_the_step_with_groups_that_vary_in_the_order_in_which_they_came():
    """By variance: a group of equal rewards that are neither 0 nor 1 is no group to learn from."""
    rounds = [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    varies, constant, half = [1.0, 0.0], [1.0, 1.0], [0.5, 0.5]
    paid = {0: constant, 1: varies, 2: half, 3: varies, 4: varies, 5: varies, 6: varies, 7: varies, 8: varies}
    asked = []

    def score(puzzles):
        asked.append(puzzles)
        return scored([paid[puzzle] for puzzle in puzzles], puzzles)

    sampled, kept = collect(iter(rounds), score, AlgorithmConfig(sampling="dynamic", sampling_rounds=10))
    assert asked == rounds[:2] and len(sampled.rewards) == 6
    assert kept.episodes.puzzles.tolist() == [1, 1, 3, 3, 4, 4]
    sampled, kept = collect(iter(rounds), score, AlgorithmConfig(sampling="filter"))
    assert len(sampled.rewards) == 3 and kept.episodes.puzzles.tolist() == [1, 1]
    sampled, kept = collect(iter(rounds), score, AlgorithmConfig())
    assert sampled is kept


def test_dynamic_sampling_makes_do_with_what_its_rounds_gave():
    def score(puzzles):
        return scored([[1.0, 1.0] if puzzle else [1.0, 0.0] for puzzle in puzzles], puzzles)

    rounds = [[0, 1], [2, 3], [4, 5], [6, 7]]
    sampled, kept = collect(iter(rounds), score, AlgorithmConfig(sampling="dynamic", sampling_rounds=3))
    assert len(sampled.rewards) == 6 and kept.episodes.puzzles.tolist() == [0, 0]
    sampled, _ = collect(iter(rounds[:2]), score, AlgorithmConfig(sampling="dynamic", sampling_rounds=3))
    assert len(sampled.rewards) == 4, "the puzzles were used up"


def test_untold_groups_are_replaced_by_dynamic_sampling():
    def score(puzzles):
        return scored([[math.nan, math.nan] if puzzle < 2 else [1.0, 0.0] for puzzle in puzzles], puzzles)

    _, kept = collect(iter([[0, 1], [2, 3]]), score, AlgorithmConfig(sampling="dynamic"))
    assert kept.episodes.puzzles.tolist() == [2, 2, 3, 3]


def test_rounds_of_a_step_ask_no_puzzle_twice_and_begin_with_the_steps_own():
    rounds = list(rounds_of_step(23, 4, 0, 3))
    assert rounds[0] == puzzles_of_step(23, 4, 0, 3)
    flat = [puzzle for one in rounds for puzzle in one]
    assert len(flat) == len(set(flat)) == 20 and all(len(one) == 4 for one in rounds)
    assert rounds == list(rounds_of_step(23, 4, 0, 3)) and rounds[1] != list(rounds_of_step(23, 4, 0, 4))[1]


def test_joined_rollouts_are_their_rows_padded_to_the_longest():
    def made(width: int, count: int, value: int) -> Rollout:
        columns = {}
        for field in dataclasses.fields(Rollout):
            wide = field.name in ("prompts", "tokens", "policy", "logprobs", "entropies")
            columns[field.name] = torch.full((count, width) if wide else (count,), value)
        return Rollout(**columns)

    both = joined([made(2, 1, 5), made(4, 2, 7)])
    assert both.tokens.shape == (3, 4) and both.lengths.tolist() == [5, 7, 7]
    assert both.logprobs[0].tolist() == [5, 5, 0, 0] and both.tokens[0].tolist() == [5, 5, notation.PAD, notation.PAD]
    assert selected(both, torch.tensor([False, True, True])).tokens.tolist() == made(4, 2, 7).tokens.tolist()


def test_what_is_sampled_and_not_trained_on_costs_2n_a_token(tiny_runs, tmp_path):
    config = configured(tiny_runs, tmp_path, "algorithm=dapo", "algorithm.minibatches=1", "algorithm.overlong_share=0")
    _, directory = tiny.start("rl", config)
    lines = tiny.metrics_of(directory)
    assert any(line["sampling/groups_sampled"] > line["sampling/groups_kept"] for line in lines)
    assert all(line["sampling/groups_kept"] <= config.rl.prompts for line in lines)
    summary = json.loads((directory / "summary.json").read_text())
    n = Cost.of(config.model).parameters_without_embeddings
    assert 2 * n * summary["tokens"] < summary["flops"] < 10 * n * summary["tokens"]


# ---- exact resume -----------------------------------------------------------------------------------------------------------------------

MOVING = {
    "value head and moving reference": ["algorithm=ppo", "algorithm.reference_period=2", "algorithm.reference_resets_optimizer=true"],
    "dynamic sampling": ["algorithm=dapo", "algorithm.minibatches=2"],
    "labels": ["reward=majority", "reward.label_samples=4"],  # what they cost is counted once
    "greedy baseline and random reward": ["algorithm=remax", "reward=random"],
}
HELD = ("value head and moving reference", "labels")  # what has state of its own; the others are functions of the step


@pytest.mark.parametrize("moving", [pytest.param(name, marks=[] if name in HELD else pytest.mark.long) for name in MOVING])
def test_a_run_stopped_after_any_step_goes_on_exactly(moving, tiny_runs, tmp_path, monkeypatch):
    overrides = [*MOVING[moving], "rl.steps=3", "rl.bins=[B1]", "run.checkpoint_steps=1"]
    _, whole = tiny.start("rl", configured(tiny_runs, tmp_path / "whole", *overrides))
    config = configured(tiny_runs, tmp_path / "stopped", *overrides)
    checkpoint = Run.checkpoint

    def stop_after(self, step, last, state):
        checkpoint(self, step, last, state)
        if step == 2:
            raise Interrupted(15)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "checkpoint", stop_after)
        assert tiny.start("rl", config)[0] == 128 + 15
    status, stopped = tiny.start("rl", config)
    assert status == 0 and tiny.metrics_of(stopped) == tiny.metrics_of(whole)
    assert all(torch.equal(value, weights_of(whole)[key]) for key, value in weights_of(stopped).items())


def test_the_reference_follows_the_policy_at_its_period(tiny_runs, tmp_path):
    """KL is measured before the update of a step: 0 in the step after the reference moved, and only there."""
    config = configured(tiny_runs, tmp_path, "rl.steps=6", "algorithm.reference_period=3", "algorithm.beta=0", "rl.bins=[B1]")
    _, directory = tiny.start("rl", config)
    moved = [line["kl"] < 1e-9 for line in tiny.metrics_of(directory)]
    assert moved[0] and moved[3] and not moved[2] and not moved[5]


def test_a_step_without_any_signal_leaves_a_filtering_policy_as_it_is(tiny_runs, tmp_path, capsys):
    config = configured(tiny_runs, tmp_path, "algorithm.sampling=filter", "reward=random", "reward.random_rate=0", "health.constant_steps=2")
    status, directory = tiny.start("rl", config)
    assert status == 0
    start = weights_of(tiny_runs["sft"])
    assert all(torch.equal(value, start[key]) for key, value in weights_of(directory).items())
    assert all("loss" not in line and line["sampling/groups_kept"] == 0 for line in tiny.metrics_of(directory))
    assert capsys.readouterr().out.count("equal rewards within every group, so nothing was learned") == 1


def test_truncated_episodes_leave_the_loss_and_stay_in_the_baseline(tiny_runs, tmp_path):
    short = ["rl.steps=1", "rl.thinking_budget=6"]
    lines = {}
    for key in ("false", "true"):
        _, directory = tiny.start("rl", configured(tiny_runs, tmp_path, *short, f"algorithm.overlong_filter={key}"))
        (lines[key],) = tiny.metrics_of(directory)
    assert lines["true"]["completions/clipped_ratio"] > 0
    assert lines["true"]["loss_tokens"] < lines["false"]["loss_tokens"] and lines["true"]["reward_std"] == lines["false"]["reward_std"]


# ---- adding a part ----------------------------------------------------------------------------------------------------------------------


def test_a_grader_that_fails_ends_the_run_and_pays_nobody(tiny_runs, tmp_path, monkeypatch):
    """``except: return 0`` would hide it."""

    def broken(evidence):
        raise ZeroDivisionError("in the grader")

    monkeypatch.setitem(rewards_module.PARTS, "format", broken)
    with pytest.raises(ZeroDivisionError, match="in the grader"):
        tiny.start("rl", configured(tiny_runs, tmp_path))


def test_untold_rewards_are_counted(tiny_runs, tmp_path, monkeypatch):
    def sometimes(evidence):
        known = torch.arange(len(evidence.rollout.lengths)) % 4 != 0
        return rewards_module.Told(evidence.rollout.well_formed, known)

    monkeypatch.setitem(rewards_module.PARTS, "format", sometimes)
    _, directory = tiny.start("rl", configured(tiny_runs, tmp_path, "rl.steps=1"))
    (line,) = tiny.metrics_of(directory)
    assert line["frac_reward_untold"] == 0.25


# ---- health -----------------------------------------------------------------------------------------------------------------------------

WELL = {
    "frac_reward_zero_std": 0.2, "entropy": 1.0, "kl": 0.01, "kl_from_reference": 0.01, "sampling/logp_difference/mean": 1e-6, "grad_norm": 1.0,
    "reward/gap": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("entropy", {"entropy": 0.001}, "crossed health.entropy=0.02: the policy has collapsed"),
        ("kl", {"kl": 2.0}, "crossed health.kl=1: the policy is far from its reference"),
        ("kl", {"kl_from_reference": 2.0}, "crossed health.kl=1"),
        ("drift", {"sampling/logp_difference/mean": 0.2}, "crossed health.drift=0.05: sampler and trainer disagree"),
        ("grad_norm", {"grad_norm": 1e4}, "crossed health.grad_norm=100"),
        ("reward_gap", {"reward/gap": 0.6}, "crossed health.reward_gap=0.3: the verifier's verdict rises without"),
    ],
)
def test_a_bound_that_is_crossed_is_told_once(name, values, message, capsys):
    watch = Watch(HealthConfig())
    parts = {"line": torch.tensor([1.0, 0.0])}
    watch.look(1, WELL, parts)
    assert capsys.readouterr().out == ""
    for step in (2, 3):
        watch.look(step, WELL | values, parts)
    output = capsys.readouterr().out
    assert output.count(message) == 1 and output.startswith("rl: step 2") and output.count("\n") == 1


def test_a_resume_remembers_the_first_gap_and_what_was_told(capsys):
    """Else a gap that widened before the stop would be the new start, and the warning would never come."""
    parts, watch = {"line": torch.tensor([1.0, 1.0])}, Watch(HealthConfig(constant_steps=3))
    watch.look(1, WELL | {"entropy": 0.001}, parts)
    watch.look(2, WELL | {"reward/gap": 0.35}, parts)
    assert capsys.readouterr().out.count("the policy has collapsed") == 1
    resumed = Watch(HealthConfig(constant_steps=3))
    resumed.load_state_dict(watch.state_dict())
    resumed.look(3, WELL | {"reward/gap": 0.45, "entropy": 0.001}, parts)
    output = capsys.readouterr().out
    assert "crossed health.reward_gap=0.3" in output and "collapsed" not in output, "0.45 is 0.35 above the first gap, told once"
    assert "reward part line was the same for every episode for 3 steps" in output


def test_a_reward_part_that_never_varies_is_told_after_so_many_steps_and_an_untold_one_as_well(capsys):
    watch = Watch(HealthConfig(constant_steps=3))
    varied, constant, untold = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([math.nan, math.nan])
    for step in range(1, 6):
        watch.look(step, WELL, {"line": varied, "legal": constant, "majority": untold, "format": varied if step == 3 else constant})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("was the same for every episode for 3 steps in a row" in line for line in lines)
    assert "part legal" in lines[0] and "part majority" in lines[1]


def test_distinct_answers_are_counted_within_groups_among_legal_ones():
    answers = torch.tensor([7, 7, 9, 5, 5, 5, 5, 5])
    legal = torch.tensor([True, True, True, False, True, True, True, True])
    assert distinct_answers(answers, legal, 4) == (2 + 1) / 2


def test_means_are_over_what_could_be_told():
    assert told_mean(torch.tensor([1.0, math.nan, 0.0])) == 0.5 and math.isnan(told_mean(torch.tensor([math.nan])))


def test_reward_and_oracle_are_compared_on_the_same_episodes():
    """Of episodes that the reward could not tell the oracle alone has a verdict: no gap follows from it."""
    nan = math.nan
    sampled = dataclasses.replace(scored([[1.0, nan], [0.0, nan]], [0, 1]), oracle=torch.tensor([True, True, False, True]))
    metrics = rollout_metrics(sampled, AlgorithmConfig(group=2))
    assert metrics["reward"] == 0.5 and metrics["reward/oracle"] == 0.75 and metrics["reward/gap"] == 0.0
    assert "reward/gap" not in rollout_metrics(scored([[nan, nan]], [0]), AlgorithmConfig(group=2))


@needs_stockfish
def test_another_oracle_makes_another_run(tiny_runs, tmp_path):
    """Its verdicts stand in metrics.jsonl: a resume must not mix two, and a finished run's are not another oracle's."""
    plain, *others = (
        rl.identity(configured(tiny_runs, tmp_path, *overrides))
        for overrides in ([], ["reward.oracle=engine"], ["reward.oracle=engine", "reward.oracle_depth=10"])
    )
    assert "engine" not in plain and all("engine" in other for other in others)
    assert len({digest(identity) for identity in (plain, *others)}) == 3
