"""Models trained elsewhere as runs of ours, and what the released checkpoints lack: a <pad>, and in pretraining the tokens of answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from analysis.read import read_runs
from chessrl import notation
from chessrl.adopt import AdoptSettings, adopt, grow
from chessrl.checkpoint import load_model, save_model
from chessrl.config import ModelConfig
from chessrl.errors import UserError
from chessrl.launch import compose
from chessrl.model import Transformer, build_model
from chessrl.run import adopt_parent
from chessrl.runs import load_runs
from chessrl.training import next_token_logprobs
from sft.train import check


def model_of(vocabulary: int) -> Transformer:
    return build_model(ModelConfig("x", 2, 32, 48, 2, 1, 16, vocabulary), seed=vocabulary)


def released(folder: Path, vocabulary: int) -> Path:
    """A model folder without our own record of the architecture, as others write it."""
    save_model(model_of(vocabulary), folder)
    config = json.loads((folder / "config.json").read_text())
    del config["chessrl"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def settings(folder: Path, **changed: object) -> AdoptSettings:
    values = {"stage": "pretrain", "state": "history", "outputs": str(folder.parent / "outputs")}
    return AdoptSettings(model=str(folder), **(values | changed))


def test_an_adopted_model_is_a_finished_run_for_every_reader(tmp_path):
    folder = released(tmp_path / "released", 85)
    directory = adopt(settings(folder, stage="sft", traces=True, tokens=1000))
    assert adopt(settings(folder, stage="sft", traces=True, tokens=1000)) == directory
    assert adopt(settings(folder, stage="sft")) != directory, "what is said of a model is part of its name"
    (run,) = read_runs([directory])
    assert run.summary["tokens"] == 1000 and run.stage == "sft"
    parent = adopt_parent(compose("rl", [f"parent={directory}", "world=lichess", "world.state=history"]), ("sft",))
    assert parent["traces"] and parent["model"]["vocabulary"] == 85
    assert load_runs(directory.parent)["state"].tolist() == ["completed"] * 2
    kept, given = load_model(directory / "model").state_dict(), load_model(folder).state_dict()
    assert all(torch.equal(kept[name], given[name]) for name in given)


@pytest.mark.parametrize("vocabulary", [notation.REFERENCE_SIZE, notation.REFERENCE_TRACE_SIZE])
def test_padding_changes_nothing_in_a_model_without_a_pad_token(vocabulary):
    model = model_of(vocabulary)
    short, long = [0, 3, 20, 33], [0, 4, 11, 77, 30, 4, 60]
    batch = torch.tensor([[*short, *[notation.PAD] * 3], long])
    together = next_token_logprobs(model, batch)
    torch.testing.assert_close(together[0, :3], next_token_logprobs(model, torch.tensor([short]))[0])
    torch.testing.assert_close(together[1], next_token_logprobs(model, torch.tensor([long]))[0])
    with pytest.raises(IndexError):  # only <pad> is let pass
        next_token_logprobs(model, torch.tensor([[0, notation.POSITION, 3]]))


def test_growing_keeps_the_logits_of_the_tokens_that_were_there():
    model = model_of(81)
    grown = grow(model, 85, seed=3)
    tokens = torch.tensor([[0, 3, 20, 33, 5]])
    assert grown(tokens).shape[-1] == 85
    torch.testing.assert_close(grown(tokens)[..., :81], model(tokens))
    assert grown.lm_head.weight[81:].std() > 0 and grown.model.embed_tokens.weight[81:].std() > 0
    with pytest.raises(UserError, match="none can be taken away"):
        grow(model_of(85), 81, seed=0)


def test_what_cannot_be_is_refused_and_fine_tuning_says_how_to_grow(tmp_path):
    folder = released(tmp_path / "released", 81)
    for changed, message in (({"stage": "chess"}, "stage=chess"), ({"state": "fen"}, "state=fen"), ({"traces": True}, "games alone")):
        with pytest.raises(UserError, match=message):
            adopt(settings(folder, **changed))
    config = compose("sft", [f"parent={adopt(settings(folder))}", "world=lichess", "world.state=history", "arm=none"])
    with pytest.raises(UserError, match="adopt it with vocabulary=85"):
        check(config, adopt_parent(config, ("pretrain",)))
    grown = compose("sft", [f"parent={adopt(settings(folder, vocabulary=85))}", "world=lichess", "world.state=history", "arm=none"])
    check(grown, adopt_parent(grown, ("pretrain",)))
