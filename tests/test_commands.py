"""Commands as users type them: presets compose, mistakes are one line on stderr with status 2, help works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chessrl.config import Config
from chessrl.config_check import CHOICES, OPTIONAL_COUNTS, RANGES, value_of
from chessrl.errors import UserError
from chessrl.launch import CONF, compose, known_keys, launch
from tests import tiny

ROOT = Path(__file__).parents[1]
COMMANDS = ("chessrl", "pretrain", "sft", "rl", "analysis", "evaluate")
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True)


def launched(monkeypatch: pytest.MonkeyPatch, command: str, work, *arguments: str) -> int:
    """The exit status of ``launch`` in this process."""
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    with pytest.raises(SystemExit) as exit_:
        launch(command, work)
    return exit_.value.code


# ---- presets ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_in_every_command(experiment):
    configs = [compose(command, [f"experiment={experiment}"]) for command in COMMANDS]
    assert all(config == configs[0] for config in configs), "a stage's own command would make another run than the pipeline's"
    assert configs[0].world.name and configs[0].model.layers > 0 and configs[0].reward.weights
    assert configs[0] != compose("chessrl", []), "the experiment sets nothing"


def test_there_are_a_quickstart_a_toy_and_a_lichess_experiment():
    assert {"quickstart", "toy", "lichess"} <= set(EXPERIMENTS)
    for experiment in ("quickstart", "lichess"):  # the test split is read once, at the end of a run
        assert compose("chessrl", [f"experiment={experiment}"]).evaluate.split == "test"
    assert compose("chessrl", []).evaluate.split == "validation"


@pytest.mark.parametrize("model", MODELS)
def test_every_model_composes_under_its_own_name(model):
    config = compose("pretrain", [f"model={model}"]).model
    assert config.name == model and min(config.layers, config.hidden, config.ffn, config.heads, config.kv_heads, config.head_dim) > 0


def test_values_on_the_command_line_win_over_the_experiment():
    assert compose("rl", ["experiment=toy", "rl.steps=7", "model=micro"]).rl.steps == 7
    assert compose("rl", ["rl.steps=7", "experiment=toy", "model=micro"]).model.name == "micro"
    assert compose("pretrain", ["pretrain.tokens=100_000_000"]).pretrain.tokens == 100_000_000


def test_a_reward_part_can_be_added():
    assert compose("rl", ["+reward.weights.format=0.5"]).reward.weights == {"line": 1.0, "format": 0.5}


# ---- mistakes --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.stepz=5", r"rl\.stepz: no such key; did you mean rl\.steps\?"),
        ("nonsense=5", r"nonsense: no such key"),
        ("+rl.stepz=5", r"rl\.stepz: no such key; did you mean rl\.steps\?"),  # a plus must not hide a misspelt key
        ("+nonsense=5", r"nonsense: no such key"),
        ("reward.weights.format=1", r"reward\.weights\.format: .* add it with a plus: \+reward\.weights\.NAME=VALUE"),
        ("rl.steps=many", r"rl\.steps=many: Value 'many' .* could not be converted to Integer"),
        ("pretrain.tokens=1e8", r"pretrain\.tokens=1e8: .* could not be converted to Integer; write integers in digits"),
        ("rl.optimizer.lr=fast", r"rl\.optimizer\.lr=fast: .* could not be converted to Float"),
        ("run.rerun=maybe", r"run\.rerun=maybe: Value 'maybe' is not a valid bool"),
        ("evaluate.ks=4", r"evaluate\.ks=4: expected a list, such as evaluate\.ks=\[4\]"),
        ("model=huge", r"model=huge: no such preset; known are .*micro"),
        ("experiment=none", r"experiment=none: no such preset; known are .*quickstart"),
        ("outputs=a=b", r"outputs=a=b: not readable as key=value"),
        ("rl.steps", r"rl\.steps: not readable as key=value"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(override, message):
    with pytest.raises(UserError, match=message) as error:
        compose("rl", ["rl.prompts=4", override])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.steps=0", "rl.steps=0: expected at least 1"),
        ("algorithm.group=1", "algorithm.group=1: expected at least 2"),
        ("algorithm.pass_k=8", "algorithm.pass_k=8: expected less than algorithm.group=8"),
        ("algorithm.dual_clip=0.5", "algorithm.dual_clip=0.5: expected more than 1, or 0 for none"),
        ("algorithm.advantage=median", "algorithm.advantage=median: expected one of group_std"),
        ("evaluate.ks=[32]", "evaluate.ks=[32]: expected different numbers from 1 to evaluate.samples=16"),
        ("evaluate.ks=[1,1]", "evaluate.ks=[1, 1]: expected different numbers"),
        ("pretrain.optimizer.lr=nan", "pretrain.optimizer.lr=nan: expected at least 0"),
        ("rl.optimizer.lr=inf", "rl.optimizer.lr=inf: expected at least 0"),
        ("sft.optimizer.beta1=2", "sft.optimizer.beta1=2.0: expected from 0 to 0.999999"),
        ("evaluate.seed=-1", "evaluate.seed=-1: expected from 0"),
        ("+reward.weights.legal=nan", "reward.weights.legal=nan: expected a finite number"),
        ("model.vocabulary=85", "model.vocabulary=85 has no tokens for world.state=snapshot"),
        ("model.head_dim=23", "model.head_dim=23: expected an even number"),
        ("run.precision=fp16", "run.precision=fp16: expected one of fp32, bf16"),
        ("pretrain.optimizer.schedule=linear", "pretrain.optimizer.schedule=linear: expected one of cosine, constant, wsd"),
        ("pretrain.optimizer.lr_rule=width", "pretrain.optimizer.lr_rule=width: expected one of fixed, size"),
        ("pretrain.optimizer.decay_ratio=1.5", "pretrain.optimizer.decay_ratio=1.5: expected from 0 to 1"),
        ("pretrain.optimizer.warmup_steps=0", "pretrain.optimizer.warmup_steps=0: expected at least 1, or null"),
        ("pretrain.steps=0", "pretrain.steps=0: expected at least 1, or null"),
        ("pretrain.seed=-1", "pretrain.seed=-1: expected from 0 to"),
        ("budget.flops=-1e15", "budget.flops=-1000000000000000.0: expected at least 1, or null"),
        ("budget.alpha=0", "budget.alpha=0.0: expected from 1e-09 to 1"),
        ("rl.save_steps=[0]", "rl.save_steps=[0]: expected steps, which count from 1"),
        ("sft.trace.length_min=3", "sft.trace.length_min=3: expected at most sft.trace.length_max=2"),
        ("evaluate.split=train", "evaluate.split=train: expected one of sft, rl, validation, test, private"),
        ("world.name=mars", "world.name=mars: expected one of endgame, lichess"),
        ("sft.max_puzzles=0", "sft.max_puzzles=0: expected at least 1"),
    ],
)
def test_a_value_out_of_range_is_refused_before_any_work(override, message, monkeypatch, capsys):
    def work(config: Config) -> int:
        raise AssertionError("work was begun")

    assert launched(monkeypatch, "rl", work, override) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {message}") and output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("stage", "overrides", "message"),
    [
        ("pretrain", ["world=lichess", "world.games=a.pgn", "world.puzzles=b.csv"], r"b\.csv: no such file\..*database\.lichess\.org"),
        ("pretrain", ["world=lichess", "world.games=a.pgn", "world.puzzles=b.parquet"], r"b\.parquet: no such file; give the puzzle table"),
        ("pretrain", ["world=lichess"], r"world\.(games|puzzles) is empty\..*database\.lichess\.org"),
        ("sft", [], "parent is empty"),
        ("sft", ["parent=nowhere"], "parent=nowhere is not a finished run"),
        ("sft", ["parent=RL"], "is a run of stage rl, which no longer plays on"),
        ("rl", ["parent=PRETRAIN"], "is a run of stage pretrain: expected sft or rl"),
        ("rl", ["parent=SFT", "rl.bins=[B9]"], "no puzzle in split rl and bins B9"),
        ("rl", ["parent=SFT", "+reward.weights.beauty=1"], r"reward\.weights\.beauty: no such part; known are line"),
        ("rl", ["parent=SFT", "+reward.weights.engine=1"], r"reward\.weights\.engine needs reward\.accept=engine"),
        ("rl", ["parent=SFT", "algorithm.minibatches=5"], r"algorithm\.minibatches=5 is more than rl\.prompts=4"),
        ("pretrain", ["pretrain.tokens=100_000_000"], r"pretrain\.tokens=100,000,000 is more than the .* training tokens"),
    ],
)  # fmt: skip
def test_a_stage_that_cannot_start_says_why_in_one_line(stage, overrides, message, tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    runs = {f"parent={name.upper()}": f"parent={directory}" for name, directory in tiny_runs.items()}
    named = [runs.get(override, override) for override in overrides]
    with pytest.raises(UserError, match=message) as error:
        tiny.start(stage, tiny.config(stage, outputs, *named))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pretrain", "pretrain.tokenz=5"), "error: pretrain.tokenz: no such key; did you mean pretrain.tokens?"),
        (("rl", "parent=nowhere"), "error: parent=nowhere is not a finished run"),
    ],
)
def test_a_mistake_ends_the_process_with_status_2_and_no_traceback(arguments, message, tmp_path):
    process = python(*arguments, f"outputs={tmp_path}")
    assert process.returncode == 2
    assert process.stderr.startswith(message) and process.stderr.count("\n") == 1
    assert "Traceback" not in process.stdout


def test_every_number_has_a_range():
    known = {key: value_of(Config(), key) for key in known_keys(Config)}
    numbers = {key for key, value in known.items() if isinstance(value, int | float) and not isinstance(value, bool)}
    assert numbers - {"model.vocabulary"} <= set(RANGES), "a new key needs its range in chessrl/config_check.py"
    assert {key for key, value in known.items() if value is None} == set(OPTIONAL_COUNTS)
    assert set(RANGES) | set(OPTIONAL_COUNTS) | set(CHOICES) <= set(known), "a range for a key that is no more"


def test_one_bad_job_of_a_sweep_fails_the_sweep_but_not_the_other_jobs(monkeypatch, tmp_path, capsys):
    seen = []

    def work(config: Config) -> int:
        if config.rl.steps == 1:
            raise UserError("no")
        seen.append(config.rl.steps)
        return 0

    assert launched(monkeypatch, "rl", work, "-m", "rl.steps=1,2,3", f"outputs={tmp_path}") == 2
    assert seen == [2, 3] and "error: no" in capsys.readouterr().err


def test_a_job_that_a_signal_killed_is_not_hidden_by_the_others(monkeypatch, tmp_path):
    statuses = {1: 0, 2: -9}
    status = launched(monkeypatch, "rl", lambda config: statuses[config.rl.steps], "-m", "rl.steps=1,2", f"outputs={tmp_path}")
    assert status == 128 + 9


@pytest.mark.parametrize("command", ["chessrl", "pretrain", "sft", "rl", "analysis", "chessrl.evaluate"])
def test_help_names_the_presets_and_every_key(command):
    process = python(command, "--help")
    assert process.returncode == 0
    for expected in (f"Usage: python -m {command} ", "quickstart", "beta: 0.001", "thinking_budget"):
        assert expected in process.stdout, expected


# ---- the contract of a finished run ----------------------------------------------------------------------------------------------------


def test_finished_stages_left_what_the_contract_says(tiny_runs):
    flops: dict[str, int] = {}
    for stage, directory in tiny_runs.items():
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
        for key in ("tokens", "loss_tokens", "flops", "flops_with_attention"):
            values = [line[key] for line in lines]
            assert values == sorted(values) and 0 < values[0] < values[-1], f"{key} must be cumulative"
        assert all(line["flops_with_attention"] > line["flops"] and line["loss_tokens"] < line["tokens"] for line in lines)
        assert "time/wall_s" in lines[0] and not any("wall" in key and not key.startswith("time/") for key in lines[0])
        status = json.loads((directory / "status.json").read_text())
        assert status["state"] == "completed" and status["error"] is None and status["code"]
        assert {path.name for path in (directory / "model").iterdir()} == {
            *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.json")
        }
        summary = json.loads((directory / "summary.json").read_text())
        assert summary["stage"] == stage and summary["run_id"] == directory.name
        assert summary["tokens"] == lines[-1]["tokens"] and summary["flops"] == lines[-1]["flops"]
        assert summary["parameters"]["total"] > summary["parameters"]["without_embeddings"] > 0
        flops[stage] = summary["flops"]
        assert {name: summary["flops_by_stage"][name] for name in flops} == flops
    parents = json.loads((tiny_runs["rl"] / "summary.json").read_text())["parents"]
    assert parents == {stage: tiny_runs[stage].name for stage in ("pretrain", "sft")}
    assert json.loads((tiny_runs["sft"] / "traces.json").read_text())["puzzles"] == 60


def test_reward_parts_kl_entropy_lengths_and_drift_are_logged(tiny_runs):
    for line in tiny.metrics_of(tiny_runs["rl"]):
        assert {"reward", "reward_std", "reward/line", "reward/format", "kl", "entropy", "completions/mean_length", "clip_ratio/low",
                "clip_ratio/high", "frac_reward_zero_std", "policy/legal", "grad_norm", "lr"} <= set(line)  # fmt: skip
        assert line["reward"] == pytest.approx(line["reward/line"] + 0.5 * line["reward/format"], abs=1e-5)
        assert line["sampling/logp_difference/max"] < 1e-4, "the trainer scores other probabilities than the sampler drew from"
