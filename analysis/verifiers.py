"""RL on verifiers that err, beside what theory says of them: rates of learning by J, and the gap between what is paid and what is right.

Takes the finished RL runs below ``outputs`` whose reward is the line or the engine, groups them by verifier (with seeds ``rl.seed``), and measures
pass@1 of each evaluated step against the start: of samples, in the spelling that they were evaluated with (lenient as the reward, by default), and
beside it exactly, which is strict spelling: a lenient reward does not keep a policy from spelling otherwise. Writes ``rates.csv``, ``gaps.csv`` and
the figure ``verifiers``. Predicted: a verifier that errs at random, with J = TPR - FPR and acceptance q = FPR + J p, has J
W_G(q) in place of W_G(p) as the weight of the gradient of p; a plain gradient step then moves a puzzle's p by (p (1 - p))^2 times that. A verifier
whose errors are fixed moves acceptance, and success rises at most to its precision.

Examples:
    python -m analysis.verifiers outputs=outputs/verifiers out=outputs/verifiers/comparison
    python -m analysis.verifiers outputs=outputs/verifiers out=outputs/verifiers/comparison bins=B1,B2
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.comparison import known_start
from analysis.evaluations import check_same_settings
from analysis.figures import DASHES, MARKERS
from analysis.grouped import check_same_puzzles, sampled_by_puzzle
from analysis.read import Evaluation, Run, read_runs
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.figure_style import axes_grid, palette, save_figure, series_legend, styled
from chessrl.run import finished
from chessrl.statistics import nested_differences
from chessrl.theory_weights import group_weight

ENDS = 10  # steps at either end that gaps.csv averages
SMOOTHING = 5  # steps of a running mean in the figure


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """Keys of the command."""

    outputs: str  # the folder that run directories are in
    out: str  # folder for the tables and the figure
    split: str = "test"  # of the puzzles
    bins: tuple[str, ...] = ()  # of the puzzles, all if empty
    seed: int = 0  # of the bootstrap


@dataclass(frozen=True, slots=True, order=True)
class Verifier:
    """Who judges: the line (``engine`` empty) or an engine at a limit, and its random errors."""

    engine: str
    true_positive: float
    false_positive: float

    @property
    def name(self) -> str:
        rates = f"TPR {self.true_positive:g}, FPR {self.false_positive:g}"
        if not self.engine:
            return rates
        return self.engine if (self.true_positive, self.false_positive) == (1, 0) else f"{self.engine}, {rates}"


def verifier_of(run: Run) -> Verifier | None:
    """The verifier of an RL run's reward; None where the reward is another."""
    weights = dict(run.setting("reward.weights"))
    if set(weights) - {"line", "engine"} or not weights:
        return None
    engine = ""
    if "engine" in weights:
        key = "depth" if run.setting("engine.mode") == "depth" else "nodes"
        engine = f"engine, {key} {run.setting(f'engine.{key}')}"
    return Verifier(engine, float(run.setting("reward.true_positive_rate")), float(run.setting("reward.false_positive_rate")))


def by_verifier(runs: Sequence[Run]) -> dict[Verifier, list[Run]]:
    """RL runs of each verifier in the order of their seeds, errors of the line's verdict first. Raises UserError where two are alike."""
    groups: dict[Verifier, dict[object, Run]] = {}
    for run in runs:
        if run.stage != "rl" or (verifier := verifier_of(run)) is None:
            continue
        of_group, seed = groups.setdefault(verifier, {}), run.setting("rl.seed")
        if seed in of_group:
            both = f"{of_group[seed].path} and {run.path}: both are {verifier.name} with rl.seed={seed}"
            raise UserError(f"{both}; keep the sweep in a folder of its own (outputs=)")
        of_group[seed] = run
    order = sorted(groups, key=lambda each: (each.engine, each.false_positive - each.true_positive, each.false_positive))
    return {verifier: [groups[verifier][seed] for seed in sorted(groups[verifier])] for verifier in order}


# ---- rates ------------------------------------------------------------------------------------------------------------------------------


def exact_steps(run: Run, split: str) -> dict[int, Evaluation]:
    """Exact evaluations of the run on the split by the line, by step; of several of a step the one with most samples."""
    found = [each for each in run.evaluations if (each.labels["split"], each.labels["verifier"]) == (split, "line") and each.exact() is not None]
    return {int(each.labels["step"]): each for each in sorted(found, key=lambda each: each.n_samples)}


def success_by_puzzle(evaluation: Evaluation) -> pd.DataFrame:
    """By puzzle (index): bin, sampled (share of its samples that solve it) and exact (strict spelling)."""
    exact = evaluation.exact().set_index("puzzle").sort_index()
    return exact[["bin"]].assign(exact=exact["p"].clip(upper=1.0), sampled=sampled_by_puzzle(evaluation, [1])[1])


def predicted_rate(p: np.ndarray, verifier: Verifier, group: int) -> float:
    """How fast success rises at first, as a multiple of the rate without errors: sum J W_G(q) (p (1 - p))^2 over sum W_G(p) (p (1 - p))^2."""
    advantage = verifier.true_positive - verifier.false_positive
    moved = (p * (1 - p)) ** 2
    return float(advantage * (group_weight(verifier.false_positive + advantage * p, group) @ moved) / (group_weight(p, group) @ moved))


def rates_table(groups: Mapping[Verifier, Sequence[Run]], known: Sequence[Run], settings: VerifierSettings) -> pd.DataFrame:
    """One row per verifier and evaluated step: pass@1 of samples less the start's, the same of exact success, and the predicted rate of the start.

    Intervals are nested over seeds and puzzles.
    """
    rows, compared = [], []
    for verifier, runs in groups.items():
        starts = [known_start(run, known) for run in runs]
        at_start = [max(exact_steps(start, settings.split).items(), default=(0, None))[1] for start in starts]
        of_runs = [exact_steps(run, settings.split) for run in runs]
        steps = sorted(set.intersection(*(set(each) for each in of_runs)))
        if None in at_start or not steps:
            raise UserError(f"{runs[0].path}: it or its start has no exact evaluation on split={settings.split}; evaluate with evaluate.exact=true")
        compared += [*at_start, *(each[step] for each in of_runs for step in steps)]
        check_same_settings(compared)
        bases = [success_by_puzzle(each) for each in at_start]
        kept = bases[0]["bin"].isin(settings.bins or set(bases[0]["bin"])).to_numpy()
        for step in steps:
            tables = [success_by_puzzle(each[step]) for each in of_runs]
            check_same_puzzles([(str(run.path), table) for run, table in zip([*runs, *starts], [*tables, *bases])])
            values, base = (np.stack([table.loc[kept, ["sampled", "exact"]].to_numpy() for table in each]) for each in (tables, bases))
            (change, low, high), (exact, exact_low, exact_high) = nested_differences(base, values, np.random.default_rng(settings.seed))
            each_seed = (values - base)[:, :, 0].mean(1)
            rate = np.nan if verifier.engine else predicted_rate(base.mean(0)[:, 1], verifier, int(runs[0].setting("algorithm.group")))
            rows.append(
                {
                    "verifier": verifier.name, "true_positive": verifier.true_positive, "false_positive": verifier.false_positive,
                    "j": np.nan if verifier.engine else verifier.true_positive - verifier.false_positive, "predicted_rate": rate, "step": step,
                    "seeds": len(runs), "start": base[:, :, 0].mean(), "success": values[:, :, 0].mean(), "difference": change, "ci_low": low,
                    "ci_high": high, "seed_low": each_seed.min(), "seed_high": each_seed.max(), "exact_start": base[:, :, 1].mean(),
                    "exact_difference": exact, "exact_low": exact_low, "exact_high": exact_high,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


# ---- gaps -------------------------------------------------------------------------------------------------------------------------------


def gap_curves(groups: Mapping[Verifier, Sequence[Run]]) -> pd.DataFrame:
    """verifier, step, seed, accepted (the verifier's verdict, 0 to 1) and gap (it less the oracle's) of every logged step.

    Both are means over the episodes that the verifier could tell. Raises UserError where a run did not log them.
    """
    logged = {"reward/verifier": "accepted", "reward/gap": "gap"}
    tables = []
    for verifier, runs in groups.items():
        for run in runs:
            if missing := [name for name in logged if name not in run.metrics]:
                raise UserError(f"{run.path / 'metrics.jsonl'}: no {missing[0]}, the verdict that is compared with the oracle's: run it again")
            tables.append(run.metrics[["step", *logged]].assign(verifier=verifier.name, seed=run.setting("rl.seed")))
    return pd.concat(tables, ignore_index=True).rename(columns=logged)


def gaps_table(curves: pd.DataFrame) -> pd.DataFrame:
    """One row per verifier: what it and the oracle accept of the same episodes, their gap and ratio over the first and the last ENDS steps.

    Means over seeds; the change of the gap also for the lowest and the highest seed. Their ratio is the verifier's precision where it refuses nothing
    that is right.
    """
    rows = []
    for verifier, of_verifier in curves.groupby("verifier", sort=False):
        last = of_verifier["step"].max()
        parts = {"first": of_verifier[of_verifier["step"] <= ENDS], "last": of_verifier[of_verifier["step"] > last - ENDS]}
        row: dict[str, object] = {"verifier": verifier, "seeds": of_verifier["seed"].nunique()}
        gaps = []
        for name, part in parts.items():
            means = part.groupby("seed")[["accepted", "gap"]].mean()
            gaps.append(means["gap"])
            accepted, gap = means.mean()
            row |= {f"accepted_{name}": accepted, f"oracle_{name}": accepted - gap, f"gap_{name}": gap}
            row[f"oracle_over_accepted_{name}"] = (accepted - gap) / accepted
        growth = gaps[1] - gaps[0]
        rows.append(row | {"gap_change": growth.mean(), "gap_change_low": growth.min(), "gap_change_high": growth.max()})
    return pd.DataFrame(rows)


# ---- figure and command -----------------------------------------------------------------------------------------------------------------


@styled
def verifiers_figure(rates: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """pass@1 over steps, its change at the end over the predicted rate (random errors), and verifier less oracle over steps."""
    names = list(dict.fromkeys(rates["verifier"]))
    colours = dict(zip(names, palette(len(names))))
    predicted = rates["predicted_rate"].notna().any()
    figure, panels = axes_grid(3 if predicted else 2, 3, 2.4)
    success, gap = panels[0], panels[-1]
    for place, name in enumerate(names):
        rows = rates[rates["verifier"] == name].sort_values("step")
        steps, change = [0, *rows["step"]], [0.0, *(100 * rows["difference"])]
        success.plot(steps, change, color=colours[name], marker=MARKERS[place % len(MARKERS)], markersize=3.5)
        success.fill_between(steps, [0.0, *(100 * rows["ci_low"])], [0.0, *(100 * rows["ci_high"])], color=colours[name], alpha=0.12, linewidth=0)
        if predicted:
            last = rows.iloc[-1]
            bounds = 100 * np.array([[last["difference"] - last["ci_low"]], [last["ci_high"] - last["difference"]]])
            panels[1].errorbar(
                last["predicted_rate"], 100 * last["difference"], yerr=bounds, color=colours[name], marker=MARKERS[place % len(MARKERS)],
                markersize=4, capsize=2.5, elinewidth=1.1,
            )  # fmt: skip
        smooth = curves[curves["verifier"] == name].groupby("step")["gap"].mean().rolling(SMOOTHING, center=True, min_periods=1).mean()
        gap.plot(smooth.index, smooth, color=colours[name], linestyle=DASHES[place // 10 % len(DASHES)])
    success.set_xlabel("RL step")
    success.set_ylabel("change of pass@1 (points)")
    if predicted:
        panels[1].set_xlabel("predicted rate (1: no errors)")
        panels[1].set_ylabel("change at the last step (points)")
        panels[1].axvline(0, color="#444444", linewidth=0.8, zorder=1)
    gap.set_xlabel("RL step")
    gap.set_ylabel("verifier less oracle")
    for axes in panels:
        axes.axhline(0, color="#444444", linewidth=0.8, zorder=1)
    marks = [Line2D([], [], color=colours[name], marker=MARKERS[place % len(MARKERS)], markersize=3.5) for place, name in enumerate(names)]
    series_legend(figure, marks, names, "upper")
    return figure


def main(arguments: list[str]) -> None:
    settings = parse_settings(VerifierSettings, arguments)
    paths = [path for stage in ("sft", "rl") for path in sorted(Path(settings.outputs).glob(f"{stage}-*")) if finished(path)]
    if not any(path.name.startswith("rl-") for path in paths):
        raise UserError(f"outputs={settings.outputs}: no finished RL run is below it; give the outputs= of the sweep")
    runs = read_runs(paths)
    groups = by_verifier(runs)
    if not groups:
        raise UserError(f"outputs={settings.outputs}: no RL run there is paid by the line or the engine alone; give the outputs= of such a sweep")
    rates, curves = rates_table(groups, runs, settings), gap_curves(groups)
    gaps = gaps_table(curves)
    out = make_folder(settings.out, "out")
    rates.to_csv(out / "rates.csv", index=False)
    gaps.to_csv(out / "gaps.csv", index=False)
    save_figure(verifiers_figure(rates, curves), out, "verifiers")
    print(rates.drop(columns=["true_positive", "false_positive"]).to_string(index=False, float_format=lambda value: f"{value:+.4f}"))
    print(gaps.to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    print(f"{sum(map(len, groups.values()))} runs of {len(groups)} verifiers -> {out}")


if __name__ == "__main__":
    sys.exit(run_command(main))
