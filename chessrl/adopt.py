"""A model trained elsewhere as a finished run, so that it can be evaluated, fine-tuned, trained by RL and compared like one of ours.

For a folder in Hugging Face layout (Qwen3 architecture, ids of
chessrl.notation), such as the checkpoints that the authors of arXiv 2607.16097 released.

Examples:
    python -m chessrl.adopt model=downloads/pretrain-50m stage=pretrain state=history outputs=outputs
    python -m chessrl.adopt model=downloads/sft-50m stage=sft state=history traces=true tokens=5_000_000_000
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from omegaconf import OmegaConf

from chessrl.checkpoint import load_model, save_model, write_atomically, write_json
from chessrl.command import parse_settings, run_command
from chessrl.config import STAGES, Config, ModelConfig
from chessrl.config_check import CHOICES, VOCABULARIES
from chessrl.errors import UserError
from chessrl.model import Cost, Transformer, build_model
from chessrl.run import code_version, digest, finished
from chessrl.sources import file_record


@dataclass(frozen=True, slots=True)
class AdoptSettings:
    """Keys of ``python -m chessrl.adopt``."""

    model: str  # folder with config.json and model.safetensors
    stage: str  # what it was trained for: pretrain (games), sft or rl (answers)
    state: str  # how it knows a position: history (moves from the start) or snapshot
    traces: bool = False  # whether it thinks before it answers
    vocabulary: int = 0  # grow embedding and head to so many tokens, as fine-tuning a pretrained checkpoint of 81 needs; 0: as it is
    seed: int = 0  # of the further rows
    tokens: int = 0  # T it was trained on, where known: tables show it
    outputs: str = "outputs"  # the folder below which the run directory is made


def check(settings: AdoptSettings) -> None:
    """Raises UserError for values that no run has."""
    allowed = {"stage": STAGES, "state": CHOICES["world.state"], "vocabulary": (0, *VOCABULARIES)}
    for key, values in allowed.items():
        if getattr(settings, key) not in values:
            raise UserError(f"{key}={getattr(settings, key)}: expected one of {', '.join(map(str, values))}")
    if settings.traces and settings.stage == "pretrain":
        raise UserError("traces=true with stage=pretrain: a model of games alone writes no traces; give stage=sft or rl")


def grow(model: Transformer, vocabulary: int, seed: int) -> Transformer:
    """The same model with embedding and head of ``vocabulary`` rows; the further ones are new weights. Raises UserError if it has more."""
    old = model.config.vocabulary
    if vocabulary < old:
        raise UserError(f"vocabulary={vocabulary}: the model has {old} tokens, none can be taken away; give at least that")
    grown = build_model(replace(model.config, vocabulary=vocabulary), seed=seed)
    fresh = grown.state_dict()
    for name, weight in model.state_dict().items():
        rows = weight.shape[0]
        fresh[name] = torch.cat([weight, fresh[name][rows:]]) if fresh[name].shape != weight.shape else weight
    grown.load_state_dict(fresh)
    return grown


def adopt(settings: AdoptSettings) -> Path:
    """Make the run directory, unless it is there; its path. Its name hashes the weights and what was said of them."""
    check(settings)
    folder = Path(settings.model)
    model = load_model(folder)
    said = asdict(settings) | {"model": file_record(folder / "model.safetensors")["sha256"]}
    run_id = f"{settings.stage}-{digest({key: value for key, value in said.items() if key != 'outputs'})}"
    directory = Path(settings.outputs) / run_id
    if directory.exists() and finished(directory):
        return directory
    if settings.vocabulary:
        model = grow(model, settings.vocabulary, settings.seed)
    shutil.rmtree(directory, ignore_errors=True)  # half made, by a kill
    directory.mkdir(parents=True)
    save_model(model, directory / "model")
    _write_records(directory, run_id, model.config, settings)
    return directory


def _write_records(directory: Path, run_id: str, model: ModelConfig, settings: AdoptSettings) -> None:
    """The files that every finished run has; status.json last."""
    config = Config(model=model, outputs=settings.outputs)
    config.world.state = settings.state
    config.sft.trace.enabled = settings.traces
    write_atomically(directory / "config.yaml", OmegaConf.to_yaml(OmegaConf.structured(config)).encode())
    cost = Cost.of(model)
    flops = 6 * cost.parameters_without_embeddings * settings.tokens
    counters = {"step": 0, "tokens": settings.tokens, "loss_tokens": settings.tokens, "flops": flops, "flops_with_attention": flops}
    write_atomically(directory / "metrics.jsonl", (json.dumps(counters) + "\n").encode())
    summary = {
        "stage": settings.stage,
        "run_id": run_id,
        "parents": {},
        "parameters": {"total": cost.parameters, "without_embeddings": cost.parameters_without_embeddings},
        "model": asdict(model),
        "adopted": settings.model,
        "traces": settings.traces,
        "world": {"name": "", "state": settings.state},
        "flops_by_stage": {settings.stage: flops},
    }
    write_json(directory / "summary.json", summary | counters)
    write_json(directory / "status.json", {"state": "completed", "error": None, "code": code_version()})


def main(arguments: list[str]) -> None:
    print(adopt(parse_settings(AdoptSettings, arguments)))


if __name__ == "__main__":
    raise SystemExit(run_command(main))
