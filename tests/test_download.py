"""Downloads against a local server that misbehaves in every way a real one has."""

from __future__ import annotations

import hashlib
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from chessrl.download import DownloadSettings, download
from chessrl.errors import UserError

NAME = "lichess_db_standard_rated_2026-09.pgn.zst"
PUZZLES = "lichess_db_puzzle.csv.zst"
CONTENT = np.random.default_rng(0).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves ``content`` under both names and its checksum list; ``faults`` are taken one per request for the file."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag: str | None = '"one"'
        self.published = hashlib.sha256(CONTENT).hexdigest()
        self.faults: list[str] = []
        self.ranges: list[str | None] = []  # the Range header of each request for the file
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        if self.path.endswith("sha256sums.txt"):
            self._send(200, f"{'0' * 64}  lichess_db_standard_rated_2026-08.pgn.zst\n{server.published}  {NAME}\n".encode())
            return
        if not self.path.endswith((NAME, PUZZLES)):
            self._send(404, b"")
            return
        server.ranges.append(self.headers["Range"])
        fault = server.faults.pop(0) if server.faults else ""
        if fault.isdigit() and int(fault) >= 400:
            self._send(int(fault), b"", {"Retry-After": "7"} if fault == "429" else {})
            return
        start = self._start(fault)
        if start >= len(server.content) and start:
            self._send(416, b"", {"Content-Range": f"bytes */{len(server.content)}"})
            return
        whole = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(whole)))
        if server.etag:
            self.send_header("ETag", server.etag)
        if start:
            end = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {start + (5 if fault == 'other range' else 0)}-{end}/{end + 1}")
        self.end_headers()
        if fault.startswith("cut"):
            whole = whole[: int(fault.split()[1])]
        self.wfile.write(whole)
        self.wfile.flush()
        if fault.endswith("stall"):
            server.released.wait(20)

    def _start(self, fault: str) -> int:
        wanted = self.headers["Range"]
        if wanted is None or fault == "ignores ranges" or self.headers["If-Range"] != self.server.etag:
            return 0
        return int(wanted.removeprefix("bytes=").rstrip("-"))

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses asked for; none is slept."""
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", asked.append)
    return asked


def settings(server: Server, out: Path, **keys: object) -> DownloadSettings:
    return DownloadSettings(**{"what": "games", "month": "2026-09", "out": str(out), "base_url": server.url, "spare_mb": 1, **keys})


def assert_whole(folder: Path, name: str = NAME) -> None:
    assert (folder / name).read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] == [name]


def test_a_file_comes_whole_and_is_not_fetched_twice(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for _ in range(2):
        assert download(settings(server, tmp_path)) == tmp_path / NAME
    assert server.ranges == [None]
    assert_whole(tmp_path)
    assert "as published" in capsys.readouterr().out


def test_a_cut_connection_is_continued_at_the_next_byte(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    server.faults = ["cut 100000", "cut 50000"]
    download(settings(server, tmp_path))
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]
    assert_whole(tmp_path)
    assert pauses == [1.0, 1.0]  # each try brought bytes: the pause does not grow


def test_a_killed_download_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    server.faults = ["cut 123456"]
    with pytest.raises(UserError, match=r"ended at byte 123,456 of 300,000, after 1 tries in a row; 123,456 bytes are kept"):
        download(settings(server, tmp_path, retries=0))
    download(settings(server, tmp_path))
    assert server.ranges == [None, "bytes=123456-"]
    assert_whole(tmp_path)


def test_a_download_killed_before_the_renaming_asks_for_no_byte(server: Server, tmp_path: Path) -> None:
    server.faults = ["cut 1000"]
    with pytest.raises(UserError):
        download(settings(server, tmp_path, retries=0))
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT)
    download(settings(server, tmp_path))
    assert server.ranges == [None, "bytes=300000-"]  # answered by 416
    assert_whole(tmp_path)


def test_a_part_longer_than_the_file_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    server.faults = ["cut 1000"]
    with pytest.raises(UserError):
        download(settings(server, tmp_path, retries=0))
    (tmp_path / f"{NAME}.part").write_bytes(CONTENT + b"more")
    download(settings(server, tmp_path))
    assert server.ranges == [None, "bytes=300004-", None]
    assert_whole(tmp_path)


@pytest.mark.parametrize("fault", ["ignores ranges", "other range"])
def test_a_server_that_sends_another_part_does_not_mix_bytes(server: Server, tmp_path: Path, fault: str) -> None:
    server.faults = ["cut 100000", fault]
    download(settings(server, tmp_path))
    assert_whole(tmp_path)


def test_a_file_that_changed_meanwhile_is_fetched_anew(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    server.content = bytes(200_000)
    server.faults = ["cut 100000"]
    with pytest.raises(UserError):
        download(settings(server, tmp_path, retries=0))
    server.content, server.etag = CONTENT, '"two"'
    download(settings(server, tmp_path))
    assert_whole(tmp_path)
    assert "changed on the server" in capsys.readouterr().err


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_validator_a_part_is_not_continued(server: Server, tmp_path: Path, etag: str | None) -> None:
    server.etag = etag
    server.faults = ["cut 100000"]
    download(settings(server, tmp_path))
    assert server.ranges == [None, None]
    assert_whole(tmp_path)


def test_a_wrong_checksum_is_an_error_and_the_file_is_kept_aside(server: Server, tmp_path: Path) -> None:
    server.published = "ab" * 32
    with pytest.raises(UserError, match=f"its SHA-256 is {hashlib.sha256(CONTENT).hexdigest()}, published is {'ab' * 32}"):
        download(settings(server, tmp_path))
    assert_whole(tmp_path, f"{NAME}.wrong-checksum")


def test_a_present_file_with_a_wrong_checksum_is_named_and_left(server: Server, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"other")
    with pytest.raises(UserError, match="already there, but its SHA-256"):
        download(settings(server, tmp_path))
    assert (tmp_path / NAME).read_bytes() == b"other"
    assert server.ranges == []


def test_puzzles_have_no_published_checksum_and_the_command_says_so(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    server.faults = ["cut 100000"]
    for _ in range(2):
        download(settings(server, tmp_path, what="puzzles", month=""))
    assert server.ranges == [None, "bytes=100000-"]
    assert_whole(tmp_path, PUZZLES)
    assert "Lichess publishes none" in capsys.readouterr().out


def test_a_missing_file_is_an_error_at_once(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    server.faults = ["404"]
    with pytest.raises(UserError, match="the server answers 404"):
        download(settings(server, tmp_path))
    with pytest.raises(UserError, match=rf"names no lichess_db_standard_rated_2027-01.pgn.zst; the newest there is {NAME}"):
        download(settings(server, tmp_path, month="2027-01"))
    assert pauses == []


def test_an_overloaded_server_is_waited_for_as_long_as_it_says(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    server.faults = ["503", "503", "429", "503"]
    download(settings(server, tmp_path))
    assert pauses == [1.0, 2.0, 7.0, 8.0]
    assert_whole(tmp_path)


def test_tries_are_bounded(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    server.faults = ["503"] * 10
    with pytest.raises(UserError, match="HTTP 503 Service Unavailable, after 4 tries in a row; 0 bytes are kept"):
        download(settings(server, tmp_path, retries=3))
    assert pauses == [1.0, 2.0, 4.0]


def test_a_server_that_falls_silent_is_left_and_asked_again(server: Server, tmp_path: Path) -> None:
    server.faults = ["cut 100000 stall"]
    download(settings(server, tmp_path, timeout_s=1.0))
    assert server.ranges == [None, "bytes=100000-"]
    assert_whole(tmp_path)


def test_no_server_is_one_line(tmp_path: Path, pauses: list[float]) -> None:
    with Server() as stopped:
        address = stopped.url
    with pytest.raises(UserError, match=r"sha256sums.txt: cannot be fetched \(.*refused.*\) after 3 tries"):
        download(DownloadSettings(what="games", month="2026-09", out=str(tmp_path), base_url=address, retries=2))
    assert pauses == [1.0, 2.0]
    with pytest.raises(UserError, match="base_url"):
        download(DownloadSettings(what="puzzles", out=str(tmp_path), base_url="nowhere"))


def test_a_small_disk_is_told_before_a_byte_is_written(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 10**6, 10**6))
    with pytest.raises(UserError, match=r"0.0 GB free, but lichess_db_standard_rated_2026-09.pgn.zst needs 0.0 GB more and spare_mb=1 keeps 0.0 GB"):
        download(settings(server, tmp_path))
    assert not (tmp_path / f"{NAME}.part").exists()


def test_a_disk_that_fills_up_is_told_at_once_and_the_part_stays(server: Server, tmp_path: Path, pauses: list[float]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # bytes: what a full disk does to one file
    try:
        with pytest.raises(UserError, match=r"cannot be written \(File too large\); what came is kept"):
            download(settings(server, tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert pauses == []
    assert (tmp_path / f"{NAME}.part").read_bytes() == CONTENT[:200_000]
    download(settings(server, tmp_path))
    assert server.ranges == [None, "bytes=200000-"]
    assert_whole(tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"what": "studies"}, "expected one of games, puzzles"),
        ({"month": ""}, "such as month=2026-09"),
        ({"month": "2026-13"}, "such as month=2026-09"),
        ({"what": "puzzles"}, "has no months"),
        ({"timeout_s": 0.0}, "above 0"),
    ],
)
def test_bad_keys_are_refused(keys: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        DownloadSettings(**{"what": "games", "month": "2026-09", "out": "x", **keys})
