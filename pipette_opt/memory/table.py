"""Stages as rows of numbers: what the closed formula and the features are computed from, all rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.schedule import num_in_flight
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.types import FloatArray, IntArray


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
        Ranks among which the optimizer state is split.
    layers, chunk_layers
        Transformer layers of the stage, and of one of its chunks.
    in_flight
        Forward passes of a chunk whose activations are held at most at once.
    first, last
        1 on the first, on the last stage.
    layer_parameters, first_parameters, last_parameters
        On one rank: of one layer, of the embeddings, of final norm and head.
    largest_table
        Parameters of the larger of the two embedding tables on one rank, whatever the stage.
    query, key_value, up, down, vocab, heads
        Local widths.
    scores
        Elements of one layer's attention scores, 0 with a kernel that does not store them.
    statistics
        fp32 numbers per token that one norm keeps.
    selective, full
        1 if the attention core, if whole layers are recomputed.
    """

    tokens: FloatArray
    shards: FloatArray
    element: FloatArray
    gradient: FloatArray
    state: FloatArray
    state_shards: FloatArray
    layers: FloatArray
    chunk_layers: FloatArray
    in_flight: FloatArray
    first: FloatArray
    last: FloatArray
    layer_parameters: FloatArray
    first_parameters: FloatArray
    last_parameters: FloatArray
    largest_table: FloatArray
    hidden: FloatArray
    query: FloatArray
    key_value: FloatArray
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
    selective: FloatArray
    full: FloatArray
    interleaved: FloatArray

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.tokens)


def join_tables(tables: Sequence[StageTable]) -> StageTable:
    """All rows, one table after the other."""
    return StageTable(
        **{field.name: np.concatenate([getattr(table, field.name) for table in tables]) for field in fields(StageTable)}
    )


def stage_table(
    model: ModelSpec,
    training: TrainingSpec,
    configs: Sequence[ParallelConfig],
    *,
    num_microbatches: int | None = None,
    stage: int | None = None,
) -> StageTable:
    """
    Rows of every stage of every configuration, in order; or of one ``stage`` of each.

    Parameters
    ----------
    num_microbatches
        Per replica and iteration; from the batch sizes if ``None``.
    """
    pp = _column(configs, "pipeline_model_parallel_size")
    if stage is None:
        config_of_row = np.repeat(np.arange(len(configs)), pp)
        starts = np.repeat(np.cumsum(pp) - pp, pp)
        stages = np.arange(len(config_of_row)) - starts
        layers = np.array([layer for config in configs for layer in config.layers_per_stage], dtype=np.int64)
    else:
        config_of_row = np.arange(len(configs))
        stages = np.full(len(configs), stage)
        layers = np.array([config.layers_per_stage[stage] for config in configs], dtype=np.int64)
    pp = pp[config_of_row]
    tp, dp, cp, mbs = (
        _column(configs, name)[config_of_row]
        for name in (
            "tensor_model_parallel_size",
            "data_parallel_size",
            "context_parallel_size",
            "micro_batch_size",
        )
    )
    chunks = np.array([config.num_chunks for config in configs], dtype=np.int64)[config_of_row]
    sequence_parallel = _column(configs, "sequence_parallel")[config_of_row]
    distributed = _column(configs, "use_distributed_optimizer")[config_of_row]
    selective = np.array([config.recompute_granularity == "selective" for config in configs])[config_of_row]
    full = np.array([config.recompute_granularity == "full" for config in configs])[config_of_row]
    microbatches = training.global_batch_size // (dp * mbs) if num_microbatches is None else np.array(num_microbatches)
    first, last = stages == 0, stages == pp - 1

    h = model.hidden_size
    multiple = model.make_vocab_size_divisible_by * tp
    vocab = -(-model.vocab_size // multiple) * multiple // tp
    positions = model.max_position_embeddings if model.position_embedding_type == "learned_absolute" else 0
    own_head = (pp > 1) | model.untie_embeddings_and_output_weights
    heads = model.num_attention_heads // tp
    key_value = np.maximum(model.num_query_groups // tp, 1) * model.kv_channels
    down = model.ffn_hidden_size // tp
    tokens = training.seq_length // cp * mbs
    unfused = training.attention_kernel != "flash"
    columns = {
        "tokens": tokens,
        "shards": np.where(sequence_parallel == 1, tp, 1),
        "element": training.parameter_bytes,
        "gradient": training.gradient_bytes,
        "state": training.optimizer_bytes,
        "state_shards": np.where(distributed == 1, dp * cp, 1),
        "layers": layers,
        "chunk_layers": layers / chunks,
        "in_flight": num_in_flight(pp, stages, chunks, microbatches),
        "first": first,
        "last": last,
        "layer_parameters": model.replicated_layer_parameters + model.sharded_layer_parameters / tp,
        "first_parameters": first * h * (vocab + positions),
        "last_parameters": last * (model.norm_parameters + own_head * h * vocab),
        "largest_table": h * np.maximum(vocab, positions),
        "hidden": h,
        "query": model.query_projection_size // tp,
        "key_value": key_value,
        "up": down * (2 if model.gated_linear_unit else 1),
        "down": down,
        "vocab": vocab,
        "heads": heads,
        "scores": unfused * heads * tokens * (training.seq_length // cp),
        "statistics": 2 if model.normalization == "LayerNorm" else 1,
        "hidden_dropout": model.hidden_dropout > 0,
        "attention_dropout": model.attention_dropout > 0,
        "rope": model.position_embedding_type == "rope",
        "qk_norm": model.qk_layernorm,
        "tensor": tp,
        "selective": selective,
        "full": full,
        "interleaved": chunks > 1,
    }
    shape = (len(config_of_row),)
    return StageTable(**{name: np.broadcast_to(np.float64(value), shape) for name, value in columns.items()})


def _column(configs: Sequence[ParallelConfig], name: str) -> IntArray:
    return cast(IntArray, np.array([getattr(config, name) for config in configs], dtype=np.int64))
