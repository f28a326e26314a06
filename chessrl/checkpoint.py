"""Weights in Hugging Face layout, and the state for exact resume.

``model/`` folders hold ``config.json`` (Qwen3ForCausalLM), ``model.safetensors``, ``tokenizer.json``, ``tokenizer_config.json`` and
``vocab.json``: transformers and vLLM load them as they are. ``state/`` folders hold ``step-N.pt`` files; the newest two are kept, so that a
damaged newest one costs a checkpoint interval and not the run.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from chessrl import notation
from chessrl.attention import NORM_EPSILON, ROPE_THETA
from chessrl.config import ModelConfig
from chessrl.errors import UserError
from chessrl.model import Transformer

STATES_KEPT = 2


# ---- atomic files ---------------------------------------------------------------------------------------------------------------------


def fsync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` so that ``path`` holds either the old content or all of the new one, whenever the process dies."""
    with written_beside(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A path to write a file to, which then takes ``path``'s place. Where that fails, nothing of it stays; a full disk is an OSError."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
        fsync_folder(path.parent)
    except RuntimeError as error:  # torch's writer fails at its closing over what the disk had refused
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def replace_folder(temporary: Path, folder: Path) -> None:
    """Move a finished folder to its place; a folder of that name goes."""
    if folder.exists():
        shutil.rmtree(folder)
    temporary.rename(folder)
    fsync_folder(folder.parent)


# ---- Hugging Face layout ----------------------------------------------------------------------------------------------------------------


def huggingface_config(config: ModelConfig) -> dict[str, Any]:
    """``config.json`` of transformers' Qwen3ForCausalLM."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": config.vocabulary,
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_THETA,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": notation.BOS,
        "eos_token_id": notation.EOS,
        "pad_token_id": notation.PAD if config.vocabulary > notation.PAD else None,
        "torch_dtype": "float32",
    }


def tokenizer_files(size: int) -> dict[str, Any]:
    """A static word-level tokenizer over whitespace-separated token names; its ids are ours."""
    vocabulary = {token: index for index, token in enumerate(notation.VOCABULARY[:size])}
    special = [token for token in vocabulary if token.startswith("<") and token.endswith(">")]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocabulary[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token in special
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
    } | ({"pad_token": "<pad>"} if "<pad>" in vocabulary else {})
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": settings, "vocab.json": vocabulary}


def save_model(model: Transformer, folder: Path) -> None:
    """Write the model folder atomically; weights are fp32 whatever the precision."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    weights = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    try:
        save_file(weights, temporary / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        shutil.rmtree(temporary)
        if f"os error {errno.ENOSPC}" not in str(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from None
    write_json(temporary / "config.json", huggingface_config(model.config) | {"chessrl": asdict(model.config)})
    for name, content in tokenizer_files(model.config.vocabulary).items():
        write_json(temporary / name, content)
    replace_folder(temporary, folder)


def load_model(folder: Path, *, precision: str = "fp32", compiled: bool = False, device: str | torch.device = "cpu") -> Transformer:
    """The model of a folder in Hugging Face layout, ours or the released checkpoints'. Missing or foreign weights are an error."""
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise UserError(f"{folder} is not a model folder: {name} is missing; give a run directory that completed")
    try:
        settings = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
    except (json.JSONDecodeError, SafetensorError) as error:
        raise UserError(f"{folder} holds a damaged model ({error}); make it again") from None
    model = Transformer(_model_config(settings, folder), precision, compiled)
    missing, unexpected = set(model.state_dict()) - set(weights), set(weights) - set(model.state_dict())
    if missing or unexpected:
        name = sorted(missing or unexpected)[0]
        raise UserError(
            f"{folder}/model.safetensors: {len(missing)} weights missing and {len(unexpected)} unknown, the first is {name}; "
            "give a model whose weights fit its config.json"
        )
    model.load_state_dict(weights)
    return model.to(device)


def _model_config(settings: dict[str, Any], folder: Path) -> ModelConfig:
    if settings.get("model_type") != "qwen3":
        raise UserError(f"{folder}/config.json: model_type is {settings.get('model_type')!r}, expected 'qwen3'; give a model of that architecture")
    if "chessrl" in settings:
        known = {field.name for field in fields(ModelConfig)}
        return ModelConfig(**{key: value for key, value in settings["chessrl"].items() if key in known})
    return ModelConfig(
        name=folder.name,
        layers=settings["num_hidden_layers"],
        hidden=settings["hidden_size"],
        ffn=settings["intermediate_size"],
        heads=settings["num_attention_heads"],
        kv_heads=settings["num_key_value_heads"],
        head_dim=settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"],
        vocabulary=settings["vocab_size"],
        max_positions=settings["max_position_embeddings"],
    )


# ---- state for exact resume -------------------------------------------------------------------------------------------------------------


def save_state(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write ``step-N.pt`` atomically, then drop all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".step-*.tmp"):  # by a kill while saving
        left.unlink()
    with written_beside(folder / f"step-{step:08d}.pt") as temporary, temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    for old in _state_files(folder)[STATES_KEPT:]:
        old.unlink()


def load_newest_state(folder: Path, device: torch.device, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """The newest state that reads whole and ``fits`` the metrics; another one is passed over with a line. None when there is none."""
    for path in _state_files(folder):
        state = _read_state(path, device)
        if state is not None and fits(state):
            return state
        fault = "is damaged" if state is None else "is of a later step than metrics.jsonl reaches"
        print(f"{path} {fault}: going on from the state before it", flush=True)
        path.unlink()  # else it would count among the newest ones that are kept
    return None


def _read_state(path: Path, device: torch.device) -> dict[str, Any] | None:
    """None for a file that was cut short or changed: torch checks no checksums, the zip archive that it writes has them."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                return None
        return torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile):
        return None


def _state_files(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in folder.glob("step-*.pt") if re.fullmatch(r"step-\d+\.pt", path.name)), reverse=True)
