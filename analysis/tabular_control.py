"""The tabular control: what the objective does to a policy by itself (``python -m rl.tabular``) beside what the network did to the same one.

Both began from one policy; a table shares nothing between puzzles, so where the two differ it is the network's doing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import yaml

from analysis import policy_figures
from analysis.policies import MeasuredPolicy, pair_of
from analysis.read import Evaluation, Run
from analysis.sections import Section
from analysis.transition_tables import categories_table
from analysis.transitions import Pooled, sharpening_table, transition
from chessrl.config import AnalysisConfig
from chessrl.errors import UserError

Reader = Callable[[Path], MeasuredPolicy]

QUESTION = "Sharpening or redistribution?"
TITLE = "Tabular control"
COMMAND = (
    "python -m rl.tabular tabular.policy=SFT_RUN/evaluations/HASH/policy.parquet (the policy that RL began from, on the split where RL was "
    "measured), "
    "and its run directory in runs="
)
PANELS = {
    "alpha*": ("power alpha*", 1.0),
    "R2": ("R² of the centred-logit slope", None),
    "solving mass change": ("change of solving mass", 0.0),
    "entropy change": ("change of entropy (nats)", 0.0),
}


def control_sections(runs: Sequence[Run], tabular: Sequence[Path], config: AnalysisConfig, read: Reader) -> list[Section]:
    """Measures and categories of tables and networks that began from the same policy, on the first decisions that both have."""
    text = (
        "Is it the objective or the network? Reinforcement learning of the same start policy as a table, one softmax per puzzle, beside the "
        "network's: "
        "first decisions of the puzzles that both were measured on."
    )
    pooled, notes = [], []
    for directory in tabular:
        try:
            pooled += _pairs(directory, runs, config, read)
        except UserError as error:
            notes.append(f"Not compared: {error}.")
    if not pooled:
        notes.append(f"Without a table to compare: {COMMAND}.")
        return [Section("tabular_control", TITLE, text, "policy.parquet", pd.DataFrame(), None, tuple(notes), QUESTION)]
    table, categories = sharpening_table(pooled, config.seed), categories_table(pooled, config.seed)
    source = "policy.parquet of the tabular run and of the evaluations"
    return [
        Section("tabular_control", TITLE, text, source, table, policy_figures.measures_figure(table, PANELS), tuple(notes), QUESTION),
        Section(
            "tabular_categories", "Tabular control: what happened to the right move",
            "Categories as above, of tables and networks on the same decisions.", source, categories,
            policy_figures.categories_figure(categories), (), QUESTION,
        ),
    ]  # fmt: skip


def _pairs(directory: Path, runs: Sequence[Run], config: AnalysisConfig, read: Reader) -> list[Pooled]:
    """The table and every last RL policy of the start run, on their common states. Raises UserError where the start cannot be told."""
    file, origin = _start(directory)
    start, table = read(file), read(directory / "policy.parquet")
    networks = []
    for run in runs:
        if origin in run.parents and run.stage == "rl":
            measured = [read(item.folder / "policy.parquet") for item in _last(run) if (item.folder / "policy.parquet").is_file()]
            measured = [policy for policy in measured if len(policy.keys().intersection(table.keys()))]
            networks += [(run.label, policy) for policy in measured[:1]]
    only = table.keys()
    for _, policy in networks:
        only = only.intersection(policy.keys(), sort=False)
    if not networks:
        missing = f"no RL run of {origin or 'its start policy'} with a policy measured on these puzzles is in runs="
        raise UserError(f"{directory.name}: {missing}; add one, measured with evaluate.policy_traces=1 on the split of the tables")
    made = []
    for name, policy in [("table", table), *networks]:
        pair = pair_of(start, policy, name, only)
        made.append(Pooled(f"{directory.name[:14]}: {name}", (transition(pair, config.top_k, config.tail),)))
    return made


def _last(run: Run) -> list[Evaluation]:
    """The evaluations of the run's last evaluated step."""
    last = max((item.labels["step"] for item in run.evaluations), default=0)
    return [item for item in run.evaluations if item.labels["step"] == last]


def _start(directory: Path) -> tuple[Path, str]:
    """The file that a tabular run started from, and the run that it measures. Raises UserError for a made-up prior or a file that is gone."""
    settings = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    given = settings["tabular"]["policy"]
    if not given and not settings["parent"]:
        raise UserError(f"{directory.name}: it began from a made-up prior; give a tabular run that has parent= or tabular.policy=")
    if not given:
        return directory / "start.parquet", Path(settings["parent"]).name
    file = Path(given)
    if not file.is_file():
        raise UserError(f"{directory.name}: the policy that it began from, {file}, is no longer there; put it back, or measure it again")
    return file, file.resolve().parents[2].name if file.resolve().parents[1].name == "evaluations" else ""
