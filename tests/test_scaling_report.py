"""The scaling report on run folders made from a stated law: what it reads, fits and refuses."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr, spearmanr

from analysis import scaling, scaling_tables
from analysis.plan import main as plan
from analysis.rl_laws import fit_run_lines
from analysis.scaling_data import points_of, pretraining_cells, rl_points, rl_runs, success_table
from chessrl.errors import UserError
from tests.scaling_runs import FLOPS_PER_STEP, PUZZLES, STEPS, loss_of, make_sweep, reward_of, success_of

SIZES, BUDGETS = (3e5, 1e6, 3e6), (4e5, 8e5, 1.6e6, 3.2e6)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("sweep"), SIZES, BUDGETS)


@pytest.fixture(scope="module")
def success(sweep):
    return success_table(rl_runs(sweep))


@pytest.fixture(scope="module")
def points(success):
    return points_of(success)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("small"), SIZES[:2], BUDGETS[:3])


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return make_sweep(tmp_path_factory.mktemp("one"), SIZES[:1], BUDGETS[:1])


def test_cells_and_points_are_those_of_the_law(sweep, points) -> None:
    cells = pretraining_cells(sweep)
    assert len(cells) == 12
    np.testing.assert_allclose(cells["loss"], [loss_of(n, t) for n, t in zip(cells["parameters"], cells["tokens"])])
    assert len(points) == 12 * (len(STEPS) + 1)
    expected = [reward_of(row.parameters, row.tokens, row.rl_flops) for row in points.itertuples()]
    np.testing.assert_allclose(points["reward"], expected)
    assert sorted(points[points["parameters"] == 1e6]["rl_flops"].unique()) == [0.0, *(FLOPS_PER_STEP * step for step in STEPS)]


def test_bins_and_k_are_means_over_their_puzzles(one) -> None:
    easy = rl_points(one, bins=("B1",), k=8).iloc[-1]  # at the last step
    p = success_of(reward_of(easy["parameters"], easy["tokens"], easy["rl_flops"]))[: PUZZLES // 2]
    assert easy["reward"] == pytest.approx(np.mean(1 - (1 - p) ** 8))
    with pytest.raises(UserError, match="no puzzle of B9; expected all, or some of B1, B2"):
        rl_points(one, bins=("B9",))


def test_sampled_success_stands_in_where_asked(one) -> None:
    table = success_table(rl_runs(one), "test")
    row = table.iloc[-1]
    assert row["success"] == np.round(4 * success_of(reward_of(row["parameters"], row["tokens"], row["rl_flops"]))[-1]) / 4
    with pytest.raises(UserError, match="measure=guess: expected one of exact, test, validation"):
        success_table([], "guess")


def test_sampled_starts_are_read_at_the_ks_that_their_samples_allow(sweep) -> None:
    settings = scaling.ScalingSettings(out="", outputs=str(sweep), measure="test", resamples=2)
    assert scaling.start_section(scaling.read_sweep(settings)).table["k"].tolist() == [1, 4]  # of 4 samples
    exact = scaling.read_sweep(replace(settings, measure="exact"))
    assert scaling.start_section(exact).table["k"].tolist() == [1, 4, 8, 16]


def test_runs_without_exact_success_are_told_what_makes_it(one, tmp_path) -> None:
    outputs = Path(shutil.copytree(one, tmp_path / "runs"))
    for file in outputs.glob("*/evaluations/*/exact.parquet"):
        file.unlink()
    with pytest.raises(UserError, match=r"evaluate\.exact=true, or give measure=test"):
        rl_points(outputs)
    assert len(rl_points(outputs, "test")) == len(STEPS) + 1


def test_runs_on_different_puzzles_are_refused(tmp_path) -> None:
    outputs = make_sweep(tmp_path, SIZES[:1], BUDGETS[:2])
    file = sorted(outputs.glob("rl-*/evaluations/step8/exact.parquet"))[-1]
    pd.read_parquet(file).iloc[:-1].to_parquet(file)
    with pytest.raises(UserError, match="step 8: measured on 39 puzzles that are not the 40"):
        rl_points(outputs)


def test_a_line_is_the_mean_of_its_puzzles_lines(success, points) -> None:
    c_ref = 3e9
    table = scaling_tables.line_table(success, ("all",), c_ref, np.random.default_rng(0))
    whole = {line.run: line for line in fit_run_lines(points, c_ref)}
    for row in table.itertuples():
        assert (row.reference, row.slope) == (pytest.approx(whole[row.run].reference), pytest.approx(whole[row.run].slope))
        assert row.slope == pytest.approx(0.02 * np.log10(row.tokens / 1e5))
        assert row.reference_low < row.reference < row.reference_high
        assert row.before_rl == pytest.approx(0.05)
        # 40 puzzles, half at R (1 + s) and half at R (1 - s): the mean's standard error is R s / sqrt(40)
        half = 1.96 * min(row.reference, 1 - row.reference) / 2 / np.sqrt(PUZZLES)
        assert row.reference_high - row.reference == pytest.approx(half, rel=0.25)


def test_one_measured_step_makes_no_line(tmp_path) -> None:
    outputs = make_sweep(tmp_path, SIZES[:2], BUDGETS[:3])
    (first, *_) = sorted(outputs.glob("rl-*"))
    for step in STEPS[1:]:
        shutil.rmtree(first / "evaluations" / f"step{step}")
    runs = rl_runs(outputs)
    table = scaling_tables.line_table(success_table(runs), ("all",), 3e9, np.random.default_rng(0)).set_index("run")
    lines = ["reference", "reference_low", "reference_high", "slope", "slope_low", "slope_high", "rmse"]
    assert table.loc[first.name, lines].isna().all() and not table.drop(first.name)[lines].isna().any(axis=None)
    assert table.loc[first.name, ["before_rl", "after_rl"]].notna().all()
    sweep = scaling.read_sweep(scaling.ScalingSettings(out="", outputs=str(outputs), resamples=2))
    assert len(sweep.lines) == 5 and first.name not in set(sweep.points["run"])
    assert first.name in " ".join(scaling.run_section(sweep).notes)


def test_the_common_compute_lies_where_all_runs_were_measured(points) -> None:
    low, high = FLOPS_PER_STEP * STEPS[0] * 3, FLOPS_PER_STEP * STEPS[-1] * 0.3  # of the largest size's first step, of the smallest's last
    assert scaling_tables.common_compute(points) == pytest.approx(np.sqrt(low * high))
    apart = points[((points["parameters"] == 3e5) & (points["rl_flops"] < 1e9)) | (points["parameters"] == 3e6)]
    assert apart["rl_flops"].min() < scaling_tables.common_compute(apart) < apart["rl_flops"].max()


def test_rank_correlations_are_spearmans(success) -> None:
    lines = scaling_tables.line_table(success, ("all",), 3e9, np.random.default_rng(0))
    table = scaling_tables.predictor_table(lines, np.random.default_rng(0)).set_index(["outcome", "predictor"])
    assert table.loc[("R_ref", "loss L"), "rho"] == pytest.approx(spearmanr(lines["loss"], lines["reference"]).statistic)
    assert table.loc[("slope B", "tokens T"), "rho"] == pytest.approx(spearmanr(lines["tokens"], lines["slope"]).statistic)
    assert np.isnan(table.loc[("pass@1 before RL", "loss L"), "rho"])  # all alike


def test_the_slopes_law_is_recovered_and_bracketed(points) -> None:
    table = scaling_tables.slope_table(points, 3e9, np.random.default_rng(0), 20).set_index("constant")
    assert table.loc["b (per decade of T)", "value"] == pytest.approx(0.02)
    assert table.loc["c (per decade of N)", "value"] == pytest.approx(0, abs=1e-9)
    assert table.loc["b (per decade of T)", "low"] == pytest.approx(0.02) == table.loc["b (per decade of T)", "high"]  # no noise
    lines = fit_run_lines(points, 3e9)
    pearson = pearsonr(np.log10([line.tokens for line in lines]), [line.slope for line in lines]).statistic
    assert table.loc["Pearson of B with log10 T", "value"] == pytest.approx(pearson)


def test_prediction_errors_stand_beside_those_of_a_constant(points) -> None:
    table = scaling_tables.prediction_table(points, 1e10, ["linear"], None, np.random.default_rng(0)).set_index("left_out")
    assert table.loc["run", "rmse"] == pytest.approx(0, abs=1e-9)  # at C = 1e10 the law's slope has no part, and R_ref is a line in L
    after = points[points["rl_flops"] > 0]
    errors = [row.reward - after[after["run"] != row.run]["reward"].mean() for row in after.itertuples()]
    assert table.loc["run", "constant_rmse"] == pytest.approx(np.sqrt(np.mean(np.square(errors))))


def test_isoflop_curves_need_three_sizes_at_one_compute(sweep) -> None:
    apart, notes = scaling_tables.isoflop_table(pretraining_cells(sweep))  # 0.7e12 to 5.8e12 FLOPs of the smallest, 7.2e12 to 5.8e13 of the largest
    assert apart.empty and all("needs three sizes" in note for note in notes)
    flops = np.geomspace(1e12, 1e13, 9)
    cells = pd.DataFrame([("", n, c / 6 / n, loss_of(n, c / 6 / n)) for n in SIZES for c in flops], columns=["run", "parameters", "tokens", "loss"])
    table, notes = scaling_tables.isoflop_table(cells)
    assert len(table) + len(notes) == 5 and len(table) > 0


def test_forms_that_a_few_runs_cannot_bear_are_left_out(points) -> None:
    few = [line for line in fit_run_lines(points, 3e9) if line.parameters == 1e6]
    table, warnings = scaling_tables.form_table(few)
    assert table.empty and len(warnings) == 4
    table, warnings = scaling_tables.form_table(fit_run_lines(points, 3e9))
    assert set(table["form"]) == {"linear", "exponential", "power", "logistic"}


def test_the_command_writes_every_section_and_its_tables(small, tmp_path, capsys) -> None:
    scaling.main([f"outputs={small}", f"out={tmp_path}", "resamples=1"])
    assert "6 pretraining runs, 6 RL runs" in capsys.readouterr().out
    lines = pd.read_csv(tmp_path / "tables" / "rl_lines.csv")
    assert lines["slope"].to_numpy() == pytest.approx(0.02 * np.log10(lines["tokens"] / 1e5))
    for name in ("rl_lines", "predictors", "level", "slope", "loss_surface", "ceilings", "frontier", "cell_crossings"):
        assert (tmp_path / "figures" / f"{name}.png").is_file(), name
    page = (tmp_path / "report.html").read_text()
    assert "analysis.scaling" in page and "evaluate.policy_traces=1" in page  # the command, and what makes the files that are absent
    crossings = pd.read_csv(tmp_path / "tables" / "cell_crossings.csv")
    # RL is ahead until both solve everything: half of the puzzles have p = 0.025 before RL, and 0.975^k / 2 falls below 1e-12 after k = 1,066
    assert (crossings[crossings["bin"] == "all"]["crossover_k"] == 2048).all()


def test_a_sweep_of_four_runs_says_what_it_does_not_bear(tmp_path) -> None:
    outputs = make_sweep(tmp_path / "runs", SIZES[:2], BUDGETS[::3])
    made = scaling.scaling_sections(scaling.read_sweep(scaling.ScalingSettings(out="", outputs=str(outputs), resamples=2)))
    sections = {section.name: section for section in made}
    assert any("at least 6 runs" in note for note in sections["loss_surface"].notes)
    assert sections["frontier"].figure is None and "no loss surface" in sections["frontier"].notes[0]
    assert any("leave nothing to test it by" in note for note in sections["level"].notes)
    shutil.rmtree(next(outputs.glob("rl-*")))
    with pytest.raises(UserError, match="need 4 measured RL runs, found 3"):
        scaling.read_sweep(scaling.ScalingSettings(out="", outputs=str(outputs)))


def test_a_plan_far_beyond_the_sweep_says_that_it_extrapolates(small, capsys) -> None:
    plan(["budget=1e18", f"outputs={small}", "resamples=2"])
    told = capsys.readouterr().out
    assert "95% intervals" in told and "careful: extrapolation: the budget is" in told
    assert re.search(r"slope per decade of RL FLOPs \S+ \S+ log10 T \S+ log10 N\n$", told)
