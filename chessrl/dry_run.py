"""``dry_run=true``: what a command, or every job of its sweep, would cost in FLOPs, tokens, time here and estimated GPU-hours. Nothing is started.

FLOPs are exact for pretraining (6NT). Fine-tuning and RL rest on the expected length of a sequence, which is printed: the parent's measured
one where ``parent`` is given, ``budget.rollout_tokens``, or a guess from the config. Time on a CPU rests on steps that are timed for some seconds
(``chessrl.rates``); GPU-hours rest on rates that the config assumes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import hydra
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from chessrl.boundary import check_rounds
from chessrl.budgets import check_pipeline, expected_sequence_tokens, resolve_pretraining, rl_step_flops, rl_step_sequences, rl_steps
from chessrl.config import TABULAR, BudgetConfig, Config, ModelConfig
from chessrl.config_check import check_values
from chessrl.durations import evaluations_s, fine_tuning_puzzles, fine_tuning_s, pretraining_s, reinforcement_s, work_of
from chessrl.errors import UserError
from chessrl.model import Cost
from chessrl.rates import LARGEST, Rates, measurable, rates
from chessrl.run import digest, read_summary, resolve_device

COMMANDS = {"pretrain": ["pretrain"], "sft": ["sft"], "rl": ["rl"]}  # what each trains; the pipeline: pipeline.stages


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage of one job. ``key`` is equal for stages that would be the same run."""

    key: str
    steps: int
    tokens: int
    flops: float
    gpu_hours: float
    here_s: float | None = None  # on this machine's CPU, where that was measured


@dataclass(frozen=True, slots=True)
class JobCost:
    """``label``: what sets the job apart from the others; ``refused``: why it cannot be carried out, with its numbers."""

    label: str
    stages: dict[str, StageCost]
    parameters: int = 0  # N, without embeddings
    sequence_tokens: int = 0
    further_s: float = 0.0  # the pipeline's evaluations and report
    busy: bool = False  # other work shared the cores while the rates for time here were measured
    rounds: int = 0  # ``boundary.rounds``, whose measures and bridges are in no stage's cost
    refused: str | None = None


def print_costs(command: str, arguments: Sequence[str], compose: Callable[[str, list[str]], Config], params: dict[str, str]) -> int:
    """Print the costs of all jobs of ``command`` with these arguments; the exit status: 2 when not one of them can be carried out."""
    sweep = any(argument in ("-m", "--multirun") for argument in arguments)
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    jobs = [job_cost(label, config, command) for label, config in jobs_of(command, overrides, compose, params if sweep else {})]
    print("\n".join(table(jobs)), flush=True)
    if params and not sweep:
        print("this is one job of the experiment's sweep: add -m for all of them")
    return 0 if any(job.refused is None for job in jobs) else 2


def jobs_of(
    command: str, overrides: list[str], compose: Callable[[str, list[str]], Config], params: dict[str, str]
) -> list[tuple[str, Config]]:
    """Label and configuration of each job: every combination of the swept values; the command line wins over the experiment's ``params``."""
    values: dict[str, list[str]] = {}
    for override in OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in params.items()] + overrides):
        key = override.get_key_element()
        swept = override.is_sweep_override()
        values[key] = list(override.sweep_string_iterator()) if swept else [override.get_value_element_as_str()]
    budgets = {f"budget.{field.name}" for field in fields(BudgetConfig)}
    composed: dict[tuple[str, ...], Config] = {}  # budgets are laid on afterwards: to compose takes a tenth of a second
    jobs = []
    for combination in itertools.product(*values.values()):
        given = [f"{key}={value}" for key, value in zip(values, combination)]
        rest = tuple(override for override in given if override.partition("=")[0] not in budgets)
        if rest not in composed:
            composed[rest] = compose(command, list(rest))
            check_values(composed[rest])
        budget = [override.removeprefix("budget.") for override in given if override not in rest]
        config = replace(composed[rest], budget=with_budget(composed[rest].budget, budget))
        check_values(config)
        swept = [f"{key}={_short(value)}" for (key, several), value in zip(values.items(), combination) if len(several) > 1]
        jobs.append((" ".join(swept) or command, config))
    return jobs


def _short(value: str) -> str:
    """Hydra writes 6.5e15 out in full."""
    return f"{float(value):g}" if re.fullmatch(r"[\d.]+(e[+-]?\d+)?", value) else value


def with_budget(budget: BudgetConfig, overrides: list[str]) -> BudgetConfig:
    """The budget with ``key=value`` texts laid over it. Raises UserError on a value of the wrong type."""
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(budget), OmegaConf.from_dotlist(overrides)))
    except OmegaConfBaseException as error:
        given = " ".join(f"budget.{override}" for override in overrides)
        raise UserError(f"{given}: {str(error).splitlines()[0]}") from None


def job_cost(label: str, shared: Config, command: str) -> JobCost:
    """The cost of one job, or why it is refused. ``shared`` is left as it is: jobs have sections in common."""
    config: Config = OmegaConf.to_object(OmegaConf.structured(shared))
    stages = COMMANDS.get(command, config.pipeline.stages)
    sequence = expected_sequence_tokens(config)
    rounds = config.boundary.rounds if command == "chessrl" and "rl" in stages else 0
    try:
        if TABULAR in stages:
            raise UserError("there is no estimate for tables, which have no model")
        if config.parent:
            parent = read_summary(Path(config.parent))
            config.model = ModelConfig(**parent["model"])
            sequence = config.budget.rollout_tokens or round(parent.get("tokens_per_sequence") or sequence)
        if command == "chessrl":
            check_pipeline(config)
            if rounds:
                check_rounds(config)
        elif command == "pretrain":
            resolve_pretraining(config)
        here = rates_here(config, sequence)
        costs = {stage: STAGE_COSTS[stage](config, sequence, here) for stage in stages}
    except UserError as error:
        return JobCost(label, {}, refused=str(error))
    further = evaluations_s(config, here, sequence) if here and command == "chessrl" else 0.0
    busy = here is not None and here.busy
    return JobCost(label, costs, Cost.of(config.model).parameters_without_embeddings, sequence, further, busy, rounds)


def rates_here(config: Config, sequence: int) -> Rates | None:
    """What this machine's CPU was measured to do with the job's model and lengths; None on a GPU and for a model too large to be timed briefly."""
    if not measurable(config.model, resolve_device(config.run.device)):
        return None
    return rates(work_of(config, sequence, config.run.threads or torch.get_num_threads()), config.outputs)


def _pretraining(config: Config, sequence: int, here: Rates | None) -> StageCost:
    tokens = config.pretrain.tokens
    steps, flops = -(-tokens // config.pretrain.batch_tokens), Cost.of(config.model).training_flops(tokens)
    seconds = pretraining_s(config, here, steps, tokens) if here else None
    return StageCost(_key(config, "pretrain"), steps, tokens, flops, _training_hours(config, flops), seconds)


def _fine_tuning(config: Config, sequence: int, here: Rates | None) -> StageCost:
    tokens = config.sft.tokens or fine_tuning_puzzles(config) * config.sft.epochs * sequence
    steps, flops = -(-tokens // config.sft.batch_tokens), Cost.of(config.model).training_flops(tokens)
    seconds = fine_tuning_s(config, here, steps, tokens, sequence) if here else None
    return StageCost(_key(config, "pretrain", "sft"), steps, tokens, flops, _training_hours(config, flops), seconds)


def _reinforcement(config: Config, sequence: int, here: Rates | None) -> StageCost:
    steps = rl_steps(config, sequence)
    flops = steps * rl_step_flops(config, sequence)
    tokens = steps * rl_step_sequences(config) * sequence
    key = _key(config, "pretrain", "sft", "rl", "algorithm", "reward", "budget", "boundary")
    seconds = reinforcement_s(config, here, steps, sequence) if here else None
    return StageCost(key, steps, tokens, flops, flops / config.budget.rl_flops_per_s / 3600, seconds)


STAGE_COSTS = {"pretrain": _pretraining, "sft": _fine_tuning, "rl": _reinforcement}


def _training_hours(config: Config, flops: float) -> float:
    return flops / config.budget.training_flops_per_s / 3600


def _key(config: Config, *sections: str) -> str:
    return digest([config.parent, *(asdict(getattr(config, section)) for section in ("world", "model", *sections))])


def table(jobs: Sequence[JobCost]) -> list[str]:
    """Lines: one per job, then the sum over distinct runs (an ancestor that jobs share is trained once) and what the estimates rest on."""
    wide = max(len(job.label) for job in jobs)
    lines = []
    for job in jobs:
        if job.refused is not None:
            lines.append(f"{job.label:{wide}}  refused: {job.refused}")
            continue
        parts = "; ".join(f"{name} {_cost(cost)}" for name, cost in job.stages.items())
        hours = sum(cost.gpu_hours for cost in job.stages.values())
        lines.append(f"{job.label:{wide}}  N={job.parameters:,}  {parts}; {hours:.3g} GPU-hours{_here(job)}")
    possible = [job for job in jobs if job.refused is None]
    for stage in dict.fromkeys(stage for job in possible for stage in job.stages):
        runs = {job.stages[stage].key: job.stages[stage] for job in possible}
        flops, tokens, hours = (sum(getattr(cost, name) for cost in runs.values()) for name in ("flops", "tokens", "gpu_hours"))
        lines.append(f"{stage}: {len(runs)} runs, {tokens:,} tokens, {flops:.4g} FLOPs, {hours:,.4g} GPU-hours")
    distinct = {cost.key: cost for job in possible for cost in job.stages.values()}
    lines.append(
        f"in all: {len(possible)} of {len(jobs)} jobs can be carried out, {sum(cost.flops for cost in distinct.values()):.4g} FLOPs, "
        f"{sum(cost.gpu_hours for cost in distinct.values()):,.4g} GPU-hours"
    )
    if possible:
        lines.append(_all_here(possible, list(distinct.values())))
    if any(job.rounds for job in possible):
        lines.append("not counted: what boundary.rounds adds to RL, a measure of the whole rl split before each round, and its bridge")
    if lengths := sorted({job.sequence_tokens for job in possible}):
        lines.append(
            f"expected: {' to '.join(f'{length:,}' for length in dict.fromkeys((lengths[0], lengths[-1])))} tokens a fine-tuning example or "
            "rollout (budget.rollout_tokens sets it); GPU-hours at budget.training_flops_per_s and budget.rl_flops_per_s, which are assumed"
        )
    return lines


def _cost(cost: StageCost) -> str:
    here = "" if cost.here_s is None else f", {_time(cost.here_s)}"
    return f"{cost.tokens:,} tokens in {cost.steps:,} steps, {cost.flops:.3g} FLOPs{here}"


def _here(job: JobCost) -> str:
    seconds = [cost.here_s for cost in job.stages.values() if cost.here_s is not None]
    if not seconds:
        return ""
    evaluations = f" with {_time(job.further_s)} of evaluations" if job.further_s else ""
    return f", or {_time(sum(seconds) + job.further_s)} here{evaluations}"


def _all_here(possible: Sequence[JobCost], distinct: Sequence[StageCost]) -> str:
    """The time of all on this machine, one after another, and what it rests on."""
    if unmeasured := sum(cost.here_s is None for cost in distinct):
        return f"no time on this machine for {unmeasured} runs: it is measured on a CPU, for models of up to {LARGEST:,} parameters"
    total = sum(cost.here_s or 0.0 for cost in distinct) + sum(job.further_s for job in possible)
    busy = "; other work shares its cores: an idle one is faster, so ask again then" if any(job.busy for job in possible) else ""
    return f"on this machine: {_time(total)}, one after another, from steps timed on this CPU{busy}"


def _time(seconds: float) -> str:
    """``3 min 58 s``, ``5.2 h``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 100 else f"{seconds / 3600:,.1f} h"


def sweep_params(command: str, arguments: Sequence[str], conf: Path) -> dict[str, str]:
    """``hydra.sweeper.params`` of the experiment that the arguments name; swept groups do not matter to it."""
    experiments = [argument for argument in arguments if argument.startswith("experiment=") and "," not in argument]
    with hydra.initialize_config_dir(str(conf), version_base="1.3"):
        composed = hydra.compose(command, experiments, return_hydra_config=True)
    return {key: str(value) for key, value in (composed.hydra.sweeper.params or {}).items()}
