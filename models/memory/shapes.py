"""Local tensor sizes of one rank of a stage."""

from dataclasses import dataclass

from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShapes:
    """
    Local sizes of a layer with experts; tokens are spread evenly over the experts.

    Parameters
    ----------
    num_experts, local
        Experts of the layer, and on this rank.
    topk
        Experts per token.
    ranks, tensor
        Ranks among which the experts are spread, and ranks that share one expert.
    up, down
        Width on this rank of the output of an expert's first product, and of the input of its second.
    shared_up, shared_down
        Widths of the shared experts, split like a dense MLP; 0 without shared experts.
    """

    num_experts: int
    local: int
    topk: int
    ranks: int
    tensor: int
    up: int
    down: int
    shared_up: int
    shared_down: int

    @classmethod
    def of(cls, model: ModelSpec, config: ParallelConfig) -> "ExpertShapes":
        """
        Return the sizes under a configuration.

        Raises ``ValueError`` where Megatron-Core would: experts and their ranks do not divide, or tensor parallelism
        without sequence parallelism (``MoELayer.forward``).
        """
        tp, ep, etp = config.tensor_model_parallel_size, config.expert_model_parallel_size, config.expert_tensor_size
        experts, width = model.num_experts or 0, model.expert_ffn_size
        shared = model.moe_shared_expert_intermediate_size
        if experts % ep:
            raise ValueError(f"expert_model_parallel_size must divide num_experts={experts}, got {ep}.")
        if width % etp or shared % tp:
            raise ValueError(
                f"expert_tensor_parallel_size={etp} must divide the experts' width {width}, and "
                f"tensor_model_parallel_size={tp} the shared experts' {shared}."
            )
        ranks = config.data_parallel_size * config.context_parallel_size * tp
        if ranks % (ep * etp):
            raise ValueError(
                f"expert_model_parallel_size * expert_tensor_parallel_size = {ep} * {etp} must divide the "
                f"{ranks} ranks of a stage."
            )
        if tp > 1 and not config.sequence_parallel:
            raise ValueError("experts with tensor_model_parallel_size > 1 need sequence_parallel.")
        gates = 2 if model.gated_linear_unit else 1
        return cls(
            num_experts=experts,
            local=experts // ep,
            topk=model.moe_router_topk,
            ranks=ep,
            tensor=etp,
            up=gates * width // etp,
            down=width // etp,
            shared_up=gates * shared // tp,
            shared_down=shared // tp,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShapes:
    """
    Local sizes of one tensor-parallel rank.

    Parameters
    ----------
    seq_length
        Tokens of one sequence on this rank (its context-parallel part).
    sequence_shards
        Ranks among which the activations outside the matrix products are split: ``tp`` with sequence parallelism, else
        1.
    query, key_value
        Width of this rank's query heads, and of its key (or value) heads.
    up, down
        Width of the output of the MLP's first product, and of the input of its second.
    vocab
        Rows of the padded vocabulary on this rank.
    context
        Ranks among which the sequence is split for attention.
    experts
        Sizes of the layers with experts; ``None`` for a dense model.
    """

    seq_length: int
    micro_batch_size: int
    hidden: int
    sequence_shards: int
    heads: int
    query: int
    key_value: int
    up: int
    down: int
    vocab: int
    context: int
    experts: ExpertShapes | None

    @classmethod
    def of(cls, model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> "LocalShapes":
        """Return the sizes under a configuration; raises ``ValueError`` if model or degrees cannot be traced."""
        if model.num_recurrent_layers or model.attention_output_gate:
            raise ValueError(
                "stages with layers that have a state or gates are not traced; the closed formula counts them."
            )
        if model.multi_latent_attention is not None or model.mtp_num_layers:
            problem = "multi_latent_attention or mtp_num_layers are not traced; the closed formula counts them."
            raise ValueError(f"stages with {problem}")
        tp, cp = config.tensor_model_parallel_size, config.context_parallel_size
        shards = tp if config.sequence_parallel else 1
        if model.num_attention_heads % tp or model.ffn_hidden_size % tp:
            raise ValueError(
                f"tensor_model_parallel_size must divide num_attention_heads={model.num_attention_heads} and "
                f"ffn_hidden_size={model.ffn_hidden_size}, got {tp}."
            )
        if training.seq_length % (cp * shards):
            raise ValueError(
                f"seq_length must be a multiple of context_parallel_size * sequence shards = {cp} * {shards}, "
                f"got {training.seq_length}."
            )
        if cp > 1 and training.attention_kernel != "flash":
            raise ValueError(f"context_parallel_size={cp} needs attention_kernel flash.")
        down = model.ffn_hidden_size // tp
        return cls(
            seq_length=training.seq_length // cp,
            micro_batch_size=config.micro_batch_size,
            hidden=model.hidden_size,
            sequence_shards=shards,
            heads=model.num_attention_heads // tp,
            query=model.query_projection_size // tp,
            key_value=max(model.num_query_groups // tp, 1) * model.kv_channels,
            up=2 * down if model.gated_linear_unit else down,
            down=down,
            vocab=model.padded_vocab_size(tp) // tp,
            context=cp,
            experts=None if model.num_experts is None else ExpertShapes.of(model, config),
        )

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on this rank inside the matrix products."""
        return self.seq_length * self.micro_batch_size

    @property
    def sharded_tokens(self) -> int:
        """Tokens of one micro-batch on this rank outside the matrix products."""
        return self.tokens // self.sequence_shards
