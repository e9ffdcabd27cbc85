"""
Rows that describe one stage of an uneven pipeline (Aceso as measured by Mist): parameters, operators, recomputation.

Operators are recomputed one by one; which, the source does not say. The largest stores are taken to go first: the
four of thirteen operators of a layer that make the attention core, then the others.
"""

import math
import re

import numpy as np

from pipette_opt.memory.calibration import MemoryRun
from pipette_opt.memory.framework import COLUMNS
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.units import GIB

STATE_BYTES = 18.0
"""fp16 weights and gradients, fp32 copy and moments, and an fp16 copy of the gradients; the source measured 18.06."""

CORE_SHARE = 4 / 13
"""Of a layer's operators, those of the attention core."""

CORE_BYTES = 3.0
"""Per attention score, at least: the dropped-out probabilities and the mask."""

NEEDED = ("params_on_rank", "stage_ops", "stage_layers_est", "stage_recompute_ops", "stage_gpus", "stage")


def stage_row_memory(run: MeasuredRun) -> MemoryRun | None:
    """What is known of such a row; ``None`` for any other row."""
    numbers = {name: _number(run.extra.get(name, "")) for name in NEEDED}
    known = (run.gpu, run.seq_len, run.hidden, run.heads, run.mbs, run.pp)
    if any(value is None for value in numbers.values()) or any(value is None for value in known):
        return None
    assert run.gpu is not None
    assert run.seq_len is not None
    assert run.hidden is not None
    assert run.heads is not None
    assert run.mbs is not None
    assert run.pp is not None
    value = {name: number for name, number in numbers.items() if number is not None}
    tensor = _tensor_ranks(run, value["stage_gpus"])
    passes = value["stage_layers_est"] * max(run.pp - value["stage"], 1)
    again = value["stage_recompute_ops"] / max(value["stage_ops"], 1)
    stored_core = max(1 - again / CORE_SHARE, 0.0)
    stored_rest = 1 - max(again - CORE_SHARE, 0.0) / (1 - CORE_SHARE)
    tokens = run.seq_len * run.mbs
    scores = run.heads / tensor * run.seq_len * tokens
    outside = tokens * run.hidden * (10 + 24 / tensor)
    state = STATE_BYTES * value["params_on_rank"]
    weights = {
        "counted": state + passes * (stored_core * CORE_BYTES * scores + stored_rest * outside),
        "base_gib": float(GIB),
        "activations": passes * stored_rest * outside,
        "score_bytes": passes * stored_core * scores,
        "gathered_per_layer": passes * (1 - stored_rest) * 2 * tokens * run.hidden,
    }
    columns = np.array([[weights.get(name, 0.0) for name in COLUMNS]]) / GIB
    return MemoryRun(
        columns=columns,
        measured_rows=np.array([0]),
        capacity_gib=run.gpu.gpu.memory_bytes / GIB,
        peak_gib=None if run.peak_mem_bytes is None else run.peak_mem_bytes / GIB,
        ran_out=run.oom,
        group=f"{run.model} pp{run.pp}",
        num_gpus=run.num_gpus,
        formula_gib=(float(columns[0, 0]), float(columns[0, 0])),
    )


def _tensor_ranks(run: MeasuredRun, gpus: float) -> float:
    """Of most operators of the stage: ``2x33`` says two ranks for 33; else all GPUs of the stage."""
    parts = re.findall(r"(\d+)x(\d+)", run.extra.get("stage_tp_ops", ""))
    return float(max(parts, key=lambda part: int(part[1]))[0]) if parts else gpus


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
