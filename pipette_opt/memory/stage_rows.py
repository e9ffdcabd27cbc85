"""Table with one row for each stage, from which the memory formula and the network's features are computed."""

from dataclasses import dataclass

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
    logit_tokens
        Tokens of a micro-batch whose logits exist at once.
    eager_loss
        1 if the loss works on 16-bit logits in eager PyTorch, operation by operation.
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
    parameters_on_host
        1 if the host keeps the shards of weights and gradients.
    muon
        1 if the matrices of layers have no second moment.
    copies
        Number of directions (rows, columns) in which weights are kept in the format of ``fp8``.
    only_copies
        1 if the weights of these products are kept in the format of ``fp8`` only.
    keeps_gradients
        1 if gradients exist until the step; 0 if each is applied as soon as it is there, a unit at a time.
    whole_gradients
        1 if whole gradients are added up over micro-batches, in the format of the parameters, before ranks share them.
    layers, chunk_layers
        Transformer layers of the stage, including those of multi-token prediction; and of a chunk, the mean in flight.
    later_layers
        Largest number of layers whose activations the last stage holds later, beyond those while its head first works.
    moe_layers
        Layers of the stage with experts.
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
    trained_parameters, trained_experts
        Parameters on one rank of the stage that have gradients and optimizer states: all but routed experts, and routed
        experts. Without adapters these are all parameters.
    flat_gradients
        1 if frozen weights of layers have whole gradients (:class:`~pipette_opt.layers.adapters.Adapters`).
    trained_unit
        Trained parameters of the two largest among layers, embeddings and head.
    is_trained
        1 if the parameters of the model itself are trained, 0 if only adapters are.
    base
        Bytes of a frozen weight in a layer's matrix; ``element`` without adapters.
    restored_matrix
        Elements of the largest matrix that is restored to 16 bits for its product; 0 if none is.
    matrix_parameters
        Parameters on one rank of all layers of the stage in matrices of fp8 training.
    unit_bytes
        Bytes of the two largest among layers, embeddings and head, which ZeRO gathers.
    unit_matrices
        Parameters of matrices in these two.
    placeholders
        Elements of all matrices of a layer whose shapes differ, including one routed expert's.
    shared_table
        Parameters of the table that embeddings and head of the stage share; 0 if they share none.
    largest_table
        Parameters of the larger of the two embedding tables on one rank, whatever the stage.
    query, key_value, vocab
        Local widths; for keys and values the mean of both.
    scores
        Elements of one layer's attention scores, 0 with a kernel that does not store them.
    statistics
        fp32 numbers per token that one norm keeps.
    num_experts
        Routed experts of a layer with experts.
    selective
        1 if the attention core is recomputed, but not whole layers.
    by_operation
        1 if operations of layers are recomputed one by one, with all elementwise ones.
    full
        Fraction of the layers of a chunk that are recomputed whole.
    inputs_kept
        Inputs of layers that a chunk keeps for recomputation, the mean in flight.
    kept, restored
        Bytes of a micro-batch that the layers of a chunk keep, the mean in flight, without these inputs; and bytes that
        one recomputation restores.
    layer_work
        Largest working memory of the backward pass of one layer, bytes.
    """

    tokens: FloatArray
    logit_tokens: FloatArray
    eager_loss: FloatArray
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
    keeps_gradients: FloatArray
    whole_gradients: FloatArray
    offloaded: FloatArray
    on_host: FloatArray
    parameters_on_host: FloatArray
    layers: FloatArray
    chunk_layers: FloatArray
    later_layers: FloatArray
    moe_layers: FloatArray
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
    trained_parameters: FloatArray
    trained_experts: FloatArray
    flat_gradients: FloatArray
    trained_unit: FloatArray
    is_trained: FloatArray
    base: FloatArray
    restored_matrix: FloatArray
    matrix_parameters: FloatArray
    unit_bytes: FloatArray
    unit_matrices: FloatArray
    placeholders: FloatArray
    shared_table: FloatArray
    largest_table: FloatArray
    hidden: FloatArray
    query: FloatArray
    key_value: FloatArray
    vocab: FloatArray
    scores: FloatArray
    statistics: FloatArray
    hidden_dropout: FloatArray
    tensor: FloatArray
    num_experts: FloatArray
    selective: FloatArray
    by_operation: FloatArray
    full: FloatArray
    inputs_kept: FloatArray
    kept: FloatArray
    restored: FloatArray
    layer_work: FloatArray

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.tokens)
