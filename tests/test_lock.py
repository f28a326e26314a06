"""Locks: one holder, on one machine and across machines; taken over from the dead and from those that stand still, from nobody else."""

from __future__ import annotations

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
from chessrl.lock import STALE_S, Lock

ROOT = Path(__file__).parents[1]
HOLDING = """
import sys, time
from pathlib import Path
from chessrl.lock import Lock
Lock(Path(sys.argv[1]), "the run").acquire(wait=False)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "SETTLE_S", 0.0)
    monkeypatch.setattr(lock, "POLL_S", 0.01)


def holding(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def held(path: Path) -> Lock:
    taken = Lock(path, "the run")
    taken.acquire(wait=False)
    return taken


def held_elsewhere(path: Path, silent_s: float) -> None:
    """The lock of a process on another machine whose last heartbeat was ``silent_s`` seconds ago."""
    path.write_text(json.dumps({"host": "node7", "boot": "another-kernel", "pid": 4711}))
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
