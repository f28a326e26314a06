"""The vocabulary, moves and positions: python-chess (its LAN writer, its EPD, its legal moves) is the independent reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import chess
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chessrl import notation
from chessrl.notation import NotationError, from_text, move_key, move_tokens, parse_move, parse_snapshot, snapshot_tokens, to_text

REFERENCE_TABLE = """
<bos> <eos> <unk> K Q R B N P
a1 a2 a3 a4 a5 a6 a7 a8 b1 b2 b3 b4 b5 b6 b7 b8 c1 c2 c3 c4 c5 c6 c7 c8 d1 d2 d3 d4 d5 d6 d7 d8
e1 e2 e3 e4 e5 e6 e7 e8 f1 f2 f3 f4 f5 f6 f7 f8 g1 g2 g3 g4 g5 g6 g7 g8 h1 h2 h3 h4 h5 h6 h7 h8
x = + # O-O O-O-O . ... <T> </T> <sep> <call_env>
"""


# ---- positions to test on ---------------------------------------------------------------------------------------------------------------


def is_special(board: chess.Board, move: chess.Move) -> bool:
    """The kinds that uniformly random games hardly ever reach."""
    return board.is_castling(move) or board.is_en_passant(move) or move.promotion is not None or board.gives_check(move)


def play(board: chess.Board, choices: list[int]) -> chess.Board:
    """Plays one move per choice; every third choice prefers special moves where there are any."""
    for choice in choices:
        moves = list(board.legal_moves)
        if not moves:
            break
        special = [move for move in moves if is_special(board, move)] if choice % 3 == 0 else []
        candidates = special or moves
        board.push(candidates[choice % len(candidates)])
    return board


choices = st.integers(0, 10**6)
games = st.lists(choices, max_size=100).map(lambda picks: play(chess.Board(), picks))


@st.composite
def endgames(draw: st.DrawFn) -> chess.Board:
    """3 to 7 men on random squares, pawns often one step from promotion, played on for a few plies."""
    symbols = ["K", "k", *draw(st.lists(st.sampled_from("QRBNPPPqrbnppp"), min_size=1, max_size=5))]
    squares = draw(st.lists(st.integers(0, 63), min_size=len(symbols), max_size=len(symbols), unique=True))
    board = chess.Board(None)
    for symbol, square in zip(symbols, squares):
        board.set_piece_at(square, chess.Piece.from_symbol(symbol))
    board.turn = draw(st.booleans())
    assume(board.is_valid())
    return play(board, draw(st.lists(choices, max_size=12)))


positions = st.one_of(games, endgames())


def playouts(seed: int, games: int, plies: int) -> Iterator[chess.Board]:
    """Every position of some games that go after special moves."""
    generator = random.Random(seed)
    for _ in range(games):
        board = chess.Board()
        for _ in range(plies):
            yield board
            if board.is_game_over():
                break
            play(board, [generator.randrange(10**6)])


# ---- vocabulary -------------------------------------------------------------------------------------------------------------------------


def test_ids_0_to_84_equal_those_of_the_released_checkpoints():
    expected = REFERENCE_TABLE.split()
    assert len(expected) == 85
    assert list(notation.VOCABULARY[:85]) == expected
    assert notation.REFERENCE_SIZE == 81 == expected.index("<T>")
    assert notation.REFERENCE_TRACE_SIZE == 85
    assert [notation.TOKEN_ID[token] for token in ("<bos>", "K", "P", "a1", "a8", "b1", "h8", "x", "...", "<T>", "<call_env>")] == [
        0, 3, 8, 9, 16, 17, 72, 73, 80, 81, 84,
    ]  # fmt: skip


def test_tokens_of_our_own_follow_are_distinct_and_fit_one_byte():
    assert notation.PAD == 85
    assert len(set(notation.VOCABULARY)) == len(notation.VOCABULARY) == 101
    assert all(token.split() == [token] for token in notation.VOCABULARY), "a whitespace tokenizer must give the same ids"


def test_vocabulary_hash_tells_vocabularies_apart():
    assert notation.vocabulary_hash() == notation.vocabulary_hash(101)
    assert len({notation.vocabulary_hash(size) for size in (81, 85, 101)}) == 3


def test_text_and_ids_round_trip_over_the_whole_vocabulary():
    ids = list(range(len(notation.VOCABULARY)))
    assert from_text(to_text(ids)) == ids


@pytest.mark.parametrize("text, fault", [("P e2 e9", "token 3, 'e9'"), ("<bos> Nf3", "token 2, 'Nf3'"), ("P e2 – e4", "token 3, '–'")])
def test_foreign_text_is_an_error_naming_the_token(text: str, fault: str):
    with pytest.raises(NotationError, match=fault):
        from_text(text)


@pytest.mark.parametrize("foreign", [-1, 101, 151_936])
def test_foreign_id_is_a_notation_error_and_never_wraps_around(foreign: int):
    for read in (
        lambda: to_text([0, foreign]),
        lambda: parse_move(chess.Board(), [foreign]),
        lambda: parse_move(chess.Board(), [*from_text("P e2 e4"), foreign]),
        lambda: parse_snapshot([*snapshot_tokens(chess.Board()), foreign]),
    ):
        with pytest.raises(NotationError, match=f"id {foreign} is not in the vocabulary"):
            read()


# ---- moves ------------------------------------------------------------------------------------------------------------------------------


def lan_of_tokens(tokens: list[int]) -> str:
    """Tokens in python-chess's LAN: no letter for a pawn, a hyphen where nothing is captured."""
    names = [notation.VOCABULARY[token] for token in tokens]
    if names[0] in ("O-O", "O-O-O"):
        return "".join(names)
    if names[2] != "x":
        names.insert(2, "-")
    return "".join(names[1:] if names[0] == "P" else names)


def assert_every_legal_move_round_trips(board: chess.Board) -> None:
    before = board.fen()
    keys = set()
    for move in board.legal_moves:
        tokens = move_tokens(board, move)
        assert lan_of_tokens(tokens) == board.lan(move)
        assert 1 <= len(tokens) <= notation.LONGEST_MOVE
        assert max(tokens) < notation.REFERENCE_SIZE
        assert parse_move(board, tokens) == parse_move(board, tokens, strict=False) == move
        assert from_text(to_text(tokens)) == tokens
        keys.add(move_key(board, move))
    assert len(keys) == board.legal_moves.count(), "two legal moves share a key"
    assert board.fen() == before


@settings(max_examples=150)
@given(positions)
def test_every_legal_move_of_any_position_round_trips(board: chess.Board):
    assert_every_legal_move_round_trips(board)


def kinds(board: chess.Board, move: chess.Move) -> Iterator[str]:
    capture = board.is_capture(move)
    after = board.copy(stack=False)
    after.push(move)
    suffix = " with mate" if after.is_checkmate() else " with check" if after.is_check() else ""
    if board.is_castling(move):
        yield f"{'O-O' if board.is_kingside_castling(move) else 'O-O-O'} {chess.COLOR_NAMES[board.turn]}"
    if board.is_en_passant(move):
        yield "en passant"
    if move.promotion:
        yield f"{'capture-' if capture else ''}promotion to {chess.piece_name(move.promotion)}"
    if suffix:
        yield f"move{suffix}"
    if len(after.checkers()) == 2:
        yield "double check"


def test_round_trip_is_tested_on_every_kind_of_move():
    """Playouts that go after special moves: the round trip above would say nothing of kinds that no position offers."""
    seen: Counter[str] = Counter()
    for board in playouts(seed=0, games=14, plies=140):
        special = [move for move in board.legal_moves if is_special(board, move)]
        if special:
            assert_every_legal_move_round_trips(board)
        seen.update(kind for move in special for kind in kinds(board, move))
    pieces = ("queen", "rook", "bishop", "knight")
    wanted = {f"{castling} {color}" for castling in ("O-O", "O-O-O") for color in ("white", "black")}
    wanted |= {f"{capture}promotion to {piece}" for capture in ("", "capture-") for piece in pieces}
    wanted |= {"en passant", "move with check", "move with mate", "double check"}
    assert wanted <= set(seen), f"never reached: {sorted(wanted - set(seen))}"


@pytest.mark.parametrize(
    "fen, uci, expected",
    [
        (chess.STARTING_FEN, "g1f3", "N g1 f3"),
        ("8/4P3/8/8/8/k7/8/7K w - - 0 1", "e7e8n", "P e7 e8 = N"),
        ("k2r4/4P3/8/8/8/8/8/7K w - - 0 1", "e7d8q", "P e7 x d8 = Q +"),
        ("k2r4/pp2P3/8/8/8/8/8/7K w - - 0 1", "e7d8q", "P e7 x d8 = Q #"),
        ("k2r4/pp2P3/8/8/8/8/8/7K w - - 0 1", "e7d8b", "P e7 x d8 = B"),
        ("7k/8/8/8/8/K7/3p4/2R5 b - - 0 1", "d2c1q", "P d2 x c1 = Q +"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "e5d6", "P e5 x d6"),
        ("8/2k5/8/3pP3/8/8/8/4K3 w - d6 0 1", "e5d6", "P e5 x d6 +"),
        ("3r3r/2k5/1pp5/3pP3/8/B7/8/1QR1K3 w - d6 0 1", "e5d6", "P e5 x d6 +"),
        ("8/8/8/8/2pPp3/8/8/K2k4 b - d3 0 1", "c4d3", "P c4 x d3"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "e1g1", "O-O"),
        ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", "e1c1", "O-O-O"),
        ("r3k2r/8/8/8/8/8/8/4K3 b kq - 0 1", "e8g8", "O-O"),
        ("r3k2r/8/8/8/8/8/8/4K3 b kq - 0 1", "e8c8", "O-O-O"),
        ("5k2/8/8/8/8/8/8/4K2R w K - 0 1", "e1g1", "O-O +"),
        ("3k4/8/8/8/8/8/8/R3K3 w Q - 0 1", "e1c1", "O-O-O +"),
        ("4rkr1/4p1p1/8/8/8/8/8/4K2R w K - 0 1", "e1g1", "O-O #"),
        ("2rkr3/2p1p3/8/8/8/8/8/R3K3 w Q - 0 1", "e1c1", "O-O-O #"),
        ("4k3/8/8/8/4N3/8/8/4RK2 w - - 0 1", "e4f6", "N e4 f6 +"),
        ("3qkr2/3p1p2/8/8/4N3/8/8/4RK2 w - - 0 1", "e4d6", "N e4 d6 #"),
        ("4k3/8/8/8/8/8/8/R4K1R w - - 0 1", "a1d1", "R a1 d1"),
        ("4k3/8/8/3n1n2/8/8/8/4K3 b - - 0 1", "f5e3", "N f5 e3"),
    ],
)
def test_special_moves_are_spelt_as_in_the_table(fen: str, uci: str, expected: str):
    """Promotions, en passant, castling with check and mate, double check; two pieces for one square need no disambiguation."""
    board, move = chess.Board(fen), chess.Move.from_uci(uci)
    assert board.is_valid() and board.is_legal(move)
    assert to_text(move_tokens(board, move)) == expected
    assert parse_move(board, from_text(expected)) == move
    assert_every_legal_move_round_trips(board)


def test_longest_move_has_seven_tokens():
    board = chess.Board("k2r4/4P3/8/8/8/8/8/7K w - - 0 1")
    assert len(move_tokens(board, chess.Move.from_uci("e7d8q"))) == notation.LONGEST_MOVE == 7


@settings(max_examples=60)
@given(st.lists(choices, max_size=80))
def test_flat_history_splits_into_its_moves_in_one_way(picks: list[int]):
    """A history has no separators: a move starts at castling, or at a piece that no '=' precedes."""
    board = play(chess.Board(), picks)
    per_move = notation.line_tokens(chess.Board(), board.move_stack)
    flat = [token for tokens in per_move for token in tokens]
    pieces, castling = set(from_text("K Q R B N P")), set(from_text("O-O O-O-O"))
    starts = [i for i, token in enumerate(flat) if token in castling or (token in pieces and flat[i - 1 : i] != from_text("="))]
    pieces_of_history = [flat[start:end] for start, end in zip(starts, [*starts[1:], len(flat)])]
    assert pieces_of_history == per_move
    replayed = chess.Board()
    for tokens in pieces_of_history:
        replayed.push(parse_move(replayed, tokens))
    assert replayed.fen() == board.fen()


def spellings(tokens: list[int]) -> list[list[int]]:
    """Every way to write the move's squares, promotion or castling that the lenient reading does not judge."""
    suffixes = [[], from_text("+"), from_text("#")]
    body = [token for token in tokens if token not in from_text("x + #")]
    if body[0] in from_text("O-O O-O-O"):
        return [[*body, *suffix] for suffix in suffixes]
    return [
        [piece, body[1], *capture, *body[2:], *suffix]
        for piece in from_text("K Q R B N P")
        for capture in ([], from_text("x"))
        for suffix in suffixes
    ]


@settings(max_examples=40)
@given(positions, choices)
def test_lenient_reading_accepts_all_36_spellings_and_strict_reading_one(board: chess.Board, choice: int):
    moves = list(board.legal_moves)
    assume(moves)
    move = moves[choice % len(moves)]
    canonical = move_tokens(board, move)
    written = spellings(canonical)
    assert len(written) == (3 if board.is_castling(move) else 36)
    assert written.count(canonical) == 1
    for tokens in written:
        read = parse_move(board, tokens, strict=False)
        assert read == move and move_key(board, read) == move_key(board, move)
        if tokens == canonical:
            assert parse_move(board, tokens) == move
        else:
            with pytest.raises(NotationError, match="not spelt canonically"):
                parse_move(board, tokens)


@given(positions)
def test_move_key_says_squares_in_token_order_promotion_or_castling(board: chess.Board):
    for move in board.legal_moves:
        body = [token for token in move_tokens(board, move) if token not in from_text("x + #")]
        if board.is_castling(move):
            assert move_key(board, move) == 64 * 64 * 7 + (body == from_text("O-O-O"))
        else:
            promotion = body[4] - notation.FIRST_PIECE + 1 if move.promotion else 0
            assert move_key(board, move) == ((body[1] - notation.FIRST_SQUARE) * 64 + body[2] - notation.FIRST_SQUARE) * 7 + promotion


CASTLING_FEN = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"


@pytest.mark.parametrize(
    "fen, text, fault",
    [
        (chess.STARTING_FEN, "", "ends at token 1 where a piece was expected"),
        (chess.STARTING_FEN, "e2 e4", "token 1 of 'e2 e4' is 'e2' where a piece was expected"),
        (chess.STARTING_FEN, "<bos> P e2 e4", "is '<bos>' where a piece was expected"),
        (chess.STARTING_FEN, "P", "ends at token 2 where a square was expected"),
        (chess.STARTING_FEN, "P e2", "ends at token 3 where a square was expected"),
        (chess.STARTING_FEN, "P e2 <call_env>", "token 3 of 'P e2 <call_env>' is '<call_env>' where a square was expected"),
        (chess.STARTING_FEN, "P x e4", "token 2 of 'P x e4' is 'x' where a square was expected"),
        (chess.STARTING_FEN, "P e2 e4 <call_env>", "token 4 of 'P e2 e4 <call_env>' is '<call_env>' where the end of the move"),
        (chess.STARTING_FEN, "P e2 e4 P e7 e5", "token 4 of 'P e2 e4 P e7 e5' is 'P' where the end of the move"),
        (chess.STARTING_FEN, "P e2 e4 + +", r"goes on after the move's end with '\+'"),
        (chess.STARTING_FEN, "p e2 e4", "is 'p' where a piece was expected"),
        (chess.STARTING_FEN, "P e2 e5", "'P e2 e5' is not a legal move in rnbqkbnr"),
        (chess.STARTING_FEN, "P e7 e5", "'P e7 e5' is not a legal move"),
        (chess.STARTING_FEN, "N e4 f6", "'N e4 f6' is not a legal move"),
        (chess.STARTING_FEN, "O-O", "'O-O' is not a legal move"),
        ("8/4P3/8/8/8/k7/8/7K w - - 0 1", "P e7 e8", "'P e7 e8' is not a legal move"),
        ("8/4P3/8/8/8/k7/8/7K w - - 0 1", "P e7 e8 =", "ends at token 5 where a piece was expected"),
        ("8/4P3/8/8/8/k7/8/7K w - - 0 1", "P e7 e8 = e8", "token 5 of 'P e7 e8 = e8' is 'e8' where a piece was expected"),
        ("8/4P3/8/8/8/k7/8/7K w - - 0 1", "P e7 e8 = K", "is not a legal move"),
        ("8/4P3/8/8/8/k7/8/7K w - - 0 1", "P e7 e8 = P", "is not a legal move"),
        ("4k3/4r3/8/8/8/8/4R3/4K3 w - - 0 1", "R e2 d2", "'R e2 d2' is not a legal move"),
        (CASTLING_FEN, "K e1 g1", "castles: expected O-O or O-O-O"),
        (CASTLING_FEN, "K e1 h1", "castles: expected O-O or O-O-O"),
        (CASTLING_FEN, "R e1 c1 #", "castles: expected O-O or O-O-O"),
        (CASTLING_FEN, "O-O = Q", "token 2 of 'O-O = Q' is '=' where the end of the move"),
        (CASTLING_FEN.replace("KQkq", "Qkq"), "O-O", "'O-O' is not a legal move"),
        (CASTLING_FEN.replace("KQkq", "Qkq"), "K e1 g1", "'K e1 g1' is not a legal move"),
        (CASTLING_FEN, "K e1 a5", "'K e1 a5' is not a legal move"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_illegal_unfinished_and_foreign_moves_name_the_token_at_fault(fen: str, text: str, fault: str, strict: bool):
    with pytest.raises(NotationError, match=fault):
        parse_move(chess.Board(fen), from_text(text), strict=strict)


def test_line_tokens_leaves_the_board_as_it_was():
    board = chess.Board()
    moves = [chess.Move.from_uci(uci) for uci in ("f2f3", "e7e5", "g2g4", "d8h4")]
    assert [to_text(tokens) for tokens in notation.line_tokens(board, moves)] == ["P f2 f3", "P e7 e5", "P g2 g4", "Q d8 h4 #"]
    assert board == chess.Board() and not board.move_stack


# ---- positions --------------------------------------------------------------------------------------------------------------------------


def legal_key(board: chess.Board) -> str:
    """What decides legal play, by python-chess: placement, side, usable castling rights, an en-passant square only if it can be used."""
    return board.epd(en_passant="legal")


@settings(max_examples=150)
@given(positions)
def test_snapshot_of_any_position_round_trips(board: chess.Board):
    before = board.fen()
    tokens = snapshot_tokens(board)
    read = parse_snapshot(tokens)
    assert legal_key(read) == legal_key(board)
    assert set(read.legal_moves) == set(board.legal_moves)
    assert snapshot_tokens(read) == tokens
    assert all(move_tokens(read, move) == move_tokens(board, move) for move in board.legal_moves)
    assert board.fen() == before


def test_snapshots_are_equal_exactly_where_positions_are_equal_for_legal_play():
    by_tokens: dict[tuple[int, ...], str] = {}
    by_position: dict[str, tuple[int, ...]] = {}
    for board in playouts(seed=1, games=20, plies=120):
        tokens = tuple(snapshot_tokens(board))
        assert by_tokens.setdefault(tokens, legal_key(board)) == legal_key(board)
        assert by_position.setdefault(legal_key(board), tokens) == tokens
    assert any(notation.EN_PASSANT in tokens for tokens in by_tokens)


@pytest.mark.parametrize(
    "fen, same",
    [
        ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1", "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"),
        ("4k3/8/8/K2pP2r/8/8/8/8 w - d6 0 1", "4k3/8/8/K2pP2r/8/8/8/8 w - - 0 1"),
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "4k3/8/8/8/8/8/8/4K2R w K - 49 77"),
        ("4k3/8/8/8/8/8/8/4K2R w KQkq - 0 1", "4k3/8/8/8/8/8/8/4K2R w K - 0 1"),
    ],
    ids=["e.p. square without a pawn beside", "e.p. capture illegal by a pin", "clocks", "castling rights without their rook"],
)
def test_boards_equal_for_legal_play_have_equal_snapshots(fen: str, same: str):
    assert snapshot_tokens(chess.Board(fen)) == snapshot_tokens(chess.Board(same))


@pytest.mark.parametrize(
    "fen, other",
    [
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1"),
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "4k3/8/8/8/8/8/8/4K2R w - - 0 1"),
        ("4k3/8/8/8/8/8/8/4K2R w - - 0 1", "4k3/8/8/8/8/8/8/4K2R b - - 0 1"),
        ("4k3/8/8/8/8/8/8/4K2R w - - 0 1", "4k3/8/8/8/8/8/8/4K2r w - - 0 1"),
    ],
    ids=["usable e.p. square", "castling right", "side to move", "colour of a piece"],
)
def test_boards_that_differ_for_legal_play_have_different_snapshots(fen: str, other: str):
    assert snapshot_tokens(chess.Board(fen)) != snapshot_tokens(chess.Board(other))


@pytest.mark.parametrize(
    "fen, expected",
    [
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "<pos> <white> <K> K e1 R h1 k e8 </pos>"),
        ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "<pos> <white> <ep> d6 K e1 P e5 k e8 p d5 </pos>"),
        ("r3k2r/8/8/8/8/8/1P6/R3K2R b KQkq - 0 1", "<pos> <black> <K> <Q> <k> <q> K e1 R a1 R h1 P b2 k e8 r a8 r h8 </pos>"),
    ],
)
def test_snapshot_is_written_in_its_canonical_order(fen: str, expected: str):
    assert to_text(snapshot_tokens(chess.Board(fen))) == expected


@pytest.mark.parametrize(
    "text, fault",
    [
        ("", "token 1 of the position is missing where <pos> was expected"),
        ("<pos>", "token 2 of the position is missing where <white> or <black>"),
        ("<white> K e1 k e8 </pos>", "token 1 of the position is '<white>' where <pos> was expected"),
        ("<pos> K e1 k e8 </pos>", "token 2 of the position is 'K' where <white> or <black> was expected"),
        ("<pos> <white> K k e8 </pos>", "token 4 of the position is 'k' where a square was expected"),
        ("<pos> <white> K e1 k e8", "token 7 of the position is missing where a piece or </pos> was expected"),
        ("<pos> <white> K e1 k", "token 6 of the position is missing where a square was expected"),
        ("<pos> <white> K e1 x e8 </pos>", "token 5 of the position is 'x' where a piece or </pos> was expected"),
        ("<pos> <white> <ep> K e1 k e8 </pos>", "token 4 of the position is 'K' where a square was expected"),
        ("<pos> <white> K e1 k e8 </pos> K", "token 8 of the position is 'K' where the end of the position was expected"),
        ("<pos> <white> k e8 K e1 </pos>", "not written canonically: expected '<pos> <white> K e1 k e8 </pos>'"),
        ("<pos> <white> K e1 Q e1 k e8 </pos>", "not written canonically"),
        ("<pos> <white> <K> K e1 k e8 </pos>", "not written canonically"),
        ("<pos> <white> <Q> <K> K e1 R a1 R h1 k e8 </pos>", "not written canonically"),
        ("<pos> <white> <ep> d6 K e1 k e8 p d5 </pos>", "not written canonically"),
    ],
)
def test_malformed_snapshot_is_an_error_naming_the_token(text: str, fault: str):
    with pytest.raises(NotationError, match=fault):
        parse_snapshot(from_text(text))
