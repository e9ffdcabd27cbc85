"""
Layer kinds of a model: which kind each layer has, and how many layers of each kind a range of layers holds.

A layer has a branch that mixes tokens (such as attention), an MLP, or both. Code that counts layers counts them per
kind.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from pipette_opt.base.types import IntArray, read_only
from pipette_opt.layers.recurrent import RECURRENT_MIXERS

Mixer = str
"""Branch of a layer that mixes tokens: a row of ``MIXERS`` (``layers/branches.py``), or ``none``."""

Mlp = Literal["dense", "experts", "none"]
"""MLP of a layer: dense, or routed experts (with or without shared experts)."""

LayerFrequency = int | tuple[int, ...] | None
"""Selection of layers: every N-th by Megatron's rule, or 0 or 1 for each; ``None`` if all layers are alike."""

MAX_LEADING = 6
"""
Most leading layers that may differ from a model's repeating pattern; public models have at most three.

Chosen: n leading layers give the joint CP-SAT model ``2^(n - 1)`` times as many groups of configurations.
"""


class LayerKind(NamedTuple):
    """
    Kind of layer: layers of one kind take the same time and memory.

    Parameters
    ----------
    rotary
        Whether queries and keys have rotary positions.
    """

    mixer: Mixer = "attention"
    mlp: Mlp = "dense"
    rotary: bool = False

    @property
    def has_attention(self) -> bool:
        """Return whether the layer has softmax attention, windowed or not."""
        return self.mixer.endswith("attention")

    @property
    def has_experts(self) -> bool:
        """Return whether the layer has routed experts."""
        return self.mlp == "experts"


Layers = tuple[LayerKind, ...]
"""Kind of each layer of a model, first to last."""


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
    Return the kind of each layer of a model whose layers all mix tokens and have an MLP.

    Parameters
    ----------
    windowless
        Layers without a window, as in ``window_attn_skip_freq``; 0 if no layer is, ``None`` for a model without
        windows.
    experts
        Layers with experts, as in ``moe_layer_freq``; ``None`` for a dense model.
    attention
        Mixer of layers without a window.
    chunked
        Whether layers with rotary positions attend only within a chunk of the sequence.
    linear
        Layers with a gated delta net, as in ``linear_attention_freq``.
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


PATTERN_LETTERS = "".join(mixer.letter for mixer in RECURRENT_MIXERS.values()) + "*-E"
"""Letters of Megatron-Core's hybrid patterns (``core/ssm/mamba_hybrid_layer_allocation.py``)."""


@lru_cache(maxsize=256)
def layers_of_pattern(pattern: str, rotary: bool) -> Layers:
    """Return the kind of each layer of a hybrid model, given by one letter per layer."""
    kinds = {mixer.letter: LayerKind(name, "none") for name, mixer in RECURRENT_MIXERS.items()} | {
        "*": LayerKind("attention", "none", rotary),
        "-": LayerKind("none", "dense"),
        "E": LayerKind("none", "experts"),
    }
    return tuple(kinds[letter] for letter in pattern)


def expert_frequency(with_experts: Sequence[bool]) -> tuple[int, LayerFrequency]:
    """Return the shortest ``num_dense_layers`` and ``moe_layer_freq`` that describe which layers have experts."""
    dense = list(with_experts).index(True)
    if all(with_experts[dense:]):
        return dense, None
    for every in range(2, len(with_experts) + 1):
        if all(flag is (layer % every == 0) for layer, flag in enumerate(with_experts)):
            return 0, every
    return dense, tuple(int(flag) for flag in with_experts)


class Pattern(NamedTuple):
    """
    Repetition in a list of layers: layers ``i`` and ``i + period`` have the same kind for all ``i >= leading``.

    If nothing repeats, ``period`` is the length of the list.
    """

    leading: int
    period: int


@lru_cache(maxsize=256)
def pattern_of(layers: Layers) -> Pattern:
    """Return the repetition with the smallest ``leading + period``, with at most ``MAX_LEADING`` leading layers."""
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
    Return the number of layers of each kind before layer 0, 1, ..., ``length``; shape ``(length + 1,)`` for each kind.

    Kinds are ordered by first appearance. Layers beyond the model's last one continue its repeating pattern.
    """
    period = pattern_of(layers).period
    index = np.arange(length)
    inside = np.where(index < len(layers), index, len(layers) - period + (index - len(layers)) % period)
    number = {kind: index for index, kind in enumerate(dict.fromkeys(layers))}
    codes = np.array([number[kind] for kind in layers])[inside]
    counts = {kind: np.concatenate([[0], np.cumsum(codes == index)]) for kind, index in number.items()}
    return MappingProxyType({kind: read_only(sums, np.int64) for kind, sums in counts.items()})


def count_layers(layers: Layers, starts: IntArray, ends: IntArray) -> dict[LayerKind, IntArray]:
    """
    Return the number of layers of each kind in ``[starts, ends)``, elementwise; only kinds that the model has, in its
    order.

    Layers beyond the last one continue the model's repeating pattern.
    """
    most = max(int(np.max(ends, initial=0)), len(layers))
    before = layers_before(layers, -(-most // len(layers)) * len(layers))
    return {kind: sums[ends] - sums[starts] for kind, sums in before.items()}
