"""From PGN text to screened games: one block of text per game, judged by its headers and movetext before any move is parsed.

Screening leaves only what both move parsers read alike: the SAN moves of the main line, without comments, variations, glyphs or numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import chess

RESULTS = ("1-0", "0-1", "1/2-1/2")
TIME_CLASSES = ("ultrabullet", "bullet", "blitz", "rapid", "classical", "correspondence")
_LONGEST_SECONDS = (29, 179, 479, 1499)  # Lichess: initial time + 40 increments, for ultrabullet, bullet, blitz, rapid
_STANDARD_VARIANTS = ("", "standard", "chess", "normal", "from position")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BROKEN_OFF = ("abandoned", "unterminated", "rules infraction")

_HEADER = re.compile(r'\[\s*([A-Za-z0-9_+#=:-]+)\s+"((?:[^"\\]++|\\.)*+)"\s*\]')
_COMMENT = re.compile(r"\{[^}]*\}|;[^\n]*")
_ESCAPED_LINE = re.compile(r"^%.*$", re.MULTILINE)
_PARENTHESIS = re.compile(r"([()])")
_NUMBER_OR_GLYPH = re.compile(r"(?:(?<!\S)\d+\s*\.[.\s]*|(?<!\S)\.+|\$\d+|(?<!\S)e\.?p\.?(?!\S)|(?<=\d)e\.?p\.?(?!\S))")
_MOVE_NUMBER = re.compile(r"(?<!\S)(\d+)\s*\.")
_DATE = re.compile(r"\d{4}\.\d\d\.\d\d")
_CLOCK = re.compile(r"(\d{1,9})(?:\+(\d{1,9})?)?")
_RATING = re.compile(r"[0-9]{1,4}")
_NUMBER = re.compile(r"\d{1,3}\.{1,3}")
_BRACED = re.compile(r"\{[^{}]*\}")
_GLYPHS = re.compile(r"[!?]+")
_NULL_MOVES = frozenset(("--", "Z0", "0000", "@@@@", "null", "pass"))
# A pawn captures on the next file: python-chess reads cxc3 as c3, pgn-extract does not read it.
_BESIDE = "(?:ax(?=b)|bx(?=[ac])|cx(?=[bd])|dx(?=[ce])|ex(?=[df])|fx(?=[eg])|gx(?=[fh])|hx(?=g))"
_SAN = rf"(?:[KQRBN][a-h]?[1-8]?x?[a-h][1-8]|{_BESIDE}?[a-h](?:[2-7]|[18]=[QRBN])|O-O(?:-O)?)[+#]?"
PAWN_SPELLING = 1 << 25  # more than the plies of any game within game_sources.MOST_BYTES
_MAIN_LINE = re.compile(rf"{_SAN}(?: {_SAN})*+")
_BARE_PROMOTION = re.compile(r"((?:[a-h]x)?[a-h][18])([QRBN][+#]?)")


class Block(NamedTuple):
    """The text of one game as it stands in a file; bytes, since a file may hold games in several encodings."""

    headers: list[bytes]
    movetext: list[bytes]
    closed: bool  # False: a comment was still open where the next game began


@dataclass(frozen=True, slots=True)
class GameFilters:
    """Which games are kept. Ratings are inclusive and hold for each player whose rating is known."""

    exclude_time_classes: tuple[str, ...] = ("ultrabullet", "bullet")
    min_plies: int = 10
    rated_only: bool = True  # leaves out games whose Event says casual or unrated; over-the-board events say neither
    min_rating: int = 0
    max_rating: int = 9999
    standard_start: bool = True
    terminated: bool = True  # asks for a decided result that ends the movetext and agrees with the header


@dataclass(frozen=True, slots=True)
class ScreenedGame:
    """A game that passed the screen, its moves still in SAN."""

    start_fen: str | None
    moves: str  # the main line in SAN, separated by white space; move numbers may stand between
    spelling: int  # of the moves (spelling_of)
    result: str
    white_elo: int | None
    black_elo: int | None
    time_class: str
    site: str
    date: str = ""  # YYYY-MM-DD; empty where the headers do not say it whole

    @property
    def san(self) -> list[str]:
        """The moves without numbers."""
        return [word for word in self.moves.split() if not _NUMBER.fullmatch(word)]


class _Spellings(dict[str, int]):
    """What a word of movetext adds to ``spelling_of``. Words of games repeat: some ten thousand in all."""

    def __missing__(self, word: str) -> int:
        if _MAIN_LINE.fullmatch(word):
            pawn = "abcdefgh".find(word[0]) + 1
            self[word] = 1 + PAWN_SPELLING * (pawn and pawn + 8 * (word[1] == "x"))
        elif _NUMBER.fullmatch(word):
            self[word] = 0
        else:
            raise KeyError(word)
        return self[word]


_SPELLINGS = _Spellings()


def spelling_of(words: Iterable[str]) -> int:
    """The number of SAN moves, and PAWN_SPELLING for each pawn move times 1 to 8 (its file; 9 to 16 for a capture): a check of what a parser read.

    pgn-extract takes bxc3 for a bishop's move where no pawn has it, and overlooks the file of a capture that promotes. Raises KeyError for a
    word that is neither a move nor a move number.
    """
    return sum(map(_SPELLINGS.__getitem__, words))


def screen_text(text: bytes, filters: GameFilters) -> Iterator[ScreenedGame | str]:
    """Each game of a text, or the reason why it is left out, in order. Line ends and byte-order marks may be those of any system.

    A game shaped as Lichess writes it (headers, one blank line, movetext without one) is judged at once; any other is split line by line. A line
    that begins with ``[Event `` starts a game in either way.
    """
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if _BYTE_ORDER_MARK in text:
        text = text.replace(b"\n" + _BYTE_ORDER_MARK, b"\n")
    pieces = text.split(b"\n[Event ")
    for place, piece in enumerate(pieces):
        game = b"[Event " + piece if place else piece
        parts = _regular_parts(game)
        if parts is not None:
            yield _judge(*parts, filters)
        else:
            for block in split_blocks(game.split(b"\n")):
                yield screen(block, filters)


def _regular_parts(game: bytes) -> tuple[str, str] | None:
    """Headers and movetext of a game whose shape leaves no doubt, else None: no comment but closed braces within a line, no stray line."""
    head, _, movetext = game.partition(b"\n\n")
    movetext = movetext.strip(b"\n")
    if not movetext or not head.startswith(b"[") or head.count(b"\n[") != head.count(b"\n"):
        return None
    if b"\n\n" in movetext or b"\n[" in movetext or movetext.startswith(b"[") or b";" in movetext or (b"%" in movetext and b"\n" in movetext):
        return None
    try:
        headers, moves = head.decode("utf-8"), movetext.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if b"{" in movetext:
        moves = _BRACED.sub(" ", moves)
        if "{" in moves or "}" in moves:
            return None
    return headers, moves


def split_blocks(lines: Iterable[bytes]) -> Iterator[Block]:
    """Blocks of a file. Movetext ends at a blank line outside a comment, or at a header line; headers alone make a block of their own."""
    headers: list[bytes] = []
    movetext: list[bytes] = []
    in_comment = headers_ended = False
    for line in lines:
        is_blank, is_header = not line.strip(), line.startswith(b"[") and not in_comment
        starts_game = line.startswith(b"[Event ")  # even inside a comment that nobody closed: it must not swallow the file
        if movetext and (starts_game or is_header or (is_blank and not in_comment)):
            yield Block(headers, movetext, not in_comment)
            headers, movetext, in_comment, headers_ended = [], [], False, False
        elif headers and is_header and not movetext and (headers_ended or starts_game):
            yield Block(headers, [], True)
            headers, headers_ended = [], False
        if is_blank:
            headers_ended = bool(headers)
        elif starts_game or is_header:
            headers.append(line)
        else:
            in_comment = _comment_stays_open(line, in_comment)
            movetext.append(line)
    if headers or movetext:
        yield Block(headers, movetext, not in_comment)


def _comment_stays_open(line: bytes, is_open: bool) -> bool:
    """Whether a brace comment is open after the line; braces do not nest, and a ``;`` outside them hides the rest of the line."""
    place = 0
    while True:
        if is_open:
            place = line.find(b"}", place) + 1
            if not place:
                return True
            is_open = False
        else:
            brace = line.find(b"{", place)
            if brace < 0 or line.find(b";", place, brace) >= 0:
                return False
            place, is_open = brace + 1, True


def screen(block: Block, filters: GameFilters) -> ScreenedGame | str:
    """The game with its SAN moves, or the reason why it is left out. Moves are well-formed afterwards, not yet known to be legal."""
    try:
        headers = b"\n".join(block.headers).decode("utf-8")
        movetext = b"\n".join(block.movetext).decode("utf-8")
    except UnicodeDecodeError:
        return "not_utf8"
    if not block.closed:
        return "comment_not_closed"
    if not block.movetext:
        return "headers_without_moves"
    return _judge(headers, movetext, filters)


def _judge(header_text: str, movetext: str, filters: GameFilters) -> ScreenedGame | str:
    headers = dict(_HEADER.findall(header_text))
    find = headers.get
    time_class, fault = _judge_kind(find("Event", ""), find("TimeControl", ""), find("Variant", ""), find("Termination", ""), filters)
    if fault:
        return fault
    white_elo, black_elo = _elo(find("WhiteElo", "")), _elo(find("BlackElo", ""))
    for rating in (white_elo, black_elo):
        if rating is not None and not filters.min_rating <= rating <= filters.max_rating:
            return "rating_too_low" if rating < filters.min_rating else "rating_too_high"
    start_fen = find("FEN")
    if start_fen is not None or find("SetUp") == "1":
        start_fault = _start_fault(start_fen, filters)
        if start_fault:
            return start_fault
        start_fen = None if _is_standard(start_fen) else chess.Board(start_fen).fen(en_passant="fen")
    line = _main_line(movetext, find("Result", "*"), start_fen is None, filters)
    if isinstance(line, str):
        return line
    return ScreenedGame(start_fen, *line, white_elo, black_elo, time_class, find("Site", ""), _date(headers))


@lru_cache(1 << 14)  # the same few hundred combinations stand above most games
def _judge_kind(event: str, control: str, variant: str, termination: str, filters: GameFilters) -> tuple[str, str | None]:
    """Time class, and why a game of this kind is left out, if it is."""
    time_class = time_class_of(event, control)
    if variant.lower() not in _STANDARD_VARIANTS:
        return time_class, "variant"
    if time_class in filters.exclude_time_classes:
        return time_class, f"time_class_{time_class}"
    if filters.rated_only and ("casual" in event.lower() or "unrated" in event.lower()):
        return time_class, "unrated"
    if filters.terminated and termination.lower() in _BROKEN_OFF:
        return time_class, "broken_off"
    return time_class, None


def _date(headers: dict[str, str]) -> str:
    text = headers.get("UTCDate") or headers.get("Date", "")
    return text.replace(".", "-") if _DATE.fullmatch(text) else ""


def time_class_of(event: str, control: str) -> str:
    """One of TIME_CLASSES or ``unknown``: from TimeControl (seconds + increment) by Lichess's bounds, else from the words of Event."""
    clock = _CLOCK.fullmatch(control)
    if clock:
        seconds = int(clock[1]) + 40 * int(clock[2] or 0)
        return TIME_CLASSES[sum(seconds > longest for longest in _LONGEST_SECONDS)]
    for name in TIME_CLASSES:  # ultrabullet before bullet, which it contains
        if name in event.lower():
            return name
    return "correspondence" if control == "-" else "unknown"


@lru_cache(1 << 14)
def _elo(text: str) -> int | None:
    """A rating of at most four digits; None where there is none."""
    return int(text) or None if _RATING.fullmatch(text) else None


def _start_fault(fen: str | None, filters: GameFilters) -> str | None:
    """Why a game with a start position of its own is left out, or None. A FEN of the standard start counts as the standard start."""
    if fen is None or len(fen.split()) < 4:
        return "bad_fen"
    try:
        board = chess.Board(fen)
    except ValueError:
        return "bad_fen"
    if board.has_chess960_castling_rights():
        return "variant"
    if not board.is_valid():
        return "bad_fen"
    if filters.standard_start and not _is_standard(fen):
        return "set_up_position"
    return None


def _is_standard(fen: str) -> bool:
    return fen.split()[:4] == chess.STARTING_FEN.split()[:4]


def _main_line(movetext: str, header_result: str, from_start: bool, filters: GameFilters) -> tuple[str, int, str] | str:
    """Moves, their spelling and the result, or the reason to leave the game out."""
    text = _without_asides(movetext)
    first_number = _MOVE_NUMBER.search(text)
    if from_start and first_number and first_number.group(1) not in ("0", "1"):
        return "second_part_of_a_split_game"
    words = text.split()
    closing = words.pop() if words and words[-1] in (*RESULTS, "*") else None
    result = closing or header_result
    if filters.terminated and (closing is None or result not in RESULTS):
        return "not_terminated"
    if closing in RESULTS and header_result in RESULTS and closing != header_result:
        return "results_disagree"
    try:
        spelling = spelling_of(words)
        plies = spelling % PAWN_SPELLING
    except KeyError:  # glyphs, zeros for castling, numbers without a space behind
        words = _mended(" ".join(words))
        plies, readable = len(words), bool(_MAIN_LINE.fullmatch(" ".join(words)))
        spelling = spelling_of(words) if readable else None
    if plies < max(filters.min_plies, 1):
        return "too_few_plies"
    if spelling is None:
        return "unreadable_movetext" if _NULL_MOVES.isdisjoint(words) else "null_move"
    return " ".join(words), spelling, result


def _mended(text: str) -> list[str]:
    """Moves without numbers and glyphs, in the spelling that both parsers know."""
    words = _NUMBER_OR_GLYPH.sub(" ", text).replace("0-0", "O-O").replace("O-0", "O-O").replace("++", "+").split()
    return [f"{bare[1]}={bare[2]}" if (bare := _BARE_PROMOTION.fullmatch(word)) else word for word in words]


def _without_asides(movetext: str) -> str:
    """Movetext without comments, glyphs, escaped lines and variations; an unbalanced parenthesis stays, and fails the main line."""
    if "%" in movetext and ("\n%" in movetext or movetext.startswith("%")):
        movetext = _ESCAPED_LINE.sub("", movetext)
    if "{" in movetext or ";" in movetext:
        movetext = _COMMENT.sub(" ", movetext)
    if "?" in movetext or "!" in movetext:
        movetext = _GLYPHS.sub(" ", movetext)
    return _without_variations(movetext) if "(" in movetext else movetext


def _without_variations(movetext: str) -> str:
    """In one pass, however deep they nest."""
    kept, depth = [], 0
    for part in _PARENTHESIS.split(movetext):
        if part == "(":
            depth += 1
        elif part == ")":
            depth -= 1
        elif not depth:
            kept.append(part)
        if depth < 0:
            break
    return movetext if depth else " ".join(kept)
