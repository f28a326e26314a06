"""The puzzle explorer: what each policy thinks of the moves of a puzzle, as records and as HTML. The report and the local server both use it.

A state is a puzzle and a decision of its solver. Its policy is the mean over traces of the softmax of the moves' log-probabilities; a transition
is that of the state's category (analysis.sharpening), from an earlier policy to a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
from pyarrow import compute

from analysis.read import Evaluation, Run
from analysis.sharpening import CATEGORIES, categories, ground_truth, js_divergence
from chessrl import notation, world
from chessrl.config import Config, WorldConfig
from chessrl.environment import solver_decisions
from chessrl.errors import UserError
from chessrl.puzzles import Puzzle
from chessrl.traces import Line, TraceReader, Tree

State = tuple[str, int]  # puzzle, decision
TRACES = 3  # shown of a puzzle and policy
SPLITS = ("test", "validation")  # preferred in this order
HOW_TO_MEASURE = "python -m chessrl.evaluate parent=RUN evaluate.policy_traces=8"


@dataclass(frozen=True, slots=True)
class StatePolicy:
    """What one policy thinks of a state. ``probabilities`` (moves,): over the legal moves; ``legal_mass``: mean over ``traces`` traces."""

    moves: tuple[str, ...]  # UCI
    probabilities: np.ndarray
    solution: int
    solving: tuple[int, ...]
    legal_mass: float
    traces: int


@dataclass(frozen=True, slots=True)
class MeasuredPolicy:
    """A run's evaluation with its policy on every state. ``label``: the run's name, with the step where several are measured."""

    label: str
    run: Run
    evaluation: Evaluation
    states: Mapping[State, StatePolicy]


@dataclass(frozen=True, slots=True)
class Transition:
    """Of one state from the earlier to the later policy: its category, the solving move's probabilities, and JS(later, earlier) in nats."""

    category: str
    before: float
    after: float
    moved: float


# ---- reading ----------------------------------------------------------------------------------------------------------------------------


def measured_evaluations(runs: Sequence[Run], split: str = "") -> list[tuple[str, Run, Evaluation]]:
    """Evaluations with a measured policy and their labels: one split (that of most of them, unless given), of a run and step the one with most
    puzzles; in the order of the runs, then by step."""
    measured = [(run, evaluation) for run in runs for evaluation in run.evaluations if (evaluation.folder / "policy.parquet").is_file()]
    splits = [str(evaluation.labels["split"]) for _, evaluation in measured]
    chosen = split or min(splits, key=lambda name: (-splits.count(name), SPLITS.index(name) if name in SPLITS else len(SPLITS), name), default="")
    found: dict[tuple[str, int], tuple[Run, Evaluation]] = {}
    for run, evaluation in sorted(measured, key=lambda item: (item[1].n_puzzles, item[1].n_samples, item[1].folder.name)):
        if evaluation.labels["split"] == chosen:
            found[run.run_id, int(evaluation.labels["step"])] = run, evaluation
    of_run = [run for run, _ in found]
    order = {run.run_id: place for place, run in enumerate(runs)}
    ordered = sorted(found.items(), key=lambda item: (order[item[0][0]], item[0][1]))
    return [
        (f"{run.label} step {step}" if of_run.count(run_id) > 1 else run.label, run, evaluation) for (run_id, step), (run, evaluation) in ordered
    ]


def state_policies(path: Path) -> dict[State, StatePolicy]:
    """Marginal policies of every state of a policy.parquet (chessrl.policy.POLICY_COLUMNS). Read column by column: as rows of Python lists a
    table of a hundred traces per state would take gigabytes."""
    columns = ["puzzle", "decision", "trace", "logprobs", "moves", "solution", "solving"]
    table = parquet.read_table(path, columns=columns).sort_by([(name, "ascending") for name in columns[:3]])
    names, numbers = table["puzzle"].to_numpy(), table["decision"].to_numpy()
    new = np.ones(len(table), bool)
    new[1:] = (names[1:] != names[:-1]) | (numbers[1:] != numbers[:-1])
    starts = np.flatnonzero(new)
    scores = table["logprobs"].combine_chunks().flatten().to_numpy().astype(np.float64)
    places = np.concatenate([[0], np.cumsum(compute.list_value_length(table["logprobs"]).to_numpy())])
    firsts = table.select(["moves", "solution", "solving"]).take(starts).to_pylist()
    states = {}
    for first, start, end in zip(firsts, starts, [*starts[1:], len(table)]):
        own = scores[places[start] : places[end]].reshape(end - start, -1)  # (traces, moves)
        weights = np.exp(own - own.max(1, keepdims=True))
        states[str(names[start]), int(numbers[start])] = StatePolicy(
            moves=tuple(first["moves"]),
            probabilities=(weights / weights.sum(1, keepdims=True)).mean(0),
            solution=first["solution"],
            solving=tuple(first["solving"]),
            legal_mass=float(np.exp(own).sum(1).mean()),
            traces=len(own),
        )
    return states


def compared(policies: Sequence[MeasuredPolicy]) -> tuple[MeasuredPolicy, MeasuredPolicy] | None:
    """The earlier and the later policy of the transitions: the last one, and the last before it that it descends from (else the one before)."""
    if len(policies) < 2:
        return None
    later = policies[-1]
    ancestors = [policy for policy in policies[:-1] if policy.run.run_id in later.run.parents]
    return (ancestors or policies[:-1])[-1], later


def transitions(before: MeasuredPolicy, after: MeasuredPolicy) -> dict[State, Transition]:
    """Of all states that both policies were measured on."""
    shared = [state for state in before.states if state in after.states]
    if not shared:
        raise UserError(f"{before.label} and {after.label} were measured on no common puzzle: evaluate both on the same split and max_puzzles")
    most = max(len(before.states[state].moves) for state in shared)
    p, q = np.zeros((2, len(shared), most))
    legal, solving = np.zeros((2, len(shared), most), bool)
    for row, state in enumerate(shared):
        earlier, later = before.states[state], after.states[state]
        if earlier.moves != later.moves:
            raise UserError(f"puzzle {state[0]}: {before.label} and {after.label} were measured on different positions; evaluate both again")
        size = len(earlier.moves)
        p[row, :size], q[row, :size], legal[row, :size] = earlier.probabilities, later.probabilities, True
        solving[row, list(earlier.solving)] = True
    kinds, truth, moved = categories(p, q, legal, solving), ground_truth(p, solving), js_divergence(q, p)
    return {
        state: Transition(CATEGORIES[kinds[row]], float(p[row, truth[row]]), float(q[row, truth[row]]), float(moved[row]))
        for row, state in enumerate(shared)
    }


def load_puzzles(run: Run, split: str) -> dict[str, Puzzle]:
    """The puzzles of the run's world by id. Raises UserError where its table is not to be had."""
    settings = run.settings.get("world")
    if not isinstance(settings, dict):
        raise UserError(f"{run.path / 'config.yaml'}: key world is missing; run again, or leave the run out of runs=")
    known = {key: value for key, value in settings.items() if key in WorldConfig.__dataclass_fields__ and key != "leak"}
    config = Config(world=WorldConfig(**known), outputs=str(run.path.parent))
    return {puzzle.id: puzzle for puzzle in world.puzzles_of_split(config, split)}


# ---- an explorer over several policies --------------------------------------------------------------------------------------------------


class Explorer:
    """Policies, their transitions and the puzzles behind them. Raises UserError where no policy was measured."""

    def __init__(self, runs: Sequence[Run], split: str = "") -> None:
        measured = measured_evaluations(runs, split)
        if not measured:
            on = f" on split {split}" if split else ""
            raise UserError(f"runs: no evaluation holds a measured policy (policy.parquet){on}; make one with {HOW_TO_MEASURE}")
        self.policies = [
            MeasuredPolicy(label, run, evaluation, state_policies(evaluation.folder / "policy.parquet")) for label, run, evaluation in measured
        ]
        self.split = str(self.policies[0].evaluation.labels["split"])
        shown = {policy.run.run_id for policy in self.policies}
        self.left_out = [run.run_id for run in runs if run.run_id not in shown]  # given, but not measured on this split
        table = load_puzzles(self.policies[0].run, self.split)
        asked = {puzzle for policy in self.policies for puzzle, _ in policy.states}
        if foreign := sorted(asked - set(table)):
            raise UserError(f"puzzle {foreign[0]} is not in the puzzle table of {self.policies[0].run.path}: name runs of one world only")
        self.puzzles = {name: puzzle for name, puzzle in table.items() if name in asked}
        self.pair = compared(self.policies)
        self.transitions = transitions(*self.pair) if self.pair else {}
        self._read: dict[Path, dict[str, pd.DataFrame]] = {}

    @cached_property
    def index(self) -> list[dict[str, Any]]:
        """One record per puzzle, in the table's order: id, bin, themes, its decisions' categories, and how far the policy moved (largest JS)."""
        records = []
        for name, puzzle in self.puzzles.items():
            own = [self.transitions[name, number] for number in range(len(puzzle.moves)) if (name, number) in self.transitions]
            records.append(
                {
                    "id": name,
                    "bin": puzzle.bin,
                    "themes": list(puzzle.themes),
                    "categories": sorted({transition.category for transition in own}),
                    "moved": max((transition.moved for transition in own), default=None),
                }
            )
        return records

    def extremes(self, each: int) -> list[tuple[State, Transition]]:
        """The ``each`` states of every category whose policy moved most (JS), one per puzzle; categories in their order."""
        found = []
        for category in CATEGORIES:
            states = [(state, transition) for state, transition in self.transitions.items() if transition.category == category]
            states.sort(key=lambda item: (-item[1].moved, item[0]))
            best = {state[0]: (state, transition) for state, transition in reversed(states)}
            found += sorted(best.values(), key=lambda item: (-item[1].moved, item[0]))[:each]
        return found

    def puzzle(self, name: str) -> dict[str, Any]:
        """The whole record of a puzzle: what the server sends as JSON and ``analysis.explorer_page`` draws. Raises KeyError."""
        puzzle = self.puzzles[name]
        return {
            "id": name,
            "bin": puzzle.bin,
            "themes": list(puzzle.themes),
            "line": _san_line(puzzle.board(), [chess.Move.from_uci(move) for move in puzzle.moves[puzzle.lead :]]),
            "compared": [policy.label for policy in self.pair] if self.pair else [],
            "decisions": [self._decision(name, number, board) for number, (board, _, _) in enumerate(solver_decisions(puzzle))],
            "samples": [self._samples(policy, puzzle) for policy in self.policies],
        }

    def _decision(self, name: str, number: int, board: chess.Board) -> dict[str, Any]:
        transition = self.transitions.get((name, number))
        policies = [(policy.label, policy.states[name, number]) for policy in self.policies if (name, number) in policy.states]
        return {
            "number": number,
            "fen": board.fen(),
            "category": transition.category if transition else "",
            "before": transition.before if transition else None,
            "after": transition.after if transition else None,
            "policies": [{"policy": label, **_policy_record(board, policy)} for label, policy in policies],
        }

    def _samples(self, policy: MeasuredPolicy, puzzle: Puzzle) -> dict[str, Any]:
        """How often the policy's samples solve the puzzle, and its first traces as trees."""
        board, line = puzzle.board(), tuple(chess.Move.from_uci(move) for move in puzzle.moves[puzzle.lead :])
        samples = self._table(policy.evaluation, "samples").get(puzzle.id)
        traces = self._table(policy.evaluation, "traces").get(puzzle.id)
        reader = TraceReader(board)
        return {
            "policy": policy.label,
            "samples": 0 if samples is None else len(samples),
            "solved": 0 if samples is None else int(samples["solved"].sum()),
            "traces": [] if traces is None else [_trace_record(reader, board, line, row) for row in traces.head(TRACES).itertuples()],
        }

    def _table(self, evaluation: Evaluation, kind: str) -> dict[str, pd.DataFrame]:
        """Rows of an evaluation's samples or traces by puzzle; none where it has no traces."""
        path = evaluation.folder / f"{kind}.parquet"
        if path not in self._read:
            if kind == "samples":
                table = evaluation.samples()
            else:
                table = pd.read_parquet(path, columns=["puzzle", "sample", "solved", "trace"]) if path.is_file() else pd.DataFrame({"puzzle": []})
            self._read[path] = {str(name): rows.sort_values("sample") for name, rows in table.groupby("puzzle")}
        return self._read[path]


def _policy_record(board: chess.Board, policy: StatePolicy) -> dict[str, Any]:
    order = np.argsort(-policy.probabilities, kind="stable")
    moves = [
        {
            "uci": policy.moves[place],
            "san": board.san(chess.Move.from_uci(policy.moves[place])),
            "probability": float(policy.probabilities[place]),
            "solves": int(place) in policy.solving,
            "line": int(place) == policy.solution,
        }
        for place in order
    ]
    return {"legal_mass": policy.legal_mass, "traces": policy.traces, "moves": moves}


def _trace_record(reader: TraceReader, board: chess.Board, line: Line, row: Any) -> dict[str, Any]:
    written = reader.read(notation.from_text(row.trace))
    faults = [found.fault for found in written.lines if found.fault]
    return {
        "sample": int(row.sample),
        "solved": bool(row.solved),
        "closed": written.closed,
        "faults": {fault: faults.count(fault) for fault in sorted(set(faults))},
        "tree": _tree_record(board.copy(stack=False), written.tree(), line),
    }


def _tree_record(board: chess.Board, tree: Tree, line: Line) -> list[dict[str, Any]]:
    """Nodes as {san, line, below}; ``line``: whether the node lies on the puzzle's line."""
    nodes = []
    for move, below in tree.items():
        on_line = line[:1] == (move,)
        san = board.san(move)
        board.push(move)
        nodes.append({"san": san, "line": on_line, "below": _tree_record(board, below, line[1:] if on_line else ())})
        board.pop()
    return nodes


def _san_line(board: chess.Board, moves: Sequence[chess.Move]) -> list[str]:
    texts = []
    for move in moves:
        texts.append(board.san(move))
        board.push(move)
    return texts
