"""Arms side by side: tables that follow from the samples, and runs that cannot be compared."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.arms import main
from analysis.report import run_analysis
from chessrl.errors import UserError
from chessrl.evaluate import evaluate
from tests import tiny

ARMS = {"none": ["arm=none"], "uniform": ["arm=random"], "uniform, bfs": ["arm=random", "sft.trace.serialise=bfs"]}


@pytest.fixture(scope="module")
def arms(tiny_runs, tmp_path_factory) -> dict[tuple[str, int], Path]:
    """Run directories by arm and seed, each evaluated. A tiny model solves nothing, so what was solved is drawn instead."""
    outputs = tiny.share_data(tmp_path_factory.mktemp("arms"), tiny_runs)
    shutil.copytree(tiny_runs["pretrain"], outputs / tiny_runs["pretrain"].name)
    found = {}
    for name, overrides in ARMS.items():
        for seed in (0, 1) if name != "uniform, bfs" else (0,):
            shared = [f"parent={outputs / tiny_runs['pretrain'].name}", *overrides, f"sft.data_seed={seed}", f"sft.seed={seed}", "sft.epochs=1"]
            status, directory = tiny.start("sft", tiny.config("sft", outputs, *shared))
            assert status == 0 and evaluate(evaluation_config(directory)) == 0
            samples = tiny.evaluation_folder(evaluation_config(directory)) / "samples.parquet"
            table = pd.read_parquet(samples)
            table.assign(solved=np.random.default_rng([len(found), 0]).random(len(table)) < 0.2 + 0.1 * len(found)).to_parquet(samples)
            found[name, seed] = directory
    return found


def evaluation_config(directory: Path):
    return tiny.config("evaluate", directory.parent, f"parent={directory}", "evaluate.max_puzzles=30")


def runs_of(arms: dict[tuple[str, int], Path], *names: str) -> str:
    return "runs=" + ",".join(str(path) for (name, _), path in arms.items() if name in names)


def test_tables_follow_from_the_samples(arms, tmp_path):
    main([runs_of(arms, "none", "uniform"), f"out={tmp_path / 'made'}", "ks=1,4"])
    table, differences, costs = (pd.read_csv(tmp_path / "made" / f"{name}.csv") for name in ("arms", "arm_differences", "arm_costs"))
    points = {}
    for arm in ("none", "uniform"):
        seeds = []
        for seed in (0, 1):
            samples = pd.read_parquet(tiny.evaluation_folder(evaluation_config(arms[arm, seed])) / "samples.parquet")
            assert len(samples) == 120
            outcomes = [group["solved"].tolist() for _, group in samples.groupby("puzzle")]
            seeds.append([np.mean([np.mean([any(subset) for subset in combinations(solved, k)]) for solved in outcomes]) for k in (1, 4)])
        for at, k in enumerate((1, 4)):
            row = table[(table["policy"] == arm) & (table["bin"] == "all") & (table["k"] == k)].iloc[0]
            each = [values[at] for values in seeds]
            assert (row["pass_at_k"], row["seed_low"], row["seed_high"]) == pytest.approx((np.mean(each), min(each), max(each)))
            assert row["ci_low"] <= row["pass_at_k"] <= row["ci_high"] and row["n_puzzles"] == 30 and row["seeds"] == 2
            points[arm, k] = row["pass_at_k"]
    assert len(set(points.values())) == 4
    for row in differences[differences["bin"] == "all"].itertuples():
        assert row.difference == pytest.approx(points["uniform", row.k] - points["none", row.k]) and row.baseline == "none"
    assert set(differences["policy"]) == {"uniform"}
    assert costs["arm"].tolist() == ["none", "none", "uniform", "uniform"] and costs["seed"].tolist() == [0, 1, 0, 1]
    assert (costs["trace_tokens_per_pass"] > 0).tolist() == [False, False, True, True]
    assert (tmp_path / "made" / "arms.png").stat().st_size > 5000


@pytest.mark.long
def test_the_report_carries_the_comparison_of_arms(arms, tmp_path):
    compared = [path for (name, _), path in arms.items() if name in ("none", "uniform")]
    report = run_analysis(compared, tmp_path / "report")
    made = pd.read_csv(tmp_path / "report" / "tables" / "arms.csv")
    main([runs_of(arms, "none", "uniform"), f"out={tmp_path / 'alone'}", "ks=1,4"])
    pd.testing.assert_frame_equal(made, pd.read_csv(tmp_path / "alone" / "arms.csv"))
    page = report.report.read_text()
    assert all(f'id="{name}"' in page for name in ("arms", "arm_differences", "arm_costs"))
    assert (tmp_path / "report" / "figures" / "arms.png").exists()
    run_analysis(compared[:2], tmp_path / "one")  # one arm, two seeds: nothing to compare
    assert not (tmp_path / "one" / "tables" / "arms.csv").exists()


def test_the_whole_outputs_folder_is_taken_and_unequal_arms_are_refused(arms, tmp_path):
    outputs = next(iter(arms.values())).parent
    with pytest.raises(UserError, match=r"arms have different numbers of runs .*uniform, bfs 1.*name those to compare with runs="):
        main([f"outputs={outputs}", f"out={tmp_path}", "ks=1"])
    with pytest.raises(UserError, match="give either runs="):
        main([f"out={tmp_path}"])


def test_a_run_without_its_evaluation_or_of_another_stage_is_named(arms, tiny_runs, tmp_path):
    with pytest.raises(UserError, match="0 evaluations of split=validation protocol=answer verifier=line, expected one"):
        main([runs_of(arms, "none"), f"out={tmp_path}", "split=validation"])
    with pytest.raises(UserError, match="4 samples a puzzle are too few for pass@16"):
        main([runs_of(arms, "none"), f"out={tmp_path}"])
    with pytest.raises(UserError, match="is a run of stage pretrain: expected sft"):
        main([f"runs={tiny_runs['pretrain']}", f"out={tmp_path}"])
