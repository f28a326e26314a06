"""Exact measures in the evaluation folder: what is in the files, for which policies, and of which of a run's models."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.read import read_runs
from chessrl import world
from chessrl.checkpoint import load_model
from chessrl.config import Config
from chessrl.errors import UserError
from chessrl.evaluate import evaluate, settings_for
from chessrl.pipeline import saved_steps
from chessrl.policy import POLICY_COLUMNS, exact_success
from chessrl.statistics import EXACT_KS
from tests import tiny

EXACT = ("evaluate.exact=true", "evaluate.policy_traces=3")
STEP = 5


@pytest.fixture(scope="module")
def runs(tiny_runs, tmp_path_factory) -> dict[str, Path]:
    """The tiny pretraining, a fine-tuning of it without traces that keeps a step, and the tiny RL run, which thinks."""
    outputs = tmp_path_factory.mktemp("measured")
    copies = {stage: Path(shutil.copytree(tiny_runs[stage], outputs / tiny_runs[stage].name)) for stage in ("pretrain", "rl")}
    tiny.share_data(outputs, tiny_runs)
    keys = ("sft.trace.enabled=false", f"sft.save_steps=[{STEP}]", f"parent={copies['pretrain']}")
    status, copies["sft"] = tiny.start("sft", tiny.config("sft", outputs, *keys))
    assert status == 0
    return copies


def configured(run: Path, *overrides: str) -> Config:
    return tiny.config("evaluate", run.parent, f"parent={run}", "evaluate.max_puzzles=20", *overrides)


def evaluated(run: Path, *overrides: str) -> Path:
    assert evaluate(configured(run, *overrides)) == 0
    return tiny.evaluation_folder(configured(run, *overrides))


def test_exact_success_and_its_passk_are_written_of_the_final_and_of_a_kept_model(runs):
    for step, model in ((None, "model"), (STEP, f"models/step-{STEP}")):
        folder = evaluated(runs["sft"], *EXACT, *([f"evaluate.step={step}"] if step else []))
        success, passk = pd.read_parquet(folder / "exact.parquet"), pd.read_csv(folder / "passk_exact.csv")
        puzzles = world.puzzles_of_split(configured(runs["sft"]), "test")[:20]
        assert success["puzzle"].tolist() == [puzzle.id for puzzle in puzzles]
        assert success["decisions"].tolist() == [len(puzzle.moves[puzzle.lead :: 2]) for puzzle in puzzles]
        assert success["p"].tolist() == exact_success(load_model(runs["sft"] / model), puzzles, "snapshot").tolist()
        assert set(passk["spelling"]) == {"strict"} and passk["n_samples"].isna().all() and set(passk["k"]) == set(EXACT_KS)
        for row in passk.itertuples():
            chosen = success if row.bin == "all" else success[success["bin"] == row.bin]
            by_hand = np.mean([1 - (1 - np.longdouble(p)) ** row.k for p in chosen["p"]])
            assert row.pass_at_k == pytest.approx(float(by_hand), abs=1e-9) and row.n_puzzles == len(chosen)
        assert set(passk["step"]) == {step or pd.read_csv(folder / "passk.csv")["step"][0]}
    other = tiny.evaluation_folder(configured(runs["sft"], *EXACT))
    assert pd.read_parquet(other / "exact.parquet")["p"].tolist() != success["p"].tolist(), "both folders hold one model"


def test_policy_table_has_a_row_per_decision_and_one_per_closed_trace(runs, capsys):
    folder = evaluated(runs["sft"], *EXACT)
    answer, success = pd.read_parquet(folder / "policy.parquet"), pd.read_parquet(folder / "exact.parquet")
    assert list(answer.columns) == [*POLICY_COLUMNS, "stage", "step"]
    assert len(answer) == success["decisions"].sum() and set(answer["stage"]) == {"sft"} and set(answer["trace"]) == {0}
    thinking = pd.read_parquet(evaluated(runs["rl"], "evaluate.policy_traces=3", "evaluate.thinking_budget=12") / "policy.parquet")
    said = next(line for line in capsys.readouterr().out.splitlines() if "the budget cut" in line)
    asked, cut, left_out = (int(word) for word in said.replace(";", "").replace(",", "").split() if word.isdigit())
    first = thinking[thinking["decision"] == 0]
    assert asked == 60 and len(first) == asked - cut and 20 - first["puzzle"].nunique() == left_out
    assert set(first["trace"]) <= {0, 1, 2} and cut > 0


def test_analysis_reads_the_measures_and_finds_none_where_none_were_asked_for(runs):
    evaluated(runs["sft"], *EXACT)
    evaluated(runs["sft"], "evaluate.seed=7")
    (run,) = read_runs([runs["sft"]])
    with_measures = [evaluation for evaluation in run.evaluations if evaluation.exact() is not None]
    assert 0 < len(with_measures) < len(run.evaluations)
    assert all(len(evaluation.exact()) == 20 and evaluation.policy() is not None for evaluation in with_measures)


def test_measures_that_a_policy_cannot_have_fall_away_or_are_refused(runs):
    settings = configured(runs["rl"], *EXACT).evaluate
    pretrained, answers, thinks = (
        {"stage": stage, "traces": traces, "run_id": "x"} for stage, traces in (("pretrain", False), ("sft", False), ("rl", True))
    )
    assert (settings_for(settings, pretrained).exact, settings_for(settings, pretrained).policy_traces) == (False, 3)
    assert settings_for(settings, answers).exact
    with pytest.raises(UserError, match="sum over all traces"):
        settings_for(settings, thinks)
    by_engine = settings_for(configured(runs["rl"], *EXACT, "evaluate.verifier=engine").evaluate, answers)
    assert not by_engine.exact and not by_engine.policy_traces
    with pytest.raises(UserError, match=r"evaluate\.temperature=0"):
        evaluate(configured(runs["sft"], *EXACT, "evaluate.temperature=0"))
    with pytest.raises(UserError, match=rf"evaluate\.step=3: .* kept models of steps \[{STEP}\]"):
        evaluate(configured(runs["sft"], "evaluate.step=3"))


def test_the_pipeline_evaluates_kept_models_only_when_asked_and_when_rl_runs(tmp_path):
    asked = ("rl.save_steps=[2,4]", "pipeline.evaluate_steps=true")
    assert saved_steps(tiny.config("chessrl", tmp_path, *asked)) == [2, 4]
    assert saved_steps(tiny.config("chessrl", tmp_path, asked[0])) == []
    assert saved_steps(tiny.config("chessrl", tmp_path, *asked, "pipeline.stages=[pretrain,sft]")) == []
