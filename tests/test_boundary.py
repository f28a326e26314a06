"""RL in rounds: what is called in which order, and the whole at toy size, stopped and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from chessrl import evaluate
from chessrl.boundary import carry_out, check_rounds, further_commands
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.tiers import boundary_puzzles, read_measured
from tests import tiny

RECIPE = ["arm=none", "curriculum=boundary", "rl.steps=10", "rl.data_seed=5"]


class Commands:
    """Stands for the pipeline's commands: remembers them, and writes the measures that are asked for."""

    def __init__(self, folder: Path, p: dict[str, float]):
        self.folder, self.p, self.called = folder, p, []

    def __call__(self, module: str, *overrides: str) -> Path:
        self.called.append((module, dict(override.split("=", 1) for override in overrides)))
        made = self.folder / f"{module}-{len(self.called)}"
        if module == "chessrl.evaluate":
            made.mkdir()
            pd.DataFrame({"puzzle": self.p.keys(), "p": self.p.values()}).to_parquet(made / "exact.parquet")
        return made


MEASURED = {"easy": 0.9, "f1": 0.02, "f2": 0.005, "b1": 0.003, "b2": 1e-6}


def test_each_round_measures_then_bridges_the_boundary_then_trains_on_what_came_out(tmp_path):
    commands = Commands(tmp_path, MEASURED)
    made = carry_out(compose("chessrl", [*RECIPE, "boundary.puzzles=1"]), Path("start"), commands)
    modules, given = zip(*commands.called)
    assert modules == ("chessrl.evaluate", "sft", "rl") * 3 and len(made) == 6
    assert [each["parent"] for each in given[:4]] == ["start", "start", str(tmp_path / "sft-2"), str(tmp_path / "rl-3")]
    assert given[0]["evaluate.split"] == "rl" and given[0]["evaluate.exact"] == "true" and given[0]["evaluate.max_puzzles"] == "null"
    assert given[1]["sft.puzzles"] == "[f2,b1]", "the nearest on either side of 1/256"
    assert [int(each["rl.steps"]) for each in given[2::3]] == [3, 3, 4], "ten steps, shared out"
    assert len({each["rl.data_seed"] for each in given[2::3]}) == 3 and given[2]["rl.data_seed"] == "5"
    assert "rl.curriculum.measured" not in given[2], "nothing asks for it"


def test_without_a_puzzle_near_the_boundary_a_round_has_no_bridge(tmp_path):
    commands = Commands(tmp_path, {"easy": 0.9, "medium": 0.2})
    carry_out(compose("chessrl", RECIPE), Path("start"), commands)
    assert [module for module, _ in commands.called] == ["chessrl.evaluate", "rl"] * 3


@pytest.mark.parametrize("curriculum", ["pass_rate", "easy_to_hard"])
def test_a_curriculum_that_needs_a_measure_gets_that_of_its_start(curriculum, tmp_path):
    commands = Commands(tmp_path, MEASURED)
    carry_out(compose("chessrl", ["arm=none", f"curriculum={curriculum}"]), Path("start"), commands)
    (_, measure), (module, training) = commands.called
    assert module == "rl" and measure["parent"] == "start"
    assert training["rl.curriculum.measured"] == str(tmp_path / "chessrl.evaluate-1" / "exact.parquet")


def test_a_policy_that_thinks_is_measured_by_samples_and_bridged_with_lines_of_the_engine(tmp_path):
    config = compose("chessrl", ["curriculum=boundary"])

    def call(module: str, *overrides: str) -> Path:
        called.append((module, overrides))
        folder = tmp_path / f"{len(called)}"
        if module == "chessrl.evaluate":
            folder.mkdir()
            first_solved = {"easy": 0, "frontier": 255, "beyond": 256}
            rows = [(puzzle, sample, sample >= first) for puzzle, first in first_solved.items() for sample in range(256)]
            table = pd.DataFrame(rows, columns=["puzzle", "sample", "solved"])
            table.to_parquet(folder / "samples.parquet")
        return folder

    called: list[tuple[str, tuple[str, ...]]] = []
    carry_out(config, Path("start"), call)
    assert {"evaluate.samples=256", "evaluate.exact=false"} <= set(called[0][1])
    assert {"sft.puzzles=[frontier,beyond]", "sft.trace.proposal=engine"} <= set(called[1][1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["rl.tokens=1000"], r"boundary\.rounds=3: expected rl\.steps of at least as many, without rl\.tokens"),
        (["rl.flops=1e12"], r"boundary\.rounds=3: expected rl\.steps of at least as many, without rl\.tokens, rl\.flops and budget\.flops"),
        (["rl.steps=2"], r"boundary\.rounds=3: expected rl\.steps of at least as many"),
        (["rl.save_steps=[1]"], r"boundary\.rounds=3 and rl\.save_steps=\[1\]"),
        (["run.rerun=true"], r"boundary\.rounds=3 and run\.rerun=true"),
    ],
)
def test_rounds_that_cannot_share_out_the_steps_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        check_rounds(compose("chessrl", [*RECIPE, *given]))


def test_the_pipeline_counts_the_commands_of_the_rounds():
    """A plain pipeline of three stages has six commands with evaluations; three rounds add to these what is counted here by hand."""
    names = ("shuffled", "pass_rate", "boundary", "rounds")
    counts = {name: further_commands(compose("chessrl", ["arm=none", f"curriculum={name}"])) for name in names}
    assert counts == {"shuffled": 0, "pass_rate": 1, "rounds": 3 + 2 * 2, "boundary": 3 + 5 * 2}


# ---- the whole --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def start(tiny_runs, tmp_path) -> Path:
    """A fine-tuned policy without traces below ``tmp_path``."""
    outputs = tiny.share_data(tmp_path, tiny_runs)
    status, directory = tiny.start("sft", tiny.config("sft", outputs, "arm=none", f"parent={tiny_runs['pretrain']}"))
    assert status == 0
    return directory


def test_rounds_of_a_policy_without_traces_go_on_where_they_were_stopped(start, tmp_path, monkeypatch):
    """Two rounds with bridges on real runs; stopped before the second bridge and started again, every part is the same run and none is made twice."""
    given = [*RECIPE, "boundary.rounds=2", "boundary.puzzles=2", "boundary.epochs=1", "rl.steps=2"]
    monkeypatch.setattr(evaluate.world, "puzzles_of_split", some_puzzles(evaluate.world.puzzles_of_split))
    worked: list[str] = []
    left = 4  # commands until the stop

    def call(module: str, *overrides: str) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        settings = tiny.config(module.rpartition(".")[2], tmp_path, *given, *overrides)
        if module == "chessrl.evaluate":
            evaluate.evaluate(settings)
            return tiny.evaluation_folder(settings)
        before = {path.name for path in tmp_path.glob(f"{module}-*")}
        status, directory = tiny.start(module, settings)
        assert status == 0
        worked.extend({directory.name} - before)
        return directory

    config = tiny.config("chessrl", tmp_path, *given)
    with pytest.raises(KeyboardInterrupt):
        carry_out(config, start, call)
    assert len(worked) == 2
    left = 100
    made = carry_out(config, start, call)
    assert [path.name for path in made] == worked and len(made) == 4
    summaries = [json.loads((path / "summary.json").read_text()) for path in made]
    assert [each["stage"] for each in summaries] == ["sft", "rl", "sft", "rl"] and summaries[0]["puzzles"] <= 4
    assert summaries[3]["parents"]["sft"] == made[2].name and sum(each["step"] for each in summaries[1::2]) == 2
    (first,) = start.glob("evaluations/*/exact.parquet")
    assert yaml.safe_load((made[0] / "config.yaml").read_text())["sft"]["puzzles"] == boundary_puzzles(read_measured(first), 2)


def some_puzzles(puzzles_of_split):
    """The first puzzles alone of the rl split's, so that a measure takes no seconds."""

    def chosen(config, split, bins=()):
        return puzzles_of_split(config, split, bins)[: 40 if split == "rl" else None]

    return chosen


def test_exact_measures_are_what_the_boundary_is_drawn_by(tmp_path):
    """The tier edge is 1/256: of p on both sides the nearest come first."""
    p = np.geomspace(1e-4, 0.5, 40)
    pd.DataFrame({"puzzle": [f"p{place:02d}" for place in range(40)], "p": p}).to_parquet(tmp_path / "exact.parquet")
    chosen = boundary_puzzles(read_measured(tmp_path / "exact.parquet"), 3)
    below = int((p < 1 / 256).sum())
    assert chosen == [f"p{place:02d}" for place in (below, below + 1, below + 2, below - 1, below - 2, below - 3)]
