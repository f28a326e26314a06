"""Reading of published files: plain or zstd-compressed, streamed, with an account of what was kept and what was dropped and why."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

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
_BUFFER_BYTES = 1 << 20


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


def read_lines(path: Path, report: ReadReport) -> Iterator[bytes]:
    """Lines of a plain or .zst file, without their ends (LF or CRLF) and byte-order marks.

    Many zstd frames and skippable frames are read through. Raises UserError for UTF-16 text, and for a truncated or damaged .zst file
    with the compressed offset reached and the number of records read so far.
    """
    with path.open("rb") as raw:
        stream: BinaryIO = raw
        if path.suffix.lower() == ".zst":
            stream = io.BufferedReader(zstd.ZstdFile(raw), _BUFFER_BYTES)
        first = True
        try:
            for line in stream:
                if first and line.startswith(_UTF16_MARKS):
                    raise UserError(f"{path}: the text is UTF-16; save it as UTF-8")
                first = False
                yield line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
        except (EOFError, zstd.ZstdError) as error:
            kind = "ends in the middle of a frame" if isinstance(error, EOFError) else "is damaged"
            raise UserError(
                f"{path}: the zstd stream {kind} at byte {raw.tell():,} of {path.stat().st_size:,}, after {report.read:,} records; "
                "fetch the file again"
            ) from error
