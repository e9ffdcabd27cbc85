"""
Layout and traffic of routed experts: parameters held, tokens processed, and bytes sent; no times.

The ranks of a pipeline stage, numbered with tensor parallelism fastest, then context, then data parallelism, fall into
blocks of ``expert_tensor_size * expert_model_parallel_size``. A block holds every expert of its layers once: ``etp``
neighbours share each of its experts, ranks ``etp`` apart hold different experts (``RankGenerator`` in megatron-core's
``parallel_state``, order ``tp-ep-dp``). Ranks at equal places of the blocks hold equal experts and reduce their
gradients.

Every rank has the tokens of its part of the sequence, ``mbs * seq / (tp * cp)`` with sequence parallelism. It sends
each of them to ``topk`` experts. Megatron-Core has these dispatchers (``moe/token_dispatcher.py``):

``alltoall``
  An all-to-all over the ``ep`` ranks sends the copies to the ranks of their experts, an all-gather over the ``etp``
  neighbours to all ranks that share an expert; a reduce-scatter and an all-to-all return the results.
``allgather``
  Every rank of a block gets all tokens of the block by an all-gather and takes those of its experts; a reduce-scatter
  sums up the results.
``flex``
  Kernels of DeepEP or HybridEP replace the all-to-all (``costs/token_kernels.py``). A token goes to another host once,
  however many of its experts are there, and is forwarded over the host's fabric, once to each rank. Results are summed
  on the way back (DeepEP's normal kernels; arXiv 2412.19437, section 3.2.2).

The backward pass mirrors each of them. With an imbalance above 1, the busiest rank of a block has that multiple of the
mean load, and the others wait for it.
"""

import math
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.costs.stage import expert_block
from pipette_opt.layers.experts import experts_on_rank
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.activations import tokens_of_rank


class ExpertTraffic(NamedTuple):
    """
    Traffic of one layer with experts for one micro-batch in the forward pass; the backward pass has equal traffic.

    Parameters
    ----------
    sent_bytes
        Bytes of each rank for the ranks of its all-to-all group, itself included, in one all-to-all.
    num_exchanges
        Number of all-to-alls, 0 or 2.
    gathered_bytes
        Bytes on a ring of ``ring_size`` neighbours after its all-gather, and before its reduce-scatter.
    num_rings
        Number of all-gathers and reduce-scatters together, 0 or 2.
    ring_size
        Number of ranks in such a ring.
    """

    sent_bytes: float
    num_exchanges: int
    gathered_bytes: float
    num_rings: int
    ring_size: int


def coupled_replicas(model: ModelSpec, config: ParallelConfig) -> int:
    """Return the number of consecutive replicas that exchange tokens, hence wait for each other."""
    if model.num_experts is None:
        return 1
    slot = config.tensor_model_parallel_size * config.context_parallel_size
    return int(np.lcm(expert_block(config), slot)) // slot


def local_experts(model: ModelSpec, config: ParallelConfig) -> tuple[int, int]:
    """Return the number of experts of a rank, and the width of its part of them (:func:`experts_on_rank`)."""
    count, width = experts_on_rank(model, config.expert_model_parallel_size, config.expert_tensor_size)
    return count, width


def rows_of_expert(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """Return the number of tokens per expert on the busiest rank in one micro-batch."""
    assert model.num_experts is not None
    routed = expert_block(config) * tokens_of_rank(training, config) * model.moe_router_topk
    return routed / model.num_experts * training.imbalance(config.expert_model_parallel_size)


def distinct_shares(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> FloatArray:
    """
    Return the fraction of copies sent to 0, 1, ... ranks of an all-to-all group in one place, shape ``(ep + 1,)``.

    ``alltoall`` sends all copies. ``flex`` sends a token once to ranks in one place together. With even routing, the
    fraction is a quotient. Its numerator is the chance that at least one of the token's ``topk`` experts is on these
    ranks, and its denominator the mean number of its experts there. Groups of experts are consecutive, like the experts
    of a rank. So a router that first chooses groups sends to fewer places.
    """
    ep = config.expert_model_parallel_size
    if model.num_experts is None or training.moe_token_dispatcher_type != "flex":
        return np.ones(ep + 1)
    local, _ = local_experts(model, config)
    topk, groups, chosen = model.moe_router_topk, model.moe_router_num_groups or 1, model.moe_router_group_topk
    limit = (groups, groups if chosen is None else chosen)
    shares = [distinct_share(model.num_experts, topk, ranks * local, *limit) for ranks in range(1, ep + 1)]
    return np.array([1.0, *shares])


def distinct_share(num_experts: int, topk: int, held: int, groups: int = 1, chosen: int = 1) -> float:
    """
    Return the number of tokens with any of the first ``held`` experts among their ``topk``, over the copies for these.

    A token takes ``chosen`` of ``groups`` equal groups at random, and ``topk`` of their experts at random. The first
    ``held`` experts fill whole groups, and part of the next group.
    """
    size = num_experts // groups
    whole, rest = divmod(held, size)
    none = 0.0
    for hit in range(min(whole, chosen) + 1):
        for part in (0, 1) if rest else (0,):
            others = chosen - hit - part
            if 0 <= others <= groups - whole - bool(rest):
                ways = math.comb(whole, hit) * math.comb(groups - whole - bool(rest), others)
                missed = math.comb(size * chosen - size * hit - rest * part, topk)
                none += ways * missed / (math.comb(groups, chosen) * math.comb(size * chosen, topk))
    return (1.0 - none) / (topk * held / num_experts)


def expert_traffic(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> ExpertTraffic:
    """Return the traffic of a layer's routed experts in the forward pass, without shared experts and attention."""
    ep, etp = config.expert_model_parallel_size, config.expert_tensor_size
    own_bytes = tokens_of_rank(training, config) * model.expert_hidden_size * training.parameter_bytes
    if training.moe_token_dispatcher_type == "allgather":
        return ExpertTraffic(0.0, 0, float(ep * etp * own_bytes), 2 * (ep * etp > 1), ep * etp)
    sent = float(own_bytes * model.moe_router_topk) * training.imbalance(ep)
    return ExpertTraffic(sent, 2 * (ep > 1), etp * sent, 2 * (etp > 1), etp)
