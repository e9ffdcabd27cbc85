"""Computation of the stage table (:mod:`~pipette_opt.memory.stage_rows`) for many configurations at once."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, cast

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.layers.attention import AttentionBranch
from pipette_opt.layers.branch import BY_OPERATION, Branch, OnRank
from pipette_opt.layers.branch_bytes import BranchBytes, branch_bytes
from pipette_opt.layers.branches import named_branches
from pipette_opt.layers.kinds import count_layers
from pipette_opt.layers.parameters import layer_parameters, rank_parameters
from pipette_opt.memory.chunk_layers import held_of_chunks, layers_of_chunks
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.parallel import ParallelConfig, microbatches_of
from pipette_opt.parallel.recompute import OPERATIONS, RECOMPUTE_MODULES
from pipette_opt.parallel.schedule import num_in_flight
from pipette_opt.specs import LayerKind, ModelSpec, TrainingSpec
from pipette_opt.specs.activations import host_keeps, offloaded_bytes, on_rank
from pipette_opt.specs.optimizers import OPTIMIZERS


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
    rank = on_rank(training, rows.of_configs)
    chunks = _chunks(rows, num_microbatches)
    columns = (
        _training_columns(rows, rank)
        | _layer_columns(rows, chunks, rank)
        | _recompute_columns(rows, chunks)
        | _kept_columns(rows, chunks, rank)
        | _parameter_columns(rows, chunks, rank)
        | _width_columns(rows, chunks, rank)
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

    def of_configs(self, name: str) -> IntArray:
        """Return a number of each configuration, read once."""
        if name not in self.known:
            self.known[name] = _column(self.configs, name)
        return self.known[name]

    def column(self, name: str) -> IntArray:
        """Return a number of the configuration of each row."""
        return self.of_configs(name)[self.config_of_row]

    def mask(self, holds: Callable[[ParallelConfig], bool]) -> BoolArray:
        """Return the mask of rows whose configuration meets a condition."""
        return self.choice(holds)[self.config_of_row]

    def spread(self, values: Any) -> Any:
        """Return the value of each row from that of its configuration; a number for all stays as it is."""
        return values[self.config_of_row] if np.ndim(values) else values

    def choice(self, holds: Callable[[ParallelConfig], bool]) -> BoolArray:
        """Return the mask of configurations that meet a condition."""
        return np.array([holds(config) for config in self.configs], dtype=bool)


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
    branches
        Branches of these kinds, by the name of mixer or MLP, which decides their sizes.
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
    branches: Mapping[str, Branch]

    @property
    def attention(self) -> AttentionBranch | None:
        """First branch with attention."""
        return next((each for each in self.branches.values() if isinstance(each, AttentionBranch)), None)

    def mean_in_flight(self, counts: IntArray) -> FloatArray:
        """Return the mean of a count over the chunks, weighted by their micro-batches in flight."""
        mean: FloatArray = (self.held * counts).sum(axis=0) / self.in_flight
        return mean

    @property
    def mean_share(self) -> FloatArray:
        """Layers of a chunk, the mean in flight, as a fraction of the stage's."""
        share: FloatArray = self.mean_in_flight(self.of_chunk) / np.maximum(self.of_chunk.sum(axis=0), 1)
        return share

    def stage_layers(self, has: Callable[[LayerKind], bool]) -> IntArray:
        """Return the layers of each stage for which ``has`` holds."""
        of_chunk = sum((layers for kind, layers in self.kinds.items() if has(kind)), np.zeros_like(self.of_chunk))
        count: IntArray = of_chunk.sum(axis=0)
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
        branches=named_branches(model),
    )


def _training_columns(rows: _Rows, rank: OnRank) -> Columns:
    """Return tokens, formats, and the ranks that share tensors."""
    training, tp, sharing = rows.training, rows.tensor, rows.column("sharing_ranks")
    zero, recipe = rows.column("sharding_stage"), rows.training.recipe
    ranks_of_experts = rows.column("expert_model_parallel_size") * rows.column("expert_tensor_size")
    host = [host_keeps(training, each) for each in rows.configs]
    return {
        "tokens": rank.tokens[rows.config_of_row],
        "logit_tokens": rank.tokens[rows.config_of_row] / training.loss_chunks,
        "eager_loss": not training.fused_loss and training.parameter_bytes < 4,
        "shards": rank.shards[rows.config_of_row],
        "element": training.parameter_bytes,
        "gradient": training.gradient_bytes,
        "state": training.optimizer_bytes,
        "state_shards": np.where(zero > 0, sharing * rows.column("state_groups"), 1),
        "zero": zero,
        "replicas": sharing,
        "expert_replicas": np.maximum(sharing * tp // ranks_of_experts, 1),
        "step": training.step_bytes,
        "fp8": rank.fp8,
        "muon": training.optimizer == "muon",
        "copies": 2 if recipe is None else recipe.copies,
        "only_copies": training.fp8_param_gather,
        "keeps_gradients": OPTIMIZERS[training.optimizer].keeps_gradients,
        "whole_gradients": _adds_up_whole(rows),
        "on_host": np.array([kept.optimizer_offload_fraction for kept in host])[rows.config_of_row],
        "parameters_on_host": np.array([kept.parameters for kept in host])[rows.config_of_row],
        "tensor": tp,
    }


def _adds_up_whole(rows: _Rows) -> BoolArray | bool:
    """Return whether each row adds up whole gradients of several micro-batches, which it shares otherwise."""
    training = rows.training
    if not training.whole_gradients:
        return False
    at_once = rows.column("data_parallel_size") * rows.column("micro_batch_size")
    found: BoolArray = (training.global_batch_size > at_once) & (rows.column("sharding_stage") >= 2)
    return found


def _layer_columns(rows: _Rows, chunks: _Chunks, rank: OnRank) -> Columns:
    """Return the layers of stage and chunk, of each part, and those in flight."""
    model, last, num_chunks = rows.model, rows.last, rows.column("num_chunks")
    chunk_layers = chunks.mean_in_flight(chunks.of_chunk)
    return {
        "offloaded": chunk_layers * _moved(rows, rank)[rows.config_of_row],
        "layers": rows.layers + last * len(model.mtp_layers) * model.mtp_num_layers,
        "chunk_layers": chunk_layers,
        "later_layers": chunks.later_layers,
        "moe_layers": chunks.stage_layers(lambda kind: kind.has_experts),
        "in_flight": chunks.in_flight,
        "first_in_flight": np.where(num_chunks > 1, chunks.held[0], chunks.in_flight),
        "first_chunk": chunks.of_chunk[0] / np.where(chunk_layers > 0, chunk_layers, 1),
        "first": rows.first,
        "last": last,
        "depths": last * model.mtp_num_layers,
    }


def _recompute_columns(rows: _Rows, chunks: _Chunks) -> Columns:
    """Return what is recomputed: attention cores, and whole layers."""
    is_block, at_once = chunks.is_block, rows.column("recompute_num_layers")
    chunk_layers = chunks.mean_in_flight(chunks.of_chunk)
    kept = np.where(is_block, chunks.recomputed, -(-chunks.recomputed // at_once))
    return {
        "selective": rows.mask(_recomputes("core_attn")),
        "by_operation": rows.mask(_recomputes(BY_OPERATION)),
        "full": chunks.mean_in_flight(chunks.recomputed) / np.where(chunk_layers > 0, chunk_layers, 1),
        "inputs_kept": chunks.mean_in_flight(kept),
    }


def _kept_columns(rows: _Rows, chunks: _Chunks, rank: OnRank) -> Columns:
    """Return the bytes that the layers of a chunk keep, that recomputation restores, and that a layer works on."""
    modules = (*RECOMPUTE_MODULES, *OPERATIONS)
    again = {module: mask for module in modules if (mask := rows.choice(_recomputes(module))).any()}
    of_branch = {
        name: BranchBytes(*map(rows.spread, branch_bytes(branch, rank, again)))
        for name, branch in chunks.branches.items()
    }
    gradient = rows.spread(next(iter(chunks.branches.values())).gradient_bytes(rank))
    kept, restored, work = np.zeros(rows.count), np.zeros(rows.count), np.zeros(rows.count)
    has_experts, chunk_share = chunks.stage_layers(lambda kind: kind.has_experts) > 0, chunks.mean_share
    sizes, counts = [], []
    for kind, of_chunk in chunks.kinds.items():
        mixer, mlp = (of_branch.get(name, BranchBytes()) for name in (kind.mixer, kind.mlp))
        num_layers = of_chunk.sum(axis=0)
        exists = num_layers > 0
        kept += chunks.mean_in_flight(of_chunk - chunks.recomputed_kinds[kind]) * (mixer.kept + mlp.kept)
        restored = np.maximum(restored, exists * np.maximum(mixer.restored, mlp.restored))
        # Layers with experts follow those with a dense MLP. Their backward pass is first, when the stage holds most.
        is_first = exists & ((kind.mlp != "dense") | ~has_experts)
        passes = exists * (gradient + mlp.work), is_first * (gradient + mixer.work - mlp.gone)
        work = np.maximum.reduce((work, *passes))
        sizes.append(mixer.whole + mlp.whole)
        counts.append(np.ceil(num_layers * chunk_share))
    at_once = np.where(chunks.is_block, 1, rows.column("recompute_num_layers"))
    brought_back = np.minimum(at_once, chunks.of_chunk.max(axis=0)) * chunks.is_full
    # Layers that were kept whole are freed before the first recomputed one runs.
    whole = np.maximum(_largest(np.stack(sizes), np.stack(counts), brought_back) - kept, 0.0)
    return {"kept": kept, "restored": whole + restored, "layer_work": work}


def _largest(sizes: FloatArray, counts: FloatArray, number: IntArray) -> FloatArray:
    """Return the sum of the ``number`` largest of ``counts`` layers of each size, shapes ``(num_kinds, num_rows)``."""
    order = np.argsort(-sizes, axis=0)
    sizes, counts = (np.take_along_axis(values, order, axis=0) for values in (sizes, counts))
    taken = np.clip(number - (np.cumsum(counts, axis=0) - counts), 0, counts)
    total: FloatArray = (taken * sizes).sum(axis=0)
    return total


def _width_columns(rows: _Rows, chunks: _Chunks, rank: OnRank) -> Columns:
    """Return the widths of attention and vocabulary, and the flags of the model."""
    model = rows.model
    attention = chunks.attention or AttentionBranch(model, LayerKind())
    query, keys, _ = attention.local_widths(rows.tensor)
    return {
        "hidden": model.hidden_size,
        "query": query,
        "key_value": keys / 2,
        "vocab": _vocab(rows),
        "scores": (chunks.attention is not None) * attention.scores(rank)[rows.config_of_row],
        "statistics": 2 if model.normalization == "LayerNorm" else 1,
        "hidden_dropout": model.hidden_dropout > 0,
        "num_experts": model.num_experts or 0,
    }


def _vocab(rows: _Rows) -> IntArray:
    """Return the padded vocabulary on one rank."""
    tp: Any = rows.tensor
    size: IntArray = rows.model.padded_vocab_size(tp) // tp
    return size


def _matrices(rows: _Rows, chunks: _Chunks, rank: OnRank) -> Iterator[tuple[BoolArray, IntArray, IntArray]]:
    """Yield the matrices of a stage's layers: mask of rows that have it, its local rows, and its columns."""
    for name, branch in chunks.branches.items():
        exists = chunks.stage_layers(lambda kind, name=name: name in kind) > 0  # type: ignore[misc]
        for matrix in branch.local_matrices(rank):
            yield exists, rows.spread(matrix.outputs), rows.spread(matrix.inputs)


def _parameter_columns(rows: _Rows, chunks: _Chunks, rank: OnRank) -> Columns:
    """Return the parameters of layers, embeddings and head on one rank, and elements of their largest tensors."""
    model, tp, h = rows.model, rows.tensor, rows.model.hidden_size
    pp, expert_ranks = rows.column("pipeline_model_parallel_size"), rank.expert_ranks * rank.expert_tp
    matrices = {
        name: rows.spread(sum(map(prod, branch.local_matrices(rank)))) for name, branch in chunks.branches.items()
    }
    parts = rank_parameters(model, rank.tp, rows.of_configs("pipeline_model_parallel_size"), expert_ranks)
    of_kinds = []
    for kind, layers_of_kind in chunks.with_weights.items():
        sizes = (parts.layers[kind], parts.experts[kind])
        in_matrices = sum(matrices.get(name, 0.0) for name in (kind.mixer, kind.mlp))
        of_kinds.append((layers_of_kind.sum(axis=0), *map(rows.spread, sizes), in_matrices))
    projections = rows.last * model.num_own_mtp_layers * 2 * h * (h / tp)
    embeddings, head = rows.first * rows.spread(parts.embeddings), rows.last * rows.spread(parts.head)
    trained = _trained_columns(rows, chunks, rank)
    element, base = rows.training.parameter_bytes, trained["base"]
    units = [
        *chain(*(_twice(count, own + experts, matrices) for count, own, experts, matrices in of_kinds)),
        (embeddings, np.zeros(rows.count)),
        (head, np.zeros(rows.count)),
    ]
    own_head = (pp > 1) | model.untie_embeddings_and_output_weights
    positions = model.max_position_embeddings if model.position_embedding_type == "learned_absolute" else 0
    table = h * _vocab(rows)
    return {
        "layer_parameters": layer_parameters(
            model, LayerKind(chunks.attention.kind.mixer if chunks.attention else "attention")
        ).on_rank(tp),
        "own_parameters": sum(count * own for count, own, _, _ in of_kinds),
        "expert_parameters": sum(count * experts for count, _, experts, _ in of_kinds),
        "first_parameters": embeddings,
        "last_parameters": head,
        **trained,
        "matrix_parameters": sum(count * matrices for count, _, _, matrices in of_kinds) + projections,
        "unit_bytes": _two_largest(*(element * size - (element - base) * matrices for size, matrices in units)),
        "unit_matrices": _two_largest(*(size for _, size in units)),
        "placeholders": _of_distinct(*_matrices(rows, chunks, rank), (projections > 0, h // tp, 2 * h)),
        "shared_table": table * ~own_head,
        "largest_table": np.maximum(table, h * positions),
    }


def _trained_columns(rows: _Rows, chunks: _Chunks, rank: OnRank) -> Columns:
    """Return the trained parameters of a stage on one rank, and the format of frozen ones."""
    model, training, expert_ranks = rows.model, rows.training, rank.expert_ranks * rank.expert_tp
    parts = rank_parameters(model, rank.tp, rows.of_configs("pipeline_model_parallel_size"), expert_ranks, trained=True)
    ends = rows.first * rows.spread(parts.embeddings), rows.last * rows.spread(parts.head)
    of_kinds = [
        (layers.sum(axis=0), rows.spread(parts.layers[kind]), rows.spread(parts.experts[kind]))
        for kind, layers in chunks.with_weights.items()
    ]
    nothing = np.zeros(rows.count)
    units = [size for count, own, experts in of_kinds for size, _ in _twice(count, own + experts, nothing)]
    adapters, element = model.adapters, training.parameter_bytes
    matrices = [
        exists * outputs * inputs
        for name, branch in chunks.branches.items()
        for exists in (chunks.stage_layers(lambda kind, name=name: name in kind) > 0,)  # type: ignore[misc]
        for outputs, inputs in (map(rows.spread, product.on_rank(rank.tp)) for product in branch.linears.values())
    ]
    is_quantised = adapters is not None and adapters.is_quantised
    is_flat = adapters is not None and adapters.flat_gradients and not is_quantised
    return {
        "flat_gradients": is_flat * (rows.column("sharding_stage") >= 3),
        "trained_parameters": sum((count * own for count, own, _ in of_kinds), nothing) + sum(ends),
        "trained_experts": sum((count * experts for count, _, experts in of_kinds), nothing),
        "trained_unit": _two_largest(*units, *ends),
        "is_trained": adapters is None,
        "base": element if adapters is None else min(adapters.base_bytes, element),
        "restored_matrix": np.max([nothing, *matrices], axis=0) if is_quantised else 0.0,
    }


def _recomputes(module: str) -> Callable[[ParallelConfig], bool]:
    return lambda config: config.recompute_granularity == "selective" and config.recomputes(module)


def _moved(rows: _Rows, rank: OnRank) -> FloatArray:
    """Return the bytes that a layer offloads per micro-batch, averaged over the layers, by configuration."""
    model, total = rows.model, np.zeros(len(rows.configs))
    if rows.training.offload.is_nothing and all(config.offload is None for config in rows.configs):
        return total
    offloads = [host_keeps(rows.training, config) for config in rows.configs]
    for offload in set(offloads):
        is_chosen = np.array([each == offload for each in offloads])
        for kind, count in Counter(model.layers).items():
            total += is_chosen * count * offloaded_bytes(model, kind, rank, offload)
    return total / model.num_layers


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
