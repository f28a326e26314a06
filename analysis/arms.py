"""Fine-tuned runs side by side by the arm of their traces: pass@k with intervals, paired differences, and what each arm cost.

Writes ``arms.csv``, ``arm_differences.csv``, ``arm_costs.csv`` and ``arms.png``. Runs of one arm are its seeds: pass@k is averaged over them, and
intervals are over seeds and puzzles (nested bootstrap); the lowest and highest seed are given beside.

Examples:
    python -m analysis.arms outputs=outputs/traces out=outputs/traces/comparison
    python -m analysis.arms runs=outputs/sft-0123456789ab,outputs/sft-ba9876543210 out=outputs/arms baseline=none ks=1,16
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.figures import passk_figure
from analysis.grouped import check_same_puzzles, passk_tables, sampled_by_puzzle
from analysis.read import Run, read_runs
from analysis.sections import Section
from chessrl.command import parse_settings, run_command
from chessrl.config import TraceConfig
from chessrl.errors import UserError, make_folder
from chessrl.figure_style import save_figure
from chessrl.run import finished

TITLE = "Arms of traces"
QUESTION = (
    "Does what is written before the move help? pass@k of fine-tuned policies by the arm of their traces, averaged over the seeds of an arm; 95 % "
    "intervals are over seeds and puzzles (nested bootstrap), the lowest and highest seed stand beside."
)
NAMED_BY = ("proposal", "order", "serialise", "content", "answer", "budget", "inject_answer")  # keys of sft.trace that name an arm


@dataclass(frozen=True, slots=True)
class ArmSettings:
    """Keys of the command."""

    out: str  # folder for the tables and the figure
    runs: tuple[str, ...] = ()  # the fine-tuning runs to compare; or give outputs
    outputs: str = ""  # a folder: all finished fine-tuning runs below it
    baseline: str = "none"  # the arm whose pass@k is subtracted from the others'
    split: str = "test"  # of the puzzles
    protocol: str = ""  # chooses among several evaluations of a run: think, answer or game; empty: the run's own
    ks: tuple[str, ...] = ("1", "4", "16")  # k of pass@k
    seed: int = 0  # of the bootstrap


def arm_name(run: Run) -> str:
    """``none``, ``trace`` for the settings as they stand, or the settings that differ: ``other_puzzle``, ``uniform, bfs``."""
    if not run.setting("sft.trace.enabled"):
        return "none"
    default = TraceConfig()
    different = [(name, run.setting(f"sft.trace.{name}")) for name in NAMED_BY if run.setting(f"sft.trace.{name}") != getattr(default, name)]
    return ", ".join(value if isinstance(value, str) else f"{name}={value}" for name, value in different) or "trace"


def order_of(run: Run) -> tuple[bool, str, int]:
    """Without traces first; the seeds of an arm in order, so that the arms' seeds are pairs."""
    return bool(run.setting("sft.trace.enabled")), arm_name(run), int(run.setting("sft.seed"))


def solved_by_puzzle(run: Run, split: str, protocol: str, ks: Sequence[int]) -> pd.DataFrame:
    """``passk_by_puzzle`` of a run.

    Raises UserError unless the run has exactly one evaluation of the split, the line verifier and the protocol, with enough samples.
    """
    wanted = protocol or ("think" if run.setting("sft.trace.enabled") else "answer")
    found = [
        evaluation
        for evaluation in run.evaluations
        if (evaluation.labels["split"], evaluation.labels["protocol"], evaluation.labels["verifier"]) == (split, wanted, "line")
    ]
    if len(found) != 1:
        raise UserError(f"{run.path}: {len(found)} evaluations of split={split} protocol={wanted} verifier=line, expected one; evaluate it so")
    return sampled_by_puzzle(found[0], ks)


def arm_tables(runs: Sequence[Run], settings: ArmSettings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """pass@k by arm, bin and k, and each arm's difference from the baseline on the same puzzles."""
    ks = [int(k) for k in settings.ks]
    by_arm: dict[str, list[pd.DataFrame]] = {}
    for run in sorted(runs, key=order_of):
        by_arm.setdefault(arm_name(run), []).append(solved_by_puzzle(run, settings.split, settings.protocol, ks))
    check_comparable(by_arm)
    bins = next(iter(by_arm.values()))[0]["bin"]
    values = {arm: np.stack([table[ks].to_numpy() for table in tables]) for arm, tables in by_arm.items()}  # (seeds, puzzles, ks)
    bases = {arm: values[settings.baseline] for arm in values if arm != settings.baseline} if settings.baseline in values else {}
    table, differences = passk_tables(values, bases, bins, ks, settings.seed)
    return table, differences.assign(baseline=settings.baseline)


def check_comparable(by_arm: dict[str, list[pd.DataFrame]]) -> None:
    """Raises UserError unless all arms have the same puzzles and as many runs."""
    check_same_puzzles([(f"arm {arm}", table) for arm, of_arm in by_arm.items() for table in of_arm])
    if len({len(of_arm) for of_arm in by_arm.values()}) > 1:
        counts = ", ".join(f"{arm} {len(of_arm)}" for arm, of_arm in by_arm.items())
        raise UserError(f"arms have different numbers of runs ({counts}): name those to compare with runs=")


def cost_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: tokens and FLOPs of fine-tuning, of proposing the traces, and the tokens of one pass by part."""
    rows = []
    for run in runs:
        by_stage, parts = run.summary["flops_by_stage"], run.summary["tokens_of_examples"]
        rows.append(
            {
                "arm": arm_name(run), "run": run.run_id, "seed": run.setting("sft.seed"), "tokens": run.summary["tokens"],
                "trained_tokens": run.summary["loss_tokens"], "flops": by_stage["sft"], "flops_of_traces": by_stage["traces"],
                "flops_with_attention": run.summary["flops_with_attention"], **{f"{part}_tokens_per_pass": parts[part] for part in parts},
            }
        )  # fmt: skip
    return pd.DataFrame(rows).sort_values(["arm", "seed"], ignore_index=True)


def arm_sections(runs: Sequence[Run], split: str, seed: int) -> list[Section]:
    """The report's sections on arms, where its runs hold fine-tuning runs of several; none otherwise."""
    tuned = [run for run in runs if run.stage == "sft" and run.evaluations]
    if len(tuned) < 2:
        return []
    source = "evaluations/*/samples.parquet of the fine-tuning runs"
    samples = min(evaluation.n_samples for run in tuned for evaluation in run.evaluations)
    settings = ArmSettings(out="", split=split, seed=seed, ks=tuple(k for k in ArmSettings(out="").ks if int(k) <= samples))
    try:
        if len({arm_name(run) for run in tuned}) < 2:
            return []
        table, differences = arm_tables(tuned, settings)
    except UserError as error:
        return [Section("arms", TITLE, QUESTION, source, pd.DataFrame(), None, (str(error),))]
    return [
        Section("arms", TITLE, QUESTION, source, table, passk_figure(table)),
        Section(
            "arm_differences", "Arms of traces: differences",
            f"pass@k of each arm minus that of the arm {settings.baseline}, paired by puzzle and seed, with 95 % intervals over both.",
            source, differences,
        ),
        Section(
            "arm_costs", "Arms of traces: what they cost",
            "Tokens of fine-tuning and its 6NT, the FLOPs of proposing the traces (2N per token), and the tokens of one pass by part.",
            "summary.json", cost_table(tuned),
        ),
    ]  # fmt: skip


def main(arguments: list[str]) -> None:
    settings = parse_settings(ArmSettings, arguments)
    if bool(settings.runs) == bool(settings.outputs):
        raise UserError("give either runs=, the run directories to compare, or outputs=, the folder that holds them")
    paths = [Path(path) for path in settings.runs] or [path for path in sorted(Path(settings.outputs).glob("sft-*")) if finished(path)]
    runs = read_runs(paths)
    if wrong := [run for run in runs if run.stage != "sft"]:
        raise UserError(f"{wrong[0].path} is a run of stage {wrong[0].stage}: expected sft")
    table, differences = arm_tables(runs, settings)
    out = Path(settings.out)
    make_folder(out, "out")
    for name, frame in (("arms", table), ("arm_differences", differences), ("arm_costs", cost_table(runs))):
        frame.to_csv(out / f"{name}.csv", index=False)
    save_figure(passk_figure(table), out, "arms")
    print(table[table["bin"] == "all"].drop(columns=["bin"]).to_string(index=False, float_format=lambda value: f"{value:.3f}"))
    print(f"{dict(Counter(arm_name(run) for run in runs))} -> {out}")


if __name__ == "__main__":
    sys.exit(run_command(main))
