"""Sizes that one rank of one stage works with."""

from dataclasses import dataclass

from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalShapes:
    """
    Local sizes of one tensor-parallel rank.

    Parameters
    ----------
    seq_length
        Tokens of one sequence on this rank (the context-parallel part of it).
    sequence_shards
        Ranks among which the activations outside of the matrix products are split: ``tp`` with sequence
        parallelism, else 1.
    query, key_value
        Width of this rank's query heads, and of its key (or value) heads.
    up, down
        Width of the MLP's first product's output, and of the second's input.
    vocab
        This rank's part of the padded vocabulary.
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

    @classmethod
    def of(cls, model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> "LocalShapes":
        """Sizes under a configuration."""
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
        )

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on this rank inside the matrix products."""
        return self.seq_length * self.micro_batch_size

    @property
    def sharded_tokens(self) -> int:
        """Tokens of one micro-batch on this rank outside of the matrix products."""
        return self.tokens // self.sequence_shards
