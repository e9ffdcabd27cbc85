"""Stages as rows of numbers: the columns that the closed formula and the features are computed from."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTable:
    """
    One row per (configuration, stage); every field has shape ``(num_rows,)``.

    Parameters
    ----------
    tokens
        Tokens of one micro-batch on one rank inside the matrix products.
    shards
        Ranks among which the other activations are split.
    element, gradient, state
        Bytes per activation and weight, per accumulated gradient, per parameter of optimizer state.
    state_shards
        Ranks among which the optimizer state is split, that of experts over as many fewer as they are.
    zero
        What replicas share, as ZeRO counts it.
    replicas, expert_replicas
        Ranks that hold the same parameters, and the same experts, and may share them: of one group of replicas.
    step
        Bytes per owned parameter that the optimizer step needs meanwhile.
    fp8
        Bytes of an operand of the matrix products in fewer than 16 bits; 0 if there are none.
    offloaded, on_host
        Bytes of a chunk and micro-batch that are on the host between the passes, of the layers in flight; and the share
        of the optimizer's states there.
    muon
        1 if the matrices of layers have no second moment.
    copies
        In how many directions weights are kept in that format.
    only_copies
        1 if the weights of these products are kept in that format only.
    layers, chunk_layers
        Transformer layers of the stage, those of multi-token prediction among them; and of a chunk, the mean of those
        in flight.
    later_layers
        Layers that the last stage holds activations of at most, beyond those while its head is first at work.
    moe_layers, moe_share
        Layers of the stage with experts, and their share of all layers in flight.
    dense_layers
        Layers of the stage with a dense MLP.
    attention_layers
        Layers of the stage with attention.
    recurrent_layers, kept_recurrent
        The same of layers that mix tokens by a state.
    recurrent_inside, recurrent_work
        Bytes for a micro-batch that such a layer keeps, its input apart, and that its backward pass works with; of the
        kind that keeps most.
    kept_attention, kept_dense, kept_experts
        Layers of a chunk that keep the activations of their attention, dense MLP or experts, the mean of the chunks in
        flight.
    has_both
        1 if layers have attention and an MLP, 0 if they are one or the other.
    in_flight
        Forward passes of a chunk whose activations are held at most at once.
    first_in_flight
        Those of the first chunk among them.
    first_chunk
        Layers of the first chunk, as a share of ``chunk_layers``.
    first, last
        1 on the first, on the last stage.
    depths
        Depths of multi-token prediction on the stage.
    layer_parameters
        On one rank, of a layer with attention and a dense MLP, whether the stage has some or not.
    own_parameters, expert_parameters
        On one rank, of all layers of the stage: of routed experts, and of all else.
    first_parameters, last_parameters
        On one rank: of the embeddings, of final norm and head.
    matrix_parameters
        On one rank, of all layers of the stage: those of matrices in fp8 training.
    unit_parameters
        Of the two largest of layers, embeddings and head, which ZeRO gathers.
    unit_matrices
        Matrices among the same.
    placeholders
        Elements of all matrices of a layer whose shapes differ, one routed expert's among them.
    shared_table
        Parameters of the table that embeddings and head of the stage share; 0 if they share none.
    largest_table
        Parameters of the larger of the two embedding tables on one rank, whatever the stage.
    query, key_value, output, up, down, vocab, heads
        Local widths; of keys and values the mean of both, and of what attention gives to its output projection.
    gate
        Local width of the gate of attention's output; 0 without.
    latent, downs
        Channels of latents that are normalised, and of all that the down projections of latent attention give; 0
        without it.
    down_projections
        Their number.
    scores
        Elements of one layer's attention scores, 0 with a kernel that does not store them.
    post_norms
        1 if what a branch gives is normalised.
    statistics
        fp32 numbers per token that one norm keeps.
    context
        Ranks among which attention's sequence is split.
    num_experts, local_experts, topk, expert_ranks, expert_tensor
        Of a layer with experts: all, on this rank, of each token, ranks that they are spread over, that share one.
    arriving
        Copies of tokens that the busiest of these ranks works on, for each token of its own.
    routed, expert_latent
        Width of what routed experts get; and the same where it is not the model's, otherwise 0.
    expert_up, expert_down, shared_up, shared_down
        Local widths of routed and shared experts.
    selective
        1 if the attention core alone is recomputed, whatever else is.
    again_up, again_mlp, again_moe, again_shared, again_act, again_norm
        1 if these are recomputed, 0 where whole layers are: up projections of latent attention; the MLP of layers
        without experts; all that layers have for experts, of these the shared ones, the activation of the routed ones;
        norms before experts and before latent attention.
    full
        Share of the layers of a chunk that are recomputed whole.
    inputs_kept, brought_back
        Inputs of layers that a chunk keeps for recomputation, the mean of those in flight; and layers that one
        recomputation brings back.
    """

    tokens: FloatArray
    shards: FloatArray
    element: FloatArray
    gradient: FloatArray
    state: FloatArray
    state_shards: FloatArray
    zero: FloatArray
    replicas: FloatArray
    expert_replicas: FloatArray
    step: FloatArray
    fp8: FloatArray
    muon: FloatArray
    copies: FloatArray
    only_copies: FloatArray
    offloaded: FloatArray
    on_host: FloatArray
    layers: FloatArray
    chunk_layers: FloatArray
    later_layers: FloatArray
    moe_layers: FloatArray
    moe_share: FloatArray
    dense_layers: FloatArray
    attention_layers: FloatArray
    kept_attention: FloatArray
    recurrent_layers: FloatArray
    kept_recurrent: FloatArray
    recurrent_inside: FloatArray
    recurrent_work: FloatArray
    kept_dense: FloatArray
    kept_experts: FloatArray
    has_both: FloatArray
    in_flight: FloatArray
    first_in_flight: FloatArray
    first_chunk: FloatArray
    first: FloatArray
    last: FloatArray
    depths: FloatArray
    layer_parameters: FloatArray
    own_parameters: FloatArray
    expert_parameters: FloatArray
    first_parameters: FloatArray
    last_parameters: FloatArray
    matrix_parameters: FloatArray
    unit_parameters: FloatArray
    unit_matrices: FloatArray
    placeholders: FloatArray
    shared_table: FloatArray
    largest_table: FloatArray
    hidden: FloatArray
    query: FloatArray
    key_value: FloatArray
    output: FloatArray
    gate: FloatArray
    latent: FloatArray
    downs: FloatArray
    down_projections: FloatArray
    up: FloatArray
    down: FloatArray
    vocab: FloatArray
    heads: FloatArray
    scores: FloatArray
    statistics: FloatArray
    post_norms: FloatArray
    hidden_dropout: FloatArray
    attention_dropout: FloatArray
    rope: FloatArray
    qk_norm: FloatArray
    tensor: FloatArray
    context: FloatArray
    num_experts: FloatArray
    local_experts: FloatArray
    topk: FloatArray
    arriving: FloatArray
    expert_ranks: FloatArray
    expert_tensor: FloatArray
    routed: FloatArray
    expert_latent: FloatArray
    expert_up: FloatArray
    expert_down: FloatArray
    shared_up: FloatArray
    shared_down: FloatArray
    selective: FloatArray
    again_up: FloatArray
    again_mlp: FloatArray
    again_moe: FloatArray
    again_shared: FloatArray
    again_act: FloatArray
    again_norm: FloatArray
    full: FloatArray
    inputs_kept: FloatArray
    brought_back: FloatArray
    interleaved: FloatArray

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.tokens)

    @property
    def grouped(self) -> BoolArray:
        """Whether several query heads share a key; keys of latent attention are as wide, its values are not."""
        grouped: BoolArray = (self.key_value < self.query) & (self.latent == 0)
        return grouped


def join_tables(tables: Sequence[StageTable]) -> StageTable:
    """All rows, one table after the other."""
    return StageTable(
        **{field.name: np.concatenate([getattr(table, field.name) for table in tables]) for field in fields(StageTable)}
    )
