"""Tables of the report on pass@k against fractions worked by hand, planted orders and each other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import passk_tables
from analysis.chains import Checkpoint, checkpoints
from analysis.passk_data import Success, exact_success, majority, sampled_success
from analysis.passk_sections import passk_sections
from analysis.read import read_runs
from chessrl.config import AnalysisConfig
from chessrl.errors import UserError
from chessrl.statistics import EXACT_KS
from tests.test_analysis import KS, PUZZLES, SAMPLES, make_samples, write_evaluation, write_run

NAMES = np.array([f"p{number:04d}" for number in range(PUZZLES)])
BINS = np.array([f"B{number % 5 + 1}" for number in range(PUZZLES)])


def made(label: str, p: np.ndarray, samples: int = 0) -> Success:
    kind = "sampled, lenient" if samples else "exact"
    return Success(Checkpoint(label, "rl", 1, (), ()), kind, NAMES, BINS, np.atleast_2d(p), samples)


def facts(uniform: np.ndarray, **columns: object) -> pd.DataFrame:
    table = {"puzzle": NAMES, "bin": BINS, "decisions": 1 + np.arange(PUZZLES) % 2, "themes": "mate short", "uniform": uniform}
    return pd.DataFrame(table | columns).set_index("puzzle")


def write_facts(outputs: Path, table: pd.DataFrame) -> None:
    (outputs / "data").mkdir(exist_ok=True)
    table.reset_index().to_parquet(outputs / "data" / "baselines-test-0123.parquet")


def write_exact(run: Path, key: str, p: np.ndarray) -> None:
    frame = pd.DataFrame({"puzzle": NAMES, "split": "test", "bin": BINS, "decisions": 1, "p": p})
    frame.sample(frac=1, random_state=1).to_parquet(run / "evaluations" / key / "exact.parquet")  # order must not matter


# ---- data -------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """SFT solves every puzzle with p = 0.05; RL a third of them with 0.9 and no other. RL was also evaluated at temperature 2."""
    root = tmp_path_factory.mktemp("outputs")
    sft = write_run(root, "sft-2b3c4d5e", {}, seed=2)
    rl = write_run(root, "rl-3c4d5e6f", {"sft": sft.name}, seed=3)
    write_exact(sft, "aaaa", np.full(PUZZLES, 0.05))
    write_exact(rl, "aaaa", np.where(np.arange(PUZZLES) % 3 == 0, 0.9, 0.0))
    warm = make_samples(0.4, 6).assign(answer="K e1 e2")
    write_evaluation(rl, "rl", "warm", warm, temperature=2.0)
    write_exact(rl, "warm", np.where(np.arange(PUZZLES) % 3 < 2, 0.1, 0.0))
    write_facts(root, facts(np.full(PUZZLES, 0.02), stockfish_10=(np.arange(PUZZLES) % 2).astype(float)))
    return [sft, rl]


def test_sections_state_what_was_planted(runs: list[Path]) -> None:
    sections = {section.name: section for section in passk_sections(read_runs(runs), AnalysisConfig(ks=[16, 256]))}
    reach = sections["reach"].table.set_index(["policy", "kind", "bin", "k"])["pass_at_k"]
    assert reach["SFT", "exact", "all", 1] == pytest.approx(0.05) and reach["SFT", "exact", "all", 16] == pytest.approx(1 - 0.95**16)
    assert reach["RL 100", "exact", "all", 10**6] == pytest.approx(1 / 3)
    assert reach[passk_tables.UNIFORM, "exact", "B1", 4] == pytest.approx(1 - 0.98**4)
    assert reach["Stockfish, 10 nodes", "played", "all", 1] == 0.5
    assert reach["SFT", "sampled, lenient", "all", 1] == pytest.approx(make_samples(0.35, 2)["solved"].mean())
    crossing = sections["crossover"].table.set_index(["kind", "bin"]).loc[("exact", "all")]
    assert crossing["crossover_k"] == 8  # 1 - 0.95^8 = 0.337 passes a third; 1 - 0.95^4 = 0.185 does not
    assert crossing["delta_se"] == pytest.approx((1 - 0.95**256) - 0.3)
    cells = sections["coverage"].table.set_index(["k", "bin", "cell"])["share"]
    assert cells[16, "all", "base only"] == pytest.approx((1 - 0.95**16) * 2 / 3, abs=1e-12)
    newly = sections["newly_solved"].table.set_index(["k", "measure"])["value"]
    assert newly[16, "unsolved"] == pytest.approx(0.95**16) and newly[16, "null"] == pytest.approx(1 - 0.95**16)
    assert newly[16, "newly solved"] == pytest.approx(1 / 3) and newly[16, "excess"] == pytest.approx(1 / 3 - 1 + 0.95**16)
    temperature = sections["temperature"].table.set_index(["temperature", "k"])
    assert temperature.loc[(1.0, 1), "best"] and temperature.loc[(2.0, 64), "best"] and temperature.loc[(2.0, 64), "best_share"] == 1
    assert "best temperature 1 at k = 1, 2 at k = 1,000,000" in sections["temperature"].notes[0]
    floor = sections["floor"].table.set_index(["policy", "bin", "k"])["excess"]
    assert floor["SFT", "all", 1] == pytest.approx(0.03 / 0.98)
    assert set(sections["themes"].table["group"]) == {"mate", "short"} and set(sections["line_length"].table["group"]) == {"1 move", "2 moves"}
    drawn = ("reach", "crossover", "coverage", "newly_solved", "themes", "line_length", "temperature", "budgets", "floor")
    assert all(sections[name].figure is not None for name in drawn)


def test_what_was_not_made_is_named_with_its_command(runs: list[Path], tmp_path: Path) -> None:
    run = write_run(tmp_path, "sft-2b3c4d5e", {}, seed=2)
    for path in run.glob("evaluations/*/samples.parquet"):  # as before answers were kept
        pd.read_parquet(path).drop(columns="answer").to_parquet(path)
    sections = {section.name: section for section in passk_sections(read_runs([run]), AnalysisConfig())}
    wanted = {
        "reach": "evaluate.exact=true", "crossover": "evaluate.exact=true", "coverage": "evaluate.exact=true", "newly_solved": "RL run",
        "majority": "chessrl.evaluate", "themes": "chessrl.baselines", "line_length": "chessrl.baselines", "temperature": "evaluate.temperature=0.3",
        "floor": "chessrl.baselines", "plies": "evaluate.games=200",
    }  # fmt: skip
    for name, command in wanted.items():
        assert command in " ".join(sections[name].notes), name


def test_exact_and_counted_success_line_up_by_puzzle(runs: list[Path]) -> None:
    read = read_runs(runs)
    (sft, rl) = checkpoints(read, "exact.parquet")
    p = exact_success(rl)
    assert p.puzzles.tolist() == NAMES.tolist() and p.values[0, :4].tolist() == [0.9, 0, 0, 0.9] and p.ks() == list(EXACT_KS)
    counts = sampled_success(sft, strict=True)
    expected = make_samples(0.35, 2).groupby("puzzle")["solved_strict"].sum()
    assert counts.values[0].tolist() == expected.tolist() and counts.samples == SAMPLES and counts.ks() == list(KS)


def test_seeds_on_different_puzzles_are_refused(runs: list[Path]) -> None:
    (run,) = read_runs(runs[:1])
    (evaluation,) = run.evaluations
    checkpoint = Checkpoint("SFT", "sft", 0, (run, run), (evaluation, evaluation))
    assert exact_success(checkpoint).values.shape == (2, PUZZLES)
    table = evaluation.exact()
    tables = iter([table, table.iloc[1:]])
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="different puzzles"):
        patch.setattr("analysis.passk_data._known", lambda _: next(tables))
        exact_success(checkpoint)


# ---- tables -----------------------------------------------------------------------------------------------------------------------------


def test_votes_do_not_tell_spellings_apart_unless_spelling_counts(runs: list[Path], tmp_path: Path) -> None:
    """Three samples of one move in three spellings beat two of another."""
    rows = make_samples(0.5, 1, puzzles=10)
    rows = rows[rows["sample"] < 5].reset_index(drop=True)
    texts = ["Q d1 x h5 +", "Q d1 h5", "B d1 x h5", "K e1 e2 / R a1 a8 #", "K e1 e2 / R a1 a8 #"]
    rows["answer"] = [texts[sample] for sample in rows["sample"]]
    rows["solved"] = rows["sample"] < 3
    run = write_run(tmp_path, "sft-2b3c4d5e", {}, seed=2)
    for spelling in ("lenient", "strict"):
        write_evaluation(run, "sft", spelling, rows, ks=(1,), spelling=spelling)
    by_spelling = {item.labels["spelling"]: item for item in read_runs([run])[0].evaluations if item.n_puzzles == 10}
    lenient, strict = (majority(by_spelling[name], [5], np.random.default_rng(0)) for name in ("lenient", "strict"))
    assert (lenient == 1).all() and (strict == 0).all()


def test_budgets_buy_whole_samples_at_each_policys_own_price() -> None:
    cheap, dear = made("cheap", np.full(PUZZLES, 0.1)), made("dear", np.full(PUZZLES, 0.1))
    table = passk_tables.budget_table([cheap, dear], {"cheap": 10.0, "dear": 40.0}, {"cheap": 1e6, "dear": 2e6}, seed=0)
    tokens = table[table["unit"] == "tokens"].set_index(["policy", "budget"])
    assert tokens.loc[("cheap", 64.0), "k"] == 6 and tokens.loc[("dear", 64.0), "k"] == 1 and ("dear", 32.0) not in tokens.index
    assert tokens.loc[("cheap", 64.0), "pass_at_k"] == pytest.approx(1 - 0.9**6)
    flops = table[table["unit"] == "FLOPs"].set_index(["policy", "budget"])
    assert flops.loc[("cheap", 2e6 * 128), "k"] == 12 and flops.loc[("dear", 2e6 * 128), "k"] == 1


def test_uniform_play_is_not_beyond_itself() -> None:
    uniform = np.linspace(0.01, 0.3, PUZZLES)
    table = passk_tables.floor_table([made("uniform", uniform), made("perfect", np.ones(PUZZLES))], facts(uniform), seed=0)
    assert np.allclose(table[table["policy"] == "uniform"]["excess"], 0, atol=1e-12)
    assert np.allclose(table[table["policy"] == "perfect"]["excess"], 1)


def test_newly_solved_of_few_samples_uses_half_of_them_for_the_null() -> None:
    counts = np.arange(PUZZLES) % 5
    table = passk_tables.newly_solved_table([(made("base", counts, samples=8), made("RL", counts, samples=8))], [16, 256], seed=0)
    assert set(table["k"]) == {4}
    rows = table.set_index("measure")["value"]
    fails = [np.prod([(8 - c - drawn) / (8 - drawn) for drawn in range(4)]) for c in counts]
    twice = [float(c == 0) for c in counts]
    assert rows["null"] == pytest.approx((np.sum(fails) - np.sum(twice)) / np.sum(fails))


# ---- seeds ------------------------------------------------------------------------------------------------------------------------------


def seeded(root: Path, name: str, parents: dict[str, str], seed: int, p: float) -> Path:
    """A run of one puzzle set that it solves with probability p."""
    run = write_run(root, name, parents, seed)
    settings = {"world": {"name": "endgame"}, name.split("-")[0]: {"seed": seed}}
    (run / "config.yaml").write_text(json.dumps(settings))
    write_exact(run, "aaaa", np.full(PUZZLES, p))
    return run


def test_seeds_stand_beside_the_seeds_that_they_began_from(tmp_path: Path) -> None:
    """RL that changed nothing, its seeds in the other order than those of SFT, and these than those of pretraining."""
    pretrained = [seeded(tmp_path, f"pretrain-{seed}aaaaaaa", {}, seed, p) for seed, p in enumerate((0.9, 0.1))]
    tuned = [seeded(tmp_path, f"sft-{seed}bbbbbbb", {"pretrain": pretrained[1 - seed].name}, seed, (0.1, 0.9)[seed]) for seed in (0, 1)]
    trained = [seeded(tmp_path, f"rl-{seed}ccccccc", {"sft": tuned[1 - seed].name}, seed, (0.9, 0.1)[seed]) for seed in (0, 1)]
    sections = {section.name: section for section in passk_sections(read_runs([*pretrained, *tuned, *trained]), AnalysisConfig(ks=[1]))}
    table = sections["coverage"].table
    exact = table[(table["bin"] == "all") & (table["k"] == 1)].set_index(["pair", "cell"])["share"]
    shares = {"both": 0.41, "base only": 0.09, "RL only": 0.09, "neither": 0.41}  # (0.01 + 0.81) / 2 and 0.9 x 0.1
    for base in ("SFT", "Pretrained"):
        for cell, share in shares.items():
            assert exact[f"RL 100 against {base}", cell] == pytest.approx(share), (base, cell)


def test_two_seeds_of_rl_from_each_of_two_starts_are_four_pairs(tmp_path: Path) -> None:
    tuned = [seeded(tmp_path, f"sft-{seed}bbbbbbb", {}, seed, (0.2, 0.4)[seed]) for seed in (0, 1)]
    trained = [seeded(tmp_path, f"rl-{seed}ccccccc", {"sft": tuned[seed // 2].name}, seed, 0.5) for seed in range(4)]
    sections = {section.name: section for section in passk_sections(read_runs([*tuned, *trained]), AnalysisConfig(ks=[1]))}
    newly = sections["newly_solved"].table.set_index(["k", "measure"])["value"]
    assert newly[1, "unsolved"] == pytest.approx(0.7) and newly[1, "newly solved"] == pytest.approx(0.5)
    cells = sections["coverage"].table.set_index(["bin", "cell"])["share"]
    assert cells["all", "both"] == pytest.approx(0.15)
    assert set(sections["crossover"].table["seeds"]) == {4}
