"""Fine-tuning that goes on from a fine-tuned policy, on given puzzles: the bridge of a curriculum in stages."""

from __future__ import annotations

import json

import pytest
import torch

from chessrl import world
from chessrl.checkpoint import load_model
from chessrl.errors import UserError
from rl import train as rl
from sft import train as sft
from sft.data import training_puzzles
from tests import tiny


def bridge(runs, outputs, *overrides: str, start: str = "sft"):
    return tiny.config("sft", outputs, f"parent={runs[start]}", "sft.trace.proposal=uniform", "sft.epochs=1", *overrides)


@pytest.fixture(scope="module")
def names(tiny_runs) -> list[str]:
    settings = tiny.config("sft", tiny_runs["sft"].parent)
    return [puzzle.id for split in ("rl", "sft") for puzzle in world.puzzles_of_split(settings, split)[3:5]]


def summary_of(directory) -> dict:
    return json.loads((directory / "summary.json").read_text())


def test_a_bridge_starts_from_the_policy_and_counts_on(tiny_runs, tmp_path, names):
    chosen = f"sft.puzzles=[{','.join(names)}]"
    status, still = tiny.start("sft", bridge(tiny_runs, tmp_path, chosen, "sft.optimizer.lr=0"))
    assert status == 0
    start, end = (load_model(directory / "model").state_dict() for directory in (tiny_runs["sft"], still))
    assert all(torch.equal(value, end[key]) for key, value in start.items())
    status, moved = tiny.start("sft", bridge(tiny_runs, tmp_path, chosen))
    assert status == 0 and any(not torch.equal(value, start[key]) for key, value in load_model(moved / "model").state_dict().items())
    before, after = summary_of(tiny_runs["sft"]), summary_of(moved)
    assert after["puzzles"] == len(names) == 4
    assert after["parents"] == before["parents"] | {"sft": before["run_id"]} and set(after["parents"]) == {"pretrain", "sft"}
    assert after["flops_by_stage"]["sft"] == before["flops_by_stage"]["sft"] + after["flops"]
    assert after["flops_by_stage"]["pretrain"] == before["flops_by_stage"]["pretrain"]
    assert rl.identity(tiny.config("rl", tmp_path, f"parent={moved}"))["parent"] == after["run_id"], "RL consolidates it"


def test_a_bridge_may_follow_rl(tiny_runs, tmp_path, names):
    status, directory = tiny.start("sft", bridge(tiny_runs, tmp_path, f"sft.puzzles=[{names[0]}]", start="rl"))
    assert status == 0
    before, after = summary_of(tiny_runs["rl"]), summary_of(directory)
    assert set(after["parents"]) == {"pretrain", "sft", "rl"} and after["flops_by_stage"]["rl"] == before["flops_by_stage"]["rl"]


def test_the_puzzles_are_those_that_were_named_in_their_order(tiny_runs, names):
    settings = tiny.config("sft", tiny_runs["sft"].parent, f"sft.puzzles=[{names[2]},{names[0]}]")
    assert [puzzle.id for puzzle in training_puzzles(settings)] == [names[2], names[0]]


def test_what_is_no_bridge_is_refused(tiny_runs, tmp_path, names):
    (held_out, *_) = world.puzzles_of_split(tiny.config("sft", tmp_path), "test")
    for overrides, message in (
        ([f"sft.puzzles=[{held_out.id}]"], f"{held_out.id} is in neither the sft nor the rl split"),
        ([f"sft.puzzles=[{names[0]},{names[0]}]"], "names a puzzle twice"),
        (["sft.trace.proposal=model"], "choose sft.trace.proposal=teacher, engine or uniform"),
    ):
        with pytest.raises(UserError, match=message):
            sft.identity(bridge(tiny_runs, tmp_path, *overrides))


def test_runs_of_the_whole_split_keep_their_identity(tiny_runs, tmp_path):
    identity = sft.identity(tiny.config("sft", tmp_path, f"parent={tiny_runs['pretrain']}"))
    assert "puzzles" not in identity["sft"]
