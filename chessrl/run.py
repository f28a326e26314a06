"""A run directory: its identity, status, metrics, state and signals.

The directory's name is ``STAGE-HASH`` of everything that changes results, so the same configuration means "resume or skip". ``status.json`` is
the only marker; it is written last and atomically.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from omegaconf import OmegaConf
from tqdm import tqdm

from chessrl import distributed
from chessrl.checkpoint import load_newest_state, save_model, save_state, write_atomically, write_json
from chessrl.config import Config, ModelConfig
from chessrl.errors import UserError, make_folder
from chessrl.lock import Lock
from chessrl.metrics import append, belong_together, last_step
from chessrl.model import Cost, Transformer
from chessrl.signals import Interrupted, stop_signals
from chessrl.tracking import TrackedRun, Tracker, open_tracker

# ---- identity ---------------------------------------------------------------------------------------------------------------------------


def identity_of(section: Any) -> dict[str, Any]:
    """The keys of a config section that change results: ``local`` ones and ``neutral`` ones at their default are left out."""
    kept: dict[str, Any] = {}
    for field in fields(section):
        value = getattr(section, field.name)
        kind = field.metadata.get("identity")
        default = field.default_factory() if field.default is MISSING and field.default_factory is not MISSING else field.default
        if kind == "local" or (kind == "neutral" and value == default):
            continue
        kept[field.name] = identity_of(value) if is_dataclass(value) else value
    return kept


def digest(value: Any) -> str:
    """12 hex digits of a JSON-able value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def resolve_device(name: str) -> torch.device:
    """``auto`` takes CUDA, else the CPU (MPS lacks the float64 that sampling needs). Raises UserError for a device that is not there."""
    available = {"cpu": True, "cuda": torch.cuda.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "cpu") if available[kind])
    if not available.get(name, False):
        raise UserError(
            f"run.device={name}: not available here; use one of auto, {', '.join(kind for kind in available if available[kind])}"
        )
    return torch.device(name)


def default_micro_batch_tokens(device: torch.device, precision: str) -> int:
    """Padded tokens per forward pass. On a CPU small ones keep the activations in its cache: in fp32 1,024 measured 1.6 times faster than
    16,384, in bf16 2,048 1.07 times faster than 1,024.
    """
    if device.type != "cpu":
        return 65536
    return 2048 if precision == "bf16" else 1024


@functools.cache
def code_version() -> str:
    """Version of the package, with the commit where it runs from a checkout."""
    version = importlib.metadata.version("chessrl")
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return version
    found = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return f"{version}+{found.stdout.strip()}" if found.returncode == 0 else version


def finished(directory: Path) -> bool:
    status = directory / "status.json"
    try:
        return json.loads(status.read_text())["state"] == "completed"
    except FileNotFoundError:
        return False
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
        raise UserError(f"{status} is damaged: delete it, then run the same command again") from None


# ---- the run ----------------------------------------------------------------------------------------------------------------------------


class Run:
    """One stage's run directory, open for work. Use as a context manager: leaving it writes the status.

    Entering takes the directory's lock (``run.wait`` decides between waiting and a UserError). A run that another process finished meanwhile
    is ``finished`` on entering and stays as it is.

    Of several processes (``chessrl.distributed``) only the first touches the directory's files, and all stop together.
    """

    def __init__(self, stage: str, config: Config, identity: dict[str, Any]):
        self.stage, self.config, self.identity = stage, config, identity
        self.run_id = f"{stage}-{digest(identity)}"
        self.directory = Path(config.outputs) / self.run_id
        if config.run.rerun:
            attempts = (Path(config.outputs) / f"{self.run_id}-{number}" for number in range(2, 10**6))
            self.directory = next(attempt for attempt in attempts if not finished(attempt))
            self.run_id = self.directory.name
        self.device = resolve_device(config.run.device)
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        self._stop: int | None = None
        self._patient = True  # a stop signal is only noted: while the directory is opened and closed, and within the step loop
        self._in_loop = self._closing = False
        self._stopped_together = False
        self._tracker: Tracker | None = None
        self._saved = time.monotonic()

    @property
    def micro_batch_tokens(self) -> int:
        """Padded tokens per forward pass."""
        return self.config.run.micro_batch_tokens or default_micro_batch_tokens(self.device, self.config.run.precision)

    @property
    def finished(self) -> bool:
        return finished(self.directory)

    @property
    def _metrics_path(self) -> Path:
        return self.directory / "metrics.jsonl"

    def __enter__(self) -> Run:
        with distributed.first_process_first(), ExitStack() as opened:
            if distributed.is_first():
                make_folder(self.directory, "outputs")
                self._lock = Lock(self.directory / "lock", str(self.directory))
                self._lock.acquire(wait=self.config.run.wait)
                opened.callback(self._lock.release)
            self._patient, self._stop, self._entered_finished = True, None, self.finished
            opened.enter_context(stop_signals(self._note_signal))
            if distributed.is_first() and not self._entered_finished:
                self._begin(opened)
            self._patient = False
            if self._stop is not None:
                raise Interrupted(self._stop)
            self._opened = opened.pop_all()
        return self

    def _begin(self, opened: ExitStack) -> None:
        resolved = OmegaConf.to_yaml(OmegaConf.structured(self.config), resolve=True)
        write_atomically(self.directory / "config.yaml", resolved.encode())
        self._write_status("running")
        (self.directory / "error.log").unlink(missing_ok=True)
        # Unbuffered: what the disk has no room for must fail in ``log`` and not at the closing.
        self._metrics = opened.enter_context(self._metrics_path.open("ab", buffering=0))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patient, self._closing = True, True
        with self._opened:
            if self._entered_finished:
                return
            # torchrun ends all processes as soon as one has ended: the first one closes its files before.
            with distributed.first_process_first() if self._stopped_together else nullcontext():
                if distributed.is_first():
                    self._close(error)

    def _close(self, error: BaseException | None) -> None:
        if self._tracker is not None:
            self._tracker.finish(failed=error is not None)
        self._lock.check()
        if error is None:
            self._write_status("completed")
        elif isinstance(error, Interrupted):
            self._write_status("interrupted", str(error))
        else:
            self._note_failure(error)

    def _note_failure(self, error: BaseException) -> None:
        try:
            self._write_status("failed", f"{type(error).__name__}: {error}")
            (self.directory / "error.log").write_text("".join(traceback.format_exception(error)))
        except OSError as unwritten:  # the disk that the run failed on: the failure itself is what must be told
            print(f"{self.directory}: the failure could not be noted in status.json ({unwritten})", file=sys.stderr, flush=True)

    def _write_status(self, state: str, error: str | None = None) -> None:
        write_json(self.directory / "status.json", {"state": state, "error": error, "code": code_version()})

    def _note_signal(self, number: int) -> None:
        if not self._patient or (self._stop is not None and not self._closing):  # nothing to save yet, or asked twice: leave at once
            raise Interrupted(number)
        if self._stop is None and self._in_loop and not self._closing:
            message = f"{signal.Signals(number).name}: saving the state, then stopping (once more to stop at once)"
            print(f"\n{message}", file=sys.stderr, flush=True)
        self._stop = number

    # -- metrics --

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, and tell the tracker. A loss that is not finite ends the run."""
        if distributed.is_first():
            self._lock.check()
            plain = {key: _plain(value) for key, value in metrics.items()}
            append(self._metrics, (json.dumps(plain) + "\n").encode())
            self._tell_tracker(plain)
        if not math.isfinite(float(metrics.get("loss", 0.0))):
            raise UserError(
                f"{self.directory}: the loss at step {metrics['step']} is {metrics['loss']}: lower the learning rate or use precision=fp32"
            )

    def _tell_tracker(self, metrics: dict[str, Any]) -> None:
        if self._tracker is not None:
            self._tracker.log(metrics["step"], {key: value for key, value in metrics.items() if key != "step" and value is not None})

    # -- state --

    def loop(self, step: int, steps: int) -> Iterator[int]:
        """Steps ``step + 1`` to ``steps`` with a bar and its ETA. From here on a stop signal waits for ``checkpoint``."""
        self._patient = self._in_loop = True
        yield from tqdm(
            range(step + 1, steps + 1), initial=step, total=steps, desc=self.stage, unit="step", disable=not distributed.is_first()
        )

    def save(self, step: int, state: dict[str, Any]) -> None:
        self.keep("state", step, state)
        self._saved = time.monotonic()

    def keep(self, folder: str, step: int, state: dict[str, Any]) -> None:
        """Write the state to ``folder`` of the run directory."""
        if distributed.is_first():
            self._lock.check()
            os.fsync(self._metrics.fileno())
            save_state(self.directory / folder, step, state | {"metrics_bytes": self._metrics.tell()})

    def resume(self) -> dict[str, Any] | None:
        """The newest whole state, with the metrics cut back to its step; None at a fresh start. From here on the tracker is told."""
        with distributed.first_process_first():  # which drops states that cannot be used
            logged = self._metrics_path.read_bytes()
            state = load_newest_state(self.directory / "state", torch.device("cpu"), functools.partial(belong_together, logged))
        step = state["step"] if state else 0
        distributed.check_same("the step to go on from", step)
        if distributed.is_first():
            self._metrics.truncate(state["metrics_bytes"] if state else 0)
            self._metrics.seek(0, os.SEEK_END)
            tracked = TrackedRun(self.directory, self.run_id, asdict(self.config), first_step=step + 1, seen=last_step(logged))
            self._tracker = open_tracker(self.config.logger, tracked)
        return state

    def take_metrics(self, lines: bytes) -> None:
        """Begin with the metrics of the run that this one branches off, in the tracker as well."""
        if distributed.is_first():
            self._metrics.truncate(0)
            append(self._metrics, lines)
            for line in lines.splitlines():
                self._tell_tracker(json.loads(line))

    def checkpoint(self, step: int, last: bool, state: Callable[[], dict[str, Any]]) -> None:
        """Save ``state()`` when it is due, when asked to stop (then raise Interrupted), and at the end.

        A signal to any of several processes stops all of them, at the same step.
        """
        settings = self.config.run
        due = step % settings.checkpoint_steps == 0 or time.monotonic() - self._saved > settings.checkpoint_seconds
        stop = int(distributed.maximum(self._stop or 0))
        if due or last or stop:
            self.save(step, state())
        if stop and not last:
            self._stopped_together = True
            raise Interrupted(stop)

    def export(self, model: Transformer, name: str) -> None:
        """Write a model folder below the run directory."""
        if distributed.is_first():
            save_model(model, self.directory / name)

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file into the run directory."""
        if distributed.is_first():
            write_json(self.directory / name, value)

    def summarise(self, model: ModelConfig, parents: dict[str, str], values: dict[str, Any]) -> None:
        """Write summary.json: parameters counted from the model, parents' run ids, and the stage's own values.

        What was trained on a leak stays marked: ``leak`` is the parent's where the stage has none of its own.
        """
        cost = Cost.of(model)
        parameters = {"total": cost.parameters, "without_embeddings": cost.parameters_without_embeddings}
        content = {"stage": self.stage, "run_id": self.run_id, "parents": parents, "parameters": parameters, "model": asdict(model)}
        if self.config.parent:
            content |= leak_of(read_summary(Path(self.config.parent)))
        self.write("summary.json", content | {key: _plain(value) for key, value in values.items()})


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def read_summary(directory: Path) -> dict[str, Any]:
    """summary.json of a finished run. Raises UserError where it is missing."""
    if not finished(directory):
        raise UserError(f"parent={directory} is not a finished run: give the run directory of a stage that completed")
    try:
        return json.loads((directory / "summary.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        raise UserError(f"{directory}/summary.json is missing or damaged: delete status.json there and run the stage again") from None


def leak_of(summary: dict[str, Any]) -> dict[str, Any]:
    """The mark of a run that descends from a corpus with puzzles leaked on purpose (chessrl.leaks), empty for any other."""
    return {"leak": summary["leak"]} if "leak" in summary else {}


def adopt_parent(config: Config, stages: tuple[str, ...]) -> dict[str, Any]:
    """The summary of ``config.parent``; its model becomes ``config.model``, since that is what is worked on.

    Raises UserError without a parent, for one of another stage than ``stages``, for one that knows positions in another state, and for a leak
    that is not the parent's.
    """
    if not config.parent:
        raise UserError(f"parent is empty: give the run directory of a finished {' or '.join(stages)} run (parent=outputs/{stages[0]}-...)")
    summary = read_summary(Path(config.parent))
    if summary["stage"] not in stages:
        raise UserError(f"parent={config.parent} is a run of stage {summary['stage']}: expected {' or '.join(stages)}")
    if summary["world"]["state"] != config.world.state:
        raise UserError(
            f"world.state={config.world.state}, but parent={config.parent} was trained with {summary['world']['state']}: use that"
        )
    asked, given = asdict(config.world.leak), leak_of(summary).get("leak", {})
    if config.world.leak.fraction and asked != {key: given.get(key) for key in asked}:
        raise UserError(
            f"world.leak.fraction={config.world.leak.fraction}, but parent={config.parent} was pretrained with another leak or none: a leak is "
            "put into the corpus, so pretrain with it; later stages inherit it"
        )
    config.model = ModelConfig(**summary["model"])
    return summary
