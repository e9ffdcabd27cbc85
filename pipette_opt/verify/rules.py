"""Rules on the plan itself: rank map, settings, configuration, links, memory, times, and the certificate's figures."""

import json
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import gib
from pipette_opt.candidates import check_legal
from pipette_opt.layers.parameters import layer_parameters
from pipette_opt.parallel import RankGrid
from pipette_opt.plans.links_used import coordinates_of, expert_links, links_used
from pipette_opt.plans.plan import IterationTime, Plan
from pipette_opt.specs import Instance, LinkMatrix
from pipette_opt.specs.activations import host_keeps
from pipette_opt.specs.model_gaps import not_modelled_of
from pipette_opt.specs.user_buffers import has_user_buffers, user_buffers_reach
from pipette_opt.verify.common import CLOSED_GAP, REPRODUCED, ROUNDING, close, on_cluster, same


def degrees_fill_the_world(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: the product of tensor, context, data and pipeline degrees is the number of ranks placed."""
    config = plan.config
    degrees = (
        config.tensor_model_parallel_size,
        config.context_parallel_size,
        config.data_parallel_size,
        config.pipeline_model_parallel_size,
    )
    if math.prod(degrees) != len(plan.placement.node):
        product = " * ".join(map(str, degrees))
        yield f"tp * cp * dp * pp = {product} = {math.prod(degrees)}, but {len(plan.placement.node)} ranks are placed"


def hosts_exist(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: every host with a rank is in the cluster; every other host of the plan is listed as unused."""
    outside = [int(node) for node in plan.placement.node if not 0 <= node < len(plan.hosts)]
    if outside:
        yield f"host index {outside[0]} is outside the {len(plan.hosts)} hosts of the plan"
        return
    used = {plan.hosts[node] for node in plan.placement.node}
    for host in sorted(used - set(instance.cluster.hosts)):
        yield f"host {host} has ranks, but is not in cluster {instance.cluster.name}"
    for host in sorted(used & set(plan.unused_hosts)):
        yield f"host {host} has ranks, but is listed as unused"
    for host in sorted(set(plan.hosts) - used - set(plan.unused_hosts)):
        yield f"host {host} has no rank, but is not listed as unused"
    for host in sorted(set(plan.unused_hosts) - set(plan.hosts)):
        yield f"unused host {host} is not among the hosts of the plan"


def one_rank_per_gpu(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: every rank has a GPU that its host has, and no GPU hosts two ranks."""
    if plan.gpus_per_node != instance.cluster.gpus_per_node:
        yield f"gpus_per_node is {plan.gpus_per_node}, but the cluster's hosts have {instance.cluster.gpus_per_node}"
    owner: dict[tuple[int, int], int] = {}
    for rank, (node, local_rank) in enumerate(zip(plan.placement.node, plan.placement.local_rank, strict=True)):
        gpu = (int(node), int(local_rank))
        if not 0 <= local_rank < instance.cluster.gpus_per_node:
            yield f"rank {rank} has local rank {local_rank} of {instance.cluster.gpus_per_node} GPUs"
        if gpu in owner:
            host = plan.hosts[gpu[0]] if 0 <= gpu[0] < len(plan.hosts) else f"number {gpu[0]}"
            yield f"ranks {owner[gpu]} and {rank} share GPU {gpu[1]} of host {host}"
        owner.setdefault(gpu, rank)


def coordinates_in_rank_order(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: coordinates of each rank follow Megatron-Core's rank order, computed here by division with remainder."""
    grid = RankGrid.of(plan.config, plan.placement.order).coordinates()
    for rank, expected in enumerate(coordinates_of(plan)):
        if tuple(grid[rank]) != expected:
            yield f"rank {rank} has (pp, dp, cp, tp) = {tuple(map(int, grid[rank]))}, but must have {expected}"


def torchrun_ranks_contiguous(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    Rule: with torchrun, each host has equally many consecutive ranks, on GPUs in rank order.

    If links of single GPUs are known, GPUs may be in any order, which ``CUDA_VISIBLE_DEVICES`` sets.
    """
    if plan.launcher in ("slurm", "mpi"):
        return
    nodes = [int(node) for node in plan.placement.node]
    per_host = Counter(nodes)
    if len(set(per_host.values())) > 1:
        yield f"hosts have between {min(per_host.values())} and {max(per_host.values())} ranks"
        return
    size, any_order = per_host[nodes[0]], instance.cluster.gpu_links is not None
    for rank, (node, local_rank) in enumerate(zip(nodes, plan.placement.local_rank, strict=True)):
        if node != nodes[rank - rank % size] or not (any_order or local_rank == rank % size):
            yield f"rank {rank} is on {plan.hosts[node]}:{local_rank}, where torchrun cannot start it"
            return


def settings_are_the_given(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: batch, launcher, pipeline sends, gradient reduction, model and training are those of the instance."""
    pairs = (
        ("global_batch_size", plan.global_batch_size, instance.training.global_batch_size),
        ("launcher", plan.launcher, instance.launcher),
        ("nccl_algorithm", plan.nccl_algorithm, instance.allreduce),
        ("p2p", plan.p2p, instance.p2p),
    )
    for name, found, given in pairs:
        if found != given:
            yield f"{name} is {found}, but the job has {given}"
    for name, spec in (("model", instance.model), ("training", instance.training)):
        recorded = plan.inputs.get(name)
        if isinstance(recorded, Mapping):
            yield from _differences(name, recorded, asdict(spec))


def gaps_are_named(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: ``not_modelled`` of the plan lists every feature of the model that the estimates do not count."""
    for gap in not_modelled_of(instance.model, instance.training):
        if gap not in plan.not_modelled:
            yield f"not_modelled lacks {gap.option} {gap.value}".rstrip()


def configuration_is_legal(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: Megatron-Core accepts the configuration; main checks are repeated here, independent of ``candidates``."""
    model, training, config = instance.model, instance.training, plan.config
    yield from check_legal(model, training, config)
    tp, cp, chunks = config.tensor_model_parallel_size, config.context_parallel_size, config.num_chunks
    # Unequal replicas share out whole micro-batches, or whole groups of micro-batches with interleaving.
    named = ("dp", config.data_parallel_size)
    if training.unequal_microbatches:
        named = ("group of micro-batches", config.microbatch_group_size)
    if training.global_batch_size % (divisor := named[1] * config.micro_batch_size):
        yield f"global_batch_size {training.global_batch_size} is not divided by {named[0]} * micro-batch = {divisor}"
    has_mlp = any(kind.mlp == "dense" for kind in model.layers)
    for name, size in (("heads", model.num_attention_heads), ("MLP width", model.ffn_hidden_size if has_mlp else 0)):
        if size % tp:
            yield f"{size} {name} are not divided by tp = {tp}"
    if model.num_experts is not None:
        ep, etp, ranks = (
            config.expert_model_parallel_size,
            config.expert_tensor_size,
            tp * cp * config.data_parallel_size,
        )
        if model.num_experts % ep or ranks % (ep * etp):
            yield f"{model.num_experts} experts on {ranks} ranks of a stage are not divided by ep = {ep}, etp = {etp}"
    if has_user_buffers(training, config) and not user_buffers_reach(instance.cluster, tp):
        yield f"user buffers of {tp} tensor ranks leave the NVLink domain of {instance.cluster.scale_up_gpus} GPUs"
    if max(model.num_query_groups, tp) % min(model.num_query_groups, tp):
        yield f"{model.num_query_groups} query groups and tp = {tp} do not divide one another"
    if model.padded_vocab_size(tp) % tp or model.padded_vocab_size(tp) < model.vocab_size:
        yield f"the padded vocabulary {model.padded_vocab_size(tp)} is not divided by tp = {tp} or too small"
    if training.seq_length % (cp * (tp if config.sequence_parallel else 1)):
        yield f"seq_length {training.seq_length} is not divided over cp = {cp} and tp = {tp}"
    if sum(config.layers_per_stage) != model.num_layers:
        yield f"layers_per_stage add up to {sum(config.layers_per_stage)}, but the model has {model.num_layers}"
    if config.pipeline_model_parallel_layout is not None:
        held = np.array(config.layers_per_chunk)
        if held.shape[0] != chunks or tuple(held.sum(axis=0).tolist()) != config.layers_per_stage:
            yield f"pipeline_model_parallel_layout {config.pipeline_model_parallel_layout} has other stages"
    elif not _whole_in_chunks(config.layers_per_stage, chunks):
        yield f"layers_per_stage {config.layers_per_stage} are not whole in {chunks} chunks"


def links_were_measured(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: every pair of hosts that a pipeline or ring uses has a measured link in the direction used."""
    usable = instance.cluster.usable_links
    index = {host: number for number, host in enumerate(instance.cluster.hosts)}
    for (source, target), user in sorted((links_used(plan) | expert_links(instance, plan)).items()):
        if not usable[index[source], index[target]]:
            yield f"{source} -> {target} was not measured, {user} uses it"


def memory_fits(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    Rule: each stage's upper memory bound fits its GPUs and covers its weights, gradients and optimizer state.

    The OOM risk is at most the accepted risk. An accepted risk of 1 ignores memory: the bound may be above the
    capacity.
    """
    stages = [stage.stage for stage in plan.memory]
    if stages != list(range(plan.config.pipeline_model_parallel_size)):
        yield f"memory is given for stages {stages} of {plan.config.pipeline_model_parallel_size}"
        return
    accepted = plan.inputs.get("max_oom_risk")
    for stage in plan.memory:
        floor, most = _state_bytes(instance, plan, stage.stage), max(stage.predicted_bytes, stage.upper_bytes)
        if stage.upper_bytes > stage.capacity_bytes and accepted != 1:
            yield (
                f"stage {stage.stage} needs up to {gib(stage.upper_bytes):.1f} GiB of {gib(stage.capacity_bytes):.1f}"
            )
        if most < floor:
            yield (
                f"stage {stage.stage} is recorded as needing at most {gib(most):.1f} GiB, its layers' weights, "
                f"gradients and optimizer state alone take {gib(floor):.1f}"
            )
        if isinstance(accepted, float) and not stage.oom_probability <= accepted * (1 + ROUNDING):
            yield (
                f"stage {stage.stage} has oom_probability {stage.oom_probability}, but the accepted risk is {accepted}"
            )


def certificate_is_consistent(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: lower bounds are at most their times, gaps follow from both, and only a closed gap is optimal."""
    proof = plan.certificate
    if proof.status not in ("OPTIMAL", "FEASIBLE"):
        yield f"status is {proof.status!r}"
    if not 0 <= proof.lower_bound_s <= proof.best_s * (1 + ROUNDING):
        yield f"lower_bound_s {proof.lower_bound_s} is not between 0 and the fastest plan's {proof.best_s}"
    for name, seconds, whole in (
        ("gap", proof.best_s, proof.best_s),
        ("placement_gap", proof.objective_s, proof.placement_dependent_s),
    ):
        expected = (seconds - proof.lower_bound_s) / whole if whole > 0 else 0.0
        if not close(getattr(proof, name), expected, ROUNDING):
            yield f"{name} is {getattr(proof, name)}, but the times give {expected}"
    if (proof.status == "OPTIMAL") != (proof.gap <= CLOSED_GAP):
        yield f"status is {proof.status} with a gap of {proof.gap:.3g}"
    if not 0 <= proof.placement_dependent_s <= proof.objective_s * (1 + ROUNDING):
        yield f"placement_dependent_s {proof.placement_dependent_s} is not between 0 and objective_s"
    for name in ("wall_time_s", "num_candidates", "num_pruned"):
        if getattr(proof, name) < 0:
            yield f"{name} is {getattr(proof, name)}"
    if proof.num_pruned > proof.num_candidates:
        yield f"num_pruned is {proof.num_pruned} of {proof.num_candidates} candidates"


def estimate_adds_up(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: breakdown and critical path each add up to the iteration time, from which tokens per second follow."""
    time = plan.estimate
    if not time.iteration_time_s > 0:
        yield f"iteration_time_s is {time.iteration_time_s}"
        return
    for part, causes in (("breakdown", time.breakdown), ("critical path", time.critical_path)):
        total = math.fsum(causes.values())
        if not close(total, time.iteration_time_s, ROUNDING):
            yield f"the {part} adds up to {total}, but iteration_time_s is {time.iteration_time_s}"
        for name, seconds in causes.items():
            if seconds < -ROUNDING * time.iteration_time_s:
                yield f"{name} of the {part} is {seconds} s"
    documents, length = instance.training.documents, float(instance.training.seq_length)
    if documents is not None and not instance.training.packed:
        length = sum(map(operator.mul, documents.lengths, documents.counts)) / sum(documents.counts)
    tokens_per_s = instance.training.global_batch_size * length / time.iteration_time_s
    for name, expected in (
        ("tokens_per_s", tokens_per_s),
        ("tokens_per_s_per_gpu", tokens_per_s / len(plan.placement.node)),
    ):
        if not close(getattr(time, name), expected, ROUNDING):
            yield f"{name} is {getattr(time, name)}, but the time gives {expected}"
    if not 0 <= time.mfu <= 1:
        yield f"mfu is {time.mfu}"


def estimate_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: the simulator reproduces every figure of the estimate: times, seconds by cause, rates and utilisation."""
    from pipette_opt.simulate.estimate import estimate

    try:
        again = estimate(instance, plan.config, on_cluster(instance, plan))
    except (InputError, ValueError) as error:
        yield f"the plan cannot be simulated: {error}"
        return
    for field in fields(IterationTime):
        recorded, right = getattr(plan.estimate, field.name), getattr(again, field.name)
        if isinstance(right, Mapping):
            adds_up = close(math.fsum(recorded.values()), plan.estimate.iteration_time_s, ROUNDING)
            yield from _other_causes(field.name, recorded, right) if adds_up else ()  # else estimate_adds_up says so
        elif field.name not in (*RATES, "band") and not same(recorded, right):
            yield f"{field.name} is {recorded}, but the simulator gives {right}"


RATES = ("tokens_per_s", "tokens_per_s_per_gpu")
"""Fields of the estimate that :func:`estimate_adds_up` derives from the iteration time."""


def _other_causes(part: str, recorded: Mapping[str, float], right: Mapping[str, float]) -> Iterator[str]:
    """Yield a text for each cause whose seconds differ from the simulator's."""
    slack = REPRODUCED * math.fsum(right.values())
    for name in sorted({*recorded, *right}):
        if name not in right:
            yield f"{part} has {name}, but the simulator knows no such cause"
        elif abs(recorded.get(name, 0.0) - right[name]) > slack:
            yield f"{name} of the {part} is {recorded.get(name, 0.0)} s, but the simulator gives {right[name]}"


def objective_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: ``objective_s`` is the plan's iteration time, and its placement-dependent part is reproduced."""
    from pipette_opt.simulate.estimate import estimate

    found, expected = plan.certificate.objective_s, plan.estimate.iteration_time_s
    if not close(found, expected, ROUNDING):
        yield f"objective_s is {found}, but iteration_time_s is {expected}"
    placement = on_cluster(instance, plan)
    try:
        placed, free = (
            estimate(job, plan.config, placement).iteration_time_s for job in (instance, _links_free(instance))
        )
    except (InputError, ValueError):
        return  # estimate_is_reproduced says why
    recorded, dependent = plan.certificate.placement_dependent_s, max(placed - free, 0.0)
    if abs(recorded - dependent) > REPRODUCED * expected:
        yield f"placement_dependent_s is {recorded}, but links between hosts that take no time save {dependent}"


def _links_free(instance: Instance) -> Instance:
    """Return the instance with links between hosts that take no time."""
    cluster = instance.cluster
    links = LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((cluster.num_nodes, cluster.num_nodes), 1e30))
    free = replace(
        cluster,
        link_matrices=(links,),
        inter_node_latency_s=0.0,
        known_latency_s=None,
        node_bytes_per_s=None,
        gpu_links=cluster.gpu_links and cluster.gpu_links.inside_only(),
        levels=(),
    )
    return replace(instance, cluster=free)


def _state_bytes(instance: Instance, plan: Plan, stage: int) -> float:
    """
    Return a lower bound on the bytes of weights, gradients and optimizer state on one GPU of a stage.

    Only matrices that tensor ranks split are counted, for the consecutive layers with the fewest bytes, as many as the
    stage has. With adapters, only the frozen weights count.
    """
    config, training, model = plan.config, instance.training, instance.model
    tp, stage_of_zero = config.tensor_model_parallel_size, config.sharding_stage
    recipe, adapters = training.recipe, model.adapters
    only_copies = recipe is not None and training.fp8_param_gather
    held = training.gradient_bytes + min(instance.stack.memory.parameter_bytes, 0.0)
    offload = host_keeps(training, config)
    if offload.parameters:
        return 0.0
    on_gpu = 1.0 - offload.optimizer_offload_fraction
    weight = recipe.copies * recipe.element_bytes if recipe is not None and only_copies else training.parameter_bytes

    def state_bytes(owners: float) -> float:
        """Return the bytes per parameter that ``owners`` ranks share; optimizer state also over groups of replicas."""
        if adapters is not None:
            return min(adapters.base_bytes, weight) / (owners if stage_of_zero >= 3 else 1)
        state = on_gpu * (training.optimizer_bytes - 4 * (training.optimizer == "muon")) / config.state_groups
        kept = ((state, 1), (max(held, training.parameter_bytes), 2), (weight, 3))
        return sum(size / (owners if stage_of_zero >= first else 1) for size, first in kept)

    layers, replicas = config.layers_per_stage[stage], config.sharing_ranks
    block = config.expert_tensor_size * config.expert_model_parallel_size
    own, experts = state_bytes(replicas) / tp, state_bytes(replicas * tp / block) / block
    of_kind = {
        kind: layer_parameters(model, kind).sharded * own + layer_parameters(model, kind).experts * experts
        for kind in set(model.layers)
    }
    if config.num_chunks > 1:  # the chunks of a stage need not be consecutive
        return sum(sorted(of_kind[kind] for kind in model.layers)[:layers])
    sums = np.concatenate([[0.0], np.cumsum([of_kind[kind] for kind in model.layers])])
    return float(np.min(sums[layers:] - sums[: len(sums) - layers]))


def _whole_in_chunks(layers: Sequence[int], chunks: int) -> bool:
    """
    Return whether layers per stage divide into chunks.

    Either every stage has equal chunks, or all stages do once embedding, output head or both count as layers.
    """
    if not any(count % chunks for count in layers):
        return True
    counted = [[layers[0] + first, *layers[1:-1], layers[-1] + last] for first, last in ((1, 0), (0, 1), (1, 1))]
    return any(len(set(stages)) == 1 and stages[0] % chunks == 0 for stages in counted)


def _differences(name: str, recorded: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each field that differs, compared as JSON, because a file has lists where a spec has tuples."""
    for field, value in given.items():
        if field in recorded and json.dumps(recorded[field], sort_keys=True) != json.dumps(value, sort_keys=True):
            yield f"inputs.{name}.{field} is {recorded[field]!r}, but the job has {value!r}"
