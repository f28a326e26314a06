"""Free disk space below a folder of runs.

Shows what it would free; ``apply=true`` does it. The rule: a completed run needs its ``state/`` no more, since the same configuration is skipped;
its ``models/step-N`` go where ``steps`` does not name them (``all``, the default, keeps every one); with ``branches=true`` its ``stable-*/``, from
which longer runs of the wsd schedule would begin, goes too. Runs that are not completed are left alone: they go on from their state. Weights,
metrics, evaluations and what a run's directory says of it always stay, and so does what a link leads to.

Examples:
    python -m chessrl.prune outputs=outputs
    python -m chessrl.prune outputs=outputs steps=last apply=true
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chessrl.command import parse_settings, run_command
from chessrl.config import STAGES
from chessrl.errors import UserError


@dataclass(frozen=True, slots=True)
class PruneSettings:
    """Keys of the command."""

    outputs: str = "outputs"  # the folder that run directories are in
    states: bool = True  # free the state/ of completed runs
    branches: bool = False  # free the states of wsd runs that longer ones begin from (stable-*/)
    steps: tuple[str, ...] = ("all",)  # models/step-N to keep: all, none, last (of each run), or step numbers
    apply: bool = False  # free it; false only shows what would be freed


@dataclass(frozen=True, slots=True)
class Removal:
    """A folder of a completed run that the rule gives up, and what it holds."""

    path: Path
    bytes: int


def plan(settings: PruneSettings) -> tuple[list[Removal], int]:
    """What the rule removes, and how many runs it leaves alone because they are not completed. Raises UserError on a bad folder or rule."""
    folder = Path(settings.outputs)
    if not folder.is_dir():
        raise UserError(f"outputs={folder}: no such folder; give the one that run directories are in")
    keeps = step_rule(settings.steps)
    removals, unfinished = [], 0
    for status in sorted(path for stage in STAGES for path in folder.glob(f"{stage}-*/status.json")):
        directory = status.parent
        if not _completed(status):
            unfinished += 1
            continue
        checkpoints = {int(path.name[5:]): path for path in (directory / "models").glob("step-*") if re.fullmatch(r"step-\d+", path.name)}
        given_up = [path for step, path in sorted(checkpoints.items()) if not keeps(step, max(checkpoints))]
        given_up += [directory / "state"] if settings.states else []
        given_up += sorted(directory.glob("stable-*")) if settings.branches else []
        given_up += sorted(directory.glob(".pruned-*"))  # of an earlier call that was killed
        removals += [Removal(path, size_of(path)) for path in given_up if path.is_dir() and not path.is_symlink()]
    return removals, unfinished


def _completed(status: Path) -> bool:
    """A status that cannot be read says of nothing that it may go."""
    try:
        return json.loads(status.read_text())["state"] == "completed"
    except (ValueError, KeyError, TypeError):
        return False


def step_rule(steps: tuple[str, ...]) -> Callable[[int, int], bool]:
    """Whether a step's checkpoint is kept, given the run's last one."""
    if steps in (("all",), ("none",)):
        return lambda step, last: steps == ("all",)
    if steps == ("last",):
        return lambda step, last: step == last
    if not steps or not all(step.isdecimal() for step in steps):
        raise UserError(f"steps={','.join(steps)}: expected all, none, last, or the numbers of the steps to keep, such as steps=1000,2000")
    kept = {int(step) for step in steps}
    return lambda step, last: step in kept


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def remove(removal: Removal) -> None:
    """Rename, then delete: a call that is killed leaves no half checkpoint under a checkpoint's name."""
    path = removal.path
    if not path.name.startswith(".pruned-"):
        directory = path.parent.parent if path.parent.name == "models" else path.parent
        path = path.rename(directory / f".pruned-{path.name}")
    shutil.rmtree(path)


def main(arguments: list[str]) -> None:
    settings = parse_settings(PruneSettings, arguments)
    removals, unfinished = plan(settings)
    for removal in removals:
        print(f"{removal.bytes / 1e6:10.1f} MB  {removal.path}")
    total = sum(removal.bytes for removal in removals) / 1e6
    for removal in removals if settings.apply else ():
        remove(removal)
    print(f"{total:10.1f} MB  {'freed' if settings.apply else 'would be freed'} in {len(removals)} folders")
    if unfinished:
        print(f"{unfinished} runs are not completed and keep all they have")
    if removals and not settings.apply:
        print("nothing was removed; apply=true removes what is listed")


if __name__ == "__main__":
    sys.exit(run_command(main))
