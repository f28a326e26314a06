"""Curricula side by side: what RL on each newly solves, beside what re-sampling the start policy would solve.

Takes the finished RL runs in the folder ``outputs`` from which no other run goes on, each with the policy that its first round started from. Success
is exact (``evaluate.exact=true``), so tiers have no sampling noise and the null is exact too: of the puzzles that n = 256 samples of the start leave
unsolved, sum (1 - p0)^n in expectation, the later policy solves sum (1 - p0)^n (1 - (1 - p1)^n), and n fresh samples of the start sum (1 - p0)^n
(1 - (1 - p0)^n). Exact success is that of strict spelling; ``changes.csv`` holds pass@1 of samples, in the spelling of the evaluation, beside it.
Writes ``changes.csv``, ``newly_solved.csv``, ``migration.csv``, ``costs.csv`` and the figure ``curriculum``.

Examples:
    python -m analysis.curriculum outputs=outputs/curriculum out=outputs/curriculum/comparison
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.comparison import final_evaluation
from analysis.evaluations import check_same_settings
from analysis.grouped import check_same_puzzles, passk_tables, sampled_by_puzzle
from analysis.read import Run, read_runs
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.figure_style import axes_grid, palette, save_figure, styled
from chessrl.run import finished
from chessrl.statistics import nested_bounds
from chessrl.theory_weights import pass_at_k_objective
from chessrl.tiers import LEAST_PROBABILITY, SAMPLES, migration_table, tiers_of_probabilities

KS = [1, 16, 256, 4096]


@dataclass(frozen=True, slots=True)
class CurriculumSettings:
    """Keys of the command."""

    outputs: str  # the folder that run directories are in
    out: str  # folder for the tables and the figure
    split: str = "test"  # of the puzzles
    seeds: str = "rl.seed"  # the key that tells an arm's runs apart
    seed: int = 0  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Chain:
    """One run of a curriculum: the policy it began with, and every fine-tuning and RL run from there to its end."""

    arm: str
    start: Run
    runs: tuple[Run, ...]


# ---- which runs -------------------------------------------------------------------------------------------------------------------------


def arm_of(run: Run) -> str:
    """The curriculum of an RL run by its settings, in the names of ``conf/curriculum``."""
    rounds, puzzles = run.setting("boundary.rounds"), run.setting("boundary.puzzles")
    if rounds > 1 or puzzles:
        return "boundary" if puzzles else "rounds"
    if run.setting("rl.curriculum.order") != "shuffled":
        return str(run.setting("rl.curriculum.order"))
    return "pass_rate" if run.setting("rl.curriculum.measured") else "shuffled"


def chains_of(runs: Sequence[Run]) -> list[Chain]:
    """One chain for every RL run that is no other's parent. Raises UserError where an ancestor is not among ``runs``."""
    known = {run.run_id: run for run in runs}
    parents = {run.run_id: Path(str(run.setting("parent"))).name for run in runs}
    chains = []
    for last in runs:
        if last.stage != "rl" or last.run_id in parents.values():
            continue
        chain = [last]
        while not parents[chain[0].run_id].startswith("pretrain-"):
            parent = parents[chain[0].run_id]
            if parent not in known:
                raise UserError(f"{chain[0].path}: its start {parent} is not a finished run below outputs=; put it there")
            chain.insert(0, known[parent])
        chains.append(Chain(arm_of(last), chain[0], tuple(chain[1:])))
    return chains


def by_arm(chains: Sequence[Chain], seeds: str) -> dict[str, list[Chain]]:
    """Chains of each arm in the order of their seeds. Raises UserError where two of an arm have one seed, or arms have different seeds."""
    arms: dict[str, dict[object, Chain]] = {}
    for chain in sorted(chains, key=lambda chain: (chain.arm, chain.runs[-1].setting(seeds))):
        of_arm, seed = arms.setdefault(chain.arm, {}), chain.runs[-1].setting(seeds)
        if seed in of_arm:
            ends = f"{of_arm[seed].runs[-1].path} and {chain.runs[-1].path}"
            raise UserError(f"{ends}: both are {chain.arm} with {seeds}={seed}; keep the sweep in a folder of its own (outputs=)")
        of_arm[seed] = chain
    if len({tuple(of_arm) for of_arm in arms.values()}) > 1:
        raise UserError(f"arms have different seeds ({', '.join(f'{arm} {list(of_arm)}' for arm, of_arm in arms.items())}): finish the sweep first")
    return {arm: list(of_arm.values()) for arm, of_arm in arms.items()}


def success_of(run: Run, split: str) -> pd.DataFrame:
    """Exact success on the split by puzzle (index): bin and p. Raises UserError where the run's evaluation is not exact."""
    exact = final_evaluation(run, split).exact()
    if exact is None:
        raise UserError(f"{run.path}: its evaluation on split={split} is not exact; evaluate it with evaluate.exact=true")
    return exact.set_index("puzzle").sort_index()[["bin", "p"]]


@dataclass(frozen=True, slots=True)
class Policies:
    """Success (seeds, puzzles) of the policies at the end of each arm, and of their starts; ``bins`` by puzzle."""

    after: dict[str, np.ndarray]
    before: dict[str, np.ndarray]
    bins: pd.Series


def sampled_of(run: Run, split: str) -> pd.DataFrame:
    """The same as shares of samples, in the spelling of the evaluation."""
    return sampled_by_puzzle(final_evaluation(run, split), [1]).rename(columns={1: "p"})


def policies_of(arms: Mapping[str, Sequence[Chain]], split: str, success: Callable[[Run, str], pd.DataFrame]) -> Policies:
    """The ends of all arms, and ``bridge alone``: the first bridge of an arm that has one, before any RL, once where seeds share it."""
    ends = {arm: [(chain.start, chain.runs[-1]) for chain in chains] for arm, chains in arms.items()}
    for chains in arms.values():
        if all(chain.runs[0].stage == "sft" for chain in chains):
            ends["bridge alone"] = [*{chain.runs[0].run_id: (chain.start, chain.runs[0]) for chain in chains}.values()]
    check_same_settings([final_evaluation(run, split) for pairs in ends.values() for pair in pairs for run in pair])
    tables = {run.run_id: success(run, split) for pairs in ends.values() for pair in pairs for run in pair}
    check_same_puzzles([*tables.items()])
    after = {arm: np.stack([tables[end.run_id]["p"] for _, end in pairs]) for arm, pairs in ends.items()}
    before = {arm: np.stack([tables[start.run_id]["p"] for start, _ in pairs]) for arm, pairs in ends.items()}
    return Policies(after, before, next(iter(tables.values()))["bin"])


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


def changes_table(found: Policies, ks: Sequence[int], seed: int) -> pd.DataFrame:
    """pass@k minus the start's, by arm, bin and k, with nested intervals (``analysis.grouped``)."""
    values, bases = (
        {arm: pass_at_k_objective(np.minimum(p, 1.0)[..., None], np.array(ks)) for arm, p in policies.items()}
        for policies in (found.after, found.before)
    )
    return passk_tables(values, bases, found.bins, ks, seed)[1]


def newly_solved_table(found: Policies, seed: int, samples: int = SAMPLES) -> pd.DataFrame:
    """One row per arm, means over seeds, in puzzles: unsolved by the start, newly solved, the null, and the excess with its nested interval.

    lost and its null are the same the other way round: solved by the start's samples and not by the later policy's, or the start's fresh ones.
    up and down: puzzles whose p crossed 1/256, which no sampling blurs.
    """
    rng, rows = np.random.default_rng(seed), []
    for arm, after in found.after.items():
        before, count = found.before[arm], after.shape[1]
        solve0, solve1 = (pass_at_k_objective(np.minimum(p, 1.0), samples) for p in (before, after))
        excess, net = (1 - solve0) * (solve1 - solve0), solve1 - solve0
        lows, highs = nested_bounds(np.stack([excess, net], -1), rng)
        least = LEAST_PROBABILITY[-1]
        each = {
            "unsolved": 1 - solve0, "newly_solved": (1 - solve0) * solve1, "null": (1 - solve0) * solve0, "excess": excess,
            "lost": solve0 * (1 - solve1), "lost_null": solve0 * (1 - solve0), "net": net,
            "up": (before < least) & (after >= least), "down": (before >= least) & (after < least),
        }  # fmt: skip
        row = {name: float(values.sum(1).mean()) for name, values in each.items()}
        row |= {"excess_low": count * lows[0], "excess_high": count * highs[0], "net_low": count * lows[1], "net_high": count * highs[1]}
        per_seed = excess.sum(1)
        rows.append({"arm": arm, "seeds": len(after), "puzzles": count, **row, "excess_seeds": " ".join(f"{value:.1f}" for value in per_seed)})
    return pd.DataFrame(rows)


def migration_rows(found: Policies) -> pd.DataFrame:
    """Puzzles by tier before and after, averaged over seeds, one row per arm and tier before."""
    tables = []
    for arm, after in found.after.items():
        counts = [
            migration_table(*(pd.Series(tiers_of_probabilities(p), found.bins.index) for p in pair)) for pair in zip(found.before[arm], after)
        ]
        tables.append((sum(counts) / len(counts)).reset_index().assign(arm=arm))
    return pd.concat(tables, ignore_index=True)


def cost_table(arms: Mapping[str, Sequence[Chain]], seeds: str) -> pd.DataFrame:
    """One row per chain: its value of the key ``seeds``, steps and tokens of RL, and puzzles and tokens of the bridges."""
    rows = []
    for arm, chains in arms.items():
        for chain in chains:
            trained, bridges = ([run.summary for run in chain.runs if run.stage == stage] for stage in ("rl", "sft"))
            rows.append(
                {
                    "arm": arm, "end": chain.runs[-1].run_id, "seed": chain.runs[-1].setting(seeds),
                    "rl_steps": sum(each["step"] for each in trained), "rl_tokens": sum(each["tokens"] for each in trained),
                    "bridge_puzzles": sum(each["puzzles"] for each in bridges), "bridge_tokens": sum(each["tokens"] for each in bridges),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


# ---- figure and command ------------------------------------------------------------------------------------------------------------------


@styled
def curriculum_figure(changes: pd.DataFrame, newly: pd.DataFrame) -> Figure:
    """Left: change of pass@k at two k by arm; right: puzzles newly solved beyond the null, and the net number, by arm."""
    arms = list(newly["arm"])
    figure, (left, right) = axes_grid(2, 2, 0.9 + 0.3 * len(arms))
    colours = palette(2)
    for place, k in enumerate((1, 256)):
        rows = changes[(changes["bin"] == "all") & (changes["k"] == k)].set_index("policy").loc[arms][["difference", "ci_low", "ci_high"]] * 100
        _points(left, rows["difference"], rows["ci_low"], rows["ci_high"], place, colours[place], f"pass@{k}")
    for place, (name, label) in enumerate((("excess", "newly solved, less the null"), ("net", "newly solved, less lost"))):
        _points(right, newly[name], newly[f"{name}_low"], newly[f"{name}_high"], place, colours[place], label)
    left.set_yticks(range(len(arms)), arms)
    right.set_yticks(range(len(arms)), [])
    left.set_xlabel("change to the start (points)")
    right.set_xlabel(f"test puzzles, {SAMPLES} samples each")
    for axes in (left, right):
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.axvline(0, color="#444444", linewidth=0.8, zorder=1)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 0.75 / (0.9 + 0.3 * len(arms))), ncols=1)
    return figure


def _points(axes, values, low, high, place: int, colour, label: str) -> None:
    at = np.arange(len(values)) + 0.16 * (2 * place - 1)
    bounds = np.abs(np.stack([values - low, high - values]))
    axes.errorbar(values, at, xerr=bounds, fmt="o" if place == 0 else "s", color=colour, markersize=4, capsize=2.5, elinewidth=1.1, label=label)


def main(arguments: list[str]) -> None:
    settings = parse_settings(CurriculumSettings, arguments)
    paths = [path for stage in ("sft", "rl") for path in sorted(Path(settings.outputs).glob(f"{stage}-*")) if finished(path)]
    if not any(path.name.startswith("rl-") for path in paths):
        raise UserError(f"outputs={settings.outputs}: no finished RL run is below it; give the outputs= of the sweep")
    arms = by_arm(chains_of(read_runs(paths)), settings.seeds)
    found = policies_of(arms, settings.split, success_of)
    sampled = changes_table(policies_of(arms, settings.split, sampled_of), [1], settings.seed).assign(success="sampled")
    exact, newly = changes_table(found, KS, settings.seed).assign(success="exact"), newly_solved_table(found, settings.seed)
    changes = pd.concat([exact, sampled], ignore_index=True)
    out = make_folder(settings.out, "out")
    tables = {"changes": changes, "newly_solved": newly, "migration": migration_rows(found), "costs": cost_table(arms, settings.seeds)}
    for name, frame in tables.items():
        frame.to_csv(out / f"{name}.csv", index=False)
    save_figure(curriculum_figure(exact, newly), out, "curriculum")
    shown = changes[(changes["bin"] == "all") & changes["k"].isin((1, 256))].drop(columns=["bin", "n_puzzles"])
    print(shown.to_string(index=False, float_format=lambda value: f"{value:+.4f}"))
    print(newly.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
    print(f"{sum(map(len, arms.values()))} chains of {len(arms)} arms -> {out}")


if __name__ == "__main__":
    sys.exit(run_command(main))
