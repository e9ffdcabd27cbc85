"""
Fit of the constants in ``specs/efficiency.py`` to measured kernels: ``python -m benchmarks.silicon.fit``.

It prints the ``measured`` entries of ``data/gpus.yaml``. Errors are relative, with a soft loss, so that badly chosen
kernels of a library have little weight. Memory bandwidth is the shipped stack's fraction of the peak.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import yaml
from scipy.optimize import least_squares

from benchmarks.silicon.tables import (
    BLOCK,
    ELEMENT_BYTES,
    FP4,
    GPUS,
    NARROW,
    PRODUCTS,
    WIDE,
    attention,
    hardware,
    products,
)
from pipette_opt.base.types import FloatArray
from pipette_opt.specs import DEFAULT_STACK
from pipette_opt.specs.efficiency import AttentionLaw, ProductLaw

TYPICAL_ERROR = 0.05
"""Relative error at which the loss turns from squares to absolute values: the difference between two campaigns."""

FORMATS = (("wide", WIDE), ("narrow", NARROW), ("block", BLOCK), ("fp4", FP4))
"""Names of the formats in the catalogue, and in the tables."""

SMALLEST, LARGEST = 1e-9, 1e9
"""Bounds of every constant, in its own unit."""


def fit_products(rows: pd.DataFrame, gpu: str, dtype: str) -> ProductLaw:
    """
    Return the fitted law of matrix products in one format.

    Rows in fp8 include a cast of the activations, by kernels that training does not run. Their bytes per element are
    fitted too, and discarded.
    """
    return _product_law(_fitted(lambda x: product_s(x, rows, gpu, dtype), rows, [0.8, 100.0, 1e5, 8e-6, 5.0]))


def fit_cast_bytes(rows: pd.DataFrame, gpu: str, dtype: str, law: ProductLaw) -> float:
    """Return the bytes that casts to fp8 move per element of the activations, if products follow the given law."""
    known = [law.share, law.half_inner, law.half_result, law.start_s]
    return float(_fitted(lambda x: product_s(np.array([*known, x[0]]), rows, gpu, dtype), rows, [5.0])[0])


def fit_attention(rows: pd.DataFrame, gpu: str) -> AttentionLaw:
    """Return the fitted law of attention on one GPU, with a share for each head size of the rows."""
    sizes = sorted({int(size) for size in rows.head_dim})
    start = [100.0, 2e-5, *[0.5] * len(sizes)]
    found = _fitted(lambda x: attention_s(x, rows, gpu, sizes), rows, start)
    shares = tuple(_round(share, 3) for share in found[2:])
    half_seq, start_s = _rounded_half(found[0]), _round(found[1], 2)
    return AttentionLaw(head_sizes=tuple(sizes), shares=shares, half_seq=half_seq, start_s=start_s)


def product_s(x: FloatArray, rows: pd.DataFrame, gpu: str, dtype: str) -> FloatArray:
    """Return the seconds of products; ``x`` is share, half_inner, half_result, start_s, and cast bytes per element."""
    m, n, k = (rows[name].to_numpy(float) for name in ("m", "n", "k"))
    chip, element = hardware(gpu), ELEMENT_BYTES[dtype]
    memory, peak = chip.bytes_per_s * DEFAULT_STACK.streaming, chip.peak(dtype)
    compute = 2.0 * m * n * k / (peak * x[0]) * (1.0 + x[1] / k) * (1.0 + x[2] / (m * n))
    moved = element * (m * k + k * n) + 2.0 * m * n
    cast = 0.0 if dtype == WIDE else x[4] * m * k / memory
    time_s: FloatArray = np.maximum(compute, moved / memory) + x[3] + cast
    return time_s


def attention_s(x: FloatArray, rows: pd.DataFrame, gpu: str, sizes: list[int]) -> FloatArray:
    """Return the seconds of attention; ``x`` is half_seq, start_s, and the share of each head size."""
    names = ("batch", "seq", "heads", "kv_heads", "head_dim")
    batch, length, heads, keys, size = (rows[name].to_numpy(float) for name in names)
    chip = hardware(gpu)
    share = x[2:][np.searchsorted(sizes, size)]
    compute = 2.0 * batch * heads * size * length**2 / (chip.wide * share) * (1.0 + x[0] / length)
    moved = 4.0 * batch * length * size * (heads + keys)
    time_s: FloatArray = x[1] + compute + moved / (chip.bytes_per_s * DEFAULT_STACK.streaming)
    return time_s


def entries() -> dict[str, dict[str, object]]:
    """Return the ``measured`` entries of the catalogue."""
    found = {}
    for gpu in GPUS:
        known = [(name, dtype) for name, dtype in FORMATS if (gpu, dtype) in PRODUCTS]
        entry: dict[str, object] = {
            name: _written(fit_products(products(gpu, dtype), gpu, dtype)) for name, dtype in known
        }
        if PRODUCTS[gpu, WIDE][1]:
            bursts = {name: fit_products(products(gpu, dtype, sustained=0), gpu, dtype) for name, dtype in known}
            entry["burst_shares"] = {name: law.share for name, law in bursts.items()}
        law = fit_attention(attention(gpu), gpu)
        entry["attention"] = {
            "shares": dict(zip(law.head_sizes, law.shares, strict=True)),
            "half_seq": law.half_seq,
            "start_us": _round(law.start_s * 1e6, 2),
        }  # and flash2, which is published
        found[gpu] = entry
    return found


def _fitted(seconds: Callable[[FloatArray], FloatArray], rows: pd.DataFrame, start: list[float]) -> FloatArray:
    measured = np.log(rows.latency_us.to_numpy(float) * 1e-6)
    found = least_squares(
        lambda x: np.log(seconds(np.exp(x))) - measured,
        np.log(start),
        bounds=(np.log(SMALLEST), np.log(LARGEST)),
        loss="soft_l1",
        f_scale=TYPICAL_ERROR,
    )
    constants: FloatArray = np.exp(found.x)
    return constants


def _product_law(x: FloatArray) -> ProductLaw:
    return ProductLaw(
        share=_round(x[0], 3),
        half_inner=_rounded_half(x[1]),
        half_result=_rounded_half(x[2]),
        start_s=_round(x[3], 2),
    )


def _rounded_half(value: float) -> float:
    """Return the value with two digits, or 0 for a value below 1, which means that the loss does not exist."""
    return 0.0 if value < 1.0 else _round(value, 2)


def _written(law: ProductLaw) -> dict[str, float]:
    return {
        "share": law.share,
        "half_inner": law.half_inner,
        "half_result": law.half_result,
        "start_us": _round(law.start_s * 1e6, 2),
    }


def _round(value: float, digits: int) -> float:
    """Return the value with a few digits, the precision of a fit."""
    return float(f"{value:.{digits}g}")


if __name__ == "__main__":
    print(yaml.safe_dump(entries(), sort_keys=False, width=120, default_flow_style=None))
