"""The jobs of a sweep: each is carried out in whatever process or machine a Hydra launcher put it, and leaves a record of how it ended.

In the sweep's own process (launcher basic) a job is a call. A worker of another launcher starts the job's command, so that what ends the command,
a bug in C or the kernel short of memory, ends neither the worker nor the jobs of others.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from chessrl.children import run_child
from chessrl.config import Config
from chessrl.launch import first_line, outcome
from chessrl.lock import Holder
from chessrl.signals import STOP_SIGNALS, Interrupted, call_earlier, die_with_parent, stop_at_once, stop_signals

STOPPED = {128 + number for number in STOP_SIGNALS}  # somebody asked the job to stop
LAUNCHER_KEYS = ("launcher=", "hydra/", "hydra.")
SWEEP_STOPPED = "stopped"  # the file that says so to jobs which are not begun yet


@dataclass(frozen=True, slots=True)
class Job:
    """One combination. ``overrides`` are its command line; ``label`` is what tells it from the others."""

    number: int
    overrides: tuple[str, ...]
    label: str


@dataclass(frozen=True, slots=True)
class Record:
    """How a job ended: a shell's status, the error in one line, and the file its output went to (empty: the terminal)."""

    status: int
    error: str
    log: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the launcher (its class's name) is asked to do by the process ``sweep``. ``threads``: a job's share of the cores, 0 for all."""

    command: str
    folder: Path
    jobs: tuple[Job, ...]
    threads: int
    launcher: str
    sweep: Holder


# ---- one job -----------------------------------------------------------------------------------------------------------------------------


def carry_out(plan: Plan, work: Callable[[Config], int | None], config: DictConfig) -> None:
    """One job: its work, and a record of how that ended. Only the end of the whole sweep is raised."""
    job = plan.jobs[HydraConfig.get().job.num]
    here = Holder.this_process() == plan.sweep
    if not here:
        end_with_the_sweep(plan)
    place = f"[job {job.number + 1} of {len(plan.jobs)}] {job.label}"
    if reason := why_not_begun(plan, config):
        print(f"{place}: not begun, {reason}", flush=True)
        return
    print(f"\n{place}" if here else f"{place}: begun, output in {log_of(plan, job)}", flush=True)
    with stop_signals(stop_at_once if here else lambda number: None) as received:
        record = attempt(plan, work, config) if here else attempt_in_child(plan, job, config)
        write_record(plan.folder, job.number, record)
    if here:
        if received or record.status in STOPPED or (record.status and config.run.fail_fast):
            sys.exit(record.status)  # a signal was meant for all that this process does
        return
    print(f"{place}: {'completed' if record.status == 0 else f'ended with status {record.status}'}", flush=True)
    if record.status:
        let_requeue(plan, job, record, received)
    end_with_the_sweep(plan)


def end_with_the_sweep(plan: Plan) -> None:
    """A worker of joblib gets SIGTERM when the sweep dies, however it dies, and begins nothing more. submitit's jobs are made to outlive it."""
    if plan.launcher == "JoblibLauncher":
        die_with_parent(signal.SIGTERM)
        if os.getppid() != plan.sweep.pid:
            os._exit(1)


def why_not_begun(plan: Plan, config: DictConfig) -> str:
    """Empty where nothing speaks against beginning another job."""
    if (plan.folder / SWEEP_STOPPED).exists():
        return "since the sweep was stopped"
    for job in plan.jobs if config.run.fail_fast else ():
        record = read_record(plan.folder, job.number)
        if record and record.status not in {0, *STOPPED}:
            return f"since job {job.number + 1} failed and run.fail_fast=true"
    return ""


def attempt(plan: Plan, work: Callable[[Config], int | None], config: DictConfig) -> Record:
    """Do the job in this process; a bug in it is shown and recorded, and stops no other."""
    try:
        return Record(*outcome(plan.command, work, config), "")
    except Exception as error:  # the border between jobs
        traceback.print_exc()
        return Record(1, f"{type(error).__name__}: {first_line(error)}", "")


def attempt_in_child(plan: Plan, job: Job, config: DictConfig) -> Record:
    """Do the job as a command with its share of the cores; what it prints goes to its log."""
    log = log_of(plan, job)
    shares = {"run.threads": config.run.threads or plan.threads, "engine.workers": config.engine.workers or plan.threads}
    overrides = [override for override in job.overrides if override.partition("=")[0] not in shares]
    overrides += [f"{key}={value}" for key, value in shares.items() if value]
    try:
        with stop_signals(), at_work(plan, job), log.open("ab") as output:
            begin = output.tell()
            status, _ = run_child([sys.executable, "-m", plan.command.rpartition(" ")[2], *overrides], {}, output)
    except Interrupted as stop:  # before there was a child, or after it
        return Record(128 + stop.number, str(stop), str(log))
    return Record(status, error_in(log, begin, status) if status else "", str(log))


def error_in(log: Path, begin: int, status: int) -> str:
    """What the command that wrote to the log from byte ``begin`` on said of its end."""
    if status not in STOPPED and status - 128 in signal.valid_signals():
        return f"killed by {signal.Signals(status - 128).name}"
    lines = [line for line in log.read_bytes()[begin:].decode(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return " ".join([*lines[-1:], *errors[-1:]][-1:])[:300]


def let_requeue(plan: Plan, job: Job, record: Record, received: list[int]) -> None:
    """Let submitit's own handlers have the signals that we had: on one of them it puts the job into the queue again and ends the process."""
    try:
        call_earlier(received)
    except Exception as error:  # submitit's way to say that it may not: the sweep must hear of it, and go on waiting for the other jobs
        write_record(plan.folder, job.number, replace(record, error=first_line(error)))


def stage_overrides() -> list[str]:
    """The overrides of a pipeline as its stages get them: without the launcher's."""
    return [override for override in HydraConfig.get().overrides.task if not override.startswith(LAUNCHER_KEYS)]


# ---- files of the sweep's folder -----------------------------------------------------------------------------------------------------------


def log_of(plan: Plan, job: Job) -> Path:
    return plan.folder / f"job-{job.number}.log"


@contextmanager
def at_work(plan: Plan, job: Job) -> Iterator[None]:
    """Say within it which process is at the job, for ``workers``."""
    marker = plan.folder / f"job-{job.number}.worker"
    _write(marker, Holder.this_process())
    try:
        yield
    finally:
        marker.unlink(missing_ok=True)


def workers(plan: Plan) -> list[Holder]:
    """The processes that are at a job."""
    found = []
    for marker in sorted(plan.folder.glob("job-*.worker")):
        with suppress(FileNotFoundError):  # done meanwhile
            found.append(Holder(**json.loads(marker.read_text())))
    return found


def write_record(folder: Path, number: int, record: Record) -> None:
    _write(folder / f"job-{number}.json", record)


def _write(path: Path, value: Record | Holder) -> None:
    """Whole or not at all: a sweep may look at any moment."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(asdict(value), indent=2) + "\n")
    temporary.replace(path)


def read_record(folder: Path, number: int) -> Record | None:
    """None for a job that was not begun, or was killed before it could say how it ended."""
    path = folder / f"job-{number}.json"
    return Record(**json.loads(path.read_text())) if path.exists() else None
