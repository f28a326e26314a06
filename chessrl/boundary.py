"""RL in rounds, after the recipe of Cai et al., arXiv 2606.22317: find the boundary of what the policy can solve, bridge it
by fine-tuning on a few puzzles on both sides of it, consolidate by RL, and again with the policy that comes out.

Each part is a command of the pipeline (``chessrl.pipeline``), so a pipeline that was stopped skips what is finished and goes on. The boundary is
found by exact success on the rl split where the policy answers without a trace, by 256 samples of every puzzle where it thinks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chessrl.children import quoted
from chessrl.config import Config, CurriculumConfig
from chessrl.errors import UserError
from chessrl.tiers import SAMPLES, boundary_puzzles, read_measured, tier_counts

Call = Callable[..., Path]  # a module and its further overrides; the folder that the command made
DATA_SEEDS_APART = 1_000_000  # of one round's order of puzzles from the next one's: steps count from 1 in each


def check_rounds(config: Config) -> None:
    """Raises UserError where the rounds cannot share out the RL."""
    rounds, settings = config.boundary.rounds, config.rl
    budgets = (settings.tokens, settings.flops, config.budget.flops)  # each round would have the whole of them
    if any(budget is not None for budget in budgets) or settings.steps < rounds:
        raise UserError(
            f"boundary.rounds={rounds}: expected rl.steps of at least as many, without rl.tokens, rl.flops and budget.flops, to be shared out"
        )
    if settings.save_steps or config.run.rerun:
        key = "run.rerun=true" if config.run.rerun else f"rl.save_steps={settings.save_steps}"
        raise UserError(f"boundary.rounds={rounds} and {key}: every round keeps its own final model and is skipped when it is finished; leave it out")


def further_commands(config: Config) -> int:
    """What the rounds add, at most, to the commands of a pipeline with one RL run: a round without a puzzle near the boundary has no bridge."""
    rounds = config.boundary.rounds
    if not rounds or "rl" not in config.pipeline.stages:
        return 0
    runs = rounds * (1 + (config.boundary.puzzles > 0))
    return rounds + (runs - 1) * (1 + config.pipeline.evaluate)


def carry_out(config: Config, start: Path, call: Call) -> list[Path]:
    """The run directories of all rounds, in order: of each its bridge, if it has one, and its RL. ``start``: the run whose policy comes first."""
    policy, made = start, []
    for number in range(1, config.boundary.rounds + 1):
        measured = measure(config, policy, call)
        table = read_measured(measured)
        counts = ", ".join(f"{tier} {count:,}" for tier, count in tier_counts(table["tier"]).items())
        print(f"round {number} of {config.boundary.rounds}, rl split: {counts}", flush=True)
        if puzzles := boundary_puzzles(table, config.boundary.puzzles):
            policy = call("sft", f"parent={quoted(policy)}", *bridge_overrides(config, puzzles), "run.wait=true")
            made.append(policy)
        policy = call("rl", f"parent={quoted(policy)}", *round_overrides(config, number, measured), "run.wait=true")
        made.append(policy)
    return made


def measure(config: Config, policy: Path, call: Call) -> Path:
    """How well the policy solves each puzzle of the rl split, as ``rl.curriculum.measured`` takes it."""
    thinks = config.sft.trace.enabled
    samples, exact = (SAMPLES, "false") if thinks else (1, "true")
    overrides = [f"evaluate.samples={samples}", "evaluate.ks=[1]", f"evaluate.exact={exact}", "evaluate.trace_metrics=none"]
    always = ["evaluate.split=rl", "evaluate.max_puzzles=null", "evaluate.step=null", "evaluate.policy_traces=0", "evaluate.verifier=line"]
    folder = call("chessrl.evaluate", f"parent={quoted(policy)}", *always, *overrides)
    return folder if thinks else folder / "exact.parquet"


def bridge_overrides(config: Config, puzzles: list[str]) -> list[str]:
    """Fine-tuning on these puzzles. A policy that thinks no longer plays lines of its own: the engine's take their place."""
    settings = config.boundary
    guided = ["sft.trace.proposal=engine"] if config.sft.trace.enabled and config.sft.trace.proposal == "model" else []
    return [
        f"sft.puzzles=[{','.join(puzzles)}]", "sft.max_puzzles=null", f"sft.epochs={settings.epochs}", "sft.tokens=null", "sft.patience=null",
        "sft.save_steps=[]", f"sft.batch_tokens={settings.batch_tokens}", f"sft.optimizer.lr={settings.lr}", *guided,
    ]  # fmt: skip


def round_overrides(config: Config, number: int, measured: Path) -> list[str]:
    """The RL of round ``number`` (from 1): its share of the steps, another order of puzzles, and the measure where the curriculum asks for one."""
    settings, rounds = config.rl, config.boundary.rounds
    steps = settings.steps * number // rounds - settings.steps * (number - 1) // rounds
    asks = settings.curriculum != CurriculumConfig()
    return [
        f"rl.steps={steps}", f"rl.data_seed={settings.data_seed + DATA_SEEDS_APART * (number - 1)}",
        *([f"rl.curriculum.measured={quoted(measured)}"] if asks else []),
    ]  # fmt: skip
