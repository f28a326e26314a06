"""The RL loop: sample episodes, pay them, update the policy.

The way of a rollout: puzzles of the step (``sampling``) -> ``scoring``: ``sampler.rollout`` (tokens, policy mask, log-probabilities, outcome; of
several processes each samples some groups, and ``gathering`` gives all of them to all), ``rewards`` (prompts, group) -> ``update.build_batch``
-> reference log-probabilities -> ``credit.assign`` (advantages of tokens) -> ``update.update``.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from chessrl.sampler import NO_END_THINK, SamplingSettings
from chessrl.training import Counters, Stopwatch, build_optimizer, learning_rate
from chessrl.verifier import engine_identity, environment_of
from rl.credit import assign
from rl.curriculum import curriculum_of, identified
from rl.health import Watch, rollout_metrics
from rl.judges import asks_engine, judges_of
from rl.rewards import check_reward
from rl.roots import Roots
from rl.sampling import Scored, collect, rounds_of_step
from rl.scoring import Scorer, lengths_of
from rl.state import RlState
from rl.update import Batch, build_batch, score, score_values, update
from rl.value import Learner, ValueHead


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
        "precision": config.run.precision,
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
    if config.algorithm.minibatches > config.rl.prompts:
        raise UserError(
            f"algorithm.minibatches={config.algorithm.minibatches} is more than rl.prompts={config.rl.prompts}: a part needs a group"
        )


def train(run: Run) -> None:
    """The whole stage, from the parent's policy to ``model/`` and ``summary.json``."""
    config, settings, algorithm = run.config, run.config.rl, run.config.algorithm
    parent = Path(config.parent)
    model = load_model(parent / "model", precision=config.run.precision, device=run.device)
    start = load_model(parent / "model", precision=config.run.precision, device=run.device).requires_grad_(False)
    reference = copy.deepcopy(start) if algorithm.reference_period else start
    learner = Learner(model, ValueHead(model.config, config.run.precision, run.device) if algorithm.advantage == "gae" else None)
    cost = Cost.of(model.config)
    puzzles = world.puzzles_of_split(config, "rl", settings.bins)
    curriculum = curriculum_of(settings.curriculum, [puzzle.id for puzzle in puzzles], settings.prompts)
    if curriculum.left_out:
        tqdm.write("rl.curriculum left out: " + ", ".join(f"{reason} {count:,}" for reason, count in curriculum.left_out.items()))
    validation = distributed.portion(world.puzzles_of_split(config, "validation", settings.bins)[: settings.validation_puzzles])
    with distributed.first_process_first():  # which fills the cache of engine labels
        environment, verifier = environment_of(config, puzzles, config.reward.accept)
        judges = judges_of(config, puzzles, environment.to(run.device))
    environment = environment.to(run.device)
    validation_environment = environment_of(config, validation, "line")[0].to(run.device)
    prompts = [prompt_tokens(puzzle, config.world.state, think=settings.protocol == "think") for puzzle in puzzles]
    scorer = Scorer(config, model, start, environment, prompts, judges)
    roots = Roots(puzzles, prompts, settings.temperature) if settings.protocol == "answer" else None
    state = RlState(
        model,
        build_optimizer(learner, settings.optimizer),
        value_head=learner.value_head,
        reference=reference if algorithm.reference_period else None,
        labels=scorer.labels,
    )
    if resumed := run.resume():
        state.load(resumed)
    stopwatch, watch = Stopwatch(), Watch(config.health)
    for step in run.loop(state.step, settings.steps):
        phase = curriculum.phase(step, settings.steps)
        rounds = map(phase.pick, rounds_of_step(len(phase.puzzles), settings.prompts, settings.data_seed, phase.step))
        sampled, kept = collect(rounds, functools.partial(scorer.score, step=step), algorithm)
        exact = roots.measures(model, reference, sampled.puzzles()) if roots else {}
        rate = learning_rate(settings.optimizer, step, settings.steps)
        measures, batch = learn(learner, state, reference, kept, config, run.micro_batch_tokens, rate, step)
        count_flops(state.counters, cost, sampled, batch, scorer.spent_elsewhere(), algorithm)
        state.step = step
        state.move_reference(algorithm)
        metrics = {"step": step, **state.counters.as_dict(), **measures, "lr": rate} | rollout_metrics(sampled, algorithm) | exact
        metrics |= {"sampling/dropped_tokens": batch.dropped if batch else 0} | kept_metrics(sampled, kept, algorithm)
        metrics |= stopwatch.lap(int(lengths_of(sampled.episodes).sum()))
        if step % settings.validation_every == 0 or step == settings.steps:
            solved = validate(model, validation_environment, validation, config)
            metrics["validation/pass_at_1"] = solved
            shown = {"reward": metrics.get("reward"), "validation pass@1": solved, "kl": measures.get("kl")}
            text = ", ".join(f"{name} {value:.{4 if name == 'kl' else 3}f}" for name, value in shown.items() if value is not None)
            tqdm.write(f"rl step {step}/{settings.steps}: {text}")
        watch.look(step, metrics, sampled.parts)
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


def learn(
    learner: Learner, state: RlState, reference: Transformer, kept: Scored, config: Config, budget: int, rate: float, step: int
) -> tuple[dict[str, float], Batch | None]:
    """Update the policy on the groups that a step kept: what it measured, and the batch; nothing where it kept none."""
    settings, algorithm = config.rl, config.algorithm
    if not len(kept.rewards):
        return {}, None
    episodes = kept.episodes
    batch = build_batch(episodes, episodes.outcome == NO_END_THINK if algorithm.overlong_filter else None)
    reference_logprobs = score(reference, batch, settings.temperature, budget)
    values = score_values(learner, batch, budget) if learner.value_head else None
    credit = assign(kept.rewards, batch.policy, batch.sampled, reference_logprobs, algorithm, values)
    measures = update(
        learner, state.optimizer, batch, credit, reference_logprobs, algorithm, settings.optimizer,
        rate=rate, temperature=settings.temperature, budget=budget, seed=settings.data_seed, step=step,
    )  # fmt: skip
    return measures, batch


def count_flops(
    counters: Counters, cost: Cost, sampled: Scored, batch: Batch | None, elsewhere: Tensor, algorithm: AlgorithmConfig
) -> None:
    """2N sampling + 2N reference + 6N x epochs per token of prompt and episode (science.md 11; stored log-probabilities are not recomputed).

    What is sampled and not trained on costs 2N: groups that were filtered out, and the episodes ``elsewhere`` (lengths) of labels and greedy
    baselines. The shared prefill makes sampling cheaper than counted here by (G - 1) prompts a group: the count is the convention's, not the
    machine's.
    """
    lengths = torch.cat([lengths_of(sampled.episodes).cpu(), elsewhere])
    counters.tokens += int(lengths.sum())
    counters.add_flops(cost.forward_flops(int(lengths.sum())), cost.attention_flops(causal_pairs(lengths)))
    if batch is not None:
        passes = rl_passes(algorithm) - 1
        counters.loss_tokens += int(batch.policy.sum())
        tokens, pairs = int(batch.lengths.sum()), causal_pairs(batch.lengths)
        counters.add_flops(passes * cost.forward_flops(tokens), passes * cost.attention_flops(pairs))


def kept_metrics(sampled: Scored, kept: Scored, algorithm: AlgorithmConfig) -> dict[str, int]:
    """Of a step that chooses its groups: how many it sampled and how many it trained on."""
    if algorithm.sampling == "plain":
        return {}
    return {"sampling/groups_sampled": len(sampled.rewards), "sampling/groups_kept": len(kept.rewards)}


def validate(model: Transformer, environment: Environment, puzzles: list[Puzzle], config: Config) -> float:
    """pass@1 on the validation puzzles, verified by the line; the same random numbers at every step. ``puzzles``: this process's share."""
    settings = config.rl
    sampling = SamplingSettings(
        settings.protocol, settings.temperature, settings.thinking_budget, settings.spelling, seed=settings.seed, stage="rl-validation"
    )
    table = sample_policy(model, environment, puzzles, config.world.state, settings.validation_samples, sampling, config.evaluate.batch)
    solved, samples = distributed.sum_array(np.array([table["solved"].sum(), len(table)], np.float64))
    return float(solved / samples)
