"""All combinations of a search space's choices for a number of GPUs, each with the legality rules that it breaks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Self

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import Recomputation
from pipette_opt.candidates.legality import LEGALITY_RULES, OF_MICRO_BATCHES, broken_rules
from pipette_opt.candidates.space import OF_EXPERTS, RECOMPUTATIONS, SearchSpace
from pipette_opt.candidates.splits import LayerSplit, layer_splits, light_layout
from pipette_opt.parallel import ParallelConfig, fit_chunks, host_tiles, with_overlap
from pipette_opt.parallel.config import SHARDING_STRATEGIES
from pipette_opt.parallel.layout import layout_layers, layout_parts
from pipette_opt.parallel.recompute import recomputation_fields
from pipette_opt.specs import Instance
from pipette_opt.specs.user_buffers import has_user_buffers, may_have_user_buffers, user_buffers_reach


@dataclass(frozen=True, slots=True, kw_only=True)
class _Degrees:
    """Parallel degrees for a number of GPUs, or the reason why they do not divide it."""

    tp: int
    cp: int
    pp: int
    dp: int
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing:
    """
    Way to shard state over replicas.

    Parameters
    ----------
    fields
        Fields of a configuration.
    stages
        ZeRO stage and number of groups, if they are fields.
    has_optimizer
        Whether the optimizer is distributed.
    num_overlaps
        Number of choices of communication overlap.
    """

    fields: dict[str, Any]
    stages: tuple[int | None, int | None]
    has_optimizer: bool
    num_overlaps: int

    @classmethod
    def of(cls, fields: dict[str, Any], overlaps: Mapping[bool, int]) -> Self:
        """Return the sharding with these fields; ``overlaps`` has choices by whether the optimizer is distributed."""
        optimizer = fields.get("use_distributed_optimizer", False)
        return cls(
            fields=fields,
            stages=(fields.get("zero_stage"), fields.get("num_distributed_optimizer_instances")),
            has_optimizer=optimizer,
            num_overlaps=1 if "zero_stage" in fields else overlaps[optimizer],
        )


class Combination(NamedTuple):
    """
    Combination of parallel degrees and other choices, together with all choices of communication overlap.

    Parameters
    ----------
    configs
        One configuration for each choice of overlap; empty if the combination is illegal, or if only counts are wanted.
    number
        Number of configurations; -1 cancels a configuration that was counted before.
    broken
        Legality rules that the combination breaks, each with the reason.
    """

    configs: list[ParallelConfig]
    number: int
    broken: dict[str, str]


def combinations(
    instance: Instance,
    space: SearchSpace,
    num_gpus: int,
    *,
    only_counted: bool = False,
    known: SearchSpace | None = None,
) -> Iterator[Combination]:
    """
    Yield every combination for a number of GPUs, with the legality rules that it breaks.

    Parameters
    ----------
    only_counted
        Whether to count configurations without making them.
    known
        Search space with fewer ``more_splits`` and ``more_layouts``; combinations that it contains are skipped.
    """
    split_of: dict[tuple[int, int], list[tuple[LayerSplit, str | None]]] = {}
    offloads, recomputations = _offloads(instance, space), _recomputations(instance, space)
    for degrees in _degrees(space, num_gpus, instance.cluster.gpus_per_node):
        packings: dict[tuple[int, int, int | None], dict[str, str]] = {}
        illegal: dict[tuple[object, ...], dict[str, str]] = {}
        fixed: dict[tuple[bool, tuple[int, int, int | None]], dict[str, str]] = {}
        overlaps = {zero: len(_overlaps(space, degrees.dp * degrees.cp > 1, zero)) for zero in (False, True)}
        sharings = [_Sharing.of(fields, overlaps) for fields in _sharing(space, degrees)]
        of_degrees = (
            _exchange_sizes(instance, space, degrees),
            _tensor_choices(instance, space, degrees),
            sharings,
            _expert_degrees(instance, space, degrees),
            offloads,
        )
        for mbs, chunks, recompute in product(
            _micro_batch_sizes(instance, space), _chunk_counts(space, degrees.pp), recomputations
        ):
            refusal = None if degrees.refusal is None else ("world size", degrees.refusal)
            if refusal is None and chunks > 1 and degrees.pp == 1:  # ``initialize_model_parallel``
                needs = "needs pipeline_model_parallel_size >= 2, got 1"
                refusal = "interleaving", f"virtual_pipeline_model_parallel_size={chunks} {needs}"
            if refusal is not None:
                if known is None:
                    yield Combination([], 1, dict([refusal]))
                continue
            if (degrees.pp, chunks) not in split_of:
                before = [] if known is None else _splits(instance, known, degrees.pp, chunks)
                found = _splits(instance, space, degrees.pp, chunks)
                split_of[degrees.pp, chunks] = [split for split in found if split not in before]
            splits = split_of[degrees.pp, chunks]
            if not splits and known is None:
                yield Combination([], 1, {"layers": _no_split(instance, space, degrees.pp, chunks)})
            if not sharings and known is None:
                groups = ", ".join(map(str, space.num_distributed_optimizer_instances or ()))
                replicas = f"dp * cp = {degrees.dp} * {degrees.cp} replicas"
                yield Combination([], 1, {"sharded parameters": f"{replicas} do not divide into {groups} groups"})
            if splits and known is not None and not _splits(instance, known, degrees.pp, chunks):
                # Take back the combination that was counted as impossible to split.
                yield Combination([], -1, {"layers": _no_split(instance, space, degrees.pp, chunks)})
            held = {split: None if _is_whole(instance, split) else split for split, _ in splits}
            for (split, layout), exchange, (sequence_parallel, tp_overlap), sharing, (ep, etp), offload in product(
                splits, *of_degrees
            ):
                # Fields that the legality rules depend on; rules agree for all combinations with an equal key.
                ranks, kept = (exchange, ep, etp), None if offload is None else (offload, sharing.has_optimizer)
                deciding = mbs, chunks, recompute, sequence_parallel, ranks, held[split], sharing.stages, kept
                config = None
                if deciding not in illegal or not (only_counted or illegal[deciding]):
                    config = ParallelConfig(
                        tensor_model_parallel_size=degrees.tp,
                        context_parallel_size=degrees.cp,
                        context_a2a_size=exchange,
                        expert_model_parallel_size=ep,
                        expert_tensor_parallel_size=etp,
                        pipeline_model_parallel_size=degrees.pp,
                        data_parallel_size=degrees.dp,
                        micro_batch_size=mbs,
                        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
                        layers_per_stage=split,
                        pipeline_model_parallel_layout=layout,
                        sequence_parallel=sequence_parallel,
                        **sharing.fields,
                        **recomputation_fields(recompute),
                        overlap_p2p_communication=space.overlap_p2p_communication,
                        offload=offload,
                        tp_comm_overlap=tp_overlap,
                    )
                if config is not None and deciding not in illegal:
                    if ranks not in packings:
                        packings[ranks] = _packing(instance, config)
                    if (sequence_parallel, ranks) not in fixed:
                        names = [name for name in LEGALITY_RULES if name not in OF_MICRO_BATCHES]
                        fixed[sequence_parallel, ranks] = broken_rules(instance.model, instance.training, config, names)
                    reasons = {
                        **fixed[sequence_parallel, ranks],
                        **broken_rules(instance.model, instance.training, config, OF_MICRO_BATCHES),
                    }
                    ordered = {name: reasons[name] for name in LEGALITY_RULES if name in reasons} if reasons else {}
                    illegal[deciding] = {**ordered, **packings[ranks]}
                broken = illegal[deciding]
                made = [] if config is None or broken or only_counted else overlap_choices(space, config)
                yield Combination(made, sharing.num_overlaps, broken)


def _offloads(instance: Instance, space: SearchSpace) -> tuple[str | None, ...]:
    """
    Return the offloading choices to try; ``None`` uses the job's own options.

    Raises ``InputError`` if both the search space and the job set offloading.
    """
    if space.offload is None:
        return (None,)
    if not instance.training.offload.is_nothing:
        word = instance.training.offload.word
        raise InputError(
            "--offload", f"repeats the offload in the Megatron arguments of the job ({word}); leave the option out."
        )
    return space.offload


def _recomputations(instance: Instance, space: SearchSpace) -> tuple[Recomputation | None, ...]:
    """Return the recomputation choices to try; with experts also modules, unless the user pinned recomputation."""
    if space.recompute != RECOMPUTATIONS or instance.model.num_experts is None:
        return (*space.recompute, *space.more_recompute)
    return (*RECOMPUTATIONS[:2], *OF_EXPERTS, *space.more_recompute, *RECOMPUTATIONS[2:])


def known_combinations(instance: Instance, space: SearchSpace) -> Iterator[Combination]:
    """Yield the configurations of ``space.more_configs`` for at most ``max_gpus``, with the rules that they break."""
    for config in space.more_configs:
        if space.max_gpus is not None and config.world_size > space.max_gpus:
            continue
        broken = broken_rules(instance.model, instance.training, config)
        yield Combination([config], 1, broken | _packing(instance, config))


def overlap_choices(space: SearchSpace, config: ParallelConfig) -> list[ParallelConfig]:
    """Return copies of a configuration, one for each allowed overlap of gradient and parameter traffic with compute."""
    if config.sharding_stage > 1:  # always overlaps with compute
        return [config]
    several = config.data_parallel_size * config.context_parallel_size > 1
    return [
        with_overlap(config, grad_reduce=True, param_gather=gather, ddp_bucket_size=space.ddp_bucket_size)
        if reduce
        else config
        for reduce, gather in _overlaps(space, several, config.use_distributed_optimizer)
    ]


def _overlaps(space: SearchSpace, several: bool, distributed_optimizer: bool) -> list[tuple[bool, bool]]:
    """
    Return the allowed overlaps as pairs (gradient reduction, parameter gather).

    ``several``: whether the configuration has more than one data-parallel rank.
    """
    reduce, gather = space.overlap_grad_reduce, space.overlap_param_gather
    reduces = ((False, True) if several else (False,)) if reduce is None else (reduce,)
    gathers = ((False, True) if several else (False,)) if gather is None else (gather,)
    if gather and reduce is None:
        reduces = (True,)
    choices = ((does, gathers_too and does and distributed_optimizer) for does in reduces for gathers_too in gathers)
    return list(dict.fromkeys(choices))


def _degrees(space: SearchSpace, num_gpus: int, per_host: int) -> Iterator[_Degrees]:
    """Yield degrees that divide the GPUs, ascending; pinned degrees that do not divide them have a ``refusal``."""
    tensor_sizes = space.tensor_parallel or _divisors(num_gpus)
    pairs = [(tp, cp) for tp in tensor_sizes for cp in _context_sizes(space, tp, num_gpus, per_host)]
    for tp, cp in pairs:
        if num_gpus % (tp * cp):
            reason = f"tp * cp = {tp} * {cp} does not divide {num_gpus} GPUs"
            yield _Degrees(tp=tp, cp=cp, pp=1, dp=1, refusal=reason)
            continue
        left = num_gpus // (tp * cp)
        for pp in _pipeline_sizes(space, left):
            dp, rest = divmod(left, pp)
            refusal = None
            if rest:
                refusal = f"tp * cp * pp = {tp} * {cp} * {pp} does not divide {num_gpus} GPUs"
            elif space.data_parallel is not None and dp not in space.data_parallel:
                allowed = ", ".join(map(str, space.data_parallel))
                refusal = f"tp * cp * pp = {tp} * {cp} * {pp} leaves dp={dp} of {num_gpus} GPUs, not {allowed}"
            yield _Degrees(tp=tp, cp=cp, pp=pp, dp=max(dp, 1), refusal=refusal)


def _context_sizes(space: SearchSpace, tp: int, num_gpus: int, per_host: int) -> tuple[int, ...]:
    """
    Return the context-parallel sizes to try with a tensor-parallel size.

    Tensor and context group together share a host or fill whole hosts; 1 is always tried. If all other degrees are
    pinned, they decide the number of hosts, and context groups stay inside a host.
    """
    if space.context_parallel is not None:
        return space.context_parallel
    if per_host % tp or num_gpus % tp:
        return (1,)
    inside = per_host // tp
    spreads = None in (space.tensor_parallel, space.pipeline_parallel, space.data_parallel)
    sizes = _divisors(num_gpus // tp)
    return tuple(cp for cp in sizes if inside % cp == 0 or (spreads and cp % inside == 0))


def _exchange_sizes(instance: Instance, space: SearchSpace, degrees: _Degrees) -> tuple[int, ...]:
    """Return the numbers of context ranks that exchange heads to try; given sizes are returned unchecked."""
    if space.context_a2a is not None:
        return space.context_a2a
    return _divisors(degrees.cp) if instance.training.cp_comm_type == "a2a+p2p" else (1,)


def _pipeline_sizes(space: SearchSpace, left: int) -> tuple[int, ...]:
    if space.pipeline_parallel is not None:
        return space.pipeline_parallel
    if space.layers_per_stage is not None:
        return tuple(sorted({len(split) for split in space.layers_per_stage}))
    return _divisors(left)


def _micro_batch_sizes(instance: Instance, space: SearchSpace) -> tuple[int, ...]:
    if space.micro_batch_size is not None:
        return space.micro_batch_size
    batch = instance.training.global_batch_size
    return tuple(size for size in range(1, min(batch, space.max_micro_batch_size) + 1) if batch % size == 0)


def _chunk_counts(space: SearchSpace, pp: int) -> tuple[int, ...]:
    if space.virtual_pipeline is not None:
        return space.virtual_pipeline
    return tuple(range(1, space.max_virtual_pipeline + 1)) if pp > 1 else (1,)


def _splits(instance: Instance, space: SearchSpace, pp: int, chunks: int) -> list[tuple[LayerSplit, str | None]]:
    """Return the layers of each stage to try, each with a Megatron-Core layout if chunks are unequal, or ``None``."""
    if space.layers_per_stage is None:
        usual = layer_splits(instance.model.num_layers, pp, chunks, space.uneven_layers)
        more = (split for split in space.more_splits if len(split) == pp and fit_chunks(split, chunks))
        alike = list(dict.fromkeys((*usual, *more)))
    else:
        alike = [split for split in space.layers_per_stage if len(split) == pp and fit_chunks(split, chunks)]
    found: list[tuple[LayerSplit, str | None]] = [(split, None) for split in alike]
    light = None
    wants_light_end = instance.model.mtp_num_layers > 0 or instance.training.overlap_moe_expert_parallel_comm
    if space.layers_per_stage is None and space.uneven_layers and wants_light_end and pp > 1:
        light = light_layout(instance.model.num_layers, pp, chunks)
    for layout in (*([] if light is None else [light]), *space.more_layouts):
        if len(layout_parts(layout)) == pp * chunks:
            held = layout_layers(layout, pp)
            is_unequal = len(set(map(tuple, held))) > 1
            found.append((tuple(map(sum, zip(*held, strict=True))), layout if is_unequal else None))
    return list(dict.fromkeys(found))


def _is_whole(instance: Instance, split: LayerSplit) -> bool:
    """Return whether a split has all layers of the model, at least one on each stage."""
    return sum(split) == instance.model.num_layers and min(split) >= 1


def _no_split(instance: Instance, space: SearchSpace, pp: int, chunks: int) -> str:
    num_layers = instance.model.num_layers
    into = f"{pp} stages" + (f" of {chunks} chunks" if chunks > 1 else "")
    if space.layers_per_stage is not None:
        return f"none of the given layers_per_stage is for {into}"
    return f"num_layers={num_layers} cannot be split into {into}" + ("" if space.uneven_layers else " of equal size")


def _sequence_parallel(instance: Instance, space: SearchSpace, degrees: _Degrees) -> tuple[bool, ...]:
    if space.sequence_parallel is not None:
        return space.sequence_parallel
    return (degrees.tp > 1 and instance.training.seq_length // degrees.cp % degrees.tp == 0,)


def _tensor_choices(instance: Instance, space: SearchSpace, degrees: _Degrees) -> list[tuple[bool, bool]]:
    """Return the pairs (sequence parallelism, tensor overlap) to try."""
    return [
        (sequence_parallel, overlap)
        for sequence_parallel in _sequence_parallel(instance, space, degrees)
        for overlap in tensor_overlaps(instance, space, degrees.tp, sequence_parallel)
    ]


def tensor_overlaps(instance: Instance, space: SearchSpace, tp: int, sequence_parallel: bool) -> tuple[bool, ...]:
    """Return the values of ``tp_comm_overlap`` to try: both if the space leaves it open and user buffers exist."""
    if instance.training.tp_comm_overlap or space.tp_comm_overlap is False:
        return (False,)
    if space.tp_comm_overlap:
        return (True,)
    reached = sequence_parallel and user_buffers_reach(instance.cluster, tp)
    return (True, False) if reached and may_have_user_buffers(instance.training, instance.cluster) else (False,)


def _sharing(space: SearchSpace, degrees: _Degrees) -> list[dict[str, Any]]:
    """
    Return the ways to shard state over replicas, as fields of a configuration; no sharding with one replica.

    Empty if none of the given numbers of groups divides the replicas.
    """
    replicas, strategies = degrees.dp * degrees.cp, space.data_parallel_sharding_strategy
    if degrees.pp > 1 and space.pipelined_sharding is not None:
        strategies = space.pipelined_sharding
    if replicas == 1 and space.needs_replicas and degrees.pp * degrees.tp > 1:
        return []
    instances, stages = space.num_distributed_optimizer_instances or (1,), list[int]()
    if strategies is None:
        choices = (replicas > 1,) if space.use_distributed_optimizer is None else space.use_distributed_optimizer
        stages += map(int, choices)
    if replicas == 1:
        found: list[dict[str, Any]] = [{"use_distributed_optimizer": stage > 0} for stage in stages] or [{}]
        return found if 1 in instances else []
    found = []
    for stage in (*stages, *map(SHARDING_STRATEGIES.index, (*(strategies or ()), *space.more_sharding))):
        shared: dict[str, Any] = {"use_distributed_optimizer": stage > 0}
        shared |= {"zero_stage": stage} if stage > 1 else {}
        if stage == 0:
            found.append(shared)
            continue
        for groups in instances:
            if replicas % groups == 0 and (stage < 2 or groups == 1 or groups < replicas):
                outers = space.outer_dp_sharding_strategy if groups > 1 and stage == 3 else ("no_shard",)
                of_groups = {} if groups == 1 else {"num_distributed_optimizer_instances": groups}
                found += [shared | of_groups | {"outer_dp_sharding_strategy": outer} for outer in outers]
    return found


def _expert_degrees(instance: Instance, space: SearchSpace, degrees: _Degrees) -> list[tuple[int, int | None]]:
    """
    Return the pairs (expert-parallel size, expert tensor size) to try; ``None`` for Megatron-Core's default, the tensor
    size.

    Given sizes are returned unchecked; the legality rules refuse wrong sizes.
    """
    num_experts = instance.model.num_experts
    if num_experts is None:
        return [(ep, None) for ep in space.expert_parallel or (1,)]
    ranks, found = degrees.tp * degrees.cp * degrees.dp, []
    for etp in space.expert_tensor_parallel or sorted({1, degrees.tp}):
        fitting = tuple(ep for ep in _divisors(num_experts) if ranks % (ep * etp) == 0)
        # With context parallelism the size is named, as the rank orders that are possible depend on it.
        named = None if etp == degrees.tp and degrees.cp == 1 else etp
        found += [(ep, named) for ep in space.expert_parallel or fitting]
    return found


def _packing(instance: Instance, config: ParallelConfig) -> dict[str, str]:
    """
    Return the reason, under ``packing``, why hosts cannot hold equal parts of the grid of stages and replicas.

    The launcher must be able to express the rank map, and tensor overlap must stay inside an NVLink domain. Empty if
    possible.
    """
    gpus_per_node = instance.cluster.gpus_per_node
    slot = config.tensor_model_parallel_size * config.context_parallel_size
    reach = instance.cluster.scale_up_gpus
    if has_user_buffers(instance.training, config) and config.tensor_model_parallel_size > reach:
        tp = config.tensor_model_parallel_size
        reason = f"tp_comm_overlap: user buffers of {tp} tensor ranks do not leave an NVLink domain of {reach} GPUs"
        return {"packing": reason}
    here = max(gpus_per_node // config.tensor_model_parallel_size, 1)
    if config.context_parallel_size > here and here % config.context_a2a_size:
        reason = f"hosts of {here} context ranks do not divide into context_a2a_size={config.context_a2a_size}"
        return {"packing": reason}
    if instance.model.num_experts is not None and config.tensor_model_parallel_size > gpus_per_node:
        slot = config.tensor_model_parallel_size
        return {"packing": f"groups of {slot} GPUs of a model with experts span hosts of {gpus_per_node} GPUs"}
    if any(True for _ in host_tiles(config, gpus_per_node, instance.launcher)):
        return {}
    grid = f"{config.pipeline_model_parallel_size} x {config.data_parallel_size} groups of {slot} GPUs"
    return {"packing": f"{grid} do not pack onto hosts of {gpus_per_node} GPUs with launcher {instance.launcher}"}


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(part for part in range(1, number + 1) if number % part == 0)
