"""Shards of token corpora, and how they are written.

A shard is ``NAME.tokens``: a JSON header of 512 bytes, then the token ids of its documents end to end; and ``NAME.offsets.npy``: where each
document starts, and the end.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chessrl.notation import VOCABULARY, vocabulary_hash

if TYPE_CHECKING:
    from chessrl.corpus import Document  # it writes by this module

SPLITS = ("train", "validation")
HEADER_BYTES = 512
DTYPE = np.dtype("uint8") if len(VOCABULARY) <= 256 else np.dtype("<u2")


@dataclass(slots=True)
class SplitWriter:
    """Collects documents and writes a shard whenever ``shard_tokens`` are full."""

    folder: Path
    split: str
    shard_tokens: int
    counts: Counter[str] = field(default_factory=lambda: Counter(documents=0, tokens=0, loss_tokens=0, truncated_documents=0))
    shards: list[dict] = field(default_factory=list)
    _tokens: bytearray = field(default_factory=bytearray)
    _offsets: list[int] = field(default_factory=lambda: [0])

    def add(self, document: Document) -> None:
        """Add one document."""
        self._tokens += np.asarray(document.tokens, dtype=DTYPE).tobytes()
        self._offsets.append(self._offsets[-1] + len(document.tokens))
        self.counts.update(
            documents=1, tokens=len(document.tokens), loss_tokens=document.loss_tokens, truncated_documents=int(document.truncated)
        )
        if self._offsets[-1] >= self.shard_tokens:
            self._write_shard()

    def extend(
        self, tokens: np.ndarray, lengths: np.ndarray, loss_tokens: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add documents that stand end to end in ``tokens``; returns for each [documents] the number of its shard and its offset there."""
        shard, offset = np.empty(len(lengths), dtype=np.int64), np.empty(len(lengths), dtype=np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        first = 0
        while first < len(lengths):
            before = self._offsets[-1]
            full = int(np.searchsorted(ends[first + 1 :], ends[first] + self.shard_tokens - before))
            last = min(first + full + 1, len(lengths))
            shard[first:last] = len(self.shards)
            offset[first:last] = before + ends[first:last] - ends[first]
            self._tokens += tokens[ends[first] : ends[last]].astype(DTYPE).tobytes()
            self._offsets += (before + ends[first + 1 : last + 1] - ends[first]).tolist()
            if self._offsets[-1] >= self.shard_tokens:
                self._write_shard()
            first = last
        self.counts.update(
            documents=len(lengths), tokens=int(ends[-1]), loss_tokens=int(loss_tokens.sum()), truncated_documents=int(truncated.sum())
        )
        return shard, offset

    def finish(self) -> dict:
        """Write what is left; the split's entry in the manifest."""
        if len(self._offsets) > 1:
            self._write_shard()
        return {**self.counts, "shards": self.shards}

    def _write_shard(self) -> None:
        name = f"{self.split}-{len(self.shards):05d}"
        tokens, documents = self._offsets[-1], len(self._offsets) - 1
        offsets = np.asarray(self._offsets, dtype="<i8")
        (self.folder / f"{name}.tokens").write_bytes(shard_header(tokens, documents) + self._tokens)
        np.save(self.folder / f"{name}.offsets.npy", offsets)
        digest = hashlib.sha256(offsets.tobytes() + self._tokens).hexdigest()
        self.shards.append({"name": name, "documents": documents, "tokens": tokens, "sha256": digest})
        self._tokens, self._offsets = bytearray(), [0]


def shard_header(tokens: int, documents: int) -> bytes:
    header = {
        "vocabulary_hash": vocabulary_hash(),
        "vocabulary_size": len(VOCABULARY),
        "dtype": DTYPE.name,
        "tokens": tokens,
        "documents": documents,
    }
    return json.dumps(header).encode().ljust(HEADER_BYTES - 1) + b"\n"


def manifest_hash(manifest: dict) -> str:
    """Hash of what a model can see of the corpus: contents, their order, split and meaning; neither paths nor how they came about."""
    shards = {split: [shard["sha256"] for shard in entry["shards"]] for split, entry in manifest["splits"].items()}
    seen = {name: manifest[name] for name in ("state", "context", "vocabulary_hash", "dtype")}
    return hashlib.sha256(json.dumps([seen, shards], sort_keys=True).encode()).hexdigest()[:16]
