"""A disk that fills up: one line says so, nothing that was saved is lost, and with room again the same command ends like an unbroken run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chessrl.launch import launch
from chessrl.training import run_stage
from pretrain.train import identity, train
from tests import tiny


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    if sys.platform != "linux" or shutil.which("mount") is None:
        pytest.skip("needs Linux's tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)  # a process that was stopped may still be closing its files


def fill(disk: Path, free: int) -> Path:
    """A file that leaves about ``free`` bytes."""
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - free)))
    return filler


@pytest.mark.parametrize("states", [0, 0.2, 0.6, 1.5, 2.5])  # what there is room for, in sizes of a state for resume
def test_a_full_disk_is_one_line_and_nothing_is_lost(states, small_disk, tiny_runs, monkeypatch, capsys):
    outputs = tiny.share_data(small_disk / "outputs", tiny_runs)
    unbroken = tiny_runs["pretrain"]
    size = max(path.stat().st_size for path in (unbroken / "state").iterdir())
    overrides = ["experiment=toy", *tiny.MODEL, *tiny.SIZES, f"outputs={outputs}", "run.checkpoint_steps=1"]
    filler = fill(small_disk, int(states * size))

    def status() -> int:
        monkeypatch.setattr(sys, "argv", ["pretrain", *overrides])
        with pytest.raises(SystemExit) as exit_:
            launch("pretrain", lambda config: run_stage("pretrain", config, identity(config), train))
        return exit_.value.code

    assert status() == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and "No space left on device: free some space" in errors[0]
    directory = outputs / unbroken.name
    assert not list(directory.rglob("*.tmp")), "the begun file keeps the disk full"
    assert len(list(directory.glob("state/*.pt"))) == int(states)
    filler.unlink()
    assert status() == 0
    assert tiny.metrics_of(directory) == tiny.metrics_of(unbroken)
    for name in ("model/model.safetensors", "summary.json"):
        assert (directory / name).read_bytes() == (unbroken / name).read_bytes()
    assert json.loads((directory / "status.json").read_text())["state"] == "completed"


def test_a_model_that_does_not_fit_is_removed_again(small_disk, tiny_runs):
    from chessrl.checkpoint import load_model, save_model

    model = load_model(tiny_runs["pretrain"] / "model")
    filler = fill(small_disk, 20_000)
    with pytest.raises(OSError, match="No space left on device"):
        save_model(model, small_disk / "model")
    assert list(small_disk.iterdir()) == [filler]
