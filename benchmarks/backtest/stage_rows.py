"""
Rows that describe one stage of an uneven pipeline: Aceso's stages measured by Mist, and Mist's own tuned plans.

Aceso's rows have parameters, operators and recomputation. A layer has thirteen operators, eight of attention and five
of the MLP. So operators and parameters together give the number of each in a stage, halves of layers included.
Operators are recomputed one by one; the source does not say which. The largest stored tensors are assumed to be
recomputed first: the attention core, then tensors that tensor ranks share, then tensors that each rank has whole. This
order, and that a stage recomputes one layer at a time, were chosen on the L4 rows, each model predicted from the
others. Mist's plans have layers, of which the first ones are recomputed whole.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import run_training
from pipette_opt.calibrate.memory import (
    VERSION_COLUMN,
    known_memory,
    out_of_memory,
    shipped_predictor,
    usable_for_memory,
)
from pipette_opt.calibrate.memory_runs import MemoryRun
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.regressors import link_share
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.memory_constants import MOMENTS, REGRESSORS

PASS_STATE_BYTES, STEP_STATE_BYTES = 16.0, 18.0
"""
Bytes per parameter during passes and in the step: fp16 weights and gradients, fp32 copy and moments.

In the step, gradients are fp32. The source measured 18.06 between iterations. Stages of one plan that differ only in
passes in flight show that 2 bytes of these are free while passes run (L4 rows), as if gradients are set to none before
an iteration.
"""

ATTENTION_OPERATORS, MLP_OPERATORS, CORE_OPERATORS = 8, 5, 4
"""
Number of operators per layer in attention (norm, query-key-value, scores, softmax, dropout, context, dense, dropout),
in the MLP (norm, up, GELU, down, dropout), and in the attention core.
"""

SPLIT_SHARE = 4 / 9
"""Fraction of a layer's operators outside the core whose stored tensors are divided among tensor ranks."""

CORE_BYTES, SCORE_BYTES = 3.0, 5.0
"""Bytes per attention score of dropped-out probabilities and mask; ``SCORE_BYTES`` also has the softmax's output."""

VOCAB_SIZE = 50304
"""Default vocabulary: GPT-2's, padded to 128; parameters of first stages agree."""

TUNED = re.compile(r"full on (\d+) of (\d+) layers")
OFFLOADED = re.compile(r"offload W,G,O,A \[([^\]]*)\]")

NEEDED = ("params_on_rank", "stage_ops", "stage_layers_est", "stage_recompute_ops", "stage_gpus", "stage")


def known_rows(runs: Iterable[MeasuredRun], stack: StackSpec) -> list[tuple[MeasuredRun, MemoryRun]]:
    """
    Return all rows that a fit may use, with their memory.

    Rows of single stages are computed here, rows of whole jobs as in the product.
    """
    chosen = [run for run in runs if usable_for_memory(run) and (run.peak_mem_bytes is not None or run.oom is not None)]
    pairs = [(run, stage_row_memory(run) or tuned_row_memory(run)) for run in chosen]
    stages = [(run, memory) for run, memory in pairs if memory is not None]
    jobs = known_memory([run for run, memory in pairs if memory is None], stack)
    return sorted([*stages, *jobs], key=lambda pair: pair[0].row)


def stage_row_memory(run: MeasuredRun) -> MemoryRun | None:
    """Return the memory of one of Aceso's rows; ``None`` for any other row."""
    value = {name: number for name in NEEDED if (number := _number(run.cells.get(name, ""))) is not None}
    model, length, micro_batch = run.launch.model, run.launch.seq_length, run.launch.micro_batch_size
    if len(value) < len(NEEDED) or run.gpu is None or model is None or length is None or micro_batch is None:
        return None
    pp, hidden = run.launch.pipeline_model_parallel_size, model.hidden_size
    tensor = _tensor_ranks(run, value["stage_gpus"])
    attentions, mlps = _halves(run, model, value, tensor)
    passes = max(pp - value["stage"], 1)
    again = value["stage_recompute_ops"]
    core = CORE_OPERATORS * attentions
    beyond = min(max(again - core, 0.0) / max(value["stage_ops"] - core, 1.0), 1.0)
    stored_core = max(1 - again / core, 0.0) if core else 0.0
    stored_split = max(1 - beyond / SPLIT_SHARE, 0.0)
    stored_whole = 1 - max(beyond - SPLIT_SHARE, 0.0) / (1 - SPLIT_SHARE)
    tokens = length * micro_batch
    scores = model.num_attention_heads / tensor * length * tokens
    outside = tokens * hidden * (10 + 24 / tensor)
    stored = passes * tokens * hidden
    stored *= stored_split * (8 * attentions + 16 * mlps) / tensor + stored_whole * 5 * (attentions + mlps)
    brought_back = (again > 0) * (outside + SCORE_BYTES * scores)
    stored_scores = passes * attentions * stored_core * scores
    groups = sum(size > 1 for size in (tensor, value["stage_gpus"] / tensor, pp))
    link = link_share(run.gpu.intra_node_bytes_per_s)
    held = {"base_gib": float(GIB), "group_gib": GIB * link * float(groups)}
    weights = held | {
        "counted": PASS_STATE_BYTES * value["params_on_rank"] + stored + CORE_BYTES * stored_scores + brought_back,
        "activations": stored,
        "score_bytes": stored_scores,
        "gathered_per_layer": passes * attentions * (1 - stored_split) * 2 * tokens * hidden,
    }
    step = held | {"counted": STEP_STATE_BYTES * value["params_on_rank"]}
    regressors = np.array([[moment.get(name, 0.0) for name in REGRESSORS] for moment in (weights, step)]) / GIB
    formula = float(regressors[:, REGRESSORS.index("counted")].max())
    return MemoryRun(
        regressors=regressors,
        measured_rows=np.arange(MOMENTS),
        capacity_gib=run.gpu.gpu.memory_bytes / GIB,
        peak_gib=None if run.peak_mem_bytes is None else run.peak_mem_bytes / GIB,
        ran_out=run.oom,
        group=f"{run.model} pp{pp}",
        num_gpus=run.num_gpus,
        formula_gib=(formula, formula),
    )


def _halves(run: MeasuredRun, model: ModelSpec, value: Mapping[str, float], tensor: float) -> tuple[float, float]:
    """
    Return the number of attentions and MLPs of a stage, from its operators and parameters.

    An attention has 8 operators and 4 hidden sizes squared of parameters, an MLP 5 and 8. The first stage also has the
    embedding, the last stage a norm and its own output table. A stage may end within a layer, so attentions are rounded
    to whole numbers.
    """
    hidden, stages = model.hidden_size, run.launch.pipeline_model_parallel_size
    is_first, is_last = value["stage"] == 0, value["stage"] == stages - 1
    vocab = model.vocab_size if run.cells.get("vocab") else VOCAB_SIZE
    tables = vocab * (is_first + is_last) + (run.launch.seq_length or 0) * is_first
    quarters = max(value["params_on_rank"] * tensor - tables * hidden, 0.0) / (4 * hidden**2)
    operators = value["stage_ops"] - is_first - 2 * is_last
    per_mlp = MLP_OPERATORS / 2
    attentions = max(round((operators - per_mlp * quarters) / (ATTENTION_OPERATORS - per_mlp)), 0)
    return attentions, max((quarters - attentions) / 2, 0.0)


def _tensor_ranks(run: MeasuredRun, gpus: float) -> float:
    """Return the tensor ranks of most operators of the stage: ``2x33`` is two ranks for 33; by default all GPUs."""
    parts = re.findall(r"(?<!\d)(\d+)x(\d+)", run.cells.get("stage_tp_ops", ""))
    return float(max(parts, key=lambda part: int(part[1]))[0]) if parts else gpus


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedStage:
    """Stage of one of Mist's plans, in a configuration whose other stages share the other layers."""

    model: ModelSpec
    training: TrainingSpec
    config: ParallelConfig
    stage: int


def tuned_stage(run: MeasuredRun) -> TunedStage | None:
    """
    Return the stage of one of Mist's rows; ``None`` for other rows and for states offloaded to the host.

    Mist trains without dropout, as its peaks show.
    """
    found, stage = TUNED.fullmatch(run.cells.get("recompute", "")), _number(run.cells.get("stage", ""))
    launch, offloaded = run.launch, OFFLOADED.search(run.notes)
    if found is None or stage is None or launch.model is None or offloaded is None:
        return None
    if any(not run.cells.get(name) for name in ("heads", "gbs", "mbs", "tp", "pp", "dp")):
        return None
    if any(_number(part) != 0 for part in offloaded[1].split(",")):
        return None
    again, layers = int(found[1]), int(found[2])
    dp, pp = int(float(run.cells["dp"])), launch.pipeline_model_parallel_size
    try:
        config = ParallelConfig(
            tensor_model_parallel_size=launch.tensor_model_parallel_size,
            pipeline_model_parallel_size=pp,
            data_parallel_size=dp,
            micro_batch_size=launch.micro_batch_size or 1,
            layers_per_stage=_with_stage(launch.model.num_layers, pp, int(stage), layers),
            use_distributed_optimizer=launch.use_distributed_optimizer and dp > 1,
            recompute_granularity="full" if again else None,
            recompute_method="block" if again else "uniform",
            recompute_num_layers=max(again, 1),
        )
        model = replace(launch.model, hidden_dropout=0.0, attention_dropout=0.0)
        return TunedStage(model=model, training=run_training(run), config=config, stage=int(stage))
    except ValueError:
        return None


def _with_stage(num_layers: int, pp: int, stage: int, layers: int) -> tuple[int, ...]:
    """Return the layers of each stage: ``layers`` in ``stage``, the others spread evenly."""
    if pp == 1:
        return (layers,)
    base, extra = divmod(num_layers - layers, pp - 1)
    others = [base + (index < extra) for index in range(pp - 1)]
    return (*others[:stage], layers, *others[stage:])


def tuned_row_memory(run: MeasuredRun) -> MemoryRun | None:
    """Return the memory of a stage of one of Mist's plans; ``None`` for any other row."""
    tuned = tuned_stage(run)
    if tuned is None or run.gpu is None:
        return None
    configs, training = [tuned.config], tuned.training
    regressors = shipped_predictor().regressors(
        tuned.model,
        training,
        configs,
        gpus_per_node=run.gpus_per_node,
        intra_node_bytes_per_s=run.gpu.intra_node_bytes_per_s,
    )
    formula = formula_bytes(stage_table(tuned.model, training, configs, stage=tuned.stage)).total / GIB
    return MemoryRun(
        regressors=regressors[:, tuned.stage],
        measured_rows=np.arange(MOMENTS),
        capacity_gib=run.gpu.gpu.memory_bytes / GIB,
        peak_gib=None if run.peak_mem_bytes is None else run.peak_mem_bytes / GIB,
        ran_out=out_of_memory(run),
        group=f"{run.model} {run.attention_kernel}",
        num_gpus=run.num_gpus,
        version=run.cells.get(VERSION_COLUMN, ""),
        formula_gib=(float(formula[0]), float(formula[0])),
    )
