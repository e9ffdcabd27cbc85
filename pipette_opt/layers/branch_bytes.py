"""Bytes of a branch of a layer on one rank: kept for its backward pass, restored by recomputation, and at work."""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.layers.adapters import adapter_kept, needed
from pipette_opt.layers.branch import BY_OPERATION, Branch, Kept, OnRank


class BranchBytes(NamedTuple):
    """
    Bytes of a branch and a micro-batch; numbers, or arrays with a number for each configuration.

    Parameters
    ----------
    whole
        Tensors of the backward pass.
    kept
        Tensors that selective recomputation leaves.
    restored
        Tensors that one selective recomputation brings back.
    work, gone
        Working memory of the backward pass beyond kept bytes, and bytes that are free after it.
    """

    whole: Any = 0.0
    kept: Any = 0.0
    restored: Any = 0.0
    work: Any = 0.0
    gone: Any = 0.0


def branch_bytes(branch: Branch, rank: OnRank, again: Mapping[str, Any]) -> BranchBytes:
    """
    Return the bytes of a branch.

    Parameters
    ----------
    again
        Whether each module is recomputed, or each operation; those that never are may be absent.
    """
    tensors = [tensor for tensor in branch.kept(rank) if needed(branch, tensor)]
    tensors += adapter_kept(branch, rank)
    work = branch.work(rank)
    whole = sum(tensor.size for tensor in tensors)
    freed = [(tensor, _freed(tensor, again)) for tensor in tensors]
    kept = whole - sum(size for _, size in freed)
    restored = sum(size for tensor, size in freed if not tensor.in_work)
    by_operation = again.get(BY_OPERATION)
    if by_operation is not None:
        left = branch.kept_by_operation(rank)
        kept, restored = np.where(by_operation, left, kept), np.where(by_operation, whole, restored)
    return BranchBytes(
        whole=whole,
        kept=kept,
        restored=restored,
        work=work.peak,
        gone=work.freed,
    )


def _freed(tensor: Kept, again: Mapping[str, Any]) -> Any:
    """Return the bytes of tensors that the recomputed modules free."""
    masks = [again[module] for module in tensor.freed_by if module in again]
    return reduce(np.logical_or, masks) * tensor.size if masks else 0.0
