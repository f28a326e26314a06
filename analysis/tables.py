"""The tables behind the report: pure functions from runs to frames. Every figure is drawn from one of them and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from analysis.read import Evaluation, Run
from chessrl.errors import UserError
from chessrl.statistics import COMPARISON_COLUMNS, FAILURES, LABELS, bootstrap_means, comparison_table, paired_differences

SMOOTHING_SHARE = 0.05  # width of the running mean, as a share of a curve's logged steps
FINAL_KS = (1, 4, 16)
FINAL_FIGURES = (*(f"pass@{k}" for k in FINAL_KS), "legal")  # columns of the final table
SETTINGS = ("protocol", "spelling", "temperature", "thinking_budget", "seed")
JUDGES = ("line", "engine", "engine − line")  # the last is the paired difference
SPLITS = ("test", "validation")  # preferred in this order where runs were evaluated on several


@dataclass(frozen=True, slots=True)
class Policy:
    """A run's evaluation that is drawn, with its name in figures."""

    label: str
    run: Run
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Selection:
    """Which evaluations are drawn: one split, each run's last step, the largest of those with equal labels; the others are counted."""

    split: str
    policies: tuple[Policy, ...]  # one verifier
    other_verifiers: tuple[Policy, ...]  # the same runs and settings under another verifier
    runs_without: tuple[str, ...]
    rest: int  # evaluations of earlier steps or other splits
    smaller: int  # evaluations that differ from a drawn one in nothing but their puzzles or samples


def select_evaluations(runs: Sequence[Run]) -> Selection:
    """Choose the split most runs were evaluated on (test before validation on a tie), each run's last step, the line verifier if any.

    Where a run has several such evaluations (temperatures, say), its label names the settings that differ. Of several with equal
    labels the one with most puzzles is drawn, then most samples.
    """
    everything = [(run, evaluation) for run in runs for evaluation in run.evaluations]
    if not everything:
        return Selection("", (), (), tuple(run.label for run in runs), 0, 0)
    split = _common_split(everything)
    drawn: dict[bool, list[Policy]] = {True: [], False: []}
    verifiers = sorted({str(evaluation.labels["verifier"]) for _, evaluation in everything})
    main_verifier = "line" if "line" in verifiers else verifiers[0]
    rest = smaller = 0
    for run in runs:
        of_split = [evaluation for evaluation in run.evaluations if evaluation.labels["split"] == split]
        last = max((evaluation.labels["step"] for evaluation in of_split), default=None)
        of_last_step = [evaluation for evaluation in of_split if evaluation.labels["step"] == last]
        final = _largest(of_last_step)
        rest += len(run.evaluations) - len(of_last_step)
        smaller += len(of_last_step) - len(final)
        varying = [key for key in SETTINGS if len({evaluation.labels[key] for evaluation in final}) > 1]
        for evaluation in sorted(final, key=lambda item: [str(item.labels[key]) for key in SETTINGS]):
            settings = ", ".join(f"{key.replace('_', ' ')} {evaluation.labels[key]}" for key in varying)
            label = f"{run.label} ({settings})" if settings else run.label
            drawn[evaluation.labels["verifier"] == main_verifier].append(Policy(label, run, evaluation))
    seen = {policy.run.run_id for policy in drawn[True]}
    return Selection(
        split=split,
        policies=tuple(drawn[True]),
        other_verifiers=tuple(drawn[False]),
        runs_without=tuple(run.label for run in runs if run.run_id not in seen),
        rest=rest,
        smaller=smaller,
    )


def _largest(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """One evaluation per set of labels: most puzzles, then most samples; the folder's name decides between equals."""
    ascending = sorted(evaluations, key=lambda item: (item.n_puzzles, item.n_samples, item.folder.name))
    return list({tuple(evaluation.labels[key] for key in LABELS): evaluation for evaluation in ascending}.values())


def _common_split(everything: Sequence[tuple[Run, Evaluation]]) -> str:
    pairs = {(run.run_id, str(evaluation.labels["split"])) for run, evaluation in everything}
    splits = [split for _, split in pairs]

    def preference(split: str) -> tuple[int, int, str]:
        return (-splits.count(split), SPLITS.index(split) if split in SPLITS else len(SPLITS), split)

    return min(splits, key=preference)


def runs_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: size N (without embeddings), tokens, FLOPs, final losses and reward, wall time; then all parameters and ids.

    Final training figures are the running mean at the last logged step; the validation loss is the last one logged. RL has no loss
    here: its objective is no cross-entropy. FLOPs of trace sampling stand in the rows of fine-tuning, those of a fine-tuned parent included.
    """
    rows = []
    for run in runs:
        own_traces = run.summary.get("flops_by_stage", {}).get("traces") if run.stage == "sft" else None
        rows.append(
            {
                "policy": run.label,
                "N": run.summary["parameters"]["without_embeddings"],
                "tokens": run.summary["tokens"],
                "steps": int(run.metrics["step"].max()),
                "FLOPs": float(run.summary["flops"]),
                "FLOPs of traces": float("nan") if own_traces is None else float(own_traces),
                "loss": float("nan") if run.stage == "rl" else _last(run, "loss"),
                "validation loss": _last(run, "validation/loss"),
                "reward": _last(run, "reward"),
                "seconds": _last(run, "time/wall_s"),
                "all parameters": run.summary["parameters"]["total"],
                "run": run.run_id,
                "parents": " ".join(run.parents),
            }
        )
    return pd.DataFrame(rows)


def _last(run: Run, metric: str) -> float:
    """Last smoothed value of a metric; the clock is taken as it is, a missing metric is NaN."""
    if metric not in run.metrics or run.metrics[metric].isna().all():
        return float("nan")
    values = run.metrics[metric].dropna()
    return float(values.iloc[-1] if metric.startswith("time/") else _smooth(metric, values).iloc[-1])


def _smooth(metric: str, values: pd.Series) -> pd.Series:
    """Centred running mean over SMOOTHING_SHARE of the points; validation figures are measured on fixed data and stay as they are."""
    window = 1 if metric.startswith("validation/") else max(1, round(len(values) * SMOOTHING_SHARE))
    return values.rolling(window, center=True, min_periods=1).mean()


def curves_table(runs: Sequence[Run], metrics: Sequence[str]) -> pd.DataFrame:
    """Long table of logged metrics: policy, run, step, tokens (cumulative), metric, value, smoothed. Absent metrics have no rows."""
    parts = []
    for run, metric in product(runs, metrics):
        if metric not in run.metrics:
            continue
        logged = run.metrics[["step", "tokens", metric]].dropna().rename(columns={metric: "value"})
        part = logged.assign(policy=run.label, run=run.run_id, metric=metric, smoothed=_smooth(metric, logged["value"]))
        parts.append(part)
    columns = ["policy", "run", "step", "tokens", "metric", "value", "smoothed"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def labelled(policies: Sequence[Policy], kind: str) -> pd.DataFrame:
    """The pass@k ("passk") or rates ("rates") tables of the policies, one below the other, with a leading `policy` column."""
    parts = [getattr(policy.evaluation, kind).assign(policy=policy.label) for policy in policies]
    if not parts:
        return pd.DataFrame()
    table = pd.concat(parts, ignore_index=True)
    return table[["policy", *[name for name in table.columns if name != "policy"]]]


def all_evaluations(runs: Sequence[Run], kind: str) -> pd.DataFrame:
    """Every evaluation's table of a kind, drawn or not, with its folder's name."""
    parts = [getattr(evaluation, kind).assign(evaluation=evaluation.folder.name) for run in runs for evaluation in run.evaluations]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def failures_table(policies: Sequence[Policy]) -> pd.DataFrame:
    """Per policy, share of samples by outcome (solved, then FAILURES) over all puzzles: policy, outcome, share, interval."""
    rates = labelled(policies, "rates")
    if rates.empty:
        return rates
    outcomes = {"solved": "solved"} | {f"failure/{reason}": reason for reason in FAILURES}
    table = rates[(rates["bin"] == "all") & rates["metric"].isin(list(outcomes))]
    table = table.assign(outcome=table["metric"].map(outcomes)).rename(columns={"value": "share"})
    return table[["policy", "outcome", "share", "ci_low", "ci_high", "n_puzzles"]].reset_index(drop=True)


def verifier_table(selection: Selection, seed: int) -> pd.DataFrame:
    """pass@1 of engine-verified samples as line and as engine judge them, and the paired difference, per policy and bin ("all" first).

    Columns policy, bin, judge (line, engine, engine − line), value, ci_low, ci_high, n_puzzles, n_samples (per puzzle). Both judge the
    same samples: an episode under the engine counts for the line if every move of it is the line's or mates. seed: of the bootstraps.
    """
    rows = []
    for policy in (*selection.policies, *selection.other_verifiers):
        if policy.evaluation.labels["verifier"] != "engine":
            continue
        samples = policy.evaluation.samples("solved_by_line")
        puzzles = samples.groupby("puzzle").agg({"bin": "first", "solved_by_line": "mean", "solved": "mean"})
        rng = np.random.default_rng(seed)
        for name in ("all", *sorted(puzzles["bin"].unique())):
            cell = puzzles if name == "all" else puzzles[puzzles["bin"] == name]
            line, engine = cell[["solved_by_line"]].to_numpy(), cell[["solved"]].to_numpy()  # (puzzles, 1) shares of samples
            intervals = bootstrap_means(np.hstack([line, engine]), rng) + paired_differences(line, engine, rng)
            counts = {"n_puzzles": len(cell), "n_samples": policy.evaluation.n_samples}
            for judge, (value, low, high) in zip(JUDGES, intervals):
                row = {"policy": policy.label, "bin": name, "judge": judge, "value": value, "ci_low": low, "ci_high": high}
                rows.append(row | counts)
    return pd.DataFrame(rows)


def comparisons(runs: Sequence[Run], policies: Sequence[Policy], seed: int) -> tuple[pd.DataFrame, list[str]]:
    """Paired comparisons of every policy with each of its ancestors, and a sentence for each pair that cannot be compared.

    `runs` may hold ancestors without an evaluation of their own. Pairs share spelling and temperature; the ks are those both were
    evaluated for.
    """
    parents = {run.run_id: run.parents for run in runs}
    tables, notes = [], []
    samples = {policy.label: policy.evaluation.samples() for policy in policies} if len(policies) > 1 else {}
    for later, earlier in product(policies, policies):
        if earlier.run.run_id not in _ancestors(later.run.run_id, parents):
            continue
        if any(later.evaluation.labels[key] != earlier.evaluation.labels[key] for key in ("spelling", "temperature")):
            notes.append(f"{earlier.label} and {later.label} were sampled under different settings and are not compared.")
            continue
        ks = sorted(set(earlier.evaluation.passk["k"]) & set(later.evaluation.passk["k"]))
        try:
            tables.append(comparison_table(samples[earlier.label], samples[later.label], earlier.label, later.label, ks, seed))
        except UserError as error:  # a pair on different puzzles must not cost the rest of the report
            notes.append(f"Not compared: {error}.")
    return (pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(COMPARISON_COLUMNS))), notes


def _ancestors(run_id: str, parents: dict[str, tuple[str, ...]]) -> set[str]:
    found: set[str] = set()
    waiting = list(parents.get(run_id, ()))
    while waiting:
        parent = waiting.pop()
        if parent not in found:
            found.add(parent)
            waiting.extend(parents.get(parent, ()))
    return found


def percent_interval(point: float, low: float, high: float) -> str:
    """"54.1 [51.2, 57.0]", in percent."""
    return f"{100 * point:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def final_table(passk: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """Per policy and bin: puzzles, pass@k for FINAL_KS and the legal rate as percentages with 95 % intervals ("-": not measured).

    Both tables carry the columns that `labelled` adds; raises ValueError if a policy's bin has two values of one figure.
    """
    pass_cells = passk[passk["k"].isin(FINAL_KS)].rename(columns={"pass_at_k": "point"})
    pass_cells = pass_cells.assign(figure="pass@" + pass_cells["k"].astype(str))
    legal_cells = rates[rates["metric"] == "legal"].rename(columns={"value": "point"}).assign(figure="legal")
    columns = ["policy", "bin", "figure", "point", "ci_low", "ci_high"]
    cells = pd.concat([pass_cells[columns], legal_cells[columns]])
    if cells.duplicated(["policy", "bin", "figure"]).any():
        raise ValueError("the final table needs one evaluation per policy label")
    cells["text"] = [percent_interval(*row) for row in cells[["point", "ci_low", "ci_high"]].itertuples(index=False)]
    order = passk[["policy", "bin", "n_puzzles"]].drop_duplicates(["policy", "bin"])
    wide = cells.pivot(index=["policy", "bin"], columns="figure", values="text").reindex(list(FINAL_FIGURES), axis=1)
    return order.join(wide.astype(object).fillna("-"), on=["policy", "bin"]).rename(columns={"n_puzzles": "puzzles"}).reset_index(drop=True)


def terminal_table(passk: pd.DataFrame, rates: pd.DataFrame) -> str:
    """The final table as text, at most 110 columns wide: a heading per policy, a row per bin.

    Takes `labelled` tables, or one evaluation's passk.csv and rates.csv as they are (the stage is then the label).
    """
    if passk.empty:
        return "No evaluation was found."
    passk, rates = (table if "policy" in table else table.assign(policy=table["stage"]) for table in (passk, rates))
    table = final_table(passk, rates)
    lines = [f"{'bin':<5}{'puzzles':>8}  " + "".join(f"{name + ' %':>22}" for name in FINAL_FIGURES)]
    for policy, rows in table.groupby("policy", sort=False):
        first = passk[passk["policy"] == policy].iloc[0]
        counts = f"step {first['step']}, {first['n_samples']} samples per puzzle"
        heading = f"{policy}: {first['split']} split, {first['verifier']} verifier, {counts}"
        lines += ["-" * len(lines[0]), heading[: len(lines[0])]]
        for row in rows.to_dict("records"):
            lines.append(f"{row['bin']:<5}{row['puzzles']:>8}  " + "".join(f"{row[name]:>22}" for name in FINAL_FIGURES))
    return "\n".join(lines)


def thin(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """At most `rows` rows, evenly spaced, first and last included."""
    if len(table) <= rows:
        return table
    return table.iloc[np.linspace(0, len(table) - 1, rows).round().astype(int)]
