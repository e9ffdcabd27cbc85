"""Time of a matrix product on one GPU, and the number formats of products."""

from dataclasses import dataclass
from typing import NamedTuple

from pipette_opt.base.errors import InputError
from pipette_opt.layers.adapters import Adapters
from pipette_opt.layers.branch import Product
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import micro_batch_tokens
from pipette_opt.specs.efficiency import ProductLaw

SUMMED_RATE = 0.93
"""
Rate of a product that is added to fp32 sums, relative to an equal product that is written in 16 bits.

Large weight gradients and forward products in Megatron-LM attain 0.71 and 0.75 of the peak on A100 (0.95) and 0.454 and
0.50 on B200 (0.91): SimuMax's operator profiles, github.com/MooreThreads/SimuMax, ``configs/system``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductFormat:
    """
    Number format and rate of matrix products.

    Parameters
    ----------
    flops_per_s
        Rate of a very large product, FLOP/s.
    law
        Rate of smaller products relative to it, and their start time.
    operand_bytes, result_bytes
        Bytes of one element of the operands, and of the result.
    cast_bytes, norm_cast_bytes
        Bytes read and written to cast one element of the operands, outside norms and inside fused norms; 0 without a
        cast.
    """

    flops_per_s: float
    law: ProductLaw
    operand_bytes: float
    result_bytes: int
    cast_bytes: float = 0.0
    norm_cast_bytes: float = 0.0


def peak_flops(gpu: GpuSpec, training: TrainingSpec) -> float:
    """Return the dense peak in the training's precision, FLOP/s; fp16 and bf16 replace each other if one is unknown."""
    for precision in (training.precision, "fp16" if training.precision == "bf16" else "bf16"):
        if precision in gpu.peak_flops:
            return gpu.peak_flops[precision]
    return gpu.peak_flops["fp32"]


def plain_format(gpu: GpuSpec, training: TrainingSpec, rates: StackSpec) -> ProductFormat:
    """Return the format of the output head, the router and unfused attention: the training's precision."""
    element = training.parameter_bytes
    law = gpu.efficiency.wide
    rate = peak_flops(gpu, training) * min(1.0, law.share * rates.matmul_speed)
    return ProductFormat(flops_per_s=rate, law=law, operand_bytes=element, result_bytes=element)


def linear_format(gpu: GpuSpec, training: TrainingSpec, rates: StackSpec) -> ProductFormat:
    """
    Return the format of projections, MLPs and experts: operands as in the training's recipe, results in its precision.

    Raises
    ------
    InputError
        For a recipe whose format the GPU does not support.
    """
    recipe = training.recipe
    if recipe is None:
        return plain_format(gpu, training, rates)
    if recipe.peak not in gpu.peak_flops:
        raise InputError(
            recipe.peak, f"is not a precision of {gpu.name}, which supports {', '.join(sorted(gpu.peak_flops))}."
        )
    law = gpu.efficiency.law(recipe.law)
    return ProductFormat(
        flops_per_s=gpu.peak_flops[recipe.peak] * min(1.0, law.share * rates.matmul_speed),
        law=law,
        operand_bytes=recipe.element_bytes,
        result_bytes=training.parameter_bytes,
        cast_bytes=recipe.cast_bytes,
        norm_cast_bytes=recipe.norm_cast_bytes,
    )


def matmul_time_s(
    m: int,
    n: int,
    k: int,
    *,
    form: ProductFormat,
    gpu: GpuSpec,
    rates: StackSpec,
    count: int = 1,
    sum_bytes: int = 0,
) -> float:
    """
    Return the time of a product of shapes (m, k) and (k, n), seconds, or of ``count`` such products in one launch.

    The law is :class:`~pipette_opt.specs.efficiency.ProductLaw`; products of a launch fill the GPU together.
    ``sum_bytes``: bytes of an element of the sums to which the result is added; 0 if it is only written.
    """
    law, results = form.law, float(count * m * n)
    compute = 2.0 * results * k / form.flops_per_s * (1.0 + law.half_inner / k) * (1.0 + law.half_result / results)
    compute /= SUMMED_RATE if sum_bytes else 1.0
    result = 2 * sum_bytes if sum_bytes else form.result_bytes
    moved = count * form.operand_bytes * (m * k + k * n) + result * results
    return max(compute, moved / (gpu.memory_bytes_per_s * rates.streaming)) + law.start_s


class ProductTimes(NamedTuple):
    """Seconds of the three products of a linear layer: forward, gradient of its inputs, gradient of its weights."""

    forward_s: float
    inputs_s: float
    weights_s: float

    @property
    def passes_s(self) -> tuple[float, float]:
        """Seconds of the forward and of the backward pass."""
        return self.forward_s, self.inputs_s + self.weights_s


def product_times_s(
    m: int,
    n: int,
    k: int,
    *,
    form: ProductFormat,
    gpu: GpuSpec,
    rates: StackSpec,
    gradient_bytes: int,
    count: int = 1,
) -> ProductTimes:
    """
    Return the times of ``count`` linear layers with ``m`` tokens, from width ``k`` to ``n``, seconds.

    The product for the inputs' gradients has the inner size ``n``, and the one for the weights' has the number of
    tokens. The latter is added to the sum of earlier micro-batches, read and written in the format of gradients
    (Megatron-Core's ``gradient_accumulation_fusion``).
    """
    return ProductTimes(
        forward_s=matmul_time_s(m, n, k, form=form, gpu=gpu, rates=rates, count=count),
        inputs_s=matmul_time_s(m, k, n, form=form, gpu=gpu, rates=rates, count=count),
        weights_s=matmul_time_s(n, k, m, form=form, gpu=gpu, rates=rates, count=count, sum_bytes=gradient_bytes),
    )


def frozen_s(
    times: ProductTimes, elements: float, adapters: Adapters | None, gpu: GpuSpec, rates: StackSpec
) -> ProductTimes:
    """
    Return the times of a product with a matrix that is frozen, if the model has adapters; unchanged without.

    Nothing needs its weights' gradient. A matrix of ``elements`` weights in fewer bits is restored to 16 bits before
    each of the other two products: read as it is stored, and written.
    """
    if adapters is None:
        return times
    moved = elements * (adapters.base_bytes + 2.0) if adapters.is_quantised else 0.0
    restored = moved / (gpu.memory_bytes_per_s * rates.streaming)
    return ProductTimes(times.forward_s + restored, times.inputs_s + restored, 0.0)


def product_s(
    product: Product,
    adapters: Adapters | None,
    training: TrainingSpec,
    config: ParallelConfig,
    gpu: GpuSpec,
    rates: StackSpec,
) -> ProductTimes:
    """Return the times of a branch's product with a micro-batch on one tensor rank, seconds; frozen with adapters."""
    tp, tokens = config.tensor_model_parallel_size, micro_batch_tokens(training, config)
    tokens //= tp if product.split == "whole" and config.sequence_parallel else 1
    form = linear_format(gpu, training, rates)
    n, k = product.on_rank(tp)
    times = product_times_s(tokens, n, k, form=form, gpu=gpu, rates=rates, gradient_bytes=training.gradient_bytes)
    return frozen_s(times, float(n * k), adapters, gpu, rates)


def cast_s(elements: float, form: ProductFormat, gpu: GpuSpec, rates: StackSpec, *, of_norms: float = 0.0) -> float:
    """
    Return the time of casting ``elements`` operands to the format of a product, seconds.

    ``of_norms``: number of further elements that fused norms cast.
    """
    moved = form.cast_bytes * elements + form.norm_cast_bytes * of_norms
    return moved / (gpu.memory_bytes_per_s * rates.streaming)
