"""
Features of a stage, the inputs of the memory network.

Most are fractions of the bytes of the memory formula, so that a large job resembles a small job with equal proportions;
some are flags. The network predicts ``log(peak / formula)``, which depends on proportions only.
"""

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.memory.formula import FormulaBytes
from pipette_opt.memory.stage_rows import StageTable

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
    ("query_share", "of formula"),
    ("key_value_share", "of formula"),
    ("logits_share", "of formula"),
    ("step_share", "of formula"),
    ("router_share", "of formula"),
    ("log_in_flight", "log2"),
    ("log_chunk_layers", "log2(1 + layers)"),
    ("log_tensor", "log2"),
    ("element", "bytes"),
    ("first", "0 or 1"),
    ("last", "0 or 1"),
    ("has_layers", "0 or 1"),
    ("sequence_parallel", "0 or 1"),
    ("selective", "0 or 1"),
    ("full", "share of layers"),
    ("fp8", "0 or 1"),
    ("flash", "0 or 1"),
    ("hidden_dropout", "0 or 1"),
)
"""Name and unit of each feature."""

FEATURE_NAMES = tuple(name for name, _ in FEATURES)


def table_features(table: StageTable, formula: FormulaBytes) -> FloatArray:
    """Return the features of every row, shape ``(num_rows, len(FEATURES))``."""
    total = formula.total
    e, tokens = table.element, table.tokens
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
        e * tokens * table.query / total,
        e * tokens * table.key_value / total,
        table.last * e * table.logit_tokens * table.vocab / total,
        formula.step_work / total,
        4 * tokens / table.shards * table.num_experts / total,
        np.log2(table.in_flight),
        np.log2(1 + np.ceil(table.chunk_layers)),  # layers of a whole chunk, as the mean may be fractional
        np.log2(table.tensor),
        table.element,
        table.first,
        table.last,
        table.layers > 0,
        table.shards > 1,
        table.selective,
        table.full,
        table.fp8 > 0,
        table.scores == 0,
        table.hidden_dropout,
    )
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)
