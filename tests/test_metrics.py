"""metrics.jsonl after a crash: the last whole line, and which state it belongs to."""

from __future__ import annotations

import json

import pytest

from chessrl.metrics import belong_together, last_step


@pytest.mark.parametrize(
    ("content", "step"),
    [
        (b"", 0),
        (b'{"step": 1}\n', 1),
        (b'{"step": 1}\n{"step": 2}\n{"ste', 2),
        (b'{"ste', 0),
        (b'{"step": 7}\n{"step": 8}\n', 8),
        (b'{"step": 7}\n\0\0\0\0\0 8}\n', 7),  # a block that was never written reads as zeros
        (b'{"step": 7}\n\xff\xfe\n', 7),
    ],
)
def test_the_last_step_is_that_of_the_last_whole_line(content, step):
    assert last_step(content) == step


def test_a_state_belongs_to_metrics_that_are_whole_up_to_its_step():
    lines = [json.dumps({"step": step, "loss": 1.0}).encode() + b"\n" for step in range(1, 5)]
    content = b"".join(lines)
    state = {"step": 3, "metrics_bytes": len(b"".join(lines[:3]))}
    assert belong_together(content, state) and belong_together(content[: state["metrics_bytes"]], state)
    assert not belong_together(content[:-30], state), "lines were lost"
    assert not belong_together(content.replace(b"1.0", b"1.05"), state), "the lines were made again, with other lengths: it would cut into one"
    assert not belong_together(content, state | {"step": 2})
    assert belong_together(b"", {"step": 3, "metrics_bytes": 0})  # nothing was logged
