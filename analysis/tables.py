"""The tables behind the report: pure functions from runs to frames. Every figure is drawn from one of them and nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd

from analysis.read import Evaluation, Run
from chessrl.errors import UserError
from chessrl.statistics import COMPARISON_COLUMNS, FAILURES, comparison_table

SMOOTHING_SHARE = 0.05  # width of the running mean, as a share of a curve's logged steps
FINAL_KS = (1, 4, 16)
FINAL_FIGURES = (*(f"pass@{k}" for k in FINAL_KS), "legal")  # columns of the final table
SETTINGS = ("protocol", "spelling", "temperature", "thinking_budget", "seed")
SPLITS = ("test", "validation")  # preferred in this order where runs were evaluated on several


@dataclass(frozen=True, slots=True)
class Policy:
    """A run's evaluation that is drawn, with its name in figures."""

    label: str
    run: Run
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class Selection:
    """Which evaluations are drawn: one split, each run's last step. `rest` counts the other evaluations."""

    split: str
    policies: tuple[Policy, ...]  # one verifier
    other_verifiers: tuple[Policy, ...]  # the same runs and settings under another verifier
    runs_without: tuple[str, ...]
    rest: int


def select_evaluations(runs: Sequence[Run]) -> Selection:
    """Choose the split most runs were evaluated on (test before validation on a tie), each run's last step, the line verifier if any.

    Where a run has several such evaluations (temperatures, say), its label names the settings that differ.
    """
    everything = [(run, evaluation) for run in runs for evaluation in run.evaluations]
    if not everything:
        return Selection("", (), (), tuple(run.label for run in runs), 0)
    split = _common_split(everything)
    drawn: dict[bool, list[Policy]] = {True: [], False: []}
    verifiers = sorted({str(evaluation.labels["verifier"]) for _, evaluation in everything})
    main_verifier = "line" if "line" in verifiers else verifiers[0]
    for run in runs:
        of_split = [evaluation for evaluation in run.evaluations if evaluation.labels["split"] == split]
        last = max((evaluation.labels["step"] for evaluation in of_split), default=None)
        final = [evaluation for evaluation in of_split if evaluation.labels["step"] == last]
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
        rest=len(everything) - len(drawn[True]) - len(drawn[False]),
    )


def _common_split(everything: Sequence[tuple[Run, Evaluation]]) -> str:
    pairs = {(run.run_id, str(evaluation.labels["split"])) for run, evaluation in everything}
    splits = [split for _, split in pairs]

    def preference(split: str) -> tuple[int, int, str]:
        return (-splits.count(split), SPLITS.index(split) if split in SPLITS else len(SPLITS), split)

    return min(splits, key=preference)


def runs_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: size N with and without embeddings, tokens, FLOPs, final losses and reward, wall time in seconds.

    Final training figures are the running mean at the last logged step; the validation loss is the last one logged.
    """
    rows = []
    for run in runs:
        final = {metric: _last(run, metric) for metric in ("loss", "validation/loss", "reward", "time/wall_s")}
        rows.append(
            {
                "policy": run.label,
                "run": run.run_id,
                "parents": " ".join(run.parents),
                "parameters": run.summary["parameters"]["total"],
                "parameters_without_embeddings": run.summary["parameters"]["without_embeddings"],
                "steps": int(run.metrics["step"].max()),
                "tokens": run.summary["tokens"],
                "flops": run.summary["flops"],
                "final_loss": final["loss"],
                "final_validation_loss": final["validation/loss"],
                "final_reward": final["reward"],
                "time/wall_s": final["time/wall_s"],
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


def verifier_table(selection: Selection) -> pd.DataFrame:
    """pass@1 per bin under each verifier, for the policies that were evaluated under more than one."""
    judged = (*selection.policies, *selection.other_verifiers)
    audited = [policy.label for policy in selection.policies if policy.label in {other.label for other in selection.other_verifiers}]
    both = [policy for label in audited for policy in judged if policy.label == label]
    table = labelled(both, "passk")
    return table[table["k"] == 1].reset_index(drop=True) if len(table) else table


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
    return order.join(wide, on=["policy", "bin"]).fillna("-").rename(columns={"n_puzzles": "puzzles"}).reset_index(drop=True)


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
