"""The stages one after another, each a command of its own: data, pretrain, sft, rl, evaluations, report.

Every stage gets the pipeline's own overrides, so what is printed can be typed. A child dies with the pipeline and gets its signals.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from chessrl.budgets import check_pipeline
from chessrl.checkpoint import write_json
from chessrl.config import TABULAR, Config
from chessrl.errors import UserError
from chessrl.run import RUN_DIRECTORY_FILE, digest, finished
from chessrl.signals import die_with_parent, stop_signals
from chessrl.world import puzzle_table

STAGES = ("pretrain", "sft", "rl")
ENGINE_PUZZLES = 200  # of the engine-verified evaluation: labels of all moves cost about a tenth of a second a position




class StageFailed(UserError):
    """A child ended with a ``status`` other than 0."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def run_tabular(config: Config, overrides: Sequence[str]) -> int:
    """A pipeline of tables: the run and its report."""

    def call(module: str, *extra: str) -> Path | None:
        command = [sys.executable, "-m", module, *overrides, *extra]
        print(f"\n{shlex.join(['python', *command[1:]])}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            return run_child(command, Path(folder) / "directory")

    directory = call("rl.tabular", "run.wait=true")
    if config.pipeline.report:
        call("analysis", f"runs=[{quoted(directory)}]")
    return 0


def run_pipeline(config: Config, overrides: Sequence[str]) -> int:
    """Carry the whole pipeline out; finished parts are skipped by the stages themselves."""
    if config.pipeline.stages == [TABULAR]:
        return run_tabular(config, overrides)
    unknown = [stage for stage in config.pipeline.stages if stage not in STAGES]
    if unknown or not config.pipeline.stages or config.pipeline.stages != list(STAGES[: len(config.pipeline.stages)]):
        raise UserError(f"pipeline.stages={config.pipeline.stages}: expected the first one, two or three of {', '.join(STAGES)}")
    puzzle_table(config)  # a world that is not there is one line here, not one of a stage and one of ours
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

    # With run.rerun every stage starts anew: which ones this rerun has done is noted, so that it goes on from there when it was interrupted.
    progress = Path(config.outputs) / f".rerun-{digest(sorted(overrides))}.json" if config.run.rerun else None
    noted = json.loads(progress.read_text()) if progress and progress.exists() else []
    directories = list(takewhile(finished, map(Path, noted)))
    done = len(directories)
    for stage in config.pipeline.stages[done:]:
        extra = [f"parent={quoted(directories[-1])}"] if directories else []
        directories.append(call(stage, *extra, "run.wait=true"))
        if progress:
            write_json(progress, [str(directory) for directory in directories])
    if config.pipeline.evaluate:
        for directory in directories:
            call("chessrl.evaluate", f"parent={quoted(directory)}")
        if config.pipeline.engine_evaluation:
            puzzles = min(ENGINE_PUZZLES, config.evaluate.max_puzzles or ENGINE_PUZZLES)
            extra = ["evaluate.verifier=engine", f"evaluate.max_puzzles={puzzles}"]
            call("chessrl.evaluate", f"parent={quoted(directories[-1])}", *extra)
    if config.pipeline.report:
        call("analysis", f"runs=[{','.join(map(quoted, directories))}]")
    if progress:
        progress.unlink(missing_ok=True)
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
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # signals from before there was a child to have them

    def pass_on(number: int) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    with stop_signals(pass_on):
        child = subprocess.Popen(command, process_group=0, preexec_fn=functools.partial(stop_with_pipeline, os.getpid()), env=environment)
        for number in early:
            child.send_signal(number)
        status = child.wait()
    if status < 0:  # killed by a signal: the status that a shell gives
        status = 128 - status
    if status != 0:
        raise StageFailed(
            status, f"{shlex.join(['python', *command[1:]])} ended with status {status}; the pipeline's command goes on from there"
        )
    return Path(result.read_text()) if result.exists() else None


def stop_with_pipeline(parent: int) -> None:
    """In the child: SIGTERM when the pipeline dies, however it dies. Elsewhere than on Linux a killed pipeline leaves the stage to finish."""
    if sys.platform == "linux":
        die_with_parent(signal.SIGTERM)
        if os.getppid() != parent:  # it died before the request: nobody would tell us any more
            os._exit(1)
