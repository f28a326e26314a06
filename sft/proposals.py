"""Who proposes the lines of a trace: a model's samples, the engine's variations, or random legal play."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import chess
import torch

from chessrl.config import TraceConfig
from chessrl.continuation import continue_text
from chessrl.engine import Engine
from chessrl.model import Transformer
from chessrl.notation import LONGEST_MOVE, move_tokens
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.randomness import combine, stream_key, string_key
from chessrl.traces import Line, read_plies
from sft.traces import CONTINUATIONS_STREAM, FIRST_MOVES_STREAM, Continuation, TraceReport, generator

TOKENS_AT_ONCE = 2**19  # prompts and continuations sampled together: about 25 GB of keys and values at 50M parameters


def board_after(puzzle: Puzzle, move: chess.Move) -> chess.Board:
    board = puzzle.board()
    board.push(move)
    return board


# ---- a model ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelProposal:
    """Samples of a pretrained model. Illegal first moves are dropped, an illegal ply ends its line; both are counted."""

    model: Transformer
    config: TraceConfig
    state: str
    seed: int

    def first_moves(self, puzzles: Sequence[Puzzle], report: TraceReport) -> list[list[chess.Move]]:
        prompts = [prompt_tokens(puzzle, self.state, think=False) for puzzle in puzzles]
        device, count = self.model.device, self.config.candidates
        rows = torch.arange(len(puzzles), device=device).repeat_interleave(count)
        keys = combine(self._puzzle_keys(puzzles, 0)[:, None], torch.arange(count, device=device)[None]).flatten()
        texts = self._sample(prompts, rows, keys, torch.ones_like(rows), report).view(len(puzzles), count, -1)
        moves = []
        for puzzle, written in zip(puzzles, texts.tolist()):
            read = [read_plies(puzzle.board(), text, 1)[0] for text in written]
            report.counts["first moves"] += len(read)
            report.counts["illegal first moves"] += sum(not line for line in read)
            moves.append(list(dict.fromkeys(line[0] for line in read if line)))
        return moves

    def continuations(self, puzzles: Sequence[Puzzle], asked: Sequence[Continuation], report: TraceReport) -> list[Line]:
        """All continuations of the batch together, as far as TOKENS_AT_ONCE allows; those that share a first move share its prefill."""
        wanted = [one for one in asked if one.plies > 0]
        if not wanted:
            return [() for _ in asked]
        beginnings, keys = self._beginnings(puzzles, wanted), self._continuation_keys(puzzles, wanted)
        lines: list[Line] = [()] * len(wanted)
        for chunk in _chunks([one.plies for one in wanted], max(map(len, beginnings.values()))):
            distinct = list(dict.fromkeys((wanted[at].place, wanted[at].first) for at in chunk))
            row_of = {beginning: row for row, beginning in enumerate(distinct)}
            rows = torch.tensor([row_of[wanted[at].place, wanted[at].first] for at in chunk], device=self.model.device)
            plies = torch.tensor([wanted[at].plies for at in chunk], device=self.model.device)
            texts = self._sample([beginnings[beginning] for beginning in distinct], rows, keys[chunk], plies, report)
            for at, text in zip(chunk, texts.tolist()):
                one = wanted[at]
                lines[at], illegal = read_plies(board_after(puzzles[one.place], one.first), text, one.plies)
                report.counts["illegal continuations"] += illegal
        report.counts["continuations"] += len(wanted)
        sampled = iter(lines)
        return [next(sampled) if one.plies > 0 else () for one in asked]

    def _beginnings(self, puzzles: Sequence[Puzzle], wanted: Sequence[Continuation]) -> dict[tuple[int, chess.Move], list[int]]:
        """Prompt and first move as tokens, for each puzzle and first move."""
        prompts = {place: prompt_tokens(puzzles[place], self.state, think=False) for place in {one.place for one in wanted}}
        distinct = dict.fromkeys((one.place, one.first) for one in wanted)
        return {(place, first): prompts[place] + move_tokens(puzzles[place].board(), first) for place, first in distinct}

    def _continuation_keys(self, puzzles: Sequence[Puzzle], wanted: Sequence[Continuation]) -> torch.Tensor:
        """(wanted,) random keys, by the number of the continuation among those of its puzzle."""
        count = Counter[int]()
        numbers = []
        for one in wanted:
            numbers.append(count[one.place])
            count[one.place] += 1
        places = torch.tensor([one.place for one in wanted], device=self.model.device)
        return combine(self._puzzle_keys(puzzles, 1)[places], torch.tensor(numbers, device=self.model.device))

    def _puzzle_keys(self, puzzles: Sequence[Puzzle], part: int) -> torch.Tensor:
        """(puzzles,) random keys, a function of the puzzle's id, the seed and the part of the work."""
        ids = torch.tensor([string_key(puzzle.id) for puzzle in puzzles], device=self.model.device)
        return combine(stream_key(self.seed, "traces", part, self.model.device), ids)

    def _sample(
        self, prompts: list[list[int]], rows: torch.Tensor, keys: torch.Tensor, plies: torch.Tensor, report: TraceReport
    ) -> torch.Tensor:
        texts, written = continue_text(self.model, prompts, rows, keys, plies, self.config.temperature)
        report.sampled_tokens += int(written.sum())
        report.prompt_tokens += sum(map(len, prompts))
        return texts.cpu()


def _chunks(plies: Sequence[int], longest_beginning: int) -> Iterator[list[int]]:
    """Places in ``plies`` to sample together, those of like length together so that few wait for the longest."""
    order = sorted(range(len(plies)), key=lambda at: plies[at])
    while order:
        size = max(1, TOKENS_AT_ONCE // (longest_beginning + LONGEST_MOVE * plies[order[-1]]))
        yield order[-size:]
        order = order[:-size]


# ---- random play ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UniformProposal:
    """Legal moves, each as likely as the other."""

    config: TraceConfig
    seed: int

    def first_moves(self, puzzles: Sequence[Puzzle], report: TraceReport) -> list[list[chess.Move]]:
        moves = []
        for puzzle in puzzles:
            legal = sorted(puzzle.board().legal_moves, key=chess.Move.uci)
            drawn = generator(puzzle, self.seed, FIRST_MOVES_STREAM).integers(len(legal), size=self.config.candidates)
            report.counts["first moves"] += len(drawn)
            moves.append([legal[place] for place in dict.fromkeys(drawn.tolist())])
        return moves

    def continuations(self, puzzles: Sequence[Puzzle], asked: Sequence[Continuation], report: TraceReport) -> list[Line]:
        generators = [generator(puzzle, self.seed, CONTINUATIONS_STREAM) for puzzle in puzzles]
        lines = []
        for one in asked:
            board = board_after(puzzles[one.place], one.first)
            board.clear_stack()
            while len(board.move_stack) < one.plies and (legal := sorted(board.legal_moves, key=chess.Move.uci)):
                board.push(legal[generators[one.place].integers(len(legal))])
            report.counts["continuations"] += one.plies > 0
            lines.append(tuple(board.move_stack))
        return lines


# ---- the engine -------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineProposal:
    """The engine's best first moves, and after each one its best variations: a multi-PV search of ``sft.trace.engine_nodes`` nodes for either.

    A variation may be shorter than asked for, and there may be fewer than asked for; a position that could not be searched has none. All are
    counted.
    """

    engine: Engine
    config: TraceConfig

    def first_moves(self, puzzles: Sequence[Puzzle], report: TraceReport) -> list[list[chess.Move]]:
        found = self._search([puzzle.board() for puzzle in puzzles], [self.config.candidates] * len(puzzles), report)
        report.counts["first moves"] += sum(map(len, found))
        return [[line[0] for line in lines] for lines in found]

    def continuations(self, puzzles: Sequence[Puzzle], asked: Sequence[Continuation], report: TraceReport) -> list[Line]:
        wanted: Counter[tuple[int, chess.Move]] = Counter((one.place, one.first) for one in asked if one.plies > 0)
        boards = [board_after(puzzles[place], first) for place, first in wanted]
        left = {beginning: iter(lines) for beginning, lines in zip(wanted, self._search(boards, list(wanted.values()), report))}
        result: list[Line] = []
        for one in asked:
            line = next(left[one.place, one.first], ())[: one.plies] if one.plies > 0 else ()
            report.counts["continuations"] += one.plies > 0
            report.counts["continuations that the engine had none for"] += one.plies > 0 and not line
            report.counts["continuations shorter than asked for"] += 0 < len(line) < one.plies
            result.append(line)
        return result

    def _search(self, boards: Sequence[chess.Board], lines: Sequence[int], report: TraceReport) -> list[list[Line]]:
        found = self.engine.variations(boards, lines, self.config.engine_nodes)
        report.counts["engine searches"] += len(boards)
        report.counts["engine searches that failed"] += sum(variations is None for variations in found)
        return [
            [tuple(map(chess.Move.from_uci, moves)) for moves in variations] if variations is not None else [] for variations in found
        ]
