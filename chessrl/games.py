"""Games: PGN files or tables of moves -> games as canonical move tokens, with an account of what was dropped.

The command writes a token corpus (chessrl.ingest).

Examples:
    python -m chessrl.games sources=lichess_db_standard_rated_2016-01.pgn.zst out=data/games
    python -m chessrl.games sources=a.pgn,b.pgn.zst out=data/games state=history context=512 puzzles=data/puzzles/puzzles.parquet
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess

from chessrl.balance import parse_balance
from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.game_sources import no_game, open_source
from chessrl.lock import Lock
from chessrl.notation import move_tokens
from chessrl.pgn_blocks import TIME_CLASSES, GameFilters, screen_text
from chessrl.pgn_extract import choose_program, extract_plies
from chessrl.sources import ReadReport, SourceDamage

if TYPE_CHECKING:
    import pandas as pd  # worker processes start without it

_READ_BYTES = 1 << 20  # of text at a time, for games that are handed out one by one
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
    program = choose_program(method)
    for source in [open_source(str(source)) for source in sources]:
        any_block = False
        try:
            for data in source.blocks(_READ_BYTES):
                any_block = True
                for game in _games_of_block(data, program, filters or GameFilters(), report):
                    report.kept += 1
                    yield game
                    if report.kept == most:
                        report.dropped["beyond_the_limit"] += report.read - report.kept - sum(report.dropped.values())
                        return
        except SourceDamage as damage:
            raise damage.error(report.read, "fetch the file again") from damage
        if not any_block:
            raise no_game(source)
        report.files.append(source.record)


def _games_of_block(data: bytes, program: str | None, filters: GameFilters, report: ReadReport) -> Iterator[Game]:
    outcomes = list(screen_text(data, filters))
    report.read += len(outcomes)
    report.dropped.update(outcome for outcome in outcomes if isinstance(outcome, str))
    screened = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    batch, legal, _ = extract_plies(program, screened)
    if not legal.all():
        report.dropped["illegal_move"] += int((~legal).sum())
    kept = (game for game, is_legal in zip(screened, legal.tolist()) if is_legal)
    for game, plies in zip(kept, batch.plies(range(len(batch)))):
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
    """Keys of ``python -m chessrl.games``: games in, a token corpus out."""

    sources: tuple[str, ...]  # .pgn and .pgn.zst files, - for standard input, folders of uint32 .npy token shards
    out: str  # folder for the corpus
    workers: int = 1  # processes; their number changes no byte of the corpus
    puzzles: str = ""  # a puzzle table (parquet): games through a position of it are left out
    state: str = "snapshot"  # how a game begins: snapshot (cut at a random ply, pieces listed) or history (moves from the start)
    context: int = 256  # tokens of a document; a longer game is cut there
    validation_share: float = 0.02  # of the games, kept out of training
    shard_tokens: int = 1 << 26  # most tokens of a shard's file
    method: str = "auto"  # of reading PGN: pgn-extract, python-chess (slow) or auto, the first where it is installed
    exclude_time_classes: tuple[str, ...] = ("ultrabullet", "bullet")  # games of these are dropped
    min_plies: int = 10  # shorter games are dropped
    min_rating: int = 0  # of each player whose rating is known
    max_rating: int = 4000  # of each player whose rating is known
    rated_only: bool = True  # drop casual games
    standard_start: bool = True  # drop games that begin from another position
    terminated: bool = True  # a decided result, not abandoned, no rules infraction
    balance: str = ""  # even, or {800: 1, 1000: 2}: mean ratings in these proportions
    balance_bin: int = 100  # rating points
    balance_games: int = 0  # how many to keep in all; 0: as many as fill every bin that has a game
    max_games: int = 0  # stop after so many games that pass the filters; 0: never
    keep_partial: bool = False  # of a damaged .zst, the games before the damage
    leak_fraction: float = 0.0  # share of the test puzzles whose games are let in on purpose
    leak_copies: int = 1  # how often each leaked game is written
    leak_seed: int = 0  # which puzzles are leaked
    seed: int = 0  # of the cuts, of the validation share and of what balance draws

    def __post_init__(self) -> None:
        for key in ("max_games", "min_plies"):
            if getattr(self, key) < 0:
                raise UserError(f"{key}={getattr(self, key)}: expected at least 0")
        if self.min_rating > self.max_rating:
            raise UserError(f"min_rating={self.min_rating} is above max_rating={self.max_rating}: no game could be kept; expected the other order")
        if not 0 <= self.leak_fraction <= 1 or self.leak_copies < 1:
            raise UserError(f"leak_fraction={self.leak_fraction}, leak_copies={self.leak_copies}: expected a share from 0 to 1 and at least 1")
        if self.leak_fraction and not self.puzzles:
            raise UserError(f"leak_fraction={self.leak_fraction} needs puzzles=TABLE, whose test puzzles are to be leaked")


def main(arguments: list[str]) -> None:
    """Build the corpus; prints the account of games, and the tokens of each split."""
    from chessrl.config import LeakConfig  # this module is what the following build on
    from chessrl.decontamination import Decontamination
    from chessrl.ingest import IngestSettings, ingest
    from chessrl.puzzles import load_puzzles

    settings = parse_settings(GameSettings, arguments)
    unknown = set(settings.exclude_time_classes) - set(TIME_CLASSES)
    if unknown:
        raise UserError(f"exclude_time_classes={','.join(sorted(unknown))}: expected some of {', '.join(TIME_CLASSES)}")
    filters = GameFilters(
        exclude_time_classes=settings.exclude_time_classes,
        min_plies=settings.min_plies,
        rated_only=settings.rated_only,
        min_rating=settings.min_rating,
        max_rating=settings.max_rating,
        standard_start=settings.standard_start,
        terminated=settings.terminated,
    )
    shape = IngestSettings(
        state=settings.state,
        context=settings.context,
        seed=settings.seed,
        validation_share=settings.validation_share,
        shard_tokens=settings.shard_tokens,
        filters=filters,
        method=settings.method,
        balance=parse_balance(settings.balance, settings.balance_bin, settings.balance_games),
        most=settings.max_games or None,
        keep_partial=settings.keep_partial,
    )
    leak = LeakConfig(fraction=settings.leak_fraction, copies=settings.leak_copies, seed=settings.leak_seed)
    decontamination = Decontamination(load_puzzles(settings.puzzles), leak) if settings.puzzles else None
    out = Path(settings.out)
    make_folder(out.parent, "out")
    with Lock(out.with_name(f".{out.name}.lock"), str(out)):
        manifest = ingest(settings.sources, out, shape, decontamination=decontamination, workers=settings.workers)
    print("\n".join(account_lines(manifest)))
    if decontamination is not None:
        print(f"decontamination: {decontamination.summary()}")


def account_lines(manifest: dict[str, Any]) -> list[str]:
    """What became of the games of a corpus, for a terminal."""
    games = manifest["games"]
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(games["dropped"].items(), key=lambda item: -item[1]))
    lines = [f"games: read {games['read']:,}, kept {games['kept']:,}" + (f"; dropped: {reasons}" if reasons else "")]
    if manifest.get("balance"):
        bins = ", ".join(f"{start}: {entry['kept']:,} of {entry['games']:,}" for start, entry in manifest["balance"]["bins"].items())
        lines.append(f"mean ratings from: {bins}")
    lines += [
        f"{split}: {entry['documents']:,} documents, {entry['tokens']:,} tokens, {entry['loss_tokens']:,} of them with loss"
        for split, entry in manifest["splits"].items()
    ]
    return lines


if __name__ == "__main__":
    sys.exit(run_command(main))
