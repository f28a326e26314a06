"""Evaluations: what samples.parquet holds, that the tables follow from it, and that nothing is sampled twice."""

from __future__ import annotations

import json
import shutil
from itertools import combinations, groupby
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from chessrl import notation, world
from chessrl.config import Config
from chessrl.engine import find_stockfish
from chessrl.environment import build_environment
from chessrl.errors import UserError
from chessrl.evaluate import evaluate, evaluation_folder, protocol_of, sample_policy
from chessrl.puzzles import prompt_tokens
from chessrl.sampler import OUTCOMES, SamplingSettings, rollout
from chessrl.verifier import environment_of
from tests import tiny
from tests.test_sampler import PUZZLES, trained_model

COLUMNS = {
    "puzzle": "str", "split": "str", "bin": "str", "sample": "int64", "tokens": "int64", "solved": "bool", "solved_strict": "bool",
    "solved_by_line": "bool", "first_move": "str", "answer": "str", "legal": "bool", "format": "bool", "truncated": "bool", "failure": "str",
    "trace_length": "int64", "trace_forced": "bool", "answer_length": "int64", "logprob": "float64", "entropy": "float64",
}  # fmt: skip


def settings(protocol: str = "think", **changes) -> SamplingSettings:
    return SamplingSettings(protocol, 1.0, 6, seed=3, **changes)


def sampled(protocol: str = "think", samples: int = 8, batch: int = 1000, **changes) -> pd.DataFrame:
    how = settings(protocol, **changes)
    return sample_policy(trained_model(protocol), build_environment(PUZZLES), PUZZLES, "snapshot", samples, how, batch)


# ---- the samples table -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["think", "answer", "game"])
def test_samples_table_equals_the_rollout_it_was_made_of(protocol):
    table = sampled(protocol)
    assert {name: str(kind) for name, kind in table.dtypes.items()} == COLUMNS
    assert len(table) == 8 * len(PUZZLES) and not table.duplicated(["puzzle", "sample"]).any()
    assert table.groupby("puzzle")["sample"].apply(list).map(lambda numbers: numbers == list(range(8))).all()
    prompts = [prompt_tokens(puzzle, "snapshot", think=protocol == "think") for puzzle in PUZZLES]
    result = rollout(trained_model(protocol), build_environment(PUZZLES), range(len(PUZZLES)), prompts, 8, settings(protocol))
    rows = table.set_index(["puzzle", "sample"])
    for index in range(len(result.lengths)):
        row = rows.loc[(PUZZLES[index // 8].id, index % 8)]
        tokens, policy = result.tokens[index, : result.lengths[index]].tolist(), result.policy[index, : result.lengths[index]]
        outcome = OUTCOMES[int(result.outcome[index])]
        assert row["tokens"] == int(policy.sum())
        assert row["solved"] == (outcome == "solved") and row["failure"] == ("" if outcome == "solved" else outcome)
        assert row["legal"] == (outcome in ("solved", "wrong"))
        assert row["format"] == (outcome in ("solved", "wrong", "illegal"))
        assert row["truncated"] == (outcome == "no_end_think")
        thought = tokens.index(notation.END_THINK) + 1 if notation.END_THINK in tokens and protocol == "think" else 0
        if outcome != "no_end_think":
            assert row["answer_length"] == len(tokens) - thought and row["trace_length"] == max(thought - 1, 0)
            first = tokens[thought:]
            ends = [place for place, token in enumerate(first) if token == notation.CALL_ENV or not policy[thought + place]]
            assert row["first_move"] == notation.to_text(first[: ends[0]] if ends else first)
            written = [token if own else notation.CALL_ENV for token, own in zip(first, policy[thought:])]
            moves = [list(move) for closed, move in groupby(written, lambda token: token == notation.CALL_ENV) if not closed]
            assert row["answer"] == " / ".join(map(notation.to_text, moves))
        else:
            assert row["answer_length"] == 0 and row["trace_length"] == 6 and row["first_move"] == row["answer"] == ""
        assert row["logprob"] == pytest.approx(result.logprobs[index].double().sum().item(), abs=1e-4)
        assert row["entropy"] == pytest.approx(result.entropies[index][: len(tokens)][policy].double().mean().item(), abs=1e-4)
    assert len(set(table["failure"])) > 2, "too few outcomes were seen to tell"


def test_entropy_is_the_mean_over_sampled_tokens_of_the_full_distributions():
    model, table = trained_model("answer"), sampled("answer", samples=2)
    prompt = prompt_tokens(PUZZLES[0], "snapshot", think=False)
    result = rollout(model, build_environment(PUZZLES), [0], [prompt], 2, settings("answer"))
    ids = torch.tensor([prompt + result.tokens[1, : result.lengths[1]].tolist()])
    with torch.no_grad():
        logprobs = model(ids)[0, len(prompt) - 1 : -1].double().log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    row = table[(table["puzzle"] == PUZZLES[0].id) & (table["sample"] == 1)].iloc[0]
    assert row["entropy"] == pytest.approx(entropies[result.policy[1, : result.lengths[1]]].mean().item(), abs=1e-4)


@pytest.mark.parametrize("batch", [1, 24, 40])
def test_batch_size_does_not_change_a_sample(batch):
    whole, parted = sampled(), sampled(batch=batch)
    exact = [name for name in COLUMNS if name not in ("logprob", "entropy")]
    pd.testing.assert_frame_equal(whole[exact], parted[exact])
    pd.testing.assert_frame_equal(whole, parted, atol=1e-4)


def test_later_samples_continue_the_stream_and_repeat_none():
    whole = sampled("answer", samples=8)
    parts = pd.concat([sampled("answer", samples=3), sampled("answer", samples=5, first_sample=3)])
    parts = parts.sort_values(["puzzle", "sample"], ignore_index=True)
    pd.testing.assert_frame_equal(whole, parts, atol=1e-4)
    first, second = (sampled("answer", samples=8, first_sample=offset)["logprob"].round(6).tolist() for offset in (0, 8))
    assert first != second, "the second batch of samples repeats the first"


# ---- the command -----------------------------------------------------------------------------------------------------------------------


def configured(runs: dict[str, Path], stage: str, *overrides: str) -> Config:
    return tiny.config("evaluate", runs[stage].parent, f"parent={runs[stage]}", "evaluate.max_puzzles=20", *overrides)


@pytest.fixture(scope="module")
def runs(tiny_runs, tmp_path_factory) -> dict[str, Path]:
    """Copies of the tiny runs, to be evaluated into."""
    outputs = tmp_path_factory.mktemp("evaluated")
    return {stage: Path(shutil.copytree(directory, outputs / directory.name)) for stage, directory in tiny_runs.items()}


@pytest.mark.parametrize(("stage", "protocol"), [("pretrain", "game"), ("sft", "think"), ("rl", "think")])
def test_tables_follow_from_the_samples_and_a_second_call_skips(stage, protocol, runs, capsys):
    config = configured(runs, stage)
    assert evaluate(config) == 0
    folder = evaluation_folder(config)
    samples, passk = pd.read_parquet(folder / "samples.parquet"), pd.read_csv(folder / "passk.csv")
    assert len(samples) == 20 * 4 and set(samples["split"]) == {"test"}
    assert set(passk["protocol"]) == {protocol} and set(passk["stage"]) == {stage} and set(passk["run"]) == {runs[stage].name}
    assert set(passk["bin"]) == {"all", *samples["bin"]} and set(passk["k"]) == {1, 2, 4}
    for row in passk.itertuples():
        chosen = samples if row.bin == "all" else samples[samples["bin"] == row.bin]
        outcomes = [group["solved"].tolist() for _, group in chosen.groupby("puzzle")]
        by_subsets = np.mean([np.mean([any(subset) for subset in combinations(solved, row.k)]) for solved in outcomes])
        assert row.pass_at_k == pytest.approx(by_subsets) and row.n_puzzles == len(outcomes) and row.n_samples == 4
        assert 0 <= row.ci_low <= row.pass_at_k <= row.ci_high <= 1 and row.ci_low < row.ci_high
    content = json.loads((folder / "evaluation.json").read_text())
    assert content["n_puzzles"] == 20 and content["n_samples"] == 4 and content["settings"]["split"] == "test"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    capsys.readouterr()
    assert evaluate(config) == 0
    assert "skipped" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "a temporary folder was left"


def folder_of(runs: dict[str, Path], stage: str, *overrides: str) -> Path:
    return tiny.evaluation_folder(configured(runs, stage, *overrides))


def test_what_changes_numbers_changes_the_folder_and_batch_size_does_not(runs):
    base = folder_of(runs, "rl")
    assert folder_of(runs, "rl", "evaluate.batch=3") == base
    assert folder_of(runs, "rl", "evaluate.protocol=think") == base  # what auto means
    changes = ("seed=1", "temperature=0.5", "split=validation", "spelling=strict", "verifier=engine")
    assert len({base, *(folder_of(runs, "rl", f"evaluate.{change}") for change in changes)}) == 1 + len(changes)


def test_another_corpus_changes_the_folder_where_games_are_measured_alone(runs, monkeypatch):
    """games.csv is of held-out games: those of a corpus made otherwise are others."""
    before = {games: folder_of(runs, "pretrain", f"evaluate.games={games}") for games in (0, 2)}
    of_corpus = world.corpus_hash
    monkeypatch.setattr(world, "corpus_hash", lambda config: of_corpus(config)[::-1])
    after = {games: folder_of(runs, "pretrain", f"evaluate.games={games}") for games in before}
    assert after[0] == before[0] and after[2] != before[2]


def test_auto_is_what_the_policy_was_trained_with_and_other_tokens_are_refused():
    pretrained, without, with_traces = (
        {"stage": stage, "traces": traces, "run_id": "x"} for stage, traces in (("pretrain", False), ("sft", False), ("rl", True))
    )
    assert [protocol_of("auto", parent) for parent in (pretrained, without, with_traces)] == ["game", "answer", "think"]
    assert protocol_of("answer", with_traces) == "answer"
    for protocol, parent in (("think", without), ("think", pretrained), ("answer", pretrained)):
        with pytest.raises(UserError, match=f"protocol={protocol}: x plays by"):
            protocol_of(protocol, parent)


def test_strict_spelling_counts_what_lenient_sampling_marks_as_strict():
    lenient, strict = (sampled("answer", samples=32, spelling=spelling) for spelling in ("lenient", "strict"))
    assert (strict["solved"] == lenient["solved_strict"]).all()
    assert 0 < strict["solved"].sum() < lenient["solved"].sum()


def test_the_engine_accepts_at_least_what_the_line_accepts(tmp_path):
    """The same samples of a policy that solves some: a move of the line or a mate passes both verifiers, and some moves only the engine."""
    try:
        find_stockfish()
    except UserError as error:
        pytest.skip(str(error))
    model = trained_model("answer")
    puzzles = [puzzle for puzzle in PUZZLES if puzzle.id != "en-passant"]
    config = Config(outputs=str(tmp_path))
    tables = {}
    for verifier in ("line", "engine"):
        environment, _ = environment_of(config, puzzles, verifier)
        tables[verifier] = sample_policy(model, environment, puzzles, "snapshot", 32, settings("answer"), 1000)
    assert not (tables["line"]["solved"] & ~tables["engine"]["solved"]).any()
    assert (tables["engine"]["solved_by_line"] == tables["line"]["solved"]).all()
