"""
Reference layout of a job, at which the job's one factor on simulated times is read from the prior.

The layout depends on model, batch, precision and GPU type (the fastest, of several) alone: not on pins, on a plan, on
links, or on the number of hosts. So every plan of a job has the same factor, on all of its hosts or on some of them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np

from pipette_opt.base.types import FloatArray, read_only
from pipette_opt.candidates import broken_rules
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.parallel import ParallelConfig, identity_placement
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.specs import ClusterSpec, GpuSpec, Instance, LinkMatrix, ModelSpec, NodeSpec, TrainingSpec
from pipette_opt.worlds.terms import describe

BYTES_PER_PARAMETER = 18
"""Bytes of parameters, fp32 gradients and Adam's state for each parameter (Rajbhandari et al., ZeRO, SC'20)."""

ROOM = 0.8
"""Share of a GPU's memory that these may take. Chosen: the rest is left for activations."""

MAX_STAGES = 64
"""Maximum number of stages of a reference layout. Chosen."""

MAX_GPUS = 1024
"""Maximum number of GPUs of a reference layout with several replicas. Chosen: the link matrix stays small."""

MICRO_BATCH_TOKENS = 8192
"""
Tokens of a micro-batch that the reference layout does not exceed with more than one sequence. Chosen between 4,096 (one
sequence of many public runs) and 16,384, by the errors of public runs whose publisher the prior does not know.
"""

ROUNDS = 16
"""Micro-batches of a replica for each of its stages, as near as the batch allows. Chosen: the bubble is then small."""

NIC_BYTES_PER_S = 50e9
"""Bandwidth of the NIC of each GPU where the catalogue has no usual host, bytes/s. Chosen: 400 Gbit/s."""


@lru_cache(maxsize=32)
def reference_terms(instance: Instance) -> FloatArray:
    """Return the terms of the job's reference layout on its stack, shape ``(num_terms,)``."""
    job = _reference_job(instance)
    config = reference_layout(job.model, job.training, job.cluster.nodes[0].gpu, job.cluster.gpus_per_node)
    hosts = -(-config.world_size // job.cluster.gpus_per_node)
    placement = identity_placement(config, job.cluster.gpus_per_node, np.arange(hosts), "tp-cp-ep-dp-pp")
    return read_only(describe(_on_hosts(job, hosts), [(config, placement)])[1][0], np.float64)


def reference_layout(model: ModelSpec, training: TrainingSpec, gpu: GpuSpec, gpus_per_node: int) -> ParallelConfig:
    """
    Return the layout of Megatron-LM's rule of thumb: tensor ranks inside a host, then stages, until the state fits.

    Takeaways 1 to 3 of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM" (SC'21). Experts are first divided over the ranks of a host. If no layout fits, the one that needs the
    least memory; if none is legal, legality does not count.
    """
    layouts = list(_layouts(model, training, gpus_per_node))
    legal = [config for config in layouts if not broken_rules(model, training, config)] or layouts

    def share(config: ParallelConfig) -> float:
        return BYTES_PER_PARAMETER * float(stage_parameters(model, config).total.max()) / gpu.memory_bytes

    return next((config for config in legal if share(config) <= ROOM), min(legal, key=share))


def _layouts(model: ModelSpec, training: TrainingSpec, gpus_per_node: int) -> Iterator[ParallelConfig]:
    """Yield layouts, those that the rule of thumb takes first at first."""

    def order(sizes: tuple[int, int, int]) -> tuple[float, ...]:
        tp, pp, ep = sizes
        return max(1.0, tp * ep / gpus_per_node), tp * pp, -ep, -tp

    degrees = _powers(gpus_per_node), _powers(min(MAX_STAGES, model.num_layers)), _powers(model.num_experts or 1)
    for tp, pp, ep in sorted(product(*degrees), key=order):
        config = _layout(model, training, tp, pp, ep)
        if config.data_parallel_size % ep == 0:
            yield config


def _layout(model: ModelSpec, training: TrainingSpec, tp: int, pp: int, ep: int) -> ParallelConfig:
    """Return the layout with these tensor, pipeline and expert degrees; replicas and micro-batch follow."""
    batch = training.global_batch_size
    micro_batch = max(size for size in _powers(max(1, MICRO_BATCH_TOKENS // training.seq_length)) if batch % size == 0)
    usual = max(1.0, batch / (ROUNDS * pp * micro_batch))
    most = max(ep, MAX_GPUS // (tp * pp))
    replicas = [number for number in _powers(min(most, batch // micro_batch)) if batch // micro_batch % number == 0]
    able = [number for number in replicas if number % ep == 0] or replicas
    dp = min(able, key=lambda number: abs(np.log(number / usual)))
    whole, more = divmod(model.num_layers, pp)
    return ParallelConfig(
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        data_parallel_size=dp,
        micro_batch_size=micro_batch,
        layers_per_stage=tuple(whole + (stage < more) for stage in range(pp)),
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=1 if model.num_experts is not None and tp > 1 else None,
        sequence_parallel=tp > 1,
        use_distributed_optimizer=dp > 1,
        overlap_grad_reduce=dp > 1,
        overlap_param_gather=dp > 1,
    )


def _powers(most: int) -> list[int]:
    """Return the powers of two up to a number."""
    return [2**exponent for exponent in range(most.bit_length())]


def _reference_job(instance: Instance) -> Instance:
    """Return the job on one host of its fastest GPU type, with all training options but batch and precision usual."""
    given, cluster = instance.training, instance.cluster
    training = TrainingSpec(
        global_batch_size=given.global_batch_size,
        seq_length=given.seq_length,
        precision=given.precision,
        fp8=given.fp8,
        fp8_recipe=given.fp8_recipe,
        fp8_copies=given.fp8_copies,
        fp4=given.fp4,
    )
    types = {gpu.kind: gpu.at_speed(1.0) for gpu in cluster.gpu_kinds}
    gpu = max(types.values(), key=lambda gpu: (max(gpu.peak_flops.values()), gpu.name))
    host = ClusterSpec(
        name="reference",
        nodes=(NodeSpec(host="reference", gpu=gpu, num_gpus=cluster.gpus_per_node),),
        intra_node_bytes_per_s=cluster.intra_node_bytes_per_s,
        intra_node_latency_s=cluster.intra_node_latency_s,
        inter_node_latency_s=instance.stack.assumed_latency_s,
        nics_per_node=cluster.gpus_per_node,
        links_measured=False,
    )
    return Instance(
        model=instance.model,
        cluster=host,
        training=training,
        p2p=instance.p2p,
        profile=instance.profile,
        stack=instance.stack,
    )


def _on_hosts(job: Instance, num_hosts: int) -> Instance:
    """Return the job on hosts like its only one, with the usual links of their GPU type between them."""
    host = job.cluster.nodes[0]
    entry = read_gpu_catalogue().get(host.gpu.kind)
    usual = entry.usual_host if entry is not None else None
    nominal = NIC_BYTES_PER_S if usual is None else usual.nics.nominal_bytes_per_s / usual.gpus_per_node
    one_flow = job.stack.assumed_links * nominal
    links = LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((num_hosts, num_hosts), one_flow))
    cluster = replace(
        job.cluster,
        nodes=tuple(replace(host, host=f"reference{number}") for number in range(num_hosts)),
        link_matrices=(links,) if num_hosts > 1 else (),
    )
    return replace(job, cluster=cluster)
