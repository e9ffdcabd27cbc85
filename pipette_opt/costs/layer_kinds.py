"""
Layers of a configuration counted by type, and by whether they are recomputed in the backward pass.

All layers of a type take equally long. Only block recomputation mixes layers that are recomputed with layers that keep
their activations. Each layer then counts as in a configuration that recomputes all layers, or none.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import IntArray, read_only
from pipette_opt.layers.kinds import count_layers
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import LayerKind, ModelSpec

REMEMBERED = 4096
"""Number of configurations whose layers and parameters are cached, as calibration asks for them repeatedly. Chosen."""


class CountedLayers(NamedTuple):
    """
    Layers that take equally long.

    Parameters
    ----------
    config
        Uniform copy of the configuration with the recomputation of these layers; used to price one of them.
    layers
        Number of such layers in each chunk of each stage, shape ``(num_chunks, pp)``.
    """

    kind: LayerKind
    config: ParallelConfig
    layers: IntArray

    @property
    def is_recomputed(self) -> bool:
        """Return whether the backward pass of these layers starts with the whole forward pass."""
        return self.config.recompute_granularity == "full"


def pure_configs(config: ParallelConfig) -> tuple[ParallelConfig, ...]:
    """Return ``(config,)``; with block recomputation, copies that recompute no layer and all layers."""
    if config.recomputation != "block":
        return (config,)
    alike = replace(config, recompute_method="uniform", recompute_num_layers=1)
    return replace(alike, recompute_granularity=None), alike


@lru_cache(maxsize=REMEMBERED)
def layers_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """
    Return the number of layers of each type in each chunk of each stage, shape ``(num_chunks, pp)``.

    Multi-token-prediction layers are left out.
    """
    of_chunk = np.array(config.layers_per_chunk, dtype=np.int64)
    return _counted(model, of_chunk, of_chunk)


@lru_cache(maxsize=REMEMBERED)
def held_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """
    Return the number of layers of each type that have weights, shape ``(num_chunks, pp)``.

    Multi-token-prediction layers count in the last chunk.
    """
    return with_mtp_layers(model, layers_of_kinds(model, config), model.num_own_mtp_layers)


def with_mtp_layers(
    model: ModelSpec, layers: Mapping[LayerKind, IntArray], num_mtp_layers: int
) -> Mapping[LayerKind, IntArray]:
    """Return the layers with ``num_mtp_layers`` prediction layers of each type added to the last chunk."""
    found = dict(layers)
    for kind in model.mtp_layers if num_mtp_layers else ():
        last = np.zeros_like(found[kind])
        last[-1, -1] = num_mtp_layers
        found[kind] = read_only(found[kind] + last, np.int64)
    return MappingProxyType(found)


def _counted(model: ModelSpec, of_chunk: IntArray, first: IntArray) -> Mapping[LayerKind, IntArray]:
    """Return the number of layers of each type among the first ``first`` layers of each chunk."""
    starts = np.cumsum(of_chunk.ravel()).reshape(of_chunk.shape) - of_chunk
    counts = count_layers(model.layers, starts, starts + first)
    return MappingProxyType({kind: read_only(count, np.int64) for kind, count in counts.items()})


@lru_cache(maxsize=REMEMBERED)
def recomputed_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """Return the entirely recomputed layers of each type, shape ``(num_chunks, pp)``: the first of each chunk."""
    return _counted(model, np.array(config.layers_per_chunk), np.array(config.recomputed_per_chunk))


@lru_cache(maxsize=REMEMBERED)
def counted_layers(model: ModelSpec, config: ParallelConfig) -> tuple[CountedLayers, ...]:
    """
    Return every type of layer that a chunk holds, recomputed layers of each type last.

    Block recomputation never recomputes multi-token-prediction layers
    (``MultiTokenPredictionLayer._checkpointed_forward``).
    """
    pure, found = pure_configs(config), []
    recomputed = recomputed_of_kinds(model, config)
    for kind, layers in with_mtp_layers(model, layers_of_kinds(model, config), model.mtp_num_layers).items():
        counts = (layers,) if len(pure) == 1 else (layers - recomputed[kind], recomputed[kind])
        found += [CountedLayers(kind, alike, read_only(n, np.int64)) for alike, n in zip(pure, counts, strict=True)]
    return tuple(counted for counted in found if counted.layers.any())
