"""The files that Lichess publishes: a month of games or the puzzle table, in parts that survive interruptions, checked before they count.

Bytes go to ``NAME.part``; the file takes its name
only once it is whole and, for games, its SHA-256 is the one published. Lichess publishes no checksum of the puzzle table: its length is checked.

Examples:
    python -m chessrl.download what=puzzles out=data
    python -m chessrl.download what=games month=2016-01 out=data
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from chessrl.command import parse_settings, run_command
from chessrl.errors import UserError, make_folder
from chessrl.lock import Lock

KINDS = ("games", "puzzles")
_MONTH = re.compile(r"20\d\d-(0[1-9]|1[0-2])")
_BLOCK_BYTES = 1 << 20
_LONGEST_PAUSE_S = 60.0
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)  # HTTP statuses that another try may change
_RANGE_REFUSED = 416
_REMEDY = "check the network, or name a mirror (base_url=), and give the command again"


@dataclass(frozen=True, slots=True)
class DownloadSettings:
    """Keys of ``python -m chessrl.download``."""

    what: str  # games or puzzles
    out: str  # folder that the file goes to
    month: str = ""  # YYYY-MM, of games
    base_url: str = "https://database.lichess.org"  # where the files are: Lichess's own, or a mirror laid out alike
    retries: int = 8  # tries in a row without a new byte, beyond the first
    timeout_s: float = 30.0  # without a byte
    spare_mb: int = 1024  # disk space that must stay free

    def __post_init__(self) -> None:
        if self.what not in KINDS:
            raise UserError(f"what={self.what}: expected one of {', '.join(KINDS)}")
        if self.what == "games" and not _MONTH.fullmatch(self.month):
            raise UserError(f"month={self.month}: expected the year and month of the games, such as month=2026-09")
        if self.what == "puzzles" and self.month:
            raise UserError(f"month={self.month}: the puzzle table has no months; leave month out")
        if self.retries < 0 or self.spare_mb < 0 or not self.timeout_s > 0:
            raise UserError(
                f"retries={self.retries}, spare_mb={self.spare_mb}, timeout_s={self.timeout_s:g}: expected at least 0, at least 0 and above 0"
            )


@dataclass(frozen=True, slots=True)
class Source:
    """A published file and the SHA-256 published for it, if any."""

    url: str
    sha256: str | None

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def find_source(settings: DownloadSettings) -> Source:
    """The address of the file asked for; for games with its checksum from the published list. Raises UserError for a month not published."""
    base = settings.base_url.rstrip("/")
    if settings.what == "puzzles":
        return Source(f"{base}/lichess_db_puzzle.csv.zst", None)
    name = f"lichess_db_standard_rated_{settings.month}.pgn.zst"
    address = f"{base}/standard/sha256sums.txt"
    text = _fetch_text(address, settings)
    sums = {fields[1].lstrip("*"): fields[0] for line in text.splitlines() if len(fields := line.split()) == 2}
    if name not in sums:
        newest = max(sums, default="nothing")
        raise UserError(f"{address}: names no {name}; the newest there is {newest}")
    return Source(f"{base}/standard/{name}", sums[name].lower())


def download(settings: DownloadSettings) -> Path:
    """Fetch the file, or what is missing of it; its path. A file that is there already and right is left alone.

    Raises UserError where the server has no such file or stays away, the disk is too small, the file does not match its checksum (it is kept aside),
    or another process works on it.
    """
    out = make_folder(settings.out, "out")
    source = find_source(settings)
    target = out / source.name
    lock = Lock(out / f"{source.name}.lock", str(target))
    lock.acquire(wait=False)
    try:
        if target.exists():
            _check_present(target, source)
            return target
        part = _Part(target.with_name(f"{source.name}.part"))
        _fetch(source, part, settings)
        digest = _sha256(part.path)
        if source.sha256 not in (None, digest):
            aside = target.with_name(f"{source.name}.wrong-checksum")
            part.finish(aside)
            raise UserError(f"{aside}: its SHA-256 is {digest}, published is {source.sha256}; it is kept aside, the same command fetches it anew")
        part.finish(target)
    finally:
        lock.release()
    checked = "as published" if source.sha256 else "Lichess publishes none to compare with; the length is right"
    print(f"{target}: {target.stat().st_size:,} bytes, SHA-256 {digest} ({checked})")
    return target


def _check_present(target: Path, source: Source) -> None:
    if source.sha256 is None:
        print(f"{target}: already there; no checksum is published for it. Remove the file to fetch today's")
        return
    digest = _sha256(target)
    if digest != source.sha256:
        raise UserError(f"{target}: already there, but its SHA-256 is {digest} and published is {source.sha256}; remove the file to fetch it anew")
    print(f"{target}: already there, SHA-256 as published")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file, _bar(f"checking {path.name}", path.stat().st_size, 0) as bar:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            bar.update(len(block))
    return digest.hexdigest()


def _bar(what: str, total: int, initial: int) -> tqdm:
    return tqdm(total=total, initial=initial, desc=what, unit="B", unit_scale=True, unit_divisor=1024, disable=None)


# ---- the part on disk -----------------------------------------------------------------------------------------------------------------


class _Part:
    """Bytes fetched so far, and which version of the file they belong to: ``NAME.part`` and ``NAME.part.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note = path.with_name(f"{path.name}.json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version(self) -> str | None:
        """What the server called the version that the bytes belong to (ETag or Last-Modified); None where it cannot be told."""
        try:
            return json.loads(self._note.read_text(encoding="utf-8"))["version"]
        except (FileNotFoundError, ValueError, KeyError):
            return None

    def begin(self, version: str | None) -> None:
        """Forget the bytes, if any; those to come are of ``version``."""
        with _writing(self.path):
            self.path.unlink(missing_ok=True)
            temporary = self._note.with_suffix(".tmp")
            temporary.write_text(json.dumps({"version": version}) + "\n", encoding="utf-8")
            temporary.replace(self._note)

    def finish(self, target: Path) -> None:
        """Give the file its name."""
        self.path.replace(target)
        self._note.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Faults of the disk are the user's to mend: no other try would."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); what came is kept, the same command goes on from there") from error


# ---- the network ----------------------------------------------------------------------------------------------------------------------


class _TryAgain(Exception):
    """A fault that may pass; ``pause_s`` where the server said how long to wait."""

    def __init__(self, what: str, pause_s: float | None = None) -> None:
        super().__init__(what)
        self.pause_s = pause_s


@contextmanager
def _opened(url: str, headers: dict[str, str], timeout_s: float) -> Iterator[http.client.HTTPResponse]:
    """The response, also one with status 416. Raises _TryAgain for what may pass, UserError for what will not."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "chessrl", "Accept-Encoding": "identity", **headers})
    except ValueError as error:
        raise UserError(f"base_url: {error}; expected an address such as https://database.lichess.org") from error
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            yield response
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_REFUSED:
            yield error  # type: ignore[misc]  # an HTTPError is a response too
        elif error.code in _TRANSIENT:
            wait = error.headers.get("Retry-After", "")
            raise _TryAgain(f"HTTP {error.code} {error.reason}", float(wait) if wait.isdigit() else None) from error
        else:
            raise UserError(f"{url}: the server answers {error.code} {error.reason}; check what= and month=, or set base_url") from error
    except (http.client.HTTPException, OSError) as error:  # URLError is an OSError, and so are time-outs and faults of a connection
        raise _TryAgain(str(getattr(error, "reason", error)) or type(error).__name__) from error


def _fetch_text(url: str, settings: DownloadSettings) -> str:
    for failures in range(settings.retries + 1):
        try:
            with _opened(url, {}, settings.timeout_s) as response:
                return response.read().decode("utf-8", errors="replace")
        except _TryAgain as error:
            fault = error
        if failures < settings.retries:
            _pause(failures, fault)
    raise UserError(f"{url}: cannot be fetched ({fault}) after {settings.retries + 1} tries; {_REMEDY}")


def _fetch(source: Source, part: _Part, settings: DownloadSettings) -> None:
    """Fill ``part``, over as many connections as it takes."""
    failures = 0
    while True:
        before = part.size()
        try:
            _fetch_once(source, part, settings)
            return
        except _TryAgain as error:
            fault = error
        failures = 1 if part.size() > before else failures + 1
        if failures > settings.retries:
            raise UserError(f"{source.url}: {fault}, after {failures} tries in a row; {part.size():,} bytes are kept: {_REMEDY}")
        _pause(failures - 1, fault)


def _pause(failures: int, fault: _TryAgain) -> None:
    seconds = min(_LONGEST_PAUSE_S, 2.0**failures) if fault.pause_s is None else fault.pause_s
    tqdm.write(f"{fault}: trying again in {seconds:.0f} s", file=sys.stderr)
    time.sleep(seconds)


def _fetch_once(source: Source, part: _Part, settings: DownloadSettings) -> None:
    """One connection. Raises _TryAgain where it ends before the file does; what came is kept."""
    have, version = part.size(), part.version()
    headers = {"Range": f"bytes={have}-", "If-Range": version} if have and version else {}
    with _opened(source.url, headers, settings.timeout_s) as response:
        total = _total(response)
        if response.status == _RANGE_REFUSED:
            if total == have:
                return  # killed between the last byte and the renaming
            part.begin(None)
            raise _TryAgain(f"the server has no byte {have:,} of {source.name}")
        goes_on = response.status == 206 and _starts_at(response) == have
        if response.status == 206 and not goes_on:
            part.begin(None)
            raise _TryAgain(f"the server sent another range of {source.name} than the one asked for")
        if not goes_on:
            if have:
                tqdm.write(f"{source.name}: changed on the server, or it sends no parts: from the start again", file=sys.stderr)
            part.begin(_version(response))
            have = 0
        _check_space(part.path.parent, source.name, total, have, settings.spare_mb)
        _append(response, part.path, source.name, total, have)
        if part.size() != total:
            raise _TryAgain(f"the connection ended at byte {part.size():,} of {total:,}")


def _total(response: http.client.HTTPResponse) -> int:
    """Length of the whole file in bytes."""
    if response.status in (206, _RANGE_REFUSED):
        text = (response.headers.get("Content-Range") or "").rpartition("/")[2]
    else:
        text = response.headers.get("Content-Length") or ""
    if not text.isdigit():
        raise UserError(f"{response.url}: the server does not say how long the file is; set base_url to one that does")
    return int(text)


def _starts_at(response: http.client.HTTPResponse) -> int | None:
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range") or "")
    return int(found[1]) if found else None


def _version(response: http.client.HTTPResponse) -> str | None:
    """A strong validator for If-Range; a weak ETag promises no equal bytes."""
    tag = response.headers.get("ETag")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified")


def _check_space(folder: Path, name: str, total: int, have: int, spare_mb: int) -> None:
    needed, free = total - have + spare_mb * 1_000_000, shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"{folder}: {free / 1e9:.1f} GB free, but {name} needs {(total - have) / 1e9:.1f} GB more and spare_mb={spare_mb} keeps "
            f"{spare_mb / 1e3:.1f} GB free; free some or choose another out"
        )


def _append(response: http.client.HTTPResponse, path: Path, name: str, total: int, have: int) -> None:
    with _bar(name, total, have) as bar, path.open("ab", buffering=0) as file:
        try:
            while block := response.read1(_BLOCK_BYTES):  # what has come: a full block would take a slow line beyond any time-out
                with _writing(path):
                    rest = memoryview(block)
                    while rest:
                        rest = rest[file.write(rest) :]
                bar.update(len(block))
        finally:
            with _writing(path):
                os.fsync(file.fileno())


def main(arguments: list[str]) -> None:
    """Fetch one file."""
    download(parse_settings(DownloadSettings, arguments))


if __name__ == "__main__":
    sys.exit(run_command(main))
