"""The seven points of the evidence package: each a function from runs to its tables and checks. ``ALL`` holds them in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.compute_aligned import aligned_table
from analysis.contamination import account_table, independent_difference, prefix_differences, prefix_table, read_prefixes, slice_table
from analysis.evaluations import last_evaluation, solved_share
from analysis.evidence_figures import prefixes_figure, verifiers_figure
from analysis.read import Run
from analysis.readiness import Check, EvidenceSettings, at_least, at_most, enough, missing, stated
from analysis.reward_sources import BASELINES, drift_table, entropy_law, reward_differences, reward_table, trained_runs
from analysis.sections import Section
from analysis.verifier_audit import (
    REWARD_PARTS,
    alternative_table,
    attack_rates,
    audit_command,
    audits_training,
    gap_rise,
    gap_table,
    read_audits,
    training_verifier,
    verifier_table,
)  # fmt: skip
from chessrl.access_log import LOG, log_fault, read_log

Found = tuple[list[Section], list[Check]]
GAP_CHECK = "rise of (training verifier - oracle) over the run"


def claims(runs: Sequence[Run], settings: EvidenceSettings) -> list[Run]:
    """The RL runs by the reward of the claim; the others are its baselines."""
    return [run for run in runs if run.stage == "rl" and run.setting("reward.name") == settings.accuracy]


def compute(runs: Sequence[Run], settings: EvidenceSettings, rng: np.random.Generator) -> Found:
    """1: pass@1, and pass@k and maj@k at equal tokens and FLOPs."""
    table = aligned_table(runs, settings.split, rng)
    text = "Start and RL policy at equal cost: the samples that an equal budget of sampled tokens, or of FLOPs (2N per token), buys each."
    checks = []
    for run in claims(runs, settings):
        rows = table[table["run"] == run.run_id] if len(table) else table
        if rows.empty:
            command = f"python -m chessrl.evaluate parent={run.path} evaluate.split={settings.split}, and so its start, named in runs="
            checks.append(missing(1, run.label, "RL less start at equal tokens", command))
        for row in rows.itertuples():
            name = f"{row.metric}, RL less start at equal {row.budget} (k = {row.k_start} and {row.k_rl})"
            bound = 0.0 if row.metric == "pass@1" else -settings.margin
            checks.append(at_least(1, run.label, name, row.difference, row.ci_low, row.ci_high, bound, "tables/equal_compute.csv"))
    return [Section("equal_compute", "Equal compute", text, "evaluations/*/samples.parquet", table)], checks


def verifier(runs: Sequence[Run], settings: EvidenceSettings, rng: np.random.Generator) -> Found:
    """2: precision, recall, J, alternatives, attacks, and the hacking gap."""
    audits = [(run, audit) for run in runs for audit in read_audits(run.path)]
    measured = _joined(verifier_table(audit, rng) for _, audit in audits)
    alternatives, attacks = _joined(alternative_table(audit) for _, audit in audits), _joined(attack_rates(audit) for _, audit in audits)
    gaps = gap_table(runs)
    checks = []
    for run in claims(runs, settings):
        name = training_verifier(run)
        of_run = [audit for owner, audit in audits if owner is run and audits_training(audit, run)]
        if of_run:
            checks += _audit_checks(run, name, verifier_table(of_run[-1], rng), attack_rates(of_run[-1]), settings)
        else:
            checks.append(missing(2, run.label, f"precision, J and attacks of {name or 'the training verifier'}", audit_command(run)))
        of_gap = gaps[gaps["run"] == run.run_id] if len(gaps) else gaps
        if len(of_gap) >= 4:
            rise, error = gap_rise(of_gap)
            bounds = (rise - 1.96 * error, rise + 1.96 * error)
            checks.append(at_most(2, run.label, GAP_CHECK, rise, *bounds, settings.gap, "tables/hacking_gap.csv"))
        else:
            checks.append(missing(2, run.label, GAP_CHECK, "python -m rl, whose metrics.jsonl logs reward/gap"))
    proof = (
        "In the endgame world the oracle is the proof behind the line, so that the line's verdict is right by construction; the engine's are not."
    )
    source = "audits/*/verdicts.parquet"
    return [
        Section("verifiers", "Verifiers against the oracle", "Of the policy's own answers: what each verifier accepts, and what is right by the "
                f"oracle. J = recall - false positive rate. {proof}", source, measured, verifiers_figure(measured) if len(measured) else None),
        Section("alternatives", "Alternative solutions", "Share of puzzles in which a verifier accepts a move beside the line's, or refuses the "
                "line's.", "audits/*/alternatives.parquet", alternatives),
        Section("attacks", "Attacks", "Answers that are wrong by construction: how often each verifier, and each reward part that pays for readable "
                "answers, accepts them.", "audits/*/attacks.parquet", attacks),
        Section("hacking_gap", "Hacking gap", "The training verifier's verdict less the oracle's of the same rollouts, by step.",
                "metrics.jsonl", gaps),
    ], checks  # fmt: skip


def _audit_checks(run: Run, name: str, measured: pd.DataFrame, attacks: pd.DataFrame, settings: EvidenceSettings) -> list[Check]:
    rows = measured[measured["verifier"] == name]
    values = {row.measure: (row.value, row.ci_low, row.ci_high) for row in rows.itertuples()}
    worst = attacks[(attacks["verifier"] == name) & ~attacks["verifier"].isin(REWARD_PARTS)].sort_values(["success_rate", "ci_high"]).iloc[-1]
    return [
        at_least(2, run.label, f"precision of {name}", *values["precision"], settings.precision, "tables/verifiers.csv"),
        at_least(2, run.label, f"J of {name}", *values["J"], settings.j, "tables/verifiers.csv"),
        at_most(
            2, run.label, f"best attack on {name}: {worst['attack']}", worst["success_rate"], worst["ci_low"], worst["ci_high"], settings.attack,
            "tables/attacks.csv",
        ),
    ]  # fmt: skip


def rewards(runs: Sequence[Run], settings: EvidenceSettings, rng: np.random.Generator) -> Found:
    """3: the reward of the claim beside random and format."""
    trained, notes = trained_runs(runs, settings.split)
    table, differences = reward_table(trained, rng), reward_differences(trained, settings.accuracy, rng)
    checks = []
    for baseline in BASELINES:
        rows = differences[differences["baseline"] == baseline] if len(differences) else differences
        if rows.empty:
            command = f"python -m rl -m reward={settings.accuracy},{baseline} rl.seed=0,1,2 parent=START, each evaluated on {settings.split}"
            checks.append(missing(3, "all", f"pass@1 of {settings.accuracy} less {baseline}", command))
        for row in rows.itertuples():
            name = f"pass@1 of {settings.accuracy} less {baseline}"
            source, about = "tables/reward_differences.csv", f"setup {row.setup}, {settings.accuracy} {row.variant}"
            checks.append(at_least(3, about, name, row.difference, row.ci_low, row.ci_high, 0.0, source))
            checks.append(enough(3, about, f"seeds of both, {baseline}", row.seeds, settings.seeds, source))
    text = "pass@1 of RL runs by what they were paid for, beside their start; runs of a setup differ in reward and seeds, of a variant in seeds."
    return [
        Section("reward_sources", "Reward sources", text, "evaluations/*/samples.parquet", table, notes=tuple(notes)),
        Section("reward_differences", "Reward sources: differences",
                f"pass@1 of {settings.accuracy} less each other reward, paired by seed and puzzle.", "evaluations/*/samples.parquet", differences),
    ], checks  # fmt: skip


def contamination(runs: Sequence[Run], settings: EvidenceSettings, rng: np.random.Generator) -> Found:
    """4: leaks, the corpus's account, prefix completion, slices."""
    account, slices = account_table(runs), slice_table(runs, rng)
    tested = [(run, read_prefixes(run)) for run in runs if run.stage == "pretrain"]
    tested = [(run, table) for run, table in tested if len(table)]
    prefixes, differences = _joined(prefix_table(run, table) for run, table in tested), _joined(
        prefix_differences(run, table, rng) for run, table in tested
    )
    leaked = int(account["leaked_puzzles"].max())
    checks = [stated(4, "all", "test puzzles leaked on purpose", str(leaked), "0", leaked == 0, "tables/corpus_account.csv")]
    pretrained = account[account["stage"] == "pretrain"]
    if pretrained.empty or pretrained["puzzles_checked"].isna().any():
        checks.append(missing(4, "corpus", "games were kept off the puzzles", "python -m chessrl.prefixes parent=PRETRAIN_RUN, all of them in runs="))
    else:
        dropped, checked = int(pretrained["games_dropped_for_puzzles"].sum()), int(pretrained["puzzles_checked"].min())
        found = f"{dropped:,} games dropped for {checked:,} puzzles"
        name = "games were kept off the puzzles"
        checks.append(stated(4, "corpus", name, found, "all puzzles checked", checked > 0, "tables/corpus_account.csv"))
    if differences.empty:
        checks.append(missing(4, "pretrained", "test prefixes completed beyond the control's", "python -m chessrl.prefixes parent=PRETRAIN_RUN"))
    for (run, control), rows in differences[differences["source"] == "test"].groupby(["run", "control"]) if len(differences) else ():
        worst = rows.loc[rows["ci_high"].idxmax()]
        name = f"exact matches beyond {control}'s at {worst['prefix_percent']} % of the prefix, the worst of {len(rows)}"
        bounds = (worst["difference"], worst["ci_low"], worst["ci_high"])
        checks.append(at_most(4, run, name, *bounds, settings.prefix, "tables/prefix_differences.csv"))
    for run in claims(runs, settings):
        rows = slices[slices["run"] == run.run_id] if len(slices) else slices
        if rows.empty:
            command = f"python -m chessrl.evaluate parent={run.path} evaluate.split=test_mirrored, and test alike"
            checks.append(missing(4, run.label, "pass@1 on test less a slice", command))
        for row in rows.itertuples():
            name = f"pass@1 on test less {row.slice} at step {row.step}"
            bounds = (row.test_less_slice, row.ci_low, row.ci_high)
            checks.append(at_most(4, run.label, name, *bounds, settings.slice_drop, "tables/slices.csv"))
    return [
        Section("corpus_account", "Corpus and leaks", "Puzzles leaked on purpose, and games kept off the puzzles, by the corpus's manifest.",
                "summary.json, data/games-*/manifest.json", account),
        Section("prefixes", "Prefix completion", "How often a pretrained model writes exactly the rest of a text whose beginning it was given.",
                "prefixes/*/prefixes.parquet", prefixes, prefixes_figure(prefixes) if len(prefixes) else None),
        Section("prefix_differences", "Prefix completion: differences", "Training games less held-out ones, and test puzzles less their "
                "control (the same puzzles mirrored, in pairs; else held-out games).", "prefixes/*/prefixes.parquet", differences),
        Section("slices", "Beside the test set", "pass@1 on slices that no corpus can hold or that lie outside the test's range, beside the test "
                "set's.", "evaluations/*/samples.parquet", slices),
    ], checks  # fmt: skip


def holdout(runs: Sequence[Run], settings: EvidenceSettings, rng: np.random.Generator) -> Found:
    """5: the private split, and its access log."""
    path = Path(settings.log) if settings.log else runs[0].path.parent / LOG
    entries, rows, checks = read_log(path), [], []
    for run in claims(runs, settings):
        private = last_evaluation(run, "private")
        test = last_evaluation(run, settings.split, like=private, same_step=True) if private else None
        if test is None:
            command = f"python -m chessrl.evaluate parent={run.path} evaluate.split=private evaluate.open_private=true"
            if private is not None:  # another look would not help
                step = f"evaluate.step={private.labels['step']} and the settings of {private.folder}"
                command = f"python -m chessrl.evaluate parent={run.path} evaluate.split={settings.split} with {step}"
            checks.append(missing(5, run.label, f"pass@1 on {settings.split} less private", command))
            continue
        values = [solved_share(evaluation).to_numpy() for evaluation in (private, test)]
        difference, low, high = independent_difference(*values, rng)
        name = f"pass@1 on {settings.split} less private ({values[1].mean():.3f} and {values[0].mean():.3f})"
        checks.append(at_most(5, run.label, name, difference, low, high, settings.private_drop, "tables/private.csv"))
        row = {"run": run.run_id, "n_private": len(values[0]), "n_test": len(values[1]), "pass_at_1_private": values[0].mean()}
        rows.append(row | {"pass_at_1_test": values[1].mean(), "test_less_private": difference, "ci_low": low, "ci_high": high})
        looks = sum(entry["run"] == run.run_id for entry in entries)
        asked = f"1 to {settings.private_looks}"
        checks.append(stated(5, run.label, "logged looks at the private split", str(looks), asked, 1 <= looks <= settings.private_looks, str(path)))
    if entries:
        fault = log_fault(entries)
        found = fault or f"entries: {len(entries)}, last hash {entries[-1]['hash'][:12]}, puzzles {entries[0]['commitment'][:12]}"
        asked = "every hash holds, one set of puzzles"
        checks.append(stated(5, "log", "the chain of the access log", found, asked, not fault, "tables/private_access.csv"))
    else:
        checks.append(missing(5, "log", "the chain of the access log", f"the evaluation of the private split writes {path}"))
    return [
        Section("private", "Private hold-out", "pass@1 on puzzles that no training or tuning read.", "evaluations/*/samples.parquet",
                pd.DataFrame(rows)),
        Section("private_access", "Access log", "Every evaluation on the private split; each entry holds the hash of the one before it.", LOG,
                pd.DataFrame(entries)),
    ], checks  # fmt: skip


def drift(runs: Sequence[Run], settings: EvidenceSettings, rng: np.random.Generator) -> Found:
    """6: lengths, entropy, KL both ways, clipping, groups without variance; the entropy law."""
    trained = [run for run in runs if run.stage == "rl"]
    table = _joined(drift_table(run) for run in trained)
    laws = pd.DataFrame([law for run in trained for name in ("entropy", "root/entropy") if (law := entropy_law(run, rng, name))])
    bounds: tuple[tuple[str, Callable[..., Check], float], ...] = (
        ("kl", at_most, settings.kl), ("kl_from_reference", at_most, settings.kl), ("entropy", at_least, settings.entropy),
        ("frac_reward_zero_std", at_most, settings.zero_variance),
    )  # fmt: skip
    checks = []
    for run in claims(runs, settings):
        for metric, check, bound in bounds:
            rows = table[(table["run"] == run.run_id) & (table["metric"] == metric)] if len(table) else table
            if rows.empty:
                checks.append(missing(6, run.label, f"{metric} at the end", f"python -m rl, whose metrics.jsonl logs {metric}"))
            else:
                row = rows.iloc[0]
                found = (row["last"], row["last_low"], row["last_high"])
                checks.append(check(6, run.label, f"{row['measure']} at the end", *found, bound, "tables/drift.csv"))
    law = "R = -a e^H + b over a run's steps, R the oracle's share of right rollouts, H their entropy; the ceiling is R at H = 0 (arXiv 2505.22617)."
    return [
        Section("drift", "Drift", "Means over the first and the last tenth of the steps; lengths in sampled tokens, by correctness.",
                "metrics.jsonl", table),
        Section("entropy_law", "Entropy law", law, "metrics.jsonl", laws),
    ], checks  # fmt: skip


def person(runs: Sequence[Run], settings: EvidenceSettings, rng: np.random.Generator) -> Found:
    """7: the human audit's sheets that were read back."""
    kinds = ("agreement", "headline", "disagreements")
    tables: dict[str, list[pd.DataFrame]] = {kind: [] for kind in kinds}
    checks = []
    for run in claims(runs, settings):
        sheets = [audit.folder / "sheet" for audit in read_audits(run.path) if (audit.folder / "sheet" / "headline.csv").is_file()]
        if not sheets:
            audits = read_audits(run.path)
            folder = audits[-1].folder if audits else run.path / "audits" / "HASH"
            command = f"python -m analysis.audit audit={folder}, then the same with read=ANSWERS.json"
            checks.append(missing(7, run.label, "answers judged by a person", command))
            continue
        read = {kind: pd.read_csv(sheets[-1] / f"{kind}.csv") for kind in kinds}
        for kind in kinds:
            tables[kind].append(read[kind] if "run" in read[kind] else read[kind].assign(run=run.run_id))
        headline, line = read["headline"].iloc[0], read["agreement"].set_index("verifier").loc["line"]
        checks.append(enough(7, run.label, "answers judged", int(headline["judged"]), settings.judged, "tables/human_headline.csv"))
        agreement = (line["agreement"], line["ci_low"], line["ci_high"])
        checks.append(at_least(7, run.label, "agreement with the verifier", *agreement, settings.agreement, "tables/human_agreement.csv"))
        found = f"{headline['headline']:.3f} against {headline['corrected']:.3f} [{headline['ci_low']:.3f}, {headline['ci_high']:.3f}]"
        holds = headline["ci_low"] - settings.margin <= headline["headline"] <= headline["ci_high"] + settings.margin
        name, asked = "headline against the corrected one", f"within {settings.margin:g} of its interval"
        checks.append(stated(7, run.label, name, found, asked, holds, "tables/human_headline.csv"))
    texts = {
        "agreement": "How often each verifier said what the person said.",
        "headline": "pass@1 by the verifier and corrected by the judgements, post-stratified.",
        "disagreements": "Where the person and the verifier differ, by cause.",
    }
    sections = [
        Section(f"human_{kind}", f"Human audit: {kind}", texts[kind], "audits/*/sheet", _joined(tables[kind])) for kind in kinds
    ]
    return sections, checks


def _joined(tables) -> pd.DataFrame:
    kept = [table for table in tables if len(table)]
    return pd.concat(kept, ignore_index=True) if kept else pd.DataFrame()


ALL: tuple[Callable[[Sequence[Run], EvidenceSettings, np.random.Generator], Found], ...] = (
    compute, verifier, rewards, contamination, holdout, drift, person,
)  # fmt: skip
