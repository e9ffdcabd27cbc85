"""
The closed formula: what a stage holds, without the temporaries of the pass that runs.

Weights, gradients, optimizer state, and the activations kept for the backward pass of every micro-batch in flight
(Korthikanti et al., arXiv 2205.05198, section 4, extended to grouped queries, gated MLPs, dropout or none, and
attention kernels that do not store scores). Temporaries are what the network learns.
"""

from dataclasses import dataclass

import numpy as np

from pipette_opt.memory.table import StageTable
from pipette_opt.types import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FormulaBytes:
    """
    Terms of the formula in bytes, each of shape ``(num_rows,)``.

    Parameters
    ----------
    static
        Weights, gradients and optimizer state.
    saved
        Activations of all layers and micro-batches in flight.
    recomputed
        Activations of one layer that its recomputation brings back for its backward pass.
    head
        What final norm, output product and loss keep of one micro-batch; gone when layers are recomputed.
    workspace
        The score buffer that Megatron-Core's unfused attention keeps.
    """

    static: FloatArray
    saved: FloatArray
    recomputed: FloatArray
    head: FloatArray
    workspace: FloatArray

    @property
    def total(self) -> FloatArray:
        """The formula."""
        return self.static + self.workspace + self.saved + np.maximum(self.recomputed, self.head)


def parameters(table: StageTable) -> FloatArray:
    """Parameters of one rank of each stage."""
    return table.layers * table.layer_parameters + table.first_parameters + table.last_parameters


def formula_bytes(table: StageTable) -> FormulaBytes:
    """Evaluate the formula for every row."""
    per_parameter = table.element + table.gradient + table.state / table.state_shards
    shard_tokens = table.tokens / table.shards
    layer_input = table.element * shard_tokens * table.hidden
    core, rest = _core_bytes(table), _rest_bytes(table)
    kept = table.full * layer_input + (1 - table.full) * (rest + (1 - table.selective) * core)
    saved = table.chunk_layers * kept + table.first * table.hidden_dropout * shard_tokens * table.hidden
    recomputed = table.full * (rest + core) + table.selective * core
    logits = table.tokens * table.vocab
    return FormulaBytes(
        static=parameters(table) * per_parameter,
        saved=table.in_flight * saved,
        recomputed=(table.layers > 0) * recomputed,
        head=table.last * (2 * layer_input + table.statistics * 4 * shard_tokens + 4 * logits),
        workspace=table.element * table.scores,
    )


def _rest_bytes(table: StageTable) -> FloatArray:
    """Activations that one layer keeps of one micro-batch, the attention core apart."""
    e, tokens, shard_tokens = table.element, table.tokens, table.tokens / table.shards
    # Inputs of both norms and of both column-parallel products, dropout masks, fp32 statistics.
    outside = shard_tokens * (table.hidden * (4 * e + 2 * table.hidden_dropout) + 8 * table.statistics)
    attention = e * tokens * (2 * table.query + 2 * table.key_value)
    qk_norm = table.qk_norm * tokens * (e * (table.query + table.key_value) + 8 * table.heads)
    mlp = e * tokens * (table.up + table.down)
    return outside + attention + qk_norm + mlp


def _core_bytes(table: StageTable) -> FloatArray:
    """Activations that the attention core of one layer keeps of one micro-batch besides query, key and value."""
    stores_scores = table.scores > 0
    log_sum_exp = ~stores_scores * 4 * table.tokens * table.heads
    scores = table.scores * (table.element + table.attention_dropout * (1 + table.element))
    repeated = stores_scores * 2 * table.element * table.tokens * (table.query - table.key_value)
    return log_sum_exp + scores + repeated
