"""The Lichess export, against a server of the test's own on this machine."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from chessrl import lichess_api
from chessrl.errors import UserError
from chessrl.lichess_api import LichessApi, fetch_games
from chessrl.puzzle_history import SourceGame

JANUARY = 1_675_123_200_000  # 2023-01-31 00:00 UTC, in ms
IDS = [f"game{number:04d}" for number in range(10)]


def entry(game: str, **fields) -> dict:
    return {"id": game, "variant": "standard", "createdAt": JANUARY, "moves": f"e4 e5 {game}"} | fields


class Server:
    """Answers each request by the next of ``script`` (then by the games it has): a status, or a function from ids to (headers, body)."""

    def __init__(self) -> None:
        self.script: list[int | Callable[[list[str]], tuple[dict[str, str], bytes]]] = []
        self.missing: set[str] = set()
        self.requests: list[list[str]] = []
        self.headers: list[dict[str, str]] = []
        self.open = self.most_open = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.open += 1
                server.most_open = max(server.most_open, server.open)
                ids = self.rfile.read(int(self.headers["Content-Length"])).decode().split(",")
                server.requests.append(ids)
                server.headers.append({"path": self.path} | dict(self.headers))
                step = server.script.pop(0) if server.script else server.answer
                if isinstance(step, int):
                    self.send_error(step)
                else:
                    headers, body = step(ids)
                    with suppress(ConnectionError):  # who asked has given up
                        self.send_response(200)
                        for name, value in headers.items():
                            self.send_header(name, value)
                        self.end_headers()
                        self.wfile.write(body)
                server.open -= 1

            def log_message(self, *_: object) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def lines(self, ids: list[str]) -> bytes:
        return b"".join(json.dumps(entry(game)).encode() + b"\n" for game in ids if game not in self.missing)

    def answer(self, ids: list[str]) -> tuple[dict[str, str], bytes]:
        body = self.lines(ids)
        return {"Content-Length": str(len(body))}, body


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    thread = threading.Thread(target=one.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield one
    one.http.shutdown()
    thread.join()
    one.http.server_close()


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """Seconds of each wait, none of which is waited."""
    waited: list[float] = []
    monkeypatch.setattr(lichess_api.time, "sleep", waited.append)
    return waited


@pytest.fixture(autouse=True)
def small_requests(monkeypatch):
    monkeypatch.setattr(lichess_api, "GAMES_PER_REQUEST", 4)


def test_games_come_in_batches_one_request_at_a_time_under_our_name(server, waits, tmp_path):
    games = fetch_games([*IDS, IDS[0]], tmp_path / "out" / "games.sqlite", LichessApi(server.url + "/"))
    assert games == {game: SourceGame(f"e4 e5 {game}", 20230131) for game in IDS}
    assert server.requests == [IDS[:4], IDS[4:8], IDS[8:]] and server.most_open == 1 and not waits
    for headers in server.headers:
        assert headers["path"].startswith("/games/export/_ids") and "chessrl" in headers["User-Agent"] and headers["Accept"] == "application/x-ndjson"


def test_a_second_call_asks_for_nothing_that_was_answered(server, waits, tmp_path):
    server.missing = {IDS[2]}
    first = fetch_games(IDS[:5], tmp_path / "games.sqlite", LichessApi(server.url))
    asked = len(server.requests)
    assert fetch_games(IDS[:5], tmp_path / "games.sqlite", LichessApi(server.url)) == first and len(server.requests) == asked
    assert set(fetch_games(IDS, tmp_path / "games.sqlite", LichessApi(server.url))) == set(IDS) - {IDS[2]}
    assert sorted(game for ids in server.requests[asked:] for game in ids) == IDS[5:]


def test_a_game_is_missing_when_two_whole_answers_leave_it_out(server, waits, tmp_path):
    server.missing = {IDS[1], IDS[6]}
    games = fetch_games(IDS[:8], tmp_path / "games.sqlite", LichessApi(server.url))
    assert set(games) == set(IDS[:8]) - server.missing
    assert server.requests == [IDS[:4], IDS[4:8], [IDS[1], IDS[6]]]


def test_after_429_a_full_minute_is_waited(server, waits, tmp_path):
    server.script = [429, 429]
    assert len(fetch_games(IDS[:3], tmp_path / "games.sqlite", LichessApi(server.url))) == 3
    assert waits == [60.0, 60.0] and server.requests == [IDS[:3]] * 3


def cut(ids: list[str], server: Server, keep: int, length: bool) -> tuple[dict[str, str], bytes]:
    """An answer that breaks off after ``keep`` bytes, with or without a length that tells."""
    body = server.lines(ids)
    return ({"Content-Length": str(len(body))} if length else {}), body[:keep]


@pytest.mark.parametrize("length", [True, False])
def test_of_an_answer_that_breaks_off_the_whole_games_are_kept_and_the_others_asked_again(server, waits, tmp_path, length):
    one = len(server.lines(IDS[:1]))
    server.script = [lambda ids: cut(ids, server, 2 * one + 10, length)]
    games = fetch_games(IDS[:4], tmp_path / "games.sqlite", LichessApi(server.url))
    assert set(games) == set(IDS[:4]) and server.requests == [IDS[:4], IDS[2:4]] and len(waits) == 1


def test_an_answer_that_breaks_off_between_games_costs_no_game(server, waits, tmp_path):
    """Without a length nothing tells: the games left out are asked for a second time."""
    server.script = [lambda ids: cut(ids, server, 2 * len(server.lines(IDS[:1])), False)]
    assert set(fetch_games(IDS[:4], tmp_path / "games.sqlite", LichessApi(server.url))) == set(IDS[:4])
    assert server.requests == [IDS[:4], IDS[2:4]]


def test_tries_are_bounded_and_what_was_fetched_stays(server, waits, tmp_path):
    server.script = [server.answer, *[503] * 3]
    with pytest.raises(UserError, match=r"status 503 .*3 times in a row; the games fetched so far are kept") as error:
        fetch_games(IDS[:8], tmp_path / "games.sqlite", LichessApi(server.url, tries=3, retry_wait_s=2.0))
    assert "\n" not in str(error.value) and waits == [2.0, 4.0]
    assert len(fetch_games(IDS[:8], tmp_path / "games.sqlite", LichessApi(server.url))) == 8
    assert server.requests[-1] == IDS[4:8], "the first batch is not asked for again"


def test_a_game_that_no_whole_answer_left_out_twice_is_not_taken_for_missing(server, waits, tmp_path):
    server.missing = {IDS[1]}
    server.script = [server.answer, 503, 503]
    with pytest.raises(UserError, match="503"):
        fetch_games(IDS[:4], tmp_path / "games.sqlite", LichessApi(server.url, tries=2))
    server.missing = set()
    assert set(fetch_games(IDS[:4], tmp_path / "games.sqlite", LichessApi(server.url))) == set(IDS[:4])


def test_a_server_that_says_nothing_is_given_up(server, waits, tmp_path):
    hold = threading.Event()
    server.script = [lambda ids: ((hold.wait(5) and {}) or {}, b"")] * 2
    with pytest.raises(UserError, match="no answer, or one that breaks off"):
        fetch_games(IDS[:2], tmp_path / "games.sqlite", LichessApi(server.url, timeout_s=0.2, tries=2))
    hold.set()


def test_an_unreachable_server_is_one_line(waits, tmp_path):
    with pytest.raises(UserError, match=r"http://127\.0\.0\.1:9: no answer") as error:
        fetch_games(IDS[:2], tmp_path / "games.sqlite", LichessApi("http://127.0.0.1:9", tries=2))
    assert "\n" not in str(error.value)


def test_a_refusal_is_not_asked_again(server, waits, tmp_path):
    server.script = [404]
    with pytest.raises(UserError, match="status 404"):
        fetch_games(IDS[:2], tmp_path / "games.sqlite", LichessApi(server.url))
    assert len(server.requests) == 1 and not waits


def test_a_page_that_is_not_the_export_is_never_taken_for_an_answer(server, waits, tmp_path):
    server.script = [lambda ids: ({}, b"<html>maintenance</html>")] * 2
    with pytest.raises(UserError, match="not JSON"):
        fetch_games(IDS[:2], tmp_path / "games.sqlite", LichessApi(server.url, tries=2))


def test_games_from_a_position_of_their_own_have_no_moves_and_foreign_ones_are_not_kept(server, waits, tmp_path):
    odd = [entry(IDS[0], variant="fromPosition", initialFen="8/8/8/8/8/8/8/8 w - - 0 1"), entry("foreign1"), {"id": IDS[1]}]
    server.script = [lambda ids: ({}, b"\n".join(json.dumps(one).encode() for one in odd))]
    games = fetch_games(IDS[:2], tmp_path / "games.sqlite", LichessApi(server.url))
    assert games == {IDS[0]: SourceGame("", 20230131), IDS[1]: SourceGame("", 0)}
    with sqlite3.connect(tmp_path / "games.sqlite") as table:
        assert table.execute("SELECT count(*) FROM games").fetchone() == (2,)


def test_a_damaged_table_is_one_line(server, tmp_path):
    (tmp_path / "games.sqlite").write_bytes(b"not a database, and long enough to look at" * 40)
    with pytest.raises(UserError, match=r"games\.sqlite: the table of fetched games is unusable"):
        fetch_games(IDS[:2], tmp_path / "games.sqlite", LichessApi(server.url))
