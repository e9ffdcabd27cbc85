"""Host time to launch the kernels of a layer, and the launches that CUDA graphs do not capture."""

from collections.abc import Mapping

from pipette_opt.base.offload import Offload
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.expert_layer import ROUTED_KERNELS, ROUTER_KERNELS, expert_kernels
from pipette_opt.costs.experts import expert_traffic
from pipette_opt.costs.ring_steps import HOST_KERNELS, ring_steps
from pipette_opt.layers.adapters import KERNELS_OF_ADAPTER, adapted
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, Instance, LayerKind, ModelSpec, StackSpec, TrainingSpec

HOST_BOUND_SHARPNESS = 8.0
"""
Exponent of the smooth maximum of a layer's GPU time and host time. Chosen.

The larger time counts, plus a part of the smaller if they are close. Several kernels of a layer wait for the host, and
others hide it.
"""


def host_time_s(instance: Instance, config: ParallelConfig, rates: StackSpec, kind: LayerKind) -> float:
    """
    Return the host time to launch one pass of a layer, seconds.

    The backward pass launches about twice the forward's kernels from compiled code, in about equal time. Experts add
    the router's kernels, the sorting of tokens, their exchange and the experts' own. A step of ring attention adds its
    kernels and a message.
    """
    model, training, tp = instance.model, instance.training, config.tensor_model_parallel_size
    kernels = _kernels(model, training, config, kind)
    collectives = _collectives(model, training, config, kind)
    launched = _launched(kernels, model, training, kind), _launched(collectives, model, training, kind)
    crosses = pipeline_crosses_hosts(instance, config)
    hosts = ceil_div(tp, instance.cluster.gpus_per_node)
    threads = tp + (rates.proxy_threads * hosts if hosts > 1 else 0.0)
    wait = rates.pipelined_wait_s * threads if crosses else 0.0
    launch = rates.host_collective_s + rates.group_wait_s * tp**2 + wait
    rings = ring_steps(training, config) if _launched({"attn": 1}, model, training, kind) else 0
    return launched[0] * rates.host_kernel_s + launched[1] * launch + rings * rates.host_collective_s


def pipeline_crosses_hosts(instance: Instance, config: ParallelConfig) -> bool:
    """Return whether the configuration has several stages and several hosts."""
    return config.pipeline_model_parallel_size > 1 and config.world_size > instance.cluster.gpus_per_node


def _kernels(model: ModelSpec, training: TrainingSpec, config: ParallelConfig, kind: LayerKind) -> dict[str, int]:
    """Return the kernel launches of a pass by part of the layer, named as CUDA graph modules; the rest is ``moe``."""
    norms = (0 if training.fused_norm else 6) + model.more_norms * (1 if training.fused_norm else 7)
    found = {"attn": 0, "mlp": 0}
    for branch in model.branches(kind):
        rings = HOST_KERNELS * ring_steps(training, config) if branch.core == "attention" else 0
        of_heads = 2 * (branch.normed_heads > 0) * (1 if training.fused_norm else 7)  # of queries and of keys
        adapters = KERNELS_OF_ADAPTER * len(adapted(branch))
        found["attn" if branch.core else "mlp"] = branch.kernels(training) + norms + of_heads + rings + adapters
    experts = expert_kernels(model, config) if kind.has_experts else 0
    router = (ROUTER_KERNELS, ROUTED_KERNELS) if experts else (0, 0)
    return found | {
        "moe_router": router[0],
        "moe_preprocess": router[1],
        "moe": experts - sum(router),
    }


def _collectives(model: ModelSpec, training: TrainingSpec, config: ParallelConfig, kind: LayerKind) -> dict[str, int]:
    """
    Return the collectives of one pass by part of the layer.

    A branch that tensor ranks split has an all-reduce, or gathers and a reduce-scatter. Routed experts have the
    exchanges of their dispatcher.
    """
    found = {"attn": 0, "mlp": 0, "moe": 0}
    for branch in model.branches(kind) if config.tensor_model_parallel_size > 1 else ():
        if branch.products:
            found["attn" if branch.core else "mlp"] = 1 + config.sequence_parallel * branch.gathers[1]
    if kind.has_experts:
        traffic = expert_traffic(model, training, config)
        found["moe"] = traffic.num_exchanges + traffic.num_rings
    return found


def _launched(parts: Mapping[str, int], model: ModelSpec, training: TrainingSpec, kind: LayerKind) -> int:
    """
    Return the number of launches outside CUDA graphs.

    A graph of ``moe`` has the whole branch of the experts. Token mixers without attention are ``mamba``. Shared experts
    are with the router.
    """
    if not training.cuda_graph:
        return sum(parts.values())
    modules = training.cuda_graph_modules
    if not modules:
        return 0
    names = {"attn" if branch.core else "mlp": branch.graph_module for branch in model.branches(kind)}
    captured = {part for part in parts if names.get(part, part) in modules}
    if "moe" in modules:
        captured |= {"mlp", "moe_router", "moe_preprocess", "moe"} if kind.has_experts else set()
    return sum(count for part, count in parts.items() if part not in captured)


HOST_MEMORY_BYTES_PER_S = 50e9
"""
Memory bandwidth of Adam on the host for one GPU, bytes per second. Assumed; jobs that offload were not measured.

Half of 16 channels of DDR5-4800 (614 GB/s, two sockets of Intel's Sapphire Rapids) shared by eight GPUs is 38 GB/s;
half of Grace's 512 GB/s shared by two is 128 GB/s.
"""


def host_step_s(training: TrainingSpec, offload: Offload, gpu: GpuSpec) -> float:
    """
    Return the seconds per owned parameter of an optimizer on the host: gradients there, Adam in fp32, parameters back.

    ``HybridDeviceOptimizer`` in megatron-core overlaps transfers with the step only on request; then the longer counts.
    Parameters that are kept on the host travel with each micro-batch instead (:mod:`~pipette_opt.costs.unit_copies`).
    """
    travelling = 0 if offload.parameters else training.gradient_bytes + training.parameter_bytes
    share, travels = offload.optimizer_offload_fraction, travelling / gpu.host_bytes_per_s
    adam = (4 + 2 * 12 + training.parameter_bytes) / HOST_MEMORY_BYTES_PER_S
    return share * (max(travels, adam) if training.overlap_cpu_optimizer_d2h_h2d else travels + adam)


def bound_by_host(device_s: float, host_s: float) -> float:
    """Return the time of a layer's pass, seconds, from its GPU time ``device_s`` and its launch time ``host_s``."""
    if host_s <= 0.0:
        return device_s
    larger, smaller = max(device_s, host_s), min(device_s, host_s)
    return float(larger * (1.0 + (smaller / larger) ** HOST_BOUND_SHARPNESS) ** (1.0 / HOST_BOUND_SHARPNESS))
