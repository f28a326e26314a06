"""The RL loop: sample episodes, pay them, update the policy.

The way of a rollout: puzzles of the step (``sampling``) -> ``scoring``: ``sampler.rollout`` (tokens, policy mask, log-probabilities, outcome; of
several processes each samples some groups, and ``gathering`` gives all of them to all), ``rewards`` (prompts, group) -> ``update.build_batch``
-> reference log-probabilities -> ``credit.assign`` (advantages of tokens) -> ``update.update``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from chessrl import distributed, world
from chessrl.budgets import resolve_rl, rl_passes
from chessrl.config import AlgorithmConfig, Config, RlConfig
from chessrl.config_check import check_exact_kl
from chessrl.errors import UserError
from chessrl.evaluate import protocol_of, sample_policy
from chessrl.model import Cost, causal_pairs
from chessrl.run import Run, adopt_parent, identity_of, read_summary, resolve_device
from chessrl.sampler import NO_END_THINK, SamplingSettings
from chessrl.training import Stopwatch, learning_rate
from chessrl.verifier import engine_identity
from rl.credit import assign
from rl.curriculum import curriculum_of, identified
from rl.exact_kl import ExactKl, exact_kl
from rl.health import rollout_metrics
from rl.judges import asks_engine
from rl.rewards import check_reward
from rl.sampling import Scored, collect, rounds_of_step
from rl.scoring import lengths_of
from rl.setup import Setup, prepare
from rl.state import RlState
from rl.update import Batch, build_batch, score, score_values, update


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
        "rl": identity_of(replace(config.rl, curriculum=identified(config.rl.curriculum))),
        "algorithm": identity_of(config.algorithm),
        "reward": identity_of(config.reward),
        "precision": config.run.arithmetic,
        "device": resolve_device(config.run.device).type,
    }
    return kept | ({"engine": engine_identity(config)} if asks_engine(config.reward) or config.reward.oracle == "engine" else {})


def check(config: Config) -> None:
    """Refuse what cannot be trained."""
    check_reward(config.reward)
    puzzles = world.puzzles_of_split(config, "rl", config.rl.bins)
    available = len(puzzles)
    if config.rl.prompts > available:
        raise UserError(
            f"rl.prompts={config.rl.prompts} is more than the {available} puzzles of rl.bins={config.rl.bins}: lower it, or allow more bins"
        )
    curriculum_of(config.rl.curriculum, [puzzle.id for puzzle in puzzles], config.rl.prompts)
    if distributed.size() > min(config.rl.prompts, config.rl.validation_puzzles):
        raise UserError(
            f"rl.prompts={config.rl.prompts} and rl.validation_puzzles={config.rl.validation_puzzles}: expected at least the number of "
            f"processes, {distributed.size()}, since each takes whole groups"
        )
    check_exact_kl(config, config.rl.protocol == "think")
    if config.algorithm.minibatches > config.rl.prompts:
        raise UserError(
            f"algorithm.minibatches={config.algorithm.minibatches} is more than rl.prompts={config.rl.prompts}: a part needs a group"
        )


def train(run: Run) -> None:
    """The whole stage, from the parent's policy to ``model/`` and ``summary.json``."""
    settings, algorithm, setup = run.config.rl, run.config.algorithm, prepare(run)
    state, model, stopwatch = setup.state, setup.state.model, Stopwatch()
    if resumed := run.resume():
        state.load(resumed)
    for step in run.loop(state.step, state.step if spent(state, settings) else settings.steps):
        phase = setup.curriculum.phase(step, settings.steps)
        rounds = map(phase.pick, rounds_of_step(len(phase.puzzles), settings.prompts, settings.data_seed, phase.step))
        sampled, kept = collect(rounds, functools.partial(setup.scorer.score, step=step), algorithm)
        at_roots = setup.roots.measures(model, setup.reference, sampled.puzzles()) if setup.roots else {}
        rate = learning_rate(settings.optimizer, step, settings.steps)
        measures, trained = learn(setup, kept, run, rate, step)
        count_cost(state, setup.cost, sampled, trained, setup.scorer.spent_elsewhere(), algorithm)
        state.step = step
        state.move_reference(algorithm)
        last = step == settings.steps or spent(state, settings)
        metrics = {"step": step, **state.counters.as_dict(), **measures, "lr": rate} | rollout_metrics(sampled, algorithm) | at_roots
        metrics |= {"sampling/dropped_tokens": trained.batch.dropped if trained else 0} | kept_metrics(sampled, kept, algorithm)
        metrics |= stopwatch.lap(int(lengths_of(sampled.episodes).sum()))
        if step % settings.validation_every == 0 or last:
            metrics["validation/pass_at_1"] = validate(setup, run.config)
            tqdm.write(f"rl step {step}/{settings.steps}: {progress(metrics)}")
        state.watch.look(step, metrics, sampled.parts)
        run.log(metrics)
        if step in settings.save_steps:
            run.export(model, f"models/step-{step}")
        run.checkpoint(step, last, state.state_dict)
        if last:
            break
    run.export(model, "model")
    summarise(run, setup)


def spent(state: RlState, settings: RlConfig) -> bool:
    """Whether another step, at the mean cost of those so far, would go beyond ``rl.tokens`` or ``rl.flops``; they are kept beside ``rl.steps`` where
    a step's cost is not known beforehand (``chessrl.budgets``).
    """
    limits = ((settings.tokens, state.counters.tokens), (settings.flops, state.counters.flops))
    return state.step > 0 and any(limit is not None and value * (state.step + 1) / state.step > limit for limit, value in limits)


def progress(metrics: Mapping[str, float]) -> str:
    """What a validation tells on one line."""
    shown = {"reward": "reward", "validation pass@1": "validation/pass_at_1", "kl": "kl"}
    return ", ".join(f"{name} {metrics[key]:.{4 if name == 'kl' else 3}f}" for name, key in shown.items() if key in metrics)


def summarise(run: Run, setup: Setup) -> None:
    """Write ``summary.json``. ``tokens_per_sequence`` is the mean over all episodes that were sampled, whatever for."""
    state, settings = setup.state, run.config.rl
    ancestors = read_summary(Path(run.config.parent))
    values = state.counters.as_dict() | {"step": state.step, "traces": settings.protocol == "think", "world": ancestors["world"]} | setup.verifier
    values["tokens_per_sequence"] = state.counters.tokens / state.sequences
    values["flops_by_stage"] = ancestors["flops_by_stage"] | {"rl": ancestors["flops_by_stage"].get("rl", 0) + state.counters.flops}
    run.summarise(state.model.config, ancestors["parents"] | {ancestors["stage"]: ancestors["run_id"]}, values)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a step's update was made on."""

    batch: Batch
    decisions: ExactKl | None  # with algorithm.kl=exact


def learn(setup: Setup, kept: Scored, run: Run, rate: float, step: int) -> tuple[dict[str, float], Trained | None]:
    """Update the policy on the groups that a step kept: what it measured, and on what; nothing where it kept none."""
    settings, algorithm, budget, learner = run.config.rl, run.config.algorithm, run.micro_batch_tokens, setup.learner
    if not len(kept.rewards):
        return {}, None
    episodes = kept.episodes
    batch = build_batch(episodes, episodes.outcome == NO_END_THINK if algorithm.overlong_filter else None)
    reference_logprobs = score(setup.reference, batch, settings.temperature, budget)
    decisions = exact_kl(episodes, setup.moves, setup.reference, settings.temperature, budget) if setup.moves else None
    values = score_values(learner, batch, budget) if learner.value_head else None
    credit = assign(kept.rewards, batch.policy, batch.sampled, reference_logprobs, algorithm, values)
    measures = update(
        learner, setup.state.optimizer, batch, credit, reference_logprobs, algorithm, settings.optimizer, decisions,
        rate=rate, temperature=settings.temperature, budget=budget, seed=settings.data_seed, step=step,
    )  # fmt: skip
    return measures, Trained(batch, decisions)


def count_cost(state: RlState, cost: Cost, sampled: Scored, trained: Trained | None, elsewhere: Tensor, algorithm: AlgorithmConfig) -> None:
    """2N sampling + 2N reference + 6N x epochs per token of prompt and episode (stored log-probabilities are not recomputed).

    What is sampled and not trained on costs 2N: groups that were filtered out, and the episodes ``elsewhere`` (lengths) of labels and greedy
    baselines. The legal moves of an exact KL are no rollout's tokens, but their passes of reference and epochs are counted. The shared prefill
    makes sampling cheaper than counted here by (G - 1) prompts a group: the count is the convention's, not the machine's.
    """
    counters = state.counters
    lengths = torch.cat([lengths_of(sampled.episodes).cpu(), elsewhere])
    state.sequences += len(lengths)
    counters.tokens += int(lengths.sum())
    counters.add_flops(cost.forward_flops(int(lengths.sum())), cost.attention_flops(causal_pairs(lengths)))
    if trained is None:
        return
    passes, batch = rl_passes(algorithm) - 1, trained.batch
    counters.loss_tokens += int(batch.policy.sum())
    counters.add_flops(passes * cost.forward_flops(int(batch.lengths.sum())), passes * cost.attention_flops(causal_pairs(batch.lengths)))
    if trained.decisions is not None:
        (tokens, pairs), passes = trained.decisions.cost(), 1 + 3 * algorithm.epochs
        counters.add_flops(passes * cost.forward_flops(tokens), passes * cost.attention_flops(pairs))


def kept_metrics(sampled: Scored, kept: Scored, algorithm: AlgorithmConfig) -> dict[str, int]:
    """Of a step that chooses its groups: how many it sampled and how many it trained on."""
    if algorithm.sampling == "plain":
        return {}
    return {"sampling/groups_sampled": len(sampled.rewards), "sampling/groups_kept": len(kept.rewards)}


def validate(setup: Setup, config: Config) -> float:
    """pass@1 on the validation puzzles, verified by the line; the same random numbers at every step."""
    settings = config.rl
    sampling = SamplingSettings(
        settings.protocol, settings.temperature, settings.thinking_budget, settings.spelling, seed=settings.seed, stage="rl-validation"
    )
    table = sample_policy(
        setup.state.model, setup.validation_environment, setup.validation, config.world.state, settings.validation_samples, sampling,
        config.evaluate.batch,
    )  # fmt: skip
    solved, samples = distributed.sum_array(np.array([table["solved"].sum(), len(table)], np.float64))
    return float(solved / samples)
