"""Difficulty tiers, their migration, the re-sampling null, and the curriculum made of them, against hand-worked and simulated cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from chessrl.config import CurriculumConfig, RlConfig
from chessrl.endgame import PACK, PUZZLES_FILE
from chessrl.errors import UserError
from chessrl.puzzles import load_puzzles
from chessrl.run import identity_of
from chessrl.tiers import (
    TIERS,
    boundary_puzzles,
    expanded,
    log_uniform_null,
    main,
    migration_table,
    newly_solved_by_samples,
    newly_solved_exactly,
    read_measured,
    tier_counts,
    tiers_of_probabilities,
    tiers_of_samples,
)
from rl.curriculum import curriculum_of, identified
from rl.scoring import Scorer
from tests import tiny


def samples_of(first_success: dict[str, int], samples: int = 256) -> pd.DataFrame:
    """Outcomes in which each puzzle is solved by its k*-th sample (0: by none) and every second one after it."""
    rows = []
    for puzzle, first in first_success.items():
        for sample in range(samples):
            rows.append({"puzzle": puzzle, "sample": sample, "solved": bool(first) and sample + 1 >= first and (sample + 1 - first) % 2 == 0})
    return pd.DataFrame(rows).sample(frac=1, random_state=0)


EDGES = {"a": 1, "b": 2, "c": 8, "d": 9, "e": 32, "f": 33, "g": 256, "h": 0}


def evaluation(folder, first_success, samples=256):
    folder.mkdir()
    samples_of(first_success, samples).to_parquet(folder / "samples.parquet")
    return folder


# ---- tiers ------------------------------------------------------------------------------------------------------------------------------


def test_tiers_by_first_success_at_every_edge():
    table = tiers_of_samples(samples_of(EDGES)).set_index("puzzle")
    assert table["first_success"].to_dict() == EDGES
    assert table["tier"].tolist() == ["easy", "medium", "medium", "hard", "hard", "frontier", "frontier", "beyond"]
    assert table.at["a", "pass_rate"] == 0.5 and table.at["g", "pass_rate"] == 1 / 256 and table.at["h", "pass_rate"] == 0


def test_only_the_first_256_samples_count():
    samples = pd.concat([samples_of({"a": 0}), pd.DataFrame({"puzzle": ["a"], "sample": [256], "solved": [True]})])
    assert tiers_of_samples(samples)["tier"].tolist() == ["beyond"]


def test_tiers_by_probability_at_every_edge():
    below = np.nextafter([1 / 2, 1 / 8, 1 / 32, 1 / 256], 0)
    assert tiers_of_probabilities(np.array([1, 1 / 2, 1 / 8, 1 / 32, 1 / 256])).tolist() == ["easy", "easy", "medium", "hard", "frontier"]
    assert tiers_of_probabilities(below).tolist() == ["medium", "hard", "frontier", "beyond"]
    assert tiers_of_probabilities(np.array([0.0])).tolist() == ["beyond"]


def test_too_few_samples_are_refused():
    with pytest.raises(UserError, match=r"tiers need 256 samples of every puzzle and puzzle b has 16: evaluate with evaluate\.samples=256"):
        tiers_of_samples(pd.concat([samples_of({"a": 1}), samples_of({"b": 1}, samples=16)]))
    with pytest.raises(UserError, match="column solved is missing"):
        tiers_of_samples(samples_of({"a": 1}).drop(columns="solved"))


def test_migration_counts_every_puzzle_once():
    before = pd.Series({"a": "easy", "b": "beyond", "c": "beyond", "d": "frontier"})
    after = pd.Series({"d": "hard", "c": "frontier", "b": "beyond", "a": "easy"})
    table = migration_table(before, after)
    assert list(table.index) == list(table.columns) == list(TIERS)
    assert table.to_numpy().sum() == 4
    assert table.at["beyond", "frontier"] == table.at["beyond", "beyond"] == table.at["frontier", "hard"] == table.at["easy", "easy"] == 1
    with pytest.raises(UserError, match="expected the same puzzles"):
        migration_table(before, after.drop("a"))


def test_boundary_puzzles_lie_on_both_sides_of_the_cut():
    table = tiers_of_samples(samples_of(EDGES | {"i": 0}))
    assert boundary_puzzles(table, 1) == ["g", "h"]
    p = np.array([0.9, 0.02, 0.005, 0.0035, 0.001])
    exact = pd.DataFrame({"puzzle": list("abcde"), "pass_rate": p, "first_success": 0, "tier": tiers_of_probabilities(p)})
    assert boundary_puzzles(exact, 1) == ["c", "d"] and boundary_puzzles(exact, 9) == ["c", "b", "d", "e"]


# ---- the null ---------------------------------------------------------------------------------------------------------------------------


def test_null_under_a_log_uniform_success():
    assert [round(100 * log_uniform_null(lowest), 1) for lowest in (1e-6, 1e-5, 1e-4)] == [9.0, 12.8, 21.4]


def test_the_null_of_exact_probabilities_equals_a_simulation():
    p = np.exp(np.random.default_rng(0).uniform(np.log(1e-5), 0, 4000))
    generator = np.random.default_rng(1)
    counts = [generator.binomial(256, p) == 0 for _ in range(2)]
    better = np.minimum(3 * p, 1.0)
    found, solved = newly_solved_exactly(p, better), generator.binomial(256, better) > 0
    assert counts[0].sum() == pytest.approx(found.unsolved, rel=0.05)
    assert (counts[0] & ~counts[1]).sum() == pytest.approx(found.null, rel=0.1)
    assert (counts[0] & solved).sum() == pytest.approx(found.solved, rel=0.1)
    assert found.null_share == pytest.approx(log_uniform_null(1e-5), abs=0.01)


def test_newly_solved_beside_the_base_sampled_again():
    base = tiers_of_samples(samples_of({"a": 1, "b": 0, "c": 0, "d": 0, "e": 0}))
    later = tiers_of_samples(samples_of({"a": 0, "b": 3, "c": 0, "d": 200, "e": 9}))
    fresh = tiers_of_samples(samples_of({"a": 1, "b": 250, "c": 0, "d": 0, "e": 0}))
    found = newly_solved_by_samples(base, later, fresh)
    assert (found.unsolved, found.solved, found.null, found.share, found.null_share) == (4, 3, 1.0, 0.75, 0.25)
    with pytest.raises(UserError, match="expected the same puzzles"):
        newly_solved_by_samples(base, later, fresh[fresh["puzzle"] != "a"])


def test_expansion_needs_to_cross_the_threshold():
    assert expanded(np.array([0.0, 1 / 257, 1 / 256, 0.5]), np.array([1 / 257, 1 / 256, 0.9, 0.001])) == 1


# ---- files ------------------------------------------------------------------------------------------------------------------------------


def test_exact_probabilities_from_either_kind_of_file(tmp_path):
    table = pd.DataFrame({"puzzle": ["00008", "1e100"], "p": [0.5, 0.001]})
    table.to_csv(tmp_path / "p.csv", index=False)
    table.to_parquet(tmp_path / "p.parquet")
    for name in ("p.csv", "p.parquet"):
        read = read_measured(tmp_path / name)
        assert read["puzzle"].tolist() == ["00008", "1e100"] and read["tier"].tolist() == ["easy", "beyond"]


def test_rounding_above_one_is_taken_as_one(tmp_path):
    """Sums of fp32 probabilities come out above 1 by more than 1e-9."""
    pd.DataFrame({"puzzle": ["a", "b"], "p": [1 + 4e-7, 0.5]}).to_parquet(tmp_path / "p.parquet")
    assert read_measured(tmp_path / "p.parquet")["pass_rate"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("puzzle,p\na,1.00001\n", "row 1: p=1.00001: expected a probability"),
        ("puzzle,q\na,1\n", "column p is missing"),
        ("puzzle,p\na,0.5\nb,1.5\n", "row 2: p=1.5: expected a probability"),
        ("puzzle,p\na,\n", "row 1: p=: expected a probability"),
        ("puzzle,p\na,0.5\na,0.5\n", "puzzle a is given more than once"),
    ],
)
def test_a_wrong_table_is_named(tmp_path, text, message):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_measured(tmp_path / "p.csv")


def test_the_command_prints_tiers_migration_and_the_null(tmp_path, capsys):
    folders = [
        evaluation(tmp_path / name, first)
        for name, first in (("base", {"a": 1, "b": 0, "c": 0}), ("later", {"a": 1, "b": 40, "c": 0}), ("fresh", {"a": 2, "b": 0, "c": 0}))
    ]
    main([f"before={folders[0]}", f"after={folders[1]}", f"fresh={folders[2]}"])
    printed = capsys.readouterr().out
    assert "tiers: easy 1, medium 0, hard 0, frontier 0, beyond 2" in printed
    assert "newly solved: 1 of 2 (50.0%); by the start policy's fresh samples 0 (0.0%)" in printed
    main([f"before={folders[0]}", f"after={folders[1]}"])
    assert "without its null the number says nothing" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"fresh=.*give that policy's evaluation as after="):
        main([f"before={folders[0]}", f"fresh={folders[2]}"])
    pd.DataFrame({"puzzle": ["a", "b"], "p": [0.001, 0.5]}).to_csv(tmp_path / "p.csv", index=False)
    pd.DataFrame({"puzzle": ["b", "a"], "p": [0.5, 0.01]}).to_csv(tmp_path / "q.csv", index=False)
    main([f"before={tmp_path}/p.csv", f"after={tmp_path}/q.csv", "boundary=1"])
    printed = capsys.readouterr().out
    assert "boundary: sft.puzzles=[a]\n" in printed, "the only one near the cut"
    assert "p from below to at least 1/256: 1 puzzles" in printed


# ---- the curriculum ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tmp_path):
    """40 puzzles of exact p: 10 easy, 10 medium, 2 hard, 8 frontier, 10 beyond, in a mixed order."""
    p = [0.9] * 10 + [0.2] * 10 + [0.05] * 2 + [0.01] * 8 + [0.001] * 10
    table = pd.DataFrame({"puzzle": [f"p{number}" for number in range(40)], "p": p}).sample(frac=1, random_state=0)
    table.to_csv(tmp_path / "p.csv", index=False)
    return CurriculumConfig(measured=str(tmp_path / "p.csv"))


PUZZLES = [f"p{number}" for number in range(40)]


def test_without_a_measure_every_puzzle_is_in_the_one_phase():
    curriculum = curriculum_of(CurriculumConfig(), PUZZLES, 4)
    assert curriculum.phase(7, 10).puzzles == tuple(range(40)) and curriculum.phase(7, 10).step == 7 and curriculum.left_out == {}


def test_filters_leave_out_and_count(measured):
    settings = replace(measured, pass_rate_min=0.005, pass_rate_max=0.5, tiers=["medium", "frontier"])
    curriculum = curriculum_of(settings, [*PUZZLES, "unknown"], 4)
    assert curriculum.pools == ((*range(10, 20), *range(22, 30)),)
    assert curriculum.left_out == {"not measured": 1, "pass rate too low": 10, "pass rate too high": 10, "other tier": 2}


def test_easy_to_hard_goes_tier_by_tier_and_small_tiers_join_the_next(measured):
    curriculum = curriculum_of(replace(measured, order="easy_to_hard"), PUZZLES, 4)
    assert curriculum.names == ("easy", "medium", "hard+frontier", "beyond")
    assert curriculum.pools == (tuple(range(10)), tuple(range(10, 20)), tuple(range(20, 30)), tuple(range(30, 40)))
    few = curriculum_of(replace(measured, order="easy_to_hard", tiers=["easy", "medium", "hard"]), PUZZLES, 4)
    assert few.names == ("easy", "medium+hard"), "the last one joins the one before"


@pytest.mark.parametrize("steps", [4, 10, 13, 100])
def test_phases_share_the_steps_and_each_counts_from_one(measured, steps):
    curriculum = curriculum_of(replace(measured, order="easy_to_hard"), PUZZLES, 4)
    phases = [curriculum.phase(step, steps) for step in range(1, steps + 1)]
    names = [phase.name for phase in phases]
    assert list(dict.fromkeys(names)) == list(curriculum.names)
    counts = [names.count(name) for name in curriculum.names]
    assert max(counts) - min(counts) <= 1
    assert [phase.step for phase in phases] == [number for count in counts for number in range(1, count + 1)]


def test_with_fewer_steps_than_tiers_the_counts_stay_within_the_phase(measured):
    curriculum = curriculum_of(replace(measured, order="easy_to_hard"), PUZZLES, 4)
    assert [(phase.name, phase.step) for phase in (curriculum.phase(step, 2) for step in (1, 2))] == [("easy", 1), ("hard+frontier", 1)]


def test_places_of_a_pool_are_its_puzzles(measured):
    phase = curriculum_of(replace(measured, order="easy_to_hard"), PUZZLES, 4).phase(100, 100)
    assert phase.pick([0, 9, 3]) == [30, 39, 33]


def test_what_cannot_be_carried_out_is_refused(measured):
    for settings, message in (
        (replace(measured, tiers=["hard"]), r"leaves 2 of 40 puzzles, fewer than rl\.prompts=4 \(other tier 38\)"),
        (replace(measured, tiers=["impossible"]), r"rl\.curriculum\.tiers=impossible: expected some of easy"),
        (CurriculumConfig(order="easy_to_hard"), r"rl\.curriculum\.order needs rl\.curriculum\.measured"),
        (CurriculumConfig(measured="nowhere"), "nowhere: expected an evaluation folder"),
    ):
        with pytest.raises(UserError, match=message):
            curriculum_of(settings, PUZZLES, 4)


def test_rates_of_few_samples_filter_but_make_no_tiers(tmp_path):
    folder = evaluation(tmp_path / "evaluation", {"p0": 1, "p1": 0, "p2": 2}, samples=16)
    settings = CurriculumConfig(measured=str(folder), pass_rate_min=0.1)
    assert curriculum_of(settings, ["p0", "p1", "p2"], 2).pools == ((0, 2),)
    with pytest.raises(UserError, match="tiers need 256 samples"):
        curriculum_of(replace(settings, order="easy_to_hard"), ["p0", "p1", "p2"], 2)


def test_a_measures_content_names_the_run_and_no_curriculum_leaves_it_as_it_was(measured, tmp_path):
    (tmp_path / "copy").mkdir()
    copied = replace(measured, measured=str(tmp_path / "copy" / "p.csv"))
    with pytest.raises(UserError, match="expected an evaluation folder"):
        identified(copied)
    (tmp_path / "copy" / "p.csv").write_bytes((tmp_path / "p.csv").read_bytes())
    assert identified(copied) == identified(measured) != measured
    assert "curriculum" not in identity_of(RlConfig()) and "curriculum" in identity_of(RlConfig(curriculum=measured))


def test_rl_goes_through_the_phases_of_its_curriculum(tiny_runs, tmp_path, monkeypatch, capsys):
    """Puzzles in two tiers and some left out: the loop samples from the easy pool in the first half of the steps, then from the medium one."""
    puzzles = [puzzle.id for puzzle in load_puzzles(PACK / PUZZLES_FILE, "rl", ["B1"])]
    easy, medium = set(puzzles[:10]), set(puzzles[10:30])
    rates = [0.9 if puzzle in easy else 0.3 if puzzle in medium else 0.001 for puzzle in puzzles]
    pd.DataFrame({"puzzle": puzzles, "p": rates}).to_csv(tmp_path / "p.csv", index=False)
    keys = [f"rl.curriculum.measured={tmp_path}/p.csv", "rl.curriculum.order=easy_to_hard", "rl.curriculum.pass_rate_min=0.1"]
    sampled: list[list[str]] = []
    score = Scorer.score

    def recording(self, chosen, step):
        sampled.append([puzzles[place] for place in chosen])
        return score(self, chosen, step=step)

    monkeypatch.setattr(Scorer, "score", recording)
    outputs = tiny.share_data(tmp_path, tiny_runs)
    status, _ = tiny.start("rl", tiny.config("rl", outputs, f"parent={tiny_runs['sft']}", *keys))
    assert status == 0
    assert len(sampled) == 6 and all(easy.issuperset(step) for step in sampled[:3]) and all(medium.issuperset(step) for step in sampled[3:])
    assert f"rl.curriculum left out: pass rate too low {len(puzzles) - 30:,}" in capsys.readouterr().out


def test_tier_counts_name_all_five():
    assert tier_counts(["easy", "beyond", "beyond"]) == {"easy": 1, "medium": 0, "hard": 0, "frontier": 0, "beyond": 2}
