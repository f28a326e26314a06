"""Which evaluations may stand beside one another: the start of a run, its last evaluation, and the settings that two must share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from analysis.read import Evaluation, Run
from chessrl.errors import UserError

SETTINGS = ("protocol", "spelling", "verifier", "temperature", "thinking_budget")
JUDGING = ("spelling", "verifier", "temperature")  # those that no policy brings with it


def start_of(run: Run, runs: Iterable[Run]) -> Run | None:
    """The policy that a run started from, where it is among ``runs``."""
    name = Path(str(run.settings.get("parent", ""))).name
    return next((other for other in runs if other.run_id == name), None)


def settings_of(evaluation: Evaluation) -> dict[str, object]:
    """What two evaluations must share to be compared; a budget of thinking means nothing to a policy that does not think."""
    found = {key: evaluation.labels[key] for key in SETTINGS}
    return found if str(found["protocol"]).startswith("think") else found | {"thinking_budget": None}


def alike(one: Evaluation, other: Evaluation) -> bool:
    """Whether both were made under equal settings."""
    return settings_of(one) == settings_of(other)


def check_same_settings(evaluations: Sequence[Evaluation], keys: Sequence[str] = SETTINGS) -> None:
    """Raises UserError naming two evaluations that differ in one of the settings ``keys``, and which one."""
    first = settings_of(evaluations[0])
    for evaluation in evaluations:
        own = settings_of(evaluation)
        for key in keys:
            if own[key] != first[key]:
                folders = f"{evaluations[0].folder} and {evaluation.folder}"
                raise UserError(f"{folders}: evaluate.{key} was {first[key]} and {own[key]}, expected one for both; evaluate both alike")


def last_evaluation(run: Run, split: str, like: Evaluation | None = None, same_step: bool = False) -> Evaluation | None:
    """The largest evaluation of the run's last evaluated step on a split by the line.

    ``like``: of those under its settings alone, and with ``same_step`` of its step.
    """
    found = [item for item in run.evaluations if (item.labels["split"], item.labels["verifier"]) == (split, "line")]
    if like is not None:
        found = [item for item in found if alike(item, like) and (not same_step or item.labels["step"] == like.labels["step"])]
    return max(found, key=lambda item: (item.labels["step"], item.n_puzzles * item.n_samples, item.folder.name), default=None)


def solved_share(evaluation: Evaluation) -> pd.Series:
    """Of each puzzle (index) the share of its samples that solve it."""
    return evaluation.samples().groupby("puzzle")["solved"].mean().astype(float)
