"""Kernel formulas of the simulator before kernels were measured, with one share of the peak for all GPUs."""

import numpy as np
import pandas as pd

from benchmarks.silicon.tables import NARROW, hardware
from pipette_opt.base.types import FloatArray

BEST, ATTENTION, STREAMING = 0.80, 0.55, 0.80
"""Fractions of the dense peak that products and attention reach, and of the memory's bandwidth."""

TILE, SMALLEST_TILE, TILES_AT_ONCE, INNER_HALF, START_S = 128, 16, 128, 160, 4e-6
"""
Largest and smallest tile, tiles per wave, inner size at half of the rate, and start-up of every kernel in seconds.
"""

CAST_BYTES = 3.0
"""Bytes that casts to fp8 move for each element of the activations."""


def product_before_s(rows: pd.DataFrame, gpu: str, dtype: str) -> FloatArray:
    """Return the seconds of matrix products, casts included."""
    m, n, k = (rows[name].to_numpy(float) for name in ("m", "n", "k"))
    chip, narrow = hardware(gpu), dtype == NARROW
    height = np.minimum(TILE, np.maximum(SMALLEST_TILE, 2.0 ** np.ceil(np.log2(m))))
    tiles = np.ceil(m / height) * np.ceil(n / TILE)
    inside = m * n / (tiles * height * TILE)
    wave = tiles / (np.ceil(tiles / TILES_AT_ONCE) * TILES_AT_ONCE)
    compute = 2.0 * m * n * k / ((chip.narrow if narrow else chip.wide) * BEST * inside * wave * k / (k + INNER_HALF))
    memory = chip.bytes_per_s * STREAMING
    moved = (1 if narrow else 2) * (m * k + k * n) + 2.0 * m * n
    time_s: FloatArray = (
        np.maximum(compute, moved / memory) + START_S + (CAST_BYTES * m * k / memory if narrow else 0.0)
    )
    return time_s


def attention_before_s(rows: pd.DataFrame, gpu: str) -> FloatArray:
    """Return the seconds of attention."""
    names = ("batch", "seq", "heads", "head_dim")
    batch, length, heads, size = (rows[name].to_numpy(float) for name in names)
    time_s: FloatArray = 2.0 * batch * heads * size * length**2 / (hardware(gpu).wide * ATTENTION) + START_S
    return time_s
