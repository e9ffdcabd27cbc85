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
    NodeBlock,
    Placement,
    block_placement,
    gpus_of_a_host,
    identity_placement,
    node_blocks,
    ranks_of_a_host,
    ring_members,
)
from pipette_opt.parallel.ranks import RankGrid

__all__ = [
    "OVERLAPS",
    "Batch",
    "NodeBlock",
    "ParallelConfig",
    "Placement",
    "RankGrid",
    "block_placement",
    "fit_chunks",
    "gpus_of_a_host",
    "identity_placement",
    "microbatches_of",
    "node_blocks",
    "ranks_of_a_host",
    "ring_members",
    "with_offload",
    "with_overlap",
    "with_tensor_overlap",
    "with_whole_layers",
    "without_overlap",
    "without_recomputation",
]
