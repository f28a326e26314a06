"""The RL loop: sample episodes, pay them, update the policy.

The way of a rollout: puzzles of the step -> ``sampler.rollout`` (tokens, policy mask, log-probabilities, outcome; of several processes each
samples some groups, and ``gathering`` gives all of them to all) -> ``rewards`` (B,) ->
``objective.group_advantages`` (prompts, group) -> ``update.build_batch`` -> reference log-probabilities -> ``update.update``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from tqdm import tqdm

from chessrl import distributed, world
from chessrl.budgets import resolve_rl, rl_passes
from chessrl.checkpoint import load_model
from chessrl.config import AlgorithmConfig, Config
from chessrl.environment import Environment
from chessrl.errors import UserError
from chessrl.evaluate import protocol_of, sample_policy
from chessrl.model import Cost, Transformer, causal_pairs
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.run import Run, adopt_parent, identity_of, read_summary, resolve_device
from chessrl.sampler import NO_END_THINK, Rollout, SamplingSettings, rollout
from chessrl.training import Counters, Stopwatch, TrainingState, build_optimizer, learning_rate, shuffled
from chessrl.verifier import engine_identity, environment_of
from rl.gathering import gathered
from rl.objective import group_advantages
from rl.rewards import check_reward, reward_parts, total_reward
from rl.update import Batch, build_batch, score, update


def identity(config: Config) -> dict[str, Any]:
    """What decides the result: the parent, the puzzles, the stage's keys, algorithm, reward, precision and device kind."""
    parent = adopt_parent(config, ("sft", "rl"))
    config.rl.protocol = protocol_of(config.rl.protocol, parent)
    resolve_rl(config, parent)
    check(config)
    kept = {
        "parent": parent["run_id"],
        "puzzles": world.puzzle_hash(config),
        "state": config.world.state,
        "rl": identity_of(config.rl),
        "algorithm": identity_of(config.algorithm),
        "reward": identity_of(config.reward),
        "precision": config.run.precision,
        "device": resolve_device(config.run.device).type,
    }
    return kept | ({"engine": engine_identity(config)} if config.reward.accept == "engine" else {})


def check(config: Config) -> None:
    """Refuse what cannot be trained."""
    check_reward(config.reward)
    available = len(world.puzzles_of_split(config, "rl", config.rl.bins))
    if config.rl.prompts > available:
        raise UserError(
            f"rl.prompts={config.rl.prompts} is more than the {available} puzzles of rl.bins={config.rl.bins}: lower it, or allow more bins"
        )
    if distributed.size() > min(config.rl.prompts, config.rl.validation_puzzles):
        raise UserError(
            f"rl.prompts={config.rl.prompts} and rl.validation_puzzles={config.rl.validation_puzzles}: expected at least the number of "
            f"processes, {distributed.size()}, since each takes whole groups"
        )
    if config.algorithm.minibatches > config.rl.prompts:
        raise UserError(
            f"algorithm.minibatches={config.algorithm.minibatches} is more than rl.prompts={config.rl.prompts}: a part needs a group"
        )


def train(run: Run) -> None:
    """The whole stage, from the parent's policy to ``model/`` and ``summary.json``."""
    config, settings, algorithm = run.config, run.config.rl, run.config.algorithm
    parent = Path(config.parent)
    model = load_model(parent / "model", precision=config.run.precision, device=run.device)
    reference = load_model(parent / "model", precision=config.run.precision, device=run.device).requires_grad_(False)
    cost = Cost.of(model.config)
    puzzles = world.puzzles_of_split(config, "rl", settings.bins)
    validation = distributed.portion(world.puzzles_of_split(config, "validation", settings.bins)[: settings.validation_puzzles])
    with distributed.first_process_first():  # which fills the cache of engine labels
        environment, verifier = environment_of(config, puzzles, config.reward.accept)
    environment = environment.to(run.device)
    validation_environment = environment_of(config, validation, "line")[0].to(run.device)
    prompts = [prompt_tokens(puzzle, config.world.state, think=settings.protocol == "think") for puzzle in puzzles]
    state = TrainingState(model, build_optimizer(model, settings.optimizer))
    if resumed := run.resume():
        state.load(resumed)
    stopwatch = Stopwatch()
    constant_steps = 0
    for step in run.loop(state.step, settings.steps):
        chosen = puzzles_of_step(len(puzzles), settings.prompts, settings.data_seed, step)
        sampling = SamplingSettings(
            settings.protocol, settings.temperature, settings.thinking_budget, seed=settings.seed, stage="rl", step=step
        )
        own = distributed.portion(chosen)
        episodes = gathered(rollout(model, environment, own, [prompts[index] for index in own], algorithm.group, sampling))
        parts = reward_parts(episodes, config.reward.weights)
        rewards = total_reward(parts, config.reward.weights).view(-1, algorithm.group)
        batch = build_batch(episodes, group_advantages(rewards, algorithm.advantage, algorithm.std_floor).flatten())
        budget = run.micro_batch_tokens
        reference_logprobs = score(reference, batch, settings.temperature, budget)
        rate = learning_rate(settings.optimizer, step, settings.steps)
        measures = update(
            model, state.optimizer, batch, reference_logprobs, algorithm, settings.optimizer,
            rate=rate, temperature=settings.temperature, budget=budget, seed=settings.data_seed, step=step,
        )  # fmt: skip
        count_flops(state.counters, cost, batch, algorithm)
        state.step = step
        metrics = {"step": step, **state.counters.as_dict(), **measures, "lr": rate} | rollout_metrics(episodes, parts, rewards, algorithm)
        metrics |= {"sampling/dropped_tokens": batch.dropped} | stopwatch.lap(int(batch.lengths.sum()))
        if step % settings.validation_every == 0 or step == settings.steps:
            solved = validate(model, validation_environment, validation, config)
            metrics["validation/pass_at_1"] = solved
            tqdm.write(
                f"rl step {step}/{settings.steps}: reward {metrics['reward']:.3f}, validation pass@1 {solved:.3f}, kl {measures['kl']:.4f}"
            )
        constant_steps = constant_steps + 1 if metrics["frac_reward_zero_std"] == 1 else 0
        if constant_steps == 10:
            tqdm.write(
                "rl: ten steps in a row had equal rewards within every group, so nothing was learned: easier rl.bins, a larger group?"
            )
        run.log(metrics)
        if step in settings.save_steps:
            run.export(model, f"models/step-{step}")
        run.checkpoint(step, step == settings.steps, state.state_dict)
    run.export(model, "model")
    ancestors = read_summary(parent)
    values = state.counters.as_dict() | {"step": state.step, "traces": settings.protocol == "think", "world": ancestors["world"]} | verifier
    values["tokens_per_sequence"] = state.counters.tokens / (state.step * settings.prompts * algorithm.group)
    values["flops_by_stage"] = ancestors["flops_by_stage"] | {"rl": ancestors["flops_by_stage"].get("rl", 0) + state.counters.flops}
    run.summarise(model.config, ancestors["parents"] | {ancestors["stage"]: ancestors["run_id"]}, values)


def puzzles_of_step(count: int, prompts: int, seed: int, step: int) -> list[int]:
    """The distinct puzzles of a step, a function of (seed, step) alone: whole steps of one seeded permutation after the other.

    What a permutation has beyond whole steps waits for a later one: a puzzle twice in a step would draw the same samples twice.
    """
    steps_per_pass = count // prompts
    number, place = divmod(step - 1, steps_per_pass)
    return shuffled(count, seed, number)[place * prompts : (place + 1) * prompts].tolist()


def count_flops(counters: Counters, cost: Cost, batch: Batch, algorithm: AlgorithmConfig) -> None:
    """2N sampling + 2N reference + 6N x epochs per token of prompt and episode (science.md 11; stored log-probabilities are not recomputed).

    The shared prefill makes sampling cheaper than counted here by (G - 1) prompts a group: the count is the convention's, not the machine's.
    """
    tokens, pairs = int(batch.lengths.sum()), causal_pairs(batch.lengths)
    counters.tokens += tokens
    counters.loss_tokens += int(batch.policy.sum())
    passes = rl_passes(algorithm)
    counters.add_flops(passes * cost.forward_flops(tokens), passes * cost.attention_flops(pairs))


def rollout_metrics(episodes: Rollout, parts: dict[str, Tensor], rewards: Tensor, algorithm: AlgorithmConfig) -> dict[str, float]:
    """What the episodes of a step were like; names as in TRL where TRL has them."""
    solved = episodes.solved
    sampled = episodes.policy.sum(1).float()
    deviation = rewards.std(1, correction=0)
    lengths = {"": sampled, "_correct": sampled[solved], "_incorrect": sampled[~solved]}
    metrics = {f"completions/mean_length{name}": values.mean().item() for name, values in lengths.items() if len(values)}
    return metrics | {
        "reward": rewards.mean().item(),
        "reward_std": deviation.mean().item(),
        **{f"reward/{part}": values.mean().item() for part, values in parts.items()},
        "frac_reward_zero_std": (deviation <= algorithm.std_floor).float().mean().item(),
        "entropy": (episodes.entropies.double().sum() / episodes.policy.sum()).item(),
        "completions/mean_trace_length": episodes.trace_lengths.float().mean().item(),
        "completions/clipped_ratio": (episodes.outcome == NO_END_THINK).float().mean().item(),
        "policy/legal": episodes.legal.float().mean().item(),
        "policy/format": episodes.well_formed.float().mean().item(),
        "policy/strict_share_of_solved": (episodes.strict.sum() / solved.sum().clamp(min=1)).item(),
    }


def validate(model: Transformer, environment: Environment, puzzles: list[Puzzle], config: Config) -> float:
    """pass@1 on the validation puzzles, verified by the line; the same random numbers at every step. ``puzzles``: this process's share."""
    settings = config.rl
    sampling = SamplingSettings(
        settings.protocol, settings.temperature, settings.thinking_budget, seed=settings.seed, stage="rl-validation"
    )
    table = sample_policy(model, environment, puzzles, config.world.state, settings.validation_samples, sampling, config.evaluate.batch)
    solved, samples = distributed.sum_array(np.array([table["solved"].sum(), len(table)], np.float64))
    return float(solved / samples)
