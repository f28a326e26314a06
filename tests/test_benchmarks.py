"""The benchmarks' own arithmetic, and that both commands run; figures are nobody's promise, so none is asserted."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

from benchmarks import analysis, gpu
from benchmarks.__main__ import main
from benchmarks.measure import Contender, Lap, Peer, compare, table
from chessrl.errors import UserError


def contender(name: str, work: float, walls: list[float], order: list[str], ours: bool = True) -> Contender:
    """Laps of the given wall seconds, half of them processor time."""
    left = iter(walls)

    def lap() -> Lap:
        order.append(name)
        wall = next(left)
        return Lap(wall, wall / 2)

    return Contender(name, work, lap, ours)


def test_contenders_take_turns_and_the_ratio_is_to_the_best_peer_round_by_round():
    """Ours: 10, 5 and 20 units/s; the slow peer 1 each time; the fast one 4, 5 and 5: ratios to it 2.5, 1 and 4, their median 2.5."""
    order: list[str] = []
    contenders = [
        contender("ours", 100, [10.0, 20.0, 5.0], order),
        contender("slow", 100, [100.0] * 3, order, ours=False),
        contender("fast", 100, [25.0, 20.0, 20.0], order, ours=False),
    ]
    ours, slow, fast = compare("part", "units/s", "3", contenders, rounds=3)
    assert order == ["ours", "slow", "fast"] * 3
    assert (ours.rate, ours.low, ours.high, ours.processor_rate) == (10.0, 5.0, 20.0, 20.0)
    assert (ours.ratio, ours.processor_ratio, ours.wanted) == (2.5, 2.5, "3")
    assert (slow.ratio, fast.ratio, fast.wanted) == (None, None, "")
    assert "| part | ours | 10 units/s (5 to 20) | 20 | 2.50 | 2.50 | 3 |" in table([ours, slow, fast])


def test_without_a_peer_there_is_no_ratio():
    [ours] = compare("part", "units/s", "3", [contender("ours", 1, [1.0], [])], rounds=1)
    assert ours.ratio is None and ours.processor_ratio is None


@pytest.mark.skipif(importlib.util.find_spec("transformers") is not None, reason="transformers is installed here")
def test_a_peer_that_is_not_installed_says_so():
    peer = Peer(sys.executable, ["train", "fp32"])
    try:
        assert peer.missing is not None and "transformers" in peer.missing
    finally:
        peer.close()


def test_a_part_alone_gives_its_table_and_its_record(tmp_path, capsys):
    main(["part=ceilings", "rounds=1", f"out={tmp_path}"])
    record = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [row["contender"] for row in record["rows"]] == ["matrix product, fp32", "matrix product, bf16", "memory copy"]
    assert record["machine"]["cores"] >= 1 and all(row["rate"] > 0 for row in record["rows"])
    assert "| ceiling | memory copy |" in capsys.readouterr().out


def test_an_unknown_part_is_refused():
    with pytest.raises(UserError, match=r"part=pretraining: expected some of ceilings, pretrain.* pgn, mining"):
        main(["part=pretraining"])


def test_a_part_that_needs_data_names_its_key_before_any_other_runs(tmp_path):
    with pytest.raises(UserError, match="part=traces needs a file or folder: give parent=PATH"):
        main(["part=ceilings,traces", f"out={tmp_path / 'new'}"])
    assert not (tmp_path / "new").exists()


def test_the_gpu_command_runs_on_a_cpu_in_small(tmp_path):
    small = ["trained=nano", "sampled=nano", "rl=nano", "games=2", "length=16", "prompts=2", "group=2", "new=4", "rounds=1"]
    gpu.main(["device=cpu", "arithmetic=bf16", *small, f"out={tmp_path}"])
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    parts = ["ceiling"] * 3 + ["pretraining 2 x 16"] * 2 + ["sampling 2 x 2", "RL step 2 x 2"]
    assert [row["part"] for row in rows] == parts
    assert all(row["rate"] > 0 for row in rows)


@pytest.mark.long
def test_the_report_of_made_up_policies_is_written(tmp_path):
    rows = analysis.report(tmp_path, analysis.Size(puzzles=20, traces=4, checkpoints=3))
    assert [row.contender for row in rows] == ["python -m analysis", "peak memory"] and rows[0].rate > 0
    assert list(tmp_path.glob("analysis-*/report.html"))
