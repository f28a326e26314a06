"""The exact move distribution at the roots, against every legal move scored on its own."""

from __future__ import annotations

import math

import pytest
import torch

from chessrl import notation, world
from chessrl.checkpoint import load_model
from chessrl.puzzles import prompt_tokens
from rl.roots import Roots
from tests import tiny


def plain_distribution(model, prompt, board, temperature) -> tuple[list[float], float]:
    """Probabilities over the legal moves, and their mass, by one forward pass for each move."""
    masses = []
    for move in board.legal_moves:
        tokens = notation.move_tokens(board, move)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens]]))[0].double() / temperature
        logprobs = logits.log_softmax(-1)
        masses.append(math.exp(sum(logprobs[len(prompt) - 1 + place, token].item() for place, token in enumerate(tokens))))
    return [mass / sum(masses) for mass in masses], sum(masses)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_measures_equal_every_move_scored_on_its_own(tiny_runs, temperature):
    settings = tiny.config("rl", tiny_runs["sft"].parent)
    puzzles = world.puzzles_of_split(settings, "rl", ["B1"])[:4]
    prompts = [prompt_tokens(puzzle, settings.world.state, think=False) for puzzle in puzzles]
    policy, reference = (load_model(tiny_runs[stage] / "model") for stage in ("rl", "pretrain"))
    found = Roots(puzzles, prompts, temperature).measures(policy, reference, [2, 0])
    rows = []
    for place in (2, 0):
        p, mass = plain_distribution(policy, prompts[place], puzzles[place].board(), temperature)
        q, _ = plain_distribution(reference, prompts[place], puzzles[place].board(), temperature)
        to, back = (sum(a * math.log(a / b) for a, b in zip(*pair)) for pair in ((p, q), (q, p)))
        rows.append((-sum(a * math.log(a) for a in p), mass, to, back))
    expected = [sum(column) / 2 for column in zip(*rows)]
    assert [found[f"root/{name}"] for name in ("entropy", "legal_mass", "kl", "kl_from_reference")] == pytest.approx(expected, rel=1e-4)
    assert found["root/kl"] > 1e-3 and abs(found["root/kl"] - found["root/kl_from_reference"]) > 1e-4, "the two must differ to be told apart"


@pytest.mark.parametrize("protocol", ["answer", "think"])
def test_a_run_logs_them_where_the_policy_has_no_trace(protocol, tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    settings = tiny.config("rl", outputs, f"parent={tiny_runs['sft']}", "rl.steps=2", f"rl.protocol={protocol}")
    status, directory = tiny.start("rl", settings)
    assert status == 0
    first, last = tiny.metrics_of(directory)
    if protocol == "think":
        assert not any(name.startswith("root/") for name in last)
        return
    assert first["root/kl"] == pytest.approx(0, abs=1e-6) and first["root/kl_from_reference"] == pytest.approx(0, abs=1e-6)
    assert 0 < first["root/legal_mass"] < 1.0001 and first["root/entropy"] > 0
    assert last["root/kl"] > 0 or last.get("grad_norm", 0) == 0
