"""
A model as a list of layers: of which kind each is, and how many of each kind some consecutive layers have.

A layer mixes tokens, and has an MLP, or one of both. Everything that counts layers asks for the counts of each kind
from one layer to another, which are differences of two sums.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from pipette_opt.base.types import IntArray, read_only

Mixer = Literal["attention", "windowed_attention", "mamba", "gated_delta_net", "latent_attention", "none"]
"""What mixes the tokens of a layer."""

Mlp = Literal["dense", "experts", "none"]
"""What comes after it: a dense MLP, or routed experts with shared ones beside them."""

LayerFrequency = int | tuple[int, ...] | None
"""Which layers do something: every N-th in Megatron's way, or 0 and 1 for each layer; ``None`` for all the same."""

MAX_LEADING = 6
"""
Largest number of first layers outside of a model's pattern; public models have three at most. Chosen, as the joint
model has ``2^(n - 1)`` times as many families.
"""


class LayerKind(NamedTuple):
    """
    Layers that take the same time and memory.

    Parameters
    ----------
    rotary
        Whether queries and keys are rotated by their position.
    """

    mixer: Mixer = "attention"
    mlp: Mlp = "dense"
    rotary: bool = False

    @property
    def has_attention(self) -> bool:
        """Whether the layer has attention of queries to keys, windowed or not."""
        return self.mixer in ("attention", "windowed_attention", "latent_attention")

    @property
    def has_experts(self) -> bool:
        """Whether the layer has routed experts."""
        return self.mlp == "experts"


Layers = tuple[LayerKind, ...]
"""The layers of a model, first to last."""


@lru_cache(maxsize=256)
def layers_of(
    num_layers: int,
    rotary: bool,
    no_rope: LayerFrequency,
    windowless: LayerFrequency,
    experts: LayerFrequency,
    num_dense_layers: int,
    attention: Mixer = "attention",
    chunked: bool = False,
    linear: LayerFrequency = None,
) -> Layers:
    """
    The kind of each layer of a model whose layers all have attention and an MLP.

    Parameters
    ----------
    windowless
        As ``window_attn_skip_freq``, 0 for no such layer; ``None`` for a model without windows.
    experts
        As ``moe_layer_freq``; ``None`` for a dense model.
    attention
        Of layers without a window.
    chunked
        Whether layers with rotary positions attend to a chunk of the sequence only.
    linear
        As ``linear_attention_freq``.
    """
    found = []
    for layer in range(num_layers):
        place = layer + 1
        windowed = (
            windowless[layer] if isinstance(windowless, tuple) else windowless == 0 or place % (windowless or place)
        )
        unrotated = no_rope[layer] if isinstance(no_rope, tuple) else no_rope and place % no_rope == 0
        windowed = windowed or (chunked and not unrotated)
        has_experts = experts[layer] if isinstance(experts, tuple) else experts and layer % experts == 0
        mlp: Mlp = "experts" if has_experts and layer >= num_dense_layers else "dense"
        if linear[layer] if isinstance(linear, tuple) else linear and place % linear:
            found.append(LayerKind("gated_delta_net", mlp))
        else:
            mixer: Mixer = "windowed_attention" if windowed else attention
            found.append(LayerKind(mixer, mlp, rotary and not unrotated))
    return tuple(found)


PATTERN_LETTERS = "MG*-E"
"""Letters of Megatron-Core's hybrid patterns (``core/ssm/mamba_hybrid_layer_allocation.py``)."""


@lru_cache(maxsize=256)
def layers_of_pattern(pattern: str, rotary: bool) -> Layers:
    """The kind of each layer of a hybrid, by its letter."""
    kinds = {
        "M": LayerKind("mamba", "none"),
        "G": LayerKind("gated_delta_net", "none"),
        "*": LayerKind("attention", "none", rotary),
        "-": LayerKind("none", "dense"),
        "E": LayerKind("none", "experts"),
    }
    return tuple(kinds[letter] for letter in pattern)


def expert_frequency(with_experts: Sequence[bool]) -> tuple[int, LayerFrequency]:
    """``num_dense_layers`` and ``moe_layer_freq`` of layers of which some have experts, as briefly as possible."""
    dense = list(with_experts).index(True)
    if all(with_experts[dense:]):
        return dense, None
    for every in range(2, len(with_experts) + 1):
        if all(flag is (layer % every == 0) for layer, flag in enumerate(with_experts)):
            return 0, every
    return dense, tuple(int(flag) for flag in with_experts)


class Pattern(NamedTuple):
    """
    How a list of layers repeats itself: layer ``i`` is of the kind of ``i + period``, for all ``i >= leading``.

    A list without a period is its own: ``period`` is its length.
    """

    leading: int
    period: int


@lru_cache(maxsize=256)
def pattern_of(layers: Layers) -> Pattern:
    """The pattern with the fewest layers in which leading layers and period come together, leading ones few."""
    number = {kind: index for index, kind in enumerate(dict.fromkeys(layers))}
    codes = np.array([number[kind] for kind in layers])
    found = Pattern(0, len(codes))
    for period in range(1, len(codes)):
        breaks = np.flatnonzero(codes[period:] != codes[:-period])
        leading = int(breaks[-1]) + 1 if len(breaks) else 0
        if leading <= MAX_LEADING and (period == 1 or leading + period < sum(found)):
            found = Pattern(leading, period)
    return found


@lru_cache(maxsize=256)
def layers_before(layers: Layers, length: int) -> Mapping[LayerKind, IntArray]:
    """
    Layers of each kind before each of ``length`` layers, and before the end; shape ``(length + 1,)`` for each kind.

    Kinds in the order in which they come first. Layers beyond the last one go on as the pattern does.
    """
    period = pattern_of(layers).period
    index = np.arange(length)
    inside = np.where(index < len(layers), index, len(layers) - period + (index - len(layers)) % period)
    number = {kind: index for index, kind in enumerate(dict.fromkeys(layers))}
    codes = np.array([number[kind] for kind in layers])[inside]
    counts = {kind: np.concatenate([[0], np.cumsum(codes == one)]) for kind, one in number.items()}
    return MappingProxyType({kind: read_only(one, np.int64) for kind, one in counts.items()})


def layer_at(layers: Layers, place: int) -> LayerKind:
    """The kind of a layer; beyond the last one as the pattern goes on."""
    if place < len(layers):
        return layers[place]
    period = pattern_of(layers).period
    return layers[len(layers) - period + (place - len(layers)) % period]


def count_layers(layers: Layers, starts: IntArray, ends: IntArray) -> dict[LayerKind, IntArray]:
    """
    Layers of each kind from each start to each end, of one shape; only kinds that the model has, in its order.

    Ends beyond the last layer count as its pattern goes on.
    """
    most = max(int(np.max(ends, initial=0)), len(layers))
    before = layers_before(layers, -(-most // len(layers)) * len(layers))
    return {kind: one[ends] - one[starts] for kind, one in before.items()}
