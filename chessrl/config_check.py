"""Values that no command can work with: ranges and choices of single keys, checked before anything is started."""

from __future__ import annotations

import math
from typing import Any

from chessrl.config import SLICES, SPLITS, STAGES, Config
from chessrl.errors import UserError
from chessrl.notation import REFERENCE_SIZE, REFERENCE_TRACE_SIZE, VOCABULARY
from chessrl.traces import LAYOUTS
from chessrl.tracking import check_logger

CHOICES: dict[str, tuple[str, ...]] = {
    "world.name": ("endgame", "lichess"),
    "world.state": ("snapshot", "history"),
    "run.device": ("auto", "cpu", "cuda"),
    "run.precision": ("fp32", "bf16", "fp64"),
    "sft.trace.proposal": ("model", "teacher", "engine", "uniform"),
    "sft.trace.order": ("sampling", "engine", "random"),
    "sft.trace.serialise": LAYOUTS,
    "sft.trace.content": ("own", "other_puzzle"),
    "sft.trace.answer": ("line", "engine"),
    "rl.protocol": ("auto", "think", "answer"),
    "evaluate.protocol": ("auto", "think", "answer", "game"),
    "evaluate.spelling": ("lenient", "strict"),
    "rl.spelling": ("lenient", "strict"),
    "evaluate.split": (*SPLITS, *SLICES),
    "evaluate.verifier": ("line", "engine"),
    "algorithm.advantage": (
        *("group_std", "group_mean", "leave_one_out", "batch_std", "pass_at_k", "raw"),
        *("over_mean", "whitened_returns", "gae"),
    ),
    "algorithm.ratio": ("token", "sequence", "cispo", "unclipped", "log_prob"),
    "algorithm.kl": ("k3", "k2", "k1_reward", "exact"),
    "algorithm.baseline": ("none", "greedy"),
    "algorithm.sampling": ("plain", "filter", "dynamic"),
    "evaluate.thinking": ("natural", "forced", "minimum"),
    "evaluate.trace_metrics": ("none", "tree", "engine"),
    "audit.oracle": ("auto", "proof", "engine"),
    "algorithm.loss_norm": ("sequence", "token", "constant"),
    "reward.accept": ("line", "engine"),
    "reward.oracle": ("line", "engine"),
    "engine.mode": ("depth", "searchmoves"),
    **{f"{stage}.optimizer.schedule": ("cosine", "constant", "wsd") for stage in STAGES},
    **{f"{stage}.optimizer.lr_rule": ("fixed", "size") for stage in STAGES},
    "rl.curriculum.order": ("shuffled", "easy_to_hard"),
    "tabular.study": ("train", "clip_bias", "success_recursion"),
    "tabular.prior": ("dirichlet", "zipf", "peaked"),
    "tabular.reward": ("solving", "random", "noisy", "systematic", "wrong"),
}

# (lowest, highest) allowed, both included; None: no bound
RANGES: dict[str, tuple[float, float | None]] = {
    "model.layers": (1, None),
    "model.hidden": (1, None),
    "model.ffn": (1, None),
    "model.heads": (1, None),
    "model.kv_heads": (1, None),
    "model.head_dim": (2, None),
    "world.context": (32, None),
    "world.validation_share": (1e-6, 0.5),
    "run.threads": (0, None),
    "run.micro_batch_tokens": (0, None),
    "run.checkpoint_steps": (1, None),
    "run.checkpoint_seconds": (1, None),
    **{f"{section}.seed": (0, 2**63 - 1) for section in ("world", *STAGES, "evaluate", "tabular")},
    **{f"{section}.data_seed": (0, 2**63 - 1) for section in STAGES},
    "world.leak.fraction": (0, 1),
    "world.leak.copies": (1, None),
    "world.leak.seed": (0, 2**63 - 1),
    "world.max_elo": (0, None),
    "world.min_elo": (0, None),
    **{f"world.{split}_puzzles": (1, None) for split in ("sft", "rl", "validation", "test")},
    "world.private_puzzles": (0, None),
    "model.max_positions": (1, None),
    "budget.alpha": (1e-9, 1),
    "budget.rollout_tokens": (0, None),
    "budget.corpus_tokens": (0, None),
    "budget.training_flops_per_s": (1, None),
    "budget.rl_flops_per_s": (1, None),
    "pretrain.tokens": (1, None),
    "pretrain.batch_tokens": (1, None),
    "pretrain.validation_every": (1, None),
    "pretrain.validation_games": (1, None),
    "sft.epochs": (1, None),
    "sft.batch_tokens": (1, None),
    "sft.validation_puzzles": (1, None),
    "sft.validation_samples": (0, None),
    "sft.trace.engine_nodes": (1, None),
    "sft.trace.candidates": (1, None),
    "sft.trace.continuations_min": (1, None),
    "sft.trace.length_min": (1, None),
    "sft.trace.temperature": (1e-3, None),
    "sft.trace.continuations_mean": (1e-3, None),
    "sft.trace.continuations_max": (1, None),
    "sft.trace.continuations_sigma": (0, None),
    "sft.trace.length_mean": (1e-3, None),
    "sft.trace.length_max": (1, None),
    "sft.trace.length_sigma": (0, None),
    "rl.steps": (1, None),
    "rl.prompts": (1, None),
    "rl.temperature": (1e-3, None),
    "rl.thinking_budget": (0, None),
    "rl.validation_every": (1, None),
    "rl.validation_puzzles": (1, None),
    "rl.validation_samples": (1, None),
    "audit.oracle_depth": (1, 100),
    "audit.oracle_nodes": (1, None),
    "audit.documents": (1, None),
    "algorithm.group": (2, None),
    "algorithm.std_floor": (0, None),
    "algorithm.loss_budget": (1, None),
    "algorithm.clip_low": (0, None),
    "algorithm.clip_high": (0, None),
    "algorithm.beta": (0, None),
    "algorithm.epochs": (1, None),
    "algorithm.minibatches": (1, None),
    "algorithm.dual_clip": (0, None),
    "algorithm.entropy_bonus": (0, None),
    "algorithm.pass_k": (1, None),
    "algorithm.gamma": (0, 1),
    "algorithm.gae_lambda": (0, 1),
    "algorithm.value_coefficient": (0, None),
    "algorithm.sampling_rounds": (1, None),
    "algorithm.overlong_share": (0, 1),
    "algorithm.overlong_penalty": (0, None),
    "algorithm.reference_period": (0, None),
    "reward.random_rate": (0, 1),
    "reward.label_samples": (1, None),
    "reward.true_positive_rate": (0, 1),
    "reward.false_positive_rate": (0, 1),
    "reward.oracle_depth": (1, None),
    "reward.oracle_nodes": (1, None),
    "health.constant_steps": (1, None),
    **{f"health.{bound}": (0, None) for bound in ("entropy", "kl", "drift", "grad_norm", "reward_gap")},
    "engine.depth": (1, None),
    "engine.nodes": (1, None),
    "engine.delta": (0, 1),
    "engine.mate_slack": (0, None),
    "engine.hash_mb": (1, None),
    "engine.workers": (0, None),
    "engine.deadline_s": (1e-3, None),
    "evaluate.samples": (1, None),
    "evaluate.temperature": (0, None),
    "evaluate.thinking_budget": (0, None),
    "evaluate.thinking_minimum": (0, None),
    "evaluate.policy_traces": (0, None),
    "evaluate.games": (0, None),
    "evaluate.batch": (1, None),
    "boundary.rounds": (0, None),
    "boundary.puzzles": (0, None),
    "boundary.epochs": (1, None),
    "boundary.batch_tokens": (1, None),
    "boundary.lr": (0, None),
    "analysis.top_k": (1, None),
    "analysis.tail": (0, 1),
    "analysis.seed": (0, 2**63 - 1),
    "rl.curriculum.pass_rate_min": (0, 1),
    "rl.curriculum.pass_rate_max": (0, 1),
    "tabular.puzzles": (1, None),
    "tabular.traces": (1, None),
    "tabular.moves": (2, None),
    "tabular.concentration": (1e-3, None),
    "tabular.top": (1e-6, 0.999999),
    "tabular.gamma": (0, 1),
    "tabular.true_positive": (0, 1),
    "tabular.false_positive": (0, 1),
    "tabular.groups": (1, None),
    "tabular.steps": (1, None),
    "tabular.lr": (0, None),
    "tabular.smoothing": (0, None),
    "tabular.inner_steps": (1, None),
    "tabular.inner_rate": (1e-9, None),
    "tabular.network_steps": (1, None),
    "tabular.network_rate": (1e-9, None),
    "tabular.lowest": (0, 1),
    **{
        f"{stage}.optimizer.{key}": bounds
        for stage in STAGES
        for key, bounds in {
            **{name: (0, None) for name in ("lr", "lr_exponent", "weight_decay")},
            **{name: (0, 1) for name in ("warmup_ratio", "min_lr_ratio", "decay_ratio")},
            **{name: (0, 0.999999) for name in ("beta1", "beta2")},
            "lr_reference": (1, None),
            "clip": (1e-9, None),
        }.items()
    },
}
OPTIONAL_COUNTS = (  # null, or at least 1
    *("sft.tokens", "sft.context", "sft.patience", "sft.trace.budget"),
    *("world.max_games", "sft.max_puzzles", "evaluate.max_puzzles", "evaluate.step", "pretrain.steps", "rl.tokens", "rl.flops", "budget.flops"),
    *(f"{stage}.optimizer.warmup_steps" for stage in STAGES),
)
ORDERED = (  # the first is at most the second
    ("world.min_elo", "world.max_elo"),
    ("sft.trace.continuations_min", "sft.trace.continuations_max"),
    ("sft.trace.length_min", "sft.trace.length_max"),
    ("rl.curriculum.pass_rate_min", "rl.curriculum.pass_rate_max"),
    ("evaluate.thinking_minimum", "evaluate.thinking_budget"),
)
# Lists of at least one value, each in its range or among its choices
LISTS: dict[str, tuple[float, float] | tuple[str, ...]] = {
    "tabular.ks": (1, math.inf),
    "analysis.ks": (1, math.inf),
    "tabular.tops": (1e-6, 0.999999),
    "audit.depths": (1, 100),
    "tabular.clips": (0, 1),
    "tabular.updates": (1, math.inf),
    "tabular.rates": (0, math.inf),
    "tabular.betas": (1e-6, math.inf),
    "tabular.variants": ("std", "groups", "no_std", "mirror", "forward_kl"),
}
VOCABULARIES = (REFERENCE_SIZE, REFERENCE_TRACE_SIZE, len(VOCABULARY))


def check_values(config: Config) -> None:
    """Raises UserError naming the key, its value and what is allowed."""
    check_logger(config.logger)
    for path, allowed in CHOICES.items():
        if value_of(config, path) not in allowed:
            raise UserError(f"{path}={value_of(config, path)}: expected one of {', '.join(allowed)}")
    for path, (low, high) in RANGES.items():
        value = value_of(config, path)
        if not value >= low or (high is not None and value > high) or value == float("inf"):  # "not >=": nan compares false
            raise UserError(f"{path}={value}: expected {f'from {low:g} to {high:g}' if high is not None else f'at least {low:g}'}")
    for path, allowed in LISTS.items():
        values = value_of(config, path)
        choices = isinstance(allowed[0], str)
        if not values or not all(value in allowed if choices else allowed[0] <= value <= allowed[1] for value in values):
            wanted = f"out of {', '.join(allowed)}" if choices else f"from {allowed[0]:g} to {allowed[1]:g}"
            raise UserError(f"{path}={values}: expected at least one value, each {wanted}")
    for path in OPTIONAL_COUNTS:
        value = value_of(config, path)
        if value is not None and value < 1:
            raise UserError(f"{path}={value}: expected at least 1, or null")
    for low, high in ORDERED:
        if value_of(config, low) > value_of(config, high):
            raise UserError(f"{low}={value_of(config, low)}: expected at most {high}={value_of(config, high)}")
    for stage in STAGES:
        if any(step < 1 for step in getattr(config, stage).save_steps):
            raise UserError(f"{stage}.save_steps={getattr(config, stage).save_steps}: expected steps, which count from 1")
    if any(nodes < 1 for nodes in config.baselines.nodes):
        raise UserError(f"baselines.nodes={config.baselines.nodes}: expected numbers of nodes, at least 1 each, or []")
    if config.model.vocabulary not in VOCABULARIES:
        raise UserError(f"model.vocabulary={config.model.vocabulary}: expected one of {', '.join(map(str, VOCABULARIES))}")
    if config.world.state == "snapshot" and config.model.vocabulary != len(VOCABULARY):
        raise UserError(
            f"model.vocabulary={config.model.vocabulary} has no tokens for world.state=snapshot: use {len(VOCABULARY)}, or world.state=history"
        )
    if config.model.heads % config.model.kv_heads:
        raise UserError(f"model.heads={config.model.heads}: expected a multiple of model.kv_heads={config.model.kv_heads}")
    if config.model.head_dim % 2:
        raise UserError(f"model.head_dim={config.model.head_dim}: expected an even number, since rotary positions turn pairs")
    if 0 < config.algorithm.dual_clip <= 1:
        raise UserError(f"algorithm.dual_clip={config.algorithm.dual_clip}: expected more than 1, or 0 for none")
    if config.algorithm.pass_k >= config.algorithm.group:
        raise UserError(
            f"algorithm.pass_k={config.algorithm.pass_k}: expected less than algorithm.group={config.algorithm.group}, whose only subset of so "
            "many is itself"
        )
    for part, weight in config.reward.weights.items():
        if not math.isfinite(weight):
            raise UserError(f"reward.weights.{part}={weight}: expected a finite number")
    if (
        not config.evaluate.ks
        or len(set(config.evaluate.ks)) < len(config.evaluate.ks)
        or min(config.evaluate.ks) < 1
        or max(config.evaluate.ks) > config.evaluate.samples
    ):
        raise UserError(f"evaluate.ks={config.evaluate.ks}: expected different numbers from 1 to evaluate.samples={config.evaluate.samples}")


def check_exact_kl(config: Config, thinks: bool) -> None:
    """Refuse algorithm.kl=exact for a policy that samples traces."""
    if config.algorithm.kl == "exact" and thinks:
        raise UserError("algorithm.kl=exact sums over legal moves, and traces come before them: take k3, k2, k1_reward, or a parent without traces")


def value_of(config: Config, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
