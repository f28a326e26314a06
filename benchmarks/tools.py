"""What is not the network's arithmetic: scoring of legal moves, engine labels and their cache, start-up times."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import chess
import numpy as np
import torch

from benchmarks.measure import Contender, Lap, Row, children_processor_s, compare, in_turn, timed, timed_children
from benchmarks.stages import Setting
from chessrl import notation
from chessrl.engine import Engine, EngineSettings
from chessrl.launch import compose
from chessrl.model import Transformer, build_model
from chessrl.policy import move_tree, score_moves
from chessrl.training import next_token_logprobs

TRACES, TRACE = 128, 64  # traces of a puzzle, and tokens of each
POSITIONS = 200  # that the engine labels
FIRST_STEP_LIMIT_S = 600.0


def scoring(setting: Setting) -> list[Row]:
    """Every legal move of a position after each of 128 traces, against a forward pass for each move after each trace."""
    model = build_model(compose("rl", ["model=5m"]).model, seed=0)
    board = chess.Board("r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4")
    plies = [notation.move_tokens(board, move) for move in board.legal_moves]
    draw = np.random.Generator(np.random.Philox(3))
    contexts = [[*notation.snapshot_tokens(board), *draw.integers(3, 73, TRACE).tolist()] for _ in range(TRACES)]
    trees = [move_tree(plies)] * TRACES
    together = Contender("ours", TRACES * len(plies), lambda: timed(lambda: score_moves(model, contexts, trees)))
    single = Contender("one by one", len(plies), lambda: timed(lambda: _one_by_one(model, contexts[0], plies)), ours=False)
    return compare("legal moves x traces scored", "scores/s", "20", [together, single], setting.rounds)


@torch.no_grad()
def _one_by_one(model: Transformer, context: Sequence[int], plies: Sequence[Sequence[int]]) -> list[float]:
    return [next_token_logprobs(model, torch.tensor([[*context, *ply]]))[0, len(context) - 1 :].sum().item() for ply in plies]


def positions(count: int) -> list[chess.Board]:
    """Positions of random games from the start, no two alike."""
    draw = np.random.Generator(np.random.Philox(4))
    found: dict[str, chess.Board] = {}
    while len(found) < count:
        board = chess.Board()
        for _ in range(int(draw.integers(8, 60))):
            moves = list(board.legal_moves)
            if not moves:
                break
            board.push(moves[int(draw.integers(len(moves)))])
        if any(board.legal_moves):
            found[board.epd()] = board.copy(stack=False)
    return list(found.values())


def labelling(setting: Setting) -> list[Row]:
    """Positions labelled per second at the default limits, and which share of the processor time is Stockfish's own."""
    boards = positions(POSITIONS)
    shares = []

    def lap() -> Lap:
        start, own, children = time.perf_counter(), time.process_time(), children_processor_s()
        with Engine(EngineSettings()) as engine:
            engine.label(boards)
        own, children = time.process_time() - own, children_processor_s() - children
        shares.append(children / (own + children))
        return Lap(time.perf_counter() - start, own + children)

    rows = compare("engine labels", "positions/s", "", [Contender("ours", POSITIONS, lap)], setting.rounds)
    share = median(shares)
    return [*rows, Row("engine labels", "Stockfish's share of processor time", "", share, min(shares), max(shares), share, wanted=">= 0.85")]


def cache(setting: Setting) -> list[Row]:
    """A second pass over labelled positions, against the first. Starting the engine is no part of a pass that asks it nothing."""
    boards = positions(POSITIONS)
    with tempfile.TemporaryDirectory() as folder:

        def lap(fresh: bool) -> Lap:
            path = Path(folder, "labels.sqlite")
            if fresh:
                path.unlink(missing_ok=True)
            with Engine(EngineSettings(), path) as engine:
                start, own, children = time.perf_counter(), time.process_time(), children_processor_s()
                engine.label(boards)
                wall, own = time.perf_counter() - start, time.process_time() - own
            return Lap(wall, own + (children_processor_s() - children if fresh else 0.0))

        contenders = [
            Contender("first pass", POSITIONS, lambda: lap(fresh=True), ours=False),
            Contender("second pass", POSITIONS, lambda: lap(fresh=False)),
        ]
        return compare("label cache", "positions/s", "100", contenders, setting.rounds)


def startup(setting: Setting) -> list[Row]:
    """Seconds until ``python -m pretrain --help`` has answered, and until ``experiment=toy`` has done its first training step."""
    command = [sys.executable, "-m", "pretrain"]
    asking = Contender("pretrain --help", 1, lambda: timed_children(lambda: subprocess.run([*command, "--help"], check=True, capture_output=True)))
    stepping = Contender("first step of toy", 1, lambda: timed_children(lambda: _first_step(command)))
    rows = []
    for contender, wanted, laps in zip((asking, stepping), ("< 2", "< 10"), in_turn((asking, stepping), setting.rounds)):
        walls = [lap.wall_s for lap in laps]
        spent = median(lap.processor_s for lap in laps)
        rows.append(Row("start-up", contender.name, "s", median(walls), min(walls), max(walls), spent, wanted=wanted))
    return rows


def _first_step(command: Sequence[str]) -> None:
    """Start the toy pretraining in an empty folder and end it when its first step is logged."""
    outputs = tempfile.mkdtemp()
    process = subprocess.Popen(
        [*command, "experiment=toy", f"outputs={outputs}", "run.device=cpu"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + FIRST_STEP_LIMIT_S
    try:
        while not any(path.stat().st_size for path in Path(outputs).rglob("metrics.jsonl")):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("experiment=toy ended, or took too long, before its first step")
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(outputs)
