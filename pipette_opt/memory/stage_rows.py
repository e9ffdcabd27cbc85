"""Table with one row for each stage, from which the memory formula and the network's features are computed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from pipette_opt.base.types import FloatArray


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
    query, key_value, up, down, vocab, heads
        Local widths; for keys and values the mean of both.
    grouped
        1 if several query heads share a key head; 0 for latent attention, in which only values are narrower.
    scores
        Elements of one layer's attention scores, 0 with a kernel that does not store them.
    statistics
        fp32 numbers per token that one norm keeps.
    context
        Ranks among which attention's sequence is split.
    num_experts, local_experts, topk, expert_ranks, expert_tensor
        Sizes of a layer with experts: number of experts, experts on this rank, experts per token, ranks that the
        experts are spread over, ranks that share one expert.
    routed
        Input width of routed experts.
    expert_up, shared_up
        Local widths of routed and shared experts, twice with a gate.
    selective
        1 if the attention core is recomputed, but not whole layers.
    full
        Fraction of the layers of a chunk that are recomputed whole.
    inputs_kept, brought_back
        Inputs of layers that a chunk keeps for recomputation, the mean in flight; and layers that one recomputation
        restores.
    kept, restored
        Bytes of a micro-batch that the layers of a chunk keep, the mean in flight, without these inputs; and bytes that
        one recomputation restores.
    layer_work
        Largest working memory of the backward pass of one layer, bytes.
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
    grouped: FloatArray
    up: FloatArray
    down: FloatArray
    vocab: FloatArray
    heads: FloatArray
    scores: FloatArray
    statistics: FloatArray
    hidden_dropout: FloatArray
    attention_dropout: FloatArray
    rope: FloatArray
    qk_norm: FloatArray
    tensor: FloatArray
    context: FloatArray
    num_experts: FloatArray
    local_experts: FloatArray
    topk: FloatArray
    expert_ranks: FloatArray
    expert_tensor: FloatArray
    routed: FloatArray
    expert_up: FloatArray
    shared_up: FloatArray
    selective: FloatArray
    full: FloatArray
    inputs_kept: FloatArray
    brought_back: FloatArray
    kept: FloatArray
    restored: FloatArray
    layer_work: FloatArray
    interleaved: FloatArray

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.tokens)


def join_tables(tables: Sequence[StageTable]) -> StageTable:
    """Return one table with the rows of several tables, in order."""
    return StageTable(
        **{field.name: np.concatenate([getattr(table, field.name) for table in tables]) for field in fields(StageTable)}
    )
