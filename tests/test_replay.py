"""Games as arrays: replayed boards and hashes, documents, moves and token streams, each against the same thing done game by game."""

from __future__ import annotations

import random
import re
import subprocess
from itertools import accumulate, chain

import chess
import chess.polyglot
import numpy as np
import pytest

from chessrl.corpus import cut_ply, make_document
from chessrl.documents import NO_DOCUMENT, history_documents, snapshot_documents
from chessrl.game_batch import GameBatch, bounds, split_plies
from chessrl.games import Game
from chessrl.notation import EOS, TOKEN_ID, from_text, line_tokens, to_text
from chessrl.pgn_extract import find_pgn_extract, read_moves
from chessrl.replay import replay

STARTS = [
    None,
    None,
    "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 0 1",
    "2b1k3/1P1P1P2/8/8/8/8/1p1p1p2/2B1K3 b - - 0 1",
    "8/8/8/1k1pP3/8/5NN1/2N1K3/N7 w - d6 0 1",
    "4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1",
    "8/8/8/K2pP2r/8/8/8/7k w - d6 0 1",  # taking en passant is pinned
]


def random_moves(rng: random.Random, fen: str | None) -> list[chess.Move]:
    """Random games that castle and take en passant whenever they can."""
    board = chess.Board(fen or chess.STARTING_FEN)
    length = rng.randrange(1, 80)
    while len(board.move_stack) < length and not board.is_game_over():
        moves = list(board.legal_moves)
        board.push(rng.choice([move for move in moves if board.is_castling(move) or board.is_en_passant(move)] or moves))
    return board.move_stack


@pytest.fixture(scope="module")
def played() -> tuple[list[list[chess.Move]], dict[int, str], GameBatch]:
    rng = random.Random(0)
    games, starts, tokens = [], {}, []
    for number in range(200):
        fen = rng.choice(STARTS)
        games.append(random_moves(rng, fen))
        tokens.append(line_tokens(chess.Board(fen or chess.STARTING_FEN), games[-1]))
        if fen:
            starts[number] = fen
    return games, starts, GameBatch.of_plies(tokens)


def test_every_position_has_python_chess_hash_and_board(played):
    games, starts, batch = played
    rng = random.Random(1)
    cuts = np.array([rng.randrange(len(moves)) for moves in games])
    hashes, boards = replay(batch, starts, cuts)
    expected = []
    for number, moves in enumerate(games):
        board = chess.Board(starts.get(number, chess.STARTING_FEN))
        for ply in range(len(moves) + 1):
            expected.append(chess.polyglot.zobrist_hash(board))
            if ply == cuts[number]:
                found = boards.board(number)
                assert found.board_fen() == board.board_fen() and found.turn == board.turn
                assert found.castling_rights == board.clean_castling_rights()
                assert found.has_legal_en_passant() == board.has_legal_en_passant()
            if ply < len(moves):
                board.push(moves[ply])
    assert hashes.tolist() == expected


@pytest.mark.skipif(not find_pgn_extract(), reason="pgn-extract is not installed")
def test_hashes_are_those_of_pgn_extract(played):
    games, starts, batch = played
    hashes, _ = replay(batch, starts)
    places = bounds(batch.game_plies + 1)
    numbers = [number for number in range(len(games)) if number not in starts]
    text = "".join(f'[Event "x"]\n\n{chess.Board().variation_san(games[number])} *\n\n' for number in numbers)
    done = subprocess.run([find_pgn_extract(), "-s", "--hashcomments"], input=text, capture_output=True, text=True, check=True)
    found = [int(word, 16) for word in re.findall(r"\{\s*([0-9a-f]{1,16})\s*\}", done.stdout)]
    assert found == list(chain.from_iterable(hashes[places[number] + 1 : places[number + 1]].tolist() for number in numbers))


@pytest.mark.parametrize("context", [2, 40, 75, 120, 600])
@pytest.mark.parametrize("state", ["history", "snapshot"])
def test_documents_are_those_made_game_by_game(played, state, context):
    moves, starts, batch = played
    games = [
        Game(tuple(chain.from_iterable(plies)), tuple(accumulate(map(len, plies))), starts.get(number))
        for number, plies in enumerate(batch.plies(range(len(batch))))
    ]
    assert len(games) == len(moves)
    if state == "history":
        documents = history_documents(batch, np.array([game.start_fen is None for game in games]), context)
    else:
        cuts = np.array([cut_ply(game, 3) for game in games])
        documents = snapshot_documents(batch, cuts, replay(batch, starts, cuts)[1], context)
    places = bounds(documents.lengths)
    for number, game in enumerate(games):
        expected = make_document(game, state=state, context=context, seed=3)
        if isinstance(expected, str):
            assert documents.lengths[number] == 0 and NO_DOCUMENT[documents.fault[number]] == expected
            continue
        assert documents.tokens[places[number] : places[number + 1]].tolist() == expected.tokens
        assert (documents.loss_tokens[number], documents.truncated[number]) == (expected.loss_tokens, expected.truncated)
        assert range(documents.first_ply[number], documents.end_ply[number]) == expected.plies


def test_game_without_moves_has_no_document_and_one_hash():
    batch = GameBatch.of_plies([[], line_tokens(chess.Board(), [chess.Move.from_uci("e2e4")]), []])
    hashes, _ = replay(batch, {})
    start = chess.polyglot.zobrist_hash(chess.Board())
    assert hashes[[0, 1, 3]].tolist() == [start] * 3 and hashes[2] != start
    documents = history_documents(batch, np.ones(3, dtype=bool), 10)
    assert documents.lengths.tolist() == [0, 5, 0] and documents.tokens[-1] == EOS
    assert [NO_DOCUMENT[fault] for fault in documents.fault] == ["no_moves", "", "no_moves"]


def test_selected_games_keep_their_plies(played):
    _, _, batch = played
    wanted = np.arange(len(batch)) % 3 == 1
    assert list(batch.select(wanted).plies(range(int(wanted.sum())))) == list(batch.plies(np.flatnonzero(wanted).tolist()))


def test_moves_of_pgn_extract_are_read_in_bulk():
    tokens, lengths = read_moves(b"e2-e4 Ng8xf6+ O-O O-O-O++ e7xd8Q# O-O+ a2-a1N ")
    ends = np.cumsum(lengths).tolist()
    words = [to_text(tokens[start:end]) for start, end in zip([0, *ends], ends)]
    assert words == ["P e2 e4", "N g8 x f6 +", "O-O", "O-O-O +", "P e7 x d8 = Q #", "O-O +", "P a2 a1 = N"]
    assert [part.tolist() for part in read_moves(b"")] == [[], []]


@pytest.mark.parametrize("word", ["e2e4", "e2-e9", "Xe2-e4", "e2-e4Q+?", "--", "O-O-O-O", "e2-e4K", "", "O+", "1-0"])
def test_other_output_is_refused(word):
    with pytest.raises(RuntimeError, match="no move in long algebraic notation"):
        read_moves(f"e2-e4 {word} e7-e5 ".encode())


def test_a_token_stream_is_cut_into_the_plies_it_was_made_of(played):
    _, _, batch = played
    game_tokens = np.diff(batch.ply_bounds[batch.game_bounds])
    found, readable = split_plies(batch.tokens, game_tokens)
    assert readable.all()
    assert found.ply_tokens.tolist() == batch.ply_tokens.tolist() and found.game_plies.tolist() == batch.game_plies.tolist()


def test_a_token_stream_out_of_grammar_costs_its_own_game_alone():
    """At every place of two games a token is put in, left out or replaced; the grammar as a regular expression says what is readable."""
    piece, square = "[KQRBNP]", "[a-h][1-8]"
    ply = rf"(?:{piece} {square} (?:x )?{square}(?: = {piece})?|O-O|O-O-O)(?: [+#])?"
    grammar = re.compile(rf"{ply}(?: {ply})*")
    plain = line_tokens(chess.Board(), [chess.Move.from_uci(move) for move in ("e2e4", "d7d5", "e4d5", "d8d5")])
    whole = list(chain.from_iterable(plain))
    promoting = from_text("P e5 x d6 = Q + O-O # P e7 e8 = N")  # no game of chess, but in the grammar
    tokens_put = [[], *([TOKEN_ID[name]] for name in ("x", "=", "+", "Q", "a1", "O-O", "."))]
    variants = [
        game[:place] + put + game[place + cut :]
        for game in (whole, promoting)
        for place in range(len(game) + 1)
        for put in tokens_put
        for cut in (0, 1)
    ]
    expected = [bool(grammar.fullmatch(to_text(tokens))) for tokens in variants]
    assert any(expected) and not all(expected)
    batch, readable = split_plies(np.array(list(chain.from_iterable(variants)), dtype=np.uint8), np.array([len(tokens) for tokens in variants]))
    assert readable.tolist() == expected
    kept = [tokens for tokens, good in zip(variants, expected) if good]
    assert [list(chain.from_iterable(plies)) for plies in batch.plies(range(len(batch)))] == kept
