"""
Rows that describe one stage of an uneven pipeline: Aceso as measured by Mist, and Mist's own tuned plans.

Aceso's rows have parameters, operators, recomputation. Operators are recomputed one by one; which, the source does not
say. The largest stores are taken to go first: the four of thirteen operators of a layer that make the attention core,
then the others. Mist's plans have layers, of which the first so many are recomputed whole.
"""

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.backtest.cases import run_model, run_training
from pipette_opt.memory.calibration import MemoryRun
from pipette_opt.memory.framework import COLUMNS
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.units import GIB

STATE_BYTES = 18.0
"""fp16 weights and gradients, fp32 copy and moments, and an fp16 copy of the gradients; the source measured 18.06."""

CORE_SHARE = 4 / 13
"""Of a layer's operators, those of the attention core."""

CORE_BYTES = 3.0
"""Per attention score, at least: the dropped-out probabilities and the mask."""

TUNED = re.compile(r"full on (\d+) of (\d+) layers")
OFFLOADED = re.compile(r"offload W,G,O,A \[([^\]]*)\]")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedStage:
    """A stage of one of Mist's plans, as a configuration whose other stages share the other layers."""

    model: ModelSpec
    training: TrainingSpec
    config: ParallelConfig
    stage: int


def tuned_stage(run: MeasuredRun) -> TunedStage | None:
    """
    The stage of such a row; ``None`` for any other row, and where states are offloaded to the host.

    Mist trains without dropout, as its peaks show.
    """
    found, stage = TUNED.fullmatch(run.recompute_text), _number(run.extra.get("stage", ""))
    needed = (run.num_layers, run.hidden, run.heads, run.seq_len, run.gbs, run.mbs, run.tp, run.pp, run.dp)
    offloaded = OFFLOADED.search(run.notes)
    if found is None or stage is None or any(value is None for value in needed) or offloaded is None:
        return None
    if any(_number(part) != 0 for part in offloaded[1].split(",")):
        return None
    again, layers = int(found[1]), int(found[2])
    dp = run.dp or 1
    try:
        config = ParallelConfig(
            tensor_model_parallel_size=run.tp or 1,
            pipeline_model_parallel_size=run.pp or 1,
            data_parallel_size=dp,
            micro_batch_size=run.mbs or 1,
            layers_per_stage=_with_stage(run.num_layers or 0, run.pp or 1, int(stage), layers),
            use_distributed_optimizer=bool(run.zero_stage) and dp > 1,
            recompute_granularity="full" if again else None,
            recompute_method="block" if again else "uniform",
            recompute_num_layers=max(again, 1),
        )
        model = replace(run_model(run), hidden_dropout=0.0, attention_dropout=0.0)
        return TunedStage(model=model, training=run_training(run), config=config, stage=int(stage))
    except ValueError:
        return None


def _with_stage(num_layers: int, pp: int, stage: int, layers: int) -> tuple[int, ...]:
    """That many layers in that stage, the others spread evenly."""
    if pp == 1:
        return (layers,)
    base, extra = divmod(num_layers - layers, pp - 1)
    others = [base + (index < extra) for index in range(pp - 1)]
    return (*others[:stage], layers, *others[stage:])
