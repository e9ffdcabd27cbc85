"""
Regressors of memory: factors that each memory constant of a stack is multiplied with, for every stage.

A stage's memory is the sum of constants times regressors. Constants, and a stack's thresholds for buffers that wait
while hosts run ahead of GPUs: ``specs/memory_constants.py``.
"""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GIB
from pipette_opt.memory.formula import NEVER, FormulaBytes, trained_parameters
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.activations import exchange_ranks
from pipette_opt.specs.memory_constants import REGRESSORS, LateBuffers

FULL_LINK_BYTES_PER_S = 235e9
"""Bandwidth between A100 GPUs of one host over NVLink, bytes/s; NCCL opens 24 channels for such links."""

MAX_LINK = 32 / 24
"""
Maximum of :func:`link_share`: NCCL opens at most 32 channels, and its memory grows with their number
(github.com/NVIDIA/nccl issues 864, 1685).
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageFacts:
    """
    Inputs of the regressors that :class:`StageTable` lacks; every field has shape ``(num_rows,)``.

    Parameters
    ----------
    replicas
        Number of ranks that gradients are reduced over.
    pipeline
        Number of pipeline stages.
    gpus_per_node
        GPUs of one host; infinite if unknown.
    groups
        Number of communication groups, see :func:`config_groups`.
    link
        NCCL channels inside a host relative to A100, see :func:`link_share`.
    unfused_norm, unfused_softmax
        1 where the norm or the softmax runs as several kernels, otherwise 0.
    """

    replicas: FloatArray
    pipeline: FloatArray
    gpus_per_node: FloatArray
    groups: FloatArray
    link: FloatArray
    unfused_norm: FloatArray
    unfused_softmax: FloatArray


def stage_regressors(
    table: StageTable, formula: FormulaBytes, counted_bytes: FloatArray, facts: StageFacts, late: LateBuffers | None
) -> FloatArray:
    """
    Return the memory per unit of each constant, GiB, shape ``(MOMENTS, num_rows, len(REGRESSORS))``.

    Parameters
    ----------
    counted_bytes
        Bytes of the counted tensors of each stage, from formula and network or from a trace; shape ``(num_rows,)``.
    late
        Thresholds of the stack; ``None``: every late buffer counts.
    """
    size, zero = trained_parameters(table, NEVER), np.zeros(table.num_rows)
    sharded = table.state_shards > 1
    shares = {} if late is None else _late_shares(table, facts, late)
    always = {
        "base_gib": np.full(table.num_rows, float(GIB)),
        "group_gib": GIB * facts.link * facts.groups,
        "parameter_bytes": formula.gradients / table.gradient,
        "fp32_shards": -narrow_copies(table),
        "placeholders": formula.placeholders,
        "gradient_copy_bytes": size * (facts.replicas > 1) * ~sharded,
    }
    moments = (
        always
        | {"counted": counted_bytes - formula.placeholders, "step_bytes": size * sharded}
        | _passes(table, facts),
        always
        | {"counted": formula.static + formula.step_work, "step_state_bytes": size * sharded}
        | {"step_copy_bytes": (1 - table.on_host) * trained_parameters(table, 1)},
    )
    moments[0].update({name: moments[0][name] * share for name, share in shares.items()})
    moments[0]["activations"] = formula.saved
    rows = [np.stack([moment.get(name, zero) for name in REGRESSORS], axis=1) for moment in moments]
    return np.stack(rows) / GIB


def config_groups(model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpus_per_node: int | None) -> float:
    """
    Return the number of communication groups of a rank that send tensors, in groups with a ring and a tree.

    They are those of Megatron-Core's ``parallel_state``: tensor, data with context, pipeline, context, expert, expert
    tensor and expert data; data groups are inside optimizer instances and among them. Groups with equal ranks are
    separate communicators. Groups that only send a few numbers (the norm of the gradients, barriers) are not counted.

    Parameters
    ----------
    gpus_per_node
        GPUs of one host; ``None``: one host has all ranks of an all-to-all.
    """
    exchange, etp = exchange_ranks(training, config), config.expert_tensor_size
    replicas = config.data_parallel_size * config.context_parallel_size
    instances = config.num_distributed_optimizer_instances
    sizes = [config.tensor_model_parallel_size, config.pipeline_model_parallel_size, replicas // instances, instances]
    groups = all_to_all_groups(exchange, gpus_per_node)
    sizes.append(config.context_parallel_size // exchange)
    if model.num_experts is not None:
        sizes += [config.expert_data_parallel_size // instances, instances]
        if training.moe_token_dispatcher_type == "alltoall":
            here = None if gpus_per_node is None else max(gpus_per_node // etp, 1)
            groups += all_to_all_groups(config.expert_model_parallel_size, here)
            sizes.append(etp)
        else:  # one group for both
            sizes.append(config.expert_model_parallel_size * etp)
    return groups + sum(size > 1 for size in sizes)


def all_to_all_groups(ranks: int, ranks_of_host: int | None) -> float:
    """
    Return the buffers of an all-to-all, in groups with a ring and a tree.

    An all-to-all connects every rank to every other rank of its host, over all channels; a ring and a tree are two such
    connections. By hand, for 8 H100: (8 - 1) / 2 groups of 0.667 GiB * 32 / 24 are 3.11 GiB; 3.05 GiB were measured
    (github.com/NVIDIA/nccl issue 1685). Connections between hosts share their buffers, those of one group.
    """
    here = ranks if ranks_of_host is None else min(ranks, ranks_of_host)
    return float(ranks > 1) * max((here - 1) / 2, 1.0)


def link_share(bytes_per_s: float | None) -> float:
    """Return the number of NCCL channels inside a host relative to A100's NVLink; 1 for unknown bandwidth."""
    return 1.0 if bytes_per_s is None else min(bytes_per_s / FULL_LINK_BYTES_PER_S, MAX_LINK)


def narrow_copies(table: StageTable) -> FloatArray:
    """
    Return the counted bytes of ZeRO 3 in 16-bit training that do not exist where shards are fp32.

    Such a shard has 4 bytes each of weights, which are the master copy, and of gradients. Of gathered units, gradients
    have the format of the weights.
    """
    narrow = (table.zero >= 3) * (table.element < 4)
    on_gpu = 1 - table.parameters_on_host
    shards = on_gpu * (table.element + table.gradient - 4) * trained_parameters(table, 3)
    copies: FloatArray = narrow * (shards + (table.gradient - table.element) * table.trained_unit)
    return copies


def _passes(table: StageTable, facts: StageFacts) -> dict[str, FloatArray]:
    """Return the regressors of the forward and backward passes that the optimizer step lacks, bytes by constant."""
    tensor = table.tensor > 1
    gathered = tensor * table.element * table.tokens * table.hidden
    inside = table.tensor <= facts.gpus_per_node
    passes = table.chunk_layers * table.in_flight * (1 - np.maximum(table.full, table.by_operation))
    again = np.maximum(table.selective, table.full > 0) * (table.layers > 0)
    scores = (passes * (1 - table.selective) + again) * table.scores
    logits = table.last * table.logit_tokens * table.vocab
    late = gathered * (1 + 1 / table.tensor)  # the whole, and the rank's piece that is scattered or gathered
    return {
        "attention_copies": passes * table.element * table.tokens * (table.query + 2 * table.key_value),
        "norm_bytes": 2 * passes * table.tokens / table.shards * table.hidden * facts.unfused_norm,
        "score_bytes": scores * facts.unfused_softmax,
        "fused_score_bytes": scores * (1 - facts.unfused_softmax),
        "logit_bytes": logits,
        "loss_spare_bytes": logits * (facts.pipeline == 1),
        "whole_logit_bytes": logits * table.tensor * tensor,
        "table_bytes": table.first * table.largest_table,
        "gathered_per_layer": gathered * passes * (table.shards > 1),
        "run_ahead_buffers": late * (facts.pipeline == 1),
        "pile_up_buffers": late * (facts.pipeline > 1) * inside,
    }


def _late_shares(table: StageTable, facts: StageFacts, late: LateBuffers) -> dict[str, FloatArray]:
    """Return the fraction, 0 to 1, of the buffers of each constant that a stack's thresholds leave."""
    ratio = 4 * table.hidden / (table.element * np.maximum(table.tokens, 1.0) * late.step_fits)
    inside = table.tensor <= facts.gpus_per_node
    waits = ~inside & (facts.replicas > 1)
    deep = table.chunk_layers / np.hypot(table.chunk_layers, late.pile_layers)
    one_host = table.tensor * facts.replicas * facts.pipeline <= np.where(
        np.isfinite(facts.gpus_per_node), facts.gpus_per_node, 0.0
    )
    return {
        "step_bytes": ratio**2 / (1 + ratio**2) / np.sqrt(table.tensor),
        "run_ahead_buffers": np.where(waits, 1 / (1 + (table.tokens / late.wire_tokens) ** 2), 1.0),
        "pile_up_buffers": deep * np.where(one_host, 1.0, _busy(table, facts, late)),
    }


def _busy(table: StageTable, facts: StageFacts, late: LateBuffers) -> FloatArray:
    """Return the fraction, 0 to 1, of late buffers that exist because GPUs lag behind their host processes."""
    work = table.tokens * table.layer_parameters
    by_degrees = (table.tensor / 4) ** late.busy_by_tensor * (facts.pipeline / 2) ** late.busy_by_pipeline
    doublings = np.log2(np.maximum(work, 1.0) / (late.busy_multiply_adds * by_degrees))
    share: FloatArray = 1 / (1 + np.exp(-np.clip(doublings / late.busy_width, -50, 50)))
    return share
