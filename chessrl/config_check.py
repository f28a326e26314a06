"""Values that no command can work with: ranges and choices of single keys, checked before anything is started."""

from __future__ import annotations

from typing import Any

from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.tracking import check_logger

CHOICES: dict[str, tuple[str, ...]] = {
    "world.name": ("endgame", "lichess"),
    "world.state": ("snapshot", "history"),
    "run.device": ("auto", "cpu", "cuda"),
    "run.precision": ("fp32", "bf16", "fp64"),
    "rl.protocol": ("auto", "think", "answer"),
    "evaluate.protocol": ("auto", "think", "answer", "game"),
    "evaluate.spelling": ("lenient", "strict"),
    "evaluate.verifier": ("line", "engine"),
    "algorithm.advantage": ("group_std", "group_mean"),
    "algorithm.loss_norm": ("sequence", "token", "constant"),
    "reward.accept": ("line", "engine"),
    "engine.mode": ("depth", "searchmoves"),
    **{f"{stage}.optimizer.schedule": ("cosine", "constant") for stage in ("pretrain", "sft", "rl")},
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
    "pretrain.batch_tokens": (1, None),
    "pretrain.validation_every": (1, None),
    "pretrain.validation_games": (1, None),
    "sft.epochs": (1, None),
    "sft.batch_tokens": (1, None),
    "sft.validation_puzzles": (1, None),
    "sft.trace.candidates": (1, None),
    "sft.trace.continuations_min": (1, None),
    "sft.trace.length_min": (1, None),
    "sft.trace.temperature": (1e-3, None),
    "rl.steps": (1, None),
    "rl.prompts": (1, None),
    "rl.temperature": (1e-3, None),
    "rl.thinking_budget": (0, None),
    "rl.validation_every": (1, None),
    "rl.validation_puzzles": (1, None),
    "rl.validation_samples": (1, None),
    "algorithm.group": (2, None),
    "algorithm.loss_budget": (1, None),
    "algorithm.clip_low": (0, None),
    "algorithm.clip_high": (0, None),
    "algorithm.beta": (0, None),
    "algorithm.epochs": (1, None),
    "algorithm.minibatches": (1, None),
    "engine.depth": (1, None),
    "engine.nodes": (1, None),
    "engine.delta": (0, 1),
    "engine.mate_slack": (0, None),
    "evaluate.samples": (1, None),
    "evaluate.temperature": (0, None),
    "evaluate.thinking_budget": (0, None),
    "evaluate.batch": (1, None),
    **{f"{stage}.optimizer.lr": (0, None) for stage in ("pretrain", "sft", "rl")},
    **{f"{stage}.optimizer.warmup_ratio": (0, 1) for stage in ("pretrain", "sft", "rl")},
    **{f"{stage}.optimizer.min_lr_ratio": (0, 1) for stage in ("pretrain", "sft", "rl")},
}
OPTIONAL_COUNTS = ("world.max_games", "sft.max_puzzles", "evaluate.max_puzzles")  # null, or at least 1
VOCABULARIES = (81, 85, 101)  # the released checkpoints', and ours


def check_values(config: Config) -> None:
    """Raises UserError naming the key, its value and what is allowed."""
    check_logger(config.logger)
    for path, allowed in CHOICES.items():
        if value_of(config, path) not in allowed:
            raise UserError(f"{path}={value_of(config, path)}: expected one of {', '.join(allowed)}")
    for path, (low, high) in RANGES.items():
        value = value_of(config, path)
        if value < low or (high is not None and value > high):
            raise UserError(f"{path}={value}: expected {f'from {low:g} to {high:g}' if high is not None else f'at least {low:g}'}")
    for path in OPTIONAL_COUNTS:
        value = value_of(config, path)
        if value is not None and value < 1:
            raise UserError(f"{path}={value}: expected at least 1, or null for all")
    if config.model.vocabulary not in VOCABULARIES:
        raise UserError(f"model.vocabulary={config.model.vocabulary}: expected one of {', '.join(map(str, VOCABULARIES))}")
    if config.model.heads % config.model.kv_heads:
        raise UserError(f"model.heads={config.model.heads}: expected a multiple of model.kv_heads={config.model.kv_heads}")
    if config.model.head_dim % 2:
        raise UserError(f"model.head_dim={config.model.head_dim}: expected an even number, since rotary positions turn pairs")
    if not config.evaluate.ks or min(config.evaluate.ks) < 1 or max(config.evaluate.ks) > config.evaluate.samples:
        raise UserError(f"evaluate.ks={config.evaluate.ks}: expected numbers from 1 to evaluate.samples={config.evaluate.samples}")


def value_of(config: Config, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value
