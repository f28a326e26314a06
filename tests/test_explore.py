"""The puzzle explorer: what it says of planted policies, its server, its page in a browser, and its part of the report."""

from __future__ import annotations

import json
import re
import threading
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import chess
import numpy as np
import pandas as pd
import pytest

from analysis import explorer_page
from analysis.explore import ExploreSettings, make_server
from analysis.explorer import Explorer, MeasuredPolicy, StatePolicy, Transition, _tree_record, state_policies, transitions
from analysis.explorer_page import puzzle_html
from analysis.explorer_sections import explorer_sections
from analysis.read import read_runs
from analysis.report import run_analysis
from analysis.sharpening import CATEGORIES
from chessrl import notation
from chessrl.command import parse_settings
from chessrl.endgame import PACK, PUZZLES_FILE
from chessrl.errors import UserError
from chessrl.evaluate import write_evaluation
from chessrl.puzzles import Puzzle, load_puzzles
from chessrl.statistics import FAILURES
from chessrl.traces import trace_tokens
from tests.browser import Browser

SAMPLES = 4
# Probability of the solving move, and of the first other one, before and after; the others share the rest equally.
PLANTED = {
    "ground-truth amplification": ((0.3, 0.5), (0.8, 0.1)),
    "tail discovery": ((0.001, 0.5), (0.7, 0.1)),
    "top-k correction": ((0.06, 0.2), (0.7, 0.1)),
    "ground-truth regression": ((0.5, 0.3), (0.001, 0.6)),
    "wrong-mode amplification": ((0.001, 0.5), (0.001, 0.9)),
    "other": ((0.001, 0.9), (0.001, 0.5)),
}


def planted_policy(puzzle: Puzzle, solving: float, wrong: float, traces: int) -> list[dict]:
    """Rows of policy.parquet: the solving move and the first wrong one as given. The rest falls off from move to move, so that no ties decide."""
    board = puzzle.board()
    moves = sorted(move.uci() for move in board.legal_moves)
    solution = moves.index(puzzle.moves[puzzle.lead])
    others = [place for place in range(len(moves)) if place != solution]
    share = np.zeros(len(moves))
    share[solution], share[others[0]] = solving, wrong
    falling = 0.9 ** np.arange(len(others) - 1)
    share[others[1:]] = (1 - solving - wrong) * falling / falling.sum()
    rows = []
    for trace in range(traces):  # a mass of its own for every trace: only the softmax counts
        rows.append(
            {
                "puzzle": puzzle.id, "split": puzzle.split, "bin": puzzle.bin, "decision": 0, "trace": trace, "moves": moves,
                "logprobs": np.log(share * (0.5 + 0.1 * trace)).astype(np.float32), "solution": solution, "solving": [solution],
            }
        )  # fmt: skip
    return rows


class Tables:
    """Further tables of an evaluation."""

    def __init__(self, **tables: pd.DataFrame) -> None:
        self.tables = tables

    def write(self, folder: Path) -> None:
        for name, table in self.tables.items():
            table.to_parquet(folder / f"{name}.parquet")


def write_run(root: Path, name: str, parents: dict[str, str], puzzles: list[Puzzle], later: bool) -> Path:
    stage = name.split("-")[0]
    run = root / name
    run.mkdir()
    summary = {"stage": stage, "run_id": name, "parents": parents, "parameters": {"total": 2, "without_embeddings": 1}, "tokens": 9, "flops": 1e9}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "config.yaml").write_text("world:\n  name: endgame\n  state: snapshot\nrl:\n  bins: []\nalgorithm:\n  epochs: 1\n  minibatches: 1\n")
    (run / "metrics.jsonl").write_text('{"step": 1, "tokens": 5, "loss": 1.0}\n')
    policy = [row for puzzle, pair in zip(puzzles, PLANTED.values()) for row in planted_policy(puzzle, *pair[later], traces=1 + later)]
    samples = pd.DataFrame(
        [
            {
                "puzzle": puzzle.id, "split": puzzle.split, "bin": puzzle.bin, "sample": sample, "tokens": 5, "solved": sample < place,
                "solved_strict": sample < place, "solved_by_line": sample < place, "first_move": "", "legal": True, "format": True,
                "truncated": False, "failure": "" if sample < place else FAILURES[0], "trace_length": 3, "trace_forced": False,
                "answer_length": 4, "logprob": -1.0, "entropy": 0.5,
            }
            for place, puzzle in enumerate(puzzles) for sample in range(SAMPLES)
        ]
    )  # fmt: skip
    traces = pd.DataFrame([{"puzzle": puzzle.id, "sample": 0, "solved": True, "trace": planted_trace(puzzle)} for puzzle in puzzles])
    labels = {
        "run": name, "stage": stage, "step": 1, "split": "test", "protocol": "think", "spelling": "lenient", "verifier": "line",
        "temperature": 1.0, "thinking_budget": 64, "seed": 0,
    }  # fmt: skip
    tables = {"policy": pd.DataFrame(policy)} | ({"traces": traces} if later else {})
    write_evaluation(run / "evaluations" / "aaaa", samples, labels, [1, 2], {}, [Tables(**tables)])
    return run


def planted_trace(puzzle: Puzzle) -> str:
    """The solving move, then another move, then a line that is no move."""
    board = puzzle.board()
    right = board.parse_uci(puzzle.moves[puzzle.lead])
    wrong = next(move for move in board.legal_moves if move != right)
    written = trace_tokens(board, [(right,), (wrong,)])[:-1]
    return notation.to_text([*written, notation.SEP, notation.CAPTURE, notation.END_THINK])


@pytest.fixture(scope="module")
def puzzles() -> list[Puzzle]:
    """Mates in one with a single solution and moves enough for a top 3."""
    found = []
    for puzzle in load_puzzles(PACK / PUZZLES_FILE, "test", ["B1"]):
        board = puzzle.board()
        if board.legal_moves.count() >= 10 and sum(board.gives_check(move) for move in board.legal_moves) == 1:
            found.append(puzzle)
    return found[: len(PLANTED)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, puzzles) -> list[Path]:
    root = tmp_path_factory.mktemp("outputs")
    sft = write_run(root, "sft-0a1b2c3d4e5f", {}, puzzles, later=False)
    return [write_run(root, "rl-1a2b3c4d5e6f", {"sft": sft.name}, puzzles, later=True), sft]


@pytest.fixture(scope="module")
def explorer(runs) -> Explorer:
    return Explorer(read_runs(runs))


@pytest.fixture(scope="module")
def address(explorer):
    with make_server(explorer, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address
        server.shutdown()
        thread.join()


def get(address: tuple[str, int], path: str, **headers: str):
    connection = HTTPConnection(*address, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


# ---- numbers ----------------------------------------------------------------------------------------------------------------------------


def test_a_policy_is_the_mean_over_traces_of_each_traces_own_softmax(tmp_path):
    scores = [[0.0, np.log(3)], [np.log(0.5), np.log(0.5)]]
    table = pd.DataFrame(
        [
            {"puzzle": "a", "decision": 0, "trace": trace, "moves": ["a1a2", "a1a3"], "logprobs": row, "solution": 1, "solving": [1]}
            for trace, row in enumerate(scores)
        ]
    )
    other = {"puzzle": "b", "decision": 0, "trace": 0, "moves": ["h1h2"] * 3, "logprobs": [0.0] * 3, "solution": 0, "solving": [0, 2]}
    foreign = pd.DataFrame([other])
    pd.concat([table[:1], foreign, table[1:]]).to_parquet(tmp_path / "policy.parquet")  # the rows of a state need not stand together
    states = state_policies(tmp_path / "policy.parquet")
    policy = states["a", 0]
    assert states["b", 0].probabilities == pytest.approx([1 / 3] * 3) and states["b", 0].solving == (0, 2)
    assert policy.probabilities == pytest.approx([(0.25 + 0.5) / 2, (0.75 + 0.5) / 2])
    assert policy.legal_mass == pytest.approx((4 + 1) / 2)
    assert (policy.traces, policy.moves, policy.solving) == (2, ("a1a2", "a1a3"), (1,))


def test_planted_categories_are_found_with_their_probabilities(explorer, puzzles):
    assert [policy.label for policy in explorer.policies] == ["SFT", "RL"]
    for puzzle, (category, (before, after)) in zip(puzzles, PLANTED.items()):
        found = explorer.transitions[puzzle.id, 0]
        assert found.category == category
        assert (found.before, found.after) == pytest.approx((before[0], after[0]), abs=1e-6)
    chosen = explorer.extremes(2)
    assert [transition.category for _, transition in chosen] == list(CATEGORIES)
    assert [state for state, _ in chosen] == [(puzzle.id, 0) for puzzle in puzzles]


def test_the_extremes_of_a_category_are_those_that_moved_most_and_of_different_puzzles():
    moved = {("a", 0): 0.1, ("a", 1): 0.9, ("b", 0): 0.5, ("b", 1): 0.2, ("c", 0): 0.3}
    other = object.__new__(Explorer)
    other.transitions = {state: Transition("other", 0.0, 0.0, distance) for state, distance in moved.items()}
    assert [state for state, _ in other.extremes(2)] == [("a", 1), ("b", 0)]


def test_a_puzzles_record_agrees_with_the_tables(explorer, puzzles):
    puzzle = puzzles[1]
    record = explorer.puzzle(puzzle.id)
    board = puzzle.board()
    solution = board.parse_uci(puzzle.moves[0])
    assert (record["id"], record["bin"], record["line"]) == (puzzle.id, "B1", [board.san(solution)])
    [decision] = record["decisions"]
    assert (decision["fen"], decision["category"], record["compared"]) == (board.fen(), "tail discovery", ["SFT", "RL"])
    before, after = decision["policies"]
    assert [move["probability"] for move in before["moves"]] == sorted((move["probability"] for move in before["moves"]), reverse=True)
    assert {move["uci"] for move in after["moves"]} == {move.uci() for move in board.legal_moves}
    assert after["moves"][0] == {
        "uci": solution.uci(), "san": board.san(solution), "probability": pytest.approx(0.7, abs=1e-6), "solves": True, "line": True,
    }  # fmt: skip
    assert (before["traces"], after["traces"], after["legal_mass"]) == (1, 2, pytest.approx(0.55, abs=1e-6))
    assert [(samples["samples"], samples["solved"], len(samples["traces"])) for samples in record["samples"]] == [(4, 1, 0), (4, 1, 1)]
    [trace] = record["samples"][1]["traces"]
    first = trace["tree"][0]
    assert (first["san"], first["line"], first["below"]) == (board.san(solution), True, [])
    assert (len(trace["tree"]), trace["faults"], trace["closed"]) == (2, {"malformed": 1}, True)


def test_the_line_is_marked_in_a_tree_as_long_as_it_is_followed():
    board = chess.Board("k7/8/8/8/8/8/8/K6R w - - 0 1")
    up, over, king, back = (chess.Move.from_uci(move) for move in ("h1h7", "h1g1", "a8b8", "h7h1"))
    tree = {up: {king: {back: {}}}, over: {king: {}}}
    [on, off] = _tree_record(board, tree, (up, king))
    assert (on["san"], on["line"], on["below"][0]["san"], on["below"][0]["line"]) == ("Rh7", True, "Kb8", True)
    assert on["below"][0]["below"] == [{"san": "Rh1", "line": False, "below": []}]  # beyond the line's end
    assert (off["line"], off["below"]) == (False, [{"san": "Kb8", "line": False, "below": []}])  # the line's reply to another move
    assert board.fen().startswith("k7/8/8/8/8/8/8/K6R")


def test_a_run_without_a_measured_policy_says_how_to_measure_one(runs, tmp_path):
    [_, sft] = runs
    copy = tmp_path / sft.name
    copy.mkdir()
    for name in ("summary.json", "config.yaml", "metrics.jsonl"):
        (copy / name).write_bytes((sft / name).read_bytes())
    with pytest.raises(UserError, match="policy_traces"):
        Explorer(read_runs([copy]))
    assert Explorer(read_runs([*runs[:1], copy])).left_out == [sft.name]
    assert not Explorer(read_runs(runs)).left_out
    with pytest.raises(UserError, match="on split private"):
        Explorer(read_runs(runs), "private")
    [section] = explorer_sections(read_runs([copy]))
    assert section.table.empty and not section.html and "evaluate.policy_traces" in section.notes[0]


def test_one_policy_is_explored_without_transitions(runs):
    explorer = Explorer(read_runs(runs[1:]))
    assert explorer.transitions == {} and explorer.index[0]["categories"] == [] and explorer.index[0]["moved"] is None
    assert explorer.puzzle(explorer.index[0]["id"])["decisions"][0]["category"] == ""


def test_different_positions_under_one_name_are_refused(explorer, puzzles):
    earlier, later = explorer.policies
    state = (puzzles[0].id, 0)
    foreign = StatePolicy(("a1a2",), np.ones(1), 0, (0,), 1.0, 1)
    with pytest.raises(UserError, match="different positions"):
        transitions(earlier, MeasuredPolicy("x", later.run, later.evaluation, {state: foreign}))


# ---- the server -------------------------------------------------------------------------------------------------------------------------


def test_the_server_sends_puzzles_as_json(address, explorer, puzzles):
    answer, body = get(address, "/puzzles.json")
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("application/json")
    assert json.loads(body) == explorer.index and [record["id"] for record in explorer.index] == [puzzle.id for puzzle in puzzles]
    answer, body = get(address, f"/puzzle.json?id={quote(puzzles[2].id)}")
    record = json.loads(body)
    assert record.pop("html").startswith("<article") and record == explorer.puzzle(puzzles[2].id)


@pytest.mark.parametrize(
    "path",
    ["/../../../../etc/passwd", "/etc/passwd", "//etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/puzzle.json?id=../../../etc/passwd", "/puzzle.json",
     "/explore.py", "/puzzle.json?id=%00", "/puzzles.json/"],
)  # fmt: skip
def test_no_path_leads_to_a_file(address, path):
    answer, body = get(address, path)
    assert answer.status == 404 and "error" in json.loads(body)


def test_the_server_answers_to_this_machine_alone(address, explorer):
    assert address[0] == "127.0.0.1"
    assert get(address, "/puzzles.json", Host="evil.example")[0].status == 403  # a site that resolves to this machine
    assert get(address, "/puzzles.json", Host="localhost:1")[0].status == 200
    answer, _ = get(address, "/")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    with pytest.raises(UserError, match="choose another"):
        make_server(explorer, address[1])


def test_text_of_the_tables_is_no_html(explorer, puzzles):
    record = explorer.puzzle(puzzles[0].id)
    evil = "<img src=x onerror=alert(1)>"
    html = puzzle_html(record | {"id": evil, "bin": evil, "themes": [evil], "compared": [evil]})
    assert "<img" not in html and "&lt;img" in html


def test_the_boards_coordinates_name_the_squares_under_them(puzzles):
    """The square that a coordinate is written on, by where python-chess puts a piece on it."""
    for turn in ("w", "b"):
        board = chess.Board(f"8/8/8/8/8/8/8/Kk6 {turn} - - 0 1")
        svg = explorer_page._board(board, [])
        king = [int(number) for number in re.search(r'#white-king" transform="translate\((\d+), (\d+)\)', svg).groups()]  # on a1
        [[x, y]] = re.findall(r'<text x="(\d+)" y="(\d+)">a</text>', svg)
        assert king[0] <= int(x) < king[0] + 45 and int(y) // 45 == 7
        [[x, y]] = re.findall(r'<text x="(\d+)" y="(\d+)">1</text>', svg)
        assert king[1] <= int(y) < king[1] + 45 and int(x) // 45 == 0


def test_a_list_of_runs_is_read_with_and_without_brackets():
    for text in ("runs=[a,b]", "runs=a,b", "runs=[a, b]"):
        assert parse_settings(ExploreSettings, [text]).runs == ("a", "b")


# ---- in a browser -----------------------------------------------------------------------------------------------------------------------

HEADING = "document.querySelector('#puzzle h3')?.textContent"


def shows(puzzle: Puzzle) -> str:
    return f"{HEADING}?.startsWith({json.dumps(puzzle.id)}) || false"


def test_the_page_is_worked_by_keyboard_and_asks_nobody_else(address, explorer, puzzles, tmp_path):
    by_id = {puzzle.id: puzzle for puzzle in puzzles}
    order = [by_id[record["id"]] for record in sorted(explorer.index, key=lambda record: -record["moved"])]
    home = f"http://127.0.0.1:{address[1]}/"
    with Browser(tmp_path, width=400) as browser:
        browser.open(home)
        browser.wait_for(shows(order[0]))
        browser.press("ArrowRight")
        browser.wait_for(shows(order[1]))
        browser.press("ArrowLeft")
        browser.wait_for(shows(order[0]))
        browser.press("l")
        assert browser.evaluate("document.activeElement.id") == "list"
        assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"  # the focus shows
        browser.press("End")
        browser.wait_for(shows(order[-1]))
        browser.press("ArrowUp")
        browser.wait_for(shows(order[-2]))
        chosen = "document.getElementById(document.getElementById('list').getAttribute('aria-activedescendant'))"
        assert browser.evaluate(f"{chosen}.getAttribute('aria-selected')") == "true"
        browser.press("f")
        assert browser.evaluate("document.activeElement.id") == "bin"
        browser.press("Tab")
        browser.press("Tab")
        assert browser.evaluate("document.activeElement.id") == "category"
        browser.press("t")  # a select is chosen from by its entries' first letters
        browser.wait_for("document.getElementById('list').children.length === 1 || false")
        tail = {"tail discovery", "top-k correction"}
        assert browser.evaluate("document.getElementById('category').value") in tail
        assert browser.evaluate("document.documentElement.scrollWidth") <= 400
        assert browser.evaluate("document.querySelectorAll('#puzzle svg').length") == 2
        unnamed = "[...document.querySelectorAll('select, [role=img], [role=listbox]')].filter((e) => !e.ariaLabel && !e.labels?.length).length"
        assert browser.evaluate(unnamed) == 0
        asked = [request for request in browser.requests if not request.startswith("data:")]
        assert len(asked) > 4 and all(request.startswith(home) for request in asked)


# ---- in the report ----------------------------------------------------------------------------------------------------------------------


def test_the_section_holds_the_extreme_puzzles_and_fetches_nothing(runs, puzzles):
    [section] = explorer_sections(read_runs(runs))
    assert [puzzle.id in section.html for puzzle in puzzles] == [True] * len(puzzles)
    assert section.html.count("<svg") == 2 * len(puzzles)
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)[^\"]*\"", section.html)
    assert set(re.findall(r"https?://[^\"' <]+", section.html)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert section.table["puzzle"].tolist() == [puzzle.id for puzzle in puzzles]
    assert section.table["category"].tolist() == list(CATEGORIES)


@pytest.mark.long
def test_the_report_shows_the_extreme_puzzles(runs, puzzles, tmp_path):
    page = run_analysis(runs, tmp_path).report.read_text()
    section = re.search(r'<section id="extreme_puzzles">.*?</section>', page, re.S)[0]
    assert section.count("<svg") == 2 * len(puzzles)
    assert pd.read_csv(tmp_path / "tables" / "extreme_puzzles.csv")["puzzle"].tolist() == [puzzle.id for puzzle in puzzles]
