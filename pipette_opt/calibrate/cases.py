"""Conversion of measured runs (rows of ``runs.csv``) to planning instances, configurations and placements."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, get_args

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB
from pipette_opt.calibrate.expert_columns import (
    check_experts,
    expert_degrees,
    expert_training_fields,
)
from pipette_opt.calibrate.software import named_family, software_of
from pipette_opt.costs.compute import check_timed
from pipette_opt.job.launch import as_trained, legal_config
from pipette_opt.job.read import Made, read_job
from pipette_opt.options.description import JobOptions
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement, microbatches_of
from pipette_opt.parallel.recompute import labelled_fields
from pipette_opt.parallel.schedule import check_interleaving
from pipette_opt.read.attention_words import AttentionWords, attention_words, unknown_attention
from pipette_opt.read.gpus import CatalogueEntry
from pipette_opt.read.levels import usual_levels
from pipette_opt.read.megatron_args import MegatronArgs
from pipette_opt.read.precision_words import KNOWN as KNOWN_PRECISIONS
from pipette_opt.read.precision_words import precision_of
from pipette_opt.read.run_models import GATED_FAMILIES, run_flag, run_model, whole_cell
from pipette_opt.read.runs import BANDWIDTH_COLUMN, FIRST_PARAMETERS_COLUMN, MeasuredRun
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix, NodeSpec, StackSpec, TrainingSpec
from pipette_opt.specs.precision import FP8_RECIPES, NVFP4, PRECISION_RECIPES, fp8_copies
from pipette_opt.specs.stack import Family

NEEDED = ("gpu", "num_layers", "hidden", "heads", "seq_len", "gbs", "mbs", "tp", "pp", "dp")
"""Columns of ``runs.csv`` that a prediction needs."""

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
    if run.launch is not None:
        return _launched(run, run.launch, stack, cluster)
    missing = [name for name in NEEDED if getattr(run, name) is None]
    if missing:
        unknown = f"the catalogue has no GPU {run.gpu_name!r}" if "gpu" in missing else ""
        empty = ", ".join(name for name in missing if name != "gpu")
        whole = " as a whole number" if "mbs" in missing else ""
        nameless = run.model and {"num_layers", "hidden", "heads"} <= set(missing)
        preset = f", and model {run.model!r} is neither a preset nor a config" if nameless else ""
        return Skipped(run=run, reason=unknown or f"{empty} not given{whole}{preset}")
    if _recomputation(run) is None:
        known = "none, selective, full, full block3, full uniform2 or modules such as moe_act+layernorm"
        return Skipped(run=run, reason=f"recomputation {run.recompute_text!r} is not one of {known}")
    assert run.gpu is not None
    try:
        model = run_model(run)
        training = run_training(run, fused_norm=fused_norm)
        config = run_config(run)
        config.num_microbatches(training.global_batch_size)
        _check_precision(run)
        check_experts(model, training, config)
        hosts = cluster or AssumedHosts(stack)
        spec = hosts(run) if isinstance(hosts, AssumedHosts) else hosts
        placement = identity_placement(config, spec.gpus_per_node, np.arange(spec.num_nodes), "tp-cp-ep-dp-pp")
    except ValueError as error:
        return Skipped(run=run, reason=str(error).rstrip("."))
    return Case(
        run=run,
        instance=Instance(model=model, cluster=spec, training=training, stack=stack),
        config=config,
        placement=placement,
    )


def _launched(
    run: MeasuredRun, launch: MegatronArgs, stack: StackSpec, cluster: "ClusterSpec | AssumedHosts | None"
) -> Case | Skipped:
    """Return the case of a run whose row in ``runs.csv`` has a launch command, which is read as in ``estimate``."""
    if run.gpu is None:
        return Skipped(run=run, reason=f"the catalogue has no GPU {run.gpu_name!r}")
    missing = [name for name in ("seq_len", "gbs") if getattr(run, name) is None]
    if missing:
        return Skipped(run=run, reason=f"{', '.join(missing)} not given")
    hosts = cluster or AssumedHosts(stack)
    options = JobOptions(
        global_batch_size=run.gbs,
        seq_length=run.seq_len,
        precision=launch.precision,
        fp8=launch.fp8,
        fp8_recipe=launch.training_fields.get("fp8_recipe") if launch.fp8 else None,
    )
    try:
        made = Made(cluster=hosts(run) if isinstance(hosts, AssumedHosts) else hosts, model=run.spec)
        instance = replace(as_trained(read_job(options, made), launch), stack=stack)
        config = legal_config(instance, launch, run.num_gpus)
        spec = instance.cluster
        placement = identity_placement(config, spec.gpus_per_node, np.arange(spec.num_nodes), launch.rank_order)
    except InputError as error:
        return Skipped(run=run, reason=f"{error.where}: {error.problem}".rstrip("."))
    except ValueError as error:
        return Skipped(run=run, reason=str(error).rstrip("."))
    return Case(run=run, instance=instance, config=config, placement=placement)


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


def _of_families(stack: StackSpec) -> dict[Family, StackSpec]:
    """Return the stack as one of each family."""
    return {family: replace(stack, family=family) for family in get_args(Family)}


def run_training(run: MeasuredRun, *, fused_norm: bool = True) -> TrainingSpec:
    """
    Return the training options of a measured run.

    :func:`~pipette_opt.read.attention_words.attention_words` reads the attention kernel. ``fused_norm`` is used if the
    row has no column ``fused_norm``. Precisions ``fp8`` (with the recipe of the run's software) and other fp8 recipes
    mean fp8 products in bf16 training.
    """
    words = _attention(run)
    precision = precision_of(run.precision)
    if precision == "delayed" and "delayed" not in run.precision:
        precision = software_of(run).fp8_recipe
    return TrainingSpec(
        global_batch_size=run.gbs or 1,
        seq_length=run.seq_len or 1,
        precision="fp32" if precision == "fp32" else "fp16" if precision == "fp16" else "bf16",
        accumulate_allreduce_grads_in_fp32=precision != "fp16"
        and run_flag(run, "grad_reduce_in_fp32", software_of(run).reduces_in_fp32),
        attention_kernel=words.kernel,
        flash_version=words.flash_version,
        fused_softmax=words.fused_softmax,
        fused_norm=run_flag(run, "fused_norm", fused_norm),
        loss_chunks=whole_cell(run, "loss_chunks") or 1,
        fp8=precision in FP8_RECIPES,
        fp8_recipe=precision if precision in FP8_RECIPES else "delayed",
        fp4=precision == NVFP4,
        fp8_copies=2 if run.gpu is None else fp8_copies([run.gpu.gpu.peak_flops]),
        cuda_graph=run_flag(run, "cuda_graph", False),
        **expert_training_fields(run),
    )


def run_config(run: MeasuredRun) -> ParallelConfig:
    """
    Return the configuration of a measured run, from its columns and the defaults of its software.

    :func:`stage_layers` gives the layers per stage.
    """
    assert run.num_layers is not None
    assert run.tp is not None
    assert run.pp is not None
    assert run.dp is not None
    assert run.mbs is not None
    sharded = bool(run.zero_stage) and run.dp * run.cp > 1
    software, once = software_of(run), run.dp * run.cp > 1 and (run.zero_stage or 0) < 2
    beside = once and run_flag(run, "overlap_grad_reduce", software.overlap_grad_reduce)
    return ParallelConfig(
        tensor_model_parallel_size=run.tp,
        pipeline_model_parallel_size=run.pp,
        data_parallel_size=run.dp,
        micro_batch_size=run.mbs,
        context_parallel_size=run.cp,
        layers_per_stage=stage_layers(run, run.num_layers, run.pp),
        virtual_pipeline_model_parallel_size=run.vpp if run.vpp > 1 and run.pp > 1 else None,
        sequence_parallel=run.tp > 1
        and ((software.sequence_parallel or has_experts(run)) if run.seq_parallel is None else run.seq_parallel),
        **(_recomputation(run) or {}),
        use_distributed_optimizer=sharded,
        overlap_grad_reduce=beside,
        overlap_param_gather=beside
        and sharded
        and run_flag(run, "overlap_param_gather", software.overlap_param_gather),
        zero_stage=run.zero_stage if sharded and run.zero_stage is not None and run.zero_stage > 1 else None,
        **expert_degrees(run),
    )


def _recomputation(run: MeasuredRun) -> dict[str, Any] | None:
    """Return the configuration fields for a run's recomputation; ``None`` if its word is unknown."""
    if run.recompute is None:
        return {}
    try:
        return None if run.recompute == "block" else labelled_fields(run.recompute)
    except ValueError:
        return None


def has_experts(run: MeasuredRun) -> bool:
    """Return whether a run's model has experts, which need sequence parallelism on tensor ranks (``MoELayer``)."""
    return run_model(run).num_experts is not None


def stage_layers(run: MeasuredRun, num_layers: int, pp: int) -> tuple[int, ...]:
    """
    Return the layers of each stage of a run: as recorded, from AMP's boundaries of pseudo-layers, or spread evenly.

    If the number does not divide, the first stages have one layer more. With interleaving, embedding and output head
    count as layers if the chunks are then equal, as Megatron-Core requires (``parallel/chunks.py``).
    """
    if run.layers_per_stage is not None:
        if len(run.layers_per_stage) != pp or sum(run.layers_per_stage) != num_layers:
            raise ValueError(f"layers_per_stage={run.layers_per_stage} must be {pp} numbers with the sum {num_layers}")
        return run.layers_per_stage
    found = re.search(r"stage boundaries \[([0-9,\s]+)\]", run.notes)
    if found:
        bounds = [int(part) for part in found.group(1).split(",")]
        # Two pseudo-layers come before the transformer layers: look-up and a reshape (AMP, src/known_cost).
        inside = [min(max(bound - 2, 0), num_layers) for bound in bounds]
        if len(bounds) == pp + 1 and bounds[-1] >= num_layers + 2:
            return tuple(b - a for a, b in pairwise(inside))
    if software_of(run).splits_by_parameters:
        return balanced_layers(run, num_layers, pp)
    base, extra = divmod(num_layers, pp)
    if run.vpp > 1 < pp and num_layers % (pp * run.vpp) and (num_layers + 2) % (pp * run.vpp) == 0:
        whole = (num_layers + 2) // pp
        return (whole - 1, *(whole,) * (pp - 2), whole - 1)
    return tuple(base + (stage < extra) for stage in range(pp))


def balanced_layers(run: MeasuredRun, num_layers: int, pp: int) -> tuple[int, ...]:
    """
    Return the layers of each stage as Nanotron divides them, by parameters.

    A stage takes layers until all layers so far reach its share of the total cost; the output head counts as a layer.
    The cost of a layer is the parameters of its matrices (``get_block_compute_costs`` in Nanotron's models); embeddings
    cost nothing. The layer that reaches the share still belongs to the stage: the parameter counts that rank 0 printed
    in public runs confirm this. If a layer meets the share exactly, the result depends on Nanotron's version; the
    column ``local_params_rank0`` then decides, if the row has it.
    """
    h, ffn, heads = run.hidden or 1, run.ffn_hidden or 1, run.heads or 1
    layer = h * (2 * h + 2 * h * (run.kv_heads or heads) // heads) + 3 * h * ffn
    head = h * (run.vocab or 0)
    splits = [_fill_stages(num_layers, pp, layer, head, meets=meets) for meets in (True, False)]
    reported = run.extra.get(FIRST_PARAMETERS_COLUMN)
    if not reported:
        return splits[0]
    layers_reported = (float(reported) * (run.tp or 1) - head) / layer
    return min(splits, key=lambda split: abs(split[0] - layers_reported))


def _fill_stages(num_layers: int, pp: int, layer: int, head: int, *, meets: bool) -> tuple[int, ...]:
    """
    Return the layers of each stage, filled in order by cost.

    ``meets``: whether a stage is full when the cost so far equals its share exactly.
    """
    share = (num_layers * layer + head) / pp
    layers, stage = [0] * pp, 0
    for index in range(num_layers):
        layers[stage] += 1
        filled, wanted = (index + 1) * layer, (stage + 1) * share
        if filled > wanted or (meets and filled == wanted):
            stage = min(stage + 1, pp - 1)
    return tuple(layers)


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
    given = run.extra.get(BANDWIDTH_COLUMN, "")
    if given:
        return float(given) * GB
    usual = None if run.gpu is None else run.gpu.usual_host
    if usual is None:
        if run.num_gpus > run.gpus_per_node:
            raise ValueError(f"no usual network is known for {run.gpu_name}; give {BANDWIDTH_COLUMN}")
        return ONE_HOST_BYTES_PER_S
    return stack.assumed_links * usual.nics.nominal_bytes_per_s * run.gpus_per_node / usual.gpus_per_node


def _check_precision(run: MeasuredRun) -> None:
    """Raise ``ValueError`` for an unknown precision, or for a precision that the GPU does not support."""
    precision = precision_of(run.precision)
    if precision is None:
        raise ValueError(f"precision {run.precision!r} is not one of {KNOWN_PRECISIONS}")
    recipe = PRECISION_RECIPES.get(precision)
    if recipe is not None and run.gpu is not None and recipe.peak not in run.gpu.gpu.peak_flops:
        raise ValueError(f"precision {run.precision!r} is not supported by GPU {run.gpu.gpu.name}")


def _attention(run: MeasuredRun) -> AttentionWords:
    found = AttentionWords(kernel="flash" if _is_flash(run) else "unfused")
    if run.attention_kernel:
        named = attention_words(run.attention_kernel)
        if named is None:
            raise ValueError(unknown_attention(run.attention_kernel))
        found = named
    return replace(found, flash_version=min(found.flash_version, software_of(run).flash_version))


def _is_flash(run: MeasuredRun) -> bool:
    """Return whether a run has fused attention, if its attention kernel is not recorded."""
    usual = software_of(run).fused_attention or any(family in run.model.lower() for family in GATED_FAMILIES)
    return run_flag(run, "fused_attention", usual)
