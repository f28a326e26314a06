"""The sampler and its environment against plain, slow implementations of the same rules."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import torch
from scipy import stats

from chessrl import notation
from chessrl.config import ModelConfig
from chessrl.environment import build_environment
from chessrl.model import Transformer, build_model, token_logprobs
from chessrl.puzzles import Puzzle, prompt_tokens
from chessrl.randomness import combine, draw, mix, stream_key, uniform
from chessrl.sampler import OUTCOMES, Rollout, SamplingSettings, rollout

TINY = ModelConfig("tiny", layers=2, hidden=32, ffn=48, heads=2, kv_heads=1, head_dim=16)

PUZZLES = [
    Puzzle("back-rank", "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1", ("a1a8",), 0, 1, "B1"),
    Puzzle("two-rooks", "7k/8/8/8/8/8/R7/1R4K1 w - - 0 1", ("a2a7", "h8g8", "b1b8"), 0, 2, "B2"),
    Puzzle("promotes", "7k/P7/6K1/8/8/8/8/8 w - - 0 1", ("a7a8q",), 0, 1, "B1"),
    Puzzle("many-mates", "k7/8/1K6/8/8/8/8/QR6 w - - 0 1", ("a1g7", "a8b8", "g7b7"), 0, 2, "B2"),
    Puzzle("en-passant", "8/8/8/K2pP2k/8/8/8/8 w - d6 0 1", ("e5d6", "h5g5", "d6d7"), 0, 2, "B2"),
    Puzzle("long-castle", "2k5/8/8/8/8/8/8/R3K3 w Q - 0 1", ("e1c1", "c8b8", "d1d8"), 0, 2, "B2"),
    Puzzle("after-reply", "6k1/5ppp/8/8/8/8/r4PPP/R5K1 b - - 0 1", ("a2b2", "a1a8"), 1, 900, "B1"),
]


def play_reference(puzzle: Puzzle, tokens: list[int], protocol: str, budget: int, spelling: str) -> tuple[str, bool, list[bool]]:
    """Judge an episode's tokens with python-chess alone: outcome, strict spelling, and which tokens the policy wrote."""
    rest = list(tokens)
    policy: list[bool] = []

    def take() -> int:
        policy.append(True)
        return rest.pop(0)

    if protocol == "think":
        thought = 0
        while take() != notation.END_THINK:
            thought += 1
            if thought > budget:
                return "no_end_think", False, policy
    board = puzzle.board()
    line = list(puzzle.moves[puzzle.lead :])
    strict = True
    while True:
        written: list[int] = []
        while True:
            done = read_move(written)
            if protocol == "game" and done == "finished":
                break
            if protocol == "game" and done == "may end" and (not rest or read_move([*written, rest[0]]) == "no move"):
                break
            token = take()
            if protocol != "game" and token == notation.CALL_ENV and done in ("may end", "finished"):
                break
            if read_move([*written, token]) == "no move":
                return ("unclosed" if done in ("may end", "finished") else "malformed"), False, policy
            written.append(token)
        try:
            move = notation.parse_move(board, written, strict=False)
        except notation.NotationError:
            return "illegal", False, policy
        canonical = written == notation.move_tokens(board, move)
        line_move = board.parse_uci(line[0])
        after = board.copy()
        after.push(move)
        if (move != line_move and not after.is_checkmate()) or (spelling == "strict" and not canonical):
            return "wrong", False, policy
        strict &= canonical
        if move != line_move or len(line) == 1:
            return "solved", strict, policy
        reply = notation.move_tokens(after, after.parse_uci(line[1]))
        assert rest[: len(reply)] == reply, "the environment's reply must be forced token by token"
        policy += [False] * len(reply)
        rest = rest[len(reply) :]
        after.push_uci(line[1])
        board, line = after, line[2:]


def read_move(tokens: list[int]) -> str:
    """Whether tokens are a beginning of a move: "no move", "goes on", "may end" or "finished", by text matching."""
    text = " ".join(notation.VOCABULARY[token] for token in tokens) + " "
    square = r"[a-h][1-8] "
    if re.fullmatch(rf"([KQRBNP] {square}(x )?{square}(= [KQRBNP] )?|O-O(-O)? )[+#] ", text):
        return "finished"
    if re.fullmatch(rf"[KQRBNP] {square}(x )?{square}(= [KQRBNP] )?|O-O(-O)? ", text):
        return "may end"
    parts = [r"[KQRBNP] ", square, r"(x )?", square, r"= "]
    if any(re.fullmatch("".join(parts[:count]), text) for count in range(1, len(parts) + 1)) or not tokens:
        return "goes on"
    return "no move"


def all_episodes(result: Rollout) -> list[tuple[int, list[int]]]:
    return [(int(p), t[: int(n)].tolist()) for p, t, n in zip(result.puzzles, result.tokens, result.lengths)]


@functools.cache
def trained_model(protocol: str, steps: int = 400) -> Transformer:
    """A tiny model fitted for some steps to solutions, wrong moves, off-line mates and misspellings: it errs in every way there is."""
    rng = np.random.default_rng(0)
    model = build_model(TINY, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        puzzle = PUZZLES[rng.integers(len(PUZZLES))]
        board, line = puzzle.board(), list(puzzle.moves[puzzle.lead :])
        ids = prompt_tokens(puzzle, "snapshot", think=protocol == "think")
        if protocol == "think":
            ids += [*notation.move_tokens(board, board.parse_uci(line[0])), notation.END_THINK]
        for ply, uci in enumerate(line):
            move = board.parse_uci(uci)
            if ply % 2 == 0 and rng.random() < 0.3:
                moves = list(board.legal_moves)
                mates = [m for m in moves if (board.push(m), board.is_checkmate(), board.pop())[1]]
                move = (mates or moves)[rng.integers(len(mates or moves))] if rng.random() < 0.5 else moves[rng.integers(len(moves))]
            tokens = notation.move_tokens(board, move)
            if rng.random() < 0.15:
                tokens = [*tokens[:-1], int(rng.integers(85))]
            ids += tokens + ([notation.CALL_ENV] if ply % 2 == 0 and protocol != "game" else [])
            if move != board.parse_uci(uci):
                break
            board.push(move)
        batch = torch.tensor(ids)[None]
        loss = -token_logprobs(model(batch[:, :-1]), batch[:, 1:]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.fixture(scope="module")
def environment():
    return build_environment(PUZZLES)


@pytest.mark.parametrize("protocol", ["think", "answer", "game"])
@pytest.mark.parametrize("spelling", ["lenient", "strict"])
def test_environment_equals_plain_python_chess_rules(environment, protocol, spelling):
    model = trained_model(protocol)
    prompts = [prompt_tokens(puzzle, "snapshot", think=protocol == "think") for puzzle in PUZZLES]
    settings = SamplingSettings(protocol, 1.2, thinking_budget=6, spelling=spelling, seed=3)
    result = rollout(model, environment, list(range(len(PUZZLES))), prompts, 80, settings)
    seen: dict[str, int] = {}
    for row, (index, tokens) in enumerate(all_episodes(result)):
        # In the game protocol the move's last token is followed by whatever the reply is; an episode's own end closes the last move.
        outcome, strict, policy = play_reference(PUZZLES[index], tokens, protocol, 6, spelling)
        assert OUTCOMES[int(result.outcome[row])] == outcome, (PUZZLES[index].id, notation.to_text(tokens))
        assert bool(result.strict[row]) == (strict and outcome == "solved")
        assert result.policy[row, : len(tokens)].tolist() == policy
        assert not result.policy[row, len(tokens) :].any()
        seen[outcome] = seen.get(outcome, 0) + 1
    expected = {"solved", "wrong", "illegal", "malformed"} | {"think": {"unclosed", "no_end_think"}, "answer": {"unclosed"}, "game": set()}[
        protocol
    ]
    assert expected <= set(seen), seen


def test_batched_equals_one_by_one_for_unequal_prompts(environment):
    model = trained_model("answer")
    prompts = [prompt_tokens(puzzle, "snapshot", think=False) for puzzle in PUZZLES]
    assert len({len(prompt) for prompt in prompts}) > 1
    for temperature in (0.0, 1.0):  # a sample depends on its own counter, not on its batch-mates
        settings = SamplingSettings("answer", temperature, 0, seed=5)
        together = rollout(model, environment, list(range(len(PUZZLES))), prompts, 3, settings)
        for index, prompt in enumerate(prompts):
            alone = rollout(model, environment, [index], [prompt], 3, settings)
            for sample in range(3):
                row, length = index * 3 + sample, int(alone.lengths[sample])
                assert together.tokens[row, :length].tolist() == alone.tokens[sample, :length].tolist()
                assert int(together.lengths[row]) == length


def test_first_sample_continues_the_same_stream(environment):
    model = trained_model("answer")
    prompt = prompt_tokens(PUZZLES[0], "snapshot", think=False)
    whole = rollout(model, environment, [0], [prompt], 6, SamplingSettings("answer", 1.0, 0, seed=5))
    tail = rollout(model, environment, [0], [prompt], 2, SamplingSettings("answer", 1.0, 0, seed=5, first_sample=4))
    assert [t[:n].tolist() for t, n in zip(tail.tokens, tail.lengths)] == [
        t[:n].tolist() for t, n in zip(whole.tokens[4:], whole.lengths[4:])
    ]


def test_group_members_differ_from_the_first_token_on(environment):
    """With 64 samples of a nearly uniform distribution over 101 tokens, all equal has probability below 1e-100."""
    model = build_model(TINY, seed=0)
    result = rollout(model, environment, [0], [prompt_tokens(PUZZLES[0], "snapshot", think=False)], 64, SamplingSettings("answer", 1.0, 0))
    assert len(set(result.tokens[:, 0].tolist())) > 10


@pytest.mark.parametrize(("protocol", "temperature"), [("think", 1.0), ("answer", 0.7), ("game", 1.5)])
def test_stored_logprobs_equal_a_full_forward(environment, protocol, temperature):
    model = trained_model(protocol)
    prompts = [prompt_tokens(puzzle, "snapshot", think=protocol == "think") for puzzle in PUZZLES]
    result = rollout(model, environment, list(range(len(PUZZLES))), prompts, 16, SamplingSettings(protocol, temperature, 8))
    assert result.policy.any(0).sum() > 5
    for row in range(len(result.lengths)):
        prompt = result.prompts[row, : result.prompt_lengths[row]]
        tokens = result.tokens[row, : result.lengths[row]]
        ids = torch.cat([prompt, tokens])[None]
        with torch.no_grad():
            full = token_logprobs(model(ids[:, :-1]), ids[:, 1:], temperature)[0, len(prompt) - 1 :]
        mask = result.policy[row, : len(tokens)]
        assert torch.allclose(full[mask], result.logprobs[row, : len(tokens)][mask], atol=1e-5, rtol=0)
        assert (result.logprobs[row][~result.policy[row]] == 0).all()


def test_sampled_frequencies_follow_the_models_probabilities(environment):
    """Chi-square over 20,000 first tokens; a right sampler fails with probability 1e-4."""
    model = trained_model("answer")
    prompt = prompt_tokens(PUZZLES[0], "snapshot", think=False)
    with torch.no_grad():
        probabilities = (model(torch.tensor([prompt]))[0, -1] / 1.3).softmax(-1).double().numpy()
    counts = np.zeros(len(probabilities))
    for seed in range(10):
        result = rollout(model, environment, [0], [prompt], 2000, SamplingSettings("answer", 1.3, 0, seed=seed))
        counts += np.bincount(result.tokens[:, 0].numpy(), minlength=len(counts))
    rare = probabilities * counts.sum() < 5
    expected = np.append(probabilities[~rare], probabilities[rare].sum()) * counts.sum()
    observed = np.append(counts[~rare], counts[rare].sum())
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-4


def test_uniform_numbers_are_uniform_and_reproducible():
    keys = mix(torch.arange(200_000) + stream_key(0, "rl", 7, torch.device("cpu")))
    values = uniform(keys).numpy()
    assert values.min() >= 0 and values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    assert uniform(torch.tensor([-1])).item() == (2**53 - 1) / 2**53  # int64 >> is arithmetic: the sign must not be shifted in


def test_draw_never_takes_a_token_of_probability_zero():
    logprobs = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(1000, -1)
    assert set(draw(logprobs, torch.arange(1000)).tolist()) == {1}


def test_an_integer_and_a_tensor_give_the_same_key():
    key = stream_key(3, "sft", 2, torch.device("cpu"))
    for value in (0, 1, 7, 2**40, -5):
        assert combine(key, value) == combine(key, torch.tensor(value))


@pytest.mark.gpu
def test_cuda_greedy_episodes_equal_the_cpus(environment):
    model = trained_model("answer")
    prompts = [prompt_tokens(puzzle, "snapshot", think=False) for puzzle in PUZZLES]
    settings = SamplingSettings("answer", 0.0, 0)
    expected = rollout(model, environment, list(range(len(PUZZLES))), prompts, 2, settings)
    try:
        found = rollout(model.cuda(), environment.to(torch.device("cuda")), list(range(len(PUZZLES))), prompts, 2, settings)
    finally:
        model.cpu()
    assert found.tokens.cpu().tolist() == expected.tokens.tolist()
    assert found.outcome.cpu().tolist() == expected.outcome.tolist()
