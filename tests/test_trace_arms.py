"""Arms of a comparison, end to end at toy size: same puzzles, same answers, and an account of tokens and FLOPs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from chessrl import notation, world
from chessrl.checkpoint import load_model
from chessrl.config import Config
from chessrl.engine import find_stockfish
from chessrl.errors import UserError
from chessrl.launch import CONF
from chessrl.puzzles import prompt_tokens
from chessrl.traces import TraceReader
from chessrl.training import GIVEN, Example
from sft.arms import answer_tokens, line_answer
from sft.data import build
from sft.examples import ANSWER, TRACE
from sft.trace_cache import proposing_model
from sft.traces import TraceReport
from sft.train import tokens_by_part
from tests import tiny

ARMS = sorted(path.stem for path in (CONF / "arm").glob("*.yaml"))


def arm_config(arm: str, runs: dict[str, Path], outputs: Path, *overrides: str) -> Config:
    return tiny.config("sft", outputs, f"parent={runs['pretrain']}", f"arm={arm}", f"sft.trace.teacher={runs['pretrain']}", *overrides)


def examples_of(config: Config, count: int = 30, report: TraceReport | None = None) -> list[Example]:
    parent = load_model(Path(config.parent) / "model", precision="fp32", device=torch.device("cpu"))
    puzzles = world.puzzles_of_split(config, "sft")[:count]
    return build(proposing_model(config, parent), puzzles, config, report if report is not None else TraceReport())


@pytest.fixture(scope="module")
def examples(tiny_runs, tmp_path_factory) -> dict[str, list[Example]]:
    outputs = tmp_path_factory.mktemp("arms")
    # The tiny model's samples are rarely legal: random play gives the arms about order and content lines to work with.
    random_lines = {arm: ["sft.trace.proposal=uniform"] for arm in ("trace", "shuffled", "breadth_first", "other_puzzle")}
    built = {arm: examples_of(arm_config(arm, tiny_runs, outputs, *random_lines.get(arm, []))) for arm in ARMS if arm != "engine"}
    return built | {"model": examples_of(arm_config("trace", tiny_runs, outputs))}


def text(example: Example, part: int) -> str:
    return notation.to_text(example.tokens[example.parts == part].tolist())


def test_every_arm_has_the_same_puzzles_and_the_same_answer_tokens(examples, tiny_runs, tmp_path):
    puzzles = world.puzzles_of_split(arm_config("none", tiny_runs, tmp_path), "sft")[:30]
    for arm, built in examples.items():
        assert len(built) == len(puzzles)
        for puzzle, example in zip(puzzles, built):
            prompt = prompt_tokens(puzzle, "snapshot", think=arm != "none")
            assert example.tokens[: len(prompt)].tolist() == prompt
            assert text(example, ANSWER) == text(examples["none"][puzzles.index(puzzle)], ANSWER)
            answer = [token for ply in answer_tokens(puzzle.board(), line_answer(puzzle)) for token in ply]
            assert example.tokens[-len(answer) :].tolist() == answer


def test_arms_differ_in_their_traces_alone(examples, tiny_runs, tmp_path):
    traces = {arm: [text(example, TRACE) for example in built] for arm, built in examples.items()}
    assert set(traces["none"]) == {""}
    assert traces["teacher"] == traces["model"]  # here the teacher is the parent itself
    assert traces["random"] == traces["trace"] != traces["model"]
    assert sorted(traces["other_puzzle"]) == sorted(traces["trace"])
    for one, two in zip(traces["trace"], traces["shuffled"]):
        assert sorted(one.removesuffix(" </T>").split(" <sep> ")) == sorted(two.removesuffix(" </T>").split(" <sep> "))
    assert all(traces[arm] != traces["trace"] for arm in ("shuffled", "breadth_first", "other_puzzle"))
    puzzles = world.puzzles_of_split(arm_config("none", tiny_runs, tmp_path), "sft")[:30]
    for puzzle, *written in zip(puzzles, *(traces[arm] for arm in ("trace", "shuffled", "breadth_first"))):
        trees = [TraceReader(puzzle.board()).read(notation.from_text(trace)).tree() for trace in written]
        assert trees[0] == trees[1] == trees[2] and trees[0]


def test_tokens_are_accounted_by_part(examples):
    for arm, built in examples.items():
        found = tokens_by_part(built)
        assert sum(found.values()) == sum(len(example.tokens) for example in built)
        assert found["trace"] == sum((example.parts == TRACE).sum() for example in built) and (found["trace"] == 0) == (arm == "none")
        assert found["answer"] == tokens_by_part(examples["none"])["answer"]
        assert found["given"] == tokens_by_part(examples["none"])["given"] + (len(built) if arm != "none" else 0)  # <T>
        assert all(example.parts[0] == GIVEN for example in built)


def test_a_context_drops_lines_first_and_then_the_puzzle_and_counts_both(tiny_runs, tmp_path):
    whole = examples_of(arm_config("random", tiny_runs, tmp_path))
    lengths = [len(example.tokens) for example in whole]
    bare = [len(example.tokens) - (example.parts == TRACE).sum() + 1 for example in whole]  # </T> alone
    context = (min(lengths) + sorted(bare)[-3]) // 2
    report = TraceReport()
    built = examples_of(arm_config("random", tiny_runs, tmp_path, f"sft.context={context}"), report=report)
    assert max(len(example.tokens) for example in built) <= context
    assert report.counts["puzzles over the context"] == sum(length > context for length in bare) == len(whole) - len(built)
    assert report.counts["lines over the budget"] > 0
    without = examples_of(arm_config("none", tiny_runs, tmp_path, f"sft.context={context}"))
    assert max(len(example.tokens) for example in without) <= context


@pytest.mark.parametrize("arm", ["none", "other_puzzle"])
def test_an_arm_trains_and_its_summary_holds_its_tokens_and_flops(arm, tiny_runs, tmp_path):
    config = arm_config(arm, tiny_runs, tmp_path, "sft.epochs=2")
    status, directory = tiny.start("sft", config)
    assert status == 0
    summary, traces = (json.loads((directory / name).read_text()) for name in ("summary.json", "traces.json"))
    tokens = summary["tokens_of_examples"]
    assert 2 * sum(tokens.values()) == summary["tokens"] and 2 * (tokens["trace"] + tokens["answer"]) == summary["loss_tokens"]
    assert (summary["flops_by_stage"]["traces"] == 0) == (arm == "none")
    assert summary["flops_by_stage"]["sft"] == 6 * summary["parameters"]["without_embeddings"] * summary["tokens"]
    if arm != "none":
        assert 0 <= traces["share of answer injected"] <= 1 and traces["share of traces that hold the answer's opening"] == 1


def test_engine_arms_and_answers(tiny_runs, tmp_path):
    """The engine's lines and, of the model's lines, the engine's best as the answer, at a few nodes."""
    try:
        find_stockfish()
    except UserError as error:
        pytest.skip(str(error))
    few = ["sft.trace.engine_nodes=200", "engine.depth=3", "engine.workers=1"]
    by_engine = examples_of(arm_config("engine", tiny_runs, tmp_path, *few), 6)
    assert all(text(example, TRACE).endswith("</T>") for example in by_engine)
    report = TraceReport()
    config = arm_config("random", tiny_runs, tmp_path, "sft.trace.answer=engine", "sft.trace.order=engine", *few)
    built = examples_of(config, 6, report)
    puzzles = world.puzzles_of_split(config, "sft")[:6]
    for puzzle, example in zip(puzzles, built):
        tree = TraceReader(puzzle.board()).read(notation.from_text(text(example, TRACE))).tree()
        answered = text(example, ANSWER).split(" <call_env>")[0].strip()
        first = next(iter(tree))  # the engine's order puts its best candidate first
        assert answered == notation.to_text(notation.move_tokens(puzzle.board(), first))
    assert report.counts["engine positions"] > 0
