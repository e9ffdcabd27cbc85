"""
Parameters and optimizer states that each GPU must load when a running job changes to another plan.

A GPU that stays in the job keeps its parameters, but may need others under the new plan. Counted are the bytes that the
GPU must read from a checkpoint or another GPU. Reasons are layers of another stage, another slice of the
tensor-parallel group, or another shard of the optimizer states.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import ceil

from pipette_opt.layers.parameters import RankParameters, rank_parameters
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid
from pipette_opt.specs import LayerKind, ModelSpec

PARAMETER_BYTES = 2
"""Bytes of a parameter in bf16 or fp16."""

OPTIMIZER_BYTES = 12
"""Bytes of optimizer state per parameter: the fp32 copy and Adam's two moments."""

Gpu = tuple[str, int]
"""Host name, and number of the GPU on the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """
    Part of the model that a rank holds.

    Parameters
    ----------
    layers
        Transformer layers, counted from 0.
    slice_of_layers
        Tensor-parallel rank and size; then, for experts, rank and size within the group of ranks that together hold
        every expert of a layer.
    embedding, head
        Whether the rank holds the embedding, and the output layer.
    optimizer
        Shard of the optimizer states: replica and number of replicas; (0, 1) if the states are not sharded.
    """

    layers: frozenset[int]
    slice_of_layers: tuple[int, int, int, int]
    embedding: bool
    head: bool
    optimizer: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """
    Bytes that one rank of the new plan must load.

    Parameters
    ----------
    was
        Rank of the old plan on the same GPU; ``None`` if the old plan did not use the GPU.
    layers
        Layers whose parameters the GPU lacks.
    parameter_bytes, optimizer_bytes
        Bytes of parameters and of optimizer states that the rank must load.
    """

    rank: int
    host: str
    local_rank: int
    stage: int
    was: int | None
    layers: tuple[int, ...]
    parameter_bytes: int
    optimizer_bytes: int


def layers_of_stages(config: ParallelConfig) -> list[tuple[int, ...]]:
    """
    Return the transformer layers of each stage, counted from 0.

    With interleaving, layers are assigned chunk by chunk over all stages (Narayanan et al., arXiv 2104.04473, section
    2.2).
    """
    found: list[list[int]] = [[] for _ in config.layers_per_stage]
    first = 0
    for chunk in config.layers_per_chunk:
        for stage, layers in enumerate(chunk):
            found[stage] += range(first, first + layers)
            first += layers
    return [tuple(layers) for layers in found]


def shards(config: ParallelConfig, coordinates: Sequence[Sequence[int]]) -> list[Shard]:
    """Return the part of the model that each rank holds; ``coordinates`` has (pp, dp, cp, tp) of each rank."""
    layers = [frozenset(of_stage) for of_stage in layers_of_stages(config)]
    last = config.pipeline_model_parallel_size - 1
    block, owners = (
        config.expert_tensor_size * config.expert_model_parallel_size,
        config.sharing_ranks * config.state_groups,
    )
    found = []
    for pp, dp, cp, tp in coordinates:
        replica = dp * config.context_parallel_size + cp
        place = (replica * config.tensor_model_parallel_size + tp) % block
        found.append(
            Shard(
                layers=layers[pp],
                slice_of_layers=(tp, config.tensor_model_parallel_size, place, block),
                embedding=pp == 0,
                head=pp == last,
                optimizer=(replica % owners, owners) if config.sharding_stage else (0, 1),
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """Configuration placed on hosts; ``placement.node`` holds indices into ``hosts``."""

    config: ParallelConfig
    placement: Placement
    hosts: Sequence[str]

    def held(self) -> dict[Gpu, tuple[int, int, Shard]]:
        """Return rank, stage and held part of the model of each GPU in use."""
        coordinates = RankGrid.of(self.config, self.placement.order).coordinates().tolist()
        places = zip(self.placement.node.tolist(), self.placement.local_rank.tolist(), strict=True)
        all_shards = shards(self.config, coordinates)
        return {
            (self.hosts[node], local_rank): (rank, coordinates[rank][0], all_shards[rank])
            for rank, (node, local_rank) in enumerate(places)
        }


def moves(old: Layout, new: Layout, model: ModelSpec) -> tuple[Move, ...]:
    """Return the bytes that ranks of the new layout must load, in rank order, without ranks that need nothing."""
    before, found = old.held(), []
    weigh = cache(partial(to_load, model=model))
    for (host, local_rank), (rank, stage, wanted) in new.held().items():
        was, _, had = before.get((host, local_rank), (None, None, None))
        lacking, parameters, states = weigh(had, wanted)
        if parameters or states:
            found.append(
                Move(
                    rank=rank,
                    host=host,
                    local_rank=local_rank,
                    stage=stage,
                    was=was,
                    layers=lacking,
                    parameter_bytes=PARAMETER_BYTES * parameters,
                    optimizer_bytes=OPTIMIZER_BYTES * states,
                )
            )
    return tuple(found)


def to_load(had: Shard | None, wanted: Shard, model: ModelSpec) -> tuple[tuple[int, ...], int, int]:
    """
    Return the layers that a GPU lacks, and the numbers of parameters and of optimizer states that the GPU must load.

    A different tensor-parallel slice is loaded whole. Megatron-Core's ``DistributedOptimizer`` shards one buffer of
    parameters for each stage. If the content of the stage or the shard differs, the whole shard is loaded.
    """
    known = had is not None and had.slice_of_layers == wanted.slice_of_layers
    lacking = tuple(sorted(wanted.layers - (had.layers if had is not None and known else frozenset())))
    embedding = wanted.embedding and not (had is not None and known and had.embedding)
    head = wanted.head and not (had is not None and known and had.head)
    parameters = _parameters(lacking, embedding, head, wanted, model)
    if wanted.optimizer[1] == 1:
        same_kind = had is not None and had.optimizer[1] == 1
        states = parameters if same_kind else _all_parameters(wanted, model)
    elif had is not None and not parameters and had.layers == wanted.layers and had.optimizer == wanted.optimizer:
        states = 0
    else:
        states = _owned_states(wanted, model)
    return lacking, parameters, states


def hosts_that_load(found: Sequence[Move]) -> Mapping[str, list[Move]]:
    """Return the moves that load parameters, grouped by host."""
    by_host: dict[str, list[Move]] = {}
    for move in found:
        if move.parameter_bytes:
            by_host.setdefault(move.host, []).append(move)
    return by_host


def _all_parameters(shard: Shard, model: ModelSpec) -> int:
    return _parameters(tuple(shard.layers), shard.embedding, shard.head, shard, model)


def _owned_states(shard: Shard, model: ModelSpec) -> int:
    """Return the optimizer states in a rank's shard. Expert states are sharded among ranks with equal experts."""
    _, tensor, _, block = shard.slice_of_layers
    replicas, experts = shard.optimizer[1], _expert_parameters(tuple(shard.layers), shard.head, shard, model)
    same_experts = max(replicas * tensor // block, 1)
    return -(-(_all_parameters(shard, model) - experts) // replicas) - (-experts // same_experts)


def _kinds(layers: Sequence[int], head: bool, model: ModelSpec) -> tuple[LayerKind, ...]:
    """Return the kinds of the given layers; with ``head`` also the kinds of the multi-token prediction layers."""
    return *(model.layers[layer] for layer in layers), *(head * model.num_own_mtp_layers * model.mtp_layers)


def _expert_parameters(layers: Sequence[int], head: bool, shard: Shard, model: ModelSpec) -> int:
    """Return the number of routed-expert parameters that a rank holds in the given layers."""
    experts = _parts(shard, model).experts
    return sum(ceil(experts[kind]) for kind in _kinds(layers, head, model))


def _parameters(layers: Sequence[int], embedding: bool, head: bool, shard: Shard, model: ModelSpec) -> int:
    """Return the number of parameters that a rank holds in the given layers, and in embedding and head if asked for."""
    parts = _parts(shard, model)
    own: int = sum(ceil(parts.layers[kind]) for kind in _kinds(layers, head, model))
    ends: int = embedding * ceil(parts.embeddings) + head * ceil(parts.head)
    return own + ends + _expert_parameters(layers, head, shard, model)


def _parts(shard: Shard, model: ModelSpec) -> RankParameters:
    """Return the parameters of each part of the model on the rank of a shard."""
    _, tensor, _, block = shard.slice_of_layers
    return rank_parameters(model, tensor, 1 if shard.embedding else 2, block)
