"""From one game to its puzzles: where a player erred, whether the answer is clear, how far it goes on, and how hard it is to find.

All judgement is on expected scores (0..1) of the player to move, from searches to a number of nodes; nothing depends on a clock, so the same
game, rules and engine give the same puzzles. The search is passed in: an engine in the command, a table in tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import chess

from chessrl.engine_labels import ROUNDING, MoveScore, expected_score
from chessrl.errors import UserError
from chessrl.puzzle_themes import themes_of_line
from chessrl.puzzles import Puzzle, accepted_moves, rating_bin

LADDER_RATINGS = (400, 2800)  # of the smallest and the largest budget


class ScoredMove(NamedTuple):
    """A move and its score for the player who makes it."""

    move: chess.Move
    score: MoveScore


class Unscorable(Exception):
    """The engine gave a position no score, twice: it failed, or the nodes do not even last for the first iteration."""


# (position, nodes, lines) -> the best moves, best first: as many as lines, or as there are legal moves. At least one move must be legal.
# Raises Unscorable.
Search = Callable[[chess.Board, int, int], Awaitable[list[ScoredMove]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MiningRules:
    """What makes a puzzle. Every value changes results."""

    scan_nodes: int = 2000  # of the first search, which every position gets
    verify_nodes: int = 65536  # of the searches that decide
    scan_drop: float = 0.2  # fall of the mover's expected score that makes a move suspect in the first search
    drop: float = 0.3  # ... and that makes it an error in the second
    margin: float = 0.3  # by which the best answer's expected score must exceed the second best's
    max_line_moves: int = 12  # of the whole line, the error included
    keep_recaptures: bool = False  # keep lines that only take back
    ladder_first: int = 16  # nodes of the smallest budget that measures difficulty; each step doubles it
    ladder_last: int = 65536  # nodes of the largest

    def __post_init__(self) -> None:
        for key in ("scan_nodes", "verify_nodes", "ladder_first"):
            if getattr(self, key) < 1:
                raise UserError(f"{key}={getattr(self, key)}: expected at least 1 node")
        for key in ("scan_drop", "drop", "margin"):
            if not 0 < getattr(self, key) <= 1:
                raise UserError(f"{key}={getattr(self, key)}: expected a difference of expected scores, above 0 and at most 1")
        if self.max_line_moves < 2:
            raise UserError(f"max_line_moves={self.max_line_moves}: expected at least 2, the error and its answer")
        if self.ladder_last not in (self.ladder_first << place for place in range(32)):
            raise UserError(f"ladder_last={self.ladder_last}: expected ladder_first={self.ladder_first} doubled some number of times")

    def ladder(self) -> list[int]:
        """Node budgets, smallest first."""
        return [self.ladder_first << place for place in range((self.ladder_last // self.ladder_first).bit_length())]

    def rating_of(self, nodes: int) -> int:
        """What a budget stands for on the scale of puzzle ratings: the ladder spread evenly over LADDER_RATINGS.

        By convention, not by measurement: it gives the bins. With the 13 default budgets a step is 200, B0 is 16 to 64 nodes, then every bin two
        budgets, and B5 is 32,768 and 65,536.
        """
        ladder = self.ladder()
        lowest, highest = LADDER_RATINGS
        return lowest + (highest - lowest) * ladder.index(nodes) // max(1, len(ladder) - 1)


@dataclass(frozen=True, slots=True)
class MinedGame:
    """A game to search, with an id that its puzzles carry."""

    id: str
    start_fen: str | None  # None: the standard start
    moves: tuple[chess.Move, ...]


@dataclass(slots=True)
class GameResult:
    """Puzzles of a game and what became of every suspect move: ``sum(outcomes.values())`` of them, ``puzzle`` among the outcomes."""

    puzzles: list[Puzzle] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    positions: int = 0  # searched in the first stage


async def mine_game(game: MinedGame, rules: MiningRules, search: Search) -> GameResult:
    """Search a game in two stages, every position cheaply and then what is suspect with care. Raises Unscorable."""
    boards = [chess.Board(game.start_fen or chess.STARTING_FEN)]
    for move in game.moves:
        board = boards[-1].copy(stack=False)
        board.push(move)
        boards.append(board)
    result = GameResult()
    scores: list[MoveScore | None] = []
    for board in boards:
        scores.append((await search(board, rules.scan_nodes, 1))[0].score if any(board.generate_legal_moves()) else None)
    result.positions = sum(score is not None for score in scores)
    for ply in range(1, len(boards)):
        before, after = scores[ply - 1], scores[ply]
        if before is None or after is None or not _is_error(before, after, rules.scan_drop):
            continue
        outcome = await _judge(boards[ply - 1], game, ply, rules, search)
        if isinstance(outcome, Puzzle):
            result.puzzles.append(outcome)
            outcome = "puzzle"
        result.outcomes[outcome] += 1
    return result


def _is_error(before: MoveScore, after: MoveScore, drop: float) -> bool:
    """Whether a move cost its player ``drop`` of expected score, or let in a mate where none was forced.

    ``before`` is the player's best score in the position before the move, ``after`` the opponent's best in the one after it.
    """
    lets_in_mate = (after.mate or 0) > 0 and not (before.mate is not None and before.mate < 0)
    return lets_in_mate or expected_score(before) - (1 - expected_score(after)) >= drop - ROUNDING


async def _judge(before: chess.Board, game: MinedGame, ply: int, rules: MiningRules, search: Search) -> Puzzle | str:
    """The puzzle that the move to ``ply`` made, or the reason why there is none."""
    error = game.moves[ply - 1]
    asked = before.copy(stack=False)
    asked.push(error)
    if asked.legal_moves.count() < 2:
        return "only_one_legal_move"
    answers = await search(asked, rules.verify_nodes, 2)
    if not _is_clear(answers, rules.margin):
        return "no_clearly_best_answer"
    best = answers[0]
    if not _is_error((await search(before, rules.verify_nodes, 1))[0].score, best.score, rules.drop):
        return "no_error_on_a_second_look"
    line, last_score = await _follow(asked, answers, rules, search)
    takes_back = before.is_capture(error) and best.move.to_square == error.to_square
    if takes_back and len(line) == 1 and not rules.keep_recaptures:
        return "only_a_recapture"
    nodes = await _difficulty(asked, line, rules, search)
    if nodes is None:
        return "not_found_with_most_nodes"
    fen = before.fen()
    moves = tuple(move.uci() for move in (error, *line))
    return Puzzle(
        id=f"mined-{game.id}-{ply}",
        fen=fen,
        moves=moves,
        lead=1,
        difficulty=nodes,
        bin=rating_bin(rules.rating_of(nodes)),
        themes=themes_of_line(fen, moves, last_score),
        history=tuple(move.uci() for move in game.moves[: ply - 1]) if game.start_fen is None else (),
        game=game.id,
    )


def _is_clear(answers: Sequence[ScoredMove], margin: float) -> bool:
    """Whether the best answer is the only good one: the only move, a mate at once (any counts as solved), the only mate, or ahead by ``margin``."""
    if len(answers) == 1:
        return True
    best, second = answers[0].score, answers[1].score
    if best.mate is not None and best.mate > 0:
        return best.mate == 1 or (second.mate or 0) <= 0
    return expected_score(best) - expected_score(second) >= margin - ROUNDING


async def _follow(
    asked: chess.Board, answers: list[ScoredMove], rules: MiningRules, search: Search
) -> tuple[list[chess.Move], MoveScore]:
    """Solver move, reply, solver move...: while the solver's best is clear, the position new and the line short enough; ends with the solver.

    Also the score of the last solver move.
    """
    board = asked.copy(stack=False)
    line = [answers[0].move]
    last_choice = 1  # length of the line up to the last solver move with an alternative: what is forced after it asks for nothing
    last_score = answers[0].score
    seen = {board.epd()}
    while True:
        board.push(line[-1])
        if len(line) + 3 > rules.max_line_moves or not any(board.generate_legal_moves()) or board.is_insufficient_material():
            break
        reply = (await search(board, rules.verify_nodes, 1))[0].move
        board.push(reply)
        if board.epd() in seen or not any(board.generate_legal_moves()):
            break
        seen.add(board.epd())
        answers = await search(board, rules.verify_nodes, 2)
        if not _is_clear(answers, rules.margin):
            break
        line += [reply, answers[0].move]
        if len(answers) > 1:
            last_choice, last_score = len(line), answers[0].score
    return line if board.is_checkmate() and board.turn != asked.turn else line[:last_choice], last_score


async def _difficulty(asked: chess.Board, line: Sequence[chess.Move], rules: MiningRules, search: Search) -> int | None:
    """The smallest budget of the ladder from which on every budget finds every solver move of the line; None if the largest does not.

    The first move alone would say less: on Lichess puzzles the whole line's budget follows the rating more closely (docs/data.md).
    """
    board = asked.copy(stack=False)
    smallest = rules.ladder_first
    for place, move in enumerate(line):
        if place % 2 == 0 and board.legal_moves.count() > 1:
            kept = await _kept_from(board, move, smallest, rules, search)
            if kept is None:
                return None
            smallest = kept
        board.push(move)
    return smallest


async def _kept_from(board: chess.Board, answer: chess.Move, least: int, rules: MiningRules, search: Search) -> int | None:
    """The smallest budget, ``least`` or above, from which on every budget finds the answer."""
    accepted = accepted_moves(board, answer)
    smallest = None
    for nodes in reversed([nodes for nodes in rules.ladder() if nodes >= least]):
        try:
            found = (await search(board, nodes, 1))[0].move
        except Unscorable:  # too few nodes for an answer
            break
        if found not in accepted:
            break
        smallest = nodes
    return smallest
