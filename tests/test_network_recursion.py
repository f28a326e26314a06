"""The success recursion in a network: its ascent against the closed-form maximiser, and the study's rows and refusals."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch

from analysis.tabular import convergence, recursion_figure
from chessrl.config import AlgorithmConfig, TabularConfig
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.run import Run
from chessrl.theory import next_success, std_gap
from rl import tabular
from rl.network_recursion import NEAR, NetworkPolicy
from rl.tabular_policy import kl, success
from rl.tabular_studies import recursion_rows
from rl.tabular_update import forward_maximiser, maximiser, population_advantages, solving_reward
from tests.test_sampler import PUZZLES, trained_model

ONE_DECISION = ["back-rank", "promotes", "after-reply"]


def network(budget: int = 4096) -> NetworkPolicy:
    return NetworkPolicy(copy.deepcopy(trained_model("answer")), PUZZLES, "snapshot", 1.0, budget)


def test_only_puzzles_of_one_decision_are_taken_and_their_outcomes_are_whole():
    policy = network()
    table = policy.table()
    assert list(table.puzzles) == ONE_DECISION and policy.left_out == {"several decisions": 4, "every move solves": 0}
    assert torch.allclose(table.logprobs.exp().sum(1), torch.ones(3, dtype=torch.float64))
    assert all(moves[-1] == "other" and not table.solving[row, len(moves) - 1] for row, moves in enumerate(table.moves))
    assert torch.allclose(network(budget=1).table().logprobs, table.logprobs, atol=1e-5)


@pytest.mark.parametrize("forward", [False, True])
def test_ascent_comes_to_the_closed_form_maximiser_and_success_to_the_recursions(forward):
    policy = network()
    table = policy.table()
    start = success(table.logprobs, table.solving).numpy()
    assert start.min() > 0.02 and start.max() < 0.9, "a policy with nothing to learn, or that hardly can"
    advantages = population_advantages(table.logprobs, solving_reward(table), 1e-5)
    exact = forward_maximiser(table.logprobs, advantages, 2.0) if forward else maximiser(table.logprobs, table.logprobs, advantages, 2.0)
    reached = policy.climb(table.logprobs, advantages, 2.0, exact, steps=150, rate=2e-3, forward=forward)
    assert kl(reached, exact).mean() < 2 * NEAR
    if not forward:
        predicted = next_success(start, start, 2.0, lambda p: std_gap(p, 1e-5))
        np.testing.assert_allclose(success(reached, table.solving), predicted, atol=0.03)
    policy.restart()
    assert torch.equal(policy.table().logprobs, table.logprobs)


def test_rows_of_a_network_stand_beside_those_of_its_table_and_are_drawn():
    policy = network()
    policy.keep([True, False, True])
    table = policy.table()
    settings = TabularConfig(steps=2, inner_steps=3, inner_rate=1e-3, lowest=0.0)
    rows = [row for kind in (None, policy) for row in recursion_rows("std", 5.0, table, settings, AlgorithmConfig(), kind)]
    frame = pd.DataFrame(rows)
    tables, networks = (frame[frame["variant"] == name] for name in ("std", "std, network"))
    assert tables["predicted"].tolist() == networks["predicted"].tolist() and tables["puzzles"].tolist() == networks["puzzles"].tolist()
    assert networks[networks["step"] == 0]["measured"].tolist() == tables[tables["step"] == 0]["measured"].tolist()
    assert (networks[networks["step"] > 0]["kl_to_maximiser"] > 0).all()
    (note,) = convergence(frame)
    assert note.startswith("std, network: mean KL to the maximiser") and "(beta 5)" in note
    assert "network" in recursion_figure(frame).axes[1].get_ylabel()


def test_what_no_network_can_do_is_refused(tiny_runs, tmp_path):
    def start(*words: str) -> None:
        config = compose("tabular", ["experiment=success_recursion", "tabular.network=true", f"outputs={tmp_path}", "run.device=cpu", *words])
        Run("tabular", config, tabular.identity(config))
        tabular.command(config)

    with pytest.raises(UserError, match=r"tabular\.network=true: expected parent=RUN"):
        start("tabular.variants=[std]")
    with pytest.raises(UserError, match="without groups"):
        start(f"parent={tiny_runs['sft']}")
    with pytest.raises(UserError, match="plays by protocol think"):
        start(f"parent={tiny_runs['sft']}", "tabular.variants=[std]")
