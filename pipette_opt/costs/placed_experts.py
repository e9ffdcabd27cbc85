"""
Traffic of experts between placed ranks, and the waits of replicas for each other.

Groups are those of megatron-core: see ``costs/experts.py``. All all-to-alls of a placement run concurrently, and so do
its rings. Replicas whose ranks exchange tokens run in step: in every layer, the fastest waits for the slowest. So each
replica gets the slowest replica's times of compute and of transfers.
"""

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import Collective, FloatArray, IntArray, RankOrder
from pipette_opt.costs.collectives import RingArrays, RingTraffic, stacked
from pipette_opt.costs.exchange import shown_exchange_s
from pipette_opt.costs.experts import coupled_replicas, distinct_shares
from pipette_opt.costs.placed_links import PlacedLinks, in_groups, spread
from pipette_opt.costs.stage import expert_block
from pipette_opt.costs.token_kernels import most_sent_bytes_per_s
from pipette_opt.costs.unplaced import ExpertCosts, LayerCosts
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec


class PlacedExperts:
    """
    Communication of experts, for placements with equal degrees.

    Parameters
    ----------
    costs
        Traffic of the experts of each placement.
    gpus
        GPU of each rank from ``gpu_numbers``, shape ``(n, pp, dp, cp, tp)``.
    """

    def __init__(self, links: PlacedLinks, config: ParallelConfig, costs: list[ExpertCosts], gpus: IntArray) -> None:
        self.links, self.config, self.costs, self.gpus = links, config, costs, gpus
        self.of_stage = gpus.reshape(*gpus.shape[:2], -1)

    def layer_s(self, layers: list[LayerCosts]) -> FloatArray:
        """
        Return the exposed token exchange of one layer and micro-batch, seconds, shape ``(2, n, pp, dp)``.

        The slowest rank of a slot counts. ``layers``: costs of one layer type, for each placement.
        """
        n, pp, dp = self.gpus.shape[:3]
        found = np.zeros((2, n, pp, self.of_stage.shape[2]))
        block = expert_block(self.config)
        ring = layers[0].rings[0]
        size = int(ring.num_steps // ring.num_calls) + 1 if ring.num_steps else 1
        if size > 1:
            rings = self.links.rings(self.of_stage.reshape(n, -1, size), "a group that shares experts")
            for way in (0, 1):
                times = rings.time_s(spread(stacked([layer.rings[way] for layer in layers]), 1))
                found[way] += np.repeat(times, size, axis=1).reshape(n, pp, -1)
        if self.config.expert_model_parallel_size > 1 and layers[0].num_exchanges[0]:
            ep, etp = self.config.expert_model_parallel_size, self.config.expert_tensor_size
            groups = self.of_stage.reshape(n, pp, -1, ep, etp).swapaxes(3, 4)
            exchange = self._exchange_s(groups.reshape(n, -1, ep), layers).reshape(n, pp, -1, 1, etp)
            of_rank = np.broadcast_to(exchange, (n, pp, self.of_stage.shape[2] // block, ep, etp)).reshape(n, pp, -1)
            for way in (0, 1):
                whole = np.array([layer.num_exchanges[way] for layer in layers])[:, None, None] * of_rank
                idle = np.array([layer.beside.idle_s[way] for layer in layers])[:, None, None]
                compute = np.array([layer.beside.compute_s for layer in layers])[:, None, None]
                found[way] += shown_exchange_s(whole, idle, compute, self.links.instance.stack)
        slowest: FloatArray = found.reshape(2, n, pp, dp, -1).max(axis=4)
        return slowest

    def _exchange_s(self, groups: IntArray, layers: list[LayerCosts]) -> FloatArray:
        """
        Return the time of an all-to-all of each group, seconds, shape ``(n, groups)``.

        ``groups``: GPUs of the members, shape ``(n, groups, members)``.
        """
        training = self.links.instance.training
        shares = distinct_shares(self.links.instance.model, training, self.config)
        hands_on = training.moe_token_dispatcher_type == "flex"
        exchange = self.links.exchange(groups, "an expert-parallel group", shares, hands_on=hands_on)
        parts = np.array([layer.part_bytes for layer in layers])[:, None]
        return exchange.time_s(parts, most_sent_bytes_per_s(training))

    def reduction_s(
        self, algorithm: Collective, traffic: list[list[RingTraffic]], *, groups: int = 1, outer: bool = False
    ) -> FloatArray:
        """
        Return the slowest ring over ranks with equal experts for each stage, seconds, shape ``(n, pp)``.

        Parameters
        ----------
        traffic
            Traffic of each placement and stage.
        groups, outer
            Arguments of :func:`~pipette_opt.costs.placed_links.in_groups`.
        """
        n, pp, block = len(self.gpus), self.gpus.shape[1], expert_block(self.config)
        if self.config.expert_data_parallel_size == 1:
            return np.zeros((n, pp))
        ranks = self.of_stage.reshape(n, pp, -1, block).swapaxes(2, 3).reshape(n, pp * block, -1)
        ranks = in_groups(ranks, groups, outer=outer)
        if ranks.shape[2] == 1:
            return np.zeros((n, pp))
        rings = self.links.rings(np.ascontiguousarray(ranks), "an expert-data-parallel group", algorithm)
        flat = stacked([of_stage for stages in traffic for of_stage in stages])
        each = ranks.shape[1] // pp
        of_ring = RingArrays(*(np.repeat(values.reshape(n, pp), each, axis=1) for values in flat))
        times: FloatArray = rings.time_s(of_ring).reshape(n, pp, each).max(axis=2)
        return times


def in_step(model: ModelSpec, config: ParallelConfig, times: FloatArray) -> FloatArray:
    """Return times in which replicas (last axis) that exchange tokens have the slowest replica's time."""
    together = coupled_replicas(model, config)
    if together == 1:
        return times
    shape = times.shape
    slowest = times.reshape(*shape[:-1], -1, together).max(axis=-1, keepdims=True)
    coupled: FloatArray = np.repeat(slowest, together, axis=-1).reshape(shape)
    return coupled


def check_expert_ranks(model: ModelSpec, config: ParallelConfig, order: RankOrder) -> None:
    """Raise ``InputError`` unless megatron-core can number the ranks of the experts."""
    if model.num_experts is None:
        return
    slot, block = config.tensor_model_parallel_size * config.context_parallel_size, expert_block(config)
    if slot * config.data_parallel_size % block:
        raise InputError(
            "expert_model_parallel_size",
            f"is {config.expert_model_parallel_size}; with expert tensor size {config.expert_tensor_size} it must "
            f"divide the {slot * config.data_parallel_size} ranks of a stage.",
        )
    if order != "tp-cp-ep-dp-pp" and config.pipeline_model_parallel_size > 1 and block != slot:
        raise InputError(
            "rank_order",
            f"is {order}; there megatron-core wants expert tensor size * expert_model_parallel_size, here {block}, to "
            f"be tensor * context parallel size, here {slot}.",
        )
