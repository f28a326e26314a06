"""The stages one after another, each a command of its own: data, pretrain, sft, rl, evaluations, report.

Every stage gets the pipeline's own overrides, so what is printed can be typed. A child dies with the pipeline and gets its signals.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from chessrl.budgets import check_pipeline
from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.run import RUN_DIRECTORY_FILE, STOP_SIGNALS

STAGES = ("pretrain", "sft", "rl")
ENGINE_PUZZLES = 200  # of the engine-verified evaluation: labels of all moves cost about a tenth of a second a position


PR_SET_PDEATHSIG = 1


class StageFailed(UserError):
    """A child ended with a ``status`` other than 0."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def run_pipeline(config: Config, overrides: Sequence[str]) -> int:
    """Carry the whole pipeline out; finished parts are skipped by the stages themselves."""
    unknown = [stage for stage in config.pipeline.stages if stage not in STAGES]
    if unknown or config.pipeline.stages != list(STAGES[: len(config.pipeline.stages)]):
        raise UserError(f"pipeline.stages={config.pipeline.stages}: expected the first one, two or three of {', '.join(STAGES)}")
    try:
        check_pipeline(config)
    except UserError as error:
        if not config.budget.skip_impossible:
            raise
        print(f"skipped: {error}", flush=True)
        return 0
    start = time.monotonic()
    total = (
        len(config.pipeline.stages) * (2 if config.pipeline.evaluate else 1)
        + (config.pipeline.evaluate and config.pipeline.engine_evaluation)
        + config.pipeline.report
    )
    done = 0

    def call(module: str, *extra: str) -> Path | None:
        nonlocal done
        done += 1
        command = [sys.executable, "-m", module, *overrides, *extra]
        elapsed = time.monotonic() - start
        print(f"\n[{done}/{total}, {elapsed // 60:.0f} min {elapsed % 60:02.0f} s] {shlex.join(['python', *command[1:]])}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            return run_child(command, Path(folder) / "directory")

    directories: list[Path] = []
    for stage in config.pipeline.stages:
        extra = [f"parent={quoted(directories[-1])}"] if directories else []
        directories.append(call(stage, *extra))
    if config.pipeline.evaluate:
        for directory in directories:
            call("chessrl.evaluate", f"parent={quoted(directory)}")
        if config.pipeline.engine_evaluation:
            puzzles = min(ENGINE_PUZZLES, config.evaluate.max_puzzles or ENGINE_PUZZLES)
            extra = ["evaluate.verifier=engine", f"evaluate.max_puzzles={puzzles}"]
            call("chessrl.evaluate", f"parent={quoted(directories[-1])}", *extra)
    if config.pipeline.report:
        call("analysis", f"runs=[{','.join(map(quoted, directories))}]")
    elapsed = time.monotonic() - start
    print(f"\npipeline finished in {elapsed // 60:.0f} min {elapsed % 60:02.0f} s", flush=True)
    return 0


def quoted(path: Path) -> str:
    """A path as a value of Hydra's override grammar, quoted where it must be."""
    if re.fullmatch(r"[\w./-]+", str(path), re.ASCII):
        return str(path)
    text = re.sub(r"(\\*)'", r"\1\1\\'", str(path))  # Hydra reads a backslash as an escape before a quote only
    return "'" + re.sub(r"(\\+)$", r"\1\1", text) + "'"


def run_child(command: list[str], result: Path) -> Path | None:
    """Run one command to its end, passing our stop signals on. Returns the run directory that it wrote to ``result``, where it has one.

    Raises StageFailed with its status. The child has a process group of its own, so that a Ctrl-C reaches it once, through us.
    """
    environment = os.environ | {RUN_DIRECTORY_FILE: str(result)}
    child = subprocess.Popen(command, process_group=0, preexec_fn=die_with_parent, env=environment)

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        status = child.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if status < 0:  # killed by a signal: the status that a shell gives
        status = 128 - status
    if status != 0:
        raise StageFailed(
            status, f"{shlex.join(['python', *command[1:]])} ended with status {status}; the pipeline's command goes on from there"
        )
    return Path(result.read_text()) if result.exists() else None


def die_with_parent() -> None:
    """In the child: ask Linux for SIGTERM when the pipeline dies, however it dies. Elsewhere a killed pipeline leaves the stage to finish."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
