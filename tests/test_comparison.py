"""Groups of RL runs against their starts, on run folders written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.comparison import group_runs, main
from analysis.read import read_runs
from chessrl.errors import UserError
from chessrl.statistics import passk_table, rates_table
from tests.test_analysis import make_samples

PUZZLES, STEPS = 90, 12
BINS = np.array([f"B{number % 5 + 1}" for number in range(PUZZLES)])
LIFT = {"line": 0.3, "random": 0.0}  # what RL adds to the log-odds of every puzzle, and a little by seed


def success(start: str, lift: float) -> np.ndarray:
    """Exact success (puzzles,) of a policy: log-odds of its start, lifted."""
    odds = np.random.default_rng(len(start)).normal(-2, 1.5, PUZZLES) + lift
    return 1 / (1 + np.exp(-odds))


def write_policy(root: Path, name: str, settings: dict, p: np.ndarray, exact: bool = True) -> Path:
    """A finished run directory with one evaluation of the test split."""
    run, stage = root / name, name.partition("-")[0]
    folder = run / "evaluations" / "aaaa"
    folder.mkdir(parents=True)
    summary = {"stage": stage, "run_id": name, "parents": {}, "parameters": {"total": 10, "without_embeddings": 5}, "tokens": 9, "flops": 1.0}
    (run / "summary.json").write_text(json.dumps(summary | {"step": STEPS}))
    (run / "status.json").write_text(json.dumps({"state": "completed"}))
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    lines = [{"step": step, "tokens": step, "reward": step / STEPS + settings["rl"]["seed"], "entropy": 1.0} for step in range(1, STEPS + 1)]
    lines[-1]["validation/pass_at_1"] = 0.5
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels = {
        "run": name, "stage": stage, "step": STEPS, "split": "test", "protocol": "answer", "spelling": "lenient", "verifier": "line",
        "temperature": 1.0, "thinking_budget": 128, "seed": 1000, "n_puzzles": PUZZLES, "n_samples": 16,
    }  # fmt: skip
    (folder / "evaluation.json").write_text(json.dumps(labels))
    samples = make_samples(0.3, seed=1)
    samples["solved"] = (np.random.default_rng(1).random((PUZZLES, 16)) < p[:, None]).ravel()
    samples.to_parquet(folder / "samples.parquet")
    passk_table(samples, (1, 4), labels, seed=0).to_csv(folder / "passk.csv", index=False)
    rates_table(samples, labels, seed=0).to_csv(folder / "rates.csv", index=False)
    if exact:
        names = [f"p{number:04d}" for number in range(PUZZLES)]
        pd.DataFrame({"puzzle": names, "split": "test", "bin": BINS, "decisions": 1, "p": p}).sample(frac=1, random_state=1).to_parquet(
            folder / "exact.parquet"  # in another order: rows are paired by puzzle
        )
    return run


def relabel(run: Path, **labels: object) -> None:
    """The labels of the run's evaluation, changed."""
    path = run / "evaluations" / "aaaa" / "evaluation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | labels))


def settings_of(reward: str, seed: int, parent: str, minibatches: int = 8) -> dict:
    return {"parent": f"elsewhere/{parent}", "reward": {"name": reward}, "rl": {"seed": seed}, "algorithm": {"minibatches": minibatches}}


def write_sweep(root: Path, exact: bool = True) -> Path:
    """Two starts, two rewards, two seeds: a seed's runs begin from that seed's start. And random once more at M = 1."""
    for seed in (0, 1):
        start = f"sft-{'a' * (seed + 4)}"
        write_policy(root, start, settings_of("", 0, ""), success(start, 0), exact)
        for reward, lift in LIFT.items():
            write_policy(root, f"rl-{reward}{seed}", settings_of(reward, seed, start), success(start, lift + 0.1 * seed), exact)
        write_policy(root, f"rl-one{seed}", settings_of("random", seed, start, minibatches=1), success(start, -0.1), exact)
    return root


def compare(root: Path, out: Path, *more: str) -> dict[str, pd.DataFrame]:
    main([f"outputs={root}", "by=reward.name,algorithm.minibatches", f"out={out}", *more])
    return {path.stem: pd.read_csv(path) for path in out.glob("*.csv")}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="module")
def tables(sweep, tmp_path_factory) -> dict[str, pd.DataFrame]:
    return compare(sweep, tmp_path_factory.mktemp("compared"), "ks=1,16,256")


def test_groups_are_named_by_what_differs_and_ordered_by_seed(sweep):
    groups = group_runs(read_runs(sorted(sweep.iterdir())), ["reward.name", "algorithm.minibatches"], "rl.seed")
    assert [group.name for group in groups] == ["line", "random, minibatches=1", "random"]
    of_groups = [[f"rl-{name}{seed}" for seed in (0, 1)] for name in ("line", "one", "random")]
    assert [[run.run_id for run in group.runs] for group in groups] == of_groups
    assert [start.run_id for start in groups[0].starts] == ["sft-aaaa", "sft-aaaaa"]


@pytest.mark.parametrize("name", ["all", "B2"])
@pytest.mark.parametrize("k", [1, 256])
def test_changes_are_from_each_runs_own_start(tables, name, k):
    chosen = np.ones(PUZZLES, bool) if name == "all" else name == BINS
    each = []
    for seed, start in enumerate(("sft-aaaa", "sft-aaaaa")):
        before, after = (1 - (1 - success(start, lift)[chosen]) ** k for lift in (0, 0.3 + 0.1 * seed))
        each.append((after - before).mean())
    changes = tables["changes"]
    row = changes[(changes["policy"] == "line") & (changes["bin"] == name) & (changes["k"] == k)].iloc[0]
    assert (row["difference"], row["seed_low"], row["seed_high"]) == pytest.approx((np.mean(each), min(each), max(each)))
    assert row["ci_low"] <= min(each) < max(each) <= row["ci_high"], "two seeds: the interval spans both"
    assert (row["seeds"], row["n_puzzles"]) == (2, chosen.sum())


def test_the_start_is_the_mean_of_the_starts(tables):
    table = tables["passk"]
    row = table[(table["policy"] == "start") & (table["bin"] == "all") & (table["k"] == 1)].iloc[0]
    assert row["pass_at_k"] == pytest.approx(np.mean([success(start, 0).mean() for start in ("sft-aaaa", "sft-aaaaa")])) and row["seeds"] == 2


def test_coverage_of_a_policy_that_only_gained_and_of_one_that_only_lost(tables):
    coverage = tables["coverage"].set_index("policy")
    assert np.isinf(coverage.loc["line", "crossover_k"]) and coverage.loc["random, minibatches=1", "crossover_k"] == 1
    starts = np.mean([1 - (1 - success(start, 0)) ** 256 for start in ("sft-aaaa", "sft-aaaaa")], axis=0)
    trained = np.mean([success("sft-aaaa", 0.3), success("sft-aaaaa", 0.4)], axis=0)
    assert coverage.loc["line", "delta_se"] == pytest.approx((starts - trained).mean())
    assert coverage[["both", "base only", "RL only", "neither"]].sum(axis=1).to_numpy() == pytest.approx(1)
    assert coverage.loc["line", ["both", "base only"]].sum() == pytest.approx(starts.mean()) and (coverage["k"] == 256).all()


def test_curves_are_means_over_seeds_with_their_range(tables):
    curves = tables["curves"].set_index(["policy", "metric", "step"])
    assert tuple(curves.loc[("line", "reward", 6), ["mean", "low", "high", "seeds"]]) == pytest.approx((1.0, 0.5, 1.5, 2))
    assert tables["curves"].query("policy == 'line' and metric == 'validation/pass_at_1'")["step"].tolist() == [STEPS]
    measures = tables["measures"].set_index(["policy", "metric"])
    assert tuple(measures.loc[("line", "reward"), ["first", "last"]]) == pytest.approx((3 / 12 + 0.5, 10 / 12 + 0.5))
    assert "kl" not in tables["measures"]["metric"].tolist(), "it was not logged"


def test_page_and_figures_are_written_alike_twice(sweep, tables, tmp_path):
    compare(sweep, tmp_path / "one", "ks=1,16,256")
    compare(sweep, tmp_path / "two", "ks=1,16,256")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    page = (tmp_path / "one" / "comparison.md").read_text()
    row = tables["changes"].query("policy == 'line' and bin == 'all' and k == 256").iloc[0]
    assert f"{100 * row['difference']:+.1f} [{100 * row['ci_low']:+.1f}, {100 * row['ci_high']:+.1f}]" in page and "exact" in page


def test_without_exact_evaluations_samples_are_compared(tmp_path):
    tables = compare(write_sweep(tmp_path / "sampled", exact=False), tmp_path / "out")
    changes = tables["changes"]
    samples = [tmp_path / "sampled" / name / "evaluations/aaaa/samples.parquet" for name in ("rl-line0", "rl-line1")]
    assert sorted(changes["k"].unique()) == [1, 4, 16]
    row = tables["passk"].query("policy == 'line' and bin == 'all' and k == 1").iloc[0]
    assert row["pass_at_k"] == pytest.approx(np.mean([pd.read_parquet(path)["solved"].mean() for path in samples]))
    forced = compare(write_sweep(tmp_path / "both"), tmp_path / "forced", "exact=false")
    pd.testing.assert_frame_equal(forced["changes"], changes)
    with pytest.raises(UserError, match="16 samples a puzzle are too few for pass@256"):
        compare(tmp_path / "sampled", tmp_path / "out", "ks=256")


def test_bins_restrict_all_tables(sweep, tmp_path):
    tables = compare(sweep, tmp_path, "ks=1", "bins=B1,B2")
    assert set(tables["changes"]["bin"]) == {"all", "B1", "B2"} and tables["changes"].query("bin == 'all'")["n_puzzles"].eq(36).all()
    with pytest.raises(UserError, match="bins=B9: no puzzle of these bins was evaluated"):
        compare(sweep, tmp_path, "bins=B9")


def test_what_cannot_be_compared_is_named(sweep, tmp_path):
    with pytest.raises(UserError, match=r"rl-one0.* and .*rl-random0.*: both are random with rl.seed=0; name the key"):
        main([f"outputs={sweep}", "by=reward.name", f"out={tmp_path}"])
    with pytest.raises(UserError, match="0 evaluations of its last step on split=validation"):
        compare(sweep, tmp_path, "split=validation")
    with pytest.raises(UserError, match="no finished RL run is below it"):
        compare(tmp_path, tmp_path)
    lonely = tmp_path / "lonely"
    write_policy(lonely, "rl-x", settings_of("line", 0, "sft-gone"), success("x", 0))
    with pytest.raises(UserError, match="its start sft-gone is not a finished run below outputs="):
        compare(lonely, tmp_path)
    write_policy(lonely, "sft-gone", settings_of("", 0, ""), success("x", 0), exact=False)
    with pytest.raises(UserError, match="its evaluation is not exact as others are"):
        compare(lonely, tmp_path)


@pytest.mark.parametrize(("key", "other"), [("temperature", 0.6), ("spelling", "strict"), ("protocol", "think")])
def test_a_run_and_its_start_evaluated_under_different_settings_are_refused(key, other, tmp_path):
    write_policy(tmp_path, "sft-start", settings_of("", 0, ""), success("start", 0))
    run = write_policy(tmp_path, "rl-a", settings_of("line", 0, "sft-start"), success("start", 0.3))
    relabel(run, **{key: other})
    with pytest.raises(UserError, match=rf"rl-a.* and .*sft-start.*: evaluate\.{key} was {other} and .*evaluate both alike"):
        compare(tmp_path, tmp_path / "out")


def test_groups_may_think_differently_but_not_at_different_temperatures(tmp_path):
    for start, reward, protocol in (("sft-a", "line", "answer"), ("sft-b", "random", "think")):
        relabel(write_policy(tmp_path, start, settings_of("", 0, ""), success(start, 0)), protocol=protocol)
        relabel(write_policy(tmp_path, f"rl-{reward}", settings_of(reward, 0, start), success(start, 0.3)), protocol=protocol)
    assert set(compare(tmp_path, tmp_path / "out", "ks=1")["changes"]["policy"]) == {"line", "random"}
    for name in ("sft-b", "rl-random"):
        relabel(tmp_path / name, temperature=0.6)
    with pytest.raises(UserError, match=r"evaluate\.temperature was"):
        compare(tmp_path, tmp_path / "out", "ks=1")
