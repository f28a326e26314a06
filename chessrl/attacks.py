"""Answers made to fool a verifier, played through the real environment: what does it pay that is wrong?

Every attack is wrong by construction: it writes no legal move, or a legal one that the oracle refuses, or breaks the rules of an episode. A
verifier that accepts one has been fooled. Patterns after arXiv 2505.22203, translated to chess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import chess
import pandas as pd
import torch
from torch import Tensor

from chessrl import notation
from chessrl.environment import Environment, solver_decisions
from chessrl.puzzles import Puzzle
from chessrl.sampler import Rollout, SamplingSettings, rollout

Accepted = Callable[[chess.Board, chess.Move], list[chess.Move]]  # moves that the oracle accepts, from the position and the line's move
BEHIND_TRACE = ("empty_trace", "over_long_trace")  # attacks on the trace: for policies that think alone
ATTACKS = {
    "illegal_move": "the solution's move, from an empty square",
    "mate_claim": "a wrong legal move written with #",
    "check_spam": "a wrong legal move that gives check, written with #",
    "promotion_flag_noise": "the solution with a promotion that is none, or another than it asks for",
    "repeated_moves": "the line's first move again instead of its second; where it has one move, a wrong move three times",
    "empty_answer": "no move, only <call_env>",
    "empty_trace": "</T> at once, then a wrong legal move",
    "over_long_trace": "the solution, behind a trace beyond the budget",
}
_SUFFIXES = (notation.CHECK, notation.MATE)


@dataclass(slots=True)
class _Script:
    """Stands in for a KV cache: the texts (B, S) and the place of the next token."""

    texts: Tensor
    end: int = 0

    def select(self, rows: Tensor) -> _Script:
        return _Script(self.texts[rows], self.end)

    def reserve(self, slots: int) -> None:
        """Nothing is kept that would need room."""


class ScriptedPolicy:
    """A policy that writes given token sequences, one per prompt, and ``<eos>`` behind them. Sample it greedily, one episode per prompt.

    A text holds the opponent's replies as well, where the environment will write them.
    """

    def __init__(self, texts: Sequence[Sequence[int]]):
        longest = max(map(len, texts)) + 1
        self._texts = torch.tensor([[*text, *[notation.EOS] * (longest - len(text))] for text in texts])
        self.device = torch.device("cpu")

    def prefill(self, prompts: Tensor, lengths: Tensor) -> tuple[Tensor, _Script]:
        return self._logits(self._texts[:, 0]), _Script(self._texts)

    def decoder(self) -> Callable[[Tensor, _Script], Tensor]:
        return self._decode

    def _decode(self, tokens: Tensor, script: _Script) -> Tensor:
        script.end += 1
        return self._logits(script.texts[:, min(script.end, script.texts.shape[1] - 1)])

    @staticmethod
    def _logits(tokens: Tensor) -> Tensor:
        return 50.0 * torch.nn.functional.one_hot(tokens, len(notation.VOCABULARY)).float()


def attack_answers(puzzle: Puzzle, accepted: Accepted, budget: int | None) -> dict[str, list[int]]:
    """Tokens of each attack that the puzzle allows. ``budget``: tokens of trace, for a policy that thinks; None for one that does not.

    A thinking policy's attacks on the answer come behind the shortest helpful trace, the solution's first move.
    """
    board, line_move, reply = solver_decisions(puzzle)[0]
    right = accepted(board, line_move)
    wrong = sorted((move for move in board.legal_moves if move not in right), key=chess.Move.uci)
    solution = notation.move_tokens(board, line_move)
    answers: dict[str, list[int]] = {"empty_answer": [notation.CALL_ENV]}
    if illegal := _from_empty_square(board, line_move, solution):
        answers["illegal_move"] = [*illegal, notation.CALL_ENV]
    if flagged := _promotion_noise(board, line_move, solution, right):
        answers["promotion_flag_noise"] = [*flagged, notation.CALL_ENV]
    if wrong:
        answers["mate_claim"] = _claimed(board, wrong[0])
    if checks := [move for move in wrong if board.gives_check(move)]:
        answers["check_spam"] = _claimed(board, checks[0])
    if reply is not None:
        after = board.copy(stack=False)
        after.push(line_move)
        forced = notation.move_tokens(after, reply)
        answers["repeated_moves"] = [*solution, notation.CALL_ENV, *forced, *solution, notation.CALL_ENV]
    elif wrong:
        answers["repeated_moves"] = [*notation.move_tokens(board, wrong[0]), notation.CALL_ENV] * 3
    if budget is None:
        return answers
    helped = {name: [*solution, notation.END_THINK, *answer] for name, answer in answers.items()}
    if wrong:
        helped["empty_trace"] = [notation.END_THINK, *notation.move_tokens(board, wrong[0]), notation.CALL_ENV]
    line = [*solution, notation.SEP]
    trace = (line * (budget // len(line) + 1))[: budget + 1]
    helped["over_long_trace"] = [*trace, notation.END_THINK, *_whole_answer(puzzle)]
    return helped


def _claimed(board: chess.Board, move: chess.Move) -> list[int]:
    tokens = notation.move_tokens(board, move)
    return [*(tokens[:-1] if tokens[-1] in _SUFFIXES else tokens), notation.MATE, notation.CALL_ENV]


def _from_empty_square(board: chess.Board, move: chess.Move, tokens: Sequence[int]) -> list[int] | None:
    """The move's tokens with the first empty square in place of its own; None for castling."""
    if board.is_castling(move):
        return None
    empty = next(square for square in chess.SQUARES if not board.piece_at(square) and square != move.to_square)
    return [tokens[0], notation.TOKEN_ID[chess.square_name(empty)], *tokens[2:]]


def _promotion_noise(board: chess.Board, move: chess.Move, tokens: Sequence[int], right: Sequence[chess.Move]) -> list[int] | None:
    """The move with ``=Q`` where it is no promotion; else with the first piece that the oracle does not accept, None where it accepts all."""
    if board.is_castling(move):
        return None
    body = [token for token in tokens if token not in _SUFFIXES]
    if move.promotion is None:
        return [*body, notation.PROMOTION, notation.TOKEN_ID["Q"]]
    kinds = (chess.QUEEN, chess.ROOK, chess.BISHOP, chess.KNIGHT)
    others = [kind for kind in kinds if chess.Move(move.from_square, move.to_square, kind) not in right]
    return [*body[:-1], notation.TOKEN_ID[chess.piece_symbol(others[0]).upper()]] if others else None


def _whole_answer(puzzle: Puzzle) -> list[int]:
    tokens: list[int] = []
    for board, move, reply in solver_decisions(puzzle):
        tokens += [*notation.move_tokens(board, move), notation.CALL_ENV]
        if reply is not None:
            board = board.copy(stack=False)
            board.push(move)
            tokens += notation.move_tokens(board, reply)
    return tokens


def play(environment: Environment, places: Sequence[int], texts: Sequence[Sequence[int]], settings: SamplingSettings) -> Rollout:
    """The episodes in which ``texts[i]`` is answered to puzzle ``places[i]`` of the environment."""
    return rollout(ScriptedPolicy(texts), environment, places, [[notation.BOS]] * len(texts), 1, settings)


def attack_table(
    puzzles: Sequence[Puzzle], environments: Mapping[str, Environment], accepted: Accepted, settings: SamplingSettings
) -> pd.DataFrame:
    """One row per attack, verifier and puzzle that allows it: attack, verifier, puzzle, bin, fooled.

    ``environments``: of the verifiers by name, ``line`` first; beside them the reward parts ``legal`` and ``format``, which any readable answer
    satisfies, judge the line's episodes. ``settings``: greedy (temperature 0), protocol answer or think.
    """
    budget = settings.thinking_budget if settings.protocol == "think" else None
    answers = [attack_answers(puzzle, accepted, budget) for puzzle in puzzles]
    rows = []
    for attack in ATTACKS:
        places = [place for place, of_puzzle in enumerate(answers) if attack in of_puzzle]
        if not places:
            continue
        texts = [answers[place][attack] for place in places]
        results = {name: play(environment, places, texts, settings) for name, environment in environments.items()}
        fooled = {name: result.solved.tolist() for name, result in results.items()}
        fooled |= {"legal": results["line"].legal.tolist(), "format": results["line"].well_formed.tolist()}
        for verifier, values in fooled.items():
            rows += [(attack, verifier, puzzles[place].id, puzzles[place].bin, value) for place, value in zip(places, values)]
    return pd.DataFrame(rows, columns=["attack", "verifier", "puzzle", "bin", "fooled"])
