"""Sources of games, handed out in blocks of whole games: .pgn and .pgn.zst files, standard input, folders of token shards.

Where a block ends depends on the source's content alone, so that a block read again is the same block.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from chessrl.errors import UserError
from chessrl.notation import BOS, EOS, REFERENCE_SIZE
from chessrl.sources import WHERE_TO_GET, HashedFile, SourceDamage, check_source, read_pieces

STANDARD_INPUT = "-"
BLOCK_BYTES = 4 << 20  # of text, or of tokens as uint32: some thousand games, a few hundred MB of arrays for a moment
MOST_BYTES = 64 << 20  # without the start of a game: no PGN

PGN, TOKENS = "pgn", "tokens"  # kinds of blocks

_CHUNK_TOKENS = 1 << 20


@dataclass(slots=True)
class Source:
    """One source, read once. ``record`` is complete when its blocks are exhausted; ``kind`` says what its blocks hold."""

    name: str
    kind: str
    size: int | None  # bytes; None where unknown
    record: dict = field(default_factory=dict)  # for a manifest
    cut_off: int = 0  # games that were begun at the end of the source and are not whole
    _files: list[HashedFile] = field(default_factory=list)

    @property
    def bytes_read(self) -> int:
        """Of the source as it is stored: compressed where it is."""
        return sum(file.bytes_read for file in self._files)

    def blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
        """Blocks in their order: PGN text, or tokens of the released vocabulary as bytes, each game between separators.

        Raises SourceDamage for a truncated or damaged .zst, after the blocks that were read whole; UserError for any other fault.
        """
        return self._token_blocks(block_bytes // 4) if self.kind == TOKENS else self._pgn_blocks(block_bytes)

    # -- text --

    def _pgn_blocks(self, block_bytes: int) -> Iterator[bytes]:
        if self.name == STANDARD_INPUT:
            yield from self._stream_blocks(sys.stdin.buffer, block_bytes, compressed=False)
            return
        with Path(self.name).open("rb") as file:
            yield from self._stream_blocks(file, block_bytes, compressed=self.name.lower().endswith(".zst"))

    def _stream_blocks(self, stream: BinaryIO, block_bytes: int, *, compressed: bool) -> Iterator[bytes]:
        file = HashedFile(stream)
        self._files.append(file)
        name = "standard input" if self.name == STANDARD_INPUT else self.name
        rest, damage = bytearray(), None
        try:
            yield from cut_blocks(read_pieces(file, name, self.size or 0, compressed), block_bytes, _last_game, rest)
        except SourceDamage as error:
            damage = error
            whole = _last_game(bytes(rest), len(rest))
            self.cut_off = 1 if rest[whole:].strip() else 0
            rest = rest[:whole]
        if rest.strip():
            yield bytes(rest)
        self.record = {"name": Path(self.name).name, **file.finish(), **(damage.record if damage else {})}
        if damage:
            raise damage

    # -- token shards --

    def _token_blocks(self, block_bytes: int) -> Iterator[bytes]:
        """Shards in the order of their names are one stream, so a game may go on in the next shard. A game is what stands between two
        separators (``<bos>`` or ``<eos>``), or before the first; what stands behind the last one is cut off, and counted so."""
        rest = bytearray()
        paths = token_shards(Path(self.name))
        yield from cut_blocks(self._token_pieces(paths), block_bytes, _last_separator, rest)
        whole = _last_separator(bytes(rest), len(rest))
        self.cut_off = 1 if len(rest) > whole else 0
        if rest[:whole].strip(bytes((BOS, EOS))):
            yield bytes(rest[:whole])

    def _token_pieces(self, paths: list[Path]) -> Iterator[bytes]:
        records = []
        for path in paths:
            with path.open("rb") as stream:
                file = HashedFile(stream)
                self._files.append(file)
                count = _read_array_header(file, path)
                for start in range(0, count, _CHUNK_TOKENS):
                    yield _checked_tokens(file.read(4 * min(_CHUNK_TOKENS, count - start)), path, start, count)
                records.append({"name": path.name, **file.finish()})
        self.record = {"name": Path(self.name).name, "bytes": sum(record["bytes"] for record in records), "files": records}


def open_source(name: str) -> Source:
    """A source by its name: ``-`` for standard input, a folder of .npy token shards, or a .pgn or .pgn.zst file. Raises UserError."""
    if name == STANDARD_INPUT:
        return Source(name, PGN, None)
    path = Path(name)
    if path.is_dir():
        return Source(name, TOKENS, sum(shard.stat().st_size for shard in token_shards(path)))
    check_source(path, ".pgn", "world.games")
    return Source(name, PGN, path.stat().st_size)


def no_game(source: Source) -> UserError:
    """The error for a source without a single game."""
    name = "standard input" if source.name == STANDARD_INPUT else source.name
    return UserError(f"{name}: no game in it; expected {'tokens' if source.kind == TOKENS else 'PGN text'}. {WHERE_TO_GET['world.games']}")


def cut_blocks(pieces: Iterable[bytes], block_bytes: int, last_start: Callable[[bytes, int], int], rest: bytearray) -> Iterator[bytes]:
    """Blocks of at most ``block_bytes`` (more where one game is longer) that end where a game ends, however the pieces fall.

    ``last_start(text, limit)`` is where a block within ``limit`` bytes may end, 0 for nowhere. What follows the last block is left in ``rest``.
    """
    limit = block_bytes
    for piece in pieces:
        rest += piece
        while len(rest) >= limit:
            text = bytes(rest[:limit])
            cut = last_start(text, limit)
            if cut:
                yield text[:cut]
                del rest[:cut]
                limit = block_bytes
            elif limit >= MOST_BYTES:
                raise UserError(f"no game starts within {limit >> 20} MB of text after {text[:40]!r}...: expected PGN text or game tokens")
            else:
                limit *= 2


def _last_game(text: bytes, limit: int) -> int:
    """Games start with ``[Event ``; in a text without that tag, where a header follows a blank line."""
    start = text.rfind(b"\n[Event ", 0, limit) + 1
    return start or (text.rfind(b"\n\n[", 0, limit) + 2 if limit >= 2 * BLOCK_BYTES and b"\n\n[" in text else 0)


def _last_separator(text: bytes, limit: int) -> int:
    """The place behind it: a game belongs to the block that holds the separator which closes it."""
    return max(text.rfind(BOS, 0, limit), text.rfind(EOS, 0, limit)) + 1


def token_shards(folder: Path) -> list[Path]:
    """The .npy files of a folder by name. Raises UserError where there is none."""
    paths = sorted(folder.glob("*.npy"))
    if not paths:
        raise UserError(f"{folder}: no .npy file in it; expected a folder of token shards (uint32), or name .pgn files one by one")
    return paths


def _read_array_header(file: HashedFile, path: Path) -> int:
    """Number of tokens of a shard, whose data come next."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise UserError(f"{path}: not a NumPy file ({error}); fetch it again") from error
    if dtype != np.dtype("<u4") or len(shape) != 1:
        raise UserError(f"{path}: {dtype} of shape {shape}; expected uint32 tokens in one dimension")
    return shape[0]


def _checked_tokens(data: bytes, path: Path, start: int, count: int) -> bytes:
    tokens = np.frombuffer(data[: len(data) // 4 * 4], dtype="<u4")
    if len(tokens) and tokens.max() >= REFERENCE_SIZE:
        place = int(np.argmax(tokens >= REFERENCE_SIZE))
        raise UserError(
            f"{path}: token {tokens[place]} at offset {start + place:,}; expected ids below {REFERENCE_SIZE}, the vocabulary of the released corpus"
        )
    if 4 * min(_CHUNK_TOKENS, count - start) != len(data):
        raise UserError(f"{path}: ends after {start + len(tokens):,} of {count:,} tokens; fetch it again")
    return tokens.astype(np.uint8).tobytes()
