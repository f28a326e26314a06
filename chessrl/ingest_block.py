"""One block of a source -> its part of the corpus: games screened, tokenised, looked up among the puzzles and cut into documents.

A part depends on the block's content and the settings alone. It is what worker processes make, and what lies on disk until all are done.
"""

from __future__ import annotations

import json
import math
import os
import signal
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chess
import numpy as np

from chessrl.corpus import cut_of_draw, digest_of
from chessrl.documents import NO_DOCUMENT, Documents, history_documents, snapshot_documents
from chessrl.game_batch import GameBatch, bounds, split_plies
from chessrl.game_sources import PGN
from chessrl.notation import EOS, NotationError, parse_move
from chessrl.pgn_blocks import RESULTS, TIME_CLASSES, GameFilters, ScreenedGame, screen_text
from chessrl.pgn_extract import extract_plies
from chessrl.position_keys import moves_of_plies
from chessrl.replay import replay
from chessrl.signals import die_with_parent

if TYPE_CHECKING:
    from chessrl.decontamination import BlockedPositions

CLASS_NAMES = (*TIME_CLASSES, "unknown")
RESULT_NAMES = (*RESULTS, "*")
EXAMPLES_KEPT = 5  # sites of illegal games, per block
CHECKED_SHARE = 0.01  # of the games of token shards is replayed by python-chess


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """What shapes a part, besides its block."""

    filters: GameFilters
    program: str | None  # pgn-extract; None: python-chess alone
    state: str
    context: int  # tokens
    seed: int
    validation_share: float


@dataclass(slots=True)
class Part:
    """The games of a block that have a document, in order. ``facts`` are arrays over [games], described in ``FACTS``."""

    facts: dict[str, np.ndarray]
    tokens: np.ndarray  # [tokens] uint8: the documents end to end
    sites: np.ndarray  # [bytes] uint8: the games' Site headers end to end
    account: dict[str, Any]  # read, dropped, examples, verdicts, reread, checked

    def save(self, path: Path) -> None:
        """Write a file that is there whole or not at all."""
        account = np.frombuffer(json.dumps(self.account).encode(), dtype=np.uint8)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                np.savez(file, tokens=self.tokens, sites=self.sites, account=account, **self.facts)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)  # half a file would keep a full disk full


def load_account(path: Path) -> dict[str, Any] | None:
    """The account of a saved part; None where there is none, or none that can be read."""
    try:
        with np.load(path) as file:
            return json.loads(file["account"].tobytes())
    except (FileNotFoundError, EOFError, zipfile.BadZipFile):
        return None


FACTS = {
    "digest": "<u8",  # of start position and moves
    "white_elo": "<i2",  # 0: unknown
    "black_elo": "<i2",
    "time_class": "u1",  # place in CLASS_NAMES
    "result": "u1",  # place in RESULT_NAMES
    "plies": "<i4",  # of the whole game
    "date": "<i4",  # YYYYMMDD, 0: unknown
    "site_bytes": "<i4",
    "length": "<i4",  # tokens of the document
    "loss_tokens": "<i4",
    "truncated": "?",
    "held_out": "?",  # for the validation split
    "copies": "<i2",  # how often the document is written
}


def make_part(kind: str, data: bytes, settings: BlockSettings, blocked: BlockedPositions | None) -> Part:
    """The part of one block (``kind`` as in game_sources). Raises RuntimeError where pgn-extract fails."""
    account: dict[str, Any] = {"read": 0, "dropped": Counter(), "examples": [], "verdicts": [], "reread": 0, "checked": 0}
    games, batch = (_pgn_games if kind == PGN else _token_games)(data, settings, account)
    digests = _digests(batch, games, "moves")
    hashes, cuts, boards = None, None, None
    starts = {place: game.start_fen for place, game in enumerate(games) if game.start_fen is not None}
    if settings.state == "snapshot":
        draws = _digests(batch, games, f"cut {settings.seed}").tolist()
        cuts = np.array(
            [cut_of_draw(draw, plies, place in starts) for place, (draw, plies) in enumerate(zip(draws, batch.game_plies.tolist()))],
            dtype=np.int64,
        )
    if cuts is not None or blocked is not None:
        hashes, boards = replay(batch, starts, cuts)
    if boards is None:
        standard = np.array([place not in starts for place in range(len(games))], dtype=bool)
        documents = history_documents(batch, standard, settings.context)
    else:
        documents = snapshot_documents(batch, cuts, boards, settings.context)
    copies = np.ones(len(games), dtype=np.int64)
    held_out = _digests(batch, games, "validation") < np.uint64(math.ceil(settings.validation_share * 2**64))
    if blocked is not None:
        _judge(batch, games, hashes, blocked, documents, copies, held_out, account)
    return _part(games, batch, documents, digests, copies, held_out, account)


def make_and_save(kind: str, data: bytes, path: Path, settings: BlockSettings, blocked: BlockedPositions | None) -> dict[str, Any]:
    """Write the part of one block to ``path``; its account."""
    part = make_part(kind, data, settings, blocked)
    part.save(path)
    return part.account


_shared: tuple[BlockSettings, BlockedPositions | None]  # what all blocks of a worker process have in common, sent once


def begin_worker(settings: BlockSettings, blocked: BlockedPositions | None) -> None:
    """First thing in a worker process, which dies with its parent."""
    global _shared
    _shared = settings, blocked
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group: the parent ends the workers
    die_with_parent(signal.SIGKILL)


def work_in_worker(kind: str, data: bytes, path: Path) -> dict[str, Any]:
    """``make_and_save`` in a worker process."""
    return make_and_save(kind, data, path, *_shared)


# ---- games ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Untitled:
    """A game that is known by its moves alone."""

    start_fen: None = None
    result: str = "*"
    white_elo: None = None
    black_elo: None = None
    time_class: str = "unknown"
    site: str = ""
    date: str = ""


def _pgn_games(data: bytes, settings: BlockSettings, account: dict[str, Any]) -> tuple[list[ScreenedGame], GameBatch]:
    outcomes = list(screen_text(data, settings.filters))
    account["read"] = len(outcomes)
    account["dropped"].update(outcome for outcome in outcomes if isinstance(outcome, str))
    screened = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    batch, legal, account["reread"] = extract_plies(settings.program, screened)
    illegal = np.flatnonzero(~legal).tolist()
    if illegal:
        account["dropped"]["illegal_move"] += len(illegal)
        account["examples"] = [screened[place].site for place in illegal if screened[place].site][:EXAMPLES_KEPT]
    return [game for game, kept in zip(screened, legal.tolist()) if kept], batch


def _token_games(data: bytes, settings: BlockSettings, account: dict[str, Any]) -> tuple[list[_Untitled], GameBatch]:
    """Games of a block of the released corpus: runs of moves between separators. A share of them is replayed."""
    tokens = np.frombuffer(data, dtype=np.uint8)
    separators = np.flatnonzero(tokens <= EOS)  # <bos> and <eos> are the ids 0 and 1
    lengths = np.diff(np.concatenate([[-1], separators])) - 1
    lengths = lengths[lengths > 0]
    account["read"] = len(lengths)
    batch, readable = split_plies(tokens[tokens > EOS], lengths)
    _drop(account, "unreadable_tokens", int((~readable).sum()))
    enough = batch.game_plies >= max(settings.filters.min_plies, 1)
    _drop(account, "too_few_plies", int((~enough).sum()))
    batch = batch.select(enough)
    untitled = _Untitled()
    share = np.uint64(int(CHECKED_SHARE * 2**64))
    checked = np.flatnonzero(_digests(batch, [untitled] * len(batch), f"check {settings.seed}") < share)
    legal = np.ones(len(batch), dtype=bool)
    for place, plies in zip(checked.tolist(), batch.plies(checked.tolist())):
        legal[place] = _replays(plies)
    account["checked"] = len(checked)
    _drop(account, "illegal_move", int((~legal).sum()))
    batch = batch.select(legal)
    return [untitled] * len(batch), batch


def _replays(plies: list[tuple[int, ...]]) -> bool:
    """Whether a game from the standard start is legal and spelt canonically, by python-chess."""
    board = chess.Board()
    try:
        for tokens in plies:
            board.push(parse_move(board, tokens))
    except NotationError:
        return False
    return True


def _drop(account: dict[str, Any], reason: str, count: int) -> None:
    if count:
        account["dropped"][reason] += count


def _digests(batch: GameBatch, games: Sequence[ScreenedGame | _Untitled], purpose: str) -> np.ndarray:
    """``corpus.game_digest`` of every game, [games] uint64."""
    wide = batch.tokens.astype("<u2").tobytes()
    ends = (2 * batch.ply_bounds[batch.game_bounds]).tolist()
    values = [digest_of(purpose, game.start_fen, wide[start:end]) for game, start, end in zip(games, ends, ends[1:])]
    return np.array(values, dtype=np.uint64)


# ---- puzzles ----------------------------------------------------------------------------------------------------------------------------


def _judge(
    batch: GameBatch,
    games: Sequence[ScreenedGame | _Untitled],
    hashes: np.ndarray,
    blocked: BlockedPositions,
    documents: Documents,
    copies: np.ndarray,
    held_out: np.ndarray,
    account: dict[str, Any],
) -> None:
    """Replay each game with a blocked hash; sets ``copies`` and ``held_out`` by its verdict, which the account keeps."""
    places = bounds(batch.game_plies + 1)
    hits = np.unique(np.searchsorted(places, np.flatnonzero(blocked.candidates(hashes)), side="right") - 1).tolist()
    for game, plies in zip(hits, batch.plies(hits)):
        fen = games[game].start_fen
        verdict = blocked.verdict(fen, moves_of_plies(plies, white_first=fen is None or fen.split()[1] == "w"))
        plies_held = int(documents.first_ply[game]), int(documents.end_ply[game])
        within = verdict.within(range(*plies_held))
        copies[game] = 0 if verdict.blocked_by else within.copies
        held_out[game] &= not within.leaked  # a leak is for the training
        account["verdicts"].append([game, astuple(verdict), plies_held])
    _drop(account, "passes_through_a_puzzle", int((copies == 0).sum()))


# ---- the part ---------------------------------------------------------------------------------------------------------------------------


def _part(
    games: Sequence[ScreenedGame | _Untitled],
    batch: GameBatch,
    documents: Documents,
    digests: np.ndarray,
    copies: np.ndarray,
    held_out: np.ndarray,
    account: dict[str, Any],
) -> Part:
    allowed = copies > 0
    for fault, count in enumerate(np.bincount(documents.fault[allowed], minlength=len(NO_DOCUMENT)).tolist()):
        if fault:
            _drop(account, NO_DOCUMENT[fault], count)
    kept = allowed & (documents.fault == 0)
    row_of_game = np.where(kept, np.cumsum(kept) - 1, -1)
    for verdict in account["verdicts"]:
        verdict[0] = int(row_of_game[verdict[0]])
    chosen = [game for game, is_kept in zip(games, kept.tolist()) if is_kept]
    sites = [game.site.encode() for game in chosen]
    values: dict[str, Any] = {
        "digest": digests[kept],
        "white_elo": [game.white_elo or 0 for game in chosen],
        "black_elo": [game.black_elo or 0 for game in chosen],
        "time_class": [CLASS_NAMES.index(game.time_class) for game in chosen],
        "result": [RESULT_NAMES.index(game.result) for game in chosen],
        "plies": batch.game_plies[kept],
        "date": [int(game.date.replace("-", "") or 0) for game in chosen],
        "site_bytes": [len(site) for site in sites],
        "length": documents.lengths[kept],
        "loss_tokens": documents.loss_tokens[kept],
        "truncated": documents.truncated[kept],
        "held_out": held_out[kept],
        "copies": copies[kept],
    }
    facts = {name: np.asarray(values[name], dtype=dtype) for name, dtype in FACTS.items()}
    tokens = documents.tokens if kept.all() else documents.tokens[np.repeat(kept, documents.lengths)]
    return Part(facts, tokens, np.frombuffer(b"".join(sites), dtype=np.uint8), account)
