"""Fine-tuning examples: prompt, trace and answer as token ids, and which of them are trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.traces import Line
from chessrl.training import GIVEN, Example
from sft.arms import answer_tokens, line_answer

TRACE, ANSWER = 1, 2  # the parts that are trained


def build_example(puzzle: Puzzle, trace: Sequence[int] | None, state: str, answer: Line | None = None) -> Example:
    """Prompt, trace and answer (None: the puzzle's line) of a puzzle; ``trace`` None: no trace, and no ``<T>`` in the prompt.

    Prompt, ``<T>`` and opponent moves are given; ``</T>`` belongs to the trace and ``<call_env>`` to the answer, and both are trained: else
    closing would never be learned. Example: ``<bos> <pos> .. </pos> <T> | R a1 a8 # </T> | R a1 a8 # <call_env>``
    """
    tokens = prompt_tokens(puzzle, state, think=trace is not None)
    parts = [GIVEN] * len(tokens)
    tokens += trace or []
    parts += [TRACE] * len(trace or [])
    for number, ply in enumerate(answer_tokens(puzzle.board(), line_answer(puzzle) if answer is None else answer)):
        tokens += ply
        parts += [GIVEN if number % 2 else ANSWER] * len(ply)
    return Example(np.array(tokens, np.int64), np.array(parts, np.int64))
