"""pass@k against thinking tokens: one run's evaluations under different budgets, as a table and a figure.

Writes ``thinking.csv`` and ``thinking.png``. The tokens are those that were written, not the budget: a policy may end earlier.

Examples:
    python -m analysis.thinking run=outputs/rl-0123456789ab out=outputs/thinking
    python -m chessrl.evaluate -m parent=outputs/rl-0123456789ab evaluate.split=test evaluate.thinking=forced evaluate.thinking_budget=0,8,16,32,64
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.figures import thinking_figure
from analysis.read import Run, read_runs
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.figure_style import save_figure


@dataclass(frozen=True, slots=True)
class ThinkingSettings:
    """Keys of the command."""

    run: str  # the run directory whose evaluations are compared
    out: str  # folder for the table and the figure
    split: str = "test"  # of the puzzles
    bin: str = "all"  # of the puzzles, or all
    temperature: float = 1.0  # of the evaluations to take


def thinking_table(run: Run, split: str, bin: str, temperature: float) -> pd.DataFrame:
    """One row per evaluation by the line and k: protocol, thinking_budget, thinking_tokens (mean over puzzles), pass@k and its interval.

    Raises UserError where the run has no such evaluation with traces.
    """
    rows = []
    for evaluation in run.evaluations:
        labels = evaluation.labels
        wanted = (labels["split"], labels["verifier"], labels["temperature"]) == (split, "line", temperature)
        if not wanted or not str(labels["protocol"]).startswith("think"):
            continue
        rates, passk = (table[table["bin"] == bin] for table in (evaluation.rates, evaluation.passk))
        tokens = rates.loc[rates["metric"] == "trace_length", "value"]
        for row in passk.itertuples():
            rows.append(
                {
                    "protocol": row.protocol, "thinking_budget": row.thinking_budget, "thinking_tokens": float(tokens.iloc[0]), "k": row.k,
                    "pass_at_k": row.pass_at_k, "ci_low": row.ci_low, "ci_high": row.ci_high, "n_puzzles": row.n_puzzles,
                }
            )  # fmt: skip
    if not rows:
        which = f"split={split} bin={bin} temperature={temperature:g}"
        raise UserError(f"{run.path}: no evaluation with traces of {which}: make some with python -m chessrl.evaluate")
    return pd.DataFrame(rows).sort_values(["protocol", "k", "thinking_tokens"], ignore_index=True)


def main(arguments: list[str]) -> None:
    settings = parse_settings(ThinkingSettings, arguments)
    (run,) = read_runs([Path(settings.run)])
    table = thinking_table(run, settings.split, settings.bin, settings.temperature)
    out = Path(settings.out)
    make_folder(out, "out")
    table.to_csv(out / "thinking.csv", index=False)
    save_figure(thinking_figure(table), out, "thinking")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.3f}"))


if __name__ == "__main__":
    sys.exit(run_command(main))
