"""The analysis on synthetic run directories: numbers against independent computation, a self-contained page, clear errors."""

import base64
import json
import re
import shutil
from collections.abc import Sequence
from math import comb
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.figures import Panel, curves_figure
from analysis.read import read_runs
from analysis.report import run_analysis
from analysis.sections import Section, build_sections
from analysis.tables import comparisons, curves_table, runs_table, select_evaluations, terminal_table
from chessrl.errors import UserError
from chessrl.statistics import FAILURES, comparison_table, passk_table, rates_table

PUZZLES, ENGINE_PUZZLES, SAMPLES, KS = 90, 60, 16, (1, 2, 4, 8, 16)
SKILL = {"pretrain": 0.06, "sft": 0.35, "rl": 0.5}
FIGURES = {
    "loss_pretrain", "loss_sft", "reward", "rl_verifier", "passk", "bins", "comparisons", "failures", "legal", "verifiers",
    "reach", "crossover", "coverage", "newly_solved", "majority", "budgets", "rl_drift", "rl_optimisation", "rl_groups", "rl_sampler", "rl_format",
}  # fmt: skip
CONFIG = """world:
  name: <endgame>
rl:
  bins: [B1, B2]
algorithm:
  epochs: {epochs}
  minibatches: 1
"""


def make_samples(skill: float, seed: int, puzzles: int = PUZZLES) -> pd.DataFrame:
    """Outcomes with per-puzzle success probabilities that fall with the bin; failures of every kind."""
    rng = np.random.default_rng(seed)
    bins = np.arange(puzzles) % 5
    chance = np.clip(rng.beta(2 * skill + 0.1, 2 * (1 - skill), puzzles) * (1.25 - 0.2 * bins), 0, 1)
    solved = rng.random((puzzles, SAMPLES)) < chance[:, None]
    failure = np.where(solved, "", rng.choice(FAILURES, (puzzles, SAMPLES), p=[0.5, 0.25, 0.1, 0.1, 0.05]))
    trace = rng.poisson(27, (puzzles, SAMPLES))
    frame = {
        "puzzle": np.repeat([f"p{number:04d}" for number in range(puzzles)], SAMPLES),
        "split": "validation",
        "bin": np.repeat([f"B{number + 1}" for number in bins], SAMPLES),
        "sample": np.tile(np.arange(SAMPLES), puzzles),
        "tokens": (trace + 6).ravel(),
        "solved": solved.ravel(),
        "solved_by_line": (solved & (rng.random(solved.shape) < 0.8)).ravel(),
        "solved_strict": (solved & (rng.random(solved.shape) < 0.9)).ravel(),
        "first_move": "",
        "answer": np.where(solved, "R a1 a8", "R a1 a7").ravel(),
        "legal": ~np.isin(failure, FAILURES[1:]).ravel(),
        "format": ~np.isin(failure, FAILURES[2:]).ravel(),
        "truncated": (failure == "no_end_think").ravel(),
        "failure": failure.ravel(),
        "trace_length": trace.ravel(),
        "answer_length": 6,
        "logprob": -rng.gamma(4, 2, solved.size),
        "entropy": rng.gamma(4, 0.1, solved.size),
    }
    return pd.DataFrame(frame)


def write_evaluation(run: Path, stage: str, key: str, samples: pd.DataFrame, ks: Sequence[int] = KS, **changed: object) -> None:
    labels = {
        "run": run.name, "stage": stage, "step": 100, "split": "test", "protocol": "game" if stage == "pretrain" else "think",
        "spelling": "lenient", "verifier": "line", "temperature": 1.0, "thinking_budget": 128, "seed": 1000,
        "n_puzzles": samples["puzzle"].nunique(), "n_samples": samples["sample"].nunique(),
    } | changed  # fmt: skip
    folder = run / "evaluations" / key
    folder.mkdir(parents=True)
    (folder / "evaluation.json").write_text(json.dumps(labels))
    samples.to_parquet(folder / "samples.parquet")
    passk_table(samples, ks, labels, seed=0).to_csv(folder / "passk.csv", index=False)
    rates_table(samples, labels, seed=0).to_csv(folder / "rates.csv", index=False)


def metric_lines(stage: str, seed: int) -> list[dict]:
    rng = np.random.default_rng(seed)
    lines = []
    for step in range(1, 101):
        share = step / 100
        loss = 0.9 + 3.2 * np.exp(-6 * share) + rng.normal(0, 0.05)
        line = {"step": step, "tokens": step * 20_000, "loss_tokens": step * 15_000}
        line |= {"flops": step * 1e11, "flops_with_attention": step * 1.1e11}
        line |= {"loss": loss, "lr": 1e-3, "grad_norm": 0.4 + rng.gamma(2, 0.1), "time/wall_s": step * 1.5, "time/tokens_per_s": 1.3e4}
        if stage == "sft":
            line |= {"loss/trace": loss + 0.3, "loss/answer": loss - 0.4}
        if stage == "rl":
            line |= {
                "reward": 0.4 + 0.15 * share + rng.normal(0, 0.04), "reward_std": 0.3, "reward/line": 0.4 + 0.15 * share,
                "reward/verifier": 0.4 + 0.15 * share, "reward/oracle": 0.38 + 0.15 * share, "reward/gap": 0.02,
                "frac_reward_zero_std": 0.2 + 0.2 * share + rng.normal(0, 0.03), "kl": 0.03 * share,
                "entropy": 0.5 - 0.2 * share + rng.normal(0, 0.01), "completions/mean_length": 30 + 3 * share + rng.normal(0, 1),
                "completions/mean_length_correct": 28 + 3 * share + rng.normal(0, 1),
                "completions/mean_length_incorrect": 33 + rng.normal(0, 1),
                "completions/mean_trace_length": 24 + 3 * share, "completions/clipped_ratio": 0.02, "clip_ratio/low": 0.0, "clip_ratio/high": 0.0,
                "sampling/logp_difference/mean": 1e-7, "sampling/logp_difference/max": 3e-6,
                "policy/legal": 0.85 + 0.1 * share, "policy/format": 0.95 + 0.04 * share,
            }  # fmt: skip
        if step % 10 == 0:
            validation = {"pretrain": {"validation/loss": loss + 0.05}, "rl": {"validation/pass_at_1": 0.35 + 0.15 * share}}
            validation["sft"] = {"validation/loss": loss + 0.05, "validation/loss_trace": loss + 0.35, "validation/loss_answer": loss - 0.3}
            line |= validation[stage]
        lines.append(line)
    return lines


def write_run(root: Path, name: str, parents: dict[str, str], seed: int) -> Path:
    stage = name.split("-")[0]
    run = root / name
    run.mkdir(parents=True)
    parameters = {"total": 883_456, "without_embeddings": 831_744}
    summary = {"stage": stage, "run_id": name, "parents": parents, "parameters": parameters, "tokens": 2_000_000, "flops": 1e13}
    summary["flops_by_stage"] = {"pretrain": 1e13} if stage == "pretrain" else {"pretrain": 1e13, "traces": 5e11, stage: 1e13}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "config.yaml").write_text(CONFIG.format(epochs=1))
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metric_lines(stage, seed)))
    write_evaluation(run, stage, "aaaa", make_samples(SKILL[stage], seed))
    return run


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """pretrain -> sft -> rl, each evaluated on the test split; rl also by the engine, at an earlier step and on validation."""
    root = tmp_path_factory.mktemp("outputs")
    pretrain = write_run(root, "pretrain-1a2b3c4d", {}, seed=1)
    sft = write_run(root, "sft-2b3c4d5e", {"pretrain": pretrain.name}, seed=2)
    rl = write_run(root, "rl-3c4d5e6f", {"sft": sft.name, "data": "0123456789abcdef"}, seed=3)
    write_evaluation(rl, "rl", "bbbb", make_samples(0.55, 3, puzzles=ENGINE_PUZZLES), verifier="engine")
    write_evaluation(rl, "rl", "cccc", make_samples(0.40, 5), step=50)
    write_evaluation(rl, "rl", "dddd", make_samples(0.40, 6), split="validation")
    return [rl, pretrain, sft]  # the order given must not matter


@pytest.fixture(scope="module")
def analysed(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analysis")
    run_analysis(built, out)
    return out


def copy_run(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to / run.name))


def copy_unevaluated(run: Path, to: Path) -> Path:
    return Path(shutil.copytree(run, to / run.name, ignore=shutil.ignore_patterns("evaluations")))


def sections_of(runs: list[Path]) -> dict[str, Section]:
    read = read_runs(runs)
    return {section.name: section for section in build_sections(read, select_evaluations(read), seed=0)}


@pytest.fixture(scope="module")
def sections(built: list[Path]) -> dict[str, Section]:
    return sections_of(built)


def test_pass_at_k_in_the_tables_equals_the_binomial_formula(built: list[Path], analysed: Path) -> None:
    table = pd.read_csv(analysed / "tables" / "passk.csv")
    assert list(dict.fromkeys(table["policy"])) == ["Pretrained", "SFT", "RL"]
    samples = pd.read_parquet(built[2] / "evaluations" / "aaaa" / "samples.parquet")
    for name, k in (("all", 4), ("B2", 1), ("B3", 16)):
        rows = samples if name == "all" else samples[samples["bin"] == name]
        solved = rows.groupby("puzzle")["solved"].sum()
        expected = np.mean([1 - comb(SAMPLES - c, k) / comb(SAMPLES, k) for c in solved])
        row = table[(table["policy"] == "SFT") & (table["bin"] == name) & (table["k"] == k)].iloc[0]
        assert row["pass_at_k"] == pytest.approx(expected, abs=1e-12)
        assert row["n_puzzles"] == len(solved)


def test_each_run_compares_with_all_its_ancestors_on_paired_puzzles(built: list[Path], analysed: Path) -> None:
    table = pd.read_csv(analysed / "tables" / "comparisons.csv")
    pairs = set(table[["a", "b"]].itertuples(index=False, name=None))
    assert pairs == {("Pretrained", "SFT"), ("SFT", "RL"), ("Pretrained", "RL")}
    sft, rl = (pd.read_parquet(built[place] / "evaluations" / "aaaa" / "samples.parquet")["solved"].mean() for place in (2, 0))
    row = table[(table["a"] == "SFT") & (table["b"] == "RL") & (table["bin"] == "all") & (table["k"] == 1)].iloc[0]
    assert row["difference"] == pytest.approx(rl - sft, abs=1e-12)
    assert row["ci_low"] < row["difference"] < row["ci_high"]


def test_outcomes_of_a_policy_sum_to_one(built: list[Path], analysed: Path) -> None:
    table = pd.read_csv(analysed / "tables" / "failures.csv")
    assert table.groupby("policy")["share"].sum().to_numpy() == pytest.approx(1)
    samples = pd.read_parquet(built[1] / "evaluations" / "aaaa" / "samples.parquet")
    row = table[(table["policy"] == "Pretrained") & (table["outcome"] == "illegal")].iloc[0]
    assert row["share"] == pytest.approx((samples["failure"] == "illegal").mean())


def test_line_and_engine_judge_the_same_samples_and_their_difference_is_paired(built: list[Path], analysed: Path) -> None:
    """Not the engine's verdicts on some samples against the line's on others: those of other puzzles, at that, by default."""
    table = pd.read_csv(analysed / "tables" / "verifiers.csv")
    samples = pd.read_parquet(built[0] / "evaluations" / "bbbb" / "samples.parquet")
    by_line = samples.assign(solved=samples["solved_by_line"])
    differences = comparison_table(by_line, samples, "line", "engine", (1,), seed=0).set_index("bin")
    assert set(table["bin"]) == {"all", "B1", "B2", "B3", "B4", "B5"}
    for name, rows in table.groupby("bin"):
        of_bin = samples if name == "all" else samples[samples["bin"] == name]
        values = rows.set_index("judge")["value"]
        assert values["line"] == pytest.approx(of_bin["solved_by_line"].mean())
        assert values["engine"] == pytest.approx(of_bin["solved"].mean())
        assert values["engine − line"] == pytest.approx(differences.loc[name, "difference"])
        assert set(rows["n_puzzles"]) == {of_bin["puzzle"].nunique()}
    paired = table[(table["bin"] == "all") & (table["judge"] == "engine − line")].iloc[0]
    assert paired["ci_low"] == pytest.approx(differences.loc["all", "ci_low"], abs=0.005)  # other resamples of the same puzzles
    assert paired["ci_high"] == pytest.approx(differences.loc["all", "ci_high"], abs=0.005)
    page = (analysed / "report.html").read_text()
    assert f"RL: n = {ENGINE_PUZZLES} puzzles with 16 samples each; engine − line in points of pass@1: " in page
    assert "An accepted move off the line ends the episode solved" in page


def test_second_evaluation_with_other_puzzles_or_samples_is_counted_and_the_largest_is_drawn(built: list[Path], tmp_path: Path) -> None:
    sft = copy_run(built[2], tmp_path)
    larger = make_samples(0.35, 11, puzzles=PUZZLES + 10)
    write_evaluation(sft, "sft", "0000", larger[larger["sample"] < 4], ks=(1, 2, 4))  # most puzzles
    write_evaluation(sft, "sft", "ffff", make_samples(0.35, 12, puzzles=30))
    selection = select_evaluations(read_runs([sft]))
    assert [policy.evaluation.folder.name for policy in selection.policies] == ["0000"]
    assert (selection.smaller, selection.rest) == (2, 0)
    final = sections_of([sft])["final"]
    assert set(final.table["pass@16"]) == {"-"} and final.table["puzzles"].iloc[0] == PUZZLES + 10
    assert "same settings with more puzzles, or else more samples: 2;" in " ".join(final.notes)
    write_evaluation(sft, "sft", "1111", larger)  # as many puzzles, more samples
    assert [policy.evaluation.folder.name for policy in select_evaluations(read_runs([sft])).policies] == ["1111"]


def test_earlier_steps_and_other_splits_are_counted_not_mixed_in(built: list[Path], analysed: Path) -> None:
    drawn, everything = (pd.read_csv(analysed / "tables" / name) for name in ("passk.csv", "all_passk.csv"))
    assert set(drawn["step"]) == {100} and set(drawn["split"]) == {"test"}
    assert len(drawn) == 3 * 6 * len(KS) and len(everything) == 6 * 6 * len(KS)
    assert "2 evaluations of earlier steps or other splits are not drawn" in (analysed / "report.html").read_text()


def test_page_holds_every_figure_and_needs_no_network(analysed: Path) -> None:
    page = (analysed / "report.html").read_text()
    embedded = {base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', page)}
    on_disk = sorted((analysed / "figures").glob("*.png"))
    assert {file.stem for file in on_disk} == FIGURES
    assert "Not logged by these runs" not in page and "left out" not in page
    assert embedded == {file.read_bytes() for file in on_disk}
    for file in on_disk:
        assert file.with_suffix(".pdf").is_file()
        assert (analysed / "tables" / f"{file.stem}.csv").is_file()
    assert re.findall(r"https?://[^\"<\s]+", page) == ["https://arxiv.org/abs/2607.16097"]
    assert not re.search(r"<(script|link|iframe)|@import|url\(", page)


def test_figures_scroll_where_the_screen_is_too_narrow_to_read_them(analysed: Path) -> None:
    page = (analysed / "report.html").read_text()
    assert re.search(r"\.figure[^}]*overflow-x: auto", page)
    widths = dict(re.findall(r'<section id="(\w+)">(?:(?!</section>).)*?<div class="figure"><img[^>]*min-width: (\d+)px', page, re.DOTALL))
    assert set(widths) == FIGURES
    assert int(widths["loss_pretrain"]) < 360  # one small panel needs no scrolling on a telephone
    assert all(int(widths[name]) >= 500 for name in ("loss_sft", "passk", "comparisons", "reward", "rl_optimisation"))


def test_reward_section_says_which_bins_are_validated_and_draws_one_part_once(
    built: list[Path], sections: dict[str, Section], tmp_path: Path
) -> None:
    section = sections["reward"]
    labels = [axes.get_ylabel() for axes in section.figure.axes]
    assert labels == ["reward", "validation pass@1\n(B1, B2 only)"]
    assert "bins that RL trains on (rl.bins: B1, B2 only)" in section.text
    assert all(axes.get_ylim()[0] == 0 for axes in section.figure.axes)
    rl = copy_unevaluated(built[0], tmp_path)
    lines = [json.loads(line) | {"reward/format": -0.5} for line in (rl / "metrics.jsonl").read_text().splitlines()]
    (rl / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (rl / "config.yaml").write_text(CONFIG.format(epochs=1).replace("[B1, B2]", "[]"))
    several = sections_of([rl])["reward"]
    assert [axes.get_ylabel() for axes in several.figure.axes] == ["reward", "reward, by part", "validation pass@1\n(all bins)"]
    assert several.figure.axes[1].get_ylim()[0] == -0.5  # a penalty is not cut off


def test_the_oracle_and_its_gap_are_no_parts_of_the_reward(built: list[Path], tmp_path: Path) -> None:
    rl = copy_unevaluated(built[0], tmp_path)
    audit = {"reward/verifier": 0.5, "reward/oracle": 0.4, "reward/gap": 0.1}
    lines = [json.loads(line) | audit for line in (rl / "metrics.jsonl").read_text().splitlines()]
    (rl / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = sections_of([rl])
    assert [axes.get_ylabel() for axes in found["reward"].figure.axes] == ["reward", "validation pass@1\n(B1, B2 only)"]
    shares, gap = found["rl_verifier"].figure.axes
    assert {text.get_text() for text in shares.get_legend().get_texts()} == {"verifier", "oracle"} and gap.get_ylabel() == "verifier less oracle"


def test_clipped_tokens_that_cannot_be_are_explained_and_drawn_from_zero(
    built: list[Path], sections: dict[str, Section], tmp_path: Path
) -> None:
    section = sections["rl_optimisation"]
    assert section.figure.axes[2].get_ylim()[0] == 0
    assert len(section.notes) == 1 and section.notes[0].startswith("No token is ever clipped: with one update per rollout")
    rl = copy_unevaluated(built[0], tmp_path)
    (rl / "config.yaml").write_text(CONFIG.format(epochs=2))
    assert sections_of([rl])["rl_optimisation"].notes == ()


def test_runs_table_has_no_loss_for_rl_and_the_flops_of_traces_once(built: list[Path]) -> None:
    table = runs_table(read_runs(built)).set_index("policy")
    assert table["loss"].isna().to_dict() == {"Pretrained": False, "SFT": False, "RL": True}
    assert table["FLOPs of traces"].dropna().to_dict() == {"SFT": 5e11}
    assert list(table.columns[:2]) == ["N", "tokens"] and list(table.columns[-2:]) == ["run", "parents"]


def test_panels_of_pass_at_k_share_the_axis_that_the_text_says_they_share(sections: dict[str, Section]) -> None:
    section = sections["passk"]
    assert "All panels share one vertical axis." in section.text
    assert len({axes.get_ylim() for axes in section.figure.axes}) == 1


def test_text_from_files_is_escaped_in_the_page(analysed: Path) -> None:
    page = (analysed / "report.html").read_text()
    assert "&lt;endgame&gt;" in page and "<endgame>" not in page


@pytest.mark.long
def test_two_analyses_of_the_same_runs_are_identical(built: list[Path], analysed: Path, tmp_path: Path) -> None:
    run_analysis(built, tmp_path)
    for file in sorted(path.relative_to(analysed) for path in analysed.rglob("*") if path.is_file()):
        assert (tmp_path / file).read_bytes() == (analysed / file).read_bytes(), file


def test_final_table_fits_the_terminal_and_shows_every_interval(built: list[Path]) -> None:
    selection = select_evaluations(read_runs(built))
    evaluation = selection.policies[0].evaluation
    text = terminal_table(evaluation.passk, evaluation.rates)
    assert max(len(line) for line in text.splitlines()) <= 110
    row = evaluation.passk[(evaluation.passk["bin"] == "B1") & (evaluation.passk["k"] == 4)].iloc[0]
    line = next(line for line in text.splitlines() if line.startswith("B1"))
    assert f"{100 * row['pass_at_k']:.1f} [{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}]" in line
    assert line.count("[") == 4


def test_absent_metrics_leave_the_figure_out_and_say_so(built: list[Path], tmp_path: Path) -> None:
    rl = copy_run(built[0], tmp_path)
    lines = [json.loads(line) for line in (rl / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: line[key] for key in ("step", "tokens", "loss", "reward")} for line in lines]
    (rl / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    out = tmp_path / "out"
    (out / "figures").mkdir(parents=True)
    (out / "figures" / "rl_sampler.png").write_bytes(b"left by an earlier analysis")
    run_analysis([rl], out)
    page = (out / "report.html").read_text()
    assert not (out / "figures" / "rl_sampler.png").exists() and (out / "figures" / "reward.png").exists()
    assert "Not logged by these runs, so left out: sampling/logp_difference/mean, sampling/logp_difference/max." in page
    assert "No Pretrained run was given" in page


def test_runs_without_evaluations_still_make_a_report(built: list[Path], tmp_path: Path) -> None:
    sft = copy_run(built[2], tmp_path)
    shutil.rmtree(sft / "evaluations")
    analysis = run_analysis([sft], tmp_path / "out")
    assert analysis.terminal == "No evaluation was found."
    assert "No evaluation was found in these runs, so the figure is left out." in analysis.report.read_text()


def test_comparison_on_different_puzzles_is_a_note_not_an_end(built: list[Path], tmp_path: Path) -> None:
    pretrain, sft = copy_run(built[1], tmp_path), copy_run(built[2], tmp_path)
    samples = pretrain / "evaluations" / "aaaa" / "samples.parquet"
    frame = pd.read_parquet(samples)
    frame[frame["puzzle"] != "p0007"].to_parquet(samples)
    runs = read_runs([pretrain, sft])
    table, notes = comparisons(runs, select_evaluations(runs).policies, seed=0)
    assert table.empty and len(notes) == 1
    assert "1 puzzles are missing in Pretrained and 0 in SFT" in notes[0]


def test_resumed_run_draws_each_step_once(built: list[Path], tmp_path: Path) -> None:
    sft = copy_run(built[2], tmp_path)
    lines = (sft / "metrics.jsonl").read_text().splitlines()
    (sft / "metrics.jsonl").write_text("\n".join([*lines[:60], *lines[50:]]) + "\n")
    (run,) = read_runs([sft])
    assert list(run.metrics["step"]) == list(range(1, 101)) and run.relogged_steps == 10


def test_several_runs_of_a_stage_and_several_temperatures_get_names_of_their_own(built: list[Path], tmp_path: Path) -> None:
    rl = copy_run(built[0], tmp_path)
    write_evaluation(rl, "rl", "eeee", make_samples(0.5, 8), temperature=0.6)
    other = write_run(tmp_path, "rl-9f8e7d6c", {}, seed=9)
    selection = select_evaluations(read_runs([rl, other]))
    assert [policy.label for policy in selection.policies] == ["RL 3c4d5e (temperature 0.6)", "RL 3c4d5e (temperature 1.0)", "RL 9f8e7d"]


def test_smoothing_leaves_validation_figures_as_measured(built: list[Path]) -> None:
    table = curves_table(read_runs(built), ["loss", "validation/loss"])
    validation = table[table["metric"] == "validation/loss"]
    assert validation["value"].equals(validation["smoothed"])
    loss = table[(table["metric"] == "loss") & (table["policy"] == "SFT")]
    assert loss["smoothed"].iloc[49] == pytest.approx(loss["value"].iloc[47:52].mean())


def test_curves_show_the_table_they_are_given(built: list[Path]) -> None:
    table = curves_table(read_runs(built)[2:], ["kl"])
    (axes,) = curves_figure(table, [Panel("KL", {"kl": "kl"})], "step").axes
    assert np.array_equal(axes.lines[-1].get_ydata(), table["smoothed"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "summary.json").unlink(), r"summary\.json: the file is missing; let the run complete"),
        (lambda run: (run / "summary.json").write_text("{"), r"summary\.json: not valid JSON"),
        (lambda run: (run / "metrics.jsonl").write_text('{"step": 1, "tok'), r"metrics\.jsonl line 1: not valid JSON"),
        (lambda run: (run / "config.yaml").write_text("rl: [B1"), r"config\.yaml: not valid YAML"),
        (lambda run: (run / "metrics.jsonl").write_text(""), r"metrics\.jsonl: no step was logged"),
        (lambda run: (run / "evaluations" / "aaaa" / "passk.csv").unlink(), r"passk\.csv: the file is missing; evaluate the run again"),
        (lambda run: (run / "evaluations" / "aaaa" / "rates.csv").write_text("run,stage\n"), r"rates\.csv: column step is missing"),
        (lambda run: (run / "evaluations" / "aaaa" / "evaluation.json").write_text("{}"), r"evaluation\.json: key run is missing"),
    ],
)
def test_damaged_run_is_one_clear_line(built: list[Path], tmp_path: Path, damage, message: str) -> None:
    run = copy_run(built[1], tmp_path)
    damage(run)
    with pytest.raises(UserError, match=message) as caught:
        read_runs([run])
    assert "\n" not in str(caught.value)


def test_missing_or_repeated_run_directories_are_named(built: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run directory was given"):
        read_runs([])
    with pytest.raises(UserError, match="nowhere: no such run directory"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="given more than once"):
        read_runs([built[0], built[0]])


def test_unreadable_samples_are_named(built: list[Path], tmp_path: Path) -> None:
    run = copy_run(built[1], tmp_path)
    (run / "evaluations" / "aaaa" / "samples.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(UserError, match=r"samples\.parquet: not a readable parquet table"):
        read_runs([run])[0].evaluations[0].samples()
