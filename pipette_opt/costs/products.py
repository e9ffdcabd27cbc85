"""One matrix product on one GPU."""

from pipette_opt.specs import GpuSpec, StackSpec, TrainingSpec
from pipette_opt.units import ceil_div


def peak_flops(gpu: GpuSpec, training: TrainingSpec) -> float:
    """Dense peak in the training's precision; 16-bit formats stand in for each other, FLOP/s."""
    for precision in (training.precision, "fp16" if training.precision == "bf16" else "bf16"):
        if precision in gpu.peak_flops:
            return gpu.peak_flops[precision]
    return gpu.peak_flops["fp32"]


def matmul_time_s(
    m: int,
    n: int,
    k: int,
    *,
    peak: float,
    gpu: GpuSpec,
    element_bytes: int,
    rates: StackSpec,
    count: int = 1,
    result_bytes: int | None = None,
) -> float:
    """
    One product of shapes (m, k) and (k, n), or ``count`` of them in one launch (a grouped product), in seconds.

    The tiles of all products of a group share the chip's waves. ``result_bytes``: what an element of the result moves,
    where it is not written once in the operands' format.
    """
    height = min(rates.tile, max(rates.smallest_tile, 1 << (m - 1).bit_length()))
    tiles = count * ceil_div(m, height) * ceil_div(n, rates.tile)
    inside = count * m * n / (tiles * height * rates.tile)
    wave = tiles / (ceil_div(tiles, rates.num_tiles_at_once) * rates.num_tiles_at_once)
    inner = k / (k + rates.inner_half)
    compute = 2.0 * count * m * n * k / (peak * rates.best_matmul * inside * wave * inner)
    result = element_bytes if result_bytes is None else result_bytes
    moved = count * (element_bytes * (m * k + k * n) + result * m * n)
    return max(compute, moved / (gpu.memory_bytes_per_s * rates.streaming)) + rates.kernel_s
