"""Which evaluation was made of which policy, which of them follow from one another, and which runs are seeds of one experiment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.read import STAGES, Evaluation, Run
from chessrl.statistics import LABELS

SECTIONS = {"pretrain": ("pretrain",), "sft": ("sft",), "rl": ("rl", "algorithm", "reward")}  # of the configuration, beside world and model
ENGINE_KEYS = ("mode", "depth", "nodes", "delta", "mate_slack")  # which decide what the engine accepts and how it orders moves
SEEDS = ("seed", "data_seed")
SETTINGS = tuple(key for key in LABELS if key not in ("run", "stage", "step", "verifier"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One policy of an experiment, evaluated: a stage's runs of several seeds, at one step."""

    label: str  # SFT, RL 30
    stage: str
    step: int
    runs: tuple[Run, ...]  # by seed
    evaluations: tuple[Evaluation, ...]  # one of each run


@dataclass(frozen=True, slots=True)
class Step:
    """A checkpoint and the one that it began from; the same seeds in both."""

    start: Checkpoint
    later: Checkpoint

    @property
    def name(self) -> str:
        return f"{self.start.label} → {self.later.label}"


def recipe(run: Run, runs: dict[str, Run]) -> str:
    """What two seeds of one experiment share: all settings of the stage but its seeds, and the recipe of the parents that are among the runs."""
    kept = {name: without_seeds(run.settings.get(name)) for name in ("world", "model", *SECTIONS[run.stage])}
    if asks_engine(run):
        engine = run.settings.get("engine") or {}
        kept["engine"] = {key: engine.get(key) for key in ENGINE_KEYS}
    parents = sorted(recipe(runs[parent], runs) if parent in runs else parent for parent in run.parents)
    return json.dumps([run.stage, kept, parents], sort_keys=True, default=str)


def asks_engine(run: Run) -> bool:
    """Whether the engine's verdicts or its order of moves are part of what the run was trained on, or logged as the oracle."""
    if run.stage == "sft":
        trace = (run.settings.get("sft") or {}).get("trace") or {}
        return bool(trace.get("enabled")) and "engine" in (trace.get("proposal"), trace.get("order"), trace.get("answer"))
    reward = (run.settings.get("reward") or {}) if run.stage == "rl" else {}
    parts = reward.get("weights") or {}
    return "engine" in (reward.get("accept"), reward.get("oracle")) or "engine" in parts or "engine_score" in parts


def without_seeds(value: object) -> object:
    """A configuration section, or a value in it, without its seeds at any depth."""
    if isinstance(value, dict):
        return {key: without_seeds(inner) for key, inner in value.items() if key not in SEEDS}
    return value


def _seed_of(run: Run) -> tuple[int, str]:
    section = run.settings.get(run.stage)
    seed = section.get("seed", 0) if isinstance(section, dict) else 0
    return int(seed), run.run_id


def experiments(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs grouped by recipe, in pipeline order, each group by seed."""
    by_id = {run.run_id: run for run in runs}
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(recipe(run, by_id), []).append(run)
    return [sorted(group, key=_seed_of) for group in groups.values()]


def checkpoints(runs: Sequence[Run], file: str) -> list[Checkpoint]:
    """Every policy whose evaluations hold ``file``: by experiment and step, on the split most runs share.

    Of several evaluations of one policy ``_preference`` takes one. A step that not every seed has,
    or seeds evaluated under different settings, make checkpoints of their own.
    """
    having = [(run, evaluation) for run in runs for evaluation in run.evaluations if (evaluation.folder / file).is_file()]
    if not having:
        return []
    splits = [evaluation.labels["split"] for _, evaluation in having]
    split = max(sorted(set(splits)), key=splits.count)
    groups = experiments(runs)
    found = []
    for group in groups:
        stage = group[0].stage
        several = sum(other[0].stage == stage for other in groups) > 1
        name = f"{STAGES[stage]} {group[0].run_id.removeprefix(stage + '-')[:6]}" if several else STAGES[stage]
        best = {(run.run_id, step): evaluation for run in group for step, evaluation in _by_step(run, file, split).items()}
        steps = sorted({step for _, step in best})
        for step in steps:
            label = f"{name} {step}" if stage == "rl" else name
            of_step = [(run, best[run.run_id, step]) for run in group if (run.run_id, step) in best]
            alike: dict[str, list[tuple[Run, Evaluation]]] = {}
            for run, evaluation in of_step:
                alike.setdefault(str([evaluation.labels[key] for key in SETTINGS] + [evaluation.n_puzzles]), []).append((run, evaluation))
            for pairs in alike.values():
                suffix = f" ({pairs[0][0].run_id.removeprefix(stage + '-')[:6]})" if len(alike) > 1 else ""
                found.append(Checkpoint(label + suffix, stage, step, tuple(run for run, _ in pairs), tuple(item for _, item in pairs)))
    return found


def _preference(item: Evaluation) -> tuple[bool, bool, bool, int, int, str]:
    """Judged by the line, thinking as long as the policy likes, at temperature 1; then most puzzles, most samples."""
    as_trained = str(item.labels["protocol"]) in ("game", "answer", "think")
    at_one = item.labels["temperature"] == 1.0
    return item.labels["verifier"] == "line", as_trained, at_one, item.n_puzzles, item.n_samples, item.folder.name


def _by_step(run: Run, file: str, split: object) -> dict[int, Evaluation]:
    """The best evaluation of each step of a run; of a stage other than RL the last step alone."""
    usable = [item for item in run.evaluations if item.labels["split"] == split and (item.folder / file).is_file()]
    usable.sort(key=_preference)
    by_step = {int(item.labels["step"]): item for item in usable}
    return by_step if run.stage == "rl" else dict(sorted(by_step.items())[-1:])


def steps_of(found: Sequence[Checkpoint]) -> list[Step]:
    """Each checkpoint with the one that its runs began from, at that one's last step; those without are left out."""
    steps = []
    for later in found:
        for start in reversed(found):
            if all(any(parent.run_id in run.parents for parent in start.runs) for run in later.runs):
                steps.append(Step(matched(start, later), later))
                break
    return steps


def startless(found: Sequence[Checkpoint], steps: Sequence[Step]) -> list[str]:
    """A sentence naming the checkpoints that are neither a step's start nor its end, if there are any."""
    used = {label for step in steps for label in (step.start.label, step.later.label)}
    alone = [item.label for item in found if item.label not in used]
    return [f"Compared with none, since the policy that it began from is not in runs= or not measured alike: {', '.join(alone)}."] if alone else []


def places_of(start: Checkpoint, later: Checkpoint) -> list[int]:
    """Of each of the later's runs, in their order, which of the start's it began from."""
    return [next(at for at, parent in enumerate(start.runs) if parent.run_id in run.parents) for run in later.runs]


def matched(start: Checkpoint, later: Checkpoint) -> Checkpoint:
    """The start with one run for each of the later's, in their order."""
    places = places_of(start, later)
    return Checkpoint(start.label, start.stage, start.step, *(tuple(items[at] for at in places) for items in (start.runs, start.evaluations)))
