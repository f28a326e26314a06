"""Sweeps: what is refused before the first job, that a failed job stops no other, and that a rerun does what is left and nothing twice."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from chessrl import sweep
from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.jobs import Job, Plan, Record, write_record
from chessrl.launch import CONF, launch
from chessrl.lock import Holder
from chessrl.run import Run
from chessrl.signals import stop_signals
from pretrain.__main__ import work as pretrain_work
from tests import tiny

ROOT = Path(__file__).parents[1]
TINY = ["experiment=toy", *tiny.MODEL, *tiny.SIZES]


def swept(monkeypatch: pytest.MonkeyPatch, command: str, work, *arguments: str) -> int:
    """The exit status of a sweep in this process."""
    monkeypatch.setattr(sys, "argv", [command, "-m", *arguments])
    with pytest.raises(SystemExit) as exit_:
        launch(command, work)
    return exit_.value.code


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)


# ---- before the first job ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rl.stepz=1,2"], "rl.stepz: no such key; did you mean rl.steps?"),
        (["+nonsense=1,2"], "nonsense: no such key"),
        (["rl.steps=1,2,many"], "rl.steps=many: Value 'many'"),
        (["model=nano,micro,huge", "rl.steps=1,2"], "model=huge: no such preset; known are"),
        (["rl.steps=1,2", "outputs=a=b"], "outputs=a=b: not readable as key=value"),
        (["rl.steps=range(3,1)"], "rl.steps: no value to go through"),
        (["rl.steps=shuffle(1,2,3)"], "rl.steps=shuffle(1,2,3): expected the values in an order, without shuffle()"),
        (["rl.steps=interval(1,3)"], "rl.steps=interval(1,3): expected values to go through, such as rl.steps=1,2,3"),
    ],
)
def test_a_mistake_in_any_value_of_a_sweep_is_one_line_before_any_job(overrides, message, monkeypatch, tmp_path, capsys):
    def work(config: Config) -> int:
        raise AssertionError("a job was begun")

    assert swept(monkeypatch, "rl", work, f"outputs={tmp_path}", *overrides) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {message}") and output.err.count("\n") == 1 and not output.out
    assert not list(tmp_path.iterdir())


def test_jobs_are_all_combinations_named_by_what_differs(tmp_path):
    plan = sweep.make_plan("rl", sweep.read_choices([f"outputs={tmp_path}", "rl.steps=1,2", "model=nano,micro", "launcher=basic", "rl.seed=7"]))
    assert [job.label for job in plan.jobs] == [f"rl.steps={steps} model={model}" for steps in (1, 2) for model in ("nano", "micro")]
    assert plan.jobs[0].overrides == (f"outputs={tmp_path}", "rl.steps=1", "model=nano", "rl.seed=7")
    assert plan.command == "python -m rl"


def test_what_an_experiment_sweeps_over_is_part_of_the_sweep_and_the_command_line_wins(monkeypatch, tmp_path, capsys):
    seen = []

    def work(config: Config) -> int:
        seen.append((config.rl.steps, config.rl.seed))
        return int(config.rl.seed == 1)

    presets = tmp_path / "conf"
    shutil.copytree(CONF, presets)
    lines = ["# @package _global_", "hydra:", "  sweeper:", "    params:", "      rl.steps: 1,2", "      rl.seed: 0,1"]
    (presets / "experiment" / "grid.yaml").write_text("\n".join(lines) + "\n")
    for module in ("chessrl.launch", "chessrl.sweep"):
        monkeypatch.setattr(f"{module}.CONF", presets)
    assert swept(monkeypatch, "rl", work, f"outputs={tmp_path}", "experiment=grid", "rl.steps=3,4") == 1
    assert seen == [(3, 0), (3, 1), (4, 0), (4, 1)]
    output = capsys.readouterr().out
    assert [line for line in output.splitlines() if line.startswith("  python")] == [
        f"  python -m rl rl.steps={steps} rl.seed=1 outputs={tmp_path} experiment=grid" for steps in (3, 4)
    ]


def test_sweeps_of_the_same_second_have_folders_of_their_own(tmp_path):
    choices = sweep.read_choices([f"outputs={tmp_path}", "rl.steps=1,2"])
    assert sweep.make_plan("rl", choices).folder != sweep.make_plan("rl", choices).folder


def test_jobs_side_by_side_share_the_cores(monkeypatch):
    monkeypatch.setattr(sweep, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def at_once(launcher: str, jobs: int, n_jobs: int = -1, batch: int | None = None) -> int:
        settings = {"launcher": {"_target_": f"plugin.{launcher}", "n_jobs": n_jobs}, "sweeper": {"max_batch_size": batch}}
        return sweep.jobs_at_once(OmegaConf.create(settings), jobs)

    assert [at_once("JoblibLauncher", 20), at_once("JoblibLauncher", 3), at_once("JoblibLauncher", 20, n_jobs=-7)] == [8, 3, 2]
    assert [at_once("LocalLauncher", 20, batch=2), at_once("LocalLauncher", 4)] == [2, 4]
    assert [at_once("BasicLauncher", 20), at_once("SlurmLauncher", 20)] == [1, 1]
    assert [sweep.threads_per_job(jobs) for jobs in (1, 2, 3, 20)] == [0, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [sweep.threads_per_job(jobs) for jobs in (2, 4)] == [3, 2]


# ---- jobs that fail ------------------------------------------------------------------------------------------------------------------------


def records(outputs: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(outputs.glob("sweeps/*/job-*.json"))]


def test_a_failed_job_stops_no_other_and_the_last_lines_say_how_to_rerun_it(monkeypatch, tmp_path, capsys):
    seen = []

    def work(config: Config) -> int:
        seen.append(config.rl.steps)
        if config.rl.steps == 1:
            raise UserError("one is too few")
        if config.rl.steps == 2:
            raise ZeroDivisionError("a bug")
        return 0

    outputs = tmp_path / "a folder, with signs"
    assert swept(monkeypatch, "rl", work, f"outputs='{outputs}'", "launcher=basic", "rl.steps=1,2,3", "rl.seed=5") == 2
    assert seen == [1, 2, 3]
    output = capsys.readouterr()
    assert "error: one is too few" in output.err and "Traceback" in output.err and "ZeroDivisionError: a bug" in output.err
    assert [(record["status"], record["error"]) for record in records(outputs)] == [
        (2, "one is too few"), (1, "ZeroDivisionError: a bug"), (0, ""),
    ]  # fmt: skip
    lines = output.out.splitlines()
    assert "sweep: 1 of 3 jobs completed, 2 did not:" in lines
    assert "  job 1 (rl.steps=1): failed with status 2: one is too few" in lines
    rerun = [shlex.split(line)[3:] for line in lines if line.startswith("  python -m rl ")]
    assert rerun == [[f"outputs='{outputs}'", f"rl.steps={steps}", "rl.seed=5"] for steps in (1, 2)]

    monkeypatch.setattr(sys, "argv", ["rl", *rerun[0]])
    with pytest.raises(SystemExit) as exit_:
        launch("rl", work)
    assert exit_.value.code == 2 and seen[3:] == [1], "the printed command does not rerun the job"


def test_a_signal_ends_the_sweep_and_not_only_its_job(monkeypatch, tmp_path, capsys):
    seen = []

    def work(config: Config) -> int:
        seen.append(config.rl.steps)
        return 128 + signal.SIGTERM if config.rl.steps == 2 else 0

    assert swept(monkeypatch, "rl", work, f"outputs={tmp_path}", "rl.steps=1,2,3") == 128 + signal.SIGTERM
    assert seen == [1, 2]
    output = capsys.readouterr().out
    assert "job 2 (rl.steps=2): stopped with status 143" in output and "job 3 (rl.steps=3): not begun, or killed before its end" in output


def test_with_fail_fast_nothing_is_begun_after_the_first_failure(monkeypatch, tmp_path, capsys):
    seen = []

    def work(config: Config) -> int:
        seen.append(config.rl.steps)
        return 7 if config.rl.steps == 2 else 0

    arguments = ["rl.steps=1,2,3,4", f"outputs={tmp_path}"]
    assert swept(monkeypatch, "rl", work, *arguments, "run.fail_fast=true") == 7
    assert seen == [1, 2]
    output = capsys.readouterr().out
    assert "sweep: 1 of 4 jobs completed, 3 did not:" in output and "job 4 (rl.steps=4): not begun" in output
    assert swept(monkeypatch, "rl", work, *arguments) == 7
    assert seen[2:] == [1, 2, 3, 4], "without it a failure stops no other job"


def test_a_signal_that_comes_while_a_job_finishes_ends_the_sweep_too(monkeypatch, tmp_path, capsys):
    """As in the last step of a run, which is carried to its end."""
    seen = []

    def work(config: Config) -> int:
        seen.append(config.rl.steps)
        with stop_signals(lambda number: None):
            signal.raise_signal(signal.SIGTERM)
        return 0

    assert swept(monkeypatch, "rl", work, "rl.steps=1,2,3", f"outputs={tmp_path}") == 128 + signal.SIGTERM
    assert seen == [1] and "sweep: 1 of 3 jobs completed" in capsys.readouterr().out


def test_an_outputs_folder_that_cannot_be_is_one_line(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert swept(monkeypatch, "rl", lambda config: 0, "rl.steps=1,2", f"outputs={tmp_path / 'file'}") == 2
    assert re.fullmatch(r"error: outputs=.*sweeps: cannot be made or used as a folder .*\n", capsys.readouterr().err)


def test_a_job_that_left_no_record_fails_the_sweep(tmp_path, capsys):
    jobs = tuple(Job(number, (f"rl.steps={number}",), f"rl.steps={number}") for number in range(2))
    plan = Plan("python -m rl", tmp_path, jobs, 0, "BasicLauncher", Holder.this_process())
    write_record(tmp_path, 0, Record(0, "", ""))
    assert sweep.report(plan, 0) == 1
    assert "job 2 (rl.steps=1): not begun, or killed before its end" in capsys.readouterr().out
    write_record(tmp_path, 1, Record(0, "", ""))
    assert sweep.report(plan, 0) == 0


def test_a_half_done_sweep_goes_on_where_it_stopped(monkeypatch, tiny_runs, tmp_path, capsys):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    arguments = [*TINY, f"outputs={outputs}", "run.checkpoint_steps=2", "pretrain.data_seed=0,1,2"]
    log = Run.log

    def log_then_fail(run: Run, metrics: dict[str, object]) -> None:
        log(run, metrics)
        if metrics["step"] == 5 and run.config.pretrain.data_seed == 0:
            raise RuntimeError("the machine was pulled away")

    monkeypatch.setattr(Run, "log", log_then_fail)
    assert swept(monkeypatch, "pretrain", pretrain_work, *arguments) == 1
    broken = outputs / tiny_runs["pretrain"].name  # data_seed=0 is the tiny run's
    assert json.loads((broken / "status.json").read_text())["state"] == "failed"
    assert "the machine was pulled away" in (broken / "error.log").read_text() and "Traceback" in (broken / "error.log").read_text()
    others = [path for path in outputs.glob("pretrain-*") if path != broken]
    assert [json.loads((path / "status.json").read_text())["state"] for path in others] == ["completed"] * 2
    before = {path: path.stat().st_mtime_ns for other in others for path in other.rglob("*") if path.is_file()}
    capsys.readouterr()

    monkeypatch.setattr(Run, "log", log)
    assert swept(monkeypatch, "pretrain", pretrain_work, *arguments) == 0
    output = capsys.readouterr().out
    assert output.count("is finished, skipped") == 2 and "sweep: 3 of 3 jobs completed" in output
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert tiny.metrics_of(broken) == tiny.metrics_of(tiny_runs["pretrain"]), "the failed job did not end like an unbroken one"
    assert len(list(outputs.glob("pretrain-*"))) == 3


# ---- shared ancestors ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_sweep_over_rl_settings_finds_the_ancestors_by_their_hash(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    for stage in ("pretrain", "sft"):
        shutil.copytree(tiny_runs[stage], outputs / tiny_runs[stage].name)
    process = python("chessrl", "-m", *TINY, "pipeline.evaluate=false", "pipeline.report=false", f"outputs={outputs}", "rl.steps=1,2")
    assert process.returncode == 0, process.stderr[-2000:]
    assert [len(list(outputs.glob(f"{stage}-*"))) for stage in ("pretrain", "sft", "rl")] == [1, 1, 2]
    assert process.stdout.count("is finished, skipped") == 4 and "sweep: 2 of 2 jobs completed" in process.stdout
