"""Moves of screened games by the program pgn-extract, about 30 times as fast as python-chess.

A block of games is one short-lived process. Games go in with their number as Event, and come out in the same order without those that hold
an illegal or ambiguous move. The output is read in bulk: every move as a row of at most seven tokens.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import chess
import numpy as np

from chessrl.errors import UserError
from chessrl.game_batch import GameBatch, bounds
from chessrl.notation import CAPTURE, CASTLE_LONG, CASTLE_SHORT, CHECK, FIRST_SQUARE, LONGEST_MOVE, MATE, PROMOTION, TOKEN_ID, move_tokens
from chessrl.pgn_blocks import PAWN_SPELLING, ScreenedGame

METHODS = ("auto", "pgn-extract", "python-chess")
Plies = list[tuple[int, ...]]  # canonical move tokens, ply by ply

_DEBIAN_PATH = Path("/usr/games/pgn-extract")  # not on root's PATH
_OPTIONS = ("-s", "-Wxolalg", "--nomovenumbers", "--noresults", "-w1000000")
_OUTPUT = re.compile(rb'\[Event "(\d+)"\]\n(?:\[[^\n]*\n)*\n([^\n]*)\n')

_PIECE_TOKEN, _PROMOTION_TOKEN, _SUFFIX_TOKEN = (np.zeros(256, dtype=np.uint8) for _ in range(3))
for _letter in "KQRBN":
    _PIECE_TOKEN[ord(_letter)] = TOKEN_ID[_letter]
for _letter in "abcdefgh":
    _PIECE_TOKEN[ord(_letter)] = TOKEN_ID["P"]
for _letter in "QRBN":
    _PROMOTION_TOKEN[ord(_letter)] = TOKEN_ID[_letter]
_SUFFIX_TOKEN[[ord("+"), ord("#")]] = CHECK, MATE


def find_pgn_extract() -> str | None:
    """Path of the program, on PATH or where Debian puts it; None where it is not installed."""
    return shutil.which("pgn-extract") or (str(_DEBIAN_PATH) if _DEBIAN_PATH.is_file() else None)


def choose_program(method: str) -> str | None:
    """Path of the program for ``method``: ``pgn-extract``, ``python-chess`` (None) or ``auto``, the first where it is installed."""
    if method not in METHODS:
        raise UserError(f"method={method}: expected one of {', '.join(METHODS)}")
    program = None if method == "python-chess" else find_pgn_extract()
    if method == "pgn-extract" and program is None:
        raise UserError("pgn-extract is not installed (Debian and Ubuntu: apt install pgn-extract); install it or use method=python-chess")
    return program


@cache
def pgn_extract_version(program: str) -> str:
    """What the program calls itself, for manifests."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[0]


def extract_plies(program: str | None, games: Sequence[ScreenedGame]) -> tuple[GameBatch, np.ndarray, int]:
    """The games that are legal throughout as a batch, which ones they are (bool [games]), and how many were read a second time.

    ``program`` None: by python-chess alone, the reference. Otherwise by pgn-extract; a game of which it wrote other moves than were given, by
    ``spelling_of``, is read again by python-chess. Raises RuntimeError where the program fails.
    """
    legal = np.zeros(len(games), dtype=bool)
    again: list[int] = []
    if program is None:
        batch, again = GameBatch.of_plies([]), list(range(len(games)))
    else:
        batch, written = _read_output(_run(program, games))
        given = np.array([game.spelling for game in games], dtype=np.int64)
        whole = _spellings(batch) == given[written]
        again = written[~whole].tolist()
        batch = batch.select(whole)
        legal[written[whole]] = True
    if again:
        reread = {number: plies for number in again if (plies := replay_san(games[number])) is not None}
        batch = _with_games(batch, np.flatnonzero(legal).tolist(), reread)
        legal[list(reread)] = True
    return batch, legal, len(again) if program else 0


def _spellings(batch: GameBatch) -> np.ndarray:
    """``spelling_of`` the moves of each game, [games] int64."""
    starts = batch.ply_bounds[:-1]
    pawns = np.flatnonzero(batch.tokens[starts] == TOKEN_ID["P"])
    places = starts[pawns]
    values = np.ones(len(starts), dtype=np.int64)
    values[pawns] += PAWN_SPELLING * (1 + (batch.tokens[places + 1] - FIRST_SQUARE) // 8 + 8 * (batch.tokens[places + 2] == CAPTURE)).astype(np.int64)
    return np.diff(bounds(values)[batch.game_bounds])


def replay_san(game: ScreenedGame) -> Plies | None:
    """Tokens of a game's moves by python-chess, the reference; None where a move is illegal or ambiguous."""
    board = chess.Board(game.start_fen or chess.STARTING_FEN)
    plies = []
    for san in game.san:
        try:
            move = board.parse_san(san)
        except ValueError:
            return None
        plies.append(tuple(move_tokens(board, move)))
        board.push(move)
    return plies


def _run(program: str, games: Sequence[ScreenedGame]) -> bytes:
    text = "".join([_as_pgn(number, game) for number, game in enumerate(games)])
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as complaints:  # pipes would be fed 4 kB at a time
        given.write(text.encode())
        given.seek(0)
        done = subprocess.run([program, *_OPTIONS], stdin=given, stdout=subprocess.PIPE, stderr=complaints)
        if done.returncode:
            complaints.seek(0)
            raise RuntimeError(f"{program} ended with status {done.returncode}: {complaints.read()[-500:]!r}")
    return done.stdout


def _as_pgn(number: int, game: ScreenedGame) -> str:
    """A minimal game; the closing ``*`` is there because a game without a result comes out empty."""
    start = "" if game.start_fen is None else f'[SetUp "1"]\n[FEN "{game.start_fen}"]\n'
    return f'[Event "{number}"]\n{start}\n{game.moves} *\n\n'


def _read_output(output: bytes) -> tuple[GameBatch, np.ndarray]:
    """The games of the program's output, and their numbers [games]."""
    numbers, lines = [], []
    for number, line in _OUTPUT.findall(output):
        numbers.append(int(number))
        lines.append(line)
    counts = np.array([line.count(b" ") + 1 if line else 0 for line in lines], dtype=np.int64)
    words = b" ".join(filter(None, lines)) + b" "
    tokens, ply_tokens = read_moves(words if len(words) > 1 else b"")
    return GameBatch(tokens, ply_tokens, counts), np.array(numbers, dtype=np.int64)


def read_moves(text: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of moves as ``-Wxolalg`` writes them (``Ng1-f3``, ``e4xd5``, ``e7xd8Q+``, ``O-O``), each closed by one space.

    Returns the tokens end to end [tokens] uint8 and how many each move has [moves] int64. Raises RuntimeError for any other text.
    """
    letters = np.frombuffer(text + bytes(LONGEST_MOVE), dtype=np.uint8)
    ends = np.flatnonzero(letters == ord(" "))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    length = ends - starts
    first = letters[starts]
    castling = first == ord("O")
    squares = starts + (first < ord("a"))  # behind a piece letter; pawns have none
    takes = letters[squares + 2]
    promotion = _PROMOTION_TOKEN[letters[squares + 5]]
    suffix = _SUFFIX_TOKEN[letters[ends - 1]]
    rows = np.zeros((len(starts), LONGEST_MOVE), dtype=np.uint8)  # 0 where a move has no such token: <bos> is none of a move's
    rows[:, 0] = _PIECE_TOKEN[first]
    rows[:, 1], good = _square_tokens(letters, squares)
    rows[:, 2] = np.where(takes == ord("x"), CAPTURE, 0)
    rows[:, 3], good_target = _square_tokens(letters, squares + 3)
    rows[:, 4] = np.where(promotion > 0, PROMOTION, 0)
    rows[:, 5] = promotion
    good &= good_target & ((takes == ord("x")) | (takes == ord("-"))) & (rows[:, 0] > 0)
    good &= length == (squares - starts) + 5 + (promotion > 0) + (suffix > 0)
    castles = np.flatnonzero(castling)
    long = letters[starts[castles] + 3] == ord("-")
    rows[castles] = 0
    rows[castles, 0] = np.where(long, CASTLE_LONG, CASTLE_SHORT)
    closing = length[castles] - np.where(long, 5, 3)
    good[castles] = np.where(suffix[castles] > 0, (closing == 1) | (closing == 2), closing == 0)  # it writes O-O++ for a check by castling
    rows[:, 6] = suffix
    if not good.all():
        place = int(np.argmin(good))
        raise RuntimeError(f"pgn-extract wrote {text[starts[place] : ends[place]]!r}, which is no move in long algebraic notation")
    present = rows > 0
    return rows[present], present.sum(axis=1)


def _square_tokens(letters: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Square tokens of the two letters at each place, and whether they name a square."""
    file, rank = letters[place] - np.uint8(ord("a")), letters[place + 1] - np.uint8(ord("1"))  # anything else wraps around or is 8 and more
    return FIRST_SQUARE + (file & 7) * np.uint8(8) + (rank & 7), (file < 8) & (rank < 8)


def _with_games(batch: GameBatch, numbers: list[int], added: dict[int, Plies]) -> GameBatch:
    """``batch``, whose games have ``numbers``, with further games in the order of all numbers."""
    plies = dict(zip(numbers, batch.plies(range(len(batch))))) | added
    return GameBatch.of_plies([plies[number] for number in sorted(plies)])
