"""
Times of collectives over groups of ranks, by one of three algorithms.

A group with ``q`` members on each of its hosts opens ``q`` flows between two hosts (NCCL puts its channels through
different NICs). So it gets ``q`` shares of a host pair's bandwidth, out of all concurrent flows.

``ring``
    NCCL's flat ring through the hosts, in rank order: a rank sends ``(n - 1) / n`` of the message for each pass, and an
    all-reduce has two. The slowest hop decides. ``benchmarks/network.py`` shows that measured groups of every shape
    follow this rule.

    NCCL treats an NVLink domain as one host. For a hop from one domain to another, all members in a domain send, each
    through its own NIC; a hop inside a domain is like one inside a host.
``hierarchical``
    First inside the hosts, then one ring over the hosts for each local rank, then inside again. Fewer steps, but the
    phases follow one another.
``tree``
    NCCL's double binary tree over the hosts, with a chain inside: two trees, each for half of the message, in which a
    host that has children in one is a leaf of the other (Sanders, Speck and Träff, 2009; ``ncclGetDtree`` in NCCL's
    ``src/graph/trees.cc``). Only all-reduces. Bytes over a NIC are sent at the rate of each host pair in turn.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.layers.branch import Product
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ClusterSpec, LayerKind, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import micro_batch_tokens
from pipette_opt.specs.user_buffers import has_user_buffers


class RingTraffic(NamedTuple):
    """Traffic of collectives over each hop of a ring: bytes, number of consecutive messages, and number of calls."""

    hop_bytes: float
    num_steps: float
    num_calls: float = 1


NO_TRAFFIC = RingTraffic(0.0, 0, 0)

INSIDE_STEP = 0.125
"""
Time of a ring step inside a host, as a fraction of a single message there, which launches kernels of its own.

Measured by ``collectives_*.csv.gz`` of NVIDIA's AIConfigurator (github.com/ai-dynamo/aiconfigurator at 095f58a,
Apache-2.0): from 2 to 8 ranks, small reduce-scatters and all-gathers grow by 0.8 us a step on A100 and H100 and 1.5 us
on B200, and messages between two GPUs of a host take 8 us.
"""


OWN_PART = 0.42
"""
Cost of the part of a message that a rank keeps, relative to a part that it sends, in a collective inside a host.

A ring of ``n`` ranks sends ``n - 1`` of ``n`` parts; with two ranks, NCCL attains 0.6 to 0.7 of its rate with eight.
Fitted to the tables of :data:`INSIDE_STEP`: GPUs left out have a median error of 7 to 12 % with this constant, 10 to 15
% without it (``benchmarks/silicon/nccl.py``).
"""


HIDDEN_SHARE = 0.5
"""
Fraction of exposed tensor-parallel messages that user buffers hide, where a product can be beside them. Chosen.

NVIDIA's public runs of dense models use the option wherever there are tensor ranks, unless they say otherwise. Over
them, 0.24 fits best, with a standard error of 0.43 (``benchmarks/backtest/tensor_overlap.py``).
"""


class RingArrays(NamedTuple):
    """:class:`RingTraffic` of several groups, as arrays of one shape."""

    hop_bytes: FloatArray
    num_steps: FloatArray
    num_calls: FloatArray


def all_reduce_traffic(message_bytes: float, group_size: int) -> RingTraffic:
    """
    Return the traffic of a ring all-reduce: ``2 (n - 1) / n`` of the message in ``2 (n - 1)`` steps.

    Patarasuk and Yuan, 2009.
    """
    steps = 2 * (group_size - 1)
    return RingTraffic(hop_bytes=steps / group_size * message_bytes, num_steps=steps)


def gather_traffic(message_bytes: float, group_size: int) -> RingTraffic:
    """Return the traffic of a ring all-gather or reduce-scatter: ``(n - 1) / n`` of the message in ``n - 1`` steps."""
    steps = group_size - 1
    return RingTraffic(hop_bytes=steps / group_size * message_bytes, num_steps=steps)


def gradient_traffic(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    *,
    experts: bool = False,
) -> list[RingTraffic]:
    """
    Return the traffic of one gradient ring of each stage per iteration, length ``pp``.

    Without the distributed optimizer, the ring is an all-reduce of the gradients. With it, the ring is a reduce-scatter
    of the gradients and later an all-gather of the parameters, unless the latter overlaps with the forwards
    (:func:`parameter_traffic`). ``experts`` selects the separate rings of routed experts.
    """
    size, counts = sharing(model, config, experts=experts, trained=True)
    if not config.use_distributed_optimizer:
        single = all_reduce_traffic(training.gradient_bytes, size)
    else:
        single = gather_traffic(training.gradient_bytes, size)
    reduced = [
        RingTraffic(single.hop_bytes * count, single.num_steps, single.num_calls) if count else NO_TRAFFIC
        for count in counts
    ]
    if not config.use_distributed_optimizer or config.overlap_param_gather:
        return reduced
    gathered = parameter_traffic(model, training, config, experts=experts)
    return [
        RingTraffic(scatter.hop_bytes + gather.hop_bytes, scatter.num_steps + gather.num_steps, 2) if count else scatter
        for scatter, gather, count in zip(reduced, gathered, counts, strict=True)
    ]


def parameter_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, *, experts: bool = False
) -> list[RingTraffic]:
    """
    Return the traffic of the distributed optimizer's parameter all-gather for each stage, length ``pp``.

    ``experts`` selects the parameters of routed experts.
    """
    size = sharing(model, config, experts=experts)[0]
    messages = gathered_bytes(model, training, config, experts=experts, trained=True)
    return [gather_traffic(message, size) if message else NO_TRAFFIC for message in messages]


def gathered_bytes(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    *,
    experts: bool = False,
    trained: bool = False,
) -> list[float]:
    """
    Return the bytes of gathered parameters on a rank of each stage, length ``pp``.

    ``experts`` selects routed experts, ``trained`` leaves out what is frozen, whose matrices travel as they are stored.
    """
    counts = sharing(model, config, experts=experts, trained=trained)[1]
    parameters, narrow = stage_parameters(model, config, trained=trained), training.gather_bytes
    matrices = parameters.experts if experts else parameters.matrices
    if model.adapters is not None:
        narrow = min(model.adapters.base_bytes, training.parameter_bytes)
        if experts:
            matrices = np.zeros_like(matrices) if trained else matrices - trained_experts(model, config)
    whole, saved = training.parameter_bytes, training.parameter_bytes - narrow
    return [count * whole - saved * few for count, few in zip(counts, matrices.tolist(), strict=True)]


def trained_experts(model: ModelSpec, config: ParallelConfig) -> FloatArray:
    """Return the trained parameters of routed experts on a rank of each stage, shape ``(pp,)``."""
    return stage_parameters(model, config, trained=True).experts


def sharing(
    model: ModelSpec, config: ParallelConfig, *, experts: bool, trained: bool = False
) -> tuple[int, list[float]]:
    """Return the number of ranks that share parameters, and the number of parameters on one rank of each stage."""
    counts = stage_parameters(model, config, trained=trained)
    if experts:
        size = max(config.expert_data_parallel_size // config.num_distributed_optimizer_instances, 1)
        return size, counts.experts.tolist()
    return config.sharing_ranks, counts.own.tolist()


def has_tied_stages(model: ModelSpec, config: ParallelConfig) -> bool:
    """Return whether the first and the last stage both hold the word embeddings."""
    tied = not model.untie_embeddings_and_output_weights or model.mtp_num_layers > 0
    tied = tied and model.adapters is None  # frozen tables have no gradient
    return config.pipeline_model_parallel_size > 1 and tied


def embedding_traffic(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> RingTraffic:
    """Return the traffic of the all-reduce of tied embedding gradients between first and last stage."""
    tp = config.tensor_model_parallel_size
    return all_reduce_traffic(model.padded_vocab_size(tp) / tp * model.hidden_size * training.gradient_bytes, 2)


def tensor_traffic(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    kind: LayerKind,
) -> tuple[RingTraffic, RingTraffic]:
    """
    Return the exposed traffic of one tensor-parallel ring per layer and micro-batch: forward and backward.

    Forward, the token mixer has an all-reduce, and so has the MLP or the shared experts. With sequence parallelism, an
    all-gather and a reduce-scatter replace each, with equal traffic (Korthikanti et al., arXiv 2205.05198). Backward,
    the output's gradient is gathered with sequence parallelism; :func:`beside_traffic` has all messages beside
    products. Full recomputation repeats the forward's traffic; recomputation of the MLP or the shared experts repeats
    their part.

    With a low-precision recipe, all-gathers move operands in its format: inputs forward, the outputs' gradients
    backward (Transformer Engine casts before it gathers). Reductions keep their format. Latent attention gathers its
    latents and the key with positions, in a call each (``multi_latent_attention.py``), instead of the input, unless
    queries come from the input. What is gathered outside of a linear layer has an exposed reduce-scatter backward.

    With user buffers, a product works on the part of one rank while the part of the next is sent (Wang et al., ASPLOS
    2023, "Overlap communication with dependent computation via decomposition"). This hides ``HIDDEN_SHARE`` of all
    exposed parts but one. Messages of :func:`beside_traffic` stay as they are: their buffers are sent in bulk.
    """
    tp, split, h = config.tensor_model_parallel_size, config.sequence_parallel, model.hidden_size
    reduced, gathered = training.parameter_bytes, _gathered_bytes(model, training)
    branches = [branch for branch in model.branches(kind) if branch.products]
    width, gathers = (split * sum(each) for each in zip((0, 0), *(branch.gathers for branch in branches), strict=True))
    inside = [product.inputs for product in column_products(model, kind)]
    outside, calls = (width - sum(inside), gathers - len(inside)) if split else (0, 0)
    overlaps = has_user_buffers(training, config)
    piece = 1.0 - HIDDEN_SHARE * (1.0 - 1.0 / tp) if overlaps else 1.0

    def ring(num_gathered: float, num_reduced: float, num_calls: int) -> RingTraffic:
        """Return the traffic of channels of all tokens; an all-reduce without sequence parallelism."""
        sent = micro_batch_tokens(training, config) * (gathered * num_gathered + reduced * num_reduced)
        single = (gather_traffic if split else all_reduce_traffic)(sent, tp)
        return RingTraffic(piece * single.hop_bytes, piece * num_calls * single.num_steps, num_calls)

    parts, has_mlp = len(branches), any(branch.core is None for branch in branches)
    repeated = config.recompute_granularity == "full"
    of_experts = config.recomputes("moe") or config.recomputes("shared_experts")
    again = has_mlp and (of_experts if kind.has_experts else config.recomputes("mlp"))
    forward = ring(width, parts * h, parts + gathers)
    mlp = forward if repeated else ring(again * split * h, again * h, again * (1 + split))
    backward = ring(split * parts * h, outside, split * parts + calls)
    return forward, RingTraffic(*(own + more for own, more in zip(backward, mlp, strict=True)))


def column_products(model: ModelSpec, kind: LayerKind) -> list[Product]:
    """Return the column-parallel products of a layer without routed experts; each gathers its input by itself."""
    products = (product for branch in model.branches(kind) for product in branch.products)
    return [product for product in products if product.split == "columns"]


def beside_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, inputs: int, *, is_wide: bool = False
) -> tuple[RingTraffic, RingTraffic]:
    """
    Return the backward traffic of a column-parallel product that runs beside its own products.

    With sequence parallelism, its input is gathered again beside the product for the input's gradient. This gradient is
    scattered, or reduced without sequence parallelism, beside the product for the weights' gradient (Megatron-Core's
    ``LinearWithGradAccumulationAndAsyncCommunication``, Transformer Engine's linear layers).

    Parameters
    ----------
    inputs
        Channels of the product's input.
    is_wide
        Whether the product stays in 16 bits, as the output head does.
    """
    elements, tp = micro_batch_tokens(training, config) * inputs, config.tensor_model_parallel_size
    if not config.sequence_parallel:
        return NO_TRAFFIC, all_reduce_traffic(elements * training.parameter_bytes, tp)
    gathered = training.parameter_bytes if is_wide else _gathered_bytes(model, training)
    return gather_traffic(elements * gathered, tp), gather_traffic(elements * training.parameter_bytes, tp)


def shown_beside_s(message_s: FloatArray | float, work_s: FloatArray | float, slowdown: float) -> FloatArray:
    """
    Return the seconds that a message adds to compute beside it, which it slows down by ``slowdown``.

    They grow with the message and fall with the compute, and never exceed the message.
    """
    hidden = np.minimum(message_s, work_s)
    shown: FloatArray = message_s - hidden * max(1.0 - slowdown, 0.0)
    return shown


def _gathered_bytes(model: ModelSpec, training: TrainingSpec) -> float:
    """Return the mean bytes of a number that tensor ranks gather with sequence parallelism."""
    reduced, recipe = training.parameter_bytes, training.recipe
    return reduced if recipe is None else reduced + (1 - model.wide_share) * (recipe.element_bytes - reduced)


Messages = list[float]
"""Sizes of messages, bytes."""

Passes = tuple[tuple[Messages, Messages], tuple[Messages, Messages]]
"""Messages that are gathered, and that are reduced, in the forward and in the backward pass."""


class EndTraffic(NamedTuple):
    """
    Exposed tensor-parallel traffic of embeddings and head for one micro-batch; all messages follow one another.

    For each end, gathers and scatters, then all-reduces: forward and backward.
    """

    embedding: tuple[tuple[RingTraffic, RingTraffic], ...]
    head: tuple[tuple[RingTraffic, RingTraffic], ...]


def end_traffic(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> EndTraffic:
    """
    Return the tensor-parallel traffic outside of the layers.

    Every rank looks up its part of the vocabulary, so the results are reduced: scattered with sequence parallelism,
    unless learned positions are added first. Backward, their gradients are gathered. The head gathers its input; its
    backward traffic is that of :func:`beside_traffic`. The loss of split logits has three all-reduces of an fp32 number
    for each token (``VocabParallelCrossEntropy``). Each depth of multi-token prediction has all these again, and
    gathers input and output of its projection (``MultiTokenPredictionLayer``). All are in 16 bits.
    """
    tp, split, depths = config.tensor_model_parallel_size, config.sequence_parallel, model.mtp_num_layers
    tokens = micro_batch_tokens(training, config)
    hidden = float(tokens * model.hidden_size * training.parameter_bytes)
    scattered = split and model.position_embedding_type != "learned_absolute"

    def rings(gathered: Messages, reduced: Messages) -> tuple[RingTraffic, RingTraffic]:
        ways = [gather_traffic(size, tp) for size in gathered], [all_reduce_traffic(size, tp) for size in reduced]
        gathers, reductions = (RingTraffic(*map(sum, zip((0.0, 0, 0), *each, strict=True))) for each in ways)
        return gathers, reductions

    # Messages of each pass, gathered and reduced: of the look-up, of the logits, and of a projection.
    met: Passes = ((scattered * [hidden], (not scattered) * [hidden]), (split * [hidden], []))
    made: Passes = ((split * [hidden], 3 * [4.0 * tokens]), ([], []))
    sent: Passes = (
        (split * [2 * hidden] + [hidden], []),
        (split * [2 * hidden, hidden], (not split) * [2 * hidden]),
    )
    head = [
        rings(*(once + depths * (once + look_up + project) for once, look_up, project in zip(*each, strict=True)))
        for each in zip(made, met, sent, strict=True)
    ]
    embedding = [rings(*messages) for messages in met]
    return EndTraffic(tuple(zip(*embedding, strict=True)), tuple(zip(*head, strict=True)))


def hosts_of_a_domain(cluster: ClusterSpec, num_hosts: int) -> IntArray:
    """
    Return the largest possible number of a ring's hosts in the NVLink domain where it has fewest.

    For each pair of hosts in different domains that the ring visits, shape ``(num_nodes, num_nodes)``.
    """
    size = np.bincount(cluster.domain_of_node)[cluster.domain_of_node]
    fewest: IntArray = np.minimum(np.minimum(size[:, None], size), max(num_hosts // 2, 1))
    return fewest


def stacked(traffic: Sequence[RingTraffic]) -> RingArrays:
    """Return the traffic of several groups as arrays."""
    return RingArrays(*(np.array(values, dtype=np.float64) for values in zip(*traffic, strict=True)))


def inside_s(
    cluster: ClusterSpec,
    traffic: RingArrays,
    inside_bytes_per_s: FloatArray | float,
    stack: StackSpec,
    latency_s: float | None = None,
) -> FloatArray:
    """
    Return the time of rings inside their hosts, seconds, shape of ``traffic``.

    Parameters
    ----------
    inside_bytes_per_s
        Bandwidth of the slowest hop of each ring, bytes per second.
    latency_s
        Latency of a message over that hop, seconds, if it differs from the latency inside a host.
    """
    rate = inside_bytes_per_s * stack.intra_node
    moved = traffic.hop_bytes * _with_own_part(traffic)
    time: FloatArray = _start_s(traffic, _inside_step_s(cluster, latency_s), stack) + moved / rate
    return time


def _with_own_part(traffic: RingArrays) -> FloatArray:
    """Return bytes moved through the fabric over bytes sent; a ring of ``n`` ranks has ``n - 1`` steps in each call."""
    whole: FloatArray = 1.0 + OWN_PART * traffic.num_calls / np.where(traffic.num_steps > 0, traffic.num_steps, 1.0)
    return whole


def domain_s(
    cluster: ClusterSpec,
    traffic: RingArrays,
    hop_bytes_per_s: FloatArray,
    inside_bytes_per_s: FloatArray | float,
    group_flows: IntArray,
    stack: StackSpec,
) -> FloatArray:
    """
    Return the time of rings over hosts of one NVLink domain, seconds; they behave like rings inside a host.

    Parameters
    ----------
    hop_bytes_per_s
        Aggregate bandwidth of the group's flows over the slowest hop between hosts; other arguments as in
        :func:`across_s`.
    """
    rate = np.where(group_flows > 1, np.minimum(hop_bytes_per_s, inside_bytes_per_s), hop_bytes_per_s)
    return inside_s(cluster, traffic, rate, stack, cluster.levels[0].latency_s)


def across_s(
    cluster: ClusterSpec,
    traffic: RingArrays,
    flow_bytes_per_s: FloatArray,
    inside_bytes_per_s: FloatArray | float,
    group_flows: IntArray,
    num_hosts: IntArray,
    stack: StackSpec,
    latency_s: FloatArray | float | None = None,
) -> FloatArray:
    """
    Return the time of rings over several hosts, seconds; all arguments broadcast.

    The slowest hop sets the rate, whatever the number of hosts. One step in ``group_flows`` goes to another host, the
    other steps stay inside (NCCL counts latencies so, ``ncclTopoTuneModel`` in ``src/graph/tuning.cc``).

    Parameters
    ----------
    flow_bytes_per_s
        Bandwidth of one flow over the slowest hop; NaN if unmeasured.
    inside_bytes_per_s
        Bandwidth of the slowest hop inside a host, if the group has several members there.
    group_flows
        Number of flows that the group opens between two hosts.
    num_hosts
        Number of hosts of the ring; unused, as the time does not depend on it.
    latency_s
        Latency of a message over the hop, seconds; by default the latency between hosts.
    """
    latency_s = cluster.inter_node_latency_s if latency_s is None else latency_s
    several = group_flows > 1  # then the ring also has hops inside the hosts
    share = flow_bytes_per_s * group_flows * stack.inter_node
    fabric = inside_bytes_per_s * stack.intra_node / _with_own_part(traffic)
    share = np.where(several, np.minimum(share, fabric), share)
    step = (latency_s + (group_flows - 1) * _inside_step_s(cluster)) / group_flows
    start = _start_s(traffic, step, stack)
    time: FloatArray = start + traffic.hop_bytes / share
    return time


def hierarchical_s(
    cluster: ClusterSpec,
    traffic: RingArrays,
    flow_bytes_per_s: FloatArray,
    inside_bytes_per_s: FloatArray | float,
    group_flows: IntArray,
    num_hosts: IntArray,
    stack: StackSpec,
    latency_s: FloatArray | float | None = None,
) -> FloatArray:
    """
    Return the time of hierarchical collectives, seconds; arguments as in :func:`across_s`.

    The phases inside the hosts and between them follow one another. In each pass over the whole message, ``(q - 1) /
    q`` of it goes over the fabric and ``(h - 1) / h / q`` over each flow, for ``q`` flows and ``h`` hosts.
    """
    ranks = group_flows * num_hosts
    whole, passes = traffic.hop_bytes * ranks / (ranks - 1), traffic.num_steps / (ranks - 1)
    inside = whole * (group_flows - 1) / group_flows / (inside_bytes_per_s * stack.intra_node)
    rate = flow_bytes_per_s * stack.inter_node
    latency_s = cluster.inter_node_latency_s if latency_s is None else latency_s
    across = whole * (num_hosts - 1) / num_hosts / group_flows / rate
    latency = (group_flows - 1) * _inside_step_s(cluster) + (num_hosts - 1) * latency_s
    calls = traffic.num_calls * np.where(group_flows > 1, 3, 1)
    time: FloatArray = calls * stack.collective_s + passes * latency + inside + across
    return time


def tree_s(
    cluster: ClusterSpec,
    traffic: RingArrays,
    host_s_per_byte: FloatArray,
    inside_bytes_per_s: FloatArray | float,
    group_flows: IntArray,
    num_hosts: IntArray,
    stack: StackSpec,
    latency_s: FloatArray | float | None = None,
) -> FloatArray:
    """
    Return the time of an all-reduce over a double binary tree of several hosts, seconds; all arguments broadcast.

    Other arguments as in :func:`across_s`.

    Parameters
    ----------
    host_s_per_byte
        Longest time of a host to send, or receive, its part of a byte over one flow of each pair, seconds.
    """
    ranks = group_flows * num_hosts
    message = traffic.hop_bytes * ranks / (2 * (ranks - 1))
    latency_s = cluster.inter_node_latency_s if latency_s is None else latency_s
    across = message * host_s_per_byte / group_flows / stack.inter_node
    inside = 2.0 * message / (inside_bytes_per_s * stack.intra_node) * (group_flows > 1)
    latency = (group_flows - 1) * _inside_step_s(cluster) + np.log2(num_hosts) * latency_s
    start = traffic.num_calls * stack.collective_s + 2 * latency
    time: FloatArray = start + np.maximum(across, inside)
    return time


@lru_cache(maxsize=256)
def tree_edges(num_hosts: int) -> IntArray:
    """
    Return the edges of the two binary trees, as pairs of host positions, shape ``(2 * (num_hosts - 1), 2)``.

    In the first tree, a host whose position has ``k`` trailing zero bits is the parent of positions within ``2^(k -
    1)``. So odd positions are leaves. The second tree is its mirror image, or, with an odd number of hosts, shifted by
    one.
    """

    def parent(place: int) -> int:
        """Return the position of the parent; the root has position 0."""
        bit = 1
        while not place & bit:
            bit <<= 1
        above = (place ^ bit) | (bit << 1)
        return above if above < num_hosts else place ^ bit

    first = np.array([(place, parent(place)) for place in range(1, num_hosts)], dtype=np.int64).reshape(-1, 2)
    second = num_hosts - 1 - first if num_hosts % 2 == 0 else (first + 1) % num_hosts
    edges: IntArray = np.concatenate([first, second])
    return edges


def _inside_step_s(cluster: ClusterSpec, latency_s: float | None = None) -> float:
    return INSIDE_STEP * (cluster.intra_node_latency_s if latency_s is None else latency_s)


def _start_s(traffic: RingArrays, latency_s: FloatArray | float, stack: StackSpec) -> FloatArray:
    start: FloatArray = traffic.num_calls * stack.collective_s + traffic.num_steps * latency_s
    return start
