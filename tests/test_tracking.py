"""Trackers: imported only when chosen, one line where one is missing, and the same tracked run after an interruption."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from chessrl.config import Config, RunConfig
from chessrl.config_check import check_values
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.run import Run, digest, identity_of
from chessrl.tracking import LOGGERS, TrackedRun, check_logger, open_tracker
from chessrl.training import run_stage

ROOT = Path(__file__).parents[1]
EXTRAS = [name for name in LOGGERS if name != "none"]
STEPS = 6

# A tracker's module with what both trackio and wandb offer, keeping what it is told in a file beside itself.
FAKE = """
import json
from pathlib import Path
TOLD = Path(__file__).with_suffix(".jsonl")

def tell(**what):
    with TOLD.open("a") as file:
        file.write(json.dumps(what) + "\\n")

class Error(Exception):
    pass

class Run:
    def log(self, metrics, step):
        tell(step=step, metrics=metrics)
    def finish(self, exit_code=0):
        tell(finished=exit_code)

def init(project, name, config, resume, **others):
    if "refuse" in name:
        raise Error("api_key not configured\\n(no-tty)")
    tell(project=project, name=name, id=others.get("id", name), resume=resume, logger=config["logger"])
    return Run()
"""


@pytest.fixture(params=["trackio", "wandb"])
def fake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a tracker, whose module is FAKE."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{request.param}.py").write_text(FAKE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    return request.param


def told(tmp_path: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "modules" / f"{name}.jsonl").read_text().splitlines()]


def counting(fail_at: int = 0):
    def work(run: Run) -> None:
        state = run.resume() or {"step": 0}
        for step in run.loop(state["step"], STEPS):
            run.log({"step": step, "loss": 1.0 / step, "reward/line": None, "time/wall_s": 0.5})
            if step == fail_at:
                raise RuntimeError("power cut")
            run.checkpoint(step, step == STEPS, lambda: {"step": step})  # noqa: B023  called at once

    return work


def settings(tmp_path: Path, logger: str) -> Config:
    return Config(outputs=str(tmp_path / "outputs"), logger=logger, run=RunConfig(device="cpu", checkpoint_steps=2))


def test_an_interrupted_run_goes_on_in_the_same_tracked_run_and_tells_no_step_twice(fake, tmp_path):
    config = settings(tmp_path, fake)
    with pytest.raises(RuntimeError, match="power cut"):
        run_stage("count", config, {"what": "x"}, counting(fail_at=5))  # the newest state is of step 4: step 5 comes again
    assert run_stage("count", config, {"what": "x"}, counting()) == 0
    lines = told(tmp_path, fake)
    starts = [line for line in lines if "project" in line]
    assert len(starts) == 2 and starts[0] == starts[1]
    assert starts[0]["resume"] == "allow" and starts[0]["project"] == "chessrl" and starts[0]["logger"] == fake
    assert [line["step"] for line in lines if "step" in line] == list(range(1, STEPS + 1))
    assert lines[1]["metrics"] == {"loss": 1.0, "time/wall_s": 0.5}
    assert [line["finished"] for line in lines if "finished" in line] == ([1, 0] if fake == "wandb" else [0, 0])


def test_steps_taken_over_from_a_shorter_run_are_told_as_well(fake, tmp_path):
    def work(run: Run) -> None:
        assert run.resume() is None
        run.take_metrics(b'{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 0.5}\n')
        for step in run.loop(2, STEPS):
            run.log({"step": step, "loss": 1.0 / step})

    assert run_stage("count", settings(tmp_path, fake), {"what": "x"}, work) == 0
    assert [line["step"] for line in told(tmp_path, fake) if "step" in line] == list(range(1, STEPS + 1))


def test_runs_of_one_configuration_in_two_folders_are_two_tracked_runs(fake, tmp_path):
    for name in ("a", "b"):
        config = dataclasses.replace(settings(tmp_path, fake), outputs=str(tmp_path / name))
        assert run_stage("count", config, {"what": "x"}, counting()) == 0
    ids = [line["id"] for line in told(tmp_path, fake) if "id" in line]
    run_id = f"count-{digest({'what': 'x'})}"
    assert len(set(ids)) == 2 and all(name.startswith(run_id) for name in ids)


def test_wandb_that_refuses_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "wandb.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (tmp_path / "tracker.json").write_text('{"id": "x"}')
    with pytest.raises(UserError, match=r"logger=wandb: api_key not configured \(no-tty\); log in") as error:
        open_tracker("wandb", TrackedRun(tmp_path, "refuse", {}, 1, 0))
    assert "\n" not in str(error.value)


def test_tensorboard_files_hold_each_step_once_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = settings(tmp_path, "tensorboard")
    with pytest.raises(RuntimeError, match="power cut"):
        run_stage("count", config, {"what": "x"}, counting(fail_at=5))
    assert run_stage("count", config, {"what": "x"}, counting()) == 0
    (directory,) = Path(config.outputs).iterdir()
    events = EventAccumulator(str(directory / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_extra_is_refused_before_any_work_with_the_line_that_installs_it(name, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(UserError, match=rf"logger={name}: {name} is not installed; install it with: pip install {name}"):
        check_values(compose("pretrain", [f"logger={name}"]))


def test_a_folder_of_that_name_is_not_the_package(tmp_path, monkeypatch):
    """wandb leaves a folder ``wandb/`` where it ran, which Python takes for a package without content."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UserError, match="wandb is not installed"):
        check_logger("wandb")


def test_an_unknown_logger_is_refused():
    with pytest.raises(UserError, match="logger=mlflow: expected one of none, tensorboard, trackio, wandb"):
        check_values(compose("pretrain", ["logger=mlflow"]))


def test_no_extra_is_imported_that_was_not_chosen():
    code = f"""
import sys
import pretrain.train, sft.train, rl.train, chessrl.pipeline, chessrl.evaluate
from pathlib import Path
from chessrl.tracking import TrackedRun, open_tracker
open_tracker("none", TrackedRun(Path("."), "x", {{}}, 1, 0)).log(1, {{"loss": 1.0}})
sys.exit(", ".join(name for name in {EXTRAS} if name in sys.modules))
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0 or process.stderr == "\n", process.stderr


def test_the_logger_is_no_part_of_a_runs_identity():
    assert identity_of(Config(logger="wandb")) == identity_of(Config())


def test_a_kill_while_the_trackers_id_is_written_leaves_none_or_all_of_it(tmp_path, monkeypatch):
    run = TrackedRun(tmp_path, "rl-0123", {}, 1, 0)

    def killed(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", killed)
        assert run.tracker_id
    assert not (tmp_path / "tracker.json").exists()
    assert run.tracker_id == run.tracker_id and run.tracker_id.startswith("rl-0123-")
