"""Reading of published files: plain or zstd-compressed, streamed, with an account of what was kept and what was dropped and why."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

try:
    from compression import zstd
except ImportError:
    from backports import zstd

from chessrl.errors import UserError

WHERE_TO_GET = {
    "world.games": "Lichess publishes games (.pgn.zst) at https://database.lichess.org; set world.games to the file",
    "world.puzzles": "Lichess publishes puzzles (.csv.zst) at https://database.lichess.org/#puzzles; set world.puzzles to the file",
}
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
BUFFER_BYTES = 1 << 20


@dataclass(slots=True)
class ReadReport:
    """Account of one reading: ``read == kept + sum(dropped.values())`` once the reader is exhausted."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    files: list[dict[str, str | int]] = field(default_factory=list)

    def drop(self, reason: str) -> None:
        """Count one record that was read and is left out."""
        self.dropped[reason] += 1

    def as_dict(self) -> dict:
        """Plain values for a manifest or a terminal line."""
        return {"read": self.read, "kept": self.kept, "dropped": dict(sorted(self.dropped.items())), "files": self.files}

    def summary(self) -> str:
        """One line: how many were read and kept, then the reasons, most frequent first."""
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.dropped.most_common())
        return f"read {self.read:,}, kept {self.kept:,}" + (f"; dropped: {reasons}" if reasons else "")


def check_source(path: Path, suffix: str, key: str) -> None:
    """Raise UserError unless ``path`` is a file named ``*suffix`` or ``*suffix.zst``; ``key`` is the config key that names it."""
    if not path.is_file():
        raise UserError(f"{path}: no such file. {WHERE_TO_GET[key]}")
    if not path.name.lower().endswith((suffix, f"{suffix}.zst")):
        raise UserError(f"{path}: expected a {suffix} or {suffix}.zst file. {WHERE_TO_GET[key]}")


def file_record(path: Path) -> dict[str, str | int]:
    """Name, size in bytes and sha256 of a source, for manifests."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest}


class SourceDamage(Exception):
    """A source that cannot be read to its end. What was read whole before has been handed out by then."""

    def __init__(self, name: str, kind: str, offset: int, size: int):
        super().__init__(f"{name}: the zstd stream {kind} at byte {offset:,} of {size:,}")
        self.record = {"damage": kind, "offset": offset, "of_bytes": size}

    def error(self, records: int, remedy: str) -> UserError:
        """For the user, with the number of records read so far."""
        return UserError(f"{self}, after {records:,} records; {remedy}")


@dataclass(slots=True)
class HashedFile:
    """A binary file or pipe that counts and hashes what is read from it."""

    file: BinaryIO
    bytes_read: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, empty at the end."""
        data = self.file.read(size)
        self.bytes_read += len(data)
        self._digest.update(data)
        return data

    def finish(self) -> dict[str, str | int]:
        """Read what is left, and say how many bytes it was and their sha256."""
        while self.read(BUFFER_BYTES):
            pass
        return {"bytes": self.bytes_read, "sha256": self._digest.hexdigest()}


def read_pieces(file: HashedFile, name: str, size: int, compressed: bool) -> Iterator[bytes]:
    """The decompressed text of a file piece by piece. Raises SourceDamage behind the last piece that could be read, UserError for UTF-16."""
    stream = zstd.ZstdFile(file) if compressed else None
    first = True
    while True:
        try:
            piece = stream.read1(BUFFER_BYTES) if stream else file.read(BUFFER_BYTES)
        except (EOFError, zstd.ZstdError) as error:
            raise SourceDamage(name, _kind_of_damage(error), file.bytes_read, size) from error
        if not piece:
            return
        if first and piece.startswith(_UTF16_MARKS):
            raise UserError(f"{name}: the text is UTF-16; save it as UTF-8")
        first = False
        yield piece


def _kind_of_damage(error: EOFError | zstd.ZstdError) -> str:
    return "ends in the middle of a frame" if isinstance(error, EOFError) else "is damaged"


def read_lines(path: Path, report: ReadReport) -> Iterator[bytes]:
    """Lines of a plain or .zst file, without their ends (LF or CRLF) and byte-order marks.

    Many zstd frames and skippable frames are read through. Raises UserError for UTF-16 text, and for a truncated or damaged .zst file
    with the compressed offset reached and the number of records read so far.
    """
    with path.open("rb") as raw:
        stream: BinaryIO = raw
        if path.suffix.lower() == ".zst":
            stream = io.BufferedReader(zstd.ZstdFile(raw), BUFFER_BYTES)
        first = True
        try:
            for line in stream:
                if first and line.startswith(_UTF16_MARKS):
                    raise UserError(f"{path}: the text is UTF-16; save it as UTF-8")
                first = False
                yield line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
        except (EOFError, zstd.ZstdError) as error:
            damage = SourceDamage(str(path), _kind_of_damage(error), raw.tell(), path.stat().st_size)
            raise damage.error(report.read, "fetch the file again") from error
