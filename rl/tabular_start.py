"""Where a tabular run starts from: a finished run's own move policy, a measured policy's file, or a made-up prior."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chessrl import world
from chessrl.checkpoint import load_model, written_beside
from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.evaluate import protocol_of
from chessrl.policy import policy_table
from chessrl.run import Run, adopt_parent, resolve_device
from chessrl.sampler import SamplingSettings
from chessrl.sources import file_record
from rl.tabular_policy import MoveTable, prior, read_policy

STAGES = ("pretrain", "sft", "rl")
START_FILE = "start.parquet"  # the policy of the parent, as it was measured


def start_identity(config: Config) -> dict[str, Any]:
    """What decides the policy that a run starts from, beside the tabular keys. Raises UserError for what is not there."""
    settings = config.tabular
    if config.parent and settings.policy:
        raise UserError(f"parent={config.parent} and tabular.policy={settings.policy}: give the one or the other to start from")
    if settings.policy:
        if not Path(settings.policy).is_file():
            raise UserError(f"tabular.policy={settings.policy}: no such file; give a policy.parquet, or leave the key empty for a made-up prior")
        return {"policy": file_record(Path(settings.policy))["sha256"]}
    if not config.parent:
        return {}
    parent = adopt_parent(config, STAGES)
    return {
        "parent": parent["run_id"],
        "protocol": protocol_of(config.rl.protocol, parent),
        "bins": config.rl.bins,
        "temperature": config.rl.temperature,
        "thinking_budget": config.rl.thinking_budget,
        "puzzles": world.puzzle_hash(config),
        "state": config.world.state,
        "precision": config.run.precision,
        "device": resolve_device(config.run.device).type,
    }


def start_table(run: Run) -> tuple[MoveTable, dict[str, int]]:
    """The policy to start from, and what was left out of it, by reason."""
    settings = run.config.tabular
    if run.config.parent:
        if not (run.directory / START_FILE).exists():  # else a run that was stopped goes on
            measure_parent(run)
        return read_policy(run.directory / START_FILE)
    if settings.policy:
        return read_policy(Path(settings.policy))
    made = prior(
        settings.prior, settings.puzzles, settings.moves, concentration=settings.concentration, top=settings.top, seed=settings.seed
    )
    return made, {}


def measure_parent(run: Run) -> None:
    """Write the parent's policy over the legal moves of the first ``tabular.puzzles`` puzzles of the rl split (of ``rl.bins``).

    A policy that thinks is measured behind ``tabular.traces`` sampled traces of each puzzle, over which it is averaged.
    """
    config, settings = run.config, run.config.tabular
    protocol = run.identity["start"]["protocol"]
    model = load_model(Path(config.parent) / "model", precision=config.run.precision, device=run.device)
    puzzles = world.puzzles_of_split(config, "rl", config.rl.bins)[: settings.puzzles]
    sampling = SamplingSettings(protocol, config.rl.temperature, config.rl.thinking_budget, seed=settings.seed, stage="tabular-start")
    table, cut = policy_table(model, puzzles, config.world.state, sampling, settings.traces, config.evaluate.batch)
    if protocol == "think":
        without = len(puzzles) - table["puzzle"].nunique()
        print(f"tabular: of {len(puzzles) * settings.traces:,} traces the budget cut {cut:,}; puzzles left without one: {without:,}", flush=True)
    with written_beside(run.directory / START_FILE) as temporary:
        table.to_parquet(temporary, compression="zstd", index=False)
