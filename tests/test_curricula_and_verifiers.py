"""Comparisons of curricula and of verifiers that err, on run folders written by hand and against enumeration."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from analysis import curriculum, verifiers
from analysis.curriculum import Policies, newly_solved_table
from analysis.read import read_runs
from analysis.verifiers import Verifier, gaps_table, predicted_rate
from chessrl import world
from chessrl.config import AlgorithmConfig
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.tiers import newly_solved_exactly
from rl.tabular_policy import move_table, success
from rl.tabular_update import expected_step, noisy_reward
from tests import tiny
from tests.test_comparison import PUZZLES, relabel, write_policy
from tests.test_comparison import success as success_of
from tests.test_endgame import needs_stockfish

# ---- the null ---------------------------------------------------------------------------------------------------------------------------


def outcomes(p: float, samples: int) -> list[tuple[float, bool]]:
    """(chance, any solved) of every outcome of so many samples."""
    return [(np.prod([p if solved else 1 - p for solved in each]), any(each)) for each in itertools.product((False, True), repeat=samples)]


def test_newly_solved_lost_and_their_nulls_equal_all_outcomes_enumerated():
    before, after = np.array([0.0, 0.1, 0.4, 0.9]), np.array([0.3, 0.1, 0.2, 1.0])
    found = Policies({"arm": after[None]}, {"arm": before[None]}, pd.Series(["B1"] * 4))
    row = newly_solved_table(found, seed=0, samples=3).iloc[0]
    counts = {"unsolved": 0.0, "newly_solved": 0.0, "null": 0.0, "lost": 0.0, "lost_null": 0.0}
    for p0, p1 in zip(before, after):
        for (first, solved), (fresh, again), (later, now) in itertools.product(outcomes(p0, 3), outcomes(p0, 3), outcomes(p1, 3)):
            chance = first * fresh * later
            counts["unsolved"] += chance * (not solved)
            counts["newly_solved"] += chance * (not solved and now)
            counts["null"] += chance * (not solved and again)
            counts["lost"] += chance * (solved and not now)
            counts["lost_null"] += chance * (solved and not again)
    assert {name: row[name] for name in counts} == pytest.approx(counts)
    elsewhere = newly_solved_exactly(before, after, 3)
    assert (row["unsolved"], row["null"], row["newly_solved"]) == pytest.approx((elsewhere.unsolved, elsewhere.null, elsewhere.solved))
    assert row["excess"] == pytest.approx(counts["newly_solved"] - counts["null"])
    assert row["net"] == pytest.approx(counts["newly_solved"] - counts["lost"])


def test_a_policy_that_did_not_change_has_newly_solved_just_the_null():
    p = np.random.default_rng(0).uniform(0, 0.02, (3, 80))
    row = newly_solved_table(Policies({"arm": p}, {"arm": p}, pd.Series(["B1"] * 80)), seed=0).iloc[0]
    assert row["newly_solved"] == pytest.approx(row["null"]) and row["null"] > 1
    assert row["excess"] == 0 and row["excess_low"] == 0 == row["excess_high"] and row["up"] == row["down"] == 0


def test_crossings_of_the_tier_edge_are_counted_both_ways():
    before, after = np.array([[1 / 257, 1 / 255, 0.5]]), np.array([[1 / 256, 1 / 257, 0.1]])
    row = newly_solved_table(Policies({"arm": after}, {"arm": before}, pd.Series(["B1"] * 3)), seed=0).iloc[0]
    assert (row["up"], row["down"]) == (1, 1)


# ---- chains -----------------------------------------------------------------------------------------------------------------------------



def settings_of(parent: str, seed: int = 0, rounds: int = 0, puzzles: int = 0, order: str = "shuffled", measured: str = "") -> dict:
    return {
        "parent": f"elsewhere/{parent}", "boundary": {"rounds": rounds, "puzzles": puzzles},
        "rl": {"seed": seed, "curriculum": {"order": order, "measured": measured}},
    }  # fmt: skip


def write_curricula(root: Path, seeds: tuple[int, ...] = (0, 1)) -> Path:
    """One start; per seed one shuffled run and a chain of two rounds with bridges, better from run to run."""
    write_policy(root, "sft-start", settings_of("pretrain-0"), success_of("start", 0))
    for seed in seeds:
        write_policy(root, f"rl-plain{seed}", settings_of("sft-start", seed), success_of("start", 0.2))
        parent = "sft-start"
        for number, stage in enumerate(("sft", "rl", "sft", "rl")):
            name = f"{stage}-chain{number}{seed}"
            write_policy(root, name, settings_of(parent, seed, rounds=2, puzzles=5), success_of("start", 0.1 * (number + 1)))
            summary = json.loads((root / name / "summary.json").read_text()) | {"puzzles": 10}
            (root / name / "summary.json").write_text(json.dumps(summary))
            parent = name
    return root


def test_a_chain_of_rounds_is_compared_with_the_policy_that_its_first_round_began_with(tmp_path):
    root = write_curricula(tmp_path / "sweep")
    curriculum.main([f"outputs={root}", f"out={tmp_path / 'out'}"])
    changes, newly, costs = (pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("changes", "newly_solved", "costs"))
    assert set(newly["arm"]) == {"shuffled", "boundary", "bridge alone"} and (newly["puzzles"] == PUZZLES).all()
    at_one = changes[(changes["bin"] == "all") & (changes["k"] == 1) & (changes["success"] == "exact")].set_index("policy")["difference"]
    start = success_of("start", 0).mean()
    for arm, lift in (("shuffled", 0.2), ("boundary", 0.4), ("bridge alone", 0.1)):
        assert at_one[arm] == pytest.approx(success_of("start", lift).mean() - start)
    assert costs.set_index("arm").loc["boundary", "bridge_puzzles"].tolist() == [20, 20]
    assert (tmp_path / "out" / "curriculum.png").stat().st_size > 10_000


def test_a_bridge_that_seeds_share_is_one_policy(tmp_path):
    write_policy(tmp_path, "sft-start", settings_of("pretrain-0"), success_of("start", 0))
    write_policy(tmp_path, "sft-bridge", settings_of("sft-start", rounds=1, puzzles=5), success_of("start", 0.1))
    for seed in (0, 1):
        write_policy(tmp_path, f"rl-end{seed}", settings_of("sft-bridge", seed, rounds=1, puzzles=5), success_of("start", 0.2 + seed / 10))
    runs = read_runs(sorted(tmp_path.glob("*-*")))
    found = curriculum.policies_of(curriculum.by_arm(curriculum.chains_of(runs), "rl.seed"), "test", curriculum.success_of)
    assert {arm: len(seeds) for arm, seeds in found.after.items()} == {"boundary": 2, "bridge alone": 1}
    assert {arm: len(seeds) for arm, seeds in found.before.items()} == {"boundary": 2, "bridge alone": 1}


def test_costs_name_the_seeds_that_are_asked_for(tmp_path):
    write_policy(tmp_path, "sft-start", settings_of("pretrain-0"), success_of("start", 0))
    for seed in (7, 8):
        settings = settings_of("sft-start")
        write_policy(tmp_path, f"rl-{seed}", settings | {"rl": settings["rl"] | {"data_seed": seed}}, success_of("start", 0.2))
    curriculum.main([f"outputs={tmp_path}", f"out={tmp_path / 'out'}", "seeds=rl.data_seed"])
    assert pd.read_csv(tmp_path / "out" / "costs.csv")["seed"].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("keys", "arm"),
    [
        ({}, "shuffled"), ({"rounds": 3}, "rounds"), ({"rounds": 3, "puzzles": 10}, "boundary"),
        ({"rounds": 1, "order": "easy_to_hard", "measured": "x"}, "easy_to_hard"), ({"rounds": 1, "measured": "x"}, "pass_rate"),
    ],
)  # fmt: skip
def test_arms_are_named_as_their_presets(keys, arm, tmp_path):
    write_policy(tmp_path, "rl-a", settings_of("sft-start", **keys), success_of("start", 0))
    assert curriculum.arm_of(read_runs([tmp_path / "rl-a"])[0]) == arm


def test_arms_of_different_seeds_are_not_compared(tmp_path):
    root = write_curricula(tmp_path / "sweep")
    write_policy(root, "rl-plain2", settings_of("sft-start", 2), success_of("start", 0))
    with pytest.raises(UserError, match=r"arms have different seeds \(boundary \[0, 1\], shuffled \[0, 1, 2\]\)"):
        curriculum.main([f"outputs={root}", f"out={tmp_path / 'out'}"])


def test_curricula_measured_under_different_settings_are_not_compared(tmp_path):
    root = write_curricula(tmp_path / "sweep")
    relabel(root / "rl-plain1", temperature=0.5)
    with pytest.raises(UserError, match=r"evaluate\.temperature was"):
        curriculum.main([f"outputs={root}", f"out={tmp_path / 'out'}"])


# ---- verifiers --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("true_positive", "false_positive"), [(1.0, 0.0), (0.3, 0.0), (1.0, 0.7), (0.3, 0.3), (0.3, 0.7)])
def test_the_predicted_rate_is_that_of_the_expected_gradient_of_tables(true_positive, false_positive):
    """Puzzles of two moves, one tiny exact step: the mean change of success against that without errors."""
    p = np.array([0.02, 0.1, 0.3, 0.6, 0.95])
    rows = [np.log([each, 1 - each]) for each in p]
    table = move_table([str(place) for place in range(5)], [["a1a2", "a1a3"]] * 5, [np.exp(row) for row in rows], [[0]] * 5)

    def change(rates: tuple[float, float]) -> float:
        after = expected_step(table.logprobs, table.logprobs, noisy_reward(table, *rates), AlgorithmConfig(beta=0.0), 1e-6)
        return float((success(after, table.solving) - torch.tensor(p)).mean())

    expected = change((true_positive, false_positive)) / change((1.0, 0.0))
    assert predicted_rate(p, Verifier("", true_positive, false_positive), 8) == pytest.approx(expected, abs=1e-6)


def test_verifiers_are_grouped_and_measured_against_their_start(tmp_path):
    write_policy(tmp_path, "sft-start", settings_of("pretrain-0"), success_of("start", 0))
    lifts = {(1.0, 0.0): 0.5, (0.3, 0.7): -0.3}
    for (true_positive, false_positive), lift in lifts.items():
        for seed in (0, 1):
            reward = {"weights": {"line": 1.0}, "true_positive_rate": true_positive, "false_positive_rate": false_positive}
            settings = settings_of("sft-start", seed) | {"reward": reward, "algorithm": {"group": 8}}
            run = write_policy(tmp_path, f"rl-{true_positive}{seed}", settings, success_of("start", lift))
            # weight 2, and the oracle's mean is over episodes that the verifier could not tell as well: neither is the gap's
            lines = [
                {"step": step, "tokens": step, "reward": 2 * (0.1 + 0.02 * step), "reward/verifier": 0.1 + 0.02 * step, "reward/gap": 0.02 * step,
                 "reward/oracle": 0.05}
                for step in range(1, 31)
            ]  # fmt: skip
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    verifiers.main([f"outputs={tmp_path}", f"out={tmp_path / 'out'}"])
    rates, gaps = (pd.read_csv(tmp_path / "out" / f"{name}.csv").set_index("verifier") for name in ("rates", "gaps"))
    assert rates.index.tolist() == ["TPR 1, FPR 0", "TPR 0.3, FPR 0.7"] and rates["j"].tolist() == pytest.approx([1.0, -0.4])
    for (rates_of, name), lift in zip(zip(lifts, rates.index), lifts.values()):
        assert rates.loc[name, "exact_difference"] == pytest.approx((success_of("start", lift) - success_of("start", 0)).mean())
        files = [next((tmp_path / run).glob("evaluations/*/samples.parquet")) for run in (f"rl-{rates_of[0]}0", "sft-start")]
        shares = [pd.read_parquet(file)["solved"].mean() for file in files]
        assert rates.loc[name, "difference"] == pytest.approx(shares[0] - shares[1])
    assert rates["predicted_rate"].iloc[0] == pytest.approx(1) and rates["predicted_rate"].iloc[1] < 0
    assert gaps["gap_change"].tolist() == pytest.approx([0.4, 0.4])  # means over steps 21-30 and 1-10
    assert gaps["oracle_last"].tolist() == pytest.approx([0.1, 0.1]) and gaps["accepted_first"].tolist() == pytest.approx([0.21, 0.21])


def test_a_log_without_the_verifiers_verdict_is_named(tmp_path):
    write_policy(tmp_path, "sft-start", settings_of("pretrain-0"), success_of("start", 0))
    settings = settings_of("sft-start") | {
        "reward": {"weights": {"line": 1.0}, "true_positive_rate": 1, "false_positive_rate": 0}, "algorithm": {"group": 8},
    }  # fmt: skip
    write_policy(tmp_path, "rl-a", settings, success_of("start", 0.1))
    with pytest.raises(UserError, match=r"rl-a/metrics\.jsonl: no reward/verifier"):
        verifiers.main([f"outputs={tmp_path}", f"out={tmp_path / 'out'}"])


def test_engines_of_one_depth_with_other_error_rates_have_names_of_their_own():
    assert Verifier("engine, depth 1", 1.0, 0.0).name == "engine, depth 1"
    assert Verifier("engine, depth 1", 0.9, 0.1).name == "engine, depth 1, TPR 0.9, FPR 0.1"


def write_verifier_run(root: Path, name: str, reward: dict, lift: float = 0.0, **settings: object) -> Path:
    common = {"reward": {"true_positive_rate": 1.0, "false_positive_rate": 0.0} | reward, "algorithm": {"group": 8}}
    return write_policy(root, name, settings_of("sft-start") | common | settings, success_of("start", lift))


def test_verifiers_measured_at_different_temperatures_are_refused(tmp_path):
    write_policy(tmp_path, "sft-start", settings_of("pretrain-0"), success_of("start", 0))
    relabel(write_verifier_run(tmp_path, "rl-a", {"weights": {"line": 1.0}}, 0.3), temperature=0.5)
    with pytest.raises(UserError, match=r"evaluate\.temperature was 1\.0 and 0\.5"):
        verifiers.main([f"outputs={tmp_path}", f"out={tmp_path / 'out'}"])


@needs_stockfish
def test_the_shallow_verifier_preset_runs_at_toy_size(tiny_runs, tmp_path, monkeypatch):
    """On a few mates in two: what the engine pays at depth 1 and the line does not is the gap."""
    of_split = world.puzzles_of_split
    monkeypatch.setattr(world, "puzzles_of_split", lambda config, split, bins=(): of_split(config, split, bins)[:12])
    sizes = ["world.max_games=300", "run.device=cpu", "engine.workers=1", "engine.depth=1", "rl.steps=2", "rl.prompts=4", "rl.bins=[B3]"]
    given = ["experiment=shallow_verifier", *sizes, "rl.save_steps=[]", f"outputs={tmp_path}", f"parent={tiny_runs['sft']}"]
    status, directory = tiny.start("rl", compose("rl", given))
    lines = tiny.metrics_of(directory)
    assert status == 0 and len(lines) == 2
    for line in lines:
        assert line["reward"] == line["reward/engine"] >= line["reward/oracle"]
        assert line["reward/gap"] == pytest.approx(line["reward"] - line["reward/oracle"])
    (run,) = read_runs([directory])
    assert verifiers.verifier_of(run).name == "engine, depth 1"


def test_gaps_by_hand():
    rows = [("engine", step, seed, 0.5 + seed / 10 + (step > 10) / 5, 0.3 + seed / 10 + (step > 10) / 5)
            for step in range(1, 21) for seed in (0, 1)]  # fmt: skip
    table = gaps_table(pd.DataFrame(rows, columns=["verifier", "step", "seed", "accepted", "gap"])).iloc[0]
    assert (table["accepted_first"], table["accepted_last"], table["gap_first"]) == pytest.approx((0.55, 0.75, 0.35))
    assert (table["gap_change"], table["gap_change_low"], table["gap_change_high"]) == pytest.approx((0.2, 0.2, 0.2))
    assert table["oracle_over_accepted_last"] == pytest.approx(0.2 / 0.75)
