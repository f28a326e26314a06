"""Runs of several processes: they end where one process ends, only the first writes, and a dead one ends the run instead of hanging it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from chessrl import distributed, notation
from chessrl.errors import UserError
from chessrl.launch import launch
from chessrl.runs import load_runs
from chessrl.sampler import Rollout
from chessrl.training import own_micro_batches
from rl import train as rl
from rl.gathering import gathered
from tests import tiny

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
HANG_SECONDS = 120  # a run that takes longer hangs: far below the timeout of a collective operation

STEPS = 20
# At a rate of 0.01 this fine-tuning multiplies rounding by ten at every step (so do two sizes of micro-batch in one process): it proves nothing.
EXACT = {
    "pretrain": ["run.precision=fp64", "pretrain.tokens=20000", "pretrain.batch_tokens=1000"],
    "sft": ["run.precision=fp64", "sft.epochs=6", "sft.batch_tokens=500", "sft.optimizer.lr=0.001"],
    "rl": ["run.precision=fp64", f"rl.steps={STEPS}", "algorithm.minibatches=2"],
}
FIRST_STEP = {"pretrain": ["pretrain.tokens=2000"], "sft": ["sft.epochs=1"], "rl": ["rl.steps=1"]}

# Runs the stages one after another and keeps the gradients of each one's first step.
JOBS = """
import json, sys
from pathlib import Path
import torch
from chessrl import distributed
from chessrl.training import start_stage
from tests import tiny

outputs, jobs = Path(sys.argv[1]), json.loads(sys.argv[2])
sum_gradients = distributed.sum_gradients

def run_keeping_gradients(number, stage, overrides):
    seen = []
    def keep_first(model):
        sum_gradients(model)
        if not seen:
            seen.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    distributed.sum_gradients = keep_first
    settings = tiny.config(stage, outputs, *overrides)
    assert start_stage(stage, settings, tiny.STAGES[stage].identity, tiny.STAGES[stage].train) == 0
    if distributed.is_first():
        torch.save(seen[0], outputs / f"gradients-{number}.pt")

with distributed.joined(torch.device("cpu")):
    for number, (stage, overrides) in enumerate(jobs):
        run_keeping_gradients(number, stage, overrides)

# A thread of gloo's that still lives when the interpreter ends may end the process by a signal.
threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
assert not any("gloo" in name for name in threads), threads
"""

# A stage whose second process kills itself after some step.
DYING = """
import os, signal, sys
from pathlib import Path
from chessrl.run import Run
from chessrl.training import start_stage
from tests import tiny

outputs, step, victim, *overrides = sys.argv[1:]
log = Run.log

def log_then_die(run, metrics):
    log(run, metrics)
    if metrics["step"] == int(step) and os.environ["RANK"] == victim:
        os.kill(os.getpid(), signal.SIGKILL)

Run.log = log_then_die
settings = tiny.config("pretrain", Path(outputs), *overrides)
sys.exit(start_stage("pretrain", settings, tiny.STAGES["pretrain"].identity, tiny.STAGES["pretrain"].train))
"""


def run(folder: Path, script: str, *arguments: str, launcher: list[str] = TORCHRUN) -> subprocess.CompletedProcess[str]:
    """Run a script in one or several processes; a hang raises TimeoutExpired."""
    path = folder / "script.py"
    path.write_text(script)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [*launcher, str(path), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)


def status_of(directory: Path) -> dict[str, str | None]:
    return json.loads((directory / "status.json").read_text())


def newest_state(directory: Path) -> dict:
    return torch.load(max((directory / "state").glob("step-*.pt")), weights_only=True)


Outcomes = dict[str, tuple[Path, subprocess.CompletedProcess[str]]]


def in_one_process_and_in_two(jobs: list[tuple[str, dict]], tiny_runs: dict[str, Path], make_folder: Callable[[str], Path]) -> Outcomes:
    """The same jobs, each a stage and the overrides of it: outputs folder and finished command of each number of processes."""
    parents = {"pretrain": [], "sft": [f"parent={tiny_runs['pretrain']}"], "rl": [f"parent={tiny_runs['sft']}"]}
    arguments = json.dumps([(stage, [*overrides[stage], *parents[stage]]) for stage, overrides in jobs])
    done = {}
    for name, launcher in (("one", [sys.executable]), ("two", TORCHRUN)):
        outputs = tiny.share_data(make_folder(name), tiny_runs)
        done[name] = outputs, run(outputs, JOBS, str(outputs), arguments, launcher=launcher)
        assert done[name][1].returncode == 0, done[name][1].stderr
    return done


@pytest.fixture(scope="module")
def outcomes(tiny_runs, tmp_path_factory) -> Outcomes:
    """The first step of every stage in float32, and pretraining in float64."""
    jobs = [*((stage, FIRST_STEP) for stage in tiny.STAGES), ("pretrain", EXACT)]
    return in_one_process_and_in_two(jobs, tiny_runs, tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def long_outcomes(tiny_runs, tmp_path_factory) -> Outcomes:
    """The later stages in float64."""
    return in_one_process_and_in_two([("sft", EXACT), ("rl", EXACT)], tiny_runs, tmp_path_factory.mktemp)


@pytest.fixture(params=["pretrain", *(pytest.param(stage, marks=pytest.mark.long) for stage in ("sft", "rl"))])
def exact(request: pytest.FixtureRequest) -> list[Path]:
    """The run directories of a stage in float64: of one process and of two."""
    outcomes = request.getfixturevalue("outcomes" if request.param == "pretrain" else "long_outcomes")
    return directories(outcomes, request.param, "fp64")


def directories(outcomes, stage: str, precision: str) -> list[Path]:
    paths = [path for outputs, _ in outcomes.values() for path in outputs.glob(f"{stage}-*")]
    found = [path for path in paths if f"precision: {precision}" in (path / "config.yaml").read_text()]
    assert len(found) == 2 and found[0].name == found[1].name, "the number of processes entered the run's identity"
    return found


# ---- the same result --------------------------------------------------------------------------------------------------------------------


def test_two_processes_end_where_one_does_in_float64(exact):
    one, two = map(newest_state, exact)
    assert one["step"] == two["step"] >= STEPS
    assert one["counters"] == two["counters"]
    assert all(value.dtype == torch.float64 for value in one["model"].values())
    difference = max((one["model"][name] - two["model"][name]).abs().max().item() for name in one["model"])
    assert difference < 1e-9
    assert one["optimizer"]["state"][0]["exp_avg"].abs().max() > 0, "nothing was learned: equality says little"


def test_two_processes_log_what_one_logs(exact):
    one, two = map(tiny.metrics_of, exact)
    assert [line["step"] for line in two] == list(range(1, len(one) + 1)), "a step is missing, or two processes wrote"
    for a, b in zip(one, two):
        assert a.keys() == b.keys()
        assert {key: pytest.approx(value, rel=1e-6, abs=1e-6) for key, value in a.items()} == b


@pytest.mark.long
def test_two_processes_share_labels_greedy_baselines_rounds_of_sampling_and_a_value_head(tiny_runs, tmp_path_factory):
    exact = ["run.precision=fp64", "rl.steps=3", "algorithm.group=4"]
    algorithms = [["algorithm=dapo", "algorithm.minibatches=2"], ["algorithm=ppo"], ["algorithm=remax", "+reward.weights.random=1.0"]]
    jobs = [("rl", {"rl": [*exact, *algorithm]}) for algorithm in algorithms]
    jobs.append(("rl", {"rl": [*exact, "reward=majority", "reward.label_samples=4"]}))
    one, two = (outputs for outputs, _ in in_one_process_and_in_two(jobs, tiny_runs, tmp_path_factory.mktemp).values())
    names = sorted(path.name for path in one.glob("rl-*"))
    assert len(names) == len(jobs) and names == sorted(path.name for path in two.glob("rl-*"))
    for name in names:
        first, second = newest_state(one / name), newest_state(two / name)
        assert first["counters"] == second["counters"] and first.get("labels") == second.get("labels")
        assert max((first["model"][key] - second["model"][key]).abs().max().item() for key in first["model"]) < 1e-9
        for a, b in zip(tiny.metrics_of(one / name), tiny.metrics_of(two / name)):
            assert {key: pytest.approx(value, rel=1e-6, abs=1e-6) for key, value in a.items()} == b


@pytest.mark.parametrize(("number", "stage"), list(enumerate(tiny.STAGES)))
def test_gradients_of_the_first_step_are_those_of_one_process(number, stage, outcomes):
    one, two = (torch.load(outputs / f"gradients-{number}.pt", weights_only=True) for outputs, _ in outcomes.values())
    assert {value.dtype for value in one.values()} == {torch.float32}
    assert max(value.abs().max().item() for value in one.values()) > 1e-3, f"{stage} has no gradient"
    assert all(torch.allclose(one[name], two[name], rtol=0, atol=1e-6) for name in one)


def test_only_the_first_process_writes_and_speaks(outcomes):
    """Each stage says once that it is finished; the folders hold what one process leaves."""
    (one, alone), (two, together) = outcomes.values()
    assert together.stdout.count(" finished\n") == alone.stdout.count(" finished\n") == 4
    names = [sorted(str(path.relative_to(outputs)) for path in outputs.rglob("*")) for outputs in (one, two)]
    assert names[0] == names[1]
    for stage in tiny.STAGES:
        for directory in directories(outcomes, stage, "fp32"):
            assert status_of(directory)["state"] == "completed"
    traces = [json.loads((directory / "traces.json").read_text()) for directory in directories(outcomes, "sft", "fp32")]
    assert traces[0] == traces[1]


# ---- the end of a run -------------------------------------------------------------------------------------------------------------------

LONG = ["pretrain.batch_tokens=1000", "pretrain.tokens=10_000_000", "pretrain.allow_repeats=true"]


@pytest.mark.parametrize("victim", ["1", pytest.param("0", marks=pytest.mark.long)])
def test_a_dead_process_ends_the_run_with_a_clear_message_and_it_goes_on(victim, tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    sizes = ["run.checkpoint_steps=2", "pretrain.batch_tokens=1000"]
    died = run(tmp_path, DYING, str(outputs), "5", victim, *sizes)
    assert died.returncode != 0
    survivor = "0" if victim == "1" else "1"
    assert f"process {survivor} of 2 lost contact to another one" in died.stderr
    (directory,) = outputs.glob("pretrain-*")
    assert status_of(directory)["state"] == ("failed" if victim == "1" else "running")
    assert list(load_runs(outputs)["state"]) == ["failed" if victim == "1" else "interrupted (stale lock)"]
    steps = len(tiny.metrics_of(directory))
    assert 5 <= steps <= 6 and newest_state(directory)["step"] in (4, 6)

    assert tiny.start("pretrain", tiny.config("pretrain", outputs, *sizes)) == (0, directory)  # alone: the number of processes may change
    lines = tiny.metrics_of(directory)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)) and len(lines) > steps


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    while not condition():
        assert process.poll() is None, "the run ended before"
        time.sleep(0.05)


def test_a_signal_to_torchrun_saves_the_state_and_stops_all_processes(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    command = [*TORCHRUN, "-m", "pretrain", "experiment=toy", *tiny.MODEL, *tiny.SIZES, *LONG, f"outputs={outputs}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(path.stat().st_size for path in outputs.glob("pretrain-*/metrics.jsonl")), process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=HANG_SECONDS)
    (directory,) = outputs.glob("pretrain-*")
    assert process.returncode != 0
    assert status_of(directory) | {"code": ""} == {"state": "interrupted", "error": "stopped by SIGTERM", "code": ""}
    assert output.count("the same command goes on from there") == 1
    assert newest_state(directory)["step"] == tiny.metrics_of(directory)[-1]["step"]


# ---- what cannot be shared --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("chessrl", ["experiment=toy"], "torchrun starts the stages pretrain, sft, rl"),
        ("evaluate", ["parent=x"], "torchrun starts the stages"),
        ("pretrain", ["-m", "pretrain.seed=1,2"], "torchrun starts one run"),
    ],
)
def test_torchrun_is_refused_where_processes_would_repeat_each_other(command, arguments, message, monkeypatch, capsys):
    as_torchrun(monkeypatch)
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    with pytest.raises(SystemExit) as exit_:
        launch(command, lambda config: pytest.fail("work was begun"))
    assert exit_.value.code == 2 and message in capsys.readouterr().err


def as_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("size", ["2", "", "many"])
def test_a_world_size_that_torchrun_did_not_set_is_one_line(size, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setattr(sys, "argv", ["pretrain"])
    with pytest.raises(SystemExit) as exit_:
        launch("pretrain", lambda config: pytest.fail("work was begun"))
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and f"WORLD_SIZE={size} is set but RANK is not" in error and error.count("\n") == 1


def as_process(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    monkeypatch.setattr(distributed, "rank", lambda: rank)
    monkeypatch.setattr(distributed, "size", lambda: size)


def test_more_processes_than_groups_are_refused(monkeypatch, tiny_runs, tmp_path):
    as_process(monkeypatch, 0, 5)
    config = tiny.config("rl", tiny.share_data(tmp_path, tiny_runs), f"parent={tiny_runs['sft']}")
    with pytest.raises(UserError, match=r"rl\.prompts=4 .* expected at least the number of processes, 5"):
        rl.check(config)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(UserError, match=r"more processes here than there are GPUs \(1\): use --nproc-per-node=1"),
        distributed.joined(torch.device("cuda")),
    ):
        pass


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_disjoint_and_leave_nothing_out(size, monkeypatch):
    lengths = np.random.default_rng(0).integers(5, 90, 41).tolist()
    rows, stretch, sizes = [], [], []
    for rank in range(size):
        as_process(monkeypatch, rank, size)
        groups = own_micro_batches(lengths, 200)
        assert all(len(group) == 1 or len(group) * max(lengths[place] for place in group) <= 200 for group in groups)
        rows += [place for group in groups for place in group]
        sizes.append(sum(lengths[place] for group in groups for place in group))
        stretch += distributed.portion(range(41))
    assert sorted(rows) == list(range(41)) and stretch == list(range(41))
    assert max(sizes) - min(sizes) <= 90, "the work is shared unevenly"


def test_spread_work_comes_back_in_order_whatever_the_number_of_processes(monkeypatch):
    items, blocks_of = list(range(23)), {}

    def work(own):
        return [item * 10 for item in own]

    for size in (1, 2, 3, 6):
        parts = []
        for rank in range(size):  # what each process would do
            as_process(monkeypatch, rank, size)
            monkeypatch.setattr(distributed, "gather", lambda value: [value] * distributed.size())
            blocks_of[rank] = []
            distributed.spread(lambda own, rank=rank: blocks_of[rank].append(list(own)) or [0] * 100, items, 5)
            parts.append(work(blocks_of[rank][0]))
        monkeypatch.setattr(distributed, "gather", lambda value, parts=parts: parts)
        assert distributed.spread(work, items, 5) == [item * 10 for item in items]


def test_gathered_episodes_keep_their_tokens_and_are_padded_alike(monkeypatch):
    def part(rows: int, prompt: int, width: int, start: int) -> Rollout:
        column = torch.arange(start, start + rows)
        wide = column[:, None].expand(rows, width)
        flags = column > 0
        return Rollout(
            column[:, None].expand(rows, prompt), column, wide, column, wide > 0, wide.float(), wide.float(),
            column, flags, flags, column, column, column,
        )  # fmt: skip

    as_process(monkeypatch, 0, 2)
    monkeypatch.setattr(distributed, "gather", lambda value: [value, other])
    own, second = part(2, 3, 4, 1), part(3, 2, 6, 3)
    other = {name: getattr(second, name) for name in second.__slots__}
    whole = gathered(own)
    assert whole.lengths.tolist() == [1, 2, 3, 4, 5] and whole.tokens.shape == (5, 6) and whole.prompts.shape == (5, 3)
    assert whole.tokens[0].tolist() == [1] * 4 + [notation.PAD] * 2 and whole.tokens[4].tolist() == [5] * 6
    assert whole.prompts[4].tolist() == [5, 5, notation.PAD] and not whole.policy[0, 4:].any()
    assert whole.logprobs[0].tolist() == [1.0] * 4 + [0.0] * 2


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with distributed.joined(torch.device("cpu")), distributed.first_process_first():
        assert distributed.size() == 1 and distributed.is_first()
        assert distributed.gather("x") == ["x"] and distributed.maximum(3.0) == 3.0
