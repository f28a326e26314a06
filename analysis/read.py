"""Run directories and evaluation folders into records. Only files are read; every error names the file and what to do."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as parquet
import yaml
from pyarrow import ArrowInvalid

from chessrl.errors import UserError
from chessrl.statistics import LABELS, PASSK_COLUMNS, RATES_COLUMNS

STAGES = {"pretrain": "Pretrained", "sft": "SFT", "rl": "RL"}  # in the order of the pipeline, with the names figures use
SUMMARY_KEYS = ("stage", "run_id", "parents", "parameters", "tokens", "flops")
PARAMETER_KEYS = ("total", "without_embeddings")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation folder: LABELS and size, the pass@k and rates tables as written."""

    folder: Path
    labels: Mapping[str, object]
    n_puzzles: int
    n_samples: int  # per puzzle
    passk: pd.DataFrame
    rates: pd.DataFrame

    def samples(self, *further: str) -> pd.DataFrame:
        """The columns of samples.parquet that paired comparisons need, and `further` ones.

        Raises UserError if the file is missing, unreadable or lacks one.
        """
        path = self.folder / "samples.parquet"
        needed = ["puzzle", "bin", "sample", "solved", *further]
        if not path.is_file():
            raise UserError(f"{path}: the file is missing; evaluate the run again")
        try:
            present = parquet.read_schema(path).names
        except ArrowInvalid as error:
            raise UserError(f"{path}: not a readable parquet table ({str(error).splitlines()[0]}); evaluate the run again") from None
        missing = [name for name in needed if name not in present]
        if missing:
            raise UserError(f"{path}: column {missing[0]} is missing, expected {', '.join(needed)}; evaluate the run again")
        return pd.read_parquet(path, columns=needed)

    def exact(self) -> pd.DataFrame | None:
        """Exact success of every puzzle (puzzle, split, bin, decisions, p), where evaluate.exact made it."""
        return self._optional("exact.parquet")

    def policy(self) -> pd.DataFrame | None:
        """All legal moves at each decision (chessrl.measurement.POLICY_TABLE), where evaluate.policy_traces made it."""
        return self._optional("policy.parquet")

    def _optional(self, name: str) -> pd.DataFrame | None:
        path = self.folder / name
        return pd.read_parquet(path) if path.is_file() else None


@dataclass(frozen=True, slots=True)
class Run:
    """One completed run. `label` is its name in figures: the stage's, with the start of the id where a stage has several runs."""

    path: Path
    run_id: str
    label: str
    stage: str
    parents: tuple[str, ...]
    summary: Mapping[str, object]
    config: str  # config.yaml as written
    settings: Mapping[str, object]  # the same, parsed
    metrics: pd.DataFrame
    relogged_steps: int
    evaluations: tuple[Evaluation, ...]

    def setting(self, key: str) -> object:
        """The value of a dotted configuration key. Raises UserError if config.yaml lacks it."""
        value: object = self.settings
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                raise UserError(f"{self.path / 'config.yaml'}: key {key} is missing; run again, or leave the run out of runs=")
            value = value[part]
        return value


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs in pipeline order, then by id. Raises UserError on no paths, one run given twice, or a file missing or malformed."""
    if not paths:
        raise UserError("runs: no run directory was given; name at least one, such as runs=[outputs/pretrain-1a2b3c]")
    summaries = [(path, _read_summary(path)) for path in paths]
    identifiers = [summary["run_id"] for _, summary in summaries]
    for path, summary in summaries:
        if identifiers.count(summary["run_id"]) > 1:
            raise UserError(f"{path}: run {summary['run_id']} is given more than once; name each run directory once")
    labels = _run_labels([(summary["stage"], summary["run_id"]) for _, summary in summaries])
    order = list(STAGES)
    summaries.sort(key=lambda item: (order.index(item[1]["stage"]), item[1]["run_id"]))
    return [_read_run(path, summary, labels[summary["run_id"]]) for path, summary in summaries]


def _run_labels(runs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Label of each run id; ids that begin alike are given whole."""
    stages = [stage for stage, _ in runs]
    short = {run: f"{STAGES[stage]} {run.removeprefix(stage + '-')[:6]}" for stage, run in runs}
    names = list(short.values())
    return {
        run: STAGES[stage] if stages.count(stage) == 1 else short[run] if names.count(short[run]) == 1 else f"{STAGES[stage]} {run}"
        for stage, run in runs
    }


def _read_json(path: Path, remedy: str) -> dict:
    if not path.is_file():
        raise UserError(f"{path}: the file is missing; {remedy}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not valid JSON (line {error.lineno}: {error.msg}); {remedy}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object, found {type(content).__name__}; {remedy}")
    return content


def _read_summary(path: Path) -> dict:
    remedy = "let the run complete, or leave it out of runs="
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory; check runs=")
    file = path / "summary.json"
    summary = _read_json(file, remedy)
    for key in SUMMARY_KEYS:
        if key not in summary:
            raise UserError(f"{file}: key {key} is missing; {remedy}")
    if summary["stage"] not in STAGES:
        raise UserError(f"{file}: stage is {summary['stage']!r}, expected one of {', '.join(STAGES)}; {remedy}")
    for key in PARAMETER_KEYS:
        if key not in summary["parameters"]:
            raise UserError(f"{file}: key parameters.{key} is missing; {remedy}")
    return summary


def _read_config(path: Path) -> tuple[str, dict]:
    """config.yaml as text and parsed."""
    if not path.is_file():
        raise UserError(f"{path}: the file is missing; let the run complete, or leave it out of runs=")
    text = path.read_text(encoding="utf-8")
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())}); run again, or leave the run out of runs=") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path}: expected keys and values, found {type(settings).__name__}; run again, or leave the run out of runs=")
    return text, settings


def _read_run(path: Path, summary: dict, label: str) -> Run:
    config, settings = _read_config(path / "config.yaml")
    metrics, relogged = _read_metrics(path / "metrics.jsonl")
    return Run(
        path=path,
        run_id=summary["run_id"],
        label=label,
        stage=summary["stage"],
        parents=tuple(parent for parent in summary["parents"].values() if isinstance(parent, str)),
        summary=summary,
        config=config,
        settings=settings,
        metrics=metrics,
        relogged_steps=relogged,
        evaluations=tuple(_read_evaluation(file.parent) for file in sorted(path.glob("evaluations/*/evaluation.json"))),
    )


def _read_metrics(path: Path) -> tuple[pd.DataFrame, int]:
    """One row per logged step, and how many lines a later line of the same step replaced (a run resumed from an earlier state)."""
    if not path.is_file():
        raise UserError(f"{path}: the file is missing; let the run complete, or leave it out of runs=")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UserError(f"{path} line {number}: not valid JSON ({error.msg}); remove the line or run again") from None
        if not isinstance(rows[-1], dict) or "step" not in rows[-1] or "tokens" not in rows[-1]:
            raise UserError(f"{path} line {number}: expected an object with step and tokens; remove the line or run again")
    if not rows:
        raise UserError(f"{path}: no step was logged; let the run complete, or leave it out of runs=")
    metrics = pd.DataFrame(rows)
    kept = metrics.drop_duplicates("step", keep="last").sort_values("step", ignore_index=True)
    return kept, len(metrics) - len(kept)


def _read_evaluation(folder: Path) -> Evaluation:
    remedy = "evaluate the run again"
    file = folder / "evaluation.json"
    content = _read_json(file, remedy)
    for key in (*LABELS, "n_puzzles", "n_samples"):
        if key not in content:
            raise UserError(f"{file}: key {key} is missing; {remedy}")
    return Evaluation(
        folder=folder,
        labels={key: content[key] for key in LABELS},
        n_puzzles=content["n_puzzles"],
        n_samples=content["n_samples"],
        passk=_read_table(folder / "passk.csv", PASSK_COLUMNS, remedy),
        rates=_read_table(folder / "rates.csv", RATES_COLUMNS, remedy),
    )


def _read_table(path: Path, columns: Sequence[str], remedy: str) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(f"{path}: the file is missing; {remedy}")
    try:
        table = pd.read_csv(path)
    except (pd.errors.EmptyDataError, pd.errors.ParserError) as error:
        raise UserError(f"{path}: not a readable CSV table ({str(error).strip().splitlines()[0]}); {remedy}") from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; {remedy}")
    return table[list(columns)]
