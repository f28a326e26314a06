"""The private hold-out: who may read it, what its log says, and that a log that was touched is found out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import chess
import pytest

from chessrl import world
from chessrl.access_log import LOG, append_access, commitment, entry_hash, log_fault, read_log
from chessrl.errors import UserError
from chessrl.holdout import open_private
from chessrl.launch import compose
from chessrl.puzzles import Puzzle
from chessrl.run import identity_of

PUZZLES = [
    Puzzle("b", "7k/8/8/8/8/8/R7/1R4K1 w - - 0 1", ("a2a7",), 0, 2, "B2"),
    Puzzle("a", "k7/8/1K6/8/8/8/8/QR6 w - - 0 1", ("a1g7",), 0, 2, "B2"),
]
PACKED = "4a43f7c6be33352663eac98c7911d85a17bcb4fd01735e06abe51f1bcb964b3b"  # the packaged endgame puzzles; also in docs/evidence.md


def log_of(tmp_path: Path, entries: int) -> Path:
    path = tmp_path / LOG
    for number in range(entries):
        append_access(path, f"rl-{number}", PUZZLES)
    return path


def rewrite(path: Path, entries: list[dict]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_the_private_split_is_read_by_nobody_in_passing(tmp_path):
    config = compose("evaluate", [f"outputs={tmp_path}", "evaluate.split=private"])
    with pytest.raises(UserError, match="open_private=true"):
        world.puzzles_of_split(config, "private")
    with pytest.raises(UserError, match="open_private=true"):
        open_private(config, "rl-1")
    assert not (tmp_path / LOG).exists()


def test_an_allowed_evaluation_is_logged_before_it_sees_a_puzzle(tmp_path):
    config = compose("evaluate", [f"outputs={tmp_path}", "evaluate.split=private", "evaluate.open_private=true"])
    puzzles = open_private(config, "rl-1")
    [entry] = read_log(tmp_path / LOG)
    assert (entry["run"], entry["puzzles"], entry["commitment"]) == ("rl-1", len(puzzles), PACKED)
    assert PACKED in (Path(__file__).parents[1] / "docs" / "evidence.md").read_text()


def test_permission_to_open_changes_no_evaluation():
    with_key, without = (compose("evaluate", words) for words in (["evaluate.open_private=true"], []))
    assert identity_of(with_key.evaluate) == identity_of(without.evaluate)


def test_the_commitment_depends_on_every_puzzle_and_not_on_their_order():
    assert commitment(PUZZLES) == commitment(PUZZLES[::-1])
    for changed in ([PUZZLES[0]], [PUZZLES[0], replace(PUZZLES[1], moves=("a1a8",))], [PUZZLES[0], replace(PUZZLES[1], id="c")]):
        assert commitment(changed) != commitment(PUZZLES)


def test_a_log_of_several_looks_holds(tmp_path):
    entries = read_log(log_of(tmp_path, 3))
    assert [entry["number"] for entry in entries] == [1, 2, 3] and log_fault(entries) == ""
    assert log_fault([]) == ""


@pytest.mark.parametrize("touch", ["changed", "changed and rehashed", "removed", "moved", "exchanged"])
def test_a_touched_log_is_found_out_and_refused(tmp_path, touch):
    path = log_of(tmp_path, 3)
    entries = read_log(path)
    if touch == "changed":
        entries[1]["run"] = "another"
    elif touch == "changed and rehashed":
        entries[1]["run"] = "another"
        entries[1]["hash"] = entry_hash(entries[1])
    elif touch == "removed":
        del entries[1]
    elif touch == "moved":
        entries[1], entries[2] = entries[2], entries[1]
    else:
        entries[2]["commitment"] = "0" * 64
        entries[2]["hash"] = entry_hash(entries[2])
    assert log_fault(entries)
    rewrite(path, entries)
    with pytest.raises(UserError, match="start a new outputs folder"):
        append_access(path, "rl-4", PUZZLES)


def test_a_line_that_is_no_entry_is_named(tmp_path):
    path = log_of(tmp_path, 1)
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(UserError, match="line 2"):
        read_log(path)


def test_the_endgame_world_has_its_test_set_mirrored(tmp_path):
    config = compose("evaluate", [f"outputs={tmp_path}"])
    originals, mirrors = (world.puzzles_of_split(config, split) for split in ("test", "test_mirrored"))
    assert [puzzle.id for puzzle in mirrors] == [f"{puzzle.id}-mirrored" for puzzle in originals]
    for original, mirror in list(zip(originals, mirrors))[:50]:
        assert mirror.split == "test_mirrored" and mirror.bin == original.bin
        assert mirror.board().turn != original.board().turn
        board = mirror.board()
        for move in mirror.moves:
            board.push(board.parse_uci(move))
        assert board.is_checkmate() and chess.Board(original.fen).mirror().fen() == mirror.fen
