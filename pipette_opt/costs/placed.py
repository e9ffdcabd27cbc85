"""
Times of configurations on given GPUs, in seconds.

Placements with equal degrees are costed together, as arrays; a single placement is a batch of one. Concurrent flows
that share a host pair: the messages of one stage boundary in one direction; the gradient rings of all stages; the
tensor-parallel rings of all stages; their context-parallel rings; all-to-alls between experts.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np

from pipette_opt.base.degrees import DEGREES, MICRO_BATCH
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import Collective, FloatArray, IntArray, RankOrder
from pipette_opt.costs.beside_products import BesideProduct
from pipette_opt.costs.collectives import (
    NO_TRAFFIC,
    RingArrays,
    RingTraffic,
    has_tied_stages,
    inside_s,
    shown_beside_s,
    stacked,
)
from pipette_opt.costs.compute import BY_KIND
from pipette_opt.costs.links import LeastRings, Rings
from pipette_opt.costs.messages import intra_node_message_s
from pipette_opt.costs.overlap import exposed, shown_gather_s
from pipette_opt.costs.placed_experts import PlacedExperts, check_expert_ranks, in_step
from pipette_opt.costs.placed_links import (
    ExchangedContext,
    PlacedLinks,
    flow_rates,
    gpu_numbers,
    host_of,
    in_groups,
    slot_rates,
    spread,
)
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.costs.unplaced import Costs, Kinds, costs_of, in_a_vee
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid
from pipette_opt.parallel.schedule import Layout
from pipette_opt.specs import Instance
from pipette_opt.specs.activations import exchange_ranks

__all__ = ["PlacedBatch", "PlacedTimes", "placed_batch", "placed_batches", "placed_times"]

Grid = tuple[tuple[int, ...], int, int, str, RankOrder, bool, bool, bool]
"""
Properties that all placements of a batch share.

Parallel degrees, ZeRO stage, optimizer instances and their sharing, rank order; overlap of gradients, parameters and
activations.
"""

KnownCosts = dict[tuple[ParallelConfig, Kinds], Costs]
"""Cache of costs by configuration and GPU types in use."""

_DEGREES = attrgetter(*(degree.number for degree in DEGREES if degree != MICRO_BATCH))


def placed_times(
    instance: Instance,
    config: ParallelConfig,
    placement: Placement,
    layout: Layout = "loop",
    links: Callable[[Instance], PlacedLinks] = PlacedLinks,
) -> PlacedTimes:
    """
    Return the times of any placement, regular or not.

    Parameters
    ----------
    layout
        Order of layer groups on stages; in a V of two chunks (``vee``), the first stage also has the output head.
    links
        Prices of collectives, :class:`PlacedLinks` of the placement's own hosts unless given.

    Raises
    ------
    MissingLinkError
        If the placement uses a link that was not measured.
    """
    known, kinds = None, kinds_in_use(instance, placement)
    if layout == "vee":
        known = {(config, kinds): in_a_vee(instance, config, costs_of(instance, config, kinds=kinds))}
    batch = placed_batch(instance, [(config, placement)], known, links)
    for who, source, target in batch.missing.values():
        cluster = instance.cluster
        raise MissingLinkError(
            f"cluster {cluster.name}",
            f"{who} uses the link from {cluster.hosts[source]} to {cluster.hosts[target]}, which was not measured; "
            "choose other hosts, or import the links again with a fill value.",
        )
    return batch.one(0)


def placed_batches(
    instance: Instance,
    placed: Sequence[tuple[ParallelConfig, Placement]],
    known: KnownCosts | None = None,
    links: Callable[[Instance], PlacedLinks] = PlacedLinks,
) -> list[tuple[IntArray, PlacedBatch]]:
    """
    Return the times of many placements, in batches of equal degrees.

    Each batch comes with the indices of its placements in ``placed``.

    Parameters
    ----------
    known
        Cache of costs by configuration and GPU types in use; read and extended.
    """
    grids: dict[Grid, list[int]] = {}
    for index, (config, placement) in enumerate(placed):
        grids.setdefault(grid_of(config, placement), []).append(index)
    known = {} if known is None else known
    return [
        (np.array(members), placed_batch(instance, [placed[index] for index in members], known, links))
        for members in grids.values()
    ]


def placed_batch(
    instance: Instance,
    placed: Sequence[tuple[ParallelConfig, Placement]],
    known: KnownCosts | None = None,
    links: Callable[[Instance], PlacedLinks] = PlacedLinks,
) -> PlacedBatch:
    """
    Return the times of placements with equal degrees (:data:`Grid`).

    Parameters
    ----------
    known
        Cache of costs by configuration and GPU types in use; read and extended.
    """
    known = {} if known is None else known
    keys = [(config, kinds_in_use(instance, placement)) for config, placement in placed]
    for config, kinds in keys:
        if (config, kinds) not in known:
            known[config, kinds] = costs_of(instance, config, kinds=kinds)
    return costed_batch(instance, placed, [known[key] for key in keys], links)


def kinds_in_use(instance: Instance, placement: Placement) -> Kinds:
    """Return the GPU types of a placement's hosts, ascending."""
    if len(instance.cluster.gpu_kinds) == 1:
        return (0,)
    return tuple(np.unique(instance.cluster.kind_of_node[placement.node]).tolist())


def costed_batch(
    instance: Instance,
    placed: Sequence[tuple[ParallelConfig, Placement]],
    costs: list[Costs],
    links: Callable[[Instance], PlacedLinks] = PlacedLinks,
) -> PlacedBatch:
    """
    Return the times of placements with equal degrees, given the costs of their configurations.

    Parameters
    ----------
    instance
        Instance whose cluster, stack and collectives hold for all placements. Models and jobs may differ if they have
        no experts, and if all or none of the models tie embeddings of the first and the last stage.
    """
    first, placement = placed[0]
    check_expert_ranks(instance.model, first, placement.order)
    ranks = RankGrid.of(first, placement.order).ranks()
    gpus = np.stack([gpu_numbers(instance.cluster, where.node, where.local_rank) for _, where in placed])
    return _Batch(links(instance), [config for config, _ in placed], costs, gpus[:, ranks]).times()


def grid_of(config: ParallelConfig, placement: Placement) -> Grid:
    """Return the properties that placements in one batch share."""
    return (
        _DEGREES(config),
        config.sharding_stage,
        config.num_distributed_optimizer_instances,
        config.outer_dp_sharding_strategy,
        placement.order,
        config.overlap_grad_reduce,
        config.overlap_param_gather,
        config.overlap_p2p_communication,
    )


class _Batch:
    """
    Placements with equal degrees, whose times are computed together.

    Parameters
    ----------
    gpus
        GPU of each rank from :func:`gpu_numbers`, shape ``(n, pp, dp, cp, tp)``.
    """

    def __init__(self, links: PlacedLinks, configs: list[ParallelConfig], costs: list[Costs], gpus: IntArray) -> None:
        self.links, self.configs, self.costs, self.gpus = links, configs, costs, gpus
        self.instance = links.instance
        self.hosts = host_of(self.instance.cluster, gpus)
        self.config = configs[0]  # all have these degrees
        experts = [each.experts for each in costs if each.experts is not None]
        self.experts = PlacedExperts(self.links, self.config, experts, gpus) if experts else None

    def times(self) -> PlacedBatch:
        """Return all times of the placements."""
        forward, backward, *launches = self._compute()
        (tensor_forward, tensor_backward), experts = self._inside_layers()
        send_forward, send_backward = (self._in_step(sends) for sends in self._sends())
        forward, backward = self._in_step(forward + tensor_forward), self._in_step(backward + tensor_backward)
        sharded = self._sharded(forward, backward)
        if sharded is not None:
            forward, backward = forward + sharded[0], backward + sharded[1]
        reduction, gather = self._reductions()
        beside = None
        if self.config.overlap_grad_reduce:
            buckets = np.stack([costs.buckets for costs in self.costs])
            slowdown = self.instance.stack.overlap_slowdown
            shares = np.stack([config.chunk_shares for config in self.configs])
            beside = exposed(buckets, forward, backward, reduction, gather, slowdown, shares)
        return PlacedBatch(
            forward_s=forward,
            backward_s=backward,
            tensor_forward_s=tensor_forward,
            tensor_backward_s=tensor_backward,
            send_forward_s=send_forward,
            send_backward_s=send_backward,
            reduction_s=reduction,
            gather_s=gather,
            optimizer_s=np.array([costs.optimizer_s for costs in self.costs]),
            embedding_s=self._embeddings(),
            overlap_p2p=self.config.overlap_p2p_communication,
            expert_forward_s=None if experts is None else experts[0],
            expert_backward_s=None if experts is None else experts[1],
            sharded_forward_s=None if sharded is None else sharded[0],
            sharded_backward_s=None if sharded is None else sharded[1],
            launch_forward_s=launches[0],
            launch_backward_s=launches[1],
            **({} if beside is None else beside._asdict()),
            missing=self.links.missing,
        )

    def _compute(self) -> tuple[FloatArray, ...]:
        """
        Return forward and backward compute of every chunk, and the waits for launches in each, seconds.

        Each of shape ``(n, chunks, pp, dp)``. The slowest GPU of a slot (tensor and context ranks of a stage and
        replica) counts.
        """
        n, pp, dp = self.hosts.shape[:3]
        works = [np.stack([getattr(costs.compute, name) for costs in self.costs]) for name in BY_KIND]
        kinds = self.instance.cluster.kind_of_node[self.hosts].reshape(n, pp, dp, -1)
        if works[0].shape[1] == 1:
            return tuple(np.repeat(work[:, 0, :, :, None], dp, axis=3) for work in works)
        row, stage = np.arange(n)[:, None, None, None], np.arange(pp)[None, :, None, None]
        of_gpus = [work[row, kinds, :, stage] for work in works]
        slowest = [each.argmax(axis=3, keepdims=True) for each in of_gpus[:2]]
        found = zip(of_gpus, (*slowest, *slowest), strict=True)
        return tuple(np.take_along_axis(each, which, axis=3)[:, :, :, 0].transpose(0, 3, 1, 2) for each, which in found)

    def _in_step(self, times: FloatArray) -> FloatArray:
        """Return times in which replicas (last axis) that wait for each other have the slowest replica's time."""
        return in_step(self.instance.model, self.config, times)

    def _inside_layers(self) -> tuple[FloatArray, FloatArray | None]:
        """
        Return the communication inside every chunk, seconds: all of it, and the part of experts.

        Forward and backward, shape ``(2, n, chunks, pp, dp)`` each; ``None`` for experts of dense models.
        """
        n, pp, dp, cp, tp = self.hosts.shape
        found = np.zeros((2, n, self.config.num_chunks, pp, dp))
        sent = None if self.experts is None else np.zeros_like(found)
        context = exchange = tensor = None
        if cp > 1:
            context, exchange = self._context()
        if tp > 1:
            tensor = self.links.rings(self.gpus.reshape(n, pp * dp * cp, tp), "a tensor-parallel group")
        for kind in dict.fromkeys(kind for costs in self.costs for kind in costs.layers):
            of_kind = [costs.of_kind(kind) for costs in self.costs]
            layers = np.stack([layer.layers for layer in of_kind]).astype(np.float64)[..., None]
            each = self._layer(context, [layer.context for layer in of_kind], [layer.attention for layer in of_kind])
            each += self._layer(exchange, [layer.exchange for layer in of_kind], [(0.0, 0.0)] * n)
            beside = [layer.beside_products for layer in of_kind]
            each += self._layer(tensor, [layer.tensor for layer in of_kind], [layer.idle for layer in of_kind], beside)
            found += layers * each[:, :, None]
            if self.experts is not None and sent is not None and kind[0].has_experts:
                tokens = layers * self.experts.layer_s(of_kind)[:, :, None]
                found += tokens
                sent += tokens
        never, head = [(0.0, 0.0)] * n, self.costs[0].head_stage
        for chunk, stage, ends in (
            (0, 0, [costs.ends.embedding for costs in self.costs]),
            (-1, head, [costs.ends.head for costs in self.costs]),
        ):
            for rings in map(list, zip(*ends, strict=True)):
                found[:, :, chunk, stage] += self._layer(tensor, rings, never)[:, :, stage]
        of_head = [costs.beside_head for costs in self.costs]
        found[:, :, -1, head] += self._layer(tensor, [(NO_TRAFFIC, NO_TRAFFIC)] * n, never, of_head)[:, :, head]
        return found, sent

    def _context(self) -> tuple[Rings | LeastRings | None, ExchangedContext | None]:
        """Return the rings of keys and values, and the exchange of heads, of context-parallel groups."""
        training, who = self.instance.training, "a context-parallel group"
        n, _, _, cp, _ = self.hosts.shape
        size = exchange_ranks(training, self.config)
        parts = self.gpus.swapaxes(3, 4).reshape(n, -1, cp // size, size)
        rings = exchange = None
        if size < cp:
            groups = parts.swapaxes(2, 3).reshape(n, -1, cp // size)
            rings = self.links.rings(groups, who, messages=training.cp_comm_type != "all_gather")
        if size > 1:
            all_to_alls = self.links.exchange(parts.reshape(n, -1, size), who, np.ones(size + 1))
            exchange = ExchangedContext(all_to_alls, size)
        return rings, exchange

    def _layer(
        self,
        rings: Rings | LeastRings | ExchangedContext | None,
        traffic: list[tuple[RingTraffic, RingTraffic]],
        hidden: list[tuple[float, float]],
        beside: Sequence[tuple[BesideProduct, ...]] = (),
    ) -> FloatArray:
        """
        Return the exposed time of one layer's rings, the slowest of a slot, seconds, shape ``(2, n, pp, dp)``.

        ``beside``: messages beside products of the backward pass, for each placement.
        """
        n, pp, dp = self.hosts.shape[:3]
        found, slowdown = np.zeros((2, n, pp, dp)), self.instance.stack.overlap_slowdown
        if rings is not None:
            for way in (0, 1):
                times = rings.time_s(spread(stacked([both[way] for both in traffic]), 1))
                for messages in zip(*beside, strict=True) if way else ():
                    alone_s = rings.time_s(spread(stacked([message.traffic for message in messages]), 1))
                    product_s = np.array([message.product_s for message in messages])[:, None]
                    times = times + shown_beside_s(alone_s, product_s, slowdown)
                waits = np.array([both[way] for both in hidden])[:, None, None]
                found[way] = np.maximum(times.reshape(n, pp, dp, -1).max(axis=3) - waits, 0.0)
        return found

    def _sends(self) -> tuple[FloatArray, FloatArray]:
        """
        Return the transfers at every stage boundary, forward and backward, seconds, shape ``(n, pp, dp)`` each.

        The boundary from the last to the first stage is included.
        """
        n, pp, dp = self.hosts.shape[:3]
        forward, backward = np.zeros((n, pp, dp)), np.zeros((n, pp, dp))
        if pp == 1:
            return forward, backward
        gpus = self.gpus.reshape(n, pp, dp, -1)
        used = pp if self.config.num_chunks > 1 else pp - 1
        here, following = gpus[:, :used], np.roll(gpus, -1, axis=1)[:, :used]
        size = np.array([costs.message_bytes for costs in self.costs])
        forward[:, :used] = self._messages(size, here, following)
        backward[:, :used] = self._messages(size, following, here)
        return forward, backward

    def _messages(self, size: FloatArray, senders: IntArray, receivers: IntArray) -> FloatArray:
        """
        Return the slowest message of each replica at each boundary, seconds, shape ``(n, boundaries, dp)``.

        The messages of a boundary run concurrently; ``senders`` and ``receivers`` have shape ``(n, boundaries, dp,
        slot)``.
        """
        from pipette_opt.costs._flows import message_flows

        cluster = self.instance.cluster
        here, target = host_of(cluster, senders), host_of(cluster, receivers)
        sets = (len(here) * here.shape[1], -1)
        flows = message_flows(here.reshape(sets), target.reshape(sets), cluster.num_nodes).reshape(here.shape)
        rate = flow_rates(cluster, here, target, np.where(here == target, 0, flows))
        self.links.note_missing("the pipeline", rate, here, target)
        size = size[:, None, None, None]
        inside = np.array([intra_node_message_s(cluster, float(each)) for each in size.ravel()])[:, None, None, None]
        if cluster.gpu_links is not None:
            slots = slot_rates(cluster, senders.reshape(sets), receivers.reshape(sets)).reshape(here.shape)
            inside = np.maximum(inside, cluster.intra_node_latency_s + size / slots)
            rate = np.minimum(rate, slots)
        times = np.where(here == target, inside, cluster.pair_latency_s[here, target] + size / rate)
        slowest: FloatArray = times.max(axis=3)
        return slowest

    def _reductions(self) -> tuple[FloatArray, FloatArray | None]:
        """Return gradient reduction and parameter gather of each stage's slowest ring, seconds, ``(n, pp)`` each."""
        dp, cp = self.hosts.shape[2:4]
        beside = self.config.overlap_param_gather
        algorithm = self.instance.allreduce
        if algorithm == "tree" and self.config.use_distributed_optimizer:
            algorithm = "ring"  # NCCL's reduce-scatter and all-gather know no trees
        reduction, gather = self._expert_reductions(algorithm)
        if dp * cp == 1:
            return reduction, gather if beside else None
        groups = self.config.num_distributed_optimizer_instances
        traffic = [costs.gradient for costs in self.costs]
        reduction = reduction + self._data_parallel(traffic, algorithm, groups=groups) + self._outer()
        if not beside:
            return reduction, None
        parameters = [costs.parameters for costs in self.costs]
        return reduction, gather + self._data_parallel(parameters, algorithm, groups=groups)

    def _data_parallel(
        self,
        traffic: list[list[RingTraffic]],
        algorithm: Collective = "ring",
        *,
        groups: int = 1,
        outer: bool = False,
    ) -> FloatArray:
        """
        Return the slowest data-parallel ring of each stage, seconds, shape ``(n, pp)``.

        ``groups`` and ``outer``: arguments of :func:`in_groups`.
        """
        n, pp, dp, cp, tp = self.hosts.shape
        ranks = in_groups(self.gpus.transpose(0, 1, 4, 2, 3).reshape(n, pp * tp, dp * cp), groups, outer=outer)
        if ranks.shape[2] == 1:
            return np.zeros((n, pp))
        rings = self.links.rings(np.ascontiguousarray(ranks), "a data-parallel group", algorithm)
        flat, each = stacked([of_stage for stages in traffic for of_stage in stages]), ranks.shape[1] // pp
        of_ring = (np.repeat(values.reshape(n, pp), each, axis=1) for values in flat)
        times: FloatArray = rings.time_s(RingArrays(*of_ring)).reshape(n, pp, each).max(axis=2)
        return times

    def _outer(self) -> FloatArray | float:
        """Return the reduction among optimizer instances once an iteration, seconds, shape ``(n, pp)``."""
        groups = self.config.num_distributed_optimizer_instances
        if groups == 1:
            return 0.0
        found = self._data_parallel([costs.outer for costs in self.costs], groups=groups, outer=True)
        if self.experts is not None:
            traffic = [costs.outer for costs in self.experts.costs]
            found = found + self.experts.reduction_s("ring", traffic, groups=groups, outer=True)
        return found

    def _sharded(self, forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """
        Return the exposed time that ZeRO 2 and 3 add to the forward and backward of a micro-batch, seconds.

        Shape ``(n, chunks, pp, dp)`` each; ``None`` for ZeRO 0 and 1.
        """
        known = [costs.sharded for costs in self.costs if costs.sharded is not None]
        if not known or self.hosts.shape[2] * self.hosts.shape[3] == 1:
            return None
        units = np.array([sharded.units for sharded in known])[:, None, :, None]
        slowdown = self.instance.stack.overlap_slowdown
        groups, shown = self.config.num_distributed_optimizer_instances, []
        for work_s, way in ((forward_s, "forward"), (backward_s, "backward")):
            sent = self._data_parallel([getattr(sharded.layers, way) for sharded in known], groups=groups)
            experts = [getattr(sharded.experts, way) for sharded in known if sharded.experts is not None]
            if self.experts is not None and experts:
                sent = sent + self.experts.reduction_s("ring", experts, groups=groups)
            shown.append(shown_gather_s(sent[:, None, :, None], units, work_s, slowdown))
        return shown[0], shown[1]

    def _expert_reductions(self, algorithm: Collective) -> tuple[FloatArray, FloatArray]:
        """
        Return the reduction of experts' gradients, and their parameter gather that overlaps with forwards, seconds,
        ``(n, pp)``.

        The expert rings run after the dense rings.
        """
        none = np.zeros(self.hosts.shape[:2])
        if self.experts is None:
            return none, none
        costs = self.experts.costs
        groups = self.config.num_distributed_optimizer_instances
        reduction = self.experts.reduction_s(algorithm, [each.gradient for each in costs], groups=groups)
        if not self.config.overlap_param_gather:
            return reduction, none
        return reduction, self.experts.reduction_s(algorithm, [each.parameters for each in costs], groups=groups)

    def _embeddings(self) -> FloatArray:
        """
        Return the all-reduce of tied word embeddings, the slowest pair of first and last stage, seconds, shape
        ``(n,)``.
        """
        n = len(self.hosts)
        if not has_tied_stages(self.instance.model, self.config):
            return np.zeros(n)
        from pipette_opt.costs._flows import message_flows

        cluster, stack = self.instance.cluster, self.instance.stack
        first, last = self.hosts[:, 0].reshape(n, -1), self.hosts[:, -1].reshape(n, -1)
        ends = self.gpus[:, 0].reshape(n, -1), self.gpus[:, -1].reshape(n, -1)
        slots = np.minimum(slot_rates(cluster, *ends), slot_rates(cluster, *ends[::-1]))
        flows = message_flows(first, last, cluster.num_nodes)
        traffic = spread(stacked([costs.embedding for costs in self.costs]), 1)
        fabric = np.minimum(cluster.inside_bytes_per_s(2), slots)
        times = np.broadcast_to(inside_s(cluster, traffic, fabric, stack), first.shape)
        for num_flows in np.unique(flows[first != last]):
            these = (first != last) & (flows == num_flows)
            over = self.links.embedding_s(traffic, (first, last), slots, int(num_flows))
            times = np.where(these, over, times)
        slowest: FloatArray = times.max(axis=1)
        return slowest
