"""Corpora: documents, cuts, splits, shards and what a damaged corpus says."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import accumulate, chain
from pathlib import Path

import chess
import numpy as np
import pytest

from chessrl import corpus as corpus_module
from chessrl import games as games_module
from chessrl.command import run_command
from chessrl.corpus import HEADER_BYTES, Corpus, build_corpus, cut_ply, is_validation, make_document
from chessrl.errors import UserError
from chessrl.games import Game
from chessrl.notation import BOS, END_POSITION, EOS, VOCABULARY, line_tokens, parse_move, parse_snapshot, snapshot_tokens, vocabulary_hash
from chessrl.sources import ReadReport, zstd

ENDGAME = "8/8/8/4k3/8/8/3QP3/4K2R w K - 0 1"
SETTINGS = {"state": "snapshot", "context": 256, "seed": 0, "validation_share": 0.2, "shard_tokens": 2000}


def random_game(seed: int, fen: str | None = None, plies: int = 30) -> tuple[Game, list[chess.Move]]:
    rng = random.Random(seed)
    board = chess.Board(fen or chess.STARTING_FEN)
    moves: list[chess.Move] = []
    while len(moves) < plies and not board.is_game_over():
        moves.append(rng.choice(list(board.legal_moves)))
        board.push(moves[-1])
    tokens = line_tokens(chess.Board(fen or chess.STARTING_FEN), moves)
    return Game(tuple(chain.from_iterable(tokens)), tuple(accumulate(map(len, tokens))), fen), moves


def random_games(count: int, fen: str | None = None) -> list[Game]:
    return [random_game(seed, fen)[0] for seed in range(count)]


def documents(corpus: Corpus) -> list[tuple[int, ...]]:
    return [tuple(corpus.document(index).tolist()) for index in range(len(corpus))]


# ---- documents --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fen", [None, ENDGAME])
def test_snapshot_document_replays_to_the_games_end(fen):
    for seed in range(25):
        game, moves = random_game(seed, fen)
        document = make_document(game, state="snapshot", context=512, seed=0)
        end = document.tokens.index(END_POSITION) + 1
        cut = cut_ply(game, 0)
        board = chess.Board(fen or chess.STARTING_FEN)
        for move in moves[:cut]:
            board.push(move)
        assert document.tokens[0] == BOS and document.tokens[1:end] == snapshot_tokens(board)
        assert parse_snapshot(document.tokens[1:end]).board_fen() == board.board_fen()
        for ply in game.plies[cut:]:
            board.push(parse_move(board, ply))
        assert document.tokens[end:] == [*chain.from_iterable(game.plies[cut:]), EOS]
        assert board.move_stack == moves
        assert document.loss_tokens == len(document.tokens) - end and not document.truncated


def test_history_document_is_the_whole_game():
    game = random_games(1)[0]
    document = make_document(game, state="history", context=512, seed=0)
    assert document.tokens == [BOS, *game.tokens, EOS] and document.loss_tokens == len(game.tokens) + 1
    assert make_document(random_games(1, ENDGAME)[0], state="history", context=512, seed=0) == "history_needs_the_standard_start"


@pytest.mark.parametrize("state", ["history", "snapshot"])
def test_long_document_ends_at_a_move_boundary_without_eos(state):
    for game in random_games(10):
        whole = make_document(game, state=state, context=512, seed=0).tokens
        exact = make_document(game, state=state, context=len(whole), seed=0)
        assert exact.tokens == whole and not exact.truncated
        short = make_document(game, state=state, context=len(whole) - 1, seed=0)  # all moves fit, <eos> does not
        assert short.tokens == whole[:-1] and short.truncated
        shorter = make_document(game, state=state, context=len(whole) - 2, seed=0)
        assert shorter.tokens == whole[: -1 - len(game.plies[-1])]
        assert shorter.loss_tokens == short.loss_tokens - len(game.plies[-1])
        assert make_document(game, state=state, context=2, seed=0) == "no_move_fits_the_context"


def test_cut_leaves_eight_plies_and_reaches_every_allowed_one():
    cuts = Counter(cut_ply(game, seed) for game in random_games(1) for seed in range(2000))
    assert set(cuts) == set(range(30 - 8 + 1))
    assert max(cuts.values()) < 2 * min(cuts.values())  # 87 expected each, sd 9
    short = random_game(0, plies=5)[0]
    assert {cut_ply(short, seed) for seed in range(50)} == {0}


def test_endgames_start_whole_half_of_the_time():
    game = random_game(3, ENDGAME)[0]
    assert len(game.ply_ends) > 20
    whole = sum(cut_ply(game, seed) == 0 for seed in range(1000))
    assert 450 < whole < 620  # 1/2 + 1/2 x 1/23: 522 expected, sd 16


def test_game_without_moves_has_no_document():
    assert make_document(Game((), (), ENDGAME), state="snapshot", context=64, seed=0) == "no_moves"


# ---- building ---------------------------------------------------------------------------------------------------------------------------


def test_corpus_round_trip_over_many_shards(tmp_path):
    games = random_games(120)
    manifest = build_corpus(games, tmp_path / "corpus", **SETTINGS)
    train, validation = (Corpus.open(tmp_path / "corpus", split) for split in ("train", "validation"))
    assert len(manifest["splits"]["train"]["shards"]) > 2
    expected = {split: [] for split in ("train", "validation")}
    for game in games:
        split = "validation" if is_validation(game, 0.2) else "train"
        expected[split].append(make_document(game, state="snapshot", context=256, seed=0))
    for split, corpus in (("train", train), ("validation", validation)):
        assert documents(corpus) == [tuple(document.tokens) for document in expected[split]]
        assert corpus.lengths.tolist() == [len(document.tokens) for document in expected[split]]
        entry = manifest["splits"][split]
        assert entry["tokens"] == corpus.lengths.sum() and entry["documents"] == len(corpus)
        assert entry["loss_tokens"] == sum(document.loss_tokens for document in expected[split])
    assert train.manifest == manifest and isinstance(train.document(0).base, np.memmap)
    assert not (tmp_path / "corpus.tmp").exists()
    for index in (-1, len(train)):
        with pytest.raises(IndexError):
            train.document(index)


def test_documents_do_not_depend_on_the_order_of_reading(tmp_path):
    games = random_games(60)
    first = build_corpus(games, tmp_path / "a", **SETTINGS)
    second = build_corpus(games[::-1], tmp_path / "b", **SETTINGS)
    again = build_corpus(iter(games), tmp_path / "c", **SETTINGS)
    for split in ("train", "validation"):
        assert sorted(documents(Corpus.open(tmp_path / "a", split))) == sorted(documents(Corpus.open(tmp_path / "b", split)))
    assert first["hash"] == again["hash"] != second["hash"]
    assert build_corpus(games, tmp_path / "d", **SETTINGS | {"seed": 1})["hash"] != first["hash"]


def test_equal_games_never_straddle_the_splits_whatever_the_seed(tmp_path):
    games = random_games(60)
    build_corpus([*games, *games], tmp_path / "a", **SETTINGS)
    build_corpus(games, tmp_path / "b", **SETTINGS | {"seed": 5, "state": "history"})
    train, validation = (set(documents(Corpus.open(tmp_path / "a", split))) for split in ("train", "validation"))
    assert not train & validation
    held_out = {document[1:-1] for document in documents(Corpus.open(tmp_path / "b", "validation"))}
    assert held_out == {game.tokens for game in games if is_validation(game, 0.2)}


def test_max_tokens_stops_the_reading(tmp_path):
    games = iter(random_games(80))
    manifest = build_corpus(games, tmp_path / "corpus", **SETTINGS, max_tokens=2000)
    assert 2000 <= manifest["splits"]["train"]["tokens"] < 2000 + 256
    assert len(list(games)) == 80 - manifest["games"]["read"] > 0


def test_manifest_tells_sources_settings_and_what_was_dropped(tmp_path):
    reading = ReadReport(read=61, kept=60, dropped=Counter(illegal_move=1), files=[{"name": "a.pgn", "bytes": 1, "sha256": "00"}])
    manifest = build_corpus([*random_games(60), Game((), (), ENDGAME)], tmp_path / "corpus", **SETTINGS, reading=reading)
    assert manifest == json.loads((tmp_path / "corpus" / "manifest.json").read_text())
    assert manifest["sources"] == reading.files and manifest["reading"]["dropped"] == {"illegal_move": 1}
    assert manifest["games"] == {"read": 61, "kept": 60, "dropped": {"no_moves": 1}}
    assert manifest["vocabulary_hash"] == vocabulary_hash() and manifest["dtype"] == "uint8"
    header = json.loads((tmp_path / "corpus" / "train-00000.tokens").read_bytes()[:HEADER_BYTES])
    assert header["vocabulary_hash"] == vocabulary_hash() and header["vocabulary_size"] == len(VOCABULARY) and header["dtype"] == "uint8"


def test_failed_build_leaves_nothing_and_a_stale_one_is_replaced(tmp_path):
    def failing():
        yield from random_games(5)
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError):
        build_corpus(failing(), tmp_path / "corpus", **SETTINGS)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "corpus.tmp").mkdir()
    (tmp_path / "corpus.tmp" / "train-00099.tokens").write_text("left by a killed run")
    build_corpus(random_games(40), tmp_path / "corpus", **SETTINGS)
    assert not (tmp_path / "corpus" / "train-00099.tokens").exists()
    with pytest.raises(UserError, match="not empty"):
        build_corpus(random_games(40), tmp_path / "corpus", **SETTINGS)


def test_empty_split_and_bad_settings_are_errors(tmp_path):
    with pytest.raises(UserError, match=r"train split of the corpus is empty .*no_moves 3"):
        build_corpus([Game((), ())] * 3, tmp_path / "corpus", **SETTINGS)
    with pytest.raises(UserError, match="validation split of the corpus is empty"):
        build_corpus(random_games(2), tmp_path / "corpus", **SETTINGS | {"validation_share": 1e-9})
    assert len(build_corpus(random_games(2), tmp_path / "whole", **SETTINGS | {"validation_share": 0.0})["splits"]["train"]["shards"]) == 1
    assert len(Corpus.open(tmp_path / "whole", "validation")) == 0
    for setting in ({"state": "fen"}, {"validation_share": 1.0}, {"context": 1}, {"shard_tokens": 0}):
        with pytest.raises(UserError, match=next(iter(setting))):
            build_corpus(random_games(2), tmp_path / "corpus", **SETTINGS | setting)


# ---- opening ----------------------------------------------------------------------------------------------------------------------------


def damage(folder: Path, how: str) -> None:
    tokens, offsets = folder / "train-00000.tokens", folder / "train-00000.offsets.npy"
    if how == "no manifest":
        (folder / "manifest.json").unlink()
    elif how == "half a manifest":
        (folder / "manifest.json").write_text((folder / "manifest.json").read_text()[:300])
    elif how == "truncated tokens":
        tokens.write_bytes(tokens.read_bytes()[:-1])
    elif how == "missing tokens":
        tokens.unlink()
    elif how == "another shard's header":
        data = tokens.read_bytes()
        tokens.write_bytes(data[:HEADER_BYTES].replace(b'"documents": ', b'"documents": 9')[:HEADER_BYTES] + data[HEADER_BYTES:])
    elif how == "missing offsets":
        offsets.unlink()
    elif how == "truncated offsets":
        offsets.write_bytes(offsets.read_bytes()[:-8])
    elif how == "foreign offsets":
        np.save(offsets, np.arange(5))


DAMAGES = (
    *("no manifest", "half a manifest", "truncated tokens", "missing tokens"),
    *("another shard's header", "missing offsets", "truncated offsets", "foreign offsets"),
)


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_corpus_is_refused_with_the_files_name(tmp_path, how):
    build_corpus(random_games(40), tmp_path / "corpus", **SETTINGS)
    damage(tmp_path / "corpus", how)
    with pytest.raises(UserError, match=r"corpus.*build (it|the corpus) again"):
        Corpus.open(tmp_path / "corpus", "train")


def test_corpus_of_another_vocabulary_is_refused(tmp_path, monkeypatch):
    build_corpus(random_games(40), tmp_path / "corpus", **SETTINGS)
    monkeypatch.setattr(corpus_module, "vocabulary_hash", lambda: "0123456789abcdef")
    with pytest.raises(UserError, match=r"vocabulary .*expected 0123456789abcdef"):
        Corpus.open(tmp_path / "corpus", "train")


def test_unknown_split_is_named(tmp_path):
    build_corpus(random_games(40), tmp_path / "corpus", **SETTINGS)
    with pytest.raises(UserError, match="no split 'test'"):
        Corpus.open(tmp_path / "corpus", "test")


# ---- command ------------------------------------------------------------------------------------------------------------------------


def test_command_builds_a_corpus_from_pgn(tmp_path, monkeypatch, capsys):
    texts = []
    for seed in range(30):
        board = chess.Board()
        _, moves = random_game(seed)
        texts.append(f'[Event "Rated Blitz game"]\n[Result "1-0"]\n\n{board.variation_san(moves)} 1-0\n')
    (tmp_path / "games.pgn.zst").write_bytes(zstd.compress("\n".join(texts).encode()))
    monkeypatch.setattr("sys.argv", ["games", f"sources={tmp_path / 'games.pgn.zst'}", f"out={tmp_path / 'out'}", "validation_share=0.2"])
    assert run_command(games_module.main) == 0
    assert "read 30, kept 30" in capsys.readouterr().out
    assert len(Corpus.open(tmp_path / "out", "train")) + len(Corpus.open(tmp_path / "out", "validation")) == 30
    assert run_command(games_module.main) == 2  # the folder is there already
    assert capsys.readouterr().err.count("\n") == 1
