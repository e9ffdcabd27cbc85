"""Conversion of measured runs (rows of ``runs.csv``) to planning instances, configurations and placements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB
from pipette_opt.candidates.expert_rules import expert_ranks, expert_widths, experts
from pipette_opt.costs.compute import check_timed
from pipette_opt.job.launch import legal_config
from pipette_opt.job.read import check_precision
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement, microbatches_of
from pipette_opt.parallel.schedule import check_interleaving
from pipette_opt.read.gpus import CatalogueEntry
from pipette_opt.read.levels import usual_levels
from pipette_opt.read.run_cells import truth_of
from pipette_opt.read.run_software import named_software
from pipette_opt.read.runs import BANDWIDTH_COLUMN, TUNED_COLUMN, MeasuredRun
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix, NodeSpec, StackSpec, TrainingSpec
from pipette_opt.specs.precision import fp8_copies
from pipette_opt.specs.stack import Family

NORM_KERNEL = "rms kernel"
"""Text in the column ``attention_kernel`` of runs with a fused norm kernel, in lower case."""

ONE_HOST_BYTES_PER_S = 1e9
"""Bandwidth of the unused links of a run on one host, bytes/s; any value works."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """Measured run together with its planning instance, configuration and placement."""

    run: MeasuredRun
    instance: Instance
    config: ParallelConfig
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Measured run that cannot be predicted, and the reason."""

    run: MeasuredRun
    reason: str


def make_cases(
    runs: Sequence[MeasuredRun], stack: StackSpec, cluster: ClusterSpec | None = None
) -> list[Case | Skipped]:
    """
    Return a case for each run, in order; :class:`Skipped` for runs that cannot be predicted.

    A run whose software is named counts with the family of that software, others with that of the stack. If any row of
    a source names a norm kernel (``... + RMS kernel``), rows of that source without it have unfused
    norms.
    """
    named = {run.source for run in runs if NORM_KERNEL in run.attention_kernel.lower()}
    hosts, stacks = AssumedHosts(stack), _of_families(stack)
    return [
        make_case(
            run,
            stacks[named_family(run) or stack.family],
            cluster or hosts,
            fused_norm=run.source not in named or NORM_KERNEL in run.attention_kernel.lower(),
        )
        for run in runs
    ]


def make_case(
    run: MeasuredRun,
    stack: StackSpec,
    cluster: "ClusterSpec | AssumedHosts | None" = None,
    *,
    fused_norm: bool = True,
) -> Case | Skipped:
    """
    Return the case of one run, with ranks in the identity order; :class:`Skipped` if it cannot be predicted.

    Parameters
    ----------
    cluster
        Hosts of the run, in order; ``None`` for equal hosts with the stack's assumed links.
    fused_norm
        Whether norms are fused if the row does not tell.
    """
    model = run.launch.model
    if run.unpredictable or model is None:
        return Skipped(run=run, reason=run.unpredictable)
    hosts = cluster or AssumedHosts(stack)
    try:
        spec = hosts(run) if isinstance(hosts, AssumedHosts) else hosts
        training = run_training(run, fused_norm=fused_norm)
        instance = Instance(model=model, cluster=spec, training=training, stack=stack)
        config = _config(run, instance)
        placement = identity_placement(config, spec.gpus_per_node, np.arange(spec.num_nodes), run.launch.rank_order)
    except InputError as error:
        place = f"{error.where}: " if run.launch.text else ""
        return Skipped(run=run, reason=f"{place}{error.problem}".rstrip("."))
    except ValueError as error:
        return Skipped(run=run, reason=str(error).rstrip("."))
    return Case(run=run, instance=instance, config=config, placement=placement)


def _config(run: MeasuredRun, instance: Instance) -> ParallelConfig:
    """
    Return the configuration of a run.

    Arguments of Megatron-LM have to be legal there. Columns may be of another framework, which has other rules.
    """
    if run.launch.text:
        check_precision(instance.cluster, instance.training)
        return legal_config(instance, run.launch, run.num_gpus)
    config = run.launch.parallel_config(instance.model.num_layers, run.num_gpus)
    config.num_microbatches(instance.training.global_batch_size)
    recipe = instance.training.recipe
    if recipe is not None and run.gpu is not None and recipe.peak not in run.gpu.gpu.peak_flops:
        raise ValueError(f"precision {run.precision!r} is not supported by GPU {run.gpu.gpu.name}")
    for rule in (experts, expert_ranks, expert_widths):
        problem = rule(instance.model, instance.training, config)
        if problem is not None:
            raise ValueError(problem)
    return config


def why_untimed(case: Case) -> str:
    """Return the reason why the simulator cannot time the run, although its memory may be known; empty if it can."""
    config = case.config
    try:
        check_timed(case.instance.model, config)
        num_microbatches = microbatches_of(case.instance.training, config)
        check_interleaving(config.pipeline_model_parallel_size, num_microbatches, config.num_chunks)
    except InputError as error:
        return error.problem.rstrip(".")
    except ValueError as error:
        return str(error).rstrip(".")
    return ""


def with_stack(cases: Sequence[Case], stack: StackSpec, cluster: ClusterSpec | None = None) -> list[Case]:
    """
    Return the cases with the constants of another stack, each in its own family.

    Assumed hosts get the links of that stack, a given ``cluster`` stays.
    """
    hosts, stacks = AssumedHosts(stack), _of_families(stack)
    return [
        replace(
            case,
            instance=replace(
                case.instance, stack=stacks[case.instance.stack.family], cluster=cluster or hosts(case.run)
            ),
        )
        for case in cases
    ]


def named_family(run: MeasuredRun) -> Family | None:
    """Return ``recipes`` for a run that its row calls tuned, else the family of its framework; ``None`` without one."""
    if truth_of(run.cells.get(TUNED_COLUMN, "")):
        return "recipes"
    named = named_software(run.cells)
    return None if named is None else named.family


def _of_families(stack: StackSpec) -> dict[Family, StackSpec]:
    """Return the stack as one of each family."""
    return {family: replace(stack, family=family) for family in get_args(Family)}


def run_training(run: MeasuredRun, *, fused_norm: bool = True) -> TrainingSpec:
    """Return the training options of a measured run; ``fused_norm`` is whether norms are fused if the row is silent."""
    launch, precision = run.launch, run.launch.precision or "bf16"
    training = launch.training(
        TrainingSpec(
            global_batch_size=launch.global_batch_size or 1,
            seq_length=launch.seq_length or 1,
            precision=precision,
            fused_norm=fused_norm,
        )
    )
    if training.fp8 and run.gpu is not None:
        training = replace(training, fp8_copies=fp8_copies([run.gpu.gpu.peak_flops]))
    if launch.model is None or launch.model.num_experts is None:
        return training
    return replace(training, moe_token_dispatcher_type=launch.moe_token_dispatcher_type or "allgather")


class AssumedHosts:
    """
    Factory of clusters for runs without measured links, see :func:`assumed_cluster`; equal hosts share one object.

    Parameters
    ----------
    stack
        Stack that gives the assumed bandwidth and latency.
    """

    def __init__(self, stack: StackSpec) -> None:
        self._stack = stack
        self._known: dict[tuple[object, ...], ClusterSpec] = {}

    def __call__(self, run: MeasuredRun) -> ClusterSpec:
        """Return the assumed cluster of a run; its GPU must be in the catalogue."""
        assert run.gpu is not None
        key = (run.gpu.gpu.name, run.gpus_per_node, run.num_gpus, node_bytes_per_s(run, self._stack))
        if key not in self._known:
            self._known[key] = assumed_cluster(run, run.gpu, self._stack)
        return self._known[key]


def assumed_cluster(run: MeasuredRun, entry: CatalogueEntry, stack: StackSpec) -> ClusterSpec:
    """
    Return a cluster of equal hosts with the GPU's usual links inside the host, and one NIC per GPU.

    Bandwidth between hosts is the row's, or the one that the stack assumes. Hosts are grouped into the NVLink domains
    that are usual for the GPU.
    """
    per_node = min(run.gpus_per_node, run.num_gpus)
    num_nodes = -(-run.num_gpus // per_node)
    one_flow = node_bytes_per_s(run, stack) / run.gpus_per_node
    links = (LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((num_nodes, num_nodes), one_flow)),)
    nodes = tuple(NodeSpec(host=f"n{index}", gpu=entry.gpu, num_gpus=per_node) for index in range(num_nodes))
    return ClusterSpec(
        name="assumed",
        nodes=nodes,
        intra_node_bytes_per_s=entry.intra_node_bytes_per_s,
        intra_node_latency_s=entry.intra_node_latency_s,
        inter_node_latency_s=stack.assumed_latency_s,
        nics_per_node=run.gpus_per_node,
        link_matrices=links if num_nodes > 1 else (),
        links_measured=False,
        levels=usual_levels(nodes, entry.intra_node_bytes_per_s, entry.intra_node_latency_s, []),
    )


def node_bytes_per_s(run: MeasuredRun, stack: StackSpec) -> float:
    """
    Return the total bandwidth between the GPUs of two hosts, bytes/s: as recorded for the run, or as the stack assumes.

    Raises
    ------
    ValueError
        If the run has several hosts, no bandwidth is recorded, and the catalogue has no usual network for its GPU.
    """
    given = run.cells.get(BANDWIDTH_COLUMN, "")
    if given:
        return float(given) * GB
    usual = None if run.gpu is None else run.gpu.usual_host
    if usual is None:
        if run.num_gpus > run.gpus_per_node:
            raise ValueError(f"no usual network is known for {run.gpu_name}; give {BANDWIDTH_COLUMN}")
        return ONE_HOST_BYTES_PER_S
    return stack.assumed_links * usual.nics.nominal_bytes_per_s * run.gpus_per_node / usual.gpus_per_node
