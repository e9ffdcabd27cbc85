"""Matrix products and their formats, by hand counts."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from factories import A100_80, LLAMA_8B, make_cluster, make_config, make_job

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import TFLOP
from pipette_opt.costs.compute import layer_times_s, optimizer_time_s
from pipette_opt.costs.products import (
    SUMMED_RATE,
    cast_s,
    linear_format,
    matmul_time_s,
    plain_format,
    product_times_s,
)
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.specs import DEFAULT_STACK, GpuSpec, Instance, LayerKind, TrainingSpec
from pipette_opt.specs.efficiency import ProductLaw

WIDE = ProductLaw(share=0.8, half_inner=64, half_result=2**16, start_s=2e-6)
NARROW_LAW = ProductLaw(share=0.6, half_inner=256, half_result=0, start_s=12e-6)
LAWS = replace(A100_80.efficiency, wide=WIDE, narrow=NARROW_LAW)
NO_START = replace(
    LAWS,
    wide=replace(WIDE, start_s=0),
    narrow=replace(WIDE, start_s=0),
    attention=replace(LAWS.attention, start_s=0),
)
"""Both formats alike but for the peak, and no kernel has a start."""

FP8_GPU = replace(A100_80, name="fp8-gpu", peak_flops={**A100_80.peak_flops, "fp8": 624 * TFLOP}, efficiency=LAWS)
PLAIN = TrainingSpec(global_batch_size=64, seq_length=4096)
NARROW = replace(PLAIN, fp8=True)
MEMORY = FP8_GPU.memory_bytes_per_s * DEFAULT_STACK.streaming


def job(training: TrainingSpec, gpu: GpuSpec = FP8_GPU) -> Instance:
    """One host with such GPUs."""
    one = make_cluster(1)
    nodes = tuple(replace(node, gpu=gpu) for node in one.nodes)
    return replace(make_job(one, LLAMA_8B), cluster=replace(one, nodes=nodes), training=training)


def test_formats() -> None:
    """Only projections are in fp8, at its own peak and law; results keep the training's format."""
    stack = replace(DEFAULT_STACK, matmul_speed=0.5)
    wide, narrow = plain_format(FP8_GPU, NARROW, stack), linear_format(FP8_GPU, NARROW, stack)
    assert (wide.flops_per_s, wide.operand_bytes, wide.result_bytes) == (312 * TFLOP * 0.4, 2, 2)
    assert (narrow.flops_per_s, narrow.operand_bytes, narrow.result_bytes) == (624 * TFLOP * 0.3, 1, 2)
    assert (wide.law, narrow.law) == (WIDE, NARROW_LAW)
    assert linear_format(FP8_GPU, PLAIN, stack) == wide


def test_no_stack_makes_products_faster_than_the_peak() -> None:
    """However fast it is, the peak is the limit."""
    for fast in (1.25, 1e6):
        assert plain_format(FP8_GPU, PLAIN, replace(DEFAULT_STACK, matmul_speed=fast)).flops_per_s == 312 * TFLOP


def test_a_gpu_without_fp8() -> None:
    """One message that says what it has."""
    with pytest.raises(InputError, match="fp8: is not a precision of a100-80gb, which supports bf16, fp16, fp32"):
        linear_format(A100_80, NARROW, DEFAULT_STACK)


def test_a_thin_product_in_fp8_reads_half() -> None:
    """Bound by memory: one byte for each operand, two for the result."""
    m, n, k = 16, 8192, 8192
    time_s = matmul_time_s(
        m, n, k, form=linear_format(FP8_GPU, NARROW, DEFAULT_STACK), gpu=FP8_GPU, rates=DEFAULT_STACK
    )
    assert time_s == pytest.approx((m * k + k * n + 2 * m * n) / MEMORY + NARROW_LAW.start_s)


def test_a_large_product_by_hand() -> None:
    """Bound by compute: the share of the peak, the short inner size, the few results, and the start."""
    m, n, k = 4096, 2048, 1024
    time_s = matmul_time_s(m, n, k, form=plain_format(FP8_GPU, PLAIN, DEFAULT_STACK), gpu=FP8_GPU, rates=DEFAULT_STACK)
    share = 0.8 / (1 + 64 / 1024) / (1 + 2**16 / 2**23)
    assert time_s == pytest.approx(2 * m * n * k / (312 * TFLOP * share) + 2e-6)


def test_products_of_a_group_fill_the_chip_together() -> None:
    """Eight products in one launch are faster than eight times one of them, and as fast as one eight times as high."""
    form = plain_format(FP8_GPU, PLAIN, DEFAULT_STACK)
    one, eight, high = (
        matmul_time_s(m, 2048, 8192, form=form, gpu=FP8_GPU, rates=DEFAULT_STACK, count=count)
        for m, count in ((128, 1), (128, 8), (1024, 1))
    )
    assert eight < 8 * one
    assert eight >= high


def test_weights_are_added_to_sums() -> None:
    """
    The backward has a product for the inputs, and one for the weights at the rate of sums.

    With few tokens the sums decide: fp32 is read and written, whatever the tokens.
    """
    form = plain_format(FP8_GPU, PLAIN, DEFAULT_STACK)
    one = partial(matmul_time_s, form=form, gpu=FP8_GPU, rates=DEFAULT_STACK)
    for m in (16, 8192):
        forward, backward = product_times_s(
            m, 4096, 8192, form=form, gpu=FP8_GPU, rates=DEFAULT_STACK, gradient_bytes=4
        ).passes_s
        inputs, weights = one(m, 8192, 4096), one(4096, 8192, m, sum_bytes=4)
        assert (forward, backward) == (one(m, 4096, 8192), inputs + weights)
    few = matmul_time_s(4096, 8192, 16, form=form, gpu=FP8_GPU, rates=DEFAULT_STACK, sum_bytes=4)
    assert few == pytest.approx((8 * 4096 * 8192 + 2 * 16 * (4096 + 8192)) / MEMORY + 2e-6)
    many = one(4096, 8192, 8192, sum_bytes=4) - 2e-6
    assert many == pytest.approx((one(4096, 8192, 8192) - 2e-6) / SUMMED_RATE)


def test_a_large_product_in_fp8_takes_half() -> None:
    """Bound by compute: twice the peak, if the laws are alike."""
    gpu = replace(FP8_GPU, efficiency=NO_START)
    wide, narrow = (
        matmul_time_s(8192, 8192, 8192, form=form, gpu=gpu, rates=DEFAULT_STACK)
        for form in (plain_format(gpu, NARROW, DEFAULT_STACK), linear_format(gpu, NARROW, DEFAULT_STACK))
    )
    assert narrow == pytest.approx(wide / 2)


def test_casts_of_a_layer_by_hand() -> None:
    """
    Products so fast that nothing is left but what streams: fp8 adds the casts of inputs and of gradients.

    A Llama layer of width 4096, 1024 for keys and values, 14336 in the MLP, one rank: forward the inputs of the second
    projection and of the second MLP product (norms write fp8 themselves), backward what all four products put out.
    """
    fast = replace(FP8_GPU, peak_flops=dict.fromkeys(FP8_GPU.peak_flops, 1e30), efficiency=NO_START)
    stack = replace(DEFAULT_STACK, kernel_s=0.0)
    shape, tokens = make_config(num_layers=32), PLAIN.seq_length

    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]

    def operands(operand: int) -> float:
        """What the operands of the four products take, of each forward product."""
        return sum(operand * (tokens * k + k * n) for n, k in shapes) / MEMORY

    def operands_back(operand: int) -> float:
        """The same of the two backward products of each: gradients and weights, gradients and inputs."""
        return sum(operand * (tokens * n + k * n + tokens * n + tokens * k) for n, k in shapes) / MEMORY

    wide, narrow = (layer_times_s(job(one, fast), shape, fast, stack) for one in (PLAIN, NARROW))
    casts = [4 * tokens * width / MEMORY for width in (4096 + 14336, 6144 + 4096 + 28672 + 4096)]
    assert narrow[0] - wide[0] == pytest.approx(casts[0] - operands(1), rel=1e-6)
    assert narrow[1] - wide[1] == pytest.approx(casts[1] - operands_back(1), rel=1e-6)


def test_norms_that_are_not_fused_leave_two_more_casts() -> None:
    """The inputs of the first projection and of the MLP, width 4096 each."""
    shape, stack = make_config(num_layers=32), replace(DEFAULT_STACK, kernel_s=0.0)
    unfused = {
        fp8: layer_times_s(job(replace(one, fused_norm=False)), shape, FP8_GPU, stack)[0]
        - layer_times_s(job(one), shape, FP8_GPU, stack)[0]
        for fp8, one in ((False, PLAIN), (True, NARROW))
    }
    assert unfused[True] - unfused[False] == pytest.approx(4 * PLAIN.seq_length * 2 * 4096 / MEMORY, rel=1e-6)


def test_weights_are_cast_once_an_iteration() -> None:
    """Four bytes for each parameter of the layers' matrices on a rank, whatever the replicas share of the optimizer."""
    for dp in (1, 4):
        shape = make_config(dp=dp, num_layers=32, use_distributed_optimizer=dp > 1)
        wide, narrow = (optimizer_time_s(job(one), shape, FP8_GPU) for one in (PLAIN, NARROW))
        assert narrow - wide == pytest.approx(
            4 * 32 * layer_parameters(LLAMA_8B, LayerKind()).sharded / MEMORY, rel=1e-6
        )


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
            sum(layer_times_s(replace(job(one), model=model), make_config(num_layers=32), FP8_GPU))
            for one in (PLAIN, NARROW)
        )
        gains.append(wide / narrow)
    assert max(gains) < 2.0
    assert gains[0] < gains[-1]
