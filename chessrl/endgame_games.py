"""Games of the endgame world: random positions played out by Stockfish at mixed strength.

The engine is driven by a small UCI reader of our own: at these node budgets a search takes 0.1 ms and a general protocol layer would cost
several times that. One thread, a 1 MB hash and a new game per game make every game a function of (seed, index) alone.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import chess
import numpy as np

from chessrl.endgame_positions import GAME_WEIGHTS, canonical_key, random_position

NODE_BUDGETS = (1, 20, 100, 300, 1000)
NOISE_SHARES = (0.0, 0.05, 0.1, 0.2, 0.4)  # share of moves drawn uniformly from the legal ones instead of asked from the engine
NOISE_WEIGHTS = (0.35, 0.2, 0.2, 0.15, 0.1)
GAMES_STREAM = 1  # sets the games' random streams apart from those of the puzzles
REPLY_DEADLINE_S = 20.0


class EngineFailure(RuntimeError):
    """The engine ended or did not answer in time."""


class PlainEngine:
    """A Stockfish process that answers node-limited searches. A context manager: the child is gone when the block is left."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen([str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self._pending = b""
        self._poll = select.poll()
        self._poll.register(self._process.stdout, select.POLLIN)
        try:
            self._send("uci")
            answer = self._read_until("uciok")
            self.name = next(line.removeprefix("id name ") for line in answer if line.startswith("id name "))
            self._send("setoption name Threads value 1\nsetoption name Hash value 1")
            self.new_game()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PlainEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def new_game(self) -> None:
        """Clears the hash and the search's history, so that nothing from earlier games reaches the next."""
        self._send("ucinewgame\nisready")
        self._read_until("readyok")

    def best_move(self, fen: str, moves: list[str], nodes: int) -> str:
        """The move (UCI) that a search of ``nodes`` nodes prefers after ``moves`` from ``fen``."""
        self._send(f"position fen {fen} moves {' '.join(moves)}\ngo nodes {nodes}")
        return self._read_until("bestmove")[-1].split()[1]

    def claimed_mate(self, fen: str, nodes: int) -> int:
        """The distance of the mate that the search reports for the side to move, in its moves; 0 if it reports none. A hint, no proof."""
        self._send(f"position fen {fen}\ngo nodes {nodes}")
        scored = [line.split() for line in self._read_until("bestmove") if " score " in line]
        if not scored or scored[-1][scored[-1].index("score") + 1] != "mate":
            return 0
        return max(0, int(scored[-1][scored[-1].index("score") + 2]))

    def _send(self, text: str) -> None:
        try:
            self._process.stdin.write(text.encode() + b"\n")
        except BrokenPipeError as error:
            raise EngineFailure("the engine has ended") from error

    def _read_until(self, word: str) -> list[str]:
        """Lines up to the one that starts with ``word``. Raises EngineFailure when the engine ends or the deadline passes."""
        deadline = time.monotonic() + REPLY_DEADLINE_S
        lines: list[str] = []
        while True:
            while b"\n" in self._pending:
                line, self._pending = self._pending.split(b"\n", 1)
                lines.append(line.decode().strip())
                if lines[-1].startswith(word):
                    return lines
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise EngineFailure(f"the engine gave no {word!r} within {REPLY_DEADLINE_S:.0f} s")
            block = os.read(self._process.stdout.fileno(), 1 << 16)
            if not block:
                raise EngineFailure("the engine has ended")
            self._pending += block


@dataclass(frozen=True, slots=True)
class Game:
    """One row of the games table. ``nodes`` and ``noise`` of each colour stand for the player's strength."""

    fen: str
    moves: str  # UCI, space separated
    result: str  # 1-0, 0-1, 1/2-1/2; * where the ply cap cut the game
    ending: str
    material: str
    white_nodes: int
    black_nodes: int
    white_noise: float
    black_noise: float


@dataclass(frozen=True, slots=True)
class GamesTask:
    """Games ``first`` to ``stop`` - 1 of a pack."""

    engine: Path
    seed: int
    first: int
    stop: int
    max_plies: int
    materials: tuple[str, ...]


def play_task(task: GamesTask) -> tuple[list[Game], np.ndarray]:
    """The task's games, and the canonical keys (int64, sorted, unique) of all positions they pass through.

    A game whose engine fails is played once more from its start by a new process; a second failure is raised.
    """
    games: list[Game] = []
    keys: set[int] = set()
    engine = PlainEngine(task.engine)
    try:
        for index in range(task.first, task.stop):
            try:
                game, visited = play_game(engine, task, index)
            except EngineFailure:
                engine.close()
                engine = PlainEngine(task.engine)
                game, visited = play_game(engine, task, index)
            games.append(game)
            keys.update(visited)
    finally:
        engine.close()
    return games, np.array(sorted(keys), dtype=np.int64)


def play_game(engine: PlainEngine, task: GamesTask, index: int) -> tuple[Game, list[int]]:
    """Game ``index`` and the canonical keys of its positions, the last one included."""
    generator = np.random.default_rng([task.seed, GAMES_STREAM, index])
    weights = np.array([GAME_WEIGHTS[material] for material in task.materials])
    material = str(generator.choice(task.materials, p=weights / weights.sum()))
    nodes = generator.choice(NODE_BUDGETS, size=2).tolist()
    noise = generator.choice(NOISE_SHARES, size=2, p=NOISE_WEIGHTS).tolist()
    board = random_position(material, generator)
    fen = board.fen()
    engine.new_game()
    moves: list[str] = []
    keys = [canonical_key(board)]
    ending = ""
    while not ending:
        player = 0 if board.turn == chess.WHITE else 1
        if generator.random() < noise[player]:
            legal = list(board.generate_legal_moves())
            move = legal[generator.integers(len(legal))]
        else:
            move = chess.Move.from_uci(engine.best_move(fen, moves, nodes[player]))
        board.push(move)
        moves.append(move.uci())
        keys.append(canonical_key(board))
        ending = ending_of(board, len(moves) >= task.max_plies)
    result = "*" if ending == "ply_cap" else "1/2-1/2"
    if ending == "checkmate":
        result = "0-1" if board.turn == chess.WHITE else "1-0"
    return Game(fen, " ".join(moves), result, ending, material, *nodes, *noise), keys


def ending_of(board: chess.Board, capped: bool) -> str:
    """Why the game ends in this position; empty while it goes on."""
    if not any(board.generate_legal_moves()):
        return "checkmate" if board.is_check() else "stalemate"
    if board.is_insufficient_material():
        return "insufficient_material"
    if board.halfmove_clock >= 100:
        return "fifty_moves"
    if board.is_repetition(3):
        return "threefold_repetition"
    return "ply_cap" if capped else ""
