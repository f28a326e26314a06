"""The table of all runs below a folder, as ``load_runs`` gives it in a notebook.

Only files are read, and a run that is at work is not disturbed. A run whose files are damaged is a row that says so.

Examples:
    python -m chessrl.runs outputs=outputs
    python -m chessrl.runs outputs=outputs keys=rl.steps,algorithm.beta
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from chessrl.command import parse_settings, run_command
from chessrl.config import STAGES, ModelConfig
from chessrl.errors import UserError
from chessrl.leaks import leak_label
from chessrl.lock import at_work
from chessrl.model import Cost

SPLITS = ("test", "validation")  # the first one that a run was measured on stands in the table
STALE = "interrupted (stale lock)"
COLUMNS = (
    "run", "stage", "state", "model", "parameters", "pretrain_tokens", "pretrain_loss", "step", "tokens", "loss",
    "pretrain_flops", "sft_flops", "rl_flops", "pass_at_1", "pass_at_1_split", "leak", "wall_s", "parent", "code", "error", "directory",
)  # fmt: skip
SHOWN = (
    "run", "state", "model", "parameters", "pretrain_tokens", "pretrain_loss", "step", "loss", "rl_flops", "pass_at_1", "leak", "wall_s", "code",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunsSettings:
    """Keys of the command."""

    outputs: str = "outputs"  # the folder that run directories are in
    keys: tuple[str, ...] = ()  # configuration keys to show beside the columns, such as those of a sweep


def load_runs(folder: str | Path, keys: Sequence[str] = ()) -> pd.DataFrame:
    """One row per run directory of a stage directly below ``folder``, COLUMNS and then ``keys`` (dotted configuration keys), in pipeline order.

    state: running, interrupted, failed, completed, "interrupted (stale lock)" (its status says running, but no process is at work) or unknown
    (status.json is damaged: ``error`` says so). parameters: N, without embeddings. pretrain_tokens, pretrain_loss: T and L (nats per move token,
    validation) of the pretrained ancestor. loss: the last logged.
    *_flops: by stage, ancestors included (6NT; RL as in its loop). wall_s: seconds of work, interruptions left out. pass_at_1: over all
    puzzles of the split, accepted by the line. leak: share and copies of the test puzzles that the run's corpus holds on purpose. What is not
    known (yet) is missing (NaN). Raises UserError where there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"outputs={folder}: no such folder; give the one that run directories are in")
    directories = sorted(path for stage in STAGES for path in folder.glob(f"{stage}-*") if (path / "status.json").is_file())
    rows = {path.name: run_row(path, keys) for path in directories}
    for row in rows.values():
        _add_ancestor(row, rows)
    table = pd.DataFrame(list(rows.values()), columns=[*COLUMNS, *keys])
    order = table["stage"].map(STAGES.index) if len(table) else []
    return table.assign(order=order).sort_values(["order", "run"], ignore_index=True).drop(columns="order")


def run_row(directory: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """What the directory's own files say."""
    damaged: list[str] = []
    status, summary = (_read_json(directory / name, damaged) for name in ("status.json", "summary.json"))
    config = _read_config(directory / "config.yaml", damaged)
    last, validation, wall_s = read_metrics(directory / "metrics.jsonl")
    stage = directory.name.partition("-")[0]
    spent = summary.get("flops_by_stage") or {stage: last.get("flops")}
    row: dict[str, Any] = {
        "run": directory.name,
        "stage": stage,
        "state": state_of(directory, status),
        "model": OmegaConf.select(config, "model.name"),
        "parameters": summary["parameters"]["without_embeddings"] if "parameters" in summary else parameters_of(config),
        "step": last.get("step"),
        "tokens": last.get("tokens"),
        "loss": last.get("loss"),
        **{f"{name}_flops": spent.get(name) for name in STAGES},
        "leak": leak_label(summary["leak"]) if "leak" in summary else None,
        "wall_s": wall_s,
        "parent": Path(OmegaConf.select(config, "parent") or "").name or None,
        "code": status.get("code"),
        "error": f"damaged: {', '.join(damaged)}" if damaged else status.get("error"),
        "directory": str(directory),
        **dict(zip(("pass_at_1", "pass_at_1_split"), pass_at_1(directory))),
        **{key: _plain(OmegaConf.select(config, key)) for key in keys},
    }
    if stage == "pretrain":
        row |= {"pretrain_tokens": last.get("tokens"), "pretrain_loss": summary.get("validation/loss", validation)}
    return row


def _add_ancestor(row: dict[str, Any], rows: dict[str, dict[str, Any]]) -> None:
    """Fill in what the row's ancestors know, where they are in the same folder: T, L, and the FLOPs of the earlier stages."""
    seen = {row["run"]}
    ancestor = rows.get(row["parent"])
    while ancestor and ancestor["run"] not in seen:
        seen.add(ancestor["run"])
        for key in ("pretrain_tokens", "pretrain_loss", "leak", *(f"{stage}_flops" for stage in STAGES)):
            if row.get(key) is None:
                row[key] = ancestor.get(key)
        ancestor = rows.get(ancestor["parent"])


def state_of(directory: Path, status: dict[str, Any]) -> str:
    """What status.json says, but for a process that was killed before it could say that it ended."""
    state = status.get("state", "unknown")
    return STALE if state == "running" and not at_work(directory / "lock") else state


def read_metrics(path: Path) -> tuple[dict[str, Any], float | None, float | None]:
    """The last logged step, the last validation loss, and the seconds of work; a line cut short by a crash is passed over."""
    last: dict[str, Any] = {}
    validation, earlier_s, previous_s = None, 0.0, 0.0
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            last = json.loads(line)
        except ValueError:
            continue
        validation = last.get("validation/loss", validation)
        now_s = last.get("time/wall_s", previous_s)
        if now_s < previous_s:  # the clock starts anew where the run was resumed
            earlier_s += previous_s
        previous_s = now_s
    return last, validation, round(earlier_s + previous_s, 3) if last else None


def parameters_of(config: DictConfig) -> int | None:
    """N without embeddings, of a run that has no summary yet."""
    model = OmegaConf.select(config, "model")
    if model is None or not model.get("layers"):
        return None
    known = {field.name for field in fields(ModelConfig)}
    return Cost.of(ModelConfig(**{key: value for key, value in model.items() if key in known})).parameters_without_embeddings


def pass_at_1(directory: Path) -> tuple[float | None, str | None]:
    """pass@1 over all puzzles by the line, and its split; of several evaluations of a split the one with the most samples."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((directory / "evaluations").glob("[!.]*/passk.csv")):
        table = pd.read_csv(path)
        for row in table[(table["bin"] == "all") & (table["k"] == 1) & (table["verifier"] == "line")].itertuples():
            found.setdefault(row.split, []).append((row.n_samples * row.n_puzzles, row.pass_at_k))
    split = next((split for split in SPLITS if split in found), None)
    return (max(found[split])[1], split) if split else (None, None)


def _read_json(path: Path, damaged: list[str]) -> dict[str, Any]:
    """Empty where there is no such file; one that cannot be read is noted in ``damaged``."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError):
        damaged.append(path.name)
        return {}


def _read_config(path: Path, damaged: list[str]) -> DictConfig:
    """As ``_read_json``."""
    if path.is_file():
        try:
            if isinstance(config := OmegaConf.load(path), DictConfig):
                return config
        except (YAMLError, UnicodeDecodeError, OSError):  # OmegaConf's word for a file of one bare value is OSError
            pass
        damaged.append(path.name)
    return OmegaConf.create()


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


# ---- command ----------------------------------------------------------------------------------------------------------------------------


def shown(table: pd.DataFrame, keys: Sequence[str]) -> str:
    """The table as text: N, T and FLOPs in short, the errors below it."""
    short = {
        "parameters": "{:.3g}", "pretrain_tokens": "{:.3g}", "rl_flops": "{:.3g}", "pretrain_loss": "{:.3f}", "loss": "{:.3f}",
        "pass_at_1": "{:.3f}", "wall_s": "{:.0f}", "step": "{:.0f}",
    }  # fmt: skip
    names = {"parameters": "N", "pretrain_tokens": "T", "pretrain_loss": "L", "rl_flops": "RL FLOPs", "pass_at_1": "pass@1", "wall_s": "wall s"}
    view = table[[*SHOWN, *keys]].copy()
    for column in view.columns:
        form = short.get(column, "{}")
        view[column] = ["-" if _missing(value) else form.format(value) for value in table[column]]
    errors = [f"{row.run}: {row.error}" for row in table.itertuples() if not _missing(row.error)]
    return "\n".join([view.rename(columns=names).to_string(index=False), *errors])


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and pd.isna(value))


def main(arguments: list[str]) -> None:
    settings = parse_settings(RunsSettings, arguments)
    table = load_runs(settings.outputs, settings.keys)
    print(shown(table, settings.keys) if len(table) else f"no runs below {settings.outputs}")


if __name__ == "__main__":
    sys.exit(run_command(main))
