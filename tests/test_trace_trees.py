"""Traces as text: layouts, budgets, and that reading a trace gives back the tree that it was written from."""

from __future__ import annotations

from collections import Counter

import chess
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chessrl import notation
from chessrl.config import TraceConfig
from chessrl.engine_labels import MoveLabels, MoveScore, position_key
from chessrl.puzzles import Puzzle
from chessrl.trace_ranks import move_ranks
from chessrl.traces import (
    LAYOUTS,
    Line,
    TraceReader,
    Tree,
    WrittenLine,
    leaf_lines,
    lines_within,
    merge,
    next_move_length,
    node_lines,
    reordered,
    trace_tokens,
    written_lines,
)
from sft import arms
from sft.arms import best_lines, exchanged, line_answer, random_order, trace_texts
from tests.test_sampler import PUZZLES

TWO_ROOKS = PUZZLES[1]
# Castling both ways, en passant, promotions with and without capture, checks: every spelling of a move.
RICH = chess.Board("r3k2r/pPpp1ppp/8/3Pp3/8/8/PPP2PPP/R3K2R w KQkq e6 0 1")


def line(*ucis: str) -> Line:
    return tuple(map(chess.Move.from_uci, ucis))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, 0]))


def played(board: chess.Board, choices: list[int]) -> Line:
    board = board.copy(stack=False)
    for choice in choices:
        moves = list(board.legal_moves)
        if not moves:
            break
        board.push(moves[choice % len(moves)])
    return tuple(board.move_stack)


def text_of(board: chess.Board, lines: list[Line]) -> str:
    return notation.to_text(trace_tokens(board, lines))


# Few different choices, so that lines share prefixes and repeat; no line at all is among the examples.
WALKS = st.lists(st.lists(st.sampled_from([0, 1, 2, 11, 17, 23]), min_size=1, max_size=5), max_size=12)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(walks=WALKS, seed=st.integers(0, 3), start=st.sampled_from([RICH, *(puzzle.board() for puzzle in PUZZLES)]))
def test_reading_a_trace_gives_back_its_tree(layout, walks, seed, start):
    tree = merge(played(start, choices) for choices in walks)
    tokens = trace_tokens(start, written_lines(tree, layout, rng(seed)))
    trace = TraceReader(start).read(tokens)
    assert trace.tree() == tree
    assert trace.closed and trace.length == len(tokens) - 1
    assert all(not written.fault for written in trace.lines)
    if layout != "shuffled":  # equal dicts may differ in order; leaf lines tell the order of all children
        assert leaf_lines(trace.tree()) == leaf_lines(tree)


@given(walks=WALKS)
def test_a_reader_remembers_without_changing_what_it_reads(walks):
    reader = TraceReader(RICH)
    for choices in walks:
        tokens = trace_tokens(RICH, [played(RICH, choices), played(RICH, choices[::-1])])
        assert reader.read(tokens) == TraceReader(RICH).read(tokens)


def test_breadth_first_text_by_hand():
    tree = merge([line("a2a7", "h8g8", "b1b8"), line("b1b8"), line("a2a7", "h8g8", "a7a8")])
    lines = written_lines(tree, "bfs", rng())
    assert lines == node_lines(tree) == [
        line("a2a7"), line("b1b8"),
        line("a2a7", "h8g8"),
        line("a2a7", "h8g8", "b1b8"), line("a2a7", "h8g8", "a7a8"),
    ]  # fmt: skip
    assert text_of(TWO_ROOKS.board(), lines[:3]) == "R a2 a7 <sep> R b1 b8 + <sep> R a2 a7 K h8 g8 </T>"


def test_shuffled_lines_are_the_same_lines_in_every_order():
    tree = merge([line("a2a7", "h8g8"), line("b1b8"), line("a2a3")])
    orders = {tuple(written_lines(tree, "shuffled", rng(seed))) for seed in range(100)}  # one of 6 is missed with probability 1e-7
    assert len(orders) == 6 and all(sorted(map(str, lines)) == sorted(map(str, leaf_lines(tree))) for lines in orders)


@pytest.mark.parametrize(
    ("text", "lines", "closed"),
    [
        ("R a2 a7 K h8 g8 <sep> R b1 b8 + </T> R a2 a7", [(("a2a7", "h8g8"), ""), (("b1b8",), "")], True),  # the answer is no trace
        ("</T>", [], True),
        ("", [], False),
        ("<sep> R a2 a7 <sep> </T>", [((), "empty"), (("a2a7",), ""), ((), "empty")], True),
        ("R a2 b7 K h8 g8 <sep> R b1 b8 # </T>", [((), "illegal"), (("b1b8",), "")], True),  # a wrong suffix is not judged
        ("R a2 a7 R b1 b8 </T>", [(("a2a7",), "illegal")], True),  # it is the other side's turn
        ("R a2 a7 <bos> K h8 g8 </T>", [(("a2a7",), "malformed")], True),
        ("R a2 a7 K h8 </T>", [(("a2a7",), "malformed")], True),  # closed in the middle of a move
        ("R a2 a7 K h8", [(("a2a7",), "cut")], False),
        ("R a2 a7 <sep>", [(("a2a7",), ""), ((), "cut")], False),
        ("R a2 b7 <sep> R a2 a7", [((), "illegal"), (("a2a7",), "")], False),  # only the last line can have been cut
        ("R a2 b7 K h8 g8 K g1 g2", [((), "illegal")], False),  # nor can a fault so far from the end
        ("R a2 a7 K h8 g8 R b1 b8 # K g8 h8 </T>", [(("a2a7", "h8g8", "b1b8"), "illegal")], True),  # after mate
    ],
)
def test_what_a_policy_wrote_is_read_up_to_each_lines_first_fault(text, lines, closed):
    trace = TraceReader(TWO_ROOKS.board()).read(notation.from_text(text))
    assert trace.lines == tuple(WrittenLine(line(*ucis), fault) for ucis, fault in lines)
    assert trace.closed == closed and trace.length == len(text.split(" </T>")[0].split()) - (text == "</T>")


@given(tokens=st.lists(st.integers(0, 100), max_size=40))
def test_no_text_breaks_the_reader(tokens):
    trace = TraceReader(RICH).read(tokens)
    for written in trace.lines:
        board = RICH.copy()
        for move in written.moves:
            assert board.is_legal(move)
            board.push(move)


# ---- budget ---------------------------------------------------------------------------------------------------------------------------


@given(walks=WALKS, budget=st.integers(-3, 80), kept_choices=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=2))
def test_a_budget_drops_whole_lines_from_the_end_and_the_answers_last(walks, budget, kept_choices):
    lines, keep = leaf_lines(merge(played(RICH, choices) for choices in walks)), played(RICH, kept_choices)
    kept = lines_within(RICH, lines, budget, keep)
    assert len(trace_tokens(RICH, kept)) <= max(1, budget)
    assert kept == [each for each in lines if each in kept], "the order changed, or a line was cut"
    other = [each for each in lines if each[: len(keep)] != keep]
    answers = [each for each in lines if each not in other]
    kept_other = [each for each in kept if each in other]
    assert kept_other == other[: len(kept_other)]
    if kept_other:
        assert [each for each in kept if each in answers] == answers, "the answer's line went before another"
    if len(kept) < len(lines):  # not more than needed: the last one dropped would not have fitted
        back = other[len(kept_other)] if other[len(kept_other) :] and len(kept) - len(kept_other) == len(answers) else None
        back = back or next(each for each in answers if each not in kept)
        assert len(trace_tokens(RICH, [*kept, back])) > budget


# ---- order ----------------------------------------------------------------------------------------------------------------------------


@given(walks=WALKS, seed=st.integers(0, 5))
def test_an_order_moves_children_and_changes_no_line(walks, seed):
    tree = merge(played(RICH, choices) for choices in walks)
    moved = reordered(RICH.copy(), tree, random_order(rng(seed)))
    assert moved == tree and sorted(map(str, leaf_lines(moved))) == sorted(map(str, leaf_lines(tree)))


def score(value: str) -> MoveScore:
    return MoveScore(mate=int(value[1:])) if value[0] == "#" else MoveScore(cp=int(value))


def test_ranks_put_near_mates_first_near_losses_last_and_let_equal_moves_share():
    scores = {"a": "35", "b": "#3", "c": "#1", "d": "#-1", "e": "#-7", "f": "35", "g": "-900", "h": "#3"}
    labels = MoveLabels("", 0, {move: score(value) for move, value in scores.items()})
    assert move_ranks(labels) == {"c": 1, "b": 2, "h": 2, "a": 4, "f": 4, "g": 6, "e": 7, "d": 8}


def labelled(values: dict[str, dict[str, str]]) -> arms.Label:
    """Labels by hand: position after the moves of a key -> scores."""

    def label(boards):
        table = {}
        for moves, scores in values.items():
            board = TWO_ROOKS.board()
            for uci in moves.split():
                board.push_uci(uci)
            rest = {move.uci(): MoveScore(cp=-5000) for move in board.legal_moves}
            table[position_key(board)] = MoveLabels("", 0, rest | {move: score(value) for move, value in scores.items()})
        return {position_key(board): table.get(position_key(board)) for board in boards}

    return label


HAND_SCORES = {"": {"a2a7": "#2", "b1b8": "100", "b1b7": "#5"}, "b1b7": {"h8g8": "#-4"}, "a2a7": {"h8g8": "#-1"}, "b1b7 h8g8": {"a2a8": "#1"}}


def test_engine_order_at_every_node_by_hand():
    tree = merge([line("b1b8"), line("b1b7", "h8g8", "g1g2"), line("b1b7", "h8g8", "a2a8"), line("a2a7")])
    config = TraceConfig(order="engine")
    (text,) = trace_texts([TWO_ROOKS], [tree], config, 0, labelled(HAND_SCORES), None, Counter())
    expected = [line("a2a7"), line("b1b7", "h8g8", "a2a8"), line("b1b7", "h8g8", "g1g2"), line("b1b8")]
    assert text == trace_tokens(TWO_ROOKS.board(), expected)


def test_the_best_line_is_the_engines_child_at_every_node_and_ends_with_the_solvers_move():
    counts: Counter[str] = Counter()
    trees = [
        merge([line("b1b8"), line("b1b7", "h8g8", "g1g2"), line("b1b7", "h8g8", "a2a8")]),
        merge([line("b1b8"), line("a2a7", "h8g8")]),  # the opponent's last move answers nothing
        merge([]),
    ]
    found = best_lines([TWO_ROOKS] * 3, trees, labelled(HAND_SCORES), counts)
    assert found == [line("b1b7", "h8g8", "a2a8"), line("a2a7"), line_answer(TWO_ROOKS)]
    assert counts["answers of puzzles without a sampled line"] == 1 and counts["answers off the puzzle's line"] == 1
    assert counts["best-line choices without a score"] == 0


def test_a_position_without_labels_keeps_the_order_and_is_counted():
    counts: Counter[str] = Counter()
    tree = merge([line("b1b8"), line("a2a7")])
    assert best_lines([TWO_ROOKS], [tree], labelled({}), counts) == [line("b1b8")]
    assert counts["best-line choices without a score"] == 1
    (text,) = trace_texts([TWO_ROOKS], [tree], TraceConfig(order="engine"), 0, labelled({}), None, counts)
    assert text == trace_tokens(TWO_ROOKS.board(), [line("b1b8"), line("a2a7")])


# ---- whose trace ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_every_puzzle_gets_another_ones_trace_and_every_trace_is_used_once(count):
    sources = exchanged(count, 5)
    assert sorted(sources) == list(range(count)) and all(place != source for place, source in enumerate(sources))
    assert exchanged(count, 5) == sources


def trees_of(puzzles: list[Puzzle]) -> list[Tree]:
    return [merge([played(puzzle.board(), choices) for choices in ([0, 1], [1], [0, 2])]) for puzzle in puzzles]


def written(config: TraceConfig, room: list[int] | None = None) -> tuple[list[list[int]], Counter[str]]:
    counts: Counter[str] = Counter()
    return trace_texts(PUZZLES, trees_of(PUZZLES), config, 3, labelled({}), room, counts), counts


def test_the_arms_write_the_same_lines_in_their_own_way():
    plain, _ = written(TraceConfig())
    shuffled, _ = written(TraceConfig(serialise="shuffled"))
    other, _ = written(TraceConfig(content="other_puzzle"))
    assert [len(text) for text in plain] == [len(text) for text in shuffled] and plain != shuffled
    assert sorted(other) == sorted(plain) and all(one != two for one, two in zip(plain, other))
    for puzzle, one, two in zip(PUZZLES, plain, shuffled):
        assert TraceReader(puzzle.board()).read(one).tree() == TraceReader(puzzle.board()).read(two).tree()


def test_lines_over_the_budget_are_counted():
    texts, counts = written(TraceConfig(budget=9))
    assert max(map(len, texts)) <= 9 and counts["lines over the budget"] > 0
    assert counts["written lines"] + counts["lines over the budget"] == sum(len(leaf_lines(tree)) for tree in trees_of(PUZZLES))
    assert counts["written lines"] == sum(len(TraceReader(p.board()).read(text).lines) for p, text in zip(PUZZLES, texts))
    by_room, _ = written(TraceConfig(), room=[9] * len(PUZZLES))
    assert by_room == texts


def test_next_move_length_is_the_longest_reading():
    assert [next_move_length(notation.from_text(text)) for text in ("P a7 a8 = Q + K", "O-O # K", "K", "")] == [6, 2, 0, 0]
