"""One matrix product on one GPU, and the number formats of products."""

from dataclasses import dataclass

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import ceil_div
from pipette_opt.specs import GpuSpec, StackSpec, TrainingSpec

FP8 = "fp8"
"""Name of the peak in the catalogue."""

CAST_BYTES = 4
"""
Per element that is cast to fp8: two bytes read, one written by rows and one by columns, since one product needs the
tensor as it is and another its transpose (Transformer Engine's quantisers, ``cast_transpose``).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductFormat:
    """
    How products are computed.

    Parameters
    ----------
    flops_per_s
        What a large product attains, FLOP/s.
    operand_bytes, result_bytes
        One element of the operands, and of the result.
    """

    flops_per_s: float
    operand_bytes: int
    result_bytes: int

    @property
    def is_fp8(self) -> bool:
        """Whether operands are cast first."""
        return self.operand_bytes == 1


def peak_flops(gpu: GpuSpec, training: TrainingSpec) -> float:
    """Dense peak in the training's precision; 16-bit formats stand in for each other, FLOP/s."""
    for precision in (training.precision, "fp16" if training.precision == "bf16" else "bf16"):
        if precision in gpu.peak_flops:
            return gpu.peak_flops[precision]
    return gpu.peak_flops["fp32"]


def plain_format(gpu: GpuSpec, training: TrainingSpec, rates: StackSpec) -> ProductFormat:
    """Of the output head, the router and attention that is not fused: the training's precision."""
    element = training.parameter_bytes
    rate = peak_flops(gpu, training) * rates.best_matmul
    return ProductFormat(flops_per_s=rate, operand_bytes=element, result_bytes=element)


def linear_format(gpu: GpuSpec, training: TrainingSpec, rates: StackSpec) -> ProductFormat:
    """
    Of projections, MLPs and experts: operands in fp8 where the training has them so, results in its precision.

    Raises
    ------
    InputError
        For fp8 on a GPU that has no such products.
    """
    if not training.fp8:
        return plain_format(gpu, training, rates)
    if FP8 not in gpu.peak_flops:
        raise InputError(FP8, f"is not a format of {gpu.name}, which has {', '.join(sorted(gpu.peak_flops))}.")
    rate = gpu.peak_flops[FP8] * rates.best_matmul_fp8
    return ProductFormat(flops_per_s=rate, operand_bytes=1, result_bytes=training.parameter_bytes)


def matmul_time_s(
    m: int,
    n: int,
    k: int,
    *,
    form: ProductFormat,
    gpu: GpuSpec,
    rates: StackSpec,
    count: int = 1,
    result_bytes: int | None = None,
) -> float:
    """
    One product of shapes (m, k) and (k, n), or ``count`` of them in one launch (a grouped product), in seconds.

    The tiles of all products of a group share the chip's waves. ``result_bytes``: what an element of the result moves,
    where it is not written once in the format's.
    """
    height = min(rates.tile, max(rates.smallest_tile, 1 << (m - 1).bit_length()))
    tiles = count * ceil_div(m, height) * ceil_div(n, rates.tile)
    inside = count * m * n / (tiles * height * rates.tile)
    wave = tiles / (ceil_div(tiles, rates.num_tiles_at_once) * rates.num_tiles_at_once)
    inner = k / (k + rates.inner_half)
    compute = 2.0 * count * m * n * k / (form.flops_per_s * inside * wave * inner)
    result = form.result_bytes if result_bytes is None else result_bytes
    moved = count * (form.operand_bytes * (m * k + k * n) + result * m * n)
    return max(compute, moved / (gpu.memory_bytes_per_s * rates.streaming)) + rates.kernel_s


def cast_s(elements: float, form: ProductFormat, gpu: GpuSpec, rates: StackSpec) -> float:
    """Casting operands to fp8, seconds; nothing in other formats."""
    return CAST_BYTES * elements / (gpu.memory_bytes_per_s * rates.streaming) if form.is_fp8 else 0.0
