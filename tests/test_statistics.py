"""pass@k, intervals and tables against exact fractions, closed forms and simulated coverage."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
import pytest

from chessrl.errors import UserError
from chessrl.statistics import (
    COMPARISON_COLUMNS,
    FAILURES,
    PASSK_COLUMNS,
    RATES_COLUMNS,
    bootstrap_means,
    comparison_table,
    nested_bounds,
    nested_differences,
    nested_means,
    paired_differences,
    pass_at_k,
    passk_table,
    rates_table,
    wilson_interval,
)

LABELS = {
    "run": "sft-1a2b3c", "stage": "sft", "step": 100, "split": "test", "protocol": "think", "spelling": "lenient", "verifier": "line",
    "temperature": 1.0, "thinking_budget": 128, "seed": 1000,
}  # fmt: skip


def table_of(solved: np.ndarray, bins: list[str] | None = None) -> pd.DataFrame:
    """A samples table from solved (puzzles, samples) bool; every second solved sample is misspelt."""
    puzzles, samples = solved.shape
    flat = solved.ravel()
    frame = {
        "puzzle": np.repeat([f"p{number:03d}" for number in range(puzzles)], samples),
        "bin": np.repeat(bins or ["B1"] * puzzles, samples),
        "sample": np.tile(np.arange(samples), puzzles),
        "solved": flat,
        "solved_strict": flat & (np.cumsum(flat) % 2 == 0),
        "legal": flat,
        "format": True,
        "truncated": False,
        "failure": np.where(flat, "", "wrong"),
        "tokens": np.arange(flat.size) % 7 + 1,
        "trace_length": 5,
        "answer_length": 2,
        "logprob": -1.5,
        "entropy": 0.25,
    }
    return pd.DataFrame(frame)


def column(values: object) -> np.ndarray:
    """(puzzles,) values as the (puzzles, 1) matrix that the intervals take."""
    return np.asarray(values, dtype=float)[:, None]


def random_solved(puzzles: int, samples: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.random((puzzles, samples)) < rng.random((puzzles, 1))


def test_pass_at_k_equals_published_values() -> None:
    assert pass_at_k(256, 3, 16) == pytest.approx(0.1766732283, abs=1e-10)
    assert pass_at_k(10, 3, 5) == pytest.approx(0.9166666667, abs=1e-10)


def test_pass_at_k_equals_exact_fractions() -> None:
    for n in (1, 2, 7, 16):
        for k in range(1, n + 1):
            exact = [float(1 - Fraction(comb(n - c, k), comb(n, k))) for c in range(n + 1)]
            assert pass_at_k(n, np.arange(n + 1), k) == pytest.approx(exact, abs=1e-14)


def test_pass_at_k_is_the_mean_over_all_subsets_not_the_first_k_samples() -> None:
    solved = [True, False, False, True, False, False]
    subsets = [any(chosen) for chosen in combinations(solved, 3)]
    assert pass_at_k(6, 2, 3) == pytest.approx(np.mean(subsets))


def test_pass_at_k_stays_exact_where_binomials_overflow() -> None:
    for n, c, k in ((10_000, 3, 500), (200_000, 2, 5_000)):
        assert pass_at_k(n, c, k) == pytest.approx(float(1 - Fraction(comb(n - c, k), comb(n, k))), rel=1e-11)


def test_pass_at_k_of_nothing_solved_is_zero_and_of_everything_one() -> None:
    assert pass_at_k(np.array([16, 16]), np.array([0, 16]), 16).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("n", "c", "k"), [(4, 0, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_more_draws_than_samples_and_impossible_counts(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(np.array([n, 64]), np.array([c, 1]), k)


def test_wilson_interval_equals_published_values() -> None:
    # Newcombe 1998 (Statistics in Medicine 17:857), table I: 81/263, 15/148, 0/20, 1/29.
    for successes, trials, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)):
        assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson_interval(20, 20)[1] == 1.0


def test_bootstrap_is_decided_by_its_generator_alone() -> None:
    values = np.random.default_rng(0).random(50)
    np.random.seed(1)
    (first,) = bootstrap_means(column(values), np.random.default_rng(7))
    np.random.seed(2)
    assert bootstrap_means(column(values), np.random.default_rng(7)) == [first]
    assert bootstrap_means(column(values), np.random.default_rng(8)) != [first]


def test_bootstrap_interval_has_the_width_of_the_normal_limit() -> None:
    values = np.random.default_rng(0).random(400)
    ((point, low, high),) = bootstrap_means(column(values), np.random.default_rng(1))
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert point == pytest.approx(values.mean())
    assert (point - low, high - point) == pytest.approx((half, half), rel=0.1)


def test_bootstrap_over_chunks_uses_every_puzzle(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((30, 2))
    whole = bootstrap_means(values, np.random.default_rng(3))
    monkeypatch.setattr("chessrl.statistics.CHUNK_ELEMENTS", 100)
    assert np.array(bootstrap_means(values, np.random.default_rng(3))) == pytest.approx(np.array(whole), abs=1e-12)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """300 benchmarks of 60 puzzles: 95 % intervals miss 15 on average; more than 33 or fewer than 3 has probability below 1e-4."""
    rng = np.random.default_rng(0)
    misses = 0
    for _ in range(300):
        ((_, low, high),) = bootstrap_means(column(rng.binomial(8, rng.beta(1, 2, 60)) / 8), rng, resamples=400)
        misses += not low <= 1 / 3 <= high
    assert 3 <= misses <= 33


def test_degenerate_values_get_a_wilson_interval_not_width_zero() -> None:
    rng = np.random.default_rng(0)
    assert bootstrap_means(np.zeros((200, 1)), rng) == [(0.0, *wilson_interval(0, 200))]
    assert bootstrap_means(np.ones((200, 1)), rng) == [(1.0, *wilson_interval(200, 200))]
    assert bootstrap_means(column([0, 1, 1]), rng)[0][1:] == wilson_interval(2, 3)
    assert np.isnan(bootstrap_means(np.full((200, 1), 27.0), rng, shares=False)[0][1:]).all()


@pytest.mark.parametrize("values", [np.array([]), np.array([0.5, np.nan]), np.array([0.5, 1.5])])
def test_intervals_refuse_missing_values_and_values_that_are_no_shares(values: np.ndarray) -> None:
    with pytest.raises(ValueError):
        bootstrap_means(column(values), np.random.default_rng(0))


def test_pairing_narrows_the_interval_of_a_difference() -> None:
    rng = np.random.default_rng(0)
    a = rng.random(300) * 0.9
    b = a + 0.05 + rng.normal(0, 0.005, 300).clip(-0.05, 0.05)
    ((difference, low, high),) = paired_differences(column(a), column(b), np.random.default_rng(1))
    assert difference == pytest.approx((b - a).mean())
    assert 0.045 < low < difference < high < 0.055


def test_paired_difference_is_antisymmetric() -> None:
    a, b = random_solved(80, 4, 1).mean(axis=1), random_solved(80, 4, 2).mean(axis=1)
    ((difference, low, high),) = paired_differences(column(a), column(b), np.random.default_rng(5))
    (swapped,) = paired_differences(column(b), column(a), np.random.default_rng(5))
    assert swapped == pytest.approx((-difference, -high, -low))


def test_paired_difference_of_equal_columns_keeps_a_width() -> None:
    rng = np.random.default_rng(0)
    for values in (np.zeros(100), np.arange(100) < 50):
        ((difference, low, high),) = paired_differences(column(values), column(values), rng)
        assert difference == 0 and low < 0 < high
    assert paired_differences(np.zeros((100, 1)), np.ones((100, 1)), rng)[0][1] < 1


def test_paired_difference_of_few_puzzles_equals_newcombe() -> None:
    """Two of six puzzles gained, none lost. By hand: p_a = 2/6 with Wilson limits .0968 and .7000, p_b = 4/6 with .3000 and .9032,
    covariance 1/9 less the continuity correction 1/12 over standard deviations sqrt(2/9) each: correlation 1/8."""
    a, b = np.array([1, 1, 0, 0, 0, 0.0]), np.array([1, 1, 1, 1, 0, 0.0])
    below, above, correlation = 2 / 3 - 0.3000, 0.7000 - 1 / 3, 1 / 8
    low = 1 / 3 - np.sqrt(below**2 - 2 * correlation * below * above + above**2)
    assert paired_differences(column(a), column(b), np.random.default_rng(0))[0][:2] == pytest.approx((1 / 3, low), abs=1e-4)


def test_passk_table_has_the_contract_columns_and_means_over_puzzles() -> None:
    solved = random_solved(40, 8, 0)
    bins = ["B1", "B2"] * 20
    table = passk_table(table_of(solved, bins), (1, 4, 8), LABELS, seed=0)
    assert tuple(table.columns) == PASSK_COLUMNS
    assert list(table["bin"]) == ["all"] * 3 + ["B1"] * 3 + ["B2"] * 3
    for name, rows in (("all", solved), ("B1", solved[::2]), ("B2", solved[1::2])):
        cell = table[(table["bin"] == name) & (table["k"] == 4)].iloc[0]
        assert cell["pass_at_k"] == pytest.approx(np.mean([1 - comb(8 - c, 4) / comb(8, 4) for c in rows.sum(axis=1)]))
        assert (cell["n_puzzles"], cell["n_samples"]) == (len(rows), 8)
        assert cell["ci_low"] < cell["pass_at_k"] < cell["ci_high"]
    assert table.equals(passk_table(table_of(solved, bins), (1, 4, 8), LABELS, seed=0))


def test_passk_table_does_not_depend_on_row_order() -> None:
    samples = table_of(random_solved(30, 4, 0))
    shuffled = samples.sample(frac=1, random_state=0)
    assert passk_table(samples, (1, 4), LABELS, seed=0).equals(passk_table(shuffled, (1, 4), LABELS, seed=0))


def test_strict_spelling_counts_strict_outcomes() -> None:
    samples = table_of(random_solved(30, 4, 0))
    strict = passk_table(samples, (1,), LABELS | {"spelling": "strict"}, seed=0)
    assert strict["pass_at_k"].iloc[0] == pytest.approx(samples["solved_strict"].mean())


def test_passk_table_refuses_incomplete_evaluations() -> None:
    samples = table_of(random_solved(12, 4, 0))
    with pytest.raises(UserError, match="pass@8 needs 8 samples per puzzle, puzzle p000 has 4"):
        passk_table(samples, (1, 8), LABELS, seed=0)
    with pytest.raises(UserError, match="from 3 to 4 samples each"):
        passk_table(samples.iloc[1:], (1,), LABELS, seed=0)
    with pytest.raises(UserError, match="puzzle p000 has sample 0 twice"):
        passk_table(pd.concat([samples, samples.iloc[:1]]), (1,), LABELS, seed=0)
    with pytest.raises(UserError, match="columns solved are missing"):
        passk_table(samples.drop(columns="solved"), (1,), LABELS, seed=0)


def test_rates_table_averages_puzzles_and_partitions_failures() -> None:
    solved = random_solved(40, 8, 0)
    samples = table_of(solved, ["B1", "B2"] * 20)
    table = rates_table(samples, LABELS, seed=0)
    assert tuple(table.columns) == RATES_COLUMNS
    of_all = table[table["bin"] == "all"].set_index("metric")
    assert of_all.loc["legal", "value"] == pytest.approx(solved.mean())
    assert of_all.loc["tokens", "value"] == pytest.approx(samples["tokens"].mean())
    outcomes = ["solved", *(f"failure/{reason}" for reason in FAILURES)]
    assert of_all.loc[outcomes, "value"].sum() == pytest.approx(1)
    assert of_all.loc["format", "ci_high"] == 1 and of_all.loc["format", "ci_low"] == pytest.approx(wilson_interval(40, 40)[0])
    with pytest.raises(UserError, match="failure 'timeout' is unknown"):
        rates_table(samples.assign(failure="timeout"), LABELS, seed=0)


def test_comparison_table_is_b_minus_a_on_the_same_puzzles() -> None:
    a, b = random_solved(40, 8, 0), random_solved(40, 16, 1)
    table = comparison_table(table_of(a), table_of(b), "SFT", "RL", (1, 8), seed=0)
    assert tuple(table.columns) == COMPARISON_COLUMNS
    row = table[(table["bin"] == "all") & (table["k"] == 1)].iloc[0]
    assert row["difference"] == pytest.approx(b.mean() - a.mean())
    assert (row["a"], row["b"]) == ("SFT", "RL")


def test_comparison_on_unequal_puzzles_names_the_counts_of_both_sides() -> None:
    samples = table_of(random_solved(10, 2, 0))
    first, second = samples[samples["puzzle"] > "p002"], samples[samples["puzzle"] < "p009"]
    with pytest.raises(UserError, match="3 puzzles are missing in SFT and 1 in RL"):
        comparison_table(first, second, "SFT", "RL", (1,), seed=0)
    with pytest.raises(UserError, match="puzzle p000 is in different bins"):
        comparison_table(samples, samples.assign(bin="B2"), "SFT", "RL", (1,), seed=0)


def test_nested_intervals_see_the_spread_of_seeds():
    rng = np.random.default_rng(0)
    level = np.array([0.2, 0.5, 0.8])[:, None, None]
    values = (rng.random((3, 400, 1)) < level).astype(float)
    point, low, high = nested_means(values, np.random.default_rng(1))[0]
    assert point == pytest.approx(values.mean())
    assert low == pytest.approx(values[0].mean(), abs=0.1) and high == pytest.approx(values[2].mean(), abs=0.1)  # three equal draws of one seed
    alone = nested_means(values[:1], np.random.default_rng(1))[0]
    assert alone == bootstrap_means(values[0], np.random.default_rng(1))[0]


def test_nested_differences_cancel_what_the_runs_of_a_seed_share():
    rng = np.random.default_rng(0)
    shared = np.array([0.1, 0.4, 0.7])[:, None, None] + 0.2 * rng.random((1, 300, 1))
    point, low, high = nested_differences(shared, shared + 0.05 + 0.02 * rng.random((3, 300, 1)), np.random.default_rng(1))[0]
    assert point == pytest.approx(0.06, abs=0.002) and 0.05 < low < high < 0.07


def test_nested_bounds_equal_the_law_of_total_variance():
    """Seed means of variance v and independent puzzles: the bootstrap's spread is that of seeds and puzzles drawn alike."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(8, 1, 1)) * 0.05 + rng.normal(size=(1, 500, 1)) * 0.3
    low, high = nested_bounds(values, np.random.default_rng(1), resamples=4000)
    spread = np.sqrt(values.mean(1).var() / 8 + values.mean(0).var() / 500)
    assert (high - low)[0] == pytest.approx(2 * 1.96 * spread, rel=0.06)
