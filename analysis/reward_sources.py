"""What a reward is worth beside rewards that know nothing: pass@1 of RL runs by reward, and how each run drifted.

Definitions: Spurious Rewards, arXiv 2506.10947 (baselines random and format); entropy law R = -a e^H + b, arXiv 2505.22617.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from analysis.chains import ENGINE_KEYS, recipe, without_seeds
from analysis.evaluations import last_evaluation, settings_of, solved_share, start_of
from analysis.read import Evaluation, Run
from chessrl.errors import UserError
from chessrl.statistics import LEVEL, RESAMPLES, nested_differences, nested_means

BASELINES = ("random", "format")  # rewards that do not know the answer
SETUP_SECTIONS = ("world", "model", "algorithm", "rl")  # what runs of one table must share
END_SHARE = 0.1  # of the logged steps, at either end
BLOCKS = 10  # of consecutive steps, resampled whole: neighbouring steps are not independent
MINIMUM_STEPS = 20


@dataclass(frozen=True, slots=True)
class Trained:
    """An RL run with its reward, seed, start and setup, and pass@1 of each puzzle before and after, aligned."""

    run: Run
    reward: str
    variant: str  # six hex digits of the reward's settings: rewards of one name may differ in rates or engine
    seed: int
    start: str
    setup: str
    before: pd.Series
    after: pd.Series

    @property
    def pair(self) -> tuple[int, str]:
        """What two runs must share to be paired."""
        return self.seed, self.start


def setup_of(run: Run, start: Run, evaluation: Evaluation, runs: Sequence[Run]) -> str:
    """Six hex digits of what the run and its start were done and evaluated with but for reward and seeds: equal for runs that a table may compare."""
    sections = {name: without_seeds(run.settings.get(name, {})) for name in SETUP_SECTIONS}
    return _digits(sections | {"start": recipe(start, {other.run_id: other for other in runs}), "evaluation": settings_of(evaluation)})


def variant_of(run: Run) -> str:
    """Six hex digits of all that decides what a rollout of the run was paid: the reward but for its oracle, and the engine where it is asked."""
    reward = {key: value for key, value in run.setting("reward").items() if not key.startswith("oracle")}
    asked = reward["accept"] == "engine" or "engine_score" in reward.get("weights", {})
    return _digits({"reward": reward, "engine": {key: run.setting(f"engine.{key}") for key in ENGINE_KEYS} if asked else {}})


def _digits(sections: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(sections, sort_keys=True, default=str).encode()).hexdigest()[:6]


def trained_runs(runs: Sequence[Run], split: str) -> tuple[list[Trained], list[str]]:
    """The RL runs that can be compared with their start on ``split``, and a line for each that cannot."""
    found, missing = [], []
    for run in (run for run in runs if run.stage == "rl"):
        start = start_of(run, runs)
        own = last_evaluation(run, split)
        of_start = last_evaluation(start, split, like=own) if start and own else None
        if of_start is None:
            unlike = f"it or its start has no evaluation on {split} by the line, or theirs were made under different settings"
            missing.append(f"{run.run_id} is left out: {'its start is not among runs=' if start is None else unlike}.")
            continue
        before, after = solved_share(of_start), solved_share(own)
        shared = before.index.intersection(after.index)
        values, setup = (before[shared], after[shared]), setup_of(run, start, own, runs)
        found.append(Trained(run, str(run.setting("reward.name")), variant_of(run), int(run.setting("rl.seed")), start.run_id, setup, *values))
    return found, missing


def reward_table(trained: Sequence[Trained], rng: np.random.Generator) -> pd.DataFrame:
    """By setup and reward (and variant of it): pass@1 before and after and the change, nested intervals over seeds and puzzles.

    Raises UserError where two runs of one setup and reward have one start and seed: they differ in something that the table does not know.
    """
    rows = []
    for (setup, reward, variant), group in _groups(trained).items():
        puzzles = _shared_puzzles(group)
        before, after = (np.stack([getattr(item, name)[puzzles].to_numpy() for item in group])[:, :, None] for name in ("before", "after"))
        [(start, *_)], [(end, low, high)] = nested_means(before, rng), nested_means(after, rng)
        [(change, change_low, change_high)] = nested_differences(before, after, rng)
        place = {"setup": setup, "reward": reward, "variant": variant, "seeds": len(group), "n_puzzles": len(puzzles), "pass_at_1_start": start}
        place |= {"pass_at_1": end, "ci_low": low, "ci_high": high}
        rows.append(place | {"change": change, "change_low": change_low, "change_high": change_high})
    return pd.DataFrame(rows)


def reward_differences(trained: Sequence[Trained], accuracy: str, rng: np.random.Generator) -> pd.DataFrame:
    """By setup: pass@1 of the reward ``accuracy`` less that of each other one, paired by puzzle and by the seeds and starts that both have."""
    groups = _groups(trained)
    of_accuracy = {key: group for key, group in groups.items() if key[1] == accuracy}
    others = {key: group for key, group in groups.items() if key[1] != accuracy}
    rows = []
    for ((setup, reward, baseline_variant), group), ((own_setup, _, variant), own) in product(others.items(), of_accuracy.items()):
        pairs = sorted({item.pair for item in group} & {item.pair for item in own})
        if setup != own_setup or not pairs:
            continue
        chosen = [[next(item for item in side if item.pair == pair) for pair in pairs] for side in (group, own)]
        puzzles = _shared_puzzles([*chosen[0], *chosen[1]])
        other, best = (np.stack([item.after[puzzles].to_numpy() for item in side])[:, :, None] for side in chosen)
        [(difference, low, high)] = nested_differences(other, best, rng)
        place = {"setup": setup, "reward": accuracy, "variant": variant, "baseline": reward, "baseline_variant": baseline_variant}
        place |= {"seeds": len(pairs), "n_puzzles": len(puzzles)}
        rows.append(place | {"difference": difference, "ci_low": low, "ci_high": high})
    return pd.DataFrame(rows)


def _groups(trained: Sequence[Trained]) -> dict[tuple[str, str, str], list[Trained]]:
    """By setup, reward and variant, in the order of seeds."""
    groups: dict[tuple[str, str, str], list[Trained]] = {}
    for item in sorted(trained, key=lambda item: (item.setup, item.reward, item.variant, item.pair)):
        group = groups.setdefault((item.setup, item.reward, item.variant), [])
        if group and group[-1].pair == item.pair:
            raise UserError(
                f"{group[-1].run.path} and {item.run.path}: both have reward {item.reward} and rl.seed={item.seed} under the same settings; name one"
            )
        group.append(item)
    return groups


def _shared_puzzles(group: Sequence[Trained]) -> pd.Index:
    shared = group[0].after.index
    for item in group[1:]:
        shared = shared.intersection(item.after.index)
    if shared.empty:
        raise UserError(f"{group[0].run.path} and {group[-1].run.path}: they were evaluated on different puzzles; evaluate both on the same")
    return shared


# ---- drift ------------------------------------------------------------------------------------------------------------------------------

DRIFT = {
    "completions/mean_length": "tokens of an answer",
    "completions/mean_length_correct": "tokens of a right answer",
    "completions/mean_length_incorrect": "tokens of a wrong answer",
    "completions/clipped_ratio": "truncated traces (share)",
    "completions/distinct_answers": "distinct legal answers of a group",
    "entropy": "entropy (nats a sampled token)",
    "root/entropy": "entropy of the first move, exact (nats)",
    "kl": "KL from policy to start (nats a token)",
    "kl_from_reference": "KL from start to policy (nats a token)",
    "root/kl": "KL from policy to start at the first move, exact (nats)",
    "root/kl_from_reference": "KL from start to policy at the first move, exact (nats)",
    "clip_ratio/low": "tokens clipped below (share)",
    "clip_ratio/high": "tokens clipped above (share)",
    "frac_reward_zero_std": "groups without variance (share)",
}


def drift_table(run: Run) -> pd.DataFrame:
    """One row per logged measure of DRIFT: mean over the first and the last tenth of the steps, the change, and 95 % intervals.

    The intervals take the steps of an end as independent, from their spread.
    """
    rows = []
    for metric, name in DRIFT.items():
        if metric not in run.metrics:
            continue
        values = run.metrics[metric].dropna().to_numpy(np.float64)
        count = max(2, round(END_SHARE * len(values)))
        if len(values) < 2 * count:
            continue
        first, last = values[:count], values[-count:]
        error = np.sqrt(first.var(ddof=1) / count + last.var(ddof=1) / count)
        change = last.mean() - first.mean()
        row = {"run": run.run_id, "reward": str(run.setting("reward.name")), "metric": metric, "measure": name, "steps_averaged": count}
        half = 1.96 * last.std(ddof=1) / np.sqrt(count)
        row |= {"first": first.mean(), "last": last.mean(), "last_low": last.mean() - half, "last_high": last.mean() + half, "change": change}
        rows.append(row | {"change_low": change - 1.96 * error, "change_high": change + 1.96 * error})
    return pd.DataFrame(rows)


def entropy_law(run: Run, rng: np.random.Generator, entropy: str = "entropy") -> dict[str, object] | None:
    """R = -a e^H + b by least squares over a run's logged steps, R the oracle's share of right answers and H the entropy of a step's rollouts.

    a, b and R2, and the ceiling b - a that the law gives at H = 0; intervals resample BLOCKS blocks of consecutive steps. None for a run that
    logged fewer than MINIMUM_STEPS, or whose entropy does not vary.
    """
    if not {entropy, "reward/oracle"} <= set(run.metrics.columns):
        return None
    logged = run.metrics[[entropy, "reward/oracle"]].dropna()
    if len(logged) < MINIMUM_STEPS or logged[entropy].nunique() == 1:
        return None
    x, reward = np.exp(logged[entropy].to_numpy()), logged["reward/oracle"].to_numpy()
    slope, intercept, fit = _line(x, reward)
    blocks = np.array_split(np.arange(len(x)), BLOCKS)
    draws = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([blocks[place] for place in rng.integers(0, BLOCKS, BLOCKS)])
        if np.ptp(x[chosen]) > 0:
            again = _line(x[chosen], reward[chosen])
            draws.append((-again[0], again[1], again[0] + again[1]))
    bounds = np.quantile(draws, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=0)
    row: dict[str, object] = {"run": run.run_id, "reward": str(run.setting("reward.name")), "entropy": entropy, "steps": len(x), "R2": fit}
    for place, (name, value) in enumerate({"a": -slope, "b": intercept, "ceiling": slope + intercept}.items()):
        row |= {name: value, f"{name}_low": bounds[0, place], f"{name}_high": bounds[1, place]}
    return row


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Slope, intercept and R2 of least squares; R2 is NaN where y does not vary."""
    slope, intercept = np.polyfit(x, y, 1)
    spread = ((y - y.mean()) ** 2).sum()
    return float(slope), float(intercept), float(1 - ((y - slope * x - intercept) ** 2).sum() / spread) if spread else float("nan")
