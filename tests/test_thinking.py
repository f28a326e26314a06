"""Who ends a trace: budgets that close it and minima that keep it open, against episodes without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from chessrl import notation
from chessrl.environment import Environment, build_environment
from chessrl.errors import UserError
from chessrl.evaluate import evaluate, sample_policy
from chessrl.model import token_logprobs
from chessrl.puzzles import prompt_tokens
from chessrl.sampler import NO_END_THINK, OUTCOMES, Rollout, SamplingSettings, rollout
from chessrl.trace_report import trace_tokens_of
from tests import tiny
from tests.test_sampler import PUZZLES, play_reference, trained_model

GROUP = 40
WAYS = [
    {"thinking": "forced", "thinking_budget": 0},
    {"thinking": "forced", "thinking_budget": 3},
    {"thinking": "minimum", "thinking_budget": 12, "thinking_minimum": 8},
    {"thinking": "minimum", "thinking_budget": 7, "thinking_minimum": 7},
]


@pytest.fixture(scope="module")
def environment() -> Environment:
    return build_environment(PUZZLES)


def settings(temperature: float = 1.2, **changes) -> SamplingSettings:
    return SamplingSettings(**{"protocol": "think", "temperature": temperature, "thinking_budget": 12, "seed": 3} | changes)


def play(environment: Environment, how: SamplingSettings, puzzles: list[int], group: int = GROUP) -> Rollout:
    prompts = [prompt_tokens(PUZZLES[index], "snapshot", think=True) for index in puzzles]
    return rollout(trained_model("think"), environment, puzzles, prompts, group, how)


def episodes(result: Rollout) -> list[tuple[list[int], list[bool]]]:
    """Tokens and policy mask of every episode."""
    return [
        (tokens[:length], policy[:length])
        for tokens, policy, length in zip(result.tokens.tolist(), result.policy.tolist(), result.lengths.tolist())
    ]


@pytest.mark.parametrize("budget", [0, 1, 3, 4])
def test_a_forced_end_leaves_the_trace_as_it_was_up_to_the_budget(environment, budget):
    everything = list(range(len(PUZZLES)))
    natural, forced = play(environment, settings(), everything), play(environment, settings(thinking="forced", thinking_budget=budget), everything)
    put = 0
    for (free, _), (tokens, policy) in zip(episodes(natural), episodes(forced)):
        trace = free[: free.index(notation.END_THINK)] if notation.END_THINK in free else free
        assert tokens[: min(budget, len(trace))] == trace[:budget]
        end = tokens.index(notation.END_THINK)
        assert end == min(budget, len(trace))
        assert policy[end] == (len(trace) <= budget), "an end that the policy wrote itself is its own"
        assert all(policy[:end]), "the trace before it is the policy's"
        put += not policy[end]
    assert put > 10 and not (forced.outcome == NO_END_THINK).any()
    assert forced.trace_lengths.tolist() == [tokens.index(notation.END_THINK) for tokens, _ in episodes(forced)]


@pytest.mark.parametrize(("minimum", "budget"), [(3, 12), (8, 12), (7, 7)])
def test_an_early_end_becomes_a_separator_and_the_trace_goes_on(environment, minimum, budget):
    everything = list(range(len(PUZZLES)))
    how = settings(thinking="minimum", thinking_budget=budget, thinking_minimum=minimum)
    natural, kept = play(environment, settings(), everything), play(environment, how, everything)
    put = 0
    for (free, _), (tokens, policy) in zip(episodes(natural), episodes(kept)):
        end = tokens.index(notation.END_THINK)
        assert minimum <= end <= budget
        given = [place for place in range(end) if not policy[place]]
        assert all(tokens[place] == notation.SEP for place in given), "the environment writes nothing but separators into a trace"
        first = given[0] if given else end
        assert tokens[:first] == free[:first]
        if given:
            assert free[first] == notation.END_THINK and first < minimum
        put += len(given)
        assert policy[end] or end == budget
    assert put > 10


@pytest.mark.parametrize("way", WAYS)
def test_after_any_end_the_answer_is_judged_as_always(environment, way):
    result = play(environment, settings(**way), list(range(len(PUZZLES))))
    seen = set()
    for row, (tokens, policy) in enumerate(episodes(result)):
        outcome, strict, expected = play_reference(PUZZLES[row // GROUP], tokens, "think", 1000, "lenient")
        end = tokens.index(notation.END_THINK)
        assert OUTCOMES[int(result.outcome[row])] == outcome and bool(result.strict[row]) == (strict and outcome == "solved")
        assert policy[end + 1 :] == expected[end + 1 :]
        seen.add(outcome)
    assert len(seen) > 2


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize("way", WAYS)
def test_batched_equals_one_by_one(environment, way, temperature):
    how = settings(temperature, **way)
    together = episodes(play(environment, how, list(range(len(PUZZLES))), 3))
    for index in range(len(PUZZLES)):
        assert episodes(play(environment, how, [index], 3)) == together[3 * index : 3 * index + 3]


@pytest.mark.parametrize("way", WAYS)
def test_what_the_environment_writes_has_no_log_probability_and_the_policys_tokens_have_theirs(environment, way):
    result = play(environment, settings(**way), list(range(len(PUZZLES))), 8)
    for row in range(len(result.lengths)):
        prompt, length = result.prompts[row, : result.prompt_lengths[row]], int(result.lengths[row])
        ids = torch.cat([prompt, result.tokens[row, :length]])[None]
        with torch.no_grad():
            full = token_logprobs(trained_model("think")(ids[:, :-1]), ids[:, 1:], 1.2)[0, len(prompt) - 1 :]
        policy = result.policy[row, :length]
        assert torch.allclose(full[policy], result.logprobs[row, :length][policy], atol=1e-5, rtol=0)
        assert (result.logprobs[row, :length][~policy] == 0).all()


def test_the_samples_table_says_which_ends_were_forced(environment):
    how = settings(thinking="forced", thinking_budget=3)
    table = sample_policy(trained_model("think"), environment, PUZZLES, "snapshot", GROUP, how, 1000, keep_traces=True)
    assert 0 < table["trace_forced"].sum() < len(table) and not table["truncated"].any()
    assert (table["trace_length"][table["trace_forced"]] == 3).all()
    closed = table["trace"].map(lambda tokens: notation.END_THINK in tokens)
    assert (closed == ~table["trace_forced"]).all(), "an end that was forced must not make the last line look finished"
    natural = sample_policy(trained_model("think"), environment, PUZZLES, "snapshot", 4, settings(), 1000)
    assert not natural["trace_forced"].any()


def test_traces_without_a_budget_are_whole(environment):
    result = play(environment, settings(), [1])
    for (tokens, _), text in zip(episodes(result), trace_tokens_of(result)):
        assert text == (tokens[: tokens.index(notation.END_THINK) + 1] if notation.END_THINK in tokens else tokens[:12])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"thinking": "never"}, "'never': expected one of"), ({"thinking_minimum": 13}, "thinking_minimum=13: expected at most thinking_budget=12")],
)
def test_impossible_ways_of_thinking_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        settings(**changes)


def test_evaluations_of_different_thinking_are_told_apart(tiny_runs, tmp_path):
    parent = Path(shutil.copytree(tiny_runs["sft"], tmp_path / tiny_runs["sft"].name))
    ways = {
        "think": [],
        "think-forced": ["evaluate.thinking=forced"],
        "think-minimum-20": ["evaluate.thinking=minimum", "evaluate.thinking_minimum=20"],
        "answer": ["evaluate.protocol=answer"],
    }
    folders = {}
    for label, overrides in ways.items():
        config = tiny.config("evaluate", tmp_path, f"parent={parent}", "evaluate.max_puzzles=10", *overrides)
        assert evaluate(config) == 0
        folders[label] = tiny.evaluation_folder(config)
        assert set(pd.read_csv(folders[label] / "passk.csv")["protocol"]) == {label}
    assert len(set(folders.values())) == len(ways)
    lengths = {label: pd.read_parquet(folder / "samples.parquet")["trace_length"] for label, folder in folders.items()}
    assert (lengths["answer"] == 0).all() and lengths["think-minimum-20"].between(20, 24).all()
