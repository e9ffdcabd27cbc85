"""
All costs of configurations on given GPUs, in seconds.

Placements with equal degrees are costed together, as arrays; one placement is a batch of one. Flows that run at once
and share a host pair: the messages of one stage boundary in one direction; the gradient rings of all stages; the
tensor-parallel rings of all stages; their context-parallel rings.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipette_opt.costs.collectives import (
    RingArrays,
    RingTraffic,
    across_s,
    embedding_traffic,
    gradient_traffic,
    has_tied_stages,
    hierarchical_s,
    inside_s,
    parameter_traffic,
    stacked,
    tensor_traffic,
    tree_edges,
    tree_s,
)
from pipette_opt.costs.compute import StageCompute, stage_compute, stage_parameters
from pipette_opt.costs.context import context_traffic, hidden_by_attention_s
from pipette_opt.costs.messages import intra_node_message_s, p2p_bytes
from pipette_opt.costs.overlap import exposed, hiding_s, num_buckets
from pipette_opt.costs.times import MissingLink, PlacedBatch, PlacedTimes
from pipette_opt.errors import MissingLinkError
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid
from pipette_opt.parallel.schedule import Layout
from pipette_opt.specs import ClusterSpec, Instance
from pipette_opt.types import Collective, FloatArray, IntArray, RankOrder

__all__ = ["PlacedBatch", "PlacedTimes", "placed_batch", "placed_batches", "placed_times"]

Grid = tuple[int, int, int, int, int, RankOrder, bool, bool, bool]
"""
What a batch has in common: tensor, context, data and pipeline size, chunks per stage, rank order; whether gradients,
parameters and activations are sent beside compute.
"""


class _Costs(NamedTuple):
    """What a configuration costs wherever it is placed."""

    compute: StageCompute
    message_bytes: float
    tensor: tuple[RingTraffic, RingTraffic]
    context: tuple[RingTraffic, RingTraffic]
    attention: tuple[float, float]
    gradient: list[RingTraffic]
    parameters: list[RingTraffic]
    embedding: RingTraffic
    buckets: IntArray
    least: tuple[FloatArray, FloatArray]


def placed_times(
    instance: Instance, config: ParallelConfig, placement: Placement, layout: Layout = "loop"
) -> PlacedTimes:
    """
    Times of any placement, regular or not.

    Parameters
    ----------
    layout
        Where the schedule has the layers; in a V of two chunks the first stage has the output head, too.

    Raises
    ------
    MissingLinkError
        If the placement uses a link that was not measured.
    """
    known = {config: _in_a_vee(instance, config, _costs(instance, config))} if layout == "vee" else None
    batch = placed_batch(instance, [(config, placement)], known)
    for who, source, target in batch.missing.values():
        cluster = instance.cluster
        raise MissingLinkError(
            f"cluster {cluster.name}",
            f"{who} uses the link from {cluster.hosts[source]} to {cluster.hosts[target]}, which was not measured; "
            "choose other hosts, or import the links again with a fill value.",
        )
    return batch.one(0)


def placed_batches(
    instance: Instance, placed: Sequence[tuple[ParallelConfig, Placement]]
) -> list[tuple[IntArray, PlacedBatch]]:
    """Times of many placements, in batches of one grid; with each the places of its members in ``placed``."""
    grids: dict[Grid, list[int]] = {}
    for index, (config, placement) in enumerate(placed):
        grids.setdefault(_grid(config, placement), []).append(index)
    known: dict[ParallelConfig, _Costs] = {}
    return [
        (np.array(members), placed_batch(instance, [placed[index] for index in members], known))
        for members in grids.values()
    ]


def placed_batch(
    instance: Instance,
    placed: Sequence[tuple[ParallelConfig, Placement]],
    known: dict[ParallelConfig, _Costs] | None = None,
) -> PlacedBatch:
    """
    Times of placements of one grid.

    Parameters
    ----------
    known
        Filled with what each configuration costs wherever it is placed, and read.
    """
    known = {} if known is None else known
    for config, _ in placed:
        if config not in known:
            known[config] = _costs(instance, config)
    first, placement = placed[0]
    ranks = RankGrid.of(first, placement.order).ranks()
    nodes = np.stack([placement.node for _, placement in placed])
    configs = [config for config, _ in placed]
    return _Batch(instance, configs, [known[config] for config in configs], nodes[:, ranks]).times()


def _grid(config: ParallelConfig, placement: Placement) -> Grid:
    return (
        config.tensor_model_parallel_size,
        config.context_parallel_size,
        config.data_parallel_size,
        config.pipeline_model_parallel_size,
        config.num_chunks,
        placement.order,
        config.overlap_grad_reduce,
        config.overlap_param_gather,
        config.overlap_p2p_communication,
    )


def _costs(instance: Instance, config: ParallelConfig) -> _Costs:
    model, training, stack = instance.model, instance.training, instance.stack
    compute, overlap = stage_compute(instance, config), config.overlap_grad_reduce
    none = np.zeros(config.pipeline_model_parallel_size)
    return _Costs(
        compute=compute,
        message_bytes=p2p_bytes(model, training, config),
        tensor=tensor_traffic(model, training, config, stack),
        context=context_traffic(model, training, config),
        attention=hidden_by_attention_s(instance, config) if config.context_parallel_size > 1 else (0.0, 0.0),
        gradient=gradient_traffic(model, training, config, stack),
        parameters=parameter_traffic(model, training, config) if config.overlap_param_gather else [],
        embedding=embedding_traffic(model, training, config),
        buckets=num_buckets(model, config) if overlap else none.astype(np.int64),
        least=hiding_s(instance, config, compute, least=True) if overlap else (none, none),
    )


def _in_a_vee(instance: Instance, config: ParallelConfig, costs: _Costs) -> _Costs:
    """The output head and the last norm on the first stage, whose embeddings are then no copies."""
    chunks, layers = config.num_chunks, config.layers_per_stage
    if config.pipeline_model_parallel_size == 1:
        return costs
    fixed = instance.stack.micro_batch_s / 2.0 / chunks

    def moved(work_s: FloatArray) -> FloatArray:
        of_layers = fixed + (work_s[:, -1, 0] - fixed) * (layers[-1] / layers[0])
        work = work_s.copy()
        work[:, -1, 0] += work_s[:, -1, -1] - of_layers
        work[:, -1, -1] = of_layers
        return work

    model, tp = instance.model, config.tensor_model_parallel_size
    before = stage_parameters(model, config)
    vocabulary = model.padded_vocab_size(tp) / tp * model.hidden_size
    after = before.copy()
    after[-1] -= vocabulary + model.norm_parameters
    after[0] += vocabulary * model.untie_embeddings_and_output_weights + model.norm_parameters

    def scaled(traffic: list[RingTraffic]) -> list[RingTraffic]:
        shares = (after / before).tolist()
        return [one._replace(hop_bytes=one.hop_bytes * by) for one, by in zip(traffic, shares, strict=True)]

    compute = replace(
        costs.compute, forward_s=moved(costs.compute.forward_s), backward_s=moved(costs.compute.backward_s)
    )
    return costs._replace(
        compute=compute,
        gradient=scaled(costs.gradient),
        parameters=scaled(costs.parameters) if costs.parameters else [],
        embedding=costs.embedding._replace(hop_bytes=0.0, num_steps=0, num_calls=0),
    )


class _Batch:
    """
    Placements of one grid.

    Parameters
    ----------
    hosts
        Host of each rank, shape ``(n, pp, dp, cp, tp)``.
    """

    def __init__(self, instance: Instance, configs: list[ParallelConfig], costs: list[_Costs], hosts: IntArray) -> None:
        self.instance, self.configs, self.costs, self.hosts = instance, configs, costs, hosts
        self.config = configs[0]  # the degrees are those of all
        self.missing: dict[int, MissingLink] = {}

    def times(self) -> PlacedBatch:
        """All costs."""
        forward, backward = self._compute()
        tensor_forward, tensor_backward = self._tensor()
        send_forward, send_backward = self._sends()
        forward, backward = forward + tensor_forward, backward + tensor_backward
        reduction, gather = self._reductions()
        beside = None
        if self.config.overlap_grad_reduce:
            buckets = np.stack([one.buckets for one in self.costs])
            slowdown = self.instance.stack.overlap_slowdown
            least = np.stack([np.stack(one.least) for one in self.costs])
            beside = exposed(buckets, forward, backward, reduction, gather, least, slowdown)
        return PlacedBatch(
            forward_s=forward,
            backward_s=backward,
            tensor_forward_s=tensor_forward,
            tensor_backward_s=tensor_backward,
            send_forward_s=send_forward,
            send_backward_s=send_backward,
            reduction_s=reduction,
            gather_s=gather,
            optimizer_s=np.array([one.compute.optimizer_s for one in self.costs]),
            embedding_s=self._embeddings(),
            overlap_p2p=self.config.overlap_p2p_communication,
            **({} if beside is None else beside._asdict()),
            missing=self.missing,
        )

    def _compute(self) -> tuple[FloatArray, FloatArray]:
        """Work of every chunk, the slowest of its slot's GPUs, shape ``(n, chunks, pp, dp)`` each."""
        n, pp, dp = self.hosts.shape[:3]
        works = [np.stack([getattr(one.compute, name) for one in self.costs]) for name in ("forward_s", "backward_s")]
        kinds = self.instance.cluster.kind_of_node[self.hosts].reshape(n, pp, dp, -1)
        if works[0].shape[1] == 1:
            return tuple(np.repeat(work[:, 0, :, :, None], dp, axis=3) for work in works)  # type: ignore[return-value]
        which, stage = np.arange(n)[:, None, None, None], np.arange(pp)[None, :, None, None]
        slowest = [work[which, kinds, :, stage].max(axis=3).transpose(0, 3, 1, 2) for work in works]
        return slowest[0], slowest[1]

    def _tensor(self) -> tuple[FloatArray, FloatArray]:
        """Communication inside the layers of every chunk, shape ``(n, chunks, pp, dp)`` each, forward and backward."""
        n, pp, dp, cp, tp = self.hosts.shape
        chunks = self.config.num_chunks
        per_layer = np.zeros((2, n, pp, dp))
        if tp > 1:
            idle = [(one.compute.idle_forward_s, one.compute.idle_backward_s) for one in self.costs]
            groups = self.hosts.reshape(n, pp * dp * cp, tp)
            per_layer += self._layer(groups, [one.tensor for one in self.costs], idle, "a tensor-parallel group")
        if cp > 1:
            groups = self.hosts.swapaxes(3, 4).reshape(n, pp * dp * tp, cp)
            hidden = [one.attention for one in self.costs]
            per_layer += self._layer(groups, [one.context for one in self.costs], hidden, "a context-parallel group")
        layers = np.array([config.layers_per_stage for config in self.configs])[:, None, :, None] / chunks
        forward, backward = (np.repeat(layers * one[:, None], chunks, axis=1) for one in per_layer)
        return forward, backward

    def _layer(
        self,
        groups: IntArray,
        traffic: list[tuple[RingTraffic, RingTraffic]],
        hidden: list[tuple[float, float]],
        who: str,
    ) -> FloatArray:
        """Rings of one layer beyond what is hidden, the slowest of a slot, shape ``(2, n, pp, dp)``."""
        n, pp, dp = self.hosts.shape[:3]
        rings, found = self._rings(groups, who), np.empty((2, n, pp, dp))
        for way in (0, 1):
            times = rings.time_s(_spread(stacked([one[way] for one in traffic]), 1))
            beside = np.array([one[way] for one in hidden])[:, None, None]
            found[way] = np.maximum(times.reshape(n, pp, dp, -1).max(axis=3) - beside, 0.0)
        return found

    def _sends(self) -> tuple[FloatArray, FloatArray]:
        """Transfers of every boundary, forward and backward, the one from the last to the first stage included."""
        n, pp, dp = self.hosts.shape[:3]
        forward, backward = np.zeros((n, pp, dp)), np.zeros((n, pp, dp))
        if pp == 1:
            return forward, backward
        hosts = self.hosts.reshape(n, pp, dp, -1)
        used = pp if self.config.num_chunks > 1 else pp - 1
        here, there = hosts[:, :used], np.roll(hosts, -1, axis=1)[:, :used]
        size = np.array([one.message_bytes for one in self.costs])
        forward[:, :used] = self._messages(size, here, there)
        backward[:, :used] = self._messages(size, there, here)
        return forward, backward

    def _messages(self, size: FloatArray, here: IntArray, there: IntArray) -> FloatArray:
        """The slowest message of each replica; those of a boundary, ``(n, boundaries, dp, slot)``, go at once."""
        from pipette_opt.costs._flows import message_flows

        cluster = self.instance.cluster
        sets = (len(here) * here.shape[1], -1)
        flows = message_flows(here.reshape(sets), there.reshape(sets), cluster.num_nodes).reshape(here.shape)
        rate = _flow_rates(cluster, here, there, np.where(here == there, 0, flows))
        self._note_missing("the pipeline", rate, here, there)
        size = size[:, None, None, None]
        inside = np.array([intra_node_message_s(cluster, float(one)) for one in size.ravel()])[:, None, None, None]
        times = np.where(here == there, inside, cluster.inter_node_latency_s + size / rate)
        slowest: FloatArray = times.max(axis=3)
        return slowest

    def _reductions(self) -> tuple[FloatArray, FloatArray | None]:
        """Gradient reduction and parameter gather of each stage: the slowest of its rings, shape ``(n, pp)``."""
        n, pp, dp, cp, tp = self.hosts.shape
        beside = self.config.overlap_param_gather
        if dp * cp == 1:
            return np.zeros((n, pp)), np.zeros((n, pp)) if beside else None
        groups = self.hosts.transpose(0, 1, 4, 2, 3).reshape(n, pp * tp, dp * cp)
        algorithm = self.instance.allreduce
        if algorithm == "tree" and self.config.use_distributed_optimizer:
            algorithm = "ring"  # NCCL's reduce-scatter and all-gather know no trees
        rings = self._rings(groups, "a data-parallel group", algorithm)

        def slowest(traffic: list[RingTraffic]) -> FloatArray:
            of_ring = (np.repeat(values.reshape(n, pp), tp, axis=1) for values in stacked(traffic))
            times: FloatArray = rings.time_s(RingArrays(*of_ring)).reshape(n, pp, tp).max(axis=2)
            return times

        reduction = slowest([one for costs in self.costs for one in costs.gradient])
        return reduction, slowest([one for costs in self.costs for one in costs.parameters]) if beside else None

    def _embeddings(self) -> FloatArray:
        """
        All-reduce of tied word embeddings, the slowest pair of first and last stage, shape ``(n,)``.

        A link that was not measured counts as the slowest one that was: these few bytes are no reason to refuse a plan.
        """
        n = len(self.hosts)
        if not has_tied_stages(self.instance.model, self.config):
            return np.zeros(n)
        from pipette_opt.costs._flows import message_flows

        cluster, stack = self.instance.cluster, self.instance.stack
        first, last = self.hosts[:, 0].reshape(n, -1), self.hosts[:, -1].reshape(n, -1)
        flows = message_flows(first, last, cluster.num_nodes)
        traffic = _spread(stacked([one.embedding for one in self.costs]), 1)
        one_flow, two_hosts = np.array(1), np.array(2)
        times = np.broadcast_to(inside_s(cluster, traffic, stack), first.shape)
        for num_flows in np.unique(flows[first != last]):
            these = (first != last) & (flows == num_flows)
            rate = cluster.pair_bytes_per_s(int(num_flows)) / num_flows
            both = np.minimum(rate, rate.T)
            rate = np.where(np.isnan(both), np.nanmin(rate, initial=np.inf), both)[first, last]
            times = np.where(these, across_s(cluster, traffic, rate, one_flow, two_hosts, stack), times)
        slowest: FloatArray = times.max(axis=1)
        return slowest

    def _rings(self, groups: IntArray, who: str, algorithm: Collective = "ring") -> "_Rings":
        """Rings over the hosts of groups, shape ``(n, groups, members)``; those of one placement run at once."""
        from pipette_opt.costs._flows import ring_hops

        source, target, shared, num_hosts, members = ring_hops(groups, self.instance.cluster.num_nodes)
        if algorithm == "tree":
            return _Rings(
                self.instance, algorithm, self._host_loads(source, num_hosts, members, who), num_hosts, members
            )
        rate = _flow_rates(self.instance.cluster, source, target, shared)
        self._note_missing(who, rate, source, target)
        return _Rings(self.instance, algorithm, rate.min(axis=2), num_hosts, members)

    def _host_loads(self, hosts: IntArray, num_hosts: IntArray, members: IntArray, who: str) -> FloatArray:
        """
        Of double trees over the hosts of groups, in order: the longest a host takes for its part of a byte.

        ``hosts``, shape ``(n, groups, members)``, holds ``num_hosts`` of each group; the trees of one placement run at
        once. Shape ``(n, groups)``, zero for a single host; NaN if an edge was not measured.
        """
        cluster, loads = self.instance.cluster, np.zeros(num_hosts.shape)
        for one in range(len(hosts)):
            flows, ends = np.zeros((cluster.num_nodes,) * 2, dtype=np.int64), []
            for group, count in enumerate(num_hosts[one].tolist()):
                edges = hosts[one, group, tree_edges(count)] if count > 1 else np.zeros((0, 2), dtype=np.int64)
                both = np.concatenate([edges, edges[:, ::-1]])  # up when reducing, down when broadcasting
                once = np.unique(both, axis=0)  # both trees may use a pair; what they send over it follows in turn
                flows[once[:, 0], once[:, 1]] += members[one, group]
                ends.append(both)
            for group, both in enumerate(ends):
                rate = _flow_rates(cluster, both[:, 0], both[:, 1], flows[both[:, 0], both[:, 1]])
                self._note_missing(who, rate[None], both[None, :, 0], both[None, :, 1], one)
                out, into = np.zeros(cluster.num_nodes), np.zeros(cluster.num_nodes)
                np.add.at(out, both[:, 0], 0.5 / rate)
                np.add.at(into, both[:, 1], 0.5 / rate)
                loads[one, group] = max(out.max(), into.max())
        return loads

    def _note_missing(self, who: str, rate: FloatArray, source: IntArray, target: IntArray, first: int = 0) -> None:
        """Remember the first link of each placement, from ``first`` on, that was not measured."""
        for place in np.argwhere(np.isnan(rate)):
            at = tuple(place)
            self.missing.setdefault(first + int(at[0]), MissingLink(who, int(source[at]), int(target[at])))


class _Rings(NamedTuple):
    """
    Collectives of placements: hosts and own flows of each group, shape ``(n, groups)``.

    ``pace``: what a flow gets over the slowest hop, bytes per second; of trees what a host takes for a byte.
    """

    instance: Instance
    algorithm: Collective
    pace: FloatArray
    num_hosts: IntArray
    members: IntArray

    def time_s(self, traffic: RingArrays) -> FloatArray:
        """Seconds, shape ``(n, groups)``; ``traffic`` broadcasts to it."""
        cluster, stack = self.instance.cluster, self.instance.stack
        inside = np.where(self.members > 1, inside_s(cluster, traffic, stack), 0.0)
        several = self.num_hosts > 1
        times = {"ring": across_s, "hierarchical": hierarchical_s, "tree": tree_s}[self.algorithm]
        hosts = np.where(several, self.num_hosts, 2)  # what is not used must be defined, too
        across = times(cluster, traffic, self.pace, self.members, hosts, stack)
        shown: FloatArray = np.where(several, across, inside)
        return np.maximum(inside, shown) if self.algorithm == "ring" else shown


def _spread(traffic: RingArrays, num_axes: int) -> RingArrays:
    """The same with further axes behind."""
    return RingArrays(*(values.reshape(values.shape + (1,) * num_axes) for values in traffic))


def _flow_rates(cluster: ClusterSpec, source: IntArray, target: IntArray, flows: IntArray) -> FloatArray:
    """Bytes per second of one of ``flows`` flows from host to host, infinite if there are none; arrays of one shape."""
    rates = np.full(flows.shape, np.inf)
    some = np.flatnonzero(flows)
    if not len(some):
        return rates
    counts = flows.ravel()[some]
    used = np.flatnonzero(np.bincount(counts))
    table = np.stack([cluster.pair_bytes_per_s(int(one)) / one for one in used])
    rates.ravel()[some] = table[np.searchsorted(used, counts), source.ravel()[some], target.ravel()[some]]
    return rates
