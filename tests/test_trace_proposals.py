"""Who proposes the lines of traces, and that what was proposed once is kept."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import chess
import pytest
import torch
from scipy import stats

from chessrl import notation, world
from chessrl.checkpoint import load_model
from chessrl.config import Config, TraceConfig
from chessrl.continuation import continue_text
from chessrl.engine import Engine, EngineSettings, find_stockfish
from chessrl.engine_labels import best_variations
from chessrl.errors import UserError
from chessrl.grammar import DEAD, START, MoveGrammar
from chessrl.model import Transformer
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.randomness import combine, draw
from chessrl.run import digest
from chessrl.traces import Tree, leaf_lines
from sft import proposals, trace_cache
from sft import train as sft
from sft.proposals import EngineProposal, ModelProposal, UniformProposal
from sft.trace_cache import cached_trees, proposing_model
from sft.traces import Continuation, Proposal, TraceReport, build_trees
from tests import tiny
from tests.test_sampler import PUZZLES
from tests.test_traces import wandering_model

TWO_ROOKS = PUZZLES[1]
LONG = TraceConfig(candidates=4, continuations_mean=3.0, length_mean=3.0, length_sigma=0.6, length_max=6, inject_answer=False)


def lines_of(proposal: Proposal, puzzles: list[Puzzle], config: TraceConfig = LONG, report: TraceReport | None = None) -> list[list[str]]:
    trees = build_trees(proposal, puzzles, config, seed=0, report=report or TraceReport(), done=lambda count: None)
    return [[" ".join(map(chess.Move.uci, line)) for line in leaf_lines(tree)] for tree in trees]


def assert_legal(puzzles: list[Puzzle], lines: list[list[str]], longest: int) -> None:
    for puzzle, written in zip(puzzles, lines):
        for line in written:
            board = puzzle.board()
            assert 1 <= len(line.split()) <= longest
            for uci in line.split():
                board.push(board.parse_uci(uci))  # raises on an illegal move


# ---- a model ----------------------------------------------------------------------------------------------------------------------------


def plain_text(model: Transformer, prompt: list[int], key: torch.Tensor, plies: int) -> list[int]:
    """One token after the other by full forward passes, up to the token that shows that ``plies`` moves are written or that one is none."""
    grammar, state, text = MoveGrammar.on(torch.device("cpu")), START, []
    while True:
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + text]))[:, -1].log_softmax(-1)
        token = int(draw(logprobs, combine(key, len(text))[None]))
        text.append(token)
        following = int(grammar.transition[state, token])
        if following == DEAD and grammar.complete[state]:
            plies -= 1
            following = int(grammar.transition[START, token])
        state = following
        if plies == 0 or state == DEAD or len(text) == 7 * 4:
            return text


def test_continuations_equal_plain_sampling_one_by_one_and_stop_when_the_moves_are_written():
    """More sequences than one compaction needs, of unequal prompts and lengths, several to a prompt."""
    model = wandering_model()
    prompts = [prompt_tokens(puzzle, "snapshot", think=False) for puzzle in PUZZLES]
    rows = torch.arange(len(PUZZLES)).repeat_interleave(4)
    keys = combine(torch.tensor(7), torch.arange(len(rows)))
    plies = torch.tensor([1, 4, 2, 3] * len(PUZZLES))
    texts, written = continue_text(model, prompts, rows, keys, plies, 1.0)
    ends = set()
    for at in range(len(rows)):
        expected = plain_text(model, prompts[int(rows[at])], keys[at], int(plies[at]))
        if len(expected) < 7 * int(plies[at]):
            assert texts[at, : int(written[at])].tolist() == expected
            assert (texts[at, int(written[at]) :] == notation.PAD).all()
            ends.add(len(expected))
    assert len(ends) > 5, "too few lengths were seen to tell"


@pytest.mark.parametrize("at_once", [1, 300, 2000])
def test_sampling_in_several_parts_changes_no_line(monkeypatch, at_once):
    proposal = ModelProposal(wandering_model(), LONG, "snapshot", 0)
    report, parted = TraceReport(), TraceReport()
    whole = lines_of(proposal, PUZZLES, report=report)
    assert max(len(line.split()) for lines in whole for line in lines) >= 4
    monkeypatch.setattr(proposals, "TOKENS_AT_ONCE", at_once)
    assert lines_of(proposal, PUZZLES, report=parted) == whole
    assert parted.counts == report.counts and parted.sampled_tokens == report.sampled_tokens
    assert report.counts["continuations"] > report.counts["illegal continuations"] > 0


# ---- random play ------------------------------------------------------------------------------------------------------------------------


def test_random_play_is_legal_whole_and_the_same_whatever_the_batch():
    proposal = UniformProposal(LONG, 0)
    lines = lines_of(proposal, PUZZLES)
    assert_legal(PUZZLES, lines, LONG.length_max)
    assert lines_of(proposal, PUZZLES[::-1]) == lines[::-1] and lines_of(proposal, PUZZLES[2:3]) == lines[2:3]
    assert lines_of(UniformProposal(LONG, 1), PUZZLES) != lines
    asked = [Continuation(0, chess.Move.from_uci("g1h1"), 5)]  # nothing ends the game in five plies here
    assert len(proposal.continuations(PUZZLES, asked, TraceReport())[0]) == 5
    assert proposal.continuations(PUZZLES, [Continuation(0, chess.Move.from_uci("a1a8"), 5)], TraceReport()) == [()]  # mate: nothing follows


def test_random_first_moves_are_equally_likely():
    """Chi-square over 3,000 draws; right draws fail with probability 1e-4. Repeated first moves are merged, so one is drawn per puzzle."""
    proposal = UniformProposal(TraceConfig(candidates=1), 0)
    copies = [Puzzle(f"{number}", TWO_ROOKS.fen, TWO_ROOKS.moves, 0, 2, "B2") for number in range(3000)]
    drawn = [moves[0] for moves in proposal.first_moves(copies, TraceReport())]
    counts = [drawn.count(move) for move in TWO_ROOKS.board().legal_moves]
    assert sum(counts) == 3000 and stats.chisquare(counts).pvalue > 1e-4


# ---- the engine -------------------------------------------------------------------------------------------------------------------------


def test_variations_are_read_from_the_deepest_iteration_that_has_all():
    printed = [
        "info depth 5 seldepth 5 multipv 1 score cp 945 nodes 500 pv b1b8 h8h7",
        "info depth 5 seldepth 5 multipv 2 score cp 900 lowerbound nodes 500 pv a2a3",
        "info depth 5 seldepth 5 multipv 2 score cp 894 nodes 500 pv b1b4",
        "info depth 6 seldepth 3 multipv 1 score cp 1109 nodes 900 pv b1b7 h8g8",
        "info depth 6 seldepth 5 multipv 2 score cp 890 nodes 900 pv b1b8 h8g7 b8b7",
        "info depth 6 seldepth 5 multipv 1 score cp 1200 nodes 950 pv b1b8 h8g7",  # looked at again, and now the best
        "info depth 6 seldepth 5 multipv 2 score cp 1109 nodes 950 pv b1b7 h8g8",
        "info depth 7 seldepth 4 multipv 1 score mate 2 nodes 1000 pv b1b7 h8g8 a2a8",
    ]
    assert best_variations(printed, 2) == [["b1b8", "h8g7"], ["b1b7", "h8g8"]]
    assert best_variations(printed, 1) == [["b1b7", "h8g8", "a2a8"]]
    assert best_variations(printed[:2], 2) == [["b1b8", "h8h7"]] and best_variations([], 2) == []


@functools.cache
def needs_engine() -> None:
    try:
        find_stockfish()
    except UserError as error:
        pytest.skip(str(error))


def test_the_engines_lines_are_its_best_variations():
    needs_engine()
    config = TraceConfig(candidates=3, continuations_mean=2.0, length_mean=3.0, length_max=3, engine_nodes=3000, inject_answer=False)
    report = TraceReport()
    with Engine(EngineSettings(workers=2)) as engine:
        proposal = EngineProposal(engine, config)
        lines = lines_of(proposal, PUZZLES, config, report)
        assert lines_of(proposal, PUZZLES[::-1], config) == lines[::-1]
        alone = lines_of(proposal, [TWO_ROOKS], config)
    assert alone == lines[1:2]
    assert_legal(PUZZLES, lines, 3)
    assert {lines[0][0], lines[2][0]} == {"a1a8", "a7a8q"}, "a mate in one is the engine's first move"
    assert report.counts["engine searches that failed"] == 0 and report.counts["engine searches"] > len(PUZZLES)
    assert all(len({line.split()[0] for line in written}) == 3 for written in lines[:2])


def test_a_position_with_few_moves_or_none_has_few_variations_or_none():
    needs_engine()
    cornered, mated = chess.Board("7k/8/5K2/8/8/8/8/6Q1 b - - 0 1"), chess.Board("R5k1/5ppp/8/8/8/8/5PPP/6K1 b - - 0 1")
    assert cornered.legal_moves.count() == 1 and mated.is_checkmate()
    with Engine(EngineSettings(workers=1)) as engine:
        one, none = engine.variations([cornered, mated], [4, 4], 500)
        assert [line[0] for line in one] == ["h8h7"] and none == []
        assert engine.counts["searched"] == 1


# ---- the cache --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tiny_runs, tmp_path) -> Config:
    return tiny.config("sft", tmp_path, f"parent={tiny_runs['pretrain']}", "sft.trace.inject_answer=true")


def trees_of(config: Config, puzzles: list[Puzzle], report: TraceReport | None = None) -> list[Tree]:
    parent = load_model(Path(config.parent) / "model", precision="fp32", device=torch.device("cpu"))
    return cached_trees(proposing_model(config, parent), puzzles, config, report if report is not None else TraceReport())


@pytest.fixture
def puzzles(config) -> list[Puzzle]:
    return world.puzzles_of_split(config, "sft")[:10]


def test_what_was_proposed_once_is_read_and_not_sampled_again(config, puzzles, monkeypatch):
    first, again = TraceReport(), TraceReport()
    trees = trees_of(config, puzzles, first)
    monkeypatch.setattr(trace_cache, "build_trees", None)
    assert [leaf_lines(tree) for tree in trees_of(config, puzzles, again)] == [leaf_lines(tree) for tree in trees]
    assert again == first and first.sampled_tokens > 0, "the account of a run must not depend on who sampled"


def test_arms_share_what_was_proposed_and_other_proposals_do_not(config, puzzles, monkeypatch):
    data = Path(config.outputs) / "data"
    trees_of(config, puzzles)
    assert len(list(data.glob("traces-*"))) == 1
    trace = config.sft.trace
    trace.order, trace.serialise, trace.content, trace.budget, trace.answer = "random", "bfs", "other_puzzle", 9, "engine"
    config.sft.optimizer.lr = 0.5
    with monkeypatch.context() as patched:
        patched.setattr(trace_cache, "build_trees", None)
        trees_of(config, puzzles)
    trace.candidates += 1
    trees_of(config, puzzles)
    config.sft.seed += 1
    trees_of(config, puzzles)
    trees_of(config, puzzles[::-1])
    trace.proposal = "uniform"
    trees_of(config, puzzles)
    assert len(list(data.glob("traces-*"))) == 5 and not list(data.glob(".*lock*"))


def test_an_interrupted_proposal_goes_on_at_its_next_part(config, puzzles, monkeypatch, tmp_path):
    whole = trees_of(config, puzzles)
    shutil.rmtree(tmp_path / "data")
    monkeypatch.setattr(trace_cache, "PUZZLES_PER_PART", 4)
    calls: list[int] = []

    def failing(proposal, own, *args, **keys):
        calls.append(len(own))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return build_trees(proposal, own, *args, **keys)

    monkeypatch.setattr(trace_cache, "build_trees", failing)
    with pytest.raises(KeyboardInterrupt):
        trees_of(config, puzzles)
    assert [leaf_lines(tree) for tree in trees_of(config, puzzles)] == [leaf_lines(tree) for tree in whole]
    assert calls == [4, 4, 4, 2]  # the first part was not sampled twice


def test_a_damaged_part_is_named(config, puzzles, tmp_path):
    trees_of(config, puzzles)
    (part,) = (tmp_path / "data").glob("traces-*/00000.json")
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(UserError, match=r"00000\.json is damaged .*: delete the file"):
        trees_of(config, puzzles)


# ---- the teacher ------------------------------------------------------------------------------------------------------------------------


def test_a_teachers_traces_are_its_samples_and_its_run_enters_the_identity(config, puzzles, tiny_runs, tmp_path):
    own = digest(sft.identity(config))
    status, teacher = tiny.start("pretrain", tiny.config("pretrain", tiny.share_data(tmp_path / "teacher", tiny_runs), "pretrain.seed=5"))
    assert status == 0
    config.sft.trace.proposal, config.sft.trace.teacher = "teacher", str(teacher)
    identified = digest(sft.identity(config))
    assert identified != own
    model = load_model(teacher / "model", precision="fp32", device=torch.device("cpu"))
    proposal = ModelProposal(model, config.sft.trace, "snapshot", config.sft.seed)
    expected = build_trees(proposal, puzzles, config.sft.trace, seed=config.sft.seed, report=TraceReport(), done=lambda count: None)
    assert [leaf_lines(tree) for tree in trees_of(config, puzzles)] == [leaf_lines(tree) for tree in expected]
    shutil.move(teacher, tmp_path / "moved")
    config.sft.trace.teacher = str(tmp_path / "moved")
    assert digest(sft.identity(config)) == identified, "the path entered the identity"


@pytest.mark.parametrize(
    ("teacher", "message"), [("", "needs sft.trace.teacher=RUN"), ("sft", "is a run of stage sft"), ("none", "is not a finished run")]
)
def test_a_teacher_that_cannot_propose_is_refused(config, tiny_runs, teacher, message):
    config.sft.trace.proposal = "teacher"
    config.sft.trace.teacher = str(tiny_runs.get(teacher, teacher))
    with pytest.raises(UserError, match=message):
        sft.identity(config)
