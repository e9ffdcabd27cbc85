"""From a search space to every legal configuration, and why the others are not."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates.legality import broken_rules, layers
from pipette_opt.candidates.space import SearchSpace, beyond_limits
from pipette_opt.candidates.splits import LayerSplit, layer_splits
from pipette_opt.parallel import ParallelConfig, fit_chunks, microbatches_of, node_blocks, with_overlap
from pipette_opt.parallel.layout import layout_layers, layout_parts
from pipette_opt.specs import Instance

NEARLY_AS_BUSY = 0.9
"""Of the most GPUs that any number of hosts keeps busy: numbers of hosts that keep fewer busy are not searched."""

MOST_WORLD_SIZES = 6
"""Numbers of hosts that are searched side by side, those that keep most GPUs busy."""


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """
    What a search space holds.

    Parameters
    ----------
    world_sizes
        GPUs of the candidates, the most first.
    candidates
        Every legal configuration that packs onto the hosts.
    num_combinations
        Combinations looked at, the candidates among them.
    rejected
        Combinations that each rule rules out, most first; one that breaks several rules counts for each.
    examples
        For each of these rules, the reason why it ruled out the first combination, with the numbers.
    first_broken
        Combinations by the first rule that they break, most first; together with the candidates these are all
        combinations.
    """

    world_sizes: tuple[int, ...]
    candidates: tuple[ParallelConfig, ...]
    num_combinations: int
    rejected: Mapping[str, int]
    examples: Mapping[str, str]
    first_broken: Mapping[str, int]

    def values(self, name: str) -> tuple[Any, ...]:
        """The values of a property among the candidates, ascending; none first. They are looked for once."""
        if name not in self._values:
            found = {getattr(one, name) for one in self.candidates}
            self._values[name] = tuple(sorted(found, key=lambda value: (str(type(value)), value)))
        return self._values[name]

    @cached_property
    def _values(self) -> dict[str, tuple[Any, ...]]:
        return {}

    def explain(self) -> str:
        """Which rule rules out how many combinations, one line each."""
        sizes = " or ".join(map(str, self.world_sizes))
        head = f"{len(self.candidates)} of {self.num_combinations} combinations are legal on {sizes} GPUs"
        lines = [f"{rule} rules out {count}, e.g. {self.examples[rule]}" for rule, count in self.rejected.items()]
        return "\n  ".join([f"{head}{':' if lines else '.'}", *lines])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Degrees:
    """How the GPUs are split, or why they are not."""

    tp: int
    cp: int
    pp: int
    dp: int
    refusal: str | None = None


def enumerate_candidates(instance: Instance, space: SearchSpace) -> list[ParallelConfig]:
    """
    Every legal configuration, smaller degrees first; the order depends on nothing but the arguments.

    Raises
    ------
    InfeasibleError
        If there is none; the message says which rule rules out how many combinations.
    """
    found = enumerate_with_reasons(instance, space)
    if not found.candidates:
        raise InfeasibleError(found.explain())
    return list(found.candidates)


def enumerate_with_reasons(instance: Instance, space: SearchSpace) -> Enumeration:
    """Every legal configuration, and how many combinations each rule rules out."""
    sizes = world_sizes(instance, space)
    candidates: list[ParallelConfig] = []
    rejected: Counter[str] = Counter()
    first_broken: Counter[str] = Counter()
    examples: dict[str, str] = {}
    num_combinations = 0
    for num_gpus in sizes:
        for configs, broken in _combinations(instance, space, num_gpus):
            num_combinations += max(len(configs), 1)
            for rule, reason in broken.items():
                rejected[rule] += max(len(configs), 1)
                examples.setdefault(rule, reason)
            if broken:
                first_broken[next(iter(broken))] += max(len(configs), 1)
            else:
                candidates += configs
    return Enumeration(
        world_sizes=sizes,
        candidates=tuple(candidates),
        num_combinations=num_combinations,
        rejected=dict(rejected.most_common()),
        examples=examples,
        first_broken=dict(first_broken.most_common()),
    )


def has_more_than(instance: Instance, space: SearchSpace, most: int, sizes: Sequence[int] | None = None) -> bool:
    """
    Whether a space has more legal configurations than that; no more of them are looked at than it takes to know.

    Parameters
    ----------
    sizes
        The world sizes of the space, where they are known.
    """
    count = 0
    for num_gpus in sizes or world_sizes(instance, space):
        for configs, broken in _combinations(instance, space, num_gpus):
            count += 0 if broken else len(configs)
            if count > most:
                return True
    return False


def world_sizes(instance: Instance, space: SearchSpace) -> tuple[int, ...]:
    """
    World sizes of the search, the most GPUs first: ``space.num_gpus``, or all hosts that are allowed and fewer.

    Of fewer hosts those count that keep nearly as many GPUs busy as :func:`choose_num_gpus` finds at best, at most
    ``MOST_WORLD_SIZES``; the time of fewer busy GPUs cannot come near. What is left out is not proven to be slower, and
    the certificate says so.
    """
    chosen = choose_num_gpus(instance, space)
    per_host = instance.cluster.gpus_per_node
    if space.num_gpus is not None or chosen < per_host:
        return (chosen,)
    probe = _smallest(space)
    busy = {chosen: _busy_gpus(instance, probe, chosen)}
    for num_gpus in range(_most_gpus(instance, space) // per_host * per_host, 0, -per_host):
        if num_gpus < NEARLY_AS_BUSY * busy[chosen]:
            break
        busy.setdefault(num_gpus, _busy_gpus(instance, probe, num_gpus))
    able = [size for size in busy if busy[size] >= NEARLY_AS_BUSY * busy[chosen]]
    most = sorted(able, key=lambda size: (-busy[size], size))[:MOST_WORLD_SIZES]
    return tuple(sorted(most, reverse=True))


def choose_num_gpus(instance: Instance, space: SearchSpace) -> int:
    """
    ``space.num_gpus``, or else the whole hosts that keep most GPUs busy.

    More hosts are not worth crooked stages or a deep pipeline. For each number of hosts the best legal candidate
    counts, by the GPUs that its layers and micro-batches keep busy: ``num_gpus * num_layers / (pp * largest stage)
    * m / (m + pp - 1)``, where the lower ``m`` is that of the replica with most micro-batches; of equal counts the
    fewer hosts. With 17 hosts of 8, 80 layers and a batch of 512, 136 GPUs leave only pipelines of 17, 34 or 68 uneven
    stages, so 16 hosts are used. Neither links nor memory count here: whoever knows better gives ``space.num_gpus``.
    Parts of one host are used only if no whole host is legal. If nothing is, all GPUs, so that the reasons refer to the
    whole cluster. ``space.max_gpus`` is the most in each case.

    Raises
    ------
    InputError
        If ``space.num_gpus`` is more than there are, or neither whole hosts nor a part of one.
    """
    per_host, num_nodes = instance.cluster.gpus_per_node, instance.cluster.num_nodes
    if space.num_gpus is not None:
        _check_num_gpus(space.num_gpus, per_host, num_nodes)
        return space.num_gpus
    probe, most = _smallest(space), _most_gpus(instance, space)
    most_whole = most // per_host * per_host
    for counts in (range(most_whole, 0, -per_host), range(min(per_host - 1, most), 0, -1)):
        most_busy, chosen = 0.0, None
        for num_gpus in counts:
            if most_busy > num_gpus:
                break
            busy = _busy_gpus(instance, probe, num_gpus)
            if busy > 0.0 and busy >= most_busy:
                most_busy, chosen = busy, num_gpus
        if chosen is not None:
            return chosen
    return most_whole or most


def _most_gpus(instance: Instance, space: SearchSpace) -> int:
    """GPUs that there are, or that the space allows."""
    available = instance.cluster.num_nodes * instance.cluster.gpus_per_node
    return available if space.max_gpus is None else min(available, space.max_gpus)


def _busy_gpus(instance: Instance, space: SearchSpace, num_gpus: int) -> float:
    """GPUs that the best legal candidate keeps busy, as :func:`choose_num_gpus` counts; 0 if nothing is legal."""
    busiest = 0.0
    for configs, broken in _combinations(instance, space, num_gpus):
        if not configs or broken:
            continue
        config = configs[0]
        pp, batch = config.pipeline_model_parallel_size, instance.training.global_batch_size
        most = microbatches_of(instance.training, config)
        mean = batch / (config.data_parallel_size * config.micro_batch_size)
        evenness = instance.model.num_layers / (pp * max(config.layers_per_stage))
        busiest = max(busiest, num_gpus * evenness * mean / (most + pp - 1))
    return busiest


def _check_num_gpus(num_gpus: int, per_host: int, num_nodes: int) -> None:
    available = per_host * num_nodes
    if num_gpus > available:
        raise InputError(
            "--num-gpus", f"must be at most the {num_nodes} x {per_host} = {available} GPUs listed, got {num_gpus}."
        )
    if num_gpus > per_host and num_gpus % per_host:
        below = num_gpus - num_gpus % per_host
        raise InputError(
            "--num-gpus",
            f"must fill whole hosts of {per_host} GPUs (or part of one), got {num_gpus}; "
            f"{below} or {below + per_host} would.",
        )


def _smallest(space: SearchSpace) -> SearchSpace:
    """
    The space without what cannot decide whether a split of the GPUs is legal.

    Free choices take their least demanding value: a legal candidate stays legal if it gives up interleaving or
    makes its micro-batches smaller.
    """
    return replace(
        space,
        recompute=space.recompute[:1],
        use_distributed_optimizer=(False,),
        virtual_pipeline=space.virtual_pipeline or (1,),
        expert_parallel=space.expert_parallel or (1,),
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        ddp_bucket_size=None,
        max_micro_batch_size=1,
    )


def _combinations(
    instance: Instance, space: SearchSpace, num_gpus: int
) -> Iterator[tuple[list[ParallelConfig], dict[str, str]]]:
    """
    Every combination with the rules that it breaks, as one configuration for each choice of what overlaps.

    No configuration where it cannot even be written down.
    """
    training = instance.training
    looks_at_recomputation = training.cuda_graph or training.overlap_moe_expert_parallel_comm
    for degrees in _degrees(space, num_gpus, instance.cluster.gpus_per_node):
        packings: dict[tuple[int, int | None], dict[str, str]] = {}
        illegal: dict[tuple[object, ...], dict[str, str]] = {}
        for mbs, chunks, recompute in product(
            _micro_batch_sizes(instance, space), _chunk_counts(space, degrees.pp), space.recompute
        ):
            if degrees.refusal is not None:
                yield [], {"world size": degrees.refusal}
                continue
            refusal = _chunk_refusal(chunks, degrees.pp)
            if refusal is not None:
                yield [], {"interleaving": refusal}
                continue
            splits = _splits(instance, space, degrees.pp, chunks)
            if not splits:
                yield [], {"layers": _no_split(instance, space, degrees.pp, chunks)}
            for (split, layout), sequence_parallel, distributed_optimizer, (ep, etp) in product(
                splits,
                _sequence_parallel(instance, space, degrees),
                _distributed_optimizer(space, degrees),
                _expert_degrees(instance, space, degrees),
            ):
                config = ParallelConfig(
                    tensor_model_parallel_size=degrees.tp,
                    context_parallel_size=degrees.cp,
                    expert_model_parallel_size=ep,
                    expert_tensor_parallel_size=etp,
                    pipeline_model_parallel_size=degrees.pp,
                    data_parallel_size=degrees.dp,
                    micro_batch_size=mbs,
                    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
                    layers_per_stage=split,
                    pipeline_model_parallel_layout=layout,
                    sequence_parallel=sequence_parallel,
                    use_distributed_optimizer=distributed_optimizer,
                    recompute_granularity="full" if recompute == "block" else recompute,
                    recompute_method="block" if recompute == "block" else "uniform",
                    overlap_p2p_communication=space.overlap_p2p_communication,
                )
                # No rule looks at the optimizer, but one at the layers, and two at recomputation, of some trainings.
                granularity = config.recompute_granularity if looks_at_recomputation else None
                is_split = layers(instance.model, instance.training, config) is None
                deciding = mbs, chunks, sequence_parallel, ep, etp, granularity, None if is_split else split
                if deciding not in illegal:
                    illegal[deciding] = {
                        **broken_rules(instance.model, instance.training, config),
                        **beyond_limits(space, config),
                    }
                broken = illegal[deciding]
                if (ep, etp) not in packings:
                    packings[ep, etp] = _packing(instance, config)
                yield overlap_choices(space, config), broken | packings[ep, etp]


def overlap_choices(space: SearchSpace, config: ParallelConfig) -> list[ParallelConfig]:
    """The configuration with each choice of what is sent beside compute."""
    something = config.data_parallel_size * config.context_parallel_size > 1
    reduce, gather = space.overlap_grad_reduce, space.overlap_param_gather
    reduces = ((False, True) if something else (False,)) if reduce is None else (reduce,)
    gathers = ((False, True) if something else (False,)) if gather is None else (gather,)
    if gather and reduce is None:
        reduces = (True,)
    pairs = dict.fromkeys(
        (one, other and one and config.use_distributed_optimizer) for one in reduces for other in gathers
    )
    return [
        config
        if not one
        else with_overlap(config, grad_reduce=True, param_gather=other, ddp_bucket_size=space.ddp_bucket_size)
        for one, other in pairs
    ]


def _degrees(space: SearchSpace, num_gpus: int, per_host: int) -> Iterator[_Degrees]:
    """Splits of the GPUs, in ascending order; pinned degrees that do not fit come with the refusal."""
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
    """Context-parallel sizes to try with a tensor size: with it inside a host, and 1 in any case."""
    if space.context_parallel is not None:
        return space.context_parallel
    together = _divisors(per_host // tp) if per_host % tp == 0 else (1,)
    return tuple(cp for cp in together if num_gpus % (tp * cp) == 0) or (1,)


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


def _chunk_refusal(chunks: int, pp: int) -> str | None:
    """Interleaving needs a pipeline (``initialize_model_parallel``)."""
    if chunks > 1 and pp == 1:
        return f"virtual_pipeline_model_parallel_size={chunks} needs pipeline_model_parallel_size >= 2, got 1"
    return None


def _splits(instance: Instance, space: SearchSpace, pp: int, chunks: int) -> list[tuple[LayerSplit, str | None]]:
    """Layers of the stages, each with the layout of its chunks where these are unequal."""
    if space.layers_per_stage is None:
        usual = layer_splits(instance.model.num_layers, pp, chunks, space.uneven_layers)
        more = (split for split in space.more_splits if len(split) == pp and fit_chunks(split, chunks))
        alike = list(dict.fromkeys((*usual, *more)))
    else:
        alike = [split for split in space.layers_per_stage if len(split) == pp and fit_chunks(split, chunks)]
    found: list[tuple[LayerSplit, str | None]] = [(split, None) for split in alike]
    for layout in space.more_layouts:
        if len(layout_parts(layout)) == pp * chunks:
            held = layout_layers(layout, pp)
            is_unequal = len(set(map(tuple, held))) > 1
            found.append((tuple(map(sum, zip(*held, strict=True))), layout if is_unequal else None))
    return list(dict.fromkeys(found))


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


def _distributed_optimizer(space: SearchSpace, degrees: _Degrees) -> tuple[bool, ...]:
    if space.use_distributed_optimizer is not None:
        return space.use_distributed_optimizer
    return (degrees.dp * degrees.cp > 1,)


def _expert_degrees(instance: Instance, space: SearchSpace, degrees: _Degrees) -> list[tuple[int, int | None]]:
    """
    Expert parallel size and tensor size of experts; ``None`` where that is Megatron-Core's default, the tensor size.

    Given sizes are taken as they are, the legality rules say what is wrong with them.
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
    """The grid of stages and replicas is tiled by hosts in a way that the launcher can express."""
    gpus_per_node = instance.cluster.gpus_per_node
    slot = config.tensor_model_parallel_size * config.context_parallel_size
    if instance.model.num_experts is not None and slot > gpus_per_node:
        return {"packing": f"groups of {slot} GPUs of a model with experts span hosts of {gpus_per_node} GPUs"}
    if any(True for _ in node_blocks(config, gpus_per_node, instance.launcher)):
        return {}
    grid = f"{config.pipeline_model_parallel_size} x {config.data_parallel_size} groups of {slot} GPUs"
    return {"packing": f"{grid} do not pack onto hosts of {gpus_per_node} GPUs with launcher {instance.launcher}"}


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(part for part in range(1, number + 1) if number % part == 0)
