"""The table of runs and the pruning of their states and step checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from chessrl import prune, runs
from chessrl.errors import UserError
from chessrl.run import code_version
from chessrl.runs import COLUMNS, load_runs
from tests import tiny


@pytest.fixture
def outputs(tiny_runs: dict[str, Path], tmp_path: Path) -> Path:
    """A folder with copies of the three tiny runs."""
    for directory in tiny_runs.values():
        shutil.copytree(directory, tmp_path / directory.name, ignore=shutil.ignore_patterns("evaluations"))
    return tmp_path


def make_run(outputs: Path, name: str, state: str = "completed", lines: str = "", **summary: object) -> Path:
    """A run directory of files alone."""
    directory = outputs / name
    directory.mkdir()
    (directory / "status.json").write_text(json.dumps({"state": state, "error": None, "code": "1"}))
    (directory / "metrics.jsonl").write_text(lines)
    if summary:
        (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def row_of(outputs: Path, name: str) -> dict[str, object]:
    table = load_runs(outputs)
    return table[table["run"] == name].iloc[0].to_dict()


def missing(value: object) -> bool:
    return value is None or value != value


# ---- the table ---------------------------------------------------------------------------------------------------------------------------


def test_every_run_is_a_row_with_what_its_ancestors_know(outputs, tiny_runs):
    table = load_runs(outputs, keys=["rl.steps", "algorithm.beta"])
    assert list(table.columns) == [*COLUMNS, "rl.steps", "algorithm.beta"]
    assert list(table["run"]) == [tiny_runs[stage].name for stage in ("pretrain", "sft", "rl")]
    summaries = [json.loads((directory / "summary.json").read_text()) for directory in tiny_runs.values()]
    assert list(table["state"]) == ["completed"] * 3 and set(table["code"]) == {code_version()}
    assert set(table["parameters"]) == {summaries[0]["parameters"]["without_embeddings"]}
    assert list(table["pretrain_tokens"]) == [summaries[0]["tokens"]] * 3
    assert list(table["pretrain_loss"]) == [summaries[0]["validation/loss"]] * 3
    assert table["rl_flops"].isna().tolist() == [True, True, False] and table["rl_flops"][2] == summaries[2]["flops_by_stage"]["rl"]
    assert list(table["pretrain_flops"]) == [summaries[0]["flops"]] * 3
    assert list(table["loss"]) == [tiny.metrics_of(directory)[-1]["loss"] for directory in tiny_runs.values()]
    assert (table["wall_s"] > 0).all()
    assert list(table["rl.steps"]) == [6, 6, 6] and list(table["algorithm.beta"]) == [0.001] * 3


def test_a_run_without_a_summary_counts_its_parameters_from_the_config(outputs, tiny_runs):
    directory = outputs / tiny_runs["pretrain"].name
    expected = json.loads((directory / "summary.json").read_text())["parameters"]["without_embeddings"]
    (directory / "summary.json").unlink()
    assert row_of(outputs, directory.name)["parameters"] == expected


def test_wall_time_adds_up_over_resumes_and_a_torn_line_is_passed_over(tmp_path):
    walls = [1.0, 2.0, 0.5, 1.5]  # the clock starts anew after a resume
    lines = "".join(json.dumps({"step": step, "loss": 1.0, "time/wall_s": wall}) + "\n" for step, wall in enumerate(walls, start=1))
    make_run(tmp_path, "pretrain-a", lines=lines + '{"step": 5, "lo')
    row = row_of(tmp_path, "pretrain-a")
    assert row["wall_s"] == 3.5 and row["step"] == 4


def test_running_is_told_from_killed_by_the_lock(tmp_path):
    directory = make_run(tmp_path, "rl-a", "running")
    assert row_of(tmp_path, "rl-a")["state"] == "interrupted (stale lock)"  # no lock at all
    lock = directory / "lock"
    lock.write_text("")
    assert row_of(tmp_path, "rl-a")["state"] == "running"
    os.utime(lock, (0, 0))
    assert row_of(tmp_path, "rl-a")["state"] == "interrupted (stale lock)"
    lock.write_text(json.dumps({"host": "node7", "boot": "another", "space": "", "pid": 1}))
    assert row_of(tmp_path, "rl-a")["state"] == "running"


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"state"', "\0\0\0"])
@pytest.mark.parametrize("name", ["status.json", "summary.json", "config.yaml"])
def test_a_run_whose_files_are_damaged_is_a_row_that_says_so_and_hides_no_other(damage, name, outputs, tiny_runs):
    directory = outputs / tiny_runs["sft"].name
    (directory / name).write_text(damage)
    table = load_runs(outputs)
    assert list(table["run"]) == [tiny_runs[stage].name for stage in ("pretrain", "sft", "rl")]
    row = row_of(outputs, directory.name)
    if (name, damage) != ("config.yaml", ""):  # an empty YAML file is an empty configuration
        assert row["error"] == f"damaged: {name}"
    assert row["state"] == ("unknown" if name == "status.json" else "completed")
    assert prune.plan(prune.PruneSettings(str(outputs)))[1] == (name == "status.json"), "what cannot be read may not be pruned"


def test_metrics_with_bytes_that_are_no_text_are_passed_over(tmp_path):
    directory = make_run(tmp_path, "rl-a", lines='{"step": 1, "loss": 2.0}\n')
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\0\xff\xfe\n")
    assert row_of(tmp_path, "rl-a")["step"] == 1


def test_pass_at_1_is_the_test_splits_where_there_is_one(tmp_path):
    directory = make_run(tmp_path, "rl-a")
    rows = ["validation,all,line,1,0.9", "test,all,line,1,0.5", "test,B1,line,1,0.6", "test,all,line,4,0.7", "test,all,engine,1,0.8"]
    for number, row in enumerate(rows):
        split, difficulty, verifier, k, value = row.split(",")
        folder = directory / "evaluations" / str(number)
        folder.mkdir(parents=True)
        header = "split,bin,verifier,k,pass_at_k,n_samples,n_puzzles"
        (folder / "passk.csv").write_text(f"{header}\n{split},{difficulty},{verifier},{k},{value},4,10\n")
    row = row_of(tmp_path, "rl-a")
    assert (row["pass_at_1"], row["pass_at_1_split"]) == (0.5, "test")
    for number in (1, 2, 3, 4):
        shutil.rmtree(directory / "evaluations" / str(number))
    row = row_of(tmp_path, "rl-a")
    assert (row["pass_at_1"], row["pass_at_1_split"]) == (0.9, "validation")


def test_what_is_not_known_is_missing_and_an_empty_folder_is_an_empty_table(tmp_path):
    assert list(load_runs(tmp_path).columns) == list(COLUMNS) and load_runs(tmp_path).empty
    make_run(tmp_path, "rl-a", "failed")
    row = row_of(tmp_path, "rl-a")
    assert all(missing(row[key]) for key in ("parameters", "step", "loss", "rl_flops", "pass_at_1", "pretrain_tokens", "wall_s"))


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"outputs=.*nowhere: no such folder"):
        load_runs(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"outputs=.*nowhere: no such folder"):
        prune.plan(prune.PruneSettings(outputs=str(tmp_path / "nowhere")))


def test_the_command_prints_a_line_per_run_and_the_errors(outputs, tiny_runs, capsys):
    failed = make_run(outputs, "rl-failed", "failed")
    (failed / "status.json").write_text(json.dumps({"state": "failed", "error": "UserError: too hot", "code": "1"}))
    runs.main([f"outputs={outputs}", "keys=rl.seed"])
    lines = capsys.readouterr().out.splitlines()
    for heading in ("run", "state", "N", "T", "L", "RL FLOPs", "pass@1", "wall s", "code", "rl.seed"):
        assert heading in lines[0]
    assert len(lines) == 1 + 4 + 1 and lines[-1] == "rl-failed: UserError: too hot"
    assert not any("nan" in line for line in lines)


# ---- pruning -----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpointed(outputs: Path, tiny_runs: dict[str, Path]) -> Path:
    """A completed run with step checkpoints 2, 4 and 10 in ``outputs``."""
    directory = outputs / tiny_runs["rl"].name
    for step in (2, 4, 10):
        shutil.copytree(directory / "model", directory / "models" / f"step-{step}")
    return directory


def steps_of(directory: Path) -> set[str]:
    return {path.name for path in (directory / "models").iterdir()}


def test_pruning_shows_first_and_removes_only_when_told(outputs, checkpointed, capsys):
    before = {path for path in outputs.rglob("*")}
    prune.main([f"outputs={outputs}", "steps=none"])
    shown = capsys.readouterr().out
    assert {path for path in outputs.rglob("*")} == before
    assert "nothing was removed; apply=true removes what is listed" in shown and "would be freed in 6 folders" in shown
    expected = sum(prune.size_of(directory / "state") for directory in outputs.glob("*-*")) + 3 * prune.size_of(checkpointed / "model")
    removals, unfinished = prune.plan(prune.PruneSettings(str(outputs), steps=("none",)))
    assert sum(removal.bytes for removal in removals) == expected and unfinished == 0

    prune.main([f"outputs={outputs}", "steps=none", "apply=true"])
    assert "freed in 6 folders" in capsys.readouterr().out
    gone = before - {path for path in outputs.rglob("*")}
    assert gone and all("state" in path.parts or "models" in path.parts for path in gone)
    assert not steps_of(checkpointed) and not list(outputs.glob("*/state")) and not list(outputs.glob("*/.pruned-*"))
    prune.main([f"outputs={outputs}", "steps=none", "apply=true"])
    assert "0.0 MB  freed in 0 folders" in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "kept"), [("all", {2, 4, 10}), ("last", {10}), ("4,5", {4}), ("none", set())])
def test_the_rule_for_step_checkpoints(steps, kept, outputs, checkpointed):
    prune.main([f"outputs={outputs}", f"steps={steps}", "states=false", "apply=true"])
    assert steps_of(checkpointed) == {f"step-{step}" for step in kept}
    assert (checkpointed / "state").is_dir()


def test_branches_states_go_only_when_asked_and_what_a_link_leads_to_never(outputs, checkpointed, tmp_path_factory):
    family = checkpointed / "stable-0123"
    shutil.copytree(checkpointed / "state", family)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "state"
    shutil.move(checkpointed / "state", elsewhere)
    (checkpointed / "state").symlink_to(elsewhere)
    prune.main([f"outputs={outputs}", "apply=true"])
    assert family.is_dir() and list(elsewhere.iterdir()) and (checkpointed / "state").is_symlink()
    prune.main([f"outputs={outputs}", "branches=true", "apply=true"])
    assert not family.exists() and list(elsewhere.iterdir())


@pytest.mark.parametrize("steps", ["some", "4,last", "-1", ""])
def test_a_rule_that_is_none_is_refused(steps, outputs):
    with pytest.raises(UserError, match=r"steps=.*: expected all, none, last, or the numbers of the steps to keep"):
        prune.main([f"outputs={outputs}", f"steps={steps}", "apply=true"])


@pytest.mark.parametrize("state", ["running", "interrupted", "failed"])
def test_a_run_that_is_not_completed_keeps_what_it_needs_to_go_on(state, outputs, checkpointed, capsys):
    (checkpointed / "status.json").write_text(json.dumps({"state": state, "error": None, "code": "1"}))
    prune.main([f"outputs={outputs}", "steps=none", "apply=true"])
    assert steps_of(checkpointed) == {"step-2", "step-4", "step-10"} and list((checkpointed / "state").glob("*.pt"))
    assert "1 runs are not completed and keep all they have" in capsys.readouterr().out


def test_a_killed_pruning_leaves_nothing_that_looks_whole_and_the_next_one_ends_it(outputs, checkpointed, monkeypatch):
    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(prune.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune.main([f"outputs={outputs}", "steps=none", "states=false", "apply=true"])
    assert steps_of(checkpointed) == {"step-4", "step-10"}
    assert [path.name for path in checkpointed.glob(".pruned-*")] == [".pruned-step-2"]
    prune.main([f"outputs={outputs}", "steps=none", "states=false", "apply=true"])
    assert not list(checkpointed.glob(".pruned-*")) and not steps_of(checkpointed)


def test_a_pruned_run_is_still_skipped_and_still_a_parent(outputs, tiny_runs, capsys):
    prune.main([f"outputs={outputs}", "apply=true"])
    shutil.copytree(tiny_runs["pretrain"].parent / "data", outputs / "data")
    sft = tiny.config("sft", outputs, f"parent={outputs / tiny_runs['pretrain'].name}")
    assert tiny.start("sft", sft) == (0, outputs / tiny_runs["sft"].name)
    assert "is finished, skipped" in capsys.readouterr().out
    assert OmegaConf.load(outputs / tiny_runs["sft"].name / "config.yaml").sft.epochs == 20
