"""How many puzzles a second get their traces, and where the time goes.

``parent`` is a finished pretraining run. The best of ``repeats`` counts. Wall time says little where other processes share the cores: the rate per
second of processor time is printed beside it (of this process: an engine's own processes are not in it).

Examples:
    python -m benchmarks.traces parent=outputs/pretrain-0123456789ab
    python -m benchmarks.traces parent=outputs/pretrain-0123456789ab branching=paper proposal=engine puzzles=64
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from chessrl import world
from chessrl.checkpoint import load_model
from chessrl.command import parse_settings, run_command
from chessrl.config import TraceConfig
from chessrl.engine import Engine
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.puzzles import Puzzle
from chessrl.run import read_summary
from chessrl.verifier import engine_settings
from sft import arms, proposals, traces
from sft.proposals import EngineProposal, ModelProposal, UniformProposal
from sft.traces import Proposal, TraceReport, build_trees

PAPER = {
    "candidates": 8, "continuations_mean": 8.0, "continuations_sigma": 0.2, "continuations_min": 2, "continuations_max": 10,
    "length_mean": 5.0, "length_sigma": 0.4, "length_min": 1, "length_max": 20,
}  # fmt: skip
PARTS = (  # what is timed: module, function, and what it does
    (proposals, "continue_text", "sampling from the model"),
    (Engine, "variations", "searching with the engine"),
    (proposals, "read_plies", "reading moves"),
    (proposals, "prompt_tokens", "encoding prompts"),
    (proposals, "move_tokens", "encoding first moves"),
    (traces, "inject_answer", "the answer's line"),
    (traces, "merge", "merging"),
    (arms, "written_lines", "laying out"),
    (arms, "trace_tokens", "encoding traces"),
)


@dataclass(frozen=True, slots=True)
class BenchmarkSettings:
    """Keys of the command."""

    parent: str  # a finished pretraining run
    branching: str = "preset"  # preset (that of conf/arm/trace.yaml) or paper
    proposal: str = "model"  # of lines: model, uniform or engine
    puzzles: int = 512  # of the sft split, the first of them
    repeats: int = 3  # the best of so many counts
    seed: int = 0  # which lines are sampled


@contextmanager
def timed(seconds: dict[str, float]) -> Iterator[None]:
    """Add the time spent in each of PARTS to ``seconds``."""
    originals = [(module, name, getattr(module, name), label) for module, name, label in PARTS]

    def wrapper(function: Callable[..., Any], label: str) -> Callable[..., Any]:
        def call(*args: Any, **keys: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **keys)
            finally:
                seconds[label] += time.perf_counter() - start

        return call

    for module, name, function, label in originals:
        setattr(module, name, wrapper(function, label))
    try:
        yield
    finally:
        for module, name, function, _ in originals:
            setattr(module, name, function)


@dataclass(frozen=True, slots=True)
class Measured:
    """One building of traces: seconds by the clock, of processor time, and by part; the report, and the tokens of the traces."""

    wall_s: float
    processor_s: float
    part_s: dict[str, float]
    report: TraceReport
    tokens: int


def build_once(proposal: Proposal, puzzles: list[Puzzle], config: TraceConfig, seed: int) -> Measured:
    """Build the traces of ``puzzles`` once, from proposals to tokens."""
    seconds: dict[str, float] = defaultdict(float)
    report = TraceReport()
    start, processor_start = time.perf_counter(), time.process_time()
    with timed(seconds):
        trees = build_trees(proposal, puzzles, config, seed=seed, report=report, done=lambda count: None)
        texts = arms.trace_texts(puzzles, trees, config, seed, lambda boards: {}, None, report.counts)
    wall, processor = time.perf_counter() - start, time.process_time() - processor_start
    seconds["the rest"] = wall - sum(seconds.values())
    return Measured(wall, processor, seconds, report, sum(map(len, texts)))


def main(arguments: list[str]) -> None:
    settings = parse_settings(BenchmarkSettings, arguments)
    if settings.branching not in ("preset", "paper") or settings.proposal not in ("model", "uniform", "engine"):
        raise UserError(f"branching={settings.branching} proposal={settings.proposal}: expected preset or paper, and model, uniform or engine")
    state = read_summary(Path(settings.parent))["world"]["state"]
    composed = compose("sft", [f"world.state={state}"])
    config = replace(composed.sft.trace, proposal=settings.proposal, **(PAPER if settings.branching == "paper" else {}))
    puzzles = world.puzzles_of_split(composed, "sft")[: settings.puzzles]
    with Engine(engine_settings(composed.engine)) if settings.proposal == "engine" else nullcontext() as engine:
        if settings.proposal == "engine":
            proposal: Proposal = EngineProposal(engine, config)
        elif settings.proposal == "uniform":
            proposal = UniformProposal(config, settings.seed)
        else:
            model = load_model(Path(settings.parent) / "model", precision="fp32", device=torch.device("cpu"))
            proposal = ModelProposal(model, config, state, settings.seed)
        runs = [build_once(proposal, puzzles, config, settings.seed) for _ in range(settings.repeats)]
    best = min(runs, key=lambda run: run.processor_s)
    count, report = len(puzzles), best.report
    print(f"{settings.proposal}, {settings.branching} branching, {torch.get_num_threads()} threads")
    print(f"{count / best.wall_s:.1f} puzzles/s by the clock, {count / best.processor_s:.1f} per second of processor time")
    print(f"a trace: {report.counts['lines'] / count:.1f} lines, {best.tokens / count:.0f} tokens")
    print(f"all: {report.sampled_tokens:,} tokens sampled, {report.prompt_tokens:,} read")
    for label, spent in sorted(best.part_s.items(), key=lambda item: -item[1]):
        print(f"{spent / best.wall_s:6.1%}  {label}")


if __name__ == "__main__":
    sys.exit(run_command(main))
