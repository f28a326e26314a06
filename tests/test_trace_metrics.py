"""Measures of traces: worked by hand, and against plain enumeration; and the tables that an evaluation writes of them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import chess
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from scipy.stats import kendalltau

from chessrl import notation, trace_metrics
from chessrl.engine import find_stockfish
from chessrl.engine_labels import MoveLabels, MoveScore
from chessrl.environment import build_environment
from chessrl.errors import UserError
from chessrl.evaluate import evaluate, sample_policy
from chessrl.sampler import SamplingSettings
from chessrl.trace_metrics import MEASURES, attempts_by_depth, coverage, measures, normalised_rank, selection_gap, summary_table, tree_shape
from chessrl.trace_report import chosen_move, trace_tables
from chessrl.traces import Line, TraceReader, WrittenTrace, leaf_lines, trace_tokens
from tests import tiny
from tests.test_sampler import PUZZLES, trained_model
from tests.test_trace_trees import RICH, WALKS, played

TWO_ROOKS, EN_PASSANT = PUZZLES[1], PUZZLES[4]
MATE = "R a2 a7 K h8 g8 R b1 b8 #"
DEPTH_FIRST = f"{MATE} <sep> R b1 b8 + <sep> R a2 a7 K h8 g8 R a7 a8 + </T>"  # the last line goes back to the first one's branch
BREADTH_FIRST = f"R a2 a7 <sep> R b1 b8 + <sep> R a2 a7 K h8 g8 <sep> {MATE} <sep> R a2 a7 K h8 g8 R a7 a8 + </T>"


def line(*ucis: str) -> Line:
    return tuple(map(chess.Move.from_uci, ucis))


def trace(text: str, board: chess.Board | None = None) -> WrittenTrace:
    return TraceReader(board or TWO_ROOKS.board()).read(notation.from_text(text))


# ---- by hand --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Nodes as first visited: Ra7, Kg8, Rb8#, Rb8+, Ra8+; depth first: Ra7, Kg8, Rb8#, Ra8+, Rb8+. One of ten pairs is turned round.
        (DEPTH_FIRST, {"candidates": 2, "nodes": 5, "depth": 3, "leaves": 3, "width_to_depth": 1.0, "effective_branching": 5 ** (1 / 3),
                       "revisit_rate": 2 / 7, "dfs_consistency": 0.8, "length": 26}),
        # As first visited: Ra7, Rb8+, Kg8, Rb8#, Ra8+: Rb8+ comes before three nodes that it should follow. Ten moves for five nodes.
        (BREADTH_FIRST, {"candidates": 2, "nodes": 5, "depth": 3, "leaves": 3, "width_to_depth": 1.0, "effective_branching": 5 ** (1 / 3),
                         "revisit_rate": 0.5, "dfs_consistency": 0.4, "length": 37}),
        ("R b1 b8 + <sep> R b1 b8 + <sep> R b1 b8 + </T>", {"candidates": 1, "nodes": 1, "depth": 1, "leaves": 1, "width_to_depth": 1.0,
         "effective_branching": 1.0, "revisit_rate": 2 / 3, "dfs_consistency": None, "length": 14}),
        ("</T>", {"candidates": 0, "nodes": 0, "depth": 0, "leaves": 0, "width_to_depth": None, "effective_branching": None,
                  "revisit_rate": None, "dfs_consistency": None, "length": 0}),
        # An illegal move and what follows it belong to no tree.
        ("R a2 a7 R b1 b8 # K h8 g8 <sep> R a2 b7 </T>", {"candidates": 1, "nodes": 1, "depth": 1, "leaves": 1, "revisit_rate": 0.0,
         "illegal": 2, "malformed": 0, "length": 14}),
    ],
)  # fmt: skip
def test_shapes_by_hand(text, expected):
    found = measures(trace(text), (), None, None)
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value) if value is not None else None), name


def test_coverage_by_hand():
    solution = line("e5d6", "h5g5", "d6d7")
    tree = trace("P e5 x d6 K h5 g4 P d6 d7 <sep> K a5 b6 K h5 g5 K b6 c7 </T>", EN_PASSANT.board()).tree()
    assert [coverage(tree, solution, plies) for plies in (1, 2, 3, 4)] == [True, True, True, None]  # another reply, the same solver moves
    shallow = trace("P e5 x d6 K h5 g5 <sep> K a5 b6 K h5 g5 P e5 x d6 </T>", EN_PASSANT.board()).tree()
    assert [coverage(shallow, solution, plies) for plies in (1, 2, 3)] == [True, True, False]
    other = trace("K a5 b6 K h5 g5 </T>", EN_PASSANT.board()).tree()
    assert [coverage(other, solution, plies) for plies in (1, 2, 3, 4)] == [False, False, False, None]
    assert coverage({}, solution, 1) is False


def test_illegal_moves_by_depth_by_hand():
    """Depth 1: Ra7, Rb7 (illegal), Ra7 and "K g1 <bos>" (no move) were tried; depth 2: Kg8 and White's Rb8 (illegal)."""
    traces = [trace("R a2 a7 K h8 g8 <sep> R a2 b7 </T>"), trace("R a2 a7 R b1 b8 <sep> K g1 <bos> <sep> <sep> R a2")]
    tried, illegal = attempts_by_depth(traces)
    assert tried.tolist() == [4, 2] and illegal.tolist() == [2, 1]
    assert [values.tolist() for values in attempts_by_depth([trace("</T>")])] == [[], []]
    table = trace_metrics.illegal_table(traces, ["B1", "B2"]).set_index(["bin", "depth"])
    assert table.loc[("all", 1), "rate"] == 0.5 and table.loc[("B1", 1), "rate"] == 0.5 and table.loc[("B2", 2), "rate"] == 1.0


def test_ranks_by_hand():
    """Five moves, the second and third alike: normalised ranks 0, 1/4, 1/4, 3/4, 1."""
    ranks = {"a2a7": 1, "b1b8": 2, "b1b7": 2, "a2a3": 4, "g1g2": 5}
    assert [normalised_rank(ranks, move) for move in line(*ranks)] == [0.0, 0.25, 0.25, 0.75, 1.0]
    assert normalised_rank(ranks, None) is None and normalised_rank({"a2a7": 1}, *line("a2a7")) is None
    tree = trace("R a2 a3 <sep> R b1 b8 + <sep> K g1 g2 </T>").tree()
    assert trace_metrics.best_seen_rank(ranks, tree) == 0.25
    assert [selection_gap(ranks, tree, move) for move in line("a2a3", "b1b8", "a2a7")] == [0.5, 0.0, -0.25]
    assert selection_gap(ranks, tree, None) is None and selection_gap(ranks, {}, *line("a2a7")) is None
    assert trace_metrics.best_seen_rank(ranks, {}) is None


def test_means_go_over_samples_then_puzzles_and_leave_undefined_values_out():
    rows = [("a", "B1", 1.0), ("a", "B1", 3.0), ("a", "B1", None), ("b", "B1", 10.0), ("c", "B2", None)]
    table = pd.DataFrame([{"puzzle": p, "bin": b} | dict.fromkeys(MEASURES, value) for p, b, value in rows])
    found = summary_table(table).set_index(["bin", "metric"])
    assert found.loc[("all", "nodes")].tolist() == [6.0, 2, 3]  # (mean of 1 and 3, and 10) / 2, not 14 / 3
    assert found.loc[("B1", "nodes")].tolist() == [6.0, 2, 3]
    assert math.isnan(found.loc[("B2", "nodes"), "value"]) and found.loc[("B2", "nodes"), "n_puzzles"] == 0


@pytest.mark.parametrize(("text", "move"), [("R a2 a7 #", "a2a7"), ("Q a2 x a7", "a2a7"), ("R a2 b7", None), ("R a2", None), ("", None)])
def test_the_chosen_move_is_read_whatever_its_spelling(text, move):
    assert chosen_move(TWO_ROOKS.board(), text) == (chess.Move.from_uci(move) if move else None)


# ---- against enumeration ----------------------------------------------------------------------------------------------------------------


@given(walks=WALKS)
def test_shapes_equal_plain_enumeration_of_prefixes(walks):
    lines = [played(RICH, choices) for choices in walks]
    written = TraceReader(RICH).read(trace_tokens(RICH, lines))
    prefixes = [each[:length] for each in lines for length in range(1, len(each) + 1)]
    visited = list(dict.fromkeys(prefixes))
    found = measures(written, (), None, None)
    assert found["nodes"] == len(visited) and found["candidates"] == sum(len(prefix) == 1 for prefix in visited)
    assert found["leaves"] == sum(not any(len(o) > len(p) and o[: len(p)] == p for o in visited) for p in visited)
    assert found["depth"] == max(map(len, visited), default=0)
    if prefixes:
        assert found["revisit_rate"] == pytest.approx(1 - len(visited) / len(prefixes))
    if len(visited) > 1:
        preorder = []  # leaf lines in depth-first order meet the nodes in preorder
        for leaf in leaf_lines(written.tree()):
            preorder += [leaf[:length] for length in range(1, len(leaf) + 1) if leaf[:length] not in preorder]
        tau = kendalltau(range(len(visited)), [preorder.index(prefix) for prefix in visited]).statistic
        assert found["dfs_consistency"] == pytest.approx(tau)
        assert np.argsort(trace_metrics.preorder_places(tree_shape(written))).tolist() == [visited.index(prefix) for prefix in preorder]


def test_a_depth_first_trace_is_wholly_consistent():
    lines = leaf_lines(trace(DEPTH_FIRST).tree())
    assert measures(TraceReader(TWO_ROOKS.board()).read(trace_tokens(TWO_ROOKS.board(), lines)), (), None, None)["dfs_consistency"] == 1.0


# ---- evaluations ------------------------------------------------------------------------------------------------------------------------


def test_tables_of_samples_follow_from_the_rollout():
    settings = SamplingSettings("think", 1.0, 6, seed=3)
    samples = sample_policy(trained_model("think"), build_environment(PUZZLES), PUZZLES, "snapshot", 16, settings, 1000, keep_traces=True)
    assert (samples["trace"].map(len) - samples["trace_length"] == ~samples["truncated"]).all()
    labels = [MoveLabels("", 0, {move.uci(): MoveScore(cp=-place) for place, move in enumerate(puzzle.board().legal_moves)}) for puzzle in PUZZLES]
    tables = trace_tables(samples, PUZZLES, labels)
    assert len(tables.traces) == len(samples) and set(MEASURES) <= set(tables.traces)
    assert (tables.traces["length"] == samples["trace_length"]).all() and (tables.traces["closed"] == ~samples["truncated"]).all()
    puzzles = {puzzle.id: puzzle for puzzle in PUZZLES}
    for row, first in zip(tables.traces.itertuples(), samples["first_move"]):
        legal = list(puzzles[row.puzzle].board().legal_moves)
        chosen = chosen_move(puzzles[row.puzzle].board(), first)
        assert (pd.isna(row.chosen_rank)) if chosen is None else row.chosen_rank == pytest.approx(legal.index(chosen) / (len(legal) - 1))
    assert tables.traces["chosen_rank"].notna().sum() > 20, "too few legal answers to tell"
    whole = tables.metrics[tables.metrics["bin"] == "all"].set_index("metric")["value"]
    by_puzzle = [rows["nodes"].mean() for _, rows in tables.traces.groupby("puzzle")]
    assert whole["nodes"] == pytest.approx(np.mean(by_puzzle))


@pytest.mark.parametrize("kind", ["tree", "engine"])
def test_an_evaluation_writes_the_tables_only_when_asked(kind, tiny_runs, tmp_path):
    if kind == "engine":
        try:
            find_stockfish()
        except UserError as error:
            pytest.skip(str(error))
    parent = Path(shutil.copytree(tiny_runs["sft"], tmp_path / tiny_runs["sft"].name))

    def config(*overrides: str):
        return tiny.config("evaluate", tmp_path, f"parent={parent}", "evaluate.max_puzzles=10", "engine.depth=4", *overrides)

    plain, asked = config(), config(f"evaluate.trace_metrics={kind}")
    assert evaluate(plain) == evaluate(asked) == 0
    folders = [tiny.evaluation_folder(plain), tiny.evaluation_folder(asked)]
    names = [{path.name for path in folder.iterdir()} for folder in folders]
    assert names[1] - names[0] == {"traces.parquet", "trace_metrics.csv", "trace_illegal.csv"}
    samples = [pd.read_parquet(folder / "samples.parquet") for folder in folders]
    pd.testing.assert_frame_equal(*samples)  # nothing else changes
    traces = pd.read_parquet(folders[1] / "traces.parquet")
    record = json.loads((folders[1] / "evaluation.json").read_text())
    assert len(traces) == 40 and record["settings"]["trace_metrics"] == kind and ("trace_engine" in record) == (kind == "engine")


def test_what_is_asked_of_traces_says_nothing_of_a_policy_without_them(tiny_runs):
    """The pipeline evaluates all its stages with one set of keys."""
    plain, asked = (
        tiny.config("evaluate", tiny_runs["sft"].parent, f"parent={tiny_runs['pretrain']}", *overrides)
        for overrides in ([], ["evaluate.trace_metrics=engine", "evaluate.thinking=minimum", "evaluate.thinking_minimum=20"])
    )
    assert tiny.evaluation_folder(plain) == tiny.evaluation_folder(asked)
