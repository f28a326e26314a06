"""Token corpora: games -> documents -> memory-mapped shards with a manifest.

A corpus is built beside its place and renamed into it, so a folder with a manifest is a whole corpus.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import chess
import numpy as np

from chessrl.decontamination import CLEAN, Decontamination, Verdict
from chessrl.errors import UserError, make_folder
from chessrl.games import Game
from chessrl.notation import BOS, EOS, VOCABULARY, snapshot_tokens, vocabulary_hash
from chessrl.position_keys import line_keys, moves_of_plies
from chessrl.shards import DTYPE, HEADER_BYTES, SPLITS, SplitWriter, manifest_hash, shard_header
from chessrl.sources import ReadReport

if TYPE_CHECKING:
    from chessrl.ingest_merge import Account  # it builds on this module

STATES = ("snapshot", "history")
MANIFEST = "manifest.json"
FEWEST_PLIES_AFTER_CUT = 8


@dataclass(frozen=True, slots=True)
class Document:
    """One training document; the last ``loss_tokens`` of its tokens carry loss (``<bos>`` and a snapshot do not)."""

    tokens: list[int]
    loss_tokens: int
    truncated: bool  # cut at the context's end, at a move boundary and without <eos>
    plies: range  # of the game, whose moves it holds


# ---- documents --------------------------------------------------------------------------------------------------------------------------


def game_digest(game: Game, purpose: str) -> int:
    """64-bit hash of start position and moves; different purposes give independent values."""
    return digest_of(purpose, game.start_fen, np.asarray(game.tokens, dtype="<u2").tobytes())


def digest_of(purpose: str, start_fen: str | None, tokens: bytes) -> int:
    """``game_digest`` of a game whose tokens are given as little-endian 16-bit integers end to end."""
    text = f"{purpose} {start_fen or ''} ".encode() + tokens
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def is_validation(game: Game, share: float) -> bool:
    """Whether a game belongs to the validation split: by its moves and start alone, so that equal games never straddle the splits."""
    return game_digest(game, "validation") < share * 2**64


def cut_ply(game: Game, seed: int) -> int:
    """Ply at which a game is cut for a snapshot, a function of (seed, start and moves) alone.

    Uniform over the plies that leave at least min(8, plies) plies; a game with a start position of its own (an endgame) is left whole
    with probability 1/2, since its start is the kind of position that puzzles ask.
    """
    return cut_of_draw(game_digest(game, f"cut {seed}"), len(game.ply_ends), game.start_fen is not None)


def cut_of_draw(draw: int, plies: int, own_start: bool) -> int:
    """``cut_ply`` of a game with so many plies from 64 random bits."""
    if own_start and draw & 1:
        return 0
    choices = plies - min(FEWEST_PLIES_AFTER_CUT, plies) + 1
    return ((draw >> 1) * choices) >> 63


def make_document(game: Game, *, state: str, context: int, seed: int) -> Document | str:
    """The document of a game, at most ``context`` tokens long, or the reason why there is none.

    history: ``<bos> moves.. <eos>``; snapshot: ``<bos> <pos>..</pos> moves.. <eos>`` from a seeded ply on.
    """
    if not game.ply_ends:
        return "no_moves"
    if state == "history":
        if game.start_fen is not None:
            return "history_needs_the_standard_start"
        prefix, first = [BOS], 0
    else:
        first = cut_ply(game, seed)
        prefix = [BOS, *snapshot_tokens(_board_at(game, first))]
    start = game.ply_ends[first - 1] if first else 0
    moves = game.tokens[start:]
    if len(prefix) + len(moves) + 1 <= context:
        return Document([*prefix, *moves, EOS], len(moves) + 1, False, range(first, len(game.ply_ends)))
    fitting = [end - start for end in game.ply_ends[first:] if len(prefix) + end - start <= context]
    if not fitting:
        return "no_move_fits_the_context"
    return Document([*prefix, *moves[: fitting[-1]]], fitting[-1], True, range(first, first + len(fitting)))


def _board_at(game: Game, ply: int) -> chess.Board:
    board = chess.Board(game.start_fen or chess.STARTING_FEN)
    for move in moves_of_plies(game.plies[:ply], white_first=board.turn):
        board.push(move)
    return board


def game_moves(game: Game) -> list[chess.Move]:
    """The moves of a game, without a board."""
    return moves_of_plies(game.plies, white_first=game.start_fen is None or game.start_fen.split()[1] == "w")


# ---- writing ----------------------------------------------------------------------------------------------------------------------------


def build_corpus(
    games: Iterable[Game],
    folder: Path | str,
    *,
    state: str,
    context: int,
    seed: int,
    validation_share: float,
    shard_tokens: int,
    decontamination: Decontamination | None = None,
    max_tokens: int | None = None,
    reading: ReadReport | None = None,
) -> dict:
    """Write the corpus of ``games`` to a new ``folder`` and return its manifest.

    ``decontamination`` leaves out games that pass through a puzzle, and adds what is to be leaked on purpose. ``max_tokens`` stops the
    reading once the training split holds that many. ``reading`` is the readers' account, whose files and counts go to the manifest.
    Raises UserError for an existing folder, a bad value, and where a split that was asked for stays empty.
    """
    folder = Path(folder)
    check_settings(folder, state, context, validation_share, shard_tokens)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed
    temporary.mkdir(parents=True)
    try:
        writers = {split: SplitWriter(temporary, split, shard_tokens) for split in SPLITS}
        account = ReadReport()
        for game in games:
            account.read += 1
            verdict = _verdict(game, decontamination)
            if verdict.blocked_by:
                account.drop("passes_through_a_puzzle")
                continue
            document = make_document(game, state=state, context=context, seed=seed)
            if isinstance(document, str):
                account.drop(document)
                continue
            account.kept += 1
            # A leak is for the training: a leaked game is never held out, whatever its hash.
            verdict = verdict.within(document.plies)
            writer = writers["validation" if is_validation(game, validation_share) and not verdict.leaked else "train"]
            for _ in range(verdict.copies):
                writer.add(document)
            if decontamination is not None:
                decontamination.wrote(verdict)
            if max_tokens is not None and writers["train"].counts["tokens"] >= max_tokens:
                break
        if decontamination is not None:
            add_made_games(decontamination, writers["train"], state=state, context=context, seed=seed)
        check_splits(writers, validation_share, account, reading)
        manifest = {
            "state": state,
            "context": context,
            "seed": seed,
            "validation_share": validation_share,
            "max_tokens": max_tokens,
            "decontamination": decontamination.record() if decontamination else None,
            "vocabulary_hash": vocabulary_hash(),
            "vocabulary_size": len(VOCABULARY),
            "dtype": DTYPE.name,
            "sources": reading.files if reading else [],
            "reading": {name: value for name, value in reading.as_dict().items() if name != "files"} if reading else None,
            "games": {name: value for name, value in account.as_dict().items() if name != "files"},
            "splits": {split: writer.finish() for split, writer in writers.items()},
        }
        if decontamination is not None and (leak := decontamination.leak_record()) is not None:
            manifest["leak"] = leak
        manifest["hash"] = manifest_hash(manifest)
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return manifest


def _verdict(game: Game, decontamination: Decontamination | None) -> Verdict:
    if decontamination is None:
        return CLEAN
    moves = game_moves(game)
    keys = line_keys(game.start_fen or chess.STARTING_FEN, moves)
    return decontamination.judge(game.start_fen, moves, np.array(keys, dtype=np.uint64))


def add_made_games(decontamination: Decontamination, writer: SplitWriter, *, state: str, context: int, seed: int) -> None:
    """Write games made of the leaked puzzles that no document holds so far. Such a game ends with the puzzle's line."""
    for game in decontamination.missing_games():
        verdict = decontamination.blocked.verdict(game.start_fen, game_moves(game))
        document = make_document(game, state=state, context=context, seed=seed)
        if verdict.blocked_by:
            decontamination.could_not_make(game, "passes_through_another_puzzle")
        elif isinstance(document, str):
            decontamination.could_not_make(game, document)
        elif document.truncated or game.site not in verdict.within(document.plies).leaked:
            decontamination.could_not_make(game, "document_leaves_it_out")
        else:
            for _ in range(verdict.copies):
                writer.add(document)
            decontamination.wrote(verdict, made=True)


def check_settings(folder: Path, state: str, context: int, validation_share: float, shard_tokens: int) -> None:
    """Make the folder's parent. Raises UserError where the folder is not new, or for a bad value."""
    make_folder(folder.parent, "out")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose another folder for the corpus")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: not empty; remove it or choose another folder for the corpus")
    if state not in STATES:
        raise UserError(f"state={state}: expected one of {', '.join(STATES)}")
    if not 0 <= validation_share < 1:
        raise UserError(f"validation_share={validation_share}: expected a share from 0 up to, not including, 1")
    if context < 2 or shard_tokens < 1:
        raise UserError(f"context={context}, shard_tokens={shard_tokens}: expected at least 2 and at least 1 tokens")


def check_splits(
    writers: dict[str, SplitWriter], validation_share: float, account: ReadReport | Account, reading: ReadReport | None = None
) -> None:
    """Raise UserError where a split that was asked for has no document, with what became of the games."""
    wanted = SPLITS if validation_share > 0 else ("train",)
    for split in wanted:
        if not writers[split].counts["documents"]:
            files = f"files: {reading.summary()}; " if reading else ""
            raise UserError(
                f"the {split} split of the corpus is empty ({files}games: {account.summary()}); give more games, or change the filters or "
                "validation_share"
            )


# ---- reading ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Corpus:
    """One split of a corpus, memory-mapped. ``lengths[i]`` is the number of tokens of document i, shape [documents], int64."""

    manifest: dict
    lengths: np.ndarray
    _tokens: list[np.ndarray]  # per shard, uint8 or uint16
    _offsets: list[np.ndarray]  # per shard, [documents + 1], int64
    _first: np.ndarray  # number of a shard's first document, [shards]

    @classmethod
    def open(cls, folder: Path | str, split: str) -> Corpus:
        """Open ``train`` or ``validation``. Raises UserError for a missing, damaged or foreign corpus; token bytes are not hashed."""
        folder = Path(folder)
        manifest = _read_manifest(folder, split)
        shards = [_open_shard(folder, shard) for shard in manifest["splits"][split]["shards"]]
        lengths = [np.diff(offsets) for _, offsets in shards]
        return cls(
            manifest=manifest,
            lengths=np.concatenate(lengths) if lengths else np.zeros(0, dtype=np.int64),
            _tokens=[tokens for tokens, _ in shards],
            _offsets=[offsets for _, offsets in shards],
            _first=np.cumsum([0, *map(len, lengths)])[:-1],
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def document(self, index: int) -> np.ndarray:
        """Token ids of a document, a view of the file. Raises IndexError outside 0..len - 1."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} of {len(self)}")
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        offsets, place = self._offsets[shard], index - int(self._first[shard])
        return self._tokens[shard][offsets[place] : offsets[place + 1]]


def _read_manifest(folder: Path, split: str) -> dict:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{folder}: no corpus here ({MANIFEST} is missing); build it again") from error
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error}); build the corpus again") from error
    if manifest["vocabulary_hash"] != vocabulary_hash():
        raise UserError(
            f"{path}: written with the vocabulary {manifest['vocabulary_hash']} of {manifest['vocabulary_size']} tokens, "
            f"expected {vocabulary_hash()} of {len(VOCABULARY)}; build the corpus again"
        )
    if split not in manifest["splits"]:
        raise UserError(f"{path}: no split {split!r}; expected one of {', '.join(manifest['splits'])}")
    return manifest


def _open_shard(folder: Path, shard: dict) -> tuple[np.ndarray, np.ndarray]:
    path = folder / f"{shard['name']}.tokens"
    expected_bytes = HEADER_BYTES + shard["tokens"] * DTYPE.itemsize
    if not path.is_file() or path.stat().st_size != expected_bytes:
        found = f"{path.stat().st_size:,} bytes" if path.is_file() else "no file"
        raise UserError(f"{path}: {found}, expected {expected_bytes:,} bytes; build the corpus again")
    with path.open("rb") as file:
        if file.read(HEADER_BYTES) != shard_header(shard["tokens"], shard["documents"]):
            raise UserError(f"{path}: its header does not fit the manifest; build the corpus again")
    offsets_path = folder / f"{shard['name']}.offsets.npy"
    try:
        offsets = np.load(offsets_path)
    except (FileNotFoundError, EOFError, ValueError) as error:
        raise UserError(f"{offsets_path}: missing or damaged ({error}); build the corpus again") from error
    if len(offsets) != shard["documents"] + 1 or offsets[0] != 0 or offsets[-1] != shard["tokens"] or (np.diff(offsets) <= 0).any():
        raise UserError(f"{offsets_path}: its offsets do not fit the manifest; build the corpus again")
    return np.memmap(path, dtype=DTYPE, mode="r", offset=HEADER_BYTES), offsets
