"""Launchers with processes of their own (joblib, submitit): jobs are reported like others, share the cores, survive each other, stop and requeue."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from chessrl import jobs, sweep
from chessrl.jobs import Job, Plan, Record, error_in, read_record, write_record
from chessrl.launch import launch
from chessrl.lock import Holder
from tests import tiny

ROOT = Path(__file__).parents[1]
TINY = ["experiment=toy", *tiny.MODEL, *tiny.SIZES]
LONG = ["pretrain.batch_tokens=1000", "pretrain.tokens=10_000_000", "pretrain.allow_repeats=true"]  # far more than there is time for
PATIENCE_S = 120


def launchers() -> list[str]:
    """Launchers of the extra that are installed."""
    found = importlib.util.find_spec("hydra_plugins")
    folders = [Path(place) for place in found.submodule_search_locations] if found else []
    return [name for name in ("joblib", "submitit") if any((folder / f"hydra_{name}_launcher").is_dir() for folder in folders)]


def need(launcher: str) -> None:
    plugin = launcher.partition("_")[0]
    if plugin not in launchers():
        pytest.skip(f"needs the extra cluster: hydra-{plugin}-launcher is not installed")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(happened: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def records(outputs: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(outputs.glob("sweeps/*/job-*.json"))]


def stages_at_work(outputs: Path) -> dict[str, int]:
    """Seed of each pretraining run that has logged a step -> the process that is at it."""
    found = {}
    for lock in outputs.glob("pretrain-*/lock"):
        if (lock.parent / "metrics.jsonl").exists() and (lock.parent / "metrics.jsonl").stat().st_size:
            found[tiny.seed_of(lock.parent)] = json.loads(lock.read_text())["pid"]
    return found


# ---- before the first job ----------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("joblib" in launchers(), reason="the launcher is installed")
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["rl", "-m", f"outputs={tmp_path}", "launcher=joblib", "rl.steps=1,2"])
    with pytest.raises(SystemExit) as exit_:
        launch("rl", lambda config: 0)
    assert exit_.value.code == 2
    assert capsys.readouterr().err == "error: launcher=joblib needs an extra that is not installed: pip install 'chessrl[cluster]'\n"


def test_slurm_is_missed_before_the_first_job_and_in_one_line(monkeypatch, tmp_path, capsys):
    need("submitit_slurm")
    monkeypatch.setattr(sweep.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["rl", "-m", f"outputs={tmp_path}", "launcher=submitit_slurm", "rl.steps=1,2"])
    with pytest.raises(SystemExit) as exit_:
        launch("rl", lambda config: 0)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and error.startswith("error: launcher=submitit_slurm: there is no srun here") and error.count("\n") == 1


# ---- one job -----------------------------------------------------------------------------------------------------------------------------


def test_what_a_log_says_of_the_end_is_that_of_the_last_attempt(tmp_path):
    log = tmp_path / "job-0.log"
    log.write_text("error: of an earlier attempt\n")
    begin = log.stat().st_size
    with log.open("a") as file:
        file.write("Traceback ...\nValueError: a bug\n\n")
    assert error_in(log, begin, 1) == "ValueError: a bug"
    with log.open("a") as file:
        file.write("error: out of range\n 3%|##\r 4%|###")
    assert error_in(log, begin, 2) == "out of range"
    assert error_in(log, begin, 137) == "killed by SIGKILL" and error_in(log, begin, 255) == "out of range"
    assert error_in(log, log.stat().st_size, 1) == ""


def plan_of(folder: Path, count: int) -> Plan:
    made = tuple(Job(number, (f"rl.steps={number}",), f"rl.steps={number}") for number in range(count))
    return Plan("python -m rl", folder, made, 0, "JoblibLauncher", Holder.this_process())


def test_after_a_failure_others_begin_unless_fail_fast_and_after_a_stop_never(tmp_path):
    from chessrl.launch import compose

    plan, go_on, fast = plan_of(tmp_path, 3), compose("rl", []), compose("rl", ["run.fail_fast=true"])
    write_record(tmp_path, 0, Record(143, "stopped", ""))
    assert jobs.why_not_begun(plan, fast) == "", "a job that was stopped has not failed"
    write_record(tmp_path, 1, Record(2, "no", ""))
    assert jobs.why_not_begun(plan, go_on) == "" and jobs.why_not_begun(plan, fast) == "since job 2 failed and run.fail_fast=true"
    (tmp_path / jobs.SWEEP_STOPPED).touch()
    assert jobs.why_not_begun(plan, go_on) == "since the sweep was stopped"


def test_a_handler_that_may_not_requeue_does_not_fail_the_wait_for_the_other_jobs(tmp_path):
    """submitit raises in its handler when a job ran out of its time too often."""

    def refuse(number: int, frame: object) -> None:
        raise RuntimeError("Job not requeued because: timed-out too many times.")

    earlier = signal.signal(signal.SIGUSR2, refuse)
    try:
        plan = plan_of(tmp_path, 1)
        jobs.let_requeue(plan, plan.jobs[0], Record(140, "stopped by SIGUSR2", "log"), [signal.SIGUSR2])
    finally:
        signal.signal(signal.SIGUSR2, earlier)
    assert read_record(tmp_path, 0) == Record(140, "Job not requeued because: timed-out too many times.", "log")


# ---- whole sweeps ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["joblib", pytest.param("submitit_local", marks=pytest.mark.long)])
def test_jobs_in_processes_of_their_own_are_reported_like_others(launcher, tiny_runs, tmp_path):
    need(launcher)
    outputs = tiny.share_data(tmp_path, tiny_runs)
    process = python("pretrain", "-m", *TINY, f"outputs={outputs}", f"launcher={launcher}", "pretrain.batch_tokens=2000,30000")
    assert process.returncode == 2, process.stderr[-2000:]
    assert "sweep: 1 of 2 jobs completed, 1 did not:" in process.stdout and "jobs run side by side" in process.stdout
    assert process.stdout.count("pretrain.batch_tokens=30000: raise it") == 1, "the reason did not come back from the job's process"
    assert [record["status"] for record in records(outputs)] == [0, 2]
    assert tiny.metrics_of(outputs / tiny_runs["pretrain"].name) == tiny.metrics_of(tiny_runs["pretrain"])
    for record in records(outputs):
        assert "pretrain" in Path(record["log"]).read_text(), "the job's own output is not in its log"
    assert not list(outputs.glob("sweeps/*/*.worker"))
    config = (outputs / tiny_runs["pretrain"].name / "config.yaml").read_text()
    assert "threads: 1\n" in config and "workers: 1\n" in config, "the share of the cores did not reach the job"


@pytest.mark.long
def test_a_killed_job_takes_no_other_with_it_and_a_stopped_sweep_saves_what_is_at_work(tiny_runs, tmp_path):
    need("joblib")
    outputs = tiny.share_data(tmp_path, tiny_runs)
    arguments = [*TINY, *LONG, f"outputs={outputs}", "launcher=joblib", "hydra.launcher.n_jobs=2", "pretrain.seed=0,1,2,3"]
    with started("pretrain", "-m", *arguments) as process:
        wait_for(lambda: {0, 1} <= stages_at_work(outputs).keys(), process)
        os.kill(stages_at_work(outputs)[0], signal.SIGKILL)
        wait_for(lambda: 2 in stages_at_work(outputs), process)  # its worker goes on with the next job
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 143
    assert "job 1 (pretrain.seed=0): failed with status 137: killed by SIGKILL" in output
    for number in (2, 3):
        assert f"job {number} (pretrain.seed={number - 1}): stopped with status 143" in output
    assert "job 4 (pretrain.seed=3): not begun" in output and "Traceback" not in output
    for directory in outputs.glob("pretrain-*"):
        state = json.loads((directory / "status.json").read_text())["state"]
        assert state == ("running" if tiny.seed_of(directory) == 0 else "interrupted")
        if state == "interrupted":
            newest = max((directory / "state").glob("step-*.pt"))
            assert torch.load(newest, weights_only=True)["step"] == tiny.metrics_of(directory)[-1]["step"], "steps were lost"


@pytest.mark.long
def test_a_preempted_job_of_submitit_saves_is_queued_again_and_ends_like_an_unbroken_one(tiny_runs, tmp_path):
    """Slurm sends SIGTERM first, which submitit only notes, then the SIGUSR2 that it requeues on."""
    need("submitit_local")
    outputs = tiny.share_data(tmp_path, tiny_runs)
    size = ["pretrain.tokens=400_000", "pretrain.batch_tokens=1000", "pretrain.allow_repeats=true", "run.checkpoint_steps=100000"]
    with started("pretrain", "-m", *TINY, *size, f"outputs={outputs}", "launcher=submitit_local", "pretrain.seed=0") as process:
        wait_for(lambda: stages_at_work(outputs), process)
        (metrics,) = outputs.glob("pretrain-*/metrics.jsonl")
        first = metrics.read_bytes().splitlines()[0]
        (marker,) = outputs.glob("sweeps/*/job-0.worker")
        worker = json.loads(marker.read_text())["pid"]
        for number in (signal.SIGTERM, signal.SIGUSR2):
            os.kill(worker, number)
        output = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0 and "sweep: 1 of 1 jobs completed" in output, output
    (log,) = outputs.glob("sweeps/*/.submitit/*/*_log.err")
    assert "Caught signal SIGUSR2" in log.read_text() and "preempted" in log.read_text()
    (job_log,) = outputs.glob("sweeps/*/job-0.log")
    assert "stopped by SIG" in job_log.read_text()
    (directory,) = outputs.glob("pretrain-*")
    steps = [line["step"] for line in tiny.metrics_of(directory)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 300
    assert metrics.read_bytes().splitlines()[0] == first, "it began anew: the first step has another time"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_killed_sweep_leaves_no_job_behind_and_the_jobs_saved_their_states(tiny_runs, tmp_path):
    need("joblib")
    outputs = tiny.share_data(tmp_path, tiny_runs)
    arguments = [*TINY, *LONG, f"outputs={outputs}", "launcher=joblib", "hydra.launcher.n_jobs=2", "pretrain.seed=0,1,2"]
    with started("pretrain", "-m", *arguments) as process:
        wait_for(lambda: len(stages_at_work(outputs)) == 2, process)
        process.kill()
        process.communicate(timeout=PATIENCE_S)  # until nobody holds the other end: workers and jobs have ended
    runs = list(outputs.glob("pretrain-*"))
    assert len(runs) == 2, "the queue's rest was begun"
    for directory in runs:
        assert json.loads((directory / "status.json").read_text())["state"] == "interrupted"
        assert list((directory / "state").glob("step-*.pt"))


# As much of Slurm as submitit sees of it: an array's tasks run side by side at once, one that asks for it is run again.
SLURM = {
    "sbatch": """
        file="${@: -1}"; range=$(sed -n 's/^#SBATCH --array=//p' "$file"); range=${range%%%*}
        cp "$file" "$SLURM_FAKE/job.sh"
        for task in $(seq "${range%-*}" "${range#*-}"); do setsid "$SLURM_FAKE/task" "$task" > /dev/null 2>&1 & done
        echo "Submitted batch job 77"
    """,
    "task": """
        export SLURM_JOB_ID=77$1 SLURM_ARRAY_JOB_ID=77 SLURM_ARRAY_TASK_ID=$1 SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0
        export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_JOB_NODELIST=localhost
        while bash "$SLURM_FAKE/job.sh"; [ -e "$SLURM_FAKE/requeue-77_$1" ]; do rm "$SLURM_FAKE/requeue-77_$1"; done
    """,
    "srun": 'while [[ "$1" != *python* ]]; do shift; done; exec "$@" >> "$SLURM_FAKE/log" 2>&1',
    "scontrol": '[ "$1" = requeue ] && touch "$SLURM_FAKE/requeue-$2" "$SLURM_FAKE/requeued-$2"',
    "sacct": "true",
    "scancel": "true",
}


@pytest.mark.long
def test_an_array_of_slurm_is_waited_for_through_failures_and_requeueing(tiny_runs, tmp_path, monkeypatch):
    need("submitit_slurm")
    outputs, fake = tiny.share_data(tmp_path / "outputs", tiny_runs), tmp_path / "slurm"
    fake.mkdir()
    for name, script in SLURM.items():
        (fake / name).write_text(f"#!/bin/bash\n{script}\n")
        (fake / name).chmod(0o755)
    monkeypatch.setenv("SLURM_FAKE", str(fake))
    monkeypatch.setenv("PATH", f"{fake}{os.pathsep}{os.environ['PATH']}")
    size = ["pretrain.tokens=400_000", "pretrain.allow_repeats=true"]
    arguments = [*TINY, *size, f"outputs={outputs}", "launcher=submitit_slurm", "pretrain.batch_tokens=1000,500_000"]
    with started("pretrain", "-m", *arguments) as process:
        wait_for(lambda: stages_at_work(outputs), process)
        (marker,) = outputs.glob("sweeps/*/job-0.worker")
        worker = json.loads(marker.read_text())["pid"]
        for number in (signal.SIGTERM, signal.SIGUSR2):
            os.kill(worker, number)
        output = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 2 and "sweep: 1 of 2 jobs completed, 1 did not:" in output, output
    assert "pretrain.batch_tokens=500000: raise it" in output
    assert [path.name for path in fake.glob("requeued-*")] == ["requeued-77_0"]
    (directory,) = outputs.glob("pretrain-*")
    assert json.loads((directory / "status.json").read_text())["state"] == "completed"
    batch = (fake / "job.sh").read_text()
    for setting in ("--signal=USR2@120", "--array=0-1%2", "--gpus-per-node=1", "--cpus-per-task=8", "--time=1440"):
        assert f"#SBATCH {setting}\n" in batch, setting


@pytest.mark.long
def test_fail_fast_holds_for_jobs_in_other_processes(tiny_runs, tmp_path):
    need("submitit_local")
    outputs = tiny.share_data(tmp_path, tiny_runs)
    one_at_a_time = ["launcher=submitit_local", "hydra.sweeper.max_batch_size=1"]
    arguments = [*TINY, f"outputs={outputs}", *one_at_a_time, "run.fail_fast=true", "pretrain.batch_tokens=30000,2000"]
    process = python("pretrain", "-m", *arguments)
    assert process.returncode == 2 and "job 2 (pretrain.batch_tokens=2000): not begun" in process.stdout
    assert not list(outputs.glob("pretrain-*/model"))
