"""Fine-tuning examples: prompt, trace and answer as token ids, and which of them are trained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chessrl.environment import solver_decisions
from chessrl.notation import CALL_ENV, move_tokens
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.traces import Tree, trace_tokens
from chessrl.training import GIVEN, Example

TRACE, ANSWER = 1, 2  # the parts that are trained


def build_example(puzzle: Puzzle, tree: Tree | None, state: str) -> Example:
    """Prompt, trace and answer of a puzzle; ``tree`` None: no trace, and no ``<T>`` in the prompt.

    Prompt, ``<T>`` and opponent moves are given; ``</T>`` belongs to the trace and ``<call_env>`` to the answer, and both are trained: else
    closing would never be learned. Example: ``<bos> <pos> .. </pos> <T> | R a1 a8 # </T> | R a1 a8 # <call_env>``
    """
    prompt = prompt_tokens(puzzle, state, think=tree is not None)
    trace = trace_tokens(puzzle.board(), tree) if tree is not None else []
    tokens, parts = [*prompt, *trace], [GIVEN] * len(prompt) + [TRACE] * len(trace)
    for board, move, reply in solver_decisions(puzzle):
        written = [*move_tokens(board, move), CALL_ENV]
        tokens += written
        parts += [ANSWER] * len(written)
        if reply is not None:
            after = board.copy(stack=False)
            after.push(move)
            answered = move_tokens(after, reply)
            tokens += answered
            parts += [GIVEN] * len(answered)
    return Example(np.array(tokens, np.int64), np.array(parts, np.int64))


def build_examples(puzzles: Sequence[Puzzle], trees: Sequence[Tree] | None, state: str) -> list[Example]:
    return [build_example(puzzle, trees[index] if trees is not None else None, state) for index, puzzle in enumerate(puzzles)]
