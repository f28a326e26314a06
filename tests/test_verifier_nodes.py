"""What an engine accepts of a policy's answers, against all answers enumerated and against engines that know the truth."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from analysis import verifier_nodes as nodes_analysis
from chessrl.endgame import PACK, PUZZLES_FILE
from chessrl.engine_labels import position_key
from chessrl.environment import solver_decisions
from chessrl.errors import UserError
from chessrl.policy import POLICY_COLUMNS, decisions_of
from chessrl.puzzles import load_puzzles
from chessrl.verifier_nodes import VERDICT_COLUMNS, judged, main
from tests.test_endgame import needs_stockfish

PUZZLES = [puzzle for puzzle in load_puzzles(PACK / PUZZLES_FILE, "validation") if puzzle.bin == "B3"][:3]  # mates in two


def policy_rows(puzzle, seed: int, traces: int = 2) -> pd.DataFrame:
    """A made-up policy over the legal moves of every decision, 0.8 of whose answers are legal; another one after each trace."""
    rng = np.random.default_rng(seed)
    rows = [
        (puzzle.id, puzzle.split, puzzle.bin, each.number, trace, each.moves, np.log(0.8 * rng.dirichlet(np.ones(len(each.moves)))), each.solution,
         each.solving)
        for each in decisions_of(puzzle, "answer")
        for trace in range(traces)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(POLICY_COLUMNS))


def enumerated(puzzle, rows: pd.DataFrame, accepted: dict[str, set[str]]) -> tuple[float, float, float]:
    """Probabilities of every answer that can be played, each judged as a whole by the rules in words."""
    boards = [board for board, _, _ in solver_decisions(puzzle)]
    line = [move.uci() for _, move, _ in solver_decisions(puzzle)]
    sums = np.zeros(3)
    for trace in sorted(set(rows["trace"])):
        tables = [rows[(rows["decision"] == number) & (rows["trace"] == trace)].iloc[0] for number in range(len(line))]
        chances = [dict(zip(table["moves"], np.exp(table["logprobs"]))) for table in tables]
        solving = [{table["moves"][place] for place in table["solving"]} for table in tables]
        answers = [(*line[:cut], move) for cut in range(len(line)) for move in chances[cut] if move != line[cut] or cut == len(line) - 1]
        for answer in answers:
            chance = np.prod([chances[number][move] for number, move in enumerate(answer)])
            right = all(move in solving[number] for number, move in enumerate(answer))
            by_engine = [move in accepted[position_key(boards[number])] for number, move in enumerate(answer)]
            paid = all(move in solving[number] or passes for number, (move, passes) in enumerate(zip(answer, by_engine)))
            sums += chance * np.array([right, paid, right and all(by_engine)])
    return tuple(sums / rows["trace"].nunique())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_probabilities_of_answers_equal_all_answers_enumerated(seed):
    puzzle = PUZZLES[seed]
    rows, rng = policy_rows(puzzle, seed), np.random.default_rng(seed)
    decisions = list(solver_decisions(puzzle))
    for refuses_first_line_move in (False, True):
        accepted = {position_key(board): {move.uci() for move in board.legal_moves if rng.random() < 0.3} for board, _, _ in decisions}
        first = accepted[position_key(decisions[0][0])]
        (first.discard if refuses_first_line_move else first.add)(decisions[0][1].uci())
        found = judged(puzzle, rows.sample(frac=1, random_state=seed), accepted)
        assert found == pytest.approx(enumerated(puzzle, rows, accepted))
        assert 0 < found[0] < found[1] < 0.8
        assert found[2] == 0 if refuses_first_line_move else found[2] <= found[0]


def test_an_engine_that_accepts_nothing_or_all():
    puzzle = PUZZLES[0]
    rows = policy_rows(puzzle, 0)
    boards = [board for board, _, _ in solver_decisions(puzzle)]
    right, accepted, recalled = judged(puzzle, rows, {position_key(board): set() for board in boards})
    assert accepted == pytest.approx(right) and recalled == 0
    right_again, accepted, recalled = judged(puzzle, rows, {position_key(board): {move.uci() for move in board.legal_moves} for board in boards})
    line = np.exp([row.logprobs[row.solution] for row in rows.itertuples() if row.decision == 0])
    assert right_again == recalled == pytest.approx(right)
    assert accepted == pytest.approx((0.8 - line + 0.8 * line).mean())


def write_evaluation(folder, puzzles, run: str):
    folder.mkdir()
    pd.concat([policy_rows(puzzle, 5) for puzzle in puzzles]).assign(stage="sft", step=7).to_parquet(folder / "policy.parquet")
    (folder / "evaluation.json").write_text(json.dumps({"run": run}))
    return folder


@needs_stockfish
def test_a_deeper_engine_accepts_less_of_what_is_wrong_and_all_that_is_right(tmp_path):
    first, second = write_evaluation(tmp_path / "a", PUZZLES, "sft-a"), write_evaluation(tmp_path / "b", PUZZLES[:2], "sft-b")
    main([f"evaluations={first},{second}", f"out={tmp_path / 'out'}", "nodes=1,1000", "depths=1", "workers=1"])
    table = pd.read_parquet(tmp_path / "out" / "verdicts.parquet")
    assert tuple(table.columns) == VERDICT_COLUMNS and len(table) == 2 * 3 * 2, "the puzzles that all have in common"
    means = table.groupby(["mode", "limit"])[["right", "accepted", "recalled"]].mean()
    assert means["right"].nunique() == 1 and (means["accepted"] >= means["right"]).all()
    assert means.loc[("searchmoves", 1), "accepted"] > means.loc[("searchmoves", 1000), "accepted"]
    assert means.loc[("searchmoves", 1000), "recalled"] == pytest.approx(means.loc[("searchmoves", 1000), "right"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["nodes=0"], "nodes=0: expected numbers of at least 1"),
        (["nodes=", "depths="], "nodes and depths are both empty"),
        (["depths=two"], "depths=two: expected numbers"),
    ],
)
def test_limits_that_are_no_counts_are_refused(given, message, tmp_path):
    folder = write_evaluation(tmp_path / "a", PUZZLES[:1], "sft-a")
    with pytest.raises(UserError, match=message):
        main([f"evaluations={folder}", f"out={tmp_path / 'out'}", *given])


def test_an_evaluation_without_a_policy_is_named(tmp_path):
    with pytest.raises(UserError, match=r"policy\.parquet: no such file; evaluate the run with evaluate\.policy_traces=1"):
        main([f"evaluations={tmp_path}", f"out={tmp_path / 'out'}"])


# ---- the table and figure ----------------------------------------------------------------------------------------------------------------


def verdict_rows(policy: str, limit: int, values: list[tuple[float, float, float]]) -> pd.DataFrame:
    rows = [(policy, "sft", 7, "searchmoves", limit, f"p{place}", f"B{place % 2 + 1}", *each) for place, each in enumerate(values)]
    return pd.DataFrame(rows, columns=list(VERDICT_COLUMNS))


def test_rates_of_a_verifier_by_hand(tmp_path):
    """Two puzzles: right 0.2 and 0.4, accepted 0.5 and 0.7, recalled 0.1 and 0.2."""
    verdicts = pd.concat([verdict_rows("a", 1, [(0.2, 0.5, 0.1), (0.4, 0.7, 0.2)]), verdict_rows("a", 10, [(0.2, 0.2, 0.2), (0.4, 0.4, 0.4)])])
    verdicts.to_parquet(tmp_path / "verdicts.parquet")
    nodes_analysis.main([f"verdicts={tmp_path / 'verdicts.parquet'}", f"out={tmp_path / 'out'}"])
    table = pd.read_csv(tmp_path / "out" / "verifier_nodes.csv").set_index(["limit", "bin"])
    row = table.loc[(1, "all")]
    assert (row["gap"], row["false_positive"], row["j"]) == pytest.approx((0.3, 0.3 / 0.7, 0.4 / 0.7))
    assert (row["precision"], row["engine_recall"]) == pytest.approx((0.3 / 0.6, 0.5))
    assert row["precision_low"] == pytest.approx(0.4) and row["precision_high"] == pytest.approx(0.4 / 0.7), "one puzzle twice, or the other"
    assert table.loc[(10, "all"), "gap"] == 0 and table.loc[(10, "all"), "precision"] == 1
    assert table.loc[(1, "B2"), "gap"] == pytest.approx(0.3) and table.loc[(1, "B2"), "puzzles"] == 1
    assert (tmp_path / "out" / "verifier_nodes.png").stat().st_size > 10_000


def test_steps_of_one_run_are_policies_of_their_own():
    values = {0: (0.2, 0.5, 0.1), 60: (0.4, 0.5, 0.3)}
    rows = [verdict_rows("a", limit, [each] * 2).assign(step=step) for step, each in values.items() for limit in (1, 10)]
    figure = nodes_analysis.nodes_figure(nodes_analysis.nodes_table(pd.concat(rows), seed=0))
    gap, precision = figure.axes[:2]
    assert [line.get_ydata().tolist() for line in gap.lines] == [pytest.approx([0.3, 0.3]), pytest.approx([0.1, 0.1])]
    assert [line.get_ydata().tolist() for line in precision.lines] == [pytest.approx([0.4, 0.4]), pytest.approx([0.8, 0.8])]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sft step 0: 20.0% right", "sft step 60: 40.0% right"]


def test_a_table_without_verdicts_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file; make it with"):
        nodes_analysis.main([f"verdicts={tmp_path / 'x.parquet'}", f"out={tmp_path}"])
