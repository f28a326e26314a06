"""The vocabulary, and moves and positions as token ids.

One vocabulary serves every stage and both worlds. Ids 0-84 equal those of the checkpoints released with arXiv 2607.16097; ours follow.
A move is written in long algebraic notation, one token per part: ``P e7 x d8 = Q +``; castling is ``O-O`` or ``O-O-O``; a suffix ``+`` or
``#`` is part of the move. Text form: token names joined by single spaces, so that a whitespace tokenizer gives the same ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import chess

PIECE_LETTERS = "KQRBNP"
SQUARE_NAMES = [f"{file}{rank}" for file in "abcdefgh" for rank in "12345678"]  # file-major: a1, a2, ..., a8, b1, ...
REFERENCE_SIZE = 81  # vocabulary of the released pretraining checkpoints
REFERENCE_TRACE_SIZE = 85  # ... and of the released SFT and RL checkpoints

VOCABULARY: tuple[str, ...] = (
    *("<bos>", "<eos>", "<unk>"),
    *PIECE_LETTERS,
    *SQUARE_NAMES,
    *("x", "=", "+", "#", "O-O", "O-O-O", ".", "..."),
    *("<T>", "</T>", "<sep>", "<call_env>"),
    *("<pad>", "<pos>", "</pos>", "<white>", "<black>"),
    *PIECE_LETTERS.lower(),
    *("<K>", "<Q>", "<k>", "<q>", "<ep>"),  # castling rights and the en-passant marker of a snapshot
)
TOKEN_ID: dict[str, int] = {token: index for index, token in enumerate(VOCABULARY)}

BOS, EOS, UNK = (TOKEN_ID[name] for name in ("<bos>", "<eos>", "<unk>"))
FIRST_PIECE = TOKEN_ID["K"]
FIRST_SQUARE = TOKEN_ID["a1"]
CAPTURE, PROMOTION, CHECK, MATE, CASTLE_SHORT, CASTLE_LONG = (TOKEN_ID[name] for name in ("x", "=", "+", "#", "O-O", "O-O-O"))
THINK, END_THINK, SEP, CALL_ENV = (TOKEN_ID[name] for name in ("<T>", "</T>", "<sep>", "<call_env>"))
PAD, POSITION, END_POSITION, WHITE_TO_MOVE, BLACK_TO_MOVE, EN_PASSANT = (
    TOKEN_ID[name] for name in ("<pad>", "<pos>", "</pos>", "<white>", "<black>", "<ep>")
)
LONGEST_MOVE = 7  # tokens: P e7 x d8 = Q +

_PIECE_TOKEN = {chess.Piece.from_symbol(letter): TOKEN_ID[letter] for letter in (*PIECE_LETTERS, *PIECE_LETTERS.lower())}
_LETTER_TOKEN = {chess.Piece.from_symbol(letter).piece_type: TOKEN_ID[letter] for letter in PIECE_LETTERS}
_PIECE_TYPE = {token: piece_type for piece_type, token in _LETTER_TOKEN.items()}
_SQUARE_TOKEN = [TOKEN_ID[chess.square_name(square)] for square in chess.SQUARES]
_SQUARE = {token: square for square, token in enumerate(_SQUARE_TOKEN)}
_CASTLING_RIGHTS = (("<K>", chess.BB_H1), ("<Q>", chess.BB_A1), ("<k>", chess.BB_H8), ("<q>", chess.BB_A8))
_PIECE_ORDER = [TOKEN_ID[letter] for letter in (*PIECE_LETTERS, *PIECE_LETTERS.lower())]
_PIECE_RANK = {token: rank for rank, token in enumerate(_PIECE_ORDER)}
_PIECE_OF_TOKEN = {token: piece for piece, token in _PIECE_TOKEN.items()}


class NotationError(ValueError):
    """A token sequence that is not a move, a position or a text of the vocabulary; the message names the token and its place."""


def vocabulary_hash(size: int = len(VOCABULARY)) -> str:
    """Hash of the first ``size`` tokens; stored in shards and checkpoints so that ids of another vocabulary are refused."""
    return hashlib.sha256("\n".join(VOCABULARY[:size]).encode()).hexdigest()[:16]


def token_name(index: int) -> str:
    """Name of one id. Raises NotationError for an id outside the vocabulary (a negative one would wrap around unseen)."""
    if not 0 <= index < len(VOCABULARY):
        raise NotationError(f"id {index} is not in the vocabulary of {len(VOCABULARY)} tokens")
    return VOCABULARY[index]


def to_text(ids: Iterable[int]) -> str:
    """Token names joined by spaces. Raises NotationError naming the first foreign id."""
    return " ".join(token_name(index) for index in ids)


def from_text(text: str) -> list[int]:
    """Ids of a text of token names. Raises NotationError naming the first foreign token."""
    ids = []
    for place, token in enumerate(text.split()):
        if token not in TOKEN_ID:
            raise NotationError(f"token {place + 1}, {token!r}, is not in the vocabulary of {len(VOCABULARY)} tokens")
        ids.append(TOKEN_ID[token])
    return ids


# ---- moves ----------------------------------------------------------------------------------------------------------------------------


def move_tokens(board: chess.Board, move: chess.Move) -> list[int]:
    """Canonical tokens (1 to 7) of a legal move. ``board`` is the position before it and is left as it was."""
    if board.is_castling(move):
        tokens = [CASTLE_SHORT if chess.square_file(move.to_square) > chess.square_file(move.from_square) else CASTLE_LONG]
    else:
        tokens = [_LETTER_TOKEN[board.piece_type_at(move.from_square)], _SQUARE_TOKEN[move.from_square]]
        if board.is_capture(move):
            tokens.append(CAPTURE)
        tokens.append(_SQUARE_TOKEN[move.to_square])
        if move.promotion:
            tokens += (PROMOTION, _LETTER_TOKEN[move.promotion])
    board.push(move)
    if board.is_check():
        tokens.append(MATE if board.is_checkmate() else CHECK)
    board.pop()
    return tokens


def line_tokens(board: chess.Board, moves: Iterable[chess.Move]) -> list[list[int]]:
    """Canonical tokens of consecutive moves, one list per ply. ``board`` is left as it was."""
    board = board.copy(stack=False)
    tokens = []
    for move in moves:
        tokens.append(move_tokens(board, move))
        board.push(move)
    return tokens


def parse_move(board: chess.Board, tokens: Sequence[int], *, strict: bool = True) -> chess.Move:
    """The legal move that ``tokens`` write on ``board``.

    ``strict`` asks for the canonical tokens. Otherwise piece letter, ``x``, ``+`` and ``#`` may be wrong or missing (the letter must be
    some piece), and squares, promotion and castling alone decide, as in the reference study.
    Raises NotationError naming the token at fault, or the move if it is illegal.
    """
    move = _read_move(board, tokens)
    if not board.is_legal(move):
        raise NotationError(f"{to_text(tokens)!r} is not a legal move in {board.fen()}")
    canonical = move_tokens(board, move)
    if strict and list(tokens) != canonical:
        raise NotationError(f"{to_text(tokens)!r} is not spelt canonically: expected {to_text(canonical)!r} in {board.fen()}")
    return move


def _read_move(board: chess.Board, tokens: Sequence[int]) -> chess.Move:
    rest = list(tokens)

    def take(allowed: dict[int, int] | set[int], what: str) -> int:
        place = len(tokens) - len(rest)
        if not rest:
            raise NotationError(f"{to_text(tokens)!r} ends at token {place + 1} where {what} was expected")
        if rest[0] not in allowed:
            raise NotationError(f"token {place + 1} of {to_text(tokens)!r} is {token_name(rest[0])!r} where {what} was expected")
        return rest.pop(0)

    if rest and rest[0] in (CASTLE_SHORT, CASTLE_LONG):
        move = _castling_move(board, rest.pop(0))
    else:
        take(_PIECE_TYPE, "a piece")
        from_square = _SQUARE[take(_SQUARE, "a square")]
        if rest and rest[0] == CAPTURE:
            rest.pop(0)
        to_square = _SQUARE[take(_SQUARE, "a square")]
        promotion = None
        if rest and rest[0] == PROMOTION:
            rest.pop(0)
            promotion = _PIECE_TYPE[take(_PIECE_TYPE, "a piece")]
        move = chess.Move(from_square, to_square, promotion)
        if board.is_castling(move) and board.is_legal(move):  # python-chess calls any far king jump castling
            raise NotationError(f"{to_text(tokens)!r} castles: expected O-O or O-O-O in {board.fen()}")
    if rest:
        take({CHECK, MATE}, "the end of the move, '+' or '#'")
    if rest:
        raise NotationError(f"{to_text(tokens)!r} goes on after the move's end with {token_name(rest[0])!r}")
    return move


def _castling_move(board: chess.Board, token: int) -> chess.Move:
    kingside = token == CASTLE_SHORT
    for move in board.generate_castling_moves():
        if board.is_kingside_castling(move) == kingside:
            return move
    raise NotationError(f"{VOCABULARY[token]!r} is not a legal move in {board.fen()}")


# A move's lenient identity as one integer, the same for every spelling: what the environment tables compare.
CASTLE_SHORT_KEY = 64 * 64 * 7
CASTLE_LONG_KEY = CASTLE_SHORT_KEY + 1


def move_key(board: chess.Board, move: chess.Move) -> int:
    """Identity of a legal move: its squares (0-63 in token order), promotion (0 for none, else 1-6 in token order) or castling."""
    if board.is_castling(move):
        return CASTLE_SHORT_KEY if board.is_kingside_castling(move) else CASTLE_LONG_KEY
    promotion = 0 if move.promotion is None else _LETTER_TOKEN[move.promotion] - FIRST_PIECE + 1
    from_index, to_index = _SQUARE_TOKEN[move.from_square] - FIRST_SQUARE, _SQUARE_TOKEN[move.to_square] - FIRST_SQUARE
    return (from_index * 64 + to_index) * 7 + promotion


# ---- positions ------------------------------------------------------------------------------------------------------------------------


def snapshot_tokens(board: chess.Board) -> list[int]:
    """``<pos> side [castling rights] [<ep> square] (piece square)... </pos>``: what decides legal play, without clocks.

    Pieces come in the order K Q R B N P k q r b n p and by square token within a kind. The en-passant square is written only when a legal
    en-passant capture exists, so that equal positions have equal tokens.
    """
    tokens = [POSITION, WHITE_TO_MOVE if board.turn == chess.WHITE else BLACK_TO_MOVE]
    rights = board.clean_castling_rights()
    tokens += [TOKEN_ID[name] for name, rook in _CASTLING_RIGHTS if rights & rook]
    if board.has_legal_en_passant():
        tokens += (EN_PASSANT, _SQUARE_TOKEN[board.ep_square])
    pieces = sorted((_PIECE_RANK[_PIECE_TOKEN[piece]], _SQUARE_TOKEN[square]) for square, piece in board.piece_map().items())
    for rank, square_token in pieces:
        tokens += (_PIECE_ORDER[rank], square_token)
    tokens.append(END_POSITION)
    return tokens


def parse_snapshot(tokens: Sequence[int]) -> chess.Board:
    """The board of a snapshot. Raises NotationError unless the tokens are exactly what ``snapshot_tokens`` writes for it."""

    def fault(place: int, expected: str) -> NotationError:
        name = repr(token_name(tokens[place])) if place < len(tokens) else "missing"
        return NotationError(f"token {place + 1} of the position is {name} where {expected} was expected")

    if not tokens or tokens[0] != POSITION:
        raise fault(0, "<pos>")
    if len(tokens) < 2 or tokens[1] not in (WHITE_TO_MOVE, BLACK_TO_MOVE):
        raise fault(1, "<white> or <black>")
    board = chess.Board(None)
    board.turn = tokens[1] == WHITE_TO_MOVE
    place = 2
    rights = {TOKEN_ID[name]: rook for name, rook in _CASTLING_RIGHTS}
    while place < len(tokens) and tokens[place] in rights:
        board.castling_rights |= rights[tokens[place]]
        place += 1
    if place < len(tokens) and tokens[place] == EN_PASSANT:
        if place + 1 >= len(tokens) or tokens[place + 1] not in _SQUARE:
            raise fault(place + 1, "a square")
        board.ep_square = _SQUARE[tokens[place + 1]]
        place += 2
    while place < len(tokens) and tokens[place] in _PIECE_OF_TOKEN:
        if place + 1 >= len(tokens) or tokens[place + 1] not in _SQUARE:
            raise fault(place + 1, "a square")
        board.set_piece_at(_SQUARE[tokens[place + 1]], _PIECE_OF_TOKEN[tokens[place]])
        place += 2
    if place >= len(tokens) or tokens[place] != END_POSITION:
        raise fault(place, "a piece or </pos>")
    if place + 1 != len(tokens):
        raise fault(place + 1, "the end of the position")
    if snapshot_tokens(board) != list(tokens):
        raise NotationError(f"{to_text(tokens)!r} is not written canonically: expected {to_text(snapshot_tokens(board))!r}")
    return board
