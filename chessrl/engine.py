"""Stockfish as a labeller: a pool of single-threaded processes that scores every legal move of a position, and a cache of what they said.

A label depends on the position and on ``Engine.identity`` alone: one thread, a small hash, a new game per search, limits in depth and
nodes, never in time. Neither the order of positions nor the number of processes changes it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import chess
import chess.engine
from tqdm import tqdm

from chessrl.engine_labels import LabelCache, MoveLabels, MoveScore, best_variations, deepest_complete, position_key, scores_by_depth
from chessrl.engine_process import EngineProcess
from chessrl.errors import UserError

DEBIAN_STOCKFISH = Path("/usr/games/stockfish")  # where Debian installs it, which is not on every PATH
MODES = ("depth", "searchmoves")
RULES_VERSION = 1  # raise it when equal engine output would give other labels, so that cached ones are not taken
_POSITIONS_PER_TRANSACTION = 64  # times processes: what an interrupted call can lose
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def find_stockfish(path: str = "") -> Path:
    """The Stockfish program: ``path`` if given, else the one on PATH, else Debian's. Raises UserError that says how to install one."""
    if path:
        found = shutil.which(Path(path).expanduser())
        if found is None:
            raise UserError(f"engine.path={path} is not a program that can be run: give Stockfish's path, or leave it empty to search PATH")
        return Path(found)
    found = shutil.which("stockfish") or shutil.which(DEBIAN_STOCKFISH)
    if found is None:
        raise UserError(
            f"Stockfish was not found on PATH or as {DEBIAN_STOCKFISH}: install it (Debian, Ubuntu: apt install stockfish; "
            "macOS: brew install stockfish) or set engine.path"
        )
    return Path(found)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How positions are searched. All but ``path``, ``workers`` and the timeouts change labels."""

    path: str = ""  # empty: PATH, then /usr/games
    mode: str = "depth"  # depth: all moves in one multi-PV search; searchmoves: one search per move to a node limit
    depth: int = 8  # plies, of mode depth
    nodes: int = 20000  # mode depth: at most so many per position; searchmoves: so many per move
    hash_mb: int = 1  # MB per process
    workers: int = 0  # engine processes; 0: one per core
    deadline_s: float = 30.0  # seconds that one search may take before its process is replaced
    start_timeout_s: float = 20.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UserError(f"engine.mode={self.mode}: expected one of {', '.join(MODES)}")
        for key, least in (("depth", 1), ("nodes", 1), ("hash_mb", 1), ("workers", 0)):
            if getattr(self, key) < least:
                raise UserError(f"engine.{key}={getattr(self, key)}: expected at least {least}")
        for key in ("deadline_s", "start_timeout_s"):
            if not getattr(self, key) > 0:
                raise UserError(f"engine.{key}={getattr(self, key)}: expected seconds, above 0")

    def processes(self) -> int:
        return self.workers or os.cpu_count() or 1


class Engine:
    """Labels positions; a context manager that leaves no process behind. Without ``cache`` nothing is kept between calls.

    ``identity`` names what labels depend on; ``counts`` says what became of every position asked for: ``asked`` = ``duplicate`` +
    ``decided`` (game over by the rules, without the engine) + ``cached`` + ``searched`` + ``unscorable``. The last is the sum of
    ``unscorable_invalid`` (not a position of chess), ``unscorable_deadline`` and ``unscorable_crash`` (after a second try) and
    ``unscorable_incomplete`` (moves without a score). Beside these: ``restarts`` of processes, and ``searched_per_move``, tables that the
    multi-PV search left incomplete.
    Raises UserError where no engine can be started or the cache is unusable.
    """

    def __init__(self, settings: EngineSettings, cache: Path | None = None) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._program = find_stockfish(settings.path)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine pool", daemon=True)
        self._slots: list[EngineProcess | None] = [None] * settings.processes()
        self._cache: LabelCache | None = None
        self._thread.start()
        atexit.register(self.close)
        try:
            self.identity = self._run(self._identify())
            self._cache = LabelCache(cache, self.identity) if cache is not None else None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and the cache's connection. A second call does nothing."""
        if self._loop.is_closed():
            return
        atexit.unregister(self.close)
        self._run(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._cache is not None:
            self._cache.close()

    def label(self, boards: Sequence[chess.Board], progress: bool = False) -> list[MoveLabels | None]:
        """Scores of every legal move of each position, in the order given; None where a position could not be scored (see ``counts``).

        Clocks and history of a board do not count. Equal positions are searched once; what the cache holds is not searched.
        """
        positions = [position_key(board) for board in boards]
        distinct: dict[str, chess.Board] = {}
        for position, board in zip(positions, boards):
            distinct.setdefault(position, board)
        self.counts += Counter(asked=len(positions), duplicate=len(positions) - len(distinct))
        known = self._without_search(distinct)
        waiting = [chess.Board(f"{position} 0 1") for position in distinct if position not in known]
        with tqdm(total=len(waiting), desc="engine labels", unit="position", disable=not progress) as bar:
            step = _POSITIONS_PER_TRANSACTION * len(self._slots)
            for start in range(0, len(waiting), step):
                labels = self._run(self._search_all(waiting[start : start + step], bar.update))
                known.update(labels)
                if self._cache is not None:
                    self._cache.put(label for label in labels.values() if label is not None)
        return [known[position] for position in positions]

    def variations(
        self, boards: Sequence[chess.Board], lines: Sequence[int], nodes: int, progress: bool = False
    ) -> list[list[list[str]] | None]:
        """The best ``lines[i]`` variations (UCI moves, best first) of each position: one search of ``nodes`` nodes, a new game each.

        Fewer where there are fewer legal moves, none where the game is over; None where the search failed (see ``counts``). Not cached.
        """
        found: list[list[list[str]] | None] = [[] for _ in boards]
        asked = [place for place, board in enumerate(boards) if any(board.legal_moves) and not board.is_insufficient_material()]
        with tqdm(total=len(asked), desc="engine variations", unit="position", disable=not progress) as bar:
            searches = [(boards[place], lines[place], nodes) for place in asked]
            results = self._run(self._spread(self._variations, searches, bar.update)) if searches else []
        for place, result in zip(asked, results):
            found[place] = result
        return found

    def _without_search(self, boards: Mapping[str, chess.Board]) -> dict[str, MoveLabels | None]:
        """Labels that need no engine, by position, each counted; a position that is left out is the engine's."""
        # A variant's board can have the key of a chess position. Castling of Chess960 is written otherwise than in the position that is asked.
        asked = {key: chess.Board(f"{key} 0 1") if board.chess960 else board for key, board in boards.items() if board.uci_variant == "chess"}
        known: dict[str, MoveLabels | None] = dict(self._cache.get(asked)) if self._cache is not None else {}
        self.counts += Counter(cached=len(known))
        for position in [position for position in boards if position not in known]:
            board = asked.get(position)
            # An engine crashes on an illegal position or answers nonsense. Chess960 castling rights are invalid in the position as it is asked.
            if board is None or not chess.Board(f"{position} 0 1").is_valid():
                self._unscorable("invalid")
                known[position] = None
            elif board.is_insufficient_material() or not any(board.generate_legal_moves()):
                known[position] = MoveLabels(position, 0, {move.uci(): MoveScore(cp=0) for move in board.legal_moves})
                self.counts["decided"] += 1
        return known

    # ---- below: coroutines of the pool's thread -----------------------------------------------------------------------------------

    def _run(self, work: Coroutine[None, None, _Result]) -> _Result:
        """Result of ``work`` done in the pool's thread; an interrupt of the waiting thread stops it there."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

    async def _start(self) -> EngineProcess:
        settings = self.settings
        return await EngineProcess.start(self._program, settings.hash_mb, settings.deadline_s, settings.start_timeout_s)

    async def _identify(self) -> str:
        """Start one process and search once: an engine that cannot work at all is an error, not a table of unscorable positions."""
        process = self._slots[0] = await self._start()
        try:
            lines = await process.search(chess.Board(), "go depth 1", lines=1)
        except (TimeoutError, chess.engine.EngineError) as error:
            what = str(error) or f"no answer within {self.settings.deadline_s:g} s"
            raise UserError(f"engine {self._program} does not search ({what}): set engine.path to a working Stockfish") from error
        if not scores_by_depth(lines):
            raise UserError(f"engine {self._program} gives no score for the start position: set engine.path to a working Stockfish")
        settings = self.settings
        limits = f"depth={settings.depth} nodes={settings.nodes}" if settings.mode == "depth" else f"nodes_per_move={settings.nodes}"
        return f"{process.name()} | mode={settings.mode} {limits} | Threads=1 Hash={settings.hash_mb} | rules {RULES_VERSION}"

    async def _end_all(self) -> None:
        interrupted = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*interrupted, return_exceptions=True)
        processes = [process for process in self._slots if process is not None]
        self._slots = [None] * len(self._slots)
        await asyncio.gather(*(process.end() for process in processes))

    async def _search_all(self, boards: Sequence[chess.Board], done: Callable[[], object]) -> dict[str, MoveLabels | None]:
        labels = await self._spread(self._label, boards, done)
        return {position_key(board): found for board, found in zip(boards, labels)}

    async def _spread(
        self, search: Callable[[int, _Item], Coroutine[None, None, _Result]], items: Sequence[_Item], done: Callable[[], object]
    ) -> list[_Result]:
        """``search`` (slot, item) of all items, in their order; each process takes the next one when it is free."""
        queue = deque(enumerate(items))
        results: dict[int, _Result] = {}

        async def work(slot: int) -> None:
            while queue:
                place, item = queue.popleft()
                results[place] = await search(slot, item)
                done()

        workers = [asyncio.ensure_future(work(slot)) for slot in range(min(len(self._slots), len(items)))]
        try:
            await asyncio.gather(*workers)
        except UserError:  # no process can be started any more
            for worker in workers:
                worker.cancel()
            raise
        finally:
            await asyncio.gather(*workers, return_exceptions=True)
        return [results[place] for place in range(len(items))]

    async def _label(self, slot: int, board: chess.Board) -> MoveLabels | None:
        """Labels of one position by the process of ``slot``."""
        table, reason = await self._attempt(slot, lambda process: self._table(process, board))
        if table is None:
            return self._unscorable(reason or "incomplete")
        self.counts["searched"] += 1
        depth, scores = table
        return MoveLabels(position_key(board), depth, _decided_by_rules(board, scores))

    async def _variations(self, slot: int, asked: tuple[chess.Board, int, int]) -> list[list[str]] | None:
        board, lines, nodes = asked
        wanted = min(lines, board.legal_moves.count())
        printed, reason = await self._attempt(slot, lambda process: process.search(board, f"go nodes {nodes}", lines=wanted))
        if printed is None:
            return self._unscorable(reason)
        self.counts["searched"] += 1
        return best_variations(printed, wanted)

    async def _attempt(
        self, slot: int, search: Callable[[EngineProcess], Coroutine[None, None, _Result]]
    ) -> tuple[_Result | None, str]:
        """What ``search`` finds with the process of ``slot``, and "" or why it failed; a process that fails is replaced once."""
        for _attempt in range(2):
            process = self._slots[slot]
            if process is None:
                process = self._slots[slot] = await self._start()
            try:
                return await search(process), ""
            except TimeoutError:
                reason = "deadline"
            except chess.engine.EngineError:
                reason = "crash"
            except asyncio.CancelledError:  # the process is still searching: the next call needs one that listens
                await self._end(slot)
                raise
            await self._end(slot)
            self.counts["restarts"] += 1
        return None, reason

    async def _end(self, slot: int) -> None:
        process, self._slots[slot] = self._slots[slot], None
        if process is not None:
            await process.end()

    def _unscorable(self, reason: str) -> None:
        self.counts["unscorable"] += 1
        self.counts[f"unscorable_{reason}"] += 1

    async def _table(self, process: EngineProcess, board: chess.Board) -> tuple[int, dict[str, MoveScore]] | None:
        """(depth, score of every legal move); None if the engine leaves moves without a score."""
        moves = [move.uci() for move in board.legal_moves]
        depth, nodes = self.settings.depth, self.settings.nodes
        if self.settings.mode == "searchmoves":
            searches = {move: await self._search_move(process, board, move, f"nodes {nodes}") for move in moves}
            if not all(searches.values()):
                return None
            return 0, {move: tables[max(tables)][move] for move, tables in searches.items()}
        tables = scores_by_depth(await process.search(board, f"go depth {depth} nodes {nodes}", lines=len(moves)), enough=len(moves))
        if (table := deepest_complete(tables, moves)) is not None:
            return table
        self.counts["searched_per_move"] += 1
        merged: dict[int, dict[str, MoveScore]] = {}
        for move in moves:
            for at, scores in (await self._search_move(process, board, move, f"depth {depth} nodes {max(1, nodes // len(moves))}")).items():
                merged.setdefault(at, {}).update(scores)
        return deepest_complete(merged, moves)

    async def _search_move(self, process: EngineProcess, board: chess.Board, move: str, limit: str) -> dict[int, dict[str, MoveScore]]:
        tables = scores_by_depth(await process.search(board, f"go {limit} searchmoves {move}", lines=1))
        return {depth: scores for depth, scores in tables.items() if move in scores}


def _decided_by_rules(board: chess.Board, scores: dict[str, MoveScore]) -> dict[str, MoveScore]:
    """``scores`` with the rules' word for moves that end the game: a mate in 1, or 0 centipawns for a draw."""
    decided = dict(scores)
    for move in board.legal_moves:
        board.push(move)
        if not any(board.generate_legal_moves()):
            decided[move.uci()] = MoveScore(mate=1) if board.is_check() else MoveScore(cp=0)
        elif board.is_insufficient_material():
            decided[move.uci()] = MoveScore(cp=0)
        board.pop()
    return decided
