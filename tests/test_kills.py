"""SIGKILL at random moments, saving included: whatever was done when it struck, the stage ends bit for bit like an unbroken one.

Half of the kills strike at a random time after a random step, half at a random file operation in the run directory (opening, fsync, renaming,
removing), since those are over too soon for a clock to hit them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from chessrl.run import finished
from tests import tiny

PATIENCE_S = 120
FILE_OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
MOST_OPERATIONS = 60  # a random one of so many is the last: some eight steps with a checkpoint after each


def run_stage_in_child(stage: str, outputs: Path, overrides: list[str], operations: int | None) -> None:
    """The stage, which kills itself before file operation number ``operations`` in its run directory."""
    os.setpgid(0, 0)
    if operations is not None:
        kill_at_operation(outputs / stage, operations)
    tiny.start(stage, tiny.config(stage, outputs, *overrides))


def kill_at_operation(below: Path, operations: int) -> None:
    left = operations
    fsync = os.fsync

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_audit(event: str, arguments: tuple) -> None:
        if event in FILE_OPERATIONS and str(arguments[0]).startswith(str(below)):
            count()

    def counted_fsync(descriptor: int) -> None:
        count()
        fsync(descriptor)

    os.fsync = counted_fsync
    sys.addaudithook(on_audit)


@pytest.fixture(scope="module")
def children() -> multiprocessing.context.BaseContext:
    """Children come from a process that has everything imported and has computed nothing: they start in no time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.test_kills"])
    return context


@dataclass(frozen=True)
class Moment:
    """When to kill: before file operation number ``operations``, or ``seconds`` after a step from ``step`` on was logged."""

    operations: int | None = None
    step: int = 0  # 0: the run directory is open
    seconds: float = 0.0


def attempt(children: multiprocessing.context.BaseContext, stage: str, directory: Path, overrides: list[str], moment: Moment | None) -> None:
    """Run the stage, to its end or until it is killed. It may finish before."""
    operations = moment.operations if moment else None
    before = metrics_state(directory)
    child = children.Process(target=run_stage_in_child, args=(stage, directory.parent, overrides, operations))
    child.start()
    if moment and operations is None:
        deadline = time.monotonic() + PATIENCE_S
        while child.is_alive() and not reached(directory, child.pid, moment.step, before):
            assert time.monotonic() < deadline, "the stage did not come so far"
            time.sleep(0.001)
        child.join(moment.seconds)
        child.kill()
    child.join(PATIENCE_S)
    assert child.exitcode in (0, -signal.SIGKILL), "the stage failed"


def metrics_state(directory: Path) -> bytes:
    path = directory / "metrics.jsonl"
    return path.read_bytes() if path.exists() else b""


def reached(directory: Path, pid: int, step: int, before: bytes) -> bool:
    """Whether the process has opened the run directory and, of its own steps, logged one from ``step`` on (its lines carry another time)."""
    try:
        opened = json.loads((directory / "lock").read_text())["pid"] == pid
    except (FileNotFoundError, ValueError):
        return False
    now = metrics_state(directory)
    return opened and (step == 0 or (now.count(b"\n") >= step and now not in (before, before[: len(now)])))


def assert_equals_unbroken(directory: Path, unbroken: Path) -> None:
    lines = tiny.metrics_of(directory)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "a step twice or missing"
    assert lines == tiny.metrics_of(unbroken)
    for name in ("model/model.safetensors", "summary.json"):
        assert (directory / name).read_bytes() == (unbroken / name).read_bytes(), name
    left = [path for path in directory.rglob("*") if path.suffix == ".tmp"]
    assert not left, "files of interrupted saves stayed"


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("stage", tiny.STAGES)
def test_a_stage_killed_at_random_moments_ends_bitwise_like_an_unbroken_one(stage, kills, children, tiny_runs, tmp_path):
    unbroken = tiny_runs[stage]
    outputs = tiny.share_data(tmp_path, tiny_runs)
    directory = outputs / unbroken.name
    parent = [] if stage == "pretrain" else [f"parent={tiny_runs[{'sft': 'pretrain', 'rl': 'sft'}[stage]]}"]
    last = json.loads((unbroken / "metrics.jsonl").read_text().splitlines()[-1])
    steps, seconds = last["step"], last["time/wall_s"]
    draw = random.Random(f"{stage} {kills}")
    killed = 0
    while killed < kills:
        # By the clock with steps between the states, whose metrics are to be made again; by file operations with a state at every step.
        if killed % 2:
            moment, interval = Moment(operations=draw.randint(1, MOST_OPERATIONS)), 1
        else:
            moment, interval = Moment(step=draw.randrange(steps), seconds=draw.uniform(0, 2 * seconds / steps)), 4
        attempt(children, stage, directory, [f"run.checkpoint_steps={interval}", *parent], moment)
        if finished(directory):
            assert_equals_unbroken(directory, unbroken)
            shutil.rmtree(directory)
        else:
            killed += 1
    if directory.exists():
        attempt(children, stage, directory, parent, None)
        assert finished(directory)
        assert_equals_unbroken(directory, unbroken)
