"""What we decide: the parallel configuration, and which GPU each rank gets."""

from pipette_opt.parallel.chunks import fit_chunks
from pipette_opt.parallel.config import ParallelConfig
from pipette_opt.parallel.placement import NodeBlock, Placement, block_placement, identity_placement, node_blocks
from pipette_opt.parallel.ranks import RankGrid

__all__ = [
    "NodeBlock",
    "ParallelConfig",
    "Placement",
    "RankGrid",
    "block_placement",
    "fit_chunks",
    "identity_placement",
    "node_blocks",
]
