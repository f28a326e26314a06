"""One run on several processes, as ``torchrun`` starts them: every process holds the whole model and takes a share of each batch.

All of them read the same files and know the whole batch, so losses keep their one normaliser and what is summed are gradients and counts.
Nothing here does anything in a process that is alone. Only the first process writes files and speaks on stdout; a collective operation that
fails because another process is gone raises ProcessLost, which ends the run with one line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as process_group
import torch.distributed.nn  # not while a group is joined: its functions' defaults would keep that group, and gloo's threads, to the end
from torch import Tensor, nn

from chessrl.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

TIMEOUT = timedelta(minutes=10)  # a process that answers no collective for so long is given up
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
POLL_SECONDS = 0.05
STATUS_OF_THE_OTHERS = 2  # exit status of the processes whose first one could not go on; it has said why


class ProcessLost(UserError):
    """Another process of the run is gone or hangs."""


class _Turns:
    """The store through which the first process says that it is done with a turn, and how many turns there were."""

    store: process_group.Store
    count = 0


def size() -> int:
    """How many processes work on the run."""
    return process_group.get_world_size() if process_group.is_initialized() else 1


def rank() -> int:
    return process_group.get_rank() if process_group.is_initialized() else 0


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


# ---- coming and going -------------------------------------------------------------------------------------------------------------------


@contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Work together with the other processes that torchrun started, each with a GPU of its own where ``device`` is CUDA.

    Nothing happens in a process that is alone, or that has joined the others already: they meet once.

    Raises UserError where there are more processes than GPUs, ProcessLost where the others do not come.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or process_group.is_initialized():
        yield
        return
    if device.type == "cuda":
        local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= gpus:
            raise UserError(f"torchrun started more processes here than there are GPUs ({gpus}): use --nproc-per-node={gpus}")
        torch.cuda.set_device(local)
    with _contact():
        _Turns.store, number, processes = next(process_group.rendezvous("env://", timeout=TIMEOUT))
        process_group.init_process_group(
            BACKENDS[device.type], store=_Turns.store, rank=number, world_size=processes, timeout=TIMEOUT
        )
    if is_first():
        yield
    else:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            yield
    process_group.destroy_process_group()


@contextmanager
def first_process_first() -> Iterator[None]:
    """The body runs in the first process, then in the others: one makes the files that the others find.

    Where it fails in the first process, the others end quietly.
    """
    _Turns.count += 1
    turn = f"turn {_Turns.count}"
    if is_first():
        try:
            yield
        except BaseException:
            _tell(turn, "failed")
            raise
        _tell(turn, "done")
    else:
        _await(turn)
        yield


def _tell(turn: str, word: str) -> None:
    if size() > 1:
        with _contact():
            _Turns.store.set(turn, word)


def _await(turn: str) -> None:
    """Wait as long as it takes: a corpus may take hours. Short looks let signals through."""
    with _contact():
        while not _Turns.store.check([turn]):
            time.sleep(POLL_SECONDS)
        if _Turns.store.get(turn) == b"failed":
            sys.exit(STATUS_OF_THE_OTHERS)


@contextmanager
def _contact() -> Iterator[None]:
    """torch.distributed reports a closed connection and a timeout as RuntimeErrors of several kinds."""
    try:
        yield
    except RuntimeError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun terminates what is left of the run: say what happened first
        raise ProcessLost(
            f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} lost contact to another one, which ended or hung (if it could say why, "
            "it did so above); the same command goes on from the last saved state"
        ) from error


# ---- collective operations --------------------------------------------------------------------------------------------------------------


def sum_gradients(model: nn.Module) -> None:
    """Replace each gradient by the sum over the processes; a process without a share of the batch adds zeros."""
    if size() == 1:
        return
    with _contact():
        pending = []
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            pending.append(process_group.all_reduce(parameter.grad, async_op=True))
        for operation in pending:
            operation.wait()


def sum_tensor(tensor: Tensor) -> Tensor:
    """The sum over the processes, in place."""
    if size() > 1:
        with _contact():
            process_group.all_reduce(tensor)
    return tensor


def sum_array(values: np.ndarray) -> np.ndarray:
    """The sum of a float64 array over the processes, in place."""
    sum_tensor(torch.from_numpy(values))
    return values


def maximum(value: float) -> float:
    """The largest of the processes' values."""
    if size() == 1:
        return value
    held = torch.tensor(value, dtype=torch.float64)
    with _contact():
        process_group.all_reduce(held, process_group.ReduceOp.MAX)
    return held.item()


def gather(value: Any) -> list[Any]:
    """The processes' values in their order, in every process. Tensors must be on the CPU."""
    if size() == 1:
        return [value]
    values: list[Any] = [None] * size()
    with _contact():
        process_group.all_gather_object(values, value)
    return values


def check_same(what: str, value: Any) -> None:
    """Raises UserError where the processes do not hold the same value, as when machines see different files or code."""
    values = gather(value)
    if any(other != values[0] for other in values):
        held = ", ".join(map(str, values))
        raise UserError(f"{what} differs between the processes ({held}): all machines need the same code, configuration and outputs= folder")


# ---- shares -----------------------------------------------------------------------------------------------------------------------------


def portion(items: Sequence[Item]) -> Sequence[Item]:
    """This process's share of ``items``: a stretch of them, so that the shares in the processes' order are the whole."""
    return items[len(items) * rank() // size() : len(items) * (rank() + 1) // size()]


def spread(work: Callable[[Sequence[Item]], Sequence[Result]], items: Sequence[Item], block: int) -> list[Result]:
    """``work`` of all items, in their order, in every process: blocks of ``block`` items are dealt out, so that a block is what it is alone."""
    blocks = [items[start : start + block] for start in range(0, len(items), block)]
    results = [iter(part) for part in gather(list(work([item for own in blocks[rank() :: size()] for item in own])))]
    return [next(results[number % size()]) for number, dealt in enumerate(blocks) for _ in dealt]
