"""metrics.jsonl: one object per logged step, appended whole; after a crash it may end in a line cut short, or in zeros that were never written."""

from __future__ import annotations

import json
from io import FileIO
from typing import Any


def append(file: FileIO, lines: bytes) -> None:
    """Write all of ``lines`` to an unbuffered file; a full disk, which takes a part of it first, is an OSError."""
    while lines:
        lines = lines[file.write(lines) :]


def last_step(content: bytes) -> int:
    """The step of the last whole line, 0 where there is none."""
    for line in reversed(content.split(b"\n")[:-1]):
        try:
            return json.loads(line)["step"]
        except ValueError:
            continue  # damaged by the crash
    return 0


def belong_together(content: bytes, state: dict[str, Any]) -> bool:
    """Whether the first ``metrics_bytes`` of the metrics are whole lines up to the step of the state that was saved with them."""
    size = state["metrics_bytes"]
    head = content[:size]
    return len(head) == size and (size == 0 or (head.endswith(b"\n") and last_step(head) == state["step"]))
