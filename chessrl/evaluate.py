"""Sampling a policy on puzzles, and the evaluation folder made of it: ``samples.parquet``, ``passk.csv``, ``rates.csv``, ``evaluation.json``.
With ``evaluate.trace_metrics`` also ``traces.parquet``, ``trace_metrics.csv`` and ``trace_illegal.csv``; with ``evaluate.exact`` and
``evaluate.policy_traces`` what ``chessrl.measurement`` makes.

``python -m chessrl.evaluate parent=RUN evaluate.split=...``: see ``--help``.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch
from tqdm import tqdm

from chessrl import notation, world
from chessrl.checkpoint import load_model, replace_folder, write_json
from chessrl.children import tell_directory
from chessrl.config import STAGES, Config, EvaluateConfig
from chessrl.environment import Environment
from chessrl.errors import UserError
from chessrl.holdout import open_private
from chessrl.launch import launch
from chessrl.lock import Lock
from chessrl.measurement import measurements
from chessrl.model import Transformer
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.run import adopt_parent, digest, identity_of, leak_of, resolve_device
from chessrl.sampler import OUTCOMES, Rollout, SamplingSettings, rollout
from chessrl.statistics import passk_table, rates_table
from chessrl.trace_report import trace_tables, trace_tokens_of
from chessrl.verifier import cached_labels, engine_identity, environment_of


class Tables(Protocol):
    """Further files of an evaluation folder."""

    def write(self, folder: Path) -> None: ...


def sample_policy(
    model: Transformer, environment: Environment, puzzles: Sequence[Puzzle], state: str, samples: int, settings: SamplingSettings, batch: int,
    description: str | None = None, keep_traces: bool = False,
) -> pd.DataFrame:  # fmt: skip
    """The samples table (design of ``samples.parquet``): ``samples`` episodes of every puzzle, about ``batch`` sequences at a time.

    With ``keep_traces`` it has a further column ``trace``, the tokens of each trace.
    """
    prompts = [prompt_tokens(puzzle, state, think=settings.protocol == "think") for puzzle in puzzles]
    order = sorted(range(len(puzzles)), key=lambda index: len(prompts[index]))  # prompts of like length together: less padding
    per_batch = max(1, batch // samples)
    tables = []
    starts = range(0, len(order), per_batch)
    for start in tqdm(starts, desc=description, unit="batch", disable=description is None):
        chosen = order[start : start + per_batch]
        result = rollout(model, environment, chosen, [prompts[index] for index in chosen], samples, settings)
        table = _table(result, [puzzles[index] for index in chosen], samples, settings)
        tables.append(table.assign(trace=trace_tokens_of(result)) if keep_traces else table)
    return pd.concat(tables).sort_values(["puzzle", "sample"], ignore_index=True)


def _table(result: Rollout, puzzles: Sequence[Puzzle], samples: int, settings: SamplingSettings) -> pd.DataFrame:
    repeated = [puzzle for puzzle in puzzles for _ in range(samples)]
    outcomes = [OUTCOMES[code] for code in result.outcome.tolist()]
    sampled = result.policy.sum(1)
    after_trace = result.trace_lengths + (settings.protocol == "think")  # </T>, or the token beyond the budget
    at_end = result.trace_lengths.clamp(max=result.tokens.shape[1] - 1)[:, None]
    answers = written_answers(result, settings.protocol)
    put_end = (result.tokens.gather(1, at_end) == notation.END_THINK) & ~result.policy.gather(1, at_end)
    return pd.DataFrame(
        {
            "puzzle": [puzzle.id for puzzle in repeated],
            "split": [puzzle.split for puzzle in repeated],
            "bin": [puzzle.bin for puzzle in repeated],
            "sample": [settings.first_sample + sample for _ in puzzles for sample in range(samples)],
            "tokens": sampled.tolist(),
            "solved": result.solved.tolist(),
            "solved_strict": result.strict.tolist(),
            "solved_by_line": result.by_line.tolist(),
            "first_move": [answer.partition(" / ")[0] for answer in answers],
            "answer": answers,
            "legal": result.legal.tolist(),
            "format": result.well_formed.tolist(),
            "truncated": [outcome == "no_end_think" for outcome in outcomes],
            "failure": ["" if outcome == "solved" else outcome for outcome in outcomes],
            "trace_length": result.trace_lengths.tolist(),
            "trace_forced": (put_end.squeeze(1) & (settings.protocol == "think")).tolist(),
            "answer_length": (result.lengths - after_trace).tolist(),
            "logprob": result.logprobs.double().sum(1).tolist(),
            "entropy": (result.entropies.double().sum(1) / sampled.clamp(min=1)).tolist(),
        }
    )


def written_answers(result: Rollout, protocol: str) -> list[str]:
    """Text of each episode's moves as the policy wrote them, ``<call_env>`` left out, " / " between moves; empty where no answer was begun."""
    texts = []
    for tokens, policy, length, thought in zip(
        result.tokens.tolist(), result.policy.tolist(), result.lengths.tolist(), result.trace_lengths.tolist()
    ):
        moves: list[list[int]] = [[]]
        for place in range(thought + 1 if protocol == "think" else 0, length):
            if policy[place] and tokens[place] != notation.CALL_ENV:
                moves[-1].append(tokens[place])
            elif moves[-1]:
                moves.append([])
        texts.append(" / ".join(notation.to_text(move) for move in moves if move))
    return texts


# ---- command ----------------------------------------------------------------------------------------------------------------------------


def known_protocols(parent: dict[str, Any]) -> tuple[str, ...]:
    """The protocols whose tokens the policy has seen, its own first."""
    if parent["stage"] == "pretrain":
        return ("game",)
    return ("think", "answer") if parent.get("traces") else ("answer",)


def protocol_of(asked: str, parent: dict[str, Any]) -> str:
    """``auto``: game for a pretrained policy, which never saw ``<call_env>``; else what the policy was trained with.

    Raises UserError for a protocol whose tokens the policy has never seen.
    """
    known = known_protocols(parent)
    if asked == "auto":
        return known[0]
    if asked not in known:
        raise UserError(f"protocol={asked}: {parent['run_id']} plays by {' or '.join(known)} only, what it was trained with; use auto")
    return asked


def resolve(config: Config) -> dict[str, Any]:
    """The summary of the parent, whose model becomes the config's, and ``config.evaluate`` as it is meant for that policy."""
    parent = adopt_parent(config, STAGES)
    config.evaluate = settings_for(config.evaluate, parent)
    return parent


def settings_for(settings: EvaluateConfig, parent: dict[str, Any]) -> EvaluateConfig:
    """The settings with the protocol that ``auto`` means; what is said of traces falls away where there are none."""
    protocol = protocol_of(settings.protocol, parent)
    without = {} if protocol == "think" else {"thinking": "natural", "thinking_minimum": 0, "trace_metrics": "none"}
    if protocol == "think" and settings.exact:
        raise UserError(
            "evaluate.exact: the success of a policy that thinks is a sum over all traces; leave it out (evaluate.policy_traces measures it given "
            "sampled ones), or use a policy fine-tuned with arm=none"
        )
    if protocol == "game":  # a pretrained policy never saw <call_env>, which an exact success needs
        without["exact"] = False
    else:
        without["games"] = 0
    if settings.verifier == "engine":  # probabilities are measured once, beside the samples that the line judges
        without |= {"exact": False, "policy_traces": 0, "games": 0}
    return replace(settings, protocol=protocol, **without)


def protocol_label(settings: EvaluateConfig) -> str:
    """The protocol as tables name it: with the way of thinking where that is not the policy's own, since pass@k depends on it."""
    if settings.thinking == "natural":
        return settings.protocol
    return "think-forced" if settings.thinking == "forced" else f"think-minimum-{settings.thinking_minimum}"


def evaluation_folder(config: Config) -> Path:
    """Where the evaluation of ``config.parent`` under a resolved ``config.evaluate`` goes: its name hashes all that changes its numbers."""
    identity = {
        "evaluate": identity_of(config.evaluate),
        "puzzles": world.puzzle_hash(config),
        "precision": config.run.arithmetic,
        "device": resolve_device(config.run.device).type,
    }
    if "engine" in (config.evaluate.verifier, config.evaluate.trace_metrics):
        identity["engine"] = engine_identity(config)
    if config.evaluate.games:
        identity["games"] = world.corpus_hash(config)
    return Path(config.parent) / "evaluations" / digest(identity)


def model_folder(directory: Path, step: int | None) -> Path:
    """Of the run's final model, or of the one that it kept at ``step``. Raises UserError where it kept none."""
    if step is None:
        return directory / "model"
    folder = directory / "models" / f"step-{step}"
    if not folder.is_dir():
        kept = sorted(int(path.name.removeprefix("step-")) for path in folder.parent.glob("step-*"))
        raise UserError(f"evaluate.step={step}: {directory} kept models of steps {kept}; name one, or set save_steps and train again")
    return folder


def evaluate(config: Config) -> int:
    """Evaluate the policy of the run ``parent`` and write its folder, unless it is there already."""
    parent = resolve(config)
    folder = evaluation_folder(config)
    whole = folder / "evaluation.json"
    tell_directory(folder)
    if not whole.exists():
        folder.parent.mkdir(exist_ok=True)
        with Lock(folder.with_name(f".{folder.name}.lock"), str(folder)):  # pipelines may share the run: one evaluates, the others wait
            if not whole.exists():
                _evaluate(config, parent, folder)
                return 0
    print(f"evaluate: {folder} is finished, skipped", flush=True)
    return 0


def _evaluate(config: Config, parent: dict[str, Any], folder: Path) -> None:
    directory, settings = Path(config.parent), config.evaluate
    keep_traces = settings.trace_metrics != "none"
    weights, device = model_folder(directory, settings.step), resolve_device(config.run.device)
    model = load_model(weights, precision=config.run.precision, compiled=config.run.compile, device=device)
    opened = open_private(config, parent["run_id"]) if settings.split == world.PRIVATE_SPLIT else world.puzzles_of_split(config, settings.split)
    puzzles = opened[: settings.max_puzzles]
    environment, record = environment_of(config, puzzles, settings.verifier)
    sampling = SamplingSettings(
        settings.protocol, settings.temperature, settings.thinking_budget, settings.spelling, settings.seed, f"evaluate-{settings.split}",
        thinking=settings.thinking, thinking_minimum=settings.thinking_minimum,
    )  # fmt: skip
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    name = f"evaluate {parent['stage']} on {settings.split}" + (" by the engine" if settings.verifier == "engine" else "")
    samples = sample_policy(
        model, environment.to(model.device), puzzles, config.world.state, settings.samples, sampling, settings.batch, name, keep_traces
    )
    leak = leak_of(parent)
    if leak:
        samples["leaked"] = samples["puzzle"].isin(leak["leak"]["puzzles"])
    traces = None
    if keep_traces:
        scores = None
        if settings.trace_metrics == "engine":
            scores, record["trace_engine"] = cached_labels(config, [puzzle.board() for puzzle in puzzles])
        traces = trace_tables(samples, puzzles, scores)
        samples = samples.drop(columns="trace")
    labels = {
        "run": parent["run_id"],
        "stage": parent["stage"],
        "step": settings.step or parent.get("step", 0),
        "split": settings.split,
        "protocol": protocol_label(settings),
        "spelling": settings.spelling,
        "verifier": settings.verifier,
        "temperature": settings.temperature,
        "thinking_budget": settings.thinking_budget,
        "seed": settings.seed,
    }
    further = [] if traces is None else [traces]
    further += measurements(config, model, puzzles, labels)
    write_evaluation(folder, samples, labels, settings.ks, {"settings": asdict(settings)} | leak | record, further)
    print(f"evaluate: {folder}", flush=True)


def write_evaluation(
    folder: Path, samples: pd.DataFrame, labels: dict[str, Any], ks: list[int], record: dict[str, Any], further: Sequence[Tables] = ()
) -> None:
    """Write the folder beside its place and move it there whole. ``record`` goes to evaluation.json beside the labels."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    samples.to_parquet(temporary / "samples.parquet", compression="zstd", index=False)
    passk_table(samples, ks, labels, labels["seed"]).to_csv(temporary / "passk.csv", index=False)
    rates_table(samples, labels, labels["seed"]).to_csv(temporary / "rates.csv", index=False)
    for tables in further:
        tables.write(temporary)
    n_samples = int(samples.groupby("puzzle").size().iloc[0])
    write_json(temporary / "evaluation.json", labels | {"n_samples": n_samples, "n_puzzles": samples["puzzle"].nunique()} | record)
    replace_folder(temporary, folder)


if __name__ == "__main__":
    launch("evaluate", evaluate)
