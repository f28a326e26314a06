"""The exact KL of policies without a trace against every legal move of every visited decision, scored on its own."""

from __future__ import annotations

import functools
import json
import math

import pytest
import torch

from chessrl import distributed, notation
from chessrl.config import AlgorithmConfig
from chessrl.environment import build_environment
from chessrl.errors import UserError
from chessrl.model import Cost, Transformer, build_model
from chessrl.puzzles import prompt_tokens
from chessrl.sampler import Rollout, SamplingSettings, rollout
from rl.credit import Credit
from rl.exact_kl import accumulate_kl, exact_kl, outcome_kl
from rl.move_trees import MoveTrees
from rl.objective import token_weights
from rl.update import accumulate_gradient, build_batch, score
from rl.value import Learner
from tests import tiny
from tests.test_sampler import PUZZLES, TINY, trained_model

TEMPERATURE = 0.8


def in_double(model: Transformer) -> Transformer:
    copy = Transformer(TINY, "fp64")
    copy.load_state_dict(model.state_dict())
    return copy


@functools.cache
def sampled() -> tuple[Transformer, Transformer, Rollout]:
    """A policy, a reference that differs from it, and episodes of the policy; the policy errs in every way there is."""
    policy, reference = in_double(trained_model("answer")), in_double(trained_model("answer", steps=150))
    prompts = [prompt_tokens(puzzle, "snapshot", think=False) for puzzle in PUZZLES]
    settings = SamplingSettings("answer", TEMPERATURE, 0)
    return policy, reference, rollout(policy, build_environment(PUZZLES), list(range(len(PUZZLES))), prompts, 6, settings)


def outcomes_one_by_one(model: Transformer, context: list[int], board) -> torch.Tensor:
    """Probabilities of all legal moves with their <call_env>, and of everything else."""
    plies = [[*notation.move_tokens(board, move), notation.CALL_ENV] for move in board.legal_moves]
    longest = max(map(len, plies))
    rows = torch.tensor([[*context, *ply, *[notation.PAD] * (longest - len(ply))] for ply in plies])
    logprobs = (model(rows[:, :-1]) / TEMPERATURE).log_softmax(-1).gather(-1, rows[:, 1:, None]).squeeze(-1)[:, len(context) - 1 :]
    moves = torch.stack([row[: len(ply)].sum() for row, ply in zip(logprobs, plies)]).exp()
    return torch.cat([moves, (1 - moves.sum())[None].clamp(min=1e-6)])


def visited(result: Rollout):
    """(episode, context, board) of each decision, by replaying the tokens with python-chess."""
    for episode in range(len(result.lengths)):
        puzzle = PUZZLES[int(result.puzzles[episode])]
        prompt = result.prompts[episode, : int(result.prompt_lengths[episode])].tolist()
        tokens, board = result.tokens[episode, : int(result.lengths[episode])].tolist(), puzzle.board()
        line, place = list(puzzle.moves[puzzle.lead :]), 0
        yield episode, prompt, board
        for _ in range(int(result.moves[episode])):
            end = tokens.index(notation.CALL_ENV, place)
            move = notation.parse_move(board, tokens[place:end], strict=False)
            if move.uci() != line[0] or len(line) == 1:
                break
            board.push(move)
            place = end + 1 + len(notation.move_tokens(board, board.parse_uci(line[1])))
            board.push_uci(line[1])
            line = line[2:]
            yield episode, [*prompt, *tokens[:place]], board


def gradients(model: Transformer) -> torch.Tensor:
    flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    return flat


@pytest.mark.parametrize("norm", ["sequence", "token", "constant"])
def test_loss_and_gradient_are_those_of_every_legal_move_scored_on_its_own(norm):
    """With advantages of 0 nothing but the KL is left of the loss."""
    policy, reference, result = sampled()
    batch = build_batch(result)
    algorithm = AlgorithmConfig(group=6, kl="exact", beta=0.3, loss_norm=norm, loss_budget=5)
    exact = exact_kl(result, MoveTrees(PUZZLES, (notation.CALL_ENV,)), reference, TEMPERATURE, 4096)
    credit = Credit(torch.zeros(len(result.lengths), 1))
    start = score(reference, batch, TEMPERATURE, 4096)
    measures = accumulate_gradient(Learner(policy, None), batch, credit, start, algorithm, TEMPERATURE, 4096, exact)
    found = gradients(policy)
    weights = token_weights(batch.policy, norm, 5).amax(1)
    terms, values = [], []
    for episode, context, board in visited(result):
        p, q = outcomes_one_by_one(policy, context, board), outcomes_one_by_one(reference, context, board).detach()
        values.append((p * (p / q).log()).sum())
        terms.append(0.3 * weights[episode] * values[-1])
    assert len(values) > len(result.lengths), "no episode came to a second decision: the test shows little"
    loss = torch.stack(terms).sum()
    loss.backward()
    assert measures["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert measures["kl_exact"] == pytest.approx(torch.stack(values).mean().item(), rel=1e-6) and measures["kl_exact"] > 0.05
    assert torch.allclose(found, gradients(policy), rtol=1e-5, atol=1e-8)


def test_its_mean_from_samples_is_the_mean_of_log_ratios():
    """Sampled at a root, log pi / ref of what came of it has the KL as its mean: 20,000 draws of the outcome against the exact value."""
    policy, reference, _ = sampled()
    puzzle = PUZZLES[1]
    p, q = (outcomes_one_by_one(model, prompt_tokens(puzzle, "snapshot", think=False), puzzle.board()).detach() for model in (policy, reference))
    draws = torch.multinomial(p, 20_000, replacement=True, generator=torch.Generator().manual_seed(0))
    ratios = (p / q).log()[draws]
    exact = outcome_kl(p[:-1].log(), q[:-1].log()).item()
    assert exact == pytest.approx(ratios.mean().item(), abs=4 * (ratios.std() / math.sqrt(20_000)).item())


def test_mass_that_leaves_the_legal_moves_is_paid_for():
    """Between the legal moves nothing changed: a KL within them alone would be 0."""
    reference = torch.tensor([0.6, 0.3], dtype=torch.float64).log()
    assert outcome_kl(reference - math.log(2), reference).item() == pytest.approx(0.45 * math.log(0.5) + 0.55 * math.log(0.55 / 0.1))
    assert outcome_kl(reference, reference).item() == 0
    certain = torch.tensor([1.0 - 1e-12, 1e-12], dtype=torch.float64).log().requires_grad_(True)
    outcome_kl(certain, reference).backward()
    assert certain.grad.isfinite().all()


def test_micro_batches_and_processes_give_one_gradient(monkeypatch):
    policy, reference, result = sampled()
    exact = exact_kl(result, MoveTrees(PUZZLES, (notation.CALL_ENV,)), reference, TEMPERATURE, 4096)
    weights = torch.linspace(0.1, 1.0, len(result.lengths))

    def measured(budget: int) -> tuple[tuple[float, float], torch.Tensor]:
        return accumulate_kl(policy, exact, weights, TEMPERATURE, budget), gradients(policy)

    whole, gradient = measured(10**6)
    for budget in (1, 200, 1000):
        values, cut = measured(budget)
        assert values == pytest.approx(whole, abs=1e-12) and torch.allclose(cut, gradient, atol=1e-12, rtol=0)
    shares = []
    for number in (0, 1, 2):
        with monkeypatch.context() as patched:
            patched.setattr(distributed, "rank", lambda number=number: number)
            patched.setattr(distributed, "size", lambda: 3)
            shares.append(measured(500))
    assert sum(values[0] for values, _ in shares) == pytest.approx(whole[0]) and sum(values[1] for values, _ in shares) == pytest.approx(whole[1])
    assert torch.allclose(sum(part for _, part in shares), gradient, atol=1e-12, rtol=0)


def test_groups_of_a_minibatch_take_their_own_decisions_along():
    _, reference, result = sampled()
    exact = exact_kl(result, MoveTrees(PUZZLES, (notation.CALL_ENV,)), reference, TEMPERATURE, 4096)
    assert int(exact.visits.sum()) == sum(1 for _ in visited(result)) and len(set(exact.contexts)) == len(exact.contexts)
    index = torch.arange(6, 18)
    part = exact.rows(index)
    expected = {(episode - 6, tuple(context)) for episode, context, _ in visited(result) if 6 <= episode < 18}
    came = {(int(episode), part.contexts[int(decision)]) for decision, episode in part.visits.nonzero()}
    assert came == expected and all(len(tree.paths) == len(row) for tree, row in zip(part.trees, part.reference))


def test_a_run_trains_with_it_counts_its_passes_and_a_sampled_trace_is_refused(tiny_runs, tmp_path):
    outputs = tiny.share_data(tmp_path, tiny_runs)
    given = [f"parent={tiny_runs['sft']}", "rl.steps=2", "rl.prompts=4", "algorithm.group=4", "algorithm.beta=0.1", "algorithm.minibatches=2"]
    lines, flops = {}, {}
    for kind in ("k3", "exact"):
        status, directory = tiny.start("rl", tiny.config("rl", outputs, *given, "rl.protocol=answer", f"algorithm.kl={kind}"))
        assert status == 0
        lines[kind] = tiny.metrics_of(directory)
        flops[kind] = json.loads((directory / "summary.json").read_text())["flops"]
    assert "kl_exact" not in lines["k3"][0] and lines["exact"][1]["kl_exact"] > 0
    first = lines["exact"][0]["flops"] - lines["k3"][0]["flops"]  # the same episodes
    passes = 2 * Cost.of(tiny.config("rl", outputs).model).parameters_without_embeddings * (1 + 3)
    assert first > 0 and first % passes == 0
    with pytest.raises(UserError, match=r"algorithm\.kl=exact sums over legal moves"):
        tiny.start("rl", tiny.config("rl", outputs, *given, "rl.protocol=think", "algorithm.kl=exact"))


def test_it_is_zero_at_the_first_update(tiny_runs, tmp_path):
    given = [f"parent={tiny_runs['sft']}", "rl.steps=1", "rl.protocol=answer", "algorithm.kl=exact", "algorithm.beta=0.5"]
    _, directory = tiny.start("rl", tiny.config("rl", tiny.share_data(tmp_path, tiny_runs), *given))
    (line,) = tiny.metrics_of(directory)
    assert line["kl_exact"] == pytest.approx(0, abs=1e-9)


def test_a_model_that_was_never_trained_keeps_a_finite_term():
    model = build_model(TINY, seed=3)
    _, reference, result = sampled()
    exact = exact_kl(result, MoveTrees(PUZZLES, (notation.CALL_ENV,)), reference, 1.0, 4096)
    total, mean = accumulate_kl(model, exact, torch.ones(len(result.lengths)), 1.0, 4096)
    assert math.isfinite(total) and mean > 0 and gradients(model).isfinite().all()
