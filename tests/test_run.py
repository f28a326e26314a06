"""A run directory's life: identity, status, resume, locks, signals; and that interrupted stages end where unbroken ones do, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from chessrl import lock, signals, world
from chessrl.config import Config, RunConfig, local, neutral
from chessrl.errors import UserError
from chessrl.lock import Lock
from chessrl.run import Run, digest, identity_of, read_summary, resolve_device
from chessrl.signals import Interrupted, stop_signals
from chessrl.training import run_stage
from tests import tiny

ROOT = Path(__file__).parents[1]
STEPS = 10


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return Config(outputs=str(tmp_path), run=RunConfig(device="cpu", checkpoint_steps=3))


def counting(at: int = 0, do: Callable[[], None] = lambda: None) -> Callable[[Run], None]:
    """A stage that counts to STEPS and does something after logging step ``at``."""

    def work(run: Run) -> None:
        state = run.resume() or {"step": 0, "sum": 0}
        for step in run.loop(state["step"], STEPS):
            state = {"step": step, "sum": state["sum"] + step}
            run.log({"step": step, "sum": state["sum"], "loss": 1.0})
            if step == at:
                do()
            run.checkpoint(step, step == STEPS, lambda: state)  # noqa: B023  called at once

    return work


def fail() -> None:
    raise RuntimeError("the disk is full")


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def start(config: Config, work: Callable[[Run], None], identity: str = "x") -> int:
    return run_stage("count", config, {"what": identity}, work)


def only_directory(config: Config) -> Path:
    (directory,) = Path(config.outputs).iterdir()
    return directory


def status_of(directory: Path) -> dict[str, str | None]:
    return json.loads((directory / "status.json").read_text())


def assert_counted(directory: Path) -> None:
    """Every step once, with the sums of an unbroken run."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["sum"]) for line in lines] == [(step, step * (step + 1) // 2) for step in range(1, STEPS + 1)]
    assert status_of(directory)["state"] == "completed"


# ---- identity -------------------------------------------------------------------------------------------------------------------------


def test_local_and_neutral_keys_stay_out_of_the_identity():
    @dataclasses.dataclass
    class Section:
        lr: float = 0.1
        workers: int = local(4)
        later: str = neutral("as before")

    assert identity_of(Section()) == {"lr": 0.1}
    assert identity_of(Section(workers=8)) == identity_of(Section())
    assert identity_of(Section(later="new")) == {"lr": 0.1, "later": "new"}
    assert digest(identity_of(Section(lr=0.2))) != digest(identity_of(Section()))


def test_what_changes_results_changes_a_stages_directory_and_nothing_else_does(tiny_runs, tmp_path, monkeypatch):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    hashed = world.puzzle_hash(tiny.config("pretrain", outputs))
    monkeypatch.setattr(world, "puzzle_hash", lambda config: hashed)  # the packaged table is hashed once and not forty times

    def directory(stage: str, *overrides: str, outputs: Path = outputs) -> str:
        parent = [] if stage == "pretrain" else [f"parent={tiny_runs[{'sft': 'pretrain', 'rl': 'sft'}[stage]]}"]
        config = tiny.config(stage, outputs, *parent, *overrides)
        return Run(stage, config, tiny.STAGES[stage].identity(config)).directory.name

    for stage, path in tiny_runs.items():
        base = directory(stage)
        assert base == path.name, "the outputs folder entered the identity"
        assert re.fullmatch(rf"{stage}-[0-9a-f]{{12}}", base), "a sign that Hydra's override grammar, a shell or submitit reads otherwise"
        for same in ("run.threads=1", "run.micro_batch_tokens=77", "run.checkpoint_steps=1", "run.checkpoint_seconds=1"):
            assert directory(stage, same) == base, same
        own = {"pretrain": {"model.layers=3"}, "sft": {"sft.trace.candidates=2"}, "rl": {"algorithm.beta=0.5", "reward.weights.line=2"}}
        changes = {f"{stage}.optimizer.lr=0.123", f"{stage}.seed=9", f"{stage}.data_seed=9", "run.precision=bf16", "run.compile=true"} | own[stage]
        assert len({base} | {directory(stage, change) for change in changes}) == 1 + len(changes)
        others = {"pretrain.seed=9", "sft.seed=9", "rl.seed=9", "evaluate.seed=9"} - changes
        assert {directory(stage, other) for other in others} == {base}, "another stage's keys entered the identity"


def test_the_corpus_enters_the_identity_by_its_content(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    (manifest,) = (outputs / "data").glob("games-*/manifest.json")
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"hash": "another"}))
    config = tiny.config("pretrain", outputs)
    assert Run("pretrain", config, tiny.STAGES["pretrain"].identity(config)).directory.name != tiny_runs["pretrain"].name


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"run\.device=tpu: not available here; use one of auto, cpu"):
        resolve_device("tpu")


# ---- status ---------------------------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_marked_and_skipped(settings, capsys):
    assert start(settings, counting()) == 0
    directory = only_directory(settings)
    assert_counted(directory)
    assert status_of(directory)["error"] is None and status_of(directory)["code"]
    assert OmegaConf.load(directory / "config.yaml").run.checkpoint_steps == 3
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    assert start(settings, counting(1, fail)) == 0
    assert "skipped" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_a_failure_is_marked_with_its_traceback_and_the_same_command_goes_on(settings):
    with pytest.raises(RuntimeError):
        start(settings, counting(5, fail))
    directory = only_directory(settings)
    assert status_of(directory)["state"] == "failed"
    assert status_of(directory)["error"] == "RuntimeError: the disk is full"
    assert "Traceback" in (directory / "error.log").read_text() and "the disk is full" in (directory / "error.log").read_text()
    with pytest.raises(UserError, match="is not a finished run"):
        read_summary(directory)
    start(settings, counting())
    assert_counted(directory)
    assert not (directory / "error.log").exists(), "a completed run must not carry an old error"


def test_sigterm_saves_the_state_and_the_same_command_goes_on(settings):
    handler = signal.getsignal(signal.SIGTERM)
    assert start(settings, counting(4, stop)) == 128 + signal.SIGTERM
    directory = only_directory(settings)
    assert status_of(directory)["state"] == "interrupted" and "SIGTERM" in status_of(directory)["error"]
    assert signal.getsignal(signal.SIGTERM) == handler
    seen = []
    assert start(settings, lambda run: (seen.append(run.resume()["step"]), counting()(run))[-1]) == 0
    assert seen == [4], "the steps since the last due checkpoint were lost"
    assert_counted(directory)


def test_a_signal_in_the_last_step_lets_the_run_finish(settings):
    assert start(settings, counting(STEPS, stop)) == 0
    assert_counted(only_directory(settings))


def test_a_second_signal_stops_at_once(settings, monkeypatch):
    monkeypatch.setattr(signals, "SAME_WISH_S", 0.0)

    def twice() -> None:
        stop()
        stop()
        raise AssertionError("still running")

    assert start(settings, counting(5, twice)) == 128 + signal.SIGTERM
    directory = only_directory(settings)
    assert status_of(directory)["state"] == "interrupted"
    assert max(path.name for path in (directory / "state").iterdir()) == "step-00000003.pt", "it took the time to save"
    start(settings, counting())
    assert_counted(directory)


def test_a_signal_before_the_first_step_stops_at_once(settings):
    def prepare(run: Run) -> None:
        stop()
        raise AssertionError("still running")

    assert start(settings, prepare) == 128 + signal.SIGTERM
    assert status_of(only_directory(settings))["state"] == "interrupted"


def test_a_second_process_is_refused_and_disturbs_nothing(settings):
    with Run("count", settings, {"what": "x"}) as run:
        run.log({"step": 1, "loss": 1.0})
        with pytest.raises(UserError, match="is being worked on by another process"):
            start(settings, counting())
        assert status_of(run.directory)["state"] == "running"
        assert len((run.directory / "metrics.jsonl").read_text().splitlines()) == 1
        assert start(settings, counting(), identity="y") == 0  # another configuration is free to run


def test_with_run_wait_the_other_process_is_waited_for_and_its_work_is_not_done_again(settings, capsys, monkeypatch):
    monkeypatch.setattr(lock, "POLL_S", 0.01)
    start(settings, counting())
    directory = only_directory(settings)
    status = (directory / "status.json").read_bytes()
    (directory / "status.json").write_bytes(status.replace(b"completed", b"running"))
    other = Lock(directory / "lock", "the run")
    other.acquire(wait=False)

    def finish() -> None:
        (directory / "status.json").write_bytes(status)
        other.release()

    waiting = dataclasses.replace(settings, run=dataclasses.replace(settings.run, wait=True))
    threading.Timer(0.3, finish).start()
    capsys.readouterr()
    assert start(waiting, counting(1, fail)) == 0
    output = capsys.readouterr().out
    assert "is being worked on by another process (host" in output and "waiting" in output and "skipped" in output
    assert (directory / "status.json").read_bytes() == status


def test_a_signal_ends_the_waiting(settings):
    with Run("count", settings, {"what": "x"}) as run:
        waiting = dataclasses.replace(settings, run=dataclasses.replace(settings.run, wait=True))
        threading.Timer(0.2, stop).start()
        with stop_signals():
            assert start(waiting, counting()) == 128 + signal.SIGTERM
        assert status_of(run.directory)["state"] == "running"


def test_a_run_that_was_taken_over_writes_nothing_more(settings):
    def lose_the_lock() -> None:
        directory = only_directory(settings)
        (directory / "lock").unlink()
        other = Lock(directory / "lock", "the run")
        other.acquire(wait=False)
        others.append(other)

    others: list[Lock] = []
    with pytest.raises(UserError, match=r"another process has taken over \(host"):
        start(settings, counting(4, lose_the_lock))
    directory = only_directory(settings)
    assert status_of(directory)["state"] == "running"
    assert [path.name for path in (directory / "state").iterdir()] == ["step-00000003.pt"]
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 4
    others[0].release()


def test_the_seed_zero_is_a_seed(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    assert tiny.config("pretrain", outputs).pretrain.seed == 0
    names = set()
    for seed in (0, 1):
        config = tiny.config("pretrain", outputs, f"pretrain.seed={seed}", f"pretrain.data_seed={seed}", "pretrain.tokens=2000")
        status, directory = tiny.start("pretrain", config)
        assert status == 0
        names.add((directory.name, tiny.metrics_of(directory)[0]["loss"]))
    assert len({name for name, _ in names}) == len({loss for _, loss in names}) == 2


def test_rerun_starts_anew_beside_the_finished_run_and_resumes_itself(settings):
    start(settings, counting())
    first = only_directory(settings)
    again = dataclasses.replace(settings, run=dataclasses.replace(settings.run, rerun=True))
    for number in (2, 3):
        assert start(again, counting(4, stop)) == 128 + signal.SIGTERM
        assert start(again, counting()) == 0
        assert_counted(first.with_name(f"{first.name}-{number}"))
    assert len(list(Path(settings.outputs).iterdir())) == 3


def test_a_loss_that_is_not_finite_ends_the_run_with_one_line(settings):
    def diverge(run: Run) -> None:
        run.log({"step": 1, "loss": float("nan")})

    with pytest.raises(UserError, match=r"the loss at step 1 is nan") as error:
        start(settings, diverge)
    assert "\n" not in str(error.value)
    assert status_of(only_directory(settings))["state"] == "failed"


# ---- state -----------------------------------------------------------------------------------------------------------------------------


def test_metrics_after_the_last_state_are_cut_back(settings):
    with pytest.raises(RuntimeError):
        start(settings, counting(8, fail))
    directory = only_directory(settings)
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 8  # the state is of step 6
    start(settings, counting())
    assert_counted(directory)


def test_a_line_cut_short_by_a_crash_is_cut_back_too(settings):
    with pytest.raises(RuntimeError):
        start(settings, counting(8, fail))
    directory = only_directory(settings)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "su')
    start(settings, counting())
    assert_counted(directory)


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "one bit"])
def test_a_damaged_newest_state_costs_an_interval_and_not_the_run(settings, damage, capsys):
    with pytest.raises(RuntimeError):
        start(settings, counting(8, fail))
    directory = only_directory(settings)
    newest = directory / "state" / "step-00000006.pt"
    content = newest.read_bytes()
    flipped = content.replace(b"sumq", b"suoq") if damage == "one bit" else b""  # pickled key of the sum: torch alone reads it without a word
    assert flipped != content
    newest.write_bytes(
        {"truncated": content[: len(content) // 2], "empty": b"", "garbage": b"\x80garbage" * 100, "one bit": flipped}[damage]
    )
    seen = []
    assert start(settings, lambda run: (seen.append(run.resume()["step"]), counting()(run))) == 0
    assert seen == [3]
    assert "step-00000006.pt is damaged" in capsys.readouterr().out
    assert_counted(directory)


def test_metrics_that_lost_lines_are_made_again_and_not_filled_with_zeros(settings, capsys):
    with pytest.raises(RuntimeError):
        start(settings, counting(8, fail))
    directory = only_directory(settings)
    lines = (directory / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (directory / "metrics.jsonl").write_bytes(b"".join(lines[:4]))  # less than the state of step 6 knows of
    assert start(settings, counting()) == 0
    assert "step-00000006.pt is of a later step than metrics.jsonl reaches: going on from the state before it" in capsys.readouterr().out
    assert_counted(directory)


def test_no_whole_state_means_a_fresh_start(settings):
    with pytest.raises(RuntimeError):
        start(settings, counting(8, fail))
    directory = only_directory(settings)
    for path in (directory / "state").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    start(settings, counting())
    assert_counted(directory)


def test_only_the_newest_two_states_are_kept(settings):
    start(settings, counting())
    assert sorted(path.name for path in (only_directory(settings) / "state").iterdir()) == ["step-00000009.pt", "step-00000010.pt"]


def test_interrupted_names_the_signal():
    assert str(Interrupted(signal.SIGUSR1)) == "stopped by SIGUSR1"


# ---- exact resume --------------------------------------------------------------------------------------------------------------

KILLED_STAGE = """
import os, signal, sys
from pathlib import Path
from chessrl.run import Run
from tests import tiny

stage, outputs, step, *overrides = sys.argv[1:]
log = Run.log

def log_then_die(run, metrics):
    log(run, metrics)
    if metrics["step"] == int(step):
        os.kill(os.getpid(), signal.SIGKILL)

Run.log = log_then_die
tiny.start(stage, tiny.config(stage, Path(outputs), *overrides))
"""


@pytest.mark.parametrize("stage", tiny.STAGES)
def test_a_killed_stage_that_goes_on_ends_bitwise_like_an_unbroken_one(stage, tiny_runs, tmp_path):
    unbroken = tiny_runs[stage]
    steps = len(tiny.metrics_of(unbroken))
    outputs = tiny.share_data(tmp_path, tiny_runs)
    overrides = ["run.checkpoint_steps=2"]
    if stage != "pretrain":
        overrides.append(f"parent={tiny_runs[{'sft': 'pretrain', 'rl': 'sft'}[stage]]}")
    command = [sys.executable, "-c", KILLED_STAGE, stage, str(outputs), "5", *overrides]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == -signal.SIGKILL
    broken = outputs / unbroken.name
    assert status_of(broken)["state"] == "running" and len(tiny.metrics_of(broken)) == 5 < steps
    assert sorted(path.name for path in (broken / "state").glob("*.pt")) == ["step-00000002.pt", "step-00000004.pt"]

    assert tiny.start(stage, tiny.config(stage, outputs, *overrides)) == (0, broken)
    assert tiny.metrics_of(broken) == tiny.metrics_of(unbroken)
    weights = [(directory / "model" / "model.safetensors").read_bytes() for directory in (broken, unbroken)]
    assert weights[0] == weights[1]
    assert json.loads((broken / "summary.json").read_text()) == json.loads((unbroken / "summary.json").read_text())


def test_the_tiny_stages_change_their_weights(tiny_runs):
    """The comparison above would say little of runs that learn nothing, such as RL with equal rewards everywhere."""
    assert any(0 < line["frac_reward_zero_std"] < 1 or line["reward_std"] > 0 for line in tiny.metrics_of(tiny_runs["rl"])[:5])
    weights = {stage: (directory / "model" / "model.safetensors").read_bytes() for stage, directory in tiny_runs.items()}
    assert len(set(weights.values())) == 3


def test_micro_batches_do_not_change_a_run(tiny_runs, tmp_path):
    """Sums are taken in another order, so equal to rounding and not bit for bit."""
    outputs = tiny.share_data(tmp_path, tiny_runs)
    config = tiny.config("rl", outputs, f"parent={tiny_runs['sft']}", "run.micro_batch_tokens=150", "rl.steps=6")
    status, directory = tiny.start("rl", config)
    assert status == 0
    for a, b in zip(tiny.metrics_of(directory), tiny.metrics_of(tiny_runs["rl"])):
        assert a["loss"] == pytest.approx(b["loss"], abs=1e-3) and a["loss_tokens"] == b["loss_tokens"]
