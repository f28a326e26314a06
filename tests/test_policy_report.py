"""The report on measured policies: files to arrays, pairs, seeds, fits and their intervals against known answers and brute force."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import rel_entr

from analysis import sharpening
from analysis.chains import checkpoints, experiments, steps_of
from analysis.policies import pair_of, read_policy
from analysis.policy_sections import policy_sections
from analysis.read import read_runs
from analysis.resampling import Weights
from analysis.sharpening import CATEGORIES
from analysis.transition_tables import RANKS, categories_table, quality_table, rank_table, redistribution_table
from analysis.transitions import Layout, Pooled, puzzle_sums, sharpening_table, transition
from chessrl.config import AnalysisConfig
from chessrl.errors import UserError
from tests.policy_files import made_up, sharpened, write_policy
from tests.test_analysis import PUZZLES, make_samples, write_evaluation, write_run

STATES = 60
SOLVING = [state % 3 for state in range(STATES)]


def transition_of(folder: Path, before: list[np.ndarray], after: list[np.ndarray], **keys):
    for name, policies in (("p", before), ("q", after)):
        write_policy(folder / f"{name}.parquet", policies, SOLVING[: len(policies)], decisions=2)
    return transition(pair_of(read_policy(folder / "p.parquet"), read_policy(folder / "q.parquet"), "p → q"), **({"top": 3, "tail": 0.05} | keys))


def values_of(table: pd.DataFrame, bin: str = "all") -> dict[str, tuple[float, float, float]]:
    rows = table[table["bin"] == bin]
    return {row.measure: (row.value, row.ci_low, row.ci_high) for row in rows.itertuples()}


# ---- files ------------------------------------------------------------------------------------------------------------------------------


def test_marginals_masses_and_sensitivities_are_those_of_the_rows_in_whatever_order(tmp_path: Path) -> None:
    policies = made_up(7, 3, seed=0)
    policies[2] = policies[2][:2]  # a trace fewer
    write_policy(tmp_path / "policy.parquet", policies, SOLVING, mass=0.8, decisions=2)
    frame = pd.read_parquet(tmp_path / "policy.parquet")
    frame.sample(frac=1, random_state=0).to_parquet(tmp_path / "shuffled.parquet")
    for name in ("policy", "shuffled"):
        read = read_policy(tmp_path / f"{name}.parquet")
        assert read.states["puzzle"].tolist() == ["p0000", "p0000", "p0001", "p0001", "p0002", "p0002", "p0003"]
        assert read.states["decision"].tolist() == [0, 1, 0, 1, 0, 1, 0] and read.states["traces"].tolist() == [3, 3, 2, 3, 3, 3, 3]
        np.testing.assert_allclose(read.states["mass"], 0.8, rtol=1e-5)
        for state, traces in enumerate(policies):
            np.testing.assert_allclose(read.marginal[state, : traces.shape[1]], traces.mean(0), atol=1e-6)
            assert read.legal[state].sum() == traces.shape[1] and read.solving[state].nonzero()[0].tolist() == [SOLVING[state]]
            assert read.sensitivity[state] == pytest.approx(rel_entr(traces, traces.mean(0)).sum(1).mean(), abs=1e-5)


def test_states_of_one_policy_alone_are_counted_and_other_moves_are_refused(tmp_path: Path) -> None:
    policies = made_up(10, 1, seed=0)
    write_policy(tmp_path / "p.parquet", policies, SOLVING)
    write_policy(tmp_path / "q.parquet", policies[:7], SOLVING)
    pair = pair_of(read_policy(tmp_path / "p.parquet"), read_policy(tmp_path / "q.parquet"), "p → q")
    assert len(pair.chosen) == 7 and pair.left_out == 3
    write_policy(tmp_path / "other.parquet", policies[1:8], SOLVING)
    with pytest.raises(UserError, match="p0000 has other legal moves"):
        pair_of(read_policy(tmp_path / "p.parquet"), read_policy(tmp_path / "other.parquet"), "p → q")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"broken\.parquet: not a readable"):
        read_policy(tmp_path / "broken.parquet")


# ---- known answers ----------------------------------------------------------------------------------------------------------------------


def test_a_policy_sharpened_by_1_7_is_reported_so(tmp_path: Path) -> None:
    before = made_up(STATES, 4, seed=1)
    found = sharpening_table([Pooled("p → q", (transition_of(tmp_path, before, sharpened(before, 1.7)),))], seed=0)
    assert set(found["bin"]) == {"all", "B1", "B2"} and set(found[found["bin"] == "B1"]["n_puzzles"]) == {15}
    for bin in ("all", "B1", "B2"):
        values = values_of(found, bin)
        for name in ("alpha*", "alpha* (median state)", "alpha* (lower quartile)", "alpha* (upper quartile)", "slope", "slope (median state)"):
            assert values[name] == pytest.approx((1.7, 1.7, 1.7), abs=1e-4), name
        for name in ("ExplainedSharp", "ExplainedSharp (median state)", "R2"):
            assert values[name] == pytest.approx((1, 1, 1), abs=1e-4), name
        assert values["residual KL, power"][0] < 1e-8 < 0.01 < values["residual KL, tilt"][0] < values["KL(q||p)"][0]
        assert values["entropy change"][2] < 0 < values["trace sensitivity before"][1]
        assert values["trace sensitivity after"][0] == pytest.approx(0, abs=1e-9)


def test_identical_policies_have_moved_nothing_and_explain_nothing(tmp_path: Path) -> None:
    before = made_up(STATES, 4, seed=1)
    part = transition_of(tmp_path, before, before)
    values = values_of(sharpening_table([Pooled("p", (part,))], seed=0))
    assert values["alpha*"] == pytest.approx((1, 1, 1), abs=1e-6) and values["slope"][0] == pytest.approx(1)
    assert values["R2"][0] == pytest.approx(1) and np.isnan(values["ExplainedSharp"][0]) and np.isnan(values["ExplainedTilt"][0])
    for name in ("JS(q, p)", "KL(q||p)", "tilt", "entropy change", "solving mass change", "trace sensitivity change"):
        assert values[name] == pytest.approx((0, 0, 0), abs=1e-9), name
    assert values["collapse gap"][2] < 0  # p itself is nearer than any one of its traces
    categories = categories_table([Pooled("p", (part,))], seed=0)
    assert (categories[categories["category"] == "other"]["value"] == 1).all()
    by_rank = rank_table([Pooled("p", (part,))], seed=0)
    assert (by_rank[by_rank["mass"] == "change"]["value"] == 0).all()


def test_a_tilted_policy_is_explained_by_the_tilt_alone(tmp_path: Path) -> None:
    before = made_up(STATES, 1, seed=1)
    after = [np.where(np.arange(p.shape[1]) == right, p * np.exp(1.2), p) for p, right in zip(before, SOLVING)]
    after = [q / q.sum() for q in after]
    values = values_of(sharpening_table([Pooled("p → q", (transition_of(tmp_path, before, after),))], seed=0))
    assert values["tilt"] == pytest.approx((1.2, 1.2, 1.2), abs=1e-3)
    assert values["ExplainedTilt"][0] == pytest.approx(1, abs=1e-6) and values["residual KL, tilt"][0] < 1e-6 < values["residual KL, power"][1]
    assert values["solving mass change"][1] > 0


def test_planted_categories_are_counted_by_bin(tmp_path: Path) -> None:
    """Puzzles of B1 discover a move of the tail, those of B2 lose theirs from the top."""
    low, high = [0.02, 0.40, 0.30, 0.20, 0.08], [0.50, 0.20, 0.20, 0.06, 0.04]
    before = [np.array([low if puzzle % 2 == 0 else high]) for puzzle in range(30)]
    after = [np.array([high if puzzle % 2 == 0 else [0.01, 0.40, 0.30, 0.20, 0.09]]) for puzzle in range(30)]
    for name, policies in (("p", before), ("q", after)):
        write_policy(tmp_path / f"{name}.parquet", policies, [0] * 30)
    part = transition(pair_of(read_policy(tmp_path / "p.parquet"), read_policy(tmp_path / "q.parquet"), "p → q"), 3, 0.05)
    table = categories_table([Pooled("p → q", (part,))], seed=0).set_index(["bin", "category"])
    assert set(table.index.get_level_values("category")) == set(CATEGORIES)
    assert table.loc[("B1", "tail discovery"), "value"] == 1 and table.loc[("B2", "ground-truth regression"), "value"] == 1
    assert table.loc[("all", "tail discovery"), "value"] == 0.5
    assert table.loc[("B1", "tail discovery"), "ci_low"] == pytest.approx(0.796, abs=0.001)  # Wilson, 15 of 15
    wider = transition(pair_of(read_policy(tmp_path / "p.parquet"), read_policy(tmp_path / "q.parquet"), "p → q"), 5, 0.05)
    assert "ground-truth regression" not in {CATEGORIES[code] for code in wider.category}  # k = 5 holds every move


def test_moved_mass_sums_to_one_and_quality_counts_labelled_states_alone(tmp_path: Path) -> None:
    before = made_up(STATES, 1, seed=1)
    part = transition_of(tmp_path, before, made_up(STATES, 1, seed=2))
    pooled = [Pooled("p → q", (part,))]
    by_rank, matrix = rank_table(pooled, seed=0), redistribution_table(pooled, seed=0)
    of_all = by_rank[(by_rank["bin"] == "all") & (by_rank["mass"] == "after")]
    assert of_all["value"].sum() == pytest.approx(1) and len(of_all) == RANKS + 1
    np.testing.assert_allclose(matrix.groupby("initial_rank", sort=False)["value"].sum(), of_all["value"])
    lost = np.where(part.legal, np.arange(part.legal.shape[1]) * 0.1, np.nan)
    lost[:40] = np.nan
    table = quality_table(pooled, [[lost]], {"best": 0.0, "near": 0.1, "far": np.inf}, seed=0)
    rows = table[(table["bin"] == "all") & (table["mass"] == "after")].set_index("lost")
    assert set(rows["n_states"]) == {20}
    np.testing.assert_allclose(rows["value"], [part.q[40:, 0].mean(), part.q[40:, 1].mean(), part.q[40:, 2:].sum(1).mean()])


# ---- intervals --------------------------------------------------------------------------------------------------------------------------


def test_every_resample_fits_anew_as_if_by_hand(tmp_path: Path) -> None:
    """alpha*, ExplainedSharp, slope and the tilt of a resample of puzzles: those of the resampled states."""
    part = transition_of(tmp_path, made_up(STATES, 1, seed=1), made_up(STATES, 1, seed=3))
    layout = Layout(part.columns)
    sums = puzzle_sums([np.column_stack(list(part.columns.values()))], [part.puzzle])
    weights = Weights.draw(30, 1, np.random.default_rng(0), resamples=5)
    (drawn,) = weights.sums(sums)
    measured = layout.measure(drawn)
    names = np.unique(part.puzzle)
    for row, counts in enumerate(weights.puzzles):
        rows = np.concatenate([np.flatnonzero(part.puzzle == name) for name, times in zip(names, counts) for _ in range(int(times))])
        p, q, legal, solving = (values[rows] for values in (part.p, part.q, part.legal, part.solving))
        alpha = sharpening.best_power(p, q, legal, per_state=False)
        fitted = sharpening.power_family(p, legal, alpha[0])
        assert measured["alpha*"][row] == pytest.approx(alpha[0], abs=2e-3)
        assert measured["ExplainedSharp"][row] == pytest.approx(sharpening.explained_share(q, p, fitted), abs=1e-3)
        assert measured["residual KL, power"][row] == pytest.approx(sharpening.kl_divergence(q, fitted).mean(), abs=1e-3)
        slope, fit = sharpening.centred_logit_slope(p, q, legal)
        assert (measured["slope"][row], measured["R2"][row]) == pytest.approx((slope, fit))
        tilt = sharpening.best_tilt(p, q, legal, solving, per_state=False)
        assert measured["tilt"][row] == pytest.approx(tilt[0], abs=2e-3)
        tilted = sharpening.tilt_family(p, legal, solving, tilt[0])
        assert measured["residual KL, tilt"][row] == pytest.approx(sharpening.kl_divergence(q, tilted).mean(), abs=1e-3)


def test_quantiles_of_resamples_are_those_of_repeated_values() -> None:
    rng = np.random.default_rng(0)
    values, puzzle = rng.normal(size=40), rng.integers(0, 10, 40)
    weights = Weights.draw(10, 1, rng, resamples=20)
    (found,) = weights.quantiles(values, np.zeros(40, int), puzzle, 0.5)
    for row, counts in enumerate(weights.puzzles):
        repeated = np.sort(np.repeat(values, counts[puzzle].astype(int)))
        assert found[row] == repeated[int(np.ceil(0.5 * len(repeated))) - 1]


def test_seeds_that_differ_widen_the_interval(tmp_path: Path) -> None:
    before = made_up(STATES, 1, seed=1)
    powers = (1.1, 1.5, 1.9)
    parts = [transition_of(tmp_path / str(power), before, sharpened(before, power)) for power in powers]
    pooled = values_of(sharpening_table([Pooled("p → q", tuple(parts))], seed=0))
    one = values_of(sharpening_table([Pooled("p → q", (parts[1],))], seed=0))
    assert one["alpha*"] == pytest.approx((1.5, 1.5, 1.5), abs=1e-4)
    assert 1.1 < pooled["alpha*"][0] < 1.9
    assert pooled["alpha*"][2] - pooled["alpha*"][1] > 0.5  # three seeds from 1.1 to 1.9


# ---- runs -------------------------------------------------------------------------------------------------------------------------------


def seeded_run(root: Path, name: str, parents: dict[str, str], seed: int, policies: list[np.ndarray], step: int = 100) -> Path:
    run = write_run(root, name, parents, seed)
    settings = {"world": {"name": "endgame"}, "algorithm": {"epochs": 1}, name.split("-")[0]: {"seed": seed, "data_seed": seed}}
    (run / "config.yaml").write_text(json.dumps(settings))
    add_policy(run, "aaaa", policies)
    return run


def add_policy(run: Path, key: str, policies: list[np.ndarray]) -> None:
    write_policy(run / "evaluations" / key / "policy.parquet", policies, SOLVING)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of SFT and RL, RL sharpening to 1.3 at step 50 and 1.7 at step 100."""
    root = tmp_path_factory.mktemp("outputs")
    runs = []
    for seed in (0, 1):
        start = made_up(30, 1, seed=10 + seed)
        sft = seeded_run(root, f"sft-{seed}aaaaaaa", {"pretrain": "pretrain-9f9f9f9f"}, seed, start)
        rl = seeded_run(root, f"rl-{seed}bbbbbbb", {"sft": sft.name, "data": "0123456789abcdef"}, seed, sharpened(start, 1.7))
        write_evaluation(rl, "rl", "early", make_samples(0.4, seed), step=50)
        add_policy(rl, "early", sharpened(start, 1.3))
        runs += [sft, rl]
    return runs


def test_runs_that_differ_in_seeds_alone_are_one_experiment_and_steps_follow_their_start(chain: list[Path]) -> None:
    runs = read_runs(chain)
    # fine-tuned from the same pretrained run with two seeds, and RL from each of these with its own
    assert [[run.run_id for run in group] for group in experiments(runs)] == [
        ["sft-0aaaaaaa", "sft-1aaaaaaa"], ["rl-0bbbbbbb", "rl-1bbbbbbb"],
    ]  # fmt: skip
    found = checkpoints(runs, "policy.parquet")
    assert [(item.label, len(item.runs)) for item in found] == [("SFT", 2), ("RL 50", 2), ("RL 100", 2)]
    steps = steps_of(found)
    assert [step.name for step in steps] == ["SFT → RL 50", "SFT → RL 100"]
    assert [run.run_id for run in steps[0].start.runs] == ["sft-0aaaaaaa", "sft-1aaaaaaa"]


@pytest.mark.parametrize(
    ("stage", "section", "apart"),
    [
        ("rl", {"reward": {"accept": "engine", "weights": {"engine": 1.0}}}, True),
        ("rl", {"reward": {"accept": "line", "weights": {"engine_score": 1.0}}}, True),
        ("rl", {"reward": {"accept": "line", "weights": {"line": 1.0}}}, False),  # the engine has no part in it
        ("sft", {"sft": {"trace": {"enabled": True, "order": "engine"}}}, True),
        ("sft", {"sft": {"trace": {"enabled": False, "order": "engine"}}}, False),
    ],
)
def test_runs_by_engines_of_two_depths_are_no_seeds_of_one_experiment(tmp_path: Path, stage: str, section: dict, apart: bool) -> None:
    runs = []
    for seed, engine in enumerate(({"depth": 1, "workers": 2}, {"depth": 4, "workers": 2}, {"depth": 4, "workers": 8})):
        run = write_run(tmp_path, f"{stage}-{seed}aaaaaaa", {}, seed)
        (run / "config.yaml").write_text(json.dumps({"world": {"name": "endgame"}, "engine": engine, **section}))
        runs.append(run)
    found = [[run.run_id[len(stage) + 1] for run in group] for group in experiments(read_runs(runs))]
    assert found == ([["0"], ["1", "2"]] if apart else [["0", "1", "2"]])


def test_the_evaluation_by_the_line_at_temperature_1_is_the_one_compared(chain: list[Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(chain[0], tmp_path / chain[0].name))
    for key, changed in (("zengine", {"verifier": "engine"}), ("zhot", {"temperature": 2.0}), ("zforced", {"protocol": "think-forced"})):
        write_evaluation(run, "sft", key, make_samples(0.3, 1, puzzles=PUZZLES + 10), **changed)
        add_policy(run, key, made_up(30, 1, seed=0))
    (found,) = checkpoints(read_runs([run]), "policy.parquet")
    assert [item.folder.name for item in found.evaluations] == ["aaaa"]


def test_sections_of_seeded_runs_hold_known_powers_and_say_what_is_missing(chain: list[Path]) -> None:
    sections = {section.name: section for section in policy_sections(read_runs(chain), [], AnalysisConfig())}
    table = sections["sharpening"].table.set_index(["transition", "bin", "measure"])["value"]
    assert table["SFT → RL 50", "all", "alpha*"] == pytest.approx(1.3, abs=1e-4)
    assert table["SFT → RL 100", "B1", "alpha*"] == pytest.approx(1.7, abs=1e-4)
    drawn = ("sharpening", "families", "policy_traces", "categories", "mass_by_rank", "redistribution")
    assert all(sections[name].figure is not None for name in drawn)
    assert "Several seeds" in " ".join(sections["sharpening"].notes) and "without traces" in " ".join(sections["policy_traces"].notes)
    assert "chessrl.baselines" in sections["mass_by_quality"].notes[0] and "rl.tabular" in sections["tabular_control"].notes[0]
    assert len(sections["policy_traces"].figure.axes) == 2


def test_a_policy_whose_start_is_not_among_the_runs_is_named(chain: list[Path]) -> None:
    sections = {section.name: section for section in policy_sections(read_runs([chain[0], chain[1], chain[3]]), [], AnalysisConfig())}
    notes = " ".join(sections["sharpening"].notes)
    assert "not in runs=" in notes and "RL 1bbbbb 100" in notes and "RL 0bbbbb 100" not in notes


def test_without_measured_policies_the_section_names_the_command(chain: list[Path], tmp_path: Path) -> None:
    run = write_run(tmp_path, "rl-3c4d5e6f", {}, seed=3)
    (section,) = policy_sections(read_runs([run]), [], AnalysisConfig())
    assert section.table.empty and "evaluate.policy_traces=128" in section.notes[0]


def test_a_table_beside_the_network_is_compared_on_common_first_decisions(chain: list[Path], tmp_path: Path) -> None:
    start = chain[0] / "evaluations" / "aaaa" / "policy.parquet"
    directory = tmp_path / "tabular-0123456789ab"
    write_policy(directory / "policy.parquet", sharpened(made_up(30, 1, seed=10), 2.0)[:20], SOLVING)
    frame = pd.read_parquet(directory / "policy.parquet").drop(columns=["bin", "split", "solution"])
    frame.to_parquet(directory / "policy.parquet")
    (directory / "config.yaml").write_text(json.dumps({"parent": "", "tabular": {"policy": str(start)}}))
    sections = {section.name: section for section in policy_sections(read_runs(chain[:2]), [directory], AnalysisConfig())}
    table = sections["tabular_control"].table
    values = table[table["measure"] == "alpha*"].set_index(["transition", "bin"])["value"]
    assert values["tabular-012345: table", "all"] == pytest.approx(2.0, abs=1e-4)
    assert values["tabular-012345: RL", "B2"] == pytest.approx(1.7, abs=1e-4)
    assert set(table[table["bin"] == "all"]["n_states"]) == {20}
