"""
Compute-only lower bounds on configurations, which need neither their problem data nor pairs of hosts.

**First bound.** Take any stage. Whatever the schedule and the hosts, the first micro-batch passes the first chunks of
the stages before it, and then the stage does all its work. Its last backward goes back through the first chunks of the
stages before. So an iteration takes at least the longest of these paths, and a path is a sum of layers' times.
Transfers between stages and the optimizer step are left out. Communication inside layers counts if it stays inside
hosts, and the exchange of experts at its least.

**Second bound.** With any overlap, a stage has no gradient to reduce before the last backward of one of its chunks
begins. Until then, it has done all other micro-batches of that chunk. So an iteration takes at least these
micro-batches, and then the reduction over the best link of the cluster. (It is a reduce-scatter, which is no more than
an all-reduce.) This is a sum over layers, too.

Times are on the fastest GPU type, except on the stage that does all its work: the number of hosts of faster types is
limited, and every other grid row has a slower host.

A bound costs microseconds. Times of a layer are computed once for all configurations that differ only in the number of
layers of their stages. Counts of operations on paths are computed once for all configurations of equal depth.
"""

from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.collectives import RingTraffic, gather_traffic
from pipette_opt.costs.compute import (
    check_timed,
    ends_times_s,
    layer_and_idle_s,
    straggling,
)
from pipette_opt.costs.context import ends_s, inside_layer_s, spanning_ring
from pipette_opt.costs.exchange import expert_layer_s, most_beside
from pipette_opt.costs.host import pipeline_crosses_hosts
from pipette_opt.costs.layer_kinds import layers_of_kinds, pure_configs, recomputed_of_kinds
from pipette_opt.costs.links import BestLinks, RingShape
from pipette_opt.costs.reductions import dense_shape, expert_shape
from pipette_opt.costs.replicas import share_of_longest
from pipette_opt.costs.stage import parts_on_rank
from pipette_opt.parallel import (
    HostTile,
    ParallelConfig,
    gpus_of_a_host,
    host_tiles,
    microbatches_of,
    ranks_of_a_host,
)
from pipette_opt.specs import GpuSpec, Instance, LayerKind
from pipette_opt.specs.activations import host_keeps

MARGIN = 1e-9
"""Relative margin subtracted from bounds, as they are computed in doubles. Chosen."""

NO_PART = (
    "layers_per_stage",
    "pipeline_model_parallel_layout",
    "recompute_num_layers",
    "virtual_pipeline_model_parallel_size",
    "use_distributed_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "ddp_bucket_size",
    "overlap_p2p_communication",
)
"""Fields of a configuration on which the least time of a layer does not depend."""

_DECIDING = attrgetter(*(option.name for option in fields(ParallelConfig) if option.name not in NO_PART))

_OF_A_LAYER = attrgetter(
    *(
        option.name
        for option in fields(ParallelConfig)
        if option.name not in (*NO_PART, "pipeline_model_parallel_size", "data_parallel_size")
    )
)
"""Fields on which the compute of one layer depends; :func:`_layer_key` adds whether the pipeline crosses hosts."""

_SPLIT = attrgetter(
    "layers_per_stage", "num_chunks", "pipeline_model_parallel_layout", "recomputation", "recompute_num_layers"
)


class WorkBounds:
    """Compute-only lower bounds of an instance's configurations, as a function with a cache of their common parts."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._seconds: dict[Any, _Pieces | None] = {}
        self._counts: dict[Any, _Counts] = {}
        self._of_any_split: dict[Any, float] = {}
        self._full_rate: dict[Any, float] = {}
        self._known: dict[Any, Any] = {}
        self._hosts_of_kind = np.bincount(instance.cluster.kind_of_node, minlength=len(instance.cluster.gpu_kinds))
        number = {kind: index for index, kind in enumerate(dict.fromkeys(instance.model.layers))}
        self._kind_of_layer = np.array([number[kind] for kind in instance.model.layers])

    def __call__(self, config: ParallelConfig) -> float:
        """Return a lower bound on every plan of the configuration, seconds; infinite if no host tile is legal."""
        seconds = self._pieces(config)
        if seconds is None:
            return float("inf")
        num_microbatches = microbatches_of(self.instance.training, config)
        split = *_SPLIT(config), num_microbatches
        if split not in self._counts:
            self._counts[split] = _path_counts(self.instance, config, num_microbatches)
        counts = self._counts[split]
        path_s = (counts.path @ seconds.work_s).max()
        slower_s = 0.0
        if len(seconds.of_kinds_s) > 1:
            slower_s = self._by_kinds_s(config, seconds, counts, num_microbatches)
        reduced_s = (counts.before_gradients @ seconds.work_s + counts.held @ seconds.reduction_s).max()
        return max(float(path_s), float(reduced_s), slower_s) * (1 - MARGIN)

    def at_full_rate(self, config: ParallelConfig) -> float:
        """
        Return a lower bound on every plan of the configuration with any layer partition, seconds, at a fraction of the
        cost; cached.

        Every stage computes all the time, on as few hosts as possible. Recomputed layers, ends and the exchange of
        experts are left out.
        """
        key = _DECIDING(config)
        if key not in self._full_rate:
            self._full_rate[key] = self._at_full_rate_s(config)
        return self._full_rate[key]

    def _at_full_rate_s(self, config: ParallelConfig) -> float:
        """Compute the bound of :meth:`at_full_rate`, seconds; infinite if no host tile is legal."""
        tile = next(iter(host_tiles(config, self.instance.cluster.gpus_per_node, self.instance.launcher)), None)
        if tile is None:
            return float("inf")
        check_timed(self.instance.model, config)
        compute_s, sent_s = _known_layers_s(self.instance, next(iter(pure_configs(config))), tile, self._known)
        layers_s = float((compute_s + sent_s).min(axis=0)[self._kind_of_layer].sum())
        passes = microbatches_of(self.instance.training, config) / config.pipeline_model_parallel_size
        return passes * layers_s * (1 - MARGIN)

    def _pieces(self, config: ParallelConfig) -> "_Pieces | None":
        """Return the times of the configuration's operations; ``None`` if no host tile is legal."""
        key = _DECIDING(config)
        if key not in self._seconds:
            self._seconds[key] = _work_s(self.instance, config, self._known)
        return self._seconds[key]

    def _by_kinds_s(self, config: ParallelConfig, seconds: "_Pieces", counts: "_Counts", m: int) -> float:
        """
        Return a lower bound that respects the number of hosts of faster GPU types, seconds.

        Only a limited number of grid rows can have hosts of the faster types alone. Every other row has a slower host,
        with at least the fewest micro-batches of all replicas. The bound puts slower hosts in the rows where they cost
        least.
        """
        training = self.instance.training
        least = config.microbatches_of_replicas(training.global_batch_size)[-1] if training.unequal_microbatches else m
        before_s = (counts.path - m * counts.held) @ seconds.work_s
        paths: FloatArray = before_s[:, None] + least * (counts.held @ seconds.of_kinds_s.T)
        order = np.argsort(seconds.of_kinds_s.sum(axis=1), kind="stable")
        faster = self._hosts_of_kind[order].cumsum()[:-1].tolist()
        least_s = float("inf")
        for rows, hosts_per_row in seconds.rows:
            of_row = paths.reshape(rows, -1, len(order)).max(axis=1)
            bound_s = 0.0
            for number, hosts in enumerate(faster, start=1):
                slowed = np.sort(of_row[:, order[number:]].min(axis=1))
                left = rows - hosts // hosts_per_row
                bound_s = max(bound_s, float(slowed[left - 1]) if left > 0 else 0.0)
            least_s = min(least_s, bound_s)
        return least_s

    def of_any_split(self, config: ParallelConfig) -> float:
        """
        Return a lower bound on every plan of the configuration with any layer partition into equal chunks, seconds;
        cached.

        The configuration must have equal chunks itself. :meth:`_any_split_s` computes the bound.
        """
        key = _DECIDING(config), config.num_chunks
        if key not in self._of_any_split:
            self._of_any_split[key] = self._any_split_s(config)
        return self._of_any_split[key]

    def _any_split_s(self, config: ParallelConfig) -> float:
        """
        Compute a lower bound on every plan of the configuration with any layer partition into equal chunks, seconds.

        Three bounds hold. All stages together compute for at most :func:`busy_share` of the time. The fullest stage has
        at least the mean number of layers, and its reduction starts after the last backward of one of its chunks
        begins. The busiest stage has at least the mean work. Layers count on the fastest GPU type.
        """
        seconds = self._pieces(config)
        if seconds is None:
            return float("inf")
        model, pp, chunks = self.instance.model, config.pipeline_model_parallel_size, config.num_chunks
        m = microbatches_of(self.instance.training, config)
        kinds = int(self._kind_of_layer.max()) + 1
        look_up, head, passes = seconds.work_s[kinds : kinds + 3].tolist()
        # Each chunk recomputes at least one layer.
        passes += chunks * float(seconds.work_s[kinds + 3 :].min())
        times = seconds.work_s[self._kind_of_layer]
        of_layers = float(times.sum())
        together = (of_layers + look_up + head + pp * passes) / busy_share(m, pp, chunks)
        # First chunks are shorter than others where the first layers are faster.
        of_chunks = times[: len(times) // chunks * chunks].reshape(chunks, -1)
        together -= float((of_chunks.mean(axis=0) - of_chunks[0]).cumsum().max(initial=0.0))
        most = ceil_div(model.num_layers // chunks, pp)
        sums = np.concatenate([[0.0], times.cumsum()])
        layers = float((sums[most:] - sums[:-most]).min())
        fullest = m * (max(chunks * layers, of_layers / pp) + passes)
        reduction = float(seconds.reduction_s[:kinds].min())
        reduced = (m - 1) * (layers + passes / chunks) + most * chunks * reduction
        return float(max(together, fullest, reduced)) * (1 - MARGIN)


def busy_share(num_microbatches: int, pp: int, chunks: int) -> float:
    """
    Return an upper bound on the time of one micro-batch on all stages together, as a fraction of the iteration time.

    A stage with work ``w`` for one micro-batch takes ``m * w``, after the first of ``v`` equal chunks of every stage
    before it: ``m * w[s] + sum(w[:s]) / v <= T``. The sum of all ``w`` is largest if each stage takes all the time left
    to it. Then it is ``T * v * (1 - (1 - 1 / (m * v))^pp)``.
    """
    passes = num_microbatches * chunks
    return chunks * (1.0 - (1.0 - 1.0 / passes) ** pp)


class _Pieces(NamedTuple):
    """
    Times of the operations on paths: a layer of each type, embeddings, head, fixed time of a whole stage.

    The last entries, one for each layer type, are the additional time of a recomputed layer with block recomputation,
    and otherwise zero. ``kinds`` is the number of layer types.

    Parameters
    ----------
    work_s
        Forward and backward of one micro-batch on the fastest GPU type, seconds, shape ``(2 * kinds + 3,)``.
    of_kinds_s
        Forward and backward on each GPU type, seconds, shape ``(num_kinds, 2 * kinds + 3)``.
    reduction_s
        Gradient reduction of each operation's parameters, seconds, shape ``(2 * kinds + 3,)``.
    rows
        Number of grid rows, and of hosts in each, for every host tile (part of the model on one host).
    """

    work_s: FloatArray
    of_kinds_s: FloatArray
    reduction_s: FloatArray
    rows: tuple[tuple[int, int], ...]


class _Counts(NamedTuple):
    """
    Number of times that each stage does, or holds, each operation of :class:`_Pieces`; shape ``(pp, 2 * kinds + 3)``.

    Parameters
    ----------
    path
        Counts on the path through the stages before, all of a stage's work, and back.
    before_gradients
        Counts before the last backward of one of the stage's chunks.
    held
        Counts of the operations that the stage holds.
    """

    path: FloatArray
    before_gradients: FloatArray
    held: FloatArray


def _path_counts(instance: Instance, config: ParallelConfig, num_microbatches: int) -> _Counts:
    of_chunk = np.array(config.layers_per_chunk, dtype=np.float64)
    num_chunks, pp = of_chunk.shape
    look_up, head, passes = np.zeros_like(of_chunk), np.zeros_like(of_chunk), np.full_like(of_chunk, 1.0 / num_chunks)
    look_up[0, 0] = head[-1, -1] = 1.0
    held_layers = layers_of_kinds(instance.model, config).values()
    again = [np.zeros_like(of_chunk) for _ in held_layers]
    if config.recomputation == "block":
        again = [layers.astype(np.float64) for layers in recomputed_of_kinds(instance.model, config).values()]
    pieces = np.stack([*held_layers, look_up, head, passes, *again])
    before = pieces[:, 0] @ np.tri(pp, k=-1).T
    held = pieces.sum(axis=1)
    return _Counts(
        path=(before + num_microbatches * held).T,
        before_gradients=(num_microbatches - 1) * pieces.min(axis=1).T,
        held=held.T,
    )


def _work_s(instance: Instance, config: ParallelConfig, known: dict[Any, Any]) -> _Pieces | None:
    """Return the operations' times on each GPU type and over the best links; ``None`` if no host tile is legal."""
    check_timed(instance.model, config)
    tiles = list(host_tiles(config, instance.cluster.gpus_per_node, instance.launcher))
    if not tiles:
        return None
    kept, *recomputed = (_alike_s(instance, alike, tiles, known) for alike in pure_configs(config))
    kinds = kept.shape[1] - 3
    pieces = np.concatenate([kept, np.zeros((len(kept), kinds))], axis=1)
    for whole in recomputed:
        pieces[:, -kinds:] = np.maximum(whole[:, :kinds] - kept[:, :kinds], 0.0)
    reductions = [reduction_pieces_s(instance, config, tile, known) for tile in tiles]
    grids = {tile.node_grid(config) for tile in tiles}
    return _Pieces(
        work_s=pieces.min(axis=0),
        of_kinds_s=pieces,
        reduction_s=np.min(reductions, axis=0),
        rows=tuple((rows, data * tensor) for rows, data, tensor in sorted(grids)),
    )


def _layer_key(instance: Instance, config: ParallelConfig) -> Any:
    """
    Return a key that is equal for configurations whose layers take equal time, apart from :func:`straggling`.

    They differ only in stages, replicas and partitions.
    """
    shards = config.sharing_ranks if host_keeps(instance.training, config).parameters else 1
    return _OF_A_LAYER(config), pipeline_crosses_hosts(instance, config), share_of_longest(instance, config), shards


def _alike_s(instance: Instance, config: ParallelConfig, tiles: list[HostTile], known: dict[Any, Any]) -> FloatArray:
    """
    Return the seconds of layers, embeddings, head and fixed time on each GPU type, shape ``(num_kinds, kinds + 3)``.

    ``config`` must recompute all layers or none.
    """
    tile = tiles[0]  # all tiles have equal slots
    compute_s, sent_s = _known_layers_s(instance, config, tile, known)
    pieces: FloatArray = compute_s * straggling(instance, config, instance.stack) + sent_s
    kinds = list(dict.fromkeys(instance.model.layers))
    for piece, kind in enumerate(kinds):
        if tile.tensor_nodes == 1 and kind.has_experts:
            pieces[:, piece] += min(_experts_s(instance, config, tiles, kind, known))
    # Layers of multi-token prediction are a part of the head.
    mtp_kinds = [kinds.index(kind) for kind in instance.model.mtp_layers]
    pieces[:, -2] += instance.model.mtp_num_layers * pieces[:, mtp_kinds].sum(axis=1)
    return pieces


def _known_layers_s(
    instance: Instance, config: ParallelConfig, tile: HostTile, known: dict[Any, Any]
) -> tuple[FloatArray, FloatArray]:
    """Return the result of :func:`_layers_s`; cached in ``known``."""
    if (key := (_layer_key(instance, config), tile.nodes_per_slot, tile.context_nodes)) not in known:
        known[key] = _layers_s(instance, config, tile)
    found: tuple[FloatArray, FloatArray] = known[key]
    return found


def _layers_s(instance: Instance, config: ParallelConfig, tile: HostTile) -> tuple[FloatArray, FloatArray]:
    """
    Return the compute of layers, embeddings and head on each GPU type, and what is added to it, seconds.

    Communication inside a layer and of the ends, and the fixed time are added. The exchange of experts,
    multi-token-prediction layers and :func:`straggling` are left out. Both have the shape of :func:`_alike_s`.
    """
    of_kinds = [_pieces_s(instance, config, gpu) for gpu in instance.cluster.gpu_kinds]
    compute_s: FloatArray = np.array([seconds for seconds, _ in of_kinds])
    sent_s = np.zeros_like(compute_s)
    sent_s[:, -3:-1] = [ends_s(instance, config, [gpu], tile).sum(axis=1) for gpu in range(len(of_kinds))]
    sent_s[:, -1] = instance.stack.micro_batch_s
    most = tuple(np.max([waits for _, waits in of_kinds], axis=0).tolist())
    for piece, kind in enumerate(dict.fromkeys(instance.model.layers)):
        for gpu, (_, waits) in enumerate(of_kinds):
            sent_s[gpu, piece] = sum(inside_layer_s(instance, config, tuple(waits), kind, [gpu], tile))
        if tile.nodes_per_slot > 1:
            sent_s[:, piece] += sum(spanning_ring(instance, config, tile, kind, most).least_s(instance))
    return compute_s, sent_s


def reduction_pieces_s(
    instance: Instance, config: ParallelConfig, tile: HostTile, known: dict[Any, Any] | None = None
) -> FloatArray:
    """
    Return the gradient reduction of each operation of :class:`_Pieces` with one host tile (part of the model on one
    host), seconds.

    Parameters
    ----------
    known
        Cache of times per parameter of this instance; read and extended.
    """
    known = {} if known is None else known

    def parameter(shape: RingShape) -> float:
        if shape not in known:
            known[shape] = _parameter_s(instance, shape)
        return float(known[shape])

    model = instance.model
    kinds = list(dict.fromkeys(model.layers))
    if not config.reduces_in_one_ring or instance.allreduce != "ring":
        return np.zeros(2 * len(kinds) + 3)
    parts = parts_on_rank(model, config, trained=True)
    own = [*parts.layers.values(), parts.embeddings, parts.head, *np.zeros(len(kinds) + 1)]
    pieces = parameter(dense_shape(config, tile)) * np.array(own)
    experts = expert_shape(config, tile)
    if model.num_experts is not None and experts is not None:
        pieces[: len(kinds)] += parameter(experts) * np.array(list(parts.experts.values()))
    pieces[len(kinds) + 1] += model.num_own_mtp_layers * sum(pieces[kinds.index(kind)] for kind in model.mtp_layers)
    return pieces


def _parameter_s(instance: Instance, shape: RingShape) -> float:
    """Return a lower bound on the reduce-scatter of one parameter's gradient, without latencies, seconds."""
    replicas = shape.members * shape.num_hosts
    moved = RingTraffic(gather_traffic(instance.training.gradient_bytes, replicas).hop_bytes, 0, 0)
    return float(BestLinks(instance.cluster, instance.stack).ring_s(shape, moved)[0])


def _pieces_s(instance: Instance, config: ParallelConfig, gpu: GpuSpec) -> tuple[FloatArray, FloatArray]:
    """Return compute of layers, embeddings and head on a GPU type, then a zero, and waits for the host, seconds."""
    model, rates = instance.model, instance.stack
    pieces, idle = [], np.full(2, np.inf)
    for kind in dict.fromkeys(model.layers):
        layer, waits = layer_and_idle_s(instance, config, gpu, rates, kind)
        pieces.append(sum(layer))
        idle = np.minimum(idle, waits)
    look_up, *head = ends_times_s(instance, config, gpu, rates)
    pieces += [2 * look_up, sum(head)]
    return np.array([*pieces, 0.0]), idle


def _experts_s(
    instance: Instance, config: ParallelConfig, tiles: list[HostTile], kind: LayerKind, known: dict[Any, Any]
) -> Iterator[float]:
    """Yield for each host tile a lower bound on the exchange of an expert layer, forward plus backward, seconds."""
    alike = _layer_key(instance, config), kind
    for ranks, gpus in {(ranks_of_a_host(config, tile), gpus_of_a_host(config, tile)) for tile in tiles}:
        if (key := (alike, ranks, gpus)) not in known:
            if alike not in known:
                known[alike] = most_beside(instance, config, kind)
            known[key] = sum(expert_layer_s(instance, config, kind, ranks, gpus, known[alike]))
        yield known[key]
