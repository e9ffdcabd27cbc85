"""
Compute times: matrix products of a layer, its attention, and elementwise operations that stream through memory.

Products and attention follow laws with constants measured on kernels of the GPU (``specs/efficiency.py``). A measured
profile replaces the time of a layer that it contains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.costs.adapters import adapters_s
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.expert_layer import expert_times_s
from pipette_opt.costs.host import bound_by_host, host_step_s, host_time_s
from pipette_opt.costs.layer_kinds import REMEMBERED, counted_layers
from pipette_opt.costs.modules import FUSED_NORM_PASSES, UNFUSED_NORM_PASSES, modules_again_s
from pipette_opt.costs.muon import orthogonal_s
from pipette_opt.costs.products import (
    ProductTimes,
    cast_s,
    frozen_s,
    linear_format,
    plain_format,
    product_s,
    product_times_s,
)
from pipette_opt.costs.replicas import share_of_longest
from pipette_opt.costs.scan import scan_times_s
from pipette_opt.costs.stage import parts_on_rank, stage_parameters
from pipette_opt.costs.unit_copies import copies_s, host_copies_s, layer_copies_s, layer_host_copies_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import (
    ClusterSpec,
    GpuSpec,
    Instance,
    LayerKind,
    ModelSpec,
    ProfileKey,
    StackSpec,
    TrainingSpec,
)
from pipette_opt.specs.activations import host_keeps, micro_batch_tokens, moved_bytes, tokens_of_rank
from pipette_opt.specs.training import in_16_bits

BY_KIND = ("forward_s", "backward_s", "launch_forward_s", "launch_backward_s")
"""Fields of :class:`StageCompute` by GPU type, model chunk and stage."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCompute:
    """
    Compute time of one micro-batch, without communication, recomputation included.

    Parameters
    ----------
    forward_s, backward_s
        Seconds by GPU type, model chunk and stage, shape ``(num_kinds, num_chunks, pp)``.
    optimizer_s
        Seconds of the optimizer step of the slowest stage on each GPU type, shape ``(num_kinds,)``.
    launch_forward_s, launch_backward_s
        Seconds of ``forward_s`` and ``backward_s`` during which the GPU waits for the host's launches, of the same
        shape.
    waits_s
        Seconds in one layer's pass during which each GPU type waits for the host, least of all layers, shape
        ``(num_kinds, 3)``; this time hides tensor communication. Forward, backward, and the backward pass of a layer
        that is recomputed entirely.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    optimizer_s: FloatArray
    launch_forward_s: FloatArray
    launch_backward_s: FloatArray
    waits_s: FloatArray

    def __post_init__(self) -> None:
        for name in (*BY_KIND, "optimizer_s", "waits_s"):
            object.__setattr__(self, name, read_only(getattr(self, name), np.float64))

    def idle_s(self, is_recomputed: bool, kinds: Sequence[int]) -> tuple[float, float]:
        """Return the least seconds during which GPUs of these types wait for the host in a layer, in both passes."""
        forward, *backward = self.waits_s[list(kinds)].min(axis=0).tolist()
        return forward, backward[is_recomputed]

    def most_idle_s(self, is_recomputed: bool) -> tuple[float, float]:
        """Return the most seconds during which a GPU of any type waits for the host in a layer, in both passes."""
        forward, *backward = self.waits_s.max(axis=0).tolist()
        return forward, backward[is_recomputed]


def check_timed(model: ModelSpec, config: ParallelConfig) -> None:
    """Raise ``InputError`` for options whose memory is modelled, but whose time is not."""
    stage = config.sharding_stage
    if stage > 1 and config.num_chunks > 1:
        problem = f"ZeRO stage {stage} cannot be timed with an interleaved pipeline; only stages 0 and 1 can."
        raise InputError("zero_stage", problem)
    if stage > 1 and (config.overlap_grad_reduce or config.overlap_param_gather):
        raise InputError(
            "overlap_grad_reduce",
            f"applies only to ZeRO stage 1; ZeRO stage {stage} always overlaps. Leave the option out.",
        )


def stage_compute(
    instance: Instance,
    config: ParallelConfig,
    rates: StackSpec | None = None,
) -> StageCompute:
    """Return the compute times of every stage on every GPU type; ``rates`` replaces the instance's stack constants."""
    check_timed(instance.model, config)
    rates = rates or instance.stack
    kinds = instance.cluster.gpu_kinds
    shape = (len(kinds), config.num_chunks, config.pipeline_model_parallel_size)
    forward, backward, launches = np.empty(shape), np.empty(shape), np.zeros((2, *shape))
    idle = np.full((len(kinds), 3), np.inf)
    of_layers = counted_layers(instance.model, config)
    for kind, gpu in enumerate(kinds):
        forward[kind] = backward[kind] = 0.0
        for counted in of_layers:
            layer, waits = layer_and_idle_s(instance, counted.config, gpu, rates, counted.kind)
            forward[kind] += counted.layers * layer[0]
            backward[kind] += counted.layers * layer[1]
            launches[:, kind] += counted.layers * np.reshape(waits, (2, 1, 1))
            ways = [0, 1 + counted.is_recomputed]
            idle[kind, ways] = np.minimum(idle[kind, ways], waits)
        look_up, *head = ends_times_s(instance, config, gpu, rates)
        forward[kind, 0, 0] += look_up
        backward[kind, 0, 0] += look_up
        forward[kind, -1, -1] += head[0]
        backward[kind, -1, -1] += head[1]
    slower = straggling(instance, config, rates)
    fixed = rates.micro_batch_s / 2.0 / config.num_chunks
    return StageCompute(
        forward_s=forward * slower + fixed,
        backward_s=backward * slower + fixed,
        optimizer_s=np.array([rates.iteration_s + optimizer_time_s(instance, config, gpu, rates) for gpu in kinds]),
        launch_forward_s=launches[0] * slower,
        launch_backward_s=launches[1] * slower,
        waits_s=idle,
    )


def layer_times_s(
    instance: Instance,
    config: ParallelConfig,
    gpu: GpuSpec,
    rates: StackSpec | None = None,
    *,
    kind: LayerKind | None = None,
) -> tuple[float, float]:
    """
    Return the forward and backward time of one layer and micro-batch, recomputation in the backward, seconds.

    ``kind``: layer type; by default that of the model's first layer.
    """
    return layer_and_idle_s(instance, config, gpu, rates or instance.stack, kind or instance.model.layers[0])[0]


def layer_and_idle_s(
    instance: Instance, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> tuple[tuple[float, float], tuple[float, float]]:
    """
    Return the forward and backward time of one layer and micro-batch, and the GPU's wait for the host in each, seconds.

    Micro-batches are those of the replica that the others wait for (:mod:`~pipette_opt.costs.replicas`). If layers at
    the ends of the model stay in 16 bits, the result is the mean over all layers. So the total is right.
    """
    share = share_of_longest(instance, config)
    if share:
        mean = _layer_of_all_s(instance, config, gpu, rates, kind)
        whole = _layer_of_all_s(of_whole_sequences(instance), config, gpu, rates, kind)
        both = np.array(mean) + share * np.subtract(whole, mean)
        (forward, backward), (idle, idle_backward) = both.tolist()
        return (forward, backward), (idle, idle_backward)
    return _layer_of_all_s(instance, config, gpu, rates, kind)


@lru_cache(maxsize=16)
def of_whole_sequences(instance: Instance) -> Instance:
    """Return the instance without lengths of documents: every sequence is whole."""
    return replace(instance, training=replace(instance.training, documents=None))


def _layer_of_all_s(
    instance: Instance, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return times of :func:`layer_and_idle_s` for micro-batches of the mean length, as the mean over all layers."""
    found, share = _layer_and_idle_s(instance, config, gpu, rates, kind), instance.model.wide_share
    if not share or instance.training.recipe is None:
        return found
    wide = replace(instance, training=in_16_bits(instance.training))
    both = np.array([found, _layer_and_idle_s(wide, config, gpu, rates, kind)])
    (forward, backward), (idle, idle_backward) = ((1 - share) * both[0] + share * both[1]).tolist()
    return (forward, backward), (idle, idle_backward)


def _layer_and_idle_s(
    instance: Instance, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> tuple[tuple[float, float], tuple[float, float]]:
    model, training = instance.model, instance.training
    core = attention_times_s(model, training, config, gpu, rates, kind)
    is_known = kind.has_attention and kind.mlp == "dense"  # to profiles
    measured = _measured_layer(instance, config, gpu) if is_known else None
    if measured is None:
        scan = scan_times_s(model, training, config, gpu, rates, kind)
        outside = _outside_core_times_s(model, training, config, gpu, rates, kind)
        routed = expert_times_s(model, training, config, gpu, rates) if kind.has_experts else (0.0, 0.0)
        measured = (core[0] + scan[0] + outside[0] + routed[0], core[1] + scan[1] + outside[1] + routed[1])
    copies = layer_copies_s(model, training, config, gpu, rates, kind)
    measured = (measured[0] + copies[0], measured[1] + copies[1])
    sent = moved_bytes(model, training, config, kind)
    if config.recompute_granularity == "full":  # of recomputed layers, only the input is kept
        sent = min(sent, training.parameter_bytes * tokens_of_rank(training, config) * model.hidden_size)
    shards = layer_host_copies_s(model, training, config, gpu, rates, kind)
    copied = [sent / gpu.host_bytes_per_s + seconds for seconds in shards]  # they overlap with the pass
    measured = (max(measured[0], copied[0]), max(measured[1], copied[1]))
    host = host_time_s(instance, config, rates, kind)
    forward, backward = (bound_by_host(device, host) for device in measured)
    idle = (forward - measured[0], backward - measured[1])
    if config.recompute_granularity == "full":
        return (forward, backward + forward), (idle[0], sum(idle))
    again = modules_again_s(instance, config, gpu, rates, kind)
    return (forward, backward + (core[0] if config.recomputes("core_attn") else 0.0) + again), idle


def ends_times_s(
    instance: Instance, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float, float]:
    """
    Return the seconds of a look-up of embeddings, and of output head and loss forward and backward.

    Micro-batches are those of :func:`layer_and_idle_s`.
    """
    model, share = instance.model, share_of_longest(instance, config)
    mean, *whole = (
        (look_up_s(model, training, config, gpu, rates), *head_times_s(model, training, config, gpu, rates))
        for training in (instance.training, *([of_whole_sequences(instance).training] if share else []))
    )
    if not whole:
        return mean
    look_up, forward, backward = (few + share * (most - few) for few, most in zip(mean, whole[0], strict=True))
    return look_up, forward, backward


def head_product_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> ProductTimes:
    """Return the times of the output head's product for one micro-batch, seconds."""
    tp = config.tensor_model_parallel_size
    times = product_times_s(
        micro_batch_tokens(training, config),
        model.padded_vocab_size(tp) // tp,
        model.hidden_size,
        form=plain_format(gpu, training, rates),
        gpu=gpu,
        rates=rates,
        gradient_bytes=training.gradient_bytes,
    )
    return frozen_s(times, 0.0, model.adapters, gpu, rates)


def head_times_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """
    Return the forward and backward time of output head and loss for one micro-batch, seconds.

    Each multi-token-prediction layer has a loss of its own, and operations beside its layer.
    """
    tokens = micro_batch_tokens(training, config)
    vocabulary = model.padded_vocab_size(config.tensor_model_parallel_size) // config.tensor_model_parallel_size
    forward, backward = head_product_s(model, training, config, gpu, rates).passes_s
    # The loss works on fp32 logits: a cast, a maximum, an exponential and a sum forward; a scaling backward.
    streaming = tokens * vocabulary * 4.0 * rates.elementwise / (gpu.memory_bytes_per_s * rates.streaming)
    mtp_layers, (before, after) = model.mtp_num_layers, (0.0, 0.0)
    if mtp_layers:
        before, after = _mtp_times_s(model, training, config, gpu, rates)
    sizes = parts_on_rank(model, config).head, parts_on_rank(model, config, trained=True).head
    copies = copies_s(*sizes, training, config, gpu, rates)
    from_host = host_copies_s(*sizes, model, training, config, gpu, rates)
    return (
        max((1 + mtp_layers) * (forward + 4 * streaming) + mtp_layers * before + copies[0], from_host[0]),
        max((1 + mtp_layers) * (backward + 2 * streaming) + mtp_layers * after + copies[1], from_host[1]),
    )


def _mtp_times_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """
    Return the forward and backward time of multi-token prediction, without its layer and its loss, seconds.

    It looks up the next token, normalises the embedding and the hidden state, concatenates both, projects them, and
    normalises the layer's output.
    """
    tokens, tp, h = micro_batch_tokens(training, config), config.tensor_model_parallel_size, model.hidden_size
    share, form = tp if config.sequence_parallel else 1, linear_format(gpu, training, rates)
    times = product_times_s(
        tokens, h // tp, 2 * h, form=form, gpu=gpu, rates=rates, gradient_bytes=training.gradient_bytes
    )
    forward, backward = frozen_s(times, 0.0, model.adapters, gpu, rates).passes_s
    norms = FUSED_NORM_PASSES if training.fused_norm else UNFUSED_NORM_PASSES
    stream = tokens * h / share * training.parameter_bytes / (gpu.memory_bytes_per_s * rates.streaming)
    look_up = look_up_s(model, training, config, gpu, rates)
    return (
        forward + look_up + (4.0 + 3.0 * norms[0]) * stream + cast_s(2.0 * tokens * h / share, form, gpu, rates),
        backward + look_up + (4.0 + 3.0 * norms[1]) * stream + cast_s(tokens * h / tp, form, gpu, rates),
    )


def optimizer_time_s(instance: Instance, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec | None = None) -> float:
    """
    Return the optimizer time of the largest stage, seconds.

    Adam reads gradient, master copy and two moments, and writes all but the gradient. With a low-precision recipe, each
    rank then casts its whole matrices once, for all micro-batches. If only the casted copies are kept and gathered in
    fewer than 16 bits, it casts the parameters that it owns.
    """
    adam, cast = _optimizer_parts_s(instance, config, gpu, rates or instance.stack)
    return float(adam.max() + cast.max())


def optimizer_stages_s(instance: Instance, config: ParallelConfig) -> FloatArray:
    """
    Return the optimizer time of each stage on each GPU type, seconds, shape ``(num_kinds, pp)``.

    It never exceeds the time of all stages together.
    """
    parts = [_optimizer_parts_s(instance, config, gpu, instance.stack) for gpu in instance.cluster.gpu_kinds]
    return np.array([adam + cast for adam, cast in parts])


def forced_kinds(cluster: ClusterSpec, num_hosts: int, seconds: FloatArray) -> IntArray:
    """
    Return GPU types of which every placement on ``num_hosts`` hosts has at least one: without the fastest types.

    ``seconds``: time of each type, by which they are ordered.
    """
    order = np.argsort(seconds, kind="stable")
    hosts = np.bincount(cluster.kind_of_node, minlength=len(order))[order].cumsum()
    return order[int((hosts < num_hosts).sum()) :]


def _optimizer_parts_s(
    instance: Instance, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of the optimizer, and of the cast to fewer bits, for each stage, shape ``(pp,)`` each."""
    training = instance.training
    owned, to_cast = _owned_and_cast(instance.model, config)
    if training.gather_bytes < training.parameter_bytes and config.use_distributed_optimizer:
        to_cast = np.minimum(to_cast, owned)
    moved = training.gradient_bytes + 2 * training.optimizer_bytes + training.parameter_bytes
    form = linear_format(gpu, training, rates)
    offload = host_keeps(training, config)
    adam = (1 - offload.optimizer_offload_fraction) * owned * moved / (gpu.memory_bytes_per_s * rates.streaming)
    adam += owned * host_step_s(training, offload, gpu) + orthogonal_s(instance.model, training, config, gpu, rates)
    return adam, np.array([cast_s(elements, form, gpu, rates) for elements in to_cast.tolist()])


def owned_parameters(model: ModelSpec, config: ParallelConfig) -> FloatArray:
    """Return the number of parameters that a rank's optimizer owns, for each stage, shape ``(pp,)``."""
    return _owned_and_cast(model, config)[0]


@lru_cache(maxsize=REMEMBERED)
def _owned_and_cast(model: ModelSpec, config: ParallelConfig) -> tuple[FloatArray, FloatArray]:
    """
    Return the number of parameters that a rank's optimizer owns, and of those in matrices that it casts.

    For each stage, shape ``(pp,)`` each.
    """
    parameters, experts, matrices = stage_parameters(model, config, trained=True)
    to_cast = matrices + experts * (model.adapters is None)
    if config.use_distributed_optimizer:
        groups = config.num_distributed_optimizer_instances / config.state_groups
        parameters = parameters / (config.sharing_ranks * config.state_groups)
        experts = experts / max(config.expert_data_parallel_size / groups, 1)
    return parameters + experts, to_cast


def _measured_layer(instance: Instance, config: ParallelConfig, gpu: GpuSpec) -> tuple[float, float] | None:
    if instance.profile is None or config.context_parallel_size > 1:
        return None
    measured = instance.profile.layers.get(
        ProfileKey(
            gpu=gpu.kind,
            tensor_model_parallel_size=config.tensor_model_parallel_size,
            micro_batch_size=config.micro_batch_size,
            seq_length=instance.training.seq_length,
        )
    )
    return None if measured is None else (measured[0] / gpu.speed, measured[1] / gpu.speed)


def _outside_core_times_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> tuple[float, float]:
    """
    Return the forward and backward time of a layer without attention, scan and routed experts, seconds.

    It includes projections and elementwise operations: norms, residuals, activation, rotary embedding, dropout. With a
    low-precision recipe, the inputs of all projections and the gradients of their outputs are cast; the recipe states
    which of these fused norms write themselves. The router's product has no recipe.
    """
    tokens, tp = micro_batch_tokens(training, config), config.tensor_model_parallel_size
    own, branches = 1 / (tp if config.sequence_parallel else 1), model.branches(kind)
    form, products = linear_format(gpu, training, rates), [each for branch in branches for each in branch.products]
    seconds = [product_s(product, model.adapters, training, config, gpu, rates).passes_s for product in products]
    seconds += [adapters_s(branch, training, config, gpu, rates) for branch in branches]
    norms = FUSED_NORM_PASSES if training.fused_norm else UNFUSED_NORM_PASSES
    whole = [product for product in products if product.split == "whole"]
    channels = 1.0 * len(branches) * model.hidden_size  # inputs of all branches, as large as their outputs
    inputs = sum(product.inputs for product in products if product.split == "rows") / tp
    inputs += sum(product.inputs for product in whole) * own  # each of these casts the layer's input again
    inputs += 0.0 if training.fused_norm else channels * own
    of_norms = own * training.fused_norm * sum(branch.normed_inputs for branch in branches)
    gradients = sum(product.outputs for product in products if product.split == "columns") / tp
    gradients += (channels + sum(product.outputs for product in whole)) * own
    residuals = 3.0 * channels * own  # each is read with the branch, and written
    normed = own * ((1 + model.more_norms) * channels + sum(branch.normed_inside for branch in branches))
    normed += sum(branch.normed_heads for branch in branches) / tp
    stream = tokens * training.parameter_bytes / (gpu.memory_bytes_per_s * rates.streaming)
    fused = (residuals + sum(branch.streamed for branch in branches) / tp) * rates.elementwise
    overhead = 4 * len(branches) * rates.kernel_s
    return (
        sum(forward for forward, _ in seconds)
        + stream * (fused + norms[0] * normed)
        + cast_s(tokens * inputs, form, gpu, rates, of_norms=tokens * of_norms)
        + overhead,
        sum(backward for _, backward in seconds)
        + stream * (1.5 * fused + norms[1] * normed)
        + cast_s(tokens * gradients, form, gpu, rates)
        + overhead,
    )


def straggling(instance: Instance, config: ParallelConfig, rates: StackSpec) -> float:
    """Return the factor by which compute takes longer on several hosts, as the slowest of more hosts is slower."""
    hosts = max(1.0, config.world_size / instance.cluster.gpus_per_node)
    return 1.0 + rates.straggling * float(np.log2(hosts))


def look_up_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> float:
    """
    Return the seconds of the word-embedding look-up of one micro-batch; the backward pass takes equally long.

    The copies of the embeddings count by half in each pass.
    """
    moved = 4.0 * micro_batch_tokens(training, config) * model.hidden_size * training.parameter_bytes
    sizes = parts_on_rank(model, config).embeddings, parts_on_rank(model, config, trained=True).embeddings
    copies = sum(copies_s(*sizes, training, config, gpu, rates)) / 2.0
    on_gpu = moved / (gpu.memory_bytes_per_s * rates.streaming) + rates.kernel_s + copies
    return max(on_gpu, *host_copies_s(*sizes, model, training, config, gpu, rates))
