"""Matrix products and their formats, by hand counts."""

from dataclasses import replace

import numpy as np
import pytest
from specs_for_tests import A100_80, LLAMA_8B, cluster, config, instance

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import TFLOP
from pipette_opt.costs.compute import layer_times_s, optimizer_time_s
from pipette_opt.costs.products import cast_s, linear_format, matmul_time_s, plain_format
from pipette_opt.specs import DEFAULT_STACK, GpuSpec, Instance, TrainingSpec

FP8_GPU = replace(A100_80, name="fp8-gpu", peak_flops={**A100_80.peak_flops, "fp8": 624 * TFLOP})
PLAIN = TrainingSpec(global_batch_size=64, seq_length=4096)
NARROW = replace(PLAIN, fp8=True)
MEMORY = FP8_GPU.memory_bytes_per_s * DEFAULT_STACK.streaming


def job(training: TrainingSpec, gpu: GpuSpec = FP8_GPU) -> Instance:
    """One host with such GPUs."""
    one = cluster(1)
    nodes = tuple(replace(node, gpu=gpu) for node in one.nodes)
    return replace(instance(one, LLAMA_8B), cluster=replace(one, nodes=nodes), training=training)


def test_formats() -> None:
    """Only projections are in fp8, at its own peak and share; results keep the training's format."""
    stack = replace(DEFAULT_STACK, best_matmul=0.5, best_matmul_fp8=0.25)
    wide, narrow = plain_format(FP8_GPU, NARROW, stack), linear_format(FP8_GPU, NARROW, stack)
    assert (wide.flops_per_s, wide.operand_bytes, wide.result_bytes) == (156 * TFLOP, 2, 2)
    assert (narrow.flops_per_s, narrow.operand_bytes, narrow.result_bytes) == (156 * TFLOP, 1, 2)
    assert linear_format(FP8_GPU, PLAIN, stack) == wide


def test_a_gpu_without_fp8() -> None:
    """One message that says what it has."""
    with pytest.raises(InputError, match="fp8: is not a format of a100-80gb, which has bf16, fp16, fp32"):
        linear_format(A100_80, NARROW, DEFAULT_STACK)


def test_a_thin_product_in_fp8_reads_half() -> None:
    """Bound by memory: one byte for each operand, two for the result."""
    m, n, k = 16, 8192, 8192
    time_s = matmul_time_s(
        m, n, k, form=linear_format(FP8_GPU, NARROW, DEFAULT_STACK), gpu=FP8_GPU, rates=DEFAULT_STACK
    )
    assert time_s == pytest.approx((m * k + k * n + 2 * m * n) / MEMORY + DEFAULT_STACK.kernel_s)


def test_a_large_product_in_fp8_takes_half() -> None:
    """Bound by compute: twice the peak."""
    stack = replace(DEFAULT_STACK, kernel_s=0.0)
    wide, narrow = (
        matmul_time_s(8192, 8192, 8192, form=form, gpu=FP8_GPU, rates=stack)
        for form in (plain_format(FP8_GPU, NARROW, stack), linear_format(FP8_GPU, NARROW, stack))
    )
    assert narrow == pytest.approx(wide / 2)


def test_casts_of_a_layer_by_hand() -> None:
    """
    Products so fast that nothing is left but what streams: fp8 adds the casts of inputs and of gradients.

    A Llama layer of width 4096, 1024 for keys and values, 14336 in the MLP, one rank: forward the inputs of the second
    projection and of the second MLP product (norms write fp8 themselves), backward what all four products put out.
    """
    fast = replace(FP8_GPU, peak_flops=dict.fromkeys(FP8_GPU.peak_flops, 1e30))
    stack = replace(DEFAULT_STACK, kernel_s=0.0)
    shape, tokens = config(num_layers=32), PLAIN.seq_length

    def operands(operand: int) -> float:
        """Bytes that the four products move, for what a pass with one product each takes."""
        shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
        return sum(operand * (tokens * k + k * n) + 2 * tokens * n for n, k in shapes) / MEMORY

    wide, narrow = (layer_times_s(job(one, fast), shape, fast, stack) for one in (PLAIN, NARROW))
    casts = [4 * tokens * width / MEMORY for width in (4096 + 14336, 6144 + 4096 + 28672 + 4096)]
    saved = operands(2) - operands(1)
    assert narrow[0] - wide[0] == pytest.approx(casts[0] - saved, rel=1e-6)
    assert narrow[1] - wide[1] == pytest.approx(casts[1] - 2 * saved, rel=1e-6)


def test_norms_that_are_not_fused_leave_two_more_casts() -> None:
    """The inputs of the first projection and of the MLP, width 4096 each."""
    shape, stack = config(num_layers=32), replace(DEFAULT_STACK, kernel_s=0.0)
    unfused = {
        fp8: layer_times_s(job(replace(one, fused_norm=False)), shape, FP8_GPU, stack)[0]
        - layer_times_s(job(one), shape, FP8_GPU, stack)[0]
        for fp8, one in ((False, PLAIN), (True, NARROW))
    }
    assert unfused[True] - unfused[False] == pytest.approx(4 * PLAIN.seq_length * 2 * 4096 / MEMORY, rel=1e-6)


def test_weights_are_cast_once_an_iteration() -> None:
    """Four bytes for each parameter of the layers' matrices on a rank, whatever the replicas share of the optimizer."""
    for dp in (1, 4):
        shape = config(dp=dp, num_layers=32, use_distributed_optimizer=dp > 1)
        wide, narrow = (optimizer_time_s(job(one), shape, FP8_GPU) for one in (PLAIN, NARROW))
        assert narrow - wide == pytest.approx(4 * 32 * LLAMA_8B.sharded_layer_parameters / MEMORY, rel=1e-6)


def test_nothing_is_cast_in_other_formats() -> None:
    """Zero seconds."""
    assert cast_s(1e9, plain_format(FP8_GPU, PLAIN, DEFAULT_STACK), FP8_GPU, DEFAULT_STACK) == 0.0


def test_fp8_pays_for_large_layers_only() -> None:
    """Casts eat what products gain where they are small; random widths, never more than twice as fast."""
    rng = np.random.default_rng(0)
    gains = []
    for width in sorted(int(16 * size) for size in rng.integers(16, 1024, 20)):
        model = replace(LLAMA_8B, hidden_size=128 * max(1, width // 128), ffn_hidden_size=4 * width)
        wide, narrow = (
            sum(layer_times_s(replace(job(one), model=model), config(num_layers=32), FP8_GPU))
            for one in (PLAIN, NARROW)
        )
        gains.append(wide / narrow)
    assert max(gains) < 2.0
    assert gains[0] < gains[-1]
