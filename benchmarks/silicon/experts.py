"""Grouped experts: formulas of products, streams, and scattering of tokens, whose constant is fitted here."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from benchmarks.silicon.tables import EXPERTS, NARROW, experts, hardware
from pipette_opt.base.types import FloatArray
from pipette_opt.costs.expert_layer import SCATTERED_PER_S
from pipette_opt.read.gpus import measured_gpus
from pipette_opt.specs import DEFAULT_STACK

Table = dict[tuple[str, str], pd.DataFrame]

TYPICAL_ERROR = 0.1
"""Relative error at which the loss turns from squares to absolute values. Chosen."""


def expert_lines() -> Iterator[str]:
    """Yield the lines of the page's section on experts: errors by GPU and format."""
    rows = {key: experts(*key) for key in sorted(EXPERTS)}
    yield "## Routed experts of one GPU, balanced, 2,048 tokens and more, forward\n"
    yield "Sorting, two grouped products, the activation, the sum. Grouped products follow the law of single ones in"
    yield "bursts, with no constant of their own. A copy of a token costs its bytes, and beside them instructions at a"
    yield f"rate that all GPUs share: {SCATTERED_PER_S:.2g} elements a second shipped, {fit_scattered(rows):.2g} by"
    yield "this fit. Without: as if there were no such rate. GPU left out: the rate is fitted to the other GPUs.\n"
    yield "| GPU, format | rows | without | shipped | GPU left out |"
    yield "|---|---|---|---|---|"
    for (gpu, dtype), its in rows.items():
        unseen = fit_scattered({key: row for key, row in rows.items() if key[0] != gpu})
        cells = [_error(its, experts_s(its, gpu, dtype, rate)) for rate in (np.inf, SCATTERED_PER_S, unseen)]
        yield f"| {gpu} {dtype} | {len(its)} | {' | '.join(cells)} |"
    yield "\nOf TensorRT-LLM's CUTLASS kernels. A100 has an inference kernel of another kind only."


def fit_scattered(rows: Table) -> float:
    """Return the elements of token copies per second that fit these tables best."""

    def residuals(x: FloatArray) -> FloatArray:
        found = [
            np.log(experts_s(its, *key, float(np.exp(x[0]))) / (its.latency_us.to_numpy(float) * 1e-6))
            for key, its in rows.items()
        ]
        return np.concatenate(found)

    return float(np.exp(least_squares(residuals, [np.log(1e12)], loss="soft_l1", f_scale=TYPICAL_ERROR).x[0]))


def experts_s(rows: pd.DataFrame, gpu: str, dtype: str, scattered_per_s: float) -> FloatArray:
    """Return the seconds of all kernels of one rank's experts, for each row."""
    names = ("num_tokens", "hidden", "topk", "num_experts", "tp")
    tokens, hidden, topk, count, tp = (rows[name].to_numpy(float) for name in names)
    width = rows.inter.to_numpy(float) / tp
    chip, element = hardware(gpu), 1 if dtype == NARROW else 2
    laws = measured_gpus()[gpu].burst
    law, peak = (laws.narrow, chip.narrow) if dtype == NARROW else (laws.wide, chip.wide)
    memory = chip.bytes_per_s * DEFAULT_STACK.streaming
    copies = tokens * topk

    def product_s(n: FloatArray, k: FloatArray) -> FloatArray:
        compute = 2.0 * copies * n * k / (peak * law.share)
        compute = compute * (1.0 + law.half_inner / k) * (1.0 + law.half_result / (copies * n))
        moved = element * (copies * k + count * k * n) + 2.0 * copies * n
        time_s: FloatArray = np.maximum(compute, moved / memory) + law.start_s
        return time_s

    sorted_bytes = hidden * (4.0 * tokens + (2.0 + element) * copies)
    activation = copies * width * (4.0 + element)
    scattered = copies * hidden / scattered_per_s
    time_s: FloatArray = product_s(2.0 * width, hidden) + product_s(hidden, width) + scattered
    return time_s + (sorted_bytes + activation) / memory


def _error(rows: pd.DataFrame, seconds: FloatArray) -> str:
    wrong = np.abs(seconds / (rows.latency_us.to_numpy(float) * 1e-6) - 1.0)
    return f"{100 * np.median(wrong):.1f} / {100 * np.quantile(wrong, 0.9):.0f}"
