"""What the report holds: one section per question, each with the sentence that defines its numbers, its table and its figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd
from matplotlib.figure import Figure

from analysis import figures, tables
from analysis.figures import Panel
from analysis.read import STAGES, Run
from analysis.tables import Selection

SHORT, TRAINING, REACH, RULES = "In short", "Training", "What is reached with more samples?", "Legality, failures and judges"
QUESTION_OF = {
    **dict.fromkeys(("final", "runs"), SHORT),
    **dict.fromkeys(("passk", "bins", "comparisons"), REACH),
    **dict.fromkeys(("failures", "legal", "verifiers"), RULES),
}
NO_EVALUATION = "No evaluation was found in these runs, so the figure is left out."


@dataclass(frozen=True, slots=True)
class Section:
    """`name` is the stem of its files; `table` may be empty, `figure` absent: the notes then say why."""

    name: str
    title: str
    text: str
    source: str
    table: pd.DataFrame
    figure: Figure | None = None
    notes: tuple[str, ...] = field(default=())
    question: str = TRAINING  # the group of the page that it belongs to


@dataclass(frozen=True, slots=True)
class CurveSection:
    """Logged metrics of one stage over its steps or tokens.

    A panel key ending in "/*" stands for every metric below it; "{rl_bins}" in text and labels for the bins that RL trained on.
    """

    name: str
    title: str
    text: str
    stage: str
    x: str
    panels: tuple[Panel, ...]


SMOOTHED = f"Lines are running means over {tables.SMOOTHING_SHARE:.0%} of the logged steps, drawn over the pale logged values."
NO_PARTS = {"reward/oracle", "reward/gap"}  # below "reward/", but audits of the whole reward
CURVES = (
    CurveSection(
        "loss_pretrain", "Pretraining loss",
        "How well does the model predict games? Cross-entropy in nats per move token, on training batches and on held-out games, "
        "over cumulative training tokens (padding excluded).",
        "pretrain", "tokens", (Panel("loss (nats per token)", {"loss": "training", "validation/loss": "validation"}),),
    ),
    CurveSection(
        "loss_sft", "Supervised fine-tuning loss",
        "What does fine-tuning learn, the trace or the answer? Cross-entropy in nats per trained token (prompt and opponent moves carry "
        "none): all of them, those of the trace, those of the answer.",
        "sft", "tokens",
        (
            Panel("loss, all (nats per token)", {"loss": "training", "validation/loss": "validation"}),
            Panel("loss, trace (nats per token)", {"loss/trace": "training", "validation/loss_trace": "validation"}),
            Panel("loss, answer (nats per token)", {"loss/answer": "training", "validation/loss_answer": "validation"}),
        ),
    ),
    CurveSection(
        "reward", "RL reward",
        "Does the reward rise, and does held-out skill rise with it? Mean reward of a step's rollouts (and its parts where there "
        "are several), and pass@1 on the validation puzzles of the bins that RL trains on (rl.bins: {rl_bins}), unlike pass@1 on all "
        "puzzles elsewhere on this page.",
        "rl", "step",
        (
            Panel("reward", {"reward": "reward"}, from_zero=True),
            Panel("reward, by part", {"reward/*": ""}, from_zero=True),
            Panel("validation pass@1 ({rl_bins})", {"validation/pass_at_1": "validation pass@1"}, from_zero=True),
        ),
    ),
    CurveSection(
        "rl_drift", "Response length and entropy over RL",
        "Do responses drift in length or lose entropy? Sampled tokens per rollout (mean, by correctness of the answer, and of the trace) "
        "and the policy's mean entropy in nats per sampled token.",
        "rl", "step",
        (
            Panel(
                "length (tokens)",
                {
                    "completions/mean_length": "all",
                    "completions/mean_length_correct": "correct",
                    "completions/mean_length_incorrect": "incorrect",
                    "completions/mean_trace_length": "trace",
                },
            ),
            Panel("entropy (nats per token)", {"entropy": "entropy"}),
            Panel("truncated rollouts (share)", {"completions/clipped_ratio": "truncated"}, from_zero=True),
        ),
    ),
    CurveSection(
        "rl_optimisation", "KL divergence, gradient norm and clipping",
        "How far and how roughly does RL move the policy? k3 estimate of the KL divergence to the SFT policy in nats per token, gradient "
        "norm before clipping, share of tokens whose probability ratio is clipped below or above.",
        "rl", "step",
        (
            Panel("KL to SFT (nats per token)", {"kl": "kl"}),
            Panel("gradient norm", {"grad_norm": "grad_norm"}),
            Panel("clipped tokens (share)", {"clip_ratio/low": "low", "clip_ratio/high": "high"}, from_zero=True),
        ),
    ),
    CurveSection(
        "rl_groups", "Groups without a signal",
        "How many groups teach nothing? Share of groups whose rollouts all have the same reward (their advantages are zero), and the "
        "standard deviation of rewards.",
        "rl", "step",
        (
            Panel("zero-variance groups (share)", {"frac_reward_zero_std": "zero-variance groups"}, from_zero=True),
            Panel("reward standard deviation", {"reward_std": "standard deviation"}, from_zero=True),
        ),
    ),
    CurveSection(
        "rl_sampler", "Drift between sampler and trainer",
        "Do sampler and trainer agree on what was sampled? Absolute difference in nats of a sampled token's log-probability between the "
        "sampler and the trainer's forward pass, mean and maximum over a step's tokens.",
        "rl", "step",
        (
            Panel("mean difference (nats)", {"sampling/logp_difference/mean": "mean"}),
            Panel("maximum difference (nats)", {"sampling/logp_difference/max": "maximum"}),
        ),
    ),
    CurveSection(
        "rl_format", "Legality and format of rollouts",
        "Does RL first repair the form of answers? Share of training rollouts whose solver moves are all legal, and of those whose form "
        "is complete.",
        "rl", "step", (Panel("share of rollouts", {"policy/legal": "legal", "policy/format": "well formed"}, from_zero=True),),
    ),
)  # fmt: skip


def _curve_section(section: CurveSection, runs: Sequence[Run]) -> Section:
    of_stage = [run for run in runs if run.stage == section.stage]
    bins = _rl_bins(of_stage) if section.stage == "rl" else ""
    panels = [
        replace(panel, label=panel.label.replace("{rl_bins}", bins), metrics=_expand(panel.metrics, of_stage)) for panel in section.panels
    ]
    panels = [panel for panel in panels if panel.metrics]
    metrics = [metric for panel in panels for metric in panel.metrics]
    table = tables.curves_table(of_stage, metrics)
    absent = [metric for metric in metrics if metric not in set(table["metric"])]
    notes = []
    if not of_stage:
        notes.append(f"No {STAGES[section.stage]} run was given, so the figure is left out.")
    elif absent:
        notes.append(f"Not logged by these runs, so left out: {', '.join(absent)}.")
    notes += _clipping_notes(table, of_stage)
    relogged = sum(run.relogged_steps for run in of_stage)
    if relogged:
        notes.append(f"{relogged} lines were superseded by a later line of the same step (resumed runs) and are not drawn.")
    shown = figures.drawable(table, panels)
    figure = figures.curves_figure(table, shown, section.x) if shown else None
    text = section.text.replace("{rl_bins}", bins) + (f" {SMOOTHED}" if not table["value"].equals(table["smoothed"]) else "")
    return Section(section.name, section.title, text, "metrics.jsonl", table, figure, tuple(notes))


def _expand(metrics: dict[str, str], runs: Sequence[Run]) -> dict[str, str]:
    """Replace a key "prefix/*" by every logged metric below the prefix, or keep it to be named as absent.

    A single metric below the prefix is the whole, which has its own panel: it is not drawn twice.
    """
    expanded: dict[str, str] = {}
    for metric, name in metrics.items():
        prefix = metric.removesuffix("*")
        below = sorted({logged for run in runs for logged in run.metrics if prefix != metric and logged.startswith(prefix)} - NO_PARTS)
        if len(below) != 1:
            expanded |= {logged: logged.removeprefix(prefix) for logged in below} or {metric: name}
    return expanded


def _rl_bins(runs: Sequence[Run]) -> str:
    """"B1, B2, B3 only", the bins of rl.bins (empty: all bins); with several runs that differ, "each run its own"."""
    choices = {f"{', '.join(run.setting('rl.bins'))} only" if run.setting("rl.bins") else "all bins" for run in runs}
    return choices.pop() if len(choices) == 1 else "each run its own"


def _clipping_notes(table: pd.DataFrame, runs: Sequence[Run]) -> list[str]:
    """Why no token is clipped, where it cannot be otherwise."""
    clipped = table[table["metric"].str.startswith("clip_ratio/")]
    if clipped.empty or clipped["value"].any():
        return []
    if any(run.setting("algorithm.epochs") * run.setting("algorithm.minibatches") > 1 for run in runs):
        return []
    return [
        "No token is ever clipped: with one update per rollout (algorithm.epochs = algorithm.minibatches = 1) the policy that is updated "
        "is the one that sampled, so every probability ratio is 1."
    ]


def _evaluation_section(
    name: str, title: str, text: str, source: str, table: pd.DataFrame, draw: Callable[[pd.DataFrame], Figure], notes: tuple[str, ...] = ()
) -> Section:
    if table.empty:
        return Section(name, title, text, source, table, None, notes or (NO_EVALUATION,))
    return Section(name, title, text, source, table, draw(table), notes)


def _selection_notes(selection: Selection) -> tuple[str, ...]:
    notes = []
    if selection.policies:
        notes.append(f"Drawn: the {selection.split} split, each run's last evaluated step.")
    if selection.runs_without:
        notes.append(f"Without an evaluation to draw: {', '.join(selection.runs_without)}.")
    if selection.rest:
        notes.append(f"{selection.rest} evaluations of earlier steps or other splits are not drawn; all are in tables/all_passk.csv.")
    if selection.smaller:
        notes.append(
            f"Not drawn beside one of the same settings with more puzzles, or else more samples: {selection.smaller}; "
            "all are in tables/all_passk.csv."
        )
    return tuple(notes)


def _comparison_section(runs: Sequence[Run], selection: Selection, seed: int) -> Section:
    table, notes = tables.comparisons(runs, selection.policies, seed)
    ks = [k for k in tables.FINAL_KS if k in set(table["k"])] or sorted(set(table["k"]))[:3]
    return _evaluation_section(
        "comparisons", "Paired comparisons",
        "Is a difference between two policies more than chance? pass@k of the later minus that of the earlier policy on the same puzzles, "
        "with 95 % intervals from a paired bootstrap over puzzles; an interval that excludes 0 is a difference.",
        "evaluations/*/samples.parquet", table, lambda rows: figures.comparisons_figure(rows, ks),
        tuple(notes) or (() if len(table) else ("No run was given together with a run it descends from, both evaluated.",)),
    )  # fmt: skip


def _verifier_section(selection: Selection, seed: int) -> Section:
    table = tables.verifier_table(selection, seed)
    notes = ["No policy was evaluated by the engine (evaluate.verifier=engine), so the figure is left out."]
    if len(table):
        several = table["policy"].nunique() > 1
        table = table.assign(judged=(table["policy"] + ", " if several else "") + table["judge"])
        notes = [
            f"{row.policy}: n = {row.n_puzzles:,} puzzles with {row.n_samples} samples each; engine − line in points of pass@1: "
            f"{tables.percent_interval(row.value, row.ci_low, row.ci_high)}."
            for row in table[(table["bin"] == "all") & (table["judge"] == tables.JUDGES[-1])].itertuples()
        ]
    return _evaluation_section(
        "verifiers", "Does the verifier matter?",
        "How much of the pass rate hangs on who judges? pass@1 of one and the same set of samples: when only the puzzle's line (and any "
        "mate) counts, when every move counts whose engine score is close enough to the best, and the paired difference of the two with "
        "its 95 % interval. An accepted move off the line ends the episode solved, so where the engine at its limits sees no mate nearly "
        "every winning move passes.",
        "evaluations/*/samples.parquet", table, lambda rows: figures.bars_figure(rows, "value", "pass@1, same samples", "judged"),
        tuple(notes),
    )  # fmt: skip


def build_sections(runs: Sequence[Run], selection: Selection, seed: int) -> list[Section]:
    """Every section of the report in reading order. seed: of the paired bootstrap."""
    passk, rates = tables.labelled(selection.policies, "passk"), tables.labelled(selection.policies, "rates")
    final = tables.final_table(passk, rates) if len(passk) else passk
    pass_at_1 = passk[passk["k"] == 1] if len(passk) else passk
    legal = rates[rates["metric"] == "legal"] if len(rates) else rates
    curves = {section.name: _curve_section(section, runs) for section in CURVES}
    sections = [
        Section(
            "final", "Result in short",
            "How good is each policy? Mean over puzzles, in percent, of unbiased pass@k and of the share of samples whose moves are all "
            "legal, with 95 % intervals over puzzles.",
            "evaluations/*/passk.csv and rates.csv", final, None, _selection_notes(selection) or (NO_EVALUATION,),
        ),
        Section(
            "runs", "Runs",
            "What was trained, on how much? N parameters (without embedding and output tables; all parameters are with them), training "
            "tokens without padding, floating-point operations of the stage counted as 6N per trained token (and 2N per pass without "
            "gradients), and those of sampling the traces that it was trained on; final losses in nats per token (RL's objective is no "
            "such loss), final mean reward, wall time in seconds.",
            "summary.json and metrics.jsonl", tables.runs_table(runs),
        ),
        curves["loss_pretrain"],
        curves["loss_sft"],
        curves["reward"],
        _evaluation_section(
            "passk", "pass@k",
            "What does each stage reach with more samples? pass@k = 1 − C(n − c, k) / C(n, k) for n samples of which c solve the puzzle, "
            "averaged over puzzles; bands are 95 % bootstrap intervals over puzzles (Wilson where all puzzles agree). All panels share one "
            "vertical axis.",
            "evaluations/*/passk.csv", passk, figures.passk_figure,
        ),
        _evaluation_section(
            "bins", "pass@1 by difficulty",
            "On which puzzles does each stage gain? Share of samples that solve the puzzle, averaged over the puzzles of a bin, with 95 % "
            "intervals over puzzles.",
            "evaluations/*/passk.csv", pass_at_1, lambda table: figures.bars_figure(table, "pass_at_k", "pass@1", "policy"),
        ),
        _comparison_section(runs, selection, seed),
        _evaluation_section(
            "failures", "Why samples fail",
            "What goes wrong? Every sample has one outcome: solved, or the first failure that ended it (a wrong but legal move, an illegal "
            "move, a malformed move, a move not closed, a trace never ended); shares averaged over puzzles.",
            "evaluations/*/rates.csv", tables.failures_table(selection.policies), figures.failures_figure,
        ),
        _evaluation_section(
            "legal", "Legal play",
            "Does the policy know the rules? Share of samples in which every solver move is legal, averaged over the puzzles of a bin, "
            "with 95 % intervals over puzzles.",
            "evaluations/*/rates.csv", legal, lambda table: figures.bars_figure(table, "value", "legal samples", "policy"),
        ),
        _verifier_section(selection, seed),
        curves["rl_drift"],
        curves["rl_optimisation"],
        curves["rl_groups"],
        curves["rl_sampler"],
        curves["rl_format"],
    ]  # fmt: skip
    return [replace(section, question=QUESTION_OF.get(section.name, TRAINING)) for section in sections]
