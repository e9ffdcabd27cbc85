"""Computation of the stage table (:mod:`~pipette_opt.memory.stage_rows`) for many configurations at once."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

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
    rows = _rows(model, training, configs, stage)
    chunks = _chunks(rows, num_microbatches)
    columns = (
        _training_columns(rows)
        | _layer_columns(rows, chunks)
        | _recompute_columns(rows, chunks)
        | _recurrent_columns(rows, chunks)
        | _parameter_columns(rows, chunks)
        | _width_columns(rows)
        | _expert_columns(rows)
    )
    table = np.empty((len(columns), rows.count))
    for cells, value in zip(table, columns.values(), strict=True):
        cells[:] = value
    table.setflags(write=False)
    return StageTable(**dict(zip(columns, table, strict=True)))


Columns = dict[str, Any]
"""Columns of the table by name: an array, or a number for all rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Rows of the table, with the configuration and the stage of each, and what is trained."""

    model: ModelSpec
    training: TrainingSpec
    configs: Sequence[ParallelConfig]
    config_of_row: IntArray
    stages: IntArray
    layers: IntArray
    known: dict[str, IntArray]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.stages)

    @property
    def tensor(self) -> IntArray:
        """Tensor-parallel ranks of each row."""
        return self.column("tensor_model_parallel_size")

    @property
    def first(self) -> BoolArray:
        """Mask of first stages."""
        mask: BoolArray = self.stages == 0
        return mask

    @property
    def last(self) -> BoolArray:
        """Mask of last stages."""
        mask: BoolArray = self.stages == self.column("pipeline_model_parallel_size") - 1
        return mask

    @property
    def tokens(self) -> IntArray:
        """Tokens of a micro-batch on one rank."""
        return self.training.seq_length // self.column("context_parallel_size") * self.column("micro_batch_size")

    def column(self, name: str) -> IntArray:
        """Return a number of the configuration of each row, computed once."""
        if name not in self.known:
            self.known[name] = _column(self.configs, name)[self.config_of_row]
        return self.known[name]

    def mask(self, holds: Callable[[ParallelConfig], bool]) -> BoolArray:
        """Return the mask of rows whose configuration meets a condition."""
        return np.array([holds(config) for config in self.configs], dtype=bool)[self.config_of_row]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Chunks:
    """
    Layers of the chunks of each row; counts have shape ``(num_chunks, num_rows)``.

    Parameters
    ----------
    of_chunk, recomputed
        Layers of each chunk, and those recomputed whole.
    is_full, is_block
        Masks of rows that recompute whole layers, and only the first ones of a chunk; shape ``(num_rows,)``.
    in_flight
        Largest number of micro-batches in flight, shape ``(num_rows,)``.
    held, later_layers
        Micro-batches in flight of each chunk, and layers held later; see :func:`held_of_chunks`.
    kinds, recomputed_kinds, with_weights
        Layers of each kind: all, those recomputed whole, and those with weights of their own.
    """

    of_chunk: IntArray
    recomputed: IntArray
    is_full: BoolArray
    is_block: BoolArray
    in_flight: IntArray
    held: IntArray
    later_layers: IntArray
    kinds: Mapping[LayerKind, IntArray]
    recomputed_kinds: Mapping[LayerKind, IntArray]
    with_weights: Mapping[LayerKind, IntArray]

    def mean_in_flight(self, counts: IntArray) -> FloatArray:
        """Return the mean of a count over the chunks, weighted by their micro-batches in flight."""
        mean: FloatArray = (self.held * counts).sum(axis=0) / self.in_flight
        return mean

    def layers_with(self, has: Callable[[LayerKind], bool]) -> tuple[IntArray, FloatArray]:
        """Return the layers of each chunk for which ``has`` holds, and how many keep activations on average."""
        with_part = [kind for kind in self.kinds if has(kind)]
        count = sum((self.kinds[kind] for kind in with_part), np.zeros_like(self.of_chunk))
        recomputed = sum((self.recomputed_kinds[kind] for kind in with_part), np.zeros_like(self.of_chunk))
        return count, self.mean_in_flight(count - recomputed)

    def stage_layers(self, has: Callable[[LayerKind], bool]) -> IntArray:
        """Return the layers of each stage for which ``has`` holds."""
        count: IntArray = self.layers_with(has)[0].sum(axis=0)
        return count


def _rows(model: ModelSpec, training: TrainingSpec, configs: Sequence[ParallelConfig], stage: int | None) -> _Rows:
    """Return the rows of all stages, or of one stage of each configuration."""
    if stage is None:
        pp = _column(configs, "pipeline_model_parallel_size")
        config_of_row = np.repeat(np.arange(len(configs)), pp)
        stages = np.arange(len(config_of_row)) - np.repeat(np.cumsum(pp) - pp, pp)
        layers = [count for config in configs for count in config.layers_per_stage]
    else:
        config_of_row, stages = np.arange(len(configs)), np.full(len(configs), stage)
        layers = [config.layers_per_stage[stage] for config in configs]
    return _Rows(
        model=model,
        training=training,
        configs=configs,
        config_of_row=config_of_row,
        stages=stages,
        layers=np.array(layers, dtype=np.int64),
        known={},
    )


def _chunks(rows: _Rows, num_microbatches: int | None) -> _Chunks:
    """Return the layers of the chunks of each row."""
    model, configs, last = rows.model, rows.configs, rows.last
    pp, chunks = rows.column("pipeline_model_parallel_size"), rows.column("num_chunks")
    microbatches = np.array(num_microbatches)
    if num_microbatches is None:
        microbatches = np.array([microbatches_of(rows.training, each) for each in configs])[rows.config_of_row]
    own_of_chunk, before = layers_of_chunks(configs, rows.config_of_row, rows.stages)
    more_layers, held_layers = (len(model.mtp_layers) * n for n in (model.mtp_num_layers, model.num_own_mtp_layers))
    ends = last & (np.arange(len(own_of_chunk))[:, None] == chunks - 1)
    of_chunk = own_of_chunk + ends * more_layers
    at_most = np.minimum(rows.column("recompute_num_layers"), own_of_chunk)
    is_full = rows.mask(lambda config: config.recompute_granularity == "full")
    is_block = rows.mask(lambda config: config.recompute_method == "block")
    recomputed: IntArray = np.where(is_full, np.where(is_block, at_most, of_chunk), 0)
    in_flight = num_in_flight(pp, rows.stages, chunks, microbatches)
    held, later_layers = held_of_chunks(of_chunk, in_flight, pp, chunks, microbatches, last)
    layers = (*model.layers, *model.mtp_layers * model.mtp_num_layers)
    return _Chunks(
        of_chunk=of_chunk,
        recomputed=recomputed,
        is_full=is_full,
        is_block=is_block,
        in_flight=in_flight,
        held=held,
        later_layers=later_layers,
        kinds=count_layers(layers, before, before + of_chunk),
        recomputed_kinds=count_layers(layers, before, before + recomputed),
        with_weights=count_layers(layers, before, before + own_of_chunk + ends * held_layers),
    )


def _training_columns(rows: _Rows) -> Columns:
    """Return tokens, formats, and the ranks that share tensors."""
    training, tp, sharing = rows.training, rows.tensor, rows.column("sharing_ranks")
    zero, recipe = rows.column("sharding_stage"), rows.training.recipe
    ranks_of_experts = rows.column("expert_model_parallel_size") * rows.column("expert_tensor_size")
    host = np.array([host_keeps(training, each).optimizer_offload_fraction for each in rows.configs])
    return {
        "tokens": rows.tokens,
        "shards": np.where(rows.column("sequence_parallel") == 1, tp, 1),
        "element": training.parameter_bytes,
        "gradient": training.gradient_bytes,
        "state": training.optimizer_bytes,
        "state_shards": np.where(zero > 0, sharing * rows.column("state_groups"), 1),
        "zero": zero,
        "replicas": sharing,
        "expert_replicas": np.maximum(sharing * tp // ranks_of_experts, 1),
        "step": training.step_bytes,
        "fp8": 0.0 if recipe is None else recipe.element_bytes,
        "muon": training.optimizer == "muon",
        "copies": 2 if recipe is None else recipe.copies,
        "only_copies": training.fp8_param_gather,
        "on_host": host[rows.config_of_row],
        "tensor": tp,
        "context": rows.column("context_parallel_size"),
    }


def _layer_columns(rows: _Rows, chunks: _Chunks) -> Columns:
    """Return the layers of stage and chunk, of each part, and those in flight."""
    model, last, num_chunks = rows.model, rows.last, rows.column("num_chunks")
    chunk_layers = chunks.mean_in_flight(chunks.of_chunk)
    attention_of_chunk, kept_attention = chunks.layers_with(lambda kind: kind.has_attention)
    dense_of_chunk, kept_dense = chunks.layers_with(lambda kind: kind.mlp == "dense")
    branches, element = _attention_branches(rows, chunks), rows.training.parameter_bytes
    moe_of_chunk, kept_experts = chunks.layers_with(lambda kind: kind.has_experts)
    return {
        "offloaded": chunk_layers * _moved(model, rows.training, rows.configs)[rows.config_of_row],
        "layers": rows.layers + last * len(model.mtp_layers) * model.mtp_num_layers,
        "chunk_layers": chunk_layers,
        "later_layers": chunks.later_layers,
        "moe_layers": moe_of_chunk.sum(axis=0),
        "moe_share": (chunks.held * moe_of_chunk).sum(axis=0) / np.maximum(chunks.in_flight * chunk_layers, 1),
        "dense_layers": dense_of_chunk.sum(axis=0),
        "attention_layers": attention_of_chunk.sum(axis=0),
        "kept_attention": kept_attention,
        "kept_beside": max((branch.kept_beside(element) for branch in branches), default=0.0),
        "kept_dense": kept_dense,
        "kept_experts": kept_experts,
        "has_both": any(kind.mixer != "none" and kind.mlp != "none" for kind in chunks.kinds),
        "in_flight": chunks.in_flight,
        "first_in_flight": np.where(num_chunks > 1, chunks.held[0], chunks.in_flight),
        "first_chunk": chunks.of_chunk[0] / np.where(chunk_layers > 0, chunk_layers, 1),
        "first": rows.first,
        "last": last,
        "depths": last * model.mtp_num_layers,
        "interleaved": num_chunks > 1,
    }


def _recompute_columns(rows: _Rows, chunks: _Chunks) -> Columns:
    """Return what is recomputed: modules of layers, and whole layers."""
    is_block, at_once = chunks.is_block, rows.column("recompute_num_layers")
    chunk_layers = chunks.mean_in_flight(chunks.of_chunk)
    kept = np.where(is_block, chunks.recomputed, -(-chunks.recomputed // at_once))
    return {
        **{name: rows.mask(_recomputes(module)) for name, module in AGAIN.items()},
        "full": chunks.mean_in_flight(chunks.recomputed) / np.where(chunk_layers > 0, chunk_layers, 1),
        "inputs_kept": chunks.mean_in_flight(kept),
        "brought_back": np.minimum(np.where(is_block, 1, at_once), chunks.of_chunk.max(axis=0)) * chunks.is_full,
    }


def _recurrent_columns(rows: _Rows, chunks: _Chunks) -> Columns:
    """Return recurrent layers and the bytes of the largest kind."""
    element, mixers = rows.training.parameter_bytes, rows.model.recurrent_mixers.values()
    of_chunk, kept = chunks.layers_with(lambda kind: rows.model.recurrent_mixer(kind) is not None)
    widths = (mixer.in_size + mixer.conv_size + 2 * mixer.out_size for mixer in mixers)
    return {
        "recurrent_layers": of_chunk.sum(axis=0),
        "kept_recurrent": kept,
        "recurrent_inside": rows.tokens / rows.tensor * max((mixer.kept_bytes(element) for mixer in mixers), default=0),
        "recurrent_work": rows.tokens / rows.tensor * element * max(widths, default=0),
    }


def _width_columns(rows: _Rows) -> Columns:
    """Return the local widths of attention and MLP, and the flags of the model."""
    model, training, tp = rows.model, rows.training, rows.tensor
    latent, heads = model.multi_latent_attention, model.num_attention_heads // tp
    query, down = model.query_projection_size // tp, model.ffn_hidden_size // tp
    unfused = training.attention_kernel != "flash"
    positions = training.seq_length // rows.column("context_parallel_size")
    return {
        "hidden": model.hidden_size,
        "query": query,
        "key_value": _key_value(model, tp),
        "output": model.attention_output_size // tp,
        "gate": query * model.attention_output_gate,
        "latent": latent.latent_size if latent else 0,
        "downs": latent.down_size if latent else 0,
        "down_projections": len(latent.down_sizes) if latent else 0,
        "up": down * _gates(model),
        "down": down,
        "vocab": _vocab(model, tp),
        "heads": heads,
        "scores": unfused * heads * rows.tokens * positions,
        "statistics": 2 if model.normalization == "LayerNorm" else 1,
        "post_norms": model.more_norms,
        "hidden_dropout": model.hidden_dropout > 0,
        "attention_dropout": model.attention_dropout > 0,
        "rope": model.has_rotary_positions,
        "qk_norm": model.qk_layernorm and latent is None,
    }


def _expert_columns(rows: _Rows) -> Columns:
    """Return the sizes of a layer with experts."""
    model, ep, etp = rows.model, rows.column("expert_model_parallel_size"), rows.column("expert_tensor_size")
    topk = model.moe_router_topk * ((model.num_experts or 0) > 0)
    down, shared, gates = _expert_down(rows), _shared_down(rows), _gates(model)
    return {
        "num_experts": model.num_experts or 0,
        "local_experts": (model.num_experts or 0) // ep,
        "topk": topk,
        "arriving": topk * _of_distinct_values(rows.training.imbalance, ep),
        "expert_ranks": ep,
        "expert_tensor": etp,
        "routed": model.expert_hidden_size,
        "expert_latent": model.moe_latent_size or 0,
        "expert_up": gates * down,
        "expert_down": down,
        "shared_up": gates * shared,
        "shared_down": shared,
    }


def _gates(model: ModelSpec) -> int:
    """Return the number of matrices that an MLP multiplies its input with."""
    return 2 if model.gated_linear_unit else 1


def _vocab(model: ModelSpec, tp: IntArray) -> IntArray:
    """Return the padded vocabulary on one rank."""
    multiple = model.make_vocab_size_divisible_by * tp
    return -(-model.vocab_size // multiple) * multiple // tp


def _key_value(model: ModelSpec, tp: IntArray) -> IntArray:
    """Return the mean local width of keys and values."""
    width: IntArray = np.maximum(model.num_query_groups // tp, 1) * model.kv_head_size
    return width


def _expert_down(rows: _Rows) -> IntArray:
    """Return the local inner width of a routed expert; 0 without experts."""
    etp = rows.column("expert_tensor_size")
    return rows.model.expert_ffn_size // etp if rows.model.num_experts else 0 * etp


def _shared_down(rows: _Rows) -> IntArray:
    """Return the local inner width of the shared experts."""
    return rows.model.moe_shared_expert_intermediate_size // rows.tensor


def _attention_branches(rows: _Rows, chunks: _Chunks) -> list[AttentionBranch]:
    """Return the attention of each kind of layer that has one."""
    return [mixer for mixer in map(rows.model.mixer, chunks.kinds) if isinstance(mixer, AttentionBranch)]


def _attention_shapes(rows: _Rows, chunks: _Chunks) -> Sequence[tuple[IntArray | int, IntArray | int]]:
    """Return the local shapes of attention's matrices."""
    model, tp, h = rows.model, rows.tensor, rows.model.hidden_size
    if model.multi_latent_attention is not None:
        return tuple(product.on_rank(tp) for product in _attention_branches(rows, chunks)[0].products)
    query, key_value = model.query_projection_size // tp, _key_value(model, tp)
    return ((1 + model.attention_output_gate) * query + 2 * key_value, h), (h, query)


def _expert_size(rows: _Rows) -> IntArray:
    """Return the parameters of a layer's routed experts on one rank."""
    local = (rows.model.num_experts or 0) // rows.column("expert_model_parallel_size")
    size: IntArray = local * (_gates(rows.model) + 1) * rows.model.expert_hidden_size * _expert_down(rows)
    return size


def _matrix_size(rows: _Rows, chunks: _Chunks, kind: LayerKind) -> IntArray:
    """Return the parameters of a layer on one rank in matrices of fp8 training."""
    model, tp, h = rows.model, rows.tensor, rows.model.hidden_size
    mlp = {"dense": model.ffn_hidden_size // tp, "experts": _shared_down(rows), "none": 0 * tp}[kind.mlp]
    of_experts = kind.has_experts * (_expert_size(rows) + 2 * h * (model.moe_latent_size or 0))
    mixer, recurrent = (
        kind.has_attention * sum(n * k for n, k in _attention_shapes(rows, chunks)),
        model.recurrent_mixer(kind),
    )
    if recurrent is not None:
        mixer = h * (recurrent.in_size + recurrent.out_size) // tp
    size: IntArray = mixer + h * (_gates(model) + 1) * mlp + of_experts
    return size


def _parameter_columns(rows: _Rows, chunks: _Chunks) -> Columns:
    """Return the parameters of layers, embeddings and head on one rank, and elements of their largest tensors."""
    model, tp, h = rows.model, rows.tensor, rows.model.hidden_size
    pp = rows.column("pipeline_model_parallel_size")
    of_kinds = [
        (
            layers_of_kind.sum(axis=0),
            layer_parameters(model, kind).on_rank(tp),
            kind.has_experts * _expert_size(rows),
            _matrix_size(rows, chunks, kind),
        )
        for kind, layers_of_kind in chunks.with_weights.items()
    ]
    is_latent = model.multi_latent_attention is not None
    attention_kind = _attention_branches(rows, chunks)[0].kind if is_latent else LayerKind()
    projections = rows.last * model.num_own_mtp_layers * 2 * h * (h / tp)
    embeddings = rows.first * embedding_parameters(model, tp).on_rank(tp)
    head = rows.last * head_parameters(model, tp, pp).on_rank(tp)
    units = [
        *chain(*(_twice(count, own + experts, matrices) for count, own, experts, matrices in of_kinds)),
        (embeddings, np.zeros(rows.count)),
        (head, np.zeros(rows.count)),
    ]
    own_head = (pp > 1) | model.untie_embeddings_and_output_weights
    positions = model.max_position_embeddings if model.position_embedding_type == "learned_absolute" else 0
    return {
        "layer_parameters": layer_parameters(model, attention_kind).on_rank(tp),
        "own_parameters": sum(count * own for count, own, _, _ in of_kinds),
        "expert_parameters": sum(count * experts for count, _, experts, _ in of_kinds),
        "first_parameters": embeddings,
        "last_parameters": head,
        "matrix_parameters": sum(count * matrices for count, _, _, matrices in of_kinds) + projections,
        "unit_parameters": _two_largest(*(size for size, _ in units)),
        "unit_matrices": _two_largest(*(size for _, size in units)),
        "placeholders": _of_distinct(*_matrices(rows, chunks), (projections > 0, h // tp, 2 * h)),
        "shared_table": h * _vocab(model, tp) * ~own_head,
        "largest_table": h * np.maximum(_vocab(model, tp), positions),
    }


def _matrices(rows: _Rows, chunks: _Chunks) -> Iterator[tuple[BoolArray, IntArray | int, IntArray | int]]:
    """Yield the matrices of a stage's layers: mask of rows that have it, its local rows, and its columns."""
    model, tp, h = rows.model, rows.tensor, rows.model.hidden_size
    gates, routed, shared = _gates(model), model.expert_hidden_size, _shared_down(rows)
    attention, dense, moe, recurrent = (
        chunks.stage_layers(has) > 0
        for has in (
            lambda kind: kind.has_attention,
            lambda kind: kind.mlp == "dense",
            lambda kind: kind.has_experts,
            lambda kind: model.recurrent_mixer(kind) is not None,
        )
    )
    for n, k in _attention_shapes(rows, chunks):
        yield attention, n, k
    for mixer in model.recurrent_mixers.values():
        yield recurrent, mixer.in_size // tp, h
        yield recurrent, h, mixer.out_size // tp
    for has_it, width, inputs in (
        (dense, model.ffn_hidden_size // tp, h),
        (moe & (shared > 0), shared, h),
        (moe, _expert_down(rows), routed),
    ):
        yield has_it, gates * width, inputs
        yield has_it, inputs, width
    for n, k in ((routed, h), (h, routed)):
        yield moe & (model.moe_latent_size is not None), n, k


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


def _recomputes(module: str) -> Callable[[ParallelConfig], bool]:
    return lambda config: config.recompute_granularity == "selective" and config.recomputes(module)


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
