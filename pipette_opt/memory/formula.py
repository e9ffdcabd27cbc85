"""
Memory formula: bytes that a stage holds, and approximate working memory of the running pass.

Held bytes: weights, gradients, optimizer state, and the activations kept for the backward pass of every micro-batch in
flight. They follow Korthikanti et al., arXiv 2205.05198, section 4, extended to grouped queries, gated MLPs, dropout or
none, attention kernels that do not store scores, experts, fp8 inputs, and a sequence split for attention.

Working memory: the maximum over several moments of a pass. Each moment has its own allocations, less the memory already
freed. The network corrects the errors of these moments. Branches of layers say what they keep and work on
(``pipette_opt/layers``).
"""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.memory.stage_rows import StageTable

SECOND_MOMENT_BYTES = 4
"""Bytes per parameter of Adam's second moment; Muon has none for its matrices."""


EAGER_KEPT, EAGER_WORK = 2, 8
"""
Bytes of a logit that an eager loss keeps and works on, beside the 4 bytes of its log-softmax.

transformers' ``ForCausalLMLoss`` casts 16-bit logits, which the model's output still holds, to fp32. Its backward pass
has the gradients of the log-softmax and of its input at once (``loss/loss_utils.py``; ``nll_loss`` and ``log_softmax``
of PyTorch).
"""


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
        """Mask of stages whose optimizer step needs more memory than any pass, shape ``(num_rows,)``."""
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
    kept = table.inputs_kept * layer_input + table.kept
    offloaded = np.minimum(table.offloaded, kept)
    saved = kept - offloaded
    freed = table.first_chunk * saved
    masks = table.first * table.hidden_dropout * shard_tokens * table.hidden  # of the embeddings
    logits = table.logit_tokens * table.vocab
    whole = table.element * table.tokens * table.hidden * (1 + (table.shards > 1))
    half_precision = table.element < 4
    # The product of the head gives autograd an empty gradient, too (Megatron-Core's tensor_parallel/layers.py).
    head_gradient = table.is_trained * (table.zero < 2) * table.element * table.hidden * table.vocab
    head_product = (table.element - 4) * logits + whole + (table.shards > 1) * layer_input + head_gradient
    # The head's gradient of a shared table waits for that of the embeddings.
    waiting = table.is_trained * (table.zero < 2) * table.element * table.shared_table
    of_loss = 2 * layer_input + table.statistics * 4 * shard_tokens + 4 * logits
    of_loss += EAGER_KEPT * table.eager_loss * logits
    head = table.last * of_loss + table.depths * (of_loss + _mtp_bytes(table))
    # With unequal chunks, the last stage may hold more layers later than while its head works.
    later = np.maximum(table.later_layers * saved / np.maximum(table.chunk_layers, 1e-9) - head, 0.0)
    weights, gradients, optimizer = _static_bytes(table)
    return FormulaBytes(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        placeholders=table.is_trained * (table.zero < 2) * table.element * table.placeholders,
        saved=table.in_flight * saved + table.first_in_flight * masks + later,
        recomputed=table.restored,
        head=head,
        workspace=table.element * table.scores,
        # Of the offloaded layers, one is in transfer, and one at work.
        layer_work=(table.layers > 0) * (table.layer_work + waiting + table.element * table.restored_matrix)
        + 2 * offloaded / np.maximum(table.chunk_layers, 1),
        head_work=table.last
        * np.maximum(np.where(table.eager_loss > 0, EAGER_WORK, half_precision * table.element) * logits, head_product),
        embedding_work=table.is_trained
        * table.first
        * np.maximum(table.element * table.largest_table + waiting + whole - freed - masks, 0.0),
        # Without gradients that wait for it, the step is one of a unit after the other.
        step_work=(1 - table.parameters_on_host)
        * table.step
        * np.where(table.keeps_gradients > 0, trained_parameters(table, 1), table.trained_unit),
    )


def _mtp_bytes(table: StageTable) -> FloatArray:
    """
    Return the additional activations of a multi-token-prediction layer per micro-batch, bytes.

    Its transformer layer and its loss are counted elsewhere. The rest: inputs of the norms of the hidden state and of
    the next token's embedding, the concatenation of the normed tensors that its projection keeps, and the rank's part
    of the tensor that concatenates the outputs of all such layers.
    """
    stored = np.where(table.fp8 > 0, table.fp8, table.element)  # bytes of an input that matrix products keep
    kept: FloatArray = table.tokens / table.shards * table.hidden * (3 * table.element + 2 * stored)
    return kept + 8 * table.statistics * table.tokens / table.shards


def owned_parameters(table: StageTable, from_stage: int) -> FloatArray:
    """
    Return the parameters that one rank owns after replicas divide them.

    Replicas divide parameters from ZeRO stage ``from_stage`` on: 1 for optimizer states, 2 for gradients, 3 for
    weights.
    """
    own, experts = _shards(table, from_stage)
    owned: FloatArray = _own_parameters(table) / own + table.expert_parameters / experts
    return owned


def trained_parameters(table: StageTable, from_stage: int) -> FloatArray:
    """Return the parameters with gradients that one rank owns, as :func:`owned_parameters` does of all."""
    own, experts = _shards(table, from_stage)
    owned: FloatArray = table.trained_parameters / own + table.trained_experts / experts
    return owned


def _shards(table: StageTable, from_stage: int) -> tuple[FloatArray, FloatArray]:
    """Return the number of ranks that divide a rank's parameters, and those of its experts, from a ZeRO stage on."""
    groups = table.state_shards / table.replicas if from_stage == 1 else 1.0
    shared = table.zero >= from_stage
    return np.where(shared, table.replicas * groups, 1), np.where(shared, table.expert_replicas * groups, 1)


NEVER = 4
"""ZeRO stage that does not exist, from which on ranks share what none shares."""


def _static_bytes(table: StageTable) -> tuple[FloatArray, FloatArray, FloatArray]:
    """
    Return the bytes of weights, gradients and optimizer state; under ZeRO, the rank's shard and gathered buffers.

    Frozen matrices take the bytes of their format, in shards and where they are gathered.
    """
    copies = table.copies * table.fp8 * table.matrix_parameters
    narrower, frozen = table.element - table.base, 1 - table.is_trained
    gathered = table.unit_bytes + table.copies * table.fp8 * table.unit_matrices
    weights = table.element * owned_parameters(table, 3)
    weights -= np.where(table.zero >= 3, 0.0, table.only_copies * table.element * table.matrix_parameters)
    own, experts = _shards(table, 3)
    in_experts = frozen * (table.expert_parameters - table.trained_experts)
    weights -= narrower * ((table.matrix_parameters - in_experts) / own + in_experts / experts)
    shards = 1 - table.parameters_on_host  # of weights and gradients, on the GPU
    weights = shards * weights + np.where(table.zero >= 3, gathered, copies)
    in_units = (table.zero >= 2) | (table.keeps_gradients == 0)
    kept = shards * table.keeps_gradients * trained_parameters(table, 2)
    gradients = table.gradient * (kept + in_units * table.trained_unit)
    gradients += table.whole_gradients * table.element * trained_parameters(table, NEVER)
    gradients += table.flat_gradients * table.element * (table.own_parameters + table.expert_parameters)
    own, experts = _shards(table, 1)
    routers = table.moe_layers * table.num_experts * table.hidden
    matrices = (table.matrix_parameters + routers - table.expert_parameters) / own + table.expert_parameters / experts
    optimizer = table.state * trained_parameters(table, 1) - SECOND_MOMENT_BYTES * table.muon * matrices
    return weights, gradients, (1 - table.on_host) * optimizer
