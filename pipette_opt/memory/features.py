"""
Features of a stage, the inputs of the memory network.

Most are fractions of the bytes of the memory formula, so that a large job resembles a small job with equal proportions;
some are flags. The network predicts ``log(peak / formula)``, which depends on proportions only.
"""

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.memory.formula import FormulaBytes, formula_bytes
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

FEATURES: tuple[tuple[str, str], ...] = (
    ("static_share", "of formula"),
    ("placeholder_share", "of formula"),
    ("saved_share", "of formula"),
    ("microbatch_share", "of formula"),
    ("recomputed_share", "of formula"),
    ("head_share", "of formula"),
    ("workspace_share", "of formula"),
    ("working_share", "of formula"),
    ("layer_work_share", "of formula"),
    ("embedding_work_share", "of formula"),
    ("hidden_share", "of formula"),
    ("hidden_shard_share", "of formula"),
    ("up_share", "of formula"),
    ("down_share", "of formula"),
    ("query_share", "of formula"),
    ("key_value_share", "of formula"),
    ("logits_share", "of formula"),
    ("step_share", "of formula"),
    ("ring_share", "of formula"),
    ("routed_share", "of formula"),
    ("expert_share", "of formula"),
    ("expert_up_share", "of formula"),
    ("router_share", "of formula"),
    ("shared_up_share", "of formula"),
    ("log_in_flight", "log2"),
    ("log_chunk_layers", "log2(1 + layers)"),
    ("log_brought_back", "log2(1 + layers)"),
    ("log_tensor", "log2"),
    ("log_context", "log2"),
    ("log_expert_tensor", "log2"),
    ("element", "bytes"),
    ("first", "0 or 1"),
    ("last", "0 or 1"),
    ("has_layers", "0 or 1"),
    ("sequence_parallel", "0 or 1"),
    ("selective", "0 or 1"),
    ("full", "share of layers"),
    ("moe", "share of layers"),
    ("fp8", "0 or 1"),
    ("expert_moves", "0 or 1"),
    ("local_experts", "0 or 1, several"),
    ("interleaved", "0 or 1"),
    ("flash", "0 or 1"),
    ("grouped_queries", "0 or 1"),
    ("hidden_dropout", "0 or 1"),
    ("attention_dropout", "0 or 1"),
    ("rope", "0 or 1"),
    ("qk_norm", "0 or 1"),
)
"""Name and unit of each feature."""

FEATURE_NAMES = tuple(name for name, _ in FEATURES)


def table_features(table: StageTable, formula: FormulaBytes) -> FloatArray:
    """Return the features of every row, shape ``(num_rows, len(FEATURES))``."""
    total = formula.total
    e, tokens = table.element, table.tokens
    rows = (table.moe_layers > 0) * tokens / table.shards * table.topk
    columns = (
        formula.static / total,
        formula.placeholders / total,
        formula.saved / total,
        formula.saved / table.in_flight / total,
        formula.recomputed / total,
        formula.head / total,
        formula.workspace / total,
        formula.working / total,
        formula.layer_work / total,
        formula.embedding_work / total,
        e * tokens * table.hidden / total,
        e * tokens / table.shards * table.hidden / total,
        e * tokens * table.up / total,
        e * tokens * table.down / total,
        e * tokens * table.query / total,
        e * tokens * table.key_value / total,
        table.last * e * tokens * table.vocab / total,
        formula.step_work / total,
        (table.context > 1) * e * tokens * table.context * (2 * table.key_value + table.query) / total,
        e * rows * table.routed / total,
        e * rows * table.expert_tensor * table.routed / total,
        e * rows * table.expert_tensor * table.expert_up / total,
        4 * tokens / table.shards * table.num_experts / total,
        e * tokens * table.shared_up / total,
        np.log2(table.in_flight),
        np.log2(1 + np.ceil(table.chunk_layers)),  # layers of a whole chunk, as the mean may be fractional
        np.log2(1 + table.brought_back),
        np.log2(table.tensor),
        np.log2(table.context),
        (table.moe_layers > 0) * np.log2(table.expert_tensor),
        table.element,
        table.first,
        table.last,
        table.layers > 0,
        table.shards > 1,
        table.selective,
        table.full,
        table.moe_share,
        table.fp8 > 0,
        (table.moe_layers > 0) & (table.expert_ranks > 1),
        (table.moe_layers > 0) & (table.local_experts > 1),
        table.interleaved,
        table.scores == 0,
        table.grouped,
        table.hidden_dropout,
        table.attention_dropout,
        table.rope,
        table.qk_norm,
    )
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)


def features(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stage: int, num_microbatches: int
) -> FloatArray:
    """Return the features of one stage of one configuration, shape ``(len(FEATURES),)``."""
    table = stage_table(model, training, [config], stage=stage, num_microbatches=num_microbatches)
    row: FloatArray = table_features(table, formula_bytes(table))[0]
    return row
