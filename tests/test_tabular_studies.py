"""The tabular command and its studies: the clip-bias toy's published values, tables, reports, resume, refusals."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.report import run_tabular_analysis
from analysis.tabular import sign_changes
from chessrl.config import AlgorithmConfig
from chessrl.dry_run import print_costs
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.run import Run
from chessrl.signals import Interrupted
from rl import tabular
from rl.tabular_policy import prior, read_policy, success, write_policy
from rl.tabular_studies import clip_bias_rows, random_walk
from rl.tabular_update import NO_CLIP

# ---- clip bias --------------------------------------------------------------------------------------------------------------------------


def walk(table, rate: float, *, clip: bool, updates: int = 8):
    settings = compose("tabular", ["experiment=clip_bias"]).tabular
    algorithm = AlgorithmConfig(group=16, beta=0.0, minibatches=updates)
    return random_walk(table, settings, algorithm if clip else replace(algorithm, **NO_CLIP), rate)


PAIRED = [("peaked", 2.0, 0.162, 0.005), ("zipf", 2.0, -0.005, 0.006), ("peaked", 0.5, 0.0070, 0.0004), ("zipf", 0.5, -0.0076, 0.0007)]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "rate", "effect", "error"), PAIRED)
def test_the_clips_paired_effect_on_the_likeliest_move(kind, rate, effect, error):
    """3,000 seeds: up for a peaked prior (.85), down for a flat one (.25; the values fit Zipf's, whose shape is not stated)."""
    table = prior(kind, 3000, 30, top=0.85)
    difference = walk(table, rate, clip=True)[0] - walk(table, rate, clip=False)[0]
    own_error = (difference.std() / 3000**0.5).item()
    assert own_error == pytest.approx(error, rel=0.25)
    assert difference.mean().item() == pytest.approx(effect, abs=3 * (own_error**2 + error**2) ** 0.5)


@pytest.mark.long
def test_changes_under_random_reward_with_and_without_clip():
    """The same toy, unpaired: top move .85, lr 2."""
    table = prior("peaked", 3000, 30, top=0.85)
    clipped, free, one_update = {"clip": True}, {"clip": False}, {"clip": True, "updates": 1}
    for arm, change, error, spread in ((clipped, 0.044, 0.002, -0.274), (free, -0.118, 0.006, 0.157), (one_update, -0.003, 0.001, None)):
        first, entropies = walk(table, 2.0, **arm)
        assert first.mean().item() == pytest.approx(change, abs=3 * 2**0.5 * error)
        assert spread is None or entropies.mean().item() == pytest.approx(spread, abs=0.06)


def test_where_the_clips_effect_turns_is_interpolated():
    rows = {"updates": 8, "lr": 2.0, "clip": 0.25, "top_probability": [0.9, 0.1, 0.5], "top_clip_effect": [0.2, -0.2, -0.1]}
    rows["top_clip_effect_se"] = 0.01
    (text,) = sign_changes(pd.DataFrame(rows))
    assert "M = 8, lr = 2, eps = 0.25: 0.63 (1 / (1 + eps) = 0.80)" in text  # .5 + .4 / 3
    assert sign_changes(pd.DataFrame(rows | {"top_clip_effect": [0.2, 0.1, 0.1]})) == ()
    assert sign_changes(pd.DataFrame(rows | {"top_clip_effect_se": 0.11})) == (), "no turn where the negative side is noise"


def test_one_update_per_rollout_never_reaches_the_clip():
    settings = replace(compose("tabular", ["experiment=clip_bias"]).tabular, puzzles=50, steps=3)
    free, clipped = clip_bias_rows(0.85, 1, 2.0, replace(settings, clips=[0.1]), AlgorithmConfig(group=16, beta=0.0))
    assert clipped["top_clip_effect"] == clipped["entropy_clip_effect"] == 0 and clipped["top_change"] == free["top_change"] != 0


# ---- the command ------------------------------------------------------------------------------------------------------------------------

SMALL = {
    "train": ["tabular.puzzles=40", "tabular.steps=4", "tabular.groups=2", "algorithm.group=4"],
    # enough that the clip's effect is beyond its interval: only then has it a figure
    "clip_bias": [
        *("experiment=clip_bias", "tabular.puzzles=150", "tabular.steps=6", "tabular.tops=[0.7,0.85]", "tabular.clips=[0.2]"),
        *("tabular.updates=[8]", "tabular.rates=[2]"),
    ],
    "success_recursion": ["experiment=success_recursion", "tabular.puzzles=40", "tabular.steps=2", "tabular.inner_steps=5", "tabular.betas=[5]"],
}


def start(outputs: Path, *overrides: str) -> tuple[int, Path]:
    config = compose("tabular", [*overrides, f"outputs={outputs}", "run.device=cpu"])
    directory = Run("tabular", config, tabular.identity(config)).directory
    return tabular.command(config), directory


@pytest.mark.parametrize("study", SMALL)
def test_a_study_leaves_its_table_and_its_report(study, tmp_path):
    status, directory = start(tmp_path, *SMALL[study])
    assert status == 0 and json.loads((directory / "status.json").read_text())["state"] == "completed"
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["study"] == study and len(pd.read_csv(directory / summary["table"])) > 0
    page = run_tabular_analysis([directory], tmp_path / "report")
    names = {path.stem for path in (tmp_path / "report" / "figures").glob("*.png")}
    assert names == ({"tabular_success", "tabular_measures"} if study == "train" else {study})
    assert page.report.is_file() and {path.stem for path in (tmp_path / "report" / "tables").glob("*.csv")} == names


@pytest.mark.parametrize("study", SMALL)
def test_a_study_that_was_stopped_ends_as_an_unbroken_one(study, tmp_path, monkeypatch):
    unbroken = start(tmp_path / "a", *SMALL[study])[1]
    log, calls = Run.log, []

    def stopping(self, metrics):
        log(self, metrics)
        calls.append(metrics["step"])
        if metrics["step"] == 2 and calls.count(2) == 1:
            raise Interrupted(2)

    monkeypatch.setattr(Run, "log", stopping)
    assert start(tmp_path / "b", *SMALL[study], "run.checkpoint_steps=1")[0] == 130
    status, directory = start(tmp_path / "b", *SMALL[study], "run.checkpoint_steps=1")
    assert status == 0 and calls.count(2) == 2
    for path in unbroken.iterdir():
        if path.suffix in (".csv", ".jsonl", ".parquet") or path.name == "summary.json":
            assert (directory / path.name).read_bytes() == path.read_bytes(), path.name


def test_training_from_a_measured_policy_solves_it_and_writes_the_policy_back(tmp_path):
    table = prior("dirichlet", 30, 6, concentration=1.0, seed=1)
    write_policy(tmp_path / "policy.parquet", table, table.logprobs)
    keys = ["tabular.exact=true", "tabular.steps=150", "algorithm.beta=0", "tabular.lr=2", f"tabular.policy={tmp_path}/policy.parquet"]
    status, directory = start(tmp_path, *keys)
    assert status == 0
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(151))
    assert lines[0]["success"] == pytest.approx(success(table.logprobs, table.solving).mean().item())
    assert lines[-1]["success"] > 0.95 and all(later["success"] >= earlier["success"] for earlier, later in itertools.pairwise(lines))
    after, _ = read_policy(directory / "policy.parquet")
    assert success(after.logprobs, after.solving).mean().item() == pytest.approx(lines[-1]["success"], abs=1e-9)


@pytest.mark.parametrize("stage", ["pretrain", "sft"])
def test_a_finished_runs_own_policy_is_measured_and_trained(stage, tiny_runs, tmp_path):
    """The tiny SFT policy thinks, so its policy is the average over sampled traces; the pretrained one has none."""
    keys = [f"parent={tiny_runs[stage]}", "tabular.puzzles=10", "tabular.traces=3", "rl.bins=[B1]", "rl.thinking_budget=24", "tabular.steps=2"]
    status, directory = start(tmp_path, *keys)
    assert status == 0
    measured = pd.read_parquet(directory / "start.parquet")
    most = 3 if stage == "sft" else 1
    assert measured["puzzle"].nunique() <= 10 and measured.groupby(["puzzle", "decision"]).size().max() <= most
    table, _ = read_policy(directory / "start.parquet")
    first = json.loads((directory / "metrics.jsonl").read_text().splitlines()[0])
    assert first["success"] == pytest.approx(success(table.logprobs, table.solving).mean().item())
    assert json.loads((directory / "summary.json").read_text())["parent"] == tiny_runs[stage].name
    names = {
        Run("tabular", config, tabular.identity(config)).run_id
        for words in (keys, [*keys, "rl.temperature=0.7"], keys[1:])
        for config in [compose("tabular", [*words, f"outputs={tmp_path}", "run.device=cpu"])]
    }
    assert len(names) == 3, "the parent and what it is measured with name the run"
    with pytest.raises(UserError, match="give the one or the other"):
        start(tmp_path, keys[0], "tabular.policy=policy.parquet")


def test_the_policys_content_names_the_run_and_its_place_does_not(tmp_path):
    table = prior("dirichlet", 3, 4, seed=1)
    names = []
    for place, logits in (("a", table.logprobs), ("b", table.logprobs), ("c", 2 * table.logprobs)):
        (tmp_path / place).mkdir()
        write_policy(tmp_path / place / "policy.parquet", table, logits)
        config = compose("tabular", [f"tabular.policy={tmp_path / place}/policy.parquet"])
        names.append(Run("tabular", config, tabular.identity(config)).run_id)
    assert names[0] == names[1] != names[2]


def test_what_cannot_be_carried_out_is_refused_before_it_starts(tmp_path):
    for overrides, message in (
        (["tabular.policy=nothing.parquet"], "no such file"),
        (["algorithm.minibatches=3"], r"algorithm.minibatches=3: expected a divisor of tabular.groups=8"),
        (["tabular.study=clip_bias", "tabular.updates=[5]"], r"tabular.updates=5: expected a divisor"),
        (["tabular.exact=true", "algorithm.epochs=2"], r"tabular\.exact=true"),
        (["tabular.exact=true", "algorithm=batch_std"], r"tabular\.exact=true: expected an advantage within the group"),
        (["algorithm.entropy_bonus=0.01"], r"algorithm\.entropy_bonus=0\.01: tables know no such thing"),
        (["algorithm.reference_period=10"], r"algorithm\.reference_period=10: tables know no such thing"),
        (["algorithm=ppo"], "algorithm=ppo: tables have no value head"),
        (["algorithm=remax"], "algorithm=remax: tables have no value head"),
        (["tabular.study=clip_bias"], r"tabular\.reward=solving: tabular\.study=clip_bias is about random"),
        (["experiment=success_recursion", "tabular.reward=noisy"], r"tabular\.reward=noisy: tabular\.study=success_recursion is about solving"),
        (["experiment=clip_bias", "algorithm.epochs=2"], r"algorithm\.epochs=2: tabular\.study=clip_bias has its own"),
    ):
        with pytest.raises(UserError, match=message):
            start(tmp_path, *overrides)


def test_a_dry_run_of_tables_is_refused_in_one_line(capsys):
    assert print_costs("chessrl", ["experiment=clip_bias"], compose, {}) == 2
    assert "no estimate for tables" in capsys.readouterr().out


def test_every_tabular_experiment_composes_and_says_which_stage_it_is():
    for name in ("clip_bias", "success_recursion"):
        config = compose("chessrl", [f"experiment={name}"])
        assert config.pipeline.stages == ["tabular"] and config.tabular.study == name


@pytest.mark.long
def test_the_pipelines_command_ends_in_figure_and_table(tmp_path):
    words = [*SMALL["clip_bias"], f"outputs={tmp_path}", "run.threads=1"]
    done = subprocess.run([sys.executable, "-m", "chessrl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (figure,) = tmp_path.glob("analysis-*/figures/clip_bias.png")
    assert figure.stat().st_size > 10_000 and len(pd.read_csv(figure.parents[1] / "tables" / "clip_bias.csv")) == 4
