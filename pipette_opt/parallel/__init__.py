"""Choices that planning makes: the parallel configuration, and the GPU of each rank."""

from pipette_opt.parallel.chunks import fit_chunks
from pipette_opt.parallel.config import (
    OVERLAPS,
    ParallelConfig,
    with_offload,
    with_overlap,
    with_tensor_overlap,
    with_whole_layers,
    without_overlap,
    without_recomputation,
)
from pipette_opt.parallel.microbatches import Batch, microbatches_of
from pipette_opt.parallel.placement import (
    HostTile,
    Placement,
    gpus_of_a_host,
    grid_by_rank,
    host_tiles,
    hosts_by_rank,
    identity_placement,
    ranks_of_a_host,
    ring_members,
    tile_placement,
)
from pipette_opt.parallel.ranks import RankGrid

__all__ = [
    "OVERLAPS",
    "Batch",
    "HostTile",
    "ParallelConfig",
    "Placement",
    "RankGrid",
    "tile_placement",
    "fit_chunks",
    "gpus_of_a_host",
    "grid_by_rank",
    "hosts_by_rank",
    "identity_placement",
    "microbatches_of",
    "host_tiles",
    "ranks_of_a_host",
    "ring_members",
    "with_offload",
    "with_overlap",
    "with_tensor_overlap",
    "with_whole_layers",
    "without_overlap",
    "without_recomputation",
]
