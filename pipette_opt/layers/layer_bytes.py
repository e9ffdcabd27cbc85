"""Bytes of a layer on one rank: kept for its backward pass, restored by recomputation, and at work in the pass."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.layers.branch import Branch, Kept, OnRank, Work


class LayerBytes(NamedTuple):
    """
    Bytes of a layer and a micro-batch; numbers, or arrays with a number for each configuration.

    Parameters
    ----------
    whole
        Tensors of the backward pass.
    kept
        Tensors that selective recomputation leaves.
    restored
        Tensors that one selective recomputation brings back.
    mixer_work, mlp_work
        Largest working memory of the backward pass of each branch beyond kept bytes; the MLP's pass is the first.
    """

    whole: Any
    kept: Any
    restored: Any
    mixer_work: Any
    mlp_work: Any


def layer_bytes(branches: Sequence[Branch], rank: OnRank, again: Mapping[str, Any]) -> LayerBytes:
    """
    Return the bytes of a layer.

    Parameters
    ----------
    again
        Whether each module is recomputed; modules that never are may be absent.
    """
    whole, freed, restored = 0.0, 0.0, 0.0
    for branch in branches:
        tensors = [(tensor, _freed(tensor, again)) for tensor in branch.kept(rank)]
        whole = whole + sum(tensor.size for tensor, _ in tensors)
        freed = freed + sum(size for _, size in tensors)
        restored = np.maximum(restored, sum(size for tensor, size in tensors if not tensor.in_work))
    work = {branch.core is None: branch.work(rank) for branch in branches}
    mixer, mlp = (work.get(is_mlp, Work()) for is_mlp in (False, True))
    gradient = branches[0].gradient_bytes(rank)
    return LayerBytes(
        whole=whole,
        kept=whole - freed,
        restored=restored,
        mixer_work=gradient + np.maximum(mixer.peak - mlp.freed, 0.0),
        mlp_work=gradient + mlp.peak,
    )


def _freed(tensor: Kept, again: Mapping[str, Any]) -> Any:
    """Return the bytes of tensors that the recomputed modules free."""
    masks = [again[module] for module in tensor.freed_by if module in again]
    return reduce(np.logical_or, masks) * tensor.size if masks else 0.0
