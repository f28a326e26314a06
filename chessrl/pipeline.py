"""The stages one after another, each a command of its own: data, pretrain, sft, rl, evaluations, report.

Every stage gets the pipeline's own overrides, so what is printed can be typed. A child dies with the pipeline and gets its signals.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from chessrl.boundary import carry_out, check_rounds, further_commands
from chessrl.budgets import check_pipeline
from chessrl.checkpoint import write_json
from chessrl.children import RUN_DIRECTORY_FILE, quoted, run_child
from chessrl.config import STAGES, TABULAR, Config
from chessrl.errors import UserError
from chessrl.run import digest, finished
from chessrl.signals import Interrupted
from chessrl.world import puzzle_table

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
        directory, received = run_stage_command(command)
        if received:  # in the last step of the child: it finished all the same
            raise Interrupted(received[0])
        return directory

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
    if config.boundary.rounds:
        check_rounds(config)
    start = time.monotonic()
    steps = saved_steps(config)
    total = (
        len(config.pipeline.stages) * (2 if config.pipeline.evaluate else 1)
        + config.pipeline.evaluate * len(steps)
        + further_commands(config)
        + (config.pipeline.evaluate and config.pipeline.engine_evaluation)
        + config.pipeline.report
    )
    done = 0
    received: list[int] = []

    def call(module: str, *extra: str) -> Path | None:
        nonlocal done
        if received:  # in the last step of the child before: it finished all the same
            raise Interrupted(received[0])
        done += 1
        command = [sys.executable, "-m", module, *overrides, *extra]
        elapsed = round(time.monotonic() - start)
        print(f"\n[{done}/{total}, {elapsed // 60} min {elapsed % 60:02d} s] {shlex.join(['python', *command[1:]])}", flush=True)
        directory, stopped_by = run_stage_command(command)
        received.extend(stopped_by)
        return directory

    # With run.rerun every stage starts anew: which ones this rerun has done is noted, so that it goes on from there when it was interrupted.
    progress = Path(config.outputs) / f".rerun-{digest(sorted(overrides))}.json" if config.run.rerun else None
    noted = json.loads(progress.read_text()) if progress and progress.exists() else []
    directories = list(takewhile(finished, map(Path, noted)))
    done = len(directories)
    for stage in config.pipeline.stages[done:]:
        if stage == "rl" and config.boundary.rounds:
            directories += carry_out(config, directories[-1], call)
            continue
        extra = [f"parent={quoted(directories[-1])}"] if directories else []
        directories.append(call(stage, *extra, "run.wait=true"))
        if progress:
            write_json(progress, [str(directory) for directory in directories])
    if config.pipeline.evaluate:
        for directory in directories:
            call("chessrl.evaluate", f"parent={quoted(directory)}")
        kept = [step for step in steps if (directories[-1] / "models" / f"step-{step}").is_dir()]
        if len(kept) < len(steps):  # in a grid of budgets some runs are shorter than others
            total -= len(steps) - len(kept)
            print(f"rl.save_steps={sorted({*steps} - {*kept})}: {directories[-1]} keeps no models of these steps, they are not evaluated", flush=True)
        for step in kept:
            call("chessrl.evaluate", f"parent={quoted(directories[-1])}", f"evaluate.step={step}")
        if config.pipeline.engine_evaluation:
            puzzles = min(ENGINE_PUZZLES, config.evaluate.max_puzzles or ENGINE_PUZZLES)
            extra = ["evaluate.verifier=engine", f"evaluate.max_puzzles={puzzles}"]
            call("chessrl.evaluate", f"parent={quoted(directories[-1])}", *extra)
    if config.pipeline.report:
        call("analysis", f"runs=[{','.join(map(quoted, directories))}]")
    if progress:
        progress.unlink(missing_ok=True)
    elapsed = round(time.monotonic() - start)
    print(f"\npipeline finished in {elapsed // 60} min {elapsed % 60:02d} s", flush=True)
    return 0


def saved_steps(config: Config) -> list[int]:
    """The steps of RL whose models the pipeline evaluates beside the final one."""
    return config.rl.save_steps if config.pipeline.evaluate_steps and STAGES[-1] in config.pipeline.stages else []


def run_stage_command(command: list[str]) -> tuple[Path | None, list[int]]:
    """Run a stage's or another command: the run directory that it tells of, and the stop signals that came meanwhile and were passed on.

    Raises StageFailed with its status where that is not 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "directory"
        status, received = run_child(command, {RUN_DIRECTORY_FILE: str(result)})
        if status != 0:
            raise StageFailed(
                status, f"{shlex.join(['python', *command[1:]])} ended with status {status}; the pipeline's command goes on from there"
            )
        return Path(result.read_text()) if result.exists() else None, received
