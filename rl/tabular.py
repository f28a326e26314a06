"""``python -m rl.tabular``: reinforcement learning of policies as tables, and the studies made of it.

One softmax per puzzle over its legal moves, started from a finished run's policy (``parent``), a measured one or a made-up prior
(``tabular_start``), with the network's advantage and loss code (``tabular_update``): the control that separates what the objective does from what a
shared network does. Run directory ``tabular-HASH``:
``metrics.jsonl``, ``summary.json`` and, by study, ``success.csv`` and ``policy.parquet``, ``clip_bias.csv`` or ``success_recursion.csv``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from chessrl import world
from chessrl.checkpoint import load_model, write_atomically, written_beside
from chessrl.config import Config, TabularConfig
from chessrl.errors import UserError
from chessrl.launch import launch
from chessrl.run import Run, identity_of
from chessrl.tiers import TIERS, tiers_of_probabilities
from chessrl.training import start_stage
from rl.network_recursion import NetworkPolicy
from rl.objective import ADVANTAGES
from rl.tabular_policy import MoveTable, measures, success, write_policy
from rl.tabular_start import start_identity, start_table
from rl.tabular_studies import clip_bias_rows, recursion_rows
from rl.tabular_update import (
    Reward,
    expected_step,
    noisy_reward,
    random_reward,
    sample_groups,
    sampled_step,
    solving_reward,
    systematic_reward,
    wrong_reward,
)

Rows = list[dict[str, Any]]


def identity(config: Config) -> dict[str, Any]:
    """What decides the result: the tabular keys, the algorithm, and the content of the policy that it starts from."""
    start = start_identity(config)
    check(config)
    return {"tabular": identity_of(replace(config.tabular, policy="")), "start": start, "algorithm": identity_of(config.algorithm)}


def check(config: Config) -> None:
    """Refuse what cannot be carried out."""
    settings, algorithm = config.tabular, config.algorithm
    if algorithm.advantage not in ADVANTAGES or algorithm.baseline != "none" or algorithm.sampling != "plain":
        raise UserError(
            f"algorithm={algorithm.name}: tables have no value head, returns of tokens, greedy baseline or resampling; take one without, such as grpo"
        )
    of_networks = ("entropy_bonus", "overlong_share", "overlong_filter", "reference_period")
    if ignored := [key for key in of_networks if getattr(algorithm, key)]:
        raise UserError(f"algorithm.{ignored[0]}={getattr(algorithm, ignored[0])}: tables know no such thing; leave it at its default")
    if settings.exact and algorithm.advantage == "batch_std":
        raise UserError("tabular.exact=true: expected an advantage within the group, for that of batch_std depends on the other groups")
    counts = settings.updates if settings.study == "clip_bias" else [algorithm.minibatches]
    for count in counts:
        if settings.groups % count:
            key = "tabular.updates" if settings.study == "clip_bias" else "algorithm.minibatches"
            raise UserError(f"{key}={count}: expected a divisor of tabular.groups={settings.groups}, since a part needs whole groups")
    wanted = {"clip_bias": "random", "success_recursion": "solving"}.get(settings.study, settings.reward)
    if settings.reward != wanted:
        raise UserError(f"tabular.reward={settings.reward}: tabular.study={settings.study} is about {wanted}; set that, or tabular.study=train")
    if settings.study == "clip_bias" and (config.parent or settings.policy or algorithm.epochs != 1):
        given = f"algorithm.epochs={algorithm.epochs}" if algorithm.epochs != 1 else f"parent={config.parent} tabular.policy={settings.policy}"
        raise UserError(f"{given}: tabular.study=clip_bias has its own start policies (tabular.tops) and numbers of updates (tabular.updates)")
    if settings.network and (settings.study != "success_recursion" or not config.parent or "groups" in settings.variants):
        raise UserError(
            "tabular.network=true: expected parent=RUN, tabular.study=success_recursion and tabular.variants without groups, found "
            f"parent={config.parent}, {settings.study} and {', '.join(settings.variants)}"
        )
    if settings.study == "train" and settings.exact and algorithm.epochs * algorithm.minibatches != 1:
        raise UserError("tabular.exact=true: expected algorithm.epochs=1 and algorithm.minibatches=1, for the gradient is that of one update")


def reward_of(settings: TabularConfig, table: MoveTable) -> Reward:
    """The reward that ``tabular.reward`` names."""
    known: dict[str, Callable[[], Reward]] = {
        "solving": lambda: solving_reward(table),
        "random": lambda: random_reward(table, settings.gamma),
        "noisy": lambda: noisy_reward(table, settings.true_positive, settings.false_positive),
        "systematic": lambda: systematic_reward(table, settings.true_positive, settings.false_positive, settings.seed),
        "wrong": lambda: wrong_reward(table),
    }
    return known[settings.reward]()


def work(run: Run) -> None:
    """The whole run, by its study."""
    if run.config.tabular.network:
        network = parents_network(run)
        success_recursion(run, network.table(), network.left_out, network)
        return
    table, left_out = start_table(run)
    STUDIES[run.config.tabular.study](run, table, left_out)


# ---- one run ----------------------------------------------------------------------------------------------------------------------------


def train(run: Run, table: MoveTable, left_out: dict[str, int]) -> None:
    """``steps`` rollouts with their updates, beside the path of the expected gradient where that is known."""
    settings, algorithm = run.config.tabular, run.config.algorithm
    reward = reward_of(settings, table)
    reference = table.logprobs
    one_update = algorithm.epochs * algorithm.minibatches == 1 and reward.binary
    tiers = tiers_of_probabilities(success(reference, table.solving).numpy())
    state = run.resume()
    if state is None:
        state = {"step": 0, "logits": reference, "expected": reference, "rows": success_rows(0, tiers, table, reference, reference)}
        run.log(counters(0) | measures(reference, table, settings.ks))
    for step in run.loop(state["step"], settings.steps):
        logits, expected = state["logits"], state["expected"]
        if one_update:
            expected = expected_step(expected, reference, reward, algorithm, settings.lr)
        if settings.exact:
            logits = expected
        else:
            draws = sample_groups(logits, reward, settings.groups, algorithm, settings.seed, step)
            logits = sampled_step(logits, reference, draws, algorithm, settings.lr)
        samples = step * settings.groups * algorithm.group * len(table.puzzles) * (not settings.exact)
        run.log(counters(step, samples) | measures(logits, table, settings.ks))
        rows = state["rows"] + success_rows(step, tiers, table, expected if one_update else None, logits)
        state = {"step": step, "logits": logits, "expected": expected, "rows": rows}
        run.checkpoint(step, step == settings.steps, lambda state=state: state)
    with written_beside(run.directory / "policy.parquet") as temporary:
        write_policy(temporary, table, state["logits"])
    finish(run, table, left_out, "success.csv", state["rows"])


def success_rows(step: int, tiers: np.ndarray, table: MoveTable, expected: Tensor | None, logits: Tensor) -> Rows:
    """Mean success of each tier of the start policy: by the expected gradient (missing where there is none), and as it came out."""
    measured = success(logits, table.solving).numpy()
    predicted = np.full_like(measured, np.nan) if expected is None else success(expected, table.solving).numpy()
    return [
        {
            "step": step, "group": tier, "puzzles": int(rows.sum()),
            "predicted": float(predicted[rows].mean()), "measured": float(measured[rows].mean()),
        }
        for tier in TIERS
        if (rows := tiers == tier).any()
    ]  # fmt: skip


# ---- studies ----------------------------------------------------------------------------------------------------------------------------


def clip_bias(run: Run, table: MoveTable, left_out: dict[str, int]) -> None:
    """The map over (top probability, eps, M, lr): one cell after the other, each a function of its keys."""
    settings = run.config.tabular
    cells = [(top, count, rate) for top in settings.tops for count in settings.updates for rate in settings.rates]
    rows = study(run, len(cells), lambda number: clip_bias_rows(*cells[number], settings, run.config.algorithm))
    finish(run, table, left_out, "clip_bias.csv", rows)


def success_recursion(run: Run, table: MoveTable, left_out: dict[str, int], network: NetworkPolicy | None = None) -> None:
    """Theory against measurement over (variant, beta), per group of puzzles with like success at the start; of tables, and beside each of the
    ``network`` that has the same policy.
    """
    settings = run.config.tabular
    p = success(table.logprobs, table.solving)
    kept = (p >= settings.lowest) & (p < 1)
    if not kept.any():
        raise UserError(f"tabular.lowest={settings.lowest}: no puzzle starts with a success as large; lower it, or take another policy")
    left_out = left_out | {f"success below {settings.lowest:g} at the start, or 1": int((~kept).sum())}
    if network:
        network.keep(kept.tolist())
        table = network.table()
    else:
        table = table.rows(kept)
    kinds = [None, network] if network else [None]
    cells = [(kind, variant, beta) for variant in settings.variants for kind in kinds for beta in settings.betas]

    def rows_of(number: int) -> Rows:
        kind, variant, beta = cells[number]
        chosen = replace(settings, inner_steps=settings.network_steps, inner_rate=settings.network_rate) if kind else settings
        return recursion_rows(variant, beta, table, chosen, run.config.algorithm, kind)

    rows = study(run, len(cells), rows_of)
    finish(run, table, left_out, "success_recursion.csv", rows)


def parents_network(run: Run) -> NetworkPolicy:
    """The parent's network on the first ``tabular.puzzles`` puzzles of the rl split (of ``rl.bins``)."""
    config = run.config
    if (protocol := run.identity["start"]["protocol"]) != "answer":
        raise UserError(f"tabular.network=true: parent={config.parent} plays by protocol {protocol}; expected a policy fine-tuned without traces")
    puzzles = world.puzzles_of_split(config, "rl", config.rl.bins)[: config.tabular.puzzles]
    model = load_model(Path(config.parent) / "model", precision=config.run.precision, device=run.device)
    return NetworkPolicy(model, puzzles, config.world.state, config.rl.temperature, run.micro_batch_tokens)


def study(run: Run, cells: int, rows_of: Callable[[int], Rows]) -> Rows:
    """The rows of all cells; a study that was stopped goes on at the first cell that it had not finished."""
    state = run.resume() or {"step": 0, "rows": []}
    for step in run.loop(state["step"], cells):
        state = {"step": step, "rows": state["rows"] + rows_of(step - 1)}
        run.log(counters(step) | {"rows": len(state["rows"])})
        run.checkpoint(step, step == cells, lambda state=state: state)
    return state["rows"]


def counters(step: int, samples: int = 0) -> dict[str, float]:
    """What every line of metrics.jsonl holds: a sampled move stands for a token, and a table costs no model's FLOPs."""
    return {"step": step, "tokens": samples, "loss_tokens": samples, "flops": 0.0, "flops_with_attention": 0.0}


def finish(run: Run, table: MoveTable, left_out: dict[str, int], name: str, rows: Rows) -> None:
    """Write the study's table and summary.json, and say what was left out."""
    write_atomically(run.directory / name, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n").encode())
    summary = {"stage": "tabular", "run_id": run.run_id, "study": run.config.tabular.study, "puzzles": len(table.puzzles)}
    run.write("summary.json", summary | {"parent": run.identity["start"].get("parent", ""), "left_out": left_out, "table": name})
    if left_out:
        print("left out: " + ", ".join(f"{reason} {count:,}" for reason, count in left_out.items()), flush=True)


STUDIES: dict[str, Callable[[Run, MoveTable, dict[str, int]], None]] = {
    "train": train,
    "clip_bias": clip_bias,
    "success_recursion": success_recursion,
}


def command(config: Config) -> int:
    return start_stage("tabular", config, identity, work)


if __name__ == "__main__":
    launch("tabular", command)
