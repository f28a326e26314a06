"""The count of memory against what autograd really keeps and what the profiler sees; exponents against known powers."""

from __future__ import annotations

import resource
import sys

import pandas as pd
import pytest
import torch

from benchmarks.growth import Point, Shape, capacity_table, exponents, largest, measured, peak_of, slope
from chessrl.config import ModelConfig
from chessrl.launch import compose
from chessrl.memory import cache_per_token, rl_memory, sampling_memory, saved_per_token, training_memory
from chessrl.model import Cost, build_model
from chessrl.training import next_token_logprobs

SMALL = ModelConfig("small", layers=2, hidden=48, ffn=80, heads=4, kv_heads=2, head_dim=16)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_token_keeps_as_much_as_autograd_saves(precision):
    """Within 5 %, over two architectures of unlike proportions; weights and their casts are not a token's."""
    for config in (SMALL, ModelConfig("wide", layers=3, hidden=32, ffn=160, heads=2, kv_heads=1, head_dim=24)):
        model = build_model(config, seed=0, precision=precision)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        shapes = {tuple(parameter.shape) for parameter in model.parameters()}
        casts = shapes | {shape[::-1] for shape in shapes}
        rows, length = 4, 33
        saved: dict[int, torch.Tensor] = {}

        def keep(tensor: torch.Tensor, kept=saved, apart=(weights, casts), least=rows * (length - 1) * config.kv_heads) -> torch.Tensor:
            place = tensor.untyped_storage().data_ptr()
            if tensor.numel() >= least and place not in apart[0] and tuple(tensor.shape) not in apart[1]:
                kept[place] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            next_token_logprobs(model, torch.randint(0, 81, (rows, length), generator=torch.Generator().manual_seed(0))).sum()
        found = sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / (rows * (length - 1))
        table = 6 * config.layers * config.heads * (length - 1) if precision == "bf16" else 0  # attention's weights on a CPU
        assert saved_per_token(config, precision) + table == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("step", ["training", "sampling"])
def test_the_counted_peak_is_near_the_one_that_the_profiler_sees(step):
    point = measured(step, "new", Shape(model="nano", rows=4, context=64, prompts=2, group=4, new=6))
    assert 0.7 < point.counted_bytes / point.peak_bytes < 1.4


def test_memory_by_hand():
    """nano's 3 layers of 2 key heads of 24: 2 x 3 x 48 numbers a token; a training step has 16 bytes a parameter beside its activations."""
    nano = compose("rl", ["model=nano"]).model
    assert cache_per_token(nano, "fp32") == 2 * 3 * 48 * 4 == 2 * cache_per_token(nano, "bf16")
    of_step = training_memory(nano, "fp32", 0)
    assert of_step.total == 16 * Cost.of(nano).parameters
    assert rl_memory(nano, "fp32", 1, 1, 1, 1, 0).total == 20 * Cost.of(nano).parameters, "the reference's weights are held besides"
    few, many = (sampling_memory(nano, "bf16", 4, group, 100, 32).cache for group in (1, 8))
    assert many - few == 4 * 7 * 32 * cache_per_token(nano, "bf16"), "a prompt is held once for its group"


def test_the_peak_is_of_what_is_alive_together():
    def work() -> None:
        first = torch.ones(1000)
        del first
        both = (torch.ones(500), torch.ones(700))
        del both

    assert 4800 <= peak_of(work) < 5600


def test_exponents_of_known_powers():
    assert slope([1, 2, 4, 8], [3 * x**1.5 for x in (1, 2, 4, 8)])[0] == pytest.approx(1.5)
    points = [Point("training", "rows", x, 2.0 * x, 3.0 * x**2, 100, 100) for x in (1, 2, 4)]
    time, memory = exponents(pd.DataFrame(points))
    assert (time.rate, time.processor_rate, memory.rate) == pytest.approx((1.0, 2.0, 0.0))
    assert time.contender == "exponent of time in rows 1 to 4"


def test_what_fits_is_the_largest_that_fits():
    assert largest(lambda value: value <= 1234) == 1200 and largest(lambda value: False) == 0 and largest(lambda value: value <= 7) == 7
    lines = capacity_table().splitlines()
    assert lines[2].startswith("| 50m |") and len(lines) == 8


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_memory_stays_with_the_process():
    """What a step frees is the next step's: without faults, each of which has the system clear a page."""

    def faults_of_64_mib() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bytearray(b"x") * 2**26
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    faults_of_64_mib()
    assert faults_of_64_mib() < 1000
