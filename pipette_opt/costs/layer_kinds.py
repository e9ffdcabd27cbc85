"""
Layers of a configuration by what they do: with or without experts, recomputed in the backward pass or not.

All layers of a kind take the same time. Block recomputation alone mixes layers that are recomputed with layers that
keep their activations; each of the two is as in a configuration that treats all layers so.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import IntArray, read_only
from pipette_opt.costs.experts import REMEMBERED, moe_layers
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec


class LayerKind(NamedTuple):
    """
    Layers that take the same time.

    Parameters
    ----------
    config
        The configuration if all its layers were recomputed, or not, as these are: it says what one of them takes.
    has_experts
        Whether the layers have experts.
    layers
        How many each chunk of each stage has, shape ``(num_chunks, pp)``.
    """

    config: ParallelConfig
    has_experts: bool
    layers: IntArray

    @property
    def is_recomputed(self) -> bool:
        """Whether the backward pass begins with the whole forward pass."""
        return self.config.recompute_granularity == "full"


def pure_configs(config: ParallelConfig) -> tuple[ParallelConfig, ...]:
    """The configuration; with block recomputation the one that recomputes nothing, and the one that does it all."""
    if config.recomputation != "block":
        return (config,)
    alike = replace(config, recompute_method="uniform", recompute_num_layers=1)
    return replace(alike, recompute_granularity=None), alike


@lru_cache(maxsize=REMEMBERED)
def layer_kinds(model: ModelSpec, config: ParallelConfig) -> tuple[LayerKind, ...]:
    """Every kind that some chunk has; layers without experts first, and of each sort the recomputed ones last."""
    with_experts = moe_layers(model, config)
    dense = np.array(config.layers_per_chunk, dtype=np.int64) - with_experts
    recomputed = np.array(config.recomputed_per_chunk, dtype=np.int64)
    # A chunk's first layers are recomputed, its last ones have experts.
    again = np.minimum(recomputed, dense)
    found = []
    for has_experts, all_of_them, repeated in ((False, dense, again), (True, with_experts, recomputed - again)):
        pure = pure_configs(config)
        counts = (all_of_them,) if len(pure) == 1 else (all_of_them - repeated, repeated)
        found += [
            LayerKind(one, has_experts, read_only(layers, np.int64)) for one, layers in zip(pure, counts, strict=True)
        ]
    return tuple(kind for kind in found if kind.layers.any())
