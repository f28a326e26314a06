"""A sweep: ``-m`` and several values of a key make one job of each combination, carried out by a Hydra launcher (``chessrl.jobs``).

A job that fails stops no other, unless ``run.fail_fast`` asks for it. The last lines and the exit status are made of the jobs' records. Nothing of
a run lives in the sweep's folder: runs are found by their hash, so a sweep started again goes on where it stopped.
"""

from __future__ import annotations

import functools
import itertools
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig

from chessrl.children import quoted
from chessrl.config import Config
from chessrl.errors import UserError, make_folder
from chessrl.jobs import LAUNCHER_KEYS, STOPPED, SWEEP_STOPPED, Job, Plan, carry_out, read_record, workers
from chessrl.launch import CONF, compose, explain, fail
from chessrl.lock import Holder
from chessrl.signals import Interrupted, stop_signals

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

    sys.argv[1:] = ["-m", *overrides, f"hydra.sweep.dir={quoted(plan.folder)}"]
    ended = 0
    with stop_signals(functools.partial(stop_jobs, plan)) as received:
        try:
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(job)()
        except Interrupted as stop:
            ended = 128 + stop.number
        except SystemExit as stop:
            ended = int(stop.code or 0)
    return report(plan, 128 + received[0] if received else ended)


def stop_jobs(plan: Plan, number: int) -> None:
    """A stop signal: the jobs at work on this machine save their states and end, and no other is begun. Asked again, they are not waited for."""
    marker = plan.folder / SWEEP_STOPPED
    if plan.launcher == "BasicLauncher" or marker.exists():
        raise Interrupted(number)
    name = signal.Signals(number).name
    if plan.launcher == "SlurmLauncher":
        print(f"\n{name}: the jobs stay in Slurm's hands (squeue shows them, scancel ends them)", file=sys.stderr, flush=True)
        raise Interrupted(number)
    print(f"\n{name}: the jobs at work save their states and stop (once more to stop at once)", file=sys.stderr, flush=True)
    marker.touch()
    for worker in workers(plan):
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGTERM)


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
                if getattr(override.value(), "shuffle", False):  # drawn again whenever it is read: a job's number would not say which job it is
                    raise UserError(f"{override.input_line}: expected the values in an order, without shuffle()")
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
            raise UserError(f"{key}: no value to go through; give some, such as {key}=1,2,3")
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
    launcher = config.hydra.launcher._target_.rpartition(".")[2]
    if launcher == "SlurmLauncher" and not shutil.which("srun"):
        raise UserError("launcher=submitit_slurm: there is no srun here: start it on a machine of the cluster, or try launcher=submitit_local")
    outputs = make_folder(Path(config.outputs) / "sweeps", "outputs")
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=outputs)).resolve()  # never that of another sweep, started in the same second
    threads = threads_per_job(jobs_at_once(config.hydra, len(jobs)))
    return Plan(config.hydra.help.app_name, folder, tuple(jobs), threads, launcher, Holder.this_process())


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


# ---- after the last job ------------------------------------------------------------------------------------------------------------------


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
    return max([*(record.status for record in records.values() if record), stopped, 1]) if rest else 0
