"""The engine side of mining: one single-threaded process per worker, replaced when it fails, and the reading of what it prints."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chess
import chess.engine

from chessrl.engine_labels import MoveScore, scores_by_depth
from chessrl.engine_process import EngineProcess
from chessrl.mining_search import ScoredMove, Unscorable


@dataclass(frozen=True, slots=True)
class EngineStart:
    """How an engine process is started. Only ``program`` and ``hash_mb`` can change what it says."""

    program: Path
    hash_mb: int  # MB per process
    deadline_s: float  # seconds that one search may take before its process is replaced
    start_timeout_s: float

    async def process(self) -> EngineProcess:
        """Raises UserError where the program is no UCI engine."""
        return await EngineProcess.start(self.program, self.hash_mb, self.deadline_s, self.start_timeout_s)

    async def name(self) -> str:
        """Engine and nets, from a process that is started for it. Raises UserError where it cannot be."""
        process = await self.process()
        try:
            return process.name()
        finally:
            await process.end()


class EngineSearch:
    """A ``chessrl.mining_search.Search`` by an engine process of its own. A search that fails is tried once more in a new process.

    Raises Unscorable when both fail. ``counts``: searches, restarts; ``seconds``: spent in searches.
    """

    def __init__(self, start: EngineStart) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0
        self._start = start
        self._process: EngineProcess | None = None

    async def __call__(self, board: chess.Board, nodes: int, lines: int) -> list[ScoredMove]:
        began = time.monotonic()
        try:
            for _attempt in range(2):
                if self._process is None:
                    self._process = await self._start.process()
                try:
                    printed = await self._process.search(board, f"go nodes {nodes}", lines)
                except (TimeoutError, chess.engine.EngineError):
                    await self.end()
                    self.counts["restarts"] += 1
                    continue
                self.counts["searches"] += 1
                if best := best_moves(printed, board, lines):
                    return best
        finally:
            self.seconds += time.monotonic() - began
        raise Unscorable(board.fen())

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.end()


def best_moves(printed: Sequence[str], board: chess.Board, lines: int) -> list[ScoredMove]:
    """The best moves of a search, best first: ``lines`` of them, or as many as are legal; empty where the engine gave fewer.

    From the deepest iteration that scored so many moves: one that the node limit cut short has the later lines a ply shallower.
    """
    wanted = min(lines, board.legal_moves.count())
    tables = scores_by_depth(printed)
    depth = max((depth for depth, scores in tables.items() if len(scores) >= wanted), default=None)
    if depth is None:
        return []
    ranked = sorted(tables[depth].items(), key=lambda entry: _rank(entry[1]), reverse=True)
    return [ScoredMove(board.parse_uci(move), score) for move, score in ranked[:wanted]]


def _rank(score: MoveScore) -> chess.engine.Score:
    return chess.engine.Cp(score.cp) if score.cp is not None else chess.engine.Mate(score.mate)
