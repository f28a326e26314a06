"""Runs of several lengths from one: under the wsd schedule all lengths are the same run until the decay begins.

Such a run keeps its state at the end of its stable part. A longer run of the same family (all but the number of tokens and the decay equal)
begins there instead of at step 0 and ends bit for bit as if it had not: in a sweep over ``pretrain.tokens`` from small to large the stable part
is trained once. Tokens and FLOPs count as for a run of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from chessrl import distributed
from chessrl.checkpoint import load_newest_state
from chessrl.metrics import belong_together
from chessrl.run import Run, digest

OF_THE_END = ("tokens",)
OF_THE_DECAY = ("decay_ratio", "min_lr_ratio", "warmup_ratio", "warmup_steps")  # the warm-up's length is taken in as it came out


def family_folder(run: Run, warmup: int) -> str:
    """Name of the folder in a run directory that holds the state at the end of the stable part; equal for all lengths of one run."""
    settings = {key: value for key, value in run.identity["pretrain"].items() if key not in OF_THE_END}
    settings["optimizer"] = {key: value for key, value in settings["optimizer"].items() if key not in OF_THE_DECAY}
    return f"stable-{digest([run.identity | {'pretrain': settings}, warmup])}"


def begin_from_family(run: Run, warmup: int, stable: int) -> dict[str, Any] | None:
    """The state of a sibling run furthest on within the ``stable`` steps, with its metrics and its kept models taken over; None without one."""
    with distributed.first_process_first():  # which drops states that cannot be used
        found = _find_sibling(run, family_folder(run, warmup), stable)
    distributed.check_same("the step to branch off at", found[1]["step"] if found else 0)
    if found is None:
        return None
    sibling, state, lines = found
    run.take_metrics(lines)
    if distributed.is_first():
        for model in sibling.glob("models/step-*"):
            if int(model.name.removeprefix("step-")) <= state["step"]:
                shutil.copytree(model, run.directory / "models" / model.name, dirs_exist_ok=True)
        tqdm.write(f"{run.stage}: steps 1 to {state['step']} are those of {sibling}, going on from there")
    return state


def _find_sibling(run: Run, folder: str, stable: int) -> tuple[Path, dict[str, Any], bytes] | None:
    """The directory of the sibling run with the state furthest on within the ``stable`` steps, that state, and its metrics up to there.

    A sibling that goes on from before that state, after a kill, is making its metrics again: only what belongs together is taken.
    """
    for path in sorted(run.directory.parent.glob(f"*/{folder}/step-*.pt"), key=_step_of, reverse=True):
        sibling = path.parents[1]
        if _step_of(path) > stable or sibling == run.directory:
            continue
        state = load_newest_state(path.parent, torch.device("cpu"), lambda state: True)
        if state is None:  # damaged: said so
            continue
        logged = (sibling / "metrics.jsonl").read_bytes()
        if belong_together(logged, state):
            return sibling, state, logged[: state["metrics_bytes"]]
    return None


def _step_of(state: Path) -> int:
    return int(state.stem.removeprefix("step-"))
