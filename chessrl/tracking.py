"""Trackers beside ``metrics.jsonl``: TensorBoard, trackio, Weights & Biases. Each is an extra, imported only when it is chosen.

A tracker takes the metrics of a step and is told when the run ends. A resumed run goes on in the tracker's same run: its id lies in the run
directory, and steps that the tracker has seen before a crash are not told again.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chessrl.errors import UserError

PROJECT = "chessrl"
LOGGERS = ("none", "tensorboard", "trackio", "wandb")  # the module of each is named alike
ID_FILE = "tracker.json"


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker knows of a run. ``first_step`` is the first one that will be logged, ``seen`` the last that was logged before."""

    directory: Path
    run_id: str
    config: dict[str, Any]
    first_step: int
    seen: int

    @property
    def tracker_id(self) -> str:
        """Kept in the run directory. Two folders may hold runs of one configuration, so the run's id alone would mix them up."""
        path = self.directory / ID_FILE
        if not path.exists():
            whole = path.with_suffix(".tmp")  # renamed when it is whole: half an id after a kill would be in the way of every resume
            whole.write_text(json.dumps({"id": f"{self.run_id}-{secrets.token_hex(4)}"}) + "\n")
            whole.replace(path)
        return json.loads(path.read_text())["id"]


class Tracker(Protocol):
    """One run in a tracker."""

    def log(self, step: int, metrics: dict[str, float]) -> None: ...

    def finish(self, failed: bool) -> None: ...


def check_logger(name: str) -> None:
    """Raises UserError for an unknown logger, and for one that is not installed; imports none."""
    if name not in LOGGERS:
        raise UserError(f"logger={name}: expected one of {', '.join(LOGGERS)}")
    specification = importlib.util.find_spec(name) if name != "none" else None
    if name != "none" and (specification is None or specification.origin is None):  # no origin: a mere folder of that name
        raise UserError(f"logger={name}: {name} is not installed; install it with: pip install {name}")


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    """The tracker ``name`` (one of LOGGERS), ready for the run. Raises UserError where it cannot be had."""
    check_logger(name)
    return _OPENERS[name](run)


class _Nothing:
    def log(self, step: int, metrics: dict[str, float]) -> None:
        """metrics.jsonl holds them."""

    def finish(self, failed: bool) -> None:
        """There is nothing to close."""


class _TensorBoard:
    """Event files in ``tensorboard/`` of the run directory; a resumed run's repeated steps replace those of before."""

    def __init__(self, run: TrackedRun):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run.directory / "tensorboard"), purge_step=run.first_step)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        for key, value in metrics.items():
            self.writer.add_scalar(key, value, step)

    def finish(self, failed: bool) -> None:
        self.writer.close()


class _Trackio:
    """A run in trackio's local database (``TRACKIO_DIR``; ``TRACKIO_SPACE_ID`` sends it to a Space), named by its id."""

    def __init__(self, run: TrackedRun):
        import trackio

        self.seen = run.seen
        self.run = trackio.init(PROJECT, name=run.tracker_id, config=run.config, resume="allow", embed=False)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if step > self.seen:
            self.run.log(metrics, step=step)

    def finish(self, failed: bool) -> None:
        self.run.finish()


class _Wandb:
    """A run in Weights & Biases, its files in the run directory. ``WANDB_MODE``, ``WANDB_ENTITY`` and the like work as they do elsewhere."""

    def __init__(self, run: TrackedRun):
        import wandb

        self.seen = run.seen
        try:
            self.run = wandb.init(
                project=PROJECT, id=run.tracker_id, name=run.run_id, dir=str(run.directory), config=run.config, resume="allow"
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split())
            raise UserError(f"logger=wandb: {reason}; log in with `wandb login`, or set WANDB_MODE=offline") from None

    def log(self, step: int, metrics: dict[str, float]) -> None:
        if step > self.seen:
            self.run.log(metrics, step=step)

    def finish(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


_OPENERS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "none": lambda run: _Nothing(),
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _Wandb,
}
