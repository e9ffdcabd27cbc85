"""
Memory formula: bytes that a stage holds, and approximate working memory of the running pass.

Held bytes: weights, gradients, optimizer state, and the activations kept for the backward pass of every micro-batch in
flight. They follow Korthikanti et al., arXiv 2205.05198, section 4, extended to grouped queries, gated MLPs, dropout or
none, attention kernels that do not store scores, experts, fp8 inputs, and a sequence split for attention.

Working memory: the maximum over several moments of a pass. Each moment has its own allocations, less the memory already
freed. The network corrects the errors of these moments.
"""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.memory.stage_rows import StageTable

SECOND_MOMENT_BYTES = 4
"""Bytes per parameter of Adam's second moment; Muon has none for its matrices."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FormulaBytes:
    """
    Terms of the formula in bytes, each of shape ``(num_rows,)``.

    Parameters
    ----------
    weights, gradients, optimizer
        Bytes including fp8 copies; under ZeRO, the rank's shard and buffers of gathered tensors.
    placeholders
        Empty gradients that Transformer Engine gives autograd where products add to the main gradients themselves: one
        for each shape of a layer's matrices, never freed (``get_dummy_wgrad`` in ``pytorch/module/base.py``).
    saved
        Activations of all layers and micro-batches in flight.
    recomputed
        Activations that one recomputation restores for its backward pass.
    head
        Activations of final norm, output product and loss of one micro-batch, and of each multi-token-prediction layer;
        freed when layers are recomputed.
    workspace
        Score buffer that Megatron-Core's unfused attention keeps.
    layer_work
        Largest working memory of the backward pass of one layer, in addition to the held bytes.
    head_work
        Largest working memory of the output product.
    embedding_work
        Largest working memory of the embeddings. Their backward pass is the last of the micro-batch's first chunk.
    step_work
        fp32 copies of 16-bit gradients or of narrow states in the optimizer step, when no activations are held.
    """

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    placeholders: FloatArray
    saved: FloatArray
    recomputed: FloatArray
    head: FloatArray
    workspace: FloatArray
    layer_work: FloatArray
    head_work: FloatArray
    embedding_work: FloatArray
    step_work: FloatArray

    @property
    def static(self) -> FloatArray:
        """Bytes of weights, gradients and optimizer state."""
        return self.weights + self.gradients + self.optimizer

    @property
    def held(self) -> FloatArray:
        """Bytes held at the turn from forward to backward, without the working memory of the running pass."""
        return self.static + self.placeholders + self.workspace + self.saved + np.maximum(self.recomputed, self.head)

    @property
    def working(self) -> FloatArray:
        """Bytes that the fullest moment adds to the held bytes."""
        peak = np.maximum(self._pass_work, self._step_beyond)
        beyond: FloatArray = np.maximum(peak - np.maximum(self.recomputed, self.head), 0.0)
        return beyond

    @property
    def step_is_fullest(self) -> BoolArray:
        """
        Mask of stages where the optimizer step needs more memory than any forward or backward pass, shape
        ``(num_rows,)``.
        """
        beyond: BoolArray = self._step_beyond > np.maximum(self._pass_work, np.maximum(self.recomputed, self.head))
        return beyond

    @property
    def _pass_work(self) -> FloatArray:
        """Working memory of the fullest moment of the passes, bytes."""
        moments = (self.recomputed + self.layer_work, self.head + self.head_work, self.embedding_work)
        peak: FloatArray = np.maximum.reduce(moments)
        return peak

    @property
    def _step_beyond(self) -> FloatArray:
        """Working memory of the optimizer step that does not fit into the blocks freed by activations, bytes."""
        return self.step_work - self.saved - self.workspace

    @property
    def total(self) -> FloatArray:
        """Held and working bytes; at least 1, so that fractions of the total exist for a stage without layers."""
        return np.maximum(self.held + self.working, 1.0)


def parameters(table: StageTable) -> FloatArray:
    """Return the number of parameters on one rank of each stage."""
    return _own_parameters(table) + table.expert_parameters


def _own_parameters(table: StageTable) -> FloatArray:
    """Return the number of parameters on one rank of each stage, without routed experts."""
    total: FloatArray = table.own_parameters + table.first_parameters + table.last_parameters
    return total


def formula_bytes(table: StageTable) -> FormulaBytes:
    """Return the terms of the memory formula for every row of the table."""
    shard_tokens = table.tokens / table.shards
    layer_input = table.element * shard_tokens * table.hidden
    core = _core_bytes(table)
    attention, dense, experts = _attention_bytes(table), _dense_bytes(table), _expert_bytes(table)
    freed_attention, freed_dense, freed_experts = _freed_bytes(table)
    recurrent = _recurrent_bytes(table)
    rest = (
        table.kept_attention * (attention - freed_attention)
        + table.kept_recurrent * recurrent
        + table.kept_dense * (dense - freed_dense)
        + table.kept_experts * (experts - freed_experts)
    )
    saved = table.inputs_kept * layer_input + rest + table.kept_attention * (1 - table.selective) * core
    saved = np.maximum(saved - table.offloaded, 0.0)
    freed = table.first_chunk * saved
    masks = table.first * table.hidden_dropout * shard_tokens * table.hidden  # of the embeddings
    # Layers that were kept whole are freed before the first recomputed one runs.
    with_experts = np.minimum(table.brought_back, _of_chunk(table, table.moe_layers))
    with_dense = np.minimum(table.brought_back - with_experts, _of_chunk(table, table.dense_layers))
    with_state = np.minimum(table.brought_back, _of_chunk(table, table.recurrent_layers))
    with_attention = np.minimum(table.brought_back, _of_chunk(table, table.attention_layers))
    largest_mixer = np.maximum((with_attention > 0) * (core + attention), (with_state > 0) * recurrent)
    mixers = with_attention * (core + attention) + with_state * recurrent
    mixers = np.minimum(mixers, table.brought_back * largest_mixer)
    mlps = with_experts * experts + with_dense * dense
    group = np.where(table.has_both > 0, mlps + mixers, np.maximum(mlps, mixers))
    brought_back = np.maximum(group - (rest + table.kept_attention * core), 0.0)
    modules = (
        (table.attention_layers > 0) * (table.selective * core + freed_attention),
        (table.dense_layers > 0) * freed_dense,
        (table.moe_layers > 0) * freed_experts,
    )
    recomputed = (table.layers > 0) * brought_back + np.maximum.reduce(modules)
    logits = table.tokens * table.vocab
    whole = table.element * table.tokens * table.hidden * (1 + (table.shards > 1))
    half_precision = table.element < 4
    # The product of the head gives autograd an empty gradient, too (Megatron-Core's tensor_parallel/layers.py).
    head_gradient = (table.zero < 2) * table.element * table.hidden * table.vocab
    head_product = (table.element - 4) * logits + whole + (table.shards > 1) * layer_input + head_gradient
    # The head's gradient of a shared table waits for that of the embeddings.
    waiting = (table.zero < 2) * table.element * table.shared_table
    of_loss = 2 * layer_input + table.statistics * 4 * shard_tokens + 4 * logits
    head = table.last * of_loss + table.depths * (of_loss + _mtp_bytes(table))
    # With unequal chunks, the last stage may hold more layers later than while its head works.
    later = np.maximum(table.later_layers * saved / np.maximum(table.chunk_layers, 1e-9) - head, 0.0)
    weights, gradients, optimizer = _static_bytes(table)
    return FormulaBytes(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        placeholders=(table.zero < 2) * table.element * table.placeholders,
        saved=table.in_flight * saved + table.first_in_flight * masks + later,
        recomputed=recomputed,
        head=head,
        workspace=table.element * table.scores,
        # Of the offloaded layers, one is in transfer, and one at work.
        layer_work=(table.layers > 0) * (_layer_work(table) + waiting)
        + 2 * table.offloaded / np.maximum(table.chunk_layers, 1),
        head_work=table.last * np.maximum(half_precision * table.element * logits, head_product),
        embedding_work=table.first
        * np.maximum(table.element * table.largest_table + waiting + whole - freed - masks, 0.0),
        step_work=table.step * _owned(table, 1),
    )


def _mtp_bytes(table: StageTable) -> FloatArray:
    """
    Return the additional activations of a multi-token-prediction layer per micro-batch, bytes.

    Its transformer layer and its loss are counted elsewhere. The rest: inputs of the norms of the hidden state and of
    the next token's embedding, the concatenation of the normed tensors that its projection keeps, and the rank's part
    of the tensor that concatenates the outputs of all such layers.
    """
    kept: FloatArray = table.tokens / table.shards * table.hidden * (3 * table.element + 2 * _stored(table))
    return kept + 8 * table.statistics * table.tokens / table.shards


def _of_chunk(table: StageTable, layers: FloatArray) -> FloatArray:
    """Return how many of the stage's ``layers`` are in one chunk: the mean of all chunks, rounded up."""
    count: FloatArray = np.ceil(layers * table.chunk_layers / np.maximum(table.layers, 1))
    return count


def _owned(table: StageTable, from_stage: int) -> FloatArray:
    """
    Return the parameters that one rank owns after replicas divide them.

    Replicas divide parameters from ZeRO stage ``from_stage`` on: 1 for optimizer states, 2 for gradients, 3 for
    weights.
    """
    own, experts = _shards(table, from_stage)
    owned: FloatArray = _own_parameters(table) / own + table.expert_parameters / experts
    return owned


def _shards(table: StageTable, from_stage: int) -> tuple[FloatArray, FloatArray]:
    """Return the number of ranks that divide a rank's parameters, and those of its experts, from a ZeRO stage on."""
    groups = table.state_shards / table.replicas if from_stage == 1 else 1.0
    shared = table.zero >= from_stage
    return np.where(shared, table.replicas * groups, 1), np.where(shared, table.expert_replicas * groups, 1)


def _static_bytes(table: StageTable) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the bytes of weights, gradients and optimizer state; under ZeRO, the rank's shard and gathered buffers."""
    copies = table.copies * table.fp8 * table.matrix_parameters
    gathered = table.element * table.unit_parameters + table.copies * table.fp8 * table.unit_matrices
    weights = table.element * _owned(table, 3) + np.where(table.zero >= 3, gathered, copies)
    weights -= np.where(table.zero >= 3, 0.0, table.only_copies * table.element * table.matrix_parameters)
    gradients = table.gradient * (_owned(table, 2) + (table.zero >= 2) * table.unit_parameters)
    own, experts = _shards(table, 1)
    routers = table.moe_layers * table.num_experts * table.hidden
    matrices = (table.matrix_parameters + routers - table.expert_parameters) / own + table.expert_parameters / experts
    optimizer = table.state * _owned(table, 1) - SECOND_MOMENT_BYTES * table.muon * matrices
    return weights, gradients, (1 - table.on_host) * optimizer


def _layer_work(table: StageTable) -> FloatArray:
    """Return the largest working memory of one layer, in its backward pass or in ring attention, bytes."""
    e, tokens, gathers = table.element, table.tokens, table.shards > 1
    q, kv, out = (e * tokens * width for width in (table.query, table.key_value, table.output))
    hidden = e * tokens * table.hidden
    shard = hidden / table.shards
    incoming = shard * (1 + table.hidden_dropout)
    mlp, mlp_gone = _mlp_work(table)
    mlp_gone = table.has_both * mlp_gone
    flash = q + out + 2 * kv + 4 * tokens * (table.query + table.heads) + table.grouped * 2 * q
    stored = (2 - table.attention_dropout) * e * table.scores
    steps = table.context
    sums = 4 * tokens * table.heads
    ring_back = 4 * kv * 2 + flash + q - mlp_gone
    ring_forth = steps * (2 * kv + q + sums) + q + 2 * kv - mlp_gone - q - incoming
    ring = np.where(steps > 1, np.maximum(ring_back, ring_forth), 0.0)
    quantised = table.fp8 * (q + 2 * kv) - table.fp8 * gathers * hidden / 2
    moments = (
        mlp,
        np.where(table.scores > 0, stored, flash) - mlp_gone,
        ring,
        hidden * (1 + gathers) - q - mlp_gone + quantised,
        table.recurrent_work - mlp_gone,
    )
    work: FloatArray = incoming + np.maximum.reduce(moments)
    return work


def _mlp_work(table: StageTable) -> tuple[FloatArray, FloatArray]:
    """
    Return the largest working memory of an MLP's or the experts' backward pass, and the memory freed after it, bytes.

    In fp8, both products copy their gradient by rows and by columns, which takes as many bytes as in 16 bits. Gathered
    and freed tensors take half the bytes of 16 bits; in nvfp4, a quarter.
    """
    e, tokens, gathers, fp8 = table.element, table.tokens, table.shards > 1, table.fp8
    kept = np.where(fp8 > 0, fp8 / e, 1.0)
    hidden = e * tokens * table.hidden
    shard = hidden / table.shards
    up, down = e * tokens * table.up, e * tokens * table.down
    moments = (
        hidden * np.maximum(gathers, fp8) + down,
        up + down - kept * down,
        hidden * (1 + kept * gathers) + shard * gathers - kept * down + fp8 * up,
    )
    dense, dense_gone = np.maximum.reduce(moments), up + kept * down + (1 + kept) * shard
    rows = tokens / table.shards * table.arriving
    routed, here = e * rows * table.routed, e * rows * table.expert_tensor * table.routed
    up, down = (e * rows * table.expert_tensor * width for width in (table.expert_up, table.expert_down))
    sorts, gathers = table.local_experts > 1, table.expert_tensor > 1
    gone = up + kept * (down + here)
    steps = (
        routed * (1 + (table.expert_ranks > 1)),
        here + gathers * routed,
        here * (1 + sorts),
        here * (1 + fp8) + down,
        up + down - kept * down,
        here - kept * down + fp8 * up,
        here * (1 + sorts) - gone,
        here + gathers * routed - gone,
    )
    experts, experts_gone = np.maximum.reduce(steps), up + kept * (down + here) + (1 + kept) * shard
    mixed = table.moe_layers > 0
    work = np.maximum(np.where(mixed, experts, 0.0), np.where(table.dense_layers > 0, dense, 0.0))
    return work, np.where(mixed, experts_gone, dense_gone)


def _stored(table: StageTable) -> FloatArray:
    """Return the bytes per element of the inputs that matrix products keep."""
    return np.where(table.fp8 > 0, table.fp8, table.element)


def _freed_bytes(table: StageTable) -> tuple[FloatArray, FloatArray, FloatArray]:
    """
    Return the bytes that selective recomputation frees in attention, in a dense MLP, and in experts.

    The attention core is not included. The norm before latent attention has kernels of its own, whose output the
    following products need not keep. A layer with experts keeps its input, which the router also holds, unless the norm
    is recomputed.
    """
    e, stored, tokens = table.element, _stored(table), table.tokens / table.shards
    is_latent, inputs = table.latent > 0, tokens * table.hidden
    made = table.tokens * e * (table.query + 2 * table.key_value) + tokens * stored * table.latent
    normed = table.again_norm * (stored + _copies_of_input(table)) * inputs
    attention: FloatArray = is_latent * (table.again_up * made + normed)
    dense: FloatArray = table.again_mlp * (_dense_bytes(table) - _branch_bytes(table))
    whole = _expert_bytes(table) - _branch_bytes(table) - (1 - table.again_norm) * e * inputs
    copied = (table.shared_down > 0) * table.fp8 * inputs
    parts = (
        table.again_act * tokens * table.topk * table.expert_tensor * stored * table.expert_down
        + table.again_shared * table.tokens * (e * table.shared_up + stored * table.shared_down)
        + table.again_norm * e * inputs
        + np.maximum(table.again_shared, table.again_norm) * copied
    )
    return attention, dense, np.where(table.again_moe > 0, whole, parts)


def _copies_of_input(table: StageTable) -> FloatArray:
    """
    Return the bytes per channel of the fp8 copies of a layer's input that latent attention keeps.

    Each of its down projections after the first keeps a copy.
    """
    copies: FloatArray = table.fp8 * np.maximum(table.down_projections - 1, 0)
    return copies


def _branch_bytes(table: StageTable) -> FloatArray:
    """Return the bytes that each branch of a layer keeps of a micro-batch: norm inputs, dropout mask, statistics."""
    norms = 1 + table.post_norms
    per_token = table.hidden * (norms * table.element + table.hidden_dropout) + norms * 4 * table.statistics
    kept: FloatArray = table.tokens / table.shards * per_token
    return kept


def _attention_bytes(table: StageTable) -> FloatArray:
    """Return the activations of one micro-batch that a layer's attention keeps, without the attention core, bytes."""
    e, tokens, shard_tokens = table.element, table.tokens, table.tokens / table.shards
    # The attention core also keeps its output, so an fp8 copy of it is additional, unless the core is recomputed.
    output = np.where(table.fp8 * table.selective > 0, 0.0, e) + table.fp8
    attention = tokens * (e * (table.query + 2 * table.key_value) + output * table.output)
    attention += tokens * e * 2 * table.gate  # the gate, and attention's output before it
    normed_heads = table.heads * (1 + table.key_value / table.query)  # of queries and of keys, equally wide
    qk_norm = table.qk_norm * tokens * (e * (table.query + table.key_value) + 4 * table.statistics * normed_heads)
    inputs = _stored(table) * shard_tokens * table.hidden
    beside = tokens * table.kept_beside
    kept: FloatArray = _branch_bytes(table) + inputs + attention + _latent_bytes(table) + qk_norm + beside
    return kept


def _latent_bytes(table: StageTable) -> FloatArray:
    """
    Return the bytes that latent attention keeps besides queries, keys and values: projected and normalised latents.

    In fp8, every down projection keeps a copy of the layer's input.
    """
    copies = _copies_of_input(table) * table.hidden
    kept: FloatArray = (
        table.tokens / table.shards * (table.element * table.downs + _stored(table) * table.latent + copies)
    )
    return kept


def _recurrent_bytes(table: StageTable) -> FloatArray:
    """Return the activations of one micro-batch that a recurrent layer (Mamba, linear attention) keeps, bytes."""
    inputs = _stored(table) * table.tokens / table.shards * table.hidden
    kept: FloatArray = _branch_bytes(table) + inputs + table.recurrent_inside
    return kept


def _dense_bytes(table: StageTable) -> FloatArray:
    """Return the activations of one micro-batch that a dense MLP keeps, bytes."""
    stored, product_input = _stored(table), table.tokens / table.shards * table.hidden
    inside = table.tokens * (table.element * table.up + stored * table.down)
    kept: FloatArray = _branch_bytes(table) + stored * product_input + inside
    return kept


def _expert_bytes(table: StageTable) -> FloatArray:
    """Return the activations of one micro-batch that router, routed and shared experts of a layer keep, bytes."""
    stored = _stored(table)
    e, tokens = table.element, table.tokens / table.shards
    rows = tokens * table.arriving * table.expert_tensor
    # Input, fp32 scores of all experts, weights and numbers of the chosen ones; the int32 map of the permutation.
    router = tokens * (e * table.hidden + 4 * table.num_experts + 12 * table.topk + 4 * (2 * table.num_experts + 1))
    routed = rows * (stored * table.routed + e * table.expert_up + stored * table.expert_down + 4)
    has_shared = table.shared_down > 0
    shared = table.tokens * (e * table.shared_up + stored * table.shared_down)
    again = has_shared * table.fp8 * tokens * table.hidden  # the router keeps the input unchanged
    # A projection to the width of the experts, and one back.
    latents = tokens * (table.expert_latent * stored + (table.expert_latent > 0) * table.fp8 * table.hidden)
    total: FloatArray = _branch_bytes(table) + router + routed + shared + again + latents
    return total


def _core_bytes(table: StageTable) -> FloatArray:
    """Return the activations of one micro-batch that the attention core keeps besides query, key and value, bytes."""
    stores_scores = table.scores > 0
    log_sum_exp = ~stores_scores * 4 * table.tokens * table.heads
    scores = table.scores * (table.element + table.attention_dropout * (1 + table.element))
    repeated = stores_scores * 2 * table.element * table.tokens * table.grouped * (table.query - table.key_value)
    return log_sum_exp + scores + repeated
