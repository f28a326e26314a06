"""Budgets: compute, steps or tokens, turned into the counts that the stages train for; what cannot be carried out is refused with its numbers.

Conventions: pretraining costs 6NT; RL costs, per token of prompt and rollout, 2N for sampling, 2N for the reference and
6N for each epoch. N is without embeddings. Fine-tuning is counted apart: a budget is shared between pretraining and RL alone.

Where every RL step costs the same, RL's share becomes ``rl.steps`` and nothing else. It does not with dynamic sampling (how many groups must be
drawn again?), labels (which of a step's puzzles are new?) and the exact KL (how many legal moves?): then ``rl.steps`` is the most that it can be,
``rl.tokens`` or ``rl.flops`` stays beside it, and the run ends when another step would not fit into what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chessrl.config import LABELLED_PARTS, AlgorithmConfig, Config, OptimizerConfig
from chessrl.config_check import check_exact_kl
from chessrl.errors import UserError
from chessrl.model import Cost


def rl_passes(algorithm: AlgorithmConfig) -> int:
    """Forward passes that a rollout's token costs: sampling, reference, values where there is a value head, and forward and backward (twice a
    forward) of each epoch.
    """
    return 1 + 1 + (algorithm.advantage == "gae") + 3 * algorithm.epochs


def rl_step_sequences(config: Config) -> int:
    """Episodes that one RL step surely samples: its groups, and the greedy one of each prompt where that is the baseline."""
    return config.rl.prompts * (config.algorithm.group + (config.algorithm.baseline == "greedy"))


def rl_step_flops(config: Config, rollout_tokens: float) -> float:
    """Expected FLOPs of one RL step with rollouts of so many tokens, prompt included; greedy episodes are only sampled."""
    rollouts = config.rl.prompts * config.algorithm.group
    passes = rl_passes(config.algorithm) * rollouts + rl_step_sequences(config) - rollouts
    return passes * Cost.of(config.model).forward_flops(1) * rollout_tokens


def steps_cost_the_same(config: Config) -> bool:
    """Whether an RL step's tokens and FLOPs follow from the length of a rollout (module docstring)."""
    labels = any(part in config.reward.weights for part in LABELLED_PARTS)
    return not (config.algorithm.sampling == "dynamic" or labels or (config.algorithm.kl == "exact" and config.algorithm.beta))


def scale_rate(optimizer: OptimizerConfig, parameters: int) -> None:
    """Put the rate of ``lr_rule`` for a model of ``parameters`` (without embeddings) into ``lr``: from here on it is an ordinary fixed one."""
    if optimizer.lr_rule == "size":
        optimizer.lr = float(f"{optimizer.lr * (optimizer.lr_reference / parameters) ** optimizer.lr_exponent:.4g}")
        default = OptimizerConfig()
        optimizer.lr_rule, optimizer.lr_reference, optimizer.lr_exponent = "fixed", default.lr_reference, default.lr_exponent


def resolve_pretraining(config: Config) -> None:
    """``pretrain.tokens`` and ``optimizer.lr`` of the config's budget and rule. Raises UserError when less than a step is left."""
    settings, cost = config.pretrain, Cost.of(config.model)
    _one_measure(config)
    scale_rate(settings.optimizer, cost.parameters_without_embeddings)
    origin = f"pretrain.tokens={settings.tokens}"
    if settings.steps is not None:
        settings.tokens, settings.steps = settings.steps * settings.batch_tokens, None
    if config.budget.flops is not None:
        settings.tokens = round(config.budget.alpha * config.budget.flops / cost.training_flops(1))
        origin = (
            f"budget.alpha={config.budget.alpha:g} of budget.flops={config.budget.flops:.4g} is {settings.tokens:,} tokens for a model of "
            f"N={cost.parameters_without_embeddings:,}, which"
        )
    if settings.tokens < settings.batch_tokens:
        raise UserError(f"{origin} is less than one step of pretrain.batch_tokens={settings.batch_tokens}: raise it, or take smaller batches")


def resolve_rl(config: Config, parent: Mapping[str, Any]) -> None:
    """``rl.steps`` and ``optimizer.lr`` of the config's budget and rule, for a policy whose summary is ``parent``; ``rl.tokens`` or ``rl.flops``
    stays where steps differ in cost.

    Raises UserError when less than a step is left, where nothing says how long rollouts will be, and where something is laid out over steps whose
    number is not known beforehand.
    """
    settings = config.rl
    _one_measure(config)
    scale_rate(settings.optimizer, Cost.of(config.model).parameters_without_embeddings)
    if config.budget.flops is not None:
        settings.flops = (1 - config.budget.alpha) * config.budget.flops
    if settings.flops is None and settings.tokens is None:
        return
    rollout_tokens = config.budget.rollout_tokens or parent.get("tokens_per_sequence")
    if not rollout_tokens:
        raise UserError(
            f"budget.rollout_tokens is 0 and parent={config.parent} does not say how long its sequences were: give the expected tokens of a "
            "rollout, prompt included"
        )
    settings.steps = rl_steps(config, rollout_tokens)
    if steps_cost_the_same(config):
        settings.tokens = settings.flops = None
        return
    order, schedule = settings.curriculum.order, settings.optimizer.schedule
    if order == "easy_to_hard" or schedule != "constant":
        key = f"rl.curriculum.order={order}" if order == "easy_to_hard" else f"rl.optimizer.schedule={schedule}"
        raise UserError(
            f"{key} is laid out over rl.steps, and under a budget dynamic sampling, labels and kl=exact end a run at a step that is not known "
            "beforehand: give rl.steps instead of the budget"
        )


def rl_steps(config: Config, rollout_tokens: float) -> int:
    """The whole RL steps that the budget holds for rollouts of so many tokens. Raises UserError when that is none."""
    budget, settings = config.budget, config.rl
    left_flops = settings.flops if budget.flops is None else (1 - budget.alpha) * budget.flops
    if left_flops is None and settings.tokens is None:
        return settings.steps
    if settings.tokens is not None:
        step_tokens = rl_step_sequences(config) * rollout_tokens
        steps = int(settings.tokens / step_tokens)
        left = f"rl.tokens={settings.tokens:,} is less than the {step_tokens:,.0f} tokens"
    else:
        step_flops = rl_step_flops(config, rollout_tokens)
        steps = int(left_flops / step_flops)
        given = f"rl.flops={left_flops:.4g} is"
        if budget.flops is not None:
            given = f"budget.flops={budget.flops:.4g} with budget.alpha={budget.alpha:g} leaves {left_flops:.3g} FLOPs to RL,"
        left = f"{given} less than the {step_flops:.3g} FLOPs"
    if steps < 1:
        raise UserError(
            f"{left} of one step (rl.prompts={settings.prompts} x algorithm.group={config.algorithm.group} rollouts of "
            f"{rollout_tokens:.0f} tokens): raise it, or take smaller steps"
        )
    return steps


def expected_prompt_tokens(config: Config) -> int:
    """A guess of the tokens of a puzzle's prompt: a snapshot of about 4 men (endgame) or 24 (Lichess), or about 60 plies of history."""
    if config.world.state == "history":
        return 240  # 4 tokens a ply
    return 6 + 2 * (4 if config.world.name == "endgame" else 24)


def expected_game_tokens(config: Config) -> int:
    """A guess of the tokens of a game in the corpus: 87 measured on the packaged endgames, about 70 plies of 4.2 tokens elsewhere."""
    return min(config.world.context, 87 if config.world.name == "endgame" else 294)


def expected_sequence_tokens(config: Config) -> int:
    """A guess, from the config alone, of the tokens of a fine-tuning example or a rollout: prompt, trace and answer.

    Trace: 4 tokens a ply, half of what all lines would take, since some are illegal, repeated or share their beginning. Answer: about 2.5 solver
    moves, in the endgame world 2 with 1 reply. There 43 tokens in all were measured, and 44 are guessed. Once a policy is fine-tuned, the mean
    length of its examples is known and used instead.
    """
    trace = config.sft.trace
    lines = trace.candidates * trace.continuations_mean * (4 * trace.length_mean + 1) if trace.enabled else 0
    answer = 12 if config.world.name == "endgame" else 20
    return round(config.budget.rollout_tokens or min(config.model.max_positions, expected_prompt_tokens(config) + lines / 2 + answer))


def check_pipeline(config: Config) -> None:
    """Refuse before anything starts what a later stage would refuse: leaves ``config`` with its pretraining resolved."""
    resolve_pretraining(config)
    if 0 < config.budget.corpus_tokens < config.pretrain.tokens and not config.pretrain.allow_repeats:
        raise UserError(
            f"pretrain.tokens={config.pretrain.tokens:,} is more than the {config.budget.corpus_tokens:,} tokens that budget.corpus_tokens "
            "says the corpus holds: lower it, or set pretrain.allow_repeats=true"
        )
    if "rl" in config.pipeline.stages:
        check_exact_kl(config, config.sft.trace.enabled and config.rl.protocol != "answer")
        rl_steps(config, expected_sequence_tokens(config))


def _one_measure(config: Config) -> None:
    """A budget is given in one way."""
    budget, settings = config.budget.flops, config.rl
    own = None if budget is not None and settings.flops == (1 - config.budget.alpha) * budget else settings.flops  # else the budget's, resolved
    for key, value in {"pretrain.steps": config.pretrain.steps, "rl.tokens": settings.tokens, "rl.flops": own}.items():
        if budget is not None and value is not None:
            raise UserError(f"{key}={value} and budget.flops={budget:.4g} are two measures of one budget: give one")
    if settings.tokens is not None and settings.flops is not None:
        raise UserError(f"rl.tokens={settings.tokens} and rl.flops={settings.flops:.4g} are two measures of one budget: give one")
