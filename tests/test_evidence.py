"""The evidence package on hand-made folders: every table against counting by hand, and readiness that shows nothing by default."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.compute_aligned import aligned_table
from analysis.contamination import account_table, independent_difference, prefix_differences, prefix_table, slice_table
from analysis.evidence import gather, main
from analysis.evidence_points import holdout, verifier
from analysis.read import Run, read_runs
from analysis.readiness import (
    FAILED,
    NOT_MEASURED,
    POINTS,
    SHOWN,
    Check,
    EvidenceSettings,
    at_least,
    at_most,
    missing,
    points_table,
    readiness_markdown,
    stated,
    verdict_of,
)  # fmt: skip
from analysis.reward_sources import drift_table, entropy_law, reward_differences, reward_table, trained_runs
from analysis.verifier_audit import MEASURES, attack_rates, gap_rise, read_audits, verifier_table
from chessrl.access_log import LOG, append_access
from chessrl.errors import UserError
from chessrl.puzzles import Puzzle
from tests.test_analysis import make_samples, write_evaluation

STEPS = 60


def write_run(root: Path, name: str, skill: float, reward: str = "line", seed: int = 0, parent: str = "", **metrics: np.ndarray) -> Path:
    """A run directory with an evaluation on test; ``skill`` is that of ``make_samples``."""
    run, stage = root / name, name.split("-")[0]
    run.mkdir(parents=True)
    parameters = {"total": 1000, "without_embeddings": 900}
    summary = {"stage": stage, "run_id": name, "parents": {}, "parameters": parameters, "tokens": 10, "flops": 10}
    (run / "summary.json").write_text(json.dumps(summary | ({"data": "0123456789abcdef"} if stage == "pretrain" else {})))
    config = {
        "parent": parent, "world": {"name": "endgame"}, "rl": {"seed": seed}, "reward": {"name": reward, "accept": "line", "oracle": "line"},
        "engine": {"depth": 8}, "algorithm": {"group": 8},
    }  # fmt: skip
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    lines = [{"step": step, "tokens": step} | {key: float(values[step - 1]) for key, values in metrics.items()} for step in range(1, STEPS + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_evaluation(run, stage, "aaaa", make_samples(skill, seed), protocol="answer")
    return run


def write_audit(run: Path, verdicts: pd.DataFrame, attacks: pd.DataFrame | None = None, verifiers: tuple[str, ...] = ("line",)) -> Path:
    folder = run / "audits" / "abc"
    folder.mkdir(parents=True)
    record = {"run": run.name, "stage": "rl", "step": 100, "split": "validation", "verifiers": [*verifiers]}
    (folder / "audit.json").write_text(json.dumps(record))
    names = sorted(set(verdicts["puzzle"]))
    alternatives = pd.DataFrame(
        {"puzzle": names, "bin": "B1", "verifier": "line", "decisions": 1, "with_alternative": 0, "line_refused": 0, "untold": 0}
    )
    if attacks is None:
        attacks = pd.DataFrame({"attack": "mate_claim", "verifier": "line", "puzzle": names, "bin": "B1", "fooled": False})
    puzzles = pd.DataFrame({"puzzle": names, "bin": "B1", "fen": "7k/8/8/8/8/8/R7/1R4K1 w - - 0 1", "line": "a2a7 h8g8 b1b8"})
    for name, table in {"verdicts": verdicts, "puzzles": puzzles, "alternatives": alternatives, "attacks": attacks}.items():
        table.to_parquet(folder / f"{name}.parquet")
    return folder


def verdict_rows(cells: list[tuple[object, object]], puzzles: int) -> pd.DataFrame:
    """Episodes with (line's verdict, oracle's verdict), dealt to puzzles in turn."""
    answer = {"bin": "B1", "moves": "a2a7", "failure": ""}
    rows = [
        {"puzzle": f"p{place % puzzles:03d}", "sample": place // puzzles, "line": said, "oracle": right} | answer
        for place, (said, right) in enumerate(cells)
    ]
    return pd.DataFrame(rows).astype({"line": object, "oracle": object})


# ---- verifiers ----------------------------------------------------------------------------------------------------------------------------


def test_verifier_measures_are_those_of_the_counted_table(tmp_path):
    cells = [(True, True)] * 30 + [(True, False)] * 10 + [(False, True)] * 5 + [(False, False)] * 55 + [(None, True)] * 3
    write_audit(tmp_path / "rl-1", verdict_rows(cells, 20))
    table = verifier_table(read_audits(tmp_path / "rl-1")[0], np.random.default_rng(0)).set_index("measure")
    expected = {"accepted": 0.4, "right": 0.35, "gap": 0.05, "precision": 30 / 40, "recall": 30 / 35, "false_positive_rate": 10 / 65}
    expected["J"] = expected["recall"] - expected["false_positive_rate"]
    assert list(table.index) == list(MEASURES)
    assert table["value"].to_dict() == pytest.approx(expected)
    assert (table["untold"] == 3).all() and (table["episodes"] == 100).all()
    assert ((table["ci_low"] < table["value"]) & (table["value"] < table["ci_high"])).all()


def test_a_perfect_verifier_has_wide_limits_where_few_puzzles_speak(tmp_path):
    write_audit(tmp_path / "rl-1", verdict_rows([(True, True)] * 10 + [(False, False)] * 10, 20))
    table = verifier_table(read_audits(tmp_path / "rl-1")[0], np.random.default_rng(0)).set_index("measure")
    assert table.loc["precision", ["value", "ci_high"]].tolist() == [1.0, 1.0] and 0.6 < table.loc["precision", "ci_low"] < 0.8
    assert table.loc["J", "value"] == 1 and table.loc["J", "ci_low"] < 0.6
    assert table.loc["gap", "value"] == 0 and -0.2 < table.loc["gap", "ci_low"] < 0 < table.loc["gap", "ci_high"] < 0.2


def test_attack_rates_are_shares_of_the_puzzles_that_allow_them(tmp_path):
    fooled = [1, 0, 0, 0, 1, 1]
    attacks = pd.DataFrame({"attack": [*"aaaabb"], "verifier": "line", "puzzle": [*"123412"], "bin": "B1", "fooled": fooled})
    write_audit(tmp_path / "rl-1", verdict_rows([(True, True)] * 4, 4), attacks.astype({"fooled": bool}))
    table = attack_rates(read_audits(tmp_path / "rl-1")[0]).set_index("attack")
    assert table["success_rate"].to_dict() == {"a": 0.25, "b": 1.0} and table["n"].to_dict() == {"a": 4, "b": 2}


def write_engine_run(root: Path, reward: dict | None = None, engine: dict | None = None) -> Run:
    """RL by the reward ``engine`` with an audit of line and engine at depth 8."""
    path = write_run(root, "rl-1", 0.4, reward="engine")
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["engine"] = {"mode": "depth", "depth": 8, "nodes": 1000, "delta": 0.02, "mate_slack": 0} | (engine or {})
    config["reward"] |= {"accept": "engine"} | (reward or {})
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    rows = verdict_rows([(True, True)] * 300 + [(False, False)] * 300, 200).assign(
        engine_depth_8=False, line_or_engine_depth_8=lambda table: table["line"]
    )
    attacks = pd.DataFrame({"attack": "mate_claim", "verifier": "line_or_engine_depth_8", "puzzle": [*range(400)], "bin": "B1", "fooled": False})
    folder = write_audit(path, rows, attacks, ("line", "engine_depth_8", "line_or_engine_depth_8"))
    record = json.loads((folder / "audit.json").read_text()) | {"nodes": 1000, "delta": 0.02, "mate_slack": 0}
    (folder / "audit.json").write_text(json.dumps(record))
    return read_runs([path])[0]


def verifier_checks(run: Run) -> list[Check]:
    checks = verifier([run], EvidenceSettings(runs=(), out="", accuracy="engine"), np.random.default_rng(0))[1]
    return [check for check in checks if "rise" not in check.name]


def test_an_engines_reward_is_audited_with_the_line_and_mates_that_it_pays(tmp_path):
    checks = verifier_checks(write_engine_run(tmp_path))
    names = {"precision of line_or_engine_depth_8", "J of line_or_engine_depth_8", "best attack on line_or_engine_depth_8: mate_claim"}
    assert {check.name for check in checks} == names and {check.verdict for check in checks} == {SHOWN}


@pytest.mark.parametrize(
    ("reward", "engine", "source"),
    [
        ({"true_positive_rate": 0.3, "false_positive_rate": 0.7}, {}, "errs at random"),
        ({"accept": "line", "false_positive_rate": 0.3}, {}, "errs at random"),
        ({}, {"mode": "searchmoves", "nodes": 1}, "engine.mode=searchmoves"),
        ({}, {"depth": 4}, "audit.depths=[4]"),
        ({}, {"nodes": 1}, "engine.nodes=1 "),
    ],
)
def test_a_training_verifier_that_was_not_audited_is_not_measured(reward, engine, source, tmp_path):
    [check] = verifier_checks(write_engine_run(tmp_path, reward, engine))
    assert check.verdict == NOT_MEASURED and source in check.source


def test_the_gaps_rise_compares_the_ends():
    gap = np.r_[np.zeros(10), np.linspace(0, 0.3, 80), np.full(10, 0.3)]
    rise, error = gap_rise(pd.DataFrame({"reward/gap": gap}))
    assert (rise, error) == (pytest.approx(0.3), pytest.approx(0, abs=1e-9))


def test_a_damaged_audit_is_named(tmp_path):
    folder = write_audit(tmp_path / "rl-1", verdict_rows([(True, True)], 1))
    (folder / "attacks.parquet").unlink()
    with pytest.raises(UserError, match="audits/abc: not a readable audit"):
        read_audits(tmp_path / "rl-1")


# ---- contamination ------------------------------------------------------------------------------------------------------------------------


def prefixes(test: list[bool], mirrored: list[bool], train: list[bool], held_out: list[bool]) -> pd.DataFrame:
    sources = {"test": test, "test_mirrored": mirrored, "train": train, "validation": held_out}
    rows = [(source, str(item), 40, 1, 2, exact, 0.5) for source, values in sources.items() for item, exact in enumerate(values)]
    return pd.DataFrame(rows, columns=["source", "item", "share", "plies_given", "plies_asked", "exact", "tokens_right"])


def test_a_memorised_test_shows_beside_its_mirror():
    table = prefixes([True] * 30 + [False] * 10, [True] * 10 + [False] * 30, [True] * 20 + [False] * 20, [False] * 40)
    run = SimpleNamespace(run_id="pretrain-1")
    shares = prefix_table(run, table).set_index("source")["exact_match"].to_dict()
    assert shares == {"test": 0.75, "test_mirrored": 0.25, "train": 0.5, "validation": 0.0}
    found = prefix_differences(run, table, np.random.default_rng(0)).set_index("source")
    assert found["difference"].to_dict() == {"train": 0.5, "test": 0.5}
    assert (found["ci_low"] > 0.3).all() and found["control"].to_dict() == {"train": "validation", "test": "test_mirrored"}
    assert found.loc["test", "ci_high"] < 0.68, "paired: 20 of 40 differ, all one way"


def test_unpaired_differences_have_score_limits_where_nothing_varies():
    difference, low, high = independent_difference(np.zeros(100), np.zeros(100), np.random.default_rng(0))
    assert difference == 0 and -0.04 < low < 0 < high < 0.04
    difference, low, high = independent_difference(np.repeat([0.0, 1.0], 50), np.repeat([0.0, 1.0], [25, 75]), np.random.default_rng(0))
    half = 1.96 * np.sqrt(0.25 / 100 + 0.1875 / 100)
    assert difference == 0.25 and (low, high) == pytest.approx((0.25 - half, 0.25 + half), abs=0.02)


def test_a_slice_stands_beside_the_test_of_the_same_settings(tmp_path):
    run = write_run(tmp_path, "rl-1", 0.4)
    mirrored = make_samples(0.4, 0)
    mirrored["puzzle"] += "-mirrored"
    mirrored.loc[mirrored["puzzle"] == "p0000-mirrored", "solved"] = False
    write_evaluation(run, "rl", "bbbb", mirrored, split="test_mirrored", protocol="answer")
    write_evaluation(run, "rl", "cccc", mirrored, split="test_themes", protocol="answer", temperature=0.5)
    table = slice_table(read_runs([run]), np.random.default_rng(0))
    assert table["slice"].tolist() == ["test_mirrored"], "the other has no test evaluation of its temperature"
    samples = make_samples(0.4, 0)
    lost = samples.loc[samples["puzzle"] == "p0000", "solved"].mean() / samples["puzzle"].nunique()
    assert table["test_less_slice"].item() == pytest.approx(lost) and lost > 0


def test_the_corpus_account_is_found_by_its_hash(tmp_path):
    run = write_run(tmp_path, "pretrain-1", 0.1)
    for number, name in enumerate(("0123456789abcdef", "other")):
        folder = tmp_path / "data" / f"games-{name}"
        folder.mkdir(parents=True)
        games = {"read": 10, "kept": 9 - number, "dropped": {}}
        account = {"puzzles": 5, "games_dropped": 1 + number}
        (folder / "manifest.json").write_text(json.dumps({"hash": name, "games": games, "decontamination": account}))
    row = account_table(read_runs([run])).iloc[0]
    assert (row["games_kept"], row["puzzles_checked"], row["games_dropped_for_puzzles"], row["leaked_puzzles"]) == (9, 5, 1, 0)


# ---- rewards, drift, compute --------------------------------------------------------------------------------------------------------------


def family(root: Path) -> list[Run]:
    """A start, and three seeds each of RL by the line, at random and by format."""
    paths = [write_run(root, "sft-0", 0.2)]
    for reward, skill in (("line", 0.5), ("random", 0.2), ("format", 0.25)):
        paths += [write_run(root, f"rl-{reward}{seed}", skill, reward, seed, parent=str(root / "sft-0")) for seed in range(3)]
    return read_runs(paths)


def test_reward_sources_are_means_over_seeds_beside_their_start(tmp_path):
    trained, notes = trained_runs(family(tmp_path), "test")
    table = reward_table(trained, np.random.default_rng(0)).set_index("reward")
    for reward, skill in (("line", 0.5), ("random", 0.2), ("format", 0.25)):
        assert table.loc[reward, "pass_at_1"] == pytest.approx(np.mean([make_samples(skill, seed)["solved"].mean() for seed in range(3)]))
        assert table.loc[reward, "pass_at_1_start"] == pytest.approx(make_samples(0.2, 0)["solved"].mean())
        assert table.loc[reward, "change"] == pytest.approx(table.loc[reward, "pass_at_1"] - table.loc[reward, "pass_at_1_start"])
    differences = reward_differences(trained, "line", np.random.default_rng(0)).set_index("baseline")
    assert differences.loc["random", "difference"] == pytest.approx(table.loc["line", "pass_at_1"] - table.loc["random", "pass_at_1"])
    assert (differences["seeds"] == 3).all() and not notes and table["setup"].nunique() == 1


def test_two_runs_of_one_reward_and_seed_are_refused(tmp_path):
    paths = [write_run(tmp_path, name, 0.3, parent="x/sft-0") for name in ("rl-1", "rl-2")]
    trained, _ = trained_runs(read_runs([*paths, write_run(tmp_path, "sft-0", 0.2)]), "test")
    with pytest.raises(UserError, match=r"both have reward line and rl\.seed=0"):
        reward_table(trained, np.random.default_rng(0))


def test_a_run_and_its_start_are_compared_under_the_same_settings(tmp_path):
    start, run = write_run(tmp_path, "sft-0", 0.2), write_run(tmp_path, "rl-1", 0.5, parent="x/sft-0")
    write_evaluation(run, "rl", "later", make_samples(0.9, 0), step=200, protocol="answer", temperature=0.5)
    trained, notes = trained_runs(read_runs([start, run]), "test")
    assert not trained and "rl-1 is left out: " in notes[0] and "different settings" in notes[0]
    write_evaluation(start, "sft", "cold", make_samples(0.1, 0), protocol="answer", temperature=0.5)
    [found], notes = trained_runs(read_runs([start, run]), "test")
    assert not notes and (found.before.mean(), found.after.mean()) == tuple(make_samples(skill, 0)["solved"].mean() for skill in (0.1, 0.9))


def test_runs_evaluated_under_different_settings_are_no_seeds_of_one_setup(tmp_path):
    paths = [write_run(tmp_path, "sft-0", 0.2)] + [write_run(tmp_path, f"rl-{seed}", 0.5, seed=seed, parent="x/sft-0") for seed in (0, 1)]
    for path in (paths[0], paths[2]):
        write_evaluation(path, path.name.split("-")[0], "strict", make_samples(0.3, 0), step=200, protocol="answer", spelling="strict")
    table = reward_table(trained_runs(read_runs(paths), "test")[0], np.random.default_rng(0))
    assert table["setup"].nunique() == 2 and table["seeds"].tolist() == [1, 1]


@pytest.mark.parametrize("labels", [{"step": 30}, {"temperature": 0.5}, {"spelling": "strict"}])
def test_the_private_split_is_compared_with_the_test_of_its_step_and_settings(labels, tmp_path):
    run = write_run(tmp_path, "rl-1", 0.5)
    write_evaluation(run, "rl", "private", make_samples(0.3, 0), split="private", **({"protocol": "answer"} | labels))
    settings = EvidenceSettings(runs=(str(run),), out="")
    [check] = [check for check in holdout(read_runs([run]), settings, np.random.default_rng(0))[1] if check.name.startswith("pass@1")]
    assert check.verdict == NOT_MEASURED and "evaluate.split=test" in check.source and "evaluations/private" in check.source
    write_evaluation(run, "rl", "bbbb", make_samples(0.4, 0), **({"protocol": "answer"} | labels))
    sections, _ = holdout(read_runs([run]), settings, np.random.default_rng(0))
    assert sections[0].table["pass_at_1_test"].item() == pytest.approx(make_samples(0.4, 0)["solved"].mean())


def configure(run: Path, section: str, **changed: object) -> None:
    """Keys of a section of the run's configuration, changed."""
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings[section] = settings.get(section, {}) | changed
    (run / "config.yaml").write_text(yaml.safe_dump(settings))


@pytest.mark.parametrize("key", ["false_positive_rate", "depth"])
def test_rewards_of_one_name_are_told_apart_by_rates_and_engine(key, tmp_path):
    paths = [write_run(tmp_path, "sft-0", 0.2), write_run(tmp_path, "rl-random", 0.2, "random", parent="x/sft-0")]
    for value, skill in ((0, 0.5), (1, 0.3)):
        paths.append(write_run(tmp_path, f"rl-{value}", skill, parent="x/sft-0"))
        configure(paths[-1], "reward", accept="engine" if key == "depth" else "line")
        configure(paths[-1], "engine", mode="depth", nodes=1000, delta=0.02, mate_slack=0)
        configure(paths[-1], "engine" if key == "depth" else "reward", **{key: value})
    trained, _ = trained_runs(read_runs(paths), "test")
    table = reward_table(trained, np.random.default_rng(0))
    assert table["setup"].nunique() == 1 and table["variant"].nunique() == 3 and (table["seeds"] == 1).all()
    differences = reward_differences(trained, "line", np.random.default_rng(0))
    expected = {make_samples(skill, 0)["solved"].mean() - make_samples(0.2, 0)["solved"].mean() for skill in (0.5, 0.3)}
    assert sorted(differences["difference"]) == pytest.approx(sorted(expected))


def test_rewards_from_different_starts_are_not_paired(tmp_path):
    paths = [write_run(tmp_path, f"sft-{name}", 0.2) for name in "ab"]
    paths += [write_run(tmp_path, "rl-1", 0.5, parent="x/sft-a"), write_run(tmp_path, "rl-2", 0.2, "random", parent="x/sft-b")]
    trained, _ = trained_runs(read_runs(paths), "test")
    assert len(trained) == 2 and reward_differences(trained, "line", np.random.default_rng(0)).empty
    paths.append(write_run(tmp_path, "rl-3", 0.3, "random", parent="x/sft-a"))
    trained, _ = trained_runs(read_runs(paths), "test")
    [row] = reward_differences(trained, "line", np.random.default_rng(0)).to_dict("records")
    assert row["seeds"] == 1 and row["difference"] == pytest.approx(make_samples(0.5, 0)["solved"].mean() - make_samples(0.3, 0)["solved"].mean())
    configure(paths[1], "sft", epochs=9)
    assert reward_table(trained_runs(read_runs(paths), "test")[0], np.random.default_rng(0))["setup"].nunique() == 2


def test_drift_compares_the_tenths_at_the_ends(tmp_path):
    kl = np.r_[np.full(6, 0.1), np.full(48, 9.0), np.full(6, 0.4)]
    run = read_runs([write_run(tmp_path, "rl-1", 0.3, kl=kl)])[0]
    [row] = drift_table(run).to_dict("records")
    assert (row["metric"], row["steps_averaged"]) == ("kl", 6)
    assert (row["first"], row["last"], row["change"]) == pytest.approx((0.1, 0.4, 0.3))


def test_the_entropy_law_is_recovered(tmp_path):
    rng = np.random.default_rng(1)
    entropy = np.linspace(0.9, 0.2, STEPS)
    solved = -0.3 * np.exp(entropy) + 0.9 + rng.normal(0, 0.01, STEPS)
    run = read_runs([write_run(tmp_path, "rl-1", 0.3, **{"entropy": entropy, "reward/oracle": solved})])[0]
    law = entropy_law(run, rng)
    assert law["a_low"] < 0.3 < law["a_high"] and law["b_low"] < 0.9 < law["b_high"] and law["ceiling_low"] < 0.6 < law["ceiling_high"]
    assert law["R2"] > 0.99 and law["a"] == pytest.approx(0.3, abs=0.02)
    constant = read_runs([write_run(tmp_path, "rl-2", 0.3, **{"entropy": np.ones(STEPS), "reward/oracle": solved})])[0]
    assert entropy_law(constant, rng) is None


def test_equal_compute_gives_the_longer_answers_fewer_samples(tmp_path):
    start, trained = write_run(tmp_path, "sft-0", 0.2), write_run(tmp_path, "rl-1", 0.5, parent="outputs/sft-0")
    longer = make_samples(0.5, 0).assign(tokens=lambda table: 2 * make_samples(0.2, 0)["tokens"])
    longer.to_parquet(trained / "evaluations" / "aaaa" / "samples.parquet")
    table = aligned_table(read_runs([start, trained]), "test", np.random.default_rng(0)).set_index(["budget", "metric"])
    row = table.loc["tokens", "pass@k"]
    assert (row["k_start"], row["k_rl"]) == (16, 8), "16 samples of the start cost what 8 of the RL policy do"
    solved = [skilled.groupby("puzzle")["solved"].mean() for skilled in (make_samples(0.2, 0), longer)]
    assert table.loc[("tokens", "pass@1"), "difference"] == pytest.approx((solved[1] - solved[0]).mean())
    assert row["start_value"] == pytest.approx((solved[0] > 0).mean()), "k = n: any solved sample"


def test_answers_that_begin_alike_are_no_vote_for_one_another(tmp_path):
    """Of 16 answers 6 are right, and 5 and 5 begin with one wrong move: right by whole answers, wrong by first moves."""
    start, trained = write_run(tmp_path, "sft-0", 0.2), write_run(tmp_path, "rl-1", 0.5, parent="outputs/sft-0")
    answers = ["R a1 a8"] * 6 + ["R a1 a2 / R b1 b2"] * 5 + ["R a1 a2 / R b1 b3"] * 4 + ["R a1 a2 / b1 b3"]  # as spelt
    samples = make_samples(0.5, 0).assign(answer=np.tile(answers, 90), solved=np.tile([True] * 6 + [False] * 10, 90), tokens=10)
    for run, kept in ((start, samples), (trained, samples[samples["puzzle"] != "p0000"])):
        kept.to_parquet(run / "evaluations" / "aaaa" / "samples.parquet")
    table = aligned_table(read_runs([start, trained]), "test", np.random.default_rng(0)).set_index(["budget", "metric"])
    row = table.loc["tokens", "maj@k"]
    assert (row["n_puzzles"], row["k_start"], row["start_value"], row["rl_value"]) == (89, 16, 1, 1)


# ---- readiness ----------------------------------------------------------------------------------------------------------------------------


def test_a_check_is_shown_only_with_its_whole_interval():
    assert at_least(1, "", "", 0.9, 0.85, 0.95, 0.8, "").verdict == SHOWN
    assert at_least(1, "", "", 0.9, 0.75, 0.95, 0.8, "").verdict == NOT_MEASURED
    assert at_least(1, "", "", 0.7, 0.65, 0.95, 0.8, "").verdict == FAILED
    assert at_most(1, "", "", 0.1, 0.0, 0.3, 0.2, "").verdict == NOT_MEASURED
    assert at_most(1, "", "", 0.1, 0.0, 0.2, 0.2, "").verdict == SHOWN
    assert at_least(1, "", "", float("nan"), 0.0, 1.0, 0.8, "").verdict == NOT_MEASURED


def test_a_point_is_shown_only_where_every_check_is():
    shown, failed, absent = stated(1, "", "", "", "", True, ""), stated(1, "", "", "", "", False, ""), missing(1, "", "", "make it")
    assert [verdict_of(checks) for checks in ([shown, shown], [shown, absent], [shown, failed, absent], [])] == [
        SHOWN, NOT_MEASURED, FAILED, NOT_MEASURED,
    ]  # fmt: skip
    table = points_table([shown])
    assert len(table) == len(POINTS) == 7 and table["verdict"].tolist() == [SHOWN] + [NOT_MEASURED] * 6
    assert "**shown**" in readiness_markdown([shown], "command") and readiness_markdown([absent], "command").count("make it") == 1


def test_a_bare_run_shows_nothing_but_what_was_measured(tmp_path):
    run = write_run(tmp_path, "rl-1", 0.4, parent="outputs/sft-0")
    _, checks = gather(EvidenceSettings(runs=(str(run),), out=""))
    shown = {check.name for check in checks if check.verdict == SHOWN}
    assert shown == {"test puzzles leaked on purpose"}, "only the run's own summary says that"
    assert set(points_table(checks)["verdict"]) == {NOT_MEASURED}
    assert all("python -m" in check.source or "evaluation" in check.source for check in checks if check.found == "–")


def test_evidence_is_the_same_twice_and_holds_what_was_planted(tmp_path, capsys):
    start = tmp_path / "runs" / "sft-0"
    paths = [write_run(tmp_path / "runs", "sft-0", 0.2)]
    paths += [write_run(tmp_path / "runs", f"rl-{reward}0", skill, reward, 0, str(start)) for reward, skill in (("line", 0.5), ("random", 0.2))]
    runs = [str(path) for path in paths]
    rl = tmp_path / "runs" / "rl-line0"
    write_audit(rl, verdict_rows([(True, True)] * 400 + [(True, False)] * 100 + [(False, False)] * 500, 250))
    write_evaluation(rl, "rl", "private", make_samples(0.5, 0), split="private", protocol="answer")
    append_access(tmp_path / "runs" / LOG, "rl-line0", [Puzzle("a", "k7/8/1K6/8/8/8/8/QR6 w - - 0 1", ("a1g7",), 0, 2, "B2")])
    pages = []
    for _ in range(2):
        main([f"runs={','.join(runs)}", f"out={tmp_path / 'evidence'}"])
        pages.append({path.name: path.read_bytes() for path in sorted((tmp_path / "evidence").rglob("*.*"))})
    assert pages[0] == pages[1]
    checks = pd.read_csv(tmp_path / "evidence" / "tables" / "checks.csv")
    verdict = checks[checks["about"].str.contains("line")].set_index("name")["verdict"]
    assert verdict["precision of line"] == FAILED and verdict["best attack on line: mate_claim"] == SHOWN
    assert verdict["logged looks at the private split"] == SHOWN
    rewards = checks[checks["point"] == 3].set_index("name")["verdict"]
    assert rewards["pass@1 of line less random"] == SHOWN and rewards["seeds of both, random"] == NOT_MEASURED, "one seed is no three"
    assert rewards["pass@1 of line less format"] == NOT_MEASURED
    html = pages[0]["readiness.html"].decode()
    assert "http://" not in html and all(f"{number}. " in html for number in range(1, 8)) and "precision of line" in html
    assert capsys.readouterr().out.count("readiness.html") == 2


def test_runs_without_rl_make_no_claim(tmp_path):
    with pytest.raises(UserError, match="no RL run"):
        gather(EvidenceSettings(runs=(str(write_run(tmp_path, "sft-1", 0.2)),), out=""))


def test_a_person_who_agrees_is_shown_and_one_who_does_not_fails(tmp_path):
    run = write_run(tmp_path, "rl-1", 0.4)
    sheet = write_audit(run, verdict_rows([(True, True)] * 4, 4)) / "sheet"
    sheet.mkdir()
    pd.DataFrame(columns=["cause", "verifier", "judged", "items", "which"]).to_csv(sheet / "disagreements.csv", index=False)
    for agreed, low, corrected, verdict in ((98, 0.93, 0.4, SHOWN), (60, 0.5, 0.1, FAILED)):
        row = {"verifier": "line", "judged": 100, "agreed": agreed, "agreement": agreed / 100, "ci_low": low, "ci_high": 0.99}
        pd.DataFrame([row]).to_csv(sheet / "agreement.csv", index=False)
        row = {"run": "rl-1", "headline": 0.4, "corrected": corrected, "ci_low": corrected - 0.05, "ci_high": corrected + 0.05, "judged": 100}
        pd.DataFrame([row]).to_csv(sheet / "headline.csv", index=False)
        _, checks = gather(EvidenceSettings(runs=(str(run),), out=""))
        assert verdict_of([check for check in checks if check.point == 7]) == verdict
