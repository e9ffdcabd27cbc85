"""Table with one row for each stage, from which the memory formula and the network's features are computed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTable:
    """
    Numbers of every stage of every configuration; every field has shape ``(num_rows,)``.

    A row is one (configuration, stage). A "layer in flight" is a layer of a chunk whose micro-batch waits for its
    backward pass; "mean in flight" averages over chunks, weighted by their micro-batches in flight.

    Parameters
    ----------
    tokens
        Tokens of one micro-batch on one rank inside the matrix products.
    shards
        Ranks among which the other activations are split.
    element, gradient, state
        Bytes per activation and weight, per accumulated gradient, per parameter of optimizer state.
    state_shards
        Ranks among which the optimizer state is divided; that of experts among proportionally fewer.
    zero
        ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 also weights; 0 none.
    replicas, expert_replicas
        Ranks that hold the same parameters, and the same experts, and may share them; within one group of replicas.
    step
        Temporary bytes per owned parameter in the optimizer step.
    fp8
        Bytes of an operand of the matrix products in fewer than 16 bits; 0 without such products.
    offloaded, on_host
        Bytes of a chunk and micro-batch that the host holds between the passes, for the layers in flight; and the
        fraction of the optimizer's states on the host.
    muon
        1 if the matrices of layers have no second moment.
    copies
        Number of directions (rows, columns) in which weights are kept in the format of ``fp8``.
    only_copies
        1 if the weights of these products are kept in the format of ``fp8`` only.
    layers, chunk_layers
        Transformer layers of the stage, including those of multi-token prediction; and of a chunk, the mean in flight.
    later_layers
        Largest number of layers whose activations the last stage holds later, beyond those while its head first works.
    moe_layers, moe_share
        Layers of the stage with experts, and their fraction of all layers in flight.
    dense_layers
        Layers of the stage with a dense MLP.
    attention_layers
        Layers of the stage with attention.
    recurrent_layers, kept_recurrent
        Recurrent layers of the stage (Mamba, linear attention), and those of a chunk that keep their activations.
    recurrent_inside, recurrent_work
        Bytes per micro-batch that a recurrent layer keeps without its input, and working memory of its backward pass;
        of the largest kind.
    kept_attention, kept_dense, kept_experts
        Layers of a chunk that keep the activations of their attention, dense MLP or experts, the mean in flight.
    kept_beside
        Bytes per token that attention keeps on every tensor rank beside inputs and outputs of its products and core.
    has_both
        1 if layers have attention and an MLP, 0 if each layer has only one of them.
    in_flight
        Largest number of forward passes of a chunk whose activations are held at once.
    first_in_flight
        Number of those that are of the first chunk.
    first_chunk
        Layers of the first chunk, as a fraction of ``chunk_layers``.
    first, last
        1 on the first, on the last stage.
    depths
        Number of multi-token-prediction layers on the stage.
    layer_parameters
        Parameters on one rank of a layer with attention and a dense MLP, whether or not the stage has such a layer.
    own_parameters, expert_parameters
        Parameters on one rank of all layers of the stage: all but routed experts, and routed experts.
    first_parameters, last_parameters
        Parameters on one rank of the embeddings, and of final norm and head.
    matrix_parameters
        Parameters on one rank of all layers of the stage in matrices of fp8 training.
    unit_parameters
        Parameters of the two largest among layers, embeddings and head, which ZeRO gathers.
    unit_matrices
        Parameters of matrices in these two.
    placeholders
        Elements of all matrices of a layer whose shapes differ, including one routed expert's.
    shared_table
        Parameters of the table that embeddings and head of the stage share; 0 if they share none.
    largest_table
        Parameters of the larger of the two embedding tables on one rank, whatever the stage.
    query, key_value, output, up, down, vocab, heads
        Local widths; for keys and values the mean of both; ``output``: input of attention's output projection.
    gate
        Local width of the gate of attention's output; 0 without.
    latent, downs
        Channels of normalised latents, and of all outputs of the down projections of latent attention; 0 without it.
    down_projections
        Number of down projections of latent attention.
    scores
        Elements of one layer's attention scores, 0 with a kernel that does not store them.
    post_norms
        1 if the output of a branch is normalised.
    statistics
        fp32 numbers per token that one norm keeps.
    context
        Ranks among which attention's sequence is split.
    num_experts, local_experts, topk, expert_ranks, expert_tensor
        Sizes of a layer with experts: number of experts, experts on this rank, experts per token, ranks that the
        experts are spread over, ranks that share one expert.
    arriving
        Copies of tokens on the busiest of these ranks, per token of its own.
    routed, expert_latent
        Input width of routed experts; ``expert_latent``: that width where it differs from the model's, otherwise 0.
    expert_up, expert_down, shared_up, shared_down
        Local widths of routed and shared experts.
    selective
        1 if the attention core is recomputed, but not whole layers.
    again_up, again_mlp, again_moe, again_shared, again_act, again_norm
        1 if these modules are recomputed, 0 where whole layers are: up projections of latent attention; the MLP of
        layers without experts; all of the experts' branch, its shared experts, the activation of its routed ones; norms
        before experts and before latent attention.
    full
        Fraction of the layers of a chunk that are recomputed whole.
    inputs_kept, brought_back
        Inputs of layers that a chunk keeps for recomputation, the mean in flight; and layers that one recomputation
        restores.
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
    kept_beside: FloatArray
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
        """Number of rows."""
        return len(self.tokens)

    @property
    def grouped(self) -> BoolArray:
        """
        Mask of rows where several query heads share a key head.

        Latent attention is excluded: its keys are as wide as its queries, and only its values differ.
        """
        grouped: BoolArray = (self.key_value < self.query) & (self.latent == 0)
        return grouped


def join_tables(tables: Sequence[StageTable]) -> StageTable:
    """Return one table with the rows of several tables, in order."""
    return StageTable(
        **{field.name: np.concatenate([getattr(table, field.name) for table in tables]) for field in fields(StageTable)}
    )
