"""
Layers of a configuration counted by kind, and by whether they are recomputed in the backward pass.

All layers of a kind take equally long. Only block recomputation mixes layers that are recomputed with layers that keep
their activations; each of the two behaves as in a configuration that treats all layers alike.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import IntArray, read_only
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import LayerKind, ModelSpec
from pipette_opt.specs.layer_kinds import count_layers

REMEMBERED = 4096
"""Number of configurations whose layers and parameters are cached, as calibration asks for them repeatedly."""


class CountedLayers(NamedTuple):
    """
    Layers that take equally long.

    Parameters
    ----------
    kind
        Kind of the layers.
    config
        A uniform copy of the configuration with the same recomputation as these layers; used to price one of them.
    layers
        Number in each chunk of each stage, shape ``(num_chunks, pp)``.
    """

    kind: LayerKind
    config: ParallelConfig
    layers: IntArray

    @property
    def is_recomputed(self) -> bool:
        """Return whether the backward pass starts with the whole forward pass."""
        return self.config.recompute_granularity == "full"


def pure_configs(config: ParallelConfig) -> tuple[ParallelConfig, ...]:
    """
    Return the configuration; with block recomputation, one that recomputes nothing and one that recomputes
    all layers.
    """
    if config.recomputation != "block":
        return (config,)
    alike = replace(config, recompute_method="uniform", recompute_num_layers=1)
    return replace(alike, recompute_granularity=None), alike


@lru_cache(maxsize=REMEMBERED)
def layers_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """Layers of each kind in each chunk of each stage, shape ``(num_chunks, pp)``, without multi-token prediction."""
    of_chunk = np.array(config.layers_per_chunk, dtype=np.int64)
    return _counted(model, of_chunk, of_chunk)


@lru_cache(maxsize=REMEMBERED)
def held_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """
    Layers of each kind with weights, shape ``(num_chunks, pp)``; those of multi-token prediction are on the
    last chunk.
    """
    return with_mtp_layers(model, layers_of_kinds(model, config), model.held_depths)


def with_mtp_layers(
    model: ModelSpec, layers: Mapping[LayerKind, IntArray], num_mtp_layers: int
) -> Mapping[LayerKind, IntArray]:
    """Add ``num_mtp_layers`` multi-token-prediction layers of each kind to the last chunk of the last stage."""
    found = dict(layers)
    for kind in model.depth_layers if num_mtp_layers else ():
        last = np.zeros_like(found[kind])
        last[-1, -1] = num_mtp_layers
        found[kind] = read_only(found[kind] + last, np.int64)
    return MappingProxyType(found)


def _counted(model: ModelSpec, of_chunk: IntArray, first: IntArray) -> Mapping[LayerKind, IntArray]:
    """Count the kinds of the first ``first`` layers of each chunk."""
    starts = np.cumsum(of_chunk.ravel()).reshape(of_chunk.shape) - of_chunk
    counts = count_layers(model.layers, starts, starts + first)
    return MappingProxyType({kind: read_only(count, np.int64) for kind, count in counts.items()})


@lru_cache(maxsize=REMEMBERED)
def recomputed_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """Layers of each kind that are recomputed whole, the first ones of each chunk, shape ``(num_chunks, pp)``."""
    return _counted(model, np.array(config.layers_per_chunk), np.array(config.recomputed_per_chunk))


@lru_cache(maxsize=REMEMBERED)
def counted_layers(model: ModelSpec, config: ParallelConfig) -> tuple[CountedLayers, ...]:
    """
    Return every kind of layer in any chunk, with the recomputed layers of each kind last.
    Multi-token-prediction layers are never recomputed by blocks (``MultiTokenPredictionLayer._checkpointed_forward``).
    """
    pure, found = pure_configs(config), []
    recomputed = recomputed_of_kinds(model, config)
    for kind, layers in with_mtp_layers(model, layers_of_kinds(model, config), model.mtp_num_layers).items():
        counts = (layers,) if len(pure) == 1 else (layers - recomputed[kind], recomputed[kind])
        found += [CountedLayers(kind, alike, read_only(n, np.int64)) for alike, n in zip(pure, counts, strict=True)]
    return tuple(counted for counted in found if counted.layers.any())
