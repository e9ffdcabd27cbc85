"""
Layers of a configuration by what they do: of which kind they are, recomputed in the backward pass or not.

All layers of a kind take the same time. Block recomputation alone mixes layers that are recomputed with layers that
keep their activations; each of the two is as in a configuration that treats all layers so.
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
"""Configurations whose layers and parameters are remembered, as calibration asks for the same ones again and again."""


class CountedLayers(NamedTuple):
    """
    Layers that take the same time.

    Parameters
    ----------
    kind
        Of which kind they are.
    config
        The configuration if all its layers were recomputed, or not, as these are: it says what one of them takes.
    layers
        How many each chunk of each stage has, shape ``(num_chunks, pp)``.
    """

    kind: LayerKind
    config: ParallelConfig
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
def layers_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """Layers of each kind in each chunk of each stage, shape ``(num_chunks, pp)``, multi-token prediction apart."""
    of_chunk = np.array(config.layers_per_chunk, dtype=np.int64)
    return _counted(model, of_chunk, of_chunk)


@lru_cache(maxsize=REMEMBERED)
def held_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """The same of all layers with weights: those of multi-token prediction are on the last chunk of the last stage."""
    return with_depths(model, layers_of_kinds(model, config), model.held_depths)


def with_depths(model: ModelSpec, layers: Mapping[LayerKind, IntArray], depths: int) -> Mapping[LayerKind, IntArray]:
    """Layers of each kind, and on the last chunk of the last stage those of so many depths of prediction."""
    found = dict(layers)
    for kind in model.depth_layers if depths else ():
        last = np.zeros_like(found[kind])
        last[-1, -1] = depths
        found[kind] = read_only(found[kind] + last, np.int64)
    return MappingProxyType(found)


def _counted(model: ModelSpec, of_chunk: IntArray, first: IntArray) -> Mapping[LayerKind, IntArray]:
    """Kinds of the first layers of each chunk, so many of each."""
    starts = np.cumsum(of_chunk.ravel()).reshape(of_chunk.shape) - of_chunk
    counts = count_layers(model.layers, starts, starts + first)
    return MappingProxyType({kind: read_only(one, np.int64) for kind, one in counts.items()})


@lru_cache(maxsize=REMEMBERED)
def recomputed_of_kinds(model: ModelSpec, config: ParallelConfig) -> Mapping[LayerKind, IntArray]:
    """Layers of each kind that are recomputed whole, the first ones of each chunk, same shape."""
    return _counted(model, np.array(config.layers_per_chunk), np.array(config.recomputed_per_chunk))


@lru_cache(maxsize=REMEMBERED)
def counted_layers(model: ModelSpec, config: ParallelConfig) -> tuple[CountedLayers, ...]:
    """
    Every kind that some chunk has, of each kind the recomputed layers last.

    A layer of multi-token prediction counts as often as there are depths, and is not recomputed by blocks
    (``MultiTokenPredictionLayer._checkpointed_forward``).
    """
    pure, found = pure_configs(config), []
    recomputed = recomputed_of_kinds(model, config)
    for kind, layers in with_depths(model, layers_of_kinds(model, config), model.mtp_num_layers).items():
        counts = (layers,) if len(pure) == 1 else (layers - recomputed[kind], recomputed[kind])
        found += [CountedLayers(kind, one, read_only(count, np.int64)) for one, count in zip(pure, counts, strict=True)]
    return tuple(one for one in found if one.layers.any())
