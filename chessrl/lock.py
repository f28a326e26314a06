"""A lock that one process at a time holds, also across machines that share the folder.

The lock is a file with its holder's machine and process id. Its holder touches it every ``BEAT_S`` seconds: a heartbeat. On one machine the kernel
says at once whether a holder lives (``flock``); on another only the heartbeat can, and a lock without one for ``STALE_S`` seconds is taken
over. Ages are differences of the file server's own times, so that clocks need not agree.

Of the file system it asks what POSIX promises and local file systems, NFS and Lustre keep: ``link`` fails where the name exists, ``rename``
replaces a name at once for all, an opened file shows its current modification time, and ``utime`` without a time sets the server's.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from chessrl.errors import UserError

BEAT_S = 10.0
STALE_S = 120.0
SETTLE_S = 1.0  # after a takeover without the kernel's word: until another one at the same moment would show
POLL_S = 1.0  # between two looks at a lock that is waited for ...
WAITED_SHARE = 0.05  # ... or this share of the time waited so far, up to
LONGEST_POLL_S = 30.0  # so that hundreds of jobs that wait for hours are no burden to a file server
READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # FAT, some shares of other systems


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock. ``boot`` names the running kernel, since host names are not unique and process ids end with it; ``space`` the process ids'
    space, since containers on one kernel count for themselves.
    """

    host: str
    boot: str
    space: str
    pid: int

    @classmethod
    def this_process(cls) -> Holder:
        boot, space = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")  # Linux; elsewhere the host's name must do
        host = socket.gethostname()
        return cls(host, boot.read_text().strip() if boot.exists() else host, str(space.readlink()) if space.is_symlink() else "", os.getpid())

    def __str__(self) -> str:
        return f"host {self.host}, pid {self.pid}"


class Lock:
    """The lock at ``path``, over ``what`` (named in messages). A context manager; entering waits for another holder."""

    def __init__(self, path: Path, what: str):
        self.path, self.what = path, what
        self._descriptor = -1

    def __enter__(self) -> Lock:
        self.acquire(wait=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, *, wait: bool) -> None:
        """Take the lock. One that is held is waited for, with a line that says so, or refused by a UserError."""
        begin = time.monotonic()
        told = False
        while (holder := self._try()) is not None:
            if not wait:
                raise UserError(f"{self.what} is being worked on by another process ({holder}): wait for it, or use another outputs=")
            if not told:
                print(f"{self.what} is being worked on by another process ({holder}): waiting", flush=True)
                told = True
            time.sleep(min(LONGEST_POLL_S, max(POLL_S, WAITED_SHARE * (time.monotonic() - begin))))
        self._clear_up()
        self._released = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="lock heartbeat", daemon=True)
        self._heart.start()

    def release(self) -> None:
        """Give the lock back. Its file goes, unless another process has taken it over."""
        self._released.set()
        self._heart.join()
        if self._is_ours():
            self.path.unlink()
        os.close(self._descriptor)

    def check(self) -> None:
        """Raises UserError where another process has taken the lock over: what is written now would mix with its work."""
        if not self._is_ours():
            raise UserError(
                f"{self.what}: another process has taken over ({_read_holder(self.path) or 'its lock is gone'}), since this one stood "
                f"still for more than {STALE_S:.0f} s: it stops here and leaves the work to the other"
            )

    # -- taking it --

    def _try(self) -> Holder | str | None:
        """None when the lock is ours now, else who holds it."""
        mine = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex[:12]}")  # becomes the lock whole: no reader sees half a file
        try:
            descriptor = os.open(mine, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            raise UserError(f"{self.what} cannot be written to ({error.strerror}): choose another outputs=") from None
        try:
            _flock(descriptor)
            holder = Holder.this_process()
            os.write(descriptor, json.dumps(asdict(holder)).encode())
            os.fsync(descriptor)
            self._descriptor = descriptor
            refused_by = self._put(mine, os.fstat(descriptor).st_mtime)
        except BaseException:
            os.close(descriptor)
            raise
        finally:
            mine.unlink(missing_ok=True)
        if refused_by is not None:
            os.close(descriptor)
        return refused_by

    def _put(self, mine: Path, now: float) -> Holder | str | None:
        """Make ``mine`` the lock if there is none or if its holder is dead; else say who holds it. ``now`` is the file server's time."""
        try:
            os.link(mine, self.path)
            return None
        except FileExistsError:
            pass
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise UserError(
                f"{self.path}: this file system makes no hard links, which keep two processes out of one run: choose another outputs="
            ) from None
        try:
            other = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return "just released"
        try:
            unlocked = _flock(other)
            if not _same_file(other, self.path):
                return "just taken over"
            holder = _read_holder(self.path)
            dead = unlocked and holder is not None and holder.boot == Holder.this_process().boot
            silent = now - os.fstat(other).st_mtime > STALE_S
            if not dead and not silent:
                return holder or "unknown"
            mine.replace(self.path)
        finally:
            os.close(other)
        if not dead:
            print(f"{self.what}: {holder or 'its last process'} has given no sign for {STALE_S:.0f} s: taken over", flush=True)
            time.sleep(SETTLE_S)
        return None if self._is_ours() else _read_holder(self.path) or "unknown"

    def _clear_up(self) -> None:
        """Remove what attempts of killed processes left."""
        now = os.fstat(self._descriptor).st_mtime
        for left in self.path.parent.glob(f"{self.path.name}.*"):
            with suppress(FileNotFoundError):
                if now - left.stat().st_mtime > STALE_S:
                    left.unlink()

    def _is_ours(self) -> bool:
        return _same_file(self._descriptor, self.path)

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            with suppress(OSError):  # a file server out of reach for a moment: the next beat shows that we live
                os.utime(self._descriptor)  # by its descriptor: a lock that took ours over is never touched


def _flock(descriptor: int) -> bool:
    """Whether the file's kernel lock is ours now; it ends with the process. False as well where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read_holder(path: Path) -> Holder | None:
    """None where there is no lock, or one that was cut short by a power failure."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def at_work(path: Path) -> bool:
    """Whether a process holds the lock at ``path``: it was touched a moment ago, and its holder is not known to be dead.

    The lock is only looked at: trying to take it would make a run that starts at the same moment believe that it is held.
    """
    try:
        touched = path.stat().st_mtime
    except FileNotFoundError:
        return False
    holder, here = _read_holder(path), Holder.this_process()
    if holder and (holder.boot, holder.space) == (here.boot, here.space) and Path("/proc/self").exists() and not Path(f"/proc/{holder.pid}").exists():
        return False
    return _server_time(path.parent) - touched < STALE_S


def _server_time(folder: Path) -> float:
    """The time by the clock that modification times in ``folder`` are of; ours where nothing may be written there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"now")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()
