"""The report's sections on what is reached with more samples: does RL extend it, or only reach it sooner?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.figure import Figure

from analysis import passk_figures, passk_tables
from analysis.chains import Checkpoint, checkpoints, startless, steps_of
from analysis.passk_data import Success, exact_success, sampled_success
from analysis.puzzle_tables import COMMAND as FACTS_COMMAND
from analysis.puzzle_tables import puzzle_facts
from analysis.read import Evaluation, Run
from analysis.sections import REACH, RULES, Section
from chessrl.config import AnalysisConfig
from chessrl.errors import UserError

EXACT, SAMPLES, FACTS = "evaluations/*/exact.parquet", "evaluations/*/samples.parquet", "data/baselines-*.parquet"
EXACT_COMMAND = "python -m chessrl.evaluate parent=RUN evaluate.split=test evaluate.exact=true (policies without traces)"
GROUP_KS = (1, 16)


def _section(
    name: str, title: str, text: str, source: str, table: pd.DataFrame, draw: Callable[[pd.DataFrame], Figure] | None, notes: Sequence[str] = (),
    absent: str = "", question: str = REACH,
) -> Section:  # fmt: skip
    """A section whose figure is drawn where there is a table; else the note ``absent`` says which command makes what is missing."""
    if table.empty:
        return Section(name, title, text, source, table, None, (*notes, absent) if absent else tuple(notes), question)
    return Section(name, title, text, source, table, draw(table) if draw else None, tuple(notes), question)


def passk_sections(runs: Sequence[Run], settings: AnalysisConfig) -> list[Section]:
    """All sections of the question, and legal play by ply."""
    sampled_at, exact_at = checkpoints(runs, "samples.parquet"), checkpoints(runs, "exact.parquet")
    notes: list[str] = []
    exact = _each(exact_at, exact_success, notes)
    lenient = _each(sampled_at, lambda item: sampled_success(item, strict=False), notes)
    strict = _each(_last(sampled_at), lambda item: sampled_success(item, strict=True), notes)
    drawn = _drawn(lenient, exact)
    facts = puzzle_facts(runs, sorted({name for item in drawn for name in item.puzzles})) if drawn else None
    pairs, final_pairs = _pairs(lenient, exact)
    return [
        _reach_section(drawn, lenient, strict, facts, notes, settings),
        _crossover_section(pairs, startless(sampled_at, steps_of(sampled_at)), settings),
        _section(
            "coverage", "Coverage: both, base only, RL only, neither",
            "Which puzzles do k samples of each policy solve? Expected shares for two independent sets of k samples; 'base only' is what training "
            "lost, 'RL only' what it gained. By bin in the table.",
            f"{EXACT} or {SAMPLES}", passk_tables.cells_table(final_pairs, settings.ks, settings.seed), passk_figures.cells_figure, (), _no_pair(),
        ),
        _section(
            "newly_solved", "Newly solved, beside the re-sampling null",
            "Of the puzzles that k samples of the base leave unsolved, which does the trained policy solve with k? k further samples of the "
            "base itself "
            "would solve some of them too: that is the null, and only the excess over it is gained.",
            f"{EXACT} or {SAMPLES}", passk_tables.newly_solved_table(final_pairs, settings.ks, settings.seed), passk_figures.newly_solved_figure, (),
            _no_pair(),
        ),
        _majority_section(_last(sampled_at), settings),
        _spelling_section(strict, lenient, settings),
        *_group_sections(drawn, facts, settings),
        _temperature_section(runs, settings),
        _budget_section(drawn, settings),
        _floor_section(drawn, facts, settings),
        _plies_section(runs),
    ]  # fmt: skip


def _no_pair() -> str:
    return f"This needs an RL run and the policy it began from, both evaluated on one split; exactly, for k above the samples: {EXACT_COMMAND}."


def _each(found: Sequence[Checkpoint], read: Callable[[Checkpoint], Success], notes: list[str]) -> list[Success]:
    """Of every checkpoint that can be read; a sentence for the others."""
    made = []
    for item in found:
        try:
            made.append(read(item))
        except UserError as error:
            notes.append(f"Left out: {error}.")
    return made


def _last(found: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Each experiment's last step."""
    by_runs = {tuple(run.run_id for run in item.runs): item for item in found}
    return [item for item in found if by_runs[tuple(run.run_id for run in item.runs)] is item]


def _drawn(lenient: Sequence[Success], exact: Sequence[Success]) -> list[Success]:
    """The last step of every experiment, exact where it can be."""
    by_label = {item.label: item for item in exact}
    wanted = _last([item.checkpoint for item in lenient])
    return [by_label.get(item.label, item) for item in lenient if any(item.checkpoint is other for other in wanted)]


def _pairs(lenient: Sequence[Success], exact: Sequence[Success]) -> tuple[list[tuple[Success, Success]], list[tuple[Success, Success]]]:
    """Every RL checkpoint with what it began from, exact where both are; those of the last steps beside the same with the pretrained policy."""
    found = []
    for kind in (lenient, exact):
        by_label = {item.label: item for item in kind}
        steps = steps_of([item.checkpoint for item in kind])
        starts = {step.later.label: step.start for step in steps}
        for step in steps:
            if step.later.stage == "rl":
                trained, base = by_label[step.later.label], by_label[step.start.label].began(step.later)
                found.append((base, trained))
                if base.label in starts:
                    found.append((by_label[starts[base.label].label].began(base.checkpoint), trained))
    exactly = {(base.label, trained.label) for base, trained in found if not base.samples}
    kept = [pair for pair in found if not pair[0].samples or (pair[0].label, pair[1].label) not in exactly]
    last = [item.label for item in _last([trained.checkpoint for _, trained in kept])]
    return kept, [pair for pair in kept if pair[1].label in last]


def _reach_section(
    drawn: Sequence[Success], lenient: Sequence[Success], strict: Sequence[Success], facts: pd.DataFrame | None, notes: Sequence[str],
    settings: AnalysisConfig,
) -> Section:  # fmt: skip
    labels = {item.label for item in drawn}
    curves = [item for item in (*drawn, *strict) if item.label in labels]
    curves += [item for item in lenient if item.label in labels and all(item is not other for other in drawn)]
    rows = [row for item in curves for row in passk_tables.curve_rows(item, settings.seed)]
    more = list(notes)
    if drawn and facts is not None:
        rows += passk_tables.reference_rows(facts, max((item.ks() for item in curves), key=len), settings.seed)
    elif drawn:
        more.append(f"Without lines of uniform legal play and of Stockfish at n nodes: {FACTS_COMMAND} makes them.")
    if drawn and not any(item.kind == "exact" for item in drawn):
        more.append(f"Sampled curves alone; up to a million samples: {EXACT_COMMAND}.")
    table = pd.DataFrame(rows)
    shown = table[table["kind"] != "sampled, strict"] if rows else table
    return _section(
        "reach", "pass@k up to a million samples",
        "What can each policy reach at all? pass@k = mean over puzzles of 1 − (1 − p)^k from exact success probabilities (one sample in canonical "
        "spelling), beside the unbiased estimate from samples under lenient spelling; strict samples, which estimate the exact curve, are in "
        "the table. "
        "Bands are 95 % bootstrap intervals over puzzles, and over seeds where there are several. The levels are Stockfish with so many "
        "nodes a move.",
        f"{EXACT}, {SAMPLES}, {FACTS}", table, lambda _: passk_figures.reach_figure(shown), more,
        "No evaluation was found: python -m chessrl.evaluate parent=RUN evaluate.split=test.",
    )  # fmt: skip


def _crossover_section(pairs: Sequence[tuple[Success, Success]], alone: list[str], settings: AnalysisConfig) -> Section:
    table = passk_tables.crossover_table(pairs, settings.seed)
    notes = list(alone) if pairs else []
    for row in table[table["bin"] == "all"].itertuples() if len(table) else ():
        reached = f"at k = {row.crossover_k:,.0f}" if row.crossover_k < float("inf") else f"nowhere up to k = {row.largest_k:,}"
        bounds = " to ".join(f"{k:,.0f}" if k < float("inf") else "none" for k in (row.k_low, row.k_high))
        notes.append(
            f"{row.pair} ({row.kind}): curves cross {reached} [{bounds}]; no crossing in {row.no_crossover:.0%} of resamples; Delta_SE "
            f"{100 * row.delta_se:.1f} [{100 * row.ci_low:.1f}, {100 * row.ci_high:.1f}] points."
        )
    return _section(
        "crossover", "Crossover and sampling-efficiency gap",
        "Where does the base catch up? k* is the smallest k from which on the base's pass@k is at least the trained policy's at every larger "
        "k measured; "
        "Delta_SE = pass@k of the base (k = 256, or the largest measured below it) − pass@1 of the trained policy: what one sample still lacks.",
        f"{EXACT} or {SAMPLES}", table, passk_figures.delta_figure, notes, _no_pair(),
    )  # fmt: skip


def _majority_section(last: Sequence[Checkpoint], settings: AnalysisConfig) -> Section:
    table, notes = passk_tables.majority_table(last, settings.seed)
    return _section(
        "majority", "maj@k",
        "Does voting find the answer? Share of puzzles that the most frequent of k sampled answers solves (ties shared); answers are equal where all "
        "their moves are. Subsets of the samples, drawn without replacement.",
        SAMPLES, table, lambda rows: passk_figures.lines_figure(rows, "bin", "k", "policy", "samples k", y="maj@k"), notes,
        "Evaluations made before answers were kept are made anew: python -m chessrl.evaluate.",
    )  # fmt: skip


def _spelling_section(strict: Sequence[Success], lenient: Sequence[Success], settings: AnalysisConfig) -> Section:
    by_label = {item.label: item for item in lenient}
    pairs = [(item, by_label[item.label]) for item in strict if item.label in by_label]
    return _section(
        "spelling", "Strict and lenient spelling",
        "How much of pass@k is spelling? The same samples judged by squares and promotion alone (lenient) and by the canonical tokens "
        "(strict), and the "
        "paired difference with its 95 % interval.",
        SAMPLES, passk_tables.spelling_table(pairs, settings.seed), None, (), "No evaluation was found.",
    )  # fmt: skip


def _group_sections(drawn: Sequence[Success], facts: pd.DataFrame | None, settings: AnalysisConfig) -> list[Section]:
    absent = f"Themes and lengths of these puzzles are in no table: {FACTS_COMMAND} writes it."
    groups = ({}, {}) if facts is None else (passk_tables.theme_groups(facts), passk_tables.length_groups(facts))
    made = [passk_tables.group_table(drawn, of_kind, GROUP_KS, settings.seed) for of_kind in groups]
    none = f"No theme has {passk_tables.LEAST_PUZZLES} puzzles." if facts is not None else absent
    return [
        _section(
            "themes", "pass@k by theme",
            f"On which themes? Themes with at least {passk_tables.LEAST_PUZZLES} puzzles (a puzzle may have several), the most frequent drawn; 95 % "
            "intervals over puzzles.",
            f"{EXACT} or {SAMPLES}, {FACTS}", made[0], lambda rows: passk_figures.groups_figure(rows, "theme (puzzles)"), (), none,
        ),
        _section(
            "line_length", "pass@k by line length",
            "How does success fall with the number of moves that the solver has to find?",
            f"{EXACT} or {SAMPLES}, {FACTS}", made[1], lambda rows: passk_figures.groups_figure(rows, "solver's moves (puzzles)"), (), absent,
        ),
    ]  # fmt: skip


def _temperature_section(runs: Sequence[Run], settings: AnalysisConfig) -> Section:
    tables, notes = [], []
    for run in runs:
        found = _by_temperature(run)
        if len(found) < 2:
            continue
        table = passk_tables.temperature_table(run, found, settings.seed)
        best = table[table["best"]].set_index("k")["temperature"]
        notes.append(f"{run.label}: best temperature " + ", ".join(f"{best[k]:g} at k = {k:,}" for k in (min(best.index), max(best.index))) + ".")
        tables.append(table)
    return _section(
        "temperature", "pass@k by temperature",
        "Which temperature is best for k samples? Evaluations of one policy on the same puzzles; the table gives, for each k, in what share of "
        "resamples a temperature is the best one.",
        f"{EXACT} or {SAMPLES}", pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(),
        lambda rows: passk_figures.lines_figure(
            rows.assign(temperature=[f"temperature {value:g}" for value in rows["temperature"]]), "run", "k", "temperature", "samples k"
        ), notes,
        "No run was evaluated at several temperatures: python -m chessrl.evaluate -m parent=RUN evaluate.split=test "
        "evaluate.temperature=0.3,0.6,1,1.5 "
        "evaluate.exact=true.",
    )  # fmt: skip


def _by_temperature(run: Run) -> dict[float, Success]:
    """The run's last step by temperature on the split, protocol and puzzles that most temperatures share; exact where all are."""
    last = max((item.labels["step"] for item in run.evaluations), default=None)
    groups: dict[str, list[Evaluation]] = {}
    for item in run.evaluations:
        if item.labels["step"] == last and item.labels["temperature"] > 0:
            settings = [item.labels[key] for key in ("split", "protocol", "spelling", "verifier", "thinking_budget")]
            groups.setdefault(str([*settings, item.n_puzzles]), []).append(item)
    if not groups:
        return {}
    chosen = max(groups.values(), key=lambda items: len({item.labels["temperature"] for item in items}))
    by_temperature = {float(item.labels["temperature"]): item for item in sorted(chosen, key=lambda item: (item.n_samples, item.folder.name))}
    exact = all((item.folder / "exact.parquet").is_file() for item in by_temperature.values())
    found = {}
    for temperature, item in sorted(by_temperature.items()):
        checkpoint = Checkpoint(run.label, run.stage, int(last), (run,), (item,))
        found[temperature] = exact_success(checkpoint) if exact else sampled_success(checkpoint, strict=False)
    first = next(iter(found.values()))
    return found if all((success.puzzles == first.puzzles).all() for success in found.values()) else {}


def _budget_section(drawn: Sequence[Success], settings: AnalysisConfig) -> Section:
    tokens, sizes = {}, {}
    for item in drawn:
        rates = [evaluation.rates for evaluation in item.checkpoint.evaluations]
        tokens[item.label] = float(pd.concat(table[(table["bin"] == "all") & (table["metric"] == "tokens")] for table in rates)["value"].mean())
        sizes[item.label] = float(item.checkpoint.runs[0].summary["parameters"]["without_embeddings"])
    table = passk_tables.budget_table(drawn, tokens, sizes, settings.seed)
    return _section(
        "budgets", "pass@k at matched budgets",
        "Is a policy better once its samples cost the same? k(B) = floor(B / cost of a sample) for a budget B per puzzle: sampled tokens, or "
        "FLOPs at 2N "
        "per sampled token (the prompt, read once, and attention are not counted; nor is what training cost).",
        f"{EXACT} or {SAMPLES}, evaluations/*/rates.csv, summary.json", table,
        lambda rows: passk_figures.lines_figure(rows, "unit", "budget", "policy", "{panel} per puzzle"), (), "No evaluation was found.",
    )  # fmt: skip


def _floor_section(drawn: Sequence[Success], facts: pd.DataFrame | None, settings: AnalysisConfig) -> Section:
    table = passk_tables.floor_table(drawn, facts, settings.seed) if facts is not None else pd.DataFrame()
    return _section(
        "floor", "Beyond uniform legal play",
        "How much of a large pass@k is chance? Of what k random legal players would leave unsolved, the share that the policy solves beyond them: "
        "sum (v − f) / sum (1 − f) over puzzles, with pass@k v of the policy and f of uniform legal play; below 0 the policy reaches less "
        "than chance (drawn down to −100 %). Where chance leaves less than 2 % of the puzzles no ratio is given.",
        f"{EXACT} or {SAMPLES}, {FACTS}", table,
        lambda rows: passk_figures.lines_figure(rows, "bin", "k", "policy", "samples k", value="excess", y="excess over uniform play"), (),
        f"The success of uniform legal play on these puzzles is in no table: {FACTS_COMMAND} writes it.",
    )  # fmt: skip


def _plies_section(runs: Sequence[Run]) -> Section:
    parts = []
    for run in runs:
        files = [evaluation.folder / "games.csv" for evaluation in run.evaluations]
        of_run = [pd.read_csv(path).assign(policy=run.label) for path in files if path.is_file()]
        parts += sorted(of_run, key=lambda table: table["games"].max())[-1:]  # of most games
    table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return _section(
        "plies", "Legal play by ply on held-out games",
        "Does the model know the rules, and does it predict the move? By the place of the move in the document (1: right behind the "
        "position): legal mass (probability of all legal moves together, "
        "exact) and how often the played move is the likeliest legal one, with 95 % bootstrap intervals over games.",
        "evaluations/*/games.csv", table,
        lambda rows: passk_figures.lines_figure(rows, "measure", "ply", "policy", "move of the document", value="value", y="share", log=False), (),
        "No model was measured on games: python -m chessrl.evaluate parent=PRETRAINED_RUN evaluate.games=200.", RULES,
    )  # fmt: skip
