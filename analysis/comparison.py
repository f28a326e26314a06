"""RL runs of a sweep side by side, grouped by the keys that were swept and each paired with the policy it started from.

Takes the finished RL runs in the folder ``outputs``. Runs that agree in the keys ``by`` are a group, told apart by ``seeds``. Writes ``passk.csv``,
``changes.csv`` (to the start), ``coverage.csv`` (crossover, Delta_SE, four cells), ``curves.csv``, ``measures.csv``, the figures ``comparison`` and
``curves``, and ``comparison.md``, all of it as a page. pass@k is exact where the evaluations are (``evaluate.exact=true``), else of their samples.

Examples:
    python -m analysis.comparison outputs=outputs/algorithms by=algorithm.name out=outputs/algorithms/comparison
    python -m analysis.comparison outputs=outputs/rewards by=reward.name,algorithm.minibatches out=outputs/rewards/comparison ks=1,16 exact=false
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.comparison_page import changes_figure, group_curves_figure, page
from analysis.coverage import CELLS, coverage_cells, crossover, delta_se
from analysis.evaluations import JUDGING, check_same_settings, start_of
from analysis.grouped import check_same_puzzles, exact_by_puzzle, passk_tables, sampled_by_puzzle
from analysis.read import Evaluation, Run, read_runs
from analysis.resampling import Weights
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.figure_style import save_figure
from chessrl.run import finished

SHOWN_KS = ("1", "4", "16", "64", "256", "1024", "10000", "100000", "1000000")  # where success is exact
SAMPLED_KS = ("1", "4", "16")
LARGE_K = 256  # of Delta_SE and the four cells (Yue et al., arXiv 2504.13837), or the largest k below it
MEASURES = {  # of every RL step -> its name in the figure
    "reward": "training reward",
    "reward/oracle": "oracle reward",
    "validation/pass_at_1": "validation pass@1",
    "entropy": "entropy (nats a token)",
    "kl": "KL to the start (nats a token)",
}
ENDS = 5  # logged steps at either end that measures.csv averages, of few at most half


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """Keys of the command."""

    outputs: str  # the folder that run directories are in
    by: tuple[str, ...]  # configuration keys: runs that agree in them are a group
    out: str  # folder for tables, figures and comparison.md
    seeds: str = "rl.seed"  # the key that tells a group's runs apart
    split: str = "test"  # of the puzzles
    ks: tuple[str, ...] = ()  # k of pass@k, 1 always among them; empty: 1, 4 and 16 of samples, up to a million where success is exact
    bins: tuple[str, ...] = ()  # of the puzzles, all if empty
    exact: bool = True  # false: samples are compared even where success is known exactly (lenient spelling, few k)
    seed: int = 0  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that agree in the swept keys, in the order of their seeds, each with the run that it started from."""

    name: str
    runs: tuple[Run, ...]
    starts: tuple[Run, ...]


# ---- which runs -------------------------------------------------------------------------------------------------------------------------


def group_runs(runs: Sequence[Run], by: Sequence[str], seeds: str) -> list[Group]:
    """The RL runs among ``runs`` by their values of the keys ``by``; their starts are found among ``runs`` by name.

    A group is named by its value of the first key and by those values of the others that differ from the most frequent one. Raises UserError where
    two runs of a group have one seed, or a start is missing.
    """
    trained = [run for run in runs if run.stage == "rl"]
    values = {run.run_id: tuple(run.setting(key) for key in by) for run in trained}
    usual = [max(column, key=lambda value: (column.count(value), str(value))) for column in ([*each] for each in zip(*values.values()))]
    groups: dict[str, dict[object, Run]] = {}
    for run in sorted(trained, key=lambda run: [(str(type(value)), value) for value in (*values[run.run_id], run.setting(seeds))]):
        own = values[run.run_id]
        further = [f"{key.rpartition('.')[2]}={value}" for key, value, often in [*zip(by, own, usual)][1:] if value != often]
        name = ", ".join([str(own[0]) if isinstance(own[0], str) else f"{by[0].rpartition('.')[2]}={own[0]}", *further])
        of_group, seed = groups.setdefault(name, {}), run.setting(seeds)
        if seed in of_group:
            raise UserError(
                f"{of_group[seed].path} and {run.path}: both are {name} with {seeds}={seed}; name the key in which they differ in by= or seeds=, "
                "or keep the sweep in a folder of its own (outputs=)"
            )
        of_group[seed] = run
    return [Group(name, tuple(found.values()), tuple(known_start(run, runs) for run in found.values())) for name, found in groups.items()]


def known_start(run: Run, runs: Sequence[Run]) -> Run:
    """The policy that an RL run started from. Raises UserError where it is not below the same folder."""
    start = start_of(run, runs)
    if start is None:
        name = Path(str(run.setting("parent"))).name
        raise UserError(f"{run.path}: its start {name} is not a finished run below outputs=; put it there, for changes are measured from it")
    return start


def final_evaluation(run: Run, split: str) -> Evaluation:
    """The one evaluation of the run's last step on the split by the line, an exact one if there is any. Raises UserError unless it is one."""
    found = [
        evaluation
        for evaluation in run.evaluations
        if (evaluation.labels["split"], evaluation.labels["verifier"], evaluation.labels["step"]) == (split, "line", run.summary.get("step", 0))
    ]
    found = [evaluation for evaluation in found if evaluation.exact() is not None] or found
    if len(found) != 1:
        raise UserError(f"{run.path}: {len(found)} evaluations of its last step on split={split} by the line, expected one; evaluate it so")
    return found[0]


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """pass@k (seeds, puzzles, ks) of each group, of its starts, and of all different starts; the puzzles' bins."""

    values: dict[str, np.ndarray]
    bases: dict[str, np.ndarray]
    starts: np.ndarray
    bins: pd.Series
    ks: list[int]
    exact: bool


def measured(groups: Sequence[Group], settings: ComparisonSettings) -> Measured:
    """The final evaluations of all groups. Raises UserError where they cannot be compared."""
    runs = {run.run_id: run for group in groups for run in (*group.runs, *group.starts)}
    evaluations = {name: final_evaluation(run, settings.split) for name, run in runs.items()}
    check_same_settings([*evaluations.values()], JUDGING)
    for group in groups:  # different groups may think differently
        check_same_settings([evaluations[run.run_id] for run in (*group.runs, *group.starts)])
    exact = {name: evaluation.exact() if settings.exact else None for name, evaluation in evaluations.items()}
    without = [name for name, table in exact.items() if table is None]
    if without and len(without) < len(exact):
        raise UserError(f"{runs[without[0]].path}: its evaluation is not exact as others are; evaluate it with evaluate.exact=true")
    ks = sorted({1, *map(int, settings.ks or (SAMPLED_KS if without else SHOWN_KS))})
    tables = {name: sampled_by_puzzle(evaluations[name], ks) if without else exact_by_puzzle(table, ks) for name, table in exact.items()}
    check_same_puzzles([(str(runs[name].path), table) for name, table in tables.items()])
    bins = next(iter(tables.values()))["bin"]
    kept = bins.isin(settings.bins or set(bins)).to_numpy()
    if not kept.any():
        raise UserError(f"bins={','.join(settings.bins)}: no puzzle of these bins was evaluated, expected some of {', '.join(sorted(set(bins)))}")

    def stacked(of: Sequence[Run]) -> np.ndarray:
        return np.stack([tables[run.run_id].loc[kept, ks].to_numpy() for run in of])

    starts = {run.run_id: run for group in groups for run in group.starts}
    return Measured(
        values={group.name: stacked(group.runs) for group in groups},
        bases={group.name: stacked(group.starts) for group in groups},
        starts=stacked([*starts.values()]),
        bins=bins[kept],
        ks=ks,
        exact=not without,
    )


def coverage_table(found: Measured, seed: int) -> pd.DataFrame:
    """One row per group: crossover k*, Delta_SE and the four cells at a large k; intervals over puzzles, and over seeds where there are several."""
    ks = found.ks
    large = max((k for k in ks if k <= LARGE_K), default=min(ks))
    at, rows = ks.index(large), []
    for group, trained in found.values.items():
        before = found.bases[group]
        weights = Weights.draw(trained.shape[1], len(trained), np.random.default_rng(seed))
        crossing = crossover(before, trained, ks, weights)
        gap, low, high = delta_se(before[..., at], trained[..., 0], weights)
        cells = dict(zip(CELLS, coverage_cells(before[..., at], trained[..., at]).mean((0, 1))))
        rows.append(
            {
                "policy": group, "crossover_k": crossing.k, "crossover_low": crossing.low, "crossover_high": crossing.high,
                "never_crosses": crossing.never, "k": large, "delta_se": gap, "delta_se_low": low, "delta_se_high": high, **cells,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def curves_of_groups(groups: Sequence[Group]) -> pd.DataFrame:
    """MEASURES of every logged step by group: mean over seeds, the lowest and the highest seed."""
    tables = [
        run.metrics.reindex(columns=["step", *MEASURES]).melt("step", var_name="metric").dropna().assign(policy=group.name)
        for group in groups
        for run in group.runs
    ]
    spread = pd.concat(tables).groupby(["policy", "metric", "step"], sort=False)["value"]
    return spread.agg(mean="mean", low="min", high="max", seeds="size").reset_index()


def measures_table(groups: Sequence[Group]) -> pd.DataFrame:
    """MEASURES by group over the first and the last ENDS logged steps: mean over seeds, the lowest and the highest seed."""
    rows = []
    for group in groups:
        for metric in MEASURES:
            logged = [run.metrics[metric].dropna() for run in group.runs if metric in run.metrics]
            if not logged or any(series.empty for series in logged):
                continue
            ends = [(each[:width], each[-width:]) for each in logged for width in [max(1, min(ENDS, len(each) // 2))]]
            first, last = (np.array([part.mean() for part in parts]) for parts in zip(*ends))
            row = {"policy": group.name, "metric": metric, "seeds": len(logged), "first": first.mean(), "last": last.mean()}
            rows.append(row | {"last_low": last.min(), "last_high": last.max()})
    return pd.DataFrame(rows)


# ---- command ----------------------------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    settings = parse_settings(ComparisonSettings, arguments)
    paths = [path for stage in ("sft", "rl") for path in sorted(Path(settings.outputs).glob(f"{stage}-*")) if finished(path)]
    if not any(path.name.startswith("rl-") for path in paths):
        raise UserError(f"outputs={settings.outputs}: no finished RL run is below it; give the outputs= of the sweep")
    groups = group_runs(read_runs(paths), settings.by, settings.seeds)
    found = measured(groups, settings)
    starts, _ = passk_tables({"start": found.starts}, {}, found.bins, found.ks, settings.seed)
    passk, changes = passk_tables(found.values, found.bases, found.bins, found.ks, settings.seed)
    tables = {
        "passk": pd.concat([starts, passk], ignore_index=True),
        "changes": changes,
        "coverage": coverage_table(found, settings.seed),
        "curves": curves_of_groups(groups),
        "measures": measures_table(groups),
    }
    out = Path(settings.out)
    make_folder(out, "out")
    for name, frame in tables.items():
        frame.to_csv(out / f"{name}.csv", index=False)
    save_figure(changes_figure(changes), out, "comparison")
    save_figure(group_curves_figure(tables["curves"], MEASURES), out, "curves")
    (out / "comparison.md").write_text(page(tables, found.exact), encoding="utf-8")
    shown = changes[(changes["bin"] == "all") & (changes["k"] == found.ks[0])]
    print(shown.drop(columns=["bin"]).to_string(index=False, float_format=lambda value: f"{value:+.4f}"))
    print(f"{sum(len(group.runs) for group in groups)} runs in {len(groups)} groups -> {out}")


if __name__ == "__main__":
    sys.exit(run_command(main))
