"""
The closed formula: what a stage holds, and roughly what the running pass works with.

Held: weights, gradients, optimizer state, and the activations kept for the backward pass of every micro-batch in
flight (Korthikanti et al., arXiv 2205.05198, section 4, extended to grouped queries, gated MLPs, dropout or none, and
attention kernels that do not store scores). Working: the largest of a few moments of a backward pass, each with what
it has allocated less what it has already freed. What these moments miss is what the network learns.
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
    layer_work
        The most that the backward pass of one layer needs on top of what is held.
    head_work
        The same of the output product.
    embedding_work
        The same of the embeddings, whose backward pass runs when all else of the micro-batch is gone.
    step_work
        fp32 copies of 16-bit gradients in the optimizer step, when no activations are held.
    """

    static: FloatArray
    saved: FloatArray
    recomputed: FloatArray
    head: FloatArray
    workspace: FloatArray
    layer_work: FloatArray
    head_work: FloatArray
    embedding_work: FloatArray
    step_work: FloatArray

    @property
    def held(self) -> FloatArray:
        """What is held at the turn from forward to backward, without what the running pass works with."""
        return self.static + self.workspace + self.saved + np.maximum(self.recomputed, self.head)

    @property
    def working(self) -> FloatArray:
        """What the largest moment adds to what is held."""
        moments = (self.recomputed + self.layer_work, self.head + self.head_work, self.embedding_work)
        in_step = self.step_work - self.saved - self.workspace
        peak: FloatArray = np.maximum(np.maximum.reduce(moments), in_step)
        return np.maximum(peak - np.maximum(self.recomputed, self.head), 0.0)

    @property
    def total(self) -> FloatArray:
        """The formula; at least one byte, so that shares of it exist for a stage without layers too."""
        return np.maximum(self.held + self.working, 1.0)


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
    whole = table.element * table.tokens * table.hidden * (1 + (table.shards > 1))
    half_precision = table.element < 4
    head_product = (table.element - 4) * logits + whole + layer_input
    owned = parameters(table) / table.state_shards
    return FormulaBytes(
        static=parameters(table) * per_parameter,
        saved=table.in_flight * saved,
        recomputed=(table.layers > 0) * recomputed,
        head=table.last * (2 * layer_input + table.statistics * 4 * shard_tokens + 4 * logits),
        workspace=table.element * table.scores,
        layer_work=(table.layers > 0) * _layer_work(table),
        head_work=table.last * np.maximum(half_precision * table.element * logits, head_product),
        embedding_work=table.first * np.maximum(table.element * table.largest_table + whole - saved, 0.0),
        step_work=(table.gradient < 4) * 4 * owned,
    )


def _layer_work(table: StageTable) -> FloatArray:
    """The most that the backward pass of one layer needs on top of what it finds: gradients, gathered inputs."""
    e, tokens, gathers = table.element, table.tokens, table.shards > 1
    q, kv, up, down = (e * tokens * width for width in (table.query, table.key_value, table.up, table.down))
    hidden = e * tokens * table.hidden
    shard = hidden / table.shards
    mlp_gone = up + down + 2 * shard
    grouped = table.key_value < table.query
    flash = 2 * q + 2 * kv + 4 * tokens * (table.query + table.heads) + grouped * 2 * q
    stored = (2 - table.attention_dropout) * e * table.scores
    moments = (
        hidden * gathers + down,
        up,
        hidden * (1 + gathers) + shard * gathers - down,
        np.where(table.scores > 0, stored, flash) - mlp_gone,
        hidden * (1 + gathers) - q - mlp_gone,
    )
    work: FloatArray = shard * (1 + table.hidden_dropout) + np.maximum.reduce(moments)
    return work


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
