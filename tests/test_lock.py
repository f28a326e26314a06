"""Locks: one holder, on one machine and across machines; taken over from the dead and from those that stand still, from nobody else."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from chessrl import lock
from chessrl.errors import UserError
from chessrl.lock import STALE_S, Lock, at_work

ROOT = Path(__file__).parents[1]
HOLDING = """
import sys, time
from pathlib import Path
from chessrl.lock import Lock
Lock(Path(sys.argv[1]), "the run").acquire(wait=False)
print("held", flush=True)
time.sleep(600)
"""


# Holds a lock as a process of another machine does: another kernel's name, and file locks that do not reach across.
ELSEWHERE = """
import dataclasses, sys, time
from pathlib import Path
from chessrl import lock
from chessrl.errors import UserError
here = lock.Holder.this_process()
lock.Holder.this_process = lambda: dataclasses.replace(here, host="node7", boot="another-kernel")
lock._flock = lambda descriptor: False
lock.BEAT_S = 0.05
held = lock.Lock(Path(sys.argv[1]), "the run")
held.acquire(wait=False)
print("held", flush=True)
try:
    while True:
        time.sleep(0.05)
        held.check()
except UserError as error:
    print(error, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SETTLE_S", 0.0)
    monkeypatch.setattr(lock, "POLL_S", 0.01)


def holding(path: Path, script: str = HOLDING) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def held(path: Path) -> Lock:
    taken = Lock(path, "the run")
    taken.acquire(wait=False)
    return taken


def held_elsewhere(path: Path, silent_s: float) -> None:
    """The lock of a process on another machine whose last heartbeat was ``silent_s`` seconds ago."""
    path.write_text(json.dumps({"host": "node7", "boot": "another-kernel", "space": "", "pid": 4711}))
    beat = time.time() - silent_s
    os.utime(path, (beat, beat))


def test_a_lock_names_its_holder_and_leaves_nothing_behind(path):
    taken = held(path)
    assert json.loads(path.read_text())["pid"] == os.getpid()
    with pytest.raises(UserError, match=rf"the run is being worked on by another process \(host .+, pid {os.getpid()}\)"):
        held(path)
    taken.check()
    taken.release()
    assert list(path.parent.iterdir()) == []
    held(path).release()


def test_a_living_holder_is_refused_and_a_killed_one_is_followed_at_once(path):
    process = holding(path)
    try:
        with pytest.raises(UserError, match=f"pid {process.pid}"):
            held(path)
        assert json.loads(path.read_text())["pid"] == process.pid, "the refused one disturbed the lock"
    finally:
        process.kill()
        process.wait()
    held(path).release()  # no waiting for the heartbeat: the kernel knows


def test_a_holder_on_another_machine_is_believed_by_its_heartbeat(path, capsys):
    held_elsewhere(path, silent_s=STALE_S / 2)
    with pytest.raises(UserError, match="host node7, pid 4711"):
        held(path)
    held_elsewhere(path, silent_s=STALE_S * 2)
    taken = held(path)
    assert "host node7, pid 4711 has given no sign for 120 s: taken over" in capsys.readouterr().out
    taken.check()
    taken.release()


def test_a_process_that_stood_still_is_taken_over_and_stops_when_it_goes_on(path):
    first = held(path)
    os.utime(path, (0, 0))  # its heartbeat stopped, though it lives and has the kernel's lock
    second = held(path)
    with pytest.raises(UserError, match=rf"another process has taken over \(host .+, pid {os.getpid()}\)"):
        first.check()
    first.release()
    second.check()  # the first one's leaving does not take the lock from the second
    with pytest.raises(UserError, match="is being worked on"):
        held(path)
    second.release()


def test_the_heartbeat_keeps_the_file_fresh(path, monkeypatch):
    monkeypatch.setattr(lock, "BEAT_S", 0.01)
    taken = held(path)
    os.utime(path, (0, 0))
    deadline = time.monotonic() + 60
    while path.stat().st_mtime == 0:
        assert time.monotonic() < deadline, "no heartbeat"
        time.sleep(0.01)
    taken.release()


def test_a_lock_cut_short_by_a_power_failure_is_taken_over_when_it_is_old(path):
    path.write_text("")
    with pytest.raises(UserError, match="unknown"):
        held(path)
    os.utime(path, (0, 0))
    held(path).release()


def test_what_a_killed_attempt_left_is_cleared_up_and_one_that_is_on_its_way_is_not(path):
    left, on_its_way = (path.with_name(f"lock.{name}") for name in ("0123456789ab", "ba9876543210"))
    for attempt in (left, on_its_way):
        attempt.touch()
    os.utime(left, (0, 0))
    held(path).release()
    assert list(path.parent.iterdir()) == [on_its_way]


def test_of_many_that_start_at_once_one_works_at_a_time_and_all_get_their_turn(path):
    inside: list[int] = []
    most = []

    def work() -> None:
        with Lock(path, "the run"):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.002)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 12


def test_waiting_says_for_whom_and_ends_with_the_holder(path, capsys):
    process = holding(path)
    threading.Timer(0.2, process.send_signal, [signal.SIGKILL]).start()
    with Lock(path, "the run"):
        assert process.wait() == -signal.SIGKILL
    assert f"pid {process.pid}): waiting" in capsys.readouterr().out


# ---- across machines ---------------------------------------------------------------------------------------------------------------------


def test_a_holder_elsewhere_is_waited_for_while_its_heart_beats_and_followed_when_it_stops(path, monkeypatch, capsys):
    held_elsewhere(path, silent_s=0)
    looks = []

    def sleep(seconds: float) -> None:
        """Between two looks: five heartbeats come, then silence."""
        looks.append(seconds)
        beat = time.time() - (0 if len(looks) <= 5 else 2 * STALE_S)
        os.utime(path, (beat, beat))

    monkeypatch.setattr(lock.time, "sleep", sleep)
    with Lock(path, "the run"):
        assert len(looks) == 7  # the last one settles the takeover
    output = capsys.readouterr().out
    assert "(host node7, pid 4711): waiting" in output and "has given no sign for 120 s: taken over" in output


@pytest.mark.long
def test_a_process_elsewhere_that_stands_still_loses_the_lock_and_says_so_when_it_goes_on(path, monkeypatch):
    """For real but for the machine: two processes, whose kernel locks do not reach each other."""
    monkeypatch.setattr(lock, "STALE_S", 5.0)
    monkeypatch.setattr(lock, "_flock", lambda descriptor: False)
    process = holding(path, ELSEWHERE)
    try:
        time.sleep(2 * lock.STALE_S)
        with pytest.raises(UserError, match="host node7"):
            held(path)  # it has been silent for no time
        process.send_signal(signal.SIGSTOP)
        with Lock(path, "the run") as taken:
            process.send_signal(signal.SIGCONT)
            assert "the run: another process has taken over" in process.stdout.readline()
            taken.check()
    finally:
        process.kill()
        process.wait()


def test_clocks_that_disagree_change_nothing(path, monkeypatch):
    """A machine whose clock is a day ahead of the file server's, or behind it."""
    held_elsewhere(path, silent_s=STALE_S / 2)
    for skew in (-86_400, 86_400):
        clock = time.time() + skew
        monkeypatch.setattr(lock.time, "time", lambda clock=clock: clock)
        with pytest.raises(UserError, match="host node7"):
            held(path)
        assert at_work(path)


def test_long_waiting_looks_less_often(path, monkeypatch):
    held_elsewhere(path, silent_s=0)
    clock, looks = [0.0], []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        clock[0] += seconds
        if clock[0] > 7200:
            path.unlink(missing_ok=True)

    monkeypatch.setattr(lock, "POLL_S", 1.0)
    monkeypatch.setattr(lock.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(lock.time, "sleep", sleep)
    with Lock(path, "the run"):
        assert looks[0] == 1.0 and max(looks) == lock.LONGEST_POLL_S and len(looks) < 350


@pytest.mark.skipif(not Path("/proc/sys/kernel/random/boot_id").exists(), reason="only Linux names the running kernel")
def test_a_lock_is_seen_to_be_held_without_touching_it(path):
    assert not at_work(path)
    taken = held(path)
    assert at_work(path)
    here = json.loads(path.read_text())
    gone = {"pid": 2**22 + 1}  # beyond the highest process id of Linux
    for change, expected in [({}, True), (gone, False), (gone | {"boot": "another"}, True), (gone | {"space": "pid:[1]"}, True)]:
        path.write_text(json.dumps(here | change))
        assert at_work(path) == expected, change
    os.utime(path, (0, 0))
    path.write_text(json.dumps(here))
    os.utime(path, (0, 0))
    assert not at_work(path), "the process id was given to another process meanwhile"
    taken.release()
    assert [file.name for file in path.parent.iterdir()] == []


# ---- file systems that do not serve ------------------------------------------------------------------------------------------------------


def test_a_file_system_without_hard_links_is_one_line(path, monkeypatch):
    def refuse(source: object, target: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(lock.os, "link", refuse)
    with pytest.raises(UserError, match=r"lock: this file system makes no hard links.*choose another outputs="):
        held(path)
    assert list(path.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path, monkeypatch):
    def refuse(*arguments: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(lock.os, "open", refuse)
    with pytest.raises(UserError, match=r"the run cannot be written to \(Read-only file system\): choose another outputs="):
        held(tmp_path / "lock")
