"""A sweep: ``-m`` and several values of a key make one job of each combination, carried out by a Hydra launcher.

A job that fails stops no other. Each leaves a record in the sweep's folder, whichever process or machine it ran on; the last lines and the exit
status are made of them. Nothing of a run lives in that folder: runs are found by their hash, so a sweep started again goes on where it stopped.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig

from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.launch import CONF, compose, explain, fail, first_line, outcome
from chessrl.signals import STOP_SIGNALS, call_earlier, die_with_parent, stop_signals

STOPPED = {128 + number for number in STOP_SIGNALS}  # somebody asked the job to stop
LAUNCHER_KEYS = ("launcher=", "hydra/", "hydra.")


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
    """What the launcher is asked to do. ``threads`` is a job's share of the cores, 0 where it has them all."""

    command: str
    folder: Path
    jobs: tuple[Job, ...]
    threads: int
    sweep_pid: int


# ---- before the first job ----------------------------------------------------------------------------------------------------------------


def run_sweep(name: str, overrides: list[str], work: Callable[[Config], int | None]) -> int:
    """Carry out the sweep of command ``name``; its exit status, the worst of its jobs'. A mistake in any value ends it before it starts."""
    try:
        choices = all_choices(name, overrides)
        check_choices(name, choices)
        plan = make_plan(name, choices)
    except UserError as error:
        fail(error)
    jobs = len(plan.jobs)
    print(f"sweep: {jobs} {'job' if jobs == 1 else 'jobs'}; records in {plan.folder}", flush=True)
    if plan.threads:
        print(f"sweep: jobs run side by side, each with {plan.threads} of the CPU threads", flush=True)

    def job(config: DictConfig) -> None:
        carry_out(plan, work, config)

    sys.argv[1:] = ["-m", *overrides, f"hydra.sweep.dir={_quoted(plan.folder)}"]
    stopped = 0
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(job)()
    except KeyboardInterrupt:
        stopped = 128 + signal.SIGINT
    except SystemExit as stop:
        stopped = int(stop.code or 0)
    return report(plan, stopped)


def _quoted(path: Path) -> str:
    from chessrl.pipeline import quoted  # here: it imports torch, which a misspelt key need not wait for

    return quoted(path)


def all_choices(name: str, overrides: Sequence[str]) -> list[list[str]]:
    """``read_choices`` of the command line and, before it, of what the experiment sweeps over (``hydra.sweeper.params``)."""
    fixed = [values[0] for values in read_choices(overrides) if len(values) == 1]
    compose(name, fixed)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        params = hydra.compose(name, fixed, return_hydra_config=True).hydra.sweeper.get("params") or {}
    return read_choices([*(f"{key}={value}" for key, value in params.items()), *overrides])


def read_choices(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides with every value of each, in the order of the command line; as Hydra's own sweeper, the last of equal keys wins."""
    choices: dict[str, list[str]] = {}
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
            for override in parser.parse_overrides(list(overrides)):
                key = override.get_key_element()
                if not override.is_sweep_override():
                    choices[key] = [f"{key}={override.get_value_element_as_str()}"]
                elif override.is_discrete_sweep():
                    choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
                else:
                    raise UserError(f"{override.input_line}: expected values to go through, such as {key}=1,2,3")
    except HydraException as error:
        raise UserError(explain(error, list(overrides))) from None
    for key, values in choices.items():
        if not values:
            raise UserError(f"{key}: no value to go through")
    return list(choices.values())


def check_choices(name: str, choices: list[list[str]]) -> None:
    """Compose with every value once. Raises UserError: a misspelt key or preset is found before days of work and not after them."""
    first = [values[0] for values in choices]
    compose(name, first)
    for place, values in enumerate(choices):
        for value in values[1:]:
            compose(name, [*first[:place], value, *first[place + 1 :]])


def make_plan(name: str, choices: list[list[str]]) -> Plan:
    """The jobs in Hydra's order, the folder of their records, and each one's share of the cores."""
    swept = {values[0].partition("=")[0] for values in choices if len(values) > 1}
    jobs = []
    for number, combination in enumerate(itertools.product(*choices)):
        own = tuple(override for override in combination if not override.startswith(LAUNCHER_KEYS))
        label = " ".join(override for override in own if override.partition("=")[0] in swept)
        jobs.append(Job(number, own, label or " ".join(own)))
    first = [values[0] for values in choices]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(name, first, return_hydra_config=True)
    outputs = Path(config.outputs) / "sweeps"
    outputs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=outputs)).resolve()  # never that of another sweep, started in the same second
    threads = threads_per_job(jobs_at_once(config.hydra, len(jobs)))
    return Plan(config.hydra.help.app_name, folder, tuple(jobs), threads, os.getpid())


def cores() -> int:
    """The cores this process may use: fewer than the machine has, under Slurm or in a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs_at_once(settings: DictConfig, jobs: int) -> int:
    """How many jobs the chosen launcher runs side by side on this machine."""
    launcher = settings.launcher._target_.rpartition(".")[2]
    most = min(jobs, settings.sweeper.get("max_batch_size") or jobs)
    if launcher == "JoblibLauncher":
        workers = settings.launcher.n_jobs
        return min(most, workers if workers > 0 else max(1, cores() + 1 + workers))
    return most if launcher == "LocalLauncher" else 1


def threads_per_job(at_once: int) -> int:
    """A job's share of the cores; 0 leaves them all to the only job. OMP_NUM_THREADS, where it is set, bounds it."""
    if at_once == 1:
        return 0
    share = max(1, cores() // at_once)
    bound = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(bound)) if bound.isdigit() and int(bound) else share


# ---- one job -----------------------------------------------------------------------------------------------------------------------------


def carry_out(plan: Plan, work: Callable[[Config], int | None], config: DictConfig) -> None:
    """One job, in whatever process the launcher put it: its work, and a record of how that ended. Only the end of the whole sweep is raised."""
    job = plan.jobs[HydraConfig.get().job.num]
    place = f"[job {job.number + 1} of {len(plan.jobs)}] {job.label}"
    beside = os.getpid() != plan.sweep_pid and "SUBMITIT_EXECUTOR" not in os.environ  # a worker of joblib; submitit keeps logs of its own
    if beside and os.getppid() != plan.sweep_pid:
        return  # the sweep was killed: what its queue still holds is not begun
    if beside:
        die_with_parent(signal.SIGTERM)  # however the sweep dies: the stage then saves its state and stops
        log = plan.folder / f"job-{job.number}.log"
        print(f"{place}: begun, output in {log}", flush=True)
        with output_to(log), stop_signals() as received:
            record = attempt(plan, work, config, str(log))
        print(f"{place}: {'completed' if record.status == 0 else f'ended with status {record.status}'}", flush=True)
    else:
        print(f"\n{place}", flush=True)
        with stop_signals() as received:
            record = attempt(plan, work, config, "")
    write_record(plan.folder, job.number, record)
    if received and record.status:
        call_earlier(received[0])  # submitit's puts the job into the queue again
    if record.status in STOPPED and os.getpid() == plan.sweep_pid:
        sys.exit(record.status)  # the signal was meant for all that this process does


def attempt(plan: Plan, work: Callable[[Config], int | None], config: DictConfig, log: str) -> Record:
    """Do the job with its share of the cores; a bug in it is shown and recorded, and stops no other."""
    try:
        status, error = outcome(plan.command, work, config, plan.threads)
        return Record(status, error, log)
    except Exception as error:  # the border between jobs
        traceback.print_exc()
        return Record(1, f"{type(error).__name__}: {first_line(error)}", log)


def stage_overrides(config: Config) -> list[str]:
    """The pipeline's overrides as its stages get them: without the launcher's, with this job's share of the cores."""
    shares = {"run.threads": config.run.threads, "engine.workers": config.engine.workers}
    given = [override for override in HydraConfig.get().overrides.task if not override.startswith(LAUNCHER_KEYS)]
    kept = [override for override in given if override.partition("=")[0] not in shares]
    return kept + [f"{key}={value}" for key, value in shares.items() if value]


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """What this process and its children print goes to the file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [(os.dup(descriptor), descriptor) for descriptor in (1, 2)]
    with path.open("ab") as file:
        for _, descriptor in saved:
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for copy, descriptor in saved:
            os.dup2(copy, descriptor)
            os.close(copy)


# ---- after the last job ------------------------------------------------------------------------------------------------------------------


def write_record(folder: Path, number: int, record: Record) -> None:
    temporary = folder / f".job-{number}.tmp"
    temporary.write_text(json.dumps(asdict(record), indent=2) + "\n")
    temporary.replace(folder / f"job-{number}.json")


def read_record(folder: Path, number: int) -> Record | None:
    """None for a job that was not begun, or was killed before it could say how it ended."""
    path = folder / f"job-{number}.json"
    return Record(**json.loads(path.read_text())) if path.exists() else None


def report(plan: Plan, stopped: int) -> int:
    """Print what became of the jobs and how to rerun those that did not complete; the sweep's exit status."""
    records = {job: read_record(plan.folder, job.number) for job in plan.jobs}
    rest = [job for job, record in records.items() if record is None or record.status != 0]
    completed = len(plan.jobs) - len(rest)
    print(f"\nsweep: {completed} of {len(plan.jobs)} jobs completed" + (f", {len(rest)} did not:" if rest else ""), flush=True)
    for job in rest:
        record = records[job]
        if record is None:
            print(f"  job {job.number + 1} ({job.label}): not begun, or killed before its end")
        else:
            ending = "stopped" if record.status in STOPPED else "failed"
            print(f"  job {job.number + 1} ({job.label}): {ending} with status {record.status}" + (f": {record.error}" if record.error else ""))
            if record.log:
                print(f"    its output: {record.log}")
    if rest:
        print("to rerun these alone:")
        for job in rest:
            print(f"  {plan.command} {shlex.join(job.overrides)}")
        print("the sweep's own command again skips what is finished and goes on with the rest", flush=True)
    return max([stopped, *(record.status for record in records.values() if record), int(bool(rest))])
