"""Stop signals: the state is saved, what others installed still runs, a sweep ends, and long work outside the step loop stops at once."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import chess
import pytest

from chessrl import signals
from chessrl.config import Config
from chessrl.corpus import build_corpus
from chessrl.endgame import load_games
from chessrl.engine import Engine, EngineSettings, find_stockfish
from chessrl.errors import UserError
from chessrl.games import games_from_table
from chessrl.launch import launch
from chessrl.run import Run
from chessrl.signals import STOP_SIGNALS, Interrupted, call_earlier, stop_signals
from chessrl.training import run_stage

STEPS = 10


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def launched(monkeypatch: pytest.MonkeyPatch, work, *arguments: str) -> int:
    """The exit status of the command ``rl`` with other work, in this process."""
    monkeypatch.setattr(sys, "argv", ["rl", *arguments])
    with pytest.raises(SystemExit) as exit_:
        launch("rl", work)
    return exit_.value.code


def count_and_signal(number: int):
    """Work that counts to STEPS in a run directory and gets a signal in step 4."""

    def count(run: Run) -> None:
        state = run.resume() or {"step": 0}
        for step in run.loop(state["step"], STEPS):
            run.log({"step": step, "loss": 1.0})
            if step == 4:
                send(number)
            run.checkpoint(step, step == STEPS, lambda: {"step": step})  # noqa: B023  called at once

    return lambda config: run_stage("count", config, {}, count)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_every_stop_signal_saves_and_the_same_command_goes_on(number, monkeypatch, tmp_path, capsys):
    assert launched(monkeypatch, count_and_signal(number), f"outputs={tmp_path}") == 128 + number
    (directory,) = tmp_path.iterdir()
    assert [path.name for path in (directory / "state").iterdir()] == ["step-00000004.pt"]
    assert json.loads((directory / "status.json").read_text())["state"] == "interrupted"
    assert f"stopped by {number.name}; the same command goes on from there" in capsys.readouterr().out
    assert launched(monkeypatch, count_and_signal(number), f"outputs={tmp_path}") == 0
    assert [json.loads(line)["step"] for line in (directory / "metrics.jsonl").read_text().splitlines()] == list(range(1, STEPS + 1))


def test_a_requeueing_handler_runs_after_the_state_and_status_are_written(monkeypatch, tmp_path):
    """submitit's handler of SIGUSR2 asks Slurm to start the job again and then leaves."""
    seen = []

    def requeue(number: int, frame: object) -> None:
        (directory,) = tmp_path.iterdir()
        seen.append((number, json.loads((directory / "status.json").read_text())["state"], len(list((directory / "state").iterdir()))))
        sys.exit(7)

    earlier = signal.signal(signal.SIGUSR2, requeue)
    try:
        assert launched(monkeypatch, count_and_signal(signal.SIGUSR2), f"outputs={tmp_path}") == 7
        assert signal.getsignal(signal.SIGUSR2) is requeue
    finally:
        signal.signal(signal.SIGUSR2, earlier)
    assert seen == [(signal.SIGUSR2, "interrupted", 1)]


def test_a_signal_ends_the_whole_sweep(monkeypatch, tmp_path):
    seen = []

    def work(config: Config) -> int:
        seen.append(config.rl.steps)
        if config.rl.steps == 2:
            send(signal.SIGTERM)
        return 0

    assert launched(monkeypatch, work, "-m", "rl.steps=1,2,3", f"outputs={tmp_path}") == 128 + signal.SIGTERM
    assert seen == [1, 2]


def test_ctrl_c_before_the_run_directory_is_one_line(monkeypatch, tmp_path, capsys):
    assert launched(monkeypatch, lambda config: send(signal.SIGINT), f"outputs={tmp_path}") == 128 + signal.SIGINT
    assert capsys.readouterr() == ("rl: stopped by SIGINT; the same command goes on from there\n", "")


def test_a_signal_that_comes_twice_by_two_ways_is_one_wish_and_a_later_one_another(monkeypatch):
    """Slurm signals the pipeline and its stage, and the pipeline its stage: the second one must not stop the saving."""
    noted = []
    with stop_signals() as outer:
        with stop_signals(noted.append):
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGUSR2):
                send(number)
        send(signal.SIGUSR2)  # ... nor what an outer context does after it
        assert noted == [signal.SIGTERM] and outer == [signal.SIGTERM, signal.SIGTERM, signal.SIGUSR2, signal.SIGUSR2]
        monkeypatch.setattr(signals, "SAME_WISH_S", 0.0)
        with pytest.raises(Interrupted):
            send(signal.SIGUSR2)


def test_all_handlers_of_the_received_signals_run():
    """submitit's of SIGTERM does nothing, its of SIGUSR2, which follows at a preemption, requeues."""
    seen = []
    earlier = {number: signal.signal(number, lambda number, frame: seen.append(number)) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        with stop_signals(lambda number: None) as received:
            for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
                send(number)
        assert seen == []
        call_earlier(received)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    assert seen == [signal.SIGTERM, signal.SIGUSR2]


def test_the_innermost_context_decides_and_all_are_undone(monkeypatch):
    monkeypatch.setattr(signals, "SAME_WISH_S", 0.0)
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    noted = []
    with pytest.raises(Interrupted), stop_signals() as outer:
        with stop_signals(noted.append) as inner:
            send(signal.SIGUSR1)
        assert noted == inner == outer == [signal.SIGUSR1]
        send(signal.SIGTERM)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_a_signal_ignored_within_stays_ignored_until_the_process_ends():
    """Of several processes one that has lost the others is terminated by torchrun while it says so."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with stop_signals(), stop_signals():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        send(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_default_handlers_are_not_called_as_if_they_were_someones():
    with stop_signals() as received:
        call_earlier(STOP_SIGNALS)
    assert received == []


# ---- long work outside the step loop ---------------------------------------------------------------------------------------------------


def test_a_stopped_corpus_leaves_nothing_and_is_made_again(tmp_path):
    table = load_games()[:40]
    shape = {"state": "snapshot", "context": 128, "seed": 0, "validation_share": 0.2, "shard_tokens": 10**6}

    def games():
        for number, game in enumerate(games_from_table(table)):
            if number == 20:
                send(signal.SIGTERM)
            yield game

    with pytest.raises(Interrupted), stop_signals():
        build_corpus(games(), tmp_path / "corpus", **shape)
    assert list(tmp_path.iterdir()) == []
    assert build_corpus(games_from_table(table), tmp_path / "corpus", **shape)["games"]["read"] == 40


def test_engine_labels_stop_in_the_middle_of_a_search_and_leave_no_process():
    try:
        find_stockfish()
    except UserError:
        pytest.skip("needs Stockfish")
    settings = EngineSettings(depth=60, nodes=10**12, workers=2, deadline_s=600)
    with pytest.raises(Interrupted), stop_signals(), Engine(settings) as engine:
        threading.Timer(0.5, send, [signal.SIGTERM]).start()
        engine.label([chess.Board()])
    children = [child for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()]
    names = [Path(f"/proc/{child}/comm").read_text() for child in children if Path(f"/proc/{child}/comm").exists()]
    assert not any("stockfish" in name for name in names)
