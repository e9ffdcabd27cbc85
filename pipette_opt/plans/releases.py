"""Releases of Megatron-Core that a configuration needs."""

from pipette_opt.base.units import counted
from pipette_opt.parallel import ParallelConfig

SHARED_GROUPS = "0.16"
"""
First release of Megatron-Core in which several tensor ranks share a key-value head.

``megatron/core/transformer/attention.py`` of core_v0.16.0; ``TransformerConfig`` of core_v0.15.3 refuses it.
"""


def release_words(config: ParallelConfig, num_query_groups: int) -> str:
    """Return the release of Megatron-Core that a configuration needs, and why; empty without such a need."""
    ranks = config.tensor_model_parallel_size
    if ranks <= num_query_groups:
        return ""
    heads = counted(num_query_groups, "key-value head")
    return f"Megatron-Core {SHARED_GROUPS} or later: {ranks} tensor ranks share {heads}"
