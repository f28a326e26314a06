"""The whole pipeline as a command, at toy size: what it leaves, that a second call skips, and that nothing outlives it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from chessrl.children import quoted
from chessrl.config import Config, PipelineConfig
from chessrl.engine import find_stockfish
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.pipeline import StageFailed, run_pipeline, run_stage_command
from chessrl.signals import Interrupted
from tests import tiny

ROOT = Path(__file__).parents[1]
STAGES = ("pretrain", "sft", "rl")
PATIENCE_S = 120  # until a test that waits for another process gives up


def has_stockfish() -> bool:
    try:
        return find_stockfish() is not None
    except UserError:
        return False


def command(outputs: Path, *overrides: str) -> list[str]:
    engine = [] if has_stockfish() else ["pipeline.engine_evaluation=false"]
    return [sys.executable, "-m", "chessrl", "experiment=toy", "run.device=cpu", f"outputs={outputs}", *engine, *overrides]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> tuple[Path, str]:
    """The outputs folder of a finished toy pipeline and what it printed."""
    outputs = tmp_path_factory.mktemp("toy")
    process = subprocess.run(command(outputs), cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    return outputs, process.stdout


def directory_of(outputs: Path, stage: str) -> Path:
    (directory,) = outputs.glob(f"{stage}-*")
    return directory


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# ---- what it leaves --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_leaves_a_completed_run_directory(stage, toy):
    directory = directory_of(toy[0], stage)
    assert {"config.yaml", "metrics.jsonl", "status.json", "summary.json", "model", "state", "evaluations"} <= {
        path.name for path in directory.iterdir()
    }
    assert json.loads((directory / "status.json").read_text())["state"] == "completed"
    for line in map(json.loads, (directory / "metrics.jsonl").read_text().splitlines()):
        assert {"step", "tokens", "loss_tokens", "flops", "flops_with_attention", "loss"} <= set(line)
    resolved = OmegaConf.load(directory / "config.yaml")
    assert resolved.model.name == "nano" and resolved.world.name == "endgame" and resolved.rl.steps == 4
    if stage != "pretrain":
        parent = directory_of(toy[0], STAGES[STAGES.index(stage) - 1])
        assert Path(resolved.parent) == parent
        assert json.loads((directory / "summary.json").read_text())["parents"][parent.name.split("-")[0]] == parent.name


def test_all_three_policies_are_evaluated_on_the_same_puzzles(toy):
    tables = {}
    for stage in STAGES:
        for folder in (directory_of(toy[0], stage) / "evaluations").iterdir():
            labels = json.loads((folder / "evaluation.json").read_text())
            tables[stage, labels["verifier"]] = pd.read_parquet(folder / "samples.parquet")
    assert set(tables) == {(stage, "line") for stage in STAGES} | ({("rl", "engine")} if has_stockfish() else set())
    for table in tables.values():
        assert set(table["split"]) == {"test"} and len(table) == 40 * 4
        assert set(table["puzzle"]) == set(tables["rl", "line"]["puzzle"])


def test_the_analysis_has_report_figures_tables_and_comparisons(toy):
    (folder,) = toy[0].glob("analysis-*")
    report = (folder / "report.html").read_text()
    assert "<html" in report and not re.search(r'src="(?!data:)|<link', report), "the report must be self-contained"
    figures, tables = ({path.name for path in (folder / kind).iterdir()} for kind in ("figures", "tables"))
    assert "comparisons.csv" in tables
    for png in (name for name in figures if name.endswith(".png")):
        assert f"{Path(png).stem}.pdf" in figures and f"{Path(png).stem}.csv" in tables, f"{png} lacks its pdf or the table it was drawn from"
    comparisons = pd.read_csv(folder / "tables" / "comparisons.csv")
    assert {"a", "b", "bin", "k", "difference", "ci_low", "ci_high"} <= set(comparisons.columns)
    assert (comparisons["ci_low"] <= comparisons["difference"]).all() and (comparisons["difference"] <= comparisons["ci_high"]).all()
    assert comparisons[["a", "b"]].drop_duplicates().shape[0] >= 2  # pretrain -> SFT and SFT -> RL


def test_the_terminal_shows_every_command_and_a_final_table(toy):
    total = 8 if has_stockfish() else 7
    for number, module in zip(range(1, total + 1), [*STAGES, *["chessrl.evaluate"] * (total - 4), "analysis"]):
        assert re.search(rf"\[{number}/{total}, .*\] python -m {re.escape(module)} experiment=toy ", toy[1]), number
    for word in ("pass@1", "pass@4", "legal", "B1", "RL: test split", "report.html"):
        assert word in toy[1], word


def test_a_second_call_skips_every_part_and_changes_no_file(toy):
    before = contents(toy[0])
    process = subprocess.run(command(toy[0]), cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.count("is finished, skipped") == (7 if has_stockfish() else 6)
    after = contents(toy[0])
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert not changed


# ---- children --------------------------------------------------------------------------------------------------------------------------


def child_pids(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}"
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_killed_pipeline_leaves_no_stage_behind_and_the_stage_saved_its_state(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    sizes = [*tiny.MODEL, *tiny.SIZES, "pretrain.tokens=10_000_000", "pretrain.allow_repeats=true"]  # far more than there is time for
    pipeline = subprocess.Popen(command(outputs, *sizes), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: any(path.stat().st_size for path in outputs.glob("pretrain-*/metrics.jsonl")), "the first step")
        (stage,) = child_pids(pipeline.pid)
        assert alive(stage)
    finally:
        pipeline.kill()
        pipeline.wait()
    wait_for(lambda: not alive(stage), "the stage to end")
    directory = directory_of(outputs, "pretrain")
    assert json.loads((directory / "status.json").read_text())["state"] == "interrupted"
    assert list((directory / "state").glob("step-*.pt"))


def test_a_signal_reaches_the_stage_and_the_pipeline_ends_with_its_status(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    sizes = [*tiny.MODEL, *tiny.SIZES, "pretrain.tokens=10_000_000", "pretrain.allow_repeats=true"]
    pipeline = subprocess.Popen(command(outputs, *sizes), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: any(path.stat().st_size for path in outputs.glob("pretrain-*/metrics.jsonl")), "the first step")
    pipeline.send_signal(signal.SIGTERM)
    output, _ = pipeline.communicate()
    assert pipeline.returncode == 128 + signal.SIGTERM
    assert "the same command goes on from there" in output and "Traceback" not in output
    assert not list(outputs.glob("sft-*")), "the pipeline went on after the interrupted stage"


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(2)", 2), ("import os; os.kill(os.getpid(), 9)", 128 + 9)])
def test_a_failed_child_stops_the_pipeline_with_a_shells_status(code, status):
    with pytest.raises(StageFailed, match=f"ended with status {status}") as error:
        run_stage_command([sys.executable, "-c", code])
    assert error.value.status == status


def test_a_child_tells_where_its_run_is():
    code = "import os; open(os.environ['CHESSRL_RUN_DIRECTORY_FILE'], 'w').write('outputs/x')"
    assert run_stage_command([sys.executable, "-c", code]) == (Path("outputs/x"), [])
    assert run_stage_command([sys.executable, "-c", ""]) == (None, [])
    assert "CHESSRL_RUN_DIRECTORY_FILE" not in os.environ


@pytest.mark.long
def test_two_pipelines_at_once_share_their_ancestor(tiny_runs, tmp_path):
    """One trains, the other waits and takes the finished run; the corpus is made once as well."""
    only = ["pipeline.stages=[pretrain]", "pipeline.evaluate=false", "pipeline.report=false"]
    arguments = command(tmp_path, *tiny.MODEL, *tiny.SIZES, *only)
    pipelines = [
        subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)
    ]
    outputs = [pipeline.communicate()[0] for pipeline in pipelines]
    assert [pipeline.returncode for pipeline in pipelines] == [0, 0], outputs
    assert sum(output.count("is finished, skipped") for output in outputs) == 1
    assert sum(output.count("corpus: ") for output in outputs) == 1
    directory = directory_of(tmp_path, "pretrain")
    assert directory.name == tiny_runs["pretrain"].name
    assert tiny.metrics_of(directory) == tiny.metrics_of(tiny_runs["pretrain"])
    weights = [(path / "model" / "model.safetensors").read_bytes() for path in (directory, tiny_runs["pretrain"])]
    assert weights[0] == weights[1]


def test_an_interrupted_rerun_goes_on_where_it_was_and_a_finished_one_starts_anew(tmp_path, monkeypatch):
    called: list[tuple[str, list[str]]] = []
    failing = "sft"

    def child(arguments: list[str]) -> tuple[Path | None, list[int]]:
        module, overrides = arguments[2], arguments[3:]
        called.append((module, [override for override in overrides if override.startswith("parent=")]))
        if module == failing:
            raise StageFailed(143, "stopped")
        directory = tmp_path / f"{module}-{len(called)}"
        directory.mkdir()
        (directory / "status.json").write_text('{"state": "completed"}')
        return directory, []

    monkeypatch.setattr("chessrl.pipeline.run_stage_command", child)
    config = compose("chessrl", ["model=nano", "run.rerun=true", "pipeline.evaluate=false", "pipeline.report=false", f"outputs={quoted(tmp_path)}"])
    with pytest.raises(StageFailed):
        run_pipeline(config, ["run.rerun=true"])
    failing = ""
    assert run_pipeline(config, ["run.rerun=true"]) == 0
    first, second = f"parent={tmp_path}/pretrain-1", f"parent={tmp_path}/sft-3"
    assert called == [("pretrain", []), ("sft", [first]), ("sft", [first]), ("rl", [second])]
    run_pipeline(config, ["run.rerun=true"])
    assert [module for module, _ in called[4:]] == ["pretrain", "sft", "rl"]
    assert not list(tmp_path.glob(".rerun-*"))


def test_a_signal_in_the_last_step_of_a_stage_ends_the_pipeline_after_it(tmp_path, monkeypatch):
    called = []

    def child(arguments: list[str]) -> tuple[Path | None, list[int]]:
        called.append(arguments[2])
        return tmp_path / "x", [signal.SIGINT] if arguments[2] == "sft" else []

    monkeypatch.setattr("chessrl.pipeline.run_stage_command", child)
    config = compose("chessrl", ["model=nano", f"outputs={quoted(tmp_path)}"])
    with pytest.raises(Interrupted, match="SIGINT"):
        run_pipeline(config, [])
    assert called == ["pretrain", "sft"]


@pytest.mark.parametrize("stages", [["sft"], ["pretrain", "rl"], ["pretrain", "distil"]])
def test_stages_that_do_not_follow_each_other_are_refused(stages):
    with pytest.raises(UserError, match=r"pipeline\.stages=.*expected the first one, two or three of pretrain, sft, rl"):
        run_pipeline(Config(pipeline=PipelineConfig(stages=stages)), [])


@pytest.mark.parametrize(
    "name", ["outputs/pretrain-0123", "my outputs/a,b", "a=b/c", "it's (here)", "größe", "a#b%c", "[x]{y}", "back\\slash", "a\\'b", "end\\"]
)
def test_any_path_survives_hydras_override_grammar(name):
    config = compose("analysis", [f"parent={quoted(Path(name))}", f"runs=[{quoted(Path(name))},{quoted(Path('b'))}]"])
    assert config.parent == name and config.runs == [name, "b"]


def test_a_run_shorter_than_a_step_to_keep_is_evaluated_at_those_that_it_kept(tmp_path, monkeypatch, capsys):
    """In a grid of budgets one rl.save_steps serves runs of different lengths."""
    evaluated = []

    def child(arguments: list[str]) -> tuple[Path | None, list[int]]:
        evaluated.extend(override for override in arguments if override.startswith("evaluate.step="))
        return tmp_path / arguments[2], []

    monkeypatch.setattr("chessrl.pipeline.run_stage_command", child)
    (tmp_path / "rl" / "models" / "step-2").mkdir(parents=True)
    keys = ["rl.save_steps=[2,40]", "pipeline.evaluate_steps=true", "pipeline.engine_evaluation=false", "pipeline.report=false"]
    assert run_pipeline(compose("chessrl", ["model=nano", f"outputs={quoted(tmp_path)}", *keys]), []) == 0
    told = capsys.readouterr().out
    assert evaluated == ["evaluate.step=2"]
    assert "rl.save_steps=[40]: " in told and "[7/7, " in told and "/8, " not in told.rsplit("rl.save_steps", 1)[1]
