"""Decontamination: hashes of all variants, planted games, collisions, counts by split, and leaks on purpose with the marks they leave."""

from __future__ import annotations

import json
import random
import re
import subprocess
from dataclasses import replace
from itertools import accumulate, chain, islice
from pathlib import Path

import chess
import chess.polyglot
import numpy as np
import pandas as pd
import pytest

from analysis import report
from analysis.read import read_runs
from chessrl import corpus as corpus_module
from chessrl import evaluate, runs, world
from chessrl.config import SPLITS, LeakConfig
from chessrl.corpus import Corpus, build_corpus, cut_ply, game_moves, is_validation, make_document
from chessrl.decontamination import CLEAN, BlockedPositions, Decontamination, Verdict, hash_variants
from chessrl.errors import UserError
from chessrl.games import Game, read_games
from chessrl.leaks import leaked_games, leaked_ids
from chessrl.notation import line_tokens
from chessrl.pgn_blocks import GameFilters
from chessrl.pgn_extract import find_pgn_extract
from chessrl.position_keys import line_keys
from chessrl.puzzle_filters import PuzzleFilters
from chessrl.puzzle_rows import read_lichess_csv
from chessrl.puzzles import Puzzle
from chessrl.sources import ReadReport
from tests import tiny

DATA = Path(__file__).parents[2] / "shared" / "data"
SETTINGS = {"state": "snapshot", "context": 256, "seed": 0, "validation_share": 0.0, "shard_tokens": 10**6}
LINE = "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5 e1g1 g8f6 d2d3"
SECOND_DECISION = "e2e4 e7e5 g1f3 g8f6 f1c4 b8c6 e1g1 f8c5 d2d3"  # after castling and Bc5; the asked position does not arise
TRANSPOSED = "g1f3 b8c6 e2e4 e7e5 f1c4 f8c5 d2d3"
WITHOUT_RIGHTS = "e2e4 e7e5 g1f3 b8c6 e1e2 e8e7 e2e1 e7e8 f1c4 f8c5"
BEFORE_THE_LEAD = "e2e4 b8c6 g1f3 e7e5 f1c4 g8f6"
OTHERS = "d2d4 d7d5 c2c4 e7e6 b1c3 g8f6"


def moves_of(text: str, fen: str | None = None) -> list[chess.Move]:
    board = chess.Board(fen or chess.STARTING_FEN)
    return [board.push_uci(word) for word in text.split()]


def game(text: str, fen: str | None = None) -> Game:
    tokens = line_tokens(chess.Board(fen or chess.STARTING_FEN), moves_of(text, fen))
    return Game(tuple(chain.from_iterable(tokens)), tuple(accumulate(map(len, tokens))), fen)


def after(text: str) -> chess.Board:
    board = chess.Board()
    for word in text.split():
        board.push_uci(word)
    return board


def puzzle_of(line: str, first: int, identifier: str = "a", split: str = "test", **fields) -> Puzzle:
    """A Lichess puzzle whose lead is ply ``first`` of a game."""
    words = line.split()
    return Puzzle(identifier, after(" ".join(words[:first])).fen(), tuple(words[first:]), 1, 1500, "B2", split=split, **fields)


PUZZLE = puzzle_of(LINE, 5)  # asks 4. O-O after 3... Bc5, then 5. d3 after 4... Nf6


def keys_of(one: Game) -> np.ndarray:
    return np.array(line_keys(one.start_fen or chess.STARTING_FEN, game_moves(one)), dtype=np.uint64)


def judged(blocked: BlockedPositions, text: str, fen: str | None = None) -> Verdict:
    """The verdict, and that the hashes that a PGN reader sees, those of python-chess with all rights, find the same games."""
    moves = moves_of(text, fen)
    board = chess.Board(fen or chess.STARTING_FEN)
    hashes = [chess.polyglot.zobrist_hash(board)]
    for move in moves:
        board.push(move)
        hashes.append(chess.polyglot.zobrist_hash(board))
    verdict = blocked.verdict(fen, moves)
    found = blocked.candidates(np.array(hashes, dtype=np.uint64)).any()
    assert found == blocked.candidates(keys_of(game(text, fen))).any() == (verdict != CLEAN)
    return verdict


# ---- variants ---------------------------------------------------------------------------------------------------------------------------


def brute_force_variants(placement: str, turn: str) -> set[int]:
    """Hashes of all FENs with this placement and turn that python-chess takes for valid."""
    rights = ["".join(letter for bit, letter in enumerate("KQkq") if number >> bit & 1) or "-" for number in range(16)]
    squares = ["-", *(f"{file}{6 if turn == 'w' else 3}" for file in "abcdefgh")]
    boards = [chess.Board(f"{placement} {turn} {right} {square} 0 1") for right in rights for square in squares]
    return {chess.polyglot.zobrist_hash(board) for board in boards if board.is_valid()}


PLACEMENTS = {
    "r3k2r/8/8/8/8/8/8/R3K2R": 16,  # all rights
    "r3k2r/8/8/8/8/8/8/R4K1R": 4,  # the white king away
    "4k2r/8/8/8/8/8/8/R3K2r": 4,  # an enemy rook on h1 gives no right (and gives check: White is to move)
    "4k3/8/8/1pPpPp1p/8/8/8/4K3": 4,  # b, d and f beside a pawn of White's; h beside none
    "4k3/8/3p4/2pPp3/8/8/8/4K3": 3,
    "4k3/3p4/8/2pPp3/8/8/8/4K3": 3,  # what stands elsewhere does not matter
    "4k3/2n5/8/2pPp3/8/8/8/4K3": 2,  # c7 is taken: the c-pawn came from elsewhere
    "4k3/8/8/Pp5p/8/8/8/4K3": 2,  # a and h are no neighbours
    "4k3/8/8/KPp4r/8/8/8/8": 2,  # the capture would be illegal, the hash has the file all the same
    "4k3/8/8/2pP4/1K6/8/8/8": 2,  # the pushed pawn gives the check itself
    "4k3/8/8/2pP4/8/8/8/K3r3": 1,  # the check by a rook was there before the push, so there was none
    "r3k2r/8/8/2pP4/8/8/8/R3K2R": 32,
}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_variants_are_those_of_all_valid_fens_with_the_placement_and_turn(placement):
    found = hash_variants(chess.Board(f"{placement} w - - 0 1"))
    assert len(found) == len(set(found)) == PLACEMENTS[placement]
    assert set(found) == brute_force_variants(placement, "w")
    mirrored = chess.Board(f"{placement} w - - 0 1").mirror()
    assert set(hash_variants(mirrored)) == brute_force_variants(mirrored.board_fen(), "b")


def test_variants_of_positions_of_play_are_those_of_all_valid_fens():
    rng = random.Random(1)
    counts = []
    for _ in range(40):
        board = chess.Board()
        for _ in range(rng.randrange(2, 40)):
            if board.is_game_over():
                break
            pawns = [move for move in board.legal_moves if board.piece_type_at(move.from_square) == chess.PAWN]
            board.push(rng.choice(pawns if pawns and rng.random() < 0.6 else list(board.legal_moves)))
        found = hash_variants(board)
        assert set(found) == brute_force_variants(board.board_fen(), "w" if board.turn else "b"), board.fen()
        assert chess.polyglot.zobrist_hash(board) in found and len(found) == len(set(found))
        counts.append(len(found))
    assert len(set(counts)) > 3 and max(counts) > 16  # 16 is all rights and no square


# ---- planted games ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [LINE, TRANSPOSED, WITHOUT_RIGHTS, BEFORE_THE_LEAD, SECOND_DECISION])
def test_game_through_a_puzzle_is_kept_out_by_whatever_way_it_gets_there(text):
    assert judged(BlockedPositions.of_puzzles([PUZZLE]), text) == Verdict(("test",), 0)


def test_planted_games_reach_what_they_are_meant_to():
    asked, second, before = PUZZLE.board(), after(LINE[:-5]), chess.Board(PUZZLE.fen)
    places = {(board.board_fen(), board.turn): name for board, name in ((asked, "asked"), (second, "second"), (before, "before"))}

    def passed(text: str) -> list[str]:
        words = text.split()
        boards = [after(" ".join(words[:ply])) for ply in range(len(words) + 1)]
        return [places[board.board_fen(), board.turn] for board in boards if (board.board_fen(), board.turn) in places]

    assert passed(LINE) == ["before", "asked", "second"] and passed(SECOND_DECISION) == ["second"]
    assert passed(TRANSPOSED) == ["before", "asked"] and passed(WITHOUT_RIGHTS)[-1] == "asked" and passed(BEFORE_THE_LEAD) == ["before"]
    assert after(WITHOUT_RIGHTS).castling_rights == 0 != asked.castling_rights


def test_game_that_starts_at_a_puzzle_is_kept_out():
    blocked = BlockedPositions.of_puzzles([PUZZLE])
    asked = PUZZLE.board()
    assert judged(blocked, "d2d3", asked.fen()).blocked_by == ("test",)
    assert judged(blocked, "", asked.fen()).blocked_by == ("test",)
    asked.castling_rights = 0
    assert judged(blocked, "d2d3", asked.fen()).blocked_by == ("test",)


def test_colour_mirrored_game_and_the_other_side_to_move_are_kept():
    blocked = BlockedPositions.of_puzzles([PUZZLE])
    mirrored = PUZZLE.board().mirror()
    line = " ".join(chess.Move(m.from_square ^ 56, m.to_square ^ 56).uci() for m in moves_of(LINE)[6:])
    assert judged(blocked, line, mirrored.fen()) == CLEAN
    other_side = PUZZLE.board()
    other_side.turn = chess.BLACK
    assert judged(blocked, "d7d6 d2d3", other_side.fen()) == CLEAN
    assert judged(blocked, OTHERS) == CLEAN
    # After the solver's move the opponent is to move: nobody is asked there.
    assert judged(blocked, "d7d6", after(LINE[: LINE.index(" g8f6")]).fen()) == CLEAN


def test_endgame_puzzle_blocks_each_decision_and_nothing_else():
    puzzle = Puzzle("m", "8/8/8/8/8/5K2/8/R6k w - - 0 1", ("f3f2", "h1h2", "a1h1"), 0, 2, "B2", split="rl")
    blocked = BlockedPositions.of_puzzles([puzzle])
    assert len(blocked) == 2
    assert judged(blocked, "", puzzle.fen).blocked_by == ("rl",)
    assert judged(blocked, "", "8/8/8/8/8/8/5K1k/R7 w - - 0 1").blocked_by == ("rl",)
    assert judged(blocked, "", "8/8/8/8/8/8/5K2/R6k b - - 0 1") == CLEAN


@pytest.mark.skipif(not find_pgn_extract(), reason="pgn-extract is not installed")
@pytest.mark.parametrize("text", [LINE, TRANSPOSED, WITHOUT_RIGHTS, SECOND_DECISION, OTHERS])
def test_pgn_extracts_hashes_find_a_transposition_with_other_rights(text):
    pgn = f'[Event "?"]\n\n{chess.Board().variation_san(moves_of(text))} *\n'
    command = [find_pgn_extract(), "-s", "-Wxolalg", "--hashcomments", "-w1000000"]
    written = subprocess.run(command, input=pgn, capture_output=True, text=True, check=True).stdout
    hashes = np.array([int(digits, 16) for digits in re.findall(r"\{ ([0-9a-f]+) \}", written)], dtype=np.uint64)
    assert len(hashes) == len(text.split())
    assert BlockedPositions.of_puzzles([PUZZLE]).candidates(hashes).any() == (text != OTHERS)
    if text == WITHOUT_RIGHTS:
        assert hashes[-1] != chess.polyglot.zobrist_hash(PUZZLE.board())


def test_candidates_are_the_known_hashes_and_no_others():
    rng = np.random.default_rng(0)
    blocked = BlockedPositions.of_puzzles([PUZZLE])
    near = np.concatenate([blocked.hashes, blocked.hashes + np.uint64(1), blocked.hashes - np.uint64(1)])  # same bucket
    hashes = np.concatenate([near, rng.integers(0, 2**64, 10_000, dtype=np.uint64), np.array([0, 2**64 - 1], dtype=np.uint64)])
    assert (blocked.candidates(hashes) == np.isin(hashes, blocked.hashes)).all()
    assert blocked.candidates(hashes.reshape(2, -1)).shape == (2, len(hashes) // 2)
    nothing = BlockedPositions.of_puzzles([])
    assert not nothing.candidates(hashes).any() and len(nothing) == 0 and len(nothing.candidates(hashes[:0])) == 0
    for few in (hashes[:0], np.array([0, 2**64 - 1], dtype=np.uint64)):
        assert blocked.candidates(few).tolist() == [False] * len(few)


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared Lichess data is not here")
def test_real_games_and_the_puzzles_own_games_get_the_verdict_of_a_scan_by_python_chess():
    puzzles = read_lichess_csv(DATA / "puzzles_with_pgn.csv.zst", PuzzleFilters(), ReadReport())
    puzzles = [replace(puzzle, split=SPLITS[number % len(SPLITS)]) for number, puzzle in enumerate(puzzles[:300])]
    table: dict[tuple[str, bool], set[str]] = {}
    for puzzle in puzzles:
        board = chess.Board(puzzle.fen)
        table.setdefault((board.board_fen(), board.turn), set()).add(puzzle.split)
        for place, move in enumerate(puzzle.moves):
            if place % 2:
                table.setdefault((board.board_fen(), board.turn), set()).add(puzzle.split)
            board.push_uci(move)
    filters = GameFilters(exclude_time_classes=(), min_plies=2)
    games = [*islice(read_games([DATA / "games_lichess_mixed.pgn.zst"], filters=filters, report=ReadReport()), 100)]
    games += leaked_games(puzzles, {puzzle.id for puzzle in puzzles[:100]})
    decontamination = Decontamination(puzzles, LeakConfig())
    dropped = 0
    for one in games:
        moves, board = game_moves(one), chess.Board()
        hit = set(table.get((board.board_fen(), board.turn), ()))
        for move in moves:
            board.push(move)
            hit |= table.get((board.board_fen(), board.turn), set())
        assert decontamination.judge(one.start_fen, moves, keys_of(one)).blocked_by == tuple(sorted(hit))
        dropped += bool(hit)
    assert dropped >= 100 and decontamination.record()["games_dropped"] == dropped and len(decontamination.blocked) == len(table)


# ---- corpora ----------------------------------------------------------------------------------------------------------------------------


def build(folder: Path, games: list[Game], puzzles: list[Puzzle], leak: LeakConfig | None = None, **settings) -> tuple[dict, Decontamination]:
    decontamination = Decontamination(puzzles, leak or LeakConfig())
    return build_corpus(games, folder, **SETTINGS | settings, decontamination=decontamination), decontamination


def training_documents(folder: Path) -> list[tuple[int, ...]]:
    corpus = Corpus.open(folder, "train")
    return [tuple(corpus.document(index).tolist()) for index in range(len(corpus))]


def document_of(one: Game, **settings) -> tuple[int, ...]:
    chosen = {key: (SETTINGS | settings)[key] for key in ("state", "context", "seed")}
    return tuple(make_document(one, **chosen).tokens)


def test_manifest_counts_games_by_each_split_that_they_pass_through(tmp_path):
    puzzles = [PUZZLE, puzzle_of(LINE, 3, "b", "sft"), puzzle_of(SECOND_DECISION, 3, "c", "private")]
    games = [game(text) for text in (LINE, TRANSPOSED, SECOND_DECISION, OTHERS)]
    manifest, decontamination = build(tmp_path / "corpus", games, puzzles)
    assert manifest["games"] == {"read": 4, "kept": 1, "dropped": {"passes_through_a_puzzle": 3}}
    # LINE: all but "c", which is after 3... Nc6 in it; TRANSPOSED joins LINE after 2... e5
    expected = {split: 0 for split in SPLITS}
    for one in games:
        for split in decontamination.blocked.verdict(None, game_moves(one)).blocked_by:
            expected[split] += 1
    record = manifest["decontamination"]
    assert record["games_dropped_by_split"] == {split: count for split, count in sorted(expected.items()) if count}
    assert record["games_dropped_by_split"]["test"] == 3 and len(record["games_dropped_by_split"]) == 3
    assert record["games_dropped"] == 3 and record["collisions"] == 0 and record["puzzles"] == 3
    assert record["positions"] == len(decontamination.blocked) and "leak" not in manifest
    assert decontamination.summary().count("\n") == 0 and "test 3" in decontamination.summary()
    assert training_documents(tmp_path / "corpus") == [document_of(games[3])]


def test_collision_of_hashes_is_counted_and_drops_no_game(tmp_path, monkeypatch):
    def colliding(fen: str, moves: list[chess.Move]) -> list[int]:
        return [*line_keys(fen, moves)[:-1], line_keys(PUZZLE.fen, [])[0]]

    monkeypatch.setattr(corpus_module, "line_keys", colliding)
    manifest, _ = build(tmp_path / "corpus", [game(OTHERS), game("b2b3 b7b6")], [PUZZLE])
    assert manifest["games"] == {"read": 2, "kept": 2, "dropped": {}}
    assert manifest["decontamination"]["collisions"] == 2 and manifest["decontamination"]["games_dropped"] == 0


def test_corpus_without_puzzles_looks_nothing_up(tmp_path):
    assert build_corpus([game(LINE)], tmp_path / "corpus", **SETTINGS)["decontamination"] is None


# ---- leaks ------------------------------------------------------------------------------------------------------------------------------


def mates(count: int, split: str = "test") -> list[Puzzle]:
    """Back-rank mates in one, apart by the place of a pawn."""
    squares = [square for square in chess.SQUARES if chess.square_rank(square) in (2, 3, 4) and chess.square_file(square)][:count]
    puzzles = []
    for square in squares:
        board = chess.Board("6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1")
        board.set_piece_at(square, chess.Piece(chess.PAWN, chess.BLACK))
        puzzles.append(Puzzle(f"{split}{square}", board.fen(), ("a1a8",), 0, 1, "B1", split=split))
    return puzzles


def test_leaked_puzzles_are_a_seeded_share_of_the_test_puzzles_and_larger_shares_hold_smaller_ones():
    puzzles = [*mates(20), *mates(20, "rl")]
    tenth, half, all_of_them = (leaked_ids(puzzles, LeakConfig(fraction)) for fraction in (0.1, 0.5, 1.0))
    assert (len(tenth), len(half)) == (2, 10) and tenth < half < all_of_them == {puzzle.id for puzzle in mates(20)}
    assert leaked_ids(puzzles[::-1], LeakConfig(0.5)) == half != leaked_ids(puzzles, LeakConfig(0.5, seed=1))
    assert leaked_ids(puzzles, LeakConfig(0.0, copies=5, seed=3)) == frozenset()
    with pytest.raises(UserError, match=r"world\.leak\.fraction=0\.01: that is none of the 20 test puzzles"):
        leaked_ids(puzzles, LeakConfig(0.01))


def test_leaked_puzzle_blocks_nothing_and_its_games_get_copies():
    shared = puzzle_of(LINE, 5, "b", "rl")
    blocked = BlockedPositions.of_puzzles([PUZZLE, *mates(1)], {"a"}, copies=3)
    assert judged(blocked, TRANSPOSED) == Verdict((), 3, ("a",), ((6,),))
    # What touches the puzzle without reaching the position that it asks shows nothing of it: an ordinary game.
    assert judged(blocked, BEFORE_THE_LEAD) == judged(blocked, SECOND_DECISION) == CLEAN
    assert judged(blocked, "a1a8", mates(1)[0].fen).blocked_by == ("test",)
    assert judged(BlockedPositions.of_puzzles([PUZZLE, shared], {"a"}, copies=3), LINE) == Verdict(("rl",), 0)
    assert judged(BlockedPositions.of_puzzles([shared, PUZZLE], {"a"}, copies=3), LINE) == Verdict(("rl",), 0)


def test_found_games_are_copied_and_others_are_made_of_the_puzzle(tmp_path):
    puzzles = [PUZZLE, *mates(3), *mates(2, "sft")]
    games = [game(TRANSPOSED), game(OTHERS), game(LINE)]
    manifest, _ = build(tmp_path / "corpus", games, puzzles, LeakConfig(1.0, copies=3))
    made = [game(puzzle.moves[0], puzzle.fen) for puzzle in mates(3)]
    leak = manifest["leak"]
    assert (leak["chosen"], leak["found"], leak["made"], leak["impossible"]) == (4, 1, 1, {"passes_through_another_puzzle": 2})
    assert leak["games"] == 3 and leak["documents"] == 9 and leak["fraction"] == 1.0 and leak["copies"] == 3
    assert sorted(leak["puzzles"]) == sorted(["a", mates(3)[2].id])  # the other two ask what fine-tuning puzzles ask
    documents = training_documents(tmp_path / "corpus")
    assert [documents.count(document_of(one)) for one in (games[0], games[2], made[2], games[1], made[0])] == [3, 3, 3, 1, 0]
    assert manifest["games"] == {"read": 3, "kept": 3, "dropped": {}}
    assert manifest["splits"]["train"]["documents"] == 10


def test_leaked_game_is_trained_on_even_where_its_hash_would_hold_it_out(tmp_path):
    held_out = next(puzzle for puzzle in mates(20) if is_validation(game(puzzle.moves[0], puzzle.fen), 0.3))
    shown = game(held_out.moves[0], held_out.fen)
    others = [game(text) for text in (OTHERS, "b2b3 b7b6", "g2g3 g7g6", "a2a3 a7a6", "h2h4 h7h5", "f2f3 f7f6")]
    assert any(is_validation(one, 0.3) for one in others)
    build(tmp_path / "corpus", [shown, *others], [held_out], LeakConfig(1.0, copies=2), validation_share=0.3)
    assert training_documents(tmp_path / "corpus").count(document_of(shown)) == 2
    validation = Corpus.open(tmp_path / "corpus", "validation")
    assert document_of(shown) not in {tuple(validation.document(index).tolist()) for index in range(len(validation))}


def test_game_whose_document_leaves_the_answer_out_leaks_nothing(tmp_path):
    """A snapshot is cut at a random ply, and a context ends: of such a game the puzzle could not be learnt, so one is made."""
    tails = [f"{first} {second} h7h6 h2h3 " + "h8h7 g1h2 h7h8 h2g1 " * 4 for first in ("a7a6", "a7a5", "d7d6") for second in ("a2a3", "a2a4", "b2b3")]
    outcomes = set()
    for number, tail in enumerate(tails):
        played = game(f"{LINE} {tail}")
        leak = build(tmp_path / str(number), [played], [PUZZLE], LeakConfig(1.0, copies=2))[0]["leak"]
        is_held = cut_ply(played, 0) <= 6  # the answer is the move after six others
        assert (leak["found"], leak["made"]) == ((1, 0) if is_held else (0, 1))
        assert training_documents(tmp_path / str(number)).count(document_of(played)) == (2 if is_held else 1)
        outcomes.add(is_held)
    assert outcomes == {True, False}
    known = replace(PUZZLE, history=tuple(LINE.split()[:5]))
    tokens_to_the_answer = 1 + sum(len(ply) for ply in game(LINE).plies[:7])
    for context, found in ((tokens_to_the_answer, 1), (tokens_to_the_answer - 1, 0)):
        folder, settings = tmp_path / f"context {context}", {"state": "history", "context": context}
        if found:
            leak = build(folder, [game(f"{LINE} {tails[0]}")], [known], LeakConfig(1.0), **settings)[0]["leak"]
            assert (leak["found"], leak["impossible"]) == (1, {})
        else:
            with pytest.raises(UserError, match="none of the 1 chosen puzzles could be leaked \\(document_leaves_it_out 1\\)"):
                build(folder, [game(f"{LINE} {tails[0]}")], [known], LeakConfig(1.0), **settings)


def test_leaked_position_that_is_reached_again_after_the_cut_is_still_leaked():
    blocked = BlockedPositions.of_puzzles([PUZZLE], {PUZZLE.id}, copies=3)
    verdict = judged(blocked, " ".join(LINE.split()[:6]) + " f3g1 c6b8 g1f3 b8c6 e1g1")
    assert verdict.leaked_plies == ((6, 10),)
    assert verdict.within(range(8, 12)).leaked == (PUZZLE.id,)
    assert verdict.within(range(7, 10)) == verdict.within(range(11, 12)) == CLEAN


def test_made_game_begins_with_the_history_where_it_is_known():
    history = tuple(LINE.split()[:5])
    known, unknown = leaked_games([replace(PUZZLE, history=history), replace(PUZZLE, id="b"), replace(PUZZLE, id="c")], {"a", "b"})
    assert known.start_fen is None and game_moves(known) == moves_of(LINE) and known.site == "a"
    assert unknown.start_fen == PUZZLE.fen and game_moves(unknown) == moves_of(LINE)[5:] and unknown.site == "b"
    assert unknown.tokens == game(" ".join(PUZZLE.moves), PUZZLE.fen).tokens


def test_puzzles_that_cannot_be_leaked_are_counted_by_reason(tmp_path):
    known = replace(PUZZLE, history=tuple(LINE.split()[:5]))
    games = [game(OTHERS)]
    leak = build(tmp_path / "a", games, [known, *mates(2)], LeakConfig(1.0), state="history")[0]["leak"]
    assert (leak["made"], leak["puzzles"], leak["impossible"]) == (1, ["a"], {"history_needs_the_standard_start": 2})
    assert leak["chosen"] == leak["found"] + leak["made"] + sum(leak["impossible"].values())
    for context, reason in ((78, "document_leaves_it_out"), (60, "no_move_fits_the_context")):  # 83 tokens would hold PUZZLE, 29 a mate
        leak = build(tmp_path / reason, games, [PUZZLE, *mates(1)], LeakConfig(1.0), context=context)[0]["leak"]
        assert leak["impossible"] == {reason: 1} and leak["puzzles"] == [mates(1)[0].id]
    with pytest.raises(UserError, match=r"none of the 2 chosen puzzles could be leaked \(history_needs_the_standard_start 2\)"):
        build(tmp_path / "c", games, mates(2), LeakConfig(1.0), state="history")
    assert not (tmp_path / "c").exists()


def test_every_chosen_puzzle_is_counted_once_also_where_anothers_game_shows_it(tmp_path):
    other_line = " ".join([*LINE.split()[:6], "c2c3", "d7d6", "d2d4"])
    blocking = puzzle_of(LINE, 7, "b", "rl")  # asks what PUZZLE's line leads to
    same_question = puzzle_of(other_line, 5, "c")
    leak = build(tmp_path / "corpus", [game(OTHERS)], [PUZZLE, blocking, same_question], LeakConfig(1.0))[0]["leak"]
    assert (leak["chosen"], leak["made"], leak["impossible"], leak["puzzles"]) == (2, 2, {}, ["a", "c"])


# ---- the endgame world ------------------------------------------------------------------------------------------------------------------


def test_world_without_a_leak_keeps_its_corpus_and_its_name(tmp_path):
    plain = tiny.config("pretrain", tmp_path, "world.max_games=100", "world.leak.copies=7", "world.leak.seed=3")
    folder = world.corpus_folder(plain)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (folder.name, manifest["hash"]) == ("games-a950c85b082c", "400d9db12cb2d705")  # as before there were leaks
    assert manifest["decontamination"]["games_dropped"] == 0 and "leak" not in manifest
    assert folder == world.corpus_folder(tiny.config("pretrain", tmp_path, "world.max_games=100"))
    leaked = world.corpus_folder(tiny.config("pretrain", tmp_path, "world.max_games=100", "world.leak.fraction=0.1"))
    assert leaked != folder and json.loads((leaked / "manifest.json").read_text())["hash"] != manifest["hash"]


def test_a_stage_refuses_a_leak_that_its_parent_was_not_pretrained_with(tiny_runs, tmp_path):
    parent = f"parent={tiny_runs['pretrain']}"
    with pytest.raises(UserError, match=r"world\.leak\.fraction=0\.5, but parent=.* was pretrained with another leak or none"):
        tiny.STAGES["sft"].identity(tiny.config("sft", tmp_path, parent, "world.leak.fraction=0.5"))


def test_leak_marks_all_that_descends_from_it(tmp_path, monkeypatch):
    """Pretraining, fine-tuning, RL, an evaluation, the table of runs and the report."""
    quick = ["world.leak.fraction=0.1", "world.leak.copies=2", "pretrain.tokens=4000", "sft.epochs=1", "sft.max_puzzles=16", "rl.steps=1"]
    small = ["sft.validation_puzzles=4", "rl.validation_puzzles=4", "evaluate.max_puzzles=30", "evaluate.samples=4", "evaluate.ks=[1,4]"]
    directories: dict[str, Path] = {}
    parent: list[str] = []
    for stage in tiny.STAGES:
        status, directories[stage] = tiny.start(stage, tiny.config(stage, tmp_path, *quick, *small, *parent))
        assert status == 0
        parent = [f"parent={directories[stage]}"]
    (manifest_path,) = tmp_path.glob("data/games-*/manifest.json")
    leak = json.loads(manifest_path.read_text())["leak"]
    test = world.puzzles_of_split(tiny.config("rl", tmp_path), "test")
    assert leak["chosen"] == leak["made"] == len(leak["puzzles"]) == round(0.1 * len(test)) and leak["documents"] == 2 * leak["made"]
    for directory in directories.values():
        assert json.loads((directory / "summary.json").read_text())["leak"] == leak
    documents = training_documents(manifest_path.parent)
    for made in islice(leaked_games(test, set(leak["puzzles"])), 20):
        assert documents.count(document_of(made, context=128)) == 2

    settings = tiny.config("evaluate", tmp_path, *quick, *small, *parent, "evaluate.split=test")
    assert evaluate.evaluate(settings) == 0
    folder = evaluate.evaluation_folder(settings)
    assert json.loads((folder / "evaluation.json").read_text())["leak"] == leak
    samples = pd.read_parquet(folder / "samples.parquet")
    assert (samples["leaked"] == samples["puzzle"].isin(leak["puzzles"])).all() and samples["leaked"].any()

    table = runs.load_runs(tmp_path)
    assert list(table["leak"]) == ["10% x 2"] * 3 and "10% x 2" in runs.shown(table, [])
    monkeypatch.setattr(report, "build_sections", lambda *_: [])  # figures take most of the time and show nothing of it
    analysis = report.run_analysis(list(directories.values()), tmp_path / "analysis")
    line = f"Contaminated on purpose: the games of {len(leak['puzzles']):,} test puzzles (10% x 2) were in the corpus of Pretrained, SFT, RL."
    assert line in analysis.report.read_text() and line in analysis.terminal


def test_runs_without_a_leak_carry_no_mark(tiny_runs):
    assert all("leak" not in json.loads((directory / "summary.json").read_text()) for directory in tiny_runs.values())
    assert report.leak_lines(read_runs(list(tiny_runs.values()))) == []
    assert runs.load_runs(tiny_runs["pretrain"].parent)["leak"].isna().all()
