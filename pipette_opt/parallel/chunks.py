"""
Transformer layers of each model chunk with interleaving, as Megatron-Core 0.16 divides them.

Either all chunks of a stage are equal. Or the embedding counts as a layer of the very first chunk, and the output head
as a layer of the very last (``account_for_embedding_in_pipeline_split``, ``account_for_loss_in_pipeline_split``). All
stages must then have the same count, and these two chunks hold one transformer layer less, perhaps none
(``get_num_layers_to_build`` in ``megatron/core/transformer/transformer_block.py``, whose ``TransformerBlock`` may be
empty). Other unequal stages are refused (``TransformerConfig.__post_init__``).
"""

from collections.abc import Sequence
from functools import lru_cache

from pipette_opt.base.units import ceil_div


def missing_layers(layers_per_stage: Sequence[int], num_chunks: int) -> tuple[int, ...]:
    """Return the layers that each stage is short of ``num_chunks`` equal chunks, shape ``(pp,)``."""
    return tuple(-layers % num_chunks for layers in layers_per_stage)


@lru_cache(maxsize=1 << 14)
def fit_chunks(layers_per_stage: tuple[int, ...], num_chunks: int) -> bool:
    """
    Return whether Megatron-Core can divide these stages into ``num_chunks`` chunks.

    True if each stage divides into equal chunks, or if all stages do once embedding or output head count as a layer.
    """
    missing = missing_layers(layers_per_stage, num_chunks)
    if not any(missing):
        return True
    counted = {layers + lacks for layers, lacks in zip(layers_per_stage, missing, strict=True)}
    return len(counted) == 1 and not any(missing[1:-1]) and max(missing) == 1


def deal_layers(layers_per_stage: Sequence[int], num_chunks: int) -> tuple[tuple[int, ...], ...]:
    """Return the layers of each stage's chunks, shape ``(num_chunks, pp)``; the stages must pass :func:`fit_chunks`."""
    missing = missing_layers(layers_per_stage, num_chunks)
    held = [[ceil_div(layers, num_chunks) for layers in layers_per_stage] for _ in range(num_chunks)]
    held[0][0] -= missing[0]
    held[-1][-1] -= missing[-1]
    return tuple(map(tuple, held))
