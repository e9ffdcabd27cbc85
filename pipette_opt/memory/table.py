"""Computation of the stage table (:mod:`~pipette_opt.memory.stage_rows`) for many configurations at once."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import cast

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.layers.attention import AttentionBranch
from pipette_opt.layers.kinds import count_layers
from pipette_opt.layers.parameters import embedding_parameters, head_parameters, layer_parameters
from pipette_opt.memory.chunk_layers import held_of_chunks, layers_of_chunks
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.parallel import ParallelConfig, microbatches_of
from pipette_opt.parallel.schedule import num_in_flight
from pipette_opt.specs import LayerKind, ModelSpec, TrainingSpec
from pipette_opt.specs.activations import host_keeps, moved_bytes


def stage_table(
    model: ModelSpec,
    training: TrainingSpec,
    configs: Sequence[ParallelConfig],
    *,
    num_microbatches: int | None = None,
    stage: int | None = None,
) -> StageTable:
    """
    Return a row for every stage of every configuration, in order, or for one ``stage`` of each configuration.

    Parameters
    ----------
    num_microbatches
        Micro-batches per replica and iteration; ``None``: from the batch sizes.
    stage
        Index of the only stage that gets rows; ``None``: all stages.
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

    def column(name: str) -> IntArray:
        return _column(configs, name)[config_of_row]

    tp, cp = column("tensor_model_parallel_size"), column("context_parallel_size")
    mbs, chunks, zero = column("micro_batch_size"), column("num_chunks"), column("sharding_stage")
    sharing = column("sharing_ranks")
    ep, etp = column("expert_model_parallel_size"), column("expert_tensor_size")
    again = {name: _recomputes(configs, module)[config_of_row] for name, module in AGAIN.items()}
    full = np.array([config.recompute_granularity == "full" for config in configs])[config_of_row]
    block = np.array([config.recompute_method == "block" for config in configs])[config_of_row]
    at_once = column("recompute_num_layers")
    microbatches = np.array(num_microbatches)
    if num_microbatches is None:
        microbatches = np.array([microbatches_of(training, config) for config in configs])[config_of_row]
    first, last = stages == 0, stages == pp - 1
    own_of_chunk, before = layers_of_chunks(configs, config_of_row, stages)
    all_layers = (*model.layers, *model.mtp_layers * model.mtp_num_layers)
    more_layers, held_layers = (len(model.mtp_layers) * n for n in (model.mtp_num_layers, model.num_own_mtp_layers))
    ends = last & (np.arange(len(own_of_chunk))[:, None] == chunks - 1)
    of_chunk = own_of_chunk + ends * more_layers
    layers = layers + last * more_layers
    recomputed = full * np.where(block, np.minimum(at_once, own_of_chunk), of_chunk)
    kept = np.where(block, recomputed, -(-recomputed // at_once))
    in_flight = num_in_flight(pp, stages, chunks, microbatches)
    held, later_layers = held_of_chunks(of_chunk, in_flight, pp, chunks, microbatches, last)

    def in_flight_mean(counts: IntArray) -> FloatArray:
        mean: FloatArray = (held * counts).sum(axis=0) / in_flight
        return mean

    chunk_layers = in_flight_mean(of_chunk)
    kinds = count_layers(all_layers, before, before + of_chunk)
    recomputed_kinds = count_layers(all_layers, before, before + recomputed)
    with_weights = count_layers(all_layers, before, before + own_of_chunk + ends * held_layers)

    def part(has: Callable[[LayerKind], bool]) -> tuple[IntArray, FloatArray]:
        """Return the layers of each chunk for which ``has`` holds, and how many keep activations on average."""
        with_part = [kind for kind in kinds if has(kind)]
        count = sum((kinds[kind] for kind in with_part), np.zeros_like(of_chunk))
        recomputed_count = sum((recomputed_kinds[kind] for kind in with_part), np.zeros_like(of_chunk))
        return count, in_flight_mean(count - recomputed_count)

    attention_of_chunk, kept_attention = part(lambda kind: kind.has_attention)
    recurrent_of_chunk, kept_recurrent = part(lambda kind: model.recurrent_mixer(kind) is not None)
    dense_of_chunk, kept_dense = part(lambda kind: kind.mlp == "dense")
    moe_of_chunk, kept_experts = part(lambda kind: kind.has_experts)
    attention_layers, dense_layers, moe_layers = (
        layers_of_part.sum(axis=0) for layers_of_part in (attention_of_chunk, dense_of_chunk, moe_of_chunk)
    )

    h = model.hidden_size
    multiple = model.make_vocab_size_divisible_by * tp
    vocab = -(-model.vocab_size // multiple) * multiple // tp
    positions = model.max_position_embeddings if model.position_embedding_type == "learned_absolute" else 0
    own_head = (pp > 1) | model.untie_embeddings_and_output_weights
    heads = model.num_attention_heads // tp
    key_value = np.maximum(model.num_query_groups // tp, 1) * model.kv_head_size
    query = model.query_projection_size // tp
    down = model.ffn_hidden_size // tp
    gates = 2 if model.gated_linear_unit else 1
    shared = model.moe_shared_expert_intermediate_size // tp
    expert_down = model.expert_ffn_size // etp if model.num_experts else 0 * etp
    num_experts = model.num_experts or 0
    local = num_experts // ep
    latent = model.multi_latent_attention
    mixers = [mixer for mixer in map(model.mixer, kinds) if isinstance(mixer, AttentionBranch)]
    attention_kind = LayerKind() if latent is None else mixers[0].kind
    shapes = ((query + 2 * key_value, h), (h, query))
    if latent is not None:
        shapes = tuple(product.on_rank(tp) for product in mixers[0].products)  # type: ignore[assignment]
    gate = query * model.attention_output_gate
    if model.attention_output_gate:
        shapes = ((2 * query + 2 * key_value, h), (h, query))
    attention_matrices = sum(n * k for n, k in shapes)
    routed = model.expert_hidden_size
    expert_size = local * (gates + 1) * routed * expert_down

    def matrix_size(kind: LayerKind) -> IntArray:
        mlp = {"dense": down, "experts": shared, "none": 0 * tp}[kind.mlp]
        of_experts = kind.has_experts * (expert_size + 2 * h * (model.moe_latent_size or 0))
        mixer, recurrent = kind.has_attention * attention_matrices, model.recurrent_mixer(kind)
        if recurrent is not None:
            mixer = h * (recurrent.in_size + recurrent.out_size) // tp
        size: IntArray = mixer + h * (gates + 1) * mlp + of_experts
        return size

    of_kinds = [
        (
            layers_of_kind.sum(axis=0),
            layer_parameters(model, kind).on_rank(tp),
            kind.has_experts * expert_size,
            matrix_size(kind),
        )
        for kind, layers_of_kind in with_weights.items()
    ]
    projections = last * model.num_own_mtp_layers * 2 * h * (h / tp)
    embeddings = first * embedding_parameters(model, tp).on_rank(tp)
    head = last * head_parameters(model, tp, pp).on_rank(tp)
    latent_experts = (moe_layers > 0) & (model.moe_latent_size is not None)
    widths = (
        (dense_layers > 0, down, h),
        ((moe_layers > 0) & (shared > 0), shared, h),
        (moe_layers > 0, expert_down, routed),
    )
    units = [
        *chain(*(_twice(count, own + experts, matrices) for count, own, experts, matrices in of_kinds)),
        (embeddings, np.zeros(len(layers))),
        (head, np.zeros(len(layers))),
    ]
    tokens, recurrent = training.seq_length // cp * mbs, model.recurrent_mixers.values()
    unfused = training.attention_kernel != "flash"
    columns = {
        "tokens": tokens,
        "shards": np.where(column("sequence_parallel") == 1, tp, 1),
        "element": training.parameter_bytes,
        "gradient": training.gradient_bytes,
        "state": training.optimizer_bytes,
        "state_shards": np.where(zero > 0, sharing * column("state_groups"), 1),
        "zero": zero,
        "replicas": sharing,
        "expert_replicas": np.maximum(sharing * tp // (ep * etp), 1),
        "step": training.step_bytes,
        "fp8": 0.0 if training.recipe is None else training.recipe.element_bytes,
        "muon": training.optimizer == "muon",
        "copies": 2 if training.recipe is None else training.recipe.copies,
        "only_copies": training.fp8_param_gather,
        "offloaded": chunk_layers * _moved(model, training, configs)[config_of_row],
        "on_host": np.array([host_keeps(training, each).optimizer_offload_fraction for each in configs])[config_of_row],
        "layers": layers,
        "chunk_layers": chunk_layers,
        "later_layers": later_layers,
        "moe_layers": moe_layers,
        "moe_share": (held * moe_of_chunk).sum(axis=0) / np.maximum(in_flight * chunk_layers, 1),
        "in_flight": in_flight,
        "first_in_flight": np.where(chunks > 1, held[0], in_flight),
        "first_chunk": of_chunk[0] / np.where(chunk_layers > 0, chunk_layers, 1),
        "first": first,
        "last": last,
        "depths": last * model.mtp_num_layers,
        "dense_layers": dense_layers,
        "attention_layers": attention_layers,
        "recurrent_layers": recurrent_of_chunk.sum(axis=0),
        "kept_recurrent": kept_recurrent,
        "recurrent_inside": tokens
        / tp
        * max((mixer.kept_bytes(training.parameter_bytes) for mixer in recurrent), default=0),
        "recurrent_work": tokens
        / tp
        * training.parameter_bytes
        * max((mixer.in_size + mixer.conv_size + 2 * mixer.out_size for mixer in recurrent), default=0),
        "kept_attention": kept_attention,
        "kept_beside": max((branch.kept_beside(training.parameter_bytes) for branch in mixers), default=0.0),
        "kept_dense": kept_dense,
        "kept_experts": kept_experts,
        "has_both": any(kind.mixer != "none" and kind.mlp != "none" for kind in kinds),
        "layer_parameters": layer_parameters(model, attention_kind).on_rank(tp),
        "own_parameters": sum(count * own for count, own, _, _ in of_kinds),
        "expert_parameters": sum(count * experts for count, _, experts, _ in of_kinds),
        "first_parameters": embeddings,
        "last_parameters": head,
        "matrix_parameters": sum(count * matrices for count, _, _, matrices in of_kinds) + projections,
        "unit_parameters": _two_largest(*(size for size, _ in units)),
        "unit_matrices": _two_largest(*(size for _, size in units)),
        "placeholders": _of_distinct(
            *((attention_layers > 0, rows, columns) for rows, columns in shapes),
            *(
                shape
                for mixer in recurrent
                for shape in (
                    (recurrent_of_chunk.sum(axis=0) > 0, mixer.in_size // tp, h),
                    (recurrent_of_chunk.sum(axis=0) > 0, h, mixer.out_size // tp),
                )
            ),
            (projections > 0, h // tp, 2 * h),
            *(
                (has_it, rows, columns)
                for has_it, width, inputs in widths
                for rows, columns in ((gates * width, inputs), (inputs, width))
            ),
            *((latent_experts, rows, columns) for rows, columns in ((routed, h), (h, routed))),
        ),
        "shared_table": h * vocab * ~own_head,
        "largest_table": h * np.maximum(vocab, positions),
        "hidden": h,
        "query": query,
        "key_value": key_value,
        "output": model.attention_output_size // tp,
        "gate": gate,
        "latent": latent.latent_size if latent else 0,
        "downs": latent.down_size if latent else 0,
        "down_projections": len(latent.down_sizes) if latent else 0,
        "up": down * gates,
        "down": down,
        "vocab": vocab,
        "heads": heads,
        "scores": unfused * heads * tokens * (training.seq_length // cp),
        "statistics": 2 if model.normalization == "LayerNorm" else 1,
        "post_norms": model.more_norms,
        "hidden_dropout": model.hidden_dropout > 0,
        "attention_dropout": model.attention_dropout > 0,
        "rope": model.has_rotary_positions,
        "qk_norm": model.qk_layernorm and latent is None,
        "tensor": tp,
        "context": cp,
        "num_experts": num_experts,
        "local_experts": local,
        "topk": model.moe_router_topk * (num_experts > 0),
        "arriving": model.moe_router_topk * (num_experts > 0) * _of_distinct_values(training.imbalance, ep),
        "expert_ranks": ep,
        "expert_tensor": etp,
        "routed": routed,
        "expert_latent": model.moe_latent_size or 0,
        "expert_up": gates * expert_down,
        "expert_down": expert_down,
        "shared_up": gates * shared,
        "shared_down": shared,
        **again,
        "full": in_flight_mean(recomputed) / np.where(chunk_layers > 0, chunk_layers, 1),
        "inputs_kept": in_flight_mean(kept),
        "brought_back": np.minimum(np.where(block, 1, at_once), of_chunk.max(axis=0)) * full,
        "interleaved": chunks > 1,
    }
    table = np.empty((len(columns), len(config_of_row)))
    for cells, value in zip(table, columns.values(), strict=True):
        cells[:] = value
    table.setflags(write=False)
    return StageTable(**dict(zip(columns, table, strict=True)))


AGAIN = {
    "selective": "core_attn",
    "again_up": "mla_up_proj",
    "again_mlp": "mlp",
    "again_moe": "moe",
    "again_shared": "shared_experts",
    "again_act": "moe_act",
    "again_norm": "layernorm",
}
"""Modules of selective recomputation, by the field of the table that says whether they are recomputed."""


def _recomputes(configs: Sequence[ParallelConfig], module: str) -> BoolArray:
    """Return the mask of configurations with selective recomputation of a module."""
    return np.array(
        [config.recompute_granularity == "selective" and config.recomputes(module) for config in configs], dtype=bool
    )


def _moved(model: ModelSpec, training: TrainingSpec, configs: Sequence[ParallelConfig]) -> FloatArray:
    """Return the bytes that a layer offloads per micro-batch, averaged over the layers, by configuration."""
    if training.offload.is_nothing and all(config.offload is None for config in configs):
        return np.zeros(len(configs))
    kinds = Counter(model.layers)
    return np.array(
        [
            sum(count * moved_bytes(model, training, config, kind) for kind, count in kinds.items()) / model.num_layers
            for config in configs
        ]
    )


def _column(configs: Sequence[ParallelConfig], name: str) -> IntArray:
    return cast(IntArray, np.array([getattr(config, name) for config in configs], dtype=np.int64))


def _twice(
    count: IntArray, size: FloatArray | float, matrices: FloatArray | IntArray
) -> list[tuple[FloatArray, FloatArray]]:
    """Return (size, matrices) of a kind's first and second layer in each row, 0 where the stage lacks it."""
    sizes = []
    for n in (0, 1):
        exists = (count > n).astype(np.float64)
        sizes.append((exists * size, exists * matrices))
    return sizes


def _of_distinct_values(ask: Callable[[int], float], values: IntArray) -> FloatArray:
    """Return the result of a function for each value; the function is called once per distinct value."""
    distinct, where = np.unique(values, return_inverse=True)
    answers: FloatArray = np.array([ask(int(value)) for value in distinct], dtype=np.float64)[where]
    return answers


def _of_distinct(*shapes: tuple[BoolArray, IntArray | int, IntArray | int]) -> FloatArray:
    """
    Return the total elements of the existing shapes in each row; equal shapes count once.

    Parameters
    ----------
    shapes
        Mask of rows where the matrix exists, its number of rows, and its number of columns.
    """
    total = np.zeros(len(shapes[0][0]))
    seen: list[tuple[BoolArray, IntArray | int, IntArray | int]] = []
    for exists, rows, columns in shapes:
        known = np.zeros_like(exists)
        for before, before_rows, before_columns in seen:
            known |= before & (before_rows == rows) & (before_columns == columns)
        total += (exists & ~known) * np.asarray(rows, dtype=np.float64) * columns
        seen.append((exists, rows, columns))
    return total


def _two_largest(*sizes: FloatArray) -> FloatArray:
    """Return the sum of the two largest sizes in each row."""
    total: FloatArray = np.sort(np.stack(sizes), axis=0)[-2:].sum(axis=0)
    return total
