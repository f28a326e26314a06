"""How many puzzles a second get their traces, and where the time goes. Processor time is this process's: an engine's is not in it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import Contender, Lap, Row, compare, figure, timed
from chessrl import world
from chessrl.checkpoint import load_model
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

SEED = 0
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


@contextmanager
def timed_parts(seconds: dict[str, float]) -> Iterator[None]:
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


def building(parent: str, branching: str, source: str, count: int, rounds: int) -> list[Row]:
    """Build the traces of ``count`` puzzles ``rounds`` times, from proposals to tokens, with a finished pretraining run as ``parent``.

    ``branching`` is preset or paper, ``source`` of the lines model, uniform or engine. Raises UserError for others.
    """
    if branching not in ("preset", "paper") or source not in ("model", "uniform", "engine"):
        raise UserError(f"branching={branching} proposal={source}: expected preset or paper, and model, uniform or engine")
    state = read_summary(Path(parent))["world"]["state"]
    composed = compose("sft", [f"world.state={state}"])
    config = replace(composed.sft.trace, proposal=source, **(PAPER if branching == "paper" else {}))
    puzzles = world.puzzles_of_split(composed, "sft")[:count]
    part, seconds = f"traces, {source}, {branching} branching", defaultdict(float)
    with Engine(engine_settings(composed.engine)) if source == "engine" else nullcontext() as engine:
        if source == "engine":
            proposal: Proposal = EngineProposal(engine, config)
        elif source == "uniform":
            proposal = UniformProposal(config, SEED)
        else:
            model = load_model(Path(parent) / "model", precision="fp32", device=torch.device("cpu"))
            proposal = ModelProposal(model, config, state, SEED)
        reports, lengths, laps = [], [], []

        def lap() -> Lap:
            report = TraceReport()
            with timed_parts(seconds):
                measured = timed(lambda: lengths.append(_build(proposal, puzzles, config, report)))
            reports.append(report)
            laps.append(measured)
            return measured

        rows = compare(part, "puzzles/s", "", [Contender("ours", len(puzzles), lap)], rounds)
    rows.append(figure(part, "lines of a trace", "", reports[0].counts["lines"] / len(puzzles)))
    rows.append(figure(part, "tokens of a trace", "", lengths[0] / len(puzzles)))
    wall = sum(measured.wall_s for measured in laps)
    shares = {**seconds, "the rest": wall - sum(seconds.values())}
    return rows + [figure(part, label, "of the time", spent / wall) for label, spent in sorted(shares.items(), key=lambda item: -item[1])]


def _build(proposal: Proposal, puzzles: list[Puzzle], config: TraceConfig, report: TraceReport) -> int:
    """Tokens of the traces of ``puzzles``."""
    trees = build_trees(proposal, puzzles, config, seed=SEED, report=report, done=lambda count: None)
    return sum(map(len, arms.trace_texts(puzzles, trees, config, SEED, lambda boards: {}, None, report.counts)))
