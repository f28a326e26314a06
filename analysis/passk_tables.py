"""Tables on pass@k: curves to 10^6, reference lines, majority votes, crossovers, coverage cells, newly solved puzzles, budgets, the floor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.chains import Checkpoint
from analysis.coverage import CELLS, coverage_cells, crossover, delta_se, exact_pass_at_k, matched_samples, newly_solved
from analysis.passk_data import Success, common, majority
from analysis.read import Run
from analysis.resampling import Weights, interval, ratio_intervals
from chessrl.errors import UserError
from chessrl.statistics import bootstrap_means, nested_differences, nested_means

SE_K = 256  # of Delta_SE
LEAST_PUZZLES = 20  # of a theme that is shown
LEAST_LEFT = 0.02  # of the puzzles: a ratio to less than that is noise
UNIFORM = "uniform legal play"
BUDGETS = 2.0 ** np.arange(3, 15)  # sampled tokens per puzzle


def curve_rows(success: Success, seed: int) -> list[dict[str, object]]:
    """pass@k of one checkpoint by bin and k, intervals over puzzles (and seeds)."""
    rows = []
    for name, mask in success.masks():
        part, ks = success.only(mask), success.ks()
        for k, (point, low, high) in zip(ks, nested_means(part.pass_at(ks), np.random.default_rng(seed))):
            place = {"policy": success.label, "kind": success.kind, "bin": name, "k": k, "pass_at_k": point, "ci_low": low, "ci_high": high}
            rows.append(place | {"n_puzzles": len(part.puzzles), "seeds": len(part.values)})
    return rows


def reference_rows(facts: pd.DataFrame, ks: Sequence[int], seed: int) -> list[dict[str, object]]:
    """The same of uniform legal play (exact) and of Stockfish, whose answer is the same every time (k = 1)."""
    rows = []
    engines = [name for name in facts if str(name).startswith("stockfish_") and facts[name].notna().all()]
    for name, mask in [("all", np.ones(len(facts), bool)), *((name, (facts["bin"] == name).to_numpy()) for name in sorted(set(facts["bin"])))]:
        part = facts[mask]
        curves = [(UNIFORM, "exact", list(ks), exact_pass_at_k(part["uniform"].to_numpy(), ks))]
        curves += [(_engine_name(engine), "played", [1], part[[engine]].to_numpy()) for engine in engines]
        for policy, kind, places, values in curves:
            for k, (point, low, high) in zip(places, bootstrap_means(values, np.random.default_rng(seed))):
                place = {"policy": policy, "kind": kind, "bin": name, "k": k, "pass_at_k": point, "ci_low": low, "ci_high": high}
                rows.append(place | {"n_puzzles": len(part), "seeds": 1})
    return rows


def _engine_name(column: str) -> str:
    nodes = column.removeprefix("stockfish_")
    return f"Stockfish, {int(nodes):,} node{'s' if nodes != '1' else ''}"


def spelling_table(pairs: Sequence[tuple[Success, Success]], seed: int) -> pd.DataFrame:
    """pass@k under strict and lenient spelling of the same samples, and the paired difference: policy, k, strict, lenient, difference, interval."""
    rows = []
    for strict, lenient in pairs:
        ks = [k for k in (1, 4, 16, 64) if k <= strict.samples]
        a, b = strict.pass_at(ks), lenient.pass_at(ks)
        found = nested_differences(a, b, np.random.default_rng(seed))
        for at, (k, (point, low, high)) in enumerate(zip(ks, found)):
            values = {"strict": a[..., at].mean(), "lenient": b[..., at].mean(), "difference": point, "ci_low": low, "ci_high": high}
            rows.append({"policy": strict.label, "k": k} | values | {"n_puzzles": len(strict.puzzles)})
    return pd.DataFrame(rows)


def majority_table(checkpoints: Sequence[Checkpoint], seed: int) -> tuple[pd.DataFrame, list[str]]:
    """maj@k by policy and bin (columns as of a pass@k table, value in ``pass_at_k``), and why a policy has none."""
    rows, notes = [], []
    for checkpoint in checkpoints:
        n = min(evaluation.n_samples for evaluation in checkpoint.evaluations)
        ks = [k for k in (1, 4, 16, 64, 256, 1024) if k <= n]
        try:
            values = np.stack([majority(evaluation, ks, np.random.default_rng(seed)) for evaluation in checkpoint.evaluations])
        except UserError as error:
            notes.append(f"{checkpoint.label}: {error}.")
            continue
        bins = checkpoint.evaluations[0].samples().groupby("puzzle")["bin"].first().sort_index().to_numpy()
        for name in ("all", *sorted(set(bins))):
            part = values[:, (bins == name) | (name == "all")]
            for k, (point, low, high) in zip(ks, nested_means(part, np.random.default_rng(seed))):
                place = {"policy": checkpoint.label, "bin": name, "k": k, "pass_at_k": point, "ci_low": low, "ci_high": high}
                rows.append(place | {"n_puzzles": part.shape[1], "seeds": len(part)})
    return pd.DataFrame(rows), notes


def group_table(found: Sequence[Success], groups: dict[str, np.ndarray], ks: Sequence[int], seed: int) -> pd.DataFrame:
    """pass@k by group of puzzles (name -> puzzle names): policy, group, k, value, interval, n_puzzles."""
    rows = []
    for success in found:
        usable = [k for k in ks if not success.samples or k <= success.samples]
        for name, puzzles in groups.items():
            mask = np.isin(success.puzzles, puzzles)
            if not mask.any():
                continue
            for k, (point, low, high) in zip(usable, nested_means(success.only(mask).pass_at(usable), np.random.default_rng(seed))):
                place = {"policy": success.label, "group": name, "k": k, "value": point, "ci_low": low, "ci_high": high}
                rows.append(place | {"n_puzzles": int(mask.sum())})
    return pd.DataFrame(rows)


def theme_groups(facts: pd.DataFrame) -> dict[str, np.ndarray]:
    """Puzzles of every theme with at least LEAST_PUZZLES, most frequent first."""
    words = facts["themes"].str.split().explode().dropna()
    counts = words.value_counts()
    return {str(theme): words.index[words == theme].to_numpy() for theme in counts.index[counts >= LEAST_PUZZLES]}


def length_groups(facts: pd.DataFrame) -> dict[str, np.ndarray]:
    """Puzzles by the number of the solver's moves."""
    lengths = facts["decisions"]
    return {f"{moves} move{'s' if moves > 1 else ''}": facts.index[lengths == moves].to_numpy() for moves in sorted(set(lengths))}


# ---- a base and a trained policy --------------------------------------------------------------------------------------------------------


def pair_name(base: Success, trained: Success) -> str:
    return f"{trained.label} against {base.label}"


def crossover_table(pairs: Sequence[tuple[Success, Success]], seed: int) -> pd.DataFrame:
    """By pair and bin: k* (inf: none up to the largest k) with its interval and the share of resamples without one, and Delta_SE with its own."""
    rows = []
    for base, trained in pairs:
        base, trained = common(base, trained)
        ks = [k for k in base.ks() if k in trained.ks()]
        large = max(k for k in ks if k <= SE_K)
        for name, mask in base.masks():
            a, b = base.only(mask), trained.only(mask)
            a_values, b_values = a.pass_at(ks), b.pass_at(ks)
            seeds = max(len(a_values), len(b_values))
            a_values, b_values = (np.broadcast_to(values, (seeds, *values.shape[1:])) for values in (a_values, b_values))
            weights = Weights.draw(len(a.puzzles), seeds, np.random.default_rng(seed))
            found = crossover(a_values, b_values, ks, weights)
            gap = delta_se(a_values[..., ks.index(large)], b_values[..., 0], weights)
            rows.append(
                {
                    "pair": pair_name(base, trained), "kind": base.kind, "bin": name,
                    "crossover_k": found.k, "k_low": found.low, "k_high": found.high, "no_crossover": found.never, "largest_k": ks[-1],
                    "delta_se_k": large, "delta_se": gap[0], "ci_low": gap[1], "ci_high": gap[2],
                    "n_puzzles": len(a.puzzles), "seeds": seeds,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def cells_table(pairs: Sequence[tuple[Success, Success]], ks: Sequence[int], seed: int) -> pd.DataFrame:
    """Four cells of coverage by pair, k and bin: share of puzzles and its interval."""
    rows = []
    for base, trained in pairs:
        base, trained = common(base, trained)
        for k in _usable(ks, base, trained):
            cells = coverage_cells(base.pass_at([k])[..., 0], trained.pass_at([k])[..., 0])
            for name, mask in base.masks():
                for cell, (point, low, high) in zip(CELLS, nested_means(np.clip(cells[:, mask], 0, 1), np.random.default_rng(seed))):
                    place = {"pair": pair_name(base, trained), "kind": base.kind, "k": k, "bin": name, "cell": cell, "share": point}
                    rows.append(place | {"ci_low": low, "ci_high": high, "n_puzzles": int(mask.sum())})
    return pd.DataFrame(rows)


def _usable(ks: Sequence[int], base: Success, trained: Success) -> list[int]:
    """The asked ks that both numbers of samples allow; the largest possible one where none is."""
    most = min((item.samples for item in (base, trained) if item.samples), default=max(ks))
    return [k for k in ks if k <= most] or [most]


def newly_solved_table(pairs: Sequence[tuple[Success, Success]], ks: Sequence[int], seed: int) -> pd.DataFrame:
    """Of what k base samples leave unsolved, what k of the trained policy solve beside the null and the excess over it, with intervals."""
    rows = []
    for base, trained in pairs:
        base, trained = common(base, trained)
        most = min((base.samples or 2 * max(ks)) // 2, trained.samples or max(ks))
        for k in [k for k in ks if k <= most] or [most]:
            a, twice, b = base.pass_at([k])[..., 0], base.pass_at([2 * k])[..., 0], trained.pass_at([k])[..., 0]
            seeds = max(len(a), len(b))
            a, twice, b = (np.broadcast_to(values, (seeds, values.shape[1])) for values in (a, twice, b))
            found = newly_solved(a, twice, b, Weights.draw(a.shape[1], seeds, np.random.default_rng(seed)))
            for measure in ("unsolved", "newly_solved", "null", "excess"):
                point, low, high = found[measure]
                place = {"pair": pair_name(base, trained), "kind": base.kind, "k": k, "measure": measure.replace("_", " "), "value": point}
                rows.append(place | {"ci_low": low, "ci_high": high, "n_puzzles": a.shape[1]})
    return pd.DataFrame(rows)


def floor_table(found: Sequence[Success], facts: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Of what uniform legal play leaves unsolved with k samples, the share that the policy solves beyond it: sum (v - f) / sum (1 - f).

    Where it leaves less than LEAST_LEFT of the puzzles there is no row.
    """
    rows = []
    for success in found:
        ks = [k for k in (1, 4, 16, 64, 256, 1024) if not success.samples or k <= success.samples]
        for name, mask in success.masks():
            part = success.only(mask)
            floor = exact_pass_at_k(facts.loc[part.puzzles, "uniform"].to_numpy(), ks)
            values, weights = part.pass_at(ks), part.weights(seed)
            for at, k in enumerate(ks):
                left = np.broadcast_to(1 - floor[:, at], values.shape[:2])
                if left.mean() < LEAST_LEFT:
                    continue
                ((point, low, high),) = ratio_intervals((values[..., at] - floor[:, at])[..., None], left, weights, shares=False)
                place = {"policy": success.label, "bin": name, "k": k, "floor": float(floor[:, at].mean()), "excess": point}
                rows.append(place | {"ci_low": low, "ci_high": high, "n_puzzles": len(part.puzzles)})
    return pd.DataFrame(rows)


def budget_table(found: Sequence[Success], tokens: dict[str, float], sizes: dict[str, float], seed: int) -> pd.DataFrame:
    """pass@k(B) for budgets per puzzle, k(B) = floor(B / cost of a sample): budget in sampled tokens, or in FLOPs (2N per sampled token).

    tokens, sizes: mean sampled tokens and N of every policy by label. Budgets that buy no sample or more than there are have no row.
    """
    rows = []
    for success in found:
        per_sample = tokens[success.label]
        units = (("tokens", per_sample, 1.0), ("FLOPs", per_sample * 2 * sizes[success.label], 2 * min(sizes.values())))
        for unit, cost, scale in units:
            for budget in BUDGETS * scale:
                k = matched_samples(budget, cost)
                if cost > budget or (success.samples and k > success.samples):
                    continue
                ((point, low, high),) = nested_means(success.pass_at([k]), np.random.default_rng(seed))
                place = {"policy": success.label, "unit": unit, "budget": budget, "k": k, "cost_of_a_sample": cost, "pass_at_k": point}
                rows.append(place | {"ci_low": low, "ci_high": high, "n_puzzles": len(success.puzzles)})
    return pd.DataFrame(rows)


# ---- temperature ------------------------------------------------------------------------------------------------------------------------


def temperature_table(run: Run, found: dict[float, Success], seed: int) -> pd.DataFrame:
    """pass@k by temperature of one run's evaluations of the same puzzles: with, for each k, in what share of resamples that one is the best."""
    ks = [k for k in next(iter(found.values())).ks() if all(k in success.ks() for success in found.values())]
    values = {temperature: success.pass_at(ks)[0] for temperature, success in found.items()}  # (P, ks)
    puzzles = len(next(iter(values.values())))
    weights = Weights.draw(puzzles, 1, np.random.default_rng(seed))
    drawn = {temperature: weights.sums(of_one[None])[0] / puzzles for temperature, of_one in values.items()}
    best = np.argmax(np.stack(list(drawn.values())), axis=0)  # (resamples, ks)
    points = np.stack([of_one.mean(0) for of_one in values.values()])
    rows = []
    for number, (temperature, of_one) in enumerate(values.items()):
        for at, k in enumerate(ks):
            point, low, high = interval(float(of_one[:, at].mean()), [drawn[temperature][:, at]], puzzles, share=True)
            place = {"run": run.label, "temperature": temperature, "k": k, "pass_at_k": point, "ci_low": low, "ci_high": high}
            chosen = {"best": bool(points[:, at].argmax() == number), "best_share": float((best[:, at] == number).mean()), "n_puzzles": puzzles}
            rows.append(place | chosen)
    return pd.DataFrame(rows)
