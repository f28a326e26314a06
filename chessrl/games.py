"""Games: PGN files or tables of moves -> games as canonical move tokens, with an account of what was dropped.

``python -m chessrl.games sources=FILE[,FILE] out=FOLDER`` writes a token corpus (chessrl.corpus).
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import chess
from tqdm import tqdm

from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError
from chessrl.notation import move_tokens
from chessrl.pgn_blocks import GameFilters, ScreenedGame, screen, split_blocks
from chessrl.pgn_extract import Plies, extract_plies, find_pgn_extract
from chessrl.sources import WHERE_TO_GET, ReadReport, check_source, file_record, read_lines

if TYPE_CHECKING:
    import pandas as pd  # worker processes start without it

METHODS = ("auto", "pgn-extract", "python-chess")
_BATCH_GAMES = 1000  # one pgn-extract process per batch: start-up is 1 % of the work, and a batch is a few MB
_BATCHES_AHEAD = 2
_CHUNK_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Game:
    """One game as canonical move tokens, all plies end to end; ``ply_ends[i]`` is where ply i ends (exclusive)."""

    tokens: tuple[int, ...]
    ply_ends: tuple[int, ...]
    start_fen: str | None = None  # None: the standard start
    result: str = "*"
    white_elo: int | None = None
    black_elo: int | None = None
    time_class: str = "unknown"
    site: str = ""

    @property
    def plies(self) -> list[tuple[int, ...]]:
        """Tokens ply by ply."""
        return [self.tokens[start:end] for start, end in zip((0, *self.ply_ends), self.ply_ends)]


def read_games(
    sources: Iterable[Path | str], *, method: str = "auto", filters: GameFilters | None = None, most: int | None = None, report: ReadReport
) -> Iterator[Game]:
    """Games of .pgn and .pgn.zst files that pass ``filters``, in their order; both methods give the same games and token ids.

    ``method``: ``pgn-extract``, ``python-chess`` (about 30 times slower) or ``auto``, the first where it is installed. ``report`` counts
    what was read, kept and dropped, complete once the iterator is exhausted. ``most`` ends the reading after so many kept games; those looked
    at beyond it are counted as ``beyond_the_limit``. Raises UserError for a missing, foreign or damaged file.
    """
    if method not in METHODS:
        raise UserError(f"method={method}: expected one of {', '.join(METHODS)}")
    program = None if method == "python-chess" else find_pgn_extract()
    if method == "pgn-extract" and program is None:
        raise UserError("pgn-extract is not installed (Debian and Ubuntu: apt install pgn-extract); install it or use method=python-chess")
    paths = [Path(source) for source in sources]
    for path in paths:
        check_source(path, ".pgn", "world.games")
    screened = _screened_games(paths, filters or GameFilters(), report)
    parsed = ((game, replay_san(game)) for game in screened) if program is None else _parse_in_batches(program, screened)
    for game, plies in parsed:
        if plies is None:
            report.drop("illegal_move")
            continue
        report.kept += 1
        yield Game(
            tokens=tuple(chain.from_iterable(plies)),
            ply_ends=tuple(accumulate(map(len, plies))),
            start_fen=game.start_fen,
            result=game.result,
            white_elo=game.white_elo,
            black_elo=game.black_elo,
            time_class=game.time_class,
            site=game.site,
        )
        if report.kept == most:
            report.dropped["beyond_the_limit"] += report.read - report.kept - sum(report.dropped.values())
            return


def _screened_games(paths: list[Path], filters: GameFilters, report: ReadReport) -> Iterator[ScreenedGame]:
    for path in paths:
        report.files.append(file_record(path))
        blocks = 0
        for blocks, block in enumerate(split_blocks(read_lines(path, report)), start=1):  # noqa: B007
            report.read += 1
            outcome = screen(block, filters)
            if isinstance(outcome, str):
                report.drop(outcome)
            else:
                yield outcome
        if not blocks:
            raise UserError(f"{path}: no game in it; expected PGN text. {WHERE_TO_GET['world.games']}")


def _parse_in_batches(program: str, games: Iterator[ScreenedGame]) -> Iterator[tuple[ScreenedGame, Plies | None]]:
    """Screening of the next batch goes on here while pgn-extract works on the last ones."""
    pending: deque = deque()
    with ThreadPoolExecutor(_BATCHES_AHEAD) as threads:
        while batch := list(islice(games, _BATCH_GAMES)):
            pending.append((batch, threads.submit(extract_plies, program, batch)))
            if len(pending) > _BATCHES_AHEAD:
                done, plies = pending.popleft()
                yield from zip(done, plies.result())
        for done, plies in pending:
            yield from zip(done, plies.result())


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


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


def games_from_table(frame: pd.DataFrame, *, workers: int = 1) -> Iterator[Game]:
    """Games of a table with columns ``fen`` (start position) and ``moves`` (UCI, space separated), and ``result`` where there is one.

    ``workers`` processes share the rows; the order is the table's. Raises UserError naming the first row with an illegal move.
    """
    missing = [name for name in ("fen", "moves") if name not in frame.columns]
    if missing:
        raise UserError(f"table of games: no column {', '.join(missing)}; expected fen and moves")
    results = frame["result"].tolist() if "result" in frame.columns else ["*"] * len(frame)
    rows = list(zip(range(len(frame)), frame["fen"].tolist(), frame["moves"].tolist(), results))
    chunks = [rows[start : start + _CHUNK_ROWS] for start in range(0, len(rows), _CHUNK_ROWS)]
    if workers <= 1 or len(chunks) == 1:
        yield from chain.from_iterable(map(_games_of_rows, chunks))
        return
    quiet = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group: this process ends the workers
    with multiprocessing.get_context("spawn").Pool(min(workers, len(chunks)), signal.signal, quiet) as pool:
        yield from chain.from_iterable(pool.imap(_games_of_rows, chunks))


def _games_of_rows(rows: list[tuple[int, str, str, str]]) -> list[Game]:
    games = []
    for row, fen, moves, result in rows:
        try:
            board = chess.Board(fen)
            plies = [_push_uci(board, move) for move in moves.split()]
        except ValueError as error:
            raise UserError(f"table of games, row {row}: {error}; expected legal UCI moves from the row's position") from error
        start_fen = None if fen == chess.STARTING_FEN else fen
        games.append(Game(tuple(chain.from_iterable(plies)), tuple(accumulate(map(len, plies))), start_fen, result))
    return games


def _push_uci(board: chess.Board, uci: str) -> list[int]:
    """Tokens of a move, and the board after it. Raises ValueError for an illegal or null move."""
    move = board.parse_uci(uci)
    if not move:
        raise chess.IllegalMoveError(f"null move {uci!r} in {board.fen()}")
    tokens = move_tokens(board, move)
    board.push(move)
    return tokens


# ---- command ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GameSettings:
    """Keys of ``python -m chessrl.games``: PGN files in, a token corpus out."""

    sources: tuple[str, ...]
    out: str
    puzzles: str = ""  # a puzzle table (parquet): games through a position that it asks are left out
    state: str = "snapshot"
    context: int = 256  # tokens
    validation_share: float = 0.02
    shard_tokens: int = 1 << 26
    method: str = "auto"
    min_plies: int = 10
    bullet: bool = False
    rated_only: bool = True
    seed: int = 0


def main(arguments: list[str]) -> None:
    """Build the corpus; prints the account of files and games, and the tokens of each split."""
    from chessrl.config import LeakConfig
    from chessrl.corpus import build_corpus  # it and the next build on this module
    from chessrl.decontamination import Decontamination
    from chessrl.puzzles import load_puzzles

    settings = parse_settings(GameSettings, arguments)
    filters = GameFilters(min_plies=settings.min_plies, rated_only=settings.rated_only)
    if settings.bullet:
        filters = replace(filters, exclude_time_classes=())
    decontamination = Decontamination(load_puzzles(settings.puzzles), LeakConfig()) if settings.puzzles else None
    reading = ReadReport()
    manifest = build_corpus(
        tqdm(read_games(settings.sources, method=settings.method, filters=filters, report=reading), unit=" games", disable=None),
        settings.out,
        state=settings.state,
        context=settings.context,
        seed=settings.seed,
        validation_share=settings.validation_share,
        shard_tokens=settings.shard_tokens,
        decontamination=decontamination,
        reading=reading,
    )
    print(f"files: {reading.summary()}")
    if decontamination is not None:
        print(f"decontamination: {decontamination.summary()}")
    for split, entry in manifest["splits"].items():
        print(f"{split}: {entry['documents']:,} documents, {entry['tokens']:,} tokens, {entry['loss_tokens']:,} of them with loss")


if __name__ == "__main__":
    sys.exit(run_command(main))
